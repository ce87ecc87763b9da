"""Small data sets for the tests of the store."""

import numpy as np
from scipy.sparse import issparse, random_array

from bigscreen.data.layout import Layout
from bigscreen.data.writer import DatasetWriter

LABELS = ["no", "yes", "maybe"]


def table(n_rows=600, n_features=7, sparse=False, weights=True, seed=0):
    """Features, codes, weights and shuffled row ids of a small data set."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_features)).astype(np.float32)
    if sparse:
        X = random_array((n_rows, n_features), density=0.2, format="csr", rng=rng, dtype=np.float32)
    weight = rng.random(n_rows) if weights else None
    return X, rng.integers(-1, 3, n_rows), weight, rng.permutation(n_rows)


GRID = ("chunk_rows", "shard_rows", "wide")


def begin(path, X, weight, preparation=None, **options):
    grid = {name: options.pop(name) for name in GRID if name in options}
    layout = Layout.of(
        n_rows=X.shape[0],
        n_features=X.shape[1],
        sparse=issparse(X),
        labels=LABELS,
        weights=weight is not None,
        **{"chunk_rows": 64} | grid,
    )
    return DatasetWriter(path, layout, preparation, **options)


def fill(writer, X, y, weight, ids, chunks=None):
    for k in range(writer.n_chunks) if chunks is None else chunks:
        start, stop = writer.chunk(k)
        part = None if weight is None else weight[start:stop]
        writer.write(k, X[start:stop], y[start:stop], part, ids[start:stop])


def store(path, data, **options):
    X, y, weight, ids = data
    writer = begin(path, X, weight, **options)
    fill(writer, X, y, weight, ids)
    return writer.finish()


def dense(X):
    return X.toarray() if issparse(X) else X


def assert_same_features(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if issparse(found):
        assert (found.indices.dtype, found.indptr.dtype) == (np.int32, np.int32)
        assert found.has_canonical_format
    else:
        assert found.flags.c_contiguous
    np.testing.assert_array_equal(dense(found), dense(expected))
