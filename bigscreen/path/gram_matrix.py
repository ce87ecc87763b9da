"""The whole kernel matrix in memory: its entries, sums of its rows, and how far they may be off."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.features.design import Design, row_ranges
from bigscreen.kernels.entry_errors import EntryErrors
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.square import error_spread, number_equal_rows
from bigscreen.kernels.standard import Linear
from bigscreen.numerics.rows import FloatArray, njit

ENTRY_UNIT = 2.0**-52

Progress = Callable[[int, int], None]

STRIPE = 256
"""Rows computed at a time."""


class FullGram:
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
    quick : bool
        Entries computed in float32 where that is any good: a third of the time, half the memory.

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
        self,
        design: Design,
        constant: bool,
        budget: int,
        progress: Progress | None = None,
        quick: bool = False,
    ) -> None:
        if design.landmarks is not None:
            raise InputError(
                "a kernel matrix is made of rows; store the Nystrom features and give those"
            )
        data, self.constant = design.data, constant
        n = data.n_rows
        kernel = design.kernel or Linear()
        types = (np.float32,) if quick else (np.float64, np.float32)
        fits = [dtype for dtype in types if bytes_needed(n, dtype) <= budget]
        if not fits:
            raise InputError(
                f"the kernel matrix of {n:,} rows and what a solve copies of it take "
                f"{bytes_needed(n, np.float32):,} bytes, and {max(budget, 0):,} are left for them; "
                "allow more memory, or use fewer rows"
            )
        self.wide, self.psd = fits[0] is np.float64, kernel.psd
        side = Operand(data.X(0, n), np.arange(n))
        self.K: NDArray[np.floating] = np.empty((n, n), fits[0])
        d, longest = data.n_features, float(np.max(side.sqnorms))
        computed = kernel.precision(longest, d) if quick else np.float64
        for start, stop in row_ranges(n, STRIPE):
            ids = np.arange(stop)
            part = Operand(side.X[start:stop], ids[start:]), Operand(side.X[:stop], ids)
            stripe = kernel.block(*part, dtype=computed)
            stripe += float(constant)
            own = stripe[:, start:]
            own[:] = np.tril(own) + np.tril(own, -1).T
            self.K[start:stop, :stop] = stripe
            self.K[:stop, start:stop] = stripe.T
            if progress:
                progress(stop, n)
        self.entries = n * (n + 1) // 2
        self._kernel, self._side = kernel, side
        errors = EntryErrors.of(kernel, side, constant)
        errors = errors.in_float64() if computed is np.float64 else errors
        self._errors = errors if self.wide else errors.rounded_again()
        # Rounding can make an entry larger than both its rows' own.
        self.norms = errors.norms * (1 + 8 * ENTRY_UNIT)
        self._alike = number_equal_rows(side.X)

    def __len__(self) -> int:
        return len(self.K)

    def add(self, scores: FloatArray, rows: NDArray[np.int64], coef: FloatArray) -> float:
        """``scores += sum_j coef_j K[rows_j]``; what rounding of these sums can do to a score.

        It is a part of ``||phi_i||``, for scores whose w is no longer than what is added to it.
        """
        _add_rows(self.K, rows, coef, scores)
        return ENTRY_UNIT * float(np.sqrt(len(rows))) * float(np.abs(coef) @ self.norms[rows])

    def scores(self, coef: FloatArray, rows: NDArray[np.int64]) -> FloatArray:
        """Scores of some rows of ``sum coef_j phi_j``, from float64 entries computed again."""
        side, support = self._side, np.flatnonzero(coef)
        part = Operand(side.X[rows], rows), Operand(side.X[support], support)
        return (self._kernel.block(*part, dtype=np.float64) + self.constant) @ coef[support]

    def slack(self, scores: FloatArray, coef: FloatArray, drift: float) -> FloatArray:
        """Bounds on the errors of all scores of ``sum coef_j phi_j`` (maths.md 4).

        ``drift``: a bound on the error of the sums themselves, as a multiple of ``||phi_i||``.
        """
        spread = error_spread(coef, self._alike)
        return self._errors.of_scores(scores, spread) + drift * self.norms


def bytes_needed(n: int, dtype: type) -> int:
    """Bytes of the matrix, and of the copies of its rows that a solve may make."""
    return 2 * n * n * np.dtype(dtype).itemsize


@njit(cache=True, nogil=True, fastmath={"contract"})
def _add_rows(
    K: NDArray[np.floating], rows: NDArray[np.int64], coef: FloatArray, scores: FloatArray
) -> None:
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
