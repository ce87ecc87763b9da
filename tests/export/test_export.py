"""Exports predict as their models do, and LIBSVM files as LIBSVM does."""

import csv
import subprocess
import sys
import warnings

import numpy as np
import pytest
from missing_modules import hide
from sklearn.datasets import load_iris
from sklearn.svm import SVC, SVR, OneClassSVM

import bigscreen
from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.export.libsvm import libsvm_scores, read_libsvm, write_libsvm
from bigscreen.export.sklearn import build_pipeline
from bigscreen.export.verified import export
from bigscreen.fleet.inline import Inline
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.train.run import train
from tests.support.libsvm_files import as_libsvm

NEEDS = {
    "onnx": ("onnx", "onnxruntime"),
    "skops": ("skops",),
    "sklearn": ("joblib",),
    "libsvm": (),
}


@pytest.fixture(params=NEEDS)
def to(request):
    for module in NEEDS[request.param]:
        pytest.importorskip(module, reason=f"{module} is of the extra export")
    return request.param


def fitted(data, **how):
    with Inline(1) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(data, TrainOptions(**how), fleet)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A store of a table with numbers (some missing), texts, and truth values as categories."""
    folder = tmp_path_factory.mktemp("mixed")
    rng = np.random.default_rng(0)
    n = 300
    age = np.where(rng.random(n) < 0.1, "", rng.integers(18, 80, n).astype(str))
    income, owner = rng.lognormal(10, 1, n).tolist(), rng.choice([True, False], n)
    colour = rng.choice(["red", "green", "blue", "NA"], n)
    buys = np.where((np.array(income) > 2e4) ^ (colour == "red"), "yes", "no")
    with open(folder / "t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "income", "colour", "owner", "buys"])
        writer.writerows(zip(age, income, colour, owner, buys, strict=True))
    how = {"label": "buys", "scale": "standard", "impute": "median", "categorical": ["owner"]}
    return folder, bigscreen.ingest(folder / "t.csv", folder / "s", **how).store


def test_labels_may_be_in_any_order(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 3)).astype(np.float32)
    data = MemoryDataset(X, (X[:, 0] > 0).astype(int), [9, 4])
    model = fitted(data, exact=True, gamma=0.3)
    found = export(model, data, tmp_path / "m.model", "libsvm")
    assert found.agree == 1.0 and found.difference < 1e-9
    read = read_libsvm(tmp_path / "m.model")
    assert read.labels == [4, 9]
    np.testing.assert_array_equal(read.predict(X), model.predict(X))


def numbers(kind):
    rng = np.random.default_rng(1)
    codes = np.arange(200) % 3
    X = (rng.normal(size=(200, 4)) + 2 * np.eye(4)[codes]).astype(np.float32)
    if kind == "targets":
        return MemoryDataset(X, X[:, 0] + rng.normal(size=200), None)
    return MemoryDataset(X, codes, [3, 5, 7])


MACHINES = {
    "rbf": ("mixed", {"landmarks": 40, "gamma": 0.3, "probability": True}),
    "exact": ("mixed", {"exact": True, "gamma": 0.3, "C": 10.0, "intercept": True}),
    "linear": ("mixed", {"kernel": "linear"}),
    "polynomial": ("mixed", {"kernel": "polynomial", "exact": True, "gamma": 0.2, "coef0": 1.0}),
    "laplacian": ("mixed", {"kernel": "laplacian", "landmarks": 40, "gamma": 0.2}),
    "matern": ("mixed", {"kernel": "matern32", "landmarks": 40, "gamma": 0.4}),
    "one-class": ("mixed", {"problem": "one-class", "nu": 0.1, "landmarks": 40, "gamma": 0.2}),
    "rest": ("labels", {"landmarks": 40, "gamma": 0.3, "probability": True}),
    "pairs": ("labels", {"exact": True, "gamma": 0.3, "strategy": "one"}),
    "svr": ("targets", {"problem": "svr", "landmarks": 40, "gamma": 0.2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_an_export_predicts_as_the_model(mixed, tmp_path, to, name):
    kind, how = MACHINES[name]
    data = mixed[1] if kind == "mixed" else numbers(kind)
    model = fitted(data, **how)
    out = tmp_path / "out"
    impossible = {("libsvm", "laplacian"): "no laplacian", ("libsvm", "rest"): "one against one"}
    impossible |= {("libsvm", "matern"): "no matern32"}
    impossible |= {(kind, "matern"): "no matern32 kernel" for kind in ("sklearn", "skops")}
    if (to, name) in impossible:
        with pytest.raises(InputError, match=impossible[to, name]):
            export(model, data, out, to)
        assert not out.exists()
        return
    found = export(model, data, out, to)
    assert out.stat().st_size > 100 and found.agree == 1.0
    assert found.rows == data.n_rows
    if (to, name) != ("sklearn", "pairs") and (to, name) != ("skops", "pairs"):
        assert found.difference < 1e-5
    if to == "onnx" and "probability" in how:
        assert found.probability < 1e-9
    if len(model.labels) == 2 and "probability" in how:
        model = model.thresholded("recall:.99")
        assert export(model, data, out, to).agree == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["matern12", "matern52", "chi2"])
def test_kernels_of_differences_are_exported(kernel, tmp_path):
    X = np.random.default_rng(0).random((150, 5)).astype(np.float32)
    X[:, 0] = X[:, 0] > 0.5  # (columns in which two rows have 0)
    data = MemoryDataset(X, (X[:, 1] > X[:, 2]).astype(int), ["no", "yes"])
    model = fitted(data, kernel=kernel, exact=True, gamma=0.7)
    for to in ("onnx", "sklearn") if kernel == "chi2" else ("onnx",):
        found = export(model, data, tmp_path / f"out.{to}", to)
        assert found.agree == 1.0 and found.difference < 1e-5


def test_an_onnx_graph_takes_source_rows_with_missing_values(mixed, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is of the extra export")
    pytest.importorskip("onnx", reason="onnx is of the extra export")
    folder, data = mixed
    model = fitted(data, landmarks=40, gamma=0.3, probability=True)
    export(model, data, tmp_path / "m.onnx", "onnx")
    with open(folder / "t.csv", newline="") as file:
        records = list(csv.DictReader(file))[:50]
    given = {}
    for name in ("age", "income"):
        values = [float(record[name]) if record[name] else np.nan for record in records]
        given[name] = np.array(values)[:, None]
    for name in ("colour", "owner"):
        given[name] = np.array([[record[name]] for record in records], object)
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    records = [{**record, "owner": record["owner"].upper()} for record in records]
    given["owner"] = np.array([[record["owner"]] for record in records], object)
    label, scores, probabilities = session.run(None, given)
    assert label.tolist() == model.predict(records).tolist()
    np.testing.assert_allclose(scores, model.scores(records), atol=1e-5)
    np.testing.assert_allclose(probabilities, model.predict_proba(records), atol=1e-5)


def test_an_exported_pipeline_does_not_import_bigscreen(mixed, tmp_path):
    pytest.importorskip("joblib", reason="joblib is of the extra export")
    _folder, data = mixed
    export(fitted(data, landmarks=40, gamma=0.3), data, tmp_path / "m.joblib", "sklearn")
    code = (
        "import sys, joblib, numpy as np; made = joblib.load(sys.argv[1]);"
        "print(made.predict(np.array([[30.0, 1e4, 'red', 'True']], object))[0]);"
        "assert not any(name.startswith('bigscreen') for name in sys.modules)"
    )
    place = str(tmp_path / "m.joblib")
    done = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("yes", "no")


def test_an_export_that_differs_too_much_is_deleted(mixed, tmp_path):
    data = mixed[1]
    model = fitted(data, kernel="linear")
    with pytest.raises(InputError, match="differs from the model by .* let pass"):
        export(model, data, tmp_path / "m", "libsvm", tolerance=-1.0)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("kind", ["two", "three", "svr", "one-class"])
def test_files_of_libsvm_are_read(tmp_path, kind):
    X, y = load_iris(return_X_y=True)
    if kind == "two":
        X, y = X[50:], y[50:]
    peer = {"svr": SVR(), "one-class": OneClassSVM(nu=0.2)}.get(kind, SVC(C=3.0))
    peer.fit(X, X[:, 0] if kind == "svr" else y)
    model = read_libsvm(as_libsvm(peer, tmp_path / "m.model"))
    model.save(tmp_path / "m.bsm")
    model = Model.load(tmp_path / "m.bsm")
    np.testing.assert_allclose(model.predict(X), peer.predict(X), atol=1e-5)
    scores = model.scores(X)
    if kind == "two":
        np.testing.assert_allclose(scores[:, 0], peer.decision_function(X), atol=1e-5)
    write_libsvm(model, tmp_path / "again.model")
    np.testing.assert_allclose(libsvm_scores(tmp_path / "again.model", X), scores, atol=1e-5)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda text: "hello\n", "is no model file of LIBSVM"),
        (lambda text: text.replace("c_svc", "d_svc"), "which is not read; known are c_svc"),
        (lambda text: "\n".join(text.splitlines()[:-3]), "missing or cut short"),
        (lambda text: text.replace("total_sv ", "total_sv -"), "is no whole model file"),
        (lambda text: text.replace("rho ", "rho nan "), "is no whole model file"),
        (lambda text: text.replace(" 2:", " 1:"), "do not ascend"),
        (lambda text: text.replace("nr_sv ", "nr_sv 1"), "do not match"),
    ],
)
def test_a_damaged_libsvm_file_is_refused_in_one_sentence(tmp_path, spoil, words):
    X, y = load_iris(return_X_y=True)
    path = as_libsvm(SVC().fit(X[50:], y[50:]), tmp_path / "m.model")
    path.write_text(spoil(path.read_text()))
    with pytest.raises(InputError, match=words) as found:
        read_libsvm(path)
    assert "\n" not in str(found.value)


def test_without_a_module_a_sentence_says_what_to_install(mixed, tmp_path, monkeypatch):
    model = fitted(mixed[1], kernel="linear")
    for name, to in (("onnx", "onnx"), ("skops.io", "skops")):
        hide(monkeypatch, name, name.split(".")[0])
        with pytest.raises(InputError, match=r"pip install 'bigscreen\[export\]'"):
            export(model, mixed[1], tmp_path / "m", to)
        assert not (tmp_path / "m").exists()


def test_exports_know_the_marks_of_missing_values(tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is of the extra export")
    pytest.importorskip("onnx", reason="onnx is of the extra export")
    rng = np.random.default_rng(3)
    X = np.round(rng.normal(size=(120, 3)), 1)
    y = (X[:, 0] > X[:, 1]).astype(int)
    X[::6, 0], X[::9, 2] = -99, 77
    how = {"impute": "mean", "scale": "standard"}
    store = bigscreen.ingest((X, y), tmp_path / "s", missing=[-99, 77], **how).store
    model = fitted(store, landmarks=30, gamma=0.3)
    expected = model.scores(X)
    assert not np.allclose(expected, model.scores(np.where(X == 77, 76, X)))
    export(model, store, tmp_path / "m.onnx", "onnx")
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["scores"], {"X": X})[0], expected, atol=1e-5)
    X[1, 1] = np.nan
    made, _ = build_pipeline(model)
    np.testing.assert_allclose(made.decision_function(X), model.scores(X)[:, 0], atol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "absent"),
    [
        ("rbf", "gamma"),
        ("polynomial", "degree"),
        ("polynomial", "gamma"),
        ("polynomial", "coef0"),
        ("sigmoid", "gamma"),
        ("sigmoid", "coef0"),
    ],
)
def test_a_file_of_libsvm_without_a_parameter_of_its_kernel_is_refused(tmp_path, kernel, absent):
    lines = {"degree": "degree 2", "gamma": "gamma 0.5", "coef0": "coef0 1"}
    rest = "nr_class 2\ntotal_sv 1\nrho 0\nlabel 1 0\nnr_sv 1 0\nSV\n1 1:2\n"
    head = f"svm_type c_svc\nkernel_type {kernel}\n"
    path = tmp_path / "m.model"
    path.write_text(head + "\n".join(lines.values()) + "\n" + rest)
    assert read_libsvm(path).n_features == 1
    for line in ("", absent):  # the line is missing, or the number in it
        path.write_text(head + "\n".join([*(lines | {absent: line}).values()]) + "\n" + rest)
        with pytest.raises(InputError, match=f"names no {absent}, which its {kernel} kernel needs"):
            read_libsvm(path)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_a_learned_metric_is_exported(mixed, to, tmp_path, kind):
    _, store = mixed
    model = fitted(store, landmarks=40, C=10.0, metric_learning=kind)
    if to == "libsvm":
        with pytest.raises(InputError, match="map of the columns"):
            export(model, store, tmp_path / "m", to)
        return
    found = export(model, store, tmp_path / "m", to)
    assert found.difference < 1e-4 and found.agree == 1.0
