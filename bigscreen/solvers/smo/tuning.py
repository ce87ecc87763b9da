"""Tuned values of the SMO solver."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SmoTuning:
    """Values that change how long an SMO solve takes, never what it proves.

    Parameters
    ----------
    min_steps : int
        On a kernel matrix in memory, take at least this many pair steps between two checks of the
        gap.
    first_steps : int
        Check the gap for the first time after one pair step for each row, but at most this many (on
        a kernel matrix in memory, after a quarter of these).
    max_scanned : int
        On a kernel matrix in memory, an eighth more pair steps may come before the next check than
        have been taken so far, but not more than scan this many variables (approximately 10 ms).
    rounding_fraction : float
        Compute kernel entries in float64, no longer in float32, once rounding can account for more
        than this fraction of the gap (of the violation, if the kernel is indefinite).
    measured_rows : int
        Compute the scores of this many rows in float64 too, to measure the errors of their float32
        scores.
    score_tol : float
        Treat a violation of the optimality conditions as rounding if it is at most this fraction of
        the largest |F|, or of 1 if that is larger, where F is the gradient of the dual (float64
        sums of many terms).
    """

    min_steps: int = 100
    first_steps: int = 1000
    max_scanned: int = 1 << 24
    rounding_fraction: float = 0.25
    measured_rows: int = 32
    score_tol: float = 1e-13
