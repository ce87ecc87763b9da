"""Landmarks by leverage and by clusters: against exact scores, and against what uniform misses."""

import contracts
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from threadpoolctl import threadpool_limits

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.features import landmarks, nystrom
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import make_kernel
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.plan.features import plan_features
from bigscreen.plan.memory import Request
from bigscreen.train.run import train

WAYS = ("uniform", "rpcholesky", "leverage", "kmeans")


@pytest.fixture(autouse=True)
def one_blas_thread():
    """As in a fit; on a busy machine two that wait for each other take ten times as long."""
    with threadpool_limits(1, "blas"):
        yield


def exact(kernel, X, ridge):
    """``diag K (K + ridge I)^-1``, in float64 by an inverse."""
    side = Operand(X)
    gram = kernel.block(side, side, dtype=np.float64)
    return np.diag(gram @ np.linalg.inv(gram + ridge * np.eye(len(gram))))


def clusters(n=600, seed=0):
    """Twelve clusters, each of .6 of the rows that are left."""
    rng = np.random.default_rng(seed)
    centres = 20 * rng.normal(size=(12, 4))
    member = np.minimum(rng.geometric(0.4, n) - 1, 11)
    X = (centres[member] + 0.3 * rng.normal(size=(n, 4))).astype(np.float32)
    return MemoryDataset(X, member % 2, [0, 1])


# -- leverage --------------------------------------------------------------------------------------
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    gamma=st.sampled_from([0.05, 0.3, 2.0]),
    ridge=st.sampled_from([0.3, 1.0, 10.0]),
    name=st.sampled_from(["rbf", "laplacian", "polynomial"]),
)
def test_scores_are_exact_where_every_row_is_kept(seed, gamma, ridge, name):
    """With chances of 1 and weights of 1 the estimate is the score itself."""
    X = np.random.default_rng(seed).normal(size=(120, 3)).astype(np.float32)
    kernel = make_kernel(name, gamma, 2, 1.0)
    rng = np.random.default_rng(seed)
    found = landmarks.estimate_leverage(kernel, Operand(X), rng, ridge=ridge, over=1e6)
    largest = kernel.diag(X).max()
    assert found.sample == 120
    assert found.ridge == max(ridge, landmarks.MIN_RIDGE[np.float32] * largest)
    # What float32 entries, which are off by some 1e-6 of the largest, make of a score.
    off = 5e-6 * largest / found.ridge
    np.testing.assert_allclose(found.scores, exact(kernel, X, found.ridge), rtol=2e-3, atol=off)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sparse_rows", [False, True])
def test_scores_are_within_the_factor_of_the_theory(seed, sparse_rows):
    """Rudi et al. 2018, theorem 1 with t = 1: between half the score and twice it, for all rows.

    The sample is a part of the rows: the theory's own constant would take them all.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(1500, 3)).astype(np.float32)
    X[rng.random(X.shape) < 0.3] = 0.0
    kernel, ridge = make_kernel("rbf", 0.3), 15.0
    pool = Operand(sparse.csr_array(X) if sparse_rows else X)
    found = landmarks.estimate_leverage(kernel, pool, rng, ridge=ridge, over=25.0)
    truth = exact(kernel, X, ridge)
    assert found.sample < 700
    ratio = found.scores / truth
    assert 0.5 <= ratio.min() and ratio.max() <= 2.0
    assert found.dimension == pytest.approx(truth.sum(), rel=0.2)
    assert (
        landmarks.estimate_leverage(kernel, pool, np.random.default_rng(1), dimension=5).dimension
        > 4
    )


def test_leverage_ends_at_the_resolution_of_entries():
    """A kernel of rank 3 has an effective dimension of 3 at most: it is not waited for more."""
    data = contracts.rows(0, n=200, d=3)
    pool = Operand(data.X(0, 200))
    found = landmarks.estimate_leverage(
        make_kernel("linear"), pool, np.random.default_rng(0), dimension=50
    )
    assert 2 < found.dimension < 12 and found.ridge < 1
    ids = nystrom.choose_landmarks(data, make_kernel("linear"), 50, "leverage", 0)[1]
    assert len(np.unique(ids)) == 50


@pytest.mark.parametrize("way", ["leverage", "kmeans"])
def test_rows_of_zeros_and_equal_rows(way):
    """As many landmarks as requested, all different even if rows repeat."""
    y = np.arange(40) % 2
    for X in (np.zeros((40, 3), np.float32), np.repeat(np.eye(4, 3, dtype=np.float32), 10, axis=0)):
        for kernel in (make_kernel("linear"), make_kernel("rbf", 1.0)):
            ids = nystrom.choose_landmarks(MemoryDataset(X, y, [0, 1]), kernel, 9, way, 0)[1]
            assert len(np.unique(ids)) == 9


# -- clusters --------------------------------------------------------------------------------------
def test_kmeans_finds_the_clusters():
    """One landmark in each of as many clusters as landmarks, and near its middle."""
    rng = np.random.default_rng(0)
    centres = 50 * rng.normal(size=(8, 3))
    member = np.arange(400) % 8
    X = (centres[member] + rng.normal(size=(400, 3))).astype(np.float32)
    for rows in (X, sparse.csr_array(X)):
        data = MemoryDataset(rows, member % 2, [0, 1])
        ids = nystrom.choose_landmarks(data, make_kernel("sigmoid", 0.1), 8, "kmeans", 0)[1]
        assert sorted(member[ids].tolist()) == list(range(8))
        # (A row of three normal numbers is 1.6 from its middle on average.)
        assert np.linalg.norm(X[ids] - centres[member[ids]], axis=1).max() < 1.2


def test_clusters_of_rows_far_from_0():
    rng = np.random.default_rng(0)
    member = np.arange(300) % 3
    X = (1e5 + 4.0 * member[:, None] + 0.1 * rng.normal(size=(300, 2))).astype(np.float32)
    data = MemoryDataset(X, member % 2, [0, 1])
    ids = nystrom.choose_landmarks(data, make_kernel("rbf", 1.0), 3, "kmeans", 0)[1]
    assert sorted(member[ids].tolist()) == [0, 1, 2]


def test_auto_takes_pivots_where_rows_repeat_each_other():
    rng = np.random.default_rng(0)
    apart = rng.normal(size=(400, 6)).astype(np.float32)
    again = apart[rng.integers(0, 40, 400)]
    y, kernel = np.arange(400) % 2, make_kernel("rbf", 0.5)
    for X, way in ((apart, "uniform"), (again, "rpcholesky")):
        data = MemoryDataset(X, y, [0, 1])
        own = nystrom.choose_landmarks(data, kernel, 30, "auto", 4)[1]
        assert nystrom.resolve_sampling(data, kernel, "auto", 4) == way
        with Inline(1) as fleet:
            options = TrainOptions(gamma=0.5, landmarks=30, sampling="auto", seed=4, tol=1e-2)
            model = train(data, options, fleet)
        assert model.provenance["nystrom"]["sampling"] == way
        np.testing.assert_array_equal(model.landmarks, X[own])
        np.testing.assert_array_equal(own, nystrom.choose_landmarks(data, kernel, 30, way, 4)[1])


# -- all -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", [*WAYS, "auto"])
@pytest.mark.parametrize("sparse_rows", [False, True])
def test_rows_of_the_data_by_seed(way, sparse_rows):
    data = contracts.rows(0, n=300, sparse_rows=sparse_rows)
    kernel = make_kernel("rbf", 0.2)
    side, ids = nystrom.choose_landmarks(data, kernel, 50, way, 1)
    assert len(side) == 50 and ids.dtype == np.int64
    assert np.all(np.diff(ids) > 0) and 0 <= ids[0] and ids[-1] < 300
    found, taken = side.X, data.rows(ids)
    if sparse_rows:
        assert sparse.issparse(found)
        found, taken = found.toarray(), taken.toarray()
    np.testing.assert_array_equal(found, taken)
    assert np.array_equal(nystrom.choose_landmarks(data, kernel, 50, way, 1)[1], ids)
    assert not np.array_equal(nystrom.choose_landmarks(data, kernel, 50, way, 2)[1], ids)
    everything = nystrom.choose_landmarks(data, kernel, 300, way, 0)[1]
    assert everything.tolist() == list(range(300))


def test_better_than_uniform_where_clusters_are_of_all_sizes():
    data, kernel = clusters(), make_kernel("rbf", 0.2)
    X = data.X(0, 600)
    left = dict.fromkeys(WAYS, 0.0)
    for way in WAYS:
        for seed in range(5):
            side, _ = nystrom.choose_landmarks(data, kernel, 60, way, seed)
            phi = kernel.block(X, side, dtype=np.float64) @ nystrom.factor_matrix(kernel, side)
            left[way] += 600 - np.sum(phi**2)
    assert left["rpcholesky"] < 0.7 * left["uniform"]
    assert left["leverage"] < 0.8 * left["uniform"]
    assert left["kmeans"] < 0.8 * left["uniform"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["leverage", "kmeans"])
def test_the_same_landmarks_inline_and_on_workers(way):
    data = clusters(400)
    options = TrainOptions(
        gamma=0.2,
        landmarks=25,
        sampling=way,
        seed=3,
        tol=1e-2,
        tuning=Tuning(features="recomputed"),
    )
    found = []
    with Inline(1) as one, Inline(2) as two, local_cluster(2) as workers:
        for fleet in (one, two, workers):
            model = train(data, options, fleet)
            found.append((model.landmarks, model.coef))
    for landmark, coef in found[1:]:
        np.testing.assert_array_equal(landmark, found[0][0])
        np.testing.assert_array_equal(coef, found[0][1])


@pytest.mark.parametrize("way", ["rpcholesky", "leverage"])
def test_kernels_that_are_not_definite_are_refused(way):
    data = contracts.rows(0, n=60)
    with pytest.raises(InputError, match="positive semidefinite.*uniform or kmeans"):
        nystrom.choose_landmarks(data, make_kernel("sigmoid", 0.2), 5, way, 0)
    for other in ("uniform", "kmeans", "auto"):
        assert len(nystrom.choose_landmarks(data, make_kernel("sigmoid", 0.2), 5, other, 0)[1]) == 5


def test_overflow_is_reported_in_a_sentence():
    X = np.full((50, 2), 1e30) * np.arange(1, 51)[:, None]
    data = MemoryDataset(X.astype(np.float32), np.arange(50) % 2, [0, 1])
    with pytest.raises(InputError, match="scale the data"):
        nystrom.choose_landmarks(data, make_kernel("polynomial", 1.0, 8, 1.0), 5, "leverage", 0)
    with pytest.raises(InputError, match="sampling must be one of"):
        nystrom.choose_landmarks(data, make_kernel("rbf", 0.2), 5, "grid", 0)


def test_memory_to_choose_is_planned_and_refused():
    data = contracts.rows(0, n=4000, d=3)
    request = {
        **{"kernel": "rbf", "landmarks": 3000, "solver": "cd", "features": "recomputed"},
        **{"intercept": "none", "memory": 2**40, "workers": 1, "cluster": False},
    }
    plain = plan_features(data, Request(**request))
    for way in WAYS[1:]:
        planned = plan_features(data, Request(**request, sampling=way))
        own = landmarks.choosing_bytes(way, 4000, 3000, 12.0)
        assert own > 0 and planned.peak_bytes >= max(plain.peak_bytes, own)
        refused = plan_features(data, Request(**{**request, "memory": 2**20}, sampling=way)).refusal
        assert refused is not None and "memory allowed is 1 MiB" in refused
    assert landmarks.choosing_bytes("uniform", 4000, 3000, 12.0) == 0
