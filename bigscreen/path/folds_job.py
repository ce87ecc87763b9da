"""Paths over features that do not fit in memory, or whose rows are on other processes.

Newton's method fits the machines of all folds and values together, with one shared pass over the
data per round, as `fit_many` does. Features are written to disk or computed again in every pass;
one more pass scores the held-out rows.
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
from bigscreen.files.sealed import hash_arrays
from bigscreen.fit.loop import Fitted
from bigscreen.fit.monitor import Report
from bigscreen.fleet.memory import allowed_memory
from bigscreen.fleet.protocol import Fleet
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import TrainOptions
from bigscreen.path.folds import Fold
from bigscreen.path.scoring import Scoring, score_held_out
from bigscreen.plan.memory import Plan
from bigscreen.problems.recipes import with_mass_of
from bigscreen.train.job import Attempt, Result
from bigscreen.train.many import ManyJob, Outcomes
from bigscreen.train.problems import Binary


class FoldsJob(ManyJob):
    """A job that fits a machine for every fold and value over the same features.

    Parameters
    ----------
    data, options, fleet, plan
        As for `ManyJob`; C (or nu) of the options is not used.
    folds : list of Fold
        A fold that holds out no rows fits the machines of all rows.
    binaries : list of Binary
        The binary problems of all rows, at any value.
    values : list of float
        Values of C (or nu).
    report, deadline
        As for `Job`; passes are not reported.
    max_score_fraction : float
        Scores of held-out rows take at most this part of the allowed memory; if they would take
        more, they are computed in several passes.
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
        max_score_fraction: float = 0.1,
    ) -> None:
        """Make one outcome (rows' labels and weights to fit) for every fold and value."""
        outcomes = [Outcomes(None, fold.weights) for fold in folds for _ in values]
        super().__init__(data, options, fleet, plan, outcomes, report, deadline)
        self.folds, self.binaries, self.values = folds, binaries, values
        self.max_score_fraction = max_score_fraction

    def _ingredients(self) -> dict[str, Any]:
        """Return the values, and hashes of the rows' weights in each fold."""
        folds = [hash_arrays(None, fold.weights) for fold in self.folds]
        return {"folds": folds, "values": list(self.values)}

    def _problems(self) -> list[Binary]:
        """Make the binary problems of every fold and value, in this order, each with its own name.

        ``self.fits[name]`` is the index of the problem's outcome: fold * number of values + value.
        """
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
        """Return no ledger (what is proved of each row): rows of these models cannot be edited."""

    def _report_event(self, event: dict[str, Any], binary: Binary) -> None:
        """Drop the event: passes of these fits are not reported one by one."""

    def run(self) -> None:
        """Solve all problems, until the deadline."""
        self.begin()
        for some in self.turns():
            self.solve(some)

    def machines(self, f: int, v: int) -> list[Result]:
        """Return the results of the binary problems of fold number f at value number v."""
        k = len(self.binaries)
        first = (f * len(self.values) + v) * k
        return [self.results[one.folder] for one in self.problems[first : first + k]]

    def coef(self, f: int, v: int) -> FloatArray:
        """Return the model coefficients of fold f's machines at value number v."""
        return self._coef(self.machines(f, v))

    def scores(self, scoring: Scoring) -> FloatArray:
        """Score the held-out rows: float64 (folds, values), larger is better.

        A fold that holds nothing out scores nan.

        Parameters
        ----------
        scoring : {"accuracy", "AUC", "R2", "pinball"} or callable
            As of `score_held_out`.
        """
        found = np.full((len(self.folds), len(self.values)), np.nan)
        held = tuple(np.sort(fold.held) for fold in self.folds)
        of_value = 8.0 * sum(map(len, held)) * len(self.binaries)
        if not of_value:
            return found
        room = self.max_score_fraction * allowed_memory(self.options.memory)
        some = max(1, int(min(len(self.values), room // of_value)))
        for first in range(0, len(self.values), some):
            values = range(first, min(first + some, len(self.values)))
            for f, scores in enumerate(self._held_scores(held, values)):
                if len(held[f]):
                    found[f, values] = self._score(held[f], scores, scoring)
        return found

    def _held_scores(self, held: tuple[NDArray[np.int64], ...], values: range) -> list[FloatArray]:
        """Compute the decision values of held-out rows for some values of the grid.

        ``held``: for each fold, ascending row numbers. Returns one array (rows, values, machines)
        per fold.
        """
        columns, offsets = [], []
        data = self.design.data
        for f in range(len(held)):
            own = [one for v in values for one in self.machines(f, v)]
            # (Coefficients of the design's columns, which the solver used.)
            coef = np.stack([np.asarray(one["coef"]) for one in own])
            offset = np.array([one["intercept"] for one in own])
            if self.source is None and isinstance(data, Moved):
                # (Published offsets are for rows that are not shifted.)
                offset += [data.shift(w) for w in coef]
            columns.append(np.ascontiguousarray(coef.T))
            offsets.append(offset)
        look = _HeldOut(self.design, tuple(columns), tuple(offsets), held)
        # (Chunks of the features, which may have fewer rows than chunks of the data.)
        chunks = list(self.fleet.each(look, range(data.n_chunks)))
        shape = len(values), len(self.binaries)
        return [np.concatenate(own).reshape(-1, *shape) for own in zip(*chunks, strict=True)]

    def _score(
        self, held: NDArray[np.int64], scores: FloatArray, scoring: Scoring
    ) -> NDArray[np.float64]:
        """Score a fold's held-out rows at several values; float64 (values,), larger is better.

        ``held``: row numbers; ``scores``: decision values (rows, values, machines); ``scoring``: as
        of `score_held_out`.
        """
        n, options = self.data.n_rows, self.options
        y = self.data.y(0, n)[held]
        # A one-class machine's rows without weight are scored, though not fitted.
        one_class = options.problem == "one-class"
        weights = np.ones(len(held)) if one_class else self.data.weights(0, n)[held]
        of_value = range(scores.shape[1])
        how = weights, options.tau
        return np.array([score_held_out(scoring, y, scores[:, v], *how) for v in of_value])

    @property
    def is_late(self) -> bool:
        """Whether the deadline passed before all problems were solved."""
        return any(one.get("ended") == "time" for one in self.results.values())


@dataclass(frozen=True)
class _HeldOut:
    """Computes the decision values of the held-out rows in one chunk of the data.

    A fold's rows are scored by the machines of this fold. For each fold, ``columns`` has their
    coefficients (columns, machines), ``offsets`` their offsets (machines,), and ``held`` the
    numbers of its held-out rows, int64, ascending. A call takes the number of a chunk, and returns
    an array (rows, machines) for each fold.
    """

    design: Design
    columns: tuple[FloatArray, ...]
    offsets: tuple[FloatArray, ...]
    held: tuple[NDArray[np.int64], ...]

    def __call__(self, chunk: int) -> list[FloatArray]:
        """Return one array (rows, machines) of decision values per fold, of the rows in ``chunk``.

        ``chunk``: the number of a chunk (a range of rows read at a time).
        """
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
