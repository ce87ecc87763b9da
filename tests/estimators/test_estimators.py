"""The estimators: scikit-learn's checks, optima, and the same rows given in different forms."""

import pickle
import subprocess
import sys
import warnings

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from block_world import STEADY
from distributed import LocalCluster
from scipy import linalg, sparse
from sklearn import svm
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn_checks import EXPECTED_FAILURES

import bigscreen
from bigscreen import SVC, Dataset, InputError, LinearSVC, MemoryDataset, Model, NystroemSVC, ingest
from bigscreen.data.layout import Layout
from bigscreen.data.preparation import Preparation
from bigscreen.data.writer import DatasetWriter
from bigscreen.estimators.inputs import Labelled


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@parametrize_with_checks(
    [NystroemSVC(), LinearSVC(), SVC()], expected_failed_checks=lambda estimator: EXPECTED_FAILURES
)
def test_scikit_learn(estimator, check):
    name = getattr(check, "func", check).__name__
    if name == "check_class_weight_classifiers" and not isinstance(estimator, SVC):
        # Class weights of 1000 and 1e-4 on 50 rows: Newton takes a minute to converge.
        estimator.set_params(solver="cd")
    check(estimator)


def rows(classes=2, n=400, d=8, seed=0):
    X, y = make_classification(
        n,
        d,
        n_informative=min(d - 2, 20),
        n_classes=classes,
        n_clusters_per_class=1,
        flip_y=0.1,
        random_state=seed,
    )
    return X.astype(np.float32).astype(np.float64), y


def objective(w_sq, scores, y, C, b=0.0):
    """P of one classifier by the formula, in float64; y in -1, 1; C is a number or (rows,)."""
    return 0.5 * (w_sq + b * b) + np.sum(C * np.maximum(0.0, 1.0 - y * scores))


def linear_objectives(machine, X, y, C=1.0, constant=True):
    """P of every classifier of a linear machine, from its coefficients."""
    out = []
    offsets = np.broadcast_to(machine.intercept_, len(machine.coef_))
    for k, (w, b) in enumerate(zip(machine.coef_, offsets, strict=True)):
        positive = machine.classes_[1 if len(machine.classes_) == 2 else k]
        sign = np.where(y == positive, 1.0, -1.0)
        out.append(objective(w @ w, X @ w + b, sign, C, b if constant else 0.0))
    return np.array(out)


def reference(X, y, **options):
    """scikit-learn's machine for the same problem, solved to a much smaller tolerance."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return svm.LinearSVC(
            loss="hinge", tol=1e-8, max_iter=200_000, random_state=0, **options
        ).fit(X, y)


def reach(machine, X, factor=1.0):
    """How far a proved gap lets scores be from the optimal ones: sqrt(2 gap) ||[x, 1]||."""
    norms = np.sqrt((X**2).sum(axis=1) + 1)
    return factor * np.sqrt(2 * machine.dual_gap_) * norms + 1e-4


@pytest.mark.parametrize(
    ("solver", "fit_intercept"), [("newton", True), ("newton", False), ("cd", True)]
)
@pytest.mark.parametrize("classes", [2, 4])
def test_linear_optimum(classes, solver, fit_intercept):
    X, y = rows(classes)
    y = np.array(["lion", "ant", "yak", "bee"])[y]
    mine = LinearSVC(loss="hinge", tol=1e-4, C=0.3, fit_intercept=fit_intercept, solver=solver).fit(
        X, y
    )
    assert mine.model_.provenance["solver"] == solver
    theirs = reference(X, y, C=0.3, fit_intercept=fit_intercept)
    assert mine.coef_.shape == theirs.coef_.shape
    assert mine.relative_gap_ <= 1e-4
    P, best = linear_objectives(mine, X, y, 0.3), linear_objectives(theirs, X, y, 0.3)
    stated = np.array([part["primal"] for part in mine.certificate_])
    dual = np.array([part["dual"] for part in mine.certificate_])
    np.testing.assert_allclose(P, stated, rtol=1e-6)
    assert np.all(dual <= best * (1 + 1e-9))
    assert np.all(P <= best + mine.dual_gap_)
    assert np.all(best <= P * (1 + 1e-6))
    apart = np.abs(mine.decision_function(X) - theirs.decision_function(X))
    assert np.all(apart.reshape(len(X), -1) <= reach(mine, X)[:, None])
    assert np.mean(mine.predict(X) == theirs.predict(X)) > 0.98
    assert mine.score(X, y) == np.mean(mine.predict(X) == y)


def test_true_offset_optimum():
    X, y = rows()
    X = X + 3.0  # far from the origin, where a penalised offset would cost
    mine = LinearSVC(loss="hinge", tol=1e-5, fit_intercept="unpenalized").fit(X, y)
    theirs = svm.SVC(kernel="linear", tol=1e-8).fit(X, y)
    P = linear_objectives(mine, X, y, constant=False)
    best = linear_objectives(theirs, X, y, constant=False)
    assert np.all(P <= best + mine.dual_gap_ + 1e-6 * best)
    assert np.all(best <= P * (1 + 1e-6))
    penalised = linear_objectives(LinearSVC(loss="hinge", tol=1e-5).fit(X, y), X, y, constant=False)
    assert np.all(penalised > best * (1 + 1e-4))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_nystroem_optimum(kernel, classes):
    X, y = rows(classes)
    mine = NystroemSVC(kernel, gamma=0.1, n_components=40, tol=1e-4, random_state=3).fit(X, y)
    Z = mine.components_.astype(np.float64)
    assert Z.shape == (40, X.shape[1])
    assert {row.tobytes() for row in mine.components_} <= {
        row.tobytes() for row in X.astype(np.float32)
    }
    power, distances = (1, np.abs) if kernel == "laplacian" else (2, np.square)
    K_XZ, K_ZZ = (np.exp(-0.1 * distances(A[:, None] - Z[None]).sum(axis=2)) for A in (X, Z))
    assert power in (1, 2)
    values, vectors = linalg.eigh(K_ZZ)
    phi = K_XZ @ (vectors / np.sqrt(values))
    theirs = reference(phi, y)
    best = linear_objectives(theirs, phi, y)
    P = []
    for k, (coef, b) in enumerate(zip(mine.model_.coef, mine.model_.intercept, strict=True)):
        sign = np.where(y == (1 if classes == 2 else k), 1.0, -1.0)
        P.append(objective(coef @ K_ZZ @ coef, K_XZ @ coef + b, sign, 1.0, b))
    # Features are float32, so the optimum is that of a problem perturbed by about 1e-5.
    assert np.all(P <= best * (1 + 1e-5) + mine.dual_gap_)
    assert np.all(best <= np.array(P) * (1 + 1e-5))
    apart = np.abs(mine.decision_function(X) - theirs.decision_function(phi))
    assert np.max(apart) <= np.sqrt(2 * mine.dual_gap_) * np.sqrt(2) + 1e-2


def test_gamma_scale_is_scikit_learns():
    X, y = rows()
    gamma = NystroemSVC(n_components=10, tol=0.1).fit(X, y).model_.kernel.gamma
    assert gamma == pytest.approx(svm.SVC(gamma="scale").fit(X, y)._gamma, rel=1e-6)
    thin = sparse.random_array((300, 40), density=0.1, format="csr", rng=np.random.default_rng(0))
    gamma = NystroemSVC(n_components=10, tol=0.1).fit(thin, y[:300]).model_.kernel.gamma
    assert gamma == pytest.approx(svm.SVC(gamma="scale").fit(thin, y[:300])._gamma, rel=1e-5)


MACHINES = [
    pytest.param(LinearSVC(tol=1e-4), id="linear"),
    pytest.param(NystroemSVC(n_components=30, random_state=0), id="nystroem"),
]


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csr_array, sparse.coo_array])
@pytest.mark.parametrize("machine", MACHINES)
def test_sparse_rows_give_the_machine_of_dense_rows(machine, make):
    X, y = rows(3, d=12)
    X[np.abs(X) < 1] = 0.0
    dense, thin = clone(machine).fit(X, y), clone(machine).fit(make(X), y)
    assert thin.model_.landmarks is None or sparse.issparse(thin.components_)
    ours, theirs = dense.decision_function(X), thin.decision_function(make(X))
    # Sums in another order, so another point within the gap.
    assert np.max(np.abs(ours - theirs)) <= 2 * np.max(reach(dense, X))
    np.testing.assert_allclose(thin.decision_function(X), theirs, atol=1e-5)


def same_scores(found, expected, rtol=0.0):
    """Assert equal scores; exact only if BLAS's results do not depend on the block of rows."""
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=0 if STEADY else 1e-5)


@pytest.mark.parametrize("machine", MACHINES)
def test_dask_arrays_give_the_machine_of_numpy_arrays(machine):
    X, y = rows(3)
    expected = clone(machine).fit(X, y)
    lazy, labels = da.from_array(X, chunks=(150, 3)), da.from_array(y, chunks=130)
    found = clone(machine).fit(lazy, labels)
    np.testing.assert_array_equal(found.model_.coef, expected.model_.coef)
    same_scores(found.decision_function(lazy), expected.decision_function(X))
    assert found.score(lazy, labels) == expected.score(X, y)
    assert found.n_features_in_ == X.shape[1]


def test_dask_of_sparse_blocks():
    X, y = rows(n=300)
    thin = sparse.csr_array(X)
    lazy = da.from_array(X, chunks=(70, 8)).map_blocks(
        sparse.csr_array, dtype=float, meta=sparse.csr_array((0, 0))
    )
    machine = LinearSVC().fit(lazy, y)
    np.testing.assert_array_equal(machine.coef_, LinearSVC().fit(thin, y).coef_)
    np.testing.assert_array_equal(machine.predict(lazy), machine.predict(X))


@pytest.mark.parametrize("thin", [False, True])
def test_dask_beyond_memory_goes_to_disk(thin, tmp_path):
    X, y = rows(n=1000)
    weights = np.tile([0.0, 1.0, 2.5, 1.0], 250)
    expected = LinearSVC().fit(sparse.csr_array(X) if thin else X, y, weights)
    lazy = da.from_array(X, chunks=(170, 5))
    if thin:
        lazy = lazy.rechunk({1: -1}).map_blocks(
            sparse.csr_array, dtype=float, meta=sparse.csr_array((0, 0))
        )
    folders = []

    class OnDisk(LinearSVC):
        _dask_fraction = 1e-12

        def _folder(self, owned):
            folders.append(super()._folder(owned))
            return folders[-1]

    found = OnDisk(work=tmp_path).fit(lazy, y, weights)
    np.testing.assert_array_equal(found.coef_, expected.coef_)
    assert folders and all(tmp_path in folder.parents for folder in folders)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("most", [1e9, 1.0])
@pytest.mark.parametrize("thin", [False, True])
def test_dask_chunks_with_fractions_after_whole_ones_keep_them(thin, most, tmp_path):
    X, y = rows(3, n=400)
    X = np.rint(3 * X).astype(float)
    X[200:] += np.random.default_rng(0).random((200, X.shape[1]))
    lazy = da.concatenate(  # float32 chunks, then float64 ones
        [
            da.from_array(X[:200].astype(np.float32), chunks=(90, -1)),
            da.from_array(X[200:], chunks=(90, -1)),
        ],
        allow_unknown_chunksizes=True,
    )
    if thin:
        lazy = lazy.map_blocks(sparse.csr_array, dtype=float, meta=sparse.csr_array((0, 0)))
    folder = iter([tmp_path / "a", tmp_path / "b"])  # float32 first, and float64 after it
    data = Labelled.of(lazy, y, None).rows(most, lambda: next(folder))
    assert isinstance(data, MemoryDataset if most > 1 else Dataset)
    found = data.X(0, 400)
    np.testing.assert_array_equal(found.toarray() if thin else found, X)


def test_rows_are_stored_on_their_grid(tmp_path):
    X, y = rows(n=1000)
    lazy = da.from_array(X, chunks=(90, 8))
    labelled = Labelled.of(lazy, y, np.arange(1000) % 3)
    stored = labelled.rows(0, lambda: tmp_path)
    assert isinstance(stored, Dataset)
    keep = np.arange(1000) % 3 > 0
    memory = MemoryDataset(X[keep], y[keep], [0, 1], (np.arange(1000) % 3.0)[keep])
    assert stored.fingerprint == memory.fingerprint


@pytest.fixture
def shuffled(tmp_path):
    """A store whose rows are not in the source's order, the source, and its labels."""
    X, y = rows(3, n=600)
    order = np.random.default_rng(0).permutation(600)
    names = np.array(["a", "b", "c"])
    writer = DatasetWriter(
        tmp_path / "store",
        Layout.of(
            n_rows=600,
            n_features=8,
            sparse=False,
            labels=names.tolist(),
            weights=False,
        ),
        Preparation(n_raw=8, scaling="minmax", factor=np.full(8, 0.5)),
    )
    for k in range(writer.n_chunks):
        part = order[slice(*writer.chunk(k))]
        writer.write(k, X[part] * 0.5, y[part], None, part)
    return writer.finish(), X, names[y], order


@pytest.mark.parametrize("machine", MACHINES)
def test_stores_give_the_machine_of_numpy_arrays(machine, shuffled):
    data, X, y, order = shuffled
    expected = clone(machine).fit(0.5 * X[order], y[order])
    found = clone(machine).fit(str(data.path))
    np.testing.assert_array_equal(found.model_.coef, expected.model_.coef)
    np.testing.assert_array_equal(found.classes_, ["a", "b", "c"])
    # Other rows are scaled as the store's were; a store's scores are in the source's order.
    np.testing.assert_allclose(found.decision_function(X), expected.decision_function(0.5 * X))
    same_scores(found.decision_function(data), found.decision_function(X), 1e-7)
    np.testing.assert_array_equal(found.predict(data.path), found.predict(X))
    assert found.score(data) == pytest.approx(found.score(X, y))


def test_store_brings_its_own_labels(shuffled):
    data, _, y, _ = shuffled
    with pytest.raises(InputError, match="brings its own labels"):
        LinearSVC().fit(data, y)
    machine = LinearSVC(tol=0.1).fit(data)
    with pytest.raises(InputError, match="brings its own labels"):
        machine.score(data, y)
    other = MemoryDataset(np.ones((4, 8), np.float32), [0, 1, 2, 0], ["a", "b", "c"])
    with pytest.raises(InputError, match="scaled or encoded otherwise"):
        machine.predict(other)


@pytest.mark.slow
def test_a_cluster_gives_the_machine_of_threads(tmp_path):
    X, y = rows()
    machine = NystroemSVC(n_components=30, random_state=0)
    expected = clone(machine).fit(X, y)
    with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:
        there = clone(machine).set_params(scheduler=cluster.scheduler_address, work=tmp_path)
        found = there.fit(X, y)
    np.testing.assert_array_equal(found.model_.coef, expected.model_.coef)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("machine", MACHINES)
def test_rows_of_weight_0_have_no_effect(machine):
    X, y = rows(3)
    weights = np.random.default_rng(1).integers(0, 3, len(y)).astype(float)
    y[weights == 0] = 7  # a class of no weight is no class
    keep = weights > 0
    found = clone(machine).set_params(class_weight="balanced").fit(X, y, weights)
    expected = clone(found).fit(X[keep], y[keep], weights[keep])
    np.testing.assert_array_equal(found.model_.coef, expected.model_.coef)
    np.testing.assert_array_equal(found.classes_, [0, 1, 2])


@pytest.mark.filterwarnings("ignore:n_components")
@pytest.mark.parametrize(
    "machine",
    [LinearSVC(tol=1e-5), NystroemSVC(n_components=1000, gamma=0.1, tol=1e-5)],
    ids=["linear", "nystroem"],
)
def test_integer_weights_are_repetitions(machine):
    X, y = rows(3, n=120)
    times = np.random.default_rng(1).integers(1, 4, len(y))
    weighted = clone(machine).fit(X, y, sample_weight=times)
    repeated = clone(machine).fit(np.repeat(X, times, axis=0), np.repeat(y, times))
    for one, other in zip(weighted.certificate_, repeated.certificate_, strict=True):
        # One problem: each dual is a lower bound of the other's primal, and all are close.
        assert one["dual"] <= other["primal"] * (1 + 1e-6)
        assert other["dual"] <= one["primal"] * (1 + 1e-6)
        assert one["primal"] == pytest.approx(other["primal"], rel=2.1e-5)
    plain = clone(machine).fit(X, y)
    assert plain.certificate_[0]["primal"] < 0.9 * weighted.certificate_[0]["primal"]


@pytest.mark.parametrize("given", ["balanced", {"x": 0.5, "y": 3.0}])
def test_class_weights_are_sample_weights(given):
    X, y = rows(3)
    y = np.array(["x", "x", "y", "z"])[y * (1 + (np.arange(len(y)) % 3 > 0)) % 4]
    full = given if given == "balanced" else {"z": 1.0, **given}
    mine = LinearSVC(loss="hinge", tol=1e-4, class_weight=given).fit(X, y)
    C = compute_sample_weight(full, y)
    theirs = reference(X, y, class_weight=full)
    P, best = linear_objectives(mine, X, y, C), linear_objectives(theirs, X, y, C)
    assert np.all(P <= best + mine.dual_gap_)
    assert np.all(best <= P * (1 + 1e-6))
    weighted = LinearSVC(loss="hinge", tol=1e-4).fit(X, y, sample_weight=C)
    np.testing.assert_allclose(linear_objectives(weighted, X, y, C), P, rtol=1e-4)


@pytest.mark.parametrize(
    "labels",
    [
        [-1, 1],
        [-1.0, 2.0],
        [False, True],
        ["10", "9"],
        np.array(["no", "yes"], dtype=object),
        np.array([2**40, 2**40 + 1], dtype=np.uint64),
    ],
    ids=repr,
)
def test_labels_of_any_type_are_predicted(labels, tmp_path):
    X, codes = rows()
    labels = np.asarray(labels)
    machine = LinearSVC(tol=0.01, class_weight={labels[0]: 2.0}).fit(X, labels[codes])
    np.testing.assert_array_equal(machine.classes_, labels)
    assert machine.classes_.dtype == labels.dtype
    assert machine.score(X, labels[codes]) > 0.75
    machine.model_.save(tmp_path / "model")
    loaded = Model.load(tmp_path / "model")
    np.testing.assert_array_equal(
        labels[loaded.decide(loaded.scores(X.astype(np.float32)))], machine.predict(X)
    )


def test_the_gap_is_proved_and_recorded():
    X, y = rows(3)
    machine = NystroemSVC(n_components=50, tol=1e-3, random_state=0).fit(X, y)
    gaps = [part["gap"] for part in machine.certificate_]
    assert len(gaps) == 3 and machine.dual_gap_ == max(gaps)
    relative = [part["gap"] / part["primal"] for part in machine.certificate_]
    assert machine.relative_gap_ == pytest.approx(max(relative)) and max(relative) <= 1e-3
    assert machine.n_iter_ == max(event["pass"] for event in machine.history_)
    assert {event["class"] for event in machine.history_} == {0, 1, 2}
    tight = NystroemSVC(n_components=50, tol=1e-5, random_state=0).fit(X, y)
    assert tight.relative_gap_ <= 1e-5
    with pytest.warns(ConvergenceWarning, match="missed tol"):
        short = NystroemSVC(n_components=50, tol=1e-5, max_iter=2).fit(X, y)
    assert short.relative_gap_ > 1e-5 and short.n_iter_ == 2
    # A gap that is small enough, of which rounding can have made more than tol.
    wide = np.random.default_rng(0).normal(size=(60, 200))
    with pytest.warns(ConvergenceWarning, match="is not proved to be within tol 1e-12; .*rounding"):
        machine = LinearSVC(loss="hinge", fit_intercept=False, tol=1e-12).fit(wide, y[:60] == 0)
    assert machine.relative_gap_ < 1e-12


def test_more_landmarks_than_rows_warn_and_use_all_rows():
    X, y = rows(n=60)
    with pytest.warns(UserWarning, match="n_components=61 is more than the 60 rows"):
        machine = NystroemSVC(n_components=61).fit(X, y)
    assert machine.components_.shape == (60, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NystroemSVC(n_components=60).fit(X, y)


def test_random_state_chooses_landmarks():
    X, y = rows()
    machine = NystroemSVC(n_components=20, tol=0.1, random_state=5)
    one, same = clone(machine).fit(X, y), clone(machine).fit(X, y)
    np.testing.assert_array_equal(one.decision_function(X), same.decision_function(X))
    other = clone(machine).set_params(random_state=6).fit(X, y)
    assert not np.array_equal(one.components_, other.components_)
    drawn = clone(machine).set_params(random_state=np.random.RandomState(0))
    assert not np.array_equal(drawn.fit(X, y).components_, drawn.fit(X, y).components_)


@pytest.mark.parametrize("machine", MACHINES)
def test_pickle_and_clone(machine):
    X, y = rows(3)
    fitted = clone(machine).fit(X, y)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.decision_function(X), fitted.decision_function(X))
    assert again.certificate_ == fitted.certificate_
    with pytest.raises(NotFittedError):
        clone(fitted).predict(X)


def test_verbose_shows_the_gap(capfd):
    X, y = rows()
    LinearSVC(tol=0.01).fit(X, y)
    assert capfd.readouterr() == ("", "")
    LinearSVC(tol=0.01, verbose=1).fit(X, y)
    assert "gap" in "".join(capfd.readouterr())


def test_many_rows_are_scored_on_threads():
    X, y = rows(n=300)
    machine = NystroemSVC(n_components=300, tol=0.1, n_jobs=2).fit(X, y)
    many = np.tile(X, (20, 1))
    scores = machine.decision_function(many).reshape(20, -1)
    np.testing.assert_allclose(scores, np.tile(machine.decision_function(X), (20, 1)), atol=1e-4)


def test_arrays_are_left_alone():
    X, y = rows()
    for form in (np.asfortranarray(X), X.astype(np.float32), np.round(X).astype(np.int8)):
        before = form.copy()
        form.flags.writeable = False
        machine = LinearSVC(tol=0.01).fit(form, y)
        np.testing.assert_array_equal(form, before)
        np.testing.assert_array_equal(machine.coef_, LinearSVC(tol=0.01).fit(before, y).coef_)


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (LinearSVC(C=0), "C must be a positive"),
        (LinearSVC(C=np.inf), "C must be a positive"),
        (LinearSVC(tol=-1), "tol must be a positive"),
        (LinearSVC(fit_intercept="maybe"), "fit_intercept must be"),
        (LinearSVC(solver="cd", fit_intercept="unpenalized"), "coordinate descent cannot"),
        (LinearSVC(n_jobs=0, C=2), "n_jobs must be"),
        (LinearSVC(class_weight="even"), "class_weight must be 'balanced'"),
        (LinearSVC(class_weight={5: 1.0}), "class_weight names 5"),
        (NystroemSVC(gamma=0), "gamma must be a positive"),
        (NystroemSVC(kernel="cubic"), "unknown kernel 'cubic'"),
        (NystroemSVC(n_components=0), "n_components must be a whole number, at least 1"),
        (NystroemSVC(n_components=10, memory=10_000), "memory"),
    ],
    ids=lambda value: "" if isinstance(value, str) else repr(value),
)
def test_bad_parameters_are_refused(machine, message):
    X, y = rows(n=2000, d=600)
    with pytest.raises(InputError, match=message):
        machine.fit(X, y)


def test_bad_rows_are_refused():
    X, y = rows()
    fit = LinearSVC().fit
    negative = np.where(np.arange(len(y)) == 9, -1.0, 1.0)
    with pytest.raises(ValueError, match="row 9: the weight -1.0"):
        fit(X, y, negative)
    with pytest.raises(ValueError, match="one for every row"):
        fit(X, y, np.ones(3))
    with pytest.raises(ValueError, match="only one class, 1"):
        fit(X, np.ones_like(y))
    with pytest.raises(ValueError, match="positive weights belong to the same class, 0"):
        fit(X, y, (y == 0).astype(float))
    with pytest.raises(ValueError, match="all samples have zero or negative weights"):
        fit(X, y, np.zeros(len(y)))
    with pytest.raises(ValueError, match="too large for 64-bit"):
        fit(np.where(X == X[7, 3], 1e300, X), y)
    with pytest.raises(ValueError, match="X has 400 rows and y has 399 labels"):
        fit(da.from_array(X, chunks=100), y[1:])
    lazy = da.from_array(X, chunks=100)
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        fit(lazy[lazy[:, 0] > 0], y)
    with pytest.raises(ValueError, match="8 features as input|expecting 8|fitted on 8"):
        fit(X, y).predict(lazy[:, :5])
    with pytest.raises(InputError, match="no such|does not exist|there is no"):
        fit("/nowhere/at/all")


def test_import_is_quick():
    """Nothing heavy is imported before it is used, and every public name is there."""
    heavy = ["numba", "sklearn", "scipy", "zarr", "distributed"]
    code = f"import sys, bigscreen; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    for name in bigscreen.__all__:
        assert getattr(bigscreen, name).__name__ == name
        assert name in dir(bigscreen)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bigscreen.nothing


def test_windows_is_refused_in_a_sentence():
    code = "import sys; sys.platform = 'win32'; import bigscreen"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: bigscreen runs on Linux and macOS")


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("shift", [0.0, 1e3, 1e6, -3e7])
def test_gamma_is_scaled_by_the_spread_wherever_the_rows_are(form, shift):
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(60, 3)), 2) + shift
    y = X[:, 0] > shift
    gamma = NystroemSVC(n_components=5).fit(form(X), y).model_.kernel.gamma
    held = X.astype(np.longdouble)
    assert gamma == pytest.approx(float(1 / (3 * held.var())), rel=1e-8)


def test_rows_that_are_all_the_same_have_no_scale():
    X = np.full((20, 3), 0.1)
    gamma = NystroemSVC(n_components=2).fit(X, np.arange(20) % 2).model_.kernel.gamma
    assert gamma == 1.0


def test_what_ingest_returns_is_fitted(tmp_path):
    X = np.random.default_rng(0).normal(size=(80, 2))
    y = np.where(X[:, 0] > 0, "in", "out")
    made = ingest((X, y), tmp_path / "s", holdout=0.25)
    machine = NystroemSVC(n_components=10, random_state=0)
    one, other = (clone(machine).fit(rows) for rows in (made, made.store))
    assert np.array_equal(one.coef_, other.coef_) and list(one.classes_) == ["in", "out"]
    with pytest.raises(InputError, match="brings its own labels"):
        machine.fit(made, y)


def test_a_machine_of_a_table_takes_tables_by_name(tmp_path):
    """Texts, gaps and the order of columns are those of the table that was ingested."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=80), "b": rng.choice(["x", "y"], 80)})
    table["left"] = (table["a"] > 0) ^ (table["b"] == "x")
    table.loc[3, "a"] = np.nan
    made = ingest(table, tmp_path / "s", label="left", impute="median", scale="standard")
    for machine in (LinearSVC(), NystroemSVC(n_components=40, C=100, probability=True)):
        machine.fit(made)
        expected = machine.decision_function(made.store)
        for rows in (table[["a", "b"]], table[["left", "b", "a"]]):
            assert np.allclose(machine.decision_function(rows), expected, atol=1e-5)
        with pytest.raises(InputError, match="no column 'b'"):
            machine.predict(table[["a"]])
    assert np.allclose(machine.predict_proba(table), machine.predict_proba(made.store), atol=1e-5)
    assert machine.score(table[["b", "a"]], table["left"]) > 0.9
