"""Conformal intervals of targets: their ends by the definition, and what they cover."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import bigscreen
from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.evaluate.evaluate import evaluate
from bigscreen.fleet.inline import Inline
from bigscreen.model.calibration import Evidence
from bigscreen.model.model import Model
from bigscreen.model.residuals import Residuals
from bigscreen.options.train import TrainOptions
from bigscreen.train.cross import make_folds
from bigscreen.train.run import train


def evidence(held: np.ndarray, seed: int = 5) -> Evidence:
    """Evidence of rows with these predictions, (rows, machines), by the machines of the folds."""
    draw = np.random.default_rng(seed).random(len(held))
    return Evidence(held[:, :1], held[:, :, None], draw)


def learnt(n: int, folds: int, tau: float = 0.5, seed: int = 0):
    """Residuals of n rows predicted as 0, their folds and their targets."""
    rng = np.random.default_rng(seed)
    y, fold = rng.normal(size=n), rng.permutation(n) % folds
    return Residuals.learn(np.zeros(n), y, fold, np.ones(n), tau), fold, y


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.37, 0.6])
def test_ends_are_those_of_the_definitions(tau, alpha):
    known, fold, y = learnt(83, 3, tau)
    held = np.random.default_rng(1).normal(size=(40, 3))
    given = evidence(held)
    split, cross = known.intervals(given, alpha), known.intervals(given, alpha, cross=True)
    out = np.abs(y) if tau == 0.5 else y if tau > 0.5 else -y
    chosen = (given.draw * 3).astype(int)
    for x in range(40):
        own = np.sort(out[fold == chosen[x]])
        rank = math.ceil((len(own) + 1) * (1 - alpha) - 1e-9)
        radius = own[rank - 1] if rank <= len(own) else np.inf
        above, below = np.sort(held[x, fold] + out), np.sort(held[x, fold] - out)
        k = int(84 * alpha)
        ends = {"split": (held[x, chosen[x]] - radius, held[x, chosen[x]] + radius)}
        ends["cross"] = below[k - 1], above[len(y) - k]
        for found, (low, high) in ((split[x], ends["split"]), (cross[x], ends["cross"])):
            np.testing.assert_allclose(found[0], -np.inf if tau > 0.5 else low, atol=1e-11)
            np.testing.assert_allclose(found[1], np.inf if tau < 0.5 else high, atol=1e-11)


def test_coverage_of_few_rows_is_what_the_theory_says():
    """n residuals and alpha give a coverage of ceil((n + 1)(1 - alpha)) / (n + 1), on average."""
    rng, alpha, n, hits = np.random.default_rng(0), 0.25, 9, []
    for _ in range(1500):
        y = rng.exponential(size=2 * n)
        known = Residuals.learn(np.zeros(2 * n), y, np.arange(2 * n) % 2, np.ones(2 * n), 0.5)
        low, high = known.intervals(evidence(np.zeros((1, 2))), alpha)[0]
        hits.append(low <= rng.exponential() <= high)
    assert abs(np.mean(hits) - 0.8) < 0.03


def test_thinned_residuals_widen_intervals_and_hardly():
    rng = np.random.default_rng(0)
    y, fold = rng.normal(size=60_000), np.arange(60_000) % 5
    known = Residuals.learn(np.zeros(60_000), y, fold, np.ones(60_000), 0.5)
    assert [len(each) for each in known.known] == [2000] * 5
    for alpha in (0.001, 0.1, 0.5):
        for f in range(5):
            own = np.sort(np.abs(y[fold == f]))
            exact = own[math.ceil(12_001 * (1 - alpha)) - 1]
            assert exact <= known._radius(f, alpha) <= own[int(12_001 * (1 - alpha)) + 7]


def test_weights_count_as_rows():
    """A weight of 3 moves the quantile as three rows do; weight 0 takes a row out."""
    rng = np.random.default_rng(0)
    y = rng.exponential(size=400)
    weights = np.where(y > 1, 3.0, 1.0)
    weights[::10] = 0
    found = Residuals.learn(np.zeros(400), y, np.zeros(400, int), weights, 0.5)
    assert found.rows.tolist() == [360]
    repeated = np.sort(np.repeat(y, weights.astype(int)))
    place = int(0.9 * len(repeated))
    assert repeated[place - 8] <= found._radius(0, 0.1) <= repeated[place + 8]


def test_too_few_rows_are_said():
    known, _, _ = learnt(40, 5)
    assert "need 9 rows held out and a fold holds 8" in known.explain_infinite(0.1)
    assert known.explain_infinite(0.1, cross=True) is None and known.explain_infinite(0.2) is None
    assert np.isinf(known.intervals(evidence(np.zeros((3, 5))), 0.1)).all()
    assert np.isfinite(known.intervals(evidence(np.zeros((3, 5))), 0.1, cross=True)).all()


def rows(n=300, seed=0):
    """Rows whose noise grows with the first column."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + (0.1 + 0.4 * np.abs(X[:, 0])) * rng.normal(size=n)
    return X.astype(np.float32), y


HOW = {
    "landmarks": {"landmarks": 30, "gamma": 0.5},
    "linear": {"kernel": "linear", "solver": "cd"},
    "exact": {"exact": True, "gamma": 0.5, "C": 10.0},
    "squared": {"problem": "squared-svr", "landmarks": 30, "gamma": 0.5},
    "quantile": {"problem": "quantile", "tau": 0.9, "landmarks": 30, "gamma": 0.5},
}


@pytest.mark.parametrize("how", HOW)
def test_intervals_of_every_kind_of_machine(how, tmp_path):
    X, y = rows()
    data, options = MemoryDataset(X, y, None), TrainOptions(**{"problem": "svr", **HOW[how]})
    with Inline(2) as fleet:
        plain = train(data, options, fleet)
    with Inline(1) as fleet:
        model = train(data, replace(options, probability=True), fleet)
    np.testing.assert_array_equal(model.coef, plain.coef)
    model.save(tmp_path / "m")
    again = Model.load(tmp_path / "m")
    found = again.predict_interval(X, 0.2)
    np.testing.assert_array_equal(found, model.predict_interval(data, 0.2))
    np.testing.assert_allclose(
        found[:9], again.predict_interval(sparse.csr_array(X[:9]), 0.2), 1e-12
    )
    # The residuals are those of the machines that answer.
    fold, held = make_folds(data, options), model.evidence(X).held[:, :, 0]
    off = y - held[np.arange(len(y)), fold]
    off = off if how == "quantile" else np.abs(off)
    for f in range(5):
        np.testing.assert_allclose(model.residuals.known[f], np.sort(off[fold == f]), atol=1e-4)
    new, truth = rows(2000, seed=1)
    seen = evaluate(again, MemoryDataset(new, truth, None))["intervals"]
    assert seen["alpha"] == pytest.approx(0.1) and abs(seen["coverage"] - 0.9) < 0.05
    assert (seen["width"] is None) == (how == "quantile")
    with pytest.raises(InputError, match="fitted with `--probability`"):
        plain.predict_interval(X)


def test_estimators_predict_intervals():
    X, y = rows()
    machine = bigscreen.SVR(n_components=30, gamma=0.5, probability=True).fit(X, y)
    with pytest.warns(UserWarning, match="need 99 rows held out and a fold holds 60"):
        assert np.isinf(machine.predict_interval(X, 0.01)).all()
    found = machine.predict_interval(X, 0.3)
    inside = np.mean((found[:, 0] <= y) & (y <= found[:, 1]))
    assert found.shape == (300, 2) and abs(inside - 0.7) < 0.15
    import dask.array as da

    lazy = machine.predict_interval(da.from_array(X, chunks=(100, 2)), 0.3, cross=True)
    np.testing.assert_array_equal(lazy.compute(), machine.predict_interval(X, 0.3, cross=True))
    low = bigscreen.QuantileRegressor(n_components=30, quantile=0.1, probability=True).fit(X, y)
    ends = low.predict_interval(X, 0.1)
    assert np.isfinite(ends[:, 0]).all() and np.isposinf(ends[:, 1]).all()
    for alpha in (1.0, np.nan, "0.1", [0.1, 0.2]):
        with pytest.raises(InputError, match="alpha must lie strictly between 0 and 1"):
            machine.predict_interval(X, alpha)
    with pytest.raises(InputError, match="intervals of targets are of a regression"):
        bigscreen.SVR(n_components=30).fit(X, y).predict_interval(X)
    with pytest.raises(InputError, match="no more than one sample has a weight"):
        bigscreen.SVR(probability=True).fit(X[:3], y[:3], [1.0, 0.0, 0.0])
