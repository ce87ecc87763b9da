"""Regressions of several targets: one fit over shared features, each target with its proof."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from cli_world import bigscreen as command
from scipy import sparse
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_regressor_multioutput, check_supervised_y_2d

from bigscreen import SVR, LADRegressor, LinearSVR, QuantileRegressor, svm_path
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.preparation import Preparation
from bigscreen.errors import InputError
from bigscreen.evaluate.evaluate import evaluate
from bigscreen.evaluate.predict import write_predictions
from bigscreen.export.verified import export
from bigscreen.features import nystrom
from bigscreen.model.model import Model

RNG = np.random.default_rng(3)
X = RNG.normal(size=(400, 3)).astype(np.float32)
CLEAN = np.stack([np.sin(X[:, 0]), X[:, 1] ** 2, X[:, 0] * X[:, 2]], axis=1)
Y = CLEAN + 0.1 * RNG.normal(size=(400, 3))
HOW = {"n_components": 60, "gamma": 0.3, "C": 3.0}

MACHINES = {
    "svr": SVR(**HOW, tol=1e-4),
    "penalized": SVR(**HOW, epsilon=0.0, fit_intercept="penalized", tol=1e-4),
    "lad": LADRegressor(**HOW, fit_intercept=False, tol=1e-4),
    "quantile": QuantileRegressor(**HOW, quantile=0.8, tol=1e-4),
    "linear": LinearSVR(C=1.0, epsilon=0.1),
    "squared": LinearSVR(loss="squared_epsilon_insensitive", epsilon=0.1),
}


@pytest.mark.parametrize("name", MACHINES)
def test_each_target_is_that_of_a_fit_of_its_own(name):
    machine = MACHINES[name]
    machine.fit(X, Y)
    found = machine.predict(X)
    assert found.shape == (400, 3) and found.dtype == np.float64
    assert len(machine.certificate_) == len(machine.ledger_) == 3
    assert machine.relative_gap_ <= machine.tol
    assert [part["label"] for part in machine.certificate_] == [f"target {j}" for j in range(3)]
    assert machine.coef_.shape[0] == 3 and machine.intercept_.shape == (3,)
    for j in range(3):
        own = type(machine)(**machine.get_params()).fit(X, Y[:, j])
        (single,) = own.certificate_
        part = machine.certificate_[j]
        room = max(one["gap"] + one["rounding_bound"] for one in (single, part))
        assert abs(part["primal"] - single["primal"]) <= room
        # P is 1-strongly convex, so that scores differ by at most sqrt(2 gap) per unit of ||phi||.
        size = np.sqrt(1 + (1 if own.model_.landmarks is not None else (X**2).sum(axis=1).max()))
        reach = size * sum(
            np.sqrt(2 * (one["gap"] + one["rounding_bound"])) for one in (single, part)
        )
        if machine.fit_intercept is not True or name in ("linear", "squared"):
            assert np.max(np.abs(found[:, j] - own.predict(X))) <= reach + 1e-4
        assert np.corrcoef(found[:, j], own.predict(X))[0, 1] > 0.999


def test_features_are_made_once(monkeypatch):
    made = []
    store = nystrom.store_features
    monkeypatch.setattr(nystrom, "store_features", lambda *a, **k: made.append(1) or store(*a, **k))
    SVR(**HOW).fit(X, Y)
    assert len(made) == 1


def test_weights_sparse_rows_and_one_column():
    weights = np.arange(400) % 3
    machine = SVR(**HOW).fit(sparse.csr_array(X), Y, weights)
    kept = weights > 0
    other = SVR(**HOW).fit(X[kept], Y[kept], weights[kept])
    np.testing.assert_allclose(machine.predict(X), other.predict(X), atol=0.05)
    assert set(machine.ledger_[2].numbers()) == set(np.flatnonzero(kept))
    with pytest.warns(UserWarning, match="A column-vector y was passed"):
        assert SVR(**HOW).fit(X, Y[:, :1]).predict(X).shape == (400,)
    assert machine.score(X, Y) > 0.8


def test_a_file_predicts_all_targets(tmp_path):
    machine = SVR(**HOW).fit(X, Y)
    machine.model_.save(tmp_path / "m.bsm")
    model = Model.load(tmp_path / "m.bsm")
    np.testing.assert_array_equal(model.predict(X), machine.predict(X))
    np.testing.assert_array_equal(model.decision_function(X), machine.predict(X))
    assert "for 3 targets" in repr(model)
    data = MemoryDataset(X, Y[:, 0], None)
    write_predictions(model, data, tmp_path / "p.csv")
    write_predictions(model, data, tmp_path / "p.npy")
    with open(tmp_path / "p.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["row", "prediction_0", "prediction_1", "prediction_2"]
    assert float(rows[7]["prediction_2"]) == pytest.approx(machine.predict(X)[7, 2])
    np.testing.assert_allclose(np.load(tmp_path / "p.npy")["prediction"], model.predict(X))
    with pytest.raises(ValueError, match="1 names for 3 targets"):
        replace(model, preparation=Preparation(labels=None, targets=["near"]))
    with pytest.raises(InputError, match="has one target and the model predicts 3"):
        evaluate(model, data)
    with pytest.raises(InputError, match="exports are of one"):
        export(model, data, tmp_path / "m.onnx", "onnx")
    shown = command("info", tmp_path / "m.bsm")
    assert shown.exit_code == 0 and "targets" in shown.stdout
    import dask.array as da

    lazy = machine.predict(da.from_array(X, chunks=(150, 3)))
    assert lazy.shape == (400, 3)
    np.testing.assert_allclose(lazy.compute(), machine.predict(X))


@pytest.mark.parametrize("machine", [SVR(n_components=10, gamma=0.3), LinearSVR()])
def test_scikit_learn_accepts_several_targets(machine):
    for check in (check_regressor_multioutput, check_supervised_y_2d):
        check(type(machine).__name__, machine)


def test_exact_machines_and_bad_targets_are_refused():
    assert (
        get_tags(SVR(**HOW)).target_tags.multi_output
        and get_tags(LinearSVR()).target_tags.multi_output
    )
    assert not get_tags(SVR()).target_tags.multi_output
    with pytest.raises(InputError, match="it has 3 columns, and an exact machine"):
        SVR().fit(X, Y)
    with pytest.raises(InputError, match="or one with probability has one target"):
        SVR(**HOW, probability=True).fit(X, Y)
    with pytest.raises(InputError, match=r"has 3 targets \(target 0, .* a path takes at most one"):
        svm_path(X, Y, problem="svr", Cs=[1.0], gamma=0.3, n_components=20)
    bad = Y.copy()
    bad[5, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        SVR(**HOW).fit(X, bad)
