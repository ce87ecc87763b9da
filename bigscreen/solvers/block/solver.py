"""Block decomposition of the exact kernel machine, over shards.

Every round takes the rows that violate optimality most into a block, keeps half of the last block
that is still free (or it would zig-zag), solves the block's own problem by pair steps, and sends
the rows whose alpha has changed to the shards, which add their kernel columns to the scores. Only
rows that have moved cost a kernel column: n entries each, once, while the cache lasts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import Point, read_off
from bigscreen.problems.recipes import refuse_uncommon
from bigscreen.problems.violation import edges, extremes
from bigscreen.solvers.block.coordinator import BlockRun, revive, screen
from bigscreen.solvers.block.working_set import between, free
from bigscreen.solvers.protocol import Check, Run


@dataclass(frozen=True)
class Block:
    """The block solver.

    Parameters
    ----------
    size : int
        Rows of a block, 4 or more; an eighth of all at most. It doubles, up to 4,096, while more
        rows than half of it are free; up to 8,192 make a block where these are all rows that
        are free or violate.
    cache : int
        Bytes of kernel columns kept, all shards together.
    depth : float
        A block is solved until its violation is this part of that of all rows.
    seed : int
        Of the first block.
    """

    size: int = 2048
    cache: int = 1 << 30
    depth: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 4:
            raise InputError(f"a block needs at least 4 rows, not {self.size}")

    def solve(self, run: Run, check: Check) -> Point:
        """Solve to whatever ``check`` asks for; returns the last point.

        Raises
        ------
        InputError
            For a design with columns: it has better solvers; for squared losses.
        """
        if not run.design.exact:
            raise InputError("the block solver needs an exact kernel; use newton or cd")
        refuse_uncommon(run.problem)
        solve = BlockRun(self, run.design, run.problem, run.fleet)
        folder = run.checkpoint
        meta = None if folder is None else run.fleet.load(folder)
        if folder is not None and meta is not None:
            solve.restore(folder, meta)
            check.restored(meta)
        elif run.start is not None:
            open_at(solve, run.start)
        else:
            open_cold(solve)
        return driven(solve, check)


def driven(solve: BlockRun, check: Check) -> Point:
    """Go from block to block until ``check`` answers None; returns the last point."""
    while True:
        point = solve.point()
        verdict = check(point, solve.stats(), solve.save)
        if verdict is None:
            return point
        if not verdict.restart and not solve.fine and (verdict.doubted or solve.stuck):
            refine(solve)  # check has seen this point and asks for more
            continue
        solve.counts = (0, 0)
        if verdict.restart:
            revive(solve)
        elif verdict.region is not None:
            screen(solve, verdict.region)
        solve.advance()


START_ROWS = 4096
"""Rows of a start that are sent at once."""

BOUNDED = 0.5
"""Part of a subsample's support at its bound from which its solution says something of all rows."""

SMOOTHING = 0.05
"""Half-width h of the reading, in units of the margin."""

SUBSAMPLE_STEPS = 10
"""Most pair steps on the subsample, for each of its rows."""


def open_cold(solve: BlockRun) -> None:
    """Begin at alpha = 0, with a block of random rows, or from what these rows tell of all.

    The random rows' problem, with boxes as much wider as they are fewer, has about the same w.
    Where most of its support is at the bound, alpha of all rows can be read off their scores
    (the smoothed loss's own dual point): many rounds are saved that would bring these rows in a
    block at a time. Where few are, alpha depends on every row by itself and 0 is the better start,
    as it is for a regression, where a small error of w turns alpha of most rows around.

    Where 0 is not feasible there is no such choice: the rows that the subsample's machine finds
    the most wrong are put at their bound, or any where there is no subsample, until the total is
    met.
    """
    rng = np.random.default_rng(solve.options.seed)
    dual = solve.dual
    live = np.flatnonzero(dual.hi > dual.lo)
    kinds = [live[dual.sign[live] > 0], live[dual.sign[live] < 0]]
    half = max(solve.size // 2, solve.size - min(map(len, kinds)))
    picks = [rng.permutation(kind)[:half] for kind in kinds]
    ids = np.concatenate(picks)
    box = dual.hi - dual.lo
    scale = [_ratio(box[kind], box[pick]) for kind, pick in zip(kinds, picks, strict=True)]
    scales = np.repeat(scale, [len(pick) for pick in picks])
    order = np.argsort(ids)
    solve.new, scales = ids[order], scales[order]
    solve.move(np.empty(0, np.int64), np.empty(0), solve.data.X(0, 0), solve.new)
    solve.v = solve.watched
    start = None
    if len(live) > 2 * len(ids) and not np.any(dual.lo < 0):
        start = _read(solve, scales)
    if start is None and not _feasible_at_0(dual):
        start = filled(dual, rng.permutation(len(dual)).astype(np.float64))
    if start is not None:
        open_at(solve, start)


def _read(solve: BlockRun, scales: FloatArray) -> FloatArray | None:
    """A reading of the first block's own solution, if it is good for one."""
    solve.enter()
    ids, dual = solve.gram.ids, solve.dual
    part = dual[ids]
    part = replace(part, lo=part.lo * scales, hi=part.hi * scales)
    alpha, G = np.zeros(len(ids)), solve.block_gradient()
    at_0 = _feasible_at_0(dual)
    if not at_0:
        alpha = filled(part, np.zeros(len(ids)))
        G = part.lin - part.sign * (solve.gram.K @ (part.sign * alpha))
    solve.steps(part, alpha, G, solve.options.depth, SUBSAMPLE_STEPS * len(ids))
    used = np.flatnonzero(alpha)
    bound = (alpha[used] == part.hi[used]) | (alpha[used] == part.lo[used])
    if at_0 and np.count_nonzero(bound) < BOUNDED * max(1, len(used)):
        return None
    mu = _multipliers(part, alpha, G, solve.groups)
    change = part.sign[used] * alpha[used]
    stack, _ = solve.fleet.round(
        {
            "kind": "read",
            "rows": Operand(solve.gram.X[used], ids[used]),
            "change": change,
            "offset": float(change.sum()) if solve.constant else 0.0,
        }
    )
    scores = stack.ravel()[: len(dual)]
    h = SMOOTHING * _unit(dual, mu)
    if at_0 or dual.coupling is None:
        gradient = dual.gradient(scores, mu[0] if dual.group is None else mu)
        return dual.feasible(read_off(dual, gradient, h))
    return _balanced(dual, scores, mu, h)


def _balanced(dual: Dual, scores: FloatArray, mu: FloatArray, h: float) -> FloatArray:
    """A reading at the multipliers that make it meet the totals."""
    assert dual.coupling is not None
    gradient, alpha = dual.gradient(scores), np.zeros(len(dual))
    for g, total in enumerate(np.atleast_1d(np.asarray(dual.total, np.float64)).tolist()):
        own = np.arange(len(dual)) if dual.group is None else np.flatnonzero(dual.group == g)
        part, t, G = dual[own], dual.coupling[own], gradient[own]
        # The sum falls as the multiplier grows.
        ends = [float(f(G / t)) + sign * h for f, sign in ((np.min, -1), (np.max, 1))]
        for _ in range(100):
            at = 0.5 * (ends[0] + ends[1])
            read = read_off(part, G - t * at, h)
            ends[int(float(t @ read) < total)] = at
        alpha[own] = read
    return dual.feasible(alpha, alpha == 0)


def _multipliers(part: Dual, alpha: FloatArray, G: FloatArray, groups: int) -> FloatArray:
    """Those of a solved part: what its free rows agree on."""
    if part.coupling is None:
        return np.zeros(groups)
    v = G / part.coupling
    highest, lowest = extremes(part, alpha, v, groups)
    mu = between(lowest, highest, np.zeros(groups))
    inside = free(part, alpha)
    edge, _ = edges(part, alpha, v)
    for g in range(groups):
        own = inside if part.group is None else inside & (part.group == g)
        if np.any(own):
            mu[g] = np.mean(edge[own])
    return mu


def _unit(dual: Dual, mu: FloatArray) -> float:
    """What a margin of 1 is to this problem: its linear terms, or with none the multipliers."""
    return float(np.mean(np.abs(dual.lin))) or float(abs(np.mean(mu))) or 1.0


def _ratio(every: FloatArray, some: FloatArray) -> float:
    return float(np.sum(every) / np.sum(some)) if len(some) else 0.0


def _feasible_at_0(dual: Dual) -> bool:
    return bool(np.all(dual.lo <= 0) and np.all(dual.hi >= 0)) and not np.any(dual.total)


def filled(dual: Dual, gain: FloatArray) -> FloatArray:
    """The feasible alpha with the largest ``gain . alpha``: at its bounds but for a row a group.

    Raises
    ------
    ValueError
        If no alpha is feasible.
    """
    if dual.coupling is None:
        return np.where(gain > 0, dual.hi, dual.lo)
    t = dual.coupling
    low, high = np.minimum(t * dual.lo, t * dual.hi), np.maximum(t * dual.lo, t * dual.hi)
    x = low.copy()
    order = np.argsort(-gain * t, kind="stable")
    totals = np.atleast_1d(np.asarray(dual.total, dtype=np.float64))
    for g, total in enumerate(totals.tolist()):
        own: NDArray[np.int64] = order if dual.group is None else order[dual.group[order] == g]
        room = (high - low)[own]
        left = total - float(np.sum(low[own]))
        if not -1e-9 * abs(total) <= left <= float(np.sum(room)) + 1e-9 * abs(total):
            raise ValueError("no alpha within the box has the coupling's total")
        x[own] += np.clip(left - (np.cumsum(room) - room), 0.0, room)
    return t * x


def open_at(solve: BlockRun, start: FloatArray) -> None:
    """Take a feasible alpha over."""
    moved = np.flatnonzero(start != solve.alpha)
    for a in range(0, len(moved), START_ROWS):
        ids = moved[a : a + START_ROWS]
        solve.move(ids, start[ids], solve.data.rows(ids), np.empty(0, np.int64))
    if not len(moved):
        solve.look()
    # The value that steps add to: D of the start itself.
    solve.value = solve.dual.value(solve.alpha, solve.w_sq)
    if solve.dual.coupling is not None:
        solve.mu = between(solve.lowest, solve.highest, solve.mu)
    solve.look()


def refine(solve: BlockRun) -> None:
    """Begin again where alpha is, with kernel entries computed in float64.

    The rounding of float32 entries ends in a gap that no step can close.
    """
    alpha, spent = solve.alpha, solve.kernel_entries
    solve.begin(fine=True)
    solve.spent = spent
    open_at(solve, alpha)
