"""Rounds of a Newton run: the messages that the coordinator sends to shards, and their sums."""

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
from bigscreen.solvers.newton.iterate import Iterate, Trial, choose_h
from bigscreen.solvers.newton.sampled import Sample, SampledHessian, is_wide
from bigscreen.solvers.newton.shard import NewtonProgram
from bigscreen.solvers.newton.tuning import NewtonTuning


class Rounds:
    """Score passes, gradient passes and screening of one Newton run.

    Parameters
    ----------
    options : Newton
    design : Design
    problem : Problem
    fleet : Fleet

    Attributes
    ----------
    program : NewtonProgram
        What the shards run: all rows, or a subsample.
    wide : bool
        Whether there are too many landmarks for second moments, see `is_wide`.
    """

    def __init__(self, options: Any, design: Design, problem: Problem, fleet: Fleet) -> None:
        """Keep the arguments; ``open`` starts a program."""
        self.options, self.design, self.problem, self.fleet = options, design, problem, fleet
        self.tuning: NewtonTuning = options.tuning
        self.algebra = Algebra(design, SumLayout.of(problem, design.data), self.tuning)
        self.wide = is_wide(design)
        self.program: NewtonProgram
        self.largest = 0.0
        """Upper bound of every row's ``|p| + e``."""
        self.zero_is_feasible = False
        """Whether alpha = 0 is feasible."""
        self.passes = [0, 0]
        """Passes that have scored all rows, and passes that have scored some of them."""
        self.near_rows = 0
        """Rows within reach of their hinge point, as last counted."""
        self.successor_waits = False
        """Whether another solver takes over once few rows are near their hinge point."""
        self.rows_read = 0
        """Rows scored since the last report (a row counts once for each pass that scored it)."""
        self.row_bytes = design.data.row_bytes
        self._hessian: SampledHessian | None = None

    def open(self, program: NewtonProgram) -> bool:
        """Start a program on every shard and measure its rows.

        Returns whether some alpha meets the coupling: for a subsample there may be none.
        """
        self.program = program
        self.fleet.start(program, self.design.data.n_shards)
        stack, _ = self.fleet.round({"kind": "sizes"})
        weight, lin, sqnorm = stack[:, :3].sum(axis=0)
        total = self.algebra.frame.total
        # Gradients are p at w = 0; if all p are 0, the unit is a score of sum alpha = total.
        unit = lin / max(weight, 1e-300) or float(total.sum()) * sqnorm / max(weight, 1e-300)
        self.algebra.unit, self.largest = float(unit) or 1.0, float(stack[:, 3].max())
        self.zero_is_feasible = not np.any(total) and float(stack[:, 4].max()) <= 0
        most = stack[:, 5:].sum(axis=0)[: len(total)]
        return bool(np.all(most * (1 + 1e-9) >= total))

    def search_line(
        self,
        iterate: Iterate,
        step: FloatArray,
        steps: FloatArray,
        h: float,
        near: FloatArray | None = None,
    ) -> Trial:
        """Score rows along ``step``, and find the step length at which the smoothed P is least.

        Parameters
        ----------
        iterate : Iterate
        step : float64 (size,)
        steps : float64 (k,)
            Step lengths to compare.
        h : float
            Smoothing of P.
        near : float64 (passes + 1,) or None
            Score only rows within this distance of their hinge point, by the pass that they were
            last scored in; all others are held to their sides. P is then a lower bound.
        """
        end = iterate.x + step
        ends = [self.algebra.coef(iterate.x), self.algebra.coef(end)]
        segment = [iterate.x, iterate.x + steps.max() * step]
        message: dict[str, Any] = {
            "kind": "trial",
            "h": h,
            "steps": steps,
            "coefs": np.stack([coef for coef, _ in ends], axis=1),
            "extras": np.stack([extras for _, extras in ends], axis=1),
            "slack": self._measure_rounding([coef for coef, _ in ends]),
            "near": near,
            **self.algebra.bound_moves(iterate.past, iterate.score_errors, segment),
        }
        stack, _ = self.fleet.round(message)
        found, iterate.has_held_rows = stack.sum(axis=0), near is not None
        iterate.counts.visited, iterate.counts.alive = int(found[0]), int(found[1])
        self.passes[iterate.counts.visited < self.design.data.n_rows] += 1
        self.rows_read += iterate.counts.visited
        losses = found[2:]
        while True:
            smooth, plain = losses.reshape(2, -1)
            regular = np.array([self.algebra.regular(iterate.x + t * step) for t in steps])
            k = int(np.argmin(regular + smooth))
            if k > 0 or steps[-1] < self.tuning.shortest_step:
                break
            # Far from the optimum of a small h only tiny steps decrease P: compare them. This needs
            # no pass, as the scores along the step are known.
            steps = steps * steps[-1]
            stack, _ = self.fleet.round({**message, "scored": True, "steps": steps})
            losses = stack.sum(axis=0)[2:]
        primal, cost = float(regular[k] + plain[k]), float(smooth[k] - plain[k])
        # Scores along the step mix those of both its ends, and extrapolate them a little.
        return Trial(step, steps, k, h, primal, cost, 3.0 * float(message["slack"]))

    def _measure_rounding(self, coefs: list[FloatArray]) -> float:
        """Bound how far float32 columns move any score at these coefficients.

        A few rows are scored with float64 columns too. (The worst case is thousands of times as
        far.)
        """
        design = self.design
        most = max(design.score_error(coef) for coef in coefs)
        if design.kernel is None:
            return most
        stack, _ = self.fleet.round({"kind": "rounding", "coefs": np.stack(coefs, axis=1)})
        exact = max(design.score_error(coef, np.float64) for coef in coefs)
        return min(most, TUNING.sample_factor * float(stack.max()) + exact)

    def sides(self) -> NDArray[np.int8]:
        """Collect the side of every row (n,): ``FREE`` if it is in the band, or has no score."""
        data = self.design.data
        parts = self._round("sides").view(np.int8)
        shards = (data.shard(s) for s in range(data.n_shards))
        return np.concatenate([part[: b - a] for part, (a, b) in zip(parts, shards, strict=True)])

    def _round(self, kind: str, **content: Any) -> FloatArray:
        """Send one message to all shards; returns their answers (shards, ...)."""
        return self.fleet.round({"kind": kind, **content})[0]

    def _gradient_message(
        self, iterate: Iterate, primal: float, moment: bool = True
    ) -> dict[str, Any]:
        """Make the message of a gradient pass.

        ``primal``: P of the iterate; ``moment``: also sum the second moment of the band's rows.
        """
        most = self.tuning.moment_rows_per_column * self.design.width
        iterate.band.expected = iterate.band.rows
        curved = self.algebra.frame.curved
        return {
            "kind": "gradient",
            "h": iterate.h,
            "wide": iterate.widening * iterate.h,
            "stride": max(1, round(iterate.band.rows / most)) if moment else 0,
            "turn": iterate.average.passes if iterate.average else 0,
            **({"alpha_sum": self._bound_alpha_sum(primal)} if curved else {}),
        }

    def _bound_alpha_sum(self, primal: float) -> float:
        """Bound ``sum |alpha|`` for squared losses, by ``primal``, the P of the iterate."""
        reach = self.program.weight_bound
        # alpha^2 / (2 reach) is a row's loss: Cauchy and Schwarz bound the sum. The rest covers
        # what rounding of scores can have taken from P.
        return float(np.sqrt(2.0 * reach * max(primal, 0.0))) * 1.001 + 1e-9 * reach * self.largest

    def _sum_gradient(
        self,
        iterate: Iterate,
        message: dict[str, Any],
        primal: float,
        bundled: bool = False,
    ) -> None:
        """Run a gradient pass: set the iterate's point (and so its gap), gradient and next step.

        Parameters
        ----------
        iterate : Iterate
        message : dict
            See ``_gradient_message``.
        primal : float
            P of the iterate.
        bundled : bool
            Whether the bundle has this iterate's dual point already.
        """
        stack, totals = self.fleet.round(message)
        alpha_sum = self.program.bound_alpha_sum(message)
        v_bound = alpha_sum * self.algebra.frame.largest(self.design.column_bound)
        v = reproducible.read(totals, "v", v_bound)
        found = stack.sum(axis=0)
        iterate.band.rows, iterate.band.weight = int(found[-2]), float(found[-1])
        iterate.band.most = int(stack[:, -2].max())
        self._set_point(iterate, primal, v[:-1], found[:-2], alpha_sum, bundled)

        band_v, middle_v = v[: self.algebra.frame.buckets].sum(axis=0), v[-1]
        iterate.gradient = gradient = self.algebra.gradient(iterate.x, band_v)
        iterate.gradient_cost = 0.5 * float(gradient @ gradient)
        iterate.step, iterate.band_sums = None, (band_v, middle_v)
        if message["stride"]:
            moment = np.zeros((len(gradient), len(gradient)))  # if the band is empty
            if "moment" in totals:
                bound = self.program.moment_bound(message)
                moment = reproducible.read(totals, "moment", bound)
            self._set_exact_step(iterate, moment, message["stride"])
            return
        if iterate.sample is None and self.uses_cg(iterate):
            iterate.sample = self._draw_sample(iterate)
        if iterate.sample is not None:
            # The sample may be of an earlier iterate's band: good enough to predict the decrease.
            solved = self.precondition(iterate.sample, gradient)
            iterate.decrement = 0.5 * iterate.kept_decrease * float(gradient @ solved)

    def _set_point(
        self,
        iterate: Iterate,
        primal: float,
        v: FloatArray,
        sums: FloatArray,
        alpha_sum: float,
        bundled: bool,
    ) -> None:
        """Set the iterate's point: its P, and the best dual point that is known.

        ``v``, ``sums``: the sums of `Terms` over all rows; ``alpha_sum``: bound on ``sum |alpha|``;
        ``bundled``: whether the bundle has this iterate's dual point already.
        """
        coef, extras = self.algebra.coef(iterate.x)
        constant, multiplier = self._offsets(extras)
        reading = Reading(coef, constant, iterate.h, multiplier=multiplier)
        single = self._dual_point(v, sums)
        bundle, held = iterate.bundle, iterate.has_held_rows
        if not bundled and not held:
            if single is not None:
                bundle.add(reading, *single)
            elif not bundle.lin:
                self._add_middle(iterate)
        readings: tuple[Reading, ...] = (reading,)
        dual, w_alpha = -np.inf, iterate.x
        if single is not None:
            dual, w_alpha = single[0] - self.algebra.quadratic(single[1]), single[1]
        if bundle.lin and not held and primal - dual > self.options.tol * abs(primal):
            # A mixture makes the closing pass slower: use it only if this alpha is not enough.
            dual, readings, w_alpha = bundle.dual, bundle.mixture(), bundle.features()
        if self.zero_is_feasible and dual < 0:
            dual, readings, w_alpha = 0.0, (), np.zeros(len(iterate.x))  # alpha = 0 is better
        error = iterate.score_errors[-1]
        iterate.point = Point(
            coef,
            iterate.x[: self.design.rank],
            constant + self.problem.offset(self.algebra.frame.mu(extras)),
            primal,
            dual,
            paired=False,
            readings=readings,
            rounding=self._bound_rounding(iterate, w_alpha, alpha_sum, error),
            multiplier=multiplier,
            apart=float(np.sqrt(2 * self.algebra.quadratic(iterate.x - w_alpha))),
            held=held,
        )

    def _set_exact_step(self, iterate: Iterate, moment: FloatArray, stride: int) -> None:
        """Set the Newton step from the second moment of one in ``stride`` rows of the band."""
        gradient, h = iterate.gradient, iterate.h
        assert gradient is not None and iterate.band_sums is not None
        iterate.average_before, iterate.average = iterate.average, None
        if stride > 1:
            iterate.average = averaged(iterate.average_before, moment, h, stride)
            moment = iterate.average.moment
        iterate.step, iterate.decrement = self.algebra.newton_step(moment, gradient)
        iterate.next_h = choose_h(iterate, self.options.tol, tuning=self.tuning) if h else h
        if iterate.next_h < h:
            # Alpha of band rows is linear in z. So this is the exact step of the path in h, as long
            # as no row enters or leaves the band.
            band_v, middle_v = iterate.band_sums
            ratio = h / iterate.next_h
            gradient = self.algebra.gradient(iterate.x, middle_v + ratio * (band_v - middle_v))
            iterate.step, _ = self.algebra.newton_step(ratio * moment, gradient)
        self._predict_move(iterate, gradient)

    def uses_cg(self, iterate: Iterate) -> bool:
        """Whether steps come from conjugate gradients, not from the band's second moment."""
        if self.wide:
            return True
        if self.algebra.frame.curved or self.algebra.size < self.tuning.min_columns_cg:
            return False
        return iterate.band.rows > self.tuning.cg_rows_per_column * self.algebra.size

    def precondition(self, sample: Sample, v: FloatArray) -> FloatArray:
        """Solve ``H x = v`` (size,) with the Hessian H of a sample of band rows.

        The factor of H is kept until the sample changes.
        """
        if self._hessian is None or self._hessian.sample is not sample:
            self._hessian = None  # two would not fit into memory
            self._hessian = SampledHessian(self.algebra, sample)
        return self._hessian.solve(v)

    def _predict_move(self, iterate: Iterate, gradient: FloatArray) -> None:
        """Set the root mean square by which the step moves scores of the band's rows.

        ``gradient`` (size,): the gradient from which the step was computed.
        """
        assert iterate.step is not None
        h = min(iterate.h, iterate.next_h)
        # sum (width_i / 2h) (move of score i)^2 is twice the promised decrease.
        promised = -2.0 * h * float(gradient @ iterate.step)
        mean = max(promised, 0.0) / max(iterate.band.weight, 1e-300)
        iterate.expected_move = float(np.sqrt(mean))

    def _draw_sample(self, iterate: Iterate) -> Sample:
        """Draw rows of the band, spread evenly, for the preconditioner."""
        rows = self.tuning.sample_rows(self.wide) * self.algebra.size
        stride = max(1, int(iterate.band.rows / rows))
        most = -(-iterate.band.most // stride)
        stack = self._round("sample", h=iterate.h, stride=stride, most=most)
        assert iterate.gradient is not None
        table = stack.reshape(len(stack) * most, 2 + self.algebra.frame.extras)
        return Sample.unpacked(table, self.algebra.damping(iterate.gradient))

    def _bound_rounding(
        self, iterate: Iterate, w_alpha: FloatArray, alpha_sum: float, error: float
    ) -> float:
        """Bound what rounding can have added to the gap, given the columns as they are.

        ``w_alpha`` (size,): w(alpha); ``alpha_sum``: bound on ``sum |alpha|``; ``error``: bound on
        a score's error. An error of a score moves P and D alike for rows at a side, so only band
        rows count. Sums are off by six standard deviations of one rounding for each row of a shard.
        """
        design, frame = self.design, self.algebra.frame
        most = frame.largest(design.column_bound)
        size = sum(
            float(np.sum(np.abs(part)))
            for x in (iterate.x, w_alpha)
            for part in self.algebra.coef(x)
        )
        deviations = 6.0 * np.sqrt(design.data.shard_rows + design.width)
        summed = 2.0**-53 * deviations * alpha_sum * (most * size + self.largest)
        if frame.curved:
            return float((alpha_sum + self.program.weight_bound * error) * error + summed)
        return float(iterate.band.weight * error + summed)

    def _offsets(self, extras: FloatArray) -> tuple[float, tuple[float, ...]]:
        """Split extras into what the constant adds to scores (0 without one) and multipliers."""
        frame = self.algebra.frame
        constant = frame.constant * float(np.sum(extras[: frame.first]))
        return constant, tuple(extras[frame.first :].tolist())

    def _dual_point(self, v: FloatArray, sums: FloatArray) -> tuple[float, FloatArray] | None:
        """Scale alpha to be feasible: D without ``1/2 ||w||^2``, and w(alpha); None if impossible.

        ``v`` (terms, m + extras) and ``sums`` (`Terms.sums`) are sums over all rows.
        """
        scales = self.algebra.frame.scales(v)
        if scales is None:
            return None
        return self.algebra.frame.value(scales, sums), self.algebra.features(scales @ v)

    def _add_middle(self, iterate: Iterate) -> None:
        """Add alpha in the middle of every box to the bundle, as a first feasible dual point."""
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
        middle = Reading(np.zeros(self.design.width), 0.0, unit, multiplier=(0.0,) * frame.groups)
        iterate.bundle.add(middle, *point)

    def screen(self, iterate: Iterate, region: Ball) -> tuple[int, int]:
        """Let every shard fix the rows that ``region``, a ball that contains w*, decides.

        A fixed row is proved to stay on its side, and is no longer read. x does not change.

        Returns the rows newly fixed at hi, and elsewhere.
        """
        frame, design = self.algebra.frame, self.design
        if frame.curved and frame.groups:
            return 0, 0  # P has no hinge points, so no interval of scores bounds the multiplier
        _coef, extras = self.algebra.coef(iterate.x)
        message: dict[str, Any] = {
            "region": region,
            "slack": iterate.score_errors[-1],
            "multipliers": np.where(np.arange(len(extras)) < frame.first, 0.0, extras),
            **self.algebra.bound_moves(iterate.past, iterate.score_errors, [iterate.x]),
        }
        moved = float(np.max(message["w_moves"][:-1]))
        reach = float(np.linalg.norm(iterate.x)) + region.radius + moved
        widest = 2.0 * (self.largest + reach * design.largest_norm)
        ends = np.array([self._bracket_multiplier(message, g, widest) for g in range(frame.groups)])
        low, high = ends.reshape(-1, 2).T
        message["mu"] = _as_mu(low), _as_mu(high)
        stack, _ = self.fleet.round({**message, "kind": "screen"})
        return int(stack[:, 0].sum()), int(stack[:, 1].sum())

    def _bracket_multiplier(
        self,
        message: dict[str, Any],
        group: int,
        widest: float,
        rounds: int = 4,
        candidates: int = 65,
    ) -> tuple[float, float]:
        """Find an interval that holds mu*: bisection on the weighted order statistics (maths.md 3).

        ``message``: the region and moves that bound scores; ``group``: whose multiplier. Every
        round counts weight below 65 candidates; four rounds leave 1e-7 of the range
        ``[-widest, widest]``, and both ends are rounded outwards.
        """
        total = float(self.algebra.frame.total[group])
        ends = []
        for k, outward in enumerate((-1, 1)):
            low, high = -widest, widest
            for _ in range(rounds):
                grid = np.linspace(low, high, candidates)
                stack, _ = self.fleet.round(
                    {**message, "kind": "quantiles", "grid": grid, "group": group}
                )
                found = stack.sum(axis=0)
                below = found[candidates * k : candidates * (k + 1)]
                threshold = found[-2] - total
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
    """Return multipliers as `Dual` takes them: an array of several, a float of one or none."""
    return values if len(values) > 1 else float(np.sum(values))
