"""Products of bytes: exact, as good as BLAS's where they are finished, the same in any company."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from byte_products import without_byte_products
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bigscreen.kernels import vnni, vnni_entries
from bigscreen.kernels.cache import KernelCache
from bigscreen.kernels.given import Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import (
    Laplacian,
    Linear,
    Polynomial,
    Rbf,
    Sigmoid,
    describe_products,
)

here = pytest.mark.skipif(
    not vnni.is_available(), reason="this processor multiplies no bytes (AVX-512 VNNI)"
)

KINDS = ("flags", "counts", "signed", "bytes", "pixels")
MIXED = ("table", "far")
KERNELS = [Linear(), Rbf(0.01), Polynomial(0.1, 3, 0.5), Sigmoid(0.01, 0.1)]


def rows(kind, n, d, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    match kind:
        case "flags":
            X = X > 0.5
        case "counts":
            X = np.rint(X * 2).clip(0, 20)
        case "signed":
            X = np.rint(X * 60).clip(-128, 127)
        case "bytes":
            X = np.rint(X * 80).clip(0, 255)
        case "pixels":
            X = np.rint(X * 80).clip(0, 255) / 255
        case "table" | "far":  # columns of numbers among flags
            X[:, ::3] = X[:, ::3] + 100.0 * (kind == "far")
            X[:, 1::3], X[:, 2::3] = X[:, 1::3] > 0, X[:, 2::3] > -0.5
    return X.astype(np.float32)


def by_blas(f):
    with without_byte_products():
        return f()


@here
@settings(deadline=None, max_examples=80)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 999),
    st.sampled_from([1, 7, 8, 9, 300]),
    st.sampled_from([1, 31, 32, 33, 511, 1100]),
    st.sampled_from([16, 17, 31, 70]),
)
def test_products_of_integers_are_exact(kind, seed, n, m, d):
    A, B = rows(kind, n, d, seed), rows(kind, m, d, seed + 1)
    side = Operand(B)
    if side.grid is None:
        assert kind == "pixels"
        return
    assert vnni_entries.can_multiply(side, "product", np.float32)
    exact = A.astype(np.float64) @ B.T.astype(np.float64)
    found = Linear().block(A, side)
    if kind == "pixels":
        np.testing.assert_allclose(found, exact, rtol=3e-7, atol=0)
    else:
        np.testing.assert_array_equal(found, exact.astype(np.float32))
        np.testing.assert_array_equal(Linear().block(A, side, dtype=np.float64), exact)


@pytest.mark.slow
@here
@pytest.mark.parametrize("kind", KINDS + MIXED)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("shape", [(33, 513, 40), (530, 600, 700), (70, 1100, 17), (9, 3, 785)])
def test_entries_and_their_sums_are_as_exact_as_the_bound_says(kind, kernel, shape):
    n, m, d = shape
    A, B = rows(kind, n, d, 12), rows(kind, m, d, 13)
    side, V = Operand(B), np.random.default_rng(14).standard_normal((m, 3))
    found = kernel.block(A, side)
    assert vnni_entries.can_multiply(side, kernel.pairing, np.float32)
    exact = kernel.block(A.astype(np.float64), Operand(B.astype(np.float64) + 0.0), dtype=float)
    squares = [(X.astype(np.float64) ** 2).sum(axis=1).max() for X in (A, B)]
    assert np.abs(found - exact).max() <= kernel.entry_error(*squares, d)
    sums = found.astype(np.float64) @ V
    atol = 1e-12 * m * np.abs(found).max()
    np.testing.assert_allclose(kernel.dots(A, side, V), sums, rtol=0, atol=atol)


@here
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("kind", ["flags", "signed", "bytes"])
def test_float64_entries_are_those_of_blas(kind, kernel):
    A, B = rows(kind, 40, 50, 1), rows(kind, 90, 50, 2)
    side, V = Operand(B), np.random.default_rng(3).standard_normal((90, 2))
    assert vnni_entries.can_multiply(side, kernel.pairing, np.float64)
    for f in (
        lambda: kernel.block(A, Operand(B), dtype=np.float64),
        lambda: kernel.dots(A, Operand(B), V, dtype=np.float64),
    ):
        ours, theirs = f(), by_blas(f)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12 * np.abs(theirs).max())


@here
@pytest.mark.parametrize("kind", ["pixels", *MIXED])
def test_float64_entries_of_other_numbers_go_through_blas(kind):
    """k / 255 was rounded, and what is no integer is: in float64 that tells."""
    side = Operand(rows(kind, 60, 40, 4))
    assert vnni_entries.can_multiply(side, "distance", np.float32)
    assert not vnni_entries.can_multiply(side, "distance", np.float64)


@here
@pytest.mark.parametrize("kernel", [Linear(), Rbf(0.01)], ids=lambda k: k.name)
@pytest.mark.parametrize("kind", KINDS + MIXED)
def test_bits_do_not_depend_on_the_other_rows(kind, kernel):
    """Nor do those of rows on the left that are no integers, which go through BLAS."""
    A, B = rows(kind, 150, 40, 0), rows(kind, 90, 40, 1)
    off = np.arange(3, 150, 7)
    A[off] += np.float32(0.3)
    assert vnni_entries.can_multiply(Operand(B), kernel.pairing, np.float32)
    V = np.random.default_rng(2).standard_normal((90, 2))
    side = Operand(B)
    together, sums = kernel.block(A, side), kernel.dots(A, side, V)
    for i in (0, 2, 3, 10, 149):
        np.testing.assert_array_equal(kernel.block(A[i : i + 1], side)[0], together[i])
        np.testing.assert_array_equal(kernel.dots(A[i : i + 1], side, V)[0], sums[i])
    exact = kernel.block(A, side, dtype=np.float64)
    squares = [(X.astype(np.float64) ** 2).sum(axis=1).max() for X in (A, B)]
    assert np.abs(together - exact).max() <= kernel.entry_error(*squares, 40)
    few = Operand(B[50:])
    few.copy_measures(side)
    on = np.setdiff1d(np.arange(150), off)
    np.testing.assert_array_equal(kernel.block(A[on], few), together[on][:, 50:])
    sent = pickle.loads(pickle.dumps(few))
    assert sent.grid[:3] == side.grid[:3]
    np.testing.assert_array_equal(kernel.block(A[on], sent), together[on][:, 50:])


@here
@pytest.mark.parametrize("kind", ["flags", "bytes", "table"])
def test_sparse_rows_have_the_bits_of_dense_ones(kind):
    A, B = rows(kind, 70, 40, 5), rows(kind, 90, 40, 6)
    kernel, side = Rbf(1e-3), Operand(B)
    for a in (A, sparse.csr_array(A), A.astype(np.float64), Operand(sparse.csr_array(A))):
        for b in (side, Operand(sparse.csr_array(B)), Operand(B.astype(np.float64))):
            assert vnni_entries.can_multiply(b, "distance", np.float32)
            np.testing.assert_array_equal(kernel.block(a, b), kernel.block(A, side))


@here
@pytest.mark.parametrize("odd", [200.0, 0.3])
def test_recomputed_columns_have_the_bits_of_cached_ones(odd):
    """Whether all rows were bytes says how products with some of them are computed later on."""
    X = rows("bytes", 200, 30, 7) % 100
    X[5] = odd
    kernel, every = Rbf(1e-5), np.arange(200)
    columns = KernelCache(kernel, Operand(X, every), 0, np.float32)
    some = Operand(X[:64], every[:64])
    coef, slots = np.random.default_rng(8).standard_normal(64), np.full(64, -1)
    before = np.zeros(len(columns.side))
    columns.accumulate(some, slots, coef, before)
    keep = np.arange(10, 200)
    columns.compact(Operand(X[keep], keep), keep)
    after = np.zeros(len(columns.side))
    columns.accumulate(some, slots, coef, after)
    np.testing.assert_array_equal(after[: len(keep)], before[keep])


@pytest.mark.parametrize(
    ("X", "found"),
    [
        (np.eye(20), (1.0, 0, 0)),
        (np.zeros((3, 4)), (1.0, 0, 0)),
        (255 * np.eye(20), (1.0, 128, 0)),
        (-128 * np.eye(20), (1.0, 0, -128)),
        (np.eye(20) / 255, (255.0, 0, 0)),
        (np.eye(20) - 1 / 255, None),  # 254 and -1
        (np.eye(15) / 255, None),  # of so few columns rounding tells
        (256 * np.eye(20), None),
        (np.eye(20) - 129, None),
        (np.eye(20) * (1 + 2e-7), None),
        (np.eye(20) * 0.5, None),
        (np.full((20, 20), np.nan), None),
        (np.full((20, 20), np.inf), None),
        (np.zeros((0, 4)), None),
        (np.zeros((4, 0)), None),
        (np.zeros((2, vnni.MAX_BYTE_COLUMNS + 1)), None),
    ],
)
def test_numbers_that_represent_bytes_are_recognised(X, found):
    grid = vnni.find_grid(X.astype(np.float32))
    if found is None:
        assert grid is None
    else:
        assert grid[:3] == found and len(grid.others) == 0
        np.testing.assert_array_equal(grid.small, np.arange(X.shape[1]))


@pytest.mark.parametrize(
    ("columns", "small"),
    [
        ((0.5, 1, 1), [1, 2]),
        ((1, 0.5, 1, 0.5), [0, 2]),
        ((1, 0.5, 0.5), None),  # fewer than half
        ((300, 1, -1), [1, 2]),
        ((200, 1, -1), [0, 1]),  # as many with a sign
        ((200, -1, -1), [1, 2]),
        ((1, np.nan), [0]),
        ((1, np.inf), [0]),
        ((-np.inf, 1), [1]),
    ],
)
def test_columns_of_bytes_are_recognised(columns, small):
    X = np.zeros((9, len(columns)), np.float32)
    X[7] = columns
    grid = vnni.find_grid(X)
    if small is None:
        assert grid is None
    else:
        np.testing.assert_array_equal(grid.small, small)
        np.testing.assert_array_equal(np.union1d(grid.small, grid.others), range(len(columns)))


@here
@pytest.mark.parametrize("kernel", [Linear(), Rbf(1e-9)], ids=lambda k: k.name)
@pytest.mark.parametrize(("low", "high"), [(0, 255), (-128, 127)])
def test_the_largest_sums_fit_32_bits(kernel, low, high):
    """Every product and every distance as large as it can be, in as many columns as there are."""
    X = np.array(
        [
            [low] * vnni.MAX_BYTE_COLUMNS,
            [high] * vnni.MAX_BYTE_COLUMNS,
            [low, high] * (vnni.MAX_BYTE_COLUMNS // 2),
        ]
    )
    side = Operand(X.astype(np.float32))
    assert side.grid is not None
    found = kernel.block(side, side, dtype=np.float64)
    products = (X @ X.T).astype(np.float64)
    squares = np.diag(products)
    if kernel.pairing == "product":
        np.testing.assert_array_equal(found, products)
    else:
        exact = np.exp(-kernel.gamma * (squares[:, None] + squares - 2 * products))
        np.testing.assert_allclose(found, exact, rtol=1e-14)


@here
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_value_off_the_grid_changes_only_entries_of_its_row(value):
    A, B = rows("flags", 9, 40, 7), rows("flags", 6, 40, 8)
    normal = Rbf(0.1).block(A, Operand(B))
    A[2, 3] = value
    found = Rbf(0.1).block(A, Operand(B))
    np.testing.assert_array_equal(np.delete(found, 2, axis=0), np.delete(normal, 2, axis=0))
    assert np.isnan(found[2]).all() if np.isnan(value) else not np.any(found[2] > 0)


@here
def test_only_products_of_bytes_are_served():
    flags, floats = Operand(rows("flags", 30, 20, 1)), Operand(rows("flags", 30, 20, 1) * 0.3)
    assert vnni_entries.can_multiply(flags, "product", np.float32)
    assert not vnni_entries.can_multiply(floats, "product", np.float32)
    assert not vnni_entries.can_multiply(flags, Laplacian(0.1).pairing, np.float32)
    told = describe_products(Rbf(0.1))
    assert told == "BLAS, or exact products of columns that are bytes"
    with without_byte_products():
        assert not vnni_entries.can_multiply(flags, "product", np.float32)


def test_fits_say_how_products_are_computed():
    with without_byte_products():
        assert describe_products(Rbf(0.1)) == "BLAS"
    assert describe_products(Laplacian(0.1)) == describe_products(None) == "compiled loops"
    assert describe_products(Precomputed()) == "the kernel given"


def test_the_instructions_can_be_switched_off():
    told = "from bigscreen.kernels import vnni\nprint(vnni.is_available())"
    off = {**os.environ, "BIGSCREEN_VNNI": "0"}
    shown = subprocess.run([sys.executable, "-c", told], env=off, capture_output=True, text=True)
    assert shown.stdout.split() == ["False"]
