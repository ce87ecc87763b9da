"""`train_path`: solve a grid of C or nu with folds, for Python and for the command line."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.rows import Rows, check_one_target
from bigscreen.device.find import HOST, Device, explain_failures
from bigscreen.errors import InputError, TimeOver
from bigscreen.features import nystrom
from bigscreen.files.kept_files import KeptFiles
from bigscreen.files.sealed import Arrays
from bigscreen.files.work import PROBLEM
from bigscreen.fit.loop import OVERFLOW_MESSAGE
from bigscreen.fit.monitor import Report
from bigscreen.fleet.blas import blas_threads
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.memory import allowed_memory
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.base import Kernel
from bigscreen.model.file import pack_rows
from bigscreen.model.solved_path import SolvedPath
from bigscreen.options.train import TrainOptions
from bigscreen.path.folds import Fold, make_folds
from bigscreen.path.folds_job import FoldsJob
from bigscreen.path.options import PathOptions, checked_grid, refuse_rules
from bigscreen.path.prepare import PATH, PathTuning, beyond_memory, make_stage
from bigscreen.path.resume import load_points, save_point, state
from bigscreen.path.scoring import SCORINGS, best_of, score_held_out
from bigscreen.path.stage import Stage
from bigscreen.path.walk import PathSettings, Step, Walk
from bigscreen.plan.memory import Plan
from bigscreen.plan.plan import choose_shared_device, plan_on
from bigscreen.problems.point import ROUNDING_FIELDS, is_solved, largest_gaps
from bigscreen.problems.recipes import with_mass_of
from bigscreen.screening.sequential import make_path_rule
from bigscreen.train.job import Result, claim_folder
from bigscreen.train.problems import check_rows, libsvm_scale, problems
from bigscreen.train.records import (
    combine_supports,
    kind_and_labels,
    provenance,
    support_rows,
    warn_missed,
)

Point = tuple[list[dict[str, Any]], Arrays]
"""A solved point of a path: records of its machines (binary problems), and its model's arrays."""


class Shared(NamedTuple):
    """Kernel, landmarks and provenance that the models of all points of a path have in common.

    ``landmarks`` and ``factor`` (of the landmarks' kernel matrix) are None without a Nystrom
    kernel. ``solver`` and ``features`` are names for the provenance, and so are ``certified_in``,
    the dtype in which the gaps are proved, and ``device``, the record of what has computed.
    """

    kernel: Kernel
    landmarks: Any
    factor: nystrom.Factor | None
    solver: str
    features: str
    certified_in: str
    device: dict[str, str]


def train_path(
    data: Rows,
    options: PathOptions,
    fleet: Fleet,
    report: Report | None = None,
    deadline: float | None = None,
    tuning: PathTuning = PATH,
) -> SolvedPath:
    """Solve a path over all rows, and over the fitted rows of every fold.

    Parameters
    ----------
    data : Rows
    options : PathOptions
    fleet : Fleet
    report : callable or None
        Receives events: phases, and one for each point.
    deadline : float or None
        Value of ``time.monotonic()`` at which the time budget ends, including the work before the
        first point. Default: the options' budget, counted from now, for the points only.
    tuning : PathTuning

    Returns
    -------
    SolvedPath
        Held in memory.

    Raises
    ------
    InputError
        Bad parameters or rows, an infeasible nu, folds with one class only; all before any kernel
        is computed.
    TimeOver
        If ``deadline`` passes before the first point.
    """
    with blas_threads(1):
        path = PathJob(data, options, fleet, report, deadline, tuning).run()
    data.check_unchanged()
    return path


class PathJob:
    """One run of `train_path`: its checks, its stage, and its walks.

    A stage is the prepared rows with a solver. A walk solves the grid once: there is a walk for
    each fold, and one over all rows. Parameters as for `train_path`.
    """

    folds_job = FoldsJob
    """The job that solves all values at once if features or rows do not fit in memory."""

    def __init__(
        self,
        data: Rows,
        options: PathOptions,
        fleet: Fleet,
        report: Report | None,
        deadline: float | None,
        tuning: PathTuning = PATH,
    ) -> None:
        """Check the options against the rows, and make the binary problems and the folds.

        ``binaries``: the machines of one point, for the largest value; ``device``: what computes;
        ``streamed``: whether all values are solved at once, by the dense solver (``_dense``) or
        because features do not fit in memory; ``_strict``: the deadline if it holds for the
        preparation too; ``_end``: the deadline of the solves; ``done``, ``total``: reported points,
        of all walks.
        """
        self.data, self.options, self.fleet, self.tuning = data, options, fleet, tuning
        self.report: Report = report or (lambda event: None)
        self.fit = options.fit
        if self.fit.metric_learning != "none":
            raise InputError(
                "a path has one map of the columns for all its points, and none to learn it from; "
                "leave out metric_learning"
            )
        self.values = checked_grid(options.values, options.parameter)
        check_rows(data, self.fit.problem, self.fit.classifies)
        check_one_target(data, "a path")
        n = data.n_rows
        self.y: NDArray[Any] = data.y(0, n)
        self.weights = np.asarray(data.weights(0, n), dtype=np.float64)
        most: dict[str, Any] = {options.parameter: float(self.values[-1])}
        self.binaries = problems(data, replace(self.fit, **most))
        self.rules = tuple(make_path_rule(name) for name in options.effective_rules)
        self.dynamic = options.dynamic
        self.scoring = SCORINGS[self.fit.problem]
        self.folds = make_folds(data, self.y, self.weights, options, self.binaries, self.values)
        self._strict = self._end = deadline
        self.done, self.total = 0, len(self.values) * (1 + len(self.folds))
        self.device = self._choose_device()
        self._dense = self.fit.solver == "dense" or self.device is not HOST
        self.streamed = self._dense or beyond_memory(data, self.fit, fleet)
        if self.streamed and options.rules:
            raise InputError(
                f"rule {options.rules[0]} leaves out rows from value to value, and solver dense "
                "solves all values at once, as does a device, and any path whose features (or "
                "rows) do not fit into the memory allowed; leave rules out, use fewer landmarks, "
                "or allow more memory"
            )
        self._reporting = Lock()

    def _choose_device(self) -> Device:
        """Choose what computes: a device solves all values and folds at once, without rules.

        Raises
        ------
        InputError
            If "cuda" is wanted, and there is no device, or the machine is exact.
        """
        if self.fit.device == "cuda" and self.fit.exact:
            raise InputError(
                "the path of an exact machine is computed on the CPU; leave out `device`, or take "
                "landmarks"
            )
        if self.options.rules and self.fit.device == "auto":
            return HOST
        return choose_shared_device(self.fleet, self.data, self.fit, self.total)

    def run(self) -> SolvedPath:
        """Solve the path, with the work folder locked against other processes."""
        of = self.fleet, self.data, self.fit, lambda: self.options.record
        with claim_folder(*of, "path", "walk-*") as self._of, explain_failures(self.device):
            return self._run()

    def _run(self) -> SolvedPath:
        """Solve the path; the work folder is locked already. See `train_path`."""
        began = time.monotonic()
        if self._end is None and self.fit.time_budget is not None:
            self._end = began + self.fit.time_budget
        self.report({"event": "phase", "phase": "features"})
        made = self._solve_streamed() if self.streamed else self._solve_in_memory()
        (*parts, solved), shared, spent = made
        folds, scores = None, None
        if self.folds:
            folds = [[record for record, _ in points] for points in parts]
            scores = [[record[0]["score"] for record in points] for points in folds]
        self.fleet.stop()
        seconds = {"features": spent, "total": time.monotonic() - began}
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
            "best": None if means is None else best_of(means),
            "seconds": seconds,
        }
        path = self._path(solved, known, shared)
        if path.missed:
            warn_missed(path.missed, stacklevel=5)
        return path

    def _report_phase(self, event: dict[str, Any]) -> None:
        """Report progress of preparing the rows; raise TimeOver if the deadline has passed."""
        self.report(event)
        if self._strict is not None and time.monotonic() > self._strict:
            raise TimeOver(f"the time budget ended in the phase {event['phase']}")

    # -- rows or features in memory ----------------------------------------------------------------
    def _solve_in_memory(self) -> tuple[list[list[Point]], Shared, float]:
        """Solve with rows, features or the kernel matrix in memory.

        Returns the points of each walk (solve of the grid), what the models share, and the seconds
        that preparing took.
        """
        began = time.monotonic()
        self.prepared = prepared = make_stage(
            self.data, self.fit, self.fleet, self._report_phase, len(self.folds) + 1, self.tuning
        )
        if not prepared.definite:
            refuse_rules(self.options.rules)
            # If ||w||^2 may be negative, no ball holds the optimum.
            self.rules, self.dynamic = (), False
        spent = time.monotonic() - began
        solved = self._solve_walks([*range(len(self.folds)), None])
        features = "exact" if self.fit.exact else "stored"
        of = prepared.kernel, prepared.landmarks, prepared.factor, prepared.name
        return solved, Shared(*of, features, "float64", HOST.record), spent

    # -- one walk ----------------------------------------------------------------------------------
    def _solve_walks(self, folds: list[int | None]) -> list[list[Point]]:
        """Solve the points of every walk: one walk after the other, or all walks in parallel.

        ``folds``: numbers of folds, None for the walk over all rows.
        """
        walks = [self._walk(fold) for fold in folds]
        if not self.prepared.side_by_side:
            return [list(walk) for walk in walks]
        # (Rows in memory are this process's own: only its threads can use them.)
        each = self.fleet.each if isinstance(self.fleet, Inline) else map
        rounds = [list(each(next, walks)) for _ in self.values]
        return [list(points) for points in zip(*rounds, strict=True)]

    def _walk(self, fold: int | None) -> Iterator[Point]:
        """Yield the points of one walk: its machines' records, and the arrays of its model.

        ``fold`` is None for the walk over all rows; a fold's points have a score and no arrays.
        Points that an interrupted run has saved are read first.
        """
        weights = self.weights if fold is None else self.folds[fold].weights
        settings = PathSettings(
            self.fit.tol,
            self.rules,
            self.dynamic,
            self.options.warm,
            self.options.alone and fold is None,
            self._deadline(fold),
            self.prepared.published,
        )
        stage = self.prepared.for_walk()
        walks = [
            Walk(
                stage,
                with_mass_of(one.problem, self.y, weights),
                self.y,
                weights,
                self.values,
                settings,
            )
            for one in self.binaries
        ]
        name = "all" if fold is None else f"fold-{fold}"
        folder = None if self.fit.work is None else self.fit.work / f"walk-{name}"
        kept = KeptFiles(folder, f"{self._of}/{name}", self.fit.resume, durable=False)
        solved_before = load_points(kept, walks, len(self.values))
        for records, arrays in solved_before:
            self._report_point(fold, records)
            yield records, arrays
        late = False
        for k in range(len(solved_before), len(self.values)):
            steps = [walk.step(k) for walk in walks]
            records = [step.record for step in steps]
            if fold is None:
                arrays = self._arrays(steps, stage)
            else:
                arrays = {}
                records[0]["score"] = self._score(steps, fold)
            # Points that the deadline cut short are not saved: a later run solves them again.
            solved = [*records, *(walk.end.record for walk in walks if walk.end is not None)]
            late = late or (settings.is_late and not all(map(self._met, solved)))
            if folder is not None and not late:
                save_point(kept, k, records, arrays, state(walks))
            self._report_point(fold, records)
            yield records, arrays

    def _met(self, record: dict[str, Any]) -> bool:
        """Whether the record of a machine says that the requested gap is reached (`is_solved`)."""
        return is_solved(record, self.fit.tol)

    def _deadline(self, fold: int | None) -> float | None:
        """Return when a walk (solve of the grid) must end; None without a time budget.

        ``fold``: the number of its fold, None for the walk over all rows. Each walk has an equal
        share of the time that is left.
        """
        if self._end is None or self.prepared.side_by_side:
            return self._end
        now, walks = time.monotonic(), 1 + (0 if fold is None else len(self.folds) - fold)
        return now + max(0.0, self._end - now) / walks

    def _report_point(self, fold: int | None, records: list[dict[str, Any]]) -> None:
        """Report a solved point: its walk, value, largest gaps, and rows.

        ``fold`` is None for the walk over all rows; ``records`` has one record for each machine.
        """
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
                    **largest_gaps(records),
                    "rows": records[0]["rows"],
                    "left": max(record["left"] for record in records),
                }
            )

    def _score(self, steps: list[Step], fold: int) -> float:
        """Score a point on the fold's held-out rows; larger is better.

        ``steps``: the point's machines; ``fold``: number of the fold.
        """
        rows = self.folds[fold].held
        # (Several machines are compared in the scale in which the model publishes them.)
        scales = [libsvm_scale(step.problem, step.multiplier, self.data) for step in steps]
        parts = zip(scales, steps, strict=True)
        scores = np.stack([scale * step.decision[rows] for scale, step in parts], axis=1)
        weights = np.ones(len(rows)) if self.fit.problem == "one-class" else self.weights[rows]
        return score_held_out(self.scoring, self.y[rows], scores, weights, self.fit.tau)

    # -- rows or features that do not fit in memory ------------------------------------------------
    def _solve_streamed(self) -> tuple[list[list[Point]], Shared, float]:
        """Solve all values of every fold and of all rows in the same passes over the data.

        Returns the points of each walk (fold, or all rows), what models share, and the seconds that
        the features took.
        """
        self.rules, self.dynamic = (), False  # all points are solved at once: no earlier one
        work = None if self.fit.work is None else self.fit.work / "features"
        resume = bool(work and self.fit.resume and (work / PROBLEM).exists())
        if work is not None and not resume:
            shutil.rmtree(work, ignore_errors=True)
        # (The last "fold" holds nothing out.)
        folds = [*self.folds, Fold(self.weights, np.zeros(0, np.int64))]
        values: list[float] = self.values.tolist()
        held = sum(one.nbytes for fold in self.folds for one in fold)
        on_disk = work is not None and self.fit.kernel != "linear" and not self._dense
        fit = replace(
            self.fit.tuned(features="stored" if on_disk else "auto"),
            memory=max(1, allowed_memory(self.fit.memory) - held),
            work=work,
            resume=resume,
            time_budget=None if self._end is None else max(1e-3, self._end - time.monotonic()),
            # (Only the passes of both Newtons serve several machines.)
            solver="dense" if self._dense else "auto" if self.fit.kernel == "linear" else "newton",
            cache=None,
        )
        fits = len(folds) * len(values)
        plan = self._plan_streamed(fit, fits)
        fraction = self.tuning.max_score_fraction
        given = folds, self.binaries, values, self.report, self._strict, fraction
        with self.folds_job(self.data, fit, self.fleet, plan, *given) as job:
            job.run()
            scores = job.scores(self.scoring)
            points = [self._streamed_points(job, f, scores[f]) for f in range(len(folds))]
            proofs = {one["certificate"]["certified_in"] for one in job.results.values()}
            landmarks = job.model_landmarks()
        # (The weakest proof holds for all of them.)
        of = job.kernel, landmarks, job.factor, plan.solver, plan.features, min(proofs)
        return points, Shared(*of, plan.device.record), job.seconds["features"]

    def _plan_streamed(self, fit: TrainOptions, fits: int) -> Plan:
        """Plan the ``fits`` fits of all folds and values, which share their features."""
        has_folder = fit.work is not None
        return plan_on(self.fleet, self.data, fit, fits, device=self.device, has_folder=has_folder)

    def _streamed_points(self, job: FoldsJob, f: int, scores: Sequence[float]) -> list[Point]:
        """Make the points of fold number f from the results of a job over streamed features.

        The last f is the walk over all rows. ``scores``: the fold's held-out score at each value.
        """
        fold, points = (None if f == len(self.folds) else f), []
        weights = job.folds[f].weights
        each = (job.seconds["solve"] + job.seconds["certify"]) / len(job.problems)
        for v, value in enumerate(job.values):
            machines = job.machines(f, v)
            records = []
            for binary, one in zip(self.binaries, machines, strict=True):
                problem = with_mass_of(binary.problem.at(value), self.y, weights)
                dual = problem.dual(self.y, weights)
                rows = int(np.count_nonzero(dual.hi > dual.lo))
                records.append(_of_certificate(one, value, rows, each))
            arrays: Arrays = {}
            if fold is None:
                intercepts = np.array([one["intercept"] for one in machines])
                arrays = {"intercept": intercepts, "coef": job.coef(f, v)}
            else:
                records[0]["score"] = float(scores[v])
            self._report_point(fold, records)
            points.append((records, arrays))
        return points

    # -- what is made of the points ----------------------------------------------------------------
    def _arrays(self, steps: list[Step], stage: Stage) -> Arrays:
        """Collect the arrays of a point's model: coefficients, offsets, and support rows.

        ``steps``: the solved machines of the point; ``stage``: the stage that solved them.
        """
        prepared, parts, intercepts = self.prepared, [], []
        for step in steps:
            one = stage.machine(step.dual, step.solved)
            scale = libsvm_scale(step.problem, step.multiplier, self.data)
            intercepts.append(scale * (one["constant"] + step.offset))
            parts.append((one, scale))
        arrays: Arrays = {"intercept": np.array(intercepts)}
        if not self.fit.exact:
            coefs = [scale * prepared.coef(one) for one, scale in parts]
            return {**arrays, "coef": np.stack(coefs)}
        rows, coef = combine_supports(
            [(one["support"], scale * one["coef"]) for one, scale in parts]
        )
        return {**arrays, "coef": coef, "rows": rows}

    def _path(self, solved: list[Point], known: dict[str, Any], shared: Shared) -> SolvedPath:
        """Make the published path.

        ``solved``: the points over all rows; ``known``: the record of grid, names, folds and
        scores; ``shared``: what the models have in common.
        """
        data, fit = self.data, self.fit
        arrays: Arrays = {"intercept": np.stack([own["intercept"] for _, own in solved])}
        landmarks = shared.landmarks
        if fit.exact:
            # A row that supports many points is stored once.
            rows = np.unique(np.concatenate([own["rows"] for _, own in solved]))
            landmarks = support_rows(shared.kernel, data, rows)
            arrays["support"] = data.row_ids(0, data.n_rows)[rows]
        for k, (_, own) in enumerate(solved):
            arrays[f"coef-{k}"] = own["coef"]
            if fit.exact:
                arrays[f"own-{k}"] = np.searchsorted(rows, own["rows"])
        kind = "none"
        if landmarks is not None:
            kind, parts = pack_rows("landmarks", landmarks)
            arrays |= parts
        factor = shared.factor
        record = {
            **known,
            "points": [records for records, _ in solved],
            "kernel": shared.kernel.to_dict(),
            **kind_and_labels(data, fit),
            "preparation": data.preparation.to_dict(),
            "n_features": data.n_features,
            "landmarks": kind,
            "exact": fit.exact,
            "provenance": provenance(
                data,
                fit,
                shared.kernel,
                self.fleet,
                False,
                solver=shared.solver,
                features=shared.features,
                certified_in=shared.certified_in,
                device=shared.device,
                **({} if factor is None else {"nystrom": factor.record()}),
            ),
        }
        return SolvedPath(record, arrays.__getitem__)


def _of_certificate(result: Result, value: float, rows: int, seconds: float) -> dict[str, Any]:
    """Convert the result of a fit to the record of a path's point (`path.walk.Step`).

    ``rows``: how many rows have a box of more than one value; ``seconds``: the machine's share of
    the solving time.
    """
    proof = result["certificate"]
    if not proof["proved"]:
        raise InputError(f"at {value:g} of the grid {OVERFLOW_MESSAGE}")
    names = ("primal", "dual", "gap", "relative_gap", *ROUNDING_FIELDS)
    return {
        "value": value,
        **{name: proof[name] for name in names},
        "rounding": proof["rounding_bound"],
        "rows": rows,
        "left": rows,
        "screened": {},
        "support": proof["support"],
        "seconds": {"rules": 0.0, "solver": seconds},
        "counts": dict(proof["passes"]),
        "init": True,
    }
