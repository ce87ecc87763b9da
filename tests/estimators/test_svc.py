"""The exact `SVC` agrees with scikit-learn's in predictions and attributes."""

import pickle
import warnings

import numpy as np
import pytest
from distributed import LocalCluster
from scipy import sparse
from sklearn import svm
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV

from bigscreen import SVC, Dataset, InputError, MemoryDataset, Model, Tuning
from bigscreen.data.layout import Layout
from bigscreen.data.preparation import Preparation
from bigscreen.data.writer import DatasetWriter

GAMMA, TOL = 0.1, 1e-7
NEAR = {"rtol": 0, "atol": 2e-4}
"""Differences of scores and coefficients that a relative gap of TOL allows on these rows."""


def rows(classes=2, n=240, seed=0):
    X, y = make_classification(
        n,
        6,
        n_informative=5,
        n_redundant=1,
        n_classes=classes,
        n_clusters_per_class=1,
        flip_y=0.1,
        random_state=seed,
    )
    return X.astype(np.float32).astype(np.float64), np.array(["yak", "ant", "bee", "cat"])[y]


def spread(machine, n):
    """Dual coefficients (classes - 1, n) of all rows."""
    out = np.zeros((len(machine.dual_coef_), n))
    out[:, machine.support_] = machine.dual_coef_
    return out


def assert_alike(mine, theirs, X):
    """Assert equal support rows, coefficients, offsets, scores of every shape, and labels."""
    n = X.shape[0]
    np.testing.assert_array_equal(mine.classes_, theirs.classes_)
    assert mine.dual_coef_.shape == (len(mine.classes_) - 1, len(mine.support_))
    for ours, others in (
        (spread(mine, n), spread(theirs, n)),
        (mine.intercept_, theirs.intercept_),
        (mine.decision_function(X), theirs.decision_function(X)),
    ):
        assert ours.shape == others.shape
        np.testing.assert_allclose(ours, others, **NEAR)
    for name in ("support_", "n_support_", "dual_coef_", "intercept_"):
        ours, others = getattr(mine, name), getattr(theirs, name)
        assert (ours.dtype, ours.ndim) == (others.dtype, others.ndim), name
    assert mine.n_support_.sum() == len(mine.support_)
    # By class, ascending within each.
    same = np.mean(np.isin(mine.support_, theirs.support_))
    assert same > 0.98 and mine.n_support_.shape == theirs.n_support_.shape
    apart = np.abs(theirs.decision_function(X).reshape(n, -1)).min(axis=1) > 1e-2
    np.testing.assert_array_equal(mine.predict(X)[apart], theirs.predict(X)[apart])


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("shape", ["ovr", "ovo"])
def test_svc_agrees_with_scikit_learn(classes, shape):
    X, y = rows(classes)
    options = {"C": 2.0, "decision_function_shape": shape}
    mine = SVC(tol=TOL, **options).fit(X, y)
    theirs = svm.SVC(tol=1e-9, **options).fit(X, y)
    assert mine.relative_gap_ <= TOL
    assert_alike(mine, theirs, X)
    np.testing.assert_array_equal(mine.support_vectors_, X[mine.support_])
    start = 0
    for label, count in zip(mine.classes_, mine.n_support_, strict=True):
        part = mine.support_[start : start + count]
        assert np.all(y[part] == label) and np.all(np.diff(part) > 0)
        start += count
    pairs = classes * (classes - 1) // 2
    assert len(mine.certificate_) == pairs and mine.intercept_.shape == (pairs,)


@pytest.mark.parametrize(
    "kernel",
    [
        {"kernel": "linear", "C": 0.1},
        {"kernel": "poly", "degree": 2, "coef0": 1.0, "gamma": 0.2},
        {"kernel": "rbf", "gamma": "auto"},
        {"kernel": "rbf", "gamma": 0.3},
    ],
    ids=lambda options: options["kernel"],
)
def test_every_kernel_agrees_with_scikit_learn(kernel):
    X, y = rows(3)
    assert_alike(SVC(tol=TOL, **kernel).fit(X, y), svm.SVC(tol=1e-9, **kernel).fit(X, y), X)


@pytest.mark.parametrize("class_weight", [None, "balanced", {"ant": 3.0}])
def test_weights_agree_with_scikit_learn(class_weight):
    X, y = rows(3)
    weights = np.random.default_rng(1).integers(0, 4, len(y)) / 2
    options = {"gamma": GAMMA, "class_weight": class_weight}
    mine = SVC(tol=TOL, **options).fit(X, y, sample_weight=weights)
    if class_weight == "balanced":
        # scikit-learn's "balanced" counts rows, ours sums their weights.
        totals = {c: weights[y == c].sum() for c in np.unique(y)}
        options["class_weight"] = {c: weights.sum() / (3 * total) for c, total in totals.items()}
    theirs = svm.SVC(tol=1e-9, **options).fit(X, y, sample_weight=weights)
    # scikit-learn numbers the rows that have any weight, we number those of X.
    theirs.support_ = np.flatnonzero(weights)[theirs.support_].astype(np.int32)
    assert_alike(mine, theirs, X)
    np.testing.assert_array_equal(mine.support_vectors_, X[mine.support_])


@pytest.mark.parametrize("classes", [2, 3])
def test_a_precomputed_kernel_gives_the_same_machine(classes, tmp_path):
    X, y = rows(classes)
    gram = rbf_kernel(X, X, GAMMA).astype(np.float32).astype(np.float64)
    mine = SVC(kernel="precomputed", tol=TOL).fit(gram, y)
    theirs = svm.SVC(kernel="precomputed", tol=1e-9).fit(gram, y)
    assert_alike(mine, theirs, gram)
    assert mine.support_vectors_.shape == theirs.support_vectors_.shape == (0, 0)
    few = gram[:7]
    np.testing.assert_allclose(
        mine.decision_function(few), mine.decision_function(gram)[:7], atol=1e-12
    )
    mine.model_.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(few.astype(np.float32)), mine.model_.predict(few))
    assert mine.__sklearn_tags__().input_tags.pairwise
    found = GridSearchCV(SVC(kernel="precomputed"), {"C": [0.1, 1.0]}, cv=2).fit(gram, y)
    assert found.best_score_ > 0.7


def test_columns_of_rows_of_weight_0_are_left_out_of_precomputed_kernels():
    """Columns are left out with their rows; rows to predict have all columns."""
    X, y = rows(3)
    gram = rbf_kernel(X, X, GAMMA)
    keep = np.arange(len(y)) % 4 > 0
    mine = SVC(kernel="precomputed", tol=TOL).fit(gram, y, sample_weight=1.0 * keep)
    some = SVC(kernel="precomputed", tol=TOL).fit(gram[keep][:, keep], y[keep])
    np.testing.assert_array_equal(mine.support_, np.flatnonzero(keep)[some.support_])
    np.testing.assert_array_equal(mine.dual_coef_, some.dual_coef_)
    np.testing.assert_allclose(
        mine.decision_function(gram), some.decision_function(gram[:, keep]), atol=1e-12
    )


def test_a_kernel_function_gives_the_same_machine():
    X, y = rows(3)

    def kernel(A, B):
        return rbf_kernel(A, B, GAMMA)

    mine = SVC(kernel=kernel, tol=TOL).fit(X, y)
    assert_alike(mine, svm.SVC(gamma=GAMMA, tol=1e-9).fit(X, y), X)
    thin = sparse.csr_array(X)
    np.testing.assert_allclose(
        SVC(kernel=kernel, tol=TOL).fit(thin, y).decision_function(thin),
        mine.decision_function(X),
        **NEAR,
    )


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csr_array, sparse.coo_array])
def test_sparse_rows_give_the_machine_of_dense_rows(make):
    X, y = rows(3)
    X[np.abs(X) < 0.7] = 0.0
    thin = make(X)
    mine = SVC(gamma=GAMMA, tol=TOL).fit(thin, y)
    assert sparse.issparse(mine.support_vectors_) and sparse.issparse(mine.dual_coef_)
    mine.dual_coef_ = mine.dual_coef_.toarray()
    assert_alike(mine, svm.SVC(gamma=GAMMA, tol=1e-9).fit(X, y), X)
    np.testing.assert_array_equal(mine.support_vectors_.toarray(), X[mine.support_])
    np.testing.assert_allclose(mine.decision_function(thin), mine.decision_function(X), atol=1e-5)


def test_penalised_and_missing_offsets_reach_their_optimum():
    """No offset; and a constant feature, which is the kernel + 1 without an offset."""
    X, y = rows()
    signs = np.where(y == "yak", 1.0, -1.0)
    for fit_intercept, one in ((False, 0.0), ("penalized", 1.0)):
        mine = SVC(gamma=GAMMA, tol=TOL, fit_intercept=fit_intercept).fit(X, y)
        signed = spread(mine, len(y))[0]
        assert np.all(signed * signs >= 0) and np.all(np.abs(signed) <= 1)
        assert mine.intercept_[0] == pytest.approx(one * signed.sum())
        scores = (rbf_kernel(X, X, GAMMA) + one) @ signed
        np.testing.assert_allclose(mine.decision_function(X), scores, atol=1e-4)
        gradient, alpha = 1 - signs * scores, signs * signed
        assert np.all(gradient[alpha == 0] < 1e-2) and np.all(gradient[alpha == 1] > -1e-2)
        assert np.all(np.abs(gradient[(alpha > 0) & (alpha < 1)]) < 1e-2)


def test_ties_are_broken_as_in_scikit_learn():
    """Among classes tied in votes the first wins, or with break_ties the largest value."""
    X, y = rows(4, n=400)
    many = np.random.default_rng(0).normal(size=(3000, 6)) * 2
    first = SVC(gamma=GAMMA, tol=1e-6).fit(X, y)
    broken = clone(first).set_params(break_ties=True).fit(X, y)
    theirs = svm.SVC(gamma=GAMMA, tol=1e-9).fit(X, y)
    assert np.mean(first.predict(many) == theirs.predict(many)) > 0.999
    values = first.decision_function(many)
    np.testing.assert_array_equal(broken.predict(many), broken.classes_[np.argmax(values, axis=1)])
    assert np.any(first.predict(many) != broken.predict(many))


@pytest.mark.parametrize("classes", [2, 3])
def test_calibrated_probabilities(classes):
    X, y = rows(classes)
    options = {"gamma": GAMMA, "C": 2.0}
    mine, theirs = (
        CalibratedClassifierCV(machine, cv=3).fit(X, y).predict_proba(X)
        for machine in (SVC(tol=TOL, **options), svm.SVC(tol=1e-9, **options))
    )
    np.testing.assert_allclose(mine, theirs, atol=1e-3)
    assert mine.shape == (len(y), classes)


def test_narrow_rows_are_not_copied():
    X, y = rows()
    narrow = np.ascontiguousarray(X, dtype=np.float32)
    narrow.flags.writeable = False
    one, other = SVC(gamma=GAMMA).fit(X, y), SVC(gamma=GAMMA).fit(narrow, y)
    np.testing.assert_array_equal(one.dual_coef_, other.dual_coef_)
    assert other.support_vectors_.dtype == np.float32


def test_the_fit_is_recorded(tmp_path):
    X, y = rows(3)
    machine = SVC(gamma=GAMMA).fit(X, y)
    assert [part["label"] for part in machine.certificate_] == [
        "ant vs bee",
        "ant vs yak",
        "bee vs yak",
    ]
    assert machine.dual_gap_ == max(part["gap"] for part in machine.certificate_)
    assert machine.relative_gap_ <= machine.tol
    assert machine.n_iter_.dtype == np.int32 and machine.n_iter_.shape == (3,)
    assert machine.n_iter_.max() == max(event["pass"] for event in machine.history_)
    assert machine.fit_status_ == 0
    entries = [event["kernel_entries"] for event in machine.history_]
    assert all(count > 0 for count in entries)
    again = pickle.loads(pickle.dumps(machine))
    np.testing.assert_array_equal(again.decision_function(X), machine.decision_function(X))
    machine.model_.save(tmp_path / "model")
    loaded = Model.load(tmp_path / "model")
    np.testing.assert_array_equal(
        machine.classes_[loaded.decide(loaded.scores(X.astype(np.float32)))], machine.predict(X)
    )
    same = SVC(gamma=GAMMA).fit(X, y)
    np.testing.assert_array_equal(same.dual_coef_, machine.dual_coef_)


def test_a_budget_that_ends_early_warns():
    X, y = rows()
    with pytest.warns(ConvergenceWarning, match="missed tol"):
        short = SVC(tol=1e-6, max_iter=1).fit(X, y)
    assert short.relative_gap_ > 1e-6 and short.n_iter_ == 1
    assert short.fit_status_ == 1


@pytest.mark.parametrize("screening", ["gap", "f-safe", "adaptive", "joachims", "none"])
def test_screening_does_not_change_the_machine(screening):
    X, y = rows(3)
    expected = SVC(gamma=GAMMA, tol=TOL).fit(X, y)
    found = SVC(gamma=GAMMA, tol=TOL, screening=screening, tuning=Tuning(f=0.3)).fit(X, y)
    np.testing.assert_allclose(found.decision_function(X), expected.decision_function(X), **NEAR)
    assert found.model_.provenance["screening"][0]["rule"] == screening


@pytest.mark.parametrize("start", ["divide", "nystrom"])
def test_starts_do_not_change_the_machine(start):
    X, y = rows(3)
    expected = SVC(gamma=GAMMA, tol=TOL).fit(X, y)
    found = SVC(gamma=GAMMA, tol=TOL, tuning=Tuning(start=start)).fit(X, y)
    np.testing.assert_allclose(found.decision_function(X), expected.decision_function(X), **NEAR)
    record = found.model_.provenance["start"]
    assert [part["start"] for part in record] == [start] * 3


@pytest.mark.parametrize("classes", [2, 3])
def test_an_early_stop_proves_nothing(classes, tmp_path):
    X, y = rows(classes, n=600)
    machine = SVC(gamma=GAMMA, early=True, tuning=Tuning(parts=3)).fit(X, y)
    assert machine.certificate_ is None and not machine.n_iter_.any()
    assert np.isnan(machine.dual_gap_) and np.isnan(machine.relative_gap_)
    assert machine.intercept_.shape == (classes * (classes - 1) // 2, 3)
    assert "no global certificate" in machine.model_.provenance["no_certificate"]
    assert machine.score(X, y) > SVC(gamma=GAMMA).fit(X, y).score(X, y) - 0.05
    machine.model_.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    np.testing.assert_array_equal(
        machine.classes_[again.decide(again.scores(X.astype(np.float32)))], machine.predict(X)
    )


def test_a_store_gives_the_machine_of_its_arrays(tmp_path):
    """Support rows are numbered as in the source, whatever order they are stored in."""
    X, y = rows(3, n=600)
    names, codes = np.unique(y, return_inverse=True)
    order = np.random.default_rng(0).permutation(600)
    writer = DatasetWriter(
        tmp_path / "store",
        Layout.of(
            n_rows=600,
            n_features=6,
            sparse=False,
            labels=names.tolist(),
            weights=False,
        ),
        Preparation(n_raw=6, scaling="minmax", factor=np.full(6, 0.5)),
    )
    for k in range(writer.n_chunks):
        part = order[slice(*writer.chunk(k))]
        writer.write(k, X[part] * 0.5, codes[part], None, part)
    data = writer.finish()
    assert isinstance(data, Dataset)
    # alpha is determined to the root of the gap only, and the order of rows changes the steps.
    found = SVC(gamma=GAMMA, tol=1e-9).fit(str(data.path))
    expected = SVC(gamma=GAMMA, tol=1e-9).fit(0.5 * X, y)
    np.testing.assert_allclose(spread(found, 600), spread(expected, 600), **NEAR)
    np.testing.assert_array_equal(found.support_vectors_, 0.5 * X[found.support_].astype("f4"))
    np.testing.assert_allclose(found.decision_function(data), found.decision_function(X), atol=1e-5)
    assert found.score(data) == pytest.approx(found.score(X, y))


@pytest.mark.slow
def test_a_cluster_gives_the_machine_of_threads(tmp_path):
    X, y = rows(n=1200)
    machine = SVC(gamma=GAMMA, solver="block")
    expected = clone(machine).fit(X, y)
    with LocalCluster(1, threads_per_worker=1, dashboard_address=None) as cluster:
        there = clone(machine).set_params(scheduler=cluster.scheduler_address, work=tmp_path)
        found = there.fit(X, y)
    np.testing.assert_array_equal(found.support_, expected.support_)
    np.testing.assert_array_equal(found.dual_coef_, expected.dual_coef_)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"C": 0}, "C must be a positive"),
        ({"kernel": "cubic"}, "unknown kernel 'cubic'"),
        ({"gamma": -1}, "gamma must be a positive"),
        ({"decision_function_shape": "all"}, "decision_function_shape must be ovr or ovo"),
        ({"fit_intercept": "maybe"}, "fit_intercept must be"),
        ({"screening": "dvi"}, "screening must be one of"),
        ({"tuning": {"f": 0.5}}, "tuning must be a bigscreen.Tuning, got {'f': 0.5}"),
        ({"tuning": {}}, "tuning must be a bigscreen.Tuning, got {}"),
        ({"tuning": Tuning(parts=3)}, "tuning.parts is for tuning.start='divide' and for early"),
        ({"early": True, "tuning": Tuning(start="cold")}, "early stops after the parts"),
        ({"tuning": Tuning(start="divide", parts=10_000)}, "10000 parts were asked for"),
        ({"cache_size": 0}, "cache_size must be a positive number of megabytes"),
        ({"shrinking": "yes"}, "shrinking must be True or False"),
        ({"probability": "yes"}, "probability must be True or False"),
        ({"max_iter": 0}, "max_iter must be a whole number, at least 1"),
        ({"memory": 10_000}, "memory allowed is 0 MiB"),
        ({"kernel": "precomputed"}, "square"),
        (
            {"kernel": "precomputed", "tuning": Tuning(start="nystrom")},
            "needs a kernel with a name",
        ),
        pytest.param({"kernel": lambda A, B: A}, "array of shape", id="a function of one row"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_bad_parameters_are_refused(options, message):
    X, y = rows()
    with pytest.raises(InputError, match=message):
        SVC(**options).fit(X, y)


def test_bad_rows_are_refused():
    X, y = rows()
    with pytest.raises(ValueError, match="only one class"):
        SVC().fit(X, np.zeros(len(y)))
    with pytest.raises(InputError, match="in memory"):
        SVC(kernel="precomputed", scheduler="tcp://127.0.0.1:1").fit(np.eye(len(y)), y)
    gram = SVC(kernel="precomputed").fit(rbf_kernel(X), y)
    with pytest.raises(ValueError, match="features"):
        gram.predict(rbf_kernel(X)[:, :-1])
    data = MemoryDataset(X, (y == "ant").astype(int), [0, 1])
    with pytest.raises(InputError, match="brings its own labels"):
        SVC().fit(data, y)


def test_no_warning_and_no_output(capfd):
    X, y = rows(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SVC().fit(X, y).predict(X)
    assert capfd.readouterr() == ("", "")
    SVC(verbose=1).fit(X, y)
    assert "gap" in "".join(capfd.readouterr())
