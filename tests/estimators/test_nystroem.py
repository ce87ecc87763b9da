"""`Nystroem`: the same features from every form of rows, stored ones too; own landmarks."""

import pickle

import dask.array as da
import numpy as np
import pytest
import zarr
from scipy import sparse
from sklearn.base import clone
from sklearn.kernel_approximation import Nystroem as Theirs
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import bigscreen
from bigscreen import InputError, Nystroem
from bigscreen.kernels.operand import Operand


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return (rng.normal(size=(500, 6)) * (rng.random((500, 6)) < 0.7)).astype(np.float32)


@pytest.mark.filterwarnings("ignore:n_components=:UserWarning")
@parametrize_with_checks([Nystroem(), Nystroem("matern32", sampling="rpcholesky")])
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_features_are_those_of_the_landmarks(X):
    made = Nystroem(gamma=0.2, n_components=60, random_state=1).fit(X)
    F = made.transform(X)
    r, m = made.normalization_.shape
    assert F.dtype == np.float32 and F.shape == (500, r) and m == 60 >= r
    np.testing.assert_array_equal(made.components_, X[made.component_indices_])
    kernel = made._design.kernel
    K = kernel.block(X, Operand(made.components_), dtype=np.float64)
    np.testing.assert_allclose(F, K @ made.normalization_.T, atol=1e-5)
    judge = Theirs(kernel="rbf", gamma=0.2, n_components=60)
    judge.fit(made.components_.astype(float))  # (takes all rows as landmarks)
    other = judge.transform(X.astype(float))
    np.testing.assert_allclose(F @ F.T, other @ other.T, atol=1e-5)
    assert list(made.get_feature_names_out()) == [f"nystroem{k}" for k in range(r)]


def test_every_form_of_rows_has_the_same_features(X, tmp_path):
    machine = Nystroem(kernel="matern52", gamma=0.3, n_components=40, random_state=3)
    F = machine.fit_transform(X)
    np.testing.assert_allclose(
        clone(machine).fit_transform(sparse.csr_array(X)), F, rtol=0, atol=2e-4
    )
    lazy = da.from_array(X, chunks=(130, 3))
    found = clone(machine).fit(lazy).transform(lazy)
    assert isinstance(found, da.Array) and found.chunks[0] == (130, 130, 130, 110)
    np.testing.assert_allclose(found.compute(), F, rtol=0, atol=2e-5)
    array = zarr.create_array(tmp_path / "a.zarr", shape=X.shape, chunks=(200, 6), dtype="f4")
    array[:] = X
    made = clone(machine).set_params(work=tmp_path / "work").fit(array)
    np.testing.assert_allclose(made.transform(array), F, rtol=0, atol=2e-5)
    assert list((tmp_path / "work").iterdir()) == []
    again = pickle.loads(pickle.dumps(machine))
    np.testing.assert_array_equal(again.transform(X[:50]), machine.transform(X[:50]))


@pytest.mark.parametrize("stored", [False, True])
def test_features_of_a_store_are_a_store(X, tmp_path, stored):
    y = np.where(X[:, 0] + X[:, 1] ** 2 > 0.5, "yes", "no")
    data = bigscreen.ingest((X, y), tmp_path / "s", scale="standard", seed=0).store
    work = tmp_path / "work" if stored else None
    machine = Nystroem(n_components=50, random_state=0, work=work).fit(data)
    made = machine.transform(str(tmp_path / "s"))
    r = machine.normalization_.shape[0]
    assert made.n_features == r and made.labels == data.labels
    order = made.row_ids(0, 500) if stored else data.row_ids(0, 500)
    F = machine.transform(X)  # raw rows, which get the preparation of the store
    np.testing.assert_allclose(made.X(0, 500), F[order], atol=1e-5)
    assert (made.path is not None) == stored
    if stored:
        assert list(work.iterdir()) == [made.path]
    linear = bigscreen.LinearSVC(loss="hinge", random_state=0).fit(made)
    assert linear.score(made) > 0.9 and linear.n_features_in_ == r
    assert np.mean(linear.predict(F) == y) > 0.9
    other = bigscreen.ingest((X[:, :4], y), tmp_path / "other").store
    with pytest.raises(InputError, match="other columns"):
        machine.transform(other)


def test_own_landmarks(X):
    Z = X[[3, 1, 4, 1]]
    made = Nystroem(gamma=0.5, components=Z).fit(X)
    assert made.component_indices_ is None and made.normalization_.shape == (3, 4)
    F = made.transform(Z)
    K = np.exp(-0.5 * ((Z[:, None] - Z[None]) ** 2).sum(axis=2))
    np.testing.assert_allclose(F @ F.T, K, atol=1e-5)
    with pytest.raises(InputError, match="components have 5 columns and X has 6"):
        Nystroem(components=Z[:, :5]).fit(X)
    with pytest.raises(InputError, match="precomputed"):
        Nystroem("precomputed").fit(X)


def test_a_pipeline_fits_the_machine_on_landmarks(X):
    y = X[:, 0] + X[:, 1] ** 2 > 0.5
    pipeline = make_pipeline(
        Nystroem(gamma=0.3, n_components=80, random_state=5),
        bigscreen.LinearSVC(loss="hinge", tol=1e-4, random_state=0),
    ).fit(X, y)
    whole = bigscreen.NystroemSVC(gamma=0.3, n_components=80, tol=1e-4, random_state=5).fit(X, y)
    one, other = (m.certificate_[0]["primal"] for m in (pipeline[-1], whole))
    assert one == pytest.approx(other, rel=2e-4)


def test_regressions_on_landmarks_have_coefficients(X):
    y = np.sin(X[:, 0]) + X[:, 1]
    machine = bigscreen.SVR(n_components=40, gamma=0.3).fit(X, y)
    K = machine.model_.kernel.block(X, Operand(machine.components_), dtype=np.float64)
    np.testing.assert_allclose(
        machine.predict(X), K @ machine.coef_[0] + machine.intercept_[0], atol=1e-4
    )
    assert not hasattr(bigscreen.SVR().fit(X, y), "coef_")
