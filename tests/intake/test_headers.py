"""Headers of text tables that are hard to tell: whole numbers, names known before, repetitions."""

import numpy as np
import pytest
from ingest_cases import in_source_order

from bigscreen import LinearSVC
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest
from bigscreen.model.explain import explain_score

pandas = pytest.importorskip("pandas")


def fractions(rows=30, columns=4, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns))


@pytest.mark.parametrize("label", ["number", "text"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_pandas_numbers_columns_beside_a_named_label(tmp_path, label, whole, first):
    X = np.round(9 * fractions()).astype(int) if whole else fractions()
    frame = pandas.DataFrame(X)
    y = np.arange(30) % 2
    frame.insert(0 if first else 4, "outcome", y if label == "number" else np.array(["a", "b"])[y])
    frame.to_csv(tmp_path / "a.csv", index=False)
    how = {"label": 0} if first else {}
    file = ingest(tmp_path / "a.csv", tmp_path / "f", **how).store
    table = ingest(frame, tmp_path / "s", **how).store
    assert file.n_rows == 30 and file.preparation.names == ["0", "1", "2", "3"]
    assert file.preparation.to_dict() == table.preparation.to_dict()
    np.testing.assert_array_equal(in_source_order(file)[0], in_source_order(table)[0])


def test_pandas_numbers_all_columns(tmp_path):
    pandas.DataFrame(fractions()).to_csv(tmp_path / "a.csv", index=False)
    made = ingest(tmp_path / "a.csv", tmp_path / "s", regression=True).store
    assert made.n_rows == 30 and made.preparation.names == ["0", "1", "2"]
    pandas.DataFrame(fractions().round().astype(int)).to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(InputError, match=r"cannot be told \(0, 1, 2 may be names.*`header`"):
        ingest(tmp_path / "b.csv", tmp_path / "t", regression=True)
    for header, rows in ((True, 30), (False, 31)):
        how = {"regression": True, "header": header, "overwrite": True}
        assert ingest(tmp_path / "b.csv", tmp_path / "t", **how).store.n_rows == rows


@pytest.mark.parametrize(
    "rows",
    [
        ["0,1", "1,0", "1,1", "0,1"],  # the first row comes again
        ["0,1,2", "3,4,5", "6,7,8"],  # the first rows count on
        ["0,1,a", "1,1,b", "1,0,a"],  # the text comes again
        ["0,1,a", "1,1,b", "1,0,c"],  # every row has a text of its own
        ["5,6,7", "0.5,0.25,0.5", "1.5,2.5,3.5"],  # does not count from 0
        ["0", "1", "2"],
    ],
)
def test_rows_of_numbers_stay_rows(tmp_path, rows):
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    how = {"unlabelled": True, "label": "none"}
    assert ingest(tmp_path / "a.csv", tmp_path / "s", **how).store.n_rows == len(rows)


def test_a_usual_name_of_a_label_makes_a_header(tmp_path):
    rows = ["2010,2012,Class", *(f"{i},{i * i},{'ab'[i % 2]}" for i in range(20))]
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    made = ingest(tmp_path / "a.csv", tmp_path / "s").store
    assert made.labels == ["a", "b"] and made.preparation.names == ["2010", "2012"]


def test_the_position_of_a_column_makes_no_header(tmp_path):
    (tmp_path / "a.csv").write_text("0,5,6\n1,7,8\n0,2,6\n1,5,9\n")
    made = ingest(tmp_path / "a.csv", tmp_path / "s", label="0").store
    assert made.n_rows == 4 and made.preparation.names is None


@pytest.mark.parametrize("names", [["0", "1", "2", "3"], ["a", "b", "c", "d"]])
def test_names_of_the_earlier_store_make_a_header(tmp_path, names):
    # A frame whose columns have the names, and a file of whole numbers below them.
    frame = pandas.DataFrame(fractions().round().astype(int), columns=names)
    frame["yes"] = np.arange(30) % 2
    store = ingest(frame, tmp_path / "s", label="yes").store
    frame[names].to_csv(tmp_path / "a.csv", index=False)
    later = ingest(tmp_path / "a.csv", tmp_path / "t", like=store).store
    np.testing.assert_array_equal(in_source_order(later)[0], in_source_order(store)[0])


@pytest.mark.parametrize("body", ["1,2,0\n3,4,1\n", "u,v,yes\nv,u,no\n"])
def test_a_header_that_comes_again_is_named(tmp_path, body):
    text = f"a,b,label\n{body}{body}"
    (tmp_path / "a.csv").write_text("\n" + text + text)
    with pytest.raises(InputError, match=r"line 7: the header of line 2 comes again"):
        ingest(tmp_path / "a.csv", tmp_path / "s", header=None if "1" in body else True)


def test_columns_without_a_name_are_counted_as_options_count_them(tmp_path):
    rows = [f"{'ab'[i % 2]},{i},{i % 3 + i % 2}" for i in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    made = ingest(tmp_path / "a.csv", tmp_path / "s", label=0, scale="none").store
    shown = [column["name"] for column in made.profile["columns"]]
    assert shown == ["column 1", "column 2"]
    model = LinearSVC().fit(made).model_
    assert {part["column"] for part in explain_score(model, made, 3)["parts"]} == {*shown}
    least = ingest(tmp_path / "a.csv", tmp_path / "t", label=0, drop=[1], scale="none").store
    assert [column["name"] for column in least.profile["columns"]] == ["column 2"]
    (tmp_path / "a.csv").write_text("\n".join([*rows, "a,1,?"]) + "\n")
    with pytest.raises(InputError, match=r"line 41, column 2 \(from 0\): the value is missing"):
        ingest(tmp_path / "a.csv", tmp_path / "u", label=0)


@pytest.mark.parametrize("base", [0, 1])
def test_columns_of_svmlight_are_counted_as_the_file_counts_them(tmp_path, base):
    lines = [f"{i % 2} {base}:{i % 2 + 1} {base + 2}:{i % 3 + 1}" for i in range(30)]
    (tmp_path / "a.svm").write_text("\n".join(lines) + "\n")
    made = ingest(tmp_path / "a.svm", tmp_path / "s").store
    model = LinearSVC().fit(made).model_
    said = {part["column"] for part in explain_score(model, made, 3)["parts"]}
    assert said == {f"column {base}", f"column {base + 2}"}


def test_a_file_without_header_and_label_has_the_columns_of_the_store(tmp_path):
    rows = [f"{i},{'uvw'[i % 3]},{i * i}" for i in range(30)]
    labelled = "\n".join(f"{row},{i % 2}" for i, row in enumerate(rows))
    (tmp_path / "a.csv").write_text("a,k,b,y\n" + labelled)
    store = ingest(tmp_path / "a.csv", tmp_path / "s").store
    found = {}
    for name, text in {"with": labelled, "without": "\n".join(rows)}.items():
        (tmp_path / f"{name}.csv").write_text(text)
        found[name] = ingest(tmp_path / f"{name}.csv", tmp_path / name, like=store).store
        np.testing.assert_array_equal(in_source_order(found[name])[0], in_source_order(store)[0])
    assert (found["with"].n_unlabelled, found["without"].n_unlabelled) == (0, 30)
    (tmp_path / "b.csv").write_text("\n".join(row[:3] for row in rows[:10]))
    with pytest.raises(InputError, match="has 1 columns beside the label.* be like has 3"):
        ingest(tmp_path / "b.csv", tmp_path / "t", like=store)
