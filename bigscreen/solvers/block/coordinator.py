"""The block solver's coordinator: chooses blocks, solves them, and decides when to stop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import Point, read_off
from bigscreen.problems.violation import extremes, libsvm_scale
from bigscreen.solvers.block.ending import find_open_rows, solve_face
from bigscreen.solvers.block.messages import fetch_rows
from bigscreen.solvers.block.records import Proposal
from bigscreen.solvers.block.rounds import NO_ROWS, BlockRounds
from bigscreen.solvers.block.start import (
    fill_to_bounds,
    is_feasible_at_0,
    margin_scale,
    multipliers,
    read_at_totals,
    sum_ratio,
)
from bigscreen.solvers.block.working_set import (
    Violators,
    choose_multipliers,
    choose_rows,
    distance_from_mu,
    is_free,
)
from bigscreen.solvers.protocol import Check
from bigscreen.solvers.smo.loop import Limits, smo

CHECKPOINT_FIELDS = {
    "": ("alpha", "mu", "offset", "value", "size", "still", "keys", "end_at"),
    "effort": ("spent", "terms", "full_passes", "partial_passes"),
    "screening": ("counts", "false_removals", "screened"),
    "mending": ("drift", "noise", "times"),
    "next": ("stay", "new", "v"),
    "survey": ("w_sq", "gap", "rounding", "highest", "lowest", "alive", "entries", "complete"),
}
"""Attributes of the coordinator ("") and of its records (by attribute name) that a checkpoint
saves."""

CHECKPOINT_LISTS = ("ups", "downs")
"""Names of the lists of violating rows in the last `Survey`, which a checkpoint saves."""

CHECKPOINT_GRAM_FIELDS = ("ids", "K", "capacity", "entries")
"""Attributes of `BlockGram` that a checkpoint saves."""


class BlockRun(BlockRounds):
    """The coordinator of one run of the block solver: main loop, starts, and checkpoints."""

    def run(self, check: Check) -> Point:
        """Solve block after block until ``check`` returns None; return the last point.

        ``check`` gets each point with its gap, and answers with a verdict: a region (a ball around
        w that contains the optimum) by which rows can be screened, a restart with all rows, or a
        doubt that the point's gap is only rounding. `_try_ending` solves for all rows that can
        still move at once; if it does not apply, a block is solved.
        """
        while True:
            if self._gap_may_be_rounding(check.target):
                self.mend()
            point = self.point()
            verdict = check(point, self.stats(), self.save)
            if verdict is None:
                return point
            if not verdict.restart and not self.fine and (verdict.doubted or self.is_stuck):
                # float32 entries cannot improve this point, and check wants a better one.
                if self.can_mend:
                    self.mend()
                else:
                    self.refine()
                continue
            self.screening.counts = (0, 0)
            if verdict.restart:
                self.revive()
                self.survey_and_choose()
            elif verdict.region is not None and self.screen(verdict.region):
                self.survey_and_choose()  # the chosen block may contain screened rows
            if not self._try_ending(check.target):
                self.apply(self.solve_block())

    def _try_ending(self, target: float) -> bool:
        """Solve exactly for the rows that can still move, if few; return whether alpha moved.

        Only for small targets: ``target`` is the requested relative gap (see `EndingTuning`).

        Measured without this step: a fit to 1e-6 takes 0.91 to 1.04 times the processor time
        (ijcnn1, a9a, covtype), a fit to 1e-9 takes 1.0 to 1.5 times (these and mnist 3-vs-5).
        """
        before, tuning = self.point().relative_gap, self.tuning.ending
        if target > tuning.close_target or before > self.end_at or not self.design.definite:
            return False
        ids = find_open_rows(self)
        if ids is None:
            return False
        found = solve_face(self, ids)
        if moves := not np.array_equal(found.alpha, self.alpha[found.ids]):
            self.apply(found)
        else:
            self.survey_and_choose()
        if not (moves and self.point().relative_gap <= 0.5 * before):
            self.end_at = tuning.retry_fraction * before
        return moves

    # -- float32 columns and their rounding ------------------------------------------------------
    def _gap_may_be_rounding(self, target: float) -> bool:
        """Whether the relative gap meets the target, but float32 errors could exceed the target."""
        point = self.point()
        met = self.can_mend and point.relative_gap <= target
        return met and self.rounding_of_gap() > target * abs(point.primal)

    def mend(self) -> None:
        """Recompute the scores of rows near their hinge point from float64 entries.

        Errors of float32 entries leave a gap that no step can close. Scores of rows that are
        certainly at their bound are not recomputed, since their errors do not change the gap.
        """
        before, drift = self.survey.gap, self.mending.drift
        self.recompute_near(NO_ROWS)
        self.still = False
        self.survey_and_choose()
        self.mending.noise = max(self.survey.gap - before, 0.0) / drift
        self.mending.times += 1

    def refine(self) -> None:
        """Restart from the current alpha with all kernel entries computed in float64.

        Errors of float32 entries leave a gap that no step can close.
        """
        alpha, spent = self.alpha, self.kernel_entries
        self.begin(fine=True)
        self.effort.spent = spent
        self.open_at(alpha)

    # -- starts --------------------------------------------------------------------------------
    def open_cold(self) -> None:
        """Start without a known alpha: at 0, or at an alpha read off a subsample's solution.

        The problem of a random subsample, with wider boxes in proportion, has approximately the
        same w. If much of its support is at the bound, alpha of all rows is read off their scores
        (as the dual point of the smoothed loss). That saves many rounds that would bring these rows
        in block by block. If hardly any of its support is at the bound, alpha depends on each
        single row, and 0 is the better start. 0 is the better start for regression, too, where a
        small error of w flips alpha of most rows.

        If 0 is not feasible, the rows with the largest violations under the subsample's solution
        (any rows, without a subsample) are put at their bounds until the coupling's total is met.
        """
        rng = np.random.default_rng(self.options.seed)
        dual = self.dual
        live = np.flatnonzero(dual.hi > dual.lo)
        kinds = [live[dual.sign[live] > 0], live[dual.sign[live] < 0]]
        half = max(self.size // 2, self.size - min(map(len, kinds)))
        picks = [rng.permutation(kind)[:half] for kind in kinds]
        ids = np.concatenate(picks)
        box = dual.hi - dual.lo
        scale = [sum_ratio(box[kind], box[pick]) for kind, pick in zip(kinds, picks, strict=True)]
        scales = np.repeat(scale, [len(pick) for pick in picks])
        order = np.argsort(ids)
        self.next.new, scales = ids[order], scales[order]
        self.survey_again(self.next.new)
        self.next.v = self.survey.watched
        start = None
        if len(live) > 2 * len(ids) and not np.any(dual.lo < 0):
            start = self._read_off_subsample(scales)
        if start is None and not is_feasible_at_0(dual):
            start = fill_to_bounds(dual, rng.permutation(len(dual)).astype(np.float64))
        if start is not None:
            self.open_at(start)

    def _read_off_subsample(self, scales: FloatArray) -> FloatArray | None:
        """Solve the subsample (the chosen block), and read alpha (n,) of all rows off its scores.

        None if too little of the subsample's support is at the bound. ``scales``: the factor by
        which the box of each row of the subsample is widened.
        """
        self.enter()
        ids, dual = self.gram.ids, self.dual
        part = dual[ids]
        part = replace(part, lo=part.lo * scales, hi=part.hi * scales)
        alpha, G = np.zeros(len(ids)), self.block_gradient()
        at_0 = is_feasible_at_0(dual)
        if not at_0:
            alpha = fill_to_bounds(part, np.zeros(len(ids)))
            G = part.lin - part.sign * (self.gram.K @ (part.sign * alpha))
        most = self.tuning.subsample_steps_per_row * len(ids)
        self.steps(part, alpha, G, self.options.depth, most)
        used = np.flatnonzero(alpha)
        bound = (alpha[used] == part.hi[used]) | (alpha[used] == part.lo[used])
        if at_0 and np.count_nonzero(bound) < self.tuning.min_share_at_bound * max(1, len(used)):
            return None
        mu = multipliers(part, alpha, G, self.groups)
        change = part.sign[used] * alpha[used]
        stack, _ = self.fleet.round(
            {
                "kind": "read",
                "rows": Operand(self.gram.X[used], ids[used]),
                "change": change,
                "offset": float(change.sum()) if self.constant else 0.0,
            }
        )
        scores = stack.ravel()[: len(dual)]
        h = self.tuning.smoothing_of_margin * margin_scale(dual, mu)
        if at_0 or dual.coupling is None:
            gradient = dual.gradient(scores, mu[0] if dual.group is None else mu)
            return dual.feasible(read_off(dual, gradient, h))
        return read_at_totals(dual, scores, h)

    def open_at(self, start: FloatArray) -> None:
        """Start from a feasible alpha (n,): send it to the shards, and choose the first block."""
        moved = np.flatnonzero(start != self.alpha)
        for a in range(0, len(moved), self.tuning.rows_per_round):
            ids = moved[a : a + self.tuning.rows_per_round]
            self.move(ids, start[ids], self.data.rows(ids), NO_ROWS)
        if not len(moved):
            self.survey_and_choose()
        # Steps add to `value`, which begins as the dual value of the start.
        self.value = self.dual.value(self.alpha, self.survey.w_sq)
        if self.dual.coupling is not None:
            self.mu = choose_multipliers(self.survey.lowest, self.survey.highest, self.mu)
        self.survey_and_choose()

    # -- blocks --------------------------------------------------------------------------------
    def solve_block(self) -> Proposal:
        """Solve the dual of the chosen block by pair steps, with alpha of all other rows fixed.

        Returns the block's new alpha, which `apply` takes over.
        """
        self.enter()
        ids, tuning = self.gram.ids, self.tuning
        part, alpha = self.dual[ids], self.alpha[ids]
        G = self.block_gradient()
        before = G.copy()
        depth, most = self.options.depth, tuning.block_steps_per_row * len(ids)
        done = self.steps(part, alpha, G, depth * self.violation, most)
        left = int(tuning.min_block_steps_per_row * len(ids)) - done
        if left > 0:
            far = distance_from_mu(self.at, ids, self.next.v)
            usual = tuning.usual_distance * float(np.quantile(far, 0.75))
            self.steps(part, alpha, G, depth * min(usual, self.violation), left)
        return Proposal(part, ids, self.gram.X, alpha, before, G, ids)

    def apply(self, found: Proposal) -> None:
        """Update alpha and the dual value by the result of a solve, and choose the next block.

        The changes are sent to the shards, which update their scores and report violators.
        ``found``: the rows solved for, their new alpha, and their gradients before and after.
        """
        part, ids, X, alpha, before, G, watch, exact = found
        step = alpha - self.alpha[ids]
        self.value += 0.5 * float(step @ (before + G))
        if part.tube is not None:
            self.value -= float(part.tube @ (np.abs(alpha) - np.abs(self.alpha[ids])))
        changed = np.flatnonzero(step)
        # Rows that were at 0 come last: their kernel columns are mostly new, so slots adjoin.
        changed = changed[np.argsort(self.alpha[ids[changed]] == 0, kind="stable")]
        self.still = len(changed) == 0
        if part.coupling is not None:
            highest, lowest = extremes(part, alpha, G / part.coupling, self.groups)
            self.mu = choose_multipliers(lowest, highest, self.mu)
        self.move(ids[changed], alpha[changed], X[changed], watch, exact)
        if self._lacks_partner:
            self.mu = choose_multipliers(self.survey.lowest, self.survey.highest, self.mu)
            self.survey_and_choose()
        else:
            self.choose()

    @property
    def _lacks_partner(self) -> bool:
        """Whether all violators are on one side of mu, with no free row to pair them with.

        mu are the multipliers of the coupling, computed from the block. If all rows of the block
        are at bounds, mu may be at the end of an interval that other rows allow.
        """
        dual, ids = self.dual, self.gram.ids
        if dual.coupling is None or self.violation <= self.noise:
            return False
        group: Any = np.zeros(len(dual), np.int8) if dual.group is None else dual.group
        both = np.intersect1d(group[self.survey.ups.ids], group[self.survey.downs.ids])
        return len(both) == 0 and not is_free(dual[ids], self.alpha[ids]).any()

    def block_gradient(self) -> FloatArray:
        """Return the dual gradient ``p - s u`` of the block's rows (q,)."""
        return self.next.v * self.dual.step_signs[self.gram.ids]

    def steps(self, part: Dual, alpha: FloatArray, G: FloatArray, tol: float, most: int) -> int:
        """Take at most ``most`` pair steps on a problem of the block's rows; return their number.

        ``part``: the dual of these rows. ``alpha`` and ``G`` (the gradient ``p - s u``): updated.
        Stops once the violation is at most ``tol``.
        """
        done, _ = smo(self.gram.rows, part, alpha, G, Limits(tol, most))
        self.effort.terms += done * len(alpha)
        return done

    def enter(self) -> None:
        """Make the chosen block current: fetch its new rows, compute their kernel entries."""
        if len(self.next.new) or len(self.next.stay) < len(self.gram.ids):
            X = fetch_rows(self.fleet, self.data, self.next.new)
            v, rows = self.next.v.copy(), len(self.next.stay) + len(self.next.new)
            # Room for the next growth, if it is not much more: growing copies the matrix.
            growing = self.tuning.max_growing_block
            most = growing if 2 * self.size > growing else self.size
            most = self.tuning.max_whole_block if rows > growing else most
            most = min(most, self.data.n_rows)
            self.next.v[self.gram.enter(self.next.stay, self.next.new, X, max(rows, most))] = v
        self.next.stay, self.next.new = np.arange(len(self.gram.ids)), NO_ROWS

    def survey_and_choose(self) -> None:
        """Ask the shards for violating rows, with alpha unchanged, and choose the next block."""
        self.survey_again(self.gram.ids[self.next.stay])
        self.choose()

    def choose(self) -> None:
        """Choose the next block, a larger one if more than half of the last one is free."""
        held = Violators(self.gram.ids[self.next.stay], self.survey.watched)
        inside = is_free(self.dual[held.ids], self.alpha[held.ids])
        if np.count_nonzero(inside) > self.size // 2:
            most = min(self.tuning.max_growing_block, self.data.n_rows)
            self.size = max(self.size, min(2 * self.size, most))
        whole = self.tuning.max_whole_block if self.survey.complete else 0
        named = self.survey.ups, self.survey.downs
        stay, joining = choose_rows(self.at, held, inside, *named, self.size, whole)
        self.next.stay, self.next.new = self.next.stay[stay], joining.ids
        self.next.v = np.concatenate([held.v[stay], joining.v])

    # -- checkpoints ---------------------------------------------------------------------------
    def save(self, folder: Path, meta: dict[str, Any]) -> None:
        """Write a checkpoint of the shards' states and of the coordinator.

        ``meta``: further values for the checkpoint's record, to which the coordinator's are added.
        """
        state: dict[str, Any] = {
            name: getattr(getattr(self, part) if part else self, name)
            for part, names in CHECKPOINT_FIELDS.items()
            for name in names
        }
        state["fine"] = self.fine
        state["screenings"] = np.array(self.screening.past).reshape(-1, len(self.alpha))
        state |= {f"block_{name}": getattr(self.gram, name) for name in CHECKPOINT_GRAM_FIELDS}
        for name in CHECKPOINT_LISTS:
            state[f"{name}_ids"], state[f"{name}_v"] = getattr(self.survey, name)
        self.fleet.save(folder, {**meta, **state})

    def restore(self, folder: Path, meta: dict[str, Any]) -> None:
        """Continue from a checkpoint of ``save``; ``meta``: the record that it was saved with."""
        if meta["fine"] and not self.fine:
            self.begin(True)
            self.fleet.load(folder)
        for part, names in CHECKPOINT_FIELDS.items():
            record = getattr(self, part) if part else self
            for name in names:
                setattr(record, name, meta.get(name, getattr(record, name, None)))
        if "complete" in meta:  # (older checkpoints lack it)
            for name in CHECKPOINT_LISTS:
                named = Violators(meta[f"{name}_ids"], meta[f"{name}_v"])
                setattr(self.survey, name, named)
        self.screening.counts = (int(meta["counts"][0]), int(meta["counts"][1]))
        self.screening.past = list(meta["screenings"])
        ids, *block = (meta[f"block_{name}"] for name in CHECKPOINT_GRAM_FIELDS)
        self.gram.restore(fetch_rows(self.fleet, self.data, ids), ids, *block)

    # -- what check is handed ------------------------------------------------------------------
    def point(self) -> Point:
        """Return the current point; its gap is the Frank-Wolfe gap of the rows not screened."""
        none = np.empty(0)
        return Point(
            none,
            none,
            self.problem.offset(self.multiplier) + self.offset,
            self.value + self.survey.gap,
            self.value,
            paired=True,
            alpha=self.alpha.copy(),
            rounding=self.survey.rounding,
            multiplier=() if self.dual.coupling is None else tuple(self.mu.tolist()),
            violation=libsvm_scale(self.dual) * self.violation,
        )

    def stats(self) -> dict[str, Any]:
        """Return the counters of the run that a progress record shows, by name."""
        high, low = self.screening.counts
        return {
            "rows_visited": self.survey.alive,
            "rows_alive": self.survey.alive,
            "fixed_hi": high,
            "fixed_lo": low,
            "kernel_entries": self.kernel_entries,
            "terms": int(self.effort.terms),
            "false_removals": self.screening.false_removals,
            "full_passes": int(self.effort.full_passes),
            "partial_passes": int(self.effort.partial_passes),
            "stalled": self.is_stuck and self.fine,
        }

    @property
    def kernel_entries(self) -> int:
        """Kernel entries computed so far."""
        return self.effort.spent + self.survey.entries + self.gram.entries

    @property
    def is_stuck(self) -> bool:
        """Whether no further progress is possible at this precision of the kernel entries."""
        return self.still or self.violation <= self.noise
