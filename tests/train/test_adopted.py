"""Machines of LIBSVM's, certified over the rows they were fitted to."""

import json
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_iris
from sklearn.svm import SVC, SVR, OneClassSVM

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.export.libsvm import read_libsvm
from bigscreen.fleet.inline import Inline
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.train.adopted import adopt_machine
from bigscreen.train.run import train
from tests.support.cli_world import bigscreen, succeed
from tests.support.libsvm_files import as_libsvm

KINDS = {
    "two": (SVC(C=3.0), {"C": 3.0, "intercept": "true"}),
    "three": (SVC(C=3.0), {"C": 3.0, "intercept": "true", "strategy": "one"}),
    "svr": (SVR(epsilon=0.1), {"problem": "svr", "epsilon": 0.1, "intercept": "true"}),
    "one-class": (OneClassSVM(nu=0.2), {"problem": "one-class", "nu": 0.2}),
}


def world(kind, form=np.asarray):
    """A fitted machine of scikit-learn's, its rows, and the options that it was fitted with.

    Some rows are there more than once, and have more digits than a file keeps.
    """
    X, y = load_iris(return_X_y=True)
    X = X + np.random.default_rng(0).normal(0, 1e-3, X.shape)
    X, y = (X[50:], y[50:] - 1) if kind == "two" else (X, y)
    X, y = np.concatenate([X, X[:30]]), np.concatenate([y, y[:30]])
    X = X.astype(np.float32).astype(np.float64)
    y = X[:, 0] + np.sin(7 * np.arange(len(X))) if kind == "svr" else y
    peer, how = KINDS[kind]
    peer = peer.fit(X) if kind == "one-class" else peer.fit(X, y)
    labels = {"two": [0, 1], "three": [0, 1, 2]}.get(kind)
    data = MemoryDataset(form(X), None if kind == "one-class" else y, labels)
    return peer, data, TrainOptions(exact=True, gamma=float(peer._gamma), **how)


def file_of(peer, path, digits=8):
    """Its model file, with the digits that LIBSVM writes of a support vector's entries."""
    peer.support_vectors_.flat[:] = [float(f"{v:.{digits}g}") for v in peer.support_vectors_.flat]
    return read_libsvm(as_libsvm(peer, path))


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gap_of_libsvms_machine_is_proved(kind, form, tmp_path):
    peer, data, options = world(kind, form)
    read = file_of(peer, tmp_path / "m", 7)
    with Inline(1) as fleet, warnings.catch_warnings():
        warnings.simplefilter("error")
        found = adopt_machine(read, data, options, fleet)
        warnings.simplefilter("ignore")
        best = train(data, TrainOptions(**{**options.__dict__, "tol": 1e-9}), fleet)
    X = data.X(0, data.n_rows)
    spread = np.ptp(read.scores(X))
    np.testing.assert_allclose(found.scores(X), read.scores(X), atol=2e-3 * spread)
    assert found.ledger is not None and read.provenance["certificates"] is None
    for own, optimum in zip(
        found.provenance["certificates"], best.provenance["certificates"], strict=True
    ):
        room = own["rounding_bound"] + 1e-8 * abs(optimum["primal"])
        assert own["dual"] - room <= optimum["dual"] <= own["primal"] + room
        assert 0 < own["relative_gap"] < 2e-3 and own["certified_in"] == "float64"


def test_the_dual_objective_is_that_of_the_files_coefficients(tmp_path):
    peer, data, options = world("two")
    own = peer.dual_coef_[0].copy()
    x = peer.support_vectors_.copy()
    apart = ((x[:, None] - x[None]) ** 2).sum(2)
    value = np.abs(own).sum() - 0.5 * own @ np.exp(-peer._gamma * apart) @ own
    with Inline(1) as fleet:
        found = adopt_machine(file_of(peer, tmp_path / "m"), data, options, fleet)
    assert found.provenance["certificates"][0]["dual"] == pytest.approx(value, rel=1e-6)


def test_another_problem_than_the_files_is_refused_in_a_sentence(tmp_path):
    peer, data, options = world("two")
    read = file_of(peer, tmp_path / "m")
    X, y = data.X(0, data.n_rows), data.y(0, data.n_rows)
    cases = {
        "say what the machine was fitted with": (read, data, {"C": 1.0}),
        "is no row of": (read, MemoryDataset(X + 0.1, y, [0, 1]), {}),
        "with its label": (read, MemoryDataset(X, 1 - y, [0, 1]), {}),
        "must be the same": (read, MemoryDataset(X, y, [3, 4]), {}),
        "have 4 columns": (read, MemoryDataset(X[:, :2], y, [0, 1]), {}),
    }
    with Inline(1) as fleet:
        for words, (model, rows, more) in cases.items():
            with pytest.raises(InputError, match=words):
                adopt_machine(model, rows, TrainOptions(**{**options.__dict__, **more}), fleet)


def test_the_import_command_certifies_over_a_store(tmp_path):
    peer, data, _ = world("two")
    X, y = data.X(0, data.n_rows), data.y(0, data.n_rows)
    file_of(peer, tmp_path / "m.model")
    rows = "\n".join(
        f"{label},{','.join(map(repr, row))}" for label, row in zip(y, X.tolist(), strict=True)
    )
    (tmp_path / "t.csv").write_text(rows + "\n")
    how = ["--label", "0", "--no-header", "--scale", "none"]
    succeed("ingest", tmp_path / "t.csv", tmp_path / "s", *how)
    how = ["--certify", tmp_path / "s", "--C", "3", "--json", tmp_path / "j"]
    succeed("import", tmp_path / "m.model", tmp_path / "m.bsm", *how)
    assert 0 < json.loads((tmp_path / "j").read_text())["relative_gap"] < 1e-3
    told = succeed("info", tmp_path / "m.bsm")
    assert "m.model, of LIBSVM" in told and "0 checks" in told
    assert Model.load(tmp_path / "m.bsm").provenance["imported"] == "m.model"
    page = tmp_path / "m.html"
    succeed("report", tmp_path / "m.bsm", page)
    assert "imported from" in page.read_text()
    assert "open" in succeed("rows", tmp_path / "m.bsm")
    text = (tmp_path / "m.model").read_text().replace("_type rbf", "_type sigmoid\ncoef0 0")
    (tmp_path / "s.model").write_text(text)
    indefinite = succeed("import", tmp_path / "s.model", tmp_path / "s.bsm", *how[:4])
    assert "none: the kernel is not positive semidefinite" in indefinite
    alone = bigscreen("import", tmp_path / "m.model", tmp_path / "n.bsm", "--C", "3")
    assert alone.exit_code == 2 and "--C has no meaning without --certify" in alone.stderr
    other = bigscreen(
        *("import", tmp_path / "m.model", tmp_path / "n.bsm", "--certify", tmp_path / "s"),
        *("--nu", "0.5"),
    )
    assert other.exit_code == 2 and "--nu has no meaning" in other.stderr
    assert not (tmp_path / "n.bsm").exists()
