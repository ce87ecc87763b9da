"""`bigscreen tune`, as a person uses it."""

from __future__ import annotations

import json
import signal
import time

import numpy as np
import pytest
from cli_world import World, bigscreen, process, succeed, world  # noqa: F401

from bigscreen.model.model import Model
from bigscreen.path.prepare import PATH
from bigscreen.tune import streamed as streamed_module

SMALL = ["--gamma", "2^-2:2^1:4", "--C", ".1:10:3", "--threads", "1"]


def test_from_a_grid_to_a_model(world: World, tmp_path):  # noqa: F811
    out, record, plots = tmp_path / "m.bsm", tmp_path / "m.json", tmp_path / "plots"
    args = [*SMALL, "--landmarks", "10,40", "--folds", "3", "--json", record, "--plots", plots]
    text = succeed("tune", world.store, out, *args)
    assert "24 of 24 judged by 3 folds" in text and "halving" in text and "heuristic" in text
    known = json.loads(record.read_text())
    assert known["search"]["grid"]["gamma"] == pytest.approx([0.25, 0.5, 1.0, 2.0])
    assert {p.name for p in plots.iterdir()} == {"search-10.png", "search-40.png"}
    assert not (tmp_path / "m.bsm.work").exists()
    assert "accuracy" in succeed("evaluate", out, world.store)
    model = Model.load(out)
    best = model.provenance["search"]["best"]
    assert model.provenance["parameters"]["C"] == best["C"] == known["search"]["best"]["C"]
    assert "exists" in bigscreen("tune", world.store, out, *SMALL).stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--gamma", "1,1"], "comes twice"),
        (["--gamma", "0,1"], "values of gamma must lie"),
        (["--gamma", "2^-1:x:3"], "FROM:TO:COUNT"),
        (["--gamma", "2:1:3"], "must go up"),
        (["--C", "0:1:3"], "must go up"),
        (["--C", "-1"], "value 1 is -1"),
        (["--C", "1", "--nu", ".2"], "give --C or --nu"),
        (["--landmarks", "5,5"], "comes twice"),
        (["--landmarks", "601"], "more than the 600 rows"),
        (["--landmarks", "x"], "whole numbers"),
        (["--landmarks", "5", "--exact"], "no meaning with --exact"),
        (["--folds", "400"], "ask for at most"),
        (["--kernel", "linear"], "over gamma"),
        (["--elimination", "lucky"], "halving"),
        (["--resume"], "nothing to resume"),
        (["--time-budget", "0.000001s"], "time budget ended"),
    ],
)
def test_mistakes_are_one_sentence(args, words, world: World, tmp_path):  # noqa: F811
    result = bigscreen("tune", world.store, tmp_path / "m.bsm", *args)
    assert result.exit_code == 2 and words in result.stderr
    assert result.stderr.strip().count("\n") <= 1
    assert not (tmp_path / "m.bsm").exists()


def test_rare_labels_are_judged_by_balanced_accuracy(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    often = X[:, 0] + 0.5 * rng.normal(size=400) < 1.5
    lines = [f"{a:.4f},{b:.4f},{'no' if o else 'yes'}" for (a, b), o in zip(X, often, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,label", *lines]) + "\n")
    succeed("ingest", tmp_path / "t.csv", tmp_path / "s")
    own = [*SMALL, "--landmarks", 40, "--folds", 3, "--class-weight", "balanced"]
    text = succeed("tune", tmp_path / "s", tmp_path / "m.bsm", *own)
    assert "have the label yes, so candidates are judged by balanced accuracy" in text
    assert Model.load(tmp_path / "m.bsm").provenance["search"]["scoring"] == "balanced accuracy"
    text = succeed("tune", tmp_path / "s", tmp_path / "n.bsm", *own, "--metric", "auc")
    assert "so candidates are judged" not in text and "AUC" in text
    again = bigscreen("tune", tmp_path / "s", tmp_path / "n.bsm", *own, "--resume")
    assert again.exit_code == 2 and "scoring" in again.stderr
    wrong = bigscreen("tune", tmp_path / "s", tmp_path / "o.bsm", *own, "--metric", "r2")
    assert wrong.exit_code == 2 and "these rows have labels" in wrong.stderr


HELD = ["--gamma", ".05:20:40", "--C", ".01:100:15", "--landmarks", "60"]
# A part of the rows fits, all of them do not: those are solved over passes.
STREAMED = ["--gamma", ".5,1,2", "--C", ".1:10:4", "--landmarks", "60", "--elimination", "none"]
STREAMED += ["--memory", 400 * 2**20 + 600 * PATH.row_bytes + 4 * 500 * 60]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "kept", "files"),
    [
        (HELD, "rung-*/*.kept", 30),
        (STREAMED, "features/fold-*/done.kept", 7),  # amid the first
    ],
)
def test_a_search_survives_its_process(args, kept, files, world: World, tmp_path):  # noqa: F811
    whole, out = tmp_path / "whole.bsm", tmp_path / "out.bsm"
    args = [*args, "--threads", "1", "--tol", "1e-4"]
    succeed("tune", world.store, whole, *args)
    running = process("tune", world.store, out, *args)
    work = tmp_path / "out.bsm.work"
    while len(list(work.glob(kept))) < files and running.poll() is None:
        time.sleep(0.002)
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=60)
    assert running.returncode == -9 and not out.exists()
    assert "--resume" in bigscreen("tune", world.store, out, *args).stderr
    stamps = {file: file.stat().st_mtime_ns for file in work.glob("rung-*/*.kept")}
    seen = []
    read = streamed_module.FoldsJob
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamed_module, "FoldsJob", lambda *all: seen.append(1) or read(*all))
        succeed("tune", world.store, out, *args, "--resume")
    # (Folds of a group are kept together.)
    left = 0 if args[:2] == HELD[:2] else 3 - len(stamps) // 5
    assert len(seen) == left and not work.exists()
    one, other = Model.load(whole), Model.load(out)
    assert np.array_equal(one.coef, other.coef)
    same = [m.provenance["search"]["candidates"] for m in (one, other)]
    assert same[0] == same[1]
    assert one.provenance["search"]["best"] == other.provenance["search"]["best"]


@pytest.mark.slow
def test_workers_come_to_the_same_bits(world: World, tmp_path):  # noqa: F811
    args = ["--gamma", ".5,1", "--C", ".1,1", "--landmarks", "20", "--folds", "2"]
    models = []
    for where in (["--workers", "1"], ["--workers", "2"]):
        out = tmp_path / f"{len(models)}.bsm"
        succeed("tune", world.store, out, *args, *where)
        models.append(Model.load(out))
    one, two = models
    assert np.array_equal(one.coef, two.coef)
    same = [m.provenance["search"]["candidates"] for m in models]
    assert same[0] == same[1] and all(point["gap"] <= 1e-3 for point in same[0])
