"""Local Newton steps over gathered rows solve every problem, and save passes."""

import numpy as np
import pytest
from newton_world import feature_world, tuned
from problem_cases import NAMES

from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.problems.recipes import CSvc
from bigscreen.screening.dynamic import make_rule
from bigscreen.solvers.newton.algebra import Algebra
from bigscreen.solvers.newton.coordinator import NewtonRun
from bigscreen.solvers.newton.local import LocalProblem
from bigscreen.solvers.newton.shard import GatheredRows
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Run

SMALL = {"min_columns": 1, "max_local_fraction": 0.9}
"""Textbook problems have few features, and most of their rows are near their hinge point."""


class Gathering(Inline):
    """A fleet that notes how many rows are gathered, each time."""

    def __init__(self, threads, gathered):
        super().__init__(threads)
        self.picked, self.gathered = 0, gathered

    def round(self, message):
        stack, totals = super().round(message)
        if message["kind"] == "pick":
            self.picked = int(stack[:, 0].sum())
        if message["kind"] == "gather":
            self.gathered.append(self.picked)
        return stack, totals


def solved(world, tol, gathered, rule="none"):
    with Gathering(1, gathered) as fleet:
        run = Run(world.design, world.problem, fleet)
        return fit(run, tuned(tol, **SMALL), Limits(tol, 300), rule=make_rule(rule))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["none", "gap"])
@pytest.mark.parametrize("name", NAMES)
def test_every_problem_is_solved(name, rule):
    gathered = []
    for seed, weights in ((0, False), (1, True)):
        world = feature_world(name, "rbf", seed, n=200, weights=weights)
        fitted = solved(world, 1e-3, gathered, rule)
        found, best = fitted.certificate, world.optimum
        room = world.room(fitted.point)
        assert found.relative_gap <= 1e-3
        assert found.dual <= best.primal + room
        assert best.dual - room <= found.primal <= best.primal + found.gap + room
    assert gathered, "no local step was taken"


def shards(rows=4000):
    """Many shards, most rows far from their hinge point once w is about right."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 6)).astype(np.float32)
    y = (X @ rng.normal(size=6) + 0.3 * rng.normal(size=rows) > 0).astype(np.int32)
    return MemoryDataset(X, y, [0, 1], shard_rows=512, chunk_rows=256)


def fitted_on(threads, report=lambda event: None, tuning=None, gathered=None, **options):
    data = shards()
    with Gathering(threads, [] if gathered is None else gathered) as fleet:
        run = Run(Design(data), CSvc(1.0, 1, (), "true"), fleet, **options)
        return fit(run, tuned(1e-5, **SMALL | (tuning or {})), Limits(1e-5, 99), report=report)


def test_any_number_of_threads_finds_the_same_bits():
    gathered = []
    one, three = fitted_on(1, gathered=gathered), fitted_on(3)
    assert gathered
    np.testing.assert_array_equal(one.point.coef, three.point.coef)
    assert one.certificate == three.certificate and one.history[-1]["dual"] == one.point.dual


def test_local_steps_save_passes():
    near = fitted_on(1)
    far = fitted_on(1, tuning={"max_local_fraction": 0.0})
    assert len(near.history) < 0.6 * len(far.history)
    room = near.certificate.gap + far.certificate.gap
    assert near.certificate.primal == pytest.approx(far.certificate.primal, abs=room)


def test_an_interrupted_fit_ends_in_the_same_point(tmp_path, checkpoint_every):
    checkpoint_every(-1.0)
    # Many short phases: one has to follow the checkpoint.
    short = {"max_local_passes": 1}
    whole = fitted_on(1, tuning=short)
    count = len(whole.history)
    assert count >= 4

    def stop(event):
        if event.get("pass") == count - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted_on(1, folder=tmp_path, report=stop, tuning=short)
    gathered = []
    resumed = fitted_on(2, folder=tmp_path, resume=True, tuning=short, gathered=gathered)
    assert gathered
    np.testing.assert_array_equal(resumed.point.coef, whole.point.coef)
    assert resumed.certificate == whole.certificate


def test_a_pass_gathers_the_rows_that_crossed():
    """If few rows are gathered at first, rows that leave their side are found all the same."""
    wide = fitted_on(1)
    gathered = []
    narrow = fitted_on(1, tuning={"gather_distances": (1.0,)}, gathered=gathered)
    assert any(0 < later < gathered[0] for later in gathered[1:])
    room = wide.certificate.gap + narrow.certificate.gap
    assert narrow.certificate.relative_gap <= 1e-5
    assert wide.certificate.primal == pytest.approx(narrow.certificate.primal, abs=room)


@pytest.mark.parametrize("tube", [0.0, 0.3])
def test_if_all_rows_are_gathered_the_local_problem_is_the_problem(tube):
    """The gradient at the end is 0, that of the textbook's smoothed loss."""
    rng = np.random.default_rng(1)
    n, d, h = 60, 5, 0.2
    A, G = rng.normal(size=(n, d)).astype(np.float32), rng.normal(size=n)
    lo, hi = -np.full(n, 0.5), rng.uniform(0.5, 2, n)
    with Inline(1) as fleet:
        data = MemoryDataset(A, np.zeros(n, np.int32), [0, 1])
        algebra: Algebra = NewtonRun(Newton(), Design(data), CSvc(1.0, 1), fleet).algebra
    local = LocalProblem(algebra, np.zeros(d), -A.T @ slope(G, lo, hi, tube, h), h, n)
    for rows in (slice(40), slice(40, n)):
        taken = local.room[: len(A[rows])]
        taken[:] = A[rows]
        local.add(
            GatheredRows(taken, G[rows], lo[rows], hi[rows], np.full(len(taken), tube)),
            np.full(len(taken), np.nan),
        )
    np.testing.assert_array_equal(local.rows.feature, A)
    assert local.solve(1e-6, 0.0) > 0 and local.h < h
    alpha = slope(G - A @ local.x, lo, hi, tube, local.h)
    np.testing.assert_allclose(local.x, A.T @ alpha, atol=1e-3)


def slope(G, lo, hi, tube, h):
    """The smoothed loss's slope, row by row."""
    up = hi * np.clip((G - tube + h) / (2 * h), 0, 1)
    return up + lo * np.clip((h - G - tube) / (2 * h), 0, 1)
