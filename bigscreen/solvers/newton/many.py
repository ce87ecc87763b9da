"""Newton steps that many problems over the same features take together, as matrix products.

Problems differ in labels, targets or weights. A pass multiplies the features by the w of all
problems; each problem has its own gradient, smoothing h, step length and end (maths.md 5.4). Newton
directions come from conjugate gradients, whose products serve all problems too. One factor
preconditions them: of the second moment of rows with their mean curvature over the problems.
Products are float32. Points are certified like any other, and a Newton of its own continues a
problem whose point is not close enough.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design, row_ranges
from bigscreen.fleet.protocol import Fleet
from bigscreen.numerics import reproducible
from bigscreen.numerics.cholesky import factorise
from bigscreen.numerics.reproducible import Totals
from bigscreen.numerics.rows import FloatArray, njit
from bigscreen.problems.point import Point, Reading, SumLayout
from bigscreen.solvers.kept_rows import KeptRows
from bigscreen.solvers.newton.near import w_with_constant
from bigscreen.solvers.newton.tuning import NEWTON
from bigscreen.solvers.protocol import Case, Check, Near, Run, Solver

Single = NDArray[np.float32]
"""A float32 array."""


@dataclass(frozen=True)
class ManyTuning:
    """Tuned values of the Newton steps that many problems take together.

    Parameters
    ----------
    max_steps : int
        Return after this many Newton steps, whatever gaps the problems have reached.
    step_lengths : tuple of float
        Step lengths, as multiples of the Newton step, that line searches compare.
    residual : float
        End a problem's conjugate gradients once the residual's norm, as the preconditioner measures
        it, is at most this fraction of the gradient's.
    residual_near : float
        Use this fraction in place of ``residual`` once smoothing causes less than the requested gap
        in a problem: the problem's gap then depends on the square of the gradient.
    max_products : int
        End the conjugate gradients of a step after this many Hessian-vector products.
    moment_rows : int
        Make the preconditioner from about this many rows for each feature.
    enough : float
        Treat a problem as solved once its relative gap is at most this fraction of the requested
        one.
    smoothing_part : float
        Lower h, the half-width of the smoothed loss, until smoothing causes at most this fraction
        of the requested gap.
    ridge : float
        Before the preconditioner is factored, add this fraction of the largest entry on its
        diagonal to each entry of the diagonal.
    tol : float
        Solve many problems together only to this relative gap or a wider one; for a smaller
        requested gap each problem is then finished by a Newton solve of its own. Directions that
        suit all problems take too many products for it (8 bootstraps of a9a to 1e-5: 8.5 s for
        15.4).
    tile : int
        Compute products with the features of this many rows at a time.
    """

    max_steps: int = 60
    step_lengths: tuple[float, ...] = NEWTON.step_lengths
    residual: float = 0.2
    residual_near: float = 0.03
    max_products: int = 16
    moment_rows: int = 16
    enough: float = 0.8
    smoothing_part: float = 0.4
    ridge: float = 1e-5
    tol: float = 1e-4
    tile: int = 8192


MANY = ManyTuning()

ROW_BYTES = 40
"""Estimated memory in bytes, for each row and each problem that is solved together with others:
signs, bounds, scores, alpha and copies of them."""


def can_solve_together(design: Design, cases: Sequence[Case]) -> bool:
    """Whether `solve_many` can solve these: dense float32 features, no coupling, tube or square."""
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
    """A shard's rows, and arrays (rows, problems) for the problems that are not yet solved.

    ``start``: number of the first row in the data. ``X`` (rows, m) is None if the rows are read
    again in every pass. ``problems`` are the numbers of the problems, ascending. ``sign``, ``lin``,
    ``lo``, ``hi``: their duals. ``scores``: at the current w; ``trial``: what a step of length 1
    adds to them; ``signed``: ``s alpha``; ``curvature``: second derivatives of the losses.
    """

    start: int
    X: Single | None
    problems: NDArray[np.int64]
    sign: Single
    lin: Single
    lo: Single
    hi: Single
    scores: Single
    trial: Single
    signed: Single
    curvature: Single

    BY_PROBLEM = ("sign", "lin", "lo", "hi", "scores", "trial", "signed", "curvature")
    """The attributes that are arrays (rows, problems)."""

    def narrow(self, left: NDArray[np.int64]) -> None:
        """Keep these problems (numbers, ascending) and drop all others."""
        if len(left) < len(self.problems):
            keep = np.searchsorted(self.problems, left)
            self.problems = left
            for name in _Shard.BY_PROBLEM:
                setattr(self, name, np.ascontiguousarray(getattr(self, name)[:, keep]))


@dataclass(frozen=True)
class ManyProgram(KeptRows):
    """What every shard computes for many problems at once (see ``fleet.Program``).

    Parameters
    ----------
    design : Design
    cases : tuple of Case
    constant : float
        The feature appended to all rows, 0 without one.
    resident : float
        Fraction of the rows that is kept in memory between passes, shard by shard.
    tile : int
        Multiply the features of this many rows at once.
    """

    design: Design
    cases: tuple[Case, ...]
    constant: float
    resident: float = 1.0
    tile: int = MANY.tile

    def open(self, shard: int) -> _Shard:
        """Return the state at w = 0."""
        start, stop = self.design.data.shard(shard)
        shape = stop - start, len(self.cases)
        made = {name: np.zeros(shape, np.float32) for name in _Shard.BY_PROBLEM}
        for j, (problem, rows) in enumerate(self.cases):
            dual = problem.dual(rows.y(start, stop), rows.weights(start, stop))
            for name in ("sign", "lin", "lo", "hi"):
                made[name][:, j] = getattr(dual, name)
        X = self._read(start, stop) if self.keeps(shard) else None
        return _Shard(start, X, np.arange(len(self.cases)), **made)

    def step(self, state: _Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Answer one message; the coordinator sums the answers of the shards.

        Keys of every message: ``kind`` (the method ``"_" + kind`` answers) and ``left`` (numbers of
        the problems that are not solved yet; arrays of messages have an entry for each of them).
        """
        state.narrow(message["left"])
        answer: FloatArray = getattr(self, "_" + message["kind"])(state, message, totals)
        return answer

    def _sizes(self, state: _Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Answer with [sum of reach of each problem..., sum of reach times |lin|...]."""
        reach = np.maximum(np.abs(state.lo), np.abs(state.hi))
        weighted = np.sum(reach * np.abs(state.lin), axis=0, dtype=np.float64)
        return np.concatenate([np.sum(reach, axis=0, dtype=np.float64), weighted])

    def _line(self, state: _Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Sum smoothed losses at step lengths along each problem's direction (problems, steps).

        Keys of ``message``: ``along`` (problems, size), the directions; ``steps``, the step
        lengths; ``h`` (problems,).
        """
        state.trial = np.empty_like(state.scores)
        for rows, X in self._tiles(state):
            state.trial[rows] = self._products(X, message["along"])
        losses = np.zeros((len(message["steps"]), len(state.problems)))
        box = state.sign, state.lin, state.lo, state.hi
        _line(state.scores, state.trial, *box, message["h"], message["steps"], losses)
        return losses.T.ravel()

    def _take(self, state: _Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Move by step lengths ``t`` along the last directions, and read alpha off the scores.

        Keys of ``message``: ``t`` and ``h``, (problems,) each.

        Returns [losses..., p . alpha..., weights of the bands..., ``sum s alpha [phi, constant]``
        problem by problem...].
        """
        sums = np.zeros((3, len(state.problems)))
        rows = state.sign, state.lin, state.lo, state.hi
        moved = state.scores, state.trial, message["t"]
        _take(*moved, *rows, message["h"], state.signed, state.curvature, sums)
        features = self._zero_sums(state)
        for part, X in self._tiles(state):
            features += self._sums(X, state.signed[part])
        return np.concatenate([sums.ravel(), features.ravel()])

    def _moment(self, state: _Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Add the second moment of one in ``stride`` rows to the totals.

        A row is weighted by the mean over the problems of the second derivative of its loss. Keys
        of ``message``: ``stride``; ``turn``, with which row to begin; ``bound`` of every entry of
        the sum over all shards. Returns [the trace of the shard's part].
        """
        stride, trace, m = message["stride"], 0.0, self.design.width
        for rows, X in self._tiles(state):
            part = slice((message["turn"] - rows.start) % stride, None, stride)
            curvature = state.curvature[rows][part].mean(axis=1, dtype=np.float64) * stride
            root = np.sqrt(curvature).astype(np.float32)[:, None]
            scaled = np.empty((len(curvature), m + bool(self.constant)), np.float32)
            np.multiply(X[part], root, out=scaled[:, :m])
            if self.constant:
                scaled[:, m:] = root * np.float32(self.constant)
            moment = scaled.T @ scaled
            trace += float(np.trace(moment))
            reproducible.add(totals, "moment", moment, message["bound"])
        return np.array([trace])

    def _curved(self, state: _Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Multiply each problem's Hessian of the losses by its direction (problems, size).

        ``message["along"]`` (problems, size): the directions.
        """
        out = self._zero_sums(state)
        for rows, X in self._tiles(state):
            along = self._products(X, message["along"])
            along *= state.curvature[rows]
            out += self._sums(X, along)
        return out.ravel()

    def _tiles(self, state: _Shard) -> Iterator[tuple[slice, Single]]:
        """Iterate over a shard's rows in tiles: each tile's slice of the shard, and its rows."""
        for a, b in row_ranges(len(state.sign), self.tile):
            X: Any = state.X
            kept = X is not None
            yield slice(a, b), X[a:b] if kept else self._read(state.start + a, state.start + b)

    def _read(self, start: int, stop: int) -> Any:
        """Read rows of the data; typed Any, as `can_solve_together` has checked their type."""
        return self.design.data.X(start, stop)

    def _products(self, X: Single, along: Single) -> Single:
        """Multiply ``[phi, constant]`` by directions (problems, size): (rows, problems)."""
        m = X.shape[1]
        found: Single = X @ along[:, :m].T
        if self.constant:
            found += np.float32(self.constant) * along[:, m]
        return found

    def _zero_sums(self, state: _Shard) -> FloatArray:
        """Make zeros (problems, size) to add sums to."""
        return np.zeros((len(state.problems), self.design.width + bool(self.constant)))

    def _sums(self, X: Single, weights: Single) -> FloatArray:
        """Sum ``weight [phi, constant]`` over rows: (problems, size).

        ``X`` (rows, m): the features phi; ``weights`` (rows, problems).
        """
        m = X.shape[1]
        out = np.empty((weights.shape[1], m + bool(self.constant)))
        out[:, :m] = weights.T @ X
        if self.constant:
            out[:, m] = self.constant * np.sum(weights, axis=0, dtype=np.float64)
        return out

    def save(self, state: _Shard) -> dict[str, NDArray[Any]]:
        """Return the arrays of a state that do not follow from the data and the problems."""
        return {name: getattr(state, name) for name in _SAVED}

    def load(self, shard: int, arrays: dict[str, NDArray[Any]]) -> _Shard:
        """Return the state of a shard whose ``arrays`` `save` returned."""
        state = self.open(shard)
        state.narrow(arrays["problems"])
        for name in _SAVED:
            setattr(state, name, arrays[name].copy())
        return state


_SAVED = ("problems", "scores", "trial", "signed", "curvature")
"""Attributes of `_Shard` that a checkpoint saves; the others follow from the data."""


@dataclass
class _Iterates:
    """The iterates of the problems that are not solved yet.

    ``problems`` (k,): their numbers; ``w`` (k, size): with the constant's coefficient if there is
    one; ``h`` (k,): half the width of each smoothing band; ``steps``: steps so far.
    """

    problems: NDArray[np.int64]
    w: FloatArray
    h: FloatArray
    steps: int = 0

    def narrow(self, keep: NDArray[np.bool_]) -> None:
        """Keep the problems of this mask (problems,), and drop all others."""
        self.problems, self.w, self.h = self.problems[keep], self.w[keep], self.h[keep]


def solve_many(
    design: Design,
    cases: Sequence[Case],
    fleet: Fleet,
    tol: float,
    until: float | None = None,
    resident: float = 1.0,
    tuning: ManyTuning = MANY,
) -> list[Point]:
    """Solve many problems over the same features together, and return their points.

    Parameters
    ----------
    design : Design
        The features that the problems share (see `can_solve_together`).
    cases : sequence of Case
        Each with the same kind of offset.
    fleet : Fleet
    tol : float
        Requested relative gap of each problem (by float32 sums), at least `ManyTuning.tol`.
    until : float or None
        Stop all problems at this value of ``time.monotonic()``.
    resident : float
        Fraction of the rows that is kept in memory between passes.
    tuning : ManyTuning
    """
    return _ManyRun(design, cases, fleet, tol, resident, tuning).run(until)


class _ManyRun:
    """One run of `solve_many`: it sends messages to the shards and sums their answers.

    ``points``: the points of solved problems, by number; ``reach`` (cases,): the sums of the rows'
    reach; ``iterates``: the problems that are not solved yet.
    """

    def __init__(
        self,
        design: Design,
        cases: Sequence[Case],
        fleet: Fleet,
        tol: float,
        resident: float,
        tuning: ManyTuning,
    ) -> None:
        """Start the program on all shards at w = 0; each h is the problem's mean ``|p|``."""
        self.design, self.fleet, self.tuning = design, fleet, tuning
        self.tol = max(tol, tuning.tol)
        self.frame = SumLayout.of(*cases[0])
        self.cases = tuple(cases)
        self.points: dict[int, Point] = {}
        program = ManyProgram(design, self.cases, self.frame.constant, resident, tuning.tile)
        fleet.start(program, design.data.n_shards)
        k, size = len(cases), design.width + self.frame.extras
        self.iterates = _Iterates(np.arange(k), np.zeros((k, size)), np.ones(k))
        self.reach, weighted = self._round("sizes").reshape(2, k)
        self.iterates.h = np.where(weighted > 0, weighted / np.maximum(self.reach, 1e-300), 1.0)

    def _round(self, kind: str, **what: Any) -> FloatArray:
        """Send a message to all shards; returns the sum of their answers.

        ``kind``: which method of `ManyProgram` answers; ``what``: other keys of the message. Sets
        ``totals``, the exact sums.
        """
        message = {"kind": kind, "left": self.iterates.problems, **what}
        stack, self.totals = self.fleet.round(message)
        found: FloatArray = stack.sum(axis=0)
        return found

    def run(self, until: float | None) -> list[Point]:
        """Step until every problem is solved, or time or steps are used up."""
        iterates, t = self.iterates, np.zeros(len(self.iterates.problems))
        for iterates.steps in range(self.tuning.max_steps + 1):
            found = self._round("take", t=t, h=iterates.h)
            k = len(iterates.problems)
            losses, lin, weight = found[: 3 * k].reshape(3, k)
            sums = found[3 * k :].reshape(iterates.w.shape)
            half = 0.5 * np.einsum("ij,ij->i", iterates.w, iterates.w)
            primal = half + losses
            dual = lin - 0.5 * np.einsum("ij,ij->i", sums, sums)
            gradient = iterates.w - sums
            last = iterates.steps == self.tuning.max_steps or (
                until is not None and time.monotonic() > until
            )
            done = (primal - dual <= self.tuning.enough * self.tol * np.abs(primal)) | last
            for i in np.flatnonzero(done).tolist():
                self._end(i, float(primal[i]), float(dual[i]), sums[i])
            left = ~done
            if not left.any():
                break
            iterates.narrow(left)
            gradient, weight, primal = gradient[left], weight[left], primal[left]
            near = weight * iterates.h / 12 <= self.tol * primal
            residual = np.where(near, self.tuning.residual_near, self.tuning.residual)
            along, decrement = self._find_directions(gradient, residual)
            iterates.h = _next_h(iterates.h, weight, decrement, primal, self.tol, self.tuning)
            t = self._search_lines(along)
            iterates.w += t[:, None] * along
        return [self.points[j] for j in range(len(self.cases))]

    def _end(self, i: int, primal: float, dual: float, sums: FloatArray) -> None:
        """Keep the present w of the i-th remaining problem, with its P and D, as its result.

        ``primal``, ``dual``: P of that w, and D of the dual point read off it; ``sums`` (size,):
        w(alpha) of that point. The result is a `Point` in ``points``.
        """
        iterates, design = self.iterates, self.design
        problem = self.cases[iterates.problems[i]].problem
        w, b = iterates.w[i, : design.width].copy(), iterates.w[i, design.width :]
        constant = self.frame.constant * float(b.sum())
        reading = Reading(w, constant, float(iterates.h[i]))
        error = 3 * design.score_error(w)
        self.points[int(iterates.problems[i])] = Point(
            w,
            w,
            constant + problem.offset(0.0),
            primal,
            dual,
            paired=False,
            readings=(reading,),
            rounding=float(self.reach[iterates.problems[i]]) * error,
            apart=float(np.linalg.norm(iterates.w[i] - sums)),
        )

    def _search_lines(self, along: FloatArray) -> FloatArray:
        """Search the lines along all directions; returns each problem's step length (problems,)."""
        iterates, steps = self.iterates, np.array(self.tuning.step_lengths)
        message = {"along": along.astype(np.float32), "h": iterates.h, "steps": steps}
        losses = self._round("line", **message).reshape(len(iterates.problems), len(steps))
        ww, wd, dd = (
            np.einsum("ij,ij->i", one, other)
            for one, other in ((iterates.w, iterates.w), (iterates.w, along), (along, along))
        )
        regular = 0.5 * (ww[:, None] + 2 * steps * wd[:, None] + steps**2 * dd[:, None])
        best: FloatArray = steps[np.argmin(regular + losses, axis=1)]
        return best

    def _find_directions(
        self, gradient: FloatArray, residual: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Find each problem's Newton direction by CG, and the decrease that it promises.

        ``gradient`` (problems, size); ``residual`` (problems,): the fraction of the gradient, in
        the preconditioner's norm, that a direction may leave. Returns (problems, size),
        (problems,).
        """
        solve = self._make_preconditioner()
        step, left = np.zeros_like(gradient), -gradient
        near = solve(left)
        towards, size = near, np.einsum("ij,ij->i", left, near)
        enough = residual**2 * size
        for _ in range(self.tuning.max_products):
            going = size > enough
            if not going.any():
                break
            image = towards + self._round("curved", along=towards.astype(np.float32)).reshape(
                towards.shape
            )
            curve = np.einsum("ij,ij->i", towards, image)
            length = np.where(going & (curve > 0), size / np.where(curve > 0, curve, 1.0), 0.0)
            step += length[:, None] * towards
            left -= length[:, None] * image
            near = solve(left)
            before, size = size, np.where(going, np.einsum("ij,ij->i", left, near), size)
            ratio = np.where(before > 0, size / np.where(before > 0, before, 1.0), 0.0)
            towards = np.where(going[:, None], near + ratio[:, None] * towards, towards)
        return step, -0.5 * np.einsum("ij,ij->i", gradient, step)

    def _make_preconditioner(self) -> Any:
        """Factor 1 plus the moment of rows, by mean curvature; returns the function that solves."""
        size, n = self.iterates.w.shape[1], self.design.data.n_rows
        stride = max(1, n // (self.tuning.moment_rows * size))
        # A mean curvature is at most half the mean reach over the least h.
        largest = self.frame.largest(self.design.column_bound)
        most = float(np.max(self.reach)) * stride / float(np.min(self.iterates.h))
        bound = most * largest**2
        self._round("moment", stride=stride, turn=self.iterates.steps, bound=bound)
        matrix = reproducible.read(self.totals, "moment", bound)
        top = float(np.max(np.diag(matrix), initial=0.0))
        ridge, factor = self.tuning.ridge, None
        while factor is None:
            damped = matrix.astype(np.float32)
            damped[np.diag_indices(size)] += np.float32(1.0 + ridge * top)
            factor, ridge = factorise(damped), 10 * ridge
        return lambda v: factor.solve(v).astype(np.float64)


def _next_h(
    h: FloatArray,
    weight: FloatArray,
    decrement: FloatArray,
    primal: FloatArray,
    tol: float,
    tuning: ManyTuning,
) -> FloatArray:
    """Choose each problem's smoothing h of the next step, by about the rule of `iterate.choose_h`.

    h stays as it is once smoothing costs little: the rest of the gap is the gradient's. Arrays are
    (problems,): ``weight`` of the bands, the ``decrement`` that steps promise, P as ``primal``.
    """
    cost = weight * h / 12
    ready = decrement <= np.maximum(np.minimum(cost, primal), 1e-15 * primal)
    with np.errstate(divide="ignore", invalid="ignore"):
        part = 0.8 * tuning.smoothing_part * tol * primal / cost
        floor = np.where(cost > 0, h * np.sqrt(part), 0.0)
    converged = decrement <= 0.1 * cost
    lower = np.maximum(h / np.where(converged, 4.0, 2.0), floor)
    return np.where(ready & (cost > tuning.smoothing_part * tol * primal), lower, h)


@dataclass(frozen=True)
class PresolvedPoint:
    """A solver that reports the point of `solve_many`, and continues from it if it must.

    Parameters
    ----------
    point : Point
    rest : Solver
        Solves the problem if the closing pass proves too wide a gap.
    """

    point: Point
    rest: Solver

    def solve(self, run: Run, check: Check) -> Point:
        """Report the point to ``check``; solve with ``rest`` unless ``check`` returns None."""
        rows = {"rows_visited": run.design.data.n_rows, "rows_alive": run.design.data.n_rows}
        counts = {**rows, "fixed_hi": 0, "fixed_lo": 0, "stalled": False}
        if check(self.point, counts, lambda folder, meta: None) is None:
            return self.point
        near = Near(w_with_constant(run, self.point), self.point.dual)
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
    """Add the smoothed losses at step lengths ``steps`` to ``losses`` (steps, problems).

    The other arrays are those of `_Shard`, (rows, problems), and ``h`` (problems,).
    """
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
    curvature: Single,
    sums: FloatArray,
) -> None:
    """Move scores by step lengths t (problems,); set ``signed`` and ``curvature``.

    Adds losses, ``p . alpha`` and the weights of the bands to ``sums`` (3, problems). The other
    arrays are those of `_Shard`, (rows, problems), and ``h`` (problems,).
    """
    for i in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            scores[i, j] += np.float32(t[j]) * trial[i, j]
            z = float(lin[i, j]) - float(sign[i, j]) * float(scores[i, j])
            low, width = float(lo[i, j]), float(hi[i, j]) - float(lo[i, j])
            a = min(max((z + h[j]) / (2 * h[j]), 0.0), 1.0)
            alpha = low + width * a
            inside = 1.0 if abs(z) <= h[j] else 0.0
            signed[i, j] = np.float32(float(sign[i, j]) * alpha)
            curvature[i, j] = np.float32(inside * width / (2 * h[j]))
            sums[0, j] += low * z + width * max(z, 0.0)
            sums[1, j] += float(lin[i, j]) * alpha
            sums[2, j] += inside * width
