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
        -||a - b||^2 / 2, from differences of each column (not for rows with an index).
        "manhattan": ||a - b||_1.
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
    indexed, manhattan = side.rare is not None, pairing == "manhattan"
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
        if not manhattan and pairing != "apart":
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
            if manhattan:
                _manhattan(a, side.transposed(dtype), c, w, values, first)
            elif pairing == "apart":
                _apart(a, side.transposed(dtype), c, w, values, first)
            else:
                np.matmul(a, b.T, out=values[:, first : first + w])
            if indexed:
                norms = side.rare_l1 if manhattan else side.sqnorms
                _add_shared(rows, side.position, side.index, manhattan, norms, values)
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

    ``BT``: B transposed.
    """
    for i in range(len(A)):
        row = out[i, first : first + w]
        row[:] = 0
        for k in range(A.shape[1]):
            b, a = BT[k, c : c + w], A[i, k]
            for j in range(w):
                row[j] -= 0.5 * (a - b[j]) ** 2


@njit(nogil=True, cache=True, fastmath={"contract"})
def _add_shared(
    A: Any,
    position: NDArray[np.int32],
    index: Any,
    manhattan: bool,
    l1_norms: FloatArray,
    out: NDArray[Any],
) -> None:
    """Add inner products or L1 distances over the rare (mostly 0) columns to `out` (rows, m).

    ``A``: the CSR triple of the left rows. ``position``: negative for rare columns. ``index``: the
    m right rows' nonzeros of these columns as (values, rows, column starts). ``l1_norms`` (m,): L1
    norms of the right rows over them; read if ``manhattan``. Sums are float64.

    ||a - b||_1 = ||a||_1 + ||b||_1 + sum over shared columns of |a - b| - |a| - |b|.
    """
    data, indices, indptr = A
    postings, owners, begin = index
    sums = np.zeros(out.shape[1])
    for i in range(len(indptr) - 1):
        sums[:] = 0.0
        if manhattan:
            l1 = 0.0
            for k in range(indptr[i], indptr[i + 1]):
                if position[indices[k]] < 0:
                    l1 += np.float64(abs(data[k]))
            for j in range(len(sums)):
                sums[j] = l1 + l1_norms[j]
        for k in range(indptr[i], indptr[i + 1]):
            v, column = np.float64(data[k]), indices[k]
            if manhattan:
                for t in range(begin[column], begin[column + 1]):
                    u = np.float64(postings[t])
                    sums[owners[t]] += abs(v - u) - abs(v) - abs(u)
            else:
                for t in range(begin[column], begin[column + 1]):
                    sums[owners[t]] += v * postings[t]
        row = out[i]
        for j in range(len(sums)):
            row[j] += sums[j]
