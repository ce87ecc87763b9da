"""The state of the SMO solver: alpha of all rows, the variables of steps, and screened rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.files.checkpoint import save_alone
from bigscreen.kernels.square import error_spread, number_equal_rows
from bigscreen.kernels.standard import Linear
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import AT_HI, AT_LO, AT_ZERO, FREE, Dual, Mu, sensitivity
from bigscreen.problems.dual_sums import Arrays, arrays, dual_and_gap
from bigscreen.problems.point import Point, relative_gap
from bigscreen.problems.recipes import Problem
from bigscreen.problems.violation import violation
from bigscreen.screening.regions import Ball
from bigscreen.solvers.smo.kernel_rows import KernelRows
from bigscreen.solvers.smo.loop import (
    Singles,
    Variables,
    find_factors,
)
from bigscreen.solvers.smo.tuning import SmoTuning

CHECKPOINT_NAME = "pairs"
"""Name of SMO checkpoints in the folder of a problem."""

CHECKPOINT_ARRAYS = ("alpha", "alive", "x", "F", "since")
"""Arrays of `SmoState` that a checkpoint saves."""

CHECKPOINT_SCREENED_ARRAYS = ("side", "streak", "counts")
"""Arrays of `ScreenedRows` that a checkpoint saves."""

CHECKPOINT_NUMBERS = ("value", "fine_at", "steps", "checks", "violation")
"""Numbers of `SmoState` that a checkpoint saves."""


class SmoOptions(Protocol):
    """The options of the SMO solver `Pairs` that its state uses.

    ``cache``: bytes of cached kernel rows. ``whole``: compute the whole kernel matrix if it has at
    most this many bytes. ``eps``: stop once the violation is at most this.
    """

    @property
    def cache(self) -> int:
        """Bytes of cached kernel rows, if the kernel matrix is larger than ``whole`` bytes."""
        ...

    @property
    def whole(self) -> int:
        """Compute the whole kernel matrix if it has at most this many bytes."""
        ...

    @property
    def eps(self) -> float:
        """Stop once the violation of optimality is at most this."""
        ...

    @property
    def tuning(self) -> SmoTuning:
        """Tuned values of the solver, which change its time only."""
        ...


class AliveRows(NamedTuple):
    """The rows not screened, and arrays (rows,) that depend on which these rows are.

    ``rows``: their numbers. ``dual``: their dual, with the other rows' part subtracted from the
    coupling's total; ``arrays``: this dual as arrays for compiled sums. ``own``: the factors +-1 of
    alpha in the variables ``x = own alpha``, which lie between ``low`` and ``high``. ``diag``:
    k(x, x). ``flip``: the factors f of kernel entries in the variables, None if they cancel (see
    `loop.find_factors`). ``entry_errors``: bounds on entries' relative and absolute errors.
    """

    rows: NDArray[np.int64]
    dual: Dual
    arrays: Arrays
    own: FloatArray
    low: FloatArray
    high: FloatArray
    diag: FloatArray
    flip: Singles | None
    entry_errors: tuple[FloatArray, FloatArray]


@dataclass
class ScreenedRows:
    """The screened rows; arrays (n,) cover all rows.

    ``side``: int8, AT_HI, AT_LO, AT_ZERO for screened rows, FREE for all others. ``streak``:
    consecutive checks at which a region has proved a row to be at its bound. ``counts``: rows that
    the last region fixed at the upper bound, and elsewhere. ``false_removals``: rows that were
    found to be screened wrongly.
    """

    side: NDArray[np.int8]
    streak: NDArray[np.int64]
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))
    false_removals: int = 0


class Evaluation(NamedTuple):
    """Results of the last evaluation of the gap of the rows not screened.

    ``scores`` (rows not screened,); ``mu``: the best multiplier, an array if there are groups;
    ``largest``: the largest |F| (dual gradient).
    """

    scores: FloatArray
    mu: Mu
    largest: float


class SmoState:
    """The state of an SMO solve: alpha of all rows, and the variables of the rows not screened.

    "Rows alive" are the rows not screened. Their variables are ``x = r alpha``, with r the
    coupling's +-1 (the sign s without a coupling); F is the dual's derivative in x.

    Attributes
    ----------
    dual : Dual
        The dual of all n rows.
    alpha : float64 (n,)
    rows : KernelRows
        Rows of the kernel matrix, computed or cached.
    part : AliveRows
        What depends on which rows are alive.
    alike : int64 (n,) or None
        Equal numbers for equal rows; None if all rows differ.
    x, F : float64 (rows alive,)
    since : float64 (2, rows alive)
        x and F at the last check, kept only while some rows are screened.
    value : float
        The dual value D(alpha).
    violation : float
        The violation of optimality at the last step; inf: not known.
    movable : int64
        Rows whose box is not the point 0.
    seen : Evaluation
        The last evaluation of the gap.
    screened : ScreenedRows
    steps, left, checks : int
        Steps taken, steps left until the next check (0 at a check), and checks so far.
    fine_at : float
        The gap at which the actual error of float32 scores was last measured.
    """

    def __init__(
        self,
        design: Design,
        problem: Problem,
        options: SmoOptions,
        start: FloatArray | None,
    ) -> None:
        """Start at ``start`` (n,) made feasible, None: at few nonzero rows; compute the scores.

        Raises InputError if no alpha within the box has the coupling's total. ``start`` can be
        infeasible. All rows that can move take part; none is screened.
        """
        data = design.data
        n = data.n_rows
        self.design, self.problem = design, problem
        self.eps, self.tuning = options.eps, options.tuning
        self.dual = design.dual(problem)
        kernel = Linear() if design.kernel is None else design.kernel
        self.rows = KernelRows(
            kernel, data.X(0, n), self.constant, options.cache, options.whole, design.square
        )
        if design.kernel is None:
            # Features: w is computed in float64 later, so scores must be float64 sums too.
            self.rows.refine()
        self.alike = (
            number_equal_rows(self.rows.X) if design.square is None else design.square.alike
        )
        try:
            self.alpha = (
                choose_initial_alpha(self.dual) if start is None else self.dual.feasible(start)
            )
        except ValueError as error:
            raise InputError(f"the problem has no solution: {error}") from error
        self.screened = ScreenedRows(np.full(n, FREE), np.zeros(n, np.int64))
        self.steps = self.left = self.checks = 0
        self.value = 0.0
        self.violation = self.fine_at = np.inf
        # Rows whose box is the point 0 contribute neither to the gap nor to w.
        self.movable = np.flatnonzero((self.dual.hi > self.dual.lo) | (self.dual.lo != 0))
        if len(self.movable) < n:
            self.rows.set_alive(self.movable)
        self._begin(self._scores_of(self.movable))
        self.seen = Evaluation(np.empty(0), 0.0, float(np.max(np.abs(self.F), initial=0.0)))

    @property
    def coupled(self) -> bool:
        """Whether the dual has a coupling (an equality constraint)."""
        return self.dual.coupling is not None

    @property
    def constant(self) -> bool:
        """Whether a 1 is appended to every phi."""
        return self.problem.intercept == "constant"

    @property
    def groups(self) -> range:
        """The numbers of the groups of rows, each with a multiplier."""
        return range(np.size(self.dual.total))

    @property
    def alive(self) -> NDArray[np.int64]:
        """Numbers of the rows not screened."""
        return self.part.rows

    @property
    def factor(self) -> FloatArray:
        """The factors r of ``x = r alpha`` (n,): +-1."""
        return self.dual.sign if self.dual.coupling is None else self.dual.coupling

    # -- the variables of the rows alive ---------------------------------------------------------
    def _begin(self, scores: FloatArray) -> None:
        """Set up the variables of all rows that can move, with these scores; none is screened."""
        self.part = self._rows_at(self.movable)
        self.x = self.part.own * self.alpha[self.alive]
        self.F = self._upward(scores)
        self.since = np.stack([self.x, self.F])

    def variables(self) -> Variables:
        """Return the variables x of the rows not screened, their box and gradients."""
        return Variables.of(self.part.low, self.part.high, self.x, self.F, self.part.dual.tube)

    def _upward(self, scores: FloatArray) -> FloatArray:
        """Compute F, the dual's derivatives in x, of the rows not screened from their scores."""
        dual = self.part.dual
        return self.part.own * (dual.lin - dual.sign * scores)

    def _rows_at(self, rows: NDArray[np.int64]) -> AliveRows:
        """Collect the arrays of these rows, which become the rows that are not screened."""
        dual, own = self._part_of(rows), self.factor[rows]
        low = np.where(own > 0, dual.lo, -dual.hi)
        high = np.where(own > 0, dual.hi, -dual.lo)
        errors = self.rows.errors
        entry_errors = errors.relative[rows], errors.absolute[rows]
        diag, flip = self.rows.diag[rows], find_factors(own * dual.sign)
        return AliveRows(rows, dual, arrays(dual), own, low, high, diag, flip, entry_errors)

    def _part_of(self, rows: NDArray[np.int64]) -> Dual:
        """Restrict the dual to these rows; the coupling's total loses the other rows' part."""
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
        """Compute the scores of these rows at the present alpha: float64 (rows,).

        ``dtype``: type of the kernel entries; None: the solve's present one.
        """
        support = np.flatnonzero(self.alpha)
        return self.rows.scores(rows, support, (self.dual.sign * self.alpha)[support], dtype)

    def count_steps(self, steps: int) -> None:
        """Count steps taken, and subtract them from those left until the next check."""
        self.steps += steps
        self.left -= steps

    # -- the point for checks --------------------------------------------------------------------
    def point(self, target: float) -> Point:
        """Return the point with its Frank-Wolfe gap over the rows alive (screened rows have none).

        Switches to float64 entries once float32 errors affect the gap, unless ``target`` is met and
        steps are left to take.
        """
        self.alpha[self.alive] = self.part.own * self.x + 0.0
        some = len(self.alive) < len(self.movable)
        if some:
            # D is quadratic, so its change follows from the gradients before and after.
            x, F = self.since
            self.value += 0.5 * float((self.x - x) @ (F + self.F))
        gap, doubt = self._evaluate()
        met = self.design.definite and relative_gap(gap, self.value + gap) <= target
        if not (met and self.violation > self.tolerated) and self._float32_errors_matter(
            gap, doubt
        ):
            self._refine()
            gap, doubt = self._evaluate()
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

    def _evaluate(self) -> tuple[float, float]:
        """Evaluate scores, the best multiplier, the gap and the bound on the gap's rounding error.

        Returns the gap and its bound. Also evaluates D if no row is screened.
        """
        part, alpha = self.part, self.alpha[self.alive]
        scores = np.empty(len(alpha))
        errors = *part.entry_errors, self._spread()
        value, mu, gap, doubt = dual_and_gap(
            part.dual, part.arrays, alpha, self.F, part.own, errors, scores
        )
        if len(self.alive) == len(self.movable):
            self.value = value
        grouped = part.dual.group is not None
        largest = float(np.max(np.abs(self.F), initial=0.0))
        self.seen = Evaluation(scores, mu if grouped else float(mu.sum()), largest)
        return gap, doubt

    def _refine(self) -> None:
        """Switch to float64 entries, and recompute F from them."""
        self.rows.refine()
        self.part = self._rows_at(self.alive)
        self.violation = np.inf  # it was of float32 entries
        self.F = self._upward(self._scores_of(self.alive))

    def _violation(self) -> float:
        """Return the largest violation of the KKT conditions by a row alive, at the last scores."""
        return violation(self.part.dual, self.alpha[self.alive], self.seen.scores)

    def _float32_errors_matter(self, gap: float, doubt: float) -> bool:
        """Whether float32 errors of scores are large compared with the gap.

        ``doubt``: a bound on the gap's error. With an indefinite kernel, which has no gap, they are
        compared with the violation.
        """
        fraction = self.tuning.rounding_fraction
        if self.rows.dtype is np.float64:
            return False
        if not self.design.definite:
            slack = self._slack(self.alive, self.seen.scores)
            return float(np.max(slack, initial=0.0)) > fraction * self._violation()
        if gap > 0.5 * self.fine_at or doubt <= fraction * gap:
            return False
        # The bound is pessimistic: measure the actual error of some scores.
        self.fine_at = gap
        some = np.linspace(0, len(self.alive) - 1, self.tuning.measured_rows).astype(np.int64)
        exact = self._scores_of(self.alive[some], np.float64)
        error = float(np.sqrt(np.mean((self.seen.scores[some] - exact) ** 2)))
        dual = self.part.dual
        gradient = dual.gradient(self.seen.scores, self.seen.mu)
        room = sensitivity(dual, self.alpha[self.alive], gradient, 3 * error)
        return float(np.sum(room)) * error > fraction * gap

    def _spread(self) -> float:
        """Return the factor by which independent errors of entries add up in a score."""
        return error_spread(self.dual.sign * self.alpha, self.alike)

    def _slack(self, rows: NDArray[np.int64], scores: FloatArray) -> FloatArray:
        """Bound the errors of these rows' scores (maths.md 4)."""
        return self.rows.errors.of_scores(scores, self._spread(), rows)

    def _weights(self) -> FloatArray:
        """Return w = sum of s alpha x, for a machine on the rows' own features: float64 (d,)."""
        support = np.flatnonzero(self.alpha)
        coef = (self.dual.sign * self.alpha)[support]
        return np.asarray(coef @ self.rows.X[support])

    @property
    def tolerated(self) -> float:
        """The violation at which to stop: ``eps``, or what float64 cannot distinguish from 0."""
        return max(self.eps, self.tuning.score_tol * max(1.0, self.seen.largest))

    def stats(self) -> dict[str, Any]:
        """Return the counters of the solve and of the last screening, by name."""
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
        """Drop rows at a bound (or in a tube, at 0) that the region proves to stay there.

        ``region``: a ball around the present w that contains the optimal one.
        """
        dual, alpha, taken = self.part.dual, self.alpha[self.alive], self.screened
        scores = self.seen.scores
        slack = self._slack(self.alive, scores)
        lower, upper = region.intervals(scores, self.rows.errors.norms[self.alive], slack)
        decided = dual.decide(lower, upper, self._multipliers(lower, upper))
        decided = dual.decisions_in_place(decided, alpha)
        streak = np.where(decided == FREE, 0, taken.streak[self.alive] + 1)
        taken.streak[self.alive] = streak
        drop = (decided != FREE) & (streak >= region.patience)
        low = (decided == AT_LO) | (decided == AT_ZERO)  # a row in its tube counts as one at lo
        taken.counts = np.array([np.sum(drop & (decided == AT_HI)), np.sum(drop & low)])
        if drop.any():
            taken.side[self.alive[drop]] = decided[drop]
            self._keep(~drop)

    def _keep(self, keep: NDArray[np.bool_]) -> None:
        """Mark all rows as screened but those of ``keep``: bool (rows not screened so far,)."""
        self.x, self.F = self.x[keep], self.F[keep]
        self.since = np.stack([self.x, self.F])
        self.part = self._rows_at(self.alive[keep])
        self.rows.set_alive(self.alive)

    def _multipliers(self, lower: FloatArray, upper: FloatArray) -> tuple[Mu, Mu]:
        """Return the ends of an interval that contains the optimal multiplier.

        ``lower``, ``upper``: bounds of the optimal scores of the rows not screened.
        """
        return self.part.dual.multiplier_interval(lower, upper) if self.coupled else (0.0, 0.0)

    def free_all(self) -> None:
        """Free all screened rows, recompute their scores, and count those screened wrongly."""
        taken = self.screened
        gone = np.flatnonzero(taken.side != FREE)
        taken.counts = np.zeros(2, np.int64)
        taken.streak[:] = 0
        scores = np.empty(len(self.alpha))
        scores[self.alive] = self.seen.scores
        if len(gone):
            self.rows.set_alive(self.movable)
        scores[gone] = self._scores_of(gone)
        held = self._held(gone, scores[gone])
        room = np.maximum(self._slack(gone, scores[gone]), self.tolerated)
        taken.false_removals += int(np.sum(held < -room))
        taken.side[:] = FREE
        self._begin(scores[self.movable])

    def _held(self, rows: NDArray[np.int64], scores: FloatArray) -> FloatArray:
        """Return the distance by which gradients hold screened rows; negative: wrongly screened.

        ``scores``: of these ``rows``. The distance is the gradient's, less the tube, in the
        direction of the bound; for a row fixed at 0 the tube less |gradient|.
        """
        part, side = self.dual[rows], self.screened.side[rows]
        gradient = part.gradient(scores, self.seen.mu)
        tube: Any = 0.0 if part.tube is None else part.tube
        inside = tube - np.abs(gradient)
        return np.select(
            [side == AT_HI, side == AT_LO], [gradient - tube, -gradient - tube], inside
        )

    # -- checkpoints -----------------------------------------------------------------------------
    def save(self, folder: Path, meta: dict[str, Any]) -> None:
        """Write a checkpoint atomically; kernel rows are not saved but recomputed.

        ``meta``: further values of the checkpoint's record.
        """
        record = {name: getattr(self, name) for name in CHECKPOINT_NUMBERS}
        record["false_removals"] = self.screened.false_removals
        record |= {"left": self.left, "largest": self.seen.largest}
        record |= {"entries": self.rows.entries, "wide": self.rows.dtype is np.float64}
        arrays = {name: getattr(self, name) for name in CHECKPOINT_ARRAYS}
        arrays |= {name: getattr(self.screened, name) for name in CHECKPOINT_SCREENED_ARRAYS}
        save_alone(folder / CHECKPOINT_NAME, {**meta, "pairs": record}, arrays)

    def restore(self, meta: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Continue from a checkpoint; removes from ``meta`` what ``save`` added to it.

        ``meta``, ``arrays``: the checkpoint's record and arrays, by name.
        """
        record = meta.pop("pairs")
        for name in CHECKPOINT_NUMBERS:
            setattr(self, name, record[name])
        self.left = record.get("left", 0)
        self.seen = self.seen._replace(largest=record.get("largest", self.seen.largest))
        self.alpha, self.x, self.F = arrays["alpha"], arrays["x"], arrays["F"]
        self.since = arrays["since"]
        screened = {name: arrays[name] for name in CHECKPOINT_SCREENED_ARRAYS}
        self.screened = ScreenedRows(**screened, false_removals=record["false_removals"])
        self.rows.computed = record["entries"]
        if record["wide"]:
            self.rows.refine()
        self.part = self._rows_at(arrays["alive"])
        if len(self.alive) < len(self.rows.alive):
            self.rows.set_alive(self.alive)


def choose_initial_alpha(dual: Dual) -> FloatArray:
    """Choose the initial alpha: feasible, with few nonzero rows.

    As in LIBSVM, rows are set to their bounds one after the other until the coupling's total is
    met. Each nonzero row costs a row of the kernel matrix.
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
    # For totals below the sum, and to raise if no alpha has the total.
    return dual.feasible(np.clip(t * x, dual.lo, dual.hi))
