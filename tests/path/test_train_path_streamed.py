"""Paths whose features or rows do not fit in memory give equal machines, and resume bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from test_train_path import GRID, NUS, number, rows, same

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.estimators.inputs import Targets
from bigscreen.estimators.path import SVCPathCV
from bigscreen.fleet.blas import blas_threads
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.path.folds_job import FoldsJob
from bigscreen.path.options import PathOptions
from bigscreen.path.prepare import PATH
from bigscreen.path.run import PathJob
from bigscreen.train.many import ManyTuning

# A gap that is missed shows a fault, here as in the folds.
pytestmark = pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")

SCANT = 400 * 2**20
"""Memory so small that nothing is left for features."""

NYSTROM = {"kernel": "rbf", "gamma": 0.5, "landmarks": 40}


def solved(
    data,
    memory,
    work=None,
    report=None,
    threads=2,
    rules=None,
    folds=3,
    tuning=PATH,
    kind=PathJob,
    **fit,
):
    machine = {"tol": 1e-4, "memory": memory, "work": work, **fit}
    grid = NUS if machine.get("problem") in ("nu-svc", "one-class") else GRID
    options = PathOptions(TrainOptions(**machine), grid, folds, rules)
    with Inline(threads) as fleet, blas_threads(1):
        return kind(data, options, fleet, report, None, tuning).run()


def classes(n=400, labels=2):
    X, y = rows(n, labels)
    return MemoryDataset(X, y, list(range(labels)))


def targets(n=400, far=0.0):
    X = rows(n)[0].astype(np.float64) + far
    return Targets.of(X, number(X - far), None, False).rows(np.inf, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "fit"),
    [
        (classes, NYSTROM),
        (lambda: classes(labels=3), {**NYSTROM, "class_weight": "balanced"}),
        (classes, {**NYSTROM, "intercept": "true"}),
        (classes, {**NYSTROM, "problem": "nu-svc", "intercept": "true"}),
        (classes, {**NYSTROM, "problem": "one-class"}),
        (classes, {"kernel": "linear"}),
        (targets, {**NYSTROM, "problem": "quantile", "tau": 0.3}),
        # (These rows are shifted for the solve, but published unshifted.)
        (lambda: targets(far=100.0), {"kernel": "linear", "problem": "svr", "intercept": "true"}),
    ],
)
def test_the_points_are_those_of_a_path_in_memory(make, fit):
    data = make()
    held, streamed = solved(data, None, **fit), solved(data, SCANT, **fit)
    X = data.X(0, data.n_rows)
    assert streamed.record["rules"] == [] and held.record["rules"]
    both = zip(held.record["points"], streamed.record["points"], strict=True)
    for k, (one, other) in enumerate(both):
        for a, b in zip(one, other, strict=True):
            assert b["relative_gap"] <= 1e-4 and b["rows"] == a["rows"]
            assert set(b) <= set(a)
            room = a["gap"] + b["gap"] + b["rounding"] + 1e-5 * abs(a["primal"])
            assert abs(a["primal"] - b["primal"]) <= room
        scores = [path.model(k).scores(X) for path in (held, streamed)]
        assert np.abs(scores[0] - scores[1]).max() <= 0.1 * np.ptp(scores[0])
    assert np.abs(held.scores - streamed.scores).max() <= 0.03
    assert streamed.model(2).provenance["certificates"][0]["proved"]


def test_what_is_published_is_what_was_judged():
    """Each fold's score is the score of a model fitted to its rows, also if rows are shifted."""
    data = targets(far=100.0)
    fit = {"kernel": "linear", "problem": "svr", "intercept": "true", "tol": 1e-6}
    every = np.arange(data.n_rows)
    path = solved(data, SCANT, folds=[(every, every)], **fit)
    X, y = data.X(0, data.n_rows), data.y(0, data.n_rows)
    for k in range(len(path)):
        rest = y - path.model(k).scores(X)[:, 0]
        assert path.scores[0, k] == pytest.approx(1 - rest @ rest / np.sum((y - y.mean()) ** 2))


def test_scores_of_a_value_at_a_time_are_the_same():
    data, fit = classes(), {**NYSTROM, "problem": "one-class"}
    at_once = solved(data, SCANT, **fit)
    one_by_one = replace(PATH, max_score_fraction=0.0)
    same(solved(data, SCANT, threads=1, tuning=one_by_one, **fit), at_once)


class FewAtOnce(FoldsJob):
    """A job that solves few problems at a time."""

    tuning = ManyTuning(max_problems=7)


class OnDisk(PathJob):
    """A path with features on disk though there are few rows, which solves few problems at once."""

    folds_job = FewAtOnce

    def _plan_streamed(self, fit, fits):
        planned = super()._plan_streamed(fit, fits)
        return replace(planned, features_in_memory=False, resident=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("fit", [{}, {"intercept": "true"}, {"kernel": "linear"}])
@pytest.mark.parametrize("stop", [2, 19])
def test_an_interrupted_path_goes_on_bit_for_bit(fit, stop, tmp_path):
    data, fit, work = classes(), {**NYSTROM, "kind": OnDisk, **fit}, tmp_path / "work"
    whole = solved(data, SCANT, tmp_path / "whole", **fit)
    seen = []

    def stopped(event):
        if event["event"] == "progress" and event["phase"].startswith("solve"):
            seen.append(event)
            if len(seen) == stop:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solved(data, SCANT, work, stopped, **fit)
    kept = {file: file.stat().st_mtime_ns for file in work.glob("features/fold-*/*.kept")}
    assert kept
    again = solved(data, SCANT, work, resume=True, **fit)
    same(again, whole)
    assert all(file.stat().st_mtime_ns == when for file, when in kept.items())


@pytest.mark.slow
def test_what_another_run_left_is_forgotten(tmp_path):
    data, fit = classes(), {**NYSTROM, "kind": OnDisk}
    whole = solved(data, SCANT, tmp_path, **fit)
    (tmp_path / "features" / "left").mkdir()
    same(solved(data, SCANT, tmp_path, **fit), whole)
    assert not (tmp_path / "features" / "left").exists()
    with pytest.raises(InputError, match="another path"):
        solved(data, SCANT, tmp_path, resume=True, **{**fit, "gamma": 0.4})


def test_a_rule_that_was_named_is_refused(tmp_path):
    with pytest.raises(InputError, match="rule dvi leaves out rows from value to value, and"):
        solved(classes(), SCANT, tmp_path, rules=("dvi", "gap"), **NYSTROM)
    assert not list(tmp_path.iterdir())
    assert solved(classes(), SCANT, rules=(), **NYSTROM).record["rules"] == []


def test_time_that_runs_out_leaves_points_that_say_so():
    with pytest.warns(ConvergenceWarning, match="24 of 24 points"):
        path = solved(classes(), SCANT, time_budget=1e-3, **{**NYSTROM, "tol": 1e-9})
    assert path.missed and max(part["relative_gap"] for part in path.points) > 1e-9


def test_the_estimator_goes_beyond_memory():
    X, y = rows(500)
    how = {"kernel": "rbf", "gamma": 0.5, "n_components": 40, "cv": 3, "tol": 1e-4}
    held = SVCPathCV(GRID, **how).fit(X, y)
    found = SVCPathCV(GRID, memory=SCANT, **how).fit(X, y)
    assert np.abs(held.scores_ - found.scores_).max() <= 0.03
    assert found.relative_gap_ <= 1e-4 and found.score(X, y) >= held.score(X, y) - 0.03
    with pytest.raises(InputError, match="this fit needs about"):
        SVCPathCV(GRID, memory=2**20, **how).fit(X, y)
