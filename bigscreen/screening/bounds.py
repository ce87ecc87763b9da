"""Building blocks of screening rules for paths, each rounded to the safe side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bigscreen.numerics.order_statistic import order_statistic
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual, Mu
from bigscreen.screening.regions import Past, Products, Scores

ROUNDING = 1e-13
"""Bound on the rounding error of a float64 sum, as a fraction of the sum of its terms' absolute
values. It is added to every squared radius of a screening region, which is then at least 3e-7
||w||; that also covers the rounding of single scores and intervals."""


def safe_radius(square: float, size: float) -> float:
    """The radius of a ball, rounded up; ``square``: r^2; ``size``: sum of its terms' magnitudes."""
    return float(np.sqrt(max(square, 0.0) + ROUNDING * size)) * (1 + 1e-14)


def scale_scores(scores: Scores, factor: float) -> Scores:
    """The scores of the weight vector ``factor w``, from the scores of w."""
    return Scores(factor * scores.values, abs(factor) * scores.slack)


def total_slack(coef: FloatArray, slack: FloatArray | float) -> float:
    """Bound on the error of ``sum_j coef_j u_j`` if each score u_j may be off by its slack."""
    size = np.abs(coef)
    return float(size @ slack) if np.ndim(slack) else float(np.sum(size)) * float(slack)


def inner_product(coef: FloatArray, scores: Scores) -> tuple[float, float]:
    """The inner product of two weight vectors, and a bound on its error.

    One is ``sum_j coef_j phi_j``; of the other these are the scores u, so that the product is
    ``sum_j coef_j u_j``.
    """
    value = float(coef @ scores.values)
    rounding = ROUNDING * float(np.abs(coef) @ np.abs(scores.values))
    return value, total_slack(coef, scores.slack) + rounding


def norm_sq_error(past: Past) -> float:
    """Bound on the error of ``past.w_sq``, the ``||w||^2`` of a solved point of the path."""
    return total_slack(past.alpha, past.scores.slack) + ROUNDING * past.w_sq


def nearest_point(value: float, past: Sequence[Past]) -> Past | None:
    """Return the solved point whose C or nu is nearest to ``value``, compared by ratio.

    ``past``: the solved points of a path. Returns None if there are none.
    """
    return min(past, key=lambda one: abs(np.log(value / one.value)), default=None)


def box_factor(dual: Dual, past: Past) -> float | None:
    """Return the k for which every row's box is k times its box at ``past``, a solved point.

    None if there is no such k. (A held-out row's box is 0 in both.)
    """
    before = past.dual
    if not len(dual):
        return None
    largest = int(np.argmax(before.hi - before.lo))
    width = float(before.hi[largest] - before.lo[largest])
    if width <= 0:
        return None
    k = float(dual.hi[largest] - dual.lo[largest]) / width
    same = _is_multiple(k, dual.hi, before.hi) and _is_multiple(k, dual.lo, before.lo)
    return k if same else None


def total_factor(dual: Dual, past: Past) -> float | None:
    """Return the k for which the coupling's totals are k times those at ``past``.

    None if there is no such k, no coupling, or an old total of 0.
    """
    new, old = np.atleast_1d(dual.total), np.atleast_1d(past.dual.total)
    if dual.coupling is None or not np.all(old):
        return None
    k = float(new[0] / old[0])
    return k if np.all(np.abs(new - k * old) <= 1e-12 * np.abs(new)) else None


def gap_bound(dual: Dual, alpha: FloatArray, scores: Scores) -> float:
    """Upper bound on the Frank-Wolfe gap of a feasible alpha, from the scores of w(alpha).

    ``sum (G + slack)+ (hi - alpha) + (slack - G)+ (alpha - lo)``: a row whose alpha is certainly
    the best one for its gradient adds nothing.
    """
    values = scores.values
    mu = dual.multiplier(values) if dual.coupling is not None else 0.0
    slack = scores.slack + _gradient_error(dual, values, mu)
    G = dual.gradient(values, mu)
    parts = [(G, dual.hi, alpha, dual.lo)]
    if dual.tube is not None:
        # alpha is the difference of two variables, each with its own gradient and box.
        zero = np.zeros(1)
        parts = [
            (G - dual.tube, dual.hi, np.maximum(alpha, 0.0), zero),
            (-G - dual.tube, -dual.lo, np.maximum(-alpha, 0.0), zero),
        ]
    gap = 0.0
    for gradient, most, at, smallest in parts:
        up, down = gradient + slack, slack - gradient
        gap += float(np.maximum(up, 0.0, out=up) @ (most - at))
        gap += float(np.maximum(down, 0.0, out=down) @ (at - smallest))
    return gap + _coupling_error(dual, alpha, values, mu)


def dual_lower_bound(dual: Dual, scores: Scores) -> float:
    """Lower bound on ``<a, w(alpha)> - p . alpha + e . |alpha|`` over all feasible alpha.

    ``scores`` are the scores of the weight vector a. By duality the bound is minus the primal's
    losses at a, for any multiplier.
    """
    values = scores.values
    mu = dual.multiplier(values) if dual.coupling is not None else 0.0
    slack = scores.slack + _gradient_error(dual, values, mu)
    losses = dual.losses(values - slack, mu)
    np.maximum(losses, dual.losses(values + slack, mu), out=losses)
    constant = float(np.sum(mu * dual.total))
    size = abs(constant) + float(np.sum(np.abs(losses)))
    return -constant - float(np.sum(losses)) - ROUNDING * size


def _is_multiple(k: float, new: FloatArray, old: FloatArray) -> bool:
    """Whether ``new`` (n,) equals ``k * old`` (n,) up to a relative 1e-12."""
    new, old = (_collapse(new), _collapse(old)) if new.strides == old.strides else (new, old)
    off = k * old
    off -= new
    return bool(np.all(np.abs(off, out=off) <= 1e-12 * np.abs(new)))


def _collapse(values: FloatArray) -> FloatArray:
    """Return the first element of an array with stride 0 (all values equal), else the array."""
    return values[:1] if values.strides == (0,) else values


def _largest(values: FloatArray) -> float:
    """``max |values|``, without a temporary array."""
    values = _collapse(values)
    return max(float(np.max(values)), -float(np.min(values))) if len(values) else 0.0


def _gradient_error(dual: Dual, values: FloatArray, mu: Mu) -> float:
    """Bound on the rounding error of any row's gradient, at scores ``values`` and multiplier mu.

    A gradient's terms are p, a score and a multiplier.
    """
    return 1e-15 * (_largest(values) + _largest(dual.lin) + _largest(np.atleast_1d(mu)))


def _coupling_error(dual: Dual, alpha: FloatArray, values: FloatArray, mu: Mu) -> float:
    """Bound on the error of the gap if alpha keeps the coupling's total only up to rounding.

    ``values``: the scores of w(alpha).
    """
    if dual.coupling is None:
        return 0.0
    x = dual.coupling * alpha
    totals = np.atleast_1d(np.asarray(dual.total, dtype=np.float64))
    sums = np.bincount(dual.group, x, len(totals)) if dual.group is not None else [np.sum(x)]
    largest = _largest(values) + _largest(dual.lin) + _largest(np.atleast_1d(mu))
    return 2.0 * largest * float(np.sum(np.abs(totals - sums)))


ScoredAlpha = tuple[FloatArray, Scores, float]
"""A dual point: alpha (n,), the scores of w(alpha), and approximately ``||w(alpha)||^2``."""


def scale_to_box(dual: Dual, past: Past) -> tuple[float, ScoredAlpha] | None:
    """Scale a solved point's alpha with the box; the coupling's total need not be kept.

    ``dual``: the new problem; ``past``: the solved point. Returns None if the new box is not a
    multiple of the old one.

    Returns
    -------
    k : float
        The new box is k times the old one.
    start : ScoredAlpha
        The scaled alpha, with the scores of its w.
    """
    k = box_factor(dual, past)
    if k is None:
        return None
    alpha = np.clip(k * past.alpha, dual.lo, dual.hi)
    return k, (alpha, scale_scores(past.scores, k), k**2 * past.w_sq)


def carry_alpha(dual: Dual, past: Past, products: Products | None) -> ScoredAlpha | None:
    """Make a feasible alpha of the new problem that is close to the alpha at ``past``.

    Scaling alpha costs nothing. If scaling with the total leaves the box, alpha is scaled with the
    box, and the total is filled up greedily, which costs a product for new scores. ``dual``: the
    new problem; ``past``: a solved point; ``products``: computes scores. Returns None if alpha
    cannot be scaled, or scores are needed and ``products`` is None.
    """
    if not np.any(dual.total):
        scaled_up = scale_to_box(dual, past)
        return scaled_up[1] if scaled_up is not None else None
    k = total_factor(dual, past)
    if k is not None:
        alpha = k * past.alpha
        if np.all(alpha <= dual.hi * (1 + 1e-13)) and np.all(alpha >= dual.lo - 1e-13 * dual.hi):
            alpha = np.clip(alpha, dual.lo, dual.hi)
            return alpha, scale_scores(past.scores, k), k**2 * past.w_sq
    start = scale_to_box(dual, past)
    if start is None or products is None:
        return None
    _, (alpha, scores, w_sq) = start
    return add_scores(dual, (alpha, scores, w_sq), fill_total(dual, alpha, scores.values), products)


def add_scores(
    dual: Dual, start: ScoredAlpha, alpha: FloatArray, products: Products
) -> ScoredAlpha:
    """Make the dual point of another alpha near ``start``, at the cost of one product.

    ``alpha`` (n,): the other alpha; ``products``: computes scores. The scores of the difference are
    added to the scores of ``start``. The returned ``||w||^2`` is an upper bound.
    """
    before, scores, w_sq = start
    coef = dual.sign * (alpha - before)
    more = products(coef)
    added = Scores(scores.values + more.values, scores.slack + more.slack)
    cross, square = inner_product(coef, scores)[0], inner_product(coef, more)[0]
    return alpha, added, w_sq + 2 * abs(cross) + abs(square)


def fill_total(dual: Dual, alpha: FloatArray, scores: FloatArray) -> FloatArray:
    """Change alpha to have the coupling's total, in as few rows as possible.

    ``scores`` (n,): the scores of w(alpha). The rows with the largest gain, or least loss, by their
    gradient change first: it is the step that a linear program would make from an optimal alpha.
    """
    t = dual.coupling
    if t is None:
        return alpha
    x, gain = t * alpha, (dual.lin - dual.sign * scores) / t
    low, high = np.minimum(t * dual.lo, t * dual.hi), np.maximum(t * dual.lo, t * dual.hi)
    totals = np.atleast_1d(np.asarray(dual.total, dtype=np.float64))
    for g, total in enumerate(totals):
        own = slice(None) if dual.group is None else np.flatnonzero(dual.group == g)
        part = x[own]
        missing = float(total - np.sum(part))
        way = 1.0 if missing > 0 else -1.0
        room = high[own] - part if way > 0 else part - low[own]
        cost = -way * gain[own]
        last = order_statistic(cost, room, abs(missing))
        step = np.where(cost < last, room, 0.0)
        # The rows with the same cost as the last one fill up what is left, in their order.
        equal = np.flatnonzero(cost == last)
        before = float(np.sum(step)) + np.cumsum(room[equal]) - room[equal]
        step[equal] = np.clip(abs(missing) - before, 0.0, room[equal])
        x[own] = part + way * step
    # (The sums have been rounded: make them feasible again.)
    return dual.feasible(t * x)
