"""Rows of fields whose layout and columns are known: pieces parsed anywhere, taken in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.missing import Missing
from bigscreen.data.preparation import Preparation
from bigscreen.errors import InputError, NoRows
from bigscreen.files.remote import Place, located
from bigscreen.fleet.protocol import Each
from bigscreen.intake.readers.base import (
    Block,
    Members,
    Piece,
    RowLines,
    Source,
    joined,
    line_pieces,
    line_places,
)
from bigscreen.intake.readers.categories import (
    AS_LABELS,
    NONE,
    Categories,
    Dates,
    Hashed,
    Labels,
    Seen,
    Typed,
)
from bigscreen.intake.readers.decimals import write_plainly
from bigscreen.intake.readers.text import (
    DROPPED,
    LABEL,
    SPACE,
    Fields,
    Layout,
    Records,
    fill_numbers,
    fill_plain_rows,
    find_fields,
    finite_number,
    missing_value,
)

LABEL_NAMES = ("label", "class", "target", "y")

Column = str | int


@dataclass(frozen=True)
class TableColumns:
    """What each column of a file is: positions of the label, the weight and the features.

    Attributes
    ----------
    label, weight : int or None
    features : list of int
    left_out : list of str
        Columns of the file alone, not of the store that it shall be like; nobody dropped them.
    index_names : list of str
        Columns that are left out because they hold the index of a data frame.
    """

    label: int | None
    weight: int | None
    features: list[int]
    left_out: list[str] = field(default_factory=list)
    index_names: list[str] = field(default_factory=list)

    @staticmethod
    def choose(
        path: str | Place,
        count: int,
        names: list[str] | None,
        label: Column | Literal[False] | None,
        weight: Column | None,
        drop: Sequence[Column],
        columns: Sequence[Column] = (),
        like: Preparation | None = None,
        index: Sequence[int] = (),
    ) -> TableColumns:
        """Return the choice; a label of None is a column with a usual name, or the last one.

        Features are those of ``columns``, or all if there are none, that are nothing else and not
        dropped, in the order of the file. Where the file and the store that it shall be ``like``
        have names, they are the store's columns, wherever the file has them, and a label of None
        is none of them. Columns of an ``index`` are left out unless they are named.

        Raises
        ------
        InputError
            If a column that is named is not there, or none is left as a feature.
        """
        weight_at = None if weight is None else find_column(path, count, names, weight)
        dropped = [find_column(path, count, names, column) for column in drop]
        known = like.names if like is not None and names and not columns else None
        if known is not None and len({*known}) == len(known):
            assert names is not None
            _check_names(path, names, known)
            features = [names.index(name) for name in known]
            others = [f for f in range(count) if f not in {*features, *dropped, weight_at}]
            at = _label_at(path, count, names, label, others, index)
            index = [f for f in others if f in index and f != at]
            left_out = [names[f] for f in others if f != at and f not in index]
            _check_label(path, at, [*features, *dropped, weight_at])
            index_names = [names[f] for f in index]
            return TableColumns(at, weight_at, features, left_out, index_names)
        at = _label_at(path, count, names, label, range(count), index)
        out = [at, weight_at, *dropped]
        kept = [find_column(path, count, names, column) for column in columns]
        index = [f for f in index if f not in {*kept, *out}]
        kept = kept or [f for f in range(count) if f not in index]
        features = [f for f in range(count) if f in kept and f not in out]
        if not features:
            raise InputError(
                f"{path}: of its {count} column(s) none is left as a feature; check the delimiter "
                "and which columns are the label, the weight and dropped."
            )
        _check_label(path, at, out[1:])
        index_names = [names[f] for f in index] if names else []
        return TableColumns(at, weight_at, features, index_names=index_names)


def _label_at(
    path: str | Place,
    count: int,
    names: list[str] | None,
    label: Column | Literal[False] | None,
    among: Sequence[int],
    index: Sequence[int],
) -> int | None:
    """Return the position of the label's column; if nobody names it, one of `among`, or None."""
    if label is False:
        return None
    if label is not None:
        return find_column(path, count, names, label)
    named = {names[f].lower(): f for f in reversed(among) if f not in index} if names else {}
    usual = (named[name] for name in LABEL_NAMES if name in named)
    last = max((f for f in range(count) if f not in index), default=None)
    return next(usual, last if last in among else None)


def _check_label(path: str | Place, at: int | None, others: Sequence[int | None]) -> None:
    """Refuse a label's column that is something else, too."""
    if at is not None and at in others:
        raise InputError(
            f"{path}: the label's column cannot be the weight or a feature, or be dropped."
        )


def _check_names(path: str | Place, names: list[str], known: list[str]) -> None:
    """Refuse a file without a column of the store that it shall be like."""
    missing = [name for name in known if name not in names]
    if missing:
        more = f" (nor {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(
            f"{path} has no column {missing[0]!r}{more}, which the store it shall be like has; its "
            f"columns are {', '.join(names[:20])}."
        )


def find_column(path: str | Place, count: int, names: list[str] | None, column: Column) -> int:
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
    columns : TableColumns
    typed : Typed
        The columns of X that are anything but numbers.
    missing : Missing
        What says that a value is missing, and whether features may be: a number is NaN then, a
        text a category of its own.
    """

    sparse = False

    def __init__(
        self,
        path: str | Place,
        layout: Layout,
        columns: TableColumns,
        typed: Typed,
        missing: Missing = NONE,
    ) -> None:
        self._missing = missing
        # Columns of X that hold nothing but missing values in the first rows.
        self.blank: set[int] = set()
        self.path, self.layout, self.columns = located(path), layout, columns
        self.left_out, self.index_names = columns.left_out, columns.index_names
        self.n_features: int | None = len(columns.features)
        names = layout.names
        self.names: list[str] | None = [names[f] for f in columns.features] if names else None
        self._typed, self.dates, self.hashed = typed, typed.dates, typed.hashed
        self._restart()
        with Source(path) as source:
            self._progress, self.anywhere = (
                source.progress(),
                not source.compressed or source.members,
            )

    def _restart(self) -> None:
        typed, missing = self._typed, self._missing
        self._coders: dict[int, Categories | Hashed] = {
            j: Categories(known, typed.closed, missing) for j, known in typed.categories.items()
        }
        self._coders |= {j: Hashed(bits, missing) for j, bits in typed.hashed.items()}
        self._dates = {j: Dates(form, missing) for j, form in typed.dates.items()}
        self.categories = {j: coder.names for j, coder in self._coders.items()}
        self.unseen = {j: 0 for j, known in typed.categories.items() if known is not None}
        self._progress = 0, 0

    def progress(self) -> tuple[int, int]:
        """Bytes read and bytes in all, of the file as it lies on disk."""
        return self._progress

    def blocks(self, skip_rows: int = 0, each: Each = map) -> Iterator[Block]:
        """Yield the rows from number `skip_rows` on; see `Reader.blocks`.

        Of skipped rows only the categories are read, so that codes do not depend on skipping.

        Raises
        ------
        InputError
            Naming file, line and column, for whatever does not fit.
        """
        self._restart()
        row, seen, records = 0, Seen(), Records(self.path, self.layout)
        with Source(self.path) as source:
            start = self.layout.body_start
            pieces = line_pieces(source, start)
            tries = ((piece, row < skip_rows) for piece in pieces)
            for piece, parsed in joined(source, start, each(self._tried, tries)):
                self._progress = piece.progress
                if records.rest or parsed is None:
                    text, begun = piece.read()
                    skip = max(skip_rows - row, 0)
                    parsed = self._parsed(records.rest + text, begun, records.line, skip)
                else:
                    parsed.move(records.line)
                records.take(parsed.rest, parsed.line, parsed.begun)
                block = self._block(parsed, seen, row)
                row += len(parsed.lines)
                if block is not None:
                    yield block
            records.finish()
        if row == 0:
            raise NoRows(f"{self.path} has no row after its header.")

    def _tried(self, item: tuple[Piece, bool]) -> tuple[Piece, Parsed | None]:
        """A piece, parsed as if it began with a record, in line 0; None where that fails.

        What does not begin with one, has an error, or has rows to `skip`, is parsed again when all
        before it is known.
        """
        piece, skip = item
        if skip and not isinstance(piece.text, Members):
            return piece, None
        piece, text, begun = piece.opened()
        if skip or piece.ends is False:
            return piece, None
        try:
            return piece, self._parsed(text, begun, 0, 0)
        except InputError:
            return piece, None

    def _parsed(self, text: bytes, begun: int, line: int, skip: int) -> Parsed:
        """Parse a text that begins with a record; of `skip` rows the categories alone."""
        if not skip and (plain := self._plain(text, begun, line)) is not None:
            return plain
        split = find_fields(self.path, self.layout, text, line)
        fields, codes = split.fields, {}
        if fields is None:
            return Parsed(RowLines(np.empty(0, np.int64)), split.rest, split.line, begun)
        for j, coder in self._coders.items():
            f = self.columns.features[j]
            read = coder.encode if isinstance(coder, Hashed) else coder.tokens
            codes[j] = read(*fields.column(f), fields.places(f))
        rows = len(fields.lines)
        out = Parsed(fields.lines, split.rest, split.line, begun, codes, min(skip, rows))
        if out.skipped < rows:
            self._fill(out, fields.after(skip))
        return out

    def _plain(self, text: bytes, begun: int, line: int) -> Parsed | None:
        """The rows of a text of nothing but plain numbers; None if it holds anything else."""
        marks, columns = self.layout.marks, self.columns
        typed = bool(self._coders or self._dates) or columns.weight is not None
        if typed or self.layout.decimal or marks.delimiter == SPACE or not text.endswith(b"\n"):
            return None
        places = np.full(self.layout.columns, DROPPED)
        places[columns.features] = np.arange(len(columns.features))
        if columns.label is not None:
            places[columns.label] = LABEL
        rows = text.count(b"\n")
        X, y = np.empty((rows, len(columns.features))), np.empty(rows)
        if fill_plain_rows(np.frombuffer(text, np.uint8), marks, places, X, y) != rows:
            return None
        out = Parsed(RowLines(np.arange(line, line + rows)), b"", line + rows, begun)
        out.X, out.labels = X, None if columns.label is None else Labels.numbers(y)
        return out

    def _fill(self, out: Parsed, fields: Fields) -> None:
        """Parse what does not depend on rows before: all but categories."""
        columns = np.array(self.columns.features)
        columns[[*out.codes, *self._dates]] = -1
        beside = [f for f in (self.columns.label, self.columns.weight) if f is not None]
        numbers = [*columns[columns >= 0].tolist(), *beside]
        write_plainly(fields, numbers, self.layout.decimal)
        out.X = X = np.empty((len(fields.lines), len(columns)))
        _fill(fields, columns, X, self._missing)
        for j, dates in self._dates.items():
            f = self.columns.features[j]
            X[:, j] = dates.encode(*fields.column(f), fields.places(f))
        if self.columns.label is not None:
            f = self.columns.label
            out.labels = Labels(*fields.column(f), fields.places(f))
        if self.columns.weight is not None:
            f = self.columns.weight
            weights = np.empty((len(X), 1))
            _fill(fields, np.array([f]), weights, NONE)
            out.weight = check_weights(weights[:, 0], fields.places(f))

    def _block(self, parsed: Parsed, seen: Seen, row: int) -> Block | None:
        """Give texts the codes that they have in the rows before; `row` is the first one's number.

        Of rows that are all skipped there is no block.
        """
        skip, X = parsed.skipped, parsed.X
        for j, found in parsed.codes.items():
            coder = self._coders[j]
            if isinstance(coder, Categories):
                found = coder.encode(found)
            if j in self.unseen:
                self.unseen[j] = coder.unseen
            if X is not None:
                X[:, j] = found[skip:]
        if X is None:
            return None
        y, labels = None, parsed.labels
        if labels is not None:
            y = labels.values
            if labels.odd is not None:
                seen.add(labels.odd, AS_LABELS)
        where = line_places(self.path, parsed.lines.after(skip))
        return Block(X, y, parsed.weight, row + skip, where)


@dataclass
class Parsed:
    """Rows of a table, parsed as far as that does not depend on the rows before.

    Attributes
    ----------
    lines : RowLines
        Of all rows.
    rest : bytes
        A record that is begun behind them.
    line : int
        Where that begins.
    begun : int
        Bytes read of a line behind it.
    codes : dict of int to Tokens or int32 array
        Of columns of texts, all rows; of hashed ones the codes.
    skipped : int
        Rows of which nothing else is there.
    X : float64 array (rows, d), or None
        All but the categories; None without rows.
    labels : Labels or None
    weight : float64 array (rows,), or None
    """

    lines: RowLines
    rest: bytes
    line: int
    begun: int
    codes: dict[int, Any] = field(default_factory=dict)
    skipped: int = 0
    X: NDArray[np.float64] | None = None
    labels: Labels | None = None
    weight: NDArray[np.float64] | None = None

    def move(self, lines: int) -> None:
        """Count lines as of a text that begins so many lines later."""
        self.lines.before += lines
        self.line += lines


def check_weights(weight: NDArray[np.float64], where: Callable[[int], str]) -> NDArray[np.float64]:
    """Return the weights, or raise InputError naming the first that is negative."""
    if len(bad := np.flatnonzero(weight < 0)):
        raise InputError(f"{where(int(bad[0]))}: the weight is negative; weights are 0 or more.")
    return weight


def _fill(
    fields: Fields, columns: NDArray[np.int64], out: NDArray[np.float64], missing: Missing
) -> None:
    """Parse numbers into `out`: plain ones in the compiled loop, any other one by one."""
    arrays = fields.buf, fields.starts, fields.ends, columns, out
    row, j = fill_numbers(*arrays, 0, 0)
    while row < len(out):
        f = int(columns[j])
        text = fields.text(row, f)
        if text in missing:
            if not missing.allowed:
                raise missing_value(fields.place(row, f))
            out[row, j] = np.nan
        else:
            out[row, j] = finite_number(text, fields.place(row, f))
        row, j = fill_numbers(*arrays, row, j + 1)
