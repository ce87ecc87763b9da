"""`tune`: search a grid by rungs of candidates, scored by cross-validation, then fit the best."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.rows import Rows, check_one_target
from bigscreen.device.find import find_on
from bigscreen.errors import InputError, TimeOver
from bigscreen.files.work import PROBLEM
from bigscreen.fit.monitor import Report
from bigscreen.fleet.blas import blas_threads
from bigscreen.fleet.protocol import Fleet
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.path.folds import make_folds
from bigscreen.path.options import PathOptions
from bigscreen.path.scoring import best_of
from bigscreen.plan.device import choose_device
from bigscreen.train.problems import check_rows, problems
from bigscreen.train.run import train
from bigscreen.tune.learned import MetricSearch
from bigscreen.tune.metric import find_scoring
from bigscreen.tune.options import ELIMINATIONS, Candidate, GroupKey, Outcome, TuneOptions
from bigscreen.tune.rung import OutOfTime, RungSolver
from bigscreen.tune.schedule import Rung, rungs


def tune(
    data: Rows,
    options: TuneOptions,
    fleet: Fleet,
    report: Report | None = None,
    deadline: float | None = None,
) -> Model:
    """Search a grid, and fit the best candidate to all rows.

    Parameters
    ----------
    data : Rows
    options : TuneOptions
    fleet : Fleet
        Threads of this process; or a cluster, whose workers solve the rungs of all rows. (Rungs of
        a part of the rows are solved in this process.)
    report : callable or None
        Receives events: phases, rungs, and one for each solved part of a rung.
    deadline : float or None
        Value of ``time.monotonic()`` at which the time budget ends. Default: the options' budget,
        counted from now.

    Returns
    -------
    Model
        With its certificate, and the search's record as ``provenance["search"]``.

    Raises
    ------
    InputError
        Bad parameters or rows, an infeasible nu, folds with one class only; all before any kernel
        is computed.
    TimeOver
        If the time ends before any candidate is scored.
    """
    began = time.monotonic()
    if deadline is None and options.fit.time_budget is not None:
        deadline = began + options.fit.time_budget
    search = Search(data, options, fleet, report, deadline)
    # (A work folder belongs to the problem of its rows and options.)
    with blas_threads(1), search.solver.hold():
        record = search.run()
        best = record["best"]
        if options.metrics != ("none",):
            record["metric_learning"] = found = search.judge_metrics()
            kind = found["best"]
            best |= {"metric_learning": kind, **found["chosen"][kind]}
            best["score"] = float(np.mean(found["scores"][kind]))
        say = report or (lambda event: None)
        say({"event": "phase", "phase": "last fit", **best})
        model = train(data, search.last_fit(record), fleet, report)
    record["seconds"] = {"search": search.spent, "total": time.monotonic() - began}
    model.provenance["search"] = record
    return model


class Search:
    """One search over a grid; `tune` runs it, and then fits the best candidate."""

    def __init__(
        self,
        data: Rows,
        options: TuneOptions,
        fleet: Fleet,
        report: Report | None = None,
        deadline: float | None = None,
    ) -> None:
        """Check the options against the rows, and make the binary problems and the folds.

        ``end``: when the whole time budget ends (the search's part ends before); ``strata``: label
        codes, or zeros for targets; ``scoring``: the name of the score;
        ``outcomes``: the last result of each candidate; ``dropped``: why candidates were dropped;
        ``stages``: a record for each rung; ``spent``: seconds of the search.
        """
        self.data, self.options = data, options
        self.report: Report = report or (lambda event: None)
        self.began = time.monotonic()
        self.end = deadline
        until = None
        if deadline is not None:
            until = self.began + options.tuning.search_fraction * max(0.0, deadline - self.began)
        self.candidates = options.candidates
        most = self.candidates[-1]
        chosen = 0 if options.fit.components is not None else most.landmarks or 0
        if chosen > data.n_rows:
            raise InputError(
                f"{chosen} landmarks were asked for and the data has {data.n_rows} rows; "
                "ask for fewer"
            )
        fit = options.fit_of(*most)
        choose_device(data, fit, partial(find_on, fleet))  # (refuses a device that is not there)
        check_rows(data, fit.problem, fit.classifies)
        check_one_target(data, "a search")
        self.binaries = problems(data, fit)
        y: NDArray[Any] = data.y(0, data.n_rows)
        self.strata = y if fit.classifies else np.zeros(data.n_rows, np.int8)
        weights = np.asarray(data.weights(0, data.n_rows), dtype=np.float64)
        path = PathOptions(fit, options.values, options.folds)
        values = np.asarray(options.values, float)
        self.folds = make_folds(data, y, weights, path, self.binaries, values)
        self.scoring, scoring = find_scoring(options.scoring, data, fit.problem)
        given = self.report, self.folds, self.binaries, until, scoring
        self._scoring, self._until = scoring, until
        self.solver = RungSolver(data, options, fleet, *given)
        self.outcomes: dict[Candidate, Outcome] = {}
        self.dropped: dict[Candidate, str] = {}
        self.stages: list[dict[str, Any]] = []
        self.spent = 0.0

    def last_fit(self, record: dict[str, Any]) -> TrainOptions:
        """Return the options of the final fit on all rows; ``record``: of the search."""
        options, best = self.options, record["best"]
        searched = best["kernel"], best["landmarks"], best["gamma"], best[options.parameter]
        fit = options.fit_of(*searched)
        if best.get("metric_learning", "none") != "none":
            learned = record["metric_learning"]
            fit = replace(
                fit, metric_learning=learned["best"], metric_from=learned["from"][learned["best"]]
            )
        work = None if fit.work is None else fit.work / "fit"
        resume = bool(work and fit.resume and (work / PROBLEM).exists())
        left = None if self.end is None else max(1e-3, self.end - time.monotonic())
        return replace(fit, work=work, resume=resume, time_budget=left)

    def judge_metrics(self) -> dict[str, Any]:
        """Judge the requested kinds of learned metrics by the folds; see `MetricSearch`."""
        best = self._best()
        self.report({"event": "phase", "phase": "metrics"})
        given = self.folds, self.binaries, self._scoring, self.solver.fleet
        judged = MetricSearch(self.data, self.options, *given)
        found = judged.judge(best, self.outcomes[best].scores, self._until)
        self.spent = time.monotonic() - self.began
        return found

    def run(self) -> dict[str, Any]:
        """Search the grid; return the record of what was found, and what was dropped when and why.

        Raises
        ------
        TimeOver
            If the time ends before any candidate is scored.
        """
        late = False
        try:
            if self.options.elimination == "halving":
                self._halve()
            else:
                self._rung(0, Rung(None, len(self.candidates)), self.candidates, self._tol)
        except OutOfTime:
            late = True
        if not self.outcomes:
            raise TimeOver(
                "the time budget ended before any candidate was judged; give more time, or a "
                "smaller grid"
            )
        self.spent = time.monotonic() - self.began
        return self._record(late)

    def _record(self, late: bool) -> dict[str, Any]:
        """Make the search's record, JSON-able: grid, rounds, candidates with scores, and the best.

        ``late``: whether the time ended too soon.
        """
        best = self._best()
        parameter, rule = self.options.parameter, self.options.elimination

        def named(c: Candidate) -> dict[str, Any]:
            """Return a candidate's parameters by name."""
            return {
                "kernel": c.kernel,
                "landmarks": c.landmarks,
                "gamma": c.gamma,
                parameter: c.value,
            }

        points = []
        for c in self.options.candidates:
            found, point = self.outcomes.get(c), named(c)
            if found is not None:
                point |= {**found._asdict(), "mean": found.mean, "std": float(np.std(found.scores))}
            points.append({**point, "dropped": self.dropped.get(c)})
        return {
            "parameter": parameter,
            "elimination": rule,
            "rule": ELIMINATIONS[rule],
            "folds": len(self.folds),
            "scoring": self.scoring,
            "grid": {
                "landmarks": None if best.landmarks is None else list(self.options.landmarks or ()),
                "gamma": self.options.gammas_record,
                parameter: np.asarray(self.options.values, float).tolist(),
            },
            "stages": self.stages,
            "candidates": points,
            "best": {**named(best), "score": self.outcomes[best].mean},
            "late": late,
        }

    def _best(self) -> Candidate:
        """Return the best candidate among those that reached the most rows; the first of equals."""
        most = max(found.rows for found in self.outcomes.values())
        left = [c for c in self.candidates if c in self.outcomes and c not in self.dropped]
        left = [c for c in left if self.outcomes[c].rows == most]
        return left[best_of([self.outcomes[c].mean for c in left])]

    # -- rules of elimination ----------------------------------------------------------------------
    @property
    def _tol(self) -> float:
        """The relative gap of the final fit, and of rungs over all rows."""
        return self.options.fit.tol

    def _halve(self) -> None:
        """Run successive halving: the best candidates on some rows go on to more rows."""
        options, alive = self.options, self.candidates
        most = self.candidates[-1].landmarks
        held = math.inf if most is None else self.solver.room / (4.0 * most)
        of_rows = self.strata, self.solver.weights, self.folds
        plan = rungs(len(alive), options.factor, *of_rows, options.fit.seed, held, options.tuning)
        for r, rung in enumerate(plan):
            last = rung.rows is None
            self._rung(
                r, rung, alive, self._tol if last else max(self._tol, options.tuning.rough_gap)
            )
            if last:
                break
            place = {c: k for k, c in enumerate(alive)}
            means = {c: np.nan_to_num(self.outcomes[c].mean, nan=-np.inf) for c in alive}
            order = sorted(alive, key=lambda c: (-means[c], place[c]))
            keep = set(order[: plan[r + 1].candidates])
            for c in alive:
                if c not in keep:
                    self.dropped[c] = "halving"
            self.stages[r]["dropped"] = len(alive) - len(keep)
            alive = [c for c in alive if c in keep]
        self._climb(len(plan))

    def _climb(self, r: int) -> None:
        """Solve the best candidate's neighbours in the grid on all rows, until none is better.

        ``r``: the number of the next rung. The best C changes with the number of rows, and few
        candidates reach the last rung.
        """
        while True:
            best = self._best()
            near = [
                c
                for c in self.options.neighbours(best)
                if c not in self.outcomes or self.outcomes[c].rows < self.data.n_rows
            ]
            if not near:
                return
            for c in near:
                self.dropped.pop(c, None)
            self._rung(r, Rung(None, len(near)), near, self._tol)
            r += 1

    # -- one rung ----------------------------------------------------------------------------------
    def _rung(self, r: int, rung: Rung, alive: list[Candidate], tol: float) -> None:
        """Solve and score the candidates ``alive`` on the rows of a rung, to the gap ``tol``.

        ``r``: the number of the rung (round of the search), from 0. Their outcomes replace earlier
        ones.
        """
        began = time.monotonic()
        values: dict[GroupKey, list[float]] = {}
        for c in alive:
            values.setdefault((c.kernel, c.landmarks, c.gamma), []).append(c.value)
        rows = self.data.n_rows if rung.rows is None else len(rung.rows)
        stage: dict[str, Any] = {"rows": rows, "candidates": len(alive), "tol": tol, "dropped": 0}
        self.report({"event": "rung", "rung": r, **stage, "parts": len(values) * len(self.folds)})
        found: dict[Candidate, Outcome] = {}
        for outcomes in self.solver.solve(r, rung, values, tol):
            found |= outcomes
            if not r:
                self.outcomes |= outcomes  # better than nothing, if the time ends
        self.outcomes |= found
        means = [one.mean for one in found.values()]
        names = sorted({device.name for device in self.solver.devices.values()})
        stage |= {"best": means[best_of(means)], "seconds": time.monotonic() - began}
        stage["device"] = ", ".join(names)
        self.stages.append(stage)
        self.report({"event": "rung done", "rung": r, **stage})
