"""Input of estimators: arrays, Dask arrays and stores give the same rows."""

import dask.array as da
import numpy as np
import pytest
from scipy.sparse import csr_array, issparse

from bigscreen.data.dataset import Dataset
from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.estimators.inputs import Labelled, Targets, Unlabelled

N = 500
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = 1e3 * np.random.default_rng(1).normal(size=N)
WEIGHT = np.arange(N) % 3


def given(kind, rows, weight, square=False):
    if kind is Unlabelled:
        return Unlabelled.of(rows, weight, square)
    return kind.of(rows, Y if kind is Targets else Y > 0, weight, square)


def expected(kind, keep, weight, columns=slice(None)):
    y, labels = {
        Labelled: ((Y > 0)[keep].astype(int), [False, True]),
        Targets: (Y[keep], None),
        Unlabelled: (None, []),
    }[kind]
    return MemoryDataset(X[keep][:, columns], y, labels, weight)


@pytest.mark.parametrize("kind", [Labelled, Targets, Unlabelled])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_arrays_dask_arrays_and_stores_give_the_same_rows(kind, weight, tmp_path):
    keep = np.ones(N, bool) if weight is None else weight > 0
    kept = None if weight is None else weight[keep].astype(float)
    right = expected(kind, keep, kept)
    lazy = da.from_array(X, chunks=(90, 4))
    for rows, most, where in (
        (X, 1e9, MemoryDataset),
        (lazy, 1e9, MemoryDataset),
        (lazy, 100, Dataset),
        (X, 0, Dataset),
    ):
        folder = tmp_path / f"{where.__name__}{most}"
        made = given(kind, rows, weight)
        data = made.rows(most, lambda folder=folder: folder)
        assert isinstance(data, where) and data.fingerprint == right.fingerprint
        assert made.n_kept == data.n_rows and (made.keep is None) == (weight is None)
        assert data.regression == (kind is Targets)
    sparse = given(kind, csr_array(X), weight).rows(1e9, None)
    assert issparse(sparse.X(0, 5))
    np.testing.assert_array_equal(sparse.y(0, sparse.n_rows), right.y(0, right.n_rows))


@pytest.mark.parametrize("kind", [Targets, Unlabelled])
def test_kernel_columns_of_left_out_rows_are_left_out(kind):
    square, weight = np.arange(N * N, dtype=np.float32).reshape(N, N), WEIGHT
    data = given(kind, square, weight, square=True).rows(1e9, None)
    keep = np.flatnonzero(weight)
    np.testing.assert_array_equal(data.X(0, data.n_rows), square[np.ix_(keep, keep)])


@pytest.mark.parametrize(
    ("y", "weight", "said"),
    [
        (Y[:-1], None, "X has 500 rows and y has 499 targets; give one target for each row"),
        (np.ones((500, 2, 2)), None, r"y must have a row of targets .*\(500, 2, 2\)"),
        (np.where(Y == Y[7], np.nan, Y), None, r"row 7 of y: the target is missing \(nan\)"),
        (np.where(Y == Y[7], np.inf, Y), None, "row 7 of y: the target inf is not a finite"),
        (np.where(Y == Y[7], "much", "1"), None, "row 7 of y: the target 'much' is not a number"),
        (Y, -WEIGHT, "row 1: the weight -1.0 must be a finite number, not negative"),
        (Y, WEIGHT[:-1], "500 weights are needed"),
        (Y, 0 * WEIGHT, "all samples have zero or negative weights"),
    ],
)
def test_bad_targets_are_refused(y, weight, said):
    with pytest.raises(InputError, match=said):
        Targets.of(X, y, weight)
    if y is Y:
        with pytest.raises(InputError, match=said):
            Unlabelled.of(X, weight)


def test_a_dask_array_of_unknown_length_is_refused():
    lazy = da.from_array(X, chunks=(90, 4))
    lazy = lazy[lazy[:, 0] > 0]
    for make in (lambda: Unlabelled.of(lazy), lambda: Targets.of(lazy, Y[:9], None)):
        with pytest.raises(InputError, match="compute_chunk_sizes"):
            make()
