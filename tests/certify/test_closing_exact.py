"""The exact machine's closing pass: P, D and gap against the oracle, rounding against float64."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import reference
from contracts import CLASS_WEIGHT, INTERCEPTS, rows
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC

from bigscreen.certify.exact import ExactTuning, close_exact
from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Rbf, make_kernel
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import CSvc

GRID = {"shard_rows": 64, "chunk_rows": 32}


@pytest.fixture(scope="module")
def fleet():
    with Inline(2) as threads:
        yield threads


def point(alpha: np.ndarray) -> Point:
    """What the closing pass may use of a point; the rest is nonsense on purpose."""
    return Point(np.empty(0), np.empty(0), np.nan, np.nan, np.nan, True, alpha=alpha)


def gram_of(data, kernel) -> np.ndarray:
    n = data.n_rows
    X = data.X(0, n)
    return kernel.block(X, Operand(X, np.arange(n)), dtype=np.float64)


def oracle(data, kernel, problem) -> reference.Problem:
    """A world with explicit features for a kernel machine: a square root of the kernel matrix."""
    n = data.n_rows
    phi = reference.features(gram_of(data, kernel))
    codes = data.y(0, n)
    box = problem.dual(codes, data.weights(0, n)).hi
    return reference.c_svc(phi, codes, box, problem.intercept)


def random_alpha(q: reference.Problem, seed: int) -> np.ndarray:
    """A feasible dual point with rows at either bound and between them."""
    rng = np.random.default_rng(seed)
    alpha = q.hi * np.clip(rng.normal(0.3, 0.6, len(q.hi)), 0, 1)
    if q.t is not None:
        positive, negative = alpha[q.s > 0].sum(), alpha[q.s < 0].sum()
        side = min(positive, negative)
        alpha *= np.where(q.s > 0, side / positive, side / negative)
    return alpha


def expected(q: reference.Problem, alpha: np.ndarray) -> tuple[float, float, float]:
    """P, D and offset by the definitions."""
    w = reference.w_of(q, alpha)
    mu = 0.0 if q.t is None else reference.best_multiplier(q, q.phi @ w)
    return reference.primal(q, w, mu), reference.dual(q, alpha), mu


KERNELS = [Rbf(0.2), make_kernel("polynomial", 0.2, 2, 1.0), make_kernel("laplacian", 0.1)]


@pytest.mark.slow
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize("certify", ["float32", "float64"])
@pytest.mark.parametrize("kernel", [*KERNELS, make_kernel("linear")], ids=lambda k: k.name)
def test_the_certificate_equals_the_reference_objectives(
    fleet, intercept, sparse_rows, certify, kernel
):
    data = rows(3, n=150, sparse_rows=sparse_rows, **GRID)
    problem = CSvc(2.0, 1, CLASS_WEIGHT, intercept)
    q = oracle(data, kernel, problem)
    for alpha in (random_alpha(q, 1), reference.solve(q).alpha):
        primal, dual, mu = expected(q, alpha)
        found = close_exact(Design(data, kernel), problem, point(alpha), fleet, certify)
        size = abs(primal) + abs(dual)
        room = (3e-6 if certify == "float32" else 1e-12) * size
        assert abs(found.primal - primal) <= room and abs(found.dual - dual) <= room
        gap = primal - dual
        assert abs(found.gap - gap) <= found.rounding_bound + 1e-12 * size
        assert abs(gap - reference.linear_maximum(q, alpha, q.phi @ reference.w_of(q, alpha))) <= (
            1e-9 * size
        )
        assert found.rounding_bound <= 0.06 * max(gap, 0) + 1e-5 * size
        assert found.gap == pytest.approx(found.primal - found.dual, abs=1e-14 * size)
        assert found.rows == 150 and found.support == np.count_nonzero(alpha)
        assert found.certified_in == certify
        if intercept == "constant":
            assert found.intercept == pytest.approx(q.s @ alpha, abs=1e-12)
        else:
            assert found.intercept == pytest.approx(mu, abs=1e-4)


@pytest.mark.parametrize("certify", ["float32", "float64"])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_shards_and_workers_do_not_change_the_certificate(certify, intercept):
    whole = rows(5, n=300, d=7, shard_rows=512, chunk_rows=512)
    problem, kernel = CSvc(3.0, 1, (), intercept), Rbf(0.1)
    alpha = random_alpha(oracle(whole, kernel, problem), 0)
    n, found = whole.n_rows, []
    for shard, chunk, threads in [(512, 512, 1), (64, 16, 1), (64, 16, 2), (64, 16, 3)]:
        data = MemoryDataset(
            whole.X(0, n), whole.y(0, n), [0, 1], whole.weights(0, n),
            shard_rows=shard, chunk_rows=chunk,
        )  # fmt: skip
        with Inline(threads) as fleet:
            found.append(close_exact(Design(data, kernel), problem, point(alpha), fleet, certify))
    assert found[1] == found[2] == found[3]
    assert abs(found[0].gap - found[1].gap) <= found[0].rounding_bound + found[1].rounding_bound


def test_rows_with_an_empty_box_do_not_change_the_certificate(fleet):
    """One label against another: the rows of the others have a weight of 0."""
    data = rows(2, n=200, **GRID)
    codes = data.y(0, 200).copy()
    codes[::3] = 2
    three = MemoryDataset(data.X(0, 200), codes, [0, 1, 2], data.weights(0, 200), **GRID)
    two = np.flatnonzero(codes < 2)
    pair = MemoryDataset(data.X(0, 200)[two], codes[two], [0, 1], data.weights(0, 200)[two], **GRID)
    for intercept in INTERCEPTS:
        problem = CSvc(1.5, 1, (1.0, 2.0), intercept)
        alpha = np.zeros(200)
        alpha[two] = random_alpha(oracle(pair, Rbf(0.3), problem), 4)
        one = close_exact(Design(pair, Rbf(0.3)), problem, point(alpha[two]), fleet, "float64")
        weighted = CSvc(1.5, 1, (1.0, 2.0, 0.0), intercept)
        other = close_exact(Design(three, Rbf(0.3)), weighted, point(alpha), fleet, "float64")
        assert other.gap == pytest.approx(one.gap, rel=1e-11)
        assert other.intercept == pytest.approx(one.intercept, abs=1e-12)


def test_an_infeasible_alpha_proves_no_more_than_a_feasible_one(fleet):
    data, kernel, problem = rows(1, n=120), Rbf(0.2), CSvc(1.0, 1, (), "true")
    q = oracle(data, kernel, problem)
    best = reference.solve(q)
    for size in (1e-12, 1e-6, 1e-2, 0.5):
        alpha = np.clip(best.alpha * (1 - size * (q.s > 0)), q.lo, q.hi)
        found = close_exact(Design(data, kernel), problem, point(alpha), fleet, "float64")
        negative = (q.s @ alpha) < 0
        feasible = alpha * np.where((q.s < 0) == negative, 1 - size, 1)
        assert abs(q.s @ feasible) <= 1e-9
        loss = abs(q.s @ alpha) ** 2
        tiny = 1e-11 * best.primal
        assert reference.dual(q, feasible) - loss - tiny <= found.dual <= best.dual + tiny
        assert found.primal >= best.primal - tiny


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_an_alpha_of_zero_is_certified(fleet, intercept):
    data, problem = rows(4, n=100), CSvc(1.0, 1, CLASS_WEIGHT, intercept)
    found = close_exact(Design(data, Rbf(0.2)), problem, point(np.zeros(100)), fleet)
    box = problem.dual(data.y(0, 100), data.weights(0, 100)).hi
    light = min(box[data.y(0, 100) == code].sum() for code in (0, 1))
    # The offset alone puts the lighter class on the wrong side, twice as far.
    assert found.primal == pytest.approx(2 * light if intercept == "true" else box.sum())
    assert found.dual == 0 and found.relative_gap == 1 and found.support == 0


def test_one_side_without_weight_has_nothing_to_lose(fleet):
    data = rows(4, n=100)
    for weights in ((0.0, 1.0), (1.0, 0.0)):
        problem = CSvc(1.0, 1, weights, "true")
        found = close_exact(Design(data, Rbf(0.2)), problem, point(np.zeros(100)), fleet)
        assert found.gap == 0 and found.relative_gap == 0


def test_an_alpha_outside_its_box_is_moved_in(fleet):
    data, problem = rows(6, n=100), CSvc(1.0, 1)
    q = oracle(data, Rbf(0.2), problem)
    alpha = random_alpha(q, 2)
    outside = np.where(alpha == q.hi, np.nextafter(alpha, 9), alpha)
    outside[alpha == 0] = -1e-17
    found = [
        close_exact(Design(data, Rbf(0.2)), problem, point(a), fleet) for a in (alpha, outside)
    ]
    assert found[0] == found[1]


def test_given_kernels_are_certified_like_others(fleet):
    data, problem = rows(7, n=130, **GRID), CSvc(2.0, 1, CLASS_WEIGHT, "true")
    kernel = Rbf(0.2)
    gram = gram_of(data, kernel).astype(np.float32)
    given = MemoryDataset(gram, data.y(0, 130), [0, 1], data.weights(0, 130), **GRID)
    own = Custom(lambda A, B: np.exp(-0.2 * ((A[:, None] - B[None]) ** 2).sum(axis=2)))
    alpha = random_alpha(oracle(data, kernel, problem), 3)
    exact = close_exact(Design(data, kernel), problem, point(alpha), fleet, "float64")
    for design in (Design(given, Precomputed()), Design(data, own)):
        for certify in ("float32", "float64"):
            found = close_exact(design, problem, point(alpha), fleet, certify)
            assert found.gap == pytest.approx(exact.gap, rel=1e-6)
            assert found.rounding_bound <= 2e-6 * exact.primal
    rounded = close_exact(Design(given, Precomputed()), problem, point(alpha), fleet)
    primal, dual, _ = expected(oracle(given, Precomputed(), problem), alpha)
    assert rounded.gap == pytest.approx(primal - dual, rel=1e-5)  # K as given is not quite psd


def test_a_kernel_too_sharp_for_float32_is_certified_in_float64(fleet):
    data = rows(8, n=80)
    found = close_exact(Design(data, Rbf(1e6)), CSvc(1.0, 1), point(data.weights(0, 80)), fleet)
    assert found.certified_in == "float64"
    # Every row is alone: K is the identity and alpha = min(hi, 1) the optimum.
    alpha = np.minimum(data.weights(0, 80), 1.0)
    best = close_exact(Design(data, Rbf(1e6)), CSvc(1.0, 1), point(alpha), fleet)
    assert best.gap <= 1e-9 * best.primal


def indefinite(A, B):
    return np.tanh(0.5 * A @ B.T - 1.0)


@pytest.mark.parametrize("kernel", [make_kernel("sigmoid", 0.5, 3, -1.0), Custom(indefinite)])
def test_an_indefinite_kernel_gets_its_kkt_violation_and_no_gap(fleet, kernel):
    data, problem = rows(8, n=80), CSvc(1.0, 1)
    dual = problem.dual(data.y(0, 80), data.weights(0, 80))
    alpha = dual.hi * np.random.default_rng(0).random(80)
    scores = gram_of(data, kernel) @ (dual.sign * alpha)
    kernel = replace(kernel, psd=False, largest=1.0) if isinstance(kernel, Custom) else kernel
    found = close_exact(Design(data, kernel), problem, point(alpha), fleet, "float64")
    assert not found.proved and not found.psd and found.gap_or_violation == found.violation
    assert np.isnan([found.primal, found.gap, found.relative_gap]).all()
    gradient = dual.gradient(scores)
    movable = np.where(gradient > 0, alpha < dual.hi, alpha > dual.lo)
    assert found.violation == pytest.approx(np.max(np.abs(gradient[movable])), rel=1e-12)
    assert found.dual == pytest.approx(dual.value(alpha, (dual.sign * alpha) @ scores), rel=1e-12)
    assert 0 < found.rounding_bound <= 1e-9 * found.violation


class Posted:
    """A fleet whose work travels, as it does to the workers of a cluster."""

    def each(self, function, items):
        for item in items:
            yield pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(function))(item)))


def test_a_pickled_score_program_gives_the_same_certificate(fleet):
    data, problem = rows(8, n=150, sparse_rows=True, **GRID), CSvc(1.0, 1, (), "true")
    design, alpha = Design(data, Rbf(0.2)), 0.1 * data.weights(0, 150)
    here = close_exact(design, problem, point(alpha), fleet)
    assert close_exact(design, problem, point(alpha), Posted()) == here


def world_rows(kind: str, n: int, seed: int) -> MemoryDataset:
    rng = np.random.default_rng(seed)
    X = {
        "normal": lambda: rng.normal(size=(n, 20)),
        "pixels": lambda: np.clip(rng.normal(0.1, 0.4, size=(n, 300)), 0, 1),
        "binary": lambda: (rng.random((n, 123)) < 0.11) * 1.0,
        "equal": lambda: np.repeat(rng.normal(size=(n // 10, 8)), 10, axis=0),
        "whole": lambda: rng.integers(0, 4, size=(n, 6)) * 1.0,
        "far": lambda: rng.normal(size=(n, 10)) + 30,
    }[kind]()
    score = X @ rng.normal(size=X.shape[1])
    score = score - np.median(score)
    y = (score + 0.7 * score.std() * rng.normal(size=n) > 0).astype(np.int32)
    return MemoryDataset(X, y, [0, 1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "pixels", "binary", "equal", "whole", "far"])
@pytest.mark.parametrize("name", ["rbf", "laplacian", "polynomial", "linear"])
def test_rounding_is_bounded_and_not_by_much_too_much(fleet, kind, name):
    """float32 alone, no row computed again: its error stays within the bound, and near it."""
    none = ExactTuning(recompute_share=np.inf, recompute_support_share=np.inf)
    part = []
    for seed in range(3):
        data = world_rows(kind, 400, seed)
        X = data.X(0, 400)
        kernel = make_kernel(name, 0.5 / float(X.var() * X.shape[1]), 2, 1.0)
        for C in (1.0, 30.0):
            alpha = libsvm_alpha(data, kernel, C, 0.1**seed)
            for intercept in INTERCEPTS:
                problem, design = CSvc(C, 1, (), intercept), Design(data, kernel)
                fast = close_exact(design, problem, point(alpha), fleet, tuning=none)
                true = close_exact(design, problem, point(alpha), fleet, "float64")
                part.append(abs(fast.gap - true.gap) / fast.rounding_bound)
                assert true.rounding_bound <= 1e-6 * fast.rounding_bound
    assert max(part) <= 1
    exact = name == "linear" and kind in ("binary", "whole")  # whole numbers: no error at all
    # Far from the origin the norms alone say how little float32 holds; centred, it holds more.
    assert exact or max(part) >= (1e-7 if kind == "far" else 1e-3)


def libsvm_alpha(data, kernel, C: float, tol: float) -> np.ndarray:
    """A dual point near the optimum with the true offset; feasible without one too."""
    machine = SVC(C=C, kernel="precomputed", tol=tol, max_iter=20_000)
    with warnings.catch_warnings(category=ConvergenceWarning, action="ignore"):
        machine.fit(gram_of(data, kernel), data.y(0, data.n_rows))
    alpha = np.zeros(data.n_rows)
    alpha[machine.support_] = np.abs(machine.dual_coef_[0])
    return alpha


def test_rows_in_doubt_are_computed_again(fleet):
    """Rounding is a small part of a gap that is far below what float32 entries can prove."""
    data, problem = rows(9, n=150, noise=0.3, weights=False), CSvc(100.0, 1, (), "true")
    q = oracle(data, Rbf(0.5), problem)
    found = close_exact(Design(data, Rbf(0.5)), problem, point(reference.solve(q).alpha), fleet)
    assert found.certified_in == "float32"
    assert abs(found.gap) + found.rounding_bound <= 1e-9 * found.primal
