"""Contributions of support rows or columns add up to a row's score."""

import csv
import json

import numpy as np
import pytest
from cli_world import bigscreen, succeed

import bigscreen as package
from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.fleet.inline import Inline
from bigscreen.model.explain import explain_score
from bigscreen.options.train import TrainOptions
from bigscreen.train.run import train


def rows(labels=2, n=240):
    rng = np.random.default_rng(0)
    codes = np.arange(n) % labels
    X = rng.normal(size=(n, 4)).astype(np.float32)
    X[:, 1] += 3 * codes
    if labels == 1:
        return MemoryDataset(X, X[:, 1] * 2.0 + 0.1 * X[:, 2], None)
    return MemoryDataset(X, codes, [f"l{c}" for c in range(labels)])


def fitted(data, **how):
    with Inline(1) as fleet:
        return train(data, TrainOptions(**how), fleet)


@pytest.mark.parametrize(
    ("labels", "how"),
    [
        (2, {"exact": True, "gamma": 0.3}),
        (2, {"kernel": "linear"}),
        (3, {"exact": True, "gamma": 0.3}),
        (3, {"exact": True, "gamma": 0.3, "strategy": "one"}),
        (1, {"problem": "svr", "exact": True, "gamma": 0.3}),
        (2, {"landmarks": 40, "gamma": 0.3}),
        (3, {"landmarks": 40, "gamma": 0.3}),
    ],
)
def test_the_parts_add_up_to_the_score(labels, how):
    data = rows(labels)
    model = fitted(data, **how)
    for row in (0, 7, 100):
        found = explain_score(model, data, row)
        scores = model.scores(data.X(row, row + 1), prepared=True)
        total = found["offset"] + sum(part["part"] for part in found["parts"])
        assert total == pytest.approx(found["score"], abs=1e-9)
        if labels == 1:
            assert found["prediction"] == pytest.approx(found["score"], abs=1e-4)
        elif how.get("strategy") != "one":
            code = model.decide(scores)[0]
            own = scores[0, 0 if labels == 2 else code]
            assert found["label"] == model.labels[code]
            assert found["score"] == pytest.approx(own, abs=1e-4)
        else:
            assert found["score"] > 0, "the label that won is ahead in its pairs"
        sizes = [abs(part["part"]) for part in found["parts"]]
        assert sizes == sorted(sizes, reverse=True)
        if found["by"] == "rows" and model.support is not None:
            assert {part["row"] for part in found["parts"]} <= set(model.support.tolist())


def test_parts_of_landmarks_are_named_by_rows_or_places():
    data = rows()
    model = fitted(data, landmarks=40)
    by_rows = explain_score(model, data, 0)
    del model.provenance["nystrom"]["rows"]  # (as of an older model, or of landmarks given)
    by_places = explain_score(model, data, 0)
    assert (by_rows["by"], by_places["by"]) == ("rows", "landmarks")
    parts = [[part["part"] for part in found["parts"]] for found in (by_rows, by_places)]
    assert parts[0] == parts[1]
    ids = data.row_ids(0, data.n_rows)
    landmark, row = by_places["parts"][0]["landmark"], by_rows["parts"][0]["row"]
    at = int(np.flatnonzero(ids == row)[0])
    np.testing.assert_array_equal(model.landmarks[landmark], data.X(at, at + 1)[0])


def test_early_ends_and_unknown_rows_are_refused():
    data = rows()
    with pytest.raises(InputError, match="ended early"):
        explain_score(fitted(data, exact=True, early=True), data, 0)
    with pytest.raises(InputError, match="has no row 999"):
        explain_score(fitted(data, kernel="linear"), data, 999)


def test_the_command_names_rows_and_columns_of_the_source(tmp_path):
    rng = np.random.default_rng(0)
    with open(tmp_path / "t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["noise", "colour", "y"])
        for _ in range(200):
            colour = rng.choice(["red", "green", "blue"])
            writer.writerow([rng.normal(), colour, "yes" if colour == "red" else "no"])
    package.ingest(tmp_path / "t.csv", tmp_path / "s", label="y", scale="standard")
    store = tmp_path / "s"
    succeed("fit", store, tmp_path / "m", "--exact", "--gamma", "1")
    succeed("fit", store, tmp_path / "w", "--kernel", "linear")
    said = succeed("explain", tmp_path / "m", store, "--row", 3, "--json", tmp_path / "r.json")
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["by"] == "rows" and str(found["parts"][0]["row"]) in said
    said = succeed("explain", tmp_path / "w", store, "--row", 3)
    assert "colour=red" in said
    wrong = bigscreen("explain", tmp_path / "w", store, "--row", 900)
    assert wrong.exit_code == 2 and "has no row 900" in wrong.stderr
