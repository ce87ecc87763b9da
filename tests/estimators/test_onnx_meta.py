"""bigscreen estimators within scikit-learn's meta-estimators, converted by skl2onnx."""

import warnings

import numpy as np
import pytest
from onnx_graphs import run_graph
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.feature_selection import RFE
from sklearn.linear_model import LogisticRegression, RANSACRegressor, Ridge
from sklearn.model_selection import GridSearchCV, TunedThresholdClassifierCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bigscreen
from bigscreen.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")


def fit(machine, X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return machine.fit(X, y)


def scaled(machine):
    return make_pipeline(StandardScaler(), machine)


def stack(*machines, **how):
    named = [(f"m{i}", machine) for i, machine in enumerate(machines)]
    how = {"final_estimator": LogisticRegression(), "cv": 2} | how
    return StackingClassifier(named, **how)


def vote(machine, voting):
    both = [("a", machine), ("b", LogisticRegression())]
    return VotingClassifier(both, voting=voting, flatten_transform=False)


MACHINES = {
    "exact": lambda: bigscreen.SVC(),
    "pairs": lambda: bigscreen.SVC(decision_function_shape="ovo", C=3.0),
    "probable": lambda: bigscreen.NystroemSVC(n_components=15, probability=True, random_state=0),
}

METAS = {  # the meta-estimator, and which of its methods the second output of the graph gives
    "calibrated": (lambda m: CalibratedClassifierCV(m, cv=2), "predict_proba"),
    "calibrated once": (lambda m: CalibratedClassifierCV(m, cv=2, ensemble=False), "predict_proba"),
    "calibrated pipeline": (lambda m: CalibratedClassifierCV(scaled(m), cv=2), "predict_proba"),
    "calibrated search": (
        lambda m: CalibratedClassifierCV(GridSearchCV(scaled(m), {}, cv=2), cv=2),
        "predict_proba",
    ),
    "calibrated pipeline of a search": (
        lambda m: CalibratedClassifierCV(scaled(GridSearchCV(m, {}, cv=2)), cv=2),
        "predict_proba",
    ),
    "one rest": (lambda m: OneVsRestClassifier(m), "predict_proba"),
    "one rest linear": (lambda m: OneVsRestClassifier(bigscreen.LinearSVC()), None),
    "one rest scores": (lambda m: OneVsRestClassifier(m), "decision_function"),
    "one rest pipeline": (lambda m: OneVsRestClassifier(scaled(m)), "predict_proba"),
    "one one": (lambda m: OneVsOneClassifier(m), "decision_function"),
    "one one pipeline": (lambda m: OneVsOneClassifier(scaled(scaled(m))), "decision_function"),
    "hard votes": (lambda m: vote(m, "hard"), None),
    "hard votes pipeline": (lambda m: vote(scaled(m), "hard"), None),
    "soft votes": (lambda m: vote(m, "soft"), "predict_proba"),
    "bags": (
        lambda m: BaggingClassifier(m, n_estimators=3, max_features=0.5, random_state=0),
        "predict_proba",
    ),
    "bags scores": (
        lambda m: BaggingClassifier(m, n_estimators=3, random_state=0),
        "decision_function",
    ),
    "stack": (lambda m: stack(m, scaled(m)), "predict_proba"),
    "stack passing": (lambda m: stack(m, passthrough=True), "predict_proba"),
    "stack of labels": (lambda m: stack(m, stack_method="predict"), "predict_proba"),
    "stack ending in": (
        lambda m: stack(LogisticRegression(), final_estimator=m),
        "predict_proba",
    ),
    "stack ending in, scores": (
        lambda m: stack(LogisticRegression(), final_estimator=m),
        "decision_function",
    ),
    "boosted": (lambda m: AdaBoostClassifier(m, n_estimators=2, random_state=0), "predict_proba"),
    "search": (lambda m: GridSearchCV(m, {"tol": [1e-3]}, cv=2), "decision_function"),
    "search pipeline": (lambda m: GridSearchCV(scaled(m), {}, cv=2), "decision_function"),
    "columns": (
        lambda m: make_pipeline(
            make_column_transformer((StandardScaler(), [0, 1]), remainder="passthrough"), m
        ),
        "decision_function",
    ),
    "selected": (
        lambda m: make_pipeline(RFE(LogisticRegression(), n_features_to_select=3), m),
        "decision_function",
    ),
}
SCORED = ("one rest scores", "bags scores", "stack ending in, scores")
NEED_PROBABILITIES = ("soft votes", "bags")
CASES = [
    (name, machine, k)
    for name in METAS
    for machine in MACHINES
    for k in ([2, 3] if machine == "probable" else [3])
    if machine == "probable" or name not in NEED_PROBABILITIES
]
# skl2onnx predicts the most probable label, scikit-learn the label of the largest score.
BY_SCORES = ("one rest", "one rest pipeline", "stack ending in", "bags scores")


def expected_values(meta, method, X):
    """Return a method's values in the form of graphs: (-s, s) for scores of two labels."""
    values = getattr(meta, method)(X)
    return np.column_stack([-values, values]) if values.ndim == 1 else values


@pytest.mark.slow
@pytest.mark.parametrize(("name", "machine", "k"), CASES)
def test_a_meta_estimator_answers_as_its_graph(name, machine, k):
    X, y = load_iris(return_X_y=True)
    X = X + np.random.default_rng(0).normal(scale=0.3, size=X.shape)
    X, y = (X[50:], y[50:] - 1) if k == 2 else (X, y)
    X = X.astype(np.float32) if name == "boosted" else X  # (in float64 skl2onnx itself fails)
    make, method = METAS[name]
    meta = fit(make(MACHINES[machine]()), X, y)
    options = None
    if name in SCORED:
        options = {id(meta): {"raw_scores": True, "zipmap": False}}
    elif not hasattr(meta, "steps") and name != "search pipeline":
        options = {id(meta): {"zipmap": False}}
    label, values, *_ = run_graph(meta, X, options).values()
    probable = machine == "probable"
    agree = np.mean(np.ravel(label) == meta.predict(X))
    assert agree > 0.95 if (probable and name in BY_SCORES) or name == "bags scores" else agree == 1
    if method is None or not hasattr(meta, method):
        return
    expected = expected_values(meta, method, X)
    if values.shape[1] == 1:  # the machine stands at the end of the graph
        values = np.column_stack([-values, values])
    counted = name in ("one one", "one one pipeline") and k == 2
    if counted or (machine == "pairs" and k == 3 and name in SCORED):
        return  # (skl2onnx counts votes there, scikit-learn gives scores of pairs)
    np.testing.assert_allclose(values, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["calibrated", "one rest", "hard votes", "boosted"])
def test_labels_that_are_words_come_out_of_a_meta_estimator(name, dtype):
    X, y = load_iris(return_X_y=True)
    dtype = np.float32 if name == "boosted" else dtype
    X, y = X[50:].astype(dtype), np.array(["no", "yes"])[y[50:] - 1]
    meta = fit(METAS[name][0](bigscreen.SVC()), X, y)
    label = next(iter(run_graph(meta, X, {id(meta): {"zipmap": False}}).values()))
    assert np.mean(label == meta.predict(X)) > 0.98


def test_several_outputs_of_labels_answer_as_their_graph():
    X, y = load_iris(return_X_y=True)
    X, y = X[50:], y[50:]
    Y = np.column_stack([y, X[:, 0] > 6.2])
    meta = fit(MultiOutputClassifier(MACHINES["probable"]()), X, Y)
    label, probabilities = run_graph(meta, X, {id(meta): {"zipmap": False}}).values()
    assert label.tolist() == meta.predict(X).tolist()
    for found, expected in zip(probabilities, meta.predict_proba(X), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    plain = fit(MultiOutputClassifier(bigscreen.SVC()), X, Y)
    label, _ = run_graph(plain, X, {id(plain): {"zipmap": False}}).values()
    assert label.tolist() == plain.predict(X).tolist()


def test_several_labels_a_row_answer_as_their_graph():
    X, y = load_iris(return_X_y=True)
    Y = np.column_stack([y == 1, y != 2, X[:, 0] > 6]).astype(int)
    meta = fit(OneVsRestClassifier(bigscreen.SVC()), X, Y)
    label, _ = run_graph(meta, X, {id(meta): {"zipmap": False}}).values()
    assert label.tolist() == meta.predict(X).tolist()


REGRESSIONS = {
    "votes": lambda m: VotingRegressor([("a", m), ("b", Ridge())]),
    "bags": lambda m: BaggingRegressor(m, n_estimators=3, max_features=0.5, random_state=0),
    "stack": lambda m: StackingRegressor(
        [("a", m), ("b", scaled(m))], final_estimator=Ridge(), cv=2
    ),
    "stack ending in": lambda m: StackingRegressor(
        [("a", Ridge()), ("b", m)], final_estimator=m, cv=2
    ),
    "boosted": lambda m: AdaBoostRegressor(m, n_estimators=3, random_state=0),
    "search": lambda m: GridSearchCV(scaled(m), {}, cv=2),
    "inliers": lambda m: RANSACRegressor(m, min_samples=100, random_state=0),
    "several": lambda m: MultiOutputRegressor(m),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REGRESSIONS)
@pytest.mark.parametrize("machine", ["SVR", "LinearSVR"])
def test_a_meta_estimator_of_regressions_answers_as_its_graph(name, machine):
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:200], y[:200]
    if name == "several":
        y = np.column_stack([y, X[:, 2] * 1e3])
    meta = fit(REGRESSIONS[name](getattr(bigscreen, machine)(C=30.0)), X, y)
    (found,) = run_graph(meta, X).values()
    expected = meta.predict(X).reshape(len(X), -1)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(y).max())


def test_meta_estimators_whose_graphs_answer_otherwise_are_refused():
    X, y = load_iris(return_X_y=True)
    X, y = X[50:], y[50:]
    refused = {
        "threshold out": TunedThresholdClassifierCV(bigscreen.SVC(), cv=2),
        "without probabilities": BaggingClassifier(bigscreen.SVC(), n_estimators=2),
        "other than 0 to 1": OneVsOneClassifier(scaled(bigscreen.SVC())),
    }
    for why, meta in refused.items():
        fit(meta, X, y)
        with pytest.raises(InputError, match=why):
            run_graph(meta, X)
