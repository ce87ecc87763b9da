"""Rows and fields of delimited text: the compiled loop that finds them, quotes and all."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.missing import MISSING
from bigscreen.errors import InputError
from bigscreen.files.remote import Place
from bigscreen.intake.readers import base
from bigscreen.intake.readers.base import RowLines, Source, decode, line_pieces, too_long
from bigscreen.numerics.rows import njit

TAB, NEWLINE, RETURN, SPACE = 9, 10, 13, 32
WHOLE, RAGGED, BAD_QUOTE = 0, 1, 2


class Marks(NamedTuple):
    """The bytes that a dialect sets fields apart with; a comment of -1 is none."""

    delimiter: int
    quotes: tuple[int, int] = (34, 34)
    escape: int = 34
    comment: int = -1


class Places(NamedTuple):
    """Where fields are: their starts and ends (rows, columns), and the line of each row."""

    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    lines: NDArray[np.int64]


@njit(cache=True, nogil=True)
def split_rows(
    buf: NDArray[np.uint8], marks: Marks, out: Places, line: int
) -> tuple[int, int, int, int, int, bool]:
    """Find the fields of all whole records in `buf`.

    A field that holds escapes has its end negated. Blank lines and lines that begin with
    `comment` are passed over; SPACE as delimiter stands for any run of spaces and tabs. White
    space around a field is no part of it, unless quoted. `line` is the number of the first line.
    Returns rows, bytes consumed, next line, status, fields in the record at fault, any escapes.
    """
    delimiter, quotes, escape, comment = marks
    starts, ends, lines = out
    n = len(buf)
    blanks = delimiter == SPACE
    skip_tabs = delimiter != TAB
    columns = starts.shape[1]
    rows = 0
    escapes = False
    i = 0
    while True:
        begin = i
        first_line = line
        while i < n and (buf[i] == SPACE or buf[i] == RETURN or (skip_tabs and buf[i] == TAB)):
            i += 1
        if i == n:
            return rows, begin, first_line, WHOLE, 0, escapes
        if buf[i] == NEWLINE or buf[i] == comment:
            while i < n and buf[i] != NEWLINE:
                i += 1
            if i == n:
                return rows, begin, first_line, WHOLE, 0, escapes
            i += 1
            line += 1
            continue
        i = begin
        field = 0
        while True:
            while i < n and (buf[i] == SPACE or buf[i] == RETURN or (skip_tabs and buf[i] == TAB)):
                i += 1
            if i == n:
                return rows, begin, first_line, WHOLE, 0, escapes
            if blanks and buf[i] == NEWLINE:
                break
            q = buf[i]
            if q == quotes[0] or q == quotes[1]:
                i += 1
                start = i
                escaped = False
                while i < n:
                    c = buf[i]
                    if c == escape and (c != q or (i + 1 < n and buf[i + 1] == q)):
                        escaped = True
                        i += 1
                        if i == n:
                            break
                        c = buf[i]
                    elif c == q:
                        break
                    if c == NEWLINE:
                        line += 1
                    i += 1
                stop = i
                i += 1
                while i < n and (
                    buf[i] == SPACE or buf[i] == RETURN or (skip_tabs and buf[i] == TAB)
                ):
                    i += 1
                if i >= n:
                    return rows, begin, first_line, WHOLE, 0, escapes
                if buf[i] != NEWLINE:
                    if blanks:
                        i -= 1  # to the blank that ended the field, as after an unquoted one
                    if buf[i] != delimiter and not (blanks and i > stop):
                        return rows, begin, line, BAD_QUOTE, field + 1, escapes
                if escaped:
                    escapes = True
                    stop = -stop
            else:
                start = i
                while buf[i] != NEWLINE and buf[i] != delimiter and not (blanks and buf[i] == TAB):
                    i += 1
                    if i == n:
                        return rows, begin, first_line, WHOLE, 0, escapes
                stop = i
                while stop > start and (
                    buf[stop - 1] == SPACE or buf[stop - 1] == RETURN or buf[stop - 1] == TAB
                ):
                    stop -= 1
            if field < columns:
                starts[rows, field] = start
                ends[rows, field] = stop
            field += 1
            if buf[i] == NEWLINE:
                break
            i += 1
        i += 1
        line += 1
        if field != columns:
            return rows, begin, first_line, RAGGED, field, escapes
        lines[rows] = first_line
        rows += 1


@njit(cache=True, nogil=True)
def unescape(
    buf: NDArray[np.uint8], starts: NDArray[np.int32], ends: NDArray[np.int32], escape: int
) -> None:
    """Drop the escape bytes of the fields whose end is negated, in place."""
    for r in range(starts.shape[0]):
        for f in range(starts.shape[1]):
            if ends[r, f] < 0:
                to = starts[r, f]
                i = to
                while i < -ends[r, f]:
                    if buf[i] == escape:
                        i += 1
                    buf[to] = buf[i]
                    to += 1
                    i += 1
                ends[r, f] = to


@dataclass(frozen=True)
class Layout:
    """How a delimited file is written.

    Attributes
    ----------
    columns : int
        Fields in every row.
    names : list of str or None
        Their names.
    delimiter : int
        The byte between fields; SPACE stands for any run of spaces and tabs.
    quotes : pair of int
        Bytes that open, and close, a quoted field.
    escape : int
        Byte before a quote that is part of a quoted field; in RFC 4180 the quote itself.
    comment : int
        Lines that begin with this byte are no rows; -1: there are none.
    body_start, body_line : int
        Byte (after a byte order mark) and line, from 1, where the rows begin.
    decimal : {".", ","} or None
        What stands before decimals, the other one setting thousands apart; None: a point, and
        nothing sets them apart.
    n_blank : int
        Leading columns whose name is empty in the file.
    """

    columns: int
    names: list[str] | None
    marks: Marks
    body_start: int = 0
    body_line: int = 1
    decimal: str | None = None
    n_blank: int = 0


@dataclass
class Fields:
    """Consecutive rows as fields: positions in `buf`, (rows, columns), and each row's line."""

    path: Place
    layout: Layout
    buf: NDArray[np.uint8]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    lines: RowLines

    def after(self, rows: int) -> Fields:
        """Return the fields without the first `rows` rows."""
        parts = self.starts[rows:], self.ends[rows:], self.lines.after(rows)
        return Fields(self.path, self.layout, self.buf, *parts)

    def column(self, f: int) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]:
        """Return the bytes, starts and ends of a column's fields."""
        starts, ends = self.starts[:, f], self.ends[:, f]
        return self.buf, np.ascontiguousarray(starts), np.ascontiguousarray(ends)

    def text(self, row: int, f: int) -> str:
        """Return one field's text."""
        return decode(self.buf[self.starts[row, f] : self.ends[row, f]].tobytes()).strip()

    def place(self, row: int, f: int) -> str:
        """Name a field for a person."""
        return self.places(f)(row)

    def places(self, f: int) -> Callable[[int], str]:
        """Names a column's field of a row for a person; of all fields it keeps the lines alone."""
        names = self.layout.names
        name = f" ({names[f]!r})" if names else ""
        return partial(_field_place, self.path, self.lines, f"column {f + 1}{name}")


def _field_place(path: Place, lines: RowLines, column: str, row: int) -> str:
    return f"{path}, line {lines[row]}, {column}"


@dataclass
class Split:
    """What a text holds: its whole records, if any, and what stands behind them.

    Attributes
    ----------
    fields : Fields or None
        None: no record is whole.
    rest : bytes
        A record that is begun and does not end.
    line : int
        Number of the line in which that begins.
    """

    fields: Fields | None
    rest: bytes
    line: int


def find_fields(path: Place, layout: Layout, text: bytes, line: int) -> Split:
    """Find the fields of a text that begins with a record, in line `line`.

    Raises
    ------
    InputError
        Naming file and line: a row with another number of fields, a quote that does not close.
    """
    buf = np.frombuffer(bytearray(text), np.uint8)
    # A row takes a newline, and a byte per field: an allocation no input can blow up.
    most = min(int(np.count_nonzero(buf == NEWLINE)), len(buf) // layout.columns) + 1
    starts = np.empty((most, layout.columns), np.int32)
    ends = np.empty((most, layout.columns), np.int32)
    places = Places(starts, ends, np.empty(most, np.int64))
    rows, used, line, status, found, escapes = split_rows(buf, layout.marks, places, line)
    if status == RAGGED:
        raise InputError(
            f"{path}, line {line}: {found} fields where {layout.columns} are expected; mend "
            "the row, or name the `delimiter` if it is another."
        )
    if status == BAD_QUOTE:
        raise InputError(
            f"{path}, line {line}, column {found}: text follows a closing quote; a quote "
            "within a quoted field must be doubled or escaped."
        )
    rest = buf[used:].tobytes()
    if not rows:
        return Split(None, rest, line)
    if escapes:
        unescape(buf, starts[:rows], ends[:rows], layout.marks.escape)
    lines = RowLines(places.lines[:rows])
    fields = Fields(path, layout, buf, starts[:rows], ends[:rows], lines)
    return Split(fields, rest, line)


class Records:
    """What of a delimited file was taken so far: the line reached, and a record that is begun.

    Parameters
    ----------
    path : Place
    layout : Layout
    """

    def __init__(self, path: Place, layout: Layout) -> None:
        self._path, self.line, self.rest = path, layout.body_line, b""

    def take(self, rest: bytes, line: int, begun: int) -> None:
        """Go on behind a piece, where a record is begun, and so many bytes of a line behind it.

        Raises
        ------
        InputError
            If what is begun is too long for a record.
        """
        self.line, self.rest = line, rest
        if len(rest) + begun > base.LONGEST_RECORD:
            raise too_long(self._path, self.line)

    def finish(self) -> None:
        """InputError if a record is begun that does not end."""
        if self.rest.strip():
            raise InputError(
                f"{self._path}, line {self.line}: a quoted field is opened and never closed."
            )


def first_fields(source: Source, layout: Layout) -> Fields | None:
    """The first some thousand rows of a delimited file, None if it has none.

    Raises
    ------
    InputError
        See `find_fields` and `Records`.
    """
    records = Records(source.path, layout)
    for piece in line_pieces(source, layout.body_start, apart=False):
        text, begun = piece.read()
        found = find_fields(source.path, layout, records.rest + text, records.line)
        if found.fields is not None:
            return found.fields
        records.take(found.rest, found.line, begun)
    records.finish()
    return None


_NUMBER = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE
)
_POWERS = np.array([float(f"1e{k}") for k in range(291)])


def exact_number(text: str) -> float | None:
    """Return the number, correctly rounded (perhaps nan or inf), that `text` is, or None."""
    return float(text) if _NUMBER.fullmatch(text) else None


def missing_value(place: str) -> InputError:
    """Return the error of a value that is missing where none may be."""
    return InputError(
        f"{place}: the value is missing; fill it in, say what stands for such values "
        "(`impute='median'`), or leave their rows out (`drop_missing`)."
    )


def finite_number(text: str, place: str) -> float:
    """Return the number that `text` is, or raise InputError naming `place`."""
    value = exact_number(text)
    if value is not None and np.isfinite(value):
        return value
    if text in MISSING and value is None:
        raise missing_value(place)
    kind = "a number" if value is None else "a finite number"
    raise InputError(f"{place}: {text[:40]!r} is not {kind}; correct it or remove the row.")


@njit(cache=True, nogil=True)
def scan_number(buf: NDArray[np.uint8], start: int) -> tuple[float, int]:
    """Read a decimal number at `start`; the byte after it must not be one of a number.

    Returns the value and the position after it, or `start` itself where no plain number stands
    (words, or exponents near the ends of float64's range: those go through `exact_number`).
    18 digits in an int64 times an exact power of ten: correct to an ulp or so of float64, hence
    after rounding to float32.
    """
    i = start
    first = buf[i]
    if first == 43 or first == 45:
        i += 1
    mantissa = np.int64(0)
    exponent = np.int64(0)
    digits = 0
    while True:
        c = np.int64(buf[i]) - 48
        if c < 0 or c > 9:
            break
        if mantissa < 100_000_000_000_000_000:
            mantissa = mantissa * 10 + c
        else:
            exponent += 1
        digits += 1
        i += 1
    if buf[i] == 46:
        i += 1
        while True:
            c = np.int64(buf[i]) - 48
            if c < 0 or c > 9:
                break
            if mantissa < 100_000_000_000_000_000:
                mantissa = mantissa * 10 + c
                exponent -= 1
            digits += 1
            i += 1
    if digits == 0:
        return 0.0, start
    if buf[i] == 101 or buf[i] == 69:
        i += 1
        sign = 1
        if buf[i] == 45:
            sign = -1
            i += 1
        elif buf[i] == 43:
            i += 1
        digits = 0
        shift = np.int64(0)
        while True:
            c = np.int64(buf[i]) - 48
            if c < 0 or c > 9:
                break
            if shift < 100_000:
                shift = shift * 10 + c
            digits += 1
            i += 1
        if digits == 0:
            return 0.0, start
        exponent += sign * shift
    value = float(mantissa)
    if exponent < 0:
        if exponent < -290:
            return 0.0, start
        value /= _POWERS[-exponent]
    elif exponent > 0:
        if exponent > 290:
            return 0.0, start
        value *= _POWERS[exponent]
    if first == 45:
        value = -value
    return value, i


@njit(cache=True, nogil=True)
def fill_numbers(
    buf: NDArray[np.uint8],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    columns: NDArray[np.int64],
    out: NDArray[Any],
    row: int,
    column: int,
) -> tuple[int, int]:
    """Parse fields into out[:, j] from field columns[j] (-1: leave out), from (row, column) on.

    Returns the row and column of the first field that is no plain number, or (len(out), 0).
    """
    for r in range(row, len(out)):
        for j in range(column, len(columns)):
            f = columns[j]
            if f >= 0:
                value, stop = scan_number(buf, starts[r, f])
                if stop != ends[r, f] or stop == starts[r, f]:
                    return r, j
                out[r, j] = value
        column = 0
    return len(out), 0


@njit(cache=True, nogil=True)
def mark_numbers(
    buf: NDArray[np.uint8],
    starts: NDArray[Any],
    ends: NDArray[Any],
    out: NDArray[np.float64],
    plain: NDArray[np.bool_],
) -> None:
    """Parse the tokens that are plain numbers into `out`; `plain` says which are."""
    for r in range(len(starts)):
        value, stop = scan_number(buf, starts[r])
        out[r] = value
        plain[r] = stop == ends[r] and stop != starts[r]


DROPPED, LABEL = -1, -2


@njit(cache=True, nogil=True)
def fill_plain_rows(
    buf: NDArray[np.uint8],
    marks: Marks,
    places: NDArray[np.int64],
    out: NDArray[np.float64],
    labels: NDArray[np.float64],
) -> int:
    """Parse a text of nothing but plain numbers, of which every line is a row, in one go.

    The number of field f goes to out[:, places[f]], or to `labels`, or is DROPPED. Returns the
    rows, or -1 where anything else stands: blanks, quotes, comments, words, empty fields.
    """
    i, row = 0, 0
    while i < len(buf):
        if buf[i] == marks.comment:
            return -1
        for f in range(len(places)):
            to = places[f]
            if to == DROPPED:
                while buf[i] != marks.delimiter and buf[i] != NEWLINE:
                    if buf[i] == marks.quotes[0] or buf[i] == marks.quotes[1]:
                        return -1
                    i += 1
            else:
                value, stop = scan_number(buf, i)
                if stop == i:
                    return -1
                i = stop
                if to == LABEL:
                    labels[row] = value
                else:
                    out[row, to] = value
            if f + 1 < len(places):
                if buf[i] != marks.delimiter:
                    return -1
            else:
                if buf[i] == RETURN:
                    i += 1
                if buf[i] != NEWLINE:
                    return -1
            i += 1
        row += 1
    return row
