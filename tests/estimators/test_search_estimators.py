"""Classifiers that choose their parameters by cross-validation, with scikit-learn's interface."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn_checks import EXPECTED_FAILURES

from bigscreen import SVCCV, InputError, MemoryDataset, NuSVCCV, NystroemSVCCV

SMALL = {"cv": 2, "gammas": [0.1, 1.0]}


@pytest.mark.slow
@parametrize_with_checks(
    [
        NystroemSVCCV(Cs=[0.1, 1.0], n_components=20, **SMALL),
        SVCCV(Cs=[0.1, 1.0], **SMALL),  # (`NuSVCCV` is the same but for the name of its grid)
    ],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def rows(n=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, np.where(X[:, 0] ** 2 + X[:, 1] > 0.5, "in", "out")


def test_a_search_publishes_its_candidates_and_the_best():
    X, y = rows()
    machine = NystroemSVCCV(
        [0.1, 1.0], [0.1, 1.0, 10.0], n_components=[10, 40], cv=3, random_state=1
    )
    machine.fit(X, y)
    table = machine.cv_results_
    assert len(table["params"]) == 12 and table["rank_test_score"][machine.best_index_] == 1
    assert machine.best_params_ == table["params"][machine.best_index_]
    assert machine.best_score_ == table["mean_test_score"].max()
    splits = np.stack([table[f"split{f}_test_score"] for f in range(3)])
    assert np.allclose(splits.mean(axis=0), table["mean_test_score"])
    assert machine.best_estimator_ is machine and machine.relative_gap_ <= machine.tol
    assert machine.score(X, y) > 0.9 and set(machine.predict(X)) == {"in", "out"}
    stored = MemoryDataset(X, (y == "out").astype(int), ["in", "out"])
    same = clone(machine).fit(stored)
    assert np.array_equal(same.coef_, machine.coef_)


def test_weights_are_repetitions_and_rows_without_any_are_left_out():
    X, y = rows(120)
    weights = np.ones(120)
    weights[:20] = 0
    folds = [(np.arange(20, 70), np.arange(70, 120)), (np.arange(70, 120), np.arange(20, 70))]
    kept = [(a - 20, b - 20) for a, b in folds]
    one = SVCCV([0.5], [0.1, 1.0], cv=folds).fit(X, y, weights)
    other = SVCCV([0.5], [0.1, 1.0], cv=kept).fit(X[20:], y[20:])
    assert np.array_equal(one.cv_results_["mean_test_score"], other.cv_results_["mean_test_score"])
    assert np.array_equal(one.support_, other.support_ + 20)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (NystroemSVCCV([1.0], [1.0, 1.0]), "comes twice"),
        (NystroemSVCCV([1.0], n_components=[400]), "has 300 rows"),
        (NystroemSVCCV([1.0], n_components="many"), "whole numbers"),
        (SVCCV([1.0], cv=None), "not None"),
        (SVCCV([1.0], cv=299), "ask for at most"),
        (SVCCV([1.0], kernel="linear"), "over gamma"),
        (NuSVCCV([1.0], nus=[0.2, 1.0]), "nu"),
        (SVCCV([1.0], elimination="lucky"), "elimination must be"),
        (SVCCV([1.0], fit_intercept="maybe"), "fit_intercept must be"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(machine, words):
    X, y = rows()
    with pytest.raises(InputError, match=words):
        machine.fit(X, y)
