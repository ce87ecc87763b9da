"""Assign rows to the folds of a cross-validation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.numerics.rows import FloatArray


def assign_folds(
    strata: NDArray[Any], weights: FloatArray, folds: int, seed: int, labels: list[Any] | None
) -> NDArray[np.int16]:
    """Assign every row to the fold that holds it out; return int16 (n,).

    The rows of each stratum are sorted by descending weight, ties in random order, and dealt out
    in rounds of one row per fold. So the counts of a stratum's rows in any two folds differ by at
    most one, and its weight is spread nearly evenly.

    Parameters
    ----------
    strata : int array (n,)
        Label codes; zeros for a regression.
    weights : float64 (n,)
        Weights of the rows; every stratum needs a row of positive weight for each fold.
    folds : int
        Number of folds, at least 2.
    seed : int
        Seed for the order of rows with tied weights, and for the dealing.
    labels : list or None
        Names of the strata for error messages; None if there is only one stratum.

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
