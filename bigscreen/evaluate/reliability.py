"""Tests of probabilities, label sets and intervals against true labels and targets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.model.calibration import Evidence
from bigscreen.model.residuals import Residuals
from bigscreen.numerics.rows import FloatArray

LEAST_PROBABILITY = float(np.finfo(np.float64).eps)
"""The log loss raises smaller probabilities to this one, as scikit-learn does."""


class Reliability:
    """Measures of predicted probabilities and label sets, summed block by block.

    Parameters
    ----------
    labels : list
    alpha : float
        The label sets that are added hold the true label with a probability of 1 - alpha.
    bins : int
        Bins of the probabilities, for the calibration error.
    """

    def __init__(self, labels: list[Any], alpha: float = 0.1, bins: int = 10) -> None:
        """Start with no rows.

        ``rows``, ``covered``: rows of each label, and those whose label set holds it; ``size``:
        labels in all sets; ``loss``, ``squares``: sums for the log loss and the Brier score;
        ``bins``: for each bin its rows, the sum of their probabilities, and how many came true.
        """
        self.labels, self.alpha, k = labels, alpha, len(labels)
        self.rows = np.zeros(k, np.int64)
        self.covered = np.zeros(k, np.int64)
        self.size = 0
        self.loss = self.squares = 0.0
        self.bins = np.zeros((bins, 3))

    def add(
        self, probabilities: FloatArray, sets: NDArray[np.bool_], truth: NDArray[np.int64]
    ) -> None:
        """Add rows to the sums.

        ``probabilities`` and ``sets`` (whether a row's label set holds a label): (rows, labels);
        ``truth``: codes of the true labels, (rows,).
        """
        k, own = len(self.labels), np.arange(len(truth))
        self.rows += np.bincount(truth, minlength=k)
        self.covered += np.bincount(truth[sets[own, truth]], minlength=k)
        self.size += int(np.count_nonzero(sets))
        self.loss -= float(np.sum(np.log(probabilities[own, truth].clip(LEAST_PROBABILITY))))
        if k == 2:
            said, came = probabilities[:, 1], truth == 1
            self.squares += float(np.sum((said - came) ** 2))
        else:
            guess = np.argmax(probabilities, axis=1)
            said, came = probabilities[own, guess], guess == truth
            wrong = probabilities.copy()
            wrong[own, truth] -= 1.0
            self.squares += float(np.sum(wrong**2))
        bins = len(self.bins)
        place = np.minimum((said * bins).astype(np.int64), bins - 1)
        for column, weights in enumerate((None, said, came.astype(np.float64))):
            self.bins[:, column] += np.bincount(place, weights, bins)

    def record(self) -> dict[str, Any]:
        """Return the measures, JSON-able.

        log_loss; brier: mean squared error of the second label's probability, or with more labels
        summed over all; calibration_error: mean over rows of the distance between a bin's mean
        probability and its share of true predictions; reliability: for every bin with rows, where
        it starts, its rows, mean probability and share of true predictions (of the second of two
        labels, else of the likeliest label); sets: alpha, coverage of all rows and of each label's
        rows, and size, the mean number of labels in a set.
        """
        total = int(self.rows.sum())
        filled = self.bins[self.bins[:, 0] > 0]
        error = float(np.sum(np.abs(filled[:, 1] - filled[:, 2]))) / total
        pairs = zip(self.labels, self.covered.tolist(), self.rows.tolist(), strict=True)
        return {
            "log_loss": self.loss / total,
            "brier": self.squares / total,
            "calibration_error": error,
            "reliability": [
                {
                    "from": k / len(self.bins),
                    "rows": int(n),
                    "probability": said / n,
                    "share": came / n,
                }
                for k, (n, said, came) in enumerate(self.bins.tolist())
                if n
            ],
            "sets": {
                "alpha": self.alpha,
                "coverage": int(self.covered.sum()) / total,
                "size": self.size / total,
                "by_label": {str(label): hit / n for label, hit, n in pairs if n},
            },
        }


class Coverage:
    """How many targets lie in their conformal intervals, and how wide these are, block by block.

    Parameters
    ----------
    residuals : Residuals
        Their intervals are made at alpha .1; one-sided ones at the share of rows that lie beyond
        the quantile of the machine.
    """

    def __init__(self, residuals: Residuals) -> None:
        """Start with no rows; ``width`` sums the widths of all intervals."""
        self.residuals, tau = residuals, residuals.tau
        self.alpha = 0.1 if tau == 0.5 else min(tau, 1.0 - tau)
        self.rows = self.covered = 0
        self.width = 0.0

    def add(self, evidence: Evidence, y: FloatArray) -> None:
        """Add rows with their targets ``y``, (rows,), to the sums."""
        low, high = self.residuals.intervals(evidence, self.alpha).T
        self.rows += len(y)
        self.covered += int(np.count_nonzero((low <= y) & (y <= high)))
        self.width += float(np.sum(high - low))

    def record(self) -> dict[str, Any]:
        """Return the measures, JSON-able.

        alpha; coverage: share of targets in their intervals; width: mean width, None if an interval
        is infinite.
        """
        width = self.width / self.rows
        return {
            "alpha": self.alpha,
            "coverage": self.covered / self.rows,
            "width": width if math.isfinite(width) else None,
        }
