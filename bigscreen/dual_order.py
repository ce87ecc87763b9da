"""Weighted order statistics: what multipliers are, and where greedy fills stop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SAMPLE = 1024
"""Values sorted to guess between which two the statistic lies."""


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
    cumulative = below + np.cumsum(weights[order])
    k = int(np.searchsorted(cumulative, threshold))
    return float(values[order[k]]) if k < len(order) else np.inf
