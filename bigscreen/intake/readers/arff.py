"""Reader of ARFF files: a header that declares attributes, then dense or sparse rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigscreen.errors import InputError, NoRows
from bigscreen.files.remote import Place
from bigscreen.fleet.protocol import Each
from bigscreen.intake.readers import base
from bigscreen.intake.readers.base import (
    Block,
    RowLines,
    Source,
    decode,
    name_lines,
    read_pieces,
    too_long_error,
)
from bigscreen.intake.readers.categories import (
    MAX_CATEGORIES,
    Categories,
    Kind,
    kinds_of_store,
    parse_label,
)
from bigscreen.intake.readers.columns import ColumnOptions, ColumnRoles
from bigscreen.intake.readers.delimited import DelimitedReader, check_weights
from bigscreen.intake.readers.text import TextLayout, parse_finite
from bigscreen.intake.tuning import TUNING

# Patterns: a quoted text, an attribute of the header, a value of a list, an entry of a sparse row.
_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_ATTRIBUTE = re.compile(rf"@attribute\s+({_TEXT}|[^\s{{]+)\s*(.*)", re.IGNORECASE)
# Values include the white space before the comma: excluding it by a lazy match would take time
# that grows with the square of the length.
_VALUE = re.compile(rf"\s*((?:{_TEXT})(?=\s*(?:,|$))|[^,]*)\s*(?:,|$)")
_ENTRY = re.compile(rf"\s*(\d+)\s+((?:{_TEXT})(?=\s*(?:,|$))|[^,]+)\s*(?:,|$)")
_NUMERIC = ("numeric", "real", "integer")
"""Types of attributes that hold numbers."""


@dataclass(frozen=True)
class Header:
    """Header of an ARFF file: the attributes, and where the rows begin.

    Attributes
    ----------
    names : list of str
        Names of the attributes (columns).
    kinds : list of str or list of str
        For each attribute its type in lower case, or the categories of a nominal attribute.
    start, line : int
        Byte and line (from 1) after @data.
    sparse : bool
        Whether the first row is in braces.
    comma : bool
        Whether there is a comma in the first row.
    """

    names: list[str]
    kinds: list[str | list[str]]
    start: int
    line: int
    sparse: bool
    comma: bool


def read_header(path: str | Place) -> Header:
    """Read an ARFF file up to its first row.

    Raises
    ------
    InputError
        Naming file and line, if the header is not valid ARFF.
    """
    names: list[str] = []
    kinds: list[str | list[str]] = []
    start = first_line = 0
    known: set[str] = set()
    with Source(path) as source:
        for line, after, raw in _read_lines(source):
            text = decode(raw).strip()
            place = f"{path}, line {line}"
            if not text or text.startswith("%"):
                continue
            if first_line:
                return Header(names, kinds, start, first_line, text.startswith("{"), "," in text)
            if match := _ATTRIBUTE.fullmatch(text):
                name = _unquote(match[1])
                if name in known:
                    raise InputError(f"{place}: a second attribute is named {name!r}; rename one.")
                known.add(name)
                names.append(name)
                kinds.append(_parse_type(match[2], place))
            elif text.lower().startswith("@data"):
                start, first_line = after, line + 1
            elif not text.lower().startswith("@relation"):
                raise InputError(f"{place}: {text[:40]!r} does not belong in an ARFF header.")
    what = "row after @data" if first_line else "@data line"
    kind = NoRows if first_line else InputError
    raise kind(f"{path} has no {what}: check that it is a whole ARFF file.")


def _read_lines(
    source: Source, piece_bytes: int = TUNING.piece_bytes
) -> Iterator[tuple[int, int, bytes]]:
    """Yield the number of each line (from 1), the byte position after it, and its bytes.

    The file is read in pieces of `piece_bytes`.
    """
    rest, line, after = b"", 1, 0
    for piece in read_pieces(source, piece_bytes):
        *whole, rest = (rest + piece).split(b"\n")
        for raw in whole:
            after += len(raw) + 1
            yield line, after, raw
            line += 1
        if len(rest) > base.MAX_RECORD_BYTES:
            raise too_long_error(source.path, line)


def _unquote(token: str) -> str:
    """Return a token without surrounding white space, quotes and escapes."""
    token = token.strip()
    if len(token) > 1 and token[0] in "'\"" and token[0] == token[-1]:
        return re.sub(r"\\(.)", r"\1", token[1:-1])
    return token


def _parse_type(text: str, place: str) -> str | list[str]:
    """Return the type of an attribute: a word in lower case, or the list of its categories.

    Parameters
    ----------
    text : str
        What follows the name of the attribute: "numeric", "{red, green}", ...
    place : str
        File and line, for errors.
    """
    if not text.startswith("{"):
        return text.lower().split()[0] if text else ""
    if not text.endswith("}"):
        raise InputError(f"{place}: the categories do not end with a brace on the same line.")
    if text.count(",") > MAX_CATEGORIES:
        raise InputError(f"{place}: more than {MAX_CATEGORIES} categories are declared.")
    values = [_unquote(match[1]) for match in _VALUE.finditer(text[1:-1].strip()) if match[0]]
    if len(set(values)) < len(values):
        raise InputError(f"{place}: a category is declared twice.")
    return values


class ArffReader(DelimitedReader):
    """Reads ARFF files, dense or sparse, plain or compressed.

    Parameters
    ----------
    path : str or Path
    **options
        Fields of `ColumnOptions`, without `categorical`. A label of None is the last attribute.
        String attributes must be dropped or hashed. Unless `like` is given, a nominal attribute
        has the categories that the header declares; any other value is an error.

    Notes
    -----
    Sparse rows omit the first category of a nominal attribute, and the 0 of a numeric attribute:
    an entry that a CSR block omits is code 0, of any category.
    """

    def __init__(self, path: str | Place, **options: Any) -> None:
        """Read the header, choose the columns, and settle the type of each feature."""
        asked, header = ColumnOptions(**options), read_header(path)
        count, names, like = len(header.names), header.names, asked.like
        if asked.label is None and (like is None or not (like.names or like.targets)):
            asked = replace(asked, label=count - 1)
        chosen = ColumnRoles.choose(path, count, names, asked)
        said = asked.kinds(path, count, names)
        kinds: dict[int, Kind] = {}
        for j, f in enumerate(chosen.features):
            declared = header.kinds[f]
            if f in said:
                kinds[j] = said[f]
            elif isinstance(declared, list):
                kinds[j] = Kind("categorical", declared)
            elif declared == "date":
                kinds[j] = Kind("date", "")
            elif declared not in _NUMERIC:
                raise InputError(
                    f"{path}: attribute {names[f]!r} is neither numeric nor nominal but "
                    f"{declared or 'untyped'!r}; drop it."
                )
        if like is not None:
            kinds = kinds_of_store(like)
        layout = TextLayout(
            columns=count,
            names=names,
            delimiter="," if header.comma or count == 1 else " ",
            arff=True,
            body_start=header.start,
            body_line=header.line,
        )
        texts_label = any(f is not None and header.kinds[f] not in _NUMERIC for f in chosen.labels)
        super().__init__(path, layout, chosen, kinds, asked.missing, texts_label, like is None)
        self.sparse = header.sparse
        if self.sparse and (self.dates or self.hashed):
            raise InputError(f"{path}: sparse rows cannot have dates or hashed texts; drop them.")
        self._names = names
        self._column_of = {f: j for j, f in enumerate(chosen.features)}
        # Value by attribute, if sparse rows omit a value that is not stored as a 0 in X.
        self._explicit = {}
        for f, kind in enumerate(header.kinds if self.sparse else []):
            text = kind[0] if isinstance(kind, list) else "0"
            coder = self._coders.get(self._column_of.get(f, -1))
            if isinstance(coder, Categories) and coder.code(text, str(path)) == 0:
                continue
            if coder is not None or f in (*chosen.labels, chosen.weight):
                self._explicit[f] = text

    def blocks(self, skip_rows: int = 0, each: Each = map) -> Iterator[Block]:
        """Yield the rows from number `skip_rows` on, in blocks.

        `each` applies the parser to pieces of a file with dense rows; it has the arguments of
        `map`.
        """
        return self._sparse_blocks(skip_rows) if self.sparse else super().blocks(skip_rows, each)

    def _sparse_blocks(self, skip_rows: int) -> Iterator[Block]:
        """Yield sparse rows from number `skip_rows` on; earlier rows are parsed for categories."""
        self._reset_encoders()
        n_labels = len(self.columns.labels)
        rows = _SparseRows(0, n_labels)
        with Source(self.path) as source:
            for line, _, raw in _read_lines(source, self.piece_bytes):
                text, self._progress = decode(raw).strip(), source.progress()
                if line < self.layout.body_line or not text or text.startswith("%"):
                    continue
                if rows.size >= self.piece_bytes or rows.next_row == skip_rows:
                    if rows.first_row >= skip_rows and rows.lines:
                        yield rows.block(self)
                    rows = _SparseRows(rows.next_row, n_labels)
                self._add(rows, text, line)
        if rows.first_row >= skip_rows:
            yield rows.block(self)

    def _add(self, rows: _SparseRows, text: str, line: int) -> None:
        """Parse one row of `text`, "{attribute value, ...}", in line `line`, and add it to `rows`.

        Raises
        ------
        InputError
            If the row is invalid.
        """
        place = f"{self.path}, line {line}"
        if not (text.startswith("{") and text.endswith("}")):
            raise InputError(f"{place}: a row without braces in a file of sparse rows.")
        text = text[1:-1].strip()
        found = dict(self._explicit)
        at, previous = 0, -1
        while at < len(text):
            entry = _ENTRY.match(text, at)
            f = int(entry[1]) if entry else -1
            if not entry or not previous < f < self.layout.columns:
                rest = text[at:].strip()
                raise InputError(
                    f"{place}: {rest[:40]!r} is not an attribute's number, ascending and "
                    f"less than {self.layout.columns}, and its value."
                )
            found[f] = _unquote(entry[2])
            at, previous = entry.end(), f
        for f in sorted(found):
            if f in self._column_of:
                rows.indices.append(self._column_of[f])
                rows.data.append(self._parse_number(f, found[f], place))
        for label, column in zip(self.columns.labels, rows.y, strict=True):
            if label is not None:
                column.append(parse_label(found[label], place))
        if self.columns.weight is not None:
            rows.weights.append(parse_finite(found[self.columns.weight], place))
        rows.indptr.append(len(rows.indices))
        rows.lines.append(line)
        rows.size += len(text)

    def _parse_number(self, f: int, text: str, place: str) -> float:
        """Return the number, or the category code, that `text` gives for the feature attribute `f`.

        `place` names file and line in an error.
        """
        j = self._column_of[f]
        coder = self._coders.get(j)
        if not isinstance(coder, Categories):
            return parse_finite(text, f"{place}, attribute {f} ({self._names[f]!r})")
        code = coder.code(text, place)
        self.unseen[j] += code < 0
        return code


class _SparseRows:
    """Sparse rows that are collected for the next block.

    Attributes
    ----------
    first_row : int
        Row number of the first row.
    size : int
        Bytes of text of the rows, by which the block is ended.
    lines : list of int
        Line of each row.
    y : list of list
        For each label column, the label of each row.
    weights : list
        Weight of each row; empty if there is no such column.
    data, indices, indptr : list
        The arrays of a CSR matrix.
    """

    def __init__(self, first_row: int, n_labels: int) -> None:
        """Begin without rows; the next row has the number `first_row`, and `n_labels` labels."""
        self.first_row, self.size = first_row, 0
        self.lines: list[int] = []
        self.y: list[list[float | str | None]] = [[] for _ in range(n_labels)]
        self.weights: list[float] = []
        self.data: list[float] = []
        self.indices: list[int] = []
        self.indptr = [0]

    @property
    def next_row(self) -> int:
        """Return the number of the row that is added next."""
        return self.first_row + len(self.lines)

    def block(self, reader: ArffReader) -> Block:
        """Return the collected rows as a block; `reader` says which columns they have."""
        where = name_lines(reader.path, RowLines(np.array(self.lines, np.int64)))
        arrays = np.array(self.data), np.array(self.indices, np.int32), np.array(self.indptr)
        X = csr_array(arrays, shape=(len(self.lines), reader.n_features))
        weight = None

        def parse(f: int) -> NDArray[Any]:
            """Return the labels in the attribute at position f."""
            labels = self.y[reader.columns.labels.index(f)]
            numeric = all(isinstance(label, float) for label in labels)
            return np.array(labels, float if numeric else object)

        y = reader._stack_labels(parse, len(self.lines))
        if reader.columns.weight is not None:
            weight = check_weights(np.array(self.weights), where)
        return Block(X, y, weight, self.first_row, where)
