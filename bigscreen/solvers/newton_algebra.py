"""The m-dimensional algebra of a Newton: x = (w, b), its metric, Hessian and step."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy import linalg

from bigscreen.design import Design
from bigscreen.dual import FloatArray
from bigscreen.errors import InputError
from bigscreen.problems import CSvc

BLOCK = 128
"""Columns of a product that one thread works at."""


class Algebra:
    """Vectors and matrices over features, with one more entry for the offset where there is one.

    ``metric`` is 1 for penalised entries and 0 for an unpenalised offset.
    """

    def __init__(self, design: Design, problem: CSvc) -> None:
        self.design = design
        self.offset = problem.intercept != "none"
        self.free_offset = problem.intercept == "true"
        self.metric = np.ones(design.rank + self.offset)
        if self.free_offset:
            self.metric[-1] = 0.0
        self.size = len(self.metric)
        self._pool = ThreadPoolExecutor()

    def coef(self, x: FloatArray) -> tuple[FloatArray, float]:
        """Coefficients of the columns and the offset of x = (w, b)."""
        w, b = (x[:-1], float(x[-1])) if self.offset else (x, 0.0)
        return self.design.coef(w), b

    def features(self, v: FloatArray) -> FloatArray:
        """``T' v`` of a sum over columns, with the offset's entry where there is one."""
        w = self.design.features(v[:-1])
        return np.append(w, v[-1]) if self.offset else w

    def transform(self, moment: FloatArray) -> FloatArray:
        """``T' M T``: the second moment of the features, bordered by the offset."""
        inner, factor = moment[:-1, :-1], self.design.factor
        if factor is not None:
            inner = self._sandwich(inner, factor)
        if not self.offset:
            return inner.copy()
        out = np.empty((self.size, self.size))
        out[:-1, :-1] = inner
        out[:-1, -1] = out[-1, :-1] = self.features(np.append(moment[-1, :-1], 0.0))[:-1]
        out[-1, -1] = moment[-1, -1]
        return out

    def _sandwich(self, inner: FloatArray, factor: FloatArray) -> FloatArray:
        """``T' M T`` by blocks of columns, some at once; blocks do not depend on the threads."""
        rank = factor.shape[1]
        out = np.empty((rank, rank))

        def block(start: int) -> None:
            stop = min(start + BLOCK, rank)
            # The triangle above the diagonal is enough.
            out[:stop, start:stop] = factor[:, :stop].T @ (inner @ factor[:, start:stop])
            out[start:stop, :start] = out[:start, start:stop].T

        # The widest products first, so that threads end together.
        list(self._pool.map(block, range(0, rank, BLOCK)[::-1]))
        return out

    def quadratic(self, x: FloatArray) -> float:
        return 0.5 * float(self.metric @ (x * x))

    def travel(
        self, past: list[FloatArray], errors: list[float], ends: list[FloatArray]
    ) -> dict[str, FloatArray]:
        """How far w and b are from every past point, at the furthest of ``ends``.

        ``errors`` bound the rounding of the scores computed at each, and count as shifts. The last
        entry stands for no point: rows never scored (``ref = -1``) read it.
        """
        travel, shift = np.zeros(len(past) + 1), np.zeros(len(past) + 1)
        last = -1 if self.offset else None
        for k, point in enumerate(past):
            travel[k] = max(float(np.linalg.norm((point - end)[:last])) for end in ends)
            shift[k] = errors[k]
            if self.offset:
                shift[k] += max(abs(float((point - end)[-1])) for end in ends)
        return {"travel": travel, "shift": shift}

    def newton_step(self, inner: FloatArray, gradient: FloatArray) -> tuple[FloatArray, float]:
        """The Newton step and the decrease that it promises."""
        diagonal = self.metric.copy()
        if self.free_offset:
            # Nothing curves an unpenalised offset while the zone is empty: hold its step to 100
            # margins. The damping goes to zero with the gradient.
            diagonal[-1] = 1e-10 + 0.01 * abs(gradient[-1])
        factor = _cholesky(inner, diagonal)
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
