"""Try rules of a path on random cases: w* is in every region, and nothing is removed wrongly.

``python tests/safety_cases.py`` judges 10,000 cases and prints a summary, also when it is
interrupted; ``KINDS`` lists what is judged: the rules of a path, and edits of machines
(``edit_cases``), whose bounds no optimum may break.

A ``Spec`` is one case of the rules: a problem at one point of a path, kernel, rows, weights, and
points solved before to some accuracy. Optima come from ``reference``, alphas from plain loops here:
nothing that judges a rule is the package's own, but for the recipes that say what the problem is.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from bigscreen.certify.exact import close_exact
from bigscreen.certify.explicit import close_explicit
from bigscreen.certify.ledger import make_ledger
from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import make_kernel
from bigscreen.model.ledger import BOUND, OPEN, OUT, Ledger
from bigscreen.problems.dual import AT_HI, AT_LO, AT_ZERO, FREE, Dual
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import (
    CSvc,
    Lad,
    NuSvc,
    OneClass,
    Problem,
    Quantile,
    Sublinear,
    Svr,
    largest_nu,
    rows_weights,
)
from bigscreen.screening.dynamic import GapBall
from bigscreen.screening.regions import Past, Region, Scores
from bigscreen.screening.sequential import Dvi, Essnsv, GapAtPast, PathRule, Ssnsv, screen
from bigscreen.screening.srbo import Srbo, SrboCut

sys.path.insert(0, str(Path(__file__).parent / "support"))
import edit_cases
import ledger_cases
import reference
from case_runner import Kind, Outcome, run

RECIPES = ("c_svc", "nu_svc", "one_class", "lad", "svr", "quantile", "sublinear")
WEIGHTS = ("none", "some", "zeros")
STYLES = ("sweep", "mixed", "vertex")
INTERCEPTS = ("none", "constant", "true")


@dataclass(frozen=True)
class Spec:
    """A case, by numbers that a test may draw.

    ``value`` (log10 of C, or nu as a share of the largest) and ``step`` (log10 of the ratio to the
    next point; ``down`` turns it round); ``accuracy``: how many digits the alphas before have.
    """

    seed: int = 0
    recipe: str = "c_svc"
    intercept: str = "none"
    kernel: str = "linear"
    sparse_rows: bool = False
    single: bool = False
    weights: str = "none"
    n: int = 20
    d: int = 3
    value: float = 0.0
    step: float = 0.1
    down: bool = False
    style: str = "mixed"
    accuracy: float = 3.0
    whole: float = 0.0


def drawn(seed: int) -> Spec:
    """The case of this number."""
    rng = np.random.default_rng(seed)
    pick = lambda of: of[rng.integers(len(of))]  # noqa: E731
    # (Drawn by itself: cases without are what they were.)
    whole = float(np.random.default_rng([seed, 2]).choice([0.0, 0.0, 0.5, 1.0]))
    return Spec(
        seed,
        pick(RECIPES),
        pick(INTERCEPTS),
        pick(("linear", "rbf")),
        bool(rng.random() < 0.5),
        bool(rng.random() < 0.5),
        pick(WEIGHTS),
        int(rng.integers(10, 41)),
        int(rng.integers(1, 8)),
        float(rng.uniform(-2.5, 1.5)),
        float(10.0 ** rng.uniform(-3, -0.3)),
        bool(rng.random() < 0.35),
        pick(STYLES),
        float(rng.uniform(0, 10)),
        whole,
    )


class Case:
    """The case of a spec: rows, kernel, problems, and the points before."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.rng = rng = np.random.default_rng(spec.seed)
        n, d = spec.n, spec.d
        X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-0.7, 0.7)
        if spec.sparse_rows:
            X[rng.random(X.shape) < 0.5] = 0
            X[-1] = 0
        small = int(np.ceil(spec.whole * d))
        X[:, :small] = np.rint(X[:, :small])
        X[1] = X[0]  # ties
        X = X.astype(np.float32)
        self.side = Operand(sparse.csr_array(X) if spec.sparse_rows else X)
        self.kernel = make_kernel(spec.kernel, float(10.0 ** rng.uniform(-2, 0.5)))
        self.d = d
        self.constant = 1.0 if spec.intercept == "constant" and spec.recipe != "one_class" else 0.0
        exact = self.kernel.block(self.side, self.side, dtype=np.float64)
        self.K = 0.5 * (exact + exact.T) + self.constant
        self.phi = np.column_stack([X.astype(float), np.full(n, self.constant)])
        if spec.kernel != "linear":
            values, vectors = np.linalg.eigh(self.K)
            self.phi = vectors * np.sqrt(np.maximum(values, 0.0))
        self.norms = np.sqrt(np.maximum(np.diag(self.K), 0.0)) * (1 + 1e-7)
        self.entries, self.entry_error = self._stored()
        self.row_weights = np.ones(n)
        if spec.weights != "none":
            self.row_weights = rng.uniform(0.1, 3.0, n)
        if spec.weights == "zeros":
            self.row_weights[rng.random(n) < 0.3] = 0
            self.row_weights[2:6] = 1
        self._problem(X)

    def _stored(self) -> tuple[np.ndarray, np.ndarray]:
        """Kernel entries as a solver has them, and bounds on their errors."""
        if not self.spec.single:
            return self.K, 1e-14 * (np.abs(self.K) + self.norms[:, None] * self.norms)
        block = self.kernel.block(self.side, self.side, dtype=np.float32).astype(np.float64)
        largest = float(np.max(self.side.sqnorms))
        error = self.kernel.entry_error(self.side.sqnorms, largest, self.d)
        error = np.broadcast_to(np.asarray(error)[:, None], self.K.shape)
        return block + self.constant, error + 1e-14 * (1 + np.abs(self.K))

    def _problem(self, X: np.ndarray) -> None:
        spec, rng, n = self.spec, self.rng, self.spec.n
        intercept, C = spec.intercept, 10.0**spec.value
        codes = (X[:, 0] + rng.normal(size=n) * rng.uniform(0.1, 2) > 0).astype(np.int32)
        codes[2:6] = [0, 1, 0, 1]
        target = X @ rng.normal(size=spec.d) + rng.normal(size=n) * rng.uniform(0, 1)
        target = np.round(target, 1) if rng.random() < 0.5 else target
        share = 1 / (1 + np.exp(-2 * spec.value))
        self.y: np.ndarray = codes
        self.ceiling = np.inf
        if spec.recipe == "c_svc":
            self.problem: Any = CSvc(C, 1, (1.0, 2.0) if rng.random() < 0.5 else (), intercept)
        elif spec.recipe == "nu_svc":
            both = (1.0, 2.0) if rng.random() < 0.5 else ()
            c = rows_weights(codes, self.row_weights, both)
            self.ceiling = largest_nu(c[codes == 1].sum(), c[codes == 0].sum(), intercept)
            self.problem = NuSvc(0.9 * share * self.ceiling, 1, c.sum(), both, intercept)
        elif spec.recipe == "one_class":
            self.ceiling = 1.0
            self.problem = OneClass(0.9 * share, self.row_weights.sum())
        elif spec.recipe == "sublinear":
            a, b = rng.normal(size=n), rng.normal(size=n)
            a[3] = 0
            low = rng.uniform(-1, 0.3)
            one = "constant" if self.constant else "none"
            self.problem = Sublinear(C, a, b, low, low + rng.uniform(0.1, 2), one)
            self.y = np.arange(n)
        else:
            self.y = target
            if spec.recipe == "lad":
                self.problem = Lad(C, intercept)
            elif spec.recipe == "svr":
                self.problem = Svr(C, float(rng.choice([0.0, 0.1, 0.5])), intercept)
            else:
                self.problem = Quantile(C, float(rng.uniform(0.05, 0.95)), intercept)

    @property
    def start(self) -> float:
        """The value of the point before."""
        return self.problem.nu if self.nus else self.problem.C

    @property
    def nus(self) -> bool:
        return self.spec.recipe in ("nu_svc", "one_class")

    @property
    def value(self) -> float:
        """The value to be screened."""
        return self._at(1.0)

    def _at(self, steps: float) -> float:
        ratio = 10.0 ** (self.spec.step * steps * (-1 if self.spec.down else 1))
        return float(np.clip(self.start * ratio, 1e-9, self.ceiling * (1 - 1e-9)))

    def dual(self, value: float) -> Dual:
        problem: Problem = self.problem.at(value)
        return problem.dual(self.y, self.row_weights)

    def oracle(self, dual: Dual) -> reference.Problem:
        return reference.Problem(
            self.phi, dual.sign, dual.lin, dual.lo, dual.hi,
            dual.coupling, dual.total, dual.group, dual.tube,
        )  # fmt: skip

    def products(self, coef: np.ndarray) -> Scores:
        """Scores as the solver computes them: in float32 or float64, with their slack."""
        return Scores(self.entries @ coef, self.entry_error @ np.abs(coef))

    @cached_property
    def optimum(self) -> reference.Optimum:
        return reference.solve(self.oracle(self.dual(self.value)))

    @cached_property
    def oracle_gap(self) -> float:
        """Frank-Wolfe gap of the oracle's own optimum."""
        q, best = self.oracle(self.dual(self.value)), self.optimum
        return max(reference.linear_maximum(q, best.alpha, best.scores), 0.0)

    @property
    def solved(self) -> bool:
        """Whether the reference's own gap is at most 1e-12 of the terms of P and D."""
        q, best = self.oracle(self.dual(self.value)), self.optimum
        ends = np.maximum(np.abs(q.lo), np.abs(q.hi))
        size = best.w @ best.w + (np.abs(q.p) + np.abs(best.scores)) @ ends
        if not q.p.any():  # w* may be 0: as a part of what 1/2 ||w||^2 can be
            size += (ends @ self.norms) ** 2
        return self.oracle_gap <= 1e-12 * size

    @cached_property
    def room(self) -> np.ndarray:
        """How far the oracle's own scores may be off."""
        size = 1 + np.abs(self.optimum.scores)
        return (np.sqrt(self.oracle_gap) + 1e-12) * self.norms + 1e-11 * size

    def past(self, value: float, style: str, accuracy: float) -> Past:
        """A point solved before, to the case's accuracy."""
        dual = self.dual(value)
        q = self.oracle(dual)
        alpha = inexact(q, style, accuracy, self.rng)
        coef = q.s * alpha
        scores = self.products(coef)
        exact = self.K @ coef
        # The least bound that may be handed in: the gap at the exact scores.
        gap = max(reference.linear_maximum(q, alpha, exact), 0.0)
        size = np.abs(q.p) @ np.abs(q.hi) + np.abs(coef) @ np.abs(exact)
        w_sq = float(coef @ (scores.values if self.rng.random() < 0.5 else exact))
        return Past(value, dual, alpha, scores, max(w_sq, 0.0), float(gap + 1e-14 * size))

    @cached_property
    def pasts(self) -> list[Past]:
        spec = self.spec
        if self.nus:
            at = [self.start, self._at(-1.0)]
        else:
            at = [self.start, self._at(1.0 + 3 * self.rng.random())]
        return [self.past(one, spec.style, spec.accuracy + self.rng.normal()) for one in at]


def inexact(q: reference.Problem, style: str, accuracy: float, rng: Any) -> np.ndarray:
    """A feasible alpha: a few sweeps, or the optimum mixed with vertices of what is feasible."""
    corner = np.mean([reference.vertex(q, rng.normal(size=len(q.s))) for _ in range(2)], axis=0)
    if style == "sweep":
        return swept(q, corner, 1 + max(int(accuracy / 3), 0), rng)
    best = reference.solve(q).alpha
    if style == "vertex":
        g = reference.gradient(q, q.phi @ reference.w_of(q, corner))
        corner = reference.vertex(q, g)
    part = min(10.0**-accuracy, 1.0)
    return np.clip((1 - part) * best + part * corner, q.lo, q.hi)


def swept(q: reference.Problem, alpha: np.ndarray, sweeps: int, rng: Any) -> np.ndarray:
    """Sweeps of exact steps along one variable, or along a pair where a coupling binds them."""
    if q.tube is not None:
        both = np.concatenate([np.maximum(alpha, 0), np.maximum(-alpha, 0)])
        both = swept(reference.split(q), both, sweeps, rng)
        return both[: len(alpha)] - both[len(alpha) :]
    K, alpha = q.phi @ q.phi.T, np.array(alpha)
    u = K @ (q.s * alpha)
    sets = [own for own, _ in reference.couplings(q)] or [np.arange(len(q.s))]
    for _ in range(sweeps):
        for own in sets:
            for i, j in zip(rng.permutation(own), rng.permutation(own), strict=True):
                move = {int(i): 1.0}
                if q.t is not None:
                    if i == j:
                        continue
                    move = {int(i): float(q.t[i]), int(j): -float(q.t[j])}
                slope = sum(v * (q.p[k] - q.s[k] * u[k]) for k, v in move.items())
                bend = sum(
                    v * z * q.s[k] * q.s[m] * K[k, m]
                    for k, v in move.items()
                    for m, z in move.items()
                )
                ends = [((q.lo[k] - alpha[k]) / v, (q.hi[k] - alpha[k]) / v)
                        for k, v in move.items()]  # fmt: skip
                low, high = max(min(e) for e in ends), min(max(e) for e in ends)
                step = slope / max(bend, 1e-14)
                step = min(max(step, low), high)
                for k, v in move.items():
                    alpha[k] = min(max(alpha[k] + v * step, q.lo[k]), q.hi[k])
                u = K @ (q.s * alpha)
    return alpha


def solver(case: Case) -> Callable[[Dual, np.ndarray], np.ndarray]:
    """A solver for SRBO's QPs: the reference solver on any dual of these rows."""

    def solve(dual: Dual, alpha: np.ndarray) -> np.ndarray:
        return reference.solve(case.oracle(dual), 30).alpha

    return solve


def safe_rules(case: Case) -> list[PathRule]:
    """Every rule of the package."""
    rules: list[PathRule] = [GapAtPast(), Dvi(), Ssnsv(), Essnsv()]
    if case.nus:
        solve = solver(case)
        for delta in ("greedy", "small", "full"):
            rules.append(Srbo(delta, solve, name=f"srbo {delta}"))
            rules.append(SrboCut(delta, solve, name=f"srbo-cut {delta}"))
    return rules


# -- the judge ---------------------------------------------------------------------------------
@dataclass
class Tally:
    """Counts of the cases tried and of the failures found."""

    cases: Counter = field(default_factory=Counter)
    rows: Counter = field(default_factory=Counter)
    decided: Counter = field(default_factory=Counter)
    false: Counter = field(default_factory=Counter)
    outside: Counter = field(default_factory=Counter)
    guilty: list = field(default_factory=list)

    def add(self, name: str, case: Case, wrong: np.ndarray, missed: int, decided: int) -> None:
        self.cases[name] += 1
        self.rows[name] += int(np.count_nonzero(case.dual(case.value).hi > 0))
        self.decided[name] += decided
        self.false[name] += len(wrong)
        self.outside[name] += missed
        if len(wrong) or missed:
            self.guilty.append((name, case.spec))


def false_removals(case: Case, decided: np.ndarray) -> np.ndarray:
    """Rows decided to be at a place where not every optimum has them.

    The reference alpha is the centre of the optimal set: a variable that can leave its bound in
    any optimum has left it.
    """
    dual, alpha = case.dual(case.value), case.optimum.alpha
    width = np.maximum(dual.hi - dual.lo, 1e-300)
    off = np.zeros(len(alpha))
    for place, at in ((AT_HI, dual.hi), (AT_LO, dual.lo), (AT_ZERO, 0.0)):
        off = np.where(decided == place, np.abs(alpha - at) / width, off)
    # The centre's distance from its bound is the oracle's complementarity by the gradient.
    return np.flatnonzero((off > 1e-5) & (dual.hi > dual.lo))


def outside(case: Case, lower: np.ndarray, upper: np.ndarray) -> int:
    """Rows whose optimal score is not in its interval."""
    u = case.optimum.scores
    return int(np.count_nonzero((u < lower - case.room) | (u > upper + case.room)))


def judge_region(case: Case, name: str, region: Region, tally: Tally) -> None:
    judge_intervals(case, name, *region.intervals(case.norms), tally)


def judge_intervals(
    case: Case, name: str, lower: np.ndarray, upper: np.ndarray, tally: Tally
) -> None:
    dual = case.dual(case.value)
    mu = dual.multiplier_interval(lower, upper) if dual.coupling is not None else (0.0, 0.0)
    decided = dual.decide(lower, upper, mu)
    live = (decided != FREE) & (dual.hi > dual.lo)
    wrong = false_removals(case, decided)
    tally.add(name, case, wrong, outside(case, lower, upper), int(live.sum()))


def try_rules(case: Case, rules: Sequence[PathRule], tally: Tally) -> None:
    """Every rule alone, and all of them as ``screen`` has them."""
    dual, value = case.dual(case.value), case.value
    for rule in rules:
        region = rule.region(dual, value, case.pasts, case.products)
        if region is not None:
            judge_region(case, rule.name, region, tally)
    found = screen(dual, value, rules, case.pasts, case.products, case.norms)
    live = (found.decided != FREE) & (dual.hi > dual.lo)
    tally.add("all", case, false_removals(case, found.decided), 0, int(live.sum()))


def pair(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """A primal and a dual point as Newton has them, w not w(alpha), at the value to be screened.

    Returns
    -------
    scores of w, alpha, scores of w(alpha), and P(w) - D(alpha)
    """
    q, rng, best = case.oracle(case.dual(case.value)), case.rng, case.optimum
    alpha = inexact(q, case.spec.style, case.spec.accuracy, rng)
    digits = case.spec.accuracy + rng.uniform(-1, 6)
    w = reference.w_of(q, inexact(q, "mixed", digits, rng))
    w = w + 10.0 ** -(2 + digits) * rng.normal(size=len(w))
    scores = q.phi @ w
    mu = 0.0 if q.t is None else reference.best_multiplier(q, scores)
    gap = reference.primal(q, w, mu) - reference.dual(q, alpha)
    return scores, alpha, q.phi @ reference.w_of(q, alpha), float(gap + 1e-14 * abs(best.primal))


def try_pair(case: Case, tally: Tally) -> None:
    """The gap ball of solvers, around the w of a pair."""
    scores, _, _, gap = pair(case)
    ball = GapBall().region(Point(np.empty(0), np.empty(0), 0.0, gap, 0.0, False), 1e-12)
    assert ball is not None
    judge_intervals(case, "gap of a pair", *ball.intervals(scores, case.norms, 1e-12), tally)


def try_ledger(case: Case, tally: Tally, radius_factor: float = 1.0) -> None:
    """The ledgers of closing passes: of an exact machine, and of a pair (w, alpha) on the rows.

    A ``radius_factor`` below 1 makes ledgers that promise too much.
    """
    spec, problem = case.spec, case.problem.at(case.value)
    codes = spec.recipe in ("c_svc", "nu_svc")
    y = case.y if codes else case.y.astype(np.float64)
    data = MemoryDataset(
        case.side.X, y, [0, 1] if codes else None, case.row_weights, shard_rows=8, chunk_rows=4
    )
    alpha = inexact(case.oracle(case.dual(case.value)), spec.style, spec.accuracy, case.rng)
    nothing = np.empty(0)
    designs = [(Design(data, case.kernel), Point(nothing, nothing, 0.0, 1.0, 0.0, True, (), alpha))]
    if spec.kernel == "linear" and spec.recipe != "sublinear":  # looked up by one shard's rows
        *w, constant = reference.w_of(case.oracle(case.dual(case.value)), alpha)
        w = np.array(w) * (1 + 10.0 ** -(1 + spec.accuracy) * case.rng.normal())
        constant *= case.constant
        point = Point(w, w, constant, 1.0, 0.0, False, (), alpha)
        designs.append((Design(data), point))
    for design, point in designs:
        with Inline(1) as fleet:
            closing = close_exact if design.exact else close_explicit
            found = closing(design, problem, point, fleet, keep=True)
        if found.proved and found.evidence is not None:
            radius = radius_factor * found.evidence.radius
            book = make_ledger(design, problem, replace(found.evidence, radius=radius))
            if book is not None:
                judge_ledger(case, "ledger" if design.exact else "ledger of w", book, tally)


def judge_ledger(case: Case, name: str, book: Ledger, tally: Tally) -> None:
    dual, alpha, status = case.dual(case.value), case.optimum.alpha, book.status
    width = np.maximum(dual.hi - dual.lo, 1e-300)
    ends = [np.where(end == 0, np.inf, np.abs(alpha - end)) for end in (dual.hi, dual.lo)]
    off = np.select([status == OUT, status == BOUND], [np.abs(alpha), np.minimum(*ends)], 0.0)
    live = dual.hi > dual.lo
    wrong = np.flatnonzero((off / width > 1e-5) & live)
    tally.add(name, case, wrong, 0, int(np.count_nonzero((status != OPEN) & live)))


# -- the kinds of case ----------------------------------------------------------------------------
def judge_rules(number: int) -> Outcome:
    """Judge every rule, the gap ball of a pair, and ledgers of closing passes."""
    case, tally = Case(drawn(number)), Tally()
    try_rules(case, safe_rules(case), tally)
    try_pair(case, tally)
    try_ledger(case, tally)
    outcome = Outcome(str(case.spec), case.spec.recipe)
    for name in tally.cases:
        counts = {"cases": tally.cases, "rows": tally.rows, "decided": tally.decided}
        counts |= {"false": tally.false, "w* missed": tally.outside}
        outcome.figures.update({(name, column): own[name] for column, own in counts.items()})
    for name, _ in tally.guilty:
        false, missed = tally.false[name], tally.outside[name]
        outcome.wrong[name] = f"{false} rows decided wrongly, w* of {missed} rows missed"
    return outcome


def judge_edit(number: int) -> Outcome:
    """Judge edits, and edits of the machine that they led to: bounds, certificates and ledgers."""
    case = edit_cases.Case(edit_cases.drawn(number))
    made = edit_cases.amended(case)
    again = edit_cases.edited_again(case, made)
    said = {
        "bound": edit_cases.wrongs(case),
        "machine after edits": edit_cases.wrongs_after(case, made),
        "bound of further edits": edit_cases.wrongs(again),
        "machine after further edits": edit_cases.wrongs_after(again),
    }
    wrong = {what: "; ".join(claims) for what, claims in said.items() if claims}
    return Outcome(str(case.spec), case.spec.machine, wrong)


KINDS = {
    "rules": Kind(judge_rules, 5_000),
    "ledgers": Kind(ledger_cases.judge_ledgers, 3_000),
    "edits": Kind(judge_edit, 2_000),
}
"""What a run judges, and how many cases of each kind."""

if __name__ == "__main__":
    sys.exit(run(KINDS, __doc__))
