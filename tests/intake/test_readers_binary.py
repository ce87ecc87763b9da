"""Readers of matrices, Parquet and Python data: rows, labels, resumption, clear errors."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix, issparse

from bigscreen.data.preparation import Preparation
from bigscreen.errors import InputError
from bigscreen.intake.readers.binary import StreamRows
from bigscreen.intake.readers.formats import open_source
from bigscreen.intake.readers.python import ArrayReader, BlocksReader, DaskReader


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((1000, 7)).astype(np.float32), rng.integers(0, 3, 1000)


def collect(reader, skip_rows: int = 0):
    """Read everything in small pieces; checks that blocks follow each other without a gap."""
    reader.piece_bytes = 4096
    Xs, ys, weights, at = [], [], [], skip_rows
    for block in reader.blocks(skip_rows):
        assert block.first_row == at
        at += block.X.shape[0]
        Xs.append(block.X.toarray() if issparse(block.X) else block.X)
        ys.append(block.y)
        weights.append(block.weight)
    y = None if ys[0] is None else np.concatenate(ys)
    return np.concatenate(Xs), y, None if weights[0] is None else np.concatenate(weights)


def write_idx(path: Path, values: np.ndarray, kind: int = 8, magic: bytes | None = None) -> Path:
    codes = {8: ">u1", 13: ">f4"}
    head = magic or bytes([0, 0, kind, values.ndim])
    data = (
        head + struct.pack(f">{values.ndim}I", *values.shape) + values.astype(codes[kind]).tobytes()
    )
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def matrix_file(kind: str, folder: Path, X: np.ndarray, y: np.ndarray):
    """A file that holds X and y; returns it with the options to open it."""
    path = folder / f"data.{kind}"
    if kind == "h5":
        with h5py.File(path, "w") as file:
            file["train/X"], file["train/y"] = X, y
        return path, {}
    if kind == "npz":
        np.savez_compressed(path, X=X, y=y)
        return path, {}
    np.save(folder / "labels.npy", y)
    np.save(path, np.asfortranarray(X) if kind == "fortran.npy" else X)
    return path, {"labels_file": str(folder / "labels.npy")}


@pytest.mark.parametrize("kind", ["h5", "npz", "npy", "fortran.npy"])
def test_matrix_files_give_rows_and_labels(kind, tmp_path, rows):
    X, y = rows
    path, options = matrix_file(kind, tmp_path, X, y)
    reader = open_source(path, **options)
    got_X, got_y, weight = collect(reader)
    assert got_X.dtype == np.float32 and np.array_equal(got_X, X)
    assert np.array_equal(got_y, y) and weight is None
    assert reader.progress()[0] == reader.progress()[1]
    # A second pass, and one that begins in the middle, see the same rows.
    tail_X, tail_y, _ = collect(reader, 333)
    assert np.array_equal(tail_X, X[333:]) and np.array_equal(tail_y, y[333:])


def test_column_of_matrix_as_label_and_weight(tmp_path, rows):
    X, _ = rows
    X[:, -1] = np.abs(X[:, -1])
    np.save(tmp_path / "x.npy", X.astype(np.float64))
    got_X, y, weight = collect(open_source(tmp_path / "x.npy", label="0", weight=-1))
    assert np.array_equal(got_X, X[:, 1:-1])
    assert np.array_equal(y, X[:, 0]) and np.array_equal(weight, X[:, -1].astype(np.float64))
    got_X, y, _ = collect(open_source(tmp_path / "x.npy", label="none"))
    assert got_X.shape == X.shape and y is None


def test_hdf5_datasets_by_path_and_by_shape(tmp_path, rows):
    X, y = rows
    path = tmp_path / "odd.h5"
    with h5py.File(path, "w") as file:
        file["a/first"], file["b/second"] = X, y.astype("S1")
        file["other"] = np.zeros((3, 3))
    with pytest.raises(InputError, match="which dataset is X.*a/first"):
        open_source(path)
    with pytest.raises(InputError, match="no dataset c"):
        open_source(path, h5_x="c")
    got_X, got_y, _ = collect(open_source(path, h5_x="/a/first"))  # y: the only one that fits
    assert np.array_equal(got_X, X) and got_y.tolist() == [b"%d" % v for v in y]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_finds_its_labels_by_name(suffix, tmp_path):
    images = np.random.default_rng(1).integers(0, 256, (50, 4, 5))
    digits = np.arange(50) % 10
    path = write_idx(tmp_path / f"train-images-idx3-ubyte{suffix}", images)
    labels = write_idx(tmp_path / f"train-labels-idx1-ubyte{suffix}", digits)
    got_X, got_y, _ = collect(open_source(path))
    assert got_X.dtype == np.float32 and np.array_equal(got_X, images.reshape(50, 20))
    assert np.array_equal(got_y, digits)
    other = labels.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="no labels file next to it"):
        open_source(path)
    assert np.array_equal(collect(open_source(path, labels_file=str(other)), 7)[1], digits[7:])
    write_idx(other, digits[:-1])
    with pytest.raises(InputError, match="49 labels and .* has 50 rows"):
        open_source(path, labels_file=str(other))


def test_damaged_idx_files(tmp_path):
    images = np.zeros((10, 2, 2))
    path = write_idx(tmp_path / "a-idx3-ubyte", images)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match="ends too early.*10 rows"):
        collect(open_source(path, label="none"))
    with pytest.raises(InputError, match="not an IDX file"):
        open_source(
            write_idx(tmp_path / "b-idx3-ubyte", images, magic=b"\0\0\x07\x03"), label="none"
        )


def test_streams_skip_without_reading_into_memory():
    class Zeros:
        """A stream of rows 0, 1, 2, ... that counts the bytes asked for at once."""

        most = at = 0

        def read(self, size: int) -> bytes:
            self.most = max(self.most, size)
            out = (np.arange(self.at, self.at + size) // 1000 % 251).astype(np.uint8)
            self.at += size
            return out.tobytes()

    stream = Zeros()
    rows = StreamRows(stream, Path("x"), (100_000, 1000), "u1")
    assert np.array_equal(rows.read(50_000, 50_002)[:, 0], np.array([50_000, 50_001]) % 251)
    assert stream.most <= 8 << 20


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_, np.float16, np.float64])
def test_array_types_become_floats(dtype):
    X = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    got, y, _ = collect(ArrayReader(X, ["a", "b", "a"]))
    assert got.dtype in (np.float32, np.float64) and np.array_equal(got, X.astype(float))
    assert y.tolist() == ["a", "b", "a"]


def test_csr_and_lists_of_numbers():
    dense = np.random.default_rng(2).random((300, 40))
    dense[dense < 0.9] = 0
    for X in (csr_array(dense), csr_matrix(dense)):
        reader = ArrayReader(X, np.arange(300))
        assert reader.sparse
        got, y, _ = collect(reader, 5)
        assert np.array_equal(got, dense[5:]) and np.array_equal(y, np.arange(5, 300))
    a, b = ArrayReader(csr_array(dense)), ArrayReader(csr_array(dense * 2))
    assert a.identity == ArrayReader(csr_array(dense)).identity != b.identity


@pytest.mark.parametrize("unknown", [False, True])
def test_dask_arrays(unknown, rows):
    array = pytest.importorskip("dask.array")
    X, y = rows
    dX, dy = array.from_array(X, chunks=(170, 3)), array.from_array(y, chunks=99)
    if unknown:  # filtering leaves chunks of unknown sizes
        dX, dy = dX.rechunk((170, 7)), dy.rechunk(170)
        keep = array.from_array(np.arange(1000) % 3 > 0, chunks=170)
        dX, dy = dX[keep], dy[keep]
        X, y = X[np.arange(1000) % 3 > 0], y[np.arange(1000) % 3 > 0]
    reader = open_source((dX, dy))
    assert isinstance(reader, DaskReader) and reader.identity == open_source((dX, dy)).identity
    for skip in (0, 400):
        got_X, got_y, _ = collect(reader, skip)
        assert np.array_equal(got_X, X[skip:]) and np.array_equal(got_y, y[skip:])


def test_iterables_of_blocks(rows):
    X, y = rows
    cuts = [(0, 10), (10, 10), (10, 700), (700, 1000)]
    weight = np.arange(1000.0)
    blocks = [(X[a:b], y[a:b], weight[a:b]) for a, b in cuts]
    for source in (blocks, lambda: iter(blocks)):
        reader = open_source(source)
        assert isinstance(reader, BlocksReader) and reader.identity is None
        for skip in (0, 15):
            got_X, got_y, got_w = collect(reader, skip)
            assert np.array_equal(got_X, X[skip:]) and np.array_equal(got_y, y[skip:])
            assert np.array_equal(got_w, weight[skip:])


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_texts_of_columnar_files_are_categories(chunked, suffix, tmp_path):
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet as pq

    colours = ["red", "blue", "red", "green"] * 25
    table = pa.table(
        {
            "size": pa.array(np.arange(100), pa.int32()),
            "colour": pa.array(colours).dictionary_encode() if chunked else pa.array(colours),
            "y": ["a", "b"] * 50,
            "big": np.linspace(0, 1, 100),
        }
    )
    path = tmp_path / f"t.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path, row_group_size=13)
    else:
        pyarrow.feather.write_feather(table, path, chunksize=13)
    reader = open_source(path)
    assert reader.names == ["size", "colour", "big"]
    X, y, _ = collect(reader)
    assert y.tolist() == ["a", "b"] * 50
    assert np.array_equal(X[:, 0], np.arange(100)) and np.array_equal(X[:, 2], table["big"])
    assert [reader.categories[1][int(code)] for code in X[:, 1]] == colours
    tail, _, _ = collect(reader, 30)
    assert [reader.categories[1][int(code)] for code in tail[:, 1]] == colours[30:]
    like = Preparation(n_raw=3, categories={1: ["blue", "red"]})
    given = open_source(path, like=like, label="none", drop=["y"])
    X, y, _ = collect(given)
    assert y is None and X[:4, 1].tolist() == [1, 0, 1, -1] and given.unseen == {1: 25}


def test_parquet_errors(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1.0, None, 3.0], "y": [0, 1, 0]}), path)
    with pytest.raises(InputError, match="row 1, column 'a': the value is missing"):
        collect(open_source(path))
    pq.write_table(pa.table({"a": [[1.0], [2.0]], "y": [0, 1]}), path)
    with pytest.raises(InputError, match="column 'a' holds list"):
        open_source(path)


BAD_SOURCES = {
    "no y in NPZ": (
        lambda p: np.savez(p / "a.npz", X=np.eye(2)),
        "a.npz",
        {},
        "no array could be y",
    ),
    "objects": (
        lambda p: np.save(p / "a.npy", np.array([[{}]]), allow_pickle=True),
        "a.npy",
        {"label": "none"},
        "Python objects",
    ),
    "one dimension": (
        lambda p: np.save(p / "a.npy", np.arange(3)),
        "a.npy",
        {"label": "none"},
        "needs rows and columns",
    ),
    "no label": (lambda p: np.save(p / "a.npy", np.eye(3)), "a.npy", {}, "says nothing of labels"),
    "label beyond": (
        lambda p: np.save(p / "a.npy", np.eye(3)),
        "a.npy",
        {"label": 3},
        "no column 3",
    ),
    "label by name": (
        lambda p: np.save(p / "a.npy", np.eye(3)),
        "a.npy",
        {"label": "age"},
        "have no names",
    ),
    "not HDF5": (lambda p: (p / "a.h5").write_text("1,2"), "a.h5", {}, "not a readable HDF5"),
    "MATLAB": (lambda p: (p / "a.mat").write_bytes(b"MAT\0\1"), "a.mat", {}, "not known"),
    "wrong option": (
        lambda p: np.savez(p / "a.npz", X=np.eye(2), y=[0, 1]),
        "a.npz",
        {"delimiter": ","},
        "option delimiter",
    ),
    "missing": (lambda p: None, "nowhere.csv", {}, "does not exist"),
    "folder": (lambda p: (p / "a.csv").mkdir(), "a.csv", {}, "is a folder"),
    "compressed": (
        lambda p: (p / "a.npy.gz").write_bytes(gzip.compress(b"\x93NUMPY")),
        "a.npy.gz",
        {},
        "decompress it",
    ),
}


@pytest.mark.parametrize("case", BAD_SOURCES)
def test_bad_files_are_refused_in_a_sentence(case, tmp_path):
    make, name, options, message = BAD_SOURCES[case]
    make(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        collect(open_source(tmp_path / name, **options))
    assert name in str(caught.value)


BAD_ARRAYS = {
    "flat": (np.arange(3), "needs rows and columns"),
    "labels too few": ((np.eye(3), [0, 1]), "2 labels and the array has 3 rows"),
    "labels too wide": ((np.eye(3), np.ones((3, 2, 2))), "not one per row"),
    "text": ((np.array([["1", "2"], ["3", "x"]]), [0, 1]), "row 1.*no number"),
    "ragged block": ([(np.eye(3), [0, 1])], "3 rows and 2 labels"),
    "number": (3, "is no source"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays_are_refused_in_a_sentence(case):
    source, message = BAD_ARRAYS[case]
    with pytest.raises(InputError, match=message):
        collect(open_source(source))


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("heart_scale", "+1 1:0.5 3:-1\n", "SvmlightReader"),
        ("a.txt", "\n1 qid:3 2:7\n", "SvmlightReader"),
        ("a.t", "1,2,3\n4,5,6\n", "TableReader"),
        ("a.data", "1 2 3\n4 5 6\n", "TableReader"),
        ("a.csv", "1:2 3:4,5\n1:2 3:4,6\n", "TableReader"),
        (
            "a.arff",
            "@relation r\n@attribute a real\n@attribute c {x,y}\n@data\n1,x\n",
            "ArffReader",
        ),
    ],
)
def test_text_formats_are_told_apart(name, text, kind, tmp_path):
    (tmp_path / name).write_text(text)
    assert type(open_source(tmp_path / name)).__name__ == kind
