"""Ingest: every row arrives, in an order of its own; scaling, hold-out, labels, layouts."""

from __future__ import annotations

import os

import numpy as np
import pytest
from ingest_cases import csv, dense, in_source_order, rows_and_labels, take_small_steps
from scipy.sparse import csr_array, random_array

from bigscreen.data.dataset import Dataset
from bigscreen.data.order import row_hash
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest


@pytest.fixture
def arrays() -> tuple[np.ndarray, np.ndarray]:
    return rows_and_labels()


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    take_small_steps(monkeypatch)


def test_every_row_arrives_once_and_shuffled(tmp_path, arrays):
    X, y = arrays
    made = ingest(arrays, tmp_path / "a")
    assert made.holdout is None and made.notes == []
    data = Dataset.open(tmp_path / "a")
    data.verify()
    ids = data.row_ids(0, 5000)
    assert sorted(ids.tolist()) == list(range(5000))
    got_X, got_y = in_source_order(data)
    assert np.array_equal(got_X, X) and np.array_equal(got_y, y)
    # Check a shuffle: there is no trend, and few rows keep their old neighbours.
    assert abs(np.corrcoef(ids, np.arange(5000))[0, 1]) < 0.05
    assert np.count_nonzero(np.diff(ids) == 1) < 10
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_content_depends_on_rows_and_seed_alone(sparse, shuffle, tmp_path, arrays, monkeypatch):
    X, y = arrays
    if sparse:
        X = random_array((5000, 400), density=0.02, format="csr", rng=np.random.default_rng(1))
    whole = ingest((X, y), tmp_path / "whole", shuffle=shuffle).store
    assert whole.is_sparse == sparse
    pieces = [(X[a : a + 611], y[a : a + 611]) for a in range(0, 5000, 611)]
    with monkeypatch.context() as patch:
        take_small_steps(patch)
        split = ingest(pieces, tmp_path / "split", shuffle=shuffle).store
        again = ingest((X, y), tmp_path / "again", shuffle=shuffle).store
    assert whole.fingerprint == split.fingerprint == again.fingerprint
    other = ingest((X, y), tmp_path / "other", shuffle=shuffle, seed=1).store
    assert (other.fingerprint == whole.fingerprint) != shuffle
    if not shuffle:
        assert np.array_equal(whole.row_ids(0, 5000), np.arange(5000))
        assert np.array_equal(dense(whole), X.toarray().astype(np.float32) if sparse else X)


def test_blocks_may_reuse_their_memory(tmp_path):
    def blocks():
        buffer = np.empty((100, 3), np.float32)
        for i in range(20):
            buffer[:] = i
            yield buffer, np.arange(100) % 2

    got, _ = in_source_order(ingest(blocks(), tmp_path / "a").store)
    assert np.array_equal(got[:, 0], np.repeat(np.arange(20), 100))


@pytest.mark.parametrize(("holdout", "count"), [(0.2, 1000), (0.0001, None), (17, 17)])
def test_holdout_is_exact_and_disjoint(holdout, count, tmp_path, arrays, small_steps):
    if count is None:
        with pytest.raises(InputError, match="leaves one of the two datasets empty"):
            ingest(arrays, tmp_path / "a.bs", holdout=holdout)
        assert os.listdir(tmp_path) == []
        return
    made = ingest(arrays, tmp_path / "a.bs", holdout=holdout, seed=3)
    kept, held = made.store.row_ids(0, 5000 - count), made.holdout.row_ids(0, count)
    assert made.holdout.path == tmp_path / "a-holdout.bs"
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(5000))
    X, y = arrays
    assert np.array_equal(dense(made.holdout), X[held])
    assert np.array_equal(made.holdout.y(0, count), y[held])
    # Chosen by hash: the smallest ones, whatever the order and the batches.
    assert set(held) == set(np.argsort(row_hash(3, "holdout", np.arange(5000)))[:count])


@pytest.mark.parametrize("scale", ["standard", "minmax", "divide:4"])
@pytest.mark.parametrize("holdout", [0, 0.3])
def test_scaling_is_that_of_the_kept_rows(scale, holdout, tmp_path, arrays, small_steps):
    X, _ = arrays
    made = ingest(arrays, tmp_path / "a", scale=scale, holdout=holdout)
    ids = made.store.row_ids(0, made.store.n_rows)
    kept = X[ids].astype(np.float64)
    if scale == "standard":
        std = kept.std(axis=0)
        offset, factor = kept.mean(axis=0), 1 / np.where(std < 1e-9, 1, std)
    elif scale == "minmax":
        spread = np.ptp(kept, axis=0)
        offset, factor = kept.min(axis=0), 1 / np.where(spread == 0, 1, spread)
    else:
        offset, factor = np.zeros(6), np.full(6, 0.25)
    np.testing.assert_allclose(dense(made.store), (kept - offset) * factor, rtol=1e-5, atol=1e-6)
    if scale != "divide:4":
        assert np.all(dense(made.store)[:, 3] == 0)  # a constant column is not divided by zero
    if holdout:
        rows = X[made.holdout.row_ids(0, made.holdout.n_rows)].astype(np.float64)
        expected = (rows - offset) * factor
        np.testing.assert_allclose(dense(made.holdout), expected, rtol=1e-5, atol=1e-6)
        assert made.holdout.preparation == made.store.preparation


@pytest.mark.parametrize("scale", ["standard", "minmax"])
def test_sparse_scaling_keeps_zeros_and_says_so(scale, tmp_path):
    rng = np.random.default_rng(4)
    X = random_array((2000, 300), density=0.02, format="csr", rng=rng)
    X.data += 1
    made = ingest((X, rng.integers(0, 2, 2000)), tmp_path / "a", scale=scale)
    got, _ = in_source_order(made.store)
    full = X.toarray().astype(np.float32).astype(np.float64)
    spread = full.std(axis=0) if scale == "standard" else full.max(axis=0)
    assert made.store.is_sparse
    np.testing.assert_allclose(got, full / np.where(spread == 0, 1, spread), rtol=1e-5)
    assert any("without" in note for note in made.notes)


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        (["1", "+1", "-1", "1.0", "10"], [-1, 1, 10]),
        (["0.5", "2", "1e0", ".5", "2"], [0.5, 1, 2]),
        (["b", "a", "b", "C", "a"], ["C", "a", "b"]),
        (["2", "x", "10", "10.0", "x"], ["10", "2", "x"]),
    ],
)
def test_labels_are_sorted_and_merged_by_value(texts, labels, tmp_path):
    path = csv(tmp_path / "a.csv", "u,label", *(f"{i},{text}" for i, text in enumerate(texts)))
    store = ingest(path, tmp_path / "a").store
    assert store.labels == labels
    assert [type(a) for a in store.labels] == [type(b) for b in labels]
    by_python = ingest((np.eye(5), np.array(texts, object)), tmp_path / "b").store
    assert by_python.labels == labels
    assert by_python.y(0, 5)[np.argsort(by_python.row_ids(0, 5))].tolist() == (
        store.y(0, 5)[np.argsort(store.row_ids(0, 5))].tolist()
    )


def test_positive_makes_two_labels(tmp_path, arrays):
    X, y = arrays
    for value in (2, "2", "2.0"):
        store = ingest((X, y), tmp_path / "a", positive=value, overwrite=True).store
        assert store.labels == ["rest", 2] and store.preparation.positive == 2
        assert np.array_equal(store.y(0, 5000), y[store.row_ids(0, 5000)] == 2)
    with pytest.raises(InputError, match="no row has the label 9.*0, 1, 2"):
        ingest((X, y), tmp_path / "b", positive=9)
    # A later store needs no label that the first one knew.
    later = ingest((X[:9], [2, 7, 8] * 3), tmp_path / "c", like=tmp_path / "a").store
    assert later.y(0, 9).tolist() == [int(i % 3 == 0) for i in later.row_ids(0, 9)]


def test_later_store_takes_everything_over(tmp_path):
    train = csv(tmp_path / "t.csv", "size,colour,y", "1,red,a", "3,blue,b", "5,red,b", "7,green,a")
    first = ingest(train, tmp_path / "train", scale="minmax").store
    assert first.preparation.categories == {1: ["blue", "green", "red"]} and first.n_features == 4
    test = csv(tmp_path / "s.csv", "size,colour,y", "13,violet,b", "1,blue,b")
    made = ingest(test, tmp_path / "test", like=first)
    X, y = in_source_order(made.store)
    assert X.tolist() == [[2, 0, 0, 0], [0, 1, 0, 0]] and y.tolist() == ["b", "b"]
    assert made.store.preparation == first.preparation
    assert made.store.labels == ["a", "b"]
    assert made.notes == [
        "1 value(s) of column 'colour' are not among its known categories; they are stored as "
        "zeros."
    ]
    bare = csv(tmp_path / "b.csv", "size,colour", "3,red")
    made = ingest(bare, tmp_path / "bare", like=first.preparation, label="none")
    assert made.store.y(0, 1).tolist() == [-1] and "1 row(s) have no label." in made.notes
    more = csv(tmp_path / "s2.csv", "size,colour,y", "1,red,a", "1,red,c", "2,red,c", "2,red,d")
    other = ingest(more, tmp_path / "other", like=first)
    assert other.store.label_counts.tolist() == [1, 0] and other.store.n_unlabelled == 3
    assert other.notes == [
        "3 row(s) have a label that is none of a, b, and are stored without one: 'c' (2), 'd' (1)."
    ]
    with pytest.raises(InputError, match="no column 'size', which the store it shall be like has"):
        ingest(csv(tmp_path / "s3.csv", "weight,colour,y", "1,red,a"), tmp_path / "x", like=first)
    with pytest.raises(InputError, match="leave out scale"):
        ingest(test, tmp_path / "x", like=first, scale="standard")


ROWS = {"size": [13.0, 1.0], "colour": ["green", "blue"], "id": [7, 9], "y": ["b", "a"]}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", "parquet", "arff"])
@pytest.mark.parametrize(
    "order", ["id size colour y", "y colour id size", "colour size", "size id colour"]
)
def test_columns_of_a_later_file_are_found_by_name(ending, order, tmp_path):
    train = csv(tmp_path / "t.csv", "id,size,colour,y", "1,1,red,a", "2,3,blue,b", "3,5,green,b")
    first = ingest(train, tmp_path / "train", drop=["id"], scale="minmax").store
    later = written(tmp_path / f"later.{ending}", {name: ROWS[name] for name in order.split()})
    made = ingest(later, tmp_path / "later.store", like=first)
    X, y = in_source_order(made.store)
    assert X.tolist() == [[3, 0, 1, 0], [0, 1, 0, 0]]
    assert made.store.preparation == first.preparation
    assert y.tolist() == ["b", "a"] if "y" in order else made.store.n_unlabelled == 2
    assert (
        "1 column(s) are left out, as the training data did not have them: 'id'." in made.notes
    ) == ("id" in order)
    with pytest.raises(InputError, match="the label's column cannot be the weight or a feature"):
        ingest(later, tmp_path / "x", like=first, label="size")


def written(path, columns):
    """A file of two rows."""
    rows = list(zip(*columns.values(), strict=True))
    if path.suffix == ".parquet":
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), path)
        return path
    lines = [",".join(map(str, row)) for row in rows]
    if path.suffix == ".csv":
        return csv(path, ",".join(columns), *lines)
    kinds = {"colour": "{blue,green}", "y": "{a,b}"}
    head = [f"@attribute {name} {kinds.get(name, 'real')}" for name in columns]
    return csv(path, "@relation later", *head, "@data", *lines)


def test_categories_of_several_files_are_one_set(tmp_path, small_steps):
    one = csv(tmp_path / "1.csv", "c,v,y", "x,0,0", "z,1,1")
    two = csv(tmp_path / "2.csv", "c,v,y", "y,2,0", "x,3,1")
    store = ingest([one, two], tmp_path / "a").store
    assert store.preparation.categories == {0: ["x", "y", "z"]}
    X, y = in_source_order(store)
    assert X.tolist() == [[1, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 2], [1, 0, 0, 3]]
    assert y.tolist() == [0, 1, 0, 1]
    three = csv(tmp_path / "3.csv", "c,v,y", "7,2,0", "8,3,1")
    with pytest.raises(InputError, match="3.csv, line 2.*column 'c' is categorical in one source"):
        ingest([one, three], tmp_path / "b")
    wide = csv(tmp_path / "4.csv", "c,v,w,y", "x,2,2,0")
    with pytest.raises(InputError, match="4.csv, line 2"):
        ingest([one, wide], tmp_path / "b")


@pytest.mark.parametrize("base", [0, 1])
def test_svmlight_index_base_and_width_are_kept(base, tmp_path):
    lines = [f"{i % 2} {i % 3 + base}:1 {i % 3 + 4 + base}:2" for i in range(12)]
    store = ingest(csv(tmp_path / "a.svm", *lines), tmp_path / "a").store
    X, _ = in_source_order(store)
    assert X.shape == (12, 7) and not store.is_sparse
    assert X[1].tolist() == [0, 1, 0, 0, 0, 2, 0]
    narrow = csv(tmp_path / "b.svm", f"1 {base + 1}:5")  # alone it would be taken as 1-based
    X, _ = in_source_order(ingest(narrow, tmp_path / "b", like=store).store)
    assert X.tolist() == [[0, 5, 0, 0, 0, 0, 0]]
    wide = csv(tmp_path / "c.svm", f"1 {base}:5", f"0 {base + 7}:1")
    made = ingest(wide, tmp_path / "c", like=store)
    assert in_source_order(made.store)[0].tolist() == [[5, *[0] * 7], [*[0] * 7, 1]]
    beyond = f"columns {base + 7} to {base + 7} of the source are beyond those of the store"
    assert beyond in made.notes[0]


def test_row_range_over_several_files(tmp_path, small_steps):
    files = [
        csv(
            tmp_path / f"{k}.csv", "v,y", *(f"{i},{i % 2}" for i in range(1000 * k, 1000 * (k + 1)))
        )
        for k in range(3)
    ]
    store = ingest(files, tmp_path / "a", rows="900:2100").store
    X, _ = in_source_order(store)
    assert X[:, 0].tolist() == list(range(900, 2100))
    assert sorted(store.row_ids(0, 1200)) == list(range(900, 2100))
    rest = ingest(files, tmp_path / "b", rows="2100:").store
    assert rest.n_rows == 900
    with pytest.raises(InputError, match="no row in the range 3000:"):
        ingest(files, tmp_path / "c", rows="3000:")


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_layout_can_be_chosen(layout, tmp_path, arrays):
    X, y = arrays
    for source in ((X, y), (csr_array(X), y)):
        store = ingest(source, tmp_path / "a", layout=layout, overwrite=True).store
        assert store.is_sparse == (layout == "sparse")
        assert np.array_equal(in_source_order(store)[0], X)
        later = ingest((X[:50], y[:50]), tmp_path / "b", like=store, overwrite=True).store
        assert later.is_sparse == store.is_sparse


def test_layout_follows_width_and_density(tmp_path):
    rng = np.random.default_rng(6)
    for width, density, sparse in ((256, 0.01, False), (257, 0.1, True), (257, 0.5, False)):
        X = (rng.random((300, width)) < density).astype(np.float32)
        store = ingest((X, np.arange(300) % 2), tmp_path / "a", overwrite=True).store
        assert store.is_sparse == sparse
        assert np.array_equal(in_source_order(store)[0], X)


def test_weights_travel_with_their_rows(tmp_path, arrays):
    X, y = arrays
    weight = np.arange(5000.0)
    made = ingest((X, y, weight), tmp_path / "a", holdout=100)
    for data in (made.store, made.holdout):
        assert np.array_equal(data.weights(0, data.n_rows), weight[data.row_ids(0, data.n_rows)])
    weight[4321] = -1
    with pytest.raises(InputError, match="row 4321: -1.0 is not a weight"):
        ingest((X, y, weight), tmp_path / "b")


def test_progress_is_told(tmp_path, arrays, small_steps):
    events: list[dict] = []
    ingest(arrays, tmp_path / "a", scale="standard", progress=events.append)
    assert {event["phase"] for event in events} == {"read", "measure", "write"}
    for phase, key in (("read", "bytes"), ("measure", "rows"), ("write", "rows")):
        values = [event[key] for event in events if event["phase"] == phase]
        assert (
            values == sorted(values)
            and values[-1]
            == [event[key + "_total"] for event in events if event["phase"] == phase][-1]
        )
