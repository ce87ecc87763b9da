"""The log of a run: a file (`--log`) with each event as one line of JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import IO, Any, Self

from bigscreen.errors import reason_of
from bigscreen.fleet.retiring import LOG
from bigscreen.report.report import plain, warn


class Journal:
    """Passes events on, and appends each to a log file as one line of JSON, with the UTC time.

    The first line of a run is ``{"event": "start", "command", "out", "pid", "host"}``. Its last
    line is ``{"event": "end", "outcome"}``; the outcome is "done", "interrupted" or "failed" (with
    the error's sentence as ``why``). A run that was killed has no last line. NaN and infinities
    are written as null.

    What the fleet says of its workers (they join, die, leave) is an event, too:
    ``{"event": "workers", "change": sentence}``.

    If the log cannot be written, the run warns once and goes on.

    Parameters
    ----------
    show : callable
        Receives every event first.
    command, out : str
        The command that runs, and the file that it makes.
    log : str or None
        The log file; lines are appended.
    """

    def __init__(
        self, show: Callable[[dict[str, Any]], None], command: str, out: str, log: str | None
    ) -> None:
        """Keep the parameters; the file is opened at the first event."""
        self._show, self._log = show, log
        self._start = {"event": "start", "command": command, "out": out}
        self._begun = False
        self._file: IO[str] | None = None
        self._fleet = _FleetEvents(self)

    def __enter__(self) -> Self:
        """Listen to what the fleet (the workers) logs, which becomes events of the journal."""
        self._level = LOG.level
        LOG.setLevel(logging.INFO)
        LOG.addHandler(self._fleet)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write the last line of the run: it is done, was interrupted, or failed with an error."""
        LOG.removeHandler(self._fleet)
        LOG.setLevel(self._level)
        if not self._begun:
            return
        end: dict[str, Any] = {"event": "end", "outcome": "done"}
        if isinstance(error, KeyboardInterrupt):
            end["outcome"] = "interrupted"
        elif error is not None:
            end |= {"outcome": "failed", "why": reason_of(error)}
        self._append(end)
        self._close()

    def __call__(self, event: dict[str, Any]) -> None:
        """Pass one event on, and log it."""
        self._show(event)
        if not self._begun:
            self._open()
            self._append({**self._start, "pid": os.getpid(), "host": socket.gethostname()})
        self._append(event)

    def _open(self) -> None:
        """Open the log file, if there is one; warn if it cannot be opened."""
        self._begun = True
        if self._log is not None:
            try:
                self._file = open(self._log, "a", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                warn(f"no log is kept in {self._log}: {reason_of(error)}")

    def _append(self, event: Mapping[str, Any]) -> None:
        """Write an event, with the time, as a line of JSON; at an error, warn and stop logging."""
        if self._file is None:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            self._file.write(json.dumps(plain({"time": now, **event}), allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            warn(f"the log {self._log} ends here: {reason_of(error)}")
            self._close()

    def _close(self) -> None:
        """Close the log file, if it is open; later events are not logged."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # what could not be written cannot be flushed
                file.close()


class _FleetEvents(logging.Handler):
    """Passes what the fleet (the workers of a run) logs on to a journal, as events."""

    def __init__(self, journal: Journal) -> None:
        """Pass log records to ``journal``."""
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a log record on, such as one about a worker that died, as an event "workers"."""
        self._journal({"event": "workers", "change": record.getMessage()})
