"""Pair steps and single steps on the dual (SMO): the loop for a kernel matrix in memory.

In terms of ``x_i = r_i alpha_i`` (``r`` the coupling's +-1 where there is one, else the sign) and
``F_i = r_i G_i`` every problem of ``Dual`` reads: maximise ``F . d - 1/2 d' Q d`` over
``low <= x + d <= high``, with a coupling also ``sum d = 0``, and ``Q_ij = f_i f_j K_ij``,
``f = r s``. Without a coupling ``f`` is 1, and for a C-SVC with one too: no sign is left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.dual import FloatArray
from bigscreen.rows import njit
from bigscreen.solvers.smo_scans import (
    free_partner,
    free_step,
    free_units,
    free_update,
    least_curvature,
    note_room,
    pair_partner,
    pair_step,
    pair_update,
)

__all__ = [
    "flips",
    "free_partner",
    "free_step",
    "free_units",
    "free_update",
    "least_curvature",
    "note_room",
    "pair_partner",
    "pair_step",
    "pair_update",
    "smo",
]


def smo(
    K: NDArray[Any],
    sign: FloatArray,
    t: FloatArray,
    lo: FloatArray,
    hi: FloatArray,
    alpha: FloatArray,
    G: FloatArray,
    tol: float,
    max_steps: int,
    second_order: bool = True,
    pairs: bool = True,
) -> tuple[int, float]:
    """Maximise the dual over all rows of a kernel matrix, from a feasible alpha.

    Parameters
    ----------
    K : float32 or float64 (q, q), C-contiguous
        Kernel entries, without signs; the constant's 1 added where there is one.
    sign, lo, hi : float64 (q,)
        ``s`` and the box.
    t : float64 (q,)
        Coupling coefficients, +-1; all 0: no coupling.
    alpha : float64 (q,)
        Within the box; updated. ``t . alpha`` stays what it is.
    G : float64 (q,)
        ``p - s u``, without a multiplier; updated.
    tol : float
        Stop at this violation or below.
    max_steps : int
    second_order : bool
        Choose by the gain in the dual, not by the violation alone.
    pairs : bool
        Without a coupling: move two variables at a time rather than one.

    Returns
    -------
    steps : int
    violation : float
        The largest ``t_i G_i - t_j G_j`` of a pair that can move (m - M), or the largest projected
        gradient. Above ``tol`` where ``max_steps`` or the precision of float64 ended it.
    """
    coupled = bool(np.any(t))
    r = t if coupled else sign
    x, F = r * alpha, r * G
    low, high = np.where(r > 0, lo, -hi), np.where(r > 0, hi, -lo)
    diag = np.diagonal(K).astype(np.float64)
    limits = (tol, max_steps, second_order)
    if coupled:
        found = _coupled(K, flips(r * sign), diag, low, high, x, F, *limits)
    else:
        found = _free(K, diag, low, high, x, F, *limits, pairs)
    alpha[:], G[:] = r * x + 0.0, r * F  # no -0.0 for those who compare bits
    return found


def flips(f: FloatArray) -> NDArray[np.float32] | None:
    """The factors ``f``, None where they cancel out: scans are compiled for either."""
    return None if np.all(f == f[:1]) else f.astype(np.float32)


@njit(cache=True, nogil=True)
def _coupled(K, flip, diag, low, high, x, F, tol, max_steps, second):
    least = least_curvature(diag)
    single = diag.astype(np.float32)
    moves = np.empty(len(x), np.int8)
    note_room(range(len(x)), x, low, high, moves)
    steps, violation = 0, 0.0
    if len(x) == 0:
        return steps, violation
    i = pair_update(F, K[0], K[0], flip, 0.0, 0.0, moves)
    while i >= 0:
        j, violation = pair_partner(F, K[i], flip, i, single, np.float32(least), moves, second)
        if j < 0 or not violation > tol or steps >= max_steps:
            break
        f_i, f_j = (1.0, 1.0) if flip is None else (flip[i], flip[j])
        curvature = diag[i] + diag[j] - 2.0 * f_i * f_j * K[i, j]
        step = pair_step(i, j, curvature, least, low, high, x, F, moves)
        if step == 0.0:  # below the last digit of x
            break
        steps += 1
        i = pair_update(F, K[i], K[j], flip, step * f_i, -step * f_j, moves)
    return steps, violation if i >= 0 else 0.0


@njit(cache=True, nogil=True)
def _free(K, diag, low, high, x, F, tol, max_steps, second, pairs):
    steps, violation = 0, 0.0
    if len(x) == 0:
        return steps, violation
    least = least_curvature(diag)
    unit, curve, inverse, down, up = free_units(diag, low, high, x)
    i, violation = free_update(F, K[0], K[0], 0.0, 0.0, curve, inverse, down, up, second)
    while i >= 0 and violation > tol and steps < max_steps:
        j = i
        if pairs:
            j = free_partner(F, K[i], unit, i, curve, inverse, down, up, second)
        a, b = free_step(i, j, diag[i], diag[j], K[i, j], least, low, high, x, F)
        if a == 0.0 and b == 0.0:  # below the last digit of x
            break
        for k in (i, j):
            down[k], up[k] = (low[k] - x[k]) / unit, (high[k] - x[k]) / unit
        steps += 1
        i, violation = free_update(F, K[i], K[j], a, b, curve, inverse, down, up, second)
    return steps, violation
