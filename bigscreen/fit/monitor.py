"""The check that solvers call: history, screening, budgets, checkpoints, closing passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen.errors import Paused
from bigscreen.kernels.base import U32
from bigscreen.problems.point import Certificate, Point, enough, relative
from bigscreen.screening.dynamic import GapBall, Rule
from bigscreen.solvers.protocol import Save, Verdict

Report = Callable[[dict[str, Any]], None]

CHECKPOINT_SECONDS = 30.0

LATE = 50
"""Checks after which a nu-SVC whose P is still not below 0 is taken to have no w."""

ROUNDING_GAP_RATIO = 2.0
"""A gap that the closing pass finds so many times as wide as the solver's is one of rounding."""

HOPED = 10.0
"""So many times as wide as the gap asked for may be that of a point which the closing pass is to
tell: it reads alpha of all rows anew, which can be a much better one."""

LEAST_GAP = 1e-14
"""A relative gap that float64 sums can just tell from 0."""

COUNTED = ("steps", "kernel_entries", "false_removals", "full_passes", "partial_passes")
"""What a pass of the history holds beside the rest where a solver counts it: totals so far."""

READ = ("rows_read", "bytes_read")
"""What a solver may say of every pass: rows that it has scored since the one before, and theirs."""

ESTIMATED = "estimated_from"
"""The same of a P that is an estimate: the number of rows that it was taken from."""


@dataclass(frozen=True)
class Limits:
    """When to stop.

    Parameters
    ----------
    tol : float
        Relative duality gap, proved over all rows; of a kernel that is not positive semidefinite
        violation of the KKT conditions, computed over all rows.
    max_iter : int
        Passes of the solver.
    deadline : float or None
        Value of ``time.monotonic()`` after which the best point so far is certified and returned.
    restarts : int
        Times that rows come back before an unsafe rule gives way to the gap ball.
    """

    tol: float = 1e-3
    max_iter: int = 1000
    deadline: float | None = None
    restarts: int = 3


@dataclass
class Removals:
    """What has become of the rows that a rule has removed.

    ``fixed`` records how many rows were fixed at either end, by which rule and in which pass;
    ``since`` counts those since all rows came back last, ``restarts`` how often they did;
    ``lessons`` how many rows came back each time, and how many of them had been removed wrongly.
    ``asked_back``: that they come back now.
    """

    fixed: list[dict[str, Any]] = field(default_factory=list)
    since: int = 0
    restarts: int = 0
    lessons: list[list[int]] = field(default_factory=list)
    asked_back: bool = False


@dataclass
class Closings:
    """The closing passes over all rows: the best certificate, of which point, and their cost."""

    certificate: Certificate | None = None
    point: Point | None = None
    passes: int = 0
    seconds: float = 0.0


@dataclass
class Monitor:
    """The check that a solver calls at its pass boundaries.

    ``history`` holds P, D, gap, rows visited and alive of every pass, and what else the solver
    counts (``COUNTED``); D is the best so far. ``of``: which problem checkpoints are of.
    ``resumed``: that the next call repeats the pass that a checkpoint was written after.

    ``nothing``: where ``w = w(alpha)`` and ``1/2 ||w||^2`` is no more, w* is 0 as far as anyone
    could tell, and so is P*: no relative gap has a meaning. ``ended``: "proved"; "nothing", for
    that; "rounded", if the gap is small enough, but what rounding can have put into it is not;
    "stalled", if the solver could do no more; "slow", if it says that more would gain little;
    "passes" or "time", if there were none left.

    ``definite``: whether gaps mean anything. Where they do not the KKT violation takes their place
    everywhere, and no rule may ask for a ball.
    """

    certify: Callable[[Point], Certificate]
    limits: Limits
    rule: Rule | None
    report: Report
    folder: Path | None = None
    of: str = ""
    nothing: float = 0.0
    definite: bool = True
    ended: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)
    removals: Removals = field(default_factory=Removals)
    closings: Closings = field(default_factory=Closings)
    best: Point | None = None
    target: float = 0.0
    interrupted: bool = False
    doubted: bool = False
    started: float = field(default_factory=time.monotonic)
    saved: float = field(default_factory=time.monotonic)
    resumed: bool = False

    def __post_init__(self) -> None:
        self.target = self.limits.tol

    def __call__(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        if point.held:
            return self._looked(point, stats, save)
        resumed = self.resumed
        self._record(point, stats)
        self._learn(stats)
        if self.best is None or self._left(point) < self._left(self.best):
            self.best = point
        # The first call after a checkpoint repeats the pass that it was written after.
        doubted = self.doubted if resumed else False
        asked = point.relative_gap if self.definite else point.violation
        if asked <= self.target:
            certificate = self._close(point)
            if self._enough(certificate):
                self._end(certificate)
                return None
            # The solver's sums left out fixed rows or were rounded: ask for more.
            # (What float64 can just tell from 0 is not asked for: no solver would come back.)
            self.target = max(0.5 * min(self.target, asked), min(self.target, LEAST_GAP))
            if self._reckless():
                return self._take_back()
            doubted = self._left(certificate) > ROUNDING_GAP_RATIO * self._left(point)
        if point.paired and self._nothing(point):
            if self._nothing(self._close(point)):
                self.ended = "nothing"
                if self.best is not point:  # another solver has begun anew, farther away
                    self._close(self.best)
                return None
            self.nothing = 0.0  # The solver's sums cannot tell: do not ask again.
        exhausted = self._exhausted()
        if exhausted or (stats["stalled"] and not self._reckless()):
            ended = "slow" if stats["stalled"] == "slow" else "stalled"
            if exhausted:
                ended = self._budget
            self.ended = "nothing" if self._nothing(self._close(self.best)) else ended
            return None
        if stats["stalled"]:
            return self._take_back()
        self.doubted = doubted
        self._checkpoint(point, save)
        return Verdict(region=self._region(point), doubted=doubted)

    def _looked(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        """The same of a point whose P only the closing pass tells.

        Where that is not enough nothing is said of it: the solver comes again with P.
        """
        self.resumed = False
        exhausted, certificate = self._exhausted(), None
        if exhausted or point.relative_gap <= HOPED * self.target:
            certificate = self._close(point)
        enough = certificate is not None and self._enough(certificate)
        if certificate is None or not (enough or exhausted):
            self._checkpoint(point, save)
            return Verdict()
        self._record(replace(point, primal=certificate.primal, dual=certificate.dual), stats)
        if enough:
            self._end(certificate)
        else:
            self.ended = self._budget
            if self.best is not None and self._left(self.best) < self._left(certificate):
                self._close(self.best)
        return None

    @property
    def _budget(self) -> str:
        """Which one has ended, where one has."""
        return "passes" if len(self.history) >= self.limits.max_iter else "time"

    def _end(self, certificate: Certificate) -> None:
        """Say why the solve ends with this certificate, which is enough."""
        self.ended = "proved" if certificate.proves(self.limits.tol) else "rounded"
        if self._nothing(certificate):
            self.ended = "nothing"

    def restored(self, meta: dict[str, Any]) -> None:
        """Go on with the history, the record and the clock of a checkpoint."""
        self.history, self.removals.fixed = meta["history"], meta["fixed"]
        self.target, self.removals.restarts = meta["target"], meta["restarts"]
        self.removals.since, self.doubted = meta["removed"], meta["doubted"]
        self.removals.asked_back = meta.get("asked_back", False)
        for removed, false in meta["lessons"]:
            self._lesson(removed, false)
        self.best = None if meta["best"] is None else Point.from_dict(meta["best"])
        if meta["certified"] is not None:
            self.closings.certificate = Certificate.from_dict(meta["certificate"])
            self.closings.point = Point.from_dict(meta["certified"])
        self.closings.passes = meta.get("closings", 0)
        self.started = time.monotonic() - meta["seconds"]
        self.resumed = meta.get("repeats", True)

    def _record(self, point: Point, stats: dict[str, Any]) -> None:
        if self.resumed:
            # The first call after a checkpoint repeats the pass that it was written after.
            self.resumed = False
            return
        # D of any feasible alpha bounds the optimum: the best one so far does. (Above P it was of
        # entries so coarse that rounding made it up.)
        known = [self.history[-1]["dual"]] if self.definite and self.history else []
        dual = max([point.dual, *(before for before in known if before <= point.primal)])
        event: dict[str, Any] = {
            "event": "pass",
            "pass": len(self.history) + 1,
            "primal": point.primal,
            "dual": dual,
            **self._distance(point, dual),
            "rows_alive": stats["rows_alive"],
            "rows_visited": stats["rows_visited"],
            "seconds": time.monotonic() - self.started,
            **{name: stats[name] for name in (*COUNTED, *READ, ESTIMATED) if name in stats},
        }
        self.history.append(event)
        self.removals.since += stats["fixed_hi"] + stats["fixed_lo"]
        if stats["fixed_hi"] or stats["fixed_lo"]:
            assert self.rule is not None
            self.removals.fixed.append(
                {
                    "pass": event["pass"],
                    "rule": self.rule.name,
                    "at_hi": stats["fixed_hi"],
                    "at_lo": stats["fixed_lo"],
                }
            )
        self.report(event)

    def _distance(self, point: Point, dual: float) -> dict[str, Any]:
        if self.definite:
            return {"relative_gap": relative(point.primal - dual, point.primal)}
        return {"primal": None, "relative_gap": None, "violation": point.violation}

    def _left(self, found: Point | Certificate) -> float:
        """How much is left to do; a nan is more than anything."""
        left = found.gap if self.definite else found.violation
        return float("inf") if left is None or np.isnan(left) else left

    def _widest(self, certificate: Certificate) -> float:
        """The most that may be left to do."""
        return self._left(certificate) + certificate.rounding_bound

    def _enough(self, certificate: Certificate) -> bool:
        """Whether a closing pass has found what is asked for."""
        if not (self.definite and certificate.proved):
            return certificate.proves(self.limits.tol)
        wanted = enough(certificate.rounding_bound, certificate.primal, self.limits.tol)
        return bool(certificate.gap <= wanted)

    def _learn(self, stats: dict[str, Any]) -> None:
        """Tell the rule what came of the rows that were taken back last."""
        rows = self.removals
        if rows.asked_back:
            # A solver that does not count: something was wrong, or they would not be back.
            total = stats.get("false_removals")
            false = rows.since if total is None else total - sum(f for _, f in rows.lessons)
            self._lesson(rows.since, false)
            rows.since, rows.asked_back = 0, False

    def _lesson(self, removed: int, false: int) -> None:
        self.removals.lessons.append([removed, false])
        if self.rule is not None:
            self.rule = self.rule.learned(removed, false)
            if not self.rule.safe and len(self.removals.lessons) >= self.limits.restarts:
                self.rule = GapBall() if self.definite else None

    def _nothing(self, found: Point | Certificate) -> bool:
        """Whether w* is 0, as D bounds ``1/2 ||w*||^2``.

        Where P stays above ``P* = -1/2 ||w*||^2`` by more than that, pairs would go on for hours:
        it ends once it is less than what a last digit of float32 entries would make of it.
        """
        late = len(self.history) > LATE and found.primal >= 0
        return self.nothing > 0 and -found.dual <= (self.nothing / U32 if late else self.nothing)

    def _region(self, point: Point) -> Any:
        return None if self.rule is None else self.rule.region(point, point.rounding)

    def _reckless(self) -> bool:
        """Whether rows are fixed that should perhaps not be."""
        return self.removals.since > 0 and self.rule is not None and not self.rule.safe

    def _take_back(self) -> Verdict:
        """The closing pass found that an unsafe rule went too far: all rows come back."""
        self.removals.restarts += 1
        self.best, self.target = None, self.limits.tol
        self.removals.asked_back = True
        return Verdict(restart=True)

    def _close(self, point: Point) -> Certificate:
        self.report({"event": "phase", "phase": "certify"})
        began = time.monotonic()
        certificate = self.certify(point)
        self.closings.passes += 1
        self.closings.seconds += time.monotonic() - began
        before = self.closings.certificate
        if before is None or not self._widest(before) <= self._widest(certificate):
            self.closings.certificate, self.closings.point = certificate, point
        return certificate

    def expired(self) -> bool:
        """Whether time is up: warm-up work is then cut short."""
        return self.limits.deadline is not None and time.monotonic() > self.limits.deadline

    def pause(self, save: Save | None = None) -> None:
        """See ``Check``."""
        if not self.interrupted:
            return
        if self.folder is not None and save is not None:
            self._keep(None, save)
        raise Paused

    def _exhausted(self) -> bool:
        # (After a Ctrl-C there is a checkpoint to come first.)
        late = self.expired() and not self.interrupted
        return late or len(self.history) >= self.limits.max_iter

    def _checkpoint(self, point: Point, save: Save) -> None:
        due = time.monotonic() - self.saved > CHECKPOINT_SECONDS
        if self.folder is not None and (due or self.interrupted):
            self._keep(point, save)
        if self.interrupted:
            raise KeyboardInterrupt

    def _keep(self, point: Point | None, save: Save) -> None:
        """Write a checkpoint of the pass that came to this point; None: of one under way."""
        assert self.folder is not None
        proof, proved = self.closings.certificate, self.closings.point
        meta = {
            "of": self.of,
            "history": self.history,
            "fixed": self.removals.fixed,
            "target": self.target,
            "restarts": self.removals.restarts,
            "removed": self.removals.since,
            "asked_back": self.removals.asked_back,
            "lessons": self.removals.lessons,
            # The point of the checkpoint itself comes again with the pass that is repeated.
            "best": None if self.best is None or self.best is point else self.best.to_dict(),
            "doubted": self.doubted,
            "repeats": point is not None,
            "closings": self.closings.passes,
            # What a closing pass that missed the gap has proved.
            "certificate": None if proof is None else proof.to_dict(),
            "certified": None if proved is None else proved.to_dict(),
            "seconds": time.monotonic() - self.started,
        }
        save(self.folder, meta)
        self.saved = time.monotonic()
