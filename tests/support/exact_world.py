"""Exact kernel machines with a reference solution, and a solve that certifies over all rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import reference

from bigscreen.certify.exact import close_exact
from bigscreen.certify.explicit import close_explicit
from bigscreen.features.design import Design
from bigscreen.fit.monitor import Limits, Monitor
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.operand import Operand
from bigscreen.problems.point import Certificate, Point
from bigscreen.problems.recipes import CSvc
from bigscreen.solvers.protocol import Run


@dataclass(frozen=True)
class ExactWorld:
    """A C-SVC on rows with a kernel, or with their own features (a linear machine)."""

    design: Design
    problem: CSvc

    @cached_property
    def gram(self) -> np.ndarray:
        """The float64 kernel matrix, without the constant."""
        data = self.design.data
        X, kernel = data.X(0, data.n_rows), self.design.kernel
        if kernel is None:
            X = np.asarray(X if isinstance(X, np.ndarray) else X.toarray(), np.float64)
            return X @ X.T
        side = Operand(X, np.arange(data.n_rows))
        return kernel.block(side, side, dtype=np.float64)

    @cached_property
    def box(self) -> np.ndarray:
        data = self.design.data
        return self.problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows)).hi

    @cached_property
    def oracle(self) -> reference.Problem:
        phi = reference.features(self.gram)
        codes = self.design.data.y(0, self.design.data.n_rows)
        return reference.c_svc(phi, codes, self.box, self.problem.intercept)

    @cached_property
    def optimum(self) -> reference.Optimum:
        return reference.solve(self.oracle)

    def value(self, alpha: np.ndarray) -> float:
        """D(alpha) by its definition."""
        return reference.dual(self.oracle, alpha)


@dataclass
class Solved:
    point: Point
    certificate: Certificate
    monitor: Monitor
    last: dict[str, Any]


def solved(world: ExactWorld, solver, rule=None, tol=1e-6, start=None, fleet=None, **how) -> Solved:
    """Solve and certify; ``how``: max_iter, restarts, folder, resume, report."""
    if fleet is None:
        with Inline(1) as fleet:
            return solved(world, solver, rule, tol, start, fleet, **how)
    design, problem = world.design, world.problem
    closing = close_exact if design.exact else close_explicit
    limits = Limits(tol, how.get("max_iter", 5000), None, how.get("restarts", 3))
    monitor = Monitor(
        certify=lambda point: closing(design, problem, point, fleet, "float64"),
        limits=limits,
        rule=rule,
        report=how.get("report", lambda event: None),
        folder=how.get("folder"),
        definite=design.definite,
    )
    taken = {name: how[name] for name in ("folder", "resume") if name in how}
    solver.solve(Run(design, problem, fleet, start, **taken), monitor)
    proof = monitor.closings
    return Solved(proof.point, proof.certificate, monitor, monitor.history[-1])
