"""The search itself: rungs of candidates, judged by folds, dropped by a rule that is said."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from bigscreen.path.folds import judged
from bigscreen.path.walk import PathSettings, Step
from bigscreen.problems.point import settled
from bigscreen.train.job import rely_on
from bigscreen.train.path_options import PathOptions, make_folds
from bigscreen.train.path_stage import LEAST_FLOAT32, PATH_ROW_BYTES
from bigscreen.train.plan import LOOSE_BASE_BYTES as BASE_BYTES
from bigscreen.train.plan import LOOSE_WORKER_BYTES as WORKER_BYTES
from bigscreen.train.problems import check_rows, problems, published
from bigscreen.train.run import train
from bigscreen.tune.bounds import accuracy, decisions
from bigscreen.tune.group import Ground, Group, Part, rough, summed, walked
from bigscreen.tune.judge import score
from bigscreen.tune.options import Candidate, TuneOptions
from bigscreen.tune.outcomes import Outcome, beaten, recorded, worst_of
from bigscreen.tune.schedule import FEWEST_ROWS, Rung, rungs
from bigscreen.tune.streamed import Solved, streamed

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

Pair = tuple[int | None, float]
"""Landmarks and gamma."""

Unit = tuple[Pair, int]
"""A fold of these."""


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
        Threads of this process; or a cluster, whose workers have the rungs of all rows: those on a
        part of them are this process's.
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
        self.cluster = hasattr(fleet, "address")
        # Rows in memory are this process's.
        self.threads: Fleet = Inline() if self.cluster else fleet
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
        self.strata = self.y if fit.classifies else np.zeros(n, np.int8)
        self.weights = np.asarray(data.weights(0, n), dtype=np.float64)
        path = PathOptions(fit, options.values, options.folds)
        values = np.asarray(options.values, float)
        self.folds = make_folds(data, self.y, self.weights, path, self.binaries, values)
        self.held_out = np.zeros((len(self.folds), n), np.bool_)
        for f, fold in enumerate(self.folds):
            self.held_out[f, fold.held] = True
        self.allowed = options.fit.memory or int(0.8 * psutil.virtual_memory().total)
        others = fleet.workers * WORKER_BYTES if self.cluster else 0
        self.room = self.allowed - BASE_BYTES - others - n * PATH_ROW_BYTES * self.threads.workers
        self._check_memory()
        self.outcomes: dict[Candidate, Outcome] = {}
        self.dropped: dict[Candidate, str] = {}
        self.stages: list[dict[str, Any]] = []
        self.machines: dict[Unit, Arrays] = {}
        """What the last rung that a group got to made of every fold."""
        self.groups: dict[Pair, Group] = {}
        self.keeping = self.staying = self.quick = False
        self.done = self.spent = 0.0
        self._known = {**options.record, "data": data.fingerprint} if options.fit.work else {}
        self._of = digest(self._known)

    @contextmanager
    def held(self) -> Iterator[None]:
        """The work folder, if there is one, held against other processes."""
        fit = self.options.fit
        with ExitStack() as stack:
            if self.cluster:
                stack.callback(self.threads.close)
            if fit.work is not None:
                stack.enter_context(owned(fit.work, self._known, fit.resume, "search", "rung-*"))
            rely_on(self.fleet, self.data, fit.work)
            yield

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
        return recorded(
            self.options,
            self.outcomes,
            self.dropped,
            self.stages,
            len(self.folds),
            self._best(),
            late,
        )

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
        most = self.candidates[-1].landmarks
        held = math.inf if most is None else self.room / (4.0 * most)
        plan = rungs(len(alive), options.factor, self.strata, self.folds, options.fit.seed, held)
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
        made: dict[Unit, Arrays] = {}
        found: dict[Candidate, Outcome] = {}
        self.quick = tol >= LEAST_FLOAT32 and self.options.elimination != "safe"
        streamed = [pair for pair in values if self._streams(pair, rung)]
        batches = list(self._batches([pair for pair in values if pair not in streamed], rows))
        # Where all groups fit side by side, they stay for the rungs after this.
        self.staying = rung.rows is None and len(batches) == 1 and not streamed
        batches += [[pair] for pair in streamed]
        for batch in batches:
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
    ) -> tuple[dict[Candidate, Outcome], dict[Unit, Arrays]]:
        """Outcomes of some groups side by side, and what their machines are."""
        if self._streams(batch[0], rung):
            made = self._streamed(r, batch[0], values[batch[0]], tol)
            scores = self._judged(rung, batch, {}, made)
            return self._outcomes(r, batch, values, len(parts[0].y), made, scores)
        for pair in batch:
            if pair not in self.groups:
                fit = self.options.fit_of(*pair, float(np.asarray(self.options.values)[-1]))
                self.groups[pair] = Group(self.data, fit, self.fleet)
            if self.keeping:
                self.groups[pair].keep()
        alone = Inline(1)

        def ground(pair: Pair, quick: bool) -> Ground:
            self._watch()
            threads, fleet = (1, self.threads) if len(batch) == 1 else (self.threads.workers, alone)
            # (What is done again has the quick ones beside it.)
            room = self.room / len(batch) * (1.0 if quick == self.quick else 0.5)
            return self.groups[pair].ground(rung.rows, fleet, room, threads, quick)

        def first(pair: Pair) -> Ground:
            kept = self.groups[pair].whole if rung.rows is None else None
            return ground(pair, self.quick) if kept is None else kept

        with alone:
            grounds = dict(zip(batch, self.threads.each(first, batch), strict=True))
            for pair in batch:
                self.groups[pair].whole = grounds[pair] if self.staying else None
            if len(self.groups) * _factor_bytes(self.groups[batch[0]]) > FACTOR_SHARE * self.room:
                for pair in batch:
                    del self.groups[pair].__dict__["factor"]

            def walks(grounds: dict[Pair, Ground], units: list[Unit]) -> list[Unit]:
                """Walk; the units that are to be walked again."""

                def walk(unit: Unit) -> Solved | None:
                    pair, f = unit
                    return self._walk(r, rung, grounds[pair], parts[f], unit, values[pair], tol)

                parallel = all(one.parallel for one in grounds.values())
                done = self.threads.each(walk, units) if parallel else map(walk, units)
                again = []
                for unit, one in zip(units, done, strict=True):
                    if one is None:
                        again.append(unit)
                        continue
                    solved[unit] = one
                    self.done += 1
                    self.report({"event": "part", "done": self.done, "rung": r, **worst_of(one[0])})
                return again

            solved: dict[Unit, Solved] = {}
            again = walks(grounds, [(pair, f) for pair in batch for f in range(len(self.folds))])
            if again:
                walks({pair: ground(pair, False) for pair in dict(again)}, again)
        scores = self._judged(rung, batch, grounds, solved)
        return self._outcomes(r, batch, values, len(parts[0].y), solved, scores)

    def _outcomes(
        self,
        r: int,
        batch: list[Pair],
        values: dict[Pair, list[float]],
        rows: int,
        solved: dict[Unit, Solved],
        scores: dict[Pair, FloatArray],
    ) -> tuple[dict[Candidate, Outcome], dict[Unit, Arrays]]:
        """What is known of candidates whose folds are solved and judged, and their machines."""
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
                outcomes[Candidate(*pair, value)] = Outcome(own, r, rows, gap, *ends)
        return outcomes, {unit: arrays for unit, (_, arrays) in solved.items()}

    def _streams(self, pair: Pair, rung: Rung) -> bool:
        """Whether a group's features of all rows are none of this process's memory."""
        landmarks, n = pair[0], self.data.n_rows
        if rung.rows is not None or landmarks is None or self.options.elimination == "safe":
            return False
        return self.cluster or 4.0 * n * landmarks > self.room

    def _streamed(self, r: int, pair: Pair, values: list[float], tol: float) -> dict[Unit, Solved]:
        """Every fold's points, all over the same passes: from a run before this, or solved."""
        units = [(pair, f) for f in range(len(self.folds))]
        kept = [self._kept(r, unit, values) for unit in units]
        found = [one for one in kept if one is not None]
        if len(found) < len(units):
            self._watch()
            work = self.options.fit.work
            fit = replace(
                self.options.fit_of(*pair, values[-1]),
                tol=tol,
                work=None if work is None else work / "features",
                resume=False,
                time_budget=None,
                memory=self.allowed,
            )
            given = self.folds, self.binaries, values, self.until
            try:
                found, late = streamed(self.data, fit, self.fleet, *given)
            except TimeOver as error:
                raise _OutOfTime from error
            if late:
                raise _OutOfTime
            for unit, one in zip(units, found, strict=True):
                self._keep(r, unit, values, *one)
        for records, _ in found:
            self.done += 1
            self.report({"event": "part", "done": self.done, "rung": r, **worst_of(records)})
        return dict(zip(units, found, strict=True))

    def _walk(
        self,
        r: int,
        rung: Rung,
        ground: Ground,
        part: Part,
        unit: Unit,
        values: list[float],
        tol: float,
    ) -> Solved | None:
        """Records of a fold's points, and their machines: from a run before this, or solved.

        None where a quick ground was too rough.
        """
        kept = self._kept(r, unit, values)
        if kept is not None:
            return kept
        self._watch()
        settings = PathSettings(tol, (), True, True, False, self.until)
        before = self.machines.get(unit)
        steps, arrays = walked(ground, self.binaries, part, values, settings, before, self.data)
        if settings.late and not all(settled(s.record, tol) for point in steps for s in point):
            raise _OutOfTime
        if ground.quick and rough(ground, steps, tol):
            return None
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
        if not self.options.fit.classifies:
            return {**record, "score": judged("R2", y, scores, weights)}
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
        solved: dict[Unit, Solved],
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
            return summed(*given, k)

        items = [(pair, k) for pair in batch for k in range(self.data.n_chunks)]
        found: dict[Pair, FloatArray] = {}
        for (pair, _), part in zip(items, self.threads.each(chunk, items), strict=True):
            found[pair] = found[pair] + part if pair in found else part
        held = [(self.y[fold.held], self.weights[fold.held]) for fold in self.folds]
        return {
            pair: np.stack([score(sums[:, f], *held[f]) for f in folds], axis=1)
            for pair, sums in found.items()
        }

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
            matrix = 4.0 if self.quick and self.options.fit.problem != "nu-svc" else 8.0
            return matrix * rows * rows + 4.0 * rows * (landmarks or 0)
        return 4.0 * rows * landmarks + 24.0 * landmarks**2

    def _batches(self, pairs: list[Pair], rows: int) -> Iterator[list[Pair]]:
        """Groups that fit in memory side by side, at least one."""
        batch: list[Pair] = []
        for pair in pairs:
            if batch and sum(self._bytes(one, rows) for one in [*batch, pair]) > 0.5 * self.room:
                yield batch
                batch = []
            batch.append(pair)
        if batch:
            yield batch

    def _check_memory(self) -> None:
        """Refuse what is to be in memory and does not fit: a part of the rows, or all of them."""
        most, safe = self.candidates[-1].landmarks, self.options.elimination == "safe"
        if most is None:
            return
        if safe and self.cluster:
            raise InputError(
                "safe elimination looks at the features of all rows in this process; take halving, "
                "or leave out the workers"
            )
        rows = self.data.n_rows if safe else min(self.data.n_rows, FEWEST_ROWS)
        if 4.0 * rows * most > self.room:
            raise InputError(
                f"the features of {'all' if safe else rows} rows take {in_units(4.0 * rows * most)}"
                f" and of the memory allowed, {in_units(self.allowed)}, "
                f"{in_units(max(self.room, 0))} are left for them; use fewer landmarks, "
                + ("halving, " if safe else "")
                + "or allow more memory"
            )

    def _watch(self) -> None:
        if self.until is not None and time.monotonic() > self.until:
            raise _OutOfTime

    def _place(self, r: int, unit: Unit) -> tuple[str, Path]:
        (landmarks, gamma), f = unit
        assert self.options.fit.work is not None
        name = f"{landmarks or 'exact'}-{gamma!r}-fold-{f}"
        return f"{self._of}/{r}/{name}", self.options.fit.work / f"rung-{r}" / f"{name}.kept"

    def _keep(
        self,
        r: int,
        unit: Unit,
        values: list[float],
        records: list[dict[str, Any]],
        arrays: Arrays,
    ) -> None:
        if self.options.fit.work is None:
            return
        of, path = self._place(r, unit)
        path.parent.mkdir(exist_ok=True)
        write_sealed(path, of, {"values": values, "points": records}, arrays, durable=False)

    def _kept(self, r: int, unit: Unit, values: list[float]) -> Solved | None:
        if self.options.fit.work is None or not self.options.fit.resume:
            return None
        of, path = self._place(r, unit)
        found = read_sealed(path, of)
        if found is None or found[0]["values"] != values:
            return None
        return found[0]["points"], found[1]


def _factor_bytes(group: Group) -> float:
    factor = group.__dict__.get("factor")
    return 0.0 if factor is None else factor.nbytes
