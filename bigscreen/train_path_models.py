"""What is kept of a solved path: its models as arrays, and the record of all points."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigscreen.path import Step
from bigscreen.store import Rows
from bigscreen.store.model_file import packed
from bigscreen.store.path_file import SolvedPath
from bigscreen.store.path_folder import Arrays
from bigscreen.train_data import computed_with
from bigscreen.train_options import TrainOptions
from bigscreen.train_problems import published
from bigscreen.train_stage import Setting

Point = tuple[list[dict[str, Any]], Arrays]
"""Records of a point's machines, and what `machine` makes of them."""


def machine(setting: Setting, steps: list[Step], data: Rows, exact: bool) -> Arrays:
    """What a model needs of a point: coefficients of all machines, offsets, support rows."""
    parts, intercepts = [], []
    for step in steps:
        one = setting.stage.machine(step.dual, step.solved)
        scale = published(step.problem, step.multiplier, data)
        intercepts.append(scale * (one["constant"] + step.offset))
        parts.append((one, scale))
    arrays: Arrays = {"intercept": np.array(intercepts)}
    if not exact:
        return {**arrays, "coef": np.stack([scale * setting.coef(one) for one, scale in parts])}
    rows = np.unique(np.concatenate([one["support"] for one, _ in parts])).astype(np.int64)
    rows = rows if len(rows) else np.zeros(1, np.int64)
    coef = np.zeros((len(parts), len(rows)))
    for own, (one, scale) in zip(coef, parts, strict=True):
        own[np.searchsorted(rows, one["support"])] = scale * one["coef"]
    return {**arrays, "coef": coef, "rows": rows}


def path_of(
    solved: list[Point],
    setting: Setting,
    data: Rows,
    fit: TrainOptions,
    known: dict[str, Any],
    peak_bytes: int | None,
) -> SolvedPath:
    """The path in memory.

    Parameters
    ----------
    solved : list of Point
        In the order of the grid.
    known : dict
        The part of the record that is not about models: grid, names, folds, scores and so on.
    peak_bytes : int or None
    """
    arrays: Arrays = {"intercept": np.stack([own["intercept"] for _, own in solved])}
    landmarks = setting.landmarks
    if fit.exact:
        # A row that supports many points is kept once.
        rows = np.unique(np.concatenate([own["rows"] for _, own in solved]))
        landmarks = setting.rows(rows)
        arrays["support"] = data.row_ids(0, data.n_rows)[rows]
    for k, (_, own) in enumerate(solved):
        arrays[f"coef-{k}"] = own["coef"]
        if fit.exact:
            arrays[f"own-{k}"] = np.searchsorted(rows, own["rows"])
    kind = "none"
    if landmarks is not None:
        kind, parts = packed("landmarks", landmarks)
        arrays |= parts
    record = {
        **known,
        "points": [records for records, _ in solved],
        "kernel": setting.kernel.to_dict(),
        **_kind(data, fit),
        "preparation": data.preparation.to_dict(),
        "n_features": data.n_features,
        "landmarks": kind,
        "exact": fit.exact,
        "provenance": _provenance(setting, data, fit, peak_bytes),
    }
    return SolvedPath(record, arrays.__getitem__)


def _kind(data: Rows, fit: TrainOptions) -> dict[str, Any]:
    if fit.problem == "one-class":
        return {"kind": "one-class", "labels": [-1, 1]}
    if not fit.classifies:
        return {"kind": "regressor", "labels": []}
    return {"kind": "classifier", "labels": data.labels}


def _provenance(
    setting: Setting, data: Rows, fit: TrainOptions, peak_bytes: int | None
) -> dict[str, Any]:
    stored = data.path is not None or fit.work is not None
    return {
        "versions": computed_with(setting.kernel, fit.exact, data),
        # Hashing takes longer than a quick path: only what somebody can look up again.
        "fingerprint": data.fingerprint if stored else None,
        "index_base": getattr(data, "manifest", {}).get("extra", {}).get("index_base"),
        "parameters": {**fit.record, "kernel": setting.kernel.to_dict()},
        "solver": setting.name,
        "features": "exact" if fit.exact else "stored",
        "certified_in": "float64",
        "rows": data.n_rows,
        **({} if setting.factor is None else {"nystrom": setting.factor.record()}),
        "peak_pss_bytes": peak_bytes,
    }
