"""Reader of svmlight / LIBSVM text: "label index:value index:value ... # comment"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import pyarrow
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigscreen.errors import InputError, NoRows
from bigscreen.files.remote import Place, as_path
from bigscreen.fleet.protocol import Each
from bigscreen.intake.readers import base
from bigscreen.intake.readers.base import (
    Block,
    Piece,
    Reader,
    RowLines,
    Source,
    decode,
    name_lines,
    read_line_pieces,
    too_long_error,
    try_parse,
)
from bigscreen.intake.readers.categories import parse_labels, try_numbers
from bigscreen.intake.readers.text import parse_finite
from bigscreen.numerics.rows import njit

MAX_INDEX = 2**31 - 1
"""Largest column index that is accepted in a file, as indices are stored as int32."""

# A token between blanks, and an index (refused if it is negative).
_TOKEN = re.compile(rb"\S+")
_INDEX = re.compile(r"-?\d{1,18}", re.ASCII)

_POSITION, _LINE, _ROW, _ENTRIES, _LOWEST, _HIGHEST = range(6)
"""Places in the array `state` of `_parse_lines`."""


@njit(cache=True, nogil=True)
def _is_blank(byte: int) -> bool:
    """Whether a byte is white space within a line, as for bytes.split()."""
    return byte == 32 or (byte >= 9 and byte <= 13 and byte != 10)


@njit(cache=True, nogil=True)
def _ends_token(byte: int) -> bool:
    """Whether a byte ends a token: white space, line end or comment."""
    return _is_blank(byte) or byte == 10 or byte == 35


class LineArrays(NamedTuple):
    """Output of `_parse_lines`: texts of labels and values, concatenated; line numbers; indices.

    Attributes
    ----------
    labels, values : uint8 array
        The bytes of the labels of all rows, and of the values of all entries.
    label_ends, value_ends : int64 array
        Bounds of the texts: text k lies between entries k and k + 1.
    lines : int64 array
        Line number of each row.
    indptr, indices
        As for a CSR matrix; the indices are those in the file.
    """

    labels: NDArray[np.uint8]
    label_ends: NDArray[np.int64]
    values: NDArray[np.uint8]
    value_ends: NDArray[np.int64]
    lines: NDArray[np.int64]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]


@njit(cache=True, nogil=True)
def _copy_token(
    buf: NDArray[np.uint8], i: int, out: NDArray[np.uint8], ends: NDArray[np.int64], k: int
) -> int:
    """Copy the token at `i` to `out` as its k-th text; return the position after the token.

    Parameters
    ----------
    buf : uint8 array
        The text of the file.
    i : int
        Position in `buf` at which the token begins.
    out : uint8 array
        Texts so far, one after the other.
    ends : int64 array
        Text k begins at ``ends[k]`` of `out`; ``ends[k + 1]`` is set.
    k : int
        Number of the text.
    """
    to = ends[k]
    while not _ends_token(buf[i]):
        out[to] = buf[i]
        to += 1
        i += 1
    ends[k + 1] = to
    return i


@njit(cache=True, nogil=True)
def _parse_lines(
    buf: NDArray[np.uint8], state: NDArray[np.int64], smallest: int, out: LineArrays
) -> bool:
    """Parse lines until the end (return True) or an invalid line (return False, at its start).

    Parameters
    ----------
    buf : uint8 array
        Whole lines of svmlight text.
    state : int64 array (6,)
        Position in `buf`, line number, rows, entries, smallest and largest index; updated.
    smallest : int
        Smallest accepted index.
    out : LineArrays
        Filled with the rows.
    """
    labels, label_ends, values, value_ends, lines, indptr, indices = out
    n = len(buf)
    i, line, row, entries = state[0], state[1], state[2], state[3]
    lowest, highest = state[4], state[5]
    plain = True
    while i < n:
        begin = i
        first_entry = entries
        while _is_blank(buf[i]):
            i += 1
        if buf[i] != 10 and buf[i] != 35:
            stop = _copy_token(buf, i, labels, label_ends, row)
            for k in range(i, stop):  # a label with ":" or "," is not one label
                plain = plain and buf[k] != 58 and buf[k] != 44
            i = stop
            previous = smallest - 1
            while plain:
                while _is_blank(buf[i]):
                    i += 1
                if buf[i] == 10 or buf[i] == 35:
                    break
                # "qid:" begins a token that is skipped.
                if buf[i] == 113 and buf[i + 1] == 105 and buf[i + 2] == 100 and buf[i + 3] == 58:
                    while not _ends_token(buf[i]):
                        i += 1
                    continue
                index: Any = np.int64(0)
                start = i
                while buf[i] >= 48 and buf[i] <= 57 and i < start + 11:
                    index = index * 10 + buf[i] - 48
                    i += 1
                if buf[i] != 58 or i == start or index <= previous or index > MAX_INDEX:
                    plain = False
                    break
                i = _copy_token(buf, i + 1, values, value_ends, entries)
                indices[entries] = index
                entries += 1
                previous = index
            if not plain:
                i = begin
                entries = first_entry
                break
            if entries > first_entry:
                lowest = min(lowest, np.int64(indices[first_entry]))
                highest = max(highest, np.int64(indices[entries - 1]))
            lines[row] = line
            row += 1
            indptr[row] = entries
        while buf[i] != 10:
            i += 1
        i += 1
        line += 1
    state[0], state[1], state[2], state[3] = i, line, row, entries
    state[4], state[5] = lowest, highest
    return plain


def _as_arrow_texts(content: NDArray[np.uint8], ends: NDArray[np.int64], kind: Any) -> Any:
    """Return concatenated texts as an Arrow array of the type `kind`.

    Text k lies between the positions ``ends[k]`` and ``ends[k + 1]`` of `content`.
    """
    buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(content)]
    return pyarrow.Array.from_buffers(kind, len(ends) - 1, buffers)


class ParsedLines(NamedTuple):
    """Lines of an svmlight file, parsed without knowing the lines before.

    Attributes
    ----------
    lines : RowLines
        Line number of each row.
    text_lines : int
        Number of lines, with blank lines and comments.
    begun : int
        Bytes read of the line after them.
    arrays : tuple
        Values, indices as written, and indptr of a CSR matrix.
    labels : array (rows,)
        Floats, or an object array if a label is a text or missing.
    lowest, highest : int
        Smallest and largest index; `MAX_INDEX` + 1 and -1 if there are no entries.
    """

    lines: RowLines
    text_lines: int
    begun: int
    arrays: tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int64]]
    labels: NDArray[Any]
    lowest: int
    highest: int


class SvmlightReader(Reader):
    """Reads svmlight text, plain or compressed.

    Parameters
    ----------
    path : str or Path
    zero_based : bool or "auto", default="auto"
        Whether the first column has index 0 or 1. "auto": 0 if index 0 occurs anywhere.

    Attributes
    ----------
    min_index, max_index : int
        Smallest and largest index read so far, as written in the file; max_index is -1 if there
        are no entries.

    Notes
    -----
    With "auto" the base is known only after the last row. So the columns of the blocks are the
    indices as written, for each `zero_based`; subtract `index_base()` after the last row. Comments,
    qid: tokens and blank lines are ignored; a label alone is a row of zeros. Skipped rows are
    parsed, because their indices count.
    """

    sparse = True

    def __init__(self, path: str | Place, *, zero_based: bool | Literal["auto"] = "auto") -> None:
        """Open the file once, to check that it can be read and whether it is compressed."""
        super().__init__()
        self.path, self.zero_based = as_path(path), zero_based
        self._restart()
        with Source(path) as source:
            self._progress, self.anywhere = source.progress(), not source.compressed

    def _restart(self) -> None:
        """Forget the smallest and the largest index of the rows read so far."""
        self.min_index, self.max_index = MAX_INDEX + 1, -1

    def index_base(self) -> int:
        """Return the index of the first column, 0 or 1; with "auto" valid after the last row."""
        if self.zero_based == "auto":
            return 0 if self.min_index == 0 else 1
        return 0 if self.zero_based else 1

    def progress(self) -> tuple[int, int]:
        """Return the bytes of the file on disk that were read so far, and its size."""
        return self._progress

    def blocks(self, skip_rows: int = 0, each: Each = map) -> Iterator[Block]:
        """Yield the rows from number `skip_rows` on, in blocks.

        `each` applies the parser to pieces of the file, in their order; it has the arguments of
        `map`. A piece with an error is parsed again here, so that the error names the line.

        Raises
        ------
        InputError
            Naming file and line, for the first line that is not svmlight.
        """
        self._restart()
        first_row, line = 0, 1
        with Source(self.path) as source:
            parse = partial(try_parse, partial(self._parse_piece, line=0))
            pieces = read_line_pieces(source, piece_bytes=self.piece_bytes)
            for piece, parsed in each(parse, pieces):
                self._progress = piece.progress
                if parsed is None:
                    parsed = self._parse_piece(piece, line)
                else:
                    parsed.lines.before += line
                line += parsed.text_lines
                rows = len(parsed.lines)
                if rows:
                    block = self._make_block(parsed, first_row)
                    if first_row + rows > skip_rows:
                        skip = max(skip_rows - first_row, 0)
                        rest = block.take(np.arange(skip, rows)) if skip else block
                        yield replace(rest, first_row=first_row + skip)
                    first_row += rows
                if parsed.begun > base.MAX_RECORD_BYTES:
                    raise too_long_error(self.path, line)
        if first_row == 0:
            raise NoRows(f"{self.path} holds no row: there are only comments in it.")
        self.n_features = max(self.max_index + 1 - self.index_base(), 0)

    def _parse_piece(self, piece: Piece, line: int) -> ParsedLines:
        """Parse a piece of the file; its first line has the number `line`.

        Raises
        ------
        InputError
            Naming the first line that is not svmlight.
        """
        text, begun = piece.read()
        buf = np.frombuffer(text, np.uint8)
        most_rows, most_entries = text.count(b"\n"), text.count(b":")
        out = LineArrays(
            labels=np.empty(len(text), np.uint8),
            label_ends=np.zeros(most_rows + 1, np.int64),
            values=np.empty(len(text), np.uint8),
            value_ends=np.zeros(most_entries + 1, np.int64),
            lines=np.empty(most_rows, np.int64),
            indptr=np.zeros(most_rows + 1, np.int64),
            indices=np.empty(most_entries, np.int32),
        )
        smallest = 1 if self.zero_based is False else 0
        state = np.array([0, line, 0, 0, MAX_INDEX + 1, -1], np.int64)
        if not _parse_lines(buf, state, smallest, out):
            self._raise_error(text, state, smallest)
        rows, entries = int(state[_ROW]), int(state[_ENTRIES])
        lines, indptr = RowLines(out.lines[:rows]), out.indptr[: rows + 1]
        values = self._parse_values(out, entries, lines)
        labels = _as_arrow_texts(out.labels, out.label_ends[: rows + 1], pyarrow.large_binary())
        return ParsedLines(
            lines=lines,
            text_lines=most_rows,
            begun=begun,
            arrays=(values, out.indices[:entries], indptr),
            labels=parse_labels(labels, name_lines(self.path, lines)),
            lowest=int(state[_LOWEST]),
            highest=int(state[_HIGHEST]),
        )

    def _parse_values(self, out: LineArrays, entries: int, lines: RowLines) -> NDArray[np.float64]:
        """Return the values of the first `entries` entries in `out`, float64 (entries,).

        Raises
        ------
        InputError
            For a value that is not a finite number; `lines` says in which line it is.
        """
        texts = out.values, out.value_ends[: entries + 1]
        numbers = try_numbers(_as_arrow_texts(*texts, pyarrow.large_utf8()))  # (numbers are ASCII)
        if numbers is not None:
            values: NDArray[np.float64] = numbers.to_numpy(zero_copy_only=False)
            if np.isfinite(values).all():
                return values
        values = np.empty(entries)
        for k, text in enumerate(_as_arrow_texts(*texts, pyarrow.large_binary()).to_pylist()):
            try:
                values[k] = parse_finite(decode(text), "")
            except InputError:
                row = int(np.searchsorted(out.indptr[: len(lines) + 1], k, side="right")) - 1
                place = f"{self.path}, line {lines[row]}, index {out.indices[k]}"
                parse_finite(decode(text), place)
        return values

    def _make_block(self, parsed: ParsedLines, first_row: int) -> Block:
        """Return parsed rows as a block, as wide as the largest index of all rows so far.

        `first_row` is the number of its first row.
        """
        self.min_index = min(self.min_index, parsed.lowest)
        self.max_index = max(self.max_index, parsed.highest)
        X = csr_array(parsed.arrays, shape=(len(parsed.lines), self.max_index + 1))
        where = name_lines(self.path, parsed.lines)
        return Block(X, parsed.labels, None, first_row, where)

    def _raise_error(self, text: bytes, state: NDArray[np.int64], smallest: int) -> NoReturn:
        """Raise InputError that explains why a line of `text` is not svmlight.

        `state` (see `_parse_lines`) holds the position and number of the line; `smallest` is the
        smallest accepted index.
        """
        begin, line = int(state[0]), int(state[1])
        stop = text.index(b"\n", begin)
        # A generator: a list of tokens would take many times the memory of the line.
        tokens = (match[0] for match in _TOKEN.finditer(text[begin:stop].split(b"#", 1)[0]))
        place = f"{self.path}, line {line}"
        label = decode(next(tokens))
        if ":" in label:
            raise InputError(f"{place}: the line begins with {label[:40]!r}, not with a label.")
        if "," in label:
            raise InputError(
                f"{place}: {label[:40]!r} is several labels; give every row exactly one."
            )
        previous = smallest - 1
        for token in map(decode, tokens):
            index_text, colon, value_text = token.partition(":")
            if index_text == "qid":
                continue
            if not (colon and _INDEX.fullmatch(index_text)):
                break
            index = int(index_text)
            if index == 0 and smallest == 1:
                raise InputError(f"{place}: index 0 in a 1-based file; read it as 0-based.")
            if index < 0 or index > MAX_INDEX:
                raise InputError(f"{place}: index {index} is outside 0 to {MAX_INDEX}.")
            if index <= previous:
                raise InputError(
                    f"{place}: index {index} follows index {previous}; the indices of a row must "
                    "ascend without duplicates."
                )
            parse_finite(value_text, f"{place}, index {index}")
            previous = index
        raise InputError(f"{place}: {token[:40]!r} is not index:value.")
