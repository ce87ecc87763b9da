"""How much memory a process really holds, and the most it ever held."""

from __future__ import annotations

import threading

import psutil

SAMPLE_SECONDS = 0.5


def pss() -> int:
    """Bytes of memory of this process, pages shared with others counted by their share.

    Returns
    -------
    int
        The proportional set size; the resident set size where the system does not tell it.
    """
    process = psutil.Process()
    try:
        return int(process.memory_full_info().pss)
    except (AttributeError, psutil.Error):
        return int(process.memory_info().rss)


class Sampler:
    """A daemon thread that looks at :func:`pss` twice a second and keeps the largest value."""

    def __init__(self) -> None:
        self.now = self.peak = pss()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bigscreen-memory", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self.look()

    def look(self) -> int:
        """Sample once, now; returns the bytes."""
        self.now = pss()
        self.peak = max(self.peak, self.now)
        return self.now

    def stop(self) -> None:
        """Take a last sample and end the thread (the peak stays readable)."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            self.look()
