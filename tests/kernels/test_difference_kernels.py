"""Matern and chi-squared kernels: entries and bounds on their errors, also of nearly equal rows."""

import json
import warnings
from functools import partial

import numpy as np
import pytest
from scipy import sparse
from sklearn.gaussian_process.kernels import Matern
from sklearn.metrics.pairwise import chi2_kernel

import bigscreen
from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.base import FLOAT64_ERROR_FACTOR
from bigscreen.kernels.moved import move_kernel, move_rows
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import kernel_from_dict, make_kernel
from bigscreen.train.kernel import gamma_scale

ORDERS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
NAMES = [*ORDERS, "chi2"]
FORMS = {"dense": np.asarray, "csr": sparse.csr_array}


def rows(name, n=120, d=30, seed=0, dtype=np.float32):
    """Rows whose columns differ in how often they are 0; of chi2 without negative values."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < np.linspace(0.03, 1, d))
    return (np.abs(X) if name == "chi2" else X).astype(dtype)


def nearly_equal(name, X, seed=1):
    """Copies of rows, moved by 1e-1 down to 1e-8 of themselves, and 10 that are not moved."""
    rng = np.random.default_rng(seed)
    size = 10.0 ** -rng.integers(1, 9, (len(X), 1)).astype(float)
    size[:10] = 0
    return (X * (1 + size * rng.uniform(-1, 1, X.shape))).astype(X.dtype)


def exact(name, gamma, A, B):
    """The formula in long double."""
    A, B = (M.astype(np.longdouble)[s] for M, s in ((A, np.s_[:, None]), (B, np.s_[None])))
    if name == "chi2":
        total = A + B
        return np.exp(-gamma * ((A - B) ** 2 / np.where(total == 0, 1, total)).sum(axis=2))
    s = np.sqrt(np.longdouble(2 * ORDERS[name])) * gamma * np.sqrt(((A - B) ** 2).sum(axis=2))
    return {"matern12": 1, "matern32": 1 + s, "matern52": 1 + s + s**2 / 3}[name] * np.exp(-s)


@pytest.mark.parametrize("name", NAMES)
def test_entries_are_those_of_scikit_learn(name):
    A, B = rows(name), rows(name, 40, seed=2)
    formula = (
        Matern(1 / 0.4, nu=ORDERS[name]) if name != "chi2" else partial(chi2_kernel, gamma=0.4)
    )
    judge = formula(A.astype(float), B.astype(float))
    kernel = make_kernel(name, 0.4)
    for form in FORMS.values():
        side = Operand(form(B))
        found = kernel.block(form(A), side, dtype=np.float64)
        np.testing.assert_allclose(found, judge, rtol=1e-13, atol=1e-15)
        V = np.random.default_rng(3).normal(size=(len(B), 2))
        np.testing.assert_allclose(kernel.dots(form(A), side, V, np.float64), judge @ V, atol=1e-12)
    assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel
    assert np.linalg.eigvalsh(kernel.block(A, Operand(A), dtype=np.float64))[0] > -1e-12
    assert kernel.psd and kernel.nonnegative


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("gamma", [1e-3, 0.3, 30.0])
def test_error_bounds_hold_for_rows_that_are_nearly_equal(name, form, dtype, gamma):
    X = rows(name, dtype=dtype)
    # All rows at a distance from 0, which float64 rows are not rounded without.
    for shift in (0.0, 1000.0) if form == "dense" else (0.0,):
        A = (X + shift).astype(dtype)
        B = nearly_equal(name, A)
        kernel, side = make_kernel(name, gamma), Operand(FORMS[form](B))
        judge = exact(name, gamma, A, B)
        sqnorms = Operand(A).sqnorms
        bound = kernel.entry_error(sqnorms, side.sqnorms.max(), A.shape[1])
        assert form == "dense" or side.rare is not None
        off = np.abs(kernel.block(FORMS[form](A), side) - judge).max(axis=1)
        assert (off <= bound).all()
        off = np.abs(kernel.block(FORMS[form](A), side, dtype=np.float64) - judge).max(axis=1)
        assert (off <= FLOAT64_ERROR_FACTOR * bound).all()


@pytest.mark.parametrize("name", NAMES)
def test_error_bounds_of_rows_of_size_one_are_small(name):
    """A bound that rises as the root of the unit roundoff, 2e-4, would decide no row."""
    for d in (1, 20, 784):
        assert make_kernel(name, 1.0).entry_error(1.0, 1.0, d) < 5e-6 * max(1, d / 100)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS)
def test_equal_rows_give_one_and_far_rows_zero(name, form):
    X = FORMS[form](rows(name))
    for dtype in (np.float32, np.float64):
        block = make_kernel(name, 3.0).block(X, Operand(X), dtype=dtype)
        assert np.abs(np.diag(block) - 1).max() < 1e-6 and block.max() <= 1 + 1e-6
        assert not make_kernel(name, 1e30).block(X[:1] * 2, Operand(X), dtype=dtype).any()
    wrong = np.ones((2, 30), np.float32)
    wrong[0, 3] = np.nan
    block = make_kernel(name, 1e-3).block(FORMS[form](wrong), Operand(X))
    assert np.isnan(block[0]).all() and np.isfinite(block[1]).all()


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_are_moved_keep_their_entries(name):
    A = rows(name, dtype=np.float64) * 1e-19
    gamma = 3e18
    moved, kernel = move_rows(MemoryDataset(A, None, []), make_kernel(name, gamma), False)
    assert kernel == move_kernel(moved.move, make_kernel(name, gamma)) and kernel.gamma < 100
    X = moved.X(0, len(A))
    judge = exact(name, gamma, A, A)
    assert 0.01 < np.median(judge) < 0.9
    np.testing.assert_allclose(kernel.block(X, Operand(X)), judge, atol=3e-6)


def test_negative_values_are_refused_by_the_chi_squared_kernel():
    X, kernel = rows("chi2"), make_kernel("chi2", 1.0)
    wrong = X.copy()
    wrong[4, 29] = -1
    for A, B in ((wrong, X), (X, wrong)):
        for form in FORMS.values():
            with pytest.raises(InputError, match="negative value"):
                kernel.block(form(A), Operand(form(B)))
            with pytest.raises(InputError, match="negative value"):
                kernel.dots(form(A), Operand(form(B)), np.ones((len(B), 1)))
    y = X[:, -1] > np.median(X[:, -1])
    machine = bigscreen.SVC(kernel="chi2").fit(X, y)
    with pytest.raises(InputError, match="negative value"):
        machine.predict(wrong)
    with pytest.raises(InputError, match="negative value"):
        bigscreen.NystroemSVC(kernel="chi2", n_components=20).fit(wrong, y)


@pytest.mark.parametrize("name", NAMES)
def test_gamma_scale_does_not_depend_on_the_unit_of_the_values(name):
    X = rows(name)
    with Inline(1) as fleet:
        one, other = (
            gamma_scale(MemoryDataset(M, None, []), fleet, name) for M in (X, np.float32(8) * X)
        )
    assert other == pytest.approx(one / 8, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_machines_meet_their_gap_and_agree(name):
    """Exact and on all rows as landmarks, whose kernels are equal."""
    X = rows(name, 200, 6)
    X = np.concatenate([X, nearly_equal(name, X[:50])])
    y = np.sin(3 * X[:, -1]) + X[:, -2] > np.median(X[:, -2])
    exactly = bigscreen.SVC(kernel=name, C=10, tol=1e-5).fit(X, y)
    assert exactly.relative_gap_ <= 1e-5
    K = exact(name, exactly._gamma, X, X).astype(float)
    other = bigscreen.SVC(kernel="precomputed", C=10, tol=1e-5).fit(K, y)
    assert other.certificate_[0]["primal"] == pytest.approx(
        exactly.certificate_[0]["primal"], rel=2e-5
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        near = bigscreen.NystroemSVC(kernel=name, n_components=60, C=10, random_state=0).fit(X, y)
    assert near.relative_gap_ <= 1e-3 and near.score(X, y) > 0.85
