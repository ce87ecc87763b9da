"""A shard's rows during a Newton solve, and the sums over them."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.dual import AT_HI, AT_LO, Dual, FloatArray
from bigscreen.rows import get_cython_function_address, njit

UNSET = np.int8(3)
"""Side of a row that no pass has scored yet."""


@dataclass
class State:
    """A shard's rows during a solve; arrays of shape (rows,) unless said otherwise.

    ``X`` is None where the rows are read again in every pass (they do not fit in memory).
    ``scores`` were computed at the w number ``ref``; ``side`` is AT_LO, AT_HI, FREE (in the zone)
    or UNSET; ``fixed`` rows are screened: proved to stay on their side.
    ``side_sum`` (2, m + 1): V of rows at a side, by sign, the last entry being the offset's;
    ``side_lin`` (2,): their H by sign. ``need``, ``trial``: rows of the last trial, their scores.
    ``threshold``, ``below``: the shard's part of the multiplier's order statistic, and the weight
    of its fixed rows below mu*.
    """

    start: int
    ids: NDArray[np.int64]
    dual: Dual
    norms: FloatArray
    X: Any
    scores: FloatArray
    ref: NDArray[np.int32]
    side: NDArray[np.int8]
    fixed: NDArray[np.bool_]
    side_sum: FloatArray
    side_lin: FloatArray = field(default_factory=lambda: np.zeros(2))
    threshold: float = 0.0
    below: float = 0.0
    need: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    trial: FloatArray = field(default_factory=lambda: np.empty((0, 2)))

    def compact(self) -> None:
        """Drop fixed rows: the arrays hold alive rows only from here on, named by ``ids``."""
        keep = np.flatnonzero(~self.fixed)
        if self.X is not None:
            self.X = self.X[keep]
        self.dual = self.dual[keep]
        self.ids, self.norms = self.ids[keep], self.norms[keep]
        self.scores, self.ref = self.scores[keep], self.ref[keep]
        self.side, self.fixed = self.side[keep], self.fixed[keep]
        self.need, self.trial = np.empty(0, np.int64), np.empty((0, 2))


def side_value(dual: Dual, side: NDArray[np.int8]) -> FloatArray:
    """The value of alpha at a side; 0 in the zone and where no side is known yet."""
    return np.where(side == AT_HI, dual.hi, np.where(side == AT_LO, dual.lo, 0.0))


def moved_since(state: State, message: dict[str, Any]) -> FloatArray:
    """How far every row's score may be from the one it has: infinite where it never had one."""
    moved = message["travel"][state.ref] * state.norms + message["shift"][state.ref]
    return np.where(state.ref < 0, np.inf, moved)


def intervals(state: State, message: dict[str, Any]) -> tuple[FloatArray, FloatArray]:
    """Intervals of every row's optimal score, widened by what lazy rows have moved."""
    norms = np.sqrt(state.norms**2 + message["constant"])
    scores = state.scores - message["offset"]
    slack = moved_since(state, message) + message["slack"]
    return message["region"].intervals(scores, norms, slack)


def quantiles(state: State, message: dict[str, Any]) -> FloatArray:
    """Weight of the multiplier's breakpoints below each of a grid of candidates.

    Returns [weight of lower ends at or below each candidate..., of upper ends..., the
    threshold's part, the total weight].
    """
    lower, upper = intervals(state, message)
    one, weights, _ = state.dual.breakpoints(lower)
    other, _, _ = state.dual.breakpoints(upper)
    weights = np.where(state.fixed, 0.0, weights)
    sums = []
    for ends in (np.minimum(one, other), np.maximum(one, other)):
        order = np.argsort(ends)
        cumulative = np.concatenate([[0.0], np.cumsum(weights[order])]) + state.below
        sums.append(cumulative[np.searchsorted(ends[order], message["grid"], side="right")])
    return np.concatenate([*sums, [state.threshold, float(np.sum(weights)) + state.below]])


def side_loss(state: State, coefs: FloatArray, offsets: FloatArray) -> FloatArray:
    """Loss of the rows not visited, at both ends of a segment: ``H - <V, w>``, exact.

    V and H cover all rows at a side; those among them that are visited are taken out again.
    """
    part = state.dual[state.need]
    bound = side_value(part, state.side[state.need])
    visited = bound @ part.lin - (bound * part.sign) @ state.trial
    v = state.side_sum.sum(axis=0)
    return state.side_lin.sum() - (v[:-1] @ coefs + v[-1] * offsets) - visited


def by_sign(sign: FloatArray, values: FloatArray) -> FloatArray:
    """Sums of the values of rows with s > 0 and with s < 0."""
    return np.array([np.sum(values[sign > 0]), np.sum(values[sign < 0])])


_scratch = threading.local()


def moment_of_zeros(size: int) -> FloatArray:
    """A (size, size) array of zeros, the same memory in every call of this thread."""
    if getattr(_scratch, "moment", np.empty((0, 0))).shape[0] != size:
        _scratch.moment = np.empty((size, size))
    _scratch.moment[...] = 0.0
    return _scratch.moment


_DSYRK = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 10)(
    get_cython_function_address("scipy.linalg.cython_blas", "dsyrk")
)
"""BLAS's symmetric update by its address: ctypes lets other threads run meanwhile, which scipy's
own wrapper does not."""


def add_moment(moment: FloatArray, columns: FloatArray, weight: FloatArray) -> None:
    """Add ``sum weight_i^2 [c_i, 1] [c_i, 1]'`` to the upper triangle, in place."""
    rows, size = len(weight), len(moment)
    if not rows:
        return
    scaled = np.empty((rows, size))
    np.multiply(columns, weight[:, None], out=scaled[:, :-1])
    scaled[:, -1] = weight
    # Fortran's lower triangle of C-ordered memory is the upper one.
    chars = [ctypes.byref(ctypes.c_char(c)) for c in (b"L", b"N")]
    n, k, one = ctypes.c_int(size), ctypes.c_int(rows), ctypes.c_double(1.0)
    n_at, k_at, one_at = ctypes.byref(n), ctypes.byref(k), ctypes.byref(one)
    _DSYRK(*chars, n_at, k_at, one_at, scaled.ctypes.data, n_at, one_at, moment.ctypes.data, n_at)


def add_by_sign(
    total: FloatArray, columns: NDArray[Any], sign: FloatArray, weight: FloatArray
) -> None:
    """``total[k] += sum over rows of sign k of s_i weight_i [c_i, 1]`` (k = 0: s > 0)."""
    for k, rows in enumerate((sign > 0, sign < 0)):
        weights = np.where(rows, sign * weight, 0.0)
        _accumulate(columns, weights, total[k])


@njit(cache=True, nogil=True, fastmath={"contract"})
def _accumulate(columns, weights, total):  # type: ignore[no-untyped-def]
    """``total += weights' [columns, 1]`` in float64, skipping zero weights."""
    m = columns.shape[1]
    for i in range(columns.shape[0]):
        weight = weights[i]
        if weight != 0.0:
            for j in range(m):
                total[j] += weight * columns[i, j]
            total[m] += weight


@njit(cache=True, nogil=True)
def segment_losses(z, dz, lo, hi, h, steps, losses):  # type: ignore[no-untyped-def]
    """Smoothed (row 0) and plain (row 1) losses at ``z + t dz`` for every step length t."""
    for k in range(len(steps)):
        smooth, plain = 0.0, 0.0
        for i in range(len(z)):
            g = z[i] + steps[k] * dz[i]
            bound = hi[i] if g > 0 else lo[i]
            plain += bound * g
            if abs(g) >= h:
                smooth += bound * g
            else:
                smooth += lo[i] * g + (hi[i] - lo[i]) * (g + h) * (g + h) / (4 * h)
        losses[0, k] += smooth
        losses[1, k] += plain
