"""One rung of a search: solve its candidates, as many at once as fit in memory, and score them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.rows import Rows
from bigscreen.data.views import Picked
from bigscreen.device.find import HOST, Device
from bigscreen.errors import InputError, TimeOver, in_units
from bigscreen.files.kept_files import KeptFiles
from bigscreen.files.sealed import Arrays
from bigscreen.fit.monitor import Report
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.memory import allowed_memory
from bigscreen.fleet.protocol import Fleet
from bigscreen.path.folds import Fold
from bigscreen.path.prepare import PATH, free_bytes
from bigscreen.path.scoring import Scoring, score_held_out
from bigscreen.path.walk import PathSettings, Step
from bigscreen.plan.plan import choose_shared_device
from bigscreen.problems.point import is_solved, largest_gaps
from bigscreen.train.job import claim_folder
from bigscreen.train.problems import Binary, libsvm_scale
from bigscreen.tune.group import Group, Part, PreparedRows, is_too_rough, solve_path
from bigscreen.tune.options import Candidate, GroupKey, Outcome, Solved, TuneOptions, Unit
from bigscreen.tune.schedule import Rung
from bigscreen.tune.streamed import solve_streamed


class OutOfTime(Exception):
    """Raised when the search's part of the time budget is spent."""


class RungTask(NamedTuple):
    """The work of one rung (round of a search): its rows (None: all), folds and candidates.

    ``r``: its number, from 0; ``values``: for each group (kernel, number of landmarks, gamma) the
    values of C or nu; ``tol``: the relative gap to reach; ``quick``: use float32 kernel entries as
    far as they prove the gap.
    """

    r: int
    rows: NDArray[np.int64] | None
    folds: list[Part]
    values: dict[GroupKey, list[float]]
    tol: float
    quick: bool

    @property
    def n_rows(self) -> int:
        """The number of rows of the rung, including held-out rows."""
        return len(self.folds[0].y)


class RungSolver:
    """Solves and scores the candidates of one rung (round of a search) after the other.

    Parameters
    ----------
    data : Rows
        All rows.
    options : TuneOptions
    fleet : Fleet
    report : callable
        Receives an event for each solved part of a rung: the path of one group and fold.
    folds : list of Fold
    binaries : list of Binary
        The binary problems of all rows, at any value.
    until : float or None
        Value of ``time.monotonic()`` after which `OutOfTime` is raised.
    scoring : str or callable
        How held-out rows are scored, as of `score_held_out`.

    Raises
    ------
    InputError
        If features cannot fit into the memory allowed; the message has the numbers of bytes.
    """

    def __init__(
        self,
        data: Rows,
        options: TuneOptions,
        fleet: Fleet,
        report: Report,
        folds: list[Fold],
        binaries: list[Binary],
        until: float | None,
        scoring: Scoring,
    ) -> None:
        """Take the labels and weights of all rows, and compute the free memory.

        ``threads``: the threads of this process, also if ``fleet`` is a cluster; ``allowed``,
        ``room``: bytes of memory allowed, and free for features; ``groups``: prepared (landmarks,
        gamma) groups; ``devices``: what solves each group on the current rung; ``done``: finished
        parts of the current rung.
        """
        self.data, self.options, self.fleet, self.report = data, options, fleet, report
        self.folds, self.binaries, self.until = folds, binaries, until
        self.scoring = scoring
        self.cluster = hasattr(fleet, "address")
        # (Rows in memory are this process's own: workers cannot use them.)
        self.threads: Fleet = Inline() if self.cluster else fleet
        n = data.n_rows
        self.y: NDArray[Any] = data.y(0, n)
        self.weights = np.asarray(data.weights(0, n), dtype=np.float64)
        self.allowed = allowed_memory(options.fit.memory)
        self.room = free_bytes(data, options.fit, fleet, self.threads.workers)
        self._check_memory()
        self._of = ""
        """Identifies the search to which the files of the work folder belong."""
        self.machines: dict[Unit, Arrays] = {}
        """For each group and fold, the machines of the last rung: starts for the next rung."""
        self.groups: dict[GroupKey, Group] = {}
        self.devices: dict[GroupKey, Device] = {}
        self.done = 0.0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the work folder, if any, against other processes; close own threads at the end."""
        with ExitStack() as stack:
            if self.cluster:
                stack.callback(self.threads.close)
            of = self.fleet, self.data, self.options.fit, lambda: self.options.record
            self._of = stack.enter_context(claim_folder(*of, "search", "rung-*"))
            yield

    def solve(
        self, r: int, rung: Rung, values: dict[GroupKey, list[float]], tol: float
    ) -> Iterator[dict[Candidate, Outcome]]:
        """Solve a rung, and yield the outcomes of its candidates, one batch of groups at a time.

        Parameters
        ----------
        r : int
            The rung's number, from 0.
        rung : Rung
        values : dict
            For each group (kernel, number of landmarks, gamma) its values of C or nu, ascending.
        tol : float
            The relative gap to reach.
        """
        self.groups = {key: group for key, group in self.groups.items() if key in values}
        self.done = 0.0
        folds = [self._fold_part(fold, rung) for fold in self.folds]
        task = RungTask(r, rung.rows, folds, values, tol, tol >= PATH.min_float32_tol)
        self.devices = {key: self._choose_device(task, key) for key in values}
        streamed = [key for key in values if self._streams(key, rung)]
        for batch in self._batches(task, [key for key in values if key not in streamed]):
            units = [(key, f) for key in batch for f in range(len(self.folds))]
            yield self._outcomes(task, batch, self._solve_in_memory(task, units))
        for key in streamed:
            yield self._outcomes(task, [key], self._solve_streamed(task, key))

    def _solve_in_memory(self, task: RungTask, units: list[Unit]) -> dict[Unit, Solved]:
        """Solve the units (group, fold) of groups whose stages fit in memory at the same time.

        Units for which float32 entries are too inaccurate are solved again with float64 entries.
        """
        solved = self._solve_paths(task, units)
        rough = [unit for unit in units if unit not in solved]
        if rough:
            # (The float32 entries are freed before the float64 entries are made.)
            solved |= self._solve_paths(task._replace(quick=False), rough)
        return solved

    def _solve_paths(self, task: RungTask, units: list[Unit]) -> dict[Unit, Solved]:
        """Make the stages (prepared rows) of groups, and solve the paths of their ``units``.

        A unit is a group and the number of a fold. Paths that are too inaccurate are left out.
        """
        keys = list(dict.fromkeys(key for key, _ in units))
        for key in keys:
            if key not in self.groups:
                fit = self.options.fit_of(*key, float(np.asarray(self.options.values)[-1]))
                self.groups[key] = Group(self.data, fit, self.fleet, self.options.tuning)
        with Inline(1) as single:
            fleet = self.threads if len(keys) == 1 else single

            def prepare(key: GroupKey) -> PreparedRows:
                """Prepare the rung's rows for a group, unless the time is over."""
                self._watch()
                given = self.room / len(keys), self.threads.workers, task.quick
                return self.groups[key].prepare(task.rows, fleet, *given)

            prepared = dict(zip(keys, self.threads.each(prepare, keys), strict=True))
            self._drop_factors(keys)
            walk = partial(self._walk, task, prepared)
            parallel = all(one.parallel for one in prepared.values())
            made = self.threads.each(walk, units) if parallel else map(walk, units)
            solved = {}
            for unit, one in zip(units, made, strict=True):
                if one is not None:
                    solved[unit] = one
                    self._report_part(task, one)
        return solved

    def _report_part(self, task: RungTask, solved: Solved) -> None:
        """Report that the path of one group and fold is solved, with its largest relative gap."""
        self.done += 1
        gap = largest_gaps(solved[0])["relative_gap"]
        self.report({"event": "part", "done": self.done, "rung": task.r, "relative_gap": gap})

    def _outcomes(
        self, task: RungTask, batch: list[GroupKey], solved: dict[Unit, Solved]
    ) -> dict[Candidate, Outcome]:
        """Collect the outcomes of the candidates in the groups ``batch``.

        A candidate's outcome has the score of each fold and the largest gap. ``solved``: for each
        unit (a group and a fold) a record for each value of C, and the arrays of the trained SVMs,
        which are kept: the next rung starts from them.
        """
        self.machines |= {unit: arrays for unit, (_, arrays) in solved.items()}
        outcomes = {}
        for key in batch:
            for k, value in enumerate(task.values[key]):
                records = [solved[key, f][0][k] for f in range(len(self.folds))]
                scores = [record["score"] for record in records]
                found = Outcome(scores, task.r, task.n_rows, largest_gaps(records)["relative_gap"])
                outcomes[Candidate(*key, value)] = found
        return outcomes

    def _streams(self, key: GroupKey, rung: Rung) -> bool:
        """Whether all folds and values of a group are solved at once, in shared passes.

        They are on a device, on workers, and if the features of all rows do not fit in memory.
        ``key``: the group's kernel, number of landmarks, and gamma.
        """
        landmarks, n = key[1], self.data.n_rows
        if self.devices[key] is not HOST:
            return True
        if rung.rows is not None or landmarks is None:
            return False
        return self.cluster or 4.0 * n * landmarks > self.room

    def _choose_device(self, task: RungTask, key: GroupKey) -> Device:
        """Choose what solves a group on a rung; ``key``: its kernel, landmarks, and gamma."""
        fit, fits = self.options.fit_of(*key, 1e-3), len(self.folds) * len(task.values[key])
        return choose_shared_device(self.fleet, self._rows(task), fit, fits)

    def _rows(self, task: RungTask) -> Rows:
        """Return the rows of a rung, which are read where they are used."""
        if task.rows is None:
            return self.data
        return Picked(self.data, task.rows, task.folds[0].y, self.weights[task.rows])

    def _solve_streamed(self, task: RungTask, key: GroupKey) -> dict[Unit, Solved]:
        """Solve all folds of a group in shared passes over the data, or read an interrupted run's.

        ``key``: the group's kernel, number of landmarks, and gamma.
        """
        r, values = task.r, task.values[key]
        units = [(key, f) for f in range(len(self.folds))]
        kept = [self._kept(r, unit, values) for unit in units]
        found = [one for one in kept if one is not None]
        if len(found) < len(units):
            self._watch()
            work = self.options.fit.work
            fit = replace(
                self.options.fit_of(*key, values[-1]),
                tol=task.tol,
                work=None if work is None else work / "features",
                resume=False,
                time_budget=None,
                memory=self.allowed,
            )
            if task.rows is not None:
                group = Group(self.data, fit, self.fleet, self.options.tuning)
                fit = replace(fit, components=group.landmarks)
            folds = [Fold(part.weights, part.held) for part in task.folds]
            given = folds, self.binaries, values, self.until, self.scoring, self.devices[key]
            try:
                found, late = solve_streamed(self._rows(task), fit, self.fleet, *given)
            except TimeOver as error:
                raise OutOfTime from error
            if late:
                raise OutOfTime
            for unit, one in zip(units, found, strict=True):
                self._keep(r, unit, values, *one)
        for one in found:
            self._report_part(task, one)
        return dict(zip(units, found, strict=True))

    def _walk(
        self, task: RungTask, prepared: dict[GroupKey, PreparedRows], unit: Unit
    ) -> Solved | None:
        """Solve and score the path of one unit (group, fold), or read it from an interrupted run.

        ``prepared``: the prepared rows of each group. None if float32 kernel entries were too
        inaccurate (`is_too_rough`).
        """
        (key, f), tol = unit, task.tol
        own, part, values = prepared[key], task.folds[f], task.values[key]
        kept = self._kept(task.r, unit, values)
        if kept is not None:
            return kept
        self._watch()
        settings = PathSettings(tol, (), True, True, False, self.until)
        before = self.machines.get(unit)
        steps, arrays = solve_path(own, self.binaries, part, values, settings, before)
        if settings.is_late and not all(is_solved(s.record, tol) for point in steps for s in point):
            raise OutOfTime
        if own.quick and is_too_rough(own, steps, tol, self.options.tuning):
            return None
        records = [self._point(point, part) for point in steps]
        self._keep(task.r, unit, values, records, arrays)
        return records, arrays

    def _point(self, steps: list[Step], part: Part) -> dict[str, Any]:
        """Return the gap of a fold's point, and its score on the rung's held-out rows.

        ``steps``: the solved machines of the point; ``part``: the fold, restricted to the rung's
        rows.
        """
        gaps = [step.record["relative_gap"] for step in steps]
        # (Several machines are compared in the scale in which the model publishes them.)
        scale = [libsvm_scale(step.problem, step.multiplier, self.data) for step in steps]
        scores = [a * s.decision[part.held] for a, s in zip(scale, steps, strict=True)]
        given = part.y[part.held], np.stack(scores, axis=1), part.held_weights
        score = score_held_out(self.scoring, *given)
        return {"relative_gap": None if None in gaps else max(gaps), "score": score}

    def _fold_part(self, fold: Fold, rung: Rung) -> Part:
        """Restrict a fold to the rows of a rung, without rescaling the rows' weights.

        With unscaled weights, the best C often stays the best as rows are added; if the weights of
        a part of the rows were scaled up to all rows, smaller C would look best (ijcnn1, a9a).
        """
        if rung.rows is None:
            return Part(self.y, fold.weights, fold.held, self.weights[fold.held])
        held = np.flatnonzero(np.isin(rung.rows, fold.held))
        weights = self.weights[rung.rows[held]]
        return Part(self.y[rung.rows], fold.weights[rung.rows], held, weights)

    # -- what a run that resumes this one takes over -----------------------------------------------
    def _rung(self, r: int) -> KeptFiles:
        """Return the work folder's files of rung number r: one for each fold of each group."""
        fit = self.options.fit
        folder = None if fit.work is None else fit.work / f"rung-{r}"
        return KeptFiles(folder, f"{self._of}/{r}", fit.resume, durable=False)

    def _keep(
        self,
        r: int,
        unit: Unit,
        values: list[float],
        records: list[dict[str, Any]],
        arrays: Arrays,
    ) -> None:
        """Write the results of one unit (group, fold) of rung number r for a resumed run.

        ``values``: of C or nu; ``records``, ``arrays``: of the unit's points, one record a value.
        """
        self._rung(r).write(_name(unit), {"values": values, "points": records}, arrays)

    def _kept(self, r: int, unit: Unit, values: list[float]) -> Solved | None:
        """Read the results that an interrupted run has written for a unit of rung number r.

        A unit is a group and a fold; ``values``: its values of C or nu. None if there are no
        results for these values.
        """
        found = self._rung(r).read(_name(unit))
        if found is None or found[0]["values"] != values:
            return None
        return found[0]["points"], found[1]

    # -- memory and time ---------------------------------------------------------------------------
    def _bytes(self, task: RungTask, key: GroupKey) -> float:
        """Estimate the bytes that the candidates of a group need while a rung is solved.

        ``key``: the group's kernel, number of landmarks, and gamma.
        """
        landmarks, rows = key[1], task.n_rows
        if landmarks is None or self.options.fit_of(*key, 1e-3).coupled:
            matrix = 4.0 if task.quick and self.options.fit.problem != "nu-svc" else 8.0
            return matrix * rows * rows + 4.0 * rows * (landmarks or 0)
        return 4.0 * rows * landmarks + 24.0 * landmarks**2

    def _batches(self, task: RungTask, keys: list[GroupKey]) -> Iterator[list[GroupKey]]:
        """Yield batches of groups that fit in memory at the same time, at least one group each.

        ``keys``: for each group its kernel, number of landmarks, and gamma.
        """
        batch: list[GroupKey] = []
        for key in keys:
            if batch and sum(self._bytes(task, one) for one in [*batch, key]) > 0.5 * self.room:
                yield batch
                batch = []
            batch.append(key)
        if batch:
            yield batch

    def _check_memory(self) -> None:
        """Refuse a search if the features of even the first rung's rows do not fit in memory."""
        most = self.options.candidates[-1].landmarks
        if most is None:
            return
        rows = min(self.data.n_rows, self.options.tuning.min_rows)
        if 4.0 * rows * most > self.room:
            raise InputError(
                f"the features of {rows} rows take {in_units(4.0 * rows * most)} and of the memory "
                f"allowed, {in_units(self.allowed)}, {in_units(max(self.room, 0))} are left for "
                "them; use fewer landmarks, or allow more memory"
            )

    def _watch(self) -> None:
        """Raise `OutOfTime` if the search's part of the time budget is spent."""
        if self.until is not None and time.monotonic() > self.until:
            raise OutOfTime

    def _drop_factors(self, keys: list[GroupKey]) -> None:
        """Drop the landmark factors of groups if the factors of all would take too much memory.

        ``keys``: the groups whose factors are dropped, by kernel, number of landmarks and gamma.
        """
        for key in keys:
            factor = vars(self.groups[key]).get("factor")
            if factor is not None:
                taken = len(self.groups) * factor.matrix.nbytes
                if taken > self.options.tuning.max_factor_fraction * self.room:
                    del self.groups[key].factor


def _name(unit: Unit) -> str:
    """Return the name of the file that keeps the results of a unit (group, fold)."""
    (kernel, landmarks, gamma), f = unit
    return f"{kernel}-{landmarks or 'exact'}-{gamma!r}-fold-{f}"
