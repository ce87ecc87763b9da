"""Files that keep finished parts of a run, so that a resumed run does not repeat them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigscreen.files.sealed import Arrays, read_sealed, write_sealed

ENDING = ".kept"
"""The suffix of the names of kept files."""


@dataclass(frozen=True)
class KeptFiles:
    """Sealed files that one part of a run (a problem, a fold) keeps in its folder.

    Parameters
    ----------
    folder : Path or None
        Created with its first file. None: nothing is written or read.
    of : str
        Identifies the run and the part. It is sealed into each file; files of another run or part
        are not read.
    resume : bool
        Whether files are read; False: `read` returns None.
    durable : bool
        Whether files survive a power cut: they are flushed to the disk, which takes time.
    """

    folder: Path | None
    of: str
    resume: bool
    durable: bool = True

    def write(self, name: str, record: Any, arrays: Arrays) -> None:
        """Write a sealed file with a record and arrays.

        Parameters
        ----------
        name : str
            Name of the file; `ENDING` is appended if it is missing. The seal holds the given name.
        record : JSON-able
        arrays : dict of arrays
        """
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            place = self._path(self.folder, name)
            write_sealed(place, f"{self.of}/{name}", record, arrays, self.durable)

    def read(self, name: str) -> tuple[Any, Arrays] | None:
        """Return record and arrays of a file; None if it is absent, or damaged (with a warning)."""
        if self.folder is None or not self.resume:
            return None
        return read_sealed(self._path(self.folder, name), f"{self.of}/{name}")

    def forget(self, pattern: str, but: str) -> None:
        """Remove all files whose names match a pattern, except the one named `but`."""
        for old in self.folder.glob(pattern + ENDING) if self.folder is not None else ():
            if old.name != but + ENDING:
                old.unlink()

    def _path(self, folder: Path, name: str) -> Path:
        """Return the path of the file with this name, with `ENDING`."""
        return folder / (name.removesuffix(ENDING) + ENDING)
