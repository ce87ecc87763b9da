"""Regressions and one-class machines on the command line: from a file to what a person reads."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli_world import World, bigscreen, succeed, world

from bigscreen.data.dataset import Dataset
from bigscreen.model.model import Model
from bigscreen.report.report import percent

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
    # Right for every row of its fit, and for none of the rare label that it has not seen.
    succeed("ingest", tmp_path / "t.csv", tmp_path / "h", "--holdout", 0.5)
    wild = ["--exact", "--threads", 1, "--gamma", 1000, "--C", 100]
    found = bigscreen("fit", tmp_path / "h", tmp_path / "w", *wild)
    assert "warning: on the held-out rows, every row is predicted to be no: fit" in found.stderr
    found = bigscreen(
        "tune", tmp_path / "s", tmp_path / "u", *own, "--C", "1e-4,1e-3", "--gamma", 1
    )
    assert "warning: every row is predicted to be no" in found.stderr
    found = bigscreen(
        "fit", tmp_path / "r", tmp_path / "v", *own, "--problem", "svr", "--epsilon", 2
    )
    assert "warning: the mean of the targets predicts no worse" in found.stderr


def test_raw_files_are_read_through_the_model(world: World, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    header, *lines = world.csv.read_text().splitlines()
    new.write_text("\n".join([header, *reversed(lines)]) + "\n")
    succeed("ingest", new, tmp_path / "s", "--like", world.model)
    answers = []
    for rows in (new, tmp_path / "s"):
        out = tmp_path / f"{rows.name}.out.csv"
        succeed("predict", world.model, rows, out)
        found = json_of("evaluate", world.model, rows, folder=tmp_path)
        answers.append((out.read_text(), found))
    assert answers[0] == answers[1]
    bare = tmp_path / "bare.csv"
    bare.write_text("\n".join(line.rsplit(",", 1)[0] for line in new.read_text().splitlines()))
    succeed("predict", world.model, bare, tmp_path / "bare.out.csv")
    assert (tmp_path / "bare.out.csv").read_text() == answers[0][0]
    failed = bigscreen("evaluate", world.model, bare)
    assert failed.exit_code == 2 and "bare.csv has no labelled row" in failed.stderr
    linear = tmp_path / "l.bsm"
    succeed("fit", world.store, linear, *LINEAR)
    parts = [
        json_of("explain", linear, rows, "--row", 7, folder=tmp_path)
        for rows in (new, tmp_path / "s")
    ]
    assert parts[0] == parts[1] and len(parts[0]["parts"]) == 3
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    failed = bigscreen("predict", world.model, other, tmp_path / "o.csv")
    assert failed.exit_code == 2 and not (tmp_path / "o.csv").exists()


def json_of(*args: object, folder: Path) -> dict:
    """Run a command, and return what it writes as JSON."""
    succeed(*args, "--json", folder / "found.json")
    return json.loads((folder / "found.json").read_text())


def test_poly_is_the_polynomial_kernel(world: World, tmp_path: Path) -> None:
    models = []
    for name in ("poly", "polynomial"):
        out = tmp_path / f"{name}.bsm"
        succeed("fit", world.store, out, "--kernel", name, "--degree", 2, "--landmarks", 20)
        models.append(Model.load(out))
    assert np.array_equal(models[0].coef, models[1].coef)
    asked = [model.provenance["parameters"] for model in models]
    assert asked[0] == asked[1] and asked[0]["kernel"]["name"] == "polynomial"


def test_stores_and_models_are_shown_in_a_line_and_in_notebooks(world: World) -> None:
    model, store = Model.load(world.model), Dataset.open(world.store)
    assert repr(model) == "<Model classifier: rbf, gamma 1 on 40 landmarks, 3 features>"
    assert "600 dense rows" in repr(store) and len(repr(store)) < 200
    page = store._repr_html_()
    assert "600 rows" in page and "scaling" in page and "no (" in page
    assert "targets" in Dataset.open(world.targets)._repr_html_()


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (0.25, 2, "25.00%"),
        (0.004, 0, "0.4%"),
        (0.99996, 2, "99.996%"),
        (0.0, 0, "0%"),
        (1, 1, "100.0%"),
    ],
)
def test_small_shares_are_not_shown_as_nothing(share: float, digits: int, text: str) -> None:
    assert percent(share, digits) == text
