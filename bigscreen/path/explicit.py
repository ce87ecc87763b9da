"""The stage for explicit features in memory: rows of a linear machine, or stored kernel features.

Every solve ends with one pass over all rows, which sums w(alpha) again and computes all scores and
the gap. The next point's screening rules and start use these scores, so a row that a rule has
decided is read only once per point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.certificate import UNIT_ROUNDOFF, SquaredNorm
from bigscreen.errors import InputError
from bigscreen.numerics.rows import FloatArray
from bigscreen.path.explicit_newton import ProxNewton
from bigscreen.path.explicit_rows import (
    ExplicitRows,
    Goal,
    RowSum,
    UndecidedRows,
)
from bigscreen.path.stage import PathPoint, PointTask
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import sufficient_gap
from bigscreen.screening.regions import Scores
from bigscreen.solvers.coordinate import EpochRows, epoch


@dataclass(frozen=True)
class ExplicitTuning:
    """Tuned values of `ColumnsStage`, which solves the points of a path on explicit features.

    Parameters
    ----------
    max_newton_size : int
        Take Newton steps if the smaller of the numbers of rows and columns, which is the size of a
        step's linear system, is at most this; otherwise use coordinate descent.
    max_quick_newton_size : int
        With ``quick`` (which allows faster steps that round more), take Newton steps if the smaller
        of the numbers of rows and columns is at most this; otherwise use coordinate descent.
    max_dense_columns : int
        Use coordinate descent, never Newton steps, if there are more columns than this: Newton
        steps store rows as dense arrays.
    max_retries : int
        Continue a solve at most this often if a pass over all rows finds a wider gap than the
        solver reported; then accept its point.
    max_epochs : int
        Coordinate descent returns its point after this many epochs (passes over the rows), whatever
        the gap.
    """

    max_newton_size: int = 1500
    max_quick_newton_size: int = 3000
    max_dense_columns: int = 20_000
    max_retries: int = 6
    max_epochs: int = 5000


EXPLICIT = ExplicitTuning()
"""The tuned values that are used unless a caller passes others."""


class Engine(Protocol):
    """A solver that moves the alpha of undecided rows until their gap meets a goal.

    ``begin`` prepares it for the rows of a new point; ``run`` may be called more than once.
    """

    h: float
    """Half-width of the smoothing band, kept from solve to solve (0: the solver has none)."""

    def begin(self, rows: UndecidedRows) -> None: ...

    def run(self, rows: UndecidedRows, goal: Goal) -> bool:
        """Move the alpha of the undecided rows until their gap meets ``goal``.

        Returns False if no further step helps although the gap is larger than the goal.
        """


class ColumnsStage:
    """A path's solver for explicit features in memory, of problems without an equality constraint.

    Parameters
    ----------
    X : float32 or float64 (n, d), dense or CSR
        Rows, or the stored features of a Nystrom machine, for all points of the path.
    constant : bool
        Whether a 1 is appended to every phi.
    quick : bool
        Compute Newton directions by Cholesky factors: faster, with other rounding errors (see
        `ProxNewton`).
    tuning : ExplicitTuning

    Raises
    ------
    InputError
        If X is neither dense nor CSR, or not floating point.
    """

    def __init__(
        self,
        X: Any,
        constant: bool = False,
        quick: bool = False,
        tuning: ExplicitTuning = EXPLICIT,
    ) -> None:
        """Choose Newton steps or coordinate descent by the size of X; solve nothing yet."""
        self._begin(ExplicitRows(X, constant), quick, tuning)

    def for_thread(self) -> ColumnsStage:
        """Return a new solver on these rows, for another thread; it has solved no point yet."""
        other = ColumnsStage.__new__(ColumnsStage)
        other._begin(self.columns, self.quick, self.tuning)
        return other

    def _begin(self, columns: ExplicitRows, quick: bool, tuning: ExplicitTuning) -> None:
        """Set up a solver that has solved nothing yet, on rows that other solvers may share.

        Choose Newton steps or coordinate descent by the size of the rows. ``quick``: see the class.
        """
        self.columns, self.quick, self.tuning = columns, quick, tuning
        rows, width = columns.n_rows, columns.width
        limit = tuning.max_quick_newton_size if quick else tuning.max_newton_size
        narrow = min(rows, width) <= limit and width <= tuning.max_dense_columns
        self._engine: Engine = CoordinateDescent(self.columns, tuning.max_epochs)
        if narrow:
            self._engine = ProxNewton(self.columns, quick)
        self._last: PathPoint | None = None
        # ``sign * alpha`` of the last solved point, and its scores. (If classes are solved one
        # against the rest, alpha without its signs does not say which machine it belongs to.)
        self._coef = self._scored = np.zeros(rows)
        self._sum = RowSum(np.zeros(self.columns.width), 0.0)

    @property
    def norms(self) -> FloatArray:
        """Upper bounds of ``||phi_i||``, float64 (n,), including the 1 of the constant if any."""
        return self.columns.norms

    def solve(self, task: PointTask) -> PathPoint:
        """Solve one point of a path to the relative gap ``task.tol``, proved over all rows.

        ``task``: its dual, a start, and the rows decided by screening rules (`PointTask`).

        Raises
        ------
        InputError
            If the problem has a coupling.
        """
        if task.dual.coupling is not None:
            raise InputError(
                "this problem has a coupling (an unpenalised offset, or nu), which single "
                "variables cannot keep; use the newton, block or pairs solver"
            )
        rows, goal = self._rows(task), Goal(task.tol, task.deadline, task.dynamic)
        self._engine.begin(rows)
        best, kept, tries = None, self._sum, 0
        while True:
            able = self._engine.run(rows, goal)
            solved, total = self._certified(task.dual, rows.full_alpha)
            tries += 1
            if best is None or solved.gap < best.gap:
                best, kept = solved, total
            done = best.gap <= sufficient_gap(best.rounding, best.primal, task.tol)
            if done or not able or goal.expired() or tries > self.tuning.max_retries:
                break
            goal.sharpen()
            rows.renew(total)
        best.counts.update(rows.counts, certificates=tries)
        self._last, self._sum = best, kept
        self._coef, self._scored = task.dual.sign * best.alpha, best.scores.values
        return best

    def products(self, coef: FloatArray) -> Scores:
        """Compute the scores ``<w, phi_i>`` of all rows for ``w = sum_j coef_j phi_j``.

        ``coef``: (n,). The result has bounds on the scores' errors, for screening rules.
        """
        return self._scores(self.columns.sum(coef))

    def machine(self, dual: Dual, solved: PathPoint) -> dict[str, Any]:
        """Return a solved point's model: ``coef`` of the columns (d,), and ``constant``.

        ``constant`` is the penalised offset: the last entry of w, or 0 without one.
        """
        columns = self.columns
        w = (self._sum if solved is self._last else columns.sum(dual.sign * solved.alpha)).w
        coef, constant = (w[:-1], float(w[-1])) if columns.constant else (w, 0.0)
        return {"coef": coef.copy(), "constant": constant}

    def memory(self) -> dict[str, NDArray[Any]]:
        """Return by name what the next solve reuses, to be saved; `recall` takes it back.

        ``w``, ``coef`` (``sign * alpha``) and ``scores`` of the last point; ``numbers``: the error
        bound of w, and the solver's h.
        """
        numbers = np.array([self._sum.error, self._engine.h])
        return {"w": self._sum.w, "coef": self._coef, "scores": self._scored, "numbers": numbers}

    def recall(self, memory: dict[str, NDArray[Any]]) -> None:
        """Restore w, the scores and h that `memory` returned, perhaps in another process."""
        error, self._engine.h = memory["numbers"].tolist()
        self._sum = RowSum(memory["w"], error)
        self._coef, self._scored = memory["coef"], memory["scores"]

    # -- where a solve starts --------------------------------------------------------------------
    def _rows(self, task: PointTask) -> UndecidedRows:
        """Collect the rows of a point that may move, their alpha, w(alpha) and a w to start from.

        ``task``: the point to solve. If the alpha of these rows is a multiple of their last alpha,
        w(alpha) is updated from the last one; else it is summed anew.
        """
        columns, coef, rows = self.columns, task.dual.sign * task.alpha, task.live
        given = columns, task.dual, task.alpha, rows
        if task.point is not None:
            point = task.point.copy()
            return UndecidedRows(
                *given, columns.sum(coef), point, columns.scores(point, rows), ray=False
            )
        factor = self._factor(coef[rows], self._coef[rows])
        if factor is None:
            total = columns.sum(coef)
            scores = columns.scores(total.w, rows)
            return UndecidedRows(*given, total, total.w.copy(), scores, ray=True)
        total = RowSum(factor * self._sum.w, factor * self._sum.error)
        change = coef - factor * self._coef
        moved = np.flatnonzero(change)
        columns.add(moved, change[moved], total.w)
        # If the box grows by a factor, the optimal w hardly moves: start at the last w itself.
        found = UndecidedRows(*given, total, self._sum.w.copy(), self._scored[rows], ray=False)
        found.moves = len(moved) + 1
        return found

    @staticmethod
    def _factor(now: FloatArray, before: FloatArray) -> float | None:
        """Return the factor f for which ``now = f * before``; None if there is none above 0.

        ``now`` and ``before``: ``sign * alpha`` of the undecided rows, now and at the last point.
        Decided rows need not share the factor: their alpha is known.
        """
        if not len(now):
            return None
        k = int(np.argmax(np.abs(before)))
        if now[k] * before[k] <= 0.0:
            return None
        factor = float(now[k] / before[k])
        same = np.max(np.abs(now - factor * before)) <= 1e-12 * abs(now[k])
        return factor if same else None

    # -- the pass over all rows ------------------------------------------------------------------
    def _certified(self, dual: Dual, alpha: FloatArray) -> tuple[PathPoint, RowSum]:
        """Certify a feasible alpha (n,) over all rows; return the point, and its w."""
        columns, total = self.columns, self.columns.sum(dual.sign * alpha)
        square, length = float(total.w @ total.w), float(np.linalg.norm(total.w))
        error = 2 * length * total.error + total.error**2
        error += 2 * (columns.width + 4) * UNIT_ROUNDOFF * square
        norm = SquaredNorm(square, error)
        return PathPoint.proved(dual, alpha, self._scores(total), norm=norm), total

    def _scores(self, total: RowSum) -> Scores:
        """Compute ``<w, phi_i>`` of all rows with a bound on their errors.

        ``total``: w with a bound on its own error.
        """
        w, columns = total.w, self.columns
        return Scores(columns.scores(w), columns.score_error(w) + columns.largest * total.error)


class CoordinateDescent:
    """Coordinate descent, with a new random order of the rows in every epoch (fixed seed).

    ``h`` is 0 because it has no smoothing band (see `Engine`).
    """

    h = 0.0

    def __init__(self, columns: ExplicitRows, max_epochs: int) -> None:
        """Keep the rows, and the number of epochs after which a solve gives up."""
        self.columns, self.max_epochs = columns, max_epochs

    def begin(self, rows: UndecidedRows) -> None:
        """Copy the arrays of the dual of all rows, and seed the random order, always the same."""
        self._rng = np.random.default_rng(0)
        whole = rows.whole
        tube = np.zeros(len(whole)) if whole.tube is None else whole.tube
        arrays = (whole.sign, whole.lin, whole.lo, whole.hi, tube)
        self._problem = tuple(map(np.ascontiguousarray, arrays))

    def run(self, rows: UndecidedRows, goal: Goal) -> bool:
        """Move the alpha of the undecided rows until their gap meets ``goal``.

        Returns False if no further step helps although the gap is larger than the goal.
        """
        columns, alpha = self.columns, rows.full_alpha
        active = np.zeros(len(alpha), np.bool_)
        threshold, due, done = np.inf, 1, 0
        active[rows.ids] = True
        while len(rows.ids):
            order = self._rng.permutation(np.flatnonzero(active))
            given = EpochRows(columns.X, columns.sqnorms, *self._problem)
            moving = (alpha, rows.w, order, columns.constant, threshold, active)
            visited, threshold = epoch(given, *moving)
            rows.moves += visited
            rows.counts["steps"] += 1
            done += 1
            if done < due and threshold > 1e-14 and not goal.expired():
                continue
            # The scores of all undecided rows cost about an epoch: compute them ever more rarely.
            due = done + max(1, done // 4)
            rows.alpha[:] = alpha[rows.ids]
            rows.point = rows.w
            rows.scores = columns.scores(rows.w, rows.ids)
            gap = rows.dual.frank_wolfe_gap(rows.alpha, rows.scores)
            if gap <= 0.9 * goal.tol * abs(rows.value) or goal.expired():
                return True
            if done > self.max_epochs or (threshold <= 1e-14 and active[rows.ids].all()):
                return False
            if goal.dynamic and rows.screen(gap, 0.0) is not None:
                alpha = rows.full_alpha
            active[:] = False
            active[rows.ids] = True
            threshold = np.inf
        return True
