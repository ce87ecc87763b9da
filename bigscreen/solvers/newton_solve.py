"""One Newton run as its coordinator sees it: rounds, line search, smoothing, checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigscreen import exact
from bigscreen.design import Design
from bigscreen.dual import FloatArray
from bigscreen.errors import InputError
from bigscreen.point import Point, Reading
from bigscreen.point_sums import Frame
from bigscreen.problems import Problem
from bigscreen.solvers.newton_algebra import Algebra
from bigscreen.solvers.newton_bundle import Bundle
from bigscreen.solvers.newton_moment import averaged
from bigscreen.solvers.newton_phase import approach, within_reach
from bigscreen.solvers.newton_place import Place, Trial, next_h
from bigscreen.solvers.newton_screen import screen
from bigscreen.solvers.newton_shard import NewtonProgram
from bigscreen.solvers.newton_start import suit
from bigscreen.solvers.protocol import Check, Fleet

STEPS = np.array([0.0, 1.0, 1.4, 0.75, 0.55, 0.4, 0.28, 0.18, 0.1, 0.05, 0.02, 0.005])
SHORTEST = 1e-6
"""Step lengths below this are not tried: rounding hides what they would gain."""

NOTHING = 1e-6
"""A w, or a zone, below this part of what it could be is nothing."""


class Solve:
    """One run: the rounds of the coordinator, and what it concludes from their sums."""

    def __init__(self, options: Any, design: Design, problem: Problem, fleet: Fleet) -> None:
        self.options, self.design, self.problem, self.fleet = options, design, problem, fleet
        self.algebra = Algebra(design, Frame.of(problem, design.data))
        self.program: NewtonProgram
        self.largest = 0.0
        """At least every row's ``|p| + e``."""
        self.zero = False
        """Whether alpha = 0 is feasible."""
        self.passes = [0, 0]
        """Passes that have scored all rows, and some of them."""

    def run(self, place: Place, check: Check) -> Point:
        """Iterate from a place whose gradient is known until ``check`` is content."""
        while True:
            assert place.point is not None
            verdict = check(
                place.point,
                {
                    "rows_visited": place.visited,
                    "rows_alive": place.alive,
                    "fixed_hi": place.fixed[0],
                    "fixed_lo": place.fixed[1],
                    "decrement": place.decrement,
                    "full_passes": self.passes[0],
                    "partial_passes": self.passes[1],
                    "stalled": place.stalled >= 3 or self._vanished(place),
                },
                lambda folder, meta: self.fleet.save(folder, {**meta, **self._meta(place)}),
            )
            if verdict is None:
                return place.point
            place.fixed = (0, 0)
            if verdict.region is not None:
                place.fixed = screen(self, place, verdict.region)
            if verdict.restart:
                # The rows that come back can be far off: start them in a wider zone.
                place.h = min(self.algebra.unit, 16 * place.h)
                self.open(self.program)
                self.enter(place)
                continue
            if approach(self, place):
                continue
            if place.step is None:
                self._steer(place)
            assert place.step is not None
            self._iterate(place, place.step, STEPS, place.next_h)

    def _vanished(self, place: Place) -> bool:
        """Whether w* = 0 as far as anyone could tell: no relative gap has a meaning then.

        Where alpha has a total to meet, the rows' hulls can overlap (nu-SVC) or hold the origin
        (one-class), and P* is 0. (On the way to another P* it is 0 in passing, at a wide zone.)
        """
        assert place.point is not None
        unit, total = self.algebra.unit, float(np.sum(self.algebra.frame.total))
        tiny = abs(place.point.primal) <= NOTHING**2 * unit * total
        return total > 0 and tiny and place.h <= NOTHING * unit

    def origin(self) -> Place:
        """w = 0 and a zone as wide as gradients are there: every row is in it."""
        return Place(np.zeros(self.algebra.size), 0.0, Bundle(self.algebra.metric), zone=1)

    def open(self, program: NewtonProgram) -> bool:
        """Start a program on every shard and measure its rows.

        Returns whether the coupling can be met: that of a subsample need not.
        """
        self.program = program
        self.fleet.start(program, self.design.data.n_shards)
        stack, _ = self.fleet.round({"kind": "sizes"})
        weight, lin, sqnorm = stack[:, :3].sum(axis=0)
        total = self.algebra.frame.total
        # Gradients are p at w = 0; where all p are 0, the scores of sum alpha = total.
        unit = lin / max(weight, 1e-300) or float(total.sum()) * sqnorm / max(weight, 1e-300)
        self.algebra.unit, self.largest = float(unit) or 1.0, float(stack[:, 3].max())
        self.zero = not np.any(total) and float(stack[:, 4].max()) <= 0
        most = stack[:, 5:].sum(axis=0)[: len(total)]
        return bool(np.all(most * (1 + 1e-9) >= total))

    def enter(self, place: Place, growth: float = 1.0) -> None:
        """Score all rows of the program at x, find the gradient there.

        ``growth``: how many times as many rows it has as the program before.
        """
        place.h = 0.0 if self.algebra.frame.curved else place.h or self.algebra.unit
        place.zone = int(place.zone * growth)
        place.past, place.errors, place.bundle = [], [], Bundle(self.algebra.metric)
        place.average = None
        self._iterate(place, np.zeros(self.algebra.size), STEPS[:1], place.h)

    # -- rounds --------------------------------------------------------------------------------
    def _iterate(self, place: Place, step: FloatArray, steps: FloatArray, h: float) -> None:
        """Score pass along ``step``, exact line search on the grid, gradient pass."""
        trial = self.seek(place, step, steps, h)
        t = float(trial.steps[trial.best])
        # At another h the rows nearby may do again.
        place.local = place.local or h < place.h
        self.take(place, trial, moment=not within_reach(self, place, h, t))

    def seek(self, place: Place, step: FloatArray, steps: FloatArray, h: float) -> Trial:
        """Score pass along ``step``, and where on the grid P smoothed by h is least."""
        end = place.x + step
        ends = [self.algebra.coef(place.x), self.algebra.coef(end)]
        reach = [place.x, place.x + steps.max() * step]
        message: dict[str, Any] = {
            "kind": "trial",
            "h": h,
            "steps": steps,
            "coefs": np.stack([coef for coef, _ in ends], axis=1),
            "extras": np.stack([extras for _, extras in ends], axis=1),
            "slack": max(self.design.score_error(coef) for coef, _ in ends),
            **self.algebra.travel(place.past, place.errors, reach),
        }
        stack, _ = self.fleet.round(message)
        found = stack.sum(axis=0)
        place.visited, place.alive = int(found[0]), int(found[1])
        self.passes[place.visited < self.design.data.n_rows] += 1
        losses = found[2:]
        while True:
            smooth, plain = losses.reshape(2, -1)
            regular = np.array([self.algebra.regular(place.x + t * step) for t in steps])
            k = int(np.argmin(regular + smooth))
            if k > 0 or steps[-1] < SHORTEST:
                break
            # Far from the optimum of a small h only tiny steps decrease: look among them. This
            # costs no pass, the scores along the step are known.
            steps = steps * steps[-1]
            stack, _ = self.fleet.round({**message, "kind": "search", "steps": steps})
            losses = stack.sum(axis=0)
        primal, cost = float(regular[k] + plain[k]), float(smooth[k] - plain[k])
        # Scores along the step mix those of both its ends, and extrapolate them a little.
        return Trial(step, steps, k, h, primal, cost, 3.0 * float(message["slack"]))

    def take(self, place: Place, trial: Trial, moment: bool = True) -> None:
        """Go where the last trial found P least, and sum the gradient there.

        ``moment``: with the zone's second moment, which a step over all rows is made of.
        """
        h, k, moving = trial.h, trial.best, len(trial.steps) > 1
        if place.given is not None:
            gap = max(trial.primal - place.given, self.options.tol * abs(trial.primal))
            h = suit(self, place, trial.cost, gap)
        place.t = float(trial.steps[k])
        place.stalled = place.stalled + 1 if moving and k == 0 and h == place.h else 0
        place.x = place.x + place.t * trial.step
        place.past.append(place.x)
        place.errors.append(trial.error)
        place.h = h
        if moving:
            if place.t < 0.5:
                place.wide = min(place.wide * 2, 16.0)
            elif place.t >= 1.0:
                place.wide = max(place.wide / (4 if place.t > 1.0 else 2), 1.0)
        message = self._gradient_message(place, trial.primal, moment)
        stack, totals = self.fleet.round(
            {**message, "kind": "accept", "t": place.t, "ref": len(place.past) - 1}
        )
        self._finish(place, message, stack, totals, trial.primal)

    def _gradient_message(self, place: Place, primal: float, moment: bool = True) -> dict[str, Any]:
        most = self.options.zone_rows * self.design.width
        place.zone_asked = place.zone
        return {
            "kind": "gradient",
            "h": place.h,
            "wide": place.wide * place.h,
            "stride": max(1, round(place.zone / most)) if moment else 0,
            "turn": place.average.passes if place.average else 0,
            **({"box": self._box(primal)} if self.algebra.frame.curved else {}),
        }

    def _box(self, primal: float) -> float:
        """At least ``sum |alpha|`` at a place where P, of squared losses, is this."""
        reach = self.program.weight_bound
        # alpha^2 / (2 reach) is a row's loss, so the sum is at most this (Cauchy and Schwarz); and
        # what rounding of scores can have taken from P.
        return float(np.sqrt(2.0 * reach * max(primal, 0.0))) * 1.001 + 1e-9 * reach * self.largest

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
        largest = self.algebra.frame.largest(self.design.column_bound)
        box = program.most_alpha(message)
        v = exact.read(totals, "v", box * largest)
        found = stack.sum(axis=0)
        place.zone, place.zone_weight = int(found[-2]), float(found[-1])

        coef, extras = self.algebra.coef(place.x)
        constant, multiplier = self._offsets(extras)
        reading = Reading(coef, constant, h, multiplier=multiplier)
        alone = self._dual_point(v[:-1], found[:-2])
        if not known:
            if alone is not None:
                place.bundle.add(reading, *alone)
            elif not place.bundle.lin:
                self._add_middle(place)
        bundle = place.bundle
        readings: tuple[Reading, ...] = (reading,)
        dual, w_alpha = -np.inf, place.x
        if alone is not None:
            dual, w_alpha = alone[0] - self.algebra.quadratic(alone[1]), alone[1]
        if primal - dual > self.options.tol * abs(primal):
            # A mixture makes the closing pass dearer: only where this alpha alone is not enough.
            dual, readings, w_alpha = bundle.dual, bundle.mixture(), bundle.features()
        if self.zero and dual < 0:
            dual, readings, w_alpha = 0.0, (), np.zeros(len(place.x))  # alpha = 0 is better
        # P errs by the box times a score's error, D by alpha times that of w(alpha)'s scores.
        error = self.design.score_error(coef) + 2 * self.design.score_error(
            self.design.coef(w_alpha[: self.design.rank])
        )
        curved = program.weight_bound if self.algebra.frame.curved else 0.0
        place.point = Point(
            coef,
            place.x[: self.design.rank],
            constant + self.problem.offset(self.algebra.frame.mu(extras)),
            primal,
            dual,
            paired=False,
            readings=readings,
            rounding=(box + curved * error) * error,
            multiplier=multiplier,
            apart=float(np.sqrt(2 * self.algebra.quadratic(place.x - w_alpha))),
        )

        now, middle = v[: self.algebra.frame.buckets].sum(axis=0), v[-1]
        place.gradient = gradient = self.algebra.gradient(place.x, now)
        place.gradient_cost = 0.5 * float(gradient @ gradient)
        place.step = None
        if not message["stride"]:
            return
        inner = np.zeros((len(gradient), len(gradient)))  # where the zone is empty
        if "moment" in totals:
            inner = exact.read(totals, "moment", program.moment_bound(message))
        place.before, place.average = place.average, None
        if message["stride"] > 1:
            place.average = averaged(place.before, inner, h, message["stride"])
            inner = place.average.moment
        place.step, place.decrement = self.algebra.newton_step(inner, gradient)
        place.next_h = next_h(place, self.options.tol) if h else h
        if place.next_h < h:
            # The zone's rows as they are, at the next h: alpha is linear in z within the zone, so
            # this is the exact step of the path in h while no row enters or leaves the zone.
            ratio = h / place.next_h
            gradient = self.algebra.gradient(place.x, middle + ratio * (now - middle))
            place.step, _ = self.algebra.newton_step(ratio * inner, gradient)

    def _offsets(self, extras: FloatArray) -> tuple[float, tuple[float, ...]]:
        """What the constant adds to scores (0 without one), and the multipliers."""
        frame = self.algebra.frame
        constant = frame.constant * float(np.sum(extras[: frame.first]))
        return constant, tuple(extras[frame.first :].tolist())

    def _dual_point(self, v: FloatArray, sums: FloatArray) -> tuple[float, FloatArray] | None:
        """D less ``1/2 ||w||^2`` and w(alpha) of a feasible alpha with these terms, if there is
        one."""
        scales = self.algebra.frame.scales(v)
        if scales is None:
            return None
        return self.algebra.frame.value(scales, sums), self.algebra.features(scales @ v)

    def _add_middle(self, place: Place) -> None:
        """A dual point to begin with where too few rows are in the zone: what w = 0 reads."""
        stack, totals = self.fleet.round({"kind": "middle"})
        largest = self.algebra.frame.largest(self.design.column_bound)
        v = exact.read(totals, "v", self.program.weight_bound * largest)
        point = self._dual_point(v, stack.sum(axis=0))
        if point is None:  # the rows' weights have no digits left in sums that hold both
            raise InputError(
                f"a feature reaches {self.design.column_bound:.2g}, and sums of such features and "
                "of the rows' weights cannot be told apart: scale the data (StandardScaler, or "
                "`--scale standard`)"
            )
        frame, unit = self.algebra.frame, self.algebra.unit
        nothing = Reading(np.zeros(self.design.width), 0.0, unit, multiplier=(0.0,) * frame.groups)
        place.bundle.add(nothing, *point)

    def _steer(self, place: Place) -> None:
        """The step over all rows, from a place whose second moment was not summed."""
        assert place.point is not None
        message = self._gradient_message(place, place.point.primal)
        stack, totals = self.fleet.round(message)
        self._finish(place, message, stack, totals, place.point.primal, known=True)

    # -- checkpoints ---------------------------------------------------------------------------
    def _meta(self, place: Place) -> dict[str, Any]:
        assert place.point is not None
        saved = {
            **place.to_dict(),
            "primal": place.point.primal,
            "unit": self.algebra.unit,
            "largest": self.largest,
            "zero": self.zero,
            "passes": self.passes,
        }
        return {"solver": saved, **({} if place.known is None else {"moment": place.known.moment})}

    def restore(self, program: NewtonProgram, meta: dict[str, Any]) -> Place:
        """The place that ``_meta`` describes: one gradient round over the restored shards."""
        saved = meta["solver"]
        self.program, self.algebra.unit, self.largest = program, saved["unit"], saved["largest"]
        self.zero = saved.get("zero", False)
        self.passes = list(saved.get("passes", [0, 0]))  # checkpoints of before have none
        place = Place.from_dict(self.algebra.metric, saved, meta.get("moment"))
        message = self._gradient_message(place, saved["primal"], saved["stepped"])
        stack, totals = self.fleet.round(message)
        self._finish(place, message, stack, totals, saved["primal"], known=True)
        return place
