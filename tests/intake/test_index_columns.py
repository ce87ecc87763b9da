"""Index columns of data frames are no measurements: files give what the frame gives."""

from dataclasses import replace

import numpy as np
import pytest
from ingest_cases import in_source_order

from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest

pa = pytest.importorskip("pyarrow")
pandas = pytest.importorskip("pandas")


def frame(index):
    """Ten rows in another order, with an index."""
    rng = np.random.default_rng(0)
    table = pandas.DataFrame(rng.normal(size=(20, 2)).astype(np.float32), columns=["a", "b"])
    table["out"] = np.arange(20) % 2
    table = table.sample(frac=1, random_state=1)
    if index == "named":
        table.index.name = "customer"
    if index == "several":
        table.index = pandas.MultiIndex.from_arrays([table.index, table.index % 3])
    return table


def as_parquet(table, path):
    table.to_parquet(path)
    return path


def as_parquet_without_metadata(table, path):
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pandas(table).replace_schema_metadata(None), path)
    return path


def as_arrow(table, path):
    return pa.Table.from_pandas(table)


def as_csv(table, path):
    table.to_csv(path)
    return path


def as_csv_read_and_written(table, path):
    table.to_csv(path)
    pandas.read_csv(path).to_csv(path, index=False)
    return path


def as_dask(table, path):
    dask = pytest.importorskip("dask.dataframe")
    dask.from_pandas(table, npartitions=2, sort=False).clear_divisions().to_parquet(str(path))
    return path


WAYS = [as_parquet, as_parquet_without_metadata, as_arrow, as_csv, as_csv_read_and_written, as_dask]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("index", "way"),
    [
        *(("plain", way) for way in WAYS),
        # Without pandas' record an index that has a name is a column like any other.
        *(("named", way) for way in (as_parquet, as_arrow, as_dask)),
        *(("several", way) for way in WAYS[:-1]),  # dask has none of several levels
    ],
)
def test_files_give_what_the_frame_gives(tmp_path, way, index):
    table = frame(index)
    wanted = ingest(table, tmp_path / "w")
    made = ingest(way(table, tmp_path / "a"), tmp_path / "s")
    assert not wanted.notes and len(made.notes) == 1
    assert "hold the index of a data frame" in made.notes[0]
    # (A file with an index has the other columns one place further on.)
    given = [replace(one.store.preparation, skipped=[], label_at=[]) for one in (made, wanted)]
    assert given[0].to_dict() == given[1].to_dict()
    for ours, theirs in zip(
        in_source_order(made.store), in_source_order(wanted.store), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_an_index_is_taken_where_it_is_named(tmp_path, way):
    source = way(frame("plain"), tmp_path / "a")
    name = ingest(source, tmp_path / "s").notes[0].split("'")[1]
    for how in ({"columns": ["a", name]}, {"columns": ["a"], "label": name, "regression": True}):
        made = ingest(source, tmp_path / "t", overwrite=True, **how)
        assert not made.notes and made.store.n_features == len(how["columns"])
    kinds = ingest(source, tmp_path / "k", label="out", categorical=[name], max_kinds=20)
    assert kinds.store.n_features == 22 and not kinds.notes
    # What an earlier store has, later files have, too; the label is never the index.
    old = ingest(source, tmp_path / "o", columns=["a", "b", name]).store
    later = ingest(source, tmp_path / "l", like=old)
    assert later.store.fingerprint == old.fingerprint and not later.notes
    fresh = ingest(source, tmp_path / "n", like=tmp_path / "s")
    assert fresh.store.n_features == 2 and len(fresh.notes) == 1


def test_no_index_is_taken_for_a_measurement_without_a_name(tmp_path):
    (tmp_path / "a.csv").write_text(",b,label\n0.5,1,0\n1.5,2,1\n")
    made = ingest(tmp_path / "a.csv", tmp_path / "s")
    assert made.store.preparation.names == ["", "b"] and not made.notes
    (tmp_path / "a.csv").write_text(",label\n1,0\n2,1\n")
    with pytest.raises(InputError, match="none is left as a feature"):
        ingest(tmp_path / "a.csv", tmp_path / "t")
