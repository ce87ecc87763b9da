"""The stage of rows whose kernel matrix does not fit in memory: blocks, and columns that are kept.

Shards hold rows, scores and kernel columns over all points and folds. Where the box scales the
scores scale with it, and of the rows whose alpha differs beyond that most have their columns still:
a point costs what has changed since the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.exact import ScoredRows, score_rows
from bigscreen.certify.scores import ProvedScores, score_bands
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fit.loop import min_half_norm_sq
from bigscreen.fit.monitor import Limits, Monitor
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray
from bigscreen.path.gram import near_last
from bigscreen.path.stage import PathPoint, PointTask
from bigscreen.problems.dual import FREE, Dual
from bigscreen.problems.point import Certificate, Point
from bigscreen.screening.dynamic import GapBall, Rule
from bigscreen.screening.regions import Ball, Scores
from bigscreen.solvers.block.messages import FixedDual
from bigscreen.solvers.block.sequence import PathSolve
from bigscreen.solvers.block.solver import Block

MOST_ROUNDS = 10_000
"""Blocks after which a point is left as it is."""


class KernelStage:
    """Rows of an exact kernel, and the block solver for every problem.

    Parameters
    ----------
    design : Design
        An exact one.
    fleet : Fleet
        Where shards live: threads here, or a cluster. Nothing else may run on it meanwhile.
    constant : bool
        Whether a 1 is appended to every phi.
    options : Block
        Size of blocks, and bytes of kernel columns kept.

    Raises
    ------
    InputError
        If the design has columns: they have better stages.
    """

    def __init__(
        self, design: Design, fleet: Fleet, constant: bool = False, options: Block | None = None
    ) -> None:
        if not design.exact:
            raise InputError("a stage of kernel columns needs an exact kernel")
        self.design, self.fleet, self.constant = design, fleet, constant
        self._solve = PathSolve(options or Block(), design, constant, fleet)
        self._near: ProvedScores | None = None

    def afresh(self) -> KernelStage:
        """Forget the points that were solved, but for their kernel columns; returns the stage."""
        if self._solve.fine:
            self._solve.begin(fine=False)
        else:
            zero = np.zeros(self.design.data.n_rows)
            self._solve.recall(zero, zero)
        self._near = None
        return self

    @property
    def norms(self) -> FloatArray:
        """Upper bounds of ``||phi_i||`` (n,), the constant's 1 included where there is one."""
        data, kernel = self.design.data, self.design.kernel
        assert kernel is not None
        sizes = data.sqnorms(0, data.n_rows)
        if kernel.psd:
            parts = (data.shard(s) for s in range(data.n_shards))
            sides = (Operand(data.X(*part), np.arange(*part)) for part in parts)
            squares = np.concatenate([kernel.diag(side) for side in sides])
        else:
            squares = np.array([kernel.bound(size, size) for size in sizes])
        norms: FloatArray = np.sqrt(np.maximum(squares, 0.0) + self.constant) * (1 + 1e-12)
        return norms

    def solve(self, task: PointTask) -> PathPoint:
        """Solve to a relative gap, proved over all rows; see ``stage.Stage``.

        Where rounding keeps it from that, the best point is returned.
        """
        solve = self._solve
        entries = solve.kernel_entries
        start = self._start(task)
        solve.retarget(task.dual, start, task.decided)
        # From the point before it is a few blocks of the rows that move: screening saves none.
        screens = task.dynamic and start is None and self.design.definite
        intercept = "constant" if self.constant else "none"
        judge = _Judge(self.design, FixedDual(intercept, task.dual), self.fleet, self._near)
        monitor = Monitor(
            certify=judge,
            limits=Limits(task.tol, MOST_ROUNDS, task.deadline),
            rule=ThrottledGapBall() if screens else None,
            report=lambda event: None,
            min_half_norm_sq=min_half_norm_sq(self.design, judge.problem),
            definite=self.design.definite,
        )
        solve.run(monitor)
        assert judge.best is not None
        found = judge.solved()
        self._near = judge.best.proved
        found.counts.update(
            rounds=len(monitor.history),
            checks=judge.calls,
            screened=sum(entry["at_hi"] + entry["at_lo"] for entry in monitor.removals.fixed),
            kernel_entries=solve.kernel_entries - entries,
        )
        return found

    def products(self, coef: FloatArray) -> Scores:
        """Scores of ``sum_j coef_j phi_j`` (see ``screening.regions.Products``)."""
        values = self._solve.products(coef)
        constant = float(coef.sum()) if self.constant else 0.0
        return Scores(values, score_bands(self.design, coef, values - constant))

    def machine(self, dual: Dual, solved: PathPoint) -> dict[str, Any]:
        """``support`` rows, int64 ascending, their ``coef``, float64, and ``constant``.

        ``constant`` is the part of the offset that is penalised.
        """
        support = np.flatnonzero(solved.alpha)
        coef = (dual.sign * solved.alpha)[support]
        constant = float(coef.sum()) if self.constant else 0.0
        return {"support": support, "coef": coef, "constant": constant}

    def memory(self) -> dict[str, NDArray[Any]]:
        """See ``stage.Stage``."""
        solve = self._solve
        near = {} if self._near is None else self._near._asdict()
        return {
            "coef": solve.coef,
            "scores": self._kept(),
            "fine": np.array(solve.fine),
            **{f"near_{name}": part for name, part in near.items()},
        }

    def recall(self, memory: dict[str, NDArray[Any]]) -> None:
        """See ``stage.Stage``."""
        if bool(memory["fine"]) and not self._solve.fine:
            self._solve.begin(fine=True)
        self._solve.recall(memory["coef"], memory["scores"])
        if "near_coef" in memory:
            self._near = ProvedScores(*(memory[f"near_{name}"] for name in ProvedScores._fields))

    def _start(self, task: PointTask) -> FloatArray | None:
        """The alpha given, or one near the last; None if it says nothing."""
        dual, alpha = task.dual, task.alpha
        free = np.all(task.decided == FREE)
        if free and np.array_equal(alpha, dual.feasible(np.zeros(len(dual)))):
            return None
        return near_last(dual, alpha, task.live, self._solve.coef, self._kept)

    def _kept(self) -> FloatArray:
        """Scores of the last point."""
        scores = self._solve.scores(self._solve.effort.moves)
        assert scores is not None
        return scores


@dataclass
class _Judge:
    """Certifies points over all rows, and keeps what the best was certified from.

    ``near``: what the one before was certified from, of this point of the path or the last.
    """

    design: Design
    problem: FixedDual
    fleet: Fleet
    near: ProvedScores | None
    calls: int = 0
    best: ScoredRows | None = None
    left: float = np.inf

    def __call__(self, point: Point) -> Certificate:
        rows = score_rows(self.design, self.problem, point, self.fleet, every=True, near=self.near)
        certificate = rows.certificate()
        self.near = rows.proved
        self.calls += 1
        left = certificate.gap if certificate.psd else certificate.violation
        assert left is not None
        if self.best is None or left < self.left:
            self.best, self.left = rows, left
        return certificate

    def solved(self) -> PathPoint:
        """The best point."""
        best = self.best
        assert best is not None
        scores = Scores(best.scores, best.bands)
        return PathPoint.proved(best.dual, best.alpha, scores, best.definite)


@dataclass
class ThrottledGapBall:
    """The gap ball, asked for whenever the gap has fallen to a part of what it was.

    A round that screens costs as much as one that moves rows.
    """

    part: float = 0.3
    last: float = np.inf
    name: str = "gap"
    safe: bool = True

    def region(self, point: Point, rounding: float) -> Ball | None:
        """Ball of radius ``sqrt(gap)``."""
        if not point.gap <= self.part * self.last:
            return None
        self.last = point.gap
        return GapBall().region(point, rounding)

    def after_restart(self, removed: int, false: int) -> Rule:
        """The rule as it is."""
        return self
