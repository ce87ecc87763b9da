"""The L1-regularised SVM: linprog's optimum between D and P, and what its certificate rests on."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import linprog

from bigscreen.errors import InputError
from bigscreen.solvers.l1 import l1_svm


def world(seed, n=60, d=5):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * rng.uniform(0.05, 5.0, d)
    X[:, rng.random(d) < 0.2] = 0.0
    X[rng.random(n) < 0.05] = 0.0
    sign = np.where(X[:, 0] + X[:, -1] + rng.normal(size=n) > rng.normal(), 1.0, -1.0)
    sign[:2] = 1.0, -1.0
    return X, sign, rng.uniform(0.02, 2.0) * rng.integers(0, 3, n).astype(float)


def optimum(X, sign, box, offset):
    """P* by scipy: w as a difference of two parts, b, and the losses."""
    n, d = X.shape
    signed = sign[:, None] * X
    A = np.hstack([-signed, signed, -sign[:, None], -np.eye(n)])
    bounds = [(0, None)] * (2 * d) + [(None, None) if offset else (0, 0)] + [(0, None)] * n
    cost = np.concatenate([np.ones(2 * d), [0.0], box])
    return linprog(cost, A_ub=A, b_ub=-np.ones(n), bounds=bounds).fun


def is_true(found, X, sign, box, offset):
    """P and D again, and that alpha is feasible, in float64."""
    X = X.toarray() if sparse.issparse(X) else X
    X = X.astype(np.float64)
    loss = np.maximum(0.0, 1.0 - sign * (X @ found.coef + found.intercept))
    slack = found.rounding + 1e-15 * found.primal
    assert abs(np.abs(found.coef).sum() + box @ loss - found.primal) <= slack
    assert found.dual == pytest.approx(found.alpha.sum(), rel=1e-13)
    assert (found.alpha >= 0).all() and (found.alpha <= box).all()
    assert np.abs(X.T @ (sign * found.alpha)).max(initial=0.0) <= 1 + 1e-14
    if offset:
        assert abs(sign @ found.alpha) <= 1e-13 * max(1.0, found.dual)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 10**6),
    st.booleans(),
    st.sampled_from([np.float32, np.float64]),
    st.booleans(),
    st.sampled_from([1e-2, 1e-5]),
)
def test_the_optimum_of_a_linear_program(seed, offset, dtype, csr, tol):
    X, sign, box = world(seed)
    X = X.astype(dtype)
    best = optimum(X.astype(np.float64), sign, box, offset)
    given = sparse.csr_array(X) if csr else X
    found = l1_svm(given, sign, box, offset, tol, 20_000)
    is_true(found, X, sign, box, offset)
    room = found.rounding + 1e-7 * max(1.0, best)  # linprog's own
    assert found.dual - room <= best <= found.primal + room
    assert found.relative_gap <= tol or found.steps >= 20_000


def test_a_gap_is_proved_and_few_columns_are_left():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 50))
    sign = np.where(X[:, 3] - X[:, 7] + 0.3 * rng.normal(size=400) > 0, 1.0, -1.0)
    found = l1_svm(X, sign, np.full(400, 0.02), tol=1e-4)
    assert found.relative_gap <= 1e-4
    kept = np.flatnonzero(np.abs(found.coef) > 1e-3)
    assert {3, 7} <= set(kept.tolist()) and len(kept) <= 10


@pytest.mark.parametrize("steps", [0, 40])
def test_what_is_cut_short_has_its_true_gap(steps):
    X, sign, box = world(3, 200, 8)
    ends = {"max_iter": 20} if steps == 0 else {"deadline": time.monotonic() - 1.0}
    found = l1_svm(X, sign, box, True, 1e-9, **ends)
    is_true(found, X, sign, box, True)
    best = optimum(X, sign, box, True)
    assert (
        found.steps == 20 and found.dual <= best * (1 + 1e-7) and best <= found.primal * (1 + 1e-7)
    )


def test_nothing_that_costs():
    X, sign, _ = world(1)
    found = l1_svm(X, sign, np.zeros(len(X)))
    assert found.primal == found.dual == found.relative_gap == 0.0


def test_what_is_refused():
    with pytest.raises(InputError, match="finite"):
        l1_svm(np.array([[np.nan], [1.0]]), np.array([1.0, -1.0]), np.ones(2))
