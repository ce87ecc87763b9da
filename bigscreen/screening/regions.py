"""Regions that contain the optimal w, the basis of every safe screening rule (maths.md 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual


@dataclass(frozen=True)
class Ball:
    """A ball ``||w - c|| <= radius``; the scores of its centre c are kept with the rows.

    Parameters
    ----------
    radius : float
        In units of ``||w||``.
    patience : int
        A row is removed once this many checks in succession have decided about it.
    """

    radius: float
    patience: int = 1

    def intervals(
        self, scores: FloatArray, norms: FloatArray, slack: float | FloatArray = 0.0
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds on each row's optimal score: ``c_i -+ (r ||phi_i|| + slack)``.

        Parameters
        ----------
        scores, norms : float64 (rows,)
            Scores of the centre and upper bounds of ``||phi_i||``.
        slack : float or float64 (rows,)
            Bound on the error of ``scores`` (rounding, or w moved since the row was visited).
        """
        reach = self.radius * norms + slack
        return scores - reach, scores + reach


@dataclass(frozen=True)
class Cut:
    """The half-space ``<a, w> >= beta``, relative to the centre c of a ball.

    Parameters
    ----------
    scores : Scores
        The scores ``<a, phi_i>`` of the normal vector a.
    size, doubt : float
        ``||a|| > 0``, and a bound on its relative error.
    distance : float
        A lower bound on ``(beta - <a, c>) / ||a||``: lowered by its rounding error, since near the
        ball's radius the smallest error would shrink the region to nothing.
    """

    scores: Scores
    size: float
    doubt: float
    distance: float


@dataclass(frozen=True)
class Region:
    """A ball known by the scores of its centre, perhaps cut by a half-space.

    Parameters
    ----------
    centre : Scores
        ``<c, phi_i>`` of all rows.
    radius : float
        In units of ``||w||``, rounded up.
    cut : Cut or None
    """

    centre: Scores
    radius: float
    cut: Cut | None = None

    def intervals(self, norms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on each row's optimal score.

        Parameters
        ----------
        norms : float64 (rows,)
            Upper bounds of ``||phi_i||``.

        Returns
        -------
        lower, upper : float64 (rows,), new arrays
        """
        values, slack = self.centre
        lower, upper = Ball(self.radius).intervals(values, norms, slack)
        # A cut outside the ball says nothing. A cut that leaves nothing of the ball is rounding;
        # the ball alone still holds w*.
        if self.cut is not None and abs(self.cut.distance) < self.radius:
            below, above = self._segment(self.cut, norms)
            below += values - slack
            above += values + slack
            np.maximum(lower, below, out=lower)
            np.minimum(upper, above, out=upper)
        return lower, upper

    def _segment(self, cut: Cut, norms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Least and largest ``<x, phi_i>`` (rows,) over ``||x|| <= r`` and ``<a, x> >= d ||a||``.

        -inf and inf for rows whose extremum the cut does not touch. In the plane of a and phi_i,
        phi_i = (q, s). If the ball's own minimiser ``-r phi / ||phi||`` violates the cut, the least
        value is on the edge of the cut, ``d q - sqrt(r^2 - d^2) s``. An error e of q moves it by at
        most r e, and a larger s only lowers it, so the largest possible s is used.
        """
        r, d = self.radius, cut.distance
        q = cut.scores.values / cut.size
        size = np.abs(q)
        error = cut.scores.slack / cut.size + cut.doubt * size
        np.subtract(size, error, out=size)
        np.maximum(size, 0.0, out=size)
        # (As (k - q)(k + q): the difference of squares would lose all digits of a short s.)
        s = np.sqrt(np.maximum(norms - size, 0.0) * (norms + size))
        s *= float(np.sqrt((r - d) * (r + d)))
        s += r * error
        edge = d * norms + min(d, 0.0) * error
        q_reach = r * q
        q *= d
        below = np.where(-q_reach < edge, q - s, -np.inf)
        above = np.where(q_reach < edge, q + s, np.inf)
        return below, above


def make_cut(scores: Scores, size_sq: float, off: float, excess: float) -> Cut | None:
    """Make the cut ``<a, w> >= beta``.

    Parameters
    ----------
    scores : Scores
        The scores of a.
    size_sq, off : float
        ``||a||^2``, and a bound on its error.
    excess : float
        A lower bound on ``beta - <a, c>``.

    Returns
    -------
    Cut or None
        None if a is so short that rounding could account for it.
    """
    if not off <= 0.5 * size_sq or size_sq <= 0:
        return None
    size, doubt = float(np.sqrt(size_sq)), off / size_sq
    distance = excess / size
    # (For doubt <= 1/2, a relative error ``doubt`` of ||a||^2 moves the quotient by less than it.)
    return Cut(scores, size, doubt, float(distance - (doubt + 1e-12) * abs(distance)))


class Scores(NamedTuple):
    """Scores of all rows, float64 (n,), and bounds on their rounding errors.

    ``slack`` is an array (n,), or one number for all rows.
    """

    values: FloatArray
    slack: FloatArray | float


Products = Callable[[FloatArray], Scores]
"""``products(coef)`` computes the scores of ``w = sum_j coef_j phi_j``, coef float64 (n,). A
constant that is appended to phi is part of phi here, and so of the scores."""


@dataclass(frozen=True)
class Past:
    """A solved point of the path: an alpha of any accuracy, with its scores and its gap.

    Parameters
    ----------
    value : float
        C or nu of the point.
    dual : Dual
        The problem at the point, of all rows.
    alpha : float64 (n,)
        A feasible alpha of ``dual``.
    scores : Scores
        Scores of ``w(alpha) = sum s_i alpha_i phi_i``, without an unpenalised offset.
    w_sq : float
        ``||w(alpha)||^2``.
    gap : float
        Upper bound on the Frank-Wolfe gap of alpha (at the scores of w(alpha)), rounding included.
    """

    value: float
    dual: Dual
    alpha: FloatArray
    scores: Scores
    w_sq: float
    gap: float
