"""Attributes and inputs that scikit-learn's users expect: weights, probabilities, odd input."""

import warnings

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn import svm
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_wine, make_classification
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import RFE
from sklearn.metrics import log_loss
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import scale

import bigscreen
from bigscreen import SVC, SVR, InputError, MemoryDataset, NuSVC, OneClassSVM
from bigscreen.model.calibration import couple_pairs, fit_sigmoid

DEPRECATED = "ignore:The `probability` parameter:FutureWarning"


def wine():
    X, y = load_wine(return_X_y=True)
    return scale(X), np.array(["red", "white", "rose"])[y]


@pytest.mark.parametrize("how", [{}, {"n_components": 40}, {"fit_intercept": False}])
def test_weights_of_features_are_the_scores(how):
    X, y = wine()
    machine = SVC(kernel="linear", decision_function_shape="ovo", **how).fit(X, y)
    assert machine.coef_.shape == (3, X.shape[1])
    scores = X @ machine.coef_.T + machine.intercept_
    np.testing.assert_allclose(machine.decision_function(X), scores, atol=1e-5)
    two = SVC(kernel="linear", **how).fit(X, y == "red")
    scores = (X @ two.coef_.T + two.intercept_)[:, 0]
    np.testing.assert_allclose(two.decision_function(X), scores, atol=1e-5)
    before = machine.decision_function(X)
    with pytest.raises(ValueError, match="read-only"):
        machine.coef_[0, 0] = 1.0
    np.testing.assert_array_equal(machine.decision_function(X), before)


@pytest.mark.parametrize("kind", ["SVC", "SVR", "NuSVC", "OneClassSVM"])
def test_weights_of_sparse_features(kind):
    X, _ = wine()
    X = np.maximum(X, 0.0)
    y = X[:, 0] + X[:, 1] ** 2
    y = y > 1 if kind.endswith("SVC") else y
    dense, thin = (
        getattr(bigscreen, kind)(kernel="linear").fit(rows, y) for rows in (X, csr_array(X))
    )
    theirs = getattr(svm, kind)(kernel="linear", tol=1e-6).fit(X, y)
    np.testing.assert_allclose(dense.coef_, thin.coef_.toarray(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(dense.coef_, theirs.coef_, atol=2e-2 * np.abs(theirs.coef_).max())
    assert dense.dual_coef_.shape == thin.dual_coef_.shape
    with pytest.raises(AttributeError, match="linear kernel"):
        _ = dense.set_params(kernel="rbf").coef_
    with pytest.raises(AttributeError):
        _ = clone(thin).coef_


def test_feature_elimination_agrees_with_scikit_learn():
    X, y = make_classification(120, 8, n_informative=3, random_state=0)
    masks = [RFE(k(kernel="linear"), n_features_to_select=3).fit(X, y) for k in (SVC, svm.SVC)]
    np.testing.assert_array_equal(masks[0].support_, masks[1].support_)
    X, y = load_diabetes(return_X_y=True)
    masks = [RFE(k(kernel="linear", C=10.0)).fit(X, y) for k in (SVR, svm.SVR)]
    np.testing.assert_array_equal(masks[0].support_, masks[1].support_)


@pytest.mark.filterwarnings(DEPRECATED)
@pytest.mark.parametrize("kind", ["SVC", "NuSVC"])
@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_agree_with_scikit_learn(kind, classes):
    X, y = wine()
    y = y if classes == 3 else y == "white"
    weights = np.random.default_rng(0).integers(0, 3, len(y))
    losses = []
    for kinds in (bigscreen, svm):
        machine = getattr(kinds, kind)(probability=True, random_state=0)
        machine.fit(X[::2], y[::2], sample_weight=weights[::2])
        found = machine.predict_proba(X[1::2])
        np.testing.assert_allclose(found.sum(axis=1), 1.0)
        np.testing.assert_allclose(np.log(found), machine.predict_log_proba(X[1::2]))
        losses.append(log_loss(y[1::2], found))
        with pytest.warns(FutureWarning, match="probA_"):
            assert machine.probA_.shape == (classes * (classes - 1) // 2,)
    assert losses[0] < 1.2 * losses[1]


@pytest.mark.filterwarnings(DEPRECATED)
def test_probabilities_of_a_matrix_and_of_a_class_of_one_row():
    X, y = wine()
    gram = rbf_kernel(X, gamma=0.05)
    one = SVC(gamma=0.05, probability=True).fit(X, y).predict_proba(X)
    other = SVC(kernel="precomputed", probability=True).fit(gram, y).predict_proba(gram)
    np.testing.assert_allclose(one, other, atol=1e-4)
    few = np.r_[np.zeros(6), np.ones(6), 2.0]
    machine = SVC(probability=True).fit(X[: len(few)], few)
    assert np.isfinite(machine.predict_proba(X)).all()


def test_without_probability_there_is_no_predict_proba():
    X, y = wine()
    machine = SVC().fit(X, y)
    assert not hasattr(machine, "predict_proba") and not hasattr(machine, "predict_log_proba")
    machine.probability = True
    with pytest.raises(NotFittedError, match="fitted with probability=False"):
        machine.predict_proba(X)
    data = MemoryDataset(X.astype(np.float32), y=np.arange(len(y)) % 2, labels=[0, 1])
    with (
        pytest.warns(FutureWarning, match="probability"),
        pytest.raises(InputError, match="CalibratedClassifierCV on arrays"),
    ):
        machine.fit(data)


def test_sigmoids_and_their_coupling():
    random = np.random.default_rng(0)
    scores = random.normal(size=4000) * 2
    positive = random.uniform(size=4000) < 1 / (1 + np.exp(-1.5 * scores + 0.5))
    A, B = fit_sigmoid(scores, positive)
    assert pytest.approx(-1.5, abs=0.15) == A and pytest.approx(0.5, abs=0.15) == B
    A, B = fit_sigmoid(
        np.r_[np.ones(50), -np.ones(50)], np.arange(100) < 50
    )  # told apart for certain
    assert np.isfinite([A, B]).all() and A < -1
    # Consistent pair probabilities give back the probabilities that they were computed from.
    p = random.dirichlet(np.ones(4), 10)
    i, j = np.triu_indices(4, 1)
    np.testing.assert_allclose(couple_pairs(p[:, i] / (p[:, i] + p[:, j]), 4), p, atol=1e-9)


def test_scores_of_0_are_decided_as_by_scikit_learn():
    """Far rows have kernel entries of 0, and classes of equal size have offsets of 0."""
    X, y = np.arange(6.0)[:, None], np.arange(6) % 3
    far = np.array([[1e3], [-1e3]])
    for labels in (y, np.arange(6) % 2):
        for kind in ("SVC", "NuSVC"):
            ours, theirs = (getattr(k, kind)(gamma=1e6).fit(X, labels) for k in (bigscreen, svm))
            np.testing.assert_array_equal(
                ours.decision_function(far), theirs.decision_function(far)
            )
            np.testing.assert_array_equal(ours.predict(far), theirs.predict(far))
            decided = ours.model_.predict(far.astype(np.float32))
            np.testing.assert_array_equal(ours.classes_[decided], ours.predict(far))


@pytest.mark.parametrize("kind", ["SVC", "NuSVC", "SVR", "OneClassSVM"])
def test_weights_below_0_leave_rows_out(kind):
    X, y = wine()
    y = np.unique(y, return_inverse=True)[1]
    weights = np.random.default_rng(1).normal(size=len(y)) + 0.5
    machine = getattr(bigscreen, kind)()
    mine = clone(machine).fit(X, y, sample_weight=weights)
    some = clone(machine).fit(X[weights > 0], y[weights > 0], sample_weight=weights[weights > 0])
    np.testing.assert_array_equal(mine.dual_coef_, some.dual_coef_)
    np.testing.assert_array_equal(mine.support_, np.flatnonzero(weights > 0)[some.support_])


def test_no_row_may_violate_its_margin():
    X, y = make_classification(60, 20, random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = (k(C=np.inf).fit(X, y) for k in (SVC, svm.SVC))
    assert ours.get_params()["C"] == np.inf
    margins = np.where(y == 1, 1, -1) * ours.decision_function(X)
    assert margins.min() > 0.99
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=5e-3)


def test_a_kernel_function_may_compare_rows_that_are_not_numeric():
    words = ["aa", "ab", "ba", "bb", "aab", "abb", "bab", "aba"]
    y = np.array([word.count("a") for word in words]) >= 2

    def shared(A, B):
        return np.array([[sum(a.count(c) * b.count(c) for c in "ab") for b in B] for a in A])

    for rows in (words, np.array(words), np.array(words, dtype=object)):
        machine = SVC(kernel=shared).fit(rows, y)
        theirs = svm.SVC(kernel=shared).fit(rows, y)
        np.testing.assert_array_equal(machine.predict(rows), theirs.predict(rows))
        np.testing.assert_allclose(
            machine.decision_function(rows[:2]), theirs.decision_function(rows[:2]), atol=1e-2
        )
        assert "_objects" not in machine.get_params()
    weights = np.array([1.0, 1, 1, 0, 1, 1, 1, 1])
    some = [word for word, weight in zip(words, weights, strict=True) if weight]
    without = SVC(kernel=shared).fit(some, y[weights > 0])
    weighted = SVC(kernel=shared).fit(words, y, sample_weight=weights)
    np.testing.assert_array_equal(weighted.predict(words), without.predict(words))
    numbers = np.array([[word.count(c) for c in "ab"] for word in words], float)
    again = machine.set_params(kernel="linear").fit(numbers, y)
    np.testing.assert_array_equal(again.predict(numbers), machine.predict(numbers))


def test_a_kernel_function_may_return_sparse_entries():
    X, y = wine()
    X[np.abs(X) < 0.5] = 0.0
    thin = SVC(kernel=lambda A, B: A @ B.T).fit(csr_array(X), y)
    full = SVC(kernel=lambda A, B: A @ B.T).fit(X, y)
    np.testing.assert_allclose(thin.decision_function(X), full.decision_function(X), atol=1e-6)


def test_scores_agree_with_float64_kernel_entries():
    """For few support rows, and whatever other rows are scored in the same call."""
    X, y = wine()
    machine = SVC(gamma=0.05).fit(X, y == "red")
    whole = machine.decision_function(X)
    parts = np.concatenate([machine.decision_function(X[k : k + 7]) for k in range(0, len(X), 7)])
    np.testing.assert_allclose(whole, parts, rtol=0, atol=1e-12)
    K = rbf_kernel(X, machine.support_vectors_, gamma=0.05)
    np.testing.assert_allclose(whole, K @ machine.dual_coef_[0] + machine.intercept_, atol=1e-12)


def test_the_offset_of_one_class():
    X, _ = wine()
    machine = OneClassSVM(nu=0.2).fit(X)
    np.testing.assert_array_equal(machine.offset_, -machine.intercept_)
    assert machine.offset_.shape == (1,) and isinstance(machine.n_iter_, int)
    assert machine.fit_status_ == 0 and machine.n_support_.shape == (1,)
    assert NuSVC(nu=0.2).fit(X, X[:, 0] > 0).n_iter_.shape == (1,)
