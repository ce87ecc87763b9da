"""Estimators take Dask collections: a cluster's workers store the blocks where they lie."""

import os

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, get_client
from scipy import sparse

from bigscreen import SVC, LinearSVC, LinearSVR, NystroemSVC
from bigscreen.errors import InputError

N, D = 900, 6


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    return X, (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(int), rng.integers(0, 3, N).astype(float)


def noting(block, folder):
    """Return a block unchanged, and note the process that computed it."""
    if block.shape[0] > 1:  # Dask tries functions on blocks of one row
        (folder / str(os.getpid())).touch()
    return block


@pytest.mark.slow
@pytest.mark.parametrize("thin", [False, True])
@pytest.mark.parametrize("persisted", [False, True])
def test_blocks_are_stored_by_the_workers_of_the_active_client(
    cluster, rows, thin, persisted, tmp_path
):
    X, y, weights = rows
    expected = NystroemSVC(n_components=40, random_state=0).fit(
        sparse.csr_array(X) if thin else X, y, weights
    )
    seen = tmp_path / "seen"
    seen.mkdir()
    lazy = da.from_array(X, chunks=(170, 4)).rechunk({1: -1}).map_blocks(noting, seen)
    if thin:
        lazy = lazy.map_blocks(sparse.csr_array, dtype=float, meta=sparse.csr_array((0, 0)))
    with Client(cluster):
        lazy = lazy.persist() if persisted else lazy
        found = NystroemSVC(n_components=40, random_state=0, work=tmp_path).fit(
            lazy, da.from_array(y, chunks=130), weights
        )
    np.testing.assert_array_equal(found.coef_, expected.coef_)
    assert {int(file.name) for file in seen.iterdir()} <= set(pids(cluster)) != {os.getpid()}
    assert [path.name for path in tmp_path.iterdir()] == ["seen"]


def pids(cluster):
    with Client(cluster, set_as_default=False) as client:
        return client.run(os.getpid).values()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["client", "cluster", "address"])
def test_blocks_go_to_the_scheduler_that_is_given(cluster, rows, kind, tmp_path):
    X, y, _ = rows
    expected = SVC(C=2.0).fit(X, y)
    lazy = da.from_array(X, chunks=(170, -1))
    with Client(cluster, set_as_default=False) as client:
        where = {"client": client, "cluster": cluster, "address": cluster.scheduler_address}[kind]
        found = SVC(C=2.0, scheduler=where, work=tmp_path).fit(lazy, y)
    np.testing.assert_array_equal(found.dual_coef_, expected.dual_coef_)


@pytest.mark.slow
def test_fractions_in_a_later_block_make_all_rows_float64(cluster, tmp_path):
    rng = np.random.default_rng(1)
    X = np.rint(3 * rng.normal(size=(400, 4)))
    X[300:] += rng.random((100, 4))
    y = X[:, 0] > 0
    with Client(cluster):
        found = LinearSVC(work=tmp_path).fit(da.from_array(X, chunks=(90, -1)), y)
    np.testing.assert_array_equal(found.coef_, LinearSVC().fit(X, y).coef_)


@pytest.mark.slow
def test_a_block_with_a_gap_is_refused_with_its_row(cluster, rows, tmp_path):
    X, y, _ = rows
    X = X.copy()
    X[555, 2] = np.nan
    with Client(cluster), pytest.raises(InputError, match="row 555"):
        LinearSVC(work=tmp_path).fit(da.from_array(X, chunks=(90, -1)), y)


def test_a_dask_data_frame_is_its_array(rows):
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    X, y, _ = rows
    table = pd.DataFrame(X, columns=list("abcdef"))
    frame = dd.from_pandas(table, npartitions=4)
    labels = dd.from_pandas(pd.Series(y), npartitions=4)
    found = NystroemSVC(n_components=40, random_state=0).fit(frame, labels)
    expected = NystroemSVC(n_components=40, random_state=0).fit(table, y)
    np.testing.assert_array_equal(found.coef_, expected.coef_)
    assert list(found.feature_names_in_) == list("abcdef")


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # Dask's, of pandas 3
def test_small_parquet_files_are_rows_of_a_fit(rows, tmp_path):
    """Dask reads some of their columns in fewer blocks than there are files."""
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    X, y, _ = rows
    table = pd.DataFrame(X, columns=list("abcdef"))
    dd.from_pandas(table.assign(label=y), npartitions=8).to_parquet(tmp_path / "rows")
    frame = dd.read_parquet(tmp_path / "rows")
    found = LinearSVC().fit(frame[list("abc")], frame["label"])
    expected = LinearSVC().fit(table[list("abc")], y)
    np.testing.assert_array_equal(found.coef_, expected.coef_)
    np.testing.assert_array_equal(
        found.predict(frame).compute(), expected.predict(table[list("abc")])
    )


def test_blocks_that_fit_in_memory_are_computed_once(rows):
    X, y, _ = rows
    computed = []

    def noted(block):
        computed.append(len(block))
        return block

    lazy = da.from_array(X, chunks=(300, -1)).map_blocks(noted, dtype=X.dtype, meta=X[:0])
    with dask.config.set(scheduler="synchronous"):
        LinearSVC().fit(lazy, y)
    assert computed == [300, 300, 300]


def test_without_a_client_dask_computes_the_blocks_here(rows):
    X, score = rows[0], rows[0][:, 0]
    lazy = da.from_array(X, chunks=(170, -1))
    with dask.config.set(scheduler="synchronous"):
        found = LinearSVR(random_state=0).fit(lazy, score)
    np.testing.assert_array_equal(found.coef_, LinearSVR(random_state=0).fit(X, score).coef_)


@pytest.mark.slow
def test_a_worker_of_the_fit_may_be_in_a_task(cluster, rows, tmp_path):
    """A fit inside a task runs on the threads of that worker, not on its own cluster."""

    def fit(X, y):
        with get_client():
            lazy = da.from_array(X, chunks=(170, -1))
            return NystroemSVC(n_components=40, random_state=0).fit(lazy, y).coef_

    X, y, _ = rows
    with Client(cluster) as client:
        there = client.submit(fit, X, y).result()
    np.testing.assert_array_equal(
        there, NystroemSVC(n_components=40, random_state=0).fit(X, y).coef_
    )
