"""Columns that say where numbers are missing: the same from every source, and in every answer."""

import numpy as np
import pytest
from ingest_cases import in_source_order
from sklearn.impute import SimpleImputer

import bigscreen
from bigscreen.errors import InputError
from bigscreen.export.sklearn import build_pipeline
from bigscreen.intake.ingest import ingest
from bigscreen.model.explain import column_names

NAMES = ["born", "age", "town", "income", "label"]
HOW = {"impute": "median", "add_indicator": True, "scale": "standard", "missing": ["-9"]}


def table(n=120):
    """Rows with dates, numbers and texts, some of them missing: None, or the mark -9."""
    rng = np.random.default_rng(0)
    born = [None if i % 11 == 3 else f"19{50 + i % 50}-03-0{1 + i % 9}" for i in range(n)]
    age = [None if i % 7 == 2 else -9 if i % 7 == 5 else i % 40 for i in range(n)]
    town = [None if i % 13 == 1 else "ab"[i % 2] for i in range(n)]
    income, label = rng.normal(size=n).round(2).tolist(), [0, 1] * (n // 2)
    return [*zip(born, age, town, income, label, strict=True)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a CSV file, and its store."""
    folder = tmp_path_factory.mktemp("indicators")
    lines = [",".join("" if v is None else str(v) for v in row) for row in table()]
    (folder / "t.csv").write_text("\n".join([",".join(NAMES), *lines]) + "\n")
    return folder, ingest(folder / "t.csv", folder / "s", **HOW)


@pytest.fixture(scope="module")
def machine(made):
    return bigscreen.SVC(C=10, gamma=0.2).fit(made[1].store).model_


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("scale", ["none", "divide:4"])
def test_columns_are_those_of_scikit_learn_learnt_without_the_holdout(tmp_path, layout, scale):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 4)).astype(np.float32)
    X[rng.random(200) < 0.1, 1] = X[rng.random(200) < 0.3, 3] = np.nan
    y = np.arange(200) % 2
    how = {"impute": "mean", "add_indicator": True, "layout": layout, "scale": scale}
    found = ingest((X, y), tmp_path / "s", holdout=0.25, **how)
    judge, by = SimpleImputer(add_indicator=True), 1 if scale == "none" else 4
    kept, held = (np.sort(d.row_ids(0, d.n_rows)) for d in (found.store, found.holdout))
    for data, expected in (
        (found.store, judge.fit_transform(X[kept])),
        (found.holdout, judge.transform(X[held])),
    ):
        rows = data.rows(np.argsort(data.row_ids(0, data.n_rows)))
        rows = rows.toarray() if layout == "sparse" else rows
        np.testing.assert_allclose(rows, expected / [by, by, by, by, 1, 1], atol=1e-6)
    assert "2 more feature(s) say where those are missing." in found.notes
    # Without a gap in the rows that are kept there is no column, and a later gap is filled.
    whole = ingest((np.nan_to_num(X), y), tmp_path / "w", impute="mean", add_indicator=True).store
    assert whole.n_features == 4 and whole.preparation.indicators == []
    later = ingest((X, y), tmp_path / "l", like=whole).store
    assert later.n_features == 4 and np.isfinite(later.X(0, 200)).all()


def test_every_source_gives_one_store(made):
    pandas = pytest.importorskip("pandas")
    folder, found = made
    expected = in_source_order(found.store)
    # (Columns: born, age, town as 3 categories, income, and two that say where there are gaps.)
    assert found.store.preparation.indicators == [0, 1]
    gaps = [[row[0] is None, row[1] in (None, -9)] for row in table()]
    np.testing.assert_array_equal(expected[0][:, 6:], gaps)
    frame = pandas.DataFrame(table(), columns=NAMES)
    frame["born"] = pandas.to_datetime(frame["born"])
    frame.to_parquet(folder / "t.parquet")
    rows = [",".join("?" if v is None else str(v) for v in row) for row in table()]
    kinds = ["date yyyy-MM-dd", "numeric", "{a,b}", "numeric", "{0,1}"]
    head = [f"@attribute {name} {kind}" for name, kind in zip(NAMES, kinds, strict=True)]
    (folder / "t.arff").write_text("\n".join(["@relation t", *head, "@data", *rows]) + "\n")
    for k, source in enumerate([frame, folder / "t.parquet", folder / "t.arff"]):
        store = ingest(source, folder / f"s{k}", **HOW).store
        for ours, theirs in zip(in_source_order(store), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    like = ingest(folder / "t.csv", folder / "like", like=found.store).store
    np.testing.assert_array_equal(in_source_order(like)[0], expected[0])


def test_raw_rows_and_exports_are_answered_alike(made, machine):
    folder, found = made
    X = in_source_order(found.store)[0]
    expected = machine.scores(X, prepared=True)
    records = [dict(zip(NAMES, row, strict=True)) for row in table()]
    np.testing.assert_allclose(machine.scores(records), expected, atol=1e-6)
    filled = [
        {**r, "age": machine.preparation.fill[1] if r["age"] in (None, -9) else r["age"]}
        for r in records
    ]
    assert np.max(np.abs(machine.scores(filled) - expected)) > 0.01  # the gap itself tells
    assert column_names(machine, 8)[-3:] == ["income", "born=(missing)", "age=(missing)"]
    machine.save(folder / "m.bsm")
    again = bigscreen.Model.load(folder / "m.bsm")
    np.testing.assert_array_equal(again.scores(records), machine.scores(records))
    raw = np.array([row[:-1] for row in table()], object)
    born = np.array(raw[:, 0], "M8[D]")
    raw[:, 0] = np.where(np.isnat(born), np.nan, born.astype(float))
    raw[:, 1] = [np.nan if v is None else float(v) for v in raw[:, 1]]
    raw[:, 2] = [v or "(missing)" for v in raw[:, 2]]
    pipeline, _ = build_pipeline(machine)
    np.testing.assert_allclose(pipeline.decision_function(raw), expected[:, 0], atol=1e-5)


@pytest.mark.parametrize("texts", [True, False], ids=["texts", "numbers"])
def test_onnx_says_where_numbers_are_missing(made, machine, tmp_path, texts):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is of the extra export")
    pytest.importorskip("onnx", reason="onnx is of the extra export")
    from bigscreen.export.verified import export

    store = made[1].store
    if not texts:
        how = {**HOW, "drop": ["town", "born"]}
        store = ingest(made[0] / "t.csv", tmp_path / "s", **how).store
        machine = bigscreen.SVC(C=10, gamma=0.2).fit(store).model_
    found = export(machine, store, tmp_path / "m.onnx", "onnx")
    assert found.agree == 1 and found.difference < 1e-5
    if texts:
        return
    X = np.array([[np.nan if row[1] is None else row[1], row[3]] for row in table()], float)
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["scores"], {"X": X})[0], machine.scores(X), atol=1e-5)


def test_what_has_no_meaning_is_refused(made, tmp_path):
    with pytest.raises(InputError, match="impute is not asked for: give it, too"):
        ingest(made[0] / "t.csv", tmp_path / "s", add_indicator=True, drop_missing=True)
    with pytest.raises(InputError, match="like brings its own features"):
        ingest(made[0] / "t.csv", tmp_path / "s", add_indicator=True, like=made[1].store)


def test_an_ingest_that_is_stopped_goes_on_with_its_columns(made, tmp_path):
    def stop(event):
        if event["phase"] == "write":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(made[0] / "t.csv", tmp_path / "s", progress=stop, **HOW)
    found = ingest(made[0] / "t.csv", tmp_path / "s", **HOW)
    assert found.store.fingerprint == made[1].store.fingerprint and found.notes == made[1].notes
