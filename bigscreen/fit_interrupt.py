"""Ctrl-C during a fit."""

import signal
import threading
from types import FrameType

from bigscreen.fit_monitor import Monitor


class GracefulInterrupt:
    """Ctrl-C lets the pass end and a checkpoint be written; a second one stops at once."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.usable = (
            monitor.folder is not None and threading.current_thread() is threading.main_thread()
        )

    def __enter__(self) -> None:
        if self.usable:
            self.before = signal.signal(signal.SIGINT, self._interrupt)

    def __exit__(self, *_: object) -> None:
        if self.usable:
            signal.signal(signal.SIGINT, self.before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self.monitor.interrupted:
            self.monitor.interrupted = True
        elif callable(self.before):
            self.before(number, frame)
