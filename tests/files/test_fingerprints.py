"""What is kept on disk is reopened for equal ingredients alone: change one, and it is another."""

from dataclasses import fields, replace

import numpy as np
import pytest
from scipy import sparse

from bigscreen import InputError, Nystroem, TrainOptions, ingest
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.preparation import FEATURE_FIELDS, Preparation
from bigscreen.data.views import Mapped, Move, Moved, Picked, Recast
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.features.landmarks import GivenLandmarks
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import make_kernel
from bigscreen.options.train import CHANGEABLE, OPTIONS
from bigscreen.path.options import PathOptions
from bigscreen.train.many import Outcomes
from bigscreen.train.run import train, train_many
from bigscreen.tune.options import SearchTuning, TuneOptions

N = 60
X = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
IDS = np.arange(0, N, 2)
ONES, TWOS = np.ones(N), np.full(N, 2.0)
DATA = MemoryDataset(X, Y, ["no", "yes"], ONES)

ROWS = {
    "rows": lambda: DATA,
    "a feature": lambda: MemoryDataset(X + np.eye(N, 3, dtype="f4"), Y, ["no", "yes"], ONES),
    "sparse rows": lambda: MemoryDataset(sparse.csr_array(X), Y, ["no", "yes"], ONES),
    "float64 rows": lambda: MemoryDataset(X.astype(float) + 1e-12, Y, ["no", "yes"], ONES),
    "codes": lambda: MemoryDataset(X, 1 - Y, ["no", "yes"], ONES),
    "labels": lambda: MemoryDataset(X, Y, ["no", "maybe"], ONES),
    "targets": lambda: MemoryDataset(X, Y.astype(float), None, ONES),
    "weights": lambda: MemoryDataset(X, Y, ["no", "yes"], TWOS),
    "no weights": lambda: MemoryDataset(X, Y, ["no", "yes"]),
    "shards": lambda: MemoryDataset(X, Y, ["no", "yes"], ONES, shard_rows=32),
    "preparation": lambda: MemoryDataset(
        X, Y, ["no", "yes"], ONES, preparation=Preparation(factor=np.array([1.0, 2.0, 1.0]))
    ),
    "recast codes": lambda: Recast(DATA, 1 - Y, None),
    "recast weights": lambda: Recast(DATA, None, TWOS),
    "recast weights of other codes": lambda: Recast(DATA, 1 - Y, TWOS),
    "picked": lambda: Picked(DATA, IDS, Y[IDS], ONES[IDS]),
    "picked ids": lambda: Picked(DATA, IDS + 1, Y[IDS], ONES[IDS]),
    "picked codes": lambda: Picked(DATA, IDS, 1 - Y[IDS], ONES[IDS]),
    "picked weights": lambda: Picked(DATA, IDS, Y[IDS], TWOS[IDS]),
    "picked columns": lambda: Picked(DATA, IDS[:2], Y[:2], ONES[:2], columns=True),
    "picked columns not": lambda: Picked(DATA, IDS[:2], Y[:2], ONES[:2]),
    "moved": lambda: Moved(DATA, Move(np.ones(3), 0)),
    "moved origin": lambda: Moved(DATA, Move(np.zeros(3), 0)),
    "moved exponent": lambda: Moved(DATA, Move(np.ones(3), 1)),
    "mapped": lambda: Mapped(DATA, np.array([1.0, 2.0, 3.0])),
    "mapped metric": lambda: Mapped(DATA, np.array([1.0, 2.0, 4.0])),
    "mapped full": lambda: Mapped(DATA, np.diag([1.0, 2.0, 3.0])),
    "moved base": lambda: Moved(Recast(DATA, 1 - Y, None), Move(np.ones(3), 0)),
}
"""Rows that differ from each other in one ingredient or more."""


def test_no_two_kinds_of_rows_have_the_same_fingerprint():
    found = {name: rows().fingerprint for name, rows in ROWS.items()}
    assert len(set(found.values())) == len(ROWS)
    assert {name: rows().fingerprint for name, rows in ROWS.items()} == found


FIELDS = {
    "n_raw": 3,
    "names": ["a", "b"],
    "categories": {0: ["u", "v", "w"]},
    "scaling": "standard",
    "fill": np.array([0.0, 2.0]),
    "offset": np.array([1.0, 1.0, 0.5]),
    "factor": np.array([1.0, 1.0, 0.5]),
    "labels": ["no", "maybe"],
    "positive": "no",
    "dates": {1: "%Y"},
    "hashed": {0: 4},
    "missing": ["?"],
    "truths": [1],
    "metric": np.array([1.0, 2.0, 3.0]),
    "indicators": [1],
    "targets": ["near", "far"],
}
"""Another value for each field of a preparation on which rows or codes depend."""

SHOWN = ("skipped", "label_at", "decimal")
"""Fields of a preparation that only messages and readers of sources use."""


def test_every_field_of_a_preparation_is_in_its_fingerprint():
    known = {"n_raw": 2, "categories": {0: ["u", "v"]}, "labels": ["no", "yes"]}
    for field in (field for field in fields(Preparation) if field.name not in SHOWN):
        assert field.name in FIELDS, f"say another value of {field.name}, and whether features"
        # (Only columns that are filled have indicators.)
        own = {**known, "fill": np.zeros(2)} if field.name == "indicators" else known
        before, after = (
            Preparation(**{**own, **new}) for new in ({}, {field.name: FIELDS[field.name]})
        )
        assert after.fingerprint != before.fingerprint, field.name
        features = after.features_fingerprint != before.features_fingerprint
        assert features == (field.name in FEATURE_FIELDS), field.name


def design(**changed):
    own = {"data": DATA, "gamma": 0.3, "degree": 3, "coef0": 0.0, "name": "rbf", "count": 12}
    own |= {"landmarks": None, "entries": np.float32, "factor": None, **changed}
    kernel = make_kernel(own["name"], own["gamma"], own["degree"], own["coef0"])
    side = Operand(own["landmarks"] if own["landmarks"] is not None else X[: own["count"]])
    factor = nystrom.factor_matrix(kernel, side) if own["factor"] is None else own["factor"]
    return Design(own["data"], kernel, side, factor, entries=own["entries"])


FEATURES = {
    "gamma": {"gamma": 0.4},
    "kernel": {"name": "laplacian"},
    "number of landmarks": {"count": 11},
    "landmarks": {"landmarks": X[1:13]},
    "float64 landmarks": {"landmarks": X[:12].astype(np.float64)},
    "factor": {"factor": np.eye(12)},
    "rank": {"factor": np.eye(12)[:, :7]},
    "type of entries": {"entries": np.float64},
    "codes": {"data": Recast(DATA, 1 - Y, None)},
    "weights": {"data": Recast(DATA, None, TWOS)},
    "origin": {"data": Moved(DATA, Move(np.ones(3), 0))},
    "map": {"data": Mapped(DATA, np.array([1.0, 2.0, 3.0]))},
}
"""One ingredient of stored features each."""


def assert_stored(made, own, preparation, dtype=np.float32):
    """Assert that stored features are what the ingredients make of rows, and say so."""
    got, of = made.data, own.data
    want = nystrom.compute_features(own, of.X(0, N), dtype)
    np.testing.assert_array_equal(got.X(0, N), want)
    np.testing.assert_array_equal(got.y(0, N), of.y(0, N))
    np.testing.assert_array_equal(got.weights(0, N), of.weights(0, N))
    assert got.preparation == preparation


def test_stored_features_are_reopened_for_equal_ingredients_alone(tmp_path):
    with Inline(1) as fleet:
        first = nystrom.store_features(design(), fleet, tmp_path)
        places = {first.data.path}
        for name, changed in FEATURES.items():
            own = design(**changed)
            made = nystrom.store_features(own, fleet, tmp_path)
            assert made.data.path not in places, name
            places.add(made.data.path)
            assert_stored(made, own, own.data.preparation)
        wide = nystrom.store_features(design(), fleet, tmp_path, dtype=np.float64)
        assert_stored(wide, design(), DATA.preparation, np.float64)
        scaled = Preparation(factor=np.array([1.0, 2.0, 1.0]))
        other = nystrom.store_features(design(), fleet, tmp_path, preparation=scaled)
        assert_stored(other, design(), scaled)
        assert not places & {wide.data.path, other.data.path}
        again = nystrom.store_features(design(), fleet, tmp_path)
        assert again.data.path == first.data.path


def test_features_that_share_a_folder_are_the_rows_own(tmp_path):
    """Equal moved landmarks of rows that are moved otherwise, and rows prepared otherwise."""
    far, work = X.astype(np.float64) + 1e5 + 0.1234567, tmp_path / "work"
    store = ingest((far, Y), tmp_path / "far.store").store
    landmarks, found = far[:12], []
    for Z in (landmarks, landmarks + 8.0):
        machine = Nystroem(gamma=0.1, components=Z, work=work).fit(store)
        assert isinstance(machine._design.data, Moved)
        made = machine.transform(store).X(0, N)
        alone = Nystroem(gamma=0.1, components=Z).fit(store).transform(store).X(0, N)
        np.testing.assert_array_equal(made, alone)
        found.append(machine)
    np.testing.assert_array_equal(found[0]._design.side.X, found[1]._design.side.X)
    scaled = ingest((X, Y), tmp_path / "scaled.store", scale="standard").store
    machine = Nystroem(n_components=12, random_state=0, work=work).fit(scaled)
    with Inline(1) as fleet:  # what a fit keeps of these rows, with their scaling
        fitted = nystrom.store_features(replace(machine._design, data=scaled), fleet, work)
    assert fitted.data.preparation.scaling == "standard"
    assert machine.transform(scaled).preparation == Preparation.none()


@pytest.mark.parametrize("sparse_rows", [False, True])
def test_sparse_and_dense_landmarks_are_other_features(sparse_rows):
    Z = sparse.csr_array(X[:12]) if sparse_rows else X[:12]
    of = design(landmarks=Z)
    assert nystrom.feature_fingerprint(of) == nystrom.feature_fingerprint(of)
    others = [design(landmarks=-Z), design(landmarks=sparse.csr_array(X[:12, ::-1]))]
    assert nystrom.feature_fingerprint(of) not in map(nystrom.feature_fingerprint, others)


def interrupt(event):
    if event["phase"] == "write":
        raise KeyboardInterrupt


INGESTS = {
    "labels_file": lambda folder: np.save(folder / "y.npy", 1 - Y),
    "sources": lambda folder: np.save(folder / "X.npy", X[::-1]),
    "scale": lambda folder: {"scale": "standard"},
    "like": lambda folder: {"like": ingest((X, Y), folder / "like.store").store},
}
"""One ingredient each of an ingest, changed between the two runs."""


@pytest.mark.parametrize("name", INGESTS)
def test_an_interrupted_ingest_goes_on_with_equal_ingredients_alone(name, tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y)
    how = {"path": tmp_path / "s", "labels_file": tmp_path / "y.npy"}
    with pytest.raises(KeyboardInterrupt):
        ingest(tmp_path / "X.npy", progress=interrupt, **how)
    other = {**how, **(INGESTS[name](tmp_path) or {})}
    with pytest.raises(InputError, match=f"begun with other {name}"):
        ingest(tmp_path / "X.npy", **other)


def test_images_whose_labels_changed_are_read_again(tmp_path):
    images, labels = tmp_path / "a-images-idx3-ubyte", tmp_path / "a-labels-idx1-ubyte"
    images.write_bytes(b"\0\0\x08\x02" + b"\0\0\0\x3c\0\0\0\x03" + bytes(range(180)))
    labels.write_bytes(b"\0\0\x08\x01" + b"\0\0\0\x3c" + Y.astype(np.uint8).tobytes())
    with pytest.raises(KeyboardInterrupt):
        ingest(images, tmp_path / "s", progress=interrupt)
    assert ingest(images, tmp_path / "s").store.n_rows == N  # (the same files)
    with pytest.raises(KeyboardInterrupt):
        ingest(images, tmp_path / "t", progress=interrupt)
    labels.write_bytes(labels.read_bytes()[:8] + (1 - Y).astype(np.uint8).tobytes())
    with pytest.raises(InputError, match="begun with other labels_file"):
        ingest(images, tmp_path / "t")


def test_every_option_of_a_fit_is_in_the_record_of_its_work_folder():
    some = (
        TrainOptions(intercept_scaling=2, probability=True),
        TrainOptions(metric_learning="full", metric_from={"C": 1.0}),
        TrainOptions(metric_learning="full", metric_from=[{"C": 1.0}, {"C": 1.0}]),
        TrainOptions(device="cuda", device_memory=2**30),
    )
    given = [TrainOptions(components=GivenLandmarks(X[a : a + 5])) for a in (0, 1)]
    known = set().union(*(one.folder_record for one in (*some, given[0])))
    assert given[0].folder_record != given[1].folder_record
    assert known | {"work", "resume"} == OPTIONS.keys()
    spent = {"memory", "cache", "time_budget", "max_iter", "device", "device_memory"}
    assert set(CHANGEABLE) == spent


def test_many_fits_of_other_outcomes_are_not_resumed(tmp_path):
    options = TrainOptions(kernel="linear", work=tmp_path / "work")
    with Inline(1) as fleet:
        first = train_many(DATA, options, fleet, [Outcomes(Y, None)])
        again = replace(options, resume=True)
        same = train_many(DATA, again, fleet, [Outcomes(Y, None)])
        np.testing.assert_array_equal(first[0].coef, same[0].coef)
        for other in (Outcomes(1 - Y, None), Outcomes(Y, TWOS), Outcomes(None, None)):
            with pytest.raises(InputError, match="belongs to another fit.*outcomes"):
                train_many(DATA, again, fleet, [other])


def test_a_fit_with_a_function_as_kernel_is_not_resumed(tmp_path):
    options = TrainOptions(kernel=lambda A, B: A @ B.T, exact=True, work=tmp_path / "work")
    with Inline(1) as fleet:
        train(DATA, options, fleet)
        with pytest.raises(InputError, match="functions cannot be compared"):
            train(DATA, replace(options, resume=True), fleet)


SEARCHES = {
    "fit": {"fit": TrainOptions(tol=1e-2)},
    "gammas": {"gammas": np.array([1.0, 2.0])},
    "values": {"values": np.array([1.0, 3.0])},
    "landmarks": {"landmarks": [5, 6]},
    "folds": {"folds": 4},
    "elimination": {"elimination": "none"},
    "factor": {"factor": 2},
    "tuning": {"tuning": SearchTuning(min_rows=401)},
    "scoring": {"scoring": "auc"},
    "metrics": {"metrics": ("none", "diagonal")},
}
"""Another value for each option of a search."""


def test_every_option_of_a_search_is_in_its_record():
    base = TuneOptions(TrainOptions(), np.array([1.0]), np.array([1.0, 2.0]), [5], 3)
    assert SEARCHES.keys() == {field.name for field in fields(TuneOptions)}
    records = [replace(base, **changed).record for changed in ({}, *SEARCHES.values())]
    assert all(record not in records[:k] for k, record in enumerate(records))


PATHS = {
    "fit": {"fit": TrainOptions(tol=1e-2)},
    "values": {"values": [1.0, 3.0]},
    "folds": {"folds": 4},
    "rules": {"rules": ("gap",)},
    "dynamic": {"dynamic": False},
    "warm": {"warm": False},
    "alone": {"alone": False},
}
"""Another value for each option of a path."""


def test_every_option_of_a_path_is_in_its_record():
    base = PathOptions(TrainOptions(), [1.0, 2.0], 3)
    assert PATHS.keys() == {field.name for field in fields(PathOptions)}
    records = [replace(base, **changed).record for changed in ({}, *PATHS.values())]
    assert all(record not in records[:k] for k, record in enumerate(records))
