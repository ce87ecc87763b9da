"""The folder of a resumable path: its points, and the state that a walk goes on from."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np

from bigscreen.files.sealed import Arrays, digest, read_sealed, write_sealed
from bigscreen.files.work import owned
from bigscreen.path.stage import PathPoint
from bigscreen.path.walk import Step, Walk
from bigscreen.screening.regions import Scores

_NUMBERS = ("w_sq", "primal", "dual", "gap", "rounding", "primal_rounding", "dual_rounding")


def state(walks: list[Walk]) -> Arrays:
    """The state of walks, as arrays: what the next point of each starts from."""
    arrays: Arrays = {}
    stage = walks[0].stage
    records: dict[str, Any] = {"stage": type(stage).__name__}
    for i, walk in enumerate(walks):
        for which, step in (("before", walk.before), ("end", walk.end)):
            if step is not None:
                key = f"{which}-{i}"
                records[key] = step.record
                arrays |= {f"{key}-{name}": part for name, part in _parts(step.solved).items()}
    # One stage serves them all: it goes on from the point that it solved last.
    arrays |= {f"stage-{name}": part for name, part in stage.memory().items()}
    text = json.dumps(records).encode()
    return {**arrays, "records": np.frombuffer(text, np.uint8)}


def take(walks: list[Walk], kept: Arrays) -> None:
    """Restore walks from the arrays of `state`.

    Where another stage suits the memory that is allowed now, it begins anew at the last point.
    """
    records, stage = json.loads(kept["records"].tobytes()), walks[0].stage
    same = records.pop("stage") == type(stage).__name__
    for key, record in records.items():
        which, i = key.split("-")
        walk = walks[int(i)]
        names = ("alpha", "scores", "slack", "mu", "numbers")
        solved = _solved({name: kept[f"{key}-{name}"] for name in names}, record["counts"])
        problem = walk.problem.at(record["value"])
        step = Step(problem, problem.dual(walk.y, walk.weights), solved, record)
        setattr(walk, which, step)
    start = len("stage-")
    if same:
        stage.recall({k[start:]: v for k, v in kept.items() if k.startswith("stage-")})


def _parts(solved: PathPoint) -> Arrays:
    return {
        "alpha": solved.alpha,
        "scores": solved.scores.values,
        "slack": np.asarray(solved.scores.slack),
        "mu": np.asarray(solved.mu),
        "numbers": np.array([getattr(solved, name) for name in _NUMBERS]),
    }


def _solved(parts: Arrays, counts: dict[str, int]) -> PathPoint:
    scores = Scores(parts["scores"], _plain(parts["slack"]))
    # (Folders of before have the first five.)
    numbers = dict(zip(_NUMBERS, parts["numbers"].tolist(), strict=False))
    return PathPoint(parts["alpha"], scores, mu=_plain(parts["mu"]), counts=counts, **numbers)


def _plain(value: np.ndarray) -> Any:
    return float(value) if value.ndim == 0 else value


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
