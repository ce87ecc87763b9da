"""Kernels that are not positive semidefinite: a stationary point, and nothing proved."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from cli_world import World, bigscreen, succeed, world
from sklearn import svm

from bigscreen import (
    SVC,
    SVR,
    NuSVC,
    NystroemSVC,
    OneClassSVM,
    SVCPathCV,
    Tuning,
    nu_path,
    svm_path,
)
from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.kernels.definite import check_definite
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.model.model import Model
from bigscreen.problems.recipes import CSvc, NuSvc, OneClass, Svr
from bigscreen.problems.violation import violation

__all__ = ["world"]  # a fixture

KERNELS = {
    "sigmoid": {"kernel": "sigmoid", "gamma": 1.0, "coef0": 0.5},
    "poly": {"kernel": "poly", "gamma": 1.0, "degree": 2, "coef0": -2.0},
}


def rows(n=150, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype(np.float32).astype(np.float64)
    return X, (X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=n) > 0).astype(int)


def entries(kernel, A, B):
    known = KERNELS[kernel]
    base = known["gamma"] * A @ B.T + known["coef0"]
    return np.tanh(base) if kernel == "sigmoid" else base ** known["degree"]


def sigmoid(A, B):
    return np.tanh(A @ B.T + 0.5)


def violated(K, alpha, G, t, low, high):
    """LIBSVM's m - M, written down once more: a loop over rows."""
    up, down = -np.inf, np.inf
    for i in range(len(K)):
        if (t[i] > 0 and alpha[i] < high[i]) or (t[i] < 0 and alpha[i] > low[i]):
            up = max(up, G[i] / t[i])
        if (t[i] > 0 and alpha[i] > low[i]) or (t[i] < 0 and alpha[i] < high[i]):
            down = min(down, G[i] / t[i])
    return up - down


@pytest.mark.parametrize("solver", ["pairs", "block"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_stationary_point_as_libsvm_finds_one(kernel, solver):
    X, y = rows()
    C, K = 5.0, entries(kernel, X, X)
    machine = SVC(C=C, solver=solver, tol=1e-3, **KERNELS[kernel]).fit(X, y)
    theirs = svm.SVC(C=C, tol=1e-3, **KERNELS[kernel]).fit(X, y)
    values = []
    for found in (machine, theirs):
        coef = np.zeros(len(y))
        coef[found.support_] = found.dual_coef_[0]
        sign = 2.0 * y - 1
        alpha = sign * coef
        values.append(alpha.sum() - 0.5 * coef @ K @ coef)
        gradient = 1 - sign * (K @ coef)
        left = violated(K, alpha, gradient, sign, np.zeros(len(y)), np.full(len(y), C))
        assert left <= 2e-3
    (record,) = machine.certificate_
    assert record["dual"] == pytest.approx(values[0], rel=1e-5)
    assert values[0] >= 0.7 * values[1]  # another point, but no worse a kind of one
    assert np.isnan(machine.dual_gap_) and np.isnan(machine.relative_gap_)
    assert record["gap"] is record["relative_gap"] is record["primal"] is None
    assert record["proved"] is record["psd"] is False and record["violation"] <= 1e-3
    assert record["rounding_bound"] < 1e-3


@pytest.mark.parametrize("solver", ["pairs", "block"])
@pytest.mark.parametrize("machine", [NuSVC(nu=0.3), SVR(C=3.0), OneClassSVM(nu=0.4)])
def test_every_estimator_ends_where_nothing_violates(machine, solver):
    X, y = rows(120)
    machine.set_params(solver=solver, **KERNELS["sigmoid"])
    machine.fit(X, X[:, 2] if isinstance(machine, SVR) else y)
    (record,) = machine.certificate_
    assert record["violation"] <= machine.tol and not record["proved"]
    assert np.isnan(machine.relative_gap_)


def test_the_violation_is_that_of_every_kind_of_problem():
    rng = np.random.default_rng(3)
    K = rng.normal(size=(40, 40))
    K = K + K.T
    codes, weights = rng.integers(0, 2, 40), rng.uniform(0.5, 2.0, 40)
    for problem, y in (
        (CSvc(2.0, 1, (), "true"), codes),
        (NuSvc(0.3, 1, float(weights.sum()), (), "none"), codes),
        (OneClass(0.3, float(weights.sum())), codes),
        (Svr(2.0, 0.0, "true"), rng.normal(size=40)),
    ):
        dual = problem.dual(y, weights)
        alpha = dual.lo + (dual.hi - dual.lo) * rng.choice([0.0, 0.3, 1.0], 40)
        scores = K @ (dual.sign * alpha)
        own = violated(K, alpha, dual.gradient(scores), dual.coupling, dual.lo, dual.hi)
        scale = 1 / np.max(dual.hi) if np.any(dual.total) else 1.0
        assert violation(dual, alpha, scores) == pytest.approx(scale * own, rel=1e-12)


def test_rules_that_rest_on_a_gap_are_refused():
    X, y = rows(80)
    for rule in ("gap", "f-safe", "adaptive"):
        with pytest.raises(InputError, match=f"screening {rule} rests on the gap"):
            SVC(kernel="sigmoid", screening=rule).fit(X, y)
        refused = pytest.raises(InputError, match=f"screening {rule} rests on the gap")
        with pytest.warns(UserWarning, match="not positive semidefinite"), refused:
            SVC(kernel="precomputed", screening=rule).fit(sigmoid(X, X), y)
    machine = SVC(screening="joachims", **KERNELS["sigmoid"]).fit(X, y)
    assert machine.certificate_[0]["violation"] <= 1e-3


@pytest.mark.parametrize("start", ["divide", "nystrom"])
def test_any_start_ends_where_nothing_violates(start):
    X, y = rows(300)
    tuning = Tuning(start=start, parts=3 if start == "divide" else None)
    machine = SVC(tuning=tuning, **KERNELS["sigmoid"])
    (record,) = machine.fit(X, y).certificate_
    assert record["violation"] <= 1e-3 and record["gap"] is None


def test_nystrom_features_are_vectors_whatever_the_kernel():
    X, y = rows()
    machine = NystroemSVC(n_components=30, screening="gap", **KERNELS["sigmoid"]).fit(X, y)
    assert machine.certificate_[0]["proved"] and 0 <= machine.relative_gap_ <= 1e-3


@pytest.mark.parametrize(
    ("kernel", "of"), [("precomputed", sigmoid), (sigmoid, lambda A, B: A)], ids=["matrix", "call"]
)
def test_a_kernel_that_rows_prove_indefinite(kernel, of, tmp_path):
    X, y = rows()
    with pytest.warns(UserWarning, match="nothing is proved"):
        machine = SVC(kernel=kernel).fit(of(X, X), y)
    assert np.isnan(machine.relative_gap_) and machine.certificate_[0]["violation"] <= 1e-3
    assert "not positive semidefinite" in machine.model_.provenance["kernel_known"]
    if kernel == "precomputed":
        machine.model_.save(tmp_path / "m.bsm")
        again = Model.load(tmp_path / "m.bsm")
        assert again.provenance["certificates"][0]["violation"] <= 1e-3


def test_rounding_proves_nothing_against_a_matrix():
    X, y = rows(400)
    square = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    for gamma in (0.01, 0.5):
        K = np.exp(-gamma * square.astype(np.float32)).astype(np.float32)
        machine = SVC(kernel="precomputed").fit(K, y)
        assert machine.certificate_[0]["proved"] and machine.relative_gap_ <= 1e-3
        assert "tested" in machine.model_.provenance["kernel_known"]
    low = (X @ X.T).astype(np.float32)  # rank 4 of 400
    assert SVC(kernel="precomputed").fit(low, y).certificate_[0]["proved"]
    assert "tested" in SVC(kernel=lambda A, B: A @ B.T).fit(X, y).model_.provenance["kernel_known"]


def test_many_rows_are_trusted_once_a_sample_is_fine():
    X = np.random.default_rng(1).normal(size=(2200, 3)).astype(np.float32)
    data = MemoryDataset((X @ X.T).astype(np.float32), None, [])
    found = check_definite(Precomputed(), data)
    assert found.psd and found.known.startswith("trusted")
    own = check_definite(Custom(lambda A, B: A @ B.T), MemoryDataset(X, None, []))
    assert own.psd and own.known.startswith("trusted")
    bad = check_definite(Precomputed(), MemoryDataset(-(X @ X.T), None, []))
    assert not bad.psd and "on the diagonal" in bad.known


def test_a_matrix_that_is_not_symmetric():
    X, y = rows(60)
    K = X @ X.T
    K[3, 7] += 1.0
    with pytest.raises(InputError, match="not symmetric: the entry of rows 3 and 7"):
        SVC(kernel="precomputed").fit(K, y)


def test_paths_end_where_nothing_violates():
    X, y = rows(100)
    grid = [0.1, 1.0, 10.0]
    path = svm_path(X, y, grid, kernel="sigmoid", gamma=1.0, coef0=0.5, folds=2)
    assert path.missed is None and path.record["rules"] == []
    for part in path.walks:
        assert part["primal"] is part["gap"] is part["relative_gap"] is None
        assert part["violation"] <= 1e-3
    assert path.model(1).provenance["certificates"][0]["proved"] is False
    with pytest.raises(InputError, match="rule dvi rests on gaps"):
        svm_path(X, y, grid, kernel="sigmoid", rules=("dvi",))
    with pytest.raises(InputError, match="rule gap rests on gaps"):
        svm_path(sigmoid(X, X), y, grid, kernel="precomputed", rules=("gap",))
    given = svm_path(sigmoid(X, X), y, grid, kernel="precomputed")
    assert all(part["violation"] <= 1e-3 for part in given.points)
    nus = nu_path(X, y, [0.1, 0.3], kernel="sigmoid", gamma=1.0, coef0=0.5)
    assert all(part["violation"] <= 1e-3 and part["gap"] is None for part in nus.points)
    # Whose features are vectors: screened as ever.
    nystrom = svm_path(X, y, grid, kernel="sigmoid", gamma=1.0, n_components=20)
    assert nystrom.record["rules"] == ["dvi", "gap"] and nystrom.missed is None
    chosen = SVCPathCV(grid, cv=2, kernel="sigmoid", gamma=1.0).fit(X, y)
    assert np.isnan(chosen.relative_gap_) and chosen.certificate_[0]["violation"] <= 1e-3


def test_paths_that_keep_columns():
    X, y = rows(320)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        memory = (400 << 20) + 400 * 320 + 810_000  # too little for the matrix, 8 n^2
        path = svm_path(X, y, [0.1, 1.0], kernel="sigmoid", gamma=1.0, memory=memory)
    assert path.record["provenance"]["solver"] == "block"
    assert all(part["violation"] <= 1e-3 and part["gap"] is None for part in path.points)


def test_the_command_line(world: World, tmp_path: Path) -> None:
    how = ["--exact", "--kernel", "sigmoid", "--gamma", "1", "--threads", "1"]
    model, record = tmp_path / "m.bsm", tmp_path / "fit.json"
    shown = bigscreen("fit", world.store, model, *how, "--json", record)
    assert shown.exit_code == 0 and "nothing: a stationary point" in shown.output
    assert "KKT violation" in shown.output and "relative gap" not in shown.output
    known = json.loads(record.read_text())
    assert known["proved"] is False and known["gap"] is known["relative_gap"] is None
    assert 0 <= known["violation"] <= 1e-3 == known["tol"]
    assert "nothing: a stationary point" in succeed("info", model)
    assert "the KKT violation" in succeed("plan", world.store, *how)
    assert "accuracy" in succeed("evaluate", model, world.store)
    refused = bigscreen("fit", world.store, tmp_path / "n.bsm", *how, "--screening", "gap")
    assert refused.exit_code == 2 and "screening gap rests on the gap" in refused.output
    path = tmp_path / "p.bsp"
    shown = succeed("path", world.store, path, *how, "--C", "1,10")
    assert "violation" in shown and "gap / P" not in shown and "points are stationary" in shown
    assert "largest KKT violation" in succeed("info", path)
    succeed("pick", path, tmp_path / "q.bsm", "--C", "10")
    refused = bigscreen("path", world.store, tmp_path / "r.bsp", *how, "--rules", "gap")
    assert refused.exit_code == 2 and "rule gap rests on gaps" in refused.output


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [0, 2, 11])
@pytest.mark.parametrize("solver", ["pairs", "block"])
def test_any_symmetric_matrix_ends_where_nothing_violates(seed, solver):
    """No free row may be left, and C K far beyond float32: nothing of the kind stops a solver."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(20, 140))
    A, target = rng.normal(size=(n, n)), rng.normal(size=n)
    K = 0.5 * (A + A.T) - (3.0 * np.eye(n) if seed == 0 else 0.0)
    y = rng.integers(0, 2, n)
    y[:2] = [0, 1]
    for C in (0.1, 1e4):
        for intercept in (False, "penalized", True):
            how = {"kernel": "precomputed", "solver": solver, "C": C, "fit_intercept": intercept}
            for machine, outcome in ((SVC(**how), y), (SVR(**how), target)):
                (record,) = machine.fit(K, outcome).certificate_
                assert record["violation"] <= 1e-3 + record["rounding_bound"], how
