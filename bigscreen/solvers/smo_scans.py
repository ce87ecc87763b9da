"""Compiled scans and steps of `smo`: choose one variable or two, move them, update F.

`x`, `F`, `low`, `high` and `flip` (f) are those of `smo`. A scan costs well under a nanosecond an
element. What makes it so: the choice of a variable is one INTEGER maximum, of the bits of the
number to be maximised above the bits of its index. Integer maxima vectorise; floating-point ones
do not without promising the compiler that no NaN exists.
"""

from __future__ import annotations

import numpy as np

from bigscreen.rows import njit

UP, DOWN = np.int8(1), np.int8(2)  # bits of `moves`: which way a variable has room

_MOST = np.int64(0x7FFFFFFFFFFFFFFF)
_NONE = np.int64(-0x8000000000000000)
_INDEX = np.int64(0xFFFFFFFF)
_ZERO, _HALF, _TINY = np.float32(0), np.float32(0.5), np.float32(1e-30)
_FLAT = 1e-12  # curvature below this share of the largest k(x, x) counts as this much


@njit(cache=True, nogil=True)
def least_curvature(diag):
    """The smallest curvature that steps reckon with (duplicates, zeros, kernels not psd)."""
    return max(_FLAT * diag.max(), 1e-30) if len(diag) else 1e-30


# -- with a coupling: pairs that keep the sum --------------------------------------------------
@njit(cache=True, nogil=True)
def note_room(rows, x, low, high, moves):
    """Write down which way these variables can move: bits UP and DOWN."""
    for k in rows:
        moves[k] = UP * (x[k] < high[k]) + DOWN * (x[k] > low[k])


@njit(cache=True, nogil=True, fastmath={"contract"})
def pair_update(F, Ki, Kj, flip, a, b, moves):
    """F -= f (a K_i + b K_j) and, in the same pass, argmax of F over what can move up (or -1).

    The index replaces the last bits of F: its F is the maximum up to 2^-52 len(F) of itself.
    """
    index = np.int64(1)
    while index < len(F):
        index *= 2
    best = _NONE
    for k in range(len(F)):
        change = a * Ki[k] + b * Kj[k]
        v = F[k] - (change if flip is None else flip[k] * change)
        F[k] = v
        bits = np.float64(v).view(np.int64)
        # Two's complement order for negative numbers.
        bits ^= (bits >> 63) & _MOST
        key = (bits & -index) | np.int64(k)
        best = max(best, key if moves[k] & UP else _NONE)
    # Not `best == _NONE`: knowing of that exit, LLVM would not vectorise the loop.
    i = best & (index - 1)
    return i if len(F) and moves[i] & UP else -1


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def pair_partner(F, Ki, flip, i, diag, least, moves, second):
    """The partner j of i, and the largest ``F_i - F_j`` over what can move down.

    Second order (Fan, Chen, Lin 2005): j has the largest gain ``(F_i - F_j)^2 / curvature``,
    in float32, which decides about the order of steps only. j is -1 if no pair is left.
    """
    top, scale, own = F[i], np.float32(2), diag[i]
    if flip is not None:
        scale *= flip[i]
    best, widest = np.int64(0), np.int32(0)
    for k in range(len(F)):
        apart = np.float32(top - F[k])
        apart = apart if (apart > _ZERO) & ((moves[k] & DOWN) != 0) else _ZERO
        cross = scale * np.float32(Ki[k])
        curvature = own + diag[k] - (cross if flip is None else flip[k] * cross)
        curvature = curvature if curvature > least else least
        gain = apart * (apart / curvature) if second else apart
        widest = max(widest, np.float32(apart).view(np.int32))
        best = max(best, (np.int64(np.float32(gain).view(np.int32)) << 32) | np.int64(k))
    j = best & _INDEX
    if widest == 0:
        return -1, 0.0
    if best >> 32 == 0:  # gains below what float32 holds
        j = 0
        for k in range(len(F)):
            if moves[k] & DOWN and (not moves[j] & DOWN or F[k] < F[j]):
                j = k
    return j, np.float64(np.int32(widest).view(np.float32))


@njit(cache=True, nogil=True)
def pair_step(i, j, curvature, least, low, high, x, F, moves):
    """x_i += d, x_j -= d with the best d within the box; returns d, 0 where x stays the same.

    A variable that meets its bound IS the bound, to the last bit.
    """
    d = (F[i] - F[j]) / max(curvature, least)
    up, down = high[i] - x[i], x[j] - low[j]
    d = min(d, up, down)
    old_i, old_j = x[i], x[j]
    x[i] = high[i] if d >= up else min(old_i + d, high[i])
    x[j] = low[j] if d >= down else max(old_j - d, low[j])
    note_room((i, j), x, low, high, moves)
    return 0.0 if x[i] == old_i and x[j] == old_j else d


# -- without a coupling: one variable, or two ---------------------------------------------------
@njit(cache=True, nogil=True)
def free_units(diag, low, high, x):
    """What the scans reckon with, float32, x in units of the widest box (C may be 1e-50).

    Returns the unit, the curvatures, their inverses, and the room down (<= 0) and up.
    """
    unit = max((high - low).max(), 1e-300)
    curve = np.maximum(np.maximum(diag, _FLAT * diag.max()) * unit, 1e-30).astype(np.float32)
    inverse = (1.0 / curve).astype(np.float32)
    down = ((low - x) / unit).astype(np.float32)
    return unit, curve, inverse, down, ((high - x) / unit).astype(np.float32)


@njit(cache=True, nogil=True, fastmath={"contract"})
def free_update(F, Ki, Kj, a, b, curve, inverse, down, up, second):
    """F -= a K_i + b K_j and, in the same pass, the best single variable (or -1).

    Second order: by the gain of its step within the box, else by its projected gradient, the
    largest of which is returned too.
    """
    best, widest = np.int64(0), np.int32(0)
    for k in range(len(F)):
        v = F[k] - (a * Ki[k] + b * Kj[k])
        F[k] = v
        g = np.float32(v)
        step = min(max(g * inverse[k], down[k]), up[k])
        slope = abs(g) if step != _ZERO else _ZERO
        gain = step * (g - _HALF * step * curve[k]) if second else slope
        widest = max(widest, np.float32(slope).view(np.int32))
        best = max(best, (np.int64(np.float32(gain).view(np.int32)) << 32) | np.int64(k))
    if widest == 0:
        return -1, 0.0
    i = best & _INDEX
    if best >> 32 == 0:  # gains below what float32 holds
        i = 0
        for k in range(len(F)):
            if min(max(F[k], np.float64(down[k])), np.float64(up[k])) != 0.0:
                i = k
    return i, np.float64(np.int32(widest).view(np.float32))


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def free_partner(F, Ki, unit, i, curve, inverse, down, up, second):
    """The partner of i: the largest joint gain, or the largest gradient the other way (or i).

    The gain is that of the exact step on both within their boxes: see `free_step`.
    """
    g_i, c_i, inv_i = np.float32(F[i]), curve[i], inverse[i]
    down_i, up_i = down[i], up[i]
    down[i] = up[i] = _ZERO  # no partner of itself
    scale = np.float32(unit)
    best = np.int64(0)
    for k in range(len(F)):
        g, c = np.float32(F[k]), curve[k]
        if second:
            cross = scale * np.float32(Ki[k])
            along = cross * inv_i
            left = c - cross * along
            left = left if left > _TINY else _TINY
            d = min(max((g - along * g_i) / left, down[k]), up[k])
            e = min(max((g_i - cross * d) * inv_i, down_i), up_i)
            d = min(max((g - cross * e) * inverse[k], down[k]), up[k])
            gain = e * (g_i - _HALF * c_i * e) + d * (g - _HALF * c * d - cross * e)
        else:
            other = min(max(g, down[k]), up[k]) * g_i < _ZERO
            gain = abs(g) if other else _ZERO
        gain = gain if gain > _ZERO else _ZERO
        best = max(best, (np.int64(np.float32(gain).view(np.int32)) << 32) | np.int64(k))
    down[i], up[i] = down_i, up_i
    return i if best >> 32 == 0 else best & _INDEX


@njit(cache=True, nogil=True)
def free_step(i, j, diag_i, diag_j, cross, least, low, high, x, F):
    """The best step on x_i and x_j within their boxes; returns both (j = i: one variable).

    Eliminate d_i, clip d_j; if then d_i leaves its box it is at that bound in the optimum, since
    the problem is convex, and d_j is best for it. Exact, with no case distinction.
    """
    diag_i, diag_j = max(diag_i, least), max(diag_j, least)
    up, down = high[i] - x[i], low[i] - x[i]
    d_j = 0.0
    if j != i:
        left = max(diag_j - cross * (cross / diag_i), least)
        d_j = _within((F[j] - cross * (F[i] / diag_i)) / left, low[j] - x[j], high[j] - x[j])
    d_i = _within((F[i] - cross * d_j) / diag_i, down, up)
    old_i, old_j = x[i], x[j]
    if j != i:
        d_j = _within((F[j] - cross * d_i) / diag_j, low[j] - x[j], high[j] - x[j])
        x[j] = _move(old_j, d_j, low[j], high[j])
    x[i] = _move(old_i, d_i, low[i], high[i])
    return x[i] - old_i, x[j] - old_j if j != i else 0.0


@njit(cache=True, nogil=True)
def _within(d, low, high):
    return min(max(d, low), high)


@njit(cache=True, nogil=True)
def _move(x, d, low, high):
    """x + d, the bound itself to the last bit where d leads there."""
    if d >= high - x:
        return high
    return low if d <= low - x else x + d
