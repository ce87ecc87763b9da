"""Predictions and kernel columns of Dask arrays and data frames are lazy Dask arrays."""

import os
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from scipy import sparse
from sklearn.exceptions import NotFittedError

import bigscreen.dask
from bigscreen import (
    SVC,
    SVR,
    LinearSVC,
    LinearSVR,
    Model,
    NuSVC,
    NystroemSVC,
    OneClassSVM,
    SVCPathCV,
)
from bigscreen.errors import InputError
from bigscreen.fleet.blas import blas_threads
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import make_kernel

N, D, CHUNK = 700, 6, 190


@pytest.fixture(scope="module")
def rows():
    X = np.random.default_rng(0).normal(size=(N, D))
    return X, np.where(X[:, 0] + X[:, 1] ** 2 > 0.5, "yes", "no")


@pytest.fixture(scope="module")
def machine(rows):
    return NystroemSVC(n_components=40, random_state=0, probability=True).fit(*rows)


def in_blocks(function, X):
    """Answers for the blocks of rows of X in memory, by one thread of BLAS each."""
    with blas_threads(1):
        return np.concatenate([function(X[a : a + CHUNK]) for a in range(0, len(X), CHUNK)])


def assert_same(lazy, expected):
    """Assert that a lazy array has the type, shape and bits of an array."""
    assert isinstance(lazy, da.Array)
    assert lazy.dtype == expected.dtype and lazy.ndim == expected.ndim
    np.testing.assert_array_equal(lazy.compute(), expected)
    assert np.isnan(lazy.shape[0]) or lazy.shape == expected.shape


def counted(X, folder):
    """A Dask array of X that notes in a folder when a block is computed, and by which process."""

    def read(block, block_info=None):
        if block_info:
            place = block_info[0]["chunk-location"][0]
            (folder / f"{place}-{os.getpid()}").touch()
        return block

    return da.from_array(X, chunks=(CHUNK, -1)).map_blocks(read, dtype=X.dtype)


@pytest.mark.parametrize("kernel", ["rbf", "poly", "laplacian", "sigmoid", "linear", "matern32"])
@pytest.mark.parametrize("thin", [False, True])
def test_kernel_columns_are_the_kernels_entries(rows, kernel, thin):
    X, _ = rows
    Z = X[:30]
    lazy = da.from_array(X, chunks=(CHUNK, -1 if thin else 4))
    if thin:
        lazy = lazy.map_blocks(sparse.csr_array, dtype=float, meta=sparse.csr_array((0, 0)))
    found = bigscreen.dask.kernel_columns(lazy, Z, kernel=kernel, gamma=0.3, degree=2, coef0=0.5)
    assert found.chunks == ((CHUNK, CHUNK, CHUNK, N - 3 * CHUNK), (30,))
    own, side = make_kernel(kernel, 0.3, 2, 0.5), Operand(Z)
    kind = sparse.csr_array if thin else np.asarray
    assert_same(found, in_blocks(lambda block: own.block(kind(block), side), X))


def test_gamma_of_kernel_columns_is_one_over_the_columns(rows):
    X, _ = rows
    lazy = da.from_array(X, chunks=(CHUNK, -1))
    found = bigscreen.dask.kernel_columns(lazy, X[:5]).compute()
    distances = ((X[:, None] - X[None, :5]) ** 2).sum(axis=2)
    np.testing.assert_allclose(found, np.exp(-distances / D), rtol=1e-5)


@pytest.mark.parametrize("thin", [False, True])
@pytest.mark.parametrize("kind", ["model", "estimator"])
def test_answers_have_the_bits_of_the_answers_in_memory(rows, machine, kind, thin):
    X, _ = rows
    owner = machine if kind == "estimator" else machine.model_
    lazy, own = da.from_array(X, chunks=(CHUNK, -1 if thin else 4)), np.asarray
    if thin:
        own = sparse.csr_array
        lazy = lazy.map_blocks(own, dtype=float, meta=own((0, 0)))
    for name in ("decision_function", "predict", "predict_proba"):
        method = getattr(owner, name)
        expected = in_blocks(lambda block, method=method: method(own(block)), X)
        assert_same(method(lazy), expected)
        assert_same(getattr(bigscreen.dask, name)(owner, lazy), expected)
    sets = in_blocks(lambda block: owner.predict_set(own(block), alpha=0.2), X)
    assert_same(owner.predict_set(lazy, alpha=0.2), sets)


@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda: SVC(),
        lambda: SVC(decision_function_shape="ovo"),
        lambda: SVC(kernel=lambda A, B: np.asarray(A @ B.T)),
        lambda: NuSVC(nu=0.2),
        lambda: NystroemSVC(n_components=40, random_state=0),
        lambda: LinearSVC(n_jobs=2),
        lambda: SVCPathCV(Cs=[0.1, 1.0], cv=2),
    ],
)
def test_classifiers_answer_dask_arrays(rows, make, labels):
    X, y = rows
    y = np.where(X[:, 2] > 0.8, "perhaps", y) if labels == 3 else y
    fitted = make().fit(X[:300], y[:300])
    for method in (fitted.decision_function, fitted.predict):
        assert_same(method(da.from_array(X, chunks=(CHUNK, 3))), in_blocks(method, X))


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_probabilities_of_pairs_answer_dask_arrays(rows):
    X, y = rows
    fitted = SVC(probability=True).fit(X[:300], y[:300])
    for method in (fitted.predict_proba, fitted.predict_log_proba):
        assert_same(method(da.from_array(X, chunks=(CHUNK, -1))), in_blocks(method, X))


@pytest.mark.parametrize("make", [SVR, LinearSVR])
def test_regressors_answer_dask_arrays(rows, make):
    X, _ = rows
    fitted = make().fit(X[:300], X[:300, 0])
    lazy = da.from_array(X, chunks=(CHUNK, -1))
    expected = in_blocks(fitted.predict, X)
    assert_same(fitted.predict(lazy), expected)
    assert_same(bigscreen.dask.decision_function(fitted.model_, lazy), expected)


def test_one_class_machines_answer_dask_arrays(rows):
    X, _ = rows
    fitted = OneClassSVM(nu=0.2).fit(X[:300])
    for method in (fitted.decision_function, fitted.score_samples, fitted.predict):
        assert_same(method(da.from_array(X, chunks=(CHUNK, -1))), in_blocks(method, X))


def test_nothing_is_computed_before_it_is_needed(rows, machine, tmp_path):
    X, _ = rows
    lazy = counted(X, tmp_path)
    found = [
        bigscreen.dask.kernel_columns(lazy, X[:9]),
        bigscreen.dask.features(lazy, machine),
        bigscreen.dask.decision_function(machine, lazy),
        bigscreen.dask.predict(machine.model_, lazy),
        bigscreen.dask.predict_proba(machine.model_, lazy),
    ]
    assert not [*tmp_path.iterdir()]
    found[0][:1].compute()
    assert [path.name[0] for path in tmp_path.iterdir()] == ["0"]


def test_the_graph_has_a_task_for_each_block_and_one_for_the_machine(rows, machine):
    lazy = da.from_array(rows[0], chunks=(CHUNK, -1))
    found = machine.predict(lazy)
    own = {key: task for key, task in dict(found.dask).items() if key not in lazy.dask}
    blocks = {key for key in own if isinstance(key, tuple)}
    (shared,) = own.keys() - blocks
    assert len(blocks) == lazy.numblocks[0]
    for key in blocks:
        assert own[key].dependencies == {shared, (lazy.name, key[1], 0)}
        assert key[0].startswith("predict-")


def test_blocks_of_unknown_sizes_and_without_rows(rows, machine):
    X, _ = rows
    lazy = da.from_array(X, chunks=(CHUNK, 4))
    some = lazy[(lazy[:, 0] > 1.0) & (da.arange(N, chunks=CHUNK) < 300)]
    assert np.isnan(some.shape[0])
    kept = X[(X[:, 0] > 1.0) & (np.arange(N) < 300)]
    found = machine.predict_proba(some)
    assert found.shape[1] == 2
    np.testing.assert_allclose(found.compute(), machine.predict_proba(kept), atol=1e-6)
    assert bigscreen.dask.kernel_columns(some, X[:5]).compute().shape == (len(kept), 5)


def test_columns_of_a_data_frame_are_looked_up_by_name(rows, tmp_path):
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    X, y = rows
    table = pd.DataFrame(X, columns=list("abcdef"))
    fitted = NystroemSVC(n_components=40, random_state=0).fit(table, y)
    expected = fitted.decision_function(table)
    frame = dd.from_pandas(table.assign(g=1.0)[list("gfedcba")], npartitions=3)
    found = fitted.decision_function(frame)
    assert isinstance(found, da.Array)
    np.testing.assert_allclose(found.compute(), expected, atol=1e-6)
    phi = bigscreen.dask.features(frame, fitted).compute()
    same = bigscreen.dask.features(da.from_array(X, chunks=(CHUNK, -1)), fitted).compute()
    np.testing.assert_allclose(phi, same, atol=1e-4)
    with pytest.raises(InputError, match="no column 'b', which the machine was fitted on"):
        fitted.predict(frame[["a", "c"]])


def test_a_model_of_a_table_answers_a_dask_data_frame(rows, tmp_path):
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    X, y = rows
    table = pd.DataFrame(X[:, :3], columns=list("abc"))
    table["colour"] = np.where(X[:, 3] > 0, "red", "blue")
    table["label"] = y
    store = bigscreen.ingest(table, tmp_path / "rows.store", label="label").store
    model = NystroemSVC(n_components=40, random_state=0).fit(store).model_
    frame = dd.from_pandas(table[["colour", "c", "label", "b", "a"]], npartitions=3)
    for name in ("scores", "predict"):
        expected = getattr(model, name)(table)
        found = getattr(model, name)(frame)
        assert isinstance(found, da.Array)
        found = found.compute()
        if name == "scores":
            np.testing.assert_allclose(found, expected, atol=1e-6)
        else:
            np.testing.assert_array_equal(found, expected)


def test_a_score_computes_each_block_once(rows, machine, tmp_path):
    X, y = rows

    def read(block):
        if len(block) > 1:
            with (tmp_path / "log").open("a") as log:
                log.write("block\n")
        return block

    lazy = da.from_array(X, chunks=(CHUNK, -1)).map_blocks(read, dtype=float)
    assert machine.score(lazy, da.from_array(y, chunks=100)) == machine.score(X, y)
    assert len((tmp_path / "log").read_text().splitlines()) == 4


@pytest.mark.slow
def test_workers_of_the_active_client_answer(rows, machine, tmp_path):
    X, _ = rows
    expected = in_blocks(machine.decision_function, X)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        lazy = counted(X, tmp_path)
        assert_same(bigscreen.dask.decision_function(machine.model_, lazy), expected)
        pids = set(client.run(os.getpid).values())
        assert_same(machine.predict(lazy), in_blocks(machine.predict, X))
    seen = {int(path.name.split("-")[1]) for path in tmp_path.iterdir()}
    assert seen <= pids and os.getpid() not in pids


def test_what_does_not_fit_is_refused_in_a_sentence(rows, machine):
    X, y = rows
    lazy = da.from_array(X, chunks=(CHUNK, -1))
    model = machine.model_
    for call in (
        lambda X: bigscreen.dask.predict(machine, X),
        lambda X: bigscreen.dask.predict(model, X),
        lambda X: bigscreen.dask.kernel_columns(X, rows[0][:9]),
    ):
        with pytest.raises(InputError, match=r"X has 4 columns and .* 6; give X the same columns"):
            call(lazy[:, :4])
        with pytest.raises(InputError, match=r"two dimensions, rows and columns, not 1: use"):
            call(lazy[:, 0])
        for other in (X, dask.delayed(X)):
            with pytest.raises(InputError, match=r"X must be a Dask array or data frame, not \w+:"):
                call(other)
    with pytest.raises(NotFittedError):
        SVC().predict(lazy)
    with pytest.raises(InputError, match=r"unknown kernel 'cubic'"):
        bigscreen.dask.kernel_columns(lazy, X[:9], kernel="cubic")
    with pytest.raises(InputError, match=r"precomputed kernel has no entries to compute"):
        bigscreen.dask.kernel_columns(lazy, X[:9], kernel="precomputed")
    with pytest.raises(InputError, match="this LinearSVR has no decision_function; give a"):
        bigscreen.dask.decision_function(LinearSVR().fit(X, X[:, 0]), lazy)
    plain = LinearSVC().fit(X, y).model_
    with pytest.raises(InputError, match="probabilities, sets of labels and thresholds are of"):
        bigscreen.dask.predict_proba(plain, lazy)


@pytest.mark.parametrize("kernel", ["rbf", "polynomial"])
@pytest.mark.parametrize("place", [0.0, 1e5])
def test_features_carry_the_scores_of_the_machine(rows, tmp_path, kernel, place):
    X, y = rows
    X = X + place if kernel == "rbf" else X
    fitted = NystroemSVC(kernel, n_components=100, random_state=0).fit(X, y)
    lazy = da.from_array(X, chunks=(CHUNK, 4))
    found = bigscreen.dask.features(lazy, fitted)
    rank = fitted.certificate_[0]["rank"]
    assert found.shape == (N, rank) and found.dtype == np.float32
    phi = found.compute().astype(float)
    scores = fitted.decision_function(X) - fitted.intercept_
    w = np.linalg.lstsq(phi, scores, rcond=None)[0]
    np.testing.assert_allclose(phi @ w, scores, atol=1e-4 * np.abs(scores).max())
    fitted.model_.save(tmp_path / "model.bsm")
    again = bigscreen.dask.features(lazy, Model.load(tmp_path / "model.bsm")).compute()
    np.testing.assert_array_equal(again, found.compute())


def test_features_of_sparse_rows_are_those_of_dense_rows(rows, machine):
    X, _ = rows
    lazy = da.from_array(X, chunks=(CHUNK, 4))
    thin = lazy.map_blocks(sparse.csr_array, dtype=float, meta=sparse.csr_array((0, 0)))
    phi, same = (bigscreen.dask.features(each, machine).compute() for each in (lazy, thin))
    np.testing.assert_allclose(same, phi, atol=1e-4)


def test_inner_products_of_features_are_the_kernel_between_landmarks(rows):
    X, y = rows
    fitted = NystroemSVC(n_components=50, gamma=0.2, random_state=0).fit(X, y)
    Z = da.from_array(fitted.components_, chunks=(20, -1))
    phi = bigscreen.dask.features(Z, fitted.model_)
    exact = bigscreen.dask.kernel_columns(Z, fitted.components_, gamma=0.2)
    np.testing.assert_allclose((phi @ phi.T).compute(), exact.compute(), atol=1e-4)


def test_features_have_the_rank_of_the_fit_wherever_rounding_cuts(rows):
    """Another machine's rounding may find another number of directions above the cutoff."""
    X, y = rows
    model = NystroemSVC("polynomial", n_components=100, random_state=0).fit(X, y).model_
    record, lazy = model.provenance["nystrom"], da.from_array(X, chunks=(CHUNK, -1))
    assert record["rank"] < 100

    def of_rank(rank):
        nystrom = {**record, "rank": rank}
        known = replace(model, provenance={**model.provenance, "nystrom": nystrom})
        return bigscreen.dask.features(lazy, known)

    phi, fewer, more = (of_rank(record["rank"] + change) for change in (0, -1, 1))
    assert (phi.shape[1], fewer.shape[1], more.shape[1]) == (56, 55, 57)
    np.testing.assert_allclose(fewer.compute(), phi[:, 1:].compute(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(more[:, 1:].compute(), phi.compute(), rtol=1e-5, atol=1e-6)
    assert not more[:, 0].compute().any()


def test_lazy_arrays_are_written_block_by_block(rows, machine, tmp_path):
    zarr = pytest.importorskip("zarr")
    lazy = da.from_array(rows[0], chunks=(CHUNK, -1))
    phi = bigscreen.dask.features(lazy, machine)
    phi.to_zarr(str(tmp_path / "features.zarr"))
    np.testing.assert_array_equal(zarr.open(tmp_path / "features.zarr")[:], phi.compute())


def test_machines_without_landmarks_have_no_features(rows):
    X, y = rows
    for fitted in (SVC().fit(X, y), LinearSVC().fit(X, y)):
        with pytest.raises(InputError, match="of a machine on landmarks"):
            bigscreen.dask.features(da.from_array(X, chunks=CHUNK), fitted)
