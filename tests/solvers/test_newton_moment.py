"""The second moment of the band: what it is, in which precision, and how passes share it."""

from dataclasses import replace

import numpy as np
import pytest
from newton_world import feature_world, tuned
from problem_cases import NAMES

from bigscreen.data.memory import MemoryDataset
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.standard import make_kernel
from bigscreen.numerics import reproducible as exact
from bigscreen.problems.dual import FREE
from bigscreen.problems.recipes import CSvc
from bigscreen.solvers.newton.algebra import Algebra, averaged, second_moment
from bigscreen.solvers.newton.local import LocalProblem
from bigscreen.solvers.newton.shard import GatheredRows, NewtonProgram
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.newton.tuning import NEWTON
from bigscreen.solvers.protocol import Run


def design_of(n, m, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 6)).astype(np.float32)
    data = MemoryDataset(X, np.where(rng.random(n) < 0.5, -1, 1), (-1, 1))
    kernel = make_kernel("rbf", 0.5)
    side, _ = nystrom.choose_landmarks(data, kernel, m, "uniform", seed)
    return Design(data, kernel, side, nystrom.factor_matrix(kernel, side))


@pytest.mark.parametrize(("m", "curvature"), [(40, 1.0), (400, 1.0), (400, 1e9)])
def test_moment_is_the_sum_over_features(m, curvature):
    """float32 where there are many features, float64 where rounding could outweigh the penalty."""
    design, rng = design_of(600, m), np.random.default_rng(1)
    columns = design.columns(design.data.X(0, 50))
    border, weight = rng.standard_normal((50, 2)), np.sqrt(curvature * rng.random(50))
    found = second_moment(design, columns, border, weight)
    rows = np.hstack([design.features_of(columns).astype(np.float64), border]) * weight[:, None]
    precise = len(found) < NEWTON.min_float32_columns or curvature > 1
    assert found.dtype == (np.float64 if precise else np.float32)
    diagonal = np.sqrt(np.diag(rows.T @ rows))
    error = np.abs(found - rows.T @ rows) / np.outer(diagonal, diagonal)
    assert error.max() <= (1e-13 if precise else 1e-5)


def test_features_have_the_precision_of_their_columns():
    design = design_of(300, 60)
    X = design.data.X(0, 300)
    fine = design.features_of(design.columns(X, np.float64))
    coarse, out = design.features_of(design.columns(X)), np.empty((300, design.rank), np.float32)
    assert (fine.dtype, coarse.dtype) == (np.float64, np.float32)
    np.testing.assert_allclose(coarse, fine, atol=1e-3)
    assert design.features_of(design.columns(X), out) is out
    np.testing.assert_array_equal(out, coarse)


@pytest.mark.parametrize("kind", ["far", "few directions", "huge"])
def test_rounding_leaves_a_moment_less_than_the_penalty_below_0(kind):
    """Rows nearly alike, or in a plane, or long: what float32 rounds off is more than 1."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, NEWTON.min_float32_columns + 4))
    match kind:
        case "far":
            X += 1000.0
        case "few directions":
            X = np.rint(128 + 10 * X[:, :20] @ rng.normal(size=(20, X.shape[1])))
        case "huge":
            X *= 1e18
    X = X.astype(np.float32)
    design = Design(MemoryDataset(X, np.zeros(600, np.int32), [0, 1]))
    border, weight = np.ones((600, 1)), np.full(600, 7.0)
    moment = second_moment(design, X, border, weight)
    assert np.all(np.isfinite(moment))
    least = np.linalg.eigvalsh(moment.astype(np.float64))[0]
    assert least > -0.5 - 1e-12 * float(np.trace(moment))


def test_columns_far_from_0_are_fitted():
    """256 of them and more: float32 would leave no Hessian."""
    rng = np.random.default_rng(4)
    X = (rng.standard_normal((1500, 260)) + 100).astype(np.float32)
    data = MemoryDataset(X, np.where(X[:, 0] + rng.standard_normal(1500) > 100, 1, 0), [0, 1])
    with Inline(2) as fleet:
        found = fit(Run(Design(data), CSvc(1.0, 1), fleet), Newton(1e-3), Limits(1e-3, 60))
    assert found.certificate.relative_gap <= 1e-3


@pytest.mark.parametrize("min_columns", [0, 256])
@pytest.mark.parametrize("name", NAMES)
def test_the_turns_of_a_band_average_to_its_second_moment(name, min_columns):
    """Of any stride, over tiles that the stride does not divide, with the extras' border."""
    tuning = replace(NEWTON, min_float32_columns=min_columns, column_rows=7)
    world = feature_world(name, "rbf", 0, n=150, weights=True)
    design, h, stride = world.design, 1.2, 4
    bound = float(2 * world.case.hi.sum())
    program = NewtonProgram(design, world.problem, weight_bound=bound, tuning=tuning)
    coef = design.coef(np.random.default_rng(1).normal(size=design.rank) * 0.3)
    size = design.rank + program.frame.extras
    want, found = np.zeros((2, size, size))
    for shard in range(design.data.n_shards):
        state = program.open(shard)
        still = {
            "kind": "trial", "h": h, "steps": np.zeros(1), "coefs": np.stack([coef, coef], axis=1),
            "extras": np.zeros((program.frame.extras, 2)), "slack": 0.0, "w_moves": np.zeros(1),
            "score_moves": np.zeros(1),
        }  # fmt: skip
        program.step(state, still, {})
        message = {"h": h, "wide": h, "stride": stride, "t": 0.0, "ref": 0, "turn": 0}
        program.step(state, {**message, "kind": "accept"}, {})
        for turn in range(stride):
            totals: exact.Totals = {}
            program.step(state, {**message, "kind": "gradient", "turn": turn}, totals)
            if "moment" in totals:
                found += exact.read(totals, "moment", program.moment_bound(message)) / stride
        dual, tube = state.dual, 0.0 if state.dual.tube is None else state.dual.tube
        # (Rows without weight are in no state.)
        own = state.ids - design.data.shard(shard)[0]
        columns = design.columns(design.data.X(*design.data.shard(shard))[own], np.float64)
        z = dual.lin - dual.sign * (columns @ coef)
        slopes = [dual.hi * (abs(z - tube) <= h) - dual.lo * (abs(z + tube) <= h)]
        assert np.any(state.side == FREE)
        features = np.hstack([columns @ design.factor, program.frame.border(dual)])
        want += features.T @ (features * (slopes[0] / (2 * h))[:, None])
    np.testing.assert_allclose(found, want, rtol=0, atol=2e-6 * np.abs(want).max())


def test_the_mean_of_moments_is_of_one_h_and_fades():
    one, two = np.eye(2), 3 * np.eye(2)
    known = averaged(averaged(None, one, 1.0, 2), two, 1.0, 2)
    np.testing.assert_array_equal(known.moment, 2 * np.eye(2))
    np.testing.assert_array_equal(averaged(known, two, 1.0, 2).moment, 2.5 * np.eye(2))
    np.testing.assert_array_equal(averaged(known, two, 0.5, 2).moment, two)


def local_of(feature):
    """A local problem of 40 rows with these features, all in a band of half-width 1."""
    world = feature_world("c-svc")
    algebra = Algebra(world.design, NewtonProgram(world.design, world.problem).frame)
    rng, zero, one = np.random.default_rng(3), np.zeros(40), np.ones(40)
    local = LocalProblem(
        algebra, np.zeros(algebra.size), rng.standard_normal(algebra.size), 1.0, 40
    )
    local.room[:] = feature(rng, algebra.size)
    local.add(
        GatheredRows(local.room, rng.uniform(-0.5, 0.5, 40), zero, one, zero), np.full(40, np.nan)
    )
    return local, rng.standard_normal(algebra.size)


def test_a_local_moment_follows_rows_that_enter_and_leave():
    local, _ = local_of(lambda rng, size: rng.integers(-9, 9, (40, size)).astype(np.float32))
    feature = local.rows.feature
    for band in (np.arange(40), np.arange(8, 40), np.arange(8, 36), np.arange(4, 39)):
        local._update(band, np.full(len(band), 0.5))
        whole = feature[band].T @ feature[band]
        np.testing.assert_array_equal(local._moment * local._scale, 0.5 * whole)


def test_an_indefinite_local_hessian_is_summed_again():
    """Rounding can leave too much behind where rows came and went: then a step is still found."""
    local, gradient = local_of(lambda rng, size: rng.standard_normal((40, size)).astype(np.float32))
    band, curve, size = np.arange(40), np.full(40, 0.5), len(gradient)
    expected = local._direction(band, curve, gradient)
    local._moment -= 100 * np.eye(size, dtype=np.float32)
    local._curvature[:] = curve / local._scale
    np.testing.assert_array_equal(local._direction(band, curve, gradient), expected)


@pytest.mark.parametrize("at", [3, 6, 9])
def test_a_mean_of_moments_is_resumed(at, tmp_path, checkpoint_every):
    """A band of many times as many rows as a pass takes: the checkpoint holds the mean."""
    checkpoint_every(-1.0)
    world, averages = feature_world("c-svc", "rbf", 0, n=300), []

    class Saving(Inline):
        def save(self, folder, meta):
            averages.append(meta["solver"]["known"])
            super().save(folder, meta)

    def solved(threads, report=lambda event: None, **options):
        with Saving(threads) as fleet:
            solver = tuned(1e-4, moment_rows_per_column=0.3)
            run = Run(world.design, world.problem, fleet, **options)
            return fit(run, solver, Limits(1e-4, 60), report=report)

    def stop(event):
        if event.get("pass") == at:
            raise KeyboardInterrupt

    whole = solved(1, folder=tmp_path / "whole")
    assert len(whole.history) > at
    assert any(passes > 1 for passes, _ in filter(None, averages)), "no moment was carried over"
    with pytest.raises(KeyboardInterrupt):
        solved(2, folder=tmp_path / "stopped", report=stop)
    resumed = solved(3, folder=tmp_path / "stopped", resume=True)
    np.testing.assert_array_equal(resumed.point.coef, whole.point.coef)
    assert resumed.certificate == whole.certificate
