"""Probabilities, label sets and thresholds: agreement with scikit-learn, coverage, rules."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn import metrics
from sklearn.isotonic import IsotonicRegression

from bigscreen.data.memory import MemoryDataset
from bigscreen.data.preparation import Preparation
from bigscreen.errors import InputError
from bigscreen.evaluate.evaluate import evaluate
from bigscreen.kernels.standard import make_kernel
from bigscreen.model.calibration import (
    Calibration,
    Curve,
    Evidence,
    fit_sigmoid,
    label_margins,
)
from bigscreen.model.fold_machines import FoldMachines
from bigscreen.model.model import Model


def two_labels(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores, and labels that are 1 with the probability expit(2 s - .5)."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=n)
    return scores, (rng.random(n) < expit(2 * scores - 0.5)).astype(int)


FOLDS = 5


def learnt(scores, codes, weights=None, class_weight=(1.0, 1.0), strategy="rest"):
    scores = scores.reshape(len(codes), -1)
    weights = np.ones(len(codes)) if weights is None else weights
    fold = np.random.default_rng(9).permutation(len(codes)) % FOLDS
    given_ = scores, codes, fold, weights, np.asarray(class_weight, float)
    return Calibration.learn(*given_, strategy)


def evidence(scores: np.ndarray, seed: int = 5) -> Evidence:
    """Evidence of rows for which all machines have the same scores, (rows, k)."""
    held = np.repeat(scores[:, None], FOLDS, axis=1)
    return Evidence(scores, held, np.random.default_rng(seed).random(len(scores)))


def model_of(calibration: Calibration, labels: list) -> Model:
    """A linear model whose score of a row is its only feature."""
    k = 1 if len(labels) == 2 else len(labels)
    return Model(
        kernel=make_kernel("linear", 1.0, 3, 0.0),
        landmarks=None,
        coef=np.eye(k),
        intercept=np.zeros(k),
        labels=labels,
        preparation=Preparation.none(),
        calibration=calibration,
        fold_machines=FoldMachines(np.stack([np.eye(k)] * FOLDS), np.zeros((FOLDS, k))),
    )


@pytest.mark.parametrize("n", [200, 20_000])
@pytest.mark.parametrize("class_weight", [(1.0, 1.0), (1.0, 5.0)])
def test_probabilities_rise_and_agree_with_the_decision(n, class_weight):
    scores, codes = two_labels(n)
    known = learnt(scores, codes, class_weight=class_weight)
    at = np.linspace(-6, 6, 2001)
    p = known.probabilities(evidence(at[:, None]))
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert np.all(np.diff(p[:, 1]) >= 0) and 0 < p.min()
    even = class_weight[0] / sum(class_weight)
    np.testing.assert_array_equal(p[:, 1] > even, at > 0)


def test_many_rows_get_isotonic_regression():
    scores, codes = two_labels(20_000)
    curve = Curve.fit(scores, codes == 1, np.ones(len(codes)), None)
    peer = IsotonicRegression(out_of_bounds="clip").fit(scores, codes)
    inner = np.abs(scores) < 2
    np.testing.assert_allclose(curve(scores)[inner], peer.predict(scores)[inner], atol=0.06)
    assert metrics.log_loss(codes, curve(scores)) < metrics.log_loss(codes, expit(2 * scores))


def test_an_integer_weight_equals_repeated_rows():
    scores, codes = two_labels(300)
    times = np.random.default_rng(1).integers(0, 4, 300)
    again = np.repeat(np.arange(300), times)
    a = fit_sigmoid(scores[times > 0], codes[times > 0] == 1, times[times > 0].astype(float))
    b = fit_sigmoid(scores[again], codes[again] == 1)
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_scores_worse_than_chance_get_the_class_share():
    scores, codes = two_labels(400)
    p = learnt(-scores, codes).probabilities(evidence(np.array([[-1.0], [-3.0]])))[:, 1]
    np.testing.assert_allclose(p, np.mean(codes), atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    alpha=st.floats(0.02, 0.5),
    labels=st.integers(2, 4),
    weighted=st.booleans(),
)
def test_sets_cover_each_label(seed, alpha, labels, weighted):
    rng = np.random.default_rng(seed)
    n = 3000

    def draw():
        codes = rng.choice(labels, n, p=np.arange(1, labels + 1) / np.arange(1, labels + 1).sum())
        scores = rng.normal(size=(n, labels)) + 2.0 * np.eye(labels)[codes]
        return (scores if labels > 2 else scores[:, 1:] - scores[:, :1]), codes

    scores, codes = draw()
    weights = rng.integers(1, 3, n).astype(float) if weighted else None
    known = learnt(scores, codes, weights, np.ones(labels))
    fresh, truth = draw()
    sets = known.label_sets(evidence(fresh), alpha)
    for c in range(labels):
        own = truth == c
        room = 5 * np.sqrt(0.25 / own.sum() + 0.25 / (codes == c).sum())
        assert abs(sets[own, c].mean() - (1 - alpha)) < room
    margins = label_margins(scores)
    if labels > 2:
        assert np.all(np.sum(margins > 0, axis=1) <= 1)


def test_thinned_margins_keep_the_coverage():
    scores, codes = two_labels(60_000)
    known = learnt(scores, codes)
    kept = [sum(len(each[c]) for each in known.margins) for c in range(2)]
    assert max(kept) == 10_000 and known.rows.sum() == 60_000
    fresh, truth = two_labels(60_000, 1)
    for c in range(2):
        assert (
            abs(known.label_sets(evidence(fresh[:, None]), 0.1)[truth == c, c].mean() - 0.9) < 0.01
        )


def test_thresholds_satisfy_their_rules():
    scores, codes = two_labels(4000)
    known = learnt(scores, codes)
    above = {rule: scores > known.threshold(rule) for rule in ("f1", "precision:.9", "recall:.95")}
    precision, recall, _at = metrics.precision_recall_curve(codes, scores)
    best = np.max(2 * precision * recall / np.maximum(precision + recall, 1e-9))
    assert metrics.f1_score(codes, above["f1"]) == pytest.approx(best, abs=1e-9)
    assert metrics.precision_score(codes, above["precision:.9"]) >= 0.9
    most = np.max(recall[precision >= 0.9])
    assert metrics.recall_score(codes, above["precision:.9"]) == pytest.approx(most, abs=1e-3)
    assert metrics.recall_score(codes, above["recall:.95"]) >= 0.95
    assert np.mean(scores[codes == 1] > known.threshold("recall:.95") + 1e-2) < 0.955

    def cost(threshold):
        return 2 * np.sum(scores[codes == 0] > threshold) + 7 * np.sum(
            scores[codes == 1] <= threshold
        )

    assert cost(known.threshold("cost:2:7")) == min(map(cost, np.unique(scores)))
    flat = learnt(np.zeros(40), np.arange(40) % 2)
    with pytest.raises(InputError, match="no threshold has a precision of 0.9; the highest is 0.5"):
        flat.threshold("precision:.9")


@pytest.mark.parametrize(
    "rule", ["", "f1:2", "recall", "recall:0", "recall:x", "cost:1", "cost:0:1"]
)
def test_a_bad_rule_is_refused_in_one_sentence(rule):
    with pytest.raises(InputError, match="a threshold is one of f1"):
        learnt(*two_labels(50)).threshold(rule)


def test_a_model_file_keeps_the_calibration(tmp_path):
    scores, codes = two_labels(500)
    model = model_of(learnt(scores, codes), ["no", "yes"]).thresholded("recall:.9")
    X = scores[:50, None].astype(np.float32)
    model.save(tmp_path / "m")
    again = Model.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.predict_set(X, 0.2), model.predict_set(X, 0.2))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.threshold == model.threshold < 0
    p, rare = again.predict_proba(X), again.predict_proba(X, prior={"yes": 0.01})
    share = np.mean(codes)
    odds = p[:, 1] / p[:, 0] * (0.01 / share) / (0.99 / (1 - share))
    np.testing.assert_allclose(rare[:, 1] / rare[:, 0], odds, rtol=1e-9)
    for prior in ({"maybe": 1.0}, {"yes": 2.0}, {"yes": 0.0, "no": 1.0}, {"yes": "x"}):
        with pytest.raises(InputError, match="the prior"):
            again.predict_proba(X, prior=prior)
    with pytest.raises(InputError, match="alpha must lie strictly between 0 and 1"):
        again.predict_set(X, 1)


def test_an_older_file_gives_the_same_probabilities(tmp_path):
    """Schema 4 had one list of margins a label, and the published machine's scores."""
    scores, codes = two_labels(500)
    model = model_of(learnt(scores, codes), ["no", "yes"])
    known = model.calibration
    pooled = [np.sort(np.concatenate(each)) for each in zip(*known.margins, strict=True)]
    rows = known.rows.sum(axis=0)
    record, arrays = known.to_arrays()
    record |= {"rows": rows.tolist(), "kept": [len(each) for each in pooled]}
    arrays["calibration_margins"] = np.concatenate(pooled)
    old = Calibration.from_arrays(record, arrays.__getitem__)
    replace(model, calibration=old, fold_machines=None).save(tmp_path / "m")
    back = Model.load(tmp_path / "m")
    assert back.fold_machines is None and back.calibration.machines == 1
    X = np.linspace(-3, 3, 40, dtype=np.float32)[:, None]
    np.testing.assert_allclose(back.predict_proba(X), model.predict_proba(X), rtol=1e-12)
    margins = label_margins(X.astype(float))
    below = [np.searchsorted(pooled[c], margins[:, c], side="right") for c in range(2)]
    expected = [(1 + below[c]) / (rows[c] + 1) > 0.2 for c in range(2)]
    np.testing.assert_array_equal(back.predict_set(X, 0.2), np.stack(expected, axis=1))


def test_equal_scores_get_equal_label_sets():
    codes = np.arange(400) % 2
    known = learnt(np.zeros(400), codes)
    assert known.label_sets(evidence(np.zeros((50, 1))), 0.2).all()


def test_a_model_without_calibration_says_how_to_get_one():
    plain = model_of(learnt(*two_labels(50)), ["no", "yes"])
    plain.calibration = plain.fold_machines = None
    for ask in (plain.predict_proba, plain.predict_set):
        with pytest.raises(InputError, match="fitted with `--probability`"):
            ask(np.zeros((1, 1), np.float32))
    with pytest.raises(InputError, match="fitted with `--probability`"):
        plain.thresholded("f1")


def test_evaluate_measures_the_calibration():
    scores, codes = two_labels(3000)
    model = model_of(learnt(scores, codes), [0, 1])
    fresh, truth = two_labels(3000, 1)
    found = evaluate(model, MemoryDataset(fresh[:, None], truth, [0, 1]))
    p = model.predict_proba(fresh[:, None].astype(np.float32))
    assert found["log_loss"] == pytest.approx(metrics.log_loss(truth, p), abs=1e-9)
    assert found["brier"] == pytest.approx(metrics.brier_score_loss(truth, p[:, 1]), abs=1e-9)
    assert found["calibration_error"] < 0.04
    parts = found["reliability"]
    assert sum(part["rows"] for part in parts) == 3000
    assert all(part["from"] <= part["probability"] <= part["from"] + 0.1 + 1e-9 for part in parts)
    top = p[:, 1] >= 0.9
    assert parts[-1]["share"] == pytest.approx(truth[top].mean(), abs=1e-12)
    assert abs(found["sets"]["coverage"] - 0.9) < 0.03 and 1 <= found["sets"]["size"] <= 2
