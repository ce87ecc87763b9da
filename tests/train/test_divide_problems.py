"""Divide and conquer for every problem: feasible starts whose solves end at the same optimum."""

from __future__ import annotations

import numpy as np
import pytest
from problem_cases import NAMES, case

from bigscreen.features.design import Design
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Rbf
from bigscreen.solvers.coordinate import CoordinateDescent
from bigscreen.solvers.protocol import Run
from bigscreen.solvers.smo.solver import Pairs
from bigscreen.train.divide import Division, PartProblem, divide

KERNEL = Rbf(0.3)


@pytest.fixture(scope="module")
def fleet():
    with Inline(2) as threads:
        yield threads


def kernel_matrix(one):
    side = Operand(one.data.X(0, one.data.n_rows))
    K = KERNEL.block(side, side, dtype=np.float64)
    return K + (one.problem.intercept == "constant")


def is_feasible(one, alpha):
    a = one.split(alpha)
    assert np.all(a >= one.lo - 1e-15) and np.all(a <= one.hi + 1e-15)
    np.testing.assert_allclose(one.A @ a, one.b, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("parts", [2, 7])
def test_starts_are_feasible_and_better_than_0(name, parts, fleet):
    one = case(name, 1, n=90)
    K, design = kernel_matrix(one), Design(one.data, KERNEL)
    values = []
    for how in ({"early": True}, {"refine": 0}, {}):
        division = Division(parts=parts, tol=1e-4, **how)
        found = divide(design, one.problem, fleet, Pairs(), Inline, division)
        is_feasible(one, found.alpha)
        values.append(one.dual(K, one.split(found.alpha)))
    scale = found.record["scale"]
    assert scale["dual"] == pytest.approx(values[1], abs=1e-5 * abs(values[1]))
    if name.startswith(("nu", "one")):
        assert scale["factor"] == 1.0  # any other would break the coupling
    # Entries are float32, and so are the values that the parts see.
    room = 1e-5 * max(map(abs, values))
    assert values[0] <= values[1] + room <= values[2] + 2 * room
    limits = Limits(1e-6, 2000)
    cold = fit(Run(design, one.problem, fleet), Pairs(), limits, certify="float64").certificate
    warm = fit(
        Run(design, one.problem, fleet, start=found.alpha), Pairs(), limits, certify="float64"
    ).certificate
    assert cold.relative_gap <= 1e-6 and warm.relative_gap <= 1e-6
    assert warm.dual == pytest.approx(cold.dual, rel=2e-6)
    assert values[2] <= cold.primal * (1 + 1e-9 * np.sign(cold.primal))


@pytest.mark.parametrize("name", [n for n in NAMES if not len(case(n, 0).b)])
def test_parts_can_be_solved_by_coordinate_descent(name, fleet):
    """Rows as they are, variables that move alone."""
    one = case(name, 3, n=120)
    solver, design = CoordinateDescent(), Design(one.data)
    division = Division(parts=4, tol=1e-3)
    start = divide(design, one.problem, fleet, solver, Inline, division).alpha
    is_feasible(one, start)
    ends = [
        fit(Run(design, one.problem, fleet, start=begin), solver, Limits(1e-6, 20_000)).certificate
        for begin in (None, start)
    ]
    assert all(end.relative_gap <= 1e-6 for end in ends)
    assert ends[0].dual == pytest.approx(ends[1].dual, rel=2e-6)


@pytest.mark.parametrize("name", ["nu-svc true", "nu-svc none", "one-class", "lad true"])
def test_parts_share_the_total_in_proportion_to_their_boxes(name):
    one = case(name, 5)
    whole = one.problem.dual(one.data.y(0, 60), one.data.weights(0, 60))
    part = PartProblem(one.problem, np.array([0.25, 0.5])[: max(1, len(one.b))])
    dual = part.dual(one.data.y(0, 20), one.data.weights(0, 20))
    np.testing.assert_allclose(np.atleast_1d(dual.total), one.b * part.share)
    np.testing.assert_array_equal(dual.hi, whole.hi[:20])
    assert part.offset(whole.total) == one.problem.offset(whole.total)
