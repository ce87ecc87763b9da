"""The smoothed loss, row by row: its sides and zones, and its values along a step.

Every hinge is Huber-smoothed with half-width h: a box ``[lo, hi]`` is a hinge of height ``hi`` and
one of ``-lo`` the other way round, both at G = 0, or at the two ends of a tube. Between a hinge's
``-h`` and ``h``, its zone, alpha runs from one end of it to the other; everywhere else alpha is at
a side: ``hi``, ``lo``, or 0 within the tube. A squared hinge is smooth as it is: its zone, which
no h moves, is all that is above its kink.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.dual import AT_HI, AT_LO, AT_ZERO, FREE, Dual, FloatArray
from bigscreen.rows import njit


def tube_of(dual: Dual) -> FloatArray:
    """Half the width of every row's tube (rows,)."""
    return np.zeros(len(dual)) if dual.tube is None else np.ascontiguousarray(dual.tube)


def off_kink(dual: Dual, z: FloatArray) -> FloatArray:
    """How far gradients z are from the nearest kink of their loss (rows,)."""
    size = np.abs(z)
    return size if dual.tube is None else np.abs(size - dual.tube)


def sides(dual: Dual, z: FloatArray, h: float) -> NDArray[np.int8]:
    """Where alpha is at gradients z (rows,): at an end, at 0 within the tube, or FREE."""
    tube: Any = 0.0 if dual.tube is None else dual.tube
    found = [z > tube + h, z < -tube - h, np.abs(z) < tube - h]
    if dual.curve is not None:
        found[0] &= np.isfinite(dual.hi)
        found[1] &= np.isfinite(dual.lo)
    return np.select(found, [AT_HI, AT_LO, AT_ZERO], FREE).astype(np.int8)


def side_value(dual: Dual, side: NDArray[np.int8]) -> FloatArray:
    """The value of alpha at a side; 0 in the zone and where no side is known yet."""
    return np.where(side == AT_HI, dual.hi, np.where(side == AT_LO, dual.lo, 0.0))


def zone_widths(dual: Dual, z: FloatArray, h: float) -> tuple[FloatArray, FloatArray]:
    """Of rows in a zone: how far alpha runs across it, and alpha at its middle (rows,) each.

    A tube has two zones, which overlap where it is narrower than h.
    """
    if dual.tube is None:
        return dual.hi - dual.lo, 0.5 * (dual.lo + dual.hi)
    upper = np.where(np.abs(z - dual.tube) <= h, dual.hi, 0.0)
    lower = np.where(np.abs(z + dual.tube) <= h, -dual.lo, 0.0)
    return upper + lower, 0.5 * (upper - lower)


def curvature(dual: Dual, z: FloatArray, h: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """How much rows of a zone curve the loss, and `zone_widths`, all 0 where no h matters."""
    if dual.curve is not None:
        return dual.reach, np.zeros(len(dual)), np.zeros(len(dual))
    width, middle = zone_widths(dual, z, h)
    return width / (2 * h), width, middle


@njit(cache=True, nogil=True)
def segment_losses(z, dz, lo, hi, tube, h, steps, losses, curve=None):  # type: ignore[no-untyped-def]
    """Smoothed (row 0) and plain (row 1) losses at ``z + t dz`` for every step length t."""
    for k in range(len(steps)):
        smooth, plain = 0.0, 0.0
        for i in range(len(z)):
            g = z[i] + steps[k] * dz[i]
            # The hinge above the tube and, with a box below 0, the one under it.
            over = g - tube[i]
            if curve is not None:
                under = -g - tube[i]
                if over > 0.0 and hi[i] > 0.0:
                    plain += over * over / (2 * curve[i])
                elif under > 0.0 and lo[i] < 0.0:
                    plain += under * under / (2 * curve[i])
                continue
            if over > 0.0:
                plain += hi[i] * over
            if over >= h:
                smooth += hi[i] * over
            elif over > -h:
                smooth += hi[i] * (over + h) * (over + h) / (4 * h)
            if lo[i] != 0.0:
                under = -g - tube[i]
                if under > 0.0:
                    plain -= lo[i] * under
                if under >= h:
                    smooth -= lo[i] * under
                elif under > -h:
                    smooth -= lo[i] * (under + h) * (under + h) / (4 * h)
        if curve is not None:
            smooth = plain
        losses[0, k] += smooth
        losses[1, k] += plain
