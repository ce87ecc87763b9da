"""Snacks and Pegasos: steps along subgradients of rows drawn at random (maths.md 5.9).

    P(w) / S = 1 / (2 S) ||w||^2 + mean of the rows' losses,      S = sum of the rows' reach

A batch of rows gives an unbiased subgradient; T is applied once a batch, so features are never
written down, and kernel entries are computed of the rows drawn alone. Neither solver proves
anything on its way but by alphas that are read off the scores at the end of a stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError, is_number
from bigscreen.features.design import weighted_columns
from bigscreen.numerics import reproducible
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import Point, Reading, SumLayout
from bigscreen.solvers.protocol import Check, Run
from bigscreen.solvers.snacks.draws import Draws
from bigscreen.solvers.snacks.shard import DrawProgram

TRIED = 4.0 ** np.arange(6)
"""Step sizes that are tried in the first stage, the least of them ``batch / 128``."""


@dataclass(frozen=True)
class SnacksTuning:
    """Tuned values of the steps on rows drawn at random.

    Parameters
    ----------
    batch, min_batches : int
        Rows of a batch; batches of a pass, at least, where the data are few.
    first_part, min_first_steps, max_first_steps : int
        The first stage has one step in ``first_part`` of a pass's, within these limits.
    sample : int
        Rows that second moments, and P between passes, are taken from.
    flat : float
        Part of the mean second moment below which a direction's steps grow no more.
    around : float
        How much farther from its start a stage may go than the one before it did.
    checked_part : int
        Step sizes are compared on one row for each ``checked_part`` rows that they have walked on.
    max_passes : int
        Passes that are as many rows as a solve draws, about.
    patience : int
        Stages running that lower P by less than tol of it, after which there is no other.
    wide, narrow : float
        Smoothings beside the best of the stage before that D is looked for at, as multiples of it.
    """

    batch: int = 512
    min_batches: int = 32
    first_part: int = 8
    min_first_steps: int = 16
    max_first_steps: int = 64
    sample: int = 4096
    flat: float = 0.1
    around: float = 2.0
    checked_part: int = 8
    max_passes: int = 256
    patience: int = 2
    wide: float = 4.0
    narrow: float = 0.25


SNACKS = SnacksTuning()


@dataclass(frozen=True)
class Snacks:
    """Stages of averaged subgradient steps, each from the end of the one before, in a ball.

    Xu, Lin and Yang 2019, algorithm 1, as Tanji et al. 2023 have it, mended (maths.md 5.9). What is
    None is set by rules: step sizes are tried on the first stage's rows; every other stage is
    walked with the steps of the one before and with half of them, and goes on from the better end;
    its ball is twice as wide as the stage before went. Every stage is twice as long as the one
    before.

    Parameters
    ----------
    tol : float
        The solve ends with two stages that each lower P by less than this part of it.
    seed : int
        Of the order of rows.
    passes : int
        Nor does another stage begin once as many rows have been drawn as so many passes have.
    step : float or None
        How far a step on one row moves its own score, at first; of ``plain`` steps their length.
    radius : float or None
        Of the first stage's ball; it is halved with the step.
    batch : int or None
        Rows of a step.
    first : int or None
        Steps of the first stage.
    growth : float
        How many times as many steps the next stage has.
    plain : bool
        Measure steps and balls by ``||w||``, not by what directions move scores.
    """

    tol: float = 1e-3
    seed: int = 0
    passes: int = SNACKS.max_passes
    step: float | None = None
    radius: float | None = None
    batch: int | None = None
    first: int | None = None
    growth: float = 2.0
    plain: bool = False

    def __post_init__(self) -> None:
        for name in ("tol", "step", "radius", "batch", "first", "growth"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise InputError(f"{name} must be a positive finite number, got {value!r}")
        if self.growth < 1:
            raise InputError(f"growth must be 1 or more, got {self.growth!r}")

    def solve(self, run: Run, check: Check) -> Point:
        """Solve until ``check`` answers None, or is told that stages gain no more.

        Raises
        ------
        InputError
            For squared losses, a total to meet (nu), and the exact kernel.
        """
        return _SnacksSteps(run, self).run(check)


@dataclass(frozen=True)
class Pegasos:
    """Steps of length ``1 / (lambda t)`` in the ball that holds w*, the last half averaged.

    As its authors have it (maths.md 5.9). A stage here is as many steps as all before it: its
    average is that of the last half.

    Parameters
    ----------
    tol : float
        The solve ends with two stages that each lower P by less than this part of it.
    seed : int
        Of the order of rows.
    passes : int
        Nor does another stage begin once as many rows have been drawn as so many passes have.
    batch : int or None
        Rows of a step.
    """

    tol: float = 1e-3
    seed: int = 0
    passes: int = SNACKS.max_passes
    batch: int | None = None

    def solve(self, run: Run, check: Check) -> Point:
        """As `Snacks.solve`.

        Raises
        ------
        InputError
            Also for an unpenalised offset, which a step of 1 / t has no measure for.
        """
        if run.problem.intercept == "true":
            raise InputError(
                "pegasos has no unpenalised offset; use intercept penalized, or solver snacks"
            )
        return _PegasosSteps(run, self).run(check)


@dataclass
class Pace:
    """Where a solve stands after a stage, and how it goes on.

    Parameters
    ----------
    x : float64 (size,)
        The average of the last stage.
    at : float64 (size,)
        The point that the next one starts from.
    stages : int
        So many, so far.
    step, radius, length : float, float, int
        Of the next stage's steps: their size, the ball they stay in, their number.
    steps, rows, drawn, tried, passes : int
        Steps so far, rows drawn in the last stage, in all, and in a trial of step sizes before the
        next one, passes made over all rows for P.
    before : float
        P where the stage began, infinite if it is not known.
    slow : int
        Stages running that have gained next to nothing.
    smoothing : float
        The one that D was best at, in units of scores.
    place : list of int
        See `Draws`.
    """

    x: FloatArray
    at: FloatArray
    stages: int = 0
    step: float = 0.0
    radius: float = np.inf
    length: int = 0
    steps: int = 0
    rows: int = 0
    drawn: int = 0
    tried: int = 0
    passes: int = 0
    before: float = np.inf
    slow: int = 0
    smoothing: float = 1.0
    place: list[int] = field(default_factory=lambda: [0, 0, 0])

    def to_dict(self) -> dict[str, Any]:
        """All of it as checkpoints have it, bit for bit."""
        plain = {name: value for name, value in vars(self).items() if name not in ("x", "at")}
        return {"solver": plain, "x": self.x, "at": self.at}

    @classmethod
    def from_dict(cls, meta: dict[str, Any]) -> Pace:
        """What ``to_dict`` wrote."""
        return cls(meta["x"], meta["at"], **meta["solver"])


class _Steps:
    """What both have in common: rows drawn, P measured, stages until they gain no more.

    A machine is ``x = (w, offset)``; the offset, if there is one, is what a constant beside the
    row's features is multiplied with, penalised or not.
    """

    def __init__(self, run: Run, options: Any) -> None:
        self.run_, self.options, self.design = run, options, run.design
        if run.design.exact:
            raise InputError(
                "stochastic steps need landmarks or a linear machine; use block or pairs"
            )
        self.frame = SumLayout.of(run.problem, run.design.data)
        if self.frame.curved or np.any(self.frame.total):
            what = "squared losses" if self.frame.curved else "problems with a nu"
            raise InputError(
                f"snacks and pegasos do not solve {what}, whose steps have no bound or a total to "
                "meet; use the newton solver"
            )
        self.scale = max(run.reach.total, 1e-300)
        self.rank, self.width = run.design.rank, run.design.width
        self.constant = self.frame.constant or float(self.frame.groups > 0)
        """What stands beside the features of every row, 0 without an offset."""
        self.penalty = np.ones(self.rank + (self.constant != 0))
        self.penalty[self.rank :] = float(self.frame.constant != 0)
        self.rows = run.design.data.n_rows
        factor, most = run.design.factor, max(1, self.rows // SNACKS.min_batches)
        # As many rows as make the products with T cheap beside their columns.
        batch = min(SNACKS.batch if factor is None else max(SNACKS.batch, self.width), most)
        self.batch = int(options.batch or batch)
        self.draws = Draws(run.design.data, options.seed, self.batch)
        self.program = DrawProgram(
            run.design, run.problem, options.seed, float(run.resident >= 1), run.reach.total
        )
        # (Rounding in steps is nothing beside their noise.)
        self.factor = None if factor is None else factor.astype(np.float32)
        self.primal = np.inf
        """P over all rows where the last stage came, infinite if nobody has summed it."""

    def run(self, check: Check) -> Point:
        """Stage after stage until ``check`` answers None."""
        run = self.run_
        run.fleet.start(self.program, run.design.data.n_shards)
        found = None if run.checkpoint is None else run.fleet.load(run.checkpoint)
        self._measure_rows()
        if found is None:
            pace = self.stage(self.begin(self._start()))
        else:
            check.restored(found)
            pace = Pace.from_dict(found)
            self.draws.place = list(pace.place)
        while True:
            saved = replace(pace, place=list(self.draws.place)).to_dict()
            point, stats = self._end(pace)
            if check(point, stats, _saver(run, saved)) is None:
                return point
            pace = self.stage(pace)

    # -- what they differ in -----------------------------------------------------------------------
    def begin(self, x: FloatArray) -> Pace:
        """The pace of the first stage, which begins at x."""
        raise NotImplementedError

    def stage(self, pace: Pace) -> Pace:
        """Draw the rows of a stage, and step."""
        raise NotImplementedError

    # -- rounds ------------------------------------------------------------------------------------
    def _measure_rows(self) -> None:
        """Second moments of the features and the unit of scores, from a sample; P at 0."""
        message = {"kind": "sample", **self.draws.ahead(SNACKS.sample)}
        stack, totals = self.run_.fleet.round(message)
        mass, unit, nothing, out = stack.T
        weight = float(mass.sum()) or 1.0
        squares = reproducible.read(totals, "squares", self.program.square_bound) / weight
        moments = np.concatenate([squares, self.constant**2 * (self.penalty[self.rank :] >= 0)])
        floor = SNACKS.flat * float(moments.mean()) or 1.0
        self.metric = moments + floor
        """By which squares of a direction are weighed, so that a row's step has length 1."""
        self.metric *= float((moments / self.metric).sum()) or 1.0
        self.unit = float(unit.sum()) / weight or 1.0
        self.ball = float(np.sqrt(nothing.sum()))
        """``||w*||`` is no more: at the optimum ``||w||^2 <= p . alpha - e . |alpha| <= P(0)``."""
        self.holds_zero = float(out.max()) <= 0

    def _start(self) -> FloatArray:
        """``w(alpha)`` of the alpha that is given; an unpenalised offset begins at 0."""
        run, x = self.run_, np.zeros(len(self.penalty))
        if run.start is not None:
            data = self.design.data
            dual = run.problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
            sums = weighted_columns(self.design, dual.sign * run.start, run.fleet)
            x[: self.rank] = self.design.features(sums[:-1])
            x[self.rank :] = self.frame.constant * sums[-1]
        return x

    def walk(
        self,
        x: FloatArray,
        steps: int,
        rate: Callable[[int], Any],
        project: Callable[[FloatArray], FloatArray],
    ) -> tuple[FloatArray, FloatArray, int]:
        """Steps of some machines x (k, size) over the same rows.

        ``rate`` is what the subgradient of P is multiplied with in a step. Returns the averages,
        the ends and the rows drawn.
        """
        total, rows = np.zeros_like(x), 0
        for t in range(steps):
            chosen, drawn = self._chosen(x)
            x = project(x - rate(t) * (self.penalty * x - chosen))
            total += x
            rows += drawn
        return total / steps, x, rows

    def _machines(self, x: FloatArray) -> dict[str, FloatArray]:
        """Machines (k, size) as coefficients of columns and offsets, for messages."""
        w = x[:, : self.rank]
        if self.factor is not None:
            w = (w.astype(np.float32) @ self.factor.T).astype(np.float64)
        offsets = self.constant * x[:, self.rank :].sum(axis=1)
        return {"coefs": np.ascontiguousarray(w), "offsets": offsets}

    def _chosen(self, x: FloatArray) -> tuple[FloatArray, int]:
        """An unbiased guess of ``sum s alpha phi`` over all rows at each of x (k, size)."""
        machines, rows = self._machines(x), 0
        while not rows:  # the batches of a pass are not all of one size
            message = {"kind": "step", **self.draws.next(), **machines}
            stack, totals = self.run_.fleet.round(message)
            rows = int(stack.sum())
        v = reproducible.read(totals, "v", self.program.bound)
        chosen = v[:, :-1]
        if self.factor is not None:
            chosen = (chosen.astype(np.float32) @ self.factor).astype(np.float64)
        if self.constant:
            chosen = np.concatenate([chosen, self.constant * v[:, -1:]], axis=1)
        return chosen * (self.rows / rows), rows

    def estimates(self, x: FloatArray, rows: int = 0) -> tuple[FloatArray, int]:
        """P at each of x (k, size), estimated from the rows that come next; their number.

        About as many as are asked for, and no fewer than `SNACKS.sample`, as far as there are any.
        """
        ahead = self.draws.ahead(max(rows, SNACKS.sample))
        message = {"kind": "estimate", **ahead, **self._machines(x)}
        found = self.run_.fleet.round(message)[0].sum(axis=0)
        losses = found[1:] * (self.rows / found[0])
        return 0.5 * (x**2 @ self.penalty) + losses, int(found[0])

    # -- points ------------------------------------------------------------------------------------
    def _end(self, pace: Pace) -> tuple[Point, dict[str, Any]]:
        """The point that a stage has come to, and what ``check`` is told of the stage."""
        stats = {
            "rows_visited": pace.rows,
            "rows_alive": self.rows,
            "fixed_hi": 0,
            "fixed_lo": 0,
            "steps": pace.steps,
            "partial_passes": pace.stages,
            "stalled": False,
        }
        if pace.rows < self.rows:
            point, seen = self._guessed(pace)
            return point, {**stats, "full_passes": pace.passes, "estimated_from": seen}
        point = self._point(pace)
        slow = pace.before - point.primal <= self.options.tol * abs(point.primal)
        pace.slow = pace.slow + 1 if slow else 0
        pace.before = point.primal
        over = pace.slow >= SNACKS.patience or pace.drawn >= self.options.passes * self.rows
        return point, {**stats, "full_passes": pace.passes, "stalled": "slow" if over else False}

    def _point(self, pace: Pace) -> Point:
        """The point of x, P and D summed over all rows: D at the best of three smoothings."""
        design, frame = self.design, self.frame
        w, offset = self._parts(pace.x)
        coef = design.coef(w)
        widths = pace.smoothing * np.array([SNACKS.narrow, 1.0, SNACKS.wide])
        smoothings = (self.unit * widths).tolist()
        stack, totals = self.run_.fleet.round(
            {"kind": "measure", "coef": coef, "offset": offset, "smoothings": smoothings}
        )
        pace.passes += 1
        found = stack.sum(axis=0)
        primal = float(found[0]) + 0.5 * float(pace.x**2 @ self.penalty)
        sums = found[1:].reshape(len(widths), frame.terms)
        v = reproducible.read(totals, "v", self.program.bound)
        duals = [self._dual(part, own) for part, own in zip(v, sums, strict=True)]
        best = int(np.argmax([value for value, _ in duals]))
        dual, w_alpha = duals[best]
        pace.smoothing = float(widths[best])
        readings: tuple[Reading, ...] = (self._reading(coef, offset, smoothings[best]),)
        if self.holds_zero and dual < 0:
            dual, readings, w_alpha = 0.0, (), 0.0 * w_alpha
        error = design.score_error(coef) + 2 * design.score_error(design.coef(w_alpha[: self.rank]))
        return self._stands(coef, w, offset, primal, dual, readings, error)

    def _dual(self, v: FloatArray, sums: FloatArray) -> tuple[float, FloatArray]:
        """D of an alpha with these terms, the coupling kept, and its ``w(alpha)`` (size,)."""
        scales = self.frame.scales(v)
        assert scales is not None  # there always are where no total is to be met
        total = scales @ v
        x = np.concatenate([self.design.features(total[: self.width]), total[self.width :]])
        return self.frame.value(scales, sums) - 0.5 * float(x**2 @ self.penalty), x

    def _guessed(self, pace: Pace) -> tuple[Point, int]:
        """The point of x, P estimated and no D but that of alpha = 0; and the rows looked at."""
        w, offset = self._parts(pace.x)
        coef = self.design.coef(w)
        primal, seen = self.estimates(pace.x[None])
        value = float(primal[0])
        readings = () if self.holds_zero else (self._reading(coef, offset, self.unit),)
        dual = 0.0 if self.holds_zero else -abs(value)
        return self._stands(coef, w, offset, value, dual, readings, 0.0), seen

    def _parts(self, x: FloatArray) -> tuple[FloatArray, float]:
        """w, and what is added to its scores."""
        return x[: self.rank].copy(), self.constant * float(x[self.rank :].sum())

    def _reading(self, coef: FloatArray, offset: float, h: float) -> Reading:
        if self.frame.groups:
            return Reading(coef, 0.0, h, multiplier=(offset,))
        return Reading(coef, offset, h)

    def _stands(
        self,
        coef: FloatArray,
        w: FloatArray,
        offset: float,
        primal: float,
        dual: float,
        readings: tuple[Reading, ...],
        error: float,
    ) -> Point:
        return Point(
            coef,
            w,
            offset,
            primal,
            dual,
            paired=False,
            readings=readings,
            rounding=self.program.weight_bound * error,
            multiplier=(offset,) * self.frame.groups,
        )

    def first(self, asked: int | None = None) -> int:
        """Steps of the first stage."""
        part = self.rows // (SNACKS.first_part * self.batch)
        return asked or min(max(part, SNACKS.min_first_steps), SNACKS.max_first_steps)


def _saver(run: Run, saved: dict[str, Any]) -> Callable[[Any, dict[str, Any]], None]:
    """What writes a checkpoint of the pace as it was at a stage's end."""
    return lambda folder, meta: run.fleet.save(folder, {**meta, **saved})


class _SnacksSteps(_Steps):
    """Steps of one size within a stage, in a metric and a ball; from average to average."""

    def begin(self, x: FloatArray) -> Pace:
        """The pace of the first stage; where no step is given the best of some, tried on it."""
        options: Snacks = self.options
        length = self.first(options.first)
        if options.plain:
            self.metric = np.ones(len(self.penalty))
        # (The metric is not below its smallest entry: this ball holds w* wherever x is in it.)
        reach = (self.ball + float(np.linalg.norm(x))) * float(np.sqrt(self.metric.max()))
        radius = reach if options.radius is None else options.radius
        pace = Pace(x, x, step=options.step or 0.0, radius=radius, length=length)
        if options.step is not None:
            return pace
        first = self._race(pace, max(1.0, self.batch / 128) * TRIED)
        return replace(first, rows=0, tried=first.rows, stages=0)

    def stage(self, pace: Pace) -> Pace:
        """See `_Steps.stage`."""
        if self.options.step is None:
            return self._race(pace, np.array([pace.step, 0.5 * pace.step]))
        after = self._race(pace, np.array([pace.step]))
        return replace(after, step=0.5 * pace.step)

    def _race(self, pace: Pace, sizes: NDArray[Any]) -> Pace:
        """A stage with each of some step sizes over the same rows; the best one goes on."""
        options: Snacks = self.options
        unit = 1.0 if options.plain else self.unit
        rate = sizes[:, None] * unit / (self.scale * self.metric)
        starts = np.repeat(pace.at[None], len(sizes), axis=0)
        ball = _Ball(pace, self.metric * self.penalty, len(sizes))
        best = 0
        with np.errstate(over="ignore", invalid="ignore"):
            ends, _, rows = self.walk(starts, pace.length, lambda t: rate, ball)
            if len(sizes) > 1:
                found, _ = self.estimates(ends, rows // SNACKS.checked_part)
                best = int(np.argmin(np.where(np.isfinite(found), found, np.inf)))
        radius = 0.5 * pace.radius
        if options.radius is None:
            radius = SNACKS.around * float(ball.farthest[best]) or pace.radius
        return replace(
            pace,
            x=ends[best],
            at=ends[best],
            step=float(sizes[best]),
            radius=radius,
            length=round(options.growth * pace.length),
            steps=pace.steps + pace.length,
            rows=rows + pace.tried,
            drawn=pace.drawn + rows,
            tried=0,
            stages=pace.stages + 1,
        )


class _Ball:
    """The ball around a stage's start that its points stay in (eq. 7 of Tanji et al.).

    ``weights`` are those of a direction's square in lengths; of weight 0 one is free.
    ``farthest``: how far from the centre each machine was at most.
    """

    def __init__(self, pace: Pace, weights: FloatArray, machines: int) -> None:
        self.centre, self.radius, self.weights = pace.at, pace.radius, weights
        self.farthest = np.zeros(machines)

    def __call__(self, x: FloatArray) -> FloatArray:
        """The nearest points to some machines x (k, size)."""
        away = x - self.centre
        length = np.sqrt(away**2 @ self.weights)
        self.farthest = np.fmax(self.farthest, np.minimum(length, self.radius))
        out = length > self.radius
        if not np.any(out):
            return x
        inside = np.where(out, self.radius / np.maximum(length, 1e-300), 1.0)[:, None]
        return np.where(self.weights > 0, self.centre + inside * away, x)


class _PegasosSteps(_Steps):
    """Steps of 1 / t in the ball that holds w*; each stage goes on where the last one ended."""

    def begin(self, x: FloatArray) -> Pace:
        """See `_Steps.begin`."""
        return Pace(x, x, radius=self.ball, length=self.first())

    def stage(self, pace: Pace) -> Pace:
        """See `_Steps.stage`."""

        def project(x: FloatArray) -> FloatArray:
            length = float(np.linalg.norm(x))
            return x if length <= pace.radius else (pace.radius / length) * x

        average, end, rows = self.walk(
            pace.at[None], pace.length, lambda t: 1.0 / (pace.steps + t + 1), project
        )
        steps = pace.steps + pace.length
        return replace(
            pace,
            x=average[0],
            at=end[0],
            stages=pace.stages + 1,
            length=steps,
            steps=steps,
            rows=rows,
            drawn=pace.drawn + rows,
        )
