"""The coordinator of the block solver: alpha of all rows, the block, and what the shards say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import AT_HI, AT_ZERO, FREE, Dual, Mu
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import Problem
from bigscreen.problems.violation import apart as ends_apart
from bigscreen.problems.violation import extremes, unit
from bigscreen.screening.regions import Ball
from bigscreen.solvers.block.gram import BlockGram
from bigscreen.solvers.block.kernel_columns import Slots
from bigscreen.solvers.block.messages import gathered, received, shares
from bigscreen.solvers.block.shard import NOTES, BlockProgram, moving
from bigscreen.solvers.block.working_set import Violators, apart, between, chosen, free, merged
from bigscreen.solvers.smo.loop import Limits, smo

LARGEST = 4096
"""Rows of the largest block that takes in some of the rows that are free or violate."""

WHOLE = 8192
"""Rows of the largest block that takes in all of them: they need no turns then."""

SMALLEST = 512
"""Rows of a block at least, if there are so many."""

SAVED = (
    *("alpha", "mu", "offset", "value", "size", "counts", "false_removals", "still", "fine"),
    *("spent", "keys", "screened", "stay", "new", "v", "w_sq", "gap", "rounding"),
    *("highest", "lowest", "alive", "entries", "full_passes", "partial_passes"),
)
"""What a checkpoint holds of the coordinator, as it is."""

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
        self.options, self.design, self.fleet, self.data = options, design, fleet, data
        self.constant = problem.intercept == "constant"
        self.dual = problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
        self.problem = problem
        self.groups = int(np.size(self.dual.total))
        self.live = len(moving(self.dual))
        self.false_removals = self.moves = self.spent = 0
        self.full_passes = self.partial_passes = 0  # moves that all rows heard of, and some
        self.screened = False
        # Equal rows have equal keys, others (almost surely) not.
        self.mark = np.random.default_rng(0).normal(size=data.n_features)
        self.keys = np.zeros(len(self.dual))
        self.begin(design.precision is np.float64)

    def begin(self, fine: bool) -> None:
        """Start the shards at alpha = 0, ``fine``: with kernel entries computed in float64."""
        options, data, kernel = self.options, self.data, self.design.kernel
        assert kernel is not None
        self.fine = fine
        self.size = min(options.size, max(data.n_rows // 8, SMALLEST), data.n_rows)
        self.named = min(data.shard_rows, max(64, 4 * LARGEST // data.n_shards))
        self.slots = Slots(options.cache // ((8 if fine else 4) * data.n_rows), data.n_rows)
        self.fleet.start(self._program(), data.n_shards)
        threads = min(getattr(self.fleet, "workers", 1), os.cpu_count() or 1)
        self.gram = BlockGram(kernel, self.constant, threads, np.float64 if fine else np.float32)
        self.alpha = np.zeros(len(self.dual))
        self.mu = np.zeros(self.groups)
        self.offset = self.value = 0.0
        self.entries = 0
        self.screenings: list[FloatArray] = []  # alpha at every screening round
        self.counts, self.fixed = (0, 0), 0  # rows fixed by the last screening, and by all
        self.still = False
        # The next block: places of the last one that stay, new rows, and v of both.
        self.stay, self.new = np.empty(0, np.int64), np.empty(0, np.int64)
        self.v = np.empty(0)

    def _program(self) -> BlockProgram:
        how = self.slots.capacity, self.named, self.fine
        return BlockProgram(self.design, self.problem, *how)

    # -- blocks --------------------------------------------------------------------------------
    def advance(self) -> None:
        """Solve the chosen block, move its rows, and choose the next one."""
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
            far = apart(self.dual, ids, self.alpha, self.v, self.mu)
            usual = USUAL * float(np.quantile(far, 0.75))
            self.steps(part, alpha, G, depth * min(usual, self.violation), left)
        step = alpha - self.alpha[ids]
        self.value += 0.5 * float(step @ (before + G))
        if part.tube is not None:
            self.value -= float(part.tube @ (np.abs(alpha) - np.abs(self.alpha[ids])))
        # Rows that leave 0 side by side: their columns, most of which are new, are so too.
        changed = np.flatnonzero(step)
        changed = changed[np.argsort(self.alpha[ids[changed]] == 0, kind="stable")]
        self.still = len(changed) == 0
        if part.coupling is not None:
            highest, lowest = extremes(part, alpha, G / part.coupling, self.groups)
            self.mu = between(lowest, highest, self.mu)
        self.move(ids[changed], alpha[changed], self.gram.X[changed], ids)
        if self._lonely:
            self.mu = between(self.lowest, self.highest, self.mu)
            self.look()
        else:
            self.choose()

    @property
    def _lonely(self) -> bool:
        """Whether rows violate on one side of mu alone, and no free row could be their partner.

        mu was that of the block: where all rows are at a bound, it may be an end of the others'.
        """
        dual, ids = self.dual, self.gram.ids
        if dual.coupling is None or self.violation <= self._noise:
            return False
        group: Any = np.zeros(len(dual), np.int8) if dual.group is None else dual.group
        both = np.intersect1d(group[self.ups.ids], group[self.downs.ids])
        return len(both) == 0 and not free(dual[ids], self.alpha[ids]).any()

    def block_gradient(self) -> FloatArray:
        """``p - s u`` of the block's rows (q,)."""
        coupling = self.dual.coupling
        return self.v * (1.0 if coupling is None else coupling[self.gram.ids])

    def steps(self, part: Dual, alpha: FloatArray, G: FloatArray, tol: float, most: int) -> int:
        """Pair steps on a problem of the block's rows; alpha and G are updated."""
        return smo(self.gram.rows, part, alpha, G, Limits(tol, most))[0]

    def enter(self) -> None:
        """Make the chosen block the one whose kernel matrix is at hand."""
        if len(self.new) or len(self.stay) < len(self.gram.ids):
            X = received(self.fleet, self.data, self.new)
            v, rows = self.v.copy(), len(self.stay) + len(self.new)
            # What it grows to next, if not much more: growing copies.
            most = WHOLE if rows > LARGEST else LARGEST if 2 * self.size > LARGEST else self.size
            most = min(most, self.data.n_rows)
            self.v[self.gram.enter(self.stay, self.new, X, max(rows, most))] = v
        self.stay, self.new = np.arange(len(self.gram.ids)), np.empty(0, np.int64)

    def spread(self) -> float:
        """What independent errors of entries are multiplied by in a score (see ``State``)."""
        support = np.flatnonzero(self.alpha)
        coef = np.abs(self.alpha[support])
        if not self.screened:
            return float(coef.sum())  # no rule asks: the bound that costs nothing
        _, group = np.unique(self.keys[support], return_inverse=True)
        return float(np.sqrt(np.sum(np.bincount(group, coef) ** 2)))

    def look(self) -> None:
        """Survey the rows without a move, and choose a block of what there is now."""
        none = np.empty(0, np.int64)
        self.move(none, np.empty(0), self.data.X(0, 0), self.gram.ids[self.stay])
        self.choose()

    def move(
        self, ids: NDArray[np.int64], alpha: FloatArray, X: Any, watch: NDArray[np.int64]
    ) -> None:
        """Tell the shards the new alpha of some rows; read what they answer."""
        change = self.dual.sign[ids] * (alpha - self.alpha[ids])
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
            }
        )
        self.moves += 1
        if len(ids):
            whole = not self.screenings
            self.full_passes += whole
            self.partial_passes += not whole
        notes = dict(zip(NOTES, stack[:, : len(NOTES)].T, strict=True))
        self.w_sq, self.gap = float(notes["w_sq"].sum()), float(notes["gap"].sum())
        self.rounding = float(notes["rounding"].sum())
        self.alive, self.entries = int(notes["alive"].sum()), int(notes["entries"].sum())
        widths = [self.groups, self.groups, *4 * [self.named]]
        parts = np.split(stack[:, len(NOTES) :], np.cumsum(widths), axis=1)
        self.highest, self.lowest = parts[0].max(axis=0), parts[1].min(axis=0)
        at = self.dual, self.alpha, self.mu
        self.ups = merged(parts[2], parts[3], *at)
        self.downs = merged(parts[4], parts[5], *at)
        self.watched = gathered(parts[6], self.data, watch)
        # Whether shards have named all their violators.
        full = np.any(parts[2][:, -1] >= 0) or np.any(parts[4][:, -1] >= 0)
        self.told = self.named == self.data.shard_rows or not full
        if self.alive == self.live:
            # Nothing is fixed: the sums are those of all rows.
            self.value = self.dual.value(self.alpha, self.w_sq)

    def choose(self) -> None:
        """The next block; it grows where more than half of it is free."""
        held = Violators(self.gram.ids[self.stay], self.watched)
        inside = free(self.dual[held.ids], self.alpha[held.ids])
        if np.count_nonzero(inside) > self.size // 2:
            self.size = max(self.size, min(2 * self.size, LARGEST, self.data.n_rows))
        at, named = (self.dual, self.alpha, self.mu), (self.ups, self.downs)
        whole = WHOLE if self.told else 0
        stay, joining = chosen(*at, held, inside, *named, self.size, whole, self.groups)
        self.stay, self.new = self.stay[stay], joining.ids
        self.v = np.concatenate([held.v[stay], joining.v])

    # -- checkpoints ---------------------------------------------------------------------------
    def save(self, folder: Path, meta: dict[str, Any]) -> None:
        """Write a checkpoint: the shards' states and what the coordinator knows."""
        state: dict[str, Any] = {name: getattr(self, name) for name in SAVED}
        state["screenings"] = np.array(self.screenings).reshape(-1, len(self.alpha))
        state |= {f"block_{name}": getattr(self.gram, name) for name in BLOCK}
        self.fleet.save(folder, {**meta, **state})

    def restore(self, folder: Path, meta: dict[str, Any]) -> None:
        """Go on from a checkpoint of ``save``, whose meta this is."""
        if meta["fine"] and not self.fine:
            self.begin(True)
            self.fleet.load(folder)
        for name in SAVED:
            setattr(self, name, meta.get(name, getattr(self, name, None)))
        self.counts = (int(meta["counts"][0]), int(meta["counts"][1]))
        self.screenings = list(meta["screenings"])
        ids, *block = (meta[f"block_{name}"] for name in BLOCK)
        self.gram.restore(received(self.fleet, self.data, ids), ids, *block)

    # -- what check is told --------------------------------------------------------------------
    @property
    def violation(self) -> float:
        """How far the KKT conditions are from holding: m - M, or the largest gradient."""
        return ends_apart(self.highest, self.lowest, self.dual.coupling is not None)

    @property
    def multiplier(self) -> Mu:
        """mu as the dual has it."""
        return self.mu if self.dual.group is not None else float(self.mu[0])

    @property
    def _noise(self) -> float:
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
            self.value + self.gap,
            self.value,
            paired=True,
            alpha=self.alpha.copy(),
            rounding=self.rounding,
            multiplier=() if self.dual.coupling is None else tuple(self.mu.tolist()),
            violation=unit(self.dual) * self.violation,
        )

    def stats(self) -> dict[str, Any]:
        """What the last round did."""
        high, low = self.counts
        return {
            "rows_visited": self.alive,
            "rows_alive": self.alive,
            "fixed_hi": high,
            "fixed_lo": low,
            "kernel_entries": self.kernel_entries,
            "false_removals": self.false_removals,
            "full_passes": int(self.full_passes),
            "partial_passes": int(self.partial_passes),
            "stalled": self.stuck and self.fine,
        }

    @property
    def kernel_entries(self) -> int:
        """Kernel entries computed so far."""
        return self.spent + self.entries + self.gram.entries

    @property
    def stuck(self) -> bool:
        """Whether no step is left to make with these kernel entries."""
        return self.still or self.violation <= self._noise


def screen(solve: BlockRun, region: Ball) -> None:
    """Drop rows that the region proves to stay at the bound they are at."""
    solve.screened = True
    message = {
        "kind": "screen",
        "region": region,
        "offset": solve.offset,
        "spread": solve.spread(),
        "since": len(solve.screenings),
    }
    message["mu"] = _multipliers(solve, message)
    stack, _ = solve.fleet.round(message)
    high, low = stack.sum(axis=0)
    solve.counts = (int(high), int(low))
    solve.fixed += int(high + low)
    if high or low:
        solve.screenings.append(solve.alpha.copy())
        solve.look()  # the block that was chosen may have rows that are gone


def _multipliers(solve: BlockRun, message: dict[str, Any]) -> tuple[Mu, Mu]:
    """An interval that holds the optimal multiplier."""
    if solve.dual.coupling is None:
        return 0.0, 0.0
    stack, _ = solve.fleet.round({**message, "kind": "bounds"})
    lower, upper, side = (part.ravel()[: len(solve.dual)] for part in np.split(stack, 3, axis=1))
    dual = solve.dual
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


def revive(solve: BlockRun) -> None:
    """Take all fixed rows back, brought up to date, and count those fixed wrongly."""
    if solve.screenings:
        past = np.stack(solve.screenings, axis=1)
        moved = np.flatnonzero(np.any(past != solve.alpha[:, None], axis=1))
        change = solve.dual.sign[moved, None] * (solve.alpha[moved, None] - past[moved])
        stack, _ = solve.fleet.round(
            {
                "kind": "revive",
                "since": list(range(past.shape[1])),
                "rows": Operand(solve.data.rows(moved), moved),
                "change": change,
                "mu": solve.mu,
                "offset": solve.offset,
            }
        )
        solve.false_removals += int(stack.sum())
    solve.screenings, solve.counts, solve.fixed = [], (0, 0), 0
    solve.look()
