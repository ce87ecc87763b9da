"""Test whether a user's kernel matrix or kernel function is positive semidefinite.

For few rows the whole matrix is factored, which decides. For many rows a sample is factored, which
can only disprove it. A tolerance covers the rounding of entries to float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from bigscreen.errors import InputError
from bigscreen.kernels.base import U32
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.operand import Operand

WHOLE, SAMPLE = 2000, 1000
"""Rows up to which a matrix is factored whole, and rows of the sample where there are more."""

FUNCTION_SAMPLE = 500
"""The same of a function, whose entries somebody's Python computes."""

WITHOUT_PROOF = (
    "the fit ends at a stationary point of the dual, which may have others, and nothing is proved"
)

ASYMMETRY = 1e-5
"""Difference of (i, j) and (j, i), as a part of the largest entry, that rounding may have made."""

ROUNDED = 32.0
"""Eigenvalues of a matrix of n rows whose entries were rounded to float32 err by about
``2 sqrt(n)`` roundings; those who computed them in float32 lost more."""


def examined(kernel: Precomputed | Custom, data: Any) -> Precomputed | Custom:
    """Test a kernel on these rows, and return it with the result in its fields.

    Parameters
    ----------
    kernel : Precomputed or Custom
    data : Rows
        The training rows.

    Returns
    -------
    Precomputed or Custom
        ``psd`` is False if the rows disprove it; ``known`` describes the test and its result.

    Raises
    ------
    InputError
        If the matrix is not symmetric, so that it is not a kernel.
    """
    n = data.n_rows
    whole, sample = (
        (WHOLE, SAMPLE) if isinstance(kernel, Precomputed) else (FUNCTION_SAMPLE, FUNCTION_SAMPLE)
    )
    ids = np.arange(n)
    if n > whole:
        ids = np.sort(np.random.default_rng(0).choice(n, sample, replace=False))
    rows = Operand(data.rows(ids), ids)
    K = kernel.block(rows, rows, dtype=np.float64)
    largest = float(np.max(np.abs(K), initial=0.0))
    _check_symmetric(K, ids, largest)
    fault = _fault(0.5 * (K + K.T), ids, largest)
    if fault is not None:
        return replace(kernel, psd=False, known=fault, largest=largest)
    if n > whole:
        known = f"trusted to be positive semidefinite: {sample} of its rows do not disprove it"
    else:
        known = f"tested: positive semidefinite on all {n} rows, but for rounding"
    return replace(kernel, known=known)


def _check_symmetric(K: NDArray[np.float64], ids: NDArray[np.int64], largest: float) -> None:
    off = np.abs(K - K.T)
    i, j = np.unravel_index(int(np.argmax(off)), off.shape)
    if not off[i, j] <= ASYMMETRY * largest:
        raise InputError(
            f"the kernel is not symmetric: the entry of rows {ids[i]} and {ids[j]} is {K[i, j]:g} "
            f"and that of {ids[j]} and {ids[i]} is {K[j, i]:g}; give (K + K.T) / 2"
        )


def _fault(K: NDArray[np.float64], ids: NDArray[np.int64], largest: float) -> str | None:
    """Say why a symmetric matrix is not positive semidefinite; None if it is, up to rounding."""
    n = len(K)
    slack = ROUNDED * U32 * np.sqrt(n) * largest
    diag = np.diagonal(K)
    k = int(np.argmin(diag))
    if diag[k] < -slack:
        return f"not positive semidefinite: row {ids[k]} has {diag[k]:.3g} on the diagonal"
    try:
        # Succeeds if and (up to float64 rounding) only if no eigenvalue is below -slack.
        linalg.cholesky(K + max(slack, 1e-300) * np.eye(n), check_finite=False)
    except linalg.LinAlgError:
        of = "the rows" if n == 1 else f"{n} rows"
        return f"not positive semidefinite: {of} show an eigenvalue below {-slack:.2g}"
    return None
