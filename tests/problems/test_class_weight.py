"""Balanced labels: weights of rows count, the same from Python and the command line."""

import numpy as np
import pytest
from cli_world import succeed

from bigscreen import LinearSVC
from bigscreen.data.dataset import Dataset
from bigscreen.data.memory import MemoryDataset
from bigscreen.model.model import Model
from bigscreen.train.problems import class_weights


def rows(n=300):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    y = (X[:, 0] + rng.normal(size=n) > 0.5).astype(int)
    return X, y, np.where(y == 1, 0.25, 2.0) * rng.uniform(0.5, 1.5, n)


def test_balanced_labels_weigh_the_same():
    X, y, weight = rows()
    y = y + (X[:, 1] > 1)
    weighted = MemoryDataset(X, y, ["a", "b", "c"], weight)
    totals = class_weights("balanced", weighted) * np.bincount(y, weight)
    np.testing.assert_allclose(totals, weight.sum() / 3)
    plain = class_weights("balanced", MemoryDataset(X, y, ["a", "b", "c"]))
    np.testing.assert_allclose(plain * np.bincount(y), len(y) / 3)


def test_rows_without_weight_are_not_balanced():
    X, y, weight = rows()
    nothing = class_weights("balanced", MemoryDataset(X, y, [0, 1], 0 * weight))
    assert nothing == ()
    one = class_weights("balanced", MemoryDataset(X, y, [0, 1], weight * y))
    assert one[1] == pytest.approx(0.5) and np.isfinite(one[0])


def test_the_command_line_and_python_agree(tmp_path):
    X, y, weight = rows()
    table = np.column_stack([X, weight, y])
    np.savetxt(tmp_path / "rows.csv", table, "%.17g", ",", header="a,b,c,weight,label", comments="")
    store, model = tmp_path / "rows.store", tmp_path / "m.bsm"
    succeed("ingest", tmp_path / "rows.csv", store, "--weight", "weight")
    assert Dataset.open(store).has_weights
    succeed("fit", store, model, "--kernel", "linear", "--class-weight", "balanced", "--tol", 1e-6)
    machine = LinearSVC(loss="hinge", class_weight="balanced", tol=1e-6, fit_intercept=True).fit(
        store
    )
    fitted = Model.load(model)
    np.testing.assert_array_equal(fitted.coef, machine.model_.coef)
    data = Dataset.open(store)
    unpacked = LinearSVC(loss="hinge", class_weight="balanced", tol=1e-6).fit(
        data.X(0, 300), data.y(0, 300), data.weights(0, 300)
    )
    np.testing.assert_allclose(unpacked.model_.coef, fitted.coef, rtol=1e-6)
