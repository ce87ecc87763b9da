"""Newton steps on the variables that are free: what pair steps crawl towards where K is nearly
singular, as it is for wide kernels, small nu, and optima known to many digits.

A variable at a bound, or at 0 in a tube, stays; the others go to the optimum of the quadratic that
is left, or as far towards it as their box lets them. D never falls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from bigscreen.dual import Dual, FloatArray

LARGEST = 2000
"""Free variables that are solved for at once, at most: a factor of their square is computed."""

ROUNDS = 4
"""Times that a step which met a bound is followed by one without the variables in its way."""

RIDGE = 1e-13
"""Added to the diagonal, as a part of its largest entry."""


def face_steps(
    K: NDArray[Any], dual: Dual, alpha: FloatArray, scores: FloatArray, live: NDArray[np.int64]
) -> FloatArray:
    """alpha after Newton steps on the free variables among these rows.

    Parameters
    ----------
    K : float64 (n, n)
    dual : Dual
        Of all rows.
    alpha, scores : float64 (n,)
        Feasible, and the scores of w(alpha).
    live : int64 (rows,)

    Returns
    -------
    float64 (n,)
        Feasible; the array given where nothing is free.
    """
    part, x = dual[live], alpha[live]
    low, high, G = part.lo, part.hi, part.lin - part.sign * scores[live]
    if part.tube is not None:
        low, high = np.where(x > 0, 0.0, low), np.where(x < 0, 0.0, high)
        G -= part.tube * np.sign(x)
        inside = (x > low) & (x < high) & (x != 0)
    else:
        inside = (x > low) & (x < high)
    free = np.flatnonzero(inside)
    if not 0 < len(free) <= LARGEST:
        return alpha
    rows = live[free]
    part, x, low, high, G = part[free], x[free], low[free], high[free], G[free]
    Q = K[np.ix_(rows, rows)] * part.sign
    Q *= part.sign[:, None]
    rest = np.arange(len(free))
    for _ in range(ROUNDS):
        d = _direction(Q, part, G, rest)
        if d is None:
            break
        Qd = Q @ d
        gain, curvature = float(G @ d), float(d @ Qd)
        if gain <= 0:
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(d > 0, (high - x) / d, np.where(d < 0, (low - x) / d, np.inf))
        most = float(np.min(room))
        size = min(gain / curvature if curvature > 0 else np.inf, most)
        if not np.isfinite(size):
            break
        x = np.clip(x + size * d, low, high)
        x[(room <= size) & (d > 0)] = high[(room <= size) & (d > 0)]
        x[(room <= size) & (d < 0)] = low[(room <= size) & (d < 0)]
        G -= size * Qd
        if size < most:
            break
        rest = rest[room[rest] > 1.0]
    found = alpha.copy()
    found[rows] = x
    return found


def _direction(
    Q: FloatArray, part: Dual, G: FloatArray, rest: NDArray[np.int64]
) -> FloatArray | None:
    """The Newton step of the variables ``rest`` that keeps every coupling, 0 for the others."""
    if not len(rest):
        return None
    whole = len(rest) == len(G)
    own = Q.copy() if whole else Q[np.ix_(rest, rest)]
    own[np.diag_indices_from(own)] += RIDGE * float(np.max(np.diagonal(own))) + 1e-300
    try:
        factor = cho_factor(own, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None
    g, d = G[rest], np.zeros(len(G))
    if part.coupling is None:
        d[rest] = cho_solve(factor, g, check_finite=False)
        return d
    t = part.coupling[rest]
    group = np.zeros(len(rest), np.int8) if part.group is None else part.group[rest]
    A = np.equal.outer(group, np.unique(group)) * t[:, None]
    # Without its mean the gradient is small, and so is what the solution is rounded by.
    g = g - A @ (A.T @ g / np.count_nonzero(A, axis=0))
    solved = cho_solve(factor, np.column_stack([g, A]), check_finite=False)
    try:
        mu = np.linalg.solve(A.T @ solved[:, 1:], A.T @ solved[:, 0])
    except np.linalg.LinAlgError:
        return None
    step = solved[:, 0] - solved[:, 1:] @ mu
    step -= A @ (A.T @ step / np.count_nonzero(A, axis=0))
    d[rest] = step
    return d
