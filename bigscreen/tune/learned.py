"""Whether a learned metric helps: machines of each fold, whose held-out rows no map has seen."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bigscreen.data.rows import Rows
from bigscreen.data.views import Recast
from bigscreen.fleet.protocol import Fleet
from bigscreen.options.train import TrainOptions
from bigscreen.path.folds import Fold
from bigscreen.path.scoring import Scoring, best_of, score_held_out
from bigscreen.train.run import train


def judge_metrics(
    data: Rows,
    fit: TrainOptions,
    metrics: Sequence[str],
    folds: Sequence[Fold],
    scoring: Scoring,
    fleet: Fleet,
    until: float | None,
    rough_gap: float,
) -> dict[str, Any]:
    """Judge kinds of learned metrics by folds, for one candidate of a search.

    Parameters
    ----------
    data : Rows
    fit : TrainOptions
        The options of the candidate's fit.
    metrics : sequence of {"none", "diagonal", "full"}
    folds : sequence of Fold
        The rows that each holds out have no weight in the map or in the machine.
    scoring : str or callable
        As of `score_held_out`.
    fleet : Fleet
    until : float or None
        Value of ``time.monotonic()`` from which on no further kind is judged; the first always is.
    rough_gap : float
        Solve to this relative gap, or to the fit's if that is larger.

    Returns
    -------
    dict
        scores: for each kind that was judged, its score in each fold; best: the kind with the
        highest mean score, the first of equals.
    """
    found: dict[str, list[float]] = {}
    y, weights = data.y(0, data.n_rows), data.weights(0, data.n_rows)
    rough = replace(fit, tol=max(fit.tol, rough_gap), work=None, resume=False, time_budget=None)
    for kind in metrics:
        if found and until is not None and time.monotonic() > until:
            break
        options = replace(rough, metric_learning=kind)
        found[kind] = []
        for fold in folds:
            fitted = Recast(data, None, fold.weights)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of gaps; the last fit warns for itself
                model = train(fitted, options, fleet)
            scores = model.scores(data.rows(fold.held), prepared=True)
            given = y[fold.held], scores, weights[fold.held]
            found[kind].append(score_held_out(scoring, *given))
    kinds = list(found)
    best = kinds[best_of([float(np.mean(found[kind])) for kind in kinds])]
    return {"scores": found, "best": best}
