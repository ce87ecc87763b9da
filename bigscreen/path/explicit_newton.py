"""The proximal point method on the dual, each round by a semismooth Newton method in w.

A round adds the proximal term ``1/2 sum delta_i (alpha_i - c_i)^2`` to the dual of
``sum loss_i(u_i)``, with ``delta_i = 2 h / (hi_i - lo_i)`` and the centre c, the alpha of the round
before (Rockafellar 1976; Li et al. 2018; maths.md 5.8). The round's primal is smooth with a
piecewise linear gradient,
``w - w(alpha(w))``,  ``alpha_i(w) = clip(soft(c_i + G_i / delta_i, e_i / delta_i), lo_i, hi_i)``,
so Newton steps end at its exact minimum, where w = w(alpha). The gap that remains comes only from
the rows in the smoothing band: those whose G is within h of the hinge point in the first round, and
within less in later rounds. A step costs one product of the undecided rows with a direction and
the d x d sum over the rows in the band; the next point of a path takes three or four steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.certificate import UNIT_ROUNDOFF
from bigscreen.numerics.cholesky import Factor, factorise
from bigscreen.numerics.rows import FloatArray, njit, row_axpy
from bigscreen.path.explicit_rows import ExplicitRows, Goal, UndecidedRows
from bigscreen.problems.dual_sums import row_gap


@dataclass(frozen=True)
class ProximalTuning:
    """Tuned values of the proximal point method (see the module's docstring).

    A row's G is the derivative of the dual in its alpha. The smoothing band is the rows whose G is
    within h of the hinge point. A larger h takes fewer steps to a larger remaining gap.

    Parameters
    ----------
    max_steps : int
        Return the current point after this many Newton steps, whatever its gap.
    first_h : float
        The first solve's h (half-width of the smoothing band), as a multiple of the mean |G| over
        rows, where G is the derivative of the dual in a row's alpha.
    max_h : float
        Start a later solve with the last solve's h (half-width of the smoothing band), but at most
        this multiple of the mean |G| over rows.
    gram_rows : int
        Convert at most this many rows of the smoothing band to a dense float64 array at a time,
        which bounds the memory.
    strip_rows : int
        Sum the products of this many rows of the smoothing band in float32, then add that sum in
        float64.
    max_idle_rounds : int
        End the solve after this many rounds without progress: what remains of the gap is rounding.
        A round minimises around one centre of the proximal point method.
    min_gain_fraction : float
        Treat a round as without progress if D rose by at most this fraction of the gap, and the gap
        did not fall by a tenth.
    max_inexact_rounds : int
        At most this many rounds, the first ones, may end before their exact minimum is found.
    max_root_trials : int
        Evaluate the derivative along a step at most this often in a line search, then use the best
        step length found.
    max_round_steps : int
        Multiply h (half-width of the smoothing band) by ten once a round has taken this many Newton
        steps: the band is too narrow so far from the optimum.
    """

    max_steps: int = 500
    first_h: float = 0.05
    max_h: float = 0.5
    gram_rows: int = 4096
    strip_rows: int = 1024
    max_idle_rounds: int = 4
    min_gain_fraction: float = 1e-3
    max_inexact_rounds: int = 3
    max_root_trials: int = 12
    max_round_steps: int = 40


PROXIMAL = ProximalTuning()
"""The tuned values that are used unless a caller passes others."""


class ProximalTerms(NamedTuple):
    """The undecided rows' dual with its proximal term, as arrays (undecided rows,) and h.

    ``sign``: sign of alpha_i in w; ``lin``: linear term of D; ``lo``, ``hi``: box; ``tube``:
    half-width of a regression's tube (0 for others); ``centre``: the alpha of the previous round;
    ``h``: half-width of the smoothing band; ``alpha``: updated in place by a step.
    """

    sign: FloatArray
    lin: FloatArray
    lo: FloatArray
    hi: FloatArray
    tube: FloatArray
    centre: FloatArray
    h: float
    alpha: FloatArray


class BandMoment:
    """The matrix ``sum slope_i phi_i phi_i'`` over a smoothing band, updated from step to step.

    Only rows that enter or leave the band cost products. Between two calls the slopes of all rows
    change by one common factor.
    """

    def __init__(self, columns: ExplicitRows, strip_rows: int) -> None:
        """Start with an empty band.

        ``strip_rows``: rows whose products are summed in float32, before their sum is added in
        float64.
        """
        self.columns, self.strip_rows = columns, strip_rows
        self._sum = np.zeros((0, 0))
        self._inside = np.empty(0, np.int64)
        self._slope = np.empty(0)

    def reset(self) -> None:
        """Forget the rows of the band, so that the next matrix is summed anew."""
        self._inside, self._slope = self._inside[:0], self._slope[:0]

    def matrix(self, band: NDArray[np.int64], slope: FloatArray) -> FloatArray:
        """Return the matrix ``sum slope_i phi_i phi_i'`` (d, d) over a band, as a copy.

        ``band``: its row numbers, ascending; ``slope``: a positive number for each.
        """
        common, now, before = np.intersect1d(
            band, self._inside, assume_unique=True, return_indices=True
        )
        if 2 * len(common) <= len(self._inside) or not len(common):
            width = self.columns.width
            self._sum, common = np.zeros((width, width)), common[:0]
            self._add(band, slope, 1.0)
        else:
            self._sum *= slope[now[0]] / self._slope[before[0]]
            self._add(*_without(band, slope, now), 1.0)
            gone, old = _without(self._inside, self._slope, before)
            self._add(gone, old * (slope[now[0]] / self._slope[before[0]]), -1.0)
        self._inside, self._slope = band, slope
        return self._sum.copy()

    def _add(self, rows: NDArray[np.int64], slope: FloatArray, sign: float) -> None:
        """Add ``sign * sum slope_i phi_i phi_i'`` over ``rows`` to the matrix, in float32.

        ``slope``: a positive number for each of the rows.
        """
        scale = np.sqrt(slope)
        for a in range(0, len(rows), self.strip_rows):
            own = slice(a, a + self.strip_rows)
            part = self.columns.dense(rows[own], scale[own], np.float32)
            self._sum += sign * (part.T @ part)


def _without(
    rows: NDArray[np.int64], slope: FloatArray, places: NDArray[np.int64]
) -> tuple[NDArray[np.int64], FloatArray]:
    """Drop the entries at the positions ``places`` from ``rows`` and ``slope``; return both."""
    kept = np.ones(len(rows), np.bool_)
    kept[places] = False
    return rows[kept], slope[kept]


class ProxNewton:
    """The proximal point method with Newton steps; h is kept for the next point of a path.

    Parameters
    ----------
    columns : ExplicitRows
    quick : bool
        Compute directions by Cholesky factors, in half the time of the general linear solver. The
        last bits of results differ.
    tuning : ProximalTuning
    """

    def __init__(
        self, columns: ExplicitRows, quick: bool = False, tuning: ProximalTuning = PROXIMAL
    ) -> None:
        """Start without an h (0) and without a factored matrix.

        ``_factored``: the band, h, its dense rows (or None) and the Cholesky factor of the last
        step.
        """
        self.columns, self.quick, self.tuning = columns, quick, tuning
        self.moment = BandMoment(columns, tuning.strip_rows)
        self.h = 0.0
        self._factored: tuple[NDArray[np.int64], float, FloatArray | None, Factor] | None = None

    def begin(self, rows: UndecidedRows) -> None:
        """Start a solve of these undecided rows: set the proximal term's centre to their alpha.

        Choose the first h from the mean |G|, or keep the h of the previous solve if it is not too
        large.
        """
        tuning = self.tuning
        self.centre = rows.alpha.copy()
        self.moment.reset()
        self._step_was_zero, self._factored = False, None
        size = float(np.mean(np.abs(rows.dual.gradient(rows.scores)))) if len(rows.ids) else 1.0
        size = size if size > 0 else 1.0
        self.h = min(self.h, tuning.max_h * size) if self.h > 0 else tuning.first_h * size
        if rows.ray and rows.point.any():
            self._scale_point(rows)

    def run(self, rows: UndecidedRows, goal: Goal) -> bool:
        """Move the alpha of the undecided rows until their gap meets ``goal``.

        Returns False if no further step helps although the gap is larger than the goal.
        """
        tuning = self.tuning
        rounds, idle, last, taken, value = 0, 0, np.inf, 0, -np.inf
        if self._step_was_zero:
            # The certificate found a wider gap than this solver, which cannot move: with a small h
            # rounding errors in alpha are large.
            self.h *= 30.0
            self.centre = rows.alpha.copy()
            self._step_was_zero = False
        for _ in range(tuning.max_steps):
            if not len(rows.ids):
                return True
            band, slope, gap = self._update_alpha(rows)
            target = 0.9 * goal.tol * abs(rows.value)
            gradient = rows.point - rows.w
            if goal.dynamic:
                stay = rows.screen(gap, float(np.linalg.norm(gradient)))
                if stay is not None:
                    self.centre = self.centre[stay]
                    continue
            step = self._direction(rows.ids[band], slope, gradient)
            decrease = -float(gradient @ step)
            nothing = np.linalg.norm(step) <= 4 * UNIT_ROUNDOFF * np.linalg.norm(rows.point)
            exact = nothing or decrease <= goal.sharpness * min(gap, target)
            if exact and gap <= target:
                self._step_was_zero = nothing
                # If the gap is far below the target, a wider band would have saved steps.
                wider = np.sqrt(0.7 * target / gap) if gap > 0 else 2.0
                self.h *= min(2.0, max(1.0, wider)) if rounds == 0 else 1.0
                return True
            if goal.expired():
                return True
            # Inexact first rounds save steps; later ones must be exact for the method to converge.
            # Each round takes a step: if boxes differ much in size, an error that is small for the
            # widest box is large for the others, and a round without a step leaves the gap as is.
            inexact = decrease <= 0.01 * gap and rounds < tuning.max_inexact_rounds
            over = exact or inexact
            if gap > target and over and (taken > 0 or nothing):
                # While D rises, the gap will fall, if later.
                rise, value = rows.value - value, rows.value
                still = gap > 0.9 * last and rise <= tuning.min_gain_fraction * gap
                idle = idle + 1 if exact and still else 0
                if idle == tuning.max_idle_rounds:
                    return False
                if gap > 0.25 * last:
                    self.h *= max(0.2, min(0.7, 0.7 * np.sqrt(target / gap)))
                if exact and gap > 0.9 * last:
                    # (If the rows are fitted exactly, the whole gap is of rows deep in the band.)
                    self.h = min(self.h, 10.0 * gap / rows.room)
                rounds, last, taken = rounds + 1, gap, 0
                self.centre = rows.alpha.copy()
                continue
            if taken == tuning.max_round_steps:
                self.h, taken = 10.0 * self.h, 0
                continue
            self._move(rows, gradient, step, decrease)
            rows.counts["steps"] += 1
            taken += 1
        return True

    def _update_alpha(self, rows: UndecidedRows) -> tuple[NDArray[np.int64], FloatArray, float]:
        """Set alpha to the proximal response at the scores; return the band, its slopes, the gap.

        The band is positions among the undecided rows; w(alpha) is updated as well.
        """
        band, slope = np.empty(len(rows.ids), np.int64), np.empty(len(rows.ids))
        X, constant = self.columns.X, self.columns.constant
        given = rows.ids, rows.scores, self._terms(rows)
        made = _update_alpha(X, constant, *given, rows.w, band, slope)
        found, moved, gap = made
        rows.moves += moved
        return band[:found], slope[:found], gap

    def _terms(self, rows: UndecidedRows) -> ProximalTerms:
        """Collect the arrays of the undecided rows, the centre and h for the compiled functions."""
        dual = rows.dual
        of_rows = dual.sign, dual.lin, dual.lo, dual.hi, rows.tube
        return ProximalTerms(*of_rows, self.centre, self.h, rows.alpha)

    def _direction(
        self, band: NDArray[np.int64], slope: FloatArray, gradient: FloatArray
    ) -> FloatArray:
        """Compute the Newton direction ``-(I + sum slope_i phi_i phi_i')^-1 gradient``, (d,).

        ``band``: row numbers in the smoothing band; ``slope``: d alpha / dG of each; ``gradient``:
        (d,).
        """
        width, scale = self.columns.width, np.sqrt(slope)
        if self.quick and len(band):
            found = self._quick_direction(band, slope, gradient)
            if found is not None:
                return found
        if len(band) < (width if self.quick else width // 2):
            # Woodbury: solve a system in the band's rows if they are fewer than the columns.
            B = self.columns.dense(band, scale)
            inner = B @ B.T
            inner[np.diag_indices(len(band))] += 1.0
            return np.asarray(B.T @ _solve(inner, B @ gradient) - gradient)
        H = np.eye(width)
        for a in range(0, len(band), self.tuning.gram_rows):
            part = slice(a, a + self.tuning.gram_rows)
            B = self.columns.dense(band[part], scale[part])
            H += B.T @ B
        return -_solve(H, gradient)

    def _quick_direction(
        self, band: NDArray[np.int64], slope: FloatArray, gradient: FloatArray
    ) -> FloatArray | None:
        """Compute the Newton direction by a Cholesky factor, kept while the band is unchanged.

        Arguments as for `_direction`. None if H is not positive definite: rounding has lost the 1
        on its diagonal.
        """
        known = self._factored
        if known is not None and known[1] == self.h and np.array_equal(known[0], band):
            B, factor = known[2:]
        else:
            B = None
            if len(band) < self.columns.width:
                B = self.columns.dense(band, np.sqrt(slope))
                H = B @ B.T
            else:
                H = self.moment.matrix(band, slope)
            H[np.diag_indices(len(H))] += 1.0
            made = factorise(H)
            if made is None:
                return None
            factor = made
            self._factored = band, self.h, B, factor
        if B is None:
            return -factor.solve(gradient)
        return np.asarray(B.T @ factor.solve(B @ gradient) - gradient)

    def _move(
        self, rows: UndecidedRows, gradient: FloatArray, step: FloatArray, decrease: float
    ) -> None:
        """Search along the step for the least primal, approximately, and move the point there.

        ``gradient``: of the smoothed primal at the point; ``decrease``: ``-<gradient, step>``, > 0.
        """
        change = self.columns.scores(step, rows.ids)
        along = self._along(rows, gradient, step, change)
        length, slope = 1.0, along(1.0)
        if slope > 0.3 * decrease:
            trials = self.tuning.max_root_trials
            length = _find_root(along, 0.0, -decrease, 1.0, slope, 0.2 * decrease, trials)
        while slope < -0.5 * decrease and length < 64:
            length *= 2.0
            slope = along(length)
            if slope > 0:
                length *= 0.5
                break
        rows.point += length * step
        rows.scores += length * change

    def _scale_point(self, rows: UndecidedRows) -> None:
        """Multiply the point by the factor in [0, 1] that makes the smoothed primal least."""
        along = self._along(rows, rows.point - rows.w, rows.point, rows.scores.copy())
        low, high = along(-1.0), along(0.0)
        if high > 0:
            trials = self.tuning.max_root_trials
            if low < 0:
                length = _find_root(along, -1.0, low, 0.0, high, 0.05 * high, trials)
            else:
                length = -1.0
            rows.point *= 1.0 + length
            rows.scores *= 1.0 + length

    def _along(
        self, rows: UndecidedRows, gradient: FloatArray, step: FloatArray, change: FloatArray
    ) -> Callable[[float], float]:
        """Return the derivative of the smoothed primal along the step, as a function of the length.

        ``gradient``: at length 0; ``change``: the scores of the step itself, for the undecided
        rows.
        """
        linear, square = float(gradient @ step), float(step @ step)
        terms, scores = self._terms(rows), rows.scores

        def along(length: float) -> float:
            """Return the derivative at ``length * step`` from the point."""
            return linear + length * square - _alpha_derivative(scores, change, length, terms)

        return along


def _solve(H: FloatArray, g: FloatArray) -> FloatArray:
    """Compute ``H^-1 g``, by least squares if H is singular.

    Next to the slopes of a very narrow band, rounding may lose the 1 on H's diagonal.
    """
    try:
        return np.asarray(np.linalg.solve(H, g))
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(H, g)[0])


def _find_root(
    function: Callable[[float], float],
    low: float,
    at_low: float,
    high: float,
    at_high: float,
    enough: float,
    trials: int,
) -> float:
    """Find where an increasing function is within ``enough`` of 0, between ``low`` and ``high``.

    ``at_low`` < 0 and ``at_high`` > 0 are its values there. After ``trials`` evaluations the last
    argument is returned, whatever its value.
    """
    middle = low
    for _ in range(trials):
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
    """Compute a row's alpha for its gradient G, and the slope d alpha / dG.

    ``lo``, ``hi``: the row's box; ``tube``: half-width of a regression's tube; ``centre``: its
    alpha of the previous round; ``h``: half-width of the smoothing band. The slope is 0 at a bound,
    and at 0 within the tube.
    """
    slope = (hi - lo) / (2 * h)
    # delta c + G, in units of the gradient (slope = 1 / delta).
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
def _update_alpha(
    X: Any,
    constant: bool,
    ids: NDArray[np.int64],
    scores: FloatArray,
    terms: ProximalTerms,
    w: FloatArray,
    band: NDArray[np.int64],
    slopes: FloatArray,
) -> tuple[int, int, float]:
    """Set alpha to the proximal response at the scores, and update w.

    ``X``: all rows, phi_i being followed by a 1 if ``constant``; ``ids``, ``scores``: numbers and
    scores of the undecided rows. Write the band's rows and slopes to ``band`` and ``slopes``;
    return the number of rows in the band, the number of changed alpha, and the gap.
    """
    sign, lin, lo, hi, tube, centre, h, alpha = terms
    found, moved, gap = 0, 0, 0.0
    for k in range(len(ids)):
        G = lin[k] - sign[k] * scores[k]
        new, slope = _proximal(G, lo[k], hi[k], tube[k], centre[k], h)
        if slope > 0.0:
            band[found], slopes[found] = k, slope
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
def _alpha_derivative(
    scores: FloatArray, change: FloatArray, length: float, terms: ProximalTerms
) -> float:
    """Compute ``<w(alpha at scores + length * change) - w(alpha), step>``.

    ``change``: the scores of the step, for the undecided rows.
    """
    sign, lin, lo, hi, tube, centre, h, alpha = terms
    total = 0.0
    for k in range(len(scores)):
        G = lin[k] - sign[k] * (scores[k] + length * change[k])
        new, _ = _proximal(G, lo[k], hi[k], tube[k], centre[k], h)
        total += (new - alpha[k]) * sign[k] * change[k]
    return total
