"""Rungs of successive halving: how many candidates go on, and on which rows they are fitted."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.rows import FloatArray
from bigscreen.path.folds import Fold
from bigscreen.tune.options import SearchTuning


class Rung(NamedTuple):
    """Rows to fit on (int64, ascending; None: all), and the candidates that get there."""

    rows: NDArray[np.int64] | None
    candidates: int


def rungs(
    candidates: int,
    factor: int,
    strata: NDArray[Any],
    weights: FloatArray,
    folds: list[Fold],
    seed: int,
    held: float = math.inf,
    tuning: SearchTuning | None = None,
) -> list[Rung]:
    """The rungs of successive halving (Jamieson and Talwalkar 2016), each on a part of the next.

    Parameters
    ----------
    candidates, factor : int
    strata : int array (n,)
        Label codes.
    weights : float64 (n,)
        Of all rows, those that a fold holds out included.
    folds : list of Fold
    seed : int
    held : float
        Rows that memory holds: a part of the rows has no more (but for few that are held out, or
        of rare labels).
    tuning : SearchTuning or None
    """
    tuning = tuning or SearchTuning()
    n = len(strata)
    by_candidates = math.floor(math.log(max(1.0, candidates / tuning.min_finalists), factor) + 1e-9)
    by_rows = math.floor(math.log(max(1.0, n / tuning.min_rows), factor) + 1e-9)
    most = max(0, min(by_candidates, by_rows))
    order = _ranks(strata, seed)
    found = []
    for left in range(most, 0, -1):
        rows = _rows(order, min(factor**-left, held / n), strata, weights, folds, tuning)
        found.append(Rung(rows, math.ceil(candidates / factor ** (most - left))))
    return [*found, Rung(None, math.ceil(candidates / factor**most))]


def _ranks(strata: NDArray[Any], seed: int) -> FloatArray:
    """A place in (0, 1] for every row, evenly spread within its stratum, at random."""
    rng = np.random.default_rng([seed, 0x72756E67])
    place = np.empty(len(strata))
    for code in np.unique(strata):
        rows = np.flatnonzero(strata == code)
        place[rng.permutation(rows)] = np.arange(1, len(rows) + 1) / len(rows)
    return place


def _rows(
    place: FloatArray,
    part: float,
    strata: NDArray[Any],
    weights: FloatArray,
    folds: list[Fold],
    tuning: SearchTuning,
) -> NDArray[np.int64]:
    """The rows of the lowest places, and more where a fold holds out too few or lacks a label.

    With few held-out rows candidates cannot be told apart. Measured on 30 searches (3,600 rows, one
    split that holds out 100): the chosen candidate's accuracy on the 100 held-out rows was .0103
    below the best candidate's if a rung took a part of the 100, and .0060 below if it took all.
    """
    least = tuning.min_held_rows // len(folds)
    chosen = place <= part
    for fold in folds:
        held = fold.held[weights[fold.held] > 0]
        chosen[_first(held, place, least)] = True
        for rows in (np.flatnonzero(fold.weights > 0), held):
            for code in np.unique(strata[rows]):
                own = rows[strata[rows] == code]
                chosen[_first(own, place, tuning.min_label_rows)] = True
    return np.flatnonzero(chosen)


def _first(rows: NDArray[np.int64], place: FloatArray, most: int) -> NDArray[np.int64]:
    """The rows of the lowest places among these."""
    return rows[np.argsort(place[rows], kind="stable")[:most]]
