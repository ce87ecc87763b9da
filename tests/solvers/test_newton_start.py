"""Newton runs that begin at a given point."""

import numpy as np
import pytest

from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.problems.recipes import CSvc, SquaredSvc
from bigscreen.solvers.newton.coordinator import NewtonRun
from bigscreen.solvers.newton.shard import NewtonProgram
from bigscreen.solvers.newton.solver import Newton


@pytest.mark.parametrize(("recipe", "smoothed"), [(CSvc, True), (SquaredSvc, False)])
def test_a_start_smooths_the_hinge_alone(recipe, smoothed):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)).astype(np.float32)
    data = MemoryDataset(X, (X[:, 0] > 0).astype(int), [0, 1])
    design, problem = Design(data), recipe(1.0, positive=1)
    with Inline(1) as fleet:
        run = NewtonRun(Newton(), design, problem, fleet)
        iterate = run.start_at_alpha(np.full(200, 0.01))
        assert run.open(NewtonProgram(design, problem, weight_bound=200.0))
        run.enter(iterate)
    # (Rows of a squared loss have no upper bound, and a band around them no finite weight.)
    assert (iterate.h > 0) == smoothed
