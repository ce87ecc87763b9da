"""Solve a small dual exactly in float64 by an active-set method.

A face of the box fixes some rows at their bounds (or, with a tube, at 0) and leaves the free rows F
between them. On a face the optimum satisfies ``K_FF d = g_F``. One Cholesky factor of all rows that
can move serves several faces: rows that would cross a bound get the equation ``d_i = the distance
to the bound``, and a small system of their rows of the inverse enforces these. Then take the step
as far as the dual rises, release the rows whose gradient points inwards, and repeat. Equal rows, or
more rows than the rank, make K_FF singular: a ridge selects steps of minimal length.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dgetrf, dgetrs

from bigscreen.numerics.cholesky import Factor, factorise
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.solvers.block.tuning import FACE, FaceTuning


class Pieces(NamedTuple):
    """The interval [below, above] of each row's coefficient in which the dual is smooth: (n,) each.

    The interval is the row's box, or with a tube the box's part on one side of 0. ``slope``: the
    dual's derivative in the coefficient, with multipliers and tube.
    """

    below: FloatArray
    above: FloatArray
    slope: FloatArray


class Faces:
    """The iterate of the active-set method: coefficients ``c = s alpha`` of some rows.

    Parameters
    ----------
    K : float64 (n, n)
        Kernel entries, plus 1 if a constant is appended to phi.
    part : Dual
        The dual of these rows, without a quadratic term of the loss.
    alpha, G : float64 (n,)
        A feasible alpha, and the gradient ``p - s u`` at it (s: signs, u: scores).
    mu : float64 (groups,)
        Initial multipliers.
    noise : float
        Slopes up to this count as 0: they may be rounding.
    tuning : FaceTuning

    Attributes
    ----------
    c, g : float64 (n,)
        The coefficients, and ``s G``, the dual's derivatives in them.
    low, high : float64 (n,)
        The box of the coefficients.
    ways : float64 (n,) or None
        The coupling's factors of the coefficients, +-1; None: no coupling.
    """

    def __init__(
        self,
        K: FloatArray,
        part: Dual,
        alpha: FloatArray,
        G: FloatArray,
        mu: FloatArray,
        noise: float,
        tuning: FaceTuning = FACE,
    ) -> None:
        """Compute the coefficients ``c = s alpha``, their box and their gradient."""
        self.K, self.part, self.mu, self.noise = K, part, mu.copy(), noise
        self.tuning = tuning
        s = part.sign
        self.c, self.g = s * alpha, s * G
        self.low, self.high = np.where(s > 0, part.lo, -part.hi), np.where(s > 0, part.hi, -part.lo)
        self.group: NDArray[Any] = (
            np.zeros(len(alpha), np.int8) if part.group is None else part.group
        )
        self.ways = None if part.coupling is None else s * part.coupling

    def pieces(self) -> Pieces:
        """Return the smooth pieces that contain the current coefficients."""
        slope = self.g if self.ways is None else self.g - self.ways * self.mu[self.group]
        tube = self.part.tube
        if tube is None:
            return Pieces(self.low, self.high, slope)
        up = (self.c > 0) | ((self.c == 0) & (slope > 0))
        below, above = np.where(up, 0.0, self.low), np.where(up, self.high, 0.0)
        return Pieces(below, above, np.where(up, slope - tube, slope + tube))

    def find_held(self, at: Pieces) -> NDArray[np.bool_]:
        """Return which rows are held: at an end of their piece, with a slope that points outwards.

        ``at``: the pieces (smooth intervals) of the current coefficients. Returns bool (n,).
        """
        stay = (self.c <= at.below) & (at.slope <= self.noise)
        return stay | ((self.c >= at.above) & (at.slope >= -self.noise))

    def solve(self) -> bool:
        """Move the coefficients to the optimum of these rows' dual; return whether it was reached.

        If not (too many steps, or no ridge helps), the dual value is at least the initial one.
        """
        system, stiff = None, 0
        ridges = self.tuning.ridges
        for _ in range(self.tuning.max_steps):
            at = self.pieces()
            held = self.find_held(at)
            rows = np.flatnonzero(~held)
            if not len(rows) or np.max(np.abs(at.slope[rows])) <= self.noise:
                return True
            if system is None or not system.can_serve(held):
                system = System.of(self, rows, ridges[stiff])
            if system is None or not self._step(system, at, held):
                system, stiff = None, stiff + 1
                if stiff == len(ridges):
                    break
        return False

    def _step(self, system: System, at: Pieces, held: NDArray[np.bool_]) -> bool:
        """Step towards the optimum of a face as far as the dual rises; return whether it rose.

        ``system``: a factor of the rows that can move. ``at``: their smooth intervals. ``held``:
        the rows that stay where they are.
        """
        found = system.step(self.c, at, held)
        if found is None:
            return False
        step, mu, ends = found
        if self.ways is not None:
            off = np.bincount(self.group, self.ways * step, len(self.mu))
            if np.max(np.abs(off)) > self.tuning.coupling_tol * np.sum(np.abs(step)):
                return False
        change = self.K @ step
        rise, bend = float(at.slope @ step), float(step @ change)
        if not rise > 0:
            return False
        part = min(1.0, rise / bend) if bend > 0 else 1.0
        self.c = np.clip(self.c + part * step, at.below, at.above)
        if part == 1.0:
            # Put rows exactly at their bounds.
            self.c = np.where(ends < 0, at.below, np.where(ends > 0, at.above, self.c))
        self.g, self.mu = self.g - part * change, self.mu + part * mu
        return True


class System:
    """A Cholesky factor of the rows that can move, and solves with some of them held at bounds.

    Attributes
    ----------
    rows : int64 (q,)
        The factored rows, of all n.
    factor : Factor
        Of their kernel matrix.
    place : int64 (n,)
        Each row's place among ``rows``, -1 if it is not one of them.
    ways, turned : float64 (groups present, q)
        The coupling's factors, and the solutions for them as right-hand sides.
    groups, count
        The groups present among the rows, and the number of all groups.
    solved : dict
        Rows of the inverse kernel matrix computed so far (q,), by place.
    tuning : FaceTuning
    """

    def __init__(
        self, rows: NDArray[np.int64], size: int, factor: Factor, tuning: FaceTuning
    ) -> None:
        """Store the factor of the kernel matrix of ``rows``; ``size``: the number n of all rows.

        ``factor``: a Cholesky factor of that kernel matrix. The coupling's arrays are empty; `of`
        sets them.
        """
        self.rows, self.factor, self.tuning = rows, factor, tuning
        self.place = np.full(size, -1)
        self.place[rows] = np.arange(len(rows))
        self.ways: FloatArray = np.empty((0, len(rows)))
        self.turned: FloatArray = np.empty((0, len(rows)))
        self.groups: NDArray[np.int64] = np.empty(0, np.int64)
        self.count = 0
        self.solved: dict[int, FloatArray] = {}

    @classmethod
    def of(cls, faces: Faces, rows: NDArray[np.int64], ridge: float) -> System | None:
        """Factor the kernel matrix of these rows of ``faces``; None if it is not positive definite.

        ``ridge`` times the largest diagonal entry is added to the diagonal.
        """
        matrix = np.ascontiguousarray(faces.K[np.ix_(rows, rows)])
        matrix[np.diag_indices(len(rows))] += ridge * float(np.max(np.diagonal(matrix)))
        factor = factorise(matrix)
        if factor is None:
            return None
        found = cls(rows, len(faces.K), factor, faces.tuning)
        found.count = len(faces.mu)
        if faces.ways is not None:
            group = faces.group[rows]
            found.groups = np.unique(group).astype(np.int64)
            found.ways = faces.ways[rows] * (group == found.groups[:, None])
            found.turned = factor.solve(found.ways)
        return found

    def can_serve(self, held: NDArray[np.bool_]) -> bool:
        """Whether the factor contains all rows that are not held, and few that are held (n,)."""
        inside = self.place >= 0
        few = np.count_nonzero(held & inside) <= self.tuning.max_held_fraction * len(self.rows)
        return bool(np.all(inside | held) and few)

    def step(
        self, c: FloatArray, at: Pieces, held: NDArray[np.bool_]
    ) -> tuple[FloatArray, FloatArray, NDArray[np.int8]] | None:
        """Solve for the step to the optimum of a face, holding rows that would cross their ends.

        Parameters
        ----------
        c : float64 (n,)
            The coefficients.
        at : Pieces
            The interval in which each may move, and the dual's slope.
        held : bool (n,)
            Rows that do not move.

        Returns
        -------
        None if the rows to hold do not settle, else
        step : float64 (n,), of all coefficients
        mu : float64 (groups,), step of the multipliers
        ends : int8 (n,), the end that each row reaches: -1 below, 1 above, 0 none
        """
        rows = self.rows
        free = self.factor.solve(at.slope[rows])
        least, most = (at.below - c)[rows], (at.above - c)[rows]
        fixed = np.flatnonzero(held[rows])
        target = np.zeros(len(rows))
        ends = np.zeros(len(rows), np.int8)
        for _ in range(self.tuning.max_hold_rounds):
            found = self._solve_with_fixed(free, fixed, target)
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
            if 2 * len(fixed) > len(rows) > self.tuning.hold_all_rows:
                return None
        return None

    def _solve_with_fixed(
        self, free: FloatArray, fixed: NDArray[np.int64], target: FloatArray
    ) -> tuple[FloatArray, FloatArray] | None:
        """Find the step to the optimum if some rows' steps are prescribed; None if it is singular.

        ``free`` (q,): the step without any prescribed. ``fixed``: places of rows whose steps are
        given by ``target`` (q,). Returns the step (q,) and the multipliers' step (groups present,).
        """
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
        # The second pass corrects the rounding of the first.
        for _ in range(2):
            off = np.concatenate([self.ways @ step, step[fixed] - target[fixed]])
            more = dgetrs(factor, swaps, off)[0]
            step, forces = step - more @ turned, forces + more
        return step, forces[:k]
