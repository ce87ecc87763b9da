"""The violation of the KKT conditions, as LIBSVM measures it: ``m(alpha) - M(alpha)``.

It takes the place of the gap for a kernel that is not positive semidefinite: the dual is not
concave then, and the gap bounds nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual


def one_sided_gradients(
    dual: Dual, alpha: FloatArray, v: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The one-sided gradients of D for raising and for lowering ``t alpha`` (rows,) each.

    ``v`` (rows,): the gradient ``(p - s u) / t`` without the tube. They differ only for rows with
    alpha = 0 and a tube.
    """
    if dual.tube is None:
        return v, v
    x = dual.step_signs * alpha
    return np.where(x >= 0, v - dual.tube, v + dual.tube), np.where(
        x > 0, v - dual.tube, v + dual.tube
    )


def extremes(
    dual: Dual, alpha: FloatArray, v: FloatArray, groups: int
) -> tuple[FloatArray, FloatArray]:
    """The largest gradient of rows that can be raised, the smallest of rows that can be lowered.

    ``v`` (rows,): the gradient of D along ``t alpha``, without the tube. One number for each group,
    float64 (groups,) each: LIBSVM's m(alpha) and M(alpha).
    """
    t = dual.step_signs
    more, less = alpha < dual.hi, alpha > dual.lo
    up, down = one_sided_gradients(dual, alpha, v)
    up = np.where(np.where(t > 0, more, less), up, -np.inf)
    down = np.where(np.where(t > 0, less, more), down, np.inf)
    highest, lowest = np.full(groups, -np.inf), np.full(groups, np.inf)
    own: NDArray[np.int8] = np.zeros(len(dual), np.int8) if dual.group is None else dual.group
    np.maximum.at(highest, own, up)
    np.minimum.at(lowest, own, down)
    return highest, lowest


def violation(dual: Dual, alpha: FloatArray, scores: FloatArray) -> float:
    """Compute the KKT violation of alpha: the largest ``t_i G_i - t_j G_j`` of a movable pair.

    ``scores``: of w(alpha). Both rows of a pair are in one group. Without a coupling it is the
    largest gradient of a row that can move. The number is in LIBSVM's scale, see ``libsvm_scale``.
    """
    v = (dual.lin - dual.sign * scores) / dual.step_signs
    highest, lowest = extremes(dual, alpha, v, int(np.size(dual.total)))
    return libsvm_scale(dual) * largest_violation(highest, lowest, dual.coupling is not None)


def largest_violation(highest: FloatArray, lowest: FloatArray, coupled: bool) -> float:
    """The KKT violation, not in LIBSVM's scale, from the `extremes` of every group (groups,) each.

    ``coupled``: whether rows move in pairs; else ``highest`` and ``-lowest`` count by themselves.
    """
    found = highest - lowest if coupled else np.concatenate([highest, -lowest])
    # (Not Python's max: it would lose a nan.)
    return float(np.max(np.maximum(found, 0.0)))


def libsvm_scale(dual: Dual) -> float:
    """The factor that turns a violation into LIBSVM's scale.

    LIBSVM's boxes of nu-problems end at the weights, the boxes here at the weights' shares of the
    total; scores here are smaller by the same factor.
    """
    if dual.coupling is None or not np.any(dual.total) or not len(dual):
        return 1.0
    longest = float(np.max(np.maximum(np.abs(dual.lo), np.abs(dual.hi))))
    return 1.0 / longest if longest > 0 else 1.0
