"""ROC and precision-recall curves, and histograms, of the scores of two groups of rows."""

from typing import Any

import numpy as np

from bigscreen.numerics.rows import FloatArray


def curve(positive: FloatArray, negative: FloatArray, points: int = 201) -> dict[str, Any]:
    """Compute recall, false positive rate and precision at descending thresholds.

    Parameters
    ----------
    positive, negative : (rows,) float64 ndarray
        Ascending scores of the rows with the positive label, and of all other rows; at least one
        of each.
    points : int
        At most this many thresholds: scores at equally spaced ranks, ending with the lowest score.

    Returns
    -------
    dict
        threshold, recall, false_positive_rate, precision: lists of floats. Rows that score at
        least the threshold are predicted to be positive. The first threshold is above all scores
        (its precision is the second threshold's).
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


def histogram(positive: FloatArray, negative: FloatArray, bins: int = 60) -> dict[str, Any]:
    """Count the rows of two groups by score: edges (bins + 1), positive and negative (bins).

    Parameters
    ----------
    positive, negative : (rows,) float64 ndarray
        Ascending scores. The edges leave out half a percent of the rows at either end; the
        outermost bins count these rows as well.
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
    """Pick the lowest and the highest score, and scores at equally spaced ranks between."""
    ranks = np.linspace(0, len(scores) - 1, min(points, len(scores))).round().astype(np.int64)
    found: FloatArray = scores[ranks]
    return found
