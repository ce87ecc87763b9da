"""Proximal points of the dual, each by a semismooth Newton method in w: exact where d is small.

The dual of ``sum loss_i(u_i)`` gets the proximal term ``1/2 sum delta_i (alpha_i - c_i)^2``, with
``delta_i = 2 h / (hi_i - lo_i)`` and c the alpha of the round before (Rockafellar 1976;
Li et al. 2018; maths.md 5.8). Its primal is smooth with a piecewise linear gradient,
``w - w(alpha(w))``,  ``alpha_i(w) = clip(soft(c_i + G_i / delta_i, e_i / delta_i), lo_i, hi_i)``,
so Newton steps end at its exact minimum, where w = w(alpha), and the only gap that is left is that
of alpha's rows within the zone: of width h in G about the margin in the first round, less in every
further one. A step costs one product of the undecided rows with a direction and the d x d sums of
the rows in the zone; at the next point of a path three or four of them do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.cholesky import Factor, factorise
from bigscreen.numerics.rows import FloatArray, njit, row_axpy
from bigscreen.path.explicit_rows import SUM_UNIT, ExplicitRows, Goal, UndecidedRows
from bigscreen.problems.dual_sums import row_gap


@dataclass(frozen=True)
class ProximalTuning:
    """Tuned values of the Newton steps to proximal points.

    Parameters
    ----------
    max_steps : int
        Steps before the point is handed back whatever it is.
    first_h, max_h : float
        First and largest h, as part of the mean |G|.
    gram_rows : int
        Rows of the zone that are held as float64 at once.
    strip_rows : int
        Rows whose products are summed in float32 before their sum is added to the others' in
        float64.
    max_idle : int
        Rounds without progress after which float64 has no more to give.
    min_gain : float
        Part of the gap that D gains in a round, at least, if there is progress.
    rough_rounds : int
        Rounds that need not be solved to their end.
    trials : int
        Step lengths tried along a direction.
    max_round_steps : int
        Steps of a round after which its zone is taken to be too narrow for a centre so far off.
    """

    max_steps: int = 500
    first_h: float = 0.05
    max_h: float = 0.5
    gram_rows: int = 4096
    strip_rows: int = 1024
    max_idle: int = 4
    min_gain: float = 1e-3
    rough_rounds: int = 3
    trials: int = 12
    max_round_steps: int = 40


PROXIMAL = ProximalTuning()


class ProximalTerms(NamedTuple):
    """The rows' dual and its proximal term: centre and width of the zone; alpha, which it moves."""

    sign: FloatArray
    lin: FloatArray
    lo: FloatArray
    hi: FloatArray
    tube: FloatArray
    centre: FloatArray
    h: float
    alpha: FloatArray


class ZoneMoment:
    """``sum slope_i phi_i phi_i'`` over a zone: of a step only rows that enter or leave cost.

    Slopes of all rows are multiplied alike from one call to the next.
    """

    def __init__(self, columns: ExplicitRows) -> None:
        self.columns = columns
        self._sum = np.zeros((0, 0))
        self._inside = np.empty(0, np.int64)
        self._slope = np.empty(0)

    def forget(self) -> None:
        """Begin with a new zone."""
        self._inside, self._slope = self._inside[:0], self._slope[:0]

    def of(self, zone: NDArray[np.int64], slope: FloatArray) -> FloatArray:
        """The matrix (d, d) of these rows, ascending; the caller's own."""
        common, now, before = np.intersect1d(
            zone, self._inside, assume_unique=True, return_indices=True
        )
        if 2 * len(common) <= len(self._inside) or not len(common):
            width = self.columns.width
            self._sum, common = np.zeros((width, width)), common[:0]
            self._add(zone, slope, 1.0)
        else:
            self._sum *= slope[now[0]] / self._slope[before[0]]
            self._add(*_without(zone, slope, now), 1.0)
            gone, old = _without(self._inside, self._slope, before)
            self._add(gone, old * (slope[now[0]] / self._slope[before[0]]), -1.0)
        self._inside, self._slope = zone, slope
        return self._sum.copy()

    def _add(self, rows: NDArray[np.int64], slope: FloatArray, sign: float) -> None:
        scale = np.sqrt(slope)
        for a in range(0, len(rows), PROXIMAL.strip_rows):
            own = slice(a, a + PROXIMAL.strip_rows)
            part = self.columns.dense(rows[own], scale[own], np.float32)
            self._sum += sign * (part.T @ part)


def _without(
    rows: NDArray[np.int64], slope: FloatArray, places: NDArray[np.int64]
) -> tuple[NDArray[np.int64], FloatArray]:
    """All but those at some places."""
    kept = np.ones(len(rows), np.bool_)
    kept[places] = False
    return rows[kept], slope[kept]


class ProxNewton:
    """The proximal Newton method; from solve to solve it keeps h, which suits neighbours.

    Parameters
    ----------
    columns : ExplicitRows
    quick : bool
        Compute directions by Cholesky factors: in half the time, with other last bits than those
        that paths have had so far.
    """

    def __init__(self, columns: ExplicitRows, quick: bool = False) -> None:
        self.columns, self.quick, self.moment = columns, quick, ZoneMoment(columns)
        self.h = 0.0
        self._kept: tuple[NDArray[np.int64], float, FloatArray | None, Factor] | None = None

    def begin(self, rows: UndecidedRows) -> None:
        """Take up rows: their alpha is the first centre."""
        self.centre = rows.alpha.copy()
        self.moment.forget()
        self._worn, self._kept = False, None
        size = float(np.mean(np.abs(rows.dual.gradient(rows.scores)))) if len(rows.ids) else 1.0
        size = size if size > 0 else 1.0
        self.h = min(self.h, PROXIMAL.max_h * size) if self.h > 0 else PROXIMAL.first_h * size
        if rows.ray and rows.point.any():
            self._shorten(rows)

    def run(self, rows: UndecidedRows, goal: Goal) -> bool:
        """Move ``rows`` until their gap is as asked; False where no step helps."""
        rounds, idle, last, taken, value = 0, 0, np.inf, 0, -np.inf
        if self._worn:
            # The certificate found a wider gap, for alpha is as coarse as h is small.
            self.h *= 30.0
            self.centre = rows.alpha.copy()
            self._worn = False
        for _ in range(PROXIMAL.max_steps):
            if not len(rows.ids):
                return True
            zone, slope, gap = self._respond(rows)
            target = 0.9 * goal.tol * abs(rows.value)
            gradient = rows.point - rows.w
            if goal.dynamic:
                stay = rows.screen(gap, float(np.linalg.norm(gradient)))
                if stay is not None:
                    self.centre = self.centre[stay]
                    continue
            step = self._direction(rows.ids[zone], slope, gradient)
            decrease = -float(gradient @ step)
            nothing = np.linalg.norm(step) <= 4 * SUM_UNIT * np.linalg.norm(rows.point)
            exact = nothing or decrease <= goal.sharpness * min(gap, target)
            if exact and gap <= target:
                self._worn = nothing
                # A zone whose gap is far below what is asked only takes more rows apart.
                wider = np.sqrt(0.7 * target / gap) if gap > 0 else 2.0
                self.h *= min(2.0, max(1.0, wider)) if rounds == 0 else 1.0
                return True
            if goal.expired():
                return True
            # Rough rounds to begin with save steps; a proximal method converges by exact ones. One
            # without a step would leave the gap as it was: where boxes are of all sizes, an error
            # that is small for the widest is not for the others.
            over = exact or (decrease <= 0.01 * gap and rounds < PROXIMAL.rough_rounds)
            if gap > target and over and (taken > 0 or nothing):
                # Where D still rises the gap follows, if late.
                rise, value = rows.value - value, rows.value
                still = gap > 0.9 * last and rise <= PROXIMAL.min_gain * gap
                idle = idle + 1 if exact and still else 0
                if idle == PROXIMAL.max_idle:
                    return False
                if gap > 0.25 * last:
                    self.h *= max(0.2, min(0.7, 0.7 * np.sqrt(target / gap)))
                if exact and gap > 0.9 * last:
                    # All of what is left may be far inside of the zone: exact fits leave so little.
                    self.h = min(self.h, 10.0 * gap / rows.room)
                rounds, last, taken = rounds + 1, gap, 0
                self.centre = rows.alpha.copy()
                continue
            if taken == PROXIMAL.max_round_steps:
                self.h, taken = 10.0 * self.h, 0
                continue
            self._move(rows, gradient, step, decrease)
            rows.counts["steps"] += 1
            taken += 1
        return True

    def _respond(self, rows: UndecidedRows) -> tuple[NDArray[np.int64], FloatArray, float]:
        """alpha at the scores of the point, and its w; rows in the zone, their slopes, the gap."""
        zone, slope = np.empty(len(rows.ids), np.int64), np.empty(len(rows.ids))
        X, constant = self.columns.X, self.columns.constant
        made = _respond(X, constant, rows.ids, rows.scores, self._terms(rows), rows.w, zone, slope)
        found, moved, gap = made
        rows.moves += moved
        return zone[:found], slope[:found], gap

    def _terms(self, rows: UndecidedRows) -> ProximalTerms:
        dual = rows.dual
        of_rows = dual.sign, dual.lin, dual.lo, dual.hi, rows.tube
        return ProximalTerms(*of_rows, self.centre, self.h, rows.alpha)

    def _direction(
        self, zone: NDArray[np.int64], slope: FloatArray, gradient: FloatArray
    ) -> FloatArray:
        """``-(I + sum slope_i phi_i phi_i')^-1 gradient``."""
        width, scale = self.columns.width, np.sqrt(slope)
        if self.quick and len(zone):
            found = self._quick_direction(zone, slope, gradient)
            if found is not None:
                return found
        if len(zone) < (width if self.quick else width // 2):
            # The same through the matrix of products between the rows.
            B = self.columns.dense(zone, scale)
            inner = B @ B.T
            inner[np.diag_indices(len(zone))] += 1.0
            return np.asarray(B.T @ _solve(inner, B @ gradient) - gradient)
        H = np.eye(width)
        for a in range(0, len(zone), PROXIMAL.gram_rows):
            part = slice(a, a + PROXIMAL.gram_rows)
            B = self.columns.dense(zone[part], scale[part])
            H += B.T @ B
        return -_solve(H, gradient)

    def _quick_direction(
        self, zone: NDArray[np.int64], slope: FloatArray, gradient: FloatArray
    ) -> FloatArray | None:
        """The same by a Cholesky factor; None where rounding has lost the 1 on H's diagonal.

        A zone that has not changed since the last step has the same factor.
        """
        known = self._kept
        if known is not None and known[1] == self.h and np.array_equal(known[0], zone):
            B, factor = known[2:]
        else:
            B = None
            if len(zone) < self.columns.width:
                B = self.columns.dense(zone, np.sqrt(slope))
                H = B @ B.T
            else:
                H = self.moment.of(zone, slope)
            H[np.diag_indices(len(H))] += 1.0
            made = factorise(H)
            if made is None:
                return None
            factor = made
            self._kept = zone, self.h, B, factor
        if B is None:
            return -factor.solve(gradient)
        return np.asarray(B.T @ factor.solve(B @ gradient) - gradient)

    def _move(
        self, rows: UndecidedRows, gradient: FloatArray, step: FloatArray, decrease: float
    ) -> None:
        """Go along the step to about where the primal is least."""
        change = self.columns.scores(step, rows.ids)
        along = self._along(rows, gradient, step, change)
        length, slope = 1.0, along(1.0)
        if slope > 0.3 * decrease:
            length = _root(along, 0.0, -decrease, 1.0, slope, 0.2 * decrease)
        while slope < -0.5 * decrease and length < 64:
            length *= 2.0
            slope = along(length)
            if slope > 0:
                length *= 0.5
                break
        rows.point += length * step
        rows.scores += length * change

    def _shorten(self, rows: UndecidedRows) -> None:
        """To the multiple of the point, between 0 and itself, where the primal is least."""
        along = self._along(rows, rows.point - rows.w, rows.point, rows.scores.copy())
        low, high = along(-1.0), along(0.0)
        if high > 0:
            length = _root(along, -1.0, low, 0.0, high, 0.05 * high) if low < 0 else -1.0
            rows.point *= 1.0 + length
            rows.scores *= 1.0 + length

    def _along(
        self, rows: UndecidedRows, gradient: FloatArray, step: FloatArray, change: FloatArray
    ) -> Callable[[float], float]:
        """The primal's derivative along a step, as a function of its length."""
        linear, square = float(gradient @ step), float(step @ step)
        terms, scores = self._terms(rows), rows.scores

        def along(length: float) -> float:
            return linear + length * square - _turned(scores, change, length, terms)

        return along


def _solve(H: FloatArray, g: FloatArray) -> FloatArray:
    """``H^-1 g``; beside the slopes of a very narrow zone the 1 on H's diagonal may be lost."""
    try:
        return np.asarray(np.linalg.solve(H, g))
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(H, g)[0])


def _root(
    function: Callable[[float], float],
    low: float,
    at_low: float,
    high: float,
    at_high: float,
    enough: float,
) -> float:
    """Where an increasing function is near 0, from a point below and a point above."""
    middle = low
    for _ in range(PROXIMAL.trials):
        middle = low - at_low * (high - low) / (at_high - at_low)
        tenth = 0.1 * (high - low)
        middle = min(max(middle, low + tenth), high - tenth)
        value = function(middle)
        if abs(value) <= enough:
            break
        if value > 0:
            high, at_high = middle, value
        else:
            low, at_low = middle, value
    return middle


@njit(nogil=True, cache=True)
def _proximal(
    G: float, lo: float, hi: float, tube: float, centre: float, h: float
) -> tuple[float, float]:
    """A row's alpha at its gradient, and the slope of it: 0 at a bound and at the tube's 0."""
    slope = (hi - lo) / (2 * h)
    # delta c + G, in units of the gradient.
    pull = G + centre / slope
    if abs(pull) <= tube and tube > 0.0:
        return 0.0, 0.0
    alpha = (pull - tube if pull > 0 else pull + tube) * slope
    if alpha <= lo:
        return lo, 0.0
    if alpha >= hi:
        return hi, 0.0
    return alpha, slope


@njit(nogil=True, cache=True)
def _respond(
    X: Any,
    constant: bool,
    ids: NDArray[np.int64],
    scores: FloatArray,
    terms: ProximalTerms,
    w: FloatArray,
    zone: NDArray[np.int64],
    slopes: FloatArray,
) -> tuple[int, int, float]:
    """Move alpha to where the scores have it, and w along; zone, slopes, moves and the gap."""
    sign, lin, lo, hi, tube, centre, h, alpha = terms
    found, moved, gap = 0, 0, 0.0
    for k in range(len(ids)):
        G = lin[k] - sign[k] * scores[k]
        new, slope = _proximal(G, lo[k], hi[k], tube[k], centre[k], h)
        if slope > 0.0:
            zone[found], slopes[found] = k, slope
            found += 1
        if new != alpha[k]:
            step = sign[k] * (new - alpha[k])
            row_axpy(X, ids[k], step, w)
            if constant:
                w[-1] += step
            alpha[k] = new
            moved += 1
        gap += row_gap(G, lo[k], hi[k], tube[k], new)
    return found, moved, gap


@njit(nogil=True, cache=True)
def _turned(scores: FloatArray, change: FloatArray, length: float, terms: ProximalTerms) -> float:
    """``<w(alpha at scores + length change) - w(alpha), step>``."""
    sign, lin, lo, hi, tube, centre, h, alpha = terms
    total = 0.0
    for k in range(len(scores)):
        G = lin[k] - sign[k] * (scores[k] + length * change[k])
        new, _ = _proximal(G, lo[k], hi[k], tube[k], centre[k], h)
        total += (new - alpha[k]) * sign[k] * change[k]
    return total
