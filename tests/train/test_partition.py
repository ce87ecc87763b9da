"""Partitions: balanced, the same anywhere, and what two-step kernel k-means says they are."""

import contracts
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import make_kernel
from bigscreen.train.partition import auction_prices, kernel_k_means, partition, spill

KERNELS = {
    "rows": None,
    "rbf": make_kernel("rbf", 0.3),
    "polynomial": make_kernel("polynomial", 0.5, 2, 1.0),
    "sigmoid": make_kernel("sigmoid", 0.1),
}


@pytest.fixture(scope="module")
def fleet():
    with Inline(2) as fleet:
        yield fleet


def blobs(n=900, centres=6, d=4, seed=0, spread=0.05, sparse_rows=False, **grid):
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(centres, d)) * 2
    true = rng.integers(0, centres, n)
    X = middle[true] + spread * rng.normal(size=(n, d))
    X = sparse.csr_array(X) if sparse_rows else X
    grid = {"shard_rows": 128, "chunk_rows": 64} | grid
    return MemoryDataset(X, (true % 2).astype(np.int32), [0, 1], **grid), true


def same(one, other):
    np.testing.assert_array_equal(one.assign, other.assign)
    np.testing.assert_array_equal(one.centres.offset, other.centres.offset)
    assert one.entries == other.entries


def law(found, data, parts, largest):
    """What every partition must be."""
    assert found.assign.dtype == np.int32 and found.assign.shape == (data.n_rows,)
    assert len(found.sizes) == len(found.centres) <= parts
    assert found.sizes.min() >= 1 and found.sizes.max() <= largest


# -- clusters ----------------------------------------------------------------------------------
@pytest.mark.parametrize("kernel", list(KERNELS))
@pytest.mark.parametrize("sparse_rows", [False, True])
def test_separate_clusters_become_parts(kernel, sparse_rows, fleet):
    data, true = blobs(sparse_rows=sparse_rows)
    found = partition(Design(data, KERNELS[kernel]), fleet, 6)
    law(found, data, 6, data.n_rows)
    # Every blob is one part: as many pairs (blob, part) as blobs.
    assert len(np.unique(np.stack([true, found.assign]), axis=1).T) == 6


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["rows", "rbf", "polynomial"])
@pytest.mark.parametrize("largest", [None, 170])
def test_is_the_same_for_any_number_of_workers(kernel, largest):
    data, _ = blobs(centres=3)
    found = []
    for threads in (1, 2, 3):
        with Inline(threads) as fleet:
            design = Design(data, KERNELS[kernel])
            found.append(partition(design, fleet, 7, largest=largest, seed=4))
    same(found[0], found[1])
    same(found[0], found[2])
    with Inline(1) as fleet:
        other = partition(design, fleet, 7, largest=largest, seed=5)
    assert not np.array_equal(found[0].assign, other.assign)


@pytest.mark.parametrize("kernel", list(KERNELS))
def test_rows_go_to_the_nearest_mean_in_feature_space(kernel, fleet):
    data, _ = blobs(n=300, spread=1.0)
    design = Design(data, KERNELS[kernel])
    found = partition(design, fleet, 5)
    X = data.X(0, 300)
    np.testing.assert_array_equal(found.nearest(X), found.assign)
    centres = found.centres
    np.testing.assert_array_equal(centres.gate.nearest(centres.kernel, X), found.assign)
    # By the definition: squared distances to means of landmarks, norms of means over pairs of
    # different rows. Where rows themselves were clustered the pairs are gone: up to that bias.
    gram = centres.kernel.block(X, centres.landmarks, dtype=np.float64)
    inner = centres.kernel.block(centres.landmarks, centres.landmarks, dtype=np.float64)
    distance = np.empty((300, len(centres)))
    for p in range(len(centres)):
        own = centres.owner == p
        pairs = inner[np.ix_(own, own)]
        c = own.sum()
        norm = pairs[0, 0] if c == 1 else (pairs.sum() - np.trace(pairs)) / (c * (c - 1))
        distance[:, p] = norm - 2 * gram[:, own].mean(axis=1)
    ordered = np.sort(distance, axis=1)
    clear = ordered[:, 1] - ordered[:, 0] > (0.5 if centres.kernel.name == "linear" else 1e-4)
    assert clear.sum() > 200
    np.testing.assert_array_equal(distance.argmin(axis=1)[clear], found.assign[clear])


def test_precomputed_and_own_kernels_cluster_as_the_kernel_they_are(fleet):
    data, true = blobs(n=300)
    kernel = make_kernel("polynomial", 0.5, 2, 1.0)
    X = data.X(0, 300)
    matrix = kernel.block(X, Operand(X), dtype=np.float64)
    grid = {"shard_rows": 128, "chunk_rows": 64}
    given_rows = MemoryDataset(matrix, data.y(0, 300), [0, 1], **grid)
    own = Custom(lambda A, B: (0.5 * A @ B.T + 1.0) ** 2)
    found = [
        partition(design, fleet, 6).assign
        for design in (Design(data, kernel), Design(given_rows, Precomputed()), Design(data, own))
    ]
    for other in found[1:]:
        assert len(np.unique(np.stack([true, other]), axis=1).T) == 6
    np.testing.assert_array_equal(found[0], found[2])


def test_a_narrow_kernel_leaves_no_part_with_nearly_everything(fleet):
    data, _ = blobs(n=4000, centres=40, spread=0.3)
    found = partition(Design(data, make_kernel("rbf", 30.0)), fleet, 16)
    assert found.sizes.max() < 1500 and len(found.sizes) == 16


def test_parts_separate_the_rows_of_the_pool(fleet):
    data, true = blobs(centres=4, n=2000)
    pool = np.flatnonzero(true < 2)
    found = partition(Design(data), fleet, 2, pool=pool)
    assert len(np.unique(np.stack([true, found.assign])[:, pool], axis=1).T) == 2
    found = partition(Design(data), fleet, 2, pool=pool, largest=1050)
    law(found, data, 2, 1050)


# -- no part is too large -------------------------------------------------------------------------
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    n=st.integers(1, 400),
    parts=st.integers(1, 40),
    slack=st.floats(1.0, 3.0),
    distinct=st.sampled_from([1, 2, 7, 10**6]),
    kernel=st.sampled_from(["rows", "polynomial"]),
)
def test_no_part_is_too_large(seed, n, parts, slack, distinct, kernel):
    """Also with equal rows, which no distance tells apart."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))[rng.integers(0, min(n, distinct), n)]
    data = MemoryDataset(X, np.zeros(n, np.int32), [0, 1], shard_rows=64, chunk_rows=32)
    parts = min(n, parts)
    largest = int(np.ceil(slack * -(-n // parts)))
    with Inline(1) as fleet:
        found = partition(Design(data, KERNELS[kernel]), fleet, parts, largest=largest, seed=seed)
    law(found, data, parts, largest)


def test_balance_costs_few_rows_their_nearest_part(fleet):
    data, _ = blobs(n=6000, centres=3, spread=1.0)
    found = partition(Design(data), fleet, 8, largest=900)
    law(found, data, 8, 900)
    assert np.mean(found.nearest(data.X(0, 6000)) != found.assign) < 0.1


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 9999),
    n=st.integers(1, 80),
    parts=st.integers(1, 9),
    extra=st.integers(0, 5),
    skew=st.floats(0, 5),
)
def test_spilled_rows_lose_least(seed, n, parts, extra, skew):
    rng = np.random.default_rng(seed)
    cost = rng.normal(size=(n, parts)) + skew * np.arange(parts)
    ranked = np.argsort(cost, axis=1)
    k = min(3, parts)
    ordered = np.sort(cost, axis=1)
    loss = (ordered[:, 1] - ordered[:, 0] if parts > 1 else np.zeros(n)).astype(np.float32)
    largest = -(-n // parts) + extra
    assign = spill(ranked[:, :k], loss, largest, parts)
    counts = np.bincount(assign, minlength=parts)
    assert counts.max() <= largest
    first = ranked[:, 0]
    wanted = np.bincount(first, minlength=parts)
    for p in range(parts):
        stayed = (first == p) & (assign == p)
        # A part keeps as many of its own as it may, those that would lose most.
        assert stayed.sum() == min(wanted[p], largest)
        gone = (first == p) & (assign != p)
        if gone.any():
            assert loss[gone].max() <= loss[stayed].min()


def test_prices_leave_each_part_nearly_its_share():
    rng = np.random.default_rng(0)
    cost = rng.normal(size=(500, 5)) + np.array([0.0, 1, 1, 1, 4])
    assert np.bincount(cost.argmin(axis=1)).max() > 250
    price = auction_prices(cost, 110)
    assert np.all(price >= 0)
    assert np.bincount((cost + price).argmin(axis=1)).max() <= 120
    np.testing.assert_array_equal(auction_prices(cost, 500), 0)


def test_equal_rows_leave_no_part_empty():
    owner, offset = kernel_k_means(np.ones((10, 10), np.float32), 4, 10, np.random.default_rng(0))
    assert np.bincount(owner, minlength=4).min() >= 1
    np.testing.assert_allclose(offset, 1)


# -- refusals -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("parts", "largest", "words"),
    [
        (0, None, "0 parts were asked for and there can be 1 to 50 of 50 rows"),
        (51, None, "51 parts were asked for and there can be 1 to 50 of 50 rows"),
        (4, 12, "4 parts of at most 12 rows do not hold 50 rows; ask for at least 5 parts"),
    ],
)
def test_impossible_partitions_are_refused_in_one_sentence(parts, largest, words, fleet):
    with pytest.raises(InputError, match=words) as error:
        partition(Design(contracts.rows(n=50)), fleet, parts, largest=largest)
    assert "\n" not in str(error.value)


def test_rows_whose_squares_float32_cannot_hold_are_parted_as_others_are(fleet):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3)).astype(np.float32) * np.float32(0.1)
    X[::2] += 1.0
    for scale in (1.0, 2.0**100):
        data = MemoryDataset(X * np.float32(scale), np.zeros(40, np.int32), [0, 1])
        found = partition(Design(data), fleet, 2).assign
        assert len(set(found[::2])) == len(set(found[1::2])) == 1 and found[0] != found[1]
