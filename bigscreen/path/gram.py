"""The stage of rows whose whole kernel matrix fits in memory: pair steps on it.

Every point is certified over all rows from scores in float64, kept up to date by the rows of K
whose alpha has moved: points of a path are close to each other, so few have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design
from bigscreen.fleet.blas import blas_threads
from bigscreen.numerics.multiples import SCALING_TOL, find_multiple
from bigscreen.numerics.rows import FloatArray
from bigscreen.path.gram_matrix import ENTRY_UNIT, FullGram, Progress
from bigscreen.path.interior import GramInterior
from bigscreen.path.stage import PathPoint, PointTask
from bigscreen.problems.dual import FREE, Dual
from bigscreen.problems.point import sufficient_gap
from bigscreen.problems.violation import libsvm_scale
from bigscreen.screening.bounds import fill_total
from bigscreen.screening.regions import Ball, Scores
from bigscreen.solvers.block.face import Faces
from bigscreen.solvers.block.working_set import is_free
from bigscreen.solvers.smo.loop import Limits, Matrix, smo


@dataclass(frozen=True)
class GramTuning:
    """Tuned values of the steps on a kernel matrix.

    Parameters
    ----------
    pair_steps : int
        Pair steps, besides one a row, after which a solve tries exact steps and screening.
    aim : float
        Part of the allowed gap that pair steps aim at.
    max_tries : int
        End after so many rounds in a row in which D gains nothing, or nothing that rounding could
        not hide: each aims ten times closer.
    late_checks, nothing : int, float
        After this many checks a nu-SVC may be left if ||w*||^2 is no larger a part of what its rows
        alone could make of it.
    min_gain : float
        Part of the gap that D has to gain in a round.
    max_free : int
        Take exact steps on at most this many free variables: they factor a matrix of that size.
    exact_cost : float
        What exact steps cost for the cube of the free variables, in rows that pair steps look at.
        (From 1/15 to never: the same time for paths of 3,000 rows of a9a and ijcnn1 up to C = 10.
        At C = 1e4 a9a ends at a gap of 9.7e-4 in .41 s, at 5e-2 in .53 s with 1/15.)
    """

    pair_steps: int = 500
    aim: float = 0.7
    max_tries: int = 8
    late_checks: int = 20
    nothing: float = 2.0**-24
    min_gain: float = 1e-6
    max_free: int = 2000
    exact_cost: float = 8.0


GRAM = GramTuning()


class GramStage:
    """Rows and their kernel matrix, and pair steps for every problem.

    Parameters
    ----------
    design : Design
        An exact kernel, or the rows themselves (those of a linear machine, stored features).
    constant : bool
        Whether a 1 is appended to every phi.
    budget : int
        Bytes for the matrix and copies of its rows: 16 n^2 for float64 entries, else 8 n^2 for
        float32 ones, whose rounding limits what is proved.
    quick : bool
        For gaps that float32 entries prove: those, and Newton steps only once pair steps have cost
        as much. No row is left out of a solve: that would cost a copy of the others.

    Raises
    ------
    InputError
        If it does not fit, or the design has landmarks.
    """

    def __init__(
        self,
        design: Design,
        constant: bool = False,
        budget: int = 1 << 30,
        progress: Progress | None = None,
        quick: bool = False,
    ) -> None:
        gram = FullGram(design, constant, budget, progress, quick)
        self._begin(gram, quick, GramInterior(gram, budget - 2 * gram.K.nbytes))

    def beside(self) -> GramStage:
        """A stage on the same matrix that has solved nothing yet, for another thread."""
        other = GramStage.__new__(GramStage)
        other._begin(self.gram, self.quick, self._interior)
        return other

    def _begin(self, gram: FullGram, quick: bool, interior: GramInterior) -> None:
        self.gram, self.quick, self._interior = gram, quick, interior
        self._kept = CachedScores(self.gram)
        self._whole = self._square = Matrix(self.gram.K)
        self._order: NDArray[np.int64] | None = None
        self._room: NDArray[Any] | None = None
        # What the last solve has taught: the gap as a part of violation times boxes.
        self._share = 0.25

    @property
    def norms(self) -> FloatArray:
        """Upper bounds of ``||phi_i||`` (n,), the constant's 1 included where there is one."""
        return self.gram.norms

    def solve(self, task: PointTask) -> PathPoint:
        """Solve to a relative gap, proved over all rows; see ``stage.Stage``.

        Where rounding keeps it from that, the best point is returned.
        """
        dual, alpha, live, tol = task.dual, task.alpha, task.live, task.tol
        counts = {"steps": 0, "newton": 0, "checks": 1, "screened": 0}
        counts["kernel_entries"], self.gram.entries = self.gram.entries, 0
        kept = self._kept
        alpha = near_last(dual, alpha, live, kept.coef, lambda: kept.scores)
        best = now = self._at(dual, alpha)
        sharper, still = 1.0, 0
        psd, since, tried = self.gram.psd, 0, False
        while _left(best) > self._enough(tol, best) and len(live) and still < GRAM.max_tries:
            if task.late or (counts["checks"] > GRAM.late_checks and self._nothing(dual, best)):
                break
            if since and psd and self._worth_newton(dual, now.alpha, live, since, still > 0):
                since = 0
                found = newton_steps(self.gram.K, dual, now, live)
                if found is not now.alpha:
                    counts["newton"] += 1
                    self._kept.move(dual.sign * found)
                alpha = found
            if not tried and self._interior.worth(counts["steps"], len(live)):
                tried, before = True, now
                now = self._at(dual, self._inside(dual, before.alpha, live, task))
                if _left(now) > _left(before):
                    now = self._at(dual, before.alpha)
                best, alpha = now if _left(now) < _left(best) else best, now.alpha
            box = self._share * float(np.sum(dual.hi[live] - dual.lo[live]))
            aim = sharper * GRAM.aim * self._enough(tol, now)
            aim /= max(box, 1e-300) if psd else libsvm_scale(dual)
            alpha, steps, violation = self._steps(dual, alpha, live, aim)
            before, now = now, self._at(dual, alpha)
            counts["steps"] += steps
            counts["checks"] += 1
            since += steps
            best = now if _left(now) < _left(best) else best
            if violation <= aim:
                # The gap is what was to be small: learn how the two go together.
                sharper *= 0.1
                if steps and violation > 0.0 and psd:
                    share = now.gap * self._share / (violation * box)
                    self._share = min(max(share, 1e-6), 1.0)
            rose = now.dual - before.dual > GRAM.min_gain * now.gap > GRAM.min_gain * now.rounding
            rose |= not psd and _left(now) < 0.9 * _left(before)
            still = 0 if rose else still + 1
            if task.dynamic and psd and not self.quick and best.gap > self._enough(tol, best):
                rows = len(live)
                live = screened(dual, now, live, self.norms)
                counts["screened"] += rows - len(live)
        best.counts.update(counts)
        return best

    def products(self, coef: FloatArray) -> Scores:
        """Scores of ``sum_j coef_j phi_j`` (see ``screening.regions.Products``)."""
        scores, rows = np.zeros(len(self.gram)), np.flatnonzero(coef)
        drift = self.gram.add(scores, rows, coef[rows])
        return Scores(scores, self.gram.slack(scores, coef, drift))

    def machine(self, dual: Dual, solved: PathPoint) -> dict[str, Any]:
        """``support`` rows, int64 ascending, their ``coef``, float64, and ``constant``.

        ``constant`` is the part of the offset that is penalised.
        """
        support = np.flatnonzero(solved.alpha)
        coef = (dual.sign * solved.alpha)[support]
        constant = float(coef.sum()) if self.gram.constant else 0.0
        return {"support": support, "coef": coef, "constant": constant}

    def memory(self) -> dict[str, NDArray[Any]]:
        """See ``stage.Stage``."""
        kept = self._kept
        numbers = np.array([kept.drift, self._share, self.gram.wide], np.float64)
        return {"coef": kept.coef, "scores": kept.scores, "numbers": numbers}

    def recall(self, memory: dict[str, NDArray[Any]]) -> None:
        """See ``stage.Stage``."""
        # (Folders of before have a number more.)
        drift, self._share, *_, wide = memory["numbers"].tolist()
        if bool(wide) == self.gram.wide:  # scores of other entries have other errors
            kept = self._kept
            kept.coef, kept.scores, kept.drift = memory["coef"], memory["scores"], drift

    def _enough(self, tol: float, point: PathPoint) -> float:
        return sufficient_gap(point.rounding, point.primal, tol) if self.gram.psd else tol

    def _nothing(self, dual: Dual, point: PathPoint) -> bool:
        """Whether a nu-SVC's w* is 0 as far as float32 entries could tell; P does not say so.

        The optimum is -1/2 ||w*||^2 then, of which no P above 0 is a part.
        """
        if dual.coupling is None or point.primal < 0 or not self.gram.psd or np.any(dual.lin):
            return False
        reach = float(np.sum(dual.total)) * float(np.max(self.norms))
        return -point.dual <= 0.5 * GRAM.nothing * reach**2

    def _worth_newton(
        self, dual: Dual, alpha: FloatArray, live: NDArray[np.int64], steps: int, still: bool
    ) -> bool:
        """Whether Newton steps are tried after this number of pair steps.

        ``still``: whether the last pair steps gained nothing.
        """
        if not self.quick:
            return self.gram.wide
        count = int(np.count_nonzero(is_free(dual[live], alpha[live])))
        return still or steps * len(self.gram) >= GRAM.exact_cost * count**3

    def _inside(
        self, dual: Dual, alpha: FloatArray, live: NDArray[np.int64], task: PointTask
    ) -> FloatArray:
        """Alpha of all rows by an interior point over these, others where they are."""
        part = left_to(dual, alpha, live)
        found = alpha.copy()
        found[live] = self._interior.alpha(part, live, GRAM.aim * task.tol, lambda: task.late)
        return found

    def _at(self, dual: Dual, alpha: FloatArray) -> PathPoint:
        self._kept.move(dual.sign * alpha)
        kept, gram = self._kept, self.gram
        slack = gram.slack(kept.scores, kept.coef, kept.drift)
        return PathPoint.proved(dual, alpha, Scores(kept.scores, slack), gram.psd)

    def _steps(
        self, dual: Dual, alpha: FloatArray, live: NDArray[np.int64], aim: float
    ) -> tuple[FloatArray, int, float]:
        """Pair steps on these rows: alpha of all, the number of steps and the violation left."""
        square, order = self._rows(dual, live)
        part = dual[order]
        x, G = alpha[order], part.lin - part.sign * self._kept.scores[order]
        aim = max(aim, 2 * ENTRY_UNIT * float(np.max(np.abs(G))))
        limits = Limits(aim, GRAM.pair_steps + len(order))
        steps, violation = smo(square, part, x, G, limits)
        found = alpha.copy()
        found[order] = x
        return found, steps, violation

    def _rows(self, dual: Dual, live: NDArray[np.int64]) -> tuple[Matrix, NDArray[np.int64]]:
        """The part of K that steps look at, rows of a group together."""
        order = live
        if dual.group is not None:
            order = live[np.argsort(dual.group[live], kind="stable")]
        elif self.quick or len(live) == len(self.gram):
            return self._whole, np.arange(len(self.gram))
        if self._order is None or not np.array_equal(order, self._order):
            if self._room is None:
                # Virtual memory until rows are copied into it.
                self._room = np.empty(len(self.gram) ** 2, self.gram.K.dtype)
            self._order, self._square = order, Matrix(self.gram.K, order, self._room)
        return self._square, order


def newton_steps(
    K: NDArray[Any], dual: Dual, point: PathPoint, live: NDArray[np.int64]
) -> FloatArray:
    """Alpha after exact steps on the free variables among the live rows, all others fixed.

    Parameters
    ----------
    K : float64 or float32 (n, n)
    dual : Dual
        Of all rows.
    point : PathPoint
    live : int64 (rows,)

    Returns
    -------
    float64 (n,)
        Feasible; the point's own array if no variable is free or too many are.
    """
    alpha, scores = point.alpha, point.scores.values
    rows = live[is_free(dual[live], alpha[live])]
    if not 0 < len(rows) <= GRAM.max_free:
        return alpha
    part, own, u = dual[rows], np.asarray(K[np.ix_(rows, rows)], np.float64), scores[rows]
    G = part.lin - part.sign * u
    noise = 2 * ENTRY_UNIT * float(np.max(np.abs(part.lin) + np.abs(u)))
    faces = Faces(own, part, alpha[rows], G, np.atleast_1d(point.mu), noise)
    with blas_threads(1):  # a second thread costs more than it saves
        faces.solve()
    found = alpha.copy()
    found[rows] = part.sign * faces.c + 0.0
    return found


def _left(point: PathPoint) -> float:
    """The gap of a point, or its KKT violation where there is none: what is left to do."""
    return point.gap if point.violation is None else point.violation


WORTH_COPYING = 0.1
"""Part of the rows that screening must remove: the smaller square has to be copied for it."""


class CachedScores:
    """The last w, as the coefficients of its rows, and its scores.

    Attributes
    ----------
    coef, scores : float64 (n,)
        ``s alpha``, and ``K @ coef``. Never written to: points of the path keep them.
    drift : float
        What rounding of sums can have done to a score, as a part of ``||phi_i||``.
    """

    def __init__(self, gram: FullGram) -> None:
        self.gram = gram
        self.coef, self.scores, self.drift = np.zeros(len(gram)), np.zeros(len(gram)), 0.0

    def move(self, coef: FloatArray) -> None:
        """Go on to another w: from the nearest multiple of this one, by the rows that differ.

        What scaling rounds away is no difference; it is reckoned in as drift.
        """
        factor, moved = find_multiple(self.coef, coef)
        scores, drift = factor * self.scores, abs(factor) * self.drift
        change = coef - factor * self.coef
        drift += self.gram.add(scores, moved, change[moved])
        change[moved] = 0.0
        if factor != 1.0 or change.any():
            drift += 2 * SCALING_TOL * float(np.abs(coef) @ self.gram.norms)
        self.coef, self.scores, self.drift = coef, scores, drift


def missing(dual: Dual, alpha: FloatArray) -> Any:
    """What alpha lacks of the coupling's totals: a float, or (groups,)."""
    assert dual.coupling is not None
    x = dual.coupling * alpha
    if dual.group is None:
        return dual.total - float(np.sum(x))
    return dual.total - np.bincount(dual.group, x, np.size(dual.total))


def left_to(dual: Dual, alpha: FloatArray, rows: NDArray[np.int64]) -> Dual:
    """The dual of these rows, with all others held where they are."""
    part = dual[rows]
    if dual.coupling is None:
        return part
    others = alpha.copy()
    others[rows] = 0.0
    return replace(part, total=missing(dual, others))


def near_last(
    dual: Dual,
    alpha: FloatArray,
    live: NDArray[np.int64],
    coef: FloatArray,
    scores: Callable[[], FloatArray],
) -> FloatArray:
    """A start near the last point: the alpha given, or one as near in which fewer rows move.

    What a coupling's total has changed by may be spread over all rows, those at 0 too, and every
    row that moves costs a row of K: here free rows take it. A start that is farther from the last
    point than this one was not made from it, and is left alone.

    Parameters
    ----------
    dual : Dual
        Of all rows.
    alpha : float64 (n,)
        Feasible.
    live : int64 (rows,)
        Rows that may move.
    coef : float64 (n,)
        ``s alpha`` of the last point.
    scores : callable
        Its scores (n,), where they are needed.
    """
    if dual.coupling is None or not len(live):
        return alpha
    part, before = left_to(dual, alpha, live), (dual.sign * coef)[live]
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


def screened(
    dual: Dual, point: PathPoint, live: NDArray[np.int64], norms: FloatArray
) -> NDArray[np.int64]:
    """The live rows that the gap ball leaves undecided; others stay where they are.

    The gap is that of the live rows: of the problem that has all others fixed, whose optimum is
    the same. All of them are returned where too few would go.
    """
    part, alpha = left_to(dual, point.alpha, live), point.alpha[live]
    values, slack = point.scores
    assert isinstance(slack, np.ndarray)
    scores = values[live]
    gap = part.frank_wolfe_gap(alpha, scores, point.mu) + point.rounding
    lower, upper = Ball(float(np.sqrt(gap))).intervals(scores, norms[live], slack[live])
    mu: Any = (0.0, 0.0) if dual.coupling is None else part.multiplier_interval(lower, upper)
    stay = part.decisions_in_place(part.decide(lower, upper, mu), alpha) == FREE
    return live[stay] if np.count_nonzero(stay) <= (1 - WORTH_COPYING) * len(live) else live
