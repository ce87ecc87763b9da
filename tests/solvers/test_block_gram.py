"""The matrix of a block whose rows come and go, and the choice of a block that holds all."""

import contracts
import numpy as np
import pytest
from block_world import (
    GRID,
    AnyWorld,
    ends_right,
    problem_rows,
    quiet,
    recipe,
    same_end,
    solved,
    world,
)
from contracts import INTERCEPTS
from scipy import sparse

from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import make_kernel
from bigscreen.screening.dynamic import make_rule
from bigscreen.solvers.block.gram import BlockGram
from bigscreen.solvers.block.solver import Block
from bigscreen.solvers.block.tuning import BlockTuning


@pytest.fixture(scope="module", autouse=True)
def fleet():
    with Inline(1) as fleet, quiet():
        yield fleet


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_entries_of_a_block_that_grows_and_shrinks(constant, csr, threads):
    rng = np.random.default_rng(threads)
    kernel, X = make_kernel("rbf", 0.3), rng.normal(size=(200, 3)).astype(np.float32)
    K = kernel.block(X, Operand(X), dtype=np.float64) + constant
    X = sparse.csr_array(X) if csr else X
    gram = BlockGram(Design(None, kernel), constant, threads, np.float32, strip=8)
    entries, largest = 0, 0
    for size in (20, 40, 40, 25, 60, 60, 7, 0, 30):
        stay = np.sort(rng.permutation(len(gram.ids))[: min(size, rng.integers(0, 40))])
        held = gram.ids[stay]
        others = np.setdiff1d(np.arange(200), held)
        new = rng.permutation(others)[: size - len(stay)]
        places = gram.enter(stay, new, X[new], most=size)
        np.testing.assert_array_equal(gram.ids[places], np.concatenate([held, new]))
        assert sorted(places) == list(range(size))
        rows = gram.X.toarray() if csr else gram.X
        np.testing.assert_array_equal(rows, (X.toarray() if csr else X)[gram.ids])
        np.testing.assert_allclose(gram.K, K[np.ix_(gram.ids, gram.ids)], rtol=0, atol=2e-6)
        # A row that stays keeps its place, if there is room and the place is still one.
        if size <= largest:
            near = stay < size
            np.testing.assert_array_equal(places[: len(stay)][near], stay[near])
        entries, largest = entries + size * len(new), max(size, largest)
        assert gram.entries == entries and gram.rows.flags.c_contiguous


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["none", "gap"])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_one_block_of_all_rows_that_matter_takes_half_the_rounds_or_fewer(intercept, rule, fleet):
    """Nearly all rows are free: blocks of 16 would take turns."""
    w = world(contracts.rows(3, 200, **GRID), "rbf", 100.0, intercept, gamma=1.0)
    ends = {}
    for whole in (0, 190):
        solver = Block(16, tuning=BlockTuning(max_growing_block=16, max_whole_block=whole))
        ends[whole] = solved(w, fleet, solver, make_rule(rule), 1e-5)
        ends_right(w, ends[whole], 1e-5)
    assert len(ends[190].history) < 0.5 * len(ends[0].history)
    with Inline(3) as other:
        same_end(solved(w, other, solver, make_rule(rule), 1e-5), ends[190])


def test_a_few_rows_far_out_do_not_leave_a_round_without_steps(fleet):
    """How deep a block is solved goes by the row furthest out: here each time another one."""
    base = problem_rows("lad", weights=False)
    y = base.y(0, 120).copy()
    y[::20] = 10.0 ** np.arange(2, 8)
    data = MemoryDataset(base.X(0, 120), y, None, None, **GRID)
    w = AnyWorld(Design(data, make_kernel("rbf", 0.3)), recipe("lad", data))
    rounds = {}
    for least in (0.0, 0.5):
        solver = Block(size=32, tuning=BlockTuning(min_block_steps_per_row=least))
        found = solved(w, fleet, solver, None, 1e-7)
        ends_right(w, found, 1e-7)
        rounds[least] = len(found.history)
    assert rounds[0.5] < rounds[0.0]
