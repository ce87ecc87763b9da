"""The stage for rows whose kernel matrix does not fit in memory: block solver, cached columns.

Shards (fixed ranges of rows) keep rows, scores and kernel columns over all points and folds. If the
box of the dual variables grows by a factor from point to point, so do the scores, and most rows
whose alpha changes by more than this factor still have their columns in the cache: a point costs
only what has changed since the previous point.
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
from bigscreen.path.gram import start_near_last
from bigscreen.path.stage import PathPoint, PointTask
from bigscreen.problems.dual import FREE, Dual
from bigscreen.problems.point import Certificate, Point
from bigscreen.screening.dynamic import GapBall, Rule
from bigscreen.screening.regions import Ball, Scores
from bigscreen.solvers.block.messages import FixedDual
from bigscreen.solvers.block.sequence import PathSolve
from bigscreen.solvers.block.solver import Block


class KernelStage:
    """A path's solver for an exact kernel without its matrix: the block solver, cached columns.

    Parameters
    ----------
    design : Design
        A design with an exact kernel.
    fleet : Fleet
        Threads or a cluster, which hold the shards. Nothing else may run on it meanwhile.
    constant : bool
        Whether a 1 is appended to every phi.
    options : Block
        The size of blocks, and the bytes of the column cache.
    max_rounds : int
        A point is returned after this many blocks, whatever its gap.

    Raises
    ------
    InputError
        If the design has explicit columns: `ColumnsStage` or `GramStage` is faster for them.
    """

    def __init__(
        self,
        design: Design,
        fleet: Fleet,
        constant: bool = False,
        options: Block | None = None,
        max_rounds: int = 10_000,
    ) -> None:
        """Prepare the block solver on the fleet; ``_near`` has the last point's proved scores."""
        if not design.exact:
            raise InputError("a stage of kernel columns needs an exact kernel")
        self.design, self.fleet, self.constant = design, fleet, constant
        self.max_rounds = max_rounds
        self._solve = PathSolve(options or Block(), design, constant, fleet)
        self._near: ProvedScores | None = None

    def reset(self) -> KernelStage:
        """Forget all solved points but keep the cached kernel columns; return the stage itself."""
        if self._solve.fine:
            self._solve.begin(fine=False)
        else:
            zero = np.zeros(self.design.data.n_rows)
            self._solve.recall(zero, zero)
        self._near = None
        return self

    @property
    def norms(self) -> FloatArray:
        """Upper bounds of ``||phi_i||``, float64 (n,), including the 1 of the constant if any."""
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
        """Solve one point of a path to the relative gap ``task.tol``, proved over all rows.

        ``task``: its dual, a start, and the rows decided by screening rules (`PointTask`). If
        rounding keeps the gap above the target, return the best point.
        """
        solve = self._solve
        entries = solve.kernel_entries
        start = self._start(task)
        solve.retarget(task.dual, start, task.decided)
        # A warm start needs a few blocks of the rows that change: screening would save none.
        screens = task.dynamic and start is None and self.design.definite
        intercept = "constant" if self.constant else "none"
        judge = _Judge(self.design, FixedDual(intercept, task.dual), self.fleet, self._near)
        monitor = Monitor(
            certify=judge,
            limits=Limits(task.tol, self.max_rounds, task.deadline),
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
        """Compute the scores ``<w, phi_i>`` of all rows for ``w = sum_j coef_j phi_j``.

        ``coef``: (n,). The result has bounds on the scores' errors, for screening rules.
        """
        values = self._solve.products(coef)
        constant = float(coef.sum()) if self.constant else 0.0
        return Scores(values, score_bands(self.design, coef, values - constant))

    def machine(self, dual: Dual, solved: PathPoint) -> dict[str, Any]:
        """Return the ``support`` rows, int64 ascending, their ``coef``, float64, and ``constant``.

        ``constant`` is the penalised part of the offset.
        """
        support = np.flatnonzero(solved.alpha)
        coef = (dual.sign * solved.alpha)[support]
        constant = float(coef.sum()) if self.constant else 0.0
        return {"support": support, "coef": coef, "constant": constant}

    def memory(self) -> dict[str, NDArray[Any]]:
        """Return the last point's coefficients and scores, for `recall` (see ``stage.Stage``).

        ``fine``: whether the shards compute kernel entries in float64; ``near_...``: the proved
        scores of the last certified point.
        """
        solve = self._solve
        near = {} if self._near is None else self._near._asdict()
        return {
            "coef": solve.coef,
            "scores": self._last_scores(),
            "fine": np.array(solve.fine),
            **{f"near_{name}": part for name, part in near.items()},
        }

    def recall(self, memory: dict[str, NDArray[Any]]) -> None:
        """Restore the scores that `memory` returned, perhaps in another process."""
        if bool(memory["fine"]) and not self._solve.fine:
            self._solve.begin(fine=True)
        self._solve.recall(memory["coef"], memory["scores"])
        if "near_coef" in memory:
            self._near = ProvedScores(*(memory[f"near_{name}"] for name in ProvedScores._fields))

    def _start(self, task: PointTask) -> FloatArray | None:
        """Choose the alpha (n,) from which to solve the point ``task``; None to start from zero.

        It is the task's alpha, or one nearer to the last point (`start_near_last`).
        """
        dual, alpha = task.dual, task.alpha
        free = np.all(task.decided == FREE)
        if free and np.array_equal(alpha, dual.feasible(np.zeros(len(dual)))):
            return None
        return start_near_last(dual, alpha, task.live, self._solve.coef, self._last_scores)

    def _last_scores(self) -> FloatArray:
        """Return the scores of the last point, float64 (n,)."""
        scores = self._solve.scores(self._solve.effort.moves)
        assert scores is not None
        return scores


@dataclass
class _Judge:
    """Certifies the block solver's points over all rows, and keeps the best with its proved scores.

    ``near``: the proved scores of the last certified point, of this or the previous solve, from
    which new scores are updated; ``calls``: how many points were certified; ``left``: the gap of
    the best point (its KKT violation if the kernel is not positive semidefinite).
    """

    design: Design
    problem: FixedDual
    fleet: Fleet
    near: ProvedScores | None
    calls: int = 0
    best: ScoredRows | None = None
    left: float = np.inf

    def __call__(self, point: Point) -> Certificate:
        """Certify a solver's point over all rows, and keep its scores if it is the best so far."""
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
        """Return the best certified point."""
        best = self.best
        assert best is not None
        scores = Scores(best.scores, best.bands)
        return PathPoint.proved(best.dual, best.alpha, scores, best.definite)


@dataclass
class ThrottledGapBall:
    """The gap ball rule, applied only once the gap has fallen below ``part`` times ``last``.

    The rule: w* lies in a ball around w whose radius is the root of the gap. ``last``: the gap at
    the last screening. A round that screens costs as much as a round that moves rows. ``name`` and
    ``safe`` (it removes no row wrongly) as every `Rule` has them.
    """

    part: float = 0.3
    last: float = np.inf
    name: str = "gap"
    safe: bool = True

    def region(self, point: Point, rounding: float) -> Ball | None:
        """Return the ball of radius ``sqrt(gap)``, or None if the gap has not fallen enough.

        ``rounding``: a bound on the error of the point's gap.
        """
        if not point.gap <= self.part * self.last:
            return None
        self.last = point.gap
        return GapBall().region(point, rounding)

    def after_restart(self, removed: int, false: int) -> Rule:
        """Return the rule for the solve after rows have come back: the same rule, as it is safe.

        ``removed``: how many rows came back; ``false``: how many had been removed wrongly (0 for a
        safe rule).
        """
        return self
