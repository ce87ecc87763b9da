"""Products and distances of pairs of rows, tile by tile, from which kernel entries are made.

The constants of a kernel are a named tuple. Its type chooses, at compile time, the function that
turns the value of a pair into an entry (an overload of `entry`). So each loop is written once, and
is compiled, vectorised and cached for every kernel.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from bigscreen.errors import InputError
from bigscreen.kernels.operand import AnyRows, Operand, float_rows, load_rows, scratch
from bigscreen.numerics.rows import F, FloatArray, as_rows, njit, overload

ROW_MULTIPLE = 64
"""Pad the rows of both factors of a BLAS product to a multiple of this where each kernel entry must
have the same bits whatever other rows are multiplied with it. (If BLAS has only AVX2, the last bits
depend on a row's place.)"""


@dataclass(frozen=True)
class TileTuning:
    """Sizes of the tiles in which kernel entries are computed.

    Parameters
    ----------
    rows : int
        Compute the kernel matrix in tiles (rectangular parts) of at most this many rows.
    entries : int
        Compute the kernel matrix in tiles (rectangular parts) of approximately this many entries, 4
        MB of float32. Larger tiles are not faster, smaller ones 4 to 15 % slower.
    loaded_entries : int
        Copy at most this many numbers (rows times columns) of the left factor's rows to a dense
        array at a time, which bounds the memory.
    """

    rows: int = 1024
    entries: int = 1 << 20
    loaded_entries: int = 4 << 20


PRODUCTS = "product", "distance"
"""Pairings (see `tiles`) whose values are computed from products of rows; the values of other
pairings are summed over the differences of columns."""

TILES = TileTuning()
"""The sizes of tiles that all kernels use."""


def pad_places(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Repeat the first of these places until their number is a multiple of ROW_MULTIPLE."""
    return np.concatenate([places, np.repeat(places[:1], -len(places) % ROW_MULTIPLE)])


class LinearTerms(NamedTuple):
    """Constants of a linear kernel, for compiled code: none, its entry is the product itself."""


class RbfTerms(NamedTuple):
    """Constants of an RBF kernel, for compiled code: ``scale`` is ``2 gamma log2(e)``.

    The entry is 2 to the power of ``-scale ||a - b||^2 / 2``.
    """

    scale: float


class PolynomialTerms(NamedTuple):
    """Constants of a polynomial kernel ``(scale <a, b> + shift)^degree``, for compiled code."""

    scale: float
    shift: float
    factors: tuple[int, ...]  # its LENGTH is degree - 1: a constant of the compiled type


class LaplacianTerms(NamedTuple):
    """Constants of a Laplacian kernel, for compiled code: ``scale`` is ``-gamma log2(e)``.

    The entry is 2 to the power of ``scale ||a - b||_1``.
    """

    scale: float


class SigmoidTerms(NamedTuple):
    """Constants of a sigmoid kernel ``tanh(scale <a, b> + shift)``, for compiled code."""

    scale: float
    shift: float


class MaternTerms(NamedTuple):
    """Constants of a Matern kernel, for compiled code.

    With ``s = scale ||a - b|| / sqrt(2)`` the entry is ``(1 + linear s + square s^2) exp(-s)``. For
    s above ``limit`` it is 0. ``one`` and ``log2e``, which is negative, have the entries' type.
    """

    scale: float
    linear: float
    square: float
    one: float
    limit: float
    log2e: float


class ChiSquaredTerms(NamedTuple):
    """Constants of a chi-squared kernel, for compiled code: ``scale`` is ``-gamma log2(e)``.

    The entry is 2 to the power of ``scale sum (a - b)^2 / (a + b)``.
    """

    scale: float


def entry(terms: Any, value: float, half_a: float, half_b: float) -> float:
    """Turn the value of a pair of rows into a kernel entry, in compiled code.

    ``terms``: the kernel's constants, whose type chooses the kernel. ``value``: the product or
    distance that `tiles` computes. ``half_a``, ``half_b``: half the squared norms of the two rows,
    used by RBF kernels only.
    """
    raise NotImplementedError


def entry_of(constants: type) -> Callable[[F], F]:
    """Make a decorator: its function is compiled as `entry` for kernel constants of this type.

    ``constants``: the named tuple class, for example `RbfTerms`.
    """

    def register(function: F) -> F:
        """Register the function as the overload of `entry` for the type ``constants``."""

        def choose(terms: Any, value: Any, half_a: Any, half_b: Any) -> F | None:
            """Return the function if the terms are of the type ``constants``, else None."""
            return function if getattr(terms, "instance_class", None) is constants else None

        overload(entry, jit_options={"fastmath": {"contract"}})(choose)
        return function

    return register


class Tile(NamedTuple):
    """Values (products or distances) of some left rows with some right rows; see `tiles`.

    ``values[i, first + j]`` belongs to left row ``row + i`` and right row ``column + j``, for j
    below ``len(half_b)``. ``half_a`` and ``half_b`` are half the squared norms of these left and
    right rows, of the type of the values (zeros unless the pairing is "distance").
    """

    values: NDArray[Any]
    first: int
    row: int
    column: int
    half_a: NDArray[Any]
    half_b: NDArray[Any]


def tiles(
    A: AnyRows,
    side: Operand,
    pairing: str,
    dtype: DTypeLike,
    out: NDArray[Any] | None = None,
    tuning: TileTuning = TILES,
) -> Iterator[Tile]:
    """Yield products or distances of all rows of A with all rows of `side`, tile by tile.

    Parameters
    ----------
    A : Operand, ndarray or CSR array
        The left rows.
    side : Operand
        The right rows.
    pairing : str
        The value of a pair of rows. "product": <a, b>. "distance": <a, b> of rows less
        side.origin, from which the caller subtracts half_a and half_b. "apart":
        -||a - b||^2 / 2, from differences of each column. "manhattan": ||a - b||_1. "chi2":
        sum (a - b)^2 / (a + b) over the columns, of which none is negative.
    dtype : float32 or float64
    out : ndarray (len A, len side) or None
        Where to write the values. None: this thread's buffer, which the next tile overwrites.
    tuning : TileTuning

    Notes
    -----
    The bits of a value may depend on the shape of its tile (BLAS chooses its loop by shape), never
    on the thread: if A is cut at the same rows, the bits are the same.
    """
    A = check_width(A, side)
    n, m, h = A.shape[0], len(side), side.dense.shape[1]
    indexed, products = side.rare is not None, pairing in PRODUCTS
    height = max(1, min(n, tuning.rows, tuning.loaded_entries // max(1, h)))
    if indexed:  # one product with the index returns all columns
        width, height = max(1, m), max(1, min(height, tuning.entries // max(1, m)))
    else:
        width = max(1024, tuning.entries // height)
        # Tiles of equal width, no narrow last one. A multiple of 64, so that BLAS uses one loop.
        width = max(1, -(-m // max(1, -(-m // width))))
        width = -(-width // 64) * 64
    origin = side.shift_for(pairing)
    for c in range(0, m, width):
        w = min(width, m - c)
        if products:
            b = side.columns(pairing, c, w, dtype)
        half_b = side.halves[c : c + w] if pairing == "distance" else np.zeros(w)
        for r in range(0, n, height):
            part = A[r : r + height]
            rows = as_rows(sparse.csr_array(part) if indexed else part)
            count = part.shape[0]
            a, half_a = scratch("rows", (count, h), dtype), np.empty(count)
            load_rows(rows, 0, side.position, origin, a, half_a)
            if out is None:
                # 16 more columns: rows a power of 2 bytes apart would share cache sets, and take
                # half as long again.
                values, first = scratch("tile", (count, w if indexed else w + 16), dtype), 0
            else:
                values, first = out[r : r + count], c
            if products:
                np.matmul(a, b.T, out=values[:, first : first + w])
            else:
                _SUMS[pairing](a, side.transposed(dtype, pairing), c, w, values, first)
            if indexed and pairing == "apart":
                _subtract_halves(
                    rows, side.position, side.index, as_rows(side.rare), side.rare_sqnorms, values
                )
            elif indexed:
                norms = side.sqnorms if products else side.rare_l1
                _add_shared(rows, side.position, side.index, _SHARED[pairing], norms, values)
            if pairing != "distance":
                half_a = np.zeros(count)
            yield Tile(values, first, r, c, half_a.astype(dtype), half_b.astype(dtype))


def check_width(A: AnyRows, side: Operand) -> Any:
    """Return the rows of A as floats; raise InputError if their number of features differs."""
    A = A.X if isinstance(A, Operand) else float_rows(A)
    if A.shape[1] != side.X.shape[1]:
        raise InputError(
            f"rows have {A.shape[1]} features where {side.X.shape[1]} are expected: "
            "prepare both sides in the same way."
        )
    return A


@njit(nogil=True, cache=True, fastmath={"contract"})
def _manhattan(
    A: NDArray[Any], BT: NDArray[Any], c: int, w: int, out: NDArray[Any], first: int
) -> None:
    """Write the L1 distances ``out[i, first + j] = ||A_i - B_(c + j)||_1`` for j below w.

    ``BT``: B transposed. Four features per sweep save stores.
    """
    d = A.shape[1]
    for i in range(len(A)):
        a = A[i]
        row = out[i, first : first + w]
        row[:] = 0
        for k in range(0, d - 3, 4):
            b0, b1 = BT[k, c : c + w], BT[k + 1, c : c + w]
            b2, b3 = BT[k + 2, c : c + w], BT[k + 3, c : c + w]
            a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
            for j in range(w):
                row[j] += (abs(a0 - b0[j]) + abs(a1 - b1[j])) + (abs(a2 - b2[j]) + abs(a3 - b3[j]))
        for k in range(d - d % 4, d):
            b0, a0 = BT[k, c : c + w], a[k]
            for j in range(w):
                row[j] += abs(a0 - b0[j])


@njit(nogil=True, cache=True, fastmath={"contract"})
def _apart(
    A: NDArray[Any], BT: NDArray[Any], c: int, w: int, out: NDArray[Any], first: int
) -> None:
    """Write ``out[i, first + j] = -||A_i - B_(c + j)||^2 / 2`` for j below w.

    ``BT``: B transposed. Four features per sweep save stores.
    """
    d, half = A.shape[1], out.dtype.type(0.5)
    for i in range(len(A)):
        a = A[i]
        row = out[i, first : first + w]
        row[:] = 0
        for k in range(0, d - 3, 4):
            b0, b1 = BT[k, c : c + w], BT[k + 1, c : c + w]
            b2, b3 = BT[k + 2, c : c + w], BT[k + 3, c : c + w]
            a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
            for j in range(w):
                total = row[j] - half * (a0 - b0[j]) ** 2
                total -= half * (a1 - b1[j]) ** 2
                total -= half * (a2 - b2[j]) ** 2
                row[j] = total - half * (a3 - b3[j]) ** 2
        for k in range(d - d % 4, d):
            b0, a0 = BT[k, c : c + w], a[k]
            for j in range(w):
                row[j] -= half * (a0 - b0[j]) ** 2


# error_model: a test for division by zero would prevent vectorisation.
@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def _chi_squared(
    A: NDArray[Any], BT: NDArray[Any], c: int, w: int, out: NDArray[Any], first: int
) -> None:
    """Write ``out[i, first + j]``, the sum of ``(a - b)^2 / (a + b)`` over columns, for j below w.

    ``a`` and ``b`` are the entries of row i of A and of row c + j of B, ``BT`` is B transposed. A
    column in which both are 0 adds 0.
    """
    for i in range(len(A)):
        row = out[i, first : first + w]
        row[:] = 0
        for k in range(A.shape[1]):
            b, a = BT[k, c : c + w], A[i, k]
            if a == 0:  # (no division of 0 by 0)
                for j in range(w):
                    row[j] += b[j]
            else:
                for j in range(w):
                    row[j] += (a - b[j]) ** 2 / (a + b[j])


_SUMS = {"manhattan": _manhattan, "apart": _apart, "chi2": _chi_squared}
"""For each pairing that is no product, the function that sums over differences of columns."""

_PRODUCTS_SHARED, _MANHATTAN_SHARED, _CHI2_SHARED = range(3)
_SHARED = {
    "product": _PRODUCTS_SHARED,
    "distance": _PRODUCTS_SHARED,
    "manhattan": _MANHATTAN_SHARED,
    "chi2": _CHI2_SHARED,
}
"""The number of each pairing for `_add_shared`."""


@njit(nogil=True, cache=True, fastmath={"contract"})
def _subtract_halves(
    A: Any,
    position: NDArray[np.int32],
    index: Any,
    B: Any,
    sqnorms: FloatArray,
    out: NDArray[Any],
) -> None:
    """Subtract ``||a - b||^2 / 2`` over the rare (mostly 0) columns from `out` (rows, m).

    ``A``: the CSR triple of the left rows. ``position``: negative for rare columns. ``index``: the
    m right rows' nonzeros of these columns as (values, rows, column starts); ``B``: the CSR triple
    of these nonzeros; ``sqnorms`` (m,): squared norms over these columns. Sums are float64.

    A squared distance is ``||a||^2 + ||b||^2 - 2 <a, b>``, but if this is below a quarter of
    ``||a||^2 + ||b||^2`` the squared differences of the columns are summed, so that its error stays
    relative to itself.
    """
    data, indices, indptr = A
    postings, owners, begin = index
    other, columns, starts = B
    sums, own = np.empty(out.shape[1]), np.zeros(len(position))
    for i in range(len(indptr) - 1):
        size = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            if position[indices[k]] < 0:
                own[indices[k]] = np.float64(data[k])
                size += own[indices[k]] ** 2
        sums[:] = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            v, column = np.float64(data[k]), indices[k]
            for t in range(begin[column], begin[column + 1]):
                sums[owners[t]] += v * postings[t]
        for j in range(len(sums)):
            total = size + sqnorms[j]
            apart = total - 2 * sums[j]
            if apart < 0.25 * total:
                apart = 0.0
                for t in range(starts[j], starts[j + 1]):
                    own[columns[t]] -= np.float64(other[t])
                for k in range(indptr[i], indptr[i + 1]):
                    if position[indices[k]] < 0:
                        apart += own[indices[k]] ** 2
                        own[indices[k]] = 0.0  # (not to be added again as a column of row j)
                for t in range(starts[j], starts[j + 1]):
                    apart += own[columns[t]] ** 2
                    own[columns[t]] = 0.0
                for k in range(indptr[i], indptr[i + 1]):
                    if position[indices[k]] < 0:
                        own[indices[k]] = np.float64(data[k])
            out[i, j] -= 0.5 * apart
        for k in range(indptr[i], indptr[i + 1]):
            own[indices[k]] = 0.0


@njit(nogil=True, cache=True, fastmath={"contract"})
def _add_shared(
    A: Any,
    position: NDArray[np.int32],
    index: Any,
    kind: int,
    l1_norms: FloatArray,
    out: NDArray[Any],
) -> None:
    """Add products, L1 or chi-squared distances over the rare (mostly 0) columns to `out`.

    ``A``: the CSR triple of the left rows. ``position``: negative for rare columns. ``index``: the
    m right rows' nonzeros of these columns as (values, rows, column starts). ``kind``: the number
    of the pairing (`_SHARED`). ``l1_norms`` (m,): L1 norms of the right rows over rare columns; not
    read for products. ``out`` (rows, m). Sums are float64.

    ||a - b||_1 = ||a||_1 + ||b||_1 + sum over shared columns of |a - b| - |a| - |b|. In a
    chi-squared distance a shared column adds -4 a b / (a + b) to the two norms.
    """
    data, indices, indptr = A
    postings, owners, begin = index
    sums = np.zeros(out.shape[1])
    for i in range(len(indptr) - 1):
        sums[:] = 0.0
        if kind != _PRODUCTS_SHARED:
            l1 = 0.0
            for k in range(indptr[i], indptr[i + 1]):
                if position[indices[k]] < 0:
                    l1 += np.float64(abs(data[k]))
            for j in range(len(sums)):
                sums[j] = l1 + l1_norms[j]
        for k in range(indptr[i], indptr[i + 1]):
            v, column = np.float64(data[k]), indices[k]
            if kind == _MANHATTAN_SHARED:
                for t in range(begin[column], begin[column + 1]):
                    u = np.float64(postings[t])
                    sums[owners[t]] += abs(v - u) - abs(v) - abs(u)
            elif kind == _CHI2_SHARED:
                for t in range(begin[column], begin[column + 1]):
                    u = np.float64(postings[t])
                    if u + v != 0:
                        sums[owners[t]] -= 4 * u * v / (u + v)
            else:
                for t in range(begin[column], begin[column + 1]):
                    sums[owners[t]] += v * postings[t]
        row = out[i]
        for j in range(len(sums)):
            row[j] += sums[j]
