"""`bigscreen resample` gives the intervals and p-values of fits that are made one by one."""

import json

import numpy as np
import pytest
from cli_world import FIT, bigscreen, succeed, world, write_csv

from bigscreen import Dataset, Inline, InputError, TrainOptions
from bigscreen.train.resample import resample

__all__ = ["world"]  # a fixture


@pytest.fixture(scope="module")
def held(world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("held")
    rows = write_csv(folder / "held.csv", n=400, seed=9)
    succeed("ingest", rows, folder / "held.store", "--like", world.store)
    return folder / "held.store"


def test_bootstraps_give_the_interval_of_single_fits(world, held, tmp_path):
    out = tmp_path / "out.json"
    text = succeed("resample", world.store, held, *FIT, "--fits", 12, "--json", out)
    record = json.loads(out.read_text())
    assert "95 % of the bootstraps" in text and "400 rows" in text
    assert len(record["errors"]) == 12 and record["relative_gap"] <= 1e-3
    low, high = record["interval"]
    assert min(record["errors"]) <= low <= record["error"] + 0.05 and low < high < 0.25
    model = tmp_path / "model.bsm"
    succeed("fit", world.store, model, *FIT)
    said = tmp_path / "said.json"
    succeed("evaluate", model, held, "--json", said)
    # Both are within the gap of the same optimum: a row or two may be on either side.
    assert abs(json.loads(said.read_text())["error"] - record["error"]) <= 0.01
    succeed("resample", world.store, held, *FIT, "--fits", 12, "--json", said)
    assert json.loads(said.read_text()) == record
    succeed("resample", world.store, held, *FIT, "--fits", 12, "--seed", 1, "--json", said)
    assert json.loads(said.read_text())["errors"] != record["errors"]


def test_permutations_give_the_p_value_of_single_fits(world, held, tmp_path):
    out = tmp_path / "out.json"
    how = ("--way", "permutation", "--fits", 9, "--json", out)
    text = succeed("resample", world.store, held, *FIT, *how)
    record = json.loads(out.read_text())
    assert "p-value" in text and record["p_value"] == pytest.approx(0.1)
    assert min(record["errors"]) > 0.3 > record["error"]


def test_workers_come_to_the_same(world, held):
    """Worker processes read rows by path and store features in a folder, with equal results."""
    record = [
        json.loads(succeed("resample", world.store, held, *how, "--fits", 3, "--json", "-"))
        for how in (FIT, [*FIT[:4], "--workers", "1"])
    ]
    assert record[0] == record[1]


def test_row_weights_count(world):
    data = Dataset.open(world.store)
    options = TrainOptions(gamma=1.0, landmarks=40)
    with Inline(1) as fleet:
        plain = resample(data, data, options, fleet, 4, "bootstrap")
        assert plain["rows"] == data.n_rows and 0 < plain["error"] < 0.2
        with pytest.raises(InputError, match="no labels"):
            resample(data, Dataset.open(world.unlabelled), options, fleet, 4, "bootstrap")
    assert np.std(plain["errors"]) > 0


def test_bad_input_is_said(world, held):
    for arguments, said in (
        ((world.store, world.wide), "--like"),
        ((world.targets, held), "targets"),
        ((world.targets, world.targets), "no labels"),
        ((world.store, world.unlabelled), "no labels"),
        ((world.store, held, "--fits", 0), "--fits"),
        ((world.store, held, "--landmarks", 100_000), "rows"),
    ):
        result = bigscreen("resample", *arguments)
        assert result.exit_code == 2 and said in result.output, result.output
        assert result.output.count("\n") == 1
