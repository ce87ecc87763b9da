"""The offset where it is not unique is the middle of its interval, as LIBSVM has it."""

import warnings

import contracts
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import svm

import bigscreen
from bigscreen.certify.columns import ColumnTuning
from bigscreen.certify.explicit import close_explicit
from bigscreen.fleet.inline import Inline
from bigscreen.numerics.order_statistic import middle_order_statistic
from bigscreen.problems.point import Point

TINY = (1e-4, 1e-3, 1e-2, 1e-1)


def two_classes(seed=0, ones=200, zeros=200, apart=0.6):
    rng = np.random.default_rng(seed)
    y = np.repeat([0, 1], [zeros, ones])
    X = rng.normal(size=(len(y), 4))
    X[:, 0] += np.where(y, apart, -apart)
    return X.astype(np.float32).astype(np.float64), y


def agree(mine, theirs, X, scores="decision_function", intercept=None):
    ours = mine.model_.intercept if intercept is None else intercept
    np.testing.assert_allclose(ours, theirs.intercept_, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        getattr(mine, scores)(X), getattr(theirs, scores)(X), rtol=1e-3, atol=3e-4
    )


# -- the statistic -----------------------------------------------------------------------------
def test_the_middle_of_a_flat_interval():
    values, one = np.array([3.0, 1.0, 2.0, 7.0]), np.ones(4)
    assert (
        middle_order_statistic(values, one, 2.0) == 2.5
        and middle_order_statistic(values, one, 3.0) == 5.0
    )
    assert middle_order_statistic(values, one, 2.5) == 3.0
    # Beyond the ends there is but one.
    assert (
        middle_order_statistic(values, one, 0.0) == 1.0
        and middle_order_statistic(values, one, 4.0) == 7.0
    )
    assert (
        middle_order_statistic(values, np.zeros(4), 0.0) == 0.0
        and middle_order_statistic(np.empty(0), np.empty(0), 0) == 0.0
    )
    # What has no weight is no value.
    assert middle_order_statistic(np.array([1.0, 1.5, 2.0]), np.array([1.0, 0.0, 1.0]), 1.0) == 1.5
    assert middle_order_statistic(np.array([1.0, 1.9, 2.0]), np.array([1.0, 0.0, 1.0]), 1.0) == 1.5
    # The lightest row still counts next to the heaviest.
    assert (
        middle_order_statistic(np.array([1.0, 2.0, 4.0]), np.array([1e14, 1.0, 1e14]), 1e14) == 1.5
    )


@given(seed=st.integers(0, 10**6), n=st.sampled_from([2, 10, 1000, 30_000]), ties=st.booleans())
@settings(max_examples=60, deadline=None)
def test_rounding_makes_no_end_of_a_middle(seed, n, ties):
    """Weights whose halves are equal but for the last digits of their sums."""
    rng = np.random.default_rng(seed)
    weights = 10.0 ** rng.uniform(-6, 6) * np.exp(rng.normal(size=n))
    values = np.concatenate([-1 - rng.exponential(size=n), 2 + rng.exponential(size=n)])
    if ties:
        values = np.repeat([-1.0, 2.0], n)
    both = np.concatenate([weights, rng.permutation(weights)])
    low, high = values[:n].max(), values[n:].min()
    order = rng.permutation(2 * n)
    found = middle_order_statistic(values[order], both[order], float(np.sum(weights[::-1])))
    assert found == pytest.approx(0.5 * (low + high), abs=1e-12)


def between(u, y):
    """The middle of the offsets that are all best where every row is inside of its margin."""
    return 0.5 * (np.max(-1 - u[y == 0]) + np.min(1 - u[y == 1]))


# -- exact machines ------------------------------------------------------------------------------
@pytest.mark.parametrize("C", TINY)
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_svc(C, kernel):
    (X, y), (Z, z) = two_classes(), two_classes(1)
    how = {"C": C, "kernel": kernel, "gamma": 0.25}
    mine = bigscreen.SVC(**how, tol=1e-7).fit(X, y)
    theirs = svm.SVC(**how, tol=1e-8).fit(X, y)
    agree(mine, theirs, Z)
    assert mine.score(Z, z) == theirs.score(Z, z)


@pytest.mark.parametrize("C", [1e-4, 1e-3])
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_svc_with_balanced_weights(C, kernel):
    """LIBSVM's own sums can miss the bound by the last digit here: then it takes an end."""
    X, y = two_classes(ones=90)
    how = {"C": C, "kernel": kernel, "class_weight": "balanced", "gamma": 0.25}
    mine = bigscreen.SVC(**how, tol=1e-7).fit(X, y)
    theirs = svm.SVC(**how, tol=1e-8).fit(X, y)
    assert len(theirs.support_) == len(X)
    wanted = between(theirs.decision_function(X) - theirs.intercept_, y)
    np.testing.assert_allclose(mine.model_.intercept, wanted, atol=1e-4)
    assert 0.6 < mine.score(X, y) < 0.9


def test_the_example():
    """400 + 400 rows, C = 1e-3: an end of the interval predicts one class for everything."""
    (X, y), (Z, z) = two_classes(0, 400, 400), two_classes(1, 400, 400)
    found = bigscreen.SVC(C=1e-3).fit(X, y).score(Z, z)
    assert found == svm.SVC(C=1e-3).fit(X, y).score(Z, z) > 0.7


def test_the_block_solver_with_and_without_screening():
    X, y = two_classes(ones=2100, zeros=2100)
    theirs = svm.SVC(C=1e-3, gamma=0.25, tol=1e-8).fit(X, y)
    for screening in ("none", "gap"):
        how = {"C": 1e-3, "gamma": 0.25, "solver": "block", "screening": screening}
        agree(bigscreen.SVC(**how, tol=1e-7).fit(X, y), theirs, X[:50])


def test_pairs_of_classes():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(240, 3))
    y = np.repeat([0, 1, 2], 80)
    X[:, 0] += y
    mine = bigscreen.SVC(C=1e-3, gamma=0.3, tol=1e-7).fit(X, y)
    theirs = svm.SVC(C=1e-3, gamma=0.3, tol=1e-8, decision_function_shape="ovo").fit(X, y)
    np.testing.assert_allclose(
        np.abs(mine.model_.intercept), np.abs(theirs.intercept_), rtol=1e-3, atol=1e-5
    )
    np.testing.assert_array_equal(mine.predict(X), theirs.predict(X))


@pytest.mark.parametrize("C", TINY)
def test_svr(C):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(300, 3))
    y = 3 * X[:, 0] + rng.normal(size=300)
    for epsilon in (0.0, 0.1):
        mine = bigscreen.SVR(C=C, gamma=0.3, epsilon=epsilon, tol=1e-8).fit(X, y)
        theirs = svm.SVR(C=C, gamma=0.3, epsilon=epsilon, tol=1e-9).fit(X, y)
        agree(mine, theirs, X, "predict")


@pytest.mark.parametrize("nu", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("gamma", [1e-6, 1e-2, 100.0])
def test_one_class(nu, gamma):
    X, _ = two_classes(7, 100, 100)
    mine = bigscreen.OneClassSVM(nu=nu, gamma=gamma, tol=1e-10).fit(X)
    theirs = svm.OneClassSVM(nu=nu, gamma=gamma, tol=1e-10).fit(X)
    size = np.abs(theirs.intercept_)
    np.testing.assert_allclose(mine.model_.intercept, theirs.intercept_, atol=1e-6 * size[0])
    np.testing.assert_allclose(
        mine.decision_function(X), theirs.decision_function(X), atol=1e-6 * 200 * nu
    )


@pytest.mark.parametrize(("nu", "gamma"), [(0.2, 1.0), (0.6, 0.01), (0.6, 1.0), (0.971, 0.01)])
def test_nu_svc(nu, gamma):
    X, y = two_classes(9, 100, 100)
    mine = bigscreen.NuSVC(nu=nu, gamma=gamma, tol=1e-9).fit(X, y)
    theirs = svm.NuSVC(nu=nu, gamma=gamma, tol=1e-9).fit(X, y)
    agree(mine, theirs, X)


@pytest.mark.parametrize("nu", [0.9, 0.98, 0.99])
def test_nu_svc_with_every_row_at_its_bound(nu):
    """Either class has an interval of its own, and margin and offset follow from the middles."""
    X, y = two_classes(9, 100, 100)
    mine = bigscreen.NuSVC(nu=nu, gamma=0.01, tol=1e-12).fit(X, y)
    offset, k = mine.model_.intercept[0], round(100 * nu)
    u = mine.decision_function(X) - offset
    ones, zeros = np.sort(u[y == 1]), np.sort(-u[y == 0])
    ends = 0.5 * (ones[k - 1] + ones[k]), 0.5 * (zeros[k - 1] + zeros[k])
    assert offset == pytest.approx(0.5 * (ends[1] - ends[0]), abs=1e-6)
    assert 0.5 * sum(ends) == pytest.approx(1.0, abs=1e-6)  # rho, in LIBSVM's scale
    assert ones[k] - ones[k - 1] > 1e-3


# -- explicit features ---------------------------------------------------------------------------
@pytest.mark.parametrize("weight", [None, "balanced"])
def test_explicit_features(weight):
    """A smoothed solver's offset is anywhere in the interval; the closing pass takes its middle."""
    X, y = two_classes(ones=400 if weight is None else 150, zeros=400)
    how = {"C": 1e-4, "class_weight": weight}
    theirs = svm.SVC(kernel="linear", tol=1e-8, **how).fit(X, y)
    mine = bigscreen.LinearSVC(loss="hinge", fit_intercept="unpenalized", tol=1e-7, **how).fit(X, y)
    wanted = between(theirs.decision_function(X) - theirs.intercept_, y)
    assert mine.intercept_ == pytest.approx(wanted, abs=1e-3)
    every = bigscreen.NystroemSVC(
        fit_intercept=True, n_components=len(X), gamma=0.25, tol=1e-6, **how
    ).fit(X, y)
    theirs = svm.SVC(gamma=0.25, tol=1e-8, **how).fit(X, y)
    wanted = between(theirs.decision_function(X) - theirs.intercept_, y)
    assert every.model_.intercept == pytest.approx(wanted, abs=1e-3)


@given(
    seed=st.integers(0, 10**6),
    C=st.floats(-4, 1),
    shift=st.floats(-3, 3),
    flat=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_closing_pass_moves_the_offset_and_tells_p_there(seed, C, shift, flat):
    """P of the certificate is P at its multiplier, never above P at the point's own."""
    data = contracts.rows(seed, n=60)
    world = contracts.world(data, "linear", 10.0**C, "true")
    rng = np.random.default_rng(seed)
    w = rng.normal(size=data.n_features) * (1e-3 if flat else 1.0)
    point = Point(w, w, shift, 0.0, 0.0, paired=False, multiplier=(shift,))
    with Inline(1) as fleet:
        proof = close_explicit(world.design, world.problem, point, fleet)
    dual = world.problem.dual(data.y(0, 60), data.weights(0, 60))
    scores = world.oracle.phi @ w
    at = [dual.primal(scores, w @ w, mu) for mu in (proof.multiplier[0], shift)]
    best = dual.primal(scores, w @ w, dual.multiplier(scores))
    assert proof.primal == pytest.approx(at[0], rel=1e-10)
    assert proof.primal <= at[1] * (1 + 1e-12) and proof.primal == pytest.approx(best, rel=1e-10)
    assert proof.intercept == proof.multiplier[0]
    assert proof.intercept == pytest.approx(dual.multiplier(scores), abs=1e-9)


def test_breakpoints_beyond_the_known_ones_are_reached_in_several_passes():
    """A multiplier too far from the best one goes as far as the shards can tell."""
    tuning = ColumnTuning(max_breakpoints=3)
    data = contracts.rows(1, n=60)
    world = contracts.world(data, "linear", 1.0, "true")
    w = np.ones(data.n_features)
    dual = world.problem.dual(data.y(0, 60), data.weights(0, 60))
    scores = world.oracle.phi @ w
    best = dual.primal(scores, w @ w, dual.multiplier(scores))
    with Inline(1) as fleet:
        for at in (-50.0, 50.0, dual.multiplier(scores) + 0.3):
            values = [at]
            for _ in range(60):
                point = Point(w, w, values[-1], 0.0, 0.0, paired=False, multiplier=(values[-1],))
                proof = close_explicit(world.design, world.problem, point, fleet, tuning=tuning)
                again = dual.primal(scores, w @ w, proof.multiplier[0])
                assert proof.primal == pytest.approx(again, rel=1e-10)
                values.append(proof.multiplier[0])
            assert proof.primal == pytest.approx(best, rel=1e-10)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
