"""The journal of a run: what it has reported, as lines of JSON, for whoever looks on or later."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from bigscreen.data.limits import parse_json
from bigscreen.errors import reason_of
from bigscreen.report.report import plain, warn

JOURNAL = "journal.jsonl"
"""The journal in a work folder."""

OUTCOMES = ("done", "interrupted", "failed")


class Journal:
    """Pass events on, and append each to files as one line of JSON with the time, UTC.

    The first line of a run is ``{"event": "start", "command", "out", "pid", "host"}``, its last
    ``{"event": "end", "outcome"}`` with one of `OUTCOMES` and, of a failure, its sentence as
    ``why``; a run that was killed has none. Numbers that JSON has no word for are null.

    A run does not end because its journal cannot be written: that is warned of once.

    Parameters
    ----------
    show : callable
        Takes every event first.
    command, out : str
        What is run, and what it makes.
    work : path
        The run's folder: its journal is begun at the first event, when the folder is the run's own.
    resume : bool
        Whether lines of the run before stay.
    log : str or None
        Another file, to which lines are added behind what is there.
    """

    def __init__(
        self,
        show: Callable[[dict[str, Any]], None],
        command: str,
        out: str,
        work: Path,
        resume: bool,
        log: str | None,
    ) -> None:
        self._show, self._work, self._resume, self._log = show, work, resume, log
        self._start = {"event": "start", "command": command, "out": out}
        self._files: dict[str, IO[str]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._files is None:
            return
        end: dict[str, Any] = {"event": "end", "outcome": "done"}
        if isinstance(error, KeyboardInterrupt):
            end["outcome"] = "interrupted"
        elif error is not None:
            end |= {"outcome": "failed", "why": reason_of(error)}
        self._append(end)
        for file in self._files.values():
            file.close()

    def __call__(self, event: dict[str, Any]) -> None:
        """Take one event."""
        self._show(event)
        if self._files is None:
            self._open()
            self._append({**self._start, "pid": os.getpid(), "host": socket.gethostname()})
        self._append(event)

    def _open(self) -> None:
        self._files = {}
        places = [(str(self._work / JOURNAL), "a" if self._resume else "w")]
        for name, mode in [*places, *([(self._log, "a")] if self._log else [])]:
            try:
                self._files[name] = open(name, mode, encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                warn(f"no journal is kept in {name}: {reason_of(error)}")

    def _append(self, event: Mapping[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps(plain({"time": now, **event}), allow_nan=False) + "\n"
        for name, file in list((self._files or {}).items()):
            try:
                file.write(line)
                file.flush()
            except OSError as error:
                warn(f"the journal {name} ends here: {reason_of(error)}")
                del (self._files or {})[name]


class Reader:
    """The lines of a work folder's journal as they come, the last ones of a folder that goes, too.

    Parameters
    ----------
    path : path
        Of the journal; a run that starts anew begins it again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self._rest = b""

    def open(self) -> bool:
        """Open the journal; False if there is none (yet, or any more)."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._file = open(self.path, "rb")  # noqa: SIM115
        return self._file is not None

    def new(self) -> list[dict[str, Any]]:
        """The events written since the last call; a line that is not whole waits for its end."""
        found = self._read()
        if self._replaced():
            self.close()
            self.open()
            found += self._read()
        return found

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, b""

    def _replaced(self) -> bool:
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return self._file is None or os.fstat(self._file.fileno()).st_ino != there.st_ino

    def _read(self) -> list[dict[str, Any]]:
        if self._file is None:
            return []
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
            self._rest = b""
        whole, _, self._rest = (self._rest + self._file.read()).rpartition(b"\n")
        return [event for line in whole.splitlines() if (event := _event(line)) is not None]


def _event(line: bytes) -> dict[str, Any] | None:
    """A line's event; None for what a power cut left of one."""
    try:
        found = parse_json(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None


def alive(start: Mapping[str, Any]) -> bool | None:
    """Whether the process of a start line is still there; None of one on another machine."""
    if start["host"] != socket.gethostname():
        return None
    try:
        os.kill(int(start["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
