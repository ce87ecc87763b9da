"""Dual coordinate descent for problems without a coupling (maths.md 5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.files.checkpoint import load_alone, save_alone
from bigscreen.numerics.rows import FloatArray, as_rows, njit, row_axpy, row_dot
from bigscreen.problems.dual import AT_HI, FREE
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import constant_array
from bigscreen.screening.regions import Ball
from bigscreen.solvers.protocol import Check, Run

CHECKPOINT_NAME = "descent"
"""Folder of the solver's checkpoints within the folder of a problem."""


@dataclass(frozen=True)
class CoordinateDescent:
    """Dual coordinate descent on explicit features, shard by shard.

    Every epoch visits the free rows once: shards in a fresh random order, and rows in a fresh
    random order within each shard. One process works through the shards, so data larger than memory
    is read once in an epoch. The fleet computes features and the closing pass.

    Parameters
    ----------
    seed : int
        Seed of the orders: the same seed gives the same model bit for bit.
    """

    seed: int = 0

    def solve(self, run: Run, check: Check) -> Point:
        """Solve until ``check`` returns None; returns the last point.

        A start need not be feasible: it is clipped to the box.

        Raises
        ------
        InputError
            For a coupling (an unpenalised offset, nu), or columns that are not explicit features.
        """
        if run.design.kernel is not None:
            raise InputError(
                "coordinate descent needs explicit features; use the newton, block or pairs solver"
            )
        descent = _Descent(run)
        found = load_alone(run.checkpoint, CHECKPOINT_NAME)
        if found is not None:
            descent.restore(*found)
            check.restored(found[0])
        elif run.start is not None:
            descent.begin(run.start)
        while True:
            # Scores for a check cost about an epoch: check less often as epochs go by.
            if not descent.restored:
                for _ in range(min(50, max(1, descent.epochs // 4))):
                    descent.epoch(self.seed)
            point = descent.point()
            verdict = check(point, descent.stats(), descent.save)
            descent.restored = False
            if verdict is None:
                return point
            if verdict.restart:
                descent.take_back()
            elif verdict.region is not None:
                descent.screen(verdict.region)


class _Descent:
    """The state of one descent over all shards: alpha, w, and which rows are screened.

    Attributes
    ----------
    alpha, scores : float64 (n,)
        The dual variables, and the scores at the last check.
    w : float64 (d,) or (d + 1,)
        ``sum s alpha phi``, with the coefficient of the constant feature last if there is one.
    constant : float
        The constant feature of a penalised offset; 0 without one.
    box : float
        The sum of the rows' reach, ``sum max |alpha|`` within the box.
    shards, duals, sqnorms : list, one entry for each shard
        The range of its rows; their dual; their ``||phi||^2`` (rows,).
    X : list or None
        The rows of each shard; None if they are read again in every pass.
    curved : bool
        Whether losses are squared.
    still, fixed : bool (n,)
        Rows whose box is a single point; these and the screened rows.
    active : bool (n,)
        Rows that the next epoch visits.
    epochs : int
        Epochs so far.
    violation : float
        The largest projected gradient of a row in the last epoch.
    counts : (int, int)
        Rows that the last screening fixed at their upper bound, and elsewhere.
    restored : bool
        Whether the state has just come from a checkpoint.
    """

    def __init__(self, run: Run) -> None:
        """Make the state at alpha = 0; raises InputError for a coupling."""
        problem, data = run.problem, run.design.data
        self.design, self.box = run.design, run.reach.total
        self.constant = problem.intercept_scaling if problem.intercept == "constant" else 0.0
        self.shards = [data.shard(s) for s in range(data.n_shards)]
        self.duals = [problem.dual(data.y(a, b), data.weights(a, b)) for a, b in self.shards]
        if any(dual.coupling is not None for dual in self.duals):
            raise InputError(
                "coordinate descent moves one variable at a time, which a coupling (an unpenalised "
                "offset, or nu) does not allow; use the newton, block or pairs solver"
            )
        self.sqnorms = [data.sqnorms(a, b) + self.constant**2 for a, b in self.shards]
        self.X = [data.X(a, b) for a, b in self.shards] if run.resident >= 1 else None
        self.curved = any(dual.curve is not None for dual in self.duals)
        # Rows whose box is a single point are never visited.
        self.still = np.concatenate([dual.hi <= dual.lo for dual in self.duals])
        self.fixed = self.still.copy()
        self.streak = np.zeros(data.n_rows, np.int32)
        """Consecutive checks in which the region decided a row (n,)."""
        self.active = ~self.fixed
        self.epochs = 0
        self.passes = np.zeros(2, np.int64)
        """Passes over all rows that can move, and passes over some of them."""
        self.violation = np.inf
        self.counts = (0, 0)
        self.scores = np.zeros(data.n_rows)
        self.restored = False
        self.begin(np.zeros(data.n_rows))

    def begin(self, alpha: FloatArray) -> None:
        """Start at this alpha, clipped to the box; one pass computes its w."""
        self.alpha = np.array(alpha, dtype=np.float64)
        self.w = np.zeros(self.design.data.n_features + (self.constant != 0))
        for s, (a, b) in enumerate(self.shards):
            dual = self.duals[s]
            self.alpha[a:b] = dual.feasible(self.alpha[a:b])
            coef = dual.sign * self.alpha[a:b]
            used = np.flatnonzero(coef)
            if len(used):
                row_add(as_rows(self._rows(s)), used, coef, self.constant, self.w)

    def epoch(self, seed: int) -> None:
        """Visit every active row once in an order drawn from ``seed`` and the epoch's number.

        A row whose gradient presses it to a bound by more than the largest violation of the last
        epoch is left out until the next check (Hsieh et al. 2008, sec. 3.2). This only saves time:
        every check scores all free rows.
        """
        rng = np.random.default_rng([seed, self.epochs])
        threshold, self.violation = self.violation, 0.0
        self._count(self.active)
        for s in rng.permutation(len(self.shards)):
            a, b = self.shards[s]
            free = np.flatnonzero(self.active[a:b])
            if len(free):
                dual = self.duals[s]
                tube = constant_array(0.0, b - a) if dual.tube is None else dual.tube
                box = dual.sign, dual.lin, dual.lo, dual.hi, tube, dual.curve
                _, violation = epoch(
                    EpochRows(as_rows(self._rows(s)), self.sqnorms[s], *box),
                    self.alpha[a:b],
                    self.w,
                    rng.permutation(free),
                    self.constant,
                    threshold,
                    self.active[a:b],
                )
                self.violation = max(self.violation, violation)
        self.epochs += 1

    def point(self) -> Point:
        """Compute the point and its Frank-Wolfe gap over the free rows (fixed rows have no gap)."""
        gap = value = 0.0
        error = self.design.score_error(self.w[: self.design.data.n_features])
        box = self.box * error if self.curved else self.box
        self._count(~self.fixed)
        for s, (a, b) in enumerate(self.shards):
            free = np.flatnonzero(~self.fixed[a:b])
            dual = self.duals[s]
            value += dual.value(self.alpha[a:b], 0.0)
            if len(free):
                scores = np.empty(len(free))
                row_scores(as_rows(self._rows(s)), self.w, free, self.constant, scores)
                self.scores[a + free] = scores
                gap += dual[free].frank_wolfe_gap(self.alpha[a + free], scores)
                if dual.curve is not None:
                    # The larger sum |alpha|: of alpha itself, or of the best alpha at these scores.
                    own = dual[free]
                    wanted = np.abs(own.best(own.gradient(scores))).sum()
                    box += max(wanted, np.abs(self.alpha[a + free]).sum())
        self.active[:] = ~self.fixed
        value -= 0.5 * float(self.w @ self.w)
        w = self.w[: self.design.data.n_features].copy()
        return Point(
            w,
            w,
            self._offset,
            value + gap,
            value,
            paired=True,
            alpha=self.alpha.copy(),
            rounding=3 * box * error,
        )

    def stats(self) -> dict[str, Any]:
        """Report rows alive (an epoch visits all of them), and rows that the last screening fixed.

        A row fixed at 0 in a tube counts as fixed at its lower end.
        """
        alive = len(self.fixed) - int(np.count_nonzero(self.fixed))
        high, low = self.counts
        return {
            "rows_visited": alive,
            "rows_alive": alive,
            "fixed_hi": high,
            "fixed_lo": low,
            "stalled": self.violation <= 1e-14,
            "full_passes": int(self.passes[0]),
            "partial_passes": int(self.passes[1]),
        }

    def _count(self, rows: NDArray[np.bool_]) -> None:
        """Count a pass over the rows of a mask (n,) in ``passes``; empty passes do not count."""
        visited = np.count_nonzero(rows)
        if visited and not self.restored:  # (a resumed run repeats its last check)
            self.passes[int(visited < np.count_nonzero(~self.still))] += 1

    def screen(self, region: Ball) -> None:
        """Fix rows whose alpha is where the region proves the optimal alpha to be.

        ``region``: a ball around w that contains w*.
        """
        slack = self.design.score_error(self.w[: self.design.data.n_features])
        high = low = 0
        for s, (a, b) in enumerate(self.shards):
            dual, alpha, fixed = self.duals[s], self.alpha[a:b], self.fixed[a:b]
            bounds = region.intervals(self.scores[a:b], np.sqrt(self.sqnorms[s]), slack)
            decided = dual.decide(*bounds)
            sure = (decided != FREE) & (dual.with_decisions(decided, alpha) == alpha)
            self.streak[a:b] = np.where(sure, self.streak[a:b] + 1, 0)
            drop = sure & (self.streak[a:b] >= region.patience) & ~fixed
            fixed |= drop
            self.active[a:b] = ~fixed
            high += int(np.count_nonzero(drop & (decided == AT_HI)))
            low += int(np.count_nonzero(drop & (decided != AT_HI)))
        self.counts = (high, low)

    def take_back(self) -> None:
        """Free every screened row, as some may have been screened wrongly."""
        self.fixed[:] = self.still
        self.active[:] = ~self.still
        self.streak[:] = 0
        self.counts = (0, 0)

    def save(self, folder: Path, meta: dict[str, Any]) -> None:
        """Write a checkpoint atomically; ``meta``: other values for its record."""
        arrays = {
            "alpha": self.alpha,
            "w": self.w,
            "fixed": self.fixed,
            "streak": self.streak,
            "counts": np.array(self.counts),
            "passes": self.passes,
        }
        record = {"epochs": self.epochs, "violation": float(self.violation)}
        save_alone(folder / CHECKPOINT_NAME, {**meta, "descent": record}, arrays)

    def restore(self, meta: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Continue from what ``save`` wrote, and remove its record from ``meta``."""
        own = meta.pop("descent")
        self.alpha, self.w, self.fixed = arrays["alpha"], arrays["w"], arrays["fixed"]
        self.active, self.streak = ~self.fixed, arrays["streak"]
        self.counts = (int(arrays["counts"][0]), int(arrays["counts"][1]))
        self.passes = arrays["passes"]
        self.epochs, self.violation = own["epochs"], own["violation"]
        self.restored = True

    @property
    def _offset(self) -> float:
        """What the appended constant adds to every score; 0 without one."""
        return self.constant * float(self.w[-1]) if self.constant else 0.0

    def _rows(self, s: int) -> Any:
        """Return the rows of shard number s, from memory or read from the data."""
        return self.X[s] if self.X is not None else self.design.data.X(*self.shards[s])


class EpochRows(NamedTuple):
    """Rows and their part of a dual without a coupling, for compiled loops.

    Parameters
    ----------
    X : ndarray (n, d) or CSR triple (`rows.as_rows`)
        float32 or float64.
    sqnorms : float64 (n,)
        ``||phi_i||^2``, with the square of the constant if there is one.
    sign, lin, lo, hi, tube : float64 (n,)
        s, p, the box and e of the dual.
    curve : float64 (n,) or None
        q of the dual; None: all 0.
    """

    X: Any
    sqnorms: FloatArray
    sign: FloatArray
    lin: FloatArray
    lo: FloatArray
    hi: FloatArray
    tube: FloatArray
    curve: FloatArray | None = None


@njit(nogil=True, cache=True)
def epoch(
    rows: EpochRows,
    alpha: FloatArray,
    w: FloatArray,
    order: NDArray[np.int64],
    constant: float,
    threshold: float,
    active: NDArray[np.bool_],
) -> tuple[int, float]:
    """Take one exact step on every row of `order`, for a dual without a coupling.

    Hsieh et al. 2008, algorithm 1, for any box, sign and tube: with the reduced gradient
    ``G_i = p_i - q_i alpha_i - s_i <w, phi_i>`` and ``k_i = ||phi_i||^2 + q_i``,
    ``alpha_i <- clip(soft(alpha_i + G_i / k_i, e_i / k_i), lo_i, hi_i)`` and ``w`` follows; soft
    is soft thresholding by e_i / k_i. The caller draws a fresh random `order` for every epoch.

    Parameters
    ----------
    rows : EpochRows
    alpha : float64 (n,), within the box; updated
    w : float64 (d,) or (d + 1,), sum_i s_i alpha_i phi_i; updated
    order : int64, rows to visit
    constant : bool or float
        phi is the row with this appended, unless it is 0; the last component of w belongs to it.
    threshold : float
        A row whose gradient presses it to a bound, or to the tube's 0, by more than this becomes
        inactive.
    active : bool (n,)
        Rows to visit in the next epoch; updated.

    Returns
    -------
    visited : int
    violation : float
        Largest |projected gradient| of any visited row, before its step; 0 for no rows.
    """
    X, sqnorms, sign, lin, lo, hi, tube, curve = rows
    violation = 0.0
    last = len(w) - 1
    for i in order:
        score = row_dot(X, i, w)
        if constant:
            score += constant * w[last]
        old, width, square = alpha[i], tube[i], sqnorms[i]
        square, gradient = add_curve(square, lin[i] - sign[i] * score, curve, i, old)
        # The slope of the objective on the side of 0 that alpha is on, or moves to.
        if old > 0.0 or (old == 0.0 and gradient > width):
            slope = gradient - width
        elif old < 0.0 or gradient < -width:
            slope = gradient + width
        else:
            active[i] = width - abs(gradient) <= threshold
            continue
        if slope > 0.0:
            if old >= hi[i]:
                active[i] = slope <= threshold
                continue
            # The objective is linear for a row of zeros: its optimum is a bound, or the tube's 0.
            new = hi[i] if square <= 0.0 else min(hi[i], old + slope / square)
        else:
            if old <= lo[i] or slope == 0.0:
                active[i] = -slope <= threshold
                continue
            new = lo[i] if square <= 0.0 else max(lo[i], old + slope / square)
        if width > 0.0 and old * new < 0.0:
            # Beyond 0 the slope differs by twice the tube.
            other = gradient - width if old < 0.0 else gradient + width
            if slope * other <= 0.0:
                new = 0.0
            elif square > 0.0:
                new = old + other / square
                new = max(0.0, min(hi[i], new)) if old < 0.0 else min(0.0, max(lo[i], new))
        violation = max(violation, abs(slope))
        alpha[i] = new
        step = sign[i] * (new - old)
        row_axpy(X, i, step, w)
        if constant:
            w[last] += constant * step
    return len(order), violation


@njit(nogil=True, cache=True)
def add_curve(
    square: float, gradient: float, curve: FloatArray | None, i: int, alpha: float
) -> tuple[float, float]:
    """Add the term of row i's squared loss to the second derivative and the gradient in alpha_i.

    ``square``, ``gradient``: both without this term, ``-curve_i alpha_i^2 / 2`` of D; ``alpha``:
    alpha_i. Returns both; they are unchanged if ``curve`` (n,) is None (no squared losses).
    """
    if curve is None:
        return square, gradient
    return square + curve[i], gradient - curve[i] * alpha


@njit(nogil=True, cache=True)
def row_scores(
    X: Any, w: FloatArray, rows: NDArray[np.int64], constant: float, out: FloatArray
) -> None:
    """Compute the scores ``<w, phi_i>`` of the listed rows of X, in float64, into ``out``.

    ``constant``: the constant feature appended to every row, whose coefficient is the last of w; 0
    without one.
    """
    for k in range(len(rows)):
        out[k] = row_dot(X, rows[k], w)
        if constant:
            out[k] += constant * w[-1]


@njit(nogil=True, cache=True)
def row_add(
    X: Any, rows: NDArray[np.int64], coef: FloatArray, constant: float, w: FloatArray
) -> None:
    """Add ``sum coef_i phi_i`` over the listed rows of X to w; ``coef`` (n,) covers all rows.

    ``constant``: the constant feature appended to every row, 0 without one.
    """
    for i in rows:
        row_axpy(X, i, coef[i], w)
        if constant:
            w[-1] += constant * coef[i]
