"""Pipelines that end in a bigscreen estimator, converted by skl2onnx."""

import warnings

import numpy as np
import pytest
from missing_modules import hide
from onnx_graphs import run_graph
from sklearn.datasets import load_diabetes, load_iris
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bigscreen
from bigscreen.errors import InputError
from bigscreen.estimators import onnx as converters
from bigscreen.estimators.onnx import ESTIMATORS


def fitted(machine, X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_pipeline(StandardScaler(), machine).fit(X, y)


CLASSIFIERS = {
    "nystrom": lambda: bigscreen.NystroemSVC(n_components=40, random_state=0),
    "probable": lambda: bigscreen.NystroemSVC(n_components=40, probability=True, random_state=0),
    "laplacian": lambda: bigscreen.NystroemSVC(kernel="laplacian", n_components=30, random_state=0),
    "svc": lambda: bigscreen.SVC(C=3.0),
    "pairs": lambda: bigscreen.SVC(kernel="poly", coef0=1.0, decision_function_shape="ovo"),
    "nu": lambda: bigscreen.NuSVC(nu=0.2),
    "linear": lambda: bigscreen.LinearSVC(),
    "searched": lambda: bigscreen.SVCCV(cv=2, Cs=[0.1, 1.0], gammas=[0.1, 1.0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["two", "three", "words", "truth"])
@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_graph_of_a_pipeline_predicts_the_same(name, labels, dtype):
    X, y = load_iris(return_X_y=True)
    X = X.astype(dtype)
    if labels in ("two", "truth"):
        X, y = X[50:], y[50:]
        y = y == 1 if labels == "truth" else y
    if labels == "words":
        y = np.array(["setosa", "versicolor", "virginica"])[y]
    pipeline = fitted(CLASSIFIERS[name](), X, y)
    found = run_graph(pipeline, X, {id(pipeline[-1]): {"zipmap": False}})
    narrow = {np.float32: 2e-4, np.float64: 1e-5}[dtype]
    scores = pipeline.decision_function(X).reshape(len(X), -1)
    np.testing.assert_allclose(found["scores"], scores, atol=narrow)
    assert found["scores"].dtype == dtype
    if dtype == np.float64:
        assert found["label"].tolist() == pipeline.predict(X).tolist()
    else:  # a row at the border may fall on either side
        assert np.mean(found["label"] == pipeline.predict(X)) > 0.98
    assert ("probabilities" in found) == (name == "probable")
    if name == "probable":
        expected = pipeline.predict_proba(X)
        np.testing.assert_allclose(found["probabilities"], expected, atol=narrow)


REGRESSORS = {
    "svr": lambda: bigscreen.SVR(C=100.0),
    "nu": lambda: bigscreen.NuSVR(C=100.0),
    "linear": lambda: bigscreen.LinearSVR(),
    "lad": lambda: bigscreen.LADRegressor(C=10.0),
    "quantile": lambda: bigscreen.QuantileRegressor(C=10.0),
}


@pytest.mark.parametrize("name", REGRESSORS)
def test_graphs_of_regressions_predict_the_same(name):
    X, y = load_diabetes(return_X_y=True)
    pipeline = fitted(REGRESSORS[name](), X[:150], y[:150])
    found = run_graph(pipeline, X)
    expected = pipeline.predict(X)[:, None]
    np.testing.assert_allclose(found["variable"], expected, atol=1e-6 * np.abs(y).max())


def test_the_graph_of_a_one_class_machine_predicts_the_same():
    X, _ = load_iris(return_X_y=True)
    pipeline = fitted(bigscreen.OneClassSVM(nu=0.2), X, None)
    found = run_graph(pipeline, X)
    assert found["label"].tolist() == pipeline.predict(X).tolist()
    np.testing.assert_allclose(found["scores"][:, 0], pipeline.decision_function(X), atol=1e-6)


def test_every_estimator_with_a_model_has_a_converter():
    names = {kind.__name__ for kind in ESTIMATORS}
    kinds = {name: getattr(bigscreen, name) for name in bigscreen.__all__}
    machines = {k for k, kind in kinds.items() if hasattr(kind, "fit") and hasattr(kind, "predict")}
    assert machines == names & machines


def test_what_cannot_be_converted_is_refused():
    X, y = load_iris(return_X_y=True)
    with pytest.raises(InputError, match="break_ties=True is not converted"):
        run_graph(fitted(bigscreen.SVC(break_ties=True), X, y), X)
    with pytest.raises(InputError, match="no formula"):
        run_graph(make_pipeline(bigscreen.SVC(kernel=lambda a, b: a @ b.T).fit(X, y)), X)


def test_without_skl2onnx_it_says_what_to_install(monkeypatch):
    hide(monkeypatch, "skl2onnx")
    with pytest.raises(InputError, match=r"pip install 'bigscreen\[export\]'"):
        converters.register()
