"""Snacks and Pegasos: steps along subgradients of rows drawn at random (maths.md 5.9).

    P(w) / S = 1 / (2 S) ||w||^2 + mean of the rows' losses,      S = sum of the rows' reach

A batch of rows gives an unbiased subgradient. T is applied once for each batch, so features are
never stored, and kernel entries are computed only for drawn rows. A proved gap comes from alpha
that is read off the scores at the end of a stage.
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


@dataclass(frozen=True)
class SnacksTuning:
    """Tuned values of the steps on rows drawn at random.

    Parameters
    ----------
    batch : int
        Each gradient step uses this many rows, drawn at random, or fewer if ``min_batches`` says
        so.
    min_batches : int
        If the rows are few, steps use fewer rows each, so that a pass over the data has at least
        this many steps.
    first_part : int
        The first stage takes the number of steps of one pass over the data divided by this.
    min_first_steps : int
        The first stage, which compares step sizes, takes at least this many steps.
    max_first_steps : int
        The first stage, which compares step sizes, takes at most this many steps.
    first_sizes : tuple of float
        Step sizes to compare in the first stage, in units of ``max(1, b / 128)`` for steps on b
        rows.
    sample_rows : int
        Estimate second moments, and P between passes over the data, from this many sampled rows.
    min_moment_fraction : float
        Add this fraction of the mean second moment of features to the second moment along every
        direction, by which steps are divided: steps along directions of small moments then stay
        bounded.
    radius_factor : float
        Steps stay in a ball around the stage's start. The next ball's radius is this multiple of
        the largest distance that the last stage went from its start.
    drawn_rows_per_compared_row : int
        Step sizes are compared by P over a sample that has one row for every this many rows drawn
        by the trial steps, but at least ``sample_rows`` rows.
    max_passes : int
        End once the steps have drawn about this many times the number of rows.
    patience : int
        End once this many consecutive stages have each lowered P by less than ``tol`` times P.
    smoothing_factors : tuple of float
        Half-widths of the smoothed loss that are tried when alpha is computed from w, as multiples
        of the best half-width of the last stage.
    """

    batch: int = 512
    min_batches: int = 32
    first_part: int = 8
    min_first_steps: int = 16
    max_first_steps: int = 64
    first_sizes: tuple[float, ...] = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
    sample_rows: int = 4096
    min_moment_fraction: float = 0.1
    radius_factor: float = 2.0
    drawn_rows_per_compared_row: int = 8
    max_passes: int = 256
    patience: int = 2
    smoothing_factors: tuple[float, ...] = (0.25, 1.0, 4.0)


SNACKS = SnacksTuning()


@dataclass(frozen=True)
class Snacks:
    """Stages of averaged subgradient steps, each from the end of the one before, in a ball.

    Xu, Lin and Yang 2019, algorithm 1, as in Tanji et al. 2023, with changes (maths.md 5.9).
    Parameters that are None are chosen by rules. The first stage compares step sizes on the same
    rows. Every later stage runs with the last step size and with half of it, and continues from the
    better end; its ball is twice as wide as the last stage went. Every stage is twice as long as
    the one before.

    Parameters
    ----------
    tol : float
        End after two stages that each lower P by less than this fraction of it.
    seed : int
        Seed of the order of rows.
    passes : int
        Start no other stage once this many times the number of rows have been drawn.
    step : float or None
        How far a step on one row moves its own score, at first; for ``plain`` steps their length.
    radius : float or None
        Radius of the first stage's ball; it is halved with the step.
    batch : int or None
        Rows of a step.
    first : int or None
        Steps of the first stage.
    growth : float
        Steps of a stage divided by steps of the stage before.
    plain : bool
        Measure steps and balls by ``||w||``, not by how far they move scores.
    tuning : SnacksTuning
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
    tuning: SnacksTuning = SNACKS

    def __post_init__(self) -> None:
        """Refuse parameters outside their range."""
        for name in ("tol", "step", "radius", "batch", "first", "growth"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise InputError(f"{name} must be a positive finite number, got {value!r}")
        if self.growth < 1:
            raise InputError(f"growth must be 1 or more, got {self.growth!r}")

    def solve(self, run: Run, check: Check) -> Point:
        """Solve until ``check`` returns None, or stages gain no more; returns the last point.

        Raises
        ------
        InputError
            For squared losses, a total to meet (nu), and the exact kernel.
        """
        return _SnacksSteps(run, self).run(check)


@dataclass(frozen=True)
class Pegasos:
    """Pegasos: subgradient steps of length ``1 / (lambda t)``, projected to a ball, averaged.

    The algorithm is its authors' (maths.md 5.9). A stage has as many steps as all stages before it,
    so that its average is the average of the last half of all steps.

    Parameters
    ----------
    tol : float
        End after two stages that each lower P by less than this fraction of it.
    seed : int
        Seed of the order of rows.
    passes : int
        Start no other stage once this many times the number of rows have been drawn.
    batch : int or None
        Rows of a step.
    tuning : SnacksTuning
    """

    tol: float = 1e-3
    seed: int = 0
    passes: int = SNACKS.max_passes
    batch: int | None = None
    tuning: SnacksTuning = SNACKS

    def solve(self, run: Run, check: Check) -> Point:
        """Solve until ``check`` returns None, or stages gain no more; returns the last point.

        Raises
        ------
        InputError
            For squared losses, a total to meet (nu), the exact kernel, and an unpenalised offset,
            for which steps of 1 / t are not defined.
        """
        if run.problem.intercept == "true":
            raise InputError(
                "pegasos has no unpenalised offset; use intercept penalized, or solver snacks"
            )
        return _PegasosSteps(run, self).run(check)


@dataclass
class Pace:
    """The state of a stochastic solve between two stages.

    Parameters
    ----------
    x : float64 (size,)
        The result of the last stage: w and the offset.
    at : float64 (size,)
        The point that the next stage starts from.
    stages : int
        Stages so far.
    step, radius, length : float, float, int
        The next stage's step size, radius of its ball, and number of steps.
    steps, passes : int
        Steps so far, and passes over all rows so far.
    rows, drawn, tried : int
        Rows drawn in the last stage, in all stages, and in a comparison of step sizes before the
        next stage.
    before : float
        P before the last stage, infinite if it is not known.
    slow : int
        Consecutive stages that have lowered P by less than ``tol`` of it.
    smoothing : float
        Smoothing at which D was largest, in units of scores.
    place : list of int
        ``Draws.position``.
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
        """Return all fields for a checkpoint: "x" and "at"; the others under "solver"."""
        plain = {name: value for name, value in vars(self).items() if name not in ("x", "at")}
        return {"solver": plain, "x": self.x, "at": self.at}

    @classmethod
    def from_dict(cls, meta: dict[str, Any]) -> Pace:
        """Return the pace whose fields are in ``meta``, a checkpoint that has `to_dict` of it."""
        return cls(meta["x"], meta["at"], **meta["solver"])


class _Steps:
    """Base of both solvers: it draws rows, measures P, and repeats stages until they gain no more.

    A machine is ``x = (w, offset)``: the offset, if there is one, is the coefficient of a constant
    feature, penalised or not; ``size`` is the length of x.

    Parameters
    ----------
    run : Run
    options : Snacks or Pegasos

    Attributes
    ----------
    penalty : float64 (size,)
        1 for entries of x that P penalises, 0 for an unpenalised offset.
    scale : float
        The sum of the rows' reach: P divided by it is a mean over rows.
    unit : float
        Typical size of ``|p|``, the unit of scores and smoothings.
    holds_zero : bool
        Whether alpha = 0 is in every row's box.
    frame : SumLayout
        The problem's extras: an appended constant, and multipliers.
    rank, width : int
        Number of a row's features, and of its columns (kernel entries with landmarks).
    factor : float32 (width, rank) or None
        T, by which columns become features; None: columns are features.
    rows, batch : int
        Rows of the data, and rows of a batch.
    draws : Draws
        Draws the batches.
    program : DrawProgram
        What every shard runs.
    """

    def __init__(self, run: Run, options: Any) -> None:
        """Prepare a run; raises InputError for problems and designs that have no such steps."""
        self.run_, self.options, self.design = run, options, run.design
        self.tuning: SnacksTuning = options.tuning
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
        """The constant feature of every row, 0 without an offset."""
        self.penalty = np.ones(self.rank + (self.constant != 0))
        self.penalty[self.rank :] = float(self.frame.constant != 0)
        self.rows = run.design.data.n_rows
        factor, most = run.design.factor, max(1, self.rows // self.tuning.min_batches)
        batch = self.tuning.batch
        # Batches of at least m rows make products with T cheap compared with their columns.
        batch = min(batch if factor is None else max(batch, self.width), most)
        self.batch = int(options.batch or batch)
        self.draws = Draws(run.design.data, options.seed, self.batch)
        self.program = DrawProgram(
            run.design, run.problem, options.seed, float(run.resident >= 1), run.reach.total
        )
        # (Rounding errors of float32 are far below the noise of steps.)
        self.factor = None if factor is None else factor.astype(np.float32)

    def run(self, check: Check) -> Point:
        """Run stages, from the start or a checkpoint, until ``check`` returns None.

        Returns the last point.
        """
        run = self.run_
        run.fleet.start(self.program, run.design.data.n_shards)
        found = None if run.checkpoint is None else run.fleet.load(run.checkpoint)
        self._measure_rows()
        if found is None:
            pace = self.stage(self.begin(self._start()))
        else:
            check.restored(found)
            pace = Pace.from_dict(found)
            self.draws.position = list(pace.place)
        while True:
            saved = replace(pace, place=list(self.draws.position)).to_dict()
            point, stats = self._report(pace)
            if check(point, stats, _saver(run, saved)) is None:
                return point
            pace = self.stage(pace)

    # -- in subclasses -----------------------------------------------------------------------------
    def begin(self, x: FloatArray) -> Pace:
        """Make the pace of the first stage, which starts at x."""
        raise NotImplementedError

    def stage(self, pace: Pace) -> Pace:
        """Run one stage; returns the pace after it."""
        raise NotImplementedError

    # -- rounds ------------------------------------------------------------------------------------
    def _measure_rows(self) -> None:
        """Estimate second moments of features and the unit of scores from a sample; sum P(0)."""
        message = {"kind": "sample", **self.draws.ahead(self.tuning.sample_rows)}
        stack, totals = self.run_.fleet.round(message)
        mass, unit, nothing, out = stack.T
        weight = float(mass.sum()) or 1.0
        squares = reproducible.read(totals, "squares", self.program.square_bound) / weight
        moments = np.concatenate([squares, self.constant**2 * (self.penalty[self.rank :] >= 0)])
        floor = self.tuning.min_moment_fraction * float(moments.mean()) or 1.0
        self.metric = moments + floor
        """Weights (size,) of the squared length of a direction: a step on one row has length 1."""
        self.metric *= float((moments / self.metric).sum()) or 1.0
        self.unit = float(unit.sum()) / weight or 1.0
        self.ball = float(np.sqrt(nothing.sum()))
        """Upper bound of ``||w*||``: ``||w*||^2 <= p . alpha - e . |alpha| <= P(0)``."""
        self.holds_zero = float(out.max()) <= 0

    def _start(self) -> FloatArray:
        """Return w(alpha) of the run's start, else 0; an unpenalised offset starts at 0."""
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
        """Take subgradient steps of k machines x (k, size), all on the same batches of rows.

        Parameters
        ----------
        x : float64 (k, size)
            Where the machines start.
        steps : int
            Number of steps, each on one batch.
        rate : callable
            Step size of step t: the factor of the subgradient of P.
        project : callable
            Maps machines (k, size) to the nearest allowed ones.

        Returns
        -------
        averages, ends : float64 (k, size)
        rows : int
            Rows drawn.
        """
        total, rows = np.zeros_like(x), 0
        for t in range(steps):
            chosen, drawn = self._draw_subgradient(x)
            x = project(x - rate(t) * (self.penalty * x - chosen))
            total += x
            rows += drawn
        return total / steps, x, rows

    def _machines(self, x: FloatArray) -> dict[str, FloatArray]:
        """Convert machines (k, size) to coefficients of columns and offsets, for messages."""
        w = x[:, : self.rank]
        if self.factor is not None:
            w = (w.astype(np.float32) @ self.factor.T).astype(np.float64)
        offsets = self.constant * x[:, self.rank :].sum(axis=1)
        return {"coefs": np.ascontiguousarray(w), "offsets": offsets}

    def _draw_subgradient(self, x: FloatArray) -> tuple[FloatArray, int]:
        """Estimate ``sum s alpha phi`` over all rows from a batch, unbiased, at each x (k, size).

        Returns the estimates (k, size) and the rows of the batch.
        """
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
        """Estimate P at each machine x (k, size) from the next rows, about ``rows`` of them.

        Returns the estimates (k,) and the number of rows: at least the tuning's ``sample_rows``, as
        far as the current group of shards has as many.
        """
        ahead = self.draws.ahead(max(rows, self.tuning.sample_rows))
        message = {"kind": "estimate", **ahead, **self._machines(x)}
        found = self.run_.fleet.round(message)[0].sum(axis=0)
        losses = found[1:] * (self.rows / found[0])
        return 0.5 * (x**2 @ self.penalty) + losses, int(found[0])

    # -- points ------------------------------------------------------------------------------------
    def _report(self, pace: Pace) -> tuple[Point, dict[str, Any]]:
        """Make the point at the end of a stage, and the counts of the stage, for ``check``."""
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
            point, seen = self._estimate_point(pace)
            return point, {**stats, "full_passes": pace.passes, "estimated_from": seen}
        point = self._measure_point(pace)
        slow = pace.before - point.primal <= self.options.tol * abs(point.primal)
        pace.slow = pace.slow + 1 if slow else 0
        pace.before = point.primal
        over = pace.slow >= self.tuning.patience or pace.drawn >= self.options.passes * self.rows
        return point, {**stats, "full_passes": pace.passes, "stalled": "slow" if over else False}

    def _measure_point(self, pace: Pace) -> Point:
        """Make the point of x: sums P and D over all rows, D at the best of three smoothings."""
        design, frame = self.design, self.frame
        w, offset = self._parts(pace.x)
        coef = design.coef(w)
        widths = pace.smoothing * np.array(self.tuning.smoothing_factors)
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
        return self._make_point(coef, w, offset, primal, dual, readings, error)

    def _dual(self, v: FloatArray, sums: FloatArray) -> tuple[float, FloatArray]:
        """Scale alpha to meet the coupling; returns its D and w(alpha) (size,).

        ``v`` (terms, m + extras), ``sums`` (terms,): the sums of `Terms` over all rows.
        """
        scales = self.frame.scales(v)
        assert scales is not None  # without a total, alpha can always be scaled
        total = scales @ v
        x = np.concatenate([self.design.features(total[: self.width]), total[self.width :]])
        return self.frame.value(scales, sums) - 0.5 * float(x**2 @ self.penalty), x

    def _estimate_point(self, pace: Pace) -> tuple[Point, int]:
        """Make the point of x from an estimate of P; returns it and the number of rows used."""
        w, offset = self._parts(pace.x)
        coef = self.design.coef(w)
        primal, seen = self.estimates(pace.x[None])
        value = float(primal[0])
        readings = () if self.holds_zero else (self._reading(coef, offset, self.unit),)
        dual = 0.0 if self.holds_zero else -abs(value)
        return self._make_point(coef, w, offset, value, dual, readings, 0.0), seen

    def _parts(self, x: FloatArray) -> tuple[FloatArray, float]:
        """Split x into w and the offset of scores."""
        return x[: self.rank].copy(), self.constant * float(x[self.rank :].sum())

    def _reading(self, coef: FloatArray, offset: float, h: float) -> Reading:
        """Describe how to read alpha off the scores of a machine, with losses smoothed by h.

        ``coef`` (m,), ``offset``: the machine's coefficients and the offset of its scores.
        """
        if self.frame.groups:
            return Reading(coef, 0.0, h, multiplier=(offset,))
        return Reading(coef, offset, h)

    def _make_point(
        self,
        coef: FloatArray,
        w: FloatArray,
        offset: float,
        primal: float,
        dual: float,
        readings: tuple[Reading, ...],
        error: float,
    ) -> Point:
        """Make a point of coefficients, w, offset, P and D.

        ``readings``: how alpha is read off scores. ``error``: bound on the errors of scores in P
        and D, which times the sum of the rows' reach bounds the rounding of the gap.
        """
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

    def first_steps(self, requested: int | None = None) -> int:
        """Return the number of steps of the first stage: ``requested``, or None: by the rows."""
        tuning = self.tuning
        part = self.rows // (tuning.first_part * self.batch)
        return requested or min(max(part, tuning.min_first_steps), tuning.max_first_steps)


def _saver(run: Run, saved: dict[str, Any]) -> Callable[[Any, dict[str, Any]], None]:
    """Return a `Save` function that writes a checkpoint of ``saved``, the pace at a stage's end."""
    return lambda folder, meta: run.fleet.save(folder, {**meta, **saved})


class _SnacksSteps(_Steps):
    """Stages of `Snacks`: steps of one size, in a metric and a ball."""

    def begin(self, x: FloatArray) -> Pace:
        """Make the pace of the first stage; without a step size, compare some on its rows."""
        options: Snacks = self.options
        length = self.first_steps(options.first)
        if options.plain:
            self.metric = np.ones(len(self.penalty))
        # (A ball of this radius around x contains w*: the metric is at most its largest entry.)
        reach = (self.ball + float(np.linalg.norm(x))) * float(np.sqrt(self.metric.max()))
        radius = reach if options.radius is None else options.radius
        pace = Pace(x, x, step=options.step or 0.0, radius=radius, length=length)
        if options.step is not None:
            return pace
        sizes = max(1.0, self.batch / 128) * np.array(self.tuning.first_sizes)
        first = self._compare_sizes(pace, sizes)
        return replace(first, rows=0, tried=first.rows, stages=0)

    def stage(self, pace: Pace) -> Pace:
        """Run a stage with the present step size and with half of it; continue from the better.

        With a step size in the options there is no comparison: it is halved after every stage.
        """
        if self.options.step is None:
            return self._compare_sizes(pace, np.array([pace.step, 0.5 * pace.step]))
        after = self._compare_sizes(pace, np.array([pace.step]))
        return replace(after, step=0.5 * pace.step)

    def _compare_sizes(self, pace: Pace, sizes: NDArray[Any]) -> Pace:
        """Run a stage with each step size over the same rows; returns the pace of the best."""
        options: Snacks = self.options
        unit = 1.0 if options.plain else self.unit
        rate = sizes[:, None] * unit / (self.scale * self.metric)
        starts = np.repeat(pace.at[None], len(sizes), axis=0)
        ball = _Ball(pace, self.metric * self.penalty, len(sizes))
        best = 0
        with np.errstate(over="ignore", invalid="ignore"):
            ends, _, rows = self.walk(starts, pace.length, lambda t: rate, ball)
            if len(sizes) > 1:
                found, _ = self.estimates(ends, rows // self.tuning.drawn_rows_per_compared_row)
                best = int(np.argmin(np.where(np.isfinite(found), found, np.inf)))
        radius = 0.5 * pace.radius
        if options.radius is None:
            radius = self.tuning.radius_factor * float(ball.farthest[best]) or pace.radius
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
    """Projection to the ball around a stage's start (eq. 7 of Tanji et al.).

    Parameters
    ----------
    pace : Pace
        Its ``at`` and ``radius`` are the ball's.
    weights : float64 (size,)
        Weights of the squared length of a direction; directions of weight 0 are not bounded.
    machines : int
        Number of machines that are projected together.

    Attributes
    ----------
    farthest : float64 (machines,)
        The largest distance from the centre of each machine so far.
    """

    def __init__(self, pace: Pace, weights: FloatArray, machines: int) -> None:
        """Make the ball; no machine has left its centre yet."""
        self.centre, self.radius, self.weights = pace.at, pace.radius, weights
        self.farthest = np.zeros(machines)

    def __call__(self, x: FloatArray) -> FloatArray:
        """Project machines x (k, size) to the ball."""
        away = x - self.centre
        length = np.sqrt(away**2 @ self.weights)
        self.farthest = np.fmax(self.farthest, np.minimum(length, self.radius))
        out = length > self.radius
        if not np.any(out):
            return x
        inside = np.where(out, self.radius / np.maximum(length, 1e-300), 1.0)[:, None]
        return np.where(self.weights > 0, self.centre + inside * away, x)


class _PegasosSteps(_Steps):
    """Stages of `Pegasos`: steps of 1 / t in a ball that contains w*, from the last end."""

    def begin(self, x: FloatArray) -> Pace:
        """Make the pace of the first stage, which starts at x."""
        return Pace(x, x, radius=self.ball, length=self.first_steps())

    def stage(self, pace: Pace) -> Pace:
        """Take steps of 1 / t; x is their average, and the next stage starts at their end."""

        def project(x: FloatArray) -> FloatArray:
            """Scale the machine x (1, size) down to the ball of radius ``pace.radius`` around 0."""
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
