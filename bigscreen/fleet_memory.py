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
        return _resident()


class Sampler:
    """A daemon thread that looks at :func:`pss` twice a second and keeps the largest value.

    Where nobody has looked yet the peak is the resident set size: the proportional one takes
    milliseconds to ask for, as long as a small fit.
    """

    def __init__(self) -> None:
        self.now = self._peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bigscreen-memory", daemon=True)
        self._thread.start()

    @property
    def peak(self) -> int:
        """The most bytes seen."""
        return self._peak or _resident()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self.look()

    def look(self) -> int:
        """Sample once, now; returns the bytes."""
        self.now = pss()
        self._peak = max(self._peak, self.now)
        return self.now

    def stop(self) -> None:
        """Take a last sample and end the thread (the peak stays readable)."""
        if not self._stop.is_set():
            self._stop.set()
            if not self._peak:
                self._peak = _resident()
                return
            self._thread.join()
            self.look()


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)
