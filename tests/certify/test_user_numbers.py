"""A certificate speaks of the numbers that were given, wherever float32 has no room for them."""

import warnings
from dataclasses import fields
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from bigscreen import SVC, LinearSVC, NystroemSVC, svm_path
from bigscreen.data.memory import MemoryDataset
from bigscreen.fleet.inline import Inline
from bigscreen.intake.ingest import ingest
from bigscreen.kernels.standard import Polynomial, Rbf
from bigscreen.options.train import TrainOptions
from bigscreen.solvers.block.shard import BlockProgram
from bigscreen.train.run import train

N, D, C = 300, 5, 1.0
rng = np.random.default_rng(5)
PLAIN = rng.normal(size=(N, D))
NEW = rng.normal(size=(50, D))
Y = (PLAIN[:, 0] + 0.5 * PLAIN[:, 1] ** 2 + 0.5 * rng.normal(size=N) > 0.3).astype(int)
SIGN = 2.0 * Y - 1.0


def income(X):
    """A column of incomes next to columns of flags."""
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


KERNELS_AND_ROWS = [
    (kernel, rows)
    for kernel in ("rbf", "laplacian", "poly")
    for rows in ROWS
    # (Entries of 1e30, of which no solver makes a margin.)
    if (kernel, rows) != ("poly", "offset")
]


@pytest.mark.parametrize(("kernel", "rows"), KERNELS_AND_ROWS)
def test_exact_machines_are_certified_on_the_rows_that_were_given(kernel, rows):
    X, new = ROWS[rows](PLAIN), ROWS[rows](NEW)
    gamma = 1 / (D * np.var(X)) if kernel != "laplacian" else 1 / (D * np.std(X))
    machine = SVC(kernel=kernel, gamma=gamma, coef0=1.0, C=C, tol=1e-4)
    scores = agrees(quiet(machine, X), X)
    np.testing.assert_array_equal(machine.support_vectors_, X[machine.support_])
    assert machine.model_.kernel.gamma == gamma
    size = np.abs(scores).max()
    np.testing.assert_allclose(machine.decision_function(X), scores, atol=2e-4 * size)
    K = entries(machine.model_.kernel, new, X[machine.support_])
    expected = K @ machine.dual_coef_[0] + machine.intercept_[0]
    np.testing.assert_allclose(machine.decision_function(new), expected, atol=2e-4 * size)


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


def test_coefficients_of_far_rows_add_up_to_nothing():
    """What they were off by would count with the square of how far the rows are."""
    X, weights = PLAIN + 1e5, 10.0 ** np.linspace(0, 4, len(PLAIN))
    machine = SVC(kernel="linear", C=C, tol=1e-4).fit(X, SIGN, sample_weight=weights)
    signed = machine.dual_coef_[0]
    assert sum(map(Fraction, signed.tolist())) == 0 and np.abs(signed).max() > 1e3
    w = signed @ (X[machine.support_] - X[0])
    proved, D = machine.certificate_[0], np.abs(signed).sum() - 0.5 * w @ w
    assert abs(proved["dual"] - D) <= proved["dual_rounding"] + 1e-9 * abs(D)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_array])
def test_one_huge_column_does_not_blur_the_others_in_scores(dtype, layout):
    """Products of 1e18 have no digits left for distances of 1: they are summed as differences."""
    X = PLAIN.copy()
    X[:, 0] = 1e9 * np.round(3 * X[:, 0])  # rows that agree there are near, all others far
    X = layout(X.astype(dtype))
    machine = quiet(SVC(C=C, gamma=0.3), X)
    rows = X if isinstance(X, np.ndarray) else X.toarray()
    apart = rows.astype(np.float64)[:, None] - rows[machine.support_]
    K = np.exp(-0.3 * np.einsum("ijk,ijk->ij", apart, apart))
    signed = machine.dual_coef_ if isinstance(X, np.ndarray) else machine.dual_coef_.toarray()
    expected = K @ signed[0] + machine.intercept_[0]
    np.testing.assert_allclose(machine.decision_function(X), expected, atol=1e-3 * C)


def test_sparse_rows_keep_their_numbers():
    X = one_large(PLAIN) * (np.abs(PLAIN) > 0.5)
    machine = quiet(SVC(kernel="poly", gamma=1e-12, coef0=1.0, C=C), sparse.csr_array(X))
    agrees(machine, X, tol=1e-3)
    tiny = sparse.csr_array(X * 1e-25)
    machine = quiet(SVC(kernel="rbf", gamma=1e38, C=C), tiny)
    agrees(machine, tiny.toarray(), tol=1e-3)


@pytest.mark.parametrize("kind", [np.int64, np.float64, np.uint32])
def test_sparse_rows_are_scored_as_the_same_dense_ones_are(kind):
    X = (1e8 + np.random.default_rng(0).integers(0, 100, (N, D))).astype(kind)
    machine = quiet(SVC(gamma=1e-3, C=C), X.astype(float))
    assert machine.model_.landmarks.dtype == np.float64
    expected = machine.decision_function(X.astype(float))
    np.testing.assert_array_equal(machine.decision_function(sparse.csr_array(X)), expected)
    np.testing.assert_array_equal(machine.decision_function(X), expected)


def test_rows_that_float32_holds_are_solved_as_float32():
    X = PLAIN.astype(np.float32)
    narrow, wide = (quiet(SVC(C=C, gamma=0.2), rows) for rows in (X, X.astype(np.float64)))
    assert narrow.support_vectors_.dtype == wide.support_vectors_.dtype == np.float32
    np.testing.assert_array_equal(narrow.dual_coef_, wide.dual_coef_)
    assert narrow.certificate_[0]["primal"] == wide.certificate_[0]["primal"]


def test_a_model_in_a_file_keeps_float64_rows(tmp_path):
    from bigscreen.model.model import Model

    machine = quiet(SVC(C=C, gamma=0.2), PLAIN + 1e5)
    machine.model_.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    np.testing.assert_array_equal(again.scores(NEW + 1e5), machine.model_.scores(NEW + 1e5))


def test_values_whose_squares_overflow_are_refused_with_their_column():
    X = PLAIN.copy()
    X[3, 2] = 1e200
    with pytest.raises(ValueError, match="feature 2.*too large for 64-bit"):
        SVC().fit(X, Y)


@pytest.mark.slow
@pytest.mark.parametrize("landmarks", [0, 40])
def test_a_store_of_far_columns_keeps_float64(tmp_path, landmarks):
    X = PLAIN + np.array([1e5, 0, 0, 0, 0])
    table = np.column_stack([X, Y])
    np.savetxt(tmp_path / "rows.csv", table, delimiter=",", fmt="%.17g")
    made = ingest([tmp_path / "rows.csv"], tmp_path / "rows", label=5, header=False)
    data = made.store
    assert data.X(0, 5).dtype == np.float64 and any("float64" in note for note in made.notes)
    np.testing.assert_allclose(data.X(0, N), X[data.row_ids(0, N)], rtol=4e-16)
    data.verify()
    if landmarks:
        machine = NystroemSVC(n_components=landmarks, gamma=0.2, random_state=0)
    else:
        machine = SVC(gamma=0.2, C=C)
    machine.fit(str(tmp_path / "rows"))
    proved = machine.certificate_[0]
    Z, coef = machine.model_.landmarks, machine.model_.coef[0]
    K = entries(machine.model_.kernel, X, Z)
    inner = coef @ entries(machine.model_.kernel, Z, Z) @ coef
    offset = machine.model_.intercept[0]
    penalised = offset**2 if landmarks and machine.fit_intercept == "penalized" else 0.0
    P = 0.5 * (inner + penalised) + C * np.maximum(0, 1 - SIGN * (K @ coef + offset)).sum()
    assert abs(proved["primal"] - P) <= proved["primal_rounding"] + 1e-9 * P


def test_a_store_of_near_columns_is_float32(tmp_path):
    np.savetxt(tmp_path / "rows.csv", np.column_stack([PLAIN + 3, Y]), delimiter=",")
    made = ingest([tmp_path / "rows.csv"], tmp_path / "rows", label=5, header=False)
    assert made.store.X(0, 5).dtype == np.float32 and not made.notes


@pytest.mark.parametrize(("kernel", "rows"), KERNELS_AND_ROWS)
def test_landmark_machines_are_certified_on_the_rows_that_were_given(kernel, rows):
    X = ROWS[rows](PLAIN)
    gamma = 1 / (D * np.var(X)) if kernel != "laplacian" else 1 / (D * np.std(X))
    given = {"kernel": kernel, "gamma": gamma, "coef0": 1.0, "C": C, "fit_intercept": False}
    machine = quiet(NystroemSVC(n_components=40, random_state=0, **given), X)
    proved, model = machine.certificate_[0], machine.model_
    scores = entries(model.kernel, X, model.landmarks) @ model.coef[0]
    inner = model.coef[0] @ entries(model.kernel, model.landmarks, model.landmarks) @ model.coef[0]
    P = 0.5 * inner + C * np.maximum(0, 1 - SIGN * scores).sum()
    assert abs(proved["primal"] - P) <= proved["primal_rounding"] + 1e-8 * P
    assert proved["primal_rounding"] + proved["dual_rounding"] <= 0.5 * proved["gap"]


@pytest.mark.parametrize("rows", ["offset", "tiny", "one-large", "income"])
def test_linear_machines_are_certified_on_the_rows_that_were_given(rows):
    X = ROWS[rows](PLAIN)
    machine = quiet(LinearSVC(C=C, loss="hinge", fit_intercept=False), X)
    proved, w = machine.certificate_[0], machine.coef_.ravel()
    P = 0.5 * w @ w + C * np.maximum(0, 1 - SIGN * (X @ w)).sum()
    assert abs(proved["primal"] - P) <= proved["primal_rounding"] + 1e-12 * P
    np.testing.assert_allclose(machine.decision_function(X), X @ w, rtol=1e-9, atol=1e-12)


def test_wrong_scores_of_a_solver_do_not_change_the_certificate():
    """40 rows of 4,000 start a solve with scores that are off: P is that of the machine."""
    rows = np.random.default_rng(1).normal(size=(4000, 3))
    y = (rows[:, 0] + rows[:, 1] ** 2 > 1).astype(int)

    class Wrong(BlockProgram):
        def open(self, shard):
            state = super().open(shard)
            state.scores[:5] += 30.0 * (1 - 2 * y[state.start : state.start + 5])
            return state

    class Misled(Inline):
        def start(self, program, n_shards):
            super().start(
                Wrong(**{own.name: getattr(program, own.name) for own in fields(program)}), n_shards
            )

    options = TrainOptions(
        exact=True, gamma=0.5, C=C, solver="block", tol=1e-2, max_iter=20, screening="none",
        intercept="true",
    )  # fmt: skip
    with Misled(1) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = train(MemoryDataset(rows, y, [0, 1]), options, fleet)
    signed = model.coef[0]
    scores = entries(model.kernel, rows, rows[model.support]) @ signed
    P = 0.5 * signed @ scores[model.support]
    P += C * np.maximum(0, 1 - (2 * y - 1) * (scores + model.intercept[0])).sum()
    proved = model.provenance["certificates"][0]
    assert abs(proved["primal"] - P) <= proved["primal_rounding"] + 1e-9 * P


@pytest.mark.parametrize("components", [None, 30])
def test_the_unit_of_the_rows_does_not_change_a_path(components):
    given = {"kernel": "rbf", "tol": 1e-5, "n_components": components, "random_state": 0}
    near = svm_path(PLAIN, Y, Cs=[0.1, 1.0], gamma=0.2, **given)
    tiny = svm_path(PLAIN * 1e-19, Y, Cs=[0.1, 1.0], gamma=0.2e38, **given)
    for one, other in zip(near.record["points"], tiny.record["points"], strict=True):
        assert other[0]["primal"] == pytest.approx(one[0]["primal"], rel=2e-5)
    rows = NEW[:5]
    np.testing.assert_allclose(
        tiny.model(1).scores(rows * 1e-19), near.model(1).scores(rows), atol=1e-2
    )
