"""Close gaps of the block solver: float64 scores of rows near their kink, float32 columns."""

import contracts
import numpy as np
import pytest
from block_world import GRID, any_world, quiet, solved, world
from contracts import INTERCEPTS

from bigscreen.fleet.inline import Inline
from bigscreen.solvers.block.coordinator import BlockRun
from bigscreen.solvers.block.solver import Block
from bigscreen.solvers.block.tuning import BlockTuning

TOL = 1e-9


@pytest.fixture(scope="module", autouse=True)
def fleet():
    with Inline(1) as fleet, quiet():
        yield fleet


@pytest.fixture
def mended(monkeypatch):
    """How often scores are mended; beginning again with float64 columns fails the test."""
    times = []

    mend = BlockRun.mend

    def counted(run):
        times.append(run.mending.drift)
        mend(run)

    def refined(run):
        raise AssertionError("all columns were computed again")

    monkeypatch.setattr(BlockRun, "mend", counted)
    monkeypatch.setattr(BlockRun, "refine", refined)
    return times


@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_gaps_that_float32_columns_cannot_show(intercept, sparse_rows, fleet, mended):
    data = contracts.rows(3, 300, 4, 0.5, sparse_rows, **GRID)
    w = world(data, "rbf", 30.0, intercept, gamma=0.5)
    found = solved(w, fleet, Block(size=512), tol=TOL)
    assert found.certificate.relative_gap <= TOL
    assert 1 <= len(mended) <= BlockTuning().max_mends
    # What is left to be mended is ever less.
    assert np.all(np.diff(mended) < 0)


@pytest.mark.parametrize("name", ["svr-true", "one-class", "nu"])
@pytest.mark.usefixtures("mended")
def test_other_problems(name, fleet):
    w = any_world(name, n=200, **GRID)
    found = solved(w, fleet, Block(size=256), tol=1e-10)
    assert found.certificate.relative_gap <= 1e-10
