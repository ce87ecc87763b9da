"""Precision-recall and ROC curves agree with scikit-learn's; every row is in one score bin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from bigscreen.evaluate.curves import curve, histogram

SCORES = st.lists(st.integers(-9, 9).map(float), min_size=1, max_size=60)


@given(SCORES, SCORES)
def test_a_curve_of_few_scores_is_exact(positive, negative):
    found = curve(np.sort(positive), np.sort(negative))
    truth = np.r_[np.ones(len(positive)), np.zeros(len(negative))]
    scores = np.r_[positive, negative]
    false, true, thresholds = metrics.roc_curve(truth, scores, drop_intermediate=False)
    assert found["threshold"][1:] == thresholds[1:].tolist()
    np.testing.assert_allclose(found["recall"], true)
    np.testing.assert_allclose(found["false_positive_rate"], false)
    precision, recall, at = metrics.precision_recall_curve(truth, scores)
    known = dict(zip(at.tolist(), zip(precision, recall, strict=False), strict=False))
    for place, threshold in enumerate(found["threshold"][1:], start=1):
        own = (found["precision"][place], found["recall"][place])
        assert own == pytest.approx(known[threshold])


def test_a_curve_of_many_scores_keeps_both_ends_and_loses_little_area():
    rng = np.random.default_rng(0)
    positive, negative = np.sort(rng.normal(1, 1, 40_000)), np.sort(rng.normal(0, 1, 90_000))
    found = curve(positive, negative)
    assert len(found["threshold"]) <= 202
    assert (found["recall"][0], found["false_positive_rate"][0]) == (0, 0)
    assert (found["recall"][-1], found["false_positive_rate"][-1]) == (1, 1)
    assert np.all(np.diff(found["threshold"]) < 0)
    area = np.trapezoid(found["recall"], found["false_positive_rate"])
    truth = np.r_[np.ones(len(positive)), np.zeros(len(negative))]
    exact = metrics.roc_auc_score(truth, np.r_[positive, negative])
    assert area == pytest.approx(exact, abs=2e-4)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_every_row_is_in_one_bin(spread):
    rng = np.random.default_rng(1)
    positive = np.sort(1 + spread * rng.standard_cauchy(5000))
    negative = np.sort(-1 * spread + spread * rng.standard_cauchy(3000) + (1 - spread))
    found = histogram(positive, negative)
    edges = np.array(found["edges"])
    assert len(edges) == 61 and np.all(np.diff(edges) > 0)
    assert (sum(found["positive"]), sum(found["negative"])) == (5000, 3000)
    middle = slice(1, -1)
    for name, group in (("positive", positive), ("negative", negative)):
        assert found[name][middle] == np.histogram(group, edges)[0][middle].tolist()
