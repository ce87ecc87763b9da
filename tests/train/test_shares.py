"""A time budget is shared by all classifiers of a fit, and one warning says what is unsolved."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import bigscreen


def hard(classes=15, rows=30):
    rng = np.random.default_rng(0)
    return rng.normal(size=(classes * rows, 6)), np.repeat(np.arange(classes), rows)


def fitted(machine, X, y):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        machine.fit(X, y)
    return machine, [str(each.message) for each in told if each.category is ConvergenceWarning]


@pytest.mark.slow
def test_every_pair_has_a_share():
    """Pairs that none of the time would be enough for: once the first took it all."""
    X, y = hard()
    how = {"kernel": "linear", "C": 1e6, "tol": 1e-9, "max_iter": 10**9}
    fitted(bigscreen.SVC(**how, time_budget=1.0), X[:60], y[:60])  # everything is compiled
    machine, told = fitted(bigscreen.SVC(**how, time_budget=6.0), X, y)
    begun = sum(part["support"] > 0 for part in machine.certificate_)
    assert len(machine.certificate_) == 105 and begun > 30
    assert all(0 <= part["relative_gap"] <= 1 + 1e-9 for part in machine.certificate_)
    assert len(told) == 1 and "of 105 machines missed tol 1e-09" in told[0]
    assert " vs " in told[0] and "100 more" in told[0]


def test_unused_time_goes_to_unsolved_problems():
    """With two classes that are hard to separate and many easy ones, all problems are solved."""
    rng = np.random.default_rng(1)
    centres = 50 * rng.normal(size=(12, 3))
    centres[0] = centres[1]
    X = np.concatenate([rng.normal(size=(60, 3)) + centre for centre in centres])
    y = np.repeat(np.arange(12), 60)
    how = {"gamma": 0.5, "C": 1e3, "tol": 1e-6}
    fitted(bigscreen.SVC(**how), X[:120], y[:120])
    machine, told = fitted(bigscreen.SVC(**how, time_budget=60.0), X, y)
    assert not told and machine.relative_gap_ <= 1e-6


def test_none_is_left_out_where_there_is_no_time():
    X, y = hard(5)
    machine, told = fitted(bigscreen.SVC(C=1e6, tol=1e-9, time_budget=1e-9), X, y)
    assert len(told) == 1 and "10 of 10 machines" in told[0]
    assert [part["rows"] for part in machine.certificate_] == 10 * [2 * len(X) // 5]  # the pair's
    assert np.isfinite(machine.model_.intercept).all()


def test_one_machine_says_what_it_always_said():
    X, y = hard(2)
    _, told = fitted(bigscreen.SVC(C=1e6, tol=1e-9, max_iter=1), X, y)
    assert len(told) == 1 and "missed tol 1e-09; allow more passes" in told[0]
    with pytest.warns(ConvergenceWarning, match="3 of 3 machines missed tol"):
        bigscreen.LinearSVC(loss="hinge", C=1e3, tol=1e-9, max_iter=1).fit(*hard(3))
