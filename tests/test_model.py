"""Model files: what goes in comes out, and a bad file says what is wrong with it."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from bigscreen.errors import InputError
from bigscreen.kernels import make_kernel
from bigscreen.store.model import SCHEMA, Model
from bigscreen.store.prepare import Preparation

D, M = 7, 5


def make_model(landmarks: str = "dense", n_labels: int = 2, seed: int = 0) -> Model:
    """A model with random numbers; landmarks "dense", "csr" or "none"."""
    rng = np.random.default_rng(seed)
    scorers = 1 if n_labels == 2 else n_labels
    sides = {
        "dense": rng.normal(size=(M, D)).astype(np.float32),
        "csr": csr_array(random_array((M, D), density=0.4, rng=rng, dtype=np.float32)),
        "none": None,
    }
    name = "linear" if landmarks == "none" else "rbf"
    return Model(
        kernel=make_kernel(name, 0.3, 3, 0.0),
        landmarks=sides[landmarks],
        coef=rng.normal(size=(scorers, D if landmarks == "none" else M)),
        intercept=rng.normal(size=scorers),
        labels=["no", "yes", 3, 2.5][:n_labels],
        preparation=Preparation(n_raw=D, scaling="standard", offset=rng.normal(size=D)),
        provenance={"parameters": {"tol": np.float64(1e-3)}, "history": [{"pass": np.int64(1)}]},
    )


@pytest.mark.parametrize("landmarks", ["dense", "csr", "none"])
@pytest.mark.parametrize("n_labels", [2, 4])
def test_round_trip(tmp_path: Path, landmarks: str, n_labels: int) -> None:
    model = make_model(landmarks, n_labels)
    model.save(tmp_path / "model.bsm")
    back = Model.load(tmp_path / "model.bsm")
    assert back.kernel == model.kernel
    assert back.labels == model.labels and back.preparation == model.preparation
    assert back.provenance == {"parameters": {"tol": 1e-3}, "history": [{"pass": 1}]}
    dense = np.random.default_rng(1).normal(size=(40, D)).astype(np.float32)
    dense[dense < 0.5] = 0
    for X in (dense, csr_array(dense)):
        np.testing.assert_array_equal(back.scores(X), model.scores(X))
        assert back.scores(X).shape == (40, back.coef.shape[0])
    # Saving again gives the same bytes: nothing in the file depends on the day.
    back.save(tmp_path / "again.bsm")
    assert (tmp_path / "again.bsm").read_bytes() == (tmp_path / "model.bsm").read_bytes()


@pytest.mark.parametrize("landmarks", ["dense", "csr", "none"])
def test_scores_are_the_formula(landmarks: str) -> None:
    model = make_model(landmarks, 4)
    X = np.random.default_rng(2).normal(size=(30, D)).astype(np.float32)
    if model.landmarks is None:
        K = X.astype(np.float64)
    else:
        Z = model.landmarks.toarray() if landmarks == "csr" else model.landmarks
        K = np.exp(-0.3 * ((X[:, None].astype(np.float64) - Z[None]) ** 2).sum(axis=2))
    expected = K @ model.coef.T + model.intercept
    np.testing.assert_allclose(model.scores(X), expected, atol=2e-5)
    np.testing.assert_array_equal(model.predict(X), expected.argmax(axis=1))


def test_binary_sign_is_the_second_label() -> None:
    model = make_model("none")
    X = np.random.default_rng(3).normal(size=(50, D)).astype(np.float32)
    codes = model.predict(X)
    np.testing.assert_array_equal(codes, model.scores(X)[:, 0] > 0)
    assert codes.dtype == np.int64 and set(codes.tolist()) == {0, 1}


def test_width_is_checked() -> None:
    with pytest.raises(InputError, match=r"9 features.*fitted on 7"):
        make_model().scores(np.zeros((2, 9), np.float32))


def test_no_pickle_inside(tmp_path: Path) -> None:
    make_model("csr").save(tmp_path / "model.bsm")
    with zipfile.ZipFile(tmp_path / "model.bsm") as bundle:
        assert json.loads(bundle.read("model.json"))["schema"] == SCHEMA
        arrays = [name for name in bundle.namelist() if name != "model.json"]
        assert all(name.endswith(".npy") for name in arrays) and len(arrays) == 5
        assert all(info.compress_type == zipfile.ZIP_STORED for info in bundle.infolist())
        for name in arrays:
            with bundle.open(name) as part:
                np.lib.format.read_array(part, allow_pickle=False)


def test_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bsm"
    make_model().save(path)
    before = path.read_bytes()
    broken = make_model(seed=1)
    broken.provenance = {"bad": object()}
    with pytest.raises(TypeError):
        broken.save(path)
    broken.provenance = {}
    broken.coef = np.array([[object()]])
    with pytest.raises(ValueError):
        broken.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.bsm"]


def rewrite(path: Path, change: dict[str, bytes | None]) -> None:
    """Replace members of a model file (None: drop it)."""
    with zipfile.ZipFile(path) as bundle:
        members = {name: bundle.read(name) for name in bundle.namelist()}
    members |= {name: data for name, data in change.items() if data is not None}
    with zipfile.ZipFile(path, "w") as bundle:
        for name, data in members.items():
            if change.get(name, b"") is not None:
                bundle.writestr(name, data)


def npy(path: Path, array: np.ndarray) -> bytes:
    np.save(path, array)
    return path.read_bytes()


def record(path: Path, **change: object) -> bytes:
    with zipfile.ZipFile(path) as bundle:
        return json.dumps(json.loads(bundle.read("model.json")) | change).encode()


def missing(path: Path) -> None:
    path.unlink()


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def text(path: Path) -> None:
    path.write_text("hello")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr("letter.txt", "hello")


def newer(path: Path) -> None:
    rewrite(path, {"model.json": record(path, schema=SCHEMA + 1)})


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"\x93NUMPY") + 150] ^= 1
    path.write_bytes(data)


def flipped_json(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b'"kernel"') + 20] ^= 1
    path.write_bytes(data)


def no_array(path: Path) -> None:
    rewrite(path, {"arrays/coef.npy": None})


def pickled(path: Path) -> None:
    objects = npy(path.with_name("x.npy"), np.array([[{}]], dtype=object))
    rewrite(path, {"arrays/coef.npy": objects})


def wrong_shape(path: Path) -> None:
    rewrite(path, {"arrays/coef.npy": npy(path.with_name("x.npy"), np.zeros((1, M + 1)))})


def not_finite(path: Path) -> None:
    rewrite(path, {"arrays/coef.npy": npy(path.with_name("x.npy"), np.full((1, M), np.nan))})


def wild_index(path: Path) -> None:
    with zipfile.ZipFile(path) as bundle, bundle.open("arrays/landmarks_indices.npy") as part:
        indices = np.lib.format.read_array(part)
    indices[0] = 1_000_000
    rewrite(path, {"arrays/landmarks_indices.npy": npy(path.with_name("x.npy"), indices)})


def bad_preparation(path: Path) -> None:
    rewrite(path, {"model.json": record(path, preparation={"categories": {}, "surprise": 1})})


def bad_kernel(path: Path) -> None:
    rewrite(path, {"model.json": record(path, kernel={"name": "mystery"})})


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (missing, "there is no model file"),
        (folder, "is a folder"),
        (text, "is not a bigscreen model"),
        (empty, "is not a bigscreen model"),
        (other_zip, "is a zip file but not a bigscreen model"),
        (newer, "newer bigscreen .*upgrade"),
        (cut, "is damaged: its end is missing"),
        (flipped, "is damaged .*CRC-32"),
        (flipped_json, "is damaged .*CRC-32"),
        (no_array, "is damaged .*arrays/coef.npy"),
        (pickled, "is damaged .*pickle"),
        (wrong_shape, "is damaged .*6 columns for 5 landmarks"),
        (not_finite, "is damaged .*finite"),
        (wild_index, "is damaged"),
        (bad_preparation, "is damaged"),
        (bad_kernel, "is damaged"),
    ],
)
def test_bad_files(tmp_path: Path, harm: object, said: str) -> None:
    path = tmp_path / "model.bsm"
    make_model("csr" if harm is wild_index else "dense").save(path)
    harm(path)
    with pytest.raises(InputError, match=said) as caught:
        Model.load(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
