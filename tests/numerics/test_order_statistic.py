"""Weighted order statistics against sorting, and the greedy fill against one row after another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigscreen.numerics.order_statistic import order_statistic
from bigscreen.problems.dual import Dual
from bigscreen.screening.bounds import fill_total


def sorted_statistic(values, weights, threshold):
    if threshold <= 0:
        return -np.inf
    order = np.argsort(values, kind="stable")
    k = int(np.searchsorted(np.cumsum(weights[order]), threshold))
    return values[order[k]] if k < len(values) else np.inf


@given(
    n=st.sampled_from([0, 1, 7, 2049, 10_000]),
    seed=st.integers(0, 999),
    order=st.sampled_from(["random", "ascending", "descending", "waves"]),
    digits=st.sampled_from([0, 1, None]),
    light=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_the_statistic_is_that_of_sorted_values(n, seed, order, digits, light):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=n)
    if order == "waves":  # a sample of every k-th value may see nothing of it
        values = np.tile(np.linspace(-1, 1, 7), n // 7 + 1)[:n]
    elif order != "random":
        values = np.sort(values)[:: 1 if order == "ascending" else -1]
    values = values if digits is None else np.round(values, digits)
    # Whole numbers: sums are exact in any order.
    weights = rng.integers(0, 5, n).astype(float)
    if light:
        weights[rng.random(n) < 0.9] = 0.0
    total = weights.sum()
    for threshold in (0.0, 0.5, 1.0, total // 3, total - 1, total, total + 1):
        found = order_statistic(values, weights, threshold)
        assert found == sorted_statistic(values, weights, threshold)


def test_infinite_values_are_allowed():
    values = np.concatenate([np.full(3000, -np.inf), np.arange(3000.0), np.full(3000, np.inf)])
    weights = np.ones(9000)
    for threshold, wanted in ((1, -np.inf), (3001, 0.0), (5999.5, 2999.0), (6001, np.inf)):
        assert order_statistic(values, weights, threshold) == wanted


@pytest.mark.parametrize("groups", [False, True])
@given(seed=st.integers(0, 9999), ties=st.booleans())
@settings(deadline=None, max_examples=60)
def test_a_greedy_fill_is_one_row_after_another(groups, seed, ties):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    t = rng.choice([-1.0, 1.0], n)
    lin, scores = rng.normal(size=n), rng.normal(size=n)
    if ties:
        lin, scores = np.round(lin), np.round(scores)
    lo, hi = -rng.integers(0, 3, n) / 2, rng.integers(0, 3, n) / 2
    group = rng.integers(0, 2, n).astype(np.int8) if groups else None
    inside = t * (lo + (hi - lo) * rng.random(n))
    total = np.bincount(group, inside, 2) if groups else float(inside.sum())
    dual = Dual(np.ones(n), lin, lo, hi, t, total, group)
    alpha = lo + (hi - lo) * rng.integers(0, 3, n) / 2
    x, gain = t * alpha, (lin - scores) / t
    for g, wanted in enumerate(np.atleast_1d(total)):
        own = np.arange(n) if group is None else np.flatnonzero(group == g)
        missing = wanted - x[own].sum()
        way = np.sign(missing)
        for i in sorted(own, key=lambda i: -way * gain[i]):
            ends = sorted([t[i] * lo[i], t[i] * hi[i]])
            room = ends[1] - x[i] if way > 0 else x[i] - ends[0]
            step = min(abs(missing), room)
            x[i] += way * step
            missing -= way * step
    found = fill_total(dual, alpha, scores)
    np.testing.assert_allclose(found, t * x, rtol=0, atol=1e-12)
