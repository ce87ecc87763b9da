"""Files of a resumable path: its solved points, and the state from which each walk continues."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from bigscreen.files.kept_files import KeptFiles
from bigscreen.files.sealed import Arrays
from bigscreen.path.stage import PathPoint
from bigscreen.path.walk import Step, Walk
from bigscreen.screening.regions import Scores

# Fields of a `PathPoint` that are saved together, as one float64 array in this order.
_NUMBERS = ("w_sq", "primal", "dual", "gap", "rounding", "primal_rounding", "dual_rounding")


def state(walks: list[Walk]) -> Arrays:
    """Collect the state of a point's walks as arrays: what the next point of each starts from.

    There is a walk for each machine (binary problem), all on one stage.
    """
    arrays: Arrays = {}
    stage = walks[0].stage
    records: dict[str, Any] = {"stage": type(stage).__name__}
    for i, walk in enumerate(walks):
        for which, step in (("before", walk.before), ("end", walk.end)):
            if step is not None:
                key = f"{which}-{i}"
                records[key] = step.record
                arrays |= {f"{key}-{name}": part for name, part in _parts(step.solved).items()}
    # (All walks share one stage, which continues from the point that it solved last.)
    arrays |= {f"stage-{name}": part for name, part in stage.memory().items()}
    text = json.dumps(records).encode()
    return {**arrays, "records": np.frombuffer(text, np.uint8)}


def restore(walks: list[Walk], kept: Arrays) -> None:
    """Restore walks from the arrays of `state`.

    If the memory allowed now calls for another class of stage than the interrupted run had, the new
    stage starts without the arrays of earlier solves.
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
    """Return the arrays of a solved point by name, to be saved; `_solved` reads them back."""
    return {
        "alpha": solved.alpha,
        "scores": solved.scores.values,
        "slack": np.asarray(solved.scores.slack),
        "mu": np.asarray(solved.mu),
        "numbers": np.array([getattr(solved, name) for name in _NUMBERS]),
    }


def _solved(parts: Arrays, counts: dict[str, int]) -> PathPoint:
    """Make a solved point from the arrays of `_parts`, and the ``counts`` of its record."""
    scores = Scores(parts["scores"], _plain(parts["slack"]))
    # (Files of older versions have only the first five.)
    numbers = dict(zip(_NUMBERS, parts["numbers"].tolist(), strict=False))
    return PathPoint(parts["alpha"], scores, mu=_plain(parts["mu"]), counts=counts, **numbers)


def _plain(value: np.ndarray) -> Any:
    """Return a 0-dimensional array as a float, and any other array as it is."""
    return float(value) if value.ndim == 0 else value


def save_point(kept: KeptFiles, k: int, record: Any, arrays: Arrays, state: Arrays) -> None:
    """Write point k of a walk (solve of the grid), and the state that the next point starts from.

    The state is written first, and the state before it deleted last: at any moment the last
    complete point has its state.

    Parameters
    ----------
    kept : KeptFiles
        The walk's files. They need not be durable: flushing takes longer than a point of a quick
        path, and a point whose file is missing or damaged is solved again.
    record : JSON-able
    arrays : dict of arrays
        What the published path needs of the point.
    state : dict of arrays
        See `state`.
    """
    kept.write(f"state-{k}", None, state)
    kept.write(f"point-{k}", record, arrays)
    kept.forget("state-*", but=f"state-{k}")


def load_points(kept: KeptFiles, walks: list[Walk], most: int) -> list[tuple[Any, Arrays]]:
    """Read the points that an interrupted run has solved, and restore the walks to the last.

    Parameters
    ----------
    kept : KeptFiles
        The files of one walk over the grid.
    walks : list of Walk
        Its machines.
    most : int
        The number of values of the grid.

    Returns
    -------
    list of (record, arrays)
        Empty if there is no saved point.
    """
    found: list[tuple[Any, Arrays]] = []
    for k in range(most):
        point = kept.read(f"point-{k}")
        if point is None:
            break
        found.append(point)
    # If a power cut has damaged a state, its point is solved again. The state is restored even if
    # the walk is complete: the stage continues from there to the next fold.
    while found:
        left = kept.read(f"state-{len(found) - 1}")
        if left is not None:
            restore(walks, left[1])
            break
        found.pop()
    return found
