"""Checks of grids and folds, and how folds are dealt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_pinball_loss, r2_score, roc_auc_score

from bigscreen.data.folds import assign_folds
from bigscreen.errors import InputError
from bigscreen.path.options import checked_grid
from bigscreen.path.scoring import score_held_out
from bigscreen.problems.recipes import check_feasible


@pytest.mark.parametrize(
    ("values", "name", "words"),
    [
        ([1, 0.1], "C", "0.1 comes after 1"),
        ([0.1, 0.1, 1], "C", "0.1 comes twice"),
        ([0.0, 1.0], "C", "value 1 is 0"),
        ([1.0, np.nan], "C", "value 2 is nan"),
        ([1.0, np.inf], "C", "value 2 is inf"),
        ([1e-40, 1.0], "C", "lie from 1e-30 to 1e\\+30"),
        ([], "C", "one number or more"),
        ([[1.0, 2.0]], "C", "list"),
        (["a"], "C", "must be numbers"),
        ([0.5, 1.2], "nu", "value 2 is 1.2"),
        ([-0.1, 0.5], "nu", r"lie in \(0, 1\]"),
    ],
)
def test_grids_that_are_refused(values, name, words):
    with pytest.raises(InputError, match=words):
        checked_grid(values, name)


def test_the_largest_nu_is_named_and_feasible():
    with pytest.raises(InputError, match=r"nu 0.5 is infeasible.*largest feasible nu is 0.4"):
        check_feasible(0.5, 1.0, 4.0, "true", "")
    check_feasible(0.4, 1.0, 4.0, "true", "")
    check_feasible(1.0, 1.0, 4.0, "none", "")
    # Of ten million rows one has the other label: not 0.
    with pytest.raises(InputError, match="largest feasible nu is 2e-07"):
        check_feasible(0.5, 1.0, 1e7 - 1, "true", "")


@given(
    counts=st.lists(st.integers(2, 40), min_size=1, max_size=3),
    folds=st.integers(2, 6),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=50)
def test_folds_have_equal_shares_of_every_label(counts, folds, seed):
    codes = np.repeat(np.arange(len(counts)), counts)
    rng = np.random.default_rng(seed)
    rng.shuffle(codes)
    weights = rng.integers(0, 4, len(codes)).astype(float)
    weights[np.unique(codes, return_index=True)[1]] = 1.0
    kept = np.bincount(codes, weights > 0)
    if kept.min() < folds:
        with pytest.raises(InputError, match="rows with a weight"):
            assign_folds(codes, weights, folds, seed, ["a", "b", "c"])
        return
    fold = assign_folds(codes, weights, folds, seed, ["a", "b", "c"])
    assert np.array_equal(fold, assign_folds(codes, weights, folds, seed, ["a", "b", "c"]))
    for code in range(len(counts)):
        own = fold[codes == code]
        sizes = np.bincount(own, minlength=folds)
        assert sizes.max() - sizes.min() <= 1
        # Dealt heaviest first: no fold gets more than one row's weight beyond another.
        shares = np.bincount(own, weights[codes == code], folds)
        assert shares.min() > 0 and shares.max() - shares.min() <= 2 * weights.max()


def test_folds_that_are_refused():
    codes = np.array([0, 0, 0, 0, 1])
    with pytest.raises(InputError, match="label 'no' has only 1 rows.*one class only"):
        assign_folds(codes, np.ones(5), 2, 0, ["yes", "no"])
    with pytest.raises(InputError, match="at most 4 folds"):
        assign_folds(codes[:4], np.ones(4), 5, 0, ["yes", "no"])
    with pytest.raises(InputError, match="at least 2"):
        assign_folds(codes, np.ones(5), 1, 0, ["yes", "no"])
    with pytest.raises(InputError, match="the data has only 3 rows .* needs one; ask"):
        assign_folds(np.zeros(3, int), np.ones(3), 5, 0, None)


@given(seed=st.integers(0, 999))
@settings(deadline=None, max_examples=20)
def test_scores_of_held_out_rows_are_scikit_learns(seed):
    rng = np.random.default_rng(seed)
    scores, weights = rng.normal(size=30).round(1), rng.integers(0, 4, 30) + 0.5
    codes = rng.integers(0, 2, 30)
    codes[:2] = 0, 1
    y = rng.normal(size=30)
    one = scores[:, None]
    close = pytest.approx
    assert score_held_out("AUC", codes, one, weights) == close(
        roc_auc_score(codes, scores, sample_weight=weights)
    )
    assert score_held_out("R2", y, one, weights) == close(
        r2_score(y, scores, sample_weight=weights)
    )
    assert score_held_out("pinball", y, one, weights, 0.3) == close(
        -mean_pinball_loss(y, scores, sample_weight=weights, alpha=0.3)
    )
    share = np.average((scores > 0) == codes, weights=weights)
    assert score_held_out("accuracy", codes, one, weights) == close(share)
    three = np.stack([scores, -scores, 0 * scores], axis=1)
    share = np.average(np.argmax(three, axis=1) == codes, weights=weights)
    assert score_held_out("accuracy", codes, three, weights) == close(share)
