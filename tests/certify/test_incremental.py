"""Certificates from a known dual point, compared with sums over all rows in float64."""

from dataclasses import replace

import numpy as np
import pytest

from bigscreen.certify.explicit import close_explicit
from bigscreen.certify.incremental import IncrementalCertifier, KnownDualPoint
from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design
from bigscreen.features.nystrom import factor_matrix
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Rbf
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import CSvc

N, C = 3000, 0.7


class Case:
    """Rows, landmarks, a w, and two dual points: one is known, the other near the rows' sides."""

    def __init__(self, intercept):
        rng = np.random.default_rng(3)
        X = rng.normal(size=(N, 4)).astype(np.float32)
        y = (X[:, 0] + 0.5 * rng.normal(size=N) > 0).astype(np.int32)
        data = MemoryDataset(X, y, [0, 1], rng.uniform(0.5, 2.0, N), shard_rows=512, chunk_rows=256)
        kernel, side = Rbf(0.3), Operand(X[:30].copy())
        self.design = Design(data, kernel, side, factor_matrix(kernel, side))
        self.problem = CSvc(C, 1, (), intercept)
        self.constant = float(intercept == "constant")
        self.dual = self.problem.dual(y, data.weights(0, N))
        # In float64 and whole.
        self.phi = kernel.block(X, side, dtype=np.float64) @ self.design.factor
        if self.constant:
            self.phi = np.column_stack([self.phi, np.ones(N)])
        self.x = 0.02 * self.phi.T @ (self.dual.sign * self.dual.hi)
        self.x += 0.1 * rng.normal(size=len(self.x))
        G = self.dual.gradient(self.phi @ self.x)
        self.alpha = np.where(np.abs(G) < 0.05, 0.4, 1.0 * (G > 0)) * self.dual.hi
        before = self.alpha.copy()
        some = rng.choice(N, 40, replace=False)
        before[some] = rng.uniform(0, 1, 40) * self.dual.hi[some]
        sums = (self.dual.sign * before) @ self.phi
        self.known = KnownDualPoint(before, sums, float(np.abs(sums).max()), 1e-9, "float64")
        w, offset = self.x[: self.design.rank], float(self.x[self.design.rank :].sum())
        self.point = Point(
            self.design.coef(w), w, offset, np.nan, np.nan, paired=False, alpha=self.alpha
        )

    def certificate(self, point=None, **known):
        with Inline(1) as fleet:
            beside = IncrementalCertifier(
                self.design, self.problem, fleet, replace(self.known, **known)
            )
            return beside.certificate(point or self.point)

    @property
    def true(self):
        """P, D and ||w - w(alpha)||."""
        losses = self.dual.losses(self.phi @ self.x)
        w_alpha = (self.dual.sign * self.alpha) @ self.phi
        primal = 0.5 * self.x @ self.x + losses.sum()
        return primal, self.alpha.sum() - 0.5 * w_alpha @ w_alpha, np.linalg.norm(self.x - w_alpha)


@pytest.mark.parametrize("intercept", ["none", "constant"])
def test_the_incremental_certificate_equals_sums_over_all_rows(intercept):
    case = Case(intercept)
    found, (primal, dual, apart) = case.certificate(), case.true
    assert abs(found.primal - primal) <= min(found.primal_rounding, 1e-8 * primal)
    assert abs(found.dual - dual) <= min(found.dual_rounding, 1e-8 * primal)
    assert abs(found.gap - (primal - dual)) <= found.rounding_bound
    assert found.rows == N and found.support == np.count_nonzero(case.alpha)
    assert found.evidence.dual.apart == pytest.approx(apart, rel=1e-9)
    with Inline(1) as fleet:
        whole = close_explicit(case.design, case.problem, case.point, fleet, "float64", keep=True)
    assert found.gap == pytest.approx(whole.gap, rel=1e-9)
    assert found.intercept == whole.intercept
    own, other = found.evidence, whole.evidence
    assert np.all(np.abs(own.scores - other.scores) <= own.slack + other.slack)
    assert own.radius == pytest.approx(other.radius, rel=1e-6)
    assert np.array_equal(own.dual.places, other.dual.places)
    np.testing.assert_allclose(own.dual.coef, other.dual.coef, rtol=1e-6, atol=1e-7)
    shown = case.known.alpha.copy()
    assert np.count_nonzero(shown != case.alpha) >= 30  # the two differ in what was summed


def test_the_known_points_error_counts_and_too_much_of_it_is_no_proof():
    case = Case("none")
    little, more = case.certificate(), case.certificate(error=1e-3)
    apart = little.evidence.dual.apart
    assert more.rounding_bound - little.rounding_bound == pytest.approx(1e-3 * apart, rel=0.01)
    assert more.gap == little.gap
    assert case.certificate(error=little.gap) is None


def test_a_row_whose_side_float32_cannot_decide_gets_float64():
    case = Case("none")
    G = case.dual.gradient(case.phi @ case.x)
    # A row close to its hinge point whose alpha is on the wrong side of it.
    nearest = int(np.argmin(np.abs(G)))
    case.x = case.x + G[nearest] * (1 + 1e-9) * (case.dual.sign[nearest] * case.phi[nearest]) / (
        case.phi[nearest] @ case.phi[nearest]
    )
    G = case.dual.gradient(case.phi @ case.x)
    assert abs(G[nearest]) < 1e-7
    case.alpha = np.where(G > 0, case.dual.hi, 0.0)
    case.alpha[nearest] = case.dual.hi[nearest] - case.alpha[nearest]
    sums = (case.dual.sign * case.alpha) @ case.phi
    point = replace(case.point, coef=case.design.coef(case.x), w=case.x, alpha=case.alpha)
    found = case.certificate(point, alpha=case.alpha, w_alpha=sums)
    primal, dual, _ = case.true
    assert abs(found.gap - (primal - dual)) <= found.rounding_bound
