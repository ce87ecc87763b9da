"""Leave-one-out scores of an exact C-SVC: what the machine fitted without a row says of that row.

The full problem is first solved closely, over a kernel matrix in memory. A row whose alpha is 0
leaves the solution feasible and its gap no larger, so that its score holds as it is. Each other row
is removed in turn, and the solve goes on from the full solution by SMO steps, first over the rows
near their hinge point. Each score has a bound, which follows from the gap of the problem without
the row (maths.md 2.10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.amend.bound import SUM_ERROR
from bigscreen.amend.predictions import are_unchanged
from bigscreen.amend.request import check_amendable
from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.fleet.memory import allowed_memory
from bigscreen.kernels.base import FLOAT64_ERROR_FACTOR
from bigscreen.kernels.operand import Operand
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.solvers.smo.loop import Limits, Matrix, smo

Each = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]
"""``each(function, items)``: a map over items, such as ``Inline.each``, on threads."""


@dataclass(frozen=True)
class LeaveOneOutTuning:
    """Tuned values of leave-one-out solves; they change their time, and what stays undecided."""

    # Steps are first taken to this violation of the optimality conditions, then to a tenth of it
    # as often as the bounds ask for. Tried: 1e-3, which takes twice as many checks (3,000 rows).
    first_violation: float = 1e-5
    # Stop there, however wide the bound still is.
    last_violation: float = 1e-11
    # Stop if steps to a tenth of the violation leave more than this of the bound on the gap: what
    # is left is rounding then. It halves the time of 3,000 rows of magic (C = 10).
    max_gap_left: float = 0.5
    # Step over rows nearer to their hinge point than this first: others seldom move. It halves the
    # time of 3,000 rows of magic; .5 takes a third longer, .1 as long.
    near_distance: float = 0.2
    # Take at most this many steps for each row of the data, in one solve.
    max_steps_per_row: int = 1000


@dataclass(frozen=True)
class LeftOut:
    """Leave-one-out scores and predictions of the rows that a model was fitted on.

    Attributes
    ----------
    scores, bounds : float64 (n, k)
        The score of each row by the machine fitted without the row, and a bound on its distance
        from the score that the optimum without the row gives.
    wrong, decided : bool (n,)
        Whether the row's label differs from its prediction, and whether the bounds prove that
        prediction.
    refitted : int
        Number of solves without a row.
    """

    scores: FloatArray
    bounds: FloatArray
    wrong: NDArray[np.bool_]
    decided: NDArray[np.bool_]
    refitted: int

    def record(self) -> dict[str, Any]:
        """Return the counts, JSON-able.

        rows; wrong: rows that are proved to be predicted wrongly; undecided: rows whose prediction
        the bounds do not prove; error: share of rows predicted wrongly, by the scores; bound: the
        largest of all scores; refitted.
        """
        return {
            "rows": len(self.wrong),
            "wrong": int(np.count_nonzero(self.wrong & self.decided)),
            "undecided": int(np.count_nonzero(~self.decided)),
            "error": float(np.mean(self.wrong)),
            "bound": float(np.max(self.bounds)),
            "refitted": self.refitted,
        }


def leave_one_out(
    model: Model,
    data: Rows,
    each: Each = map,
    tol: float = 1e-2,
    tuning: LeaveOneOutTuning = LeaveOneOutTuning(),
) -> LeftOut:
    """Compute the score of each row by the machine fitted without it.

    Parameters
    ----------
    model : Model
        An exact C-SVC with a certificate.
    data : Rows
        The rows that it was fitted on, with their labels; rows of an array may have another order,
        in which the answer has them then.
    each : callable
        Maps a function over row numbers, on threads of this process.
    tol : float
        Solve until each score is within this of the best machine's, and its sign is proved; a sign
        that stays in doubt is counted as undecided.

    Raises
    ------
    InputError
        If the model is not an exact C-SVC or has no certificate, the rows are not those it was
        fitted on, their kernel matrix does not fit in memory, or tol is not positive.
    """
    if not tol > 0:
        raise InputError(f"tol, the bound on scores, must be positive, got {tol!r}")
    asked = model.provenance.get("parameters") or {}
    kind = asked.get("problem", "c-svc")
    if kind != "c-svc":
        raise InputError(
            f"leave-one-out scores are of a C-SVC, and the model is of {kind}; a regression that "
            "is fitted with `--probability` knows its errors on rows held out by folds"
        )
    if asked.get("class_weight") == "balanced":
        raise InputError(
            "leave-one-out keeps the weights of rows, and balanced class weights are others "
            "without a row; fit with the weight of each label as a number "
            "(class_weight={label: weight}), or with weights of rows"
        )
    own = check_amendable(model, data, "has no leave-one-out scores")
    if model.support is None or model.gate is not None:
        raise InputError(
            "leave-one-out scores are of an exact machine (--exact); a machine on landmarks has "
            "cross-fitted scores (--probability)"
        )
    n = data.n_rows
    needed, room = 8.0 * n * n * 1.2, allowed_memory(None)
    if needed > room:
        raise InputError(
            f"leave-one-out holds the kernel matrix of {n:,} rows, {needed / 2**30:.3g} GiB, and "
            f"{room / 2**30:.3g} GiB can be had; take fewer rows, or folds (--probability)"
        )
    side = Operand(data.X(0, n), np.arange(n))
    constant = float(own[0].problem.intercept == "constant")
    K = model.kernel.block(side, side, dtype=np.float64)
    K = np.ascontiguousarray(K, np.float64)
    K += constant
    longest = float(np.max(side.sqnorms))
    entry = FLOAT64_ERROR_FACTOR * float(
        model.kernel.entry_error(longest, longest, side.X.shape[1])
    )
    entry += 2.0**-50 * (float(np.max(np.abs(np.diagonal(K)))))
    y, weights = data.y(0, n), np.asarray(data.weights(0, n), np.float64)
    numbers = data.row_ids(0, n)
    scores, bounds, refitted = np.empty((n, len(own))), np.empty((n, len(own))), 0
    for k, binary in enumerate(own):
        dual = binary.problem.dual(y, weights)
        order = np.argsort(numbers)
        alpha = np.zeros(n)
        alpha[order[np.searchsorted(numbers, model.support, sorter=order)]] = np.abs(model.coef[k])
        problem = _Problem(Matrix(K), K, dual, entry, binary.problem.offset, tol, tuning)
        full = problem.solve(dual, dual.feasible(alpha), None, None)
        problem = problem.with_near_rows(full)
        known = model.provenance["certificates"][k]
        if not _is_same_problem(dual, full, known):
            raise InputError(
                f"{data.path or 'the data'} is not what the model was fitted on: its labels, "
                f"weights or rows have the optimum {full.value_of(dual):.6g}, and the model "
                f"proves {known['dual']:.6g} to {known['primal']:.6g}; give the rows of the fit"
            )
        scores[:, k], bounds[:, k], left = problem.scores_of_rest(full)
        found = each(partial(problem.without, full), left.tolist())
        for row, (score, bound) in zip(left.tolist(), found, strict=True):
            scores[row, k], bounds[row, k] = score, bound
        refitted += len(left)
    ends: list[tuple[FloatArray, ...]] = [
        (score, score - bound, score + bound)
        for score, bound in zip(scores.T, bounds.T, strict=True)
    ]
    return LeftOut(scores, bounds, model.decide(scores) != y, are_unchanged(model, ends), refitted)


@dataclass(frozen=True)
class _Solved:
    """A solution: alpha (n,), scores u of w(alpha) (n,), and what is proved of the best machine.

    ``reach`` (n,): how far the optimal scores can be from u. ``mu``: the best multiplier at u, and
    ``low``, ``high``: an interval that holds the optimal one (0 without a coupling). ``gap``: a
    bound on how far the dual value of alpha is below the optimum.
    """

    alpha: FloatArray
    u: FloatArray
    reach: FloatArray
    mu: float
    low: float
    high: float
    gap: float

    def value_of(self, dual: Dual) -> float:
        """Return the dual value of alpha."""
        return dual.value(self.alpha, float(np.sum(dual.sign * self.alpha * self.u)))


def _is_same_problem(dual: Dual, full: _Solved, known: dict[str, Any]) -> bool:
    """Whether the optimum near a close solution is one that the certificate ``known`` allows."""
    value, room = full.value_of(dual), full.gap + known["rounding_bound"]
    return bool(known["dual"] - room <= value <= known["primal"] + room)


@dataclass(frozen=True)
class _Problem:
    """One binary problem over a kernel matrix in memory.

    ``entry``: how far an entry of K can be from the kernel's; ``offset``: the offset that belongs
    to a multiplier; ``near``: rows (k,) near their hinge point, and their kernel matrix (k, k);
    None: not known yet.
    """

    matrix: Matrix
    K: FloatArray
    dual: Dual
    entry: float
    offset: Callable[[Any], float]
    tol: float
    tuning: LeaveOneOutTuning
    near: tuple[NDArray[np.int64], Matrix] | None = None

    def with_near_rows(self, full: _Solved) -> _Problem:
        """Return the problem with the rows near their hinge point, and the kernel matrix of these.

        ``full``: the solution with all rows.
        """
        slack = np.abs(self.dual.gradient(full.u, full.mu))
        rows = np.flatnonzero((slack < self.tuning.near_distance) & (self.dual.hi > 0))
        return replace(self, near=(rows, Matrix(np.ascontiguousarray(self.K[np.ix_(rows, rows)]))))

    def _step(
        self, dual: Dual, alpha: FloatArray, G: FloatArray, limits: Limits
    ) -> tuple[int, float]:
        """Take SMO steps over the rows near their hinge point, then over all rows.

        ``alpha`` and ``G`` are updated. Returns the additions to an entry of G, each of which
        rounds, and the violation over all rows.
        """
        done = 0
        if self.near is not None:
            rows, matrix = self.near
            some, own = alpha[rows], G[rows]
            done, _ = smo(matrix, dual[rows], some, own, limits)
            change = dual.sign[rows] * (some - alpha[rows])
            for k in np.flatnonzero(change).tolist():
                G -= change[k] * dual.sign * self.K[rows[k]]
                done += 1
            alpha[rows] = some
        more, reached = smo(self.matrix, dual, alpha, G, limits)
        return done + more, reached

    def solve(
        self, dual: Dual, alpha: FloatArray, row: int | None, u: FloatArray | None
    ) -> _Solved:
        """Solve ``dual`` from a feasible alpha until the scores are within ``tol``.

        ``row``: the row whose score is to be decided, too; None: all scores to a tenth of ``tol``.
        ``u``: the scores of alpha; None: compute them.
        """
        n, tuning = len(dual), self.tuning
        if u is None:
            used = np.flatnonzero(alpha)
            u = self.K[:, used] @ (dual.sign * alpha)[used]
        alpha, G = alpha.copy(), dual.lin - dual.sign * u
        violation, steps, gap = tuning.first_violation, 0, np.inf
        while True:
            left = tuning.max_steps_per_row * n - steps
            done, reached = self._step(dual, alpha, G, Limits(violation, left))
            steps += done
            found = self._prove(dual, alpha, dual.sign * (dual.lin - G), steps)
            tired = reached > violation or violation <= tuning.last_violation
            rounded = done > 0 and found.gap > tuning.max_gap_left * gap
            if tired or rounded or self._suffices(found, row):
                return found
            violation, gap = 0.1 * violation, found.gap

    def _suffices(self, found: _Solved, row: int | None) -> bool:
        """Whether scores are known closely enough, and the sign of the row's score is proved."""
        if row is None:
            widest = float(np.max(found.reach)) + 0.5 * (found.high - found.low)
            return widest <= 0.1 * self.tol
        score, bound = self._score(found, row)
        return bool(bound <= self.tol and bound < abs(score))

    def _score(self, found: _Solved, rows: Any) -> tuple[Any, Any]:
        """Return the scores of rows, offset included, and the bounds on their errors."""
        offset, *ends = (self.offset(mu) for mu in (found.mu, found.low, found.high))
        return found.u[rows] + offset, found.reach[rows] + max(abs(end - offset) for end in ends)

    def _prove(self, dual: Dual, alpha: FloatArray, u: FloatArray, steps: int) -> _Solved:
        """Bound the errors of the scores and the multiplier that alpha gives (maths.md 2.10).

        ``u`` (n,) are the scores of alpha after this many steps, each of which rounds them.
        """
        largest = float(np.max(np.abs(self.matrix.diag)))
        size = float(np.sum(np.abs(alpha)))
        moves = 2.0**-50 * (float(np.max(np.abs(u))) + 2.0 * float(np.max(dual.hi)) * largest + 1.0)
        slack = (self.entry + SUM_ERROR * largest) * size + (steps + 4) * moves
        mu: Any = 0.0 if dual.coupling is None else dual.multiplier(u)
        # A row at the end that its gradient points to adds 0 to the gap, whatever is rounded.
        G = dual.gradient(u, mu)
        settled = ((alpha <= dual.lo) & (G < -slack)) | ((alpha >= dual.hi) & (G > slack))
        moving = np.where(settled, 0.0, dual.reach)
        gap = dual.frank_wolfe_gap(alpha, u, mu) + float(np.sum(moving)) * slack
        gap += SUM_ERROR * float(np.sum(moving * (1.0 + np.abs(u + mu))))
        if dual.coupling is not None:
            missing = abs(float(np.sum(dual.coupling * alpha)) - float(np.sum(dual.total)))
            missing += SUM_ERROR * size
            gap += missing * (1.0 + float(np.max(np.abs(u))) + abs(mu)) + missing**2 * largest
        radius = float(np.sqrt(gap))
        reach = radius * np.sqrt(np.maximum(self.matrix.diag, 0.0) + self.entry) + slack
        low = high = mu
        if dual.coupling is not None:
            low, high = dual.multiplier_interval(u - reach, u + reach)
        best, least, most = (float(np.sum(end)) for end in (mu, low, high))
        return _Solved(alpha, u, reach, best, least, most, gap)

    def scores_of_rest(self, full: _Solved) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
        """Return scores and bounds (n,) of rows that the full solution decides, and the other rows.

        It decides rows with alpha 0: the gap is no larger without them. With a coupling their loss
        has to be 0 as well, so that they do not bear on the multiplier.
        """
        dual = self.dual
        scores, bounds = self._score(full, slice(None))
        left = full.alpha != 0
        if dual.coupling is not None:
            margins = dual.sign * full.u + np.minimum(dual.sign * full.low, dual.sign * full.high)
            left |= (dual.hi > 0) & ~(margins - full.reach > dual.lin)
        return scores, bounds, np.flatnonzero(left)

    def without(self, full: _Solved, row: int) -> tuple[float, float]:
        """Solve the problem without a row, from the full solution; return its score and bound."""
        hi = self.dual.hi.copy()
        hi[row] = 0.0
        dual, alpha, u = replace(self.dual, hi=hi), full.alpha.copy(), full.u
        gone, alpha[row] = float(alpha[row]), 0.0
        if gone:
            u = u - dual.sign[row] * gone * self.K[row]
        if not gone or dual.coupling is None:
            return self._solve_for(dual, alpha, row, u)
        # Rows of the same class take over the alpha that is missing, the most similar first.
        near = slice(None) if self.near is None else self.near[0]
        same = np.arange(len(hi))[near]
        same = same[(dual.sign[same] == dual.sign[row]) & (hi[same] > alpha[same])]
        same = same[np.argsort(-self.K[row, same], kind="stable")]
        room = hi[same] - alpha[same]
        step = np.clip(gone - (np.cumsum(room) - room), 0.0, room)
        if gone > float(np.sum(step)) * (1 + 1e-12):
            return self._solve_for(dual, dual.feasible(alpha), row, None)
        taken, step = same[step > 0], step[step > 0]
        alpha[taken] += step
        return self._solve_for(dual, alpha, row, u + dual.sign[row] * (step @ self.K[taken]))

    def _solve_for(
        self, dual: Dual, alpha: FloatArray, row: int, u: FloatArray | None
    ) -> tuple[float, float]:
        """Solve ``dual`` from alpha, whose scores are u; return a row's score and its bound."""
        score, bound = self._score(self.solve(dual, alpha, row, u), row)
        return float(score), float(bound)
