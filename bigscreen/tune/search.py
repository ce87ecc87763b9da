"""The search itself: rungs of candidates, judged by folds, dropped by a rule that is said."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError, TimeOver, in_units
from bigscreen.files.sealed import Arrays, digest, read_sealed, write_sealed
from bigscreen.files.work import PROBLEM, owned
from bigscreen.fit.monitor import Report
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.protocol import Fleet
from bigscreen.fleet.shards import blas_threads
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray
from bigscreen.path.walk import PathSettings, Step
from bigscreen.problems.point import settled
from bigscreen.train.path_options import PathOptions, make_folds
from bigscreen.train.path_stage import PATH_ROW_BYTES
from bigscreen.train.plan import BASE_BYTES
from bigscreen.train.problems import check_rows, problems, published
from bigscreen.train.run import train
from bigscreen.tune.bounds import accuracy, decisions
from bigscreen.tune.group import Ground, Group, Part, correct, walked
from bigscreen.tune.options import Candidate, TuneOptions
from bigscreen.tune.rules import ELIMINATIONS
from bigscreen.tune.schedule import Rung, rungs

ROUGH = 3e-2
"""Relative gap of points on a part of the rows, unless more is allowed."""
CLOSER = 0.1
"""What safe elimination multiplies the gap with, from round to round."""
CLOSEST = 1e-12
"""Relative gap at which it gives up, at last: float64 sums show little less."""
KEPT_SHARE = 0.3
"""Part of the memory that entries between rows and landmarks may take from rung to rung."""
SEARCH_SHARE = 0.75
"""Part of a time budget that is for the search."""
FACTOR_SHARE = 0.1
"""Part of the memory that factors of landmarks may take from rung to rung."""
TIE = 1e-12
"""Scores that differ by less are equal: sums of weights are rounded."""

Pair = tuple[int | None, float]
"""Landmarks and gamma."""


class Outcome(NamedTuple):
    """What is known of a candidate's score on held-out rows.

    ``gap`` is the largest relative one of the folds (None: the kernel has none). ``low`` and
    ``high`` bound the mean score of the exact optimum, where that was looked into.
    """

    scores: list[float]
    rung: int
    rows: int
    gap: float | None
    low: float | None = None
    high: float | None = None

    @property
    def mean(self) -> float:
        """Over the folds."""
        return float(np.mean(self.scores))


class _OutOfTime(Exception):
    """The search's part of the time budget is spent."""


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
        Threads of this process.
    report : callable or None
        Receives events: phases, rungs, and one for each part of a rung that is solved.
    deadline : float or None
        Value of ``time.monotonic()`` at which the time budget ends. Default: the budget from now.

    Returns
    -------
    Model
        With its certificate, and the search's record as ``provenance["search"]``.

    Raises
    ------
    InputError
        Bad parameters or rows, an infeasible nu, folds that would have one class only: all before
        any kernel work.
    TimeOver
        If the time ends before any candidate is judged.
    """
    began = time.monotonic()
    if deadline is None and options.fit.time_budget is not None:
        deadline = began + options.fit.time_budget
    search = Search(data, options, fleet, report, deadline)
    # (Which problem a work folder is of is told by rows and options alone.)
    with blas_threads(1), search.held():
        record = search.run()
        best = record["best"]
        say = report or (lambda event: None)
        say({"event": "phase", "phase": "last fit", **best})
        model = train(data, search.last_fit(best), fleet, report)
    record["seconds"] = {"search": search.spent, "total": time.monotonic() - began}
    model.provenance["search"] = record
    return model


class Search:
    """One search; `tune` drives it."""

    def __init__(
        self,
        data: Rows,
        options: TuneOptions,
        fleet: Fleet,
        report: Report | None = None,
        deadline: float | None = None,
    ) -> None:
        self.data, self.options, self.fleet = data, options, fleet
        self.report: Report = report or (lambda event: None)
        self.began = time.monotonic()
        self.end = deadline
        self.until = None
        if deadline is not None:
            self.until = self.began + SEARCH_SHARE * max(0.0, deadline - self.began)
        self.candidates = options.candidates
        most = self.candidates[-1]
        if most.landmarks is not None and most.landmarks > data.n_rows:
            raise InputError(
                f"{most.landmarks} landmarks were asked for and the data has {data.n_rows} rows; "
                "ask for fewer"
            )
        fit = options.fit_of(*most)
        check_rows(data, fit.problem, fit.classifies)
        self.binaries = problems(data, fit)
        if options.elimination == "safe" and len(self.binaries) > 1 and fit.problem == "nu-svc":
            raise InputError(
                "safe elimination bounds scores, and those of several nu-svc machines are compared "
                "after a division by margins that it does not bound; take halving"
            )
        n = data.n_rows
        self.y: NDArray[Any] = data.y(0, n)
        self.weights = np.asarray(data.weights(0, n), dtype=np.float64)
        path = PathOptions(fit, options.values, options.folds)
        values = np.asarray(options.values, float)
        self.folds = make_folds(data, self.y, self.weights, path, self.binaries, values)
        self.held_out = np.zeros((len(self.folds), n), np.bool_)
        for f, fold in enumerate(self.folds):
            self.held_out[f, fold.held] = True
        self.allowed = options.fit.memory or int(0.8 * psutil.virtual_memory().total)
        self.room = self.allowed - BASE_BYTES - n * PATH_ROW_BYTES * fleet.workers
        self._check_memory()
        self.outcomes: dict[Candidate, Outcome] = {}
        self.dropped: dict[Candidate, str] = {}
        self.stages: list[dict[str, Any]] = []
        self.machines: dict[tuple[Pair, int], Arrays] = {}
        """What the last rung that a group got to made of every fold."""
        self.groups: dict[Pair, Group] = {}
        self.keeping = False
        self.done = self.spent = 0.0
        self._known = {**options.record, "data": data.fingerprint} if options.fit.work else {}
        self._of = digest(self._known)

    def held(self) -> Any:
        """The work folder, if there is one, held against other processes."""
        fit = self.options.fit
        if fit.work is None:
            return nullcontext()
        return owned(fit.work, self._known, fit.resume, "search", "rung-*")

    def last_fit(self, best: dict[str, Any]) -> Any:
        """The options of the last fit, on all rows."""
        options = self.options
        fit = options.fit_of(best["landmarks"], best["gamma"], best[options.parameter])
        work = None if fit.work is None else fit.work / "fit"
        resume = bool(work and fit.resume and (work / PROBLEM).exists())
        left = None if self.end is None else max(1e-3, self.end - time.monotonic())
        return replace(fit, work=work, resume=resume, time_budget=left)

    def run(self) -> dict[str, Any]:
        """Search; the record says what was found, and what was dropped when and why.

        Raises
        ------
        TimeOver
            If the time ends before any candidate is judged.
        """
        rule = self.options.elimination
        late = False
        try:
            if rule == "halving":
                self._halve()
            elif rule == "safe":
                self._narrow()
            else:
                self._rung(0, Rung(None, len(self.candidates)), self.candidates, self._tol)
        except _OutOfTime:
            late = True
        if not self.outcomes:
            raise TimeOver("the time budget ended before any candidate was judged")
        self.spent = time.monotonic() - self.began
        return self._record(self._best(), late)

    def _best(self) -> Candidate:
        """The best of those that got to as many rows as any, and of equals the first."""
        most = max(found.rows for found in self.outcomes.values())
        left = [c for c in self.candidates if c in self.outcomes and c not in self.dropped]
        left = [c for c in left if self.outcomes[c].rows == most]
        return max(left, key=lambda c: self.outcomes[c].mean)

    # -- rules of elimination ----------------------------------------------------------------------
    @property
    def _tol(self) -> float:
        return self.options.fit.tol

    def _halve(self) -> None:
        """Successive halving: the best on a part of the rows go on to more of them."""
        options, alive = self.options, self.candidates
        plan = rungs(
            self.data.n_rows, len(alive), options.factor, self.y, self.folds, options.fit.seed
        )
        for r, rung in enumerate(plan):
            last = rung.rows is None
            self._rung(r, rung, alive, self._tol if last else max(self._tol, ROUGH))
            if last:
                break
            place = {c: k for k, c in enumerate(alive)}
            order = sorted(alive, key=lambda c: (-self.outcomes[c].mean, place[c]))
            keep = set(order[: plan[r + 1].candidates])
            self._drop(r, [c for c in alive if c not in keep], "halving")
            alive = [c for c in alive if c in keep]
        self._climb(len(plan))

    def _climb(self, r: int) -> None:
        """The best one's neighbours in the grid on all rows, until none of them is better.

        Which C is best grows or shrinks with the rows, and the last rung has few of them.
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

    def _narrow(self) -> None:
        """Safe elimination: solve ever more closely until one is left that provably wins."""
        alive, tol, r, last = self.candidates, self._tol, 0, math.inf
        while True:
            self._rung(r, Rung(None, len(alive)), alive, tol)
            widest = max(self.outcomes[c].gap or 0.0 for c in alive)
            lost = beaten({c: self.outcomes[c] for c in alive})
            self._drop(r, lost, "safe")
            alive = [c for c in alive if c not in lost]
            # Where rounding lets the gaps shrink no further, no later round could decide.
            if len(alive) == 1 or tol < CLOSEST or widest > 0.9 * last:
                return
            tol, r, last = CLOSER * tol, r + 1, widest

    def _drop(self, r: int, lost: list[Candidate], rule: str) -> None:
        for c in lost:
            self.dropped[c] = rule
            self.stages[r]["dropped"] += 1

    # -- one rung ----------------------------------------------------------------------------------
    def _rung(self, r: int, rung: Rung, alive: list[Candidate], tol: float) -> None:
        """Solve and judge candidates on the rows of a rung."""
        began = time.monotonic()
        values: dict[Pair, list[float]] = {}
        for c in alive:
            values.setdefault((c.landmarks, c.gamma), []).append(c.value)
        rows = self.data.n_rows if rung.rows is None else len(rung.rows)
        self.groups = {pair: group for pair, group in self.groups.items() if pair in values}
        # (Those who judge on all rows have read them all by the second rung.)
        kept = sum(4.0 * self.data.n_rows * (landmarks or np.inf) for landmarks, _ in values)
        self.keeping = rung.rows is not None and kept <= KEPT_SHARE * self.room
        stage = {"rows": rows, "candidates": len(alive), "tol": tol, "dropped": 0}
        self.done = 0.0
        self.report({"event": "rung", "rung": r, **stage, "parts": len(values) * len(self.folds)})
        parts = [self._fold_part(f, rung) for f in range(len(self.folds))]
        made: dict[tuple[Pair, int], Arrays] = {}
        found: dict[Candidate, Outcome] = {}
        for batch in self._batches(list(values), rows):
            outcomes, machines = self._solved(r, rung, batch, values, parts, tol)
            found |= outcomes
            made |= machines
            if not r:
                self.outcomes |= outcomes  # better than nothing, if the time ends
        self.outcomes |= found
        self.machines |= made
        best = max(found.values(), key=lambda one: one.mean)
        stage |= {"best": best.mean, "seconds": time.monotonic() - began}
        self.stages.append(stage)
        self.report({"event": "rung done", "rung": r, **stage})

    def _solved(
        self,
        r: int,
        rung: Rung,
        batch: list[Pair],
        values: dict[Pair, list[float]],
        parts: list[Part],
        tol: float,
    ) -> tuple[dict[Candidate, Outcome], dict[tuple[Pair, int], Arrays]]:
        """Outcomes of some groups side by side, and what their machines are."""
        for pair in batch:
            if pair not in self.groups:
                fit = self.options.fit_of(*pair, float(np.asarray(self.options.values)[-1]))
                self.groups[pair] = Group(self.data, fit, self.fleet)
            if self.keeping:
                self.groups[pair].keep()
        alone = Inline(1)

        def ground(pair: Pair) -> Ground:
            self._watch()
            threads, fleet = (1, self.fleet) if len(batch) == 1 else (self.fleet.workers, alone)
            return self.groups[pair].ground(rung.rows, fleet, self.room / len(batch), threads)

        with alone:
            grounds = dict(zip(batch, self.fleet.each(ground, batch), strict=True))
            if len(self.groups) * _factor_bytes(self.groups[batch[0]]) > FACTOR_SHARE * self.room:
                for pair in batch:
                    del self.groups[pair].__dict__["factor"]

            def walk(unit: tuple[Pair, int]) -> tuple[list[dict[str, Any]], Arrays]:
                pair, f = unit
                return self._walk(r, rung, grounds[pair], parts[f], unit, values[pair], tol)

            units = [(pair, f) for pair in batch for f in range(len(self.folds))]
            parallel = all(one.parallel for one in grounds.values())
            done = self.fleet.each(walk, units) if parallel else map(walk, units)
            solved = {}
            for unit, one in zip(units, done, strict=True):
                solved[unit] = one
                self.done += 1
                self.report({"event": "part", "done": self.done, "rung": r, **_worst(one[0])})
        scores = self._judged(rung, batch, grounds, solved)
        outcomes = {}
        for pair in batch:
            for k, value in enumerate(values[pair]):
                records = [solved[pair, f][0][k] for f in range(len(self.folds))]
                gaps = [record["relative_gap"] for record in records]
                gap = None if None in gaps else max(gaps)
                own = scores[pair][k].tolist()
                ends: list[float | None] = [None, None]
                if self.options.elimination == "safe":
                    ends = [float(np.mean([one[e] for one in records])) for e in ("low", "high")]
                rows = len(parts[0].y)
                outcomes[Candidate(*pair, value)] = Outcome(own, r, rows, gap, *ends)
        return outcomes, {unit: arrays for unit, (_, arrays) in solved.items()}

    def _walk(
        self,
        r: int,
        rung: Rung,
        ground: Ground,
        part: Part,
        unit: tuple[Pair, int],
        values: list[float],
        tol: float,
    ) -> tuple[list[dict[str, Any]], Arrays]:
        """Records of a fold's points, and their machines: from a run before this, or solved."""
        kept = self._kept(r, unit, values)
        if kept is not None:
            return kept
        self._watch()
        settings = PathSettings(tol, (), True, True, False, self.until)
        before = self.machines.get(unit)
        steps, arrays = walked(ground, self.binaries, part, values, settings, before, self.data)
        if settings.late and not all(settled(s.record, tol) for point in steps for s in point):
            raise _OutOfTime
        norms = ground.stage().norms if self.options.elimination == "safe" else None
        records = [self._point(point, unit[1], norms, rung.rows is None) for point in steps]
        if self.options.elimination != "safe":
            del arrays["alpha"]
        self._keep(r, unit, values, records, arrays)
        return records, arrays

    def _point(
        self, steps: list[Step], f: int, norms: FloatArray | None, whole: bool
    ) -> dict[str, Any]:
        """What is known of a point: its gap; on all rows its score, and bounds on that."""
        gaps = [step.record["relative_gap"] for step in steps]
        record: dict[str, Any] = {"relative_gap": None if None in gaps else max(gaps)}
        if not whole:
            return record
        held = self.folds[f].held
        y, weights = self.y[held], self.weights[held]
        scale = [published(step.problem, step.multiplier, self.data) for step in steps]
        scores = np.stack([a * s.decision[held] for a, s in zip(scale, steps, strict=True)], axis=1)
        record["score"] = accuracy(y, scores, scores, weights)[0]
        if norms is not None:
            ends = [decisions(step, norms) for step in steps]
            lower, upper = (np.stack([end[e][held] for end in ends], axis=1) for e in (0, 1))
            record["low"], record["high"] = accuracy(y, lower, upper, weights)
        return record

    def _judged(
        self,
        rung: Rung,
        batch: list[Pair],
        grounds: dict[Pair, Ground],
        solved: dict[tuple[Pair, int], tuple[list[dict[str, Any]], Arrays]],
    ) -> dict[Pair, FloatArray]:
        """Scores of every group's values on every fold's held-out rows: float64 (values, folds)."""
        folds = range(len(self.folds))
        if rung.rows is None:
            return {
                pair: np.array([[one["score"] for one in solved[pair, f][0]] for f in folds]).T
                for pair in batch
            }

        def chunk(item: tuple[Pair, int]) -> FloatArray:
            pair, k = item
            self._watch()
            machines = [solved[pair, f][1] for f in folds]
            given = self.groups[pair], grounds[pair], self.binaries, machines, self.held_out
            return correct(*given, k)

        items = [(pair, k) for pair in batch for k in range(self.data.n_chunks)]
        total = np.array([float(np.sum(self.weights[fold.held])) for fold in self.folds])
        found: dict[Pair, FloatArray] = {}
        for (pair, _), right in zip(items, self.fleet.each(chunk, items), strict=True):
            found[pair] = found[pair] + right if pair in found else right
        return {pair: right / total for pair, right in found.items()}

    def _fold_part(self, f: int, rung: Rung) -> Part:
        """The rows of a rung as a fold fits them: each weighs what it does among all rows.

        Many of the best C stay the best as rows are added; with the weight of all rows on a part of
        them smaller ones do (on ijcnn1 and a9a).
        """
        weights = self.folds[f].weights
        if rung.rows is None:
            return Part(self.y, weights)
        return Part(self.y[rung.rows], weights[rung.rows])

    # -- memory, time and the work folder ----------------------------------------------------------
    def _bytes(self, pair: Pair, rows: int) -> float:
        """What a group of candidates needs for so many rows."""
        landmarks = pair[0]
        if landmarks is None or self.options.fit_of(*pair, 1e-3).coupled:
            return 8.0 * rows * rows + 4.0 * rows * (landmarks or 0)
        return 4.0 * rows * landmarks + 24.0 * landmarks**2

    def _batches(self, pairs: list[Pair], rows: int) -> Iterator[list[Pair]]:
        """Groups that fit in memory side by side, at least one."""
        batch: list[Pair] = []
        for pair in pairs:
            if batch and sum(self._bytes(one, rows) for one in [*batch, pair]) > 0.5 * self.room:
                yield batch
                batch = []
            batch.append(pair)
        yield batch

    def _check_memory(self) -> None:
        most = self.candidates[-1].landmarks
        if most is not None and 4.0 * self.data.n_rows * most > self.room:
            raise InputError(
                f"the features of all rows take {in_units(4.0 * self.data.n_rows * most)} and of "
                f"the memory allowed, {in_units(self.allowed)}, {in_units(max(self.room, 0))} are "
                "left for them; use fewer landmarks, search on a part of the rows, or allow more "
                "memory"
            )

    def _watch(self) -> None:
        if self.until is not None and time.monotonic() > self.until:
            raise _OutOfTime

    def _place(self, r: int, unit: tuple[Pair, int]) -> tuple[str, Path]:
        (landmarks, gamma), f = unit
        assert self.options.fit.work is not None
        name = f"{landmarks or 'exact'}-{gamma!r}-fold-{f}"
        return f"{self._of}/{r}/{name}", self.options.fit.work / f"rung-{r}" / f"{name}.kept"

    def _keep(
        self,
        r: int,
        unit: tuple[Pair, int],
        values: list[float],
        records: list[dict[str, Any]],
        arrays: Arrays,
    ) -> None:
        if self.options.fit.work is None:
            return
        of, path = self._place(r, unit)
        path.parent.mkdir(exist_ok=True)
        write_sealed(path, of, {"values": values, "points": records}, arrays, durable=False)

    def _kept(
        self, r: int, unit: tuple[Pair, int], values: list[float]
    ) -> tuple[list[dict[str, Any]], Arrays] | None:
        if self.options.fit.work is None or not self.options.fit.resume:
            return None
        of, path = self._place(r, unit)
        found = read_sealed(path, of)
        if found is None or found[0]["values"] != values:
            return None
        return found[0]["points"], found[1]

    # -- the record --------------------------------------------------------------------------------
    def _record(self, best: Candidate, late: bool) -> dict[str, Any]:
        parameter, rule = self.options.parameter, self.options.elimination

        def named(c: Candidate) -> dict[str, Any]:
            return {"landmarks": c.landmarks, "gamma": c.gamma, parameter: c.value}

        points = []
        for c in self.candidates:
            found, point = self.outcomes.get(c), named(c)
            if found is not None:
                point |= {**found._asdict(), "mean": found.mean, "std": float(np.std(found.scores))}
            points.append({**point, "dropped": self.dropped.get(c)})
        rivals = [c for c in self.candidates if c not in self.dropped and c != best]
        return {
            "parameter": parameter,
            "elimination": rule,
            "rule": ELIMINATIONS[rule],
            "folds": len(self.folds),
            "scoring": "accuracy",
            "grid": {
                "landmarks": None if best.landmarks is None else list(self.options.landmarks or ()),
                "gamma": np.asarray(self.options.gammas, float).tolist(),
                parameter: np.asarray(self.options.values, float).tolist(),
            },
            "stages": self.stages,
            "candidates": points,
            "best": {**named(best), "score": self.outcomes[best].mean},
            "late": late,
            "proved": rule == "safe" and not late and not rivals,
            "rivals": len(rivals),
        }


def beaten(outcomes: dict[Candidate, Outcome]) -> list[Candidate]:
    """Those whose exact machine certainly scores less than another's, or as much and comes later.

    Parameters
    ----------
    outcomes : dict
        In the order of the grid, with bounds.
    """
    order = list(outcomes)
    least: list[float] = [one.low for one in outcomes.values()]  # type: ignore[misc]
    lost = []
    for k, c in enumerate(order):
        high = outcomes[c].high
        assert high is not None
        before = max(least[:k], default=-math.inf)
        others = max([before, *least[k + 1 :]])
        if high < others - TIE or high <= before + TIE:
            lost.append(c)
    return lost


def _worst(records: list[dict[str, Any]]) -> dict[str, Any]:
    gaps = [one["relative_gap"] for one in records]
    return {"relative_gap": None if None in gaps else max(gaps)}


def _factor_bytes(group: Group) -> float:
    factor = group.__dict__.get("factor")
    return 0.0 if factor is None else factor.nbytes
