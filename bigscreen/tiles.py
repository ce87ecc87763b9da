"""Prepared rows and the tiles of values between them: what every kernel is computed from.

A kernel entry is a scalar function of one number per pair of rows: an inner product, half a squared
distance or an L1 distance. `tiles` walks over that matrix of numbers tile by tile, in a buffer that
each thread reuses (a fresh buffer costs 1 ns an entry in page faults).

Columns are split once, by what they cost: those that many rows of the right side have go through
dense loops (BLAS), the rest through an inverted index. Dense rows have only the first kind.
"""

import threading
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from bigscreen.errors import InputError
from bigscreen.rows import as_rows, njit, row_count, row_load, row_sqnorm

# 4 MB of float32: measured flat from there on, 4-15 % slower below.
TILE_ROWS = 1024
TILE_ENTRIES = 1024 * 1024
LOADED_ENTRIES = 4 << 20  # left rows made dense at once

# ns an entry, one thread, AVX-512: a column of a dense product; a nonzero two rows share.
DENSE_COST = 0.02
SHARED_COST = 1.0


class _Scratch(threading.local):
    """Buffers of one thread, kept between calls."""

    def __init__(self) -> None:
        self.buffers: dict[str, np.ndarray] = {}

    def __call__(self, name: str, shape: tuple[int, int], dtype) -> np.ndarray:
        size = shape[0] * shape[1] * np.dtype(dtype).itemsize
        buffer = self.buffers.get(name)
        if buffer is None or buffer.nbytes < size:
            buffer = self.buffers[name] = np.empty(size, dtype=np.uint8)
        return buffer[:size].view(dtype).reshape(shape)


_scratch = _Scratch()


def float32_rows(X) -> Any:
    """X as float32, C-contiguous or CSR, without a copy where it already is."""
    if sparse.issparse(X):
        return sparse.csr_array(X, dtype=np.float32)
    X = np.ascontiguousarray(X, dtype=np.float32)
    if X.ndim != 2:
        raise InputError(f"rows must form a 2-D array, not {X.ndim}-D: use reshape(1, -1) for one.")
    return X


class Side:
    """Rows prepared for being one side of many kernel evaluations.

    Parameters
    ----------
    X : ndarray (rows, d) or scipy CSR array
        Taken as float32, not copied if it is that already.
    ids : int64 ndarray (rows,) or None
        The rows' numbers in the training data, where they are known.

    Attributes
    ----------
    X : ndarray or csr_array, float32
    sqnorms : float64 (rows,), squared Euclidean norms

    Notes
    -----
    What a kernel needs beyond X on the RIGHT side is made at first use and kept: a centred copy
    (RBF, when the mean carries a quarter of the squared norm or more), a transposed copy
    (Laplacian), and for CSR the frequent columns as a dense array and an index of the others.
    """

    def __init__(self, X, ids: np.ndarray | None = None) -> None:
        self.X = float32_rows(X)
        self.ids = ids
        self.sqnorms = _sqnorms(as_rows(self.X))

    def __len__(self) -> int:
        return self.X.shape[0]

    @cached_property
    def position(self) -> np.ndarray:
        """int32 (d,): place of a frequent column in `dense`, -1 for a rare one.

        A column that a share p of these rows has, and presumably of those on the left, costs
        DENSE_COST in a dense product and p^2 SHARED_COST in the index.
        """
        d = self.X.shape[1]
        if not sparse.issparse(self.X):
            return np.arange(d, dtype=np.int32)
        share = np.bincount(self.X.indices, minlength=d) / max(1, len(self))
        frequent = share**2 * SHARED_COST > DENSE_COST
        return np.where(frequent, np.cumsum(frequent) - 1, -1).astype(np.int32)

    @cached_property
    def dense(self) -> np.ndarray:
        """The frequent columns: float32 (rows, frequent), X itself if that is dense."""
        if not sparse.issparse(self.X):
            return self.X
        return np.ascontiguousarray(self.X[:, self.position >= 0].toarray())

    @cached_property
    def transposed(self) -> np.ndarray:
        return np.ascontiguousarray(self.dense.T)

    @cached_property
    def rare(self) -> Any:
        """X without its frequent columns (same shape), None if nothing is left."""
        if self.dense.shape[1] == self.X.shape[1]:
            return None
        rest = self.X.copy()
        rest.data = np.where(self.position[rest.indices] < 0, rest.data, np.float32(0))
        rest.eliminate_zeros()
        return rest

    @cached_property
    def index(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The inverted index: for every rare column the rows that have it."""
        columns = self.rare.tocsc()
        # Unsigned: no check for indices from the end in the loop that uses them.
        return columns.data, columns.indices.astype(np.uint32), columns.indptr.astype(np.uint64)

    @cached_property
    def rare_l1(self) -> np.ndarray:
        return np.asarray(abs(self.rare.astype(np.float64)).sum(axis=1))

    @cached_property
    def origin(self) -> np.ndarray:
        """Where distances are measured from: float32 (frequent,), the mean of `dense` or zeros.

        Half a squared distance is computed as a difference of norms and products; with the mean
        taken off first, both are no larger than the spread of the data.
        """
        mean = self.dense.mean(axis=0, dtype=np.float64) if len(self) else np.zeros(1)
        worth = float(mean @ mean) * len(self) > 0.25 * float(self.sqnorms.sum())
        return mean.astype(np.float32) if worth else np.zeros(self.dense.shape[1], np.float32)

    @cached_property
    def centred(self) -> tuple[np.ndarray, np.ndarray]:
        """`dense` minus the origin; half the squared norms of whole rows so moved (float64)."""
        if not self.origin.any():
            return self.dense, 0.5 * self.sqnorms
        rows, half = np.empty_like(self.dense), np.empty(len(self))
        _load(as_rows(self.X), 0, self.position, self.origin, rows, half)
        return rows, half

    def columns(self, pairing: str, c: int, w: int, dtype) -> tuple[np.ndarray, np.ndarray]:
        """Rows [c, c + w) for a dense product, and their half norms (zeros for "product")."""
        if dtype == np.float32:
            if pairing == "product":
                return self.dense[c : c + w], np.zeros(w)
            rows, half = self.centred
            return rows[c : c + w], half[c : c + w]
        # From the raw rows (the centred copy is rounded), one block at a time, not kept.
        origin = self.origin if pairing == "distance" else np.zeros_like(self.origin)
        rows, half = _scratch("columns", (w, len(origin)), dtype), np.empty(w)
        _load(as_rows(self.X), c, self.position, origin, rows, half)
        return rows, half if pairing == "distance" else np.zeros(w)


class Tile(NamedTuple):
    """Values of rows from `row` on and len(half_b) columns from `column` on, at values[:, first:].

    half_a and half_b: half squared norms (zeros unless distances are wanted), typed as the values.
    """

    values: np.ndarray
    first: int
    row: int
    column: int
    half_a: np.ndarray
    half_b: np.ndarray


def tiles(A, side: Side, pairing: str, dtype, out: np.ndarray | None = None) -> Iterator[Tile]:
    """Values between the rows of A and of `side`, in a fixed order of tiles.

    pairing: "product" <a, b>; "distance" <a, b> of rows moved to side.origin, to be reduced by
    half_a and half_b; "manhattan" ||a - b||_1. With `out` (len A, len side) the values are written
    there, else into this thread's buffer, which the next tile overwrites.

    The bits of an entry may depend on the shape of its tile (BLAS chooses its loop by shape), never
    on the thread: equal cuts of A give equal bits.
    """
    A = A.X if isinstance(A, Side) else float32_rows(A)
    if A.shape[1] != side.X.shape[1]:
        raise InputError(
            f"rows have {A.shape[1]} features where {side.X.shape[1]} are expected: "
            "prepare both sides in the same way."
        )
    n, m, h = A.shape[0], len(side), side.dense.shape[1]
    indexed, manhattan = side.rare is not None, pairing == "manhattan"
    height = max(1, min(n, TILE_ROWS, LOADED_ENTRIES // max(1, h)))
    if indexed:  # the index knows all columns at once
        width, height = max(1, m), max(1, min(height, TILE_ENTRIES // max(1, m)))
    else:
        width = max(1024, TILE_ENTRIES // height)
        # Equal tiles, no thin last one; where a tile ends must not change how BLAS works inside.
        width = max(1, -(-m // max(1, -(-m // width))))
        width = -(-width // 64) * 64
    origin = side.origin if pairing == "distance" else np.zeros(h, dtype=np.float32)
    for c in range(0, m, width):
        w = min(width, m - c)
        if not manhattan:
            b, half_b = side.columns(pairing, c, w, dtype)
        for r in range(0, n, height):
            part = A[r : r + height]
            rows = as_rows(sparse.csr_array(part) if indexed else part)
            count = part.shape[0]
            a, half_a = _scratch("rows", (count, h), dtype), np.empty(count)
            _load(rows, 0, side.position, origin, a, half_a)
            if out is None:
                values, first = _scratch("tile", (count, w), dtype), 0
            else:
                values, first = out[r : r + count], c
            if manhattan:
                _manhattan(a, side.transposed, c, w, values, first)
            else:
                np.matmul(a, b.T, out=values[:, first : first + w])
            if indexed:
                norms = side.rare_l1 if manhattan else half_b
                _add_shared(rows, side.position, side.index, manhattan, norms, values)
            if pairing != "distance":
                half_a, half_b = np.zeros(count), np.zeros(w)
            yield Tile(values, first, r, c, half_a.astype(dtype), half_b.astype(dtype))


@njit(nogil=True, cache=True)
def _sqnorms(X):
    out = np.empty(row_count(X))
    for i in range(len(out)):
        out[i] = row_sqnorm(X, i)
    return out


@njit(nogil=True, cache=True, fastmath={"contract"})
def _load(X, start, position, origin, out, half):
    """out = dense columns of X[start:] - origin, half = ||whole row, so moved||^2 / 2."""
    for i in range(len(out)):
        row = out[i]
        rest = row_load(X, start + i, position, row)
        for j in range(len(row)):
            row[j] -= origin[j]
        half[i] = 0.5 * (row_sqnorm(out, i) + rest)


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
