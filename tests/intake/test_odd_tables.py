"""What spreadsheets write around and into a table."""

import numpy as np
import pytest
from ingest_cases import in_source_order

import bigscreen
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest


def table(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_excels_line_names_the_delimiter(tmp_path):
    rows = [f"{i};{i % 3};{'ab'[i % 2]}" for i in range(30)]
    plain = ingest(table(tmp_path / "a.csv", "x;z;y", *rows), tmp_path / "s").store
    told = ingest(table(tmp_path / "b.csv", "sep=;", "x;z;y", *rows), tmp_path / "t").store
    assert told.fingerprint == plain.fingerprint and told.preparation.names == ["x", "z"]
    comma = [row.replace(";", ",") for row in rows]
    source = table(tmp_path / "c.csv", "sep=,", *comma, "1,x,a")
    with pytest.raises(InputError, match="line 32, column 1 .from 0.: 'x' stands among numbers"):
        ingest(source, tmp_path / "u")


def test_a_title_is_told_from_a_header(tmp_path):
    rows = [f"{i},{i % 3},{'ab'[i % 2]}" for i in range(30)]
    source = table(tmp_path / "a.csv", "Report of May", "", "x,z,y", *rows)
    with pytest.raises(InputError, match="line 1: 'Report of May' stands alone.*a title"):
        ingest(source, tmp_path / "s")


def test_columns_without_a_name_have_their_numbers(tmp_path):
    rows = [f"{i},{i % 3},{'ab'[i % 2]},," for i in range(30)]
    source = table(tmp_path / "a.csv", "x,z,y,,", *rows)
    with pytest.raises(InputError, match=r"column 'column 3': the value is missing"):
        ingest(source, tmp_path / "s", label="y")
    made = ingest(source, tmp_path / "t", label="y", drop=["column 3", "column 4"]).store
    assert made.preparation.names == ["x", "z"]


def test_truth_values_in_any_case_are_one_feature(tmp_path):
    texts = ["True", "false", "TRUE", "False", "true", "FALSE"]
    rows = [f"{i % 7},{texts[i % 6]},{'ab'[i % 2]}" for i in range(60)]
    made = ingest(table(tmp_path / "a.csv", "x,on,y", *rows), tmp_path / "s").store
    assert not made.preparation.categories
    X, _ = in_source_order(made)
    np.testing.assert_array_equal(X[:, 1], np.arange(60) % 2 == 0)
    assert not [c for c in made.profile["columns"] if c["name"] == "on" and c["remarks"]]
    model = bigscreen.LinearSVC().fit(made).model_
    given = [{"x": i % 7, "on": texts[i % 6]} for i in range(60)]
    np.testing.assert_allclose(model.scores(given), model.scores(X, prepared=True), atol=1e-6)
    typed = [{"x": i % 7, "on": i % 2 == 0} for i in range(60)]
    np.testing.assert_allclose(model.scores(typed), model.scores(X, prepared=True), atol=1e-6)
    other = [row.replace("True", "tRUE") for row in rows]
    like = ingest(table(tmp_path / "b.csv", "x,on,y", *other), tmp_path / "t", like=made).store
    np.testing.assert_array_equal(in_source_order(like)[0], X)


@pytest.mark.parametrize("form", ["${:,.2f}", "{:.1f} kg", "{:.2f}%"])
def test_numbers_with_units_are_told_from_texts(tmp_path, form):
    rng = np.random.default_rng(0)
    rows = [f'"{form.format(v)}",{"ab"[i % 2]}' for i, v in enumerate(rng.lognormal(7, 1, 300))]
    with pytest.raises(InputError, match="line 2, .*'x'.*: write numbers without their units"):
        ingest(table(tmp_path / "a.csv", "x,y", *rows), tmp_path / "s", label="y", header=True)
    names = [f"user-{i},{'ab'[i % 2]}" for i in range(300)]
    with pytest.raises(InputError, match="each would be a feature: leave it out"):
        ingest(table(tmp_path / "b.csv", "x,y", *names), tmp_path / "t", label="y", header=True)
