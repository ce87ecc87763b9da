"""`bigscreen rows` lists the rows that a model provably does not need."""

import json

import numpy as np
import pytest
from cli_world import bigscreen, succeed

from bigscreen.model.model import Model


def ran(*args, code=0):
    """Run a command that must end with this code; return its output."""
    result = bigscreen(*args)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def rough(n, d):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, (X[:, 0] + 0.4 * rng.normal(size=n) > 0).astype(int)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Make a store of four fifths of a table, a model of it, and the table."""
    folder = tmp_path_factory.mktemp("ledger")
    X, y = rough(1000, 3)
    lines = [",".join(map(repr, [*row, label])) for row, label in zip(X.tolist(), y, strict=True)]
    (folder / "rows.csv").write_text("a,b,c,label\n" + "\n".join(lines) + "\n")
    store = folder / "rows.csv", folder / "s"
    ran("ingest", *store, "--label", "label", "--holdout", "0.2", "--scale", "none")
    ran("fit", folder / "s", folder / "m", "--landmarks", 50, "--gamma", 0.3, "--tol", 1e-6)
    return folder, X, y


def test_the_command_lists_rows_by_their_numbers_in_the_source(fitted):
    folder, X, y = fitted
    said = ran("rows", folder / "m", folder / "rows-of-m.csv", "--json", folder / "m.json")
    assert "not needed" in said
    table = np.genfromtxt(folder / "rows-of-m.csv", delimiter=",", names=True, dtype=None)
    record = json.loads((folder / "m.json").read_text())
    assert record["rows"] == len(table) == 800 and np.all(np.diff(table["row"]) > 0)
    assert record["out"] == np.count_nonzero(table["status"] == "out") > 300
    margin = np.where(y == 1, 1, -1) * Model.load(folder / "m").scores(X, prepared=True)[:, 0]
    own = margin[table["row"]]
    assert own[table["status"] == "out"].min() > 1 > own[table["status"] == "bound"].max()
    ran("rows", folder / "m", folder / "top.npy", "--status", "out", "--top", 5)
    top = np.load(folder / "top.npy")
    firmest = np.sort(table["margin"][table["status"] == "out"])[::-1][:5]
    assert np.array_equal(top["margin"], firmest.astype(np.float32))
    listed = succeed("rows", folder / "m", "--top", 3).splitlines()
    assert listed[0] == "row,status,margin" and len(listed) == 4


def test_what_the_command_cannot_do_it_says(fitted, tmp_path):
    folder, *_ = fitted
    assert ".csv, .tsv or .npy" in ran("rows", folder / "m", tmp_path / "x", code=2)
    model = Model.load(folder / "m")
    model.ledger = None
    model.save(tmp_path / "bare")
    assert "no ledger" in ran("rows", tmp_path / "bare", code=2)
