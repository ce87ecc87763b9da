"""The parts of ingest by themselves: the order of rows, the choice of a hold-out, moments."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from bigscreen.data.order import Holdout, Order, row_hash
from bigscreen.data.preparation import Moments


def test_buckets_follow_the_order():
    rows = np.arange(20_000)
    for order in (Order(1, True, 4, 1), Order(1, True, 0, 1), Order(1, False, 0, 777)):
        keys = order.keys(rows)
        assert len(np.unique(keys)) == len(rows)
        buckets = order.buckets(keys)
        assert np.all(np.diff(buckets[np.argsort(keys)]) >= 0)
        for bucket in np.unique(buckets):
            for parts in (1, 3):
                ranges = order.split(int(bucket), parts)
                inside = sum(
                    ((keys >= np.uint64(a)) & (keys <= np.uint64(b))).astype(int) for a, b in ranges
                )
                assert np.array_equal(inside == 1, buckets == bucket)


@pytest.mark.parametrize(("first", "stop", "count"), [(0, 10, 9), (7, 5000, 1), (0, 2_500_000, 99)])
def test_holdout_takes_exactly_the_smallest(first, stop, count):
    holdout = Holdout.choose(5, first, stop, count)
    rows = np.arange(first, stop)
    chosen = np.flatnonzero(holdout.mask(rows))
    assert np.array_equal(np.sort(np.argsort(row_hash(5, "holdout", rows))[:count]), chosen)


@pytest.mark.parametrize("as_sparse", [False, True])
def test_moments_merge_exactly(as_sparse):
    rng = np.random.default_rng(5)
    X = (rng.standard_normal((1000, 4)) + np.array([0, 1e4, -3, 0])).astype(np.float32)
    X[:, 3] = 0.1
    if as_sparse:
        X[rng.random(X.shape) < 0.5] = 0
    moments = Moments(4)
    for a, b in ((0, 1), (1, 400), (400, 1000)):
        moments.add(csr_array(X[a:b]) if as_sparse else X[a:b])
    wide = X.astype(np.float64)
    offset, factor = moments.scaling("standard", shift=True)
    np.testing.assert_allclose(offset, wide.mean(axis=0), rtol=1e-12)
    std = np.where(np.ptp(wide, axis=0) == 0, 1, wide.std(axis=0))
    np.testing.assert_allclose(factor, 1 / std, rtol=1e-9)
    assert moments.scaling("minmax", shift=True)[0].tolist() == wide.min(axis=0).tolist()
