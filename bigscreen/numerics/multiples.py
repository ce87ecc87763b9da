"""Compare coefficient vectors of which one is a multiple of the other in most rows.

Neighbouring points of a regularisation path are related like that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.rows import FloatArray

SCALING_TOL = 4 * 2.0**-52
"""Treat a coefficient as a multiple of another, as far as rounding can tell, if it differs from the
multiple by at most this fraction of itself."""


def find_multiple(before: FloatArray, coef: FloatArray) -> tuple[float, NDArray[np.int64]]:
    """Find the multiple of ``before`` that differs from ``coef`` in the fewest rows.

    Both are coefficients of rows, float64 (n,). A few likely factors are tried, not all.

    Returns
    -------
    (the factor, the rows that differ, int64 ascending)
    """
    there = np.flatnonzero(before)
    factors = [1.0, 0.0]
    if len(there):
        # Try the median ratio, and that of the largest coefficient, which is likely at its bound:
        # rows at their bounds scale with C.
        with np.errstate(over="ignore"):
            ratios = coef[there] / before[there]
        largest = int(np.argmax(np.abs(before[there])))
        known = [float(np.median(ratios)), float(ratios[largest])]
        factors = [*(factor for factor in known if np.isfinite(factor)), *factors]
    best = None
    for factor in factors:
        off = np.abs(coef - factor * before) > SCALING_TOL * np.abs(coef)
        moved = np.flatnonzero(off)
        if best is None or len(moved) < len(best[1]):
            best = factor, moved
    assert best is not None
    return best
