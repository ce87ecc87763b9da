"""The kernel matrix of a small problem, computed once for the solver and the certificate.

If the data have few columns, a compiled loop computes each row of the matrix in float64 when it is
first needed: most rows of the matrix never are. Otherwise the whole matrix is computed at first
use.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.kernels.base import MAX_ROWS_IN_FLOAT64
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

_LINEAR, _RBF, _POLYNOMIAL, _SIGMOID = range(4)
"""Numbers of the kinds of kernels, for compiled code (`Recipe.kind`)."""
_KINDS = {
    LinearTerms: _LINEAR,
    RbfTerms: _RBF,
    PolynomialTerms: _POLYNOMIAL,
    SigmoidTerms: _SIGMOID,
}
"""The kind of kernel, as a `Recipe` stores it, for each type of kernel constants."""


class Recipe(NamedTuple):
    """The data from which compiled loops compute rows of a kernel matrix.

    ``kind`` and ``scale``, ``shift``, ``factors`` are the kernel and its constants (``factors``:
    the degree of a polynomial less 1), ``columns`` (d, n) the transposed data, ``half`` (n,) half
    the rows' squared norms. One type serves all kernels, because loops that use it take seconds to
    compile for each type.
    """

    kind: int
    scale: float
    shift: float
    factors: int
    columns: NDArray[np.float64]
    half: NDArray[np.float64]

    @classmethod
    def of(cls, kernel: Compiled, X: Any, max_columns: int = 32) -> Recipe | None:
        """Make the recipe for the kernel matrix of the rows X, with float64 entries.

        Returns None if the rows have too many columns, for other kinds of kernels, and if a
        distance computed from norms and products would lose too many digits. With at most
        ``max_columns`` columns one row takes approximately as long in float64 as BLAS needs for it
        in float32 within the whole matrix.
        """
        terms: Any = kernel.terms(np.dtype(np.float64))
        if X.shape[1] > max_columns or type(terms) not in _KINDS:
            return None
        rows = _dense(X)
        if kernel.pairing == "distance":
            rows -= rows.mean(axis=0)  # so that norms and products do not exceed the distances
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
        """Return the recipe for the kernel matrix of these rows only; ``rows``: ranges of rows."""
        rows = list(rows)
        columns = np.concatenate([self.columns[:, each] for each in rows], axis=1)
        half = np.concatenate([self.half[each] for each in rows])
        return self._replace(columns=columns, half=half)


class Square:
    """Kernel entries between all rows of a small problem.

    Parameters
    ----------
    kernel : Compiled
        (A kernel that the user gives might not be symmetric.)
    side : Operand
        The rows.
    room : float64 array, at least (n * n,), or None
        Memory for the entries: new memory costs as much as computing them. While this Square is
        used, no other may use the memory.
    recipe : Recipe or None
        The recipe of these rows, if known.

    Attributes
    ----------
    dtype : type of the entries
    diag : float64 (n,), ``k(x, x)``
    lazy : bool
        Whether rows of the matrix are computed when first needed.
    entries : int
        Number of entries computed so far.
    """

    def __init__(
        self,
        kernel: Compiled,
        side: Operand,
        room: NDArray[np.float64] | None = None,
        recipe: Recipe | None = None,
    ) -> None:
        """Compute the diagonal, and choose the type of entries; the matrix is computed later.

        ``side``: the n rows. ``room``: memory for the n * n entries, None: new. ``recipe``: how
        compiled loops compute rows of this matrix, None: found here.
        """
        self.kernel, self.side, self._room, X = kernel, side, room, side.X
        self._recipe = None
        # Row by row only if the columns fit a core's cache, 1 MB.
        if 8 * X.shape[0] * X.shape[1] <= 1 << 20:
            self._recipe = Recipe.of(kernel, X) if recipe is None else recipe
        self.lazy = self._recipe is not None
        self.entries = 0
        # CSR rows are made dense, so that either layout sums in the same order.
        whole = self.lazy and not isinstance(X, np.ndarray)
        self.diag = kernel.diag(Operand(_dense(X)) if whole else side)
        self.dtype: type = np.float64
        if not self.lazy and len(side) > MAX_ROWS_IN_FLOAT64:
            longest = float(np.max(side.sqnorms, initial=0.0))
            self.dtype = kernel.precision(longest, X.shape[1])

    @cached_property
    def table(self) -> tuple[Any, NDArray[Any], NDArray[np.bool_]]:
        """Arguments of `row_of`: the recipe, the rows (n, n), and which are computed, bool (n,).

        Compiled loops fill in the rows they need. If the matrix is not `lazy`, all is computed
        here, and the matrix itself takes the place of the recipe.
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
        """A number per row, int64 (n,), the same for equal rows; None if no two rows are equal.

        May be assigned if it is known.
        """
        return number_equal_rows(self.side.X)

    @property
    def whole(self) -> NDArray[Any]:
        """The whole matrix (n, n); missing rows are computed."""
        recipe, copies, there = self.table
        if self.lazy:
            fill(recipe, copies, there)
            self.count()
        return copies

    def count(self) -> None:
        """Update `entries` with the rows that compiled loops have computed."""
        if self.lazy:
            self.entries = int(np.count_nonzero(self.table[2])) * len(self.side)


def number_equal_rows(X: Any) -> NDArray[np.int64] | None:
    """Number the rows so that equal rows have the same number, int64 (n,); None if all differ.

    Rows are compared by their products with a random vector.
    """
    mark = np.random.default_rng(0).normal(size=X.shape[1])
    keys = np.empty(X.shape[0])
    project_rows(as_rows(X), mark, keys)
    found, numbers = np.unique(keys, return_inverse=True)
    return None if len(found) == len(keys) else numbers


@njit(cache=True, nogil=True)
def project_rows(X: Any, mark: FloatArray, out: FloatArray) -> None:
    """Write the products of rows with a vector ``mark`` to `out`: equal rows have equal products.

    (Each is summed in the same order. ``X``: rows as compiled loops take them, see `as_rows`.)
    """
    for i in range(len(out)):
        out[i] = row_dot(X, i, mark)


def variance_weights(coef: FloatArray, group: NDArray[np.int64] | None) -> FloatArray:
    """Weights of the rows in the variance of a score, if errors of their entries are independent.

    The weight of a row is ``coef^2``. Equal rows have equal errors, so their weights are raised to
    add up to the square of the sum of their coefficients, if that is larger. ``group`` numbers
    equal rows (see `number_equal_rows`); numbers may be missing.
    """
    squares = coef**2
    if group is None:
        return squares
    together, rows = np.bincount(group, coef) ** 2, np.bincount(group)
    return np.maximum(squares, together[group] / rows[group])


def error_spread(coef: FloatArray, group: NDArray[np.int64] | None) -> float:
    """Bound the error of a score ``sum_j coef_j k(x, x_j)``, relative to the entries' error bound.

    Errors of entries are independent, but for equal rows, whose errors are equal. ``group`` numbers
    equal rows (see `number_equal_rows`).
    """
    if group is None:
        return float(np.sqrt(coef @ coef))
    together, apart = np.bincount(group, coef), np.bincount(group, coef**2)
    return float(np.sqrt(np.sum(np.maximum(together**2, apart))))


def _dense(X: Any) -> NDArray[np.float64]:
    """Copy dense or CSR rows to a dense float64 array: either layout gives equal entries."""
    return (X if isinstance(X, np.ndarray) else X.toarray()).astype(np.float64)


def row_of(K: Any, copies: NDArray[Any], there: NDArray[np.bool_], i: int) -> NDArray[Any]:
    """Return row i of a kernel matrix, computing it first if it is missing, in compiled code.

    ``K``, ``copies``, ``there``: the three parts of a `Square.table` (recipe, rows, which are
    computed). If K is the matrix itself, its row i is returned, and the other two are not used.
    """
    raise NotImplementedError


@overload(row_of, jit_options={"fastmath": {"contract"}})
def _row_of(K: Any, copies: Any, there: Any, i: Any) -> Any:
    """Choose the compiled code of `row_of` by the type of K: a recipe, or the matrix itself."""
    if getattr(K, "instance_class", None) is not Recipe:

        def return_row(K: Any, copies: Any, there: Any, i: Any) -> Any:
            """Return row i of a matrix in memory."""
            return K[i]

        return return_row

    def compute_if_missing(K: Any, copies: Any, there: Any, i: Any) -> Any:
        """Return row i, computed from the recipe K if this is its first use."""
        if not there[i]:
            there[i] = True
            compute(K, i, copies[i])
        return copies[i]

    return compute_if_missing


@njit(cache=True, nogil=True, fastmath={"contract"})
def compute(recipe: Recipe, i: int, out: FloatArray) -> None:
    """Write row i of a recipe's kernel matrix to `out` (n,), four columns per sweep."""
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
    """Turn the products of one row with all rows into kernel entries, in place in `out`.

    ``own``: half the squared norm of that one row. ``recipe``: the kernel, its constants, and half
    the squared norms of all rows.
    """
    kind, scale, shift, factors, _, half = recipe
    if kind == _RBF:
        for j in range(len(out)):
            out[j] = entry(RbfTerms(scale), out[j], own, half[j])
    elif kind == _SIGMOID:
        for j in range(len(out)):
            out[j] = entry(SigmoidTerms(scale, shift), out[j], own, half[j])
    elif kind == _POLYNOMIAL:  # (a loop, since `entry` would be compiled for each degree)
        for j in range(len(out)):
            x = scale * out[j] + shift
            power = x
            for _ in range(factors):
                power *= x
            out[j] = power


@njit(cache=True, nogil=True)
def fill(recipe: Recipe, copies: FloatArray, there: NDArray[np.bool_]) -> None:
    """Compute all missing rows of a recipe's kernel matrix.

    ``copies`` (n, n): the rows. ``there`` (n,): which are computed; all are afterwards.
    """
    for i in range(len(there)):
        if not there[i]:
            there[i] = True
            compute(recipe, i, copies[i])


def sum_rows(
    square: Square, ids: NDArray[np.int64], coef: FloatArray, other: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Compute ``sum_j coef_j K_j`` and ``sum_j other_j K_j`` over rows K_j of a kernel matrix.

    ``ids`` (q,): the rows j; ``coef`` and ``other`` (q,) have a number for each. Returns two
    arrays, float64 (n,). One pass over the rows serves both sums.
    """
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
    """Add ``coef_j K_j`` to `out` and ``other_j K_j`` to `rest` over rows ``ids`` of a matrix.

    ``K``, ``copies``, ``there``: a `Square.table`. Compiled part of `sum_rows`.
    """
    for k in range(len(ids)):
        row, a, b = row_of(K, copies, there, ids[k]), coef[k], other[k]
        for j in range(len(out)):
            value = np.float64(row[j])
            out[j] += a * value
            rest[j] += b * value
