"""Few rows: the entries that solver and closing pass share, and the compiled sums of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from bigscreen import SVC, Tuning
from bigscreen.certify.certificate import SquaredNorm, prove
from bigscreen.certify.exact import close_exact
from bigscreen.certify.scores import ScoreProgram
from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.square import Square, sum_rows
from bigscreen.kernels.standard import Laplacian, Linear, Polynomial, Rbf, Sigmoid
from bigscreen.problems.dual import Dual
from bigscreen.problems.dual_sums import MAX_COMPILED_ROWS, arrays, dual_and_gap, multipliers
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import CSvc, Lad, NuSvc, OneClass, Svr
from bigscreen.solvers.smo.loop import Limits, Matrix, smo
from bigscreen.train.pairs import RowsByLabel

KERNELS = [Rbf(0.2), Linear(), Laplacian(0.1), Sigmoid(0.02, 0.1)]
KERNELS += [Polynomial(0.3, degree, 1.0) for degree in (1, 2, 3, 5)]


def rows(n: int = 60, d: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32) + 3


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("kind", ["narrow", "wide", "sparse", "double"])
def test_square(kernel: Any, kind: str) -> None:
    """Entries are the kernel's, however they come about, and computed when they are needed."""
    X: Any = rows(d=40 if kind == "wide" else 5)
    if kind == "double":
        X = X.astype(np.float64) + 1e-9
    if kind == "sparse":
        X = sparse.csr_array(X)
    side = Operand(X, np.arange(60))
    square = Square(kernel, side)
    exact = kernel.block(side, side, dtype=np.float64)
    assert square.lazy == (kind != "wide" and kernel.pairing != "manhattan")
    error = kernel.entry_error(float(side.sqnorms.max()), float(side.sqnorms.max()), X.shape[1])
    error *= 2.0**-28 if square.lazy else 1.0
    coef, other = np.array([1.0, -2.0]), np.array([3.0, 4.0])
    one, two = sum_rows(square, np.array([7, 30]), coef, other)
    assert square.entries == (120 if square.lazy else 3600)
    both = exact[[7, 30]]
    np.testing.assert_allclose(one, coef @ both, atol=3 * error)
    np.testing.assert_allclose(two, other @ both, atol=7 * error)
    np.testing.assert_allclose(square.whole, exact, atol=error)
    assert square.entries == 3600
    assert square.alike is None


def test_equal_rows_are_known() -> None:
    X = rows()
    X[9] = X[4]
    alike = Square(Rbf(1.0), Operand(X)).alike
    assert alike is not None and alike[9] == alike[4] and len(np.unique(alike)) == 59


@pytest.mark.parametrize("coupled", [True, False])
def test_steps_on_a_square(coupled: bool) -> None:
    """They are those on the whole matrix."""
    X, n = rows(), 60
    sign = np.where(np.random.default_rng(1).random(n) < 0.5, 1.0, -1.0)
    found = []
    for lazily in (True, False):
        square = Square(Rbf(0.2), Operand(X))
        K: Any = Matrix(square) if lazily else Matrix(square.whole)
        K.diag = square.diag  # (of a matrix that is there the entries themselves)
        alpha, G = np.zeros(n), np.ones(n)
        dual = Dual(sign, G.copy(), np.zeros(n), np.ones(n), sign if coupled else None)
        done = smo(K, dual, alpha, G, Limits(1e-9, 1000))
        found.append((done, alpha, G))
    assert found[0][0][0] == found[1][0][0]
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-12)
    np.testing.assert_allclose(found[0][2], found[1][2], atol=1e-12)


# -- compiled sums ---------------------------------------------------------------------------------
def problems(n: int) -> dict[str, tuple[Any, np.ndarray]]:
    rng = np.random.default_rng(2)
    codes, targets = rng.integers(0, 2, n).astype(np.int32), rng.normal(size=n)
    return {
        "c-svc": (CSvc(2.0, 1, (), "true"), codes),
        "weighted": (CSvc(2.0, 1, (0.5, 0.0), "true"), codes),
        "free": (CSvc(2.0, 1, (), "none"), codes),
        "nu": (NuSvc(0.4, 1, float(n), (), "true"), codes),
        "one-class": (OneClass(0.3, float(n)), codes),
        "lad": (Lad(1.5, "true"), targets),
        "svr": (Svr(1.5, 0.3, "true"), targets),
    }


NAMES = list(problems(4))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 2, 37, 500, MAX_COMPILED_ROWS + 5])
def test_multiplier_and_gap(name: str, n: int) -> None:
    """They are the dual's own; also where many scores are equal."""
    problem, y = problems(n)[name]
    rng = np.random.default_rng(n)
    for ties in (False, True):
        dual = problem.dual(y, np.ones(n) if ties else rng.uniform(0.1, 2, n))
        parts = arrays(dual)
        scores = rng.integers(-2, 3, n) / 2.0 if ties else rng.normal(size=n)
        mu = np.atleast_1d(dual.multiplier(scores)) if len(parts.total) else np.empty(0)
        np.testing.assert_allclose(multipliers(parts, scores), mu, atol=1e-12)
        alpha = dual.lo + rng.choice([0.0, 0.3, 1.0], n) * (dual.hi - dual.lo)
        r = dual.sign if dual.coupling is None else dual.coupling
        F = r * (dual.lin - dual.sign * scores)
        errors, seen = (np.full(n, 1e-3), np.full(n, 1e-4), 2.0), np.empty(n)
        value, found, gap, doubt = dual_and_gap(dual, parts, alpha, F, r, errors, seen)
        np.testing.assert_allclose(seen, scores, atol=1e-12)
        np.testing.assert_allclose(found, mu, atol=1e-12)
        own: Any = 0.0 if not len(mu) else float(mu[0]) if dual.group is None else mu
        w_sq = float((dual.sign * alpha) @ scores)
        assert value == pytest.approx(dual.value(alpha, w_sq), rel=1e-10, abs=1e-10)
        wanted = dual.frank_wolfe_gap(alpha, scores, own)
        assert gap == pytest.approx(wanted, rel=1e-10, abs=1e-10)
        assert doubt >= 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [200, MAX_COMPILED_ROWS + 5])
def test_prove_returns_p_d_and_gap_of_the_scores(name: str, n: int) -> None:
    """P, D and the gap are the dual's own; no error within the bands moves one beyond its bound."""
    problem, y = problems(n)[name]
    rng = np.random.default_rng(5)
    dual = problem.dual(y, rng.uniform(0.5, 2, n))
    phi = rng.normal(size=(n, 3))
    alpha = dual.lo + rng.choice([0.0, 0.4, 1.0], n) * (dual.hi - dual.lo)
    alpha = dual.feasible(alpha)
    scores = phi @ (phi.T @ (dual.sign * alpha))
    true = prove(dual, alpha, scores, 0.0)
    w_sq = float((dual.sign * alpha) @ scores)
    mu = 0.0 if dual.coupling is None else dual.multiplier(scores)
    np.testing.assert_allclose(true.mu, mu, atol=1e-12)
    size = abs(true.primal) + abs(true.dual)
    assert true.primal == pytest.approx(dual.primal(scores, w_sq, mu), abs=1e-11 * size)
    assert true.dual == pytest.approx(dual.value(alpha, w_sq), abs=1e-11 * size)
    assert true.gap == pytest.approx(dual.frank_wolfe_gap(alpha, scores, mu), rel=1e-11)
    assert 0 < true.rounding.gap < 1e-12 * max(size, n)
    bands = rng.uniform(0, 1e-3, n)
    for _ in range(5):
        found = prove(dual, alpha, scores + bands * rng.choice([-1.0, 1.0], n), bands)
        assert abs(found.gap - true.gap) <= found.rounding.gap
        assert abs(found.primal - true.primal) <= found.rounding.primal
        assert abs(found.dual - true.dual) <= found.rounding.dual
        assert np.sum(found.doubts) <= found.rounding.gap * (1 + 1e-12)


def test_a_known_norm_replaces_the_norm_from_scores() -> None:
    problem, y = problems(40)["free"]
    dual, rng = problem.dual(y, np.ones(40)), np.random.default_rng(0)
    alpha, scores = dual.hi * rng.random(40), rng.normal(size=40)
    own, given = (prove(dual, alpha, scores, 1e-3, norm) for norm in (None, SquaredNorm(3.0, 1e-6)))
    assert given.w_sq == 3.0 and given.gap == own.gap and given.rounding.gap == own.rounding.gap
    assert given.dual - own.dual == pytest.approx(0.5 * (own.w_sq - 3.0))
    assert given.rounding.dual == pytest.approx(0.5e-6, rel=1e-3)


@pytest.mark.parametrize("d", [5, 60])
def test_certificates_agree(d: int) -> None:
    """Of the same alpha the pass over few rows and the general one say the same."""
    n, X = 600, rows(600, d)
    y = (X[:, 0] > 3).astype(np.int32)
    X[9], X[10] = X[4], X[4]
    data = MemoryDataset(X, y, [0, 1])
    problem = CSvc(3.0, 1, (), "true")
    kernel = Rbf(1.0 / d)
    fitted = SVC(C=3.0, gamma=1.0 / d, tol=1e-4).fit(X, y)
    alpha = np.zeros(n)
    alpha[fitted.support_] = np.abs(fitted.dual_coef_[0])
    point = Point(np.empty(0), np.empty(0), 0.0, 0.0, 0.0, True, alpha=alpha)
    design = Design(data, kernel)
    near = replace(design, square=Square(kernel, Operand(X, np.arange(n))))
    with Inline(1) as fleet:
        few, general = (close_exact(each, problem, point, fleet) for each in (near, design))
    allowed = few.rounding_bound + general.rounding_bound
    assert few.certified_in == ("float64" if d == 5 else "float32")
    assert few.rounding_bound <= 2 * general.rounding_bound
    for field in ("primal", "dual"):
        rounding = getattr(few, f"{field}_rounding") + getattr(general, f"{field}_rounding")
        assert abs(getattr(few, field) - getattr(general, field)) <= rounding
    assert abs(few.gap - general.gap) <= allowed
    assert few.relative_gap <= 1e-4


@pytest.mark.parametrize("kernel", [Rbf(0.2), Sigmoid(0.02, 0.1)], ids=str)
def test_shared_entries_do_not_narrow_the_bands(kernel: Any) -> None:
    """The diagonal of an indefinite kernel does not bound its entries."""
    data = MemoryDataset(rows(), np.zeros(60, np.int32), [0, 1])
    design, coef = Design(data, kernel), np.random.default_rng(0).normal(size=60)
    square = Square(kernel, Operand(data.X(0, 60), np.arange(60)))
    plain, near = (
        ScoreProgram.of(each, coef, np.float64).noise
        for each in (design, replace(design, square=square))
    )
    assert near.longest == pytest.approx(plain.longest, rel=1e-6)
    assert near.size == pytest.approx(plain.size, rel=1e-6)


# -- pairs of labels -------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["narrow", "wide", "sparse"])
def test_pairs_of_labels(kind: str) -> None:
    """A pair's rows, codes, weights, numbers and entries are those of the data set."""
    X: Any = rows(50, 40 if kind == "wide" else 5)
    X[30] = X[2]
    X = sparse.csr_array(X) if kind == "sparse" else X
    y = np.random.default_rng(0).integers(0, 4, 50).astype(np.int32)
    data = MemoryDataset(X, y, list("abcd"), np.arange(1.0, 51))
    by_label = RowsByLabel(Design(data, Rbf(0.3)), int(np.sort(np.bincount(y))[-2:].sum()))
    for pair in ((0, 3), (1, 2)):
        design, ids = by_label.pair(pair)
        np.testing.assert_array_equal(np.sort(ids), np.flatnonzero(np.isin(y, pair)))
        n = len(ids)
        np.testing.assert_array_equal(design.data.y(0, n), y[ids])
        np.testing.assert_array_equal(design.data.weights(0, n), ids + 1)
        np.testing.assert_array_equal(design.data.row_ids(0, n), ids)
        dense = (lambda A: A.toarray()) if kind == "sparse" else np.asarray
        np.testing.assert_array_equal(dense(design.data.X(0, n)), dense(X)[ids])
        assert design.square is not None
        own = Operand(X[ids])
        np.testing.assert_allclose(design.square.whole, Rbf(0.3).block(own, own), atol=1e-4)
        there = design.square.alike
        assert there is not None and len(np.unique(there)) == n - bool({2, 30} <= set(ids.tolist()))


def test_the_number_of_threads_changes_no_bit() -> None:
    """The result is the same bits inline for any number of threads."""
    X = rows(400, 6)
    y = np.random.default_rng(0).integers(0, 4, 400)
    one, two = (SVC(C=2.0, n_jobs=jobs).fit(X, y) for jobs in (1, 2))
    np.testing.assert_array_equal(one.dual_coef_, two.dual_coef_)
    np.testing.assert_array_equal(one.intercept_, two.intercept_)
    for a, b in zip(one.certificate_, two.certificate_, strict=True):
        assert a["primal"] == b["primal"] and a["dual"] == b["dual"]


@pytest.mark.parametrize("how", [{"tuning": Tuning(start="divide", parts=3)}, {"screening": "gap"}])
def test_parts_and_screening(how: dict[str, Any]) -> None:
    """Parts of the rows, and rows alive, have entries of their own."""
    X = rows(300, 6)
    y = np.random.default_rng(0).integers(0, 2, 300)
    plain, other = SVC(C=2.0, tol=1e-6).fit(X, y), SVC(C=2.0, tol=1e-6, **how).fit(X, y)
    assert other.relative_gap_ <= 1e-6
    one, two = plain.certificate_[0], other.certificate_[0]
    assert abs(one["dual"] - two["dual"]) <= one["gap"] + two["gap"] + 1e-9 * one["primal"]
