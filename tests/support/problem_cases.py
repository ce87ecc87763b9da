"""Every problem in the textbooks' variables: plain objectives and the gap as a linear program.

A regression with a tube has two variables a row, LIBSVM's couplings are written out: nothing here
knows how the package stores them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize

from bigscreen.data.memory import MemoryDataset
from bigscreen.problems.recipes import CSvc, Lad, NuSvc, OneClass, Quantile, Sublinear, Svr

NAMES = [
    *("c-svc", "c-svc true", "nu-svc none", "nu-svc constant", "nu-svc true", "one-class"),
    *("lad none", "lad constant", "lad true", "svr none", "svr constant", "svr true"),
    *("svr 0 true", "quantile none", "quantile constant", "quantile true", "sublinear"),
]


@dataclass(frozen=True)
class Case:
    """``min 1/2 ||w||^2 - p.a``, ``w = sum s_i a_i phi_i``, ``lo <= a <= hi``, ``A a = b``.

    ``row`` is the row of every variable, ``back`` makes the package's alpha of ours.
    """

    problem: Any
    data: MemoryDataset
    row: np.ndarray
    s: np.ndarray
    p: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    A: np.ndarray
    b: np.ndarray

    def alpha(self, a: np.ndarray) -> np.ndarray:
        """One variable a row: the difference of a row's two."""
        size = self.data.n_rows
        return a[:size] - a[size:] if len(a) > size else a

    def split(self, alpha: np.ndarray) -> np.ndarray:
        """Two variables a row of which one is 0, where there are two."""
        if len(self.row) == len(alpha):
            return alpha
        return np.concatenate([np.maximum(alpha, 0), np.maximum(-alpha, 0)])

    def scores(self, K: np.ndarray, a: np.ndarray) -> np.ndarray:
        """The scores of the variables' rows; K is the kernel matrix with the penalised constant."""
        coef = np.bincount(self.row, self.s * a, len(K))
        return (K @ coef)[self.row]

    def dual(self, K: np.ndarray, a: np.ndarray) -> float:
        return float(self.p @ a - 0.5 * (self.s * a) @ self.scores(K, a))

    def gap(self, K: np.ndarray, a: np.ndarray) -> float:
        """``max over feasible a' of <grad, a' - a>`` by a linear program."""
        gradient = self.p - self.s * self.scores(K, a)
        equal = (self.A, self.b) if len(self.b) else (None, None)
        box = np.stack([self.lo, self.hi], axis=1)
        found = optimize.linprog(-gradient, A_eq=equal[0], b_eq=equal[1], bounds=box)
        assert found.status == 0
        return float(-found.fun - gradient @ a)

    def feasible(self, seed: int, most: float = 1.0) -> np.ndarray:
        """A feasible point: the projection of a random one."""
        rng = np.random.default_rng(seed)
        start = self.lo + (self.hi - self.lo) * np.clip(rng.normal(0.3, 0.6, len(self.lo)), 0, most)
        box = np.stack([self.lo, self.hi], axis=1)
        if not len(self.b):
            return start
        # min sum |a - start|: start + up - down
        size, eye = len(start), np.eye(len(start))
        bounds = [(0, None)] * (2 * size) + list(map(tuple, box))
        A = np.block(
            [
                [-eye, eye, eye],
                [np.zeros((len(self.b), 2 * size)), self.A],
            ]
        )
        cost = np.concatenate([np.ones(2 * size), np.zeros(size)])
        found = optimize.linprog(cost, A_eq=A, b_eq=np.r_[start, self.b], bounds=bounds)
        assert found.status == 0
        return np.clip(found.x[2 * size :], self.lo, self.hi)


def case(name: str, seed: int = 0, n: int = 60, weights: bool = True, d: int = 4) -> Case:
    """Rows and a problem; the weights of rows are between .5 and 2, and 0 now and then."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    c = rng.uniform(0.5, 2.0, n) if weights else np.ones(n)
    if weights:
        c[rng.random(n) < 0.1] = 0.0
    score = X @ rng.normal(size=d) + 0.5 * rng.normal(size=n)
    codes = (score > 0.3).astype(np.int32)
    kind, _, rest = name.partition(" ")
    b = rest.removeprefix("0 ") or "none"
    one, mass, C = np.ones(n), float(c.sum()), 1.5
    rows, y, grid = np.arange(n), 2.0 * codes - 1.0, {"shard_rows": 32, "chunk_rows": 16}
    labelled = MemoryDataset(X, codes, [0, 1], c if weights else None, **grid)
    target = MemoryDataset(X, score, None, c if weights else None, **grid)
    none = (np.empty((0, n)), np.empty(0))
    if kind == "c-svc":
        tied = none if b == "none" else (y[None], np.zeros(1))
        return Case(CSvc(C, 1, (), b), labelled, rows, y, one, 0 * one, C * c, *tied)
    if kind == "nu-svc":
        tied = (one[None], np.array([0.3]))
        if b == "true":
            tied = (np.stack([codes == 0, codes == 1]).astype(float), np.array([0.15, 0.15]))
        problem = NuSvc(0.3, 1, mass, (), b)
        return Case(problem, labelled, rows, y, 0 * one, 0 * one, c / mass, *tied)
    if kind == "one-class":
        problem = OneClass(0.3, mass)
        tied = (one[None], np.ones(1))
        return Case(problem, labelled, rows, one, 0 * one, 0 * one, c / (0.3 * mass), *tied)
    tied = (one[None], np.zeros(1)) if b == "true" else none
    if kind == "lad":
        return Case(Lad(C, b), target, rows, one, score, -C * c, C * c, *tied)
    if kind == "quantile":
        return Case(Quantile(C, 0.8, b), target, rows, one, score, -0.2 * C * c, 0.8 * C * c, *tied)
    if kind == "svr":
        epsilon = 0.0 if rest.startswith("0") else 0.4
        two = np.r_[one, -one]
        A = two[None] if b == "true" else np.empty((0, 2 * n))
        return Case(
            Svr(C, epsilon, b), target, np.r_[rows, rows], two,
            np.r_[score - epsilon, -score - epsilon], 0 * two, np.r_[C * c, C * c],
            A, tied[1],
        )  # fmt: skip
    # A loss of its own on every row: max(-u + 1, 0) on some, |2 u - y| / 2 on others, by a and b.
    a = np.where(codes == 1, -1.0, 2.0)
    own = Sublinear(C, a, score, -0.2, 1.0)
    numbers = MemoryDataset(X, rows.astype(float), None, c if weights else None, **grid)
    return Case(
        own, numbers, rows, -np.sign(a), score / np.abs(a), -0.2 * C * c * np.abs(a),
        C * c * np.abs(a), *none,
    )  # fmt: skip
