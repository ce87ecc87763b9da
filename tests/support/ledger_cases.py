"""Random estimators whose ledgers an independent optimum judges, row by row.

A case is a `certificate_cases.Spec`, solved to a tight gap: an estimator with a ledger, parameters,
and rows. The dual is written down here in the textbooks' variables (two for each row with a tube)
from the user's numbers, and `reference` solves it. A ledger is wrong if a row is "out" and one of
its variables is not 0 at the optimum, if a row is "bound" and is not at the end of its box, if it
lists other rows than those that count, or if there is one where nothing is proved.
"""

from __future__ import annotations

import tempfile
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import reference
from case_runner import Outcome
from certificate_cases import CLASSIFIERS, PROBLEMS, Rows, Spec, drawn, machine, refusal
from published import entries

import bigscreen
from bigscreen import fit_many, ingest
from bigscreen.errors import TimeOver

SEARCHES = {"SVCCV": "SVC", "NuSVCCV": "NuSVC", "NystroemSVCCV": "NystroemSVC"}
"""Estimators that choose parameters, and those that are fitted with what they choose."""

JUDGED = (*PROBLEMS, *SEARCHES)
"""Every estimator with a ledger."""

OFF = 1e-5
"""Part of its box that a variable of the reference's optimum is off its bound, beyond which a claim
is wrong: the reference's complementarity, divided by its gradient, is less."""

SOLVED = 1e-11
"""Gap of the reference's optimum, as part of what its objectives are summed from, up to which it
can judge."""

SECONDS = 10.0


TOGETHER = ("NystroemSVC", "LinearSVC", "LinearSVR")
"""Estimators that `fit_many` fits."""


@dataclass(frozen=True)
class Case:
    """An estimator, ``name``, with the parameters and rows of ``spec``, and how it is fitted.

    ``way``: how it is fitted: "alone", "store" (on rows in a store, shuffled there), or "many" (by
    `fit_many`, together with a fit with other weights).
    """

    name: str
    spec: Spec
    way: str = "alone"


def drawn_case(number: int) -> Case:
    """The case of this number: every estimator in turn."""
    rng = np.random.default_rng([number, 0x1ED6E2])
    name = JUDGED[number % len(JUDGED)]
    plain = SEARCHES.get(name, name)
    # A random fit of the estimator: the next number that draws one.
    seed = number * 1_000
    while (spec := drawn(seed)).machine != plain:
        seed += 1
    tight = bool(rng.random() < 0.9)
    own: dict[str, Any] = {
        "n": int(rng.integers(12, 70)),
        "C": float(rng.uniform(-2, 2)),
        "tol": float(10.0 ** (rng.uniform(-12, -6) if tight else rng.uniform(-6, -2))),
        "target": float(rng.uniform(-3, 3)) if spec.target else 0.0,
        "weights": {"wide": "some", "large": "zeros"}.get(spec.weights, spec.weights),
    }
    if spec.kernel == "poly":
        own["degree"] = min(spec.degree, 3)
    if name in SEARCHES:
        own |= {"kernel": "rbf", "sparse": False, "weights": "none", "n": max(own["n"], 30)}
        own |= {"indefinite": False, "whole": 0.0, "class_weight": "none", "duplicates": False}
        own |= {"components": spec.components if plain == "NystroemSVC" else None}
        own |= {"squared": False, "gamma": 0.0 if isinstance(spec.gamma, str) else spec.gamma}
    if spec.kernel not in ("rbf", "laplacian"):
        # Of products of far rows the reference has no digits; of their distances it has all.
        own |= {"scale": 0.0, "huge": None}
        own["offset"] = float(rng.uniform(0, 2)) if spec.offset is not None else None
    own |= {"suited": True, "seconds": SECONDS}
    way = str(rng.choice(["alone", "alone", "store", "many"]))
    if way == "store" and (name in (*SEARCHES, "NuSVR") or spec.kernel == "precomputed"):
        way = "alone"
    if way == "many" and name not in TOGETHER:
        way = "alone"
    if way == "store":
        own["single"] = True  # what a store holds is what the judge sees
    return Case(name, replace(spec, **own), way)


def estimator(case: Case, rows: Rows) -> Any:
    """The estimator, not fitted."""
    plain, name = machine(case.spec, rows), case.name
    if name not in SEARCHES:
        return plain
    known = plain.get_params()
    own = {"tol": case.spec.tol, "fit_intercept": known["fit_intercept"], "cv": 3, "n_jobs": 1}
    own |= {"gammas": [known["gamma"]], "time_budget": SECONDS}
    if name == "NystroemSVCCV":
        own |= {"n_components": known["n_components"], "sampling": known["sampling"]}
    if name == "NuSVCCV":
        return bigscreen.NuSVCCV(nus=[0.5 * known["nu"], known["nu"]], **own)
    return getattr(bigscreen, name)(Cs=[known["C"], 3 * known["C"]], **own)


def judge_ledgers(number: int) -> Outcome:
    """Fit the estimator of this number and judge its ledgers."""
    case = drawn_case(number)
    outcome = Outcome(f"{case.name} {case.way}: {case.spec}", twists=case.spec.twists)
    rows = Rows(case.spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fitted = fit(case, rows)
        except TimeOver:
            outcome.name = "time over"
            return outcome
        except Exception as error:
            outcome.name = "refused"
            if not refusal(error):
                outcome.wrong = {"traceback": traceback.format_exc()}
            return outcome
    books = fitted.ledger_ if isinstance(fitted.ledger_, list) else [fitted.ledger_]
    proved = all(stated.get("proved", True) for stated in fitted.certificate_)
    if books[0] is None or not proved:
        outcome.name = "nothing proved"
        if (books[0] is None) == proved:
            outcome.wrong = {"ledger": f"{books[0]}, but the gap is{' not' * (not proved)} proved"}
        return outcome
    features, found = phi(case, rows, fitted), []
    for book, own in zip(books, binaries(case, rows, fitted), strict=True):
        q = dual(case, rows, fitted, features, own)
        found.append(judge(case.name, book, own, q, outcome))
    outcome.name = "judged" if all(found) else "optimum not found"
    return outcome


def fit(case: Case, rows: Rows) -> Any:
    """The fitted estimator."""
    made = estimator(case, rows)
    if case.way == "many":
        given = np.ones(len(rows.y)) if rows.weights is None else rows.weights
        other = given * np.random.default_rng(case.spec.seed).integers(0, 3, len(given))
        other[: 4 * case.spec.classes] = 1
        return fit_many(made, rows.given, rows.y, np.column_stack([other, given]))[1]
    if case.way == "store":
        with tempfile.TemporaryDirectory() as folder:
            targets = rows.problem not in (*CLASSIFIERS, "one-class")
            parts = [rows.given, np.ones(case.spec.n) if rows.y is None else rows.y, rows.weights]
            source = tuple(part for part in parts if part is not None)
            store = ingest(
                source, Path(folder) / "rows.store", seed=case.spec.seed, regression=targets
            )
            return made.fit(store.store)
    more = {} if rows.weights is None else {"sample_weight": rows.weights}
    return made.fit(rows.given, **more) if rows.y is None else made.fit(rows.given, rows.y, **more)


@dataclass(frozen=True)
class Binary:
    """The rows of one score, their signs (or 1), targets (or 0), and weights by row and class."""

    rows: np.ndarray
    sign: np.ndarray
    target: np.ndarray
    weights: np.ndarray


def binaries(case: Case, rows: Rows, fitted: Any) -> Iterator[Binary]:
    """The problems of a fit, in the order of its ledgers."""
    n, y = case.spec.n, rows.y
    weights = np.ones(n) if rows.weights is None else rows.weights.astype(float)
    kept = np.flatnonzero(weights > 0)
    if rows.problem not in CLASSIFIERS:
        target = np.zeros(n) if y is None else y
        yield Binary(kept, np.ones(len(kept)), target[kept], weights[kept])
        return
    classes = np.unique(y)
    weights = weights * _class_weights(case.spec, y, weights)
    one = fitted.model_.strategy == "one"
    sets = list(combinations(classes, 2)) if one else [(label, None) for label in classes]
    if len(classes) == 2:
        sets = [(classes[1], None)]
    for first, second in sets:
        own = kept if second is None else kept[np.isin(y[kept], [first, second])]
        sign = np.where(y[own] == first, 1.0, -1.0)
        yield Binary(own, sign, np.zeros(len(own)), weights[own])


def _class_weights(spec: Spec, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    if spec.class_weight == "none":
        return np.ones(len(y))
    if spec.class_weight == "uneven":
        return 1.0 + y
    totals = {label: weights[y == label].sum() for label in np.unique(y)}
    whole = sum(totals.values())
    return np.array([whole / (len(totals) * totals[label]) for label in y])


def phi(case: Case, rows: Rows, fitted: Any) -> np.ndarray:
    """Features of all rows whose products are the machine's kernel, without a constant."""
    spec, model, X = case.spec, fitted.model_, rows.X.astype(float)
    if case.name.startswith("Linear") or (spec.kernel == "linear" and model.support is None):
        return X
    if spec.kernel == "precomputed":
        return reference.features(X)
    gamma = rows.gamma()
    if isinstance(gamma, str):
        # Stores and `fit_many` take the variance over all rows, those without weight too.
        counted = case.way == "alone" and rows.weights is not None
        own = X[rows.weights > 0] if counted else X
        gamma = 1 / (own.shape[1] * own.var()) if own.var() > 0 else 1.0
        known = float(getattr(model.kernel, "gamma", gamma))
        gamma = known if abs(known / gamma - 1) < 1e-5 else gamma

    def gram(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        A, B = A.astype(np.longdouble), B.astype(np.longdouble)
        return entries(spec.kernel, A, B, gamma, spec.degree, spec.coef0)[0].astype(float)

    if model.support is not None:
        return reference.features(gram(X, X))
    Z = model.landmarks.toarray() if hasattr(model.landmarks, "toarray") else model.landmarks
    # The span of T's columns is part of what a machine on landmarks is.
    return gram(X, Z.astype(float)) @ model.factor[0]


def dual(
    case: Case, rows: Rows, fitted: Any, features: np.ndarray, own: Binary
) -> reference.Problem:
    """The dual in the textbooks' variables; a nu-SVR's are those above the tube, then those below.

    Features are divided by a power of two, for the reference's sake: alpha is that of the user's
    features times its square where the problem has a C.
    """
    spec, n = case.spec, len(own.rows)
    one, zero, true = np.ones(n), np.zeros(n), spec.intercept is True
    sign, y = own.sign, own.target
    unit = 2.0 ** np.floor(np.log2(max(np.abs(features).max(), 1e-300)))
    phi = features[own.rows] / unit
    if spec.intercept == "penalized" and rows.problem != "one-class":
        constant = 10.0**spec.scaling if case.name.startswith("Linear") else 1.0
        phi = np.column_stack([phi, np.full(n, constant / unit)])
    mass = own.weights.sum()
    if rows.problem == "one-class":
        return reference.Problem(phi, one, zero, zero, own.weights / (spec.nu * mass), one, 1.0)
    if rows.problem == "nu-svc":
        nu = fitted.best_params_["nu"] if case.name in SEARCHES else spec.nu
        group, total = ((sign > 0).astype(int), np.full(2, nu / 2)) if true else (None, nu)
        return reference.Problem(phi, sign, zero, zero, own.weights / mass, one, total, group)
    C = fitted.best_params_["C"] if case.name in SEARCHES else rows.penalty()
    box = own.weights * C * unit**2
    if rows.problem == "c-svc":
        q = reference.Problem(phi, sign, one, zero, box, sign if true else None)
        return reference.squared(q) if spec.squared else q
    if rows.problem == "nu-svr":
        both, total = np.r_[one, -one], spec.nu * box.sum()
        group, totals = ((both > 0).astype(int), np.full(2, total / 2)) if true else (None, total)
        twice = np.vstack([phi, phi]), both, np.r_[y, -y], np.r_[zero, zero], np.r_[box, box]
        return reference.Problem(*twice, np.ones(2 * n), totals, group)
    shares = (spec.quantile - 1, spec.quantile) if rows.problem == "quantile" else (-1, 1)
    epsilon = spec.epsilon * 10.0**spec.target if rows.problem == "svr" else 0.0
    ends, tube = [share * box for share in shares], np.full(n, epsilon) if epsilon else None
    q = reference.Problem(phi, one, y, *ends, one if true else None, 0.0, None, tube)
    return reference.squared(q) if spec.squared else q


def judge(name: str, book: Any, own: Binary, q: reference.Problem, outcome: Outcome) -> bool:
    """Whether the reference finds the optimum; what is wrong goes into the outcome."""
    numbers, status = book.numbers(), book.status
    # Stores and `fit_many` keep the rows without weight, whose variables are 0.
    kept = np.isin(numbers, own.rows)
    if np.any(status[~kept] == "bound"):
        outcome.wrong[f"{name}: weightless"] = f"rows {numbers[~kept].tolist()}"
    status, margins, numbers = status[kept], book.margins[kept], numbers[kept]
    if not np.array_equal(numbers, own.rows):
        outcome.wrong["rows"] = f"{numbers.tolist()} for {own.rows.tolist()}"
        return True
    with np.errstate(all="ignore"):
        try:
            best = reference.solve(q, 100)
        except np.linalg.LinAlgError:
            return False
    if not is_solved(q, best):
        return False
    n = len(own.rows)
    width = q.hi - q.lo if q.curve is None else np.full(len(q.s), np.abs(best.alpha).max() or 1.0)
    off_zero = np.abs(best.alpha) / width
    off_end = np.abs(best.alpha[:, None] - np.column_stack([q.lo, q.hi])) / width[:, None]
    off_end = np.where(np.column_stack([q.lo, q.hi]) == 0, np.inf, off_end).min(axis=1)
    if len(q.s) > n:  # one variable is at its end, the other at 0
        off_end = np.minimum(
            np.maximum(off_end[:n], off_zero[n:]), np.maximum(off_end[n:], off_zero[:n])
        )
        off_zero = np.maximum(off_zero[:n], off_zero[n:])
    for claim, off in (("out", off_zero), ("bound", off_end)):
        false = np.flatnonzero((status == claim) & (off > OFF))
        if len(false):
            k = false[np.argmax(off[false])]
            outcome.wrong[f"{name}: {claim}"] = (
                f"{len(false)} rows are not, row {own.rows[k]} by {off[k]:.3g} of its box, "
                f"margin {float(np.abs(margins[k])):.4g}"
            )
    figures = {"rows": n, "out": int(np.sum(status == "out"))}
    figures |= {"bound": int(np.sum(status == "bound"))}
    outcome.figures.update({(name, column): count for column, count in figures.items()})
    return True


def is_solved(q: reference.Problem, best: reference.Optimum) -> bool:
    """Whether the reference's own gap is at most `SOLVED` of the terms of its objectives."""
    ends = np.abs(best.alpha) if q.curve is not None else np.maximum(np.abs(q.lo), np.abs(q.hi))
    size = best.w @ best.w + (np.abs(q.p) + np.abs(best.scores)) @ ends
    if not q.p.any():  # w* may be 0
        size += (ends @ np.linalg.norm(q.phi, axis=1)) ** 2
    return bool(best.primal - best.dual <= SOLVED * size)
