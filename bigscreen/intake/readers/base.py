"""Base of all readers: blocks of rows, and text files cut into pieces, plain or compressed."""

from __future__ import annotations

import importlib
import lzma
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigscreen.data.layout import take_rows
from bigscreen.data.limits import check_regular, file_size
from bigscreen.data.preparation import describe_column, source_position
from bigscreen.errors import InputError, NoRows, reason_of
from bigscreen.files.remote import Place, RemotePath, as_path
from bigscreen.fleet.protocol import Each
from bigscreen.intake.tuning import TUNING

MAX_RECORD_BYTES = 128 << 20
"""Refuse a file with a line of more bytes than this, so that memory stays bounded for any file."""

COMPRESSION_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
"""Name endings of compressed files."""

_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
}
"""Compression of a file, by its first bytes."""

_DECOMPRESSORS: dict[str | None, Callable[[BinaryIO], Any]] = {"xz": lzma.LZMAFile}
"""Decompressors for formats that pyarrow lacks, or reads at half the speed."""
_DAMAGE_ERRORS: tuple[type[Exception], ...] = (EOFError, OSError, lzma.LZMAError)
"""Exceptions that decompressors raise if a file is damaged or cut."""
with suppress(ImportError):
    igzip = importlib.import_module("isal.igzip")
    _DECOMPRESSORS["gzip"] = lambda raw: igzip.IGzipFile(fileobj=raw, mode="rb")
    _DAMAGE_ERRORS = (*_DAMAGE_ERRORS, importlib.import_module("isal.isal_zlib").error)


@dataclass
class Block:
    """Consecutive rows of a source: features, labels, weights and their places in the source.

    Attributes
    ----------
    X : ndarray of float64 or float32, (rows, d), or csr_array
        Features. A categorical column holds the position of its category in ``Reader.categories``
        (-1: not among the given categories). For svmlight the columns are the indices as written
        in the file: see ``SvmlightReader.index_base``.
    y : ndarray, (rows,), or (rows, targets), or None
        Labels: floats if they read as numbers, else str. The dtype is numeric if all labels of
        the block are numbers, and object otherwise.
    weight : ndarray of float64, (rows,), or None
        Sample weights, not negative.
    first_row : int
        Row number, from 0, of the block's first row in the source.
    where : callable
        ``where(i)`` names the place of the block's i-th row (from 0): "a.csv, line 12".
    """

    X: NDArray[np.floating] | csr_array
    y: NDArray[Any] | None
    weight: NDArray[np.float64] | None
    first_row: int
    where: Callable[[int], str]

    def take(self, rows: NDArray[np.int64]) -> Block:
        """Return the given rows as a block; `first_row` is not changed."""
        y = None if self.y is None else self.y[rows]
        weight = None if self.weight is None else self.weight[rows]
        where = partial(_name_picked, self.where, rows)
        return Block(take_rows(self.X, rows), y, weight, self.first_row, where)


def _name_picked(where: Callable[[int], str], rows: NDArray[np.int64], i: int) -> str:
    """Return the place of the i-th picked row; `rows` are the numbers of all picked rows.

    ``where(k)`` names the place of the row with the number k.
    """
    return where(int(rows[i]))


class Reader:
    """Base class of readers: a source of rows, with labels and weights if it has them.

    Attributes
    ----------
    names : list of str or None
        Names of the feature columns.
    n_features : int or None
        Number of features; None if it is not known before all rows are read (svmlight).
    n_rows : int or None
        Number of rows, if the source declares it.
    sparse : bool
        Whether the blocks hold csr_array.
    anywhere : bool
        Whether other processes can parse the pieces of the source; then the argument `each` of
        `blocks` may apply the parser in other processes.
    identity : str or None
        Hash of data in memory, equal for equal content. None if equal content cannot be
        recognised: such an ingest cannot be resumed.
    skipped : list of int
        Positions, ascending, of the source's columns that are no features, if columns have no
        names; those after the last feature are left out.
    label_at : list of int
        Position of the column of the label, or of the only target; empty if there is none.
    left_out : list of str
        Columns that are left out because the existing store lacks them.
    index_names : list of str
        Columns that are left out as the index of a data frame.
    targets : list of str or int
        The columns of several targets, by name, or by position if columns have no names. Empty for
        one label, and for targets that are no columns.
    categories : dict of int to list of str
        Categories of each categorical feature, in code order. New ones are appended while
        reading, unless the categories were given or declared.
    unseen : dict of int to int
        For each feature with given categories, how many values so far were not among them.
    dates, hashed : dict
        Features that hold dates, with their formats; features of hashed texts, with their bits.
    truths, blank : set of int
        Features that hold truth values; features whose values are all missing in the first rows.
    piece_bytes : int
        `blocks` reads this many uncompressed bytes at a time; set it before the first block.
    """

    names: list[str] | None = None
    n_features: int | None = None
    n_rows: int | None = None
    sparse = False
    anywhere = False
    identity: str | None = None
    piece_bytes: int = TUNING.piece_bytes

    def __init__(self) -> None:
        """Begin without categories and without columns of other types than numbers."""
        self.skipped: list[int] = []
        self.label_at: list[int] = []
        self.left_out: list[str] = []
        self.index_names: list[str] = []
        self.targets: list[str | int] = []
        self.categories: dict[int, list[str]] = {}
        self.unseen: dict[int, int] = {}
        self.dates: dict[int, str] = {}
        self.hashed: dict[int, int] = {}
        self.truths: set[int] = set()
        self.blank: set[int] = set()

    def describe_column(self, c: int) -> str:
        """Name feature `c` in a sentence, by its name or by its position in the source."""
        return describe_column(c if self.names else source_position(c, self.skipped), self.names)

    def skip_all_but(self, features: Sequence[int]) -> None:
        """Set `skipped`, given the positions in the source of the features, ascending."""
        self.skipped = sorted({*range(max(features, default=0))}.difference(features))

    def blocks(self, skip_rows: int = 0, each: Each = map) -> Iterator[Block]:
        """Yield the rows from number `skip_rows` on, in blocks of any size.

        `each` applies the work that does not depend on earlier rows to pieces, in their order, for
        example in threads; it is `map`, or a function with the arguments of `map`.
        """
        raise NotImplementedError

    def progress(self) -> tuple[int, int]:
        """Return the bytes read so far and the bytes of the whole source on disk (0: not known)."""
        raise NotImplementedError


def try_parse(parse: Callable[[Any], Any], item: Any) -> tuple[Any, Any]:
    """Return an item and its form after `parse`, or None for that form if parsing fails.

    The caller then parses the item again, in order, so that the first error of a file is raised.
    FileChanged is raised at once.
    """
    try:
        return item, parse(item)
    except FileChanged:
        raise
    except InputError:
        return item, None


def name_rows(name: str, first: int) -> Callable[[int], str]:
    """Return a function of i that names row number ``first + i`` of a source, for `Block.where`.

    `name` is the source's name; "" for an array in memory.
    """
    return partial(_name_row, f"{name}, row" if name else "row", first)


def _name_row(row: str, first: int, i: int) -> str:
    """Return the name of row ``first + i``; `row` is the text before the number."""
    return f"{row} {first + i}"


def strip_compression_suffix(path: str | Place) -> str:
    """Return the lower-case name of a file without the suffix of its compression."""
    name = as_path(path).name.lower()
    for suffix in COMPRESSION_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


class Source:
    """A file opened for reading from start to end; it is decompressed as its first bytes require.

    Parameters
    ----------
    path : str, Path or RemotePath
        Plain, gzip, bzip2, zstd or xz; the name does not matter.

    Raises
    ------
    InputError
        If the path is missing, a folder, unreadable or empty; while reading, if it is damaged.
    """

    def __init__(self, path: str | Place) -> None:
        """Open the file, and choose the decompressor by its first bytes, not by its name."""
        self.path = as_path(path)
        check_regular(self.path)
        if self.path.is_dir():
            raise InputError(f"{path} is a folder, not a data file: name the file inside it.")
        try:
            self._raw = cast(BinaryIO, self.path.open("rb"))
        except FileNotFoundError:
            raise InputError(f"{path} does not exist: check the path.") from None
        except OSError as error:
            raise InputError(f"{path} cannot be opened: {reason_of(error)}.") from None
        self.total = file_size(self.path)
        head = self._raw.read(6)
        self._raw.seek(0)
        if not head:
            self._raw.close()
            raise NoRows(f"{path} is empty: give a file with at least one row.")
        self._kind = next((k for magic, k in _COMPRESSIONS.items() if head.startswith(magic)), None)
        self.compressed = self._kind is not None
        self._file: Any = self._raw
        if self._kind in _DECOMPRESSORS:
            self._file = _DECOMPRESSORS[self._kind](self._raw)
        elif self._kind is not None:
            import pyarrow  # imported here, as data in memory does not need it

            raw = pyarrow.PythonFile(self._raw, mode="r")
            self._file = pyarrow.CompressedInputStream(raw, self._kind)
        self._take: Callable[[int], bytes] = self._file.read
        self._read = self._done = 0

    def read(self, size: int, step_bytes: int = 1 << 16) -> bytes:
        """Return the next `size` uncompressed bytes; fewer only at the end of the file.

        It decompresses `step_bytes` at a time, so that an error names the damaged place to within
        that many bytes.

        Raises
        ------
        InputError
            If the file is cut or damaged.
        """
        parts: list[bytes] = []
        missing = size
        while missing > 0:
            step = min(missing, step_bytes) if self.compressed else missing
            try:
                part = self._take(step)
            except _DAMAGE_ERRORS as error:
                if (
                    getattr(error, "errno", None) is not None
                ):  # an error of the disk, not of the content
                    raise
                cut = isinstance(error, EOFError) or "Truncated" in str(error)
                done = self._read + size - missing
                raise InputError(
                    f"{self.path} {'ends too early' if cut else 'is damaged'} after byte {done:,} "
                    f"of its uncompressed content, near byte {self._raw.tell():,} of the file's "
                    f"{self.total:,}: fetch the file again."
                ) from None
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        self._read += size - missing
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def progress(self) -> tuple[int, int]:
        """Return the bytes of the file on disk that were read so far, and its size."""
        return (self._done if self._raw.closed else self._raw.tell(), self.total)

    def close(self) -> None:
        """Close the file; `progress` still reports how far it was read."""
        if not self._raw.closed:
            self._done = self._raw.tell()
        self._file.close()
        self._raw.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_pieces(source: Source, piece_bytes: int = TUNING.piece_bytes) -> Iterator[bytes]:
    """Yield the text of a file in pieces of `piece_bytes`; the last line gets a newline.

    A piece may end within a line. A byte order mark is dropped. Carriage returns are line ends
    if the first piece has no newline.

    Raises
    ------
    InputError
        If the file holds only white space, or the text is UTF-16.
    """
    last = b""
    blank, returns = True, False
    while piece := source.read(piece_bytes):
        if not last:
            returns = _ends_in_returns(piece, source)
            piece = piece.removeprefix(_BYTE_ORDER_MARK)
        if returns:
            piece = piece.replace(b"\r", b"\n")
        blank = blank and not piece.strip()
        last = piece
        yield piece
    if blank:
        raise _empty_file_error(source)
    if not last.endswith(b"\n"):
        yield b"\n"


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Bytes that may stand before UTF-8 text."""


def _ends_in_returns(head: bytes, source: Source) -> bool:
    """Whether carriage returns, not newlines, end the lines of a text, by its first piece `head`.

    Raises
    ------
    InputError
        If the text is UTF-16.
    """
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{source.path} is UTF-16 text: save it as UTF-8.")
    return b"\r" in head and b"\n" not in head


def _empty_file_error(source: Source) -> InputError:
    """Return the error for a file that holds no row."""
    return NoRows(f"{source.path} is empty: give a file with at least one row.")


class FileChanged(InputError):
    """Raised if a file has been replaced or changed since it was opened."""


@dataclass(frozen=True)
class Span:
    """The lines of an uncompressed file that begin within a byte range; any process can read them.

    Attributes
    ----------
    path : Place
        A path or URL.
    start, stop : int
        First byte of the range, and one past the last.
    state : (int, int or str)
        Size and time of the file, by which a changed file is recognised.
    first : bool
        Whether a line is known to begin at `start`.
    """

    path: Place
    start: int
    stop: int
    state: tuple[int, int | str]
    first: bool

    def read(self) -> tuple[bytes, int]:
        """Return the lines, and 0, or the number of bytes read of a line that is too long to read.

        A line is too long beyond `MAX_RECORD_BYTES`; the lines before it are returned without it.

        Raises
        ------
        InputError
            If the file cannot be read, or has changed since it was cut into spans.
        """
        before = not self.first  # a line begins at `start` if a newline stands before
        try:
            check_state(self.path, self.state)
            with self.path.open("rb") as file:
                file.seek(self.start - before)
                text = file.read(self.stop - self.start + before)
                begin = text.find(b"\n") + 1 if before else 0
                if before and begin in (0, len(text)):
                    return b"", 0
                last = b"" if text.endswith(b"\n") else file.readline(MAX_RECORD_BYTES + 1)
        except OSError as error:
            reason = error.strerror or "there is no such file"
            raise InputError(f"{self.path} cannot be read: {reason}.") from None
        if len(last) > MAX_RECORD_BYTES:
            cut = text.rfind(b"\n") + 1
            return text[begin:cut], len(text) - cut + len(last)
        end = b"" if (last or text).endswith(b"\n") else b"\n"
        return b"".join([memoryview(text)[begin:], last, end]), 0


def file_state(path: Place) -> tuple[int, int | str]:
    """Return the size of a file, and its modification time (of a URL: its version)."""
    if isinstance(path, RemotePath):
        return path.size(), path.mark()
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def check_state(path: Place, state: tuple[int, int | str]) -> None:
    """Raise FileChanged if a file's size or time is not `state`, or it cannot be read any more."""
    try:
        found = file_state(path)
    except OSError as error:
        reason = error.strerror or "there is no such file"
        raise FileChanged(f"{path} cannot be read: {reason}.") from None
    if found != state:
        raise FileChanged(
            f"{path} is not the file that was begun with (its size or its time differs): leave it "
            "as it is while it is read, the same for every worker."
        )


class Piece(NamedTuple):
    """Whole lines of a text file, the bytes read of the next line, and the progress in the file.

    Attributes
    ----------
    text : bytes or Span
        The lines, or where any process can read them.
    begun : int
        Bytes read of the line that follows them; 0 if `text` is a Span.
    progress : (int, int)
        Bytes of the file on disk read so far, and its size.
    """

    text: bytes | Span
    begun: int
    progress: tuple[int, int]

    def read(self) -> tuple[bytes, int]:
        """Return the lines, and the number of bytes read of the next line."""
        return (self.text, self.begun) if isinstance(self.text, bytes) else self.text.read()


def read_line_pieces(
    source: Source, skip: int = 0, piece_bytes: int = TUNING.piece_bytes
) -> Iterator[Piece]:
    """Yield the text of a file from byte `skip` on, in pieces of whole lines.

    The pieces of an uncompressed file are spans, which any process can read. While a line is read
    that is longer than a piece, pieces without text are yielded. A record (a row with a quoted
    newline) may continue in the next piece.
    """
    if source.compressed:
        yield from _read_sequentially(source, skip, piece_bytes)
        return
    head = source.read(piece_bytes)
    if _ends_in_returns(head, source):
        with Source(source.path) as again:
            yield from _read_sequentially(again, skip, piece_bytes)
        return
    at = first = skip + len(_BYTE_ORDER_MARK) * head.startswith(_BYTE_ORDER_MARK)
    head = head.removeprefix(_BYTE_ORDER_MARK)
    while not head.strip():
        if not (head := source.read(piece_bytes)):
            raise _empty_file_error(source)
    state, total = file_state(source.path), source.total
    while at < total:
        stop = min(at + piece_bytes, total)
        span = Span(source.path.absolute(), at, stop, state, at == first)
        yield Piece(span, 0, (stop, total))
        at = stop


def _read_sequentially(source: Source, skip: int, piece_bytes: int) -> Iterator[Piece]:
    """Yield the text of a file from byte `skip` on, as it is decompressed, cut at line ends.

    A thread decompresses one piece of `piece_bytes` ahead.
    """
    begun = b""
    for piece in _read_ahead(read_pieces(source, piece_bytes)):
        piece, skip = piece[skip:], max(skip - len(piece), 0)
        cut = piece.rfind(b"\n") + 1
        text, begun = (begun + piece[:cut], piece[cut:]) if cut else (b"", begun + piece)
        yield Piece(text, len(begun), source.progress())


def _read_ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces; a thread decompresses the next piece while the caller uses this one."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, pieces, None)
        while (piece := following.result()) is not None:
            following = pool.submit(next, pieces, None)
            yield piece


def name_lines(path: Place, lines: RowLines) -> Callable[[int], str]:
    """Return a function that names the line of the i-th row, for `Block.where`.

    `lines` holds the line number of each row of the file at `path`.
    """
    return partial(_name_line, path, lines)


def _name_line(path: Place, lines: RowLines, i: int) -> str:
    """Return the file and line of the i-th row."""
    return f"{path}, line {lines[i]}"


@dataclass
class RowLines:
    """Line number in which each row begins: ``numbers[i] + before``.

    `before` is the number of earlier lines: it is set once they are counted, and all functions that
    name rows share this object.
    """

    numbers: NDArray[np.int64]
    before: int = 0

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, i: int) -> int:
        return int(self.numbers[i]) + self.before

    def after(self, rows: int) -> RowLines:
        """Return the line numbers without the first `rows`; this object itself if `rows` is 0."""
        return RowLines(self.numbers[rows:], self.before) if rows else self


def too_long_error(path: Place, line: int) -> InputError:
    """Return the error for line number `line`, which is longer than MAX_RECORD_BYTES."""
    return InputError(
        f"{path}, line {line}: the line or an unclosed quoted field in it is longer than "
        f"{MAX_RECORD_BYTES >> 20} MiB; check the file's format and its quotes."
    )


def decode(token: bytes) -> str:
    """Return bytes decoded as UTF-8, or as Latin-1 if they are not UTF-8."""
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        return token.decode("latin-1")
