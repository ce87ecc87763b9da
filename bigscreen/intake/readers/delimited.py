"""Base of readers of delimited text: pieces are parsed in parallel and joined in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from bigscreen.data.missing import MISSING_TEXTS, Missing
from bigscreen.data.texts import parse_number
from bigscreen.errors import InputError, NoRows
from bigscreen.files.remote import Place, as_path
from bigscreen.fleet.protocol import Each
from bigscreen.intake.readers.base import (
    Block,
    Piece,
    RowLines,
    Source,
    name_lines,
    read_line_pieces,
    try_parse,
)
from bigscreen.intake.readers.categories import (
    NO_MISSING,
    TRUTH,
    Kind,
    parse_labels,
    parse_numbers,
    trim_texts,
)
from bigscreen.intake.readers.columns import ColumnRoles
from bigscreen.intake.readers.decimals import check_points, normalise_numbers
from bigscreen.intake.readers.text import (
    Fields,
    FilePosition,
    Records,
    TextLayout,
    WrongType,
    missing_value_error,
    read_fields,
    split_records,
)
from bigscreen.intake.readers.typed import TypedReader


class DelimitedReader(TypedReader):
    """Reads delimited text (CSV, TSV, ...) whose layout and columns are known.

    Parameters
    ----------
    path : str or Path
    layout : TextLayout
        Number and names of the columns, delimiter, and where the rows begin.
    columns : ColumnRoles
        Positions of label, weight and features.
    kinds : mapping of int to Kind
        Types of features, by position among the features; features without an entry hold numbers.
    missing : Missing
        Marks of missing values, and whether features may be missing.
    closed : bool
        Whether a text that is not among given categories is an error.
    texts_label : bool
        Whether labels are known to be texts; if False they may be numbers or texts.
    """

    def __init__(
        self,
        path: str | Place,
        layout: TextLayout,
        columns: ColumnRoles,
        kinds: Mapping[int, Kind],
        missing: Missing = NO_MISSING,
        texts_label: bool = False,
        closed: bool = False,
    ) -> None:
        """Open the file once, to check that it can be read and whether it is compressed.

        `columns` are the positions of label, weight and features in the file, and `kinds` the types
        of features that do not hold numbers. `texts_label`: labels are known to be texts. `closed`:
        a text that is not among given categories is an error.
        """
        super().__init__(columns, layout.names, kinds, missing, closed)
        self._texts_label = texts_label
        # Numeric marks stay numbers here: a label may equal one.
        texts = (mark for mark in missing.marks if parse_number(mark) is None)
        self._nulls = [*MISSING_TEXTS, *texts]
        self.path, self.layout = as_path(path), layout
        with Source(path) as source:
            self._progress, self.anywhere = source.progress(), not source.compressed

    def progress(self) -> tuple[int, int]:
        """Return the bytes of the file on disk that were read so far, and its size."""
        return self._progress

    def blocks(self, skip_rows: int = 0, each: Each = map) -> Iterator[Block]:
        """Yield the rows from number `skip_rows` on, in blocks.

        `each` applies the parser to pieces of the file, in their order; it has the arguments of
        `map`. A piece whose parse alone fails is parsed again here, after all earlier pieces. The
        categories of skipped rows are read, so that codes do not depend on skipping.

        Raises
        ------
        InputError
            Naming file, line and column, for the first invalid field.
        """
        self._reset_encoders()
        self._progress = 0, 0
        row, reached = 0, FilePosition(self.path, self.layout)
        with Source(self.path) as source:
            pieces = read_line_pieces(source, self.layout.body_start, self.piece_bytes)
            items = ((piece, row < skip_rows) for piece in pieces)
            for (piece, _), parsed in each(partial(try_parse, self._parse_alone), items):
                self._progress = piece.progress
                if reached.rest or parsed is None:
                    text, begun = piece.read()
                    skip = max(skip_rows - row, 0)
                    parsed = self._parse(reached.rest + text, begun, reached.line, skip)
                else:
                    parsed.shift_lines(reached.line)
                reached.take(parsed.rest, parsed.line, parsed.begun)
                block = self._make_block(parsed, row)
                row += len(parsed.lines)
                if block is not None:
                    yield block
            reached.finish()
        if row == 0:
            raise NoRows(f"{self.path} has no row after its header.")

    def _parse_alone(self, item: tuple[Piece, bool]) -> ParsedRows | None:
        """Parse a piece as if a record began at its start, in line 0; None if rows are skipped.

        A piece that does not begin with a record, has an error, or has rows to skip is parsed
        again, after all earlier pieces.

        Parameters
        ----------
        item : (Piece, bool)
            A piece of the file, and whether it may have rows to skip.
        """
        piece, skip = item
        return None if skip else self._parse(*piece.read(), 0, 0)

    def _parse(self, text: bytes, begun: int, line: int, skip: int) -> ParsedRows:
        """Parse a text that begins with a record; of the first `skip` rows only categories.

        Parameters
        ----------
        text : bytes
            Lines of the file.
        begun : int
            Bytes read of the line after them.
        line : int
            Number of the first line.
        skip : int
            Number of first rows to skip.
        """
        found = split_records(self.path, self.layout, text, line)
        out = ParsedRows(RowLines(np.empty(0, np.int64)), found.rest, found.next_line, begun)
        if found.is_blank:
            return out
        with suppress(WrongType):
            if not skip:
                return self._parse_records(out, found, 0, plain=True)
        return self._parse_records(out, found, skip, plain=False)

    def _parse_records(self, out: ParsedRows, found: Records, skip: int, plain: bool) -> ParsedRows:
        """Parse records into `out`, and return it; with ``plain`` pyarrow parses the numbers.

        Parameters
        ----------
        out : ParsedRows
            Its rows are set.
        found : Records
            The records.
        skip : int
            Number of first rows of which only the categories are parsed.
        plain : bool
            Whether numbers are in the form that pyarrow parses; else they are parsed here, from
            texts.

        Raises
        ------
        WrongType
            With ``plain``, if pyarrow does not read some number.
        """
        fields = self._read_columns(found, plain)
        out.lines, out.skipped = fields.lines, min(skip, len(fields.lines))
        for j, coder in self._coders.items():
            column, places = self._column(fields, self.columns.features[j])
            if j in self.hashed:
                column = normalise_numbers(trim_texts(column), self.layout.decimal)
            out.codes[j] = coder.tokens(column, places)
        if out.skipped < len(fields.lines):
            self._parse_columns(out, fields.after(skip), plain)
        return out

    def _read_columns(self, found: Records, plain: bool) -> Fields:
        """Read the needed columns of the records `found`, as Arrow arrays.

        Columns of categories or dates are dictionaries of texts, hashed columns are texts. Other
        columns are float64 (bool for truth values) if `plain`, else texts.
        """
        columns, number = self.columns, pyarrow.float64() if plain else pyarrow.utf8()
        types = dict.fromkeys(columns.features, number)
        for j, f in enumerate(columns.features):
            if j in self.hashed:
                types[f] = pyarrow.utf8()
            elif plain and self._kinds.get(j) == TRUTH:
                types[f] = pyarrow.bool_()
            elif j in self._coders or j in self._dates:
                types[f] = pyarrow.dictionary(pyarrow.int32(), pyarrow.utf8())
        if columns.weight is not None:
            types[columns.weight] = number
        for label in columns.labels:
            if label is not None:
                types[label] = pyarrow.utf8() if self._texts_label else number
        return read_fields(self.path, self.layout, found, types, self._nulls)

    def _column(self, fields: Fields, f: int) -> tuple[Any, Callable[[int], str]]:
        """Return column `f` of `fields` as an Arrow array, and a function that names its rows."""
        return fields.column(f), fields.places(f)

    def _parse_columns(self, out: ParsedRows, fields: Fields, plain: bool) -> None:
        """Set features, labels and weights of `out` from `fields`, without the skipped rows.

        Category codes are left out, as they depend on earlier rows. `plain`: pyarrow has parsed the
        numbers; else they are parsed here, from texts.
        """
        features = self.columns.features
        out.X = X = np.empty((len(fields.lines), len(features)))
        for j, f in enumerate(features):
            if j in self._dates:
                X[:, j] = self._dates[j].encode(*self._column(fields, f))
            elif j not in self._coders:
                X[:, j] = self._parse_numbers(fields, f, self._missing, plain, self._kinds.get(j))
        out.labels = self._stack_labels(partial(self._parse_labels, fields), len(fields.lines))
        if self.columns.weight is not None:
            f = self.columns.weight
            out.weight = check_weights(
                self._parse_numbers(fields, f, NO_MISSING, plain), fields.places(f)
            )

    def _parse_labels(self, fields: Fields, f: int) -> NDArray[Any]:
        """Return the labels in column `f` of `fields`, as `categories.parse_labels` does."""
        column, places = self._column(fields, f)
        if not pyarrow.types.is_floating(column.type):
            column = trim_texts(column)
            check_points(column, self.layout.decimal, places)
            column = normalise_numbers(column, self.layout.decimal)
        return parse_labels(column, places)

    def _parse_numbers(
        self, fields: Fields, f: int, missing: Missing, plain: bool, kind: Kind | None = None
    ) -> NDArray[np.float64]:
        """Return the numbers of column `f`, float64 (rows,); NaN for missing values.

        Parameters
        ----------
        fields : Fields
            The columns of the rows.
        f : int
            Position of the column in the file.
        missing : Missing
            Marks of missing values, and whether values may be missing.
        plain : bool
            Whether pyarrow has parsed the numbers.
        kind : Kind or None
            With `TRUTH` true and false are read as 1 and 0.
        """
        column, places = self._column(fields, f)
        if not plain:
            return parse_numbers(column, places, missing, self.layout.decimal, kind)
        numbers = column.cast(pyarrow.float64())
        values: NDArray[np.float64] = numbers.to_numpy(zero_copy_only=False)
        if column.null_count and not missing.allowed:
            raise missing_value_error(places(int(np.argmax(column.is_null().to_numpy(False)))))
        if np.count_nonzero(~np.isfinite(values)) > column.null_count:
            raise WrongType  # parsed again as text, for the error
        return values

    def _make_block(self, parsed: ParsedRows, row: int) -> Block | None:
        """Return parsed rows as a block, with category codes; None if all rows are skipped.

        `row` is the number of the first row, skipped or not.
        """
        skip, X = parsed.skipped, parsed.X
        self._encode_texts(X, parsed.codes, skip)
        if X is None:
            return None
        where = name_lines(self.path, parsed.lines.after(skip))
        return Block(X, parsed.labels, parsed.weight, row + skip, where)


@dataclass
class ParsedRows:
    """Rows of a delimited file, parsed except for category codes, which need earlier rows.

    Attributes
    ----------
    lines : RowLines
        Line in which each row begins, skipped rows included.
    rest : bytes
        The incomplete record after the rows.
    line : int
        Line in which `rest` begins.
    begun : int
        Bytes read of the line after `rest`.
    codes : dict of int to Tokens or int32 array
        Texts of each categorical feature, and hashes of each hashed feature, for all rows.
    skipped : int
        Number of first rows that are in `codes` only.
    X : float64 array (rows, d), or None
        Features without category codes; None if there are no rows after the skipped ones.
    labels : array (rows,), or (rows, targets), or None
    weight : float64 array (rows,), or None
    """

    lines: RowLines
    rest: bytes
    line: int
    begun: int
    codes: dict[int, Any] = field(default_factory=dict)
    skipped: int = 0
    X: NDArray[np.float64] | None = None
    labels: NDArray[Any] | None = None
    weight: NDArray[np.float64] | None = None

    def shift_lines(self, lines: int) -> None:
        """Add `lines` to all line numbers: the text begins this many lines later."""
        self.lines.before += lines
        self.line += lines


def check_weights(weight: NDArray[np.float64], where: Callable[[int], str]) -> NDArray[np.float64]:
    """Return the weights, (rows,), or raise InputError naming the first negative weight.

    ``where(i)`` names the place of the i-th row.
    """
    if len(bad := np.flatnonzero(weight < 0)):
        raise InputError(f"{where(int(bad[0]))}: the weight is negative; weights are 0 or more.")
    return weight
