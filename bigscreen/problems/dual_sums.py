"""Multiplier, D and gap of a dual over a few rows, each computed in one compiled loop.

The methods of `Dual` compute the same numbers with numpy, whose calls take longer than the sums
themselves if a problem is small.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.order_statistic import WEIGHT_TOL
from bigscreen.numerics.rows import FloatArray, njit
from bigscreen.problems.dual import Dual

MAX_COMPILED_ROWS = 4096
"""Use this module's compiled loops for at most this many rows, and numpy for more: the loops add
terms one by one, which rounds more than numpy's pairwise sums."""

GRADIENT_ERROR = 2.0**-51
"""Bound on the rounding error of a row's gradient, as a fraction of the sum of its terms' absolute
values."""


class Arrays(NamedTuple):
    """The arrays of a `Dual` for compiled loops: contiguous, zeros if the `Dual` has None.

    ``sign``, ``lin``, ``lo``, ``hi``, ``tube``: (rows,), see `Dual`; ``t``: its coupling;
    ``group``: the group of each row.
    """

    sign: FloatArray
    lin: FloatArray
    lo: FloatArray
    hi: FloatArray
    t: FloatArray
    tube: FloatArray
    group: NDArray[np.int8]
    total: FloatArray
    """The coupling's total of every group; empty without a coupling."""


def arrays(dual: Dual) -> Arrays:
    """Return the arrays of a dual for compiled loops: contiguous, with zeros in place of None."""
    n = len(dual)
    coupled = dual.coupling is not None
    return Arrays(
        as_loop_array(dual.sign),
        as_loop_array(dual.lin),
        as_loop_array(dual.lo),
        as_loop_array(dual.hi),
        np.zeros(n) if dual.coupling is None else as_loop_array(dual.coupling),
        np.zeros(n) if dual.tube is None else as_loop_array(dual.tube),
        np.zeros(n, np.int8) if dual.group is None else np.array(dual.group, np.int8),
        np.array(dual.total, np.float64, ndmin=1) if coupled else np.empty(0),
    )


def as_loop_array(values: FloatArray) -> FloatArray:
    """Return values as a contiguous, writeable float64 array, for compiled loops.

    Loops are compiled again for any other kind of array.
    """
    found = np.ascontiguousarray(values, np.float64)
    return found if found.flags.writeable else found.copy()


def dual_and_gap(
    dual: Dual,
    parts: Arrays,
    alpha: FloatArray,
    F: FloatArray,
    r: FloatArray,
    errors: tuple[FloatArray, FloatArray, float],
    scores: FloatArray,
) -> tuple[float, FloatArray, float, float]:
    """Compute D(alpha), the best multiplier of every group, the gap and the gap's error bound.

    ``F``, ``r`` (rows,): ``r F = p - s u`` gives the scores u, which ``scores`` (rows,) receives.
    ``errors`` (relative, errors, spread): a score u may be off by ``relative |u| + errors spread``.
    The array of multipliers is empty without a coupling. The error bound says how far errors of the
    scores can have moved the gap; see `scores_and_dual` and `gap_and_doubt`.
    """
    value = scores_and_dual(parts, alpha, F, r, scores)
    if len(scores) <= MAX_COMPILED_ROWS:
        mu = multipliers(parts, scores)
    else:
        mu = np.atleast_1d(dual.multiplier(scores)) if len(parts.total) else np.empty(0)
    return value, mu, *gap_and_doubt(parts, mu, alpha, scores, *errors)


@njit(cache=True, nogil=True)
def multipliers(parts: Arrays, scores: FloatArray) -> FloatArray:
    """Compute the multiplier of every group that minimises P at these scores: float64 (groups,).

    It is ``Dual.multiplier`` in a compiled form.
    """
    sign, lin, lo, hi, t, tube, group, total = parts
    n, out = len(scores), np.empty(len(total))
    values, weights = np.empty(2 * n), np.empty(2 * n)
    for g in range(len(total)):
        q, threshold = 0, -total[g]
        for i in range(n):
            if group[i] != g:
                continue
            threshold += max(t[i] * hi[i], t[i] * lo[i])
            rest, size = lin[i] - sign[i] * scores[i], abs(t[i])
            if tube[i] == 0.0:
                values[q], weights[q] = rest / t[i], size * (hi[i] - lo[i])
                q += 1
            else:
                values[q], weights[q] = (rest - tube[i]) / t[i], size * hi[i]
                values[q + 1], weights[q + 1] = (rest + tube[i]) / t[i], -size * lo[i]
                q += 2
        out[g] = _middle(values[:q], weights[:q], threshold)
    return out


@njit(cache=True, nogil=True)
def _middle(values: FloatArray, weights: FloatArray, threshold: float) -> float:
    """Return the middle of the multipliers that minimise P, from its breakpoints and their weights.

    ``values``, ``weights``: the breakpoints; ``threshold``: the cumulative weight at which the
    minimum lies. It is `middle_order_statistic` in a compiled form, also for few values.
    """
    total = 0.0
    for weight in weights:
        total += weight
    level = WEIGHT_TOL * total
    if level == 0.0:
        return 0.0
    low, high = _select_both(values, weights, threshold, level)
    if low < high:
        least = np.inf
        for weight in weights:
            if weight > 0.0:
                least = min(least, 0.25 * weight)
        if least < level:
            low, high = _select_both(values, weights, threshold, least)
    if np.isfinite(low) and np.isfinite(high):
        return low + 0.5 * (high - low)
    return low if np.isfinite(low) else high


@njit(cache=True, nogil=True)
def _select_both(
    values: FloatArray, weights: FloatArray, threshold: float, level: float
) -> tuple[float, float]:
    """Return the weighted order statistics at ``threshold - level`` and ``threshold + level``.

    ``values``, ``weights``: the numbers and their weights. See `_select`.
    """
    low = _select(values, weights, threshold - level)
    if np.isfinite(low):
        below = 0.0
        for i in range(len(values)):
            if values[i] <= low:
                below += weights[i]
        if below >= threshold + level:
            return low, low
    return low, _select(values, weights, threshold + level)


@njit(cache=True, nogil=True)
def _select(values: FloatArray, weights: FloatArray, threshold: float) -> float:
    """Return the smallest value at which the weights of the values up to it reach ``threshold``.

    A weighted order statistic by quickselect: `order_statistic`, compiled. It is -inf for a
    threshold of 0 or less, and inf if all weights together are too little.
    """
    if threshold <= 0.0:
        return -np.inf
    v, w = values.copy(), weights.copy()
    first, last, below, found = 0, len(v), 0.0, np.inf
    while first < last:
        # The median of three as pivot: only an adversarial order of the values is slow.
        a, b, c = v[first], v[(first + last) // 2], v[last - 1]
        pivot = max(min(a, b), min(max(a, b), c))
        # Three-way partition: smaller values, equal values, larger values.
        lower, i, upper, less, same = first, first, last, 0.0, 0.0
        while i < upper:
            if v[i] < pivot:
                less += w[i]
                v[lower], v[i] = v[i], v[lower]
                w[lower], w[i] = w[i], w[lower]
                lower += 1
                i += 1
            elif v[i] > pivot:
                upper -= 1
                v[upper], v[i] = v[i], v[upper]
                w[upper], w[i] = w[i], w[upper]
            else:
                same += w[i]
                i += 1
        if below + less >= threshold:
            # (If rounding in another order of the sum misses the threshold, the pivot is it.)
            last, found = lower, pivot
        elif below + less + same >= threshold:
            return pivot
        else:
            first, below = upper, below + less + same
    return found


@njit(cache=True, nogil=True, fastmath={"contract"})
def scores_and_dual(
    parts: Arrays, alpha: FloatArray, F: FloatArray, r: FloatArray, scores: FloatArray
) -> float:
    """Write the scores that follow from F (``r F = p - s u``) into ``scores``; return D(alpha)."""
    sign, lin, _, _, _, tube, _, _ = parts
    linear, square = 0.0, 0.0
    for i in range(len(alpha)):
        scores[i] = sign[i] * (lin[i] - r[i] * F[i])
        linear += lin[i] * alpha[i] - tube[i] * abs(alpha[i])
        square += sign[i] * alpha[i] * scores[i]
    return linear - 0.5 * square


@njit(cache=True, nogil=True, fastmath={"contract"})
def gap_and_doubt(
    parts: Arrays,
    mu: FloatArray,
    alpha: FloatArray,
    scores: FloatArray,
    relative: FloatArray,
    errors: FloatArray,
    spread: float,
) -> tuple[float, float]:
    """Compute the Frank-Wolfe gap, and how far errors of the scores u can move it.

    ``parts``: the arrays of the dual, in the order of the first line below. ``mu``: the multipliers
    (groups,). ``relative`` (rows,): error of each score as a fraction of it. ``errors`` (rows,):
    further error of each score for each unit of ``spread``, a number: a score may be off by
    ``relative |u| + errors spread``. The error bound of the gap is the sum of `dual.sensitivity`
    times the errors over all rows.
    """
    sign, lin, lo, hi, t, tube, group, _ = parts
    gap, doubt = 0.0, 0.0
    for i in range(len(alpha)):
        G = lin[i] - sign[i] * scores[i]
        if len(mu):
            G -= t[i] * mu[group[i]]
        up, down, e, a = hi[i] - alpha[i], alpha[i] - lo[i], tube[i], alpha[i]
        if e == 0.0:
            gap += max(G, 0.0) * up + max(-G, 0.0) * down
        else:
            # alpha is the difference of two variables, each with its own gradient and box.
            more, less = max(a, 0.0), max(-a, 0.0)
            gap += max(G - e, 0.0) * (hi[i] - more) + max(e - G, 0.0) * more
            gap += max(-G - e, 0.0) * (-lo[i] - less) + max(e + G, 0.0) * less
        error = relative[i] * abs(scores[i]) + errors[i] * spread
        room = max(up, down)
        if G > error + e:
            room = up
        elif G < -error - e:
            room = down
        elif e > 0.0 and abs(G) < e - error:
            room = abs(a)
        doubt += room * error
    return gap, doubt


@njit(nogil=True, cache=True)
def row_gap(G: float, lo: float, hi: float, tube: float, alpha: float) -> float:
    """Compute one row's part of the Frank-Wolfe gap at its gradient G and its alpha.

    ``lo``, ``hi``: the row's box; ``tube``: half-width of a regression's tube. As in
    ``Dual.slacks``.
    """
    if tube == 0.0:
        return G * (hi - alpha) if G > 0 else -G * (alpha - lo)
    up, down = max(alpha, 0.0), max(-alpha, 0.0)
    gap = (G - tube) * (hi - up) if G > tube else (tube - G) * up
    return gap + ((-G - tube) * (-lo - down) if -G > tube else (tube + G) * down)
