"""A search over several kernels, each with its own values of gamma."""

import json

import numpy as np
import pytest
from cli_world import World, bigscreen, succeed, world  # noqa: F401

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.tune.options import TuneOptions
from bigscreen.tune.search import tune

GRIDS = {"rbf": [0.05, 0.2], "laplacian": [0.1, 0.4]}


def searched(gammas, elimination="none", **fit):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    y = np.abs(X[:, 0]) + np.abs(X[:, 1])
    how = TrainOptions(problem="svr", epsilon=0.05, **fit)
    options = TuneOptions(how, gammas, [1.0, 10.0], [60], 3, elimination)
    with Inline(1) as fleet:
        return tune(MemoryDataset(X, y, None), options, fleet)


def test_a_search_of_kernels_is_the_best_of_the_searches_of_each():
    model = searched(GRIDS)
    record = model.provenance["search"]
    assert record["grid"]["gamma"] == GRIDS
    alone = {name: searched(own, kernel=name) for name, own in GRIDS.items()}
    for name, own in alone.items():
        expected = [point["scores"] for point in own.provenance["search"]["candidates"]]
        found = [p["scores"] for p in record["candidates"] if p["kernel"] == name]
        np.testing.assert_allclose(found, expected, atol=1e-6)
    scores = {name: own.provenance["search"]["best"]["score"] for name, own in alone.items()}
    best = max(scores, key=scores.get)
    assert record["best"]["kernel"] == best == model.kernel.name
    np.testing.assert_array_equal(model.coef, alone[best].coef)
    halved = searched(GRIDS, "halving").provenance["search"]
    assert {point["kernel"] for point in halved["candidates"]} == set(GRIDS)


@pytest.mark.parametrize(
    ("gammas", "words"),
    [({}, "a kernel or more"), ({"linear": [1.0]}, "over gamma"), ({"rbf": [2.0, 1.0]}, "gamma")],
)
def test_grids_that_are_none_are_refused(gammas, words):
    with pytest.raises(InputError, match=words):
        TuneOptions(TrainOptions(), gammas, [1.0], [10])


def test_the_command_tries_kernels(world: World, tmp_path):  # noqa: F811
    out, record, plots = tmp_path / "m.bsm", tmp_path / "m.json", tmp_path / "plots"
    grid = ("--C", "1,10", "--gamma", ".1,1", "--landmarks", "20", "--folds", "2")
    several = (*grid, "--kernel", "rbf,matern12")
    told = succeed("tune", world.store, out, *several, "--plots", plots, "--json", record)
    best = json.loads(record.read_text())["search"]["best"]
    assert "8 of 8 judged" in told and best["kernel"] in told
    assert {p.name for p in plots.iterdir()} == {"search-rbf-20.png", "search-matern12-20.png"}
    assert best["kernel"] in succeed("tune", world.store, out, *several, "--resume")
    for kernels in ("rbf", "rbf,laplacian"):
        other = bigscreen("tune", world.store, out, *grid, "--kernel", kernels, "--resume")
        assert other.exit_code != 0 and "kernels" in other.stderr
    new = ("tune", world.store, tmp_path / "n.bsm", *grid, "--degree", 2, "--kernel")
    wrong = bigscreen(*new, "rbf,matern12")
    assert "--degree has no meaning with --kernel rbf" in wrong.stderr
    succeed(*new, "rbf,polynomial")
    wrong = bigscreen("tune", world.store, tmp_path / "o.bsm", *grid, "--kernel", "rbf,round")
    assert wrong.exit_code == 2 and "'round' is not one of" in wrong.stderr
