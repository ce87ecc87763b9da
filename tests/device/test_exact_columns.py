"""Exact machines with kernel columns by array operations are those of the tuned solver.

NumPy, array-api-strict and PyTorch on the CPU stand in for a device.
"""

import pickle
from dataclasses import dataclass, replace

import contracts
import numpy as np
import pytest
from any_world import INTERCEPTS, KINDS, any_world, is_right
from block_world import GRID, quiet, solved, watched, world
from contracts import RECORD, RecordingBlock
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bigscreen import SVC, SVR, NuSVC, TrainOptions
from bigscreen.device import columns, find
from bigscreen.device.columns import DeviceBackend, column_work_bytes
from bigscreen.device.features import kernel_entries
from bigscreen.device.find import Device
from bigscreen.device.place import CPU, Place
from bigscreen.errors import InputError
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.cache import Slots
from bigscreen.kernels.entry_errors import EntryErrors
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import make_kernel
from bigscreen.plan.plan import plan
from bigscreen.screening.dynamic import GapBall, make_rule
from bigscreen.solvers.block.solver import Block
from bigscreen.train.run import train

STRICT = Place("array_api_strict")
TORCH = Place("array_api_compat.torch")
PRODUCTS = ("linear", "rbf", "polynomial", "sigmoid")
KERNELS = (*PRODUCTS, "laplacian", "matern12", "matern32", "matern52", "chi2")


@pytest.fixture(scope="module", autouse=True)
def fleet():
    with Inline(1) as fleet, quiet():
        yield fleet


def on(place, w, keep_rows=True):
    """The same problem, with kernel columns on a place."""
    return replace(w, design=replace(w.design, backend=DeviceBackend(place, keep_rows)))


def assert_equals_tuned(seed, places, fleet):
    """Any problem, kernel, block, cache and rule: the oracle's optimum, as the tuned solver's."""
    rng = np.random.default_rng(seed)
    kind, intercept = KINDS[seed % len(KINDS)], INTERCEPTS[seed // len(KINDS) % 3]
    kernel = ("rbf", "laplacian", "linear")[seed % 3]
    n, tol = int(rng.integers(20, 150)), (1e-3, 1e-6)[seed % 2]
    w = any_world(seed, n, kind, intercept, bool(seed % 4), kernel, 10.0 ** rng.uniform(-2, 1))
    try:
        w.dual.feasible(np.zeros(n))
    except ValueError:
        return False  # nu is too large for these classes
    if abs(w.optimum.dual) < 1e-5:
        return False  # the optimum is 0, and slow to reach
    solver = Block(size=(4, 16, 512)[seed // 2 % 3], cache=4 * n * (0, 7, n)[seed % 3])
    rule = make_rule("gap" if seed % 5 else "none")
    tuned = solved(w, fleet, solver, rule, tol)
    for place in places:
        found = solved(on(place, w, bool(seed % 2)), fleet, solver, rule, tol)
        is_right(w, found, tol)
        ends = [end.certificate for end in (tuned, found)]
        room = sum(max(c.gap, 0.0) + c.rounding_bound for c in ends) + 1e-12
        assert abs(ends[0].primal - ends[1].primal) <= room
        assert abs(ends[0].dual - ends[1].dual) <= room
        assert abs(w.value(tuned.point.alpha) - w.value(found.point.alpha)) <= room
    return True


def test_random_problems_are_solved_as_by_the_tuned_solver(fleet):
    places = (CPU,), (CPU, STRICT)
    assert sum(assert_equals_tuned(seed, places[seed % 2], fleet) for seed in range(10)) >= 7


@pytest.mark.slow
def test_many_random_problems_are_solved_as_by_the_tuned_solver(fleet):
    assert sum(assert_equals_tuned(seed, (CPU,), fleet) for seed in range(10, 130)) >= 100
    assert sum(assert_equals_tuned(seed, (STRICT,), fleet) for seed in range(130, 170)) >= 30
    pytest.importorskip("torch").set_num_threads(1)
    assert sum(assert_equals_tuned(seed, (TORCH,), fleet) for seed in range(170, 210)) >= 30


@pytest.mark.parametrize("C", [1.0, 300.0])
def test_caps_threads_and_pickles_give_the_same_machine(C, fleet):
    """Rows of several shards; with C = 300 the solve ends in float64."""
    w = world(contracts.rows(6, 200, 6, 1.0, **GRID), "rbf", C, "true")
    whole = solved(w, fleet, Block(size=16), None, 1e-6)
    sent = pickle.loads(pickle.dumps(on(CPU, w)))
    with Inline(3) as threads:
        cases = (
            (on(CPU, w), 200, fleet),
            (on(CPU, w, False), 10, fleet),
            (on(STRICT, w, False), 0, fleet),
            (sent, 40, threads),
        )
        for case, columns, own in cases:
            found = solved(case, own, Block(size=16, cache=4 * 200 * columns), None, 1e-6)
            contracts.exact_law(w, found.point.alpha, found.certificate, 1e-6)
            ends = [end.certificate for end in (whole, found)]
            gaps = sum(end.gap + end.rounding_bound for end in ends)
            assert abs(ends[0].primal - ends[1].primal) <= gaps


class Interrupt:
    """Ctrl-C at a pass."""

    def __init__(self, at):
        self.at, self.passes = at, 0

    def __call__(self, event):
        if event["event"] == "pass":
            self.passes += 1
            if self.passes == self.at:
                raise KeyboardInterrupt


@pytest.mark.parametrize("C", [3.0, 300.0])
def test_an_interrupted_fit_goes_on(C, fleet, tmp_path, checkpoint_every):
    checkpoint_every(-1.0)
    w = on(CPU, world(contracts.rows(6, 200, 6, 1.0, **GRID), "rbf", C, "true"))
    solver, rule = Block(size=16, cache=4 * 200 * 40), make_rule("gap")
    count = len(solved(w, fleet, solver, rule, 1e-6).history)
    for at in (count // 2, count - 1):
        how = {"folder": tmp_path / str(at)}
        with pytest.raises(KeyboardInterrupt):
            solved(w, fleet, solver, rule, 1e-6, report=Interrupt(at), **how)
        found = solved(w, fleet, solver, rule, 1e-6, resume=True, **how)
        contracts.exact_law(w, found.point.alpha, found.certificate, 1e-6)
        assert [event["pass"] for event in found.history] == list(range(1, len(found.history) + 1))


@pytest.mark.parametrize(("kernel", "C"), [("rbf", 5.0), ("laplacian", 0.3), ("polynomial", 0.3)])
def test_screening_is_safe_in_every_pass(kernel, C, fleet):
    fixed = 0
    for intercept in INTERCEPTS:
        RECORD.clear()
        w = on(CPU, world(contracts.rows(1, 120, 5, 0.7, **GRID), kernel, C, intercept))
        found = solved(w, fleet, watched(program=RecordingBlock, size=16), GapBall(), 1e-4)
        fixed += contracts.screening_law(w, RECORD)
        assert found.history[-1]["false_removals"] == 0
    assert fixed > 30, "screening never bit: this test would prove nothing"


# -- columns, sums and their errors ----------------------------------------------------------------
@dataclass(frozen=True)
class SmallPlace(Place):
    """Arrays of NumPy on a device that holds arrays of at most ``room`` numbers."""

    room: int = 0

    def zeros(self, shape, dtype=np.float64):
        if np.prod(shape) > self.room:
            raise MemoryError
        return super().zeros(shape, dtype)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    capacity=st.sampled_from([0, 3, 7, 30, 200]),
    place=st.sampled_from([CPU, STRICT, SmallPlace(room=2000)]),
    keep_rows=st.booleans(),
    forget=st.booleans(),
)
def test_sums_of_columns_whatever_is_cached(seed, capacity, place, keep_rows, forget):
    """Evictions, rows that leave, a cache that is lost, a device that has room for 22 columns."""
    rng = np.random.default_rng(seed)
    n = 90
    X = (rng.normal(size=(n, 3)) + 5 * rng.integers(0, 2)).astype(np.float32)
    kernel = make_kernel("rbf", 0.3)
    K = kernel.block(X, Operand(X), dtype=np.float64)
    alive, slots, backend = np.arange(n), Slots(capacity, n), DeviceBackend(place, keep_rows)

    def fresh():
        return backend.columns(kernel, Operand(X[alive], alive), slots.capacity, np.float32)

    columns, scores, want = fresh(), np.zeros(n), np.zeros(n)
    for _ in range(12):
        ids = rng.permutation(n)[: rng.integers(1, 40)]
        coef, places, before = rng.normal(size=len(ids)), slots.assign(ids), columns.entries
        columns.accumulate(Operand(X[ids], ids), places, coef, scores)
        want += K[alive][:, ids] @ coef
        np.testing.assert_allclose(scores, want, rtol=0, atol=1e-4)
        again = scores.copy()
        columns.accumulate(Operand(X[ids], ids), places, -coef, again)
        np.testing.assert_allclose(again, want - K[alive][:, ids] @ coef, rtol=0, atol=1e-4)
        if place is CPU and capacity == 200:  # the second time all columns come from the cache
            assert columns.entries - before <= len(ids) * len(alive)
        if rng.random() < 0.3 and len(alive) > 10:
            keep = np.flatnonzero(rng.random(len(alive)) < 0.7)
            alive, scores, want = alive[keep], scores[keep], want[keep]
            columns.compact(Operand(X[alive], alive), keep)
        if forget and rng.random() < 0.3:
            columns = fresh()


def largest_error(name, place, seed, dtype=np.float32):
    """The largest error of a column's entries, of 100 rows, as a fraction of its bound."""
    rng = np.random.default_rng(seed)
    d, scale = (2, 9, 60, 300)[seed % 4], 10.0 ** rng.uniform(-2, 1)
    X = scale * (rng.normal(size=(100, d)) + rng.choice([0, 1, 10]))
    X = (np.abs(X) if name == "chi2" else X).astype(np.float32)
    kernel, side = make_kernel(name, 0.3 / d / scale**2, 3, 0.5), Operand(X, np.arange(100))
    backend, worst = DeviceBackend(place), 0.0
    bounds, cached = EntryErrors.of(backend.kernel(kernel), side), backend.columns(
        kernel, side, 12, dtype)  # fmt: skip
    bounds = bounds if dtype is np.float32 else bounds.in_float64()
    for k in range(12):
        scores, row = np.zeros(100), Operand(X[k : k + 1], np.array([k]))
        cached.accumulate(row, np.zeros(1, np.int64), np.ones(1), scores)
        exact = kernel.block(X[k : k + 1], side, dtype=np.float64)[0]
        worst = max(worst, float(np.max(np.abs(scores - exact) / bounds.of_scores(exact, 1.0))))
    return worst


@pytest.mark.parametrize("name", KERNELS)
def test_errors_of_columns_keep_their_bounds(name):
    """Also in float64, whose exact entries are the tuned ones: both have half of the bound."""
    for place in (CPU, STRICT):
        for seed in range(4):
            assert largest_error(name, place, seed) <= 1
            assert largest_error(name, place, seed, np.float64) <= 2


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_in_tf32_break_the_bounds(name):
    """The mutation: the test above would find them."""
    assert max(largest_error(name, Place("tf32_arrays"), seed) for seed in range(4)) > 2


def test_float64_distances_survive_a_huge_column():
    """A column of 1e7 leaves no digits of a difference of squares."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 3)) * [1e7, 1, 1]
    X[10:, 0] = X[0, 0]
    kernel, side = make_kernel("rbf", 0.3), Operand(X, np.arange(30))
    exact = kernel.block(X, side, dtype=np.float64)
    assert np.count_nonzero(exact > 1e-3) > 100
    for place in (CPU, STRICT):
        own, coef = DeviceBackend(place).columns(kernel, side, 30, np.float64), np.arange(30.0)
        for _ in range(2):
            found = np.zeros(30)
            own.accumulate(side, np.arange(30), coef, found)
            np.testing.assert_allclose(found, exact @ coef, rtol=1e-9)
        np.testing.assert_allclose(
            DeviceBackend(place).kernel(kernel).block(X, side, dtype=np.float64), exact, rtol=1e-9,
            atol=1e-300)  # fmt: skip


# -- by the option device --------------------------------------------------------------------------
GPU = Device(STRICT, "Stand-in", "array-api-strict 2", 2**31)


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a device, for which array-api-strict stands in."""
    monkeypatch.setattr(find, "LIBRARIES", {"stand-in": lambda: GPU})
    monkeypatch.setattr(find, "count_devices", lambda: 1)


def plan_of(data, memory=None, device=GPU, **options):
    options = {"device": "cuda", "device_memory": memory, **options}
    return plan(data, TrainOptions(exact=True, **options), device=device)


def test_estimators_solve_exact_machines_on_a_device(gpu, monkeypatch):
    data = contracts.rows(1, 200, 5, 0.7, weights=False, **GRID)
    X, y = data.X(0, 200), data.y(0, 200)
    computed = []
    monkeypatch.setattr(columns, "kernel_entries", lambda xp, kernel, A, B: computed.append(
        A.shape[0] * B.shape[0]) or kernel_entries(xp, kernel, A, B))  # fmt: skip
    for make, target in ((SVC, y), (SVR, X[:, 0] + y), (NuSVC, y)):
        own = make(gamma=0.2, tol=1e-4, device="cpu").fit(X, target)
        assert not computed
        found = make(gamma=0.2, tol=1e-4, device="cuda").fit(X, target)
        assert sum(computed) > 200**2 / 20 and found.relative_gap_ <= 1e-4
        known = found.model_.provenance
        assert (known["device"]["name"], known["solver"]) == ("Stand-in", "block")
        apart = np.abs(found.decision_function(X) - own.decision_function(X)) if make is not SVR \
            else np.abs(found.predict(X) - own.predict(X))  # fmt: skip
        assert apart.max() <= 0.1
        computed.clear()
    with pytest.raises(InputError, match="device cuda computes with dense rows"):
        SVC(device="cuda").fit(sparse.csr_array(X), y)


def test_the_plan_keeps_rows_and_columns_or_less():
    data = contracts.rows(1, 5000, 6, weights=False)
    whole = plan_of(data)
    kept = whole.on_device
    assert whole.solver == "block" and kept.row_bytes == 8 * 5000 * 6
    assert kept.feature_bytes == whole.cache_bytes == 4 * 5000**2
    least = kept.work_bytes + 16 * 4 * 5000
    some = plan_of(data, least + kept.row_bytes + 4 * 5000).on_device
    assert (some.row_bytes, some.feature_bytes) == (kept.row_bytes, 17 * 4 * 5000)
    assert plan_of(data, cache=100 * 4 * 5000).cache_bytes == 100 * 4 * 5000
    streamed = plan_of(data, least + 10).on_device
    assert (streamed.row_bytes, streamed.feature_bytes) == (0, 16 * 4 * 5000)
    refused = plan_of(data, least - 1)
    assert "for 16 kernel columns of 5000 rows; allow more (`device_memory`)" in refused.refusal
    unasked = plan_of(data, least - 1, **{"device": GPU})
    assert unasked.refusal == refused.refusal
    halves = plan(data, TrainOptions(exact=True, device="cuda"), 2, cluster=True, device=GPU)
    assert halves.on_device.feature_bytes == 4 * 2500 * 5000
    assert halves.cache_bytes == 4 * 5000**2
    own = plan(data, TrainOptions(exact=True))
    assert own.on_device is None and own.peak_bytes > whole.peak_bytes


def test_little_device_memory_gives_the_same_exact_machine(gpu):
    data = contracts.rows(2, 600, 6, 1.0, weights=False, **GRID)
    need = column_work_bytes(6) + 16 * 4 * 600
    proofs = []
    with Inline(1) as fleet:
        for memory in (None, need + 10):
            how = {"exact": True, "gamma": 0.2, "C": 10.0, "device": "cuda"}
            model = train(data, TrainOptions(device_memory=memory, **how), fleet)
            proofs.append(model.provenance["certificates"][0])
    assert max(proof["relative_gap"] for proof in proofs) <= 1e-3
    apart = abs(proofs[0]["primal"] - proofs[1]["primal"])
    assert apart <= sum(proof["gap"] + proof["rounding_bound"] for proof in proofs)


def test_sparse_rows_are_refused_in_one_sentence(fleet):
    w = on(CPU, world(contracts.rows(3, 100, sparse_rows=True, **GRID)))
    with pytest.raises(InputError, match="sparse rows are not computed on a device"):
        solved(w, fleet)


def test_a_device_without_room_for_a_tile_says_so(fleet):
    w = on(SmallPlace(room=10), world(contracts.rows(3, 100, **GRID)))
    with pytest.raises(InputError, match="the device has no memory for"):
        solved(w, fleet)
