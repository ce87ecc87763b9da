"""Row operations on dense and CSR rows, and the fused exponential, against plain numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bigscreen.errors import InputError
from bigscreen.numerics.rows import (
    as_rows,
    exp2_negative,
    njit,
    row_axpy,
    row_dot,
    row_load,
    sqnorms,
    tanh,
)


@njit()
def dot(X, i, w):
    return row_dot(X, i, w)


@njit()
def axpy(X, i, a, w):
    row_axpy(X, i, a, w)


@njit()
def load(X, i, position, out):
    return row_load(X, i, position, np.zeros(len(out), np.float32), out)


@njit()
def exp2_all(t):
    return np.array([exp2_negative(x) for x in t])


@njit()
def tanh_all(x):
    return np.array([tanh(v) for v in x])


def random_rows(seed, n, d, dtype=np.float32, density=0.4):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(dtype)
    X[rng.random((n, d)) > density] = 0
    return X


def forms(X):
    narrow = sparse.csr_array(X)
    wide = sparse.csr_array(
        (narrow.data, narrow.indices.astype(np.int64), narrow.indptr.astype(np.int64)), X.shape
    )
    return as_rows(X), as_rows(narrow), as_rows(wide)


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(0, 9999), st.integers(1, 6), st.integers(1, 40), st.booleans())
def test_rows_agree_with_numpy_in_every_form(seed, n, d, double):
    dtype = np.float64 if double else np.float32
    X = random_rows(seed, n, d, dtype)
    exact = X.astype(np.float64)
    w = np.random.default_rng(seed + 1).standard_normal(d)
    position = np.arange(d, dtype=np.int32)
    i = n - 1
    for rows in forms(X):
        assert dot(rows, i, w) == pytest.approx(exact[i] @ w, rel=1e-12, abs=1e-12)
        np.testing.assert_allclose(sqnorms(rows), (exact**2).sum(axis=1), rtol=1e-13)
        moved = w.copy()
        axpy(rows, i, 0.3, moved)
        np.testing.assert_allclose(moved, w + 0.3 * exact[i], rtol=1e-14, atol=1e-15)
        out = np.full(d, 7.0, dtype=dtype)
        assert load(rows, i, position, out) == 0
        np.testing.assert_array_equal(out, X[i])


def test_row_load_leaves_out_columns_and_returns_their_squared_norm():
    X = np.array([[1, 2, 0, 3]], dtype=np.float32)
    out = np.empty(2)
    rest = load(as_rows(sparse.csr_array(X)), 0, np.array([-1, 0, 1, -1], dtype=np.int32), out)
    assert rest == 10
    np.testing.assert_array_equal(out, [2, 0])


def test_as_rows_says_what_it_cannot_take():
    with pytest.raises(InputError, match="int64"):
        as_rows(np.zeros((2, 2), dtype=np.int64))
    with pytest.raises(InputError, match="csc"):
        as_rows(sparse.csc_array(np.eye(2)))
    with pytest.raises(InputError, match="2-D"):
        as_rows(np.zeros(3))


def test_as_rows_does_not_copy_what_fits():
    X = np.zeros((3, 2), dtype=np.float32)
    assert as_rows(X) is X
    S = sparse.csr_array(np.eye(3, dtype=np.float32))
    assert as_rows(S)[0] is S.data
    assert as_rows(S)[1] is S.indices and as_rows(S)[2] is S.indptr


def test_exponential_error_over_a_dense_grid():
    t = -np.linspace(0, 126, 1_000_001).astype(np.float32)
    exact = np.exp2(t.astype(np.float64))
    assert np.abs(exp2_all(t) / exact - 1).max() < 2e-7
    wide = -np.linspace(0, 1000, 1_000_001)
    assert np.abs(exp2_all(wide) / np.exp2(wide) - 1).max() < 1e-15


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_exponential_is_exact_at_its_ends(dtype):
    t = np.array([0, 3, 1e30, np.inf, -2000, -np.inf, -1, np.nan], dtype=dtype)
    value = exp2_all(t)
    assert value.dtype == dtype
    np.testing.assert_array_equal(value[:-1], [1, 1, 1, 1, 0, 0, 0.5])
    assert np.isnan(value[-1])


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-7), (np.float64, 1e-15)])
def test_tanh_is_accurate(dtype, tolerance):
    x = np.concatenate([np.linspace(-30, 30, 100_001), [np.inf, -np.inf, 0]]).astype(dtype)
    assert np.abs(tanh_all(x) - np.tanh(x.astype(np.float64))).max() < tolerance
    assert np.isnan(tanh_all(np.array([np.nan], dtype=dtype)))[0]
