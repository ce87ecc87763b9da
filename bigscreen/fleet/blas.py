"""How many threads BLAS may have: one, while a fleet's own threads share the cores.

The bits of a product depend on it, and what it is belongs to the process: fits in several threads,
and generators that nobody has closed yet, hold it over each other in no order. So holders are
counted, and the least that anyone asks for is what everybody has.
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
    """BLAS on at most so many threads, and on no more than it had before."""
    _held.change(limit, 1)
    try:
        yield
    finally:
        _held.change(limit, -1)


class _Held:
    """The limits that are asked for now, and what every library had before the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: dict[int, int] = {}
        self._own: dict[str, int] = {}

    def change(self, limit: int, by: int) -> None:
        """One holder of this limit more, or one less."""
        with self._lock:
            count = self._holders.pop(limit, 0) + by
            if count:
                self._holders[limit] = count
            for library in _libraries(len(sys.modules)):
                now = library.num_threads
                own = self._own.setdefault(library.filepath, now)
                wanted = min([own, *self._holders])
                if wanted != now:
                    _set(library, wanted)
            if not self._holders:
                self._own.clear()


def _set(library: Any, threads: int) -> None:
    """Give a library so many threads, whichever thread asks.

    From threadpoolctl 3.8 on the first thread that sets OpenBLAS's is the only one that can: what
    others ask for is dropped without a word, in the middle of a fit, too.
    """
    free = getattr(library, "clear_controlling_thread", None)
    if free is not None:
        free(force=True)
    library.set_num_threads(threads)
    if free is not None:
        free(force=True)


_held = _Held()


@lru_cache(maxsize=1)
def _libraries(modules: int) -> list[Any]:
    """BLAS libraries in use; with so many modules, as it takes an import to bring new ones.

    (To look for them takes 3 ms, to compare the names of all modules as long as a short round.)
    """
    found: list[Any] = ThreadpoolController().select(user_api="blas").lib_controllers
    return found
