"""The smoothed problem over gathered rows alone: every other row stays at its side.

Rows far from their hinge point add a linear function to P, whose slope is known from the last full
pass. The coordinator gathers the features of the rows that remain. Newton steps over them need no
pass. Rows that leave their side all the same are found by the next pass, and gathered.
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
from bigscreen.solvers.newton.shard import GatheredRows
from bigscreen.solvers.newton.state import band_widths, hinge_distance
from bigscreen.solvers.newton.tuning import NEWTON, NewtonTuning


class LocalProblem:
    """P over gathered rows, and Newton steps that minimise it.

    Parameters
    ----------
    algebra : Algebra
    x : float64 (size,)
        The iterate that local steps start from, (w, extras).
    gradient : float64 (size,)
        Gradient at x of P over all rows, smoothed by h.
    h : float
        Half the width of the smoothing band at the start.
    most : int
        Rows that may be gathered.
    dtype : type
        Type of their features, and of the factors that directions come from.
    tuning : NewtonTuning

    Attributes
    ----------
    x, h : float64 (size,), float
        The current iterate and smoothing.
    rows, G : GatheredRows, float64 (rows,)
        The gathered rows, and their gradients at x.
    """

    def __init__(
        self,
        algebra: Algebra,
        x: FloatArray,
        gradient: FloatArray,
        h: float,
        most: int,
        dtype: type = np.float32,
        tuning: NewtonTuning = NEWTON,
    ) -> None:
        """Start without rows; ``add`` adds them."""
        self.start, self.start_gradient, self.start_h = x, gradient, h
        self.algebra, self.metric, self.tuning = algebra, algebra.metric, tuning
        self.x, self.h = x, h
        self.rows = GatheredRows.none(len(x))
        self._features: NDArray[Any] = np.empty((most, len(x)), dtype)
        self.G = self._alpha = np.empty(0)
        self._changes = np.zeros(len(x))
        """Change of ``sum s alpha [phi, border]`` since the start."""
        self.decrement = self.gradient_cost = np.inf
        """The decrease that the last step promised, and ``||gradient||^2 / 2``."""
        self._solve_hessian: Callable[[FloatArray], FloatArray] | None = None
        """Solves with the Hessian of the last step."""
        self._curvature = np.empty(0)
        """Weight of every row in the second moment, in units of ``_scale``."""
        self._moment: NDArray[Any] = np.zeros((len(x), len(x)), dtype)
        self._hessian = np.empty_like(self._moment)

    @property
    def room(self) -> NDArray[Any]:
        """The unused lines of the feature table (rows left, size).

        A caller of ``add`` writes the features of the new rows to the first of these lines before.
        """
        return self._features[len(self.G) :]

    def root_mean_move(self, before: FloatArray) -> float:
        """Return the root mean square by which the rows' G have moved from ``before`` (rows,)."""
        apart = self.G[: len(before)] - before
        return float(np.sqrt(apart @ apart / max(len(apart), 1)))

    def add(self, rows: GatheredRows, alpha: FloatArray) -> None:
        """Add rows, whose features are in ``room`` already; their G is the one at the start.

        ``alpha`` (rows,) is the rows' alpha in the gradient at the start; NaN stands for the
        slope of the smoothed loss.
        """
        base, free = alpha.copy(), np.isnan(alpha)
        base[free] = read_off(rows.dual[free], rows.G[free], self.start_h)
        known = len(self.G)
        self.rows = self.rows.extend(rows, self._features)
        G = rows.G - self._products(known + np.arange(len(rows.G)), self.x - self.start)
        self._alpha, self.G = np.concatenate([self._alpha, base]), np.concatenate([self.G, G])
        self._curvature = np.concatenate([self._curvature, np.zeros(len(G))])

    def solve(self, gap: float, lowest: float) -> int:
        """Take Newton steps until h suits the gap, or is ``lowest``, and x minimises P.

        ``gap``: requested P - D over the gathered rows; ``lowest``: h is not lowered below this
        half-width of the smoothing band. Returns the number of steps; -1 if none
        could be computed.
        """
        for taken in range(self.tuning.max_local_steps):
            dual, h = self.rows.dual, self.h
            band = np.flatnonzero(hinge_distance(dual, self.G) <= h)
            width, middle = band_widths(dual[band], self.G[band], h)
            cost = float(np.sum(width)) * h / 12
            gradient = self._gradient()
            self.gradient_cost = 0.5 * float(self.metric @ gradient**2)
            floor = max(h * float(np.sqrt(0.5 * gap / cost)) if cost > 0 else 0.0, lowest)
            last = floor >= 0.7 * h
            # By the Hessian of the last step: exact enough to decide when h may fall.
            solve = self._solve_hessian
            promised = 0.5 * float(gradient @ solve(gradient)) if solve else np.inf
            if last and promised <= 0.1 * cost and self.gradient_cost <= 0.2 * gap:
                return taken
            if last and lowest >= 0.7 * h and promised <= cost:
                return taken
            target = gradient
            if not last and promised <= cost:
                self.h = max(h / (4 if promised <= 0.1 * cost else 2), floor)
                # Alpha of band rows is linear in G. So this is the exact step of the path in h, as
                # long as no row enters or leaves the band.
                more = (h / self.h - 1) * (self._alpha[band] - middle)
                target = gradient - self._weighted_sum(band, more)
            step = self._direction(band, width / (2 * self.h), target)
            if step is None:
                return taken or -1
            self.decrement = -0.5 * float(target @ step)
            if self.h < h:
                gradient = self._gradient()
            if not self._search_line(step, gradient):
                return taken or -1
        return self.tuning.max_local_steps

    def read(self) -> tuple[FloatArray, FloatArray, float]:
        """Return alpha of the gathered rows, w(alpha) of all rows, and P - D, at x."""
        left, dual = self._gradient(), self.rows.dual
        losses = dual.hi * np.maximum(self.G, 0.0) + dual.lo * np.minimum(self.G, 0.0)
        gap = float(np.sum(losses - self._alpha * self.G))
        return self._alpha, self.x - left, gap + 0.5 * float(self.metric @ left**2)

    def _gradient(self) -> FloatArray:
        """Compute the gradient of P smoothed by h at x, from what has changed since the start."""
        alpha = read_off(self.rows.dual, self.G, self.h)
        changed = np.flatnonzero(alpha != self._alpha)
        change = alpha[changed] - self._alpha[changed]
        self._changes += self._weighted_sum(changed, change)
        self._alpha = alpha
        return self.start_gradient + self.metric * (self.x - self.start) - self._changes

    def _direction(
        self, band: NDArray[np.int64], curve: FloatArray, gradient: FloatArray
    ) -> FloatArray | None:
        """Solve ``H step = -gradient`` to a tenth; None if rounding leaves no descent direction.

        A float32 factor of H preconditions conjugate gradients. ``curve`` (band,) are the second
        derivatives of the band rows' losses.
        """
        diagonal = self.algebra.damping(gradient)
        self._update(band, curve)
        factor = self._factor(diagonal)
        if factor is None:
            # Rounding errors of rows that came and went have added up: sum the moment again.
            self._curvature[:] = np.nan
            self._update(band, curve)
            factor = self._factor(diagonal)
        if factor is None:
            return None

        def solve(v: FloatArray) -> FloatArray:
            """Apply the inverse of the factored Hessian, the preconditioner, to v (size,)."""
            return np.asarray(factor.solve(v), np.float64)

        self._solve_hessian = solve
        step, left = np.zeros(len(gradient)), -gradient
        near = solve(left)
        towards, size = near, float(left @ near)
        enough = self.tuning.cg_residual**2 * size
        for _ in range(self.tuning.max_local_cg):
            if not size > enough:
                break
            along = curve * self._products(band, towards)
            image = diagonal * towards + self._weighted_sum(band, along)
            length = size / float(towards @ image)
            step = step + length * towards
            left = left - length * image
            near = solve(left)
            before, size = size, float(left @ near)
            towards = near + size / before * towards
        return step if np.isfinite(step).all() and float(step @ gradient) < 0 else None

    def _factor(self, diagonal: FloatArray) -> Factor | None:
        """Compute the Cholesky factor of the Hessian; None if it is not positive definite."""
        hessian = np.multiply(self._moment, self._moment.dtype.type(self._scale), out=self._hessian)
        hessian[np.diag_indices_from(hessian)] += diagonal.astype(hessian.dtype)
        return factorise(hessian, lower=True)

    def _update(self, band: NDArray[np.int64], curve: FloatArray) -> None:
        """Update the second moment of the band: multiply only rows whose curvature has changed.

        ``band``: indices of the band's rows; ``curve`` (band,): second derivatives of their losses.
        """
        largest = float(np.max(curve, initial=0.0))
        self._scale = largest if largest > 0 else 1.0
        new = np.zeros(len(self.G))
        new[band] = curve / self._scale
        changed = np.flatnonzero(new != self._curvature)
        if 2 * len(changed) > len(band):  # (NaN has changed)
            self._moment[...] = 0.0
            self._curvature = np.zeros(len(self.G))
            changed = band
        change = new[changed] - self._curvature[changed]
        self._add_to_moment(changed[change > 0], change[change > 0])
        self._add_to_moment(changed[change < 0], change[change < 0])
        self._curvature = new

    def _add_to_moment(self, used: NDArray[np.int64], change: FloatArray, tile: int = 1024) -> None:
        """Add the second moment of rows ``used``, weighted by ``change`` (all of one sign).

        One thread multiplies ``tile`` rows at once.
        """
        dtype = self._moment.dtype
        weight = np.sqrt(np.abs(change)).astype(dtype)[:, None]

        def part(start: int) -> NDArray[Any]:
            """The weighted second moment of the rows of one tile."""
            rows = slice(start, start + tile)
            scaled = self.rows.feature[used[rows]] * weight[rows]
            return cast("NDArray[Any]", scaled.T @ scaled)

        # Sums are in the order of the rows, whichever thread ends first.
        for more in self.algebra.map_parallel(part, range(0, len(used), tile)):
            if change[0] > 0:
                self._moment += more
            else:
                self._moment -= more

    def _products(self, used: NDArray[np.int64], v: FloatArray, tile: int = 2048) -> FloatArray:
        """Compute the products of the gathered rows ``used`` with v (size,), in float64.

        Returns (used,). Each thread multiplies ``tile`` rows.
        """
        out, v = np.empty(len(used)), np.ascontiguousarray(v)

        def block(start: int) -> None:
            """Write the products of one tile of rows to ``out``."""
            part = slice(start, start + tile)
            _products(self.rows.feature, used[part], v, out[part])

        self.algebra.map_parallel(block, range(0, len(used), tile))
        return out

    def _weighted_sum(
        self, used: NDArray[np.int64], weight: FloatArray, tile: int = 256
    ) -> FloatArray:
        """Sum the features of the gathered rows ``used``, times ``weight`` (used,), in float64.

        Returns (size,). Each thread sums ``tile`` columns.
        """
        out = np.zeros(len(self.x))

        def block(start: int) -> None:
            """Write the sums of one tile of columns to ``out``."""
            _add_weighted(self.rows.feature, used, weight, start, out[start : start + tile])

        self.algebra.map_parallel(block, range(0, len(out), tile))
        return out

    def _search_line(self, step: FloatArray, gradient: FloatArray) -> bool:
        """Move x along the step to about the minimum of P; False if P does not fall along it.

        ``gradient`` (size,): of the smoothed P at x.
        """
        change = -self._products(np.arange(len(self.G)), step)
        dual, now = self.rows.dual, self._alpha
        linear, square = float(gradient @ step), float(self.metric @ step**2)

        def slope(length: float) -> float:
            """The derivative of the smoothed P at this step length."""
            alpha = read_off(dual, self.G + length * change, self.h)
            return linear + length * square + float(np.sum((alpha - now) * change))

        if not linear < 0:
            return False
        length = _find_root(slope, linear)
        self.x, self.G = self.x + length * step, self.G + length * change
        return True


def _find_root(slope: Callable[[float], float], at_low: float) -> float:
    """Find about the root of an increasing function, whose value at 0 is ``at_low`` < 0."""
    enough, low, high, at_high = 0.1 * abs(at_low), 0.0, 1.0, slope(1.0)
    while at_high < -enough and high < 64:
        low, at_low, high = high, at_high, 2 * high
        at_high = slope(high)
    middle, value = high, at_high
    for _ in range(20):
        if (value < 0 and middle == high) or abs(value) <= enough:
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
    """Compute the products of ``rows[used]`` with v in float64, into ``out``."""
    for k in range(len(used)):
        row, total = rows[used[k]], 0.0
        for j in range(len(v)):
            total += row[j] * v[j]
        out[k] = total


@njit(cache=True, nogil=True, fastmath={"contract"})
def _add_weighted(
    rows: NDArray[Any],
    used: NDArray[np.int64],
    weight: FloatArray,
    start: int,
    out: FloatArray,
) -> None:
    """Add ``weight @ rows[used]`` to ``out``, for as many columns from ``start`` on as it has."""
    for k in range(len(used)):
        row = rows[used[k], start : start + len(out)]
        for j in range(len(out)):
            out[j] += weight[k] * row[j]
