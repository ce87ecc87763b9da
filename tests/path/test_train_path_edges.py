"""Paths at their edges: rows without weight, given folds, time that runs out, odd kernels."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold
from test_train_path import GRID, KINDS, NUS, SCANT, number, options, rows

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.estimators.path import SVCPathCV, nu_path, svm_path
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Rbf
from bigscreen.path.gram import GramStage
from bigscreen.path.run import train_path
from bigscreen.path.stage import PointTask
from bigscreen.problems.recipes import CSvc

# A gap that is missed shows a fault, here as in the folds.
pytestmark = pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")

EVERY = np.arange(300)


@pytest.mark.parametrize(
    ("kind", "problem", "labels"),
    [*((kind, "c-svc", n) for kind in KINDS for n in (2, 3)), ("rbf", "nu-svc", 3)],
)
def test_a_fold_is_judged_as_its_model_would_be(kind, problem, labels):
    X, y = rows(labels=labels)
    solve, grid = (nu_path, NUS[:3]) if problem == "nu-svc" else (svm_path, GRID)
    path = solve(X, y, grid, folds=[(EVERY, EVERY)], tol=1e-6, **KINDS[kind])
    for k in range(len(grid)):
        # Both are the same problem, but not to the last digit the same point.
        found = np.mean(path.model(k).predict(X) == y)
        assert path.scores[0, k] == pytest.approx(found, abs=1.01 / len(y))


@pytest.mark.parametrize("problem", ["c-svc", "svr"])
def test_rows_without_weight_are_as_if_they_were_not_there(problem):
    X, y = rows()
    y = number(X) if problem == "svr" else y
    weights = np.random.default_rng(3).integers(0, 3, 300).astype(float)
    there = np.flatnonzero(weights)
    fitted, held = EVERY[EVERY % 3 > 0], EVERY[EVERY % 3 == 0]
    how = {"problem": problem, "kernel": "rbf", "gamma": 0.5}
    path = svm_path(X, y, GRID, sample_weight=weights, folds=[(fitted, held)], **how)
    split = [np.flatnonzero(np.isin(there, part)) for part in (fitted, held)]
    other = svm_path(X[there], y[there], GRID, sample_weight=weights[there], folds=[split], **how)
    assert np.array_equal(path.scores, other.scores)
    for k in (0, len(GRID) - 1):
        one, two = path.model(k), other.model(k)
        assert np.array_equal(one.support, there[two.support])
        assert np.array_equal(one.scores(X), two.scores(X))
    # Numbers are the columns of a matrix of entries.
    entries = Rbf(0.5).block(X, Operand(X, EVERY), dtype=np.float64)
    given = svm_path(entries, y, GRID, sample_weight=weights, problem=problem, kernel="precomputed")
    np.testing.assert_allclose(given.model(2).scores(entries), path.model(2).scores(X), atol=0.02)


def test_the_estimator_takes_folds_by_the_rows_of_X():
    X, y = rows()
    weights = (EVERY >= 40).astype(float)
    split = (EVERY[EVERY % 2 == 0], EVERY[EVERY % 2 == 1])
    machine = SVCPathCV(GRID, cv=[split], kernel="rbf", gamma=0.5).fit(X, y, weights)
    path = svm_path(X, y, GRID, sample_weight=weights, folds=[split], kernel="rbf", gamma=0.5)
    assert np.array_equal(machine.scores_, path.scores)
    assert np.array_equal(machine.path_.model(0).support, path.model(0).support)
    assert machine.path_.model(0).support.min() >= 40


def test_bad_folds_and_grids_are_one_sentence():
    X, y = rows()
    mask = EVERY % 2 == 0
    light = (EVERY < 200).astype(float)
    for call, words in [
        (lambda: svm_path(X, y, GRID, folds=[(mask, ~mask)]), "fold 1 must be two lists of row"),
        (lambda: svm_path(X, y, GRID, folds=[(EVERY, [0.5])]), "row numbers from 0 to 299"),
        (lambda: svm_path(X, y, GRID, folds=[(EVERY, [-1])]), "row numbers from 0"),
        (lambda: svm_path(X, y, GRID, folds=[(EVERY, EVERY, EVERY)]), "two lists"),
        (lambda: svm_path(X, y, GRID, folds=[(EVERY, [])]), "holds out no row"),
        (lambda: svm_path(X, y, GRID, folds=KFold(3)), "folds must be a number, or a list"),
        (lambda: svm_path(X, y, GRID, folds=3.0), "folds must be a number, or a list"),
        (lambda: svm_path(X, y, GRID, folds=[(EVERY[:200], EVERY[200:])], sample_weight=light),
         "no row with a weight"),
        (lambda: nu_path(X, y, NUS, problem="one-class", folds=[(EVERY, np.flatnonzero(y))]),
         "holds out rows of one label"),
        (lambda: svm_path(X, y, GRID, rules="dvi"), r"such as \('dvi',\)"),
        (lambda: svm_path(X, y, GRID, rules=("dvi", "dvi")), "named twice"),
        (lambda: svm_path(X, y, [1e-200, 1.0]), "lie from 1e-30"),
        (lambda: SVCPathCV(GRID, cv=None).fit(X, y), "not None"),
        (lambda: SVCPathCV(0).fit(X, y), "Cs must be"),
        (lambda: SVCPathCV("many").fit(X, y), "Cs must be"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=words) as error:
            call()
        assert "\n" not in str(error.value)


def test_folds_may_come_from_a_generator(tmp_path):
    X, y = rows()
    splits = KFold(3, shuffle=True, random_state=0)
    one = svm_path(X, y, GRID, folds=splits.split(X), work=tmp_path)
    assert np.array_equal(one.scores, svm_path(X, y, GRID, folds=list(splits.split(X))).scores)


# -- time that runs out ----------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [*KINDS, "columns"])
def test_what_time_cuts_short_is_said_and_solved_by_a_later_run(kind, tmp_path):
    X, y = rows(200)
    data = MemoryDataset(X, y, [0, 1])
    brief = options(tmp_path, kind=kind)
    brief = type(brief)(
        type(brief.fit)(**{**vars(brief.fit), "time_budget": 1e-9}), GRID, 2, brief.rules
    )
    with Inline(1) as fleet:
        with pytest.warns(ConvergenceWarning, match="those of the folds among them"):
            path = train_path(data, brief, fleet)
        assert "missed the relative gap" in path.missed
        later = train_path(data, options(tmp_path, True, kind=kind), fleet)
        whole = train_path(data, options(None, kind=kind), fleet)
    assert later.missed is None and later.record["scores"] == whole.record["scores"]
    for k in range(len(GRID)):
        assert np.array_equal(later.array(f"coef-{k}"), whole.array(f"coef-{k}"))


def test_a_gap_that_is_no_number_is_missed():
    X, y = rows()
    path = svm_path(X, y, GRID)
    path.record["points"][2][0]["relative_gap"] = np.nan
    assert path.missed.startswith("1 of 6 points missed")


def test_a_path_goes_on_with_other_memory(tmp_path):
    X, y = rows()
    data = MemoryDataset(X, y, [0, 1])

    def stop(event):
        if event["event"] == "point" and event["done"] == 8:
            raise KeyboardInterrupt

    with Inline(1) as fleet:
        with pytest.raises(KeyboardInterrupt):
            train_path(data, options(tmp_path, kind="rbf"), fleet, stop)
        resumed = options(tmp_path, True, kind="rbf")
        scant = type(resumed.fit)(**{**vars(resumed.fit), "memory": SCANT})
        path = train_path(data, type(resumed)(scant, GRID, 2, resumed.rules), fleet)
    assert path.record["provenance"]["solver"] == "block" and path.missed is None


def test_a_matrix_of_other_entries_does_not_take_over_their_scores():
    X, y = rows()
    design = Design(MemoryDataset(X, y, [0, 1]), Rbf(0.5))
    narrow, wide = GramStage(design, budget=8 * 300**2), GramStage(design)
    dual = CSvc(1.0, 1).dual(y, np.ones(300))
    start, free = np.zeros(300), np.full(300, 2, np.int8)
    solved = narrow.solve(PointTask(dual, start, free, 1e-3))
    wide.recall(narrow.memory())
    again = wide.solve(PointTask(dual, solved.alpha, free, 1e-3))
    entries = Rbf(0.5).block(X, Operand(X, EVERY), dtype=np.float64)
    truth = entries @ (dual.sign * again.alpha)
    assert np.all(np.abs(again.scores.values - truth) <= again.scores.slack + 1e-13)
    assert np.max(again.scores.slack) < 1e-3 * np.max(solved.scores.slack)


# -- problems and kernels out of the common ----------------------------------------------------
def test_folds_record_what_rules_find_together():
    X, y = rows()
    path = svm_path(X, y, GRID, folds=2)
    assert set(path.points[3]["screened"]) == {"dvi", "gap", "all"}
    assert all(set(part["screened"]) <= {"all"} for fold in path.record["folds"] for [part] in fold)


def test_a_kernel_that_is_not_positive_is_screened_by_no_rule():
    X, y = rows()
    path = svm_path(X, y, GRID, kernel="sigmoid", gamma=0.5, coef0=-1.0)
    assert path.record["rules"] == [] and not any(part["screened"] for part in path.points)
    assert all(part["counts"]["screened"] == 0 for part in path.points)
    assert all(part["gap"] is None and part["violation"] <= 1e-3 for part in path.points)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_that_take_turns_on_one_stage(kind):
    """At small C all alpha are at their bound: equal for every label against the rest."""
    X, y = rows(labels=3)
    path = svm_path(X, y, np.geomspace(1e-3, 1.0, 8), folds=2, **KINDS[kind])
    assert path.missed is None


@pytest.mark.parametrize("intercept", ["penalized", True])
def test_equal_targets_have_a_path(intercept):
    X, _ = rows(60)
    path = svm_path(X, np.ones(60), [0.1, 1.0, 10.0], problem="lad", fit_intercept=intercept)
    assert path.missed is None
    np.testing.assert_allclose(path.model(2).predict(X), 1.0, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_grid_of_one_value_and_a_row_of_each_label(kind):
    X, y = rows()
    path = svm_path(X, y, [1.0], folds=2, **KINDS[kind])
    assert path.best == 0 and path.points[0]["screened"] == {}
    pair = [int(np.flatnonzero(y == code)[0]) for code in (0, 1)]
    how = {**KINDS[kind], **({"n_components": 2} if kind == "nystrom" else {})}
    path = svm_path(X[pair], y[pair], [0.01, 1.0, 100.0], **how)
    assert path.missed is None and path.model(2).predict(X[pair]).tolist() == [0, 1]


@pytest.mark.parametrize("problem", ["svr", "lad"])
def test_targets_that_no_fold_can_be_judged_by_are_refused(problem):
    X, _ = rows(n=60)
    y = 1e160 * X[:, 0].astype(float)
    with pytest.raises(InputError, match="fold 1 holds out targets of up to .*divide the targets"):
        svm_path(X, y, GRID, problem=problem, folds=3)
