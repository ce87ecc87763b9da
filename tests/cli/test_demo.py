"""`bigscreen demo` on few rows, in a process of its own and in this process."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from cli_world import bigscreen, process, succeed

from bigscreen.cli.demonstration import run
from bigscreen.data.dataset import Dataset
from bigscreen.errors import InputError
from bigscreen.evaluate.evaluate import evaluate
from bigscreen.model.model import Model

ROWS = 20_000


@pytest.mark.slow
def test_demo_shows_the_whole_way_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    args = ("demo", "--rows", ROWS, "--landmarks", 200, "--json", tmp_path / "demo.json")
    demo = process(*args, env=environment, cwd=tmp_path)
    out, err = demo.communicate(timeout=240)
    assert demo.returncode == 0, err
    for word in ("stand-in", "Certificate", "relative gap", "linear", "best possible", "peak"):
        assert word in out, word
    assert "\x1b" not in out + err
    record = json.loads((tmp_path / "demo.json").read_text())
    assert record["rows_trained"] + record["rows_held_out"] == ROWS
    error = record["error"]
    assert error["bayes"] < 0.205 and error["curved"] < error["straight"] - 0.01
    for model in ("curved", "straight"):
        assert record[model]["relative_gap"] <= 1e-3
        assert record[model]["rows"] == record["rows_trained"]
    assert record["curved"]["features"] == "stored" and record["workers"] == 2
    assert "stand-in" in record["standin"]
    assert record["seconds"]["total"] > record["seconds"]["fit curved"] > 0
    assert list((tmp_path / "temporary").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.json", "temporary"]


def test_what_is_kept_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "kept"
    record = run(rows=4000, landmarks=50, workers=1, keep=folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "curved.bsm",
        "straight.bsm",
        "susy-holdout.store",
        "susy.store",
    ]
    found = evaluate(Model.load(folder / "curved.bsm"), Dataset.open(folder / "susy-holdout.store"))
    assert found["error"] == pytest.approx(record["error"]["curved"])
    assert "bigscreen predict" in capsys.readouterr().out
    with pytest.raises(InputError, match="exists"):
        run(rows=4000, landmarks=50, workers=1, keep=folder)


def test_keep_is_said_on_the_command_line(tmp_path: Path) -> None:
    folder, record = tmp_path / "my-demo", tmp_path / "demo.json"
    args = ("demo", "--rows", 2000, "--landmarks", 20, "--workers", 1, "--seed", 3)
    shown = succeed(*args, "--keep", folder, "--json", record)
    assert re.search(rf"kept in +{re.escape(str(folder))[:30]}", shown.replace("\n", ""))
    assert json.loads(record.read_text())["kept"] == str(folder)
    assert Model.load(folder / "curved.bsm").landmarks.shape == (20, 18)
    refused = bigscreen(*args, "--keep", folder)
    assert refused.exit_code == 2 and "exists" in refused.stderr


def test_failures_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="landmarks"):
        run(rows=1000, landmarks=900, workers=1, keep=tmp_path / "a")
    with pytest.raises(InputError, match="needs about .* free"):
        run(rows=10**15, landmarks=500, workers=1, keep=tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_ctrl_c_within_a_fit_leaves_nothing(tmp_path: Path) -> None:
    args = ("--rows", 100_000, "--landmarks", 1000, "--workers", 1, "--keep", tmp_path / "a")
    demo = process("demo", *args)
    while not (tmp_path / "a" / "work").exists() and demo.poll() is None:
        time.sleep(0.01)
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=240)
    assert demo.returncode == 130
    assert list(tmp_path.iterdir()) == []
