"""Leave-one-out scores are those of a fit without the row, within their bounds."""

import json

import numpy as np
import pytest
from cli_world import bigscreen as command
from cli_world import succeed
from sklearn import svm

from bigscreen import SVC, SVR, NystroemSVC, ingest
from bigscreen.amend.leave_one_out import LeaveOneOutTuning, leave_one_out
from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.train.run import train


def rows(n=200, labels=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    value = X[:, 0] + X[:, 1] ** 2 + 0.6 * rng.normal(size=n)
    return X, np.digitize(value, [0.8] if labels == 2 else [0.2, 1.2])


def without_each(X, y, **how):
    """The scores (n, k) of LIBSVM's machines that are each fitted without one row."""
    X, scores = X.astype(float), []
    for i in range(len(y)):
        keep = np.arange(len(y)) != i
        machine = svm.SVC(tol=1e-9, **how).fit(X[keep], y[keep])
        scores.append(np.atleast_1d(machine.decision_function(X[i : i + 1])[0]))
    return np.array(scores)


@pytest.mark.parametrize("C", [0.5, 20.0])
def test_scores_are_those_of_refits_within_their_bounds(C):
    X, y = rows(200 if C < 1 else 100)
    found = SVC(C=C, gamma=0.4, tol=1e-2).fit(X, y).leave_one_out(X, y)
    brute = without_each(X, y, C=C, gamma=0.4)
    assert np.all(np.abs(found.scores - brute) <= found.bounds + 1e-6)
    assert found.bounds.max() <= 1e-2 and found.decided.all()
    np.testing.assert_array_equal(found.wrong, (brute[:, 0] > 0) != y)
    assert 0 < found.refitted < len(y) and found.record()["wrong"] == np.count_nonzero(found.wrong)


@pytest.mark.parametrize("offset", [False, "penalized"])
def test_without_a_coupling(offset):
    """Against refits: an appended constant has no place in LIBSVM but in its kernel."""
    X, y = rows(120)
    found = SVC(C=3.0, gamma=0.4, fit_intercept=offset).fit(X, y).leave_one_out(X, y, tol=1e-3)
    for i in range(0, 120, 5):
        keep = np.arange(120) != i
        own = SVC(C=3.0, gamma=0.4, fit_intercept=offset, tol=1e-9).fit(X[keep], y[keep])
        apart = abs(own.decision_function(X[i : i + 1])[0] - found.scores[i, 0])
        assert apart <= found.bounds[i, 0] + 1e-4 and found.bounds[i, 0] <= 1e-3


def test_weights_and_equal_rows():
    X, y = rows(100)
    X, y = np.concatenate([X, X[:20]]), np.concatenate([y, 1 - y[:20]])
    weights = np.random.default_rng(1).uniform(0.2, 3, 120)
    found = SVC(gamma=0.4).fit(X, y, weights).leave_one_out(X, y, weights)
    for i in (0, 7, 50, 101, 119):
        keep = np.arange(120) != i
        own = svm.SVC(gamma=0.4, tol=1e-9).fit(X[keep].astype(float), y[keep], weights[keep])
        apart = abs(own.decision_function(X[i : i + 1].astype(float))[0] - found.scores[i, 0])
        assert apart <= found.bounds[i, 0] + 1e-6


@pytest.mark.parametrize("strategy", ["rest", "one"])
def test_three_labels(strategy):
    X, y = rows(90, labels=3)
    data = MemoryDataset(X, y, ["a", "b", "c"])
    options = TrainOptions(exact=True, gamma=0.4, C=2.0, strategy=strategy, intercept=True)
    with Inline(2) as fleet:
        model = train(data, options, fleet)
        found = leave_one_out(model, data, fleet.each)
    for i in range(0, 90, 6):
        keep = np.arange(90) != i
        with Inline(1) as fleet:
            own = MemoryDataset(X[keep], y[keep], ["a", "b", "c"])
            other = train(own, TrainOptions(**{**vars(options), "tol": 1e-8}), fleet)
        score = other.scores(X[i : i + 1])
        assert np.all(np.abs(score - found.scores[i]) <= found.bounds[i] + 1e-3)
        if found.decided[i]:
            assert (other.decide(score)[0] != y[i]) == found.wrong[i]
    assert np.mean(found.decided) > 0.9


def test_a_solve_that_is_cut_short_says_what_it_knows():
    X, y = rows(100)
    model = SVC(C=20.0, gamma=0.4).fit(X, y).model_
    short = LeaveOneOutTuning(first_violation=0.3, last_violation=0.3)
    found = leave_one_out(model, MemoryDataset(X, y, [0, 1]), tuning=short)
    brute = without_each(X, y, C=20.0, gamma=0.4)
    assert np.all(np.abs(found.scores - brute) <= found.bounds + 1e-6)
    assert found.bounds.max() > 0.1 and not found.decided.all()
    sure, wrong = found.decided, (brute[:, 0] > 0) != y
    np.testing.assert_array_equal(found.wrong[sure], wrong[sure])


def test_the_command(tmp_path):
    X, y = rows()
    np.savetxt(tmp_path / "t.csv", np.column_stack([X, y]), delimiter=",")
    ingest(tmp_path / "t.csv", tmp_path / "s", scale="none", label=-1, header=False)
    fit = ("--exact", "--gamma", "0.4", "--threads", "1")
    succeed("fit", tmp_path / "s", tmp_path / "m.bsm", *fit)
    evaluate = ("evaluate", tmp_path / "m.bsm", tmp_path / "s", "--leave-one-out")
    said = succeed(*evaluate, "--json", tmp_path / "e")
    record = json.loads((tmp_path / "e").read_text())
    assert "predicted wrongly" in said and "(proved)" in said and record["undecided"] == 0
    raw = command("evaluate", tmp_path / "m.bsm", tmp_path / "t.csv", "--leave-one-out")
    assert raw.exit_code == 2 and "give the STORE of its fit in place of" in raw.stderr
    for more in (("--workers", "2"), ("--threshold", "f1")):
        result = command(*evaluate, *more)
        words = f"{more[0]} does not go with --leave-one-out"
        assert result.exit_code == 2 and words in result.stderr


def test_other_labels_or_weights_than_those_of_the_fit_are_refused():
    X, y = rows(60)
    weights = np.linspace(0.5, 2, 60)
    machine = SVC(gamma=0.4).fit(X, y, weights)
    order = np.random.default_rng(0).permutation(60)
    same, moved = (machine.leave_one_out(X[at], y[at], weights[at]) for at in (slice(60), order))
    assert np.all(np.abs(same.scores[order] - moved.scores) <= same.bounds[order] + moved.bounds)
    for other in ((X, y), (X[order], y, weights), (X, np.where(order < 6, 1 - y, y), weights)):
        with pytest.raises(InputError, match="weights or rows have the optimum"):
            machine.leave_one_out(*other)
    with pytest.raises(InputError, match="rows of weight 0 are not among those fitted"):
        machine.leave_one_out(X, y, np.where(order < 6, 0, weights))


def test_rows_in_another_order_have_their_answers_in_that_order():
    """Of rows that are not scaled, whose numbers no fingerprint has: against refits."""
    X, y = rows(60)
    X, order = (
        X * [1.0, 30.0, 500.0] + [1000.0, 0.0, -3.0],
        np.random.default_rng(0).permutation(60),
    )
    gamma = 1e-5
    machine = SVC(C=50.0, gamma=gamma).fit(X, y)
    brute = without_each(X, y, C=50.0, gamma=gamma)
    for at in (slice(60), order):
        found = machine.leave_one_out(X[at], y[at])
        assert np.all(np.abs(found.scores - brute[at]) <= found.bounds + 1e-6)
        np.testing.assert_array_equal(found.wrong, (brute[at, 0] > 0) != y[at])


def test_what_cannot_be_left_out_is_refused(monkeypatch):
    X, y = rows(60)
    machine = SVC(gamma=0.4).fit(X, y)
    with pytest.raises(InputError, match="is not what the model was fitted on"):
        machine.leave_one_out(X[:50], y[:50])
    with pytest.raises(InputError, match="tol, the bound on scores, must be positive"):
        machine.leave_one_out(X, y, tol=0)
    with pytest.raises(InputError, match="balanced class weights are others without a row"):
        SVC(class_weight="balanced").fit(X, y).leave_one_out(X, y)
    assert SVC(class_weight={0: 1, 1: 3}).fit(X, y).leave_one_out(X, y).decided.all()
    with pytest.raises(InputError, match="leave-one-out scores are of an exact machine"):
        NystroemSVC(n_components=20).fit(X, y).leave_one_out(X, y)
    regression = SVR(gamma=0.4).fit(X, X[:, 0]).model_
    with pytest.raises(InputError, match="are of a C-SVC, and the model is of svr"):
        leave_one_out(regression, MemoryDataset(X, X[:, 0].astype(float), None))
    monkeypatch.setattr("bigscreen.amend.leave_one_out.allowed_memory", lambda given: 1000)
    with pytest.raises(InputError, match="holds the kernel matrix of 60 rows"):
        machine.leave_one_out(X, y)
    assert not hasattr(SVR, "leave_one_out")
