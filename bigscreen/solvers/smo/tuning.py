"""Tuned values of the SMO solver."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SmoTuning:
    """Values that change how long an SMO solve takes, never what it proves.

    Parameters
    ----------
    min_steps : int
        On a matrix in memory, check the gap after at least this many pair steps.
    first_steps : int
        Check the gap for the first time after one pair step for each row, but at most this many (a
        quarter of it on a matrix in memory).
    max_scanned : int
        Later checks on a matrix in memory come after an eighth more steps, or earlier, once the
        steps have scanned this many variables: approximately 10 ms.
    rounding_fraction : float
        Compute entries in float64 once float32 errors exceed this fraction of the gap.
    measured_rows : int
        Compute the scores of this many rows in float64 to measure the errors of float32 scores.
    score_tol : float
        Relative error of F (dual gradients, float64 sums of many terms), in units of the largest
        |F|: smaller violations count as rounding.
    """

    min_steps: int = 100
    first_steps: int = 1000
    max_scanned: int = 1 << 24
    rounding_fraction: float = 0.25
    measured_rows: int = 32
    score_tol: float = 1e-13
