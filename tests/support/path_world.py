"""A stage for tests that solves by the oracle, and returns points as inaccurate as the gap allows.

It shares no code with the real stages.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import reference

from bigscreen.path.stage import PathPoint
from bigscreen.problems.dual import FREE
from bigscreen.screening.regions import Scores


@dataclass
class NaiveStage:
    phi: np.ndarray
    calls: list = field(default_factory=list)

    @property
    def norms(self):
        return np.linalg.norm(self.phi, axis=1) * (1 + 1e-12)

    def solve(self, task):
        dual, alpha, decided, tol = task.dual, task.alpha, task.decided, task.tol
        assert np.array_equal(dual.with_decisions(decided, alpha), alpha), (
            "decided rows stand there"
        )
        assert np.array_equal(np.clip(alpha, dual.lo, dual.hi), alpha)
        self.calls.append((dual, alpha.copy(), decided.copy()))
        live = (decided == FREE) & (dual.hi > dual.lo)
        best = np.where(live, 0.0, alpha)
        if live.any():
            best[live] = reference.solve(self._reduced(dual, best, live)).alpha
        part = 1.0
        while True:
            solved = self._point(dual, dual.feasible((1 - part) * best + part * alpha))
            if solved.relative_gap <= tol or part < 1e-16:
                return solved
            part *= 0.5

    def _reduced(self, dual, fixed, live):
        """Reduce the problem to the live rows, with the others fixed."""
        scores = self.phi @ (self.phi.T @ (dual.sign * fixed))
        own, total = dual[live], dual.total
        if dual.coupling is not None and dual.group is None:
            total = float(np.sum(total)) - dual.coupling @ fixed
        elif dual.group is not None:
            total = total - np.bincount(dual.group, dual.coupling * fixed, len(total))
        lin = own.lin - own.sign * scores[live]
        return reference.Problem(
            self.phi[live], own.sign, lin, own.lo, own.hi, own.coupling, total, own.group, own.tube
        )

    def _point(self, dual, alpha):
        w = self.phi.T @ (dual.sign * alpha)
        scores, w_sq = self.phi @ w, float(w @ w)
        mu = 0.0 if dual.coupling is None else dual.multiplier(scores)
        P, D = dual.primal(scores, w_sq, mu), dual.value(alpha, w_sq)
        size = float(np.abs(dual.losses(scores, mu)).sum() + w_sq)
        error = 1e-14 * (1 + np.abs(alpha).sum()) * float(np.max(self.norms)) ** 2
        return PathPoint(
            alpha, Scores(scores, error), w_sq, P, D, mu, max(P - D, 0.0), 1e-13 * size,
            {"solves": 1}, None, 1e-13 * size, 1e-13 * size,
        )  # fmt: skip

    def products(self, coef):
        scores = self.phi @ (self.phi.T @ coef)
        return Scores(scores, 1e-14 * float(np.abs(coef).sum()) * float(np.max(self.norms)) ** 2)

    def memory(self):
        return {"calls": np.array(len(self.calls))}

    def recall(self, memory):
        self.calls = [None] * int(memory["calls"])

    def machine(self, dual, solved):
        return {"coef": self.phi.T @ (dual.sign * solved.alpha), "constant": 0.0}


def blobs(n=60, d=3, seed=0, apart=1.0):
    """Make two clouds: features (n, d) and codes."""
    rng = np.random.default_rng(seed)
    codes = (np.arange(n) % 2).astype(np.int32)
    return rng.normal(size=(n, d)) + apart * (2 * codes[:, None] - 1), codes


def line(n=30, d=3, seed=0):
    """Make features (n, d), and targets near a linear function of them."""
    rng = np.random.default_rng(seed)
    phi = rng.normal(size=(n, d))
    return phi, phi @ rng.normal(size=d) + 0.3 * rng.standard_t(2, size=n)
