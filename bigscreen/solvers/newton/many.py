"""Many problems over the same features: Newton steps whose matrix products serve all of them.

Problems differ in labels, targets or weights. A pass is one product of the features with the w of
all; each problem has its own gradient, smoothing h, step length and end (maths.md 5.4). The Newton
direction comes from conjugate gradients, whose products are those of all problems, too, and which
one factor preconditions: that of the second moment of the rows with their mean curvature over the
problems. Products are float32: what comes out is certified like any other point, and the Newton of
one problem goes on where that proves too little.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.rows import Rows
from bigscreen.features.design import Design, row_ranges
from bigscreen.fleet.protocol import Fleet
from bigscreen.numerics import reproducible
from bigscreen.numerics.cholesky import factorise
from bigscreen.numerics.reproducible import Totals
from bigscreen.numerics.rows import FloatArray, njit
from bigscreen.problems.point import Point, Reading, SumLayout
from bigscreen.problems.recipes import Problem
from bigscreen.solvers.kept_rows import KeptRows
from bigscreen.solvers.newton.coordinator import STEP_LENGTHS
from bigscreen.solvers.newton.near import machine_at
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Check, Near, Run

Single = NDArray[np.float32]


@dataclass(frozen=True)
class ManyTuning:
    """Tuned values of the Newton steps that many problems take together.

    Parameters
    ----------
    max_steps : int
        Newton steps, at most.
    inexact, inexact_near, max_products : float, float, int
        Part of the gradient, in the preconditioner's norm, that a direction may leave (near: where
        smoothing costs less than the gap that is asked for: the gap has the gradient's square,
        curved or not), and products that it may take.
    moment_rows : int
        Rows, in columns of the features, that the preconditioner is made of.
    enough : float
        Part of the gap that is asked for at which a problem is taken for solved.
    smoothing_part : float
        Part of the gap that is asked for that smoothing may cost in the end.
    ridge : float
        Part of the largest entry on its diagonal that the preconditioner is made larger by.
    tol : float
        Relative gap from which every problem goes on by itself: directions that suit all of them
        take so many products for a closer one that steps of its own take less (8 bootstraps of a9a
        to 1e-5: 8.5 s for 15.4).
    tile : int
        Rows that one product is of.
    """

    max_steps: int = 60
    inexact: float = 0.2
    inexact_near: float = 0.03
    max_products: int = 16
    moment_rows: int = 16
    enough: float = 0.8
    smoothing_part: float = 0.4
    ridge: float = 1e-5
    tol: float = 1e-4
    tile: int = 8192


MANY = ManyTuning()

ROW_BYTES = 40
"""Memory of a row and a problem: signs, bounds, scores, alpha and what is made of them."""


class Case(NamedTuple):
    """One of the problems, and the rows with its labels and weights."""

    problem: Problem
    rows: Rows


def suits(design: Design, cases: Sequence[Case]) -> bool:
    """Whether these can be solved together: dense float32 features, a kink at 0, no coupling."""
    data = design.data
    if design.kernel is not None or data.is_sparse or data.X(0, 0).dtype != np.float32:
        return False
    for problem, rows in cases:
        dual = problem.dual(rows.y(0, 1), rows.weights(0, 1))
        if not (dual.coupling is None and dual.curve is None and dual.tube is None):
            return False
    return True


@dataclass
class _Shard:
    """A shard's rows, and of each problem that is left: arrays (rows, problems).

    ``X`` (rows, m) is None where the rows are read again in every pass.
    """

    start: int
    X: Single | None
    runs: NDArray[np.int64]
    sign: Single
    lin: Single
    lo: Single
    hi: Single
    scores: Single
    trial: Single
    signed: Single
    bend: Single

    OF_RUNS = ("sign", "lin", "lo", "hi", "scores", "trial", "signed", "bend")

    def narrow(self, left: NDArray[np.int64]) -> None:
        """Forget all problems but these."""
        if len(left) < len(self.runs):
            keep = np.searchsorted(self.runs, left)
            self.runs = left
            for name in _Shard.OF_RUNS:
                setattr(self, name, np.ascontiguousarray(getattr(self, name)[:, keep]))


@dataclass(frozen=True)
class ManyProgram(KeptRows):
    """What every shard does for many problems at once (see ``fleet.Program``).

    ``constant``: the feature appended to all rows, 0 without one. ``resident``: the part of the
    rows that is kept in memory between passes, shard by shard.
    """

    design: Design
    cases: tuple[Case, ...]
    constant: float
    resident: float = 1.0

    def open(self, shard: int) -> _Shard:
        """The rows at w = 0."""
        start, stop = self.design.data.shard(shard)
        shape = stop - start, len(self.cases)
        made = {name: np.zeros(shape, np.float32) for name in _Shard.OF_RUNS}
        for j, (problem, rows) in enumerate(self.cases):
            dual = problem.dual(rows.y(start, stop), rows.weights(start, stop))
            for name in ("sign", "lin", "lo", "hi"):
                made[name][:, j] = getattr(dual, name)
        X = self._read(start, stop) if self.keeps(shard) else None
        return _Shard(start, X, np.arange(len(self.cases)), **made)

    def step(self, state: _Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Run one message; what it answers is summed over the shards."""
        state.narrow(message["left"])
        answer: FloatArray = getattr(self, "_" + message["kind"])(state, message, totals)
        return answer

    def _sizes(self, state: _Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """[Sums of the rows' reach..., of reach times |lin|...]."""
        reach = np.maximum(np.abs(state.lo), np.abs(state.hi))
        weighted = np.sum(reach * np.abs(state.lin), axis=0, dtype=np.float64)
        return np.concatenate([np.sum(reach, axis=0, dtype=np.float64), weighted])

    def _line(self, state: _Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Smoothed losses at some step lengths along each problem's direction (problems, steps)."""
        state.trial = np.empty_like(state.scores)
        for rows, X in self._tiles(state):
            state.trial[rows] = self._products(X, message["along"])
        losses = np.zeros((len(message["steps"]), len(state.runs)))
        box = state.sign, state.lin, state.lo, state.hi
        _line(state.scores, state.trial, *box, message["h"], message["steps"], losses)
        return losses.T.ravel()

    def _take(self, state: _Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Go so far along the directions, and read alpha off.

        Returns [losses..., p . alpha..., the zones' weights..., ``sum s alpha [phi, constant]``
        problem by problem...].
        """
        sums = np.zeros((3, len(state.runs)))
        rows = state.sign, state.lin, state.lo, state.hi
        moved = state.scores, state.trial, message["t"]
        _take(*moved, *rows, message["h"], state.signed, state.bend, sums)
        features = self._nothing(state)
        for part, X in self._tiles(state):
            features += self._sums(X, state.signed[part])
        return np.concatenate([sums.ravel(), features.ravel()])

    def _moment(self, state: _Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Add the second moment of one row in ``stride``, with its mean curvature, to the totals.

        Returns [its trace].
        """
        stride, trace, m = message["stride"], 0.0, self.design.width
        for rows, X in self._tiles(state):
            part = slice((message["turn"] - rows.start) % stride, None, stride)
            bend = state.bend[rows][part].mean(axis=1, dtype=np.float64) * stride
            root = np.sqrt(bend).astype(np.float32)[:, None]
            scaled = np.empty((len(bend), m + bool(self.constant)), np.float32)
            np.multiply(X[part], root, out=scaled[:, :m])
            if self.constant:
                scaled[:, m:] = root * np.float32(self.constant)
            moment = scaled.T @ scaled
            trace += float(np.trace(moment))
            reproducible.add(totals, "moment", moment, message["bound"])
        return np.array([trace])

    def _curved(self, state: _Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """The losses' Hessian times each problem's direction (problems, size)."""
        out = self._nothing(state)
        for rows, X in self._tiles(state):
            along = self._products(X, message["along"])
            along *= state.bend[rows]
            out += self._sums(X, along)
        return out.ravel()

    def _tiles(self, state: _Shard) -> Iterator[tuple[slice, Single]]:
        """The rows in parts that are as large as one product: their places, and the rows."""
        for a, b in row_ranges(len(state.sign), MANY.tile):
            X: Any = state.X
            kept = X is not None
            yield slice(a, b), X[a:b] if kept else self._read(state.start + a, state.start + b)

    def _read(self, start: int, stop: int) -> Any:
        return self.design.data.X(start, stop)

    def _products(self, X: Single, along: Single) -> Single:
        """``[phi, constant] . along`` (rows, problems) of directions (problems, size)."""
        m = X.shape[1]
        found: Single = X @ along[:, :m].T
        if self.constant:
            found += np.float32(self.constant) * along[:, m]
        return found

    def _nothing(self, state: _Shard) -> FloatArray:
        return np.zeros((len(state.runs), self.design.width + bool(self.constant)))

    def _sums(self, X: Single, weights: Single) -> FloatArray:
        """``sum weight [phi, constant]`` (problems, size)."""
        m = X.shape[1]
        out = np.empty((weights.shape[1], m + bool(self.constant)))
        out[:, :m] = weights.T @ X
        if self.constant:
            out[:, m] = self.constant * np.sum(weights, axis=0, dtype=np.float64)
        return out

    def save(self, state: _Shard) -> dict[str, NDArray[Any]]:
        """What the state holds beyond the data and the problems."""
        return {name: getattr(state, name) for name in _SAVED}

    def load(self, shard: int, arrays: dict[str, NDArray[Any]]) -> _Shard:
        """The state that ``save`` wrote."""
        state = self.open(shard)
        state.narrow(arrays["runs"])
        for name in _SAVED:
            setattr(state, name, arrays[name].copy())
        return state


_SAVED = ("runs", "scores", "trial", "signed", "bend")


@dataclass
class _Place:
    """Where the problems that are left are: arrays (problems,), w (problems, size)."""

    runs: NDArray[np.int64]
    w: FloatArray
    h: FloatArray
    steps: int = 0

    def narrowed(self, keep: NDArray[np.bool_]) -> None:
        """Go on with these problems alone."""
        self.runs, self.w, self.h = self.runs[keep], self.w[keep], self.h[keep]


def solve_many(
    design: Design,
    cases: Sequence[Case],
    fleet: Fleet,
    tol: float,
    until: float | None = None,
    resident: float = 1.0,
) -> list[Point]:
    """The points where problems over the same features end, found together.

    Parameters
    ----------
    design : Design
        What the problems share (see ``suits``).
    cases : sequence of Case
        Each with the same kind of offset.
    fleet : Fleet
    tol : float
        Relative gap that each is to have, as far as float32 sums tell; `ManyTuning.tol` if closer.
    until : float or None
        Value of ``time.monotonic()`` after which all are left where they are.
    resident : float
        Part of the rows that is kept in memory between passes.
    """
    return _Together(design, cases, fleet, tol, resident).run(until)


class _Together:
    """The coordinator of ``solve_many``."""

    def __init__(
        self, design: Design, cases: Sequence[Case], fleet: Fleet, tol: float, resident: float
    ) -> None:
        self.design, self.fleet, self.tol = design, fleet, max(tol, MANY.tol)
        self.frame = SumLayout.of(*cases[0])
        self.cases = tuple(cases)
        self.points: dict[int, Point] = {}
        program = ManyProgram(design, self.cases, self.frame.constant, resident)
        fleet.start(program, design.data.n_shards)
        k, size = len(cases), design.width + self.frame.extras
        self.place = _Place(np.arange(k), np.zeros((k, size)), np.ones(k))
        self.reach, weighted = self._asked("sizes").reshape(2, k)
        self.place.h = np.where(weighted > 0, weighted / np.maximum(self.reach, 1e-300), 1.0)

    def _asked(self, kind: str, **what: Any) -> FloatArray:
        message = {"kind": kind, "left": self.place.runs, **what}
        stack, self.totals = self.fleet.round(message)
        found: FloatArray = stack.sum(axis=0)
        return found

    def run(self, until: float | None) -> list[Point]:
        """Step until all are solved, or nothing more is gained."""
        place, t = self.place, np.zeros(len(self.place.runs))
        for place.steps in range(MANY.max_steps + 1):
            found = self._asked("take", t=t, h=place.h)
            k = len(place.runs)
            losses, lin, weight = found[: 3 * k].reshape(3, k)
            sums = found[3 * k :].reshape(place.w.shape)
            half = 0.5 * np.einsum("ij,ij->i", place.w, place.w)
            primal = half + losses
            dual = lin - 0.5 * np.einsum("ij,ij->i", sums, sums)
            gradient = place.w - sums
            last = place.steps == MANY.max_steps or (until is not None and time.monotonic() > until)
            done = (primal - dual <= MANY.enough * self.tol * np.abs(primal)) | last
            for i in np.flatnonzero(done).tolist():
                self._end(i, float(primal[i]), float(dual[i]), sums[i])
            left = ~done
            if not left.any():
                break
            place.narrowed(left)
            gradient, weight, primal = gradient[left], weight[left], primal[left]
            near = weight * place.h / 12 <= self.tol * primal
            inexact = np.where(near, MANY.inexact_near, MANY.inexact)
            along, decrement = self._direction(gradient, inexact)
            place.h = _next_h(place.h, weight, decrement, primal, self.tol)
            t = self._searched(along)
            place.w += t[:, None] * along
        return [self.points[j] for j in range(len(self.cases))]

    def _end(self, i: int, primal: float, dual: float, sums: FloatArray) -> None:
        """Keep the point of a problem that is taken for solved."""
        place, design, problem = self.place, self.design, self.cases[self.place.runs[i]].problem
        w, b = place.w[i, : design.width].copy(), place.w[i, design.width :]
        constant = self.frame.constant * float(b.sum())
        reading = Reading(w, constant, float(place.h[i]))
        error = 3 * design.score_error(w)
        self.points[int(place.runs[i])] = Point(
            w,
            w,
            constant + problem.offset(0.0),
            primal,
            dual,
            paired=False,
            readings=(reading,),
            rounding=float(self.reach[place.runs[i]]) * error,
            apart=float(np.linalg.norm(place.w[i] - sums)),
        )

    def _searched(self, along: FloatArray) -> FloatArray:
        """How far to go along each problem's direction, and have the shards know its scores."""
        place, steps = self.place, STEP_LENGTHS
        message = {"along": along.astype(np.float32), "h": place.h, "steps": steps}
        losses = self._asked("line", **message).reshape(len(place.runs), len(steps))
        ww, wd, dd = (
            np.einsum("ij,ij->i", one, other)
            for one, other in ((place.w, place.w), (place.w, along), (along, along))
        )
        regular = 0.5 * (ww[:, None] + 2 * steps * wd[:, None] + steps**2 * dd[:, None])
        best: FloatArray = steps[np.argmin(regular + losses, axis=1)]
        return best

    def _direction(
        self, gradient: FloatArray, inexact: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Each problem's Newton direction, near enough, and the decrease that it promises."""
        solved = self._preconditioner()
        step, left = np.zeros_like(gradient), -gradient
        near = solved(left)
        towards, size = near, np.einsum("ij,ij->i", left, near)
        enough = inexact**2 * size
        for _ in range(MANY.max_products):
            going = size > enough
            if not going.any():
                break
            image = towards + self._asked("curved", along=towards.astype(np.float32)).reshape(
                towards.shape
            )
            curve = np.einsum("ij,ij->i", towards, image)
            length = np.where(going & (curve > 0), size / np.where(curve > 0, curve, 1.0), 0.0)
            step += length[:, None] * towards
            left -= length[:, None] * image
            near = solved(left)
            before, size = size, np.where(going, np.einsum("ij,ij->i", left, near), size)
            ratio = np.where(before > 0, size / np.where(before > 0, before, 1.0), 0.0)
            towards = np.where(going[:, None], near + ratio[:, None] * towards, towards)
        return step, -0.5 * np.einsum("ij,ij->i", gradient, step)

    def _preconditioner(self) -> Any:
        """What solves with 1 and the moment of rows with their mean curvature over the problems."""
        size, n = self.place.w.shape[1], self.design.data.n_rows
        stride = max(1, n // (MANY.moment_rows * size))
        # A mean bend is at most half the mean reach over the least h.
        largest = self.frame.largest(self.design.column_bound)
        most = float(np.max(self.reach)) * stride / float(np.min(self.place.h))
        bound = most * largest**2
        self._asked("moment", stride=stride, turn=self.place.steps, bound=bound)
        matrix = reproducible.read(self.totals, "moment", bound)
        top = float(np.max(np.diag(matrix), initial=0.0))
        ridge, factor = MANY.ridge, None
        while factor is None:
            damped = matrix.astype(np.float32)
            damped[np.diag_indices(size)] += np.float32(1.0 + ridge * top)
            factor, ridge = factorise(damped), 10 * ridge
        return lambda v: factor.solve(v).astype(np.float64)


def _next_h(
    h: FloatArray, weight: FloatArray, decrement: FloatArray, primal: FloatArray, tol: float
) -> FloatArray:
    """The smoothing of the next step, by the rule of one Newton (`place.next_h`).

    But that it stays where smoothing costs little enough: there it is the gradient that is left.
    """
    cost = weight * h / 12
    ready = decrement <= np.maximum(np.minimum(cost, primal), 1e-15 * primal)
    with np.errstate(divide="ignore", invalid="ignore"):
        part = 0.8 * MANY.smoothing_part * tol * primal / cost
        floor = np.where(cost > 0, h * np.sqrt(part), 0.0)
    converged = decrement <= 0.1 * cost
    lower = np.maximum(h / np.where(converged, 4.0, 2.0), floor)
    return np.where(ready & (cost > MANY.smoothing_part * tol * primal), lower, h)


@dataclass(frozen=True)
class Begun:
    """A point that was found together with those of other problems, and what goes on from there.

    Parameters
    ----------
    point : Point
    rest : Newton
        Solves the problem where the closing pass proves too little of the point.
    """

    point: Point
    rest: Newton

    def solve(self, run: Run, check: Check) -> Point:
        """See ``Solver``."""
        rows = {"rows_visited": run.design.data.n_rows, "rows_alive": run.design.data.n_rows}
        counts = {**rows, "fixed_hi": 0, "fixed_lo": 0, "stalled": False}
        if check(self.point, counts, lambda folder, meta: None) is None:
            return self.point
        near = Near(machine_at(run, self.point), self.point.dual)
        return self.rest.solve(replace(run, near=near, start=None), check)


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _line(
    scores: Single,
    trial: Single,
    sign: Single,
    lin: Single,
    lo: Single,
    hi: Single,
    h: FloatArray,
    steps: FloatArray,
    losses: FloatArray,
) -> None:
    for s in range(len(steps)):
        for i in range(scores.shape[0]):
            for j in range(scores.shape[1]):
                z = lin[i, j] - sign[i, j] * (scores[i, j] + steps[s] * trial[i, j])
                a = min(max((z + h[j]) / (2 * h[j]), 0.0), 1.0)
                losses[s, j] += lo[i, j] * z + (hi[i, j] - lo[i, j]) * a * (z + h[j] - h[j] * a)


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _take(
    scores: Single,
    trial: Single,
    t: FloatArray,
    sign: Single,
    lin: Single,
    lo: Single,
    hi: Single,
    h: FloatArray,
    signed: Single,
    bend: Single,
    sums: FloatArray,
) -> None:
    for i in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            scores[i, j] += np.float32(t[j]) * trial[i, j]
            z = float(lin[i, j]) - float(sign[i, j]) * float(scores[i, j])
            low, width = float(lo[i, j]), float(hi[i, j]) - float(lo[i, j])
            a = min(max((z + h[j]) / (2 * h[j]), 0.0), 1.0)
            alpha = low + width * a
            inside = 1.0 if abs(z) <= h[j] else 0.0
            signed[i, j] = np.float32(float(sign[i, j]) * alpha)
            bend[i, j] = np.float32(inside * width / (2 * h[j]))
            sums[0, j] += low * z + width * max(z, 0.0)
            sums[1, j] += float(lin[i, j]) * alpha
            sums[2, j] += inside * width
