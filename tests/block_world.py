"""Problems for the block solver, and how its tests solve and compare them."""

import contracts
import numpy as np
import pytest
from exact_world import ExactWorld
from threadpoolctl import threadpool_limits

from bigscreen.design import Design
from bigscreen.fit import fit
from bigscreen.fit_monitor import Limits
from bigscreen.kernels import make_kernel
from bigscreen.problems import CSvc
from bigscreen.solvers.block import Block

GRID = {"shard_rows": 64, "chunk_rows": 32}
KERNELS = ("rbf", "polynomial", "laplacian", "linear")


def quiet():
    """BLAS on one thread: two that wait for each other on a busy machine take ten times as long."""
    return threadpool_limits(1, "blas")


def world(data, kernel="rbf", C=1.0, intercept="none", gamma=0.15, coef0=1.0, **terms):
    made = make_kernel(kernel, gamma, coef0=coef0, **terms)
    return ExactWorld(Design(data, made), CSvc(C, 1, contracts.CLASS_WEIGHT, intercept))


def solved(w, fleet, solver=None, rule=None, tol=1e-5, certify="float64", **how):
    """What ``fit`` makes of a world; ``how``: max_iter, deadline, or what ``fit`` takes."""
    limits = Limits(tol, how.pop("max_iter", 2000), how.pop("deadline", None))
    solver = solver or Block(size=16)
    return fit(w.design, w.problem, solver, fleet, limits, rule=rule, certify=certify, **how)


def ends_right(w, found, tol=1e-5):
    contracts.exact_law(w, found.point.alpha, found.certificate, tol)


def curve(found):
    """Pass by pass; what has to be computed again after an interruption is counted again."""
    left_out = ("seconds", "kernel_entries")
    return [{k: v for k, v in event.items() if k not in left_out} for event in found.history]


def same_end(one, other):
    np.testing.assert_array_equal(one.point.alpha, other.point.alpha)
    assert one.certificate == other.certificate
    assert curve(one) == curve(other)


def _blas_is_steady():
    """Whether an entry of a product has the same bits whatever its row's place, as on AVX-512.

    OpenBLAS for Haswell and Zen rounds an entry by its place: there, columns that are computed
    again may differ in their last bits from those that were kept.
    """
    rng = np.random.default_rng(0)
    A, B = (rng.normal(size=(n, 40)).astype(np.float32) for n in (256, 200))
    picks = rng.permutation(256)[:64]
    with quiet():
        return np.array_equal(A[picks] @ B.T, (A @ B.T)[picks])


steady = pytest.mark.skipif(not _blas_is_steady(), reason="this BLAS rounds an entry by its place")
