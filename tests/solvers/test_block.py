"""The block solver: the oracle's optimum and LIBSVM's, wherever it begins, whatever the data."""

import contracts
import numpy as np
import pytest
from block_world import GRID, KERNELS, ends_right, quiet, solved, world
from contracts import INTERCEPTS
from exact_world import ExactWorld
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.svm import SVC

from bigscreen.data.memory import MemoryDataset
from bigscreen.data.synthetic import susy_like
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.standard import make_kernel
from bigscreen.problems.recipes import CSvc
from bigscreen.screening.dynamic import Joachims, make_rule
from bigscreen.solvers.block.solver import Block
from bigscreen.solvers.protocol import Run


@pytest.fixture(scope="module", autouse=True)
def fleet():
    with Inline(1) as fleet, quiet():
        yield fleet


@pytest.mark.slow
@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("n", "size", "shard_rows"), [(90, 2048, 128), (200, 16, 64)])
def test_the_optimum_is_that_of_the_reference(
    n, size, shard_rows, kernel, intercept, sparse_rows, fleet
):
    data = contracts.rows(n, n, sparse_rows=sparse_rows, shard_rows=shard_rows, chunk_rows=16)
    w = world(data, kernel, 2.0, intercept)
    ends_right(w, solved(w, fleet, Block(size=size)))


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(4, 120),
    noise=st.floats(0.05, 3),
    kernel=st.sampled_from(KERNELS),
    C=st.floats(-4, 0.7),
    intercept=st.sampled_from(INTERCEPTS),
    size=st.sampled_from([4, 10, 64, 2048]),
    shard_rows=st.sampled_from([16, 32, 128]),
    columns=st.sampled_from([0, 3, 20, 10**6]),
    rule=st.sampled_from(["none", "gap", "f-safe", "adaptive", "joachims"]),
    sparse_rows=st.booleans(),
)
def test_any_block_cache_cut_and_rule(
    seed, n, noise, kernel, C, intercept, size, shard_rows, columns, rule, sparse_rows
):
    data = contracts.rows(
        seed, n, 4, noise, sparse_rows and n > 10, shard_rows=shard_rows, chunk_rows=16
    )
    w = world(data, kernel, 10.0**C, intercept)
    with Inline(1) as fleet:
        solver = Block(size=size, cache=4 * n * columns)
        ends_right(w, solved(w, fleet, solver, make_rule(rule), 1e-4), 1e-4)


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_alpha_is_that_of_the_reference(intercept, fleet):
    """A kernel matrix of full rank has one optimum."""
    w = world(contracts.rows(3, 150, **GRID), "rbf", 2.0, intercept, gamma=1.0)
    found = solved(w, fleet, tol=1e-6)
    np.testing.assert_allclose(found.point.alpha, w.optimum.alpha, rtol=0, atol=2e-4)
    assert w.value(found.point.alpha) == pytest.approx(w.optimum.dual, rel=1e-8)


def test_blocks_move_scores_both_ways(fleet):
    """Without an offset the rows that violate most can all be of one label."""
    X, y = next(iter(susy_like(3000, 0)))
    data = MemoryDataset(X, np.int64(y == 1), [0, 1], None)
    passes = {}
    for intercept in ("none", "true"):
        w = ExactWorld(Design(data, make_kernel("rbf", 1 / 32)), CSvc(1.25, 1, (), intercept))
        found = solved(w, fleet, Block(size=64), tol=1e-3)
        assert found.certificate.relative_gap <= 1e-3
        passes[intercept] = len(found.history)
    assert passes["none"] <= 1.5 * passes["true"]


@pytest.mark.parametrize("C", [0.1, 10.0])
@pytest.mark.parametrize("sparse_rows", [False, True])
def test_the_optimum_of_libsvm(C, sparse_rows, fleet):
    data = contracts.rows(1, 400, sparse_rows=sparse_rows, weights=False, **GRID)
    X, y = data.X(0, 400), data.y(0, 400)
    X = (X.toarray() if sparse_rows else X).astype(np.float64)
    w = ExactWorld(Design(data, make_kernel("rbf", 0.15)), CSvc(C, 1, (), "true"))
    found = solved(w, fleet, Block(size=32), tol=1e-6)
    theirs = SVC(C=C, gamma=0.15, tol=1e-10).fit(X, y)
    alpha = np.zeros(400)
    alpha[theirs.support_] = np.abs(theirs.dual_coef_[0])
    mine = found.point.alpha
    assert w.value(mine) == pytest.approx(w.value(alpha), rel=1e-8)
    assert found.certificate.intercept == pytest.approx(theirs.intercept_[0], abs=1e-4)
    decision = w.gram @ (w.oracle.s * mine) + found.certificate.intercept
    np.testing.assert_allclose(decision, theirs.decision_function(X), rtol=0, atol=2e-3)


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_dense_and_sparse_rows_of_the_same_numbers(kernel, intercept, fleet):
    one = contracts.rows(7, 150, 8, sparse_rows=True, **GRID)
    X, y, weight = one.X(0, 150).toarray(), one.y(0, 150), one.weights(0, 150)
    other = MemoryDataset(X, y, [0, 1], weight, **GRID)
    ends = [solved(world(d, kernel, 2.0, intercept), fleet).certificate for d in (one, other)]
    assert ends[0].dual == pytest.approx(ends[1].dual, rel=1e-5)
    assert ends[0].gap + ends[1].gap >= abs(ends[0].dual - ends[1].dual)


@pytest.mark.parametrize("rule", [None, make_rule("gap"), make_rule("adaptive")])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_the_order_of_rows_does_not_matter(intercept, rule, fleet):
    data = contracts.rows(8, 200, **GRID)
    order = np.random.default_rng(0).permutation(200)
    other = MemoryDataset(
        data.X(0, 200)[order], data.y(0, 200)[order], [0, 1], data.weights(0, 200)[order], **GRID
    )
    worlds = [world(d, "rbf", 2.0, intercept, gamma=1.0) for d in (data, other)]
    one, two = (solved(w, fleet, rule=rule, tol=1e-6) for w in worlds)
    ends_right(worlds[0], one, 1e-6)
    np.testing.assert_allclose(two.point.alpha, one.point.alpha[order], rtol=0, atol=2e-4)


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_duplicated_rows_are_weights(intercept, fleet):
    data = contracts.rows(10, 100, weights=False)
    X, y, times = data.X(0, 100), data.y(0, 100), np.arange(100) % 3 + 1
    several = MemoryDataset(np.repeat(X, times, axis=0), np.repeat(y, times), [0, 1], **GRID)
    heavy = MemoryDataset(X, y, [0, 1], times.astype(float), **GRID)
    worlds = [world(d, "rbf", 2.0, intercept, gamma=1.0) for d in (several, heavy)]
    one, two = (solved(w, fleet, rule=make_rule("gap"), tol=1e-6) for w in worlds)
    assert one.certificate.dual == pytest.approx(two.certificate.dual, rel=1e-6)
    together = np.add.reduceat(one.point.alpha, np.cumsum(times) - times)
    np.testing.assert_allclose(together, two.point.alpha, rtol=0, atol=1e-3)


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_rows_without_weight_never_move(intercept, fleet):
    rng = np.random.default_rng(0)
    data = contracts.rows(7, 150, weights=False)
    weight = np.where(rng.random(150) < 0.3, 0.0, rng.uniform(0.5, 2, 150))
    weight[64:128] = 0  # a shard that has nothing to do
    heavy = np.flatnonzero(weight)
    X, y = data.X(0, 150), data.y(0, 150)
    whole = MemoryDataset(X, y, [0, 1], weight, **GRID)
    part = MemoryDataset(X[heavy], y[heavy], [0, 1], weight[heavy], **GRID)
    for rule in (None, make_rule("gap"), Joachims(1)):
        w = world(whole, "rbf", 2.0, intercept, gamma=1.0)
        found = solved(w, fleet, rule=rule, tol=1e-6)
        ends_right(w, found, 1e-6)
        assert not found.point.alpha[weight == 0].any()
        assert max(event["rows_alive"] for event in found.history) == len(heavy)
        other = world(part, "rbf", 2.0, intercept, gamma=1.0).optimum
        np.testing.assert_allclose(found.point.alpha[heavy], other.alpha, rtol=0, atol=2e-4)


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_given_kernels_are_kernels_like_others(intercept, fleet):
    data = contracts.rows(9, 130, **GRID)
    w = world(data, "rbf", 2.0, intercept, gamma=1.0)
    gram = MemoryDataset(w.gram, data.y(0, 130), [0, 1], data.weights(0, 130), **GRID)
    own = Custom(lambda A, B: np.exp(-((A[:, None] - B[None]) ** 2).sum(axis=2)))
    for design in (Design(gram, Precomputed()), Design(data, own)):
        found = solved(ExactWorld(design, w.problem), fleet, rule=make_rule("gap"), tol=1e-6)
        np.testing.assert_allclose(found.point.alpha, w.optimum.alpha, rtol=0, atol=2e-4)


# -- where it begins ---------------------------------------------------------------------------
@pytest.mark.parametrize("rule", ["none", "gap"])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_a_start_is_taken_over(intercept, rule, fleet):
    w = world(contracts.rows(4, 200, **GRID), "rbf", 3.0, intercept)
    whole = solved(w, fleet, tol=1e-6)
    passes = len(whole.history)
    assert passes > 5
    again = solved(w, fleet, rule=make_rule(rule), tol=1e-6, start=whole.point.alpha)
    ends_right(w, again, 1e-6)
    assert len(again.history) <= 2
    # From half of it, which is feasible too, and as far from optimal as 0 is.
    half = solved(w, fleet, rule=make_rule(rule), tol=1e-6, start=0.5 * whole.point.alpha)
    ends_right(w, half, 1e-6)
    assert half.history[0]["dual"] == pytest.approx(w.value(0.5 * whole.point.alpha), rel=1e-6)


def test_a_start_at_0_is_taken(fleet):
    """What a subsample's alpha may come to."""
    w = world(contracts.rows(4, 200, **GRID), "rbf", 3.0, "true")
    ends_right(w, solved(w, fleet, tol=1e-5, start=np.zeros(200)))


@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_alpha_read_off_a_subsample_is_a_feasible_start(intercept, sparse_rows, fleet):
    """Most rows at their bound: a first block says where the others are."""
    data = contracts.rows(2, 1500, 4, 2.0, sparse_rows, shard_rows=256, chunk_rows=64)
    w = world(data, "rbf", 0.1, intercept)
    dual = w.problem.dual(data.y(0, 1500), data.weights(0, 1500))
    found, cold = (
        solved(w, fleet, Block(), make_rule("gap"), 1e-4, certify="float32", start=start)
        for start in (None, np.zeros(1500))
    )
    for end in (found, cold):
        alpha = end.point.alpha
        assert end.certificate.relative_gap <= 1e-4
        assert np.all(alpha >= 0) and np.all(alpha <= dual.hi)
        if intercept == "true":
            assert abs(dual.sign @ alpha) <= 1e-11 * dual.hi.sum()
    assert cold.history[0]["dual"] == 0.0 != found.history[0]["dual"]
    assert len(found.history) < len(cold.history)
    one, other = found.certificate, cold.certificate
    assert abs(one.dual - other.dual) <= one.gap + other.gap + one.rounding_bound


def test_designs_with_columns_are_refused(fleet):
    data = contracts.rows(0, 30)
    for design in (Design(data), contracts.world(data, "rbf").design):
        with pytest.raises(InputError, match="newton or cd"):
            Block().solve(Run(design, CSvc(1.0, 1), fleet), None)


def test_a_block_in_which_no_pair_moves():
    with pytest.raises(InputError, match="at least 4"):
        Block(size=3)


# -- problems that lead nowhere ----------------------------------------------------------------
def odd(name):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)).astype(np.float32)
    y = (np.arange(60) % 2).astype(np.int32)
    weight = None
    if name == "all rows equal":
        X[:] = X[0]
    elif name == "all rows zero":
        X[:] = 0
    elif name == "contradictions":
        X[30:] = X[:30]
        y = (np.arange(60) < 30).astype(np.int32)
    elif name == "one class":
        y[:] = 1
    elif name == "two rows":
        X, y = X[:2], y[:2]
    elif name == "three rows":
        X, y = X[:3], y[:3]
    elif name == "two equal rows":
        X, y = np.ones((2, 3), np.float32), y[:2]
    elif name == "one row of a class":
        y = (np.arange(60) == 7).astype(np.int32)
    elif name == "no weight":
        weight = np.zeros(60)
    elif name == "a class without weight":
        weight = y.astype(float)
    elif name == "weights far apart":
        weight = 10.0 ** rng.uniform(-8, 8, 60)
    elif name == "huge features":
        X *= np.float32(1e6)
    elif name == "tiny features":
        X *= np.float32(1e-6)
    return MemoryDataset(X, y, [0, 1], weight, shard_rows=16, chunk_rows=16)


ODD = [
    "all rows equal", "all rows zero", "contradictions", "one class", "two rows", "three rows",
    "two equal rows", "one row of a class", "no weight", "a class without weight",
    "weights far apart", "huge features", "tiny features",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning:reference")
@pytest.mark.parametrize("rule", ["none", "gap", "joachims"])
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_no_penalty_is_too_large(kernel, intercept, rule, fleet):
    """Where float32 entries cannot prove the gap, it goes on with float64 ones."""
    data = contracts.rows(12, 100, noise=0.3, **GRID)
    for C in (1e3, 1e9):
        w = world(data, kernel, C, intercept, 0.3)
        found = solved(w, fleet, Block(size=32), make_rule(rule), 1e-4, max_iter=500)
        ends_right(w, found, 1e-4)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("name", ODD)
def test_odd_data_end_with_a_true_certificate(name, intercept, fleet):
    data = odd(name)
    for C in (1e-12, 1.0, 1e12):
        for kernel, gamma in (("rbf", 0.3), ("rbf", 1e-12), ("rbf", 1e6), ("linear", 1.0)):
            w = ExactWorld(Design(data, make_kernel(kernel, gamma)), CSvc(C, 1, (), intercept))
            found = solved(w, fleet, Block(size=8), make_rule("gap"), 1e-3, max_iter=60)
            certificate, alpha = found.certificate, found.point.alpha
            assert np.all(alpha >= 0) and np.all(alpha <= w.box)
            assert np.isfinite(certificate.primal) and np.isfinite(certificate.dual)
            size = abs(certificate.primal) + abs(certificate.dual)
            assert certificate.gap >= -certificate.rounding_bound - 1e-12 * size
            slow = kernel == "linear" and name in ("weights far apart", ODD[-2])
            if C <= 1.0 and not slow and not (name == "weights far apart" and C == 1.0):
                assert certificate.relative_gap <= 1e-3


@pytest.mark.timeout(60)
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize(
    ("kernel", "terms"),
    [("polynomial", {"coef0": -1.0}), ("sigmoid", {"coef0": -0.3}), ("sigmoid", {"coef0": 2.0})],
)
def test_kernels_that_are_not_psd_end_where_nothing_violates(kernel, terms, intercept, fleet):
    """There is no gap then: the KKT conditions come to hold."""
    for seed in range(3):
        data = contracts.rows(seed, 150, **GRID)
        w = world(data, kernel, 1.0, intercept, gamma=0.4, **terms)
        found = solved(w, fleet, Block(size=16), None, 1e-3, max_iter=500)
        alpha = found.point.alpha
        assert np.all(alpha >= 0) and np.all(alpha <= w.box)
        assert found.certificate.violation <= 1e-3 and np.isnan(found.certificate.relative_gap)
        assert len(found.history) < 500
