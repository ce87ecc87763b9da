"""How a table is written: its delimiter and its header, told from its first lines."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from bigscreen.errors import InputError
from bigscreen.store.readers import base
from bigscreen.store.readers.base import Source, decode, text_pieces, too_long
from bigscreen.store.readers.fields import Layout
from bigscreen.store.readers.numbers import MISSING, exact_number

_SAMPLE_ROWS = 100
_SAMPLE_BYTES = 1 << 20
_MOST_COLUMNS = 1 << 22
_DELIMITERS = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar"}


def find_layout(
    path: str | Path,
    delimiter: str | None = None,
    header: bool | None = None,
    names_asked: Iterable[str] = (),
) -> Layout:
    """Return the layout of a comma, tab, semicolon, bar or space separated file.

    Parameters
    ----------
    path : str or Path
    delimiter : str, optional
        One character; " " stands for any run of spaces and tabs. Default: found.
    header : bool, optional
        Whether the first row holds names. Default: it does if it has text where numbers follow.
        A line that begins with # before the first row is a header if it has as many fields.
    names_asked : iterable of str, optional
        Names of columns; a first row with one of them is a header.

    Raises
    ------
    InputError
        If the delimiter or the header cannot be told, or two columns have one name.
    """
    if delimiter is not None and (
        len(delimiter) != 1
        or not delimiter.isascii()
        or delimiter.isalnum()
        or delimiter in '+-."\r\n'
    ):
        raise InputError(f"{delimiter!r} is no delimiter: give one character, such as ',' or ';'.")
    lines = _first_lines(path)
    first = 0
    while first < len(lines) and (not lines[first].strip() or lines[first].startswith(b"#")):
        first += 1
    body = [decode(line) for line in lines[first:]]
    marks = _DELIMITERS if delimiter is None else delimiter
    if body and max(body[0].count(mark) for mark in (*marks, " ")) >= _MOST_COLUMNS:
        raise InputError(
            f"{path}, line {first + 1}: the line has {_MOST_COLUMNS} columns or more; check its "
            "format, or write so wide rows as svmlight or HDF5."
        )
    if not body:
        raise InputError(f"{path} has no row among its first lines: check that it is a table.")
    if delimiter is None:
        delimiter = _find_delimiter(path, body)
    rows = _split(body, delimiter)
    if not rows:
        raise InputError(f"{path} does not look like a table; check its format and its line ends.")
    columns = Counter(map(len, rows)).most_common(1)[0][0]

    names = None
    comments = [line for line in lines[:first] if line.startswith(b"#")]
    if comments and header is not False:
        fields = (_split([decode(comments[-1]).lstrip("# \t")], delimiter) or [[]])[0]
        words = [field for field in fields if exact_number(field) is None]
        if len(fields) == columns and (header or words == fields):
            names = fields
    if names is None and (header or (header is None and _is_header(path, rows, names_asked))):
        names = rows[0]
        if len(names) != columns:
            raise InputError(
                f"{path}, line {first + 1}: the header has {len(names)} names and the rows have "
                f"{columns} fields; mend it, or say that there is no header."
            )
        reader = _reader(body, delimiter)
        next(reader)
        first += reader.line_num
    if names:
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            raise InputError(f"{path}: two columns are named {twice[0]!r}; rename one.")
    start = sum(len(line) + 1 for line in lines[:first])
    return Layout(columns, names, ord(delimiter), body_start=start, body_line=first + 1)


def _first_lines(path: str | Path) -> list[bytes]:
    head = b""
    with Source(path) as source:
        for piece in text_pieces(source):
            head += piece
            if head.count(b"\n") > 1:
                break
            if len(head) > base.LONGEST_RECORD:
                raise too_long(source.path, 1)
    if head.count(b"\n", 0, _SAMPLE_BYTES) > 1:
        head = head[:_SAMPLE_BYTES]
    return head.split(b"\n")[:-1]


def _reader(lines: list[str], delimiter: str):
    if delimiter == " ":
        lines = [line.replace("\t", " ").strip() for line in lines]
    return csv.reader((line + "\n" for line in lines), delimiter=delimiter, skipinitialspace=True)


def _split(lines: list[str], delimiter: str) -> list[list[str]]:
    """Return the first rows as fields, or none if csv cannot read them (a field without end)."""
    try:
        rows = [row for row in islice(_reader(lines, delimiter), _SAMPLE_ROWS) if row]
    except csv.Error:
        return []
    return [[field.strip() for field in row] for row in rows]


def _find_delimiter(path: str | Path, lines: list[str]) -> str:
    """Return the delimiter by which most of the lines have the same number of fields, over one."""
    found = {}
    for delimiter in (*_DELIMITERS, " "):
        rows = _split(lines, delimiter)
        if not rows:
            continue
        columns, times = Counter(map(len, rows)).most_common(1)[0]
        if columns > 1:
            found[delimiter] = times / len(rows), columns, rows
    # A stray tab among spaces must not make half of a few lines a tab separated table.
    marks = [m for m in found if m != " " and found[m][0] >= (0.51 if m == "\t" else 0.5)]
    if not marks:
        return " "
    best = max(marks, key=lambda mark: found[mark][0])
    share, columns, _ = found[best]
    rivals = [mark for mark in marks if mark != best and found[mark][0] == share == 1]
    if " " in found and best != "\t":
        share, more, rows = found[" "]
        # "a,b 1 2" may be either; in "1, 2, a b" the blank after the comma tells.
        inside = not any(
            field.startswith(best) or field.endswith(best) for r in rows for field in r
        )
        if share == 1 and more > columns and inside:
            rivals.append(" ")
    if rivals:
        names = " or ".join(_DELIMITERS.get(mark, "space") for mark in (best, *rivals))
        raise InputError(f"{path}: its delimiter may be {names}; say which.")
    return best


def _is_header(path: str | Path, rows: list[list[str]], names_asked: Iterable[str]) -> bool:
    """Whether the first row holds names: it has text where numbers follow."""
    head, rest = rows[0], rows[1:]
    if not set(names_asked).isdisjoint(head):
        return True
    texts = [exact_number(name) is None and name not in MISSING for name in head]
    if not rest:
        return all(texts)
    columns = [[row[c] for row in rest if c < len(row)] for c in range(len(head))]
    numeric = [all(exact_number(v) is not None for v in column) for column in columns]
    if any(text and number for text, number in zip(texts, numeric, strict=True)):
        known = [name for name, text in zip(head, texts, strict=True) if not text and name]
        if not known:
            return True
        doubt = f"{known[0]!r} is no name, yet text stands where numbers follow"
    elif not any(numeric) and not any(
        name in column for name, column in zip(head, columns, strict=True)
    ):
        doubt = "all columns hold text"
    else:
        return False
    raise InputError(
        f"{path}: whether its first row is a header cannot be told ({doubt}); say whether it is."
    )
