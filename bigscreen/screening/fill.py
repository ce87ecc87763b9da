"""From an alpha of an earlier point to one that is feasible at the next, and its scores."""

from __future__ import annotations

import numpy as np

from bigscreen.dual import Dual, FloatArray
from bigscreen.dual_order import order_statistic
from bigscreen.screening.bounds import box_factor, inner, scaled, total_factor
from bigscreen.screening.past import Past, Products, Scores

Carried = tuple[FloatArray, Scores, float]
"""alpha (n,), scores of w(alpha), and about ``||w(alpha)||^2``."""


def in_the_box(dual: Dual, past: Past) -> tuple[float, Carried] | None:
    """alpha scaled as the box is, which need not keep a total; None if the box does not scale.

    Returns
    -------
    k : float
        The box is k times what it was.
    carried : Carried
    """
    k = box_factor(dual, past)
    if k is None:
        return None
    alpha = np.clip(k * past.alpha, dual.lo, dual.hi)
    return k, (alpha, scaled(past.scores, k), k**2 * past.w_sq)


def carried(dual: Dual, past: Past, products: Products | None) -> Carried | None:
    """A feasible alpha of the new problem close to the one at ``past``.

    Scaling costs nothing. Where it keeps the total but leaves the box, alpha is scaled as the box
    is and what is missing of the total filled up greedily; that takes products with new scores.
    """
    if not np.any(dual.total):
        scaled_up = in_the_box(dual, past)
        return scaled_up[1] if scaled_up is not None else None
    k = total_factor(dual, past)
    if k is not None:
        alpha = k * past.alpha
        if np.all(alpha <= dual.hi * (1 + 1e-13)) and np.all(alpha >= dual.lo - 1e-13 * dual.hi):
            alpha = np.clip(alpha, dual.lo, dual.hi)
            return alpha, scaled(past.scores, k), k**2 * past.w_sq
    start = in_the_box(dual, past)
    if start is None or products is None:
        return None
    _, (alpha, scores, w_sq) = start
    return moved(dual, (alpha, scores, w_sq), greedy(dual, alpha, scores.values), products)


def moved(dual: Dual, start: Carried, alpha: FloatArray, products: Products) -> Carried:
    """The same for another alpha: the scores of the difference are added."""
    before, scores, w_sq = start
    coef = dual.sign * (alpha - before)
    more = products(coef)
    added = Scores(scores.values + more.values, scores.slack + more.slack)
    return alpha, added, w_sq + 2 * abs(inner(coef, scores)[0]) + abs(inner(coef, more)[0])


def greedy(dual: Dual, alpha: FloatArray, scores: FloatArray) -> FloatArray:
    """alpha brought to the coupling's total in as few rows as can be.

    Those move whose gradient gains most, or loses least: the move that a linear program would make
    from an optimal alpha.
    """
    t = dual.coupling
    if t is None:
        return alpha
    x, gain = t * alpha, (dual.lin - dual.sign * scores) / t
    low, high = np.minimum(t * dual.lo, t * dual.hi), np.maximum(t * dual.lo, t * dual.hi)
    totals = np.atleast_1d(np.asarray(dual.total, dtype=np.float64))
    for g, total in enumerate(totals):
        own = slice(None) if dual.group is None else np.flatnonzero(dual.group == g)
        part = x[own]
        missing = float(total - np.sum(part))
        way = 1.0 if missing > 0 else -1.0
        room = high[own] - part if way > 0 else part - low[own]
        cost = -way * gain[own]
        last = order_statistic(cost, room, abs(missing))
        step = np.where(cost < last, room, 0.0)
        # Rows that cost as much as the last one share what is left, the first of them first.
        equal = np.flatnonzero(cost == last)
        before = float(np.sum(step)) + np.cumsum(room[equal]) - room[equal]
        step[equal] = np.clip(abs(missing) - before, 0.0, room[equal])
        x[own] = part + way * step
    # The sums again, rounding included.
    return dual.feasible(t * x)
