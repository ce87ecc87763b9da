"""The L1-regularised SVM, a linear program, by primal-dual steps with restarts (maths.md 5.11).

    minimise  ||w||_1 + sum_i C_i max(0, 1 - y_i (<w, x_i> + b))

Its dual is ``max sum a_i`` over ``0 <= a_i <= C_i``, ``|sum a_i y_i x_ij| <= 1`` for every column j
and, with an offset, ``sum a_i y_i = 0``. Any a in the box becomes such a point by scaling it down,
which is how every point gets its certificate.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.errors import InputError
from bigscreen.numerics.rows import FloatArray

UNIT = 2.0**-53
CHECKED = 20
"""Steps between looks at the gap."""
FALLEN = 0.6
"""Part of the gap at the last restart at which the next one is due."""
LONG = 0.2
"""Part of all steps after which a run without a restart has one."""
BLOCK = 1 << 22
"""Numbers of rows that are float64 at once in the closing pass."""


@dataclass(frozen=True)
class L1Point:
    """Where a solve ended.

    Attributes
    ----------
    coef : float64 (d,)
    intercept : float
    alpha : float64 (n,)
        The dual point, feasible.
    primal, dual : float
        P and D of them, summed in float64 over all rows as they were given.
    rounding : float
        How far rounding can have moved ``primal``, ``dual`` or their difference, each by itself.
    steps : int
    """

    coef: FloatArray
    intercept: float
    alpha: FloatArray
    primal: float
    dual: float
    rounding: float
    steps: int

    @property
    def gap(self) -> float:
        """``primal - dual``, not below 0."""
        return max(0.0, self.primal - self.dual)

    @property
    def relative_gap(self) -> float:
        """The gap and what rounding can have hidden of it, over P; 0 where P is 0."""
        return (self.gap + self.rounding) / self.primal if self.primal > 0 else 0.0


@dataclass
class _Pair:
    """w, b and a; ``scores = X w + b`` and ``sums = X' (y a)``, which come along for nothing."""

    w: FloatArray
    b: float
    a: FloatArray
    scores: FloatArray
    sums: FloatArray

    def plus(self, other: _Pair, part: float) -> _Pair:
        """Some way, 0 to 1, from this one to another."""
        mixed = (
            (1 - part) * getattr(self, name) + part * getattr(other, name)
            for name in ("w", "b", "a", "scores", "sums")
        )
        return _Pair(*mixed)


class _Program:
    """The rows of a problem: P, D and steps."""

    def __init__(self, X: Any, sign: FloatArray, box: FloatArray, offset: bool) -> None:
        self.X, self.sign, self.box, self.offset = X, sign, box, offset
        size = abs(X)
        self.columns = np.asarray(size.sum(axis=0, dtype=np.float64)).reshape(-1)
        self.rows = np.asarray(size.sum(axis=1, dtype=np.float64)).reshape(-1) + offset
        self.largest = float(size.max()) if size.size else 0.0

    def start(self) -> _Pair:
        n, d = self.X.shape
        return _Pair(np.zeros(d), 0.0, np.zeros(n), np.zeros(n), np.zeros(d))

    def step(self, at: _Pair, weight: float) -> _Pair:
        """One step of Chambolle and Pock (2011), each variable by its own size (Pock 2011)."""
        # (A row or a column of zeros moves nothing.)
        tau = 1.0 / (weight * np.maximum(self.columns, 1e-300))
        moved = at.w + np.where(self.columns > 0, tau * at.sums, 0.0)
        w = np.sign(moved) * np.maximum(np.abs(moved) - tau, 0.0)
        b = at.b
        if self.offset:
            b += float(self.sign @ at.a) / (weight * len(at.a))
        scores = self.X @ w.astype(self.X.dtype) + b
        sigma = weight / np.maximum(self.rows, 1e-300)
        a = at.a + sigma * (1.0 - self.sign * (2.0 * scores - at.scores))
        a = np.clip(np.where(self.rows > 0, a, self.box), 0.0, self.box)
        sums = self.X.T @ (self.sign * a).astype(self.X.dtype)
        return _Pair(w, b, a, np.asarray(scores, np.float64), np.asarray(sums, np.float64))

    def distance(self, one: _Pair, other: _Pair) -> tuple[float, float]:
        """How far w and a are apart, as steps measure them."""
        w = float(np.sqrt(self.columns @ (one.w - other.w) ** 2))
        return w, float(np.sqrt(self.rows @ (one.a - other.a) ** 2))

    def primal(self, at: _Pair) -> float:
        loss = np.maximum(0.0, 1.0 - self.sign * at.scores)
        return float(np.abs(at.w).sum() + self.box @ loss)

    def balanced(self, a: FloatArray) -> FloatArray:
        """The same with equal sums for both signs, the larger one scaled down."""
        if not self.offset:
            return a
        up = self.sign > 0
        high, low = float(a[up].sum()), float(a[~up].sum())
        least = min(high, low)
        if least <= 0:
            return np.zeros_like(a)
        return a * np.where(up, least / high, least / low)

    def dual(self, at: _Pair) -> float:
        """D of about the point that `closed` makes of a."""
        if not self.offset:
            return float(at.a.sum()) / max(1.0, float(np.max(np.abs(at.sums), initial=0.0)))
        a = self.balanced(at.a)
        sums = self.X.T @ (self.sign * a).astype(self.X.dtype)
        return float(a.sum()) / max(1.0, float(np.max(np.abs(sums), initial=0.0)))

    def closed(self, w: FloatArray, b: float, a: FloatArray, steps: int) -> L1Point:
        """The certificate: everything again in float64, from the rows as they were given."""
        X, sign, box, (n, d) = self.X, self.sign, self.box, self.X.shape
        a = self.balanced(np.clip(a, 0.0, box))
        scores, sums, size = np.empty(n), np.zeros(d), np.zeros(d)
        tall = max(1, BLOCK // max(1, d))
        for k in range(0, n, tall):
            own = slice(k, k + tall)
            part = X[own].astype(np.float64)
            scores[own] = part @ w
            sums += part.T @ (sign[own] * a[own])
            size += abs(part).T @ a[own]
        # A sum of k products is off by no more than k + 2 units of the sum of their sizes.
        longest = self.largest * float(np.abs(w).sum())
        off = UNIT * ((d + 2) * longest + 4 * (1.0 + abs(b) + longest))
        reach = np.abs(sums) + UNIT * (n + 4) * size
        a = a / (max(1.0, float(np.max(reach, initial=0.0))) * (1 + 8 * UNIT))
        loss = np.maximum(0.0, 1.0 - sign * (scores + b))
        primal, dual = float(np.abs(w).sum() + box @ loss), float(a.sum())
        rounding = off * float(box.sum()) + UNIT * (n + d + 8) * (primal + dual)
        if self.offset:
            # What is left of sum y a costs as much as the best |b|, which is no more than this.
            left = abs(float(sign @ a)) + UNIT * (n + 4) * dual
            rounding += left * (1.0 + primal * self.largest)
        return L1Point(w.copy(), b, a, primal, dual, rounding, steps)


def l1_svm(
    X: Any,
    sign: NDArray[Any],
    box: FloatArray,
    offset: bool = True,
    tol: float = 1e-3,
    max_iter: int = 50_000,
    deadline: float | None = None,
) -> L1Point:
    """Solve the L1-regularised SVM of some rows in memory, to a proved relative gap.

    Parameters
    ----------
    X : float32 or float64 (n, d), dense or CSR
        Steps are taken in its precision, the certificate in float64.
    sign : (n,)
        -1 or 1.
    box : float64 (n,)
        ``C_i``, C times the weight of a row.
    offset : bool
        Whether there is a b, which is not penalised.
    tol : float
        Relative gap.
    max_iter : int
        Steps, of two products with X each, after which the best point is returned.
    deadline : float or None
        Value of ``time.monotonic()`` after which it is.

    Returns
    -------
    L1Point

    Raises
    ------
    InputError
        If X is neither dense nor CSR, or holds what is not finite.
    """
    if sparse.issparse(X):
        X = sparse.csr_array(X)
    finite = np.isfinite(X.data if sparse.issparse(X) else X).all()
    if X.dtype not in (np.float32, np.float64) or not finite:
        raise InputError("rows of an L1-regularised SVM must be finite float32 or float64 numbers")
    program = _Program(X, np.asarray(sign, np.float64), box, offset)
    now = best = anchor = mean = program.start()
    primal, lowest = program.primal(best), best
    dual, highest = 0.0, best
    weight = 0.1 * float(np.mean(box)) * float(np.mean(program.rows)) or 1.0
    steps = since = 0
    target, gap_there = tol, np.inf
    closed = program.closed(lowest.w, lowest.b, highest.a, 0)
    while primal > 0:
        for _ in range(CHECKED):
            now = program.step(now, weight)
            since += 1
            mean = now if since == 1 else mean.plus(now, 1.0 / since)
        steps += CHECKED
        gaps = []
        for one in (now, mean):
            P, D = program.primal(one), program.dual(one)
            gaps.append(P - D)
            if P < primal:
                primal, lowest = P, one
            if D > dual:
                dual, highest = D, one
        late = steps >= max_iter or (deadline is not None and time.monotonic() > deadline)
        if primal - dual <= target * primal or late:
            closed = program.closed(lowest.w, lowest.b, highest.a, steps)
            if closed.relative_gap <= tol or late or target < UNIT:
                return closed
            target *= 0.5
        better, gap = (now, gaps[0]) if gaps[0] <= gaps[1] else (mean, gaps[1])
        if gap <= FALLEN * gap_there or since >= max(LONG * steps, 5 * CHECKED):
            w, a = program.distance(better, anchor)
            if w > 0 and a > 0:
                weight = float(np.sqrt(weight * a / w))
            now = anchor = mean = better
            since, gap_there = 0, gap
    return closed
