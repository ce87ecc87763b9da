"""Data frames of every kind give the store that a file with the same columns gives."""

import datetime

import numpy as np
import pytest
from ingest_cases import in_source_order

import bigscreen
from bigscreen import Model
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest

pa = pytest.importorskip("pyarrow")


def columns(n=120, seed=0):
    """Columns of every kind, as lists."""
    rng = np.random.default_rng(seed)
    first = datetime.date(2020, 1, 1)
    return {
        "size": [None if i % 17 == 3 else float(v) for i, v in enumerate(rng.normal(size=n))],
        "town": [["Rome", "Oslo", None][i % 3] for i in rng.integers(0, 3, n)],
        "owner": [bool(v) for v in rng.integers(0, 2, n)],
        "since": [first + datetime.timedelta(days=int(d)) for d in rng.integers(0, 900, n)],
        "at": [datetime.datetime(2021, 1, 1, int(h), 30) for h in rng.integers(0, 24, n)],
        "outcome": ["yes" if v else "no" for v in rng.integers(0, 2, n)],
    }


def written(path, table):
    """The columns as CSV."""
    rows = zip(*table.values(), strict=True)
    lines = [",".join("" if v is None else str(v) for v in row) for row in rows]
    path.write_text("\n".join([",".join(table), *lines]) + "\n")
    return path


def pandas_frame(table):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(table)
    frame["town"] = frame["town"].astype("category")
    frame.index = np.arange(len(frame)) * 3
    return frame


def polars_frame(table):
    return pytest.importorskip("polars").DataFrame(table)


def dask_frame(table):
    pytest.importorskip("pandas")
    dask = pytest.importorskip("dask.dataframe")
    return dask.from_pandas(pandas_frame(table), npartitions=3)


KINDS = {"arrow": pa.table, "pandas": pandas_frame, "polars": polars_frame, "dask": dask_frame}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_gives_the_store_of_a_file(tmp_path, kind):
    table = columns()
    frame = KINDS[kind](table)
    how = {"impute": "median", "scale": "standard", "holdout": 0.2}
    made = ingest(frame, tmp_path / "s", label="outcome", **how)
    known = made.store.preparation
    assert known.names == ["size", "town", "owner", "since", "at"]
    assert known.dates == {3: "", 4: ""} and list(known.categories) == [1]
    source = written(tmp_path / "a.csv", {k: v for k, v in table.items() if k != "owner"})
    file = ingest(source, tmp_path / "f", label="outcome", **how)
    X, y = in_source_order(made.store)
    theirs, labels = in_source_order(file.store)
    np.testing.assert_allclose(np.delete(X, 4, axis=1), theirs, atol=1e-5)
    assert y.tolist() == labels.tolist()
    beside = ingest((frame, table["outcome"]), tmp_path / "b", drop=["outcome"], **how).store
    assert beside.fingerprint == made.store.fingerprint
    dropped = ingest(frame, tmp_path / "d", label="outcome", drop_missing=True)
    whole = [
        s is not None and t is not None for s, t in zip(table["size"], table["town"], strict=True)
    ]
    assert dropped.store.n_rows == sum(whole) and dropped.dropped == 120 - sum(whole)


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
def test_a_model_answers_for_the_frame_it_was_made_of(tmp_path, kind):
    table = columns()
    frame = KINDS[kind](table)
    store = ingest(frame, tmp_path / "s", impute="mean", scale="standard", label="outcome").store
    bigscreen.LinearSVC(loss="hinge").fit(store).model_.save(tmp_path / "m")
    model = Model.load(tmp_path / "m")
    np.testing.assert_allclose(model.scores(frame), model.scores(store), atol=1e-5)


def test_types_that_arrow_has_beside_numbers(tmp_path):
    day = datetime.date(2000, 1, 1)
    table = pa.table(
        {
            "decimal": pa.array([1.25, 2.5, 3.75]).cast(pa.decimal128(6, 2)),
            "coded": pa.array([7, 8, 7]).dictionary_encode(),
            "day": pa.array([day] * 3, pa.date64()),
            "zone": pa.array([0, 3600_000_000, 7200_000_000], pa.timestamp("us", "Europe/Rome")),
            "took": pa.array([43_200, 86_400, 0], pa.duration("s")),
            "clock": pa.array([0, 21_600, 43_200], pa.time32("s")),
            "label": [0, 1, 0],
        }
    )
    X, _ = in_source_order(ingest(table, tmp_path / "s").store)
    np.testing.assert_allclose(X[:, 0], [1.25, 2.5, 3.75])
    np.testing.assert_allclose(X[:, 1], [7, 8, 7])
    np.testing.assert_allclose(X[:, 2], 10_957)
    np.testing.assert_allclose(X[:, 3], [0, 1 / 24, 1 / 12], atol=1e-7)
    np.testing.assert_allclose(X[:, 4:], [[0.5, 0], [1, 0.25], [0, 0.5]])


@pytest.mark.parametrize("kind", [*KINDS, "parquet"])
def test_dates_that_are_texts_are_dates(tmp_path, kind):
    table = {k: v for k, v in columns().items() if k in ("since", "at", "town", "outcome")}
    texts = {name: [None if v is None else str(v) for v in table[name]] for name in table}
    texts["at"][4] = texts["since"][7] = "NA"
    if kind == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(pa.table(texts), tmp_path / "a.parquet", row_group_size=30)
        source = tmp_path / "a.parquet"
    else:
        source = KINDS[kind](texts)
    how = {"label": "outcome", "impute": "median"}
    made = ingest(source, tmp_path / "s", **how)
    file = ingest(written(tmp_path / "a.csv", texts), tmp_path / "f", **how)
    assert (
        made.store.preparation.features_fingerprint == file.store.preparation.features_fingerprint
    )
    assert made.store.preparation.dates == {1: "", 2: ""}
    np.testing.assert_array_equal(in_source_order(made.store)[0], in_source_order(file.store)[0])
    assert any("'since' holds dates" in note for note in made.notes)
    kinds = ingest(source, tmp_path / "k", categorical=["since", "at"], max_kinds=200, **how)
    assert not kinds.store.preparation.dates
    if kind == "arrow":
        texts["since"][50] = "2020-02-31"
        with pytest.raises(InputError, match="row 50: '2020-02-31' is no date as ISO"):
            ingest(pa.table(texts), tmp_path / "x", **how)
        texts["since"] = [f"{1 + i % 28}/3/2020" for i in range(120)]
        with pytest.raises(InputError, match="row 0, column 'since'.*in which order"):
            ingest(pa.table(texts), tmp_path / "x", **how)


def test_what_a_frame_cannot_be(tmp_path):
    with pytest.raises(InputError, match="'many' holds list"):
        ingest(pa.table({"many": [[1], [2]], "label": [0, 1]}), tmp_path / "s")
    with pytest.raises(InputError, match="cannot be read with the option delimiter"):
        ingest(pa.table({"a": [1], "label": [0]}), tmp_path / "s", delimiter=";")
    with pytest.raises(InputError, match="has no row"):
        ingest(pa.table({"a": pa.array([], pa.int64()), "label": []}), tmp_path / "s")
    with pytest.raises(InputError, match="has 2 rows and 3 labels"):
        ingest((pa.table({"a": [1, 2]}), [0, 1, 0]), tmp_path / "s")
    with pytest.raises(InputError, match="row 1, column 'a': the value is missing.*drop_missing"):
        ingest(pa.table({"a": [1, None, 3], "label": [0, 1, 0]}), tmp_path / "s")


def test_xarray(tmp_path):
    xarray = pytest.importorskip("xarray")
    X = np.arange(60.0).reshape(20, 3)
    y = np.arange(20) % 2
    made = ingest((xarray.DataArray(X, dims=("row", "column")), y), tmp_path / "s").store
    np.testing.assert_array_equal(in_source_order(made)[0], X)


def test_a_column_of_anything_is_named(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"c": pandas.Series([0, {}, 1], dtype=object), "label": [0, 1, 0]})
    with pytest.raises(InputError, match=r"\(cannot mix .*; Conversion failed for column c .*\);"):
        ingest(frame, tmp_path / "s")
