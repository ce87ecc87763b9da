"""Products with the band's second moment: kept columns, in 16 bits where that is as good."""

from dataclasses import replace

import contracts
import numpy as np
import pytest
from newton_world import tuned

from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.solvers.newton.products import INT16_MAX, int16_unit
from bigscreen.solvers.newton.shard import NewtonProgram
from bigscreen.solvers.newton.state import UNSET
from bigscreen.solvers.protocol import Run

INTERCEPTS = contracts.INTERCEPTS


def scored(program, shard=0):
    """The state of a shard after a pass at w = 0, with every row in a band as wide as gradients."""
    state, design = program.open(shard), program.design
    extras = program.frame.extras
    still = {
        "kind": "trial",
        "h": 2.0,
        "steps": np.zeros(1),
        "coefs": np.zeros((design.width, 2)),
        "extras": np.zeros((extras, 2)),
        "slack": 0.0,
        "w_moves": np.zeros(1),
        "score_moves": np.zeros(1),
    }
    program.step(state, still, {})
    accept = {"kind": "accept", "t": 0.0, "ref": 0, "h": 2.0, "wide": 2.0, "stride": 0, "turn": 0}
    program.step(state, accept, {})
    assert not np.any(state.side == UNSET)
    return state


class SmallTiles(NewtonProgram):
    """A program that computes the columns of 16 rows at once."""

    @property
    def tile(self):
        return 16


def product(program, state, coef, extras, **how):
    """A product with one in three rows of the band."""
    message = {"kind": "product", "h": 2.0, "stride": 3, "unit": 0.0, "first": True, **how}
    return program.step(state, {**message, "coef": coef, "extras": extras}, {})


@pytest.mark.parametrize("stride", [3, 2.4, 1.0])
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_a_product_is_the_moment_times_a_vector(kernel, sparse_rows, intercept, stride):
    data = contracts.rows(3, n=300, sparse_rows=sparse_rows)
    world = contracts.world(data, kernel, 0.7, intercept)
    design, rng = world.design, np.random.default_rng(0)
    bound = float(world.box.sum())
    program = NewtonProgram(design, world.problem, weight_bound=bound, room=1 << 20)
    state = scored(program)
    places = [int(stride * k) for k in range(300) if stride * k < len(state.ids)]
    rows = state.ids[places]
    columns = design.columns(data.X(0, 300), np.float64)[rows]
    border = program.frame.border(state.dual)[places]
    table = np.hstack([columns, border])
    bend = stride * world.box[rows] / (2 * 2.0)
    how = {"stride": stride}
    unit = design.column_bound / INT16_MAX
    for _ in range(3):
        coef, extras = rng.normal(size=design.width), rng.normal(size=program.frame.extras)
        right = table.T @ (bend * (table @ np.append(coef, extras)))
        size = np.abs(table).T @ (bend * (np.abs(table) @ np.abs(np.append(coef, extras))))
        found = product(program, state, coef, extras, **how)
        assert np.all(np.abs(found - right) <= 2e-6 * size)
        if design.kernel is not None:
            # Entries are half a unit off at most, twice.
            found = product(program, state, coef, extras, unit=unit, **how)
            most = np.abs(table) + unit
            size = most.T @ (bend * (np.abs(table) @ np.abs(np.append(coef, extras))))
            each = bend * (np.abs(table) @ np.abs(np.append(coef, extras)))
            moved = 0.5 * unit * (np.sum(np.abs(coef)) * (most.T @ bend) + each.sum())
            assert np.all(np.abs(found - right) <= moved + 2e-6 * size)
            assert np.any(found != product(program, state, coef, extras, **how))


def test_every_stride_stays_within_the_band():
    """Of a single shard, k times band / rows can be rounded up to the row after the last."""
    world = contracts.world(contracts.rows(5, n=170, shard_rows=256), "rbf", 0.7)
    program = NewtonProgram(world.design, world.problem, weight_bound=float(world.box.sum()))
    state, coef = scored(program), np.ones(world.design.width)
    n = len(state.ids)
    for rows in range(1, n + 1):
        stride = n / rows
        product(program, state, coef, np.empty(0), stride=stride)
        np.testing.assert_array_equal(np.unique(state.curved.local), state.curved.local)
        assert rows <= len(state.curved.local) <= rows + 1
        assert state.curved.local[0] == 0 and n - state.curved.local[-1] <= 2 * stride


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("resident", [0.0, 1.0])
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_kept_columns_change_no_bit(kernel, resident, unit):
    """Nor does a state that has been made again between two products of a step."""
    world = contracts.world(contracts.rows(5, n=400), kernel, 0.7, "true")
    design, rng = world.design, np.random.default_rng(1)
    how = {"unit": design.column_bound / INT16_MAX if unit and design.kernel is not None else 0.0}
    size = 2 if how["unit"] else 4
    vectors = [(rng.normal(size=design.width), rng.normal(size=1)) for _ in range(3)]
    found = []
    # Room for none, for two tiles and a half, and for all.
    for room in (0, 40 * size * design.width, 1 << 20):
        bound = float(world.box.sum())
        program = SmallTiles(
            design, world.problem, resident=resident, weight_bound=bound, room=room
        )
        state = scored(program)
        for k, v in enumerate(vectors):
            found.append(product(program, state, *v, first=k == 0, **how))
        # Whole tiles of 16 rows, of rows that are not in memory as they are.
        most = min(len(state.curved.local), room // (size * design.width))
        whole = most if most == len(state.curved.local) else most // 16 * 16
        assert state.curved.filled == (whole if kernel == "rbf" or not resident else 0)
        assert (whole > 0) == (room > 0)
        found.append(product(program, scored(program), *vectors[-1], first=False, **how))
    for k, one in enumerate(found):
        np.testing.assert_array_equal(one, found[min(k % 4, 2)])


def test_the_penalty_outweighs_rounding_by_the_unit():
    design = contracts.world(contracts.rows(0), "rbf", 0.7).design
    most = 0.5
    noise = (design.column_bound / INT16_MAX) ** 2 / 12 * design.longest**2
    assert int16_unit(design, 0.9 * most / noise, most) == design.column_bound / INT16_MAX
    assert int16_unit(design, 1.1 * most / noise, most) == 0.0
    # Squared losses' band has no width, and raw features are what they are.
    assert int16_unit(design, np.inf, most) == 0.0
    assert int16_unit(contracts.world(contracts.rows(0), "linear", 0.7).design, 1.0, most) == 0.0
    # In no direction does rounding curve P by more.
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(50, design.rank))
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    stretched = np.linalg.norm(directions @ design.factor.T, axis=1)
    assert 0.1 * design.longest < np.max(stretched) <= design.longest


@pytest.mark.parametrize("unit", [False, True])
def test_fits_with_room_and_without_end_at_the_same_bits(unit):
    tuning = {
        **{"min_columns": 0, "min_columns_cg": 0, "max_local_entries": 0},
        "max_rounding_curvature": 1e9 if unit else 0.0,
    }
    world = contracts.world(contracts.rows(4, n=1500, noise=1.0), "rbf", 0.5, "constant")
    units, found = set(), []

    class Watched(Inline):
        def round(self, message):
            if message["kind"] == "product":
                units.add(message["unit"] > 0)
            return super().round(message)

    for threads, spare in ((1, 0), (2, 1 << 24), (1, 1 << 15)):
        with Watched(threads) as fleet:
            run = replace(Run(world.design, world.problem, fleet), spare=spare)
            found.append(fit(run, tuned(1e-5, **tuning), Limits(1e-5, 200)))
    assert units == {unit}
    contracts.solver_law(world, found[0].point, found[0].certificate, 1e-5)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].point.coef, other.point.coef)
        assert found[0].certificate == other.certificate
