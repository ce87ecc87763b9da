"""A column that is blank in one source is of what it is of in another."""

import datetime

import numpy as np
import pytest
from ingest_cases import in_source_order

from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

BLANK = {"town": [None] * 3, "day": [None] * 3, "n": [None] * 3, "label": [0, 1, 0]}
DAYS = [datetime.date(2020, 1, day) for day in (1, 2, 3)]
FULL = {"town": ["x", "y", "x"], "day": DAYS, "n": [1.5, 2.5, 3.5], "label": [1, 0, 1]}


def written(path, table):
    """The columns as Parquet, where a column without values has no type, or as CSV."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table(table), path)
    else:
        rows = [
            ",".join("" if v is None else str(v) for v in row)
            for row in zip(*table.values(), strict=True)
        ]
        path.write_text("\n".join([",".join(table), *rows]) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("order", [[0, 1], [1, 0], [0, 0, 1], [0, 1, 0]])
def test_parts_are_joined_as_one_table_is(tmp_path, suffix, order):
    parts = [
        written(tmp_path / f"blank.{suffix}", BLANK),
        written(tmp_path / f"full.{suffix}", FULL),
    ]
    tables = [(BLANK, FULL)[k] for k in order]
    whole = {name: [v for table in tables for v in table[name]] for name in FULL}
    for k, how in enumerate(({"impute": "median"}, {"drop_missing": True})):
        wanted = ingest(pa.table(whole), tmp_path / f"w{k}", **how).store
        made = ingest([parts[k] for k in order], tmp_path / f"s{k}", **how).store
        assert made.preparation.to_dict() == wanted.preparation.to_dict()
        np.testing.assert_array_equal(in_source_order(made)[0], in_source_order(wanted)[0])
    later = ingest(parts[0], tmp_path / "l", like=tmp_path / "s0").store
    assert in_source_order(later)[0].tolist() == [[1, 0, 0, 18263, 2.5]] * 3
    if suffix == "parquet":
        with pytest.raises(
            InputError, match="every row, column 'town': the value is missing; .*impute"
        ):
            ingest(parts[0], tmp_path / "x")


@pytest.mark.parametrize("values", [["x", "y"], ["1.5", "2"], ["2020-01-01", "2020-01-02"]])
def test_a_text_column_that_begins_blank_has_the_type_of_its_later_rows(tmp_path, values):
    texts = pa.array([None] * 70_000 + values, pa.string())
    table = pa.table({"town": texts, "label": np.arange(70_002) % 2})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=30_000)
    full = ingest(table.slice(70_000), tmp_path / "full", impute="median").store
    for k, source in enumerate([table, tmp_path / "a.parquet"]):
        made = ingest(source, tmp_path / f"s{k}", impute="median").store.preparation
        assert set(made.categories) == set(full.preparation.categories)
        assert made.dates == full.preparation.dates


@pytest.mark.parametrize("reverse", [False, True])
def test_partitions_of_dask(tmp_path, reverse):
    pandas = pytest.importorskip("pandas")
    dask = pytest.importorskip("dask")
    frames = pytest.importorskip("dask.dataframe")
    parts = [pandas.DataFrame(table, dtype=object) for table in (BLANK, FULL)]
    parts = [part.drop(columns="day").astype({"label": int}) for part in parts]
    with dask.config.set({"dataframe.convert-string": False}):
        table = frames.from_map(lambda k: parts[k], [1, 0] if reverse else [0, 1], meta=parts[1])
        made = ingest(table, tmp_path / "s", impute="median").store
    assert made.preparation.categories == {0: ["(missing)", "x", "y"]}
    assert in_source_order(made)[0][:, 3].sum() == 3 * 2.5 + 7.5
