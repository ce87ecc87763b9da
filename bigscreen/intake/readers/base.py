"""What every reader gives (blocks of rows) and opens (a file, perhaps compressed)."""

from __future__ import annotations

import importlib
import lzma
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigscreen.data.layout import take
from bigscreen.data.limits import check_regular, file_size
from bigscreen.errors import InputError, NoRows, reason_of
from bigscreen.files.remote import Place, RemotePath, located
from bigscreen.fleet.protocol import Each

PIECE_BYTES = 8 << 20
"""Uncompressed bytes read at a time; what a text reader parses, and so holds, at once."""

WHOLE_BYTES = 4 * PIECE_BYTES
"""Numbers of a small file or row group, which is read whole and by anybody."""

LONGEST_RECORD = 128 << 20
"""A line longer than this is refused: memory stays bounded whatever the file holds."""

COMPRESSION_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")

_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
}
"""The first bytes of compressed files."""

_OPENERS: dict[str | None, Callable[[BinaryIO], Any]] = {"xz": lzma.LZMAFile}
"""What unpacks a compression that pyarrow does not know, or takes twice the time for."""
_DAMAGED: tuple[type[Exception], ...] = (EOFError, OSError, lzma.LZMAError)
with suppress(ImportError):
    igzip = importlib.import_module("isal.igzip")
    _OPENERS["gzip"] = lambda raw: igzip.IGzipFile(fileobj=raw, mode="rb")
    _DAMAGED = (*_DAMAGED, importlib.import_module("isal.isal_zlib").error)

_UNPACKED_BYTES = 1 << 16
"""Unpack this many bytes at a time: an error names the place of a damage as exactly as that."""


@dataclass
class Block:
    """Consecutive rows of a source.

    Attributes
    ----------
    X : ndarray of float64 or float32, (rows, d), or csr_array
        Features; a categorical column holds the position of its category in ``Reader.categories``
        (-1: a category unknown to the given ones). For svmlight the columns are the indices as
        written in the file: see ``SvmlightReader.index_base``.
    y : ndarray, (rows,), or None
        Labels. A label that reads as a number is a float, any other a str; the dtype is numeric
        when all labels of the block are numbers and object otherwise.
    weight : ndarray of float64, (rows,), or None
        Sample weights, not negative.
    first_row : int
        Number of the block's first row in the source, from 0.
    where : callable
        ``where(i)`` names the place of the block's i-th row (from 0): "a.csv, line 12".
    """

    X: NDArray[np.floating] | csr_array
    y: NDArray[Any] | None
    weight: NDArray[np.float64] | None
    first_row: int
    where: Callable[[int], str]

    def take(self, rows: NDArray[np.int64]) -> Block:
        """Return some rows, in their order; `first_row` stays that of the block."""
        y = None if self.y is None else self.y[rows]
        weight = None if self.weight is None else self.weight[rows]
        where = partial(_picked, self.where, rows)
        return Block(take(self.X, rows), y, weight, self.first_row, where)


def _picked(where: Callable[[int], str], rows: NDArray[np.int64], i: int) -> str:
    return where(int(rows[i]))


class Reader:
    """A source of labelled rows.

    Attributes
    ----------
    names : list of str or None
        Names of the columns of X.
    n_features : int or None
        Columns of X; None as long as only reading can tell (svmlight).
    n_rows : int or None
        Rows, if the source says how many it has.
    sparse : bool
        Whether the blocks hold csr_array.
    anywhere : bool
        Whether the work that `blocks` leaves to `each` can be done by other processes.
    identity : str or None
        Equal for equal content of data in Python. None: nobody can tell whether the same data come
        a second time, so an ingest of them is never gone on with.
    left_out, index_names : list of str
        See `TableColumns`.
    categories : dict of int to list of str
        Categories of each categorical column of X, in code order. They grow while reading, unless
        they were given or declared.
    unseen : dict of int to int
        For each categorical column with given categories, how many values so far were not among
        them.
    dates, hashed : dict
        Columns of X that hold dates, and their formats; hashed texts, and their bits.
    truths, blank : set of int
        Columns of X that hold truth values, and those that hold nothing but missing values in the
        first rows.
    """

    names: list[str] | None = None
    n_features: int | None = None
    n_rows: int | None = None
    sparse = False
    anywhere = False
    identity: str | None = None

    def __init__(self) -> None:
        self.left_out: list[str] = []
        self.index_names: list[str] = []
        self.categories: dict[int, list[str]] = {}
        self.unseen: dict[int, int] = {}
        self.dates: dict[int, str] = {}
        self.hashed: dict[int, int] = {}
        self.truths: set[int] = set()
        self.blank: set[int] = set()

    def blocks(self, skip_rows: int = 0, each: Each = map) -> Iterator[Block]:
        """Yield the rows from number `skip_rows` on; block boundaries may vary, rows do not.

        What needs nothing of the rows before is done by `each`, such as on many threads.
        """
        raise NotImplementedError

    def progress(self) -> tuple[int, int]:
        """Bytes read and bytes in all (0: not known), of a file as it lies on disk."""
        raise NotImplementedError


def tried(parse: Callable[[Any], Any], item: Any) -> tuple[Any, Any]:
    """An item, and what `parse` makes of it; None where that fails, to be said in turn."""
    try:
        return item, parse(item)
    except OtherFile:
        raise
    except InputError:
        return item, None


def row_places(name: str, first: int) -> Callable[[int], str]:
    """Return `Block.where` for rows of a source that are numbered from `first` on."""
    return partial(_row_place, f"{name}, row" if name else "row", first)


def _row_place(row: str, first: int, i: int) -> str:
    return f"{row} {first + i}"


def base_name(path: str | Place) -> str:
    """Return the file's name, in lower case, without a suffix that tells its compression."""
    name = located(path).name.lower()
    for suffix in COMPRESSION_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


class Source:
    """A file opened for reading from the start to the end, decompressed by its first bytes.

    Parameters
    ----------
    path : str, Path or RemotePath
        Plain, gzip, bzip2 or xz; the name does not matter.

    Raises
    ------
    InputError
        If the path is missing, a folder, unreadable or empty; while reading, if it is damaged.
    """

    def __init__(self, path: str | Place) -> None:
        self.path = located(path)
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
        if self._kind in _OPENERS:
            self._file = _OPENERS[self._kind](self._raw)
        elif self._kind is not None:
            import pyarrow  # here, as what is in Python already needs none

            raw = pyarrow.PythonFile(self._raw, mode="r")
            self._file = pyarrow.CompressedInputStream(raw, self._kind)
        self._take: Callable[[int], bytes] = self._file.read
        self._read = self._done = 0

    def read(self, size: int) -> bytes:
        """Return the next `size` uncompressed bytes; fewer only at the end of the file."""
        parts: list[bytes] = []
        missing = size
        while missing > 0:
            step = min(missing, _UNPACKED_BYTES) if self.compressed else missing
            try:
                part = self._take(step)
            except _DAMAGED as error:
                if getattr(error, "errno", None) is not None:  # of the disk, not of what is there
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
        """Bytes of the file on disk consumed so far, and its size."""
        return (self._done if self._raw.closed else self._raw.tell(), self.total)

    def close(self) -> None:
        """Close the file; `progress` then says how far it was read."""
        if not self._raw.closed:
            self._done = self._raw.tell()
        self._file.close()
        self._raw.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def text_pieces(source: Source) -> Iterator[bytes]:
    """Yield the text of `source` in pieces of about PIECE_BYTES; every line ends with a newline.

    A piece may end within a line. A byte order mark is dropped. Carriage returns count as newlines
    where no newline stands.

    Raises
    ------
    InputError
        If there is nothing but white space, or the text is UTF-16.
    """
    last = b""
    blank, returns = True, False
    while piece := source.read(PIECE_BYTES):
        if not last:
            returns = _ends_in_returns(piece, source)
            piece = piece.removeprefix(_BYTE_ORDER)
        if returns:
            piece = piece.replace(b"\r", b"\n")
        blank = blank and not piece.strip()
        last = piece
        yield piece
    if blank:
        raise _blank(source)
    if not last.endswith(b"\n"):
        yield b"\n"


_BYTE_ORDER = b"\xef\xbb\xbf"


def _ends_in_returns(head: bytes, source: Source) -> bool:
    """Whether carriage returns end the lines of a text, by its first piece."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{source.path} is UTF-16 text: save it as UTF-8.")
    return b"\r" in head and b"\n" not in head


def _blank(source: Source) -> InputError:
    return NoRows(f"{source.path} is empty: give a file with at least one row.")


class OtherFile(InputError):
    """A file that is not the one that was begun with."""


@dataclass(frozen=True)
class Span:
    """The lines of a plain file that begin within a range of its bytes, for anybody to read.

    Attributes
    ----------
    path : Place
    start, stop : int
    state : (int, int or str)
        Size and mark of the file, by which another one, or one that has changed, is known.
    first : bool
        Whether a line is known to begin at `start`.
    """

    path: Place
    start: int
    stop: int
    state: tuple[int, int | str]
    first: bool

    def read(self) -> tuple[bytes, int]:
        """The lines, and the bytes of one that is too long to be read to its end, or 0.

        Raises
        ------
        InputError
            If the file cannot be read, or is not the one that was cut into spans.
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
                last = b"" if text.endswith(b"\n") else file.readline(LONGEST_RECORD + 1)
        except OSError as error:
            reason = error.strerror or "there is no such file"
            raise InputError(f"{self.path} cannot be read: {reason}.") from None
        if len(last) > LONGEST_RECORD:
            cut = text.rfind(b"\n") + 1
            return text[begin:cut], len(text) - cut + len(last)
        end = b"" if (last or text).endswith(b"\n") else b"\n"
        return b"".join([memoryview(text)[begin:], last, end]), 0


def state_of(path: Place) -> tuple[int, int | str]:
    """The size of a file, and what changes when it does."""
    if isinstance(path, RemotePath):
        return path.size(), path.mark()
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def check_state(path: Place, state: tuple[int, int | str]) -> None:
    """Raise OtherFile unless a file is there, in the state that it was found in."""
    try:
        found = state_of(path)
    except OSError as error:
        reason = error.strerror or "there is no such file"
        raise OtherFile(f"{path} cannot be read: {reason}.") from None
    if found != state:
        raise OtherFile(
            f"{path} is not the file that was begun with (its size or its time differs): leave it "
            "as it is while it is read, the same for every worker."
        )


class Piece(NamedTuple):
    """Whole lines of a text, the bytes read of the line behind them, and how far the file is."""

    text: bytes | Span
    begun: int
    progress: tuple[int, int]

    def read(self) -> tuple[bytes, int]:
        """The lines, and the bytes read of the line behind them."""
        return (self.text, self.begun) if isinstance(self.text, bytes) else self.text.read()


def line_pieces(source: Source, skip: int = 0) -> Iterator[Piece]:
    """Yield the text of `source` from byte `skip` on, cut where lines end; see `text_pieces`.

    The pieces of a file that is not compressed are spans, which any process can read. A line that
    is longer than a piece comes after, or before, pieces without text. A record may go on behind
    the end of a piece.
    """
    if source.compressed:
        yield from _unpacked(source, skip)
        return
    head = source.read(PIECE_BYTES)
    if _ends_in_returns(head, source):
        with Source(source.path) as again:
            yield from _unpacked(again, skip)
        return
    at = first = skip + len(_BYTE_ORDER) * head.startswith(_BYTE_ORDER)
    head = head.removeprefix(_BYTE_ORDER)
    while not head.strip():
        if not (head := source.read(PIECE_BYTES)):
            raise _blank(source)
    state, total = state_of(source.path), source.total
    while at < total:
        stop = min(at + PIECE_BYTES, total)
        span = Span(source.path.absolute(), at, stop, state, at == first)
        yield Piece(span, 0, (stop, total))
        at = stop


def _unpacked(source: Source, skip: int) -> Iterator[Piece]:
    """Yield the text of a file as it is read, or unpacked, one piece after the other."""
    begun = b""
    for piece in _ahead(text_pieces(source)):
        piece, skip = piece[skip:], max(skip - len(piece), 0)
        cut = piece.rfind(b"\n") + 1
        text, begun = (begun + piece[:cut], piece[cut:]) if cut else (b"", begun + piece)
        yield Piece(text, len(begun), source.progress())


def _ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces; a thread unpacks the next one while this one is worked on."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, pieces, None)
        while (piece := following.result()) is not None:
            following = pool.submit(next, pieces, None)
            yield piece


def line_places(path: Place, lines: RowLines) -> Callable[[int], str]:
    """Return `Block.where` for rows that begin in the given lines."""
    return partial(_line_place, path, lines)


def _line_place(path: Place, lines: RowLines, i: int) -> str:
    return f"{path}, line {lines[i]}"


@dataclass
class RowLines:
    """The line in which each row begins, from line `before` on: shared by all that name places."""

    numbers: NDArray[np.int64]
    before: int = 0

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, i: int) -> int:
        return int(self.numbers[i]) + self.before

    def after(self, rows: int) -> RowLines:
        """Those without the first `rows`; the same object if that is none of them."""
        return RowLines(self.numbers[rows:], self.before) if rows else self


def too_long(path: Place, line: int) -> InputError:
    """Return the error for a line that no bounded buffer holds."""
    return InputError(
        f"{path}, line {line}: the line or an unclosed quoted field in it is longer than "
        f"{LONGEST_RECORD >> 20} MiB; check the file's format and its quotes."
    )


def decode(token: bytes) -> str:
    """Return the text of a token: UTF-8, or Latin-1 where it is not UTF-8."""
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        return token.decode("latin-1")
