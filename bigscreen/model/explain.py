"""Decompose the score of a row into contributions of support rows or of columns."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from bigscreen.data.missing import MISSING_CATEGORY
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
        machine's offset in that score; by ("rows", "landmarks" or "columns"); parts: list of dict
        (row, landmark or column, part), sorted by descending size. The parts and the offset add up
        to the score. Landmarks that are rows are named by their numbers in the source, others by
        their positions in the model.

    Raises
    ------
    InputError
        If there is no such row, the model ended early, or it predicts several targets.
    """
    if model.n_targets > 1:
        raise InputError(
            f"the model predicts {model.n_targets} targets, and one score is explained; fit a "
            "machine to one target"
        )
    if model.gate is not None:
        raise InputError(
            "a model that ended early has a machine for each part of the rows, and none whose "
            "score could be explained; fit it without early"
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
        kind, names = "column", column_names(model, len(parts))
        said = [{"column": names[j], "part": float(parts[j])} for j in order.tolist()]
    else:
        kind, numbers = _landmark_numbers(model)
        said = [{kind: int(numbers[j]), "part": float(parts[j])} for j in order.tolist()]
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
        "by": f"{kind}s",
        "parts": said,
    }


def _landmark_numbers(model: Model) -> tuple[str, NDArray[np.int64]]:
    """Return what a model's landmarks or support rows are named by, and their numbers, (m,).

    ("row", numbers in the source), or ("landmark", positions) if their rows are not known.
    """
    if model.support is not None:
        return "row", model.support
    rows = (model.provenance.get("nystrom") or {}).get("rows")
    if rows is None:
        assert model.landmarks is not None
        return "landmark", np.arange(model.landmarks.shape[0])
    return "row", np.array(rows, np.int64)


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
    """Return the name of every feature: its column, with "=category" if it is one-hot.

    "=(missing)" follows the column's name if the feature says where the column's number is missing.
    """
    known = model.preparation
    if known.n_raw is None:
        names = known.names or []
        return [names[j] if j < len(names) else f"column {j}" for j in range(features)]
    out = []
    for j in range(known.n_raw):
        name = known.column_name(j)
        kinds = known.categories.get(j)
        out += [name] if kinds is None else [f"{name}={kind}" for kind in kinds]
    return [*out, *(f"{known.column_name(j)}={MISSING_CATEGORY}" for j in known.indicators)]
