"""The stage of explicit features in memory: rows of a linear machine, or stored kernel features.

Every solve ends with one pass over all rows, which gives w(alpha) afresh, all scores and the gap;
the scores are those the next point's rules and its start need, so a row that a rule has decided
is read once a point.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bigscreen.dual import FREE, Dual, FloatArray
from bigscreen.errors import InputError
from bigscreen.path_columns_descent import Descent
from bigscreen.path_columns_newton import ProxNewton
from bigscreen.path_columns_rows import Columns
from bigscreen.path_columns_sums import certificate
from bigscreen.path_columns_task import Goal, Task
from bigscreen.path_stage import Solved
from bigscreen.point import enough
from bigscreen.screening.past import Scores

NEWTON_WIDTH = 1500
"""Columns, or rows, up to which Newton steps, with matrices of that size, beat epochs."""

DENSE_WIDTH = 20_000
"""Columns up to which some rows are written out dense for a Newton step."""

TRIES = 6
"""Times that a solve goes on after its certificate refuted it."""


class Engine(Protocol):
    """What moves alpha to where the goal is met, as far as the undecided rows can tell."""

    h: float
    """What it keeps from solve to solve (0: nothing)."""

    def begin(self, task: Task) -> None: ...

    def run(self, task: Task, goal: Goal) -> bool:
        """Move ``task``; False once there is nothing more that it can do."""


class ColumnsStage:
    """Rows of explicit features in memory, and solvers for problems without a coupling.

    Parameters
    ----------
    X : float32 or float64 (n, d), dense or CSR
        Rows, or the stored features of a Nystrom machine.
    constant : bool
        Whether a 1 is appended to every phi.

    Raises
    ------
    InputError
        If X is neither dense nor CSR, or not floating point.
    """

    def __init__(self, X: Any, constant: bool = False) -> None:
        self.columns = Columns(X, constant)
        rows, width = self.columns.n_rows, self.columns.width
        narrow = min(rows, width) <= NEWTON_WIDTH and width <= DENSE_WIDTH
        self._engine: Engine = ProxNewton(self.columns) if narrow else Descent(self.columns)
        self._last: Solved | None = None
        # Of the last point: ``s alpha``, for alpha alone does not say which machine's w it is where
        # labels stand one against the rest; and its scores.
        self._coef = self._scored = np.zeros(rows)
        self._w, self._error = np.zeros(self.columns.width), 0.0

    @property
    def norms(self) -> FloatArray:
        """Upper bounds of ``||phi_i||`` (n,), the constant's 1 included where there is one."""
        return self.columns.norms

    def solve(
        self,
        dual: Dual,
        alpha: FloatArray,
        decided: NDArray[np.int8],
        tol: float,
        deadline: float | None = None,
        dynamic: bool = True,
    ) -> Solved:
        """Solve to a relative gap, proved over all rows; see ``path_stage.Stage``.

        Raises
        ------
        InputError
            If the problem has a coupling.
        """
        if dual.coupling is not None:
            raise InputError(
                "this problem has a coupling (an unpenalised offset, or nu), which single "
                "variables cannot keep; use the newton, block or pairs solver"
            )
        task = self._task(dual, alpha, np.flatnonzero((decided == FREE) & (dual.hi > dual.lo)))
        goal = Goal(tol, deadline, dynamic)
        self._engine.begin(task)
        best, kept, tries = None, (self._w, self._error), 0
        while True:
            able = self._engine.run(task, goal)
            solved, w, error = self._certified(dual, task.full_alpha)
            tries += 1
            if best is None or solved.gap < best.gap:
                best, kept = solved, (w, error)
            done = best.gap <= enough(best.rounding, best.primal, tol)
            if done or not able or goal.expired() or tries > TRIES:
                break
            goal.sharpen()
            task.renew(w, error)
        best.counts.update(task.counts, certificates=tries)
        self._last, (self._w, self._error) = best, kept
        self._coef, self._scored = dual.sign * best.alpha, best.scores.values
        return best

    def products(self, coef: FloatArray) -> Scores:
        """Scores of ``sum_j coef_j phi_j`` (see ``screening.past.Products``)."""
        return self._scores(*self.columns.sum(coef))

    def machine(self, dual: Dual, solved: Solved) -> dict[str, Any]:
        """``coef`` of the columns, float64 (d,), and ``constant``, the offset's penalised part."""
        columns = self.columns
        w = self._w if solved is self._last else columns.sum(dual.sign * solved.alpha)[0]
        coef, constant = (w[:-1], float(w[-1])) if columns.constant else (w, 0.0)
        return {"coef": coef.copy(), "constant": constant}

    def memory(self) -> dict[str, NDArray[Any]]:
        """See ``path_stage.Stage``."""
        numbers = np.array([self._error, self._engine.h])
        return {"w": self._w, "coef": self._coef, "scores": self._scored, "numbers": numbers}

    def recall(self, memory: dict[str, NDArray[Any]]) -> None:
        """See ``path_stage.Stage``."""
        self._w, self._coef, self._scored = (memory[name] for name in ("w", "coef", "scores"))
        self._error, self._engine.h = memory["numbers"].tolist()

    # -- where a solve starts --------------------------------------------------------------------
    def _task(self, dual: Dual, alpha: FloatArray, rows: NDArray[np.int64]) -> Task:
        """alpha and its w, and a w to start from with its scores."""
        columns, coef = self.columns, dual.sign * alpha
        factor = self._factor(coef[rows], self._coef[rows])
        if factor is None:
            w, error = columns.sum(coef)
            scores = columns.scores(w, rows)
            return Task(columns, dual, alpha, rows, w, error, w.copy(), scores, ray=True)
        w, error = factor * self._w, factor * self._error
        change = coef - factor * self._coef
        moved = np.flatnonzero(change)
        columns.add(moved, change[moved], w)
        # Where the box grows by a factor the optimal w hardly moves: start at the last w itself.
        scores = self._scored[rows]
        task = Task(columns, dual, alpha, rows, w, error, self._w.copy(), scores, ray=False)
        task.moves = len(moved) + 1
        return task

    @staticmethod
    def _factor(now: FloatArray, before: FloatArray) -> float | None:
        """What the undecided part of the last ``s alpha`` was multiplied with; None: with nothing.

        A factor of some rows alone is one of what a stage starts at, for the others are known.
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
    def _certified(self, dual: Dual, alpha: FloatArray) -> tuple[Solved, FloatArray, float]:
        """The point at alpha with its scores and gap over all rows; its w, and the error of w."""
        w, error = self.columns.sum(dual.sign * alpha)
        scores, w_sq = self._scores(w, error), float(w @ w)
        gap, rounding, linear = certificate(
            dual, alpha, scores.values, float(scores.slack)
        ).tolist()
        value = linear - 0.5 * w_sq
        return Solved(alpha, scores, w_sq, value + gap, value, 0.0, gap, rounding), w, error

    def _scores(self, w: FloatArray, error: float) -> Scores:
        """Scores of all rows of a w that is off by ``error``."""
        columns = self.columns
        return Scores(columns.scores(w), columns.score_error(w) + columns.largest * error)
