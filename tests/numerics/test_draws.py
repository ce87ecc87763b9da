"""Numbers that follow from rows: the same anywhere, and like random ones."""

import numpy as np
from scipy import sparse, stats

from bigscreen.numerics.draws import row_draws


def test_a_row_has_one_number_wherever_it_stands():
    X = np.round(np.random.default_rng(0).normal(size=(200, 6)), 1)
    draws = row_draws(X)
    assert draws.shape == (200,) and np.all((draws >= 0) & (draws < 1))
    np.testing.assert_array_equal(row_draws(X[::-1]), draws[::-1])
    np.testing.assert_array_equal(row_draws(X.astype(np.float32)), draws)
    np.testing.assert_array_equal(row_draws(sparse.csr_array(X)), draws)
    np.testing.assert_array_equal(row_draws(np.where(X == 0, -0.0, X)), draws)
    np.testing.assert_array_equal(row_draws(X[7:8]), draws[7:8])


def test_numbers_are_uniform_and_independent_of_the_columns():
    for X in (
        np.random.default_rng(1).normal(size=(5000, 3)),
        np.arange(5000.0)[:, None],
        1e6 + np.random.default_rng(2).random((5000, 1)) * 1e3,
        np.unpackbits(np.arange(4096, dtype=">u2").view(np.uint8)).reshape(4096, 16),
    ):
        X = np.unique(np.asarray(X, np.float32), axis=0)
        draws = row_draws(X)
        assert stats.kstest(draws, "uniform").pvalue > 1e-3
        parts = np.floor(5 * draws)
        order = np.argsort(X[:, 0], kind="stable")
        assert abs(np.corrcoef(parts[order][1:], parts[order][:-1])[0, 1]) < 0.06
        assert stats.kstest(5 * draws - parts, "uniform").pvalue > 1e-3
