"""Weighted order statistics, which give optimal multipliers and the ends of greedy fills."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WEIGHT_TOL = 1e-12
"""Treat two sums of weights as equal if they differ by less than this fraction of the total
weight."""


def middle_order_statistic(
    values: NDArray[np.float64], weights: NDArray[np.float64], threshold: float
) -> float:
    """Return the midpoint of the interval of all weighted order statistics for this threshold.

    A convex function whose slope is ``weight of the values below - threshold`` is minimal on an
    interval. It is usually a single value; if the weight of the smallest values equals the
    threshold, it reaches from the largest of them to the next value. If one end is infinite, the
    other end is returned.

    Parameters
    ----------
    values, weights, threshold
        As in `order_statistic`. Weights that miss the threshold by rounding count as equal to it.

    Returns
    -------
    float
        0 if all weights are 0.
    """
    level = WEIGHT_TOL * float(np.sum(weights))
    if level == 0:
        return 0.0
    low, high = _statistics(values, weights, threshold, level)
    if low < high:
        # The tolerance must not hide a value with a tiny weight.
        least = 0.25 * float(np.min(weights[weights > 0]))
        if least < level:
            low, high = _statistics(values, weights, threshold, least)
    if np.isfinite(low) and np.isfinite(high):
        return low + 0.5 * (high - low)
    return low if np.isfinite(low) else high


def _statistics(
    values: NDArray[np.float64], weights: NDArray[np.float64], threshold: float, level: float
) -> tuple[float, float]:
    """Return the order statistics at ``threshold - level`` and at ``threshold + level``.

    ``level``: sums of weights that differ by less count as equal.
    """
    low = order_statistic(values, weights, threshold - level)
    if np.isfinite(low) and float(np.sum(weights * (values <= low))) >= threshold + level:
        return low, low  # the usual case: saves one pass
    return low, order_statistic(values, weights, threshold + level)


def order_statistic(
    values: NDArray[np.float64], weights: NDArray[np.float64], threshold: float
) -> float:
    """Find the smallest value such that all values up to it weigh at least the threshold.

    Parameters
    ----------
    values : float64 (n,)
    weights : float64 (n,), not negative
    threshold : float

    Returns
    -------
    float
        -inf if the threshold is at most 0, inf if all weights together do not reach it.
    """
    if threshold <= 0:
        return -np.inf
    below, total, sample = 0.0, float(np.sum(weights)), 1024
    # Two sampled values likely enclose the statistic. Drop the values outside, or, if it is not
    # between them, the values on the other side.
    while len(values) > 2 * sample:
        some = slice(None, None, len(values) // sample)
        tried = values[some]
        order = np.argsort(tried)
        share = np.cumsum(weights[some][order])
        part = (threshold - below) / total if total > 0 else 0.0
        k, room = int(np.searchsorted(share, part * share[-1])), int(1.5 * len(tried) ** 0.5)
        first, last = tried[order[[max(k - room, 0), min(k + room, len(tried) - 1)]]]
        left, right = values < first, values > last
        # Products with a mask: indexing with a random mask costs ten times as much.
        lighter, heavier = float(np.sum(weights * left)), float(np.sum(weights * right))
        if below + lighter >= threshold:
            keep, total = left, lighter
        elif below + (total - heavier) < threshold:
            keep, below, total = right, below + (total - heavier), heavier
        else:
            keep, below, total = ~(left | right), below + lighter, total - lighter - heavier
            if keep.all():
                break
        rest = np.flatnonzero(keep)
        values, weights = values[rest], weights[rest]
    order = np.argsort(values, kind="stable")
    # (Many equal values may be left, so the sum needs extra digits.)
    cumulative = below + np.cumsum(weights[order], dtype=np.longdouble)
    k = int(np.searchsorted(cumulative, threshold))
    return float(values[order[k]]) if k < len(order) else np.inf
