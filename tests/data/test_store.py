"""Stored datasets return the rows that were written, and equal datasets in memory."""

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.utils import check_array
from store_tables import LABELS, assert_same_features, dense, store, table

from bigscreen.data.layout import chunk_digest, row_grid
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.preparation import Preparation
from bigscreen.data.zarr_arrays import create_csr, csr_arrays
from bigscreen.errors import InputError
from bigscreen.numerics.rows import as_rows


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_store_returns_what_was_written(tmp_path_factory, data):
    draw = data.draw
    n_rows, n_features = draw(st.integers(1, 150)), draw(st.integers(1, 5))
    shape = (n_rows, n_features)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    X = np.where(rng.random(shape) < draw(st.sampled_from([0, 0.3, 1])), rng.normal(size=shape), 0)
    wide = draw(st.booleans()) and bool(X.any())
    X = X if wide else X.astype(np.float32)
    X = csr_array(X) if draw(st.booleans()) else X
    y = rng.integers(-1, 3, n_rows)
    weight = rng.random(n_rows) if draw(st.booleans()) else None
    grid = {"chunk_rows": 2 ** draw(st.integers(4, 6)), "shard_rows": 64, "wide": wide}
    folder = tmp_path_factory.mktemp("store")
    compress = draw(st.booleans())
    ids = np.arange(n_rows)
    disk = store(folder / "a", (X, y, weight, ids), compress=compress, **grid)
    disk.verify()
    del grid["wide"]
    memory = MemoryDataset(X, y, LABELS, weight, **grid)
    assert disk.fingerprint == memory.fingerprint
    start = draw(st.integers(0, n_rows))
    stop = draw(st.integers(start, n_rows))
    picked = rng.integers(0, n_rows, draw(st.integers(0, 20)))
    norms = (dense(X).astype(np.float64) ** 2).sum(axis=1)
    for dataset in (disk, memory, pickle.loads(pickle.dumps(disk))):
        assert_same_features(dataset.X(start, stop), X[start:stop])
        assert_same_features(dataset.rows(picked), X[picked])
        np.testing.assert_array_equal(dataset.y(start, stop), y[start:stop])
        expected = np.ones(n_rows) if weight is None else weight
        np.testing.assert_array_equal(dataset.weights(start, stop), expected[start:stop])
        np.testing.assert_allclose(dataset.sqnorms(start, stop), norms[start:stop], rtol=1e-13)
        np.testing.assert_array_equal(dataset.row_ids(start, stop), ids[start:stop])
        np.testing.assert_array_equal(
            dataset.label_counts, [np.count_nonzero(y == code) for code in range(3)]
        )
        assert dataset.max_sqnorm == pytest.approx(norms.max(), rel=1e-13)
        assert [dataset.shard(s) for s in range(dataset.n_shards)] == [
            (a, min(a + 64, n_rows)) for a in range(0, n_rows, 64)
        ]
    assert disk.max_sqnorm == memory.max_sqnorm
    shutil.rmtree(folder)


@pytest.mark.parametrize("sparse", [False, True])
def test_other_programs_read_it_through_zarr(tmp_path, sparse):
    X, y, weight, ids = data = table(sparse=sparse)
    store(tmp_path / "a", data)
    root = zarr.open_group(tmp_path / "a", mode="r")
    for name, expected in [("y", y), ("weight", weight), ("row_id", ids)]:
        np.testing.assert_array_equal(root[name][:], expected)
        assert root[name].metadata.codecs[-1].to_dict()["name"] == "crc32c"
    if not sparse:
        np.testing.assert_array_equal(root["X"][:], X)
        return
    group = root["X/000001"]
    assert group.attrs["encoding-type"] == "csr_matrix"
    parts = [group[name][:] for name in ("data", "indices", "indptr")]
    found = csr_array(tuple(parts), shape=tuple(group.attrs["shape"]))
    np.testing.assert_array_equal(found.toarray(), X[64:128].toarray())


def test_sparse_rows_may_come_unsorted_and_stay_as_they_are(tmp_path):
    indices, values = np.array([5, 1, 1, 0] * 50), np.arange(200.0)
    X = csr_array((values, indices, np.arange(0, 201, 4)), shape=(50, 6))
    before = X.indices.copy()
    found = store(tmp_path / "a", (X, np.zeros(50, int), None, np.arange(50)))
    assert_same_features(found.X(0, 50), csr_array(X.toarray()).astype(np.float32))
    np.testing.assert_array_equal(X.indices, before)


@pytest.mark.parametrize("compressed", [False, True])
def test_many_nonzeros_are_stored_in_several_files(tmp_path, compressed):
    X = table(50, sparse=True)[0]
    checksums = create_csr(tmp_path / "a", X, compressed, chunk_nnz=8)
    assert len(list((tmp_path / "a/data/c").iterdir())) == -(-X.nnz // 8) > 1
    how = {"checksums": checksums, "chunk_nnz": 8}
    for array in csr_arrays(tmp_path / "a", 50, X.nnz, compressed, **how):
        expected = getattr(X, array.folder.name)
        np.testing.assert_array_equal(array.read(0, len(expected)), expected)


def test_compression_shrinks_what_repeats(tmp_path):
    X = np.tile(np.arange(8, dtype=np.float32), (512, 1))
    data = (X, np.zeros(512, int), None, np.arange(512))
    plain = store(tmp_path / "plain", data)
    small = store(tmp_path / "small", data, compress=True)

    def size(dataset):
        return sum(f.stat().st_size for f in (dataset.path / "X").rglob("*") if f.is_file())

    assert size(small) < size(plain) / 4
    assert small.fingerprint == plain.fingerprint


def test_sparse_rows_have_32_bit_indices(tmp_path):
    """Slices have 32-bit indices, too, as scikit-learn requires; hashes do not depend on types."""
    X, y, weight, ids = data = table(sparse=True)
    wide = X.copy()
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    disk, memory = store(tmp_path / "a", data), MemoryDataset(wide, y, LABELS, weight)
    for dataset in (disk, memory):
        for rows in (dataset.X(3, 500), dataset.rows([5, 1, 5]), dataset.X(0, 600)[7:400]):
            assert (rows.indices.dtype, rows.indptr.dtype) == (np.int32, np.int32)
            check_array(rows, accept_sparse="csr", accept_large_sparse=False)
        rows = dataset.X(0, 64)
        for own, taken in zip((rows.data, rows.indices, rows.indptr), as_rows(rows), strict=True):
            assert np.shares_memory(own, taken)
    narrow = csr_array(memory.X(0, 600))
    assert chunk_digest(narrow, memory.y(0, 600), None, ids) == chunk_digest(
        csr_array(wide), memory.y(0, 600), None, ids
    )


def test_shards_and_chunks_are_powers_of_two_within_their_limits():
    for n_rows in (1, 255, 4096, 10**6, 10**10):
        for row_bytes in (1, 4, 4000, 10**9):
            shard, chunk = row_grid(n_rows, row_bytes)
            assert shard & (shard - 1) == 0 and chunk & (chunk - 1) == 0
            assert 256 <= shard <= 65536 and shard % chunk == 0
            assert chunk == 1 or chunk * row_bytes <= 32 * 2**20
            assert n_rows < 2048 or n_rows / shard >= 8
    assert row_grid(10**6, 4)[0] == row_grid(10**6, 10**6)[0]


def test_threads_read_the_same_rows(tmp_path):
    X, *_ = data = table(2000, 3)
    dataset = store(tmp_path / "a", data, compress=True)
    with ThreadPoolExecutor(4) as pool:
        ranges = [(a, a + 100) for a in range(0, 2000, 100)] * 3
        for (start, stop), found in zip(
            ranges, pool.map(lambda r: dataset.X(*r), ranges), strict=True
        ):
            np.testing.assert_array_equal(found, X[start:stop])


def test_every_change_changes_the_fingerprint():
    X, y, weight, _ = table(300)
    other_X, other_y, other_weight = X.copy(), y.copy(), weight.copy()
    other_X[7, 3] += 1e-3
    other_y[7] = (y[7] + 2) % 3
    other_weight[7] += 0.5
    scaled = Preparation(scaling="standard", factor=np.full(7, 2.0))
    variants = [
        MemoryDataset(X, y, LABELS, weight),
        MemoryDataset(other_X, y, LABELS, weight),
        MemoryDataset(X, other_y, LABELS, weight),
        MemoryDataset(X, y, LABELS, other_weight),
        MemoryDataset(X, y, LABELS),
        MemoryDataset(X, y, LABELS[::-1], weight),
        MemoryDataset(X, y, LABELS, weight, chunk_rows=64),
        MemoryDataset(csr_array(X), y, LABELS, weight),
        MemoryDataset(X, y, LABELS, weight, preparation=scaled),
    ]
    assert len({v.fingerprint for v in variants}) == len(variants)
    assert MemoryDataset(X.astype(float), y, LABELS, weight).fingerprint == variants[0].fingerprint


def test_reads_out_of_range_are_refused(tmp_path):
    dataset = store(tmp_path / "a", table())
    for read in (dataset.X, dataset.y, dataset.weights, dataset.sqnorms, dataset.row_ids):
        with pytest.raises(IndexError):
            read(590, 601)
    for ids in ([-1], [600]):
        with pytest.raises(IndexError):
            dataset.rows(ids)
    with pytest.raises(TypeError):
        dataset.rows([1.5])


@pytest.mark.parametrize("sparse", [False, True])
def test_a_chunk_is_read_once_for_consecutive_tiles(tmp_path, sparse):
    """The first tile of a chunk reads the chunk; later tiles come from memory."""
    X, *_ = data = table(2000, 3, sparse=sparse)
    dataset = store(tmp_path / "a", data, chunk_rows=256)
    dense = X.toarray() if sparse else X
    assert_same_features(dataset.rows(np.arange(2000)), dataset.X(0, 2000))
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda a: dataset.rows(np.arange(a, a + 40)), range(0, 1960, 20)))
    for a, part in zip(range(0, 1960, 20), parts, strict=True):
        np.testing.assert_array_equal(part.toarray() if sparse else part, dense[a : a + 40])
    fresh = pickle.loads(pickle.dumps(dataset))
    for k in range(8):
        for a in range(256 * k, min(256 * (k + 1), 2000), 64):
            ids = np.arange(a, min(a + 64, 2000))
            found = fresh.rows(ids)
            found = found.toarray() if sparse else found
            np.testing.assert_array_equal(found, dense[ids])
            found[:] = np.nan  # it is the caller's own
            shutil.rmtree(dataset.path / (f"X/{k:06d}" if sparse else f"X/c/{k}"), True)


def test_few_rows_of_a_chunk_are_read_alone(tmp_path):
    """Few rows of a verified chunk are read without the others; other chunks are read whole."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(2000, 1000)).astype(np.float32)
    data = (X, np.zeros(2000, int), None, np.arange(2000))
    dataset = store(tmp_path / "a", data, chunk_rows=256)
    few = np.array([3, 3, 100, 255, 256, 1999, 700, 5])
    np.testing.assert_array_equal(dataset.rows(few), X[few])
    file = dataset.path / "X/c/0/0"
    content = bytearray(file.read_bytes())
    content[4000 * 50] ^= 1  # row 50, which no call below asks for
    file.write_bytes(content)
    np.testing.assert_array_equal(dataset.rows(few), X[few])
    many = np.arange(0, 252, 4)  # 2 * 63 * (4000 + 4096) bytes, less than the chunk's 256 * 4000
    np.testing.assert_array_equal(dataset.rows(many), X[many])
    with pytest.raises(InputError, match="X/c/0/0 is damaged"):
        dataset.rows(np.arange(0, 256, 4))
    assert not store(tmp_path / "b", data, compress=True)._arrays["X"].should_read_singly(1)
    (dataset.path / "X/c/2/0").write_bytes(b"short")
    with pytest.raises(InputError, match="X/c/2/0 is damaged"):
        dataset.rows([700])
    (dataset.path / "X/c/2/0").unlink()
    with pytest.raises(InputError, match="X/c/2/0 is missing"):
        dataset.rows([700])
