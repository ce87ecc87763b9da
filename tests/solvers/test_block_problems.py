"""The block solver on every recipe: the oracle's optimum, LIBSVM's, and what screening may fix."""

import numpy as np
import pytest
import reference
from block_world import GRID, RECIPES, AnyWorld, any_world, problem_rows, quiet, solved, watched
from contracts import RECORD, RecordingBlock
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.svm import SVR, NuSVC, OneClassSVM

from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.standard import make_kernel
from bigscreen.problems.dual import AT_HI, AT_LO, AT_ZERO
from bigscreen.problems.recipes import NuSvc, OneClass, Sublinear, Svr
from bigscreen.screening.dynamic import Joachims, make_rule
from bigscreen.solvers.block.solver import Block


@pytest.fixture(scope="module", autouse=True)
def fleet():
    with Inline(1) as fleet, quiet():
        yield fleet


def law(w, found, tol):
    """alpha is feasible, its value what is certified, and as near the optimum as is proved."""
    q, alpha, proof = w.oracle, found.point.alpha, found.certificate
    assert np.all(alpha >= q.lo) and np.all(alpha <= q.hi)
    for rows, total in reference.couplings(q):
        assert q.t[rows] @ alpha[rows] == pytest.approx(total, abs=1e-11 * q.hi[rows].sum())
    value, best = reference.dual(q, alpha), w.optimum
    size = abs(best.primal) + 1e-9 * q.hi.sum() + 1e-6 * np.abs(alpha).sum()
    assert value <= best.dual + 1e-8 * size
    assert proof.dual == pytest.approx(value, abs=1e-8 * size + proof.rounding_bound)
    assert best.dual - value <= proof.gap + proof.rounding_bound + 1e-8 * size
    assert proof.relative_gap <= tol


@pytest.mark.slow
@pytest.mark.parametrize(("n", "size"), [(70, 2048), (200, 16)])
@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize("name", RECIPES)
def test_the_optimum_is_that_of_the_reference(name, sparse_rows, n, size, fleet):
    w = any_world(name, n=n, sparse_rows=sparse_rows, **GRID)
    for rule in (None, make_rule("gap")):
        law(w, solved(w, fleet, Block(size=size), rule, 1e-6), 1e-6)


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(RECIPES),
    seed=st.integers(0, 10**6),
    n=st.integers(8, 130),
    level=st.floats(0.01, 0.5),
    kernel=st.sampled_from(["rbf", "linear", "laplacian"]),
    size=st.sampled_from([4, 10, 64, 2048]),
    columns=st.sampled_from([0, 3, 10**6]),
    rule=st.sampled_from(["none", "gap", "f-safe", "joachims"]),
    weights=st.booleans(),
)
def test_any_block_cache_and_rule(name, seed, n, level, kernel, size, columns, rule, weights):
    w = any_world(name, kernel, 0.3, level, seed=seed, n=n, weights=weights, **GRID)
    try:
        w.dual.feasible(np.zeros(n))
    except ValueError:
        return  # nu is too large for these classes
    if abs(w.optimum.dual) < 1e-5:
        return  # nu is so small that their hulls meet: the optimum is 0, and slow to reach
    with Inline(1) as fleet:
        solver = Block(size=size, cache=4 * n * columns)
        law(w, solved(w, fleet, solver, make_rule(rule), 1e-4), 1e-4)


def test_a_box_that_excludes_0(fleet):
    data = problem_rows("sublinear", n=100, **GRID)
    rng = np.random.default_rng(0)
    for lower, upper in ((0.2, 1.0), (-1.0, -0.3), (0.5, 0.5)):
        problem = Sublinear(C=2.0, a=rng.normal(size=100), b=rng.normal(size=100), lower=lower,
                            upper=upper)  # fmt: skip
        w = AnyWorld(Design(data, make_kernel("rbf", 0.3)), problem)
        law(w, solved(w, fleet, Block(size=16), make_rule("gap"), 1e-6), 1e-6)


# -- LIBSVM, in its own formulation --------------------------------------------------------------
def theirs(machine, X, *given):
    """LIBSVM's dual coefficients for all rows."""
    fitted = machine.fit(X, *given)
    coef = np.zeros(len(X))
    coef[fitted.support_] = fitted.dual_coef_[0]
    return fitted, coef


def test_the_nu_svc_of_libsvm(fleet):
    data = problem_rows("nu", 1, 300, weights=False, **GRID)
    X, y = data.X(0, 300).astype(np.float64), data.y(0, 300)
    w = AnyWorld(Design(data, make_kernel("rbf", 0.3)), NuSvc(0.4, 1, 300.0, (), "true"))
    found = solved(w, fleet, Block(size=32), tol=1e-7)
    fitted, coef = theirs(NuSVC(nu=0.4, gamma=0.3, tol=1e-10), X, y)
    # Its dual coefficients are divided by rho, which makes the margin 1.
    alpha = np.abs(coef)
    alpha *= 0.4 / alpha.sum()
    assert reference.dual(w.oracle, found.point.alpha) == pytest.approx(
        reference.dual(w.oracle, alpha), rel=1e-6
    )
    mu = np.array(found.certificate.multiplier)
    rho = w.problem.rho(mu)
    decision = (w.gram @ (w.oracle.s * found.point.alpha) + w.problem.offset(mu)) / rho
    np.testing.assert_allclose(decision, fitted.decision_function(X), rtol=0, atol=5e-3)


def test_the_one_class_machine_of_libsvm(fleet):
    data = problem_rows("one-class", 2, 300, **GRID)
    X, weight = data.X(0, 300).astype(np.float64), data.weights(0, 300)
    w = AnyWorld(Design(data, make_kernel("rbf", 0.3)), OneClass(0.2, float(weight.sum())))
    found = solved(w, fleet, Block(size=32), tol=1e-7)
    machine = OneClassSVM(nu=0.2, gamma=0.3, tol=1e-10)
    coef = np.zeros(300)
    machine.fit(X, sample_weight=weight)
    coef[machine.support_] = machine.dual_coef_[0]
    alpha = coef / coef.sum()
    assert reference.dual(w.oracle, found.point.alpha) == pytest.approx(
        reference.dual(w.oracle, alpha), rel=1e-6
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_the_svr_of_libsvm(epsilon, fleet):
    data = problem_rows("svr", 3, 300, weights=False, **GRID)
    X, y = data.X(0, 300).astype(np.float64), data.y(0, 300)
    w = AnyWorld(Design(data, make_kernel("rbf", 0.3)), Svr(2.0, epsilon, "true"))
    found = solved(w, fleet, Block(size=32), make_rule("gap"), tol=1e-7)
    fitted, coef = theirs(SVR(C=2.0, epsilon=epsilon, gamma=0.3, tol=1e-10), X, y)
    assert reference.dual(w.oracle, found.point.alpha) == pytest.approx(
        reference.dual(w.oracle, coef), rel=1e-6
    )
    decision = w.gram @ found.point.alpha + found.certificate.intercept
    np.testing.assert_allclose(decision, fitted.predict(X), rtol=0, atol=5e-3)


# -- screening -----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", RECIPES)
def test_what_the_gap_ball_fixes_stays_there(name, fleet):
    solver = watched(program=RecordingBlock, size=16)
    sides, fixed = set(), 0
    for seed in range(2):
        RECORD.clear()
        w = any_world(name, seed=seed, n=150, **GRID)
        law(w, solved(w, fleet, solver, make_rule("gap"), 1e-6), 1e-6)
        best = w.optimum.alpha
        room = 1e-5 * (w.oracle.hi - w.oracle.lo)
        for entry in RECORD:
            ids = entry["fixed"]
            fixed += len(ids)
            at = {AT_HI: w.oracle.hi, AT_LO: w.oracle.lo, AT_ZERO: np.zeros(150)}
            for side, bound in at.items():
                own = ids[entry["sides"] == side]
                assert np.all(np.abs(best - bound)[own] <= room[own])
                sides |= {int(side)} if len(own) else set()
    assert fixed > 20, "screening never bit: this test would prove nothing"
    if name.startswith("svr"):
        assert int(AT_ZERO) in sides


@pytest.mark.parametrize("name", ["nu", "one-class", "svr-true", "lad"])
def test_bold_rules_end_right(name, fleet):
    for seed in range(3):
        w = any_world(name, seed=seed, n=200, **GRID)
        law(w, solved(w, fleet, Block(size=16), Joachims(1), 1e-6), 1e-6)


# -- where it begins -----------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["nu", "nu-bounded", "one-class"])
def test_where_0_is_not_feasible_a_subsample_says_where_to_begin(name, fleet):
    w = any_world(name, n=1500, level=0.3, shard_rows=256, chunk_rows=64)
    found = solved(w, fleet, Block(size=300), None, 1e-4, certify="float32")
    alpha, dual = found.point.alpha, w.dual
    assert found.certificate.relative_gap <= 1e-4
    np.testing.assert_allclose(dual.feasible(alpha), alpha, rtol=0, atol=1e-9 * dual.hi.max())
    # Not with a little of every row, which would cost all columns.
    assert found.history[0]["kernel_entries"] < 0.9 * 1500**2


@pytest.mark.parametrize("name", RECIPES)
def test_a_start_is_taken_over(name, fleet):
    w = any_world(name, n=150, **GRID)
    whole = solved(w, fleet, tol=1e-6)
    again = solved(w, fleet, tol=1e-6, start=whole.point.alpha)
    assert len(again.history) <= 2 < len(whole.history)
    law(w, again, 1e-6)
