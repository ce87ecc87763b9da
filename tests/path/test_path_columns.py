"""The stage for explicit features reaches the oracle's optimum, and its certificates are true."""

import time
from dataclasses import replace

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bigscreen.errors import InputError
from bigscreen.path.explicit import EXPLICIT, ColumnsStage
from bigscreen.path.explicit_newton import BandMoment
from bigscreen.path.explicit_rows import ExplicitRows
from bigscreen.path.stage import PointTask
from bigscreen.problems.dual import AT_HI, AT_LO, AT_ZERO, FREE
from bigscreen.problems.recipes import CSvc, Lad, NuSvc, OneClass, Quantile, Sublinear, Svr

PROBLEMS = ("c-svc", "c-svc weighted", "lad", "svr", "svr 0", "quantile", "sublinear")
ENGINES = ("newton", "descent")


def world(seed, name, constant, n=60, d=4, C=0.7):
    """Make rows, and a function that makes a problem's dual at a multiple of C."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    X[rng.random((n, d)) < 0.3] = 0
    score = X @ rng.normal(size=d) + 0.5 * rng.normal(size=n)
    codes, weights = (score > 0.2).astype(np.int32), np.ones(n)
    intercept = "constant" if constant else "none"
    if name == "c-svc weighted":
        weights = rng.uniform(0.5, 2.0, n) * (rng.random(n) < 0.8)
    y = score if name in ("lad", "svr", "svr 0", "quantile") else codes
    if name == "sublinear":
        y = np.arange(n)
        a = np.where(codes == 1, -1.0, 2.0) * (rng.random(n) < 0.95)
        problem = Sublinear(C, a, score, -0.2, 1.0, intercept)
    else:
        problem = {
            "lad": Lad(C, intercept),
            "svr": Svr(C, 0.4, intercept),
            "svr 0": Svr(C, 0.0, intercept),
            "quantile": Quantile(C, 0.8, intercept),
        }.get(name, CSvc(C, 1, (0.7, 1.3) if "weighted" in name else (), intercept))

    def dual(factor=1.0):
        return problem.at(factor * C).dual(y, weights)

    return X, dual


def oracle(X, constant, dual):
    phi = X.astype(np.float64)
    phi = np.hstack([phi, np.ones((len(X), 1))]) if constant else phi
    arrays = (np.array(each) for each in (dual.sign, dual.lin, dual.lo, dual.hi))
    return reference.Problem(phi, *arrays, tube=dual.tube)


def stage_of(engine, X, constant, csr=False):
    tuning = replace(EXPLICIT, max_newton_size=10**6 if engine == "newton" else 0)
    X = sparse.csr_array(X) if csr else X
    return ColumnsStage(X, constant, quick=engine == "quick", tuning=tuning)


def cold(stage, dual, tol=1e-8, **more):
    return stage.solve(PointTask(dual, dual.feasible(np.zeros(len(dual))), free(dual), tol, **more))


def free(dual):
    return np.full(len(dual), FREE)


def close(values, expected, tol):
    np.testing.assert_allclose(values, expected, rtol=tol, atol=tol * np.max(np.abs(expected)))


def assert_true(stage, q, dual, solved):
    """Check all that a point states by the oracle's plain formulas."""
    alpha, scores = solved.alpha, solved.scores
    assert (alpha >= dual.lo).all() and (alpha <= dual.hi).all()
    w = reference.w_of(q, alpha)
    exact = q.phi @ w
    assert np.all(np.abs(scores.values - exact) <= scores.slack + 1e-13 * (1 + np.abs(exact)))
    assert scores.slack < 1e-10 * (1 + np.max(np.abs(exact)))
    P, D = reference.primal(q, w), reference.dual(q, alpha)
    size = 1e-12 * (1 + abs(P) + np.sum(np.abs(q.p * alpha)))
    assert solved.primal == pytest.approx(P, abs=size)
    assert solved.dual == pytest.approx(D, abs=size)
    assert solved.w_sq == pytest.approx(w @ w, abs=size)
    assert abs(solved.gap - (P - D)) <= solved.rounding + size
    assert solved.rounding < 1e-10 * (1 + abs(P))
    assert solved.gap == pytest.approx(dual.frank_wolfe_gap(alpha, exact), abs=size)
    close(stage.norms, np.linalg.norm(q.phi, axis=1), 1e-12)
    assert (stage.norms >= np.linalg.norm(q.phi, axis=1)).all()
    made = stage.machine(dual, solved)
    close(np.append(made["coef"], made["constant"])[: len(w)], w, 1e-12)


@pytest.mark.parametrize("engine", [*ENGINES, "quick"])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_reaches_the_oracles_optimum(name, constant, engine):
    X, dual_at = world(3, name, constant)
    dual = dual_at()
    q, best = oracle(X, constant, dual), None
    best = reference.solve(q)
    for csr in (False, True):
        stage = stage_of(engine, X, constant, csr)
        solved = cold(stage, dual)
        assert_true(stage, q, dual, solved)
        assert solved.relative_gap <= 1e-8
        assert solved.primal == pytest.approx(best.primal, rel=3e-8)
        # 1/2 ||w - w*||^2 <= gap.
        assert np.linalg.norm(reference.w_of(q, solved.alpha) - best.w) <= 1e-6 + np.sqrt(
            2 * solved.gap
        )


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from(PROBLEMS),
    st.booleans(),
    st.booleans(),
    st.sampled_from(ENGINES),
    st.integers(1, 40),
    st.integers(1, 6),
    st.sampled_from([1e-3, 0.3, 30.0]),
)
def test_any_shape_is_proved_to_its_gap(seed, name, constant, dynamic, engine, n, d, C):
    # Epochs are for wide rows; with few columns and a large C they take many thousands.
    C = C if engine == "newton" else min(C, 0.3)
    X, dual_at = world(seed, name, constant, n, d, C)
    dual = dual_at()
    stage = stage_of(engine, X, constant, csr=bool(seed % 2))
    solved = cold(stage, dual, 1e-6, dynamic=dynamic)
    assert_true(stage, oracle(X, constant, dual), dual, solved)
    # If P is 0, or nearly, the gap is not larger than rounding.
    near = solved.gap <= max(1e-6 * abs(solved.primal), 1e-12 * (1 + np.sum(dual.hi)))
    # With few columns even a small C may take all epochs: then the stated gap is still true.
    late = engine == "descent" and solved.counts["steps"] > EXPLICIT.max_epochs
    assert near or late


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_decided_rows_stay_and_the_objective_is_the_same(name, engine):
    X, dual_at = world(5, name, True)
    dual = dual_at()
    stage = stage_of(engine, X, True)
    best = cold(stage, dual, 1e-10)
    q = oracle(X, True, dual)
    G = reference.gradient(q, q.phi @ reference.w_of(q, best.alpha))
    tube = np.zeros(len(X)) if dual.tube is None else dual.tube
    held = np.select(
        [G > tube + 1e-3, G < -tube - 1e-3, np.abs(G) < tube - 1e-3], [AT_HI, AT_LO, AT_ZERO], FREE
    ).astype(np.int8)
    assert 0 < np.sum(held == FREE) < len(X)
    start = dual.with_decisions(held, dual.feasible(np.zeros(len(X))))
    again = stage.solve(PointTask(dual, start, held, 1e-8))
    assert_true(stage, q, dual, again)
    assert np.array_equal(again.alpha, dual.with_decisions(held, again.alpha))
    assert again.dual == pytest.approx(best.dual, rel=1e-7)
    # All decided: nothing to solve, and the certificate says how far it is.
    done = stage.solve(PointTask(dual, best.alpha, np.full(len(X), AT_LO), 1e-8))
    np.testing.assert_array_equal(done.alpha, best.alpha)


def test_a_wrong_decision_shows_in_the_certificate():
    X, dual_at = world(6, "c-svc", False)
    dual = dual_at()
    best = cold(stage_of("newton", X, False), dual, 1e-10)
    for engine in ENGINES:
        stage = stage_of(engine, X, False)
        wrong = free(dual)
        wrong[np.argmax(best.alpha)] = AT_LO
        solved = stage.solve(PointTask(dual, np.zeros(len(X)), wrong, 1e-6))
        assert_true(stage, oracle(X, False, dual), dual, solved)
        assert solved.relative_gap > 1e-4


@pytest.mark.parametrize("name", ["c-svc", "svr", "lad"])
def test_a_multiple_of_the_last_alpha_is_not_scored_again(name):
    counted = []

    class Counted(ExplicitRows):
        def sum(self, coef):
            counted.append(1)
            return super().sum(coef)

    X, dual_at = world(7, name, True)
    stage = stage_of("newton", X, True)
    stage._begin(Counted(X, True), stage.quick, stage.tuning)
    first = cold(stage, dual_at(), 1e-8)
    dual = dual_at(1.1)
    counted.clear()
    warm = stage.solve(PointTask(dual, 1.1 * first.alpha, free(dual), 1e-8))
    assert len(counted) == warm.counts["certificates"] == 1
    assert_true(stage, oracle(X, True, dual), dual, warm)
    assert warm.relative_gap <= 1e-8
    # If one row differs, the alpha is no multiple, and is summed again.
    other = dual.feasible(1.1 * warm.alpha)
    other[0] = 0.5 * (dual.lo[0] + dual.hi[0])
    counted.clear()
    moved = stage.solve(PointTask(dual, other, free(dual), 1e-8))
    assert len(counted) == 1 + moved.counts["certificates"]
    assert moved.dual == pytest.approx(warm.dual, rel=1e-7)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_alpha_with_other_signs_is_another_w(engine):
    X, dual_at = world(7, "c-svc", True)
    stage = stage_of(engine, X, True)
    dual = dual_at()
    first = cold(stage, dual, 1e-8)
    flipped = replace(dual, sign=np.where(np.arange(len(dual)) % 3 == 0, -1.0, 1.0))
    found = stage.solve(PointTask(flipped, first.alpha, free(dual), 1e-6))
    assert found.relative_gap <= 1e-6
    assert_true(stage, oracle(X, True, flipped), flipped, found)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_path_of_both_directions_with_decided_multiples(engine):
    X, dual_at = world(8, "c-svc", False, n=200)
    stage = stage_of(engine, X, False, csr=True)
    last, before = cold(stage, dual_at(), 1e-6), 1.0
    for factor in (1.3, 1.7, 0.9, 0.2, 5.0):
        dual = dual_at(factor)
        alpha = dual.feasible(factor / before * last.alpha)
        gap = reference.solve(oracle(X, False, dual)).gradient
        decided = np.select([gap > 0.3, gap < -0.3], [AT_HI, AT_LO], FREE).astype(np.int8)
        last = stage.solve(PointTask(dual, dual.with_decisions(decided, alpha), decided, 1e-6))
        assert last.relative_gap <= 1e-6
        assert_true(stage, oracle(X, False, dual), dual, last)
        before = factor


@pytest.mark.parametrize("engine", ENGINES)
def test_folds_are_zero_weights(engine):
    X, dual_at = world(9, "c-svc", True)
    stage = stage_of(engine, X, True)
    whole = dual_at()
    cold(stage, whole)
    for fold in range(3):
        out = np.arange(len(X)) % 3 == fold
        hi = np.where(out, 0.0, whole.hi)
        dual = type(whole)(whole.sign, whole.lin, whole.lo, hi)
        solved = cold(stage, dual)
        assert not solved.alpha[out].any()
        kept = oracle(X[~out], True, whole[~out])
        assert solved.primal == pytest.approx(reference.solve(kept).primal, rel=3e-8)
        assert_true(stage, oracle(X, True, dual), dual, solved)


def test_dynamic_screening_leaves_rows_out_and_the_answer_as_it_was():
    for engine in ENGINES:
        X, dual_at = world(10, "c-svc", False, n=400)
        dual = dual_at(0.01)
        with_it, without = (
            cold(stage_of(engine, X, False), dual, 1e-9, dynamic=on) for on in (True, False)
        )
        assert with_it.counts["screened"] > 100 and without.counts["screened"] == 0
        assert with_it.primal == pytest.approx(without.primal, rel=3e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_deadline_that_has_passed_returns_a_certified_point(engine):
    X, dual_at = world(11, "c-svc", False, n=300)
    dual = dual_at(100.0)
    stage = stage_of(engine, X, False)
    solved = cold(stage, dual, 1e-12, deadline=time.monotonic() - 1.0)
    assert solved.gap > 0
    assert_true(stage, oracle(X, False, dual), dual, solved)


def test_products_have_their_slack():
    X, _dual_at = world(12, "lad", True, n=3000)
    stage = ColumnsStage(X, True)
    coef = np.random.default_rng(0).normal(size=len(X)) * (np.arange(len(X)) % 3 > 0)
    values, slack = stage.products(coef)
    phi = np.hstack([X, np.ones((len(X), 1))]).astype(np.longdouble)
    exact = phi @ (phi.T @ coef.astype(np.longdouble))
    error = np.max(np.abs(values - exact))
    assert error <= slack
    assert slack < 1e-8 * np.max(np.abs(exact))


def test_wide_rows_and_rows_of_zeros():
    rng = np.random.default_rng(13)
    X = rng.normal(size=(30, 80)).astype(np.float32)
    X[::5] = 0
    codes = rng.integers(0, 2, 30)
    dual = CSvc(2.0, 1).dual(codes, np.ones(30))
    best = reference.solve(oracle(X, False, dual))
    for engine in ENGINES:
        solved = cold(stage_of(engine, X, False), dual)
        assert solved.primal == pytest.approx(best.primal, rel=3e-8)
        np.testing.assert_array_equal(solved.alpha[::5], 2.0)


def test_couplings_are_refused_in_a_sentence():
    codes = np.array([0, 1, 0, 1])
    one, stage = np.ones(4), ColumnsStage(np.eye(4, dtype=np.float32))
    for problem in (CSvc(1.0, 1, (), "true"), NuSvc(0.3, 1, 4.0), OneClass(0.3, 4.0)):
        dual = problem.dual(codes, one)
        with pytest.raises(InputError, match="coupling.*newton, block or pairs"):
            stage.solve(PointTask(dual, np.zeros(4), free(dual), 1e-3))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6))
def test_the_moment_is_right_as_the_band_changes(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(300, 6)).astype(np.float32)
    columns, box = ExplicitRows(X, True), rng.uniform(0.5, 2.0, 300)
    moment, phi = BandMoment(columns, 1024), np.hstack([X, np.ones((300, 1))]).astype(float)
    zone = np.sort(rng.permutation(300)[:100])
    for h in (1.0, 0.7, 0.7, 0.1):
        found, slope = moment.matrix(zone, box[zone] / h), box[zone] / h
        right = (phi[zone].T * slope) @ phi[zone]
        np.testing.assert_allclose(found, right, atol=1e-5 * np.abs(right).max())
        found[:] = np.nan  # the caller's own
        keep = rng.random(300) < rng.choice([0.1, 0.9])
        zone = np.flatnonzero(np.isin(np.arange(300), zone) == keep)[:150]
        zone = zone if len(zone) else np.arange(10)
