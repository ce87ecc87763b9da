"""Machines of all folds and values over features that do not fit in memory, or on other processes.

Newton's method, for all of them over one pass a round, as `fit_many` does it: features are written
to disk or computed again in every pass, and held-out rows are judged in one pass more.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.rows import Rows
from bigscreen.features.design import COLUMN_ROWS, Design, row_ranges
from bigscreen.files.sealed import Arrays
from bigscreen.fleet.protocol import Fleet
from bigscreen.numerics.rows import FloatArray
from bigscreen.train.many import ManyJob, Outcomes
from bigscreen.train.options import TrainOptions
from bigscreen.train.path import of_rows
from bigscreen.train.path_options import Fold
from bigscreen.train.plan import Plan
from bigscreen.train.problems import Binary
from bigscreen.train.run import plan

Solved = tuple[list[dict[str, Any]], Arrays]
"""Records of a fold's points, and their machines."""


class FoldsJob(ManyJob):
    """One run over the features of a group: a fit for every fold and value.

    Parameters
    ----------
    data, options, fleet, plan
        As for `ManyJob`; the options' C (or nu) is any of them.
    folds : list of Fold
    binaries : list of Binary
        The machines of all rows, at any value.
    values : list of float
    deadline : float or None
        Value of ``time.monotonic()``.
    """

    def __init__(
        self,
        data: Rows,
        options: TrainOptions,
        fleet: Fleet,
        plan: Plan,
        folds: Sequence[Fold],
        binaries: Sequence[Binary],
        values: Sequence[float],
        deadline: float | None,
    ) -> None:
        outcomes = [Outcomes(None, fold.weights) for fold in folds for _ in values]
        super().__init__(data, options, fleet, plan, outcomes)
        self.folds, self.binaries, self.values = folds, binaries, values
        self.strict = self.deadline = self.until = deadline

    def _problems(self) -> list[Binary]:
        y = self.data.y(0, self.data.n_rows)
        found = []
        for f, fold in enumerate(self.folds):
            for v, value in enumerate(self.values):
                for one in self.binaries:
                    problem = of_rows(one.problem.at(value), y, fold.weights)
                    name = f"fold-{f}-{v}-{one.folder}"
                    found.append(Binary(problem, name, name))
                    self.fits[name] = f * len(self.values) + v
        return found

    def judged(self) -> list[Solved]:
        """Records and machines of every fold: all problems have been solved."""
        shape = len(self.folds), len(self.values), len(self.binaries)
        results = [self.results[binary.folder] for binary in self.problems]
        # (By columns of the design, as the solver had them.)
        coef = np.stack([np.asarray(one["coef"]) for one in results])
        offsets = np.array([one["intercept"] for one in results]).reshape(shape)
        held = np.zeros((len(self.folds), self.data.n_rows), np.bool_)
        for mask, fold in zip(held, self.folds, strict=True):
            mask[fold.held] = True
        judge = _Judge(self.design, coef.T.copy(), offsets, held)
        # (Features have chunks of their own, of fewer rows where they are wide.)
        right = sum(self.fleet.each(judge, range(self.design.data.n_chunks)), np.zeros(shape[:2]))
        weights = self.data.weights(0, self.data.n_rows)
        gaps = np.array([one["certificate"]["relative_gap"] for one in results]).reshape(shape)
        found: list[Solved] = []
        for f in range(len(self.folds)):
            scores = right[f] / float(np.sum(weights[held[f]]))
            records = [
                {"relative_gap": float(gaps[f, v].max()), "score": float(scores[v])}
                for v in range(len(self.values))
            ]
            own = coef.reshape(*shape, -1)[f]
            arrays = {"values": np.array(self.values), "coef": own, "intercept": offsets[f]}
            found.append((records, arrays))
        return found

    @property
    def late(self) -> bool:
        """Whether the time ended before all were solved."""
        return any(one.get("ended") == "time" for one in self.results.values())


@dataclass(frozen=True)
class _Judge:
    """The weight of held-out rows of a chunk that every machine judges right: (folds, values)."""

    design: Design
    coef: FloatArray
    """Of all machines, (columns, folds values machines)."""
    offsets: FloatArray
    held: NDArray[np.bool_]

    def __call__(self, chunk: int) -> FloatArray:
        data, shape = self.design.data, self.offsets.shape
        first, last = data.chunk(chunk)
        found = np.zeros(shape[:2])
        X, y, weights = data.X(first, last), data.y(first, last), data.weights(first, last)
        for a, b in row_ranges(last - first, COLUMN_ROWS):
            scores = self.design.dots(X[a:b], self.coef).reshape(b - a, *shape) + self.offsets
            for f in range(shape[0]):
                rows = np.flatnonzero(self.held[f, first + a : first + b])
                own = scores[rows, f]
                found[f] += weights[a:b][rows] @ right(own, y[a:b][rows])
        return found


def right(scores: NDArray[Any], y: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows' labels machines tell, (rows, values), by scores (rows, values, machines)."""
    machines = scores.shape[2]
    guess = scores[:, :, 0] > 0 if machines == 1 else np.argmax(scores, axis=2)
    return np.asarray(guess == y[:, None])


def streamed(
    data: Rows,
    options: TrainOptions,
    fleet: Any,
    folds: Sequence[Fold],
    binaries: Sequence[Binary],
    values: Sequence[float],
    deadline: float | None,
) -> tuple[list[Solved], bool]:
    """Records and machines of every fold, each solved to the options' gap; and whether time ended.

    Parameters
    ----------
    options : TrainOptions
        ``work`` is where features may be written, and nothing is when it is over.

    Raises
    ------
    InputError
        If it cannot run in the memory allowed, with the arithmetic.
    TimeOver
        If the time ends before there are features.
    """
    fits = len(folds) * len(values)

    def outlined(options: TrainOptions) -> Plan:
        return plan(data, options, fleet.workers, hasattr(fleet, "address"), fits)

    found = outlined(options)
    if options.work is None and found.features == "stored" and not found.features_in_memory:
        options = replace(options, features="recomputed")
        found = outlined(options)
    if options.work is not None:
        shutil.rmtree(options.work, ignore_errors=True)  # of a run that was killed
    try:
        with FoldsJob(data, options, fleet, found, folds, binaries, values, deadline) as job:
            job.begin()
            for some in job.turns():
                job.solve(some)
            return job.judged(), job.late
    finally:
        fleet.stop()
        if options.work is not None:
            shutil.rmtree(options.work, ignore_errors=True)
