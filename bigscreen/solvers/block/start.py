"""Initial alpha of a block solve: read off a subsample's scores, or rows filled to their bounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import read_off
from bigscreen.problems.violation import extremes, one_sided_gradients
from bigscreen.solvers.block.working_set import choose_multipliers, is_free


def read_at_totals(dual: Dual, scores: FloatArray, h: float) -> FloatArray:
    """Read alpha off the scores, at the multipliers for which it meets the coupling's totals.

    ``scores`` (n,): of all rows, without multipliers. ``h``: half-width of the smoothed loss,
    whose dual point is returned: float64 (n,) (see `read_off`).
    """
    assert dual.coupling is not None
    gradient, alpha = dual.gradient(scores), np.zeros(len(dual))
    for g, total in enumerate(np.atleast_1d(np.asarray(dual.total, np.float64)).tolist()):
        own = np.arange(len(dual)) if dual.group is None else np.flatnonzero(dual.group == g)
        part, t, G = dual[own], dual.coupling[own], gradient[own]
        # Bisection: the sum falls as the multiplier grows.
        ends = [float(f(G / t)) + sign * h for f, sign in ((np.min, -1), (np.max, 1))]
        for _ in range(100):
            at = 0.5 * (ends[0] + ends[1])
            read = read_off(part, G - t * at, h)
            ends[int(float(t @ read) < total)] = at
        alpha[own] = read
    return dual.feasible(alpha, alpha == 0)


def multipliers(part: Dual, alpha: FloatArray, G: FloatArray, groups: int) -> FloatArray:
    """Return the multipliers of a solved part of a dual: means of ``G / t`` over its free rows.

    ``G``: the gradients ``p - s u`` of these rows. ``groups``: the number of groups of rows, each
    with a multiplier. Without free rows a group gets the middle of the interval that its rows
    allow.
    """
    if part.coupling is None:
        return np.zeros(groups)
    v = G / part.coupling
    highest, lowest = extremes(part, alpha, v, groups)
    mu = choose_multipliers(lowest, highest, np.zeros(groups))
    inside = is_free(part, alpha)
    edge, _ = one_sided_gradients(part, alpha, v)
    for g in range(groups):
        own = inside if part.group is None else inside & (part.group == g)
        if np.any(own):
            mu[g] = np.mean(edge[own])
    return mu


def margin_scale(dual: Dual, mu: FloatArray) -> float:
    """Return the scale of this problem's margins, in which the smoothing is measured.

    The mean ``|p|`` of the dual's linear part, else (all p are 0) the mean multiplier, else 1.
    """
    return float(np.mean(np.abs(dual.lin))) or float(abs(np.mean(mu))) or 1.0


def sum_ratio(every: FloatArray, some: FloatArray) -> float:
    """Return the sum of ``every`` divided by the sum of ``some``; 0 if ``some`` is empty."""
    return float(np.sum(every) / np.sum(some)) if len(some) else 0.0


def is_feasible_at_0(dual: Dual) -> bool:
    """Whether alpha = 0 is inside every row's box and meets the coupling's totals."""
    return bool(np.all(dual.lo <= 0) and np.all(dual.hi >= 0)) and not np.any(dual.total)


def fill_to_bounds(dual: Dual, gain: FloatArray) -> FloatArray:
    """Find the feasible alpha (n,) with the largest ``gain . alpha``.

    ``gain`` (n,): any weights of the rows. alpha is at bounds, except for one row per group.

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
