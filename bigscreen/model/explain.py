"""Why a model answers so: the rows or columns that carry a score, and what each column is worth."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.fleet.protocol import Each
from bigscreen.kernels.operand import Operand
from bigscreen.model.evaluate import check_outcome
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray

MOST_COLUMNS = 2000
"""Columns that are tried one by one: each is another scoring of all rows."""


def carried(model: Model, data: Rows, row: int) -> dict[str, Any]:
    """What the score of a row is a sum of.

    Parameters
    ----------
    model : Model
        An exact machine, whose score is a sum over support rows, or a linear one: over columns.
    data : Rows
        Matches the model.
    row : int
        The row's number in the source of ``data``.

    Returns
    -------
    dict
        row; label (or prediction); score: of the label, for it where that is above 0 (of two labels
        that of the second; of pairs the sum of the label's); offset, its part of that; by ("rows"
        or "columns"); parts: list of dict (row or column, part), the largest first. The parts and
        the offset add up to the score.

    Raises
    ------
    InputError
        If there is no such row, or the machine has landmarks.
    """
    exact = model.support is not None and model.gate is None
    if model.landmarks is not None and not exact:
        raise InputError(
            "the score of a row is a sum over support rows or columns in exact and linear machines "
            "alone; leave out --row to see what each column is worth"
        )
    x: Any = data.rows([_place(data, row)])
    x = np.asarray(x.toarray() if issparse(x) else x, np.float64)
    if model.landmarks is None:
        values = x[0]
    else:
        side = Operand(model.landmarks, model.support)
        values = model.kernel.block(x, side, dtype=np.float64)[0].astype(np.float64)
    given = model.scores(x, prepared=True)
    decided = model.decide(given)[0]
    coef, offset = _of_answer(model, int(decided) if model.kind == "classifier" else 0)
    parts = coef * values
    order = np.argsort(-np.abs(parts), kind="stable")
    order = order[parts[order] != 0]
    if model.landmarks is None:
        names = column_names(model, len(parts))
        said = [{"column": names[j], "part": float(parts[j])} for j in order.tolist()]
    else:
        assert model.support is not None
        numbers = model.support[order].tolist()
        said = [{"row": k, "part": float(parts[j])} for k, j in zip(numbers, order, strict=True)]
    answer = (
        {"prediction": float(decided)}
        if model.kind == "regressor"
        else {"label": model.labels[int(decided)]}
    )
    return {
        "row": row,
        **answer,
        "score": float(np.sum(parts) + offset),
        "offset": float(offset),
        "by": "columns" if model.landmarks is None else "rows",
        "parts": said,
    }


def _place(data: Rows, row: int) -> int:
    for start, stop in map(data.chunk, range(data.n_chunks)):
        found = np.flatnonzero(data.row_ids(start, stop) == row)
        if len(found):
            return start + int(found[0])
    raise InputError(f"{data.path or 'the data'} has no row {row} of its source")


def _of_answer(model: Model, code: int) -> tuple[FloatArray, float]:
    """Coefficients and offset of the score that a label was decided by."""
    if len(model.coef) == 1:
        return model.coef[0], float(model.intercept[0])
    if model.strategy == "rest":
        return model.coef[code], float(model.intercept[code])
    pairs = enumerate(combinations(range(len(model.labels)), 2))
    signs = np.zeros(len(model.coef))
    for k, (first, second) in pairs:
        signs[k] = (second == code) - float(first == code)
    return signs @ model.coef, float(signs @ model.intercept)


def column_names(model: Model, features: int) -> list[str]:
    """What every feature is called: its column, and the category."""
    known = model.preparation
    if known.n_raw is None:
        names = known.names or []
        return [names[j] if j < len(names) else f"column {j + 1}" for j in range(features)]
    out = []
    for j in range(known.n_raw):
        name = f"column {j + 1}" if known.names is None else known.names[j]
        kinds = known.categories.get(j)
        out += [name] if kinds is None else [f"{name}={kind}" for kind in kinds]
    return out


def importance(model: Model, data: Rows, each: Each = map, seed: int = 0) -> dict[str, Any]:
    """What every column of the source is worth to a model (permutation importance).

    A column's values are exchanged among the rows of a chunk, whose order is random, all columns
    of a category together, and the rows are scored again, chunk by chunk.

    Parameters
    ----------
    model : Model
    data : Rows
        Matches the model; those it was not fitted on tell more.
    each : callable
        ``each(function, chunks)``: results in order.
    seed : int

    Returns
    -------
    dict
        rows, measure ("error" of a classifier, "mse" of a regressor, "outside": the part of the
        rows that a one-class machine judges otherwise), base (of the rows as they are), columns:
        list of dict (column, worse: by how much, deviation: standard error of that), the most
        important first.

    Raises
    ------
    InputError
        If the rows do not have what the model predicts, or there are too many columns.
    """
    if model.kind != "one-class":
        check_outcome(model, data)
    groups = column_groups(model, data.n_features)
    if len(groups) > MOST_COLUMNS:
        raise InputError(
            f"{len(groups)} columns are too many to be tried one by one (at most "
            f"{MOST_COLUMNS}); a linear machine's coefficients say what each is worth"
        )
    tried = partial(_tried, model, data, groups, seed)
    base, rows = 0.0, 0
    sums, squares = np.zeros(len(groups)), np.zeros(len(groups))
    for own, worse, square, count in each(tried, range(data.n_chunks)):
        base, rows = base + own, rows + count
        sums, squares = sums + worse, squares + square
    mean = sums / rows
    spread = np.sqrt(np.maximum(squares / rows - mean**2, 0.0) / rows)
    names = source_names(model, len(groups))
    order = np.argsort(-mean, kind="stable").tolist()
    measure = {"classifier": "error", "regressor": "mse", "one-class": "outside"}[model.kind]
    return {
        "rows": rows,
        "measure": measure,
        "base": base / rows,
        "columns": [
            {"column": names[j], "worse": float(mean[j]), "deviation": float(spread[j])}
            for j in order
        ],
    }


def column_groups(model: Model, features: int) -> list[NDArray[np.int64]]:
    """The features of every column of the source."""
    known = model.preparation
    if known.n_raw is None:
        return [np.array([j]) for j in range(features)]
    return list(np.split(np.arange(features), known.places[1:]))


def source_names(model: Model, count: int) -> list[str]:
    """What the first columns of the source are called."""
    names = model.preparation.names or []
    return [names[j] if j < len(names) else f"column {j + 1}" for j in range(count)]


def _tried(
    model: Model, data: Rows, groups: Iterable[NDArray[np.int64]], seed: int, k: int
) -> tuple[float, FloatArray, FloatArray, int]:
    """Of one chunk: the loss, by how much every column makes it worse and the squares, the rows."""
    start, stop = data.chunk(k)
    rng = np.random.default_rng([seed, k])
    X: Any = data.X(start, stop)
    X = np.asarray(X.toarray() if issparse(X) else X)
    y = data.y(start, stop)
    if model.kind == "one-class":
        truth = model.decide(model.scores(X, prepared=True))
        known = np.ones(len(X), bool)
    elif model.kind == "regressor":
        truth, known = y, ~np.isnan(y)
    else:
        truth = np.array([model.labels.index(label) for label in data.labels])[y]
        known = y >= 0
    X, truth = X[known], truth[known]

    def losses(rows: Any) -> FloatArray:
        decided = model.decide(model.scores(rows, prepared=True))
        if model.kind == "regressor":
            return np.asarray((decided - truth) ** 2, np.float64)
        return np.asarray(decided != truth, np.float64)

    base = losses(X)
    worse = []
    for group in groups:
        other = X.copy()
        other[:, group] = X[rng.permutation(len(X))][:, group]
        worse.append(losses(other) - base)
    each = np.array(worse)
    return float(base.sum()), each.sum(axis=1), (each**2).sum(axis=1), len(X)
