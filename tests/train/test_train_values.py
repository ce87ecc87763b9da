"""Every value that no fit could use is refused in one sentence, whatever its type."""

import json

import numpy as np
import pytest

from bigscreen import (
    SVC,
    SVR,
    InputError,
    LinearSVC,
    Model,
    NuSVC,
    QuantileRegressor,
    SolvedPath,
    solve,
    svm_path,
)
from bigscreen.kernels.standard import Rbf
from bigscreen.options.train import TrainOptions
from bigscreen.problems.recipes import CSvc, Lad, NuSvc, OneClass, Sublinear, Svr

ODD = (None, "x", [], np.nan, np.array([1.0, 2.0]), object())


@pytest.mark.parametrize(
    ("name", "least"),
    [
        *((name, 1) for name in ("landmarks", "max_iter", "patience", "levels", "degree")),
        ("seed", 0),
    ],
)
def test_counts_must_be_whole_and_large_enough(name, least):
    for value in (*ODD, 2.5, True, least - 1):
        with pytest.raises(InputError, match=f"{name} must be a whole number, at least {least}"):
            TrainOptions.from_record({name: value})
    options = TrainOptions.from_record({"start": "divide", name: np.int64(least + 1)})
    assert json.loads(json.dumps(options.record))[name] == least + 1


@pytest.mark.parametrize(
    ("name", "beyond", "message"),
    [
        ("tol", 0.0, "tol must be a positive"),
        ("C", np.inf, "C must be a positive"),
        ("gamma", -1, "gamma must be a positive"),
        ("nu", 1.001, r"nu must lie in \(0, 1\]"),
        ("epsilon", -1e-9, "epsilon must be a finite number, 0 or more"),
        ("tau", 1, "the quantile tau must lie strictly between"),
        ("f", 0, "tuning.f must lie strictly between"),
        ("coef0", np.inf, "coef0 must be a finite number"),
        ("time_budget", 0, "time_budget must be a positive number of seconds"),
        ("memory", 0.5, "memory must be a number of bytes"),
    ],
)
def test_numbers_must_be_finite_and_in_range(name, beyond, message):
    for value in (*ODD, beyond):
        if value is None and name in ("time_budget", "memory"):
            assert getattr(TrainOptions(**{name: value}), name) is None
            continue
        with pytest.raises(InputError, match=message) as error:
            TrainOptions.from_record({name: value})
        assert "\n" not in str(error.value) or isinstance(value, np.ndarray)


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (SVC(kernel=None), "kernel must be a name or a function, got None"),
        (SVC(class_weight=[1, 2]), "class_weight must be 'balanced' or a mapping"),
        (SVC(class_weight={0: "x"}), "class weights must be positive numbers"),
        (SVC(fit_intercept=[]), "fit_intercept must be"),
        (SVC(n_jobs="x"), "n_jobs must be a number of threads, None or -1, got 'x'"),
        (LinearSVC(n_jobs=0), "n_jobs must be a number of threads"),
        (SVR(scheduler=7), "scheduler must be the address"),
        (NuSVC(nu=None), r"nu must lie in \(0, 1\], got None"),
        (QuantileRegressor(quantile=1), "the quantile tau must lie strictly"),
    ],
    ids=repr,
)
def test_estimators(machine, message):
    X = np.random.default_rng(0).normal(size=(40, 2))
    with pytest.raises(InputError, match=message):
        machine.fit(X, (X[:, 0] > 0).astype(int))


def test_words_of_an_offset(tmp_path):
    """True is LIBSVM's offset wherever there is one; what was fitted before says the same."""
    for said, word in ((True, "true"), ("constant", "penalized"), (False, "none")):
        assert TrainOptions(intercept=said).record["intercept"] == word
        assert TrainOptions(intercept=word) == TrainOptions(intercept=said)
    for odd in (None, "maybe", [], 2):
        with pytest.raises(InputError, match="intercept must be True, 'penalized' or False"):
            TrainOptions(intercept=odd)
    # Folders of interrupted fits have the word of before, and go on.
    assert TrainOptions().folder_record == TrainOptions().record | {"intercept": "constant"}
    X = np.random.default_rng(0).normal(size=(40, 2))
    y = (X[:, 0] > 0).astype(int)
    with pytest.raises(InputError, match="fit_intercept must be True, 'penalized', 'unpenalized'"):
        LinearSVC(fit_intercept="true").fit(X, y)
    machine = SVC(fit_intercept="penalized").fit(X, y)
    assert machine.dual_coef_.sum() == pytest.approx(machine.intercept_[0])
    assert abs(SVC(fit_intercept=True).fit(X, y).dual_coef_.sum()) < 1e-12
    model, path = machine.model_, svm_path(X, y, [0.1, 1.0])
    for fitted, file in ((model, tmp_path / "m.bsm"), (path, tmp_path / "p.bsp")):
        known = (fitted if fitted is model else path.model(0)).provenance["parameters"]
        assert known["intercept"] == "penalized"
        (model.provenance if fitted is model else path.record["provenance"])["parameters"] |= {
            "intercept": "constant"
        }
        fitted.save(file)
    assert Model.load(tmp_path / "m.bsm").provenance["parameters"]["intercept"] == "penalized"
    loaded = SolvedPath.load(tmp_path / "p.bsp").model(0)
    assert loaded.provenance["parameters"]["intercept"] == "penalized"


def test_bytes_may_be_written_as_floats():
    X = np.random.default_rng(0).normal(size=(40, 2))
    y = (X[:, 0] > 0).astype(int)
    machine = SVC(memory=4e9, cache_size=1).fit(X, y)
    np.testing.assert_array_equal(machine.dual_coef_, SVC().fit(X, y).dual_coef_)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Svr("x", 0.1), "C must be a positive finite number, got 'x'"),
        (lambda: Svr(1.0, None), "epsilon must be a finite number"),
        (lambda: OneClass(None, 3.0), r"nu must lie in \(0, 1\], got None"),
        (lambda: NuSvc(0.3, 1, 0.0), "mass must be the weight of all rows, above 0"),
        (lambda: Sublinear(1.0, [1.0, 2.0], [1.0], 0, 1), "as many numbers.*got 2 and 1"),
        (lambda: Sublinear(1.0, [np.nan], [1.0], 0, 1), "a must be finite numbers"),
        (lambda: Sublinear(1.0, [1.0], [1.0], -np.inf, 1), "lower and upper must be finite"),
        (lambda: Sublinear(1.0, [1.0], [1.0], 2, 1), "lower at most upper"),
    ],
)
def test_problems(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("problem", "how", "message"),
    [
        (Sublinear(1.0, np.ones(9), np.ones(9), 0, 1), {}, "9 numbers and X has 20 rows"),
        (Lad(1.0), {}, "Lad needs y"),
        (Lad(1.0), {"y": np.where(np.arange(20) == 3, np.nan, 1.0)}, "row 3 of y.*missing"),
        (Lad(1.0), {"y": np.ones(20), "tol": 0}, "tol must be a positive"),
        (Lad(1.0), {"y": np.ones(20), "kernel": lambda A, B: A @ B.T}, "Custom"),
        (CSvc(1.0, 1), {"y": np.arange(20) % 2 * 1.0}, "y must be label codes"),
        (CSvc(1.0, 1, (1.0,)), {"y": np.arange(20) % 2}, "a weight for each code up to 1"),
        (CSvc(1.0, 1, (1.0, -1.0)), {"y": np.arange(20) % 2}, "not negative"),
        (OneClass(0.5, 20.0), {"X": np.ones(20)}, "two dimensions"),
    ],
)
def test_solve(problem, how, message):
    X = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(InputError, match=message):
        solve(problem, **{"X": X, **how})


def test_solve_takes_lists():
    X = np.random.default_rng(0).normal(size=(20, 2))
    a, b = X[:, 0], np.ones(20)
    one = solve(Sublinear(1.0, a, b, -0.5, 1.0), X, kernel=Rbf(0.5))
    other = solve(Sublinear(1.0, a.tolist(), b.tolist(), -0.5, 1.0), X.tolist(), kernel=Rbf(0.5))
    np.testing.assert_array_equal(one.alpha, other.alpha)


def test_scores_and_weights():
    X = np.random.default_rng(0).normal(size=(40, 2))
    machine = SVR().fit(X, X[:, 0])
    with pytest.raises(InputError, match="score compares predictions with y"):
        machine.score(X)
    for weights in (np.ones((40, 1)), 2.0, np.ones(3)):
        with pytest.raises(InputError, match="40 weights are needed.*got the shape"):
            machine.fit(X, X[:, 0], weights)
    with pytest.raises(InputError, match="the weights are not numbers"):
        machine.fit(X, X[:, 0], ["much"] * 40)
