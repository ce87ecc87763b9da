"""The whole kernel matrix in memory: its entries, sums of its rows, and bounds on their errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.certificate import UNIT_ROUNDOFF
from bigscreen.errors import InputError
from bigscreen.features.design import Design, row_ranges
from bigscreen.kernels.entry_errors import EntryErrors
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.square import error_spread, number_equal_rows
from bigscreen.kernels.standard import Linear
from bigscreen.numerics.rows import FloatArray, njit

Progress = Callable[[int, int], None]
"""A function that is called with the number of rows done, and of all rows."""


class FullGram:
    """The kernel matrix K of all rows of a design, symmetric to the last bit.

    Parameters
    ----------
    design : Design
        A kernel design without landmarks, or the rows of a linear machine.
    constant : bool
        Whether a 1 is appended to every phi.
    budget : int
        Bytes for K and for a copy of its rows: entries are float64 if both fit, else float32.
    progress : callable or None
        Called with (rows done, rows).
    quick : bool
        Compute entries in float32 if the kernel allows: a third of the time, half the memory.
    stripe_rows : int
        Rows of K computed at a time.

    Attributes
    ----------
    K : float64 or float32 (n, n)
    norms : float64 (n,)
        Upper bounds of ``||phi_i||``, including the constant's 1.
    entries : int
        The number of kernel entries computed.
    wide : bool
        Whether entries are float64.
    psd : bool
        Whether the kernel is positive semidefinite.

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
        stripe_rows: int = 256,
    ) -> None:
        """Choose the type of the entries by the budget, compute K, and bound their errors."""
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
        for start, stop in row_ranges(n, stripe_rows):
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
        # Rounding can make an entry larger than both diagonal entries.
        self.norms = errors.norms * (1 + 16 * UNIT_ROUNDOFF)
        self._alike = number_equal_rows(side.X)

    def __len__(self) -> int:
        """Return the number of rows n."""
        return len(self.K)

    def add(self, scores: FloatArray, rows: NDArray[np.int64], coef: FloatArray) -> float:
        """Add ``sum_j coef_j K[rows_j]`` to ``scores`` (n,); return a bound on the rounding errors.

        The bound is a multiple of ``||phi_i||``, and holds if the w of ``scores`` is no longer than
        the w that is added.
        """
        _add_rows(self.K, rows, coef, scores)
        return (
            2 * UNIT_ROUNDOFF * float(np.sqrt(len(rows))) * float(np.abs(coef) @ self.norms[rows])
        )

    def scores(self, coef: FloatArray, rows: NDArray[np.int64]) -> FloatArray:
        """Compute the scores of ``rows`` for ``sum coef_j phi_j``, from new float64 kernel entries.

        ``coef``: (n,), a coefficient of every row.
        """
        side, support = self._side, np.flatnonzero(coef)
        part = Operand(side.X[rows], rows), Operand(side.X[support], support)
        return (self._kernel.block(*part, dtype=np.float64) + self.constant) @ coef[support]

    def slack(self, scores: FloatArray, coef: FloatArray, drift: float) -> FloatArray:
        """Bound the errors of all scores of ``sum coef_j phi_j``, float64 (n,) (maths.md 4).

        ``drift``: a bound on the error of the sums themselves, as a multiple of ``||phi_i||``.
        """
        spread = error_spread(coef, self._alike)
        return self._errors.of_scores(scores, spread) + drift * self.norms


def bytes_needed(n: int, dtype: type) -> int:
    """Return the bytes of an n by n kernel matrix, plus a copy of its rows during a solve."""
    return 2 * n * n * np.dtype(dtype).itemsize


@njit(cache=True, nogil=True, fastmath={"contract"})
def _add_rows(
    K: NDArray[np.floating], rows: NDArray[np.int64], coef: FloatArray, scores: FloatArray
) -> None:
    """Add ``sum_j coef_j K[rows_j]`` to ``scores``, four rows of K per pass over the scores."""
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
