"""What every reader gives (blocks of rows) and opens (a file, perhaps compressed)."""

from __future__ import annotations

import bz2
import importlib
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, BinaryIO, Literal, NamedTuple, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigscreen.data.limits import check_regular, file_size
from bigscreen.errors import InputError, NoRows, reason_of
from bigscreen.files.remote import Place, RemotePath, located
from bigscreen.fleet.protocol import Each

inflate: Any = zlib
with suppress(ImportError):
    inflate = importlib.import_module("isal.isal_zlib")  # the same, in a third of the time

PIECE_BYTES = 8 << 20
"""Uncompressed bytes read at a time; what a text reader parses, and so holds, at once."""

WHOLE_BYTES = 4 * PIECE_BYTES
"""Numbers of a small file or row group, which is read whole and by anybody."""

LONGEST_RECORD = 128 << 20
"""A line longer than this is refused: memory stays bounded whatever the file holds."""

COMPRESSION_SUFFIXES = (".gz", ".bz2", ".xz")


class _Gunzip:
    """The content of a gzip file, of one member or several, in two thirds of the time of `gzip`."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._member = inflate.decompressobj(_OF_GZIP)

    def read1(self, size: int) -> bytes:
        """Some of the next bytes, at most `size`; none at the end.

        Raises
        ------
        EOFError, inflate.error
            If the file ends within a member, or is damaged.
        """
        while True:
            if self._member.eof:
                data = self._member.unused_data.lstrip(b"\0")  # what is padded, is by zeros
                while not data:
                    if not (data := self._raw.read(_PACKED_BYTES)):
                        return b""
                    data = data.lstrip(b"\0")
                self._member = inflate.decompressobj(_OF_GZIP)
            else:
                data = self._member.unconsumed_tail or self._raw.read(_PACKED_BYTES)
                if not data:
                    raise EOFError
            text: bytes = self._member.decompress(data, size)
            if text:
                return text

    def close(self) -> None:
        """Nothing: whoever opened the file closes it."""


_OF_GZIP = 31
"""What zlib calls the format of gzip, its checksum included."""

_MEMBER = re.compile(rb"\x1f\x8b\x08[\x00-\x1f].{4}[\x00\x02\x04][\x00-\x0d\xff]", re.DOTALL)
"""What a member of a gzip file begins with, and other bytes by chance: once in 200 GB."""

_MOST_UNPACKED = 64 << 20
"""Content of what is taken for members, at most: of more, it is unpacked piece by piece."""

_PACKED_BYTES = 1 << 14

_LINE_BYTES = 1 << 14
"""How far behind a range of bytes its last line is looked for at once."""

_MAGIC: dict[bytes, Callable[[BinaryIO], BinaryIO]] = {
    b"\x1f\x8b": lambda raw: cast(BinaryIO, _Gunzip(raw)),
    b"BZh": lambda raw: cast(BinaryIO, bz2.BZ2File(raw)),
    b"\xfd7zXZ\x00": lambda raw: cast(BinaryIO, lzma.LZMAFile(raw)),  # noqa: SIM115 (the caller closes)
}


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


class Reader(Protocol):
    """A source of labelled rows.

    Attributes
    ----------
    n_features : int or None
        Columns of X; None as long as only reading can tell (svmlight).
    sparse : bool
        Whether the blocks hold csr_array.
    names : list of str or None
        Names of the columns of X.
    categories : dict of int to list of str
        Categories of each categorical column of X, in code order. They grow while reading, unless
        they were given or declared.
    unseen : dict of int to int
        For each categorical column with given categories, how many values so far were not among
        them.
    """

    n_features: int | None
    sparse: bool
    names: list[str] | None
    categories: dict[int, list[str]]
    unseen: dict[int, int]

    def blocks(self, skip_rows: int = 0, each: Each = map) -> Iterator[Block]:
        """Yield the rows from number `skip_rows` on; block boundaries may vary, rows do not.

        What needs nothing of the rows before is done by `each`, such as on many threads. A reader
        with an attribute `anywhere` that is true leaves it to other processes, too.
        """
        ...

    def progress(self) -> tuple[int, int]:
        """Bytes read and bytes in all, both of the file as it lies on disk."""
        ...


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
        wrap = next((w for magic, w in _MAGIC.items() if head.startswith(magic)), None)
        self.compressed = wrap is not None
        self._file: BinaryIO = wrap(self._raw) if wrap else self._raw
        # What a damaged file still gives comes before the error, and shows where the damage is.
        self._take: Callable[[int], bytes] = getattr(self._file, "read1" if wrap else "read")
        self._read = self._done = 0

    def read(self, size: int) -> bytes:
        """Return the next `size` uncompressed bytes; fewer only at the end of the file."""
        parts: list[bytes] = []
        missing = size
        while missing > 0:
            try:
                part = self._take(missing)
            except (EOFError, OSError, inflate.error, lzma.LZMAError) as error:
                if getattr(error, "errno", None) is not None:  # of the disk, not of what is there
                    raise
                done = self._read + size - missing
                what = "ends too early" if isinstance(error, EOFError) else "is damaged"
                raise InputError(
                    f"{self.path} {what} after byte {done:,} of its uncompressed content, near "
                    f"byte {self._raw.tell():,} of the file's {self.total:,}: fetch the file again."
                ) from None
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        self._read += size - missing
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def members(self) -> bool:
        """Whether it seems to be a gzip file of several members of no great size."""
        if not isinstance(self._file, _Gunzip) or isinstance(self.path, RemotePath):
            return False
        with self.path.open("rb") as file:
            return _next_member(file, 0, self.total) < self.total

    def restart(self) -> None:
        """Go back to the start of a gzip file."""
        self._raw.seek(0)
        self._file = cast(BinaryIO, _Gunzip(self._raw))
        self._take, self._read = getattr(self._file, "read1"), 0  # noqa: B009 (no BinaryIO has it)

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
        The first begins a line.
    state : (int, int or str)
        Size and mark of the file, by which another one, or one that has changed, is known.
    returns : bool
        Whether carriage returns end its lines.
    first : bool
        Whether a line is known to begin at `start`.
    """

    path: Place
    start: int
    stop: int
    state: tuple[int, int | str]
    returns: bool
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
                size = self.stop - file.tell()
                # Most often with the end of the last line, so that nothing is copied once more.
                text = self._lines(file.read(size + _LINE_BYTES))
                begin = text.find(b"\n", 0, size) + 1 if before else 0
                if before and begin in (0, size):
                    return b"", 0
                if end := text.find(b"\n", size - 1) + 1:
                    return text[begin:end], 0
                parts = [text[begin:]]
                begun = len(text) - max(text.rfind(b"\n") + 1, begin)
                while begun <= LONGEST_RECORD and (more := file.read(max(begun, 1 << 16))):
                    more = self._lines(more)
                    if end := more.find(b"\n") + 1:
                        return b"".join([*parts, more[:end]]), 0
                    parts.append(more)
                    begun += len(more)
        except OSError as error:
            reason = error.strerror or "there is no such file"
            raise InputError(f"{self.path} cannot be read: {reason}.") from None
        text = b"".join(parts)
        if begun > LONGEST_RECORD:
            return text[:-begun], begun
        return text + b"\n", 0

    def _lines(self, text: bytes) -> bytes:
        return text.replace(b"\r", b"\n") if self.returns else text


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


@dataclass(frozen=True)
class Members:
    """The content of what looks like whole members of a gzip file, for anybody to unpack.

    Attributes
    ----------
    path : Place
    start, stop : int
        At `stop` stand the bytes that a member begins with, which may be nothing but chance, or the
        file ends.
    state, returns
        See `Span`.
    skip : int
        Bytes of the content to leave out; only of what is at the start of the file.
    """

    path: Place
    start: int
    stop: int
    state: tuple[int, int | str]
    returns: bool
    skip: int = 0

    def unpacked(self) -> Ends | None:
        """The content in three; None unless members end where they should, checksums and all.

        Raises
        ------
        OtherFile
            See `check_state`.
        """
        check_state(self.path, self.state)
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                packed = file.read(self.stop - self.start)
            parts, held, unpacked = [], 0, _Gunzip(io.BytesIO(packed))
            while part := unpacked.read1(PIECE_BYTES):
                parts.append(part)
                held += len(part)
                if held > _MOST_UNPACKED:
                    return None
        except (EOFError, OSError, inflate.error):
            return None
        text = b"".join(parts)
        if held < self.skip:
            return None
        if self.returns:
            text = text.replace(b"\r", b"\n")
        first = self.skip if self.start == 0 else text.find(b"\n") + 1 or held
        last = max(text.rfind(b"\n") + 1, first)
        return Ends(text[self.skip : first], text[first:last], text[last:], held)

    def read(self) -> tuple[bytes, int]:
        """The lines that begin behind a newline and end within, which were unpacked before."""
        ends = self.unpacked()
        assert ends is not None
        return ends.lines, 0


class Ends(NamedTuple):
    """A content in three: the end of a line, whole lines, the beginning of one; and its bytes."""

    before: bytes
    lines: bytes
    behind: bytes
    size: int


class Piece(NamedTuple):
    """Whole lines of a text, the bytes read of the line behind them, and how far the file is.

    Of members, when they were unpacked, what they hold beside whole lines; False: they are none.
    """

    text: bytes | Span | Members
    begun: int
    progress: tuple[int, int]
    ends: Ends | Literal[False] | None = None

    def read(self) -> tuple[bytes, int]:
        """The lines, and the bytes read of the line behind them."""
        return (self.text, self.begun) if isinstance(self.text, bytes) else self.text.read()

    def opened(self) -> tuple[Piece, bytes, int]:
        """The piece with its ends, and the same as `read` gives."""
        if not isinstance(self.text, Members):
            return self, *self.read()
        ends = self.text.unpacked()
        if ends is None:
            return self._replace(ends=False), b"", 0
        return self._replace(ends=ends._replace(lines=b"")), ends.lines, 0


def line_pieces(source: Source, skip: int = 0, apart: bool = True) -> Iterator[Piece]:
    """Yield the text of `source` from byte `skip` on, cut where lines end; see `text_pieces`.

    Of a file that is not compressed pieces are spans, and of a gzip file of many members, if they
    may lie ``apart``, runs of those, for `joined`: both can be read anywhere. A line that is longer
    than a piece comes after, or before, pieces without text. Whether a record ends where a line
    does, nobody has looked.
    """
    if not source.compressed:
        yield from _spans(source, skip)
    elif apart and source.members:
        yield from _members(source, skip)
    else:
        yield from _unpacked(source, skip)


def _unpacked(source: Source, skip: int) -> Iterator[Piece]:
    """Yield the text of a compressed file as it is unpacked, one piece after the other."""
    begun = b""
    for piece in _ahead(text_pieces(source)):
        piece, skip = piece[skip:], max(skip - len(piece), 0)
        cut = piece.rfind(b"\n") + 1
        text, begun = (begun + piece[:cut], piece[cut:]) if cut else (b"", begun + piece)
        yield Piece(text, len(begun), source.progress())


def _members(source: Source, skip: int) -> Iterator[Piece]:
    """Yield runs of members of a gzip file, as far as they look like it."""
    state, total = state_of(source.path), source.total
    head = source.read(PIECE_BYTES)
    returns = _ends_in_returns(head, source)
    skip += len(_BYTE_ORDER) * head.startswith(_BYTE_ORDER)
    start = 0
    with source.path.open("rb") as file:
        while start < total:
            stop = _next_member(file, start, total)
            members = Members(source.path.absolute(), start, stop, state, returns, skip)
            yield Piece(members, 0, (stop, total))
            start, skip = stop, 0


def _next_member(file: IO[bytes], start: int, total: int) -> int:
    """Where, some way behind `start`, a member seems to begin; `total` if that is too far off."""
    at, most = start + PIECE_BYTES // 4, start + PIECE_BYTES
    file.seek(at)
    found = _MEMBER.search(file.read(most - at))
    return total if found is None else at + found.start()


Tried = TypeVar("Tried")


def joined(
    source: Source, skip: int, tried: Iterable[tuple[Piece, Tried | None]]
) -> Iterator[tuple[Piece, Tried | None]]:
    """Yield what `tried` does, and between members the lines that lie on both sides.

    Where what looked like members is none, all is unpacked here from the start of the file, and
    what was done is left out.
    """
    begun, size = b"", 0
    progress = 0, source.total
    marked = 0  # bytes of a byte order mark
    for piece, parsed in tried:
        ends = piece.ends
        if ends is None:
            yield piece, parsed
            continue
        assert isinstance(piece.text, Members)
        if piece.text.start == 0:
            marked = piece.text.skip - skip
        if ends is False:
            source.restart()
            for rest in _unpacked(source, max(skip, size - marked - len(begun))):
                yield rest, None
            return
        size, progress, begun = size + ends.size, piece.progress, begun + ends.before
        if begun.endswith(b"\n"):
            yield Piece(begun, 0, progress), None
            begun = b""
        yield piece, parsed
        begun += ends.behind
        if len(begun) > LONGEST_RECORD:
            yield Piece(b"", len(begun), progress), None
    if begun:
        yield Piece(begun + b"\n", 0, progress), None


def _ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces; a thread unpacks the next one while this one is worked on."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, pieces, None)
        while (piece := following.result()) is not None:
            following = pool.submit(next, pieces, None)
            yield piece


def _spans(source: Source, skip: int) -> Iterator[Piece]:
    """Yield the spans of a plain file."""
    state, total = state_of(source.path), source.total
    head = source.read(PIECE_BYTES)
    returns = _ends_in_returns(head, source)
    at = first = skip + len(_BYTE_ORDER) * head.startswith(_BYTE_ORDER)
    head = head.removeprefix(_BYTE_ORDER)
    while not head.strip():
        if not (head := source.read(PIECE_BYTES)):
            raise _blank(source)
    while at < total:
        stop = min(at + PIECE_BYTES, total)
        span = Span(source.path.absolute(), at, stop, state, returns, at == first)
        yield Piece(span, 0, (stop, total))
        at = stop


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
