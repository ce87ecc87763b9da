"""Where SMO stands: alpha of all rows, the variables of those alive, what screening has taken."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.files.checkpoint import save_alone
from bigscreen.kernels.square import alike, total_spread
from bigscreen.kernels.standard import Linear
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import AT_HI, AT_LO, AT_ZERO, FREE, Dual, Mu, sensitivity
from bigscreen.problems.dual_sums import Arrays, arrays, measure
from bigscreen.problems.point import Point, relative
from bigscreen.problems.recipes import Problem
from bigscreen.problems.violation import violation
from bigscreen.screening.regions import Ball
from bigscreen.solvers.smo.kernel_rows import KernelRows
from bigscreen.solvers.smo.loop import (
    Singles,
    Variables,
    flips,
)

PLACE = "pairs"
"""Where in the folder of a problem the checkpoints are."""

ARRAYS = ("alpha", "alive", "x", "F", "since")
SCREENED_ARRAYS = ("side", "streak", "counts")
TALLIES = ("value", "fine_at", "steps", "checks", "violation")

EXACT = 1e-13
"""Relative error of F, whose float64 sums have many terms."""

ROUNDING_PART = 0.25
"""Part of the gap that the rounding of float32 entries may make up; then they become float64."""

PROBED = 32
"""Rows whose scores are computed in float64 to see how far rounding has moved them."""


class AliveRows(NamedTuple):
    """The rows looked at, and what follows from which they are; arrays (rows,).

    ``rows``: their numbers. ``dual``: their part of it, the coupling asking what the others leave;
    ``arrays``: the same for compiled sums. ``own``: what alpha is multiplied with for x, which lies
    between ``low`` and ``high``. ``flip``: see `flips`. ``rough``: bounds on the relative and the
    absolute error of entries.
    """

    rows: NDArray[np.int64]
    dual: Dual
    arrays: Arrays
    own: FloatArray
    low: FloatArray
    high: FloatArray
    diag: FloatArray
    flip: Singles | None
    rough: tuple[FloatArray, FloatArray]


@dataclass
class ScreenedRows:
    """What screening has taken, of all rows (n,).

    ``side``: int8, AT_HI, AT_LO, AT_ZERO for screened rows, FREE for all others. ``streak``: checks
    running that a region has decided about a row at its bound. ``counts``: rows that the last
    region fixed at the upper and the lower end; ``false_removals``: all that came back wrongly out.
    """

    side: NDArray[np.int8]
    streak: NDArray[np.int64]
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))
    false_removals: int = 0


class Look(NamedTuple):
    """What the last look at the rows alive found: scores, multiplier, and the largest of F."""

    scores: FloatArray
    mu: Mu
    largest: float


class SmoState:
    """alpha (n,) of all rows; in the variables of ``smo``, x and F of the rows alive.

    Attributes
    ----------
    rows : KernelRows
    part : AliveRows
    x, F : float64 (rows alive,)
    since : float64 (2, rows alive)
        x and F at the last check, once not all rows are alive.
    value : float
        D(alpha), which every step adds to.
    steps, left : int
        Steps taken, and how many there are to the next check; 0 at a check.
    fine_at : float
        The gap at which the true error of float32 scores was seen last.
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
        self.dual = design.dual(problem)
        kernel = Linear() if design.kernel is None else design.kernel
        self.rows = KernelRows(kernel, data.X(0, n), self.constant, cache, whole, design.square)
        if design.kernel is None:
            # What w is computed from later on in float64; float32 sums would differ from it.
            self.rows.refine()
        self.alike = alike(self.rows.X) if design.square is None else design.square.alike
        try:
            self.alpha = _first(self.dual) if start is None else self.dual.feasible(start)
        except ValueError as error:
            raise InputError(f"the problem has no solution: {error}") from error
        self.screened = ScreenedRows(np.full(n, FREE), np.zeros(n, np.int64))
        self.steps = self.left = self.checks = 0
        self.value = 0.0
        self.violation = self.fine_at = np.inf
        # Rows whose box is the point 0 have no gap and no part in w.
        self.movable = np.flatnonzero((self.dual.hi > self.dual.lo) | (self.dual.lo != 0))
        if len(self.movable) < n:
            self.rows.look_at(self.movable)
        self._begin(self._scores_of(self.movable))
        self.seen = Look(np.empty(0), 0.0, float(np.max(np.abs(self.F), initial=0.0)))

    @property
    def coupled(self) -> bool:
        return self.dual.coupling is not None

    @property
    def constant(self) -> bool:
        """Whether a 1 is appended to every phi."""
        return self.problem.intercept == "constant"

    @property
    def groups(self) -> range:
        return range(np.size(self.dual.total))

    @property
    def alive(self) -> NDArray[np.int64]:
        """Numbers of the rows looked at."""
        return self.part.rows

    @property
    def factor(self) -> FloatArray:
        """What alpha is multiplied with for x (n,)."""
        return self.dual.sign if self.dual.coupling is None else self.dual.coupling

    # -- the variables of the rows alive ---------------------------------------------------------
    def _begin(self, scores: FloatArray) -> None:
        """Look at all rows that can move, whose scores these are."""
        self.part = self._rows_at(self.movable)
        self.x = self.part.own * self.alpha[self.alive]
        self.F = self._upward(scores)
        self.since = np.stack([self.x, self.F])

    def variables(self) -> Variables:
        """What steps move."""
        return Variables.of(self.part.low, self.part.high, self.x, self.F, self.part.dual.tube)

    def _upward(self, scores: FloatArray) -> FloatArray:
        """F of the rows alive, from their scores."""
        dual = self.part.dual
        return self.part.own * (dual.lin - dual.sign * scores)

    def _rows_at(self, rows: NDArray[np.int64]) -> AliveRows:
        """These rows as those that are looked at."""
        dual, own = self._part_of(rows), self.factor[rows]
        low = np.where(own > 0, dual.lo, -dual.hi)
        high = np.where(own > 0, dual.hi, -dual.lo)
        errors = self.rows.errors
        rough = errors.relative[rows], errors.absolute[rows]
        diag, flip = self.rows.diag[rows], flips(own * dual.sign)
        return AliveRows(rows, dual, arrays(dual), own, low, high, diag, flip, rough)

    def _part_of(self, rows: NDArray[np.int64]) -> Dual:
        """The dual of the rows alive; the coupling asks of them what the others leave."""
        if len(rows) == len(self.dual):
            return self.dual
        part = self.dual[rows]
        if self.dual.coupling is None:
            return part
        others = np.ones(len(self.alpha), np.bool_)
        others[rows] = False
        theirs = self.factor[others] * self.alpha[others]
        if self.dual.group is None:
            return replace(part, total=self.dual.total - float(np.sum(theirs)))
        sums: Any = np.bincount(self.dual.group[others], theirs, len(self.groups))
        return replace(part, total=self.dual.total - sums)

    def _scores_of(self, rows: NDArray[np.int64], dtype: type | None = None) -> FloatArray:
        support = np.flatnonzero(self.alpha)
        return self.rows.scores(rows, support, (self.dual.sign * self.alpha)[support], dtype)

    def done(self, steps: int) -> None:
        """Count steps."""
        self.steps += steps
        self.left -= steps

    # -- what check is handed --------------------------------------------------------------------
    def point(self, target: float) -> Point:
        """The point with its Frank-Wolfe gap over the rows alive (screened rows have none).

        Entries become float64 once float32 begins to tell, unless ``target`` is met already and
        there is more to do.
        """
        self.alpha[self.alive] = self.part.own * self.x + 0.0
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
            offset = self.problem.offset(self.seen.mu)
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
            multiplier=tuple(np.atleast_1d(self.seen.mu).tolist()) if self.coupled else (),
            violation=np.nan if self.design.definite else self._violation(),
        )

    def _look(self) -> tuple[float, float]:
        """Scores, the best multiplier for them, the gap and what rounding of scores can do to it.

        D itself too, while all rows are alive.
        """
        part, alpha = self.part, self.alpha[self.alive]
        scores = np.empty(len(alpha))
        errors = *part.rough, self._spread()
        value, mu, gap, doubt = measure(
            part.dual, part.arrays, alpha, self.F, part.own, errors, scores
        )
        if len(self.alive) == len(self.movable):
            self.value = value
        grouped = part.dual.group is not None
        largest = float(np.max(np.abs(self.F), initial=0.0))
        self.seen = Look(scores, mu if grouped else float(mu.sum()), largest)
        return gap, doubt

    def _refine(self) -> None:
        """Entries in float64 from here on, and the gradient of them."""
        self.rows.refine()
        self.part = self._rows_at(self.alive)
        self.violation = np.inf  # that of the entries before says nothing now
        self.F = self._upward(self._scores_of(self.alive))

    def _violation(self) -> float:
        return violation(self.part.dual, self.alpha[self.alive], self.seen.scores)

    def _coarse(self, gap: float, doubt: float) -> bool:
        """Whether float32 entries begin to tell in the gap (the violation, where that is all)."""
        if self.rows.dtype is np.float64:
            return False
        if not self.design.definite:
            slack = self._slack(self.alive, self.seen.scores)
            return float(np.max(slack, initial=0.0)) > ROUNDING_PART * self._violation()
        if gap > 0.5 * self.fine_at or doubt <= ROUNDING_PART * gap:
            return False
        # The bound is that of the worst pair of rows: see what the error of some scores really is.
        self.fine_at = gap
        some = np.linspace(0, len(self.alive) - 1, PROBED).astype(np.int64)
        exact = self._scores_of(self.alive[some], np.float64)
        error = float(np.sqrt(np.mean((self.seen.scores[some] - exact) ** 2)))
        dual = self.part.dual
        gradient = dual.gradient(self.seen.scores, self.seen.mu)
        room = sensitivity(dual, self.alpha[self.alive], gradient, 3 * error)
        return float(np.sum(room)) * error > ROUNDING_PART * gap

    def _spread(self) -> float:
        return total_spread(self.dual.sign * self.alpha, self.alike)

    def _slack(self, rows: NDArray[np.int64], scores: FloatArray) -> FloatArray:
        """Bounds on the errors of these scores of these rows (maths.md 4)."""
        return self.rows.errors.of_scores(scores, self._spread(), rows)

    def _weights(self) -> FloatArray:
        """w of explicit features, in float64."""
        support = np.flatnonzero(self.alpha)
        coef = (self.dual.sign * self.alpha)[support]
        return np.asarray(coef @ self.rows.X[support])

    @property
    def tolerated(self) -> float:
        """The violation at which nothing is left to do: what float64 cannot tell from none."""
        return max(self.eps, EXACT * max(1.0, self.seen.largest))

    def stats(self) -> dict[str, Any]:
        """What the last steps and the last screening did."""
        high, low = self.screened.counts.tolist()
        return {
            "rows_visited": len(self.alive),
            "rows_alive": len(self.alive),
            "fixed_hi": high,
            "fixed_lo": low,
            "steps": self.steps,
            "kernel_entries": self.rows.entries,
            "false_removals": self.screened.false_removals,
            "stalled": self.violation <= self.tolerated,
        }

    # -- screening -------------------------------------------------------------------------------
    def screen(self, region: Ball) -> None:
        """Drop rows that are, and by the region stay, at a bound (or in a tube, at 0)."""
        dual, alpha, taken = self.part.dual, self.alpha[self.alive], self.screened
        scores = self.seen.scores
        slack = self._slack(self.alive, scores)
        lower, upper = region.intervals(scores, self.rows.errors.norms[self.alive], slack)
        decided = dual.decide(lower, upper, self._multipliers(lower, upper))
        decided = dual.arrived(decided, alpha)
        streak = np.where(decided == FREE, 0, taken.streak[self.alive] + 1)
        taken.streak[self.alive] = streak
        drop = (decided != FREE) & (streak >= region.patience)
        low = (decided == AT_LO) | (decided == AT_ZERO)  # a row in its tube counts as one at lo
        taken.counts = np.array([np.sum(drop & (decided == AT_HI)), np.sum(drop & low)])
        if drop.any():
            taken.side[self.alive[drop]] = decided[drop]
            self._keep(~drop)

    def _keep(self, keep: NDArray[np.bool_]) -> None:
        self.x, self.F = self.x[keep], self.F[keep]
        self.since = np.stack([self.x, self.F])
        self.part = self._rows_at(self.alive[keep])
        self.rows.look_at(self.alive)

    def _multipliers(self, lower: FloatArray, upper: FloatArray) -> tuple[Mu, Mu]:
        """An interval that holds the optimal multiplier: that of the rows alive."""
        return self.part.dual.multiplier_interval(lower, upper) if self.coupled else (0.0, 0.0)

    def take_back(self) -> None:
        """Free every row again, scores computed anew; count those that had been wrongly out."""
        taken = self.screened
        gone = np.flatnonzero(taken.side != FREE)
        taken.counts = np.zeros(2, np.int64)
        taken.streak[:] = 0
        scores = np.empty(len(self.alpha))
        scores[self.alive] = self.seen.scores
        if len(gone):
            self.rows.look_at(self.movable)
        scores[gone] = self._scores_of(gone)
        held = self._held(gone, scores[gone])
        room = np.maximum(self._slack(gone, scores[gone]), self.tolerated)
        taken.false_removals += int(np.sum(held < -room))
        taken.side[:] = FREE
        self._begin(scores[self.movable])

    def _held(self, rows: NDArray[np.int64], scores: FloatArray) -> FloatArray:
        """How firmly its gradient holds a screened row where it is; negative: it should not be."""
        part, side = self.dual[rows], self.screened.side[rows]
        gradient = part.gradient(scores, self.seen.mu)
        tube: Any = 0.0 if part.tube is None else part.tube
        inside = tube - np.abs(gradient)
        return np.select(
            [side == AT_HI, side == AT_LO], [gradient - tube, -gradient - tube], inside
        )

    # -- checkpoints -----------------------------------------------------------------------------
    def save(self, folder: Path, meta: dict[str, Any]) -> None:
        """Write a checkpoint, whole or not at all; kernel rows are computed again."""
        record = {name: getattr(self, name) for name in TALLIES}
        record["false_removals"] = self.screened.false_removals
        record |= {"left": self.left, "largest": self.seen.largest}
        record |= {"entries": self.rows.entries, "wide": self.rows.dtype is np.float64}
        arrays = {name: getattr(self, name) for name in ARRAYS}
        arrays |= {name: getattr(self.screened, name) for name in SCREENED_ARRAYS}
        save_alone(folder / PLACE, {**meta, "pairs": record}, arrays)

    def restore(self, meta: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Go on from what ``save`` wrote; ``meta`` is then what it was given."""
        record = meta.pop("pairs")
        for name in TALLIES:
            setattr(self, name, record[name])
        self.left = record.get("left", 0)
        self.seen = self.seen._replace(largest=record.get("largest", self.seen.largest))
        self.alpha, self.x, self.F = arrays["alpha"], arrays["x"], arrays["F"]
        self.since = arrays["since"]
        screened = {name: arrays[name] for name in SCREENED_ARRAYS}
        self.screened = ScreenedRows(**screened, false_removals=record["false_removals"])
        self.rows.computed = record["entries"]
        if record["wide"]:
            self.rows.refine()
        self.part = self._rows_at(arrays["alive"])
        if len(self.alive) < len(self.rows.alive):
            self.rows.look_at(self.alive)


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
