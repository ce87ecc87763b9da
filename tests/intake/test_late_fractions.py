"""Rows whose first part float32 holds and whose later part it does not: float64 for all of them."""

import dask.array as da
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ingest_cases import tune_ingest

from bigscreen.intake.ingest import ingest

rng = np.random.default_rng(0)
N = 300
WHOLE = 1e5 + rng.integers(0, 9, (N, 3))
FRACTIONS = WHOLE + rng.random((N, 3))
SMALL = rng.integers(0, 9, (N, 3)).astype(float)
Y = rng.integers(0, 2, N)


def csv(path, X):
    np.savetxt(path, np.column_stack([X, Y]), delimiter=",", fmt="%.17g")
    return path


def parquet(path, X, kind):
    columns = {f"x{j}": pa.array(X[:, j].astype(kind.to_pandas_dtype()), kind) for j in range(3)}
    pq.write_table(pa.table({**columns, "y": Y}), path)
    return path


def same(store, X):
    """Fail unless the store has these very numbers."""
    assert store.layout.wide
    np.testing.assert_array_equal(store.X(0, len(X)), X[store.row_ids(0, len(X))])


def test_a_later_csv_file_with_fractions(tmp_path):
    files = [csv(tmp_path / "a.csv", WHOLE), csv(tmp_path / "b.csv", FRACTIONS)]
    made = ingest(files, tmp_path / "s", label=3, header=False)
    same(made.store, np.concatenate([WHOLE, FRACTIONS]))
    assert any("float64" in note for note in made.notes)
    # One file and two files with equal rows give equal stores.
    (tmp_path / "c.csv").write_text(files[0].read_text() + files[1].read_text())
    again = ingest(tmp_path / "c.csv", tmp_path / "t", label=3, header=False)
    assert again.store.fingerprint == made.store.fingerprint


def test_parquet_parts_of_several_types(tmp_path):
    large = WHOLE + 2**25
    files = [
        parquet(tmp_path / "a.parquet", WHOLE, pa.float32()),
        parquet(tmp_path / "b.parquet", FRACTIONS, pa.float64()),
        parquet(tmp_path / "c.parquet", large, pa.int64()),
    ]
    store = ingest(files, tmp_path / "s", label="y").store
    same(store, np.concatenate([WHOLE, FRACTIONS, large]))


def test_dask_chunks_of_two_types(tmp_path):
    parts = WHOLE.astype(np.float32), FRACTIONS
    lazy = da.concatenate([da.from_array(part, chunks=(100, -1)) for part in parts])
    same(ingest((lazy, np.tile(Y, 2)), tmp_path / "s").store, np.concatenate([WHOLE, FRACTIONS]))


def test_a_last_block_of_rows_that_are_alike_is_judged_by_the_first_one(tmp_path):
    X = np.random.default_rng(1).normal(size=(300, 3))
    last = X[:1] + 1e-9 * np.arange(4)[:, None]  # as a block of its own float32 makes it coarse
    lazy = da.concatenate([da.from_array(part, chunks=(300, -1)) for part in (X, last)])
    store = ingest((lazy, np.append(Y, [0, 1, 0, 1])), tmp_path / "s").store
    assert not store.layout.wide


def test_blocks_that_can_be_read_once_are_rounded_and_noted(tmp_path):
    made = ingest(iter([(WHOLE, Y), (FRACTIONS, Y)]), tmp_path / "s")
    assert not made.store.layout.wide and made.store.manifest["extra"]["rounded"]
    assert any("column 0 (from 0) is coarse in float32" in note for note in made.notes)


def test_a_run_that_ends_while_it_reads_again_goes_on(tmp_path, monkeypatch):
    files = [csv(tmp_path / "a.csv", WHOLE), csv(tmp_path / "b.csv", FRACTIONS)]
    given = {"label": 3, "header": False}
    whole = ingest(files, tmp_path / "whole", **given).store
    tune_ingest(monkeypatch, checkpoint_seconds=0.0)
    read = []

    def stop_in_second_file(event):
        read.append(event["rows"])
        if event["rows"] == 2 * N:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="kept"):
        ingest(files, tmp_path / "s", progress=stop_in_second_file, **given)
    assert read == [N, N, 2 * N]  # the first file is read again, as float64
    made = ingest(files, tmp_path / "s", progress=lambda event: read.append(event), **given).store
    assert read[3]["rows"] == 2 * N  # and not a third time
    assert made.fingerprint == whole.fingerprint
    made.verify()


@pytest.mark.parametrize("exact", [True, False])
def test_rows_like_a_store_that_rounded_nothing_keep_their_numbers(exact, tmp_path):
    first = csv(tmp_path / "a.csv", SMALL if exact else SMALL + rng.random(SMALL.shape))
    store = ingest(first, tmp_path / "s", label=3, header=False).store
    assert not store.layout.wide and store.manifest["extra"]["rounded"] is not exact
    X = SMALL + np.where(np.arange(N) < 200, 0, rng.random(N))[:, None]
    file = csv(tmp_path / "b.csv", X)
    made = ingest(file, tmp_path / "t", label=3, header=False, like=store)
    if exact:
        same(made.store, X)
    else:
        assert not made.store.layout.wide


def test_rows_like_a_store_of_float64_keep_their_numbers(tmp_path):
    given = {"label": 3, "header": False}
    wide = ingest(csv(tmp_path / "a.csv", FRACTIONS), tmp_path / "s", **given).store
    near = SMALL + rng.random(SMALL.shape)
    made = ingest(csv(tmp_path / "b.csv", near), tmp_path / "t", like=wide, **given)
    same(made.store, near)


def test_scaled_rows_are_float32_whatever_the_first_ones_were(tmp_path):
    store = ingest(csv(tmp_path / "a.csv", SMALL), tmp_path / "s", label=3, scale="standard").store
    assert store.manifest["extra"]["rounded"]
    made = ingest(csv(tmp_path / "b.csv", SMALL + 0.1), tmp_path / "t", label=3, like=store)
    assert not made.store.layout.wide
