"""Steps from near an optimum that compute features only of rows near their hinge point.

The loss of a row away from its hinge point is linear in w. What all such rows add to P is one
vector, which follows from w(alpha) of the start. So features are computed of rows near their hinge
point alone. Each round ends with the scores of all rows: rows that have crossed are added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.incremental import IncrementalCertifier
from bigscreen.features.design import (
    Design,
    compute_scores,
    put_rows_at_bounds,
    row_ranges,
    with_constant,
)
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import Point, SumLayout, relative_gap
from bigscreen.problems.recipes import CSvc
from bigscreen.solvers.newton.algebra import Algebra
from bigscreen.solvers.newton.local import LocalProblem
from bigscreen.solvers.newton.shard import GatheredRows
from bigscreen.solvers.newton.tuning import FLOAT32_TOL, NEARBY, NearbyTuning
from bigscreen.solvers.protocol import Check, Near, Run


@dataclass(frozen=True)
class StartingPoint:
    """A primal and a dual point near the optimum, from which steps over some rows start.

    Parameters
    ----------
    alpha : float64 (n,)
        A dual point. Rows that are not near have the end of their box at their side.
    w_alpha : float64 (r,) or, with a constant, (r + 1,)
        w(alpha) of that dual point.
    old : Near
        w to start from (in the same layout as ``w_alpha``), and a lower bound D.
    primal : float
        P of that w, or an estimate of it.
    """

    alpha: FloatArray
    w_alpha: FloatArray
    old: Near
    primal: float

    @property
    def gap(self) -> float:
        """The relative gap between ``primal`` and D of the start."""
        return relative_gap(self.primal - self.old.dual, self.primal)


def pick_first_rows(
    far: FloatArray, gap: float, dual: Dual, size: int, tuning: NearbyTuning = NEARBY
) -> NDArray[np.bool_] | None:
    """Pick the rows nearest to their hinge point, to start with: bool (n,), True for these rows.

    Returns None if leaving out all other rows would save nothing.

    Parameters
    ----------
    far : float64 (n,)
        Distance of each row from its hinge point, in any unit.
    gap : float
        Relative gap of the start.
    dual : Dual
    size : int
        Coordinates of w.
    tuning : NearbyTuning
    """
    movable, close = np.flatnonzero(dual.hi > 0), gap <= tuning.far_gap
    per_root_gap = tuning.part_per_root_gap if close else tuning.part_per_root_gap_far
    if not len(movable):
        return None
    ends = tuning.max_first_part, tuning.max_first_part_many
    most = np.clip(tuning.rows_per_coordinate * size / len(movable), *ends)
    part = min(tuning.min_part + per_root_gap * np.sqrt(max(gap, 0.0)), most)
    last = np.sort(far[movable])[min(int(part * len(movable)), len(movable) - 1)]
    near = (far <= last) & (dual.hi > 0)
    return near if np.count_nonzero(near) <= tuning.max_part * len(movable) else None


def max_rows_in(room: int, width: int, dtype: type) -> int:
    """Return how many rows of ``width`` features fit into this many bytes."""
    return room // (width * np.dtype(dtype).itemsize)


class Nearby:
    """Solver of a C-SVC on landmarks from near its optimum; it may end before the gap is met.

    Parameters
    ----------
    start : StartingPoint
    near : bool (n,)
        Rows to start with.
    source : Design
        The kernel design of which features are computed: in float64 if float32 cannot prove the
        gap.
    room : int
        Bytes that features may take.
    incremental : IncrementalCertifier or None
        Certifies points, and so has the scores of all rows; None: scores are computed here.
    doubted : bool
        Whether float32 features could not prove even a wider gap.
    tuning : NearbyTuning
    """

    def __init__(
        self,
        start: StartingPoint,
        near: NDArray[np.bool_],
        source: Design,
        room: int,
        incremental: IncrementalCertifier | None = None,
        doubted: bool = False,
        tuning: NearbyTuning = NEARBY,
    ) -> None:
        """Keep the arguments; ``reached`` is the w of the start."""
        self.start, self.first, self.source, self.room = start, near, source, room
        self.doubted, self.incremental, self.tuning = doubted, incremental, tuning
        self.reached = start.old
        """The last w, and its D."""

    def solve(self, run: Run, check: Check) -> Point:
        """Take steps over the rows near their hinge point until ``check`` returns None.

        Returns the last point. The report to ``check`` says ``stalled`` if the rows no longer fit
        into memory, and in the last of the tuning's ``max_passes`` passes, after which this ends.
        """
        design, data, at, problem = run.design, run.design.data, self.start, run.problem
        tuning = self.tuning
        assert isinstance(problem, CSvc)
        dual = problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
        frame = SumLayout.of(problem, data)
        dtype = np.float64 if self.doubted or check.target < FLOAT32_TOL else np.float32
        most = min(
            int(tuning.max_part * data.n_rows), max_rows_in(self.room, len(at.w_alpha), dtype)
        )
        x = self.reached.x
        local = LocalProblem(Algebra(self.source, frame), x, x - at.w_alpha, 0.0, most, dtype)
        nearby = _NearRows(run, dual, self.source, frame.constant, local, tuning.feature_rows)
        primal = at.primal
        left = primal - self.reached.dual
        more, read, passes = self.first, 0, 0
        for k in range(tuning.max_passes):
            nearby.add(more, at.alpha)
            max_band = tuning.rows_per_coordinate * len(local.x)
            cost = tuning.smoothing_part * left
            local.h = max(local.h, smoothing_for_cost(dual[nearby.at], local.G, cost, max_band))
            far = k == 0 and at.gap > tuning.far_gap * min(check.target / FLOAT32_TOL, 1.0)
            tol = tuning.aim * check.target * (tuning.loose_factor if far else 1.0)
            part, w_alpha, gap, steps = _minimise(local, tol * abs(primal), tuning.max_restarts)
            read, passes = read + steps * len(part), passes + steps
            alpha = np.array(at.alpha)
            alpha[nearby.at] = part
            lowest = float(np.sum(alpha)) - 0.5 * float(w_alpha @ w_alpha)
            w, offset = local.x[: design.rank], frame.constant * float(local.x[design.rank :].sum())
            point = Point(design.coef(w), w, offset, np.nan, lowest, paired=False, alpha=alpha)
            if self.incremental is not None:
                G = dual.gradient(self.incremental.scores(point))
            else:
                G = dual.gradient(compute_scores(design, point.coef, run.fleet) + offset)
            read += data.n_rows
            over = np.where(nearby.inside, 0.0, dual.hi * np.maximum(G, 0.0) - at.alpha * G)
            primal = lowest + gap + float(np.sum(over))
            self.reached, left = Near(local.x, lowest), primal - lowest
            inside, crossed = int(np.sum(nearby.inside)), ~nearby.inside & (over > 0)
            came = int(np.sum(crossed))
            full = inside + came > most
            others = ~nearby.inside & ~crossed & (dual.hi > 0)
            added = max(int(tuning.added_per_crossed * came), len(local.x)) if came else 0
            added = max(min(added, most - inside - came), 0)
            more = crossed | _pick_nearest(G, others, added)
            point = replace(point, primal=primal)
            stats = {
                "rows_visited": data.n_rows,
                "rows_alive": int(inside),
                "rows_read": read,
                "bytes_read": int(read * data.row_bytes),
                "fixed_hi": 0,
                "fixed_lo": 0,
                "full_passes": k + 1,
                "partial_passes": passes,
                "stalled": full or k + 1 == tuning.max_passes,
            }
            if check(point, stats, lambda folder, meta: None) is None:
                break
            read = 0
        return point


def smoothing_for_cost(dual: Dual, G: FloatArray, max_cost: float, most: int) -> float:
    """Find the half-width h of the band at which smoothing adds ``max_cost`` to P.

    If that band has more than ``most`` rows, it is the h whose band has about ``most`` rows.
    ``dual``: the rows' boxes; ``G`` (rows,): their gradients.
    """
    far = np.abs(G)
    high = float(np.max(far, initial=1e-6))
    if len(far) > most:
        high = max(float(np.partition(far, most)[most]), 1e-6)
    low = 0.0
    for _ in range(20):
        h = 0.5 * (low + high)
        cost = float(dual.hi @ np.maximum(h - far, 0.0) ** 2) / (4.0 * h)
        low, high = (h, high) if cost < max_cost else (low, h)
    return high


def _minimise(
    local: LocalProblem, gap: float, max_restarts: int
) -> tuple[FloatArray, FloatArray, float, int]:
    """Take local steps (over gathered rows alone) until P - D over these rows is at most ``gap``.

    Steps end at an estimate of P - D. If P - D is wider, more steps aim at a quarter of the gap
    aimed at before; in all at most ``max_restarts`` solves.
    Returns alpha of the rows, w(alpha), P - D and the number of steps.
    """
    aim, steps = gap, 0
    for _ in range(max_restarts):
        taken = local.solve(aim, 0.0)
        steps += max(taken, 0)
        alpha, w_alpha, found = local.read()
        if found <= gap or taken <= 0:
            break
        aim /= 4.0
    return alpha, w_alpha, found, steps


def w_with_constant(run: Run, point: Point) -> FloatArray:
    """Return w of a point, with the constant's coefficient if there is one: (r,) or (r + 1,)."""
    constant = SumLayout.of(run.problem, run.design.data).constant
    return np.append(point.w, point.intercept / constant) if constant else point.w


def make_float64_solver(
    run: Run,
    point: Point,
    reach: float,
    source: Design,
    room: int,
    tuning: NearbyTuning = NEARBY,
) -> Nearby | None:
    """Make a solver that continues from a point with float64 features of rows near hinge points.

    It is for gaps that float32 features cannot prove: below `FLOAT32_TOL`, or wider if the closing
    pass finds a wider gap than the solver. Returns None if the rows need more room.

    Parameters
    ----------
    run : Run
        A C-SVC on features of landmarks.
    point : Point
        The point to start from.
    reach : float
        Start with at least the rows within this distance of their hinge point.
    source : Design
        The kernel design of the features.
    room : int
        Bytes that float64 features may take.
    tuning : NearbyTuning
    """
    design, data, problem = run.design, run.design.data, run.problem
    assert isinstance(problem, CSvc)
    dual = problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
    G, sums = put_rows_at_bounds(design, problem, point.coef, point.intercept, run.fleet)
    x = w_with_constant(run, point)
    most = min(tuning.max_float64_entries // len(x), max_rows_in(room, len(x), np.float64))
    near = (np.abs(G) <= reach) & (dual.hi > 0)
    few = min(int(tuning.max_part * data.n_rows), tuning.min_rows_per_coordinate * len(x))
    few -= int(np.sum(near))
    near |= _pick_nearest(G, ~near & (dual.hi > 0), max(few, 0))
    if np.count_nonzero(near) > most:
        return None
    w_alpha = with_constant(design, sums, SumLayout.of(problem, data).constant)
    ends = np.where(G > 0, dual.hi, 0.0)
    start = StartingPoint(ends, w_alpha, Near(x, point.dual), point.primal)
    return Nearby(start, near, source, room, doubted=True, tuning=tuning)


class _NearRows:
    """The rows near their hinge point, whose features are in a local problem.

    Parameters
    ----------
    run : Run
    dual : Dual
    source : Design
        Computes features.
    constant : float
        The feature appended to all rows, 0 without one.
    local : LocalProblem
    tile : int
        Rows whose features are computed at once.

    Attributes
    ----------
    inside : bool (n,)
        Rows that are in the local problem.
    at : int64 (k,)
        Their numbers, in the order in which they were added.
    """

    def __init__(
        self,
        run: Run,
        dual: Dual,
        source: Design,
        constant: float,
        local: LocalProblem,
        tile: int,
    ) -> None:
        """Start without rows."""
        self.run, self.dual, self.source, self.constant = run, dual, source, constant
        self.local, self.tile = local, tile
        self.inside = np.zeros(len(dual), np.bool_)
        self.at = np.empty(0, np.int64)

    def add(self, more: NDArray[np.bool_], alpha: FloatArray) -> None:
        """Compute the features of more rows and add them to the local problem.

        ``more`` (n,): which rows; ``alpha`` (n,): their alpha in the gradient at the start.
        """
        new = np.flatnonzero(more & ~self.inside)
        if not len(new):
            return
        source, local, dual = self.source, self.local, self.dual[new]
        assert source.factor is not None
        room, G = local.room, np.empty(len(new))
        dtype = np.float64 if room.dtype == np.float64 else source.entries
        X, ranges = source.data.rows(new), row_ranges(len(new), self.tile)
        parts = (X[a:b] for a, b in ranges)
        made = self.run.fleet.each(_Features(source, dtype), parts)
        for (a, b), own in zip(ranges, made, strict=True):
            room[a:b, : source.rank], room[a:b, source.rank :] = own, self.constant
            room[a:b] *= dual.sign[a:b, None]
            G[a:b] = dual.lin[a:b] - room[a:b].astype(np.float64, copy=False) @ local.start
        rows = GatheredRows(room[: len(new)], G, dual.lo, dual.hi, np.zeros(len(new)))
        local.add(rows, alpha[new])
        self.at = np.concatenate([self.at, new])
        self.inside[new] = True


@dataclass(frozen=True)
class _Features:
    """Function that computes features of rows X, (rows, r), from entries of type ``dtype``."""

    design: Design
    dtype: type

    def __call__(self, X: Any) -> NDArray[Any]:
        return self.design.features_of(self.design.columns(X, self.dtype))


def _pick_nearest(G: FloatArray, among: NDArray[np.bool_], wanted: int) -> NDArray[np.bool_]:
    """Pick the ``wanted`` rows that are nearest to their hinge point: bool (n,).

    ``G`` (n,): the rows' gradients; ``among`` (n,): the rows to choose from.
    """
    found, places = np.zeros(len(G), np.bool_), np.flatnonzero(among)
    if wanted:
        found[places[np.argsort(np.abs(G[places]), kind="stable")[:wanted]]] = True
    return found
