"""Problems for the block solver, and how its tests solve and compare them."""

from functools import cached_property

import contracts
import numpy as np
import pytest
import reference
from exact_world import ExactWorld
from threadpoolctl import threadpool_limits

from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.kernels.standard import make_kernel
from bigscreen.problems.recipes import CSvc, Lad, NuSvc, OneClass, Quantile, Sublinear, Svr
from bigscreen.solvers.block.coordinator import BlockRun
from bigscreen.solvers.block.solver import Block
from bigscreen.solvers.protocol import Run

GRID = {"shard_rows": 64, "chunk_rows": 32}
KERNELS = ("rbf", "polynomial", "laplacian", "linear")


def quiet():
    """BLAS on one thread: two that wait for each other on a busy machine take ten times as long."""
    return threadpool_limits(1, "blas")


def world(data, kernel="rbf", C=1.0, intercept="none", gamma=0.15, coef0=1.0, **terms):
    made = make_kernel(kernel, gamma, coef0=coef0, **terms)
    return ExactWorld(Design(data, made), CSvc(C, 1, contracts.CLASS_WEIGHT, intercept))


class AnyWorld(ExactWorld):
    """Any recipe; what its dual has to be is tested with the recipes."""

    @cached_property
    def oracle(self):
        data = self.design.data
        dual = self.problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
        phi = reference.features(self.gram)
        if self.problem.intercept == "constant":
            phi = np.hstack([phi, np.ones((len(phi), 1))])
        couplings = dual.coupling, dual.total, dual.group
        return reference.Problem(phi, dual.sign, dual.lin, dual.lo, dual.hi, *couplings, dual.tube)

    @property
    def data(self):
        return self.design.data

    @property
    def dual(self):
        data = self.design.data
        return self.problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))


RECIPES = (
    *("nu", "nu-bounded", "nu-constant", "one-class", "lad", "lad-true", "svr", "svr-constant"),
    *("svr-true", "quantile", "quantile-true", "sublinear"),
)


def recipe(name, data, level=0.3):
    """A problem of these rows: ``level`` is tau, epsilon or half of nu; C is 2."""
    n = data.n_rows
    name, _, intercept = name.partition("-")
    mass = float(data.weights(0, n).sum())
    if name == "nu":
        kind = {"": "true", "bounded": "none"}.get(intercept, intercept)
        classes = np.array([1.0, 1.0])
        return NuSvc(2 * level, 1, float(data.weights(0, n) @ classes[data.y(0, n)]), (), kind)
    if name == "one":
        return OneClass(2 * level, mass)
    if name == "sublinear":
        rng = np.random.default_rng(0)
        a, b = rng.normal(size=n), rng.normal(size=n)
        a[:3] = 0
        return Sublinear(C=2.0, a=a, b=b, lower=-0.4, upper=1.0)
    kind = intercept or "none"
    if name == "svr":
        return Svr(2.0, level, kind)
    return Lad(2.0, kind) if name == "lad" else Quantile(2.0, level, kind)


def problem_rows(name, seed=0, n=120, d=4, sparse_rows=False, weights=True, **grid):
    """Rows with what a recipe wants for y."""
    data = contracts.rows(seed, n, d, 0.7, sparse_rows, weights, **grid)
    if name.startswith(("nu", "one")):
        return data
    rng = np.random.default_rng(seed)
    X = data.X(0, n)
    dense = X.toarray() if sparse_rows else X
    y = np.sin(2 * dense[:, 0]) + 0.4 * dense[:, 1] + 0.3 * rng.standard_t(3, n)
    if name == "sublinear":
        y = np.arange(n, dtype=np.float64)
    return MemoryDataset(X, y, None, data.weights(0, n) if weights else None, **grid)


def any_world(name, kernel="rbf", gamma=0.3, level=0.3, **rows):
    data = problem_rows(name, **rows)
    return AnyWorld(Design(data, make_kernel(kernel, gamma, coef0=1.0)), recipe(name, data, level))


def watched(run_class=BlockRun, program=None, **options):
    """A block solver with this coordinator, whose shards run this program."""

    class WatchedRun(run_class):
        def _program(self, fine):
            made = super()._program(fine)
            return made if program is None else program(**vars(made))

    class Watched(Block):
        pass

    Watched.run_class = WatchedRun
    return Watched(**options)


def solved(w, fleet, solver=None, rule=None, tol=1e-5, certify="float64", **how):
    """What ``fit`` makes of a world; ``how``: max_iter, deadline, report, or what a run takes."""
    limits = Limits(tol, how.pop("max_iter", 2000), how.pop("deadline", None))
    solver = solver or Block(size=16)
    report = how.pop("report", lambda event: None)
    run = Run(w.design, w.problem, fleet, **how)
    return fit(run, solver, limits, rule=rule, certify=certify, report=report)


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


STEADY = _blas_is_steady()

steady = pytest.mark.skipif(not STEADY, reason="this BLAS rounds an entry by its place")
