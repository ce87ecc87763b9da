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

from bigscreen.dual import FloatArray
from bigscreen.kernels_square import Square, row_of
from bigscreen.rows import njit
from bigscreen.solvers.smo_scans import (
    free_partner,
    free_step,
    free_units,
    free_update,
    least_curvature,
    note_room,
    note_space,
    pair_partner,
    pair_step,
    pair_update,
)

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
