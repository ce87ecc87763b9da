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

from bigscreen.errors import InputError
from bigscreen.store.layout import Label


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
