"""Machines of all folds and values over features that do not fit in memory, or on other processes.

Newton's method, for all of them over one pass a round, as `fit_many` does it: features are written
to disk or computed again in every pass, and held-out rows are judged in one pass more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.rows import Rows
from bigscreen.data.views import Moved
from bigscreen.features.design import ROWS_PER_TILE, Design, row_ranges
from bigscreen.fit.loop import Fitted
from bigscreen.fit.monitor import Report
from bigscreen.fleet.memory import allowed_memory
from bigscreen.fleet.protocol import Fleet
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import TrainOptions
from bigscreen.path.folds import Fold
from bigscreen.path.scoring import judged
from bigscreen.plan.memory import Plan
from bigscreen.problems.recipes import with_mass_of
from bigscreen.train.job import Attempt, Result
from bigscreen.train.many import ManyJob, Outcomes
from bigscreen.train.problems import Binary

JUDGED_SHARE = 0.1
"""Part of the memory that scores of held-out rows may take: of more, values have passes of their
own."""


class FoldsJob(ManyJob):
    """One run over the same features: a fit for every fold and value.

    Parameters
    ----------
    data, options, fleet, plan
        As for `ManyJob`; the options' C (or nu) is any of them.
    folds : list of Fold
        One that holds nothing out has all rows' machines.
    binaries : list of Binary
        The machines of all rows, at any value.
    values : list of float
    report, deadline
        As for `Job`; of so many machines no pass is reported.
    """

    def __init__(  # noqa: PLR0913
        self,
        data: Rows,
        options: TrainOptions,
        fleet: Fleet,
        plan: Plan,
        folds: Sequence[Fold],
        binaries: Sequence[Binary],
        values: Sequence[float],
        report: Report | None = None,
        deadline: float | None = None,
    ) -> None:
        outcomes = [Outcomes(None, fold.weights) for fold in folds for _ in values]
        super().__init__(data, options, fleet, plan, outcomes, report, deadline)
        self.folds, self.binaries, self.values = folds, binaries, values

    def _problems(self) -> list[Binary]:
        y = self.data.y(0, self.data.n_rows)
        found = []
        for f, fold in enumerate(self.folds):
            for v, value in enumerate(self.values):
                for one in self.binaries:
                    problem = with_mass_of(one.problem.at(value), y, fold.weights)
                    name = f"fold-{f}-{v}-{one.folder}"
                    found.append(Binary(problem, name, name))
                    self.fits[name] = f * len(self.values) + v
        return found

    def _ledger(self, attempt: Attempt, fitted: Fitted, binary: Binary) -> None:
        """None: of so many machines nobody edits the rows."""

    def _report_event(self, event: dict[str, Any], binary: Binary) -> None:
        """Nothing: nobody follows the passes of so many machines."""

    def run(self) -> None:
        """Solve all problems, as far as the time goes."""
        self.begin()
        for some in self.turns():
            self.solve(some)

    def machines(self, f: int, v: int) -> list[Result]:
        """The results of a fold's problems at a value."""
        k = len(self.binaries)
        first = (f * len(self.values) + v) * k
        return [self.results[one.folder] for one in self.problems[first : first + k]]

    def coef(self, f: int, v: int) -> FloatArray:
        """Coefficients of a model's columns, of a fold's machines at a value."""
        return self._coef(self.machines(f, v))

    def scores(self, scoring: str) -> FloatArray:
        """How well rows that were held out are judged: float64 (folds, values); more is better.

        Of a fold that holds nothing out nan.

        Parameters
        ----------
        scoring : {"accuracy", "AUC", "R2", "pinball"}
        """
        found = np.full((len(self.folds), len(self.values)), np.nan)
        held = tuple(np.sort(fold.held) for fold in self.folds)
        of_value = 8.0 * sum(map(len, held)) * len(self.binaries)
        if not of_value:
            return found
        room = JUDGED_SHARE * allowed_memory(self.options.memory)
        some = max(1, int(min(len(self.values), room // of_value)))
        for first in range(0, len(self.values), some):
            values = range(first, min(first + some, len(self.values)))
            for f, scores in enumerate(self._held_scores(held, values)):
                if len(held[f]):
                    found[f, values] = self._judged(held[f], scores, scoring)
        return found

    def _held_scores(self, held: tuple[NDArray[np.int64], ...], values: range) -> list[FloatArray]:
        """Of every fold its machines' scores of the rows that it holds out (rows, values, k)."""
        columns, offsets = [], []
        data = self.design.data
        for f in range(len(held)):
            own = [one for v in values for one in self.machines(f, v)]
            # (By columns of the design, as the solver had them.)
            coef = np.stack([np.asarray(one["coef"]) for one in own])
            offset = np.array([one["intercept"] for one in own])
            if self.source is None and isinstance(data, Moved):
                # What is published scores rows where they are.
                offset += [data.shift(w) for w in coef]
            columns.append(np.ascontiguousarray(coef.T))
            offsets.append(offset)
        look = _HeldOut(self.design, tuple(columns), tuple(offsets), held)
        # (Features have chunks of their own, of fewer rows where they are wide.)
        chunks = list(self.fleet.each(look, range(data.n_chunks)))
        shape = len(values), len(self.binaries)
        return [np.concatenate(own).reshape(-1, *shape) for own in zip(*chunks, strict=True)]

    def _judged(
        self, held: NDArray[np.int64], scores: FloatArray, scoring: str
    ) -> NDArray[np.float64]:
        n, options = self.data.n_rows, self.options
        y = self.data.y(0, n)[held]
        # A one-class machine's rows without weight are judged, though not fitted.
        one_class = options.problem == "one-class"
        weights = np.ones(len(held)) if one_class else self.data.weights(0, n)[held]
        of_value = range(scores.shape[1])
        return np.array([judged(scoring, y, scores[:, v], weights, options.tau) for v in of_value])

    @property
    def late(self) -> bool:
        """Whether the time ended before all were solved."""
        return any(one.get("ended") == "time" for one in self.results.values())


@dataclass(frozen=True)
class _HeldOut:
    """Scores of the rows of a chunk that each fold holds out, by that fold's machines.

    ``columns``, ``offsets``: of every fold's machines, (columns, machines) and (machines,);
    ``held``: row numbers of every fold, int64 ascending.
    """

    design: Design
    columns: tuple[FloatArray, ...]
    offsets: tuple[FloatArray, ...]
    held: tuple[NDArray[np.int64], ...]

    def __call__(self, chunk: int) -> list[FloatArray]:
        first, last = self.design.data.chunk(chunk)
        X = self.design.data.X(first, last)
        found = []
        for columns, offsets, held in zip(self.columns, self.offsets, self.held, strict=True):
            a, b = np.searchsorted(held, (first, last))
            scores = np.empty((b - a, len(offsets)))
            for c, d in row_ranges(b - a, ROWS_PER_TILE):
                rows = X[held[a + c : a + d] - first]
                scores[c:d] = self.design.dots(rows, columns) + offsets
            found.append(scores)
        return found
