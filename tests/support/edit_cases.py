"""Random edits of small machines, judged by the oracle on features that the tests make themselves.

A ``Spec`` is drawn from its number: rows, kernel, weights, offset, how loosely the machine was
solved, and which rows leave, enter, change their label or weight. The first rows may be whole
numbers, which float32 holds, where rows that enter have fractions, which it does not; P, D and the
gap are judged by `published` on the numbers that were given.
"""

from __future__ import annotations

import warnings
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import published
import reference
from scipy import sparse

from bigscreen.amend.amend import Amended, amend
from bigscreen.amend.bound import Bound, bound
from bigscreen.amend.edits import Changes, Edits, find_changes
from bigscreen.amend.request import check_amendable
from bigscreen.data.memory import MemoryDataset
from bigscreen.fleet.inline import Inline
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.train.run import train

MACHINES = ("nystrom", "linear", "exact")
GRAINS = (0.0, 1.0, 1e3, 1e5)
"""Where the first rows' numbers lie: 0, or whole numbers around this one."""


@dataclass(frozen=True)
class Spec:
    """A case: ``tol`` of the machine that is edited, ``share`` of its rows that are.

    ``whole``: 0, or the first rows are whole numbers around this one, and rows that enter are not.
    """

    seed: int
    machine: str
    intercept: str
    weights: bool
    n: int
    d: int
    C: float
    gamma: float
    tol: float
    share: float
    whole: float = 0.0


def drawn(seed: int) -> Spec:
    """The case of this number."""
    rng = np.random.default_rng(seed)
    machine = MACHINES[rng.integers(3)]
    offsets = ("none", "penalized", "true") if machine == "exact" else ("none", "penalized")
    # (Drawn by itself: cases of float32 rows are what they were.)
    whole = float(np.random.default_rng([seed, 3]).choice(GRAINS))
    return Spec(
        seed,
        machine,
        offsets[rng.integers(len(offsets))],
        bool(rng.random() < 0.5),
        int(rng.integers(20, 70)),
        int(rng.integers(1, 6)),
        float(10 ** rng.uniform(-2, 1.5)),
        float(10 ** rng.uniform(-1.5, 0.5)),
        float(10 ** rng.uniform(-8, -0.5)),
        float(rng.choice([0.02, 0.1, 0.3])),
        min(whole, 1.0) if machine == "linear" else whole,
    )


class Case:
    """A machine, edits of its rows, and the edited problem as the oracle has it."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        rng = np.random.default_rng([spec.seed, 1])
        n, d = spec.n, spec.d
        X = self.numbers(rng.normal(size=(n, d)))
        if spec.whole:
            X = np.rint(X)
        X[1] = X[0]
        y = (X[:, 0] + rng.uniform(0.1, 1.5) * rng.normal(size=n) > 0).astype(np.int32)
        y[:4] = [0, 1, 0, 1]
        weights = rng.uniform(0.2, 3.0, n) if spec.weights else None
        self.data = MemoryDataset(X, y, [0, 1], weights)
        self.given = X, y, np.ones(n) if weights is None else weights
        how: dict[str, Any] = {"C": spec.C, "tol": spec.tol, "intercept": spec.intercept}
        if spec.machine == "linear":
            how["kernel"] = "linear"
        elif spec.machine == "nystrom":
            how |= {"gamma": spec.gamma, "landmarks": min(12, n)}
        else:
            how |= {"gamma": spec.gamma, "exact": True}
        self.options = TrainOptions(**how)
        self.model = self.judged = self.fitted(self.data)
        self.edits = self._edits(rng)

    def fitted(self, data: MemoryDataset) -> Model:
        with Inline(1) as fleet, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return train(data, self.options, fleet)

    def _edits(self, rng: np.random.Generator) -> Edits:
        spec, n = self.spec, self.spec.n
        some = rng.permutation(np.arange(4, n))[: max(1, int(spec.share * n))]
        kind = rng.integers(5)
        if kind == 0:  # those that matter least
            ledger = self.model.ledger[0]
            out = ledger.list_rows("out")
            out = ledger.numbers()[out]
            return Edits(remove=out[out >= 4][:5]) if np.any(out >= 4) else Edits(remove=some)
        if kind == 1:
            return Edits(remove=some)
        if kind == 2:
            codes = self.data.y(0, n)[some]
            return Edits(relabel=(some, (1 - codes).tolist()))
        if kind == 3 and spec.weights:
            return Edits(reweight=(some, rng.uniform(0, 4, len(some))))
        fresh = self.numbers(rng.normal(size=(len(some), spec.d)))
        codes = rng.integers(0, 2, len(some))
        weights = np.ones(len(some)) if spec.weights else None
        self.fresh = fresh
        return Edits(
            remove=some[: len(some) // 2], add=MemoryDataset(fresh, codes, [0, 1], weights)
        )

    def numbers(self, X: np.ndarray) -> np.ndarray:
        """Rows where the case's first rows are, which float32 holds or not."""
        return 2.0 * X + self.spec.whole if self.spec.whole else X.astype(np.float32)

    def given_after(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """X, codes and weights that the user has after the edits, numbered as the new data are."""
        (X, y, weights), edits = self.given, self.edits
        y, weights = y.copy(), weights.copy()
        y[edits.relabel[0]] = edits.relabel[1]
        weights[edits.reweight[0]] = edits.reweight[1]
        keep = ~np.isin(np.arange(len(X)), edits.remove)
        parts = [(X[keep], y[keep], weights[keep])]
        if edits.add is not None:
            m = edits.add.n_rows
            parts.append((self.fresh, edits.add.y(0, m), edits.add.weights(0, m)))
        X, y, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
        return X, y, weights

    @cached_property
    def changes(self) -> Changes:
        return find_changes(self.data, self.edits)

    def bound(self) -> Bound:
        (binary,) = check_amendable(self.model, self.data)
        return bound(self.model, 0, binary, self.data, self.changes)

    def phi(self, X: np.ndarray) -> np.ndarray:
        """Features whose products are those of the machine, without the constant."""
        X = np.asarray(X, dtype=np.float64)
        if self.spec.machine == "linear":
            return X
        base, factor = self._basis
        return self.gram(X, base) @ factor

    @cached_property
    def _basis(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows that features are made of, and the factor of their kernel matrix."""
        base = np.asarray(self.model.landmarks, dtype=np.float64)
        if self.spec.machine == "exact":
            # All rows that there are, and the support rows as the model has them.
            base = np.concatenate([self.data.X(0, self.spec.n), self.changes.X]).astype(float)
        values, vectors = np.linalg.eigh(self.gram(base, base))
        keep = values > 1e-12 * values[-1]
        if self.spec.machine == "nystrom":  # it has as many directions as its certificate counts
            keep[: -self.judged.provenance["nystrom"]["rank"]] = False
        return base, vectors[:, keep] / np.sqrt(values[keep])

    def gram(self, A: np.ndarray, B: np.ndarray) -> np.ndarray:
        gamma = float(self.model.kernel.to_dict()["gamma"])
        return np.exp(-gamma * ((A[:, None, :] - B[None]) ** 2).sum(axis=2))

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """X, codes and weights of the edited problem."""
        n, c = self.spec.n, self.changes
        X, y, weights = (
            part(0, n).copy() for part in (self.data.X, self.data.y, self.data.weights)
        )
        own = c.places >= 0
        y[c.places[own]], weights[c.places[own]] = c.codes[1][own], c.weights[1][own]
        X, y = np.concatenate([X, c.X[~own]]), np.concatenate([y, c.codes[1][~own]])
        weights = np.concatenate([weights, c.weights[1][~own]])
        keep = weights > 0
        return X[keep], y[keep], weights[keep]

    @cached_property
    def oracle(self) -> reference.Problem:
        """The edited problem."""
        X, y, weights = self.rows()
        offset = {"penalized": "constant"}.get(self.spec.intercept, self.spec.intercept)
        return reference.c_svc(self.phi(X), y, self.spec.C * weights, offset)

    @cached_property
    def optimum(self) -> reference.Optimum:
        return reference.solve(self.oracle)

    def w(self, model: Model) -> tuple[np.ndarray, float]:
        """w in the features of ``phi`` (the constant's coefficient last), and the offset."""
        coef = model.coef[0]
        w = coef if self.spec.machine == "linear" else self.phi(model.landmarks).T @ coef
        offset = float(model.intercept[0])
        if self.spec.intercept == "penalized":
            w = np.append(w, offset)
        return w, offset if self.spec.intercept == "true" else 0.0


def objective(q: reference.Problem, w: np.ndarray, mu: float) -> float:
    """P(w, mu)."""
    return 0.5 * float(w @ w) + float(np.sum(reference.losses(q, q.phi @ w, mu)))


def wrongs(case: Case, found: Bound | None = None) -> list[str]:
    """The statements of a bound, by default the case's own, that the reference contradicts."""
    found, q, best = found or case.bound(), case.oracle, case.optimum
    w, mu = case.w(case.model)
    # (The tests' own features leave out directions below 1e-12 of the largest.)
    P, room = objective(q, w, mu), 1e-6 * (1 + abs(best.primal))
    gap, said = found.gap + found.rounding, []
    # (What rounding can have moved the gap by is less: it moves P and D alike.)
    if abs(P - found.primal) > found.primal_rounding + room:
        said.append(f"P' {found.primal} is {P}")
    if found.dual - found.dual_rounding > best.primal + room:
        said.append(f"D' {found.dual} is above P'* {best.primal}")
    if P - best.primal > gap + room:
        said.append(f"P' - P'* is {P - best.primal}, bound {gap}")
    moved = float(np.linalg.norm(best.w - w))
    slack = 1e-5 * (1 + moved)  # the oracle's own w* is as good as the root of its gap
    if moved > found.radius + slack:
        said.append(f"w moves {moved}, bound {found.radius}")
    fresh = case.numbers(np.random.default_rng(case.spec.seed).normal(size=(20, case.spec.d)))
    _old, low, high = found.intervals(fresh)
    phi = case.phi(fresh)
    if case.spec.machine == "exact":
        # A row that is none of those the features are made of has a part outside of them.
        phi = None
    if phi is not None and case.spec.intercept != "true":
        if case.spec.intercept == "penalized":
            phi = np.column_stack([phi, np.ones(len(phi))])
        u = phi @ best.w
        if np.any((u < low - slack) | (u > high + slack)):
            said.append(f"a score lies outside by {max(np.max(low - u), np.max(u - high))}")
    elif np.isfinite(low).any():
        kernel = case.gram(fresh.astype(float), np.concatenate([case.rows()[0]]).astype(float))
        s = q.s * best.alpha
        u = kernel @ s + (float(s.sum()) if case.spec.intercept == "penalized" else 0.0)
        if np.any((u < low - slack) | (u > high + slack)):
            said.append(f"a score lies outside by {max(np.max(low - u), np.max(u - high))}")
    return said


def amended(case: Case) -> Amended:
    """The machine of the edited rows."""
    with Inline(1) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return amend(case.model, case.data, case.edits, fleet)


def judged_as(case: Case, model: Model) -> Case:
    """The case with the oracle in as many directions as this model has."""
    again = copy(case)
    for known in ("_basis", "oracle", "optimum"):
        vars(again).pop(known, None)
    again.judged = model
    return again


def edited_again(case: Case, made: Amended) -> Case:
    """A case with further edits, of the machine that the first edits have led to."""
    again = judged_as(case, made.model)
    vars(again).pop("changes", None)
    again.model, again.data, again.given = made.model, made.data, case.given_after()
    again.spec = replace(case.spec, n=made.data.n_rows)
    again.edits = again._edits(np.random.default_rng([case.spec.seed, 2]))
    return again


def wrongs_after(case: Case, made: Amended | None = None) -> list[str]:
    """The statements about the refitted machine that the reference optimum contradicts."""
    made = made or amended(case)
    case = judged_as(case, made.model)
    q, best = case.oracle, case.optimum
    (proof,), (book,) = made.model.provenance["certificates"], made.model.ledger
    w, mu = case.w(made.model)
    P, room = objective(q, w, mu), 1e-6 * (1 + abs(best.primal))
    said = []
    if abs(P - proof["primal"]) > proof["primal_rounding"] + room:
        said.append(f"P {proof['primal']} is {P}")
    if P - best.primal > proof["gap"] + proof["rounding_bound"] + room:
        said.append(f"P - P* is {P - best.primal}, gap {proof['gap']}")
    said += stated(case, made)
    n = made.data.n_rows
    alpha, most = np.zeros(n), made.data.weights(0, n) * case.spec.C
    alpha[most > 0] = best.alpha
    status, numbers = book.status, book.numbers()
    if np.any(alpha[numbers][status == "out"] > 1e-4 * most[numbers][status == "out"]):
        said.append("a row is not out")
    bound_rows = status == "bound"
    if np.any(alpha[numbers][bound_rows] < (1 - 1e-4) * most[numbers][bound_rows]):
        said.append("a row is not at its bound")
    return said


def stated(case: Case, made: Amended) -> list[str]:
    """The statements of the certificate that the user's own numbers contradict (`published`)."""
    spec, model, (X, y, weights) = case.spec, made.model, case.given_after()
    offset = {"none": False, "penalized": "penalized", "true": True}[spec.intercept]
    of_kernel = model.kernel.to_dict()
    given = SimpleNamespace(X=X, y=y, weights=weights, problem="c-svc")
    asked = SimpleNamespace(
        n=len(X), kernel=of_kernel["name"], gamma=of_kernel.get("gamma"), degree=0, coef0=0.0,
        intercept=offset, squared=False, indefinite=False, tol=spec.tol, quantile=0.5,
    )  # fmt: skip
    fitted = SimpleNamespace(
        model_=model, intercept_=model.intercept, components_=model.landmarks, C=spec.C,
        certificate_=model.provenance["certificates"], gamma=of_kernel.get("gamma"),
        classes_=np.array([0, 1]), class_weight=None,
    )  # fmt: skip
    if model.support is not None:
        fitted.support_, fitted.dual_coef_ = model.support, model.coef
    judge = published.Published(asked, given, fitted)
    with np.errstate(all="ignore"):
        found = judge._certificate(judge.machines[0], done=False)
    return [f"{kind}: {what}" for kind, what in found.items()]


def edited(spec: Any, rows: Any, fitted: Any) -> tuple[Any, Any]:
    """Amend an estimator of `certificate_cases` by rows near its own that float32 does not hold.

    Returns
    -------
    Spec, Rows
        What the estimator is fitted to from then on; a gamma in words stays what it was.
    """
    rng, m = np.random.default_rng([spec.seed, 4]), 1 + spec.n // 8
    near, gone = rng.integers(0, spec.n, m), rng.permutation(spec.n)[: m // 2]
    X = rows.X[near].astype(np.float64)
    X += 0.3 * rng.normal(size=X.shape) * rows.X.std(axis=0, dtype=np.float64)
    given = sparse.csr_array(X) if spec.sparse else X
    fitted.amend(rows.given, rows.y, rows.weights, remove=gone, add=(given, rows.y[near]))
    after, keep = copy(rows), ~np.isin(np.arange(spec.n), gone)
    after.X = np.concatenate([rows.X[keep].astype(np.float64), X])
    after.given = sparse.csr_array(after.X) if spec.sparse else after.X
    after.y = np.concatenate([rows.y[keep], rows.y[near]])
    if rows.weights is not None:
        after.weights = np.concatenate([rows.weights[keep], np.ones(m)])
    if isinstance(spec.gamma, str) and spec.kernel != "linear":
        fitted.gamma, spec = fitted.model_.kernel.gamma, replace(spec, gamma=0.0)
    after.spec = spec = replace(spec, n=len(after.X))
    return spec, after
