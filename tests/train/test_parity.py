"""Machines equal those of scikit-learn, C from 1e-4 to 1e4: objectives, offsets, rows, labels.

Both are judged by P and D of every problem, summed here in float64 from the published
coefficients. Where the two differ that says who is right, and it is never we who are not:

* Where scikit-learn stops far from the optimum (C = 1e4: P - D of 1e-2 of P and more at tol=1e-8)
  our D is the higher one, and nothing else of it can be compared.
* Balanced classes at small C have every alpha at its bound, and P is the same for all offsets of an
  interval. Ours is its middle, which tells the classes apart; scikit-learn's follows the last
  digit of the sums of the weights to an end, which predicts one class for everything.
* LIBSVM keeps kernel entries in float32: `test_large_polynomial_entries_are_those_of_scikit_learn`.
"""

import lzma
import warnings
from itertools import combinations

import numpy as np
import pytest
from places import DATA
from scipy.sparse import csr_array
from sklearn import svm
from sklearn.base import clone
from sklearn.datasets import load_iris, load_svmlight_file, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bigscreen

TOL = 1e-8
CS = (1e-4, 1e-2, 1.0, 1e2, 1e4)
SAME = 1e-6
"""Difference of dual objectives, as a part of P."""

PRECISE = 1e-5
"""Relative gap of scikit-learn's machine up to which more than objectives is compared."""


def scaled(X, y):
    return (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0), y


def letters():
    """Sixteen whole numbers from 0 to 15, three ways to draw each of seven letters."""
    random = np.random.default_rng(0)
    ways = random.normal(size=(7, 3, 16)) * 2.2
    y = random.choice(7, 420, p=[0.25, 0.2, 0.15, 0.1, 0.1, 0.1, 0.1])
    X = ways[y, random.integers(0, 3, len(y))] + random.normal(size=(len(y), 16)) * 1.6
    return np.clip(np.round(X + 7.5), 0, 15) / 15, np.array(list("TAQXDRM"))[y]


def digits():
    """Eight points of a pen on a square of 100 by 100, for each of six digits."""
    random = np.random.default_rng(1)
    points = random.uniform(0, 100, (6, 16))
    y = random.integers(0, 6, 360)
    return np.clip(np.round(points[y] + random.normal(size=(len(y), 16)) * 14), 0, 100), y


def census():
    """The first rows of a9a."""
    path = DATA / "a9a" / "a9a.xz"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    with lzma.open(path) as file:
        X, y = load_svmlight_file(file, n_features=123)
    return X[:500], y[:500]


def shellfish():
    """Seven lengths and weights that grow together, and rings to predict."""
    random = np.random.default_rng(2)
    size = random.beta(4, 2, 300)
    growth = np.array([1, 1, 1, 3, 3, 3, 3])
    X = size[:, None] ** growth * np.exp(0.1 * random.normal(size=(300, 7)))
    return scaled(X, np.round(3 + 9 * size + random.gamma(2.0, 1.0, 300)))


SETS = {
    "letters": letters,
    "digits": digits,
    "wine": lambda: scaled(*load_wine(return_X_y=True)),
    "iris": lambda: load_iris(return_X_y=True),
    "a9a": census,
}


def solved(machine, X, y):
    """Fit without warnings: of scikit-learn's limit of steps, and of rounding here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return machine.fit(X, y)


def entries(machine, X):
    X = X.toarray() if hasattr(X, "toarray") else X
    return X @ X.T if machine.kernel == "linear" else rbf_kernel(X, gamma=machine._gamma)


def dense(coef):
    return coef.toarray() if hasattr(coef, "toarray") else coef


def pairs(machine, X, y, box):
    """Of every pair of classes P, D, the offset, and whether no alpha is within its box."""
    K, n, classes = entries(machine, X), len(y), machine.classes_
    coef = np.zeros((len(classes) - 1, n))
    coef[:, machine.support_] = dense(machine.dual_coef_)
    found = []
    for p, (i, j) in enumerate(combinations(range(len(classes)), 2)):
        own = np.flatnonzero(np.isin(y, classes[[i, j]]))
        sign = np.where(y[own] == classes[i], 1.0, -1.0)
        part, b = np.where(sign > 0, coef[j - 1, own], coef[i, own]), machine.intercept_[p]
        if len(classes) == 2:
            part, b = -part, -b
        scores, alpha, C = K[np.ix_(own, own)] @ part, sign * part, box[own]
        square = 0.5 * float(part @ scores)
        primal = square + float(C @ np.maximum(0.0, 1.0 - sign * (scores + b)))
        bound = np.all((alpha < 1e-9 * C) | (alpha > (1 - 1e-9) * C))
        found.append((primal, float(alpha.sum()) - square, b, bool(bound)))
    return found


def compared(ours, theirs):
    """Whether all that follows from the optimum can be compared, having compared P and D."""
    alike = True
    for (P, D, b, still), (their_P, their_D, their_b, _) in zip(ours, theirs, strict=True):
        gap = (their_P - their_D) / their_P
        assert P - D <= (TOL + 1e-9) * P and D >= their_D - SAME * P
        if gap > PRECISE:
            alike = False
            continue
        assert abs(D - their_D) <= SAME * P
        if still and abs(b - their_b) > 1e-3:
            assert P <= their_P * (1 + 1e-9)  # any offset of an interval is the best
            alike = False
        elif not still:
            assert b == pytest.approx(their_b, abs=1e-3)
    return alike


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, "balanced"])
@pytest.mark.parametrize(
    ("name", "kernel", "C"),
    [
        *((name, "rbf", C) for name in SETS for C in CS),
        *((name, "linear", C) for name in ("wine", "iris") for C in CS),
        # At C = 1e4 pairs take a million steps and more.
        *(("a9a", "linear", C) for C in CS[:-1]),
    ],
)
def test_classifiers_are_those_of_scikit_learn(name, kernel, weights, C):
    X, y = SETS[name]()
    how = {"C": C, "kernel": kernel, "class_weight": weights, "decision_function_shape": "ovo"}
    theirs = solved(svm.SVC(tol=TOL, max_iter=10**6, **how), X, y)
    ours = solved(bigscreen.SVC(tol=TOL, **how), X, y)
    totals = dict(zip(*np.unique(y, return_counts=True), strict=True))
    box = np.full(len(y), C)
    if weights is not None:
        box = C * np.array([len(y) / (len(totals) * totals[label]) for label in y])
    if not compared(pairs(ours, X, y, box), pairs(theirs, X, y, box)):
        return
    mine, others = ours.decision_function(X), theirs.decision_function(X)
    np.testing.assert_allclose(mine, others, rtol=0, atol=2e-3)
    clear = np.abs(others.reshape(len(y), -1)).min(axis=1) > 2e-3
    np.testing.assert_array_equal(ours.predict(X)[clear], theirs.predict(X)[clear])
    if name == "a9a":
        return  # equal rows share their coefficients as they like
    one, other = (
        dict(zip(m.support_, np.abs(dense(m.dual_coef_)).max(axis=0), strict=True))
        for m in (ours, theirs)
    )
    apart = one.keys() ^ other.keys()
    assert all(max(one.get(i, 0), other.get(i, 0)) < 1e-4 * box[i] for i in apart)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "C"), [*(("rbf", C) for C in CS), *(("linear", C) for C in CS[:-1])]
)
def test_regressions_are_those_of_scikit_learn(kernel, C):
    X, y = shellfish()
    theirs = solved(svm.SVR(kernel=kernel, C=C, tol=TOL, max_iter=10**6), X, y)
    ours = solved(bigscreen.SVR(kernel=kernel, C=C, tol=TOL), X, y)
    found = []
    for machine in (ours, theirs):
        K, beta = entries(machine, X), np.zeros(len(y))
        beta[machine.support_] = machine.dual_coef_[0]
        scores = K @ beta
        over = np.maximum(0.0, np.abs(y - scores - machine.intercept_) - machine.epsilon)
        square = 0.5 * float(beta @ scores)
        loss = machine.epsilon * np.abs(beta).sum()
        found.append((square + C * over.sum(), float(beta @ y) - loss - square))
    (P, D), (their_P, their_D) = found
    assert P - D <= (TOL + 1e-9) * P and D >= their_D - SAME * P
    if their_P - their_D <= PRECISE * their_P:
        assert abs(D - their_D) <= SAME * P
        np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=0, atol=2e-3)


def test_large_polynomial_entries_are_those_of_scikit_learn():
    """Dense rows are sparse rows, and the matrix solved is the one that is given.

    Entries here reach 3e5. LIBSVM keeps them in float32 and solves that matrix: its D is lower by
    4e-5 of P, and its coefficients sum up to less. Given the rounded matrix, so does ours.
    """
    X, y = load_iris(return_X_y=True)
    X, y = X[y > 0], y[y > 0]
    sign, K = np.where(y == 2, 1.0, -1.0), (X @ X.T) ** 3

    def dual(machine):
        beta = np.zeros(len(y))
        beta[machine.support_] = dense(machine.dual_coef_)[0]
        return float(sign @ beta - 0.5 * beta @ K @ beta)

    how = {"kernel": "poly", "gamma": 1.0, "tol": TOL}
    ours, thin = (dual(solved(bigscreen.SVC(**how), rows, y)) for rows in (X, csr_array(X)))
    theirs = dual(svm.SVC(**how).fit(X, y))
    assert thin == pytest.approx(ours, rel=1e-9)
    assert ours - theirs > 1e-5 * ours
    rounded = bigscreen.SVC(kernel="precomputed", tol=TOL)
    assert dual(rounded.fit(K.astype(np.float32), y)) == pytest.approx(theirs, rel=SAME)


@pytest.mark.slow
def test_scikit_learns_tools_give_the_same_results():
    """Cloned, with parameters set, in a pipeline, in a search by two processes: its own results."""
    X, y = SETS["wine"]()
    grid = {"svc__C": [0.1, 1.0, 10.0], "svc__gamma": [0.01, 0.1]}
    found = []
    for kind in (bigscreen.SVC, svm.SVC):
        search = GridSearchCV(make_pipeline(StandardScaler(), kind()), grid, cv=3, n_jobs=2)
        found.append(clone(search).fit(X, y))
    ours, theirs = found
    assert ours.best_params_ == theirs.best_params_
    np.testing.assert_allclose(
        ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"], atol=1e-12
    )
    assert ours.best_estimator_.set_params(svc__C=2.0).fit(X, y).score(X, y) > 0.95
