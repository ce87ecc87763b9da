"""The second moment of the zone: what it is, in which precision, and how passes share it."""

import numpy as np
import pytest
from newton_world import feature_world

from bigscreen import exact, nystrom
from bigscreen.design import Design
from bigscreen.kernels import make_kernel
from bigscreen.solvers import newton_moment
from bigscreen.solvers.newton_algebra import Algebra
from bigscreen.solvers.newton_local import Local
from bigscreen.solvers.newton_moment import averaged, rough_moment, second_moment
from bigscreen.solvers.newton_near import Rows
from bigscreen.solvers.newton_shard import NewtonProgram
from bigscreen.store import MemoryDataset


def design_of(n, m, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 6)).astype(np.float32)
    data = MemoryDataset(X, np.where(rng.random(n) < 0.5, -1, 1), (-1, 1))
    kernel = make_kernel("rbf", 0.5)
    side, _ = nystrom.landmarks(data, kernel, m, "uniform", seed)
    return Design(data, kernel, side, nystrom.factor(kernel, side))


@pytest.mark.parametrize(("m", "curvature"), [(40, 1.0), (400, 1.0), (400, 1e9)])
def test_moment_is_the_sum_over_features(m, curvature):
    """float32 where there are many features, float64 where rounding could outweigh the penalty."""
    design, rng = design_of(600, m), np.random.default_rng(1)
    columns = design.columns(design.data.X(0, 50))
    border, weight = rng.standard_normal((50, 2)), np.sqrt(curvature * rng.random(50))
    found = second_moment(design, columns, border, weight)
    rows = np.hstack([design.features_of(columns).astype(np.float64), border]) * weight[:, None]
    precise = len(found) < newton_moment.NARROW or curvature > 1
    assert found.dtype == (np.float64 if precise else np.float32)
    diagonal = np.sqrt(np.diag(rows.T @ rows))
    error = np.abs(found - rows.T @ rows) / np.outer(diagonal, diagonal)
    assert error.max() <= (1e-13 if precise else 1e-5)


def test_features_of_columns_in_either_precision():
    design = design_of(300, 60)
    X = design.data.X(0, 300)
    fine = design.features_of(design.columns(X, np.float64))
    coarse, out = design.features_of(design.columns(X)), np.empty((300, design.rank), np.float32)
    assert (fine.dtype, coarse.dtype) == (np.float64, np.float32)
    np.testing.assert_allclose(coarse, fine, atol=1e-3)
    assert design.features_of(design.columns(X), out) is out
    np.testing.assert_array_equal(out, coarse)


def moments(program, x, h, wide, strides, extras):
    """The moments that a shard sums at x, for every (stride, turn)."""
    state, found = program.open(0), []
    message = {
        "kind": "trial", "h": h, "steps": np.zeros(1), "coefs": np.stack([x, x], axis=1),
        "extras": np.zeros((extras, 2)), "slack": 0.0, "travel": np.zeros(1),
        "shift": np.zeros(1),
    }  # fmt: skip
    program.step(state, message, {})
    first = {"kind": "accept", "h": h, "wide": h, "stride": 1, "turn": 0, "t": 0.0, "ref": 0}
    program.step(state, first, {})
    for stride, turn in strides:
        totals: exact.Totals = {}
        message = {"kind": "gradient", "h": h, "wide": wide, "stride": stride, "turn": turn}
        program.step(state, message, totals)
        found.append(exact.read(totals, "moment", program.moment_bound(message)))
    return state, found


@pytest.mark.parametrize("name", ["c-svc", "svr"])
def test_parts_of_the_zone_average_to_the_whole(name):
    world = feature_world(name)
    weight = float(np.sum(world.oracle.hi - world.oracle.lo))
    program = NewtonProgram(world.design, world.problem, weight_bound=weight)
    x = 0.1 * np.random.default_rng(0).standard_normal(world.design.width)
    strides = [(1, 0), (3, 0), (3, 1), (3, 2)]
    _, (whole, *parts) = moments(program, x, 2.0, 2.0, strides, program.frame.extras)
    assert np.trace(whole) > 0
    np.testing.assert_allclose(np.mean(parts, axis=0), whole, rtol=0, atol=1e-9 * whole.max())
    known = None
    for part in parts:
        known = averaged(known, part, 2.0, 3)
    np.testing.assert_allclose(known.moment, whole, rtol=0, atol=1e-9 * whole.max())


def test_the_mean_is_of_one_h_and_forgets():
    one, two = np.eye(2), 3 * np.eye(2)
    known = averaged(averaged(None, one, 1.0, 2), two, 1.0, 2)
    np.testing.assert_array_equal(known.moment, 2 * np.eye(2))
    np.testing.assert_array_equal(averaged(known, two, 1.0, 2).moment, 2.5 * np.eye(2))
    np.testing.assert_array_equal(averaged(known, two, 0.5, 2).moment, two)


def test_rough_moment_keeps_eight_bits():
    rows = np.random.default_rng(2).standard_normal((500, 70)).astype(np.float32)
    fine = rows.T.astype(np.float64) @ rows
    assert np.abs(rough_moment(rows) - fine).max() <= 500 * 2.0**-8
    whole = np.rint(8 * rows)  # of few bits: exact
    np.testing.assert_array_equal(rough_moment(whole), whole.T @ whole)


def test_a_local_hessian_that_went_bad_is_made_anew():
    """Rounding can leave too much behind where rows came and went: then a step is still found."""
    world = feature_world("c-svc")
    algebra = Algebra(world.design, NewtonProgram(world.design, world.problem).frame)
    rng, size = np.random.default_rng(3), algebra.size
    local = Local(algebra, np.zeros(size), rng.standard_normal(size), 1.0)
    zero, one = np.zeros(40), np.ones(40)
    feature = rng.standard_normal((40, size)).astype(np.float32)
    local.add(Rows(feature, rng.uniform(-0.5, 0.5, 40), zero, one, zero))
    zone, curve, gradient = np.arange(40), 0.5 * one, rng.standard_normal(size)
    expected = local._direction(zone, curve, gradient)
    local._moment -= 100 * np.eye(size, dtype=np.float32)
    local._curved[:] = curve / local._scale
    np.testing.assert_array_equal(local._direction(zone, curve, gradient), expected)
