"""The loop around a solver: budgets, checkpoints, refusals, and problems that lead nowhere."""

import json
import os
import signal
import time
import warnings
from dataclasses import replace

import contracts
import numpy as np
import pytest
from contracts import INTERCEPTS
from sklearn.exceptions import ConvergenceWarning
from trained import fitted_by

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.plan.plan import plan_on
from bigscreen.screening.dynamic import make_rule
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Run
from bigscreen.train.features import FeaturesJob
from bigscreen.train.run import train


@pytest.fixture(scope="module")
def fleet():
    with Inline(2) as fleet:
        yield fleet


def small(seed=0, n=200, **grid):
    return contracts.rows(seed, n=n, shard_rows=64, chunk_rows=32, **grid)


def trained(data, fleet, report=None, **options):
    options = {"kernel": "linear", "C": 1.0, "tol": 1e-6, "solver": "newton"} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return train(data, TrainOptions(**options), fleet, report)


def same_model(one, other):
    np.testing.assert_array_equal(one.coef, other.coef)
    np.testing.assert_array_equal(one.intercept, other.intercept)
    certificates = [model.provenance["certificates"] for model in (one, other)]
    assert certificates[0] == certificates[1]
    curves = [
        [
            {k: v for k, v in event.items() if k != "seconds"}
            for event in model.provenance["history"]
        ]
        for model in (one, other)
    ]
    assert curves[0] == curves[1]


# -- budgets -----------------------------------------------------------------------------------
@pytest.mark.parametrize("passes", [1, 2, 5])
def test_max_iter_returns_the_best_point_with_its_true_gap(passes, fleet):
    world = contracts.world(small(), "linear", 10.0, "constant")
    fitted = fit(Run(world.design, world.problem, fleet), Newton(1e-8), Limits(1e-8, passes))
    assert len(fitted.history) == passes
    contracts.solver_law(world, fitted.point, fitted.certificate, None)
    best = min(event["primal"] - event["dual"] for event in fitted.history)
    assert fitted.certificate.gap == pytest.approx(best, rel=1e-9)
    assert fitted.certificate.relative_gap > 1e-8


def test_no_time_at_all_still_certifies(fleet):
    world = contracts.world(small(), "rbf", 10.0, "constant")
    limits = Limits(1e-8, 100, time.monotonic() - 1)
    fitted = fit(Run(world.design, world.problem, fleet), Newton(1e-8), limits)
    assert len(fitted.history) == 1
    contracts.solver_law(world, fitted.point, fitted.certificate, None)


@pytest.mark.parametrize("budget", [{"max_iter": 2}, {"time_budget": 1e-9}])
def test_a_missed_gap_is_warned_of(budget, fleet):
    options = TrainOptions(kernel="linear", C=10.0, tol=1e-9, solver="newton", **budget)
    with pytest.warns(ConvergenceWarning, match="missed tol"):
        model = train(small(), options, fleet)
    assert model.provenance["certificates"][0]["relative_gap"] > 1e-9


# -- checkpoints -------------------------------------------------------------------------------
class Interrupt:
    """A report that interrupts at a pass: like Ctrl-C (a signal), or like a crash (an error)."""

    def __init__(self, at, crash):
        self.at, self.crash, self.passes = at, crash, 0

    def __call__(self, event):
        if event["event"] != "pass":
            return
        self.passes += 1
        if self.passes == self.at:
            if self.crash:
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize(
    ("kernel", "screening"), [("linear", "gap"), ("rbf", "gap"), ("linear", "f-safe")]
)
@pytest.mark.parametrize("crash", [False, True])
def test_an_interrupted_fit_ends_in_the_same_model(
    crash, kernel, screening, intercept, fleet, tmp_path, checkpoint_every
):
    checkpoint_every(-1.0 if crash else 1e9)
    options = {
        "kernel": kernel, "gamma": 0.1, "landmarks": 40, "intercept": intercept, "C": 3.0,
        "screening": screening, "tol": 1e-7 if kernel == "linear" else 1e-4,
    }  # fmt: skip
    whole = trained(small(), fleet, work=tmp_path / "whole", **options)
    count = len(whole.provenance["history"])
    for at in (2, count - 1):
        work = tmp_path / str(at)
        with pytest.raises(KeyboardInterrupt):
            trained(small(), fleet, Interrupt(at, crash), work=work, **options)
        same_model(trained(small(), fleet, work=work, resume=True, **options), whole)
        assert len(list(work.glob("label-1*/done.kept"))) == 1


def test_a_fit_interrupted_twice_ends_in_the_same_model(fleet, tmp_path, checkpoint_every):
    checkpoint_every(1e9)
    whole = trained(small(), fleet)
    for at in (3, 2):
        with pytest.raises(KeyboardInterrupt):
            trained(small(), fleet, Interrupt(at, False), work=tmp_path, resume=at == 2)
    same_model(trained(small(), fleet, work=tmp_path, resume=True), whole)


def test_a_finished_label_is_not_fitted_again(fleet, tmp_path):
    data = small()
    codes = np.arange(200) % 3
    data = MemoryDataset(data.X(0, 200), codes, ["a", "b", "c"], shard_rows=64, chunk_rows=32)
    options = TrainOptions(kernel="linear", tol=1e-3, solver="newton")

    def in_turn(report=None, **more):
        """Fit one label after the other."""
        own = replace(options, **more)
        plan = replace(plan_on(fleet, data, own), together=1)
        return fitted_by(FeaturesJob, data, own, fleet, plan, report)

    whole, seen = in_turn(), []

    def stop_in_the_second(event):
        if event["event"] == "pass":
            seen.append(event["class"])
            if event["class"] == "b":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_turn(stop_in_the_second, work=tmp_path)
    seen.clear()
    resumed = in_turn(lambda event: seen.append(event.get("class")), work=tmp_path, resume=True)
    same_model(resumed, whole)
    assert "a" not in seen and "c" in seen


@pytest.mark.parametrize(
    "change",
    [{"C": 2.0}, {"tol": 1e-3}, {"intercept": "none"}, {"class_weight": "balanced"}, {"seed": 1}],
)
def test_changed_parameters_are_not_resumed(change, fleet, tmp_path):
    trained(small(), fleet, work=tmp_path)
    with pytest.raises(InputError, match=next(iter(change))):
        trained(small(), fleet, work=tmp_path, resume=True, **change)


def test_changed_data_are_not_resumed(fleet, tmp_path):
    trained(small(), fleet, work=tmp_path)
    with pytest.raises(InputError, match="data"):
        trained(small(1), fleet, work=tmp_path, resume=True)


def test_resume_without_a_checkpoint_is_refused(fleet, tmp_path):
    with pytest.raises(InputError, match="nothing to resume"):
        trained(small(), fleet, work=tmp_path / "none", resume=True)


def test_a_work_folder_taken_over_forgets_the_fit_before(fleet, tmp_path):
    """Fit A, start B in the same folder, interrupt, resume: B's model, not what A left there."""
    trained(small(), fleet, work=tmp_path, C=0.01)
    with pytest.raises(KeyboardInterrupt):
        trained(small(), fleet, Interrupt(1, True), work=tmp_path, C=5.0)
    resumed = trained(small(), fleet, work=tmp_path, C=5.0, resume=True)
    same_model(resumed, trained(small(), fleet, C=5.0))


def test_a_budget_may_grow_on_resume(fleet, tmp_path, checkpoint_every):
    checkpoint_every(1e9)
    with pytest.raises(KeyboardInterrupt):
        trained(small(), fleet, Interrupt(3, False), work=tmp_path, max_iter=4)
    resumed = trained(small(), fleet, work=tmp_path, max_iter=500, resume=True)
    assert resumed.provenance["certificates"][0]["relative_gap"] <= 1e-6
    json.loads((tmp_path / "problem.json").read_text())


# -- problems that lead nowhere --------------------------------------------------------------------
def odd(name):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)).astype(np.float32)
    y = np.arange(60) % 2
    weight = None
    if name == "contradictions":
        X = np.repeat(X[:30], 2, axis=0)
    elif name == "all rows equal":
        X[:] = X[0]
    elif name == "all rows zero":
        X[:] = 0
    elif name == "one constant feature":
        X = np.ones((60, 1), np.float32)
    elif name == "two rows":
        X, y = X[:2], y[:2]
    elif name == "two equal rows":
        X, y = np.ones((2, 3), np.float32), y[:2]
    elif name == "one row of a class":
        y = (np.arange(60) == 7).astype(int)
    elif name == "no weight":
        weight = np.zeros(60)
    elif name == "a class without weight":
        weight = y.astype(float)
    elif name == "weights far apart":
        weight = 10.0 ** rng.uniform(-8, 8, 60)
    elif name == "huge features":
        X = X * np.float32(1e6)
    elif name == "tiny features":
        X = X * np.float32(1e-6)
    elif name == "separable":
        y = (X[:, 0] > 0).astype(int)
    return MemoryDataset(X, y, [0, 1], weight)


ODD = [
    "contradictions", "all rows equal", "all rows zero", "one constant feature", "two rows",
    "two equal rows", "one row of a class", "no weight", "a class without weight",
    "weights far apart", "huge features", "tiny features", "separable",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("name", ODD)
def test_odd_data_end_with_a_true_certificate(name, intercept, fleet):
    for kernel, C in (("linear", 1.0), ("linear", 1e-12), ("linear", 1e12), ("rbf", 1.0)):
        world = contracts.world(odd(name), kernel, C, intercept)
        run = Run(world.design, world.problem, fleet)
        fitted = fit(run, Newton(1e-3), Limits(1e-3, 100), rule=make_rule("gap"))
        certificate = fitted.certificate
        assert np.isfinite(certificate.primal) and np.isfinite(certificate.dual)
        assert np.all(np.isfinite(fitted.point.coef))
        contracts.certificate_is_true(world, fitted.point, certificate)
        assert certificate.gap >= -1e-9 * (abs(certificate.primal) + abs(certificate.dual))
        if C == 1.0 and name not in ("weights far apart", "huge features"):
            assert certificate.relative_gap <= 1e-3


@pytest.mark.timeout(60)
@pytest.mark.parametrize("gamma", [1e-9, 1e6])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_extreme_kernels(gamma, intercept, fleet):
    world = contracts.world(small(), "rbf", 1.0, intercept, gamma=gamma)
    fitted = fit(Run(world.design, world.problem, fleet), Newton(1e-3), Limits(1e-3, 200))
    contracts.solver_law(world, fitted.point, fitted.certificate, 1e-3)
