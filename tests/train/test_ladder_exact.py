"""Exact machines whose steps on alpha do not end: an interior point does, wherever they are."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from any_world import INTERCEPTS, KINDS, any_world, is_right
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from trained import fitted, fitted_by, proofs

from bigscreen import SVC, NuSVC
from bigscreen.data.memory import MemoryDataset
from bigscreen.fit.ladder import ExactInterior
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.numerics.cholesky import cholesky_features
from bigscreen.options.train import TrainOptions
from bigscreen.plan.plan import plan
from bigscreen.plan.tuning import PLAN
from bigscreen.problems.recipes import CSvc
from bigscreen.report.certificate import facts, fit_record
from bigscreen.solvers.protocol import Run
from bigscreen.solvers.smo.solver import Pairs
from bigscreen.train.exact import ExactJob
from bigscreen.train.solve import solve

HARD = TrainOptions(exact=True, kernel="linear", C=1e3, intercept="true")
"""Pair steps on rows that were not scaled do not converge."""


class AfterSteps(ExactInterior):
    """An interior point that takes over after this many pair steps, whatever they cost."""

    steps = 0

    def is_due(self, call):
        return call.stats.get("steps", np.inf) >= self.steps


class Late(AfterSteps):
    """An interior point that takes over after some checks of the pair steps."""

    steps = 50_000


class EarlyJob(ExactJob):
    """A job whose pair steps are left at the first check, if an interior point may take over."""

    rung: type[ExactInterior] = AfterSteps

    def _fallbacks(self, design):
        return tuple(self.rung(design) for _ in super()._fallbacks(design))


class LateJob(EarlyJob):
    rung = Late


def fitted_early(data, options, kind=EarlyJob, report=None):
    with Inline(2) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return fitted_by(kind, data, options, fleet, report=report)


SCALES = np.array([1.0, 30.0, 1000.0, 0.1, 5.0, 200.0])


def rows(n=400, labels=2, scales=SCALES):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 6)) * scales
    score = (X[:, 0] + X[:, 1] / SCALES[1]) / scales[0] + 0.5 * rng.normal(size=n)
    return MemoryDataset(X, (score > 0).astype(int) + (labels - 2) * (score > 1.5), range(labels))


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(4, 60),
    kind=st.sampled_from(["c-svc", *KINDS]),
    intercept=st.sampled_from(INTERCEPTS),
    kernel=st.sampled_from(["rbf", "linear", "polynomial"]),
    size=st.sampled_from([0.1, 1.0, 100.0]),
    d=st.sampled_from([1, 3, 80]),
)
# Whole steps went in circles here, their products now halved and now doubled.
@example(seed=98, n=4, kind="nu-svc", intercept="none", kernel="linear", size=0.1, d=80)
def test_the_oracles_optimum(seed, n, kind, intercept, kernel, size, d):
    w = any_world(seed, n, kind, intercept, kernel=kernel, size=size, d=d)
    assume(abs(w.optimum.primal) > 1e-9)  # else the rows' hulls meet, and all is rounding
    with Inline(1) as fleet:
        run, limits = Run(w.design, w.problem, fleet), Limits(1e-7, 200)
        then = [AfterSteps(w.design)]
        found = fit(run, Pairs(every=1), limits, certify="float64", then=then)
    assert found.solver == "interior" or found.history[-1]["pass"] <= 2
    is_right(w, found, 1e-7)


def test_features_are_the_kernels():
    """Of a matrix with fewer of them than rows, too, and of one of nothing."""
    rng = np.random.default_rng(0)
    for base in (rng.normal(size=(50, 7)), rng.normal(size=(50, 70)), np.zeros((5, 2))):
        K = base @ base.T
        found = cholesky_features(K.copy())
        assert found.shape[1] <= min(base.shape) + 5 and found.shape[1] >= (base != 0).any() * 7
        np.testing.assert_allclose(found @ found.T, K, atol=1e-13 * max(1.0, np.max(K)))


@pytest.mark.parametrize("C", [1.0, 1000.0])
@pytest.mark.parametrize("kernel", ["linear", "poly"])
def test_an_unscaled_table_is_solved(kernel, C):
    """LIBSVM takes more than ten million steps to each, or ends where nothing is solved."""
    X, y = load_breast_cancer(return_X_y=True)
    machine = SVC(kernel=kernel, degree=2, C=C, max_iter=400).fit(X, y)
    (proof,) = machine.certificate_
    assert proof["relative_gap"] <= 1e-3
    assert machine.score(X, y) >= 0.9


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_steps_end_at_the_same_machine(kernel):
    data = rows(scales=np.ones(6))
    options = replace(HARD, kernel=kernel, C=1.0, tol=1e-9)
    (one,), (other,) = (
        proofs(fitted_early(data, replace(options, solver=solver))) for solver in ("auto", "pairs")
    )
    assert one["solver"] == "interior" and "solver" not in other
    assert one["primal"] == pytest.approx(other["primal"], rel=1e-8)
    assert one["intercept"] == pytest.approx(other["intercept"], abs=1e-5)


def test_the_record_names_the_solver_that_ended():
    events = []
    model = fitted(rows(), HARD, events.append)
    phases = [event["phase"] for event in events if event["event"] == "phase"]
    assert phases.index("solve") < phases.index("solve, by an interior point")
    (proof,) = proofs(model)
    assert proof["solver"] == "interior" and proof["relative_gap"] <= 1e-3
    assert facts(fit_record(model))["solver, features"].startswith("pairs then interior, ")
    easy = fitted(rows(), replace(HARD, kernel="rbf", C=1.0))
    assert "solver" not in proofs(easy)[0]


@pytest.mark.slow
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "CSR"])
def test_the_block_solver_goes_on_with_an_interior_point(form):
    n = PLAN.few_rows + 400
    base = rows(n)
    X, y = form(base.X(0, n)), base.y(0, n)
    data = MemoryDataset(X, y, [0, 1])
    assert plan(data, HARD).solver == "block"
    (proof,) = proofs(fitted(data, HARD))
    assert proof["solver"] == "interior" and proof["relative_gap"] <= 1e-3


def test_every_pair_of_labels_has_its_own_ladder():
    for strategy in ("one", "rest"):
        data = rows(labels=3, scales=np.ones(6))
        model = fitted_early(data, replace(HARD, strategy=strategy, tol=1e-6))
        assert [proof["solver"] for proof in proofs(model)] == ["interior"] * 3
        assert max(proof["relative_gap"] for proof in proofs(model)) <= 1e-6


def test_solve_goes_on_with_an_interior_point():
    data = rows(300)
    X, y = data.X(0, 300), data.y(0, 300)
    found = solve(CSvc(1e3, 1, (), "true"), X, y, tol=1e-5, max_iter=400)
    assert found.certificate.relative_gap <= 1e-5


def test_requested_pair_steps_are_not_replaced():
    options = replace(HARD, solver="pairs", max_iter=9)
    history = fitted_early(rows(), options).provenance["history"]
    assert len(history) == 9 and "steps" in history[-1]


def test_without_memory_no_interior_point_goes_on():
    data, options = rows(2000), replace(HARD, kernel="rbf", C=1e-3)
    (proof,) = proofs(fitted_early(data, options))
    assert proof["solver"] == "interior"
    some = [replace(options, memory=size) for size in range(2**28, 2**31, 2**24)]
    least = next(one for one in some if plan(data, one, 2).refusal is None)
    (proof,) = proofs(fitted_early(data, least))
    assert "solver" not in proof and proof["relative_gap"] <= 1e-3


def test_a_kernel_without_a_gap_keeps_its_steps():
    options = TrainOptions(exact=True, kernel="sigmoid", gamma=0.5, coef0=-1.0, intercept="true")
    (proof,) = proofs(fitted_early(rows(80, scales=np.ones(6)), options))
    assert proof["violation"] <= 1e-3 and "solver" not in proof


class Stopped(Exception):
    """Stands for a process that ends."""


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits(tmp_path, checkpoint_every):
    """Wherever it was stopped: in steps on pairs, or in the others."""
    checkpoint_every(-1.0)
    options = replace(HARD, tol=1e-6)
    whole = fitted_early(rows(), options, LateJob)
    events = whole.provenance["history"]
    pairs = sum("steps" in event for event in events)
    assert 3 < pairs < len(events) - 3
    for last in (2, pairs - 1, pairs, pairs + 1, len(events) - 2):
        begun, seen = replace(options, work=tmp_path / str(last)), []

        def stop(event, last=last, seen=seen):
            seen += [event] * (event["event"] == "pass")
            if len(seen) > last:
                raise Stopped

        with pytest.raises(Stopped):
            fitted_early(rows(), begun, LateJob, stop)
        again = fitted_early(rows(), replace(begun, resume=True), LateJob)
        np.testing.assert_array_equal(again.coef, whole.coef)
        np.testing.assert_array_equal(again.support, whole.support)
        assert len(again.provenance["history"]) == len(events)


@pytest.mark.slow
def test_no_d_is_told_that_is_above_p():
    """Entries in float32 are so coarse here that steps over them made up a D of 400 times P."""
    X, y = load_breast_cancer(return_X_y=True)
    table = MemoryDataset(X.astype(np.float32), y, [0, 1])
    model = fitted(table, replace(HARD, intercept="penalized"))
    history = model.provenance["history"]
    assert any(event["dual"] > next(reversed(history))["primal"] for event in history)
    for event in history:
        assert event["dual"] <= event["primal"] * (1 + 1e-9)
    (proof,) = proofs(model)
    assert history[-1]["dual"] == pytest.approx(proof["dual"], rel=1e-3)


def test_where_the_classes_overlap_the_nearest_point_is_kept():
    """P* is 0 there, no gap is relative to it, and the interior point would begin far away."""
    X, y = load_breast_cancer(return_X_y=True)
    machine = NuSVC(kernel="linear", nu=0.05, max_iter=400)
    with pytest.warns(ConvergenceWarning, match="take a larger nu"):
        machine.fit(X, y)
    (proof,) = machine.certificate_
    assert proof["gap"] <= 1e-3 and abs(proof["primal"]) <= 1e-3
    assert machine.score(X, y) >= 0.94
