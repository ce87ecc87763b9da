"""Weighted order statistics: what multipliers are, and where greedy fills stop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SAMPLE = 1024
"""Values sorted to guess between which two the statistic lies."""

LEVEL = 1e-12
"""Part of all weight by which sums that are equal may seem to differ: rounding."""


def middle(values: NDArray[np.float64], weights: NDArray[np.float64], threshold: float) -> float:
    """The middle of the interval of which every number is a weighted order statistic.

    A convex function whose slope is ``weight of the values below - threshold`` is least on an
    interval: a single value as a rule; but where the weight of some values is just the threshold,
    all between them and the next one. Without an end on one side it is the other end.

    Parameters
    ----------
    values, weights, threshold
        As `order_statistic` takes them. What is missing from a threshold by rounding is not
        missing.

    Returns
    -------
    float
        0 where nothing has any weight.
    """
    level = LEVEL * float(np.sum(weights))
    if level == 0:
        return 0.0
    low, high = _statistics(values, weights, threshold, level)
    if low < high:
        # However light a value is beside the others, it counts.
        least = 0.25 * float(np.min(weights[weights > 0]))
        if least < level:
            low, high = _statistics(values, weights, threshold, least)
    if np.isfinite(low) and np.isfinite(high):
        return low + 0.5 * (high - low)
    return low if np.isfinite(low) else high


def _statistics(
    values: NDArray[np.float64], weights: NDArray[np.float64], threshold: float, level: float
) -> tuple[float, float]:
    """The statistics at so much less than the threshold, and so much more."""
    low = order_statistic(values, weights, threshold - level)
    if np.isfinite(low) and float(np.sum(weights * (values <= low))) >= threshold + level:
        return low, low  # as a rule: one pass less
    return low, order_statistic(values, weights, threshold + level)


def order_statistic(
    values: NDArray[np.float64], weights: NDArray[np.float64], threshold: float
) -> float:
    """The smallest value at which the weight of all values up to it reaches the threshold.

    Parameters
    ----------
    values : float64 (n,)
    weights : float64 (n,), not negative
    threshold : float

    Returns
    -------
    float
        -inf for a threshold of 0 or less, inf for one that all weights together do not reach.
    """
    if threshold <= 0:
        return -np.inf
    below, total = 0.0, float(np.sum(weights))
    # Two values of a sample are likely on either side of it: what is outside goes, whichever side
    # it turns out to be on.
    while len(values) > 2 * SAMPLE:
        some = slice(None, None, len(values) // SAMPLE)
        tried = values[some]
        order = np.argsort(tried)
        share = np.cumsum(weights[some][order])
        part = (threshold - below) / total if total > 0 else 0.0
        k, room = int(np.searchsorted(share, part * share[-1])), int(1.5 * len(tried) ** 0.5)
        first, last = tried[order[[max(k - room, 0), min(k + room, len(tried) - 1)]]]
        left, right = values < first, values > last
        # Products and numbers: a mask that picks at random costs ten times as much.
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
    # (Of many equal values there can be more than some: their sum is to have all its digits.)
    cumulative = below + np.cumsum(weights[order], dtype=np.longdouble)
    k = int(np.searchsorted(cumulative, threshold))
    return float(values[order[k]]) if k < len(order) else np.inf
