"""Marks of missing values that a user names: one meaning in every source, kept by the model."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from ingest_cases import in_source_order, take_small_steps
from scipy.sparse import csr_array

import bigscreen
from bigscreen.cli.commands import group
from bigscreen.data.dataset import Dataset
from bigscreen.data.missing import MISSING_CATEGORY, Missing
from bigscreen.data.preparation import Preparation
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest

MARKS = ["-", "-999", "unknown"]
NAMES = ["age", "income", "town", "joined", "label"]


def lines(blank):
    """Rows of a table in which numbers, a text and a date are missing; what each is written as."""
    rng = np.random.default_rng(0)
    out = []
    for i in range(80):
        day = f"2020-0{1 + i % 9}-1{i % 10}"
        town = ["york", "bath", "hull"][i % 3]
        row = [str(20 + i % 40), f"{rng.normal():.3f}", town, day, "yn"[(i // 2) % 2]]
        marks = ("", "", "", "") if blank else ("-", "-999.0", "unknown", "-")
        for c, every in enumerate((7, 5, 11, 13)):
            if i % every == 3:
                row[c] = marks[c]
        out.append(row)
    return out


def csv_file(path, rows):
    path.write_text("\n".join(",".join(row) for row in [NAMES, *rows]) + "\n")
    return path


def test_marks_in_a_csv_are_blanks(tmp_path, monkeypatch):
    take_small_steps(monkeypatch)
    how = {"impute": "median", "scale": "standard"}
    plain = ingest(csv_file(tmp_path / "a.csv", lines(True)), tmp_path / "s", **how).store
    source = csv_file(tmp_path / "b.csv", lines(False))
    with pytest.raises(InputError, match=r"column 'age': '-' stands among numbers.*missing"):
        ingest(source, tmp_path / "x", **how)
    made = ingest(source, tmp_path / "t", missing=MARKS, **how).store
    for ours, theirs in zip(in_source_order(made), in_source_order(plain), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert made.preparation.missing == MARKS and MISSING_CATEGORY in made.preparation.categories[2]
    counts = {column["name"]: column["missing"] for column in made.profile["columns"]}
    assert counts == {"age": 11, "income": 16, "town": 7, "joined": 6}
    assert made.profile == plain.profile
    again = Preparation.from_dict(json.loads(json.dumps(made.preparation.to_dict())))
    assert again == made.preparation != plain.preparation
    # Without a word on what stands for them, a mark is an error at its place.
    with pytest.raises(InputError, match=r"line 5, column 'town': the value is missing"):
        ingest(source, tmp_path / "y", missing=MARKS)


def test_a_model_knows_the_marks_of_its_source(tmp_path):
    source = csv_file(tmp_path / "b.csv", lines(False))
    made = ingest(source, tmp_path / "t", missing=MARKS, impute="median", scale="standard").store
    bigscreen.NystroemSVC(n_components=30).fit(made).model_.save(tmp_path / "m")
    model = bigscreen.Model.load(tmp_path / "m")
    expected = in_source_order(made)[0]
    scores = model.scores(expected, prepared=True)
    records = [dict(zip(NAMES, row, strict=True)) for row in lines(False)]
    np.testing.assert_allclose(model.scores(records), scores, atol=1e-6)
    typed = [{**r, "income": float(r["income"])} for r in records]
    np.testing.assert_allclose(model.scores(typed), scores, atol=1e-6)
    array = np.array([row[:-1] for row in lines(False)], object)
    np.testing.assert_allclose(model.scores(array), scores, atol=1e-6)
    like = ingest(source, tmp_path / "u", like=tmp_path / "m").store
    np.testing.assert_array_equal(in_source_order(like)[0], expected)
    with pytest.raises(InputError, match="leave out missing"):
        ingest(source, tmp_path / "v", like=tmp_path / "m", missing=["-"])


@pytest.mark.parametrize("kind", ["npz", "npy", "h5", "array", "dask", "parquet", "arrow"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_numbers_that_mean_missing_in_sources_of_numbers(tmp_path, kind, dtype):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(120, 4)).astype(np.float32).astype(dtype)
    y = (X[:, 0] > 0).astype(int)
    X[::7, 1], X[::5, 2] = -999.9, 1e20
    holes = (X == dtype(-999.9)) | (X == dtype(1e20))
    if kind in ("parquet", "arrow"):
        pa = pytest.importorskip("pyarrow", reason="Arrow tables need pyarrow")
        source = pa.table({**{f"x{j}": X[:, j] for j in range(4)}, "y": y})
        if kind == "parquet":
            import pyarrow.parquet as pq

            pq.write_table(source, tmp_path / "a.parquet")
            source = tmp_path / "a.parquet"
    elif kind == "npz":
        np.savez(tmp_path / "a.npz", X=X, y=y)
        source = tmp_path / "a.npz"
    elif kind == "npy":
        np.save(tmp_path / "a.npy", np.column_stack([X, y]).astype(dtype))
        source = tmp_path / "a.npy"
    elif kind == "h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["X"], file["y"] = X, y
        source = tmp_path / "a.h5"
    elif kind == "dask":
        array = pytest.importorskip("dask.array")
        source = (array.from_array(X, chunks=(50, 4)), y)
    else:
        source = (X, y)
    label = {"npy": {"label": -1}}.get(kind, {})
    made = ingest(source, tmp_path / "s", missing=[-999.9, "1e20"], impute="mean", **label)
    rows = in_source_order(made.store)[0]
    means = np.where(holes, np.nan, X).astype(np.float64)
    np.testing.assert_allclose(rows[holes[:, 1], 1], np.nanmean(means[:, 1]), rtol=1e-6)
    np.testing.assert_allclose(rows[holes[:, 2], 2], np.nanmean(means[:, 2]), rtol=1e-6)
    np.testing.assert_array_equal(rows[~holes], X[~holes])
    assert [c["missing"] for c in made.store.profile["columns"]] == [0, 18, 24, 0]
    model = bigscreen.LinearSVC().fit(made.store).model_
    scores = model.scores(rows, prepared=True)
    np.testing.assert_allclose(model.scores(X), scores, atol=1e-6)
    if kind == "array":
        dropped = ingest(source, tmp_path / "d", missing=[-999.9, 1e20], drop_missing=True)
        assert dropped.dropped == np.count_nonzero(holes.any(axis=1))
        with pytest.raises(InputError, match="row 0, column 2 .from 0.: the value is missing"):
            ingest(source, tmp_path / "e", missing=[1e20])


def test_marks_that_are_texts_are_of_labels_and_targets_too(tmp_path):
    source = tmp_path / "a.csv"
    for mark, regression in (("-", False), ("-", True), ("-9", True)):
        rows = [[str(i), mark if i % 10 == 0 else str(i % 2)] for i in range(60)]
        source.write_text("\n".join(",".join(row) for row in [["x", "y"], *rows]) + "\n")
        how = {"missing": [mark], "regression": regression}
        made = ingest(source, tmp_path / f"{mark}{regression}", drop_missing=True, **how)
        assert made.dropped == 6 and made.store.n_rows == 54
        with pytest.raises(InputError, match="line 2: the row has no (label|target)"):
            ingest(source, tmp_path / "t", **how)


@pytest.mark.parametrize("kind", ["csv", "array", "objects"])
def test_a_label_that_is_a_number_is_a_label_though_a_mark_equals_it(tmp_path, kind):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 9, (60, 2)).astype(float)
    y = np.where(rng.random(60) < 0.5, 1, -1)
    X[::6, 1] = -1
    source = (X, y if kind == "array" else y.astype(str).astype(object))
    if kind == "csv":
        source = tmp_path / "a.csv"
        source.write_text(
            "a,b,y\n" + "".join(f"{a},{b},{c}\n" for (a, b), c in zip(X, y, strict=True))
        )
    made = ingest(source, tmp_path / "s", missing=["-1", "x"], impute="mean")
    assert made.store.labels == [-1, 1] and made.store.n_rows == 60
    np.testing.assert_array_equal(in_source_order(made.store)[1], y)
    assert [column["missing"] for column in made.store.profile["columns"]] == [0, 10]
    assert any("-1 is a label, though missing names it" in note for note in made.notes)
    dropped = ingest(source, tmp_path / "d", missing=["-1"], drop_missing=True)
    assert dropped.dropped == 10 and dropped.store.labels == [-1, 1]
    # What is like it reads its labels the same way.
    later = ingest(source, tmp_path / "l", like=made.store)
    np.testing.assert_array_equal(in_source_order(later.store)[1], in_source_order(made.store)[1])


def test_texts_that_are_hashed_or_numbered_kinds(tmp_path):
    rows = [
        [f"name-{i % 30}" if i % 4 else "unknown", "-7" if i % 6 == 1 else "12"[i % 2], "ab"[i % 2]]
        for i in range(120)
    ]
    source = tmp_path / "a.csv"
    source.write_text("\n".join(",".join(row) for row in [["who", "kind", "y"], *rows]) + "\n")
    blank = tmp_path / "b.csv"
    blank.write_text(source.read_text().replace("unknown", "").replace(",-7,", ",,"))
    how = {"hashed": ["who:4"], "categorical": ["kind"], "impute": "median"}
    made = ingest(source, tmp_path / "s", missing=["unknown", -7], **how).store
    other = ingest(blank, tmp_path / "t", **how).store
    np.testing.assert_array_equal(in_source_order(made)[0], in_source_order(other)[0])
    assert made.preparation.categories[1] == [MISSING_CATEGORY, "1", "2"]


def test_sparse_rows_hold_no_marks(tmp_path):
    X = csr_array(np.where(np.eye(20) > 0, -1.0, 0))
    with pytest.raises(InputError, match="leave out missing"):
        ingest((X, np.arange(20) % 2), tmp_path / "s", missing=[-1], drop_missing=True)


def test_marks_on_the_command_line(tmp_path):
    source = csv_file(tmp_path / "b.csv", lines(False))
    args = ["ingest", str(source), str(tmp_path / "s"), "--missing", "-,unknown", "--missing"]
    done = CliRunner().invoke(group, [*args, "-999", "--impute", "mean"])
    assert done.exit_code == 0, done.output
    assert Dataset.open(tmp_path / "s").preparation.missing == ["-", "unknown", "-999"]
    shown = CliRunner().invoke(group, ["info", str(tmp_path / "s")])
    assert "-, unknown, -999" in shown.output


def test_what_a_mark_is():
    missing = Missing(("-", "-999"))
    assert all(
        text in missing for text in ("-", " - ", "-999", "-999.0", "-9.99e2", "NA", "", -999)
    )
    assert not any(text in missing for text in ("--", "-99", "nan?", -99.0, None, "1_0"))
    assert not missing.is_mark("NA") and missing.is_mark("-")
    assert missing.find_marks(np.array([[-999, 1], [2, -999]])).tolist() == [
        [True, False],
        [False, True],
    ]
