"""Snacks and Pegasos: near the optimum, true in what they certify, the same wherever they run."""

from dataclasses import replace

import pytest
from newton_world import feature_world
from problem_cases import NAMES

from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.solvers.protocol import Run
from bigscreen.solvers.snacks.solver import Pegasos, Snacks

SOLVED = [name for name in NAMES if not name.startswith(("nu", "one"))]


@pytest.fixture(scope="module")
def fleet():
    with Inline(1) as fleet:
        yield fleet


def solved(world, fleet, solver, stages, **run):
    limits = Limits(1e-9, stages)
    return fit(Run(world.design, world.problem, fleet, **run), solver, limits)


def near(world, fitted, part):
    """P within a part of the optimum, and a certificate that the textbook's P and optimum bear."""
    point, found, best = fitted.point, fitted.certificate, world.optimum
    room = world.room(point) + 1e-8 * (abs(found.primal) + abs(found.dual))
    moved = replace(point, multiplier=found.multiplier)
    assert found.primal == pytest.approx(world.primal(moved), abs=room)
    assert best.primal - room <= found.primal <= best.primal * (1 + part) + room
    assert found.dual <= best.primal + room
    a = world.mixed(point)
    world.is_feasible(a)
    assert found.dual == pytest.approx(world.dual(a), abs=room)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("name", SOLVED)
def test_every_problem_with_a_lipschitz_loss(name, kernel, fleet):
    world = feature_world(name, kernel)
    near(world, solved(world, fleet, Snacks(tol=1e-9, batch=4), 7), 0.05)


@pytest.mark.parametrize("name", [name for name in SOLVED if not name.endswith("true")])
def test_pegasos(name, fleet):
    world = feature_world(name, "rbf")
    near(world, solved(world, fleet, Pegasos(tol=1e-9, batch=4), 8), 0.05)
