"""How right the scores of two groups of rows are at every threshold, and how they are spread."""

from typing import Any

import numpy as np

from bigscreen.numerics.rows import FloatArray

POINTS, BINS = 201, 60


def curve(positive: FloatArray, negative: FloatArray, points: int = POINTS) -> dict[str, Any]:
    """Recall, false positive rate and precision at thresholds from the highest score down.

    Parameters
    ----------
    positive, negative : (rows,) float64 ndarray
        Scores, sorted upwards, of the rows that have the positive label and of the others; each
        at least one.
    points : int
        Most thresholds: they are scores at equal ranks of all rows, the least score the last.

    Returns
    -------
    dict
        threshold, recall, false_positive_rate, precision: lists of floats. At a threshold, the rows
        that score as high or higher are taken for positive; the first threshold is above all
        scores, and takes none (its precision is that of the next one).
    """
    thresholds = np.unique(np.concatenate([_ranked(positive, points), _ranked(negative, points)]))
    if len(thresholds) > points:
        kept = np.linspace(0, len(thresholds) - 1, points).round().astype(np.int64)
        thresholds = thresholds[kept]
    thresholds = thresholds[::-1]
    right = len(positive) - np.searchsorted(positive, thresholds, side="left")
    wrong = len(negative) - np.searchsorted(negative, thresholds, side="left")
    precision = right / (right + wrong)
    above = np.nextafter(thresholds[0], np.inf)
    return {
        "threshold": [float(above), *thresholds.tolist()],
        "recall": [0.0, *(right / len(positive)).tolist()],
        "false_positive_rate": [0.0, *(wrong / len(negative)).tolist()],
        "precision": [float(precision[0]), *precision.tolist()],
    }


def histogram(positive: FloatArray, negative: FloatArray, bins: int = BINS) -> dict[str, Any]:
    """Rows of two groups by score: edges (bins + 1), positive and negative (bins).

    Parameters
    ----------
    positive, negative : (rows,) float64 ndarray
        Scores, sorted upwards. The outermost bins hold what lies beyond the edges, which leave out
        half a percent of the rows at either end.
    bins : int
    """
    groups = [group for group in (positive, negative) if len(group)]
    low = min(float(group[len(group) // 200]) for group in groups)
    high = max(float(group[-1 - len(group) // 200]) for group in groups)
    if not low < high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, bins + 1)
    inner = {"positive": positive, "negative": negative}
    counts = {
        name: np.diff(
            np.searchsorted(group, edges[1:-1], side="left"), prepend=0, append=len(group)
        )
        for name, group in inner.items()
    }
    return {"edges": edges.tolist(), **{name: rows.tolist() for name, rows in counts.items()}}


def _ranked(scores: FloatArray, points: int) -> FloatArray:
    """The least score, the highest, and those at equal ranks between."""
    ranks = np.linspace(0, len(scores) - 1, min(points, len(scores))).round().astype(np.int64)
    found: FloatArray = scores[ranks]
    return found
