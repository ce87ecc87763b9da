"""The state of a shard during a Newton solve: its rows, their scores and sides, and sums."""

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

SAVED = {
    **{name: name for name in ("ids", "scores", "ref", "side", "fixed")},
    **{name: name for name in ("side_sum", "side_lin", "below")},
    # A shard can move to another worker between a trial and its end.
    **{"need": "visited", "trial": "trial", "held": "gathered", "picked": "picked"},
}
"""Names of arrays in a checkpoint, and the attributes of `NewtonShard` that they save.

All other attributes follow from the data."""


@dataclass
class NewtonShard:
    """A shard's rows during a Newton solve, with their scores and sides.

    Arrays have the shape (rows,) unless another is given.

    Parameters
    ----------
    frame : SumLayout
    start : int
        Number of the shard's first row in the data.
    ids : int64 (rows,)
        Row numbers in the data, ascending.
    dual : Dual
    norms : float64 (rows,)
        ``||phi||`` of every row.
    X : array or None
        The rows; None if they are read again in every pass (they do not fit in memory).
    stride : int
        The state was opened with one row in ``stride``.
    lent : bool
        Whether X has all opened rows, because it is shared with runs that use others of them.
    scores : float64 (rows,)
        Scores with the extras' part, computed at the x number ``ref``.
    ref : int32 (rows,)
        Index of the past x that a row was last scored at; -1 if it never was.
    side : int8 (rows,)
        AT_LO, AT_HI, AT_ZERO, FREE (in the band) or UNSET (never scored).
    fixed : bool (rows,)
        Screened rows: proved to stay on their side.
    side_sum : float64 (buckets, m + extras)
        V, the sum of ``s alpha [c, border]`` over rows at a side, by bucket.
    side_lin : float64 (buckets,)
        H, the same rows' part of D's linear term.
    most, below : float64 (groups,)
        The shard's largest ``sum t alpha``; the weight of its fixed rows' breakpoints below mu*.
    sample : array or None
        A few rows of the shard that show how far float32 columns move scores.
    curved : BandRows or None
        Band rows that the Hessian-vector products of the current step go over.
    visited : int64 (k,)
        Indices of the rows of the last line search.
    trial : float64 (k, 2)
        Scores of the visited rows at both ends of the line search.
    gathered : bool (rows,), or of length 0
        Rows whose features the coordinator has gathered.
    picked : int64 (k,)
        Indices of the rows that were last picked to be gathered.
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
    visited: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    trial: FloatArray = field(default_factory=lambda: np.empty((0, 2)))
    gathered: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    picked: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def visited_dual(self) -> Dual:
        """The dual of the rows of the last line search."""
        return self.dual[as_slice(self.visited)]

    def compact(self) -> None:
        """Drop fixed rows (proved to stay on their side) from all arrays.

        The last line search and the rows picked to be gathered are forgotten.
        """
        keep = np.flatnonzero(~self.fixed)
        if self.X is not None and not self.lent:
            self.X = self.X[keep]
        self.dual = self.dual[keep]
        self.ids, self.norms = self.ids[keep], self.norms[keep]
        self.scores, self.ref = self.scores[keep], self.ref[keep]
        self.side, self.fixed = self.side[keep], self.fixed[keep]
        self.visited, self.trial = np.empty(0, np.int64), np.empty((0, 2))
        self.gathered, self.picked = np.empty(0, np.bool_), np.empty(0, np.int64)

    def rows(self, data: Rows, local: NDArray[np.int64]) -> Any:
        """Return the rows at ascending indices, from memory or from the data."""
        if self.X is not None:
            at = (self.ids[local] - self.start) // self.stride if self.lent else local
            return self.X[as_slice(at)]
        return data.rows(self.ids[local])

    def distance(self, scores: FloatArray) -> FloatArray:
        """Return the distance of every row's G from its nearest hinge point, at these scores."""
        return hinge_distance(self.dual, self.dual.lin - self.dual.sign * scores)

    def sizes(self) -> FloatArray:
        """Sum what the coordinator measures the rows by; a row's weight is its reach.

        Returns [sum weight, sum weight |p|, sum weight ||phi||^2, largest |p| + e, distance of
        alpha = 0 from its box, largest ``sum t alpha`` of every group...].
        """
        dual = self.dual
        weight, lin = dual.reach, np.abs(dual.lin)
        sums = np.sum(weight), np.sum(weight * lin), np.sum(weight * self.norms**2)
        out = np.max(np.maximum(dual.lo, -dual.hi), initial=0.0)
        return np.array([*sums, np.max(lin + tube_of(dual), initial=0.0), out, *self.most])

    def moved_since(self, message: dict[str, Any]) -> FloatArray:
        """Bound how far every row's score has moved since it was computed (rows,); inf if never.

        ``message``: has ``w_moves`` and ``score_moves`` of `Algebra.bound_moves`.
        """
        moved = message["w_moves"][self.ref] * self.norms + message["score_moves"][self.ref]
        return np.where(self.ref < 0, np.inf, moved)

    def intervals(self, message: dict[str, Any]) -> tuple[FloatArray, FloatArray]:
        """Bound every row's optimal score by the message's region: low and high, (rows,) each.

        The bounds are widened by how far w has moved since a row was scored. Keys of ``message``:
        ``region``, a ball that contains w*; ``multipliers`` (extras,), whose part of the scores is
        left out; ``slack``, a bound of a score's rounding error; and those of ``moved_since``.
        """
        norms = np.sqrt(self.norms**2 + self.frame.constant**2)
        # The multipliers have an interval of their own.
        scores = self.scores - self.frame.border(self.dual) @ message["multipliers"]
        slack = self.moved_since(message) + message["slack"]
        region: Ball = message["region"]
        return region.intervals(scores, norms, slack)

    def fix(self, message: dict[str, Any]) -> FloatArray:
        """Fix the rows that a region proves to stay on their current side.

        Keys of ``message``: ``mu``, the lower and upper bounds of the optimal multipliers; and the
        keys of ``intervals``.

        Returns [rows newly fixed at hi, rows newly fixed elsewhere].
        """
        dual, t = self.dual, self.dual.coupling
        lower, upper = self.intervals(message)
        decided = dual.decide(lower, upper, message["mu"])
        decided[self.fixed | (decided != self.side)] = FREE
        new = decided != FREE
        self.fixed |= new
        if t is not None:
            # A fixed row's breakpoints lie on known sides of mu*: later rounds count them so.
            most = np.maximum(t * dual.lo, t * dual.hi)
            lie_below = np.where(new, most - t * side_value(dual, decided), 0.0)
            group = np.zeros(len(dual), np.int8) if dual.group is None else dual.group
            self.below += by_term(group, lie_below, len(self.below))
        at_hi = np.count_nonzero(decided == AT_HI)
        return np.array([at_hi, np.count_nonzero(new) - at_hi], dtype=np.float64)

    def quantiles(self, message: dict[str, Any]) -> FloatArray:
        """Sum the weight of a group's breakpoints below each candidate for its multiplier.

        Keys of ``message``: ``group`` (its number), ``grid`` (the candidates, ascending), and the
        keys of ``intervals``.

        Returns [weight of lower ends at or below each candidate..., of upper ends..., largest
        ``sum t alpha``, total weight].
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
        """Sum the losses of rows not visited, at both ends of a segment: ``H - <V, w>``, exact.

        V and H (``side_sum`` and ``side_lin``) cover all rows at a side; the part of visited rows
        is subtracted. ``coefs`` (m, 2), ``extras`` (extras, 2): both ends. Returns (2,).
        """
        part = self.visited_dual
        bound = side_value(part, self.side[self.visited])
        visited = np.sum(part.linear(bound)) - (bound * part.sign) @ self.trial
        v, width = self.side_sum.sum(axis=0), len(coefs)
        losses: FloatArray = (
            self.side_lin.sum() - (v[:width] @ coefs + v[width:] @ extras) - visited
        )
        return losses


def compress_constant(values: FloatArray) -> FloatArray:
    """Return the values; if all are equal, as a read-only view that takes no memory."""
    if not len(values) or np.any(values != values[0]):
        return values
    return np.broadcast_to(np.float64(values[0]), values.shape)


def as_slice(at: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Return consecutive indices as a slice, so that indexing copies nothing; else as they are."""
    if len(at) and at[-1] - at[0] == len(at) - 1:
        return slice(int(at[0]), int(at[-1]) + 1)
    return at


def tube_of(dual: Dual) -> FloatArray:
    """Return half the width of every row's tube (rows,), 0 without a tube."""
    return np.zeros(len(dual)) if dual.tube is None else np.ascontiguousarray(dual.tube)


def hinge_distance(dual: Dual, z: FloatArray) -> FloatArray:
    """Return the distance of gradients z from the nearest hinge point of their loss (rows,)."""
    size = np.abs(z)
    return size if dual.tube is None else np.abs(size - dual.tube)


def find_sides(dual: Dual, z: FloatArray, h: float) -> NDArray[np.int8]:
    """Find the side of alpha at gradients z (rows,): at an end, at 0 within the tube, or FREE."""
    tube: Any = 0.0 if dual.tube is None else dual.tube
    found = [z > tube + h, z < -tube - h, np.abs(z) < tube - h]
    if dual.curve is not None:
        found[0] &= np.isfinite(dual.hi)
        found[1] &= np.isfinite(dual.lo)
    return np.select(found, [AT_HI, AT_LO, AT_ZERO], FREE).astype(np.int8)


def side_value(dual: Dual, side: NDArray[np.int8]) -> FloatArray:
    """Return alpha at each row's side (rows,); 0 in the band, and for rows never scored."""
    return np.where(side == AT_HI, dual.hi, np.where(side == AT_LO, dual.lo, 0.0))


def band_widths(dual: Dual, z: FloatArray, h: float) -> tuple[FloatArray, FloatArray]:
    """Return the range of alpha across the band, and alpha at its middle, of band rows (rows,).

    A tube has two bands, which overlap if it is narrower than h.
    """
    if dual.tube is None:
        return dual.hi - dual.lo, 0.5 * (dual.lo + dual.hi)
    upper = np.where(np.abs(z - dual.tube) <= h, dual.hi, 0.0)
    lower = np.where(np.abs(z + dual.tube) <= h, -dual.lo, 0.0)
    return upper + lower, 0.5 * (upper - lower)


def band_curvature(
    dual: Dual, z: FloatArray, h: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return second derivatives of band rows' losses, then `band_widths` (0 for squared losses)."""
    if dual.curve is not None:
        return dual.reach, np.zeros(len(dual)), np.zeros(len(dual))
    width, middle = band_widths(dual, z, h)
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
    """Add smoothed (row 0) and plain (row 1) losses at ``z + t dz`` for every step length t.

    ``z``, ``dz`` (rows,): gradients and their change by a step of length 1; ``lo``, ``hi``,
    ``tube`` (rows,): the rows' box and tube; ``h``: smoothing; ``steps`` (k,): the t; ``losses``
    (2, k): receives the sums over rows. ``curve`` (rows,): curvatures of squared losses, which are
    not smoothed; None for hinge losses.
    """
    for k in range(len(steps)):
        smooth, plain = 0.0, 0.0
        for i in range(len(z)):
            g = z[i] + steps[k] * dz[i]
            # The hinge above the tube and, if the box reaches below 0, the hinge below it.
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
