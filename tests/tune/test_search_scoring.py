"""What the candidates of a search are judged by: names, scikit-learn's scorers, and the default."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from bigscreen import SVCCV, InputError, MemoryDataset
from bigscreen.options.metrics import METRICS
from bigscreen.path.scoring import score_held_out
from bigscreen.tune.metric import default_metric, find_scoring


def data(labels=("no", "yes"), rows=(80, 20)):
    codes = np.repeat(np.arange(len(labels)), rows)
    X = np.random.default_rng(0).normal(size=(len(codes), 2))
    return MemoryDataset(X, codes, list(labels))


TARGETS = MemoryDataset(np.zeros((4, 1)), [0.5, 1.0, 2.0, 4.0], None)


def judged(name, rows, y, scores, weights=None):
    scoring = find_scoring(name, rows, "svr" if rows.regression else "c-svc")[1]
    return score_held_out(scoring, y, scores, np.ones(len(y)) if weights is None else weights)


@pytest.mark.parametrize("labels", [("no", "yes"), (-1, 1), (3, 7, 9), ("a", "b", "c")])
def test_every_metric_is_scikit_learns(labels):
    rng, k = np.random.default_rng(1), len(labels)
    rows = data(labels, (50,) * k)
    y, weights = rng.integers(0, k, 200), rng.integers(0, 4, 200).astype(float)
    scores = np.round(rng.normal(size=(200, 1 if k == 2 else k)) + (y == 1)[:, None], 1)
    guess = (scores[:, 0] > 0).astype(int) if k == 2 else np.argmax(scores, axis=1)
    expected = {
        "accuracy": metrics.accuracy_score(y, guess, sample_weight=weights),
        "balanced-accuracy": metrics.balanced_accuracy_score(y, guess, sample_weight=weights),
        "f1": metrics.f1_score(
            y, guess, sample_weight=weights, average="binary" if k == 2 else "macro"
        ),
    }
    if k == 2:
        own = y, scores[:, 0]
        expected["auc"] = metrics.roc_auc_score(*own, sample_weight=weights)
        expected["average-precision"] = metrics.average_precision_score(*own, sample_weight=weights)
    for name, number in expected.items():
        assert judged(name, rows, y, scores, weights) == pytest.approx(number, rel=1e-12), name
    left = {name for name, own in METRICS.items() if not own.targets} - set(expected)
    assert left == (set() if k == 2 else {"auc", "average-precision"})
    for name in left:
        with pytest.raises(InputError, match="of two labels"):
            find_scoring(name, rows, "c-svc")


def test_metrics_of_targets():
    y, scores = np.array([1.0, 2.0, 4.0]), np.array([[1.5], [2.0], [3.0]])
    assert judged("mae", TARGETS, y, scores) == pytest.approx(-0.5)
    assert judged("r2", TARGETS, y, scores) == pytest.approx(metrics.r2_score(y, scores[:, 0]))


@pytest.mark.parametrize(
    ("asked", "rows", "words"),
    [
        ("log-loss", data(), "folds of a search have scores alone"),
        ("f1", TARGETS, "these rows have targets"),
        ("mae", data(), "these rows have labels"),
        ("best", data(), "no metric 'best'"),
        ("neg_brier_score", data(), "cannot judge held-out rows"),
        (metrics.make_scorer(metrics.log_loss, response_method="predict_proba"), data(), "cannot"),
    ],
)
def test_what_cannot_judge_is_refused(asked, rows, words):
    with pytest.raises(InputError, match=words):
        find_scoring(asked, rows, "c-svc")


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (data(rows=(80, 20)), "accuracy"),
        (data(rows=(81, 19)), "balanced-accuracy"),
        (data(range(10), (10,) * 10), "accuracy"),
        (data(range(3), (48, 45, 7)), "balanced-accuracy"),
        (TARGETS, "r2"),
    ],
)
def test_the_default_suits_rare_labels(rows, found):
    name, why = default_metric(rows)
    assert name == found and ("--metric accuracy" in why) == (name == "balanced-accuracy")


def test_an_estimator_takes_any_scorer():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(300, 2))
    y = np.where(X[:, 0] + 0.8 * rng.normal(size=300) > 0.8, "rare", "often")
    folds = [(np.arange(100, 300), np.arange(100)), (np.arange(200), np.arange(200, 300))]
    scorer = metrics.make_scorer(metrics.fbeta_score, beta=2, pos_label="rare")
    own = {"gammas": [0.5], "Cs": [0.1, 10.0], "cv": folds, "tol": 1e-5}
    own["elimination"] = "none"
    for scoring in (scorer, "balanced_accuracy", "roc_auc"):
        found = SVCCV(scoring=scoring, **own).fit(X, y)
        for f, (fitted, held) in enumerate(folds):
            one = SVCCV(**{**own, "Cs": [found.best_params_["C"]], "cv": 2})
            one.fit(X[fitted], y[fitted])
            again = metrics.get_scorer(scoring)(one, X[held], y[held])
            kept = found.cv_results_[f"split{f}_test_score"][found.best_index_]
            assert kept == pytest.approx(again, abs=0.01)
