"""Laws that every kernel, screening rule and solver must satisfy, and problems to test them on.

A ``World`` is one problem twice: as the package sees it (rows, design, problem) and as the oracle
in ``reference`` sees it (explicit float64 features). A new rule, solver or kernel is proved by
passing these functions, not by tests of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import reference
from scipy import sparse

from bigscreen.data.memory import MemoryDataset
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import make_kernel
from bigscreen.problems.dual import AT_HI, AT_LO
from bigscreen.problems.point import Certificate, Point
from bigscreen.problems.recipes import CSvc
from bigscreen.solvers.block.shard import BlockProgram
from bigscreen.solvers.newton.shard import NewtonProgram

INTERCEPTS = ("none", "constant", "true")
CLASS_WEIGHT = (1.0, 2.0)


@dataclass(frozen=True)
class World:
    """A problem in the package's form and in the form of the reference solver."""

    design: Design
    problem: CSvc

    @property
    def data(self) -> Any:
        return self.design.data

    @cached_property
    def phi(self) -> np.ndarray:
        """Features of all rows, float64."""
        columns = self.design.columns(self.data.X(0, self.data.n_rows), np.float64)
        return columns if self.design.factor is None else columns @ self.design.factor

    @cached_property
    def box(self) -> np.ndarray:
        n = self.data.n_rows
        codes = self.data.y(0, n)
        weight = np.asarray(self.problem.code_weight or (1.0, 1.0))[codes]
        return self.problem.C * self.data.weights(0, n) * weight

    @cached_property
    def oracle(self) -> reference.Problem:
        codes = self.data.y(0, self.data.n_rows)
        return reference.c_svc(self.phi, codes, self.box, self.problem.intercept)

    @cached_property
    def optimum(self) -> reference.Optimum:
        return reference.solve(self.oracle)

    def room(self, *points: Point) -> float:
        """Bound how far P and D may be from the reference's by rounding of the scores."""
        coefs = [point.coef for point in points]
        coefs.append(self.design.coef(self.optimum.w[: self.design.rank]))
        error = max(self.design.score_error(coef) for coef in coefs)
        return 2 * float(self.box.sum()) * error + 1e-11 * abs(self.optimum.primal)


def rows(seed=0, n=120, d=5, noise=0.7, sparse_rows=False, weights=True, **grid) -> MemoryDataset:
    """Rows of two overlapping classes; sparse data has rows without nonzeros, too."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = (X[:, 0] + noise * rng.normal(size=n) > 0.3).astype(np.int32)
    y[:2] = [0, 1]
    if sparse_rows:
        X[rng.random(X.shape) < 0.6] = 0
        X[-3:] = 0
    X = X.astype(np.float32)
    weight = rng.uniform(0.1, 3.0, n) if weights else None
    return MemoryDataset(sparse.csr_array(X) if sparse_rows else X, y, [0, 1], weight, **grid)


def world(
    data: MemoryDataset,
    kernel: str = "linear",
    C: float = 1.0,
    intercept: str = "none",
    code_weight: tuple[float, ...] = CLASS_WEIGHT,
    landmarks: int = 30,
    gamma: float = 0.15,
) -> World:
    """Make the C-SVC of rows with raw features or with Nystrom features of a kernel."""
    if kernel == "linear":
        design = Design(data)
    else:
        made = make_kernel(kernel, gamma)
        side, _ = nystrom.choose_landmarks(data, made, min(landmarks, data.n_rows), "uniform", 0)
        factor = nystrom.factor_landmarks(made, side)
        design = factor.of(Design(data, made), side)
    return World(design, CSvc(C, 1, code_weight, intercept))


# -- solvers and their certificates ------------------------------------------------------------
def naive_certificate(world: World, point: Point, exact_columns: bool) -> tuple[float, float]:
    """Compute P(w) and D(alpha) of a point by their definitions, with alpha from the scores."""
    design, q = world.design, world.oracle
    dtype = np.float64 if exact_columns else np.float32
    X = world.data.X(0, world.data.n_rows)
    columns = design.columns(X, dtype).astype(np.float64)
    read = design.columns(X, np.float32).astype(np.float64)
    phi = columns if design.factor is None else columns @ design.factor
    margin = q.p - q.s * (columns @ point.coef + point.intercept)
    parts = [(1.0, point.alpha)]
    if point.alpha is None:
        parts = []
        for part in point.readings:
            z = q.p - q.s * (read @ part.coef + part.intercept + sum(part.multiplier))
            h = part.smoothing
            parts.append((part.weight, q.hi * np.clip((z + h) / (2 * h), 0, 1)))
    alpha = np.zeros(len(q.hi))
    for weight, part in parts:
        if world.problem.intercept == "true":
            positive, negative = part[q.s > 0].sum(), part[q.s < 0].sum()
            side = min(positive, negative)
            scale = np.where(q.s > 0, side / max(positive, 1e-300), side / max(negative, 1e-300))
            part = part * scale
        alpha += weight * part
    if world.problem.intercept == "true":
        np.testing.assert_allclose(q.s @ alpha, 0, atol=1e-9 * q.hi.sum())
    quadratic = 0.5 * point.w @ point.w
    if world.problem.intercept == "constant":
        quadratic += 0.5 * point.intercept**2
        phi = np.hstack([phi, np.ones((len(phi), 1))])
    assert np.all(alpha >= 0) and np.all(alpha <= q.hi * (1 + 1e-12))
    primal = quadratic + np.sum(q.hi * np.maximum(margin, 0))
    w_alpha = phi.T @ (q.s * alpha)
    return primal, alpha.sum() - 0.5 * w_alpha @ w_alpha


def certificate_is_true(world: World, point: Point, found: Certificate) -> None:
    """Assert that a certificate agrees with the definitions at the certificate's offset."""
    if found.intercept is not None:
        point = replace(point, intercept=found.intercept)
    # P and D of the published machine, whose columns are float64.
    primal, dual = naive_certificate(world, point, True)
    size = abs(primal) + abs(dual)
    assert found.primal_rounding is not None and found.dual_rounding is not None
    room = 1e-12 * size + found.primal_rounding
    np.testing.assert_allclose(found.primal, primal, rtol=0, atol=room)
    room = 1e-12 * size + found.dual_rounding
    for part in point.readings:
        # A small h makes another alpha (as feasible, as good) of the last bits of a score, and D
        # of it is another by as much as w(alpha) is long.
        longest = world.design.column_bound
        largest = longest * np.abs(part.coef).sum() + abs(part.intercept) + 1
        moved = part.weight * world.box.sum() * largest * 2.0**-50 / part.smoothing
        room += moved * (largest + longest * np.nan_to_num(point.apart or 0.0))
    np.testing.assert_allclose(found.dual, dual, rtol=0, atol=room)
    # (The gap can be more accurate than either.)
    room += found.rounding_bound - found.dual_rounding
    np.testing.assert_allclose(found.gap, primal - dual, rtol=0, atol=room)
    np.testing.assert_allclose(found.gap, found.primal - found.dual, rtol=0, atol=1e-15 * size)
    assert found.rows == world.data.n_rows


def solver_law(world: World, point: Point, found: Certificate, tol: float | None) -> None:
    """Assert D <= P* <= P <= P* + gap, up to rounding, and that the gap is as requested."""
    certificate_is_true(world, point, found)
    best, room = world.optimum, world.room(point)
    assert found.dual <= best.primal + room
    assert found.primal >= best.dual - room
    assert found.primal <= best.primal + found.gap + room
    if tol is not None:
        assert found.relative_gap <= tol


def exact_law(world: Any, alpha: np.ndarray, found: Certificate, tol: float | None) -> None:
    """What holds of an exact machine (``exact_world.ExactWorld``): alpha is feasible, D its value.

    And D <= P* = D* <= P, where the certificate is one in float64; the gap asked for.
    """
    best, q = world.optimum, world.oracle
    assert np.all(alpha >= q.lo) and np.all(alpha <= q.hi)
    if q.t is not None:
        assert abs(q.t @ alpha) <= 1e-11 * (q.hi.sum() + 1e-300)
    value, size = reference.dual(q, alpha), abs(best.primal) + 1e-9 * q.hi.sum()
    assert value <= best.dual + 1e-9 * size
    # With float32 entries P and D change alike, by the sum of the entries' errors.
    room = (1e-9 if found.certified_in == "float64" else 1e-5) * size + found.rounding_bound
    assert abs(found.dual - value) <= room
    assert found.dual <= best.primal + room and found.primal >= best.dual - room
    assert best.dual - value <= found.gap + found.rounding_bound + 1e-9 * size
    if tol is not None:
        assert found.relative_gap <= tol


# -- screening rules -----------------------------------------------------------------------------
def decisions_are_safe(world: World, ids: np.ndarray, sides: np.ndarray) -> None:
    """Assert that every row fixed at a bound has alpha* at that bound in every optimum.

    The oracle's alpha is the centre of the optimal set: what can leave its bound has left it.
    """
    best, box = world.optimum, world.box[ids]
    inside = best.alpha[ids] / np.where(box > 0, box, 1)
    room = 1e-5
    wrong_hi = (sides == AT_HI) & (inside < 1 - room) & (box > 0)
    wrong_lo = (sides == AT_LO) & (inside > room) & (box > 0)
    assert not wrong_hi.any(), f"rows {ids[wrong_hi]} fixed at hi, alpha*/hi {inside[wrong_hi]}"
    assert not wrong_lo.any(), f"rows {ids[wrong_lo]} fixed at lo, alpha*/hi {inside[wrong_lo]}"


def intervals_hold(world: World, ids: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> None:
    """Assert that every optimal score lies in its interval, up to the reference's error 1e-9."""
    scores = world.optimum.scores[ids]
    room = 1e-9 * (1 + np.abs(scores))
    assert np.all(lower <= scores + room), "an interval begins above the optimal score"
    assert np.all(upper >= scores - room), "an interval ends below the optimal score"


@dataclass(frozen=True)
class RecordingProgram(NewtonProgram):
    """A Newton program that records the messages and fixed rows of every screening round."""

    def _screen(self, state, message, totals):  # type: ignore[no-untyped-def]
        lower, upper = state.intervals(message)
        before = dict(zip(state.ids.tolist(), state.side.tolist(), strict=True))
        alive = set(state.ids[~state.fixed].tolist())
        answer = super()._screen(state, message, totals)
        fixed = np.array(sorted(alive - set(state.ids[~state.fixed].tolist())), dtype=np.int64)
        sides = np.array([before[i] for i in fixed.tolist()], dtype=np.int8)
        if self.stride == 1:
            RECORD.append(
                {
                    "ids": np.array(list(before), dtype=np.int64),
                    "lower": lower,
                    "upper": upper,
                    "mu": message["mu"],
                    "fixed": fixed,
                    "sides": sides,
                }
            )
        assert len(fixed) == int(answer.sum())
        return answer


@dataclass(frozen=True)
class RecordingBlock(BlockProgram):
    """A block solver's program that records the messages and fixed rows of screening rounds."""

    def _screen(self, state, message):  # type: ignore[no-untyped-def]
        lower, upper = self._intervals(state, message)
        ids, before = state.start + state.alive, len(state.frozen)
        answer = super()._screen(state, message)
        new = state.frozen[before:]
        fixed = np.concatenate([np.empty(0, np.int64), *(e.local for e in new)]) + state.start
        sides = np.concatenate([np.empty(0, np.int8), *(e.side for e in new)])
        RECORD.append(
            {
                "ids": ids,
                "lower": lower,
                "upper": upper,
                "mu": message["mu"],
                "fixed": fixed,
                "sides": sides,
            }
        )
        assert len(fixed) == int(answer.sum())
        return answer


RECORD: list[dict[str, Any]] = []


def screening_law(world: World, record: list[dict[str, Any]]) -> int:
    """Assert that every round's intervals, multiplier and decisions are right; count fixed rows."""
    fixed = 0
    for entry in record:
        intervals_hold(world, entry["ids"], entry["lower"], entry["upper"])
        if world.problem.intercept == "true":
            low, high = entry["mu"]
            assert low <= high
            # mu* may be any point of an interval: one of it must be inside.
            assert low - 1e-9 <= world.optimum.mu <= high + 1e-9 or _as_good(world, low, high)
        decisions_are_safe(world, entry["fixed"], entry["sides"])
        fixed += len(entry["fixed"])
    return fixed


def _as_good(world: World, low: float, high: float) -> bool:
    q, best = world.oracle, world.optimum
    return any(
        reference.primal(q, best.w, mu) <= best.primal * (1 + 1e-12)
        for mu in (low, high)
        if np.isfinite(mu)
    )


# -- kernels -------------------------------------------------------------------------------------
def kernel_law(kernel: Kernel, X: Any) -> None:
    """Assert a kernel's symmetry, diagonal, bounds, psd if claimed, and float32 error bound."""
    side = Operand(X)
    gram = kernel.block(side, side, dtype=np.float64)
    np.testing.assert_allclose(gram, gram.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(kernel.diag(side), np.diag(gram), rtol=1e-9, atol=1e-12)
    largest = float(np.max(side.sqnorms))
    assert np.abs(gram).max() <= kernel.bound(largest, largest) * (1 + 1e-12)
    if kernel.psd:
        assert np.linalg.eigvalsh(gram)[0] >= -1e-9 * np.trace(gram)
    single = kernel.block(side, side)
    error = kernel.entry_error(side.sqnorms, largest, X.shape[1])
    assert np.all(np.abs(single - gram) <= np.asarray(error)[:, None])
