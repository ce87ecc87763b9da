"""What a walk goes on from after the death of its process, as arrays and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from bigscreen.path import Step, Walk
from bigscreen.path_stage import Solved
from bigscreen.screening.past import Scores

Arrays = dict[str, np.ndarray]

_NUMBERS = ("w_sq", "primal", "dual", "gap", "rounding")


def state(walks: list[Walk]) -> Arrays:
    """What the next point of every walk starts from."""
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
    """Put walks where they were when this state was made.

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


def _parts(solved: Solved) -> Arrays:
    return {
        "alpha": solved.alpha,
        "scores": solved.scores.values,
        "slack": np.asarray(solved.scores.slack),
        "mu": np.asarray(solved.mu),
        "numbers": np.array([getattr(solved, name) for name in _NUMBERS]),
    }


def _solved(parts: Arrays, counts: dict[str, int]) -> Solved:
    scores = Scores(parts["scores"], _plain(parts["slack"]))
    numbers = dict(zip(_NUMBERS, parts["numbers"].tolist(), strict=True))
    return Solved(parts["alpha"], scores, mu=_plain(parts["mu"]), counts=counts, **numbers)


def _plain(value: np.ndarray) -> Any:
    return float(value) if value.ndim == 0 else value
