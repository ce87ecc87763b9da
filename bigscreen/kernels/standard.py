"""The built-in kernels: blocks of entries and products with vectors, of dense or CSR rows.

A kernel is a frozen record of parameters and one compiled scalar function (an overload of
`entries.entry`, chosen by the type of its constants). To add a kernel, write both here and add its
name to the table in `options.train`. (The constants in `entries` stay there, because numba's caches
on disk know them by that name; those of a new kernel may stand here.) float32 is the fast path:
BLAS, a fused pass, a polynomial exponential; `Kernel.entry_error` bounds its error. float64 is the
accurate path. Everything runs without the GIL, with one buffer per thread; the caller limits BLAS
threads.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bigscreen.errors import InputError
from bigscreen.kernels import vnni, vnni_entries
from bigscreen.kernels.base import (
    FLOAT32_TINY,
    U32,
    Kernel,
    as_operand,
    check_vectors,
    count_rows,
    output_array,
    product_error,
)
from bigscreen.kernels.entries import (
    PRODUCTS,
    ChiSquaredTerms,
    LaplacianTerms,
    LinearTerms,
    MaternTerms,
    PolynomialTerms,
    RbfTerms,
    SigmoidTerms,
    Tile,
    entry,
    entry_of,
    tiles,
)
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.operand import AnyRows, Operand
from bigscreen.numerics.rows import FloatArray, exp2_negative, njit, tanh

_LOG2E = math.log2(math.e)
"""log2(e): kernels compute ``exp(x)`` as 2 to the power of ``x log2(e)``."""


@njit(nogil=True, cache=True, fastmath={"contract"})
def _finish_row(terms: NamedTuple, row: NDArray[Any], half_a: float, half_b: NDArray[Any]) -> None:
    """Turn the values of one left row with several right rows into kernel entries, in place.

    ``row``: the values (see `tiles`). ``half_a``, ``half_b``: half the squared norms of the left
    row and of the right rows.
    """
    for j in range(len(row)):
        row[j] = entry(terms, row[j], half_a, half_b[j])


@njit(nogil=True, cache=True, fastmath={"contract"})
def _finish(terms: NamedTuple, tile: Tile) -> None:
    """Turn the values of a tile into kernel entries, in place."""
    values, first, _, _, half_a, half_b = tile
    for i in range(len(values)):
        _finish_row(terms, values[i, first : first + len(half_b)], half_a[i], half_b)


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _dot(row: NDArray[Any], v: FloatArray) -> float:
    """Dot product in float64 of a row of entries (0.04 ns per entry more than float32 sums)."""
    total = 0.0
    for j in range(len(row)):
        total += np.float64(row[j]) * v[j]
    return total


@njit(nogil=True, cache=True)
def _finish_dots(terms: NamedTuple, tile: Tile, VT: FloatArray, out: FloatArray) -> None:
    """Turn the values of a tile into kernel entries, and add entries @ VT' to `out` (left rows, k).

    ``VT`` (k, right rows). Each row of entries is used while it is in the first-level cache.
    """
    values, first, row_number, column, half_a, half_b = tile
    width = len(half_b)
    for i in range(len(values)):
        row = values[i, first : first + width]
        _finish_row(terms, row, half_a[i], half_b)
        for c in range(len(VT)):
            out[row_number + i, c] += _dot(row, VT[c, column : column + width])


class Compiled(Kernel):
    """A kernel whose entry is a compiled function of one value per pair of rows.

    `pairing` names this value, which `entries.tiles` computes: "product", "distance", "apart",
    "manhattan" or "chi2".
    """

    pairing: ClassVar[str] = "product"

    def terms(self, dtype: np.dtype[Any]) -> NamedTuple:
        """Return the kernel's constants for compiled code (`entries.entry`), of type ``dtype``."""
        raise NotImplementedError

    def values(self, side: Operand, dtype: np.dtype[Any]) -> str:
        """Return which value of a pair of rows the entries of type ``dtype`` are computed from.

        See `entries.tiles` for the names of the values; ``side``: the right rows.
        """
        return self.pairing

    def slopes(self, A: AnyRows, B: Operand, dtype: DTypeLike) -> NDArray[Any]:
        """Return the factors s in the gradients of entries by the rows of A: (a, b).

        The gradient of an entry k(a, b) by a is ``s b`` for a kernel of products, and ``s (b - a)``
        for one of the Euclidean distance. InputError if the kernel has no gradient.
        """
        raise InputError(f"the {self.name} kernel has no gradient by the columns of a row")

    def gradients(
        self, A: AnyRows, B: Operand, V: FloatArray, dtype: DTypeLike = np.float32
    ) -> Iterator[FloatArray]:
        """Yield the gradients of ``K(A, B) @ V`` by the rows of A (see `Kernel.gradients`)."""
        check_vectors(V, B)
        rows, slopes = A.X if isinstance(A, Operand) else A, self.slopes(A, B, dtype)
        dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
        for v in V.T:
            weights = slopes * v
            sums = np.asarray(weights @ B.X, np.float64)
            if self.invariant:
                sums -= weights.sum(axis=1)[:, None] * dense
            yield sums

    def prepare(self, side: Operand) -> None:
        """Make the copies of a right side that float32 entries need (see `Operand`)."""
        if vnni_entries.can_multiply(side, self.pairing, np.float32):
            side.in_panels(self.pairing)
        else:
            _ = (
                side.as_float32(self.pairing)
                if self.pairing in PRODUCTS
                else side.transposed(np.float32, self.pairing)
            )

    def block(
        self, A: AnyRows, B: Operand, out: NDArray[Any] | None = None, dtype: DTypeLike = np.float32
    ) -> NDArray[Any]:
        """Compute kernel entries (see `Kernel.block`), from exact products of bytes if possible.

        Left rows that are not bytes, and all rows if the right side is not, are multiplied by BLAS
        or loops.
        """
        dtype = np.dtype(dtype)
        out, terms = output_array(A, B, out, dtype), self.terms(dtype)
        if not vnni_entries.can_multiply(B, self.pairing, dtype):
            return self._tiled(A, B, dtype, out)
        off = vnni_entries.multiply(terms, A, B, self.pairing, dtype, None, out)
        if len(off):
            out[off] = self._tiled(vnni_entries.rows_off_grid(A, off), B, dtype)[: len(off)]
        return out

    def _tiled(
        self, A: AnyRows, B: Operand, dtype: np.dtype[Any], out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Compute kernel entries (len A, len B) tile by tile, without products of bytes.

        ``out``: where to write them, None: a new array; ``dtype``: the type of entries.
        """
        out, terms = output_array(A, B, out, dtype), self.terms(dtype)
        for tile in tiles(A, B, self.values(B, dtype), dtype, out):
            _finish(terms, tile)
        return out

    def dots(
        self, A: AnyRows, B: Operand, V: FloatArray, dtype: DTypeLike = np.float32
    ) -> FloatArray:
        """Compute K(A, B) @ V (see `Kernel.dots`), from exact products of bytes if possible."""
        dtype = np.dtype(dtype)
        check_vectors(V, B)
        VT = np.ascontiguousarray(V.T, dtype=np.float64)
        out, terms = np.zeros((count_rows(A), len(VT))), self.terms(dtype)
        if not vnni_entries.can_multiply(B, self.pairing, dtype):
            return self._tiled_dots(A, B, VT, dtype)
        off = vnni_entries.multiply(terms, A, B, self.pairing, dtype, VT, out)
        if len(off):
            out[off] = self._tiled_dots(vnni_entries.rows_off_grid(A, off), B, VT, dtype)[
                : len(off)
            ]
        return out

    def _tiled_dots(
        self, A: AnyRows, B: Operand, VT: FloatArray, dtype: np.dtype[Any]
    ) -> FloatArray:
        """Compute K(A, B) @ VT' tile by tile, without products of bytes: float64 (len A, k).

        ``VT`` (k, len B): the vectors, transposed.
        """
        out, terms = np.zeros((count_rows(A), len(VT))), self.terms(dtype)
        for tile in tiles(A, B, self.values(B, dtype), dtype):
            _finish_dots(terms, tile, VT, out)
        return out


@entry_of(LinearTerms)
def _linear(terms: Any, value: Any, half_a: Any, half_b: Any) -> Any:
    """Return the entry of a linear kernel: ``value`` is the product of the two rows."""
    return value


@dataclass(frozen=True)
class Linear(Compiled):
    """The linear kernel, with entries <a, b>."""

    name: ClassVar[str] = "linear"

    def terms(self, dtype: np.dtype[Any]) -> NamedTuple:
        """Return the constants for compiled code: a linear kernel has none."""
        return LinearTerms()

    def slopes(self, A: AnyRows, B: Operand, dtype: DTypeLike) -> NDArray[Any]:
        """Return ones: an entry is the product itself (see `Compiled.slopes`)."""
        return np.ones((count_rows(A), len(B)))

    def diag(self, A: AnyRows) -> FloatArray:
        """Return ``||a||^2`` of each row: float64 (len A,)."""
        return as_operand(A).sqnorms

    def bound(self, max_sqnorm_a: float, max_sqnorm_b: float) -> float:
        """Bound |<a, b>| by the product of the largest norms."""
        return math.sqrt(max_sqnorm_a * max_sqnorm_b)

    def entry_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Bound the error of a float32 product of d terms (see `Kernel.entry_error`).

        ``sqnorm_a``: squared norms of the left rows, or the largest; ``max_sqnorm_b``: the largest
        of the right rows; ``d``: the number of features.
        """
        return product_error(sqnorm_a, max_sqnorm_b, d)


@entry_of(RbfTerms)
def _rbf(terms: Any, value: Any, half_a: Any, half_b: Any) -> Any:
    """Return ``exp(-gamma ||a - b||^2)`` of two rows in compiled code.

    ``value``: their product; ``half_a``, ``half_b``: half their squared norms.
    """
    # value - half_a - half_b = -||a - b||^2 / 2; exp2_negative clips what rounding made positive.
    return exp2_negative(terms.scale * ((value - half_b) - half_a))


@dataclass(frozen=True)
class Rbf(Compiled):
    """The RBF kernel, with entries exp(-gamma ||a - b||^2)."""

    gamma: float
    name: ClassVar[str] = "rbf"
    pairing: ClassVar[str] = "distance"
    invariant: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = True

    def terms(self, dtype: np.dtype[Any]) -> NamedTuple:
        """Return the constant for compiled code, for entries of this type: ``2 gamma log2(e)``."""
        return RbfTerms(dtype.type(2 * self.gamma * _LOG2E))

    def values(self, side: Operand, dtype: np.dtype[Any]) -> str:
        """Return "distance", or "apart" if products of rows lose too many digits for ``dtype``.

        They name the value of a pair of rows from which entries are computed, see `entries.tiles`.
        """
        dense = dtype == np.float64 and side.rare is None
        return "apart" if dense and self.coarse(side.halves) else self.pairing

    def coarse(self, halves: FloatArray) -> bool:
        """Whether distances from norms and products lose too many digits even in float64.

        True if one column is huge compared with the kernel's length scale. Distances are then
        summed column by column. ``halves``: half the squared norms of the rows.
        """
        error = 2 * self.gamma * 2.0**-50 * float(np.max(halves, initial=0.0))
        return error > 2.0**-36  # (of the exponent)

    def slopes(self, A: AnyRows, B: Operand, dtype: DTypeLike) -> NDArray[Any]:
        """Return ``2 gamma k(a, b)`` (see `Compiled.slopes`)."""
        return 2 * self.gamma * self.block(A, B, dtype=dtype)

    def entry_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Bound the error of a float32 entry: exponent's error times largest possible entry.

        ``sqnorm_a``: squared norms of the left rows, or the largest; ``max_sqnorm_b``: the largest
        of the right rows; ``d``: the number of features.
        """
        # A row longer than every row of B has at least this distance from all of them.
        apart = np.maximum(np.sqrt(sqnorm_a) - math.sqrt(max_sqnorm_b), 0.0)
        exponent = self._exponent_error(sqnorm_a, max_sqnorm_b, d)
        return exponent * np.exp(-self.gamma * apart**2) + 4 * U32

    def relative_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Bound the relative error of a float32 entry, that is, its exponent's absolute error.

        ``sqnorm_a``: squared norms of the left rows, or the largest; ``max_sqnorm_b``: the largest
        of the right rows; ``d``: the number of features.
        """
        return self._exponent_error(sqnorm_a, max_sqnorm_b, d) + 4 * U32

    def _exponent_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Bound the error of the exponent ``gamma ||a - b||^2`` computed in float32.

        ``sqnorm_a``: squared norms of the left rows, or the largest; ``max_sqnorm_b``: the largest
        of the right rows; ``d``: the number of features.
        """
        half = product_error(sqnorm_a, max_sqnorm_b, d) + U32 * (sqnorm_a + max_sqnorm_b)
        return 2 * self.gamma * half


@entry_of(PolynomialTerms)
def _polynomial(terms: Any, value: Any, half_a: Any, half_b: Any) -> Any:
    """Return ``(gamma <a, b> + coef0)^degree``; ``value`` is the inner product of rows a and b.

    ``terms.factors`` has degree - 1 items, so that the compiler knows the degree. ``half_a`` and
    ``half_b`` are not used: all kernels have these arguments.
    """
    x = terms.scale * value + terms.shift
    power = x
    for _ in range(len(terms.factors)):
        power *= x
    return power


@dataclass(frozen=True)
class Polynomial(Compiled):
    """The polynomial kernel, with entries (gamma <a, b> + coef0)^degree.

    Each degree is compiled by itself, which takes longer the larger it is, so degrees above
    ``max_degree`` are refused; float32 overflows long before.
    """

    max_degree: ClassVar[int] = 64
    gamma: float
    degree: int = 3
    coef0: float = 0.0
    name: ClassVar[str] = "polynomial"

    # (A class attribute of the other kernels.)
    @property
    def psd(self) -> bool:  # type: ignore[override]
        """Whether the kernel is positive semidefinite for all data: if coef0 is not negative."""
        return self.coef0 >= 0

    def terms(self, dtype: np.dtype[Any]) -> NamedTuple:
        """Return the kernel's constants for compiled code, of the type ``dtype`` of the entries."""
        factors = (0,) * (self.degree - 1)
        return PolynomialTerms(dtype.type(self.gamma), dtype.type(self.coef0), factors)

    def slopes(self, A: AnyRows, B: Operand, dtype: DTypeLike) -> NDArray[Any]:
        """Return ``degree gamma (gamma <a, b> + coef0)^(degree - 1)`` (see `Compiled.slopes`)."""
        if self.degree == 1:
            return np.full((count_rows(A), len(B)), self.gamma)
        lower = replace(self, degree=self.degree - 1).block(A, B, dtype=dtype)
        return self.degree * self.gamma * lower

    def diag(self, A: AnyRows) -> FloatArray:
        """Return ``(gamma ||a||^2 + coef0)^degree`` of each row: float64 (len A,)."""
        return (self.gamma * as_operand(A).sqnorms + self.coef0) ** self.degree

    def bound(self, max_sqnorm_a: float, max_sqnorm_b: float) -> float:
        """Return an upper bound of |k(a, b)| over rows a and b of at most these squared norms."""
        return float(self._base(max_sqnorm_a, max_sqnorm_b) ** self.degree)

    def _base(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float) -> Any:
        """Upper bound of ``|gamma <a, b> + coef0|`` for rows of these squared norms."""
        return self.gamma * np.sqrt(sqnorm_a * max_sqnorm_b) + abs(self.coef0)

    def entry_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Bound the error of a float32 entry: the base's error times the largest derivative.

        ``sqnorm_a``: squared norms of the left rows, or the largest; ``max_sqnorm_b``: the largest
        of the right rows; ``d``: the number of features.
        """
        base = self._base(sqnorm_a, max_sqnorm_b)
        step = self.gamma * product_error(sqnorm_a, max_sqnorm_b, d) + 3 * U32 * base
        return self.degree * base ** (self.degree - 1) * step


@entry_of(LaplacianTerms)
def _laplacian(terms: Any, value: Any, half_a: Any, half_b: Any) -> Any:
    """Return ``exp(-gamma ||a - b||_1)``; ``value`` is the L1 distance of the two rows."""
    return exp2_negative(terms.scale * value)


@njit(nogil=True, cache=True)
def _signed_sums(left: NDArray[Any], right: NDArray[Any], weights: FloatArray) -> FloatArray:
    """Return ``sum_j weights[i, j] sign(right[j] - left[i])`` for each left row i: (left rows, d).

    ``weights``: float64 (left rows, right rows).
    """
    out = np.zeros((len(left), left.shape[1]))
    for i in range(len(left)):
        for j in range(len(right)):
            w = weights[i, j]
            for c in range(left.shape[1]):
                if right[j, c] > left[i, c]:
                    out[i, c] += w
                elif right[j, c] < left[i, c]:
                    out[i, c] -= w
    return out


@dataclass(frozen=True)
class Laplacian(Compiled):
    """The Laplacian kernel, with entries exp(-gamma ||a - b||_1)."""

    gamma: float
    name: ClassVar[str] = "laplacian"
    pairing: ClassVar[str] = "manhattan"
    invariant: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = True
    gamma_power: ClassVar[int] = 1

    def terms(self, dtype: np.dtype[Any]) -> NamedTuple:
        """Return the constant for compiled code, for entries of this type: ``-gamma log2(e)``."""
        return LaplacianTerms(dtype.type(-self.gamma * _LOG2E))

    def gradients(
        self, A: AnyRows, B: Operand, V: FloatArray, dtype: DTypeLike = np.float32
    ) -> Iterator[FloatArray]:
        """Yield the gradients of ``K(A, B) @ V`` by the rows of A; 0 in columns where rows agree.

        ``A``: (a, d); ``B``: b rows; ``V``: (b, k); ``dtype``: the type of entries.
        """
        check_vectors(V, B)
        entries = self.block(A, B, dtype=dtype)
        rows = A.X if isinstance(A, Operand) else A
        left, right = (X if isinstance(X, np.ndarray) else X.toarray() for X in (rows, B.X))
        for v in V.T:
            yield self.gamma * _signed_sums(left, right, entries * v)

    def entry_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Bound the error of a float32 entry (see `Kernel.entry_error`).

        ``sqnorm_a``: squared norms of the left rows, or the largest; ``max_sqnorm_b``: the largest
        of the right rows; ``d``: the number of features.
        """
        # All terms of the distance are positive, so its error is relative, and x exp(-x) <= 1/e.
        # The last term: float64 rows are rounded to float32 before subtracting.
        rows = self.gamma * math.sqrt(d) * (np.sqrt(sqnorm_a) + math.sqrt(max_sqnorm_b))
        return U32 * ((2.0 * math.sqrt(d) + 4.0) / math.e + 4.0 + rows)


@entry_of(MaternTerms)
def _matern(terms: Any, value: Any, half_a: Any, half_b: Any) -> Any:
    """Return ``(1 + linear s + square s^2) exp(-s)`` with s proportional to ``||a - b||``.

    ``value``: ``-||a - b||^2 / 2``, from differences of columns; ``half_a`` and ``half_b`` are 0.
    """
    s = terms.scale * math.sqrt(-value)
    # The exponential is 0 there, and infinity times 0 would be NaN.
    s = terms.limit if s > terms.limit else s
    return (terms.one + s * (terms.linear + terms.square * s)) * exp2_negative(terms.log2e * s)


@dataclass(frozen=True)
class _Matern(Compiled):
    """Base of the Matern kernels: functions of ``s = sqrt(2 nu) gamma ||a - b||``.

    The squared distance is summed from differences of columns, not computed from norms and
    products: the root of a difference of norms and products would turn a rounding error of u into
    one of ``sqrt(u)`` for rows that are nearly equal.
    """

    gamma: float
    pairing: ClassVar[str] = "apart"
    invariant: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = True
    gamma_power: ClassVar[int] = 1
    order: ClassVar[float]
    """nu: the kernel's functions have fewer than nu derivatives."""
    polynomial: ClassVar[tuple[float, float]]
    """Factors of s and of ``s^2`` in the polynomial that multiplies ``exp(-s)``."""

    def terms(self, dtype: np.dtype[Any]) -> NamedTuple:
        """Return the constants for compiled code, for entries of this type (see `MaternTerms`)."""
        scale = 2 * math.sqrt(self.order) * self.gamma
        numbers = scale, *self.polynomial, 1.0, 2000.0, -_LOG2E
        return MaternTerms(*(dtype.type(number) for number in numbers))

    def entry_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Bound the error of a float32 entry (see `Kernel.entry_error`).

        ``sqnorm_a``: squared norms of the left rows, or the largest; ``max_sqnorm_b``: the largest
        of the right rows; ``d``: the number of features.

        Notes
        -----
        Three parts, derived in maths.md 4.1. The squared distance is a sum of d positive terms, so
        its error is relative, its root has half of it, and ``|s k'(s)|`` is at most .61. Float64
        rows less an origin are rounded to float32 first, which moves a distance by at most
        ``u (||a|| + 3 max ||b||)``, and the slope of an entry is at most gamma. Differences below
        the root of the smallest float32 have squares of 0.
        """
        of_distance = 0.61 * (math.sqrt(d) + 6.0) + 10.0
        rows = np.sqrt(sqnorm_a) + 3.0 * math.sqrt(max_sqnorm_b)
        lost = 2.0 * math.sqrt(d * FLOAT32_TINY)
        return U32 * of_distance + self.gamma * (U32 * rows + lost)


@dataclass(frozen=True)
class Matern12(_Matern):
    """The Matern kernel of order 1/2, with entries exp(-gamma ||a - b||_2)."""

    name: ClassVar[str] = "matern12"
    order: ClassVar[float] = 0.5
    polynomial: ClassVar[tuple[float, float]] = (0.0, 0.0)

    def slopes(self, A: AnyRows, B: Operand, dtype: DTypeLike) -> NDArray[Any]:
        """Return ``gamma k / ||a - b||``, 0 for equal rows (see `Compiled.slopes`)."""
        # In float64: the distance is computed from the entry, which is near 1 for near rows.
        entries = self.block(A, B, dtype=np.float64)
        distances = -np.log(np.maximum(entries, np.finfo(np.float64).tiny))
        slopes = np.zeros_like(entries)
        np.divide(self.gamma**2 * entries, distances, out=slopes, where=distances > 0)
        return slopes


@dataclass(frozen=True)
class Matern32(_Matern):
    """The Matern kernel of order 3/2: (1 + s) exp(-s), s = sqrt(3) gamma ||a - b||_2."""

    name: ClassVar[str] = "matern32"
    order: ClassVar[float] = 1.5
    polynomial: ClassVar[tuple[float, float]] = (1.0, 0.0)

    def slopes(self, A: AnyRows, B: Operand, dtype: DTypeLike) -> NDArray[Any]:
        """Return ``3 gamma^2 exp(-s)`` (see `Compiled.slopes`)."""
        lower = Matern12(math.sqrt(3) * self.gamma).block(A, B, dtype=dtype)
        return 3 * self.gamma**2 * lower


@dataclass(frozen=True)
class Matern52(_Matern):
    """The Matern kernel of order 5/2: (1 + s + s^2 / 3) exp(-s), s = sqrt(5) gamma ||a - b||_2."""

    name: ClassVar[str] = "matern52"
    order: ClassVar[float] = 2.5
    polynomial: ClassVar[tuple[float, float]] = (1.0, 1 / 3)

    def slopes(self, A: AnyRows, B: Operand, dtype: DTypeLike) -> NDArray[Any]:
        """Return ``5 gamma^2 / 3 (1 + s) exp(-s)`` (see `Compiled.slopes`)."""
        lower = Matern32(math.sqrt(5 / 3) * self.gamma).block(A, B, dtype=dtype)
        return 5 / 3 * self.gamma**2 * lower


@entry_of(ChiSquaredTerms)
def _chi_squared(terms: Any, value: Any, half_a: Any, half_b: Any) -> Any:
    """Return ``exp(-gamma value)``; ``value`` is the chi-squared distance of the two rows."""
    return exp2_negative(terms.scale * value)


@dataclass(frozen=True)
class ChiSquared(Compiled):
    """The chi-squared kernel, with entries exp(-gamma sum (a - b)^2 / (a + b)).

    For rows without negative values, such as histograms; a column in which both rows are 0 adds 0.
    """

    gamma: float
    name: ClassVar[str] = "chi2"
    pairing: ClassVar[str] = "chi2"
    nonnegative: ClassVar[bool] = True
    gamma_power: ClassVar[int] = 1

    def terms(self, dtype: np.dtype[Any]) -> NamedTuple:
        """Return the constant for compiled code, for entries of this type: ``-gamma log2(e)``."""
        return ChiSquaredTerms(dtype.type(-self.gamma * _LOG2E))

    def block(
        self, A: AnyRows, B: Operand, out: NDArray[Any] | None = None, dtype: DTypeLike = np.float32
    ) -> NDArray[Any]:
        """Compute kernel entries (see `Kernel.block`); InputError if a row has a negative value."""
        _check_nonnegative(A, B)
        return super().block(A, B, out, dtype)

    def dots(
        self, A: AnyRows, B: Operand, V: FloatArray, dtype: DTypeLike = np.float32
    ) -> FloatArray:
        """Compute K(A, B) @ V (see `Kernel.dots`); InputError if a row has a negative value."""
        _check_nonnegative(A, B)
        return super().dots(A, B, V, dtype)

    def entry_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Bound the error of a float32 entry (see `Kernel.entry_error`).

        ``sqnorm_a``: squared norms of the left rows, or the largest; ``max_sqnorm_b``: the largest
        of the right rows; ``d``: the number of features.
        """
        # A term (a - b)^2 / (a + b) has five roundings, all terms are positive, so the distance's
        # error is relative, and x exp(-x) <= 1/e. The last term: rounding a and b to float32 moves
        # a term by at most u (a + b) (maths.md 4.1).
        rows = self.gamma * math.sqrt(d) * (np.sqrt(sqnorm_a) + math.sqrt(max_sqnorm_b))
        return U32 * ((2.0 * math.sqrt(d) + 7.0) / math.e + 4.0 + rows)


def _check_nonnegative(*sides: AnyRows) -> None:
    """Raise InputError if a row has a negative value."""
    for side in sides:
        X = side.X if isinstance(side, Operand) else side
        if np.min(X if isinstance(X, np.ndarray) else X.data, initial=0.0) < 0:
            raise InputError(
                "the chi2 kernel is for values of at least 0, such as counts and histograms, and a "
                "row has a negative value (scaling can have made it); scale columns to [0, 1] "
                "(minmax), or choose another kernel"
            )


@entry_of(SigmoidTerms)
def _sigmoid(terms: Any, value: Any, half_a: Any, half_b: Any) -> Any:
    """Return ``tanh(gamma <a, b> + coef0)``; ``value`` is the product of the two rows."""
    return tanh(terms.scale * value + terms.shift)


@dataclass(frozen=True)
class Sigmoid(Compiled):
    """The sigmoid kernel, with entries tanh(gamma <a, b> + coef0); not positive semidefinite."""

    gamma: float
    coef0: float = 0.0
    name: ClassVar[str] = "sigmoid"
    psd: ClassVar[bool] = False

    def terms(self, dtype: np.dtype[Any]) -> NamedTuple:
        """Return the kernel's constants for compiled code, of the type ``dtype`` of the entries."""
        return SigmoidTerms(dtype.type(self.gamma), dtype.type(self.coef0))

    def slopes(self, A: AnyRows, B: Operand, dtype: DTypeLike) -> NDArray[Any]:
        """Return ``gamma (1 - k(a, b)^2)`` (see `Compiled.slopes`)."""
        return np.asarray(self.gamma * (1 - np.square(self.block(A, B, dtype=dtype))))

    def diag(self, A: AnyRows) -> FloatArray:
        """Return ``tanh(gamma ||a||^2 + coef0)`` of each row: float64 (len A,)."""
        return np.tanh(self.gamma * as_operand(A).sqnorms + self.coef0)

    def entry_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Bound the error of a float32 entry (see `Kernel.entry_error`).

        ``sqnorm_a``: squared norms of the left rows, or the largest; ``max_sqnorm_b``: the largest
        of the right rows; ``d``: the number of features.
        """
        # Slope at most 1; a relative error of the argument x costs x (1 - tanh(x)^2) < 1/2.
        return self.gamma * product_error(sqnorm_a, max_sqnorm_b, d) + 5 * U32


_ALL: tuple[type[Kernel], ...] = (
    *(Linear, Rbf, Polynomial, Laplacian, Sigmoid, Matern12, Matern32, Matern52, ChiSquared),
    Precomputed,
)
"""The classes of kernels that have a name; a user's function has none."""
_KINDS = {kind.name: kind for kind in _ALL} | {"poly": Polynomial}  # scikit-learn's name
"""The class of each kernel name that `make_kernel` knows."""


def make_kernel(name: str, gamma: float = 1.0, degree: int = 3, coef0: float = 0.0) -> Kernel:
    """Make the kernel of this name; parameters that it does not have are ignored.

    Parameters
    ----------
    name : "linear", "rbf", "polynomial" (or "poly"), "laplacian", "sigmoid", "matern12", \
    "matern32", "matern52", "chi2" or "precomputed"
    gamma : float > 0
    degree : int, 1 to 64
    coef0 : float

    Raises
    ------
    InputError
        Unknown name, or a parameter out of its range.
    """
    if name not in _KINDS:
        raise InputError(f"unknown kernel {name!r}: use one of {', '.join(sorted(_KINDS))}.")
    # (The subclasses are dataclasses, the base is none.)
    own = {field.name for field in fields(_KINDS[name])}  # type: ignore[arg-type]
    if "gamma" in own and not 0 < gamma < math.inf:
        raise InputError(f"gamma must be a positive number, not {gamma}.")
    if "degree" in own and not (1 <= degree <= Polynomial.max_degree and degree == int(degree)):
        raise InputError(
            f"degree must be a whole number of at least 1 and at most {Polynomial.max_degree}, "
            f"not {degree}."
        )
    if "coef0" in own and not math.isfinite(coef0):
        raise InputError(f"coef0 must be a finite number, not {coef0}.")
    given = {"gamma": float(gamma), "degree": int(degree), "coef0": float(coef0)}
    return _KINDS[name](**{key: given[key] for key in given if key in own})


def is_made_of_products(name: str) -> bool:
    """Whether entries of the kernel of this name are functions of inner products of rows."""
    kind = _KINDS.get(name)
    return kind is not None and issubclass(kind, Compiled) and kind.pairing in PRODUCTS


def describe_products(kernel: Kernel | None) -> str:
    """Say in words what computes the products of rows in float32 entries (None: no kernel)."""
    if isinstance(kernel, (Custom, Precomputed)):
        return "the kernel given"
    if kernel is None or not is_made_of_products(kernel.name):
        return "compiled loops"
    return "BLAS, or exact products of columns that are bytes" if vnni.is_available() else "BLAS"


def kernel_from_dict(record: dict[str, Any]) -> Kernel:
    """Restore the kernel that `Kernel.to_dict` recorded; errors as in `make_kernel`."""
    return make_kernel(**record)


def clustering_kernel(kernel: Kernel | None) -> Kernel:
    """Choose the kernel whose distances cluster the rows into parts, and route rows to parts.

    ``kernel``: that of the machine, None if it is linear. Returned is the linear kernel for kernels
    of the distance and for None, else ``kernel``. With a narrow kernel of the distance, kernel
    k-means would put all rows without a near sampled row into one part (13,000 of covtype's
    16,000). The share of the kernel's mass within parts is as large or larger (covtype, 16 parts of
    at most 1,500: 0.99, not 0.89; ijcnn1, 10 parts: 0.88 either way). It also costs one product per
    part, not one kernel entry per sampled row.
    """
    return Linear() if kernel is None or kernel.invariant else kernel
