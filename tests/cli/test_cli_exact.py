"""The exact kernel machine from the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli_world import N, World, bigscreen, succeed, world
from sklearn import svm

from bigscreen.data.dataset import Dataset
from bigscreen.model.model import Model

__all__ = ["world"]  # a fixture

EXACT = ["--exact", "--gamma", "1", "--threads", "1"]


def rows_of(store: Path) -> tuple[np.ndarray, np.ndarray]:
    """Load the features and labels of a store in the source's order."""
    data = Dataset.open(store)
    order = np.argsort(data.row_ids(0, data.n_rows))
    return data.X(0, data.n_rows)[order].astype(np.float64), data.y(0, data.n_rows)[order]


def test_the_machine_is_scikit_learns(world: World, tmp_path: Path) -> None:
    model, record = tmp_path / "m.bsm", tmp_path / "fit.json"
    args = ["--intercept", "true", "--tol", "1e-7", "--C", "2", "--json", record, "--verbose"]
    shown = " ".join(succeed("fit", world.store, model, *EXACT, *args).replace("│", "").split())
    assert "relative gap" in shown and f"all {N} rows" in shown and "exact" in shown
    known = json.loads(record.read_text())
    assert 0 <= known["relative_gap"] <= 1e-7 and known["features"] == "exact"
    X, y = rows_of(world.store)
    theirs = svm.SVC(gamma=1.0, C=2.0, tol=1e-9).fit(X, y)
    found = Model.load(model)
    # Numbers of the source's rows, in whatever order the store holds them.
    assert sorted(found.support) == sorted(theirs.support_)
    out = tmp_path / "p.npy"
    succeed("predict", model, world.store, out)
    scores = np.load(out)["score"]
    np.testing.assert_allclose(scores, theirs.decision_function(X), atol=1e-3)
    report = tmp_path / "e.json"
    succeed("evaluate", model, world.store, "--json", report)
    assert json.loads(report.read_text())["accuracy"] == pytest.approx(theirs.score(X, y))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "e.json",
        "fit.json",
        "m.bsm",
        "p.npy",
    ]


def test_info_says_that_a_model_is_exact(world: World, tmp_path: Path) -> None:
    model = tmp_path / "m.bsm"
    succeed("fit", world.store, model, *EXACT)
    shown = succeed("info", model, "--json", tmp_path / "i.json")
    record = json.loads((tmp_path / "i.json").read_text())
    assert record["exact"] and record["landmarks"] == len(Model.load(model).support)
    assert "support rows" in shown and "relative gap" in shown
    assert "landmarks" in succeed("info", world.model)


@pytest.mark.parametrize(
    "options",
    [
        ["--solver", "block", "--cache", "100kB"],
        ["--solver", "pairs", "--screening", "joachims", "--patience", "5"],
        ["--screening", "gap", "--intercept", "none"],
        ["--screening", "adaptive"],
        ["--start", "divide", "--parts", "6", "--levels", "2"],
        ["--start", "nystrom"],
    ],
    ids=" ".join,
)
def test_every_option_of_an_exact_fit_is_taken(
    options: list[str], world: World, tmp_path: Path
) -> None:
    model, record = tmp_path / "m.bsm", tmp_path / "fit.json"
    succeed("fit", world.store, model, *EXACT, *options, "--json", record)
    assert json.loads(record.read_text())["relative_gap"] <= 1e-3
    chosen = Model.load(model).provenance["parameters"]
    for name, value in zip(options[::2], options[1::2], strict=True):
        found = chosen[name.removeprefix("--")]
        assert str(found) == value or (name, found) == ("--cache", 100_000)


def test_early_fits_have_no_certificate(world: World, tmp_path: Path) -> None:
    model, record = tmp_path / "m.bsm", tmp_path / "fit.json"
    result = bigscreen(
        "fit", world.store, model, *EXACT, "--early", "--parts", "3", "--json", record
    )
    assert result.exit_code == 0, result.output
    assert "no global certificate" in result.stderr
    known = json.loads(record.read_text())
    assert known["certificates"] is None and known["relative_gap"] is None
    assert "parts" in succeed("info", model)
    succeed("evaluate", model, world.store, "--json", tmp_path / "e.json")
    assert json.loads((tmp_path / "e.json").read_text())["error"] < 0.2


def test_one_against_one_has_a_machine_for_each_pair(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    names = np.array(["ant", "bee", "cat"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    lines = [f"{a:.5f},{b:.5f},{name}" for (a, b), name in zip(X, names, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,kind", *lines]) + "\n")
    store, model, record = tmp_path / "s", tmp_path / "m", tmp_path / "fit.json"
    succeed("ingest", tmp_path / "rows.csv", store, "--label", "kind")
    shown = succeed("fit", store, model, *EXACT, "--strategy", "one", "--json", record)
    assert "3 pairs of labels" in shown
    known = json.loads(record.read_text())
    assert [c["label"] for c in known["certificates"]] == ["ant vs bee", "ant vs cat", "bee vs cat"]
    succeed("predict", model, store, tmp_path / "p.csv", "--scores")
    header, first, *_ = (tmp_path / "p.csv").read_text().splitlines()
    assert header == "row,label,score_ant,score_bee,score_cat" and first.count(",") == 4
    succeed("evaluate", model, store, "--json", tmp_path / "e.json")
    assert json.loads((tmp_path / "e.json").read_text())["accuracy"] > 0.95
    assert "one for each pair of labels" in succeed("plan", store, *EXACT, "--strategy", "one")


def test_plan_of_an_exact_fit_says_the_columns_kept(world: World, tmp_path: Path) -> None:
    record = tmp_path / "p.json"
    shown = succeed("plan", world.store, *EXACT, "--memory", "4GiB", "--json", record)
    assert "kernel columns kept" in shown and "landmarks" not in shown
    known = json.loads(record.read_text())
    assert known["cache_bytes"] == 4 * N * N and known["features"] == "exact"
    refused = bigscreen("plan", world.store, *EXACT, "--memory", "1MiB")
    assert refused.exit_code == 2 and len(refused.stderr.splitlines()) == 1
    assert "kernel columns" in refused.stderr and "allow more memory" in refused.stderr
    fit = bigscreen("fit", world.store, tmp_path / "m.bsm", *EXACT, "--memory", "1MiB")
    assert fit.exit_code == 2 and fit.stderr == refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.json"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--exact", "--landmarks", "20"], "--landmarks has no meaning with --exact"),
        (["--exact", "--sampling", "uniform"], "--sampling has no meaning with --exact"),
        (["--exact", "--features", "stored"], "--features has no meaning with --exact"),
        (["--exact", "--solver", "newton"], "use block or pairs"),
        (["--solver", "block"], "solver block is for exact machines"),
        (["--cache", "1GiB"], "--cache has no meaning without --exact"),
        (["--early"], "--early has no meaning without --exact"),
        (["--exact", "--parts", "3"], "--parts has no meaning without --start divide or --early"),
        (["--exact", "--levels", "2"], "--levels has no meaning without --start divide"),
        (["--exact", "--early", "--start", "nystrom"], "does not go with --start nystrom"),
        (["--exact", "--patience", "3"], "--patience has no meaning but with --screening joachims"),
        (["--exact", "--f", ".5"], "--f has no meaning but with --screening f-safe"),
        (["--screening", "joachims"], "joachims is for exact machines"),
        (["--exact", "--strategy", "one"], "--strategy has no meaning with two labels"),
        (["--kernel", "linear", "--landmarks", "9"], "--landmarks has no meaning with --kernel"),
        (["--exact", "--start", "divide", "--parts", "9999"], "9999 parts were asked for"),
    ],
    ids=str,
)
def test_contradicting_options_are_refused(
    options: list[str], message: str, world: World, tmp_path: Path
) -> None:
    result = bigscreen("fit", world.store, tmp_path / "m.bsm", *options)
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
    assert message in result.stderr
    assert not list(tmp_path.iterdir())
