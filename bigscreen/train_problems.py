"""The problems that a run solves: one, or one for every label or pair of labels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from bigscreen.dual import FloatArray
from bigscreen.errors import InputError
from bigscreen.problems import CSvc, Lad, Problem, Quantile, SquaredSvc, SquaredSvr, Svr
from bigscreen.problems_nu import NuSvc, NuSvr, OneClass, check_feasible
from bigscreen.store import Mirrored, Rows
from bigscreen.train_data import class_weights, label_totals, total_weight
from bigscreen.train_options import TrainOptions

NOTHING = 1e-9
"""A margin so small beside 1 is none: LIBSVM's scale would divide by noise."""


class Binary(NamedTuple):
    """One problem: what records call it (None: it is the only one), its folder, and the codes of
    its two labels where the rows of others have no part in it."""

    problem: Problem
    name: Any
    folder: str
    codes: tuple[int, int] | None = None


def problems(data: Rows, options: TrainOptions) -> list[Binary]:
    """One problem; or one a label, against the rest; or one a pair of labels.

    Raises
    ------
    InputError
        If a nu is infeasible. Nothing but labels and weights are looked at.
    """
    if options.classifies:
        return list(_classifiers(data, options))
    return [Binary(_single(data, options), None, "label-all")]


def _single(data: Rows, options: TrainOptions) -> Problem:
    if options.problem == "one-class":
        mass = total_weight(data)
        if not mass:
            raise InputError("every row has the weight zero, and a fit needs rows that count")
        return OneClass(options.nu, mass)
    C, intercept = _penalty(data, options), options.intercept
    if options.problem == "nu-svr":
        if not isinstance(data, Mirrored):
            raise InputError("nu-svr needs its rows twice, in memory; use the estimator NuSVR")
        return NuSvr(C, options.nu, 0.5 * total_weight(data), intercept)
    if options.problem == "lad":
        return Lad(C, intercept)
    if options.problem in ("svr", "squared-svr"):
        regression = Svr if options.problem == "svr" else SquaredSvr
        return regression(C, options.epsilon, intercept, options.intercept_scaling)
    return Quantile(C, options.tau, intercept)


def _classifiers(data: Rows, options: TrainOptions) -> Iterator[Binary]:
    labels, k = data.labels, len(data.labels)
    weights = np.asarray(class_weights(options.class_weight, data) or np.ones(k))
    if k > 2 and options.strategy == "one":
        for one, other in combinations(range(k), 2):
            # The box of a row of weight 0 is a point, which takes it out of every sum.
            pair = np.zeros(k)
            pair[[one, other]] = weights[[one, other]]
            name = f"{labels[one]} vs {labels[other]}"
            problem = _classifier(data, options, other, pair, f" for {name}")
            yield Binary(problem, name, f"label-{one}-{other}", (one, other))
        return
    for code in [1] if k == 2 else range(k):
        where = "" if k == 2 else f" for {labels[code]} against the rest"
        problem = _classifier(data, options, code, weights, where)
        yield Binary(problem, None if k == 2 else labels[code], f"label-{code}")


def _classifier(
    data: Rows, options: TrainOptions, positive: int, weights: FloatArray, where: str
) -> Problem:
    """The problem of one label against those others that have any weight."""
    by_code = tuple(weights.tolist()) if np.any(weights != 1.0) else ()
    if options.problem in ("c-svc", "squared-svc"):
        classifier = CSvc if options.problem == "c-svc" else SquaredSvc
        offset = options.intercept, options.intercept_scaling
        return classifier(_penalty(data, options), positive, by_code, *offset)
    totals = label_totals(data) * weights
    one, rest = float(totals[positive]), float(np.sum(np.delete(totals, positive)))
    check_feasible(options.nu, one, rest, options.intercept, where)
    return NuSvc(options.nu, positive, one + rest, by_code, options.intercept)


def published(problem: Problem, multiplier: tuple[float, ...], data: Rows) -> float:
    """What LIBSVM multiplies w and the offset with: 1 / rho of a nu-SVC (its margin is 1 then),
    nu times the weight of a one-class machine's rows, else 1."""
    if isinstance(problem, OneClass):
        return problem.nu * problem.mass
    if isinstance(problem, NuSvc):
        rho = problem.rho(np.asarray(multiplier))
        size = data.max_sqnorm
        return 1.0 / rho if rho > NOTHING * min(1.0, size or 1.0) else 1.0
    return 1.0


def _penalty(data: Rows, options: TrainOptions) -> float:
    return options.C if options.lam is None else 1.0 / (2.0 * data.n_rows * options.lam)
