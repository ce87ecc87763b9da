"""Probabilities, sets of labels and thresholds on the command line."""

import csv
import json

import pytest
from cli_world import FIT, bigscreen, succeed, world

__all__ = ["world"]  # a fixture


@pytest.fixture(scope="module")
def model(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("probable") / "m.bsm"
    succeed("fit", world.store, out, *FIT, "--probability")
    return out


def test_predict_writes_them(world, model, tmp_path):
    out = tmp_path / "p.csv"
    succeed("predict", model, world.store, out, "--probability", "--set", "0.2")
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    names = ["probability_no", "probability_yes", "in_no", "in_yes"]
    assert list(rows[0]) == ["row", "label", "score", *names] and len(rows) == 600
    for row in rows:
        p = {label: float(row[f"probability_{label}"]) for label in ("no", "yes")}
        assert sum(p.values()) == pytest.approx(1) and max(p, key=p.get) == row["label"]
    rare = tmp_path / "rare.csv"
    succeed("predict", model, world.store, rare, "--probability", "--prior", "yes=.01")
    with open(rare, newline="") as file:
        again = [float(row["probability_yes"]) for row in csv.DictReader(file)]
    assert sum(again) < 0.8 * sum(float(row["probability_yes"]) for row in rows)


def test_evaluate_says_how_well_they_hold(world, model, tmp_path):
    said = succeed("evaluate", model, world.store, "--json", tmp_path / "e.json")
    record = json.loads((tmp_path / "e.json").read_text())
    assert "reliability" in said and "labels in a set" in said
    assert record["log_loss"] < 0.69 and record["sets"]["coverage"] > 0.8
    found = {}
    for rule in ("recall:.99", "precision:.99"):
        succeed("evaluate", model, world.store, "--threshold", rule, "--json", tmp_path / "t.json")
        found[rule] = json.loads((tmp_path / "t.json").read_text())["by_label"]["yes"]
    assert found["recall:.99"]["recall"] > 0.97 > 0.95 > found["precision:.99"]["recall"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--threshold", "f2"), "a threshold is one of f1, precision:P"),
        (("--probability", "--prior", "yes"), "--prior must be LABEL=SHARE"),
        (("--prior", "yes=.1"), "--prior is for the probabilities of --probability"),
        (("--probability", "--prior", "maybe=1"), "the prior names 'maybe'"),
        (("--set", "2"), "--set or --interval must lie strictly between 0 and 1"),
    ],
)
def test_bad_input_is_one_sentence(world, model, tmp_path, given, words):
    result = bigscreen("predict", model, world.store, tmp_path / "p.csv", *given)
    assert result.exit_code == 2 and result.stderr.startswith("error: ")
    assert words in result.stderr and not (tmp_path / "p.csv").exists()


def test_a_model_without_them_says_how_to_have_them(world, tmp_path):
    for given in (("--probability",), ("--set", "0.1"), ("--threshold", "f1")):
        result = bigscreen("predict", world.model, world.store, tmp_path / "p.csv", *given)
        assert result.exit_code == 2 and "fitted with `--probability`" in result.stderr
    fit = ("fit", world.targets, tmp_path / "m", "--problem", "one-class", "--nu", "0.1")
    result = bigscreen(*fit, "--probability")
    assert result.exit_code == 2 and "--probability has no meaning with" in result.stderr


def test_intervals_of_a_regression(world, tmp_path):
    model = tmp_path / "r.bsm"
    succeed("fit", world.targets, model, "--problem", "svr", *FIT, "--probability")
    widths = []
    for name, more in (("p.csv", ()), ("c.csv", ("--cross",))):
        out = tmp_path / name
        succeed("predict", model, world.targets, out, "--interval", "0.2", *more)
        with open(out, newline="") as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == ["row", "prediction", "low", "high"]
        ends = [(float(row["low"]), float(row["high"])) for row in rows]
        assert all(low < high for low, high in ends)
        widths.append({round(high - low, 9) for low, high in ends})
    assert len(widths[0]) <= 5 < len(widths[1])
    said = succeed("evaluate", model, world.targets, "--json", tmp_path / "e.json")
    record = json.loads((tmp_path / "e.json").read_text())["intervals"]
    assert "intervals at 0.1 hold the target of" in said and "mean width of an interval" in said
    assert record["alpha"] == 0.1 and record["coverage"] > 0.8 and record["width"] > 0
    said = bigscreen("predict", model, world.targets, tmp_path / "w.csv", "--interval", "1e-3")
    assert said.exit_code == 0 and "need 999 rows held out and a fold holds" in said.stderr
    for given, words in (
        (("--cross",), "--cross is for the intervals of a regression"),
        (("--probability",), "probabilities, sets of labels and thresholds are of a classifier"),
    ):
        result = bigscreen("predict", model, world.targets, tmp_path / "x.csv", *given)
        assert result.exit_code == 2 and words in result.stderr
