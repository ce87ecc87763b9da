"""Regressions and one-class machines on the command line: from a file to what a person reads."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli_world import World, bigscreen, succeed, world

__all__ = ["world"]  # a fixture

LINEAR = ["--kernel", "linear", "--threads", "1"]


def test_info_of_targets(world: World, tmp_path: Path) -> None:
    text = succeed("info", world.targets, "--json", tmp_path / "i.json")
    assert "targets" in text and "-2 to 1.5" in text and "label" not in text
    record = json.loads((tmp_path / "i.json").read_text())
    assert record["regression"] and record["labels"] == {} and record["unlabelled"] == 0
    assert record["targets"] == {"rows": 600, "low": -2.0, "high": 1.5}
    of_labels = succeed("info", world.store, "--json", tmp_path / "j.json")
    record = json.loads((tmp_path / "j.json").read_text())
    assert "targets" not in of_labels and not record["regression"] and record["targets"] == {}


def test_a_regression(world: World, tmp_path: Path) -> None:
    model, out = tmp_path / "m.bsm", tmp_path / "out.csv"
    succeed("fit", world.targets, model, "--problem", "quantile", "--tau", 0.8, *LINEAR)
    text = succeed("info", model, "--json", tmp_path / "i.json")
    assert "regressor" in text and "labels" not in text
    assert json.loads((tmp_path / "i.json").read_text())["type"] == "regressor"
    text = succeed("evaluate", model, world.targets, "--json", tmp_path / "e.json")
    assert all(word in text for word in ("mae", "rmse", "r2", "pinball"))
    found = json.loads((tmp_path / "e.json").read_text())
    succeed("predict", model, world.targets, out, "--json", tmp_path / "p.json")
    assert json.loads((tmp_path / "p.json").read_text())["predicted"] == {}
    header, *lines = out.read_text().splitlines()
    assert header == "row,prediction" and len(lines) == 600
    guess = np.array([float(line.split(",")[1]) for line in lines])
    rows = world.csv.read_text().splitlines()[1:]
    truth = np.array([1.5 if row.endswith("yes") else -2.0 for row in rows])
    error = truth - guess
    assert found["mae"] == pytest.approx(np.abs(error).mean(), rel=1e-12)
    assert found["pinball"] == pytest.approx(np.maximum(0.8 * error, -0.2 * error).mean())


def test_a_one_class_machine(world: World, tmp_path: Path) -> None:
    bare, model = tmp_path / "bare", tmp_path / "m.bsm"
    succeed("ingest", world.csv, bare, "--unlabelled", "--label", "inside", "--scale", "standard")
    assert "without a label" in succeed("info", bare)
    succeed("fit", bare, model, "--problem", "one-class", "--nu", 0.2, "--gamma", 1, "--threads", 1)
    assert "one-class" in succeed("info", model)
    assert "outside" in (text := succeed("evaluate", model, bare)) and "auc" not in text
    labelled = tmp_path / "labelled"
    succeed("ingest", world.csv, labelled, "--label", "inside", "--like", model)
    text = succeed("evaluate", model, labelled, "--positive", "no", "--json", tmp_path / "e.json")
    assert "outside of yes" in text and "positive label" in text
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["positive"] == "no" and found["rows"] == 600
    other = tmp_path / "f.json"
    succeed("evaluate", model, labelled, "--json", other)
    assert json.loads(other.read_text())["auc"] == pytest.approx(1 - found["auc"])
    succeed("predict", model, bare, tmp_path / "out.csv")
    header, *lines = (tmp_path / "out.csv").read_text().splitlines()
    assert header == "row,label,score" and {line.split(",")[1] for line in lines} == {"-1", "1"}
    out = np.mean([line.split(",")[1] == "-1" for line in lines])
    assert out == found["outside"] and 0.1 < out <= 0.21


def test_fit_and_tune_warn_of_a_model_that_is_a_constant(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [
        "a,b,label",
        *(
            f"{a},{b},{'no' if k % 20 else 'yes'}"
            for k, (a, b) in enumerate(rng.normal(size=(200, 2)))
        ),
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "r.csv").write_text("\n".join(lines).replace("no", "1").replace("yes", "9") + "\n")
    succeed("ingest", tmp_path / "t.csv", tmp_path / "s")
    succeed("ingest", tmp_path / "r.csv", tmp_path / "r", "--regression")
    own = ["--landmarks", 20, "--threads", 1]
    found = bigscreen("fit", tmp_path / "s", tmp_path / "m", *own, "--C", 1e-3)
    assert "warning: every row is predicted to be no: fit with --class-weight" in found.stderr
    found = bigscreen(
        "fit",
        tmp_path / "s",
        tmp_path / "b",
        *own,
        "--class-weight",
        "balanced",
        "--gamma",
        5,
        "--C",
        10,
    )
    assert found.exit_code == 0 and "predicted to be" not in found.stderr
    found = bigscreen(
        "tune", tmp_path / "s", tmp_path / "u", *own, "--C", "1e-4,1e-3", "--gamma", 1
    )
    assert "warning: every row is predicted to be no" in found.stderr
    found = bigscreen(
        "fit", tmp_path / "r", tmp_path / "v", *own, "--problem", "svr", "--epsilon", 2
    )
    assert "warning: the mean of the targets predicts no worse" in found.stderr
