"""Bounds on rounding errors of kernel entries, and of scores made of them (maths.md 4)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigscreen.kernels.base import FLOAT64_ERROR_FACTOR, ONE_ROUNDING, U32, Kernel, phi_norms
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray


@dataclass(frozen=True)
class EntryErrors:
    """Bounds on the errors of the kernel entries of some rows with all rows of the data.

    The error of entry (i, j) has two parts: at most ``relative_i |k_ij|`` that is common to all
    entries of the row, and at most ``absolute_i`` that is independent of the other entries.

    Attributes
    ----------
    relative, absolute : float64 (rows,)
        The two parts of the bound of each row's entries.
    norms : float64 (rows,)
        ``||phi_i||``, an appended constant included; of a kernel that is not positive semidefinite
        the root of the largest entry.
    max_norm : float
        The largest of these norms over all rows of the data.
    """

    relative: FloatArray
    absolute: FloatArray
    norms: FloatArray
    max_norm: float

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        rows: Operand,
        constant: bool = False,
        max_sqnorm: float | None = None,
    ) -> EntryErrors:
        """Bound the errors of float32 entries of ``rows`` with all rows of the data.

        Parameters
        ----------
        kernel : Kernel
        rows : Operand
        constant : bool
            A 1 is appended to every phi, which adds an exact 1 to each entry. If it is added in
            float32, use `rounded_again` as well.
        max_sqnorm : float or None
            The largest squared norm of all rows of the data; None if ``rows`` are all of them.
        """
        one, d = float(constant), rows.X.shape[1]
        norms = np.sqrt(phi_norms(kernel, rows) ** 2 + one)
        if max_sqnorm is None:
            max_sqnorm = float(np.max(rows.sqnorms, initial=0.0))
            max_norm = float(np.max(norms, initial=0.0))
        else:
            max_norm = float(np.sqrt(kernel.bound(max_sqnorm, max_sqnorm) + one))
        relative = kernel.relative_error(rows.sqnorms, max_sqnorm, d)
        absolute = kernel.entry_error(rows.sqnorms, max_sqnorm, d)
        if relative is None:
            relative = 0.0
        else:
            absolute = np.minimum(absolute, relative * norms * max_norm)
        each = np.zeros(len(norms))
        return cls(each + relative, each + absolute, norms, max_norm)

    def in_float64(self) -> EntryErrors:
        """Return the bounds for the same entries computed in float64 instead of float32."""
        return replace(
            self,
            relative=FLOAT64_ERROR_FACTOR * self.relative,
            absolute=FLOAT64_ERROR_FACTOR * self.absolute,
        )

    def rounded_again(self) -> EntryErrors:
        """Return the bounds for these entries after one more rounding to float32."""
        moved = ONE_ROUNDING * self.norms * self.max_norm
        return replace(self, relative=self.relative + U32, absolute=self.absolute + moved)

    def of_scores(
        self, scores: FloatArray, spread: float, rows: NDArray[np.int64] | slice = slice(None)
    ) -> FloatArray:
        """Bound the errors of the scores ``u_i = sum_j coef_j k_ij`` of these rows.

        ``spread``: `bigscreen.kernels.square.error_spread` of the coefficients. The independent
        errors of a row's entries add up to at most ``absolute_i spread``, the common ones to
        ``relative_i |u_i|``. ``rows``: places among the rows of these bounds, one for each score.
        Returns float64 (scores,).
        """
        bounds: FloatArray = self.relative[rows] * np.abs(scores) + self.absolute[rows] * spread
        return bounds
