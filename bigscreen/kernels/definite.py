"""Test whether a user's kernel matrix or kernel function is positive semidefinite.

For few rows the whole matrix is factored, which decides. For many rows a sample is factored, which
can only disprove it. A tolerance covers the rounding of entries to float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from bigscreen.errors import InputError
from bigscreen.kernels.base import U32
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.operand import Operand

WITHOUT_PROOF = (
    "the fit ends at a stationary point of the dual, which may have others, and nothing is proved"
)
"""What a fit with a kernel that is not positive semidefinite lacks, for messages to the user."""


@dataclass(frozen=True)
class DefinitenessTuning:
    """Sample sizes and tolerances of the test for positive semidefiniteness.

    Parameters
    ----------
    max_matrix_rows : int
        Test a whole precomputed matrix if it has at most this many rows; of a larger matrix, test a
        sample.
    matrix_sample : int
        Of a precomputed matrix with more than ``max_matrix_rows`` rows, test this many sampled rows
        and the same columns.
    function_sample : int
        Test a kernel that is a Python function on a sample of at most this many rows.
    asymmetry_tol : float
        Treat a difference between entries (i, j) and (j, i) as rounding if it is at most this
        fraction of the largest entry.
    rounding_factor : float
        Treat a negative eigenvalue of n rows as 0 if it is at most this times ``sqrt(n)`` times the
        float32 rounding of the largest entry. (Rounding the entries once moves eigenvalues by
        approximately 2 in this unit; computing the entries in float32 moves them by more.)
    """

    max_matrix_rows: int = 2000
    matrix_sample: int = 1000
    function_sample: int = 500
    asymmetry_tol: float = 1e-5
    rounding_factor: float = 32.0


def check_definite(
    kernel: Precomputed | Custom, data: Any, tuning: DefinitenessTuning = DefinitenessTuning()
) -> Precomputed | Custom:
    """Test whether a user's kernel is positive semidefinite, and return it with the result.

    Parameters
    ----------
    kernel : Precomputed or Custom
    data : Rows
        The training rows.
    tuning : DefinitenessTuning

    Returns
    -------
    Precomputed or Custom
        The kernel with new fields: ``psd`` is False if the rows disprove it, ``known`` describes
        the test and its result, ``largest`` is the largest tested |entry| if ``psd`` is False.

    Raises
    ------
    InputError
        If the matrix is not symmetric, so that it is not a kernel.
    """
    n = data.n_rows
    whole, sample = tuning.function_sample, tuning.function_sample
    if isinstance(kernel, Precomputed):
        whole, sample = tuning.max_matrix_rows, tuning.matrix_sample
    ids = np.arange(n)
    if n > whole:
        ids = np.sort(np.random.default_rng(0).choice(n, sample, replace=False))
    rows = Operand(data.rows(ids), ids)
    K = kernel.block(rows, rows, dtype=np.float64)
    largest = float(np.max(np.abs(K), initial=0.0))
    _check_symmetric(K, ids, tuning.asymmetry_tol * largest)
    slack = tuning.rounding_factor * U32 * np.sqrt(len(K)) * largest
    fault = _find_fault(0.5 * (K + K.T), ids, float(slack))
    if fault is not None:
        return replace(kernel, psd=False, known=fault, largest=largest)
    if n > whole:
        known = f"trusted to be positive semidefinite: {sample} of its rows do not disprove it"
    else:
        known = f"tested: positive semidefinite on all {n} rows, but for rounding"
    return replace(kernel, known=known)


def _check_symmetric(K: NDArray[np.float64], ids: NDArray[np.int64], tol: float) -> None:
    """Raise InputError if entries (i, j) and (j, i) of K differ by more than `tol`.

    ``ids``: the rows' numbers in the data, for the message.
    """
    off = np.abs(K - K.T)
    i, j = np.unravel_index(int(np.argmax(off)), off.shape)
    if not off[i, j] <= tol:
        raise InputError(
            f"the kernel is not symmetric: the entry of rows {ids[i]} and {ids[j]} is {K[i, j]:g} "
            f"and that of {ids[j]} and {ids[i]} is {K[j, i]:g}; give (K + K.T) / 2"
        )


def _find_fault(K: NDArray[np.float64], ids: NDArray[np.int64], slack: float) -> str | None:
    """Say why a symmetric matrix is not positive semidefinite; None if it is, up to rounding.

    ``ids``: the rows' numbers in the data, for the text. Eigenvalues above ``-slack`` count as
    rounding.
    """
    n = len(K)
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
