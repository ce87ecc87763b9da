"""The kernel matrix of the current block, updated in place as rows leave and join."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.features.design import Design
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import njit


class BlockGram:
    """The rows of a block and the kernel entries between them.

    Parameters
    ----------
    design : Design
        A design of the exact kernel machine: its kernel, and where entries are computed.
    constant : bool
        Add 1 to each entry, for a constant appended to phi.
    threads : int
        Threads that compute and copy entries.
    dtype : float32 or float64
        Type of the entries.
    strip : int
        Rows of the matrix that one thread computes at a time.

    Attributes
    ----------
    ids : int64 (n,)
        The rows of the block, unordered: a row keeps its place while it stays.
    X : array or CSR array (n, d)
        Their features; None before the first block.
    room : array (at least n, at least n)
        The memory; the matrix is its first n rows and columns. It is updated in place, because new
        memory costs as much as computing the entries.
    entries : int
        Kernel entries computed so far.
    """

    def __init__(
        self, design: Design, constant: bool, threads: int, dtype: type, strip: int = 128
    ) -> None:
        """Start with an empty block, which has no memory yet."""
        self.strip = strip
        self.design, self.constant, self.threads, self.dtype = design, constant, threads, dtype
        self.ids = np.empty(0, np.int64)
        self.X: Any = None
        self.room: NDArray[Any] = np.empty((0, 0), dtype)
        self.entries = 0

    def empty(self, dtype: type) -> BlockGram:
        """Return an empty block of the same design, with entries of type ``dtype``."""
        return BlockGram(self.design, self.constant, self.threads, dtype, self.strip)

    @property
    def K(self) -> NDArray[Any]:
        """The kernel matrix (n, n)."""
        n = len(self.ids)
        return self.room[:n, :n]

    @property
    def capacity(self) -> int:
        """Rows that the memory has room for; the places of new rows depend on it."""
        return len(self.room)

    @property
    def rows(self) -> NDArray[Any]:
        """The kernel matrix (n, capacity), whose columns from n on are spare.

        Unlike ``K`` it is C-contiguous, as compiled loops require.
        """
        return self.room[: len(self.ids)]

    def restore(
        self, X: Any, ids: NDArray[np.int64], K: NDArray[Any], capacity: int, entries: int
    ) -> None:
        """Continue with a saved block: rows' features and numbers, matrix, capacity, count.

        ``K``: the kernel matrix between the rows ``ids``; ``entries``: kernel entries computed so
        far.
        """
        self.ids, self.X, self.entries = ids, X, int(entries)
        self.room = np.empty((int(capacity),) * 2, self.dtype)
        self.K[:] = K

    def enter(
        self, stay: NDArray[np.int64], ids: NDArray[np.int64], X: Any, most: int
    ) -> NDArray[np.int64]:
        """Replace the block by some of its rows and new ones.

        Parameters
        ----------
        stay : int64, ascending
            Places of the rows that stay.
        ids, X
            Numbers of the new rows in the data, and their features.
        most : int
            Rows that later blocks are expected to have, if memory has to be allocated.

        Returns
        -------
        int64 : places of the rows that stay, then of the new rows
        """
        n, kept = len(stay) + len(ids), len(stay)
        if n > len(self.room):
            places = np.arange(n)
            old, self.room = self.room, np.empty((max(n, most),) * 2, self.dtype)
            self._each(kept, lambda a, b: keep_square(old, stay, self.room, a, b))
        else:
            places = _assign_places(stay, n)
            far = np.flatnonzero(places[:kept] != stay)
            if len(far):
                self._relocate(stay[far], places[far])
        self.X = _join_features(self.X, stay, X, places)
        before, self.ids = self.ids, np.empty(n, np.int64)
        self.ids[places[:kept]], self.ids[places[kept:]] = before[stay], ids
        self._compute(places[:kept], np.sort(places[kept:]))
        return places

    def _relocate(self, old: NDArray[np.int64], new: NDArray[np.int64]) -> None:
        """Move rows and columns of the matrix from places ``old`` to ``new``, which are unused."""
        K = self.room
        self._each(len(self.ids), lambda a, b: move_columns(K, old, new, a, b))
        K[new] = K[old]

    def _compute(self, held: NDArray[np.int64], new: NDArray[np.int64]) -> None:
        """Compute the entries of the rows at places ``new`` with all rows.

        ``held``: places of the other rows, whose entries between each other are known.
        """
        n, side, kernel = len(self.ids), Operand(self.X, self.ids), self.design.kernel
        assert kernel is not None
        kernel = self.design.backend.kernel(kernel)
        kernel.prepare(side)

        def strip(a: int, b: int) -> None:
            """Compute and write the entries of the new rows [a, b)."""
            at = new[a:b]
            entries: NDArray[Any] = np.empty((len(at), n), self.dtype)
            kernel.block(side.part(at), side, out=entries, dtype=self.dtype)
            if self.constant:
                entries += 1
            write_entries(entries, at, held, self.room)

        self._each(len(new), strip)
        self.entries += n * len(new)

    def _each(self, count: int, work: Callable[[int, int], None]) -> None:
        """Call ``work(start, stop)`` for strips of [0, count), in several threads."""
        starts = range(0, count, self.strip)
        ends = [min(count, a + self.strip) for a in starts]
        if self.threads == 1 or len(starts) < 2:
            list(map(work, starts, ends))
        else:
            with ThreadPoolExecutor(self.threads) as pool:
                list(pool.map(work, starts, ends))


def _assign_places(stay: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Assign places below n to the rows that stay (their own if below n), then to the new rows.

    ``stay``: the present places, ascending. Returns int64 (n,), each place once.
    """
    taken = np.zeros(n, np.bool_)
    near = stay < n
    taken[stay[near]] = True
    free = np.flatnonzero(~taken)
    far = len(stay) - np.count_nonzero(near)
    return np.concatenate([stay[near], free[:far], free[far:]])


def _join_features(old: Any, stay: NDArray[np.int64], X: Any, places: NDArray[np.int64]) -> Any:
    """Combine the features of rows that stay with the features of new rows.

    ``old``: features of the last block, of which rows ``stay`` are kept. ``X``: features of the new
    rows. ``places`` (n,): where to put first the rows that stay, then the new ones.
    """
    n, kept = len(places), len(stay)
    if sparse.issparse(X):
        both = X if old is None else sparse.vstack([old, X], format="csr")
        source = np.empty(n, np.int64)
        source[places] = np.concatenate([stay, both.shape[0] - n + kept + np.arange(n - kept)])
        return sparse.csr_array(both)[source]
    if old is None or len(old) != n:
        out = np.empty((n, X.shape[1]), X.dtype)
        if kept:
            out[places[:kept]] = old[stay]
    else:
        out = old  # if the block's size is unchanged, rows that stay keep their places
    out[places[kept:]] = X
    return out


@njit(cache=True, nogil=True)
def keep_square(
    old: NDArray[Any], stay: NDArray[np.int64], K: NDArray[Any], first: int, last: int
) -> None:
    """Copy ``K[i, j] = old[stay_i, stay_j]`` for rows i from ``first`` to ``last`` (excluded).

    ``old``, ``K``: the previous and the new memory of a kernel matrix; ``stay``: places of the rows
    that stay in the block.
    """
    for i in range(first, last):
        row, out = old[stay[i]], K[i]
        for j in range(len(stay)):
            out[j] = row[stay[j]]


@njit(cache=True, nogil=True)
def move_columns(
    K: NDArray[Any], old: NDArray[np.int64], new: NDArray[np.int64], first: int, last: int
) -> None:
    """Copy columns ``K[i, new] = K[i, old]`` for rows i from ``first`` to ``last`` (excluded)."""
    for i in range(first, last):
        row = K[i]
        for j in range(len(old)):
            row[new[j]] = row[old[j]]


@njit(cache=True, nogil=True)
def write_entries(
    entries: NDArray[Any], at: NDArray[np.int64], held: NDArray[np.int64], K: NDArray[Any]
) -> None:
    """Write kernel entries of new rows into a block's matrix K, as rows and as columns.

    ``entries`` (len at, n): of the rows at places ``at`` with all n rows. They become the rows
    ``at`` of K, and the columns ``at`` in the rows at places ``held``. Columns are written in
    squares of 32 x 32 entries, since each crosses many rows of memory.
    """
    square = 32
    for i in range(len(at)):
        K[at[i], : entries.shape[1]] = entries[i]
    for a in range(0, len(held), square):
        for b in range(0, len(at), square):
            for i in range(a, min(a + square, len(held))):
                row, j = K[held[i]], held[i]
                for k in range(b, min(b + square, len(at))):
                    row[at[k]] = entries[k, j]
