"""Kernel entries from exact products of bytes, finished while those are in the cache.

For rows that stand for 8-bit integers (see `vnni`) and have no inverted index. Rows on the left
that do not are told apart: the bits of an entry depend on its two rows, and on what the right side
is a grid of, never on what they are computed with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from bigscreen.kernels import vnni
from bigscreen.kernels.entries import checked, entry
from bigscreen.kernels.operand import AnyRows, Operand, load, scratch
from bigscreen.kernels.vnni import LEFT, PITCH, RIGHT, Bytes, multiply_panels
from bigscreen.numerics.rows import FloatArray, as_rows, njit, overload

STRIP = 512
"""Rows of the right side at once."""

LOADED_ENTRIES = 1 << 18
"""Of the left side at once."""

PAD = 64
"""See `others`; kernel columns are handed to BLAS in such multiples, too."""


class Terms(NamedTuple):
    """What makes values of sums: ``scale (2 sum + left_i + right_j)``, int32 (rows,) each side."""

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    scale: Any  # in the type of the entries


def serves(side: Operand, pairing: str, dtype: DTypeLike) -> bool:
    """Whether entries of this type to this right side are computed here."""
    if pairing == "manhattan" or not vnni.available():
        return False
    # (What was divided by the steps was rounded to float32.)
    exact = dtype == np.float32 or (side.grid is not None and side.grid.steps == 1.0)
    return side.grid is not None and exact and side.rare is None


def multiply(
    kernel: NamedTuple,
    A: AnyRows,
    side: Operand,
    pairing: str,
    dtype: np.dtype[Any],
    VT: FloatArray | None,
    out: NDArray[Any],
) -> NDArray[np.int64]:
    """Kernel entries between A and ``side``, or their products with vectors.

    Parameters
    ----------
    kernel : a kernel's constants (see `entries`), of this type
    dtype : float32 or float64
    VT : None or float64 (k, len side)
    out : C-contiguous
        Without VT (len A, len side), of that type; with it float64 (len A, k),
        zeros, to which ``K VT'`` is added, summed in float64.

    Returns
    -------
    int64, the places of rows of A that are not on the grid: what is there in ``out`` says nothing.
    """
    grid, right = side.grid, side.bytes
    assert grid is not None
    d = side.X.shape[1]
    apart = pairing == "distance"
    of_right = 2 * grid.left * right.sums - (right.squares if apart else 0)
    scale, off = dtype.type(0.5 / grid.steps**2), [np.empty(0, np.int64)]
    for r, left in _lefts(A, side, grid):
        shift = 2 * grid.right
        of_left = shift * (left.sums - d * grid.left) - (left.squares if apart else 0)
        # (Cut to 32 bits: what they come to with the sum fits.)
        terms = Terms(of_left.astype(np.int32), of_right.astype(np.int32), scale)
        if left.fits.any():
            _run(kernel, left.numbers, right.numbers, terms, VT, out[r : r + len(of_left)])
        off.append(r + np.flatnonzero(~left.fits))
    return np.concatenate(off)


def others(A: AnyRows, off: NDArray[np.int64]) -> Any:
    """The rows of A at these places for `entries.tiles`; the first again up to a multiple of PAD.

    (The bits of an entry by BLAS do not depend then on how many they are.)
    """
    X = A.X if isinstance(A, Operand) else A
    return X[np.concatenate([off, np.repeat(off[:1], -len(off) % PAD)])]


def _lefts(A: AnyRows, side: Operand, grid: vnni.Grid) -> Iterator[tuple[int, Bytes]]:
    """Rows of A, some at a time: the number of the first, and their bytes."""
    X, d = checked(A, side), side.X.shape[1]
    as_they_are = not (sparse.issparse(X) or sparse.issparse(side.X))
    step = max(LEFT, LOADED_ENTRIES // d // LEFT * LEFT)
    for r in range(0, X.shape[0], step):
        rows = X[r : r + step]
        n = rows.shape[0]
        if not as_they_are:
            dense = scratch("rows", (n, d), X.dtype)
            load(as_rows(rows), 0, side.position, np.zeros(d, X.dtype), dense, np.empty(n))
            rows = dense
        shape = (-(-n // LEFT), -(-d // vnni.QUAD), LEFT, vnni.QUAD)
        left = vnni.packed(scratch("left", shape, np.uint8), n)
        vnni.pack(rows, left, 0, grid, False)
        yield r, left


@njit(nogil=True, cache=True)
def _run(
    kernel: NamedTuple,
    left: NDArray[np.uint8],
    right: NDArray[np.uint8],
    terms: Terms,
    VT: FloatArray | None,
    out: NDArray[Any],
) -> None:
    n, m, quads = len(terms.left), len(terms.right), left.shape[1]
    size = quads * vnni.QUAD
    sums, row = np.empty((LEFT, PITCH), np.int32), np.full(STRIP, terms.scale)
    for b in range(0, m, STRIP):
        end = min(b + STRIP, m)
        for a in range(0, n, LEFT):
            x = left.ctypes.data + a * size
            for c in range(b, end, RIGHT):
                y = right.ctypes.data + c * size
                multiply_panels(x, y, quads, sums.ctypes.data + 4 * (c - b))
            for i in range(a, min(a + LEFT, n)):
                if VT is None:
                    _entries(kernel, sums[i - a], terms, i, b, out[i, b:end])
                else:
                    _entries(kernel, sums[i - a], terms, i, b, row[: end - b])
                    _dots(row, VT, b, end, out[i])


@njit(nogil=True, cache=True, fastmath={"contract"})
def _entries(
    kernel: NamedTuple,
    sums: NDArray[np.int32],
    terms: Terms,
    i: int,
    b: int,
    to: NDArray[Any],
) -> None:
    """Kernel entries of a row with those from b on."""
    of_left, scale = terms.left[i], terms.scale
    of_right, zero = terms.right[b : b + len(to)], _as(0, scale)
    for k in range(len(to)):
        value = _as(np.int32(2 * sums[k] + of_left + of_right[k]), scale) * scale
        to[k] = entry(kernel, value, zero, zero)


def _as(x: Any, like: Any) -> Any:
    """An integer in the type of another number."""
    raise NotImplementedError


@overload(_as)
def _as_overload(x: Any, like: Any) -> Callable[..., Any]:
    real: Any = np.float32 if like == types.float32 else np.float64

    def implementation(x: Any, like: Any) -> Any:
        return real(x)

    return implementation


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _dots(row: NDArray[Any], VT: FloatArray, b: int, end: int, out: FloatArray) -> None:
    for c in range(len(VT)):
        v, total = VT[c, b:end], 0.0
        for k in range(len(v)):
            total += np.float64(row[k]) * v[k]
        out[c] += total
