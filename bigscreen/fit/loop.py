"""The one loop: solver, screening rule, budgets, checkpoints, closing pass, certificate.

The hinge is ``Monitor``: a solver hands it its point at every pass boundary, and gets back
either a region to screen with or None, meaning stop. It never changes alpha.
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

from bigscreen.certify.beside import Beside
from bigscreen.certify.exact import close_exact
from bigscreen.certify.explicit import close
from bigscreen.certify.ledger import ledger
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.files.checkpoint import check_owner
from bigscreen.fit.ladder import Climb, Rung
from bigscreen.fit.monitor import COUNTED, Limits, Monitor, Report
from bigscreen.model.ledger import Ledger
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import Certificate, Point
from bigscreen.problems.recipes import Problem
from bigscreen.screening.dynamic import Rule, check_rule
from bigscreen.solvers.protocol import Run, Solver

BEYOND = (
    "the objective is no finite number, as sums overflow float64: the data, C, the weights or the "
    "kernel's parameters are too large or too small; scale the data, or take values nearer to 1"
)

LARGEST = 1e100
"""Bound of a variable beyond which, or below whose inverse, products of two leave float64."""


def check_box(box: FloatArray, ids: Callable[[], NDArray[np.int64]]) -> None:
    """Refuse bounds of variables, of rows with these numbers, that float64 cannot reckon with."""
    if len(box) and 1 / LARGEST <= box.min() and box.max() <= LARGEST:
        return
    fine = (box == 0) | ((box >= 1 / LARGEST) & (box <= LARGEST))  # a nan is neither
    if not fine.all():
        k = int(np.argmin(fine))
        raise InputError(
            f"C (or 1 / nu) times the weight of row {ids()[k]} is {box[k]:.3g}: float64 carries "
            f"sums of such from {1 / LARGEST:g} to {LARGEST:g}; take values nearer to 1"
        )


@contextmanager
def arithmetic() -> Iterator[None]:
    """Say in one sentence that numbers have left float64, wherever they do it."""
    try:
        yield
    except (ArithmeticError, np.linalg.LinAlgError) as error:
        raise InputError(BEYOND) from error


@dataclass
class Fitted:
    """What ``fit`` returns: the best certified point, its certificate, and how it came about.

    ``ended``: why the solve ended, see ``Monitor``. ``passes``: how many went over all rows
    (``full``), over some (``partial``) and certified (``closing``, over all); of a solver that does
    not go over rows (pairs) the last alone. ``solver``: the one that went on last, if any did.
    ``ledger``: what is proved of every row; None where nothing is.
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


def fit(
    run: Run,
    solver: Solver,
    limits: Limits,
    *,
    rule: Rule | None = None,
    certify: str = "float32",
    source: Design | None = None,
    report: Report = lambda event: None,
    interrupt: GracefulInterrupt | None = None,
    beside: Beside | None = None,
    then: Sequence[Rung] = (),
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
        Where Ctrl-C is heard for several fits at once, each in a thread; None: here.
    beside : Beside or None
        What certifies points beside a known one, as far as rounding lets it.
    then : sequence of Rung
        What may go on where the solver is left before the gap.

    Returns
    -------
    Fitted
        The best certified point; its gap is above ``limits.tol`` where a budget ended first.
    """
    design, problem = run.design, run.problem
    if rule is not None:
        check_rule(rule.name, design.definite)
    if run.checkpoint is not None:
        check_owner(run.checkpoint, run.of)
    _check_boxes(run)

    def certified(point: Point) -> Certificate:
        if design.exact:
            return close_exact(design, problem, point, run.fleet, certify, keep=True)
        if beside is not None:
            found = beside.certificate(point)
            if found is not None:
                return found
        return close(design, problem, point, run.fleet, certify, source, keep=True)

    monitor = Monitor(
        certify=certified,
        limits=limits,
        rule=rule,
        report=report,
        folder=run.folder,
        of=run.of,
        nothing=nothing(design, problem),
        definite=design.definite,
    )
    report({"event": "phase", "phase": "solve"})
    with ExitStack() as heard, arithmetic():
        (interrupt or heard.enter_context(GracefulInterrupt(run.folder))).tell(monitor)
        climb = Climb(monitor, run, then, report)
        turn: tuple[Solver, Run] | None = solver, run
        while turn is not None:
            one, own_run = turn
            point = one.solve(own_run, climb)
            turn = climb.next_turn(point)
    # The ledger has arrays of all rows: no need for those of the shards beside them.
    run.fleet.stop()
    proof, proved = monitor.closings.certificate, monitor.closings.point
    assert proof is not None and proved is not None
    if not np.isfinite([proof.reached, proof.dual]).all():
        raise InputError(BEYOND)
    if proof.proved and proof.evidence is None:
        proof = certified(proved)  # it came with a checkpoint
    rows = None
    if proof.proved:
        rows = ledger(source or design, problem, proof.evidence)
    total = time.monotonic() - monitor.started
    screening = {
        "rule": "none" if rule is None else rule.name,
        "passes": monitor.removals.fixed,
        "fixed_at_hi": sum(entry["at_hi"] for entry in monitor.removals.fixed),
        "fixed_at_lo": sum(entry["at_lo"] for entry in monitor.removals.fixed),
        "taken_back": monitor.removals.restarts,
        **{
            name: monitor.history[-1][name]
            for name in COUNTED
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
        passes=_passes(monitor),
        solver=climb.rung.name,
    )


def _passes(monitor: Monitor) -> dict[str, int]:
    made = monitor.history[-1]
    known = {k: made[f"{k}_passes"] for k in ("full", "partial") if f"{k}_passes" in made}
    return {**known, "closing": monitor.closings.passes}


def nothing(design: Design, problem: Problem) -> float:
    """The least ``1/2 ||w*||^2`` that rows of float32 can tell from 0.

    0 where w* = 0 needs no proof: without a total to meet alpha = 0 is one, or P is all loss, as a
    nu-SVR's is.
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
    return 0.5 * (2.0**-24 * total) ** 2 * (largest + float(problem.intercept == "constant"))


def _check_boxes(run: Run) -> None:
    """Refuse a row's box that is so large or so small that its square is no float64."""
    reach, data = run.reach, run.design.data
    if 1 / LARGEST <= reach.least and reach.most <= LARGEST:
        return
    for s in range(data.n_shards):
        start, stop = data.shard(s)
        dual = run.problem.dual(data.y(start, stop), data.weights(start, stop))
        box = dual.reach if dual.curve is None else 0.5 * dual.reach
        check_box(box, partial(data.row_ids, start, stop))


class GracefulInterrupt:
    """Ctrl-C lets the pass end and a checkpoint be written; a second one stops at once.

    One that comes in the last pass of a solve is raised at its end, when nobody looks any more.

    Parameters
    ----------
    folder : Path or None
        Where checkpoints go; None: there are none, and the first one stops at once.
    """

    def __init__(self, folder: Path | None) -> None:
        self.usable = folder is not None and (threading.current_thread() is threading.main_thread())
        self._monitors: list[Monitor] = []
        self._pressed = False

    def tell(self, monitor: Monitor) -> None:
        """Have a monitor know of it."""
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
        if not self._pressed:
            self._pressed = True
            for monitor in self._monitors:
                monitor.interrupted = True
        elif callable(self.before):
            self.before(number, frame)
