"""`bigscreen rows` lists the rows that a model provably does not need."""

import json
import re
import shutil

import numpy as np
import pytest
from cli_world import bigscreen, succeed
from json_results import check_result

from bigscreen.data.dataset import Dataset
from bigscreen.model.model import Model


def ran(*args, code=0):
    """Run a command that must end with this code; return its output."""
    result = bigscreen(*args)
    assert result.exit_code == code, result.output
    return " ".join(result.output.replace("│", "").split())


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


def test_the_certificate_begins_with_the_rows_held_out(fitted, tmp_path):
    folder, *_ = fitted
    quick = ("--landmarks", 20, "--gamma", 0.3, "--tol", 1e-2)
    said = ran("fit", folder / "s", tmp_path / "m", *quick, "--json", tmp_path / "m.json")
    check_result(tmp_path / "m.json")
    held = json.loads((tmp_path / "m.json").read_text())["held_out"]
    ran("evaluate", tmp_path / "m", folder / "s-holdout", "--json", tmp_path / "e.json")
    assert held["error"] == json.loads((tmp_path / "e.json").read_text())["error"] < 0.3
    said = said[said.index("Certificate") :]
    at = [said.index(word) for word in ("held out", "proved", "relative gap", "details")]
    assert at == sorted(at) and "200 rows of s-holdout" in said and "dual objective" not in said
    whole = ran("fit", folder / "s", tmp_path / "v", *quick, "--verbose")
    whole = whole[whole.index("Certificate") :]
    assert whole.index("held out") < whole.index("proved") < whole.index("dual objective D")
    # Most rows are open at this gap, and the tolerance that `rows` names decides most.
    loose = ran("rows", tmp_path / "m")
    tol = re.search(r"a smaller --tol, such as (\S+), decides more", loose)
    assert tol is not None and "smaller" not in ran("rows", folder / "m")
    ran("fit", folder / "s", tmp_path / "t", *quick[:4], "--tol", tol[1])
    counts = Model.load(tmp_path / "t").ledger[0].counts
    assert counts["open"] < 400 and "smaller" not in ran("rows", tmp_path / "t")


def test_rows_of_another_ingest_are_not_held_out(fitted, tmp_path):
    folder, *_ = fitted
    both = folder / "rows.csv", tmp_path / "s"
    ran("ingest", *both, "--label", "label", "--holdout", "0.2")
    assert Dataset.open(tmp_path / "s").held_out() is not None
    ran("ingest", *both, "--label", "label", "--overwrite")  # now of all rows
    assert Dataset.open(tmp_path / "s").held_out() is None
    again = ("--overwrite", "--holdout", "0.1", "--seed", 1, "--scale", "none")
    ran("ingest", *both, "--label", "label", *again)
    shutil.rmtree(tmp_path / "s-holdout")
    shutil.copytree(folder / "s-holdout", tmp_path / "s-holdout")
    assert Dataset.open(tmp_path / "s").held_out() is None


def test_what_the_command_cannot_do_it_says(fitted, tmp_path):
    folder, *_ = fitted
    assert ".csv, .tsv or .npy" in ran("rows", folder / "m", tmp_path / "x", code=2)
    model = Model.load(folder / "m")
    model.ledger = None
    model.save(tmp_path / "bare")
    assert "no ledger" in ran("rows", tmp_path / "bare", code=2)
