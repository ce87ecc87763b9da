"""The general dual record against the oracle: objectives, gap, multipliers, decisions."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bigscreen.errors import InputError
from bigscreen.problems.dual import AT_HI, AT_LO, FREE, Dual
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import CSvc

KINDS = ["c-svc", "c-svc true", "lad", "svr true", "one-class", "nothing special"]


def problem(kind, seed, n=25, d=4, ties=False):
    """A problem of every row of the table (maths.md 1.1), one with all arrays drawn at random."""
    rng = np.random.default_rng(seed)
    phi = rng.normal(size=(n, d))
    if ties:
        phi = np.round(phi)
        phi[n // 2 :] = phi[: n - n // 2]
    y = np.where(rng.random(n) < 0.4, 1.0, -1.0)
    y[:2] = [1.0, -1.0]
    c = np.round(rng.uniform(0, 3, n)) if ties else rng.uniform(0.05, 3, n)
    one, zero = np.ones(n), np.zeros(n)
    if kind == "c-svc":
        return reference.Problem(phi, y, one, zero, c)
    if kind == "c-svc true":
        return reference.Problem(phi, y, one, zero, c, y)
    if kind == "lad":
        return reference.Problem(phi, one, rng.normal(size=n), -c, c)
    if kind == "svr true":
        s = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
        return reference.Problem(phi, s, s * rng.normal(size=n) - 0.1, zero, c, s)
    if kind == "one-class":
        hi = (c + 0.1) / np.sum(c + 0.1) / 0.3
        return reference.Problem(phi, one, zero, zero, hi, one, 1.0)
    t = np.where(rng.random(n) < 0.5, 1, -1) * rng.uniform(0.3, 2, n)
    lo = -c * rng.random(n)
    inside = lo + (c - lo) * rng.random(n)
    return reference.Problem(phi, y, rng.normal(size=n), lo, c, t, float(t @ inside))


def record(q):
    return Dual(q.s, q.p, q.lo, q.hi, q.t, q.total)


def feasible(q, seed):
    """A feasible alpha that is not special: between the optimum and a greedy corner."""
    rng = np.random.default_rng(seed)
    if q.t is None:
        return q.lo + (q.hi - q.lo) * rng.random(len(q.lo))
    corner = reference.solve(
        reference.Problem(np.zeros_like(q.phi), q.s, rng.normal(size=len(q.s)), q.lo, q.hi, q.t,
                          q.total)
    ).alpha  # fmt: skip
    mix = rng.random()
    return mix * corner + (1 - mix) * reference.solve(q).alpha


drawn = given(kind=st.sampled_from(KINDS), seed=st.integers(0, 10**6), ties=st.booleans())


@drawn
@settings(max_examples=80, deadline=None)
def test_objectives_and_gap(kind, seed, ties):
    q = problem(kind, seed, ties=ties)
    dual, alpha = record(q), feasible(q, seed)
    rng = np.random.default_rng(seed)
    w, mu = rng.normal(size=q.phi.shape[1]), 0.0 if q.t is None else rng.normal()
    scores = q.phi @ w
    assert dual.primal(scores, w @ w, mu) == pytest.approx(reference.primal(q, w, mu), rel=1e-12)
    w_alpha = reference.w_of(q, alpha)
    u = q.phi @ w_alpha
    value = dual.value(alpha, w_alpha @ w_alpha)
    size = 1 + abs(value) + abs(dual.primal(u, w_alpha @ w_alpha, mu))
    assert value == pytest.approx(reference.dual(q, alpha), rel=1e-12, abs=1e-12)
    assert dual.frank_wolfe_gap(alpha, u, mu) == pytest.approx(
        dual.primal(u, w_alpha @ w_alpha, mu) - value, abs=1e-8 * size
    )
    if q.t is not None:
        mu = dual.multiplier(u)
    assert dual.frank_wolfe_gap(alpha, u, mu) == pytest.approx(
        reference.linear_maximum(q, alpha, u), abs=1e-8 * size
    )


@drawn
@settings(max_examples=80, deadline=None)
def test_the_multiplier_minimises_the_primal(kind, seed, ties):
    q = problem(kind, seed, ties=ties)
    if q.t is None:
        with pytest.raises(ValueError, match="no multiplier"):
            record(q).multiplier(np.zeros(len(q.s)))
        return
    w = np.random.default_rng(seed).normal(size=q.phi.shape[1])
    if ties:
        w = np.round(w)
    best = reference.primal(q, w, reference.best_multiplier(q, q.phi @ w))
    mine = reference.primal(q, w, record(q).multiplier(q.phi @ w))
    assert mine == pytest.approx(best, rel=1e-12, abs=1e-12)


@given(seed=st.integers(0, 10**6), n=st.integers(2, 3000))
@example(seed=6045, n=2)
@settings(max_examples=60, deadline=None)
def test_an_alpha_with_exact_sums_adds_up_to_zero(seed, n):
    rng = np.random.default_rng(seed)
    t, hi = np.where(np.arange(n) % 2, 1.0, -1.0), 10.0 ** rng.uniform(0, 9, n)
    dual = Dual(t, np.ones(n), np.zeros(n), hi, t, 0.0)
    start = hi * rng.choice([0.0, 1.0, rng.random()], n, p=[0.5, 0.3, 0.2])
    alpha = dual.feasible(start)
    mended = dual.with_exact_sums(alpha)
    if not alpha.any():
        return
    room = n**2 * 2.0**-50 * alpha.max()
    np.testing.assert_allclose(mended, alpha, rtol=0, atol=room)
    assert sum(map(Fraction, (t * mended).tolist())) == 0
    assert np.all((mended >= 0) & (mended <= hi))


@given(seed=st.integers(0, 10**6), n=st.integers(2, 1000), groups=st.integers(1, 2))
@settings(max_examples=60, deadline=None)
def test_a_feasible_alpha_keeps_the_coupling_to_its_own_last_digits(seed, n, groups):
    """Boxes from 1e-6 to 1e9, and a start whose sum is as large as they are."""
    rng = np.random.default_rng(seed)
    t, hi = np.where(np.arange(n) % 2, 1.0, -1.0), 10.0 ** rng.uniform(-6, 9, n)
    group = (np.arange(n) // 2 % groups).astype(np.int8)
    total: Any = 0.0 if groups == 1 else np.zeros(2)
    dual = Dual(t, np.ones(n), np.zeros(n), hi, t, total, group if groups > 1 else None)
    start = hi * rng.choice([0.0, 1.0, rng.random()], n, p=[0.4, 0.3, 0.3])
    alpha = dual.feasible(start)
    assert np.all((alpha >= 0) & (alpha <= hi))
    for g in range(groups):
        own = group == g
        off = abs(sum(map(Fraction, (t * alpha)[own].tolist())))
        assert off <= 2.0**-49 * alpha[own].sum()
        # Only rows of the sign with the larger sum are lowered.
        kept = t[own] == np.sign(-np.sum((t * start)[own]))
        np.testing.assert_array_equal(alpha[own][kept], start[own][kept])


@drawn
@settings(max_examples=120, deadline=None)
def test_decisions_from_valid_intervals_are_right(kind, seed, ties):
    """Any intervals that hold u*: tight, wide, lopsided. mu* is inside, no decision is wrong."""
    q = problem(kind, seed, ties=ties)
    dual, best = record(q), reference.solve(q)
    rng = np.random.default_rng(seed)
    width = 10.0 ** rng.uniform(-6, 0.5)
    lower = best.scores - width * rng.random(len(q.s)) - 1e-8
    upper = best.scores + width * rng.random(len(q.s)) + 1e-8
    mu = (0.0, 0.0)
    if q.t is not None:
        mu = dual.multiplier_interval(lower, upper)
        assert mu[0] <= mu[1]
        # Where mu* is not unique every optimal one is inside; the oracle's is one of them.
        assert mu[0] - 1e-9 <= best.mu <= mu[1] + 1e-9
    decided = dual.decide(lower, upper, mu)
    room = 1e-5 * np.maximum(q.hi - q.lo, 1e-300)
    live = q.hi > q.lo
    assert np.all(best.alpha[live & (decided == AT_HI)] >= (q.hi - room)[live & (decided == AT_HI)])
    assert np.all(best.alpha[live & (decided == AT_LO)] <= (q.lo + room)[live & (decided == AT_LO)])


def test_exact_scores_decide_every_bound_variable():
    """The intervals of a point: every variable with a gradient is decided, and none without."""
    q = problem("c-svc", 3)
    best = reference.solve(q)
    decided = record(q).decide(best.scores - 1e-7, best.scores + 1e-7)
    clear = np.abs(best.gradient) > 1e-6
    assert np.all(decided[clear] != FREE) and clear.sum() > 5
    assert np.all(decided[np.abs(best.gradient) < 1e-8] == FREE)


def test_undecided_without_any_bound():
    q = problem("c-svc true", 1)
    endless = np.full(len(q.s), np.inf)
    dual = record(q)
    mu = dual.multiplier_interval(-endless, endless)
    assert np.all(dual.decide(-endless, endless, mu) == FREE)


# -- ties and degenerate data ------------------------------------------------------------------
@pytest.mark.parametrize("intercept", ["none", "true"])
@pytest.mark.parametrize("name", ["all equal", "opposite pairs", "zero weights", "one of a class"])
def test_degenerate_data(name, intercept):
    rng = np.random.default_rng(0)
    n = 12
    phi, y = rng.normal(size=(n, 3)), np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    hi = np.ones(n)
    if name == "all equal":
        phi[:] = phi[0]
    elif name == "opposite pairs":
        phi = np.repeat(phi[: n // 2], 2, axis=0)
    elif name == "zero weights":
        hi[::3] = 0.0
    else:
        y = np.where(np.arange(n) == 4, 1.0, -1.0)
    q = reference.Problem(phi, y, np.ones(n), np.zeros(n), hi, y if intercept == "true" else None)
    dual, best = record(q), reference.solve(q)
    assert best.primal - best.dual <= 1e-9 * (1 + best.primal)
    lower, upper = best.scores - 1e-6, best.scores + 1e-6
    mu = dual.multiplier_interval(lower, upper) if intercept == "true" else (0.0, 0.0)
    assert mu[0] - 1e-9 <= best.mu <= mu[1] + 1e-9
    decided = dual.decide(lower, upper, mu)
    live = hi > 0
    assert np.all(best.alpha[live & (decided == AT_HI)] >= 1 - 1e-5)
    assert np.all(best.alpha[live & (decided == AT_LO)] <= 1e-5)


def test_equal_weights_leave_a_range_of_multipliers():
    """As many rows of either class at hi: every b between two margins is optimal."""
    dual = CSvc(1.0, 1, (), "true").dual(np.array([0, 1]), np.ones(2))
    scores = np.array([-0.2, 0.2])
    low, high = dual.multiplier_interval(scores, scores)
    assert low == pytest.approx(-0.8) and high == pytest.approx(0.8)
    assert np.all(dual.decide(scores, scores, (low, high)) == FREE)


# -- recipes -------------------------------------------------------------------------------------
def test_c_svc_recipe():
    recipe = CSvc(2.0, 1, (1.0, 3.0), "true")
    dual = recipe.dual(np.array([0, 1, 1]), np.array([1.0, 0.5, 0.0]), scale=8.0)
    assert dual.sign.tolist() == [-1, 1, 1] and dual.lin.tolist() == [1, 1, 1]
    assert dual.hi.tolist() == [16.0, 24.0, 0.0] and dual.lo.tolist() == [0, 0, 0]
    assert dual.coupling.tolist() == dual.sign.tolist() and len(dual) == 3
    assert dual[1:].hi.tolist() == [24.0, 0.0]
    assert CSvc(2.0, 1).dual(np.array([0, 2]), np.ones(2)).coupling is None


@pytest.mark.parametrize("C", [0.0, -1.0, np.inf, np.nan])
def test_bad_penalties(C):
    with pytest.raises(InputError, match="C must be"):
        CSvc(C, 1)


def test_unknown_intercept():
    with pytest.raises(InputError, match="intercept must be"):
        CSvc(1.0, 1, (), "maybe")


def test_gaps_of_points():
    point = Point(np.zeros(1), np.zeros(1), 0.0, 4.0, 3.0, paired=True)
    assert point.gap == 1.0 and point.relative_gap == 0.25
    nothing = Point(np.zeros(1), np.zeros(1), 0.0, 0.0, 0.0, paired=True)
    assert nothing.relative_gap == 0.0
