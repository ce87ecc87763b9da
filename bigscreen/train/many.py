"""Fit many models to the same rows: they share features and passes over the data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.rows import Rows
from bigscreen.data.views import Recast
from bigscreen.device.newton import DenseNewton, dense_bytes
from bigscreen.features.design import Design
from bigscreen.files.sealed import hash_arrays
from bigscreen.fit.monitor import Report
from bigscreen.fleet.memory import allowed_memory
from bigscreen.fleet.protocol import Fleet
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.plan.memory import Plan
from bigscreen.problems.point import Point
from bigscreen.solvers.newton.many import (
    MANY,
    ROW_BYTES,
    PresolvedPoint,
    can_solve_together,
    solve_many,
)
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Case
from bigscreen.train.features import FeaturesJob
from bigscreen.train.job import Attempt, Start
from bigscreen.train.problems import Binary, check_rows, problems

POINT = "point.kept"
"""The file of a problem's folder with the solution found together with other problems."""


@dataclass(frozen=True)
class ManyTuning:
    """Tuned values of fits that are solved together."""

    # Solve at most this many problems together, by common matrix products; with more, the others
    # follow in further groups.
    max_problems: int = 128
    # Solve at most as many problems together as need this many bytes for alpha and scores of all
    # rows; the other problems follow in further groups.
    max_state_bytes: int = 2**30
    # Solve at most as many problems together as need this fraction of the allowed memory for alpha
    # and scores of all rows; the other problems follow in further groups.
    max_state_fraction: float = 0.25


class Outcomes(NamedTuple):
    """The label codes or targets (n,), and row weights (n,), of one fit; None: the data's own."""

    y: NDArray[Any] | None
    weights: NDArray[Any] | None


class ManyJob(FeaturesJob):
    """The training run of many fits to the same rows; `models` returns a model for each.

    Parameters
    ----------
    data, options, fleet, plan, report, deadline
        As for `Job`.
    outcomes : sequence of Outcomes
        The labels or targets, and weights, of each fit.
    names : sequence of str, optional
        What records and messages call each fit. Default: fit and its number.
    """

    tuning = ManyTuning()
    solve_tuning = MANY

    def __init__(
        self,
        data: Rows,
        options: TrainOptions,
        fleet: Fleet,
        plan: Plan,
        outcomes: Sequence[Outcomes],
        report: Report | None = None,
        deadline: float | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        """Prepare a run of one fit for each of ``outcomes``; see the class for parameters."""
        super().__init__(data, options, fleet, report, plan, deadline)
        self.outcomes = outcomes
        self.names = names or [f"fit {number}" for number in range(len(outcomes))]
        self.fits: dict[str, int] = {}
        """The number of the fit that each problem belongs to, by the problem's folder."""
        self.points: dict[str, Point] = {}
        """The solutions of problems that were solved together, by the problems' folders."""

    def _ingredients(self) -> dict[str, Any]:
        """Return hashes of the labels or targets, and weights, of each fit."""
        return {"outcomes": [hash_arrays(None, *outcomes) for outcomes in self.outcomes]}

    def _problems(self) -> list[Binary]:
        """Return the problems of all fits: one set for each of ``outcomes``."""
        found = []
        for fit, outcomes in enumerate(self.outcomes):
            rows = Recast(self.data, *outcomes)
            check_rows(rows, self.options.problem, self.options.classifies)
            for one in problems(rows, self.options):
                own = self.names[fit]
                name = own if one.name is None else f"{one.name} of {own}"
                found.append(one._replace(name=name, folder=f"{one.folder}-of-fit-{fit}"))
                self.fits[found[-1].folder] = fit
        return found

    def _prepare(self) -> None:
        """Compute the features, and solve all problems together if the solver can."""
        super()._prepare()
        cases = {
            one.folder: Case(one.problem, self._recast(self.design, one).data)
            for one in self.problems
        }
        dense, newton = (self.plan.solver == name for name in ("dense", "newton"))
        if dense or (newton and can_solve_together(self.design, list(cases.values()))):
            some = self._count_at_once(dense_bytes(1, 0).rows if dense else ROW_BYTES)
            total = len(self.problems)
            told = {"event": "progress", "phase": "solve together", "total": total}
            with self.timed("solve"):
                for start in range(0, total, some):
                    self.report({**told, "done": start})
                    self._solve_at_once(self.problems[start : start + some], cases)
            self.report({**told, "done": total})

    def _count_at_once(self, row_bytes: int) -> int:
        """Return how many problems to solve together, each of which takes these bytes a row.

        A device has counted the state of one problem's rows in its plan.
        """
        allowed, tuning = allowed_memory(self.options.memory), self.tuning
        room = min(tuning.max_state_bytes, tuning.max_state_fraction * allowed)
        each = row_bytes * self.data.n_rows
        if self.plan.on_device is not None:
            room = min(room, each + self.plan.on_device.spare_bytes)
        return max(1, min(tuning.max_problems, int(room // each)))

    def _solve_at_once(self, turn: list[Binary], cases: dict[str, Case]) -> None:
        """Solve these problems together, and keep their solutions for a resumed run.

        ``cases``: the problem and rows of each, by folder. Solutions are added to ``points``.
        """
        kept = [self.kept(one).read(POINT) for one in turn]
        points = [Point.from_dict(found[0]) for found in kept if found is not None]
        if len(points) < len(turn):
            own = [cases[one.folder] for one in turn]
            if self.plan.solver == "dense":
                attempt = super()._attempt(turn[0])
                assert isinstance(attempt.solver, DenseNewton)
                run = replace(self._run(turn[0], attempt), folder=None, resume=False)
                points = attempt.solver.solve_many(run, own, self.deadline)
            else:
                how = self.options.tol, self.deadline, self._resident(len(turn)), self.solve_tuning
                points = solve_many(self.design, own, self.fleet, *how)
            # A solution that the time limit cut short must not be what a resumed run starts from.
            if self.deadline is None or time.monotonic() < self.deadline:
                for one, point in zip(turn, points, strict=True):
                    self.kept(one).write(POINT, point.to_dict(), {})
        self.points |= {one.folder: point for one, point in zip(turn, points, strict=True)}

    def _resident(self, problems: int) -> float:
        """Return the fraction of the features that stays in memory next to this many problems."""
        part = self.plan.resident
        if part >= 1:
            return 1.0
        return max(0.0, part - ROW_BYTES * problems / (4.0 * self.design.width))

    def _recast(self, design: Design, binary: Binary) -> Design:
        """Return the design with the labels and weights of the fit that the problem belongs to."""
        outcomes = self.outcomes[self.fits[binary.folder]]
        return replace(design, data=Recast(design.data, *outcomes))

    def _start(self, design: Design, binary: Binary) -> Start:
        """Return a start at 0 for a problem solved with others, else a single fit's start."""
        # The solution found together with the other problems is the start.
        return Start() if binary.folder in self.points else super()._start(design, binary)

    def _attempt(self, binary: Binary) -> Attempt:
        """Return how to solve one problem with its fit's labels and weights.

        A problem that was solved with others starts from the point found there.
        """
        attempt = super()._attempt(binary)
        solver, source = attempt.solver, attempt.source
        design = self._recast(attempt.design, binary)
        if source is not None:  # recomputed features are their own source
            source = design if source is attempt.design else self._recast(source, binary)
        if binary.folder in self.points and isinstance(solver, (Newton, DenseNewton)):
            solver = PresolvedPoint(self.points[binary.folder], solver)
        return attempt._replace(design=design, solver=solver, source=source)

    def models(self) -> list[Model]:
        """Return the model of each fit; a warning names the fits that missed the gap."""
        self._end()
        results = [self.results[binary.folder] for binary in self.problems]
        parts = self._parts(results)
        fits = np.array([self.fits[binary.folder] for binary in self.problems])
        return [
            self.machine(
                [results[i] for i in np.flatnonzero(fits == fit)],
                {**parts, "coef": parts["coef"][fits == fit]},
            )
            for fit in range(len(self.outcomes))
        ]
