"""Rows moved and scaled to where float32 holds what a kernel sees of them.

A distance does not change with the origin, and a power of two folds into gamma without a rounding:
neither changes a kernel's entries, but both change what is left of a row when it is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.data.layout import Features, csr, sqnorms
from bigscreen.data.rows import Rows
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.standard import Linear

SAMPLE = 4096
"""Rows that say where an origin is."""

FAR = 0.9
"""Part of the squared norms that the mean carries from where on an origin is taken off."""

SMALL, LARGE = 2.0**-40, 2.0**40
"""Squared norms of the longest row between which nothing is scaled."""


@dataclass(frozen=True)
class Move:
    """x becomes ``(x - origin) 2^exponent``; no origin is 0."""

    origin: NDArray[np.float64] | None
    exponent: int

    def __call__(self, X: Any) -> Any:
        """Rows, moved: dense float64 where an origin is taken off, else of their own type."""
        if issparse(X) and self.origin is not None:
            X = X.toarray()  # sparse rows that dense landmarks score
        if issparse(X):
            X = csr_array(X)
            return csr(np.ldexp(X.data, self.exponent), X.indices, X.indptr, X.shape[1])
        if self.origin is None:
            return np.ldexp(X, self.exponent)
        out = X - self.origin
        return np.ldexp(out, self.exponent, out=out) if self.exponent else out

    def kernel(self, kernel: Kernel) -> Kernel:
        """The kernel with the same entries between moved rows."""
        if not self.exponent:
            return kernel
        scaled: Any = kernel  # one that has a gamma, see `move_for`
        power = 1 if scaled.pairing == "manhattan" else 2
        gamma = float(np.ldexp(scaled.gamma, -power * self.exponent))
        moved: Kernel = replace(scaled, gamma=gamma)
        return moved


def move_for(kernel: Kernel | None, sample: Any, longest: float, balanced: bool) -> Move | None:
    """How to move rows for this kernel; None where they are fine where they are.

    Parameters
    ----------
    kernel : Kernel or None
        None: the features themselves.
    sample : ndarray or csr_array (k, d)
        Some rows.
    longest : float
        Largest squared norm of a row.
    balanced : bool
        Coefficients add up to 0, so that an inner product may be taken from any origin.
    """
    origin = None
    linear = kernel is None or isinstance(kernel, Linear)
    invariant = (kernel is not None and kernel.invariant) or (balanced and linear)
    # float32 rows hold their numbers: nothing is lost on the way to what sees their distances.
    if invariant and sample.dtype == np.float64 and not issparse(sample):
        mean = sample.mean(axis=0)
        if float(mean @ mean) > FAR * float(np.mean(sqnorms(sample))):
            origin = mean
            longest = float(np.max(sqnorms(sample - mean)))
    exponent = 0
    if hasattr(kernel, "gamma") and 0 < longest < np.inf and not SMALL <= longest <= LARGE:
        exponent = -int(np.rint(0.5 * np.log2(longest)))
    return None if origin is None and not exponent else Move(origin, exponent)


def moved(data: Rows, kernel: Kernel | None, balanced: bool) -> Rows:
    """The rows as this kernel is best shown them: a `Moved`, or ``data`` itself."""
    n = min(data.n_rows, SAMPLE)
    if data.path is None and data.n_rows > n:
        sample = data.rows(np.linspace(0, data.n_rows - 1, n).astype(np.int64))
    else:
        sample = data.X(0, n)
    move = move_for(kernel, sample, data.max_sqnorm, balanced)
    return data if move is None else Moved(data, move)


class Moved(Rows):
    """The rows of another data set, moved each time they are asked for."""

    def __init__(self, base: Rows, move: Move) -> None:
        self.base, self.move = base, move
        self.layout, self.preparation, self.path = base.layout, base.preparation, base.path

    def X(self, start: int, stop: int) -> Features:
        return self.move(self.base.X(start, stop))

    def rows(self, ids: ArrayLike) -> Features:
        return self.move(self.base.rows(ids))

    def y(self, start: int, stop: int) -> NDArray[Any]:
        return self.base.y(start, stop)

    def weights(self, start: int, stop: int) -> NDArray[np.float64]:
        return self.base.weights(start, stop)

    def sqnorms(self, start: int, stop: int) -> NDArray[np.float64]:
        return sqnorms(self.X(start, stop))

    def row_ids(self, start: int, stop: int) -> NDArray[np.int64]:
        return self.base.row_ids(start, stop)

    def shift(self, w: NDArray[np.float64]) -> float:
        """What a machine that scores moved rows by ``<w, x>`` adds to those of rows in place."""
        return 0.0 if self.move.origin is None else float(w @ self.move.origin)

    @cached_property
    def max_sqnorm(self) -> float:
        chunks = (self.chunk(k) for k in range(self.n_chunks))
        return max(float(np.max(self.sqnorms(start, stop))) for start, stop in chunks)

    @property
    def label_counts(self) -> NDArray[np.int64]:
        return self.base.label_counts

    @property
    def fingerprint(self) -> str:
        """That of the rows themselves: the same problem."""
        return self.base.fingerprint
