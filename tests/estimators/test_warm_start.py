"""A warm start changes how long a fit takes, never what is fitted and proved."""

import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from bigscreen import (
    SVC,
    SVR,
    LinearSVC,
    LinearSVR,
    NuSVC,
    NuSVR,
    NystroemSVC,
    OneClassSVM,
    QuantileRegressor,
    Tuning,
)
from bigscreen.errors import InputError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 4)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] ** 2 + 0.5 * RNG.normal(size=400) > 0.7).astype(int)
TARGETS = X[:, 0] + np.sin(2 * X[:, 1]) + 0.1 * RNG.normal(size=400)
WEIGHTS = np.where(np.arange(400) % 7 == 0, 0.0, 0.5 + RNG.random(400))

CLASSIFIERS = {
    "linear": LinearSVC(loss="hinge", C=0.1, solver="newton"),
    "squared": LinearSVC(C=0.1),
    "descent": LinearSVC(C=0.1, solver="cd"),
    "unpenalized": LinearSVC(loss="hinge", C=0.1, fit_intercept="unpenalized", solver="newton"),
    "landmarks": NystroemSVC(
        n_components=20, solver="newton", random_state=0, tuning=Tuning(features="stored")
    ),
    "coupled": NystroemSVC(n_components=20, solver="newton", random_state=0, fit_intercept=True),
    "block": SVC(gamma=0.5, solver="block"),
    "pairs": SVC(gamma=0.5),
}
REGRESSORS = {
    "svr": SVR(gamma=0.5, solver="block"),
    "svr landmarks": SVR(gamma=0.5, n_components=20, solver="newton"),
    "linear svr": LinearSVR(epsilon=0.1, solver="newton"),
    "quantile": QuantileRegressor(gamma=0.5, quantile=0.8, solver="block"),
}


def started(machine):
    """The starts that the model records, "cold" if it has none."""
    return [one["start"] for one in machine.model_.provenance.get("start", [{"start": "cold"}])]


def check_against_cold(machine, X, y, weights=None, start="warm"):
    """Fit both ways: both gaps are proved, and hold each other's objective."""
    machine.fit(X, y, weights)
    cold = clone(machine).fit(X, y, weights)
    assert set(started(machine)) == {start}
    assert set(started(cold)) == {"cold"}
    for ours, theirs in zip(machine.certificate_, cold.certificate_, strict=True):
        for own, other in ((ours, theirs), (theirs, ours)):
            assert own["relative_gap"] <= machine.tol
            # (P of one is at least D of the other, up to what rounding can do.)
            room = own["rounding_bound"] + other["rounding_bound"] + 1e-9 * abs(own["primal"])
            assert own["primal"] >= other["dual"] - room
    return cold


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_start_at_the_last_fit_after_any_change(name):
    machine = clone(CLASSIFIERS[name]).set_params(warm_start=True, tol=1e-3)
    machine.fit(X[:350], Y[:350])
    assert started(machine) == ["cold"]
    C = machine.C
    check_against_cold(machine.set_params(C=2 * C), X[:350], Y[:350])
    check_against_cold(machine.set_params(tol=1e-5), X[:350], Y[:350])
    check_against_cold(machine.set_params(C=C / 5, tol=1e-3), X[:350], Y[:350])
    # More rows, fewer rows, weights (some of which leave rows out), and wrong labels.
    check_against_cold(machine.set_params(class_weight={0: 1, 1: 3}), X, Y)
    check_against_cold(machine, X[:250], Y[:250])
    check_against_cold(machine, X, Y, WEIGHTS)
    check_against_cold(machine, X, 1 - Y, WEIGHTS)


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors_start_at_the_last_fit(name):
    machine = clone(REGRESSORS[name]).set_params(warm_start=True).fit(X[:350], TARGETS[:350])
    check_against_cold(machine.set_params(C=3.0, tol=1e-5), X[:350], TARGETS[:350])
    check_against_cold(machine.set_params(C=0.3, tol=1e-3), X, TARGETS)
    check_against_cold(machine, X, -TARGETS)


@pytest.mark.parametrize("machine", [NuSVC(), NuSVR(), OneClassSVM()])
def test_exact_machines_with_nu_start_at_the_last_fit(machine):
    y = TARGETS if isinstance(machine, NuSVR) else Y
    machine = clone(machine).set_params(gamma=0.5, warm_start=True).fit(X[:350], y[:350])
    for nu in (0.4, 0.2):
        check_against_cold(machine.set_params(nu=nu), X[:350], y[:350])
    check_against_cold(machine, X, y)


@pytest.mark.parametrize("name", ["linear", "squared", "landmarks", "block"])
def test_a_repeated_fit_takes_fewer_passes(name):
    machine = clone(CLASSIFIERS[name]).set_params(warm_start=True, tol=1e-6).fit(X, Y)
    cold = np.max(machine.n_iter_)
    assert np.max(machine.fit(X, Y).n_iter_) < cold


@pytest.mark.parametrize("name", ["linear", "landmarks", "pairs"])
def test_other_labels_columns_and_kernels_start_cold(name):
    machine = clone(CLASSIFIERS[name]).set_params(warm_start=True).fit(X, Y)
    many = np.digitize(TARGETS, [-0.7, 0.7])
    check_against_cold(machine, X, many, start="cold")
    check_against_cold(machine.set_params(C=2.0), X, many)  # each class from its machine
    check_against_cold(machine, X[:, :3], many, start="cold")
    check_against_cold(machine, X[:, :3], many.astype(str), start="cold")
    if name != "linear":
        check_against_cold(machine.set_params(kernel="laplacian"), X[:, :3], Y, start="cold")


def test_landmarks_start_cold_once_gamma_differs_by_more_than_a_twentieth():
    machine = NystroemSVC(n_components=30, gamma=0.5, solver="newton", warm_start=True).fit(X, Y)
    # random_state=None draws other landmarks for each fit: the machine is projected onto them.
    before = machine.components_
    machine.set_params(gamma=0.52).fit(X, Y)
    assert started(machine) == ["warm"] and not np.array_equal(before, machine.components_)
    assert started(machine.set_params(gamma=0.6).fit(X, Y)) == ["cold"]
    assert started(machine.set_params(n_components=20).fit(X, Y)) == ["warm"]


def test_exact_machines_start_at_the_rows_that_are_the_same():
    machine = SVC(gamma=0.5, solver="block", warm_start=True).fit(X, Y)
    moved = X.copy()
    moved[:200] += 1.0
    check_against_cold(machine, moved, Y)
    check_against_cold(machine, moved + 1.0, Y, start="cold")
    sparse_rows = sparse.csr_array(X * (np.abs(X) > 0.5))
    check_against_cold(machine, sparse_rows, Y, start="cold")
    check_against_cold(machine.set_params(C=3.0), sparse_rows, Y)
    kernel = X @ X.T
    machine = SVC(kernel="precomputed", warm_start=True).fit(kernel, Y)
    check_against_cold(machine.set_params(C=3.0), kernel, Y)
    check_against_cold(machine.set_params(C=1.0), kernel, Y, WEIGHTS, start="cold")


def test_copies_and_searches():
    machine = SVC(gamma=0.5, warm_start=True).fit(X, Y)
    assert clone(machine).warm_start and started(clone(machine).fit(X, Y)) == ["cold"]
    check_against_cold(pickle.loads(pickle.dumps(machine)).set_params(C=2.0), X, Y)
    machine = clone(CLASSIFIERS["landmarks"]).set_params(warm_start=True).fit(X, Y)
    check_against_cold(pickle.loads(pickle.dumps(machine)).set_params(C=2.0), X, Y)
    search = GridSearchCV(machine, {"C": [0.1, 1.0]}, cv=2).fit(X, Y)
    assert search.best_estimator_.relative_gap_ <= machine.tol
    # Probabilities come from folds, which start cold, and the machine of all rows.
    machine.set_params(probability=True, C=2.0).fit(X, Y)
    assert started(machine) == ["warm"]
    cold = clone(machine).fit(X, Y)
    np.testing.assert_allclose(machine.predict_proba(X), cold.predict_proba(X), atol=0.02)


@pytest.mark.parametrize(
    ("machine", "what"),
    [
        (SVC(early=True), "early"),
        (SVC(n_components=20, metric_learning="diagonal"), "metric"),
        (NuSVC(n_components=20), "nu on landmarks"),
        (OneClassSVM(n_components=20), "nu on landmarks"),
        (NystroemSVC(n_components=20, solver="interior"), "interior"),
        (NystroemSVC(n_components=20, solver="snacks"), "snacks"),
        (LinearSVC(loss="hinge", solver="cd"), "coordinate descent"),
        (LinearSVC(solver="dense"), "dense"),
    ],
)
def test_fits_that_would_always_start_cold_are_refused(machine, what):
    with pytest.raises(InputError, match=f"{what}.* starts cold; leave out warm_start"):
        machine.set_params(warm_start=True).fit(X, Y)


def test_targets_and_truth_values():
    with pytest.raises(InputError, match="several targets starts cold"):
        LinearSVR(warm_start=True).fit(X, np.column_stack([TARGETS, -TARGETS]))
    with pytest.raises(InputError, match="warm_start must be True or False, got 'yes'"):
        SVC(warm_start="yes").fit(X, Y)
