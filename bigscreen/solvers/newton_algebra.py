"""The m-dimensional algebra of a Newton: x = (w, extras), its metric, Hessian and step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from scipy import linalg

from bigscreen.design import Design
from bigscreen.dual import FloatArray
from bigscreen.errors import InputError
from bigscreen.point_sums import Frame


class Algebra:
    """Vectors and matrices over features, and over the extras of the problem after them.

    ``metric`` is 1 for penalised entries and 0 for multipliers, whose part of P is ``linear``.
    ``unit`` is what a row's gradient is measured in: a multiplier's step is held to 100 of it.
    """

    def __init__(self, design: Design, frame: Frame) -> None:
        self.design, self.frame = design, frame
        self.metric = np.ones(design.rank + frame.extras)
        self.linear = np.zeros(design.rank + frame.extras)
        self.free = slice(design.rank + frame.first, None)
        self.metric[self.free] = 0.0
        self.linear[self.free] = frame.total
        self.size = len(self.metric)
        self.unit = 1.0
        self._pool = ThreadPoolExecutor()

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

    def newton_step(self, inner: FloatArray, gradient: FloatArray) -> tuple[FloatArray, float]:
        """The Newton step and the decrease that it promises."""
        factor = _cholesky(inner, self.damping(gradient))
        step = -linalg.cho_solve(factor, gradient, check_finite=False)
        return step, -0.5 * float(gradient @ step)


def _cholesky(inner: FloatArray, diagonal: FloatArray) -> tuple[FloatArray, bool]:
    """Factor of ``inner + diag(diagonal)``, with a ridge where rounding left it indefinite.

    C / h can outgrow what float64 holds beside 1; any ridge still gives a direction of descent.
    """
    largest = float(np.max(np.diag(inner), initial=0.0))
    for ridge in (0.0, 1e-14, 1e-12, 1e-10, 1e-8):
        hessian = inner.copy()
        hessian[np.diag_indices_from(hessian)] += diagonal + ridge * largest
        try:
            return linalg.cho_factor(hessian, overwrite_a=True, check_finite=False)
        except linalg.LinAlgError:
            continue
    raise InputError("C is so large that the Newton step cannot be computed; use a smaller C")
