"""Where a path that is being solved keeps what is done: it survives the death of its process."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen.errors import InputError
from bigscreen.store.files import replacing

Arrays = dict[str, np.ndarray]


class PathFolder:
    """Points of any number of walks (all rows, and each fold), a file each, and where each is.

    A point's file is written after the state that the next one starts from, and the state before
    is deleted only then: at any moment the last whole point has its state. Files take their names
    by renaming, without an fsync: that costs more than a point of a quick path, and a file that a
    power cut has left empty is not read, but solved again.

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
        If there is nothing to go on with, or it is another path's.
    """

    def __init__(
        self, folder: str | os.PathLike[str], parameters: dict[str, Any], resume: bool
    ) -> None:
        self.folder = Path(folder)
        record = self.folder / "problem.json"
        known = json.loads(json.dumps(parameters))
        if resume:
            if not record.exists():
                raise InputError(f"there is nothing to resume in {folder}; leave out --resume")
            before = json.loads(record.read_text())
            changed = sorted(k for k in known if known[k] != before.get(k))
            if changed:
                what = ", ".join(
                    f"{k} was {_short(before.get(k))}, now {_short(known[k])}" for k in changed
                )
                raise InputError(f"{folder} belongs to another path and cannot be resumed: {what}")
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for stale in self.folder.glob("walk-*"):
            shutil.rmtree(stale)
        with replacing(record) as file:
            file.write(json.dumps(known, indent=1).encode())

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
            _write(folder / f"state-{k}.npz", state)
        text = np.frombuffer(json.dumps(record).encode(), np.uint8)
        _write(folder / f"point-{k}.npz", {**arrays, "record": text})
        if state is not None:
            for old in folder.glob("state-*.npz"):
                if old.name != f"state-{k}.npz":
                    old.unlink()

    def point(self, walk: str, k: int) -> tuple[Any, Arrays] | None:
        """Record and arrays of a point that was kept, None if it was not."""
        arrays = _read(self.folder / f"walk-{walk}" / f"point-{k}.npz")
        if arrays is None:
            return None
        return json.loads(arrays.pop("record").tobytes()), arrays

    def state(self, walk: str, k: int) -> Arrays | None:
        """What the point after k starts from."""
        return _read(self.folder / f"walk-{walk}" / f"state-{k}.npz")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:28]}...{text[-28:]}"


def _write(path: Path, arrays: Arrays) -> None:
    fresh = path.with_suffix(".tmp")
    with open(fresh, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    os.replace(fresh, path)


def _read(path: Path) -> Arrays | None:
    try:
        with np.load(path, allow_pickle=False) as saved:
            return dict(saved)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None
