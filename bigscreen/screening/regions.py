"""Regions that must contain the optimal w: what every safe rule comes down to (maths.md 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual


@dataclass(frozen=True)
class Ball:
    """``||w - c|| <= radius``; the scores of the centre live with the rows.

    Parameters
    ----------
    radius : float
        In units of ``||w||``.
    patience : int
        A row is dropped once so many checks running have decided about it.
    """

    radius: float
    patience: int = 1

    def intervals(
        self, scores: FloatArray, norms: FloatArray, slack: float | FloatArray = 0.0
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds on every row's optimal score: ``c_i -+ (r ||phi_i|| + slack)``.

        Parameters
        ----------
        scores, norms : float64 (rows,)
            Scores of the centre and upper bounds of ``||phi_i||``.
        slack : float or float64 (rows,)
            Bound on the error of ``scores`` (rounding, rows not visited since w moved).
        """
        reach = self.radius * norms + slack
        return scores - reach, scores + reach


@dataclass(frozen=True)
class Cut:
    """The half-space ``<a, w> >= beta``, as seen from the centre c of a ball.

    Parameters
    ----------
    scores : Scores
        ``<a, phi_i>``.
    size, doubt : float
        ``||a|| > 0`` and how far it may be off, as a part of it.
    distance : float
        ``(beta - <a, c>) / ||a||``, or less: lowered by what rounding can have put into it. Near
        the ball's radius the smallest error in it would shrink the region to nothing.
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
        """Bounds on every row's optimal score.

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
        # A cut that lies outside of the ball says nothing; one that leaves nothing of it is
        # rounding, and the ball alone still holds w*.
        if self.cut is not None and abs(self.cut.distance) < self.radius:
            below, above = self._segment(self.cut, norms)
            below += values - slack
            above += values + slack
            np.maximum(lower, below, out=lower)
            np.minimum(upper, above, out=upper)
        return lower, upper

    def _segment(self, cut: Cut, norms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Least and largest ``<x, phi_i>`` over ``||x|| <= r``, ``<a, x> >= d ||a||``.

        -inf and inf for rows whose extremum the cut does not touch. In the plane of a and phi_i,
        phi_i = (q, s): where the ball's own minimiser ``-r phi / ||phi||`` violates the cut, the
        least value is on its edge, ``d q - sqrt(r^2 - d^2) s``. An error e of q moves it by r e at
        most, and a larger s only lowers it, so s is taken from the largest that it can be.
        """
        r, d = self.radius, cut.distance
        q = cut.scores.values / cut.size
        size = np.abs(q)
        error = cut.scores.slack / cut.size + cut.doubt * size
        np.subtract(size, error, out=size)
        np.maximum(size, 0.0, out=size)
        # (k - q)(k + q): the difference of squares loses all digits of a short s.
        s = np.sqrt(np.maximum(norms - size, 0.0) * (norms + size))
        s *= float(np.sqrt((r - d) * (r + d)))
        s += r * error
        edge = d * norms + min(d, 0.0) * error
        q_reach = r * q
        q *= d
        below = np.where(-q_reach < edge, q - s, -np.inf)
        above = np.where(q_reach < edge, q + s, np.inf)
        return below, above


def half_space(scores: Scores, size_sq: float, off: float, excess: float) -> Cut | None:
    """The cut by ``<a, w> >= beta``.

    Parameters
    ----------
    scores : Scores
        Of a.
    size_sq, off : float
        ``||a||^2``, and how far it may be off.
    excess : float
        ``beta - <a, c>``, or less.

    Returns
    -------
    Cut or None
        None where a is too short to be told from rounding.
    """
    if not off <= 0.5 * size_sq or size_sq <= 0:
        return None
    size, doubt = float(np.sqrt(size_sq)), off / size_sq
    distance = excess / size
    # Up to doubt 1/2 a size that is off by doubt in its square moves the quotient by less.
    return Cut(scores, size, doubt, float(distance - (doubt + 1e-12) * abs(distance)))


class Scores(NamedTuple):
    """Scores of all rows (n,) float64, and how far rounding can have moved each.

    The latter is an array (n,), or one number for all.
    """

    values: FloatArray
    slack: FloatArray | float


Products = Callable[[FloatArray], Scores]
"""``products(coef)``: scores of ``w = sum_j coef_j phi_j``, coef float64 (n,). Where a constant is
appended to phi it is in ``phi`` here, and so in the scores."""


@dataclass(frozen=True)
class Past:
    """An alpha of any accuracy at an earlier point of the path, with all that rules need of it.

    Parameters
    ----------
    value : float
        C or nu there.
    dual : Dual
        The problem there, of all rows.
    alpha : float64 (n,)
        Feasible for it.
    scores : Scores
        Of ``w(alpha) = sum s_i alpha_i phi_i``, without an unpenalised offset.
    w_sq : float
        ``||w(alpha)||^2``.
    gap : float
        Upper bound of the Frank-Wolfe gap of alpha (at the scores of w(alpha)), rounding included.
    """

    value: float
    dual: Dual
    alpha: FloatArray
    scores: Scores
    w_sq: float
    gap: float
