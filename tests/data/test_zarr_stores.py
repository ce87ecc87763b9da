"""Arrays of zarr are rows, and datasets open from any store of zarr that holds their files."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from store_tables import assert_same_features, store, table
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore, StorePath, ZipStore

import bigscreen.dask
from bigscreen import (
    Dataset,
    InputError,
    LinearSVC,
    NystroemSVC,
    OneClassSVM,
    ingest,
    local_cluster,
    svm_path,
)
from bigscreen.train.job import rely_on

STORES = ("memory", "zip", "folder", "obstore")


def make_store(kind, folder):
    """An empty store of zarr, and a function that returns it, or its copy, to read from."""
    if kind == "zip":
        made = ZipStore(folder / "rows.zip", mode="w")
        return made, lambda: made.close() or ZipStore(folder / "rows.zip")
    if kind == "obstore":
        obstore = pytest.importorskip("obstore", reason="opens a store of obstore")
        (folder / "bucket").mkdir()
        made = zarr.storage.ObjectStore(obstore.store.LocalStore(str(folder / "bucket")))
    else:
        made = MemoryStore() if kind == "memory" else LocalStore(folder / "copied")
    return made, lambda: made


def copy_files(folder, to, below):
    """Copy a folder's files into a store, byte by byte."""
    new = default_buffer_prototype().buffer.from_bytes
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            sync(to.set(f"{below}/{file.relative_to(folder)}".strip("/"), new(file.read_bytes())))


@pytest.fixture(params=STORES)
def copied(request, tmp_path):
    """A dense and a sparse dataset in folders, and copies in one store of zarr."""
    made, reopened = make_store(request.param, tmp_path)
    kinds = {"dense": table(), "sparse": table(sparse=True)}
    own = {name: store(tmp_path / name, data) for name, data in kinds.items()}
    for name in own:
        copy_files(tmp_path / name, made, f"all/{name}")
    return SimpleNamespace(own=own, store=reopened())


@pytest.mark.parametrize("name", ["dense", "sparse"])
def test_a_dataset_opens_from_any_store(copied, name):
    own = copied.own[name]
    for place in (
        StorePath(copied.store, f"all/{name}"),
        zarr.open_group(copied.store, path=f"all/{name}", mode="r"),
    ):
        found = pickle.loads(pickle.dumps(Dataset.open(place)))
        found.verify()
        assert found.fingerprint == own.fingerprint and found.stored_bytes == own.stored_bytes
        assert_same_features(found.X(100, 300), own.X(100, 300))
        np.testing.assert_array_equal(found.weights(0, 600), own.weights(0, 600))


def test_a_damaged_or_missing_file_is_found_in_a_store(tmp_path):
    store(tmp_path / "dense", table())
    memory = MemoryStore()
    copy_files(tmp_path / "dense", memory, "")
    data = Dataset.open(memory)
    key = "X/c/3/0"
    content = sync(memory.get(key, prototype=default_buffer_prototype())).to_bytes()
    changed = bytes([content[0] ^ 1]) + content[1:]
    sync(memory.set(key, default_buffer_prototype().buffer.from_bytes(changed)))
    with pytest.raises(InputError, match="X/c/3/0 is damaged"):
        data.X(0, 600)
    sync(memory.delete(key))
    with pytest.raises(InputError, match="X/c/3/0 is missing"):
        Dataset.open(memory)


def test_a_group_without_a_dataset_is_no_dataset():
    group = zarr.create_group(MemoryStore())
    group.create_array("X", data=np.eye(3))
    with pytest.raises(InputError, match=r"no manifest.json.*arrays of zarr"):
        NystroemSVC().fit(group)
    with pytest.raises(InputError, match="there is no dataset"):
        Dataset.open(MemoryStore())


@pytest.fixture(scope="module")
def rows():
    """Rows and labels."""
    X = np.random.default_rng(0).normal(size=(600, 3)).astype(np.float32)
    return X, np.where(X[:, 0] + X[:, 1] ** 2 > 0.5, 1, 0)


def stored(group, rows, **layout):
    """The rows and labels as arrays of a group of zarr."""
    X, y = rows
    made = group.create_array("X", shape=X.shape, dtype=X.dtype, **layout)
    made[:] = X  # (zarr 3.1.0 loses chunks of shards if `create_array` writes them)
    return made, group.create_array("y", data=y, chunks=(70,))


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("layout", [{"chunks": (50, 2)}, {"chunks": (50, 3), "shards": (200, 3)}])
def test_arrays_of_zarr_are_rows(tmp_path, rows, kind, layout):
    made, reopened = make_store(kind, tmp_path)
    stored(zarr.create_group(made), rows, **layout)
    group = zarr.open_group(reopened(), mode="r")
    X, y = group["X"], group["y"]
    own = NystroemSVC(n_components=20, random_state=0).fit(*rows)
    machine = NystroemSVC(n_components=20, random_state=0).fit(X, y)
    np.testing.assert_array_equal(machine.coef_, own.coef_)
    answers = machine.predict(X)
    assert hasattr(answers, "dask")  # lazy, as for Dask arrays
    np.testing.assert_array_equal(answers.compute(), own.predict(rows[0]))
    assert machine.score(X, y) == own.score(*rows)
    assert ingest((X, y), tmp_path / "a").store.fingerprint == (
        ingest(rows, tmp_path / "b").store.fingerprint
    )


def test_rows_of_zarr_larger_than_memory_are_stored_block_by_block(rows):
    X, y = stored(zarr.create_group(MemoryStore()), rows, chunks=(50, 3))
    seen = []

    class Watched(LinearSVC):
        """A machine that keeps where its rows were."""

        def _adapt_options(self, options, data):
            seen.append(data.path)
            return super()._adapt_options(options, data)

        _dask_fraction = 1e-12

    Watched(loss="hinge").fit(X, y)
    assert seen[0] is not None and seen[0].name == "rows"


def test_other_calls_take_arrays_of_zarr(rows):
    X, y = stored(zarr.create_group(MemoryStore()), rows, chunks=(50, 3))
    machine = OneClassSVM().fit(X)
    own = OneClassSVM().fit(rows[0])
    np.testing.assert_array_equal(machine.predict(X).compute(), own.predict(rows[0]))
    entries = bigscreen.dask.kernel_columns(X, rows[0][:5], gamma=0.5).compute()
    assert entries.shape == (600, 5) and entries[0, 0] == pytest.approx(1)
    path, its = (svm_path(*some, Cs=[0.1, 1.0], kernel="linear") for some in ((X, y), rows))
    assert path.record["n_features"] == its.record["n_features"] == 3


@pytest.mark.parametrize("kind", ["memory", "zip"])
def test_workers_read_a_dataset_in_a_store(tmp_path, fleet, kind):
    own = store(tmp_path / "dense", table())
    made, reopened = make_store(kind, tmp_path)
    copy_files(tmp_path / "dense", made, "")
    data = Dataset.open(reopened())
    rely_on(fleet, data, None)  # no worker is left out, though none finds a file there by its name
    found = fleet.each(read_rows, [(data, 0, 300), (data, 300, 600)])
    np.testing.assert_array_equal(np.concatenate(list(found)), own.X(0, 600))


@pytest.fixture(scope="module")
def fleet():
    """One worker process."""
    with local_cluster(1) as fleet:
        yield fleet


def read_rows(task):
    """Read rows of a dataset."""
    data, start, stop = task
    return data.X(start, stop)


def test_arrays_in_icechunk_are_rows(rows):
    icechunk = pytest.importorskip("icechunk", reason="reads an array of icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    stored(zarr.create_group(session.store), rows, chunks=(50, 3))
    session.commit("rows")
    group = zarr.open_group(repository.readonly_session("main").store, mode="r")
    machine = NystroemSVC(n_components=20, random_state=0).fit(group["X"], group["y"])
    own = NystroemSVC(n_components=20, random_state=0).fit(*rows)
    np.testing.assert_array_equal(machine.coef_, own.coef_)
    with pytest.raises(InputError, match="no manifest"):
        Dataset.open(group)


def test_a_group_is_no_source_and_a_store_no_target(tmp_path, rows):
    group = zarr.create_group(MemoryStore())
    stored(group, rows, chunks=(50, 3))
    with pytest.raises(InputError, match="give its arrays"):
        ingest(group, tmp_path / "a")
    with pytest.raises(InputError, match="a path or URL is needed, got a MemoryStore"):
        ingest(rows, MemoryStore())
