"""The coordinator of the block solver: alpha of all rows, the block, and what the shards say."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.rows import Rows
from bigscreen.features.design import Design
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import AT_HI, AT_ZERO, FREE, Dual, Mu
from bigscreen.problems.point import Point, read_off
from bigscreen.problems.recipes import Problem
from bigscreen.problems.violation import apart as ends_apart
from bigscreen.problems.violation import extremes, unit
from bigscreen.screening.regions import Ball
from bigscreen.solvers.block.ending import Ending, finished
from bigscreen.solvers.block.gram import BlockGram
from bigscreen.solvers.block.kernel_columns import Slots
from bigscreen.solvers.block.mending import Mending, mend, mendable, rough
from bigscreen.solvers.block.messages import gathered, received, shares
from bigscreen.solvers.block.records import Effort, NextBlock, Screening, Stretch, Survey
from bigscreen.solvers.block.shard import NOTES, BlockProgram, moving
from bigscreen.solvers.block.start import (
    BOUNDED,
    SMOOTHING,
    balanced,
    feasible_at_0,
    filled,
    margin,
    multipliers,
    ratio,
)
from bigscreen.solvers.block.working_set import (
    Standing,
    Violators,
    apart,
    between,
    chosen,
    free,
    merged,
)
from bigscreen.solvers.protocol import Check
from bigscreen.solvers.smo.loop import Limits, smo

LARGEST = 4096
"""Rows of the largest block that takes in some of the rows that are free or violate."""

WHOLE = 8192
"""Rows of the largest block that takes in all of them: they need no turns then."""

START_ROWS = 4096
"""Rows of a start that are sent at once."""

SUBSAMPLE_STEPS = 10
"""Most pair steps on the subsample, for each of its rows."""

SMALLEST = 512
"""Rows of a block at least, if there are so many."""

SAVED = {
    "": ("alpha", "mu", "offset", "value", "size", "still", "keys"),
    "ending": ("start", "fall", "last"),
    "effort": ("spent", "terms", "full_passes", "partial_passes"),
    "screening": ("counts", "false_removals", "screened"),
    "mending": ("drift", "noise", "times"),
    "next": ("stay", "new", "v"),
    "survey": ("w_sq", "gap", "rounding", "highest", "lowest", "alive", "entries", "complete"),
}
"""What a checkpoint holds of the coordinator and its records, as it is."""

NAMED = ("ups", "downs")
"""The violators that the last survey has named."""

BLOCK = ("ids", "K", "capacity", "entries")
"""The same of the block."""

EXACT = 2.0**-52
"""Rounding of a score, as a part of the sum of its terms' sizes."""

MOST_BLOCK_STEPS = 100
"""Most pair steps in a block, for each of its rows."""

LEAST_BLOCK_STEPS = 0.5
"""Pair steps in a block, for each of its rows, that it is worth its kernel entries from."""

USUAL = 4.0
"""Until then the violation counts as so many times the distance from mu that a quarter of the rows
are beyond, if that is less: a few far out say nothing of the others."""


class BlockRun:
    """alpha of all rows, the block, and what the last round has said."""

    def __init__(self, options: Any, design: Design, problem: Problem, fleet: Fleet) -> None:
        data = design.data
        self.options, self.design, self.problem, self.fleet = options, design, problem, fleet
        self.dual = problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
        self.live = len(moving(self.dual))
        self.effort, self.screening = Effort(), Screening()
        # Equal rows have equal keys, others (almost surely) not.
        self.mark = np.random.default_rng(0).normal(size=data.n_features)
        self.keys = np.zeros(len(self.dual))
        self.begin(design.precision is np.float64)

    def begin(self, fine: bool) -> None:
        """Start the shards at alpha = 0, ``fine``: with kernel entries computed in float64."""
        options, data, kernel = self.options, self.data, self.design.kernel
        assert kernel is not None
        self.size = min(options.size, max(data.n_rows // 8, SMALLEST), data.n_rows)
        self.slots = Slots(options.cache // ((8 if fine else 4) * data.n_rows), data.n_rows)
        self.fleet.start(self._program(fine), data.n_shards)
        threads = min(getattr(self.fleet, "workers", 1), os.cpu_count() or 1)
        self.gram = BlockGram(kernel, self.constant, threads, np.float64 if fine else np.float32)
        self.alpha = np.zeros(len(self.dual))
        self.mu = np.zeros(self.groups)
        self.offset = self.value = 0.0
        self.still = False
        self.survey, self.next, self.mending = Survey(), NextBlock(), Mending()
        self.ending = Ending()
        self.screening.clear()

    def _program(self, fine: bool) -> BlockProgram:
        return BlockProgram(self.design, self.problem, self.slots.capacity, self.named, fine)

    @property
    def data(self) -> Rows:
        """The rows."""
        return self.design.data

    @property
    def constant(self) -> bool:
        """Whether a 1 is appended to every phi."""
        return self.problem.intercept == "constant"

    @property
    def groups(self) -> int:
        """Groups of rows with a multiplier each; 1 without a coupling."""
        return int(np.size(self.dual.total))

    @property
    def named(self) -> int:
        """Violators that a shard names, in either direction."""
        data = self.data
        return min(data.shard_rows, max(64, 4 * LARGEST // data.n_shards))

    @property
    def fine(self) -> bool:
        """Whether kernel entries are computed in float64."""
        return self.gram.dtype is np.float64

    @property
    def at(self) -> Standing:
        """Where alpha and the multipliers stand."""
        return Standing(self.dual, self.alpha, self.mu)

    def run(self, check: Check) -> Point:
        """Go from block to block until ``check`` answers None; returns the last point."""
        while True:
            if rough(self, check.target):
                mend(self)
            point = self.point()
            verdict = check(point, self.stats(), self.save)
            if verdict is None:
                return point
            if not verdict.restart and not self.fine and (verdict.doubted or self.stuck):
                # check has seen this point and asks for more
                if mendable(self):
                    mend(self)
                else:
                    self.refine()
                continue
            self.screening.counts = (0, 0)
            if verdict.restart:
                self.revive()
            elif verdict.region is not None:
                self.screen(verdict.region)
            if not finished(self, check.target):
                self.take(*self.solved())

    # -- starts --------------------------------------------------------------------------------
    def open_cold(self) -> None:
        """Begin at alpha = 0, with a block of random rows, or from what these rows tell of all.

        The random rows' problem, with boxes as much wider as they are fewer, has about the same w.
        Where much of its support is at the bound, alpha of all rows can be read off their scores
        (the smoothed loss's own dual point): many rounds are saved that would bring these rows in
        a block at a time. Where hardly any is, alpha depends on every row by itself and 0 is the
        better start, as it is for a regression, where a small error of w turns alpha of most rows
        around.

        Where 0 is not feasible there is no such choice: the rows that the subsample's machine
        finds the most wrong are put at their bound, or any where there is no subsample, until the
        total is met.
        """
        rng = np.random.default_rng(self.options.seed)
        dual = self.dual
        live = np.flatnonzero(dual.hi > dual.lo)
        kinds = [live[dual.sign[live] > 0], live[dual.sign[live] < 0]]
        half = max(self.size // 2, self.size - min(map(len, kinds)))
        picks = [rng.permutation(kind)[:half] for kind in kinds]
        ids = np.concatenate(picks)
        box = dual.hi - dual.lo
        scale = [ratio(box[kind], box[pick]) for kind, pick in zip(kinds, picks, strict=True)]
        scales = np.repeat(scale, [len(pick) for pick in picks])
        order = np.argsort(ids)
        self.next.new, scales = ids[order], scales[order]
        self.move(np.empty(0, np.int64), np.empty(0), self.data.X(0, 0), self.next.new)
        self.next.v = self.survey.watched
        start = None
        if len(live) > 2 * len(ids) and not np.any(dual.lo < 0):
            start = self._read(scales)
        if start is None and not feasible_at_0(dual):
            start = filled(dual, rng.permutation(len(dual)).astype(np.float64))
        if start is not None:
            self.open_at(start)

    def _read(self, scales: FloatArray) -> FloatArray | None:
        """A reading of the first block's own solution, if it is good for one."""
        self.enter()
        ids, dual = self.gram.ids, self.dual
        part = dual[ids]
        part = replace(part, lo=part.lo * scales, hi=part.hi * scales)
        alpha, G = np.zeros(len(ids)), self.block_gradient()
        at_0 = feasible_at_0(dual)
        if not at_0:
            alpha = filled(part, np.zeros(len(ids)))
            G = part.lin - part.sign * (self.gram.K @ (part.sign * alpha))
        self.steps(part, alpha, G, self.options.depth, SUBSAMPLE_STEPS * len(ids))
        used = np.flatnonzero(alpha)
        bound = (alpha[used] == part.hi[used]) | (alpha[used] == part.lo[used])
        if at_0 and np.count_nonzero(bound) < BOUNDED * max(1, len(used)):
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
        h = SMOOTHING * margin(dual, mu)
        if at_0 or dual.coupling is None:
            gradient = dual.gradient(scores, mu[0] if dual.group is None else mu)
            return dual.feasible(read_off(dual, gradient, h))
        return balanced(dual, scores, mu, h)

    def open_at(self, start: FloatArray) -> None:
        """Take a feasible alpha over."""
        moved = np.flatnonzero(start != self.alpha)
        for a in range(0, len(moved), START_ROWS):
            ids = moved[a : a + START_ROWS]
            self.move(ids, start[ids], self.data.rows(ids), np.empty(0, np.int64))
        if not len(moved):
            self.look()
        # The value that steps add to: D of the start itself.
        self.value = self.dual.value(self.alpha, self.survey.w_sq)
        if self.dual.coupling is not None:
            self.mu = between(self.survey.lowest, self.survey.highest, self.mu)
        self.look()

    def refine(self) -> None:
        """Begin again where alpha is, with kernel entries computed in float64.

        The rounding of float32 entries ends in a gap that no step can close.
        """
        alpha, spent = self.alpha, self.kernel_entries
        self.begin(fine=True)
        self.effort.spent = spent
        self.open_at(alpha)

    # -- blocks --------------------------------------------------------------------------------
    def solved(self) -> tuple[Dual, NDArray[np.int64], Any, Stretch, NDArray[np.int64]]:
        """Solve the chosen block: what ``take`` moves."""
        self.enter()
        ids = self.gram.ids
        part, alpha = self.dual[ids], self.alpha[ids]
        G = self.block_gradient()
        before = G.copy()
        depth, most = self.options.depth, MOST_BLOCK_STEPS * len(ids)
        left = int(LEAST_BLOCK_STEPS * len(ids)) - self.steps(
            part, alpha, G, depth * self.violation, most
        )
        if left > 0:
            far = apart(self.at, ids, self.next.v)
            usual = USUAL * float(np.quantile(far, 0.75))
            self.steps(part, alpha, G, depth * min(usual, self.violation), left)
        # Rows that leave 0 side by side: their columns, most of which are new, are so too.
        return part, ids, self.gram.X, Stretch(alpha, before, G), ids

    def take(
        self,
        part: Dual,
        ids: NDArray[np.int64],
        X: Any,
        stretch: Stretch,
        watch: NDArray[np.int64],
        exact: bool = False,
    ) -> None:
        """Move rows to where a solve of them has ended, and choose the next block.

        ``watch``: the rows of the block that the next one is chosen from; ``exact``: see ``move``.
        """
        alpha, before, G = stretch
        step = alpha - self.alpha[ids]
        self.value += 0.5 * float(step @ (before + G))
        if part.tube is not None:
            self.value -= float(part.tube @ (np.abs(alpha) - np.abs(self.alpha[ids])))
        changed = np.flatnonzero(step)
        changed = changed[np.argsort(self.alpha[ids[changed]] == 0, kind="stable")]
        self.still = len(changed) == 0
        if part.coupling is not None:
            highest, lowest = extremes(part, alpha, G / part.coupling, self.groups)
            self.mu = between(lowest, highest, self.mu)
        self.move(ids[changed], alpha[changed], X[changed], watch, exact)
        if self._lonely:
            self.mu = between(self.survey.lowest, self.survey.highest, self.mu)
            self.look()
        else:
            self.choose()

    @property
    def _lonely(self) -> bool:
        """Whether rows violate on one side of mu alone, and no free row could be their partner.

        mu was that of the block: where all rows are at a bound, it may be an end of the others'.
        """
        dual, ids = self.dual, self.gram.ids
        if dual.coupling is None or self.violation <= self.noise:
            return False
        group: Any = np.zeros(len(dual), np.int8) if dual.group is None else dual.group
        both = np.intersect1d(group[self.survey.ups.ids], group[self.survey.downs.ids])
        return len(both) == 0 and not free(dual[ids], self.alpha[ids]).any()

    def block_gradient(self) -> FloatArray:
        """``p - s u`` of the block's rows (q,)."""
        return self.next.v * self.dual.ways[self.gram.ids]

    def steps(self, part: Dual, alpha: FloatArray, G: FloatArray, tol: float, most: int) -> int:
        """Pair steps on a problem of the block's rows; alpha and G are updated."""
        done, _ = smo(self.gram.rows, part, alpha, G, Limits(tol, most))
        self.effort.terms += done * len(alpha)
        return done

    def enter(self) -> None:
        """Make the chosen block the one whose kernel matrix is at hand."""
        if len(self.next.new) or len(self.next.stay) < len(self.gram.ids):
            X = received(self.fleet, self.data, self.next.new)
            v, rows = self.next.v.copy(), len(self.next.stay) + len(self.next.new)
            # What it grows to next, if not much more: growing copies.
            most = WHOLE if rows > LARGEST else LARGEST if 2 * self.size > LARGEST else self.size
            most = min(most, self.data.n_rows)
            self.next.v[self.gram.enter(self.next.stay, self.next.new, X, max(rows, most))] = v
        self.next.stay, self.next.new = np.arange(len(self.gram.ids)), np.empty(0, np.int64)

    def spread(self, close: bool = False) -> float:
        """What independent errors of entries are multiplied by in a score (see ``BlockShard``)."""
        support = np.flatnonzero(self.alpha)
        coef = np.abs(self.alpha[support])
        if not (close or self.screening.screened):
            return float(coef.sum())  # no rule asks: the bound that costs nothing
        _, group = np.unique(self.keys[support], return_inverse=True)
        return float(np.sqrt(np.sum(np.bincount(group, coef) ** 2)))

    def look(self) -> None:
        """Survey the rows without a move, and choose a block of what there is now."""
        none = np.empty(0, np.int64)
        self.move(none, np.empty(0), self.data.X(0, 0), self.gram.ids[self.next.stay])
        self.choose()

    def move(
        self,
        ids: NDArray[np.int64],
        alpha: FloatArray,
        X: Any,
        watch: NDArray[np.int64],
        exact: bool = False,
    ) -> None:
        """Send the shards the new alpha of some rows; read what they answer.

        ``exact``: scores that are those of float64 entries stay it.
        """
        change = self.dual.sign[ids] * (alpha - self.alpha[ids])
        self.mending.drift += float(np.abs(change).sum())
        self.alpha[ids] = alpha
        self.keys[ids] = X @ self.mark
        if self.constant:
            self.offset += float(change.sum())
        width = int(shares(self.data, watch).max()) if len(watch) else 0
        stack, _ = self.fleet.round(
            {
                "kind": "move",
                "ids": ids,
                "alpha": alpha,
                "change": change,
                "rows": Operand(X, ids),
                "slots": self.slots.assign(ids),
                "mu": self.mu,
                "offset": self.offset,
                "spread": self.spread(),
                "watch": watch,
                "width": width,
                "exact": exact,
            }
        )
        self.effort.moves += 1
        if len(ids):
            whole = not self.screening.past
            self.effort.full_passes += whole
            self.effort.partial_passes += not whole
        self.survey = self._read_survey(stack, watch)
        if self.survey.alive == self.live:
            # Nothing is fixed: the sums are those of all rows.
            self.value = self.dual.value(self.alpha, self.survey.w_sq)

    def _read_survey(self, stack: FloatArray, watch: NDArray[np.int64]) -> Survey:
        """The shards' answers (shards, words) to a move, as one."""
        notes = dict(zip(NOTES, stack[:, : len(NOTES)].T, strict=True))
        widths = [self.groups, self.groups, *4 * [self.named]]
        parts = np.split(stack[:, len(NOTES) :], np.cumsum(widths), axis=1)
        full = np.any(parts[2][:, -1] >= 0) or np.any(parts[4][:, -1] >= 0)
        return Survey(
            w_sq=float(notes["w_sq"].sum()),
            gap=float(notes["gap"].sum()),
            rounding=float(notes["rounding"].sum()),
            alive=int(notes["alive"].sum()),
            entries=int(notes["entries"].sum()),
            highest=parts[0].max(axis=0),
            lowest=parts[1].min(axis=0),
            ups=merged(parts[2], parts[3], self.at),
            downs=merged(parts[4], parts[5], self.at),
            watched=gathered(parts[6], self.data, watch),
            complete=self.named == self.data.shard_rows or not full,
        )

    def choose(self) -> None:
        """The next block; it grows where more than half of it is free."""
        held = Violators(self.gram.ids[self.next.stay], self.survey.watched)
        inside = free(self.dual[held.ids], self.alpha[held.ids])
        if np.count_nonzero(inside) > self.size // 2:
            self.size = max(self.size, min(2 * self.size, LARGEST, self.data.n_rows))
        whole = WHOLE if self.survey.complete else 0
        named = self.survey.ups, self.survey.downs
        stay, joining = chosen(self.at, held, inside, *named, self.size, whole)
        self.next.stay, self.next.new = self.next.stay[stay], joining.ids
        self.next.v = np.concatenate([held.v[stay], joining.v])

    # -- screening -----------------------------------------------------------------------------
    def screen(self, region: Ball) -> None:
        """Drop rows that the region proves to stay at the bound they are at."""
        self.screening.screened = True
        message = {
            "kind": "screen",
            "region": region,
            "offset": self.offset,
            "spread": self.spread(),
            "since": len(self.screening.past),
        }
        message["mu"] = self._mu_interval(message)
        stack, _ = self.fleet.round(message)
        high, low = stack.sum(axis=0)
        self.screening.counts = (int(high), int(low))
        self.screening.fixed += int(high + low)
        if high or low:
            self.screening.past.append(self.alpha.copy())
            self.look()  # the block that was chosen may have rows that are gone

    def _mu_interval(self, message: dict[str, Any]) -> tuple[Mu, Mu]:
        """An interval that holds the optimal multiplier."""
        if self.dual.coupling is None:
            return 0.0, 0.0
        stack, _ = self.fleet.round({**message, "kind": "bounds"})
        lower, upper, side = (part.ravel()[: len(self.dual)] for part in np.split(stack, 3, axis=1))
        dual = self.dual
        if np.any(side == AT_ZERO):  # they have no part in the total
            keep = np.flatnonzero(side != AT_ZERO)
            dual, lower, upper, side = dual[keep], lower[keep], upper[keep], side[keep]
        assert dual.coupling is not None
        # A fixed row's breakpoint (p - s u) / t lies on a known side of mu*, above it where
        # t alpha is at its upper end: as good as at infinity.
        fixed = side != FREE
        above = (side == AT_HI) == (dual.coupling > 0)
        far = np.where(above, -np.inf, np.inf) * np.sign(dual.sign * dual.coupling)
        ends = np.where(fixed, far, lower), np.where(fixed, far, upper)
        return dual.multiplier_interval(*ends)

    def revive(self) -> None:
        """Take all fixed rows back, brought up to date, and count those fixed wrongly."""
        if self.screening.past:
            past = np.stack(self.screening.past, axis=1)
            moved = np.flatnonzero(np.any(past != self.alpha[:, None], axis=1))
            change = self.dual.sign[moved, None] * (self.alpha[moved, None] - past[moved])
            stack, _ = self.fleet.round(
                {
                    "kind": "revive",
                    "since": list(range(past.shape[1])),
                    "rows": Operand(self.data.rows(moved), moved),
                    "change": change,
                    "mu": self.mu,
                    "offset": self.offset,
                }
            )
            self.screening.false_removals += int(stack.sum())
        self.screening.clear()
        self.look()

    # -- checkpoints ---------------------------------------------------------------------------
    def save(self, folder: Path, meta: dict[str, Any]) -> None:
        """Write a checkpoint: the shards' states and what the coordinator knows."""
        state: dict[str, Any] = {
            name: getattr(getattr(self, part) if part else self, name)
            for part, names in SAVED.items()
            for name in names
        }
        state["fine"] = self.fine
        state["screenings"] = np.array(self.screening.past).reshape(-1, len(self.alpha))
        state |= {f"block_{name}": getattr(self.gram, name) for name in BLOCK}
        for name in NAMED:
            state[f"{name}_ids"], state[f"{name}_v"] = getattr(self.survey, name)
        self.fleet.save(folder, {**meta, **state})

    def restore(self, folder: Path, meta: dict[str, Any]) -> None:
        """Go on from a checkpoint of ``save``, whose meta this is."""
        if meta["fine"] and not self.fine:
            self.begin(True)
            self.fleet.load(folder)
        for part, names in SAVED.items():
            record = getattr(self, part) if part else self
            for name in names:
                setattr(record, name, meta.get(name, getattr(record, name, None)))
        if "complete" in meta:  # not in those of before
            for name in NAMED:
                named = Violators(meta[f"{name}_ids"], meta[f"{name}_v"])
                setattr(self.survey, name, named)
        self.screening.counts = (int(meta["counts"][0]), int(meta["counts"][1]))
        self.screening.past = list(meta["screenings"])
        ids, *block = (meta[f"block_{name}"] for name in BLOCK)
        self.gram.restore(received(self.fleet, self.data, ids), ids, *block)

    # -- what check is handed ------------------------------------------------------------------
    @property
    def violation(self) -> float:
        """How far the KKT conditions are from holding: m - M, or the largest gradient."""
        return ends_apart(self.survey.highest, self.survey.lowest, self.dual.coupling is not None)

    @property
    def multiplier(self) -> Mu:
        """mu as the dual has it."""
        return self.mu if self.dual.group is not None else float(self.mu[0])

    @property
    def noise(self) -> float:
        """The violation that rounding makes of none: scores are float64 sums."""
        largest = float(np.max(np.diagonal(self.gram.K), initial=0.0))
        return EXACT * largest * float(np.sum(np.abs(self.alpha)))

    def point(self) -> Point:
        """Where alpha stands; its gap is the Frank-Wolfe gap of the rows alive."""
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
            violation=unit(self.dual) * self.violation,
        )

    def stats(self) -> dict[str, Any]:
        """What the last round did."""
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
            "stalled": self.stuck and self.fine,
        }

    @property
    def kernel_entries(self) -> int:
        """Kernel entries computed so far."""
        return self.effort.spent + self.survey.entries + self.gram.entries

    @property
    def stuck(self) -> bool:
        """Whether no step is left to make with these kernel entries."""
        return self.still or self.violation <= self.noise
