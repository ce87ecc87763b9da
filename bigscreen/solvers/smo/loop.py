"""Pair steps and single steps on the dual (SMO): the loop for a kernel matrix in memory.

In terms of ``x_i = r_i alpha_i`` (``r`` the coupling's +-1 where there is one, else the sign) and
``F_i = r_i G_i`` every problem of ``Dual`` reads: maximise ``F . d - 1/2 d' Q d - e . |x + d|``
over ``low <= x + d <= high``, with a coupling also ``sum d = 0`` over every group, and
``Q_ij = f_i f_j K_ij``, ``f = r s``. Without a coupling ``f`` is 1, and for a C-SVC with one too:
no sign is left.

Rows of a group are kept together, so that the scans of `smo_scans` run on slices: a step costs the
same for any number of groups. A tube is a kink of every variable at 0, where a step ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.kernels.square import Square, row_of
from bigscreen.numerics.rows import FloatArray, njit

__all__ = [
    "Matrix",
    "flips",
    "free_partner",
    "free_step",
    "free_units",
    "free_update",
    "least_curvature",
    "note_room",
    "note_space",
    "pair_partner",
    "pair_step",
    "pair_update",
    "smo",
    "steps",
    "tubes",
]


class Matrix:
    """A kernel matrix, or some of its rows and columns, in the order that steps want them.

    Parameters
    ----------
    K : float32 or float64 (n, n), C-contiguous; or Square
        Of a square each row is computed when a step first needs it (and `order` is None).
    order : int64 (q,) or None
        The rows that matter, those of a group together; None: all of them as they are. A row is
        then copied when a step first needs it: a solve that moves few variables never touches most
        of the square that they span.
    room : array of the type of K, at least (q * q,), or None
        Memory for the copies, where there is some: fresh pages cost more than the copying.
    """

    def __init__(
        self,
        K: NDArray[Any] | Square,
        order: NDArray[np.int64] | None = None,
        room: NDArray[Any] | None = None,
    ) -> None:
        self.order = order
        if isinstance(K, Square):
            recipe, copies, there = K.table
            self.rows: tuple[Any, Any, Any, Any] = (recipe, None, copies, there)
            self.diag = K.diag
            return
        self.rows = (K, None, None, None)
        self.diag = np.diagonal(K).astype(np.float64)
        if order is not None:
            q = len(order)
            space = np.empty(q * q, K.dtype) if room is None else room[: q * q]
            self.rows = (K, order, space.reshape(q, q), np.zeros(q, np.bool_))
            self.diag = self.diag[order]


def smo(
    K: NDArray[Any] | Matrix,
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
    group: NDArray[np.int8] | None = None,
    tube: FloatArray | None = None,
) -> tuple[int, float]:
    """Maximise the dual over all rows of a kernel matrix, from a feasible alpha.

    Parameters
    ----------
    K : float32 or float64 (q, q), C-contiguous, or Matrix
        Kernel entries, without signs; the constant's 1 added where there is one. The arrays below
        follow the order of a ``Matrix``.
    sign, lo, hi : float64 (q,)
        ``s`` and the box.
    t : float64 (q,)
        Coupling coefficients, +-1; all 0: no coupling.
    alpha : float64 (q,)
        Within the box; updated. ``t . alpha`` stays what it is, in every group.
    G : float64 (q,)
        ``p - s u``, without a multiplier or a tube; updated.
    tol : float
        Stop at this violation or below.
    max_steps : int
    second_order : bool
        Choose by the gain in the dual, not by the violation alone.
    pairs : bool
        Without a coupling: move two variables at a time rather than one.
    group : int8 (q,) or None
        Of a coupling: the group of every row; a ``Matrix`` has them in ascending order.
    tube : float64 (q,) or None
        ``e``, where ``lo <= 0 <= hi``.

    Returns
    -------
    steps : int
    violation : float
        The largest ``t_i G_i - t_j G_j`` of a pair that can move (m - M) in any group, or the
        largest projected gradient. Above ``tol`` where ``max_steps`` or the precision of float64
        ended it.
    """
    coupled = bool(np.any(t))
    if not isinstance(K, Matrix):
        order = None
        if coupled and group is not None and np.any(np.diff(group) < 0):
            order = np.argsort(group, kind="stable")
        K = Matrix(K, order)
        if order is not None:
            assert group is not None
            kept = alpha[order], G[order]
            part = sign[order], t[order], lo[order], hi[order], *kept
            own = None if tube is None else tube[order]
            how = second_order, pairs
            found = smo(K, *part, tol, max_steps, *how, group=group[order], tube=own)
            alpha[order], G[order] = kept
            return found
    r = t if coupled else sign
    x, F = r * alpha, r * G
    low, high = np.where(r > 0, lo, -hi), np.where(r > 0, hi, -lo)
    flip = flips(r * sign) if coupled else None
    limits = tol, max_steps, second_order, pairs
    done = steps(K, low, high, x, F, tube, flip, group, coupled, *limits)
    alpha[:], G[:] = r * x + 0.0, r * F  # no -0.0 for those who compare bits
    return done


def steps(
    K: Matrix,
    low: FloatArray,
    high: FloatArray,
    x: FloatArray,
    F: FloatArray,
    tube: FloatArray | None,
    flip: NDArray[np.float32] | None,
    group: NDArray[np.int8] | None,
    coupled: bool,
    tol: float,
    max_steps: int,
    second_order: bool = True,
    pairs: bool = True,
) -> tuple[int, float]:
    """The same in the variables of the steps themselves: x and F are updated."""
    common = (K.diag, low, high, x, F, *tubes(tube, x), tol, max_steps, second_order)
    if not coupled:
        return _free(*K.rows, *common, pairs)  # type: ignore[no-any-return]
    ends = None
    if group is not None and len(x) and group[0] != group[-1]:
        ends = np.searchsorted(group, np.arange(int(group[-1]) + 2))
    return _coupled(*K.rows, ends, flip, *common)  # type: ignore[no-any-return]


def flips(f: FloatArray) -> NDArray[np.float32] | None:
    """The factors ``f``, None where they cancel out: scans are compiled for either."""
    return None if np.all(f == f[:1]) else f.astype(np.float32)


def tubes(
    tube: FloatArray | None, x: FloatArray
) -> tuple[FloatArray | None, FloatArray | None, FloatArray | None]:
    """The tube, and what it adds to F at x on the way up and on the way down; None: no tube."""
    if tube is None:
        return None, None, None
    tube = np.ascontiguousarray(tube)  # scans do not vectorise over a view of one number
    up, down = np.where(x >= 0, -tube, tube), np.where(x > 0, -tube, tube)
    return tube, up, down


@njit(cache=True, nogil=True)
def _row(K, order, copies, copied, i):
    """Row i of a ``Matrix``."""
    if order is None:
        return row_of(K, copies, copied, i)
    if not copied[i]:
        copied[i] = True
        source = K[order[i]]
        for k in range(len(order)):
            copies[i, k] = source[order[k]]
    return copies[i]


@njit(cache=True, nogil=True)
def _cut(values, ends, g):
    """The part of a group; without groups the values as they are, as slices cost 10 % of a step."""
    return values if ends is None or values is None else values[ends[g] : ends[g + 1]]


@njit(cache=True, nogil=True)
def _coupled(
    K, order, copies, copied, ends, flip, diag, low, high, x, F, tube, up, down, tol, most, second
):
    least = least_curvature(diag)
    single, floor = diag.astype(np.float32), np.float32(least)
    moves = np.empty(len(x), np.int8)
    note_room(range(len(x)), x, low, high, moves)
    groups = 1 if ends is None else len(ends) - 1
    tops = np.full(groups, -1)
    steps, violation = 0, 0.0
    i, j, a, b = 0, 0, 0.0, 0.0
    while len(x):
        row, other = _row(K, order, copies, copied, i), _row(K, order, copies, copied, j)
        for g in range(groups):
            first = 0 if ends is None else ends[g]
            top = pair_update(
                _cut(F, ends, g), _cut(row, ends, g), _cut(other, ends, g), _cut(flip, ends, g),
                a, b, _cut(moves, ends, g), _cut(up, ends, g)
            )  # fmt: skip
            tops[g] = first + top if top >= 0 else -1
        i, violation = -1, 0.0
        for g in range(groups):
            first, top = 0 if ends is None else ends[g], tops[g]
            if top < 0:
                continue
            row = _row(K, order, copies, copied, top)
            partner, apart = pair_partner(
                _cut(F, ends, g), _cut(row, ends, g), _cut(flip, ends, g), top - first,
                _cut(single, ends, g), floor, _cut(moves, ends, g), _cut(up, ends, g),
                _cut(down, ends, g), second
            )  # fmt: skip
            if apart > violation:
                i, j, violation = top, first + partner, apart
        if i < 0 or not violation > tol or steps >= most:
            break
        f_i, f_j = (1.0, 1.0) if flip is None else (flip[i], flip[j])
        cross = _row(K, order, copies, copied, i)[j]
        curvature = diag[i] + diag[j] - 2.0 * f_i * f_j * cross
        step = pair_step(i, j, curvature, least, low, high, x, F, moves, tube, up, down)
        if step == 0.0:  # below the last digit of x
            break
        a, b = step * f_i, -step * f_j
        steps += 1
    return steps, violation


@njit(cache=True, nogil=True)
def _free(
    K, order, copies, copied, diag, low, high, x, F, tube, up, down, tol, most, second, pairs
):
    steps, violation = 0, 0.0
    if len(x) == 0:
        return steps, violation
    kinks = tube is not None
    least = least_curvature(diag)
    unit, curve, inverse, less, more = free_units(diag, low, high, x, kinks)
    row = _row(K, order, copies, copied, 0)
    i, violation = free_update(F, row, row, 0.0, 0.0, curve, inverse, less, more, up, down, second)
    while i >= 0 and violation > tol and steps < most:
        j, row = i, _row(K, order, copies, copied, i)
        if pairs:
            j = free_partner(F, row, unit, i, curve, inverse, less, more, up, down, second)
        a, b = free_step(
            i, j, diag[i], diag[j], row[j], least, low, high, x, F, tube, up, down
        )  # fmt: skip
        if a == 0.0 and b == 0.0:  # below the last digit of x
            break
        note_space((i, j), x, low, high, kinks, unit, less, more)
        steps += 1
        other = _row(K, order, copies, copied, j)
        i, violation = free_update(
            F, row, other, a, b, curve, inverse, less, more, up, down, second
        )  # fmt: skip
    return steps, violation


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

    Second order (Fan et al. 2005): j has the largest gain ``(F_i - F_j)^2 / curvature``,
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
