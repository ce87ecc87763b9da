"""The stage for kernel columns reaches every problem's optimum, bit for bit however it runs."""

from dataclasses import replace

import block_world
import numpy as np
import pytest
import reference
from block_world import GRID, RECIPES, AnyWorld, any_world, problem_rows, quiet, steady
from contracts import INTERCEPTS
from hypothesis import given, settings
from hypothesis import strategies as st

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.kernels.standard import make_kernel
from bigscreen.path.kernel import KernelStage
from bigscreen.path.stage import PointTask
from bigscreen.problems.dual import AT_HI, AT_LO, AT_ZERO, FREE
from bigscreen.problems.recipes import CSvc, NuSvc, OneClass
from bigscreen.solvers.block.solver import Block
from bigscreen.solvers.block.tuning import BlockTuning

SMALL = Block(size=16)
tuned = []
"""The tuned values of the test that runs; see `largest`."""


@pytest.fixture(scope="module", autouse=True)
def fleet():
    with Inline(1) as fleet, quiet():
        yield fleet


@pytest.fixture(params=["one block", "blocks"], autouse=True)
def largest(request):
    """Allow blocks of all open rows, or, as with many rows, only of a few."""
    small = {"max_growing_block": 20, "rows_per_round": 7} if request.param == "blocks" else {}
    tuned.append(BlockTuning(**small))
    yield
    tuned.pop()


def stage_of(w, fleet, options=SMALL):
    options = replace(options, tuning=tuned[-1])
    return KernelStage(w.design, fleet, w.problem.intercept == "constant", options)


def law(w, dual, found, tol):
    """Check that alpha is feasible, and that certificate and scores are those of its w."""
    q = reference.Problem(
        w.oracle.phi, dual.sign, dual.lin, dual.lo, dual.hi, dual.coupling, dual.total, dual.group,
        dual.tube,
    )  # fmt: skip
    alpha = found.alpha
    assert np.all(alpha >= q.lo) and np.all(alpha <= q.hi)
    for rows, total in reference.couplings(q):
        assert q.t[rows] @ alpha[rows] == pytest.approx(total, abs=1e-10 * q.hi[rows].sum())
    wide = reference.w_of(q, alpha)
    off = np.abs(found.scores.values - q.phi @ wide)
    assert np.all(off <= found.scores.slack + 1e-9 * (1 + np.abs(q.phi @ wide)))
    value, best = reference.dual(q, alpha), reference.solve(q)
    size = abs(best.primal) + 1e-9 * q.hi.sum() + 1e-6 * np.abs(alpha).sum()
    # What float32 entries do to P and D they do to both alike.
    assert found.dual == pytest.approx(value, abs=1e-5 * size)
    assert found.w_sq == pytest.approx(wide @ wide, rel=1e-5, abs=1e-9)
    assert found.gap == pytest.approx(found.primal - found.dual, abs=1e-9 * size)
    assert best.dual - value <= found.gap + found.rounding + 1e-8 * size
    assert found.relative_gap <= tol
    return q, best


def cold(dual):
    return dual.feasible(np.zeros(len(dual)))


def free(dual):
    return np.full(len(dual), FREE)


@pytest.mark.slow
@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize("name", ["c", *RECIPES])
def test_every_problem_reaches_its_optimum_along_a_grid(name, sparse_rows, fleet):
    """Solve each point after the other, the first again, and then a fold."""
    if name == "c":
        data = problem_rows("nu", n=130, sparse_rows=sparse_rows, **GRID)
        problem = CSvc(2.0, 1, (1.0, 2.0), "true")
        w = AnyWorld(Design(data, make_kernel("rbf", 0.3)), problem)
    else:
        w = any_world(name, n=130, sparse_rows=sparse_rows, **GRID)
    data, stage = w.data, stage_of(w, fleet)
    y, weight = data.y(0, 130), data.weights(0, 130)
    held = weight * (np.arange(130) % 5 > 0)
    values = [0.55, 0.6, 0.65] if name.startswith(("nu", "one")) else [0.5, 0.7, 2.0]
    problem, alpha = w.problem, None
    for value, weights in [*((v, weight) for v in values), (values[0], weight), (values[0], held)]:
        if "mass" in vars(problem):
            problem = type(problem)(**{**vars(problem), "mass": float(weights.sum())})
        before, problem = problem, problem.at(value)
        dual = problem.dual(y, weights)
        factor = problem.factor(before)
        start = cold(dual) if alpha is None else dual.feasible((factor or 1.0) * alpha)
        found = stage.solve(PointTask(dual, start, free(dual), 1e-6))
        law(w, dual, found, 1e-6)
        alpha = found.alpha
    made = stage.machine(dual, found)
    coef = np.zeros(130)
    coef[made["support"]] = made["coef"]
    np.testing.assert_array_equal(coef, dual.sign * alpha)
    constant = w.problem.intercept == "constant"
    assert made["constant"] == pytest.approx(coef.sum() if constant else 0.0)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(["c", "svr-true", "lad", "quantile-true", "one-class"]),
    Cs=st.lists(st.floats(0.01, 30), min_size=2, max_size=4),
    columns=st.sampled_from([0, 3, 10**6]),
    dynamic=st.booleans(),
)
def test_any_sequence_of_problems_is_certified(seed, name, Cs, columns, dynamic):
    data = problem_rows("nu" if name == "c" else name, seed=seed, n=60, **GRID)
    problem = CSvc(1.0, 1, (), "true") if name == "c" else block_world.recipe(name, data)
    w = AnyWorld(Design(data, make_kernel("rbf", 0.3)), problem)
    with Inline(1) as fleet:
        stage, alpha = stage_of(w, fleet, Block(size=16, cache=4 * 60 * columns)), None
        for C in Cs:
            problem = w.problem.at(min(C / 30 + 0.1, 1.0) if name == "one-class" else C)
            dual = problem.dual(data.y(0, 60), data.weights(0, 60))
            start = cold(dual) if alpha is None else dual.feasible(alpha)
            found = stage.solve(PointTask(dual, start, free(dual), 1e-4, dynamic=dynamic))
            law(w, dual, found, 1e-4)
            alpha = found.alpha


def sides(dual, best):
    """Find the rows whose oracle's alpha is clearly at a bound (or at 0 within a tube)."""
    room = 1e-7 * (dual.hi - dual.lo)
    decided = free(dual)
    decided[best.alpha >= dual.hi - room] = AT_HI
    decided[best.alpha <= dual.lo + room] = AT_LO
    if dual.tube is not None:
        decided[np.abs(best.alpha) <= room] = AT_ZERO
    return decided


@pytest.mark.slow
@pytest.mark.parametrize("name", ["svr-true", "lad", "nu", "one-class", "quantile"])
@pytest.mark.parametrize("part", [0.5, 1.0])
def test_decided_rows_stay_and_are_certified_too(name, part, fleet):
    w = any_world(name, n=140, **GRID)
    dual, best = w.dual, w.optimum
    decided = sides(dual, best)
    decided[np.random.default_rng(0).random(140) > part] = FREE
    assert np.count_nonzero(decided != FREE) > 20
    stage = stage_of(w, fleet)
    alpha = dual.feasible(dual.with_decisions(decided, cold(dual)), decided != FREE)
    found = stage.solve(PointTask(dual, alpha, decided, 1e-6))
    law(w, dual, found, 1e-6)
    fixed = decided != FREE
    np.testing.assert_array_equal(
        found.alpha[fixed], dual.with_decisions(decided, found.alpha)[fixed]
    )


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_a_multiple_costs_no_column(intercept, fleet):
    """If all rows are at their bound, the scaled alpha is the optimum, and costs no column."""
    data = problem_rows("nu", n=120, **GRID)
    w = AnyWorld(Design(data, make_kernel("rbf", 1e-4)), CSvc(1e-4, 1, (), intercept))
    stage = stage_of(w, fleet)
    problem = w.problem
    found = stage.solve(PointTask(w.dual, cold(w.dual), free(w.dual), 1e-3))
    for C in (2e-4, 3e-4):
        before, problem = problem, problem.at(C)
        dual = problem.dual(data.y(0, 120), data.weights(0, 120))
        start = dual.feasible(problem.factor(before) * found.alpha)
        found = stage.solve(PointTask(dual, start, free(dual), 1e-3))
        law(w, dual, found, 1e-3)
        assert found.counts["kernel_entries"] == 0 and found.counts["rounds"] == 1


def test_columns_are_kept_from_point_to_point(fleet):
    w = any_world("svr-true", n=150, **GRID)
    counts = {}
    for columns in (0, 150):
        stage = stage_of(w, fleet, Block(size=16, cache=4 * 150 * columns))
        alpha, entries = cold(w.dual), 0
        for C in (1.0, 1.3, 1.6, 2.0):
            dual = w.problem.at(C).dual(w.data.y(0, 150), w.data.weights(0, 150))
            found = stage.solve(PointTask(dual, dual.feasible(alpha), free(dual), 1e-6))
            alpha, entries = found.alpha, entries + found.counts["kernel_entries"]
        counts[columns] = entries
    assert counts[150] < 0.6 * counts[0]


@pytest.mark.parametrize("constant", [False, True])
def test_products_of_any_coefficients_are_right(constant, fleet):
    w = any_world("svr-constant" if constant else "svr", n=150, **GRID)
    stage = stage_of(w, fleet)
    found = stage.solve(PointTask(w.dual, cold(w.dual), free(w.dual), 1e-6))
    rng = np.random.default_rng(0)
    near = 1.5 * found.alpha
    near[:5] += 1.0
    for coef in (np.zeros(150), found.alpha, near, rng.normal(size=150)):
        scores = stage.products(coef)
        want = (w.gram + constant) @ coef
        assert np.all(np.abs(scores.values - want) <= scores.slack + 1e-9)
        assert np.all(scores.slack <= 1e-4 * (1 + np.abs(coef).sum()))
    # They have moved nothing.
    again = stage.solve(PointTask(w.dual, found.alpha, free(w.dual), 1e-6))
    np.testing.assert_array_equal(again.alpha, found.alpha)
    np.testing.assert_array_equal(w.oracle.phi.shape[0], len(stage.norms))
    assert np.all(stage.norms >= np.linalg.norm(w.oracle.phi, axis=1) - 1e-9)


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_where_float32_cannot_prove_the_gap(intercept, fleet):
    data = problem_rows("nu", n=100, **GRID)
    w = AnyWorld(Design(data, make_kernel("rbf", 0.3)), CSvc(1e5, 1, (), intercept))
    stage = stage_of(w, fleet, Block(size=32))
    alpha = cold(w.dual)
    for C in (1e5, 2e5):
        dual = w.problem.at(C).dual(data.y(0, 100), data.weights(0, 100))
        found = stage.solve(PointTask(dual, dual.feasible(alpha), free(dual), 1e-5))
        law(w, dual, found, 1e-5)
        alpha = found.alpha
    assert stage._solve.fine or stage._solve.mending.times  # float64 entries


def walked(w, fleet, resumed=False, options=SMALL):
    """Solve three points; with ``resumed``, each on a new stage that recalls the one before."""
    ends, alpha, kept = [], cold(w.dual), None
    n = w.data.n_rows
    stage = stage_of(w, fleet, options)
    for C in (0.5, 0.7, 2.0):
        if resumed and kept is not None:
            stage = stage_of(w, fleet, options)
            stage.recall(kept)
        dual = w.problem.at(C).dual(w.data.y(0, n), w.data.weights(0, n))
        found = stage.solve(PointTask(dual, dual.feasible(alpha), free(dual), 1e-6))
        alpha, kept = found.alpha, stage.memory()
        ends.append(found)
    return ends


def same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.alpha, b.alpha)
        np.testing.assert_array_equal(a.scores.values, b.scores.values)
        assert (a.primal, a.dual, a.gap) == (b.primal, b.dual, b.gap)


@steady
@pytest.mark.parametrize("name", ["svr-true", "lad-true", "quantile"])
def test_threads_interruptions_and_what_is_kept_change_no_bit(name, fleet):
    w = any_world(name, n=150, **GRID)
    first = walked(w, fleet)
    same(walked(w, fleet, resumed=True), first)
    same(walked(w, fleet, options=Block(size=16, cache=4 * 150 * 10)), first)
    with Inline(3) as threads:
        same(walked(w, threads), first)


@pytest.mark.slow
def test_worker_processes_change_no_bit(fleet, largest):
    w = any_world("svr-true", n=150, **GRID)
    with local_cluster(2) as cluster:
        same(walked(w, cluster), walked(w, fleet))


def test_a_grid_of_nu_does_not_spread_over_all_rows(fleet):
    data = problem_rows("one-class", n=400, weights=False, **GRID)
    w = AnyWorld(Design(data, make_kernel("rbf", 0.3)), OneClass(0.1, 400.0))
    stage, alpha, support = stage_of(w, fleet), cold(w.dual), []
    for nu in (0.1, 0.11, 0.12):
        dual = w.problem.at(nu).dual(data.y(0, 400), data.weights(0, 400))
        found = stage.solve(PointTask(dual, dual.feasible(alpha), free(dual), 1e-5))
        law(w, dual, found, 1e-5)
        alpha = found.alpha
        support.append(np.count_nonzero(alpha))
    assert max(support) < 100


def test_a_machine_that_is_0_comes_to_an_end(fleet):
    """If the classes overlap, w* is 0, and a relative gap has no meaning."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 2)).astype(np.float32), rng.integers(0, 2, 200, np.int32)
    data = MemoryDataset(X, y, [0, 1])
    dual = NuSvc(0.5, 1, 200.0, (), "true").dual(y, data.weights(0, 200))
    stage = KernelStage(Design(data, make_kernel("linear")), fleet, options=SMALL)
    found = stage.solve(PointTask(dual, cold(dual), free(dual), 1e-3))
    assert abs(found.dual) < 1e-9 and found.counts["rounds"] < 1000


def test_designs_with_columns_are_refused(fleet):
    data = MemoryDataset(np.ones((4, 2), np.float32), [0, 1, 0, 1], [0, 1])
    with pytest.raises(InputError, match="exact kernel"):
        KernelStage(Design(data), fleet)
