"""The kernel matrix of the current block: entries of rows that stay are kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.kernels import Kernel, Side
from bigscreen.rows import njit

STRIP = 128
"""Rows of the matrix that one thread computes at a time."""


class Gram:
    """Rows of a block and the kernel entries between them.

    Parameters
    ----------
    kernel : Kernel
    constant : bool
        Add 1 to every entry (an appended constant).
    threads : int
    dtype : float32 or float64
        Of the entries.
    """

    def __init__(self, kernel: Kernel, constant: bool, threads: int, dtype: type) -> None:
        self.kernel, self.constant, self.threads, self.dtype = kernel, constant, threads, dtype
        self.ids = np.empty(0, np.int64)
        self.X: Any = None
        self.K: NDArray[Any] = np.empty((0, 0), dtype)
        self.entries = 0

    def enter(self, stay: NDArray[np.int64], ids: NDArray[np.int64], X: Any) -> None:
        """Make the block the rows at places ``stay`` of the last one, and new rows after them."""
        n, kept = len(stay) + len(ids), len(stay)
        if kept:
            X = _stack(self.X[stay], X)
            ids = np.concatenate([self.ids[stay], ids])
        side = Side(X, ids)
        K: NDArray[Any] = np.empty((n, n), self.dtype)
        self.kernel.prepare(side)

        def strip(a: int) -> None:
            b = min(n, a + STRIP)
            self.kernel.block(Side(X[a:b], ids[a:b]), side, out=K[a:b], dtype=self.dtype)
            if self.constant:
                K[a:b] += 1

        def mirrored(a: int) -> None:
            b = min(kept, a + STRIP)
            keep_square(self.K, stay, K, a, b)
            mirror(K, kept, a, b)

        with ThreadPoolExecutor(self.threads) as pool:
            for work, rows in ((strip, range(kept, n, STRIP)), (mirrored, range(0, kept, STRIP))):
                if self.threads == 1 or len(rows) == 1:
                    list(map(work, rows))
                else:
                    list(pool.map(work, rows))
        self.entries += n * (n - kept)
        self.ids, self.X, self.K = ids, X, K


def _stack(one: Any, other: Any) -> Any:
    if sparse.issparse(one):
        return sparse.csr_array(sparse.vstack([one, other], format="csr"))
    return np.concatenate([one, other])


@njit(cache=True, nogil=True)
def keep_square(old, stay, K, first, last):  # type: ignore[no-untyped-def]
    """``K[i, j] = old[stay_i, stay_j]`` for rows i from first to last."""
    for i in range(first, last):
        row, out = old[stay[i]], K[i]
        for j in range(len(stay)):
            out[j] = row[stay[j]]


@njit(cache=True, nogil=True)
def mirror(K, kept, first, last):  # type: ignore[no-untyped-def]
    """``K[i, j] = K[j, i]`` for rows i from first to last and new rows j, square by square."""
    n, square = len(K), 32
    for a in range(first, last, square):
        for b in range(kept, n, square):
            for i in range(a, min(a + square, last)):
                for j in range(b, min(b + square, n)):
                    K[i, j] = K[j, i]
