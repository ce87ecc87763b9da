"""Fits that a Newton does not end: an interior point does, wherever they are."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from newton_world import tune_near
from trained import fitted, proofs

from bigscreen.data.memory import MemoryDataset
from bigscreen.fit.ladder import LADDER, max_checks
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.plan.plan import plan
from bigscreen.report.certificate import facts, fit_record
from bigscreen.train.many import Outcomes
from bigscreen.train.run import train_many

HARD = TrainOptions(landmarks=40, gamma=2.0, C=1e4, tol=1e-5)
"""A Newton takes 40 to 60 passes, to just that gap."""


def rows(labels=2, n=1500):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    score = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.02 * rng.normal(size=n)
    return MemoryDataset(X, (score > 0).astype(int) + (labels - 2) * (score > 1.5), range(labels))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "intercept"),
    [("stored", "penalized"), ("recomputed", "true"), ("recomputed", "none")],
)
def test_the_optimum_is_the_newtons(features, intercept):
    options = replace(HARD, intercept=intercept).tuned(features=features)
    assert plan(rows(), options).solver == "newton"
    (found,) = proofs(fitted(rows(), options))
    assert abs(found["gap"]) + found["rounding_bound"] <= 1e-7 * found["primal"]
    (other,) = proofs(fitted(rows(), replace(options, solver="newton", tol=1e-3)))
    assert other["dual"] - other["rounding_bound"] <= found["primal"]
    assert found["dual"] - found["rounding_bound"] <= other["primal"]


def test_the_record_names_the_solver_that_ended():
    events = []
    model = fitted(rows(), HARD, events.append)
    phases = [event["phase"] for event in events if event["event"] == "phase"]
    assert phases.index("solve") < phases.index("solve, by an interior point")
    assert proofs(model)[0]["solver"] == "interior"
    assert facts(fit_record(model))["solver, features"].startswith("newton then interior, ")
    easy = fitted(rows(), replace(HARD, C=1.0, tol=1e-2))
    assert "solver" not in proofs(easy)[0]
    assert facts(fit_record(easy))["solver, features"].startswith("newton, ")
    history = model.provenance["history"]
    passes = [event["full_passes"] for event in history]
    assert passes == sorted(passes) and len(history) > LADDER.min_checks
    assert proofs(model)[0]["passes"]["full"] == passes[-1]


@pytest.mark.slow
def test_every_class_has_its_own_ladder():
    model = fitted(rows(3), HARD)
    assert len(proofs(model)) == 3
    assert max(proof["relative_gap"] for proof in proofs(model)) <= HARD.tol


@pytest.mark.slow
def test_each_fit_has_its_own_labels():
    """Also where it was begun with others."""
    data = rows()
    y, n = data.y(0, 1500), 1500
    weights = np.random.default_rng(1).integers(0, 3, n).astype(float)
    own = [Outcomes(y, None), Outcomes(1 - y, weights)]
    with Inline(2) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = train_many(data, HARD, fleet, own)
    for model, (labels, mass) in zip(models, own, strict=True):
        alone = fitted(MemoryDataset(data.X(0, n), labels, [0, 1], mass), HARD)
        (one,), (other,) = proofs(model), proofs(alone)
        assert one["relative_gap"] <= HARD.tol
        assert one["primal"] == pytest.approx(other["primal"], rel=2 * HARD.tol)


def test_linear_machines_go_on_with_an_interior_point():
    rng = np.random.default_rng(0)
    base = 3 * rng.normal(size=(1000, 20))
    X = np.hstack([base, base @ rng.normal(size=(20, 60)), rng.normal(size=(1000, 40))])
    y = (X[:, :20].sum(1) + X[:, -5:].sum(1) > 0) ^ (rng.random(1000) < 0.1)
    data = MemoryDataset(X.astype(np.float32), y.astype(np.int32), [0, 1])
    options = TrainOptions(kernel="linear", C=1e4)
    assert plan(data, options).solver == "newton"
    (proof,) = proofs(fitted(data, options))
    assert proof["relative_gap"] <= 1e-3


def test_a_requested_newton_is_not_replaced():
    asked = replace(HARD, solver="newton", max_iter=LADDER.min_checks + 5)
    history = fitted(rows(), asked).provenance["history"]
    assert "reach" not in history[-1] and len(history) == LADDER.min_checks + 5


def test_looks_that_are_cheap_beside_an_interior_point_may_be_more():
    """As those at 14,000 rows of 500 features, of which an interior point takes 25 dear steps."""
    assert max_checks(1500, 40) == max_checks(1000, 120) == LADDER.min_checks
    assert 60 < max_checks(14_000, 500) < 200


class Stopped(Exception):
    """Stands for a process that ends."""


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits(tmp_path, checkpoint_every, monkeypatch):
    """Wherever it was stopped: in steps over all rows, over few, over all again, in the others."""
    checkpoint_every(-1.0)
    tune_near(monkeypatch, late_gap=1.0, max_late_checks=6, max_passes=2, aim=1e5, max_part=0.9)
    whole = fitted(rows(), HARD)
    events = whole.provenance["history"]
    few = [event["pass"] for event in events if event["rows_alive"] < 1500]
    over = few[-1] + LADDER.min_checks - few[0] + 1
    passes = [event["full_passes"] for event in events]
    assert len(few) == 2 and over < len(events) and passes == sorted(passes)
    for last in (few[0] - 1, *few, over, over + 1):
        options, seen = replace(HARD, work=tmp_path / str(last)), []

        def stop(event, last=last, seen=seen):
            seen += [event] * (event["event"] == "pass")
            if len(seen) > last:
                raise Stopped

        with pytest.raises(Stopped):
            fitted(rows(), options, stop)
        again = fitted(rows(), replace(options, resume=True))
        np.testing.assert_array_equal(again.coef, whole.coef)
        assert proofs(again) == proofs(whole)
        assert len(again.provenance["history"]) == len(events)
