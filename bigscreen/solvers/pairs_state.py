"""What pair steps move: alpha and the gradient of the rows alive, and what is known of the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.design import Design
from bigscreen.dual import AT_HI, AT_LO, AT_ZERO, FREE, Dual, FloatArray, Mu
from bigscreen.dual_rounding import sensitivity
from bigscreen.dual_sums import arrays, measure
from bigscreen.dual_violation import violation
from bigscreen.errors import InputError
from bigscreen.kernels import Linear
from bigscreen.kernels_base import FLOAT64, U32
from bigscreen.kernels_square import alike
from bigscreen.point import Point, relative
from bigscreen.problems import Problem
from bigscreen.screening.regions import Ball
from bigscreen.solvers.pairs_rows import KernelRows
from bigscreen.solvers.smo import flips, least_curvature

EXACT = 1e-13
"""Relative error of F, whose float64 sums have many terms."""

TOLD = 0.25
"""Part of the gap that the rounding of float32 entries may make up; then they become float64."""

PROBED = 32
"""Rows whose scores are computed in float64 to see how far rounding has moved them."""


class State:
    """alpha (n,) of all rows; in the variables of ``smo``, x and F of the rows alive.

    Attributes
    ----------
    alive : int64 (rows,)
        Numbers of the rows looked at; arrays beside it follow it.
    x, F, low, high : float64 (rows,)
    since : float64 (2, rows)
        x and F at the last check, once not all rows are alive.
    group, tube : arrays (rows,) or None
    side : int8 (n,)
        AT_HI, AT_LO, AT_ZERO for screened rows, FREE for all others.
    streak : int64 (n,)
        Checks running that a region has decided about a row at its bound.
    value : float
        D(alpha), which every step adds to.
    """

    def __init__(
        self,
        design: Design,
        problem: Problem,
        cache: int,
        whole: int,
        eps: float,
        start: FloatArray | None,
    ) -> None:
        data = design.data
        n = data.n_rows
        self.design, self.problem, self.eps = design, problem, eps
        self.dual: Dual = design.dual(problem)
        self.coupled = self.dual.coupling is not None
        self.constant = problem.intercept == "constant"
        kernel = Linear() if design.kernel is None else design.kernel
        self.rows = KernelRows(kernel, data.X(0, n), self.constant, cache, whole, design.square)
        if design.kernel is None:
            # What w is computed from later on in float64; float32 sums would differ from it.
            self.rows.refine()
        self.r = self.dual.sign if self.dual.coupling is None else self.dual.coupling
        self._measure()
        self.groups = range(np.size(self.dual.total))
        try:
            self.alpha = _first(self.dual) if start is None else self.dual.feasible(start)
        except ValueError as error:
            raise InputError(f"the problem has no solution: {error}") from error
        self.side, self.streak = np.full(n, FREE), np.zeros(n, np.int64)
        self.counts, self.false_removals = np.zeros(2, np.int64), 0
        self.steps = self.checks = 0
        self.value = 0.0
        self.violation = np.inf
        self.mu: Mu = 0.0
        self.fine_at = np.inf
        self.restored = False
        self._largest: float | None = None
        """The largest of F, as the last look at it found it."""
        # Rows whose box is the point 0 have no gap and no part in w.
        self.movable = np.flatnonzero((self.dual.hi > self.dual.lo) | (self.dual.lo != 0))
        if len(self.movable) < n:
            self.rows.look_at(self.movable)
        self._begin(self._scores_of(self.movable))

    def _measure(self) -> None:
        """||phi_i||, bounds on the errors of float32 entries, and which rows are equal."""
        rows, kernel = self.rows, self.rows.kernel
        if kernel.psd:
            self.norms = np.sqrt(rows.diag)
        else:
            self.norms = np.sqrt([kernel.bound(size, size) for size in rows.sqnorms])
        longest, d = float(np.max(rows.sqnorms)), rows.X.shape[1]
        relative = kernel.relative_error(rows.sqnorms, longest, d)
        errors = kernel.entry_error(rows.sqnorms, longest, d)
        if relative is not None:
            errors = np.minimum(errors, relative * self.norms * float(np.max(self.norms)))
        if self.constant:
            # Of entries that are given, the constant's 1 is what rounds them.
            errors = np.maximum(errors, U32 * (1.0 + self.norms * float(np.max(self.norms))))
        nothing = np.zeros(len(self.norms))
        self.errors = nothing + errors
        self.relative = nothing if relative is None else nothing + relative
        square = self.design.square
        self.alike = alike(rows.X) if square is None else square.alike

    @property
    def least(self) -> float:
        """See ``least_curvature``."""
        return float(least_curvature(self.diag))

    # -- the variables of the rows alive ---------------------------------------------------------
    def _begin(self, scores: FloatArray) -> None:
        """Look at all rows that can move, whose scores these are."""
        self.alive = self.movable
        self.bounds()
        self.x = self.own * self.alpha[self.alive]
        self.F = self.own * (self.part.lin - self.part.sign * scores)
        self.since = np.stack([self.x, self.F])

    def bounds(self) -> None:
        """What follows from who is alive: their part of the dual, box, diagonal, factors."""
        self.part = part = self._part_of(self.alive)
        self.parts = arrays(part)
        self.own = self.r[self.alive]
        self.low = np.where(self.own > 0, part.lo, -part.hi)
        self.high = np.where(self.own > 0, part.hi, -part.lo)
        self.diag = self.rows.diag[self.alive]
        self.flip = flips(self.own * part.sign)
        self.group, self.tube = part.group, part.tube
        fine = FLOAT64 if self.rows.dtype is np.float64 else 1.0
        self.rough = fine * self.relative[self.alive], fine * self.errors[self.alive]

    def _part_of(self, rows: NDArray[np.int64]) -> Dual:
        """The dual of the rows alive; the coupling asks of them what the others leave."""
        if len(rows) == len(self.dual):
            return self.dual
        part = self.dual[rows]
        if self.dual.coupling is None:
            return part
        others = np.ones(len(self.alpha), np.bool_)
        others[rows] = False
        theirs = self.r[others] * self.alpha[others]
        if self.dual.group is None:
            return replace(part, total=self.dual.total - float(np.sum(theirs)))
        sums: Any = np.bincount(self.dual.group[others], theirs, len(self.groups))
        return replace(part, total=self.dual.total - sums)

    def _scores_of(self, rows: NDArray[np.int64], dtype: type | None = None) -> FloatArray:
        support = np.flatnonzero(self.alpha)
        return self.rows.scores(rows, support, (self.dual.sign * self.alpha)[support], dtype)

    # -- what check is told ----------------------------------------------------------------------
    def point(self, target: float) -> Point:
        """The point with its Frank-Wolfe gap over the rows alive (screened rows have none).

        Entries become float64 once float32 begins to tell, unless ``target`` is met already and
        there is more to do.
        """
        self.alpha[self.alive] = self.own * self.x + 0.0
        some = len(self.alive) < len(self.movable)
        if some:
            # D is quadratic: what steps add to it follows from the gradients before and after.
            x, F = self.since
            self.value += 0.5 * float((self.x - x) @ (F + self.F))
        gap, doubt = self._look()
        met = self.design.definite and relative(gap, self.value + gap) <= target
        if not (met and self.violation > self.tolerated) and self._coarse(gap, doubt):
            self._refine()
            gap, doubt = self._look()
        if some:
            self.since = np.stack([self.x, self.F])
        if self.constant:
            offset = float(self.dual.sign @ self.alpha)
        else:
            offset = self.problem.offset(self.mu)
        w = self._weights() if self.design.kernel is None else np.empty(0)
        return Point(
            w,
            w,
            offset,
            self.value + gap,
            self.value,
            paired=True,
            alpha=self.alpha.copy(),
            rounding=doubt,
            multiplier=tuple(np.atleast_1d(self.mu).tolist()) if self.coupled else (),
            violation=np.nan if self.design.definite else self._violation(),
        )

    def _look(self) -> tuple[float, float]:
        """Scores, the best multiplier for them, the gap and what rounding of scores can have moved
        it by; D itself while all rows are alive."""
        parts, alpha = self.parts, self.alpha[self.alive]
        self._largest = None
        self.scores = np.empty(len(alpha))
        errors = *self.rough, self._spread()
        value, mu, gap, doubt = measure(
            self.part, parts, alpha, self.F, self.own, errors, self.scores
        )
        if len(self.alive) == len(self.movable):
            self.value = value
        self.mu = mu if self.part.group is not None else float(mu.sum())
        return gap, doubt

    def _refine(self) -> None:
        """Entries in float64 from here on, and the gradient of them."""
        self.rows.refine()
        self.bounds()
        self.violation = np.inf  # that of the entries before says nothing now
        part = self.part
        self.F = self.own * (part.lin - part.sign * self._scores_of(self.alive))

    def _violation(self) -> float:
        return violation(self.part, self.alpha[self.alive], self.scores)

    def _coarse(self, gap: float, doubt: float) -> bool:
        """Whether float32 entries begin to tell in the gap, or in the violation where that is all
        there is."""
        if self.rows.dtype is np.float64:
            return False
        if not self.design.definite:
            slack = self._slack(self.alive, self.scores)
            return float(np.max(slack, initial=0.0)) > TOLD * self._violation()
        if gap > 0.5 * self.fine_at or doubt <= TOLD * gap:
            return False
        # The bound is that of the worst pair of rows: see what the error of some scores really is.
        self.fine_at = gap
        some = np.linspace(0, len(self.alive) - 1, PROBED).astype(np.int64)
        exact = self._scores_of(self.alive[some], np.float64)
        error = float(np.sqrt(np.mean((self.scores[some] - exact) ** 2)))
        gradient = self.part.gradient(self.scores, self.mu)
        room = sensitivity(self.part, self.alpha[self.alive], gradient, 3 * error)
        return float(np.sum(room)) * error > TOLD * gap

    def _spread(self) -> float:
        """Independent errors of entries add up to their bound times this.

        The errors of a row's entries are taken as independent, but for what they have in common,
        which moves the score as a whole, and for equal rows, whose entries err alike.
        """
        if self.alike is None:
            return float(np.sqrt(self.alpha @ self.alpha))
        together = np.bincount(self.alike, self.dual.sign * self.alpha)
        apart = np.bincount(self.alike, self.alpha**2)
        return float(np.sqrt(np.sum(np.maximum(together**2, apart))))

    def _slack(self, rows: NDArray[np.int64], scores: FloatArray) -> FloatArray:
        """Bounds on the errors of these scores of these rows (MATH sec. 4)."""
        error = self.relative[rows] * np.abs(scores) + self.errors[rows] * self._spread()
        return error * (FLOAT64 if self.rows.dtype is np.float64 else 1.0)

    def _weights(self) -> FloatArray:
        """w of explicit features, in float64."""
        support = np.flatnonzero(self.alpha)
        coef = (self.dual.sign * self.alpha)[support]
        return np.asarray(coef @ self.rows.X[support])

    @property
    def tolerated(self) -> float:
        """The violation at which nothing is left to do: what float64 cannot tell from none."""
        if self._largest is None:
            self._largest = float(np.max(np.abs(self.F), initial=0.0))
        return max(self.eps, EXACT * max(1.0, self._largest))

    def stats(self) -> dict[str, Any]:
        """What the last steps and the last screening did."""
        high, low = self.counts.tolist()
        return {
            "rows_visited": len(self.alive),
            "rows_alive": len(self.alive),
            "fixed_hi": high,
            "fixed_lo": low,
            "steps": self.steps,
            "kernel_entries": self.rows.entries,
            "false_removals": self.false_removals,
            "stalled": self.violation <= self.tolerated,
        }

    # -- screening -------------------------------------------------------------------------------
    def screen(self, region: Ball) -> None:
        """Drop rows that are, and by the region stay, at a bound (or in a tube, at 0)."""
        part, alpha = self.part, self.alpha[self.alive]
        slack = self._slack(self.alive, self.scores)
        lower, upper = region.intervals(self.scores, self.norms[self.alive], slack)
        decided = part.decide(lower, upper, self._multipliers(lower, upper))
        decided[alpha != part.settled(decided, alpha)] = FREE
        streak = np.where(decided == FREE, 0, self.streak[self.alive] + 1)
        self.streak[self.alive] = streak
        drop = (decided != FREE) & (streak >= region.patience)
        low = (decided == AT_LO) | (decided == AT_ZERO)  # a row in its tube counts as one at lo
        self.counts = np.array([np.sum(drop & (decided == AT_HI)), np.sum(drop & low)])
        if drop.any():
            self.side[self.alive[drop]] = decided[drop]
            self._keep(~drop)

    def _keep(self, keep: NDArray[np.bool_]) -> None:
        self.alive = self.alive[keep]
        self.x, self.F = self.x[keep], self.F[keep]
        self.since = np.stack([self.x, self.F])
        self.bounds()
        self.rows.look_at(self.alive)

    def _multipliers(self, lower: FloatArray, upper: FloatArray) -> tuple[Mu, Mu]:
        """An interval that holds the optimal multiplier: that of the rows alive."""
        return self.part.multiplier_interval(lower, upper) if self.coupled else (0.0, 0.0)

    def take_back(self) -> None:
        """Free every row again, scores computed anew; count those that had been wrongly out."""
        out = self.side != FREE
        self.counts = np.zeros(2, np.int64)
        self.streak[:] = 0
        scores = np.empty(len(self.alpha))
        scores[self.alive] = self.scores
        gone = np.flatnonzero(out)
        if len(gone):
            self.rows.look_at(self.movable)
        scores[gone] = self._scores_of(gone)
        held = self._held(gone, scores[gone])
        room = np.maximum(self._slack(gone, scores[gone]), self.tolerated)
        self.false_removals += int(np.sum(held < -room))
        self.side[:] = FREE
        self._begin(scores[self.movable])

    def _held(self, rows: NDArray[np.int64], scores: FloatArray) -> FloatArray:
        """How firmly its gradient holds a screened row where it is; negative: it should not be."""
        part, side = self.dual[rows], self.side[rows]
        gradient = part.gradient(scores, self.mu)
        tube: Any = 0.0 if part.tube is None else part.tube
        inside = tube - np.abs(gradient)
        return np.select(
            [side == AT_HI, side == AT_LO], [gradient - tube, -gradient - tube], inside
        )


def _first(dual: Dual) -> FloatArray:
    """Where to start: the feasible alpha with the fewest rows that are not 0.

    As LIBSVM does it, row after row to its bound until the coupling has its total: every row that
    is not 0 costs a row of the kernel matrix.
    """
    alpha = np.clip(np.zeros(len(dual)), dual.lo, dual.hi)
    if dual.coupling is None or not (np.any(dual.total) or alpha.any()):
        return alpha
    t = dual.coupling
    x, most = t * alpha, np.maximum(t * dual.lo, t * dual.hi)
    for g, total in enumerate(np.atleast_1d(np.asarray(dual.total, dtype=np.float64))):
        own = np.arange(len(x)) if dual.group is None else np.flatnonzero(dual.group == g)
        filled = np.cumsum(most[own] - x[own])
        left = float(total) - float(np.sum(x[own]))
        last = int(np.searchsorted(filled, left))
        x[own[:last]] = most[own[:last]]
        if left > 0 and last < len(own):
            k = own[last]
            x[k] = min(x[k] + float(total) - float(np.sum(x[own])), most[k])
    # Totals below the sum, and those that no alpha has.
    return dual.feasible(np.clip(t * x, dual.lo, dual.hi))
