"""`bigscreen amend` removes, adds and changes rows from the command line."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from cli_world import bigscreen, write_csv

from bigscreen.data.dataset import Dataset
from bigscreen.model.model import Model


def ran(*args, code=0):
    """Run a command that must end with this code; return its output."""
    result = bigscreen(*args)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Make a store, a model of it, and its rows by status."""
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
    # A cold fit of the edited rows, with equal or with new landmarks, is no better.
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
    assert "ingest that without the rows" in said
    assert not (tmp_path / "x").exists() and not (tmp_path / "x.store").exists()
    ran("fit", s, tmp_path / "o", "--problem", "one-class", "--landmarks", 20)
    assert "one-class cannot" in ran("amend", tmp_path / "o", s, "--remove", out, "--bound", code=2)


def dying(where, how, *args):
    """Run a command in a process that is ended when it first calls a function."""
    module, name = where.rsplit(".", 1)
    code = f"""
import errno, importlib, os, signal, sys
from bigscreen.cli import main
of, *rest = {module!r}.split(":")
owner = importlib.import_module(of)
for part in rest:
    owner = getattr(owner, part)
before = getattr(owner, {name!r})
def dies(*args, **more):
    {how}
    return before(*args, **more)
setattr(owner, {name!r}, dies)
main(prog_name="bigscreen")
"""
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


KILL = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "placed"),
    [
        ("bigscreen.data.writer:DatasetWriter.finish", False),
        ("bigscreen.amend.amend.refit", False),
        ("bigscreen.model.model:Model.save", True),
    ],
)
def test_a_run_that_is_killed_is_repeated_by_the_same_command(fitted, tmp_path, where, placed):
    new, store = tmp_path / "n.bsm", tmp_path / "n.store"
    args = ("amend", fitted / "m", fitted / "s", new, "--remove", fitted / "bound.csv")
    ended = dying(where, KILL, *args)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert store.exists() == placed and not new.exists()
    if placed:
        Dataset.open(store).verify()
        # Other edits do not go there.
        said = ran(*args[:-2], "--remove", fitted / "out.csv", code=2)
        assert "n.store exists already" in said
    ran(*args)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["n.bsm", "n.store"]
    assert Model.load(new).provenance["rows"] == Dataset.open(store).n_rows == 495
    assert "n.bsm exists" in ran(*args, code=2)
    new.unlink()
    (store / "manifest.json").unlink()
    assert "not a bigscreen dataset" in ran(*args, code=2)


LATE = """found = before(*args, **more)
    if found is None:
        os.kill(os.getpid(), signal.SIGINT)
    return found
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["amend", "fit"])
def test_ctrl_c_in_the_last_pass_of_a_solve_is_not_dropped(fitted, tmp_path, command):
    new = tmp_path / "n.bsm"
    args = {
        "amend": (fitted / "m", fitted / "s", new, "--remove", fitted / "bound.csv"),
        "fit": (fitted / "s", new, "--landmarks", 40, "--gamma", 0.5),
    }[command]
    ended = dying("bigscreen.fit.monitor:Monitor.__call__", LATE, command, *args)
    assert ended.returncode == 128 + signal.SIGINT, ended.stderr
    assert "interrupted" in ended.stderr.splitlines()[-1] and "Traceback" not in ended.stderr
    assert not new.exists()
    if command == "amend":
        assert not list(tmp_path.iterdir())
    ran(command, *args, *(["--resume"] if command == "fit" else []))
    assert Model.load(new).provenance["certificates"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "more"),
    [("amend", ("--add", "rows.csv")), ("compress", ())],
)
def test_a_full_disk_is_one_sentence_and_leaves_nothing(fitted, tmp_path, command, more):
    full = f"raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), {str(tmp_path / 'X')!r})"
    more = [option if option.startswith("--") else fitted / option for option in more]
    for where in (
        "bigscreen.data.zarr_arrays:StoredArray.write",
        "bigscreen.data.writer.take_name",
    ):
        ended = dying(where, full, command, fitted / "m", fitted / "s", tmp_path / "n", *more)
        assert ended.returncode in (1, 2)
        assert ended.stderr.splitlines()[-1].startswith("error: ") and "full" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert not list(tmp_path.iterdir())


def test_rows_like_a_store_that_was_edited_keep_what_the_source_had(fitted, tmp_path):
    """An edited store still knows the first column's number, and whether numbers are rounded."""
    rng = np.random.default_rng(0)

    def svmlight(name, X):
        lines = [f"{int(x[0] > 2)} " + " ".join(f"{j}:{v:g}" for j, v in enumerate(x)) for x in X]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return tmp_path / name

    X = rng.integers(0, 5, (200, 3))
    ran("ingest", svmlight("a.svm", X), tmp_path / "s", "--zero-based")
    ran("fit", tmp_path / "s", tmp_path / "m", "--exact", "--gamma", 0.5)
    (tmp_path / "ids.txt").write_text("3\n")
    ran(
        "amend",
        tmp_path / "m",
        tmp_path / "s",
        tmp_path / "n.bsm",
        "--remove",
        tmp_path / "ids.txt",
    )
    fresh = tmp_path / "b.svm"
    fresh.write_text("1 1:0.1 2:0.3\n")  # no index 0: who knows nothing takes 1 for the first
    args = ("amend", tmp_path / "n.bsm", tmp_path / "n.store", tmp_path / "o.bsm", "--add", fresh)
    ran(*args)
    store = Dataset.open(tmp_path / "o.store")
    (place,) = np.flatnonzero(store.row_ids(0, 200) == 200)
    row = store.rows([place])
    row = row if isinstance(row, np.ndarray) else row.toarray()
    np.testing.assert_array_equal(row, [[0, 0.1, 0.3]])


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


@pytest.mark.parametrize("kind", ["out", "bound"])
def test_edited_machines_have_no_probabilities_of_rows_that_left(fitted, tmp_path, kind):
    """A row without influence on the machine of all rows has one on the machines of the folds."""
    fit = ("--landmarks", 40, "--gamma", 0.5, "--tol", 1e-6, "--probability")
    model, new, edit = tmp_path / "m", tmp_path / "n", ("--remove", fitted / f"{kind}.csv")
    ran("fit", fitted / "s", model, *fit)
    said = ran("amend", model, fitted / "s", new, *edit)
    assert "has no probabilities" in said and ("holds as it was" in said) == (kind == "out")
    made = Model.load(new)
    assert made.calibration is None and made.fold_machines is None
    said = ran("predict", new, fitted / "s", tmp_path / "p.csv", "--set", 0.1, code=2)
    assert "edits of its rows have dropped what this one had learnt" in said
    plain = ran("predict", fitted / "m", fitted / "s", tmp_path / "p.csv", "--set", 0.1, code=2)
    assert "was fitted with" in plain and "edits" not in plain
