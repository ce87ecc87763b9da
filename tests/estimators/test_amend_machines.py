"""`amend` of the estimators: the machine of the edited rows."""

import time

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import bigscreen
from bigscreen.errors import InputError


def rough(n=700, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    y = (X[:, 0] + 0.4 * rng.normal(size=n) > 0).astype(int) + (X[:, 1] > 0.8) * (classes - 2)
    return X, np.array(["a", "b", "c"])[y]


MACHINES = {
    "nystrom": lambda: bigscreen.NystroemSVC(n_components=40, gamma=0.3, tol=1e-7, random_state=0),
    "linear": lambda: bigscreen.LinearSVC(loss="hinge", tol=1e-7),
    "exact": lambda: bigscreen.SVC(gamma=0.3, tol=1e-7),
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("classes", [2, 3])
def test_amend_gives_the_machine_of_the_edited_rows(name, classes):
    X, y = rough(classes=classes)
    machine = MACHINES[name]().fit(X, y)
    remove, (more, labels) = np.arange(5, 300, 17), rough(20, classes, seed=1)
    flip = (np.array([1, 2]), np.array(["b", "a"]))
    machine.amend(X, y, remove=remove, relabel=flip, add=(more, labels))
    y2 = y.copy()
    y2[[1, 2]] = ["b", "a"]
    keep = ~np.isin(np.arange(len(X)), remove)
    X2, y2 = np.concatenate([X[keep], more]), np.concatenate([y2[keep], labels])
    cold = MACHINES[name]().fit(X2, y2)
    parts = zip(machine.certificate_, cold.certificate_, strict=True)
    for mine, theirs in parts:
        assert mine["relative_gap"] <= 1e-7
        if name != "nystrom":  # a cold fit of the Nystrom machine draws other landmarks
            assert abs(mine["primal"] - theirs["primal"]) <= 3e-7 * mine["primal"]
    assert np.mean(machine.predict(X2) == cold.predict(X2)) > (0.95 if name == "nystrom" else 0.995)
    books = machine.ledger_ if isinstance(machine.ledger_, list) else [machine.ledger_]
    assert all(book.numbers().max() < len(X2) for book in books)
    # A second edit starts from the amended machine.
    machine.amend(X2, y2, remove=[0, 3])
    assert len(machine.model_.provenance["edits"]) == 2
    assert machine.model_.provenance["rows"] == len(X2) - 2


def test_removing_rows_that_are_out_does_not_change_the_machine():
    X, y = rough()
    machine = MACHINES["nystrom"]().fit(X, y)
    out = machine.ledger_.list_rows("out")[:30]
    before = machine.coef_.copy()
    machine.amend(X, y, remove=out)
    assert np.array_equal(machine.coef_, before)
    assert machine.model_.provenance["edits"][0]["how"] == "carried over"
    assert len(machine.ledger_) == len(X) - 30


def test_other_rows_and_other_machines_are_refused():
    X, y = rough()
    machine = MACHINES["nystrom"]().fit(X, y)
    with pytest.raises(InputError, match="not what the model was fitted on"):
        machine.amend(X[::-1], y[::-1], remove=[1])
    with pytest.raises(InputError, match="none of"):
        machine.amend(X, y, add=(X[:1], ["z"]))
    with pytest.raises(InputError, match="nu-svc cannot"):
        bigscreen.NuSVC(gamma=0.3).fit(X, y).amend(X, y, remove=[1])
    with pytest.raises(InputError, match="bigscreen amend"):
        machine.amend("some.store", None, remove=[1])


def test_an_edit_keeps_within_the_time_budget():
    # Pair steps over columns whose sizes differ by 1e9 do not end: only the rows to add have such.
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 6)), np.repeat(["a", "b"], 20)
    more = rng.normal(size=(10, 6)) * 10.0 ** np.linspace(-4, 5, 6)
    machine = bigscreen.SVC(kernel="linear", solver="pairs", tol=1e-9, time_budget=1.0).fit(X, y)
    began = time.monotonic()
    with pytest.warns(ConvergenceWarning):
        machine.amend(X, y, add=(more, np.tile(["a", "b"], 5)))
    assert time.monotonic() - began < 60
    assert machine.relative_gap_ > 1e-9
