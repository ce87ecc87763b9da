"""One Newton run as its coordinator sees it: steps, smoothing, rows at hand, checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import compute_scores, weighted_columns
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import Point
from bigscreen.solvers.newton.local import Local
from bigscreen.solvers.newton.place import SMALL, Bundle, Place, Trial, Zone, next_h
from bigscreen.solvers.newton.products import unit_of
from bigscreen.solvers.newton.rounds import Rounds
from bigscreen.solvers.newton.sampled import Sample
from bigscreen.solvers.newton.shard import NearbyRows, NewtonProgram
from bigscreen.solvers.newton.tuning import FLOAT32_TOL
from bigscreen.solvers.protocol import Check

STEP_LENGTHS = np.array([0.0, 1.0, 1.4, 0.75, 0.55, 0.4, 0.28, 0.18, 0.1, 0.05, 0.02, 0.005])
NEGLIGIBLE = 1e-6
"""A w, or a zone, below this part of what it could be is nothing."""

REACHES = np.array([1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0])
"""How far the rows at hand may be from their kink, in units of h."""

GRID = np.array([0.0, 1.0, 0.85, 0.7, 0.55, 0.4, 0.28, 0.18, 0.1, 0.05, 0.02, 0.005])


class NewtonRun(Rounds):
    """One run: from place to place until its check is content."""

    def run(self, place: Place, check: Check) -> Point:
        """Iterate from a place whose gradient is known until ``check`` is content."""
        while True:
            assert place.point is not None
            if place.held and self.options.tol > self.tuning.held_tol:
                # D is that of alpha at these sides. Read off anew, rows that left theirs would
                # count with the square of what they move w(alpha) by: in thin places all the same
                # way.
                place.point = replace(place.point, sides=self.sides())
            few = self.options.tol < FLOAT32_TOL
            reach = self.within_reach(place, place.h) if few else 0.0
            verdict = check(
                place.point,
                self._stats(place, reach),
                lambda folder, meta: self.fleet.save(folder, {**meta, **self._meta(place)}),
            )
            if verdict is None:
                return place.point
            self.read, self.ahead = 0, verdict.ahead
            place.passed.fixed = (0, 0)
            if place.held:
                # The closing pass has found rows that are no longer on the side they were held to.
                self._look(place)
                place.holding = False
                continue
            if verdict.region is not None:
                place.passed.fixed = self.screen(place, verdict.region)
            if verdict.restart:
                # The rows that come back can be far off: start them in a wider zone.
                place.h = min(self.algebra.unit, 16 * place.h)
                self.open(self.program)
                self.enter(place)
            else:
                self._advance(place, reach)

    def _advance(self, place: Place, reach: float) -> None:
        """Step over the rows at hand, else with far rows held to their side, else over all rows."""
        # (Where few are near their kink nobody has taken over: it is too early.)
        if (reach > 0 or not self.ahead) and self.approach(place):
            return
        if self.hold(place):
            return
        if place.step is None:
            self._steer(place)
        assert place.step is not None
        self.take(place, self.seek(place, place.step, STEP_LENGTHS, place.next_h))

    def _stats(self, place: Place, reach: float) -> dict[str, Any]:
        """What a check is told beside the point: counts, and whether steps still gain anything."""
        return {
            "rows_visited": place.passed.visited,
            "rows_alive": place.passed.alive,
            "rows_read": self.read,
            "bytes_read": int(self.read * self.row_bytes),
            "fixed_hi": place.passed.fixed[0],
            "fixed_lo": place.passed.fixed[1],
            "reach": reach,
            "decrement": place.decrement,
            "settled": next_h(place, max(self.options.tol, self.tuning.subsample_tol)) >= place.h,
            "full_passes": self.passes[0],
            "partial_passes": self.passes[1],
            "stalled": place.stalled >= 3 or self._vanished(place),
        }

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
            found = compute_scores(design, design.coef(w), fleet) + own
            mu = np.atleast_1d(dual.multiplier(found))
        x = np.concatenate([w, constant, mu])
        place = self.origin()
        place.given = dual.value(alpha, 2 * self.algebra.quadratic(x))
        place.x = x
        return place

    def enter(self, place: Place, growth: float = 1.0) -> None:
        """Score all rows of the program at x, find the gradient there.

        ``growth``: how many times as many rows it has as the program before.
        """
        place.h = 0.0 if self.algebra.frame.curved else place.h or self.algebra.unit
        place.zone.rows = int(place.zone.rows * growth)
        place.past, place.errors, place.moves = [], [], []
        place.bundle, place.average = Bundle(self.algebra.metric), None
        still = np.zeros(self.algebra.size)
        self.take(place, self.seek(place, still, STEP_LENGTHS[:1], place.h))

    # -- steps ---------------------------------------------------------------------------------
    def take(self, place: Place, trial: Trial, nearby: float | None = None) -> None:
        """Go where the last trial found P least, and sum the gradient there.

        With the zone's second moment, which a step over all rows is made of, unless the next step
        can be over rows nearby. ``nearby``: the last one was not over all rows, and moved
        scores so far.
        """
        h, k, moving = trial.h, trial.best, len(trial.steps) > 1
        moment = False
        if nearby is None:
            # At another h the rows nearby may do again.
            place.local = place.local or h < place.h
            moment = not self.refines(place)
            moment = moment and not self.within_reach(place, h, float(trial.steps[k]))
        if place.given is not None:
            gap = max(trial.primal - place.given, self.options.tol * abs(trial.primal))
            h = self.suit(place, trial.cost, gap)
        place.t = float(trial.steps[k])
        place.stalled = place.stalled + 1 if moving and k == 0 and h == place.h else 0
        place.x = place.x + place.t * trial.step
        place.past.append(place.x)
        place.errors.append(trial.error)
        moved = place.expected if nearby is None else nearby
        place.moves.append(place.t * moved if moving else 0.0)
        place.h = h
        if moving and nearby is None:
            if place.t < 0.5:
                place.wide = min(place.wide * 2, 16.0)
            elif place.t >= 1.0:
                place.wide = max(place.wide / (4 if place.t > 1.0 else 2), 1.0)
        message = self._gradient_message(place, trial.primal, moment)
        stack, totals = self.fleet.round(
            {**message, "kind": "accept", "t": place.t, "ref": len(place.past) - 1}
        )
        self._finish(place, message, stack, totals, trial.primal)

    def _steer(self, place: Place) -> None:
        """The step over all rows, from a place whose second moment was not summed."""
        assert place.point is not None
        if self.refines(place):
            self._refine(place)
            return
        message = self._gradient_message(place, place.point.primal)
        stack, totals = self.fleet.round(message)
        self._finish(place, message, stack, totals, place.point.primal, known=True)

    def _refine(self, place: Place) -> None:
        """The step over all rows by products with the zone's, from about the right Hessian."""
        assert place.sums is not None and place.gradient is not None
        gradient, (now, middle), algebra = place.gradient, place.sums, self.algebra
        if place.worn or place.sample is None:
            place.sample, place.worn = self._sample(place), False
            solved = self.hessians.of(algebra, place.sample).solve(gradient)
            place.decrement = 0.5 * place.kept * float(gradient @ solved)
        place.next_h = next_h(place, self.options.tol, SMALL) if place.h else 0.0
        ratio = place.h / place.next_h if place.h else 1.0
        if ratio > 1:
            gradient = algebra.gradient(place.x, middle + ratio * (now - middle))

        # Of so many rows a sample is as good: a step is no more exact than INEXACT either way.
        rows = self.tuning.hessian_rows(self.large) * algebra.size
        stride, products = max(1.0, place.zone.rows / rows), 0
        unit = unit_of(self.design, place.zone.weight / (2 * place.h) if place.h else np.inf)

        def product(x: FloatArray) -> FloatArray:
            nonlocal products
            how = {"h": place.h, "stride": stride, "unit": unit, "first": products == 0}
            products += 1
            coef, extras = self.algebra.coef(x)
            stack = self._ask("product", coef=coef, extras=extras, **how)
            return ratio * self.algebra.features(stack.sum(axis=0))

        solve = self.hessians.of(algebra, place.sample).solve
        place.step, kept = algebra.conjugate_step(product, solve, gradient)
        # (Of fewer landmarks it is about the Hessian itself.)
        place.kept = kept if self.large else 1.0
        place.worn = products > self.tuning.max_cg(self.large)
        self.expect(place, gradient)

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

    # -- far rows held to their side ------------------------------------------------------------
    def hold(self, place: Place) -> bool:
        """Newton steps over the rows near their kink, all others held to their side.

        What P is then, and which rows have left their side all the same, a pass over all rows says,
        or for a wide gap, where that ends the run, the closing pass.
        Returns False, with the place as it was, where that is not worth it.
        """
        assert place.point is not None
        tol, wide = self.options.tol, self.options.tol > self.tuning.held_tol
        place.seen, place.seen_primal = place.x, place.point.primal
        wanted = (
            self.tuning.last_held_aim * tol
            if wide
            else self.tuning.held_gap * max(tol, FLOAT32_TOL)
        )
        if not self._may_hold(place) or place.point.relative_gap <= wanted:
            return False
        few = False
        for k in range(self.tuning.max_held_passes):
            if place.step is None:
                self._steer(place)
            assert place.step is not None
            since = np.append(np.cumsum(place.moves[:0:-1])[::-1], 0.0)
            held = self.tuning.hold(self.large)
            near = self._near(place, place.h + held * (since + place.expected))
            if near is None:
                if k == 0:
                    return False
                break
            self.take(place, self.seek(place, place.step, STEP_LENGTHS, place.next_h, near))
            few = place.step is None and self.within_reach(place, place.h) > 0
            if place.point.relative_gap <= wanted or place.stalled or few:
                break
        if few and (self.ahead or (not wide and self.approach(place))):
            return True
        if not wide or place.point.relative_gap > wanted:
            self._look(place)
        return True

    def _may_hold(self, place: Place) -> bool:
        """Whether rows may be held to their side at all."""
        if not place.holding or self.algebra.frame.curved or not self.program.lazy:
            return False
        if self.program.stride > 1 or place.given is not None:
            return False
        return self.algebra.size >= self.tuning.min_columns

    def _near(self, place: Place, near: FloatArray) -> FloatArray | None:
        """These distances, by the pass that a row was last scored in, if few enough are within.

        None where they are not. With infinity, at the end, for rows that no pass has scored.
        """
        near = np.append(near, np.inf)
        self.inside = int(self._ask("nearby", within=near).sum())
        return near if self.inside <= self.tuning.max_near_fraction * place.passed.alive else None

    def _look(self, place: Place) -> None:
        """Score all rows where steps with rows held have led: P is to be less than at their start.

        Where it is not, go back towards there, to where P is least; if that is the start itself,
        none are held again.
        """
        assert place.seen is not None
        back, stalled = place.seen - place.x, place.stalled
        trial = self.seek(place, np.zeros(len(back)), GRID[:1], place.h)
        if not trial.primal < place.seen_primal:
            trial = self.seek(place, back, GRID, place.h)
        self.take(place, trial, float(np.sum(place.moves)))
        place.stalled, place.holding = stalled, place.t < 1.0

    # -- rows nearby ---------------------------------------------------------------------------
    def approach(self, place: Place) -> bool:
        """Minimise over the rows nearby, taking in those that every pass finds to have moved.

        Returns False, with the place as it was, where that is not worth it.
        """
        reach = self.within_reach(place, place.h)
        if not reach:
            return False
        assert place.point is not None and place.gradient is not None
        # (For a wide gap one more pass over all rows costs what holding them saves.)
        holds = self.options.tol <= self.tuning.held_tol and self._may_hold(place)
        most, counts = self._most(place), self._pick(reach=reach)
        if self._sent(counts) > 2 * self.tuning.max_local_entries:
            place.local = False
            return False
        room = max(most, int(counts.sum()))
        local = Local(self.algebra, place.x, place.gradient, place.h, room)
        local.add(*self._gather(place, counts, local.room))
        # What rows that were held add to the gap shows only once all are looked at.
        part = max(self.options.tol, FLOAT32_TOL) * (self.tuning.held_aim if holds else 1.0)
        gap, lowest = part * abs(place.point.primal), place.h / self.tuning.max_h_fall
        trial, seen = None, None
        for k in range(self.tuning.max_local_passes):
            taken = local.solve(gap, lowest)
            if taken == 0 and trial is None:
                # The place was thought to be the end, and is not: smoothing's cost was too rosy.
                taken = local.solve(gap / 4, 0.0)
            if taken <= 0 and trial is None:
                break
            near = None
            if holds and k + 1 < self.tuning.max_local_passes:
                enough = max(
                    self.tuning.hold_distance * reach,
                    local.h + self.tuning.hold_moves * local.moved(local.rows.G),
                )
                near = self._near(place, np.full(len(place.past), enough))
                if trial is None and self.inside > self.tuning.max_crossings * most:
                    break
            while True:
                trial = self.seek(place, local.x - place.x, GRID, local.h, near)
                counts = self._pick(h=local.h)
                found = int(counts.sum())
                fit = (
                    len(local.G) + found <= most
                    and self._sent(counts) <= 2 * self.tuning.max_local_entries
                )
                ended = not fit or not (found or lowest)
                if near is None:
                    seen = local.G
                    break
                if not ended or (
                    seen is not None
                    and self.tuning.hold_moves * local.moved(seen)
                    <= self.tuning.hold_distance * reach
                ):
                    break
                near = None  # rows that were held may be elsewhere: all are looked at
            if ended:
                break
            gap = part * abs(trial.primal)
            # Many rows that moved make another place of this one: no use in a small h as yet.
            lowest = 0.0 if found <= self.tuning.few_crossed * len(local.G) else local.h
            if found:
                local.add(*self._gather(place, counts, local.room))
        if trial is None or trial.steps[trial.best] < self.tuning.min_local_step:
            place.local = False
            return False
        place.decrement = local.decrement
        place.seen, place.seen_primal = place.x, place.point.primal
        self.take(place, trial, local.moved(local.rows.G))
        return True

    def within_reach(self, place: Place, h: float, t: float | None = None) -> float:
        """How far from their kink the rows may be that are taken in; 0 where that is not worth it.

        ``t``: at that step of the trial that has just been made.
        """
        if not place.local or self.algebra.size < self.tuning.min_columns or self.large:
            return 0.0
        # Squared losses bend everywhere above their kink: no few rows are all that matter.
        if self.algebra.frame.curved:
            return 0.0
        # Features are float32 here; a subsample is left early, and a start has its h to find first.
        point = place.point
        if self.options.tol < FLOAT32_TOL and point and point.relative_gap <= 2 * FLOAT32_TOL:
            return 0.0
        if self.program.stride > 1 or place.given is not None:
            return 0.0
        counts = self._ask("within", reaches=REACHES * h, t=t).sum(axis=0)
        fit = np.flatnonzero(counts * self.tuning.first_growth <= self._most(place))
        return float(REACHES[fit[-1]] * h) if len(fit) else 0.0

    def _most(self, place: Place) -> int:
        """Rows at hand, at most."""
        return min(
            self.tuning.max_local_entries // self.algebra.size,
            int(self.tuning.max_local_fraction * place.passed.alive),
        )

    def _sent(self, counts: NDArray[np.int64]) -> int:
        """Numbers that come for so many rows: every shard sends as much as the one with most."""
        return int(counts.max()) * len(counts) * self.algebra.size

    def _pick(self, **what: Any) -> NDArray[np.int64]:
        """How many rows every shard has picked."""
        return self._ask("pick", **what)[:, 0].astype(np.int64)

    def _gather(
        self, place: Place, counts: NDArray[np.int64], room: NDArray[np.float32]
    ) -> tuple[NearbyRows, FloatArray]:
        """The rows just picked, with their G and alpha at the place; features go into ``room``."""
        coef, extras = self.algebra.coef(place.x)
        most = int(counts.max())
        stack = self._ask("gather", coef=coef, extras=extras, most=most, alone=True)
        return NearbyRows.unpacked(stack, counts, room)

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
            "ahead": self.ahead,
        }
        known = {} if place.known is None else {"moment": place.known.moment}
        some = {} if place.sample is None else place.sample.packed
        return {"solver": saved, **known, **some}

    def restore(self, program: NewtonProgram, meta: dict[str, Any]) -> Place:
        """The place that ``_meta`` describes: one gradient round over the restored shards."""
        saved = meta["solver"]
        self.program, self.algebra.unit, self.largest = program, saved["unit"], saved["largest"]
        self.zero, self.ahead = saved.get("zero", False), saved.get("ahead", False)
        self.passes = list(saved.get("passes", [0, 0]))  # checkpoints of before have none
        place = Place.from_dict(self.algebra.metric, saved, meta.get("moment"))
        if "table" in meta:
            place.sample = Sample.unpacked(meta["table"], meta["diagonal"])
        message = self._gradient_message(place, saved["primal"], saved["stepped"])
        stack, totals = self.fleet.round(message)
        self._finish(place, message, stack, totals, saved["primal"], known=True)
        return place
