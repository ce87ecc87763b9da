"""`bigscreen path` and `bigscreen pick`, as a person uses them."""

from __future__ import annotations

import json
import signal
import time

import numpy as np
import pytest
from cli_world import World, bigscreen, process, succeed, world  # noqa: F401

from bigscreen.model.model import Model
from bigscreen.model.solved_path import SolvedPath

SMALL = ["--C", ".1:10:4", "--landmarks", "30", "--gamma", "1", "--threads", "1"]


def test_from_a_grid_to_the_best_model(world: World, tmp_path):  # noqa: F811
    out, model = tmp_path / "all.bsp", tmp_path / "best.bsm"
    record, plots = tmp_path / "all.json", tmp_path / "plots"
    text = succeed(
        "path", world.store, out, *SMALL, "--folds", "3", "--json", record, "--plots", plots
    )
    assert "4 points" in text and "over 3 folds" in text
    known = json.loads(record.read_text())
    assert np.allclose(known["values"], np.geomspace(0.1, 10, 4))
    assert {p.name for p in plots.iterdir()} == {
        "rejection.png", "remaining.png", "rules.png", "validation.png"
    }  # fmt: skip
    assert not (tmp_path / "all.bsp.work").exists()
    succeed("pick", out, model)
    assert "accuracy" in succeed("evaluate", model, world.store)
    assert Model.load(model).provenance["parameters"]["C"] == known["values"][known["best"]]
    succeed("pick", out, model, "--C", "2.154", "--overwrite")
    assert Model.load(model).provenance["parameters"]["C"] == pytest.approx(10 ** (1 / 3))
    assert "bigscreen pick" in bigscreen("evaluate", out, world.store).stderr


def test_a_grid_of_nu(world: World, tmp_path):  # noqa: F811
    out, model = tmp_path / "all.bsp", tmp_path / "one.bsm"
    succeed(
        "path", world.store, out, "--nu", ".2:.5:4", "--exact", "--gamma", "1", "--threads", "1"
    )
    assert SolvedPath.load(out).record["problem"] == "nu-svc"
    succeed("pick", out, model, "--nu", ".3")
    assert "accuracy" in succeed("evaluate", model, world.store)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--C", "1,1"], "comes twice"),
        (["--C", "2,1"], "comes after"),
        (["--C", "1:2"], "FROM:TO:COUNT"),
        (["--C", "2:1:5"], "must go up"),
        (["--nu", ".5:2:3"], "lie in (0, 1]"),
        (["--nu", ".2:.9:3", "--C", "1"], "give --C or --nu"),
        (["--C", "nan"], "value 1 is nan"),
        (["--C", ""], "FROM:TO:COUNT"),
        (["--problem", "one-class"], "needs a grid of nu"),
        (["--problem", "one-class", "--C", "1"], "--C has no meaning with --problem one-class"),
        (["--problem", "svr", "--nu", ".1,.2"], "--nu has no meaning with --problem svr"),
        (["--tau", ".2"], "--tau has no meaning with --problem c-svc"),
        (["--degree", "2"], "--degree has no meaning with --kernel rbf"),
        (["--landmarks", "601"], "more than the 600 rows"),
        (["--folds", "300"], "ask for at most"),
        (["--nu", ".2:1:3", "--intercept", "true"], "largest feasible nu is"),
        (["--problem", "lad"], "needs targets"),
        (["--rules", "dvi,foo"], "'foo' is not one of"),
        (["--rules", "none,dvi"], "or none alone"),
        (["--rules", "dvi,dvi"], "named twice"),
        (["--rules", "srbo"], "srbo is for grids of nu"),
        (["--exact", "--landmarks", "5"], "--landmarks has no meaning with --exact"),
        (["--kernel", "linear", "--gamma", "1"], "--gamma has no meaning"),
        (["--resume"], "nothing to resume"),
        (["--memory", "1MiB"], "allow more memory"),
    ],
)
def test_mistakes_are_one_sentence(args, words, world: World, tmp_path):  # noqa: F811
    result = bigscreen("path", world.store, tmp_path / "out.bsp", *args)
    assert result.exit_code == 2 and words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_picking_what_is_not_there(world: World, tmp_path):  # noqa: F811
    out = tmp_path / "all.bsp"
    succeed("path", world.store, out, *SMALL)
    for args, words in [
        ([], "without folds"),
        (["--C", "3"], "no point C = 3"),
        (["--nu", ".3"], "has values of C"),
    ]:
        result = bigscreen("pick", out, tmp_path / "m.bsm", *args)
        assert result.exit_code == 2 and words in result.stderr
    result = bigscreen("pick", world.model, tmp_path / "m.bsm")
    assert result.exit_code == 2 and "not a bigscreen path" in result.stderr
    assert "exists" in bigscreen("path", world.store, out, *SMALL).stderr


def test_targets_are_judged_by_folds_but_not_by_one_class(world: World, tmp_path):  # noqa: F811
    out, nu = tmp_path / "all.bsp", ["--problem", "one-class", "--nu", ".1,.5", "--exact"]
    args = ["--problem", "svr", "--epsilon", ".1", *SMALL, "--folds", "2"]
    assert "R2" in succeed("path", world.targets, out, *args)
    assert "2 points" in succeed("path", world.targets, out, *nu, "--overwrite")
    result = bigscreen("path", world.targets, tmp_path / "no.bsp", *nu, "--folds", "2")
    assert result.exit_code == 2 and "judged by two labels" in result.stderr


def test_what_is_in_a_path(world: World, tmp_path):  # noqa: F811
    out, record = tmp_path / "all.bsp", tmp_path / "info.json"
    succeed("path", world.store, out, *SMALL, "--folds", "2")
    text = succeed("info", out, "--json", record)
    for words in ("4 points", "c-svc", "rbf, gamma 1", "no, yes", "over 2 folds", "0.1 to 10"):
        assert words in text
    assert repr(SolvedPath.load(out)) == (
        "<SolvedPath classifier: 4 values of C, 0.1 to 10, rbf, 3 features>"
    )
    known = json.loads(record.read_text())
    assert known["kind"] == "path" and known["type"] == "classifier" and len(known["points"]) == 4
    assert "not a bigscreen model" in bigscreen("info", world.csv).stderr


def test_time_that_runs_out_is_said(world: World, tmp_path):  # noqa: F811
    out, work = tmp_path / "all.bsp", tmp_path / "work"
    args = [*SMALL, "--folds", "2", "--work", work]
    result = bigscreen("path", world.store, out, *args, "--time-budget", "0.000001s")
    assert result.exit_code == 2 and not out.exists()
    assert "the time budget ended" in result.stderr and "--resume goes on" in result.stderr
    result = bigscreen("path", world.store, out, *args, "--resume")
    assert result.exit_code == 0 and "missed" not in result.stderr
    assert SolvedPath.load(out).missed is None


@pytest.mark.slow
def test_worker_processes_give_the_same_path(world: World, tmp_path):  # noqa: F811
    one, other = tmp_path / "one.bsp", tmp_path / "other.bsp"
    # Room for the columns of some rows, not for the matrix of all; a worker takes its part, too.
    room = 400 * 2**20 + 600 * 400 + 2_000_000
    args = ["--C", ".1:10:3", "--exact", "--gamma", "1", "--folds", "2", "--intercept", "true"]
    succeed("path", world.store, one, *args, "--threads", "1", "--memory", room)
    more = 2 * 250 * 2**20
    succeed("path", world.store, other, *args, "--workers", "2", "--memory", room + more)
    a, b = SolvedPath.load(one), SolvedPath.load(other)
    assert a.record["provenance"]["solver"] == b.record["provenance"]["solver"] == "block"
    assert a.record["scores"] == b.record["scores"]
    for k in range(3):
        assert np.array_equal(a.array(f"coef-{k}"), b.array(f"coef-{k}"))
        assert a.points[k]["gap"] == b.points[k]["gap"]


IN_MEMORY = ["--C", ".01:100:60", "--folds", "3", "--exact", "--gamma", "1"]
BEYOND = ["--C", ".1:10:6", "--landmarks", "60", "--gamma", "1", "--folds", "3", "--tol", "1e-4"]


def scant(workers=0):
    """Compute a memory limit that leaves a path on this many workers nothing for features."""
    return ["--memory", 400 * 2**20 + workers * 250 * 2**20]


def equal(one, other):
    """Whether two files hold equal paths, bit for bit."""
    one, other = SolvedPath.load(one), SolvedPath.load(other)
    assert one.record["scores"] == other.record["scores"]
    for k in range(len(one)):
        assert np.array_equal(one.array(f"coef-{k}"), other.array(f"coef-{k}"))
        assert one.record["points"][k][0]["gap"] == other.record["points"][k][0]["gap"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "args", "kept", "files"),
    [
        (signal.SIGKILL, IN_MEMORY, "walk-*/point-*.kept", 25),
        (signal.SIGINT, IN_MEMORY, "walk-*/point-*.kept", 25),
        (signal.SIGKILL, [*BEYOND, *scant()], "features/*/*.kept", 30),
    ],
)
def test_a_path_survives_its_process(how, args, kept, files, world: World, tmp_path):  # noqa: F811
    whole, out = tmp_path / "whole.bsp", tmp_path / "out.bsp"
    args = [*args, "--threads", "1"]
    succeed("path", world.store, whole, *args)
    running = process("path", world.store, out, *args)
    work = tmp_path / "out.bsp.work"
    while len(list(work.glob(kept))) < files and running.poll() is None:
        time.sleep(0.002)
    running.send_signal(how)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == (-9 if how == signal.SIGKILL else 130), errors
    assert not out.exists() and files <= len(list(work.glob(kept))) < 240
    assert "--resume" in bigscreen("path", world.store, out, *args).stderr
    succeed("path", world.store, out, *args, "--resume")
    assert not work.exists()
    equal(whole, out)


@pytest.mark.slow
def test_workers_give_the_same_path_beyond_memory(world: World, tmp_path):  # noqa: F811
    alone, other = tmp_path / "alone.bsp", tmp_path / "other.bsp"
    text = succeed("path", world.store, alone, *BEYOND, *scant(), "--threads", "2")
    assert "by no rule" in text and not (tmp_path / "alone.bsp.work").exists()
    succeed("path", world.store, other, *BEYOND, *scant(2), "--workers", 2)
    equal(alone, other)
    named = [*BEYOND, *scant(), "--rules", "gap"]
    refused = bigscreen("path", world.store, tmp_path / "x.bsp", *named)
    assert refused.exit_code == 2 and "leave rules out" in refused.stderr
