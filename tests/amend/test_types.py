"""Edits whose rows have another type of numbers than the rows before: nothing is rounded."""

import warnings

import numpy as np
import published
import pytest
from scipy import sparse

import bigscreen
from bigscreen.amend.amend import amend, bounds
from bigscreen.amend.edits import Edits
from bigscreen.data.dataset import Dataset
from bigscreen.data.layout import Layout
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.writer import DatasetWriter
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.train.run import train

LONG = np.longdouble
N, D, C, GAMMA = 200, 3, 1.0, 0.05
MACHINES = {
    "nystrom": {"landmarks": 30, "gamma": GAMMA},
    "exact": {"exact": True, "gamma": GAMMA},
    "linear": {"kernel": "linear"},
}


def whole(far, seed=0):
    """Whole numbers around ``far``, and their codes; every number is one of float32."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 10, (N, D)).astype(float)
    return X + far, (X[:, 0] + 2 * rng.normal(size=N) > 5).astype(np.int32)


def with_fractions(far, seed=1):
    """Twenty rows near those of `whole` that float32 does not hold."""
    X, y = whole(far, seed)
    return (X + np.random.default_rng(seed).random(X.shape))[:20], y[:20]


def stored(path, X, y):
    """A store of rows, sparse if X is, in chunks of 64."""
    wide = MemoryDataset(X, y, [0, 1]).layout.wide
    sizes = {"n_rows": len(y), "n_features": D, "shard_rows": 64, "chunk_rows": 64}
    layout = Layout.of(sparse=sparse.issparse(X), labels=[0, 1], weights=False, wide=wide, **sizes)
    writer = DatasetWriter(path, layout, None)
    for k in range(writer.n_chunks):
        rows = slice(*writer.chunk(k))
        writer.write(k, X[rows], y[rows])
    return writer.finish()


def primal(model, X, y):
    """P of a model with a penalised offset on these very numbers, in extended precision."""
    X, sign = X.astype(LONG), np.where(y == 1, 1, -1)
    coef, b = model.coef[0].astype(LONG), LONG(model.intercept[0])
    if model.landmarks is None:
        square, scores = coef @ coef, X @ coef + b
    else:
        Z = model.landmarks.toarray() if sparse.issparse(model.landmarks) else model.landmarks
        Z = Z.astype(LONG)
        K, own = (published.entries("rbf", A, Z, LONG(GAMMA), 0, 0)[0] for A in (X, Z))
        square, scores = coef @ own @ coef, K @ coef + b
    return 0.5 * square + 0.5 * b * b + C * np.maximum(0, 1 - sign * scores).sum()


def judged(made, X, y):
    """Fail unless P is that of the user's numbers to the rounding that is stated."""
    (proof,) = made.model.provenance["certificates"]
    room = proof["primal_rounding"] + 2.0**-52 * proof["primal"]
    assert abs(proof["primal"] - primal(made.model, X, y)) <= room


@pytest.mark.slow
@pytest.mark.parametrize("far", [0, 1e5])
@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("kind", MACHINES)
def test_rows_with_fractions_enter_a_store_of_whole_numbers(kind, layout, far, tmp_path):
    if kind == "linear" and far:
        pytest.skip("products of 1e10, of which no linear machine makes a margin")
    (X, y), (A, ya) = whole(far), with_fractions(far)
    data = stored(tmp_path / "first", layout(X), y)
    assert not data.layout.wide
    more = stored(tmp_path / "more", layout(A), ya)
    assert more.layout.wide
    how = {"C": C, "intercept": "penalized", "tol": 1e-5, **MACHINES[kind]}
    with Inline(1) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = train(data, TrainOptions(**how), fleet)
        edits = Edits(remove=np.arange(5), add=more)
        (found,), _ = bounds(model, data, edits)
        made = amend(model, data, edits, fleet, path=tmp_path / "second")
        # And an edit of the edit, whose rows are whole again.
        last = stored(tmp_path / "last", layout(X[:3]), y[:3])
        again = Edits(remove=np.array([7, N]), add=last)
        then = amend(made.model, made.data, again, fleet, path=tmp_path / "third")
    X, y = np.concatenate([X[5:], A]), np.concatenate([y[5:], ya])
    rows = Dataset.open(tmp_path / "second")
    rows.verify()
    assert rows.layout.wide
    dense = rows.X(0, rows.n_rows)
    np.testing.assert_array_equal(dense.toarray() if sparse.issparse(dense) else dense, X)
    assert abs(found.primal - primal(model, X, y)) <= found.rounding + 2.0**-52 * found.primal
    judged(made, X, y)
    (first, codes), kept = whole(far), ~np.isin(rows.row_ids(0, rows.n_rows), [7, N])
    judged(then, np.concatenate([X[kept], first[:3]]), np.concatenate([y[kept], codes[:3]]))
    assert then.data.layout.wide


def test_whole_rows_leave_a_store_of_whole_numbers_as_float32(tmp_path):
    X, y = whole(0)
    data = stored(tmp_path / "first", X, y)
    with Inline(1) as fleet:
        model = train(data, TrainOptions(C=C, tol=1e-3, **MACHINES["exact"]), fleet)
        edits = Edits(remove=np.array([1]), add=MemoryDataset(X[:4] + 1, y[:4], [0, 1]))
        made = amend(model, data, edits, fleet, path=tmp_path / "second")
    assert made.data.X(0, 2).dtype == np.float32


@pytest.mark.parametrize("name", ["SVC", "NystroemSVC"])
def test_estimators_keep_the_fractions_of_rows_that_enter(name):
    (X, y), (A, ya) = whole(1e5), with_fractions(1e5)
    how = {} if name == "SVC" else {"n_components": 30, "random_state": 0}
    machine = getattr(bigscreen, name)(gamma=GAMMA, C=C, fit_intercept="penalized", tol=1e-5, **how)
    machine.fit(X.astype(int), y).amend(X.astype(int), y, add=(A, ya))
    (proof,) = machine.certificate_
    P = primal(machine.model_, np.concatenate([X, A]), np.concatenate([y, ya]))
    assert abs(proof["primal"] - P) <= proof["primal_rounding"] + 2.0**-52 * proof["primal"]
