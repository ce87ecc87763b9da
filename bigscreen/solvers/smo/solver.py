"""Sequential minimal optimisation over all rows, in one process, kernel rows through a cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.files.checkpoint import load_alone, save_alone
from bigscreen.kernels.base import FLOAT64, U32
from bigscreen.kernels.square import alike
from bigscreen.kernels.standard import Linear
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import AT_HI, AT_LO, AT_ZERO, FREE, Dual, Mu, sensitivity
from bigscreen.problems.dual_sums import arrays, measure
from bigscreen.problems.point import Point, relative
from bigscreen.problems.recipes import Problem, refuse_uncommon
from bigscreen.problems.violation import violation
from bigscreen.screening.regions import Ball
from bigscreen.solvers.protocol import Check, Run
from bigscreen.solvers.smo.kernel_rows import KernelRows
from bigscreen.solvers.smo.loop import (
    Matrix,
    flips,
    free_partner,
    free_step,
    free_units,
    free_update,
    least_curvature,
    note_room,
    note_space,
    pair_partner,
    pair_step,
    pair_update,
    steps,
    tubes,
)

WHOLE = 128 << 20
"""Bytes up to which the matrix of the rows alive is computed at once: steps then are one compiled
loop, and a square of entries is cheaper than a call for each of its rows."""

FIRST, STEPS = 100, 1000
"""Steps between the first checks, at least and at most."""

SCANNED = 1 << 24
"""Variables that the steps of one compiled loop look at: some ten milliseconds."""


@dataclass(frozen=True)
class Pairs:
    """SMO: every step solves for one variable or two exactly.

    For data that one process holds: the inner solver of partitions, and the reference that others
    are compared with. Kernel entries are computed against the rows alive alone.

    Parameters
    ----------
    selection : {"second", "first"}
        By the gain in the dual (with a coupling Fan et al. 2005), or the worst violation.
    working_set : {1, 2} or None
        Variables moved at a time; None: 2. With a coupling one alone cannot move.
    cache : int
        Bytes of kernel rows kept, where the matrix is too large for ``whole``.
    whole : int
        Bytes of the matrix of the rows alive up to which all of it is computed at once.
    eps : float
        LIBSVM's stopping rule: nothing is left to do once the violation is no larger.
    every : int or None
        Steps between checks; None: as many as rows are alive up to 1,000, more as time goes by.
    """

    selection: str = "second"
    working_set: int | None = None
    cache: int = 256 << 20
    whole: int = WHOLE
    eps: float = 0.0
    every: int | None = None

    def __post_init__(self) -> None:
        if self.selection not in ("second", "first"):
            raise InputError(f"selection must be second or first, got {self.selection!r}")
        if self.working_set not in (None, 1, 2):
            raise InputError(f"a working set has 1 or 2 variables, not {self.working_set}")

    def solve(self, run: Run, check: Check) -> Point:
        """Solve to whatever ``check`` asks for; returns the last point.

        Raises
        ------
        InputError
            For landmarks (their features are no rows to take products of), single variables
            and a coupling, a coupling whose total no alpha within the box has, or squared losses.
        """
        if run.design.landmarks is not None:
            raise InputError("pair steps need an exact kernel or stored features; use newton")
        refuse_uncommon(run.problem)
        folder = run.checkpoint
        found = None if folder is None else load_alone(folder / PLACE)
        begin = run.start if found is None else None
        state = SmoState(run.design, run.problem, self.cache, self.whole, self.eps, begin)
        if state.coupled and self.working_set == 1:
            raise InputError(
                "with an unpenalised offset or nu two variables have to move at a time"
            )
        if found is not None:
            restore(state, *found)
            check.restored(found[0])
        while True:
            if not state.restored:
                self._advance(state, check)
            point = state.point(check.target)
            verdict = check(point, state.stats(), partial(save, state))
            state.restored = False
            if verdict is None:
                return point
            if verdict.restart:
                state.take_back()
            elif verdict.region is not None:
                state.screen(verdict.region)

    def _advance(self, state: SmoState, check: Check) -> None:
        """Steps until the next check is due."""
        most = self.every
        if most is None:
            # A check costs about a step, and sorts: check more rarely as time goes by.
            most = min(len(state.alive), STEPS) * min(50, max(1, state.checks // 4))
            if state.rows.matrix is not None:
                # Steps are cheap then, and few where classes are far; of many it is an eighth more.
                longer = min(state.steps // 8, SCANNED // max(1, len(state.alive)))
                most = max(FIRST, most // 4, longer)
        state.checks += 1
        if state.rows.matrix is not None:
            self._within(state.rows.matrix, state, most)
            return
        advance = _pairs if state.coupled else _singles
        advance(self, state, most, check)

    def _within(self, matrix: Matrix, state: SmoState, most: int) -> None:
        """The same steps on a matrix that is there, in one compiled loop."""
        x, F, group, order = state.x, state.F, state.group, None
        taken: Any = [state.low, state.high, x, F, state.tube, state.flip, group]
        if state.coupled and group is not None and np.any(np.diff(group) < 0):
            order = np.argsort(group, kind="stable")  # rows of a group together
            assert state.rows.whole is not None
            matrix = Matrix(state.rows.whole, order)
            taken = [None if each is None else each[order] for each in taken]
        low, high, own, slope, tube, flip, group = taken
        how = state.tolerated, most, self.selection == "second", self.working_set != 1
        done, state.violation = steps(
            matrix, low, high, own, slope, tube, flip, group, state.coupled, *how
        )
        if order is not None:
            x[order], F[order] = own, slope
        state.rows.count()
        state.steps += done
        if done < most:  # nothing is left to do, or nothing that the last digit would show
            state.violation = 0.0


def _pairs(options: Pairs, state: SmoState, most: int, check: Check) -> None:
    """Steps on pairs that keep the sum of every group's coupling."""
    x, F, low, high, flip, rows = state.x, state.F, state.low, state.high, state.flip, state.rows
    diag, least, second = state.diag, state.least, options.selection == "second"
    narrow, floor = diag.astype(np.float32), np.float32(least)
    tube, up, down = tubes(state.tube, x)
    moves = np.empty(len(x), np.int8)
    note_room(np.arange(len(x)), x, low, high, moves)
    # A group's moves are those of all rows, with none for rows of other groups.
    own = [moves] if state.group is None else [moves * (state.group == g) for g in state.groups]
    nothing: NDArray[Any] = np.zeros(len(x), rows.dtype)
    tolerated = state.tolerated
    first = pair_update(F, nothing, nothing, flip, 0.0, 0.0, own[0], up)
    for _ in range(most):
        state.violation, i, moves = 0.0, -1, own[0]
        for g, mine in enumerate(own):
            top = first
            if g:
                top = pair_update(F, nothing, nothing, flip, 0.0, 0.0, mine, up)
            if top < 0:
                continue
            apart = np.inf
            if len(own) > 1:  # which group is worst is seen without its kernel row
                _, apart = pair_partner(
                    F, nothing, flip, top, narrow, floor, mine, up, down, False
                )  # fmt: skip
            if apart > state.violation:
                i, moves, state.violation = top, mine, apart
        if i < 0:
            return
        row = rows[i]
        j, state.violation = pair_partner(
            F, row, flip, i, narrow, floor, moves, up, down, second
        )  # fmt: skip
        if j < 0 or state.violation <= tolerated or check.expired():
            return
        other = rows[j]
        f_i, f_j = (1.0, 1.0) if flip is None else (float(flip[i]), float(flip[j]))
        curvature = diag[i] + diag[j] - 2.0 * f_i * f_j * float(row[j])
        step = pair_step(i, j, curvature, least, low, high, x, F, moves, tube, up, down)
        if step == 0.0:
            state.violation = 0.0
            return
        first = pair_update(F, row, other, flip, step * f_i, -step * f_j, own[0], up)
        state.steps += 1


def _singles(options: Pairs, state: SmoState, most: int, check: Check) -> None:
    """Steps without a coupling, on one variable or on two."""
    x, F, low, high, rows = state.x, state.F, state.low, state.high, state.rows
    diag, least, second = state.diag, state.least, options.selection == "second"
    state.violation = 0.0
    if not len(x):
        return
    tube, up, down = tubes(state.tube, x)
    kinks = tube is not None
    unit, curve, inverse, less, more = free_units(diag, low, high, x, kinks)
    scales = (curve, inverse, less, more, up, down, second)
    nothing: NDArray[Any] = np.zeros(len(x), rows.dtype)
    tolerated = state.tolerated
    i, state.violation = free_update(F, nothing, nothing, 0.0, 0.0, *scales)
    for _ in range(most):
        if i < 0 or state.violation <= tolerated or check.expired():
            return
        row = rows[i]
        j = i
        if options.working_set != 1:
            j = free_partner(F, row, unit, i, *scales)
        other = row if j == i else rows[j]
        a, b = free_step(
            i, j, diag[i], diag[j], float(row[j]), least, low, high, x, F, tube, up, down
        )  # fmt: skip
        if a == 0.0 and b == 0.0:
            state.violation = 0.0
            return
        note_space((i, j), x, low, high, kinks, unit, less, more)
        i, state.violation = free_update(F, row, other, a, b, *scales)
        state.steps += 1


EXACT = 1e-13
"""Relative error of F, whose float64 sums have many terms."""

ROUNDING_PART = 0.25
"""Part of the gap that the rounding of float32 entries may make up; then they become float64."""

PROBED = 32
"""Rows whose scores are computed in float64 to see how far rounding has moved them."""


class SmoState:
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
        """Scores, the best multiplier for them, the gap and what rounding of scores can do to it.

        D itself too, while all rows are alive.
        """
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
        """Whether float32 entries begin to tell in the gap (the violation, where that is all)."""
        if self.rows.dtype is np.float64:
            return False
        if not self.design.definite:
            slack = self._slack(self.alive, self.scores)
            return float(np.max(slack, initial=0.0)) > ROUNDING_PART * self._violation()
        if gap > 0.5 * self.fine_at or doubt <= ROUNDING_PART * gap:
            return False
        # The bound is that of the worst pair of rows: see what the error of some scores really is.
        self.fine_at = gap
        some = np.linspace(0, len(self.alive) - 1, PROBED).astype(np.int64)
        exact = self._scores_of(self.alive[some], np.float64)
        error = float(np.sqrt(np.mean((self.scores[some] - exact) ** 2)))
        gradient = self.part.gradient(self.scores, self.mu)
        room = sensitivity(self.part, self.alpha[self.alive], gradient, 3 * error)
        return float(np.sum(room)) * error > ROUNDING_PART * gap

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
        """Bounds on the errors of these scores of these rows (maths.md 4)."""
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


PLACE = "pairs"
"""Where in the folder of a problem they are."""

ARRAYS = ("alpha", "alive", "x", "F", "since", "side", "streak", "counts")
TALLIES = ("value", "fine_at", "steps", "checks", "false_removals", "violation")


def save(state: SmoState, folder: Path, meta: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all; kernel rows are computed again."""
    record = {name: getattr(state, name) for name in TALLIES}
    record |= {"entries": state.rows.entries, "wide": state.rows.dtype is np.float64}
    arrays = {name: getattr(state, name) for name in ARRAYS}
    save_alone(folder / PLACE, {**meta, "pairs": record}, arrays)


def restore(state: SmoState, meta: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Go on from what ``save`` wrote; ``meta`` is then what it was given."""
    for name in ARRAYS:
        setattr(state, name, arrays[name])
    record = meta.pop("pairs")
    for name in TALLIES:
        setattr(state, name, record[name])
    state.rows.computed = record["entries"]
    if record["wide"]:
        state.rows.refine()
    state.bounds()
    if len(state.alive) < len(state.rows.alive):
        state.rows.look_at(state.alive)
    state.restored = True
