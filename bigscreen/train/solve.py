"""Solve one optimisation problem with an exact kernel, without an estimator or a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from bigscreen.data.memory import MemoryDataset
from bigscreen.data.other_arrays import on_host
from bigscreen.data.targets import as_targets
from bigscreen.errors import InputError, is_number
from bigscreen.features.design import Design
from bigscreen.fit.ladder import ExactInterior
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.blas import blas_threads
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.definite import check_definite
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.standard import make_kernel
from bigscreen.numerics.rows import FloatArray
from bigscreen.plan.tuning import PLAN
from bigscreen.problems.point import Certificate
from bigscreen.problems.recipes import CSvc, NuSvc, OneClass, Problem, Sublinear
from bigscreen.solvers.block.solver import Block
from bigscreen.solvers.protocol import Run, Solver
from bigscreen.solvers.smo.solver import Pairs


@dataclass(frozen=True)
class Solution:
    """The solution of one problem: dual variables, offset and certificate.

    Attributes
    ----------
    alpha : float64 (n,)
        Feasible up to rounding.
    coef : float64 (n,)
        ``s alpha``: the score of a row x is ``sum_i coef_i k(x_i, x) + intercept``.
    intercept : float
    certificate : Certificate
        The primal and dual objectives and their gap over all rows, and the ``multiplier`` of the
        coupling constraint. For a kernel that is not positive semidefinite, the KKT violation.
    """

    alpha: FloatArray
    coef: FloatArray
    intercept: float
    certificate: Certificate


def solve(
    problem: Problem,
    X: Any,
    y: ArrayLike | None = None,
    *,
    kernel: str | Kernel = "linear",
    gamma: float = 1.0,
    weights: ArrayLike | None = None,
    tol: float = 1e-6,
    max_iter: int = 10_000,
) -> Solution:
    """Solve a recipe of `bigscreen.problems` or `bigscreen.problems.recipes` to a proved gap.

    Parameters
    ----------
    problem : Problem
        The general class of Wang et al. (2014) is ``Sublinear(C, a, b, lower, upper)``.
    X : array or sparse array of shape (n, d)
        Rows.
    y : array of shape (n,) or None
        Label codes for classifiers (``problem.positive`` is class +1), targets for regressions;
        ``OneClass`` and ``Sublinear`` ignore it.
    kernel : str or Kernel
        The name of a kernel, or a kernel of `bigscreen.kernels`.
    gamma : float
        Parameter of a kernel that is given by name.
    weights : array of shape (n,) or None
        Row weights, not negative; None: all 1.
    tol : float
        Relative gap to prove (KKT violation, if the kernel is not positive semidefinite).
    max_iter : int
        Limit on the checks of the solver; the certificate says what was reached.

    Raises
    ------
    InputError
        If rows, labels, targets or weights cannot be used.
    """
    for name, value in (("tol", tol), ("gamma", gamma), ("max_iter", max_iter)):
        if not (is_number(value) and value > 0):
            raise InputError(f"{name} must be a positive finite number, got {value!r}")
    X, y, weights = on_host(X, y, weights)
    X = X if sparse.issparse(X) else np.asarray(X)
    n = X.shape[0] if X.ndim else 0
    data = MemoryDataset(X, *_outcome(problem, y, n), weights)
    made = make_kernel(kernel, gamma) if isinstance(kernel, str) else kernel
    if not isinstance(made, Kernel):
        raise InputError(
            f"kernel must be a name or a kernel of bigscreen.kernels, got {kernel!r}; a function f "
            "is Custom(f)"
        )
    if isinstance(made, (Custom, Precomputed)):
        made = check_definite(made, data)
    solver: Solver = Pairs() if n <= PLAN.few_rows else Block()
    design = Design(data, made)
    then = [ExactInterior(design)] if n <= PLAN.few_rows and design.definite else []
    # One BLAS thread: several would compete with the threads of the fleet for the cores.
    with Inline() as fleet, blas_threads(1):
        run = Run(design, problem, fleet)
        fitted = fit(run, solver, Limits(tol, max_iter), certify="float64", then=then)
    found, proved = fitted.point.alpha, fitted.certificate
    assert found is not None and proved.intercept is not None
    dual = problem.dual(data.y(0, n), data.weights(0, n))
    alpha = np.clip(found, dual.lo, dual.hi)
    return Solution(alpha, dual.sign * alpha, proved.intercept, proved)


def _outcome(problem: Problem, y: ArrayLike | None, n: int) -> tuple[ArrayLike, list[int] | None]:
    """Return the targets or label codes (n,) that the problem uses, and the labels of codes.

    ``y``: what the user gave, for ``n`` rows. The labels are None for problems without labels.
    """
    if isinstance(problem, (Sublinear, OneClass)):
        if isinstance(problem, Sublinear) and len(problem.a) != n:
            raise InputError(
                f"a and b have {len(problem.a)} numbers and X has {n} rows; give one for each row"
            )
        # Sublinear looks up its parameters by row number, so the targets are the row numbers.
        return np.arange(n, dtype=np.float64), None
    if y is None:
        raise InputError(f"{type(problem).__name__} needs y: label codes or targets")
    given = np.asarray(y)
    if not isinstance(problem, (CSvc, NuSvc)):
        missing = np.flatnonzero(np.isnan(as_targets(given, n, lambda row: f"row {row} of y")))
        if len(missing):
            raise InputError(f"row {missing[0]} of y: the target is missing (nan)")
        return given, None
    if given.dtype.kind not in "iu":
        raise InputError(f"y must be label codes, whole numbers from 0, got {given.dtype} numbers")
    labels = list(range(int(np.max(given, initial=problem.positive)) + 1))
    own = problem.code_weight
    if own and (len(own) < len(labels) or min(own) < 0):
        raise InputError(
            f"code_weight must be a weight for each code up to {labels[-1]}, not negative, got "
            f"{own}"
        )
    return given, labels
