"""A small dual solved exactly in float64: free rows as equations, bounds one set after the other.

Rows strictly between their ends satisfy ``K_FF d = g_F``: one factor of all rows that can move, and
for those that meet an end on the way a small system of their own rows of the inverse, as so many
equations ``d_i = what is left to the end``. Then the step to that point, which no end forbids, as
far as the dual rises, and the rows that want to leave their ends are let go; repeat. Rows that are
repeated, or more than the rank, leave K_FF singular: a ridge makes steps of least length of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dgetrf, dgetrs

from bigscreen.numerics.cholesky import Factor, factored
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual

TURNS = 30
"""Steps at most: each ends at a better point, on another face or at the optimum of this one."""

CLIPS = 50
"""Times at most that rows which a step would take beyond their ends are held there."""

RIDGES = (2.0**-27, 2.0**-20, 2.0**-13)
"""Ridges, as parts of the largest ``k(x, x)``: the next one where a step leads nowhere."""

MET = 1e-12
"""Part of a step's length that it may miss the couplings by."""

ROOM = 512
"""Rows of a factor up to which all may be held at their ends; of more, half of them."""

HELD = 0.25
"""Part of a factor's rows that are held from which a factor of the others is made."""


class Pieces(NamedTuple):
    """Where every row may go without meeting a kink, and how steep the dual is on the way."""

    below: FloatArray
    above: FloatArray
    slope: FloatArray


class Faces:
    """Coefficients ``c = s alpha`` of some rows on their way to the optimum of all others fixed.

    Parameters
    ----------
    K : float64 (n, n)
        Kernel entries, the constant's 1 added where there is one.
    part : Dual
        Without a curve.
    alpha, G : float64 (n,)
        A feasible alpha, and ``p - s u`` there.
    mu : float64 (groups,)
        Multipliers to begin with.
    noise : float
        Slopes that rounding makes of none.
    """

    def __init__(
        self,
        K: FloatArray,
        part: Dual,
        alpha: FloatArray,
        G: FloatArray,
        mu: FloatArray,
        noise: float,
    ) -> None:
        self.K, self.part, self.mu, self.noise = K, part, mu.copy(), noise
        s = part.sign
        self.c, self.g = s * alpha, s * G
        self.low, self.high = np.where(s > 0, part.lo, -part.hi), np.where(s > 0, part.hi, -part.lo)
        self.group: NDArray[Any] = (
            np.zeros(len(alpha), np.int8) if part.group is None else part.group
        )
        self.ways = None if part.coupling is None else s * part.coupling

    def pieces(self) -> Pieces:
        """Those at c."""
        slope = self.g if self.ways is None else self.g - self.ways * self.mu[self.group]
        tube = self.part.tube
        if tube is None:
            return Pieces(self.low, self.high, slope)
        up = (self.c > 0) | ((self.c == 0) & (slope > 0))
        below, above = np.where(up, 0.0, self.low), np.where(up, self.high, 0.0)
        return Pieces(below, above, np.where(up, slope - tube, slope + tube))

    def held(self, at: Pieces) -> NDArray[np.bool_]:
        """Rows at an end that they do not want to leave."""
        stay = (self.c <= at.below) & (at.slope <= self.noise)
        return stay | ((self.c >= at.above) & (at.slope >= -self.noise))

    def solve(self) -> bool:
        """Go to the optimum; whether that was it. D never falls."""
        system, stiff = None, 0
        for _ in range(TURNS):
            at = self.pieces()
            held = self.held(at)
            rows = np.flatnonzero(~held)
            if not len(rows) or np.max(np.abs(at.slope[rows])) <= self.noise:
                return True
            if system is None or not system.serves(held):
                system = System.of(self, rows, RIDGES[stiff])
            if system is None or not self._stepped(system, at, held):
                system, stiff = None, stiff + 1
                if stiff == len(RIDGES):
                    break
        return False

    def _stepped(self, system: System, at: Pieces, held: NDArray[np.bool_]) -> bool:
        """Go as far as the dual rises on the way to a face's best point; whether it does."""
        found = system.step(self.c, at, held)
        if found is None:
            return False
        step, mu, ends = found
        if self.ways is not None:
            off = np.bincount(self.group, self.ways * step, len(self.mu))
            if np.max(np.abs(off)) > MET * np.sum(np.abs(step)):
                return False
        change = self.K @ step
        rise, bend = float(at.slope @ step), float(step @ change)
        if not rise > 0:
            return False
        part = min(1.0, rise / bend) if bend > 0 else 1.0
        self.c = np.clip(self.c + part * step, at.below, at.above)
        if part == 1.0:
            # At its end to the last bit.
            self.c = np.where(ends < 0, at.below, np.where(ends > 0, at.above, self.c))
        self.g, self.mu = self.g - part * change, self.mu + part * mu
        return True


class System:
    """A factor of the rows that can move, and what it says of those that are held after all."""

    def __init__(self, rows: NDArray[np.int64], size: int, factor: Factor) -> None:
        self.rows, self.factor = rows, factor
        self.place = np.full(size, -1)
        self.place[rows] = np.arange(len(rows))
        self.ways: FloatArray = np.empty((0, len(rows)))
        self.turned: FloatArray = np.empty((0, len(rows)))
        self.groups: NDArray[np.int64] = np.empty(0, np.int64)
        self.count = 0
        self.solved: dict[int, FloatArray] = {}

    @classmethod
    def of(cls, faces: Faces, rows: NDArray[np.int64], ridge: float) -> System | None:
        """That of these rows; None where a ridge, a part of the largest entry, makes no factor."""
        matrix = np.ascontiguousarray(faces.K[np.ix_(rows, rows)])
        matrix[np.diag_indices(len(rows))] += ridge * float(np.max(np.diagonal(matrix)))
        factor = factored(matrix)
        if factor is None:
            return None
        found = cls(rows, len(faces.K), factor)
        found.count = len(faces.mu)
        if faces.ways is not None:
            group = faces.group[rows]
            found.groups = np.unique(group).astype(np.int64)
            found.ways = faces.ways[rows] * (group == found.groups[:, None])
            found.turned = factor.solve(found.ways)
        return found

    def serves(self, held: NDArray[np.bool_]) -> bool:
        """Whether it has all rows that move, and not too many others."""
        inside = self.place >= 0
        few = np.count_nonzero(held & inside) <= HELD * len(self.rows)
        return bool(np.all(inside | held) and few)

    def step(
        self, c: FloatArray, at: Pieces, held: NDArray[np.bool_]
    ) -> tuple[FloatArray, FloatArray, NDArray[np.int8]] | None:
        """To the best point with some rows held, and with those that would go too far at their end.

        Returns the step of all rows, that of the multipliers, and where rows end: -1 below, 1
        above, 0 between; None where rows are held ever again.
        """
        rows = self.rows
        free = self.factor.solve(at.slope[rows])
        least, most = (at.below - c)[rows], (at.above - c)[rows]
        fixed = np.flatnonzero(held[rows])
        target = np.zeros(len(rows))
        ends = np.zeros(len(rows), np.int8)
        for _ in range(CLIPS):
            found = self._with(free, fixed, target)
            if found is None:
                return None
            step, mu = found
            step[fixed] = target[fixed]
            beyond = np.flatnonzero((step < least) | (step > most))
            beyond = beyond[~np.isin(beyond, fixed)]
            if not len(beyond):
                whole, where = np.zeros(len(c)), np.zeros(len(c), np.int8)
                whole[rows], where[rows] = step, ends
                all_mu = np.zeros(self.count)
                all_mu[self.groups] = mu
                return whole, all_mu, where
            ends[beyond] = np.where(step < least, -1, 1)[beyond]
            target[beyond] = np.where(step < least, least, most)[beyond]
            fixed = np.concatenate([fixed, beyond])
            if 2 * len(fixed) > len(rows) > ROOM:
                return None
        return None

    def _with(
        self, free: FloatArray, fixed: NDArray[np.int64], target: FloatArray
    ) -> tuple[FloatArray, FloatArray] | None:
        """The step with these rows' parts given, and the multipliers' step."""
        k = len(self.ways)
        if not k + len(fixed):
            return free.copy(), np.empty(0)
        missing = [j for j in fixed.tolist() if j not in self.solved]
        if missing:
            units = np.zeros((len(missing), len(free)))
            units[np.arange(len(missing)), missing] = 1.0
            self.solved.update(zip(missing, self.factor.solve(units), strict=True))
        turned = np.concatenate([self.turned, *(self.solved[j][None] for j in fixed.tolist())])
        square = np.concatenate([turned @ self.ways.T, turned[:, fixed]], axis=1)
        factor, swaps, singular = dgetrf(square)
        if singular:
            return None
        step, forces = free, np.zeros(k + len(fixed))
        # Twice: what is off of the conditions is put right.
        for _ in range(2):
            off = np.concatenate([self.ways @ step, step[fixed] - target[fixed]])
            more = dgetrs(factor, swaps, off)[0]
            step, forces = step - more @ turned, forces + more
        return step, forces[:k]
