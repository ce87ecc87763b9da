"""A float32 closing pass with float64 rows near their hinge point states the gap of float64."""

from fractions import Fraction

import contracts
import numpy as np
import pytest

from bigscreen.certify import columns
from bigscreen.certify.columns import ColumnTuning
from bigscreen.certify.explicit import close_explicit
from bigscreen.certify.sample import Sample
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.problems.point import add_in_blocks, add_rows
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Run


@pytest.fixture(scope="module")
def fleet():
    with Inline(1) as fleet:
        yield fleet


def both(design, problem, point, fleet, **how):
    """The gap of float32 columns with its own bound, and that of float64 ones."""
    rough = close_explicit(design, problem, point, fleet, **how)
    exact = close_explicit(design, problem, point, fleet, "float64")
    return rough, exact


@pytest.mark.slow
@pytest.mark.parametrize("intercept", contracts.INTERCEPTS)
@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
@pytest.mark.parametrize("C", [0.01, 30.0])
def test_the_float32_gap_equals_the_float64_gap_within_its_bound(kernel, intercept, C, fleet):
    world = contracts.world(contracts.rows(0, n=300), kernel, C, intercept)
    run = Run(world.design, world.problem, fleet)
    point = fit(run, Newton(tol=1e-5), Limits(1e-5, 200)).point
    rough, exact = both(world.design, world.problem, point, fleet)
    allowed = rough.rounding_bound + exact.rounding_bound
    assert abs(rough.gap - exact.gap) <= allowed
    assert abs(rough.primal - exact.primal) <= rough.primal_rounding + exact.primal_rounding
    assert abs(rough.dual - exact.dual) <= rough.dual_rounding + exact.dual_rounding
    contracts.solver_law(world, point, rough, None)


@pytest.mark.parametrize("sampled", [32, 256])
def test_the_gap_is_within_its_bound_if_few_rows_are_sampled(sampled, fleet):
    tuning = ColumnTuning(sample_rows=sampled)
    world = contracts.world(contracts.rows(1, n=3000, d=3), "rbf", 3.0)
    run = Run(world.design, world.problem, fleet)
    for tol in (1e-4, 1e-5):
        point = fit(run, Newton(tol=tol), Limits(tol, 200)).point
        rough, exact = both(world.design, world.problem, point, fleet, tuning=tuning)
        allowed = rough.rounding_bound + exact.rounding_bound
        assert abs(rough.gap - exact.gap) <= allowed


def test_the_bound_of_the_gap_is_far_below_the_bounds_of_p_and_d(fleet):
    world = contracts.world(contracts.rows(1, n=2000), "rbf", 1.0)
    run = Run(world.design, world.problem, fleet)
    point = fit(run, Newton(tol=1e-6), Limits(1e-6, 200)).point
    proof = close_explicit(world.design, world.problem, point, fleet)
    assert proof.certified_in == "float32"
    assert proof.rounding_bound < 0.2 * (proof.primal_rounding + proof.dual_rounding)


def test_a_pass_without_float64_rows_near_the_hinge_point_would_be_caught(fleet, monkeypatch):
    """The mutation: the same bound without the exact rows misses the gap."""
    found = []
    world = contracts.world(contracts.rows(3, n=2000), "rbf", 1.0)
    run = Run(world.design, world.problem, fleet)
    point = fit(run, Newton(tol=1e-6), Limits(1e-6, 200)).point

    def rough(true, used, rows, some):
        return used.columns(rows[some]).astype(np.float64) * (1 + 1e-4)

    for make in (columns._float64, rough):
        monkeypatch.setattr(columns, "_float64", make)
        one, exact = both(world.design, world.problem, point, fleet)
        allowed = one.rounding_bound + exact.rounding_bound
        found.append(abs(one.gap - exact.gap) <= allowed or one.certified_in == "float64")
    assert found == [True, False]


@pytest.mark.parametrize("intercept", contracts.INTERCEPTS)
def test_p_and_d_of_a_small_gap_equal_the_float64_values(intercept, fleet):
    world = contracts.world(contracts.rows(1, n=2000), "rbf", 1.0, intercept)
    run = Run(world.design, world.problem, fleet)
    point = fit(run, Newton(tol=2e-8), Limits(2e-8, 200)).point
    apart = []
    for digits in (1e-7, 0.0):
        tuning = ColumnTuning(support_float64_gap=digits)
        own, exact = both(world.design, world.problem, point, fleet, tuning=tuning)
        apart.append(abs(own.primal - exact.primal) / exact.primal)
        assert abs(own.gap - exact.gap) <= own.rounding_bound + exact.rounding_bound
        assert own.certified_in == ("float64" if digits else "float32")
    assert apart[0] <= 1e-13 and apart[1] > 1e-10


def test_the_rounding_of_a_long_sum_is_bounded_by_its_blocks():
    """Whatever one addition rounds off every one does: no law of large numbers helps."""
    rows, block = 1024, 32
    columns, border = np.full((rows, 3), 1 / 3), np.empty((rows, 0))
    coef, term = np.full(rows, 1 / 7), np.zeros(rows, np.int64)
    plain, blocks = np.zeros((1, 3)), np.zeros((1, 3))
    add_rows(columns, border, coef, term, plain)
    add_in_blocks(columns, border, coef, term, block, blocks)
    true = float(rows * Fraction(1 / 3) * Fraction(1 / 7))
    allowed = (block + rows // block) * 2.0**-53 * true
    assert np.all(np.abs(blocks - true) <= allowed)
    assert np.all(np.abs(plain - true) > allowed)


def test_rows_with_a_zero_coefficient_do_not_count_in_a_block():
    rng = np.random.default_rng(0)
    columns, border = rng.normal(size=(70, 3)), rng.normal(size=(70, 1))
    coef, term = rng.normal(size=70) * (rng.random(70) < 0.4), rng.integers(0, 2, 70)
    coef[-1] = 0.0
    found, wanted = np.zeros((2, 2, 4))
    add_in_blocks(columns, border, coef, term, 8, found)
    np.add.at(wanted, term, coef[:, None] * np.hstack([columns, border]))
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("bias", [0.0, 0.02, 1.0])
def test_a_small_common_error_stays_within_the_bound_of_the_sample(bias):
    """All errors in one direction, with a mean that drowns in the sample's noise."""
    n, step, spread = 100_000, 50, 1e-6
    rng = np.random.default_rng(0)
    for seed in range(12):
        direction = np.zeros(3)
        direction[seed % 3] = 1.0
        errors = spread * (rng.normal(size=n) + bias)
        signed = rng.uniform(0.5, 1.5, n)
        some = slice(seed, None, step)
        rows = len(errors[some])
        off = (errors[some, None] * direction).astype(np.float32)
        seen = Sample(rows, np.zeros(2), np.zeros(2), 0.0, ((off, signed[some]),))
        apart = rng.normal(size=3)
        moved = float(signed @ errors) * direction
        change = abs(apart @ moved) + 0.5 * moved @ moved
        assert change <= seen.gap_error(n, apart, 0.0)
        scaled = 0.9 * moved
        change = abs(apart @ scaled) + 0.5 * scaled @ scaled
        assert change <= seen.gap_error(n, apart, 0.1)
