"""The diary of an ingest: a JSON line for every step that is safe on disk, to go on from."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from bigscreen.errors import InputError
from bigscreen.store.limits import parse_json

JOURNAL = "journal.jsonl"


class Journal:
    """Append-only JSON lines in `folder`; the first one says which job it belongs to.

    Parameters
    ----------
    folder : Path
        Made if it is not there. Locked against other processes as long as the journal is open;
        the lock dies with the process.
    job : dict
        JSON values: the sources and all options that decide what comes out.
    anew : bool
        Forget what another job left there, instead of refusing it.

    Attributes
    ----------
    lines : list of dict
        What earlier runs of the same job wrote.

    Raises
    ------
    InputError
        If another process is at work in the folder, or it belongs to another job.
    """

    def __init__(self, folder: Path, job: dict[str, Any], anew: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lock = open(folder / "lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise InputError(
                f"another process is ingesting in {folder}: wait for it, or choose another path."
            ) from None
        self.lines: list[dict[str, Any]] = []
        job = json.loads(json.dumps(job))
        self._file = open(folder / JOURNAL, "a+b")
        try:
            self._recover(job, anew)
        except BaseException:
            self.close()
            raise

    def _recover(self, job: dict[str, Any], anew: bool) -> None:
        self._file.seek(0)
        text = self._file.read()
        # A line without its end was being written when the process died: it never happened.
        whole = text[: text.rfind(b"\n") + 1]
        self._file.truncate(len(whole))
        lines = self._parsed(whole, anew)
        changed = [key for key in job if lines and lines[0]["job"].get(key) != job[key]]
        if not lines or (changed and anew):
            self._file.truncate(0)
            self.write({"job": job})
            return
        if changed:
            raise InputError(
                f"{self.folder} was begun with other {' and '.join(changed)}: repeat that command "
                "to go on with it, or delete that folder or use overwrite to start anew."
            )
        self.lines = lines[1:]

    def _parsed(self, text: bytes, anew: bool) -> list[dict[str, Any]]:
        try:
            lines = [parse_json(line) for line in text.splitlines()]
        except ValueError:
            lines = [None]
        fine = all(isinstance(line, dict) for line in lines)
        if fine and (not lines or isinstance(lines[0].get("job"), dict)):
            return lines
        if anew:
            return []
        raise InputError(
            f"{self.folder / JOURNAL} is damaged: delete {self.folder}, or use overwrite, to start "
            "anew."
        )

    def write(self, line: dict[str, Any]) -> None:
        """Add a line; it is on disk when this returns."""
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the folder."""
        self._file.close()
        self._lock.close()
