"""DVI, SSNSV, ESSNSV and SRBO word for word as the papers print them. UNSAFE for inexact input.

Each assumes that the point before is an exact optimum, as its theorem does; after a solver that
stopped early it removes support vectors. They exist for comparison, and to show that the safety
tests detect this; the package does not use them. The safe forms are in
``bigscreen.screening.sequential``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigscreen.problems.dual import AT_HI, AT_LO, FREE, Dual
from bigscreen.screening.bounds import (
    fill_total,
    inner_product,
    nearest_point,
    scale_scores,
    scale_to_box,
)
from bigscreen.screening.regions import Past, Products, Region, Scores
from bigscreen.screening.sequential import Essnsv, Ssnsv


@dataclass(frozen=True)
class LiteralDvi:
    """DVI (Wang et al., corollary 8).

    ``||w* - (C + C0) / (2 C0) w0|| <= (C - C0) / (2 C0) ||w0||``.
    """

    name: str = "dvi (literal)"
    safe: bool = False
    needs_both_sides: bool = False

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        point = nearest_point(value, past)
        if point is None or np.any(dual.total) or value < point.value:
            return None
        k = value / point.value
        return Region(
            scale_scores(point.scores, (1 + k) / 2), (k - 1) / 2 * float(np.sqrt(point.w_sq))
        )


@dataclass(frozen=True)
class LiteralSsnsv:
    """SSNSV, Wang et al., equation (25)."""

    name: str = "ssnsv (literal)"
    safe: bool = False
    needs_both_sides: bool = True

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        return Ssnsv().region(dual, value, _exact(past), products)


@dataclass(frozen=True)
class LiteralEssnsv:
    """ESSNSV, Wang et al., equation (26)."""

    name: str = "essnsv (literal)"
    safe: bool = False
    needs_both_sides: bool = True

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        return Essnsv().region(dual, value, _exact(past), products)


@dataclass(frozen=True)
class LiteralSrbo:
    """SRBO, Yang et al., theorem 1 and corollary 1, with the abs() that hides a negative r^2."""

    name: str = "srbo (literal)"
    safe: bool = False
    needs_both_sides: bool = False

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        point = nearest_point(value, past)
        if point is None or products is None or value < point.value or not np.all(dual.total):
            return None
        start = scale_to_box(dual, point)
        if start is None:
            return None
        alpha, scores, _ = start[1]
        coef = dual.sign * (fill_total(dual, alpha, scores.values) - alpha)
        more = products(coef)
        r_sq = inner_product(coef, scores)[0] + inner_product(coef, more)[0] / 4
        return Region(
            Scores(scores.values + 0.5 * more.values, scores.slack), float(np.sqrt(abs(r_sq)))
        )


def srbo_decisions(dual: Dual, region: Region, norms: NDArray[np.float64]) -> NDArray[np.int8]:
    """Decide rows by Yang et al., corollary 3: rho between ONE row's bounds.

    It is the row of order ``l - nu l`` by ``Z c``. If rows have different norms, the row of this
    order at the optimum can be another one.
    """
    z = dual.sign * region.centre.values
    reach = region.radius * norms
    rows = len(z)
    nu = float(np.sum(dual.total)) / float(np.sum(dual.hi))
    index = int(np.floor(rows - nu * rows))
    row = np.argsort(-z, kind="stable")[max(index - 1, 0)]
    decided = np.full(rows, FREE)
    decided[z - reach > z[row] + reach[row]] = AT_LO
    decided[z + reach < z[row] - reach[row]] = AT_HI
    return decided


def _exact(past: Sequence[Past]) -> list[Past]:
    return [replace(one, gap=0.0) for one in past]
