"""Landmarks, factor and features against explicit algebra; stored and recomputed features agree."""

import warnings

import contracts
import numpy as np
import pytest
from scipy import sparse

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import make_kernel
from bigscreen.problems.recipes import CSvc
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Run

KERNELS = ["rbf", "laplacian", "polynomial", "linear"]


@pytest.fixture(scope="module")
def fleet():
    with Inline(1) as fleet:
        yield fleet


def design_of(data, kernel="rbf", count=40, gamma=0.2, sampling="uniform"):
    made = make_kernel(kernel, gamma, 2, 1.0)
    side, ids = nystrom.choose_landmarks(data, made, count, sampling, 5)
    return Design(data, made, side, nystrom.factor_matrix(made, side)), ids


@pytest.mark.parametrize("name", [*KERNELS, "sigmoid"])
@pytest.mark.parametrize("sparse_rows", [False, True])
def test_every_kernel_keeps_the_law_of_kernels(name, sparse_rows):
    X = contracts.rows(0, n=70, d=9, sparse_rows=sparse_rows).X(0, 70)
    contracts.kernel_law(make_kernel(name, 0.3, 3, 0.5), X)


@pytest.mark.parametrize("sampling", ["uniform", "rpcholesky"])
@pytest.mark.parametrize("sparse_rows", [False, True])
def test_landmarks_are_distinct_rows_by_seed(sampling, sparse_rows):
    data = contracts.rows(0, n=300, sparse_rows=sparse_rows)
    kernel = make_kernel("rbf", 0.2)
    side, ids = nystrom.choose_landmarks(data, kernel, 50, sampling, 1)
    assert len(side) == 50 and ids.dtype == np.int64
    assert np.all(np.diff(ids) > 0) and 0 <= ids[0] and ids[-1] < 300
    found, taken = side.X, data.rows(ids)
    if sparse_rows:
        found, taken = found.toarray(), taken.toarray()
    np.testing.assert_array_equal(found, taken)
    assert np.array_equal(nystrom.choose_landmarks(data, kernel, 50, sampling, 1)[1], ids)
    assert not np.array_equal(nystrom.choose_landmarks(data, kernel, 50, sampling, 2)[1], ids)


def test_all_rows_can_be_landmarks():
    data = contracts.rows(0, n=60)
    for sampling in ("uniform", "rpcholesky"):
        ids = nystrom.choose_landmarks(data, make_kernel("rbf", 0.2), 60, sampling, 0)[1]
        assert ids.tolist() == list(range(60))


def test_rpcholesky_of_a_kernel_of_low_rank():
    """Nothing is left after d pivots: the rest is filled up with further, distinct rows."""
    data = contracts.rows(0, n=80, d=3)
    ids = nystrom.choose_landmarks(data, make_kernel("linear"), 20, "rpcholesky", 0)[1]
    assert len(set(ids.tolist())) == 20


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_pivots_end_even_if_float32_residuals_are_too_large(scale):
    """Rows far from 0 whose entries are tiny, twice each, would be drawn forever and rejected."""
    rng = np.random.default_rng(0)
    X = scale * (1.0 + 1e-4 * rng.normal(size=(34, 3)))
    X = np.concatenate([X, X])
    data = MemoryDataset(X, np.arange(68) % 2, [0, 1])
    made = make_kernel("polynomial", 0.02 / scale**2, 5, 0.0)
    _, ids = nystrom.choose_landmarks(data, made, 18, "rpcholesky", 0)
    assert len(np.unique(ids)) == 18


def test_rpcholesky_beats_uniform_on_clusters():
    """Small clusters are found: the trace that is left is smaller, on average over seeds."""
    rng = np.random.default_rng(0)
    centres = 20 * rng.normal(size=(12, 4))
    member = np.minimum(rng.geometric(0.4, 600) - 1, 11)
    X = (centres[member] + 0.3 * rng.normal(size=(600, 4))).astype(np.float32)
    data = MemoryDataset(X, member % 2, [0, 1])
    kernel = make_kernel("rbf", 0.2)
    left = {}
    for sampling in ("uniform", "rpcholesky"):
        left[sampling] = 0.0
        for seed in range(5):
            side, _ = nystrom.choose_landmarks(data, kernel, 30, sampling, seed)
            phi = kernel.block(X, side, dtype=np.float64) @ nystrom.factor_matrix(kernel, side)
            left[sampling] += 600 - np.sum(phi**2)
    assert left["rpcholesky"] < 0.7 * left["uniform"]


@pytest.mark.parametrize(
    ("count", "sampling", "message"), [(61, "uniform", "61 landmarks"), (5, "grid", "sampling")]
)
def test_bad_requests_for_landmarks_are_refused(count, sampling, message):
    with pytest.raises(InputError, match=message):
        nystrom.choose_landmarks(
            contracts.rows(0, n=60), make_kernel("rbf", 0.2), count, sampling, 0
        )


@pytest.mark.parametrize("name", KERNELS)
def test_the_factor_whitens_the_landmarks(name):
    design, _ = design_of(contracts.rows(0, n=200), name)
    gram = design.kernel.block(design.landmarks, design.landmarks, dtype=np.float64)
    T = design.factor
    np.testing.assert_allclose(T.T @ gram @ T, np.eye(T.shape[1]), atol=1e-8)
    # T T' is the pseudo-inverse: features reproduce the kernel between landmarks.
    phi = gram @ T
    np.testing.assert_allclose(phi @ phi.T, gram, atol=3e-6 * np.linalg.norm(gram, 2))


def test_repeated_landmarks_are_truncated():
    X = np.repeat(np.random.default_rng(0).normal(size=(5, 3)), 4, axis=0).astype(np.float32)
    data = MemoryDataset(X, np.arange(20) % 2, [0, 1])
    design, _ = design_of(data, count=20)
    assert design.rank <= 5


def test_a_kernel_of_zeros_is_refused():
    data = MemoryDataset(np.zeros((10, 3), np.float32), np.arange(10) % 2, [0, 1])
    with pytest.raises(InputError, match="zero everywhere"):
        design_of(data, "linear", count=5)


@pytest.mark.parametrize("gamma", [0.05, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("sparse_rows", [False, True])
def test_score_errors_are_bounded(gamma, sparse_rows):
    """float32 columns, outliers among the rows: the bound of every score's error holds."""
    data = contracts.rows(0, n=200, d=6, sparse_rows=sparse_rows)
    X = (data.X(0, 200).toarray() if sparse_rows else data.X(0, 200)).copy()
    X[0] *= 30  # The longest row is far from every landmark: its own entries have no error.
    X = sparse.csr_array(X) if sparse_rows else X
    data = MemoryDataset(X, data.y(0, 200), [0, 1])
    made = make_kernel("rbf", gamma)
    side = Operand(data.rows(np.arange(1, 61)))
    design = Design(data, made, side, nystrom.factor_matrix(made, side))
    coef = np.random.default_rng(0).normal(size=60)
    exactly = made.block(data.X(0, 200), side, dtype=np.float64) @ coef
    error = np.abs(design.dots(data.X(0, 200), coef[:, None])[:, 0] - exactly)
    assert error.max() <= design.score_error(coef)
    in_float64 = design.dots(data.X(0, 200), coef[:, None], np.float64)[:, 0]
    assert np.abs(in_float64 - exactly).max() <= design.score_error(coef, np.float64)


@pytest.mark.parametrize("name", [*KERNELS, "sigmoid"])
def test_norms_bound_features(name):
    data = contracts.rows(0, n=150)
    design, _ = design_of(data, name, gamma=0.1)
    for dtype in (np.float32, np.float64):
        phi = design.columns(data.X(0, 150), dtype).astype(np.float64) @ design.factor
        norms = np.linalg.norm(phi, axis=1)
        assert np.all(norms <= design.norms(data.X(0, 150), data.sqnorms(0, 150)))
    assert np.abs(design.columns(data.X(0, 150))).max() <= design.column_bound * (1 + 1e-6)


@pytest.mark.parametrize("intercept", contracts.INTERCEPTS)
@pytest.mark.parametrize("name", ["rbf", "laplacian", "polynomial"])
def test_stored_and_recomputed_features_give_the_same_model(name, intercept, fleet):
    """To rounding.

    float32 features are off by their own rounding and by that of the columns, which T amplifies, so
    ``|u - u'| <= ||w|| delta`` and P by the box times that. Scores follow from the strong convexity
    of P: ``1/2 ||w - w'||^2`` is at most what P can differ by.
    """
    data = contracts.rows(1, n=200)
    design, _ = design_of(data, name, count=30, gamma=0.1)
    stored = nystrom.store_features(design, fleet, None)
    problem = CSvc(1.0, 1, (1.0, 2.0), intercept)
    found = [fit(Run(d, problem, fleet), Newton(1e-5), Limits(1e-5, 200)) for d in (design, stored)]
    one, other = found
    assert one.certificate.relative_gap <= 1e-5 and other.certificate.relative_gap <= 1e-5

    phi = design.columns(data.X(0, 200), np.float64) @ design.factor
    kept = stored.data.X(0, 200).astype(np.float64)
    delta = np.linalg.norm(kept - phi, axis=1).max()
    assert delta <= 2e-5 * np.linalg.norm(phi, axis=1).max(), "stored features are phi"
    box = 2.0 * data.weights(0, 200).sum()
    size = max(np.linalg.norm(f.point.w) for f in found)
    apart = sum(f.certificate.gap for f in found)
    apart += 2 * box * (size * delta + design.score_error(one.point.coef))
    assert abs(one.certificate.primal - other.certificate.primal) <= apart
    moved = np.linalg.norm(one.point.w - other.point.w)
    assert 0.5 * moved**2 <= 2 * apart
    # What a model is made of: coefficients of the kernel columns.
    np.testing.assert_allclose(
        phi @ one.point.w, kept @ other.point.w, atol=moved * np.linalg.norm(phi, axis=1).max()
        + size * delta,
    )  # fmt: skip


def test_features_on_disk_are_reused_only_for_the_same_problem(fleet, tmp_path):
    data = contracts.rows(1, n=200)
    design, _ = design_of(data)
    steps = []
    first = nystrom.store_features(design, fleet, tmp_path, lambda *at: steps.append(at))
    assert steps[-1][0] == steps[-1][1]
    steps.clear()
    again = nystrom.store_features(design, fleet, tmp_path, lambda *at: steps.append(at))
    assert not steps and again.data.fingerprint == first.data.fingerprint
    other, _ = design_of(contracts.rows(2, n=200))
    assert nystrom.store_features(other, fleet, tmp_path).data.path != first.data.path


def test_features_are_float64_if_requested(fleet, tmp_path):
    data = contracts.rows(1, n=200)
    design, _ = design_of(data)
    phi = design.features_of(design.columns(data.X(0, 200), np.float64))
    narrow = nystrom.store_features(design, fleet, tmp_path)
    for folder in (None, tmp_path):
        wide = nystrom.store_features(design, fleet, folder, dtype=np.float64)
        np.testing.assert_array_equal(wide.data.X(0, 200), phi)
        assert wide.data.path is None or wide.data.path != narrow.data.path
    assert narrow.data.X(0, 200).dtype == np.float32


def test_features_carry_labels_and_weights(fleet, tmp_path):
    data = contracts.rows(1, n=200)
    design, _ = design_of(data)
    for folder in (None, tmp_path):
        kept = nystrom.store_features(design, fleet, folder).data
        np.testing.assert_array_equal(kept.y(0, 200), data.y(0, 200))
        np.testing.assert_array_equal(kept.weights(0, 200), data.weights(0, 200))
        assert kept.labels == data.labels and kept.n_features == design.rank


def test_xarray_opens_stored_features(tmp_path, fleet):
    xarray = pytest.importorskip("xarray", reason="reads stored features with xarray")
    design, _ = design_of(contracts.rows(0, n=300))
    stored = nystrom.store_features(design, fleet, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = xarray.open_zarr(next(tmp_path.glob("features-*"))).load()
    assert rows["X"].dims == ("row", "feature")
    np.testing.assert_array_equal(rows["X"].values, stored.data.X(0, 300))
