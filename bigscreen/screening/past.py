"""A solved point of a path, as the rules see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from bigscreen.dual import Dual, FloatArray


class Scores(NamedTuple):
    """Scores of all rows (n,) float64, and how far rounding can have moved each: (n,), or one
    number for all."""

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
