"""Factors are scipy's, bit for bit, and those of threads at once."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import linalg

from bigscreen.fleet.shards import blas_threads
from bigscreen.numerics.cholesky import factorise


def matrix(n, dtype, seed=0):
    rows = np.random.default_rng(seed).normal(size=(2 * n + 1, n)).astype(dtype)
    return rows.T @ rows + np.eye(n, dtype=dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("n", [1, 7, 150])
def test_bits_are_those_of_scipy(n, lower, dtype):
    whole = matrix(n, dtype)
    v = np.linspace(-1, 1, n)
    with blas_threads(1):
        # The transposed of what is in C's order is in LAPACK's.
        expected = linalg.cho_factor(whole.copy().T, lower=lower, check_finite=False)
        found = factorise(whole.copy(), lower)
        solved = found.solve(v)
        np.testing.assert_array_equal(
            solved, linalg.cho_solve(expected, v.astype(dtype), check_finite=False)
        )
    own, triangle = found.matrix.T, np.tril if lower else np.triu
    np.testing.assert_array_equal(triangle(own), triangle(expected[0]))
    assert solved.dtype == dtype
    np.testing.assert_allclose(whole @ solved, v, atol=1e-3 if dtype == np.float32 else 1e-10)


def test_a_matrix_that_is_not_definite_has_no_factor():
    assert factorise(-np.eye(3)) is None
    assert factorise(np.array([[1.0, 2.0], [2.0, 1.0]])) is None


def test_threads_at_once_give_the_same_bits():
    with blas_threads(1), ThreadPoolExecutor(4) as pool:
        alone = [factorise(matrix(120, np.float64, seed)).matrix for seed in range(8)]
        at_once = pool.map(lambda seed: factorise(matrix(120, np.float64, seed)).matrix, range(8))
        for one, other in zip(alone, at_once, strict=True):
            np.testing.assert_array_equal(one, other)
