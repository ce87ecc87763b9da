"""Smoothed Newton in the primal: m-dimensional, a map-reduce over shards (MATH sec. 5).

    min over w, b   1/2 ||w||^2 (+ 1/2 b^2 for an appended constant) + sum_i huber_h(G_i)

One iteration is two rounds: a score pass along the Newton step (its line search costs nothing
more: scores are linear along the step) and a gradient pass over the zone ``|G| <= h``. h starts
wide on a subsample and is halved while steps succeed, down to where smoothing costs half of what
is asked. Each iteration has a dual point, read off the scores, and so a proved gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy import linalg

from bigscreen import exact
from bigscreen.design import Design
from bigscreen.dual import CSvc, FloatArray, Point
from bigscreen.screening.regions import Ball
from bigscreen.solvers.newton_shard import NewtonProgram

STEPS = np.array([0.0, 1.0, 1.4, 0.75, 0.55, 0.4, 0.28, 0.18, 0.1, 0.05, 0.02, 0.005])
SHORTEST = 1e-6
"""Step lengths below this are not tried: rounding hides what they would gain."""


class Fleet(Protocol):
    """The rounds a solver needs (``fleet.Inline`` and ``fleet.Cluster`` offer them)."""

    def start(self, program: Any, n_shards: int) -> None: ...
    def round(self, message: dict[str, Any]) -> tuple[FloatArray, exact.Totals]: ...
    def save(self, folder: Path, meta: dict[str, Any]) -> None: ...
    def load(self, folder: Path) -> dict[str, Any] | None: ...


@dataclass(frozen=True)
class Verdict:
    """What ``check`` answers a solver that has to go on.

    ``region`` holds w* around the point's w, None where nothing can be screened;
    ``restart`` asks to take back every row that was screened.
    """

    region: Ball | None = None
    restart: bool = False


class Check(Protocol):
    """The hinge between a solver and ``fit``: every solver calls it at its pass boundaries."""

    def __call__(
        self, point: Point, stats: dict[str, Any], save: Callable[[Path, dict[str, Any]], None]
    ) -> Verdict | None:
        """None: stop here. ``save(folder, meta)`` writes a checkpoint of the solver."""

    def restored(self, meta: dict[str, Any]) -> None:
        """Receives the ``meta`` of the checkpoint that the solver goes on from."""


@dataclass
class _Place:
    """Where the Newton is: x = (w, b), what the last passes found there, and how it got there."""

    x: FloatArray
    h: float
    past: list[FloatArray] = field(default_factory=list)
    point: Point | None = None
    step: FloatArray | None = None
    t: float = 1.0
    next_h: float = 1.0
    wide: float = 1.0
    decrement: float = 0.0
    gradient_cost: float = 0.0
    zone: int = 0
    zone_asked: int = 0
    fixed: tuple[int, int] = (0, 0)
    zone_weight: float = 0.0
    visited: int = 0
    alive: int = 0
    stalled: int = 0


@dataclass(frozen=True)
class Newton:
    """The smoothed Newton solver.

    Parameters
    ----------
    tol : float
        Relative gap asked for; sets the final smoothing.
    lazy : bool
        Skip rows that provably stay on their side (exact).
    sample : float
        The coarsest subsample holds about ``sample * rank`` rows.
    zone_rows : float
        The second moment is taken from at most about ``zone_rows * m`` rows of the zone.
    """

    tol: float = 1e-3
    lazy: bool = True
    sample: float = 16.0
    zone_rows: float = 16.0

    def run(
        self,
        design: Design,
        problem: CSvc,
        fleet: Fleet,
        check: Check,
        *,
        weight_bound: float,
        resident: bool = True,
        resume: Path | None = None,
    ) -> Point:
        """Solve to whatever ``check`` asks for; returns the last point.

        Parameters
        ----------
        weight_bound : float
            At least the sum of ``max(|lo|, |hi|)`` over all rows.
        resident : bool
            Keep rows in memory between passes.
        resume : Path or None
            Folder of a checkpoint to go on from.
        """
        solve = _Solve(self, design, problem, fleet)
        program = NewtonProgram(
            design, problem, resident=resident, lazy=self.lazy, weight_bound=weight_bound
        )
        if resume is not None:
            fleet.start(program, design.data.n_shards)
            meta = fleet.load(resume)
            if meta is not None:
                check.restored(meta)
                return solve.run(solve.restore(program, meta["solver"]), check)
        place = _Place(np.zeros(solve.size), 1.0)
        for stride in self._strides(design):
            # The picked rows can hold nearly all the weight, then scaled up by the stride.
            part = replace(
                program, stride=stride, scale=float(stride), weight_bound=stride * weight_bound
            )
            solve.enter(part, place, growth=8)
            if stride == 1:
                break
            solve.run(place, _Coarse(10 * self.tol))
        return solve.run(place, check)

    def _strides(self, design: Design) -> list[int]:
        """Subsamples of one row in 64, 8, ... down to all rows."""
        wanted = max(self.sample * design.rank, 4000.0)
        strides = [1]
        while design.data.n_rows / (strides[-1] * 8) >= wanted:
            strides.append(strides[-1] * 8)
        return strides[::-1]


@dataclass
class _Coarse:
    """The check of a subsample: a rough gap is enough, and more than a few passes are wasted."""

    tol: float
    passes: int = 0

    def __call__(self, point: Point, stats: dict[str, Any], save: Any) -> Verdict | None:
        self.passes += 1
        enough = point.relative_gap <= self.tol or self.passes >= 15 or stats["stalled"]
        return None if enough else Verdict()

    def restored(self, meta: dict[str, Any]) -> None:
        """A subsample is never checkpointed."""
        raise AssertionError


class _Solve:
    """One run: the rounds, and the m-dimensional algebra of the coordinator."""

    def __init__(self, options: Newton, design: Design, problem: CSvc, fleet: Fleet) -> None:
        self.options, self.design, self.problem, self.fleet = options, design, problem, fleet
        self.offset = problem.intercept != "none"
        self.metric = np.ones(design.rank + self.offset)
        if problem.intercept == "true":
            self.metric[-1] = 0.0
        self.size = len(self.metric)
        self.program: NewtonProgram

    def run(self, place: _Place, check: Check) -> Point:
        """Iterate from a place whose gradient is known until ``check`` is content."""
        while True:
            assert place.point is not None and place.step is not None
            verdict = check(
                place.point,
                {
                    "rows_visited": place.visited,
                    "rows_alive": place.alive,
                    "fixed_hi": place.fixed[0],
                    "fixed_lo": place.fixed[1],
                    "stalled": place.stalled >= 3,
                },
                lambda folder, meta: self.fleet.save(folder, {**meta, "solver": self._meta(place)}),
            )
            if verdict is None:
                return place.point
            place.fixed = (0, 0)
            if verdict.region is not None:
                self._screen(place, verdict.region)
            if verdict.restart:
                # The rows that come back can be far off: start them in a wider zone.
                place.h = min(1.0, 16 * place.h)
                self.enter(self.program, place)
                continue
            self._iterate(place, place.step, STEPS, place.next_h)

    def enter(self, program: NewtonProgram, place: _Place, growth: int = 1) -> None:
        """Start a program on every shard, score all its rows at x, find the gradient there.

        ``growth``: how many times as many rows it has as the program before.
        """
        self.program = program
        place.zone *= growth
        self.fleet.start(program, self.design.data.n_shards)
        place.past = []
        self._iterate(place, np.zeros(self.size), STEPS[:1], place.h)

    # -- rounds --------------------------------------------------------------------------------
    def _iterate(self, place: _Place, step: FloatArray, steps: FloatArray, h: float) -> None:
        """Score pass along ``step``, exact line search on the grid, gradient pass."""
        end = place.x + step
        ends = [self._coef(place.x), self._coef(end)]
        reach = [place.x, place.x + steps.max() * step]
        message = {
            "kind": "trial",
            "h": h,
            "steps": steps,
            "coefs": np.stack([coef for coef, _ in ends], axis=1),
            "offsets": np.array([offset for _, offset in ends]),
            "slack": max(self.design.score_error(coef) for coef, _ in ends),
            **self._travel(place, reach),
        }
        stack, _ = self.fleet.round(message)
        found = stack.sum(axis=0)
        place.visited, place.alive = int(found[0]), int(found[1])
        losses = found[2:]
        while True:
            smooth, plain = losses.reshape(2, -1)
            quadratic = np.array([self._quadratic(place.x + t * step) for t in steps])
            k = int(np.argmin(quadratic + smooth))
            if k > 0 or steps[-1] < SHORTEST:
                break
            # Far from the optimum of a small h only tiny steps decrease: look among them. This
            # costs no pass, the scores along the step are known.
            steps = steps * steps[-1]
            stack, _ = self.fleet.round({**message, "kind": "search", "steps": steps})
            losses = stack.sum(axis=0)
        place.t = float(steps[k])
        place.stalled = place.stalled + 1 if len(steps) > 1 and k == 0 and h == place.h else 0
        place.x = place.x + place.t * step
        place.past.append(place.x)
        place.h = h
        if len(steps) > 1:
            if place.t < 0.5:
                place.wide = min(place.wide * 2, 16.0)
            elif place.t >= 1.0:
                place.wide = max(place.wide / 2, 1.0)
        message = self._gradient_message(place)
        stack, totals = self.fleet.round(
            {**message, "kind": "accept", "t": place.t, "ref": len(place.past) - 1}
        )
        self._finish(place, message, stack, totals, float(quadratic[k] + plain[k]))

    def _gradient_message(self, place: _Place) -> dict[str, Any]:
        most = self.options.zone_rows * self.design.width
        place.zone_asked = place.zone
        return {
            "kind": "gradient",
            "h": place.h,
            "wide": place.wide * place.h,
            "stride": max(1, round(place.zone / most)),
        }

    def _finish(
        self,
        place: _Place,
        message: dict[str, Any],
        stack: FloatArray,
        totals: exact.Totals,
        primal: float,
    ) -> None:
        """The dual point, the gap and the next Newton step from the sums of a gradient pass."""
        program, h = self.program, place.h
        largest = max(self.design.column_bound, 1.0)
        v, half = exact.read(totals, "v", program.weight_bound * largest)
        bound = program.weight_bound * largest**2 * message["stride"] / (2 * h)
        moment = exact.read(totals, "moment", bound)
        # Shards add to one triangle only.
        moment = np.triu(moment) + np.triu(moment, 1).T
        found = stack.sum(axis=0)
        place.zone, place.zone_weight = int(found[2]), float(found[3])

        keep = self.problem.feasible(v[0, -1], -v[1, -1])
        dual = float(keep @ found[:2]) - self._quadratic(self._features(keep @ v))
        coef, offset = self._coef(place.x)
        w = place.x[: self.design.rank]
        place.point = Point(coef, w, offset, primal, dual, paired=False, smoothing=h)

        inner = self._transform(moment)
        gradient = self._gradient(place, v)
        place.step, place.decrement = self._newton_step(inner, gradient)
        place.gradient_cost = 0.5 * float(gradient @ gradient)
        place.next_h = self._next_h(place)
        if place.next_h < h:
            # The zone's rows as they are, at the next h: alpha is linear in z within the zone, so
            # this is the exact step of the path in h while no row enters or leaves the zone.
            ratio = h / place.next_h
            gradient = self._gradient(place, half + ratio * (v - half))
            place.step, _ = self._newton_step(ratio * inner, gradient)

    def _gradient(self, place: _Place, v: FloatArray) -> FloatArray:
        return self.metric * place.x - self._features(v.sum(axis=0))

    def _newton_step(self, inner: FloatArray, gradient: FloatArray) -> tuple[FloatArray, float]:
        """The Newton step and the decrease that it promises."""
        diagonal = self.metric.copy()
        if self.problem.intercept == "true":
            # Nothing curves an unpenalised offset while the zone is empty: hold its step to 100
            # margins. The damping goes to zero with the gradient.
            diagonal[-1] = 1e-10 + 0.01 * abs(gradient[-1])
        factor = _cholesky(inner, diagonal)
        step = -linalg.cho_solve(factor, gradient, check_finite=False)
        return step, -0.5 * float(gradient @ step)

    def _next_h(self, place: _Place) -> float:
        """The smoothing of the next pass.

        ``P - D`` is about ``zone_weight h / 12`` (what smoothing costs; zone_weight is itself
        proportional to h) plus ``||gradient||^2 / 2``. h ends where the former is half of what is
        asked, and is lowered only when the decrease that the Newton step promises is no more than
        what smoothing costs: sooner, and steps become tiny and the dual point useless.
        """
        assert place.point is not None
        h, cost, tol = place.h, place.zone_weight * place.h / 12, self.options.tol
        # With no row in the zone smoothing costs nothing here, yet the closing pass reads alpha of
        # screened rows off their scores: h must go on down until they are out of its zone too.
        if place.decrement > max(cost, 1e-15 * abs(place.point.primal)):
            return h
        floor = h * float(np.sqrt(0.5 * tol * abs(place.point.primal) / cost)) if cost else 0.0
        converged = place.decrement <= 0.1 * cost
        if floor >= 0.7 * h:
            # Converged at the last h and still not enough: the estimate was too rosy. (Never creep
            # up to the floor: every new h costs a step.)
            return h / 2 if converged and place.gradient_cost < cost else h
        return max(h / (4 if converged else 2), floor)

    # -- screening -----------------------------------------------------------------------------
    def _screen(self, place: _Place, region: Ball) -> None:
        """Let every shard fix what the region proves; w, and so every score, stays as it is."""
        coef, offset = self._coef(place.x)
        true_offset = self.problem.intercept == "true"
        message = {
            "region": region,
            "slack": self.design.score_error(coef),
            "constant": float(self.problem.intercept == "constant"),
            "offset": offset if true_offset else 0.0,
            **self._travel(place, [place.x]),
        }
        message["mu"] = self._multiplier_interval(place, message) if true_offset else (0.0, 0.0)
        stack, _ = self.fleet.round({**message, "kind": "screen"})
        place.fixed = (int(stack[:, 0].sum()), int(stack[:, 1].sum()))

    def _multiplier_interval(self, place: _Place, message: dict[str, Any]) -> tuple[float, float]:
        """An interval that holds mu*: bisection on the weighted order statistics (MATH sec. 3).

        Every round counts weight below 65 candidates; four rounds leave 1e-7 of the range, and
        both ends are rounded outwards.
        """
        reach = float(np.linalg.norm(place.x)) + message["region"].radius
        widest = (
            2.0 + 2.0 * (reach + float(np.max(message["travel"][:-1]))) * self.design.largest_norm
        )
        ends = []
        for k, outward in enumerate((-1, 1)):
            low, high = -widest, widest
            for _ in range(4):
                grid = np.linspace(low, high, 65)
                stack, _ = self.fleet.round({**message, "kind": "quantiles", "grid": grid})
                found = stack.sum(axis=0)
                below, threshold = found[65 * k : 65 * (k + 1)], found[-2]
                # found[-1] is the total weight: slack for the rounding of the sums.
                enough = below >= threshold + outward * 1e-9 * found[-1]
                if not enough[-1] or enough[0]:
                    low, high = (-np.inf, -widest) if enough[0] else (widest, np.inf)
                    break
                first = int(np.argmax(enough))
                low, high = float(grid[first - 1]), float(grid[first])
            ends.append(low if outward < 0 else high)
        return ends[0], ends[1]

    # -- algebra -------------------------------------------------------------------------------
    def _coef(self, x: FloatArray) -> tuple[FloatArray, float]:
        """Coefficients of the columns and the offset of x = (w, b)."""
        w, b = (x[:-1], float(x[-1])) if self.offset else (x, 0.0)
        return self.design.coef(w), b

    def _features(self, v: FloatArray) -> FloatArray:
        """``T' v`` of a sum over columns, with the offset's entry where there is one."""
        w = self.design.features(v[:-1])
        return np.append(w, v[-1]) if self.offset else w

    def _transform(self, moment: FloatArray) -> FloatArray:
        """``T' M T``: the second moment of the features, bordered by the offset."""
        inner, factor = moment[:-1, :-1], self.design.factor
        if factor is not None:
            inner = factor.T @ (inner @ factor)
        if not self.offset:
            return inner.copy()
        out = np.empty((self.size, self.size))
        out[:-1, :-1] = inner
        out[:-1, -1] = out[-1, :-1] = self._features(np.append(moment[-1, :-1], 0.0))[:-1]
        out[-1, -1] = moment[-1, -1]
        return out

    def _quadratic(self, x: FloatArray) -> float:
        return 0.5 * float(self.metric @ (x * x))

    def _travel(self, place: _Place, ends: list[FloatArray]) -> dict[str, FloatArray]:
        """How far w and b are from every past point, at the furthest of ``ends``.

        The last entry stands for no point: rows never scored (``ref = -1``) read it.
        """
        travel, shift = np.zeros(len(place.past) + 1), np.zeros(len(place.past) + 1)
        last = -1 if self.offset else None
        for k, past in enumerate(place.past):
            travel[k] = max(float(np.linalg.norm((past - end)[:last])) for end in ends)
            shift[k] = max(abs(float((past - end)[-1])) for end in ends) if self.offset else 0.0
        return {"travel": travel, "shift": shift}

    # -- checkpoints ---------------------------------------------------------------------------
    def _meta(self, place: _Place) -> dict[str, Any]:
        """All the coordinator needs to go on, as JSON (Python floats survive it bit for bit)."""
        return {
            "x": place.x.tolist(),
            "h": place.h,
            "wide": place.wide,
            "past": [past.tolist() for past in place.past],
            "t": place.t,
            "zone": place.zone_asked,
            "visited": place.visited,
            "alive": place.alive,
            "stalled": place.stalled,
            "primal": place.point.primal if place.point else None,
        }

    def restore(self, program: NewtonProgram, meta: dict[str, Any]) -> _Place:
        """The place that ``_meta`` describes: one gradient round over the restored shards."""
        self.program = program
        place = _Place(
            np.array(meta["x"]),
            meta["h"],
            past=[np.array(past) for past in meta["past"]],
            t=meta["t"],
            wide=meta["wide"],
            zone=meta["zone"],
            visited=meta["visited"],
            alive=meta["alive"],
            stalled=meta["stalled"],
        )
        message = self._gradient_message(place)
        stack, totals = self.fleet.round(message)
        self._finish(place, message, stack, totals, meta["primal"])
        return place


def _cholesky(inner: FloatArray, diagonal: FloatArray) -> tuple[FloatArray, bool]:
    """Factor of ``inner + diag(diagonal)``, with a ridge where rounding left it indefinite.

    C / h can outgrow what float64 holds beside 1; any ridge still gives a direction of descent.
    """
    largest = float(np.max(np.diag(inner), initial=0.0))
    for ridge in (0.0, 1e-14, 1e-12, 1e-10, 1e-8):
        hessian = inner.copy()
        hessian[np.diag_indices_from(hessian)] += diagonal + ridge * largest
        try:
            return linalg.cho_factor(hessian, overwrite_a=True, check_finite=False)
        except linalg.LinAlgError:
            continue
    raise OverflowError("C is so large that the Newton step cannot be computed; use a smaller C")
