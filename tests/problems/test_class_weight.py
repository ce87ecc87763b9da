"""Balanced labels: weights of rows count, the same from Python and the command line."""

import numpy as np
import pytest
from cli_world import succeed
from sklearn import svm
from sklearn.model_selection import GridSearchCV, PredefinedSplit

from bigscreen import SVC, LinearSVC, NuSVC, NystroemSVC
from bigscreen.data.dataset import Dataset
from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
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


@pytest.mark.parametrize("machine", [SVC, NuSVC, NystroemSVC, LinearSVC])
@pytest.mark.parametrize("names", [(0, 1, 2), ("a", "b", "c"), (10, 1, 0)])
def test_labels_that_no_row_has_may_have_a_weight(machine, names):
    """As in scikit-learn: a fold may lack a label whose weight is known."""
    X, y, _ = rows(80)
    how = {NystroemSVC: {"n_components": 20, "random_state": 0}, NuSVC: {"nu": 0.2}}
    how = how.get(machine, {})
    labels = np.array(names)[y]
    weights = {names[0]: 1.0, names[1]: 3.0}
    plain = machine(class_weight=weights, **how).fit(X, labels)
    more = machine(class_weight={**weights, names[2]: 20.0}, **how).fit(X, labels)
    np.testing.assert_array_equal(more.decision_function(X), plain.decision_function(X))


@pytest.mark.parametrize("weights", [{0: 1.0, 9: 3.0}, {7: 1.0}, {"0": 1.0, "1": 2.0}])
def test_a_weight_of_an_unknown_label_is_refused_where_a_known_one_has_none(weights):
    X, y, _ = rows(80)
    with pytest.raises(ValueError, match="not in class_weight"):
        svm.SVC(class_weight=weights).fit(X, y)
    wrong = next(label for label in weights if label not in (0, 1))
    with pytest.raises(InputError, match=f"names {wrong!r}, which is not one of .* no weight for"):
        SVC(class_weight=weights).fit(X, y)


def test_a_search_whose_folds_lack_a_label_chooses_as_scikit_learn_does():
    X, y, _ = rows(90)
    y[:3] = 2
    X[:3] += 3
    fold = np.r_[np.zeros(30, int), np.ones(30, int), np.full(30, 2)]
    weights = {0: 1, 1: 1, 2: 20}
    found = []
    for machine in (svm.SVC, SVC):
        cv = PredefinedSplit(fold)
        search = GridSearchCV(machine(class_weight=weights), {"C": [1e-3, 1.0, 10.0]}, cv=cv)
        found.append(search.fit(X, y))
    np.testing.assert_allclose(*(search.cv_results_["mean_test_score"] for search in found))
    assert found[0].best_params_ == found[1].best_params_ != {"C": 1e-3}
