"""xarray, Dask and zarr itself read stores and stored features, without a warning."""

import warnings

import numpy as np
import pytest
import zarr
from scipy.sparse import csr_array, vstack
from store_tables import LABELS, store, table

from bigscreen.intake.ingest import ingest


def test_zarr_lists_an_ingested_store(tmp_path):
    X = np.random.default_rng(0).normal(size=(50, 3))
    ingest((X, np.where(X[:, 0] > 0, "yes", "no")), tmp_path / "s")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(tmp_path / "s", mode="r")
        assert {"X", "y", "row_id"} <= set(group.array_keys())
        labels = np.array(group.attrs["labels"])[group["y"][:]]
    assert (labels == "yes").tolist() == (X[group["row_id"][:], 0] > 0).tolist()


@pytest.mark.parametrize("sparse", [False, True])
def test_arrays_name_their_dimensions(tmp_path, sparse):
    store(tmp_path / "s", table(sparse=sparse))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(tmp_path / "s", mode="r")
        for name in ("y", "weight", "sqnorm", "row_id"):
            assert group[name].metadata.dimension_names == ("row",)
        if sparse:
            assert group["X/000000/data"].metadata.dimension_names == ("nonzero",)
        else:
            assert group["X"].metadata.dimension_names == ("row", "feature")
    assert group.attrs["labels"] == LABELS


def test_sparse_groups_are_csr_matrices(tmp_path):
    data = table(sparse=True)
    store(tmp_path / "s", data)
    X = zarr.open_group(tmp_path / "s", mode="r")["X"]
    n_rows, n_features = X.attrs["shape"]
    parts = []
    for k in range(-(-n_rows // X.attrs["group_rows"])):
        values, indices, indptr = (X[f"{k:06d}/{n}"][:] for n in ("data", "indices", "indptr"))
        parts.append(csr_array((values, indices, indptr), shape=(len(indptr) - 1, n_features)))
    np.testing.assert_array_equal(vstack(parts).toarray(), data[0].toarray())


@pytest.mark.parametrize("compress", [False, True])
def test_xarray_opens_a_dense_store(tmp_path, compress):
    xarray = pytest.importorskip("xarray", reason="reads a store with xarray")
    data = table()
    store(tmp_path / "s", data, compress=compress)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = xarray.open_zarr(tmp_path / "s").load()
    assert rows["X"].dims == ("row", "feature")
    for name, expected in zip(("X", "y", "weight", "row_id"), data, strict=True):
        np.testing.assert_array_equal(rows[name].values, expected)


def test_xarray_opens_the_root_of_a_sparse_store(tmp_path):
    xarray = pytest.importorskip("xarray", reason="reads a store with xarray")
    data = table(sparse=True)
    store(tmp_path / "s", data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = xarray.open_zarr(tmp_path / "s")
        group = zarr.open_group(tmp_path / "s", mode="r")
        assert {"X", "y", "row_id"} <= set(group) and len(list(group["X"].groups())) == 10
    assert "X" not in rows
    np.testing.assert_array_equal(rows["y"].values, data[1])


def test_dask_opens_a_dense_store(tmp_path):
    array = pytest.importorskip("dask.array", reason="reads a store with dask.array")
    data = table()
    store(tmp_path / "s", data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, expected in zip(("X", "y"), data[:2], strict=True):
            found = array.from_zarr(str(tmp_path / "s"), component=name).compute()
            np.testing.assert_array_equal(found, expected)
