"""The whole kernel matrix in memory: its entries, sums of its rows, and how far they may be off."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bigscreen.design import Design, tiles
from bigscreen.dual import FloatArray
from bigscreen.errors import InputError
from bigscreen.kernels import Linear, Side
from bigscreen.kernels_base import FLOAT64
from bigscreen.rows import njit

EPS = 2.0**-52

Progress = Callable[[int, int], None]

STRIPE = 256
"""Rows computed at a time."""


class Gram:
    """K of all rows of a design, symmetric to the last bit.

    Parameters
    ----------
    design : Design
        With a kernel, or the rows themselves.
    constant : bool
        Whether a 1 is appended to every phi.
    budget : int
        Bytes there are for K and for copies of its rows: float64 entries if they fit, else float32.
    progress : callable or None
        Called with (rows done, rows).

    Attributes
    ----------
    K : float64 or float32 (n, n)
    norms : float64 (n,)
        Upper bounds of ``||phi_i||``, the constant's 1 included.
    entries : int
        Kernel entries computed.
    wide, psd : bool
        Whether entries are float64, and no w has a negative ``||w||^2``.

    Raises
    ------
    InputError
        If float32 entries do not fit, or a Nystrom design is given.
    """

    def __init__(
        self, design: Design, constant: bool, budget: int, progress: Progress | None = None
    ) -> None:
        if design.landmarks is not None:
            raise InputError(
                "a kernel matrix is made of rows; store the Nystrom features and give those"
            )
        data, self.constant = design.data, constant
        n = data.n_rows
        kernel = design.kernel or Linear()
        fits = [dtype for dtype in (np.float64, np.float32) if bytes_needed(n, dtype) <= budget]
        if not fits:
            raise InputError(
                f"the kernel matrix of {n:,} rows and what a solve copies of it take "
                f"{bytes_needed(n, np.float32):,} bytes, and {max(budget, 0):,} are left for them; "
                "allow more memory, or use fewer rows"
            )
        self.wide, self.psd = fits[0] is np.float64, kernel.psd
        side = Side(data.X(0, n), np.arange(n))
        self.K: NDArray[np.floating] = np.empty((n, n), fits[0])
        for start, stop in tiles(n, STRIPE):
            ids = np.arange(stop)
            part = Side(side.X[start:stop], ids[start:]), Side(side.X[:stop], ids)
            stripe = kernel.block(*part, dtype=np.float64)
            stripe += float(constant)
            own = stripe[:, start:]
            own[:] = np.tril(own) + np.tril(own, -1).T
            self.K[start:stop, :stop] = stripe
            self.K[:stop, start:stop] = stripe.T
            if progress:
                progress(stop, n)
        self.entries = n * (n + 1) // 2
        # Rounding can make an entry larger than both its rows' own.
        size = kernel.diag(side) if kernel.psd else _bounds(kernel, side)
        self.norms = np.sqrt(size + float(constant)) * (1 + 8 * EPS)
        longest = float(np.max(side.sqnorms))
        d = data.n_features
        relative = kernel.relative_error(side.sqnorms, longest, d)
        errors = kernel.entry_error(side.sqnorms, longest, d)
        if relative is not None:
            errors = np.minimum(errors, relative * self.norms * float(np.max(self.norms)))
        self._relative: FloatArray | float = FLOAT64 * (0.0 if relative is None else relative)
        self._errors: FloatArray = FLOAT64 * np.broadcast_to(errors, (n,))
        if not self.wide:
            self._relative = self._relative + 2.0**-24
            self._errors = self._errors + 2.0**-24 * self.norms * float(np.max(self.norms))
        mark = np.random.default_rng(0).normal(size=(side.X.shape[1], 1))
        self._equal = np.unique(Design(data).dots(side.X, mark)[:, 0], return_inverse=True)[1]

    def __len__(self) -> int:
        return len(self.K)

    def add(self, scores: FloatArray, rows: NDArray[np.int64], coef: FloatArray) -> float:
        """``scores += sum_j coef_j K[rows_j]``; what rounding of these sums can do to a score, as
        a part of ``||phi_i||``, for scores whose w is no longer than what is added to it."""
        _add_rows(self.K, rows, coef, scores)
        return EPS * float(np.sqrt(len(rows))) * float(np.abs(coef) @ self.norms[rows])

    def slack(self, scores: FloatArray, coef: FloatArray, drift: float) -> FloatArray:
        """Bounds on the errors of all scores of ``sum coef_j phi_j`` (MATH sec. 4).

        The errors of a row's entries are taken as independent, but for what they have in common,
        which moves the score as a whole, and for equal rows, whose entries err alike. ``drift``
        is what the sums were off already.
        """
        together = np.bincount(self._equal, coef)
        apart = np.bincount(self._equal, coef**2)
        spread = float(np.sqrt(np.sum(np.maximum(together**2, apart))))
        return self._relative * np.abs(scores) + self._errors * spread + drift * self.norms


def bytes_needed(n: int, dtype: type) -> int:
    """Bytes of the matrix, and of the copies of its rows that a solve may make."""
    return 2 * n * n * np.dtype(dtype).itemsize


def _bounds(kernel, side: Side) -> FloatArray:  # type: ignore[no-untyped-def]
    return np.array([kernel.bound(size, size) for size in side.sqnorms])


@njit(cache=True, nogil=True, fastmath={"contract"})
def _add_rows(K, rows, coef, scores):  # type: ignore[no-untyped-def]
    """Four rows in a pass: the scores are read and written a quarter as often."""
    whole = len(rows) - len(rows) % 4
    for k in range(0, whole, 4):
        one, two, three, four = K[rows[k]], K[rows[k + 1]], K[rows[k + 2]], K[rows[k + 3]]
        a, b, c, d = coef[k], coef[k + 1], coef[k + 2], coef[k + 3]
        for i in range(len(scores)):
            scores[i] += (a * one[i] + b * two[i]) + (c * three[i] + d * four[i])
    for k in range(whole, len(rows)):
        one, a = K[rows[k]], coef[k]
        for i in range(len(scores)):
            scores[i] += a * one[i]
