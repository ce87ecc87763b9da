"""Scores of a multiple of a w and of what differs from it: as good as from the support anew."""

import numpy as np
import pytest
from contracts import rows
from test_closing_exact import GRID, INTERCEPTS, KERNELS, point

from bigscreen.certify.exact import ExactTuning, close_exact, score_rows
from bigscreen.certify.scores import ProvedScores
from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.standard import make_kernel
from bigscreen.problems.recipes import CSvc

N = 160


class Counted(Inline):
    """A fleet that notes of each task how many support rows it has, and how many rows it scores."""

    def __init__(self):
        super().__init__(2)
        self.calls = []

    def each(self, function, items, in_flight=None):
        items = list(items)
        self.calls.append((len(function.coef), sum(map(len, items))))
        return super().each(function, items, in_flight)


@pytest.fixture(scope="module")
def fleet():
    with Inline(2) as threads:
        yield threads


def steps(problem, given, count, seed):
    """Alphas of ascending C: pairs of both labels, a few of which change at every value."""
    rng, (y, _) = np.random.default_rng(seed), given
    ones, zeros = np.flatnonzero(y == 1), np.flatnonzero(y == 0)
    pairs = np.stack([ones[: len(zeros)], zeros[: len(ones)]])
    part, few = rng.choice([0.0, 1.0], pairs.shape[1]), []
    for _ in range(count):
        part[few] = rng.choice([0.0, 1.0], len(few))
        few = rng.permutation(len(part))[:4]
        part[few] = rng.random(4)
        alpha, hi = np.zeros(N), problem.dual(*given).hi
        alpha[pairs] = part * np.min(hi[pairs], axis=0)
        yield problem, alpha
        problem = problem.at(problem.C * rng.uniform(1.01, 1.3))


def gram(data, kernel, problem):
    """Entries in long double, the constant's 1 included."""
    X = data.X(0, N)
    X = np.asarray(X.toarray() if data.is_sparse else X, dtype=np.longdouble)
    K = X @ X.T
    if kernel.name == "rbf":
        square = np.sum(X**2, axis=1)
        K = np.exp(-np.longdouble(kernel.gamma) * (square[:, None] + square - 2 * K))
    return K + (problem.intercept == "constant")


@pytest.mark.slow
@pytest.mark.parametrize("certify", ["float32", "float64"])
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize("kernel", [KERNELS[0], make_kernel("linear")], ids=lambda k: k.name)
def test_reused_scores_stay_within_their_bands_along_a_path(
    kernel, sparse_rows, intercept, certify, fleet
):
    """No score is farther from the true one than its band says, which grows little."""
    data = rows(5, n=N, sparse_rows=sparse_rows, **GRID)
    given, design = (data.y(0, N), data.weights(0, N)), Design(data, kernel)
    K, near, carried = gram(data, kernel, CSvc(1.0, 1, (), intercept)), None, []
    for problem, alpha in steps(CSvc(0.1, 1, (1.0, 2.0), intercept), given, 30, 1):
        with Counted() as counted:
            closed = score_rows(design, problem, point(alpha), counted, certify, True, near)
        if near is not None:
            changed, scored = counted.calls[0]
            assert changed < 30 and scored == N
            carried.append(changed)
        near, found = closed.proved, closed.certificate()
        anew = score_rows(design, problem, point(alpha), fleet, certify, True)
        true = K @ near.coef.astype(np.longdouble)
        assert np.all(np.abs(near.scores - true) <= near.bands)
        assert np.sum(near.bands) <= (1 + len(carried)) * np.sum(anew.bands)
        fresh = close_exact(design, problem, point(alpha), fleet, "float64")
        size = abs(fresh.primal) + abs(fresh.dual)
        assert abs(found.gap - fresh.gap) <= found.rounding_bound + 1e-12 * size
        assert found.rounding_bound <= 0.06 * max(fresh.gap, 0) + 1e-12 * size
    assert len(carried) == 29


@pytest.mark.parametrize(
    ("intercept", "scale"), [("none", 1.0), ("constant", 1.0), ("constant", 1e-3)]
)
def test_bands_grow_with_rounding_that_adds_up_over_many_steps(intercept, scale, fleet):
    """Coefficients that a multiple is off by a last digit, at every step to the same side."""
    given, problem = rows(6, n=N, **GRID), CSvc(1.0, 1, (), intercept)
    weights = given.weights(0, N)
    X = (scale * given.X(0, N)).astype(np.float32)
    data = MemoryDataset(X, given.y(0, N), [0, 1], weights, **GRID)
    dual, design = problem.dual(given.y(0, N), weights), Design(data, make_kernel("linear"))
    K = gram(data, design.kernel, problem)
    drift = np.where(dual.sign * K[0] > 0, 1 - 2.0**-51, 1.0)
    alpha, near = dual.hi, None
    for _ in range(200):
        near = score_rows(design, problem, point(alpha), fleet, "float64", True, near).proved
        alpha = alpha * drift
        assert np.all(np.abs(near.scores - K @ near.coef.astype(np.longdouble)) <= near.bands)
    anew = score_rows(design, problem, point(alpha), fleet, "float64", True)
    assert np.any(np.abs(near.scores - anew.scores) > 2 * anew.bands)


def test_scores_of_a_w_that_differs_in_most_rows_are_computed_anew(fleet):
    """The scores are bit for bit those without a nearby w."""
    data, problem = rows(7, n=N, **GRID), CSvc(1.0, 1, (), "true")
    design, rng = Design(data, KERNELS[0]), np.random.default_rng(0)
    dual = problem.dual(data.y(0, N), data.weights(0, N))
    one, other = (dual.feasible(dual.hi * rng.random(N)) for _ in range(2))
    near = score_rows(design, problem, point(one), fleet, every=True).proved
    found = score_rows(design, problem, point(other), fleet, every=True, near=near).proved
    anew = score_rows(design, problem, point(other), fleet, every=True).proved
    for name in ProvedScores._fields:
        np.testing.assert_array_equal(getattr(found, name), getattr(anew, name))


def test_a_changed_alpha_costs_only_the_entries_of_its_rows():
    data, problem = rows(8, n=N, **GRID), CSvc(1.0, 1, (), "none")
    design, dual = Design(data, KERNELS[0]), problem.dual(data.y(0, N), data.weights(0, N))
    none = ExactTuning(recompute_share=np.inf, recompute_support_share=np.inf)
    with Counted() as counted:
        near = score_rows(design, problem, point(dual.hi), counted, every=True, tuning=none).proved
        alpha = dual.hi.copy()
        alpha[[3, 70, 71]] = 0
        score_rows(design, problem, point(alpha), counted, every=True, near=near, tuning=none)
    assert counted.calls == [(np.count_nonzero(dual.hi), N), (3, N)]


def test_reused_float32_scores_are_recomputed_if_their_bands_are_wide(fleet):
    """A change of float64 entries does not make the scores that it is added to exact."""
    data, problem = rows(9, n=N, **GRID), CSvc(1.0, 1, (), "none")
    design, dual = Design(data, KERNELS[0]), problem.dual(data.y(0, N), data.weights(0, N))
    near = score_rows(design, problem, point(dual.hi), fleet, every=True).proved
    near = near._replace(bands=np.full(N, 1e3), exact=np.arange(N) < 80)
    alpha = dual.hi * (np.arange(N) != 5)
    found = score_rows(design, problem, point(alpha), fleet, every=True, near=near)
    again = np.flatnonzero(found.bands < 1)
    assert len(again) > 20 and again.min() >= 80 and found.exact[again].all()
    anew = score_rows(design, problem, point(alpha), fleet, "float64", every=True)
    np.testing.assert_allclose(found.scores[again], anew.scores[again], rtol=0, atol=1e-9)
