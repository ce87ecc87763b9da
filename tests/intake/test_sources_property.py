"""Any small table as CSV, Parquet, and the frames of pandas and polars ends in one store."""

import csv
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ingest_cases import in_source_order

from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest

pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")

KINDS = (
    st.sampled_from([0.5, 1.0, -2.25, 1e-3, 7.0]),
    st.integers(-2, 5),
    st.booleans(),
    st.sampled_from(["1", "02", "3.50", " 4", "?", ""]),
    st.sampled_from(["a", "b ", " a", "x y", "NA", "a,b", "?"]),
    st.sampled_from(["true", "False", "TRUE", "?", ""]),
    st.sampled_from(["?", "", " ", "NA", "1", "true", "a", "nan", "NULL", "None", "0"]),
)


@st.composite
def tables(draw):
    """A column and labels of the same number of rows, each of one kind, some values missing."""
    n = draw(st.integers(6, 12))
    columns = [st.lists(st.one_of(st.none(), kind), min_size=n, max_size=n) for kind in KINDS]
    return {"c": draw(st.one_of(columns)), "label": draw(st.one_of(columns))}


def forms(folder, table):
    """The table as a CSV file, as frames, and as Parquet files of the frames."""
    with open(folder / "a.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        rows = zip(*table.values(), strict=True)
        writer.writerows(["" if value is None else value for value in row] for row in rows)
    frame = pandas.DataFrame({name: pandas.Series(table[name], dtype=object) for name in table})
    other = polars.DataFrame(table)
    frame.to_parquet(folder / "pandas.parquet")
    other.write_parquet(folder / "polars.parquet")
    files = [folder / name for name in ("a.csv", "pandas.parquet", "polars.parquet")]
    return [*files, frame, frame.convert_dtypes(), other]


def outcome(source, path, how):
    """The rows, labels and preparation of the store of a source; None if it is refused."""
    try:
        store = ingest(source, path, label="label", **how).store
    except InputError:
        return None
    X, y = in_source_order(store)[:2]
    return X.tolist(), np.asarray(y).tolist(), store.preparation.to_dict(), store.fingerprint


@settings(max_examples=6, deadline=None)
@given(table=tables(), how=st.sampled_from([{"impute": "most-frequent"}, {"drop_missing": True}]))
@example({"c": [" 1", "?", "", "02", "1", "2"], "label": [True, False] * 3}, {"impute": "median"})
@example({"c": [True, None, False] * 2, "label": ["true", "FALSE"] * 3}, {"impute": "median"})
def test_a_table_is_one_store_whatever_its_form(table, how):
    folder = Path(tempfile.mkdtemp())
    table["x"] = [float(i * i % 7) for i in range(len(table["c"]))]
    try:
        first, *others = [
            outcome(source, folder / f"{k}.store", how)
            for k, source in enumerate(forms(folder, table))
        ]
    finally:
        shutil.rmtree(folder)
    for k, other in enumerate(others):
        assert other == first, k
