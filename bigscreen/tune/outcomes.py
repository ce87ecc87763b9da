"""What is known of candidates: their scores on held-out rows, and the record of a search."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bigscreen.path.folds import SCORINGS
from bigscreen.tune.options import Candidate, TuneOptions
from bigscreen.tune.rules import ELIMINATIONS


class Outcome(NamedTuple):
    """What is known of a candidate's score on held-out rows.

    ``gap`` is the largest relative gap of the folds (None: the kernel has none).
    """

    scores: list[float]
    rung: int
    rows: int
    gap: float | None

    @property
    def mean(self) -> float:
        """Over the folds."""
        return float(np.mean(self.scores))


def worst_of(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The largest relative gap of points' records, None where one has none."""
    gaps = [one["relative_gap"] for one in records]
    return {"relative_gap": None if None in gaps else max(gaps)}


def recorded(
    options: TuneOptions,
    outcomes: dict[Candidate, Outcome],
    dropped: dict[Candidate, str],
    stages: list[dict[str, Any]],
    folds: int,
    best: Candidate,
    late: bool,
) -> dict[str, Any]:
    """The record of a search, JSON-able."""
    parameter, rule = options.parameter, options.elimination

    def named(c: Candidate) -> dict[str, Any]:
        return {"landmarks": c.landmarks, "gamma": c.gamma, parameter: c.value}

    points = []
    for c in options.candidates:
        found, point = outcomes.get(c), named(c)
        if found is not None:
            point |= {**found._asdict(), "mean": found.mean, "std": float(np.std(found.scores))}
        points.append({**point, "dropped": dropped.get(c)})
    return {
        "parameter": parameter,
        "elimination": rule,
        "rule": ELIMINATIONS[rule],
        "folds": folds,
        "scoring": SCORINGS[options.fit.problem],
        "grid": {
            "landmarks": None if best.landmarks is None else list(options.landmarks or ()),
            "gamma": np.asarray(options.gammas, float).tolist(),
            parameter: np.asarray(options.values, float).tolist(),
        },
        "stages": stages,
        "candidates": points,
        "best": {**named(best), "score": outcomes[best].mean},
        "late": late,
    }
