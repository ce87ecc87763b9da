"""What runs anywhere for divide and conquer: one part's problem, one block of a norm."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen import design_sums
from bigscreen.closing import Throughput
from bigscreen.design import Design
from bigscreen.divide_rows import load, pick
from bigscreen.dual import Dual, FloatArray, Mu
from bigscreen.errors import InputError
from bigscreen.kernels import Precomputed, Side
from bigscreen.point import Point
from bigscreen.problems import Problem
from bigscreen.screening.dynamic import Rule
from bigscreen.solvers.protocol import Solver, Verdict

BLOCK = 8192
"""Support rows whose kernel entries to as many others are one task."""


class Part(NamedTuple):
    """One part's rows: their numbers, codes (or targets), weights and alpha; the share of the
    coupling's total that is theirs, for each group; threads and seconds to use."""

    ids: NDArray[np.int64]
    codes: NDArray[Any]
    weights: FloatArray
    alpha: FloatArray
    share: FloatArray
    threads: int
    seconds: float | None


class Solved(NamedTuple):
    """A part's alpha and offset, and how they came about."""

    alpha: FloatArray
    intercept: float
    primal: float
    dual: float
    entries: int
    passes: int


@dataclass
class Enough:
    """The check of a solve that only makes a start: no certificate, no closing pass.

    Rules screen as they do elsewhere; what an unsafe one takes too much is left to the solve
    that begins here.
    """

    target: float
    most: int
    rule: Rule | None
    deadline: float | None
    definite: bool = True
    passes: int = 0
    stats: dict[str, Any] = field(default_factory=dict)

    def __call__(
        self, point: Point, stats: dict[str, Any], save: Callable[[Path, dict[str, Any]], None]
    ) -> Verdict | None:
        self.passes, self.stats = self.passes + 1, stats
        # Of a kernel without gaps the solver hands in the KKT violation.
        near = (point.relative_gap if self.definite else point.violation) <= self.target
        if near or stats["stalled"] or self.passes >= self.most or self.expired():
            return None
        return Verdict(None if self.rule is None else self.rule.region(point, point.rounding))

    def expired(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def restored(self, meta: dict[str, Any]) -> None:
        """A part is never checkpointed."""
        raise AssertionError

    @property
    def entries(self) -> int:
        return int(self.stats.get("kernel_entries", 0))


@dataclass(frozen=True)
class Local:
    """Solves a part by itself, where ``fleet.each`` puts it."""

    design: Design
    problem: Problem
    solver: Solver
    fleet: Callable[[int], AbstractContextManager[Any]]
    tol: float
    most: int
    rule: Rule | None

    def __call__(self, part: Part) -> Solved:
        problem = Shared(self.problem, part.share)
        dual = problem.dual(part.codes, part.weights)
        if _nothing_but_0(dual):
            zero = np.zeros(len(dual))
            return Solved(zero, problem.offset(dual.multiplier(zero)), 0.0, 0.0, 0, 0)
        deadline = None if part.seconds is None else time.monotonic() + part.seconds
        check = Enough(self.tol, self.most, self.rule, deadline, self.design.definite)
        design = load(pick(self.design, part.ids, part.codes, part.weights))
        with self.fleet(part.threads) as fleet:
            return solved(design, problem, self.solver, fleet, check, part.alpha)


@dataclass(frozen=True)
class Shared:
    """A problem of which some rows are to make up a part of the coupling's total."""

    whole: Problem
    share: FloatArray

    @property
    def intercept(self) -> str:
        return self.whole.intercept

    @property
    def intercept_scaling(self) -> float:
        return self.whole.intercept_scaling

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """See ``Problem``."""
        dual = self.whole.dual(y, weights, scale)
        share = self.share if dual.group is not None else float(self.share[0])
        return replace(dual, total=dual.total * share)

    def offset(self, mu: Mu) -> float:
        """See ``Problem``."""
        return self.whole.offset(mu)

    def at(self, value: float) -> Shared:
        """See ``Problem``."""
        return replace(self, whole=self.whole.at(value))

    def factor(self, other: Shared) -> float | None:
        """See ``Problem``."""
        return self.whole.factor(other.whole)


def _nothing_but_0(dual: Dual) -> bool:
    """Whether only alpha = 0 meets the coupling: a C-SVC's rows of one class."""
    if dual.coupling is None or np.any(dual.total):
        return False
    ends = np.stack([dual.coupling * dual.lo, dual.coupling * dual.hi])
    return not (np.any(ends > 0) and np.any(ends < 0))


def solved(
    design: Design,
    problem: Problem,
    solver: Solver,
    fleet: Any,
    check: Enough,
    alpha: FloatArray,
) -> Solved:
    """Solve from an alpha in the box, made feasible first."""
    n = design.data.n_rows
    dual = problem.dual(design.data.y(0, n), design.data.weights(0, n))
    begin = dual.feasible(alpha)
    point = solver.run(
        design,
        problem,
        fleet,
        check,
        weight_bound=float(np.maximum(np.abs(dual.lo), np.abs(dual.hi)).sum()),
        resident=True,
        resume=None,
        start=begin if begin.any() else None,
    )
    if point.alpha is None:
        raise InputError("divide and conquer needs a solver that holds alpha; use pairs or cd")
    return Solved(
        point.alpha, point.intercept, point.primal, point.dual, check.entries, check.passes
    )


# -- ||w(alpha)||^2 ------------------------------------------------------------------------------
def squared_norm(
    design: Design, problem: Problem, coef: FloatArray, fleet: Throughput
) -> tuple[float, int]:
    """``||sum_i coef_i phi_i||^2`` and the kernel entries that it took.

    Where phi is implicit: over pairs of blocks of the rows with a coefficient, half of them by
    symmetry, so that no process holds more than two blocks.
    """
    constant = float(coef.sum()) ** 2 if problem.intercept == "constant" else 0.0
    if not design.exact:
        w = design.features(design_sums.weighted_columns(design, coef, fleet)[:-1])
        return float(w @ w) + constant, 0
    support = np.flatnonzero(coef)
    size = min(BLOCK, max(256, -(-len(support) // 8)))
    blocks = [support[a : a + size] for a in range(0, len(support), size)]
    pairs = (
        (one, other, coef[one], coef[other]) for k, one in enumerate(blocks) for other in blocks[k:]
    )
    total, entries = constant, 0
    for found, count in fleet.each(_Product(design), pairs):
        total, entries = total + found, entries + count
    return total, entries


@dataclass(frozen=True)
class _Product:
    """``a' K b`` of two blocks of rows, twice if they are not the same block."""

    design: Design

    def __call__(
        self, item: tuple[NDArray[np.int64], NDArray[np.int64], FloatArray, FloatArray]
    ) -> tuple[float, int]:
        one, other, a, b = item
        data, kernel = self.design.data, self.design.kernel
        assert kernel is not None
        left = data.rows(one)
        same = one[0] == other[0]
        if isinstance(kernel, Precomputed):  # of the rows on the right it needs the numbers only
            right: Any = sparse.csr_array((len(other), data.n_features), dtype=np.float32)
        else:
            right = left if same else data.rows(other)
        dtype = kernel.precision(data.max_sqnorm, data.n_features)
        dots = kernel.dots(Side(left, one), Side(right, other), b[:, None], dtype)[:, 0]
        return (1 if same else 2) * float(a @ dots), len(one) * len(other)


def longest_step(dual: Dual, alpha: FloatArray) -> float:
    """The largest t with t alpha within the box."""
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(alpha > 0, dual.hi / alpha, np.where(alpha < 0, dual.lo / alpha, np.inf))
    return float(room.min(initial=np.inf))
