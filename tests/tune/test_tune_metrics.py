"""A search judges learned metrics by its folds, and fits the one that they chose."""

import itertools
import json
import shlex

import numpy as np
import pytest
from cli_world import bigscreen, succeed

from bigscreen.data.memory import MemoryDataset
from bigscreen.data.views import Recast
from bigscreen.errors import InputError
from bigscreen.fleet.inline import Inline
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.train.run import train
from bigscreen.tune.options import TuneOptions
from bigscreen.tune.search import tune

FIT = {"problem": "svr", "epsilon": 0.05}
KINDS = ("none", "diagonal", "full")


def rows(targets, n=300, seed=0):
    X = np.random.default_rng(seed).normal(size=(n, 6)).astype(np.float32)
    return MemoryDataset(X, targets(X), None)


def searched(data, metrics=KINDS, fit=FIT):
    options = TuneOptions(TrainOptions(**fit), [0.1, 0.3], [1.0, 10.0], [80], 3, metrics=metrics)
    with Inline(2) as fleet:
        return tune(data, options, fleet)


def test_the_metric_that_folds_chose_is_fitted():
    data = rows(lambda X: np.sin(2 * X[:, 0] + X[:, 1]))
    model = searched(data)
    record = model.provenance["search"]
    judged = record["metric_learning"]
    means = {kind: np.mean(scores) for kind, scores in judged["scores"].items()}
    assert list(means) == list(KINDS) and max(means, key=means.get) == judged["best"]
    assert judged["best"] != "none" and means["none"] < means[judged["best"]]
    best = record["best"]
    assert model.provenance["metric"]["kind"] == judged["best"] == best["metric_learning"]
    kind = judged["best"]
    assert judged["chosen"][kind] == {name: best[name] for name in ("gamma", "C")}
    assert best["score"] == means[kind] and judged["first"] == judged["chosen"]["none"]
    machines = judged["from"][kind]
    assert model.provenance["metric"]["from"] == machines and machines[0] == judged["first"]
    chosen = {"gamma": best["gamma"], "C": best["C"], "metric_learning": kind}
    fit = TrainOptions(**FIT, landmarks=80, **chosen, metric_from=machines)
    with Inline(1) as fleet:
        alone = train(data, fit, fleet)
    np.testing.assert_array_equal(alone.coef, model.coef)


def test_each_kind_has_the_best_gamma_and_C_of_its_folds():
    """The search after a map agrees with fits of all candidates to each fold's rows."""
    data = rows(lambda X: np.sin(2 * X[:, 0] + X[:, 1]), n=120)
    grid = {"gamma": [0.02, 0.1, 0.5], "C": [0.1, 10.0]}
    order = np.arange(120)
    folds = [(order[order % 2 != k], order[order % 2 == k]) for k in (0, 1)]
    options = TuneOptions(
        TrainOptions(**FIT, tol=1e-5), *grid.values(), [40], folds, metrics=("none", "diagonal")
    )
    with Inline(1) as fleet:
        judged = tune(data, options, fleet).provenance["search"]["metric_learning"]
        machines, means = judged["from"]["diagonal"], {}
        for gamma, C in itertools.product(*grid.values()):
            learned = {"metric_learning": "diagonal", "metric_from": machines}
            fit = TrainOptions(**FIT, tol=1e-5, landmarks=40, gamma=gamma, C=C, **learned)
            scores = []
            for fitted, held in folds:
                weights = np.isin(order, fitted).astype(float)
                model = train(Recast(data, None, weights), fit, fleet)
                y = data.y(0, 120)[held]
                rest = model.scores(data.rows(held), prepared=True)[:, 0] - y
                scores.append(1 - np.sum(rest**2) / np.sum((y - y.mean()) ** 2))
            means[gamma, C] = np.mean(scores)
    best = judged["chosen"]["diagonal"]
    assert (best["gamma"], best["C"]) == max(means, key=means.get)
    assert np.mean(judged["scores"]["diagonal"]) == pytest.approx(max(means.values()), abs=1e-3)
    assert best != judged["first"] and len(machines) > 1


def test_an_interrupted_search_goes_on_after_its_maps(tmp_path):
    data = rows(lambda X: np.sin(2 * X[:, 0] + X[:, 1]), n=150)
    grid = [0.1, 0.3], [1.0, 10.0], [40], 2

    def run(tell=None, **work):
        options = TuneOptions(TrainOptions(**FIT, **work), *grid, metrics=("none", "full"))
        with Inline(1) as fleet:
            return tune(data, options, fleet, tell)

    def interrupt(event):
        if event.get("phase") == "last fit":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(interrupt, work=tmp_path)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("metric-full-1-*/rung-*/*")}
    assert len({path.parts[-3] for path in kept}) == 2
    resumed = run(work=tmp_path, resume=True)
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    np.testing.assert_array_equal(resumed.coef, run().coef)


@pytest.mark.slow
def test_workers_judge_kinds_as_threads_do(tmp_path):
    X = np.random.default_rng(0).normal(size=(300, 4))
    np.savetxt(tmp_path / "t.csv", np.column_stack([X, np.sin(2 * X[:, 0])]), delimiter=",")
    table, store, record = tmp_path / "t.csv", tmp_path / "s", tmp_path / "m.json"
    succeed("ingest", table, store, "--label", "-1", "--no-header", "--regression")
    grid = ("--gamma", "0.1,0.3", "--C", "1,10", "--landmarks", "40", "--folds", "2")
    found = []
    for where in (("--threads", "1"), ("--workers", "1")):
        how = (*grid, "--metric-learning", "none,diagonal", *where, "--json", record, "--overwrite")
        succeed("tune", store, tmp_path / "m.bsm", *how)
        found.append(json.loads(record.read_text())["search"]["metric_learning"])
    (one, other), names = found, ("best", "chosen", "from")
    assert [one[name] for name in names] == [other[name] for name in names]
    for kind, scores in one["scores"].items():
        np.testing.assert_allclose(scores, other["scores"][kind], atol=5e-3)


def test_no_map_has_seen_the_rows_that_judge_it():
    """Targets by chance: a map that has seen the held-out rows would seem to predict them."""
    chance = np.random.default_rng(3).normal(size=300)
    scores = searched(rows(lambda X: chance)).provenance["search"]["metric_learning"]["scores"]
    assert all(np.mean(each) < 0 for each in scores.values())


def test_kinds_that_are_none_or_do_not_fit_are_refused():
    fit = TrainOptions(problem="svr")
    with pytest.raises(InputError, match="metric_learning"):
        TuneOptions(fit, [0.1], [1.0], [10], metrics=("round",))
    with pytest.raises(InputError, match="kinds of learned metrics"):
        TuneOptions(TrainOptions(metric_learning="full"), [0.1], [1.0], [10])


def test_the_command_judges_kinds(tmp_path):
    data = rows(lambda X: np.sin(2 * X[:, 0] + X[:, 1]))
    table = np.column_stack([data.X(0, 300), data.y(0, 300)])
    np.savetxt(tmp_path / "t.csv", table, delimiter=",", header="a,b,c,d,e,f,y", comments="")
    succeed("ingest", tmp_path / "t.csv", tmp_path / "s", "--label", "y", "--regression")
    grid = ("--gamma", "0.1,0.3", "--C", "1,10", "--landmarks", "60", "--folds", "3")
    kinds = ("--metric-learning", "none,full")
    told = succeed("tune", tmp_path / "s", tmp_path / "m.bsm", *grid, *kinds)
    assert "learned metric" in told and "full (none" in " ".join(told.split())
    model = Model.load(tmp_path / "m.bsm")
    assert model.provenance["metric"]["kind"] == "full"
    succeed("tune", tmp_path / "s", tmp_path / "m.bsm", *grid, *kinds, "--resume")
    other = bigscreen("tune", tmp_path / "s", tmp_path / "m.bsm", *grid, "--resume")
    assert other.exit_code != 0 and "metrics" in other.stderr


@pytest.mark.parametrize("exact", [False, True])
def test_the_line_that_a_search_prints_fits_its_model_again(tmp_path, monkeypatch, exact):
    """The map comes from a machine with another gamma and C than the chosen ones."""
    monkeypatch.chdir(tmp_path)
    data = rows(lambda X: np.sin(2 * X[:, 0] + X[:, 1]), n=120)
    np.savetxt("t.csv", np.column_stack([data.X(0, 120), data.y(0, 120)]), delimiter=",")
    succeed("ingest", "t.csv", "my rows", "--label", "-1", "--no-header", "--regression")
    how = ("--gamma", "0.02,0.1,0.5", "--C", "0.1,10", "--metric-learning", "diagonal")
    how += ("--exact",) if exact else ("--landmarks", "40", "--sampling", "rpcholesky")
    how += ("--folds", "2", "--epsilon", "0.05", "--seed", "3", "--tol", "1e-4")
    told = succeed("tune", "my rows", "m.bsm", *how)
    (line,) = [part for part in told.splitlines() if " bigscreen fit " in part]
    succeed(*shlex.split(line.partition(" bigscreen ")[2]))
    model, again = Model.load(tmp_path / "m.bsm"), Model.load(tmp_path / "again.bsm")
    assert model.provenance["parameters"] == again.provenance["parameters"]
    assert model.provenance["metric"] == again.provenance["metric"]
    first, found = model.provenance["metric"]["from"][0], model.provenance["parameters"]
    assert exact or first != {name: found[name] for name in first}
    np.testing.assert_array_equal(model.preparation.metric, again.preparation.metric)
    np.testing.assert_array_equal(model.coef, again.coef)


def test_values_of_the_first_machine_that_mean_nothing_are_refused():
    given = {"metric_learning": "full"}
    with pytest.raises(InputError, match="nu, which svr has not"):
        TrainOptions(**FIT, **given, metric_from={"nu": 0.5})
    for wrong in ({}, [], {"degree": 2}, {"C": 0.0}, [{"C": 1.0}, {}]):
        with pytest.raises(InputError, match="metric_from must map some of gamma, C, nu"):
            TrainOptions(**given, metric_from=wrong)
    with pytest.raises(InputError, match="ask for one with metric_learning"):
        TrainOptions(metric_from={"C": 1.0})
    assert "such as gamma=0.05,C=10" in bigscreen("fit", "s", "m", "--metric-from", "C:1").output
