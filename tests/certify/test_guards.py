"""Small guards of safety and of certificates, each of which no other test would miss.

Where a bound has room to spare, random data never shows that a part of it is gone: errors here are
chosen, by the bound itself, to be as bad as they may be.
"""

from __future__ import annotations

import pickle
from fractions import Fraction

import certificate_cases
import numpy as np
import pytest
import reference
from fleet_programs import Recorded

from bigscreen.certify.exact import ScoredRows
from bigscreen.certify.scores import Noise, ScoreProgram
from bigscreen.data.memory import MemoryDataset
from bigscreen.fleet.worker import Host
from bigscreen.kernels.base import phi_norms
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.square import error_spread, number_equal_rows, variance_weights
from bigscreen.kernels.standard import Rbf
from bigscreen.problems.dual import AT_HI, AT_LO, AT_ZERO, FREE, Dual
from bigscreen.problems.point import Point, SumLayout
from bigscreen.problems.recipes import CSvc, OneClass, Svr
from bigscreen.screening import bounds
from bigscreen.screening.dynamic import GapBall
from bigscreen.screening.regions import Cut, Region
from bigscreen.screening.regions import Scores as Told


# -- the dual record -------------------------------------------------------------------------------
def test_row_gaps_with_a_tube_are_the_gain_left_for_each_row():
    rng = np.random.default_rng(0)
    n = 400
    hi, lo = rng.uniform(0, 2, n), -rng.uniform(0, 2, n)
    hi[:40], lo[40:80] = 0.0, 0.0
    tube = rng.uniform(0, 1, n)
    dual = Dual(np.where(rng.random(n) < 0.5, 1.0, -1.0), rng.normal(size=n), lo, hi, tube=tube)
    alpha = np.where(rng.random(n) < 0.3, 0.0, lo + (hi - lo) * rng.random(n))
    alpha = np.where(rng.random(n) < 0.2, hi, np.where(rng.random(n) < 0.2, lo, alpha))
    scores = rng.normal(size=n)
    G = dual.lin - dual.sign * scores
    gain = lambda a: G * a - tube * np.abs(a)  # noqa: E731
    best = np.max([gain(hi), gain(lo), gain(0 * G)], axis=0)
    slacks = dual.slacks(alpha, scores)
    np.testing.assert_allclose(slacks, best - gain(alpha), rtol=0, atol=1e-14)
    # A row that stands where it is best has none, to the last bit.
    there = np.where(best == gain(hi), hi, np.where(best == gain(lo), lo, 0.0))
    assert not np.any(dual.slacks(there, scores))


@pytest.mark.parametrize("excess", [0.0, 1e-15, -1e-15])
def test_a_total_at_the_end_of_what_the_box_allows_has_a_multiplier(excess):
    """All weights are needed to reach it, or none; and a group may have no row."""
    rng = np.random.default_rng(1)
    n = 50
    for lo, hi in ((np.zeros(n), rng.uniform(0, 1, n)), (-rng.uniform(0, 1, n), np.zeros(n))):
        for total in (hi.sum() * (1 + excess), lo.sum() * (1 + excess)):
            dual = Dual(np.ones(n), np.zeros(n), lo, hi, np.ones(n), total)
            scores = rng.normal(size=n)
            mu = dual.multiplier(scores)
            assert -scores.max() <= mu <= -scores.min()
    empty = np.zeros(n, np.int8)
    dual = Dual(
        np.ones(n), np.zeros(n), np.zeros(n), np.ones(n), np.ones(n), np.array([5.0, 0.0]), empty
    )
    assert np.all(np.isfinite(dual.multiplier(rng.normal(size=n))))


def test_a_row_whose_breakpoint_is_the_multiplier_is_free():
    """Where a gradient is exactly 0, or exactly the tube, any place may be the optimal one."""
    edge = Dual(np.ones(2), np.array([1.0, 1.0]), np.zeros(2), np.ones(2))
    assert np.all(edge.decide(np.ones(2), np.ones(2)) == FREE)
    below, above = np.nextafter(1.0, 0), np.nextafter(1.0, 2)
    assert edge.decide(np.array([below, above]), np.array([below, above])).tolist() == [
        AT_HI,
        AT_LO,
    ]
    tube = Svr(1.0, 0.25).dual(np.zeros(2), np.ones(2))
    for end in (-0.25, 0.25):
        assert np.all(tube.decide(np.full(2, end), np.full(2, end)) == FREE)
        past = np.nextafter(end, 2 * end)
        inside = np.nextafter(end, 0)
        assert tube.decide(np.array([past] * 2), np.array([past] * 2))[0] in (AT_HI, AT_LO)
        assert tube.decide(np.array([inside] * 2), np.array([inside] * 2))[0] == AT_ZERO
    coupled = Dual(*(getattr(edge, k) for k in ("sign", "lin", "lo", "hi")), np.ones(2), 1.0)
    assert np.all(coupled.decide(np.zeros(2), np.zeros(2), (1.0, 1.0)) == FREE)


def test_feasible_keeps_rounding_errors_and_corrects_larger_ones():
    n = 10
    hi = np.full(n, 0.1)
    whole = Dual(np.ones(n), np.zeros(n), np.zeros(n), hi, np.ones(n), 0.3)
    alpha = np.zeros(n)
    alpha[:3] = 0.1  # sums up to .30000000000000004
    np.testing.assert_array_equal(whole.feasible(alpha), alpha)
    for off in (1e-13, 1e-9, 1e-5):
        for moved in (alpha * (1 - off), np.minimum(alpha + off, hi)):
            assert abs(np.sum(whole.feasible(moved)) - 0.3) <= 1e-15
    # What no alpha can make up is not overlooked, unless it is a rounding.
    for off, fails in ((1e-12, False), (1e-7, True)):
        dual = Dual(np.ones(n), np.zeros(n), np.zeros(n), hi, np.ones(n), 1.0 + off)
        if fails:
            with pytest.raises(ValueError, match="no alpha"):
                dual.feasible(alpha)
        else:
            assert np.all(dual.feasible(alpha) == hi)


# -- the closing pass ------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["c-svc", "one-class"])
def test_no_error_within_its_bands_moves_a_gap_by_more_than_is_stated(kind):
    rng = np.random.default_rng(0)
    n, band = 12, 1e-4
    base = np.arange(n) / n - 0.3
    problem = CSvc(1.0, 1, (), "true") if kind == "c-svc" else OneClass(1 / 3.6, n)
    dual = problem.dual(np.arange(n) % 2, np.ones(n))
    if kind == "c-svc":
        alpha = np.full(n, 0.6)
    else:  # three rows at their bound, and what is left of the total at a wrong row
        left = 1.0 - 3 * dual.hi
        alpha = np.where(np.arange(n) < 3, dual.hi, np.where(np.arange(n) == 4, left, 0.0))

    def stated(error):
        rows = ScoredRows(problem, dual, alpha)
        rows.scores, rows.bands = base + error, np.full(n, band)
        return rows.certificate()

    here = stated(0.0)
    moved = [abs(stated(band * rng.choice([-1.0, 1.0], n)).gap - here.gap) for _ in range(2000)]
    assert 0 < max(moved) <= here.rounding_bound * (1 + 1e-9)


def test_the_band_of_float64_scores_holds_their_error():
    """Two heaps far apart: nothing that rows are moved to makes both of them short."""
    rng = np.random.default_rng(0)
    far = np.where(np.arange(80) % 2, 30.0, -30.0)
    # The rows are short compared with their distance from 0: few digits of the squares agree.
    X = (0.1 * rng.normal(size=(80, 6))).astype(np.float32)
    X[:, 0] = far
    data = MemoryDataset(X, (far > 0).astype(np.int32), [0, 1])
    kernel, ids, coef = Rbf(15.0), np.arange(80), rng.normal(size=80)
    support = Operand(X, ids)
    norms = phi_norms(kernel, support)
    noise = Noise(
        variance_weights(coef, number_equal_rows(support.X)),
        float(norms.max()),
        float(np.abs(coef) @ norms),
    )
    scores, band = ScoreProgram(data, kernel, support, coef, noise, np.float64)(ids)
    L = X.astype(np.longdouble)
    true = np.exp(-np.longdouble(15.0) * np.sum((L[:, None] - L[None]) ** 2, axis=2)) @ coef
    off = np.abs(scores - true).astype(np.float64)
    assert np.all(off <= band)
    sums = 2.0**-51 * np.sqrt(80) * norms * noise.size
    assert np.any(off > 2 * sums)  # so it is not the sums' own error that is tested here


def test_errors_of_equal_rows_add_up():
    rng = np.random.default_rng(0)
    X = np.vstack([np.repeat(rng.normal(size=(1, 4)), 50, axis=0), rng.normal(size=(30, 4))])
    data = MemoryDataset(X.astype(np.float32), np.arange(80) % 2, [0, 1])
    coef = rng.uniform(0.5, 1, 80)
    found = variance_weights(coef, number_equal_rows(data.X(0, 80)))
    assert np.sum(found[:50]) >= np.sum(coef[:50]) ** 2 * (1 - 1e-12)
    np.testing.assert_allclose(found[50:], coef[50:] ** 2)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_errors_of_a_score_add_up_to_no_more_than_their_bound(sign):
    """Half of the rows are one row: with weights of one sign, and with weights that cancel."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)).astype(np.float32)
    X[:30] = X[0]
    group = number_equal_rows(X)
    coef = rng.uniform(0.5, 1.0, 60)
    coef[1:30:2] *= sign
    assert group is not None
    # Entries of one row err alike, by as much as they can; errors of all others are independent.
    errors = rng.choice([-1.0, 1.0], (20_000, group.max() + 1))[:, group]
    root_mean_square = np.sqrt(np.mean((errors @ coef) ** 2))
    assert root_mean_square <= 1.02 * error_spread(coef, group)
    assert error_spread(coef, group) >= np.sqrt(coef @ coef) * (1 - 1e-12)
    assert error_spread(coef, None) == pytest.approx(np.sqrt(coef @ coef))


# -- screening -------------------------------------------------------------------------------------
@pytest.mark.parametrize("depth", [-0.99, -0.5, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("slack", [1e-6, 1e-3, 0.05])
def test_a_cut_known_up_to_its_slack_holds_every_region_it_may_be(depth, slack):
    """In the plane: the half-space is ``<a, w> >= depth``, and ``<a, phi>`` is a little off."""
    a, norms = np.array([1.0, 0.0]), np.ones(181)
    angle = np.linspace(0, np.pi, 181)
    phi = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    # Points of the region: the ends of the cut, and its arc.
    end = np.arccos(depth)
    arc = np.linspace(-end, end, 2001)
    region = np.stack([np.cos(arc), np.sin(arc)], axis=1)
    low, high = (region @ phi.T).min(axis=0), (region @ phi.T).max(axis=0)
    for error in (-slack, slack):
        cut = Cut(Told(phi @ a + error, slack), 1.0, 0.0, depth)
        lower, upper = Region(Told(np.zeros(181), 0.0), 1.0, cut).intervals(norms)
        assert np.all(lower <= low + 1e-6 * slack) and np.all(upper >= high - 1e-6 * slack)


@pytest.mark.parametrize("kind", ["one-class", "nu-svc"])
@pytest.mark.parametrize("missing", [-1e-4, 1e-4])
def test_a_gap_counts_what_alpha_lacks_of_its_total(kind, missing):
    rng = np.random.default_rng(0)
    n = 20
    phi, one, zero = rng.normal(size=(n, 3)) + 2, np.ones(n), np.zeros(n)
    group, total = None, 1.0
    if kind == "nu-svc":
        group, total = (np.arange(n) % 2).astype(np.int8), np.array([0.5, 0.5])
    sign = one if group is None else 2.0 * group - 1
    q = reference.Problem(phi, sign, zero, zero, one / 5, one, total, group)
    dual = Dual(sign, zero, zero, one / 5, one, total, group)
    alpha = reference.solve(q).alpha
    alpha = alpha * (1 + missing)
    scores = phi @ reference.w_of(q, alpha)
    gap = reference.linear_maximum(q, alpha, scores)
    assert bounds.gap_bound(dual, alpha, Told(scores, 0.0)) >= gap * (1 - 1e-12)


def test_radii_are_rounded_up():
    for square in (2.0, 3.0, 5.0, 1e-3, 7e10):
        assert Fraction(bounds.safe_radius(square, 0.0)) ** 2 > Fraction(square)
    assert bounds.safe_radius(0.0, 1.0) ** 2 >= 0.99 * bounds.ROUNDING
    assert bounds.safe_radius(-1.0, 1.0) ** 2 >= 0.99 * bounds.ROUNDING
    ball = GapBall().region(Point(np.empty(0), np.empty(0), 0.0, 1.0, 1.0, True), 1e-6)
    assert ball is not None and ball.radius**2 >= 0.99e-6


# -- a worker's host -------------------------------------------------------------------------------
def test_a_host_that_is_requested_twice_is_adopted_once(tmp_path):
    program, host = Recorded(tmp_path), Host(1)
    assert host.begin(pickle.dumps(program))[0] == "ok"
    for _ in range(2):
        assert host.adopt(0, [0, 1, 2], None, [])[0] == "ok"
    notes = sorted(path.read_text() for path in tmp_path.iterdir() if path.is_file())
    opened = "".join(notes).count("open:")
    assert opened == 3


# -- sums of a coupling ----------------------------------------------------------------------------
@pytest.mark.parametrize("noise", [-1e-16, 0.0, 1e-16])
@pytest.mark.parametrize("side", [0, 1])
def test_a_side_without_rows_is_scaled_right_despite_rounding(noise, side):
    """Sums that rows left one by one end near 0, on either side of it."""
    frame = SumLayout(False, np.zeros(1))
    v = np.zeros((2, 3))
    v[side] = noise
    v[1 - side] = [0.4, -0.1, 0.35 if side else -0.35]
    scales = frame.scales(v)
    assert scales is not None and abs((scales @ v)[-1]) <= 1e-15


def test_a_regression_whose_errors_lie_on_one_side_ends_in_a_model():
    spec = certificate_cases.Spec(
        2076, "LinearSVR", "linear", n=46, C=1.6553691910445507, epsilon=0.5, tol=5e-3,
        single=True, offset=0.6083659723254149, seconds=60.0,
    )  # fmt: skip
    verdict = certificate_cases.tried(spec)
    assert verdict.outcome == "fitted" and not verdict.found
