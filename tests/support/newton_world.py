"""A problem of any kind on features that can be written down, as package and oracle have it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import reference
from problem_cases import Case, case

from bigscreen.certify.explicit import close_explicit
from bigscreen.features import nystrom
from bigscreen.features.design import ROWS_PER_TILE, Design, row_ranges
from bigscreen.fit import ladder
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.standard import make_kernel
from bigscreen.problems.point import Point, Reading
from bigscreen.solvers.newton import solver as newton
from bigscreen.solvers.newton.near import Nearby, make_float64_solver, pick_first_rows
from bigscreen.solvers.newton.shard import NewtonProgram
from bigscreen.solvers.newton.tuning import NEWTON


@dataclass(frozen=True)
class FeatureWorld:
    """A textbook case (`problem_cases`), the design of its rows, and its optimum."""

    case: Case
    design: Design

    @property
    def problem(self) -> Any:
        return self.case.problem

    @property
    def n(self) -> int:
        return self.case.data.n_rows

    @cached_property
    def phi(self) -> np.ndarray:
        """Features of all rows, the penalised constant among them, float64."""
        columns = self.columns(np.float64)
        phi = columns if self.design.factor is None else columns @ self.design.factor
        one = np.ones((self.n, int(self.problem.intercept == "constant")))
        return np.hstack([phi, one])

    def columns(self, dtype: type) -> np.ndarray:
        # By tiles, as a pass computes them: some BLAS round an entry by its row's iterate.
        data, parts = self.case.data, []
        for s in range(data.n_shards):
            start, stop = data.shard(s)
            for a, b in row_ranges(stop - start, data.chunk_rows):
                X = data.X(start + a, start + b)
                tiles = row_ranges(b - a, self.design.rows_per_tile(ROWS_PER_TILE))
                parts += [self.design.columns(X[c:d], dtype) for c, d in tiles]
        return np.concatenate(parts).astype(np.float64)

    @cached_property
    def oracle(self) -> reference.Problem:
        one = self.case
        t = group = None
        total: Any = 0.0
        if len(one.b):
            t, total = one.A.sum(axis=0), one.b[0]
        if len(one.b) > 1:
            group, total = np.argmax(np.abs(one.A), axis=0), one.b
        return reference.Problem(
            self.phi[one.row], one.s, one.p, one.lo, one.hi, t, total, group
        )  # fmt: skip

    @cached_property
    def optimum(self) -> reference.Optimum:
        return reference.solve(self.oracle)

    def room(self, point: Point) -> float:
        """How far P and D may be from the oracle's: every loss moved by its score's rounding."""
        ends = [point.coef, self.design.coef(self.optimum.w[: self.design.rank])]
        error = max(self.design.score_error(coef) for coef in ends)
        return 2 * float(np.abs(self.case.hi).sum()) * error + 1e-10 * abs(self.optimum.primal)

    def primal(self, point: Point) -> float:
        """P of a point whose columns are float32, by the textbook's hinges."""
        q, one = self.oracle, self.case
        scores = (self.columns(np.float32) @ point.coef)[one.row]
        quadratic = 0.5 * point.w @ point.w
        if self.problem.intercept == "constant":
            scores = scores + point.intercept
            quadratic += 0.5 * point.intercept**2
        gradient = q.p - q.s * scores - one.A.T @ np.array(point.multiplier)
        loss = np.maximum(one.hi * gradient, one.lo * gradient).sum()
        return float(quadratic + one.b @ np.array(point.multiplier) + loss)

    def read(self, reading: Reading) -> np.ndarray:
        """The textbook's variables that a reading is, before the coupling is kept."""
        q, one, h = self.oracle, self.case, reading.smoothing
        scores = (self.columns(np.float32) @ reading.coef + reading.intercept)[one.row]
        z = q.p - q.s * scores - one.A.T @ np.array(reading.multiplier)
        return q.lo + (q.hi - q.lo) * np.clip((z + h) / (2 * h), 0, 1)

    def balanced(self, a: np.ndarray) -> np.ndarray:
        """One variable a row, the coupling kept by the documented steps, row by row."""
        q, one = self.oracle, self.case
        alpha = one.alpha(a)
        rows = slice(0, self.n)
        lo = np.minimum(q.lo[rows], -q.hi[rows]) if len(a) > self.n else q.lo
        hi = q.hi[rows]
        groups = [(A[rows], b) for A, b in zip(one.A, one.b, strict=True)]
        for t, total in groups:
            own = t != 0
            x = np.where(own, t * alpha, 0.0)
            more, less = x[x > 0].sum(), -x[x < 0].sum()
            if more - less > total:
                alpha = np.where(x > 0, alpha * (total + less) / more, alpha)
            elif more - less < total and more >= total:
                alpha = np.where(x < 0, alpha * (more - total) / less, alpha)
            elif more - less < total:
                band = own & (alpha > lo) & (alpha < hi)
                room = np.where(band, hi - alpha, 0.0)
                assert np.all(t[own] > 0) and np.all(x >= 0)
                alpha = alpha + room * (total - more) / room.sum()
        return alpha

    def mixed(self, point: Point) -> np.ndarray:
        """The textbook's variables behind a point: its readings made feasible, and mixed."""
        parts = [self.case.split(self.balanced(self.read(part))) for part in point.readings]
        return sum(part.weight * a for part, a in zip(point.readings, parts, strict=True))

    def dual(self, a: np.ndarray, dtype: type = np.float32) -> float:
        """D of the textbook's variables."""
        columns = self.columns(dtype)
        phi = columns if self.design.factor is None else columns @ self.design.factor
        phi = np.hstack([phi, self.phi[:, phi.shape[1] :]])
        q = self.oracle
        w = phi[self.case.row].T @ (q.s * a)
        return float(q.p @ a - 0.5 * w @ w)

    def assert_feasible(self, a: np.ndarray) -> None:
        one = self.case
        room = 1e-9 * (1 + np.abs(one.hi).sum())
        assert np.all(a >= one.lo - room) and np.all(a <= one.hi + room)
        np.testing.assert_allclose(one.A @ a, one.b, atol=room)


def feature_world(name: str, kernel: str = "linear", seed: int = 0, **more: Any) -> FeatureWorld:
    """A case with raw features, or with Nystrom features of 30 landmarks."""
    one = case(name, seed, **more)
    if kernel == "linear":
        return FeatureWorld(one, Design(one.data))
    made = make_kernel(kernel, 0.15)
    side, _ = nystrom.choose_landmarks(one.data, made, min(30, one.data.n_rows), "uniform", 0)
    return FeatureWorld(one, Design(one.data, made, side, nystrom.factor_matrix(made, side)))


class Probe:
    """The check of a solve without screening: compares P and D of every pass with a fresh pass."""

    def __init__(self, world: Any, fleet: Any, passes: int) -> None:
        self.world, self.fleet, self.passes = world, fleet, passes
        self.worst, self.skipped, self.seen = 0.0, 0, 0

    def __call__(self, point: Point, stats: dict[str, Any], save: Any) -> newton.Verdict | None:
        if point.held:
            return newton.Verdict()
        fresh = close_explicit(self.world.design, self.world.problem, point, self.fleet)
        size = abs(fresh.primal) + abs(fresh.dual)
        # The closing pass moves the multiplier to where it is best: P is no higher there.
        lower = fresh.primal - point.primal
        own = fresh.multiplier == point.multiplier
        moved = max(abs(lower) if own else lower, abs(point.dual - fresh.dual))
        self.worst = max(self.worst, moved / size)
        self.skipped += stats["rows_alive"] - stats["rows_visited"]
        self.seen += 1
        return None if self.seen == self.passes or stats["stalled"] else newton.Verdict()

    def expired(self) -> bool:
        return False

    def pause(self, save: Any = None) -> None:
        pass

    def restored(self, meta: Any) -> None:
        raise AssertionError


class Noted:
    """A solver that notes the points which another solver hands to its check."""

    def __init__(self, solver: Any) -> None:
        self.solver = solver
        self.points: list[Point] = []

    def solve(self, run: Any, check: Any) -> Point:
        return self.solver.solve(run, _NotingCheck(check, self.points))


class _NotingCheck:
    def __init__(self, check: Any, points: list[Point]) -> None:
        self.check, self.points = check, points

    def __getattr__(self, name: str) -> Any:
        return getattr(self.check, name)

    def __call__(self, point: Point, stats: dict[str, Any], save: Any) -> Any:
        self.points.append(point)
        return self.check(point, stats, save)


class Spied(Inline):
    """A fleet in this process that runs its programs as a subclass of theirs."""

    def __init__(self, program: type[NewtonProgram]) -> None:
        super().__init__(1)
        self.spy = program

    def start(self, program: Any, n_shards: int) -> None:
        fields = {name: getattr(program, name) for name in NewtonProgram.__dataclass_fields__}
        super().start(self.spy(**fields), n_shards)


def tuned(tol, **values):
    """A Newton with other tuned values than its own."""
    return newton.Newton(tol, tuning=replace(NEWTON, **values))


def tune_near(monkeypatch, **values):
    """Have fits and edits use other tuned values for steps over rows near their hinge point."""
    tuning = replace(ladder.NEARBY, **values)
    other = {
        "bigscreen.fit.ladder.NEARBY": tuning,
        "bigscreen.fit.ladder.make_float64_solver": partial(make_float64_solver, tuning=tuning),
        "bigscreen.amend.refit.pick_first_rows": partial(pick_first_rows, tuning=tuning),
        "bigscreen.amend.refit.Nearby": partial(Nearby, tuning=tuning),
    }
    for name, value in other.items():
        monkeypatch.setattr(name, value)
