"""A shard's rows during a Newton solve, and the sums over them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.rows import Rows
from bigscreen.numerics.rows import FloatArray, njit
from bigscreen.problems.dual import AT_HI, AT_LO, AT_ZERO, FREE, Dual
from bigscreen.problems.point import SumLayout, by_term
from bigscreen.screening.regions import Ball

UNSET = np.int8(-1)
"""Side of a row that no pass has scored yet."""

SAVED = (
    *("ids", "scores", "ref", "side", "fixed", "side_sum", "side_lin", "below"),
    # A shard can move to another worker between a trial and its end.
    *("need", "trial", "held", "picked"),
)
"""What a checkpoint holds of a state; the rest follows from the data."""


@dataclass
class NewtonShard:
    """A shard's rows during a solve; arrays of shape (rows,) unless said otherwise.

    ``X`` is None where the rows are read again in every pass (they do not fit in memory); ``lent``:
    it has all rows that were opened, one in ``stride``, as other runs look at others of them.
    ``scores``, the extras' part included, were computed at the w number ``ref``; ``side`` is AT_LO,
    AT_HI, AT_ZERO, FREE (in a zone) or UNSET; ``fixed`` rows are screened: proved to stay on their
    side. ``side_sum`` (buckets, m + extras): V of rows at a side, by bucket; ``side_lin``
    (buckets,): their part of D's linear term, which is their H too. ``need``, ``trial``: rows of
    the last trial, their scores. ``held``: rows that the coordinator has; ``picked``: the last of
    them. ``most``, ``below`` (groups,): the shard's largest ``sum t alpha``
    and the weight of breakpoints of its fixed rows that lie below mu*. ``sample``: a few of all the
    shard's rows, of which rounding is seen; None where entries are what they are. ``curved``: the
    rows that products are with (``ZoneRows``), while a step lasts.
    """

    frame: SumLayout
    start: int
    ids: NDArray[np.int64]
    dual: Dual
    norms: FloatArray
    X: Any
    stride: int
    lent: bool
    scores: FloatArray
    ref: NDArray[np.int32]
    side: NDArray[np.int8]
    fixed: NDArray[np.bool_]
    side_sum: FloatArray
    side_lin: FloatArray
    most: FloatArray
    below: FloatArray
    sample: Any = None
    curved: Any = None
    need: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    trial: FloatArray = field(default_factory=lambda: np.empty((0, 2)))
    held: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    picked: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def visited(self) -> Dual:
        """The rows of the last trial."""
        return self.dual[span(self.need)]

    def compact(self) -> None:
        """Drop fixed rows: the arrays hold alive rows only from here on, named by ``ids``."""
        keep = np.flatnonzero(~self.fixed)
        if self.X is not None and not self.lent:
            self.X = self.X[keep]
        self.dual = self.dual[keep]
        self.ids, self.norms = self.ids[keep], self.norms[keep]
        self.scores, self.ref = self.scores[keep], self.ref[keep]
        self.side, self.fixed = self.side[keep], self.fixed[keep]
        self.need, self.trial = np.empty(0, np.int64), np.empty((0, 2))
        self.held, self.picked = np.empty(0, np.bool_), np.empty(0, np.int64)

    def rows(self, data: Rows, local: NDArray[np.int64]) -> Any:
        """Features of the rows at some places, ascending."""
        if self.X is not None:
            places = (self.ids[local] - self.start) // self.stride if self.lent else local
            return self.X[span(places)]
        return data.rows(self.ids[local])

    def distance(self, scores: FloatArray) -> FloatArray:
        """How far every row's G is from a kink at these scores."""
        return off_kink(self.dual, self.dual.lin - self.dual.sign * scores)

    def sizes(self) -> FloatArray:
        """What rows are measured by, weighted by their reach.

        Returns [sum weight, sum weight |p|, sum weight ||phi||^2, largest |p| + e, how far
        alpha = 0 is from its box, the most that ``sum t alpha`` can be in every group...].
        """
        dual = self.dual
        weight, lin = dual.reach, np.abs(dual.lin)
        sums = np.sum(weight), np.sum(weight * lin), np.sum(weight * self.norms**2)
        out = np.max(np.maximum(dual.lo, -dual.hi), initial=0.0)
        return np.array([*sums, np.max(lin + tube_of(dual), initial=0.0), out, *self.most])

    def moved_since(self, message: dict[str, Any]) -> FloatArray:
        """How far every row's score may be from the one it has: infinite where it never had one."""
        moved = message["travel"][self.ref] * self.norms + message["shift"][self.ref]
        return np.where(self.ref < 0, np.inf, moved)

    def intervals(self, message: dict[str, Any]) -> tuple[FloatArray, FloatArray]:
        """Intervals of every row's optimal score, widened by what lazy rows have moved."""
        norms = np.sqrt(self.norms**2 + self.frame.constant**2)
        # The multipliers have an interval of their own.
        scores = self.scores - self.frame.border(self.dual) @ message["multipliers"]
        slack = self.moved_since(message) + message["slack"]
        region: Ball = message["region"]
        return region.intervals(scores, norms, slack)

    def fix(self, message: dict[str, Any]) -> FloatArray:
        """Fix the rows that a region proves to stay on the side they are on.

        Returns [rows newly fixed at hi, rows newly fixed elsewhere].
        """
        dual, t = self.dual, self.dual.coupling
        lower, upper = self.intervals(message)
        decided = dual.decide(lower, upper, message["mu"])
        decided[self.fixed | (decided != self.side)] = FREE
        new = decided != FREE
        self.fixed |= new
        if t is not None:
            # A fixed row's breakpoints are on known sides of mu*: all later statistics keep that.
            most = np.maximum(t * dual.lo, t * dual.hi)
            lie_below = np.where(new, most - t * side_value(dual, decided), 0.0)
            group = np.zeros(len(dual), np.int8) if dual.group is None else dual.group
            self.below += by_term(group, lie_below, len(self.below))
        at_hi = np.count_nonzero(decided == AT_HI)
        return np.array([at_hi, np.count_nonzero(new) - at_hi], dtype=np.float64)

    def quantiles(self, message: dict[str, Any]) -> FloatArray:
        """Weight of a group's breakpoints below each of a grid of candidates for its multiplier.

        Returns [weight of lower ends at or below each candidate..., of upper ends..., the most that
        ``sum t alpha`` can be, the total weight].
        """
        g, grid = message["group"], message["grid"]
        lower, upper = self.intervals(message)
        free = ~self.fixed if self.dual.group is None else ~self.fixed & (self.dual.group == g)
        part = self.dual[free]
        one, weights, _ = part.breakpoints(lower[free])
        other, _, _ = part.breakpoints(upper[free])
        sums = []
        for ends in (np.minimum(one, other), np.maximum(one, other)):
            first = np.searchsorted(grid, ends)
            sums.append(np.cumsum(by_term(first, weights, len(grid) + 1)[:-1]) + self.below[g])
        return np.concatenate([*sums, [self.most[g], float(np.sum(weights)) + self.below[g]]])

    def side_loss(self, coefs: FloatArray, extras: FloatArray) -> FloatArray:
        """Loss of the rows not visited, at both ends of a segment: ``H - <V, w>``, exact.

        V and H cover all rows at a side; those among them that are visited are taken out again.
        """
        part = self.visited
        bound = side_value(part, self.side[self.need])
        visited = np.sum(part.linear(bound)) - (bound * part.sign) @ self.trial
        v, width = self.side_sum.sum(axis=0), len(coefs)
        losses: FloatArray = (
            self.side_lin.sum() - (v[:width] @ coefs + v[width:] @ extras) - visited
        )
        return losses


def flat(values: FloatArray) -> FloatArray:
    """The same numbers; where all are one as a read-only view that takes no memory."""
    if not len(values) or np.any(values != values[0]):
        return values
    return np.broadcast_to(np.float64(values[0]), values.shape)


def span(places: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Ascending places as a slice, for which nothing is copied, if they follow one another."""
    if len(places) and places[-1] - places[0] == len(places) - 1:
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def tube_of(dual: Dual) -> FloatArray:
    """Half the width of every row's tube (rows,)."""
    return np.zeros(len(dual)) if dual.tube is None else np.ascontiguousarray(dual.tube)


def off_kink(dual: Dual, z: FloatArray) -> FloatArray:
    """How far gradients z are from the nearest kink of their loss (rows,)."""
    size = np.abs(z)
    return size if dual.tube is None else np.abs(size - dual.tube)


def sides(dual: Dual, z: FloatArray, h: float) -> NDArray[np.int8]:
    """Where alpha is at gradients z (rows,): at an end, at 0 within the tube, or FREE."""
    tube: Any = 0.0 if dual.tube is None else dual.tube
    found = [z > tube + h, z < -tube - h, np.abs(z) < tube - h]
    if dual.curve is not None:
        found[0] &= np.isfinite(dual.hi)
        found[1] &= np.isfinite(dual.lo)
    return np.select(found, [AT_HI, AT_LO, AT_ZERO], FREE).astype(np.int8)


def side_value(dual: Dual, side: NDArray[np.int8]) -> FloatArray:
    """The value of alpha at a side; 0 in the zone and where no side is known yet."""
    return np.where(side == AT_HI, dual.hi, np.where(side == AT_LO, dual.lo, 0.0))


def zone_widths(dual: Dual, z: FloatArray, h: float) -> tuple[FloatArray, FloatArray]:
    """Of rows in a zone: how far alpha runs across it, and alpha at its middle (rows,) each.

    A tube has two zones, which overlap where it is narrower than h.
    """
    if dual.tube is None:
        return dual.hi - dual.lo, 0.5 * (dual.lo + dual.hi)
    upper = np.where(np.abs(z - dual.tube) <= h, dual.hi, 0.0)
    lower = np.where(np.abs(z + dual.tube) <= h, -dual.lo, 0.0)
    return upper + lower, 0.5 * (upper - lower)


def curvature(dual: Dual, z: FloatArray, h: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """How much rows of a zone curve the loss, and `zone_widths`, all 0 where no h matters."""
    if dual.curve is not None:
        return dual.reach, np.zeros(len(dual)), np.zeros(len(dual))
    width, middle = zone_widths(dual, z, h)
    return width / (2 * h), width, middle


@njit(cache=True, nogil=True)
def segment_losses(
    z: FloatArray,
    dz: FloatArray,
    lo: FloatArray,
    hi: FloatArray,
    tube: FloatArray,
    h: float,
    steps: FloatArray,
    losses: FloatArray,
    curve: FloatArray | None = None,
) -> None:
    """Smoothed (row 0) and plain (row 1) losses at ``z + t dz`` for every step length t."""
    for k in range(len(steps)):
        smooth, plain = 0.0, 0.0
        for i in range(len(z)):
            g = z[i] + steps[k] * dz[i]
            # The hinge above the tube and, with a box below 0, the one under it.
            over = g - tube[i]
            if curve is not None:
                under = -g - tube[i]
                if over > 0.0 and hi[i] > 0.0:
                    plain += over * over / (2 * curve[i])
                elif under > 0.0 and lo[i] < 0.0:
                    plain += under * under / (2 * curve[i])
                continue
            if over > 0.0:
                plain += hi[i] * over
            if over >= h:
                smooth += hi[i] * over
            elif over > -h:
                smooth += hi[i] * (over + h) * (over + h) / (4 * h)
            if lo[i] != 0.0:
                under = -g - tube[i]
                if under > 0.0:
                    plain -= lo[i] * under
                if under >= h:
                    smooth -= lo[i] * under
                elif under > -h:
                    smooth -= lo[i] * (under + h) * (under + h) / (4 * h)
        if curve is not None:
            smooth = plain
        losses[0, k] += smooth
        losses[1, k] += plain
