"""The m-dimensional algebra of a Newton: x = (w, extras), its metric, Hessian and step."""

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

REFINED, INEXACT = 20, 0.1
"""Products of a Newton step by conjugate gradients, at most, and what it may leave of itself."""

ALIKE, GAINED = 1e-3, 0.1
"""What a product leaves of it where the preconditioner is the Hessian itself, or, where it is
not, the part of all that is gained that the last product has gained."""


class Algebra:
    """Vectors and matrices over features, and over the extras of the problem after them.

    ``metric`` is 1 for penalised entries and 0 for multipliers, whose part of P is ``linear``.
    ``unit`` is what a row's gradient is measured in: a multiplier's step is held to 100 of it.
    """

    def __init__(self, design: Design, frame: SumLayout) -> None:
        self.design, self.frame = design, frame
        self.metric = np.ones(design.rank + frame.extras)
        self.linear = np.zeros(design.rank + frame.extras)
        self.free = slice(design.rank + frame.first, None)
        self.metric[self.free] = 0.0
        self.linear[self.free] = frame.total
        self.size = len(self.metric)
        self.unit = 1.0
        self._pool = ThreadPoolExecutor(os.cpu_count())

    def coef(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Coefficients of the columns and the extras of x = (w, extras)."""
        rank = self.design.rank
        return self.design.coef(x[:rank]), x[rank:]

    def features(self, v: FloatArray) -> FloatArray:
        """``T' v`` of a sum over columns, with the extras' entries as they are."""
        width = self.design.width
        return np.concatenate([self.design.features(v[:width]), v[width:]])

    def at_once(self, function: Callable[[int], Any], items: Iterable[int]) -> list[Any]:
        """What a function makes of items, in their order; some run at once."""
        return list(self._pool.map(function, items))

    def quadratic(self, x: FloatArray) -> float:
        return 0.5 * float(self.metric @ (x * x))

    def regular(self, x: FloatArray) -> float:
        """P without its losses."""
        return self.quadratic(x) + float(self.linear @ x)

    def gradient(self, x: FloatArray, v: FloatArray) -> FloatArray:
        """The gradient of P at x where ``v = sum s alpha [c, border]``."""
        return self.metric * x + self.linear - self.features(v)

    def travel(
        self, past: list[FloatArray], errors: list[float], ends: list[FloatArray]
    ) -> dict[str, FloatArray]:
        """How far w and the extras are from every past point, at the furthest of ``ends``.

        ``errors`` bound the rounding of the scores computed at each, and count as shifts. The last
        entry stands for no point: rows never scored (``ref = -1``) read it.
        """
        travel, shift = np.zeros(len(past) + 1), np.zeros(len(past) + 1)
        border = np.where(np.arange(self.frame.extras) < self.frame.first, self.frame.constant, 1.0)
        rank = self.design.rank
        for k, point in enumerate(past):
            moved = [np.abs(point - end) for end in ends]
            travel[k] = max(float(np.linalg.norm(move[:rank])) for move in moved)
            shift[k] = errors[k] + max(float(border @ move[rank:]) for move in moved)
        return {"travel": travel, "shift": shift}

    def damping(self, gradient: FloatArray) -> FloatArray:
        """What stands on the Hessian's diagonal beside the rows."""
        diagonal = self.metric.copy()
        # Nothing curves an unpenalised offset while the zone is empty: hold its step to 100 units.
        # The damping goes to zero with the gradient.
        diagonal[self.free] = 1e-10 + 0.01 / self.unit * np.abs(gradient[self.free])
        return diagonal

    def conjugate_step(
        self,
        product: Callable[[FloatArray], FloatArray],
        solve: Callable[[FloatArray], FloatArray],
        gradient: FloatArray,
    ) -> tuple[FloatArray, float]:
        """The Newton step by conjugate gradients, to a tenth of it in the Hessian's norm.

        And the decrease that it promises, as a part of what the preconditioner promised.

        Parameters
        ----------
        product : callable
            The rows' part of the Hessian times a vector (size,).
        solve : callable
            About the Hessian's inverse times a vector, which preconditions.
        gradient : float64 (size,)
        """
        diagonal = self.damping(gradient)
        step, left = np.zeros(len(gradient)), -gradient
        solved = solve(left)
        towards, size = solved, float(left @ solved)
        first, gained = size, 0.0
        if not first > 0:
            return step, 1.0
        for _ in range(REFINED):
            image = diagonal * towards + product(towards)
            length = size / float(towards @ image)
            step, left = step + length * towards, left - length * image
            gain = length * size
            gained += gain
            solved = solve(left)
            before, size = size, float(left @ solved)
            # (Where the preconditioner is far off in some directions, all it sees is those.)
            known = size <= ALIKE * first or gain <= GAINED * gained
            if known and size <= INEXACT**2 * first:
                break
            towards = solved + size / before * towards
        return step, gained / first

    def factor(self, inner: FloatArray, gradient: FloatArray) -> Factor:
        """That of the Hessian whose rows' part is this, with a ridge if it takes one."""
        return _cholesky(inner, self.damping(gradient))

    def newton_step(self, inner: FloatArray, gradient: FloatArray) -> tuple[FloatArray, float]:
        """The Newton step and the decrease that it promises."""
        step = -self.factor(inner, gradient).solve(gradient)
        return step, -0.5 * float(gradient @ step)


def _cholesky(inner: FloatArray, diagonal: FloatArray) -> Factor:
    """Factor of ``inner + diag(diagonal)``, with a ridge where rounding left it indefinite.

    C / h can outgrow what float64 holds beside 1, and float32 products err by more than the penalty
    curves P; any ridge still gives a direction of descent.
    """
    largest = float(np.max(np.diag(inner), initial=0.0))
    for ridge in RIDGES:
        hessian = inner.copy()
        hessian[np.diag_indices_from(hessian)] += diagonal + ridge * largest
        factor = factorise(hessian)
        if factor is not None:
            return factor
    raise InputError(TOO_LARGE)


RIDGES = (0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
"""Parts of a Hessian's largest entry that are added to its diagonal, one after the other."""

TOO_LARGE = "C is so large that the Newton step cannot be computed; use a smaller C"

NARROW = 256
"""Of fewer features products are float64: they cost little, and raw features can be nearly the same
number in all rows."""

ROUGH = 2.0**22
"""Trace from which on rounding in float32 products could outweigh what the penalty curves P by."""


def entries(rows: int, of: int) -> type:
    """Of few rows float64 entries; of many, which take time, those that scores are made of.

    Sums over rows are float64 either way.
    """
    return np.float64 if 64 * rows < of else np.float32


def second_moment(
    design: Design, columns: NDArray[Any], border: FloatArray, weight: FloatArray
) -> NDArray[Any]:
    """``sum weight_i^2 [phi_i, border_i] [phi_i, border_i]'``: (size, size).

    Parameters
    ----------
    columns : (rows, m), float32 or float64
    border : float64 (rows, extras)
    weight : float64 (rows,)
    """
    rank, size = design.rank, design.rank + border.shape[1]
    single = columns.dtype == np.float32
    out = scratch("features", (len(columns), rank), np.float32) if single else None
    phi = design.features_of(columns, out)
    squares = np.einsum("ij,ij->i", phi, phi, dtype=np.float64) + np.sum(border**2, axis=1)
    # (What is not a number goes the exact way, too.)
    exact = size < NARROW or not weight**2 @ squares <= ROUGH
    scaled = scratch("scaled", (len(phi), size), np.float64 if exact else np.float32)
    np.multiply(phi, weight[:, None], out=scaled[:, :rank], casting="same_kind")
    np.multiply(border, weight[:, None], out=scaled[:, rank:], casting="same_kind")
    return scaled.T @ scaled


@dataclass(frozen=True)
class Average:
    """The mean of the moments of some passes at one h, each over other rows of the zone."""

    moment: FloatArray
    passes: int
    h: float


def averaged(before: Average | None, moment: FloatArray, h: float, stride: int) -> Average:
    """The mean with one more pass, which took one in ``stride`` rows of the zone.

    Of as many passes as go through the zone once: w moves, and older ones are of another zone.
    """
    if before is None or before.h != h:
        return Average(moment, 1, h)
    share = 1 / min(before.passes + 1, stride)
    return Average(before.moment + share * (moment - before.moment), before.passes + 1, h)
