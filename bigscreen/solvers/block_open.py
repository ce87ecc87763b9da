"""Where the block solver begins: at alpha = 0, at a reading of a subsample's solution, or given."""

from __future__ import annotations

import numpy as np

from bigscreen.dual import FloatArray
from bigscreen.kernels import Side
from bigscreen.solvers.block_solve import Solve, between
from bigscreen.solvers.smo import smo

MOVED = 4096
"""Rows of a start that are sent at once."""

BOUNDED = 0.5
"""Part of a subsample's support at its bound from which its solution says something of all rows."""

SMOOTHING = 0.05
"""Half-width h of the reading, in units of the margin."""

STEPS = 10
"""Most pair steps on the subsample, for each of its rows."""


def open_cold(solve: Solve) -> None:
    """Begin at alpha = 0, with a block of random rows, or from what these rows tell of all.

    The random rows' problem, with boxes as much wider as they are fewer, has about the same w.
    Where most of its support is at the bound, alpha of all rows can be read off their scores
    (the smoothed hinge's own dual point): many rounds are saved that would bring these rows in a
    block at a time. Where few are, alpha depends on every row by itself and 0 is the better start.
    """
    rng = np.random.default_rng(solve.options.seed)
    dual = solve.dual
    live = np.flatnonzero(dual.hi > dual.lo)
    kinds = [live[dual.sign[live] > 0], live[dual.sign[live] < 0]]
    half = max(solve.size // 2, solve.size - min(map(len, kinds)))
    picks = [rng.permutation(kind)[:half] for kind in kinds]
    ids = np.concatenate(picks)
    scale = [len(kind) / max(1, len(pick)) for kind, pick in zip(kinds, picks, strict=True)]
    scales = np.repeat(scale, [len(pick) for pick in picks])
    order = np.argsort(ids)
    solve.new, scales = ids[order], scales[order]
    solve.move(np.empty(0, np.int64), np.empty(0), solve.data.X(0, 0), solve.new)
    solve.v = solve.watched
    if len(live) > 2 * len(ids):
        _read(solve, scales)


def _read(solve: Solve, scales: FloatArray) -> None:
    """Begin at a reading of the first block's own solution, if it is good for one."""
    solve.enter()
    ids = solve.gram.ids
    part = solve.dual[ids]
    t = np.ascontiguousarray(solve.t[ids])
    lo, hi = part.lo * scales, part.hi * scales
    alpha, G = np.array(part.lo), solve.v * np.where(t == 0, 1.0, t)
    smo(
        solve.gram.K,
        np.ascontiguousarray(part.sign),
        t,
        lo,
        hi,
        alpha,
        G,
        solve.options.depth,
        STEPS * len(ids),
    )
    used = np.flatnonzero(alpha != lo)
    if np.count_nonzero(alpha[used] == hi[used]) < BOUNDED * max(1, len(used)):
        return
    free = (alpha > lo) & (alpha < hi) & (t != 0)
    mu = float(np.mean(G[free] / t[free])) if np.any(free) else 0.0
    change = part.sign[used] * alpha[used]
    stack, _ = solve.fleet.round(
        {
            "kind": "read",
            "rows": Side(solve.gram.X[used], ids[used]),
            "change": change,
            "mu": mu,
            "offset": float(change.sum()) if solve.constant else 0.0,
            "h": SMOOTHING,
        }
    )
    read = stack.ravel()[: len(solve.dual)]
    positive = solve.dual.sign > 0
    keep = solve.problem.feasible(float(read[positive].sum()), float(read[~positive].sum()))
    open_at(solve, read * np.where(positive, keep[0], keep[1]))


def open_at(solve: Solve, start: FloatArray) -> None:
    """Take a feasible alpha over."""
    moved = np.flatnonzero(start != solve.alpha)
    for a in range(0, len(moved), MOVED):
        ids = moved[a : a + MOVED]
        solve.move(ids, start[ids], solve.data.rows(ids), np.empty(0, np.int64))
    if not len(moved):
        solve.look()
    # The value that steps add to: D of the start itself.
    solve.value = solve.dual.value(solve.alpha, solve.w_sq)
    if solve.dual.coupling is not None:
        solve.mu = between(solve.lowest, solve.highest)
    solve.look()


def refine(solve: Solve) -> None:
    """Begin again where alpha is, with kernel entries computed in float64.

    The rounding of float32 entries ends in a gap that no step can close.
    """
    alpha, spent = solve.alpha, solve.kernel_entries
    solve.begin(fine=True)
    solve.spent = spent
    open_at(solve, alpha)
