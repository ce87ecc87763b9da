"""Points of a path on a kernel matrix: scores kept up to date, the certificate, and screening."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.dual import FREE, Dual, FloatArray
from bigscreen.dual_rounding import sensitivity
from bigscreen.dual_violation import unit, violation
from bigscreen.path_gram_matrix import EPS, Gram
from bigscreen.path_stage import Solved
from bigscreen.screening.fill import greedy
from bigscreen.screening.past import Scores
from bigscreen.screening.regions import Ball

WORTH = 0.1
"""Part of the rows that screening must remove: the smaller square has to be copied for it."""


class Kept:
    """The last w, as the coefficients of its rows, and its scores.

    Attributes
    ----------
    coef, scores : float64 (n,)
        ``s alpha``, and ``K @ coef``. Never written to: points of the path keep them.
    drift : float
        What rounding of sums can have done to a score, as a part of ``||phi_i||``.
    """

    def __init__(self, gram: Gram) -> None:
        self.gram = gram
        self.coef, self.scores, self.drift = np.zeros(len(gram)), np.zeros(len(gram)), 0.0

    def move(self, coef: FloatArray) -> None:
        """Go on to another w: from the nearest multiple of this one, by the rows that differ.

        What scaling rounds away is no difference; it is reckoned in as drift.
        """
        factors = {1.0}
        k = int(np.argmax(np.abs(self.coef)))
        if self.coef[k] != 0.0:
            factors.add(float(coef[k] / self.coef[k]))
        moved, factor, rest = np.flatnonzero(coef), 0.0, coef
        for each in factors:
            change = coef - each * self.coef
            change[np.abs(change) <= 4 * EPS * np.abs(coef)] = 0.0
            rows = np.flatnonzero(change)
            if len(rows) < len(moved):
                moved, factor, rest = rows, each, change
        scores, drift = factor * self.scores, abs(factor) * self.drift
        if factor != 1.0:
            drift += 8 * EPS * float(np.abs(coef) @ self.gram.norms)
        drift += self.gram.add(scores, moved, rest[moved])
        self.coef, self.scores, self.drift = coef, scores, drift


def certified(dual: Dual, alpha: FloatArray, kept: Kept) -> Solved:
    """The point at alpha, whose w is the one kept, with its gap over all rows."""
    coef, scores = kept.coef, kept.scores
    slack = kept.gram.slack(scores, coef, kept.drift)
    mu = 0.0 if dual.coupling is None else dual.multiplier(scores)
    gap = dual.frank_wolfe_gap(alpha, scores, mu)
    w_sq = float(coef @ scores)
    w_sq = max(w_sq, 0.0) if kept.gram.psd else w_sq
    value = dual.value(alpha, w_sq)
    band = slack + 2 * EPS * (np.abs(dual.lin) + np.abs(scores) + np.abs(dual.spread_mu(mu)))
    room = sensitivity(dual, alpha, dual.gradient(scores, mu), band)
    rounding = float(room @ band) + 64 * EPS * gap
    if dual.coupling is not None:
        rounding += float(np.sum(np.abs(mu * missing(dual, alpha))))
    found = Solved(alpha, Scores(scores, slack), w_sq, value + gap, value, mu, gap, rounding)
    if kept.gram.psd:
        return found
    off = 2.0 * unit(dual) * float(np.max(slack, initial=0.0))
    return found.stationary(violation(dual, alpha, scores), off)


def missing(dual: Dual, alpha: FloatArray) -> Any:
    """What alpha lacks of the coupling's totals: a float, or (groups,)."""
    assert dual.coupling is not None
    x = dual.coupling * alpha
    if dual.group is None:
        return dual.total - float(np.sum(x))
    return dual.total - np.bincount(dual.group, x, np.size(dual.total))


def left_to(dual: Dual, alpha: FloatArray, rows: NDArray[np.int64]) -> Dual:
    """The problem of these rows where all others stay."""
    part = dual[rows]
    if dual.coupling is None:
        return part
    others = alpha.copy()
    others[rows] = 0.0
    return replace(part, total=missing(dual, others))


def near_last(
    dual: Dual,
    alpha: FloatArray,
    live: NDArray[np.int64],
    coef: FloatArray,
    scores: Callable[[], FloatArray],
) -> FloatArray:
    """The alpha given; or one that is as near to the last, in which fewer rows move.

    What a coupling's total has changed by may be spread over all rows, those at 0 too, and every
    row that moves costs a row of K: here free rows take it. A start that is farther from the last
    point than this one was not made from it, and is left alone.

    Parameters
    ----------
    dual : Dual
        Of all rows.
    alpha : float64 (n,)
        Feasible.
    live : int64 (rows,)
        Rows that may move.
    coef : float64 (n,)
        ``s alpha`` of the last point.
    scores : callable
        Its scores (n,), where they are needed.
    """
    if dual.coupling is None or not len(live):
        return alpha
    part, before = left_to(dual, alpha, live), (dual.sign * coef)[live]
    near = np.clip(before, part.lo, part.hi)
    try:
        near = part.feasible(near, (near <= part.lo) | (near >= part.hi))
    except ValueError:
        near = greedy(part, near, scores()[live])
    farther = float(np.sum(np.abs(alpha[live] - before)))
    if farther > (1 + 1e-6) * float(np.sum(np.abs(near - before))):
        return alpha
    start = alpha.copy()
    start[live] = near
    return start


def screened(
    dual: Dual, point: Solved, live: NDArray[np.int64], norms: FloatArray
) -> NDArray[np.int64]:
    """The live rows without those that are, and by the gap ball stay, where they are.

    The gap is that of the live rows: of the problem that has all others fixed, whose optimum is
    the same. All of them are returned where too few would go.
    """
    part, alpha = left_to(dual, point.alpha, live), point.alpha[live]
    values, slack = point.scores
    assert isinstance(slack, np.ndarray)
    scores = values[live]
    gap = part.frank_wolfe_gap(alpha, scores, point.mu) + point.rounding
    lower, upper = Ball(float(np.sqrt(gap))).intervals(scores, norms[live], slack[live])
    mu: Any = (0.0, 0.0) if dual.coupling is None else part.multiplier_interval(lower, upper)
    decided = part.decide(lower, upper, mu)
    stay = (decided == FREE) | (alpha != part.settled(decided, alpha))
    return live[stay] if np.count_nonzero(stay) <= (1 - WORTH) * len(live) else live
