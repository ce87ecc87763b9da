"""Machines of many landmarks: Cholesky's factor, sampled Hessians, starts from fewer landmarks."""

from dataclasses import replace

import contracts
import numpy as np
import pytest

from bigscreen import NystroemSVC, Tuning
from bigscreen.errors import InputError
from bigscreen.features import nystrom
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Linear, Rbf
from bigscreen.numerics import cholesky
from bigscreen.problems.point import SumLayout
from bigscreen.solvers.newton.algebra import Algebra
from bigscreen.solvers.newton.sampled import Sample, SampledHessian
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.newton.tuning import NEWTON
from bigscreen.solvers.protocol import Run


@pytest.fixture
def many(monkeypatch):
    """A few dozen landmarks are many."""
    monkeypatch.setattr(nystrom, "MAX_EIGH_LANDMARKS", 20)


def in_turn(function, items):
    return [function(item) for item in items]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 7, 30])
def test_blocks_factor_and_invert_as_lapack_does(n, dtype):
    rng = np.random.default_rng(n)
    rows = rng.normal(size=(2 * n, n))
    given = (rows.T @ rows).astype(dtype)
    found = given.copy()
    assert cholesky.factorise_in_parallel(found, in_turn, 7)
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype == np.float32 else {"rtol": 1e-9, "atol": 1e-9}
    upper = np.triu(found)
    np.testing.assert_allclose(upper.T @ upper, given, **close)
    np.testing.assert_array_equal(np.tril(found, -1), np.tril(given, -1))
    cholesky.invert_in_parallel(found, in_turn, 7)
    np.testing.assert_allclose(found @ upper, np.eye(n), **close)
    assert not np.tril(found, -1).any()
    given[n // 2, n // 2] = -1.0
    assert not cholesky.factorise_in_parallel(given, in_turn, 7)


def test_the_kernel_of_many_landmarks_has_a_ridge(many):
    side = Operand(np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32))
    found = nystrom.factor_landmarks(Rbf(0.05), side)
    K = Rbf(0.05).block(side, side, dtype=np.float64)
    assert found.ridge == pytest.approx(found.cutoff * np.abs(K).sum(axis=1).max())
    with_ridge = K + found.ridge * np.eye(60)
    T = found.matrix
    np.testing.assert_allclose(T.T @ with_ridge @ T, np.eye(60), atol=1e-6)
    assert found.record()["ridge"] == found.ridge and found.record()["rank"] == 60
    # No feature of a row is stretched by more than the root of the ridge's inverse.
    assert np.linalg.norm(T, 2) ** 2 <= 1.001 / found.ridge
    with pytest.raises(InputError, match="zero everywhere"):
        nystrom.factor_landmarks(Linear(), Operand(np.zeros_like(side.X)))


@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize("kernel", ["rbf", "rbf, eigenvectors", "linear"])
@pytest.mark.parametrize("intercept", contracts.INTERCEPTS)
def test_a_sampled_hessian_is_the_hessian_of_its_rows(intercept, kernel, sparse_rows, many):
    """Of landmarks in float32, of raw features in float64; of many, some features stand alone."""
    world = contracts.world(
        contracts.rows(1, n=400, sparse_rows=sparse_rows), kernel.split(",")[0], 0.5, intercept
    )
    design, alone = world.design, slice(0, 0)
    if kernel == "rbf, eigenvectors":
        factor = nystrom.factor_by_eigenvectors(design.kernel, design.side)
        design = replace(design, factor=factor.matrix, ridge=0.0)
        alone = slice(0, design.rank - int(NEWTON.joint_fraction_wide * design.rank))
    elif kernel == "rbf":
        alone = slice(int(NEWTON.joint_fraction_wide * design.rank), design.rank)
    tuning = replace(NEWTON, sample_tile_rows=50)
    algebra = Algebra(design, SumLayout.of(world.problem, world.data), tuning)
    blocks = {"block_columns": 8, "block_rows": 9}
    rng = np.random.default_rng(3)
    rows = np.sort(rng.choice(400, 130, replace=False))
    border = rng.normal(size=(130, algebra.frame.extras))
    diagonal = algebra.metric + 0.5
    sample = Sample(rows, rng.uniform(0.1, 2.0, 130), border, diagonal)
    columns = design.columns(world.data.rows(rows), np.float64)
    phi = np.hstack([design.features_of(columns), border])
    close = {"rtol": 1e-9} if kernel == "linear" else {"rtol": 1e-2, "atol": 1e-3}
    hessian = (phi * sample.weight[:, None]).T @ phi + np.diag(diagonal)
    own = np.diag(hessian).copy()
    hessian[alone], hessian[:, alone] = 0.0, 0.0
    hessian[np.diag_indices(algebra.size)] = own
    assert (alone.stop > alone.start) == (kernel != "linear")
    v = rng.normal(size=algebra.size)
    found = SampledHessian(algebra, sample, **blocks).solve(v)
    np.testing.assert_allclose(found, np.linalg.solve(hessian, v), **close)
    again = Sample.unpacked(**sample.packed)
    np.testing.assert_array_equal(SampledHessian(algebra, again, **blocks).solve(v), found)


@pytest.mark.slow
@pytest.mark.parametrize("intercept", contracts.INTERCEPTS)
def test_many_landmarks_end_at_the_optimum(intercept, many):
    """Their results are the same on any number of threads, and no moment is summed."""
    world = contracts.world(contracts.rows(4, n=1500, noise=1.0), "rbf", 0.5, intercept)
    assert world.design.ridge > 0
    found = []
    for threads in (1, 2):
        with Inline(threads) as fleet:
            run = Run(world.design, world.problem, fleet)
            found.append(fit(run, Newton(tol=1e-4), Limits(1e-4, 200)))
    contracts.solver_law(world, found[0].point, found[0].certificate, 1e-4)
    np.testing.assert_array_equal(found[0].point.coef, found[1].point.coef)
    assert found[0].certificate.gap == found[1].certificate.gap


@pytest.mark.parametrize("intercept", [True, "penalized", False])
def test_a_fit_of_many_landmarks_begins_at_fewer(intercept, many):
    """The published coefficients have the loss, and with the ridge the norm, that P has."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 3)).astype(np.float32)
    y = ((X**2).sum(axis=1) + 0.5 * rng.normal(size=900) > 2.5).astype(int)
    how = {"gamma": 0.3, "C": 2.0, "n_components": 40, "fit_intercept": intercept, "tol": 1e-4}
    model = NystroemSVC(tuning=Tuning(features="recomputed"), **how).fit(X, y)
    (proof,), known = model.certificate_, model.model_.provenance
    assert proof["proved"] and proof["relative_gap"] <= 1e-4
    c = model.model_.coef[0]
    side = Operand(model.components_)
    K = Rbf(0.3).block(side, side, dtype=np.float64)
    square = c @ K @ c + known["nystrom"]["ridge"] * c @ c
    if intercept == "penalized":
        square += float(model.intercept_[0]) ** 2
    hinge = np.maximum(0.0, 1 - (2.0 * y - 1) * model.decision_function(X)).sum()
    assert 0.5 * square + 2.0 * hinge == pytest.approx(proof["primal"], rel=1e-5)
