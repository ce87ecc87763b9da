"""One rung of a search: candidates solved on its rows, as many as fit in memory, and judged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError, TimeOver, in_units
from bigscreen.files.sealed import Arrays
from bigscreen.fit.monitor import Report
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.memory import allowed_memory
from bigscreen.fleet.protocol import Fleet
from bigscreen.path.folds import SCORINGS, judged
from bigscreen.path.walk import PathSettings, Step
from bigscreen.problems.point import settled
from bigscreen.train.path_options import Fold
from bigscreen.train.path_stage import LEAST_FLOAT32, room_for
from bigscreen.train.problems import Binary, published
from bigscreen.tune.group import Ground, Group, Part, rough, walked
from bigscreen.tune.kept import KeptParts, Pair, Solved, Unit
from bigscreen.tune.options import Candidate, TuneOptions
from bigscreen.tune.outcomes import Outcome, worst_of
from bigscreen.tune.schedule import FEWEST_ROWS, Rung
from bigscreen.tune.streamed import streamed

FACTOR_SHARE = 0.1
"""Part of the memory that factors of landmarks may take from rung to rung."""


class OutOfTime(Exception):
    """The search's part of the time budget is spent."""


class RungSolver:
    """Solves and judges the candidates of one rung after the other.

    Parameters
    ----------
    data : Rows
    options : TuneOptions
    fleet : Fleet
    report : callable
    folds : list of Fold
    binaries : list of Binary
        The machines of all rows, at any value.
    until : float or None
        Value of ``time.monotonic()`` at which `OutOfTime` ends it.

    Raises
    ------
    InputError
        If features cannot fit into the memory allowed, with the arithmetic.
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
    ) -> None:
        self.data, self.options, self.fleet, self.report = data, options, fleet, report
        self.folds, self.binaries, self.until = folds, binaries, until
        self.cluster = hasattr(fleet, "address")
        # Rows in memory are this process's.
        self.threads: Fleet = Inline() if self.cluster else fleet
        n = data.n_rows
        self.y: NDArray[Any] = data.y(0, n)
        self.weights = np.asarray(data.weights(0, n), dtype=np.float64)
        self.allowed = allowed_memory(options.fit.memory)
        self.room = room_for(data, options.fit, fleet, self.threads.workers)
        self._check_memory()
        self.kept = KeptParts(options, data)
        self.machines: dict[Unit, Arrays] = {}
        """What the last rung that a group got to made of every fold."""
        self.groups: dict[Pair, Group] = {}
        self.staying = self.quick = False
        self.done = 0.0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Threads, and the work folder, if there is one, held against other processes."""
        with ExitStack() as stack:
            if self.cluster:
                stack.callback(self.threads.close)
            stack.enter_context(self.kept.held(self.fleet))
            yield

    def solved(
        self, r: int, rung: Rung, values: dict[Pair, list[float]], tol: float
    ) -> Iterator[dict[Candidate, Outcome]]:
        """Outcomes of the groups' values on the rows of a rung, of some groups after the other."""
        rows = self.data.n_rows if rung.rows is None else len(rung.rows)
        self.groups = {pair: group for pair, group in self.groups.items() if pair in values}
        self.done = 0.0
        parts = [self._fold_part(f, rung) for f in range(len(self.folds))]
        self.quick = tol >= LEAST_FLOAT32
        streamed = [pair for pair in values if self._streams(pair, rung)]
        batches = list(self._batches([pair for pair in values if pair not in streamed], rows))
        # Where all groups fit side by side, they stay for the rungs after this.
        self.staying = rung.rows is None and len(batches) == 1 and not streamed
        batches += [[pair] for pair in streamed]
        for batch in batches:
            outcomes, machines = self._solved(r, rung, batch, values, parts, tol)
            self.machines |= machines
            yield outcomes

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
            return self._outcomes(r, batch, values, len(parts[0].y), made)
        for pair in batch:
            if pair not in self.groups:
                fit = self.options.fit_of(*pair, float(np.asarray(self.options.values)[-1]))
                self.groups[pair] = Group(self.data, fit, self.fleet)
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
        return self._outcomes(r, batch, values, len(parts[0].y), solved)

    def _outcomes(
        self,
        r: int,
        batch: list[Pair],
        values: dict[Pair, list[float]],
        rows: int,
        solved: dict[Unit, Solved],
    ) -> tuple[dict[Candidate, Outcome], dict[Unit, Arrays]]:
        """What is known of candidates whose folds are solved and judged, and their machines."""
        outcomes = {}
        for pair in batch:
            for k, value in enumerate(values[pair]):
                records = [solved[pair, f][0][k] for f in range(len(self.folds))]
                gaps = [record["relative_gap"] for record in records]
                gap = None if None in gaps else max(gaps)
                scores = [record["score"] for record in records]
                outcomes[Candidate(*pair, value)] = Outcome(scores, r, rows, gap)
        return outcomes, {unit: arrays for unit, (_, arrays) in solved.items()}

    def _streams(self, pair: Pair, rung: Rung) -> bool:
        """Whether a group's features of all rows are none of this process's memory."""
        landmarks, n = pair[0], self.data.n_rows
        if rung.rows is not None or landmarks is None:
            return False
        return self.cluster or 4.0 * n * landmarks > self.room

    def _streamed(self, r: int, pair: Pair, values: list[float], tol: float) -> dict[Unit, Solved]:
        """Every fold's points, all over the same passes: from a run before this, or solved."""
        units = [(pair, f) for f in range(len(self.folds))]
        kept = [self.kept.read(r, unit, values) for unit in units]
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
                raise OutOfTime from error
            if late:
                raise OutOfTime
            for unit, one in zip(units, found, strict=True):
                self.kept.write(r, unit, values, *one)
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
        kept = self.kept.read(r, unit, values)
        if kept is not None:
            return kept
        self._watch()
        settings = PathSettings(tol, (), True, True, False, self.until)
        before = self.machines.get(unit)
        steps, arrays = walked(ground, self.binaries, part, values, settings, before, self.data)
        if settings.late and not all(settled(s.record, tol) for point in steps for s in point):
            raise OutOfTime
        if ground.quick and rough(ground, steps, tol):
            return None
        records = [self._point(point, part) for point in steps]
        self.kept.write(r, unit, values, records, arrays)
        return records, arrays

    def _point(self, steps: list[Step], part: Part) -> dict[str, Any]:
        """The gap of a fold's point, and its score on those rows of the rung that are held out."""
        gaps = [step.record["relative_gap"] for step in steps]
        # Several machines are compared in the scale that the model has them in.
        scale = [published(step.problem, step.multiplier, self.data) for step in steps]
        scores = [a * s.decision[part.held] for a, s in zip(scale, steps, strict=True)]
        given = part.y[part.held], np.stack(scores, axis=1), part.held_weights
        score = judged(SCORINGS[self.options.fit.problem], *given)
        return {"relative_gap": None if None in gaps else max(gaps), "score": score}

    def _fold_part(self, f: int, rung: Rung) -> Part:
        """The rows of a rung as a fold fits them: each weighs what it does among all rows.

        Many of the best C stay the best as rows are added; with the weight of all rows on a part of
        them smaller ones do (on ijcnn1 and a9a).
        """
        fold = self.folds[f]
        if rung.rows is None:
            return Part(self.y, fold.weights, fold.held, self.weights[fold.held])
        held = np.flatnonzero(np.isin(rung.rows, fold.held))
        weights = self.weights[rung.rows[held]]
        return Part(self.y[rung.rows], fold.weights[rung.rows], held, weights)

    # -- memory and time ---------------------------------------------------------------------------
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
        most = self.options.candidates[-1].landmarks
        if most is None:
            return
        rows = min(self.data.n_rows, FEWEST_ROWS)
        if 4.0 * rows * most > self.room:
            raise InputError(
                f"the features of {rows} rows take {in_units(4.0 * rows * most)} and of the memory "
                f"allowed, {in_units(self.allowed)}, {in_units(max(self.room, 0))} are left for "
                "them; use fewer landmarks, or allow more memory"
            )

    def _watch(self) -> None:
        if self.until is not None and time.monotonic() > self.until:
            raise OutOfTime


def _factor_bytes(group: Group) -> float:
    factor = group.__dict__.get("factor")
    return 0.0 if factor is None else factor.matrix.nbytes
