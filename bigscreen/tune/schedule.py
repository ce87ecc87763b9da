"""The rungs of successive halving: for each the number of candidates, and the rows to fit."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.rows import FloatArray
from bigscreen.path.folds import Fold
from bigscreen.tune.options import SearchTuning


class Rung(NamedTuple):
    """A round of the search: its row numbers (ascending; None: all), and how many candidates."""

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
    """Plan the rungs of successive halving (Jamieson and Talwalkar 2016).

    The rows of each rung are a part of the next rung's rows.

    Parameters
    ----------
    candidates : int
        Their number on the first rung.
    factor : int
        From rung to rung, one candidate in ``factor`` goes on to ``factor`` times as many rows.
    strata : int array (n,)
        Label codes; every rung has about the same share of each.
    weights : float64 (n,)
        Weights of all rows, including held-out rows.
    folds : list of Fold
    seed : int
    held : float
        The number of rows that fit in memory. A rung has no more, except for a few held-out rows
        and rows of rare labels; the last rung has all rows.
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
    """Draw a random rank in (0, 1] for every row, evenly spread within each stratum.

    ``strata`` (n,): the stratum (label code) of each row.
    """
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
    """Choose the rows of a rung: those with a rank of at most ``part``, and a few more.

    ``place``: the rank of every row, in (0, 1]. Rows are added if a fold would hold out too few, or
    lacks a label. With few held-out rows, good candidates cannot be distinguished. Measured on 30
    searches (3,600 rows, one split that holds out 100): the chosen candidate's accuracy on the 100
    held-out rows was .0103 below the best candidate's if a rung took a part of the 100, and .0060
    below if it took all.
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
    """Return the ``most`` of the row numbers ``rows`` that have the lowest ranks in ``place``."""
    return rows[np.argsort(place[rows], kind="stable")[:most]]
