"""Machines of folds: what cross-fitting leaves out, and what it leaves alone."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import bigscreen
from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.fleet.inline import Inline
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.train.cross import make_folds
from bigscreen.train.run import train


def rows(n=240, labels=2, seed=0):
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % labels
    X = rng.normal(size=(n, 3)) + 1.2 * np.eye(3)[codes % 3]
    return MemoryDataset(X.astype(np.float32), codes, list(range(labels)))


HOW = {
    "landmarks": {"landmarks": 40, "gamma": 0.3},
    "recomputed": {"landmarks": 40, "gamma": 0.3, "tuning": Tuning(features="recomputed")},
    "float64": {"landmarks": 40, "gamma": 0.3, "tuning": Tuning(certify="float64")},
    "linear": {"kernel": "linear", "solver": "cd"},
    "exact": {"exact": True, "gamma": 0.3, "intercept": True},
    "block": {"exact": True, "gamma": 0.3, "solver": "block"},
    "nu": {"problem": "nu-svc", "nu": 0.4, "exact": True, "gamma": 0.3},
    "squared": {"problem": "squared-svc", "landmarks": 40, "gamma": 0.3},
}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
@pytest.mark.parametrize("labels", [2, 3])
def test_the_main_machine_is_the_same_without_probability(how, labels):
    data = rows(labels=labels)
    strategy = {"strategy": "one"} if labels > 2 and "exact" in how else {}
    options = TrainOptions(**how, **strategy, class_weight="balanced")
    with Inline(2) as fleet:
        plain = train(data, options, fleet)
        model = train(data, replace(options, probability=True), fleet)
    np.testing.assert_array_equal(model.coef, plain.coef)
    np.testing.assert_array_equal(model.intercept, plain.intercept)
    assert plain.calibration is None and model.calibration.folds == 5
    one, other = (dict(m.provenance["certificates"][0]) for m in (plain, model))
    assert one["gap"] == other["gap"] and one["label"] == other["label"]
    X = data.X(0, data.n_rows)
    p, sets = model.predict_proba(X), model.predict_set(X)
    assert p.shape == sets.shape == (240, labels)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert np.mean(np.argmax(p, axis=1) == model.decide(model.scores(X))) > 0.95
    assert np.mean(sets[np.arange(240), data.y(0, 240)]) > 0.8


@pytest.mark.parametrize("how", ["landmarks", "linear", "exact"])
@pytest.mark.parametrize("labels", [2, 3])
def test_a_file_keeps_the_machines_of_the_folds(how, labels, tmp_path):
    data = rows(labels=labels)
    strategy = {"strategy": "one"} if how == "exact" else {}
    with Inline(2) as fleet:
        model = train(data, TrainOptions(**HOW[how], **strategy, probability=True), fleet)
    model.save(tmp_path / "m")
    again = Model.load(tmp_path / "m")
    X = data.X(0, 240)
    for one, other in zip(model.evidence(X), again.evidence(X), strict=True):
        np.testing.assert_array_equal(one, other)
    assert model.evidence(X).held.shape == (240, 5, 1 if labels == 2 else 3)
    np.testing.assert_array_equal(again.predict_set(X, 0.2), model.predict_set(X, 0.2))
    # A row has its set alone, too, in any order and sparse.
    alone = np.concatenate([again.predict_set(X[i : i + 1], 0.2) for i in range(20)])
    np.testing.assert_array_equal(alone, model.predict_set(sparse.csr_array(X), 0.2)[:20])
    np.testing.assert_array_equal(again.predict_set(data, 0.2), model.predict_set(X, 0.2))


def test_scores_of_the_folds_are_those_held_out():
    """The machine of a fold, asked again, gives the scores that were calibrated."""
    data = rows(600)
    with Inline(1) as fleet:
        model = train(data, TrainOptions(landmarks=40, gamma=0.3, probability=True), fleet)
    fold, held = make_folds(data, TrainOptions(probability=True)), model.evidence(data).held
    own = held[np.arange(600), fold][:, 0]
    for f in range(5):
        for code, sign in ((0, -1.0), (1, 1.0)):
            known = np.sort(sign * own[(fold == f) & (data.y(0, 600) == code)])
            np.testing.assert_allclose(model.calibration.margins[f][code], known, atol=1e-4)


def test_a_collapsed_machine_keeps_the_coverage_of_its_sets():
    """Scores are nearly all -1: among them ranks of another machine's scores mean nothing."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 5))
    p = 1 / (1 + np.exp(2.3 - 0.7 * (X[:, 0] + np.sin(2 * X[:, 1]))))
    y = (rng.random(5000) < p).astype(int)
    machine = bigscreen.NystroemSVC(n_components=100, gamma=0.1, probability=True)
    machine.fit(X[:2500], y[:2500])
    new, truth = X[2500:], y[2500:]
    assert np.ptp(np.quantile(machine.decision_function(new), [0.05, 0.9])) < 0.1
    for alpha in (0.1, 0.2):
        sets = machine.predict_set(new, alpha)
        assert abs(np.mean(sets[np.arange(2500), truth]) - (1 - alpha)) < 0.03
    assert abs(machine.predict_proba(new)[:, 1].mean() - truth.mean()) < 0.02
    for recall in (0.9, 0.5):
        found = machine.model_.thresholded(f"recall:{recall}").predict(new)
        assert abs(np.mean(found[truth == 1]) - recall) < 0.08


def test_a_fold_does_not_see_its_rows():
    """Labels that are noise: a machine that had seen a row would know its label."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 20)).astype(np.float32), rng.integers(0, 2, 300)
    data = MemoryDataset(X, y, ["a", "b"])
    with Inline(1) as fleet:
        how = {"exact": True, "gamma": 1.0, "C": 100.0, "probability": True}
        model = train(data, TrainOptions(**how), fleet)
    assert np.mean(model.predict(X) == np.array(["a", "b"])[y]) > 0.99
    p = model.predict_proba(X)[:, 1]
    assert 0.3 < p.min() and p.max() < 0.7


def test_the_same_bits_anywhere_and_again(tmp_path):
    data = rows()
    options = TrainOptions(landmarks=40, gamma=0.3, probability=True)
    found = []
    for threads, work in ((1, None), (3, None), (2, tmp_path / "w"), (1, tmp_path / "w")):
        own = replace(options, work=work, resume=work is not None and work.exists())
        with Inline(threads) as fleet:
            found.append(train(data, own, fleet).calibration)
    for other in found[1:]:
        np.testing.assert_array_equal(other.curves[0].x, found[0].curves[0].x)
        for one, same in zip(other.margins, found[0].margins, strict=True):
            np.testing.assert_array_equal(np.concatenate(one), np.concatenate(same))


def test_a_time_that_is_short_still_ends_with_a_model():
    data = rows(2000)
    how = {"exact": True, "gamma": 3.0, "C": 1e6, "tol": 1e-12, "time_budget": 0.2}
    options = TrainOptions(probability=True, **how)
    with Inline(1) as fleet, pytest.warns(ConvergenceWarning, match="missed"):
        model = train(data, options, fleet)
    assert model.calibration is not None


def test_fits_without_folds_are_refused_in_one_sentence():
    X = np.arange(12, dtype=np.float32).reshape(6, 2)
    data = MemoryDataset(X, [0, 0, 0, 0, 0, 1], ["a", "rare"])
    with pytest.raises(InputError, match="label 'rare' has 1 with a weight"):
        make_folds(data, TrainOptions(probability=True))
    counts = MemoryDataset(X, [0, 0, 0, 0, 1, 1], ["a", "b"])
    assert make_folds(counts, TrainOptions(probability=True)).max() == 1
    with pytest.raises(InputError, match="leave out early, or probability"):
        TrainOptions(exact=True, early=True, probability=True)
    with pytest.raises(InputError, match="probability is for classifiers and regressions"):
        TrainOptions(problem="one-class", probability=True)


def test_the_estimator():
    data = rows(400)
    X, y = data.X(0, 400), np.array(["u", "v"])[data.y(0, 400)]
    machine = bigscreen.NystroemSVC(n_components=30, gamma=0.3, probability=True).fit(X, y)
    p = machine.predict_proba(X)
    np.testing.assert_array_equal(machine.classes_[(p[:, 1] > 0.5).astype(int)], machine.predict(X))
    assert machine.predict_set(X, 0.2).mean(axis=1).min() >= 0
    assert not hasattr(clone(machine).set_params(probability=False), "predict_proba")
