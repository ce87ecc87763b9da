"""`L1SVC`: labels, weights, warnings, refusals; scikit-learn's own checks."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn_checks import EXPECTED_FAILURES

from bigscreen import L1SVC, InputError


def rows(labels=2, n=240):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    return X, np.array(["a", "b", "c"])[np.digitize(X[:, 0], np.linspace(-0.5, 0.5, labels - 1))]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [L1SVC(max_iter=2000)], expected_failed_checks=lambda estimator: EXPECTED_FAILURES
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("labels", [2, 3])
def test_labels_and_gaps(labels):
    X, y = rows(labels)
    machine = L1SVC(C=1.0, tol=1e-3).fit(X, y)
    assert machine.relative_gap_ <= 1e-3
    assert len(machine.coef_) == len(machine.points_) == (1 if labels == 2 else 3)
    assert machine.score(X, y) >= (0.95 if labels == 2 else 0.75)
    again = L1SVC(C=1.0, tol=1e-3).fit(sparse.csr_array(X), y)
    np.testing.assert_allclose(again.coef_, machine.coef_, atol=0.05)


def test_a_weight_of_two_is_the_row_twice():
    X, y = rows()
    weights = np.random.default_rng(1).integers(0, 3, len(y))
    one = L1SVC(tol=1e-6).fit(X, y, weights)
    other = L1SVC(tol=1e-6).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    assert one.points_[0].primal == pytest.approx(other.points_[0].primal, rel=2e-6)


def test_columns_of_a_kernel():
    X, _ = rows()
    y = (X**2).sum(axis=1) > 3.0
    pipe = make_pipeline(Nystroem(gamma=0.5, n_components=40, random_state=0), L1SVC(C=1.0))
    assert pipe.fit(X, y).score(X, y) >= 0.93
    assert pipe[-1].relative_gap_ <= 1e-3


def test_what_is_missed_is_said_and_what_is_wrong_refused():
    X, y = rows()
    with pytest.warns(ConvergenceWarning, match="was asked for"):
        L1SVC(tol=1e-9, max_iter=20).fit(X, y)
    with pytest.raises(InputError, match="C must be"):
        L1SVC(C=-1.0).fit(X, y)
    with pytest.raises(InputError, match="2 classes"):
        L1SVC().fit(X, y, (y == "a").astype(float))
    with pytest.raises(InputError, match="in memory"):
        L1SVC().fit("some.store", y)
