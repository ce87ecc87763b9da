"""Small gaps of the block solver: float64 scores near the hinge point, but float32 columns."""

import contracts
import numpy as np
import pytest
from block_world import GRID, any_world, quiet, solved, watched, world
from contracts import INTERCEPTS

from bigscreen.fleet.inline import Inline
from bigscreen.solvers.block.coordinator import BlockRun
from bigscreen.solvers.block.tuning import BlockTuning

TOL = 1e-9


@pytest.fixture(scope="module", autouse=True)
def fleet():
    with Inline(1) as fleet, quiet():
        yield fleet


class Mends(BlockRun):
    """Notes the drift at each repair of scores; fails if all columns are recomputed."""

    drifts: list[float] = []

    def mend(self):
        self.drifts.append(self.mending.drift)
        super().mend()

    def refine(self):
        raise AssertionError("all columns were computed again")


@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_gaps_that_float32_columns_cannot_show(intercept, sparse_rows, fleet):
    Mends.drifts.clear()
    data = contracts.rows(3, 300, 4, 0.5, sparse_rows, **GRID)
    w = world(data, "rbf", 30.0, intercept, gamma=0.5)
    found = solved(w, fleet, watched(Mends, size=512), tol=TOL)
    assert found.certificate.relative_gap <= TOL
    assert 1 <= len(Mends.drifts) <= BlockTuning().max_mends
    assert np.all(np.diff(Mends.drifts) < 0)


@pytest.mark.parametrize("name", ["svr-true", "one-class", "nu"])
def test_repairs_reach_the_gap_of_other_problems(name, fleet):
    w = any_world(name, n=200, **GRID)
    found = solved(w, fleet, watched(Mends, size=256), tol=1e-10)
    assert found.certificate.relative_gap <= 1e-10
