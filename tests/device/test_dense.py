"""The textbook Newton finds what the tuned one finds, to the gap, on arrays of any namespace."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from newton_world import feature_world
from problem_cases import NAMES
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from bigscreen import LADRegressor, LinearSVC, NystroemSVC, TrainOptions
from bigscreen.data.memory import MemoryDataset
from bigscreen.device.features import Features, kernel_entries
from bigscreen.device.newton import DENSE, DenseNewton
from bigscreen.device.place import CPU, Place
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import make_kernel
from bigscreen.problems.recipes import SquaredSvc, SquaredSvr
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Run, Verdict
from bigscreen.train.run import train

PLACES = {"numpy": CPU, "strict": Place("array_api_strict")}
try:
    import torch
except ImportError:
    pass
else:
    torch.set_num_threads(1)
    PLACES["torch"] = Place("array_api_compat.torch")

PROBLEMS = [*NAMES, "squared-svc none", "squared-svc true", "squared-svr constant"]
ROOM = 2**30
SHARDED = replace(DENSE, shard_entries=1, max_shards=3, hessian_bytes=8 * 70**2)


@pytest.fixture(scope="module")
def fleet():
    with Inline(1) as fleet:
        yield fleet


def world_of(name, kernel, seed, n, C=None):
    """A problem of rows with weights, some of them 0; squared losses have the rows of others."""
    kind, _, offset = name.partition(" ")
    like = {"squared-svc": "c-svc", "squared-svr": "svr none"}.get(kind, name)
    world = feature_world(like, kernel, seed, n=n, d=3 + seed % 4, weights=bool(seed % 3))
    problem = world.problem
    if kind == "squared-svc":
        problem = SquaredSvc(1.5, 1, (), offset)
    if kind == "squared-svr":
        problem = SquaredSvr(1.5, 0.4, offset)
    if C is not None and hasattr(problem, "C"):
        problem = replace(problem, C=C)
    return world, problem


def solved(design, problem, fleet, solver, spare=ROOM, **options):
    run = Run(design, problem, fleet, spare=spare, **options)
    return fit(run, solver, Limits(solver.tol, 400))


def assert_same_machine(one, other, tol):
    """Each P is within its gap of the best P, and each w within ``sqrt(2 gap)`` of the best w."""
    assert one.certificate.relative_gap <= tol
    gaps = [max(found.certificate.gap, 0.0) for found in (one, other)]
    gaps = [gap + found.certificate.rounding_bound
            for gap, found in zip(gaps, (one, other), strict=True)]  # fmt: skip
    assert abs(one.certificate.primal - other.certificate.primal) <= sum(gaps)
    apart = np.linalg.norm(one.point.w - other.point.w)
    assert apart <= sum(np.sqrt(2 * np.array(gaps))) * (1 + 1e-6)


def assert_random_problems_agree(seeds, places, fleet):
    for seed in seeds:
        rng = np.random.default_rng(seed)
        name = PROBLEMS[seed % len(PROBLEMS)]
        kernel = ("rbf", "linear", "laplacian", "polynomial")[seed % 3 if seed % 4 else 3]
        if name == "one-class":  # (centred raw rows would have w* = 0)
            kernel = "rbf"
        n, C = int(rng.integers(20, 120)), float(10.0 ** rng.uniform(-2, 1.5))
        tol = 1e-6 if kernel == "linear" and seed % 2 else 1e-3
        world, problem = world_of(name, kernel, seed, n, C)
        tuned = solved(world.design, problem, fleet, Newton(tol))
        for place in places:
            spare = ROOM if seed % 5 else 0
            solver = DenseNewton(tol, place, DENSE if seed % 2 else SHARDED)
            found = solved(world.design, problem, fleet, solver, spare)
            assert_same_machine(found, tuned, tol)


def test_random_problems_are_solved_as_by_the_tuned_newton(fleet):
    assert_random_problems_agree(range(20), (CPU, PLACES["strict"]), fleet)


@pytest.mark.slow
def test_many_random_problems_are_solved_as_by_the_tuned_newton(fleet):
    assert_random_problems_agree(range(20, 50), PLACES.values(), fleet)
    assert_random_problems_agree(range(50, 130), (CPU,), fleet)


@pytest.mark.parametrize("name", ["c-svc true", "svr constant", "nu-svc true", "quantile none"])
def test_the_optimum_is_that_of_the_oracle(name, fleet):
    world = feature_world(name, "linear", 3, n=80)
    found = solved(world.design, world.problem, fleet, DenseNewton(1e-6))
    best, room = world.optimum, world.room(found.point)
    assert found.certificate.relative_gap <= 1e-6
    assert found.certificate.dual <= best.primal + room
    assert best.dual - room <= found.certificate.primal
    assert found.certificate.primal <= best.primal + found.certificate.gap + room


def test_short_steps_within_a_narrow_band_are_not_taken_for_rounding():
    """Steps that widen the band lower the gap by less than a tenth each, more than ten in a row."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 5)).astype(np.float32)
    y = X[:, 0] * X[:, 1] + 0.5 * rng.normal(size=3000) > 0
    how = {"n_components": 100, "gamma": 0.3, "tol": 1e-6, "fit_intercept": True}
    machine = NystroemSVC(**how, solver="dense", random_state=3).fit(X, y)
    assert machine.relative_gap_ <= 1e-6


def test_gaps_that_rounding_makes_negative_end_a_solve():
    """A constant target has the optimum 0; no step lowers a gap of -1e-31."""
    X = np.random.default_rng(0).normal(size=(120, 3))
    Y = np.stack([np.sin(X[:, 0]), np.full(120, 3.0)], axis=1)
    how = {"n_components": 20, "gamma": 0.3, "tol": 1e-5, "random_state": 0, "max_iter": 300}
    with pytest.warns(ConvergenceWarning, match="P is 0 but for rounding"):
        machine = LADRegressor(**how, solver="dense").fit(X, Y, np.arange(120) % 3)
    assert max(part["passes"].get("full", 0) for part in machine.certificate_) < 200
    np.testing.assert_allclose(machine.predict(X)[:, 1], 3, atol=1e-9)


def test_features_are_kept_recomputed_or_streamed_alike(fleet):
    world, problem = world_of("c-svc", "rbf", 1, 90)
    rows, features = (4 * 90 * width for width in (world.design.data.n_features, 30))
    design, found = world.design, []
    w, coefs = np.arange(2.0 * design.rank).reshape(-1, 2), np.linspace(-1, 1, 90)[:, None]
    for room, kept, moved in ((features, True, False), (rows, False, True), (0, False, False)):
        own = Features(design, (0, 90), CPU, np.float32, room)
        assert (own.kept is not None, own.rows is not None) == (kept, moved)
        ids, weights = np.array([3, 5, 8]), np.array([1.0, 2.0, 0.5])
        found.append((own.dot(w), own.sums(coefs), own.moment(ids, np.ones((3, 1)), weights)))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_allclose(one, two, atol=3e-4 * np.abs(one).max())
    for spare, resident in ((ROOM, 1.0), (0, 1.0), (0, 0.0)):
        run = solved(design, problem, fleet, DenseNewton(1e-3), spare, resident=resident)
        assert run.certificate.relative_gap <= 1e-3


KERNELS = ["linear", "rbf", "polynomial", "laplacian", "sigmoid"]
KERNELS += ["matern12", "matern32", "matern52", "chi2"]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("place", PLACES)
def test_entries_are_those_of_the_kernel(name, place):
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(20, 4)), rng.normal(size=(7, 4))
    if name == "chi2":
        X, Z = np.abs(X), np.abs(Z)
        X[0] = Z[0] = 0
    kernel, own = make_kernel(name, 0.3, 3, 0.5), PLACES[place]
    found = own.take_back(kernel_entries(own.xp, kernel, own.put(X), own.put(Z)))
    np.testing.assert_allclose(found, kernel.block(X, Operand(Z), dtype=np.float64), rtol=1e-12)
    single = kernel_entries(own.xp, kernel, own.put(X, np.float32), own.put(Z, np.float32))
    assert own.take_back(single).dtype == np.float32


def test_a_gap_beyond_float32_is_reached_in_float64(fleet):
    """Begun in float32, which ends above the gap: the features are computed anew in float64."""
    world, problem = world_of("c-svc true", "linear", 2, 100)
    solver = DenseNewton(1e-9, tuning=replace(DENSE, float32_tol=0.0))
    found = solved(world.design, problem, fleet, solver)
    assert found.certificate.relative_gap <= 1e-9


class Stop:
    """A check that stops after some passes, and saves a checkpoint there."""

    target = 1e-9

    def __init__(self, folder, save_at, stop_at):
        self.folder, self.save_at, self.stop_at, self.calls = folder, save_at, stop_at, 0

    def __call__(self, point, stats, save):
        self.calls += 1
        if self.calls == self.save_at:
            save(self.folder, {"calls": self.calls})
        return None if self.calls == self.stop_at else Verdict()

    def restored(self, meta):
        self.calls = meta["calls"] - 1  # the pass of the checkpoint is repeated


@pytest.mark.parametrize("name", ["c-svc", "nu-svc true"])
def test_a_resumed_run_has_the_same_bits(name, fleet, tmp_path):
    world, problem = world_of(name, "rbf", 4, 80)
    run = Run(world.design, problem, fleet, spare=ROOM, folder=tmp_path)
    whole = DenseNewton(1e-6).solve(run, Stop(tmp_path, 6, 12))
    again = DenseNewton(1e-6).solve(replace(run, resume=True), Stop(tmp_path, 0, 12))
    assert again.to_dict() == whole.to_dict()


def test_an_infeasible_total_is_refused(fleet):
    world = feature_world("nu-svc true", "rbf", 0, n=40)
    ones = np.array([0] + [1] * 39, np.int32)
    data = MemoryDataset(world.design.data.X(0, 40), ones, [0, 1])
    problem = replace(world.problem, nu=0.9, mass=40.0)
    with pytest.raises(InputError, match="use a smaller nu"):
        DenseNewton().solve(Run(replace(world.design, data=data), problem, fleet), Stop(None, 0, 0))


def test_estimators_and_options_take_the_solver():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5))
    y = np.argmax(X[:, :3] + 0.5 * rng.normal(size=(300, 3)), axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for make in (
            lambda s: NystroemSVC(n_components=40, solver=s, tol=1e-4, random_state=0),
            lambda s: LinearSVC(loss="hinge", solver=s, tol=1e-4),
            lambda s: LinearSVC(loss="squared_hinge", solver=s, tol=1e-4),
        ):
            dense, tuned = make("dense").fit(X, y), make("newton").fit(X, y)
            assert dense.relative_gap_ <= 1e-4
            assert dense.model_.provenance["solver"] == "dense"
            same = np.abs(dense.decision_function(X) - tuned.decision_function(X))
            assert same.max() <= 0.05
    model = LinearSVC(loss="hinge", solver="dense").fit(sparse.csr_array(X), y)
    assert model.relative_gap_ <= 1e-3
    with pytest.raises(InputError, match="needs landmarks or a linear machine"):
        TrainOptions(solver="dense", exact=True)


def test_memory_decides_whether_features_are_kept():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(2000, 4)).astype(np.float32)
    data = MemoryDataset(X, (X[:, 0] > 0).astype(np.int32), [0, 1])
    with Inline(1) as fleet:
        options = TrainOptions(solver="dense", landmarks=50, tol=1e-2)
        model = train(data, options, fleet)
        assert model.provenance["features"] == "recomputed"
        assert model.provenance["certificates"][0]["relative_gap"] <= 1e-2
        with pytest.raises(InputError, match="needs about"):
            train(data, replace(options, memory=2**24), fleet)
    assert Design(data).rank == 4
