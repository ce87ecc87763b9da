"""One Newton run as its coordinator sees it: rounds, line search, smoothing, checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.features.design import Design, scores, weighted_columns
from bigscreen.fleet.protocol import Fleet
from bigscreen.numerics import reproducible
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Mu
from bigscreen.problems.point import Point, Reading, SumLayout
from bigscreen.problems.recipes import Problem
from bigscreen.screening.regions import Ball
from bigscreen.solvers.newton.algebra import Algebra, averaged
from bigscreen.solvers.newton.local import Local
from bigscreen.solvers.newton.place import Bundle, Place, Trial, Zone, next_h
from bigscreen.solvers.newton.shard import NearbyRows, NewtonProgram
from bigscreen.solvers.protocol import Check

STEP_LENGTHS = np.array([0.0, 1.0, 1.4, 0.75, 0.55, 0.4, 0.28, 0.18, 0.1, 0.05, 0.02, 0.005])
SHORTEST = 1e-6
"""Step lengths below this are not tried: rounding hides what they would gain."""

NEGLIGIBLE = 1e-6
"""A w, or a zone, below this part of what it could be is nothing."""

LEAST_SIZE = 64
"""Below so many features the algebra costs less than it takes to hand rows over."""

ENTRIES = 16_000_000
"""Features of the rows at hand, at most."""

PART = 0.4
"""Part of all rows that may be at hand: of more, a pass costs hardly more than a step."""

REACHES = np.array([1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0])
"""How far the rows at hand may be from their kink, in units of h."""

LEAST_TOL = 1e-6
"""Closer than this the float32 features of the rows at hand lead astray."""

GROWTH = 1.5
"""How many times as many rows there is room for as are taken in at first."""

SHORT = 0.1
"""A step that has to be cut to less than this had too few rows at hand: better one over all."""

LOWER = 2.0
"""By how much h may fall between two passes while rows leave their side in many places."""

FEW_CROSSED = 0.02
"""So many rows that left their side, as a part of those at hand, are few."""

ROUNDS = 8
"""Passes before rows are picked anew."""

GRID = np.array([0.0, 1.0, 0.85, 0.7, 0.55, 0.4, 0.28, 0.18, 0.1, 0.05, 0.02, 0.005])


class NewtonRun:
    """One run: the rounds of the coordinator, and what it concludes from their sums."""

    def __init__(self, options: Any, design: Design, problem: Problem, fleet: Fleet) -> None:
        self.options, self.design, self.problem, self.fleet = options, design, problem, fleet
        self.algebra = Algebra(design, SumLayout.of(problem, design.data))
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
                    "rows_visited": place.passed.visited,
                    "rows_alive": place.passed.alive,
                    "fixed_hi": place.passed.fixed[0],
                    "fixed_lo": place.passed.fixed[1],
                    "decrement": place.decrement,
                    "full_passes": self.passes[0],
                    "partial_passes": self.passes[1],
                    "stalled": place.stalled >= 3 or self._vanished(place),
                },
                lambda folder, meta: self.fleet.save(folder, {**meta, **self._meta(place)}),
            )
            if verdict is None:
                return place.point
            place.passed.fixed = (0, 0)
            if verdict.region is not None:
                place.passed.fixed = self.screen(place, verdict.region)
            if verdict.restart:
                # The rows that come back can be far off: start them in a wider zone.
                place.h = min(self.algebra.unit, 16 * place.h)
                self.open(self.program)
                self.enter(place)
                continue
            if self.approach(place):
                continue
            if place.step is None:
                self._steer(place)
            assert place.step is not None
            self.take(place, self.seek(place, place.step, STEP_LENGTHS, place.next_h))

    def _vanished(self, place: Place) -> bool:
        """Whether w* = 0 as far as anyone could tell: no relative gap has a meaning then.

        Where alpha has a total to meet, the rows' hulls can overlap (nu-SVC) or hold the origin
        (one-class), and P* is 0. (On the way to another P* it is 0 in passing, at a wide zone.)
        """
        assert place.point is not None
        unit, total = self.algebra.unit, float(np.sum(self.algebra.frame.total))
        tiny = abs(place.point.primal) <= NEGLIGIBLE**2 * unit * total
        return total > 0 and tiny and place.h <= NEGLIGIBLE * unit

    def origin(self) -> Place:
        """w = 0 and a zone as wide as gradients are there: every row is in it."""
        return Place(np.zeros(self.algebra.size), 0.0, Bundle(self.algebra.metric), zone=Zone(1))

    def start_at(self, alpha: FloatArray) -> Place:
        """The place of w(alpha); multipliers are those that minimise P there."""
        design, problem, fleet = self.design, self.problem, self.fleet
        frame = self.algebra.frame
        data = design.data
        dual = problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
        sums = weighted_columns(design, dual.sign * alpha, fleet)
        w, constant = design.features(sums[:-1]), frame.constant * sums[-1:][: frame.first]
        mu = np.empty(0)
        if frame.groups:
            own = frame.constant * float(np.sum(constant))
            found = scores(design, design.coef(w), fleet) + own
            mu = np.atleast_1d(dual.multiplier(found))
        x = np.concatenate([w, constant, mu])
        place = self.origin()
        place.given = dual.value(alpha, 2 * self.algebra.quadratic(x))
        place.x = x
        return place

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
        place.zone.rows = int(place.zone.rows * growth)
        place.past, place.errors, place.bundle = [], [], Bundle(self.algebra.metric)
        place.average = None
        still = np.zeros(self.algebra.size)
        self.take(place, self.seek(place, still, STEP_LENGTHS[:1], place.h))

    # -- rounds --------------------------------------------------------------------------------
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
        place.passed.visited, place.passed.alive = int(found[0]), int(found[1])
        self.passes[place.passed.visited < self.design.data.n_rows] += 1
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
            stack, _ = self.fleet.round({**message, "scored": True, "steps": steps})
            losses = stack.sum(axis=0)[2:]
        primal, cost = float(regular[k] + plain[k]), float(smooth[k] - plain[k])
        # Scores along the step mix those of both its ends, and extrapolate them a little.
        return Trial(step, steps, k, h, primal, cost, 3.0 * float(message["slack"]))

    def take(self, place: Place, trial: Trial, nearby: bool = False) -> None:
        """Go where the last trial found P least, and sum the gradient there.

        With the zone's second moment, which a step over all rows is made of, unless the next step
        can be over rows nearby. ``nearby``: the last one was.
        """
        h, k, moving = trial.h, trial.best, len(trial.steps) > 1
        moment = False
        if not nearby:
            # At another h the rows nearby may do again.
            place.local = place.local or h < place.h
            moment = not self.within_reach(place, h, float(trial.steps[k]))
        if place.given is not None:
            gap = max(trial.primal - place.given, self.options.tol * abs(trial.primal))
            h = self.suit(place, trial.cost, gap)
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
        place.zone.expected = place.zone.rows
        return {
            "kind": "gradient",
            "h": place.h,
            "wide": place.wide * place.h,
            "stride": max(1, round(place.zone.rows / most)) if moment else 0,
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
        totals: reproducible.Totals,
        primal: float,
        known: bool = False,
    ) -> None:
        """The dual point, the gap and the next Newton step from the sums of a gradient pass.

        ``known``: the bundle holds this dual point already (a checkpoint's).
        """
        program, h = self.program, place.h
        largest = self.algebra.frame.largest(self.design.column_bound)
        box = program.most_alpha(message)
        v = reproducible.read(totals, "v", box * largest)
        found = stack.sum(axis=0)
        place.zone.rows, place.zone.weight = int(found[-2]), float(found[-1])

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
            inner = reproducible.read(totals, "moment", program.moment_bound(message))
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
        """D less ``1/2 ||w||^2`` and w(alpha) of a feasible alpha with these terms, if there is."""
        scales = self.algebra.frame.scales(v)
        if scales is None:
            return None
        return self.algebra.frame.value(scales, sums), self.algebra.features(scales @ v)

    def _add_middle(self, place: Place) -> None:
        """A dual point to begin with where too few rows are in the zone: what w = 0 reads."""
        stack, totals = self.fleet.round({"kind": "middle"})
        largest = self.algebra.frame.largest(self.design.column_bound)
        v = reproducible.read(totals, "v", self.program.weight_bound * largest)
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

    def suit(self, place: Place, cost: float, gap: float) -> float:
        """The smoothing h that costs a tenth of ``gap``, where h = unit costs ``cost``.

        What smoothing costs grows with h^2 while margins are spread evenly. (A tenth: from a third
        to a hundredth take as many passes, wider ones leave the start behind.)
        """
        place.given = None
        unit = self.algebra.unit
        h = unit * (1.0 if cost <= 0 else float(np.clip(np.sqrt(0.1 * gap / cost), 1e-6, 1.0)))
        # So many rows of average weight, their margins spread evenly, cost that at h = unit.
        share = 12 * h * cost / unit**2 / max(self.program.weight_bound, 1e-300)
        place.zone.rows = int(min(1.0, share) * self.design.data.n_rows)
        return h

    # -- rows nearby ---------------------------------------------------------------------------
    def approach(self, place: Place) -> bool:
        """Minimise over the rows nearby, taking in those that every pass finds to have moved.

        Returns False, with the place as it was, where that is not worth it.
        """
        reach = self.within_reach(place, place.h)
        if not reach:
            return False
        assert place.point is not None and place.gradient is not None
        most, counts = self._most(place), self._pick(reach=reach)
        if self._sent(counts) > 2 * ENTRIES:
            place.local = False
            return False
        room = max(most, int(counts.sum()))
        local = Local(self.algebra, place.x, place.gradient, place.h, room)
        local.add(self._gather(place, counts, local.room))
        gap, lowest = self.options.tol * abs(place.point.primal), place.h / LOWER
        trial = None
        for _ in range(ROUNDS):
            taken = local.solve(gap, lowest)
            if taken == 0 and trial is None:
                # The place was thought to be the end, and is not: smoothing's cost was too rosy.
                taken = local.solve(gap / 4, 0.0)
            if taken <= 0 and trial is None:
                break
            trial = self.seek(place, local.x - place.x, GRID, local.h)
            gap = self.options.tol * abs(trial.primal)
            counts = self._pick(h=local.h)
            found = int(counts.sum())
            fit = len(local.G) + found <= most and self._sent(counts) <= 2 * ENTRIES
            if not fit or not (found or lowest):
                break
            # Many rows that moved make another place of this one: no use in a small h as yet.
            lowest = 0.0 if found <= FEW_CROSSED * len(local.G) else local.h
            if found:
                local.add(self._gather(place, counts, local.room))
        if trial is None or trial.steps[trial.best] < SHORT:
            place.local = False
            return False
        place.decrement = local.decrement
        self.take(place, trial, nearby=True)
        return True

    def within_reach(self, place: Place, h: float, t: float | None = None) -> float:
        """How far from their kink the rows may be that are taken in; 0 where that is not worth it.

        ``t``: at that step of the trial that has just been made.
        """
        if not place.local or self.algebra.size < LEAST_SIZE:
            return 0.0
        # Squared losses bend everywhere above their kink: no few rows are all that matter.
        if self.algebra.frame.curved:
            return 0.0
        # Features are float32 here; a subsample is left early, and a start has its h to find first.
        if self.options.tol < LEAST_TOL:
            return 0.0
        if self.program.stride > 1 or place.given is not None:
            return 0.0
        counts = self._ask("within", reaches=REACHES * h, t=t).sum(axis=0)
        fit = np.flatnonzero(counts * GROWTH <= self._most(place))
        return float(REACHES[fit[-1]] * h) if len(fit) else 0.0

    def _most(self, place: Place) -> int:
        """Rows at hand, at most."""
        return min(ENTRIES // self.algebra.size, int(PART * place.passed.alive))

    def _ask(self, kind: str, **what: Any) -> FloatArray:
        return self.fleet.round({"kind": kind, **what})[0]

    def _sent(self, counts: NDArray[np.int64]) -> int:
        """Numbers that come for so many rows: every shard sends as much as the one with most."""
        return int(counts.max()) * len(counts) * self.algebra.size

    def _pick(self, **what: Any) -> NDArray[np.int64]:
        """How many rows every shard has picked."""
        return self._ask("pick", **what)[:, 0].astype(np.int64)

    def _gather(
        self, place: Place, counts: NDArray[np.int64], room: NDArray[np.float32]
    ) -> NearbyRows:
        """The rows just picked, with their G at the place; their features go into ``room``."""
        coef, extras = self.algebra.coef(place.x)
        most = int(counts.max())
        stack = self._ask("gather", coef=coef, extras=extras, most=most, alone=True)
        return NearbyRows.unpacked(stack, counts, room)

    # -- screening -----------------------------------------------------------------------------
    def screen(self, place: Place, region: Ball) -> tuple[int, int]:
        """Let every shard fix what the region proves; w, and so every score, stays as it is.

        Returns the rows newly fixed at hi, and elsewhere.
        """
        frame, design = self.algebra.frame, self.design
        if frame.curved and frame.groups:
            return 0, 0  # no interval of scores bounds the multiplier: P has no kinks in it
        coef, extras = self.algebra.coef(place.x)
        message: dict[str, Any] = {
            "region": region,
            "slack": design.score_error(coef),
            "multipliers": np.where(np.arange(len(extras)) < frame.first, 0.0, extras),
            **self.algebra.travel(place.past, place.errors, [place.x]),
        }
        reach = (
            float(np.linalg.norm(place.x)) + region.radius + float(np.max(message["travel"][:-1]))
        )
        widest = 2.0 * (self.largest + reach * design.largest_norm)
        ends = np.array([self._interval(message, g, widest) for g in range(frame.groups)])
        low, high = ends.reshape(-1, 2).T
        message["mu"] = _as_mu(low), _as_mu(high)
        stack, _ = self.fleet.round({**message, "kind": "screen"})
        return int(stack[:, 0].sum()), int(stack[:, 1].sum())

    def _interval(self, message: dict[str, Any], group: int, widest: float) -> tuple[float, float]:
        """An interval that holds mu*: bisection on the weighted order statistics (maths.md 3).

        Every round counts weight below 65 candidates; four rounds leave 1e-7 of the range
        ``[-widest, widest]``, and both ends are rounded outwards.
        """
        total = float(self.algebra.frame.total[group])
        ends = []
        for k, outward in enumerate((-1, 1)):
            low, high = -widest, widest
            for _ in range(4):
                grid = np.linspace(low, high, 65)
                asked = {**message, "kind": "quantiles", "grid": grid, "group": group}
                stack, _ = self.fleet.round(asked)
                found = stack.sum(axis=0)
                below, threshold = found[65 * k : 65 * (k + 1)], found[-2] - total
                # found[-1] is the total weight: slack for the rounding of the sums.
                enough = below >= threshold + outward * 1e-9 * found[-1]
                if not enough[-1] or enough[0]:
                    low, high = (-np.inf, -widest) if enough[0] else (widest, np.inf)
                    break
                first = int(np.argmax(enough))
                low, high = float(grid[first - 1]), float(grid[first])
            ends.append(low if outward < 0 else high)
        return ends[0], ends[1]

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


def _as_mu(values: np.ndarray) -> Mu:
    return values if len(values) > 1 else float(np.sum(values))
