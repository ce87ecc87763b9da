"""The monitor of a solve: history, screening, budgets, checkpoints and closing passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen.errors import Paused
from bigscreen.kernels.base import U32
from bigscreen.problems.point import Certificate, Point, relative_gap, sufficient_gap
from bigscreen.screening.dynamic import GapBall, Rule
from bigscreen.solvers.protocol import Save, Verdict

Report = Callable[[dict[str, Any]], None]
"""A function that receives the events of a fit: one for each pass and each phase."""


@dataclass(frozen=True)
class MonitorTuning:
    """When a monitor writes checkpoints, makes closing passes and gives up.

    Parameters
    ----------
    checkpoint_seconds : float
        Write a checkpoint if the last one is older than this.
    closing_pass_factor : float
        If the solver has left out rows and estimates a gap of at most this multiple of the target,
        run the closing pass (the final pass over all rows), which computes the gap exactly.
    rounding_gap_ratio : float
        If the gap of the closing pass (over all rows) is more than this multiple of the gap that
        the solver reported, assume that rounding is the cause and report it to the solver, which
        then uses higher precision.
    min_gap : float
        Never require a relative gap below this, as float64 sums cannot tell it from 0.
    late_checks : int
        After more checks of the gap than this with P still at least 0, take w* of a nu-SVC as 0 if
        the rounding of float32 entries could account for its size.
    """

    checkpoint_seconds: float = 30.0
    closing_pass_factor: float = 10.0
    rounding_gap_ratio: float = 2.0
    min_gap: float = 1e-14
    late_checks: int = 50


MONITOR = MonitorTuning()

COUNTER_FIELDS = ("steps", "kernel_entries", "false_removals", "full_passes", "partial_passes")
"""Fields of a pass in the history that only some solvers count: totals so far."""

READ_FIELDS = ("rows_read", "bytes_read")
"""Fields of a pass in the history: rows and bytes read since the pass before, if reported."""

ESTIMATE_FIELD = "estimated_from"
"""Field of a pass in the history whose P is an estimate: the number of rows it comes from."""


@dataclass(frozen=True)
class Limits:
    """When a solve stops.

    Parameters
    ----------
    tol : float
        Relative duality gap, proved over all rows; for a kernel that is not positive semidefinite
        the violation of the KKT conditions, computed over all rows.
    max_iter : int
        Largest number of passes of the solver.
    deadline : float or None
        Value of ``time.monotonic()`` after which the best point so far is certified and returned.
    restarts : int
        How often wrongly removed rows may come back before an unsafe screening rule is replaced by
        the gap ball.
    """

    tol: float = 1e-3
    max_iter: int = 1000
    deadline: float | None = None
    restarts: int = 3


@dataclass
class Removals:
    """The rows that a screening rule has removed during a solve.

    ``fixed``: how many rows were fixed at either end, by which rule and in which pass.
    ``restarts``: how often all rows came back; ``since_restart``: how many were removed since the
    last time. ``restarted_counts``: for each time, how many rows came back and how many of them had
    been removed wrongly. ``restarting``: whether the solver is bringing them back now.
    """

    fixed: list[dict[str, Any]] = field(default_factory=list)
    since_restart: int = 0
    restarts: int = 0
    restarted_counts: list[list[int]] = field(default_factory=list)
    restarting: bool = False


@dataclass
class Closings:
    """The closing passes of a solve: the best certificate, its point, their number and seconds."""

    certificate: Certificate | None = None
    point: Point | None = None
    passes: int = 0
    seconds: float = 0.0


@dataclass
class Monitor:
    """The check that a solver calls at its pass boundaries.

    ``certify``: makes the closing pass, which computes a point's certificate over all rows.
    ``limits``: when to stop; ``rule``: removes rows during the solve, None for none; ``report``:
    receives events; ``folder``: where checkpoints are written, None for none.

    ``history`` holds P, D, gap, rows visited and alive of every pass, and the counters of the
    solver (``COUNTER_FIELDS``); D is the best so far. ``of``: the problem that checkpoints belong
    to. ``resumed``: whether the next call repeats the pass at which a checkpoint was written.

    ``min_half_norm_sq``: if ``w = w(alpha)`` and ``1/2 ||w||^2`` is at most this, w* and P* cannot
    be distinguished from 0, and a relative gap has no meaning.

    ``ended``: why the solve ended. "proved": the gap is proved. "nothing": w* cannot be
    distinguished from 0. "rounded": the gap is small enough, but its rounding bound is not.
    "stalled": the solver could make no progress. "slow": the solver reports that more passes would
    gain little. "passes", "time": that budget was used up.

    ``definite``: whether gaps bound anything. If not, the KKT violation takes their place, and no
    screening rule may use a ball.

    ``removals``: rows that ``rule`` has removed; ``closings``: closing passes so far. ``best``: the
    point of least gap so far. ``target``: the gap at which the next closing pass is made; it falls
    below ``limits.tol`` when a closing pass finds a wider gap than the solver. ``doubted``: whether
    the last closing pass did. ``interrupted``: whether Ctrl-C was pressed. ``started``, ``saved``:
    values of ``time.monotonic()`` at the start and at the last checkpoint.
    """

    certify: Callable[[Point], Certificate]
    limits: Limits
    rule: Rule | None
    report: Report
    folder: Path | None = None
    of: str = ""
    min_half_norm_sq: float = 0.0
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

    tuning: MonitorTuning = field(default_factory=lambda: MONITOR)

    def __post_init__(self) -> None:
        self.target = self.limits.tol

    def __call__(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        if point.held:
            return self._check_held(point, stats, save)
        resumed = self.resumed
        self._record(point, stats)
        self._report_removals(stats)
        if self.best is None or self._remaining(point) < self._remaining(self.best):
            self.best = point
        # The first call after a resume repeats the pass at which the checkpoint was written.
        doubted = self.doubted if resumed else False
        asked = point.relative_gap if self.definite else point.violation
        if asked <= self.target:
            certificate = self._run_closing_pass(point)
            if self._is_enough(certificate):
                self._set_ended(certificate)
                return None
            # The solver's sums left out fixed rows or were rounded: require a smaller gap.
            # (But none that float64 cannot tell from 0: no solver would reach it.)
            self.target = max(0.5 * min(self.target, asked), min(self.target, self.tuning.min_gap))
            if self._has_unsafe_removals():
                return self._restore_rows()
            ratio = self.tuning.rounding_gap_ratio
            doubted = self._remaining(certificate) > ratio * self._remaining(point)
        if point.paired and self._has_zero_optimum(point):
            if self._has_zero_optimum(self._run_closing_pass(point)):
                self.ended = "nothing"
                if self.best is not point:  # another solver has restarted from a worse point
                    self._run_closing_pass(self.best)
                return None
            # The solver's sums are too inexact for this test: drop it.
            self.min_half_norm_sq = 0.0
        exhausted = self._has_used_budget()
        if exhausted or (stats["stalled"] and not self._has_unsafe_removals()):
            ended = "slow" if stats["stalled"] == "slow" else "stalled"
            if exhausted:
                ended = self._used_budget
            certificate = self._run_closing_pass(self.best)
            self.ended = "nothing" if self._has_zero_optimum(certificate) else ended
            return None
        if stats["stalled"]:
            return self._restore_rows()
        self.doubted = doubted
        self._checkpoint_if_due(point, save)
        return Verdict(region=self._region(point), doubted=doubted)

    def _check_held(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        """Check a point at which the solver has left rows out, so that its P is not known.

        If the gap seems small enough, or a budget is used up, the final pass over all rows computes
        P. Returns None if that ends the solve. Otherwise nothing is recorded, and an
        empty `Verdict` has the solver continue and call again once it has computed P.
        """
        self.resumed = False
        exhausted, certificate = self._has_used_budget(), None
        if exhausted or point.relative_gap <= self.tuning.closing_pass_factor * self.target:
            certificate = self._run_closing_pass(point)
        enough = certificate is not None and self._is_enough(certificate)
        if certificate is None or not (enough or exhausted):
            self._checkpoint_if_due(point, save)
            return Verdict()
        self._record(replace(point, primal=certificate.primal, dual=certificate.dual), stats)
        if enough:
            self._set_ended(certificate)
        else:
            self.ended = self._used_budget
            if self.best is not None and self._remaining(self.best) < self._remaining(certificate):
                self._run_closing_pass(self.best)
        return None

    @property
    def _used_budget(self) -> str:
        """The budget that was used up: "passes" or "time"."""
        return "passes" if len(self.history) >= self.limits.max_iter else "time"

    def _set_ended(self, certificate: Certificate) -> None:
        """Set ``ended`` for a solve that ends with this certificate: proved, rounded or nothing."""
        self.ended = "proved" if certificate.proves(self.limits.tol) else "rounded"
        if self._has_zero_optimum(certificate):
            self.ended = "nothing"

    def restored(self, meta: dict[str, Any]) -> None:
        """Go on with the history, the record and the clock of a checkpoint.

        ``meta``: what `_write_checkpoint` wrote.
        """
        self.history, self.removals.fixed = meta["history"], meta["fixed"]
        self.target, self.removals.restarts = meta["target"], meta["restarts"]
        self.removals.since_restart, self.doubted = meta["removed"], meta["doubted"]
        self.removals.restarting = meta.get("asked_back", False)
        for removed, false in meta["lessons"]:
            self._record_restart(removed, false)
        self.best = None if meta["best"] is None else Point.from_dict(meta["best"])
        if meta["certified"] is not None:
            self.closings.certificate = Certificate.from_dict(meta["certificate"])
            self.closings.point = Point.from_dict(meta["certified"])
        self.closings.passes = meta.get("closings", 0)
        self.started = time.monotonic() - meta["seconds"]
        self.resumed = meta.get("repeats", True)

    def _record(self, point: Point, stats: dict[str, Any]) -> None:
        """Append a pass to ``history``, record the rows that it fixed, and report its event.

        Keys of ``stats`` that every solver has: ``rows_alive``, ``rows_visited``, ``fixed_hi`` and
        ``fixed_lo`` (rows that screening has newly fixed at their upper bound, and elsewhere).
        """
        if self.resumed:
            # The first call after a resume repeats the pass at which the checkpoint was written.
            self.resumed = False
            return
        # D of any feasible alpha bounds the optimum, so the best D so far is kept. (A D above P
        # came from entries so coarse that it is mostly rounding.)
        known = [self.history[-1]["dual"]] if self.definite and self.history else []
        dual = max([point.dual, *(before for before in known if before <= point.primal)])
        event: dict[str, Any] = {
            "event": "pass",
            "pass": len(self.history) + 1,
            "primal": point.primal,
            "dual": dual,
            **self._gap_fields(point, dual),
            "rows_alive": stats["rows_alive"],
            "rows_visited": stats["rows_visited"],
            "seconds": time.monotonic() - self.started,
            **{
                name: stats[name]
                for name in (*COUNTER_FIELDS, *READ_FIELDS, ESTIMATE_FIELD)
                if name in stats
            },
        }
        self.history.append(event)
        self.removals.since_restart += stats["fixed_hi"] + stats["fixed_lo"]
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

    def _gap_fields(self, point: Point, dual: float) -> dict[str, Any]:
        """Return an event's gap fields: relative gap of P and ``dual``, or the KKT violation.

        ``dual``: the best D so far. The violation is for kernels whose gaps bound nothing.
        """
        if self.definite:
            return {"relative_gap": relative_gap(point.primal - dual, point.primal)}
        return {"primal": None, "relative_gap": None, "violation": point.violation}

    def _remaining(self, found: Point | Certificate) -> float:
        """The gap, or the KKT violation if gaps bound nothing; a nan counts as infinite."""
        left = found.gap if self.definite else found.violation
        return float("inf") if left is None or np.isnan(left) else left

    def _max_remaining(self, certificate: Certificate) -> float:
        """The gap or KKT violation plus its rounding bound."""
        return self._remaining(certificate) + certificate.rounding_bound

    def _is_enough(self, certificate: Certificate) -> bool:
        """Whether a certificate shows the requested gap, or as much of it as rounding allows."""
        if not (self.definite and certificate.proved):
            return certificate.proves(self.limits.tol)
        wanted = sufficient_gap(certificate.rounding_bound, certificate.primal, self.limits.tol)
        return bool(certificate.gap <= wanted)

    def _report_removals(self, stats: dict[str, Any]) -> None:
        """After a restart, report to the rule how many of the rows that came back were wrongly out.

        ``stats["false_removals"]``: how many the solver has found so far, if it counts them.
        """
        rows = self.removals
        if rows.restarting:
            # (If the solver does not count them, all count as wrong: some must have been.)
            total = stats.get("false_removals")
            known = sum(wrong for _, wrong in rows.restarted_counts)
            false = rows.since_restart if total is None else total - known
            self._record_restart(rows.since_restart, false)
            rows.since_restart, rows.restarting = 0, False

    def _record_restart(self, removed: int, false: int) -> None:
        """Tell the rule that ``removed`` rows came back, of which ``false`` were wrongly out.

        The rule's answer, a changed rule, replaces it. After too many restarts a rule that is not
        safe is replaced by the gap ball.
        """
        self.removals.restarted_counts.append([removed, false])
        if self.rule is not None:
            self.rule = self.rule.after_restart(removed, false)
            if not self.rule.safe and len(self.removals.restarted_counts) >= self.limits.restarts:
                self.rule = GapBall() if self.definite else None

    def _has_zero_optimum(self, found: Point | Certificate) -> bool:
        """Whether w* cannot be distinguished from 0: ``1/2 ||w*||^2 <= -D`` is below the threshold.

        If P stays far above ``P* = -1/2 ||w*||^2``, pair steps would go on for hours: after many
        checks the threshold is raised to the rounding of float32 entries.
        """
        late = len(self.history) > self.tuning.late_checks and found.primal >= 0
        threshold = self.min_half_norm_sq / U32 if late else self.min_half_norm_sq
        return threshold > 0 and -found.dual <= threshold

    def _region(self, point: Point) -> Any:
        """Return the ball around w with which the rule removes rows; None without a rule."""
        return None if self.rule is None else self.rule.region(point, point.rounding)

    def _has_unsafe_removals(self) -> bool:
        """Whether rows are fixed at a bound by a rule that is not safe."""
        return self.removals.since_restart > 0 and self.rule is not None and not self.rule.safe

    def _restore_rows(self) -> Verdict:
        """Bring all rows back, after a closing pass found that an unsafe rule removed too many."""
        self.removals.restarts += 1
        self.best, self.target = None, self.limits.tol
        self.removals.restarting = True
        return Verdict(restart=True)

    def _run_closing_pass(self, point: Point) -> Certificate:
        """Certify a point over all rows, and keep its certificate if it is the best so far."""
        self.report({"event": "phase", "phase": "certify"})
        began = time.monotonic()
        certificate = self.certify(point)
        self.closings.passes += 1
        self.closings.seconds += time.monotonic() - began
        before = self.closings.certificate
        if before is None or not self._max_remaining(before) <= self._max_remaining(certificate):
            self.closings.certificate, self.closings.point = certificate, point
        return certificate

    def expired(self) -> bool:
        """Whether the deadline has passed: warm-up work is then cut short."""
        return self.limits.deadline is not None and time.monotonic() > self.limits.deadline

    def pause(self, save: Save | None = None) -> None:
        """Raise `Paused` if Ctrl-C was pressed; before that, ``save`` writes a checkpoint."""
        if not self.interrupted:
            return
        if self.folder is not None and save is not None:
            self._write_checkpoint(None, save)
        raise Paused

    def _has_used_budget(self) -> bool:
        """Whether the deadline has passed or ``max_iter`` passes have been made."""
        # (After a Ctrl-C a checkpoint is written first.)
        late = self.expired() and not self.interrupted
        return late or len(self.history) >= self.limits.max_iter

    def _checkpoint_if_due(self, point: Point, save: Save) -> None:
        """Write a checkpoint if the last one is old or after Ctrl-C, which is then raised."""
        due = time.monotonic() - self.saved > self.tuning.checkpoint_seconds
        if self.folder is not None and (due or self.interrupted):
            self._write_checkpoint(point, save)
        if self.interrupted:
            raise KeyboardInterrupt

    def _write_checkpoint(self, point: Point | None, save: Save) -> None:
        """Write a checkpoint of the pass that reached this point; None: of a pass under way.

        ``save``: the solver's function, which adds the solver's state to what is written here.
        """
        assert self.folder is not None
        proof, proved = self.closings.certificate, self.closings.point
        meta = {
            "of": self.of,
            "history": self.history,
            "fixed": self.removals.fixed,
            "target": self.target,
            "restarts": self.removals.restarts,
            "removed": self.removals.since_restart,
            "asked_back": self.removals.restarting,
            "lessons": self.removals.restarted_counts,
            # (The checkpoint's own point is computed again by the repeated pass.)
            "best": None if self.best is None or self.best is point else self.best.to_dict(),
            "doubted": self.doubted,
            "repeats": point is not None,
            "closings": self.closings.passes,
            # The best certificate so far, even if its gap is too wide.
            "certificate": None if proof is None else proof.to_dict(),
            "certified": None if proved is None else proved.to_dict(),
            "seconds": time.monotonic() - self.started,
        }
        save(self.folder, meta)
        self.saved = time.monotonic()
