"""Edits of a data set: rows to remove, add, relabel or reweight, and the files that list them."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.layout import Features, stack_rows
from bigscreen.data.limits import check_regular
from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.fleet.memory import usable_memory
from bigscreen.numerics.rows import FloatArray

NO_ROWS = np.empty(0, np.int64)
"""Row numbers of an empty set of rows."""


@dataclass(frozen=True)
class Edits:
    """Edits of a data set, by its rows' numbers in the source.

    Parameters
    ----------
    remove : int64 (k,)
        Rows to remove.
    relabel : (int64 (k,), labels)
        Rows and their new labels.
    reweight : (int64 (k,), float64 (k,))
        Rows and their new weights.
    add : Rows or None
        New rows, prepared in the same way as the data.
    """

    remove: NDArray[np.int64] = field(default_factory=lambda: NO_ROWS)
    relabel: tuple[NDArray[np.int64], Sequence[Any]] = (NO_ROWS, ())
    reweight: tuple[NDArray[np.int64], FloatArray] = (NO_ROWS, np.empty(0))
    add: Rows | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows of each kind of edit; JSON-able."""
        return {
            "removed": len(self.remove),
            "relabelled": len(self.relabel[0]),
            "reweighted": len(self.reweight[0]),
            "added": 0 if self.add is None else self.add.n_rows,
        }


@dataclass(frozen=True)
class Changes:
    """The edited rows, before and after the edits; a weight of 0 means that a row is absent.

    Parameters
    ----------
    X : (k, d)
        Features of the edited rows; added rows come last.
    numbers : int64 (k,)
        Row numbers in the source; added rows continue from the largest.
    places : int64 (k,)
        The positions of the rows in the data; -1 for added rows.
    codes, weights : (before, after)
        Label codes int32 and weights float64, (k,) each.
    removed : bool (k,)
        Whether each row is removed (a row that is given the weight 0 stays).
    """

    X: Features
    numbers: NDArray[np.int64]
    places: NDArray[np.int64]
    codes: tuple[NDArray[np.int32], NDArray[np.int32]]
    weights: tuple[FloatArray, FloatArray]
    removed: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.numbers)


def find_changes(data: Rows, edits: Edits) -> Changes:
    """Look up the rows that are edited, and check the edits.

    Raises
    ------
    InputError
        If a number is no row, a row is named twice or by contradicting edits, a label is unknown, a
        weight is negative, or the added rows do not fit the data.
    """
    named = {"remove": edits.remove, "relabel": edits.relabel[0], "reweight": edits.reweight[0]}
    for what, ids in named.items():
        values, times = np.unique(ids, return_counts=True)
        if np.any(times > 1):
            raise InputError(f"{what} names row {values[np.argmax(times)]} twice; name it once")
    both = np.intersect1d(edits.remove, np.concatenate([edits.relabel[0], edits.reweight[0]]))
    if len(both):
        raise InputError(
            f"row {both[0]} is removed and changed at once; leave it out of one of the two"
        )
    numbers = np.unique(np.concatenate(list(named.values())).astype(np.int64))
    places, top = places_of(data, numbers)
    if not len(numbers) and edits.add is None:
        raise InputError("there is nothing to amend: name rows to remove, to change or to add")
    before, weights = labels_and_weights(data, places)
    codes, after = before.copy(), weights.copy()
    after[np.searchsorted(numbers, edits.remove)] = 0.0
    codes[np.searchsorted(numbers, edits.relabel[0])] = _parse_labels(data, edits.relabel)
    after[np.searchsorted(numbers, edits.reweight[0])] = _parse_weights(edits.reweight)
    X = data.rows(places)
    if edits.add is not None:
        more = edits.add
        check_fit(data, more)
        m = more.n_rows
        X = stack_rows(data.is_sparse, [X, more.X(0, m)])
        entering = more.y(0, m).astype(np.int32)
        if more.labels != data.labels:
            entering = _parse_labels(data, (np.arange(m), [more.labels[c] for c in entering]))
        numbers = np.concatenate([numbers, np.arange(top + 1, top + 1 + m)])
        places = np.concatenate([places, np.full(m, -1)])
        before = np.concatenate([before, entering])
        codes = np.concatenate([codes, entering])
        weights = np.concatenate([weights, np.zeros(m)])
        after = np.concatenate([after, more.weights(0, m)])
    removed = np.isin(numbers, edits.remove)
    return Changes(X, numbers, places, (before, codes), (weights, after), removed)


def labels_and_weights(
    data: Rows, places: NDArray[np.int64]
) -> tuple[NDArray[np.int32], FloatArray]:
    """Label codes (k,) and weights (k,) of the rows at these positions, in the order of ``places``.

    Each chunk of the data is read once.
    """
    codes, weights = np.empty(len(places), np.int32), np.empty(len(places))
    order = np.argsort(places, kind="stable")
    chunks, firsts = np.unique(places[order] // data.chunk_rows, return_index=True)
    for k, own in zip(chunks.tolist(), np.split(order, firsts[1:]), strict=False):
        start, stop = data.chunk(k)
        codes[own] = data.y(start, stop)[places[own] - start]
        weights[own] = data.weights(start, stop)[places[own] - start]
    return codes, weights


def check_fit(data: Rows, more: Rows) -> None:
    """Refuse to add rows (``more``) that were prepared unlike the data, or lack a label."""
    if more.n_features != data.n_features:
        raise InputError(
            f"the rows to add have {more.n_features} features and the data has {data.n_features}; "
            "ingest them with --like the store"
        )
    if more.preparation.features_fingerprint != data.preparation.features_fingerprint:
        raise InputError(
            "the rows to add were scaled or encoded otherwise than the data; ingest them with "
            "--like the store"
        )
    if more.n_unlabelled:
        raise InputError(
            f"{more.n_unlabelled} of the rows to add have no label, or one that the model does not "
            "know; give each one of its own"
        )


def places_of(data: Rows, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """The positions of the rows with these numbers (ascending), and the largest number of any row.

    Raises
    ------
    InputError
        If no row has one of the numbers.
    """
    places, top = np.full(len(numbers), -1, np.int64), -1
    for start, stop in map(data.chunk, range(data.n_chunks)):
        ids = data.row_ids(start, stop)
        top = max(top, int(ids.max(initial=-1)))
        if len(numbers):
            at = np.minimum(np.searchsorted(numbers, ids), len(numbers) - 1)
            own = np.flatnonzero(numbers[at] == ids)
            places[at[own]] = start + own
    lost = np.flatnonzero(places < 0)
    if len(lost):
        raise InputError(
            f"row {numbers[lost[0]]} is not in {data.path or 'the data'}; rows are named by their "
            "numbers in the source, as `bigscreen rows` lists them"
        )
    return places, top


def _parse_labels(
    data: Rows, relabel: tuple[NDArray[np.int64], Sequence[Any]]
) -> NDArray[np.int32]:
    """Codes of the new labels of relabelled rows (k,); ``relabel``: (row numbers, labels).

    Raises InputError if the data has no such label.
    """
    known = {str(label): code for code, label in enumerate(data.labels)}
    given = [str(label) for label in relabel[1]]
    # (A number may be written as 1, 1.0 or +1.)
    numeric = {float(label): k for k, label in enumerate(data.labels) if _is_number(label)}
    codes = []
    for row, label in zip(relabel[0], given, strict=True):
        code = known.get(label)
        if code is None and _is_number(label):
            code = numeric.get(float(label))
        if code is None:
            raise InputError(
                f"row {row} is to have the label {_short(label)}, which is none of {data.labels}"
            )
        codes.append(code)
    return np.array(codes, np.int32)


def _is_number(text: Any) -> bool:
    """Whether ``float(text)`` is defined."""
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return True


def _parse_weights(reweight: tuple[NDArray[np.int64], FloatArray]) -> FloatArray:
    """The new weights of reweighted rows, float64 (k,); ``reweight``: (row numbers, weights).

    Raises InputError for a weight that is negative or not finite.
    """
    weights = np.asarray(reweight[1], dtype=np.float64)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise InputError(
            f"row {reweight[0][wrong[0]]} is to have the weight {weights[wrong[0]]}; weights are "
            "finite and not negative"
        )
    return weights


# -- files ---------------------------------------------------------------------------------------
def read_rows(path: str | os.PathLike[str]) -> NDArray[np.int64]:
    """Read row numbers, int64, from a text file: one a line, or the column ``row`` of a table.

    The table is what `bigscreen rows` writes.
    """
    return _parse_row_numbers(path, _table(path, 1)[0])


def read_labels(path: str | os.PathLike[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Read row numbers and labels from a file of two columns, with or without a header.

    The header is ``row,label``.
    """
    rows, labels = _table(path, 2)
    return _parse_row_numbers(path, rows), labels


def read_weights(path: str | os.PathLike[str]) -> tuple[NDArray[np.int64], FloatArray]:
    """Read row numbers and weights from a file of two columns, with or without a header.

    The header is ``row,weight``.
    """
    rows, weights = _table(path, 2)
    numbers = _parse_row_numbers(path, rows)
    for number, text in zip(numbers, weights, strict=True):
        if not (text.isascii() and "_" not in text and _is_number(text)):
            raise InputError(
                f"{os.fspath(path)}: row {number} has the weight {_short(text)}, no number"
            )
    return numbers, np.array([float(text) for text in weights])


def _table(path: str | os.PathLike[str], width: int) -> list[list[str]]:
    """Read the first ``width`` columns of the CSV or TSV file at ``path``, as lists of texts.

    If the file has a header, the column ``row`` comes first, whatever its place in the file.
    """
    name, text = os.fspath(path), _text(path)
    delimiter = "\t" if Path(path).suffix.lower() == ".tsv" else ","
    reader = csv.reader(text.splitlines(), delimiter=delimiter)
    columns: list[int] | None = None
    found: list[list[str]] = [[] for _ in range(width)]
    try:
        for line in filter(None, reader):
            if columns is None:
                columns = list(range(width))
                if not line[0].strip().lstrip("+-").isdigit():
                    columns = _named_columns(name, line, width)
                    continue
            if len(columns) < width or len(line) <= max(columns):
                raise InputError(f"{name}, line {reader.line_num}: {width} columns are needed")
            for k, column in enumerate(columns):
                found[k].append(line[column].strip())
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num}: {error}") from error
    return found


def _named_columns(path: str, header: list[str], width: int) -> list[int]:
    """Find ``width`` columns by a file's header: first the column ``row``, then the first others.

    Returns their positions. ``path`` is named in the error if there is no column ``row``.
    """
    names = [name.strip().lower() for name in header]
    if "row" not in names:
        raise InputError(
            f"{path} begins with {_short(header[0])}: give row numbers, or a header with a column "
            "row"
        )
    row = names.index("row")
    return [row, *(k for k in range(len(names)) if k != row)][:width]


def _text(path: str | os.PathLike[str]) -> str:
    """Read a text file that fits in memory; a byte order mark is left out."""
    name = os.fspath(path)
    check_regular(path)
    try:
        # (A byte of the file takes up to 64 bytes: a line "1" becomes a list with a string.)
        if 64 * Path(path).stat().st_size > usable_memory():
            raise InputError(
                f"{name} is too large for a file that names rows: each row is named once at most"
            )
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name} cannot be read as text: {error}") from error


def _parse_row_numbers(path: str | os.PathLike[str], texts: list[str]) -> NDArray[np.int64]:
    """Parse the texts of a file's cells as row numbers, int64 (k,).

    ``path`` is named in errors. Raises InputError for a text that is no whole number from 0.
    """
    for text in texts:
        # (str.isdigit alone accepts digits of other scripts, and numbers of any length. int64
        # holds every number of 18 digits.)
        digits = text.isascii() and text.isdigit() and len(text.lstrip("0")) <= 18
        if not digits:
            raise InputError(
                f"{os.fspath(path)}: {_short(text)} is no row number, a whole number from 0"
            )
    return np.array(list(map(int, texts)), np.int64)


def _short(text: str) -> str:
    """A text from a file in quotes, shortened if it is long."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
