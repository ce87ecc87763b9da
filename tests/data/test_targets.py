"""Rows with regression targets, and rows without labels or targets, in memory and on disk."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_tables import table

from bigscreen.data.dataset import Dataset
from bigscreen.data.layout import Layout
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.preparation import Preparation
from bigscreen.data.targets import as_targets, merge_summaries, summarise_outcomes
from bigscreen.data.writer import DatasetWriter
from bigscreen.errors import InputError


def write(path, X, y, labels=None, compress=False):
    layout = Layout.of(
        n_rows=len(X),
        n_features=X.shape[1],
        sparse=False,
        labels=labels,
        weights=False,
        chunk_rows=64,
    )
    writer = DatasetWriter(path, layout, Preparation(labels=labels), compress=compress)
    for k in range(writer.n_chunks):
        rows = slice(*writer.chunk(k))
        writer.write(k, X[rows], None if y is None else y[rows])
    return writer.finish()


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    targets=st.lists(
        st.floats(allow_infinity=False, allow_nan=True) | st.integers(-9, 9), min_size=1
    ),
    compress=st.booleans(),
)
def test_stored_targets_equal_targets_in_memory(tmp_path_factory, targets, compress):
    y = np.array(targets, float)
    X = np.random.default_rng(0).normal(size=(len(y), 3)).astype(np.float32)
    disk = write(tmp_path_factory.mktemp("targets") / "a", X, y, compress=compress)
    disk.verify()
    memory = MemoryDataset(X, y, None, preparation=Preparation(labels=None), chunk_rows=64)
    assert disk.fingerprint == memory.fingerprint
    known = y[~np.isnan(y)]
    for data in (disk, memory, pickle.loads(pickle.dumps(disk))):
        assert data.regression and data.labels == [] and data.n_labels == 0
        assert data.label_counts.shape == (0,)
        found = data.y(0, len(y))
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, y)
        assert data.n_unlabelled == len(y) - len(known)
        assert data.targets["rows"] == len(known)
        ends = (known.min(), known.max()) if len(known) else (None, None)
        assert (data.targets["low"], data.targets["high"]) == ends


def test_a_lost_chunk_of_missing_targets_is_noticed(tmp_path):
    """A chunk of NaN only is stored as a file, so its loss is noticed."""
    X = table(300)[0]
    data = write(tmp_path / "a", X, None)
    assert np.isnan(data.y(0, 300)).all() and data.n_unlabelled == 300
    data.verify()
    (tmp_path / "a/y/c/1").unlink()
    with pytest.raises(InputError, match=r"y/c/1 is missing"):
        Dataset.open(tmp_path / "a")


def test_fingerprints_of_stores_with_labels_have_not_changed(tmp_path):
    """Work folders are found by fingerprints, so fingerprints must not change."""
    X = np.arange(40, dtype=np.float32).reshape(10, 4) / 7
    old = MemoryDataset(X, np.arange(10) % 3 - 1, ["no", "yes"], np.arange(10) / 3.0)
    assert old.fingerprint == "378bb8f359473fcfe98815fe315a5c981ee8fbd36e80f981481d46fda7c9835d"
    assert not old.regression and old.targets == {} and old.n_unlabelled == 4
    bare = MemoryDataset(X, None, [])
    assert bare.fingerprint == "518405ba46318f9c81fcbe285ead6b52a4c263c7d3533b7df1331265e3e7f7fb"
    assert not bare.regression and bare.n_unlabelled == 10
    for name, y, labels in (
        ("labels", np.arange(10) % 2, [0, 1]),
        ("bare", None, []),
        ("targets", X[:, 0], None),
    ):
        data = write(tmp_path / name, X, y, labels)
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        assert ("targets" in manifest) == (labels is None) == data.regression


def test_targets_count_in_the_fingerprint():
    X = table(300)[0]
    y = np.arange(300.0)
    other = y.copy()
    other[7] += 1e-9
    variants = [
        MemoryDataset(X, y, None),
        MemoryDataset(X, other, None),
        MemoryDataset(X, None, None),
        MemoryDataset(X, None, []),
        MemoryDataset(X, np.zeros(300, int), [0]),
    ]
    assert len({data.fingerprint for data in variants}) == len(variants)


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        ([True, False], [1, 0]),
        (np.array([1, 2], np.uint8), [1, 2]),
        (np.array([0.1, 2], np.float32), [np.float64(np.float32(0.1)), 2]),
        (np.array(["1e3", ""]), [1000, np.nan]),
        (np.array([None, 2.5, "-1"], object), [np.nan, 2.5, -1]),
        (np.array([b"7", b"0.25"]), [7, 0.25]),
        (None, [np.nan, np.nan]),
    ],
)
def test_numbers_and_their_texts_are_targets(y, expected):
    found = as_targets(y, len(expected), str)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("y", "said"),
    [
        ([1.0, np.inf], r"row 1: the target inf is not a finite number; correct or remove"),
        ([-np.inf, 1.0], r"row 0: the target -inf is not a finite number"),
        (["1", "much"], r"row 1: the target 'much' is not a number"),
        (["1", "1_000"], r"row 1: the target '1_000' is not a number"),
        (["1", "inf"], r"row 1: the target 'inf' is not a finite number"),
        ([1.0, 2j], r"row 0: the target \(1\+0j\) is not a number"),
        (np.array([1, 2], "M8[ns]"), r"row 0: the target 1 is not a number"),
        (np.array([1, [2]], object), r"row 1: the target \[2\] is not a number"),
        ([[1.0], [2.0]], r"2 targets are needed, one for every row .*\(2, 1\)"),
        ([1.0], r"2 targets are needed"),
    ],
)
def test_other_values_are_refused_as_targets(y, said):
    with pytest.raises(InputError, match=said):
        MemoryDataset(np.zeros((2, 1)), y, None)


def test_nothing_is_written_of_a_bad_target(tmp_path):
    writer = DatasetWriter(
        tmp_path / "a",
        Layout.of(
            n_rows=2,
            n_features=1,
            sparse=False,
            labels=None,
            weights=False,
        ),
        None,
    )
    with pytest.raises(InputError, match="row 1: the target inf"):
        writer.write(0, np.zeros((2, 1)), [0.0, np.inf])
    assert not writer.is_written(0)


def test_merged_summaries_equal_the_summary_of_all_rows():
    rng = np.random.default_rng(0)
    y = np.where(rng.random(100) < 0.3, np.nan, rng.normal(size=100))
    pieces = np.split(y, [0, 10, 10, 60])
    assert merge_summaries(
        [summarise_outcomes(piece, 0) for piece in pieces]
    ) == summarise_outcomes(y, 0)
    codes = rng.integers(-1, 3, 100).astype(np.int32)
    pieces = np.split(codes, [20, 50])
    assert merge_summaries(
        [summarise_outcomes(piece, 3) for piece in pieces]
    ) == summarise_outcomes(codes, 3)
