"""Finished parts of a run, in sealed files, so that a resumed run does not repeat them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigscreen.files.sealed import Arrays, read_sealed, write_sealed

ENDING = ".kept"


@dataclass(frozen=True)
class KeptFiles:
    """Sealed files that one part of a run (a problem, a fold) leaves in its folder.

    Parameters
    ----------
    folder : Path or None
        Made with its first file. None: nothing is written or read.
    of : str
        Identifies the run and the part. It is sealed into each file; files with another are not
        read.
    resume : bool
        False: nothing is read.
    durable : bool
        As `files.replacing` takes it.
    """

    folder: Path | None
    of: str
    resume: bool
    durable: bool = True

    def write(self, name: str, record: Any, arrays: Arrays) -> None:
        """Write a file.

        Parameters
        ----------
        name : str
            `ENDING` is appended if it is missing. The seal holds the name as it is given.
        record : JSON-able
        arrays : dict of arrays
        """
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            place = self._place(self.folder, name)
            write_sealed(place, f"{self.of}/{name}", record, arrays, self.durable)

    def read(self, name: str) -> tuple[Any, Arrays] | None:
        """Record and arrays of a file; None if there is none, or it is damaged (with a warning)."""
        if self.folder is None or not self.resume:
            return None
        return read_sealed(self._place(self.folder, name), f"{self.of}/{name}")

    def forget(self, pattern: str, but: str) -> None:
        """Remove all files whose names match a pattern, except one."""
        for old in self.folder.glob(pattern + ENDING) if self.folder is not None else ():
            if old.name != but + ENDING:
                old.unlink()

    def _place(self, folder: Path, name: str) -> Path:
        return folder / (name.removesuffix(ENDING) + ENDING)
