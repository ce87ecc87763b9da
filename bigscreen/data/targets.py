"""What rows are to be predicted as: label codes, or the targets of a regression.

A store's rows have one or the other. Its layout has labels, perhaps none, for codes, and None where
the rows have targets. A code of -1 and a target of NaN say that there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.data.layout import Features, Label, csr
from bigscreen.errors import InputError


def as_stored(
    y: ArrayLike | None, n_rows: int, labels: Sequence[Label] | None
) -> NDArray[np.int32] | NDArray[np.float64]:
    """Codes of `labels`, int32 (n_rows,), or targets, float64 (n_rows,), where `labels` is None.

    Raises
    ------
    InputError
        Naming the row, if a code is not a label's or a target is no finite number.
    """
    if labels is None:
        return as_targets(y, n_rows, lambda row: f"row {row}")
    return check_codes(y, n_rows, len(labels))


def check_codes(y: ArrayLike | None, n_rows: int, n_labels: int) -> NDArray[np.int32]:
    """Label codes as int32 of shape (n_rows,); InputError unless each is -1 or a label's."""
    if y is None:
        return np.full(n_rows, -1, dtype=np.int32)
    codes = np.asarray(y)
    if codes.shape != (n_rows,) or not np.issubdtype(codes.dtype, np.integer):
        raise InputError(
            f"label codes must be {n_rows} integers, one for every row of features, "
            f"got {codes.dtype} of shape {codes.shape}"
        )
    wrong = np.flatnonzero((codes < -1) | (codes >= n_labels))
    if len(wrong):
        raise InputError(
            f"row {wrong[0]}: label code {codes[wrong[0]]} is not one of the {n_labels} labels"
        )
    return np.ascontiguousarray(codes, dtype=np.int32)


def as_targets(
    y: ArrayLike | None, n_rows: int, name_row: Callable[[int], str]
) -> NDArray[np.float64]:
    """Targets as float64 of shape (n_rows,), NaN where there is none.

    Parameters
    ----------
    y : array of shape (n_rows,) or None
        Numbers, or texts that spell numbers; None, NaN and the empty text mean "no target".
    n_rows : int
    name_row : callable
        Says in words which row of the source a row is; used in the error.

    Raises
    ------
    InputError
        If there is not one target for every row, or one is infinite or no number at all.
    """
    if y is None:
        return np.full(n_rows, np.nan)
    source = np.asarray(y)
    if source.shape != (n_rows,):
        raise InputError(
            f"{n_rows} targets are needed, one for every row of features, got the shape "
            f"{source.shape}"
        )
    if source.dtype.kind in "biuf":
        with np.errstate(over="ignore"):
            targets = source.astype(np.float64)
    else:
        known = source.dtype.kind in "OSU"
        targets = np.empty(n_rows)
        for row, value in enumerate(source.tolist()):
            number = _number(value) if known else None
            if number is None:
                raise InputError(
                    f"{name_row(row)}: the target {_shown(value)} is not a number; a regression "
                    "predicts numbers, so correct or remove that row, or say where the targets are"
                )
            targets[row] = number
    infinite = np.flatnonzero(np.isinf(targets))
    if len(infinite):
        row = int(infinite[0])
        raise InputError(
            f"{name_row(row)}: the target {_shown(source[row])} is not a finite number; correct or "
            "remove that row"
        )
    targets[np.isnan(targets)] = np.nan  # all of them the same bits, for fingerprints
    return targets


def _number(value: Any) -> float | None:
    """The number that `value` is or spells, NaN for "none", None for anything else."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if value is None or value == "":
        return math.nan
    if isinstance(value, str) and "_" in value:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _shown(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    return repr(value)[:40]


def describe(y: NDArray[Any], n_labels: int) -> dict[str, Any]:
    """What a store records of some rows: rows of every label, or the number of targets and range.

    Returns
    -------
    dict
        label_counts; of targets (float64) also targets: rows, low, high (None without any).
    """
    if y.dtype.kind != "f":
        return {"label_counts": np.bincount(y[y >= 0], minlength=n_labels).tolist()}
    known = y[~np.isnan(y)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (None, None)
    return {"label_counts": [], "targets": {"rows": len(known), "low": low, "high": high}}


def together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The same of all rows, out of what `describe` says of each part."""
    counts = np.array([part["label_counts"] for part in parts], dtype=np.int64)
    out: dict[str, Any] = {"label_counts": counts.sum(axis=0).tolist()}
    if "targets" in parts[0]:
        known = [part["targets"] for part in parts if part["targets"]["rows"]]
        out["targets"] = {
            "rows": sum(part["rows"] for part in known),
            "low": min((part["low"] for part in known), default=None),
            "high": max((part["high"] for part in known), default=None),
        }
    return out


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
        kind = np.float64 if may_need_float64(own.data.dtype) else np.float32
        given = own.data.astype(kind, copy=False)
        bad = _beyond(given, most)
        if bad is not None:
            row = int(np.searchsorted(own.indptr, bad, side="right")) - 1
            raise _not_held(name_row(row), int(own.indices[bad]), own.data[bad])
        data = given if wide and not fits(given) else given.astype(np.float32, copy=False)
        return csr(data, own.indices, own.indptr, own.shape[1])
    try:
        array = np.asarray(X)
        kind = np.float64 if may_need_float64(array.dtype) else np.float32
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
    return dense if wide and not fits(flat) else dense.astype(np.float32, copy=False)


def may_need_float64(dtype: np.dtype) -> bool:
    """Whether float32 may not hold numbers of this type, so that they are taken as float64."""
    return dtype.kind in "fiu" and dtype.itemsize >= 4 and dtype != np.float32


def _beyond(values: NDArray[Any], most: float) -> int | None:
    """The place of the first value that is not finite, or larger than `most`; None without any."""
    for start in range(0, len(values), PART):
        part = values[start : start + PART]
        # What is not a number is neither.
        if not (float(part.max()) <= most and float(part.min()) >= -most):
            return start + int(np.argmax(~(np.abs(part).astype(np.float64) <= most)))
    return None


def fits(X: Any) -> bool:
    """Whether float32 holds all values of an array or sparse array."""
    values = X.data if issparse(X) else np.asarray(X).reshape(-1)
    if not may_need_float64(values.dtype):
        return True
    parts = (values[start : start + PART] for start in range(0, len(values), PART))
    with np.errstate(over="ignore"):
        return all(np.array_equal(part.astype(np.float32), part) for part in parts)


COARSE = 2.0**-18
"""Part of a column's spread that rounding to float32 may be."""

TINY = 2.0**-100
"""Columns of smaller values lose them where float32 multiplies."""


def coarse(X: Any, spread: NDArray[np.float64] | None = None) -> int | None:
    """The first column that float32 would make coarse; None where it holds them well enough.

    That is one far from 0 beside its spread, or of values near the ends of float32's range.

    Parameters
    ----------
    X : array or sparse array (rows, d)
    spread : float64 (d,), optional
        Of the columns in other rows, by `spreads`: a column's spread is at least that.
    """
    values = X.data if issparse(X) else np.asarray(X)
    if values.dtype != np.float64 or not values.size:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        off = np.abs(values.astype(np.float32) - values)
        if issparse(X):
            most, lost = (np.zeros(X.shape[1]) for _ in range(2))
            np.maximum.at(most, X.indices, np.abs(values))
            np.maximum.at(lost, X.indices, off)
            # Zeros beside its values are spread enough.
            own = most
        else:
            lost, most = off.max(axis=0), np.abs(values).max(axis=0)
            own = spreads(values)
        own = own if spread is None else np.maximum(own, spread)
        wrong = (lost > COARSE * own) | (most > 1 / TINY) | ((0 < most) & (most < TINY))
    found = np.flatnonzero(wrong & np.isfinite(most) & (lost > 0))
    return int(found[0]) if len(found) else None


def spreads(X: NDArray[Any]) -> NDArray[np.float64]:
    """Standard deviations of dense columns (d,); of constant ones the largest absolute value."""
    most = np.abs(X).max(axis=0).astype(np.float64)
    spread = X.std(axis=0, dtype=np.float64)
    return np.asarray(np.where(spread > 2.0**-40 * most, spread, most))


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


def plain_label(value: Any) -> Label | None:
    """Return what a label is: an int or float if it reads as a number, a str, or None if missing.

    1, 1.0, "1", "+1" and True are one label.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value == "":
        return None
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    try:
        number = float(value)
    except ValueError:
        return str(value)
    except TypeError:
        raise InputError(f"{value!r} is not a label: labels are numbers or texts.") from None
    if isinstance(value, str) and (not math.isfinite(number) or "_" in value):
        return value
    if math.isnan(number):
        return None
    # An integer comes back as it was: float() would round a long one.
    if isinstance(value, int):
        return int(value)
    if math.isinf(number):
        raise InputError(f"{value!r} is not a label: labels are finite numbers or texts.")
    return int(number) if number.is_integer() else number
