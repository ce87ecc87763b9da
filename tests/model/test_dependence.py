"""Partial dependence: against the definition, row by row."""

import json

import numpy as np
import pytest
from cli_world import bigscreen, succeed
from sklearn.exceptions import ConvergenceWarning

import bigscreen as package
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest
from bigscreen.model.dependence import dependence


def table(path, n=150, seed=0):
    """A CSV of two numbers, a category and a label; returns its rows as records."""
    rng = np.random.default_rng(seed)
    rows = [
        {"size": round(float(a), 3), "age": int(b), "town": "abc"[int(c)]}
        for a, b, c in zip(rng.normal(size=n), rng.integers(0, 90, n), rng.integers(0, 3, n))  # noqa: B905
    ]
    answers = ["yes" if r["size"] > 0.3 * (r["town"] == "a") else "no" for r in rows]
    lines = [f"{r['size']},{r['age']},{r['town']},{y}" for r, y in zip(rows, answers, strict=True)]
    path.write_text("\n".join(["size,age,town,label", *lines]) + "\n")
    return rows


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dependence")
    rows = table(folder / "a.csv")
    store = ingest(folder / "a.csv", folder / "s", scale="standard").store
    model = package.NystroemSVC(n_components=60, gamma=0.3, tol=1e-2).fit(store).model_
    model.save(folder / "m.bsm")
    return folder, rows, store, model


@pytest.mark.parametrize("column", ["size", "town", "1"])
def test_the_answers_are_those_of_changed_rows(made, column):
    _, rows, store, model = made
    found = dependence(model, store, column, points=5)
    name = {"1": "age"}.get(column, column)
    assert found["column"] == name and found["rows"] == 150
    assert len(found["values"]) == (3 if name == "town" else 5)
    for one in found["values"]:
        changed = [{**row, name: one["value"]} for row in rows]
        assert one["score"] == pytest.approx(float(model.scores(changed).mean()), abs=1e-4)
        said = np.mean(model.predict(changed) == "yes")
        assert one["share"]["yes"] == pytest.approx(float(said), abs=0.02)
    if name == "size":
        shares = [one["share"]["yes"] for one in found["values"]]
        assert shares == sorted(shares) and shares[-1] - shares[0] > 0.8


def test_more_labels_and_regressions(made, tmp_path):
    folder = made[0]
    text = (folder / "a.csv").read_text().replace("no\n", "no\n", 1).splitlines()
    three = [text[0], *(line + str(k % 2) for k, line in enumerate(text[1:]))]
    (tmp_path / "a.csv").write_text("\n".join(three) + "\n")
    store = ingest(tmp_path / "a.csv", tmp_path / "s", scale="standard").store
    model = package.LinearSVC(loss="hinge").fit(store).model_
    for one in dependence(model, store, "town")["values"]:
        assert "score" not in one and sum(one["share"].values()) == pytest.approx(1)
    how = {"label": "age", "regression": True, "drop": ["label"]}
    targets = ingest(folder / "a.csv", tmp_path / "r", scale="standard", **how).store
    model = package.LinearSVR().fit(targets).model_
    for one in dependence(model, targets, "size", points=1)["values"]:
        assert set(one) == {"value", "prediction"}


def test_on_the_command_line(made):
    folder, _, store, model = made
    out = folder / "d.json"
    args = ["explain", folder / "m.bsm", folder / "s", "--column", "town", "--json", out]
    shown = succeed(*args)
    assert "town" in shown and "yes" in shown and "150 rows" in shown
    assert json.loads(out.read_text())["values"][0]["value"] == "a"
    refused = bigscreen("explain", folder / "m.bsm", folder / "s", "--column", "height")
    assert refused.exit_code == 2 and "size, age, town" in refused.stderr
    both = bigscreen("explain", folder / "m.bsm", folder / "s", "--column", "age", "--row", 1)
    assert both.exit_code == 2 and "choose one" in both.stderr
    with pytest.raises(InputError, match="no column"):
        dependence(model, store, "3")


def test_a_notebook_shows_the_certificate(made):
    _, _, store, model = made
    shown = model._repr_html_()
    assert "Proved over all 150 rows" in shown and "60" in shown and "rbf" in shown
    odd = package.NystroemSVC(n_components=20, gamma=0.3, tol=1e-12, max_iter=1)
    with pytest.warns(ConvergenceWarning):
        odd.fit(store)
    html = odd._repr_mimebundle_()["text/html"]
    assert "missed 1e-12" in html and "NystroemSVC" in html
    assert "bigscreen classifier" not in package.NystroemSVC()._repr_mimebundle_()["text/html"]
