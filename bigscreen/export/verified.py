"""Export a model, read the file again and compare its scores with the model's."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.export.source import SampledRows, sample_rows
from bigscreen.model.calibration import Evidence
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray


@dataclass(frozen=True)
class Comparison:
    """Result of comparing an exported file with its model on a sample of rows.

    Parameters
    ----------
    rows : int
        Number of rows compared.
    agree : float
        Fraction of the rows with equal labels; 1 for a regression.
    difference : float or None
        Largest difference of a score, as a fraction of the largest score; None if the export has
        no scores to compare.
    probability : float or None
        Largest difference of a probability; None if the export has no probabilities.
    notes : list of str
        Notes for the user of the file, one sentence each.
    """

    rows: int
    agree: float
    difference: float | None
    probability: float | None
    notes: list[str]


def export(
    model: Model,
    data: Rows,
    out: str | os.PathLike[str],
    to: str,
    tolerance: float = 1e-4,
    most: int = 2000,
) -> Comparison:
    """Write a model for another program, read the file again and compare its scores.

    Parameters
    ----------
    model : Model
    data : Rows
        A dataset that matches the model; a sample of its rows is compared.
    out : path
        The file to write.
    to : {"onnx", "libsvm", "sklearn", "skops"}
    tolerance : float
        Largest accepted difference of a score or probability, as `Comparison` measures it. The
        model's scores may come from float32 kernel entries, the export's come from float64.
    most : int
        Compare at most this many rows.

    Raises
    ------
    InputError
        If the format cannot represent the model, a package is not installed, or the difference
        exceeds `tolerance`; the file is deleted then.
    """
    known = model.preparation
    if model.n_targets > 1:
        raise InputError(
            f"the model predicts {model.n_targets} targets and exports are of one; fit a machine "
            "to each target"
        )
    if known.hashed and to != "libsvm":  # LIBSVM files take prepared rows, after the hashing
        raise InputError(
            f"columns are hashed, and {to} has no such hash: export to libsvm, or ingest the "
            "table without them (drop)"
        )
    rows = sample_rows(data, known, most)
    notes = _writer(to)(model, out)
    if known.dates and to != "libsvm":
        columns = map(known.column_name, known.dates)
        notes.append(f"dates are given there as days since 1970: {', '.join(columns)}")
    try:
        compared = _compare(model, rows, out, to, notes)
    except BaseException:
        Path(out).unlink(missing_ok=True)
        raise
    worst = max(compared.difference or 0.0, compared.probability or 0.0)
    if not worst <= tolerance:
        Path(out).unlink(missing_ok=True)
        raise InputError(
            f"the export differs from the model by {worst:.2g}, and {tolerance:g} is let pass; "
            "scale the data, or allow more with --tolerance"
        )
    return compared


def _writer(to: str) -> Callable[[Model, Any], list[str]]:
    """Return the function that writes a model in format ``to`` and returns notes for the user."""
    if to == "onnx":
        from bigscreen.export.onnx import write_onnx

        return write_onnx
    if to == "libsvm":
        from bigscreen.export.libsvm import write_libsvm

        return write_libsvm
    from bigscreen.export.sklearn import write_sklearn

    return lambda model, out: write_sklearn(model, out, to == "skops")


def _compare(model: Model, rows: SampledRows, out: Any, to: str, notes: list[str]) -> Comparison:
    """Compare scores, labels and probabilities of the file ``out`` with the model's on ``rows``.

    ``to`` is the file's format: "onnx", "libsvm", "sklearn" or "skops". ``notes`` for the user of
    the file are put into the result.
    """
    ours = model.scores(rows.prepared, prepared=True)
    probability = None
    theirs: FloatArray | None
    if to == "onnx":
        from bigscreen.export.onnx import FOLD_SCORES, run_onnx

        found = run_onnx(out, model, rows)
        theirs, labels = found["scores"], found.get("label")
        if "probabilities" in found:
            held = found[FOLD_SCORES].reshape(len(theirs), -1, theirs.shape[1])
            own = model.calibrated.probabilities(Evidence(theirs, held, np.zeros(len(theirs))))
            probability = float(np.max(np.abs(found["probabilities"] - own)))
    elif to == "libsvm":
        from bigscreen.export.libsvm import libsvm_scores, read_libsvm

        theirs, labels = libsvm_scores(out, rows.prepared), None
        if model.kind == "classifier":
            read = read_libsvm(out)
            codes = read.decide(theirs)
            if len(model.labels) == 2:
                if read.labels == model.labels[::-1]:
                    theirs, codes = -theirs, 1 - codes
                theirs = theirs + model.threshold
            labels = np.asarray(model.labels)[codes]
    else:
        from bigscreen.export.sklearn import pipeline_scores, read_sklearn

        made = read_sklearn(out, to == "skops")
        theirs = pipeline_scores(made, model, rows.table())
        labels = None if model.kind == "regressor" else made.predict(rows.table())
    agree = 1.0 if labels is None else _agreement(model, ours, labels)
    difference = None
    if theirs is not None:
        largest = float(np.max(np.abs(ours))) or 1.0
        difference = float(np.max(np.abs(theirs - ours))) / largest
    return Comparison(len(rows.prepared), agree, difference, probability, notes)


def _agreement(model: Model, scores: FloatArray, labels: NDArray[Any]) -> float:
    """Return the fraction of rows whose label by ``scores`` equals ``labels``, both as texts."""
    own = np.asarray(model.labels)[model.decide(scores)]
    return float(np.mean([str(a) == str(b) for a, b in zip(own, labels, strict=True)]))
