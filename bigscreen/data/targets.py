"""Check features, weights and outcomes (label codes or regression targets) of rows.

Rows have either codes, and then their layout has a list of labels, or targets, and then its labels
are None. The code -1 marks an unlabelled row, the target NaN a row without a target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.data.layout import Features, Label, csr
from bigscreen.errors import InputError


def as_stored(
    y: ArrayLike | None, n_rows: int, labels: Sequence[Label] | None, n_targets: int = 1
) -> NDArray[np.int32] | NDArray[np.float64]:
    """Check outcomes; return codes, int32 (n_rows,), or targets, float64 (n_rows,).

    Outcomes are indices into `labels`; if `labels` is None they are regression targets, float64
    (n_rows, n_targets) if there are several for each row. If ``y`` is None all codes are -1
    (unlabelled), or all targets NaN.

    Raises
    ------
    InputError
        If a code is not an index into `labels` or a target is not finite; the message names the
        row.
    """
    if labels is None and n_targets > 1:
        names = [f"target {j}" for j in range(n_targets)]
        return as_target_columns(y, n_rows, names, lambda row: f"row {row}")
    if labels is None:
        return as_targets(y, n_rows, lambda row: f"row {row}")
    return check_codes(y, n_rows, len(labels))


def check_codes(y: ArrayLike | None, n_rows: int, n_labels: int) -> NDArray[np.int32]:
    """Return label codes as int32 (n_rows,); InputError unless each is in -1..n_labels-1.

    -1 means unlabelled; if ``y`` is None, all are.
    """
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
    """Convert targets to float64 of shape (n_rows,), NaN for a row without a target.

    Parameters
    ----------
    y : array of shape (n_rows,) or None
        Numbers, or texts that spell numbers; None, NaN and the empty text mean "no target".
    n_rows : int
    name_row : callable
        Describes a row, given its position, for the error message.

    Raises
    ------
    InputError
        If the number of targets is not `n_rows`, or a target is infinite or not a number.
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
                    f"{name_row(row)}: the target {_quote(value)} is not a number; a regression "
                    "predicts numbers, so correct or remove that row, or say where the targets are"
                )
            targets[row] = number
    infinite = np.flatnonzero(np.isinf(targets))
    if len(infinite):
        row = int(infinite[0])
        raise InputError(
            f"{name_row(row)}: the target {_quote(source[row])} is not a finite number; correct or "
            "remove that row"
        )
    targets[np.isnan(targets)] = np.nan  # one bit pattern for all NaNs, for fingerprints
    return targets


def as_target_columns(
    y: ArrayLike | None, n_rows: int, names: Sequence[str], name_row: Callable[[int], str]
) -> NDArray[np.float64]:
    """Convert several targets of each row to float64 (n_rows, targets), NaN for a missing target.

    Parameters
    ----------
    y : array of shape (n_rows, targets) or None
        Numbers, or texts that spell numbers; None means that all targets are missing.
    n_rows : int
    names : sequence of str
        The name of each target, for the error message.
    name_row : callable
        Describes a row, given its position, for the error message.

    Raises
    ------
    InputError
        If `y` has another shape, or a target is infinite or not a number.
    """
    shape = (n_rows, len(names))
    if y is None:
        return np.full(shape, np.nan)
    source = np.asarray(y)
    if source.shape != shape:
        found = source.shape[1] if source.ndim == 2 else 1
        raise InputError(
            f"{name_row(0)}: {found} target(s) where every row has {shape[1]} "
            f"({', '.join(names)}); give all of them, in this order, or none"
        )
    columns = []
    for column, name in zip(source.T, names, strict=True):

        def name_cell(row: int, name: str = name) -> str:
            """Describe a row and the target."""
            return f"{name_row(row)}, {name}"

        columns.append(as_targets(column, n_rows, name_cell))
    return np.stack(columns, axis=1)


def _number(value: Any) -> float | None:
    """Convert a target to a number: NaN if it is None or empty, None if it is not a number."""
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


def _quote(value: Any) -> str:
    """Return the `repr` of a value for a message, cut to 40 characters."""
    if isinstance(value, np.generic):
        value = value.item()
    return repr(value)[:40]


def summarise_outcomes(y: NDArray[Any], n_labels: int) -> dict[str, Any]:
    """Summarise outcomes for a store's manifest: counts of labels, or number and range of targets.

    Parameters
    ----------
    y : int codes, or float64 targets, (rows,) or (rows, targets)
        -1 and NaN mark rows without an outcome, which are not counted.
    n_labels : int
        Number of labels, for codes.

    Returns
    -------
    dict
        label_counts; for targets (float64 `y`) also targets, a dict of rows, low and high (None if
        no row has a target); with several targets rows (which have all of them) and each, a list
        with such a dict for each target.
    """
    if y.dtype.kind != "f":
        return {"label_counts": np.bincount(y[y >= 0], minlength=n_labels).tolist()}
    if y.ndim == 2:
        each = [summarise_outcomes(column, 0)["targets"] for column in y.T]
        rows = int(np.count_nonzero(~np.isnan(y).any(axis=1)))
        return {"label_counts": [], "targets": {"rows": rows, "each": each}}
    known = y[~np.isnan(y)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (None, None)
    return {"label_counts": [], "targets": {"rows": len(known), "low": low, "high": high}}


def merge_summaries(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge summaries by `summarise_outcomes` of parts of the rows into a summary of all rows."""
    counts = np.array([part["label_counts"] for part in parts], dtype=np.int64)
    out: dict[str, Any] = {"label_counts": counts.sum(axis=0).tolist()}
    if "targets" in parts[0]:
        out["targets"] = _merge_ranges([part["targets"] for part in parts])
    return out


def _merge_ranges(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge numbers and ranges of targets, as `summarise_outcomes` has them, of parts of rows."""
    rows = sum(part["rows"] for part in parts)
    if "each" in parts[0]:
        columns = zip(*(part["each"] for part in parts), strict=True)
        return {"rows": rows, "each": [_merge_ranges([*column]) for column in columns]}
    known = [part for part in parts if part["rows"]]
    return {
        "rows": rows,
        "low": min((part["low"] for part in known), default=None),
        "high": max((part["high"] for part in known), default=None),
    }


MAX_FLOAT64_FEATURE = 1e150
"""Largest absolute value of a float64 feature that is accepted; squares of larger values may
overflow."""


def as_features(
    X: ArrayLike | csr_array, name_row: Callable[[int], str], wide: bool = False
) -> Features:
    """Check features; return them as stored: C-contiguous, or CSR with sorted distinct indices.

    Parameters
    ----------
    X : array or sparse array of shape (rows, d)
    name_row : callable
        Describes a row, given its position in `X`, for the error message.
    wide : bool
        Keep float64 values if float32 cannot represent all of them exactly; without `wide` the
        result is float32.

    Raises
    ------
    InputError
        If `X` is not a numeric matrix, or a value is not finite or beyond float32's range (with
        ``wide``: beyond 1e150, since squares of larger values may overflow).
    """
    most = MAX_FLOAT64_FEATURE if wide else float(np.finfo(np.float32).max)
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
            raise _range_error(name_row(row), int(own.indices[bad]), own.data[bad])
        data = given if wide and not fits_float32(given) else given.astype(np.float32, copy=False)
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
        raise _range_error(name_row(row), column, array[row, column])
    return dense if wide and not fits_float32(flat) else dense.astype(np.float32, copy=False)


def may_need_float64(dtype: np.dtype) -> bool:
    """Whether numbers of this type may have values that float32 cannot represent exactly."""
    return dtype.kind in "fiu" and dtype.itemsize >= 4 and dtype != np.float32


def _beyond(values: NDArray[Any], most: float) -> int | None:
    """Return the index of the first value that is NaN or beyond +-`most`; None if there is none."""
    for start, part in _pieces(values):
        # (A comparison with NaN is false, so NaNs are found, too.)
        if not (float(part.max()) <= most and float(part.min()) >= -most):
            return start + int(np.argmax(~(np.abs(part).astype(np.float64) <= most)))
    return None


def _pieces(values: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield consecutive slices (start, values) of 2^20 values, to bound temporary arrays."""
    size = 1 << 20
    for start in range(0, len(values), size):
        yield start, values[start : start + size]


def fits_float32(X: Any) -> bool:
    """Whether float32 can represent all values of an array or sparse array exactly."""
    values = X.data if issparse(X) else np.asarray(X).reshape(-1)
    if not may_need_float64(values.dtype):
        return True
    with np.errstate(over="ignore"):
        return all(np.array_equal(part.astype(np.float32), part) for _, part in _pieces(values))


def first_coarse_column(X: Any, spread: NDArray[np.float64] | None = None) -> int | None:
    """Return the first column that needs float64, or None if float32 is accurate enough for all.

    A column needs float64 if rounding to float32 moves a value by more than ``2^-18`` of the
    column's spread, or if its largest value is not in ``2^-100 .. 2^100``: products of its values
    could lose digits or overflow in float32.

    Parameters
    ----------
    X : array or sparse array (rows, d)
    spread : float64 (d,), optional
        Lower bounds on the columns' spreads, from `column_spreads` of other rows.
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
            # A sparse column has zeros, so its spread is of the size of its largest value.
            own = most
        else:
            lost, most = off.max(axis=0), np.abs(values).max(axis=0)
            own = column_spreads(values)
        own = own if spread is None else np.maximum(own, spread)
        extreme = (most > 2.0**100) | ((0 < most) & (most < 2.0**-100))
        wrong = (lost > 2.0**-18 * own) | extreme
    found = np.flatnonzero(wrong & np.isfinite(most) & (lost > 0))
    return int(found[0]) if len(found) else None


def column_spreads(X: NDArray[Any]) -> NDArray[np.float64]:
    """Compute each dense column's standard deviation, (d,); its largest |value| if constant.

    A column counts as constant if its deviation is within 2^-40 of its largest |value|.
    """
    most = np.abs(X).max(axis=0).astype(np.float64)
    spread = X.std(axis=0, dtype=np.float64)
    return np.asarray(np.where(spread > 2.0**-40 * most, spread, most))


def _range_error(row: str, column: int, value: Any) -> InputError:
    """Return the error for a feature value that is not finite or too large.

    ``row`` describes the row in words; ``column`` counts from 0.
    """
    why = "is not a finite number"
    if np.isfinite(value):
        why = f"is too large for {'64' if abs(value) >= MAX_FLOAT64_FEATURE else '32'}-bit floats"
    return InputError(
        f"{row}: the value {value} of feature {column} (from 0) {why}; correct or remove that row"
    )


def check_weights(weights: ArrayLike | None, n_rows: int) -> NDArray[np.float64] | None:
    """Return weights as float64 (n_rows,), or None for None.

    InputError unless they are finite and not negative.
    """
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
    """Normalise a label: an int or float if it reads as a number, else a str; None if missing.

    1, 1.0, "1", "+1" and True are the same label.
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
    # An integer is returned unchanged: float() would round a long one.
    if isinstance(value, int):
        return int(value)
    if math.isinf(number):
        raise InputError(f"{value!r} is not a label: labels are finite numbers or texts.")
    return int(number) if number.is_integer() else number
