"""`bigscreen amend`: rows leave, enter and change on the command line."""

import json
import signal

import numpy as np
import pytest
from cli_world import bigscreen, process, write_csv

from bigscreen.data.dataset import Dataset
from bigscreen.model.model import Model


def ran(*args, code=0):
    """What a command says, which must end with this code."""
    result = bigscreen(*args)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A store, a model of it, and its rows by status."""
    folder = tmp_path_factory.mktemp("amend")
    write_csv(folder / "rows.csv", n=500)
    ran("ingest", folder / "rows.csv", folder / "s", "--label", "inside", "--scale", "standard")
    ran("fit", folder / "s", folder / "m", "--landmarks", 40, "--gamma", 0.5, "--tol", 1e-6)
    ran("rows", folder / "m", folder / "out.csv", "--status", "out", "--top", 20)
    ran("rows", folder / "m", folder / "bound.csv", "--status", "bound", "--top", 5)
    return folder


def test_rows_that_are_out_leave_without_a_fit(fitted, tmp_path):
    said = ran("amend", fitted / "m", fitted / "s", "--remove", fitted / "out.csv", "--bound")
    assert "proved to be out" in said
    before = Dataset.open(fitted / "s").fingerprint
    new = tmp_path / "n.bsm"
    said = ran("amend", fitted / "m", fitted / "s", new, "--remove", fitted / "out.csv")
    assert "holds as it was" in said and "scaling standard stays" in said
    assert np.array_equal(Model.load(new).coef, Model.load(fitted / "m").coef)
    store = Dataset.open(tmp_path / "n.store")
    gone = np.genfromtxt(fitted / "out.csv", delimiter=",", names=True, dtype=None)["row"]
    assert store.n_rows == 480 and not np.isin(store.row_ids(0, 480), gone).any()
    assert Dataset.open(fitted / "s").fingerprint == before
    said = ran("info", new, "--history")
    assert "Edit 1" in said and "carried over" in said


def test_every_edit_at_once_and_one_after_the_other(fitted, tmp_path):
    lines = (fitted / "rows.csv").read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join([lines[0], *lines[1:7]]) + "\n")
    rows = np.genfromtxt(fitted / "bound.csv", delimiter=",", names=True, dtype=None)["row"]
    (tmp_path / "labels.csv").write_text(f"row,label\n{rows[0]},yes\n{rows[1]},no\n")
    (tmp_path / "weights.csv").write_text(f"{rows[2]},2.5\n")
    (tmp_path / "ids.txt").write_text(f"{rows[3]}\n{rows[4]}\n")
    edits = ("--remove", tmp_path / "ids.txt", "--relabel", tmp_path / "labels.csv")
    edits += ("--reweight", tmp_path / "weights.csv", "--add", tmp_path / "new.csv")
    ran(
        *("amend", fitted / "m", fitted / "s", *edits, "--bound", "--watch", fitted / "s"),
        *("--json", tmp_path / "b.json"),
    )
    bound = json.loads((tmp_path / "b.json").read_text())
    assert 0 < bound["bounds"][0]["relative_gap"] < 1 and bound["watched"]["rows"] == 500
    new = tmp_path / "n.bsm"
    ran("amend", fitted / "m", fitted / "s", new, *edits, "--json", tmp_path / "n.json")
    record = json.loads((tmp_path / "n.json").read_text())
    assert record["edit"]["what"] == {
        "removed": 2, "relabelled": 2, "reweighted": 1, "added": 6,
    }  # fmt: skip
    assert record["relative_gap"] <= 1e-6 and record["rows"] == 504
    P, before = record["primal"], bound["bounds"][0]
    assert before["primal"] - before["gap"] - 1e-6 * P <= P <= before["primal"]
    store = Dataset.open(tmp_path / "n.store")
    assert store.has_weights and set(range(500, 506)) <= set(store.row_ids(0, 504).tolist())
    # The same rows fitted from nothing, by the same landmarks or not, are no better than theirs.
    again = tmp_path / "again.bsm"
    ran("amend", new, store.path, again, "--remove", fitted / "out.csv")
    said = ran("info", again, "--history")
    assert "Edit 2" in said
    ran("predict", again, tmp_path / "again.store", tmp_path / "p.csv")


def test_what_it_cannot_do_it_says(fitted, tmp_path):
    m, s, out = fitted / "m", fitted / "s", fitted / "out.csv"
    assert "give OUT" in ran("amend", m, s, "--remove", out, code=2)
    assert "leave out OUT" in ran("amend", m, s, tmp_path / "x", "--bound", code=2)
    assert "nothing to amend" in ran("amend", m, s, "--bound", code=2)
    (tmp_path / "bad.txt").write_text("1\nx\n")
    assert "no row number" in ran(
        "amend", m, s, "--remove", tmp_path / "bad.txt", "--bound", code=2
    )
    assert "stays as it is" in ran(
        "amend", m, s, tmp_path / "x", "--remove", out, "--store", s, "--overwrite", code=2
    )
    said = ran("amend", m, s, tmp_path / "x", "--remove", out, "--strict", code=2)
    assert "ingest that again" in said
    assert not (tmp_path / "x").exists() and not (tmp_path / "x.store").exists()
    ran("fit", s, tmp_path / "o", "--problem", "one-class", "--landmarks", 20)
    assert "one-class cannot" in ran("amend", tmp_path / "o", s, "--remove", out, "--bound", code=2)


def test_a_run_that_is_killed_leaves_nothing_half_written(fitted, tmp_path):
    args = ("amend", fitted / "m", fitted / "s", tmp_path / "n.bsm", "--remove")
    for delay in (0.9, 1.6):
        run = process(*args, fitted / "bound.csv")
        try:
            run.wait(delay)
        except Exception:
            run.send_signal(signal.SIGKILL)
        run.wait()
        if (tmp_path / "n.store").exists():
            Dataset.open(tmp_path / "n.store").verify()
        if (tmp_path / "n.bsm").exists():
            Model.load(tmp_path / "n.bsm")
    ran(*args, fitted / "bound.csv", "--overwrite")
    assert Model.load(tmp_path / "n.bsm").provenance["rows"] == 495


def test_a_compressed_store_says_its_size_and_how_to_fit_it(fitted, tmp_path):
    small = tmp_path / "small.store"
    said = ran("compress", fitted / "m", fitted / "s", small)
    store = Dataset.open(small)
    assert f"rows {store.n_rows} for 500" in said.replace("│", "").replace("  ", " ")
    assert " KiB for " in said and "--kernel linear --C 1" in said
    found = {}
    for name, rows, how in (
        ("whole", fitted / "s", ("--landmarks", 40, "--gamma", 0.5)),
        ("small", small, ("--kernel", "linear", "--C", 1)),
    ):
        ran("fit", rows, tmp_path / name, *how, "--tol", 1e-8, "--json", tmp_path / f"{name}.json")
        found[name] = json.loads((tmp_path / f"{name}.json").read_text())["primal"]
    assert found["small"] == pytest.approx(found["whole"], rel=3e-8)
    same = ("compress", fitted / "m", fitted / "s", fitted / "s", "--overwrite")
    assert "stays as it is" in ran(*same, code=2)
