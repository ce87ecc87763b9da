"""Finished parts of a run, in sealed files that a run which resumes it takes over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigscreen.files.sealed import Arrays, read_sealed, write_sealed

ENDING = ".kept"


@dataclass(frozen=True)
class Kept:
    """What a run keeps of one of its parts, a file each.

    Parameters
    ----------
    folder : Path or None
        Where the files are, which is made with the first; None: nothing is kept.
    of : str
        What they are of: nothing that was kept of anything else is taken over.
    resume : bool
        Whether there is anything to take over.
    durable : bool
        As `files.replacing` takes it.
    """

    folder: Path | None
    of: str
    resume: bool
    durable: bool = True

    def keep(self, name: str, record: Any, arrays: Arrays) -> None:
        """Write a file for a run that resumes this one.

        Parameters
        ----------
        name : str
            With its ending or without; the seal holds it as it is given.
        record : JSON-able
        arrays : dict of arrays
        """
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            place = self._place(self.folder, name)
            write_sealed(place, f"{self.of}/{name}", record, arrays, self.durable)

    def kept(self, name: str) -> tuple[Any, Arrays] | None:
        """What the run that is resumed has kept so; None without, and where it is damaged."""
        if self.folder is None or not self.resume:
            return None
        return read_sealed(self._place(self.folder, name), f"{self.of}/{name}")

    def forget(self, pattern: str, but: str) -> None:
        """Remove the files of a pattern of names, but for one."""
        for old in self.folder.glob(pattern + ENDING) if self.folder is not None else ():
            if old.name != but + ENDING:
                old.unlink()

    def _place(self, folder: Path, name: str) -> Path:
        return folder / (name.removesuffix(ENDING) + ENDING)
