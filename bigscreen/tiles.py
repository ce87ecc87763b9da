"""The tiles of values between rows: what every kernel is computed from.

A kernel entry is a scalar function of one number per pair of rows: an inner product, half a squared
distance or an L1 distance. `tiles` walks over that matrix of numbers tile by tile, in a buffer that
each thread reuses (a fresh buffer costs 1 ns an entry in page faults).

Columns are split once, by what they cost: those that many rows of the right side have go through
dense loops (the matrix unit for float32 where the processor has one, BLAS else), the rest through
an inverted index. Dense rows have only the first kind.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy import sparse

from bigscreen import amx
from bigscreen.entries import LinearTerms
from bigscreen.errors import InputError
from bigscreen.rows import as_rows, njit
from bigscreen.sides import Side, float32_rows, load, scratch

LOADED_ENTRIES = 4 << 20  # left rows made dense at once
# 4 MB of float32: measured flat from there on, 4-15 % slower below.
TILE_ROWS = 1024
TILE_ENTRIES = 1024 * 1024
UNIT_ROWS = 256
UNIT_ENTRIES = 256 * 1024  # 1 MB, which the second-level cache holds


class Tile(NamedTuple):
    """Values of rows from `row` on and len(half_b) columns from `column` on, at values[:, first:].

    terms: the constants that make entries of them, those of a linear kernel if they are entries.
    half_a and half_b: half squared norms (zeros unless distances are wanted), typed as the values.
    """

    terms: NamedTuple

    values: np.ndarray
    first: int
    row: int
    column: int
    half_a: np.ndarray
    half_b: np.ndarray


def tiles(
    A, side: Side, pairing: str, terms: NamedTuple, dtype, out: np.ndarray | None = None
) -> Iterator[Tile]:
    """Values between the rows of A and of `side`, in a fixed order of tiles.

    terms: the kernel's constants. pairing: "product" <a, b>; "distance" <a, b> of rows moved to
    side.origin, to be reduced by half_a and half_b; "manhattan" ||a - b||_1. With `out` (len A, len
    side) the values are written there, else into this thread's buffer, which the next tile
    overwrites.

    The bits of an entry may depend on the shape of its tile (BLAS chooses its loop by shape), never
    on the thread: equal cuts of A give equal bits.
    """
    given, A = (A, A.X) if isinstance(A, Side) else (None, float32_rows(A))
    if A.shape[1] != side.X.shape[1]:
        raise InputError(
            f"rows have {A.shape[1]} features where {side.X.shape[1]} are expected: "
            "prepare both sides in the same way."
        )
    n, m, h = A.shape[0], len(side), side.dense.shape[1]
    indexed, manhattan = side.rare is not None, pairing == "manhattan"
    unit = dtype == np.float32 and not manhattan and amx.available()
    height, width = _tile(n, m, h, indexed, unit, out is None)
    origin = side.moved(pairing)
    plain = not (sparse.issparse(A) or sparse.issparse(side.X) or origin.any())
    ready = given.left if unit and plain and given is not None else None
    spots: Iterable[tuple[int, int]] = product(range(0, n, height), range(0, m, width))
    if not unit:  # columns may have to be converted: all that there is to do with them, at once
        spots = ((r, c) for c, r in product(range(0, m, width), range(0, n, height)))
    before_r = before_c = -1
    for r, c in spots:
        w, count = min(width, m - c), min(height, n - r)
        if r != before_r and ready is not None and given is not None:
            left, half_a = amx.rows(ready, r, count), 0.5 * given.sqnorms[r : r + count]
        elif r != before_r:
            part = A[r : r + height]
            rows = as_rows(sparse.csr_array(part) if indexed else part)
            a, half_a = scratch("rows", (count, h), dtype), np.empty(count)
            load(rows, 0, side.position, origin, a, half_a)
            if unit:
                left = amx.packed(scratch("left", amx.shape(count, h), np.uint16), count)
                amx.pack(a, left, 0, False)
        if c != before_c and not manhattan and not unit:
            b = side.columns(pairing, c, w, dtype)
        before_r, before_c = r, c
        if out is None:
            values, first = scratch("tile", (count, w), dtype), 0
        else:
            values, first = out[r : r + count], c
        half_b = side.halves[c : c + w] if pairing == "distance" else np.zeros(w)
        halves = (half_a if pairing == "distance" else np.zeros(count)), half_b
        halves = halves[0].astype(dtype), halves[1].astype(dtype)
        left_to_do = terms
        if manhattan:
            _manhattan(a, side.transposed, c, w, values, first)
        elif unit:
            # Entries at once, while their values are in the first-level cache.
            now, left_to_do = (LinearTerms(), terms) if indexed else (terms, LinearTerms())
            amx.multiply(now, left, side.packed(pairing), c, halves, values, first)
        else:
            np.matmul(a, b.T, out=values[:, first : first + w])
        if indexed:
            norms = side.rare_l1 if manhattan else side.sqnorms
            _add_shared(rows, side.position, side.index, manhattan, norms, values)
        yield Tile(left_to_do, values, first, r, c, *halves)


def prepare(side: Side, pairing: str) -> None:
    """Make what float32 `tiles` want of a right side, and it keeps."""
    if pairing == "manhattan":
        _ = side.transposed
    elif amx.available():
        side.packed(pairing)
    else:
        _ = side.centred


def _tile(n: int, m: int, h: int, indexed: bool, unit: bool, kept: bool) -> tuple[int, int]:
    """Rows of a tile on either side; of the unit's, what is read again stays small."""
    entries = UNIT_ENTRIES if unit and kept else TILE_ENTRIES
    most = UNIT_ROWS if unit else TILE_ROWS
    height = max(amx.PANEL if unit else 1, min(n, most, LOADED_ENTRIES // max(1, h)))
    height = height // amx.PANEL * amx.PANEL if unit else height
    if indexed:  # the index knows all columns at once
        return max(1, min(height, TILE_ENTRIES // max(1, m))), max(1, m)
    width = max(1024, entries // height)
    # Equal tiles, no thin last one; where a tile ends must not change how BLAS works inside.
    width = max(1, -(-m // max(1, -(-m // width))))
    return height, -(-width // 64) * 64


@njit(nogil=True, cache=True, fastmath={"contract"})
def _manhattan(A, BT, c, w, out, first):
    """out[i, first + j] = ||A_i - B_(c + j)||_1, four features a sweep to save stores."""
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
def _add_shared(A, position, index, manhattan, l1_norms, out):
    """out += inner products or L1 distances over the rare columns, summed in float64.

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
