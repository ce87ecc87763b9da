"""Folders for the files of running processes; those of dead ones are cleared by the next run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "owner.lock"


@contextmanager
def scratch(prefix: str) -> Iterator[str]:
    """A new folder where temporary files go, removed at the end.

    Its owner holds a lock in it, which the system drops with the process, however that ends: what
    killed processes have left with this prefix is removed first.
    """
    _clear(prefix)
    made = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    with made as folder, open(Path(folder, LOCK), "w") as lock:
        # Another process may be looking at this folder just now, but it finds the lock empty only
        # in the moment before this one; it then has the folder to itself, and a name is cheap.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(lock.name):
            yield folder
            return
    with scratch(prefix) as folder:
        yield folder


def _clear(prefix: str) -> None:
    """Remove this user's folders with a prefix whose owners are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with open(folder / LOCK, "r+") as lock:  # one without is not ours to judge
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
