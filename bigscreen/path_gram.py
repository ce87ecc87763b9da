"""The stage of rows whose whole kernel matrix fits in memory: pair steps on it.

Every point is certified over all rows from scores in float64, kept up to date by the rows of K
whose alpha has moved: points of a path are close to each other, so few have.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.design import Design
from bigscreen.dual import FREE, Dual, FloatArray
from bigscreen.dual_violation import unit
from bigscreen.path_gram_face import face_steps
from bigscreen.path_gram_matrix import EPS, Gram, Progress
from bigscreen.path_gram_point import Kept, certified, near_last, screened
from bigscreen.path_stage import Solved
from bigscreen.point import enough
from bigscreen.screening.past import Scores
from bigscreen.solvers.smo import Matrix, smo

STEPS = 500
"""Pair steps, besides one a row, after which a solve tries Newton steps and screening."""

AIM = 0.7
"""Part of the gap allowed that pair steps aim at."""

TRIES = 8
"""Times running that a solve gains nothing, or nothing that rounding could not hide, until it ends:
each with an aim ten times closer."""

SLOWEST = 1e-6
"""Part of the gap that D has to gain in a round."""


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

    Attributes
    ----------
    floor : float
        A gap that is small enough whatever P is [0]: with a small nu the optimum may be 0, or so
        near to it that a part of it is out of reach.

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
    ) -> None:
        self.gram = Gram(design, constant, budget, progress)
        self.floor = 0.0
        self._kept = Kept(self.gram)
        self._whole = self._square = Matrix(self.gram.K)
        self._order: NDArray[np.int64] | None = None
        self._room: NDArray[Any] | None = None
        # What the last solve has taught: the gap as a part of violation times boxes, and whether
        # pair steps alone were slow.
        self._share, self._slow = 0.25, False

    @property
    def norms(self) -> FloatArray:
        """Upper bounds of ``||phi_i||`` (n,), the constant's 1 included where there is one."""
        return self.gram.norms

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

        Where rounding keeps it from that, the best point is returned.
        """
        live = np.flatnonzero((decided == FREE) & (dual.hi > dual.lo))
        counts = {"steps": 0, "newton": 0, "checks": 1, "screened": 0}
        counts["kernel_entries"], self.gram.entries = self.gram.entries, 0
        kept = self._kept
        alpha = near_last(dual, alpha, live, kept.coef, lambda: kept.scores)
        best = now = self._at(dual, alpha)
        newton, sharper, still = self._slow, 1.0, 0
        psd = self.gram.psd
        while _left(best) > self._enough(tol, best) and len(live) and still < TRIES:
            if deadline is not None and time.monotonic() > deadline:
                break
            if newton and self.gram.wide and psd:
                found = face_steps(self.gram.K, dual, now.alpha, now.scores.values, live)
                if found is not now.alpha:
                    counts["newton"] += 1
                    self._kept.move(dual.sign * found)
                alpha = found
            box = self._share * float(np.sum(dual.hi[live] - dual.lo[live]))
            aim = sharper * AIM * self._enough(tol, now)
            aim /= max(box, 1e-300) if psd else unit(dual)
            alpha, steps, violation = self._steps(dual, alpha, live, aim)
            before, now = now, self._at(dual, alpha)
            counts["steps"] += steps
            counts["checks"] += 1
            best = now if _left(now) < _left(best) else best
            if violation <= aim:
                # The gap is what was to be small: learn how the two go together.
                sharper *= 0.1
                if steps and violation > 0.0 and psd:
                    share = now.gap * self._share / (violation * box)
                    self._share = min(max(share, 1e-6), 1.0)
            rose = now.dual - before.dual > SLOWEST * now.gap > SLOWEST * now.rounding
            rose |= not psd and _left(now) < 0.9 * _left(before)
            still = 0 if rose else still + 1
            newton = True
            if dynamic and psd and best.gap > self._enough(tol, best):
                rows = len(live)
                live = screened(dual, now, live, self.norms)
                counts["screened"] += rows - len(live)
        self._slow = counts["newton"] > int(self._slow)
        best.counts.update(counts)
        return best

    def products(self, coef: FloatArray) -> Scores:
        """Scores of ``sum_j coef_j phi_j`` (see ``screening.past.Products``)."""
        scores, rows = np.zeros(len(self.gram)), np.flatnonzero(coef)
        drift = self.gram.add(scores, rows, coef[rows])
        return Scores(scores, self.gram.slack(scores, coef, drift))

    def machine(self, dual: Dual, solved: Solved) -> dict[str, Any]:
        """``support`` rows, int64 ascending, their ``coef``, float64, and ``constant``, the part
        of the offset that is penalised."""
        support = np.flatnonzero(solved.alpha)
        coef = (dual.sign * solved.alpha)[support]
        constant = float(coef.sum()) if self.gram.constant else 0.0
        return {"support": support, "coef": coef, "constant": constant}

    def memory(self) -> dict[str, NDArray[Any]]:
        """See ``path_stage.Stage``."""
        kept = self._kept
        numbers = np.array([kept.drift, self._share, self._slow, self.gram.wide], np.float64)
        return {"coef": kept.coef, "scores": kept.scores, "numbers": numbers}

    def recall(self, memory: dict[str, NDArray[Any]]) -> None:
        """See ``path_stage.Stage``."""
        drift, self._share, slow, wide = memory["numbers"].tolist()
        self._slow = bool(slow)
        if bool(wide) == self.gram.wide:  # scores of other entries have other errors
            kept = self._kept
            kept.coef, kept.scores, kept.drift = memory["coef"], memory["scores"], drift

    def _enough(self, tol: float, point: Solved) -> float:
        if not self.gram.psd:
            return tol
        return max(enough(point.rounding, point.primal, tol), self.floor)

    def _at(self, dual: Dual, alpha: FloatArray) -> Solved:
        self._kept.move(dual.sign * alpha)
        return certified(dual, alpha, self._kept)

    def _steps(
        self, dual: Dual, alpha: FloatArray, live: NDArray[np.int64], aim: float
    ) -> tuple[FloatArray, int, float]:
        """Pair steps on these rows: alpha of all, the number of steps and the violation left."""
        square, order = self._rows(dual, live)
        part = dual[order]
        t = np.zeros(len(order)) if part.coupling is None else part.coupling
        sign, lo, hi = (np.ascontiguousarray(each) for each in (part.sign, part.lo, part.hi))
        x, G = alpha[order], part.lin - part.sign * self._kept.scores[order]
        aim = max(aim, 2 * EPS * float(np.max(np.abs(G))))
        how: dict[str, Any] = {"group": part.group, "tube": part.tube}
        steps, violation = smo(square, sign, t, lo, hi, x, G, aim, STEPS + len(order), **how)
        found = alpha.copy()
        found[order] = x
        return found, steps, violation

    def _rows(self, dual: Dual, live: NDArray[np.int64]) -> tuple[Matrix, NDArray[np.int64]]:
        """The part of K that steps look at, rows of a group together."""
        order = live
        if dual.group is not None:
            order = live[np.argsort(dual.group[live], kind="stable")]
        elif len(live) == len(self.gram):
            return self._whole, live
        if self._order is None or not np.array_equal(order, self._order):
            if self._room is None:
                # Virtual memory until rows are copied into it.
                self._room = np.empty(len(self.gram) ** 2, self.gram.K.dtype)
            self._order, self._square = order, Matrix(self.gram.K, order, self._room)
        return self._square, order


def _left(point: Solved) -> float:
    """How much is left to do: the gap, or the KKT violation where there is none."""
    return point.gap if point.violation is None else point.violation
