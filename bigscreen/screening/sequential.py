"""Screening rules that fix rows before a point of a path is solved, from points solved before.

Each rule gives a region that holds the optimal w, and so an interval for each score; `Dual.decide`
turns the intersection of these intervals into decisions. The regions are computed from feasible
alphas of any accuracy and their Frank-Wolfe gaps, so no rule trusts a solver. The forms printed in
the papers, which need exact optima, are in ``pipelines/papers/printed_rules.py``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import AT_HI, AT_LO, AT_ZERO, FREE, Dual
from bigscreen.problems.recipes import constant_array
from bigscreen.screening.bounds import (
    ROUNDING,
    box_factor,
    carry_alpha,
    gap_bound,
    inner_product,
    nearest_point,
    norm_sq_error,
    safe_radius,
    scale_scores,
)
from bigscreen.screening.regions import Cut, Past, Products, Region, Scores, make_cut
from bigscreen.screening.srbo import Solve, Srbo, SrboCut

__all__ = [
    "Dvi",
    "Essnsv",
    "GapAtPast",
    "PathRule",
    "Screened",
    "Srbo",
    "SrboCut",
    "Ssnsv",
    "make_path_rule",
    "screen",
]


class PathRule(Protocol):
    """Interface of rules that fix rows before a point of a path (a sequence of C or nu) is solved.

    ``name``: the rule's name in options and records. ``safe``: whether the region certainly holds
    the optimal w.
    """

    @property
    def name(self) -> str: ...

    @property
    def safe(self) -> bool: ...

    @property
    def needs_both_sides(self) -> bool:
        """Whether the rule needs solved points on both sides of the one to be screened."""

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        """A region that holds the optimal w.

        Parameters
        ----------
        dual : Dual
            The problem to be screened, of all rows.
        value : float
            C or nu of the problem.
        past : sequence of Past
            Points solved before, in any order, of the same rows.
        products : Products or None
            Computes scores of new w. Without it, a rule that needs scores has no region.

        Returns
        -------
        Region or None
            None if the rule does not apply to the problem or to these points.
        """


@dataclass(frozen=True)
class GapAtPast:
    """The gap ball, in the NEW problem, of the nearest solved point's alpha made feasible.

    The centre is w(alpha), and ``r^2`` the Frank-Wolfe gap of alpha in the new problem. alpha is
    scaled with the box. If the coupling has a total, alpha is scaled with the total, or filled up
    greedily if scaling leaves the box.
    """

    name: str = "gap"
    safe: bool = True
    needs_both_sides: bool = False

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        """Return the gap ball around w of the nearest solved point's alpha, made feasible.

        Returns None if there is no such point, or it cannot be made feasible. Arguments: see
        `PathRule`.
        """
        point = nearest_point(value, past)
        start = carry_alpha(dual, point, products) if point is not None else None
        if start is None:
            return None
        alpha, scores, size = start
        gap = gap_bound(dual, alpha, scores)
        return Region(scores, safe_radius(gap, size + gap)) if np.isfinite(gap) else None


@dataclass(frozen=True)
class Dvi:
    """DVI (Wang et al. 2014; maths.md 2.4), from an alpha of any accuracy at C0 above or below C.

    With ``theta0 = alpha0 / C0``, ``z0 = w(theta0)``, ``eps0 = gap / C0`` and the optimum
    ``w* = C z*``, the variational inequalities at C0 (up to eps0) and at C add up to

        || z* - (C + C0) / (2 C) z0 ||^2  <=  ((C - C0) / (2 C))^2 ||z0||^2 + eps0 / C

    (the theta-form); times C it is, with ``k = C / C0``, the w-form that is computed here:

        || w* - (1 + k) / 2 w0 ||^2  <=  ((k - 1) / 2)^2 ||w0||^2 + k gap.

    It needs a box that scales with C and a coupling whose total is 0: every problem with a C has
    them.
    """

    name: str = "dvi"
    safe: bool = True
    needs_both_sides: bool = False

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        """Return the ball of DVI, from the nearest solved point of the path.

        Returns None if there is no such point, the box does not scale, or a coupling has a total
        other than 0. Arguments: see `PathRule`.
        """
        point = nearest_point(value, past)
        if point is None or np.any(dual.total) or np.any(point.dual.total):
            return None
        k = box_factor(dual, point)
        if k is None or not np.isfinite(point.gap):
            return None
        half = (k - 1.0) / 2.0
        square = half**2 * (point.w_sq + norm_sq_error(point)) + k * max(point.gap, 0.0)
        return Region(
            scale_scores(point.scores, (1.0 + k) / 2.0), safe_radius(square, k**2 * point.w_sq)
        )


@dataclass(frozen=True)
class Screened:
    """The result of screening a point of a path before it is solved.

    Parameters
    ----------
    decided : int8 (n,)
        ``FREE``, or the place of the row's optimal alpha (``dual.AT_LO``, ``AT_HI``, ``AT_ZERO``).
    counts : dict
        The number of rows decided at "lo", "hi" and "zero": under "all" for all rules together,
        and, only if requested (``alone``), under each rule's name for the rule alone.
    seconds : dict
        Seconds of each rule for its region and intervals; "all": for the intersection, the
        multiplier and the decisions.
    """

    decided: NDArray[np.int8]
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def screen(
    dual: Dual,
    value: float,
    rules: Sequence[PathRule],
    past: Sequence[Past],
    products: Products | None,
    norms: FloatArray,
    alone: bool = False,
) -> Screened:
    """Screen a problem before it is solved: find rows whose optimal alpha the rules prove.

    Parameters
    ----------
    dual : Dual
        The problem of all rows.
    value : float
        C or nu of the problem.
    rules : sequence of PathRule
    past : sequence of Past
        Points solved before, in any order.
    products : Products or None
    norms : float64 (n,)
        Upper bounds of ``||phi_i||``.
    alone : bool
        Also count the rows that each rule decides alone, at the cost of a few passes a rule.

    Returns
    -------
    Screened
    """
    found = Screened(np.full(len(dual), FREE))
    lower: FloatArray | None = None
    upper: FloatArray | None = None
    asked = None if products is None else _LastProducts(products)
    for rule in rules:
        began = time.perf_counter()
        region = rule.region(dual, value, past, asked)
        ends = None if region is None else region.intervals(norms)
        found.seconds[rule.name] = time.perf_counter() - began
        if ends is None:
            continue
        low, high = ends
        if alone:
            found.counts[rule.name] = _count_decided(dual, _decide(dual, low, high))
        lower = low if lower is None else np.maximum(lower, low, out=lower)
        upper = high if upper is None else np.minimum(upper, high, out=upper)
    began = time.perf_counter()
    if lower is not None and upper is not None:
        found.decided[:] = _decide(dual, lower, upper)
    found.counts["all"] = _count_decided(dual, found.decided)
    found.seconds["all"] = time.perf_counter() - began
    return found


def _decide(dual: Dual, lower: FloatArray, upper: FloatArray) -> NDArray[np.int8]:
    """Decide about rows from intervals of their optimal scores: int8 (n,), see `Dual.decide`."""
    if dual.coupling is None:
        return dual.decide(lower, upper)
    return dual.decide(lower, upper, dual.multiplier_interval(lower, upper))


def _count_decided(dual: Dual, decided: NDArray[np.int8]) -> dict[str, int]:
    """Count the rows decided to be at "lo", "hi" and "zero".

    Rows whose box is a single point do not count.
    """
    live = dual.hi > dual.lo
    places = {"lo": AT_LO, "hi": AT_HI, "zero": AT_ZERO}
    return {name: int(np.count_nonzero(live & (decided == at))) for name, at in places.items()}


class _LastProducts:
    """Products that keep the last result, since several rules need the scores of the same alpha."""

    def __init__(self, products: Products) -> None:
        """Wrap a function that computes scores; no result is kept yet."""
        self.products = products
        self.last: tuple[FloatArray, Scores] | None = None

    def __call__(self, coef: FloatArray) -> Scores:
        """Return the scores of ``w = sum_j coef_j phi_j``, ``coef`` (n,)."""
        if self.last is None or not np.array_equal(self.last[0], coef):
            self.last = coef, self.products(coef)
        return self.last[1]


def make_path_rule(name: str, delta: str = "greedy", solve: Solve | None = None) -> PathRule:
    """Make the path rule of this name; parameters that it does not have are ignored.

    Parameters
    ----------
    name : {"gap", "dvi", "ssnsv", "essnsv", "srbo", "srbo-cut"}
    delta : {"greedy", "small", "full"}
        How SRBO chooses its delta.
    solve : Solve or None
        The solver of SRBO's small and full QP.
    """
    plain: dict[str, PathRule] = {
        rule.name: rule for rule in (GapAtPast(), Dvi(), Ssnsv(), Essnsv())
    }
    if name in plain:
        return plain[name]
    if name == "srbo":
        return Srbo(delta, solve)
    if name == "srbo-cut":
        return SrboCut(delta, solve)
    raise InputError(f"a path's rule must be {', '.join(plain)}, srbo or srbo-cut, got {name!r}")


@dataclass(frozen=True)
class Ssnsv:
    """SSNSV (Ogawa et al. 2013; maths.md 2.5), from points at ``C_a <= C <= C_b`` of any accuracy.

    With growing C the loss falls and ``||w*||`` grows. So, with gaps ``G_a`` and ``G_b``,

        <w_a, w*>  >=  beta = ||w_a||^2 / 2 - G_a + 1/2 (||w_a|| - sqrt(G_a))_+^2,
        ||w*||     <=  ||w_b|| + sqrt(G_b).

    It has the conditions of `Dvi`, and the last point of the path must be solved first.
    """

    name: str = "ssnsv"
    safe: bool = True
    needs_both_sides: bool = True

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        """Return a ball around 0, cut by a half-space, from the solved points on both sides.

        Returns None if there are no two such points, or the box does not scale. Arguments: see
        `PathRule`.
        """
        pair = _neighbours(dual, value, past)
        if pair is None:
            return None
        (_, a), (_, b) = pair
        reach = np.sqrt(b.w_sq + norm_sq_error(b)) + np.sqrt(b.gap)
        size = reach**2
        nothing = Scores(constant_array(0.0, len(dual)), 0.0)
        return Region(nothing, safe_radius(size, size), _make_cut(a, 0.0, 0.0))


@dataclass(frozen=True)
class Essnsv:
    """ESSNSV (Wang et al. 2014, th. 18; maths.md 2.5): SSNSV's cut, and a ball of half the radius.

    The centre is ``w_b / 2``, and
    ``r^2 = ||w_b||^2 / 4 + C / C_b (G_b + ||w_b|| sqrt(G_b) + G_b / 2)``.
    """

    name: str = "essnsv"
    safe: bool = True
    needs_both_sides: bool = True

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        """Return the ball around ``w_b / 2``, cut by a half-space, from the points on both sides.

        Returns None if there are no two such points, or the box does not scale. Arguments: see
        `PathRule`.
        """
        pair = _neighbours(dual, value, past)
        if pair is None:
            return None
        (_, a), (k, b) = pair
        w_sq = b.w_sq + norm_sq_error(b)
        square = w_sq / 4 + k * (1.5 * b.gap + np.sqrt(w_sq * b.gap))
        product, error = inner_product(a.dual.sign * a.alpha, b.scores)
        cut = _make_cut(a, product / 2, error / 2)
        return Region(scale_scores(b.scores, 0.5), safe_radius(square, square), cut)


def _neighbours(
    dual: Dual, value: float, past: Sequence[Past]
) -> tuple[tuple[float, Past], tuple[float, Past]] | None:
    """Return the nearest solved points below and above ``value``, each with ``C / C_point``.

    ``value`` is the C of the problem ``dual``. Returns None if there is no such pair, or a coupling
    has a total other than 0.
    """
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


def _make_cut(a: Past, product: float, error: float) -> Cut | None:
    """Make SSNSV's half-space ``<w_a, w> >= beta``, relative to the centre c of a ball.

    ``a``: the solved point with w_a, at a smaller C. ``product``: ``<w_a, c>``, up to ``error``.
    """
    off, gap = norm_sq_error(a), max(a.gap, 0.0)
    least_sq = max(a.w_sq - off, 0.0)
    low = max(np.sqrt(least_sq) - np.sqrt(gap), 0.0)
    beta = 0.5 * least_sq - gap + 0.5 * low**2 - ROUNDING * (a.w_sq + gap)
    return make_cut(a.scores, a.w_sq, off, beta - product - error)
