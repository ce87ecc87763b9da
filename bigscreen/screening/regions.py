"""Regions that must contain the optimal w: what every safe rule comes down to (MATH sec. 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigscreen.dual import FloatArray


@dataclass(frozen=True)
class Ball:
    """``||w - c|| <= radius``; the scores of the centre live with the rows.

    Parameters
    ----------
    radius : float
        In units of ``||w||``.
    patience : int
        A row is dropped once so many checks running have decided about it.
    """

    radius: float
    patience: int = 1

    def intervals(
        self, scores: FloatArray, norms: FloatArray, slack: float | FloatArray = 0.0
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds on every row's optimal score: ``c_i -+ (r ||phi_i|| + slack)``.

        Parameters
        ----------
        scores, norms : float64 (rows,)
            Scores of the centre and upper bounds of ``||phi_i||``.
        slack : float or float64 (rows,)
            Bound on the error of ``scores`` (rounding, rows not visited since w moved).
        """
        reach = self.radius * norms + slack
        return scores - reach, scores + reach


def intersect(
    one: tuple[FloatArray, FloatArray], other: tuple[FloatArray, FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Intersection of two families of intervals: both regions hold w*, so does their meet."""
    return np.maximum(one[0], other[0]), np.minimum(one[1], other[1])
