"""Dual coordinate descent epochs: monotone, feasible, and at the optimum of a scipy solver."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import minimize

from bigscreen.numerics.rows import as_rows
from bigscreen.solvers.coordinate import EpochRows, epoch


def problem(seed, n, d, density=1.0):
    """A box problem with signs of both kinds, a linear term and lower bounds that are not 0."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(np.float32)
    X[rng.random((n, d)) > density] = 0
    sign = rng.choice([-1.0, 1.0], n)
    lin = rng.standard_normal(n)
    lo = rng.choice([0.0, -0.5, 0.2], n)
    return X, sign, lin, lo, lo + rng.choice([0.0, 0.3, 2.0], n)


def dual(Z, lin, alpha):
    """lin . alpha - 1/2 ||Z' alpha||^2, Z the rows times their signs."""
    return lin @ alpha - 0.5 * np.sum((Z.T @ alpha) ** 2)


def run(X, sign, lin, lo, hi, constant, epochs, tolerance=1e-9, alpha=None):
    phi = np.hstack([X, np.ones((len(X), 1))]) if constant else X.astype(np.float64)
    alpha = np.clip(0.0, lo, hi) if alpha is None else alpha.copy()
    w = phi.T @ (sign * alpha)
    sqnorms = (phi.astype(np.float64) ** 2).sum(axis=1)
    rng, values = np.random.default_rng(0), [dual(sign[:, None] * phi, lin, alpha)]
    for _ in range(epochs):
        order = rng.permutation(len(X))
        visited, violation = epoch(
            EpochRows(as_rows(X), sqnorms, sign, lin, lo, hi, np.zeros(len(alpha))),
            alpha,
            w,
            order,
            constant,
            np.inf,
            np.ones(len(X), bool),
        )
        values.append(dual(sign[:, None] * phi, lin, alpha))
        assert visited == len(X)
        if violation < tolerance:
            break
    return alpha, w, phi, values, violation


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 9999),
    st.integers(1, 25),
    st.integers(1, 8),
    st.booleans(),
    st.sampled_from([0.4, 1.0]),
)
def test_epochs_reach_the_optimum_of_an_independent_solver(seed, n, d, constant, density):
    X, sign, lin, lo, hi = problem(seed, n, d, density)
    alpha, w, phi, values, _violation = run(X, sign, lin, lo, hi, constant, 3000)
    Z = sign[:, None] * phi
    np.testing.assert_allclose(w, Z.T @ alpha, atol=1e-9)
    assert (lo <= alpha).all() and (alpha <= hi).all()
    assert (np.diff(values) >= -1e-9 * (1 + np.abs(values[0]))).all()
    oracle = minimize(
        lambda a: (-dual(Z, lin, a), Z @ (Z.T @ a) - lin),
        np.clip(0.0, lo, hi),
        jac=True,
        bounds=list(zip(lo, hi, strict=True)),
        options={"maxiter": 20000, "maxfun": 10**6, "ftol": 1e-15, "gtol": 1e-10},
        method="L-BFGS-B",
    )
    assert values[-1] >= -oracle.fun - 1e-6 * (1 + abs(oracle.fun))
    # The Frank-Wolfe gap certifies it without any oracle.
    G = lin - Z @ w
    gap = np.maximum(G, 0) @ (hi - alpha) + np.maximum(-G, 0) @ (alpha - lo)
    assert gap <= 1e-4 * (1 + abs(values[-1]))


def test_csr_takes_the_same_steps_as_dense():
    X, sign, lin, lo, hi = problem(3, 60, 12, 0.3)
    sqnorms = (X.astype(np.float64) ** 2).sum(axis=1) + 1
    order = np.random.default_rng(1).permutation(60)
    results = []
    for form in (X, sparse.csr_array(X)):
        alpha = np.clip(0.0, lo, hi)
        w = np.append(X.T.astype(float) @ (sign * alpha), sign @ alpha)
        counted = epoch(
            EpochRows(as_rows(form), sqnorms, sign, lin, lo, hi, np.zeros(len(alpha))),
            alpha,
            w,
            order,
            True,
            np.inf,
            np.ones(len(alpha), bool),
        )
        results.append((alpha, w, counted))
    np.testing.assert_allclose(results[0][0], results[1][0], atol=1e-12)
    np.testing.assert_allclose(results[0][1], results[1][1], atol=1e-12)
    assert results[0][2] == pytest.approx(results[1][2])


def test_only_rows_of_the_order_move():
    X, sign, lin, lo, hi = problem(4, 20, 5)
    hi = lo + 1.0
    alpha, w = lo + 0.5, np.zeros(5)
    w += X.T.astype(float) @ (sign * alpha)
    before = alpha.copy()
    sqnorms = (X.astype(np.float64) ** 2).sum(axis=1)
    order = np.array([3, 7])
    assert (
        epoch(
            EpochRows(as_rows(X), sqnorms, sign, lin, lo, hi, np.zeros(len(alpha))),
            alpha,
            w,
            order,
            False,
            np.inf,
            np.ones(len(alpha), bool),
        )[0]
        == 2
    )
    assert set(np.flatnonzero(alpha != before)) == {3, 7}
    assert epoch(
        EpochRows(as_rows(X), sqnorms, sign, lin, lo, hi, np.zeros(len(alpha))),
        alpha,
        w,
        order[:0],
        False,
        np.inf,
        np.ones(len(alpha), bool),
    ) == (0, 0.0)


def test_rows_of_zeros_go_to_the_bound_their_linear_term_asks_for():
    X = np.zeros((3, 2), dtype=np.float32)
    lin, lo, hi = np.array([1.0, -1.0, 0.0]), np.full(3, -2.0), np.full(3, 3.0)
    alpha, w = np.zeros(3), np.zeros(2)
    epoch(
        EpochRows(as_rows(X), np.zeros(3), np.ones(3), lin, lo, hi, np.zeros(len(alpha))),
        alpha,
        w,
        np.arange(3),
        False,
        np.inf,
        np.ones(3, bool),
    )
    np.testing.assert_array_equal(alpha, [3, -2, 0])


def test_violation_is_the_largest_projected_gradient():
    X, sign, lin, lo, hi = problem(5, 30, 4)
    alpha, w, phi, _, violation = run(X, sign, lin, lo, hi, True, 5000, 1e-10)
    assert violation < 1e-10
    alpha[0], hi[0] = hi[0], hi[0] + 1.0  # one row loses its bound
    w = phi.T @ (sign * alpha)
    sqnorms = (phi.astype(np.float64) ** 2).sum(axis=1)
    gradient = lin[0] - sign[0] * (phi[0] @ w)
    expected = abs(gradient) if gradient > 0 or alpha[0] > lo[0] else 0.0
    order = np.array([0])
    seen = epoch(
        EpochRows(as_rows(X), sqnorms, sign, lin, lo, hi, np.zeros(len(alpha))),
        alpha,
        w,
        order,
        True,
        np.inf,
        np.ones(len(alpha), bool),
    )[1]
    assert seen == pytest.approx(expected, abs=1e-12)
