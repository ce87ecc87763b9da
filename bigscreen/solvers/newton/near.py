"""Steps over the rows near their kink: all others stay on their side, and are only looked at.

The loss of a row on its side of the kink is linear in w, and what all such rows add to P is one
vector that follows from the w(alpha) of before. So features are made of rows near their kink alone.
Each round ends in the scores of all rows: those that have crossed their kink are taken in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design, row_ranges, scores, weighted_columns
from bigscreen.features.nystrom import entries
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import CSvc
from bigscreen.solvers.newton.coordinator import LEAST_TOL
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Check, Near, Run, Verdict

LEAST_PART, REACHED = 0.03, 0.7
"""Part of all rows that is near at first: at least, and for the root of the bound's relative gap.
(Where 1 % of the rows of a9a, ijcnn1 and SUSY's shape leave or enter at C = .01 to 1, this holds
all that cross their kink; where they change their label, most.)"""

MOST_PART = 0.4
"""Of more rows a fit of all costs no more."""

AROUND = 1.0
"""So many times as many rows as have crossed their kink are taken in beside them: the nearest."""

AIM = 0.5
"""Part of the gap asked for that is left among the rows nearby."""

FAR_OFF, LOOSE = 0.04, 30.0
"""Relative gap of a bound from which rows are sure to cross their kink; and so many times as wide a
gap is enough there before it is known which."""

FEATURE_ROWS, MOST_ENTRIES = 2048, 2**25
"""Rows whose features are made at once, and numbers in features that a closer gap is worth."""

COPIES = 3
"""Copies of these features that there are at once: of the rows so far, with more, and as data."""

ROUNDS, PASSES = 8, 60
"""Looks at all rows, and passes over those nearby between two of them, at most."""


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
    gap : float
        Its relative gap.
    """

    alpha: FloatArray
    w_alpha: FloatArray
    old: Near
    gap: float


def first_rows(far: FloatArray, gap: float, dual: Dual) -> NDArray[np.bool_] | None:
    """The rows nearest to their kink, to begin with (n,).

    None if they are too many for others to be left out.

    Parameters
    ----------
    far : float64 (n,)
        How far each is, in any unit.
    gap : float
        Relative gap of the machine to begin from.
    """
    part, counted = LEAST_PART + REACHED * np.sqrt(max(gap, 0.0)), np.flatnonzero(dual.hi > 0)
    if part > MOST_PART or not len(counted):
        return None
    last = np.sort(far[counted])[min(int(part * len(counted)), len(counted) - 1)]
    near = (far <= last) & (dual.hi > 0)
    return near if np.count_nonzero(near) <= MOST_PART * len(counted) else None


def rows_within(room: int, width: int, dtype: type) -> int:
    """Rows whose features, with their copies, take so many bytes."""
    return room // (COPIES * width * np.dtype(dtype).itemsize)


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
    last : bool
        Whether nothing comes after it: the check is told then that it has stalled.
    passes : (int, int)
        Passes over all rows, and over some, that were made before.
    """

    def __init__(
        self,
        standing: Standing,
        near: NDArray[np.bool_],
        source: Design,
        room: int,
        last: bool = True,
        passes: tuple[int, int] = (0, 0),
    ) -> None:
        self.standing, self.first, self.source, self.room = standing, near, source, room
        self.last, self.passes, self.over = last, passes, False
        self.reached = standing.old
        """The last machine, and a D; ``over``: whether the check was content."""

    def solve(self, run: Run, check: Check) -> Point:
        """See ``Solver``."""
        design, data, at = run.design, run.design.data, self.standing
        constant = len(at.w_alpha) - design.rank
        dual = run.problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
        problem = run.problem
        assert isinstance(problem, CSvc)
        dtype = np.float64 if check.target < LEAST_TOL else np.float32
        scaled = problem.intercept_scaling if constant else 0.0
        nearby = _Rows(run, dual, self.source, scaled, dtype)
        most = min(MOST_PART * data.n_rows, rows_within(self.room, len(at.w_alpha), dtype))
        more, read, passes = self.first, 0, self.passes[1]
        for k in range(ROUNDS):
            nearby.add(more)
            loose = LOOSE if k == 0 and at.gap > FAR_OFF else 1.0
            tol = AIM * check.target * loose
            found, part, steps = nearby.solved(at, self.reached, tol, check.expired)
            read, passes = read + steps * len(part), passes + steps
            alpha = nearby.whole(at.alpha, part)
            w, own = found.w[: design.rank], float(found.w[design.rank :].sum())
            offset = nearby.constant * own
            G = dual.gradient(scores(design, design.coef(w), run.fleet) + offset)
            read += data.n_rows
            over = np.where(nearby.inside, 0.0, dual.hi * np.maximum(G, 0.0) - at.alpha * G)
            primal = found.primal + float(np.sum(over))
            self.reached = Near(found.w, found.dual)
            crossed = ~nearby.inside & (over > 0)
            more = crossed | _nearest(G, ~nearby.inside & ~crossed & (dual.hi > 0), crossed)
            inside = np.count_nonzero(nearby.inside)
            full = np.count_nonzero(more) + inside > most
            point = Point(
                design.coef(w), w, offset, primal, found.dual, paired=False, alpha=alpha,
                rounding=found.rounding,
            )  # fmt: skip
            stats = {
                "rows_visited": data.n_rows,
                "rows_alive": int(inside),
                "rows_read": read,
                "bytes_read": int(read * data.row_bytes),
                "fixed_hi": 0,
                "fixed_lo": 0,
                "full_passes": self.passes[0] + k + 1,
                "partial_passes": passes,
                "stalled": self.last and (full or k + 1 == ROUNDS),
            }
            self.over = check(point, stats, lambda folder, meta: None) is None
            if self.over or full:
                break
            read = 0
        return point


@dataclass(frozen=True)
class EndGame:
    """Newton to where float32 features lead astray, then steps over float64 ones of rows nearby.

    Parameters
    ----------
    newton : Newton
    source : Design
        The kernel design of the features.
    room : int
        Bytes that float64 ones may take.
    """

    newton: Newton
    source: Design
    room: int

    def solve(self, run: Run, check: Check) -> Point:
        """See ``Solver``."""
        handed = _Handover(check)
        point = self.newton.solve(run, handed)
        if handed.ended:
            return point
        design, data, problem = run.design, run.design.data, run.problem
        assert isinstance(problem, CSvc)
        constant = problem.intercept_scaling if problem.intercept == "constant" else 0.0
        dual = problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
        G = dual.gradient(scores(design, point.coef, run.fleet) + point.intercept)
        x = np.append(point.w, point.intercept / constant) if constant else point.w
        near = first_rows(np.abs(G), point.relative_gap, dual)
        begin = Near(x, point.dual)
        most = min(MOST_ENTRIES // len(x), rows_within(self.room, len(x), np.float64))
        if near is not None and np.count_nonzero(near) <= most:
            ends = np.where(G > 0, dual.hi, 0.0)
            sums = weighted_columns(design, dual.sign * ends, run.fleet)
            w_alpha = design.features(sums[:-1])
            if constant:
                w_alpha = np.append(w_alpha, constant * sums[-1])
            standing = Standing(ends, w_alpha, begin, point.relative_gap)
            made = handed.passes
            nearby = Nearby(standing, near, self.source, self.room, last=False, passes=made)
            point = nearby.solve(run, check)
            if nearby.over:
                return point
            begin = nearby.reached
        handed.before = handed.passes
        return self.newton.solve(replace(run, near=begin, start=None, resume=False), handed)


class _Handover:
    """The check of the steps over all rows: until those nearby are worth it, or after them."""

    def __init__(self, check: Check) -> None:
        self.check, self.ended = check, False
        self.passes = 0, 0
        self.before: tuple[int, int] | None = None
        """Passes before those over all rows went on; None as long as they have not."""

    @property
    def target(self) -> float:
        return self.check.target

    def __call__(self, point: Point, stats: dict[str, Any], save: Any) -> Verdict | None:
        before = self.before
        full, partial = before or (0, 0)
        self.passes = full + stats["full_passes"], partial + stats["partial_passes"]
        told = dict(zip(("full_passes", "partial_passes"), self.passes, strict=True))
        verdict = self.check(
            point, {**stats, **told}, lambda folder, meta: save(folder, {**meta, "before": before})
        )
        self.ended = verdict is None
        return verdict if before or point.relative_gap > 2 * LEAST_TOL else None

    def expired(self) -> bool:
        """See ``Check``."""
        return self.check.expired()

    def restored(self, meta: dict[str, Any]) -> None:
        """See ``Check``."""
        before = meta.get("before")
        self.before = None if before is None else (before[0], before[1])
        self.check.restored(meta)


class _Rows:
    """The rows nearby: their features, and the problem in which all others are one."""

    def __init__(self, run: Run, dual: Dual, source: Design, constant: float, dtype: type) -> None:
        self.run, self.dual, self.source, self.constant = run, dual, source, constant
        self.inside = np.zeros(len(dual), np.bool_)
        self.places = np.empty(0, np.int64)
        self._features: NDArray[Any] = np.empty((0, source.rank + bool(constant)), dtype)

    def add(self, more: NDArray[np.bool_]) -> None:
        """Make the features of more rows."""
        places = np.flatnonzero(more & ~self.inside)
        if not len(places):
            return
        X = self.source.data.rows(places)
        assert self.source.factor is not None
        wide = self._features.dtype == np.float64
        dtype = np.float64 if wide else entries(self.source.factor)
        features = _Features(self.source, dtype)
        known, rank = len(self.places), self.source.rank
        size = known + len(places), self._features.shape[1]
        grown = np.empty(size, self._features.dtype)
        grown[:known], grown[known:, rank:] = self._features, self.constant
        ranges = row_ranges(len(places), FEATURE_ROWS)
        parts = (X[a:b] for a, b in ranges)
        for (a, b), own in zip(ranges, self.run.fleet.each(features, parts), strict=True):
            grown[known + a : known + b, :rank] = own
        self._features, self.places = grown, np.concatenate([self.places, places])
        self.inside[places] = True

    def solved(
        self, at: Standing, begin: Near, tol: float, expired: Callable[[], bool]
    ) -> tuple[Point, FloatArray, int]:
        """The point with so small a relative gap, its alpha by ``places``, and passes.

        The last alpha is that of all other rows together, as a part of what it is at their sides.
        """
        own = self.dual[self.places]
        others = float(np.sum(at.alpha[~self.inside]))
        X, codes, hi = self._features, (own.sign > 0).astype(np.int32), own.hi
        if others > 0:
            # Their loss at their sides, sum alpha - <w, v>, is that of one row of this weight: its
            # score is below 1, as those of all of them are.
            v = at.w_alpha - self._sum(own.sign * at.alpha[self.places])
            X = np.concatenate([X, (v / others)[None].astype(X.dtype)])
            codes, hi = np.append(codes, np.int32(1)), np.append(hi, others)
        data = MemoryDataset(X, codes, [0, 1], hi)
        until = _Until(tol, expired)
        problem = CSvc(1.0, 1)
        run = Run(Design(data), problem, self.run.fleet, near=begin)
        found = Newton(tol=tol).solve(run, until)
        dual = problem.dual(codes, hi)
        alpha, shares = np.zeros(len(hi)), [reading.weight for reading in found.readings]
        for reading, share in zip(found.readings, shares, strict=True):
            read = scores(run.design, reading.coef, self.run.fleet)
            alpha += share / sum(shares) * reading.alpha(dual, read)
        part = alpha[-1] / others if others > 0 else 1.0
        return found, np.append(alpha[: len(self.places)], part), until.passes

    def whole(self, alpha: FloatArray, found: FloatArray) -> FloatArray:
        """Alpha of all rows (n,): what ``solved`` has found, part of the others' ``alpha``."""
        out: FloatArray = found[-1] * alpha
        out[self.places] = found[:-1]
        return out

    def _sum(self, coef: FloatArray) -> FloatArray:
        """``sum coef_i phi_i`` of the rows nearby."""
        total = np.zeros(self._features.shape[1])
        for a in range(0, len(coef), 4096):
            total += coef[a : a + 4096] @ self._features[a : a + 4096].astype(np.float64)
        return total


@dataclass(frozen=True)
class _Features:
    """Makes features of some rows, of the entries that carry all directions."""

    design: Design
    dtype: type

    def __call__(self, X: Any) -> NDArray[Any]:
        return self.design.features_of(self.design.columns(X, self.dtype))


@dataclass
class _Until:
    """The check of the steps over the rows nearby: a relative gap, without a closing pass."""

    target: float
    expired: Callable[[], bool]
    passes: int = 0

    def __call__(self, point: Point, stats: dict[str, Any], save: Any) -> Verdict | None:
        self.passes += 1
        near = point.relative_gap <= self.target and not point.held
        done = near or stats["stalled"] or self.passes >= PASSES
        return None if done or self.expired() else Verdict()

    def restored(self, meta: dict[str, Any]) -> None:
        """These steps are never checkpointed."""
        raise AssertionError


def _nearest(
    G: FloatArray, among: NDArray[np.bool_], crossed: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """The rows nearest to their kink, as many as have crossed it (n,)."""
    found, places = np.zeros(len(G), np.bool_), np.flatnonzero(among)
    wanted = min(int(AROUND * np.count_nonzero(crossed)), len(places))
    if wanted:
        found[places[np.argsort(np.abs(G[places]), kind="stable")[:wanted]]] = True
    return found
