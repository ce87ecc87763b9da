"""Cross-fitted scores: of every row that of a machine that was not fitted on it.

A fold's machine has the landmarks, the features and the kernel of the one that is fitted to all
rows, and solves the same problem with the fold's rows left out. The model keeps the machines of all
folds: they answer for new rows, so that a new row's score is comparable with those held out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.folds import assign
from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.model.calibration import Calibration
from bigscreen.model.fold_machines import FoldMachines
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import TrainOptions
from bigscreen.problems.recipes import of_rows
from bigscreen.train.job import Job
from bigscreen.train.problems import Binary, class_weights

FOLDS = 5

MOST = 1 << 26
"""Cross-fitted scores that are held, at most; of more rows those of some are."""


PAIRED_ROWS = 4000
"""Rows whose scores by two machines carry a threshold from one to the other, at most."""


def folds_of(data: Rows, options: TrainOptions) -> NDArray[np.int16]:
    """The fold of every row, (n,): as many of every label in each, up to one.

    Raises
    ------
    InputError
        If a label has a single row: none is left to fit when that one is held out.
    """
    y, weights = data.y(0, data.n_rows), np.asarray(data.weights(0, data.n_rows), np.float64)
    counts = np.bincount(y[weights > 0], minlength=data.n_labels)
    least = int(np.argmin(counts))
    if counts[least] < 2:
        raise InputError(
            f"probabilities come from rows that are held out, and label {data.labels[least]!r} has "
            f"{counts[least]} with a weight; give two rows of it or more, or leave out probability"
        )
    return assign(y, weights, min(FOLDS, int(counts[least])), options.seed, list(data.labels))


def calibration(job: Job) -> tuple[Calibration, FoldMachines]:
    """The machines of the folds, and what their scores mean; the run's problems were solved."""
    data, options, fold = job.data, job.options, job.fold
    assert fold is not None
    y, weights = data.y(0, data.n_rows), np.asarray(data.weights(0, data.n_rows), np.float64)
    folds = int(fold.max()) + 1
    numbers = np.arange(data.n_rows)
    if data.n_rows * len(job.problems) > MOST:
        rng = np.random.default_rng([options.seed, 0x63726F73])
        numbers = np.sort(rng.choice(data.n_rows, MOST // len(job.problems), replace=False))
    scores = np.empty((len(numbers), len(job.problems)))
    machines = []
    for f in range(folds):
        fitted = np.where(fold == f, 0.0, weights)
        own = [_without(binary, f, y, fitted) for binary in job.problems]
        machine = job.solved_fold(own, 1.0 / (folds - f))
        places = np.flatnonzero(fold[numbers] == f)
        scores[places] = _scores(job, machine, numbers[places])
        machines.append(machine)
    own_weights = np.asarray(class_weights(options.class_weight, data) or np.ones(data.n_labels))
    given = scores, y[numbers], fold[numbers], weights[numbers], own_weights
    return Calibration.learnt(*given, options.strategy), FoldMachines.joined(machines)


def with_folds(job: Job, model: Model, known: Calibration, folds: FoldMachines) -> Model:
    """The model of a run that probabilities, label sets and thresholds can be asked of."""
    model = replace(model, calibration=known, fold_machines=folds)
    if len(model.labels) != 2:
        return model
    return replace(model, calibration=replace(known, paired=_paired(job, model)))


def _paired(job: Job, model: Model) -> FloatArray:
    """Scores of rows by a fold's machine that fitted them, and by the model's: (2, rows)."""
    data, fold = job.data, job.fold
    assert fold is not None and model.fold_machines is not None
    rows = np.flatnonzero(np.asarray(data.weights(0, data.n_rows)) > 0)
    if len(rows) > PAIRED_ROWS:
        rng = np.random.default_rng([job.options.seed, 0x70616972])
        rows = np.sort(rng.choice(rows, PAIRED_ROWS, replace=False))
    evidence = model.evidence(data.rows(rows), prepared=True)
    # Another fold's machine than the one that held the row out.
    other = (fold[rows] + 1) % evidence.held.shape[1]
    by_fold = evidence.held[np.arange(len(rows)), other, 0]
    return np.sort(np.stack([by_fold, evidence.scores[:, 0]]), axis=1)


def _without(binary: Binary, f: int, y: NDArray[np.int32], weights: FloatArray) -> Binary:
    """The same problem on the rows that fold f does not hold out."""
    return binary._replace(
        problem=of_rows(binary.problem, y, weights),
        name=f"fold {f + 1}" if binary.name is None else f"{binary.name}, fold {f + 1}",
        folder=f"{binary.folder}-fold-{f}",
        fold=f,
    )


def _scores(job: Job, machine: Model, rows: NDArray[np.int64]) -> FloatArray:
    """A machine's scores of some rows, (rows, k), read chunk by chunk."""
    data = job.data
    ends = np.searchsorted(rows, [data.chunk(k)[1] for k in range(data.n_chunks)])
    parts = [part for part in np.split(rows, ends[:-1]) if len(part)]
    found = list(job.fleet.each(partial(_part_scores, machine, data), parts))
    return np.concatenate(found) if found else np.empty((0, len(machine.coef)))


def _part_scores(machine: Model, data: Rows, rows: NDArray[np.int64]) -> FloatArray:
    return machine.scores(data.rows(rows), prepared=True)
