"""The command line as a person uses it."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import numpy as np
import pytest
from cli_world import FIT, N, World, bigscreen, process, succeed, world, write_csv
from rich.console import Console

from bigscreen.cli.commands import group
from bigscreen.cli.common import Bytes, Seconds
from bigscreen.data.dataset import Dataset
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest
from bigscreen.model.model import Model
from bigscreen.report.report import FitReport, write_json

__all__ = ["world"]  # a fixture


def test_fit_writes_a_certificate(world: World) -> None:
    record = json.loads(world.fit_json.read_text())
    assert record["gap"] == pytest.approx(record["primal"] - record["dual"], rel=1e-6)
    assert 0 <= record["relative_gap"] <= 1e-3
    assert record["rows"] == N and 0 <= record["rows_alive"] <= N
    assert record["rounding_bound"] >= 0 and record["n_iter"] >= 1
    assert {"features", "solve", "certify", "total"} <= set(record["seconds"])
    assert record["peak_pss_bytes"] > 1e6
    assert {"solver", "features", "screening"} <= set(record)


def test_evaluate_and_predict_agree(world: World, tmp_path: Path) -> None:
    out, report = tmp_path / "out.csv", tmp_path / "e.json"
    shown = succeed("evaluate", world.model, world.store, "--json", report)
    record = json.loads(report.read_text())
    assert record["rows"] == N and record["error"] < 0.2 and record["auc"] > 0.85
    assert record["accuracy"] == pytest.approx(1 - record["error"])
    assert sum(sum(row.values()) for row in record["confusion"].values()) == N
    assert "error" in shown and "confusion" in shown
    succeed("predict", world.model, world.store, out)
    rows = [line.split(",") for line in out.read_text().splitlines()]
    assert rows[0] == ["row", "label", "score"]
    assert [int(row[0]) for row in rows[1:]] == list(range(N))
    truth = [line.rsplit(",", 1)[1] for line in world.csv.read_text().splitlines()[1:]]
    wrong = sum(row[1] != label for row, label in zip(rows[1:], truth, strict=True))
    assert wrong / N == pytest.approx(record["error"])
    assert all((float(row[2]) > 0) == (row[1] == "yes") for row in rows[1:])


def test_unlabelled_rows_are_predicted_alike(world: World, tmp_path: Path) -> None:
    succeed("predict", world.model, world.store, tmp_path / "a.npy")
    succeed("predict", world.model, world.unlabelled, tmp_path / "b.npy", "--scores")
    a, b = (np.load(tmp_path / name, allow_pickle=False) for name in ("a.npy", "b.npy"))
    np.testing.assert_array_equal(a["label"], b["label"])


def test_ingest_holdout_and_info(world: World, tmp_path: Path) -> None:
    args = ["--label", "inside", "--holdout", "0.25", "--json", tmp_path / "i.json"]
    succeed("ingest", world.csv, tmp_path / "s", *args)
    made = json.loads((tmp_path / "i.json").read_text())
    parts = [made["store"], made["holdout"]]
    assert sum(part["rows"] for part in parts) == N
    assert 0.15 * N < parts[1]["rows"] < 0.35 * N
    for part in parts:
        assert "yes" in succeed("info", part["path"], "--json", tmp_path / "info.json")
        said = json.loads((tmp_path / "info.json").read_text())
        assert said == {"schema": "bigscreen/info/1", **part}
    shown = succeed("info", world.model, "--json", tmp_path / "m.json")
    assert "rbf" in shown and "40" in shown
    assert json.loads((tmp_path / "m.json").read_text())["labels"] == ["no", "yes"]


def test_mistakes_name_options_as_they_are_typed(tmp_path: Path) -> None:
    """Errors of `bigscreen.ingest` name its Python arguments; the command names its options."""
    table, out = tmp_path / "t.csv", tmp_path / "t.store"
    for cell, python, typed in (
        ("1,5", "(`decimal=','`)", "(--decimal ,)"),
        ("n/k", "(`missing='n/k'`)", "(--missing n/k)"),
        ("no idea", "(`missing='no idea'`)", "(--missing 'no idea')"),
        ("", "(`drop_missing`)", "(--drop-missing)"),
    ):
        table.write_text("a;b;label\n1;2;x\n3;4;y\n" + f"{cell};6;x\n")
        with pytest.raises(InputError) as refused:
            ingest([table], out)
        assert python in str(refused.value)
        result = bigscreen("ingest", table, out)
        assert result.exit_code == 2 and typed in result.stderr and "`" not in result.stderr


def test_plan_shows_rows_memory_and_refusals(world: World, tmp_path: Path) -> None:
    shown = succeed(
        "plan", world.store, "--memory", "4GiB", "--json", tmp_path / "p.json", *FIT[:4]
    )
    assert "600" in shown and json.loads((tmp_path / "p.json").read_text())["rows"] == N
    refused = bigscreen("plan", world.store, "--memory", "1KiB", *FIT[:4])
    assert refused.exit_code == 2 and len(refused.stderr.splitlines()) == 1
    assert re.search(r"\d", refused.stderr)


def test_a_missed_gap_is_said(world: World, tmp_path: Path) -> None:
    args = [*FIT, "--tol", "1e-13", "--max-iter", "2", "--json", tmp_path / "f.json"]
    result = bigscreen("fit", world.store, tmp_path / "m.bsm", *args)
    assert result.exit_code == 0
    assert "missed" in result.stderr and "warning" in result.stderr
    assert json.loads((tmp_path / "f.json").read_text())["relative_gap"] > 1e-13


@pytest.mark.parametrize("command", [[], *([name] for name in group.commands)])
def test_help_has_an_example(command: list[str]) -> None:
    shown = succeed(*command, "--help")
    assert f"bigscreen {command[0] if command else 'demo'}" in shown
    if command:
        assert "Example" in shown and "--json FILE" in shown
    assert max(map(len, shown.splitlines())) <= 80, "lines of a help text fit a terminal"


def test_help_waits_for_nothing_that_is_slow_to_import() -> None:
    slow = "{'numba', 'scipy', 'sklearn', 'rich', 'dask', 'zarr'}"
    code = f"import sys, bigscreen.cli.commands; print(*{slow} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.slow
def test_a_fit_and_its_workers_import_nothing_for_what_seldom_happens() -> None:
    """scikit-learn, imported only for its warning class, took longer than all other imports."""
    slow = "{'sklearn', 'scipy.stats', 'scipy.optimize'}"
    made = "bigscreen.train.run, bigscreen.path.run, bigscreen.intake.ingest, bigscreen.fleet.local"
    code = f"import sys, {made}; print(*{slow} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.slow
def test_processes_give_the_same_model(world: World, tmp_path: Path) -> None:
    """A fit in a real process shows plain progress on stderr, and so does one on workers."""
    fit = process("fit", world.store, tmp_path / "m.bsm", *FIT[:4], "--workers", "1")
    out, err = fit.communicate(timeout=120)
    assert fit.returncode == 0, err
    assert "Certificate" in out and "relative gap" in out
    assert "pass 1" in err and "open" in err and "\x1b" not in err
    np.testing.assert_array_equal(Model.load(tmp_path / "m.bsm").coef, Model.load(world.model).coef)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.bsm"]


def interrupt(command: subprocess.Popen[str]) -> str:
    """Press Ctrl-C; return the output."""
    # As a terminal does it: the whole group of processes hears it.
    os.killpg(command.pid, signal.SIGINT)
    _, said = command.communicate(timeout=60)
    assert command.returncode == 130 and "Traceback" not in said
    return said


@pytest.mark.slow
def test_an_interrupted_fit_goes_on(world: World, tmp_path: Path) -> None:
    options = ["--landmarks", "200", "--gamma", "1", "--C", "10", "--tol", "1e-7"]
    options += ["--solver", "newton", "--max-iter", "12"]
    model = tmp_path / "m.bsm"
    fit = process("fit", world.store, model, *options, "--workers", "1", start_new_session=True)
    assert fit.stderr is not None
    while "pass 1 " not in fit.stderr.readline():
        assert fit.poll() is None
    said = interrupt(fit)
    assert f"{model}.work" in said and "--resume" in said and not model.exists()
    again = bigscreen("fit", world.store, model, *options)
    assert again.exit_code == 2 and "--resume" in again.stderr and "--overwrite" in again.stderr
    other = bigscreen("fit", world.store, model, *options, "--seed", "7", "--resume")
    assert other.exit_code == 2 and "seed" in other.stderr
    succeed("fit", world.store, model, *options, "--resume")
    succeed("fit", world.store, tmp_path / "whole.bsm", *options)
    resumed, whole = Model.load(model), Model.load(tmp_path / "whole.bsm")
    np.testing.assert_array_equal(resumed.coef, whole.coef)
    assert resumed.provenance["certificates"] == whole.provenance["certificates"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.bsm", "whole.bsm"]


def test_an_interrupted_ingest_goes_on(tmp_path: Path) -> None:
    rows, store = write_csv(tmp_path / "rows.csv", n=100_000), tmp_path / "s"
    args = ["ingest", rows, store, "--label", "inside"]
    ingest = process(*args, start_new_session=True)
    while not (tmp_path / "s.ingest.wip").exists():
        assert ingest.poll() is None
        time.sleep(0.001)
    said = interrupt(ingest)
    assert "run the same command again" in said and not store.exists()
    succeed(*args)
    succeed("ingest", rows, tmp_path / "whole", "--label", "inside")
    assert Dataset.open(store).fingerprint == Dataset.open(tmp_path / "whole").fingerprint


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4GiB", 4 << 30), ("500MB", 500_000_000), ("1.5 k", 1536), ("7", 7), ("2tb", 2 * 10**12)],
)
def test_sizes_are_read_with_their_units(text: str, expected: int) -> None:
    assert Bytes().convert(text, None, None) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90.0), ("10m", 600.0), ("2h", 7200.0), ("1.5 min", 90.0)]
)
def test_times_are_read_with_their_units(text: str, expected: float) -> None:
    assert Seconds().convert(text, None, None) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9x", "0", "nan", "4 GiB each"])
def test_bad_sizes_and_times_are_refused(text: str) -> None:
    for kind in (Bytes(), Seconds()):
        with pytest.raises(click.UsageError):
            kind.convert(text, None, None)


def pass_event(number: int, gap: float) -> dict[str, object]:
    return {
        "event": "pass",
        "pass": number,
        "primal": 2.5,
        "dual": 2.0,
        "relative_gap": gap,
        "rows_alive": 1234,
        "rows_visited": 2000,
        "seconds": 1.5,
        "memory": 3 << 20,
        "class": None,
    }


def test_plain_lines_are_few_and_end_with_the_last_pass() -> None:
    out = io.StringIO()
    with FitReport(Console(file=out, width=80)) as show:
        show({"event": "phase", "phase": "solve"})
        for number in range(1, 100):
            show(pass_event(number, 0.1 / number))
    first, last = out.getvalue().splitlines()
    assert first == "pass 1  P 2.5  D 2  relative gap 1.0e-01  1,234 rows open  1.50 s  3 MiB"
    assert last.startswith("pass 99")


def test_live_line_on_a_terminal() -> None:
    out = io.StringIO()
    with FitReport(Console(file=out, force_terminal=True, width=80)) as show:
        for phase in ("landmarks", "solve", "certify"):
            show({"event": "phase", "phase": phase})
            if phase == "solve":
                show(pass_event(7, 3e-4))
    text = out.getvalue()
    assert "landmarks" in text and "relative gap 3.0e-04" in text and "certify" in text


def test_json_is_strict(tmp_path: Path) -> None:
    record = {"a": np.float32(0.5), "b": np.arange(2), "c": float("nan"), 3: (np.inf, Path("x"))}
    write_json(tmp_path / "r.json", record)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    read = json.loads((tmp_path / "r.json").read_text(), parse_constant=refuse)
    assert read == {"a": 0.5, "b": [0, 1], "c": None, "3": [None, "x"]}
