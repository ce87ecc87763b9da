"""The last steps to a gap that float32 features cannot prove: few rows, float64 features."""

import warnings
from dataclasses import replace

import contracts
import numpy as np
import pytest
from newton_world import tune_near

from bigscreen.data.memory import MemoryDataset
from bigscreen.fit.ladder import FewRows, rungs_after_newton
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.solvers.newton import near
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Run
from bigscreen.train.run import train

OPTIONS = TrainOptions(landmarks=70, gamma=0.2, C=0.5, tol=1e-9)


def rows(n=2000):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] ** 2 + 0.4 * rng.normal(size=n) > 0.7).astype(np.int32)
    return MemoryDataset(X, y, [0, 1], rng.uniform(0.5, 2.0, n))


def fitted(options=OPTIONS, threads=1, kind=Inline):
    with kind(threads) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(rows(), options, fleet)


@pytest.mark.parametrize("intercept", ["none", "penalized"])
def test_a_close_gap_is_proved_from_the_features_of_few_rows(intercept):
    model = fitted(replace(OPTIONS, intercept=intercept))
    (proof,) = model.provenance["certificates"]
    last = model.provenance["history"][-1]
    assert last["rows_alive"] < 0.4 * 2000 and last["rows_visited"] == 2000
    assert proof["relative_gap"] <= 1e-9 and proof["certified_in"] == "float64"
    passes = [event["full_passes"] for event in model.provenance["history"]]
    assert passes == sorted(passes)
    wide = fitted(replace(OPTIONS, intercept=intercept, tol=1e-6)).provenance["certificates"][0]
    bound = wide["gap"] + wide["rounding_bound"] + proof["rounding_bound"]
    assert -proof["gap"] - bound <= wide["primal"] - proof["primal"] <= bound + wide["gap"]


def test_steps_go_over_all_rows_again_if_near_rows_are_not_enough(monkeypatch):
    tune_near(monkeypatch, max_passes=1)
    tune_near(monkeypatch, aim=1e4)
    (proof,) = fitted(replace(OPTIONS, tol=1e-7)).provenance["certificates"]
    assert proof["relative_gap"] <= 1e-7


def test_steps_go_over_all_rows_if_near_rows_have_no_room(monkeypatch):
    class WithoutFeatures(Inline):
        def each(self, function, items, in_flight=None):
            assert not isinstance(function, near._Features)
            return super().each(function, items, in_flight)

    tune_near(monkeypatch, max_float64_entries=0)
    model = fitted(replace(OPTIONS, tol=1e-7), kind=WithoutFeatures)
    assert model.provenance["certificates"][0]["relative_gap"] <= 1e-7


def test_they_take_over_before_local_steps(monkeypatch):
    events, kinds = [], []

    class Watched(Inline):
        def round(self, message):
            kinds.append(message["kind"])
            return super().round(message)

    tune_near(monkeypatch, far_gap=1.0)  # however far the optimum is
    with Watched(1) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = train(rows(), OPTIONS, fleet, events.append)
    (proof,) = model.provenance["certificates"]
    (began,) = (k for k, event in enumerate(events) if event.get("phase") == FewRows.phase)
    gaps = [event["relative_gap"] for event in events[:began] if event["event"] == "pass"]
    first = next(event for event in events[began:] if event["event"] == "pass")
    assert min(gaps) > 1e-5 and first["rows_alive"] < 0.4 * 2000
    assert "trial" in kinds and "gather" not in kinds
    assert proof["relative_gap"] <= 1e-9


def test_they_start_from_any_dual_value():
    """D can be 0 where they take over, as it is before smoothing suits the gap."""
    newton, solved = Newton(OPTIONS.tol), []

    class Unknown:
        def solve(self, run, check):
            solved.append(newton.solve(run, check))
            return replace(solved[-1], dual=0.0)

    world = contracts.world(rows(), "rbf", OPTIONS.C, landmarks=70, gamma=OPTIONS.gamma)
    design, problem = world.design, world.problem
    then = rungs_after_newton(newton, problem, design, design, 70, 1 << 30, interior=False)
    with Inline(1) as fleet:
        run, limits = Run(design, problem, fleet), Limits(newton.tol)
        found = fit(run, Unknown(), limits, certify="float64", then=then)
    assert found.certificate.relative_gap <= newton.tol
    assert len(solved) == 1 and solved[0].relative_gap > newton.tol


def test_threads_change_no_bit():
    one, two = fitted(), fitted(threads=2)
    assert np.array_equal(one.coef, two.coef)
    assert one.provenance["certificates"][0]["gap"] == two.provenance["certificates"][0]["gap"]


class Stopped(Exception):
    """Stands for a process that ends."""


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [near.NEARBY.max_passes, 1])
def test_a_resumed_run_has_the_same_bits(rounds, tmp_path, checkpoint_every, monkeypatch):
    checkpoint_every(-1.0)
    tune_near(monkeypatch, max_passes=rounds)
    if rounds == 1:  # then all rows are stepped over again
        tune_near(monkeypatch, aim=1e5)
    whole = fitted()
    events = whole.provenance["history"]
    for last in {2, len(events) - 2, len(events) - 1}:
        options, seen = replace(OPTIONS, work=tmp_path / str(last)), []

        def stop(event, last=last, seen=seen):
            seen += [event] * (event["event"] == "pass")
            if len(seen) > last:
                raise Stopped

        with Inline(1) as fleet, pytest.raises(Stopped):
            train(rows(), options, fleet, stop)
        again = fitted(replace(options, resume=True))
        assert np.array_equal(again.coef, whole.coef)
        assert len(again.provenance["history"]) == len(events)
