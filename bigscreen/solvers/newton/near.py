"""Steps over the rows near their kink: all others stay on their side, and are only looked at.

The loss of a row on its side of the kink is linear in w, and what all such rows add to P is one
vector that follows from the w(alpha) of before. So features are made of rows near their kink alone.
Each round ends in the scores of all rows: those that have crossed their kink are taken in.
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
from bigscreen.solvers.newton.local import Local
from bigscreen.solvers.newton.shard import NearbyRows
from bigscreen.solvers.newton.tuning import FLOAT32_TOL, NEARBY
from bigscreen.solvers.protocol import Check, Near, Run

FEATURE_ROWS = 2048
"""Rows whose features are made at once."""


@dataclass(frozen=True)
class Standing:
    """What is known of all rows before steps over some of them.

    Parameters
    ----------
    alpha : float64 (n,)
        A dual point; of rows that are not near the end of their box at their side.
    w_alpha : float64 (r,) or, with a constant, (r + 1,)
        Its w(alpha).
    old : Near
        The machine to begin from, likewise, and some D.
    primal : float
        P of that machine, or what is known of it.
    """

    alpha: FloatArray
    w_alpha: FloatArray
    old: Near
    primal: float

    @property
    def gap(self) -> float:
        """The relative gap between that P and D."""
        return relative_gap(self.primal - self.old.dual, self.primal)


def first_rows(far: FloatArray, gap: float, dual: Dual, size: int) -> NDArray[np.bool_] | None:
    """The rows nearest to their kink, to begin with (n,).

    None if they are too many for others to be left out.

    Parameters
    ----------
    far : float64 (n,)
        How far each is, in any unit.
    gap : float
        Relative gap of the machine to begin from.
    size : int
        Coordinates of w.
    """
    counted, close = np.flatnonzero(dual.hi > 0), gap <= NEARBY.far_gap
    reached = NEARBY.part_per_root_gap if close else NEARBY.part_per_root_gap_far
    if not len(counted):
        return None
    ends = NEARBY.max_first_part, NEARBY.max_first_part_many
    most = np.clip(NEARBY.rows_per_coordinate * size / len(counted), *ends)
    part = min(NEARBY.min_part + reached * np.sqrt(max(gap, 0.0)), most)
    last = np.sort(far[counted])[min(int(part * len(counted)), len(counted) - 1)]
    near = (far <= last) & (dual.hi > 0)
    return near if np.count_nonzero(near) <= NEARBY.max_part * len(counted) else None


def rows_within(room: int, width: int, dtype: type) -> int:
    """Rows whose features take so many bytes."""
    return room // (width * np.dtype(dtype).itemsize)


class Nearby:
    """The solver of a C-SVC on landmarks from about its optimum; it may end before the gap is met.

    Parameters
    ----------
    standing : Standing
    near : bool (n,)
        Rows to begin with.
    source : Design
        The kernel design, of which features are made: float64 where float32 could not tell the gap.
    room : int
        Bytes that they may take.
    incremental : IncrementalCertifier or None
        What certifies points, and so has the scores of all rows; None: they are computed here.
    doubted : bool
        Whether float32 could not tell a wider gap, either.
    """

    def __init__(
        self,
        standing: Standing,
        near: NDArray[np.bool_],
        source: Design,
        room: int,
        incremental: IncrementalCertifier | None = None,
        doubted: bool = False,
    ) -> None:
        self.standing, self.first, self.source, self.room = standing, near, source, room
        self.doubted, self.incremental = doubted, incremental
        self.reached = standing.old
        """The last machine, and a D."""

    def solve(self, run: Run, check: Check) -> Point:
        """See ``Solver``."""
        design, data, at, problem = run.design, run.design.data, self.standing, run.problem
        assert isinstance(problem, CSvc)
        dual = problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
        frame = SumLayout.of(problem, data)
        dtype = np.float64 if self.doubted or check.target < FLOAT32_TOL else np.float32
        most = min(
            int(NEARBY.max_part * data.n_rows), rows_within(self.room, len(at.w_alpha), dtype)
        )
        x = self.reached.x
        local = Local(Algebra(self.source, frame), x, x - at.w_alpha, 0.0, most, dtype)
        nearby = _Rows(run, dual, self.source, frame.constant, local)
        primal = at.primal
        left = primal - self.reached.dual
        more, read, passes = self.first, 0, 0
        for k in range(NEARBY.max_passes):
            nearby.add(more, at.alpha)
            curved = NEARBY.rows_per_coordinate * len(local.x)
            local.h = max(local.h, wide(dual[nearby.places], local.G, left, curved))
            far = k == 0 and at.gap > NEARBY.far_gap * min(check.target / FLOAT32_TOL, 1.0)
            tol = NEARBY.aim * check.target * (NEARBY.loose_factor if far else 1.0)
            part, w_alpha, gap, steps = _stepped(local, tol * abs(primal))
            read, passes = read + steps * len(part), passes + steps
            alpha = np.array(at.alpha)
            alpha[nearby.places] = part
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
            beside = max(int(NEARBY.added_per_crossed * came), len(local.x)) if came else 0
            beside = max(min(beside, most - inside - came), 0)
            more = crossed | _nearest(G, others, beside)
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
                "stalled": full or k + 1 == NEARBY.max_passes,
            }
            if check(point, stats, lambda folder, meta: None) is None:
                break
            read = 0
        return point


def wide(dual: Dual, G: FloatArray, gap: float, most: int) -> float:
    """The smoothing h that costs ``smoothing_part`` of this gap at these gradients (rows,).

    It is less where it would hold more than so many rows.
    """
    far = np.abs(G)
    high = float(np.max(far, initial=1e-6))
    if len(far) > most:
        high = max(float(np.partition(far, most)[most]), 1e-6)
    low = 0.0
    for _ in range(20):
        h = 0.5 * (low + high)
        cost = float(dual.hi @ np.maximum(h - far, 0.0) ** 2) / (4.0 * h)
        low, high = (h, high) if cost < NEARBY.smoothing_part * gap else (low, h)
    return high


def _stepped(local: Local, gap: float) -> tuple[FloatArray, FloatArray, float, int]:
    """Step until P - D over the rows at hand is no more than this.

    Returns alpha of the rows, w(alpha), P - D and the steps.
    """
    aim, steps = gap, 0
    for _ in range(NEARBY.max_restarts):
        taken = local.solve(aim, 0.0)
        steps += max(taken, 0)
        alpha, w_alpha, found = local.read()
        if found <= gap or taken <= 0:
            break
        aim /= 4.0
    return alpha, w_alpha, found, steps


def machine_at(run: Run, point: Point) -> FloatArray:
    """w of a point, with the constant's coefficient if there is one: (r,) or (r + 1,)."""
    constant = SumLayout.of(run.problem, run.design.data).constant
    return np.append(point.w, point.intercept / constant) if constant else point.w


def near_sides(run: Run, point: Point, reach: float, source: Design, room: int) -> Nearby | None:
    """Steps over float64 features of the rows near their kink, all others at their sides.

    None if the rows are too many for the room. Where float32 features lead astray, at gaps below
    `FLOAT32_TOL` or as the closing pass says so of wider ones, these steps go on.

    Parameters
    ----------
    run : Run
        A C-SVC on features of landmarks.
    point : Point
        From which steps begin.
    reach : float
        How far from their kink rows are to begin with, at least.
    source : Design
        The kernel design of the features.
    room : int
        Bytes that float64 features may take.
    """
    design, data, problem = run.design, run.design.data, run.problem
    assert isinstance(problem, CSvc)
    dual = problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
    G, sums = put_rows_at_bounds(design, problem, point.coef, point.intercept, run.fleet)
    x = machine_at(run, point)
    most = min(NEARBY.max_float64_entries // len(x), rows_within(room, len(x), np.float64))
    near = (np.abs(G) <= reach) & (dual.hi > 0)
    few = min(int(NEARBY.max_part * data.n_rows), NEARBY.min_rows_per_coordinate * len(x))
    few -= int(np.sum(near))
    near |= _nearest(G, ~near & (dual.hi > 0), max(few, 0))
    if np.count_nonzero(near) > most:
        return None
    w_alpha = with_constant(design, sums, SumLayout.of(problem, data).constant)
    ends = np.where(G > 0, dual.hi, 0.0)
    standing = Standing(ends, w_alpha, Near(x, point.dual), point.primal)
    return Nearby(standing, near, source, room, doubted=True)


class _Rows:
    """The rows nearby: which they are, and how their features are made."""

    def __init__(self, run: Run, dual: Dual, source: Design, constant: float, local: Local) -> None:
        self.run, self.dual, self.source, self.constant = run, dual, source, constant
        self.local = local
        self.inside = np.zeros(len(dual), np.bool_)
        self.places = np.empty(0, np.int64)

    def add(self, more: NDArray[np.bool_], alpha: FloatArray) -> None:
        """Take in more rows, whose part in the gradient at the start is that of this alpha (n,)."""
        places = np.flatnonzero(more & ~self.inside)
        if not len(places):
            return
        source, local, dual = self.source, self.local, self.dual[places]
        assert source.factor is not None
        room, G = local.room, np.empty(len(places))
        dtype = np.float64 if room.dtype == np.float64 else source.entries
        X, ranges = source.data.rows(places), row_ranges(len(places), FEATURE_ROWS)
        parts = (X[a:b] for a, b in ranges)
        made = self.run.fleet.each(_Features(source, dtype), parts)
        for (a, b), own in zip(ranges, made, strict=True):
            room[a:b, : source.rank], room[a:b, source.rank :] = own, self.constant
            room[a:b] *= dual.sign[a:b, None]
            G[a:b] = dual.lin[a:b] - room[a:b].astype(np.float64, copy=False) @ local.start
        rows = NearbyRows(room[: len(places)], G, dual.lo, dual.hi, np.zeros(len(places)))
        local.add(rows, alpha[places])
        self.places = np.concatenate([self.places, places])
        self.inside[places] = True


@dataclass(frozen=True)
class _Features:
    """Makes features of some rows, of the entries that carry all directions."""

    design: Design
    dtype: type

    def __call__(self, X: Any) -> NDArray[Any]:
        return self.design.features_of(self.design.columns(X, self.dtype))


def _nearest(G: FloatArray, among: NDArray[np.bool_], wanted: int) -> NDArray[np.bool_]:
    """The so many rows nearest to their kink (n,)."""
    found, places = np.zeros(len(G), np.bool_), np.flatnonzero(among)
    if wanted:
        found[places[np.argsort(np.abs(G[places]), kind="stable")[:wanted]]] = True
    return found
