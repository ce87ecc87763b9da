"""Optima at w = 0 and gaps within rounding: the solve ends, and says why nothing is proved."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from bigscreen import SVC, SVR, MemoryDataset, NuSVC, OneClassSVM
from bigscreen.features.design import Design
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.standard import Linear
from bigscreen.problems.recipes import OneClass
from bigscreen.solvers.block.solver import Block
from bigscreen.solvers.protocol import Run
from bigscreen.solvers.smo.solver import Pairs


def centred(n=80, size=1.0):
    X = np.random.default_rng(0).normal(size=(n, 4))
    return size * (X - X.mean(axis=0))


def fitted(machine, *given):
    """The machine, and what it warned of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        machine.fit(*given)
    return machine, " ".join(str(w.message) for w in told if w.category is ConvergenceWarning)


@pytest.mark.parametrize("size", [1.0, 1e4])
@pytest.mark.parametrize(
    "how", [{}, {"n_components": 1}, {"n_components": 1, "solver": "pairs"}], ids=str
)
def test_rows_around_the_origin(size, how):
    """One class, linear: the hull holds the origin."""
    machine, told = fitted(OneClassSVM(kernel="linear", nu=0.9, **how), centred(size=size))
    assert machine.n_iter_ < 60
    assert machine.relative_gap_ == pytest.approx(1.0, abs=1e-2)
    assert "the best w is 0" in told and "larger nu" in told
    assert np.isfinite(machine.decision_function(centred(size=size))).all()


@pytest.mark.parametrize("how", [{}, {"n_components": 8}], ids=str)
def test_classes_of_the_same_rows(how):
    """nu-SVC: the hulls overlap, and there is no margin to divide by."""
    X = np.repeat(centred(10), 8, axis=0)
    y = np.arange(80) % 2
    machine, told = fitted(NuSVC(nu=0.3, **how), X, y)
    assert "the best w is 0" in told and machine.n_iter_ < 60
    assert np.abs(machine.decision_function(X)).max() < 1e-3
    told = fitted(NuSVC(nu=0.3, **how), X + 3 * y[:, None], y)[1]
    assert not told


@pytest.mark.parametrize("solver", [Block(), Pairs()], ids=["block", "pairs"])
def test_a_small_w_is_not_taken_for_zero(solver):
    """A w of a thousandth of its rows, and one far row, which makes the bound large."""
    rng = np.random.default_rng(1)
    X = np.vstack([rng.normal(size=(60, 3)) * 0.001, [[1000.0, 0, 0]]]) + np.array([0, 0, 0.01])
    data = MemoryDataset(X, None, [])
    with Inline(1) as fleet:
        problem, limits = OneClass(0.5, 61.0), Limits(1e-6, 5000)
        found = fit(Run(Design(data, Linear()), problem, fleet), solver, limits)
    assert found.ended == "proved" and found.certificate.relative_gap <= 1e-6
    assert found.certificate.primal < 0


def test_a_kernel_that_is_not_definite_never_vanishes():
    """Its 1/2 ||w||^2 can be below 0 anywhere."""
    X = centred(40)
    _machine, told = fitted(OneClassSVM(kernel="sigmoid", gamma=1.0, coef0=-2.0, nu=0.5), X)
    assert "the best w" not in told


def test_a_gap_within_rounding():
    X, y = centred(), np.full(80, 3.0)
    machine, told = fitted(SVR(), X, y)
    np.testing.assert_allclose(machine.predict(X), 3.0, atol=0.1 + 1e-12)
    assert machine.dual_gap_ <= 1e-12
    if machine.relative_gap_ > machine.tol:
        assert "no more than rounding" in told
    # A box so large that all of P drowns in it proves nothing, and must not seem to.
    labels = (X[:, 0] + np.sin(50 * X[:, 1]) > 0).astype(int)
    machine, told = fitted(SVC(C=1e20, max_iter=50), X, labels)
    (proved,) = machine.certificate_
    assert proved["relative_gap"] == pytest.approx(proved["gap"] / abs(proved["primal"]))
    assert proved["rounding_bound"] > proved["gap"] or proved["relative_gap"] <= 1e-3


def test_p_and_d_are_right_to_the_gap():
    """If ||w|| is tiny compared with alpha, float32 moves P and D: support rows are recomputed."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(300, 6)).astype(np.float32).astype(np.float64)
    y = (X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=300) > 0).astype(int)
    machine = NuSVC(nu=0.2, gamma=0.2, tol=1e-7).fit(X, y)
    (proved,) = machine.certificate_
    alpha = np.zeros(300)
    alpha[machine.support_] = machine.dual_coef_[0]
    K = np.exp(-0.2 * ((X[:, None] - X[None]) ** 2).sum(axis=2))
    alpha *= 0.2 / np.abs(alpha).sum()
    assert proved["dual"] == pytest.approx(-0.5 * alpha @ K @ alpha, rel=1e-9)
