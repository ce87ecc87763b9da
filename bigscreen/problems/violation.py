"""How far the KKT conditions are from holding: LIBSVM's measure, ``m(alpha) - M(alpha)``.

Of a kernel that is not positive semidefinite it is all that can be said of an alpha: the dual is
not concave there, and no gap bounds anything.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual


def edges(dual: Dual, alpha: FloatArray, v: FloatArray) -> tuple[FloatArray, FloatArray]:
    """v on the way up and on the way down: they differ at alpha = 0 where there is a tube."""
    if dual.tube is None:
        return v, v
    x = dual.ways * alpha
    return np.where(x >= 0, v - dual.tube, v + dual.tube), np.where(
        x > 0, v - dual.tube, v + dual.tube
    )


def extremes(
    dual: Dual, alpha: FloatArray, v: FloatArray, groups: int
) -> tuple[FloatArray, FloatArray]:
    """Of every group the largest v of rows that can move up and the smallest of those down."""
    t = dual.ways
    more, less = alpha < dual.hi, alpha > dual.lo
    up, down = edges(dual, alpha, v)
    up = np.where(np.where(t > 0, more, less), up, -np.inf)
    down = np.where(np.where(t > 0, less, more), down, np.inf)
    highest, lowest = np.full(groups, -np.inf), np.full(groups, np.inf)
    own: NDArray[np.int8] = np.zeros(len(dual), np.int8) if dual.group is None else dual.group
    np.maximum.at(highest, own, up)
    np.minimum.at(lowest, own, down)
    return highest, lowest


def violation(dual: Dual, alpha: FloatArray, scores: FloatArray) -> float:
    """The largest ``t_i G_i - t_j G_j`` of a pair that can move, within any group.

    Without a coupling the largest gradient of a row that can. In LIBSVM's scale, see ``unit``.
    """
    v = (dual.lin - dual.sign * scores) / dual.ways
    highest, lowest = extremes(dual, alpha, v, int(np.size(dual.total)))
    return unit(dual) * apart(highest, lowest, dual.coupling is not None)


def apart(highest: FloatArray, lowest: FloatArray, coupled: bool) -> float:
    """The violation that ``extremes`` make."""
    found = highest - lowest if coupled else np.concatenate([highest, -lowest])
    # (Not Python's max: it would lose a nan.)
    return float(np.max(np.maximum(found, 0.0)))


def unit(dual: Dual) -> float:
    """What a violation is multiplied with for LIBSVM's scale.

    Its boxes of nu-problems end at the weights, ours at their shares: scores are as much smaller.
    """
    if dual.coupling is None or not np.any(dual.total) or not len(dual):
        return 1.0
    longest = float(np.max(np.maximum(np.abs(dual.lo), np.abs(dual.hi))))
    return 1.0 / longest if longest > 0 else 1.0
