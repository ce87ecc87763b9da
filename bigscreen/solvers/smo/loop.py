"""Compiled SMO steps on one or two dual variables, and the loop for a kernel matrix in memory.

Let ``x_i = r_i alpha_i`` (``r`` is the coupling's +-1, without a coupling the sign) and
``F_i = r_i G_i``. Then every problem of ``Dual`` without a quadratic term of the loss reads:
maximise ``F . d - 1/2 d' Q d - e . |x + d|`` over ``low <= x + d <= high``, and, with a coupling,
``sum d = 0`` over each group. Here ``Q_ij = f_i f_j K_ij`` and ``f = r s``. Without a coupling, and
for a C-SVC with one, ``f`` is 1, so no sign is left.

Rows of a group are adjacent, so that scans run on slices, and a step costs the same for any number
of groups. A tube (half-width e) gives each variable a hinge point at 0, where a step ends.

Loops take named tuples of arrays. A field that may be None is passed to a function of its own,
because numba compiles a branch away only if the type of an argument decides it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.kernels.square import Square, row_of
from bigscreen.numerics.rows import FloatArray, njit
from bigscreen.problems.dual import Dual

Singles = NDArray[np.float32]
"""An array of float32 numbers."""
Entries = NDArray[Any]
"""A row of kernel entries: float32 or float64."""

UP, DOWN = np.int8(1), np.int8(2)  # bits of `moves`: whether a variable can move up, down

_VALUE_BITS = np.int64(0x7FFFFFFFFFFFFFFF)  # all bits of an int64 but the sign
_NO_KEY = np.int64(-0x8000000000000000)  # below the key of any variable
_INDEX_BITS = np.int64(0xFFFFFFFF)  # the lower half of a key, which is a variable's index
_ZERO, _HALF, _TINY = np.float32(0), np.float32(0.5), np.float32(1e-30)  # for float32 loops
# Typed, since numba would compile functions anew for arguments that are integer literals.
_ROW_0: Any = np.int64(0)  # the number of the first variable
_NO_ROW: Any = np.int64(-1)  # no variable

MIN_CURVATURE_FRACTION = 1e-12
"""Raise the curvature of the dual along a pair step to at least this fraction of the largest k(x,
x): it is 0 for pairs of equal rows, and can be negative for indefinite kernels."""


class Limits(NamedTuple):
    """When to stop, and how to choose the variables of a step.

    Parameters
    ----------
    tol : float
        Stop once the violation of optimality (see `smo`) is at most this.
    max_steps : int
        Take at most this many steps.
    second_order : bool
        Choose the largest gain in the dual, not the largest violation.
    pairs : bool
        Without a coupling: move two variables at a time, not one.
    """

    tol: float
    max_steps: int
    second_order: bool = True
    pairs: bool = True


class Variables(NamedTuple):
    """The variables that SMO steps change, float64 (q,): ``x`` within [low, high], and F.

    ``x = r alpha`` with signs r, and ``F`` is the dual's derivative in x, without multipliers and
    tube. With a tube: its half-widths, and the terms ``up`` and ``down`` that it adds to F for
    moves up and down from x; else None.
    """

    low: FloatArray
    high: FloatArray
    x: FloatArray
    F: FloatArray
    tube: FloatArray | None
    up: FloatArray | None
    down: FloatArray | None

    @classmethod
    def of(
        cls,
        low: FloatArray,
        high: FloatArray,
        x: FloatArray,
        F: FloatArray,
        tube: FloatArray | None = None,
    ) -> Variables:
        """Make the variables at this x, with this F, and the tube's terms for moves from x."""
        if tube is None:
            return cls(low, high, x, F, None, None, None)
        tube = np.ascontiguousarray(tube)  # scans of a broadcast view would not vectorise
        up, down = np.where(x >= 0, -tube, tube), np.where(x > 0, -tube, tube)
        return cls(low, high, x, F, tube, up, down)

    def at(self, rows: NDArray[np.int64]) -> Variables:
        """Copy the variables of these rows."""
        tube = None if self.tube is None else self.tube[rows]
        return self.of(self.low[rows], self.high[rows], self.x[rows], self.F[rows], tube)


class PairScan(NamedTuple):
    """The arrays (q,) that are scanned to choose a pair of variables, for duals with a coupling.

    ``F``: the dual's derivatives. ``up``, ``down``: what a tube adds to them for moves up and down.
    ``flip``: the factors f of ``Q_ij = f_i f_j K_ij`` (None: they cancel). ``diag``: k(x, x).
    ``moves``: bits UP and DOWN, the directions in which each variable can move.
    """

    F: FloatArray
    up: FloatArray | None
    down: FloatArray | None
    flip: Singles | None
    diag: Singles
    moves: NDArray[np.int8]


class FreeScan(NamedTuple):
    """The arrays (q,) that are scanned to choose one or two variables, without a coupling.

    ``F``: the dual's derivatives. ``up``, ``down``: what a tube adds to them for moves up and down.
    ``diag``: k(x, x). ``least``: the least curvature of a step. The others are float32, with
    lengths in units of the widest box, ``unit`` (C may be 1e-50): the curvatures ``curve``, their
    inverses, and the room below (``less`` <= 0) and above (``more``) each variable, up to its hinge
    point.
    """

    F: FloatArray
    up: FloatArray | None
    down: FloatArray | None
    diag: FloatArray
    least: float
    unit: float
    curve: Singles
    inverse: Singles
    less: Singles
    more: Singles


class Matrix:
    """A kernel matrix for compiled steps, or a reordered part of one.

    Parameters
    ----------
    K : float32 or float64 (n, n), C-contiguous; or Square
        Rows of a Square are computed when a step first needs them (`order` must be None then).
    order : int64 (q,) or None
        The rows to use, rows of a group adjacent; None: all rows in their order. A row is copied
        when a step first needs it, because a solve often needs few of the rows.
    room : array of the type of K, at least (q * q,), or None
        Memory for the copies: new memory costs more than copying.

    Attributes
    ----------
    rows : tuple
        (matrix or recipe, order, copies of rows, which rows are copied), for compiled code.
    diag : float64 (q,), ``k(x, x)`` in the order of the rows
    """

    def __init__(
        self,
        K: NDArray[Any] | Square,
        order: NDArray[np.int64] | None = None,
        room: NDArray[Any] | None = None,
    ) -> None:
        """Collect the arrays for compiled code; no row is copied or computed yet."""
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
    K: NDArray[Any] | Matrix, dual: Dual, alpha: FloatArray, G: FloatArray, limits: Limits
) -> tuple[int, float]:
    """Maximise the dual over all rows of a kernel matrix by SMO, from a feasible alpha.

    Parameters
    ----------
    K : float32 or float64 (q, q), C-contiguous, or Matrix
        Kernel entries without signs, plus 1 if a constant is appended to phi. With a ``Matrix``,
        all other arguments are in the order of its rows, with the rows of a group adjacent.
    dual : Dual
        Signs, box, coupling, groups and tube of the rows. Its linear part is contained in G, and
        its total is not used: alpha's total does not change.
    alpha : float64 (q,)
        Within the box; updated. ``t . alpha`` of each group does not change.
    G : float64 (q,)
        ``p - s u``, without multipliers and tube; updated.
    limits : Limits

    Returns
    -------
    steps : int
    violation : float
        The largest ``t_i G_i - t_j G_j`` of a pair that can move (m - M) in any group; without a
        coupling the largest projected gradient. Above ``tol`` if ``max_steps`` or the precision of
        float64 stopped the loop.
    """
    coupled = dual.coupling is not None
    if not isinstance(K, Matrix):
        order = None
        if coupled and dual.group is not None and np.any(np.diff(dual.group) < 0):
            order = np.argsort(dual.group, kind="stable")
        K = Matrix(K, order)
        if order is not None:
            kept = alpha[order], G[order]
            found = smo(K, dual[order], *kept, limits)
            alpha[order], G[order] = kept
            return found
    r = dual.sign if dual.coupling is None else dual.coupling
    x, F = r * alpha, r * G
    low, high = np.where(r > 0, dual.lo, -dual.hi), np.where(r > 0, dual.hi, -dual.lo)
    flip = find_factors(r * dual.sign) if coupled else None
    variables = Variables.of(low, high, x, F, dual.tube)
    done = steps(K, variables, flip, dual.group, coupled, limits)
    alpha[:], G[:] = r * x + 0.0, r * F  # + 0.0: no -0.0 in alpha
    return done


def steps(
    K: Matrix,
    variables: Variables,
    flip: Singles | None,
    group: NDArray[np.int8] | None,
    coupled: bool,
    limits: Limits,
) -> tuple[int, float]:
    """Maximise the dual by SMO in the variables x and F, which are updated.

    Parameters
    ----------
    K : Matrix
    variables : Variables
    flip : float32 (q,) or None
        The factors f of ``Q_ij = f_i f_j K_ij``; None if they cancel.
    group : int8 (q,), ascending, or None
        The group of each variable; None: all are in one.
    coupled : bool
        Whether there is a coupling.
    limits : Limits

    Returns
    -------
    (steps, violation), as `smo` returns them
    """
    if not coupled:
        return _free(K.rows, K.diag, variables, limits)
    ends = None
    if group is not None and len(group) and group[0] != group[-1]:
        ends = np.searchsorted(group, np.arange(int(group[-1]) + 2))
    return _coupled(K.rows, K.diag, ends, flip, variables, limits)


def find_factors(f: FloatArray) -> Singles | None:
    """Return the factors f of ``Q_ij = f_i f_j K_ij`` as float32 (q,); None if all are equal.

    Equal factors (+-1) cancel. With None, numba compiles loops without the multiplications.
    """
    return None if np.all(f == f[:1]) else f.astype(np.float32)


@njit(cache=True, nogil=True)
def _row(K: Any, order: Any, copies: Any, copied: Any, i: int) -> Entries:
    """Return row i of a `Matrix`, computed or copied if this is its first use.

    The other arguments are ``Matrix.rows``. If ``order`` is None no row is copied: ``K`` is a
    matrix, or the recipe from which `row_of` computes rows.
    """
    if order is None:
        return row_of(K, copies, copied, i)
    if not copied[i]:
        copied[i] = True
        source = K[order[i]]
        for k in range(len(order)):
            copies[i, k] = source[order[k]]
    return copies[i]


@njit(cache=True, nogil=True)
def _slice_group(values: Any, ends: Any, g: int) -> Any:
    """Slice the values of group g; return them all if ``ends`` or ``values`` is None.

    ``ends``: where each group starts, and the end of the last one; None: no groups (a slice costs
    10 % of a step).
    """
    return values if ends is None or values is None else values[ends[g] : ends[g + 1]]


@njit(cache=True, nogil=True)
def _slice_scan(scan: PairScan, ends: Any, g: int) -> PairScan:
    """Slice the arrays of a scan to group g; ``ends``: see `_slice_group`."""
    return PairScan(
        _slice_group(scan.F, ends, g),
        _slice_group(scan.up, ends, g),
        _slice_group(scan.down, ends, g),
        _slice_group(scan.flip, ends, g),
        _slice_group(scan.diag, ends, g),
        _slice_group(scan.moves, ends, g),
    )


@njit(cache=True, nogil=True)
def _coupled(
    rows: Any,
    diag: FloatArray,
    ends: NDArray[np.int64] | None,
    flip: Singles | None,
    variables: Variables,
    limits: Limits,
) -> tuple[int, float]:
    """Run SMO with a coupling, the loop over pair steps; return (steps, violation).

    ``rows``, ``diag``: see `Matrix`. ``ends``: where each group starts, and the end of the last
    one; None: one group. ``flip``: the factors f, None if they cancel. ``variables`` are updated.
    """
    K, order, copies, copied = rows
    tol, most, second, _ = limits
    x = variables.x
    least = least_curvature(diag)
    floor = np.float32(least)
    moves = find_moves(variables)
    scan = PairScan(variables.F, variables.up, variables.down, flip, diag.astype(np.float32), moves)
    groups = 1 if ends is None else len(ends) - 1
    tops = np.full(groups, -1)
    steps, violation = 0, 0.0
    i, j, a, b = _ROW_0, _ROW_0, 0.0, 0.0
    while len(x):
        row, other = _row(K, order, copies, copied, i), _row(K, order, copies, copied, j)
        for g in range(groups):
            first = _ROW_0 if ends is None else ends[g]
            top = pair_update(
                _slice_scan(scan, ends, g),
                _slice_group(row, ends, g),
                _slice_group(other, ends, g),
                a,
                b,
            )
            tops[g] = first + top if top >= 0 else -1
        i, violation = _NO_ROW, 0.0
        for g in range(groups):
            first, top = _ROW_0 if ends is None else ends[g], tops[g]
            if top < 0:
                continue
            row = _row(K, order, copies, copied, top)
            partner, apart = pair_partner(
                _slice_scan(scan, ends, g), _slice_group(row, ends, g), top - first, floor, second
            )
            if apart > violation:
                i, j, violation = top, first + partner, apart
        if i < 0 or not violation > tol or steps >= most:
            break
        f_i, f_j = times_factor(1.0, flip, i), times_factor(1.0, flip, j)
        cross = _row(K, order, copies, copied, i)[j]
        curvature = diag[i] + diag[j] - 2.0 * f_i * f_j * cross
        step = pair_step(variables, moves, i, j, curvature, least)
        if step == 0.0:  # smaller than the last digit of x
            break
        a, b = step * f_i, -step * f_j
        steps += 1
    return steps, violation


@njit(cache=True, nogil=True)
def _free(rows: Any, diag: FloatArray, variables: Variables, limits: Limits) -> tuple[int, float]:
    """Run SMO without a coupling, the loop over steps on one or two variables.

    ``rows``, ``diag``: see `Matrix`. ``variables`` are updated. Returns (steps, violation).
    """
    K, order, copies, copied = rows
    tol, most, second, pairs = limits
    steps, violation = 0, 0.0
    if len(variables.x) == 0:
        return steps, violation
    scan = free_scan(variables, diag)
    row = _row(K, order, copies, copied, _ROW_0)
    i, violation = free_update(scan, row, row, 0.0, 0.0, second)
    while i >= 0 and violation > tol and steps < most:
        j, row = i, _row(K, order, copies, copied, i)
        if pairs:
            j = free_partner(scan, row, i, second)
        a, b = free_step(variables, i, j, diag, row[j], scan.least)
        if a == 0.0 and b == 0.0:  # smaller than the last digits of x
            break
        update_room(i, variables, scan)
        update_room(j, variables, scan)
        steps += 1
        other = _row(K, order, copies, copied, j)
        i, violation = free_update(scan, row, other, a, b, second)
    return steps, violation


@njit(cache=True, nogil=True)
def least_curvature(diag: FloatArray) -> float:
    """Return the curvature to which a step's smaller curvature is raised.

    It is a fraction of the largest of ``diag``, k(x, x) of all rows. Equal rows, rows of zeros and
    indefinite kernels would give steps a curvature of 0 or less.
    """
    return max(MIN_CURVATURE_FRACTION * largest(diag), 1e-30)


@njit(cache=True, nogil=True)
def largest(values: FloatArray) -> float:
    """Return the largest of nonnegative values, 0 if there are none (np.max compiles slowly)."""
    found = 0.0
    for value in values:
        found = max(found, value)
    return found


# -- arguments that may be None ------------------------------------------------------------------
@njit(cache=True, nogil=True, fastmath={"contract"})
def times_factor(value: Any, flip: Singles | None, k: int) -> Any:
    """Return ``f_k value``; ``flip`` has the factors f of ``Q_ij = f_i f_j K_ij``; None: all 1."""
    return value if flip is None else flip[k] * value


@njit(cache=True, nogil=True)
def add_tube(F: float, term: FloatArray | None, k: int) -> float:
    """Return F plus ``term[k]``, the tube's term of variable k for moves up (or down); None: F."""
    return F if term is None else F + term[k]


@njit(cache=True, nogil=True)
def slope(F: float, k: int, up: FloatArray | None, down: FloatArray | None) -> float:
    """Return the dual's derivative in x_k in the direction in which it rises; 0 if in neither.

    ``F``: the derivative without the tube. ``up``, ``down``: the tube's terms for moves up and
    down; None: no tube.
    """
    return F if up is None or down is None else max(F + up[k], 0.0) + min(F + down[k], 0.0)


@njit(cache=True, nogil=True)
def is_smooth(k: int, up: FloatArray | None, down: FloatArray | None) -> bool:
    """Whether variable k is away from its hinge point, so that the dual is smooth there.

    ``up``, ``down``: the tube's terms for moves up and down, which differ at the hinge point only;
    None: no tube, and no hinge point.
    """
    return True if up is None or down is None else up[k] == down[k]


@njit(cache=True, nogil=True)
def update_tube(
    k: int,
    x: FloatArray,
    tube: FloatArray | None,
    up: FloatArray | None,
    down: FloatArray | None,
) -> None:
    """Update the tube's terms of F for moves up and down from the present x_k."""
    if tube is not None and up is not None and down is not None:
        up[k] = -tube[k] if x[k] >= 0 else tube[k]
        down[k] = -tube[k] if x[k] > 0 else tube[k]


@njit(cache=True, nogil=True)
def smooth_interval(k: int, way: float, variables: Variables) -> tuple[float, float]:
    """Return the interval in which x_k can move in direction ``way`` without passing 0.

    With a tube the objective has a hinge point at 0; else the interval is the box. ``variables``: x
    with its box and tube.
    """
    x, bottom, top = variables.x[k], variables.low[k], variables.high[k]
    if variables.tube is not None:
        if x > 0.0 or (x == 0.0 and way >= 0.0):
            bottom = max(bottom, 0.0)
        if x < 0.0 or (x == 0.0 and way <= 0.0):
            top = min(top, 0.0)
    return bottom, top


# -- with a coupling: pairs that keep the sum --------------------------------------------------
@njit(cache=True, nogil=True)
def find_moves(variables: Variables) -> NDArray[np.int8]:
    """Return in which directions each variable can move: bits UP and DOWN, int8 (q,)."""
    moves = np.empty(len(variables.x), np.int8)
    for k in range(len(moves)):
        _update_moves(k, variables, moves)
    return moves


@njit(cache=True, nogil=True)
def _update_moves(k: int, variables: Variables, moves: NDArray[np.int8]) -> None:
    """Set ``moves[k]`` to the directions in which the box lets variable k move (UP, DOWN bits)."""
    x, low, high = variables.x, variables.low, variables.high
    moves[k] = UP * (x[k] < high[k]) + DOWN * (x[k] > low[k])


@njit(cache=True, nogil=True, fastmath={"contract"})
def pair_update(scan: PairScan, Ki: Entries, Kj: Entries, a: float, b: float) -> int:
    """Update F -= f (a K_i + b K_j), and return the row with the largest derivative upwards, or -1.

    ``Ki``, ``Kj``: the kernel rows of the last step's pair; ``a``, ``b``: the changes of their
    coefficients. -1: no variable can move up.

    Both in one pass: the index replaces the last bits of F, so the row found has the maximum up to
    a relative 2^-52 len(F).
    """
    F, up, flip, moves = scan.F, scan.up, scan.flip, scan.moves
    index = np.int64(1)
    while index < len(F):
        index *= 2
    best = _NO_KEY
    for k in range(len(F)):
        v = F[k] - times_factor(a * Ki[k] + b * Kj[k], flip, k)
        F[k] = v
        bits = np.float64(add_tube(v, up, k)).view(np.int64)
        # Flip negative numbers, so that integers order like floats.
        bits ^= (bits >> 63) & _VALUE_BITS
        key = (bits & -index) | np.int64(k)
        best = max(best, key if moves[k] & UP else _NO_KEY)
    # Not `best == _NO_KEY`: with that exit LLVM would not vectorise the loop.
    i = best & (index - 1)
    return int(i) if len(F) and moves[i] & UP else -1


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def pair_partner(
    scan: PairScan, Ki: Entries, i: int, least: np.float32, second: bool
) -> tuple[int, float]:
    """Choose the partner j of i; return it and the largest ``F_i - F_j`` of all possible partners.

    ``Ki``: kernel row i. ``least``: the least curvature. Partners can move down; F includes the
    tube's terms. If ``second`` (order, Fan et al. 2005) j has the largest gain
    ``(F_i - F_j)^2 / curvature``, else the largest difference.

    The gain is float32, which affects only the order of
    steps. j is -1 if no pair violates.
    """
    F, down, flip, diag, moves = scan.F, scan.down, scan.flip, scan.diag, scan.moves
    top, scale, own = add_tube(F[i], scan.up, i), times_factor(np.float32(2), flip, i), diag[i]
    best, widest = np.int64(0), np.int32(0)
    for k in range(len(F)):
        apart = np.float32(top - add_tube(F[k], down, k))
        apart = apart if (apart > _ZERO) & ((moves[k] & DOWN) != 0) else _ZERO
        curvature = own + diag[k] - times_factor(scale * np.float32(Ki[k]), flip, k)
        curvature = curvature if curvature > least else least
        gain = apart * (apart / curvature) if second else apart
        widest = max(widest, np.float32(apart).view(np.int32))
        best = max(best, (np.int64(np.float32(gain).view(np.int32)) << 32) | np.int64(k))
    j = best & _INDEX_BITS
    if widest == 0:
        return -1, 0.0
    if best >> 32 == 0:  # gains below what float32 holds
        j, least_fall = np.int64(0), np.inf
        for k in range(len(F)):
            fall = add_tube(F[k], down, k)
            if moves[k] & DOWN and fall < least_fall:
                j, least_fall = np.int64(k), fall
    return int(j), np.float64(np.int32(widest).view(np.float32))


@njit(cache=True, nogil=True)
def pair_step(
    variables: Variables,
    moves: NDArray[np.int8],
    i: int,
    j: int,
    curvature: float,
    least: float,
) -> float:
    """Take the step x_i += d, x_j -= d with the best d within the box; return d.

    0 if x does not change. A variable that reaches its bound is set to it exactly. ``moves``: the
    directions of moves, updated. ``curvature``: of the pair, raised to ``least`` if smaller.
    """
    x, F = variables.x, variables.F
    apart = add_tube(F[i], variables.up, i) - add_tube(F[j], variables.down, j)
    top, bottom = smooth_interval(i, 1.0, variables)[1], smooth_interval(j, -1.0, variables)[0]
    old_i, old_j = x[i], x[j]
    more, less = top - old_i, old_j - bottom
    d = min(apart / max(curvature, least), more, less)
    x[i] = top if d >= more else min(old_i + d, top)
    x[j] = bottom if d >= less else max(old_j - d, bottom)
    for k in (i, j):
        _update_moves(k, variables, moves)
        update_tube(k, x, variables.tube, variables.up, variables.down)
    return 0.0 if x[i] == old_i and x[j] == old_j else d


@njit(cache=True, nogil=True)
def pair_step_and_update(
    variables: Variables,
    scan: PairScan,
    diag: FloatArray,
    i: int,
    j: int,
    row: Entries,
    other: Entries,
    least: float,
) -> tuple[float, int]:
    """Take a step on a pair with kernel rows ``row`` (i) and ``other`` (j), and update F.

    Returns the step, and the row with the largest derivative upwards (see `pair_update`).

    One function for both: a call from Python costs as much as a step.
    """
    f_i, f_j = times_factor(1.0, scan.flip, i), times_factor(1.0, scan.flip, j)
    curvature = diag[i] + diag[j] - 2.0 * f_i * f_j * row[j]
    step = pair_step(variables, scan.moves, i, j, curvature, least)
    return step, pair_update(scan, row, other, step * f_i, -step * f_j)


# -- without a coupling: one variable, or two ---------------------------------------------------
@njit(cache=True, nogil=True)
def free_scan(variables: Variables, diag: FloatArray) -> FreeScan:
    """Make the arrays that are scanned for steps without a coupling; ``diag``: k(x, x)."""
    n, width = len(variables.x), variables.high - variables.low
    unit = max(largest(width), 1e-300)
    curve = np.maximum(
        np.maximum(diag, MIN_CURVATURE_FRACTION * largest(diag)) * unit, 1e-30
    ).astype(np.float32)
    inverse = (1.0 / curve).astype(np.float32)
    less, more = np.empty(n, np.float32), np.empty(n, np.float32)
    v, least = variables, least_curvature(diag)
    scan = FreeScan(v.F, v.up, v.down, diag, least, unit, curve, inverse, less, more)
    for k in range(n):
        update_room(k, variables, scan)
    return scan


@njit(cache=True, nogil=True)
def update_room(k: int, variables: Variables, scan: FreeScan) -> None:
    """Update the room of a scan below and above variable k: to its bounds, or its hinge point."""
    x, bottom, top = variables.x[k], variables.low[k], variables.high[k]
    if variables.tube is not None:
        bottom = max(bottom, 0.0) if x > 0.0 else bottom
        top = min(top, 0.0) if x < 0.0 else top
    scan.less[k], scan.more[k] = (bottom - x) / scan.unit, (top - x) / scan.unit


@njit(cache=True, nogil=True, fastmath={"contract"})
def free_update(
    scan: FreeScan, Ki: Entries, Kj: Entries, a: float, b: float, second: bool
) -> tuple[int, float]:
    """Update F -= a K_i + b K_j, and choose the best single variable.

    ``Ki``, ``Kj``: the kernel rows of the last step's variables, which it has changed by ``a`` and
    ``b``. The best one has the largest gain of its step within the box if ``second``, else the
    largest projected gradient.

    Returns
    -------
    (the variable, or -1; the largest projected gradient)
    """
    F, up, down, _, _, _, curve, inverse, less, more = scan
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
    i = best & _INDEX_BITS
    if best >> 32 == 0:  # gains below what float32 holds
        i = np.int64(0)
        for k in range(len(F)):
            rise = slope(F[k], k, up, down)
            if min(max(rise, np.float64(less[k])), np.float64(more[k])) != 0.0:
                i = np.int64(k)
    return int(i), np.float64(np.int32(widest).view(np.float32))


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def free_partner(scan: FreeScan, Ki: Entries, i: int, second: bool) -> int:
    """Choose the partner of i: the largest joint gain, or the largest opposite gradient.

    ``Ki``: kernel row i. ``second``: by the gain. Returns i if there is no partner.

    The gain is that of the exact step on both within their boxes (see
    `free_step`). A variable at its hinge point moves only in the direction of its own slope.
    """
    F, up, down, _, _, unit, curve, inverse, less, more = scan
    g_i, c_i, inv_i = np.float32(slope(F[i], i, up, down)), curve[i], inverse[i]
    less_i, more_i = less[i], more[i]
    less[i] = more[i] = _ZERO  # no partner of itself
    least_i, most_i = less_i, more_i
    if not is_smooth(i, up, down):
        least_i, most_i = (_ZERO, more_i) if g_i > _ZERO else (less_i, _ZERO)
    scale = np.float32(unit)
    best = np.int64(0)
    for k in range(len(F)):
        g, c = np.float32(slope(F[k], k, up, down)), curve[k]
        away = is_smooth(k, up, down)
        least = less[k] if away | (g < _ZERO) else _ZERO
        most = more[k] if away | (g > _ZERO) else _ZERO
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
    return i if best >> 32 == 0 else int(best & _INDEX_BITS)


@njit(cache=True, nogil=True)
def free_step(
    variables: Variables, i: int, j: int, diag: FloatArray, cross: float, least: float
) -> tuple[float, float]:
    """Take the best step on x_i and x_j within their boxes; return both changes.

    ``diag``: k(x, x) of all rows; ``cross``: the kernel entry of i and j; ``least``: smaller
    curvatures are raised to it. j = i: a step on one variable, whose other change is 0.

    Eliminate d_i and clip d_j. If d_i then leaves its box, it is at that bound at the optimum,
    since the problem is convex; d_j is recomputed for it. This is exact without cases.
    """
    x, F, up, down = variables.x, variables.F, variables.up, variables.down
    diag_i, diag_j = max(diag[i], least), max(diag[j], least)
    g_i, g_j = slope(F[i], i, up, down), slope(F[j], j, up, down)
    low_i, high_i = smooth_interval(i, g_i, variables)
    low_j, high_j = smooth_interval(j, g_j, variables)
    old_i, old_j = x[i], x[j]
    d_j = 0.0
    if j != i:
        left = max(diag_j - cross * (cross / diag_i), least)
        d_j = _clip((g_j - cross * (g_i / diag_i)) / left, low_j - old_j, high_j - old_j)
    d_i = _clip((g_i - cross * d_j) / diag_i, low_i - old_i, high_i - old_i)
    if j != i:
        d_j = _clip((g_j - cross * d_i) / diag_j, low_j - old_j, high_j - old_j)
        x[j] = _move(old_j, d_j, low_j, high_j)
    x[i] = _move(old_i, d_i, low_i, high_i)
    for k in (i, j):
        update_tube(k, x, variables.tube, up, down)
    return x[i] - old_i, x[j] - old_j if j != i else 0.0


@njit(cache=True, nogil=True)
def free_step_and_update(
    variables: Variables, scan: FreeScan, i: int, j: int, row: Entries, other: Entries, second: bool
) -> tuple[bool, int, float]:
    """Take a step on variables i and j, update F, and choose the next variable.

    ``row``, ``other``: kernel rows i and j. ``second``: choose by the gain in the dual.

    Returns whether x changed, and the results of `free_update`. One function for both: a call from
    Python costs as much as a step.
    """
    a, b = free_step(variables, i, j, scan.diag, np.float64(row[j]), scan.least)
    update_room(i, variables, scan)
    update_room(j, variables, scan)
    best, violation = free_update(scan, row, other, a, b, second)
    return a != 0.0 or b != 0.0, best, violation


@njit(cache=True, nogil=True)
def _clip(d: float, low: float, high: float) -> float:
    """Clip d to [low, high]."""
    return min(max(d, low), high)


@njit(cache=True, nogil=True)
def _move(x: float, d: float, low: float, high: float) -> float:
    """Return x + d, or exactly the end of [low, high] that x + d reaches."""
    if d >= high - x:
        return high
    return low if d <= low - x else x + d
