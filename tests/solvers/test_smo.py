"""Compiled pair and single steps on a kernel matrix in memory, against the slides' listings."""

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from bigscreen.problems.dual import Dual
from bigscreen.solvers.smo.loop import Limits, Variables, free_step, smo

COUPLINGS = ("none", "sign", "ones", "mixed")


def made(seed, n, coupling, rank=None, duplicates=False, ridge=0.3):
    """A random problem: signs and linear terms of both kinds, lower bounds that are not 0."""
    rng = np.random.default_rng(seed)
    phi = rng.standard_normal((n, rank or n))
    if duplicates:
        phi = phi[rng.integers(0, max(1, n // 2), n)]
    K = phi @ phi.T / phi.shape[1] + ridge * np.eye(n)
    s = rng.choice([-1.0, 1.0], n)
    p = rng.standard_normal(n)
    lo = rng.choice([0.0, -0.5, 0.2], n)
    hi = lo + rng.choice([0.0, 0.3, 2.0], n)
    t = {
        "none": np.zeros(n), "sign": s, "ones": np.ones(n), "mixed": rng.choice([-1.0, 1.0], n)
    }[coupling]  # fmt: skip
    alpha = lo + (hi - lo) * rng.choice([0.0, 0.5, 1.0], n)
    return K, s, t, lo, hi, alpha, p


def run(K, s, t, lo, hi, alpha, p, tol=1e-10, most=10**6, **how):
    """alpha, steps and violation; what every run has to keep."""
    K = np.ascontiguousarray(K)
    x, G = alpha.copy(), p - s * (K.astype(float) @ (s * alpha))
    dual = Dual(s, p, lo, hi, t if t.any() else None)
    steps, violation = smo(K, dual, x, G, Limits(tol, most, **how))
    assert np.all(x >= lo) and np.all(x <= hi)
    np.testing.assert_allclose(t @ x, t @ alpha, rtol=0, atol=1e-12 * (1 + np.abs(x).sum()))
    fresh = p - s * (K.astype(float) @ (s * x))
    np.testing.assert_allclose(G, fresh, rtol=0, atol=1e-9 * (1 + np.abs(fresh).max(initial=0)))
    np.testing.assert_allclose(violation, largest(G, t, lo, hi, x), rtol=1e-6, atol=1e-9)
    return x, steps, violation


def largest(G, t, lo, hi, x):
    """The violation by its definition."""
    if not t.any():
        parts = np.where(x < hi, np.maximum(G, 0), 0) + np.where(x > lo, np.maximum(-G, 0), 0)
        return parts.max(initial=0)
    up = np.where(t > 0, x < hi, x > lo)
    down = np.where(t > 0, x > lo, x < hi)
    if not up.any() or not down.any():
        return 0.0
    return max(0.0, np.max((t * G)[up]) - np.min((t * G)[down]))


def oracle(K, s, t, lo, hi, start, p, second):
    """alpha of the slides' listing for this problem."""
    if t.any():
        return reference.smo(K, s, p, lo, hi, t, start, 1e-11, second)[0]
    # Features of this very matrix: the oracle descends on them.
    phi = reference.features(K)
    return reference.coordinate_descent(phi, s, p, lo, hi, 1e-13)


def value(K, s, p, alpha):
    z = s * alpha
    return p @ alpha - 0.5 * z @ K @ z


@settings(deadline=None, max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 40),
    coupling=st.sampled_from(COUPLINGS),
    dtype=st.sampled_from([np.float32, np.float64]),
    second=st.booleans(),
    pairs=st.booleans(),
)
def test_alpha_is_that_of_the_reference(seed, n, coupling, dtype, second, pairs):
    """A unique optimum: the slides' listings find the same alpha."""
    K, s, t, lo, hi, start, p = made(seed, n, coupling)
    K = K.astype(dtype).astype(np.float64)
    found, _, violation = run(
        K.astype(dtype), s, t, lo, hi, start, p, second_order=second, pairs=pairs
    )
    assert violation <= 1e-10
    want = oracle(K, s, t, lo, hi, start, p, second)
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-8)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 40),
    rank=st.integers(1, 4),
    coupling=st.sampled_from(COUPLINGS),
    second=st.booleans(),
    pairs=st.booleans(),
)
def test_the_objective_is_that_of_the_reference_if_alpha_is_not_unique(
    seed, n, rank, coupling, second, pairs
):
    """Duplicated rows and low rank: many optima of one value."""
    K, s, t, lo, hi, start, p = made(seed, n, coupling, rank, True, 0.0)
    found, _, violation = run(K, s, t, lo, hi, start, p, 1e-7, second_order=second, pairs=pairs)
    assert violation <= 1e-7
    best = oracle(K, s, t, lo, hi, start, p, second)
    np.testing.assert_allclose(value(K, s, p, found), value(K, s, p, best), rtol=0, atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 30),
    coupling=st.sampled_from(COUPLINGS),
    second=st.booleans(),
    pairs=st.booleans(),
)
def test_indefinite_kernels_end_where_nothing_violates(seed, n, coupling, second, pairs):
    """Every step gains; what is left violates nothing."""
    K, s, t, lo, hi, start, p = made(seed, n, coupling, ridge=0.0)
    K = K - 0.8 * np.eye(n) * np.diag(K)
    found, _, violation = run(K, s, t, lo, hi, start, p, 1e-9, second_order=second, pairs=pairs)
    assert violation <= 1e-9
    assert value(K, s, p, found) >= value(K, s, p, start) - 1e-12


@pytest.mark.parametrize("coupling", COUPLINGS[1:])
@pytest.mark.parametrize("n", [63, 64, 65, 200])
def test_steps_are_as_many_as_the_reference_takes(n, coupling):
    # Gains are compared in float32, so near ties can take another way: of seeds 1 to 20 one case in
    # 16 does. This seed has none, and on this grid the first gradient has the same bits anywhere.
    K, s, t, lo, hi, start, p = made(2, n, coupling)
    K, lo, hi, start, p = (np.round(part * 2.0**20) / 2.0**20 for part in (K, lo, hi, start, p))
    for second in (False, True):
        _, steps, _ = run(K, s, t, lo, hi, start, p, 1e-4, second_order=second)
        _, want = reference.smo(K, s, p, lo, hi, t, start, 1e-4, second)
        assert abs(steps - want) <= 0.02 * want + 2


@settings(deadline=None, max_examples=200)
@given(
    q=st.tuples(*[st.floats(-2, 2)] * 2),
    curves=st.tuples(*[st.floats(0.1, 3)] * 2),
    share=st.floats(-0.99, 0.99),
    boxes=st.tuples(*[st.floats(0, 1)] * 4),
)
def test_a_step_on_two_is_the_optimum_of_the_two(q, curves, share, boxes):
    F = np.array(q)
    low, high = -np.array(boxes[:2]), np.array(boxes[2:])
    cross = share * np.sqrt(curves[0] * curves[1])
    x = np.zeros(2)
    d = free_step(Variables.of(low, high, x, F), 0, 1, np.array(curves), cross, 1e-12)
    np.testing.assert_array_equal(x, d)
    Q = np.array([[curves[0], cross], [cross, curves[1]]])
    z = np.linalg.cholesky(Q)
    best = reference.coordinate_descent(z, np.ones(2), F, low, high, 1e-14)

    def gain(d):
        return F @ d - 0.5 * d @ Q @ d

    assert gain(np.array(d)) >= gain(best) - 1e-12


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("second", [False, True])
def test_at_most_max_steps_are_taken(coupling, second):
    problem = made(3, 50, coupling)
    for most in (0, 1, 5):
        _, steps, violation = run(*problem, 1e-12, most, second_order=second)
        assert steps == most
        assert violation > 1e-12
    x, steps, _ = run(*problem, 1e-3, second_order=second)
    assert run(*problem[:5], x, problem[6], 1e-3, second_order=second)[1] == 0


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
def test_no_tolerance_ends_all_the_same(coupling, second, pairs):
    problem = made(4, 60, coupling)
    _, steps, violation = run(*problem, 0.0, 10**6, second_order=second, pairs=pairs)
    assert steps < 10**5 and violation < 1e-9


@pytest.mark.parametrize("coupling", ["none", "sign"])
@pytest.mark.parametrize("C", [1e-60, 1e-12, 1e12])
@pytest.mark.parametrize("scale", [1e-14, 1.0, 1e14])
def test_boxes_and_entries_of_any_scale_are_solved(C, scale, coupling):
    """Boxes and kernels of any size: the objective of a problem that is scaled back."""
    rng = np.random.default_rng(5)
    n = 40
    phi = rng.standard_normal((n, n))
    K = (scale * (phi @ phi.T / n + 0.1 * np.eye(n))).astype(np.float32)
    s = np.where(np.arange(n) % 2, 1.0, -1.0)
    t = s if coupling == "sign" else np.zeros(n)
    lo, hi = np.zeros(n), np.full(n, C)
    found, steps, violation = run(K, s, t, lo, hi, lo, np.ones(n), 1e-6)
    assert violation <= 1e-6 and steps < 10**5
    assert value(K.astype(float), s, np.ones(n), found) > 0


@pytest.mark.parametrize("t", [np.zeros(3), np.ones(3)])
def test_a_problem_without_movable_rows_ends_at_once(t):
    """Boxes without room, and no rows at all."""
    one = np.ones(3)
    _x, steps, violation = run(np.eye(3), one, t, one, one, one, -one)
    assert steps == 0 and violation == 0.0
    none = np.zeros(0)
    for coupling in (None, none):
        dual = Dual(none, none, none, none, coupling)
        assert smo(np.zeros((0, 0)), dual, none, none, Limits(0.1, 9)) == (0, 0.0)


def test_one_row_with_a_coupling_stays():
    one = np.ones(1)
    x, steps, violation = run(np.eye(1), one, one, 0 * one, one, 0.5 * one, 3 * one)
    assert steps == 0 and violation == 0.0 and x[0] == 0.5


def test_a_row_of_zeros_goes_to_its_bound():
    K = np.zeros((2, 2), np.float32)
    one = np.ones(2)
    for pairs in (False, True):
        x, _, violation = run(K, one, 0 * one, -one, one, 0 * one, [0.3, -0.2] * one, pairs=pairs)
        np.testing.assert_array_equal(x, [1.0, -1.0])
        assert violation == 0.0
