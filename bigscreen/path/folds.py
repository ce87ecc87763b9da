"""Folds that share everything but the weights, and how a held-out row is judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
"""What a problem's held-out rows are judged by; of pinball the negative, so that more is better."""


def assign(
    strata: NDArray[Any], weights: FloatArray, folds: int, seed: int, labels: list[Any] | None
) -> NDArray[np.int16]:
    """The fold of every row, int16 (n,).

    The rows of a stratum, heaviest first and equal ones in random order, are dealt out in rounds
    of one for each fold. So every fold has as many rows of every stratum as any other, up to one,
    and nearly as much of its weight.

    Parameters
    ----------
    strata : int array (n,)
        Label codes; zeros for a regression.
    weights : float64 (n,)
    folds : int
    labels : list or None
        What messages call the strata; None: there is one, the rows.

    Raises
    ------
    InputError
        If a fold would have no row of some label, or there are fewer than two folds.
    """
    if folds < 2:
        raise InputError(f"folds must be at least 2, got {folds}")
    rng = np.random.default_rng([seed, 0x666F6C64])
    out = np.empty(len(strata), np.int16)
    for code in np.unique(strata):
        rows = np.flatnonzero(strata == code)
        count = int(np.count_nonzero(weights[rows]))
        if count < folds:
            what, why = "the data has", ""
            if labels is not None:
                what, why = f"label {labels[code]!r} has", ", or it would have one class only"
            advice = f"ask for at most {count} folds" if count > 1 else "fit without folds"
            raise InputError(
                f"{what} only {count} rows with a weight and each of {folds} folds needs one{why}; "
                f"{advice}"
            )
        rows = rng.permutation(rows)
        rows = rows[np.argsort(-weights[rows], kind="stable")]
        rounds = -(-len(rows) // folds)
        dealt = np.argsort(rng.random((rounds, folds)), axis=1).reshape(-1)
        out[rows] = dealt[: len(rows)]
    return out


def judged(
    scoring: str, y: NDArray[Any], scores: FloatArray, weights: FloatArray, tau: float = 0.5
) -> float:
    """How good scores of held-out rows are; more is better.

    Parameters
    ----------
    scoring : {"accuracy", "AUC", "R2", "pinball"}
    y : (rows,)
        Label codes, or targets; of AUC code 1 is the positive class.
    scores : float64 (rows, machines)
        One machine: above 0 means code 1. Several: each code has its own.
    weights : float64 (rows,)
    tau : float
        Of pinball.
    """
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
    """The place of the highest score, of equals the first; one that is not a number is the lowest.

    Raises
    ------
    InputError
        If no score is a finite number: none is the best then.
    """
    found = np.asarray(scores, np.float64)
    if not np.isfinite(found).any():
        raise InputError(
            "no candidate has a finite score on the rows held out, so none is the best; look at "
            "the size of the targets and at the grid"
        )
    return int(np.argmax(np.where(np.isnan(found), -np.inf, found)))


def check_spread(y: NDArray[Any], what: str) -> None:
    """Refuse targets whose squares float64 does not hold: R2 divides by a sum of them.

    Raises
    ------
    InputError
        Which begins with ``what``.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        spread = float(np.sum(np.square(y - np.mean(y))))
    if not np.isfinite(spread):
        raise InputError(
            f"{what} holds out targets of up to {np.max(np.abs(y)):.2g}, whose squares are beyond "
            "float64, so that R2 does not judge it; divide the targets by their size"
        )


def _auc(positive: NDArray[np.bool_], scores: FloatArray, weights: FloatArray) -> float:
    """Chance that a positive row scores above another, equal scores counting half."""
    values, place = np.unique(scores, return_inverse=True)
    up = np.bincount(place, weights * positive, len(values))
    down = np.bincount(place, weights * ~positive, len(values))
    below = np.cumsum(down) - 0.5 * down
    return float(up @ below) / (float(np.sum(up)) * float(np.sum(down)))


LARGEST = 1e30
"""Values of C lie between this and 1 by this: squares of their ratios stay in the range of float64,
as do those of scores."""


def checked_grid(values: ArrayLike, name: str) -> FloatArray:
    """The values of a grid, float64 (points,): in range and strictly ascending.

    Parameters
    ----------
    name : {"C", "nu"}

    Raises
    ------
    InputError
        If they are not; sorting them silently would hide from the caller which point is which.
    """
    try:
        grid = np.atleast_1d(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(f"the values of {name} must be numbers, got {values!r}") from error
    if grid.ndim != 1 or not len(grid):
        raise InputError(f"the values of {name} must be a list of one number or more")
    least, most = (0.0, 1.0) if name == "nu" else (1 / LARGEST, LARGEST)
    wrong = ~((grid > 0) & (grid >= least) & (grid <= most))
    if wrong.any():
        k = int(np.argmax(wrong))
        allowed = "lie in (0, 1]" if name == "nu" else f"lie from {least:g} to {most:g}"
        raise InputError(f"the values of {name} must {allowed}, and value {k + 1} is {grid[k]:g}")
    steps = np.diff(grid)
    if (steps <= 0).any():
        k = int(np.argmax(steps <= 0))
        how = "comes twice" if steps[k] == 0 else f"comes after {grid[k]:g}"
        raise InputError(
            f"the values of {name} must ascend without repeats, and {grid[k + 1]:g} {how} "
            f"(value {k + 2}); sort them, and give each once"
        )
    return grid
