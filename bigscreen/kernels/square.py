"""The kernel matrix of a few rows: made once, row by row as they are needed, for solver and proof.

Of a small problem a fit needs some rows of the matrix, again and again, and its closing pass the
same ones. Of narrow rows in memory a compiled loop computes each when it is first asked for, in
float64; of all others the whole matrix is computed at the first question.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.kernels.base import FEW
from bigscreen.kernels.entries import (
    LinearTerms,
    PolynomialTerms,
    RbfTerms,
    SigmoidTerms,
    entry,
)
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Compiled, Rbf
from bigscreen.numerics.rows import FloatArray, as_rows, njit, overload, row_dot

NARROW = 32
"""Columns up to which a row of float64 entries is computed about as fast as BLAS computes it among
all others in float32: most rows of the matrix are never asked for."""

HELD = 1 << 20
"""Bytes of the rows' columns that stay in a core's cache while it computes row after row."""

_LINEAR, _RBF, _POLYNOMIAL, _SIGMOID = range(4)
_KINDS = {
    LinearTerms: _LINEAR,
    RbfTerms: _RBF,
    PolynomialTerms: _POLYNOMIAL,
    SigmoidTerms: _SIGMOID,
}


class Recipe(NamedTuple):
    """What compiled loops compute rows of a matrix from.

    Which kernel it is and its constants (of a polynomial, ``factors`` is the degree less 1), the
    columns of all rows (d, n) and half their squared norms (n,). It is of one type whatever the
    kernel is: the loops that use rows take seconds to compile for every type.
    """

    kind: int
    scale: float
    shift: float
    factors: int
    columns: NDArray[np.float64]
    half: NDArray[np.float64]

    @classmethod
    def of(cls, kernel: Compiled, X: Any) -> Recipe | None:
        """What float64 entries between rows are computed from.

        None where another way is better: for rows that are not narrow, kernels that are none of
        these, and where products in place of distances would tell.
        """
        terms: Any = kernel.terms(np.dtype(np.float64))
        if X.shape[1] > NARROW or type(terms) not in _KINDS:
            return None
        rows = _dense(X)
        if kernel.pairing == "distance":
            rows -= rows.mean(axis=0)  # norms and products no larger than the rows are apart
        half = 0.5 * np.einsum("ij,ij->i", rows, rows)
        if isinstance(kernel, Rbf) and kernel.coarse(half):
            return None
        return cls(
            _KINDS[type(terms)],
            float(getattr(terms, "scale", 0.0)),
            float(getattr(terms, "shift", 0.0)),
            len(getattr(terms, "factors", ())),
            np.ascontiguousarray(rows.T),
            half,
        )

    def part(self, rows: Iterable[slice]) -> Recipe:
        """That of some of the rows."""
        rows = list(rows)
        columns = np.concatenate([self.columns[:, each] for each in rows], axis=1)
        half = np.concatenate([self.half[each] for each in rows])
        return self._replace(columns=columns, half=half)


class Square:
    """Kernel entries between all rows of a small problem.

    Parameters
    ----------
    kernel : Compiled
        (Others, which somebody else computes, might not be symmetric.)
    side : Operand
        The rows.
    room : float64 array, at least (n * n,), or None
        Memory for the entries, where there is some: fresh pages cost as much as the entries. No
        other square may be asked for anything while this one uses it.

    recipe : Recipe or None
        What rows of the matrix are computed from, where it is known already.

    Attributes
    ----------
    dtype : type of the entries
    diag : float64 (n,), ``k(x, x)``
    lazy : bool
        Whether rows of the matrix are computed one by one.
    entries : int
        How many have been computed.
    """

    def __init__(
        self,
        kernel: Compiled,
        side: Operand,
        room: NDArray[np.float64] | None = None,
        recipe: Recipe | None = None,
    ) -> None:
        self.kernel, self.side, self._room, X = kernel, side, room, side.X
        self._recipe = None
        if 8 * X.shape[0] * X.shape[1] <= HELD:
            self._recipe = Recipe.of(kernel, X) if recipe is None else recipe
        self.lazy = self._recipe is not None
        self.entries = 0
        # (Of a CSR row the same sum in the same order: either layout ends at the same machine.)
        whole = self.lazy and not isinstance(X, np.ndarray)
        self.diag = kernel.diag(Operand(_dense(X)) if whole else side)
        self.dtype: type = np.float64
        if not self.lazy and len(side) > FEW:
            longest = float(np.max(side.sqnorms, initial=0.0))
            self.dtype = kernel.precision(longest, X.shape[1])

    @cached_property
    def table(self) -> tuple[Any, NDArray[Any], NDArray[np.bool_]]:
        """What `row_of` takes: how to compute rows, space for them, and which are there.

        Where the matrix is whole, the first is the matrix itself.
        """
        n = len(self.side)
        room: NDArray[Any] | None = self._room
        if room is None or len(room) < n * n:
            room = np.empty(n * n, self.dtype)
        copies: NDArray[Any] = room.view(self.dtype)[: n * n].reshape(n, n)
        if self._recipe is not None:
            return self._recipe, copies, np.zeros(n, np.bool_)
        self.entries = n * n
        self.kernel.block(self.side, self.side, out=copies, dtype=self.dtype)
        return copies, copies, np.ones(n, np.bool_)

    @cached_property
    def alike(self) -> NDArray[np.int64] | None:
        """The same number for equal rows; None where no two are equal. Set by who knows it."""
        return alike(self.side.X)

    @property
    def whole(self) -> NDArray[Any]:
        """The matrix (n, n), every row computed."""
        recipe, copies, there = self.table
        if self.lazy:
            fill(recipe, copies, there)
            self.count()
        return copies

    def count(self) -> None:
        """Count what compiled loops have computed by themselves."""
        if self.lazy:
            self.entries = int(np.count_nonzero(self.table[2])) * len(self.side)


def alike(X: Any) -> NDArray[np.int64] | None:
    """Numbers of rows, the same for equal ones; None where no two are equal."""
    mark = np.random.default_rng(0).normal(size=X.shape[1])
    keys = np.empty(X.shape[0])
    projected(as_rows(X), mark, keys)
    found, numbers = np.unique(keys, return_inverse=True)
    return None if len(found) == len(keys) else numbers


@njit(cache=True, nogil=True)
def projected(X: Any, mark: FloatArray, out: FloatArray) -> None:
    """Products of rows with a vector, every one summed in the same order."""
    for i in range(len(out)):
        out[i] = row_dot(X, i, mark)


def spread(coef: FloatArray, group: NDArray[np.int64] | None) -> FloatArray:
    """One weight a row, by which independent errors of its entries count: ``coef^2``, or more.

    Entries of equal rows err alike: they count by the square of their sum, where that is more.
    ``group``: see `alike`; its numbers need not follow one another.
    """
    squares = coef**2
    if group is None:
        return squares
    together, rows = np.bincount(group, coef) ** 2, np.bincount(group)
    return np.maximum(squares, together[group] / rows[group])


def total_spread(coef: FloatArray, group: NDArray[np.int64] | None) -> float:
    """Independent errors of a row's entries add up, times ``coef``, to their bound times this.

    Entries of equal rows err alike. ``group``: see `alike`.
    """
    if group is None:
        return float(np.sqrt(coef @ coef))
    together, apart = np.bincount(group, coef), np.bincount(group, coef**2)
    return float(np.sqrt(np.sum(np.maximum(together**2, apart))))


def _dense(X: Any) -> NDArray[np.float64]:
    """A copy in float64; of CSR rows the zeros as well: either layout has the same entries."""
    return (X if isinstance(X, np.ndarray) else X.toarray()).astype(np.float64)


def row_of(K: Any, copies: NDArray[Any], there: NDArray[np.bool_], i: int) -> NDArray[Any]:
    """Row i of a ``Square.table``, from compiled code."""
    raise NotImplementedError


@overload(row_of, jit_options={"fastmath": {"contract"}})
def _row_of(K: Any, copies: Any, there: Any, i: Any) -> Any:
    if getattr(K, "instance_class", None) is not Recipe:

        def kept(K: Any, copies: Any, there: Any, i: Any) -> Any:
            return K[i]

        return kept

    def computed(K: Any, copies: Any, there: Any, i: Any) -> Any:
        if not there[i]:
            there[i] = True
            compute(K, i, copies[i])
        return copies[i]

    return computed


@njit(cache=True, nogil=True, fastmath={"contract"})
def compute(recipe: Recipe, i: int, out: FloatArray) -> None:
    """out = row i of the matrix, four columns a sweep to save stores."""
    columns = recipe.columns
    d, n = columns.shape
    out[:] = 0.0
    for k in range(0, d - 3, 4):
        b0, b1, b2, b3 = columns[k], columns[k + 1], columns[k + 2], columns[k + 3]
        a0, a1, a2, a3 = b0[i], b1[i], b2[i], b3[i]
        for j in range(n):
            out[j] += (a0 * b0[j] + a1 * b1[j]) + (a2 * b2[j] + a3 * b3[j])
    for k in range(d - d % 4, d):
        b0, a0 = columns[k], columns[k, i]
        for j in range(n):
            out[j] += a0 * b0[j]
    _finish(recipe, recipe.half[i], out)


@njit(cache=True, nogil=True, fastmath={"contract"})
def _finish(recipe: Recipe, own: float, out: FloatArray) -> None:
    """Products to kernel entries, in place."""
    kind, scale, shift, factors, _, half = recipe
    if kind == _RBF:
        for j in range(len(out)):
            out[j] = entry(RbfTerms(scale), out[j], own, half[j])
    elif kind == _SIGMOID:
        for j in range(len(out)):
            out[j] = entry(SigmoidTerms(scale, shift), out[j], own, half[j])
    elif kind == _POLYNOMIAL:  # the only one whose function is of a type for every degree
        for j in range(len(out)):
            x = scale * out[j] + shift
            power = x
            for _ in range(factors):
                power *= x
            out[j] = power


@njit(cache=True, nogil=True)
def fill(recipe: Recipe, copies: FloatArray, there: NDArray[np.bool_]) -> None:
    """Compute the rows that are not there."""
    for i in range(len(there)):
        if not there[i]:
            there[i] = True
            compute(recipe, i, copies[i])


def sums(
    square: Square, ids: NDArray[np.int64], coef: FloatArray, other: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """``sum_j coef_j K_j`` and ``sum_j other_j K_j`` over the rows ``ids_j`` of the matrix."""
    out, rest = np.zeros(len(square.side)), np.zeros(len(square.side))
    _sums(*square.table, ids, coef, other, out, rest)
    square.count()
    return out, rest


@njit(cache=True, nogil=True, fastmath={"contract"})
def _sums(
    K: Any,
    copies: NDArray[Any],
    there: NDArray[np.bool_],
    ids: NDArray[np.int64],
    coef: FloatArray,
    other: FloatArray,
    out: FloatArray,
    rest: FloatArray,
) -> None:
    for k in range(len(ids)):
        row, a, b = row_of(K, copies, there, ids[k]), coef[k], other[k]
        for j in range(len(out)):
            value = np.float64(row[j])
            out[j] += a * value
            rest[j] += b * value
