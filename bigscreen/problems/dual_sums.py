"""The sums of a dual over a few rows, each in one compiled pass: multiplier, D, gap.

They are those of `Dual`, for problems so small that numpy's calls would take longer than the sums.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.order_statistic import LEVEL
from bigscreen.numerics.rows import FloatArray, njit
from bigscreen.problems.dual import Dual

FEW = 4096
"""Rows up to which these loops are meant to be used: their sums are plain ones."""

GRADIENT_ERROR = 2.0**-51
"""What rounding moves a gradient by, as a part of the sizes of its terms."""


class Arrays(NamedTuple):
    """A ``Dual`` as compiled loops take it: every array there and contiguous, 0 for what is not."""

    sign: FloatArray
    lin: FloatArray
    lo: FloatArray
    hi: FloatArray
    t: FloatArray
    tube: FloatArray
    group: NDArray[np.int8]
    total: FloatArray
    """Of every group; empty without a coupling."""


def arrays(dual: Dual) -> Arrays:
    """What compiled loops take for this dual."""
    n = len(dual)
    coupled = dual.coupling is not None
    return Arrays(
        plain(dual.sign),
        plain(dual.lin),
        plain(dual.lo),
        plain(dual.hi),
        np.zeros(n) if dual.coupling is None else plain(dual.coupling),
        np.zeros(n) if dual.tube is None else plain(dual.tube),
        np.zeros(n, np.int8) if dual.group is None else np.array(dual.group, np.int8),
        np.array(dual.total, np.float64, ndmin=1) if coupled else np.empty(0),
    )


def plain(values: FloatArray) -> FloatArray:
    """Contiguous and writeable: for any other array all loops would be compiled again."""
    found = np.ascontiguousarray(values, np.float64)
    return found if found.flags.writeable else found.copy()


def measure(
    dual: Dual,
    parts: Arrays,
    alpha: FloatArray,
    F: FloatArray,
    r: FloatArray,
    errors: tuple[FloatArray, FloatArray, float],
    scores: FloatArray,
) -> tuple[float, FloatArray, float, float]:
    """D(alpha), the best multiplier of every group (none without a coupling), the gap, its doubt.

    The doubt is what errors of the scores can have moved the gap by; see `look` and
    `gap_and_doubt`.
    """
    value = look(parts, alpha, F, r, scores)
    if len(scores) <= FEW:
        mu = multipliers(parts, scores)
    else:
        mu = np.atleast_1d(dual.multiplier(scores)) if len(parts.total) else np.empty(0)
    return value, mu, *gap_and_doubt(parts, mu, alpha, scores, *errors)


@njit(cache=True, nogil=True)
def multipliers(parts: Arrays, scores: FloatArray) -> FloatArray:
    """The best multiplier of every group: see ``Dual.multiplier``."""
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
    """As `order_statistic.middle`."""
    total = 0.0
    for weight in weights:
        total += weight
    level = LEVEL * total
    if level == 0.0:
        return 0.0
    low, high = _statistics(values, weights, threshold, level)
    if low < high:
        least = np.inf
        for weight in weights:
            if weight > 0.0:
                least = min(least, 0.25 * weight)
        if least < level:
            low, high = _statistics(values, weights, threshold, least)
    if np.isfinite(low) and np.isfinite(high):
        return low + 0.5 * (high - low)
    return low if np.isfinite(low) else high


@njit(cache=True, nogil=True)
def _statistics(
    values: FloatArray, weights: FloatArray, threshold: float, level: float
) -> tuple[float, float]:
    """The statistics on either side of the threshold; one of them where they are the same."""
    low = _statistic(values, weights, threshold - level)
    if np.isfinite(low):
        below = 0.0
        for i in range(len(values)):
            if values[i] <= low:
                below += weights[i]
        if below >= threshold + level:
            return low, low
    return low, _statistic(values, weights, threshold + level)


@njit(cache=True, nogil=True)
def _statistic(values: FloatArray, weights: FloatArray, threshold: float) -> float:
    """`order_statistic`, by halving: what lies on the wrong side of a value goes."""
    if threshold <= 0.0:
        return -np.inf
    v, w = values.copy(), weights.copy()
    first, last, below, found = 0, len(v), 0.0, np.inf
    while first < last:
        # The middle one of three, which makes no order of the values a bad one but by design.
        a, b, c = v[first], v[(first + last) // 2], v[last - 1]
        pivot = max(min(a, b), min(max(a, b), c))
        # Smaller values first, then those that are equal.
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
            # (Should another order of the sum not reach it, it is this one.)
            last, found = lower, pivot
        elif below + less + same >= threshold:
            return pivot
        else:
            first, below = upper, below + less + same
    return found


@njit(cache=True, nogil=True, fastmath={"contract"})
def look(
    parts: Arrays, alpha: FloatArray, F: FloatArray, r: FloatArray, scores: FloatArray
) -> float:
    """Scores of rows from their F (``r F = p - s u``), which are written down, and D(alpha)."""
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
    """The Frank-Wolfe gap, and what errors ``relative |u| + errors spread`` of scores do to it.

    That is `sensitivity` times the errors, over all rows.
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
            # The two variables whose difference alpha is, each with its own gradient and box.
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
def slack(G: float, lo: float, hi: float, tube: float, alpha: float) -> float:
    """A row's part of the gap (see ``Dual.slacks``)."""
    if tube == 0.0:
        return G * (hi - alpha) if G > 0 else -G * (alpha - lo)
    up, down = max(alpha, 0.0), max(-alpha, 0.0)
    gap = (G - tube) * (hi - up) if G > tube else (tube - G) * up
    return gap + ((-G - tube) * (-lo - down) if -G > tube else (tube + G) * down)
