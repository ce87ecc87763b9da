"""Products on the matrix unit: as good as BLAS's, and the same bits in any company."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigscreen.kernels import amx, amx_unit, operand, vnni
from bigscreen.kernels.base import product_error
from bigscreen.kernels.given import Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import (
    Laplacian,
    Linear,
    Polynomial,
    Rbf,
    Sigmoid,
    multiplied_by,
)

unit = pytest.mark.skipif(not amx.available(), reason="this processor has no matrix unit (AMX)")

KINDS = ("floats", "far", "bytes", "pixels", "flags", "mixed", "tiny")


def rows(kind, n, d, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    match kind:
        case "far":
            X += 100.0
        case "bytes":
            X = np.rint(X * 80).clip(0, 255)
        case "pixels":
            X = np.rint(X * 80).clip(0, 255) / 255
        case "flags":
            X = X > 0.5
        case "mixed":  # a column of few bits beside one of many; rows that are 0
            X[:, ::2] = X[:, ::2] > 0
            X[::3] = 0
        case "tiny":
            X *= 1e-12
    return X.astype(np.float32)


def products(A, B):
    return Linear().block(A, Operand(B))


@unit
@settings(deadline=None, max_examples=80)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(KINDS),
    st.integers(0, 999),
    st.sampled_from([1, 31, 32, 33, 300]),
    st.sampled_from([1, 32, 65, 1100]),
    st.sampled_from([1, 2, 31, 32, 33, 70]),
)
def test_products_are_as_exact_as_the_bound_says(left, right, seed, n, m, d):
    A, B = rows(left, n, d, seed), rows(right, m, d, seed + 1)
    exact = A.astype(np.float64) @ B.T.astype(np.float64)
    squares = [(X.astype(np.float64) ** 2).sum(axis=1) for X in (A, B)]
    error = np.abs(products(A, B) - exact)
    assert np.all(error <= product_error(squares[0][:, None], squares[1], d))


@unit
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", [Linear(), Rbf(0.01)], ids=lambda k: k.name)
def test_bits_do_not_depend_on_the_company(kind, kernel, monkeypatch):
    A, B = rows(kind, 70, 40, 0), rows(kind, 90, 40, 1)
    side = Operand(B)
    together = kernel.block(A, side)
    for i in (0, 33, 69):
        np.testing.assert_array_equal(kernel.block(A[i : i + 1], side)[0], together[i])
    few = Operand(B[50:])
    few.origin = side.origin
    np.testing.assert_array_equal(kernel.block(A, few), together[:, 50:])
    monkeypatch.setattr(operand, "PIECE_ENTRIES", 1)
    np.testing.assert_array_equal(kernel.block(A, Operand(B)), together)


@unit
@pytest.mark.parametrize("kinds", [("floats", "floats"), ("bytes", "floats"), ("flags", "bytes")])
@pytest.mark.parametrize("kernel", [Linear(), Rbf(1e-3), Sigmoid(1e-3)], ids=lambda k: k.name)
@pytest.mark.parametrize("shape", [(33, 513, 40), (530, 600, 700), (70, 1100, 1700)])
def test_whole_strips_and_rows_too_long_for_the_cache(shape, kernel, kinds):
    n, m, d = shape
    A, B = rows(kinds[0], n, d, 12) / 8, rows(kinds[1], m, d, 13) / 8
    side, V = Operand(B), np.random.default_rng(14).standard_normal((m, 3))
    here = kernel.block(A, side)
    exact = kernel.block(A, side, dtype=np.float64)
    squares = [(X.astype(np.float64) ** 2).sum(axis=1).max() for X in (A, B)]
    error = kernel.entry_error(squares[0], squares[1], d)
    assert np.abs(here - exact).max() <= error
    sums = here.astype(np.float64) @ V
    np.testing.assert_allclose(kernel.dots(A, side, V), sums, rtol=0, atol=1e-12 * m * here.max())
    for i in (0, n // 2, n - 1):
        np.testing.assert_array_equal(kernel.block(A[i : i + 1], side)[0], here[i])
        np.testing.assert_array_equal(
            kernel.dots(A[i : i + 1], side, V), kernel.dots(A, side, V)[i : i + 1]
        )
    few = Operand(B[500:])
    few.origin = side.origin
    np.testing.assert_array_equal(kernel.block(A, few), here[:, 500:])


@unit
@pytest.mark.parametrize(
    ("kind", "parts"), [("floats", 3), ("bytes", 1), ("pixels", 1), ("flags", 1), ("mixed", 3)]
)
def test_few_significant_bits_take_one_product(kind, parts):
    side = Operand(rows(kind, 100, 50, 2))
    assert side.packed("distance").tiles.shape[2] == parts
    assert side.packed("distance").most.max() == parts


@unit
def test_columns_of_few_bits_are_cheap_beside_others():
    X = np.hstack([rows("floats", 64, amx.CHUNK, 3), rows("flags", 64, amx.CHUNK, 4)])
    np.testing.assert_array_equal(Operand(X).packed("product").most, [[3, 1], [3, 1]])


@unit
def test_almost_pixels_are_not_taken_for_pixels():
    X = rows("pixels", 64, 40, 5)
    X[7] += np.float32(1e-6)
    assert Operand(X).packed("product").tiles.shape[2] > 1
    A = rows("floats", 10, 40, 6)
    exact = A.astype(np.float64) @ X.T.astype(np.float64)
    norms = np.linalg.norm(A, axis=1)[:, None] * np.linalg.norm(X, axis=1)
    assert np.all(np.abs(products(A, X) - exact) <= 1e-6 * norms)
    assert np.abs(products(A, X)[:, 7] - A @ rows("pixels", 64, 40, 5)[7]).max() > 1e-6


@unit
def test_what_is_not_a_number_stays_that():
    A, B = rows("floats", 5, 40, 7), rows("floats", 6, 40, 8)
    A[2, 3] = np.nan
    found = products(A, B)
    assert np.isnan(found[2]).all() and np.isfinite(np.delete(found, 2, axis=0)).all()


@unit
@pytest.mark.parametrize("value", [np.nan, np.inf, -1e34, 3e38])
def test_values_out_of_range_spoil_their_own_row_alone(value):
    A, B = rows("floats", 5, 40, 7), rows("floats", 6, 40, 8)
    normal = Rbf(0.1).block(A, Operand(B))
    B[2, 3] = value
    found = Rbf(0.1).block(A, Operand(B))
    np.testing.assert_array_equal(np.delete(found, 2, axis=1), np.delete(normal, 2, axis=1))
    if np.isfinite(value):
        np.testing.assert_array_equal(found[:, 2], 0.0)
        np.testing.assert_array_equal(Rbf(0.1).block(B[2:3], Operand(A)), 0.0)
        exact = A.astype(np.float64) @ B[2]
        with np.errstate(over="ignore"):
            exact = exact.astype(np.float32)  # infinite where float32 ends
        np.testing.assert_allclose(products(A, B)[:, 2], exact, rtol=1e-5)


def test_what_was_made_of_rows_does_not_travel_with_them():
    side = Operand(rows("floats", 50, 20, 11), np.arange(50))
    side.origin = np.ones(20, np.float32)
    before = len(pickle.dumps(Operand(side.X, side.ids)))
    here = Rbf(0.1).block(side, side)
    side.part(np.arange(7))
    sent = pickle.dumps(side)
    assert len(sent) < before + 500
    there = pickle.loads(sent)
    np.testing.assert_array_equal(Rbf(0.1).block(there, there), here)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", [Linear(), Rbf(0.01)], ids=lambda k: k.name)
def test_processors_without_the_unit_agree(kind, kernel, monkeypatch):
    A, B = rows(kind, 70, 40, 9), rows(kind, 90, 40, 10)
    here = kernel.block(A, Operand(B))
    monkeypatch.setattr(amx, "available", lambda: False)
    there = kernel.block(A, Operand(B))
    squares = [float((X.astype(np.float64) ** 2).sum(axis=1).max()) for X in (A, B)]
    allowed = 2 * kernel.entry_error(squares[0], squares[1], 40)
    np.testing.assert_allclose(here, there, rtol=0, atol=allowed)


KERNELS = [Linear(), Rbf(0.01), Polynomial(0.1, 3, 0.5), Sigmoid(0.01, 0.1)]


@unit
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("shape", [(70, 529, 40), (530, 1030, 32), (33, 1100, 1050), (40, 3, 5100)])
def test_a_pair_alone_is_the_pair_in_any_place(kernel, shape):
    """Past the ends of panels, strips and K-blocks; written down, and multiplied at once."""
    n, m, d = shape
    A, B = rows("mixed", n, d, 0), rows("floats", m, d, 1)
    side = Operand(B)
    together = kernel.block(A, side)
    ends = {0, 15, 16, 31, 32, 511, 512, 513, m - 17, m - 1}
    for i in (0, n // 2, n - 1):
        for j in sorted(k for k in ends if 0 <= k < m):
            alone, here = Operand(B[j : j + 1]), np.zeros((m, 1))
            alone.origin, here[j] = side.origin, 1.0
            assert kernel.block(A[i : i + 1], alone)[0, 0] == together[i, j]
            assert kernel.dots(A, side, here)[i, 0] == together[i, j]


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


@unit
@pytest.mark.parametrize("d", [1, 18, 31])
def test_narrow_rows_are_summed_as_exactly(d):
    A, B = rows("floats", 530, d, 2), rows("bytes", 700, d, 3) / 8
    V, kernel = np.random.default_rng(4).standard_normal((700, 3)), Rbf(0.05 / d)
    side = Operand(B)
    squares = [float((X.astype(np.float64) ** 2).sum(axis=1).max()) for X in (A, B)]
    allowed = np.abs(V).sum(axis=0) * kernel.entry_error(*squares, d)
    error = np.abs(kernel.dots(A, side, V) - kernel.dots(A, side, V, dtype=np.float64))
    assert np.all(error <= allowed)


def served(monkeypatch, kernel, d):
    """What of a kernel's entries between rows of d columns a unit would be handed, if there was."""
    calls = []
    monkeypatch.setattr(amx, "available", lambda: True)

    def multiply(terms, A, side, pairing, VT, out):
        calls.append("written" if VT is None else "summed")

    monkeypatch.setattr(amx_unit, "multiply", multiply)
    side = Operand(rows("floats", 40, d, 5))
    kernel.block(side, side)
    kernel.dots(side, side, np.ones((40, 1)))
    return calls


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize(("d", "unit"), [(1, False), (22, False), (31, False), (32, True)])
def test_entries_are_the_same_written_down_or_summed(kernel, d, unit, monkeypatch):
    """Where they differ in last bits, a solver that uses both comes to no close gap."""
    assert served(monkeypatch, kernel, d) == (["written", "summed"] if unit else [])
    assert (multiplied_by(kernel, d, False) == "matrix unit") == unit


def test_the_unit_serves_products_alone(monkeypatch):
    assert served(monkeypatch, Laplacian(0.1), 40) == []
    assert multiplied_by(Laplacian(0.1), 40, False) == "compiled loops"
    assert multiplied_by(None, 40, False) == "compiled loops"
    assert multiplied_by(Rbf(0.1), 40, True) == "matrix unit, or BLAS where columns are rare"
    assert multiplied_by(Precomputed(), 40, False) == "the kernel given"
    for units in (amx, vnni):
        monkeypatch.setattr(units, "available", lambda: False)
    assert multiplied_by(Rbf(0.1), 40, False) == multiplied_by(Rbf(0.1), 40, True) == "BLAS"


def test_the_unit_can_be_switched_off():
    told = (
        "from bigscreen.kernels import amx\n"
        "from bigscreen.kernels.standard import on_matrix_unit\n"
        "print(amx.available(), on_matrix_unit('rbf', 40))"
    )
    off = {**os.environ, "BIGSCREEN_AMX": "0"}
    shown = subprocess.run([sys.executable, "-c", told], env=off, capture_output=True, text=True)
    assert shown.stdout.split() == ["False", "False"]
