"""A small dual solved exactly: never worse, in the box, and at the optimum where it says so."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigscreen.problems.dual import Dual
from bigscreen.solvers.block.face import Faces
from bigscreen.solvers.smo.loop import Limits, smo


class Case:
    """A random problem and a feasible alpha somewhere on the way to its optimum."""

    def __init__(self, seed, kernel, coupling, tube, repeated, far, d=None):
        rng = np.random.default_rng(seed)
        n, d = int(rng.integers(4, 90)), d or int(rng.integers(1, 6))
        X = rng.normal(size=(n, d))
        if repeated:
            X[rng.integers(0, n, n // 2)] = X[rng.integers(0, n, n // 2)]
        far_apart = ((X[:, None] - X[None]) ** 2).sum(axis=2)
        self.K = X @ X.T if kernel == "linear" else np.exp(-2.0 * far_apart)
        s, hi = np.where(rng.random(n) < 0.5, 1.0, -1.0), rng.uniform(0.1, 3.0, n)
        lo, p, e = np.zeros(n), np.ones(n), None
        if tube:
            s, lo, p, e = np.ones(n), -hi, rng.normal(size=n), np.full(n, 0.2)
        t = {"none": None, "signs": s, "ones": np.ones(n)}[coupling]
        group = (rng.random(n) < 0.5).astype(np.int8) if coupling == "ones" else None
        total = np.zeros(2) if coupling == "ones" else 0.0
        self.dual = Dual(s, p, lo, hi, t, total, group, e)
        self.alpha, self.G = np.zeros(n), p.copy()
        smo(self.K, self.dual, self.alpha, self.G, Limits(far, 10_000))

    def value(self, alpha):
        coef = self.dual.sign * alpha
        return self.dual.value(alpha, float(coef @ self.K @ coef))

    def best(self):
        alpha, G = self.alpha.copy(), self.G.copy()
        smo(self.K, self.dual, alpha, G, Limits(1e-12, 200_000))
        return self.value(alpha)

    def solve(self):
        mu = np.zeros(np.size(self.dual.total))
        if self.dual.coupling is not None:
            mu += self.dual.multiplier(self.dual.sign * (self.dual.lin - self.G))
        faces = Faces(self.K, self.dual, self.alpha, self.G, mu, 1e-12 * len(mu) * len(self.K))
        done = faces.solve()
        return done, self.dual.sign * faces.c, self.dual.sign * faces.g


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["rbf", "linear"]),
    st.sampled_from(["none", "signs", "ones"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1e-4, 1e-2, 1.0]),
)
def test_any_small_dual_is_solved_exactly(seed, kernel, coupling, tube, repeated, far):
    case = Case(seed, kernel, coupling, tube, repeated, far)
    dual, before = case.dual, case.value(case.alpha)
    done, alpha, G = case.solve()
    assert np.all(alpha >= dual.lo) and np.all(alpha <= dual.hi)
    if dual.coupling is not None:
        group = np.zeros(len(dual), int) if dual.group is None else dual.group
        moved = np.bincount(group, dual.coupling * (alpha - case.alpha))
        assert np.all(np.abs(moved) <= 1e-9 * (1 + np.abs(alpha).sum()))
    size = 1 + abs(before) + np.abs(alpha).sum()
    assert case.value(alpha) >= before - 1e-11 * size
    right = dual.lin - dual.sign * (case.K @ (dual.sign * alpha))
    np.testing.assert_allclose(G, right, atol=1e-10 * size)
    if done:
        assert case.value(alpha) >= case.best() - 1e-9 * size


@pytest.mark.parametrize("coupling", ["none", "signs", "ones"])
@pytest.mark.parametrize("tube", [False, True])
def test_solve_reports_the_optimum_if_rows_differ(coupling, tube):
    for seed in range(20):
        case = Case(seed, "rbf", coupling, tube, False, 1e-2, d=6)
        done, alpha, _ = case.solve()
        assert done
        assert case.value(alpha) == pytest.approx(case.best(), rel=1e-11)
