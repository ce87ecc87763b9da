"""Scores of held-out rows, and the choice of the best value by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.numerics.rows import FloatArray

SCORINGS = {
    "c-svc": "accuracy",
    "nu-svc": "accuracy",
    "one-class": "AUC",
    "lad": "R2",
    "svr": "R2",
    "quantile": "pinball",
}
"""How each problem scores held-out rows; pinball is negated, so that larger is always better."""


Scoring = str | Callable[[NDArray[Any], FloatArray, FloatArray], float]
"""How held-out rows are scored: a name, or a function of outcomes, decision values and weights."""


def score_held_out(
    scoring: Scoring, y: NDArray[Any], scores: FloatArray, weights: FloatArray, tau: float = 0.5
) -> float:
    """Score a model on held-out rows; larger is better.

    Parameters
    ----------
    scoring : {"accuracy", "AUC", "R2", "pinball"} or callable
    y : (rows,)
        Label codes, or targets; for AUC, code 1 is the positive class.
    scores : float64 (rows, machines)
        Decision values. One machine: above 0 predicts code 1. Several machines: one for each code.
    weights : float64 (rows,)
    tau : float
        The quantile of the pinball loss.
    """
    if callable(scoring):
        return scoring(y, scores, weights)
    total = float(np.sum(weights))
    one = scores[:, 0]
    if scoring == "accuracy":
        codes = one > 0 if scores.shape[1] == 1 else np.argmax(scores, axis=1)
        return float(np.sum(weights[codes == y])) / total
    if scoring == "AUC":
        return _auc(y == 1, one, weights)
    rest = y - one
    if scoring == "pinball":
        return -float(weights @ np.maximum(tau * rest, (tau - 1) * rest)) / total
    centred = y - float(weights @ y) / total
    spread = float(weights @ centred**2)
    return 1.0 - float(weights @ rest**2) / spread if spread > 0 else 0.0


def best_of(scores: Sequence[float]) -> int:
    """Return the index of the highest score: the first one if several are equal; nan never wins.

    Raises
    ------
    InputError
        If no score is a finite number.
    """
    found = np.asarray(scores, np.float64)
    if not np.isfinite(found).any():
        raise InputError(
            "no candidate has a finite score on the rows held out, so none is the best; look at "
            "the size of the targets and at the grid"
        )
    return int(np.argmax(np.where(np.isnan(found), -np.inf, found)))


def check_spread(y: NDArray[Any], what: str) -> None:
    """Refuse targets whose sum of squared deviations overflows float64: R2 divides by this sum.

    ``what`` names the fold in the message.

    Raises
    ------
    InputError
        If the sum overflows.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        spread = float(np.sum(np.square(y - np.mean(y))))
    if not np.isfinite(spread):
        raise InputError(
            f"{what} holds out targets of up to {np.max(np.abs(y)):.2g}, whose squares are beyond "
            "float64, so that R2 does not judge it; divide the targets by their size"
        )


def _auc(positive: NDArray[np.bool_], scores: FloatArray, weights: FloatArray) -> float:
    """Compute the weighted AUC: the chance that a positive row scores above a negative one.

    ``positive``, ``scores``, ``weights``: (rows,) each. Equal scores count half.
    """
    values, place = np.unique(scores, return_inverse=True)
    up = np.bincount(place, weights * positive, len(values))
    down = np.bincount(place, weights * ~positive, len(values))
    below = np.cumsum(down) - 0.5 * down
    return float(up @ below) / (float(np.sum(up)) * float(np.sum(down)))
