"""Reader of text tables: CSV, TSV, and fields between semicolons, bars or spaces."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from bigscreen.data.missing import Missing
from bigscreen.data.texts import ISO_DATE, normalise_number, parse_number
from bigscreen.errors import InputError, NoRows
from bigscreen.files.remote import Place
from bigscreen.intake.readers import base
from bigscreen.intake.readers.base import (
    Source,
    decode,
    read_pieces,
    too_long_error,
)
from bigscreen.intake.readers.categories import (
    BLANK,
    NO_MISSING,
    Kind,
    kinds_of_store,
    trim_texts,
    try_numbers,
)
from bigscreen.intake.readers.columns import (
    LABEL_NAMES,
    ColumnOptions,
    ColumnRoles,
    detect_kind,
    find_index_columns,
)
from bigscreen.intake.readers.decimals import check_decimal
from bigscreen.intake.readers.delimited import DelimitedReader
from bigscreen.intake.readers.text import TYPE_SAMPLE_BYTES, Fields, TextLayout, read_first_fields

if TYPE_CHECKING:
    import _csv

_EXCEL = re.compile(rb"sep=(.)\r?")
"""Matches a first line in which Excel declares the delimiter."""


# Advice in the error about a number with a comma or with thousands separators.
_SAY_DECIMAL = (
    "say whether a comma stands before decimals (`decimal=','`) or sets thousands apart "
    "(`decimal='.'`)"
)


class TableReader(DelimitedReader):
    """Reads CSV, TSV and space separated tables, plain or compressed.

    Parameters
    ----------
    path : str or Path
    delimiter : str, optional
        One character; " " is any run of spaces and tabs. Default: detected from the first lines.
    header : bool, optional
        Whether the first row holds names. Default: detected; see `detect_layout`.
    decimal : {".", ","}, optional
        See `TextLayout`. Default: that of the store or model that the rows are like.
    **options
        Fields of `ColumnOptions`.

    Notes
    -----
    Fields are quoted as in RFC 4180. "", "?", "NA" and similar texts are missing values, which are
    errors unless `missing` allows them.
    """

    def __init__(
        self,
        path: str | Place,
        *,
        delimiter: str | None = None,
        header: bool | None = None,
        decimal: str | None = None,
        **options: Any,
    ) -> None:
        """Detect the layout and the types of the columns from the first rows."""
        check_decimal(decimal)
        asked = ColumnOptions(**options)
        if asked.like is not None and decimal is None:
            decimal = asked.like.decimal
        like, missing = asked.like, asked.missing
        known = (like.names if like is not None else None) or ()
        layout = detect_layout(path, delimiter, header, asked.names, missing, decimal, known)
        count, names = layout.columns, layout.names
        fields: Fields | None = None
        if like is None or layout.n_blank or (names and names[0] == "Unnamed: 0"):
            with Source(path) as source:
                fields = read_first_fields(source, layout, TYPE_SAMPLE_BYTES)
        said = asked.kinds(path, count, names)
        index = find_index_columns(
            names, None, partial(_holds_whole_numbers, fields), layout.n_blank
        )
        index = [f for f in index if f not in said]
        chosen = ColumnRoles.choose(path, count, names, asked, index)
        if like is not None:
            super().__init__(path, layout, chosen, kinds_of_store(like), missing)
            return
        texts_label = fields is not None and any(
            try_numbers(trim_texts(fields.column(f))) is None
            for f in chosen.labels
            if f is not None
        )
        kinds = _detect_kinds(fields, chosen, said, missing)
        if BLANK in kinds.values():  # look at more rows
            with Source(path) as source:
                fields = read_first_fields(source, layout)
            kinds = _detect_kinds(fields, chosen, said, missing)
        super().__init__(path, layout, chosen, kinds, missing, texts_label)


def _detect_kinds(
    fields: Fields | None, chosen: ColumnRoles, said: Mapping[int, Kind], missing: Missing
) -> dict[int, Kind]:
    """Return the types of the features that do not hold numbers, by position among the features.

    Parameters
    ----------
    fields : Fields or None
        First rows of the file as texts; None if they were not read, or there are none.
    chosen : ColumnRoles
        Positions of the features.
    said : mapping of int to Kind
        Types that the user gave, by position in the file.
    missing : Missing
        Marks of missing values.
    """
    kinds: dict[int, Kind] = {}
    for j, f in enumerate(chosen.features):
        kind = said.get(f)
        if kind is None and fields is not None:
            decimal = fields.layout.decimal
            kind = detect_kind(fields.column(f), fields.places(f), missing, _SAY_DECIMAL, decimal)
        if kind is not None:
            kinds[j] = kind
    return kinds


def _holds_whole_numbers(fields: Fields | None, f: int) -> bool:
    """Whether column `f` holds only whole numbers in the first rows of a file.

    `fields` are these rows as texts; None (they were not read) gives False.
    """
    numbers = None if fields is None else try_numbers(trim_texts(fields.column(f)))
    if numbers is None:
        return False
    values = numbers.to_numpy(zero_copy_only=False)
    return bool(np.all(np.isfinite(values) & (values == np.floor(values))))


_SAMPLE_ROWS = 100
"""Detect the delimiter and the header of a text table from at most this many first rows."""

_DELIMITERS = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar"}
"""Delimiters that are detected, and their names in errors; a space is tried, too."""


def detect_layout(
    path: str | Place,
    delimiter: str | None = None,
    header: bool | None = None,
    names_asked: Iterable[str] = (),
    missing: Missing = NO_MISSING,
    decimal: str | None = None,
    known_names: Sequence[str] = (),
    max_columns: int = 1 << 22,
) -> TextLayout:
    """Detect delimiter, header and column names of a text table.

    Parameters
    ----------
    path : str or Path
    delimiter : str, optional
        One character; " " stands for any run of spaces and tabs. Default: detected.
    header : bool, optional
        Whether the first row holds names. Default: it does if it has texts in columns of numbers.
        A line that begins with # before the first row is a header if it has as many fields.
    names_asked : iterable of str, optional
        Column names that the user gave; a first row that has one of them is a header. Whole
        numbers are ignored, as they are positions.
    missing : Missing
        Missing values are ignored when the header is detected.
    decimal : {".", ","}, optional
        See `TextLayout`.
    known_names : sequence of str
        Column names of an earlier store; a first row that has all of them is a header.
    max_columns : int
        Refuse a first line with this many columns or more.

    Raises
    ------
    InputError
        If the delimiter or the header is ambiguous, two columns have one name, or the header is
        repeated.
    """
    _check_delimiter(delimiter)
    lines = _read_first_lines(path)
    first = 0
    if lines and (told := _EXCEL.fullmatch(lines[0])):
        first, delimiter = 1, delimiter or told[1].decode()
    while first < len(lines) and (not lines[first].strip() or lines[first].startswith(b"#")):
        first += 1
    body = [decode(line) for line in lines[first:]]
    if not body:
        raise NoRows(f"{path} has no row among its first lines: check that it is a table.")
    if max(map(body[0].count, delimiter or (*_DELIMITERS, " "))) >= max_columns:
        raise InputError(
            f"{path}, line {first + 1}: the line has {max_columns} columns or more; check its "
            "format, or write so wide rows as svmlight or HDF5."
        )
    delimiter = delimiter or _detect_delimiter(path, body)
    rows = _split_rows(body, delimiter)
    if not rows:
        raise InputError(f"{path} does not look like a table; check its format and its line ends.")
    columns = Counter(map(len, rows)).most_common(1)[0][0]
    comments = [line for line in lines[:first] if line.startswith(b"#")]
    names = None
    if comments and header is not False:
        names = _parse_comment_header(decode(comments[-1]), delimiter, columns, header)
    if names is None and header is None and len(rows[0]) == 1 < columns:
        raise InputError(
            f"{path}, line {first + 1}: {rows[0][0][:40]!r} stands alone where rows have {columns} "
            "fields; remove the line if it is a title, or mend it."
        )
    if names is None and header is None:
        header = _has_known_names(rows, names_asked, known_names)
        header = header or _is_header(path, rows, missing, decimal)
    if names is None and header:
        names = rows[0]
        if len(names) != columns:
            raise InputError(
                f"{path}, line {first + 1}: the header has {len(names)} names and the rows have "
                f"{columns} fields; mend it, or say that there is no header."
            )
        reader = _csv_reader(body, delimiter)
        next(reader)
        header_lines = reader.line_num
        _check_single_header(path, names, reader, first)
        first += header_lines
    n_blank = 0 if names is None else next((k for k, name in enumerate(names) if name), columns)
    names = names and _make_distinct(path, names)
    start = sum(len(line) + 1 for line in lines[:first])
    return TextLayout(columns, names, delimiter, False, start, first + 1, decimal, n_blank)


def _check_delimiter(delimiter: str | None) -> None:
    """Refuse a delimiter that is not one punctuation character or blank."""
    if delimiter is not None and (
        len(delimiter) != 1
        or not delimiter.isascii()
        or delimiter.isalnum()
        or delimiter in '+-."\r\n'
    ):
        raise InputError(f"{delimiter!r} is no delimiter: give one character, such as ',' or ';'.")


def _parse_comment_header(
    comment: str, delimiter: str, columns: int, header: bool | None
) -> list[str] | None:
    """Return the names in a comment line before the rows; None if it is not a header.

    It is a header if it has as many fields as the rows have `columns`, and no field is a number
    (with `header` true, numbers are accepted as names).
    """
    fields = (_split_rows([comment.lstrip("# \t")], delimiter) or [[]])[0]
    words = [field for field in fields if parse_number(field) is None]
    return fields if len(fields) == columns and (header or words == fields) else None


def _make_distinct(path: str | Place, names: list[str]) -> list[str]:
    """Return the names, several empty ones replaced by "column K"; refuse equal names."""
    if names.count("") > 1:
        names = [name or f"column {k}" for k, name in enumerate(names)]
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"{path}: two columns are named {twice[0]!r}; rename one.")
    return names


def _read_first_lines(path: str | Place) -> list[bytes]:
    """Return the whole lines, without newlines, in about the first MiB of a file.

    More is read if the first MiB has less than two lines.

    Raises
    ------
    InputError
        If the first two lines are longer than `MAX_RECORD_BYTES`.
    """
    head = b""
    with Source(path) as source:
        for piece in read_pieces(source):
            head += piece
            if head.count(b"\n") > 1:
                break
            if len(head) > base.MAX_RECORD_BYTES:
                raise too_long_error(source.path, 1)
    if head.count(b"\n", 0, TYPE_SAMPLE_BYTES) > 1:
        head = head[:TYPE_SAMPLE_BYTES]
    return head.split(b"\n")[:-1]


def _csv_reader(lines: list[str], delimiter: str) -> _csv.Reader:
    """Return a reader of the fields of lines; with a space as delimiter, tabs count as spaces."""
    if delimiter == " ":
        lines = [line.replace("\t", " ").strip() for line in lines]
    return csv.reader((line + "\n" for line in lines), delimiter=delimiter, skipinitialspace=True)


def _split_rows(lines: list[str], delimiter: str) -> list[list[str]]:
    """Return the first 100 rows as lists of fields without surrounding blanks.

    The list is empty if the lines are not CSV: a quote is never closed.
    """
    try:
        rows = [row for row in islice(_csv_reader(lines, delimiter), _SAMPLE_ROWS) if row]
    except csv.Error:
        return []
    return [[field.strip() for field in row] for row in rows]


def _detect_delimiter(path: str | Place, lines: list[str]) -> str:
    """Return the delimiter of the lines: the one that gives most lines the same number of fields.

    Lines must have more than one field. A space is returned if no other delimiter does so.

    Raises
    ------
    InputError
        If several delimiters fit all lines.
    """
    found = {}
    for delimiter in (*_DELIMITERS, " "):
        rows = _split_rows(lines, delimiter)
        if not rows:
            continue
        columns, times = Counter(map(len, rows)).most_common(1)[0]
        if columns > 1:
            found[delimiter] = times / len(rows), columns, rows
    # A single tab among spaces must not turn a few lines into a tab separated table.
    marks = [m for m in found if m != " " and found[m][0] >= (0.51 if m == "\t" else 0.5)]
    if not marks:
        return " "
    best = max(marks, key=lambda mark: found[mark][0])
    share, columns, _ = found[best]
    rivals = [mark for mark in marks if mark != best and found[mark][0] == share == 1]
    if " " in found and best != "\t":
        share, more, rows = found[" "]
        # "a,b 1 2" may be either; in "1, 2, a b" the blank after the comma decides.
        inside = not any(
            field.startswith(best) or field.endswith(best) for r in rows for field in r
        )
        if share == 1 and more > columns and inside:
            rivals.append(" ")
    if rivals:
        names = " or ".join(_DELIMITERS.get(mark, "space") for mark in (best, *rivals))
        raise InputError(f"{path}: its delimiter may be {names}; say which.")
    return best


def _is_amount(text: str) -> bool:
    """Whether a text is a number or a date in ISO 8601, rather than a name."""
    return parse_number(text) is not None or ISO_DATE.fullmatch(text) is not None


def _check_single_header(
    path: str | Place, names: list[str], reader: _csv.Reader, first: int
) -> None:
    """Refuse a header that is repeated in the first rows, as in concatenated files.

    Parameters
    ----------
    path : str or Place
        Name of the file, for errors.
    names : list of str
        The fields of the header.
    reader : csv reader
        Positioned after the header.
    first : int
        Number of lines before the header.
    """
    if all(map(_is_amount, names)):
        return  # a row of numbers may equal the header by chance
    for row in islice(reader, _SAMPLE_ROWS):
        if [field.strip() for field in row] == names:
            raise InputError(
                f"{path}, line {first + reader.line_num}: the header of line {first + 1} comes "
                "again; remove this line."
            )


def _has_known_names(
    rows: list[list[str]], names_asked: Iterable[str], known_names: Sequence[str]
) -> bool:
    """Whether the first row holds a name that the user gave, or all names of an earlier store.

    Parameters
    ----------
    rows : list of list of str
        Fields of the first rows.
    names_asked : iterable of str
        Names that the user gave; whole numbers are ignored, as they are positions.
    known_names : sequence of str
        Names of the earlier store.
    """
    head, known = rows[0], [*known_names]
    asked = {name for name in names_asked if not re.fullmatch(r"-?\d+", name)}
    if not asked.isdisjoint(head):
        return True
    if all(map(_is_amount, known)):  # numbers may stand in any row: require these, in this order
        return bool(known) and [c for c in head if c in known] == known and head not in rows[1:]
    return set(known) <= set(head)


def _is_header(
    path: str | Place, rows: list[list[str]], missing: Missing, decimal: str | None
) -> bool:
    """Whether the first row holds names: texts in number columns, or 0, 1, 2 as pandas writes.

    Parameters
    ----------
    path : str or Place
        Name of the file, for errors.
    rows : list of list of str
        Fields of the first rows.
    missing : Missing
        Marks of missing values, which are neither names nor values.
    decimal : {".", ","} or None
        Decimal mark of numbers.

    Raises
    ------
    InputError
        If it is ambiguous.
    """
    head, rest = rows[0], rows[1:]
    texts = [not _is_amount(name) and name not in missing for name in head]
    if all(texts):
        rest = [row for row in rest if row != head] or rest
    numbers = [name for name, text in zip(head, texts, strict=True) if not text and name]
    counts = bool(numbers) and numbers == [str(k) for k in range(len(numbers))]
    if not rest:
        return all(texts) or (counts and any(texts))
    columns = [[row[c] for row in rest if c < len(row)] for c in range(len(head))]
    known = [
        [normalise_number(value, decimal) for value in column if value not in missing]
        for column in columns
    ]
    numeric = [bool(column) and all(map(_is_amount, column)) for column in known]
    fresh = [name not in column for name, column in zip(head, columns, strict=True)]
    if any(text and number for text, number in zip(texts, numeric, strict=True)):
        if not numbers or counts:
            return True
        doubt = f"{numbers[0]!r} is no name, yet text stands where numbers follow"
    elif numbers and _has_label_name(head, texts, fresh) and len({*numbers}) == len(numbers):
        return True
    elif counts and len(numbers) > 1:
        if (told := _is_numbered_header(rows, texts, known)) is not None:
            return told
        doubt = f"{', '.join(numbers[:3])} may be names or numbers"
    elif not any(numeric) and all(fresh):
        doubt = "all columns hold text"
    else:
        return False
    raise InputError(
        f"{path}: whether its first row is a header cannot be told ({doubt}); say whether it is "
        "(`header`)."
    )


def _has_label_name(head: list[str], texts: list[bool], fresh: list[bool]) -> bool:
    """Whether the first row holds a usual label name that its column does not repeat.

    Parameters
    ----------
    head : list of str
        Fields of the first row.
    texts : list of bool
        For each field, whether it is a text (neither a number nor a date nor missing).
    fresh : list of bool
        For each field, whether no later row has it in the same column.
    """
    usual = {*LABEL_NAMES} - {"y"}  # "y" is often a label value, as is "n"
    cells = zip(head, texts, fresh, strict=True)
    return any(text and new and name.lower() in usual for name, text, new in cells)


def _is_numbered_header(
    rows: list[list[str]], texts: list[bool], known: list[list[str]]
) -> bool | None:
    """Whether a first row of 0, 1, 2 and perhaps texts names columns; None if ambiguous.

    Parameters
    ----------
    rows : list of list of str
        Fields of the first rows.
    texts : list of bool
        For each field of the first row, whether it is a text.
    known : list of list of str
        For each column, its values after the first row that are not missing.
    """
    head, rest = rows[0], rows[1:]
    if any(texts):
        of_texts = [(head[c], known[c]) for c, text in enumerate(texts) if text]
        if any(name in column for name, column in of_texts):
            return False
        # If every row has a different text, a new text in the first row is no evidence.
        return any(len({*column}) < len(column) for _, column in of_texts)
    if not head[0] and len(known[0]) == len(rest):
        return True  # the unnamed index column has a value in every row
    goes_on = rest[0] == [str(len(head) + k) for k in range(len(head))]
    if head in rest or goes_on:
        return False
    fractions = [c for c in known if not any(value.lstrip("+-").isdigit() for value in c)]
    return True if len(head) > 2 and 2 * len(fractions) > len(head) else None
