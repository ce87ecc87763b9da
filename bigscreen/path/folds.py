"""The folds of a path: each holds out rows, which score the machines of the other rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.folds import assign_folds
from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.numerics.rows import FloatArray
from bigscreen.path.options import PathOptions
from bigscreen.path.scoring import SCORINGS, check_spread
from bigscreen.problems.recipes import NuSvc, check_feasible, class_signs, rows_weights
from bigscreen.train.problems import Binary

Folds = int | list[tuple[NDArray[np.int64], NDArray[np.int64]]]
"""The number of folds, or for each fold the rows to fit and the rows to hold out."""


class Fold(NamedTuple):
    """A fold: ``weights`` of all rows (0 if not fitted), and ``held``, the held-out row numbers."""

    weights: FloatArray
    held: NDArray[np.int64]


def make_folds(
    data: Rows,
    y: NDArray[Any],
    weights: FloatArray,
    options: PathOptions,
    binaries: list[Binary],
    values: FloatArray,
) -> list[Fold]:
    """Make the folds that the options of a path request; an empty list if they request none.

    Parameters
    ----------
    y : array (n,)
        Label codes or targets.
    weights : float64 (n,)
        Row weights.
    binaries : list of Binary
        The binary problems of one point of the path.
    values : float64 (points,)
        The grid.

    Raises
    ------
    InputError
        If a fold would fit rows of one class only, or makes a nu infeasible, or names rows that do
        not exist.
    """
    given, fit = checked_folds(options.folds, len(y)), options.fit
    if given is None:
        return []
    if fit.problem == "one-class" and (len(data.labels) != 2 or np.any(y < 0)):
        raise InputError(
            "the folds of a one-class path are judged by two labels, one for every row; give "
            "labels, or no folds"
        )
    # A one-class machine's rows without weight are scored, though not fitted.
    counted = np.ones(len(y)) if fit.problem == "one-class" else weights
    if isinstance(given, int):
        strata = y if data.labels else np.zeros(len(y), np.int8)
        labels: list[Any] | None = list(data.labels) or None
        fold = assign_folds(strata, counted, given, fit.seed, labels)
        masks = [fold == f for f in range(given)]
        folds = [Fold(np.where(held, 0.0, weights), np.flatnonzero(held)) for held in masks]
    else:
        folds = [_given(fitted, held, weights) for fitted, held in given]
    for f, (own, held) in enumerate(folds):
        if not own.any() or not counted[held].any():
            raise InputError(f"fold {f + 1} fits or holds out no row with a weight")
        if fit.problem == "one-class" and len(np.unique(y[held])) < 2:
            raise InputError(
                f"fold {f + 1} holds out rows of one label only, and is judged by how it tells two "
                "apart; hold out rows of both"
            )
        if not fit.classifies:
            if SCORINGS[fit.problem] == "R2":
                check_spread(y[held], f"fold {f + 1}")
            continue
        there = np.unique(y[own > 0])
        if len(there) < len(data.labels):
            lacking = next(c for c in range(len(data.labels)) if c not in there)
            raise InputError(
                f"fold {f + 1} fits no row of label {data.labels[lacking]!r}, and its machines "
                "would not know the label; give every fold rows of each label to fit"
            )
        if fit.problem == "nu-svc":
            for binary in binaries:
                problem = binary.problem
                assert isinstance(problem, NuSvc)
                c, sign = (
                    rows_weights(y, own, problem.code_weight),
                    class_signs(y, problem.positive),
                )
                sides = float(np.sum(c[sign > 0])), float(np.sum(c[sign < 0]))
                where = f" without the rows of fold {f + 1}"
                check_feasible(float(values[-1]), *sides, problem.intercept, where)
    return folds


def checked_folds(folds: Any, n: int) -> Folds | None:
    """Check the folds that a caller gives: return a number, int64 row numbers, or None for none.

    Raises
    ------
    InputError
        If they are neither a number nor pairs of row numbers, or name rows that do not exist.
    """
    if folds is None or isinstance(folds, (int, np.integer)):
        return None if folds is None else int(folds)
    try:
        parts = [tuple(np.asarray(rows) for rows in split) for split in folds]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"folds must be a number, or a list of (rows to fit, rows to hold out), got "
            f"{str(folds)[:60]}"
        ) from error
    for f, split in enumerate(parts):
        if len(split) != 2 or not all(_are_rows(rows, n) for rows in split):
            raise InputError(
                f"fold {f + 1} must be two lists of row numbers from 0 to {n - 1}, those to fit "
                "and those to hold out"
            )
    return [(fitted.astype(np.int64), held.astype(np.int64)) for fitted, held in parts]


def _are_rows(rows: NDArray[Any], n: int) -> bool:
    """Whether an array holds row numbers below n, and is not a boolean mask."""
    if rows.ndim != 1 or not len(rows):
        return rows.ndim == 1
    return rows.dtype.kind in "iu" and int(rows.min()) >= 0 and int(rows.max()) < n


def _given(fitted: NDArray[np.int64], held: NDArray[np.int64], weights: FloatArray) -> Fold:
    """Make a fold from the row numbers to fit (``fitted``) and to hold out (``held``).

    ``weights`` (n,): the weights of all rows.
    """
    own = np.zeros(len(weights))
    own[fitted] = weights[fitted]
    return Fold(own, held)
