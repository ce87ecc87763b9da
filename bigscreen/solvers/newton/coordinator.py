"""The main loop of the smoothed Newton: full, held and local steps, smoothing, checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import compute_scores, weighted_columns
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import Point
from bigscreen.solvers.newton.iterate import Band, Bundle, Iterate, Trial, choose_h
from bigscreen.solvers.newton.local import LocalProblem
from bigscreen.solvers.newton.products import int16_unit
from bigscreen.solvers.newton.rounds import Rounds
from bigscreen.solvers.newton.sampled import Sample
from bigscreen.solvers.newton.shard import GatheredRows, NewtonProgram
from bigscreen.solvers.newton.tuning import FLOAT32_TOL
from bigscreen.solvers.protocol import Check, Verdict


class NewtonRun(Rounds):
    """One run of the smoothed Newton over the rows of a program (maths.md 5.4)."""

    def run(self, iterate: Iterate, check: Check) -> Point:
        """Step until ``check`` returns None; returns the last point.

        The gradient of the first iterate must be known (see `enter`).
        """
        while True:
            reach = self._prepare_point(iterate)
            assert iterate.point is not None
            verdict = check(
                iterate.point,
                self._stats(iterate, reach),
                lambda folder, meta: self.fleet.save(folder, {**meta, **self._meta(iterate)}),
            )
            if verdict is None:
                return iterate.point
            self.rows_read, self.successor_waits = 0, verdict.ahead
            iterate.counts.fixed = (0, 0)
            if iterate.has_held_rows:
                # The closing pass found rows that have left the side they were held to.
                self._verify_held_rows(iterate)
                iterate.may_hold = False
                continue
            self._screen_or_restart(iterate, verdict)
            if verdict.restart:
                continue
            # If few rows are near their hinge point, but no other solver took over: too early.
            too_early = self.successor_waits and not reach > 0
            if not too_early and self._try_local_steps(iterate):
                continue
            if self._try_held_steps(iterate):
                continue
            self._take_newton_step(iterate)

    def _take_newton_step(self, iterate: Iterate, near: FloatArray | None = None) -> None:
        """Take a Newton step with a line search; ``near``: see ``search_line``."""
        if iterate.step is None:
            self._find_step(iterate)
        assert iterate.step is not None
        steps = np.array(self.tuning.step_lengths)
        trial = self.search_line(iterate, iterate.step, steps, iterate.next_h, near)
        self._accept(iterate, trial)

    def _prepare_point(self, iterate: Iterate) -> float:
        """Complete the point for ``check``.

        Returns the distance from their hinge point within which rows could be gathered (copied to
        the coordinator for steps over them alone); 0 if no rows are, or the tolerance does not need
        float64.
        """
        assert iterate.point is not None
        if iterate.has_held_rows and self.options.tol > self.tuning.held_tol:
            # D is that of alpha at the held sides. If alpha were read off again, rows that left
            # their side would move w(alpha) all in one direction, and D counts its square.
            iterate.point = replace(iterate.point, sides=self.sides())
        return self.local_reach(iterate, iterate.h) if self.options.tol < FLOAT32_TOL else 0.0

    def _screen_or_restart(self, iterate: Iterate, verdict: Verdict) -> None:
        """Fix the rows that the verdict's region decides, or take all fixed rows back.

        ``verdict``: the answer of ``check``; its ``restart`` says that all fixed rows come back.
        """
        if verdict.region is not None:
            iterate.counts.fixed = self.screen(iterate, verdict.region)
        if verdict.restart:
            # The rows that come back can be far off: restart them in a wider band.
            iterate.h = min(self.algebra.unit, 16 * iterate.h)
            self.open(self.program)
            self.enter(iterate)

    def _stats(self, iterate: Iterate, reach: float) -> dict[str, Any]:
        """Make the report for `Check`: counts of rows, and whether steps still gain anything.

        ``reach``: within which distance of their hinge point rows could be gathered; 0 for no rows.
        """
        subsample_tol = max(self.options.tol, self.tuning.subsample_tol)
        return {
            "rows_visited": iterate.counts.visited,
            "rows_alive": iterate.counts.alive,
            "rows_read": self.rows_read,
            "bytes_read": int(self.rows_read * self.row_bytes),
            "fixed_hi": iterate.counts.fixed[0],
            "fixed_lo": iterate.counts.fixed[1],
            "reach": reach,
            "decrement": iterate.decrement,
            "settled": choose_h(iterate, subsample_tol, tuning=self.tuning) >= iterate.h,
            "full_passes": self.passes[0],
            "partial_passes": self.passes[1],
            "stalled": iterate.stalled_steps >= 3 or self._optimum_is_zero(iterate),
        }

    def _optimum_is_zero(self, iterate: Iterate, negligible: float = 1e-6) -> bool:
        """Whether w* = 0 as far as float64 can show: a relative gap then has no meaning.

        If alpha has a total to meet, the rows' hulls can overlap (nu-SVC) or contain the origin
        (one-class), and P* is 0. (P can also be 0 in passing, at a wide band: so h must be small.)
        """
        assert iterate.point is not None
        unit, total = self.algebra.unit, float(np.sum(self.algebra.frame.total))
        tiny = abs(iterate.point.primal) <= negligible**2 * unit * total
        return total > 0 and tiny and iterate.h <= negligible * unit

    # -- starts --------------------------------------------------------------------------------
    def at_zero(self) -> Iterate:
        """Return the iterate w = 0, with a band as wide as all gradients there."""
        bundle = Bundle(self.algebra.metric)
        return Iterate(np.zeros(self.algebra.size), 0.0, bundle, band=Band(1))

    def start_at_alpha(self, alpha: FloatArray) -> Iterate:
        """Return the iterate w(alpha), with the multipliers that minimise P there.

        ``alpha`` (n,): a feasible dual point of all rows.
        """
        design, problem, fleet = self.design, self.problem, self.fleet
        frame = self.algebra.frame
        data = design.data
        dual = problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
        sums = weighted_columns(design, dual.sign * alpha, fleet)
        w, constant = design.features(sums[:-1]), frame.constant * sums[-1:][: frame.first]
        mu = np.empty(0)
        if frame.groups:
            offset = frame.constant * float(np.sum(constant))
            mu = np.atleast_1d(
                dual.multiplier(compute_scores(design, design.coef(w), fleet) + offset)
            )
        iterate = self.at_zero()
        iterate.x = np.concatenate([w, constant, mu])
        iterate.start_dual = dual.value(alpha, 2 * self.algebra.quadratic(iterate.x))
        return iterate

    def enter(self, iterate: Iterate, growth: float = 1.0) -> None:
        """Start at x of ``iterate`` on the rows of the program, a subsample or all rows.

        One pass scores the rows, and another sums the gradient at x. What was known of earlier x is
        dropped.

        ``growth``: rows of the program, as a multiple of the rows of the program before it.
        """
        iterate.h = iterate.h or self.algebra.unit
        if self.algebra.frame.curved:  # squared losses are not smoothed, wherever a run starts
            iterate.h, iterate.start_dual = 0.0, None
        iterate.band.rows = int(iterate.band.rows * growth)
        iterate.past, iterate.score_errors, iterate.moves = [], [], []
        iterate.bundle, iterate.average = Bundle(self.algebra.metric), None
        no_step = np.zeros(self.algebra.size)
        self._accept(iterate, self.search_line(iterate, no_step, np.zeros(1), iterate.h))

    def _smoothing_for_gap(self, iterate: Iterate, cost: float, gap: float) -> float:
        """Choose the h that costs a tenth of ``gap``, if h = unit costs ``cost``.

        The cost of smoothing grows with h^2 while margins are spread evenly. (A third to a
        hundredth take as many passes; with a wider h the run leaves the start.)
        """
        iterate.start_dual = None
        unit = self.algebra.unit
        h = unit * (1.0 if cost <= 0 else float(np.clip(np.sqrt(0.1 * gap / cost), 1e-6, 1.0)))
        # The number of rows, of average weight and evenly spread margins, that cost this.
        share = 12 * h * cost / unit**2 / max(self.program.weight_bound, 1e-300)
        iterate.band.rows = int(min(1.0, share) * self.design.data.n_rows)
        return h

    # -- steps over all rows -------------------------------------------------------------------
    def _accept(self, iterate: Iterate, trial: Trial, local_move: float | None = None) -> None:
        """Move to the best step length of a line search, and sum the gradient there.

        The gradient pass sums the band's second moment too, unless the next step may be local.

        Parameters
        ----------
        iterate : Iterate
        trial : Trial
        local_move : float or None
            Root mean square by which local or held steps moved scores; None after a Newton step.
        """
        h, k, moving = trial.h, trial.best, len(trial.steps) > 1
        moment = False
        if local_move is None:
            # At a smaller h local steps may succeed again.
            iterate.may_step_locally = iterate.may_step_locally or h < iterate.h
            moment = not self.uses_cg(iterate)
            moment = moment and not self.local_reach(iterate, h, float(trial.steps[k]))
        if iterate.start_dual is not None:
            gap = max(trial.primal - iterate.start_dual, self.options.tol * abs(trial.primal))
            h = self._smoothing_for_gap(iterate, trial.cost, gap)
        t = iterate.step_length = float(trial.steps[k])
        no_gain = moving and k == 0 and h == iterate.h
        iterate.stalled_steps = iterate.stalled_steps + 1 if no_gain else 0
        iterate.x = iterate.x + t * trial.step
        iterate.past.append(iterate.x)
        iterate.score_errors.append(trial.error)
        moved = iterate.expected_move if local_move is None else local_move
        iterate.moves.append(t * moved if moving else 0.0)
        iterate.h = h
        if moving and local_move is None:
            if t < 0.5:
                iterate.widening = min(iterate.widening * 2, 16.0)
            elif t >= 1.0:
                iterate.widening = max(iterate.widening / (4 if t > 1.0 else 2), 1.0)
        message = self._gradient_message(iterate, trial.primal, moment)
        accept = {"kind": "accept", "t": t, "ref": len(iterate.past) - 1}
        self._sum_gradient(iterate, {**message, **accept}, trial.primal)

    def _find_step(self, iterate: Iterate) -> None:
        """Compute the Newton step of an iterate whose second moment was not summed."""
        assert iterate.point is not None
        if self.uses_cg(iterate):
            self._find_step_by_cg(iterate)
            return
        message = self._gradient_message(iterate, iterate.point.primal)
        self._sum_gradient(iterate, message, iterate.point.primal, bundled=True)

    def _find_step_by_cg(self, iterate: Iterate) -> None:
        """Compute the Newton step by conjugate gradients: Hessian-vector products with the band."""
        assert iterate.band_sums is not None and iterate.gradient is not None
        gradient, (band_v, middle_v) = iterate.gradient, iterate.band_sums
        if iterate.needs_resample or iterate.sample is None:
            iterate.sample, iterate.needs_resample = self._draw_sample(iterate), False
            solved = self.precondition(iterate.sample, gradient)
            iterate.decrement = 0.5 * iterate.kept_decrease * float(gradient @ solved)
        sample, tuning = iterate.sample, self.tuning
        ratio = 1.0
        iterate.next_h = 0.0
        if iterate.h:
            promise = tuning.cg_promise_fraction
            iterate.next_h = choose_h(iterate, self.options.tol, promise, tuning)
            ratio = iterate.h / iterate.next_h
        if ratio > 1:
            v = middle_v + ratio * (band_v - middle_v)
            gradient = self.algebra.gradient(iterate.x, v)

        # More rows would not make the step more exact: CG stops at ``cg_residual`` anyway.
        rows = tuning.hessian_rows(self.wide) * self.algebra.size
        stride, products = max(1.0, iterate.band.rows / rows), 0
        curvature = iterate.band.weight / (2 * iterate.h) if iterate.h else np.inf
        unit = int16_unit(self.design, curvature, tuning.max_rounding_curvature)

        def product(x: FloatArray) -> FloatArray:
            """Multiply the band's second moment at the next h by x (size,): one round."""
            nonlocal products
            how = {"h": iterate.h, "stride": stride, "unit": unit, "first": products == 0}
            products += 1
            coef, extras = self.algebra.coef(x)
            stack = self._round("product", coef=coef, extras=extras, **how)
            return ratio * self.algebra.features(stack.sum(axis=0))

        def solve(v: FloatArray) -> FloatArray:
            """Apply the preconditioner to v (size,)."""
            return self.precondition(sample, v)

        iterate.step, kept = self.algebra.conjugate_step(product, solve, gradient)
        # (With fewer landmarks the preconditioner promises about what the step keeps.)
        iterate.kept_decrease = kept if self.wide else 1.0
        iterate.needs_resample = products > tuning.cg_before_resample(self.wide)
        self._predict_move(iterate, gradient)

    # -- held steps ----------------------------------------------------------------------------
    def _try_held_steps(self, iterate: Iterate) -> bool:
        """Take Newton steps that score only rows near their hinge point; hold all others.

        A held row is not read: it counts on the side that it was last seen on. A pass over all
        rows, or for a wide gap the closing pass, then shows P and which held rows have left their
        side. Returns False, with the iterate unchanged, if that saves nothing.
        """
        assert iterate.point is not None
        tuning, tol = self.tuning, self.options.tol
        closing_pass_verifies = tol > tuning.held_tol
        iterate.full_pass_x, iterate.full_pass_primal = iterate.x, iterate.point.primal
        target = tuning.held_gap * max(tol, FLOAT32_TOL)
        if closing_pass_verifies:
            target = tuning.last_held_aim * tol
        if not self._can_hold(iterate) or iterate.point.relative_gap <= target:
            return False
        few = False
        for k in range(tuning.max_held_steps):
            if iterate.step is None:
                self._find_step(iterate)
            moved_since = np.append(np.cumsum(iterate.moves[:0:-1])[::-1], 0.0)
            moves = tuning.moves_to_hold(self.wide) * (moved_since + iterate.expected_move)
            near = self._near_if_few(iterate, iterate.h + moves)
            if near is None:
                if k == 0:
                    return False
                break
            self._take_newton_step(iterate, near)
            few = iterate.step is None and self.local_reach(iterate, iterate.h) > 0
            if iterate.point.relative_gap <= target or iterate.stalled_steps or few:
                break
        if few and self.successor_waits:
            return True
        if few and not closing_pass_verifies and self._try_local_steps(iterate):
            return True
        if not closing_pass_verifies or iterate.point.relative_gap > target:
            self._verify_held_rows(iterate)
        return True

    def _can_hold(self, iterate: Iterate) -> bool:
        """Whether rows may be held to their side in this run, now."""
        if not iterate.may_hold or self.algebra.frame.curved or not self.program.lazy:
            return False
        if self.program.stride > 1 or iterate.start_dual is not None:
            return False
        return self.algebra.size >= self.tuning.min_columns

    def _near_if_few(self, iterate: Iterate, near: FloatArray) -> FloatArray | None:
        """Count the rows within these distances of their hinge point; None if they are too many.

        ``near`` (passes,): distances by the pass that a row was last scored in. Infinity is
        appended to them: the distance for rows that no pass has scored.
        """
        near = np.append(near, np.inf)
        self.near_rows = int(self._round("count_near", within=near).sum())
        few = self.near_rows <= self.tuning.max_near_fraction * iterate.counts.alive
        return near if few else None

    def _verify_held_rows(self, iterate: Iterate) -> None:
        """Score all rows after steps that left rows out, and step back if P has not fallen.

        (Held steps count rows that they do not read on the side where they were last seen; local
        steps go over gathered rows alone.)

        The step back goes along the line to the last full pass, to where P is least. If that is
        the full pass itself, no rows are held again.
        """
        assert iterate.full_pass_x is not None
        back, stalled = iterate.full_pass_x - iterate.x, iterate.stalled_steps
        trial = self.search_line(iterate, np.zeros(len(back)), np.zeros(1), iterate.h)
        if not trial.primal < iterate.full_pass_primal:
            steps = np.array(self.tuning.local_step_lengths)
            trial = self.search_line(iterate, back, steps, iterate.h)
        self._accept(iterate, trial, float(np.sum(iterate.moves)))
        iterate.stalled_steps, iterate.may_hold = stalled, iterate.step_length < 1.0

    # -- local steps ---------------------------------------------------------------------------
    def _try_local_steps(self, iterate: Iterate) -> bool:
        """Minimise over gathered rows; after each pass, gather the rows that have changed sides.

        Gathered rows are rows near their hinge point, whose features the coordinator holds. Returns
        False, with the iterate unchanged, if local steps save nothing.
        """
        tuning = self.tuning
        reach = self.local_reach(iterate, iterate.h)
        if not reach:
            return False
        assert iterate.point is not None and iterate.gradient is not None
        # (For a wide gap one more pass over all rows costs what holding them saves.)
        holds = self.options.tol <= tuning.held_tol and self._can_hold(iterate)
        most, counts = self._max_gathered(iterate), self._pick_rows(reach=reach)
        if not self._can_send(counts):
            iterate.may_step_locally = False
            return False
        room = max(most, int(counts.sum()))
        local = LocalProblem(
            self.algebra, iterate.x, iterate.gradient, iterate.h, room, tuning=tuning
        )
        local.add(*self._gather_rows(iterate, counts, local.room))
        # What held rows add to the gap shows only once all rows are scored: aim lower.
        aim = max(self.options.tol, FLOAT32_TOL) * (tuning.held_aim if holds else 1.0)
        gap, lowest_h = aim * abs(iterate.point.primal), iterate.h / tuning.max_h_fall
        steps = np.array(tuning.local_step_lengths)
        trial, G_all_rows = None, None
        for k in range(tuning.max_local_passes):
            taken = local.solve(gap, lowest_h)
            if taken == 0 and trial is None:
                # The iterate seemed to be the end, and is not: smoothing costs more than estimated.
                taken = local.solve(gap / 4, 0.0)
            if taken <= 0 and trial is None:
                break
            near = None
            if holds and k + 1 < tuning.max_local_passes:
                moved = tuning.hold_moves * local.root_mean_move(local.rows.G)
                distance = max(tuning.hold_distance * reach, local.h + moved)
                near = self._near_if_few(iterate, np.full(len(iterate.past), distance))
                if trial is None and self.near_rows > tuning.max_crossings * most:
                    break
            while True:
                trial = self.search_line(iterate, local.x - iterate.x, steps, local.h, near)
                counts = self._pick_rows(h=local.h)
                crossed = int(counts.sum())
                fit = len(local.G) + crossed <= most and self._can_send(counts)
                ended = not fit or not (crossed or lowest_h)
                if near is None:
                    G_all_rows = local.G
                    break
                if not ended or (
                    G_all_rows is not None
                    and tuning.hold_moves * local.root_mean_move(G_all_rows)
                    <= tuning.hold_distance * reach
                ):
                    break
                near = None  # held rows may have left their side: score all rows
            if ended:
                break
            gap = aim * abs(trial.primal)
            # If many rows crossed, the local problem was another one: a small h is of no use yet.
            few = crossed <= tuning.few_crossed * len(local.G)
            lowest_h = 0.0 if few else local.h
            if crossed:
                local.add(*self._gather_rows(iterate, counts, local.room))
        if trial is None or trial.steps[trial.best] < tuning.min_local_step:
            iterate.may_step_locally = False
            return False
        iterate.decrement = local.decrement
        iterate.full_pass_x, iterate.full_pass_primal = iterate.x, iterate.point.primal
        self._accept(iterate, trial, local.root_mean_move(local.rows.G))
        return True

    def local_reach(self, iterate: Iterate, h: float, t: float | None = None) -> float:
        """Choose within which distance of their hinge point rows are gathered; 0 for no rows.

        Parameters
        ----------
        iterate : Iterate
        h : float
            Half the width of the smoothing band, the unit of the distances.
        t : float or None
            Count rows at this step length of the last line search, not at the iterate.
        """
        tuning, point = self.tuning, iterate.point
        if not iterate.may_step_locally or self.algebra.size < tuning.min_columns or self.wide:
            return 0.0
        # Squared losses are curved everywhere above their hinge point: all rows matter.
        if self.algebra.frame.curved:
            return 0.0
        # Features are float32 here; a subsample is left early; a start has yet to find its h.
        if self.options.tol < FLOAT32_TOL and point and point.relative_gap <= 2 * FLOAT32_TOL:
            return 0.0
        if self.program.stride > 1 or iterate.start_dual is not None:
            return 0.0
        distances = np.array(tuning.gather_distances) * h
        counts = self._round("count_within", reaches=distances, t=t).sum(axis=0)
        fit = np.flatnonzero(counts * tuning.first_growth <= self._max_gathered(iterate))
        return float(distances[fit[-1]]) if len(fit) else 0.0

    def _max_gathered(self, iterate: Iterate) -> int:
        """Return how many rows may be gathered, by their entries and as a part of rows alive."""
        return min(
            self.tuning.max_local_entries // self.algebra.size,
            int(self.tuning.max_local_fraction * iterate.counts.alive),
        )

    def _can_send(self, counts: NDArray[np.int64]) -> bool:
        """Whether the picked rows are few enough for shards to send; ``counts`` (shards,): of each.

        Each shard's answer is as long as that of the shard with most rows.
        """
        sent = int(counts.max()) * len(counts) * self.algebra.size
        return sent <= 2 * self.tuning.max_local_entries

    def _pick_rows(self, **what: Any) -> NDArray[np.int64]:
        """Have every shard pick rows to gather; returns how many each has picked (shards,).

        ``what``: either ``reach`` (rows within this distance of their hinge point) or ``h`` (rows
        that have crossed in the last trial), see `NewtonProgram`.
        """
        return self._round("pick", **what)[:, 0].astype(np.int64)

    def _gather_rows(
        self, iterate: Iterate, counts: NDArray[np.int64], room: NDArray[np.float32]
    ) -> tuple[GatheredRows, FloatArray]:
        """Fetch the picked rows, with their G and alpha at the iterate.

        ``counts`` (shards,): rows of each shard. The features are written to ``room``. Returns the
        rows, and their alpha (rows,): NaN for rows in the band.
        """
        coef, extras = self.algebra.coef(iterate.x)
        most = int(counts.max())
        stack = self._round("gather", coef=coef, extras=extras, most=most, alone=True)
        return GatheredRows.unpacked(stack, counts, room)

    # -- checkpoints ---------------------------------------------------------------------------
    def _meta(self, iterate: Iterate) -> dict[str, Any]:
        """Return what a checkpoint saves of the coordinator, for `restore`."""
        assert iterate.point is not None
        saved = {
            **iterate.to_dict(),
            "primal": iterate.point.primal,
            "unit": self.algebra.unit,
            "largest": self.largest,
            "zero": self.zero_is_feasible,
            "passes": self.passes,
            "ahead": self.successor_waits,
        }
        average = iterate.average_to_save
        moment = {} if average is None else {"moment": average.moment}
        sample = {} if iterate.sample is None else iterate.sample.packed
        return {"solver": saved, **moment, **sample}

    def restore(self, program: NewtonProgram, meta: dict[str, Any]) -> Iterate:
        """Return the iterate of a checkpoint, after a gradient pass over the restored shards."""
        saved = meta["solver"]
        self.program, self.algebra.unit, self.largest = program, saved["unit"], saved["largest"]
        self.zero_is_feasible = saved.get("zero", False)
        self.successor_waits = saved.get("ahead", False)
        self.passes = list(saved.get("passes", [0, 0]))  # older checkpoints have none
        iterate = Iterate.from_dict(self.algebra.metric, saved, meta.get("moment"))
        if "table" in meta:
            iterate.sample = Sample.unpacked(meta["table"], meta["diagonal"])
        message = self._gradient_message(iterate, saved["primal"], saved["stepped"])
        self._sum_gradient(iterate, message, saved["primal"], bundled=True)
        return iterate
