"""Models: scores, files that restore the model, and messages for damaged files."""

import json
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array
from sklearn.svm import SVC
from sklearn.utils.multiclass import _ovr_decision_function

from bigscreen import LinearSVC
from bigscreen.data.preparation import Preparation
from bigscreen.errors import InputError
from bigscreen.files.sealed import seal
from bigscreen.intake.ingest import ingest
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Rbf, make_kernel
from bigscreen.model.file import SCHEMA
from bigscreen.model.gate import Gate
from bigscreen.model.model import NO_CERTIFICATE, Model

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
def test_a_model_file_restores_the_model(tmp_path: Path, landmarks: str, n_labels: int) -> None:
    model = make_model(landmarks, n_labels)
    model.save(tmp_path / "model.bsm")
    back = Model.load(tmp_path / "model.bsm")
    assert back.kernel == model.kernel
    assert back.labels == model.labels and back.preparation == model.preparation
    assert back.provenance == {"parameters": {"tol": 1e-3}, "history": [{"pass": 1}]}
    dense = np.random.default_rng(1).normal(size=(40, D)).astype(np.float32)
    dense[dense < 0.5] = 0
    for X in (dense, csr_array(dense)):
        np.testing.assert_array_equal(back.scores(X, prepared=True), model.scores(X, prepared=True))
        assert back.scores(X, prepared=True).shape == (40, back.coef.shape[0])
    # Saving again gives the same bytes: nothing in the file depends on the date.
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
    np.testing.assert_allclose(model.scores(X, prepared=True), expected, atol=2e-5)
    labels = np.asarray(model.labels)[expected.argmax(axis=1)]
    np.testing.assert_array_equal(model.predict(X, prepared=True), labels)


def test_binary_sign_is_the_second_label() -> None:
    model = make_model("none")
    X = np.random.default_rng(3).normal(size=(50, D)).astype(np.float32)
    scores = model.scores(X, prepared=True)
    codes = model.decide(scores)
    np.testing.assert_array_equal(codes, scores[:, 0] > 0)
    assert codes.dtype == np.int64 and set(codes.tolist()) == {0, 1}
    np.testing.assert_array_equal(model.predict(X, prepared=True), np.asarray(model.labels)[codes])


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(InputError, match=r"9 features.*fitted on 7"):
        make_model().scores(np.zeros((2, 9), np.float32), prepared=True)


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
    with pytest.raises(ValueError, match="Object arrays"):
        broken.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.bsm"]


def rewrite(path: Path, change: dict[str, bytes | None]) -> None:
    """Replace members of a model file (None: drop the member), and update the checksums."""
    with zipfile.ZipFile(path) as bundle:
        members = {name: bundle.read(name) for name in bundle.namelist()}
    members |= {name: data for name, data in change.items() if data is not None}
    known = json.loads(members["model.json"])
    known.pop("checksum"), known.pop("crc32")
    if known["schema"] >= 4:
        arrays = {name[7:-4]: data for name, data in members.items() if name[:7] == "arrays/"}
        known["crc32"] = {name: zlib.crc32(data) for name, data in arrays.items()}
    members["model.json"] = json.dumps(known).encode()
    if known["schema"] >= 4:
        members["model.json"] = seal(known)
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


def make_gated(kind: str = "dense", n_labels: int = 3, strategy: str = "one") -> Model:
    """Three parts, one of them without a landmark."""
    rng = np.random.default_rng(7)
    scorers = {"one": n_labels * (n_labels - 1) // 2, "rest": 1 if n_labels == 2 else n_labels}
    k = scorers[strategy]
    rows = [rng.normal(size=(m, D)).astype(np.float32) for m in (20, 9)]
    if kind == "csr":
        rows = [csr_array(np.where(part > 0, part, 0).astype(np.float32)) for part in rows]
    return Model(
        kernel=Rbf(0.3),
        landmarks=rows[0],
        coef=rng.normal(size=(k, 20)),
        intercept=rng.normal(size=(k, 3)),
        labels=["a", "b", "c", "d"][:n_labels],
        preparation=Preparation.none(),
        provenance={"certificates": None, "no_certificate": NO_CERTIFICATE},
        strategy=strategy,
        support=rng.permutation(90)[:20],
        gate=Gate(rows[1], np.eye(3)[np.arange(9) % 3], [0.0, 0.01, 0.02], np.arange(9) * 3),
        part=np.where(np.arange(20) % 3 == 0, 2, 0),
    )


@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize(("n_labels", "strategy"), [(2, "one"), (3, "one"), (3, "rest")])
def test_gated_scores_are_those_of_the_nearest_part(
    tmp_path: Path, kind: str, n_labels: int, strategy: str
) -> None:
    model = make_gated(kind, n_labels, strategy)
    X = np.random.default_rng(8).normal(size=(200, D)).astype(np.float32)
    X[X < 0.3] = 0
    # For kernels of a distance the rows themselves are clustered.
    centres = (model.gate.landmarks.T @ model.gate.coef).T
    near = X @ centres.T
    part = np.argmin(model.gate.offset - 2 * near, axis=1)
    assert len(set(part.tolist())) == 3
    K = model.kernel.block(X, Operand(model.landmarks))
    expected = (K * (part[:, None] == model.part)) @ model.coef.T + model.intercept.T[part]
    model.save(tmp_path / "model.bsm")
    for one in (model, Model.load(tmp_path / "model.bsm")):
        for rows in (X, csr_array(X)):
            np.testing.assert_allclose(one.scores(rows), expected, atol=1e-5)
        np.testing.assert_array_equal(one.support, model.support)
        np.testing.assert_array_equal(one.part, model.part)
        np.testing.assert_array_equal(one.gate.ids, model.gate.ids)
        assert one.strategy == strategy and one.part.dtype == one.support.dtype == np.int64
        assert one.provenance["no_certificate"] == NO_CERTIFICATE
    Model.load(tmp_path / "model.bsm").save(tmp_path / "again.bsm")
    assert (tmp_path / "again.bsm").read_bytes() == (tmp_path / "model.bsm").read_bytes()
    assert model.scores(X[:0]).shape == (0, len(model.coef))


@pytest.mark.parametrize("classes", [3, 4, 5])
def test_pairs_of_labels_vote_like_scikit_learns(classes: int) -> None:
    rng = np.random.default_rng(classes)
    X = rng.normal(size=(120, D)).astype(np.float32)
    y = (X[:, 0] + rng.normal(size=120)).argsort().argsort() * classes // 120
    judge = SVC(gamma=0.2, decision_function_shape="ovo").fit(X, y)
    # scikit-learn's pair scores are positive for a pair's first label, ours for the second.
    first, start = np.triu_indices(classes, 1), np.r_[0, judge.n_support_.cumsum()]
    coef = np.zeros((len(first[0]), len(judge.support_)))
    for pair, (i, j) in enumerate(zip(*first, strict=True)):
        for one, other in ((i, j - 1), (j, i)):
            own = slice(start[one], start[one + 1])
            coef[pair, own] = -judge.dual_coef_[other, own]
    model = Model(
        Rbf(0.2),
        judge.support_vectors_.astype(np.float32),
        coef,
        -judge.intercept_,
        list(range(classes)),
        Preparation.none(),
        strategy="one",
        support=judge.support_,
    )
    new = rng.normal(size=(500, D)).astype(np.float32) * 2
    scores = model.scores(new)
    np.testing.assert_allclose(scores, -judge.decision_function(new), atol=2e-5)
    np.testing.assert_array_equal(model.predict(new), judge.predict(new))
    judge.set_params(decision_function_shape="ovr")
    values = model.decision_values(scores)
    np.testing.assert_allclose(values, judge.decision_function(new), atol=2e-5)
    raw = _ovr_decision_function(scores > 0, scores, classes)
    np.testing.assert_allclose(values, raw, rtol=1e-12)


def test_the_first_of_labels_with_equal_votes_wins() -> None:
    model = make_gated()
    circle = np.array([[1.0, -1.0, 9.0], [-1.0, 1.0, -9.0]])  # every label wins one pair
    np.testing.assert_array_equal(model.decide(circle), [0, 0])
    np.testing.assert_array_equal(model.decision_values(circle).argmax(axis=1), [2, 1])


def test_two_labels_need_no_votes() -> None:
    model = make_gated(n_labels=2)
    X = np.random.default_rng(8).normal(size=(20, D)).astype(np.float32)
    scores = model.scores(X)
    assert scores.shape == (20, 1) and model.decision_values(scores) is scores
    np.testing.assert_array_equal(model.decide(scores), scores[:, 0] > 0)


def test_precomputed_kernels_and_kernel_functions_score(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(50, D)).astype(np.float32)
    own, ids = Custom(rbf), np.array([3, 9, 40])
    coef, named = rng.normal(size=(1, 3)), {"labels": [0, 1], "preparation": Preparation.none()}
    custom = Model(own, X[ids], coef, np.zeros(1), **named)
    expected = rbf(X, X[ids]) @ coef.T
    np.testing.assert_allclose(custom.scores(X), expected, atol=1e-5)
    with pytest.raises(InputError, match="function of your own cannot be written to a file"):
        custom.save(tmp_path / "model.bsm")
    assert not list(tmp_path.iterdir())
    # A precomputed kernel needs the numbers of its support rows, not the rows.
    bare = csr_array((3, 50), dtype=np.float32)
    given = Model(Precomputed(), bare, coef, np.zeros(1), support=ids, **named)
    gram = rbf(X, X).astype(np.float32)
    np.testing.assert_allclose(given.scores(gram), expected, atol=1e-5)
    given.save(tmp_path / "model.bsm")
    back = Model.load(tmp_path / "model.bsm")
    assert back.n_features == 50 and back.kernel == Precomputed()
    np.testing.assert_array_equal(back.scores(gram), given.scores(gram))


def rbf(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return np.exp(-0.3 * ((A[:, None].astype(np.float64) - B[None]) ** 2).sum(axis=2))


def test_a_sharp_kernel_is_scored_in_float64() -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(50, D)).astype(np.float32)
    named = {"labels": [0, 1], "preparation": Preparation.none()}
    model = Model(Rbf(1e7), X, np.ones((1, 50)), np.zeros(1), **named)
    np.testing.assert_allclose(model.scores(X), 1.0, rtol=1e-6)


def make_kind(of: str, **change: object) -> Model:
    labels = {"regressor": [], "one-class": [-1, 1]}[of]
    named = {"labels": labels, "kind": of, "preparation": Preparation(labels=None)} | change
    coef = named.pop("coef", np.ones((1, D)))
    return Model(make_kernel("linear", 1.0, 3, 0.0), None, coef, np.zeros(len(coef)), **named)


def test_every_kind_of_model_predicts_and_is_stored(tmp_path: Path) -> None:
    X = np.random.default_rng(3).normal(size=(50, D)).astype(np.float32)
    assert make_model().kind == "classifier"
    for kind in ("regressor", "one-class"):
        model = make_kind(kind)
        model.save(tmp_path / kind)
        back = Model.load(tmp_path / kind)
        assert (back.kind, back.labels) == (kind, model.labels)
        assert back.preparation.labels is None
        np.testing.assert_array_equal(back.scores(X), model.scores(X))
        scores = model.scores(X)[:, 0]
        expected = scores if kind == "regressor" else np.where(scores > 0, 1, -1)
        np.testing.assert_array_equal(back.predict(X), expected)


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("regressor", {"labels": [0, 1]}, r"labels of a regressor model must be \[\]"),
        ("one-class", {"labels": [1, -1]}, r"labels of a one-class model must be \[-1, 1\]"),
        ("one-class", {"coef": np.ones((2, D))}, "2 score functions for 2 labels"),
        ("regressor", {"kind": "classifier"}, "1 score functions for 0 labels"),
        ("regressor", {"kind": "oracle"}, "kind must be one of classifier, regressor, one-class"),
    ],
)
def test_inconsistent_kinds_are_refused(kind: str, change: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_kind(kind, **change)


def test_models_of_schema_1_load(tmp_path: Path) -> None:
    path, model = tmp_path / "model.bsm", make_model("dense", 4)
    model.save(path)
    with zipfile.ZipFile(path) as bundle:
        old = json.loads(bundle.read("model.json")) | {"schema": 1}
    for name in ("kind", "strategy", "gate", "optional"):
        del old[name]
    rewrite(path, {"model.json": json.dumps(old).encode()})
    back = Model.load(path)
    assert back.strategy == "rest" and back.kind == "classifier"
    assert back.gate is back.support is back.part is None
    X = np.random.default_rng(1).normal(size=(40, D)).astype(np.float32)
    np.testing.assert_array_equal(back.scores(X, prepared=True), model.scores(X, prepared=True))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"strategy": "all"}, "strategy must be rest or one"),
        ({"strategy": "rest", "labels": ["a", "b", "c", "d"]}, "3 score functions for 4 labels"),
        ({"support": np.arange(19)}, "support must be 20 whole numbers"),
        ({"support": np.arange(20) / 2}, "support must be 20 whole numbers"),
        ({"support": np.arange(20) - 1}, "support must not be negative"),
        ({"part": None}, "come together"),
        ({"gate": None, "intercept": np.zeros(3)}, "come together"),
        ({"part": np.full(20, 3)}, "more than the 3 parts"),
        ({"intercept": np.zeros(3)}, r"\(k, parts\)"),
    ],
)
def test_parts_must_fit_together(change: dict, said: str) -> None:
    fields = {name: getattr(make_gated(), name) for name in Model.__dataclass_fields__}
    with pytest.raises(ValueError, match=said):
        Model(**{**fields, **change})


def test_gates_must_fit_together() -> None:
    rows = np.zeros((4, D), np.float32)
    for coef, offset, ids in [
        (np.zeros((4, 2)), np.zeros(3), None),
        (np.zeros((3, 2)), np.zeros(2), None),
        (np.zeros((4, 0)), np.zeros(0), None),
        (np.full((4, 2), np.nan), np.zeros(2), None),
        (np.zeros((4, 2)), np.zeros(2), np.arange(3)),
    ]:
        with pytest.raises(ValueError, match="gate"):
            Gate(rows, coef, offset, ids)
    model = make_gated()
    narrow = Gate(rows[:, 1:], np.zeros((4, 3)), np.zeros(3))
    fields = {name: getattr(model, name) for name in Model.__dataclass_fields__}
    with pytest.raises(ValueError, match="number of features"):
        Model(**{**fields, "gate": narrow})


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


def wild_part(path: Path) -> None:
    rewrite(path, {"arrays/part.npy": npy(path.with_name("x.npy"), np.full(20, 3))})


def no_gate(path: Path) -> None:
    rewrite(path, {"arrays/gate_coef.npy": None})


def blunt_gate(path: Path) -> None:
    rewrite(path, {"arrays/gate_offset.npy": npy(path.with_name("x.npy"), np.full(3, np.inf))})


GATED = (wild_part, no_gate, blunt_gate)


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
        (wild_part, "is damaged .*more than the 3 parts"),
        (no_gate, "is damaged .*gate_coef"),
        (blunt_gate, "is damaged .*gate's numbers are not all finite"),
    ],
)
def test_a_damaged_file_is_refused_in_one_sentence(tmp_path: Path, harm: object, said: str) -> None:
    path = tmp_path / "model.bsm"
    model = make_gated() if harm in GATED else make_model("csr" if harm is wild_index else "dense")
    model.save(path)
    harm(path)
    with pytest.raises(InputError, match=said) as caught:
        Model.load(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message


def scaled_model(tmp_path):
    """A model of a scaled store, saved and loaded; the store, and the rows before scaling."""
    rng = np.random.default_rng(8)
    X = (rng.standard_normal((120, 3)) * [1, 50, 3000]).astype(np.float32)
    source = X, (X[:, 0] + X[:, 1] / 50 > 0).astype(int)
    data = ingest(source, tmp_path / "a.store", scale="standard").store
    LinearSVC(C=10).fit(data).model_.save(tmp_path / "m.bsm")
    return Model.load(tmp_path / "m.bsm"), data, source


def test_rows_are_prepared_as_the_source_was(tmp_path):
    model, data, (X, y) = scaled_model(tmp_path)
    np.testing.assert_allclose(model.scores(X), model.scores(data), rtol=1e-5, atol=1e-5)
    assert np.mean(model.predict(X) == y) > 0.9
    assert np.mean(model.predict(data) == y) > 0.9  # in the order of the source
    known = data.X(0, data.n_rows)
    order = np.argsort(data.row_ids(0, data.n_rows))
    np.testing.assert_array_equal(model.scores(known, prepared=True)[order], model.scores(data))
    plain = ingest((X, y), tmp_path / "plain.store").store
    with pytest.raises(InputError, match="scaled or encoded otherwise"):
        model.predict(plain)
    like = ingest((X[:50], y[:50]), tmp_path / "like.store", like=model).store
    np.testing.assert_array_equal(model.predict(like), model.predict(data)[:50])


@pytest.mark.parametrize("shift", [0.0, 30.0])
@pytest.mark.parametrize("name", ["rbf", "poly", "linear"])
def test_scores_are_accurate_under_cancellation(name: str, shift: float) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(200, 3)) + shift).astype(np.float32)
    coef = 1e4 * rng.normal(size=(1, 200))
    plain = Preparation(n_raw=3, labels=["no", "yes"], positive="yes")
    model = Model(make_kernel(name, 0.1, 4, 3.0), rows, coef, np.zeros(1), ["no", "yes"], plain)
    X, Z = rows.astype(np.float64), rows.astype(np.float64)
    apart = np.sum((X[:, None] - Z[None]) ** 2, axis=2)
    K = {"rbf": np.exp(-0.1 * apart), "poly": (0.1 * X @ Z.T + 3.0) ** 4, "linear": X @ Z.T}[name]
    # An offset that makes many scores small compared with the terms of their sums.
    model.intercept[:] = -np.median(K @ coef[0])
    scores = K @ coef[0] + model.intercept[0]
    size = 1e-11 * np.abs(K) @ np.abs(coef[0])
    assert np.all(np.abs(model.scores(rows)[:, 0] - scores) <= 1e-4 * np.abs(scores) + size)
