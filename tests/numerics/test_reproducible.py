"""Sums that do not depend on their order, within their stated error."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigscreen.errors import InputError
from bigscreen.numerics import reproducible as exact


def total(parts, order, bound):
    sums: exact.Totals = {}
    for k in order:
        exact.add(sums, "x", parts[k], bound)
    return sums


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 40),
    spread=st.floats(0, 30),
    size=st.floats(-200, 200),
)
@settings(max_examples=100, deadline=None)
def test_any_order_and_grouping_gives_the_same_bits(seed, count, spread, size):
    rng = np.random.default_rng(seed)
    parts = rng.normal(size=(count, 3)) * 10.0 ** (size + spread * rng.random((count, 1)))
    bound = float(np.abs(parts).sum(axis=0).max())
    whole = total(parts, range(count), bound)["x"]
    assert whole.dtype == np.int64
    np.testing.assert_array_equal(total(parts, rng.permutation(count), bound)["x"], whole)
    cut = count // 2
    one, other = total(parts, range(cut), bound), total(parts, range(cut, count), bound)
    np.testing.assert_array_equal(one.get("x", 0) + other["x"], whole)
    # A rounding to half a quantum for each part; the quantum is at most 2^-60 of the bound.
    assert exact.quantum(bound) <= 2.0**-60 * bound
    error = np.abs(exact.read({"x": whole}, "x", bound) - parts.sum(axis=0))
    assert np.all(error <= 0.5 * count * exact.quantum(bound) + 1e-15 * count * bound)


@given(st.floats(1e-300, 1e300))
def test_the_quantum_is_a_power_of_two_that_leaves_a_bit(bound):
    q = exact.quantum(bound)
    assert np.frexp(q)[0] == 0.5
    assert bound / q <= 2.0**61


def test_sums_at_the_bound_do_not_wrap():
    sums: exact.Totals = {}
    for sign in (1.0, -1.0):
        for _ in range(2):
            exact.add(sums, str(sign), np.array([sign * 3.7]), 7.4)
        assert exact.read(sums, str(sign), 7.4)[0] == pytest.approx(sign * 7.4, rel=1e-15)


def test_a_sum_of_zeros_is_0():
    assert exact.quantum(0.0) == 1.0
    sums: exact.Totals = {}
    exact.add(sums, "x", np.zeros(2), 0.0)
    assert exact.read(sums, "x", 0.0).tolist() == [0.0, 0.0]


def test_totals_of_a_message_are_not_shared():
    values = np.ones(2)
    sums: exact.Totals = {}
    exact.add(sums, "x", values, 4.0)
    exact.add(sums, "x", values, 4.0)
    assert values.tolist() == [1.0, 1.0]
    assert exact.read(sums, "x", 4.0).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("bound", [np.inf, np.nan])
def test_overflow_is_reported(bound):
    with pytest.raises(InputError, match="so large"):
        exact.quantum(bound)
