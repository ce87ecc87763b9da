"""Temporary folders of this user alone; a run removes the folders that killed runs have left."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bigscreen.errors import InputError
from bigscreen.files.locks import lock, same

PREFIX = "bigscreen-"
LOCK = "owner.lock"


@contextmanager
def scratch(kind: str, parent: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Make a new folder for temporary files, and remove the folder at the end.

    The owner holds a lock in the folder, which the system drops with the process, however that
    ends: folders of this module that killed processes have left in `parent` are removed first.

    Parameters
    ----------
    kind : str
        A part of the folder's name, for people.
    parent : path, optional
        Default: where temporary files go (``TMPDIR``).
    """
    place = Path(tempfile.gettempdir() if parent is None else parent)
    _clear(place)
    made = tempfile.TemporaryDirectory(
        prefix=f"{PREFIX}{kind}-", dir=place, ignore_cleanup_errors=True
    )
    with made as folder, open(Path(folder, LOCK), "w") as file:
        # Another process may be looking at this folder just now, but it finds the lock free only
        # in the moment before this one; it then has the folder to itself, and a name is cheap.
        if lock(file.fileno()) and same(file.fileno(), Path(file.name)):
            yield Path(folder)
            return
    with scratch(kind, parent) as other:
        yield other


def _clear(place: Path) -> None:
    """Remove this user's scratch folders whose owners are gone."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if not is_private(folder):
                continue
            with open(folder / LOCK, "r+") as file:  # a folder without one is not a scratch folder
                if lock(file.fileno(), without=False):
                    _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a scratch folder, the lock last: what another process still writes goes next time."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()
    (folder / LOCK).unlink()
    folder.rmdir()


def private_folder(name: str) -> Path:
    """Return the folder of a name where temporary files go, made if need be, of this user alone.

    Unlike a `scratch` folder it stays, for a later run that goes on with what is in it.

    Raises
    ------
    InputError
        If something stands there that other users can change, or have made.
    """
    folder = Path(tempfile.gettempdir(), f"{PREFIX}{name}")
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not is_private(folder):
            raise InputError(
                f"{folder} is not a folder of yours that nobody else can change: remove it, or set "
                "TMPDIR to a folder of your own"
            ) from None
    return folder


def is_private(folder: Path) -> bool:
    """Whether a path is a folder, not a link, that belongs to this user and is open to no other."""
    found = folder.lstat()
    own = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return stat.S_ISDIR(found.st_mode) and own


def check_own(folder: Path) -> None:
    """Refuse a folder that another user may have put where this user works.

    Parameters
    ----------
    folder : Path
        There or not. In a place where every user may write, such as ``/tmp``, it must be a folder
        (not a link to one) of this user, or of the place's owner.

    Raises
    ------
    InputError
    """
    try:
        found, place = folder.lstat(), folder.absolute().parent.stat()
    except OSError:  # there is none, or what is there says itself why it cannot be used
        return
    own = stat.S_ISDIR(found.st_mode) and found.st_uid in (os.geteuid(), place.st_uid)
    if place.st_mode & stat.S_IWOTH and not own:
        raise InputError(
            f"{folder} was put there by another user, or is a link: delete it, or work in a folder "
            "where only you may write"
        )
