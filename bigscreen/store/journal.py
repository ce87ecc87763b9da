"""The diary of an ingest: a JSON line for every step that is safe on disk, to go on from."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from bigscreen.errors import InputError
from bigscreen.sealed import CHECKSUM, Damaged, sealed, unsealed

JOURNAL = "journal.jsonl"


class Journal:
    """Append-only JSON lines in `folder`; the first one says which job it belongs to.

    Each has a checksum, and that of the line before it: none is changed, lost or out of place.

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
        If another process is at work in the folder, it belongs to another job, or it is damaged.
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
        self._last: str | None = None
        """The checksum of the last line."""
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
        try:
            lines = [self._line(line) for line in whole.splitlines()]
            changed = [key for key in job if lines and lines[0]["job"].get(key) != job[key]]
        except (Damaged, LookupError, AttributeError) as error:
            if not anew:
                raise InputError(
                    f"{self.folder / JOURNAL} is damaged, so nobody knows what was done: delete "
                    f"{self.folder} or use overwrite to start anew."
                ) from error
            lines, changed = [], []
        if not lines or (changed and anew):
            self._file.truncate(0)
            self._last = None
            self.write({"job": job})
            return
        if changed:
            raise InputError(
                f"{self.folder} was begun with other {' and '.join(changed)}: repeat that command "
                "to go on with it, or delete that folder or use overwrite to start anew."
            )
        self.lines = lines[1:]

    def write(self, line: dict[str, Any]) -> None:
        """Add a line; it is on disk when this returns."""
        text = sealed({**line, "after": self._last})
        self._last = unsealed(text)[CHECKSUM]
        self._file.write(text + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _line(self, text: bytes) -> dict[str, Any]:
        # Lines of older versions have no checksum; once one has, all that follow do.
        line = unsealed(text, needed=self._last is not None)
        if line.pop("after", None) != self._last:
            raise Damaged("a line is missing, or out of place")
        self._last = line.pop(CHECKSUM, None)
        return line

    def close(self) -> None:
        """Let go of the folder."""
        self._file.close()
        self._lock.close()
