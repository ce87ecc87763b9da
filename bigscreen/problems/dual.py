"""The dual form that all support vector machines share: objectives, gap and multipliers.

Every problem is written as (maths.md 1: ``s`` sign, ``p`` lin, ``e`` tube, ``q`` curve)

    min over alpha   1/2 || sum_i s_i alpha_i phi_i ||^2  -  p . alpha  +  e . |alpha|
                     + 1/2 sum_i q_i alpha_i^2
    subject to       lo_i <= alpha_i <= hi_i   and, with a coupling,
                     sum_{i in g} t_i alpha_i = total_g   for every group g

with ``w(alpha) = sum_i s_i alpha_i phi_i`` and the reduced gradient
``G_i = p_i - s_i u_i - t_i mu_g``, ``u_i = <w, phi_i>`` the score, ``mu`` the multiplier.
The tube ``e_i`` is the half-width within which a regression forgives an error. Textbooks have two
dual variables for each row of a regression; here one variable is their difference (at the optimum
one of the two is 0), and ``lo_i <= 0 <= hi_i``. The loss of a row is
``max over a in the box of G_i a - e_i |a| - q_i a^2 / 2``; the primal is
``P(w, mu) = 1/2 ||w||^2 + mu . total + sum of losses``. A curve ``q_i > 0`` makes squared losses:
the box of a row with a weight then ends at 0 or at infinity, and the row's loss is
``max(0, G_i - e_i)^2 / (2 q_i)`` above the tube.

This module knows no screening rule and no solver: a rule computes intervals of scores, and
``Dual.decide`` finds the dual variables that these intervals fix at one end of their box.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.order_statistic import middle_order_statistic, order_statistic
from bigscreen.numerics.rows import FloatArray

AT_LO, AT_HI, FREE, AT_ZERO = np.int8(0), np.int8(1), np.int8(2), np.int8(3)
"""Decisions about a dual variable: it is at the lower or upper end of its box, undecided, or 0."""

Mu = float | FloatArray
"""The multiplier of the coupling: a float, or float64 (groups,) if rows have groups."""

Statistic = Callable[[FloatArray, FloatArray, float], float]
"""A function of values, their weights and a threshold, such as a weighted order statistic."""


@dataclass(frozen=True)
class Dual:
    """The dual problem of a set of rows: one variable a row, all arrays of shape (rows,).

    Parameters
    ----------
    sign, lin, lo, hi : float64 arrays
        ``s`` (+-1), ``p`` and the box; may be views with stride 0 if they are constant.
    coupling : float64 array or None
        ``t`` (+-1) of the equality constraint ``sum t_i alpha_i = total``; None: there is none.
    total : float, or float64 (groups,)
        Right-hand side of the coupling over all rows of the problem, even if this object holds
        only a part of them.
    group : int8 array or None
        The group of every row, if each group has a coupling of its own; None: one group.
    tube : float64 array or None
        ``e``, not negative; None: all 0.
    curve : float64 array or None
        ``q``, positive; None: all 0. With a curve every end of a box is 0 or infinite.
    """

    sign: FloatArray
    lin: FloatArray
    lo: FloatArray
    hi: FloatArray
    coupling: FloatArray | None = None
    total: Mu = 0.0
    group: NDArray[np.int8] | None = None
    tube: FloatArray | None = None
    curve: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.sign)

    def __getitem__(self, rows: Any) -> Dual:
        """The dual restricted to these rows (a slice or an index array)."""
        given = self.coupling, self.group, self.tube, self.curve
        coupling, group, tube, curve = (None if each is None else each[rows] for each in given)
        box = self.lo[rows], self.hi[rows]
        return Dual(self.sign[rows], self.lin[rows], *box, coupling, self.total, group, tube, curve)

    @property
    def step_signs(self) -> FloatArray:
        """The sign of every row in a pair step (rows,): t with a coupling, s without one."""
        return self.sign if self.coupling is None else self.coupling

    @property
    def reach(self) -> FloatArray:
        """The largest ``|alpha|`` in the box (rows,): how fast a row's loss can grow with G.

        With a curve, whose box is infinite: the growth of ``|alpha|`` per unit of G. 0 for rows
        whose box is a single point.
        """
        if self.curve is None:
            return np.maximum(np.abs(self.lo), np.abs(self.hi))
        # (A curve too large for float64 does not make this 0: its row has a weight.)
        with np.errstate(divide="ignore"):
            steep = np.maximum(1.0 / self.curve, np.finfo(np.float64).tiny)
        return np.where(self.hi > self.lo, steep, 0.0)

    def best(self, gradient: FloatArray) -> FloatArray:
        """The alpha (rows,) that attains each row's squared loss at these gradients G (rows,)."""
        assert self.curve is not None
        over: Any = np.abs(gradient) if self.tube is None else np.abs(gradient) - self.tube
        size = np.maximum(over, 0.0) / self.curve
        found: FloatArray = np.clip(np.copysign(size, gradient), self.lo, self.hi)
        return found

    def spread_mu(self, mu: Mu) -> Mu:
        """The multiplier of each row's group (rows,); without groups ``mu`` itself, a float."""
        return mu if self.group is None else np.asarray(mu, dtype=np.float64)[self.group]

    def gradient(self, scores: FloatArray, mu: Mu = 0.0) -> FloatArray:
        """Reduced gradient ``G = p - s u - t mu`` (rows,) at the scores u (rows,)."""
        gradient = self.lin - self.sign * scores
        if self.coupling is not None and np.any(mu):
            gradient -= self.coupling * self.spread_mu(mu)
        return gradient

    def losses(self, scores: FloatArray, mu: Mu = 0.0) -> FloatArray:
        """Return the primal's loss of every row (rows,), at the scores of w and the multiplier mu.

        For a C-SVC it is the hinge loss times C and the row's weight.
        """
        G = self.gradient(scores, mu)
        if self.curve is not None:
            # (At the best alpha the quadratic part is half of the linear part.)
            return self.bend(self.best(G))
        if self.tube is None:
            return np.maximum(self.hi * G, self.lo * G)
        return self.hi * np.maximum(G - self.tube, 0.0) + self.lo * np.minimum(G + self.tube, 0.0)

    def primal(self, scores: FloatArray, w_sq: float, mu: Mu = 0.0) -> float:
        """P(w, mu) for the scores of w and ``w_sq = ||w||^2``."""
        return 0.5 * w_sq + float(np.sum(mu * self.total)) + float(np.sum(self.losses(scores, mu)))

    def value(self, alpha: FloatArray, w_sq: float) -> float:
        """Compute D(alpha) = p . alpha - e . |alpha| - 1/2 q . alpha^2 - 1/2 ||w(alpha)||^2.

        ``w_sq``: ``||w(alpha)||^2``.
        """
        # Not np.dot: on long arrays BLAS wakes its threads for it, and then they wait for work.
        value = float(np.sum(self.linear(alpha))) - 0.5 * w_sq
        return value if self.curve is None else value - float(np.sum(self.bend(alpha)))

    def linear(self, alpha: FloatArray) -> FloatArray:
        """Every row's ``p alpha - e |alpha|`` (rows,)."""
        value = self.lin * alpha
        return value if self.tube is None else value - self.tube * np.abs(alpha)

    def bend(self, alpha: FloatArray) -> FloatArray:
        """Every row's ``q alpha^2 / 2`` (rows,); the problem must have a curve."""
        assert self.curve is not None
        return 0.5 * self.curve * alpha**2

    def slacks(self, alpha: FloatArray, scores: FloatArray, mu: Mu = 0.0) -> FloatArray:
        """Every row's part of the Frank-Wolfe gap (rows,), at least 0.

        ``scores``: the scores of w(alpha).
        """
        G = self.gradient(scores, mu)
        if self.curve is not None:
            # G a - e |a| - q a^2 / 2 at the best a less its value at alpha, written with the
            # curve and the slope at the best a, so that no terms cancel.
            best = self.best(G)
            tube: Any = 0.0 if self.tube is None else self.tube
            slope = G - self.curve * best
            flat = slope * (best - alpha) + tube * (np.abs(alpha) - np.abs(best))
            left: FloatArray = np.maximum(0.5 * self.curve * (best - alpha) ** 2 + flat, 0.0)
            return left
        if self.tube is None:
            up = np.maximum(G, 0.0) * (self.hi - alpha)
            return up + np.maximum(-G, 0.0) * (alpha - self.lo)
        # alpha is the difference of two variables, each with its own gradient and box.
        gap = np.zeros(len(self))
        pair = ((G - self.tube, self.hi, alpha), (-G - self.tube, -self.lo, -alpha))
        for gradient, most, part in pair:
            part = np.maximum(part, 0.0)
            gap += np.maximum(gradient, 0.0) * (most - part) + np.maximum(-gradient, 0.0) * part
        return gap

    def frank_wolfe_gap(self, alpha: FloatArray, scores: FloatArray, mu: Mu = 0.0) -> float:
        """``sum G+ (hi - alpha) + G- (alpha - lo)`` for the scores of w(alpha).

        Equals ``P(w(alpha), mu) - D(alpha)`` for every feasible alpha.
        """
        return float(np.sum(self.slacks(alpha, scores, mu)))

    def breakpoints(
        self, scores: FloatArray
    ) -> tuple[FloatArray, FloatArray, NDArray[np.int8] | None]:
        """The breakpoints of P as a function of mu: the mu at which each row is at its hinge point.

        Returns
        -------
        values : float64 (rows,), or (2 rows,) with a tube
            ``v = (p -+ e - s u) / t``.
        weights : float64, one for each value
            ``|t| (hi - lo)``; with a tube ``|t| hi`` and ``|t| (-lo)``.
        group : int8, one for each value, or None
        """
        if self.coupling is None:
            raise ValueError("a problem without coupling has no multiplier")
        if self.curve is not None:
            raise ValueError("squared losses have no breakpoints")
        size, rest = np.abs(self.coupling), self.lin - self.sign * scores
        if self.tube is None:
            return rest / self.coupling, size * (self.hi - self.lo), self.group
        values = np.concatenate([rest - self.tube, rest + self.tube]) / np.tile(self.coupling, 2)
        weights = np.concatenate([size * self.hi, size * -self.lo])
        return values, weights, None if self.group is None else np.tile(self.group, 2)

    @property
    def threshold(self) -> Mu:
        """The cumulative weight of breakpoints at which the best multiplier lies (maths.md 3)."""
        if self.coupling is None:
            raise ValueError("a problem without coupling has no multiplier")
        most = np.maximum(self.coupling * self.hi, self.coupling * self.lo)
        if self.group is None:
            return float(np.sum(most)) - float(np.sum(self.total))
        sums = np.bincount(self.group, most, np.size(self.total)).astype(np.float64)
        return sums - self.total

    def multiplier(self, scores: FloatArray) -> Mu:
        """Return the mu that minimises P(w, mu): a weighted order statistic of the breakpoints.

        ``scores``: of w, (rows,). If a whole interval of mu minimises P (as with equal class
        weights and every alpha at its bound), it is the middle of the interval, as in LIBSVM: an
        end of it may predict one class for every row.
        """
        return self._each_group(middle_order_statistic, *self.breakpoints(scores))

    def multiplier_interval(self, lower: FloatArray, upper: FloatArray) -> tuple[Mu, Mu]:
        """An interval that holds every mu* if each optimal score lies in ``[lower, upper]``.

        A row's breakpoint is monotone in its score, so the interval of the score gives one of the
        breakpoint, and a weighted order statistic is monotone in its values. The two statistics
        are taken on either side of the threshold so that rounding of the weights cannot exclude
        mu*.
        """

        def least(values: FloatArray, weights: FloatArray, threshold: float) -> float:
            """Lower bound of a weighted order statistic whose weights may be rounded."""
            return order_statistic(values, weights, threshold - 1e-9 * float(np.sum(weights)))

        def most(values: FloatArray, weights: FloatArray, threshold: float) -> float:
            """Upper bound of a weighted order statistic whose weights may be rounded."""
            return order_statistic(values, weights, threshold + 1e-9 * float(np.sum(weights)))

        one, weights, group = self.breakpoints(lower)
        other, _, _ = self.breakpoints(upper)
        low = self._each_group(least, np.minimum(one, other), weights, group)
        high = self._each_group(most, np.maximum(one, other), weights, group)
        # A gradient with a multiplier is rounded twice: the last bit must not decide about a row
        # whose breakpoint is the multiplier itself.
        size = max(_max_finite(one), _max_finite(other))
        size += 0.0 if self.tube is None else float(np.max(self.tube, initial=0.0))
        return low - 1e-15 * size, high + 1e-15 * size

    def _each_group(
        self,
        statistic: Statistic,
        values: FloatArray,
        weights: FloatArray,
        group: NDArray[np.int8] | None,
    ) -> Mu:
        """Apply ``statistic`` to the values and weights of each group, at the group's `threshold`.

        Returns a float, or float64 (groups,) if rows have groups.
        """
        threshold = self.threshold
        if group is None:
            return statistic(values, weights, float(np.sum(threshold)))
        # (A Boolean mask with random entries costs ten times as much as an index array.)
        own = [np.flatnonzero(group == g) for g in range(np.size(self.total))]
        parts = zip(own, np.asarray(threshold), strict=True)
        return np.array([statistic(values[g], weights[g], float(at)) for g, at in parts])

    def decide(
        self, lower: FloatArray, upper: FloatArray, mu: tuple[Mu, Mu] = (0.0, 0.0)
    ) -> NDArray[np.int8]:
        """Find the dual variables that intervals of the optimal scores fix at an end or at 0.

        Parameters
        ----------
        lower, upper : float64 (rows,)
            Bounds on each row's optimal score.
        mu : (low, high)
            Bounds on the optimal multiplier.

        Returns
        -------
        int8 array (rows,): ``AT_HI`` if G* > e for certain, ``AT_LO`` if G* < -e for certain,
        ``AT_ZERO`` if -e < G* < e for certain, else ``FREE``. A row whose box has no finite end on
        that side is ``FREE``.
        """
        one, other = self.sign * lower, self.sign * upper
        g_low, g_high = self.lin - np.maximum(one, other), self.lin - np.minimum(one, other)
        if self.coupling is not None:
            one, other = (self.coupling * self.spread_mu(end) for end in mu)
            g_low, g_high = g_low - np.maximum(one, other), g_high - np.minimum(one, other)
        tube: Any = 0.0 if self.tube is None else self.tube
        over, under = g_low > tube, g_high < -tube
        if self.curve is not None:
            over, under = over & np.isfinite(self.hi), under & np.isfinite(self.lo)
        decided = np.where(over, AT_HI, FREE)
        if self.tube is not None:
            decided = np.where((g_low > -tube) & (g_high < tube), AT_ZERO, decided)
        return np.where(under, AT_LO, decided)

    def with_decisions(self, decided: NDArray[np.int8], alpha: FloatArray) -> FloatArray:
        """Return alpha with every decided variable set to its value, which may break the coupling.

        ``decided`` (rows,): decisions as `decide` returns them.
        """
        rest = np.where(decided == AT_ZERO, 0.0, alpha)
        return np.where(decided == AT_HI, self.hi, np.where(decided == AT_LO, self.lo, rest))

    def decisions_in_place(self, decided: NDArray[np.int8], alpha: FloatArray) -> NDArray[np.int8]:
        """Return the decisions about variables whose alpha has the decided value; else ``FREE``.

        ``decided`` (rows,): decisions as `decide` returns them.
        """
        return np.where(self.with_decisions(decided, alpha) == alpha, decided, FREE)

    def feasible(self, alpha: FloatArray, fixed: NDArray[np.bool_] | None = None) -> FloatArray:
        """A feasible alpha of the whole problem near this one: in its box, with the right total.

        If ``sum t alpha`` is too large, the terms above 0 shrink in proportion to their size, and
        if that is not enough, all terms in proportion to their room. A sum that is too small is
        raised in the same way. Rows of ``fixed`` do not change.

        Raises
        ------
        ValueError
            If the rows that may move cannot make up the total.
        """
        alpha = np.clip(alpha, self.lo, self.hi)
        if self.coupling is None:
            return alpha
        x, moved = self.coupling * alpha, False
        for g, total in enumerate(np.atleast_1d(self.total).tolist()):
            every: Any = slice(None) if self.group is None else np.flatnonzero(self.group == g)
            own = every
            if fixed is not None:
                free = ~fixed if self.group is None else ~fixed & (self.group == g)
                own = np.flatnonzero(free)
            first = float(np.sum(np.abs(x[every])))
            # Terms that are lowered by much leave a sum that is off by their rounding, which is
            # large next to what remains of them: a second and a third round remove it.
            for _ in range(4):
                excess, size = float(np.sum(x[every])) - total, float(np.sum(np.abs(x[every])))
                if abs(excess) <= 2.0**-50 * size:
                    break  # alpha at a bound stays there to the last bit
                way, t = (1.0 if excess > 0 else -1.0), self.coupling[own]
                # A sum that is too small is, with signs turned, one that is too large.
                low = np.where(way * t > 0, self.lo[own], -self.hi[own])
                before = x.copy()
                x[own], left = _lower_sum(way * x[own], low, abs(excess))
                x[own] *= way
                own = np.flatnonzero(x != before)
                if left > 1e-9 * max(1.0, abs(total), first):
                    raise ValueError("no alpha within the box has the coupling's total")
                moved = True
        return np.clip(self.coupling * x, self.lo, self.hi) if moved else alpha

    def with_exact_sums(self, alpha: FloatArray) -> FloatArray:
        """Return a feasible alpha rounded to multiples of a power of two, so that sums are exact.

        ``sum t alpha`` of every group is its total rounded to a multiple, with t the coupling.
        Variables far from both ends of their boxes change first. Returns alpha itself if the rows
        have too little room in their boxes.
        """
        assert self.coupling is not None
        largest = float(np.max(np.abs(alpha), initial=0.0))
        unit = 2.0 ** (np.frexp(largest)[1] - 53 + len(alpha).bit_length())
        ends = self.coupling * self.lo, self.coupling * self.hi
        low, high = np.ceil(np.minimum(*ends) / unit), np.floor(np.maximum(*ends) / unit)
        x = np.clip(np.rint(self.coupling * alpha / unit), low, high)
        for g, total in enumerate(np.rint(np.atleast_1d(self.total) / unit).tolist()):
            own: Any = slice(None) if self.group is None else np.flatnonzero(self.group == g)
            down, up = x[own] - low[own], high[own] - x[own]
            left = total - float(np.sum(x[own]))
            room = np.minimum(up if left > 0 else down, abs(left))
            # Rows far from both bounds change first, so that few rows reach or leave a bound.
            order = np.argsort(-np.minimum(up, down), kind="stable")
            before = np.cumsum(room[order]) - room[order]
            step = np.empty(len(room))
            step[order] = np.sign(left) * np.clip(abs(left) - before, 0.0, room[order])
            x[own] += step
            if float(np.sum(x[own])) != total:
                return alpha
        found: FloatArray = self.coupling * x * unit
        return found


def _lower_sum(x: FloatArray, low: FloatArray, excess: float) -> tuple[FloatArray, float]:
    """Lower x (rows,) by ``excess`` in sum, no entry below ``low`` (rows,).

    Entries above 0 are lowered first. Returns the new x, and the part of the excess that is left.
    """
    for end in (np.minimum(np.maximum(low, 0.0), x), low):
        room = float(np.sum(x - end))
        # (Infinite room cannot be shared in proportion; a total of 0 does not need it.)
        if excess > 0 and 0 < room < np.inf:
            part = min(1.0, excess / room)
            x = x - part * (x - end)
            # (Rounding of what was enough would lower all the other entries, too.)
            excess = max(0.0, excess - room)
    return x, excess


def _max_finite(values: FloatArray) -> float:
    """The largest absolute value among the finite values, or 0 if there is none."""
    if not len(values):
        return 0.0
    ends = abs(float(np.min(values))), abs(float(np.max(values)))
    if np.isfinite(ends).all():
        return max(ends)
    return float(np.max(np.abs(values[np.isfinite(values)]), initial=0.0))


def sensitivity(
    dual: Dual, alpha: FloatArray, gradient: FloatArray, slack: FloatArray | float
) -> FloatArray:
    """The largest change of the gap per unit of error in each row's score (rows,).

    A row whose alpha is certainly the best one for its gradient moves P and D equally. Any other
    row counts with the distance from its alpha to the farthest alpha that can be the best for a
    gradient within ``slack``. ``gradient`` (rows,): G at the computed scores; ``slack``: bound on
    its error.
    """
    tube: Any = 0.0 if dual.tube is None else dual.tube
    above, below = gradient > slack + tube, gradient < -slack - tube
    inside = np.zeros(len(dual), np.bool_) if dual.tube is None else np.abs(gradient) < tube - slack
    up, down = dual.hi - alpha, alpha - dual.lo
    return np.select([above, below, inside], [up, down, np.abs(alpha)], np.maximum(up, down))
