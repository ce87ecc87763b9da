"""Every problem on a few rows, with its reference solution, and assertions on solvers' results."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import reference
from exact_world import ExactWorld

from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design
from bigscreen.kernels.standard import make_kernel
from bigscreen.problems.recipes import CSvc, Lad, NuSvc, OneClass, Quantile, Sublinear, Svr

KINDS = ("bounded nu", "nu-svc", "one-class", "lad", "svr", "quantile", "no tube", "sublinear")
INTERCEPTS = ("none", "constant", "true")


class AnyWorld(ExactWorld):
    """Any problem on a few rows, with its reference solution."""

    @cached_property
    def dual(self):
        data = self.design.data
        return self.problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))

    @cached_property
    def box(self):
        return np.maximum(np.abs(self.dual.lo), self.dual.hi)

    @cached_property
    def oracle(self):
        dual, gram = self.dual, self.gram + float(self.problem.intercept == "constant")
        phi = reference.features(gram)
        arrays = (dual.sign, dual.lin, dual.lo, dual.hi, dual.coupling)
        return reference.Problem(phi, *arrays, dual.total, dual.group, dual.tube)


def any_world(seed, n, kind, intercept="true", weighted=True, kernel="rbf", size=1.0, d=3):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(np.float32)
    f = X[:, 0] + 0.7 * rng.standard_normal(n)
    codes = (f > 0.2).astype(np.int32)
    weights = rng.choice([0.0, 0.5, 1.0, 2.0], n) if weighted else np.ones(n)
    codes[:2], weights[:2] = (0, 1), 1.0
    mass = float(weights.sum())
    either = min(weights[codes == 1].sum(), weights[codes == 0].sum()) / mass
    plain = "none" if intercept == "true" else intercept
    rest, part = np.linspace(-1, 1, n), min(size, 1.0)
    problem = {
        "c-svc": CSvc(3 * size, 1, (0.7, 1.2), intercept),
        "bounded nu": NuSvc(0.6 * part, 1, mass, (), plain),
        "nu-svc": NuSvc(1.2 * either * part, 1, mass, (), "true"),
        "one-class": OneClass(0.5 * part, mass),
        "lad": Lad(size, intercept),
        "svr": Svr(2 * size, 0.3, intercept),
        "no tube": Svr(2 * size, 0.0, intercept),
        "quantile": Quantile(3 * size, 0.2, intercept),
        "sublinear": Sublinear(size, rest, rest**2 + 0.1, -0.3, 1.1, plain),
    }[kind]
    if kind in ("lad", "svr", "no tube", "quantile", "sublinear"):
        targets = np.arange(n, dtype=np.float64) if kind == "sublinear" else f
        data = MemoryDataset(X, targets, None, weights)
    else:
        data = MemoryDataset(X, codes, [0, 1], weights)
    return AnyWorld(Design(data, None if kernel is None else make_kernel(kernel, 0.4)), problem)


def is_right(w, found, tol):
    """Assert that alpha is feasible, D <= P* <= P, the gap is as requested, and D is alpha's."""
    c, best, q, alpha = found.certificate, w.optimum, w.oracle, found.point.alpha
    room = c.rounding_bound + 1e-7 * abs(best.primal) + 1e-12
    assert c.gap <= tol * abs(c.primal) + c.rounding_bound
    assert c.dual <= best.primal + room and c.primal >= best.dual - room
    assert np.all(alpha >= q.lo) and np.all(alpha <= q.hi)
    for own, total in reference.couplings(q):
        np.testing.assert_allclose(q.t[own] @ alpha[own], total, atol=1e-11 * (1 + w.box.sum()))
    np.testing.assert_allclose(c.dual, w.value(alpha), rtol=0, atol=room)
