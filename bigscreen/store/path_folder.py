"""Where a path that is being solved keeps what is done: it survives the death of its process."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from bigscreen.sealed import Arrays, digest, read_sealed, write_sealed
from bigscreen.work import owned


class PathFolder:
    """Points of any number of walks (all rows, and each fold), a file each, and where each is.

    A point's file is written after the state that the next one starts from, and the state before
    is deleted only then: at any moment the last whole point has its state. Files take their names
    by renaming, without an fsync: that costs more than a point of a quick path, and a file that is
    not whole, or not in its place, is not read, but solved again.

    Parameters
    ----------
    folder : path
    parameters : dict
        JSON-able: all that the result depends on.
    resume : bool
        Go on with what is there, which must be of the same parameters.

    Raises
    ------
    InputError
        If another process is at work there, there is nothing to go on with, or it is another
        path's.
    """

    def __init__(
        self, folder: str | os.PathLike[str], parameters: dict[str, Any], resume: bool
    ) -> None:
        self.folder = Path(folder)
        self._of = digest(parameters)
        self._held = ExitStack()
        self._held.enter_context(owned(self.folder, parameters, resume, "path", "walk-*"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def put(self, walk: str, k: int, record: Any, arrays: Arrays, state: Arrays | None) -> None:
        """Keep point k of a walk.

        Parameters
        ----------
        record : JSON-able
        arrays : dict of arrays
            What is wanted of the point in the end.
        state : dict of arrays or None
            What the next point starts from; None: nothing starts from this one.
        """
        folder = self.folder / f"walk-{walk}"
        folder.mkdir(exist_ok=True)
        if state is not None:
            self._write(walk, f"state-{k}", None, state)
        self._write(walk, f"point-{k}", record, arrays)
        if state is not None:
            for old in folder.glob("state-*.kept"):
                if old.name != f"state-{k}.kept":
                    old.unlink()

    def point(self, walk: str, k: int) -> tuple[Any, Arrays] | None:
        """Record and arrays of a point that was kept, None if it was not."""
        return self._read(walk, f"point-{k}")

    def state(self, walk: str, k: int) -> Arrays | None:
        """What the point after k starts from."""
        found = self._read(walk, f"state-{k}")
        return None if found is None else found[1]

    def _write(self, walk: str, name: str, record: Any, arrays: Arrays) -> None:
        of, path = self._place(walk, name)
        write_sealed(path, of, record, arrays, durable=False)

    def _read(self, walk: str, name: str) -> tuple[Any, Arrays] | None:
        of, path = self._place(walk, name)
        return read_sealed(path, of)

    def _place(self, walk: str, name: str) -> tuple[str, Path]:
        return f"{self._of}/{walk}/{name}", self.folder / f"walk-{walk}" / f"{name}.kept"
