"""Numbers that rules of a path are made of, each rounded to the side that is safe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bigscreen.numerics.order_statistic import order_statistic
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual, Mu
from bigscreen.screening.regions import Past, Products, Scores

ROUNDING = 1e-13
"""What a sum in float64 may be off, as a part of the sum of the sizes of its terms.

Added to every squared radius, it also covers what the rounding of single numbers does to scores
and intervals: r is then some 3e-7 ||w|| at least."""


def radius(square: float, size: float) -> float:
    """The radius of a ball whose squared radius was summed from terms of this size."""
    return float(np.sqrt(max(square, 0.0) + ROUNDING * size)) * (1 + 1e-14)


def scaled(scores: Scores, factor: float) -> Scores:
    """The scores of ``factor w``."""
    return Scores(factor * scores.values, abs(factor) * scores.slack)


def spread(coef: FloatArray, slack: FloatArray | float) -> float:
    """Bound of the error of ``sum_j coef_j u_j``, where each u_j may be off by its slack."""
    size = np.abs(coef)
    return float(size @ slack) if np.ndim(slack) else float(np.sum(size)) * float(slack)


def inner(coef: FloatArray, scores: Scores) -> tuple[float, float]:
    """``sum_j coef_j u_j``, the inner product of two w, and a bound of its error."""
    value = float(coef @ scores.values)
    rounding = ROUNDING * float(np.abs(coef) @ np.abs(scores.values))
    return value, spread(coef, scores.slack) + rounding


def doubt(past: Past) -> float:
    """Bound of the error of ``past.w_sq``."""
    return spread(past.alpha, past.scores.slack) + ROUNDING * past.w_sq


def nearest(value: float, past: Sequence[Past]) -> Past | None:
    """The point whose C or nu is nearest, by ratio."""
    return min(past, key=lambda one: abs(np.log(value / one.value)), default=None)


def box_factor(dual: Dual, past: Past) -> float | None:
    """k where the box is k times the box at ``past`` (a held-out row's is 0 in both), else None."""
    before = past.dual
    if not len(dual):
        return None
    largest = int(np.argmax(before.hi - before.lo))
    width = float(before.hi[largest] - before.lo[largest])
    if width <= 0:
        return None
    k = float(dual.hi[largest] - dual.lo[largest]) / width
    same = _times(k, dual.hi, before.hi) and _times(k, dual.lo, before.lo)
    return k if same else None


def total_factor(dual: Dual, past: Past) -> float | None:
    """k where the totals are k times those at ``past``; None if there are none, or no such k."""
    new, old = np.atleast_1d(dual.total), np.atleast_1d(past.dual.total)
    if dual.coupling is None or not np.all(old):
        return None
    k = float(new[0] / old[0])
    return k if np.all(np.abs(new - k * old) <= 1e-12 * np.abs(new)) else None


def gap_bound(dual: Dual, alpha: FloatArray, scores: Scores) -> float:
    """Upper bound of the Frank-Wolfe gap of a feasible alpha, from the scores of w(alpha).

    ``sum (G + slack)+ (hi - alpha) + (slack - G)+ (alpha - lo)``: a row that stands where its
    gradient certainly holds it adds nothing.
    """
    values = scores.values
    mu = dual.multiplier(values) if dual.coupling is not None else 0.0
    slack = scores.slack + _rounding(dual, values, mu)
    G = dual.gradient(values, mu)
    parts = [(G, dual.hi, alpha, dual.lo)]
    if dual.tube is not None:
        # The two variables whose difference alpha is, each with its own gradient and box.
        zero = np.zeros(1)
        parts = [
            (G - dual.tube, dual.hi, np.maximum(alpha, 0.0), zero),
            (-G - dual.tube, -dual.lo, np.maximum(-alpha, 0.0), zero),
        ]
    gap = 0.0
    for gradient, most, at, smallest in parts:
        up, down = gradient + slack, slack - gradient
        gap += float(np.maximum(up, 0.0, out=up) @ (most - at))
        gap += float(np.maximum(down, 0.0, out=down) @ (at - smallest))
    return gap + _infeasible(dual, alpha, values, mu)


def least(dual: Dual, scores: Scores) -> float:
    """Lower bound of ``<a, w(alpha)> - p . alpha + e . |alpha|`` over all feasible alpha.

    ``scores`` are those of a. It is minus the primal's losses at a, at any multiplier.
    """
    values = scores.values
    mu = dual.multiplier(values) if dual.coupling is not None else 0.0
    slack = scores.slack + _rounding(dual, values, mu)
    losses = dual.losses(values - slack, mu)
    np.maximum(losses, dual.losses(values + slack, mu), out=losses)
    constant = float(np.sum(mu * dual.total))
    size = abs(constant) + float(np.sum(np.abs(losses)))
    return -constant - float(np.sum(losses)) - ROUNDING * size


def _times(k: float, new: FloatArray, old: FloatArray) -> bool:
    """Whether new is k old, up to rounding."""
    new, old = (_once(new), _once(old)) if new.strides == old.strides else (new, old)
    off = k * old
    off -= new
    return bool(np.all(np.abs(off, out=off) <= 1e-12 * np.abs(new)))


def _once(values: FloatArray) -> FloatArray:
    """An array of one value that takes no memory is looked at once."""
    return values[:1] if values.strides == (0,) else values


def _largest(values: FloatArray) -> float:
    """``max |values|``, without a temporary."""
    values = _once(values)
    return max(float(np.max(values)), -float(np.min(values))) if len(values) else 0.0


def _rounding(dual: Dual, values: FloatArray, mu: Mu) -> float:
    """Of a gradient, whose terms are a lin, a score and a multiplier."""
    return 1e-15 * (_largest(values) + _largest(dual.lin) + _largest(np.atleast_1d(mu)))


def _infeasible(dual: Dual, alpha: FloatArray, values: FloatArray, mu: Mu) -> float:
    """What a coupling kept only up to rounding can add: the multiplier times what is missing."""
    if dual.coupling is None:
        return 0.0
    x = dual.coupling * alpha
    totals = np.atleast_1d(np.asarray(dual.total, dtype=np.float64))
    sums = np.bincount(dual.group, x, len(totals)) if dual.group is not None else [np.sum(x)]
    largest = _largest(values) + _largest(dual.lin) + _largest(np.atleast_1d(mu))
    return 2.0 * largest * float(np.sum(np.abs(totals - sums)))


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
