"""Wide bands, rows held to their side, and what rounding does to scores: true shortcuts."""

import json
from dataclasses import replace

import contracts
import numpy as np
import pytest
from newton_world import Noted, Spied, tuned

from bigscreen.certify.explicit import close_explicit
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import MONITOR, Limits
from bigscreen.fleet.inline import Inline
from bigscreen.problems.point import Point, SumLayout, read_off
from bigscreen.solvers.newton.algebra import Algebra
from bigscreen.solvers.newton.coordinator import NewtonRun
from bigscreen.solvers.newton.iterate import Band, Bundle, Iterate, choose_h
from bigscreen.solvers.newton.shard import GatheredRows, NewtonProgram
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Run


class Watched(Inline):
    """A fleet that notes the messages of its rounds."""

    def __init__(self, threads=1):
        super().__init__(threads)
        self.kinds, self.held = [], 0

    def round(self, message):
        self.kinds.append(message["kind"])
        self.held += message.get("near") is not None
        return super().round(message)


WIDE = {"min_columns": 0, "min_columns_cg": 0, "max_local_entries": 0}
"""Every step is by conjugate gradients, and no rows are gathered."""

HELD = {**WIDE, "max_near_fraction": 1.0}
"""Held steps are taken however many rows are near."""


def test_a_step_by_products_is_the_newton_step_to_a_tenth():
    world = contracts.world(contracts.rows(0, n=60), "linear", 1.0)
    algebra = Algebra(world.design, SumLayout.of(world.problem, world.data))
    rng = np.random.default_rng(1)
    for about in (0, 20, 300):
        rows = rng.normal(size=(400, algebra.size)) * 10.0 ** rng.uniform(-2, 1, algebra.size)
        inner, gradient = rows.T @ rows, rng.normal(size=algebra.size)
        near = rows[:about].T @ rows[:about] * (400 / max(about, 1))
        solve = algebra.factor(near, gradient).solve
        step, _ = algebra.conjugate_step(lambda x, H=inner: H @ x, solve, gradient)
        hessian = inner + np.diag(algebra.damping(gradient))
        best = -np.linalg.solve(hessian, gradient)
        left, whole = ((v @ hessian @ v) ** 0.5 for v in (step - best, best))
        assert left <= 0.3 * whole
        assert step @ gradient < 0


@pytest.mark.slow
@pytest.mark.parametrize("intercept", contracts.INTERCEPTS)
@pytest.mark.parametrize("hold", [False, True])
def test_cg_steps_and_held_rows_end_at_the_optimum(intercept, hold):
    """Their results are the same on any number of threads."""
    # (Rows are held so near to their hinge point that many cross.)
    tuning = {**WIDE, "max_near_fraction": 1.0 if hold else -1.0, "hold_moves": 0.5}
    world = contracts.world(contracts.rows(4, n=1500, noise=1.0), "rbf", 0.5, intercept)
    found = []
    for threads in (1, 2):
        with Watched(threads) as fleet:
            run = Run(world.design, world.problem, fleet)
            fitted = fit(run, tuned(1e-5, **tuning), Limits(1e-5, 200))
            found.append(fitted)
            assert "product" in fleet.kinds
            assert (fleet.held > 0) == hold
    contracts.solver_law(world, found[0].point, found[0].certificate, 1e-5)
    np.testing.assert_array_equal(found[0].point.coef, found[1].point.coef)
    assert found[0].certificate.gap == found[1].certificate.gap


@pytest.mark.slow
@pytest.mark.parametrize("held", [0.0, 1e9])
def test_the_closing_pass_verifies_held_rows_of_a_wide_gap(held):
    """Where rows were held to the wrong side all are scored, and the run goes on."""
    world = contracts.world(contracts.rows(4, n=1500, noise=1.0), "rbf", 1.0)
    found = []
    for threads in (1, 2):
        with Watched(threads) as fleet:
            run = Run(world.design, world.problem, fleet)
            found.append(fit(run, tuned(2e-4, **HELD, hold_moves=held), Limits(2e-4, 200)))
            assert fleet.held > 0
    fitted, other = found
    # Rows that were held where they are not: a closing pass that was not enough, and then no more.
    assert fitted.passes["closing"] == (2 if held < 1 else 1)
    contracts.solver_law(world, fitted.point, fitted.certificate, 2e-4)
    assert fitted.point.held == (held > 1)
    last, proof = fitted.history[-1], fitted.certificate
    assert last["primal"] == pytest.approx(proof.primal, rel=1e-6)
    assert last["relative_gap"] <= 2e-4
    # No pass says of itself what only holds of the rows that it looked at.
    assert all(one["primal"] >= proof.dual for one in fitted.history)
    np.testing.assert_array_equal(fitted.point.coef, other.point.coef)
    assert proof.gap == other.certificate.gap


def test_d_of_held_rows_is_that_of_the_sides_they_were_held_to():
    """Read off anew, those that have left theirs make another alpha, and D of that is lower."""
    world = contracts.world(contracts.rows(4, n=1500, noise=1.0), "rbf", 1.0)
    solver = Noted(tuned(2e-4, **HELD, hold_moves=0.0))
    with Inline(1) as fleet:
        run = Run(world.design, world.problem, fleet)
        fit(run, solver, Limits(2e-4, 200))
        # The first held point whose gap is small enough for a closing pass.
        near = MONITOR.closing_pass_factor * 2e-4
        held, *_ = (one for one in solver.points if one.held and one.relative_gap <= near)
        again = Point.from_dict(json.loads(json.dumps(held.to_dict())))
        np.testing.assert_array_equal(held.sides, again.sides)
        told = close_explicit(world.design, world.problem, held, fleet)
        read = close_explicit(world.design, world.problem, replace(held, sides=None), fleet)
    assert told.primal == pytest.approx(read.primal, rel=1e-7)
    assert told.dual == pytest.approx(held.dual, rel=1e-6)
    assert read.dual < told.dual - 1e-4 * told.dual


@pytest.mark.slow
def test_a_fit_that_is_interrupted_where_rows_are_held_ends_in_the_same_bits(
    tmp_path, checkpoint_every
):
    solver = tuned(2e-4, **HELD, hold_moves=0.0)  # and so a closing pass is not enough
    checkpoint_every(-1.0)
    world = contracts.world(contracts.rows(4, n=1500, noise=1.0), "rbf", 1.0)

    def fitted(folder, stop=0, **how):
        def report(event):
            if event.get("pass") == stop:
                raise KeyboardInterrupt

        with Inline(1) as fleet:
            run = Run(world.design, world.problem, fleet, folder=folder, **how)
            return fit(run, solver, Limits(2e-4, 200), report=report)

    whole = fitted(tmp_path / "whole")
    assert whole.passes["closing"] == 2
    for stop in range(1, len(whole.history)):
        folder = tmp_path / str(stop)
        with pytest.raises(KeyboardInterrupt):
            fitted(folder, stop)
        resumed = fitted(folder, resume=True)
        np.testing.assert_array_equal(resumed.point.coef, whole.point.coef)
        assert resumed.certificate == whole.certificate


@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_no_score_is_farther_off_than_its_slack(kernel):
    world = contracts.world(contracts.rows(2, n=3000, d=6), kernel, 1.0)
    design, X = world.design, world.data.X(0, world.data.n_rows)
    with Inline(1) as fleet:
        solve = NewtonRun(Newton(), design, world.problem, fleet)
        solve.open(NewtonProgram(design, world.problem))
        for seed in range(3):
            coef = design.coef(np.random.default_rng(seed).normal(size=design.rank))
            ends = (design.dots(X, coef[:, None], dtype) for dtype in (np.float32, np.float64))
            off = float(np.max(np.abs(np.subtract(*ends))))
            slack = solve._measure_rounding([coef])
            assert 0 < off <= slack <= design.score_error(coef)


def test_rows_are_held_by_how_far_scores_have_moved_since_they_were_computed():
    """Rows scored in earlier passes are near at larger distances, by the steps made since."""
    asked = []

    class Asked(Watched):
        def round(self, message):
            if message.get("near") is not None:
                asked.append((message["near"], message["w_moves"]))
            return super().round(message)

    world = contracts.world(contracts.rows(4, n=1500, noise=1.0), "rbf", 1.0)
    with Asked() as fleet:
        run = Run(world.design, world.problem, fleet)
        fit(run, tuned(2e-4, **HELD), Limits(2e-4, 200))
    assert len(asked) >= 3
    for near, travel in asked:
        # One for each past pass, falling to the last; rows that no pass has scored are looked at.
        assert len(near) == len(travel) and near[-1] == np.inf
        assert np.all(np.diff(near[:-1]) <= 0) and near[-2] > 0
    assert any(near[0] > 1.01 * near[-2] for near, _ in asked)


@pytest.mark.slow
def test_p_of_all_rows_falls_though_held_rows_have_left_their_side():
    """A pass over all rows after held steps never ends at a higher P than before them."""
    world = contracts.world(contracts.rows(4, n=1500, noise=1.0), "rbf", 30.0)
    solver, held = Noted(tuned(1e-5, **HELD, hold_moves=0.0)), []

    class Counting(Watched):
        """A fleet that notes for each point how many rounds held rows before it."""

        def round(self, message):
            held.extend([self.held] * (len(solver.points) - len(held)))
            return super().round(message)

    with Counting() as fleet:
        run = Run(world.design, world.problem, fleet)
        fitted = fit(run, solver, Limits(1e-5, 300))
    contracts.solver_law(world, fitted.point, fitted.certificate, 1e-5)
    points = solver.points[: len(held)]
    after_held = [k for k in range(1, len(held)) if held[k] > held[k - 1]]
    assert after_held and not any(point.held for point in points)
    assert all(points[k].primal <= points[k - 1].primal * (1 + 1e-5) for k in after_held)


@pytest.mark.slow
def test_gathered_rows_come_with_the_side_they_were_held_to():
    """The gradient has alpha at that side, wherever their scores are now; all passes visit them."""
    # (Rows are held so near to their hinge point that many cross.)
    solver = tuned(1e-6, **HELD | {"max_local_entries": 30 * 300}, hold_moves=0.0)
    world = contracts.world(contracts.rows(4, n=1500, noise=1.0), "rbf", 50.0)
    away, visited = [], []

    class Scored(NewtonProgram):
        def _score(self, state, message):
            yield from super()._score(state, message)
            if message.get("near") is not None and len(state.gathered):
                held = np.flatnonzero(state.gathered & ~state.fixed)
                visited.append(np.isin(held, state.visited).all())

    class Gathering(Spied):
        def round(self, message):
            stack, totals = super().round(message)
            if message["kind"] in ("accept", "gradient"):
                self.h = message["h"]
            if message["kind"] == "pick":
                self.counts = stack[:, 0].astype(int)
            if message["kind"] == "gather":
                room = np.empty((self.counts.sum(), world.design.rank), np.float32)
                rows, alpha = GatheredRows.unpacked(stack, self.counts, room)
                known = ~np.isnan(alpha)
                assert np.all((alpha == rows.lo) | (alpha == rows.hi) | ~known)
                far = np.abs(alpha - read_off(rows.dual, rows.G, self.h)) > 0.01 * rows.hi
                away.append(np.count_nonzero(far & known))
            return stack, totals

    with Gathering(Scored) as fleet:
        run = Run(world.design, world.problem, fleet)
        fitted = fit(run, solver, Limits(1e-6, 200))
    contracts.solver_law(world, fitted.point, fitted.certificate, 1e-6)
    assert sum(away) > 0
    assert visited and all(visited)


@pytest.mark.parametrize(
    ("gap", "gradient_cost", "lowered"),
    [
        (9e-4, 4e-4, False),  # the next step leaves 5e-4
        (9e-4, 1e-4, True),  # it would leave 8e-4
        (9e-3, 8e-3, False),  # not there yet
        (6e-4, 1e-4, True),  # enough, but who asked was not content
    ],
)
def test_h_stays_if_the_gap_is_the_gradients(gap, gradient_cost, lowered):
    """A new h costs a step; where steps at this one end at less than is asked none is wanted."""
    primal, h, tol = 1000.0, 0.1, 1e-3
    point = Point(np.zeros(2), np.zeros(2), 0.0, primal, primal * (1 - gap), paired=False)
    # Smoothing costs half of what is asked: h is where it is to end.
    weight = 12 * 0.5 * tol * primal / h
    iterate = Iterate(np.zeros(2), h, Bundle(np.ones(2)), point=point, band=Band(10, weight=weight))
    iterate.decrement, iterate.gradient_cost = 1e-9 * primal, gradient_cost * primal
    assert choose_h(iterate, tol) == (h / 2 if lowered else h)
