"""The solver file for benchopt reaches its gap, and its curve stands next to the peers'."""

import numpy as np
import pytest
from scripts import script

from pipelines.bench import curves
from pipelines.bench.benchopt_solver import Solver


@pytest.mark.parametrize("density", [1.0, 0.2])
def test_the_last_point_is_proved_and_no_peer_is_below_it(density: float) -> None:
    X, y = curves.made(300, 20, density)
    found = curves.curves(X, y, 0.1, 10_000)
    assert {"bigscreen", "LIBLINEAR"} <= set(found)
    assert len(found["bigscreen"]) == len(curves.TOLERANCES)
    assert found["bigscreen"][-1][1] <= 1.01e-9
    assert all(far >= -1e-12 for line in found.values() for _, far in line)
    assert found["LIBLINEAR"][-1][1] < 1e-4 < found["LIBLINEAR"][0][1]


def test_the_result_is_named_as_the_objective_takes_it() -> None:
    X, y = curves.made(200, 4, 1.0)
    solver = Solver()
    solver.set_objective(X=X, y=y, C=0.01)
    solver.run(1.0)
    assert {name: np.shape(value) for name, value in solver.get_result().items()} == {"beta": (4,)}


@pytest.mark.slow
def test_a_quick_run_prints_every_table() -> None:
    done = script("bench.curves", "--quick")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("bigscreen") == 4 and "sparse, 1,000 x 250, C = 1" in done.stdout
