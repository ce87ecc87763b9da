"""Regressions, nu and one-class problems on the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli_world import World, bigscreen, succeed, world

from bigscreen.model.model import Model

__all__ = ["world"]  # a fixture


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store of rows with targets."""
    folder = tmp_path_factory.mktemp("numbers")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=300)
    np.savetxt(folder / "rows.csv", np.c_[X, y], delimiter=",", header="a,b,c,y", comments="")
    succeed("ingest", folder / "rows.csv", folder / "store", "--label", "y", "--regression")
    return folder / "store"


@pytest.mark.parametrize("how", [["--exact"], ["--landmarks", "40"], ["--kernel", "linear"]])
@pytest.mark.parametrize(
    "problem", [["svr", "--epsilon", ".2"], ["lad"], ["quantile", "--tau", "0.9"]]
)
def test_regressions(numbers: Path, problem: list[str], how: list[str], tmp_path: Path) -> None:
    args = ["--problem", *problem, *how, "--threads", "1"]
    planned = succeed("plan", numbers, *args)
    assert problem[0] in planned and "classifiers" not in planned
    out = [tmp_path / "m.bsm", "--json", tmp_path / "f.json", "--verbose"]
    shown = succeed("fit", numbers, *out, *args)
    assert problem[0] in shown
    assert "over all 300 rows" in " ".join(shown.replace("│", " ").split())
    record = json.loads((tmp_path / "f.json").read_text())
    assert record["problem"] == problem[0] and 0 <= record["relative_gap"] <= 1e-3
    model = Model.load(tmp_path / "m.bsm")
    assert model.kind == "regressor"
    used = model.provenance["parameters"]
    assert used["epsilon"] == (0.2 if problem[0] == "svr" else 0.1)
    assert used["tau"] == (0.9 if problem[0] == "quantile" else 0.5)


@pytest.mark.parametrize("how", [["--exact"], ["--landmarks", "40"]])
@pytest.mark.parametrize(
    "problem", [["one-class"], ["nu-svc"], ["nu-svc", "--intercept", "true"]], ids=" ".join
)
def test_problems_with_nu(world: World, problem: list[str], how: list[str], tmp_path: Path) -> None:
    args = ["--problem", *problem, "--nu", "0.2", *how, "--gamma", "1", "--threads", "1"]
    succeed("fit", world.store, tmp_path / "m.bsm", *args, "--json", tmp_path / "f.json")
    record = json.loads((tmp_path / "f.json").read_text())
    assert record["relative_gap"] <= 1e-3 and record["dual"] <= record["primal"] < 0
    model = Model.load(tmp_path / "m.bsm")
    assert model.labels == ([-1, 1] if problem[0] == "one-class" else ["no", "yes"])
    shown = succeed("predict", model_file(tmp_path), world.store, tmp_path / "p.csv")
    assert "600" in shown


def model_file(folder: Path) -> Path:
    return folder / "m.bsm"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--problem", "svr", "--nu", ".3"], "--nu has no meaning with --problem svr"),
        (["--problem", "nu-svc", "--C", "3"], "--C has no meaning with --problem nu-svc"),
        (["--problem", "one-class", "--lambda", "3"], "--lambda has no meaning"),
        (["--problem", "one-class", "--intercept", "true"], "--intercept has no meaning"),
        (["--problem", "one-class", "--no-intercept"], "--no-intercept has no meaning"),
        (["--problem", "one-class", "--class-weight", "balanced"], "--class-weight has no"),
        (["--epsilon", ".1"], "--epsilon has no meaning with --problem c-svc"),
        (["--problem", "svr", "--tau", ".1"], "--tau has no meaning with --problem svr"),
        (["--problem", "nu-svc", "--nu", "2"], "nu must lie in (0, 1], got '2'"),
        (["--problem", "svr", "--epsilon", "-1"], "epsilon must be a finite number, 0 or more"),
        (["--problem", "lad"], "lad needs targets"),
        (
            ["--problem", "nu-svc", "--nu", ".999", "--intercept", "true"],
            "the largest feasible nu is",
        ),
        (["--problem", "nu-svc", "--solver", "cd"], "cannot fit nu-svc"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_one_sentence(world: World, args: list[str], message: str, tmp_path: Path) -> None:
    result = bigscreen("fit", world.store, tmp_path / "m.bsm", *args, "--threads", "1")
    assert result.exit_code != 0 and message in " ".join(result.stderr.split())
    assert not (tmp_path / "m.bsm").exists()


def test_targets_are_no_labels(numbers: Path, tmp_path: Path) -> None:
    result = bigscreen("fit", numbers, tmp_path / "m.bsm", "--threads", "1")
    assert result.exit_code != 0 and "c-svc needs labels" in " ".join(result.stderr.split())
