"""Dual coordinate descent for problems without a coupling (MATH.md sec. 1 and 5)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen.design import Design
from bigscreen.dual import AT_HI, AT_LO, FloatArray
from bigscreen.errors import InputError
from bigscreen.point import Point
from bigscreen.problems import CSvc
from bigscreen.rows import as_rows, njit, row_axpy, row_dot
from bigscreen.screening.regions import Ball
from bigscreen.solvers.protocol import Check

CHECKPOINT = "descent.npz"


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
        problem: CSvc,
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
            For an unpenalised offset (a coupling), or columns that are not explicit features.
        """
        if problem.intercept == "true" or design.kernel is not None:
            raise InputError(
                "coordinate descent needs explicit features and no unpenalised offset; "
                "use the newton solver"
            )
        descent = _Descent(design, problem, resident, weight_bound)
        if resume is not None and (resume / CHECKPOINT).exists():
            check.restored(descent.load(resume / CHECKPOINT))
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

    def __init__(self, design: Design, problem: CSvc, resident: bool, box: float) -> None:
        data = design.data
        self.design, self.data, self.box = design, data, box
        self.constant = problem.intercept == "constant"
        self.shards = [data.shard(s) for s in range(data.n_shards)]
        self.duals = [problem.dual(data.y(a, b), data.weights(a, b)) for a, b in self.shards]
        self.sqnorms = [data.sqnorms(a, b) + self.constant for a, b in self.shards]
        self.X = [data.X(a, b) for a, b in self.shards] if resident else None
        self.alpha = np.zeros(data.n_rows)
        self.w = np.zeros(data.n_features + self.constant)
        self.fixed = np.zeros(data.n_rows, np.bool_)
        self.active = np.ones(data.n_rows, np.bool_)
        self.epochs = 0
        self.violation = np.inf
        self.counts = (0, 0)
        self.scores = np.zeros(data.n_rows)
        self.restored = False

    def begin(self, alpha: FloatArray) -> None:
        """Start at this alpha: one pass for its w."""
        self.alpha = np.array(alpha, dtype=np.float64)
        for s, (a, b) in enumerate(self.shards):
            coef = self.duals[s].sign * self.alpha[a:b]
            used = np.flatnonzero(coef)
            if len(used):
                _add(as_rows(self._rows(s)), used, coef, self.constant, self.w)

    def epoch(self, seed: int) -> None:
        """Visit every free row once, but those at a bound that the last epochs left there.

        Rows that their gradient holds at a bound by more than the largest violation of the epoch
        before are left out until the next check (Hsieh et al. 2008, sec. 3.2): a matter of speed
        alone, for every check looks at all free rows.
        """
        rng = np.random.default_rng([seed, self.epochs])
        threshold, self.violation = self.violation, 0.0
        for s in rng.permutation(len(self.shards)):
            a, b = self.shards[s]
            free = np.flatnonzero(self.active[a:b])
            if len(free):
                dual = self.duals[s]
                _, violation = epoch(
                    as_rows(self._rows(s)),
                    self.sqnorms[s],
                    dual.sign,
                    dual.lin,
                    dual.lo,
                    dual.hi,
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
        """The point with its Frank-Wolfe gap over the free rows (fixed rows have none)."""
        gap = lin = 0.0
        for s, (a, b) in enumerate(self.shards):
            free = np.flatnonzero(~self.fixed[a:b])
            dual = self.duals[s]
            lin += float(dual.lin @ self.alpha[a:b])
            if len(free):
                scores = np.empty(len(free))
                _scores(as_rows(self._rows(s)), self.w, free, self.constant, scores)
                self.scores[a + free] = scores
                gap += dual[free].frank_wolfe_gap(self.alpha[a + free], scores)
        self.active[:] = ~self.fixed
        value = lin - 0.5 * float(self.w @ self.w)
        w = self.w[: self.data.n_features].copy()
        error = 3 * self.box * self.design.score_error(w)
        return Point(
            w,
            w,
            self._offset,
            value + gap,
            value,
            paired=True,
            alpha=self.alpha.copy(),
            rounding=error,
        )

    def stats(self) -> dict[str, Any]:
        """Rows alive (all of which an epoch visits), and what the last screening fixed."""
        alive = len(self.fixed) - int(np.count_nonzero(self.fixed))
        high, low = self.counts
        return {
            "rows_visited": alive,
            "rows_alive": alive,
            "fixed_hi": high,
            "fixed_lo": low,
            "stalled": self.violation <= 1e-14,
        }

    def screen(self, region: Ball) -> None:
        """Fix rows that are at the bound that the region proves."""
        slack = self.design.score_error(self.w[: self.data.n_features])
        high = low = 0
        for s, (a, b) in enumerate(self.shards):
            dual, alpha, fixed = self.duals[s], self.alpha[a:b], self.fixed[a:b]
            bounds = region.intervals(self.scores[a:b], np.sqrt(self.sqnorms[s]), slack)
            decided = dual.decide(*bounds)
            at_hi = (decided == AT_HI) & (alpha == dual.hi) & ~fixed
            at_lo = (decided == AT_LO) & (alpha == dual.lo) & ~fixed
            fixed |= at_hi | at_lo
            self.active[a:b] = ~fixed
            high, low = high + int(at_hi.sum()), low + int(at_lo.sum())
        self.counts = (high, low)

    def take_back(self) -> None:
        """Free every row again."""
        self.fixed[:] = False
        self.active[:] = True
        self.counts = (0, 0)

    def save(self, folder: Path, meta: dict[str, Any]) -> None:
        """Write a checkpoint: whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / (CHECKPOINT + ".tmp")
        with open(part, "wb") as file:
            np.savez(
                file,
                alpha=self.alpha,
                w=self.w,
                fixed=self.fixed,
                epochs=np.int64(self.epochs),
                violation=np.float64(self.violation),
                counts=np.array(self.counts),
                meta=np.frombuffer(json.dumps(meta).encode(), np.uint8),
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, folder / CHECKPOINT)

    def load(self, path: Path) -> dict[str, Any]:
        """Go on from a checkpoint; returns the meta that was saved with it."""
        with np.load(path, allow_pickle=False) as saved:
            self.alpha, self.w, self.fixed = saved["alpha"], saved["w"], saved["fixed"]
            self.active = ~self.fixed
            self.epochs, self.violation = int(saved["epochs"]), float(saved["violation"])
            self.counts = (int(saved["counts"][0]), int(saved["counts"][1]))
            meta = json.loads(saved["meta"].tobytes())
        self.restored = True
        return meta

    @property
    def _offset(self) -> float:
        return float(self.w[-1]) if self.constant else 0.0

    def _rows(self, s: int) -> Any:
        return self.X[s] if self.X is not None else self.data.X(*self.shards[s])


@njit(nogil=True, cache=True)
def epoch(X, sqnorms, sign, lin, lo, hi, alpha, w, order, constant, threshold, active):
    """One exact step on every row of `order`: min 1/2 ||sum_i s_i alpha_i phi_i||^2 - p . alpha.

    Hsieh et al. 2008, algorithm 1, for any box and sign: with the reduced gradient
    ``G_i = p_i - s_i <w, phi_i>``, ``alpha_i <- clip(alpha_i + G_i / ||phi_i||^2, lo_i, hi_i)``
    and ``w`` follows. A fresh random `order` for every epoch is the caller's.

    Parameters
    ----------
    X : ndarray (n, d) or CSR triple (`rows.as_rows`), float32
    sqnorms : float64 (n,), ||phi_i||^2, with the constant's 1 if there is one
    sign, lin, lo, hi : float64 (n,), the s, p and box of the dual
    alpha : float64 (n,), within the box; updated
    w : float64 (d,) or (d + 1,), sum_i s_i alpha_i phi_i; updated
    order : int64, rows to visit
    constant : bool
        phi is the row with a 1 appended; the last component of w belongs to it.
    threshold : float
        A row at a bound whose gradient holds it there by more than this becomes inactive.
    active : bool (n,)
        Rows worth a visit; updated.

    Returns
    -------
    visited : int
    violation : float
        Largest |projected gradient| met (before the step of its row), 0 for no rows.
    """
    violation = 0.0
    last = len(w) - 1
    for i in order:
        score = row_dot(X, i, w)
        if constant:
            score += w[last]
        gradient = lin[i] - sign[i] * score
        old = alpha[i]
        if gradient > 0.0:
            if old >= hi[i]:
                active[i] = gradient <= threshold
                continue
            # A row of zeros has a linear objective: its optimum is at the bound.
            new = hi[i] if sqnorms[i] <= 0.0 else min(hi[i], old + gradient / sqnorms[i])
        else:
            if old <= lo[i] or gradient == 0.0:
                active[i] = -gradient <= threshold
                continue
            new = lo[i] if sqnorms[i] <= 0.0 else max(lo[i], old + gradient / sqnorms[i])
        violation = max(violation, abs(gradient))
        alpha[i] = new
        step = sign[i] * (new - old)
        row_axpy(X, i, step, w)
        if constant:
            w[last] += step
    return len(order), violation


@njit(nogil=True, cache=True)
def _scores(X, w, rows, constant, out):
    """Scores of some rows, ``<w, phi_i>`` in float64."""
    for k in range(len(rows)):
        out[k] = row_dot(X, rows[k], w)
        if constant:
            out[k] += w[-1]


@njit(nogil=True, cache=True)
def _add(X, rows, coef, constant, w):
    """``w += sum coef_i phi_i`` over some rows."""
    for i in rows:
        row_axpy(X, i, coef[i], w)
        if constant:
            w[-1] += coef[i]
