"""Numbers that rules of a path are made of, each rounded to the side that is safe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bigscreen.dual import Dual, FloatArray, Mu
from bigscreen.screening.past import Past, Scores

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
