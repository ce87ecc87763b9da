"""The multiple that two vectors of coefficients share, and the rows that differ."""

import numpy as np
import pytest

from bigscreen.numerics.multiples import find_multiple


@pytest.mark.parametrize("free", [3, 60])
def test_rows_at_a_bound_tell_the_factor(free):
    """Even where most rows are free and each has a ratio of its own."""
    rng = np.random.default_rng(free)
    before = np.where(rng.random(100) < 0.5, -2.0, 2.0)
    rows = rng.permutation(100)[:free]
    before[rows] = rng.uniform(0.1, 1.9, free)
    coef = before * (1.3 / 1.1)
    coef[rows] = rng.uniform(0.1, 1.9, free)
    factor, moved = find_multiple(before, coef)
    assert factor == pytest.approx(1.3 / 1.1, rel=1e-15)
    np.testing.assert_array_equal(moved, np.sort(rows))


def test_most_rows_tell_it_where_the_largest_moved():
    before = np.arange(1.0, 51.0)
    coef = 0.3 * before
    coef[49] = 1.0
    factor, moved = find_multiple(before, coef)
    assert factor == pytest.approx(0.3, rel=1e-15) and moved.tolist() == [49]


def test_rows_that_are_no_multiple_are_reported():
    nothing, one = np.zeros(4), np.array([0.0, 1.0, 0.0, -2.0])
    assert find_multiple(nothing, one)[1].tolist() == [1, 3]
    assert find_multiple(one, nothing)[1].tolist() == []
    factor, moved = find_multiple(one, np.array([5.0, 1.0, 0.0, -2.0]))
    assert factor == 1.0 and moved.tolist() == [0]


def test_ratios_beyond_float64_are_no_factors():
    before, coef = np.array([0.0, 1e-310, 1e-310]), np.array([3.0, 1.0, 1.0])
    assert find_multiple(before, coef)[1].tolist() == [0, 1, 2]
