"""Threads of one process and two worker processes fit bit for bit the same machine."""

import numpy as np
import pytest

from bigscreen.data.memory import MemoryDataset
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.options.train import TrainOptions
from bigscreen.plan.plan import plan_on
from bigscreen.train.run import train

WAYS = {
    "exact": {"exact": True, "gamma": 0.3},
    "landmarks": {"landmarks": 60, "gamma": 0.3},
    "linear": {"kernel": "linear"},
}
PROBLEMS = {
    "c-svc": {},
    "c-svc, offset": {"intercept": "true"},
    "svr": {"problem": "svr", "epsilon": 0.1},
    "quantile": {"problem": "quantile", "tau": 0.8},
    "one-class": {"problem": "one-class", "nu": 0.1},
    "nu-svc": {"problem": "nu-svc", "nu": 0.3},
}


@pytest.fixture(scope="module")
def fleet():
    with local_cluster(2) as found:
        yield found


def rows(n, problem, labels=2):
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    score = X[:, 0] + np.sin(2 * X[:, 1]) + 0.4 * rng.normal(size=n)
    if problem in ("svr", "quantile"):
        return MemoryDataset(X, score, labels=None)
    if problem == "one-class":
        return MemoryDataset(X, np.zeros(n, int), ["all"])
    codes = np.searchsorted(np.quantile(score, np.arange(1, labels) / labels), score)
    return MemoryDataset(X, codes, list(range(labels)))


def bits(model):
    arrays = [model.coef, model.intercept]
    arrays += [] if model.support is None else [model.support]
    gaps = [one["relative_gap"] for one in model.provenance["certificates"]]
    return [np.asarray(array).tobytes() for array in arrays], gaps


CASES = [(problem, 150) for problem in PROBLEMS] + [("c-svc", 1500), ("quantile", 1500)]


# By their number of rows an interior point, pair steps, or a Newton solves them.
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("problem", "n"), CASES)
def test_threads_and_workers(fleet, problem, n, way, tmp_path):
    options = {**WAYS[way], **PROBLEMS[problem], "tol": 1e-3}
    data = rows(n, options.get("problem", "c-svc"))
    chosen = TrainOptions(**options, work=tmp_path / "workers")
    with Inline(2) as threads:
        expected = train(data, TrainOptions(**options), threads)
    assert bits(train(data, chosen, fleet)) == bits(expected)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_more_rows_than_one_process_solves_alone(fleet, way, tmp_path):
    data, options = rows(4500, "c-svc"), WAYS[way]
    assert not plan_on(fleet, data, TrainOptions(**options)).alone
    with Inline(2) as threads:
        expected = train(data, TrainOptions(**options), threads)
    found = train(data, TrainOptions(**options, work=tmp_path / "workers"), fleet)
    assert bits(found) == bits(expected)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_several_labels_and_pairs_of_them(fleet, way, tmp_path):
    data = rows(900, "c-svc", labels=3)
    for strategy in ("rest", "one"):
        options = {**WAYS[way], "strategy": strategy}
        with Inline(2) as threads:
            expected = train(data, TrainOptions(**options), threads)
        work = tmp_path / strategy
        assert bits(train(data, TrainOptions(**options, work=work), fleet)) == bits(expected)
