"""Kernels whose entries are given: the laws of all others, and clear words for mistakes."""

import pickle

import numpy as np
import pytest
from scipy import sparse
from test_kernels import as_form, random_rows

from bigscreen.errors import InputError
from bigscreen.kernels.entries import TILES
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Rbf, kernel_from_dict, make_kernel


def cosine(A, B):
    product = A @ B.T
    product = product.toarray() if sparse.issparse(product) else product
    norms = [np.sqrt(np.asarray((M * M).sum(axis=1), dtype=float)) for M in (A, B)]
    return product / (norms[0][:, None] * norms[1] + 1.0)


@pytest.fixture(scope="module")
def gram():
    X = random_rows(0, 60, 5)
    return Rbf(0.3).block(X, Operand(X))


@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_precomputed_entries_are_columns_of_the_rows(gram, csr, dtype):
    kernel, ids = Precomputed(), np.array([7, 3, 59, 3])
    rows, side = as_form(gram[10:45], csr), Operand(as_form(gram[ids], csr), ids)
    block = kernel.block(rows, side, dtype=dtype)
    assert block.dtype == dtype
    np.testing.assert_array_equal(block, gram[10:45][:, ids])
    out = np.empty((35, 4), dtype)
    assert kernel.block(Operand(rows), side, out, dtype) is out
    V = np.random.default_rng(1).normal(size=(4, 3))
    np.testing.assert_allclose(kernel.dots(rows, side, V, dtype), block.astype(float) @ V)
    diagonal = kernel.diag(Operand(as_form(gram[10:45], csr), np.arange(10, 45)))
    np.testing.assert_array_equal(diagonal, np.diag(gram)[10:45])
    # The rows of a right side are not looked at, only their numbers.
    bare = Operand(sparse.csr_array((4, 60), dtype=np.float32), ids)
    np.testing.assert_array_equal(kernel.block(rows, bare, dtype=dtype), block)


def test_precomputed_bounds_and_errors(gram):
    kernel, side = Precomputed(), Operand(gram, np.arange(60))
    largest = float(side.sqnorms.max())
    assert np.abs(gram).max() <= kernel.bound(largest, largest)
    wide = gram + 1e-9
    error = np.abs(kernel.block(wide, Operand(wide, np.arange(60))) - wide)
    assert error.max() <= kernel.entry_error(largest, largest, 60)
    assert np.all(error <= kernel.relative_error(side.sqnorms, largest, 60)[:, None] * wide)
    assert kernel.precision(largest, 60) is np.float32


def test_precomputed_says_what_is_wrong(gram):
    with pytest.raises(InputError, match="each of the 60 training rows, not 59"):
        Precomputed().block(gram[:, :59], Operand(gram[:3], np.arange(3)))
    with pytest.raises(ValueError, match="needs the ids"):
        Precomputed().block(gram, Operand(gram[:3]))


def test_precomputed_comes_back_from_its_record():
    assert kernel_from_dict(Precomputed().to_dict()) == Precomputed() == make_kernel("precomputed")
    assert pickle.loads(pickle.dumps(Precomputed())) == Precomputed()


@pytest.mark.parametrize("csr", [False, True])
def test_custom_entries_are_those_of_the_function(csr):
    A, B = random_rows(1, 70, 6, 0.5), random_rows(2, 40, 6, 0.5)
    exact = cosine(A.astype(float), B.astype(float))
    kernel, rows, side = Custom(cosine), as_form(A, csr), Operand(as_form(B, csr))
    accurate = kernel.block(rows, side, dtype=np.float64)
    np.testing.assert_allclose(accurate, exact, rtol=1e-14, atol=1e-15)
    fast = kernel.block(rows, side)
    assert fast.dtype == np.float32
    allowed = np.abs(exact) * kernel.relative_error(1.0, 1.0, 6)
    assert np.all(np.abs(fast - exact) <= allowed)
    V = np.random.default_rng(3).normal(size=(40, 2))
    np.testing.assert_allclose(kernel.dots(rows, side, V, np.float64), exact @ V, atol=1e-12)
    np.testing.assert_allclose(kernel.dots(Operand(rows), side, V), fast.astype(float) @ V)
    np.testing.assert_allclose(kernel.diag(rows), np.diag(cosine(A.astype(float), A.astype(float))))
    assert kernel.precision(1e9, 6) is np.float32 and kernel.psd and not kernel.storable
    with pytest.raises(ValueError, match="V must"):
        kernel.dots(rows, side, V[1:])


def test_products_of_more_entries_than_a_tile_are_those_of_the_function():
    A, B = random_rows(1, 1500, 3), random_rows(2, 1000, 3)
    V = np.random.default_rng(3).normal(size=(1000, 2))
    assert 1500 * 1000 > TILES.entries
    found = Custom(cosine).dots(A, Operand(B), V, np.float64)
    np.testing.assert_allclose(found, cosine(A.astype(float), B.astype(float)) @ V, atol=1e-11)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda A, B: np.ones((2, 2)), r"shape \(2, 2\) for 3 and 4 rows: it must be \(3, 4\)"),
        (lambda A, B: np.ones(len(A)), r"shape \(3,\)"),
        (lambda A, B: np.full((len(A), len(B)), np.nan), "no finite float32"),
        (lambda A, B: np.full((len(A), len(B)), 1e300), "no finite float32"),
        (lambda A, B: "kernel", "must return an array of numbers, not str"),
    ],
)
def test_custom_says_what_is_wrong(function, said):
    with pytest.raises(InputError, match=said) as caught:
        Custom(function).block(random_rows(1, 3, 2), Operand(random_rows(2, 4, 2)))
    assert "\n" not in str(caught.value)


def test_custom_refuses_rows_of_another_width():
    with pytest.raises(InputError, match="3 features where 2"):
        Custom(cosine).block(random_rows(1, 3, 3), Operand(random_rows(2, 4, 2)))


def test_a_custom_kernel_cannot_be_restored_from_its_record():
    assert Custom(cosine).to_dict() == {"name": "callable", "function": "cosine"}
    assert pickle.loads(pickle.dumps(Custom(cosine))) == Custom(cosine)


def test_precision_is_float64_where_float32_is_coarse():
    assert Rbf(1.0).precision(10.0, 20) is np.float32
    assert Rbf(1e6).precision(10.0, 20) is np.float64
    assert make_kernel("linear").precision(1e12, 1000) is np.float32
