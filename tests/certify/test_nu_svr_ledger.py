"""What a nu-SVR's ledger says of a row is true of both of the row's dual variables."""

import pickle

import numpy as np
import pytest
from sklearn import svm

from bigscreen import Inline, MemoryDataset, Model, NuSVR, TrainOptions
from bigscreen.data.memory import Mirrored
from bigscreen.model.ledger import BOUND, OPEN, OUT, Ledger, round_margins
from bigscreen.train.run import train

N = 60


def rows(weights=False):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=N)
    return X, y, rng.uniform(0.1, 2, N) * (rng.random(N) > 0.3) if weights else None


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("nu", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("intercept", [True, "penalized", False])
def test_the_ledger_is_true_of_libsvms_coefficients(nu, weights, intercept):
    X, y, c = rows(weights)
    own = {"nu": nu, "gamma": 0.5, "tol": 1e-9}
    mine = NuSVR(**own, fit_intercept=intercept).fit(X, y, c)
    alpha, most = np.zeros(N), np.ones(N) if c is None else c
    alpha[mine.support_] = mine.dual_coef_[0]
    if intercept is True:  # (scikit-learn's support_ counts the rows that have weight)
        theirs, own_rows = svm.NuSVR(**own), np.flatnonzero(most)
        theirs.fit(X[own_rows], y[own_rows], most[own_rows])
        alpha = np.zeros(N)
        alpha[own_rows[theirs.support_]] = theirs.dual_coef_[0]
    numbers, status = mine.ledger_.numbers(), mine.ledger_.status
    assert len(np.unique(numbers)) == len(status) == np.count_nonzero(most)
    alpha, most = alpha[numbers], most[numbers]
    np.testing.assert_allclose(alpha[status == OUT], 0, atol=1e-5)
    np.testing.assert_allclose(np.abs(alpha[status == BOUND]), most[status == BOUND], rtol=1e-5)
    # It says something of rows within the tube and on both sides of it.
    if nu == 0.5:
        assert np.mean(status != OPEN) > 0.5 and np.any(status == OUT)
        assert {-1, 1} == set(np.sign(alpha[status == BOUND]))


def test_a_model_of_mirrored_rows_speaks_of_each_row_once(tmp_path):
    X, y, _ = rows()
    machine = NuSVR(gamma=0.5, tol=1e-9).fit(X, y)
    again = pickle.loads(pickle.dumps(machine))  # before the margins are computed
    np.testing.assert_array_equal(again.ledger_.margins, machine.ledger_.margins)
    machine.model_.save(tmp_path / "nu.model")
    options = TrainOptions(
        problem="nu-svr", exact=True, gamma=0.5, tol=1e-9, nu=0.5, intercept="true"
    )
    with Inline(1) as fleet:
        trained = train(Mirrored(MemoryDataset(X, y, None)), options, fleet)
    for model in (trained, Model.load(tmp_path / "nu.model")):
        (book,) = model.ledger
        assert book.counts == machine.ledger_.counts
        np.testing.assert_array_equal(book.margins, machine.ledger_.margins)
        np.testing.assert_array_equal(model.support, machine.support_)
        np.testing.assert_array_equal(model.coef, machine.dual_coef_)
        assert model.provenance["rows"] == model.provenance["certificates"][0]["rows"] == N


def test_a_row_is_no_more_certain_than_its_variables():
    used = np.array([0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 1, 1], bool)
    ratio = np.array([3.0, 3, 3, 3, 0.5, 3, 2.0, 0.5, 2, 0.5, 2, 3])
    made = []

    def margins():
        made.append(1)
        return round_margins(ratio, used)

    eager, lazy = Ledger(margins(), 0.1).fold_sides(2), Ledger(margins, 0.1).fold_sides(2)
    assert len(made) == 1
    for book in (eager, lazy):
        assert list(book.status) == [OUT, OPEN, BOUND, OPEN, OPEN, OPEN]
        np.testing.assert_array_equal(np.abs(book.margins), [2, 0.5, 2, 0.5, 0.5, 0])
    assert eager.fold_sides(1) is eager
