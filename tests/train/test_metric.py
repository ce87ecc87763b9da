"""A learned metric: its gradients, its scale, and the machines of mapped rows."""

import csv
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array
from trained import fitted

import bigscreen
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.views import Mapped
from bigscreen.errors import InputError
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.standard import make_kernel
from bigscreen.model.explain import explain_score
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.path.options import PathOptions
from bigscreen.path.run import train_path
from bigscreen.train.many import Outcomes
from bigscreen.train.metric import average_gradient_product, root_of
from bigscreen.train.run import train, train_many

KERNELS = [
    "linear",
    "rbf",
    "laplacian",
    "polynomial",
    "sigmoid",
    "matern12",
    "matern32",
    "matern52",
]


def rows(n=600, d=5, labels=2, sparse=False, seed=0):
    """Rows whose outcome depends on a mixture of the first two columns alone."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    if sparse:
        X[rng.random(X.shape) < 0.5] = 0
    target = np.sin(2 * X[:, 0] + X[:, 1])
    if labels:
        y = np.digitize(target, np.linspace(-0.8, 0.8, labels + 1)[1:-1])
        return MemoryDataset(csr_array(X) if sparse else X, y, list(range(labels)))
    return MemoryDataset(csr_array(X) if sparse else X, target, None)


def dense(X):
    return np.asarray(X.toarray() if hasattr(X, "toarray") else X, np.float64)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_gradients_are_finite_differences(name, sparse):
    data = rows(300, labels=3, sparse=sparse)
    model = fitted(data, TrainOptions(kernel=name, gamma=0.3, coef0=1.0, landmarks=40))
    X, weights = dense(data.X(0, 300)), data.weights(0, 300)
    step, gradients = 1e-7, []
    rng = np.random.default_rng(1)
    if name in ("laplacian", "matern12"):  # their gradients jump at landmarks
        X = X + rng.normal(scale=0.01, size=X.shape)
        data = MemoryDataset(csr_array(X) if sparse else X, data.y(0, 300), data.labels)
    kernel, side = model.kernel, None if model.landmarks is None else dense(model.landmarks)

    def scores(X):
        if side is None:
            return X @ model.coef.T
        gaps = X[:, None] - side[None]
        far = 0.3 * np.sqrt(np.square(gaps).sum(axis=2))
        entries = {
            "matern12": lambda: np.exp(-far),
            "matern32": lambda: (1 + 3**0.5 * far) * np.exp(-(3**0.5) * far),
            "matern52": lambda: (1 + 5**0.5 * far + 5 / 3 * far**2) * np.exp(-(5**0.5) * far),
            "rbf": lambda: np.exp(-0.3 * np.square(gaps).sum(axis=2)),
            "laplacian": lambda: np.exp(-0.3 * np.abs(gaps).sum(axis=2)),
            "polynomial": lambda: (0.3 * X @ side.T + 1.0) ** 3,
            "sigmoid": lambda: np.tanh(0.3 * X @ side.T + 1.0),
        }[kernel.name]()
        return entries @ model.coef.T

    for j in range(5):
        shift = step * np.eye(5)[j]
        gradients.append((scores(X + shift) - scores(X - shift)) / (2 * step))
    expected = np.einsum("inc,jnc,n->ij", gradients, gradients, weights) / weights.sum()
    with Inline(2) as fleet:
        full = average_gradient_product(model, data, fleet)
        diagonal = average_gradient_product(model, data, fleet, diagonal=True)
    np.testing.assert_allclose(full, expected, rtol=2e-3, atol=1e-4 * expected.max())
    np.testing.assert_allclose(diagonal, np.diag(full), rtol=1e-6)


def test_products_have_the_same_bits_on_every_fleet_and_count_weights():
    X = rows(2000).X(0, 2000)
    y, weights = (X[:, 0] > 0).astype(int), np.arange(2000) % 3.0
    data = MemoryDataset(X, y, [0, 1], weights)
    model = fitted(data, TrainOptions(gamma=0.3, landmarks=30))
    with Inline(1) as one, Inline(2) as two:
        found = average_gradient_product(model, data, one)
        np.testing.assert_array_equal(average_gradient_product(model, data, two), found)
        twice = np.repeat(X, weights.astype(int), axis=0)
        copies = MemoryDataset(twice, np.zeros(len(twice), int), [0, 1])
        np.testing.assert_allclose(average_gradient_product(model, copies, two), found, rtol=1e-5)


def test_a_kernel_without_a_gradient_says_so():
    data = rows(50)
    model = fitted(data, TrainOptions(gamma=0.3, landmarks=30))
    model.kernel = make_kernel("precomputed")
    with Inline(1) as fleet, pytest.raises(InputError, match="no gradient"):
        average_gradient_product(model, data, fleet)


@pytest.mark.parametrize("diagonal", [False, True])
def test_a_root_keeps_the_mean_squared_distance(diagonal):
    rng = np.random.default_rng(0)
    g = rng.normal(size=(40, 4)) * [3, 1, 0.1, 0]
    product = g.T @ g
    X = rng.normal(size=(100, 4)) * [1, 2, 3, 4] + 5
    root = root_of(np.diag(product).copy() if diagonal else product, X)
    mapped = X * root if diagonal else X @ root
    assert np.sum(np.var(mapped, axis=0)) == pytest.approx(np.sum(np.var(X, axis=0)))
    squared = np.diag(np.square(root)) if diagonal else root @ root.T
    expected = np.diag(np.diag(product)) if diagonal else product
    np.testing.assert_allclose(
        squared / np.trace(squared), expected / np.trace(expected), atol=1e-9
    )
    nothing = np.zeros_like(np.diag(product)) if diagonal else np.zeros_like(product)
    np.testing.assert_array_equal(root_of(nothing, X), np.ones(4) if diagonal else np.eye(4))


@pytest.mark.parametrize("how", [{"exact": True}, {"landmarks": 150}])
@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_a_learned_metric_finds_the_columns_that_matter(kind, how):
    data, held = rows(600, 8, labels=0), rows(1000, 8, labels=0, seed=1)
    X, y = held.X(0, 1000), held.y(0, 1000)
    options = {"problem": "svr", "epsilon": 0.05, "C": 10.0, **how}
    plain = fitted(data, TrainOptions(**options))
    model = fitted(data, TrainOptions(metric_learning=kind, **options))
    errors = [np.sqrt(np.mean(np.square(each.predict(X) - y))) for each in (plain, model)]
    assert errors[1] < 0.5 * errors[0]
    metric = model.preparation.metric
    share = np.square(metric) if kind == "diagonal" else np.diag(metric @ metric.T)
    assert share[:2].min() > 2 * share[2:].max()
    assert plain.preparation.metric is None and "metric" not in plain.provenance
    assert "metric_learning" not in plain.provenance["parameters"]
    assert model.provenance["metric"] == {"kind": kind, "columns": 8}
    (proof,) = model.provenance["certificates"]
    assert proof["relative_gap"] <= 1e-3


def test_the_certificate_is_of_the_mapped_columns():
    data = rows(500, 6)
    how = {"exact": True, "gamma": 0.2, "intercept": "none", "tol": 1e-6}
    model = fitted(data, TrainOptions(metric_learning="full", **how))
    metric = model.preparation.metric
    X = dense(data.X(0, 500)) @ metric
    np.testing.assert_allclose(model.landmarks, X[model.support], rtol=1e-5, atol=1e-5)
    gaps = np.square(X[:, None] - X[model.support][None]).sum(axis=2)
    K = np.exp(-model.kernel.gamma * gaps)
    scores, signs = K @ model.coef[0], np.where(data.y(0, 500) == 1, 1.0, -1.0)
    norm = model.coef[0] @ K[model.support] @ model.coef[0]
    primal = 0.5 * norm + np.maximum(0, 1 - signs * scores).sum()
    (proof,) = model.provenance["certificates"]
    assert proof["primal"] == pytest.approx(primal, rel=1e-5)
    again = fitted(MemoryDataset(X, data.y(0, 500), [0, 1]), TrainOptions(**how))
    (other,) = again.provenance["certificates"]
    assert proof["dual"] <= other["primal"] * (1 + 1e-5)
    assert other["dual"] <= proof["primal"] * (1 + 1e-5)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_stores_files_and_rows_are_scored_alike(tmp_path, kind):
    rng = np.random.default_rng(0)
    n = 300
    size, colour = rng.lognormal(1, 1, n), rng.choice(["red", "green"], n)
    buys = np.where((size > 3) ^ (colour == "red"), "yes", "no")
    with open(tmp_path / "t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["size", "colour", "buys"])
        writer.writerows(zip(size, colour, buys, strict=True))
    store = bigscreen.ingest(
        tmp_path / "t.csv", tmp_path / "s", label="buys", scale="standard"
    ).store
    model = fitted(store, TrainOptions(landmarks=50, metric_learning=kind, C=10.0))
    assert model.provenance["fingerprint"] == store.fingerprint
    from_store = model.scores(store)
    table = {"size": size, "colour": colour}
    np.testing.assert_allclose(model.scores(table), from_store, atol=1e-4)
    assert np.mean(model.predict(table) == buys) > 0.9
    model.save(tmp_path / "m.bsm")
    for copy in (Model.load(tmp_path / "m.bsm"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(copy.preparation.metric, model.preparation.metric)
        np.testing.assert_array_equal(copy.scores(store), from_store)
    more = bigscreen.ingest(tmp_path / "t.csv", tmp_path / "t", like=model).store
    np.testing.assert_array_equal(model.scores(more), from_store)
    exact = fitted(store, TrainOptions(exact=True, metric_learning=kind))
    said = explain_score(exact, store, 7)
    assert said["score"] == pytest.approx(exact.scores(store)[7, 0], abs=1e-5)


def test_sparse_rows_stay_sparse_under_a_diagonal_metric():
    data = rows(300, sparse=True)
    diagonal, full = (
        fitted(data, TrainOptions(landmarks=40, metric_learning=kind))
        for kind in ("diagonal", "full")
    )
    assert isinstance(diagonal.landmarks, csr_array) and isinstance(full.landmarks, np.ndarray)
    X = data.X(0, 300)
    for model in (diagonal, full):
        np.testing.assert_allclose(model.scores(X), model.scores(X.toarray()), atol=1e-4)
    mapped = Mapped(data, diagonal.preparation.metric)
    assert mapped.is_sparse and mapped.max_sqnorm == pytest.approx(mapped.sqnorms(0, 300).max())
    wider = diagonal.widened(7)
    np.testing.assert_allclose(
        wider.scores(np.pad(X.toarray(), ((0, 0), (0, 2)))), diagonal.scores(X), atol=1e-5
    )


def test_what_cannot_learn_a_metric_says_so():
    data = rows(100)
    for how, why in (
        ({"kernel": "linear"}, "other than linear"),
        ({"problem": "one-class"}, "labels or targets"),
        ({"probability": True}, "leave out probability"),
    ):
        with pytest.raises(InputError, match=why):
            TrainOptions(metric_learning="full", **how)
    options = TrainOptions(metric_learning="full", landmarks=20)
    wide = MemoryDataset(np.ones((4, 1001), np.float32), [0, 1, 0, 1], [0, 1])
    with pytest.raises(InputError, match=r"at most 1,000 columns"):
        fitted(wide, TrainOptions(metric_learning="full", landmarks=2))
    with Inline(1) as fleet:
        with pytest.raises(InputError, match="leave out `metric_learning`"):
            train_many(data, options, fleet, [Outcomes(None, None)])
        with pytest.raises(InputError, match="leave out metric_learning"):
            train_path(data, PathOptions(options, [1.0]), fleet)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_a_metric_that_is_learned_again_is_the_product_of_its_maps(kind):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(200, 4)).astype(np.float32)
    y = np.sin(2 * X[:, 0] + X[:, 1])
    first, second = {"gamma": 0.2, "C": 10.0}, {"gamma": 0.5, "C": 1.0}
    fit = TrainOptions(problem="svr", epsilon=0.05, landmarks=60, gamma=0.3, metric_learning=kind)
    with Inline(1) as fleet:

        def learned(rows, *machines):
            data = MemoryDataset(rows, y, None)
            return train(data, replace(fit, metric_from=machines), fleet).preparation.metric

        one = learned(X, first)
        mapped = X * one if kind == "diagonal" else X @ one
        two = learned(mapped.astype(np.float32), second)
        both = learned(X, first, second)
    np.testing.assert_allclose(
        both, one * two if kind == "diagonal" else one @ two, rtol=1e-3, atol=1e-4
    )
    assert np.max(np.abs(both - two)) > 0.1
