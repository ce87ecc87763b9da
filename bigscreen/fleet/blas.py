"""Limit BLAS to one thread while the threads of a fleet use the cores.

The bits of a matrix product depend on the number of BLAS threads, which is one setting for the
whole process. Fits in several threads, and unfinished generators, set and release limits in any
order. So all limits in force are counted, and BLAS has the smallest of them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController


@contextmanager
def blas_threads(limit: int) -> Iterator[None]:
    """Limit BLAS to at most ``limit`` threads within a with-block; never raises its threads."""
    _limits.change(limit, 1)
    try:
        yield
    finally:
        _limits.change(limit, -1)


class _Limits:
    """The limits in force, and the number of threads of each BLAS library before them."""

    def __init__(self) -> None:
        """Begin without limits: ``_holders`` counts each limit, ``_own`` is by library path."""
        self._lock = threading.Lock()
        self._holders: dict[int, int] = {}
        self._own: dict[str, int] = {}

    def change(self, limit: int, by: int) -> None:
        """Add a holder of this limit (``by`` = 1), or remove one (-1)."""
        with self._lock:
            count = self._holders.pop(limit, 0) + by
            if count:
                self._holders[limit] = count
            for library in _find_libraries(len(sys.modules)):
                now = library.num_threads
                own = self._own.setdefault(library.filepath, now)
                wanted = min([own, *self._holders])
                if wanted != now:
                    _set_threads(library, wanted)
            if not self._holders:
                self._own.clear()


def _set_threads(library: Any, threads: int) -> None:
    """Set the number of threads of a BLAS library, from any thread.

    From threadpoolctl 3.8 on, only the first thread that sets the threads of OpenBLAS can set them
    again; calls from other threads are silently ignored, even during a fit.
    """
    free = getattr(library, "clear_controlling_thread", None)
    if free is not None:
        free(force=True)
    library.set_num_threads(threads)
    if free is not None:
        free(force=True)


_limits = _Limits()


@lru_cache(maxsize=1)
def _find_libraries(modules: int) -> list[Any]:
    """Return the BLAS libraries in use; ``modules`` (their number) is the key of the cache.

    Only an import can load another library. A search takes 3 ms; to compare the names of all
    modules would take as long as a short round.
    """
    found: list[Any] = ThreadpoolController().select(user_api="blas").lib_controllers
    return found
