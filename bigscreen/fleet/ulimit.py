"""Limits that a user's shell sets for the memory of a process (`ulimit`).

They are looked at before anything large is imported: this module imports next to nothing.
"""

from __future__ import annotations

try:
    import resource
except ImportError:  # pragma: no cover - not a POSIX system
    resource = None  # type: ignore[assignment]

ADDRESS_BYTES, DATA_BYTES = 2**30, 400 * 2**20
"""Address space (`ulimit -v`) and private writeable part of it (`ulimit -d`) that the libraries
take before there is any data (measured: 760 and 320 MiB, and some for threads). BLAS hangs while it
is loaded where there is less."""


def soft_limit(kind: str) -> int | None:
    """A limit of this process in bytes, None where it has none."""
    if not hasattr(resource, kind):
        return None
    soft, _ = resource.getrlimit(getattr(resource, kind))
    return None if soft == resource.RLIM_INFINITY else int(soft)


def too_narrow() -> str | None:
    """Why the limits of the user's shell leave no room for the libraries: a sentence, or None."""
    needs = ("RLIMIT_AS", "-v", ADDRESS_BYTES), ("RLIMIT_DATA", "-d", DATA_BYTES)
    for kind, flag, least in needs:
        limit = soft_limit(kind)
        if limit is not None and limit < least:
            return (
                f"a process may have {limit >> 20} MiB here (`ulimit {flag}`), and the libraries "
                f"that bigscreen loads take {least >> 20} MiB before there is any data: raise the "
                f"limit with `ulimit {flag} {least >> 10}` or more"
            )
    return None
