"""The best multiplier for a point's w, found near the point's own multiplier in one pass.

P is piecewise linear in the multiplier. A smoothed solver leaves a multiplier in the interval that
minimises P, or close to it. Every shard returns the breakpoints of P nearest to that multiplier;
the middle of the interval, and P there, follow from the breakpoints.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bigscreen.numerics.order_statistic import middle_order_statistic, order_statistic
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual


@dataclass(frozen=True)
class Breakpoints:
    """The breakpoints of P as a function of one multiplier, near one value of the multiplier.

    ``values``, ``weights``: all breakpoints from ``low`` to ``high``, and the change of P's slope
    at each. ``left``, ``right``: the total weight of breakpoints below ``low`` and above ``high``.
    ``most``: the largest possible ``sum t alpha``.
    """

    values: FloatArray
    weights: FloatArray
    low: float
    high: float
    left: float
    right: float
    most: float

    @classmethod
    def near(
        cls, dual: Dual, scores: FloatArray, mu: FloatArray, max_side: int
    ) -> list[Breakpoints]:
        """Find the breakpoints of P near the multiplier ``mu`` (groups,), one instance per group.

        ``scores``: the rows' scores; a row has a breakpoint where it is at its hinge point. At most
        ``max_side`` breakpoints are kept on either side.
        """
        assert dual.coupling is not None
        values, weights, group = dual.breakpoints(scores)
        most = np.maximum(dual.coupling * dual.hi, dual.coupling * dual.lo)
        found = []
        for g, at in enumerate(mu.tolist()):
            own = weights > 0 if group is None else (weights > 0) & (group == g)
            rows = slice(None) if dual.group is None else dual.group == g
            total = float(np.sum(most[rows]))
            found.append(cls._of(values[own], weights[own], at, total, max_side))
        return found

    @classmethod
    def _of(
        cls, values: FloatArray, weights: FloatArray, at: float, most: float, max_side: int
    ) -> Breakpoints:
        """The breakpoints nearest to the multiplier ``at``, of one group.

        ``values``, ``weights``: all breakpoints of the group. At most ``max_side`` are kept on
        either side of ``at``; only the total weight of the others is kept. ``most``: see the class.
        """
        below, above = np.flatnonzero(values <= at), np.flatnonzero(values > at)
        near, left, right = [below, above], below[:0], above[:0]
        low, high = -np.inf, np.inf
        if len(below) > max_side:
            order = below[np.argpartition(values[below], -max_side)]
            left, near[0] = order[:-max_side], order[-max_side:]
            low = float(np.min(values[near[0]]))
        if len(above) > max_side:
            order = above[np.argpartition(values[above], max_side)]
            near[1], right = order[:max_side], order[max_side:]
            high = float(np.max(values[near[1]]))
        both = np.concatenate(near)
        beyond = float(np.sum(weights[left])), float(np.sum(weights[right]))
        return cls(values[both], weights[both], low, high, *beyond, most)

    @classmethod
    def join(cls, parts: Iterable[Breakpoints]) -> Breakpoints:
        """Join the breakpoints of the shards ``parts`` in the interval that every shard covers."""
        parts = list(parts)
        low, high = max(part.low for part in parts), min(part.high for part in parts)
        values = np.concatenate([part.values for part in parts])
        weights = np.concatenate([part.weights for part in parts])
        out, over = values < low, values > high
        left = sum(part.left for part in parts) + float(np.sum(weights[out]))
        right = sum(part.right for part in parts) + float(np.sum(weights[over]))
        keep = ~(out | over)
        most = sum(part.most for part in parts)
        return cls(values[keep], weights[keep], low, high, left, right, most)

    def best(self, at: float, total: float, far: float) -> tuple[float, float, float]:
        """The middle of the interval of best multipliers, how P changes there, and a weight.

        ``at``: a multiplier, from which the change of P is counted. ``total``: the coupling's
        right-hand side. The weight is the total weight of breakpoints between the two, or within
        ``far`` of either. If the best interval lies outside the known breakpoints, the result is
        the last known one.
        """
        values, weights = self._all()
        threshold = self.most - total
        found = middle_order_statistic(values, weights, threshold)
        if not np.isfinite(found):
            return at, 0.0, 0.0
        slope = float(np.sum(weights[values <= at])) - threshold
        between = (values > min(at, found)) & (values <= max(at, found))
        turns = float(np.sum(weights[between] * np.abs(values[between] - found)))
        near = (values >= min(at, found) - far) & (values <= max(at, found) + far)
        return found, slope * (found - at) + turns, float(np.sum(weights[near]))

    def ends(self, total: float) -> tuple[float, float]:
        """An interval that holds all best multipliers, even if weights are rounded.

        ``total``: the coupling's right-hand side. An end outside the known breakpoints is infinite.
        """
        values, weights = self._all()
        threshold, doubt = self.most - total, 1e-9 * float(np.sum(weights))
        low = order_statistic(values, weights, threshold - doubt)
        high = order_statistic(values, weights, threshold + doubt)
        return (low if low > self.low else -np.inf, high if high < self.high else np.inf)

    def _all(self) -> tuple[FloatArray, FloatArray]:
        """Values and weights, with one breakpoint at either end for all breakpoints beyond it."""
        values = np.concatenate([[self.low], self.values, [self.high]])
        return values, np.concatenate([[self.left], self.weights, [self.right]])
