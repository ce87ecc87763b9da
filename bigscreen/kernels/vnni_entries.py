"""Kernel entries from products of bytes, strip by strip so that sums stay in the cache.

For rows most of whose columns represent 8-bit integers (see `vnni`), without an inverted index.
Rows on the left that are not on the grid are reported to the caller. The bits of an entry depend on
its two rows and on the right side's `operand.MEASURED` attributes, never on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from bigscreen.kernels import vnni
from bigscreen.kernels.entries import PRODUCTS, check_width, entry, pad_places
from bigscreen.kernels.operand import AnyRows, Operand, load_rows, scratch
from bigscreen.kernels.vnni import (
    LEFT,
    RIGHT,
    SUMS_ROW_STRIDE,
    Panels,
    multiply_bytes,
    multiply_floats,
)
from bigscreen.numerics.rows import FloatArray, as_rows, njit, overload

STRIP = SUMS_ROW_STRIDE - 16
"""Rows of the right side that are multiplied with a left panel at a time: their sums stay in
the cache."""


class Terms(NamedTuple):
    """The terms that turn sums of byte products into values: ``scale (2 sum + left_i + right_j)``.

    A value is the product of left row i and right row j (with its squared distance: less half of
    both squared norms). ``left`` and ``right`` are int32 (rows,). ``half_a`` and ``half_b`` are
    half the rows' squared norms over the columns that are no bytes, 0 for products; they and
    ``scale`` have the type of the entries.
    """

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    half_a: NDArray[Any]
    half_b: NDArray[Any]
    scale: Any


def can_multiply(side: Operand, pairing: str, dtype: DTypeLike) -> bool:
    """Whether `multiply` can compute entries of this type with this right side from bytes.

    ``pairing``: the value of a pair of rows that the kernel uses, see `entries.tiles`.
    """
    if pairing not in PRODUCTS or not vnni.is_available() or side.rare is not None:
        return False
    return side.grid is not None and (dtype == np.float32 or side.grid.exact)


def multiply(
    kernel: NamedTuple,
    A: AnyRows,
    side: Operand,
    pairing: str,
    dtype: np.dtype[Any],
    VT: FloatArray | None,
    out: NDArray[Any],
) -> NDArray[np.int64]:
    """Compute kernel entries between A and ``side``, or their products with vectors.

    Parameters
    ----------
    kernel : a kernel's constants (see `entries`), of type ``dtype``
    A : Operand, ndarray or CSR array
        The left rows.
    side : Operand
        The right rows, for which `can_multiply` is True.
    pairing : "product" or "distance"
        The value of a pair of rows that the kernel uses (see `entries.tiles`).
    dtype : float32 or float64
    VT : None or float64 (k, len side)
    out : C-contiguous
        Without VT: the entries (len A, len side), of type ``dtype``. With VT: float64 (len A, k),
        zeros, to which ``K VT'`` is added, summed in float64.

    Returns
    -------
    int64 : places of the rows of A that are not on the grid, for which ``out`` is undefined
    """
    grid, right = side.grid, side.in_panels(pairing)
    assert grid is not None
    apart, d = pairing == "distance", len(grid.small)
    of_right = 2 * grid.left * right.sums - (right.squares if apart else 0)
    # (Reduced to 32 bits modulo 2^32: the total with the sum fits.)
    narrow, half_b = of_right.astype(np.int32), _halves(right, apart, dtype)
    scale, off = dtype.type(0.5 / grid.steps**2), [np.empty(0, np.int64)]
    for r, left in _lefts(A, side, pairing):
        of_left = 2 * grid.right * (left.sums - d * grid.left) - (left.squares if apart else 0)
        half_a = _halves(left, apart, dtype)
        if left.fits.any():
            terms = Terms(of_left.astype(np.int32), narrow, half_a, half_b, scale)
            _run(kernel, left, right, terms, VT, out[r : r + len(half_a)])
        off.append(r + np.flatnonzero(~left.fits))
    return np.concatenate(off)


def rows_off_grid(A: AnyRows, off: NDArray[np.int64]) -> Any:
    """Return the rows of A at the places ``off``, padded (see `pad_places`) for `entries.tiles`.

    So the bits of an entry do not depend on the number of rows that are not bytes.
    """
    X = A.X if isinstance(A, Operand) else A
    return X[pad_places(off)]


def _halves(rows: Panels, apart: bool, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return half the squared norms of packed rows over their columns that are no bytes: (rows,).

    The result has the type ``dtype``. Zeros unless ``apart`` (entries of distances).
    """
    with np.errstate(over="ignore"):  # inf: so far away that the entry is 0
        return rows.halves.astype(dtype) if apart else np.zeros(len(rows.halves), dtype)


def _lefts(A: AnyRows, side: Operand, pairing: str) -> Iterator[tuple[int, Panels]]:
    """Yield the left rows A in pieces: the number of the first row, and the piece in panels.

    ``side``: the right side of the products, which has the grid and the shift of ``pairing``.
    """
    X, grid, origin = check_width(A, side), side.grid, side.shift_for(pairing)
    assert grid is not None
    step = max(LEFT, (1 << 18) // len(origin) // LEFT * LEFT)  # a piece of 2^18 numbers
    for r in range(0, X.shape[0], step):
        rows = X[r : r + step]
        if sparse.issparse(rows) or sparse.issparse(side.X):
            dense = scratch("rows", rows.shape, X.dtype)
            nowhere, half = np.zeros(len(origin), X.dtype), np.empty(len(dense))
            load_rows(as_rows(rows), 0, side.position, nowhere, dense, half)
            rows = dense
        yield r, vnni.pack_rows(rows, grid, origin, LEFT, _space)


def _space(shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
    """Return this thread's buffer for packed left rows; the next call overwrites it."""
    return scratch(f"left, {np.dtype(dtype).name}", shape, dtype)


@njit(nogil=True, cache=True)
def _run(
    kernel: NamedTuple,
    left: Panels,
    right: Panels,
    terms: Terms,
    VT: FloatArray | None,
    out: NDArray[Any],
) -> None:
    """Multiply panels strip by strip, and write entries, or add K VT', to `out`.

    ``kernel``: the kernel's constants. ``terms``: how sums of byte products become values. ``VT``
    None: `out` (left rows, right rows) gets the entries; else (k, right rows), and the products are
    added to `out` (left rows, k).
    """
    n, m, words, more = len(terms.left), len(terms.right), left.small.shape[1], left.others.shape[1]
    sums, row = np.empty((LEFT, SUMS_ROW_STRIDE), np.int32), np.full(STRIP, terms.scale)
    rest = np.zeros((LEFT, SUMS_ROW_STRIDE), np.float32)
    for b in range(0, m, STRIP):
        end = min(b + STRIP, m)
        for a in range(0, n, LEFT):
            for c in range(b, end, RIGHT):
                x = left.small.ctypes.data + a * words * vnni.WORD
                y = right.small.ctypes.data + c * words * vnni.WORD
                multiply_bytes(x, y, words, sums.ctypes.data + 4 * (c - b))
                if more:
                    x = left.others.ctypes.data + a * more * vnni.WORD
                    y = right.others.ctypes.data + c * more * vnni.WORD
                    multiply_floats(x, y, more, rest.ctypes.data + 4 * (c - b))
            for i in range(a, min(a + LEFT, n)):
                other = rest[i - a] if more else rest[0, :0]
                if VT is None:
                    _entries(kernel, sums[i - a], other, terms, i, b, out[i, b:end])
                else:
                    _entries(kernel, sums[i - a], other, terms, i, b, row[: end - b])
                    _dots(row, VT, b, end, out[i])


@njit(nogil=True, cache=True)
def _entries(
    kernel: NamedTuple,
    sums: NDArray[np.int32],
    rest: NDArray[np.float32],
    terms: Terms,
    i: int,
    b: int,
    to: NDArray[Any],
) -> None:
    """Write the kernel entries of left row i and the right rows from b on to `to`.

    ``sums``: the row's sums of byte products. ``rest``: its float32 products over the columns that
    are no bytes; empty if there are none. ``kernel``: the kernel's constants; ``terms``: how sums
    of byte products become values.
    """
    if len(rest):
        _mixed(kernel, sums, rest, terms, i, b, to)
    else:
        _whole(kernel, sums, terms, i, b, to)


@njit(nogil=True, cache=True, fastmath={"contract"})
def _whole(
    kernel: NamedTuple,
    sums: NDArray[np.int32],
    terms: Terms,
    i: int,
    b: int,
    to: NDArray[Any],
) -> None:
    """Write entries of left row i and the right rows from b on, if all columns are integers.

    ``sums``: the row's sums of byte products. ``kernel``: the kernel's constants; ``terms``: how
    sums become values; ``to``: output.
    """
    of_left, scale = terms.left[i], terms.scale
    of_right, zero = terms.right[b : b + len(to)], _as(0, scale)
    for k in range(len(to)):
        level = _as(np.int32(2 * sums[k] + of_left + of_right[k]), scale)
        to[k] = entry(kernel, level * scale, zero, zero)


@njit(nogil=True, cache=True, fastmath={"contract"})
def _mixed(
    kernel: NamedTuple,
    sums: NDArray[np.int32],
    rest: NDArray[np.float32],
    terms: Terms,
    i: int,
    b: int,
    to: NDArray[Any],
) -> None:
    """Write entries of left row i and the right rows from b on, if some columns are no integers.

    ``sums``: the row's sums of byte products; ``rest``: its float32 products over other columns.
    ``kernel``: the kernel's constants; ``terms``: how sums become values; ``to``: output.
    """
    of_left, half_a, scale = terms.left[i], terms.half_a[i], terms.scale
    of_right, half_b = terms.right[b : b + len(to)], terms.half_b[b : b + len(to)]
    for k in range(len(to)):
        level = _as(np.int32(2 * sums[k] + of_left + of_right[k]), scale)
        to[k] = entry(kernel, level * scale + rest[k], half_a, half_b[k])


def _as(x: Any, like: Any) -> Any:
    """Convert an integer to float32 or float64, whichever ``like`` is, in compiled code."""
    raise NotImplementedError


@overload(_as)
def _as_overload(x: Any, like: Any) -> Callable[..., Any]:
    """Choose the compiled code of `_as` by the type of ``like``."""
    real: Any = np.float32 if like == types.float32 else np.float64

    def implementation(x: Any, like: Any) -> Any:
        """Return x as that type."""
        return real(x)

    return implementation


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _dots(row: NDArray[Any], VT: FloatArray, b: int, end: int, out: FloatArray) -> None:
    """Add the products of one left row's entries with vectors to `out` (k,), summed in float64.

    ``row``: its entries with the right rows [b, end). ``VT`` (k, right rows): the vectors.
    """
    for c in range(len(VT)):
        v, total = VT[c, b:end], 0.0
        for k in range(len(v)):
            total += np.float64(row[k]) * v[k]
        out[c] += total
