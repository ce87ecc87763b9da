"""Compiled steps under a coupling per group and in a tube, against linear programs and LIBSVM.

The gap of a dual point is by its definition the most that a linear objective can gain over the
feasible set: a linear program, which scipy solves with the textbooks' two variables a row.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from sklearn.svm import SVR, NuSVC, OneClassSVM

from bigscreen.problems.dual import Dual
from bigscreen.solvers.smo.loop import Limits, Matrix, smo

FIELDS = ("sign", "t", "lo", "hi", "group", "tube")


def made(seed, n, coupled, groups, tubes, dtype=np.float64, ridge=0.2):
    """K, p, a feasible alpha and the arrays of the problem (None where it has none)."""
    rng = np.random.default_rng(seed)
    phi = rng.standard_normal((n, max(1, n // 2)))
    K = (phi @ phi.T / n + ridge * np.eye(n)).astype(dtype)
    lo = -rng.choice([0.0, 0.3, 1.0], n)
    hi = rng.choice([0.0, 0.3, 1.0], n)
    q = {
        "sign": rng.choice([-1.0, 1.0], n),
        "t": rng.choice([-1.0, 1.0], n) if coupled else np.zeros(n),
        "lo": lo,
        "hi": hi,
        "group": rng.integers(0, groups, n).astype(np.int8) if groups > 1 else None,
        "tube": rng.choice([0.0, 0.1, 0.6], n) if tubes else None,
    }
    alpha = np.clip(lo + (hi - lo) * rng.choice([0.0, 0.2, 1.0], n), lo, hi)
    if tubes:
        alpha[rng.random(n) < 0.4] = 0.0
    return K, rng.standard_normal(n), alpha, q


def gap(K, p, alpha, q):
    """max over feasible a' of <gradient, a' - alpha>, a = a+ - a-; n <= some 100."""
    n = len(p)
    tube = np.zeros(n) if q["tube"] is None else q["tube"]
    s, t = q["sign"], q["t"]
    G = p - s * (K.astype(float) @ (s * alpha))
    cost = -np.concatenate([G - tube, -G - tube])
    equal, total = None, None
    if t.any():
        group = np.zeros(n, int) if q["group"] is None else q["group"]
        own = np.equal.outer(np.arange(group.max() + 1), group) * t
        equal, total = np.hstack([own, -own]), own @ alpha
    bounds = [(0, h) for h in q["hi"]] + [(0, -low) for low in q["lo"]]
    best = linprog(cost, A_eq=equal, b_eq=total, bounds=bounds, method="highs")
    assert best.status == 0, best.message
    return -best.fun - (G @ alpha - tube @ np.abs(alpha))


def value(K, p, alpha, q):
    z = q["sign"] * alpha
    tube = 0.0 if q["tube"] is None else q["tube"] @ np.abs(alpha)
    return p @ alpha - tube - 0.5 * z @ K.astype(float) @ z


def dual(p, q):
    t = q["t"] if q["t"].any() else None
    return Dual(q["sign"], p, q["lo"], q["hi"], t, group=q["group"], tube=q["tube"])


def run(K, p, alpha, q, tol=1e-11, most=10**6, **how):
    x, G = alpha.copy(), p - q["sign"] * (K.astype(float) @ (q["sign"] * alpha))
    steps, violation = smo(K, dual(p, q), x, G, Limits(tol, most, **how))
    assert np.all(x >= q["lo"]) and np.all(x <= q["hi"])
    np.testing.assert_allclose(G, p - q["sign"] * (K.astype(float) @ (q["sign"] * x)), atol=1e-9)
    if q["t"].any():
        group = np.zeros(len(p), int) if q["group"] is None else q["group"]
        for g in np.unique(group):
            own = group == g
            np.testing.assert_allclose(q["t"][own] @ x[own], q["t"][own] @ alpha[own], atol=1e-12)
    return x, steps, violation


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 30),
    coupled=st.booleans(),
    groups=st.integers(1, 3),
    tubes=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
    second=st.booleans(),
    pairs=st.booleans(),
)
def test_the_gap_vanishes(seed, n, coupled, groups, tubes, dtype, second, pairs):
    K, p, start, q = made(seed, n, coupled, groups, tubes, dtype)
    found, _, violation = run(K, p, start, q, second_order=second, pairs=pairs)
    assert violation <= 1e-11
    size = 1 + abs(value(K, p, found, q))
    assert -1e-9 * size <= gap(K, p, found, q) <= 1e-8 * size


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    coupled=st.booleans(),
    groups=st.integers(1, 2),
    tubes=st.booleans(),
    most=st.integers(0, 12),
)
def test_every_step_gains(seed, coupled, groups, tubes, most):
    """Also if K is not positive semidefinite, and across a hinge point."""
    K, p, start, q = made(seed, 15, coupled, groups, tubes, ridge=-0.2)
    found, steps, violation = run(K, p, start, q, 1e-9, most)
    assert steps <= most
    assert value(K, p, found, q) >= value(K, p, start, q) - 1e-12
    more, again, _ = run(K, p, found, q, 1e-9, 1)
    assert value(K, p, more, q) >= value(K, p, found, q) - 1e-12
    assert again == 0 or violation > 1e-9


def test_a_violation_is_the_worst_of_any_group():
    """The definition, of the derivatives up and down that a tube leaves."""
    for seed in range(20):
        K, p, start, q = made(seed, 25, True, 2, True)
        found, _, violation = run(K, p, start, q, 0.0, 7)
        F, x = q["t"] * (p - q["sign"] * (K @ (q["sign"] * found))), q["t"] * found
        low, high = np.where(q["t"] > 0, (q["lo"], q["hi"]), (-q["hi"], -q["lo"]))
        up = F + np.where(x >= 0, -q["tube"], q["tube"])
        down = F + np.where(x > 0, -q["tube"], q["tube"])
        worst = 0.0
        for g in (0, 1):
            more, less = (q["group"] == g) & (x < high), (q["group"] == g) & (x > low)
            if more.any() and less.any():
                worst = max(worst, up[more].max() - down[less].min())
        np.testing.assert_allclose(violation, worst, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2])
def test_steps_on_a_reordered_part_of_a_matrix(groups):
    """Rows picked out, in the order of their groups, with memory lent or not."""
    K, p, start, q = made(3, 60, True, groups, True)
    rng = np.random.default_rng(0)
    rows = rng.permutation(60)[:35]
    if groups > 1:
        rows = rows[np.argsort(q["group"][rows], kind="stable")]
    part = {k: None if q[k] is None else q[k][rows] for k in FIELDS}
    small = np.ascontiguousarray(K[np.ix_(rows, rows)])
    want, steps, _ = run(small, p[rows], start[rows], part)
    for room in (None, np.full(35 * 35 + 7, np.nan)):
        x = start[rows]
        G = p[rows] - part["sign"] * (small @ (part["sign"] * x))
        found = smo(Matrix(K, rows, room), dual(p[rows], part), x, G, Limits(1e-11, 10**6))
        assert found[0] == steps
        np.testing.assert_array_equal(x, want)


def rows(n=150):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, 4))
    f = X[:, 0] + 0.7 * rng.standard_normal(n)
    K = np.exp(-0.3 * ((X[:, None] - X[None]) ** 2).sum(-1))
    return X, f, K


@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_the_objective_of_libsvms_svr(epsilon):
    X, f, K = rows()
    n, one = len(f), np.ones(len(f))
    theirs = SVR(C=3.0, gamma=0.3, epsilon=epsilon, tol=1e-10, shrinking=False).fit(X, f)
    beta = np.zeros(n)
    beta[theirs.support_] = theirs.dual_coef_[0]
    q = {"sign": one, "t": one, "lo": -3 * one, "hi": 3 * one, "group": None, "tube": epsilon * one}
    found, steps, _ = run(K, f, np.zeros(n), q, 1e-10)
    np.testing.assert_allclose(value(K, f, found, q), value(K, f, beta, q), rtol=1e-9)
    np.testing.assert_allclose(found, beta, atol=1e-4)  # theirs is of a float32 kernel
    assert steps < 2 * theirs.n_iter_


@pytest.mark.parametrize("nu", [0.1, 0.5])
def test_the_objective_of_libsvms_nu_svc(nu):
    X, f, K = rows()
    y = np.where(f > 0.3, 1.0, -1.0)
    n = len(y)
    theirs = NuSVC(nu=nu, gamma=0.3, tol=1e-10, shrinking=False).fit(X, y)
    alpha = np.zeros(n)
    alpha[theirs.support_] = np.abs(theirs.dual_coef_[0])
    # Theirs is divided by rho at the end: alpha of the problem sums up to nu over n.
    alpha *= nu / alpha.sum()
    group = (y > 0).astype(np.int8)
    zero = np.zeros(n)
    q = {
        "sign": y,
        "t": np.ones(n),
        "lo": zero,
        "hi": np.full(n, 1 / n),
        "group": group,
        "tube": None,
    }
    start = zero.copy()
    for g in (0, 1):
        own = np.flatnonzero(group == g)
        start[own] = np.clip(nu / 2 - np.arange(len(own)) / n, 0, 1 / n)
    found, steps, _ = run(K, zero, start, q, 1e-12)
    np.testing.assert_allclose(value(K, zero, found, q), value(K, zero, alpha, q), rtol=1e-9)
    assert steps < 2 * theirs.n_iter_[0]


def test_the_objective_of_libsvms_one_class():
    X, f, K = rows()
    n, nu = len(f), 0.2
    theirs = OneClassSVM(nu=nu, gamma=0.3, tol=1e-10, shrinking=False).fit(X)
    alpha = np.zeros(n)
    alpha[theirs.support_] = theirs.dual_coef_[0] / (nu * n)
    one, zero = np.ones(n), np.zeros(n)
    q = {"sign": one, "t": one, "lo": zero, "hi": one / (nu * n), "group": None, "tube": None}
    start = np.clip(1 - np.arange(n) / (nu * n), 0, 1 / (nu * n))
    found, _, _ = run(K, zero, start, q, 1e-12)
    np.testing.assert_allclose(value(K, zero, found, q), value(K, zero, alpha, q), rtol=1e-9)
