"""Kernel columns of the block solver: kept, thrown out, computed again, and the bits they have."""

import contracts
import numpy as np
import pytest
from block_world import GRID, KERNELS, quiet, solved, steady, world
from contracts import INTERCEPTS
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from threadpoolctl import threadpool_limits

from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.cache import KernelCache, Slots
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import make_kernel
from bigscreen.problems.recipes import CSvc
from bigscreen.screening.dynamic import make_rule
from bigscreen.solvers.block.messages import fetch_rows, gather_numbers, rows_per_shard
from bigscreen.solvers.block.shard import BlockProgram
from bigscreen.solvers.block.solver import Block


@pytest.fixture(scope="module", autouse=True)
def fleet():
    with Inline(1) as fleet, quiet():
        yield fleet


@pytest.mark.slow
@steady
@pytest.mark.parametrize("rule", ["none", "gap", "joachims"])
@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_a_cache_of_three_columns_is_as_good_as_one_of_all(intercept, sparse_rows, rule, fleet):
    data = contracts.rows(5, 300, 9, 1.0, sparse_rows, **GRID)
    w = world(data, "rbf", 3.0, intercept)
    ends = [
        solved(w, fleet, Block(size=16, cache=4 * 300 * columns), make_rule(rule), 1e-6)
        for columns in (0, 3, 40, 300)
    ]
    for end in ends[1:]:
        np.testing.assert_array_equal(end.point.alpha, ends[0].point.alpha)
        assert end.certificate == ends[0].certificate
    entries = [end.history[-1]["kernel_entries"] for end in ends]
    assert entries[0] >= entries[1] > entries[2] > entries[3]


def test_nothing_is_computed_twice_while_there_is_room(fleet):
    w = world(contracts.rows(5, 200, **GRID), "rbf", 10.0, "true")
    entries = []

    def report(event):
        entries.append(sum(state.columns.entries for state in fleet._shards.states.values()))

    found = solved(w, fleet, Block(size=16), report=report)
    moved = np.count_nonzero(found.point.alpha) * 200
    assert len(found.history) >= 5 and moved <= entries[-1] <= 200 * 200


@steady
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [2, 9, 33, 300])
def test_the_bits_of_a_column_do_not_depend_on_the_other_rows(d, dtype, sparse_rows, kernel):
    """Alone, among others, from a store, and after most of the rows have gone."""
    rng = np.random.default_rng(d)
    X = (rng.normal(size=(700, d)) + 2).astype(np.float32)
    if sparse_rows:
        X[rng.random(X.shape) < 0.8] = 0
        X = sparse.csr_array(X)
    made = make_kernel(kernel, 1 / d, coef0=1.0)
    rows, ids = Operand(X, np.arange(700)), np.arange(700)
    asked = rng.permutation(700)[:530]
    with threadpool_limits(1, "blas"):
        for width in (700, 130, 5):
            side = Operand(X[:width], ids[:width])
            whole = KernelCache(made, side, 0, dtype)
            want = np.concatenate(
                [whole._compute(rows, asked[a : a + 512])[: len(asked[a : a + 512])].copy()
                 for a in (0, 512)]
            )  # fmt: skip
            assert want.shape[1] >= width
            keep = np.sort(rng.permutation(width)[: max(1, width // 30)])
            few = KernelCache(made, side, 20, dtype)
            few.compact(Operand(X[keep], keep), keep)
            for a, b in ((0, 1), (3, 5), (100, 163), (20, 85), (17, 500)):
                part = asked[a:b]
                got = whole._compute(rows, part)
                np.testing.assert_array_equal(got[: b - a, :width], want[a:b, :width])
                got = few._compute(rows, part)
                np.testing.assert_array_equal(got[: b - a, : len(keep)], want[a:b][:, keep])
    exact = made.block(X[asked], Operand(X[:5]), dtype=np.float64)
    np.testing.assert_allclose(want[:, :5], exact, rtol=0, atol=1e-4 * np.abs(exact).max())


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    capacity=st.sampled_from([0, 3, 7, 30, 200]),
    csr=st.booleans(),
    forget=st.booleans(),
)
def test_sums_of_columns_whatever_is_kept(seed, capacity, csr, forget):
    """Evictions, rows that leave, a shard that has forgotten all while the others have not."""
    rng = np.random.default_rng(seed)
    n = 90
    X = rng.normal(size=(n, 3)).astype(np.float32)
    K = make_kernel("rbf", 0.3).block(X, Operand(X), dtype=np.float64)
    X = sparse.csr_array(X) if csr else X
    alive, slots = np.arange(n), Slots(capacity, n)

    def fresh():
        side = Operand(X[alive], alive)
        return KernelCache(make_kernel("rbf", 0.3), side, slots.capacity, np.float32)

    columns, scores, want = fresh(), np.zeros(n), np.zeros(n)
    for _ in range(12):
        ids = rng.permutation(n)[: rng.integers(1, 40)]
        coef = rng.normal(size=len(ids))
        places = slots.assign(ids)
        columns.accumulate(Operand(X[ids], ids), places, coef, scores)
        want += K[alive][:, ids] @ coef
        np.testing.assert_allclose(scores, want, rtol=0, atol=1e-4)
        if rng.random() < 0.3 and len(alive) > 10:
            keep = np.flatnonzero(rng.random(len(alive)) < 0.7)
            alive, scores, want = alive[keep], scores[keep], want[keep]
            columns.compact(Operand(X[alive], alive), keep)
        if forget and rng.random() < 0.3:
            columns = fresh()


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), capacity=st.integers(0, 30))
def test_slots_hold_the_rows_used_last(seed, capacity):
    rng = np.random.default_rng(seed)
    slots, last, clock = Slots(capacity, 40), {}, 0
    for _ in range(30):
        ids = rng.permutation(40)[: rng.integers(0, 15)]
        before = {int(s): int(i) for i, s in enumerate(slots.slot) if s >= 0}
        given_slots = slots.assign(ids)
        if len(ids) > slots.capacity:
            assert np.all(given_slots == -1)
            assert before == {int(s): int(i) for i, s in enumerate(slots.slot) if s >= 0}
            continue
        clock += 1
        last.update(dict.fromkeys(ids.tolist(), clock))
        held = np.flatnonzero(slots.slot >= 0)
        assert len(set(given_slots.tolist())) == len(ids)
        np.testing.assert_array_equal(slots.slot[ids], given_slots)
        np.testing.assert_array_equal(slots.owner[slots.slot[held]], held)
        assert len(held) == min(slots.capacity, len(last))
        gone = [last[i] for i in last if slots.slot[i] < 0]
        assert not gone or max(gone) <= min(last[i] for i in held.tolist())


# -- rows and numbers on their way -------------------------------------------------------------
@pytest.mark.parametrize("sparse_rows", [False, True])
def test_rows_arrive_in_the_requested_order(sparse_rows, fleet):
    data = contracts.rows(3, 300, sparse_rows=sparse_rows, **GRID)
    design = Design(data, make_kernel("rbf", 0.1))
    fleet.start(BlockProgram(design, CSvc(1.0, 1), 5, 10), data.n_shards)
    rng = np.random.default_rng(0)
    for ids in (rng.permutation(300)[:70], np.array([299]), np.array([70, 65]), np.arange(0)):
        found = fetch_rows(fleet, data, ids)
        want = data.rows(ids)
        if sparse_rows:
            found, want = found.toarray(), want.toarray()
        np.testing.assert_array_equal(found, want)
        assert found.dtype == np.float32
        numbers = rng.normal(size=300)
        width = max(1, int(rows_per_shard(data, ids).max()))
        stack = np.full((data.n_shards, width), np.nan)
        for s in range(data.n_shards):
            own = ids[ids // 64 == s]
            stack[s, : len(own)] = numbers[own]
        np.testing.assert_array_equal(gather_numbers(stack, data, ids), numbers[ids])
