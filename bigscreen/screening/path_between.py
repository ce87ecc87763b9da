"""SSNSV and ESSNSV: screening between a point at a smaller and a point at a larger C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bigscreen.dual import Dual
from bigscreen.problems import constant
from bigscreen.screening.bounds import ROUNDING, box_factor, doubt, inner, radius, scaled
from bigscreen.screening.past import Past, Products, Scores
from bigscreen.screening.regions import Cut, Region, half_space


@dataclass(frozen=True)
class Ssnsv:
    """SSNSV (Ogawa 2013; wang sec. 5.2) between points at ``C_a <= C <= C_b`` of any accuracy.

    The loss falls and ``||w*||`` grows with C. So, with gaps ``G_a`` and ``G_b``,

        <w_a, w*>  >=  beta = ||w_a||^2 / 2 - G_a + 1/2 (||w_a|| - sqrt(G_a))_+^2,
        ||w*||     <=  ||w_b|| + sqrt(G_b).

    It asks for what DVI asks for, and for the last point of the path to be solved first.
    """

    name: str = "ssnsv"
    safe: bool = True
    ends: bool = True

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        """See ``PathRule``."""
        pair = _between(dual, value, past)
        if pair is None:
            return None
        (_, a), (_, b) = pair
        reach = np.sqrt(b.w_sq + doubt(b)) + np.sqrt(b.gap)
        size = reach**2
        nothing = Scores(constant(0.0, len(dual)), 0.0)
        return Region(nothing, radius(size, size), _cut(a, 0.0, 0.0))


@dataclass(frozen=True)
class Essnsv:
    """ESSNSV (wang sec. 5.2, th. 18): SSNSV's cut, and a ball of half the radius.

    Centre ``w_b / 2``,
    ``r^2 = ||w_b||^2 / 4 + C / C_b (G_b + ||w_b|| sqrt(G_b) + G_b / 2)``.
    """

    name: str = "essnsv"
    safe: bool = True
    ends: bool = True

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        """See ``PathRule``."""
        pair = _between(dual, value, past)
        if pair is None:
            return None
        (_, a), (k, b) = pair
        w_sq = b.w_sq + doubt(b)
        square = w_sq / 4 + k * (1.5 * b.gap + np.sqrt(w_sq * b.gap))
        product, error = inner(a.dual.sign * a.alpha, b.scores)
        cut = _cut(a, product / 2, error / 2)
        return Region(scaled(b.scores, 0.5), radius(square, square), cut)


def _between(
    dual: Dual, value: float, past: Sequence[Past]
) -> tuple[tuple[float, Past], tuple[float, Past]] | None:
    """The nearest point on either side, each with C by its C."""
    if np.any(dual.total):
        return None
    usable = [one for one in past if np.isfinite(one.gap) and not np.any(one.dual.total)]
    below = max((p for p in usable if p.value <= value), key=lambda p: p.value, default=None)
    above = min((p for p in usable if p.value >= value), key=lambda p: p.value, default=None)
    if below is None or above is None:
        return None
    k_a, k_b = box_factor(dual, below), box_factor(dual, above)
    if k_a is None or k_b is None or k_a < 1 or k_b > 1:
        return None
    return (k_a, below), (k_b, above)


def _cut(a: Past, product: float, error: float) -> Cut | None:
    """``<w_a, w> >= beta`` from a centre c with ``<w_a, c> = product`` (up to ``error``)."""
    off, gap = doubt(a), max(a.gap, 0.0)
    least_sq = max(a.w_sq - off, 0.0)
    low = max(np.sqrt(least_sq) - np.sqrt(gap), 0.0)
    beta = 0.5 * least_sq - gap + 0.5 * low**2 - ROUNDING * (a.w_sq + gap)
    return half_space(a.scores, a.w_sq, off, beta - product - error)
