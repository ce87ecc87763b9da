"""Coordinate descent as a solver of every problem whose variables can move alone."""

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.kernels.standard import make_kernel
from bigscreen.numerics.rows import as_rows
from bigscreen.problems.recipes import CSvc, Lad, NuSvc, OneClass, Quantile, Sublinear, Svr
from bigscreen.screening.dynamic import make_rule
from bigscreen.solvers.coordinate import CoordinateDescent, EpochRows, epoch
from bigscreen.solvers.protocol import Run, Verdict

PROBLEMS = ("c-svc", "lad", "svr", "quantile", "sublinear")


def world(name, intercept="none", seed=0, n=90, C=0.3, weights=None):
    """A design of three shards, a problem and the oracle's view of it."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    score = X @ rng.normal(size=4) + 0.5 * rng.normal(size=n)
    codes = (score > 0.2).astype(np.int32)
    weights = rng.uniform(0.5, 2, n) * (rng.random(n) < 0.9) if weights is None else weights
    a = np.where(codes == 1, -1.0, 2.0) * (rng.random(n) < 0.9)
    problem, y = {
        "c-svc": (CSvc(C, 1, (0.7, 1.2), intercept), codes),
        "lad": (Lad(C, intercept), score),
        "svr": (Svr(C, 0.4, intercept), score),
        "quantile": (Quantile(C, 0.8, intercept), score),
        "sublinear": (Sublinear(C, a, score, 0.1, 1.0, intercept), np.arange(n, dtype=float)),
    }[name]
    labels = [0, 1] if name == "c-svc" else None
    data = MemoryDataset(X, y, labels, weights, shard_rows=32, chunk_rows=16)
    phi = X.astype(np.float64)
    phi = np.hstack([phi, np.ones((n, 1))]) if intercept == "constant" else phi
    dual = problem.dual(y, weights)
    arrays = (np.array(each) for each in (dual.sign, dual.lin, dual.lo, dual.hi))
    return Design(data), problem, dual, reference.Problem(phi, *arrays, tube=dual.tube)


class Until:
    """A check that goes on to a relative gap, screening by a rule all the way."""

    def __init__(self, tol, rule=None, most=4000, save=None):
        self.tol, self.rule, self.most, self.save = tol, rule, most, save
        self.points, self.stats, self.regions = [], [], []

    def __call__(self, point, stats, save):
        self.points.append(point)
        self.stats.append(stats)
        if self.save is not None and len(self.points) == 3:
            save(self.save, {"passes": 3})
            return None
        if point.relative_gap <= self.tol or len(self.points) == self.most:
            return None
        region = None if self.rule is None else self.rule.region(point, point.rounding)
        return Verdict(region=region)

    def expired(self):
        return False

    def pause(self, save=None):
        pass

    def restored(self, meta):
        self.meta = meta


def run(design, problem, check, **how):
    return CoordinateDescent().solve(Run(design, problem, None, **how), check)


@pytest.mark.parametrize("rule", ["none", "gap"])
@pytest.mark.parametrize("intercept", ["none", "constant"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_optimum_is_the_oracles(name, intercept, rule):
    design, problem, dual, q = world(name, intercept)
    check = Until(1e-7, make_rule(rule))
    point = run(design, problem, check)
    best = reference.solve(q)
    w = reference.w_of(q, point.alpha)
    assert (point.alpha >= dual.lo).all() and (point.alpha <= dual.hi).all()
    np.testing.assert_allclose(np.append(point.w, point.intercept)[: len(w)], w, atol=1e-10)
    assert point.dual == pytest.approx(reference.dual(q, point.alpha), rel=1e-10)
    assert point.primal == pytest.approx(reference.primal(q, w), rel=1e-6)
    assert point.dual == pytest.approx(best.dual, rel=2e-7)
    screened = sum(s["fixed_hi"] + s["fixed_lo"] for s in check.stats)
    assert (screened > 0) == (rule == "gap")
    # Rows that cannot move are never visited.
    assert check.stats[0]["rows_alive"] == np.sum(dual.hi > dual.lo) < len(dual)
    if name == "svr" and rule == "gap":
        # Most of them at 0: more than are at their lower end.
        assert sum(s["fixed_lo"] for s in check.stats) > np.sum(best.alpha < dual.lo + 1e-6)


def test_patience_counts_consecutive_checks():
    for patience in (1, 3):
        design, problem, _, _ = world("c-svc", weights=np.ones(90))
        check = Until(1e-7, make_rule("joachims", patience=patience), most=patience + 1)
        run(design, problem, check)
        fixed = [s["fixed_hi"] + s["fixed_lo"] for s in check.stats]
        assert not any(fixed[:patience]) and fixed[patience] > 0


def test_a_resumed_descent_ends_in_the_same_bits(tmp_path):
    design, problem, _, _ = world("svr", "constant")
    rule = make_rule("joachims", patience=2)
    whole = Until(1e-9, rule, most=9)
    run(design, problem, whole)
    run(design, problem, Until(1e-9, rule, save=tmp_path))
    after = Until(1e-9, rule, most=7)
    run(design, problem, after, folder=tmp_path, resume=True)
    assert after.meta == {"passes": 3}
    # The first check repeats the one that the checkpoint was written at.
    assert [p.dual for p in after.points] == [p.dual for p in whole.points[2:]]
    assert after.stats[1:] == whole.stats[3:]


def test_a_start_outside_the_box_is_brought_into_it():
    design, problem, dual, q = world("quantile")
    point = run(design, problem, Until(1e-6), start=np.full(90, 100.0))
    assert (point.alpha <= dual.hi).all()
    assert point.dual == pytest.approx(reference.solve(q).dual, rel=2e-6)


def test_couplings_and_kernels_are_refused_in_a_sentence():
    design, _, _, _ = world("c-svc")
    for problem in (CSvc(1.0, 1, (), "true"), NuSvc(0.3, 1, 90.0), OneClass(0.3, 90.0)):
        with pytest.raises(InputError, match="one variable at a time.*newton, block or pairs"):
            run(design, problem, Until(1e-3))
    with pytest.raises(InputError, match="explicit features"):
        run(Design(design.data, make_kernel("rbf", 1.0)), CSvc(1.0, 1), Until(1e-3))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 5.0]), st.booleans())
def test_one_step_in_a_tube_is_the_best_of_its_row(seed, width, zeros):
    rng = np.random.default_rng(seed)
    X = np.zeros((1, 3), np.float32) if zeros else rng.normal(size=(1, 3)).astype(np.float32)
    lin, lo, hi = rng.normal(size=1) * 3, -rng.random(1) * 2, rng.random(1) * 2
    alpha, other = rng.uniform(lo, hi), rng.normal(size=3)
    tube = np.full(1, width * rng.random())
    x = X[0].astype(np.float64)
    w = other + alpha[0] * x

    def value(a):
        return lin[0] * a - tube[0] * abs(a) - 0.5 * np.sum((other + a * x) ** 2)

    everywhere = np.linspace(lo[0], hi[0], 2001)
    start = alpha[0]
    epoch(
        EpochRows(as_rows(X), np.array([x @ x]), np.ones(1), lin, lo, hi, tube),
        alpha,
        w,
        np.array([0]),
        False,
        np.inf,
        np.ones(1, bool),
    )
    assert lo[0] <= alpha[0] <= hi[0]
    np.testing.assert_allclose(w, other + alpha[0] * x, atol=1e-12)
    assert value(alpha[0]) >= max(value(a) for a in [*everywhere, 0.0, start]) - 1e-12
