"""Whether probabilities hold: of rows that were given one, how often it came true."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.rows import FloatArray

BINS = 10
ALPHA = 0.1
"""What the sets of labels are looked at for."""

NEVER = float(np.finfo(np.float64).eps)
"""The least probability that the logarithm is taken of, as in scikit-learn."""


class Reliability:
    """What `evaluate` says of probabilities and sets of labels, rows being added block by block.

    Parameters
    ----------
    labels : list
    """

    def __init__(self, labels: list[Any]) -> None:
        self.labels, k = labels, len(labels)
        self.rows = np.zeros(k, np.int64)
        self.covered = np.zeros(k, np.int64)
        self.size = 0
        self.loss = self.squares = 0.0
        self.bins = np.zeros((BINS, 3))

    def add(
        self, probabilities: FloatArray, sets: NDArray[np.bool_], truth: NDArray[np.int64]
    ) -> None:
        """Take in rows: probabilities and sets (rows, labels), and their labels' codes."""
        k, own = len(self.labels), np.arange(len(truth))
        self.rows += np.bincount(truth, minlength=k)
        self.covered += np.bincount(truth[sets[own, truth]], minlength=k)
        self.size += int(np.count_nonzero(sets))
        self.loss -= float(np.sum(np.log(probabilities[own, truth].clip(NEVER))))
        if k == 2:
            said, came = probabilities[:, 1], truth == 1
            self.squares += float(np.sum((said - came) ** 2))
        else:
            guess = np.argmax(probabilities, axis=1)
            said, came = probabilities[own, guess], guess == truth
            wrong = probabilities.copy()
            wrong[own, truth] -= 1.0
            self.squares += float(np.sum(wrong**2))
        place = np.minimum((said * BINS).astype(np.int64), BINS - 1)
        for column, weights in enumerate((None, said, came.astype(np.float64))):
            self.bins[:, column] += np.bincount(place, weights, BINS)

    def record(self) -> dict[str, Any]:
        """The findings, JSON-able.

        log_loss, brier (mean squared error of the second label's probability; of more labels
        summed over all), calibration_error (mean over rows of how far a bin's mean probability is
        from the share that came true), reliability (from where, rows, mean probability and share of
        every tenth that has rows: of the second of two labels, else of the likeliest), sets (alpha,
        coverage of all rows and of each label's, size: mean number of labels).
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
                {"from": k / BINS, "rows": int(n), "probability": said / n, "share": came / n}
                for k, (n, said, came) in enumerate(self.bins.tolist())
                if n
            ],
            "sets": {
                "alpha": ALPHA,
                "coverage": int(self.covered.sum()) / total,
                "size": self.size / total,
                "by_label": {str(label): hit / n for label, hit, n in pairs if n},
            },
        }
