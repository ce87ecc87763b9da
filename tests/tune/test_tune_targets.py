"""The search of a regression scores by R2, as scikit-learn scores the same machines."""

import json

import numpy as np
import pytest
from cli_world import bigscreen, succeed
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVR
from test_tune import small_room

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.fleet.inline import Inline
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.path.scoring import best_of
from bigscreen.tune.options import TuneOptions
from bigscreen.tune.search import tune

GAMMAS, CS = [0.02, 0.2, 2.0], [0.03, 0.1, 1.0, 3.0, 10.0]


def rows(n=240, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    return X, 3 * np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=n)


def searched(X, y, elimination="none", landmarks=None, threads=1, weights=None, folds=3, **own):
    fit = {"problem": "svr", "intercept": "true", "exact": landmarks is None, "tol": 1e-7}
    options = TuneOptions(TrainOptions(**{**fit, **own}), GAMMAS, CS, landmarks, folds, elimination)
    with Inline(threads) as fleet:
        return tune(MemoryDataset(X, y, None, weights), options, fleet)


def scores(model):
    record = model.provenance["search"]
    assert record["scoring"] == "R2"
    return {(p["gamma"], p["C"]): p.get("scores") for p in record["candidates"]}


def splits(n, folds=3):
    fold = np.random.default_rng(1).permutation(n) % folds
    return [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in range(folds)]


def test_scores_are_scikit_learns():
    X, y = rows()
    parts = splits(len(X))
    model = searched(X, y, folds=parts, epsilon=0.2)
    found = scores(model)
    for (gamma, C), own in found.items():
        peer = SVR(gamma=gamma, C=C, epsilon=0.2, tol=1e-8)
        assert own == pytest.approx(cross_val_score(peer, X, y, cv=parts).tolist(), abs=1e-3)
    best = model.provenance["search"]["best"]
    assert (best["gamma"], best["C"]) == max(found, key=lambda key: np.mean(found[key]))
    peer = SVR(gamma=best["gamma"], C=best["C"], epsilon=0.2, tol=1e-8).fit(X, y)
    np.testing.assert_allclose(model.predict(X), peer.predict(X), atol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("intercept", ["true", "penalized"])
def test_halving_judges_parts_of_the_rows_alike(intercept):
    X, y = rows(1600)
    weights = np.random.default_rng(2).integers(1, 3, 1600).astype(float)
    how = {"landmarks": [60], "weights": weights, "intercept": intercept, "tol": 1e-4}
    whole = searched(X, y, **how).provenance["search"]["best"]
    halved = searched(X, y, "halving", **how)
    record = halved.provenance["search"]
    assert record["stages"][0]["rows"] < 1600 == record["stages"][-1]["rows"]
    assert record["best"]["score"] == pytest.approx(whole["score"], abs=2e-3)
    assert record["stages"][0]["best"] == pytest.approx(whole["score"], abs=0.1)
    again = searched(X, y, "halving", threads=2, **how)
    assert scores(again) == scores(halved) and np.array_equal(again.coef, halved.coef)


@pytest.mark.slow
def test_features_that_do_not_fit_in_memory():
    X, y = rows(1500)
    how = {"landmarks": [20], "intercept": "penalized", "tol": 1e-5}
    held = scores(searched(X, y, **how))
    room = small_room(1500, 1500 * 4 * 20 - 1)
    found = scores(searched(X, y, **room, **how))
    for key, own in held.items():
        assert own == pytest.approx(found[key], abs=5e-3)


def test_targets_are_searched_from_the_command_line(tmp_path):
    X, y = rows(400)
    table = np.column_stack([X, y])
    np.savetxt(tmp_path / "t.csv", table, delimiter=",", header="a,b,c,target", comments="")
    store = tmp_path / "s"
    succeed("ingest", tmp_path / "t.csv", store, "--regression", "--label", "target")
    grid = ["--gamma", ".2,2", "--C", "1,10", "--landmarks", "50", "--folds", "3", "--threads", "1"]
    out, record = tmp_path / "m.bsm", tmp_path / "m.json"
    text = succeed("tune", store, out, *grid, "--epsilon", ".2", "--json", record)
    assert "R2" in text and "4 of 4 judged by 3 folds" in text
    assert json.loads(record.read_text())["search"]["best"]["score"] > 0.9
    model = Model.load(out)
    known = model.provenance["parameters"]
    assert known["problem"] == "svr" and known["epsilon"] == 0.2
    nu = bigscreen("tune", store, tmp_path / "n", "--nu", ".1,.2")
    assert nu.exit_code == 2 and "--nu is of labels" in nu.stderr
    weights = bigscreen("tune", store, tmp_path / "n", "--class-weight", "balanced")
    assert weights.exit_code == 2 and "--class-weight has no meaning" in weights.stderr


def test_scores_that_are_no_numbers_make_nothing_the_best():
    """The squares of these targets overflow float64: R2 would be nan, and argmax would pick it."""
    X, y = rows(60)
    with pytest.raises(InputError, match="squares are beyond float64, so that R2 does not judge"):
        searched(X, 1e160 * y)
    assert best_of([np.nan, 0.2, 0.5, 0.5]) == 2
    assert best_of([np.nan, -np.inf, -1.0]) == 2
    with pytest.raises(InputError, match="no candidate has a finite score"):
        best_of([np.nan, -np.inf])
