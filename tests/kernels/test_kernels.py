"""Kernels: blocks, products with vectors, bounds; dense and CSR, against float64 formulas."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.metrics.pairwise import pairwise_kernels
from threadpoolctl import threadpool_limits

from bigscreen.errors import InputError
from bigscreen.kernels import entries
from bigscreen.kernels.entries import TILES
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import (
    Laplacian,
    Linear,
    Polynomial,
    Rbf,
    Sigmoid,
    kernel_from_dict,
    make_kernel,
)

KERNELS = [
    Linear(),
    Rbf(0.3),
    Polynomial(0.2, 3, 0.5),
    Polynomial(0.2, 1, 0.0),
    Laplacian(0.2),
    Sigmoid(0.1, 0.2),
]


def naive(kernel, A, B):
    """The textbook formula in float64."""
    A, B = A.astype(np.float64), B.astype(np.float64)
    product = np.einsum("id,jd->ij", A, B)
    difference = A[:, None, :] - B[None, :, :]
    match kernel:
        case Linear():
            return product
        case Rbf(gamma):
            return np.exp(-gamma * (difference**2).sum(axis=2))
        case Polynomial(gamma, degree, coef0):
            return (gamma * product + coef0) ** degree
        case Laplacian(gamma):
            return np.exp(-gamma * np.abs(difference).sum(axis=2))
        case Sigmoid(gamma, coef0):
            return np.tanh(gamma * product + coef0)


def allowed(kernel, A, B):
    sqnorms = [(M.astype(np.float64) ** 2).sum(axis=1).max(initial=0.0) for M in (A, B)]
    return kernel.entry_error(sqnorms[0], sqnorms[1], A.shape[1])


def random_rows(seed, n, d, density=1.0, shift=0.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + shift
    # Columns of very different frequency: some go through the dense loops, some through the index.
    X[rng.random((n, d)) > density * rng.random(d) * 2] *= density == 1.0
    return X.astype(np.float32)


def as_form(X, csr):
    return sparse.csr_array(X) if csr else X


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(KERNELS),
    st.integers(0, 9999),
    st.sampled_from([0, 1, 2, 17]),
    st.sampled_from([1, 2, 33]),
    st.sampled_from([1, 2, 5, 40]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.1, 0.4, 1.0]),
)
def test_blocks_and_dots_match_the_formula(kernel, seed, a, b, d, csr_a, csr_b, density):
    A, B = random_rows(seed, a, d, density), random_rows(seed + 1, b, d, density)
    exact = naive(kernel, A, B)
    left, side = as_form(A, csr_a), Operand(as_form(B, csr_b))
    V = np.random.default_rng(seed + 2).standard_normal((b, 3))

    fast = kernel.block(left, side)
    assert fast.dtype == np.float32 and fast.shape == (a, b)
    np.testing.assert_allclose(fast, exact, rtol=0, atol=allowed(kernel, A, B))
    accurate = kernel.block(left, side, dtype=np.float64)
    np.testing.assert_allclose(accurate, exact, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(kernel.block(Operand(left), side), fast, rtol=0, atol=0)

    np.testing.assert_allclose(kernel.dots(left, side, V), fast.astype(float) @ V, atol=1e-11)
    np.testing.assert_allclose(
        kernel.dots(left, side, V, dtype=np.float64), accurate @ V, rtol=1e-12, atol=1e-12
    )
    np.testing.assert_allclose(kernel.diag(left), np.diag(naive(kernel, A, A)), rtol=1e-12)
    largest = [(M.astype(np.float64) ** 2).sum(axis=1).max(initial=0.0) for M in (A, B)]
    assert np.abs(exact).max(initial=0.0) <= kernel.bound(*largest) * (1 + 1e-12)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_entries_are_those_of_scikit_learn(kernel):
    A, B = random_rows(1, 30, 7).astype(np.float64), random_rows(2, 20, 7).astype(np.float64)
    parameters = {key: value for key, value in kernel.to_dict().items() if key != "name"}
    name = "poly" if kernel.name == "polynomial" else kernel.name
    judge = pairwise_kernels(A, B, metric=name, **parameters)
    ours = kernel.block(A.astype(np.float32), Operand(B), dtype=np.float64)
    np.testing.assert_allclose(ours, judge, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("csr", [False, True])
def test_rows_of_many_tiles_have_the_entries_of_the_formula(kernel, csr):
    A, B = random_rows(3, TILES.rows + 6, 7, 0.3), random_rows(4, TILES.rows + 76, 7, 0.3)
    V, exact = np.random.default_rng(5).standard_normal((len(B), 2)), naive(kernel, A, B)
    error, side = allowed(kernel, A, B), Operand(as_form(B, csr))
    np.testing.assert_allclose(kernel.block(as_form(A, csr), side), exact, rtol=0, atol=error)
    found = kernel.dots(as_form(A, csr), side, V)
    np.testing.assert_allclose(found, exact @ V, rtol=0, atol=np.abs(V).sum(axis=0).max() * error)


@pytest.mark.parametrize(
    ("pairing", "csr"),
    [(name, csr) for name in ("product", "distance", "manhattan") for csr in (False, True)]
    + [("apart", False)],
)
def test_small_tiles_have_the_values_of_a_large_one(pairing, csr):
    A, side = (
        as_form(random_rows(3, 150, 30, 0.3), csr),
        Operand(as_form(random_rows(4, 70, 30, 0.3), csr)),
    )
    (large,) = list(entries.tiles(A, side, pairing, np.float64))
    whole = large.values[:, large.first : large.first + 70].copy()
    small = entries.TileTuning(rows=32, entries=32 * 16)
    found, count = np.empty((150, 70)), 0
    for tile in entries.tiles(A, side, pairing, np.float64, out=found, tuning=small):
        count += 1
        assert len(tile.half_a) == len(tile.values) <= small.rows
    assert count > 4
    np.testing.assert_allclose(found, whole, rtol=1e-12, atol=1e-12)


def test_right_sides_wider_than_a_tile():
    A, B = random_rows(6, 1030, 3), random_rows(7, 2500, 3)
    V = np.random.default_rng(8).standard_normal((2500, 2))
    for kernel in (Rbf(0.5), Laplacian(0.5)):
        exact = naive(kernel, A, B)
        np.testing.assert_allclose(kernel.dots(A, Operand(B), V, np.float64), exact @ V, atol=1e-10)
        fast = kernel.block(A, Operand(B))
        np.testing.assert_allclose(fast, exact, rtol=0, atol=allowed(kernel, A, B))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_out_is_used_and_checked(dtype):
    A, side = random_rows(1, 5, 4), Operand(random_rows(2, 6, 4))
    out = np.full((5, 6), np.nan, dtype=dtype)
    assert Rbf(0.1).block(A, side, out, dtype) is out
    assert np.isfinite(out).all()
    with pytest.raises(ValueError, match="shape"):
        Rbf(0.1).block(A, side, np.empty((6, 5), dtype=dtype), dtype)
    with pytest.raises(ValueError, match="V must"):
        Rbf(0.1).dots(A, side, np.zeros(6))


def test_rows_of_another_width_are_refused():
    with pytest.raises(InputError, match="4 features where 5"):
        Linear().block(random_rows(1, 2, 4), Operand(random_rows(1, 2, 5)))


@pytest.mark.parametrize("d", [1, 18, 123, 784])
@pytest.mark.parametrize("shift", [0.0, 1.0, 1000.0])
def test_entry_error_covers_the_float32_error(d, shift):
    A, B = random_rows(d, 300, d, shift=shift), random_rows(d + 1, 200, d, shift=shift)
    side = Operand(B)
    for kernel in (Linear(), Rbf(0.5 / d), Laplacian(0.5 / d), Sigmoid(0.5 / d), Polynomial(1 / d)):
        exact = kernel.block(A, side, dtype=np.float64)
        error = np.abs(kernel.block(A, side) - exact).max(axis=1)
        bound = kernel.entry_error(Operand(A).sqnorms, side.sqnorms.max(), d)
        assert (error <= bound).all()
        if shift == 0:  # a bound, not an alarm
            assert bound.max() < 1000 * max(error.max(), 2.0**-24)


def test_far_from_the_origin_distances_survive():
    """Points 1e-2 apart around 1e3: without a shift float32 norms would lose every digit."""
    rng = np.random.default_rng(0)
    B = (1000 + 0.01 * rng.standard_normal((50, 10))).astype(np.float32)
    kernel = Rbf(500.0)
    exact = naive(kernel, B, B)
    assert 0.05 < np.median(exact) < 0.95
    np.testing.assert_allclose(kernel.block(B, Operand(B)), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("csr", [False, True])
def test_identical_rows_give_one(csr):
    B = as_form(random_rows(9, 40, 20, 0.5), csr)
    for kernel in (Rbf(0.05), Laplacian(0.05)):
        block = kernel.block(B, Operand(B))
        assert np.abs(np.diag(block) - 1).max() < 1e-6
        assert block.max() <= 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e34, 3e38])
def test_values_out_of_range_change_only_entries_of_their_row(value):
    A, B = random_rows(7, 5, 40), random_rows(8, 6, 40)
    normal = Rbf(0.1).block(A, Operand(B))
    B[2, 3] = value
    with np.errstate(over="ignore", invalid="ignore"):
        found = Rbf(0.1).block(A, Operand(B))
        turned = Rbf(0.1).block(B[2:3], Operand(A))
    others = np.delete(found, 2, axis=1)
    np.testing.assert_allclose(others, np.delete(normal, 2, axis=1), rtol=1e-5)
    if np.isfinite(value):
        np.testing.assert_array_equal(found[:, 2], 0.0)
        np.testing.assert_array_equal(turned, 0.0)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("shape", [(5, 0, 3), (0, 5, 3), (0, 0, 3), (5, 7, 0)])
def test_no_rows_or_no_columns(kernel, shape):
    """A part of an early model can be without a support vector."""
    n, m, d = shape
    A, side = np.ones((n, d), np.float32), Operand(np.ones((m, d), np.float32))
    assert kernel.block(A, side).shape == (n, m)
    found = kernel.dots(A, side, np.ones((m, 2)))
    assert found.shape == (n, 2) and np.all(np.isfinite(found))
    if m == 0:
        np.testing.assert_array_equal(found, 0.0)


def test_copies_for_products_do_not_travel_with_the_rows():
    side = Operand(random_rows(11, 50, 20), np.arange(50))
    side.origin = np.ones(20, np.float32)
    before = len(pickle.dumps(Operand(side.X, side.ids)))
    here = Rbf(0.1).block(side, side)
    sent = pickle.dumps(side)
    assert len(sent) < before + 500
    there = pickle.loads(sent)
    np.testing.assert_array_equal(Rbf(0.1).block(there, there), here)


def test_nan_is_not_hidden():
    A = random_rows(1, 3, 4)
    A[1, 2] = np.nan
    for kernel in KERNELS:
        block = kernel.block(A, Operand(random_rows(2, 5, 4)))
        assert np.isnan(block[1]).all() and np.isfinite(block[[0, 2]]).all()


@pytest.mark.parametrize("csr", [False, True])
def test_threads_give_identical_bits(csr):
    A, B = as_form(random_rows(1, 900, 25, 0.4), csr), as_form(random_rows(2, 130, 25, 0.4), csr)
    V = np.random.default_rng(3).standard_normal((130, 2))
    cuts = [(start, min(start + 200, 900)) for start in range(0, 900, 200)]
    for kernel in (Rbf(0.1), Laplacian(0.1)):
        with threadpool_limits(1):
            alone = [kernel.dots(A[a:b], Operand(B), V) for a, b in cuts]
            side = Operand(B)
            with ThreadPoolExecutor(4) as pool:
                jobs = [pool.submit(kernel.dots, A[a:b], side, V) for a, b in cuts * 5]
                together = [job.result() for job in jobs]
        for k, result in enumerate(together):
            np.testing.assert_array_equal(result, alone[k % len(cuts)])


def test_sparse_columns_are_split_by_frequency():
    X = random_rows(1, 200, 50, 0.5)
    X[:, 0] = 1
    X[1:, 1] = 0
    X[0, 1] = 1
    side = Operand(sparse.csr_array(X))
    assert side.position[0] >= 0 > side.position[1]
    together = side.rare.toarray()
    together[:, side.position >= 0] += side.dense
    np.testing.assert_array_equal(together, X)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: f"{k.name}")
def test_a_record_restores_its_kernel(kernel):
    assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel
    assert pickle.loads(pickle.dumps(kernel)) == kernel


def test_make_kernel_explains_mistakes():
    assert make_kernel("poly", gamma=2, degree=2.0, coef0=1) == Polynomial(2.0, 2, 1.0)
    assert make_kernel("linear", gamma=-1) == Linear()
    for arguments, message in [
        (("cosine",), "unknown kernel 'cosine'"),
        (("rbf", 0.0), "gamma must be a positive number"),
        (("rbf", float("nan")), "gamma must be a positive number"),
        (("poly", 1.0, 0), "degree must be a whole number"),
        (("poly", 1.0, 2.5), "degree must be a whole number"),
        (("poly", 1.0, 99_999), "at most 64"),
        (("sigmoid", 1.0, 3, float("inf")), "coef0 must be a finite number"),
    ]:
        with pytest.raises(InputError, match=message):
            make_kernel(*arguments)


def test_positive_semidefinite_kernels_are():
    A = random_rows(5, 40, 6)
    for kernel in [*KERNELS, Polynomial(1.0, 2, -1.0)]:
        least = np.linalg.eigvalsh(kernel.block(A, Operand(A), dtype=np.float64))[0]
        assert not kernel.psd or least > -1e-10
    assert not Polynomial(1.0, 2, -1.0).psd and not Sigmoid(1.0).psd


def test_float64_entries_of_sparse_rows_are_summed_in_float64():
    A, B = random_rows(0, 20, 400, 0.1), random_rows(1, 33, 400, 0.1)
    side = Operand(sparse.csr_array(B))
    assert side.rare is not None
    for kernel in KERNELS:
        accurate = kernel.block(sparse.csr_array(A), side, dtype=np.float64)
        np.testing.assert_allclose(accurate, naive(kernel, A, B), rtol=1e-12, atol=1e-13)
