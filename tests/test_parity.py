"""Where rows live and how many threads work on them changes no bit of the result."""

import contracts
import numpy as np
import pytest
from scipy import sparse

from bigscreen import nystrom
from bigscreen.design import Design
from bigscreen.fit import fit
from bigscreen.fit_monitor import Limits
from bigscreen.fleet import Inline
from bigscreen.kernels import make_kernel
from bigscreen.problems import CSvc
from bigscreen.screening.dynamic import GapBall
from bigscreen.solvers.newton import Newton
from bigscreen.store import DatasetWriter, MemoryDataset

N, GRID = 600, {"shard_rows": 128, "chunk_rows": 32}


def memory(sparse_rows):
    return contracts.rows(7, n=N, d=6, sparse_rows=sparse_rows, **GRID)


def on_disk(data, path):
    writer = DatasetWriter(
        path,
        n_rows=N,
        n_features=data.n_features,
        sparse=data.is_sparse,
        labels=data.labels,
        weights=True,
        preparation=data.preparation,
        **GRID,
    )
    for k in range(data.n_chunks):
        a, b = data.chunk(k)
        writer.write(k, data.X(a, b), data.y(a, b), data.weights(a, b), data.row_ids(a, b))
    return writer.finish()


def solve(data, kernel, threads, resident=True, intercept="constant"):
    design = Design(data)
    if kernel != "linear":
        made = make_kernel(kernel, 0.15)
        side, _ = nystrom.landmarks(data, made, 40, "uniform", 3)
        design = Design(data, made, side, nystrom.factor(made, side))
    with Inline(threads) as fleet:
        problem = CSvc(2.0, 1, (1.0, 2.0), intercept)
        fitted = fit(
            design, problem, Newton(1e-5), fleet, Limits(1e-5, 100), rule=GapBall(),
            resident=resident,
        )  # fmt: skip
    history = [{k: v for k, v in e.items() if k != "seconds"} for e in fitted.history]
    return fitted.point, fitted.certificate, history


def assert_same(one, other):
    np.testing.assert_array_equal(one[0].coef, other[0].coef)
    assert one[0].intercept == other[0].intercept
    assert one[1] == other[1]
    assert one[2] == other[2]


@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize(
    ("kernel", "intercept"),
    [("linear", "constant"), ("linear", "true"), ("rbf", "constant"), ("laplacian", "true")],
)
def test_storage_residence_and_threads(kernel, sparse_rows, intercept, tmp_path):
    data = memory(sparse_rows)
    base = solve(data, kernel, 1, intercept=intercept)
    stored = on_disk(data, tmp_path / "rows.bs")
    assert stored.fingerprint == data.fingerprint
    assert_same(solve(stored, kernel, 1, intercept=intercept), base)
    assert_same(solve(stored, kernel, 2, resident=False, intercept=intercept), base)
    assert_same(solve(data, kernel, 4, intercept=intercept), base)
    assert_same(solve(data, kernel, 3, resident=False, intercept=intercept), base)


def test_stored_features_in_memory_and_on_disk(tmp_path):
    data = memory(False)
    made = make_kernel("rbf", 0.15)
    side, _ = nystrom.landmarks(data, made, 40, "uniform", 3)
    design = Design(data, made, side, nystrom.factor(made, side))
    with Inline(2) as two, Inline(1) as one:
        in_memory = nystrom.stored_features(design, one, None)
        stored = nystrom.stored_features(design, two, tmp_path)
        again = nystrom.stored_features(design, two, tmp_path)
    for other in (stored, again):
        np.testing.assert_array_equal(other.data.X(0, N), in_memory.data.X(0, N))
    assert_same(solve(stored.data, "linear", 2), solve(stored.data, "linear", 1))


def test_the_grid_of_stored_features_is_that_of_the_rows():
    """In memory or on disk: or shards, and with them the last bits, would differ."""
    data = memory(False)
    made = make_kernel("rbf", 0.15)
    side, _ = nystrom.landmarks(data, made, 40, "uniform", 3)
    design = Design(data, made, side, nystrom.factor(made, side))
    with Inline(1) as fleet:
        assert nystrom.stored_features(design, fleet, None).data.shard_rows == data.shard_rows


def test_dense_and_sparse_rows_of_the_same_numbers():
    """Other sums, so not bit for bit: the same optimum within both gaps."""
    one = memory(True)
    X = one.X(0, N).toarray()
    other = MemoryDataset(X, one.y(0, N), [0, 1], one.weights(0, N), **GRID)
    assert sparse.issparse(one.X(0, N))
    for kernel in ("linear", "rbf"):
        certificates = [solve(data, kernel, 1)[1] for data in (one, other)]
        room = 1e-6 * certificates[0].primal + sum(c.gap for c in certificates)
        assert abs(certificates[0].primal - certificates[1].primal) <= room


class Shuttle(Inline):
    """A fleet whose every shard moves to another worker before every round."""

    def start(self, program, n_shards):
        self.carried = program
        self.states = [program.open(s) for s in range(n_shards)]

    def round(self, message):
        totals, results = {}, []
        for s, state in enumerate(self.states):
            self.states[s] = self.carried.load(s, self.carried.save(state))
            results.append(self.carried.step(self.states[s], message, totals))
        return np.stack(results), totals


@pytest.mark.parametrize("intercept", ["none", "true"])
def test_a_shard_may_move_before_any_round(intercept):
    world = contracts.world(contracts.rows(5, n=700), "linear", 3.0, intercept)
    found = []
    for fleet in (Inline(1), Shuttle(1)):
        with fleet:
            fitted = fit(
                world.design,
                world.problem,
                Newton(tol=1e-6),
                fleet,
                Limits(1e-6),
                rule=GapBall(),
            )
        assert fitted.certificate.relative_gap <= 1e-6
        found.append((fitted.point.coef.tobytes(), fitted.point.intercept, len(fitted.history)))
    assert found[0] == found[1]
