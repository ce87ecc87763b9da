"""Cross-fitted scores: each row is scored by a machine that was fitted without it.

From the scores a classifier learns a calibration, and a regression its residuals.

The machine of a fold has the landmarks, features and kernel of the main machine, and solves the
main problem with the fold's rows left out. The model keeps the machines of all folds. They score
new rows too, so that the scores of new rows are comparable with those of held-out rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.folds import assign_folds
from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.model.calibration import Calibration
from bigscreen.model.fold_machines import FoldMachines
from bigscreen.model.model import Model
from bigscreen.model.residuals import Residuals
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import TrainOptions
from bigscreen.problems.recipes import with_mass_of
from bigscreen.train.job import Job
from bigscreen.train.problems import Binary, class_weights

FOLDS = 5
"""Number of folds of the cross-validation that calibrates scores, or the number of rows of the
rarest label if that is less."""


def make_folds(data: Rows, options: TrainOptions) -> NDArray[np.int16]:
    """Assign each row to a fold, int16 (n,); folds have equally many rows of each label, up to one.

    Raises
    ------
    InputError
        If a label, or a regression, has a single row: holding it out would leave none to fit.
    """
    y, weights = data.y(0, data.n_rows), np.asarray(data.weights(0, data.n_rows), np.float64)
    if data.regression:
        count = int(np.count_nonzero(weights > 0))
        if count < 2:
            raise InputError(
                "intervals come from rows that are held out, and no more than one sample has a "
                "weight; give two rows or more, or leave out probability"
            )
        strata = np.zeros(len(y), np.int8)
        return assign_folds(strata, weights, min(FOLDS, count), options.seed, None)
    counts = np.bincount(y[weights > 0], minlength=data.n_labels)
    least = int(np.argmin(counts))
    if counts[least] < 2:
        raise InputError(
            f"probabilities come from rows that are held out, and label {data.labels[least]!r} has "
            f"{counts[least]} with a weight; give two rows of it or more, or leave out probability"
        )
    return assign_folds(y, weights, min(FOLDS, int(counts[least])), options.seed, list(data.labels))


def calibrate(job: Job, max_scores: int = 1 << 26) -> tuple[Calibration | Residuals, FoldMachines]:
    """Solve the problems of every fold, and calibrate their scores on the held-out rows.

    Returns the calibration (from scores to probabilities), of a regression the residuals, and the
    machines of all folds. The main problems of ``job`` have been solved before. At most
    ``max_scores`` scores are held in memory: of more rows a random sample is scored.
    """
    data, options, fold = job.data, job.options, job.fold
    assert fold is not None
    y, weights = data.y(0, data.n_rows), np.asarray(data.weights(0, data.n_rows), np.float64)
    folds = int(fold.max()) + 1
    numbers = np.arange(data.n_rows)
    if data.n_rows * len(job.problems) > max_scores:
        rng = np.random.default_rng([options.seed, 0x63726F73])
        numbers = np.sort(rng.choice(data.n_rows, max_scores // len(job.problems), replace=False))
    scores = np.empty((len(numbers), len(job.problems)))
    machines = []
    for f in range(folds):
        fitted = np.where(fold == f, 0.0, weights)
        own = [_without_fold(binary, f, y, fitted) for binary in job.problems]
        machine = job.solved_fold(own, 1.0 / (folds - f))
        places = np.flatnonzero(fold[numbers] == f)
        scores[places] = _score_rows(job, machine, numbers[places])
        machines.append(machine)
    if data.regression:
        tau = options.tau if options.problem == "quantile" else 0.5
        given = scores[:, 0], y[numbers], fold[numbers], weights[numbers]
        return Residuals.learn(*given, tau), FoldMachines.joined(machines)
    own_weights = np.asarray(class_weights(options.class_weight, data) or np.ones(data.n_labels))
    known = scores, y[numbers], fold[numbers], weights[numbers], own_weights
    return Calibration.learn(*known, options.strategy), FoldMachines.joined(machines)


def add_folds(
    job: Job, model: Model, calibration: Calibration | Residuals, folds: FoldMachines
) -> Model:
    """Return the model with the machines of the folds, and what was learnt from their scores.

    A calibration gives probabilities, label sets and thresholds; residuals give intervals. With two
    labels the calibration also gets the scores of some rows by both kinds of machines
    (`_pair_scores`), as a threshold for the one is translated to the other.
    """
    if isinstance(calibration, Residuals):
        return replace(model, residuals=calibration, fold_machines=folds)
    model = replace(model, calibration=calibration, fold_machines=folds)
    if len(model.labels) != 2:
        return model
    return replace(model, calibration=replace(calibration, paired=_pair_scores(job, model)))


def _pair_scores(job: Job, model: Model, max_rows: int = 4000) -> FloatArray:
    """Score fitted rows by a fold's machine and by the main one; sorted, float64 (2, rows).

    The pairs of scores, of at most ``max_rows`` rows, translate thresholds from one machine to the
    other.
    """
    data, fold = job.data, job.fold
    assert fold is not None and model.fold_machines is not None
    rows = np.flatnonzero(np.asarray(data.weights(0, data.n_rows)) > 0)
    if len(rows) > max_rows:
        rng = np.random.default_rng([job.options.seed, 0x70616972])
        rows = np.sort(rng.choice(rows, max_rows, replace=False))
    evidence = model.evidence(data.rows(rows), prepared=True)
    # The machine of the next fold, which was fitted to the row.
    other = (fold[rows] + 1) % evidence.held.shape[1]
    by_fold = evidence.held[np.arange(len(rows)), other, 0]
    return np.sort(np.stack([by_fold, evidence.scores[:, 0]]), axis=1)


def _without_fold(binary: Binary, f: int, y: NDArray[np.int32], weights: FloatArray) -> Binary:
    """Return the problem that leaves out the rows of fold number f, named after the fold.

    ``y``, ``weights`` (n,): label codes, and row weights that are 0 for rows of the fold.
    """
    return binary._replace(
        problem=with_mass_of(binary.problem, y, weights),
        name=f"fold {f + 1}" if binary.name is None else f"{binary.name}, fold {f + 1}",
        folder=f"{binary.folder}-fold-{f}",
        fold=f,
    )


def _score_rows(job: Job, machine: Model, rows: NDArray[np.int64]) -> FloatArray:
    """Score the rows with these (ascending) numbers, chunk by chunk; float64 (rows, scores)."""
    data = job.data
    ends = np.searchsorted(rows, [data.chunk(k)[1] for k in range(data.n_chunks)])
    parts = [part for part in np.split(rows, ends[:-1]) if len(part)]
    found = list(job.fleet.each(partial(_score_part, machine, data), parts))
    return np.concatenate(found) if found else np.empty((0, len(machine.coef)))


def _score_part(machine: Model, data: Rows, rows: NDArray[np.int64]) -> FloatArray:
    """Return the scores of these rows (row numbers) of prepared data, float64."""
    return machine.scores(data.rows(rows), prepared=True)
