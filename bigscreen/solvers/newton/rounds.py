"""What a Newton's coordinator asks of the shards, and what it concludes from their sums."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.columns import TUNING
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fleet.protocol import Fleet
from bigscreen.numerics import reproducible
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Mu
from bigscreen.problems.point import Point, Reading, SumLayout
from bigscreen.problems.recipes import Problem
from bigscreen.screening.regions import Ball
from bigscreen.solvers.newton.algebra import Algebra, averaged
from bigscreen.solvers.newton.place import Place, Trial, next_h
from bigscreen.solvers.newton.sampled import (
    MORE_ROWS,
    SAMPLE_ROWS,
    Hessians,
    Sample,
    large,
)
from bigscreen.solvers.newton.shard import NewtonProgram
from bigscreen.solvers.newton.tuning import NewtonTuning


class Rounds:
    """The rounds of one run: score passes, gradient passes, screening."""

    def __init__(self, options: Any, design: Design, problem: Problem, fleet: Fleet) -> None:
        self.options, self.design, self.problem, self.fleet = options, design, problem, fleet
        self.tuning: NewtonTuning = options.tuning
        self.algebra = Algebra(design, SumLayout.of(problem, design.data))
        self.large, self.hessians = large(design), Hessians()
        self.program: NewtonProgram
        self.largest = 0.0
        """At least every row's ``|p| + e``."""
        self.zero = False
        """Whether alpha = 0 is feasible."""
        self.passes = [0, 0]
        """Passes that have scored all rows, and some of them."""
        self.inside = 0
        """Rows that were near enough to their kink, when that was last asked."""
        self.ahead = False
        """Whether another solver takes over where few rows are near their kink."""
        self.read = 0
        """Rows scored since they were last reported, as often as they were."""
        self.row_bytes = design.data.row_bytes

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

    def seek(
        self,
        place: Place,
        step: FloatArray,
        steps: FloatArray,
        h: float,
        near: FloatArray | None = None,
    ) -> Trial:
        """Score pass along ``step``, and where on the grid P smoothed by h is least.

        ``near`` (passes + 1,): of the rows that were last scored in each pass only those so near
        to their kink are looked at, and P is that with all others on their sides: no more than P.
        """
        end = place.x + step
        ends = [self.algebra.coef(place.x), self.algebra.coef(end)]
        reach = [place.x, place.x + steps.max() * step]
        message: dict[str, Any] = {
            "kind": "trial",
            "h": h,
            "steps": steps,
            "coefs": np.stack([coef for coef, _ in ends], axis=1),
            "extras": np.stack([extras for _, extras in ends], axis=1),
            "slack": self._rounding([coef for coef, _ in ends]),
            "near": near,
            **self.algebra.travel(place.past, place.errors, reach),
        }
        stack, _ = self.fleet.round(message)
        found, place.held = stack.sum(axis=0), near is not None
        place.passed.visited, place.passed.alive = int(found[0]), int(found[1])
        self.passes[place.passed.visited < self.design.data.n_rows] += 1
        self.read += place.passed.visited
        losses = found[2:]
        while True:
            smooth, plain = losses.reshape(2, -1)
            regular = np.array([self.algebra.regular(place.x + t * step) for t in steps])
            k = int(np.argmin(regular + smooth))
            if k > 0 or steps[-1] < self.tuning.shortest_step:
                break
            # Far from the optimum of a small h only tiny steps decrease: look among them. This
            # costs no pass, the scores along the step are known.
            steps = steps * steps[-1]
            stack, _ = self.fleet.round({**message, "scored": True, "steps": steps})
            losses = stack.sum(axis=0)[2:]
        primal, cost = float(regular[k] + plain[k]), float(smooth[k] - plain[k])
        # Scores along the step mix those of both its ends, and extrapolate them a little.
        return Trial(step, steps, k, h, primal, cost, 3.0 * float(message["slack"]))

    def _rounding(self, coefs: list[FloatArray]) -> float:
        """How far scores at any of these coefficients may be from those of float64 columns.

        A few rows are seen with both; what could happen at most is thousands of times as much.
        """
        design = self.design
        most = max(design.score_error(coef) for coef in coefs)
        if design.kernel is None:
            return most
        stack, _ = self.fleet.round({"kind": "rounding", "coefs": np.stack(coefs, axis=1)})
        own = max(design.score_error(coef, np.float64) for coef in coefs)
        return min(most, TUNING.sample_factor * float(stack.max()) + own)

    def sides(self) -> NDArray[np.int8]:
        """Which side every row is on (n,): ``FREE`` where it is in the zone, or nobody knows."""
        data = self.design.data
        parts = self._ask("sides").view(np.int8)
        shards = (data.shard(s) for s in range(data.n_shards))
        return np.concatenate([own[: b - a] for own, (a, b) in zip(parts, shards, strict=True)])

    def _ask(self, kind: str, **what: Any) -> FloatArray:
        return self.fleet.round({"kind": kind, **what})[0]

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
        place.zone.most = int(stack[:, -2].max())

        coef, extras = self.algebra.coef(place.x)
        constant, multiplier = self._offsets(extras)
        reading = Reading(coef, constant, h, multiplier=multiplier)
        alone = self._dual_point(v[:-1], found[:-2])
        if not known and not place.held:
            if alone is not None:
                place.bundle.add(reading, *alone)
            elif not place.bundle.lin:
                self._add_middle(place)
        bundle = place.bundle
        readings: tuple[Reading, ...] = (reading,)
        dual, w_alpha = -np.inf, place.x
        if alone is not None:
            dual, w_alpha = alone[0] - self.algebra.quadratic(alone[1]), alone[1]
        if bundle.lin and not place.held and primal - dual > self.options.tol * abs(primal):
            # A mixture makes the closing pass dearer: only where this alpha alone is not enough.
            dual, readings, w_alpha = bundle.dual, bundle.mixture(), bundle.features()
        if self.zero and dual < 0:
            dual, readings, w_alpha = 0.0, (), np.zeros(len(place.x))  # alpha = 0 is better
        error = place.errors[-1]
        place.point = Point(
            coef,
            place.x[: self.design.rank],
            constant + self.problem.offset(self.algebra.frame.mu(extras)),
            primal,
            dual,
            paired=False,
            readings=readings,
            rounding=self._doubt(place, w_alpha, box, error),
            multiplier=multiplier,
            apart=float(np.sqrt(2 * self.algebra.quadratic(place.x - w_alpha))),
            held=place.held,
        )

        now, middle = v[: self.algebra.frame.buckets].sum(axis=0), v[-1]
        place.gradient = gradient = self.algebra.gradient(place.x, now)
        place.gradient_cost = 0.5 * float(gradient @ gradient)
        place.step, place.sums = None, (now, middle)
        if not message["stride"]:
            if place.sample is None and self.refines(place):
                place.sample = self._sample(place)
            if place.sample is not None:
                # Its zone may be that of a place before: good enough to tell what is left.
                solved = self.hessians.of(self.algebra, place.sample).solve(gradient)
                place.decrement = 0.5 * place.kept * float(gradient @ solved)
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
        self.expect(place, gradient)

    def refines(self, place: Place) -> bool:
        """Whether steps are made by products with the zone's rows, not of their second moment."""
        if self.large:
            return True
        if self.algebra.frame.curved or self.algebra.size < self.tuning.min_columns_refined:
            return False
        return place.zone.rows > self.tuning.wide_band_rows_per_column * self.algebra.size

    def expect(self, place: Place, gradient: FloatArray) -> None:
        """Say how far the step, made of this gradient, is to move scores of the zone's rows."""
        assert place.step is not None
        h = min(place.h, place.next_h)
        # Bend times the square of what it moves a row's score by adds up to twice what it promises.
        promised = -2.0 * h * float(gradient @ place.step)
        place.expected = float(np.sqrt(max(promised, 0.0) / max(place.zone.weight, 1e-300)))

    def _sample(self, place: Place) -> Sample:
        """Rows of the zone, spread evenly, to make a Hessian of."""
        rows = (SAMPLE_ROWS if self.large else MORE_ROWS) * self.algebra.size
        stride = max(1, int(place.zone.rows / rows))
        most = -(-place.zone.most // stride)
        stack = self._ask("sampled", h=place.h, stride=stride, most=most)
        assert place.gradient is not None
        table = stack.reshape(len(stack) * most, 2 + self.algebra.frame.extras)
        return Sample.unpacked(table, self.algebra.damping(place.gradient))

    def _doubt(self, place: Place, w_alpha: FloatArray, box: float, error: float) -> float:
        """What rounding can have put into a gap of the problem with the columns as they are.

        Rows at a side move P and D alike, those of the zone by an error of their score; and sums
        are rounded, by six standard deviations of as many roundings as there are rows in a shard.
        """
        design, frame = self.design, self.algebra.frame
        most = frame.largest(design.column_bound)
        size = sum(
            float(np.sum(np.abs(part))) for x in (place.x, w_alpha) for part in self.algebra.coef(x)
        )
        rows = 6.0 * np.sqrt(design.data.shard_rows + design.width)
        summed = 2.0**-53 * rows * box * (most * size + self.largest)
        if frame.curved:
            return float((box + self.program.weight_bound * error) * error + summed)
        return float(place.zone.weight * error + summed)

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
        point = self._dual_point(v[:-1], stack.sum(axis=0))
        if point is None:  # the rows' weights have no digits left in sums that hold both
            raise InputError(
                f"a feature reaches {self.design.column_bound:.2g}, and sums of such features and "
                "of the rows' weights cannot be told apart: scale the data (StandardScaler, or "
                "`--scale standard`)"
            )
        frame, unit = self.algebra.frame, self.algebra.unit
        nothing = Reading(np.zeros(self.design.width), 0.0, unit, multiplier=(0.0,) * frame.groups)
        place.bundle.add(nothing, *point)

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
            "slack": place.errors[-1],
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


def _as_mu(values: np.ndarray) -> Mu:
    return values if len(values) > 1 else float(np.sum(values))
