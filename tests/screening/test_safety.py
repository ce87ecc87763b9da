"""Screening is safe: at any accuracy of the solver, nothing is fixed that the optimum has not."""

from dataclasses import replace

import contracts
import numpy as np
import pytest
import reference
from contracts import INTERCEPTS, RECORD, RecordingProgram
from hypothesis import given, settings
from hypothesis import strategies as st
from newton_world import Spied

from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.problems.point import Point
from bigscreen.screening.dynamic import FSafe, GapBall, make_rule
from bigscreen.screening.regions import Ball
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Run


@pytest.fixture(scope="module")
def fleet():
    with Inline(1) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def recording():
    """A fleet that records the screening rounds of Newton programs."""
    with Spied(RecordingProgram) as fleet:
        yield fleet


@pytest.fixture
def record():
    RECORD.clear()
    yield RECORD
    RECORD.clear()


class Reckless:
    """What maths.md 2.2 calls unsafe: the radius of a paired point around a w that is not w(alpha).

    Scaled further down by ``factor``.
    """

    name, safe = "reckless", True

    def __init__(self, factor=1.0):
        self.factor = factor

    def region(self, point, rounding):
        return Ball(self.factor * float(np.sqrt(max(point.gap, 0.0))))


def screened(world, fleet, rule, tol):
    return fit(
        Run(world.design, world.problem, fleet), Newton(tol=tol), Limits(tol, 400), rule=rule
    )


@pytest.mark.slow
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize(
    ("kernel", "sparse_rows", "C"),
    [
        ("linear", False, 0.01),
        ("linear", True, 1.0),
        ("linear", False, 30.0),
        ("rbf", False, 0.1),
        ("rbf", True, 0.3),
    ],
)
def test_the_gap_ball_is_safe_in_every_pass(kernel, sparse_rows, C, intercept, recording, record):
    fixed = 0
    for seed in range(3):
        record.clear()
        data = contracts.rows(seed, n=100, sparse_rows=sparse_rows)
        world = contracts.world(data, kernel, C, intercept)
        tol = 1e-8 if kernel == "linear" else 1e-5
        fitted = screened(world, recording, GapBall(), tol)
        fixed += contracts.screening_law(world, record)
        contracts.solver_law(world, fitted.point, fitted.certificate, tol)
        assert fitted.screening["fixed_at_hi"] + fitted.screening["fixed_at_lo"] == sum(
            len(entry["fixed"]) for entry in record
        )
    assert fixed > 50, "screening never bit: this test would prove nothing"


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 150),
    d=st.integers(1, 8),
    noise=st.floats(0.01, 3),
    C=st.floats(-4, 3),
    intercept=st.sampled_from(INTERCEPTS),
    kernel=st.sampled_from(["linear", "rbf", "laplacian", "matern12"]),
    sparse_rows=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_the_gap_ball_is_safe_everywhere(seed, n, d, noise, C, intercept, kernel, sparse_rows):
    data = contracts.rows(seed, max(n, 4), d, noise, sparse_rows)
    world = contracts.world(data, kernel, 10.0**C, intercept)
    with Spied(RecordingProgram) as fleet:
        RECORD.clear()
        fitted = screened(world, fleet, GapBall(), 1e-6 if kernel == "linear" else 1e-4)
        contracts.screening_law(world, list(RECORD))
        contracts.solver_law(world, fitted.point, fitted.certificate, None)


def test_a_ball_too_small_is_caught(recording, record):
    """The mutation: were the ball of every pass a third of what it is, these laws would say so."""
    caught = 0
    for seed in range(12):
        record.clear()
        world = contracts.world(contracts.rows(seed, n=100), "linear", 1.0)
        screened(world, recording, Reckless(0.3), 1e-4)
        try:
            contracts.screening_law(world, record)
        except AssertionError:
            caught += 1
    assert caught > 0


def test_the_paired_radius_around_an_unpaired_point_is_caught():
    """Where no loss bends between w and w*, P(w) - D* is 1/2 ||w - w*||^2: r^2 = gap misses w*."""
    world = contracts.world(contracts.rows(5, n=100, d=6), "linear", 0.003)
    q, best = world.oracle, world.optimum
    bent = q.phi[np.abs(best.gradient) < 1e-6]
    assert len(bent) < q.phi.shape[1]
    free = np.eye(q.phi.shape[1]) - np.linalg.pinv(bent) @ bent
    norms = np.linalg.norm(q.phi, axis=1)
    cosines = np.linalg.norm(q.phi @ free, axis=1) / norms
    direction = q.phi[np.argmax(cosines)] @ free
    w = best.w + 1e-3 * direction / np.linalg.norm(direction)
    gap = reference.primal(q, w) - best.dual
    point = Point(w, w, 0.0, best.dual + gap, best.dual, paired=False)
    # w(alpha) is w* here: as far apart as ||w - w*||, which the ball then meets to the last digits.
    apart = replace(point, apart=float(np.linalg.norm(w - best.w)))
    assert GapBall().region(apart, 1e-18).radius == pytest.approx(1e-3, rel=1e-3)
    cases = [(GapBall(), point, True), (GapBall(), apart, True), (Reckless(), point, False)]
    # The mutation: the radius around the middle, without the way from there to w.
    cases.append((Reckless(np.sqrt(1 - apart.apart**2 / 4 / gap)), point, False))
    for rule, pair, right in cases:
        ball = rule.region(pair, 1e-13)
        assert (np.linalg.norm(w - best.w) <= ball.radius) == right
        lower, upper = ball.intervals(q.phi @ w, norms)
        if right:
            contracts.intervals_hold(world, np.arange(100), lower, upper)
        else:
            with pytest.raises(AssertionError, match="interval"):
                contracts.intervals_hold(world, np.arange(100), lower, upper)


@given(
    seed=st.integers(0, 10**6),
    mix=st.floats(0, 1),
    C=st.floats(-2, 2),
    intercept=st.sampled_from(INTERCEPTS),
)
@settings(max_examples=60, deadline=None)
def test_paired_points_of_any_accuracy(seed, mix, C, intercept):
    """w = w(alpha): the ball of radius sqrt(gap), Zimmert's corollary 4.2, contains w*."""
    world = contracts.world(contracts.rows(seed, n=40), "linear", 10.0**C, intercept)
    q, best = world.oracle, world.optimum
    rng = np.random.default_rng(seed)
    alpha = q.hi * rng.random(len(q.hi))
    if q.t is not None:
        sides = [alpha[q.s > 0].sum(), alpha[q.s < 0].sum()]
        alpha = np.where(q.s > 0, alpha * min(sides) / sides[0], alpha * min(sides) / sides[1])
    alpha = mix * best.alpha + (1 - mix) * alpha
    w = reference.w_of(q, alpha)
    gap = reference.linear_maximum(q, alpha, q.phi @ w)
    point = Point(w, w, 0.0, reference.dual(q, alpha) + gap, reference.dual(q, alpha), True)
    ball = GapBall().region(point, 1e-9 * (1 + abs(point.primal)))
    assert np.linalg.norm(w - best.w) <= ball.radius
    norms = np.linalg.norm(q.phi, axis=1)
    lower, upper = ball.intervals(q.phi @ w, norms)
    contracts.intervals_hold(world, np.arange(len(alpha)), lower, upper)
    dual = world.problem.dual(world.data.y(0, 40), world.data.weights(0, 40))
    mu = dual.multiplier_interval(lower, upper) if q.t is not None else (0.0, 0.0)
    contracts.decisions_are_safe(world, np.arange(40), dual.decide(lower, upper, mu))


def test_unpaired_radius_is_twice_the_gap():
    point = Point(np.zeros(1), np.zeros(1), 0.0, 3.0, 1.0, paired=False)
    assert GapBall().region(point, 0.5).radius == pytest.approx(np.sqrt(5.0))
    assert FSafe(0.1).region(point, 0.5).radius == pytest.approx(0.1 * np.sqrt(5.0))


def test_no_region_without_a_gap():
    """An infinite or undefined gap proves nothing, so nothing is screened."""
    for primal in (np.inf, np.nan):
        point = Point(np.zeros(1), np.zeros(1), 0.0, primal, 1.0, paired=False)
        assert GapBall().region(point, 0.0) is None


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_a_reckless_f_still_ends_in_a_certified_gap(intercept, fleet):
    taken_back = 0
    for seed in range(4):
        world = contracts.world(contracts.rows(seed, n=100), "linear", 1.0, intercept)
        fitted = screened(world, fleet, FSafe(1e-3), 1e-6)
        contracts.solver_law(world, fitted.point, fitted.certificate, 1e-6)
        taken_back += fitted.screening["taken_back"]
    assert taken_back > 0, "f was never wrong: this test would prove nothing"


def test_rules_by_name():
    assert make_rule("none") is None
    assert make_rule("gap").safe and not make_rule("f-safe", 0.5).safe


@given(seed=st.integers(0, 10**6), spread=st.floats(-6, 1), mix=st.floats(0, 1), C=st.floats(-2, 2))
@settings(max_examples=80, deadline=None)
def test_the_ball_of_a_pair_that_is_apart(seed, spread, mix, C):
    """Any w and any alpha, however far apart: w* is in the ball, and the ball in that of 2 gap."""
    world = contracts.world(contracts.rows(seed, n=30), "linear", 10.0**C)
    q, best = world.oracle, world.optimum
    rng = np.random.default_rng(seed)
    alpha = mix * best.alpha + (1 - mix) * q.hi * rng.random(len(q.hi))
    w_alpha = reference.w_of(q, alpha)
    w = (best.w if rng.random() < 0.5 else w_alpha) + 10.0**spread * rng.normal(size=len(best.w))
    primal, dual = reference.primal(q, w), reference.dual(q, alpha)
    apart = float(np.linalg.norm(w - w_alpha))
    rounding = 1e-12 * (1 + abs(primal) + abs(dual))
    for off in (-1.0, 0.0, 1.0):
        told = max(apart + off * np.sqrt(rounding), 0.0)
        point = Point(w, w, 0.0, primal, dual, paired=False, apart=told)
        radius = GapBall().region(point, rounding).radius
        assert np.linalg.norm(w - best.w) <= radius + 1e-8 * np.linalg.norm(best.w)
        assert radius <= np.sqrt(2 * (primal - dual + rounding)) * (1 + 1e-12)


def test_the_ball_of_a_pair_is_no_larger_than_it_has_to_be():
    """Both ends are met: w = w(alpha), and a w* that lies where the two spheres touch."""

    def radius(gap, apart, rounding=0.0):
        point = Point(np.zeros(1), np.zeros(1), 0.0, gap, 0.0, paired=False, apart=apart)
        return GapBall().region(point, rounding).radius

    assert radius(2.0, 0.0) == pytest.approx(np.sqrt(2.0))
    assert radius(2.0, 2.0) == pytest.approx(2.0)
    assert radius(2.0, 1.0) == pytest.approx(0.5 + np.sqrt(1.75))
    # Beyond sqrt(2 gap) it falls again; what rounding may have done to d is on the safe side.
    assert radius(2.0, 2.5) == pytest.approx(1.25 + np.sqrt(2.0 - 2.5**2 / 4))
    assert radius(2.0, 2.5, 0.04) == pytest.approx(1.15 + np.sqrt(2.04 - 2.3**2 / 4))
    assert radius(2.0, 1.0, 0.04) == pytest.approx(0.6 + np.sqrt(2.04 - 0.36))
    assert radius(2.0, 3.0) == 2.0 and radius(2.0, np.nan) == 2.0
    assert radius(2.0, 1.9, 0.04) == pytest.approx(np.sqrt(4.08))
