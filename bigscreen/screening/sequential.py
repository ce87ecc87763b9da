"""Screening before a point of a path is solved, from points solved before at any accuracy.

Rules hand out regions, the problem turns the meet of their intervals into decisions. Every number
that a region is made of comes from an alpha that is feasible and its Frank-Wolfe gap, so no rule
trusts a solver; the forms printed in the papers, which ask for exact optima, are in
``pipelines/papers/printed_rules.py``.
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
from bigscreen.problems.recipes import constant
from bigscreen.screening.bounds import (
    ROUNDING,
    box_factor,
    carried,
    doubt,
    gap_bound,
    inner,
    nearest,
    radius,
    scaled,
)
from bigscreen.screening.regions import Cut, Past, Products, Region, Scores, half_space
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
    """A rule of a path."""

    @property
    def name(self) -> str: ...

    @property
    def safe(self) -> bool: ...

    @property
    def ends(self) -> bool:
        """Whether it needs a point on the far side of the one to be screened."""

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        """A region that holds the optimal w.

        Parameters
        ----------
        dual : Dual
            The problem to be screened, of all rows.
        value : float
            Its C or nu.
        past : sequence of Past
            Points solved before, in any order, of the same rows.
        products : Products or None
            Scores of new w; a rule that needs them has no region without.

        Returns
        -------
        Region or None
            None where the rule says nothing of such a problem, or of these points.
        """


@dataclass(frozen=True)
class GapAtPast:
    """The gap ball of the nearest point's alpha, made feasible, in the NEW problem.

    Centre w(alpha), ``r^2`` the Frank-Wolfe gap there. Where the box scales alpha scales with it;
    with a total to be kept alpha is scaled, or filled up greedily where scaling leaves the box.
    """

    name: str = "gap"
    safe: bool = True
    ends: bool = False

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        """See ``PathRule``."""
        point = nearest(value, past)
        start = carried(dual, point, products) if point is not None else None
        if start is None:
            return None
        alpha, scores, size = start
        gap = gap_bound(dual, alpha, scores)
        return Region(scores, radius(gap, size + gap)) if np.isfinite(gap) else None


@dataclass(frozen=True)
class Dvi:
    """DVI (Wang et al. 2014; maths.md 2.4) for an alpha of any accuracy, C above or below its C0.

    With ``theta0 = alpha0 / C0``, ``z0 = w(theta0)``, ``eps0 = gap / C0`` and the optimum
    ``w* = C z*``, the variational inequalities at C0 (up to eps0) and at C add up to

        || z* - (C + C0) / (2 C) z0 ||^2  <=  ((C - C0) / (2 C))^2 ||z0||^2 + eps0 / C

    (the theta-form); times C it is, with ``k = C / C0``, the w-form that is computed here:

        || w* - (1 + k) / 2 w0 ||^2  <=  ((k - 1) / 2)^2 ||w0||^2 + k gap.

    It asks for a box that scales with C and a coupling whose total is 0: every problem with a C.
    """

    name: str = "dvi"
    safe: bool = True
    ends: bool = False

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        """See ``PathRule``."""
        point = nearest(value, past)
        if point is None or np.any(dual.total) or np.any(point.dual.total):
            return None
        k = box_factor(dual, point)
        if k is None or not np.isfinite(point.gap):
            return None
        half = (k - 1.0) / 2.0
        square = half**2 * (point.w_sq + doubt(point)) + k * max(point.gap, 0.0)
        return Region(scaled(point.scores, (1.0 + k) / 2.0), radius(square, k**2 * point.w_sq))


@dataclass(frozen=True)
class Screened:
    """What the rules of a path found before a point is solved.

    Parameters
    ----------
    decided : int8 (n,)
        ``FREE``, or where the optimum certainly is (``dual.AT_LO``, ``AT_HI``, ``AT_ZERO``).
    counts : dict
        For every rule that had a region, and under "all" for their meet, the rows decided at
        "lo", "hi" and "zero". A rule's own are counted only if asked for ("alone").
    seconds : dict
        For every rule: its region and intervals; "all": meet, multiplier and decisions.
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
    """Decide about rows of a problem before it is solved.

    Parameters
    ----------
    dual : Dual
        Of all rows.
    value : float
        Its C or nu.
    rules : sequence of PathRule
    past : sequence of Past
        Points solved before, in any order.
    products : Products or None
    norms : float64 (n,)
        Upper bounds of ``||phi_i||``.
    alone : bool
        Count what each rule decides alone, at the cost of a few passes a rule.

    Returns
    -------
    Screened
    """
    found = Screened(np.full(len(dual), FREE))
    lower: FloatArray | None = None
    upper: FloatArray | None = None
    asked = None if products is None else _Once(products)
    for rule in rules:
        began = time.perf_counter()
        region = rule.region(dual, value, past, asked)
        ends = None if region is None else region.intervals(norms)
        found.seconds[rule.name] = time.perf_counter() - began
        if ends is None:
            continue
        low, high = ends
        if alone:
            found.counts[rule.name] = _tally(dual, _decide(dual, low, high))
        lower = low if lower is None else np.maximum(lower, low, out=lower)
        upper = high if upper is None else np.minimum(upper, high, out=upper)
    began = time.perf_counter()
    if lower is not None and upper is not None:
        found.decided[:] = _decide(dual, lower, upper)
    found.counts["all"] = _tally(dual, found.decided)
    found.seconds["all"] = time.perf_counter() - began
    return found


def _decide(dual: Dual, lower: FloatArray, upper: FloatArray) -> NDArray[np.int8]:
    """Interval of the multiplier, then decisions."""
    if dual.coupling is None:
        return dual.decide(lower, upper)
    return dual.decide(lower, upper, dual.multiplier_interval(lower, upper))


def _tally(dual: Dual, decided: NDArray[np.int8]) -> dict[str, int]:
    """Rows at each place; a row whose box is a point was never in question."""
    live = dual.hi > dual.lo
    places = {"lo": AT_LO, "hi": AT_HI, "zero": AT_ZERO}
    return {name: int(np.count_nonzero(live & (decided == at))) for name, at in places.items()}


class _Once:
    """Products that remember the last answer: rules ask for the same filled-up alpha."""

    def __init__(self, products: Products) -> None:
        self.products = products
        self.last: tuple[FloatArray, Scores] | None = None

    def __call__(self, coef: FloatArray) -> Scores:
        if self.last is None or not np.array_equal(self.last[0], coef):
            self.last = coef, self.products(coef)
        return self.last[1]


def make_path_rule(name: str, delta: str = "greedy", solve: Solve | None = None) -> PathRule:
    """The rule of this name; parameters it does not have are ignored.

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
    """SSNSV (Ogawa et al. 2013; maths.md 2.5), points at ``C_a <= C <= C_b`` of any accuracy.

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
    """ESSNSV (Wang et al. 2014, th. 18; maths.md 2.5): SSNSV's cut, and a ball of half the radius.

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
