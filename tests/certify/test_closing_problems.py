"""The exact machine's closing pass for every problem, against definitions and linear programs."""

from __future__ import annotations

import numpy as np
import pytest
from problem_cases import NAMES, case

from bigscreen.certify.exact import close_exact
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Rbf
from bigscreen.problems.point import Point

KERNEL = Rbf(0.3)


@pytest.fixture(scope="module")
def fleet():
    with Inline(2) as threads:
        yield threads


def closed(one, alpha, fleet, certify="float64"):
    point = Point(np.empty(0), np.empty(0), np.nan, np.nan, np.nan, True, alpha=alpha)
    return close_exact(Design(one.data, KERNEL), one.problem, point, fleet, certify)


def gram(one):
    side = Operand(one.data.X(0, one.data.n_rows))
    K = KERNEL.block(side, side, dtype=np.float64)
    return K + (one.problem.intercept == "constant")


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_certificate_equals_the_textbook_formulas(name, weights, fleet):
    one = case(name, 1, weights=weights)
    K = gram(one)
    for seed, most in ((0, 1.0), (1, 0.3)):
        a = one.feasible(seed, most)
        # Of a row's two variables the smaller is taken from both: the package has the difference.
        a = one.split(one.alpha(a))
        found = closed(one, one.alpha(a), fleet)
        value, gap = one.dual(K, a), one.gap(K, a)
        size = abs(value) + abs(value + gap)
        assert found.dual == pytest.approx(value, abs=1e-9 * size)
        assert found.gap == pytest.approx(gap, abs=1e-8 * size)
        assert found.primal - found.dual == pytest.approx(found.gap, abs=1e-14 * size)
        assert found.rounding_bound <= 1e-9 * size
        narrow = closed(one, one.alpha(a), fleet, "float32")
        assert abs(narrow.gap - found.gap) <= narrow.rounding_bound + found.rounding_bound
        assert narrow.rounding_bound <= 1e-4 * size
        assert len(found.multiplier) == len(one.b)


@pytest.mark.parametrize("name", NAMES)
def test_intercepts_and_multipliers(name, fleet):
    one = case(name, 2)
    a = one.split(one.alpha(one.feasible(3)))
    found = closed(one, one.alpha(a), fleet)
    signed = float(one.s @ a)
    expected = {"none": 0.0, "constant": signed}.get(one.problem.intercept)
    if expected is None:
        expected = sum(found.multiplier)
        if name == "nu-svc true":
            minus, plus = found.multiplier
            expected = (plus - minus) / 2
    assert found.intercept == pytest.approx(expected, abs=1e-12)
    if not len(one.b):
        return
    # The multipliers are the best: P at any others, by its definition, is no less.
    K, rng = gram(one), np.random.default_rng(0)
    scores = one.scores(K, a)

    def primal(mu):
        G = one.p - one.s * scores - one.A.T @ mu
        return 0.5 * (one.s * a) @ scores + mu @ one.b + np.sum(np.maximum(one.hi * G, one.lo * G))

    best = primal(np.array(found.multiplier))
    assert best == pytest.approx(found.primal, rel=1e-10)
    for size in (1e-6, 1e-3, 0.1):
        for _ in range(20):
            other = np.array(found.multiplier) + size * rng.normal(size=len(one.b))
            assert primal(other) >= best * (1 - 1e-12) - 1e-12


@pytest.mark.parametrize("name", [name for name in NAMES if len(case(name, 0).b)])
@pytest.mark.parametrize("off", [1e-13, 1e-6, 0.2, 1.0])
def test_an_infeasible_alpha_proves_no_more_than_a_feasible_one(name, off, fleet):
    """Also the alpha of nothing, where the coupling asks for something."""
    one = case(name, 4)
    K = gram(one)
    alpha = one.alpha(one.feasible(5))
    found = closed(one, alpha * (1 - off * (np.arange(len(alpha)) % 2 * 0.5 + 0.5)), fleet)
    # Weak duality with the bound of any feasible point.
    a = one.feasible(6)
    assert found.primal >= one.dual(K, a) - 1e-9 * abs(found.primal)
    feasible = closed(one, alpha, fleet)
    assert found.dual <= feasible.primal + 1e-9 * abs(feasible.primal)
    assert np.isfinite(found.gap) and found.gap > 0
    if off <= 1e-6:
        assert found.gap == pytest.approx(feasible.gap, rel=1e-3)
