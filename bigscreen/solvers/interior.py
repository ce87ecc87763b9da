"""A primal-dual interior point method for few rows on explicit features (maths.md 5.11)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.linalg.blas import dsyrk

from bigscreen.errors import InputError
from bigscreen.files.checkpoint import load_alone, save_alone
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import Point, relative_gap
from bigscreen.solvers.protocol import Check, Run

CHECKPOINT_NAME = "interior"
"""Folder of the solver's checkpoints within the folder of a problem."""


@dataclass(frozen=True)
class InteriorTuning:
    """Tuned values of the interior point's steps.

    Parameters
    ----------
    max_step : float
        A step of the interior point goes at most this fraction of the way to the nearest bound of a
        variable.
    min_step : float
        While a step would not lower the mean complementarity product enough, shorten it; stop
        shortening once it goes at most this fraction of the way to the nearest bound.
    start_distance : float
        At the start each dual variable is at least this fraction of its box away from both ends of
        it.
    min_product_ratio : float
        Recompute a step with a weaker second-order correction if it makes the smallest
        complementarity product less than this fraction of their mean.
    refinements : int
        Improve the solution of each step's linear system by this many iterations of iterative
        refinement.
    patience : int
        Give up after this many consecutive steps that reduce neither the gap nor the mean
        complementarity product by a tenth.
    max_face_steps : int
        Once the gap is met, take at most this many more steps, until a point whose variables lie
        exactly at their bounds (on a face of the box) has a gap no larger.
    face_gap_factor : float
        Also compute the gap with the variables near a bound moved to it once the gap is at most
        this multiple of the requested gap; use that point if its gap is no larger.
    face_gap : float
        Also compute the gap with the variables near a bound moved to it once the relative gap is at
        most this, however small the requested gap is.
    face_curvature : float
        With variables fixed at their bounds, add this fraction of the largest squared norm of a row
        to the curvature along each other variable, so that the linear system is regular.
    """

    max_step: float = 0.995
    min_step: float = 1e-3
    start_distance: float = 1e-2
    min_product_ratio: float = 1e-3
    refinements: int = 2
    patience: int = 15
    max_face_steps: int = 5
    face_gap_factor: float = 1e3
    face_gap: float = 1e-4
    face_curvature: float = 1e-12


@dataclass(frozen=True)
class InteriorCosts:
    """Costs of a solve, in "terms": a pair step over n rows takes n terms, each about 1 ns.

    Parameters
    ----------
    setup : float
        Cost of any interior point solve, however small, in terms (about a nanosecond each).
    steps : float
        Assumed number of steps of an interior point solve (measured: 8 to 35).
    products_per_term : float
        Number of multiplications, in forming a step's linear system, that take as long as a term
        (about a nanosecond).
    terms_per_feature : float
        Cost of a step apart from its linear system, in terms (about a nanosecond each), for each
        feature of each row.
    terms_per_entry : float
        Cost of computing one float64 kernel entry, in terms (about a nanosecond each).
    factor_products_per_term : float
        Number of multiplications of a Cholesky factorisation that take as long as a term (about a
        nanosecond).
    terms_per_pair : float
        Fixed cost of a pair step of SMO, in terms (about a nanosecond each), in addition to one
        term per row.
    max_step_products : float
        Use an interior point only if forming a step's linear system takes at most this many
        multiplications.
    """

    setup: float = 1e8
    steps: float = 30.0
    products_per_term: float = 20.0
    terms_per_feature: float = 40.0
    terms_per_entry: float = 10.0
    factor_products_per_term: float = 40.0
    terms_per_pair: float = 200.0
    max_step_products: float = 5e9


INTERIOR, COSTS = InteriorTuning(), InteriorCosts()

Solve = Callable[[FloatArray], FloatArray]
"""Function that solves a linear system for a right-hand side, with an entry for each variable."""


def interior_terms(n: int, m: int, costs: InteriorCosts = COSTS) -> float:
    """Estimate the cost of solving n rows of m features, in terms (see `InteriorCosts`)."""
    a_row = min(n, m) / costs.products_per_term + costs.terms_per_feature
    return costs.setup + costs.steps * n * m * a_row


def factor_terms(n: int, costs: InteriorCosts = COSTS) -> float:
    """Estimate the cost of factoring the kernel matrix of n rows into features, with the setup.

    In terms (see `InteriorCosts`).
    """
    return costs.setup + n**2 * (costs.terms_per_entry + n / costs.factor_products_per_term)


def pair_terms(steps: int, n: int) -> float:
    """Return the cost of this many pair steps (SMO) over n rows, in terms (see `InteriorCosts`)."""
    return steps * (n + COSTS.terms_per_pair)


def interior_fits(n: int, m: int, room: float) -> bool:
    """Whether an interior point is quick on n rows of m columns, and fits into ``room`` bytes."""
    return interior_is_quick(n, m) and interior_bytes(n, m) <= room


def interior_is_quick(n: int, m: int) -> bool:
    """Whether an interior step on n rows of m columns takes few enough multiplications."""
    return float(n) * m * min(n, m) <= COSTS.max_step_products


def interior_bytes(n: int, m: int) -> int:
    """Return the bytes that an interior point takes on n rows of m columns.

    These are 3 float64 copies of the rows, and 3 of the matrix of its linear system.
    """
    return 8 * (3 * n * m + 3 * min(n, m) ** 2)


class KernelFeatures:
    """Features whose dot products are the entries of a kernel, computed only if they are used.

    Parameters
    ----------
    make : callable
        Computes the features (n, rank).
    least : float
        Cost of that, in terms (see `InteriorCosts`).
    costs : InteriorCosts
        What an interior point over the features costs.
    """

    def __init__(self, make: Callable[[], Any], least: float, costs: InteriorCosts = COSTS) -> None:
        """Keep the function; no features are computed yet."""
        self._make, self._least, self._costs = make, least, costs
        self._making, self._made = threading.Lock(), None

    @property
    def made(self) -> Any:
        """The features (n, rank), which the first thread that reads them computes."""
        with self._making:
            if self._made is None:
                self._made = self._make()
            return self._made

    def should_use(self, spent: float, rows: int) -> bool:
        """Whether an interior point over ``rows`` rows would have cost less than what was spent.

        ``spent``: terms that other steps have taken so far (see `InteriorCosts`).
        """
        if spent < self._least:
            return False
        rank = self.made.shape[1]
        # (rank 0: all entries are 0)
        return rank > 0 and spent > interior_terms(rows, rank, self._costs)


@dataclass(frozen=True)
class InteriorPoint:
    """Mehrotra's predictor-corrector method on the dual; all rows are dense float64 in one process.

    Every step solves one linear system with as many unknowns as rows or features, whichever are
    fewer. Some 15 to 35 steps reach any gap, also for ill-conditioned features and large C, with
    which coordinate steps or smoothed losses would take far too long.

    Parameters
    ----------
    tuning : InteriorTuning
    """

    tuning: InteriorTuning = INTERIOR

    def solve(self, run: Run, check: Check) -> Point:
        """Solve until ``check`` returns None; returns the last point.

        A start is moved to the inside of its box.

        Raises
        ------
        InputError
            For columns that are not explicit features, or squared losses.
        """
        path = _CentralPath(run, self.tuning)
        found = load_alone(run.checkpoint, CHECKPOINT_NAME)
        if found is not None:
            path.restore(*found)
            check.restored(found[0])
        going = found is None
        while True:
            if going:
                path.advance()
            point = path.point(check.target)
            if going:  # (a resumed run has counted its last point already)
                path.count(point)
                if not path.on_face and point.relative_gap <= check.target:
                    point = path.move_to_face(point)
            verdict = check(point, path.stats(), path.save)
            if verdict is None:
                return point
            going = True


class _Variables(NamedTuple):
    """The variables of the dual (n,); a tube splits each alpha into two variables >= 0 (2 n,).

    For each variable: ``sign`` multiplies its row's features in w; ``lin`` is its coefficient in
    the linear part of D; ``lo`` and ``hi`` are the ends of its box; ``way`` is its coefficient in
    the coupling constraint of its ``group`` (0 without a constraint).
    """

    sign: FloatArray
    lin: FloatArray
    lo: FloatArray
    hi: FloatArray
    way: FloatArray
    group: NDArray[np.int64]

    @classmethod
    def of(cls, dual: Dual) -> _Variables:
        """Make the variables of a dual; with a tube, first the parts of alpha above 0, then below.

        Variable n + i is then minus the part below 0 of row i's alpha.
        """
        n = len(dual)
        way = np.zeros(n) if dual.coupling is None else dual.coupling
        group = np.zeros(n, np.int64) if dual.group is None else dual.group.astype(np.int64)
        if dual.tube is None:
            return cls(dual.sign, dual.lin, dual.lo, dual.hi, way, group)
        lin = np.concatenate([dual.lin - dual.tube, -dual.lin - dual.tube])
        hi = np.concatenate([dual.hi, -dual.lo])
        both = (np.concatenate([one, -one]) for one in (dual.sign, way))
        sign, way = both
        return cls(sign, lin, np.zeros(2 * n), hi, way, np.tile(group, 2))


class _CentralPath:
    """The state of one solve: variables x strictly within their box, and multipliers of both ends.

    Each step reduces the complementarity products ``low (x - lo)`` and ``high (hi - x)``.

    Attributes
    ----------
    x : float64 (variables,)
        The variables that can move: those whose box is not a point.
    low, high : float64 (variables,)
        Multipliers of the lower and the upper ends of their boxes.
    mu : float64 (groups,)
        Multipliers of the coupling constraints.
    variables : _Variables
        Their coefficients and boxes.
    moving, row : int64 (variables,)
        Their places among all variables, and the row that each belongs to.
    fixed : float64 (all variables,)
        The values of variables whose box is a point; 0 for the others.
    borders : float64 (groups, variables)
        Coefficients of the variables in the coupling constraints.
    rows : float64 (n, d)
        Features of all rows, with a constant column if the offset is penalised.
    reach : float
        Bound on a sum of |alpha| (`Run.reach`), from which the rounding of scores is bounded.
    product : float
        The mean complementarity product.
    idle : int
        Consecutive steps that reduced neither the gap nor ``product`` by a tenth.
    least : float64 (2,)
        The smallest gap, and the smallest mean product, so far.
    dual : Dual
        The dual of all n rows.
    total : float64 (groups,)
        Totals of the coupling constraints.
    gram : float64 (n, n) or None
        Dot products of all rows, once a step has computed them.
    constant : float
        The constant feature of a penalised offset; 0 without one.
    steps : int
        Steps so far.
    on_face : bool
        Whether x is the optimum of a face of the box, with some variables exactly at their bounds.
    """

    def __init__(self, run: Run, tuning: InteriorTuning) -> None:
        """Read all rows of the run, and start near its alpha if it has one.

        Raises
        ------
        InputError
            For columns that are not explicit features, or squared losses.
        """
        self.tuning = tuning
        data, problem = run.design.data, run.problem
        if run.design.kernel is not None:
            raise InputError(
                "the interior point solver needs explicit features; use the newton, block or pairs "
                "solver"
            )
        n = data.n_rows
        self.design, self.problem = run.design, problem
        self.dual = problem.dual(data.y(0, n), data.weights(0, n))
        if self.dual.curve is not None:
            raise InputError("the interior point solver knows no squared losses; use newton")
        self.constant = problem.intercept_scaling if problem.intercept == "constant" else 0.0
        X: Any = data.X(0, n)
        self.rows = np.asarray(X.toarray() if data.is_sparse else X, np.float64)
        if self.constant:
            self.rows = np.column_stack([self.rows, np.full(n, self.constant)])
        self.total = np.atleast_1d(np.asarray(self.dual.total, np.float64))
        self.reach = run.reach.total
        all_of: Any = _Variables.of(self.dual)
        self.moving = np.flatnonzero(all_of.hi > all_of.lo)
        self.variables = _Variables(*(part[self.moving] for part in all_of))
        self.fixed = np.where(all_of.hi > all_of.lo, 0.0, all_of.lo)
        self.row = self.moving % n
        used = range(len(self.total)) if self.dual.coupling is not None else range(0)
        self.borders = np.array(
            [np.where(self.variables.group == g, self.variables.way, 0.0) for g in used]
        )
        self.borders = self.borders.reshape(len(used), len(self.moving))
        self.gram: FloatArray | None = None
        self.steps = self.idle = 0
        self.least = np.array([np.inf, np.inf])
        self.product = np.inf
        self.on_face = False
        self.begin(run.start)

    # -- starts -----------------------------------------------------------------------------------
    def begin(self, alpha: FloatArray | None) -> None:
        """Start near alpha; without one where D is largest between 0 and the middle of the box."""
        of = self.variables
        middle = 0.5 * (of.lo + of.hi)
        if alpha is not None:
            parts = alpha if self.dual.tube is None else np.concatenate([alpha, -alpha])
            self.x = 0.9 * np.clip(parts[self.moving], of.lo, of.hi) + 0.1 * middle
        else:
            w = self._sum(middle)
            steep, square = float(of.lin @ middle), float(w @ w)
            t = steep / square if 0.0 < steep < square else 1.0
            room = self.tuning.start_distance * (of.hi - of.lo)
            self.x = np.clip(t * middle, of.lo + room, of.hi - room)
        self.mu = np.zeros(len(self.borders))
        slope = self._slope(self._sum(self.x))
        # Multipliers have similar sizes: a step ends where the first of them vanishes.
        least = max(1.0, float(np.mean(np.abs(slope)))) if len(slope) else 1.0
        self.low, self.high = (np.maximum(part, 0.0) + least for part in (slope, -slope))

    def _sum(self, x: FloatArray) -> FloatArray:
        """Sum ``sign_i x_i phi_i`` over the variables x that can move: w, (m,)."""
        n = len(self.rows)
        coef = np.bincount(self.row, self.variables.sign * x, n) if len(x) else np.zeros(n)
        found: FloatArray = coef @ self.rows
        return found

    def _along(self, w: FloatArray) -> FloatArray:
        """Compute ``sign_i <w, phi_i>`` of every variable that can move, from w (m,)."""
        found: FloatArray = self.variables.sign * (self.rows @ w)[self.row]
        return found

    def _slope(self, w: FloatArray) -> FloatArray:
        """Compute the gradient of the Lagrangian, -D plus the coupling's part, given w(alpha)."""
        slope: FloatArray = self._along(w) - self.variables.lin + self.mu @ self.borders
        return slope

    # -- steps ------------------------------------------------------------------------------------
    @np.errstate(over="ignore", invalid="ignore")  # (a step that is not finite is rejected)
    def advance(self) -> None:
        """Take one predictor-corrector step (Mehrotra).

        Both directions solve ``(Q + theta) dx + borders' dmu = r``, ``borders dx = lacks``. The
        predictor aims at products of 0; its progress chooses the target of the products, and its
        second-order error is the correction. A fully corrected step can cycle: if products fall
        too little, or become too unequal, the correction is scaled down, and at last left out. A
        long step may still raise the mean product, by the square of what it moves w by: then it is
        shortened.
        """
        self.steps += 1
        try:
            moved = self._step()
        except LinAlgError:
            moved = None
        if moved is None:
            self.idle = self.tuning.patience
        else:
            self.x, self.low, self.high, self.mu = moved

    def _step(self) -> tuple[FloatArray, ...] | None:
        """Compute x and the multipliers of both ends and of the coupling after a step.

        Returns (x, low, high, mu) for `advance` to set; None if rounding takes the step out of the
        box or makes it infinite.
        """
        of, x, tuning = self.variables, self.x, self.tuning
        below, above = x - of.lo, of.hi - x
        slope = self._slope(self._sum(x))
        lacks = self.total[: len(self.borders)] - self.borders @ x
        low, high = self.low * below, self.high * above
        self.product = mean = float(np.mean(np.append(low, high))) if len(x) else 0.0
        solve = self._system(1.0 / (self.low / below + self.high / above))

        def find_direction(to_low: FloatArray, to_high: FloatArray) -> tuple[FloatArray, ...]:
            """Solve for the direction that aims at these changes of the products of either end."""
            rest = -(slope - self.low + self.high) + to_low / below - to_high / above
            dx, dmu = solve(rest, lacks)
            dlow, dhigh = (to_low - self.low * dx) / below, (to_high + self.high * dx) / above
            return dx, dlow, dhigh, dmu

        def products_after(step: tuple[FloatArray, ...], part: float) -> tuple[float, FloatArray]:
            """Return the length that is ``part`` of the longest step, and all products after it."""
            dx, dlow, dhigh, _ = step
            t = part * _longest_step(
                ((below, dx), (above, -dx), (self.low, dlow), (self.high, dhigh))
            )
            lows = (self.low + t * dlow) * (below + t * dx)
            return t, np.append(lows, (self.high + t * dhigh) * (above - t * dx))

        dx, dlow, dhigh, _ = predictor = find_direction(-low, -high)
        t, products = products_after(predictor, 1.0)
        aim = mean * (float(np.mean(products)) / mean) ** 3 if mean > 0 else 0.0
        for correction, target in ((1.0, aim), (t**2, max(aim, 0.1 * mean)), (0.0, 0.5 * mean)):
            step = find_direction(
                target - low - correction * dx * dlow, target - high + correction * dx * dhigh
            )
            length, products = products_after(step, tuning.max_step)
            new = float(np.mean(products))
            smallest = float(np.min(products, initial=new))
            if new <= 0.9 * mean and smallest >= tuning.min_product_ratio * new:
                break
        part = tuning.max_step
        while new > (1.0 - 0.1 * length) * mean and part > tuning.min_step:
            part *= 0.5
            length, products = products_after(step, part)
            new = float(np.mean(products))
        dx, dlow, dhigh, dmu = step
        moved = (
            x + length * dx,
            self.low + length * dlow,
            self.high + length * dhigh,
            self.mu + length * dmu,
        )
        inside = np.all(moved[0] > of.lo) and np.all(moved[0] < of.hi)
        return moved if inside and all(np.isfinite(part).all() for part in moved) else None

    def _system(
        self, weight: FloatArray
    ) -> Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """Factor the system ``(Q + 1 / weight) dx + borders' dmu = r``, ``borders dx = lacks``.

        Returns the function that solves it for ``r`` and ``lacks``. The system has as many unknowns
        as rows or features, whichever are fewer. Variables of weight 0 do not move. (Two variables
        of one row have the same features: their weights add up.)
        """
        n, m = self.rows.shape
        theta = np.divide(1.0, weight, out=np.zeros(len(weight)), where=weight > 0)
        of_rows = np.bincount(self.row, weight, n).astype(np.float64)
        used = np.flatnonzero(of_rows)
        inner = (
            self._over_rows(weight, of_rows[used], used)
            if len(used) <= m
            else self._over_features(weight, of_rows)
        )

        def solve_refined(r: FloatArray) -> FloatArray:
            """Solve without the coupling, with a few steps of iterative refinement."""
            dx = inner(r)
            for _ in range(self.tuning.refinements):
                dx = dx + inner(r - self._along(self._sum(dx)) - theta * dx)
            return dx

        of_borders = np.array([solve_refined(border) for border in self.borders])
        of_borders = of_borders.reshape(self.borders.shape)
        schur = self.borders @ of_borders.T

        def solve(r: FloatArray, lacks: FloatArray) -> tuple[FloatArray, FloatArray]:
            """Solve with the coupling, by its Schur complement; returns dx and dmu."""
            dx = solve_refined(r)
            if not len(schur):
                return dx, np.empty(0)
            dmu = np.linalg.solve(schur, self.borders @ dx - lacks)
            return dx - dmu @ of_borders, dmu

        return solve

    def _over_features(self, weight: FloatArray, of_rows: FloatArray) -> Solve:
        """Factor ``Q + 1 / weight`` as a system with as many unknowns as features.

        ``of_rows`` (n,): the sum of the weights of each row's variables. Returns the function that
        solves the system.
        """
        matrix = dsyrk(1.0, (self.rows * np.sqrt(of_rows)[:, None]).T, lower=1)
        matrix[np.diag_indices(len(matrix))] += 1.0
        factor = cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)

        def solve(r: FloatArray) -> FloatArray:
            """Solve for a right-hand side r, with an entry for each variable."""
            own = weight * r
            w = cho_solve((factor, True), self._sum(own), check_finite=False)
            return own - weight * self._along(w)

        return solve

    def _over_rows(self, weight: FloatArray, of_rows: FloatArray, used: NDArray[np.int64]) -> Solve:
        """Factor ``Q + 1 / weight`` as a system with an unknown for each row of positive weight.

        ``used``: these rows; ``of_rows``: the sums of the weights of their variables. Returns the
        function that solves the system.
        """
        if len(used) < len(self.rows):
            gram = self.rows[used] @ self.rows[used].T
        else:  # (equal in every step)
            self.gram = self.rows @ self.rows.T if self.gram is None else self.gram
            gram = self.gram
        root = np.sqrt(of_rows)
        matrix = gram * root * root[:, None]
        matrix[np.diag_indices(len(matrix))] += 1.0
        factor = cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
        positive = np.flatnonzero(weight)
        sign, at = self.variables.sign[positive], np.searchsorted(used, self.row[positive])
        single = len(positive) == len(used)

        def solve(r: FloatArray) -> FloatArray:
            """Solve for a right-hand side r, with an entry for each variable."""
            found = np.zeros(len(r))
            # (If every row has one variable, this avoids the difference of two large numbers.)
            part = sign * r[positive] * (1.0 if single else weight[positive])
            seen: FloatArray = np.bincount(at, part, len(used)).astype(np.float64)
            seen = root * seen if single else root * (gram @ seen)
            v = cho_solve((factor, True), seen, check_finite=False)
            if single:
                found[positive] = sign * (root * v)[at]
            else:
                found[positive] = weight[positive] * (r[positive] - sign * (v / root)[at])
            return found

        return solve

    # -- points -----------------------------------------------------------------------------------
    def point(self, target: float) -> Point:
        """Compute the point of alpha, or of the nearest face of the box if its gap is no larger.

        ``target``: the requested relative gap. A face is a set of points at which certain variables
        are at a bound; it is tried once the gap is not far from the target.
        """
        found = self._point(self._alpha(self.x))
        least = min(float(self.least[0]), found.gap)
        self.on_face = False
        near = max(self.tuning.face_gap_factor * target, self.tuning.face_gap)
        if relative_gap(least, found.primal) <= near:
            face = self._point(self._alpha(self._on_face()))
            self.on_face = face.gap <= found.gap
            found = face if self.on_face else found
        return found

    def count(self, point: Point) -> None:
        """Record whether a step has reduced the gap or the mean product by a tenth."""
        reached = np.array([point.gap, self.product])
        self.idle = 0 if np.any(reached < 0.9 * self.least) else self.idle + 1
        self.least = np.minimum(self.least, reached)

    def move_to_face(self, point: Point) -> Point:
        """Take a few more steps to bring rows to their bounds; returns this point if none helps."""
        for _ in range(self.tuning.max_face_steps):
            self.advance()
            other = self.point(point.relative_gap)
            self.count(other)
            if self.on_face and other.gap <= point.gap:
                return other
            if self.idle:
                break
        return point

    def _on_face(self) -> FloatArray:
        """Move variables near a bound to it, and the others to where their gradient vanishes.

        Returns all variables that can move, in the order of ``x``.
        """
        of, size = self.variables, self.variables.hi - self.variables.lo
        unit = float(np.median(np.abs(of.lin))) if len(self.x) else 1.0
        to_low = (self.x - of.lo) * unit < self.low * size
        to_high = (of.hi - self.x) * unit < self.high * size
        x = np.where(to_low & ~to_high, of.lo, np.where(to_high & ~to_low, of.hi, self.x))
        free = (x > of.lo) & (x < of.hi)
        if self.dual.tube is not None:  # (one of a row's two variables is 0)
            larger = np.zeros(len(self.rows))
            np.maximum.at(larger, self.row, x)
            free &= x == larger[self.row]
            x = np.where(free | (x == of.hi), x, of.lo)
        if not np.any(free):
            return x
        largest = max(self.design.data.max_sqnorm + self.constant**2, 1e-300)
        try:
            weight = 1.0 / (self.tuning.face_curvature * largest)
            solve = self._system(np.where(free, weight, 0.0))
            lacks = self.total[: len(self.borders)] - self.borders @ x
            dx, _ = solve(-self._slope(self._sum(x)), lacks)
        except LinAlgError:
            return x
        return np.clip(x + dx, of.lo, of.hi) if np.isfinite(dx).all() else x

    def _alpha(self, x: FloatArray) -> FloatArray:
        """Return feasible alpha of all rows (n,) from the variables that can move."""
        n = len(self.rows)
        whole = self.fixed.copy()
        whole[self.moving] = x
        alpha = whole if self.dual.tube is None else whole[:n] - whole[n:]
        ends = (alpha == self.dual.lo) | (alpha == self.dual.hi)
        if self.dual.tube is not None:
            ends |= alpha == 0.0
        try:
            return self.dual.feasible(alpha, ends)
        except ValueError:  # all rows are at an end: all of them absorb the rounding of the total
            return self.dual.feasible(alpha)

    def _point(self, alpha: FloatArray) -> Point:
        """Compute the point of a feasible alpha (n,), with its Frank-Wolfe gap."""
        dual = self.dual
        w = (dual.sign * alpha) @ self.rows
        scores = self.rows @ w
        mu = 0.0 if dual.coupling is None else dual.multiplier(scores)
        value = dual.value(alpha, float(w @ w))
        gap = dual.frank_wolfe_gap(alpha, scores, mu)
        own = w[: self.design.data.n_features]
        coupled = dual.coupling is not None
        offset = self.constant * float(w[-1]) if self.constant else self.problem.offset(mu)
        return Point(
            own,
            own,
            offset,
            value + gap,
            value,
            paired=True,
            alpha=alpha,
            rounding=3 * self.reach * self.design.score_error(own),
            multiplier=tuple(np.atleast_1d(mu).tolist()) if coupled else (),
        )

    def stats(self) -> dict[str, Any]:
        """Report counts of rows and passes: every step is a pass over all rows."""
        return {
            "rows_visited": len(self.rows),
            "rows_alive": len(self.rows),
            "fixed_hi": 0,
            "fixed_lo": 0,
            "stalled": self.idle >= self.tuning.patience,
            "full_passes": self.steps,
            "partial_passes": 0,
        }

    def save(self, folder: Path, meta: dict[str, Any]) -> None:
        """Write a checkpoint atomically; ``meta``: other values for its record."""
        arrays = {"x": self.x, "low": self.low, "high": self.high, "mu": self.mu}
        record = {
            "steps": self.steps,
            "idle": self.idle,
            "least": self.least.tolist(),
            "product": float(self.product),
        }
        save_alone(folder / CHECKPOINT_NAME, {**meta, "interior": record}, arrays)

    def restore(self, meta: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Continue from what ``save`` wrote, and remove its record from ``meta``."""
        own = meta.pop("interior")
        self.x, self.low, self.high, self.mu = (arrays[k] for k in ("x", "low", "high", "mu"))
        self.steps, self.idle = own["steps"], own["idle"]
        self.least, self.product = np.array(own["least"]), own["product"]


def _longest_step(pairs: tuple[tuple[FloatArray, FloatArray], ...]) -> float:
    """Find the longest step, at most 1, that keeps all values >= 0 along their directions.

    ``pairs``: arrays of values >= 0, each with the array of their changes by a step of length 1.
    """
    t = 1.0
    for value, step in pairs:
        down = step < 0
        if np.any(down):
            t = min(t, float(np.min(-value[down] / step[down])))
    return t
