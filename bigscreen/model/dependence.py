"""What a model answers as one column changes and all others stay (partial dependence)."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.fleet.protocol import Each
from bigscreen.model.explain import column_groups, source_names
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray

SAMPLE = 20_000
"""Rows that say between which values a column of numbers lies, at most."""


def dependence(
    model: Model, data: Rows, column: str, each: Each = map, points: int = 11
) -> dict[str, Any]:
    """Mean answers over all rows, were a column's value the same in each.

    Friedman's partial dependence (2001, sec. 8.2), over the rows of ``data``: other columns keep
    their values, so it says little of a column that another one determines.

    Parameters
    ----------
    model : Model
    data : Rows
        Matches the model.
    column : str
        Of the source, by name or position.
    each : callable
        ``each(function, chunks)``: results in order.
    points : int
        Values of a column of numbers: quantiles of those that occur, from the 2nd to the 98th
        percentile. Of a category every one is tried.

    Returns
    -------
    dict
        column, rows, values: list of dict: value (a number of the source, or a category) and
        either prediction, the mean one of a regressor, or share, by label the part of the rows that
        are predicted to have it, and score, the mean one, where there is one score.

    Raises
    ------
    InputError
        If there is no such column.
    """
    group, j = _column(model, data, column)
    known = model.preparation
    kinds = known.categories.get(j)
    scale = 1.0 if known.factor is None else float(known.factor[group[0]])
    shift = 0.0 if known.offset is None else float(known.offset[group[0]])
    values: list[Any]
    if kinds is None:
        stored = np.unique(np.quantile(_sample(data, int(group[0])), _levels(points)))
        tried = stored[:, None]
        values = (stored / scale + shift).tolist()
    else:
        values, tried = list(kinds), np.eye(len(kinds))
    summed = partial(_summed, model, data, group, tried)
    codes = 0 if model.kind == "regressor" else len(model.labels)
    totals = np.zeros((len(tried), 1 + codes))
    rows = 0
    for part, count in each(summed, range(data.n_chunks)):
        totals, rows = totals + part, rows + count
    mean = totals / rows
    said = []
    for value, row in zip(values, mean.tolist(), strict=True):
        if model.kind == "regressor":
            said.append({"value": value, "prediction": row[0]})
            continue
        share = dict(zip(map(str, model.labels), row[1:], strict=True))
        one = {"score": row[0]} if len(model.coef) == 1 else {}
        said.append({"value": value, **one, "share": share})
    return {"column": source_names(model, j + 1)[j], "rows": rows, "values": said}


def _levels(points: int) -> FloatArray:
    return np.linspace(0.02, 0.98, points) if points > 1 else np.array([0.5])


def _column(model: Model, data: Rows, column: str) -> tuple[NDArray[np.int64], int]:
    groups = column_groups(model, data.n_features)
    names = source_names(model, len(groups))
    if column in names:
        j = names.index(column)
    elif re.fullmatch(r"\d+", column) and int(column) < len(names):
        j = int(column)
    else:
        raise InputError(
            f"the source has no column {column!r}: its columns are {', '.join(names[:20])}"
        )
    return groups[j], j


def _sample(data: Rows, feature: int) -> FloatArray:
    """Values of a feature in rows that are spread evenly over all."""
    step = -(-data.n_rows // SAMPLE)
    parts = []
    for start, stop in map(data.chunk, range(data.n_chunks)):
        X: Any = data.X(start, stop)
        own = X[:, [feature]].toarray()[:, 0] if issparse(X) else X[:, feature]
        parts.append(np.asarray(own, np.float64)[-start % step :: step])
    return np.concatenate(parts)


def _summed(
    model: Model, data: Rows, group: NDArray[np.int64], tried: FloatArray, k: int
) -> tuple[FloatArray, int]:
    """Of one chunk, for every value: the sum of the scores, and the rows of every label."""
    start, stop = data.chunk(k)
    X: Any = data.X(start, stop)
    X = np.array(X.toarray() if issparse(X) else X)
    codes = 0 if model.kind == "regressor" else len(model.labels)
    out = np.zeros((len(tried), 1 + codes))
    for row, value in enumerate(tried):
        X[:, group] = value
        scores = model.scores(X, prepared=True)
        out[row, 0] = scores[:, 0].sum()
        if codes:
            out[row, 1:] = np.bincount(model.decide(scores), minlength=codes)
    return out, len(X)
