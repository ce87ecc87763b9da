"""The cases of scikit-learn_bench: proofs that share nothing with the package, and the race."""

import numpy as np
import pytest
from scripts import script
from sklearn import svm
from sklearn.datasets import load_iris

import bigscreen
from pipelines.bench import sklearn_bench

RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 3)).astype(np.float32)
LABELS = (X[:, 0] + 0.5 * RNG.normal(size=150) > 0).astype(int)
TARGETS = X[:, 0] ** 2 + 0.2 * RNG.normal(size=150)


@pytest.mark.parametrize(
    ("name", "how", "y"),
    [
        ("SVC", {"C": 2.0}, LABELS),
        ("SVC", {"C": 2.0, "kernel": "poly"}, load_iris().target),
        ("SVR", {"C": 0.3}, TARGETS),
        ("NuSVC", {"nu": 0.3}, LABELS),
        ("NuSVR", {"nu": 0.4, "C": 0.3, "kernel": "linear"}, TARGETS),
    ],
)
def test_proofs_are_those_of_the_certificate_and_hold_libsvms_machine(name, how, y):
    rows = X if len(np.unique(y)) != 3 else load_iris().data.astype(np.float32)
    peer = getattr(svm, name)(**how).fit(rows, y)
    gamma = {} if how.get("kernel") == "linear" else {"gamma": float(peer._gamma)}
    own = getattr(bigscreen, name)(**how, **gamma, tol=1e-6).fit(rows, y)
    P, D, gap = sklearn_bench.proof(own, rows, y)
    parts = own.certificate_
    np.testing.assert_allclose(P, sum(part["primal"] for part in parts), rtol=2e-6)
    np.testing.assert_allclose(D, sum(part["dual"] for part in parts), rtol=2e-6)
    assert gap < 3e-6
    theirs = sklearn_bench.proof(peer, rows, y)
    room = 1e-6 * abs(P)
    assert D - room <= theirs[0] and theirs[1] <= P + room
    assert gap < theirs[2] < 0.05


def test_ours_reaches_libsvms_gap():
    case = sklearn_bench.Case("SVC", {"kernel": "rbf", "C": 10.0}, lambda: (X, LABELS), 150)
    found = sklearn_bench.race(case, X, LABELS, 20, 2)
    assert found["stopped"] and found["ours"]["gap"] <= found["tol"] < found["libsvm"]["gap"]
    found = sklearn_bench.race(case, X, LABELS, -1, 1)
    assert not found["stopped"] and found["ours"]["gap"] <= found["tol"] < 0.01
    assert sklearn_bench.line("one", found)[0] == "one"


@pytest.mark.slow
def test_a_made_case_runs(tmp_path):
    args = "--only", "SVR made linear", "--quick", "--steps", -1, "--out", tmp_path
    done = script("bench.sklearn_bench", *args)
    assert "SVR made linear" in done.stdout and (tmp_path / "sklearn_bench.json").exists()
