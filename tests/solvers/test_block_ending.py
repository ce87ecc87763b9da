"""The end of a close block solve: few passes from 1e-3 to what float64 can show."""

import contracts
import numpy as np
import pytest
import reference
from block_world import GRID, RECIPES, any_world, ends_right, quiet, solved, watched, world
from contracts import INTERCEPTS
from sklearn.svm import SVC

from bigscreen.fleet.inline import Inline
from bigscreen.screening.dynamic import make_rule
from bigscreen.solvers.block.coordinator import BlockRun
from bigscreen.solvers.block.solver import Block
from bigscreen.solvers.block.tuning import EndingTuning

TOL = 1e-10


@pytest.fixture(scope="module", autouse=True)
def fleet():
    with Inline(1) as fleet, quiet():
        yield fleet


class Ends(BlockRun):
    """Notes whether each try of the ending moves alpha; fails if all columns are recomputed."""

    moved: list[bool] = []

    def _try_ending(self, target):
        near = self.point().relative_gap <= self.end_at
        moves = super()._try_ending(target)
        self.moved.extend([moves] if near else [])
        return moves

    def refine(self):
        raise AssertionError("all columns were computed again")


@pytest.fixture
def ended():
    Ends.moved.clear()
    return Ends.moved


def close(found):
    """Passes from the gap on at which the end is tried."""
    return sum(event["relative_gap"] <= EndingTuning().start for event in found.history)


@pytest.mark.parametrize("rule", ["none", "gap"])
@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_a_few_passes_to_what_float64_shows(intercept, sparse_rows, rule, fleet, ended):
    data = contracts.rows(3, 300, 4, 0.5, sparse_rows, **GRID)
    w = world(data, "rbf", 30.0, intercept, gamma=0.5)
    found = solved(w, fleet, watched(Ends, size=64), make_rule(rule), TOL)
    assert any(ended)
    assert close(found) <= 6
    ends_right(w, found, TOL)


def test_blocks_alone_go_to_a_gap_that_they_soon_meet(fleet, ended):
    data = contracts.rows(3, 300, 4, 0.5, False, **GRID)
    w = world(data, "rbf", 30.0, "true", gamma=0.5)
    for tol, tried in ((2e-4, False), (TOL, True)):
        ended.clear()
        found = solved(w, fleet, watched(Ends, size=64), tol=tol)
        assert any(ended) == tried
        assert (found.certificate.relative_gap > 1e-3 * tol) != tried
        ends_right(w, found, tol)


@pytest.mark.parametrize("name", RECIPES)
def test_the_ending_reaches_the_optimum_of_any_problem(name, fleet, ended):
    w = any_world(name, n=150, **GRID)
    found = solved(w, fleet, watched(Ends, size=64), tol=TOL)
    assert any(ended)
    alpha, best = found.point.alpha, w.optimum
    assert np.all(alpha >= w.dual.lo) and np.all(alpha <= w.dual.hi)
    assert found.certificate.relative_gap <= TOL
    value = reference.dual(w.oracle, alpha)
    assert value == pytest.approx(best.dual, rel=1e-8)
    assert found.certificate.dual == pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_the_ending_reaches_the_optimum_with_repeated_rows(intercept, fleet):
    """Free rows are more than the rank of their kernel entries: the optimum all the same."""
    data = contracts.rows(2, 240, 3, 0.5, False, **GRID)
    X = np.repeat(data.X(0, 80), 3, axis=0)
    y = np.random.default_rng(0).integers(0, 2, 240).astype(np.int32)
    repeated = type(data)(X, y, [0, 1], data.weights(0, 240), **GRID)
    w = world(repeated, "rbf", 3.0, intercept, gamma=0.3)
    ends_right(w, solved(w, fleet, Block(size=64), tol=1e-9), 1e-9)


def test_the_ending_reaches_the_scores_of_libsvm(fleet, ended):
    data = contracts.rows(4, 250, 5, 0.5, weights=False, **GRID)
    w = world(data, "rbf", 10.0, "true", gamma=0.4)
    found = solved(w, fleet, watched(Ends, size=64), tol=1e-12)
    assert any(ended)
    weights = dict(enumerate(contracts.CLASS_WEIGHT))
    peer = SVC(C=10.0, gamma=0.4, tol=1e-12, class_weight=weights)
    peer.fit(data.X(0, 250).astype(float), data.y(0, 250))
    sign = np.where(data.y(0, 250) == 1, 1.0, -1.0)
    scores = w.gram @ (sign * found.point.alpha) + found.certificate.intercept
    # (LIBSVM's entries are float32.)
    np.testing.assert_allclose(scores, peer.decision_function(data.X(0, 250)), atol=1e-5)
    inside = (found.point.alpha > 0) & (found.point.alpha < w.box)
    np.testing.assert_allclose((sign * scores)[inside], 1.0, atol=1e-11)
