"""Atomic output files, which appear complete or not at all, and locks on paths."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO

from bigscreen.errors import InputError
from bigscreen.files.locks import is_same_file, try_lock
from bigscreen.files.remote import RemotePath, is_url
from bigscreen.files.scratch import scratch

STDOUT = "-"
"""Path that means standard output."""

_DESCRIPTOR = re.compile(r"/dev/std(in|out|err)|/(?:dev|proc/self)/fd/(\d+)")
_STREAMS = {"in": 0, "out": 1, "err": 2}
_reserved: list[TextIO] = []


@contextmanager
def replacing(path: str | os.PathLike[str], durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets its name only if the block ends without an error.

    Parameters
    ----------
    path : path
        Final name; "-" is standard output. The target of a symbolic link is replaced, and the link
        stays. A pipe, a terminal or /dev/null is not replaced: the content is written to it at
        the end.
    durable : bool
        Whether the file must survive a power cut after the block. False is faster, but a power cut
        may leave a file of any content.

    Yields
    ------
    binary file
        Seekable and open for reading and writing. After an error it is removed, and an earlier
        file at `path` is unchanged.
    """
    if is_url(path):
        with scratch("upload") as folder, open(folder / "file", "w+b") as there:
            yield there
            there.flush()
            RemotePath(str(path)).take(there.name)
        return
    final = resolve_destination(path)
    if isinstance(final, int) or _is_special(final):
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            _copy_into(file, final)
        return
    beside, temporary = _open_temporary(Path(final))
    try:
        with beside:
            yield beside
            beside.flush()
            if durable:
                os.fsync(beside.fileno())
            # It is still open, so locked: no other process removes it as abandoned.
            os.replace(temporary, final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(Path(final).parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def resolve_destination(path: str | os.PathLike[str]) -> str | int:
    """Return the target of all symbolic links at `path`, or a number if it is a file descriptor."""
    place = os.fspath(path)
    if place == STDOUT:
        return 1
    for _ in range(40):  # as many links as Linux follows
        if found := _DESCRIPTOR.fullmatch(place):
            return int(found[2]) if found[2] else _STREAMS[found[1]]
        if not os.path.islink(place):
            break
        place = os.path.join(os.path.dirname(place), os.readlink(place))
    return place


def is_written_in_place(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is written in place, not replaced: a URL, pipe, terminal or descriptor."""
    if is_url(path):
        return True
    final = resolve_destination(path)
    return isinstance(final, int) or _is_special(final)


def _is_special(place: str) -> bool:
    """Whether a path exists and is neither a regular file nor a folder (a pipe, a device)."""
    try:
        mode = os.stat(place).st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _copy_into(file: IO[bytes], final: str | int) -> None:
    """Copy a file to ``final``: an open descriptor's number, or the path of a pipe or device."""
    if final == 1:
        out = _reserved[-1] if _reserved else sys.stdout
        out.flush()
        shutil.copyfileobj(file, out.buffer)
        out.flush()
        return
    flags = os.O_WRONLY | os.O_CLOEXEC
    descriptor = os.dup(final) if isinstance(final, int) else os.open(final, flags)
    with open(descriptor, "wb") as special:
        shutil.copyfileobj(file, special)


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Reserve standard output for an output file: `print` goes to standard error in the block."""
    _reserved.append(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _reserved.pop()


def _open_temporary(final: Path) -> tuple[IO[bytes], Path]:
    """Create and lock a temporary file next to `final`; return it and its name.

    The system drops the lock with the process: a temporary file without a lock was left by a
    killed process, and is deleted. Symbolic links are not followed.
    """
    stem = os.fsdecode(os.fsencode(final.name)[:200])
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for k in itertools.count():
        name = final.with_name(f".{stem}.{k}.tmp")
        try:
            descriptor = os.open(name, flags, 0o666)
        except FileExistsError:
            _remove_abandoned(name)
            try:
                descriptor = os.open(name, flags, 0o666)
            except FileExistsError:
                continue
        if try_lock(descriptor) and is_same_file(descriptor, name):
            return open(descriptor, "w+b"), name
        os.close(descriptor)  # another process deleted it as abandoned before it was locked
    raise AssertionError


def _remove_abandoned(name: Path) -> None:
    """Delete a temporary file if the process that made it has ended."""
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if try_lock(descriptor, if_unsupported=False) and is_same_file(descriptor, name):
            name.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


@contextmanager
def lock_path(path: str | os.PathLike[str], busy: str) -> Iterator[None]:
    """Lock a path against all other processes; the system drops the lock with the process.

    Parameters
    ----------
    path : path
        A folder, or a file that may not exist yet: then a hidden file next to it is locked.
    busy : str
        Message of the error if another process holds the lock.

    Raises
    ------
    InputError
        If another process holds the lock.
    """
    if is_url(path):
        yield
        return
    place = Path(path)
    folder = place.is_dir()
    if not folder:
        final = resolve_destination(path)
        if isinstance(final, int) or _is_special(final):
            yield
            return
        stem = os.fsdecode(os.fsencode(Path(final).name)[:200])
        place = Path(final).with_name(f".{stem}.lock")
    flags = os.O_RDONLY | os.O_DIRECTORY if folder else os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    while True:
        descriptor = os.open(place, flags | os.O_CLOEXEC, 0o666)
        if not try_lock(descriptor):
            os.close(descriptor)
            raise InputError(busy)
        if is_same_file(descriptor, place):
            break
        os.close(descriptor)  # the previous holder deleted it before it was locked
    try:
        yield
    finally:
        if not folder:
            with contextlib.suppress(OSError):
                place.unlink(missing_ok=True)
        os.close(descriptor)
