"""Rows as they come in: converted to what is stored, or refused in one sentence."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.errors import InputError
from bigscreen.store.layout import Features, csr

HUGE = 1e150
"""Values from which on squares overflow float64."""

PART = 1 << 20
"""Values that are looked at together."""


def as_features(
    X: ArrayLike | csr_array, name_row: Callable[[int], str], wide: bool = False
) -> Features:
    """`X` as stored: float32, C-contiguous or CSR with sorted, distinct column indices.

    Parameters
    ----------
    X : array or sparse array of shape (rows, d)
    name_row : callable
        Says in words which row of the source a row of `X` is; used in the error.
    wide : bool
        Leave float64 values as they are if float32 does not hold all of them.

    Raises
    ------
    InputError
        If `X` is not a numeric matrix, or a value is not finite or beyond float32 (``wide``:
        beyond 1e150, as its square would be infinite).
    """
    most = HUGE if wide else float(np.finfo(np.float32).max)
    if issparse(X):
        own = csr_array(X)
        if not own.has_canonical_format:
            own = own.copy()
            own.sum_duplicates()
        kind = np.float64 if _is_wide(own.data.dtype) else np.float32
        given = own.data.astype(kind, copy=False)
        bad = _beyond(given, most)
        if bad is not None:
            row = int(np.searchsorted(own.indptr, bad, side="right")) - 1
            raise _not_held(name_row(row), int(own.indices[bad]), own.data[bad])
        data = given if wide and not _fits(given) else given.astype(np.float32, copy=False)
        return csr(data, own.indices, own.indptr, own.shape[1])
    try:
        array = np.asarray(X)
        kind = np.float64 if _is_wide(array.dtype) else np.float32
        with np.errstate(over="ignore"):
            dense = np.ascontiguousarray(array, dtype=kind)
    except (TypeError, ValueError) as error:
        raise InputError(f"the features are not a matrix of numbers: {error}") from error
    if dense.ndim != 2:
        raise InputError(f"the features must have two dimensions, got shape {array.shape}")
    flat = dense.reshape(-1)
    bad = _beyond(flat, most)
    if bad is not None:
        row, column = divmod(bad, dense.shape[1])
        raise _not_held(name_row(row), column, array[row, column])
    return dense if wide and not _fits(flat) else dense.astype(np.float32, copy=False)


def _is_wide(dtype: np.dtype) -> bool:
    """Whether values of this type may be no float32 numbers, and are taken as float64."""
    return dtype.kind in "fiu" and dtype.itemsize >= 4 and dtype != np.float32


def _beyond(values: NDArray[Any], most: float) -> int | None:
    """The place of the first value that is not finite, or larger than `most`; None without any."""
    for start in range(0, len(values), PART):
        part = values[start : start + PART]
        # What is not a number is neither.
        if not (float(part.max()) <= most and float(part.min()) >= -most):
            return start + int(np.argmax(~(np.abs(part).astype(np.float64) <= most)))
    return None


def _fits(values: NDArray[Any]) -> bool:
    """Whether float32 holds all these values."""
    if values.dtype == np.float32:
        return True
    parts = (values[start : start + PART] for start in range(0, len(values), PART))
    with np.errstate(over="ignore"):
        return all(np.array_equal(part.astype(np.float32), part) for part in parts)


def _not_held(row: str, column: int, value: Any) -> InputError:
    why = "is not a finite number"
    if np.isfinite(value):
        why = f"is too large for {'64' if abs(value) >= HUGE else '32'}-bit floats"
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
