"""Decompose the score of a row into contributions of support rows or of columns."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from scipy.sparse import issparse

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.kernels.operand import Operand
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray


def explain_score(model: Model, data: Rows, row: int) -> dict[str, Any]:
    """Decompose the score of a row into contributions that add up to it.

    Parameters
    ----------
    model : Model
        An exact machine, whose score is a sum over support rows, or a linear machine, whose score
        is a sum over columns.
    data : Rows
        A dataset that matches the model.
    row : int
        The row's number in the source of ``data``.

    Returns
    -------
    dict
        row; label (or prediction); score: the score of the predicted label (with two labels: of
        the second; with pairs: the sum over the label's pairs, signed towards it); offset: the
        machine's offset in that score; by ("rows" or "columns"); parts: list of dict (row or
        column, part), sorted by descending size. The parts and the offset add up to the score.

    Raises
    ------
    InputError
        If there is no such row, the machine uses landmarks (it is neither exact nor linear), or it
        predicts several targets.
    """
    if model.n_targets > 1:
        raise InputError(
            f"the model predicts {model.n_targets} targets, and one score is explained; fit a "
            "machine to one target"
        )
    exact = model.support is not None and model.gate is None
    if model.landmarks is not None and not exact:
        raise InputError(
            "the score of a row is a sum over support rows or columns in exact and linear machines "
            "alone; for a machine on landmarks, `bigscreen export --to sklearn` and scikit-learn's "
            "`permutation_importance` say what each column is worth"
        )
    x: Any = data.rows([_find_row(data, row)])
    x = np.asarray(x.toarray() if issparse(x) else x, np.float64)
    if model.landmarks is None:
        values = x[0]
    else:
        side = Operand(model.landmarks, model.support)
        mapped = model.preparation.map(x)
        values = model.kernel.block(mapped, side, dtype=np.float64)[0].astype(np.float64)
    given = model.scores(x, prepared=True)
    decided = model.decide(given)[0]
    coef, offset = _answer_coefficients(model, int(decided) if model.kind == "classifier" else 0)
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


def _find_row(data: Rows, row: int) -> int:
    """Return the position in ``data`` of the row with source number `row`; InputError if none."""
    for start, stop in map(data.chunk, range(data.n_chunks)):
        found = np.flatnonzero(data.row_ids(start, stop) == row)
        if len(found):
            return start + int(found[0])
    raise InputError(f"{data.path or 'the data'} has no row {row} of its source")


def _answer_coefficients(model: Model, code: int) -> tuple[FloatArray, float]:
    """Return the coefficients and the offset of the score that decided for the label `code`.

    A coefficient per landmark, or per feature of a linear machine. One against one, the score is
    the sum over the label's pairs, signed towards the label.
    """
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
    """Return the name of every feature: its column, with "=category" if it is one-hot."""
    known = model.preparation
    if known.n_raw is None:
        names = known.names or []
        return [names[j] if j < len(names) else f"column {j}" for j in range(features)]
    out = []
    for j in range(known.n_raw):
        name = known.column_name(j)
        kinds = known.categories.get(j)
        out += [name] if kinds is None else [f"{name}={kind}" for kind in kinds]
    return out
