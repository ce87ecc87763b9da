"""The stage on a whole kernel matrix agrees with the oracle and with LIBSVM on every problem."""

import time
from dataclasses import replace

import numpy as np
import pytest
import reference
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer
from sklearn.svm import SVC, SVR, NuSVC, OneClassSVM

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.kernels.given import Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import make_kernel
from bigscreen.path.gram import GRAM, GramStage, newton_steps
from bigscreen.path.gram_matrix import FullGram, bytes_needed
from bigscreen.path.stage import PointTask
from bigscreen.problems.dual import AT_HI, AT_LO, AT_ZERO, FREE
from bigscreen.problems.recipes import CSvc, Lad, NuSvc, OneClass, Quantile, Sublinear, Svr
from bigscreen.solvers.interior import COSTS, InteriorCosts
from bigscreen.solvers.smo.loop import Limits, smo

KINDS = (
    "c-svc", "bounded nu", "nu-svc", "one-class", "lad", "svr", "quantile", "sublinear"
)  # fmt: skip


def rows(seed, n=60, d=3, duplicates=False):
    """Make features, codes, targets, and weights some of which are zero."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(np.float32)
    if duplicates:
        X = X[rng.integers(0, n // 2, n)]
    f = X[:, 0] + 0.7 * rng.standard_normal(n)
    weights = rng.choice([0.0, 0.5, 1.0, 2.0], n)
    codes = (f > 0.2).astype(np.int32)
    codes[:2], weights[:2] = (0, 1), 1.0
    return X, codes, f, weights


def recipe(kind, codes, weights, intercept="true", size=1.0):
    """Make a problem of a kind; ``size``, in (0, 1.5], scales its parameter."""
    mass = float(weights.sum())
    rest = np.linspace(-1, 1, len(codes))
    either = min(weights[codes == 1].sum(), weights[codes == 0].sum()) / mass
    plain = "none" if intercept == "true" else intercept
    return {
        "c-svc": CSvc(2 * size, 1, (1.0, 2.0), intercept),
        "bounded nu": NuSvc(0.6 * size, 1, mass, (), plain),
        "nu-svc": NuSvc(1.2 * either * size, 1, mass, (), "true"),
        "one-class": OneClass(0.5 * size, mass),
        "lad": Lad(size, intercept),
        "svr": Svr(2 * size, 0.3, intercept),
        "quantile": Quantile(3 * size, 0.2, intercept),
        "sublinear": Sublinear(size, rest, rest**2 + 0.1, -0.3, 1.1, plain),
    }[kind]


def labels(kind, codes, f):
    if kind == "sublinear":
        return np.arange(len(codes))
    return f if kind in ("lad", "svr", "quantile") else codes


def stage(X, kernel="rbf", constant=False, **how):
    made = None if kernel is None else make_kernel(kernel, 0.4)
    data = MemoryDataset(X, np.zeros(len(X), np.int32), [0, 1])
    return GramStage(Design(data, made), constant, **how)


def cold(one, dual, tol=1e-10, **how):
    start = dual.feasible(np.zeros(len(dual)))
    return one.solve(PointTask(dual, start, np.full(len(dual), FREE), tol, **how))


def oracle(one, dual):
    """State the problem for the oracle, on features of the stage's own matrix."""
    phi = reference.features(one.gram.K.astype(float))
    arrays = (dual.sign, dual.lin, dual.lo, dual.hi, dual.coupling)
    return reference.Problem(phi, *arrays, dual.total, dual.group, dual.tube)


def is_true(one, dual, solved, decided=None):
    """Check a point by the definitions: feasible, and its scores, objectives and gap are right."""
    q, alpha, (scores, slack) = oracle(one, dual), solved.alpha, solved.scores
    assert np.all(alpha >= dual.lo) and np.all(alpha <= dual.hi)
    for own, total in reference.couplings(q):
        np.testing.assert_allclose(q.t[own] @ alpha[own], total, atol=1e-12 * dual.hi.sum())
    K = one.gram.K.astype(np.longdouble)
    exact = (K @ (dual.sign * alpha)).astype(float)
    assert np.all(np.abs(scores - exact) <= slack)
    size = 1e-9 * (abs(solved.primal) + np.abs(alpha) @ np.abs(dual.lin) + solved.w_sq)
    size += np.abs(alpha) @ slack + 1e-300
    np.testing.assert_allclose(solved.w_sq, dual.sign * alpha @ exact, atol=size)
    np.testing.assert_allclose(solved.dual, reference.dual(q, alpha), atol=size)
    gap = reference.linear_maximum(q, alpha, exact)
    assert abs(solved.gap - gap) <= solved.rounding + size
    assert solved.primal == solved.dual + solved.gap


@settings(deadline=None, max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(KINDS),
    kernel=st.sampled_from(["rbf", "polynomial", None]),
    intercept=st.sampled_from(["none", "constant", "true"]),
    size=st.sampled_from([0.03, 0.4, 1.0]),
    tol=st.sampled_from([1e-2, 1e-6, 1e-10]),
    dynamic=st.booleans(),
    duplicates=st.booleans(),
    inside=st.booleans(),
)
def test_every_problem_reaches_the_oracles_optimum(
    seed, kind, kernel, intercept, size, tol, dynamic, duplicates, inside
):
    X, codes, f, weights = rows(seed, 40, duplicates=duplicates)
    problem = recipe(kind, codes, weights, intercept, size)
    dual = problem.dual(labels(kind, codes, f), weights)
    costs = InteriorCosts(setup=-np.inf) if inside else COSTS  # an interior point solves it first
    tuning = replace(GRAM, interior=costs)
    one = stage(X, kernel, problem.intercept == "constant", tuning=tuning)
    q = oracle(one, dual)
    best = reference.solve(q)
    # Where w* is 0 nothing can be relative to P*: a walk sets the stage a floor, and says so.
    reach = float(np.maximum(np.abs(q.lo), np.abs(q.hi)).sum())
    longest = float(np.square(q.phi).sum(axis=1).max())
    assume(best.primal == 0 or abs(best.primal) > 1e-12 * reach**2 * longest)
    solved = cold(one, dual, tol, dynamic=dynamic)
    is_true(one, dual, solved)
    assert solved.gap <= tol * abs(solved.primal) + solved.rounding
    room = 1e-8 * (abs(best.primal) + 1e-6) + solved.rounding
    assert solved.dual <= best.primal + room and solved.primal >= best.dual - room


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6), kind=st.sampled_from(KINDS), sizes=st.permutations([0.3, 0.6, 1.0])
)
def test_a_path_ends_where_cold_solves_do(seed, kind, sizes):
    """Each point starts at the last one, scaled with the box; decided rows keep their alpha."""
    X, codes, f, weights = rows(seed, 50)
    y, one = labels(kind, codes, f), stage(X)
    last, before = None, None
    for size in sizes:
        problem = recipe(kind, codes, weights, "true", size)
        dual = problem.dual(y, weights)
        whole = cold(stage(X), dual)
        alpha = np.zeros(50)
        if last is not None:
            alpha = (problem.factor(before) or 1.0) * last.alpha
        # What a rule may prove: half of the rows that are certain.
        gradient = dual.gradient(whole.scores.values, whole.mu)
        tube = 0.0 if dual.tube is None else dual.tube
        certain = (np.abs(np.abs(gradient) - tube) > 1e-6) & (np.arange(50) % 2 == 0)
        decided = np.where(gradient > tube, AT_HI, np.where(gradient < -tube, AT_LO, AT_ZERO))
        decided = np.where(certain, decided, FREE).astype(np.int8)
        alpha = dual.feasible(dual.with_decisions(decided, alpha), decided != FREE)
        last = one.solve(PointTask(dual, alpha, decided, 1e-10))
        before = problem
        is_true(one, dual, last)
        np.testing.assert_array_equal(last.alpha, dual.with_decisions(decided, last.alpha))
        size = abs(whole.primal) + 1e-12
        np.testing.assert_allclose(last.dual, whole.dual, atol=1e-8 * size + last.rounding)


def test_the_objectives_of_libsvm():
    X, codes, f, _ = rows(3, 200)
    n, one = 200, stage(X)
    ones, K = np.ones(200), one.gram.K
    y = np.where(codes == 1, 1.0, -1.0)
    options = {"gamma": 0.4, "tol": 1e-10, "shrinking": False}
    wide = X.astype(np.float64)

    def theirs(machine, target, scale=1.0):
        machine.fit(wide, target)
        coef = np.zeros(n)
        coef[machine.support_] = machine.dual_coef_[0]
        return coef / scale if scale else coef

    coef = theirs(SVC(C=2.0, **options), codes)
    solved = cold(one, CSvc(2.0, 1, (), "true").dual(codes, ones))
    np.testing.assert_allclose(solved.dual, y @ coef - 0.5 * coef @ K @ coef, rtol=1e-8)
    coef = theirs(SVR(C=2.0, epsilon=0.2, **options), f)
    solved = cold(one, Svr(2.0, 0.2, "true").dual(f, ones))
    want = f @ coef - 0.2 * np.abs(coef).sum() - 0.5 * coef @ K @ coef
    np.testing.assert_allclose(solved.dual, want, rtol=1e-8)
    coef = theirs(OneClassSVM(nu=0.3, **options), None, 0.3 * n)
    solved = cold(one, OneClass(0.3, n).dual(codes, ones))
    np.testing.assert_allclose(solved.dual, -0.5 * coef @ K @ coef, rtol=1e-8)
    # Theirs is divided by rho: here alpha sums up to nu.
    coef = theirs(NuSVC(nu=0.4, **options), codes, 0.0)
    coef *= 0.4 / np.abs(coef).sum()
    problem = NuSvc(0.4, 1, n, (), "true")
    solved = cold(one, problem.dual(codes, ones))
    np.testing.assert_allclose(solved.dual, -0.5 * coef @ K @ coef, rtol=1e-7)


def test_scores_follow_scaling_and_small_moves():
    """After a thousand points the errors of the scores are within the stated drift."""
    X, codes, _f, _weights = rows(0, 80)
    one, ones = stage(X), np.ones(80)
    problem = CSvc(1.0, 1, (), "true")
    solved = cold(one, problem.dual(codes, ones), 1e-6)
    free = np.full(80, FREE)
    for k in range(1, 1000):
        now = problem.at(1.003**k)
        dual = now.dual(codes, ones)
        alpha = dual.feasible(1.003 * solved.alpha)
        solved = one.solve(PointTask(dual, alpha, free, 1e-6))
    is_true(one, dual, solved)
    assert np.max(solved.scores.slack) < 1e-9 * np.max(np.abs(solved.scores.values))


def test_a_warm_point_takes_few_steps():
    X, codes, _, _ = rows(1, 300)
    ones, free, problem = np.ones(300), np.full(300, FREE), OneClass(0.3, 300.0)
    one = stage(X)
    first = cold(one, problem.dual(codes, ones), 1e-6)
    dual = problem.at(0.303).dual(codes, ones)
    warm = one.solve(PointTask(dual, dual.feasible(first.alpha), free, 1e-6))
    fresh = cold(stage(X), dual, 1e-6)
    assert warm.counts["steps"] < 0.5 * fresh.counts["steps"]
    np.testing.assert_allclose(warm.dual, fresh.dual, rtol=1e-5)
    # And a cold start is one, whatever was solved before.
    again = cold(one, dual, 1e-6)
    assert again.counts["steps"] > 2 * warm.counts["steps"]


def test_float32_entries_are_owned_up_to():
    X, codes, _, weights = rows(2, 120, duplicates=True)
    dual = CSvc(3.0, 1, (), "true").dual(codes, weights)
    wide, narrow = stage(X), stage(X, budget=8 * 120**2)
    assert narrow.gram.K.dtype == np.float32
    solved = cold(narrow, dual, 1e-5)
    exact = wide.gram.K @ (dual.sign * solved.alpha)
    off = np.abs(exact - solved.scores.values)
    assert np.all(off <= solved.scores.slack) and off.max() > 1e-9
    best = cold(wide, dual)
    assert solved.dual - solved.rounding <= best.primal
    assert solved.primal + solved.rounding >= best.dual
    assert abs(solved.gap - dual.frank_wolfe_gap(solved.alpha, exact, solved.mu)) < solved.rounding


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(KINDS),
    kernel=st.sampled_from(["rbf", "laplacian"]),
    intercept=st.sampled_from(["none", "constant", "true"]),
    size=st.sampled_from([0.03, 1.0, 1.4]),
)
def test_quick_entries_prove_what_they_say_of_the_kernel_itself(
    seed, kind, kernel, intercept, size
):
    X, codes, f, weights = rows(seed, 60)
    problem = recipe(kind, codes, weights, intercept, min(size, 1.0) if "nu" in kind else size)
    dual = problem.dual(labels(kind, codes, f), weights)
    constant = problem.intercept == "constant"
    one, wide = stage(X, kernel, constant, quick=True), stage(X, kernel, constant)
    assert one.gram.K.dtype == np.float32
    solved, best = cold(one, dual, 1e-3), cold(wide, dual)
    exact = wide.gram.K @ (dual.sign * solved.alpha)
    assert np.all(np.abs(exact - solved.scores.values) <= solved.scores.slack)
    gap = dual.frank_wolfe_gap(solved.alpha, exact, solved.mu)
    assert abs(solved.gap - gap) <= solved.rounding + 1e-12 * solved.primal
    room = np.abs(solved.alpha) @ solved.scores.slack + solved.rounding + best.rounding
    assert solved.dual - room <= best.primal and solved.primal + room >= best.dual
    if abs(best.primal) > 1e-6:
        assert solved.gap <= 1e-3 * abs(solved.primal)


def test_quick_stages_take_newton_steps_once_they_cost_no_more():
    X, codes, _, weights = rows(3, 400)
    one = stage(X, "rbf", quick=True)
    solved = cold(one, CSvc(100.0, 1, (), "true").dual(codes, weights), 1e-3)
    assert solved.counts["newton"] > 0 and solved.relative_gap <= 1e-3
    few = cold(one, CSvc(1.0, 1, (), "true").dual(codes, weights), 1e-2)
    assert few.counts["newton"] == 0 and few.relative_gap <= 1e-2


def test_products_and_machines_are_sums_of_kernel_rows():
    X, codes, _, weights = rows(4)
    one = stage(X, "rbf", True)
    coef = np.random.default_rng(0).standard_normal(60)
    values, slack = one.products(coef)
    exact = (one.gram.K.astype(np.longdouble) @ coef).astype(float)
    assert np.all(np.abs(values - exact) <= slack)
    side = Operand(X)
    want = make_kernel("rbf", 0.4).block(side, side, dtype=np.float64) + 1
    np.testing.assert_allclose(one.gram.K, want, rtol=1e-13)
    np.testing.assert_array_equal(one.gram.K, one.gram.K.T)
    assert np.all(one.norms**2 >= np.diagonal(one.gram.K))
    dual = CSvc(1.0, 1, (), "constant").dual(codes, weights)
    solved = cold(one, dual)
    machine = one.machine(dual, solved)
    coef = machine["coef"]
    scores = (want - 1)[:, machine["support"]] @ coef + machine["constant"]
    np.testing.assert_allclose(scores, solved.scores.values, atol=1e-12)
    assert np.all(coef != 0) and np.all(np.diff(machine["support"]) > 0)


def test_a_precomputed_kernel_gives_the_same_points():
    X, codes, _, weights = rows(5)
    K = stage(X).gram.K
    data = MemoryDataset(K.astype(np.float32), codes, [0, 1])
    given_ = GramStage(Design(data, Precomputed()))
    np.testing.assert_array_equal(given_.gram.K, K.astype(np.float32))
    dual = CSvc(1.0, 1).dual(codes, weights)
    np.testing.assert_allclose(cold(given_, dual).dual, cold(stage(X), dual).dual, rtol=1e-6)


def test_a_deadline_that_has_passed_returns_the_start_certified():
    X, codes, _, weights = rows(6)
    dual = CSvc(5.0, 1, (), "true").dual(codes, weights)
    one = stage(X)
    solved = cold(one, dual, 1e-12, deadline=time.monotonic() - 1)
    is_true(one, dual, solved)
    assert solved.counts["steps"] == 0 and solved.relative_gap > 1e-3


def test_a_point_without_free_rows_is_certified():
    """All rows are decided, or held out."""
    X, codes, _, _ = rows(7)
    one, problem = stage(X), CSvc(1.0, 1)
    dual = problem.dual(codes, np.ones(60))
    solved = one.solve(PointTask(dual, dual.hi.copy(), np.full(60, AT_HI), 1e-3))
    is_true(one, dual, solved)
    np.testing.assert_array_equal(solved.alpha, dual.hi)
    solved = cold(one, problem.dual(codes, np.zeros(60)))
    assert solved.gap == solved.primal == 0.0 and not solved.alpha.any()


def test_screening_during_a_solve_keeps_the_optimum():
    X, codes, _, _ = rows(8, 600, 2)
    dual = CSvc(10.0, 1, (), "true").dual(codes, np.ones(600))
    ends = [cold(stage(X), dual, 1e-9, dynamic=dynamic) for dynamic in (True, False)]
    assert ends[0].counts["screened"] > 0 and ends[1].counts["screened"] == 0
    np.testing.assert_allclose(ends[0].dual, ends[1].dual, rtol=1e-8)


def test_a_nu_svc_without_a_w_is_left():
    rng = np.random.default_rng(0)
    X, codes = rng.normal(size=(200, 3)).astype(np.float32), np.repeat([0, 1], 100)
    data = MemoryDataset(X, codes.astype(np.int32), [0, 1])
    one = GramStage(Design(data, make_kernel("rbf", 0.1)))
    dual = NuSvc(0.3, 1, 200.0, (), "true").dual(codes, np.ones(200))
    solved = cold(one, dual, tol=1e-3)
    assert solved.primal >= solved.dual and solved.counts["steps"] < 50_000
    # 1/2 ||w*||^2 is at most -D: what a last digit of float32 entries makes of sum alpha = .3.
    assert 0 <= -solved.dual <= 0.5 * 2.0**-24 * 0.3**2


@pytest.mark.parametrize("kind", KINDS)
def test_newton_steps_never_lose(kind):
    """After pair steps, Newton steps keep alpha feasible, and D does not fall."""
    X, codes, f, weights = rows(9, 40)
    one = stage(X)
    dual = recipe(kind, codes, weights).dual(labels(kind, codes, f), weights)
    K, live = one.gram.K, np.flatnonzero(dual.hi > dual.lo)
    rng = np.random.default_rng(0)
    gained = 0
    for _ in range(30):
        alpha = dual.feasible(dual.lo + (dual.hi - dual.lo) * rng.random(40))
        alpha = dual.feasible(np.where(rng.random(40) < 0.3, 0.0, alpha))
        G = dual.lin - dual.sign * (K @ (dual.sign * alpha))
        smo(K, dual, alpha, G, Limits(1e-2, 1000))
        before = dual.value(alpha, dual.sign * alpha @ K @ (dual.sign * alpha))
        found = newton_steps(K, dual, one._certified(dual, alpha), live)
        after = dual.value(found, dual.sign * found @ K @ (dual.sign * found))
        assert np.all(found >= dual.lo) and np.all(found <= dual.hi)
        if dual.coupling is not None:
            t = dual.coupling
            for g in range(np.size(dual.total)):
                own = slice(None) if dual.group is None else dual.group == g
                np.testing.assert_allclose(t[own] @ found[own], t[own] @ alpha[own], atol=1e-12)
        assert after >= before - 1e-12 * (1 + abs(before))
        gained += after > before
    assert gained > 20


@pytest.mark.parametrize(
    ("how", "words"),
    [({"budget": 100}, "allow more memory"), ({"landmarks": True}, "Nystrom")],
)
def test_a_matrix_that_does_not_fit_is_refused(how, words):
    X, *_ = rows(0)
    if how.pop("landmarks", False):
        data = MemoryDataset(X, np.zeros(60, np.int32), [0, 1])
        design = Design(data, make_kernel("rbf", 0.4))
        with pytest.raises(InputError, match=words):
            GramStage(replace(design, landmarks=Operand(X[:5]), factor=np.eye(5)))
        return
    with pytest.raises(InputError, match=words):
        stage(X, **how)


@pytest.mark.parametrize("kernel", ["linear", "precomputed"])
def test_sums_of_entries_that_are_rounded_once_stay_within_their_slack(kernel):
    # Each entry's error is as likely to be U32 of it as any part of that, and signs may agree.
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(40):
        X = rng.uniform(0.9, 1.2, (32, 1))
        K = X @ X.T
        ids = np.arange(len(X))
        data = MemoryDataset(K if kernel == "precomputed" else X, ids % 2, [0, 1])
        given = Precomputed() if kernel == "precomputed" else make_kernel("linear")
        gram = FullGram(Design(data, given), False, bytes_needed(len(X), np.float32))
        assert gram.K.dtype == np.float32
        for _ in range(25):
            coef = np.zeros(len(X))
            some = rng.choice(len(X), 10, replace=False)
            coef[some] = rng.choice([-1.0, 1.0], 10)
            scores = np.zeros(len(X))
            drift = gram.add(scores, some, coef[some])
            error = np.abs(scores - K @ coef)
            worst = max(worst, float(np.max(error / gram.slack(scores, coef, drift))))
    assert 0.3 < worst < 1  # a bound, and one that says something


def test_a_path_of_unscaled_rows_reaches_its_gap():
    """Pair steps alone leave the last point at a gap of .06 after 24 s."""
    X, codes = load_breast_cancer(return_X_y=True)
    one = stage(X, "linear")
    for C in (1.0, 1000.0):
        dual = CSvc(C, 1, (), "true").dual(codes, np.ones(len(codes)))
        solved = cold(one, dual, 1e-3)
        is_true(one, dual, solved)
        assert solved.relative_gap <= 1e-3 and solved.counts["steps"] < 500_000


def test_an_interior_point_has_room_of_its_own():
    X, codes, _, weights = rows(0, 200)
    dual = CSvc(1.0, 1, (), "true").dual(codes, weights)
    for room, inside in ((None, True), (3 * 8 * 200**2, False)):
        how = {} if room is None else {"budget": room}
        one = stage(X, **how)
        assert cold(one, dual, 1e-6).relative_gap <= 1e-6
        assert one._interior.usable == inside
        assert one._interior.should_try(10**9, 200) == inside
        assert (one._interior.features._made is not None) == inside
