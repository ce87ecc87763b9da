"""The textbook Newton over shards, and of many problems at once."""

from dataclasses import replace

import numpy as np
import pytest
from problem_cases import case
from test_dense import PLACES, ROOM, SHARDED, assert_same_machine, fleet, solved, world_of

from bigscreen import TrainOptions
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.views import Recast
from bigscreen.device.newton import DENSE, DenseNewton, shard_ranges
from bigscreen.device.place import CPU
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.path.options import PathOptions
from bigscreen.path.run import train_path
from bigscreen.problems.recipes import with_mass_of
from bigscreen.solvers.newton.many import PresolvedPoint
from bigscreen.solvers.protocol import Case, Run
from bigscreen.train.many import Outcomes
from bigscreen.train.run import train_many

__all__ = ["fleet"]  # a fixture of the other file


def cases_of(data, problem):
    """Three problems of one kind on the same rows: other weights, and other C or nu."""
    rng = np.random.default_rng(5)
    draws = [None, *rng.poisson(1.0, (2, data.n_rows)).astype(float)]
    values = (0.3, 2.0, 20.0) if hasattr(problem, "C") else (0.3, 0.4, 0.5)
    rows, y = [Recast(data, None, draw) for draw in draws], data.y(0, data.n_rows)
    return [
        Case(with_mass_of(problem.at(value), y, own.weights(0, own.n_rows)), own)
        for value, own in zip(values, rows, strict=True)
    ]


MANY = ["c-svc constant numpy", "svr true strict", "nu-svc none torch", "squared-svc true numpy"]


@pytest.mark.parametrize("name", MANY)
def test_many_problems_are_solved_as_each_alone(name, fleet):
    kind, offset, place = name.split()
    like = "c-svc" if kind == "c-svc" else f"{kind} {offset}"
    world, problem = world_of(like, "rbf", 1, 90)
    problem = replace(problem, intercept=offset)
    cases = cases_of(world.design.data, problem)
    for tuning in (DENSE, SHARDED):
        solver = DenseNewton(1e-3, PLACES.get(place, CPU), tuning)
        run = Run(world.design, problem, fleet, spare=ROOM)
        points = solver.solve_many(run, cases, None)
        for own, point in zip(cases, points, strict=True):
            design = replace(world.design, data=own.rows)
            alone = solved(design, own.problem, fleet, DenseNewton(1e-3))
            given = Run(design, own.problem, fleet, spare=ROOM)
            found = fit(given, PresolvedPoint(point, solver), Limits(1e-3, 100))
            assert len(found.history) == 1
            assert_same_machine(found, alone, 1e-3)


def test_shards_are_joined_by_the_data_alone():
    data = case("c-svc", n=1000).data
    assert shard_ranges(data, 10, DENSE) == ((0, 1000),)
    ranges = shard_ranges(data, 10, SHARDED)
    assert [a for a, _ in ranges] == [0, *(b for _, b in ranges)][:-1] and ranges[-1][1] == 1000
    assert len(ranges) == 3 and all(a % 32 == 0 for a, _ in ranges)


def test_fits_and_paths_solve_all_machines_together():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] ** 2 + 0.5 * rng.normal(size=300) > 1).astype(np.int32)
    data, draws = MemoryDataset(X, y, [0, 1]), rng.poisson(1.0, (2, 300)).astype(float)
    dense = TrainOptions(gamma=0.5, landmarks=30, C=2.0, solver="dense")
    with Inline(1) as fleet:
        for model in train_many(data, dense, fleet, [Outcomes(None, draw) for draw in draws]):
            assert model.provenance["certificates"][0]["relative_gap"] <= 1e-3
            # (The closing pass alone: the machines were solved together.)
            assert model.provenance["solver"] == "dense" and len(model.provenance["history"]) == 1
        paths = [
            train_path(data, PathOptions(replace(dense, solver=solver), [0.1, 1.0], 3), fleet)
            for solver in ("dense", "auto")
        ]
    assert paths[0].record["provenance"]["solver"] == "dense"
    for one, other in zip(*(path.points for path in paths), strict=True):
        assert one["relative_gap"] <= 1e-3
        assert abs(one["primal"] - other["primal"]) <= one["gap"] + other["gap"]
