"""The fit of one problem: solver, screening rule, budgets, checkpoints and certificate.

A solver calls the ``Monitor`` with its point at every pass boundary. The monitor returns a region
to screen with, or None to stop; it never changes alpha.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.exact import close_exact
from bigscreen.certify.explicit import close_explicit
from bigscreen.certify.incremental import IncrementalCertifier
from bigscreen.certify.ledger import make_ledger
from bigscreen.device.kernel import place_design
from bigscreen.device.place import Place
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.files.checkpoint import check_owner
from bigscreen.fit.ladder import LadderCheck, Rung
from bigscreen.fit.monitor import COUNTER_FIELDS, Limits, Monitor, Report
from bigscreen.kernels.base import U32
from bigscreen.model.ledger import Ledger
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import Certificate, Point
from bigscreen.problems.recipes import Problem
from bigscreen.screening.dynamic import Rule, check_rule
from bigscreen.solvers.protocol import Run, Solver

OVERFLOW_MESSAGE = (
    "the objective is no finite number, as sums overflow float64: the data, C, the weights or the "
    "kernel's parameters are too large or too small; scale the data, or take values nearer to 1"
)

MAX_BOX = 1e100
"""Refuse a problem if the upper bound of a dual variable is above this or below its inverse:
products of two variables must stay within float64."""


def check_box(box: FloatArray, ids: Callable[[], NDArray[np.int64]]) -> None:
    """Raise InputError for bounds of dual variables outside the range of float64.

    ``box`` (rows,): each row's bound; ``ids``: returns the numbers of these rows, for the message.
    """
    if len(box) and 1 / MAX_BOX <= box.min() and box.max() <= MAX_BOX:
        return
    fine = (box == 0) | ((box >= 1 / MAX_BOX) & (box <= MAX_BOX))  # a nan is neither
    if not fine.all():
        k = int(np.argmin(fine))
        raise InputError(
            f"C (or 1 / nu) times the weight of row {ids()[k]} is {box[k]:.3g}: float64 carries "
            f"sums of such from {1 / MAX_BOX:g} to {MAX_BOX:g}; take values nearer to 1"
        )


@contextmanager
def explain_overflow() -> Iterator[None]:
    """Turn arithmetic errors inside the block into one sentence about float64 overflow."""
    try:
        yield
    except (ArithmeticError, np.linalg.LinAlgError) as error:
        raise InputError(OVERFLOW_MESSAGE) from error


@dataclass
class Fitted:
    """The result of ``fit``: the best certified point, its certificate and the solve's history.

    ``ended``: why the solve ended, see ``Monitor``. ``passes``: the number of passes over all rows
    (``full``), over a part of the rows (``partial``), and of closing passes (``closing``); pair
    steps make no passes and have only ``closing``. ``solver``: the solver that took over last, if
    any did. ``ledger``: what is proved of each row; None if nothing is.
    """

    point: Point
    certificate: Certificate
    ledger: Ledger | None
    ended: str
    history: list[dict[str, Any]]
    screening: dict[str, Any]
    seconds: dict[str, float]
    passes: dict[str, int]
    solver: str | None = None


def fit(  # noqa: PLR0913
    run: Run,
    solver: Solver,
    limits: Limits,
    *,
    rule: Rule | None = None,
    certify: str = "float32",
    source: Design | None = None,
    report: Report = lambda event: None,
    interrupt: GracefulInterrupt | None = None,
    incremental: IncrementalCertifier | None = None,
    then: Sequence[Rung] = (),
    place: Place | None = None,
) -> Fitted:
    """Solve one binary problem to a proved relative gap.

    Parameters
    ----------
    run : Run
        Rows, problem, where shards run, checkpoints and start.
    solver : Solver
    limits : Limits
    rule : Rule or None
        Screening during the solve.
    certify : {"float32", "float64"}
        Precision of the closing pass.
    source : Design or None
        The kernel design behind stored features, whose exact columns float64 certifies.
    report : callable
        Receives one event a pass.
    interrupt : GracefulInterrupt or None
        The handler of Ctrl-C for several fits at once, each in a thread; None: this fit has its
        own.
    incremental : IncrementalCertifier or None
        Computes certificates from a known dual point; if it returns None, a full closing pass is
        made.
    then : sequence of Rung
        The solvers that may take over before the requested gap is reached.
    place : Place or None
        The device on which closing passes compute kernel entries and sums; None: the processors.

    Returns
    -------
    Fitted
        The best certified point; its gap is above ``limits.tol`` if a budget ended first.
    """
    design, problem = run.design, run.problem
    if rule is not None:
        check_rule(rule.name, design.definite)
    if run.checkpoint is not None:
        check_owner(run.checkpoint, run.of)
    _check_boxes(run)

    closing = design if place is None else place_design(design, place)
    behind = source if place is None or source is None else place_design(source, place)

    def certify_point(point: Point) -> Certificate:
        """Return the certificate of a point, computed over all rows."""
        if design.exact:
            return close_exact(closing, problem, point, run.fleet, certify, keep=True)
        if incremental is not None:
            found = incremental.certificate(point)
            if found is not None:
                return found
        return close_explicit(closing, problem, point, run.fleet, certify, behind, keep=True)

    monitor = Monitor(
        certify=certify_point,
        limits=limits,
        rule=rule,
        report=report,
        folder=run.folder,
        of=run.of,
        min_half_norm_sq=min_half_norm_sq(design, problem),
        definite=design.definite,
    )
    report({"event": "phase", "phase": "solve"})
    with ExitStack() as heard, explain_overflow():
        (interrupt or heard.enter_context(GracefulInterrupt(run.folder))).register(monitor)
        climb = LadderCheck(monitor, run, then, report)
        turn: tuple[Solver, Run] | None = solver, run
        while turn is not None:
            one, own_run = turn
            point = one.solve(own_run, climb)
            turn = climb.next_solver(point)
    # The ledger needs arrays of all rows; the shards' own arrays are freed first.
    run.fleet.stop()
    proof, proved = monitor.closings.certificate, monitor.closings.point
    assert proof is not None and proved is not None
    if not np.isfinite([proof.gap_or_violation, proof.dual]).all():
        raise InputError(OVERFLOW_MESSAGE)
    if proof.proved and proof.evidence is None:
        proof = certify_point(proved)  # a certificate from a checkpoint has no evidence
    rows = None
    if proof.proved:
        rows = make_ledger(source or design, problem, proof.evidence)
    total = time.monotonic() - monitor.started
    screening = {
        "rule": "none" if rule is None else rule.name,
        "passes": monitor.removals.fixed,
        "fixed_at_hi": sum(entry["at_hi"] for entry in monitor.removals.fixed),
        "fixed_at_lo": sum(entry["at_lo"] for entry in monitor.removals.fixed),
        "taken_back": monitor.removals.restarts,
        **{
            name: monitor.history[-1][name]
            for name in COUNTER_FIELDS
            if name in monitor.history[-1] and not name.endswith("passes")
        },
    }
    return Fitted(
        point=proved,
        certificate=replace(proof, evidence=None),
        ledger=rows,
        ended=monitor.ended,
        history=monitor.history,
        screening=screening,
        seconds={
            "solve": total - monitor.closings.seconds,
            "certify": monitor.closings.seconds,
        },
        passes=_count_passes(monitor),
        solver=climb.rung.name,
    )


def _count_passes(monitor: Monitor) -> dict[str, int]:
    """Return the numbers of a solve's full, partial and closing passes, by these names.

    "full" and "partial" are left out if the solver does not count them.
    """
    made = monitor.history[-1]
    known = {k: made[f"{k}_passes"] for k in ("full", "partial") if f"{k}_passes" in made}
    return {**known, "closing": monitor.closings.passes}


def min_half_norm_sq(design: Design, problem: Problem) -> float:
    """Return the smallest ``1/2 ||w*||^2`` that float32 rows can distinguish from 0.

    It is 0 for problems that have no trouble with w* = 0: those with a coupling of total 0, or with
    a linear term p (then P has losses, as that of a nu-SVR).
    """
    data, kernel = design.data, design.kernel
    total = float(np.sum(problem.dual(data.y(0, 1), data.weights(0, 1)).total))
    if not total > 0:
        return 0.0
    largest = data.max_sqnorm
    if kernel is not None:
        largest = kernel.bound(largest, largest) if kernel.psd else np.inf
    if not np.isfinite(largest):
        return 0.0
    for s in range(data.n_shards):
        start, stop = data.shard(s)
        if np.any(problem.dual(data.y(start, stop), data.weights(start, stop)).lin):
            return 0.0
    return 0.5 * (U32 * total) ** 2 * (largest + float(problem.intercept == "constant"))


def _check_boxes(run: Run) -> None:
    """Raise InputError if the square of any row's box overflows or underflows float64."""
    reach, data = run.reach, run.design.data
    if 1 / MAX_BOX <= reach.least and reach.most <= MAX_BOX:
        return
    for s in range(data.n_shards):
        start, stop = data.shard(s)
        dual = run.problem.dual(data.y(start, stop), data.weights(start, stop))
        box = dual.reach if dual.curve is None else 0.5 * dual.reach
        check_box(box, partial(data.row_ids, start, stop))


class GracefulInterrupt:
    """Handles Ctrl-C: the first lets the pass end and writes a checkpoint, a second stops at once.

    A Ctrl-C during the last pass of a solve is raised when the solve has ended.

    Parameters
    ----------
    folder : Path or None
        The folder of checkpoints; None: there are none, and the first Ctrl-C stops at once.
    """

    def __init__(self, folder: Path | None) -> None:
        """Make the handler; it is used only with a folder, and in the main thread."""
        self.usable = folder is not None and (threading.current_thread() is threading.main_thread())
        self._monitors: list[Monitor] = []
        self._pressed = False

    def register(self, monitor: Monitor) -> None:
        """Register a monitor to be interrupted by Ctrl-C."""
        self._monitors.append(monitor)
        monitor.interrupted |= self._pressed

    def __enter__(self) -> Self:
        if self.usable:
            self.before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if not self.usable:
            return
        signal.signal(signal.SIGINT, self.before)
        if self._pressed and error is None and callable(self.before):
            self.before(signal.SIGINT, None)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT: interrupt all monitors; pass a second one to the old handler."""
        if not self._pressed:
            self._pressed = True
            for monitor in self._monitors:
                monitor.interrupted = True
        elif callable(self.before):
            self.before(number, frame)
