"""Turn raw rows given in Python (a table, records or an array) into features."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from bigscreen.data.layout import Features
from bigscreen.data.missing import MISSING_CATEGORY, Missing
from bigscreen.data.preparation import Preparation, describe_column
from bigscreen.data.targets import as_features
from bigscreen.data.texts import (
    array_to_days,
    find_untrue,
    hash_bucket,
    match_truth,
    normalise_for_hash,
    normalise_number,
    parse_days,
    parse_number,
    parse_truth,
    to_days,
)
from bigscreen.errors import InputError

BOOLEANS = {True: ("True", "true", "TRUE", "1"), False: ("False", "false", "FALSE", "0")}
"""Texts that a file may hold for each truth value."""


def prepare_rows(preparation: Preparation, X: Any) -> Features:
    """Encode and scale raw rows, in the form of the source, as the training rows were.

    Parameters
    ----------
    preparation : Preparation
        The encoding and scaling of the training rows.
    X : table, sequence of mappings, mapping of columns, array or sparse array
        Columns of a table (pandas, polars, pyarrow: anything with named columns) and of records are
        looked up by the source's names; further columns are ignored. If the source had no names,
        or X is an array, columns are in the source's order. Categories are matched as texts; an
        unknown category raises a warning and contributes nothing to scores.

    Returns
    -------
    ndarray or csr_array (rows, n_features)
        float32 if it can represent all values exactly, else float64.

    Raises
    ------
    InputError
        If a column or a value is missing, or is not a number although the source had numbers.
    """
    names = preparation.names
    columns = _columns(X, names)
    if columns is not None:
        values = _coded(preparation, columns)
    elif issparse(X):
        values = X
    else:
        values = np.asarray(X)
        if values.ndim != 2:
            raise InputError(
                f"rows must be a table or an array of two dimensions, got {values.ndim}; a single "
                "row x is [x]"
            )
        if preparation.categories or preparation.dates or values.dtype.kind not in "biuf":
            _check_width(preparation, values.shape[1])
            values = _coded(preparation, [values[:, j] for j in range(values.shape[1])])
    width = preparation.n_raw
    if width is not None and not issparse(values):
        _check_width(preparation, values.shape[1])
    if not issparse(values) and values.dtype.kind != "f":
        values = values.astype(np.float64)
    if preparation.missing and not issparse(values):
        holes = preparation.missing_marks.find_marks(values)
        holes[:, [*preparation.categories, *preparation.dates]] = False
        values = np.where(holes, np.nan, values) if holes.any() else values
    rows = preparation.scale(preparation.expand(values))
    return as_features(rows, lambda row: f"row {row}", wide=True)


def is_matrix(X: Any) -> bool:
    """Whether X is a sparse array, or a two-dimensional array of floats."""
    return issparse(X) or (isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind == "f")


def _check_width(preparation: Preparation, width: int) -> None:
    """Raise InputError unless ``width`` is the number of columns that the source had."""
    if preparation.n_raw is not None and width != preparation.n_raw:
        names = preparation.names
        which = f": {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else ""
        raise InputError(
            f"the rows have {width} columns and the source had {preparation.n_raw}{which}"
        )


def _columns(X: Any, names: list[str] | None) -> list[Any] | None:
    """Return the columns called ``names``, or all if None; None if X is no table or records.

    InputError if a column is missing.
    """
    if isinstance(X, Mapping):
        table: Mapping[str, Any] = _Named(X, [*X])
    elif hasattr(X, "columns") and hasattr(X, "__getitem__"):
        named = getattr(X, "column_names", None)  # Arrow's columns are the columns themselves
        table = _Named(X, [*(X.columns if named is None else named)])
    elif isinstance(X, Sequence) and len(X) and isinstance(X[0], Mapping):
        if not all(isinstance(name, str) for name in X[0]):
            X = [_Named(record, [*record]) for record in X]
        known = list(X[0]) if names is None else names
        for row, record in enumerate(X):
            for name in known:
                if name not in record:
                    raise InputError(f"row {row}: there is no {name!r}, which the source had")
        return [[record[name] for record in X] for name in known]
    else:
        return None
    if names is None:
        return [table[name] for name in table]
    missing = [name for name in names if name not in table]
    if missing:
        raise InputError(
            f"the rows have no column {missing[0]!r}"
            + (f" (nor {len(missing) - 1} more)" if len(missing) > 1 else "")
            + f", which the source had; they have {', '.join(map(str, list(table)[:8]))}"
        )
    return [table[name] for name in names]


class _Named(Mapping[str, Any]):
    """View of a table or record with text keys, as a store's column names are texts.

    Parameters
    ----------
    table : data frame, Arrow table or mapping
    names : list
        Names of the table's columns: texts, numbers or tuples.
    """

    def __init__(self, table: Any, names: list[Any]) -> None:
        """Map the text of every column name in ``names`` to the name, by which ``table`` is read.

        ``_texts`` lists the texts of all names if two names have the same text, else it is empty.
        """
        self._table = table
        self._names = {name_text(name): name for name in names}
        self._texts = [*map(name_text, names)] if len(self._names) < len(names) else []

    def __getitem__(self, name: str) -> Any:
        """Return the column called ``name``; InputError if two columns have this name."""
        if self._texts.count(name) > 1:
            raise InputError(f"two columns are named {name!r}; rename one")
        return self._table[self._names[name]]

    def __iter__(self) -> Any:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def name_text(name: Any) -> str:
    """Convert a column name to the text that a store has for it, as Arrow converts pandas names."""
    if isinstance(name, tuple):
        return str(tuple(map(name_text, name)))
    return name.decode() if isinstance(name, bytes) else str(name)


def _coded(preparation: Preparation, columns: Sequence[Any]) -> NDArray[np.float64]:
    """Convert source columns, n_raw arrays (rows,), to numbers (rows, n_raw).

    Categories become their codes, hashed texts their buckets, dates their days.
    """
    _check_width(preparation, len(columns))
    arrays = [np.asarray(column) for column in columns]
    rows = arrays[0].size if arrays else 0
    out = np.empty((rows, len(arrays)))
    for j, values in enumerate(arrays):
        name = describe_column(j, preparation.names)
        if not values.ndim:
            raise InputError(
                f"{name} is a single value; give one row as a list of one record, [{{...}}], or "
                "each column as a list"
            )
        if values.shape != (rows,):
            raise InputError(f"{name} has shape {values.shape}, and others have {rows} rows")
        if j in preparation.hashed:
            out[:, j] = _hashed(values, preparation.hashed[j], preparation.missing_marks)
        elif j in preparation.categories:
            out[:, j] = _codes(values, preparation.categories[j], name, preparation.missing_marks)
        else:
            if j in preparation.dates:
                values = _days(values, preparation.dates[j], name, preparation.missing_marks)
            truths, marks = j in preparation.truths, preparation.missing_marks
            out[:, j] = _numbers(values, name, marks, truths, preparation.decimal)
    return out


def _hashed(values: NDArray[Any], bits: int, missing: Missing) -> NDArray[np.float64]:
    """Return the hash bucket, in 0..2**bits-1, of every value's text, float64 (rows,).

    None, or a text that means "missing" by ``missing``, is hashed as `MISSING_CATEGORY`.
    """
    known: dict[str, int] = {}
    out = np.empty(len(values))
    for row, value in enumerate(values):  # not `tolist()`: a number's text depends on its type
        text = (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).strip()
        text = MISSING_CATEGORY if value is None or text in missing else normalise_for_hash(text)
        if text not in known:
            known[text] = hash_bucket(text, bits)
        out[row] = known[text]
    return out


def _days(values: NDArray[Any], form: str, name: str, missing: Missing) -> NDArray[np.float64]:
    """Convert dates and times, perhaps given as texts, to days, float64 (rows,); NaN if missing.

    ``form``: format of the texts as `strptime` has it, "" for ISO 8601. ``name`` of the column for
    messages.
    """
    if values.dtype.kind in "Mm":
        return array_to_days(values)
    out = np.empty(len(values))
    for row, value in enumerate(values.tolist()):
        try:
            if isinstance(value, (date, time, timedelta)):
                out[row] = to_days(value)
            elif isinstance(value, str):
                text = value.strip()
                out[row] = np.nan if text in missing else parse_days(text, form)
            else:
                out[row] = np.nan if value is None or value in missing else float(value)
        except (TypeError, ValueError) as error:
            how = f"written as {form}" if form else "as ISO 8601 writes it"
            raise InputError(f"row {row}, {name}: {value!r} is no date {how}") from error
    return out


def _numbers(
    values: NDArray[Any], name: str, missing: Missing, truths: bool, decimal: str | None
) -> NDArray[np.float64]:
    """Convert a column to float64 (rows,); NaN if missing.

    ``name`` of the column for messages. ``truths``: the source had truth values, so only 0, 1 and
    texts such as "true" are accepted. ``decimal``: the decimal mark of numbers in texts, as in
    `Preparation`. InputError if a value is not a number, or is missing although
    ``missing`` does not allow it.
    """
    if values.dtype.kind in "biuf":
        numbers = values.astype(np.float64)
    else:
        numbers = np.empty(len(values))
        for row, value in enumerate(values.tolist()):
            if (number := _number(value, missing, truths, decimal)) is None:
                raise InputError(
                    f"row {row}, {name}: {value!r} is "
                    + ("neither true nor false" if truths else "no number")
                    + f", and the source had {'truth values' if truths else 'numbers'} there"
                )
            numbers[row] = number
    holes = np.flatnonzero(np.isnan(numbers))
    if len(holes) and not missing.allowed:
        raise InputError(f"row {holes[0]}, {name}: the value is missing")
    if truths:
        untrue = find_untrue(np.where(missing.find_marks(numbers), np.nan, numbers))
        if untrue is not None:
            raise InputError(
                f"row {untrue}, {name}: {numbers[untrue]:g} is neither true nor false, and the "
                "source had truth values there"
            )
    return numbers


def _number(value: Any, missing: Missing, truths: bool, decimal: str | None) -> float | None:
    """Convert a value to a number as ingest does: NaN if it is missing, None if not a number.

    ``truths``: texts such as "true" are numbers, too (1 and 0). ``decimal``: the decimal mark of
    numbers in texts; with a comma, a point that sets no thousands apart makes none.
    """
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        text = value.strip()
        if text in missing:
            return math.nan
        truth = parse_truth(text) if truths else None
        if truth is not None:
            return float(truth)
        plain = normalise_number(text, decimal)
        return None if decimal == "," and plain == text and "." in text else parse_number(plain)
    try:
        return math.nan if value is None or value in missing else float(value)
    except (TypeError, ValueError):
        return None


def _codes(
    values: NDArray[Any], categories: Sequence[str], name: str, missing: Missing
) -> NDArray[np.float64]:
    """Return the category code of every value, float64 (rows,); -1 for an unknown category.

    ``categories`` in the order of their codes. ``missing`` has the marks that mean "missing";
    ``name`` of the column is for the warning about unknown categories.
    """
    known = {text: code for code, text in enumerate(categories)}
    # Look up each distinct text once, keeping the value's type: a number's text depends on it.
    _, first, places = np.unique(values.astype(str), return_index=True, return_inverse=True)
    codes, unseen = np.empty(len(first)), []
    for kind, row in enumerate(first.tolist()):
        value = values[row]
        value = value.item() if isinstance(value, np.generic) else value
        texts = [*_texts(value, missing), match_truth(str(value).strip(), categories)]
        codes[kind] = next((known[text] for text in texts if text in known), -1)
        if codes[kind] < 0:
            unseen.append((row, value))
    if unseen:
        row, value = min(unseen, key=lambda one: one[0])
        warnings.warn(
            f"{name}: {len(unseen)} values were never seen by the fit and have no part in scores "
            f"(the first is {value!r}, row {row})",
            UserWarning,
            stacklevel=6,
        )
    return codes[places]


def _texts(value: Any, missing: Missing) -> Sequence[str]:
    """Return the texts by which a file may have spelt a value of a categorical column.

    `MISSING_CATEGORY` is one of them if the value is None, NaN or a mark in ``missing``.
    """
    if value is None or value != value or value in missing:
        return (str(value), MISSING_CATEGORY)  # a category may have the very name of a mark
    if isinstance(value, bool):
        return BOOLEANS[value]
    if isinstance(value, bytes):
        return (value.decode(errors="replace").strip(),)
    if isinstance(value, float) and value.is_integer():
        return (str(value), str(int(value)))
    return (str(value).strip(),)
