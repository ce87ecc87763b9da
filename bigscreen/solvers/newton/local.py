"""The smoothed problem over a few rows, every other row held to the side it is on.

Rows far from their kink add a linear function to P, whose slope is known from the pass before:
what is left has as many rows as can matter, held as features by the coordinator. The
Newton steps on it cost no pass. Rows that leave their side all the same are found by the next
pass and taken in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.cholesky import Factor, factorise
from bigscreen.numerics.rows import FloatArray, njit
from bigscreen.problems.point import read_off
from bigscreen.solvers.newton.algebra import Algebra
from bigscreen.solvers.newton.shard import NearbyRows
from bigscreen.solvers.newton.state import off_kink, zone_widths

MOMENT_ROWS = 1024
"""Rows whose second moment one thread computes at once."""

BLOCK, MANY = 256, 2048
"""Columns, and rows, that one thread works at."""

MOST_LOCAL_STEPS = 60
"""Newton steps between two passes, at most."""

REFINED = 12
"""Steps of conjugate gradients that refine a direction, at most."""

INEXACT = 0.1
"""Part of the gradient, in the Hessian's norm, that a direction may leave."""


class Local:
    """Newton steps over the rows at hand.

    Parameters
    ----------
    algebra : Algebra
    x : float64 (size,)
        Where the shards stand, (w, extras).
    gradient : float64 (size,)
        Of P over all rows at x, smoothed by h.
    h : float
    most : int
        Rows that may be at hand.
    dtype : type
        Of their features, and of the factors that directions come from.
    """

    def __init__(
        self,
        algebra: Algebra,
        x: FloatArray,
        gradient: FloatArray,
        h: float,
        most: int,
        dtype: type = np.float32,
    ) -> None:
        self.start, self.start_gradient, self.start_h = x, gradient, h
        self.algebra, self.metric = algebra, algebra.metric
        self.x, self.h = x, h
        self.rows = NearbyRows.none(len(x))
        self._features: NDArray[Any] = np.empty((most, len(x)), dtype)
        self.G = self._alpha = np.empty(0)
        self._sums = np.zeros(len(x))
        self.decrement = self.left = np.inf
        """What the last step promised, and ``||gradient||^2 / 2``."""
        self._solved: Callable[[FloatArray], FloatArray] | None = None
        self._curved = np.empty(0)
        self._moment: NDArray[Any] = np.zeros((len(x), len(x)), dtype)
        self._hessian = np.empty_like(self._moment)

    @property
    def room(self) -> NDArray[Any]:
        """Where the features of the rows to be added are to be written."""
        return self._features[len(self.G) :]

    def moved(self, before: FloatArray) -> float:
        """How far gradients of the rows at hand are from those before, root mean square."""
        apart = self.G[: len(before)] - before
        return float(np.sqrt(apart @ apart / max(len(apart), 1)))

    def add(self, rows: NearbyRows, alpha: FloatArray) -> None:
        """Take in rows, whose features stand in ``room``; their G is that at the start.

        ``alpha`` (rows,): that which the gradient there has of them; where it is NaN, that of the
        smoothed loss.
        """
        base, free = alpha.copy(), np.isnan(alpha)
        base[free] = read_off(rows.dual[free], rows.G[free], self.start_h)
        known = len(self.G)
        self.rows = self.rows.and_more(rows, self._features)
        G = rows.G - self._products(known + np.arange(len(rows.G)), self.x - self.start)
        self._alpha, self.G = np.concatenate([self._alpha, base]), np.concatenate([self.G, G])
        self._curved = np.concatenate([self._curved, np.zeros(len(G))])

    def solve(self, gap: float, lowest: float) -> int:
        """Step until h is as low as asked, or as this gap needs, and x at its end.

        Returns the number of steps; -1 where none could be computed.
        """
        for taken in range(MOST_LOCAL_STEPS):
            dual, h = self.rows.dual, self.h
            zone = np.flatnonzero(off_kink(dual, self.G) <= h)
            width, middle = zone_widths(dual[zone], self.G[zone], h)
            cost = float(np.sum(width)) * h / 12
            gradient = self._gradient()
            self.left = 0.5 * float(self.metric @ gradient**2)
            floor = max(h * float(np.sqrt(0.5 * gap / cost)) if cost > 0 else 0.0, lowest)
            last = floor >= 0.7 * h
            # By the Hessian of the step before: good enough to tell when h may fall.
            promised = 0.5 * float(gradient @ self._solved(gradient)) if self._solved else np.inf
            if last and promised <= 0.1 * cost and self.left <= 0.2 * gap:
                return taken
            if last and lowest >= 0.7 * h and promised <= cost:
                return taken
            towards = gradient
            if not last and promised <= cost:
                self.h = max(h / (4 if promised <= 0.1 * cost else 2), floor)
                # The zone's rows as they are: alpha is linear within it, so this is the exact
                # step of the path in h while no row enters or leaves it.
                more = (h / self.h - 1) * (self._alpha[zone] - middle)
                towards = gradient - self._weighted(zone, more)
            step = self._direction(zone, width / (2 * self.h), towards)
            if step is None:
                return taken or -1
            self.decrement = -0.5 * float(towards @ step)
            if self.h < h:
                gradient = self._gradient()
            if not self._move(step, gradient):
                return taken or -1
        return MOST_LOCAL_STEPS

    def read(self) -> tuple[FloatArray, FloatArray, float]:
        """At x: alpha of the rows at hand, their w(alpha) with all others', and P - D."""
        left, dual = self._gradient(), self.rows.dual
        losses = dual.hi * np.maximum(self.G, 0.0) + dual.lo * np.minimum(self.G, 0.0)
        gap = float(np.sum(losses - self._alpha * self.G))
        return self._alpha, self.x - left, gap + 0.5 * float(self.metric @ left**2)

    def _gradient(self) -> FloatArray:
        """Of P smoothed by h, at x: what has changed since the start is known row by row."""
        alpha = read_off(self.rows.dual, self.G, self.h)
        changed = np.flatnonzero(alpha != self._alpha)
        change = alpha[changed] - self._alpha[changed]
        self._sums += self._weighted(changed, change)
        self._alpha = alpha
        return self.start_gradient + self.metric * (self.x - self.start) - self._sums

    def _direction(
        self, zone: NDArray[np.int64], curve: FloatArray, gradient: FloatArray
    ) -> FloatArray | None:
        """``-H^-1 gradient``, near enough: a float32 factor, refined by conjugate gradients."""
        diagonal = self.algebra.damping(gradient)
        self._update(zone, curve)
        factor = self._factor(diagonal)
        if factor is None:
            # What was added and taken away again has left too much behind: anew.
            self._curved[:] = np.nan
            self._update(zone, curve)
            factor = self._factor(diagonal)
        if factor is None:
            return None

        def solved(v: FloatArray) -> FloatArray:
            return np.asarray(factor.solve(v), np.float64)

        self._solved = solved
        step, left = np.zeros(len(gradient)), -gradient
        near = solved(left)
        towards, size = near, float(left @ near)
        enough = INEXACT**2 * size
        for _ in range(REFINED):
            if not size > enough:
                break
            along = curve * self._products(zone, towards)
            image = diagonal * towards + self._weighted(zone, along)
            length = size / float(towards @ image)
            step = step + length * towards
            left = left - length * image
            near = solved(left)
            before, size = size, float(left @ near)
            towards = near + size / before * towards
        return step if np.isfinite(step).all() and float(step @ gradient) < 0 else None

    def _factor(self, diagonal: FloatArray) -> Factor | None:
        """Cholesky's factor of the Hessian; None where that is not positive definite."""
        hessian = np.multiply(self._moment, self._moment.dtype.type(self._scale), out=self._hessian)
        hessian[np.diag_indices_from(hessian)] += diagonal.astype(hessian.dtype)
        return factorise(hessian, lower=True)

    def _update(self, zone: NDArray[np.int64], curve: FloatArray) -> None:
        """The second moment of the zone: only rows whose weight has changed are multiplied."""
        largest = float(np.max(curve, initial=0.0))
        self._scale = largest if largest > 0 else 1.0
        new = np.zeros(len(self.G))
        new[zone] = curve / self._scale
        changed = np.flatnonzero(new != self._curved)
        if 2 * len(changed) > len(zone):  # (NaN has changed)
            self._moment[...] = 0.0
            self._curved = np.zeros(len(self.G))
            changed = zone
        change = new[changed] - self._curved[changed]
        self._add(changed[change > 0], change[change > 0])
        self._add(changed[change < 0], change[change < 0])
        self._curved = new

    def _add(self, used: NDArray[np.int64], change: FloatArray) -> None:
        """Add to the moment that of these rows, weighted by changes of one sign."""
        dtype = self._moment.dtype
        weight = np.sqrt(np.abs(change)).astype(dtype)[:, None]

        def part(start: int) -> NDArray[Any]:
            rows = slice(start, start + MOMENT_ROWS)
            scaled = self.rows.feature[used[rows]] * weight[rows]
            return cast("NDArray[Any]", scaled.T @ scaled)

        # In the order of the rows, whichever thread ends first.
        for more in self.algebra.at_once(part, range(0, len(used), MOMENT_ROWS)):
            if change[0] > 0:
                self._moment += more
            else:
                self._moment -= more

    def _products(self, used: NDArray[np.int64], v: FloatArray) -> FloatArray:
        """``rows[used] @ v``, summed in float64."""
        out, v = np.empty(len(used)), np.ascontiguousarray(v)

        def block(start: int) -> None:
            part = slice(start, start + MANY)
            _products(self.rows.feature, used[part], v, out[part])

        self.algebra.at_once(block, range(0, len(used), MANY))
        return out

    def _weighted(self, used: NDArray[np.int64], weight: FloatArray) -> FloatArray:
        """``weight @ rows[used]``, summed in float64."""
        out = np.zeros(len(self.x))

        def block(start: int) -> None:
            _weighted(self.rows.feature, used, weight, start, out[start : start + BLOCK])

        self.algebra.at_once(block, range(0, len(out), BLOCK))
        return out

    def _move(self, step: FloatArray, gradient: FloatArray) -> bool:
        """Go along the step to about where P is least."""
        change = -self._products(np.arange(len(self.G)), step)
        dual, now = self.rows.dual, self._alpha
        linear, square = float(gradient @ step), float(self.metric @ step**2)

        def slope(length: float) -> float:
            alpha = read_off(dual, self.G + length * change, self.h)
            return linear + length * square + float(np.sum((alpha - now) * change))

        if not linear < 0:
            return False
        length = _root(slope, linear)
        self.x, self.G = self.x + length * step, self.G + length * change
        return True


def _root(slope: Callable[[float], float], at_low: float) -> float:
    """About where an increasing function is 0 that is ``at_low`` < 0 at 0."""
    enough, low, high, at_high = 0.1 * abs(at_low), 0.0, 1.0, slope(1.0)
    while at_high < -enough and high < 64:
        low, at_low, high = high, at_high, 2 * high
        at_high = slope(high)
    middle, value = high, at_high
    for _ in range(20):
        if value < 0 and middle == high or abs(value) <= enough:
            break
        middle = low - at_low * (high - low) / (at_high - at_low)
        tenth = 0.1 * (high - low)
        middle = min(max(middle, low + tenth), high - tenth)
        value = slope(middle)
        if value > 0:
            high, at_high = middle, value
        else:
            low, at_low = middle, value
    return middle


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _products(rows: NDArray[Any], used: NDArray[np.int64], v: FloatArray, out: FloatArray) -> None:
    for k in range(len(used)):
        row, total = rows[used[k]], 0.0
        for j in range(len(v)):
            total += row[j] * v[j]
        out[k] = total


@njit(cache=True, nogil=True, fastmath={"contract"})
def _weighted(
    rows: NDArray[Any],
    used: NDArray[np.int64],
    weight: FloatArray,
    start: int,
    out: FloatArray,
) -> None:
    for k in range(len(used)):
        row = rows[used[k], start : start + len(out)]
        for j in range(len(out)):
            out[j] += weight[k] * row[j]
