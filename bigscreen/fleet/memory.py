"""Find how much memory a process may use: limits of the machine, container and user."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from pathlib import Path

from bigscreen.fleet.ulimit import soft_limit

ALLOWED_FRACTION = 0.8
"""A job uses at most this fraction of the memory that its process may use, unless the user sets a
limit in bytes."""

DASK_LIMIT_FRACTION = 0.95
"""Dask's nanny kills a worker process that uses more than this fraction of its memory limit (Dask's
default)."""

LIBRARY_BYTES = 80 * 2**20
"""Memory of library code that the workers of one machine share. Dask counts it in each worker, the
planner once (measured on workers with everything imported: 65 to 80 MiB)."""

_LIMITS = (
    # Version 2 has one tree; version 1 has one for each resource.
    ("", ("memory.max", "memory.high")),
    ("memory", ("memory.limit_in_bytes",)),
)
"""Controllers as /proc/self/cgroup names them, and the files with a group's limits."""


def usable_memory() -> int:
    """Return how many bytes of memory this process may use.

    Returns
    -------
    int
        The smallest of: the memory of the machine; the limits of the process's control groups and
        of all groups that contain them (versions 1 and 2); and what the limits on address space and
        data (`ulimit -v`, `ulimit -d`) leave, plus what the process holds already.
    """
    found = machine_memory()
    for kind, name in (("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData")):
        limit = soft_limit(kind)
        if limit is not None:
            # Mapped pages that are not in memory, such as library code, count for these limits
            # only.
            found = min(found, max(0, limit - _read_status(name) + _read_status("VmRSS")))
    return found


def allowed_memory(asked: int | None = None) -> int:
    """Return the bytes that a job may use: ``asked``, or 0.8 of what its process may use."""
    return asked or int(ALLOWED_FRACTION * usable_memory())


@functools.cache
def machine_memory(root: Path = Path("/")) -> int:
    """Return the bytes that all processes of this machine or container may use together.

    ``root`` is the root of the file system with the limits of control groups.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_group_limits(root)])


def limit_of(held: int) -> int:
    """Return the memory limit for a Dask worker that may hold `held` bytes of its own.

    The memory of library code, which workers share but Dask counts in each, is added.
    """
    return int((held + LIBRARY_BYTES) / DASK_LIMIT_FRACTION)


def held_within(limit: int) -> int:
    """Return the bytes that a Dask worker with this memory limit may hold of its own.

    The memory of library code, which workers share but Dask counts in each, is subtracted.
    """
    return max(0, int(DASK_LIMIT_FRACTION * limit) - LIBRARY_BYTES)


def return_memory() -> None:
    """Return freed memory to the system.

    The allocator of glibc keeps the memory of freed arrays of up to 32 MiB, such as those of a
    chunk.
    """
    if trim := getattr(_C, "malloc_trim", None):
        trim(0)


_C = ctypes.CDLL(None) if os.name == "posix" else None


def rows_within(limit: int, threads: int, step_bytes: int = 2**26) -> int:
    """Return the resident bytes up to which a Dask worker keeps rows of the data in memory.

    The rest of ``limit``, its memory limit, is for the blocks of rows that its threads read: each
    takes ``step_bytes`` for them during a step.
    """
    return max(0, int(DASK_LIMIT_FRACTION * limit) - threads * step_bytes)


def _group_limits(root: Path) -> list[int]:
    """Return the memory limits of this process's control groups, of either version."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        for controller, names in _LIMITS:
            if controller in controllers.split(","):
                # In a container the path of the group may be missing; the root is there.
                within = Path(group.lstrip("/"))
                for each in (within, *within.parents):
                    folder = root / "sys/fs/cgroup" / controller / each
                    found += [n for n in (_read_number(folder / name) for name in names) if n]
    return found


def _read_number(file: Path) -> int | None:
    """Read a number from a file; None for the word "max", or without such a file."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


def _read_status(name: str) -> int:
    """Return the bytes that /proc/self/status reports under a name."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) << 10 if found else 0
