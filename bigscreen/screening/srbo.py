"""The rule SRBO (Yang et al. 2024, th. 1; maths.md 2.6), and a tighter one from the same facts.

In nu-SVCs and one-class machines ``p = 0``, the box begins at 0 and the objective is
``1/2 ||w||^2`` alone. So the optimum at the new nu is the shortest of all ``w(alpha)``, alpha
feasible:

    <w*, w' - w*> >= 0                 for w' = w(alpha'), alpha' feasible at the new nu,
    <w0, w*>      >= beta              with beta = min over the same alpha of <w0, w(alpha)>.

Old points are first scaled to the new box: a one-class machine's box is ``c / (nu mass)``, so with
``k = nu0 / nu`` its old alpha and w are multiplied by k and its gap by k^2. The delta of the paper
is ``alpha' - alpha0``; any feasible alpha' is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bigscreen.errors import InputError
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual, Mu
from bigscreen.screening.bounds import (
    ROUNDING,
    ScoredAlpha,
    dual_lower_bound,
    fill_total,
    inner_product,
    nearest_point,
    norm_sq_error,
    safe_radius,
    scale_to_box,
    total_factor,
)
from bigscreen.screening.regions import Past, Products, Region, Scores, make_cut

Solve = Callable[[Dual, FloatArray], FloatArray]
"""``solve(dual, alpha)`` improves a feasible alpha of a dual with ``p = 0``, to any accuracy.

Rows whose box is a single point do not change."""

DELTAS = ("greedy", "small", "full")
"""The ways to choose SRBO's delta, see `Srbo`."""


@dataclass(frozen=True)
class _ChosenDelta:
    """The nearest solved point scaled to the new box (w0), and the change of its w by a delta.

    ``total``: the new total of the coupling divided by the scaled point's. ``scores``, ``w_sq``,
    ``off``: scores of w0, ``||w0||^2`` and the bound on its error. ``gap``: the scaled Frank-Wolfe
    gap. ``with_delta``: ``<w0, w(delta)>``; ``delta_sq``: ``||w(delta)||^2``, each with a bound on
    its error. ``more``: the scores of w(delta).
    """

    total: float
    scores: Scores
    w_sq: float
    off: float
    gap: float
    with_delta: tuple[float, float]
    delta_sq: tuple[float, float]
    more: Scores


@dataclass(frozen=True)
class Srbo:
    """SRBO (Yang et al. 2024, th. 1), from an alpha0 of any accuracy at a nu0 below nu.

    The centre is ``c = w(alpha0 + delta / 2)`` and ``r^2 = ||c||^2 - ||w0||^2 + eps0``, with eps0
    the Frank-Wolfe gap of alpha0 at nu0. Reason: ``(nu0 / nu) alpha*`` is feasible at nu0, so
    ``<w0, w*> >= nu / nu0 (||w0||^2 - eps0) >= ||w0||^2 - eps0`` while ``eps0 <= ||w0||^2``.

    Parameters
    ----------
    delta : {"greedy", "small", "full"}
        "greedy": fill up the rows that cost least, without a QP; "small": the paper's small QP
        (27); "full": its full QP (18).
    solve : Solve or None
        The solver of the QPs.
    """

    delta: str = "greedy"
    solve: Solve | None = None
    name: str = "srbo"
    safe: bool = True
    needs_both_sides: bool = False

    def __post_init__(self) -> None:
        _check_delta(self.delta, self.solve)

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        """Return the ball of SRBO, from the nearest solved point of the path.

        Returns None if that point cannot be scaled to the new problem, or for a nu below that
        point's. Arguments: see `PathRule`.
        """
        own = _scaled_with_delta(dual, value, past, products, self.delta, self.solve)
        if own is None or own.total < 1:
            return None
        factor = 1.0 if own.gap <= own.w_sq - own.off else own.total
        (product, error), (square, error_sq) = own.with_delta, own.delta_sq
        rest = own.w_sq - factor * (own.w_sq - own.gap) + (factor - 1) * own.off
        r_sq = square / 4 + product + rest + error + error_sq / 4
        centre = Scores(
            own.scores.values + 0.5 * own.more.values, own.scores.slack + 0.5 * own.more.slack
        )
        size = own.w_sq + abs(product) + abs(square) + factor * own.gap
        return Region(centre, safe_radius(r_sq, size))


@dataclass(frozen=True)
class SrboCut:
    """A ball cut by a half-space, from the two facts that `Srbo` adds up; nu above or below nu0.

    The ball has the centre ``w' / 2`` and ``r = ||w'|| / 2``. The cut is ``<w0, w> >= beta``, with
    beta from the linear program at the new nu. The region lies in the ball of `Srbo`: that ball's
    squared radius falls in proportion to the step in nu, the depth of this region with its square.

    Parameters
    ----------
    delta, solve
        As for ``Srbo``.
    """

    delta: str = "greedy"
    solve: Solve | None = None
    name: str = "srbo-cut"
    safe: bool = True
    needs_both_sides: bool = False

    def __post_init__(self) -> None:
        _check_delta(self.delta, self.solve)

    def region(
        self, dual: Dual, value: float, past: Sequence[Past], products: Products | None
    ) -> Region | None:
        """Return the ball cut by a half-space, from the nearest solved point of the path.

        Returns None if that point cannot be scaled to the new problem. Arguments: see `PathRule`.
        """
        own = _scaled_with_delta(dual, value, past, products, self.delta, self.solve)
        if own is None:
            return None
        (product, error), (square, error_sq) = own.with_delta, own.delta_sq
        w_sq = own.w_sq + 2 * product + square
        off = own.off + 2 * error + error_sq
        centre = Scores(
            0.5 * (own.scores.values + own.more.values), 0.5 * (own.scores.slack + own.more.slack)
        )
        size = own.w_sq + 2 * abs(product) + square
        inside = 0.5 * (own.w_sq + product)
        excess = (
            dual_lower_bound(dual, own.scores) - inside - 0.5 * (own.off + error) - ROUNDING * size
        )
        cut = make_cut(own.scores, own.w_sq, own.off, excess)
        return Region(centre, safe_radius((w_sq + off) / 4, size), cut)


def choose_alpha(
    dual: Dual,
    start: ScoredAlpha,
    before: FloatArray | None,
    delta: str,
    solve: Solve | None,
) -> FloatArray:
    """Choose SRBO's second point alpha' = alpha0 + delta, feasible at the new nu, near alpha0.

    alpha0 is a solved point of the path at another nu. The paper has three ways to choose delta.

    Parameters
    ----------
    dual : Dual
        The problem at the new nu.
    start : ScoredAlpha
        alpha0 scaled to the new box; the coupling's total need not be kept.
    before : float64 (n,) or None
        The alpha of the point before alpha0, in the same scale: the small QP starts by repeating
        the last step.
    delta : {"greedy", "small", "full"}
        See `Srbo`.
    solve : Solve or None
        Solver of the QP of "small" and "full"; None: "greedy" is used.

    Returns
    -------
    float64 (n,) : alpha'
    """
    alpha, scores, _ = start
    filled = fill_total(dual, alpha, scores.values)
    if delta == "greedy" or solve is None:
        return filled
    if delta == "full" or before is None:
        return _minimise_norm(dual, alpha, filled, None, solve)
    # QP (27): the last delta is kept for rows that stay in their box, the other rows are free.
    step = alpha - before
    guess = alpha + _steps_to_total(dual, alpha, step) * step
    out = (guess < dual.lo) | (guess > dual.hi)
    start_at = dual.feasible(guess)
    if not out.any():
        return start_at
    return _minimise_norm(dual, alpha, start_at, out, solve)


def _steps_to_total(dual: Dual, alpha: FloatArray, step: FloatArray) -> float:
    """Return the multiple of the last change of alpha that reaches the coupling's new total.

    ``dual``: the new problem; ``alpha`` (n,): where the change starts; ``step`` (n,): the change.
    Returns 1 if the step does not change the sum in the right direction.
    """
    assert dual.coupling is not None
    made = float(dual.coupling @ step)
    missing = float(np.sum(dual.total) - dual.coupling @ alpha)
    return missing / made if made * missing > 0 else 1.0


def _minimise_norm(
    dual: Dual,
    alpha: FloatArray,
    start: FloatArray,
    free: np.ndarray | None,
    solve: Solve,
) -> FloatArray:
    """Solve QP (18): the alpha' = alpha0 + delta (n,) of least ``||w(alpha0 + delta / 2)||``.

    ``alpha``: alpha0; ``start``: a feasible alpha' to begin with; ``free`` (n,): the rows that may
    differ from ``start``, None for all. In ``gamma = (alpha0 + alpha') / 2`` it is the dual with
    another box and another total.
    """
    assert dual.coupling is not None
    half = 0.5 * (alpha + start)
    lo, hi = 0.5 * (alpha + dual.lo), 0.5 * (alpha + dual.hi)
    if free is not None:
        lo, hi = np.where(free, lo, half), np.where(free, hi, half)
    x = dual.coupling * half
    total: Mu = float(np.sum(x))
    if dual.group is not None:
        total = np.bincount(dual.group, x, np.size(dual.total)).astype(np.float64)
    halved = Dual(dual.sign, dual.lin, lo, hi, dual.coupling, total, dual.group)
    return dual.feasible(2.0 * solve(halved, np.clip(half, lo, hi)) - alpha)


def _scaled_with_delta(
    dual: Dual,
    value: float,
    past: Sequence[Past],
    products: Products | None,
    delta: str,
    solve: Solve | None,
) -> _ChosenDelta | None:
    """Scale the nearest solved point to the new box and choose its delta.

    ``dual``, ``value``: the new problem and its nu; ``past``: the solved points; ``products``:
    computes scores; ``delta``, ``solve``: see `Srbo`. Returns None if there is no solved point, no
    ``products``, an objective with a linear part, or a box or totals that are no multiples of the
    old ones.
    """
    point = nearest_point(value, past)
    if point is None or products is None or not _is_homogeneous(dual) or not np.isfinite(point.gap):
        return None
    total = total_factor(dual, point)
    start = scale_to_box(dual, point)
    if total is None or start is None:
        return None
    k, (alpha, scores, w_sq) = start
    others = [one for one in past if (one.value - point.value) * (value - point.value) < 0]
    last = nearest_point(point.value, others)
    before = None
    if delta == "small" and last is not None:
        found = scale_to_box(dual, last)
        before = found[1][0] if found is not None else None
    target = choose_alpha(dual, start[1], before, delta, solve)
    coef = dual.sign * (target - alpha)
    more = products(coef)
    gap, off = k**2 * max(point.gap, 0.0), k**2 * norm_sq_error(point)
    return _ChosenDelta(
        total / k,
        scores,
        w_sq,
        off,
        gap,
        inner_product(coef, scores),
        inner_product(coef, more),
        more,
    )


def _is_homogeneous(dual: Dual) -> bool:
    """Whether the objective is ``1/2 ||w||^2`` alone, with boxes from 0 and a nonzero total."""
    plain = dual.coupling is not None and dual.tube is None
    return plain and not np.any(dual.lin) and not np.any(dual.lo) and bool(np.all(dual.total))


def _check_delta(delta: str, solve: Solve | None) -> None:
    """Raise InputError for an unknown choice of delta, or one that needs a QP without a solver."""
    if delta not in DELTAS:
        raise InputError(f"delta must be greedy, small or full, got {delta!r}")
    if delta != "greedy" and solve is None:
        raise InputError(f"the {delta} choice of delta solves a QP: hand a solver in")
