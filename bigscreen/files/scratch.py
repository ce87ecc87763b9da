"""Private temporary folders; each run removes the folders that killed runs have left."""

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
from bigscreen.files.locks import is_same_file, try_lock

PREFIX = "bigscreen-"
LOCK = "owner.lock"
"""Name of the file in a scratch folder that its owner holds locked."""


@contextmanager
def scratch(kind: str, parent: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Create a folder for temporary files, and remove it at the end of the block.

    The owner holds a lock in the folder, which the system drops with the process. First the
    scratch folders in `parent` whose owners have ended are removed.

    Parameters
    ----------
    kind : str
        Part of the folder's name, for information.
    parent : path, optional
        Created if it is missing. Default: the folder of temporary files (``TMPDIR``).
    """
    place = Path(tempfile.gettempdir() if parent is None else parent)
    place.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(place)
    made = tempfile.TemporaryDirectory(
        prefix=f"{PREFIX}{kind}-", dir=place, ignore_cleanup_errors=True
    )
    with made as folder, open(Path(folder, LOCK), "w") as file:
        # Another process may have found the lock free just before and be removing the folder:
        # then another folder is created.
        if try_lock(file.fileno()) and is_same_file(file.fileno(), Path(file.name)):
            yield Path(folder)
            return
    with scratch(kind, parent) as other:
        yield other


def _remove_abandoned(place: Path) -> None:
    """Remove scratch folders of this user whose owning processes have ended."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if not is_private(folder):
                continue
            with open(folder / LOCK, "r+") as file:  # a folder without one is not a scratch folder
                if try_lock(file.fileno(), if_unsupported=False):
                    _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a scratch folder, its lock last; files added meanwhile are removed by a later run."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()
    (folder / LOCK).unlink()
    folder.rmdir()


def make_private_folder(name: str) -> Path:
    """Return a private folder with a fixed name among the temporary files; create it if needed.

    Unlike a `scratch` folder it is not removed, so that a later run can resume with its files.

    Raises
    ------
    InputError
        If the path exists, and another user owns it or can change it.
    """
    folder = Path(tempfile.gettempdir(), f"{PREFIX}{name}")
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not is_private(folder):
            raise InputError(
                f"{folder} is not a folder that you own and only you can change: remove it, or set "
                "TMPDIR to a folder of your own"
            ) from None
    return folder


def is_private(folder: Path) -> bool:
    """Whether a path is a folder (not a link) of this user that no other user can open."""
    found = folder.lstat()
    own = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return stat.S_ISDIR(found.st_mode) and own


def check_own(folder: Path) -> None:
    """Refuse a folder that another user may have created in a folder that all users share.

    Parameters
    ----------
    folder : Path
        It may not exist. If all users may write to its parent, such as ``/tmp``, it must be a
        folder (not a link) of this user, or of the parent's owner.

    Raises
    ------
    InputError
    """
    try:
        found, place = folder.lstat(), folder.absolute().parent.stat()
    except OSError:  # it does not exist, or using it raises a clear error
        return
    own = stat.S_ISDIR(found.st_mode) and found.st_uid in (os.geteuid(), place.st_uid)
    if place.st_mode & stat.S_IWOTH and not own:
        raise InputError(
            f"{folder} was put there by another user, or is a link: delete it, or work in a folder "
            "where only you may write"
        )
