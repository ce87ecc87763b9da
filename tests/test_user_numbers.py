"""A certificate speaks of the numbers that were given, wherever float32 has no room for them."""

import warnings

import numpy as np
import pytest
from scipy import sparse

from bigscreen import SVC
from bigscreen.kernels import Polynomial, Rbf

N, D, C = 300, 5, 1.0
rng = np.random.default_rng(5)
PLAIN = rng.normal(size=(N, D))
NEW = rng.normal(size=(50, D))
Y = (PLAIN[:, 0] + 0.5 * PLAIN[:, 1] ** 2 + 0.5 * rng.normal(size=N) > 0.3).astype(int)
SIGN = 2.0 * Y - 1.0


def income(X):
    """A column of incomes beside flags."""
    return np.column_stack([50_000 + 20_000 * X[:, 0], X[:, 1:] > 0])


def one_large(X):
    return X * np.array([1, 1, 1e6, 1, 1])


ROWS = {
    "offset": lambda X: X + 1e5,
    "tiny": lambda X: X * 1e-19,
    "huge": lambda X: X * 1e20,
    "one-large": one_large,
    "income": income,
}


def entries(kernel, A, B):
    """Kernel entries in extended precision."""
    A, B = (np.asarray(rows, np.longdouble) for rows in (A, B))
    if isinstance(kernel, Rbf):
        middle = B.mean(axis=0)
        A, B = A - middle, B - middle
        squares = (A * A).sum(axis=1)[:, None] + (B * B).sum(axis=1) - 2 * A @ B.T
        return np.exp(-kernel.gamma * np.maximum(squares, 0)).astype(float)
    if isinstance(kernel, Polynomial):
        return ((kernel.gamma * (A @ B.T) + kernel.coef0) ** kernel.degree).astype(float)
    if kernel.name == "laplacian":
        apart = sum(abs(A[:, j][:, None] - B[:, j]) for j in range(A.shape[1]))
        return np.exp(-kernel.gamma * apart).astype(float)
    return (A @ B.T).astype(float)


def quiet(machine, X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return machine.fit(X, Y)


def agrees(machine, X, tol=1e-4):
    """The certificate is that of the published machine on these very numbers."""
    proved, signed = machine.certificate_[0], machine.dual_coef_[0]
    K = entries(machine.model_.kernel, X, X[machine.support_])
    scores = K @ signed
    square = signed @ scores[machine.support_]
    P = 0.5 * square + C * np.maximum(0, 1 - SIGN * (scores + machine.intercept_[0])).sum()
    D = np.abs(signed).sum() - 0.5 * square
    room = proved["rounding_bound"] + 1e-9 * abs(P)
    assert abs(proved["gap"] - (P - D)) <= room
    assert abs(proved["primal"] - P) <= max(room, 0.02 * proved["gap"])
    assert abs(proved["dual"] - D) <= max(room, 0.02 * proved["gap"])
    assert proved["gap"] <= tol * P
    return scores + machine.intercept_[0]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kernel", ["rbf", "laplacian", "poly"])
def test_exact_machines_are_certified_on_the_rows_that_were_given(kernel, rows):
    if (kernel, rows) == ("poly", "offset"):
        pytest.skip("entries of 1e30, of which no solver makes a margin")
    X, new = ROWS[rows](PLAIN), ROWS[rows](NEW)
    gamma = 1 / (D * np.var(X)) if kernel != "laplacian" else 1 / (D * np.std(X))
    machine = SVC(kernel=kernel, gamma=gamma, coef0=1.0, C=C, tol=1e-4)
    scores = agrees(quiet(machine, X), X)
    np.testing.assert_array_equal(machine.support_vectors_, X[machine.support_])
    assert machine.model_.kernel.gamma == gamma
    size = np.abs(scores).max()
    np.testing.assert_allclose(machine.decision_function(X), scores, atol=3e-5 * size)
    K = entries(machine.model_.kernel, new, X[machine.support_])
    expected = K @ machine.dual_coef_[0] + machine.intercept_[0]
    np.testing.assert_allclose(machine.decision_function(new), expected, atol=3e-5 * size)


def test_a_linear_machine_with_its_own_offset_does_not_see_where_rows_are():
    X = PLAIN + 1e5
    machine = quiet(SVC(kernel="linear", C=C, tol=1e-4), X)
    near = quiet(SVC(kernel="linear", C=C, tol=1e-4), PLAIN)
    assert machine.certificate_[0]["gap"] <= 1e-4 * machine.certificate_[0]["primal"]
    np.testing.assert_allclose(
        machine.certificate_[0]["primal"], near.certificate_[0]["primal"], rtol=1e-4
    )
    np.testing.assert_allclose(
        machine.decision_function(NEW + 1e5), near.decision_function(NEW), atol=0.05
    )


def test_sparse_rows_keep_their_numbers():
    X = one_large(PLAIN) * (np.abs(PLAIN) > 0.5)
    machine = quiet(SVC(kernel="poly", gamma=1e-12, coef0=1.0, C=C), sparse.csr_array(X))
    agrees(machine, X, tol=1e-3)
    tiny = sparse.csr_array(X * 1e-25)
    machine = quiet(SVC(kernel="rbf", gamma=1e38, C=C), tiny)
    agrees(machine, tiny.toarray(), tol=1e-3)


def test_rows_that_float32_holds_are_solved_as_float32():
    X = PLAIN.astype(np.float32)
    narrow, wide = (quiet(SVC(C=C, gamma=0.2), rows) for rows in (X, X.astype(np.float64)))
    assert narrow.support_vectors_.dtype == wide.support_vectors_.dtype == np.float32
    np.testing.assert_array_equal(narrow.dual_coef_, wide.dual_coef_)
    assert narrow.certificate_[0]["primal"] == wide.certificate_[0]["primal"]


def test_a_model_in_a_file_keeps_float64_rows(tmp_path):
    from bigscreen.store.model import Model

    machine = quiet(SVC(C=C, gamma=0.2), PLAIN + 1e5)
    machine.model_.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    np.testing.assert_array_equal(again.scores(NEW + 1e5), machine.model_.scores(NEW + 1e5))


def test_values_whose_squares_overflow_are_refused_with_their_column():
    X = PLAIN.copy()
    X[3, 2] = 1e200
    with pytest.raises(ValueError, match="feature 3.*too large for 64-bit"):
        SVC().fit(X, Y)
