"""Numbers at the ends of float64: a fit whose certificate is finite, or one sentence."""

import itertools
import warnings

import numpy as np
import pytest

from bigscreen import SVC, SVR, LinearSVC, NuSVC, NystroemSVC, OneClassSVM, Tuning, svm_path
from bigscreen.errors import InputError
from bigscreen.fit.monitor import Limits, Monitor
from bigscreen.problems.point import Certificate, Point, gap_or_violation

VALUES = [1e308, 1e300, 1e160, 1e30, 1e-30, 1e-160, 1e-300, 1e-320, 0.0, -1.0, np.nan, np.inf]
INTERCEPTS = (False, "penalized", True)


def rows(n=40):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    return X, (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int)


def sound(fit) -> None:
    """A fit that ends in a model of finite numbers, or in one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            machine = fit()
    except ValueError as error:  # InputError, or scikit-learn's own about X and y
        assert str(error)  # noqa: PT017 (either end is right)
        return
    model = machine.model_
    assert np.isfinite(model.coef).all() and np.isfinite(model.intercept).all()
    for record in machine.certificate_:
        assert record["proved"] or record["violation"] is not None
        assert np.isfinite(gap_or_violation(record)) and np.isfinite(record["rounding_bound"])
        if record["proved"]:
            assert np.isfinite([record["primal"], record["dual"], record["gap"]]).all()


def one(value, n=40):
    return np.where(np.arange(n) == 3, value, 1.0)


CASES = {
    "C": lambda v, b, X, y: SVC(C=v, max_iter=200, fit_intercept=b).fit(X, y),
    "gamma": lambda v, b, X, y: SVC(gamma=v, max_iter=200, fit_intercept=b).fit(X, y),
    "tol": lambda v, b, X, y: SVC(tol=v, max_iter=200, fit_intercept=b).fit(X, y),
    "coef0": lambda v, b, X, y: SVC(kernel="poly", coef0=v, max_iter=200).fit(X, y),
    "sigmoid": lambda v, b, X, y: SVC(kernel="sigmoid", C=v, max_iter=200).fit(X, y),
    "weight": lambda v, b, X, y: SVC(max_iter=200, fit_intercept=b).fit(X, y, one(v)),
    "classes": lambda v, b, X, y: SVC(max_iter=200, class_weight={0: v, 1: 1.0}).fit(X, y),
    "rows": lambda v, b, X, y: SVC(max_iter=200, fit_intercept=b).fit(v * X, y),
    "linear": lambda v, b, X, y: LinearSVC(C=v, max_iter=30, fit_intercept=b).fit(X, y),
    "linear rows": lambda v, b, X, y: LinearSVC(max_iter=30, fit_intercept=b).fit(v * X, y),
    "nystrom": lambda v, b, X, y: NystroemSVC(
        C=v, n_components=9, max_iter=30, fit_intercept=b
    ).fit(X, y),
    "nystrom coef0": lambda v, b, X, y: NystroemSVC(
        kernel="poly", coef0=v, n_components=9, max_iter=30
    ).fit(X, y),
    "nystrom rows": lambda v, b, X, y: NystroemSVC(
        gamma=1.0, n_components=9, max_iter=30, time_budget=5.0, fit_intercept=b
    ).fit(v * X, y),
    "nu": lambda v, b, X, y: NuSVC(nu=v, max_iter=200).fit(X, y),
    "nu weights": lambda v, b, X, y: NuSVC(nu=0.3, max_iter=200).fit(X, y, np.full(40, v)),
    "one-class": lambda v, b, X, y: OneClassSVM(nu=v, max_iter=200).fit(X),
    "epsilon": lambda v, b, X, y: SVR(epsilon=v, max_iter=200).fit(X, X[:, 0]),
    "targets": lambda v, b, X, y: SVR(max_iter=200, fit_intercept=b).fit(X, v * X[:, 0]),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_extreme_numbers_end_in_a_finite_model_or_one_sentence(name):
    X, y = rows()
    # One intercept a value, in turn: all of them come to every kind of case.
    for value, intercept in zip(VALUES, itertools.cycle(INTERCEPTS), strict=False):
        sound(lambda v=value, b=intercept: CASES[name](v, b, X, y))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_sentences_name_the_extreme_number():
    X, y = rows()
    for machine in (
        SVC(C=1e300),
        NystroemSVC(C=1e300, n_components=9),
        LinearSVC("l2", "hinge", C=1e-320),
    ):
        with pytest.raises(InputError, match="C .* times the weight of row 0 is 1e"):
            machine.fit(X, y)
    with pytest.raises(InputError, match="times the weight of row 3 is 1e"):
        SVC().fit(X, y, one(1e300))
    with pytest.raises(InputError, match="overflow"):
        NystroemSVC(kernel="poly", coef0=1e200, n_components=9).fit(X, y)
    with pytest.raises(InputError, match="rows and landmarks overflow"):
        NystroemSVC(gamma=1e300, n_components=9, tuning=Tuning(features="stored")).fit(X, y)
    with pytest.raises(InputError, match="times the weight of row 0 is 1e-320"):
        svm_path(X, y, [1.0, 2.0], sample_weight=np.full(40, 1e-320))


def certificate(**own):
    numbers = {"primal": 2.0, "dual": 2.0, "gap": 0.0, "relative_gap": 0.0, "rounding_bound": 0.0}
    return Certificate(**{**numbers, **own}, certified_in="float32", rows=3, support=1)


@pytest.mark.parametrize("name", ["primal", "dual", "gap", "relative_gap", "rounding_bound"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_certificate_with_a_nan_proves_nothing(name, value):
    assert certificate().checked().proved
    found = certificate(**{name: value}).checked()
    assert not found.proved and found.to_dict()[name] is None
    again = Certificate.from_dict(found.to_dict())
    assert not again.proved and np.isnan(getattr(again, name))
    monitor = Monitor(lambda point: found, Limits(1e-3), None, lambda event: None)
    point = Point(np.zeros(1), np.zeros(1), 0.0, 2.0, 2.0, True)
    stats = {"rows_alive": 3, "rows_visited": 3, "fixed_hi": 0, "fixed_lo": 0, "stalled": True}
    monitor(point, stats, lambda folder, meta: None)
    assert monitor.ended == "stalled"


def test_the_best_point_is_never_nan():
    nan = Point(np.zeros(1), np.zeros(1), 0.0, np.nan, 2.0, True)
    good = Point(np.zeros(1), np.zeros(1), 0.0, 3.0, 2.0, True)
    monitor = Monitor(lambda point: certificate(), Limits(1e-9), None, lambda event: None)
    stats = {"rows_alive": 3, "rows_visited": 3, "fixed_hi": 0, "fixed_lo": 0, "stalled": False}
    for point in (nan, good, nan):
        monitor(point, stats, lambda folder, meta: None)
    assert monitor.best is good
