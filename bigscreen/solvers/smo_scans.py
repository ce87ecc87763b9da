"""Compiled scans and steps of `smo`: choose one variable or two, move them, update F.

`x`, `F`, `low`, `high` and `flip` (f) are those of `smo`; `up` and `down` what a tube adds to F on
the way up and on the way down, both None where there is none. A scan costs well under a nanosecond
an element. What makes it so: the choice of a variable is one INTEGER maximum, of the bits of the
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


# -- a tube: the kink of - e |x| at 0 ------------------------------------------------------------
@njit(cache=True, nogil=True)
def note_tube(rows, x, tube, up, down):
    """Write down what the tube adds to F at these x, on the way up and on the way down."""
    for k in rows:
        up[k] = -tube[k] if x[k] >= 0 else tube[k]
        down[k] = -tube[k] if x[k] > 0 else tube[k]


@njit(cache=True, nogil=True)
def slope(v, k, up, down):
    """The derivative of the objective in the way that it grows, 0 where it grows in neither."""
    return v if up is None else max(v + up[k], 0.0) + min(v + down[k], 0.0)


@njit(cache=True, nogil=True)
def piece(k, way, low, high, x, up):
    """Where x_k can go on its way with the derivative it has now: up to its kink at most."""
    bottom, top = low[k], high[k]
    if up is not None:
        if x[k] > 0.0 or (x[k] == 0.0 and way >= 0.0):
            bottom = max(bottom, 0.0)
        if x[k] < 0.0 or (x[k] == 0.0 and way <= 0.0):
            top = min(top, 0.0)
    return bottom, top


# -- with a coupling: pairs that keep the sum --------------------------------------------------
@njit(cache=True, nogil=True)
def note_room(rows, x, low, high, moves):
    """Write down which way these variables can move: bits UP and DOWN."""
    for k in rows:
        moves[k] = UP * (x[k] < high[k]) + DOWN * (x[k] > low[k])


@njit(cache=True, nogil=True, fastmath={"contract"})
def pair_update(F, Ki, Kj, flip, a, b, moves, up):
    """F -= f (a K_i + b K_j) and, in the same pass, the largest derivative up (its row, or -1).

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
        rise = v if up is None else v + up[k]
        bits = np.float64(rise).view(np.int64)
        # Two's complement order for negative numbers.
        bits ^= (bits >> 63) & _MOST
        key = (bits & -index) | np.int64(k)
        best = max(best, key if moves[k] & UP else _NONE)
    # Not `best == _NONE`: knowing of that exit, LLVM would not vectorise the loop.
    i = best & (index - 1)
    return i if len(F) and moves[i] & UP else -1


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def pair_partner(F, Ki, flip, i, diag, least, moves, up, down, second):
    """The partner j of i, and the largest ``F_i - F_j`` (with tubes) over what can move down.

    Second order (Fan, Chen, Lin 2005): j has the largest gain ``(F_i - F_j)^2 / curvature``,
    in float32, which decides about the order of steps only. j is -1 if no pair is left.
    """
    top, scale, own = F[i] if up is None else F[i] + up[i], np.float32(2), diag[i]
    if flip is not None:
        scale *= flip[i]
    best, widest = np.int64(0), np.int32(0)
    for k in range(len(F)):
        fall = F[k] if down is None else F[k] + down[k]
        apart = np.float32(top - fall)
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
        j, least_fall = 0, np.inf
        for k in range(len(F)):
            fall = F[k] if down is None else F[k] + down[k]
            if moves[k] & DOWN and fall < least_fall:
                j, least_fall = k, fall
    return j, np.float64(np.int32(widest).view(np.float32))


@njit(cache=True, nogil=True)
def pair_step(i, j, curvature, least, low, high, x, F, moves, tube, up, down):
    """x_i += d, x_j -= d with the best d within the box; returns d, 0 where x stays the same.

    A variable that meets its bound IS the bound, to the last bit.
    """
    apart = F[i] - F[j] if up is None else F[i] + up[i] - (F[j] + down[j])
    top, bottom = piece(i, 1.0, low, high, x, up)[1], piece(j, -1.0, low, high, x, up)[0]
    old_i, old_j = x[i], x[j]
    more, less = top - old_i, old_j - bottom
    d = min(apart / max(curvature, least), more, less)
    x[i] = top if d >= more else min(old_i + d, top)
    x[j] = bottom if d >= less else max(old_j - d, bottom)
    note_room((i, j), x, low, high, moves)
    if up is not None:
        note_tube((i, j), x, tube, up, down)
    return 0.0 if x[i] == old_i and x[j] == old_j else d


# -- without a coupling: one variable, or two ---------------------------------------------------
@njit(cache=True, nogil=True)
def free_units(diag, low, high, x, kinks):
    """What the scans reckon with, float32, x in units of the widest box (C may be 1e-50).

    Returns the unit, the curvatures, their inverses, and the room down (<= 0) and up.
    """
    unit = max((high - low).max(), 1e-300)
    curve = np.maximum(np.maximum(diag, _FLAT * diag.max()) * unit, 1e-30).astype(np.float32)
    inverse = (1.0 / curve).astype(np.float32)
    less, more = np.empty(len(x), np.float32), np.empty(len(x), np.float32)
    note_space(range(len(x)), x, low, high, kinks, unit, less, more)
    return unit, curve, inverse, less, more


@njit(cache=True, nogil=True)
def note_space(rows, x, low, high, kinks, unit, less, more):
    """Write down how far these variables can go, to a kink at most (``kinks``: there are tubes)."""
    for k in rows:
        bottom, top = low[k], high[k]
        if kinks:
            bottom = max(bottom, 0.0) if x[k] > 0.0 else bottom
            top = min(top, 0.0) if x[k] < 0.0 else top
        less[k], more[k] = (bottom - x[k]) / unit, (top - x[k]) / unit


@njit(cache=True, nogil=True, fastmath={"contract"})
def free_update(F, Ki, Kj, a, b, curve, inverse, less, more, up, down, second):
    """F -= a K_i + b K_j and, in the same pass, the best single variable (or -1).

    Second order: by the gain of its step within the box, else by its projected gradient, the
    largest of which is returned too.
    """
    best, widest = np.int64(0), np.int32(0)
    for k in range(len(F)):
        v = F[k] - (a * Ki[k] + b * Kj[k])
        F[k] = v
        g = np.float32(slope(v, k, up, down))
        step = min(max(g * inverse[k], less[k]), more[k])
        size = abs(g) if step != _ZERO else _ZERO
        gain = step * (g - _HALF * step * curve[k]) if second else size
        widest = max(widest, np.float32(size).view(np.int32))
        best = max(best, (np.int64(np.float32(gain).view(np.int32)) << 32) | np.int64(k))
    if widest == 0:
        return -1, 0.0
    i = best & _INDEX
    if best >> 32 == 0:  # gains below what float32 holds
        i = 0
        for k in range(len(F)):
            g = slope(F[k], k, up, down)
            if min(max(g, np.float64(less[k])), np.float64(more[k])) != 0.0:
                i = k
    return i, np.float64(np.int32(widest).view(np.float32))


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def free_partner(F, Ki, unit, i, curve, inverse, less, more, up, down, second):
    """The partner of i: the largest joint gain, or the largest gradient the other way (or i).

    The gain is that of the exact step on both within their boxes: see `free_step`. Where x is at
    a kink its step keeps the sign of its own slope.
    """
    g_i, c_i, inv_i = np.float32(slope(F[i], i, up, down)), curve[i], inverse[i]
    less_i, more_i = less[i], more[i]
    less[i] = more[i] = _ZERO  # no partner of itself
    least_i, most_i = less_i, more_i
    if up is not None and up[i] != down[i]:
        least_i, most_i = (_ZERO, more_i) if g_i > _ZERO else (less_i, _ZERO)
    scale = np.float32(unit)
    best = np.int64(0)
    for k in range(len(F)):
        g, c = np.float32(slope(F[k], k, up, down)), curve[k]
        least, most = less[k], more[k]
        if up is not None:
            smooth = up[k] == down[k]
            least = least if smooth | (g < _ZERO) else _ZERO
            most = most if smooth | (g > _ZERO) else _ZERO
        if second:
            cross = scale * np.float32(Ki[k])
            along = cross * inv_i
            left = c - cross * along
            left = left if left > _TINY else _TINY
            d = min(max((g - along * g_i) / left, least), most)
            e = min(max((g_i - cross * d) * inv_i, least_i), most_i)
            d = min(max((g - cross * e) * inverse[k], least), most)
            gain = e * (g_i - _HALF * c_i * e) + d * (g - _HALF * c * d - cross * e)
        else:
            other = min(max(g, least), most) * g_i < _ZERO
            gain = abs(g) if other else _ZERO
        gain = gain if gain > _ZERO else _ZERO
        best = max(best, (np.int64(np.float32(gain).view(np.int32)) << 32) | np.int64(k))
    less[i], more[i] = less_i, more_i
    return i if best >> 32 == 0 else best & _INDEX


@njit(cache=True, nogil=True)
def free_step(i, j, diag_i, diag_j, cross, least, low, high, x, F, tube, up, down):
    """The best step on x_i and x_j within their boxes; returns both (j = i: one variable).

    Eliminate d_i, clip d_j; if then d_i leaves its box it is at that bound in the optimum, since
    the problem is convex, and d_j is best for it. Exact, with no case distinction.
    """
    diag_i, diag_j = max(diag_i, least), max(diag_j, least)
    g_i, g_j = slope(F[i], i, up, down), slope(F[j], j, up, down)
    low_i, high_i = piece(i, g_i, low, high, x, up)
    low_j, high_j = piece(j, g_j, low, high, x, up)
    old_i, old_j = x[i], x[j]
    d_j = 0.0
    if j != i:
        left = max(diag_j - cross * (cross / diag_i), least)
        d_j = _within((g_j - cross * (g_i / diag_i)) / left, low_j - old_j, high_j - old_j)
    d_i = _within((g_i - cross * d_j) / diag_i, low_i - old_i, high_i - old_i)
    if j != i:
        d_j = _within((g_j - cross * d_i) / diag_j, low_j - old_j, high_j - old_j)
        x[j] = _move(old_j, d_j, low_j, high_j)
    x[i] = _move(old_i, d_i, low_i, high_i)
    if up is not None:
        note_tube((i, j), x, tube, up, down)
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
