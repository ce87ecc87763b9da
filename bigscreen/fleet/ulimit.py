"""Limits that a user's shell sets for the memory of a process (`ulimit`).

They are checked before any large library is imported, so this module imports almost nothing.
"""

from __future__ import annotations

try:
    import resource
except ImportError:  # pragma: no cover - not a POSIX system
    resource = None  # type: ignore[assignment]

ADDRESS_BYTES, DATA_BYTES = 2**30, 400 * 2**20
"""Refuse to start if `ulimit -v` (address space) is below the first, or `ulimit -d` (private
writeable memory) below the second: with less, BLAS hangs while it is loaded. (Measured for the
libraries alone: 760 and 320 MiB.)"""


def soft_limit(kind: str) -> int | None:
    """Return a limit of this process in bytes; None if it has none."""
    if not hasattr(resource, kind):
        return None
    soft, _ = resource.getrlimit(getattr(resource, kind))
    return None if soft == resource.RLIM_INFINITY else int(soft)


def explain_narrow_limits() -> str | None:
    """Explain in a sentence why a limit of the shell is too low for the libraries, or None."""
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
