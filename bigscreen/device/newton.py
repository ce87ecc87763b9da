"""The smoothed Newton as the textbook has it, on dense features (maths.md 5.4).

    min over x = (w, b, mu)   P_h(x) = 1/2 ||w||^2 + 1/2 b^2 + mu . total + sum_i loss_h(G_i),
    G_i = p_i - s_i [phi_i, border_i] . x

with losses smoothed within ``|z| < h`` of their hinge points (`losses.Losses`). Each iteration has
one pass for the dual point ``alpha = loss_h'(G)`` and the gradient, a product over the rows of the
smoothing band for the Hessian, and one pass for the change of all scores along the step. It leaves
out all that makes `newton.solver.Newton` fast on a CPU (subsamples, rows left out, steps over rows
gathered, shards), and is the specification that the other one is tested against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.device.features import TILE_ENTRIES, Features
from bigscreen.device.losses import Losses
from bigscreen.device.place import CPU, Place
from bigscreen.errors import InputError
from bigscreen.files.checkpoint import load_alone, save_alone
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import Point, SumLayout
from bigscreen.solvers.protocol import Check, Run

CHECKPOINT_NAME = "dense"
"""Folder of the solver's checkpoints within the folder of a problem."""


@dataclass(frozen=True)
class DenseTuning:
    """Tuned values of the textbook Newton.

    Parameters
    ----------
    first_h : float
        Begin with this half-width of the smoothing band, in units of the mean of ``|G|`` at w = 0.
        (With 1 the band of a C-SVC is empty there, and the first steps are lost.)
    h_factor : float
        Multiply h by this after a step of at least ``full_step``.
    full_step : float
        Count a step of at least this length as one that the smoothed loss allows.
    smoothing_fraction : float
        Let h fall until smoothing makes at most this fraction of the requested gap.
    least_h : float
        Never let h fall below this fraction of its unit.
    band_rows_per_column : float
        Make the Hessian of at most this many rows of the band for each column, evenly spread.
    rescore_steps : int
        Score all rows anew after this many steps that moved their scores.
    max_evaluations : int
        Evaluate the objective's slope along a step at most this often.
    slope_fraction : float
        End a line search where the slope is at most this fraction of the slope at its start.
    patience : int
        Give up after this many steps that lower neither h nor the gap by a tenth.
    float32_tol : float
        Compute features in float64 if the requested relative gap is below this.
    """

    first_h: float = 2.0
    h_factor: float = 0.35
    full_step: float = 0.5
    smoothing_fraction: float = 0.25
    least_h: float = 1e-12
    band_rows_per_column: float = 20.0
    rescore_steps: int = 8
    max_evaluations: int = 60
    slope_fraction: float = 1e-3
    patience: int = 5
    float32_tol: float = 1e-4


DENSE = DenseTuning()


@dataclass(frozen=True)
class DenseNewton:
    """The textbook Newton, on arrays of any namespace; all rows are in one process.

    It begins at w = 0; a start is not used, since the path of h begins at a wide band.

    Parameters
    ----------
    tol : float
        Requested relative gap; decides on the precision of features.
    place : Place
        Where arrays live.
    tuning : DenseTuning
    """

    tol: float = 1e-3
    place: Place = CPU
    tuning: DenseTuning = DENSE

    def solve(self, run: Run, check: Check) -> Point:
        """Solve until ``check`` returns None; returns the last point.

        Raises
        ------
        InputError
            If no alpha within the box meets the coupling.
        """
        tuning, of = self.tuning, _Problem(run, self)
        now = of.start(check)
        while True:
            alpha = of.losses.alpha(now.G, now.h)
            V = of.take_dual_point(now, alpha)
            point = of.point(now, alpha, check.target)
            verdict = check(point, now.stats(run, tuning), now.save)
            if verdict is None:
                return point
            if (verdict.doubted or now.idle >= tuning.patience) and of.widen():
                now = replace(now, G=of.gradients(now.x), idle=0)
                continue

            g = of.metric * now.x + of.linear - V
            H = of.hessian(now, g)
            d = -of.xp.linalg.solve(H, g[:, None])[:, 0]
            dG = -of.losses.sign * of.features.dot(d)
            t, promise = of.search_line(now, d, dG), -0.5 * float(of.xp.sum(g * d))

            now.x, now.G = now.x + t * d, now.G + t * dG
            now.steps += 1
            if now.steps % tuning.rescore_steps == 0:
                now.G = of.gradients(now.x)
            done = t >= tuning.full_step or promise <= 0.1 * now.smoothing
            if done and now.smoothing > now.smoothing_target:
                now.lower_h(max(tuning.h_factor * now.h, tuning.least_h * of.unit))


@dataclass
class _DualPoint:
    """A feasible dual point: D, alpha (n,) or None if it is 0, and ``[w(alpha), ...]`` (size,)."""

    value: float
    alpha: Any
    features: FloatArray


@dataclass
class _Iterate:
    """The current x = (w, b, mu), the gradients G of all rows there, and h.

    ``smoothing``: the part of the gap that smoothing makes; ``smoothing_target``: the part that it
    may make. ``best``: the dual point of largest D. ``least``: the smallest gap since h fell last.
    ``idle``: steps since then that have not lowered it by a tenth.
    """

    x: Any
    G: Any
    h: float
    best: _DualPoint | None
    place: Place
    steps: int = 0
    idle: int = 0
    least: float = math.inf
    smoothing: float = math.inf
    smoothing_target: float = 0.0

    def lower_h(self, h: float) -> None:
        """Set a smaller h: the gap may grow at first."""
        if h < self.h:
            self.h, self.idle, self.least = h, 0, math.inf

    def note_gap(self, gap: float) -> None:
        """Count whether a step has lowered the gap by a tenth."""
        self.idle = 0 if gap < 0.9 * self.least else self.idle + 1
        self.least = min(self.least, gap)

    def stats(self, run: Run, tuning: DenseTuning) -> dict[str, Any]:
        """Return the report for `Check`: every pass reads all rows."""
        n = run.design.data.n_rows
        return {
            "rows_visited": n,
            "rows_alive": n,
            "fixed_hi": 0,
            "fixed_lo": 0,
            "stalled": self.idle >= 2 * tuning.patience,
            "full_passes": self.steps,
            "partial_passes": 0,
        }

    def save(self, folder: Path, meta: dict[str, Any]) -> None:
        """Write a checkpoint atomically; ``meta``: other values for its record."""
        record = {name: getattr(self, name) for name in ("steps", "idle", "least", "h")}
        arrays = {"x": self.place.take_back(self.x), "G": self.place.take_back(self.G)}
        if self.best is not None:
            record["dual"] = self.best.value
            arrays["features"] = self.best.features
            if self.best.alpha is not None:
                arrays["alpha"] = self.place.take_back(self.best.alpha)
        save_alone(folder / CHECKPOINT_NAME, {**meta, "dense": record}, arrays)

    @classmethod
    def restore(
        cls, place: Place, meta: dict[str, Any], arrays: dict[str, NDArray[Any]]
    ) -> _Iterate:
        """Return the iterate that ``save`` wrote, and remove its record from ``meta``."""
        own, best = meta.pop("dense"), None
        if "dual" in own:
            alpha = place.put(arrays["alpha"]) if "alpha" in arrays else None
            best = _DualPoint(own.pop("dual"), alpha, arrays["features"])
        return cls(place.put(arrays["x"]), place.put(arrays["G"]), best=best, place=place, **own)


def dense_bytes(rows: int, columns: int) -> int:
    """Return the bytes that a solve takes next to its rows and features.

    These are float64 numbers of each row (its loss, G, alpha), a tile of kernel entries in float32
    and float64, and matrices of as many rows and columns as there are features.
    """
    return 8 * (30 * rows + 2 * TILE_ENTRIES + 5 * (columns + 1) ** 2)


class _Problem:
    """The problem of a run on the device: losses, features, and the parts of P without losses.

    Attributes
    ----------
    metric, linear : float64 (size,)
        P has ``1/2 metric . x^2 + linear . x`` in addition to the losses.
    unit : float
        The typical size of G at w = 0, known after ``start``.
    """

    def __init__(self, run: Run, options: DenseNewton) -> None:
        """Move the rows and their losses to the place, and compute features."""
        self.run, self.place, self.tuning = run, options.place, options.tuning
        self.xp, design = options.place.xp, run.design
        self.frame = SumLayout.of(run.problem, design.data)
        dual = design.dual(run.problem)
        self.losses = Losses(self.place, dual, self.frame)
        self.border = self.frame.border(dual)
        self.features = self._features(
            np.float32 if options.tol >= self.tuning.float32_tol else np.float64
        )
        metric, linear = np.ones(self.features.size), np.zeros(self.features.size)
        multipliers = slice(design.rank + self.frame.first, None)
        metric[multipliers], linear[multipliers] = 0.0, self.frame.total
        self.metric, self.linear = self.place.put(metric), self.place.put(linear)
        self.unit, self.best = 1.0, None
        if not self.frame.lifts and np.all(dual.lo <= 0) and np.all(dual.hi >= 0):
            self.best = _DualPoint(0.0, None, np.zeros(len(metric)))  # alpha = 0 is feasible

    def start(self, check: Check) -> _Iterate:
        """Return the iterate of the run's checkpoint, or x = 0 and a band as wide as all G."""
        x = self.place.zeros((self.features.size,))
        G = self.gradients(x)
        self.unit = self._unit(G)
        found = load_alone(self.run.checkpoint, CHECKPOINT_NAME)
        if found is not None:
            now = _Iterate.restore(self.place, *found)
            check.restored(found[0])
            return now
        return _Iterate(x, G, self.tuning.first_h * self.unit, self.best, self.place)

    def gradients(self, x: Any) -> Any:
        """Score all rows at x: G (n,)."""
        return self.losses.lin - self.losses.sign * self.features.dot(x)

    def take_dual_point(self, now: _Iterate, alpha: Any) -> Any:
        """Sum alpha (n,) over the rows, and keep it if its D, once it is feasible, is the best.

        With a coupling, a feasible alpha scales each term of the layout, see `SumLayout.scales`.
        Returns ``sum s alpha [phi, border]`` of alpha as it is (size,).
        """
        xp, losses, frame = self.xp, self.losses, self.frame
        coefs, sums = losses.terms(alpha)
        V = self.features.sums(coefs)
        v = self.place.take_back(V)
        scales = frame.scales(v)
        if scales is not None:
            features = scales @ v
            value = frame.value(scales, self.place.take_back(sums))
            value -= 0.5 * float(self.place.take_back(self.metric) @ features**2)
            if now.best is None or value > now.best.value:
                feasible = losses.sign * (coefs @ self.place.put(scales))
                now.best = _DualPoint(value, feasible, features)
        return xp.sum(V[: frame.buckets, :], axis=0)

    def point(self, now: _Iterate, alpha: Any, target: float) -> Point:
        """Return the point of an iterate: its P, and the best D so far.

        Sets what ``now`` records of the gap. ``alpha`` (n,): of the smoothed losses at its G;
        ``target``: the requested relative gap.
        """
        run, losses, frame, best = self.run, self.losses, self.frame, now.best
        if best is None:
            raise InputError(
                "no alpha within the box meets the coupling; with weights as they are, nu is "
                "too large for one of the classes: use a smaller nu"
            )
        design, metric = run.design, self.place.take_back(self.metric)
        x = self.place.take_back(now.x)
        w, extras = x[: design.rank], x[design.rank :]
        coef = design.coef(w)
        plain = losses.plain(now.G)
        primal = float(0.5 * metric @ x**2 + self.place.take_back(self.linear) @ x) + plain
        slopes = losses.conjugate(alpha) + (now.G - losses.lin) * alpha
        now.smoothing = 0.0 if frame.curved else plain - float(self.xp.sum(slopes))
        now.smoothing_target = self.tuning.smoothing_fraction * target * abs(primal)
        now.note_gap(primal - best.value)
        constant = frame.constant * float(np.sum(extras[: frame.first]))
        return Point(
            coef,
            w,
            constant + run.problem.offset(frame.mu(extras)),
            primal,
            best.value,
            paired=False,
            alpha=None if best.alpha is None else self.place.take_back(best.alpha),
            rounding=3 * run.reach.total * design.score_error(coef, self.features.dtype),
            multiplier=tuple(extras[frame.first :].tolist()),
            apart=float(np.sqrt(metric @ (x - best.features) ** 2)),
        )

    def hessian(self, now: _Iterate, g: Any) -> Any:
        """Return the Hessian of P_h at an iterate with gradient g, of evenly spread band rows.

        While no row is in the band, P is linear in a multiplier: its entry limits its step to about
        100 units, and goes to 0 with g.
        """
        xp, tuning = self.xp, self.tuning
        curvature = self.losses.curvature(now.G, now.h)
        (band,) = xp.nonzero(curvature > 0)
        stride = max(1, math.ceil(band.shape[0] / (tuning.band_rows_per_column * g.shape[0])))
        ids = band[now.steps % stride :: stride]
        moment = self.features.moment(ids, stride * xp.take(curvature, ids))
        diagonal = self.metric + (1.0 - self.metric) * (1e-10 + 0.01 / self.unit * xp.abs(g))
        diagonal = diagonal + 1e-15 * xp.max(moment)
        return moment + xp.eye(g.shape[0], dtype=xp.float64, device=self.place.device) * diagonal

    def search_line(self, now: _Iterate, d: Any, dG: Any) -> float:
        """Return the length t at which P_h is least along ``x + t d``, where G is ``G + t dG``.

        The slope of P_h along the step is piecewise linear and grows with t: Newton's steps on it,
        within a bracket of its zero. 0 if rounding hides that P_h falls.
        """
        xp, losses, tuning = self.xp, self.losses, self.tuning
        first = float(xp.sum((self.metric * now.x + self.linear) * d))
        bend = float(xp.sum(self.metric * d**2))

        def slope(t: float) -> float:
            """Return the derivative of P_h at length t."""
            return first + bend * t + float(xp.sum(losses.alpha(now.G + t * dG, now.h) * dG))

        def curvature(t: float) -> float:
            """Return the second derivative of P_h at length t."""
            return bend + float(xp.sum(losses.curvature(now.G + t * dG, now.h) * dG**2))

        low, high, t, steepest = 0.0, math.inf, 1.0, slope(0.0)
        if steepest >= 0:
            return 0.0
        for _ in range(tuning.max_evaluations):
            here = slope(t)
            if abs(here) <= tuning.slope_fraction * -steepest:
                return t
            low, high = (t, high) if here < 0 else (low, t)
            t -= here / max(curvature(t), 1e-300)
            if not low < t < high:
                # (A multiplier without rows in the band takes steps a billion times too long.)
                t = 2 * low if high == math.inf else 0.5 * (low + high) if low else 0.1 * high
        return low

    def widen(self) -> bool:
        """Compute features in float64 from now on; False if they are already."""
        if self.features.dtype is np.float64:
            return False
        del self.features
        self.features = self._features(np.float64)
        return True

    def _features(self, dtype: type) -> Features:
        """Make the features of all rows in a float type."""
        run, data = self.run, self.run.design.data
        room = run.spare + (data.n_rows * data.row_bytes if run.resident == 1 else 0.0)
        return Features(run.design, self.border, self.place, dtype, room)

    def _unit(self, G: Any) -> float:
        """Return the mean size of G at x = 0, each row weighted by how fast its loss can grow.

        If all are 0 (a nu-SVC), the mean size of scores at w(alpha), alpha in the middle.
        """
        xp, losses = self.xp, self.losses
        weight = max(float(xp.sum(losses.weight)), 1e-300)
        size = float(xp.sum(losses.weight * xp.abs(G)))
        if size == 0:
            V = self.features.sums((losses.sign * losses.alpha(G, 1.0))[:, None])
            middle = self.features.dot(V[0, :])
            size = float(xp.sum(losses.weight * xp.abs(middle)))
        return size / weight or 1.0
