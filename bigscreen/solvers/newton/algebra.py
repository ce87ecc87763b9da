"""Vectors and matrices of a Newton run: x = (w, extras), the Hessian, and the Newton step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.kernels.operand import scratch
from bigscreen.numerics.cholesky import Factor, factorise
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import SumLayout
from bigscreen.solvers.newton.tuning import NEWTON, NewtonTuning

RIDGES = (0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
"""Fractions of a Hessian's largest entry to add to its diagonal, tried in this order until the
matrix can be factored by Cholesky."""

TOO_LARGE = "C is so large that the Newton step cannot be computed; use a smaller C"
"""Message of the error raised if no entry of `RIDGES` makes the Hessian positive definite."""


class Algebra:
    """Operations on x = (w, extras): w over the features, then the extras of the problem.

    Extras are the coefficient of an appended constant and the multipliers of the coupling.

    Parameters
    ----------
    design : Design
    frame : SumLayout
        The extras, and each row's entries for them.
    tuning : NewtonTuning

    Attributes
    ----------
    metric : float64 (size,)
        1 for penalised entries, 0 for multipliers.
    linear : float64 (size,)
        The part of P that is linear in the multipliers.
    unit : float
        Typical gradient G of a row at w = 0. Steps of multipliers are damped to about 100 units.
    size : int
        Entries of x.
    free : slice
        The entries of x that are multipliers.
    """

    def __init__(self, design: Design, frame: SumLayout, tuning: NewtonTuning = NEWTON) -> None:
        """Set up the metric and the linear part of P; ``unit`` is 1 until rows are measured."""
        self.design, self.frame, self.tuning = design, frame, tuning
        self.metric = np.ones(design.rank + frame.extras)
        self.linear = np.zeros(design.rank + frame.extras)
        self.free = slice(design.rank + frame.first, None)
        self.metric[self.free] = 0.0
        self.linear[self.free] = frame.total
        self.size = len(self.metric)
        self.unit = 1.0
        self._pool = ThreadPoolExecutor(os.cpu_count())

    def coef(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Split x = (w, extras) into coefficients of the columns, and the extras."""
        rank = self.design.rank
        return self.design.coef(x[:rank]), x[rank:]

    def features(self, v: FloatArray) -> FloatArray:
        """Map v (m + extras,), a sum over columns, to features ``T' v``; extras do not change."""
        width = self.design.width
        return np.concatenate([self.design.features(v[:width]), v[width:]])

    def map_parallel(self, function: Callable[[int], Any], items: Iterable[int]) -> list[Any]:
        """Call a function on every item in threads; results are in the order of the items."""
        return list(self._pool.map(function, items))

    def quadratic(self, x: FloatArray) -> float:
        """Return half the squared norm of the penalised entries of x."""
        return 0.5 * float(self.metric @ (x * x))

    def regular(self, x: FloatArray) -> float:
        """Return P at x without the losses."""
        return self.quadratic(x) + float(self.linear @ x)

    def gradient(self, x: FloatArray, v: FloatArray) -> FloatArray:
        """Return the gradient of P at x, given ``v = sum s alpha [c, border]`` over all rows."""
        return self.metric * x + self.linear - self.features(v)

    def bound_moves(
        self, past: list[FloatArray], errors: list[float], ends: list[FloatArray]
    ) -> dict[str, FloatArray]:
        """Bound how far each score has moved since it was computed at one of the ``past`` x.

        Returns two arrays (past + 1,). For each past x, ``w_moves`` is the largest distance of its
        w from w of any of ``ends``, the x to which it may move; ``score_moves`` is what extras and
        rounding (``errors``) add to a score. A score moves by at most
        ``w_moves ||phi|| + score_moves``. The last entry is for rows that no pass has scored
        (``ref = -1``).
        """
        w_moves, score_moves = np.zeros(len(past) + 1), np.zeros(len(past) + 1)
        border = np.where(np.arange(self.frame.extras) < self.frame.first, self.frame.constant, 1.0)
        rank = self.design.rank
        for k, point in enumerate(past):
            moved = [np.abs(point - end) for end in ends]
            w_moves[k] = max(float(np.linalg.norm(move[:rank])) for move in moved)
            score_moves[k] = errors[k] + max(float(border @ move[rank:]) for move in moved)
        return {"w_moves": w_moves, "score_moves": score_moves}

    def damping(self, gradient: FloatArray) -> FloatArray:
        """Return what the Hessian's diagonal has in addition to the rows' second moment (size,).

        It is 1 for penalised entries. While the band is empty, P is linear in an unpenalised
        offset: damping limits its step to 100 units. It goes to zero with the gradient.
        """
        diagonal = self.metric.copy()
        diagonal[self.free] = 1e-10 + 0.01 / self.unit * np.abs(gradient[self.free])
        return diagonal

    def conjugate_step(
        self,
        product: Callable[[FloatArray], FloatArray],
        solve: Callable[[FloatArray], FloatArray],
        gradient: FloatArray,
    ) -> tuple[FloatArray, float]:
        """Find the Newton step by preconditioned conjugate gradients, to a tenth of its norm.

        Returns the step, and the decrease that it promises divided by the decrease that the
        preconditioner alone promised.

        Parameters
        ----------
        product : callable
            Multiplies a vector (size,) by the rows' second moment.
        solve : callable
            The preconditioner: solves with about the Hessian.
        gradient : float64 (size,)
        """
        tuning, diagonal = self.tuning, self.damping(gradient)
        step, left = np.zeros(len(gradient)), -gradient
        solved = solve(left)
        towards, size = solved, float(left @ solved)
        first, gained = size, 0.0
        if not first > 0:
            return step, 1.0
        for _ in range(tuning.max_cg):
            image = diagonal * towards + product(towards)
            length = size / float(towards @ image)
            step, left = step + length * towards, left - length * image
            gain = length * size
            gained += gain
            solved = solve(left)
            before, size = size, float(left @ solved)
            # If the preconditioner is far off in some directions, ``size`` shows only these: so
            # the decrease must have come to an end too.
            exact, slow = tuning.cg_exact_residual, gain <= tuning.cg_min_gain * gained
            if (size <= exact * first or slow) and size <= tuning.cg_residual**2 * first:
                break
            towards = solved + size / before * towards
        return step, gained / first

    def factor(self, inner: FloatArray, gradient: FloatArray) -> Factor:
        """Factor the Hessian: the rows' second moment ``inner`` (size, size) plus `damping`.

        A ridge is added if rounding has left it indefinite.
        """
        return _cholesky(inner, self.damping(gradient))

    def newton_step(self, inner: FloatArray, gradient: FloatArray) -> tuple[FloatArray, float]:
        """Return the Newton step (size,) and the decrease of P that it promises.

        ``inner`` (size, size): the second moment of the band's rows.
        """
        step = -self.factor(inner, gradient).solve(gradient)
        return step, -0.5 * float(gradient @ step)


def _cholesky(inner: FloatArray, diagonal: FloatArray) -> Factor:
    """Factor ``inner + diag(diagonal)``, with a ridge if rounding left it indefinite.

    ``inner`` (size, size) is the band rows' second moment; ``diagonal`` (size,) is added to it.
    C / h can be too large for a float64 sum with 1, and errors of float32 products can outweigh the
    penalty's curvature. The step is a direction of descent with any ridge.
    """
    largest = float(np.max(np.diag(inner), initial=0.0))
    for ridge in RIDGES:
        hessian = inner.copy()
        hessian[np.diag_indices_from(hessian)] += diagonal + ridge * largest
        factor = factorise(hessian)
        if factor is not None:
            return factor
    raise InputError(TOO_LARGE)


def entry_type(rows: int, of: int) -> type:
    """Choose the float type of kernel entries: float64 if few rows need them, else float32.

    ``rows`` of a shard's ``of`` rows need entries; less than 1/64 of them are few.
    """
    return np.float64 if 64 * rows < of else np.float32


def second_moment(
    design: Design,
    columns: NDArray[Any],
    border: FloatArray,
    weight: FloatArray,
    tuning: NewtonTuning = NEWTON,
) -> NDArray[Any]:
    """Sum ``weight_i^2 [phi_i, border_i] [phi_i, border_i]'`` over rows: (size, size).

    Parameters
    ----------
    design : Design
    columns : (rows, m), float32 or float64
    border : float64 (rows, extras)
    weight : float64 (rows,)
    tuning : NewtonTuning
        Decides whether products are float32 or float64.
    """
    rank, size = design.rank, design.rank + border.shape[1]
    single = columns.dtype == np.float32
    out = scratch("features", (len(columns), rank), np.float32) if single else None
    phi = design.features_of(columns, out)
    squares = np.einsum("ij,ij->i", phi, phi, dtype=np.float64) + np.sum(border**2, axis=1)
    # (A trace that is NaN is summed in float64 too.)
    exact = size < tuning.min_float32_columns
    exact = exact or not weight**2 @ squares <= tuning.max_float32_trace
    scaled = scratch("scaled", (len(phi), size), np.float64 if exact else np.float32)
    np.multiply(phi, weight[:, None], out=scaled[:, :rank], casting="same_kind")
    np.multiply(border, weight[:, None], out=scaled[:, rank:], casting="same_kind")
    return scaled.T @ scaled


@dataclass(frozen=True)
class Average:
    """The mean of the second moments of some passes at one h, each over other rows of the band.

    ``moment`` (size, size): the mean; ``passes``: how many passes are in it.
    """

    moment: FloatArray
    passes: int
    h: float


def averaged(before: Average | None, moment: FloatArray, h: float, stride: int) -> Average:
    """Add the ``moment`` of a pass over one in ``stride`` rows of the band to the mean ``before``.

    A new mean begins if ``before`` is None or of another h. Earlier passes fade once ``stride``
    passes are in: w moves, and they are of another band.
    """
    if before is None or before.h != h:
        return Average(moment, 1, h)
    share = 1 / min(before.passes + 1, stride)
    return Average(before.moment + share * (moment - before.moment), before.passes + 1, h)
