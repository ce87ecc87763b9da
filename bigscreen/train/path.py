"""From a data set to a solved path: a grid of C or nu, with folds, the same for Python and cli."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from bigscreen.data.rows import Rows
from bigscreen.errors import TimeOver
from bigscreen.files.sealed import Arrays
from bigscreen.fit.monitor import Report
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.protocol import Fleet
from bigscreen.fleet.shards import blas_threads
from bigscreen.model.file import packed
from bigscreen.model.solved_path import SolvedPath
from bigscreen.numerics.rows import FloatArray
from bigscreen.path.folds import SCORINGS, checked_grid, judged
from bigscreen.path.resume import PathFolder, state, take
from bigscreen.path.stage import Stage
from bigscreen.path.walk import PathSettings, Step, Walk
from bigscreen.problems.point import settled, worst
from bigscreen.problems.recipes import NuSvc, OneClass, Problem, rows_weights
from bigscreen.screening.sequential import make_path_rule
from bigscreen.train.job import rely_on
from bigscreen.train.path_options import PathOptions, make_folds, refuse_rules
from bigscreen.train.path_stage import make_stage
from bigscreen.train.problems import check_rows, problems, published
from bigscreen.train.records import decided, gathered, provenance, support_rows

Point = tuple[list[dict[str, Any]], Arrays]
"""Records of a point's machines, and what a model needs of them."""


def train_path(
    data: Rows,
    options: PathOptions,
    fleet: Fleet,
    report: Report | None = None,
    deadline: float | None = None,
) -> SolvedPath:
    """Solve a path, and the same for every fold.

    Parameters
    ----------
    data : Rows
    options : PathOptions
    fleet : Fleet
    report : callable or None
        Receives events: phases, and one for each point.
    deadline : float or None
        Value of ``time.monotonic()`` at which the time budget ends, what comes before the first
        point included. Default: the budget from now on, for the points.

    Returns
    -------
    SolvedPath
        In memory.

    Raises
    ------
    InputError
        Bad parameters or rows, an infeasible nu, folds that would have one class only: all before
        any kernel work.
    TimeOver
        If ``deadline`` passes before the first point.
    """
    with blas_threads(1):
        job = PathJob(data, options, fleet, report, deadline)
        with job.folder or nullcontext():
            path = job.run()
    data.check_unchanged()
    return path


class PathJob:
    """One run: the checks, the stage that all walks share, the folds, and all rows."""

    def __init__(
        self,
        data: Rows,
        options: PathOptions,
        fleet: Fleet,
        report: Report | None,
        deadline: float | None,
    ) -> None:
        self.data, self.options, self.fleet = data, options, fleet
        self.report: Report = report or (lambda event: None)
        self.fit = options.fit
        self.values = checked_grid(options.values, options.parameter)
        check_rows(data, self.fit.problem, self.fit.classifies)
        n = data.n_rows
        self.y: NDArray[Any] = data.y(0, n)
        self.weights = np.asarray(data.weights(0, n), dtype=np.float64)
        most: dict[str, Any] = {options.parameter: float(self.values[-1])}
        self.binaries = problems(data, replace(self.fit, **most))
        self.rules = tuple(make_path_rule(name) for name in options.suited)
        self.dynamic = options.dynamic
        self.scoring = SCORINGS[self.fit.problem]
        self.folds = make_folds(data, self.y, self.weights, options, self.binaries, self.values)
        self.folder = self._folder()
        rely_on(fleet, data, self.fit.work)
        self._strict = self._end = deadline
        self.done, self.total = 0, len(self.values) * (1 + len(self.folds))
        self._reporting = Lock()

    def run(self) -> SolvedPath:
        """Do it all."""
        began = time.monotonic()
        if self._end is None and self.fit.time_budget is not None:
            self._end = began + self.fit.time_budget
        self.report({"event": "phase", "phase": "features"})
        self.prepared = make_stage(
            self.data, self.fit, self.fleet, self._prepared, len(self.folds) + 1
        )
        if not self.prepared.definite:
            refuse_rules(self.options.rules)
            # Where ||w||^2 may be negative no ball holds the optimum.
            self.rules, self.dynamic = (), False
        prepared = time.monotonic()
        *parts, solved = self._walked([*range(len(self.folds)), None])
        folds, scores = None, None
        if self.folds:
            folds = [[record for record, _ in points] for points in parts]
            scores = [[record[0]["score"] for record in points] for points in folds]
        self.fleet.stop()
        seconds = {"features": prepared - began, "total": time.monotonic() - began}
        means = None if scores is None else np.mean(scores, axis=0)
        known = {
            "parameter": self.options.parameter,
            "problem": self.fit.problem,
            "values": self.values.tolist(),
            "names": [one.name for one in self.binaries],
            "rules": [rule.name for rule in self.rules],
            "folds": folds,
            "scores": scores,
            "scoring": self.scoring,
            "best": None if means is None else int(np.argmax(means)),
            "seconds": seconds,
        }
        path = self._path(solved, known)
        if path.missed:
            warnings.warn(path.missed, ConvergenceWarning, stacklevel=4)
        return path

    def _prepared(self, event: dict[str, Any]) -> None:
        """Report how far the stage is; refuse to go on where the time ends before there is one."""
        self.report(event)
        if self._strict is not None and time.monotonic() > self._strict:
            raise TimeOver(f"the time budget ended in the phase {event['phase']}")

    def _folder(self) -> PathFolder | None:
        if self.fit.work is None:
            return None
        known = {**self.options.record, "data": self.data.fingerprint}
        return PathFolder(self.fit.work, known, self.fit.resume)

    # -- one walk ----------------------------------------------------------------------------------
    def _walked(self, folds: list[int | None]) -> list[list[Point]]:
        """The points of every walk: one walk after the other, or a point of each at a time."""
        walks = [self._walk(fold) for fold in folds]
        if not self.prepared.apart:
            return [list(walk) for walk in walks]
        # Rows in memory are this process's: threads, no other workers.
        each = self.fleet.each if isinstance(self.fleet, Inline) else map
        rounds = [list(each(next, walks)) for _ in self.values]
        return [list(points) for points in zip(*rounds, strict=True)]

    def _walk(self, fold: int | None) -> Iterator[Point]:
        """All points of one fold's rows, or of all rows: records of its machines, and its model."""
        weights = self.weights if fold is None else self.folds[fold].weights
        settings = PathSettings(
            self.fit.tol,
            self.rules,
            self.dynamic,
            self.options.warm,
            self.options.alone and fold is None,
            self._deadline(fold),
        )
        stage = self.prepared.for_walk()
        walks = [
            Walk(
                stage,
                of_rows(one.problem, self.y, weights),
                self.y,
                weights,
                self.values,
                settings,
            )
            for one in self.binaries
        ]
        name = "all" if fold is None else f"fold-{fold}"
        kept = self._kept(walks, name)
        for records, arrays in kept:
            self._report_point(fold, records)
            yield records, arrays
        late = False
        for k in range(len(kept), len(self.values)):
            steps = [walk.step(k) for walk in walks]
            records = [step.record for step in steps]
            if fold is None:
                arrays = self._arrays(steps, stage)
            else:
                arrays = {}
                records[0]["score"] = self._judge(steps, fold)
            # What the time has cut short a later run solves, the end that rules asked for included.
            solved = [*records, *(walk.end.record for walk in walks if walk.end is not None)]
            late = late or (settings.late and not all(map(self._met, solved)))
            if self.folder is not None and not late:
                self.folder.put(name, k, records, arrays, state(walks))
            self._report_point(fold, records)
            yield records, arrays

    def _met(self, record: dict[str, Any]) -> bool:
        return settled(record, self.fit.tol)

    def _deadline(self, fold: int | None) -> float | None:
        """When a walk has used its share of the time that is left."""
        if self._end is None or self.prepared.apart:
            return self._end
        now, walks = time.monotonic(), 1 + (0 if fold is None else len(self.folds) - fold)
        return now + max(0.0, self._end - now) / walks

    def _kept(self, walks: list[Walk], name: str) -> list[Point]:
        """The points that a run before this one has solved; the walks go on from the last."""
        if self.folder is None or not self.fit.resume:
            return []
        kept: list[Point] = []
        for k in range(len(self.values)):
            point = self.folder.point(name, k)
            if point is None:
                break
            kept.append(point)
        # A state that a power cut has spoiled takes its point along. That of a whole walk is
        # taken, too: the stage goes on to the next fold from there.
        while kept:
            left = self.folder.state(name, len(kept) - 1)
            if left is not None:
                take(walks, left)
                break
            kept.pop()
        return kept

    def _report_point(self, fold: int | None, records: list[dict[str, Any]]) -> None:
        with self._reporting:
            self.done += 1
            self.report(
                {
                    "event": "point",
                    "parameter": self.options.parameter,
                    "fold": fold,
                    "done": self.done,
                    "total": self.total,
                    "value": records[0]["value"],
                    **worst(records),
                    "rows": records[0]["rows"],
                    "left": max(record["left"] for record in records),
                }
            )

    def _judge(self, steps: list[Step], fold: int) -> float:
        """How good the fold's held-out rows are predicted."""
        rows = self.folds[fold].held
        # Several machines are compared in the scale that the model has them in.
        scales = [published(step.problem, step.multiplier, self.data) for step in steps]
        parts = zip(scales, steps, strict=True)
        scores = np.stack([scale * step.decision[rows] for scale, step in parts], axis=1)
        weights = np.ones(len(rows)) if self.fit.problem == "one-class" else self.weights[rows]
        return judged(self.scoring, self.y[rows], scores, weights, self.fit.tau)

    # -- what is made of the points ----------------------------------------------------------------
    def _arrays(self, steps: list[Step], stage: Stage) -> Arrays:
        """What a model needs of a point: coefficients of all machines, offsets, support rows."""
        prepared, parts, intercepts = self.prepared, [], []
        for step in steps:
            one = stage.machine(step.dual, step.solved)
            scale = published(step.problem, step.multiplier, self.data)
            intercepts.append(scale * (one["constant"] + step.offset))
            parts.append((one, scale))
        arrays: Arrays = {"intercept": np.array(intercepts)}
        if not self.fit.exact:
            coefs = [scale * prepared.coef(one) for one, scale in parts]
            return {**arrays, "coef": np.stack(coefs)}
        rows, coef = gathered([(one["support"], scale * one["coef"]) for one, scale in parts])
        return {**arrays, "coef": coef, "rows": rows}

    def _path(self, solved: list[Point], known: dict[str, Any]) -> SolvedPath:
        """The path in memory; ``known``: what its record says of grid, names, folds and scores."""
        data, fit, prepared = self.data, self.fit, self.prepared
        arrays: Arrays = {"intercept": np.stack([own["intercept"] for _, own in solved])}
        landmarks = prepared.landmarks
        if fit.exact:
            # A row that supports many points is kept once.
            rows = np.unique(np.concatenate([own["rows"] for _, own in solved]))
            landmarks = support_rows(prepared.kernel, data, rows)
            arrays["support"] = data.row_ids(0, data.n_rows)[rows]
        for k, (_, own) in enumerate(solved):
            arrays[f"coef-{k}"] = own["coef"]
            if fit.exact:
                arrays[f"own-{k}"] = np.searchsorted(rows, own["rows"])
        kind = "none"
        if landmarks is not None:
            kind, parts = packed("landmarks", landmarks)
            arrays |= parts
        factor = prepared.factor
        record = {
            **known,
            "points": [records for records, _ in solved],
            "kernel": prepared.kernel.to_dict(),
            **decided(data, fit),
            "preparation": data.preparation.to_dict(),
            "n_features": data.n_features,
            "landmarks": kind,
            "exact": fit.exact,
            "provenance": provenance(
                data,
                fit,
                prepared.kernel,
                self.fleet,
                False,
                solver=prepared.name,
                features="exact" if fit.exact else "stored",
                certified_in="float64",
                **({} if factor is None else {"nystrom": factor.record()}),
            ),
        }
        return SolvedPath(record, arrays.__getitem__)


def of_rows(problem: Problem, y: NDArray[Any], weights: FloatArray) -> Problem:
    """The problem of these weights: what nu is a share of goes with them."""
    if isinstance(problem, NuSvc):
        own = rows_weights(y, weights, problem.code_weight)
    elif isinstance(problem, OneClass):
        own = weights
    else:
        return problem
    return replace(problem, mass=float(np.sum(own)) or 1.0)
