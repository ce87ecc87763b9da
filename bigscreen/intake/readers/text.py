"""Delimited text: pyarrow parses it; this module adds line numbers, odd quotes and blanks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.csv
from numpy.typing import NDArray

from bigscreen.data.missing import MISSING_TEXTS
from bigscreen.data.preparation import describe_column
from bigscreen.data.texts import parse_number
from bigscreen.errors import InputError, MissingValue, reason_of
from bigscreen.files.remote import Place
from bigscreen.intake.readers import base
from bigscreen.intake.readers.base import RowLines, Source, decode, read_line_pieces, too_long_error

NEWLINE, RETURN, SPACE, QUOTE = b'\n\r "'
"""The bytes of these characters."""


def missing_value_error(place: str) -> InputError:
    """Return the error for a missing value at `place`, if missing values are not allowed."""
    return MissingValue.at(
        place,
        "fill it in, say what stands for missing numbers (`impute='median'`; a missing text is "
        "then a category of its own), or leave their rows out (`drop_missing`)",
    )


def not_a_truth_error(text: str, place: str) -> InputError:
    """Return the error for a text among truth values that is neither true nor false.

    `place` names the field: file, line and column.
    """
    return InputError(
        f"{place}: {text[:40]!r} stands among truth values and is neither true nor false; correct "
        "it, say that it means a missing value (`missing`), or that the column is `categorical`."
    )


def parse_finite(text: str, place: str) -> float:
    """Return the finite number that `text` holds, or raise InputError naming `place`."""
    value = parse_number(text)
    if value is not None and np.isfinite(value):
        return value
    if text in MISSING_TEXTS and value is None:
        raise missing_value_error(place)
    kind = "a number" if value is None else "a finite number"
    raise InputError(f"{place}: {text[:40]!r} is not {kind}; correct it or remove the row.")


@dataclass(frozen=True)
class TextLayout:
    """Layout of a delimited text file: columns, names, delimiter, and where its rows begin.

    Attributes
    ----------
    columns : int
        Number of fields in each row.
    names : list of str or None
        Names of the columns.
    delimiter : str
        The character between fields; " " stands for any run of spaces and tabs.
    arff : bool
        Whether quotes, escapes and comments follow ARFF: fields in single or double quotes, a
        backslash before a quote within a field, % before a comment.
    body_start, body_line : int
        Byte (after a byte order mark) and line (from 1) at which the rows begin.
    decimal : {".", ","} or None
        The decimal mark, if the other mark may separate thousands; None: a point, and no
        thousands separators.
    n_blank : int
        Number of leading columns whose name is empty in the file.
    """

    columns: int
    names: list[str] | None
    delimiter: str
    arff: bool = False
    body_start: int = 0
    body_line: int = 1
    decimal: str | None = None
    n_blank: int = 0


class Records(NamedTuple):
    """The complete records of a text, and the incomplete record at its end.

    A record is a row; it takes several lines if a quoted field contains newlines.

    Attributes
    ----------
    text : bytes
        The records, in a form that pyarrow reads; there may be blank lines between them.
    line : int
        The line in which the first record begins.
    rest : bytes
        The last record, if it does not end in this text.
    next_line : int
        The line in which `rest` begins.
    begins : int64 array or None
        The line in which each record begins; None: each line that is not blank is a record.
    """

    text: bytes
    line: int
    rest: bytes
    next_line: int
    begins: NDArray[np.int64] | None = None

    @property
    def is_blank(self) -> bool:
        """Whether there is no record: the text has only white space."""
        return not self.text or self.text.isspace()

    def lines(self, rows: int | None = None) -> NDArray[np.int64]:
        """Return the line in which each record begins, int64 (records,).

        `rows` is the number of records, blank lines included, if it is known: if it equals the
        number of lines, each line is a record, and the text is not searched.
        """
        if self.begins is not None:
            return self.begins
        if rows == self.next_line - self.line:
            return np.arange(self.line, self.next_line)
        ends = np.flatnonzero(np.frombuffer(self.text, np.uint8) == NEWLINE)
        return self.line + _drop_blank_lines(self.text, ends, np.arange(len(ends)))


def split_records(path: Place, layout: TextLayout, text: bytes, line: int) -> Records:
    """Split lines into complete records; the first line, number `line`, begins a record.

    Parameters
    ----------
    path : Place
        Path of the file, for errors.
    layout : TextLayout
        Delimiter and quotes of the file.
    text : bytes
        Whole lines.
    line : int
        Number of the first line.

    Raises
    ------
    InputError
        If text follows a closing quote.
    """
    text = _to_csv(text, layout)
    if b'"' not in text:
        return Records(text, line, b"", line + text.count(b"\n"))
    quotes = _find_quotes(text, layout)
    if quotes is None and layout.delimiter != " ":
        text = _strip_blanks_at_quotes(text, layout)
        quotes = _find_quotes(text, layout)
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE)
    if quotes is not None:
        ends_record = np.searchsorted(quotes, ends) % 2 == 0
    else:
        ends_record = _find_record_ends(path, layout, text, line)
    at = np.flatnonzero(ends_record)
    next_line = int(at[-1]) + 1 if len(at) else 0
    cut = int(ends[next_line - 1]) + 1 if next_line else 0
    begins = _drop_blank_lines(text, ends, np.concatenate([[0], at[:-1] + 1])[: len(at)])
    return Records(text[:cut], line, text[cut:], next_line + line, begins + line)


def _drop_blank_lines(
    text: bytes, ends: NDArray[np.int64], lines: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the given lines that are not empty, int64.

    Parameters
    ----------
    text : bytes
        All lines.
    ends : int array
        Position of each newline in the text.
    lines : int array
        Line numbers, from 0.
    """
    buf = np.frombuffer(text, np.uint8)
    begins = np.concatenate([[0], ends + 1])[lines]
    size = ends[lines] - begins
    holds = (size > 1) | ((size == 1) & (buf[begins] != RETURN))
    return np.asarray(lines[holds], np.int64)


def _find_quotes(text: bytes, layout: TextLayout) -> NDArray[np.int64] | None:
    """Return the positions of all quotes in a text, int64, or None.

    None is returned unless the quotes alternately open and close fields. A doubled quote within a
    field counts as one that closes and one that opens.
    """
    buf, delimiter = np.frombuffer(text, np.uint8), ord(layout.delimiter)
    quotes = np.flatnonzero(buf == QUOTE)
    opening, closing = quotes[::2], quotes[1::2]
    before = buf[np.maximum(opening - 1, 0)]
    after = buf[np.minimum(closing + 1, len(buf) - 1)]
    opens = (opening == 0) | (before == delimiter) | (before == NEWLINE) | (before == QUOTE)
    closes = (after == delimiter) | (after == NEWLINE) | (after == RETURN) | (after == QUOTE)
    # A quote that follows a quote must be its double, not the first of the next field.
    opens[1:] &= (before[1:] != QUOTE) | (opening[1:] == closing[: len(opening) - 1] + 1)
    return quotes if opens.all() and closes.all() else None


def _strip_blanks_at_quotes(text: bytes, layout: TextLayout) -> bytes:
    """Return the text without blanks between delimiters and quoted fields."""
    mark = re.escape(layout.delimiter.encode())
    blanks = rb"[ \t]*" if layout.delimiter != "\t" else b" *"
    field = rb"(?m)(^|" + mark + rb")" + blanks + rb"(" + _QUOTED + rb")" + blanks
    return re.sub(field, rb"\1\2", text)


def _find_record_ends(path: Place, layout: TextLayout, text: bytes, line: int) -> NDArray[np.bool_]:
    """Return for each line of `text` whether a record ends there, if unquoted fields have quotes.

    `line` is the number of the first line, for errors; `layout` has the delimiter.

    Returns
    -------
    bool array (lines,)

    Raises
    ------
    InputError
        If text follows a closing quote.
    """
    mark = layout.delimiter.encode()
    field = re.compile(rb"(?m)(^|" + re.escape(mark) + rb")" + _QUOTED)

    def blot(match: re.Match[bytes]) -> bytes:
        """Return a quoted field with x for each character, so that it contains no newline."""
        if text[match.end() : match.end() + 1] not in (mark, b"\n", b"\r", b""):
            start = match.start()
            before = field.sub(rb"\1", text[text.rfind(b"\n", 0, start) + 1 : start] + match[1])
            raise InputError(
                f"{path}, line {line + text.count(NEWLINE, 0, match.end())}, "
                f"{describe_column(before.count(mark))}: text follows a closing "
                "quote; a quote within a quoted field must be doubled or escaped."
            )
        return match[1] + b"x" * (len(match[0]) - len(match[1]))

    blotted = np.frombuffer(field.sub(blot, text), np.uint8)
    return np.asarray(blotted[np.frombuffer(text, np.uint8) == NEWLINE] == NEWLINE)


# -- text that pyarrow cannot read unchanged -------------------------------------------------------
# Patterns: a carriage return within a line, a quoted field (see below), a run of blanks, a comment
# of ARFF, and a quoted field of ARFF.
_LONE_RETURN = re.compile(rb"\r(?!\n)")
_QUOTED = rb'"[^"]*(?:""[^"]*)*(?:"|\Z)'
"""Matches a quoted field, even one that does not end in the text."""
_BLANKS = re.compile(rb"(?m)((?:^|(?<=[ \t]))" + _QUOTED + rb")|[ \t]*(\r?\n)[ \t]*|[ \t]+")
_ARFF_COMMENT = re.compile(rb"(?m)^[ \t]*%.*$")
_ARFF_FIELD = re.compile(
    rb"""(?m)(^|[, \t])[ \t]*(?:'((?:[^'\\\n]|\\.)*)'|"((?:[^"\\\n]|\\.)*)")(?=[, \t]|\r?$)"""
)


def _to_csv(text: bytes, layout: TextLayout) -> bytes:
    """Return lines of the given layout as CSV in UTF-8, with quotes directly behind delimiters.

    Carriage returns within a line become blanks, comments of ARFF are removed, and runs of blanks
    become one if they separate fields.
    """
    text = _as_utf8(text)
    if b"\r" in text and text.count(b"\r") != text.count(b"\r\n"):
        text = _LONE_RETURN.sub(b" ", text)
    if layout.arff:
        text = _ARFF_COMMENT.sub(b"", text) if b"%" in text else text
        if b"'" in text or b'"' in text:
            text = _ARFF_FIELD.sub(_requote, text)
    if layout.delimiter == " ":
        return _collapse_blanks(text)
    return text


def _as_utf8(text: bytes) -> bytes:
    """Return lines as UTF-8; lines that are not UTF-8 are decoded as Latin-1."""
    try:
        if not text.isascii():
            text.decode()
    except UnicodeDecodeError:
        return b"\n".join(decode(line).encode() for line in text.split(b"\n"))
    return text


def _requote(match: re.Match[bytes]) -> bytes:
    """Return a quoted ARFF field, matched by `_ARFF_FIELD`, with the quotes of CSV."""
    content = match[2] if match[2] is not None else match[3]
    content = re.sub(rb"\\(.)", rb"\1", content).replace(b'"', b'""')
    return b'%b"%b"' % (match[1], content)


def _collapse_blanks(text: bytes) -> bytes:
    """Return lines with one space for each run of spaces and tabs, and no spaces at the ends."""
    if b'"' in text:
        return _BLANKS.sub(lambda m: m[1] or (b"\n" if m[2] else b" "), text).lstrip(b" ")
    text = text.replace(b"\r\n", b"\n").replace(b"\t", b" ")
    while b"  " in text:
        text = text.replace(b"  ", b" ")
    return text.replace(b"\n ", b"\n").replace(b" \n", b"\n").lstrip(b" ")


# -- fields ----------------------------------------------------------------------------------------
@dataclass
class Fields:
    """Consecutive rows of a text file as columns of an Arrow table.

    Attributes
    ----------
    path : Place
        The file, for errors.
    layout : TextLayout
        Number, names and delimiter of the columns.
    table : pyarrow.Table
        Columns are named by their positions in the file.
    lines : RowLines
        The line in which each row begins.
    """

    path: Place
    layout: TextLayout
    table: Any
    lines: RowLines

    def after(self, rows: int) -> Fields:
        """Return the fields without the first `rows` rows."""
        if not rows:
            return self
        return Fields(self.path, self.layout, self.table.slice(rows), self.lines.after(rows))

    def column(self, f: int) -> Any:
        """Return the fields of column `f` (its position in the file) as one Arrow array."""
        column = self.table.column(str(f))
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def places(self, f: int) -> Callable[[int], str]:
        """Return a function that names the field of the i-th row in column `f`, for errors."""
        return name_fields(self.path, self.layout, self.lines, f)


def name_fields(path: Place, layout: TextLayout, lines: RowLines, f: int) -> Callable[[int], str]:
    """Return a function of i that names the field of the i-th row in column `f`, for errors.

    `lines` holds the line number of each row of the file at `path`, and `layout` the column names.
    """
    return partial(_name_field, path, lines, describe_column(f, layout.names))


def _name_field(path: Place, lines: RowLines, column: str, row: int) -> str:
    """Return the place of a field: file, line and `column` (its name or position, as a text)."""
    return f"{path}, line {lines[row]}, {column}"


class WrongType(Exception):
    """Raised if a field does not have the requested type."""


def read_fields(
    path: Place,
    layout: TextLayout,
    found: Records,
    types: dict[int, Any],
    nulls: Iterable[str] = (),
) -> Fields:
    """Parse records with pyarrow, and return the columns in `types`.

    Parameters
    ----------
    path : Place
        Path of the file, for errors.
    layout : TextLayout
        Number, names and delimiter of the columns.
    found : Records
        The records to parse.
    types : dict of int to pyarrow.DataType
        The type of each column to read. Texts are never null.
    nulls : iterable of str
        Texts that are null in number columns.

    Raises
    ------
    WrongType
        If a field does not have the requested type.
    InputError
        Naming file and line, if a row has a wrong number of fields.
    """
    names = [str(f) for f in range(layout.columns)]
    blank: list[int] = []
    odd: list[tuple[int, int]] = []

    def take_blank_lines(row: Any) -> str:
        """Skip a row if it is blank; else note its number of fields, and let pyarrow fail."""
        if not row.text.strip():
            blank.append(row.number - 1)
            return "skip"
        odd.append((row.number - 1, row.actual_columns))
        return "error"

    try:
        table = pyarrow.csv.read_csv(
            pyarrow.BufferReader(found.text),
            pyarrow.csv.ReadOptions(
                use_threads=False, block_size=len(found.text) + 1, column_names=names
            ),
            pyarrow.csv.ParseOptions(
                delimiter=layout.delimiter,
                newlines_in_values=True,
                invalid_row_handler=take_blank_lines,
            ),
            pyarrow.csv.ConvertOptions(
                include_columns=[str(f) for f in types],
                column_types={str(f): kind for f, kind in types.items()},
                null_values=[*nulls],
                decimal_point=layout.decimal or ".",
            ),
        )
    except pyarrow.ArrowInvalid as error:
        if "conversion error" in str(error):
            raise WrongType from None
        if not odd:
            raise InputError(f"{path}, line {found.line}: {reason_of(error)}.") from None
        row, count = odd[-1]
        raise InputError(
            f"{path}, line {found.lines()[row]}: {count} fields where {layout.columns} are "
            "expected; mend the row, or name the `delimiter` if it is another."
        ) from None
    lines = np.delete(found.lines(table.num_rows + len(blank)), blank)
    if len(lines) != table.num_rows:
        raise InputError(
            f"{path}, lines {found.line} to {found.next_line - 1}: {len(lines)} rows are read as "
            f"{table.num_rows}; check the line ends and the quotes."
        )
    return Fields(path, layout, table, RowLines(lines))


class FilePosition:
    """Position in a delimited file: the current line, and the record that has begun there.

    Parameters
    ----------
    path : Place
        Path of the file, for errors.
    layout : TextLayout
        Says in which line the rows begin.

    Attributes
    ----------
    line : int
        Number of the current line.
    rest : bytes
        The beginning of a record that the text read so far does not end.
    """

    def __init__(self, path: Place, layout: TextLayout) -> None:
        """Begin at the first line of the rows."""
        self._path, self.line, self.rest = path, layout.body_line, b""

    def take(self, rest: bytes, line: int, begun: int) -> None:
        """Move to `line`, where the record `rest` begins; `begun` bytes of a line follow it.

        Raises
        ------
        InputError
            If the record that has begun is too long.
        """
        self.line, self.rest = line, rest
        if len(rest) + begun > base.MAX_RECORD_BYTES:
            raise too_long_error(self._path, self.line)

    def finish(self) -> None:
        """Raise InputError if the last record of the file does not end."""
        if self.rest.strip():
            raise InputError(
                f"{self._path}, line {self.line}: a quoted field is opened and never closed."
            )


TYPE_SAMPLE_BYTES = 1 << 20
"""Detect the types of a text table's columns from at most this many first bytes, an eighth of what
is read at a time: it takes 10 ms."""


def read_first_fields(source: Source, layout: TextLayout, most: int | None = None) -> Fields | None:
    """Return the first rows of a delimited file as texts; None if the file has no row.

    Parameters
    ----------
    source : Source
        The file, opened anew.
    layout : TextLayout
        Number, names and delimiter of the columns, and where the rows begin.
    most : int, optional
        Return the rows that end within the first ``most`` bytes, or if none does, those of the
        first piece of the file that has a whole row. Default: all rows of that piece.

    Raises
    ------
    InputError
        If text follows a closing quote, a row has a wrong number of fields, or a quote is never
        closed.
    """
    reached = FilePosition(source.path, layout)
    texts = dict.fromkeys(range(layout.columns), pyarrow.utf8())
    for piece in read_line_pieces(source, layout.body_start):
        text, begun = piece.read()
        text = reached.rest + text
        cut = 0 if most is None or len(text) <= most else text.rfind(b"\n", 0, most) + 1
        for part in [text[:cut], text] if cut else [text]:
            found = split_records(source.path, layout, part, reached.line)
            if not found.is_blank:
                fields = read_fields(source.path, layout, found, texts)
                if len(fields.lines):
                    return fields
        reached.take(found.rest, found.next_line, begun)
    reached.finish()
    return None
