"""Make the optimisation problems of a fit: one, or one for each label or pair of labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from bigscreen.data.memory import Mirrored
from bigscreen.data.rows import Rows
from bigscreen.errors import InputError, is_number
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import TrainOptions
from bigscreen.problems.recipes import (
    CSvc,
    Lad,
    NuSvc,
    NuSvr,
    OneClass,
    Problem,
    Quantile,
    SquaredSvc,
    SquaredSvr,
    Svr,
    check_feasible,
)

MIN_MARGIN = 1e-9
"""Do not divide w by the margin of a nu-SVC, as LIBSVM does, if the margin is at most this (times
the largest squared norm of a row, if that is below 1): it would amplify rounding."""


class Binary(NamedTuple):
    """One problem of a fit: its name in records (None if it is the only one), and its folder.

    ``codes`` are the two labels of a one-against-one problem, in which rows of other labels have
    weight 0. ``fold`` is the fold whose rows the problem leaves out.
    """

    problem: Problem
    name: Any
    folder: str
    codes: tuple[int, int] | None = None
    fold: int | None = None


def problems(data: Rows, options: TrainOptions) -> list[Binary]:
    """Make the problems of a fit: one, or one for each label against the rest, or for each pair.

    Raises
    ------
    InputError
        If a nu is infeasible. Only labels and weights are read, no rows.
    """
    if options.classifies:
        return list(_make_classifiers(data, options))
    return [Binary(_make_single(data, options), None, "label-all")]


def _make_single(data: Rows, options: TrainOptions) -> Problem:
    """Return the problem of a regression or one-class fit."""
    if options.problem == "one-class":
        mass = total_weight(data)
        if not mass:
            raise InputError("every row has the weight zero, and a fit needs rows that count")
        return OneClass(options.nu, mass)
    C, offset = _penalty(data, options), options.offset
    if options.problem == "nu-svr":
        if not isinstance(data, Mirrored):
            raise InputError("nu-svr needs its rows twice, in memory; use the estimator NuSVR")
        return NuSvr(C, options.nu, 0.5 * total_weight(data), offset)
    if options.problem == "lad":
        return Lad(C, offset)
    if options.problem in ("svr", "squared-svr"):
        regression = Svr if options.problem == "svr" else SquaredSvr
        return regression(C, options.epsilon, offset, options.intercept_scaling)
    return Quantile(C, options.tau, offset)


def _make_classifiers(data: Rows, options: TrainOptions) -> Iterator[Binary]:
    """Yield the binary problems of a classifier: one-vs-rest, or one for each label pair."""
    labels, k = data.labels, len(data.labels)
    weights = np.asarray(class_weights(options.class_weight, data) or np.ones(k))
    if k > 2 and options.strategy == "one":
        for one, other in combinations(range(k), 2):
            # The box of a row with weight 0 is a point, so the row drops out of all sums.
            pair = np.zeros(k)
            pair[[one, other]] = weights[[one, other]]
            name = f"{labels[one]} vs {labels[other]}"
            problem = _make_classifier(data, options, other, pair, f" for {name}")
            yield Binary(problem, name, f"label-{one}-{other}", (one, other))
        return
    for code in [1] if k == 2 else range(k):
        where = "" if k == 2 else f" for {labels[code]} against the rest"
        problem = _make_classifier(data, options, code, weights, where)
        yield Binary(problem, None if k == 2 else labels[code], f"label-{code}")


def _make_classifier(
    data: Rows, options: TrainOptions, positive: int, weights: FloatArray, where: str
) -> Problem:
    """Make the problem of the label code ``positive`` against all labels with a positive weight.

    ``weights``: for each label code; ``where``: the end of an error message about nu.
    """
    by_code = tuple(weights.tolist()) if np.any(weights != 1.0) else ()
    if options.problem in ("c-svc", "squared-svc"):
        classifier = CSvc if options.problem == "c-svc" else SquaredSvc
        offset = options.offset, options.intercept_scaling
        return classifier(_penalty(data, options), positive, by_code, *offset)
    totals = label_totals(data) * weights
    one, rest = float(totals[positive]), float(np.sum(np.delete(totals, positive)))
    check_feasible(options.nu, one, rest, options.offset, where)
    return NuSvc(options.nu, positive, one + rest, by_code, options.offset)


def libsvm_scale(problem: Problem, multiplier: tuple[float, ...], data: Rows) -> float:
    """Return the factor by which LIBSVM multiplies w and the offset of a solved problem.

    It is 1 / rho for a nu-SVC (so that its margin is 1), nu times the total weight of the rows for
    a one-class machine, and 1 for all other problems. ``multiplier``: of the coupling at the
    optimum, one for each group, from which rho follows.
    """
    if isinstance(problem, OneClass):
        return problem.nu * problem.mass
    if isinstance(problem, NuSvc):
        rho = problem.rho(np.asarray(multiplier))
        size = data.max_sqnorm
        return 1.0 / rho if rho > MIN_MARGIN * min(1.0, size or 1.0) else 1.0
    return 1.0


def _penalty(data: Rows, options: TrainOptions) -> float:
    """Return C, computed from ``lam`` as 1 / (2 n lam) if that is given."""
    return options.C if options.lam is None else 1.0 / (2.0 * data.n_rows * options.lam)


def class_weights(given: str | Mapping[Any, float] | None, data: Rows) -> tuple[float, ...]:
    """Return a weight for each label code; "balanced" is ``total / (labels * total of the label)``.

    Totals are sums of row weights; rows without weights count as 1. A mapping may name labels that
    no row has (a fold may lack one), if it has a weight for every label.

    Raises
    ------
    InputError
        If a weight is not a positive number; or if a mapping names an unknown label and lacks a
        known one, so that it probably has a typing error.
    """
    labels = data.labels
    if given is None:
        return ()
    if isinstance(given, str):
        totals = label_totals(data)
        if not totals.any():
            return ()  # rows without any weight cannot be balanced, and need not be
        balanced = totals.sum() / (len(totals) * np.where(totals > 0, totals, 1.0))
        return tuple(balanced.tolist())
    unknown = [label for label in given if label not in labels]
    without = [label for label in labels if label not in given]
    if unknown and without:
        raise InputError(
            f"class_weight names {np.asarray(unknown[0]).item()!r}, which is not one of {labels}, "
            f"and has no weight for {without[0]!r}"
        )
    weights = [given.get(label, 1.0) for label in labels]
    if not all(is_number(w) and w > 0 for w in weights):
        raise InputError(f"class weights must be positive numbers, got {weights}")
    return tuple(map(float, weights))


def label_totals(data: Rows) -> np.ndarray:
    """Return the total row weight of each label, float64 (n_labels,)."""
    if not data.has_weights:
        return data.label_counts.astype(np.float64)
    totals = np.zeros(data.n_labels)
    for start, stop in map(data.chunk, range(data.n_chunks)):
        codes = data.y(start, stop)
        known = codes >= 0
        totals += np.bincount(codes[known], data.weights(start, stop)[known], len(totals))
    return totals


def total_weight(data: Rows) -> float:
    """Return the total weight of all rows."""
    if not data.has_weights:
        return float(data.n_rows)
    return float(sum(np.sum(data.weights(*data.chunk(k))) for k in range(data.n_chunks)))


def check_rows(data: Rows, problem: str, classifies: bool) -> None:
    """Refuse rows without the labels or targets that the problem needs."""
    if problem == "one-class":
        return
    if classifies and data.regression:
        raise InputError(
            f"{problem} needs labels and these rows have targets, numbers to predict; use lad, svr "
            "or quantile"
        )
    if not classifies and not data.regression:
        none = data.is_unlabelled
        raise InputError(
            f"{problem} needs targets, numbers to predict, and these rows have "
            + ("none; use one-class" if none else "labels; use c-svc or nu-svc")
            + ", or read the rows in again as regression data"
        )
    what = "label" if classifies else "target"
    if data.n_unlabelled:
        raise InputError(
            f"{data.n_unlabelled} rows have no {what}; a fit needs "
            + ("all targets" if data.n_targets > 1 else f"a {what}")
            + " on every row"
        )
    counts = np.asarray(data.label_counts)
    if classifies and np.count_nonzero(counts) < 2:
        label = data.labels[int(np.argmax(counts))] if len(data.labels) else None
        raise InputError(f"all rows have the label {label!r}; a fit needs rows of two labels")
