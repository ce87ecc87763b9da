"""The closing pass of an exact kernel machine of few rows, whose kernel entries are there.

The same sums as in `certify.exact`, from the entries that the solver's `Square` has of the support
rows, in compiled loops. Where those are float32, rows in doubt are computed again in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.exact import (
    ROUNDING_PART,
    SUM_ERROR,
    ExactSums,
    Noise,
    ScoreProgram,
    certified_alpha,
    close_exact,
)
from bigscreen.features.design import Design
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.square import spread, sums
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual_sums import Arrays, Proof, arrays, covers, prove
from bigscreen.problems.point import Certificate, Point, relative
from bigscreen.problems.recipes import Problem

PLAIN_SUM_ERROR = 2.0**-52
"""Relative error of a float64 sum that is taken term by term, for each of them."""


def close_few(
    design: Design,
    problem: Problem,
    point: Point,
    fleet: Fleet,
    certify: str = "float32",
    keep: bool = False,
) -> Certificate:
    """Certify the alpha of an exact kernel machine as `close_exact` does, but quicker.

    Where the entries of few rows are there, that is. Those who ask for float64 get sums that share
    nothing with the solver.
    """
    data, square = design.data, design.square
    if square is None or not design.definite or certify == "float64":
        return close_exact(design, problem, point, fleet, certify, keep)
    dual = design.dual(problem)
    if problem.intercept == "constant" or not covers(dual):
        return close_exact(design, problem, point, fleet, certify, keep)
    assert design.kernel is not None and point.alpha is not None
    parts = arrays(dual)
    alpha = certified_alpha(design, dual, point.alpha)
    ids = np.flatnonzero(alpha)
    if not len(ids):
        return close_exact(design, problem, point, fleet, certify, keep)
    coef = (parts.sign * alpha)[ids]
    support = Operand(square.side.X[ids], ids)
    norms = np.sqrt(np.maximum(square.diag, 0.0))
    own = norms[ids]
    weights = spread(coef, None if square.alike is None else square.alike[ids])
    noise = Noise(weights, float(np.max(own)), float(np.abs(coef) @ own))
    program = ScoreProgram(data, design.kernel, support, coef, noise, square.dtype)
    scores, weight = sums(square, ids, coef, weights)
    box = dual.reach
    few = Few(problem, dual, alpha, box, parts=parts)
    band = program.banded(square.side, scores, weight)
    live = box > 0
    few.scores, few.band = np.where(live, scores, 0.0), np.where(live, band, 0.0)
    wide = square.dtype is np.float64
    if wide:
        few.exact[:] = True
    else:
        few.mend(replace(program, dtype=np.float64), square.side.X)
    return few.certificate("float64" if wide else "float32", keep)


@dataclass
class Few(ExactSums):
    """The sums of `ExactSums`, remembered until scores change.

    ``parts``: the dual as compiled loops take it.
    """

    parts: Arrays | None = None

    _found: tuple[Certificate, FloatArray] | None = None

    def mend(self, program: ScoreProgram, X: Any) -> None:
        """Compute the scores of rows in doubt again, in the precision of the program."""
        while len(rows := self.doubtful()):
            self._again(program, X, rows)
        if len(rows := self.moving()):
            self._again(program, X, rows)

    def _again(self, program: ScoreProgram, X: Any, rows: NDArray[np.int64]) -> None:
        self.scores[rows], self.band[rows] = program.of(Operand(X[rows], rows))
        self.exact[rows], self._found = True, None

    def doubtful(self) -> NDArray[np.int64]:
        found, doubt = self._sums()
        if float(np.sum(doubt[~self.exact])) <= ROUNDING_PART * max(found.gap, 0.0):
            return np.empty(0, np.int64)
        return super().doubtful()

    def _sums(self) -> tuple[Certificate, FloatArray]:
        if self._found is None:
            self._found = self._summed()
        return self._found[0], self._found[1].copy()

    def _summed(self) -> tuple[Certificate, FloatArray]:
        dual, parts = self.dual, self.parts
        assert parts is not None
        n, doubt = len(dual), np.empty(len(dual))
        mu, sums = prove(parts, self.alpha, self.scores, self.band, doubt)
        found = Proof(*sums)
        primal = 0.5 * found.w_sq + float(np.sum(mu * parts.total)) + found.losses
        value = found.linear - 0.5 * found.w_sq
        gap = primal - value
        rounded = max(SUM_ERROR, PLAIN_SUM_ERROR * n) * found.terms
        certificate = Certificate(
            primal=primal,
            dual=value,
            gap=gap,
            relative_gap=relative(gap, primal),
            rounding_bound=found.doubt + rounded,
            primal_rounding=found.primal + rounded,
            dual_rounding=found.dual + rounded,
            certified_in="",
            rows=n,
            support=int(np.count_nonzero(self.alpha)),
            intercept=self.problem.offset(mu if dual.group is not None else float(mu.sum())),
            multiplier=tuple(mu.tolist()),
        )
        return certificate, doubt
