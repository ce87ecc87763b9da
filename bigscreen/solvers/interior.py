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

PLACE = "interior"
"""Where in the folder of a problem the checkpoints are."""


@dataclass(frozen=True)
class InteriorTuning:
    """Tuned values of the interior point's steps.

    Parameters
    ----------
    step : float
        Part of the way to the nearest bound that a step goes at most.
    shortest : float
        Part of that way below which a step is made no shorter.
    inside : float
        Part of its box that a variable is from its ends at first.
    apart : float
        Part of the mean product that the smallest may be, or a step is made anew.
    refined : int
        Times that a direction is mended by what its system leaves.
    patience : int
        Steps without a tenth off the gap or the products after which rounding lets none come.
    further : int
        Steps that go on at most, where the gap is met, until all but few rows are at a bound.
    near, near_gap : float
        From this multiple of the requested gap on, or from this relative gap on, it is tried which
        rows are at a bound.
    face : float
        Curvature that rows off their bounds are given beside their own, as a part of the largest.
    """

    step: float = 0.995
    shortest: float = 1e-3
    inside: float = 1e-2
    apart: float = 1e-3
    refined: int = 2
    patience: int = 15
    further: int = 5
    near: float = 1e3
    near_gap: float = 1e-4
    face: float = 1e-12


@dataclass(frozen=True)
class InteriorCosts:
    """What a solve takes, in terms that pair steps add up: each about a nanosecond.

    Parameters
    ----------
    setup : float
        Terms that a solve takes whatever there is to solve.
    steps : float
        Its steps (measured: 8 to 35).
    products : float
        Products of a step's system that take as long as a term.
    sums : float
        Terms that the rest of a step takes for a feature of a row.
    entry : float
        Terms that a float64 kernel entry takes.
    factored : float
        Products of the matrix' factor that take as long as a term.
    pair : float
        Terms that a step on a pair takes beside its sums over rows.
    max_step_products : float
        Products of a step at most, for a plan or another solver's successor.
    """

    setup: float = 1e8
    steps: float = 30.0
    products: float = 20.0
    sums: float = 40.0
    entry: float = 10.0
    factored: float = 40.0
    pair: float = 200.0
    max_step_products: float = 5e9


INTERIOR, COSTS = InteriorTuning(), InteriorCosts()

Solve = Callable[[FloatArray], FloatArray]
"""What solves a system for a right side, each with an entry a variable."""


def terms(n: int, m: int) -> float:
    """What a solve of n rows of m features takes, in terms of pair steps' sums."""
    return COSTS.setup + COSTS.steps * n * m * (min(n, m) / COSTS.products + COSTS.sums)


def factor_terms(n: int) -> float:
    """What it takes to begin with, and to make features of a kernel matrix of n rows, at most."""
    return COSTS.setup + n**2 * (COSTS.entry + n / COSTS.factored)


def pair_terms(steps: int, n: int) -> float:
    """What so many pair steps over n rows have taken."""
    return steps * (n + COSTS.pair)


def interior_fits(n: int, m: int, room: float) -> bool:
    """Whether an interior point could solve n rows of m columns soon, in so many bytes."""
    return interior_is_quick(n, m) and interior_bytes(n, m) <= room


def interior_is_quick(n: int, m: int) -> bool:
    """Whether a step on n rows of m columns takes no more products than `InteriorCosts` allow."""
    return float(n) * m * min(n, m) <= COSTS.max_step_products


def interior_bytes(n: int, m: int) -> int:
    """Bytes of an interior point: 3 float64 copies of n rows of m columns, and of its matrix."""
    return 8 * (3 * n * m + 3 * min(n, m) ** 2)


class KernelFeatures:
    """Features whose products are the entries of a kernel, made once steps on alpha cost as much.

    Parameters
    ----------
    make : callable
        Makes the features (n, rank).
    least : float
        Terms below which steps have cost less than this takes.
    """

    def __init__(self, make: Callable[[], Any], least: float) -> None:
        self._make, self._least = make, least
        self._making, self._made = threading.Lock(), None

    @property
    def made(self) -> Any:
        """The features, made by the first thread that asks."""
        with self._making:
            if self._made is None:
                self._made = self._make()
            return self._made

    def are_worth(self, spent: float, rows: int) -> bool:
        """Whether steps that have cost so many terms cost more than an interior point over rows."""
        if spent < self._least:
            return False
        rank = self.made.shape[1]
        return rank > 0 and spent > terms(rows, rank)  # (no feature: all entries are 0)


@dataclass(frozen=True)
class InteriorPoint:
    """Mehrotra's predictor and corrector on the dual, all rows dense in float64 in one process.

    Every step solves one system of as many unknowns as there are rows or features, whichever are
    fewer: some 15 to 35 steps come to any gap, however ill-conditioned the features are and however
    large C is, where steps on single rows, or over a smoothed loss, would take for ever.
    """

    def solve(self, run: Run, check: Check) -> Point:
        """Solve to whatever ``check`` asks for; returns the last point.

        A start that is given is moved inside its box.

        Raises
        ------
        InputError
            For columns that are not explicit features, or squared losses.
        """
        path = _Path(run)
        found = load_alone(run.checkpoint, PLACE)
        if found is not None:
            path.restore(*found)
            check.restored(found[0])
        going = found is None
        while True:
            if going:
                path.advance()
            point = path.point(check.target)
            if going:  # what a checkpoint was written after has been counted
                path.count(point)
                if not path.on_face and point.relative_gap <= check.target:
                    point = path.further(point)
            verdict = check(point, path.stats(), path.save)
            if verdict is None:
                return point
            going = True


class _Halves(NamedTuple):
    """The variables: one a row, or with a tube two, whose difference alpha is (n or 2 n,).

    ``sign`` is that of a variable's features, ``way`` what it adds to the coupling.
    """

    sign: FloatArray
    lin: FloatArray
    lo: FloatArray
    hi: FloatArray
    way: FloatArray
    group: NDArray[np.int64]

    @classmethod
    def of(cls, dual: Dual) -> _Halves:
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


class _Path:
    """x strictly within its box, multipliers of both ends, and how far they have come.

    ``x`` are the variables that can move, ``low`` and ``high`` the multipliers of their ends; they
    keep to ``x - lo``, ``hi - x`` in a step by step smaller product.
    """

    def __init__(self, run: Run) -> None:
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
        all_of: Any = _Halves.of(self.dual)
        self.moving = np.flatnonzero(all_of.hi > all_of.lo)
        self.of = _Halves(*(part[self.moving] for part in all_of))
        self.fixed = np.where(all_of.hi > all_of.lo, 0.0, all_of.lo)
        self.place = self.moving % n
        """Of every variable its row."""
        used = range(len(self.total)) if self.dual.coupling is not None else range(0)
        self.borders = np.array([np.where(self.of.group == g, self.of.way, 0.0) for g in used])
        self.borders = self.borders.reshape(len(used), len(self.moving))
        self.gram: FloatArray | None = None
        self.steps = self.idle = 0
        self.least = np.array([np.inf, np.inf])
        """The smallest gap and the smallest mean product so far."""
        self.product = np.inf
        self.on_face = False
        self.begin(run.start)

    # -- where it stands --------------------------------------------------------------------------
    def begin(self, alpha: FloatArray | None) -> None:
        """Start where D is largest on the way from 0 to the middle of the box; or near an alpha."""
        of = self.of
        middle = 0.5 * (of.lo + of.hi)
        if alpha is not None:
            parts = alpha if self.dual.tube is None else np.concatenate([alpha, -alpha])
            self.x = 0.9 * np.clip(parts[self.moving], of.lo, of.hi) + 0.1 * middle
        else:
            w = self._sum(middle)
            steep, square = float(of.lin @ middle), float(w @ w)
            t = steep / square if 0.0 < steep < square else 1.0
            room = INTERIOR.inside * (of.hi - of.lo)
            self.x = np.clip(t * middle, of.lo + room, of.hi - room)
        self.mu = np.zeros(len(self.borders))
        slope = self._slope(self._sum(self.x))
        # None far below the others: a step goes no farther than to the first that vanishes.
        least = max(1.0, float(np.mean(np.abs(slope)))) if len(slope) else 1.0
        self.low, self.high = (np.maximum(part, 0.0) + least for part in (slope, -slope))

    def _sum(self, x: FloatArray) -> FloatArray:
        """``sum sign_i x_i phi_i`` (m,), of the variables that move."""
        n = len(self.rows)
        coef = np.bincount(self.place, self.of.sign * x, n) if len(x) else np.zeros(n)
        found: FloatArray = coef @ self.rows
        return found

    def _along(self, w: FloatArray) -> FloatArray:
        """``sign_i <w, phi_i>`` of every variable."""
        found: FloatArray = self.of.sign * (self.rows @ w)[self.place]
        return found

    def _slope(self, w: FloatArray) -> FloatArray:
        """The gradient of what is minimised, the coupling's part included."""
        slope: FloatArray = self._along(w) - self.of.lin + self.mu @ self.borders
        return slope

    # -- steps ------------------------------------------------------------------------------------
    @np.errstate(over="ignore", invalid="ignore")  # a step that is no number is not taken
    def advance(self) -> None:
        """One step, of ``(Q + theta) dx + borders' dmu = r``, ``borders dx = lacks``.

        Where all products would vanish first, and from that what is aimed at, and how far products
        are from what their sums promise. Mended by that a step can turn in circles: where products
        fall too little, or some run ahead of the others, by less of it, and at last not at all. Nor
        does a whole step lower their mean for certain, as the square of what it moves w by adds to
        that; a short one does.
        """
        self.steps += 1
        try:
            moved = self._step()
        except LinAlgError:
            moved = None
        if moved is None:
            self.idle = INTERIOR.patience
        else:
            self.x, self.low, self.high, self.mu = moved

    def _step(self) -> tuple[FloatArray, ...] | None:
        """x and the multipliers after it; None where rounding lets there be none."""
        of, x = self.of, self.x
        below, above = x - of.lo, of.hi - x
        slope = self._slope(self._sum(x))
        lacks = self.total[: len(self.borders)] - self.borders @ x
        low, high = self.low * below, self.high * above
        self.product = mean = float(np.mean(np.append(low, high))) if len(x) else 0.0
        solve = self._system(1.0 / (self.low / below + self.high / above))

        def direction(to_low: FloatArray, to_high: FloatArray) -> tuple[FloatArray, ...]:
            rest = -(slope - self.low + self.high) + to_low / below - to_high / above
            dx, dmu = solve(rest, lacks)
            dlow, dhigh = (to_low - self.low * dx) / below, (to_high + self.high * dx) / above
            return dx, dlow, dhigh, dmu

        def after(step: tuple[FloatArray, ...], part: float) -> tuple[float, FloatArray]:
            dx, dlow, dhigh, _ = step
            t = part * _reach(((below, dx), (above, -dx), (self.low, dlow), (self.high, dhigh)))
            lows = (self.low + t * dlow) * (below + t * dx)
            return t, np.append(lows, (self.high + t * dhigh) * (above - t * dx))

        dx, dlow, dhigh, _ = straight = direction(-low, -high)
        t, products = after(straight, 1.0)
        aim = mean * (float(np.mean(products)) / mean) ** 3 if mean > 0 else 0.0
        for bent, aimed in ((1.0, aim), (t**2, max(aim, 0.1 * mean)), (0.0, 0.5 * mean)):
            step = direction(aimed - low - bent * dx * dlow, aimed - high + bent * dx * dhigh)
            length, products = after(step, INTERIOR.step)
            most = float(np.mean(products))
            if (
                most <= 0.9 * mean
                and float(np.min(products, initial=most)) >= INTERIOR.apart * most
            ):
                break
        part = INTERIOR.step
        while most > (1.0 - 0.1 * length) * mean and part > INTERIOR.shortest:
            part *= 0.5
            length, products = after(step, part)
            most = float(np.mean(products))
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
        """What solves ``(Q + 1 / weight) dx + borders' dmu = r``, ``borders dx = lacks``.

        Of as many unknowns as rows or features, the fewer. Variables of weight 0 stay. (Two of one
        row have the same features: their weights add up.)
        """
        n, m = self.rows.shape
        theta = np.divide(1.0, weight, out=np.zeros(len(weight)), where=weight > 0)
        of_rows = np.bincount(self.place, weight, n).astype(np.float64)
        used = np.flatnonzero(of_rows)
        inner = (
            self._over_rows(weight, of_rows[used], used)
            if len(used) <= m
            else self._over_features(weight, of_rows)
        )

        def solved(r: FloatArray) -> FloatArray:
            dx = inner(r)
            for _ in range(INTERIOR.refined):
                dx = dx + inner(r - self._along(self._sum(dx)) - theta * dx)
            return dx

        of_borders = np.array([solved(border) for border in self.borders])
        of_borders = of_borders.reshape(self.borders.shape)
        schur = self.borders @ of_borders.T

        def solve(r: FloatArray, lacks: FloatArray) -> tuple[FloatArray, FloatArray]:
            dx = solved(r)
            if not len(schur):
                return dx, np.empty(0)
            dmu = np.linalg.solve(schur, self.borders @ dx - lacks)
            return dx - dmu @ of_borders, dmu

        return solve

    def _over_features(self, weight: FloatArray, of_rows: FloatArray) -> Solve:
        """``(Q + 1 / weight)^-1``, of as many unknowns as features."""
        matrix = dsyrk(1.0, (self.rows * np.sqrt(of_rows)[:, None]).T, lower=1)
        matrix[np.diag_indices(len(matrix))] += 1.0
        factor = cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)

        def solve(r: FloatArray) -> FloatArray:
            own = weight * r
            w = cho_solve((factor, True), self._sum(own), check_finite=False)
            return own - weight * self._along(w)

        return solve

    def _over_rows(self, weight: FloatArray, of_rows: FloatArray, used: NDArray[np.int64]) -> Solve:
        """The same, of as many unknowns as rows of which a variable has a weight."""
        if len(used) < len(self.rows):
            gram = self.rows[used] @ self.rows[used].T
        else:  # the same in every step
            self.gram = self.rows @ self.rows.T if self.gram is None else self.gram
            gram = self.gram
        root = np.sqrt(of_rows)
        matrix = gram * root * root[:, None]
        matrix[np.diag_indices(len(matrix))] += 1.0
        factor = cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
        those = np.flatnonzero(weight)
        sign, at = self.of.sign[those], np.searchsorted(used, self.place[those])
        single = len(those) == len(used)

        def solve(r: FloatArray) -> FloatArray:
            found = np.zeros(len(r))
            # (Without a difference of two large numbers where every row has one variable.)
            part = sign * r[those] * (1.0 if single else weight[those])
            seen: FloatArray = np.bincount(at, part, len(used)).astype(np.float64)
            seen = root * seen if single else root * (gram @ seen)
            v = cho_solve((factor, True), seen, check_finite=False)
            if single:
                found[those] = sign * (root * v)[at]
            else:
                found[those] = weight[those] * (r[those] - sign * (v / root)[at])
            return found

        return solve

    # -- what it hands out ------------------------------------------------------------------------
    def point(self, target: float) -> Point:
        """The point of alpha; or of the vertex or face that it is next to, where that is better."""
        found = self._point(self._alpha(self.x))
        least = min(float(self.least[0]), found.gap)
        self.on_face = False
        if relative_gap(least, found.primal) <= max(INTERIOR.near * target, INTERIOR.near_gap):
            face = self._point(self._alpha(self._on_face()))
            self.on_face = face.gap <= found.gap
            found = face if self.on_face else found
        return found

    def count(self, point: Point) -> None:
        """Note whether a step has come closer."""
        reached = np.array([point.gap, self.product])
        self.idle = 0 if np.any(reached < 0.9 * self.least) else self.idle + 1
        self.least = np.minimum(self.least, reached)

    def further(self, point: Point) -> Point:
        """A point on its face, a few steps on; or this one, of which every row has some alpha."""
        for _ in range(INTERIOR.further):
            self.advance()
            other = self.point(point.relative_gap)
            self.count(other)
            if self.on_face and other.gap <= point.gap:
                return other
            if self.idle:
                break
        return point

    def _on_face(self) -> FloatArray:
        """x with what is next to a bound at it, and the others where their gradient vanishes."""
        of, size = self.of, self.of.hi - self.of.lo
        unit = float(np.median(np.abs(of.lin))) if len(self.x) else 1.0
        to_low = (self.x - of.lo) * unit < self.low * size
        to_high = (of.hi - self.x) * unit < self.high * size
        x = np.where(to_low & ~to_high, of.lo, np.where(to_high & ~to_low, of.hi, self.x))
        free = (x > of.lo) & (x < of.hi)
        if self.dual.tube is not None:  # of two halves of a row one is 0
            larger = np.zeros(len(self.rows))
            np.maximum.at(larger, self.place, x)
            free &= x == larger[self.place]
            x = np.where(free | (x == of.hi), x, of.lo)
        if not np.any(free):
            return x
        largest = max(self.design.data.max_sqnorm + self.constant**2, 1e-300)
        try:
            solve = self._system(np.where(free, 1.0 / (INTERIOR.face * largest), 0.0))
            lacks = self.total[: len(self.borders)] - self.borders @ x
            dx, _ = solve(-self._slope(self._sum(x)), lacks)
        except LinAlgError:
            return x
        return np.clip(x + dx, of.lo, of.hi) if np.isfinite(dx).all() else x

    def _alpha(self, x: FloatArray) -> FloatArray:
        """Of all rows; one of the two halves of a row with a tube is 0."""
        n = len(self.rows)
        whole = self.fixed.copy()
        whole[self.moving] = x
        alpha = whole if self.dual.tube is None else whole[:n] - whole[n:]
        ends = (alpha == self.dual.lo) | (alpha == self.dual.hi)
        if self.dual.tube is not None:
            ends |= alpha == 0.0
        try:
            return self.dual.feasible(alpha, ends)
        except ValueError:  # a vertex: what rounding left of the total is taken from all
            return self.dual.feasible(alpha)

    def _point(self, alpha: FloatArray) -> Point:
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
        """Every step goes over all rows."""
        return {
            "rows_visited": len(self.rows),
            "rows_alive": len(self.rows),
            "fixed_hi": 0,
            "fixed_lo": 0,
            "stalled": self.idle >= INTERIOR.patience,
            "full_passes": self.steps,
            "partial_passes": 0,
        }

    def save(self, folder: Path, meta: dict[str, Any]) -> None:
        """Write a checkpoint: whole or not at all."""
        arrays = {"x": self.x, "low": self.low, "high": self.high, "mu": self.mu}
        record = {
            "steps": self.steps,
            "idle": self.idle,
            "least": self.least.tolist(),
            "product": float(self.product),
        }
        save_alone(folder / PLACE, {**meta, "interior": record}, arrays)

    def restore(self, meta: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Go on from what ``save`` wrote; ``meta`` is then what it was given."""
        own = meta.pop("interior")
        self.x, self.low, self.high, self.mu = (arrays[k] for k in ("x", "low", "high", "mu"))
        self.steps, self.idle = own["steps"], own["idle"]
        self.least, self.product = np.array(own["least"]), own["product"]


def _reach(pairs: tuple[tuple[FloatArray, FloatArray], ...]) -> float:
    """How far all these go along their directions before one of them is 0, at most 1."""
    t = 1.0
    for value, step in pairs:
        down = step < 0
        if np.any(down):
            t = min(t, float(np.min(-value[down] / step[down])))
    return t
