"""Float32 kernel entries by the matrix unit, finished while they are in the first-level cache.

For rows without an inverted index; the others, and other precisions, go through `entries.tiles`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from bigscreen.kernels import amx, amx_entries
from bigscreen.kernels.entries import checked
from bigscreen.kernels.operand import AnyRows, Operand, load, scratch
from bigscreen.numerics.rows import FloatArray, as_rows, sqnorms

LOADED_ENTRIES = 1 << 18
"""Of the left side at once: of narrow rows many, since every piece takes its turn at Python."""


NARROW = amx.CHUNK
"""Columns below which rows leave a tile of the unit partly empty and go through BLAS. (Sums of
their errors on the unit were 2 % beyond their bound in one of 1,200 random paths.)"""


def is_product(pairing: str) -> bool:
    """Whether values of this kind are products, which BLAS and the unit compute."""
    return pairing != "manhattan"


def serves(side: Operand, pairing: str, dtype: DTypeLike) -> bool:
    """Whether the unit computes entries to this right side.

    It does so for entries that are written down and for those that are multiplied with vectors at
    once: an entry has the same bits in both, or a solver that uses both comes to no close gap.
    """
    if dtype != np.float32 or not is_product(pairing):
        return False
    return wide_enough(side.X.shape[1]) and side.rare is None


def wide_enough(d: int) -> bool:
    """Whether products of rows of d columns go through the unit, if there is one."""
    return amx.available() and d >= NARROW


def multiply(
    terms: NamedTuple,
    A: AnyRows,
    side: Operand,
    pairing: str,
    VT: FloatArray | None,
    out: NDArray[Any],
) -> None:
    """Kernel entries between A and ``side``, or products with vectors; see `amx_entries.multiply`.

    ``out`` is (len A, len side), or (len A, k) where VT (k, len side) is given.
    """
    halves = _single(side.halves if pairing == "distance" else np.zeros(len(side)))
    for r, left, half in _lefts(A, side, pairing):
        sides = amx_entries.Sides(left, side.packed(pairing), half, halves)
        amx_entries.multiply(terms, sides, VT, out[r : r + len(half)])


def _single(halves: FloatArray) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # so far away that no entry is left
        return halves.astype(np.float32)


def _lefts(
    A: AnyRows, side: Operand, pairing: str
) -> Iterator[tuple[int, amx.Packed, NDArray[np.float32]]]:
    """Rows of A, some at a time: the first of them, packed, and their half squared norms."""
    origin, X = side.moved(pairing), checked(A, side)
    as_they_are = not (sparse.issparse(X) or sparse.issparse(side.X) or origin.any())
    if as_they_are and isinstance(A, Operand):
        yield 0, A.left, _single(0.5 * A.sqnorms)
        return
    h = len(origin)
    height = max(amx.PANEL, LOADED_ENTRIES // max(1, h))
    for r in range(0, X.shape[0], height):
        rows = X[r : r + height]
        if as_they_are and rows.dtype == np.float32:
            half = 0.5 * sqnorms(rows)
        else:
            part, half = as_rows(rows), np.empty(rows.shape[0])
            rows = scratch("rows", (len(half), h), np.float32)
            load(part, 0, side.position, origin, rows, half)
        left = amx.packed(scratch("left", amx.shape(len(half), h), np.uint16), len(half))
        amx.pack(rows, left, 0, False)
        yield r, left, _single(half)
