"""How many bytes of memory a process may use, by its machine, its container and its user."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from pathlib import Path

from bigscreen.fleet.ulimit import soft_limit

ALLOWED_SHARE = 0.8
"""Part of what a process may use that a job takes unless its ``memory`` says how much."""

TERMINATE = 0.95
"""Part of a worker's limit beyond which Dask's nanny ends it (Dask's own default)."""

LIBRARY_BYTES = 80 * 2**20
"""Pages of libraries that workers of one machine share. Dask counts them in every worker, a plan
once (measured on workers with everything imported: 65 to 80 MiB)."""

STEP_BYTES = 2**26
"""Bytes that a step of a shard takes beside its state: a block of rows, and what is made of it."""

_LIMITS = (
    # Version 2 has one tree; version 1 has one for each resource.
    ("", ("memory.max", "memory.high")),
    ("memory", ("memory.limit_in_bytes",)),
)
"""Controllers as /proc/self/cgroup names them, and the files of a group that hold its limits."""


def usable_memory() -> int:
    """Bytes of memory that this process may use.

    Returns
    -------
    int
        The least of the machine's memory, of the limits of its control groups (versions 1 and 2,
        those that enclose its own included), and of what the limits on its address space and data
        (`ulimit -v`, `ulimit -d`) leave beside what it holds already.
    """
    found = machine_memory()
    for kind, name in (("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData")):
        limit = soft_limit(kind)
        if limit is not None:
            # What is mapped and not in memory, such as code of libraries, counts there alone.
            found = min(found, max(0, limit - _status(name) + _status("VmRSS")))
    return found


def allowed_memory(asked: int | None = None) -> int:
    """Bytes of memory that a job may take: as asked, else 0.8 of what its process may use."""
    return asked or int(ALLOWED_SHARE * usable_memory())


@functools.cache
def machine_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that all processes beside this one may use together.

    ``root``: of the file system in which limits of control groups are looked up.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_group_limits(root)])


def limit_of(held: int) -> int:
    """The limit to give a Dask worker that may hold `held` bytes next to shared libraries."""
    return int((held + LIBRARY_BYTES) / TERMINATE)


def held_within(limit: int) -> int:
    """Bytes that a Dask worker may hold, beside shared libraries, before its nanny ends it."""
    return max(0, int(TERMINATE * limit) - LIBRARY_BYTES)


def give_back() -> None:
    """Let the system have the memory that was freed, where the allocator keeps it.

    glibc keeps the memory of freed arrays of up to 32 MiB, such as the arrays of a chunk.
    """
    if trim := getattr(_C, "malloc_trim", None):
        trim(0)


_C = ctypes.CDLL(None) if os.name == "posix" else None


def rows_within(limit: int, threads: int) -> int:
    """Resident bytes up to which a Dask worker keeps rows in memory between rounds.

    What is left up to its end are blocks that its threads read meanwhile.
    """
    return max(0, int(TERMINATE * limit) - threads * STEP_BYTES)


def _group_limits(root: Path) -> list[int]:
    """The limits of the control groups that this process is in, of either version."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        for controller, names in _LIMITS:
            if controller in controllers.split(","):
                # Within a container the group's own path may not be there: its root then is.
                within = Path(group.lstrip("/"))
                for each in (within, *within.parents):
                    folder = root / "sys/fs/cgroup" / controller / each
                    found += [n for n in (_number(folder / name) for name in names) if n]
    return found


def _number(file: Path) -> int | None:
    """The number that a file holds; None for the word "max", and where there is no such file."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


def _status(name: str) -> int:
    """Bytes that the system counts of this process under a name of /proc/self/status."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) << 10 if found else 0
