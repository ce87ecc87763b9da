"""The smoothed Newton as the textbook has it, on dense features (maths.md 5.4).

    min over x = (w, b, mu)   P_h(x) = 1/2 ||w||^2 + 1/2 b^2 + mu . total + sum_i loss_h(G_i),
    G_i = p_i - s_i [phi_i, border_i] . x

with losses smoothed within ``|z| < h`` of their hinge points (`losses.Losses`). Each iteration has
one pass for the dual point ``alpha = loss_h'(G)`` and the gradient, a product over the rows of the
smoothing band for the Hessian, and one pass for the change of all scores along the step. Problems
that share features are the columns of one matrix: a pass multiplies the features by the machines of
all of them, and each has its own h, Hessian, step length, dual point and end. Shards of the rows
live where the workers of a fleet have them (`program.DenseProgram`), and only sums travel.

It leaves out all that makes `newton.solver.Newton` fast on a CPU (subsamples, rows left out, steps
over rows gathered), and is the specification that the other one is tested against.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.explicit import score_doubt
from bigscreen.data.rows import Rows
from bigscreen.device.features import TILE_ENTRIES
from bigscreen.device.place import CPU, Place
from bigscreen.device.program import DenseProgram, newton_direction
from bigscreen.errors import InputError
from bigscreen.features.design import row_ranges
from bigscreen.numerics import reproducible
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import Point, Reading, SumLayout
from bigscreen.solvers.protocol import Case, Check, Run, Save, Verdict

CHECKPOINT_NAME = "dense"
"""Folder of the solver's checkpoints within the folder of a problem."""

ROW_BYTES = 8 * 30
"""Estimated memory in bytes for each row and each problem: losses, G, alpha and copies of them."""


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
        Take features in float64 after this many steps that lowered neither h nor the gap by a
        tenth, and give up after twice as many. (With 5, steps that widen a narrow band are taken
        for rounding: 2 of 10 fits to a relative gap of 1e-6 ended short of it, 3,000 rows.)
    float32_tol : float
        Compute features in float64 if the requested relative gap is below this.
    max_shards : int
        Divide the rows into at most this many shards, one or more for each worker. (Each sends a
        Hessian in each step.)
    shard_entries : int
        Divide the rows into shards of at least this many numbers (rows times features). A single
        shard keeps its Hessians on the device.
    hessian_bytes : int
        Sum the Hessians of as many problems at once over the shards as take this many bytes.
    many_part : float
        When many problems are solved together, end one at this part of the requested gap, so that
        its closing pass proves it.
    many_steps : int
        When many problems are solved together, end after this many steps.
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
    patience: int = 20
    float32_tol: float = 1e-4
    max_shards: int = 8
    shard_entries: int = 2**26
    hessian_bytes: int = 2**28
    many_part: float = 0.8
    many_steps: int = 200


DENSE = DenseTuning()


@dataclass(frozen=True)
class DenseNewton:
    """The textbook Newton, on arrays of any namespace.

    It begins at w = 0; a start is not used, since the path of h begins at a wide band.

    Parameters
    ----------
    tol : float
        Requested relative gap; decides on the precision of features.
    place : Place
        Where arrays live: on the device of this name of each worker.
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
        case = Case(run.problem, run.design.data)
        return _Solve(self, run, (case,), (check,)).run()[0]

    def solve_many(self, run: Run, cases: Sequence[Case], until: float | None) -> list[Point]:
        """Solve problems together that share the features of a run, and return their points.

        Parameters
        ----------
        run : Run
            Its problem is not used.
        cases : sequence of Case
            Problems of one kind, with the same kind of offset.
        until : float or None
            Stop all problems at this value of ``time.monotonic()``.

        Raises
        ------
        InputError
            If no alpha within the box meets the coupling of a problem.
        """
        goal = self.tuning.many_part * self.tol
        checks = [_Goal(goal, until, self.tuning.many_steps) for _ in cases]
        return _Solve(self, run, tuple(cases), checks).run()


@dataclass
class _Goal:
    """The check of one of many problems that are solved together; no closing pass follows.

    ``target``: end at this relative gap; ``until``: at this value of ``time.monotonic()``, if not
    None; ``left``: after this many calls.
    """

    target: float
    until: float | None
    left: int

    def __call__(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        """Count a call; returns None if the problem's solve should end."""
        self.left -= 1
        met = point.relative_gap <= self.target or stats["stalled"] or self.left <= 0
        return None if met or self.expired() else Verdict()

    def expired(self) -> bool:
        """Whether the time is used up."""
        return self.until is not None and time.monotonic() > self.until

    def pause(self, save: Save | None = None) -> None:
        """Do nothing: nothing is saved before all problems are solved."""

    def restored(self, meta: dict[str, Any]) -> None:
        """Do nothing: no solve is resumed."""


@dataclass(frozen=True)
class _DualPoint:
    """A feasible dual point: D, ``[w(alpha), ...]`` (size,), and how alpha is read off scores.

    ``reading`` is None if alpha is 0. ``alpha`` (rows,) is known if the reading's h is so small
    that rounding of the scores would change alpha.
    """

    value: float
    features: FloatArray
    reading: Reading | None
    alpha: FloatArray | None = None


@dataclass
class _Iterates:
    """The current x = (w, b, mu) and h of the problems that are not solved yet.

    Attributes
    ----------
    problems : int64 (k,)
        The numbers of the problems; other arrays have a row for each of them.
    x : float64 (k, size)
    linear : float64 (k, size)
        P has ``1/2 metric . x^2 + linear . x`` in addition to the losses.
    unit : float64 (k,)
        The typical size of G at w = 0.
    reach : float64 (k,)
        The sums of the rows' reach, see `Dual.reach`.
    h, t : float64 (k,)
        The half-width of the smoothing band; the length of the step that rows have yet to take.
    read : float64 (k,)
        The h that the last step was made with. The next dual point is read off with it: with a
        smaller h and a few rows in the band, the step would hardly raise D.
    smoothing, smoothing_target : float64 (k,)
        The part of the gap that smoothing makes, and the part that it may make.
    least : float64 (k,)
        The smallest gap since h fell last.
    idle : int64 (k,)
        Steps since then that have not lowered the gap by a tenth.
    curvature, band : float64 (k,)
        The sum of all second derivatives of the losses; the number of rows in the smoothing band.
    best : list of _DualPoint or None
        The dual point of largest D.
    steps : int
        Steps so far.
    rescore : bool
        Whether to score all rows anew in the next pass, and not only to move their scores.
    """

    problems: NDArray[np.int64]
    x: FloatArray
    linear: FloatArray
    unit: FloatArray
    reach: FloatArray
    h: FloatArray
    best: list[_DualPoint | None]
    read: FloatArray = field(init=False)
    t: FloatArray = field(init=False)
    smoothing: FloatArray = field(init=False)
    smoothing_target: FloatArray = field(init=False)
    least: FloatArray = field(init=False)
    idle: NDArray[np.int64] = field(init=False)
    curvature: FloatArray = field(init=False)
    band: FloatArray = field(init=False)
    steps: int = 0
    rescore: bool = False

    def __post_init__(self) -> None:
        """Set what a pass finds to zeros, and the smallest gaps to infinity."""
        self.read = self.h
        for name in ("t", "smoothing", "smoothing_target", "curvature", "band"):
            setattr(self, name, np.zeros(len(self.problems)))
        self.least = np.full(len(self.problems), math.inf)
        self.idle = np.zeros(len(self.problems), np.int64)

    def narrow(self, keep: NDArray[np.bool_]) -> None:
        """Keep the problems of this mask (k,), and drop all others."""
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(self, name, value[keep])
        self.best = [one for one, stays in zip(self.best, keep, strict=True) if stays]

    def note_gaps(self, gaps: FloatArray) -> None:
        """Count whether the last step has lowered each gap by a tenth."""
        gaps = np.maximum(gaps, 0.0)  # rounding can make a gap negative, and no step lowers it
        self.idle = np.where(gaps < 0.9 * self.least, 0, self.idle + 1)
        self.least = np.minimum(self.least, gaps)

    def lower_h(self, promise: FloatArray, tuning: DenseTuning) -> None:
        """Lower h where the smoothed problem is nearly solved and smoothing makes much of the gap.

        ``promise`` (k,): the decrease of P_h that the last Newton steps promised.
        """
        done = (self.t >= tuning.full_step) | (promise <= 0.1 * self.smoothing)
        lower = np.maximum(tuning.h_factor * self.h, tuning.least_h * self.unit)
        falls = done & (self.smoothing > self.smoothing_target) & (lower < self.h)
        self.read = self.h
        self.h = np.where(falls, lower, self.h)
        # (With a smaller h the gap may grow at first.)
        self.idle, self.least = np.where(falls, 0, self.idle), np.where(falls, math.inf, self.least)


class _Solve:
    """One solve of problems over shared features: it sends messages, and sums the answers.

    Parameters
    ----------
    options : DenseNewton
    run : Run
    cases : tuple of Case
    checks : sequence of Check
        One for each case.

    Attributes
    ----------
    metric : float64 (size,)
        P has ``1/2 metric . x^2 + linear . x`` in addition to the losses.
    points : dict of int to Point
        The last points of problems that are solved, by number.
    dtype : type
        float32 or float64, of features.
    """

    def __init__(
        self, options: DenseNewton, run: Run, cases: tuple[Case, ...], checks: Sequence[Check]
    ) -> None:
        """Start the program on all shards, at x = 0."""
        self.fleet, self.design, self.checkpoint = run.fleet, run.design, run.checkpoint
        self.place, self.tuning = options.place, options.tuning
        self.cases, self.checks = cases, checks
        self.frames = [SumLayout.of(*case) for case in cases]
        self.frame, data, rank = self.frames[0], run.design.data, run.design.rank
        self.dtype = np.float32 if options.tol >= self.tuning.float32_tol else np.float64
        self.metric = np.ones(rank + self.frame.extras)
        self.metric[rank + self.frame.first :] = 0.0
        self.points: dict[int, Point] = {}
        self.ranges = shard_ranges(data, len(self.metric), self.tuning)
        room = run.spare + (data.n_rows * data.row_bytes if run.resident == 1 else 0.0)
        program = DenseProgram(
            run.design, cases, self.frame, self.place, self.dtype, room, self.ranges
        )
        run.fleet.start(program, len(self.ranges))

    def run(self) -> list[Point]:
        """Step until the check of each problem returns None."""
        now = self._start()
        while True:
            sums = self._pass(now)
            self._take_dual_points(now, sums)
            if self._gap_may_be_rounding(now, sums):
                self._widen(now)
                continue
            keep, doubted = self._check(now, sums)
            if not keep.any():
                return [self.points[j] for j in range(len(self.cases))]
            now.narrow(keep)
            stuck = doubted or bool(np.any(now.idle >= self.tuning.patience))
            if stuck and self.dtype is np.float32:
                self._widen(now)
                continue

            g = self.metric * now.x + now.linear - sums.V[keep]
            d = self._directions(now, g)
            self._round(now, "along", d=d)
            now.t = self._search_lines(now, d)
            now.x = now.x + now.t[:, None] * d
            now.steps += 1
            now.rescore = now.steps % self.tuning.rescore_steps == 0
            now.lower_h(-0.5 * np.sum(g * d, axis=1), self.tuning)

    def _round(self, now: _Iterates, kind: str, **what: Any) -> FloatArray:
        """Send a message to all shards; returns the sum of their answers (k, ...).

        ``kind``: which method of `DenseProgram` answers; ``what``: other keys of the message. Sets
        ``totals``, the exact sums.
        """
        stack, self.totals = self.fleet.round({"kind": kind, "left": now.problems, **what})
        found: FloatArray = stack.sum(axis=0).reshape(len(now.problems), -1)
        return found

    def _start(self) -> _Iterates:
        """Return the iterates of the run's checkpoint, or x = 0 and bands as wide as all G."""
        if self.checkpoint is not None:
            meta = self.fleet.load(self.checkpoint / CHECKPOINT_NAME)
            if meta is not None:
                now = self._restore(meta)
                self.checks[0].restored(meta)
                return now
        k, size = len(self.cases), len(self.metric)
        linear = np.zeros((k, size))
        linear[:, self.design.rank + self.frame.first :] = [frame.total for frame in self.frames]
        one = np.ones(k)
        now = _Iterates(np.arange(k), np.zeros((k, size)), linear, one, one, one, [None] * k)
        now.reach, weight, sizes, infeasible = self._round(now, "sizes").T
        now.unit = self._units(now, weight, sizes)
        now.h = now.read = self.tuning.first_h * now.unit
        for j in np.flatnonzero(infeasible == 0).tolist():
            if not self.frame.lifts:
                now.best[j] = _DualPoint(0.0, np.zeros(size), None)  # alpha = 0 is feasible
        return now

    def _widen(self, now: _Iterates) -> None:
        """Compute features in float64 from the next pass on."""
        self.dtype, now.rescore = np.float64, True
        now.idle, now.least = np.zeros_like(now.idle), np.full_like(now.least, math.inf)
        for j, best in enumerate(now.best):
            # (D of float32 features may be larger than any of float64 features.)
            if best is not None and best.reading is not None:
                now.best[j] = replace(best, value=-math.inf)

    def _units(self, now: _Iterates, weight: FloatArray, sizes: FloatArray) -> FloatArray:
        """Return the mean size of G at x = 0, each row weighted by how fast its loss can grow.

        If all are 0 (a nu-SVC), the mean size of scores at w(alpha), alpha in the middle.
        ``weight`` (k,): the sums of these weights; ``sizes`` (k,): the sums of weights times
        ``|G|``.
        """
        if np.any(sizes == 0):
            middle = self._pass(now).V
            sizes = np.where(sizes == 0, self._round(now, "along", d=middle)[:, 0], sizes)
        mean = sizes / np.maximum(weight, 1e-300)
        return np.where(mean == 0, 1.0, mean)

    def _pass(self, now: _Iterates) -> _Sums:
        """Move the scores of all rows by the last step, or score anew; returns sums over alpha."""
        what = {"x": now.x, "dtype": np.dtype(self.dtype).name} if now.rescore else {"t": now.t}
        found = self._round(now, "take", h=now.h, read=now.read, **what)
        plain, slopes, now.curvature, now.band = found[:, :4].T
        terms, frame = self.frame.terms, self.frame
        rest = 4 + terms * (2 if frame.curved else 1)
        v = found[:, rest:].reshape(len(found), -1, len(self.metric))
        V = v[:, : frame.buckets].sum(axis=1) if v.shape[1] == terms else v[:, terms]
        coefs = self.design.coef(now.x[:, : self.design.rank].T)
        return _Sums(plain, slopes, found[:, 4:rest], v[:, :terms], V, coefs)

    def _take_dual_points(self, now: _Iterates, sums: _Sums) -> None:
        """Keep the alpha of each problem if its D, once it is feasible, is the best.

        With a coupling, a feasible alpha scales each term of the layout, see `SumLayout.scales`.
        """
        unread: dict[int, tuple[_DualPoint, FloatArray]] = {}
        for j, number in enumerate(now.problems.tolist()):
            frame, best = self.frames[number], now.best[j]
            scales = frame.scales(sums.v[j])
            if scales is None:
                continue
            features = scales @ sums.v[j]
            value = frame.value(scales, sums.parts[j]) - 0.5 * self.metric @ features**2
            if best is None or value > best.value:
                coef, constant, multiplier = self._machine(now, sums, j)
                reading = Reading(coef, constant, float(now.read[j]), multiplier=multiplier)
                now.best[j] = found = _DualPoint(float(value), features, reading)
                # Scores that are rounded by d move alpha by d / h, and D by the square of this.
                least = self._score_doubt(coef) / math.sqrt(self.checks[number].target)
                if now.read[j] < least and not frame.curved:
                    unread[j] = found, scales
        if unread:
            of, longest = np.array(list(unread)), max(b - a for a, b in self.ranges)
            what = {"of": of, "scales": np.stack([scales for _, scales in unread.values()])}
            message = {"kind": "alpha", "left": now.problems, "read": now.read, "longest": longest}
            stack, _ = self.fleet.round({**message, **what})
            rows = stack.reshape(len(stack), len(of), longest)
            for i, (j, (found, _)) in enumerate(unread.items()):
                alpha = rows[:, i, :].ravel()
                now.best[j] = replace(found, alpha=alpha[~np.isnan(alpha)])

    def _primals(self, now: _Iterates, sums: _Sums) -> FloatArray:
        """Return P of each problem (k,)."""
        regular: FloatArray = np.sum((0.5 * self.metric * now.x + now.linear) * now.x, axis=1)
        return regular + sums.plain

    def _gap_may_be_rounding(self, now: _Iterates, sums: _Sums) -> bool:
        """Whether a gap is so small that rounding of float32 scores may have made it."""
        if self.dtype is np.float64:
            return False
        primal, n = self._primals(now, sums), self.design.data.n_rows
        for j, best in enumerate(now.best):
            # (Errors of n rows that are independent add up to the root of n.)
            error = now.reach[j] / math.sqrt(n) * self._score_doubt(sums.coefs[:, j])
            if best is not None and primal[j] - best.value < error:
                return True
        return False

    def _score_doubt(self, coef: FloatArray) -> float:
        """Return how far scores of these coefficients (m,) are off here, or in a closing pass."""
        own = np.finfo(self.dtype).eps * self.design.column_bound * float(np.linalg.norm(coef))
        return max(score_doubt(self.design, coef), float(own))

    def _machine(
        self, now: _Iterates, sums: _Sums, j: int
    ) -> tuple[FloatArray, float, tuple[float, ...]]:
        """Return the j-th machine: coefficients of columns (m,), the constant, the multipliers."""
        extras, first = now.x[j, self.design.rank :], self.frame.first
        constant = self.frame.constant * float(np.sum(extras[:first]))
        return sums.coefs[:, j].copy(), constant, tuple(extras[first:].tolist())

    def _check(self, now: _Iterates, sums: _Sums) -> tuple[NDArray[np.bool_], bool]:
        """Ask each problem's check whether to go on.

        Sets what ``now`` records of gaps. Returns the mask (k,) of problems that go on, and whether
        rounding made a gap of any of them.
        """
        primal = self._primals(now, sums)
        target = np.array([self.checks[number].target for number in now.problems])
        now.smoothing_target = self.tuning.smoothing_fraction * target * np.abs(primal)
        now.smoothing = 0.0 * primal if self.frame.curved else sums.plain - sums.slopes
        keep, doubted, gaps = np.ones(len(primal), bool), False, np.zeros(len(primal))
        for j, number in enumerate(now.problems.tolist()):
            point = self._point(now, sums, j, float(primal[j]))
            verdict = self.checks[number](point, self._stats(now, j), partial(self._save, now))
            gaps[j] = point.gap
            if verdict is None:
                keep[j], self.points[number] = False, point
            else:
                doubted |= verdict.doubted
        now.note_gaps(gaps)
        return keep, doubted

    def _point(self, now: _Iterates, sums: _Sums, j: int, primal: float) -> Point:
        """Return the j-th point: its x, with its P, and the best D so far."""
        best, rank = now.best[j], self.design.rank
        if best is None:
            raise InputError(
                "no alpha within the box meets the coupling; with weights as they are, nu is "
                "too large for one of the classes: use a smaller nu"
            )
        coef, constant, multiplier = self._machine(now, sums, j)
        number = int(now.problems[j])
        mu, problem = self.frames[number].mu(now.x[j, rank:]), self.cases[number].problem
        error = self.design.score_error(coef, self.dtype)
        return Point(
            coef,
            now.x[j, :rank].copy(),
            constant + problem.offset(mu),
            primal,
            best.value,
            paired=False,
            readings=() if best.reading is None or best.alpha is not None else (best.reading,),
            alpha=best.alpha,
            rounding=float(3 * now.reach[j] * error),
            multiplier=multiplier,
            apart=float(np.sqrt(self.metric @ (now.x[j] - best.features) ** 2)),
        )

    def _stats(self, now: _Iterates, j: int) -> dict[str, Any]:
        """Return the report for `Check`: every pass reads all rows."""
        n = self.design.data.n_rows
        return {
            "rows_visited": n,
            "rows_alive": n,
            "fixed_hi": 0,
            "fixed_lo": 0,
            "stalled": bool(now.idle[j] >= 2 * self.tuning.patience),
            "full_passes": now.steps,
            "partial_passes": 0,
        }

    def _directions(self, now: _Iterates, g: FloatArray) -> FloatArray:
        """Return the Newton directions (k, size) of P_h, each with a Hessian of its band rows.

        While no row is in the band, P is linear in a multiplier: its entry limits its step to about
        100 units, and goes to 0 with g (k, size), the gradients.
        """
        tuning, size = self.tuning, len(self.metric)
        strides = np.ceil(now.band / (tuning.band_rows_per_column * size))
        strides = np.maximum(strides, 1).astype(np.int64)
        free = 1e-10 + 0.01 / now.unit[:, None] * np.abs(g)
        ridge = self.metric + (1.0 - self.metric) * free
        what = {"h": now.h, "strides": strides, "turn": now.steps}
        if len(self.ranges) == 1:
            return self._round(now, "newton", g=g, ridge=ridge, **what)
        largest = max(self.design.largest_norm, self.frame.constant, 1.0)
        bounds, d = strides * now.curvature * largest**2, np.empty_like(g)
        for a, b in row_ranges(len(g), max(1, tuning.hessian_bytes // (8 * size**2))):
            self._round(now, "hessian", of=np.arange(a, b), bounds=bounds[a:b], **what)
            for j in range(a, b):
                H = self.place.put(reproducible.read(self.totals, f"hessian {j - a}", bounds[j]))
                d[j] = newton_direction(self.place, H, g[j], ridge[j])
        return d

    def _search_lines(self, now: _Iterates, d: FloatArray) -> FloatArray:
        """Return the lengths t (k,) at which each P_h is least along ``x + t d``, with G + t dG.

        The slope of P_h along a step is piecewise linear and grows with t: Newton's steps on it,
        within a bracket of its zero. 0 if rounding hides that P_h falls.
        """
        tuning = self.tuning
        first = np.sum((self.metric * now.x + now.linear) * d, axis=1)
        bend = np.sum(self.metric * d**2, axis=1)

        def slope(t: FloatArray) -> tuple[FloatArray, FloatArray]:
            """Return the first and the second derivative of P_h at lengths t."""
            slopes, curvatures = self._round(now, "slope", t=t, h=now.h).T
            return first + bend * t + slopes, bend + curvatures

        low, high, t = np.zeros_like(bend), np.full_like(bend, math.inf), np.ones_like(bend)
        steepest, _ = slope(low)
        done = steepest >= 0
        found = np.where(done, 0.0, np.nan)
        for _ in range(tuning.max_evaluations):
            here, curvature = slope(t)
            met = ~done & (np.abs(here) <= tuning.slope_fraction * -steepest)
            found, done = np.where(met, t, found), done | met
            if done.all():
                return found
            low, high = np.where(here < 0, t, low), np.where(here < 0, high, t)
            t = t - here / np.maximum(curvature, 1e-300)
            # (A multiplier without rows in the band takes steps a billion times too long.)
            inside = np.where(low > 0, 0.5 * (low + high), 0.1 * high)
            inside = np.where(high == math.inf, 2 * low, inside)
            t = np.where((low < t) & (t < high), t, inside)
        return np.where(done, found, low)

    def _save(self, now: _Iterates, folder: Path, meta: dict[str, Any]) -> None:
        """Write a checkpoint of a run of one problem; ``meta``: other values for its record."""
        (best,) = now.best
        assert best is not None
        record = {name: getattr(now, name).tolist() for name in _SAVED}
        record |= {"steps": now.steps, "dtype": np.dtype(self.dtype).name, "dual": best.value}
        record["reading"] = None if best.reading is None else best.reading.to_dict()
        arrays = {"x": now.x, "linear": now.linear, "features": best.features}
        arrays |= {} if best.alpha is None else {"alpha": best.alpha}
        self.fleet.save(folder / CHECKPOINT_NAME, {**meta, "dense": record, **arrays})

    def _restore(self, meta: dict[str, Any]) -> _Iterates:
        """Return the iterates that ``_save`` wrote, and remove its record from ``meta``."""
        own, x, linear, features = (meta.pop(n) for n in ("dense", "x", "linear", "features"))
        self.dtype = np.dtype(own["dtype"]).type
        saved = {name: np.array(own[name]) for name in _SAVED}
        reading = None if own["reading"] is None else Reading.from_dict(own["reading"])
        best: list[_DualPoint | None] = [
            _DualPoint(own["dual"], features, reading, meta.pop("alpha", None))
        ]
        fixed = saved["unit"], saved["reach"], saved["h"]
        now = _Iterates(np.arange(1), x, linear, *fixed, best, steps=own["steps"])
        now.read, now.least, now.idle = saved["read"], saved["least"], saved["idle"]
        return now


_SAVED = ("unit", "reach", "h", "read", "least", "idle")
"""Attributes of `_Iterates` in the record of a checkpoint; what a pass finds is found again."""


@dataclass(frozen=True)
class _Sums:
    """The sums of a pass over all rows, and the machines that it was made with.

    ``plain`` (k,): the losses, ``slopes`` (k,): what they would be without smoothing. ``parts``
    (k, ...): what `SumLayout.value` takes. ``v`` (k, terms, size): ``sum s alpha [phi, border]`` of
    each term. These are of the dual point; ``V`` (k, size) is the sum for the alpha that h implies.
    ``coefs`` (m, k): coefficients of the columns.
    """

    plain: FloatArray
    slopes: FloatArray
    parts: FloatArray
    v: FloatArray
    V: FloatArray
    coefs: FloatArray


def shard_ranges(data: Rows, columns: int, tuning: DenseTuning) -> tuple[tuple[int, int], ...]:
    """Join shards of the data: returns the first row and the end of each larger one.

    They depend on the data and the number of columns alone, and not on the workers.
    """
    entries = data.n_rows * columns // tuning.shard_entries
    count = max(1, min(data.n_shards, tuning.max_shards, entries))
    edges = [data.n_shards * i // count for i in range(count + 1)]
    return tuple((data.shard(a)[0], data.shard(b - 1)[1]) for a, b in pairwise(edges))


class DenseBytes(NamedTuple):
    """Bytes that a solve takes next to its rows and features, see `dense_bytes`.

    ``own``: in the coordinating process; ``thread``: in each thread that steps shards; ``rows``: of
    all rows together.
    """

    own: int
    thread: int
    rows: int

    @property
    def total(self) -> int:
        """The bytes with one thread."""
        return self.own + self.thread + self.rows


def dense_bytes(rows: int, columns: int, problems: int = 1) -> DenseBytes:
    """Return the bytes that a solve of ``problems`` together takes.

    Rows have float64 numbers of each problem (its loss, G, alpha, and what is computed of them). A
    thread has a tile of kernel entries in float32 and float64, and sums a Hessian; the coordinating
    process solves with one.
    """
    square, tile = 8 * (columns + 3) ** 2, min(TILE_ENTRIES, rows * columns)
    return DenseBytes(4 * square, 3 * square + 32 * tile, ROW_BYTES * rows * problems)
