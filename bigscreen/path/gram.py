"""The stage for rows whose whole kernel matrix fits in memory: pair steps (SMO) on the matrix.

Every point is certified over all rows from float64 scores. They are updated by the rows of K whose
alpha has changed, which are few, because neighbouring points of a path are close to each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.certificate import UNIT_ROUNDOFF
from bigscreen.features.design import Design
from bigscreen.fleet.blas import blas_threads
from bigscreen.numerics.multiples import SCALING_TOL, find_multiple
from bigscreen.numerics.rows import FloatArray
from bigscreen.path.gram_matrix import FullGram, Progress
from bigscreen.path.interior import GramInterior
from bigscreen.path.stage import PathPoint, PointTask
from bigscreen.problems.dual import FREE, Dual
from bigscreen.problems.point import sufficient_gap
from bigscreen.problems.violation import libsvm_scale
from bigscreen.screening.bounds import fill_total
from bigscreen.screening.regions import Ball, Scores
from bigscreen.solvers.block.face import Faces
from bigscreen.solvers.block.working_set import is_free
from bigscreen.solvers.interior import COSTS, InteriorCosts
from bigscreen.solvers.smo.loop import Limits, Matrix, smo


@dataclass(frozen=True)
class GramTuning:
    """Tuned values of `GramStage`, a path's solver on a kernel matrix by pair steps (SMO).

    Parameters
    ----------
    extra_pair_steps : int
        A round takes at most one pair step per row plus this many; then the gap over all rows is
        computed, rows are screened, and Newton steps may follow.
    target_fraction : float
        Pair steps aim at this fraction of the requested gap, to leave room for rounding.
    max_idle_rounds : int
        Stop after this many consecutive rounds without progress. (After a round that reached its
        aim, the aim is divided by ten.)
    min_gain_fraction : float
        Treat a round as progress only if D rose by more than this fraction of the gap (and of the
        rounding).
    min_zero_checks : int
        Test whether w* is 0 only after more than this many checks of the gap.
    zero_norm_fraction : float
        The solve of a nu-SVC stops if ||w||^2 is at most this fraction of the largest value that
        its rows allow: w* is then 0 as far as float32 entries can tell, and no relative gap can be
        reached.
    max_free_variables : int
        Take Newton steps only if at most this many dual variables are free (strictly between their
        bounds): a step factors a matrix of that size.
    newton_cost : float
        With ``quick`` (which allows faster steps that round more), take Newton steps once pair
        steps have read this many kernel entries for each unit of f^3, where f is the number of free
        variables. (Values from 1/15 to infinity take the same time for paths of 3,000 rows of a9a
        and ijcnn1 up to C = 10. At C = 1e4, a9a ends at a gap of 9.7e-4 in 0.41 s; with 1/15 at a
        gap of 5e-2 in 0.53 s.)
    min_screened_fraction : float
        Copy the kernel matrix without the screened rows only if these are at least this fraction of
        its rows; for fewer, the copy costs more than it saves.
    interior : InteriorCosts
        Estimated costs of the interior point method and of pair steps: try the method once pair
        steps have cost as much as it would.
    """

    extra_pair_steps: int = 500
    target_fraction: float = 0.7
    max_idle_rounds: int = 8
    min_gain_fraction: float = 1e-6
    min_zero_checks: int = 20
    zero_norm_fraction: float = 2.0**-24
    max_free_variables: int = 2000
    newton_cost: float = 8.0
    min_screened_fraction: float = 0.1
    interior: InteriorCosts = COSTS


GRAM = GramTuning()
"""The tuned values that are used unless a caller passes others."""


class GramStage:
    """A path's solver on a whole kernel matrix in memory; it solves every kind of problem.

    Parameters
    ----------
    design : Design
        An exact kernel, or rows of a linear machine, or stored features.
    constant : bool
        Whether a 1 is appended to every phi.
    budget : int
        Bytes for the matrix and copies of its rows: 16 n^2 with float64 entries, else 8 n^2 with
        float32 entries, whose rounding limits the gaps that can be proved.
    progress : callable or None
        Called with (rows done, rows) while the matrix is computed.
    quick : bool
        Use float32 entries (for gaps that they can prove), take Newton steps only once pair steps
        have cost as much, and never leave screened rows out of a solve (which would cost a copy of
        the matrix of the other rows).
    tuning : GramTuning

    Raises
    ------
    InputError
        If the matrix does not fit, or the design has landmarks.
    """

    def __init__(
        self,
        design: Design,
        constant: bool = False,
        budget: int = 1 << 30,
        progress: Progress | None = None,
        quick: bool = False,
        tuning: GramTuning = GRAM,
    ) -> None:
        """Compute the kernel matrix, and begin with no solved point."""
        gram = FullGram(design, constant, budget, progress, quick)
        interior = GramInterior(gram, budget - 2 * gram.K.nbytes, tuning.interior)
        self._begin(gram, quick, interior, tuning)

    def for_thread(self) -> GramStage:
        """Return a new solver on this kernel matrix, for another thread; no point is solved yet."""
        other = GramStage.__new__(GramStage)
        other._begin(self.gram, self.quick, self._interior, self.tuning)
        return other

    def _begin(
        self, gram: FullGram, quick: bool, interior: GramInterior, tuning: GramTuning
    ) -> None:
        """Set up a solver that has solved no point yet, on a matrix that other solvers may share.

        ``_kept``: the scores of the last w; ``_square``: the part of K that pair steps read, copied
        for the rows ``_order`` into ``_room`` (None: no copy yet).
        """
        self.gram, self.quick, self._interior, self.tuning = gram, quick, interior, tuning
        self._kept = CachedScores(self.gram)
        self._whole = self._square = Matrix(self.gram.K)
        self._order: NDArray[np.int64] | None = None
        self._room: NDArray[Any] | None = None
        # The gap divided by (KKT violation times the sum of the boxes' sizes), as last measured.
        self._share = 0.25

    @property
    def norms(self) -> FloatArray:
        """Upper bounds of ``||phi_i||``, float64 (n,), including the 1 of the constant if any."""
        return self.gram.norms

    def solve(self, task: PointTask) -> PathPoint:
        """Solve one point of a path to the relative gap ``task.tol``, proved over all rows.

        ``task``: its dual, a start, and the rows decided by screening rules (`PointTask`). If
        rounding keeps the gap above the target, return the best point.
        """
        dual, alpha, live, tol, tuning = task.dual, task.alpha, task.live, task.tol, self.tuning
        counts = {"steps": 0, "newton": 0, "checks": 1, "screened": 0}
        counts["kernel_entries"], self.gram.entries = self.gram.entries, 0
        kept = self._kept
        alpha = start_near_last(dual, alpha, live, kept.coef, lambda: kept.scores)
        best = now = self._certified(dual, alpha)
        sharper, idle = 1.0, 0
        psd, since, tried = self.gram.psd, 0, False
        while (
            _remaining(best) > self._allowed(tol, best)
            and len(live)
            and idle < tuning.max_idle_rounds
        ):
            many = counts["checks"] > tuning.min_zero_checks
            if task.is_late or (many and self._norm_may_be_zero(dual, best)):
                break
            if since and psd and self._should_try_newton(dual, now.alpha, live, since, idle > 0):
                since = 0
                found = newton_steps(self.gram.K, dual, now, live, tuning.max_free_variables)
                if found is not now.alpha:
                    counts["newton"] += 1
                    self._kept.move(dual.sign * found)
                alpha = found
            if not tried and self._interior.should_try(counts["steps"], len(live)):
                tried, before = True, now
                now = self._certified(dual, self._interior_alpha(dual, before.alpha, live, task))
                if _remaining(now) > _remaining(before):
                    now = self._certified(dual, before.alpha)
                best, alpha = now if _remaining(now) < _remaining(best) else best, now.alpha
            box = self._share * float(np.sum(dual.hi[live] - dual.lo[live]))
            aim = sharper * tuning.target_fraction * self._allowed(tol, now)
            aim /= max(box, 1e-300) if psd else libsvm_scale(dual)
            alpha, steps, violation = self._pair_steps(dual, alpha, live, aim)
            before, now = now, self._certified(dual, alpha)
            counts["steps"] += steps
            counts["checks"] += 1
            since += steps
            best = now if _remaining(now) < _remaining(best) else best
            if violation <= aim:
                # Pair steps bound the violation, and the gap must be small: learn their ratio.
                sharper *= 0.1
                if steps and violation > 0.0 and psd:
                    share = now.gap * self._share / (violation * box)
                    self._share = min(max(share, 1e-6), 1.0)
            least = tuning.min_gain_fraction * now.gap
            rose = now.dual - before.dual > least > tuning.min_gain_fraction * now.rounding
            rose |= not psd and _remaining(now) < 0.9 * _remaining(before)
            idle = 0 if rose else idle + 1
            if task.dynamic and psd and not self.quick and best.gap > self._allowed(tol, best):
                rows = len(live)
                live = drop_screened(dual, now, live, self.norms, tuning.min_screened_fraction)
                counts["screened"] += rows - len(live)
        best.counts.update(counts)
        return best

    def products(self, coef: FloatArray) -> Scores:
        """Compute the scores ``<w, phi_i>`` of all rows for ``w = sum_j coef_j phi_j``.

        ``coef``: (n,). The result has bounds on the scores' errors, for screening rules.
        """
        scores, rows = np.zeros(len(self.gram)), np.flatnonzero(coef)
        drift = self.gram.add(scores, rows, coef[rows])
        return Scores(scores, self.gram.slack(scores, coef, drift))

    def machine(self, dual: Dual, solved: PathPoint) -> dict[str, Any]:
        """Return the ``support`` rows, int64 ascending, their ``coef``, float64, and ``constant``.

        ``constant`` is the penalised part of the offset.
        """
        support = np.flatnonzero(solved.alpha)
        coef = (dual.sign * solved.alpha)[support]
        constant = float(coef.sum()) if self.gram.constant else 0.0
        return {"support": support, "coef": coef, "constant": constant}

    def memory(self) -> dict[str, NDArray[Any]]:
        """Return by name what the next solve reuses, to be saved; `recall` takes it back.

        ``coef`` (``sign * alpha``) and ``scores`` of the last w; ``numbers``: the bound on the
        scores' rounding, the ratio of gap to violation, and whether entries are float64.
        """
        kept = self._kept
        numbers = np.array([kept.drift, self._share, self.gram.wide], np.float64)
        return {"coef": kept.coef, "scores": kept.scores, "numbers": numbers}

    def recall(self, memory: dict[str, NDArray[Any]]) -> None:
        """Restore the state that `memory` returned, if K has entries of the same type now."""
        # (Files of older versions have one more number.)
        drift, self._share, *_, wide = memory["numbers"].tolist()
        if bool(wide) == self.gram.wide:  # scores of other entries have other errors
            kept = self._kept
            kept.coef, kept.scores, kept.drift = memory["coef"], memory["scores"], drift

    def _allowed(self, tol: float, point: PathPoint) -> float:
        """Return the gap at which ``point`` counts as solved to the relative gap ``tol``.

        If the kernel is not positive semidefinite: ``tol``, for the KKT violation.
        """
        return sufficient_gap(point.rounding, point.primal, tol) if self.gram.psd else tol

    def _norm_may_be_zero(self, dual: Dual, point: PathPoint) -> bool:
        """Whether the optimum w* of a nu-SVC is 0 as far as float32 entries can tell.

        ``point``: the best point so far. The optimal value -1/2 ||w*||^2 is then 0, and no relative
        gap can be reached.
        """
        if dual.coupling is None or point.primal < 0 or not self.gram.psd or np.any(dual.lin):
            return False
        reach = float(np.sum(dual.total)) * float(np.max(self.norms))
        return -point.dual <= 0.5 * self.tuning.zero_norm_fraction * reach**2

    def _should_try_newton(
        self, dual: Dual, alpha: FloatArray, live: NDArray[np.int64], steps: int, idle: bool
    ) -> bool:
        """Whether to take Newton steps after ``steps`` pair steps on the rows ``live``.

        ``alpha`` (n,): the present alpha; ``live``: numbers of the rows that may move; ``idle``:
        whether the last round of pair steps gained nothing.
        """
        if not self.quick:
            return self.gram.wide
        count = int(np.count_nonzero(is_free(dual[live], alpha[live])))
        return idle or steps * len(self.gram) >= self.tuning.newton_cost * count**3

    def _interior_alpha(
        self, dual: Dual, alpha: FloatArray, live: NDArray[np.int64], task: PointTask
    ) -> FloatArray:
        """Solve for the alpha of the live rows by the interior point method, the others fixed.

        ``live``: numbers of the rows that may move. Returns the alpha of all rows, float64 (n,).
        """
        part = restrict_dual(dual, alpha, live)
        found = alpha.copy()
        aim = self.tuning.target_fraction * task.tol
        found[live] = self._interior.alpha(part, live, aim, lambda: task.is_late)
        return found

    def _certified(self, dual: Dual, alpha: FloatArray) -> PathPoint:
        """Certify a feasible alpha (n,) over all rows, with scores updated from the last w."""
        self._kept.move(dual.sign * alpha)
        kept, gram = self._kept, self.gram
        slack = gram.slack(kept.scores, kept.coef, kept.drift)
        return PathPoint.proved(dual, alpha, Scores(kept.scores, slack), gram.psd)

    def _pair_steps(
        self, dual: Dual, alpha: FloatArray, live: NDArray[np.int64], aim: float
    ) -> tuple[FloatArray, int, float]:
        """Take pair steps on the live rows (that may move) down to a KKT violation of ``aim``.

        Returns the alpha of all rows, the number of steps, and the remaining violation.
        """
        square, order = self._submatrix(dual, live)
        part = dual[order]
        x, G = alpha[order], part.lin - part.sign * self._kept.scores[order]
        aim = max(aim, 4 * UNIT_ROUNDOFF * float(np.max(np.abs(G))))
        limits = Limits(aim, self.tuning.extra_pair_steps + len(order))
        steps, violation = smo(square, part, x, G, limits)
        found = alpha.copy()
        found[order] = x
        return found, steps, violation

    def _submatrix(self, dual: Dual, live: NDArray[np.int64]) -> tuple[Matrix, NDArray[np.int64]]:
        """Return the part of K that pair steps read, and its row numbers, sorted by group.

        ``live``: numbers of the rows that may move. Without groups, a quick stage reads the whole
        matrix.
        """
        order = live
        if dual.group is not None:
            order = live[np.argsort(dual.group[live], kind="stable")]
        elif self.quick or len(live) == len(self.gram):
            return self._whole, np.arange(len(self.gram))
        if self._order is None or not np.array_equal(order, self._order):
            if self._room is None:
                # (It takes no memory until rows are copied into it.)
                self._room = np.empty(len(self.gram) ** 2, self.gram.K.dtype)
            self._order, self._square = order, Matrix(self.gram.K, order, self._room)
        return self._square, order


def newton_steps(
    K: NDArray[Any],
    dual: Dual,
    point: PathPoint,
    live: NDArray[np.int64],
    max_free: int = GRAM.max_free_variables,
) -> FloatArray:
    """Take Newton steps on the free variables among the live rows, with all others fixed.

    Parameters
    ----------
    K : float64 or float32 (n, n)
    dual : Dual
        The dual of all rows.
    point : PathPoint
        The certified point to start from.
    live : int64 (rows,)
        Numbers of the rows that may move.
    max_free : int
        Do nothing if there are more free variables (strictly inside their box).

    Returns
    -------
    float64 (n,)
        A feasible alpha; the point's own array if nothing was done.
    """
    alpha, scores = point.alpha, point.scores.values
    rows = live[is_free(dual[live], alpha[live])]
    if not 0 < len(rows) <= max_free:
        return alpha
    part, own, u = dual[rows], np.asarray(K[np.ix_(rows, rows)], np.float64), scores[rows]
    G = part.lin - part.sign * u
    noise = 4 * UNIT_ROUNDOFF * float(np.max(np.abs(part.lin) + np.abs(u)))
    faces = Faces(own, part, alpha[rows], G, np.atleast_1d(point.mu), noise)
    with blas_threads(1):  # a second thread costs more than it saves
        faces.solve()
    found = alpha.copy()
    found[rows] = part.sign * faces.c + 0.0
    return found


def _remaining(point: PathPoint) -> float:
    """Return the gap of a point, or its KKT violation if the kernel has no gap."""
    return point.gap if point.violation is None else point.violation


class CachedScores:
    """The scores of the last w, updated by the rows of K whose coefficients change.

    Attributes
    ----------
    coef : float64 (n,)
        ``sign * alpha``. Never modified in place: points of the path keep it.
    scores : float64 (n,)
        ``K @ coef``. Never modified in place either.
    drift : float
        Bound on the rounding errors of the scores' sums, as a multiple of ``||phi_i||``.
    """

    def __init__(self, gram: FullGram) -> None:
        """Start at w = 0, whose scores are 0."""
        self.gram = gram
        self.coef, self.scores, self.drift = np.zeros(len(gram)), np.zeros(len(gram)), 0.0

    def move(self, coef: FloatArray) -> None:
        """Compute the scores ``K @ coef`` of a new w from the nearest multiple of the last w.

        Only rows whose coefficients differ from the multiple are added. Rounding errors of the
        scaling are not added, but counted in ``drift``.
        """
        factor, moved = find_multiple(self.coef, coef)
        scores, drift = factor * self.scores, abs(factor) * self.drift
        change = coef - factor * self.coef
        drift += self.gram.add(scores, moved, change[moved])
        change[moved] = 0.0
        if factor != 1.0 or change.any():
            drift += 2 * SCALING_TOL * float(np.abs(coef) @ self.gram.norms)
        self.coef, self.scores, self.drift = coef, scores, drift


def coupling_deficit(dual: Dual, alpha: FloatArray) -> Any:
    """Compute the coupling's totals minus the sums of alpha: a float, or float64 (groups,).

    It is 0 if alpha is feasible for the equality constraint.
    """
    assert dual.coupling is not None
    x = dual.coupling * alpha
    if dual.group is None:
        return dual.total - float(np.sum(x))
    return dual.total - np.bincount(dual.group, x, np.size(dual.total))


def restrict_dual(dual: Dual, alpha: FloatArray, rows: NDArray[np.int64]) -> Dual:
    """Return the dual problem of ``rows`` alone, with the alpha of all other rows fixed.

    A coupling's total is reduced by what the other rows contribute.
    """
    part = dual[rows]
    if dual.coupling is None:
        return part
    others = alpha.copy()
    others[rows] = 0.0
    return replace(part, total=coupling_deficit(dual, others))


def start_near_last(
    dual: Dual,
    alpha: FloatArray,
    live: NDArray[np.int64],
    coef: FloatArray,
    scores: Callable[[], FloatArray],
) -> FloatArray:
    """Choose a feasible start near the last point: ``alpha``, or one in which fewer rows change.

    In ``alpha`` the change of a coupling's total may be spread over all rows, and every row that
    changes costs a row of K. The start made here changes the last point's free rows instead. If
    ``alpha`` is farther from the last point, it was not made from that point, and is kept.

    Parameters
    ----------
    dual : Dual
        The dual of all rows.
    alpha : float64 (n,)
        A feasible start.
    live : int64 (rows,)
        Numbers of the rows that may move.
    coef : float64 (n,)
        ``sign * alpha`` of the last point.
    scores : callable
        Returns the scores (n,) of the last point; called only if they are needed.
    """
    if dual.coupling is None or not len(live):
        return alpha
    part, before = restrict_dual(dual, alpha, live), (dual.sign * coef)[live]
    near = np.clip(before, part.lo, part.hi)
    try:
        near = part.feasible(near, (near <= part.lo) | (near >= part.hi))
    except ValueError:
        near = fill_total(part, near, scores()[live])
    farther = float(np.sum(np.abs(alpha[live] - before)))
    if farther > (1 + 1e-6) * float(np.sum(np.abs(near - before))):
        return alpha
    start = alpha.copy()
    start[live] = near
    return start


def drop_screened(
    dual: Dual,
    point: PathPoint,
    live: NDArray[np.int64],
    norms: FloatArray,
    min_fraction: float,
) -> NDArray[np.int64]:
    """Return the live rows that the gap ball leaves undecided; the others keep their alpha.

    The gap is the gap of the problem with all other rows fixed, which has the same optimum.

    Parameters
    ----------
    dual : Dual
        The dual of all rows.
    point : PathPoint
        The certified point at the centre of the ball, whose radius is the square root of the gap.
    live : int64 (rows,)
        Numbers of the rows that may move.
    norms : float64 (n,)
        Upper bounds of ``||phi_i||``.
    min_fraction : float
        Return all live rows if less than this part of them is decided.
    """
    part, alpha = restrict_dual(dual, point.alpha, live), point.alpha[live]
    values, slack = point.scores
    assert isinstance(slack, np.ndarray)
    scores = values[live]
    gap = part.frank_wolfe_gap(alpha, scores, point.mu) + point.rounding
    lower, upper = Ball(float(np.sqrt(gap))).intervals(scores, norms[live], slack[live])
    mu: Any = (0.0, 0.0) if dual.coupling is None else part.multiplier_interval(lower, upper)
    stay = part.decisions_in_place(part.decide(lower, upper, mu), alpha) == FREE
    return live[stay] if np.count_nonzero(stay) <= (1 - min_fraction) * len(live) else live
