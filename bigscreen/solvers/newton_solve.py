"""One Newton run as its coordinator sees it: rounds, line search, smoothing, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigscreen import exact
from bigscreen.design import Design
from bigscreen.dual import FloatArray
from bigscreen.point import Point, Reading
from bigscreen.problems import CSvc
from bigscreen.screening.regions import Ball
from bigscreen.solvers.newton_algebra import Algebra
from bigscreen.solvers.newton_bundle import Bundle
from bigscreen.solvers.newton_offset import multiplier_interval
from bigscreen.solvers.newton_shard import NewtonProgram
from bigscreen.solvers.newton_start import suit
from bigscreen.solvers.protocol import Check, Fleet

STEPS = np.array([0.0, 1.0, 1.4, 0.75, 0.55, 0.4, 0.28, 0.18, 0.1, 0.05, 0.02, 0.005])
SHORTEST = 1e-6
"""Step lengths below this are not tried: rounding hides what they would gain."""


@dataclass
class Place:
    """Where the Newton is: x = (w, b), what the last passes found there, and how it got there."""

    x: FloatArray
    h: float
    bundle: Bundle
    past: list[FloatArray] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    point: Point | None = None
    step: FloatArray | None = None
    t: float = 1.0
    next_h: float = 1.0
    wide: float = 1.0
    decrement: float = 0.0
    gradient_cost: float = 0.0
    zone: int = 0
    zone_asked: int = 0
    fixed: tuple[int, int] = (0, 0)
    zone_weight: float = 0.0
    visited: int = 0
    alive: int = 0
    stalled: int = 0
    given: float | None = None  # D of the alpha that x was made of, until h suits its gap


class Solve:
    """One run: the rounds of the coordinator, and what it concludes from their sums."""

    def __init__(self, options: Any, design: Design, problem: CSvc, fleet: Fleet) -> None:
        self.options, self.design, self.problem, self.fleet = options, design, problem, fleet
        self.algebra = Algebra(design, problem)
        self.program: NewtonProgram

    def run(self, place: Place, check: Check) -> Point:
        """Iterate from a place whose gradient is known until ``check`` is content."""
        while True:
            assert place.point is not None and place.step is not None
            verdict = check(
                place.point,
                {
                    "rows_visited": place.visited,
                    "rows_alive": place.alive,
                    "fixed_hi": place.fixed[0],
                    "fixed_lo": place.fixed[1],
                    "decrement": place.decrement,
                    "stalled": place.stalled >= 3,
                },
                lambda folder, meta: self.fleet.save(folder, {**meta, "solver": self._meta(place)}),
            )
            if verdict is None:
                return place.point
            place.fixed = (0, 0)
            if verdict.region is not None:
                self._screen(place, verdict.region)
            if verdict.restart:
                # The rows that come back can be far off: start them in a wider zone.
                place.h = min(1.0, 16 * place.h)
                self.enter(self.program, place)
                continue
            self._iterate(place, place.step, STEPS, place.next_h)

    def origin(self) -> Place:
        """w = 0 and a zone as wide as the margin: every row is in it."""
        return Place(np.zeros(self.algebra.size), 1.0, Bundle(self.algebra.metric), zone=1)

    def enter(self, program: NewtonProgram, place: Place, growth: float = 1.0) -> None:
        """Start a program on every shard, score all its rows at x, find the gradient there.

        ``growth``: how many times as many rows it has as the program before.
        """
        self.program = program
        place.zone = int(place.zone * growth)
        self.fleet.start(program, self.design.data.n_shards)
        place.past, place.errors, place.bundle = [], [], Bundle(self.algebra.metric)
        self._iterate(place, np.zeros(self.algebra.size), STEPS[:1], place.h)

    # -- rounds --------------------------------------------------------------------------------
    def _iterate(self, place: Place, step: FloatArray, steps: FloatArray, h: float) -> None:
        """Score pass along ``step``, exact line search on the grid, gradient pass."""
        end = place.x + step
        ends = [self.algebra.coef(place.x), self.algebra.coef(end)]
        reach = [place.x, place.x + steps.max() * step]
        message = {
            "kind": "trial",
            "h": h,
            "steps": steps,
            "coefs": np.stack([coef for coef, _ in ends], axis=1),
            "offsets": np.array([offset for _, offset in ends]),
            "slack": max(self.design.score_error(coef) for coef, _ in ends),
            **self.algebra.travel(place.past, place.errors, reach),
        }
        stack, _ = self.fleet.round(message)
        found = stack.sum(axis=0)
        place.visited, place.alive = int(found[0]), int(found[1])
        losses = found[2:]
        while True:
            smooth, plain = losses.reshape(2, -1)
            quadratic = np.array([self.algebra.quadratic(place.x + t * step) for t in steps])
            k = int(np.argmin(quadratic + smooth))
            if k > 0 or steps[-1] < SHORTEST:
                break
            # Far from the optimum of a small h only tiny steps decrease: look among them. This
            # costs no pass, the scores along the step are known.
            steps = steps * steps[-1]
            stack, _ = self.fleet.round({**message, "kind": "search", "steps": steps})
            losses = stack.sum(axis=0)
        if place.given is not None:
            primal, cost = float(quadratic[k] + plain[k]), float(smooth[k] - plain[k])
            h = suit(self, place, cost, max(primal - place.given, self.options.tol * abs(primal)))
        place.t = float(steps[k])
        place.stalled = place.stalled + 1 if len(steps) > 1 and k == 0 and h == place.h else 0
        place.x = place.x + place.t * step
        place.past.append(place.x)
        # Scores along the step mix those of both its ends, and extrapolate them a little.
        place.errors.append(3.0 * max(self.design.score_error(coef) for coef, _ in ends))
        place.h = h
        if len(steps) > 1:
            if place.t < 0.5:
                place.wide = min(place.wide * 2, 16.0)
            elif place.t >= 1.0:
                place.wide = max(place.wide / (4 if place.t > 1.0 else 2), 1.0)
        message = self._gradient_message(place)
        stack, totals = self.fleet.round(
            {**message, "kind": "accept", "t": place.t, "ref": len(place.past) - 1}
        )
        self._finish(place, message, stack, totals, float(quadratic[k] + plain[k]))

    def _gradient_message(self, place: Place) -> dict[str, Any]:
        most = self.options.zone_rows * self.design.width
        place.zone_asked = place.zone
        return {
            "kind": "gradient",
            "h": place.h,
            "wide": place.wide * place.h,
            "stride": max(1, round(place.zone / most)),
        }

    def _finish(
        self,
        place: Place,
        message: dict[str, Any],
        stack: FloatArray,
        totals: exact.Totals,
        primal: float,
        known: bool = False,
    ) -> None:
        """The dual point, the gap and the next Newton step from the sums of a gradient pass.

        ``known``: the bundle holds this dual point already (a checkpoint's).
        """
        program, h = self.program, place.h
        largest = max(self.design.column_bound, 1.0)
        v, half = exact.read(totals, "v", program.weight_bound * largest)
        moment = exact.read(totals, "moment", program.moment_bound(message))
        # Shards add to one triangle only.
        moment = np.triu(moment) + np.triu(moment, 1).T
        found = stack.sum(axis=0)
        place.zone, place.zone_weight = int(found[2]), float(found[3])

        keep = self.problem.feasible(v[0, -1], -v[1, -1])
        coef, offset = self.algebra.coef(place.x)
        reading, lin = Reading(coef, offset, h), float(keep @ found[:2])
        v_alpha = self.algebra.features(keep @ v)
        if not known:
            place.bundle.add(reading, lin, v_alpha)
        dual = lin - self.algebra.quadratic(v_alpha)
        readings: tuple[Reading, ...] = (reading,)
        w_alpha = v_alpha
        if primal - dual > self.options.tol * abs(primal):
            # A mixture makes the closing pass dearer: only where this alpha alone is not enough.
            dual, readings = place.bundle.dual, place.bundle.mixture()
            w_alpha = place.bundle.features()
        # P errs by the box times a score's error, D by alpha times that of w(alpha)'s scores.
        error = self.design.score_error(coef) + 2 * self.design.score_error(
            self.design.coef(w_alpha[: self.design.rank])
        )
        place.point = Point(
            coef,
            place.x[: self.design.rank],
            offset,
            primal,
            dual,
            paired=False,
            readings=readings,
            rounding=program.weight_bound * error,
        )

        inner = self.algebra.transform(moment)
        gradient = self._gradient(place, v)
        place.step, place.decrement = self.algebra.newton_step(inner, gradient)
        place.gradient_cost = 0.5 * float(gradient @ gradient)
        place.next_h = self._next_h(place)
        if place.next_h < h:
            # The zone's rows as they are, at the next h: alpha is linear in z within the zone, so
            # this is the exact step of the path in h while no row enters or leaves the zone.
            ratio = h / place.next_h
            gradient = self._gradient(place, half + ratio * (v - half))
            place.step, _ = self.algebra.newton_step(ratio * inner, gradient)

    def _gradient(self, place: Place, v: FloatArray) -> FloatArray:
        return self.algebra.metric * place.x - self.algebra.features(v.sum(axis=0))

    def _next_h(self, place: Place) -> float:
        """The smoothing of the next pass.

        ``P - D`` is about ``zone_weight h / 12`` (what smoothing costs; zone_weight is itself
        proportional to h) plus ``||gradient||^2 / 2``. h ends where the former is half of what is
        asked, and is lowered only when the decrease that the Newton step promises is no more than
        what smoothing costs: sooner, and steps become tiny and the dual point useless.
        """
        assert place.point is not None
        h, cost, tol = place.h, place.zone_weight * place.h / 12, self.options.tol
        # With no row in the zone smoothing costs nothing here, yet the closing pass reads alpha of
        # screened rows off their scores: h must go on down until they are out of its zone too.
        primal = abs(place.point.primal)
        if place.decrement > max(min(cost, primal), 1e-15 * primal):
            return h
        floor = h * float(np.sqrt(0.5 * tol * abs(place.point.primal) / cost)) if cost else 0.0
        converged = place.decrement <= 0.1 * cost
        if floor >= 0.7 * h:
            # Converged at the last h and still not enough: the estimate was too rosy. (Never creep
            # up to the floor: every new h costs a step.)
            return h / 2 if converged and place.gradient_cost < cost else h
        return max(h / (4 if converged else 2), floor)

    # -- screening -----------------------------------------------------------------------------
    def _screen(self, place: Place, region: Ball) -> None:
        """Let every shard fix what the region proves; w, and so every score, stays as it is."""
        coef, offset = self.algebra.coef(place.x)
        true_offset = self.problem.intercept == "true"
        message: dict[str, Any] = {
            "region": region,
            "slack": self.design.score_error(coef),
            "constant": float(self.problem.intercept == "constant"),
            "offset": offset if true_offset else 0.0,
            **self.algebra.travel(place.past, place.errors, [place.x]),
        }
        message["mu"] = (0.0, 0.0)
        if true_offset:
            reach = float(np.linalg.norm(place.x)) + region.radius
            reach += float(np.max(message["travel"][:-1]))
            widest = 2.0 + 2.0 * reach * self.design.largest_norm
            message["mu"] = multiplier_interval(self.fleet, message, widest)
        stack, _ = self.fleet.round({**message, "kind": "screen"})
        place.fixed = (int(stack[:, 0].sum()), int(stack[:, 1].sum()))

    # -- checkpoints ---------------------------------------------------------------------------
    def _meta(self, place: Place) -> dict[str, Any]:
        """All the coordinator needs to go on, as JSON (Python floats survive it bit for bit)."""
        return {
            "x": place.x.tolist(),
            "h": place.h,
            "wide": place.wide,
            "past": [past.tolist() for past in place.past],
            "errors": place.errors,
            "bundle": place.bundle.to_dict(),
            "t": place.t,
            "zone": place.zone_asked,
            "visited": place.visited,
            "alive": place.alive,
            "stalled": place.stalled,
            "primal": place.point.primal if place.point else None,
        }

    def restore(self, program: NewtonProgram, meta: dict[str, Any]) -> Place:
        """The place that ``_meta`` describes: one gradient round over the restored shards."""
        self.program = program
        place = Place(
            np.array(meta["x"]),
            meta["h"],
            Bundle.from_dict(self.algebra.metric, meta["bundle"]),
            past=[np.array(past) for past in meta["past"]],
            errors=meta["errors"],
            t=meta["t"],
            wide=meta["wide"],
            zone=meta["zone"],
            visited=meta["visited"],
            alive=meta["alive"],
            stalled=meta["stalled"],
        )
        message = self._gradient_message(place)
        stack, totals = self.fleet.round(message)
        self._finish(place, message, stack, totals, meta["primal"], known=True)
        return place
