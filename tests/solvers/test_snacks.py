"""Snacks and Pegasos: near the optimum, true in what they certify, the same wherever they run."""

from dataclasses import replace

import contracts
import numpy as np
import pytest
from newton_world import feature_world
from problem_cases import NAMES
from sklearn.exceptions import ConvergenceWarning

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.kernels.standard import make_kernel
from bigscreen.options.train import TrainOptions
from bigscreen.problems.recipes import CSvc, SquaredSvc
from bigscreen.report.report import pass_line
from bigscreen.solvers.protocol import Run
from bigscreen.solvers.snacks.draws import Draws
from bigscreen.solvers.snacks.shard import DrawProgram
from bigscreen.solvers.snacks.solver import Pegasos, Snacks
from bigscreen.train.run import train

GRID = {"shard_rows": 64, "chunk_rows": 32}
SHORT = Snacks(batch=16)
SOLVED = [name for name in NAMES if not name.startswith(("nu", "one"))]


@pytest.fixture(scope="module")
def fleet():
    with Inline(1) as fleet:
        yield fleet


def solved(world, fleet, solver, stages, **run):
    limits = Limits(1e-9, stages)
    return fit(Run(world.design, world.problem, fleet, **run), solver, limits)


def near(world, fitted, part):
    """P within a part of the optimum, and a certificate that the textbook's P and optimum bear."""
    point, found, best = fitted.point, fitted.certificate, world.optimum
    room = world.room(point) + 1e-8 * (abs(found.primal) + abs(found.dual))
    moved = replace(point, multiplier=found.multiplier)
    assert found.primal == pytest.approx(world.primal(moved), abs=room)
    assert best.primal - room <= found.primal <= best.primal * (1 + part) + room
    assert found.dual <= best.primal + room
    a = world.mixed(point)
    world.assert_feasible(a)
    assert found.dual == pytest.approx(world.dual(a), abs=room)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kernel"), [(SOLVED[0], "linear"), *((name, "rbf") for name in SOLVED)]
)
def test_problems_with_lipschitz_losses_are_solved(name, kernel, fleet):
    world = feature_world(name, kernel)
    near(world, solved(world, fleet, Snacks(tol=1e-9, batch=4), 7), 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SOLVED if not name.endswith("true")])
def test_pegasos_comes_near_the_optimum(name, fleet):
    world = feature_world(name, "rbf")
    near(world, solved(world, fleet, Pegasos(tol=1e-9, batch=4), 8), 0.05)


# -- one answer, wherever and however rows are read ------------------------------------------------
def rows_world(sparse_rows=False, kernel="rbf", n=400, **grid):
    data = contracts.rows(3, n, sparse_rows=sparse_rows, **(grid or GRID))
    return contracts.world(data, kernel, 1.0, "constant")


def ends(world, fleet, solver=SHORT, stages=3, **run):
    """The point after some stages, its certificate and its history without its times."""
    found = solved(world, fleet, solver, stages, **run)
    history = [{k: v for k, v in event.items() if k != "seconds"} for event in found.history]
    return found.point.coef, found.point.intercept, found.certificate, history


def same(one, other):
    np.testing.assert_array_equal(one[0], other[0])
    assert one[1:] == other[1:]


@pytest.fixture(scope="module")
def inline(fleet):
    """What one thread finds, by kernel and solver."""
    both = [Snacks(batch=32, first=8), Pegasos(batch=32)]
    return [(k, s, ends(rows_world(kernel=k), fleet, s)) for k in ("linear", "rbf") for s in both]


def test_threads_and_rows_that_are_not_kept_change_no_bit(inline):
    with Inline(3) as threads:
        for kernel, solver, alone in inline:
            same(alone, ends(rows_world(kernel=kernel), threads, solver))
            same(alone, ends(rows_world(kernel=kernel), threads, solver, resident=False))


@pytest.mark.slow
def test_worker_processes_change_no_bit(inline):
    with local_cluster(2) as fleet:
        for kernel, solver, alone in inline:
            same(alone, ends(rows_world(kernel=kernel), fleet, solver))


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_sparse_rows_are_dense_rows(kernel, fleet):
    sparse = rows_world(True, kernel)
    X = sparse.data.X(0, sparse.data.n_rows).toarray()
    n = len(X)
    dense = MemoryDataset(X, sparse.data.y(0, n), [0, 1], sparse.data.weights(0, n), **GRID)
    one = ends(sparse, fleet)
    other = ends(replace(sparse, design=replace(sparse.design, data=dense)), fleet)
    np.testing.assert_allclose(one[0], other[0], rtol=1e-3, atol=1e-3)
    assert one[2].primal == pytest.approx(other[2].primal, rel=1e-4)


def test_a_weight_of_two_is_the_row_twice(fleet):
    rng = np.random.default_rng(0)
    data = contracts.rows(1, 200, weights=False)
    X, y, count = data.X(0, 200), data.y(0, 200), rng.integers(0, 3, 200)
    weighted = MemoryDataset(X, y, [0, 1], count.astype(float), **GRID)
    repeated = MemoryDataset(np.repeat(X, count, axis=0), np.repeat(y, count), [0, 1], **GRID)
    found = [
        solved(contracts.world(rows, C=0.5), fleet, Snacks(1e-9, batch=8), 7).certificate.primal
        for rows in (weighted, repeated)
    ]
    assert found[0] == pytest.approx(found[1], rel=0.01)


@pytest.mark.parametrize("solver", [SHORT, Pegasos(batch=16)])
def test_a_resumed_run_has_the_same_bits(solver, fleet, tmp_path, checkpoint_every):
    checkpoint_every(-1.0)
    world = rows_world()
    whole = ends(world, fleet, solver, 4)
    ends(world, fleet, solver, 3, folder=tmp_path)
    with Inline(2) as other:
        same(whole, ends(world, other, solver, 4, folder=tmp_path, resume=True))


def test_another_seed_is_another_order_of_rows(fleet):
    world = rows_world()
    one, other = (ends(world, fleet, replace(SHORT, seed=seed))[0] for seed in (0, 1))
    assert not np.array_equal(one, other)


def test_a_start_is_where_the_first_stage_begins(fleet):
    """From the optimum's alpha one short stage of small steps stays near it."""
    world = contracts.world(contracts.rows(0, 150, weights=False), C=1.0)
    alpha = world.optimum.alpha
    solver = Snacks(step=1e-3, batch=8, first=4)
    found = solved(world, fleet, solver, 1, start=alpha)
    assert found.certificate.primal <= 1.01 * world.optimum.primal
    assert solved(world, fleet, solver, 1).certificate.primal > 1.1 * world.optimum.primal


# -- rows that are drawn ---------------------------------------------------------------------------
@pytest.mark.parametrize("batch", [1, 7, 64, 1000])
def test_every_pass_draws_every_row_once(batch):
    data = contracts.rows(0, 150, **GRID)
    program = DrawProgram(Design(data), CSvc(1.0, 1), 0, True, 1.0)
    states = [program.open(s) for s in range(data.n_shards)]
    draws = Draws(data, 0, batch)
    draws.lanes = 2  # so that a pass has several groups
    seen = np.zeros(150, int)
    sizes = []
    while draws.position[0] < 1 or draws.position[2] == 0:
        message = draws.next()
        if message["epoch"]:
            break
        before = seen.sum()
        for state in states:
            seen[data.shard(state.shard)[0] + program._picks(state, message)] += 1
        sizes.append(seen.sum() - before)
    assert np.all(seen == 1)
    assert max(sizes) <= batch + 1


def test_rows_that_lie_sorted_are_mixed():
    """Every batch has each shard's share of rows: sorted labels are in all of them."""
    X = np.ones((1024, 1), np.float32)
    data = MemoryDataset(X, np.arange(1024) // 512, [0, 1], shard_rows=128, chunk_rows=32)
    program = DrawProgram(Design(data), CSvc(1.0, 1), 0, True, 1.0)
    message = Draws(data, 0, 64).next()
    picks = [len(program._picks(program.open(s), message)) for s in range(8)]
    assert picks == [8] * 8


# -- what is refused -------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["nu-svc none", "one-class"])
def test_a_total_to_meet_is_refused(name, fleet):
    with pytest.raises(InputError, match="nu"):
        solved(feature_world(name, "rbf"), fleet, Snacks(), 1)


def test_other_problems_and_designs_are_refused(fleet):
    data = contracts.rows(0, 40)
    squared = contracts.World(Design(data), SquaredSvc(1.0, 1))
    with pytest.raises(InputError, match="squared losses"):
        solved(squared, fleet, Snacks(), 1)
    exact = contracts.World(Design(data, make_kernel("rbf", 1.0)), CSvc(1.0, 1))
    with pytest.raises(InputError, match="landmarks or a linear machine"):
        Snacks().solve(Run(exact.design, exact.problem, fleet), lambda *a: None)
    with pytest.raises(InputError, match="unpenalised"):
        solved(contracts.world(data, intercept="true"), fleet, Pegasos(), 1)


@pytest.mark.parametrize("how", [{"step": -1.0}, {"tol": 0.0}, {"radius": np.inf}, {"growth": 0.5}])
def test_parameters_outside_their_range_are_refused(how):
    with pytest.raises(InputError, match=next(iter(how))):
        Snacks(**how)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"solver": "snacks", "problem": "squared-svc"}, "squares its errors"),
        ({"solver": "pegasos", "problem": "nu-svc"}, "has a nu"),
        ({"solver": "pegasos", "intercept": True}, "unpenalised"),
        ({"solver": "snacks", "exact": True}, "needs landmarks"),
    ],
)
def test_options_refuse_problems_it_cannot_solve_before_a_fit(options, said):
    with pytest.raises(InputError, match=said):
        TrainOptions(**options)


# -- the main job ----------------------------------------------------------------------------------
def test_a_fit_that_ends_short_of_tol_says_so(fleet):
    """The model has the true gap, and a warning says that tol was not reached."""
    data = contracts.rows(0, 300, weights=False)
    options = {"landmarks": 20, "gamma": 0.2, "tol": 1e-2, "screening": "gap"}
    with pytest.warns(ConvergenceWarning, match="drawn at random"):
        found = train(data, TrainOptions(solver="snacks", **options), fleet)
    best = train(data, TrainOptions(tol=1e-4, landmarks=20, gamma=0.2), fleet)
    one, other = (model.provenance["certificates"][0] for model in (found, best))
    assert one["relative_gap"] > 1e-2
    assert other["dual"] <= one["primal"] <= 1.05 * other["primal"]
    assert one["dual"] <= other["primal"]
    assert found.provenance["solver"] == "snacks"
    history = found.provenance["history"]
    assert "estimated_from" in history[0] or history[0]["rows_visited"] >= 300
    assert "estimated_from" not in history[-1]
    about = {**history[-1], "estimated_from": 100}
    assert "P about " in pass_line(about) and "about" not in pass_line(history[-1])
