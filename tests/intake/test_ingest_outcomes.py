"""Ingest of targets, and of rows with nothing to predict: every reader, every wrong request."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from ingest_cases import csv, dense
from scipy.sparse import csr_array

from bigscreen.data.dataset import Dataset
from bigscreen.data.preparation import Preparation
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest
from bigscreen.kernels.standard import make_kernel
from bigscreen.model.model import Model

N = 60


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(N, 3)).astype(np.float32), 1e3 * rng.normal(size=N)


def parquet(path: Path, X: np.ndarray, y: np.ndarray) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    columns = {f"x{j}": X[:, j] for j in range(X.shape[1])}
    files.write_table(pyarrow.table({**columns, "target": y}), path)
    return path


def hdf5(path: Path, X: np.ndarray, y: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        file["X"], file["y"] = X, y[:, None]
    return path


def lines(X: np.ndarray, y: np.ndarray) -> list[str]:
    return [",".join(map(repr, [*map(float, x), float(t)])) for x, t in zip(X, y, strict=True)]


def as_svmlight(path: Path, X: np.ndarray, y: np.ndarray) -> Path:
    text = [
        " ".join([repr(float(t)), *(f"{j + 1}:{float(v)!r}" for j, v in enumerate(x))])
        for x, t in zip(X, y, strict=True)
    ]
    return csv(path, *text)


def as_npy(path: Path, X: np.ndarray, y: np.ndarray) -> Path:
    np.save(path, np.column_stack([X.astype(float), y]))
    return path


def as_npz(path: Path, X: np.ndarray, y: np.ndarray) -> Path:
    np.savez(path, X=X, y=y)
    return path


ARFF = ["@relation r", *(f"@attribute x{j} real" for j in range(3)), "@attribute t real", "@data"]

# How a source is made of X and y, and the column of y where it is not taken by itself.
SOURCES = {
    "svmlight": (lambda p, X, y: as_svmlight(p / "a.svm", X, y), None),
    "table": (lambda p, X, y: csv(p / "a.csv", *lines(X, y)), None),
    "named": (lambda p, X, y: csv(p / "a.csv", "u,v,w,cost", *lines(X, y)), "cost"),
    "arff": (lambda p, X, y: csv(p / "a.arff", *ARFF, *lines(X, y)), None),
    "hdf5": (lambda p, X, y: hdf5(p / "a.h5", X, y), None),
    "npy": (lambda p, X, y: as_npy(p / "a.npy", X, y), 3),
    "npz": (lambda p, X, y: as_npz(p / "a.npz", X, y), None),
    "parquet": (lambda p, X, y: parquet(p / "a.parquet", X, y), None),
    "arrays": (lambda p, X, y: (X, y), None),
    "sparse": (lambda p, X, y: (csr_array(X), y), None),
    "objects": (lambda p, X, y: (X, np.array([str(t) for t in y], object)), None),
    "blocks": (lambda p, X, y: [(X[:7], y[:7]), (X[7:], y[7:, None])], None),
}


def sorted_by_source(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(data.row_ids(0, data.n_rows))
    return dense(data)[order], data.y(0, data.n_rows)[order]


@pytest.mark.parametrize("kind", SOURCES)
def test_every_reader_has_targets(kind, rows, tmp_path):
    X, y = rows
    make, label = SOURCES[kind]
    made = ingest(make(tmp_path, X, y), tmp_path / "s", label=label, regression=True)
    data = made.store
    assert data.regression and data.labels == [] and data.preparation.labels is None
    found, targets = sorted_by_source(data)
    np.testing.assert_array_equal(found, X)
    assert targets.dtype == np.float64
    # Text is read to the last digit or the one before.
    np.testing.assert_allclose(targets, y, rtol=4e-16)
    assert data.targets["rows"] == N and data.n_unlabelled == 0 and not made.notes


@pytest.mark.parametrize("kind", SOURCES)
def test_every_reader_leaves_labels_out(kind, rows, tmp_path):
    X, y = rows
    make, label = SOURCES[kind]
    if label is None and kind in ("table", "arff"):
        label = -1
    if kind == "parquet":
        label = "target"
    made = ingest(make(tmp_path, X, y), tmp_path / "s", label=label, unlabelled=True)
    data = made.store
    found, codes = sorted_by_source(data)
    np.testing.assert_array_equal(found, X)
    assert codes.dtype == np.int32 and (codes == -1).all()
    assert not data.regression and data.labels == [] and data.n_unlabelled == N and not made.notes


def test_without_a_label_column_every_column_is_a_feature(rows, tmp_path):
    X, _ = rows
    plain = csv(tmp_path / "a.csv", *lines(X[:, :2], X[:, 2]))
    data = ingest(plain, tmp_path / "s", unlabelled=True).store
    np.testing.assert_array_equal(sorted_by_source(data)[0], X)
    np.save(tmp_path / "a.npy", X)
    np.testing.assert_array_equal(
        sorted_by_source(ingest(tmp_path / "a.npy", tmp_path / "t", unlabelled=True).store)[0], X
    )
    named = csv(tmp_path / "b.csv", "u,v,class", *lines(X[:, :2], X[:, 2]))
    with pytest.raises(InputError, match=r"b\.csv: by its name the column 'class' holds labels"):
        ingest(named, tmp_path / "n", unlabelled=True)
    kept = ingest(named, tmp_path / "n", unlabelled=True, label="none").store
    left = ingest(named, tmp_path / "m", unlabelled=True, drop=["class"]).store
    assert (kept.n_features, left.n_features) == (3, 2)
    assert ingest(named, tmp_path / "o", unlabelled=True, label="class").store.n_features == 2


def test_one_label_alone(tmp_path):
    source = (np.ones((5, 2)), ["normal"] * 5)
    with pytest.raises(InputError, match="every row has the label 'normal'.*unlabelled"):
        ingest(source, tmp_path / "s")
    assert ingest(source, tmp_path / "s", unlabelled=True).store.n_unlabelled == 5


def test_holdout_rows_and_shuffle(rows, tmp_path):
    X, y = rows
    options = {"regression": True, "rows": "10:50", "seed": 4, "scale": "standard"}
    made = ingest((X, y), tmp_path / "s", holdout=8, **options)
    assert (made.store.n_rows, made.holdout.n_rows) == (32, 8) and made.holdout.regression
    ids = np.concatenate([d.row_ids(0, d.n_rows) for d in (made.store, made.holdout)])
    targets = np.concatenate([d.y(0, d.n_rows) for d in (made.store, made.holdout)])
    assert sorted(ids.tolist()) == list(range(10, 50)) and (np.diff(ids) < 0).any()
    np.testing.assert_array_equal(targets, y[ids])
    made.store.verify()
    again = ingest((X, y), tmp_path / "t", holdout=8, **options)
    assert again.store.fingerprint == made.store.fingerprint
    bare = ingest((X, y), tmp_path / "u", holdout=0.5, unlabelled=True)
    assert bare.store.n_rows == bare.holdout.n_rows == 30 and bare.holdout.n_unlabelled == 30


def test_like_a_store_of_targets(rows, tmp_path):
    X, y = rows
    first = ingest((X, y), tmp_path / "s", regression=True, scale="minmax").store
    for extra in ({}, {"regression": True}):  # said or not, the new rows have targets
        data = ingest((X[:9], y[:9]), tmp_path / f"t{len(extra)}", like=first, **extra).store
        assert data.regression and data.preparation == first.preparation
        np.testing.assert_array_equal(sorted_by_source(data)[1], y[:9])
    some = y[:9].copy()
    some[4] = np.nan
    made = ingest((X[:9], some), tmp_path / "u", like=tmp_path / "s")
    np.testing.assert_array_equal(sorted_by_source(made.store)[1], some)
    assert made.store.n_unlabelled == 1 and made.notes == ["1 row(s) have no target."]
    none = ingest(X[:9], tmp_path / "v", like=first).store
    assert none.regression and none.n_unlabelled == 9
    dropped = ingest((X[:9], y[:9]), tmp_path / "w", like=first, unlabelled=True)
    assert dropped.store.fingerprint == none.fingerprint and not dropped.notes


def test_like_a_regressor_fitted_to_arrays(rows, tmp_path):
    X, y = rows
    model = Model(
        kernel=make_kernel("linear", 1.0, 3, 0.0),
        landmarks=None,
        coef=np.ones((1, 3)),
        intercept=np.zeros(1),
        labels=[],
        preparation=Preparation.none(),
        kind="regressor",
    )
    model.save(tmp_path / "m.bsm")
    assert ingest((X, y), tmp_path / "s", like=tmp_path / "m.bsm").store.regression


def test_like_a_store_without_labels_has_its_own(rows, tmp_path):
    X, _ = rows
    first = ingest(X, tmp_path / "s", unlabelled=True, scale="standard").store
    names = np.array(["smurf", "normal", "nmap"], object)[np.arange(N) % 3]
    data = ingest((X, names), tmp_path / "t", like=first).store
    assert data.labels == ["nmap", "normal", "smurf"] and data.label_counts.tolist() == [20] * 3
    np.testing.assert_array_equal(data.preparation.offset, first.preparation.offset)
    two = ingest((X, names), tmp_path / "u", like=first, positive="normal").store
    assert two.labels == ["rest", "normal"] and two.label_counts.tolist() == [40, 20]
    one = ingest((X[:5], ["normal"] * 5), tmp_path / "v", like=first).store
    assert one.labels == ["normal"]
    assert ingest(X, tmp_path / "w", like=first).store.labels == []
    assert ingest((X, names), tmp_path / "x", like=first, unlabelled=True).store.labels == []
    numbers = ingest((X, X[:, 0]), tmp_path / "y", like=first, regression=True).store
    assert numbers.regression


BAD = [
    ({"regression": True, "unlabelled": True}, "unlabelled rows have no targets"),
    ({"regression": True, "positive": 1}, "positive chooses a label and regression rows have none"),
    ({"unlabelled": True, "positive": 1}, "positive chooses a label and unlabelled rows have none"),
    ({"regression": True, "like": "{labels}"}, "has labels and no targets: leave out regression"),
    ({"like": "{targets}", "positive": 1}, "like brings its own scaling and labels"),
    ({"like": "{targets}", "scale": "minmax"}, "like brings its own scaling and labels"),
]


@pytest.mark.parametrize(("options", "said"), BAD)
def test_contradictions(options, said, rows, tmp_path):
    X, y = rows
    ingest((X, np.arange(N) % 2), tmp_path / "labels")
    ingest((X, y), tmp_path / "targets", regression=True)
    options = dict(options)
    if "like" in options:
        options["like"] = options["like"].format(
            labels=tmp_path / "labels", targets=tmp_path / "targets"
        )
    with pytest.raises(InputError, match=said):
        ingest((X, y), tmp_path / "s", **options)
    assert not list(tmp_path.glob("s*"))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.nan, r"row 57: the row has no target \(nan\); training rows need one"),
        (np.inf, "row 57: the target inf is not a finite number; correct or remove that row"),
        ("much", "row 57: the target 'much' is not a number"),
    ],
)
def test_a_bad_target_is_named(value, said, rows, tmp_path):
    X, y = rows
    y = y.astype(object if isinstance(value, str) else float)
    y[57] = value
    with pytest.raises(InputError, match=said):
        ingest((X, y), tmp_path / "s", regression=True)
    if isinstance(value, float):
        path = hdf5(tmp_path / "a.h5", X, y)
        with pytest.raises(InputError, match=r"a\.h5.*" + said):
            ingest(path, tmp_path / "s", regression=True)
    assert not list(tmp_path.glob("s*"))


def test_labels_that_are_numbers_stay_labels(rows, tmp_path):
    X, _ = rows
    quality = np.arange(N) % 4 + 3
    labels = ingest((X, quality), tmp_path / "s").store
    assert labels.labels == [3, 4, 5, 6] and not labels.regression
    data = ingest((X, quality), tmp_path / "t", regression=True).store
    np.testing.assert_array_equal(sorted_by_source(data)[1], quality)
    measured = (np.zeros((70_000, 1), np.float32), np.arange(70_000))
    with pytest.raises(InputError, match="more than 65536 different labels.*ask for regression"):
        ingest(measured, tmp_path / "u")
    assert ingest(measured, tmp_path / "u", regression=True).store.targets["high"] == 69_999


def test_what_was_planned_is_of_the_store_s_own_rows(tmp_path):
    X = np.arange(400.0).reshape(100, 4)
    made = ingest((X, np.arange(100) % 2), tmp_path / "s.store", holdout=0.2)
    for store in (made.store, made.holdout):
        planned = store.manifest["extra"]["bytes_planned"]
        assert planned["dense"] == 4 * 4 * store.n_rows
