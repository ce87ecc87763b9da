"""Counts predictions that edits provably cannot change."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bigscreen.amend.bound import Bound
from bigscreen.data.rows import Rows
from bigscreen.model.model import Model


def count_unchanged(model: Model, found: list[Bound], data: Rows) -> int:
    """Count rows of a data set whose prediction no machine within the bounds can change.

    ``found``: one bound for each of the model's scores. Reads all rows, unless the edits provably
    leave every score as it is.
    """
    if all(each.unchanged for each in found):
        return data.n_rows  # the machine is the same
    total = 0
    for start, stop in map(data.chunk, range(data.n_chunks)):
        X = data.X(start, stop)
        total += int(np.count_nonzero(are_unchanged(model, [each.intervals(X) for each in found])))
    return total


def are_unchanged(
    model: Model, intervals: list[tuple[NDArray[np.float64], ...]]
) -> NDArray[np.bool_]:
    """Whether each row's prediction is the same for all scores within its bounds (rows,).

    ``intervals``: (score, low, high) for each of the model's scores.
    """
    low = np.stack([each[1] for each in intervals], axis=1)
    high = np.stack([each[2] for each in intervals], axis=1)
    codes = model.decide(np.stack([each[0] for each in intervals], axis=1))
    certain: NDArray[np.bool_]
    if low.shape[1] == 1 or model.strategy == "one":
        certain = np.all((low > 0) | (high < 0), axis=1)
        return certain
    rows = np.arange(len(codes))
    others = high.copy()
    others[rows, codes] = -np.inf
    certain = low[rows, codes] > others.max(axis=1)
    return certain
