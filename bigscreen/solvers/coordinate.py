"""Dual coordinate descent for problems without a coupling (MATH.md sec. 1 and 5)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.checkpoint import load_alone, save_alone
from bigscreen.design import Design
from bigscreen.dual import AT_HI, FREE, FloatArray
from bigscreen.errors import InputError
from bigscreen.point import Point
from bigscreen.problems import Problem, constant
from bigscreen.rows import as_rows
from bigscreen.screening.regions import Ball
from bigscreen.solvers.coordinate_epoch import epoch, row_add, row_scores
from bigscreen.solvers.protocol import Check

PLACE = "descent"
"""Where in the folder of a problem the checkpoints are."""


@dataclass(frozen=True)
class CoordinateDescent:
    """Dual coordinate descent on explicit features, shard by shard.

    Every epoch visits the free rows once: shards in a fresh random order, rows in a fresh random
    order within each. One process works through the shards, so data larger than memory is read
    once an epoch; the closing pass and the features are the fleet's.

    Parameters
    ----------
    seed : int
        Of the orders: the same seed gives the same model bit for bit.
    """

    seed: int = 0

    def run(
        self,
        design: Design,
        problem: Problem,
        fleet: Any,
        check: Check,
        *,
        weight_bound: float,
        resident: bool = True,
        resume: Path | None = None,
        start: FloatArray | None = None,
    ) -> Point:
        """Solve to whatever ``check`` asks for; returns the last point.

        ``start`` is an alpha (n,) within the box to begin from where there is no checkpoint.

        Raises
        ------
        InputError
            For a coupling (an unpenalised offset, nu), or columns that are not explicit features.
        """
        if design.kernel is not None:
            raise InputError(
                "coordinate descent needs explicit features; use the newton, block or pairs solver"
            )
        descent = _Descent(design, problem, resident, weight_bound)
        found = None if resume is None else load_alone(resume / PLACE)
        if found is not None:
            descent.restore(*found)
            check.restored(found[0])
        elif start is not None:
            descent.begin(start)
        while True:
            # Scores for a check cost about an epoch: check more rarely as epochs go by.
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
    """alpha, w and the free rows of one descent."""

    def __init__(self, design: Design, problem: Problem, resident: bool, box: float) -> None:
        data = design.data
        self.design, self.data, self.box = design, data, box
        self.constant = problem.intercept_scaling if problem.intercept == "constant" else 0.0
        self.shards = [data.shard(s) for s in range(data.n_shards)]
        self.duals = [problem.dual(data.y(a, b), data.weights(a, b)) for a, b in self.shards]
        if any(dual.coupling is not None for dual in self.duals):
            raise InputError(
                "coordinate descent moves one variable at a time, which a coupling (an unpenalised "
                "offset, or nu) does not allow; use the newton, block or pairs solver"
            )
        self.sqnorms = [data.sqnorms(a, b) + self.constant**2 for a, b in self.shards]
        self.X = [data.X(a, b) for a, b in self.shards] if resident else None
        self.curved = any(dual.curve is not None for dual in self.duals)
        # Rows that cannot move cost nothing after this.
        self.still = np.concatenate([dual.hi <= dual.lo for dual in self.duals])
        self.fixed = self.still.copy()
        self.streak = np.zeros(data.n_rows, np.int32)
        """Checks running that have decided about a row."""
        self.active = ~self.fixed
        self.epochs = 0
        self.passes = np.zeros(2, np.int64)
        """Passes over all rows that can move, and over some of them."""
        self.violation = np.inf
        self.counts = (0, 0)
        self.scores = np.zeros(data.n_rows)
        self.restored = False
        self.begin(np.zeros(data.n_rows))

    def begin(self, alpha: FloatArray) -> None:
        """Start at this alpha, or what of it is within the box: one pass for its w."""
        self.alpha = np.array(alpha, dtype=np.float64)
        self.w = np.zeros(self.data.n_features + (self.constant != 0))
        for s, (a, b) in enumerate(self.shards):
            dual = self.duals[s]
            self.alpha[a:b] = dual.feasible(self.alpha[a:b])
            coef = dual.sign * self.alpha[a:b]
            used = np.flatnonzero(coef)
            if len(used):
                row_add(as_rows(self._rows(s)), used, coef, self.constant, self.w)

    def epoch(self, seed: int) -> None:
        """Visit every free row once, but those at a bound that the last epochs left there.

        Rows that their gradient holds at a bound by more than the largest violation of the epoch
        before are left out until the next check (Hsieh et al. 2008, sec. 3.2): a matter of speed
        alone, for every check looks at all free rows.
        """
        rng = np.random.default_rng([seed, self.epochs])
        threshold, self.violation = self.violation, 0.0
        self._count(self.active)
        for s in rng.permutation(len(self.shards)):
            a, b = self.shards[s]
            free = np.flatnonzero(self.active[a:b])
            if len(free):
                dual = self.duals[s]
                tube = constant(0.0, b - a) if dual.tube is None else dual.tube
                _, violation = epoch(
                    as_rows(self._rows(s)),
                    self.sqnorms[s],
                    dual.sign,
                    dual.lin,
                    dual.lo,
                    dual.hi,
                    tube,
                    self.alpha[a:b],
                    self.w,
                    rng.permutation(free),
                    self.constant,
                    threshold,
                    self.active[a:b],
                    dual.curve,
                )
                self.violation = max(self.violation, violation)
        self.epochs += 1

    def point(self) -> Point:
        """The point with its Frank-Wolfe gap over the free rows (fixed rows have none)."""
        gap = value = 0.0
        error = self.design.score_error(self.w[: self.data.n_features])
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
                    # How far alpha reaches: of it as it is, and as the scores want it.
                    own = dual[free]
                    wanted = np.abs(own.best(own.gradient(scores))).sum()
                    box += max(wanted, np.abs(self.alpha[a + free]).sum())
        self.active[:] = ~self.fixed
        value -= 0.5 * float(self.w @ self.w)
        w = self.w[: self.data.n_features].copy()
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
        """Rows alive (all of which an epoch visits), and what the last screening fixed.

        A row fixed at 0 in a tube counts as one at its lower end.
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
        """Count a pass over these rows."""
        visited = np.count_nonzero(rows)
        if visited and not self.restored:  # the check after a checkpoint repeats the one before
            self.passes[int(visited < np.count_nonzero(~self.still))] += 1

    def screen(self, region: Ball) -> None:
        """Fix rows that are where the region proves the optimum's to be."""
        slack = self.design.score_error(self.w[: self.data.n_features])
        high = low = 0
        for s, (a, b) in enumerate(self.shards):
            dual, alpha, fixed = self.duals[s], self.alpha[a:b], self.fixed[a:b]
            bounds = region.intervals(self.scores[a:b], np.sqrt(self.sqnorms[s]), slack)
            decided = dual.decide(*bounds)
            sure = (decided != FREE) & (dual.settled(decided, alpha) == alpha)
            self.streak[a:b] = np.where(sure, self.streak[a:b] + 1, 0)
            drop = sure & (self.streak[a:b] >= region.patience) & ~fixed
            fixed |= drop
            self.active[a:b] = ~fixed
            high += int(np.count_nonzero(drop & (decided == AT_HI)))
            low += int(np.count_nonzero(drop & (decided != AT_HI)))
        self.counts = (high, low)

    def take_back(self) -> None:
        """Free every row again."""
        self.fixed[:] = self.still
        self.active[:] = ~self.still
        self.streak[:] = 0
        self.counts = (0, 0)

    def save(self, folder: Path, meta: dict[str, Any]) -> None:
        """Write a checkpoint: whole or not at all."""
        arrays = {
            "alpha": self.alpha,
            "w": self.w,
            "fixed": self.fixed,
            "streak": self.streak,
            "counts": np.array(self.counts),
            "passes": self.passes,
        }
        record = {"epochs": self.epochs, "violation": float(self.violation)}
        save_alone(folder / PLACE, {**meta, "descent": record}, arrays)

    def restore(self, meta: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Go on from what ``save`` wrote; ``meta`` is then what it was given."""
        own = meta.pop("descent")
        self.alpha, self.w, self.fixed = arrays["alpha"], arrays["w"], arrays["fixed"]
        self.active, self.streak = ~self.fixed, arrays["streak"]
        self.counts = (int(arrays["counts"][0]), int(arrays["counts"][1]))
        self.passes = arrays["passes"]
        self.epochs, self.violation = own["epochs"], own["violation"]
        self.restored = True

    @property
    def _offset(self) -> float:
        return self.constant * float(self.w[-1]) if self.constant else 0.0

    def _rows(self, s: int) -> Any:
        return self.X[s] if self.X is not None else self.data.X(*self.shards[s])
