"""Tables: rows of fields between commas, tabs, semicolons, bars or spaces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.store.readers.base import Block, Source, line_places
from bigscreen.store.readers.categories import Categories, Encoder, Labels
from bigscreen.store.readers.dialect import find_layout
from bigscreen.store.readers.fields import Fields, Layout, read_fields
from bigscreen.store.readers.numbers import (
    MISSING,
    exact_number,
    fill_numbers,
    finite_number,
    mark_numbers,
)

LABEL_NAMES = ("label", "class", "target", "y")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")

Column = str | int


@dataclass(frozen=True)
class Columns:
    """What each column of a file is: positions of the label, the weight and the features."""

    label: int | None
    weight: int | None
    features: list[int]

    @staticmethod
    def choose(
        path: str | Path,
        count: int,
        names: list[str] | None,
        label: Column | Literal[False] | None,
        weight: Column | None,
        drop: Sequence[Column],
    ) -> Columns:
        """Return the choice; a label of None is a column with a usual name, or the last one."""
        if label is False:
            at = None
        elif label is None:
            lower = [name.lower() for name in names or []]
            usual = (lower.index(name) for name in LABEL_NAMES if name in lower)
            at = next(usual, count - 1)
        else:
            at = find_column(path, count, names, label)
        weight_at = None if weight is None else find_column(path, count, names, weight)
        out = [at, weight_at] + [find_column(path, count, names, column) for column in drop]
        features = [f for f in range(count) if f not in out]
        if not features:
            raise InputError(
                f"{path}: of its {count} column(s) none is left as a feature; check the delimiter "
                "and which columns are the label, the weight and dropped."
            )
        if at is not None and at in out[1:]:
            raise InputError(f"{path}: the label's column cannot be the weight or be dropped.")
        return Columns(at, weight_at, features)


def find_column(path: str | Path, count: int, names: list[str] | None, column: Column) -> int:
    """Return the position of a column given by its name, or its position (from 0, or from -1)."""
    if isinstance(column, str):
        if names and column in names:
            return names.index(column)
        if not re.fullmatch(r"-?\d+", column):
            known = f"its columns are {', '.join(names[:20])}" if names else "it has no header"
            raise InputError(f"{path} has no column {column!r}: {known}.")
    at = int(column)
    if not -count <= at < count:
        raise InputError(f"{path} has no column {at}: its columns are 0 to {count - 1}.")
    return at % count


class DelimitedReader:
    """Reads rows of fields whose layout and columns are known: see `TableReader`.

    Parameters
    ----------
    path : str or Path
    layout : Layout
    columns : Columns
    categories : mapping of int to list of str or None
        The categorical columns of X; None for categories that are to be learnt.
    closed : bool, default=False
        Whether a text that is not among given categories is an error.
    """

    sparse = False

    def __init__(
        self,
        path: str | Path,
        layout: Layout,
        columns: Columns,
        categories: Mapping[int, list[str] | None],
        closed: bool = False,
    ) -> None:
        self.path, self.layout, self.columns = Path(path), layout, columns
        self.n_features: int | None = len(columns.features)
        names = layout.names
        self.names: list[str] | None = [names[f] for f in columns.features] if names else None
        self._known, self._closed = dict(categories), closed
        self._restart()
        with Source(path) as self._source:
            pass

    def _restart(self) -> None:
        self._coders = {j: Categories(known, self._closed) for j, known in self._known.items()}
        self.categories = {j: coder.names for j, coder in self._coders.items()}
        self.unseen = {j: 0 for j, known in self._known.items() if known is not None}

    def progress(self) -> tuple[int, int]:
        """Bytes read and bytes in all, of the file as it lies on disk."""
        return self._source.progress()

    def blocks(self, skip_rows: int = 0) -> Iterator[Block]:
        """Yield the rows from number `skip_rows` on; see `Reader.blocks`.

        Of skipped rows only the categories are read, so that codes do not depend on skipping.

        Raises
        ------
        InputError
            Naming file, line and column, for whatever does not fit.
        """
        self._restart()
        labels = Labels()
        row = 0
        with Source(self.path) as self._source:
            for fields in read_fields(self._source, self.layout):
                codes = self._codes(fields)
                stop = row + len(fields.lines)
                if stop > skip_rows:
                    skip = max(skip_rows - row, 0)
                    yield self._block(
                        fields.after(skip),
                        {j: of_column[skip:] for j, of_column in codes.items()},
                        labels,
                        row + skip,
                    )
                row = stop
        if row == 0:
            raise InputError(f"{self.path} has no row after its header.")

    def _codes(self, fields: Fields) -> dict[int, NDArray[np.int32]]:
        codes = {}
        for j, coder in self._coders.items():
            f = self.columns.features[j]
            codes[j] = coder.encode(*fields.column(f), _places(fields, f))
            if j in self.unseen:
                self.unseen[j] = coder.unseen
        return codes

    def _block(
        self, fields: Fields, codes: dict[int, NDArray[np.int32]], labels: Labels, first_row: int
    ) -> Block:
        columns = np.array(self.columns.features)
        columns[list(codes)] = -1
        X = np.empty((len(fields.lines), len(columns)))
        _fill(fields, columns, X)
        for j, of_column in codes.items():
            X[:, j] = of_column
        y = weight = None
        if self.columns.label is not None:
            f = self.columns.label
            y = labels.read(*fields.column(f), _places(fields, f))
        if self.columns.weight is not None:
            f = self.columns.weight
            weights = np.empty((len(X), 1))
            _fill(fields, np.array([f]), weights)
            weight = check_weights(weights[:, 0], _places(fields, f))
        return Block(X, y, weight, first_row, line_places(self.path, fields.lines))


def check_weights(weight: NDArray[np.float64], where: Callable[[int], str]) -> NDArray[np.float64]:
    """Return the weights, or raise InputError naming the first that is negative."""
    if len(bad := np.flatnonzero(weight < 0)):
        raise InputError(f"{where(int(bad[0]))}: the weight is negative; weights are 0 or more.")
    return weight


def _places(fields: Fields, f: int) -> Callable[[int], str]:
    return lambda row: fields.place(row, f)


def _fill(fields: Fields, columns: NDArray[np.int64], out: NDArray[np.float64]) -> None:
    """Parse numbers into `out`: plain ones in the compiled loop, any other one by one."""
    arrays = fields.buf, fields.starts, fields.ends, columns, out
    row, j = fill_numbers(*arrays, 0, 0)
    while row < len(out):
        f = int(columns[j])
        out[row, j] = finite_number(fields.text(row, f), fields.place(row, f))
        row, j = fill_numbers(*arrays, row, j + 1)


class TableReader(DelimitedReader):
    """Reads CSV, TSV and space separated tables, plain or compressed.

    Parameters
    ----------
    path : str or Path
    delimiter : str, optional
        One character; " " is any run of spaces and tabs. Default: found from the first lines.
    header : bool, optional
        Whether the first row holds names. Default: found; see `find_layout`.
    label : str, int, False or None
        Name or position of the label's column; False: there is none. Default: the column named
        label, class, target or y if there is a header with one of these, else the last column.
    weight : str or int, optional
        Column of sample weights.
    drop : sequence of str or int, optional
        Columns to leave out.
    categorical : sequence of str or int, optional
        Columns whose values are categories even where they read as numbers. A column of texts
        is one without being named; a column of texts AND numbers must be named.
    categories : mapping of int to list of str, optional
        Categories from an earlier store, for columns of X: these columns and no others are
        categorical, and a value not among them has code -1 and is counted in `unseen`.

    Notes
    -----
    Quoted fields as in RFC 4180. "", "?" and "NA" are missing values, and errors.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        delimiter: str | None = None,
        header: bool | None = None,
        label: Column | Literal[False] | None = None,
        weight: Column | None = None,
        drop: Sequence[Column] = (),
        categorical: Sequence[Column] = (),
        categories: Mapping[int, list[str]] | None = None,
    ) -> None:
        asked = [c for c in (label, weight, *drop, *categorical) if isinstance(c, str)]
        layout = find_layout(path, delimiter, header, asked)
        count, names = layout.columns, layout.names
        columns = Columns.choose(path, count, names, label, weight, drop)
        known: dict[int, list[str] | None]
        if categories is None:
            named = [find_column(path, count, names, column) for column in categorical]
            with Source(path) as source:
                fields = next(read_fields(source, layout), None)
            known = {
                j: None
                for j, f in enumerate(columns.features)
                if f in named or (fields is not None and _is_text(fields, f))
            }
        else:
            known = {j: list(of_column) for j, of_column in categories.items()}
        super().__init__(path, layout, columns, known)


def _is_text(fields: Fields, f: int) -> bool:
    """Whether a column holds texts; InputError if it holds both texts and numbers."""
    buf, starts, ends = fields.column(f)
    plain = np.empty(len(starts), bool)
    mark_numbers(buf, starts, ends, np.empty(len(starts)), plain)
    odd = np.flatnonzero(~plain)
    if not len(odd):
        return False
    encoder = Encoder()
    try:
        codes = encoder.encode(buf, starts[odd], ends[odd])
    except InputError as error:
        place = fields.place(int(odd[0]), f)
        raise InputError(f"{place}: {error} in this column; drop it.") from None
    texts = encoder.texts()
    words = [text for text in texts if text not in MISSING and exact_number(text) is None]
    if not words:
        return False
    place = fields.place(int(odd[np.argmax(codes == texts.index(words[0]))]), f)
    if all(_DECIMAL_COMMA.fullmatch(word) for word in words):
        raise InputError(f"{place}: {words[0]!r} has a decimal comma; write a point.")
    if plain.any() or any(exact_number(text) is not None for text in texts):
        raise InputError(
            f"{place}: {words[0][:40]!r} stands among numbers; mend it, or say that the column is "
            "categorical or dropped."
        )
    return True
