"""Rows as they come in: converted to what is stored, or refused in one sentence."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.errors import InputError
from bigscreen.store.layout import Features, csr


def as_features(X: ArrayLike | csr_array, name_row: Callable[[int], str]) -> Features:
    """`X` as stored: float32, C-contiguous or CSR with sorted, distinct column indices.

    Parameters
    ----------
    X : array or sparse array of shape (rows, d)
    name_row : callable
        Says in words which row of the source a row of `X` is; used in the error.

    Raises
    ------
    InputError
        If `X` is not a numeric matrix, or a value is not finite or beyond float32.
    """
    if issparse(X):
        wide = csr_array(X)
        if not wide.has_canonical_format:
            wide = wide.copy()
            wide.sum_duplicates()
        with np.errstate(over="ignore"):
            data = wide.data.astype(np.float32, copy=False)
        out = csr(data, wide.indices, wide.indptr, wide.shape[1])
        if not np.isfinite(data).all():
            bad = int(np.flatnonzero(~np.isfinite(data))[0])
            row = int(np.searchsorted(out.indptr, bad, side="right")) - 1
            raise _not_finite(name_row(row), int(out.indices[bad]), wide.data[bad])
        return out
    try:
        array = np.asarray(X)
        with np.errstate(over="ignore"):
            dense = np.ascontiguousarray(array, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"the features are not a matrix of numbers: {error}") from error
    if dense.ndim != 2:
        raise InputError(f"the features must have two dimensions, got shape {array.shape}")
    if not np.isfinite(dense).all():
        row, column = np.argwhere(~np.isfinite(dense))[0]
        raise _not_finite(name_row(int(row)), int(column), array[row, column])
    return dense


def _not_finite(row: str, column: int, value: Any) -> InputError:
    why = "is too large for 32-bit floats" if np.isfinite(value) else "is not a finite number"
    return InputError(
        f"{row}: the value {value} of feature {column + 1} {why}; correct or remove that row"
    )


def check_weights(weights: ArrayLike | None, n_rows: int) -> NDArray[np.float64] | None:
    """Weights as float64 of shape (n_rows,); InputError unless finite and not negative."""
    if weights is None:
        return None
    try:
        values = np.asarray(weights, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(f"the weights are not numbers: {error}") from error
    if values.shape != (n_rows,):
        raise InputError(
            f"{n_rows} weights are needed, one for every row, got the shape {values.shape}"
        )
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(wrong):
        raise InputError(
            f"row {wrong[0]}: the weight {values[wrong[0]]} must be a finite number, not negative"
        )
    return values
