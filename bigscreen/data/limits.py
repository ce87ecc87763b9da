"""Read untrusted JSON and NPY files: check declared sizes before any memory is allocated."""

from __future__ import annotations

import io
import json
import math
import os
import stat
import struct
import tokenize
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.files.remote import Place, RemotePath, is_url
from bigscreen.fleet.memory import usable_memory

_UNREADABLE = (
    SyntaxError,
    TypeError,
    RecursionError,
    MemoryError,
    OverflowError,
    tokenize.TokenError,
)
"""Errors that numpy raises for a damaged header of an NPY file."""

Header = tuple[tuple[int, ...], bool, np.dtype]
"""Header of an NPY array: shape, whether it is column-major, dtype."""


def check_regular(path: str | os.PathLike[str] | RemotePath) -> None:
    """Refuse a pipe, a device or a socket: opening a pipe without a writer would hang.

    A missing path passes, and so does a link to a file, for instance /dev/stdin.

    Raises
    ------
    InputError
        If the path exists and is neither a file nor a folder.
    """
    if is_url(path):
        return
    assert not isinstance(path, RemotePath)
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or a socket"
        raise InputError(
            f"{os.fspath(path)} is {kind} and no file, and it would be read more than once: write "
            "its content to a file first."
        )


def file_size(path: Place) -> int:
    """Return the size of a local or remote file in bytes."""
    return path.size() if isinstance(path, RemotePath) else path.stat().st_size


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; ValueError if it is invalid, nested too deeply or too large for this process."""
    if _json_bytes(len(text)) > usable_memory():
        raise ValueError(f"{len(text)} bytes of JSON are more than this process may hold")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def read_json(path: Place) -> Any:
    """Read and parse a JSON file; its size is checked before it is read.

    Raises
    ------
    ValueError
        If the content is not JSON, or too large for this process.
    OSError
        If the file cannot be read.
    """
    check_regular(path)
    if _json_bytes(file_size(path)) > usable_memory():
        raise ValueError("it is larger than this process may hold")
    return parse_json(path.read_bytes())


def _json_bytes(text_bytes: int) -> int:
    """Bound the bytes of the Python objects parsed from `text_bytes` bytes of JSON.

    "[[],[],..." reaches the bound.
    """
    return 30 * text_bytes


def read_npy_header(stream: IO[bytes]) -> Header:
    """Read an NPY array's header from a stream: shape, whether it is column-major, and dtype.

    Raises
    ------
    ValueError
        If the header is invalid, or the array holds Python objects, which could run code.
    """
    head = stream.read(10)
    if len(head) < 10 or head[:6] != np.lib.format.MAGIC_PREFIX or head[6] not in (1, 2, 3):
        raise ValueError("it does not begin as an NPY array does")
    wide = head[6] > 1
    if wide:
        head += stream.read(2)
    if len(head) < 10 + 2 * wide:
        raise ValueError("its header is cut off")
    (length,) = struct.unpack("<I" if wide else "<H", head[8:])
    if length > 10_000:  # numpy's own limit
        raise ValueError(f"its header has {length} bytes, more than any array needs")
    text = io.BytesIO(head[8:] + stream.read(length))
    read = np.lib.format.read_array_header_2_0 if wide else np.lib.format.read_array_header_1_0
    try:
        shape, by_columns, dtype = read(text)
    except _UNREADABLE as error:
        raise ValueError(f"its header cannot be read: {type(error).__name__}") from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects (a pickle), which could run code when read")
    if dtype.itemsize == 0 or any(n < 0 for n in shape):
        raise ValueError(f"its header says {shape} values of type {dtype.str!r}")
    return shape, by_columns, dtype


def npy_bytes(header: Header) -> int:
    """Compute the size in bytes of the array that an NPY header declares."""
    return math.prod(header[0]) * header[2].itemsize


def read_npy(stream: IO[bytes], size: int) -> NDArray[Any]:
    """Read a whole array in NPY format from a stream of `size` bytes.

    Raises
    ------
    ValueError
        If the header is invalid, or its declared size is not the size of the rest of the stream.
    """
    header = read_npy_header(stream)
    declared, held = npy_bytes(header), size - stream.tell()
    if held != declared:
        which = "longer" if held > declared else "shorter"
        raise ValueError(f"it is {which} than its header says")
    array = read_values(stream, header)
    # zipfile compares the checksum only at a read beyond the end.
    stream.read(1)
    return array


def read_values(stream: IO[bytes], header: Header) -> NDArray[Any]:
    """Read the values of an NPY array after its header was read and its size was checked.

    Raises
    ------
    EOFError
        If the stream ends before all values were read.
    """
    shape, by_columns, dtype = header
    array = np.empty(shape[::-1] if by_columns else shape, dtype)
    rest = array.reshape(-1).view(np.uint8).data
    while rest:
        part = stream.read(min(len(rest), 16 << 20))  # does not allocate the whole array again
        if not part:
            raise EOFError("it ends before all its values")
        rest[: len(part)] = part
        rest = rest[len(part) :]
    return array.T if by_columns else array
