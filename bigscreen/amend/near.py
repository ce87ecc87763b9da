"""Steps over the rows that edits can reach: all others stay on their side, and are only looked at.

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
from bigscreen.features.design import Design, scores
from bigscreen.features.nystrom import stored_features
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import CSvc
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

ROUNDS, PASSES = 8, 60
"""Looks at all rows, and passes over those nearby between two of them, at most."""


@dataclass(frozen=True)
class Standing:
    """What is known of the edited rows before any of them is looked at.

    Parameters
    ----------
    alpha : float64 (n,)
        A dual point; of rows that are not near the end of their box at their side.
    w_alpha : float64 (r,) or, with a constant, (r + 1,)
        Its w(alpha).
    old : Near
        The old machine, likewise, and some D.
    gap : float
        The relative gap between the two in a `Bound`.
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
        Relative gap of the old machine in the edited problem.
    """
    part, counted = LEAST_PART + REACHED * np.sqrt(max(gap, 0.0)), np.flatnonzero(dual.hi > 0)
    if part > MOST_PART or not len(counted):
        return None
    last = np.sort(far[counted])[min(int(part * len(counted)), len(counted) - 1)]
    near = (far <= last) & (dual.hi > 0)
    return near if np.count_nonzero(near) <= MOST_PART * len(counted) else None


class Nearby:
    """The solver of an edited C-SVC on landmarks; it may end before the gap is met.

    Parameters
    ----------
    standing : Standing
    near : bool (n,)
        Rows to begin with.
    """

    def __init__(self, standing: Standing, near: NDArray[np.bool_]) -> None:
        self.standing, self.first = standing, near
        self.reached = standing.old
        """The last machine, and a D."""

    def solve(self, run: Run, check: Check) -> Point:
        """See ``Solver``."""
        design, data, at = run.design, run.design.data, self.standing
        constant = len(at.w_alpha) - design.rank
        dual = run.problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
        problem = run.problem
        assert isinstance(problem, CSvc)
        nearby = _Rows(run, dual, problem.intercept_scaling if constant else 0.0)
        more, read, passes = self.first, 0, 0
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
            full = np.count_nonzero(more) + inside > MOST_PART * data.n_rows
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
                "full_passes": k + 1,
                "partial_passes": passes,
                "stalled": full or k + 1 == ROUNDS,
            }
            if check(point, stats, lambda folder, meta: None) is None:
                break
            read = 0
        return point


class _Rows:
    """The rows nearby: their features, and the problem in which all others are one."""

    def __init__(self, run: Run, dual: Dual, constant: float) -> None:
        self.run, self.dual, self.constant = run, dual, constant
        self.inside = np.zeros(len(dual), np.bool_)
        self.places = np.empty(0, np.int64)
        self._features = np.empty((0, run.design.rank + bool(constant)), np.float32)

    def add(self, more: NDArray[np.bool_]) -> None:
        """Make the features of more rows."""
        design, data = self.run.design, self.run.design.data
        places = np.flatnonzero(more & ~self.inside)
        if not len(places):
            return
        some = MemoryDataset(data.rows(places), np.zeros(len(places)), None)
        own = stored_features(replace(design, data=some), self.run.fleet, None).data
        known = len(self.places)
        grown = np.empty((known + len(places), self._features.shape[1]), np.float32)
        grown[:known], grown[known:, : design.rank] = self._features, own.X(0, len(places))
        grown[known:, design.rank :] = self.constant
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
            X = np.concatenate([X, (v / others)[None].astype(np.float32)])
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


@dataclass
class _Until:
    """The check of the steps over the rows nearby: a relative gap, without a closing pass."""

    target: float
    expired: Callable[[], bool]
    passes: int = 0

    def __call__(self, point: Point, stats: dict[str, Any], save: Any) -> Verdict | None:
        self.passes += 1
        done = point.relative_gap <= self.target or stats["stalled"] or self.passes >= PASSES
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
