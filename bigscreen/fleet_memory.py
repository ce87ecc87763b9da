"""How much memory a process really holds, and the most it ever held."""

from __future__ import annotations

import functools
import os
import threading
import time

import psutil

SAMPLE_SECONDS = 0.5

IDLE_LOOKS = 20
"""Times that the watching thread finds nobody to look for before it ends."""


def pss() -> int:
    """Bytes of memory of this process, pages shared with others counted by their share.

    Returns
    -------
    int
        The proportional set size; the resident set size where the system does not tell it.
    """
    try:
        return int(_process(os.getpid()).memory_full_info().pss)
    except (AttributeError, psutil.Error):
        return _resident()


class Sampler:
    """Looks at :func:`pss` twice a second, from a thread, and keeps the largest value.

    Where nobody has looked yet the peak is the resident set size: the proportional one takes
    milliseconds to ask for, as long as a small fit.
    """

    def __init__(self) -> None:
        self.now = self._peak = 0
        self._stopped = False
        _watch.add(self)

    @property
    def peak(self) -> int:
        """The most bytes seen."""
        return self._peak or _resident()

    def look(self) -> int:
        """Sample once, now; returns the bytes."""
        self.note(pss())
        return self.now

    def note(self, found: int) -> None:
        """Remember so many bytes."""
        self.now = found
        self._peak = max(self._peak, found)

    def stop(self) -> None:
        """Take a last sample and look no more (the peak stays readable)."""
        if not self._stopped:
            self._stopped = True
            _watch.remove(self)
            if not self._peak:
                self._peak = _resident()
                return
            self.look()


class _Watch:
    """The thread of all samplers of a process: to start one for each takes as long as a small fit.

    It ends by itself when there has been nobody to look for in a while.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samplers: set[Sampler] = set()
        self._thread: threading.Thread | None = None

    def add(self, sampler: Sampler) -> None:
        with self._lock:
            self._samplers.add(sampler)
            # (A child that was forked has the record of a thread, and no thread.)
            if self._thread is None or not self._thread.is_alive():
                name = "bigscreen-memory"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def remove(self, sampler: Sampler) -> None:
        with self._lock:
            self._samplers.discard(sampler)

    def _run(self) -> None:
        idle = 0
        while idle < IDLE_LOOKS:
            time.sleep(SAMPLE_SECONDS)
            with self._lock:
                wanted = list(self._samplers)
                idle = 0 if wanted else idle + 1
                if idle == IDLE_LOOKS:
                    self._thread = None
            if wanted:
                found = pss()
                for sampler in wanted:
                    sampler.note(found)


_watch = _Watch()
if hasattr(os, "register_at_fork"):
    # Whoever holds the lock while another thread forks does not let go of it in the child.
    os.register_at_fork(after_in_child=_watch.__init__)  # type: ignore[misc]


@functools.lru_cache(maxsize=1)
def _process(number: int) -> psutil.Process:
    """This process: to find out when it was started takes longer than to ask for its memory."""
    return psutil.Process(number)


def _resident() -> int:
    return int(_process(os.getpid()).memory_info().rss)
