"""Locks on open files; the system drops a lock when its process ends."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors that say that a disk has no locks."""


def try_lock(descriptor: int, if_unsupported: bool = True) -> bool:
    """Lock an open file; return False if another process holds it.

    `if_unsupported` is returned on a disk without locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return if_unsupported
    return True


def is_same_file(descriptor: int, name: Path) -> bool:
    """Whether the file of this name is still the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(name, follow_symlinks=False))
    except FileNotFoundError:
        return False
