"""One record for every support vector machine, its objectives, gap and multipliers.

Every problem is written as (MATH: ``s`` sign, ``p`` lin)

    min over alpha   1/2 || sum_i s_i alpha_i phi_i ||^2  -  p . alpha
    subject to       lo_i <= alpha_i <= hi_i   and, with a coupling,  sum_i t_i alpha_i = total

with ``w(alpha) = sum_i s_i alpha_i phi_i`` and the reduced gradient
``G_i = p_i - s_i u_i - t_i mu``, ``u_i = <w, phi_i>`` the score, ``mu`` the coupling's multiplier.
The primal is ``P(w, mu) = 1/2 ||w||^2 + mu total + sum_i max(hi_i G_i, lo_i G_i)``.

Problems know no screening rule and no solver: a rule hands in intervals of scores, ``decide``
turns them into variables that are certainly at a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError

FloatArray = NDArray[np.float64]

AT_LO, AT_HI, FREE = np.int8(0), np.int8(1), np.int8(2)


@dataclass(frozen=True)
class Dual:
    """The dual problem of a set of rows: one variable a row, all arrays of shape (rows,).

    Parameters
    ----------
    sign, lin, lo, hi : float64 arrays
        ``s``, ``p`` and the box; may be zero-stride views where they are constant.
    coupling : float64 array or None
        ``t`` of the equality constraint ``sum t_i alpha_i = total``; None where there is none.
    total : float
        Right-hand side of the coupling.
    """

    sign: FloatArray
    lin: FloatArray
    lo: FloatArray
    hi: FloatArray
    coupling: FloatArray | None = None
    total: float = 0.0

    def __len__(self) -> int:
        return len(self.sign)

    def __getitem__(self, rows: Any) -> Dual:
        """The part of these rows (a slice or an index array)."""
        coupling = None if self.coupling is None else self.coupling[rows]
        return Dual(
            self.sign[rows], self.lin[rows], self.lo[rows], self.hi[rows], coupling, self.total
        )

    def gradient(self, scores: FloatArray, mu: float = 0.0) -> FloatArray:
        """Reduced gradient ``G = p - s u - t mu`` (rows,)."""
        gradient = self.lin - self.sign * scores
        if self.coupling is not None and mu != 0.0:
            gradient -= self.coupling * mu
        return gradient

    def losses(self, scores: FloatArray, mu: float = 0.0) -> FloatArray:
        """``max(hi G, lo G)`` for every row: the primal's loss (the weighted hinge for a C-SVC)."""
        gradient = self.gradient(scores, mu)
        return np.maximum(self.hi * gradient, self.lo * gradient)

    def primal(self, scores: FloatArray, w_sq: float, mu: float = 0.0) -> float:
        """P(w, mu) for the scores of w and ``w_sq = ||w||^2``."""
        return 0.5 * w_sq + mu * self.total + float(np.sum(self.losses(scores, mu)))

    def value(self, alpha: FloatArray, w_sq: float) -> float:
        """D(alpha) = p . alpha - 1/2 ||w(alpha)||^2."""
        return float(np.dot(self.lin, alpha)) - 0.5 * w_sq

    def frank_wolfe_gap(self, alpha: FloatArray, scores: FloatArray, mu: float = 0.0) -> float:
        """``sum G+ (hi - alpha) + G- (alpha - lo)`` for the scores of w(alpha).

        Equals ``P(w(alpha), mu) - D(alpha)`` for every feasible alpha.
        """
        gradient = self.gradient(scores, mu)
        up = np.maximum(gradient, 0.0) * (self.hi - alpha)
        down = np.maximum(-gradient, 0.0) * (alpha - self.lo)
        return float(np.sum(up + down))

    def breakpoints(self, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Breakpoints ``v = (p - s u) / t`` in mu and their weights ``|t| (hi - lo)``."""
        if self.coupling is None:
            raise ValueError("a problem without coupling has no multiplier")
        return (self.lin - self.sign * scores) / self.coupling, np.abs(self.coupling) * (
            self.hi - self.lo
        )

    @property
    def threshold(self) -> float:
        """Cumulative breakpoint weight at which the multiplier lies (MATH sec. 3)."""
        if self.coupling is None:
            raise ValueError("a problem without coupling has no multiplier")
        most = np.maximum(self.coupling * self.hi, self.coupling * self.lo)
        return float(np.sum(most)) - self.total

    def multiplier(self, scores: FloatArray) -> float:
        """The mu that minimises P(w, mu): a weighted order statistic of the breakpoints."""
        values, weights = self.breakpoints(scores)
        order = np.argsort(values, kind="stable")
        cumulative = np.cumsum(weights[order])
        k = int(np.searchsorted(cumulative, self.threshold * (1 - 1e-15)))
        return float(values[order[min(k, len(order) - 1)]])

    def multiplier_interval(self, lower: FloatArray, upper: FloatArray) -> tuple[float, float]:
        """An interval that holds mu* when every optimal score lies in ``[lower, upper]``.

        The breakpoint is monotone in the score, so its own interval follows from the score's, and
        a weighted order statistic is monotone in its values. The two statistics are taken on
        either side of the threshold so that rounding of the weights cannot exclude mu*.
        """
        one, weights = self.breakpoints(lower)
        other, _ = self.breakpoints(upper)
        slack = 1e-9 * float(np.sum(weights))
        low = _order_statistic(np.minimum(one, other), weights, self.threshold - slack)
        high = _order_statistic(np.maximum(one, other), weights, self.threshold + slack)
        return low, high

    def decide(
        self,
        lower: FloatArray,
        upper: FloatArray,
        mu: tuple[float, float] = (0.0, 0.0),
    ) -> NDArray[np.int8]:
        """Which variables are certainly at a bound when the optimal scores lie in an interval.

        Returns
        -------
        int8 array (rows,): ``AT_HI`` where G* > 0 for certain, ``AT_LO`` where G* < 0 for certain,
        else ``FREE``.
        """
        positive = self.sign > 0
        g_low = self.lin - np.where(positive, self.sign * upper, self.sign * lower)
        g_high = self.lin - np.where(positive, self.sign * lower, self.sign * upper)
        if self.coupling is not None:
            one, other = self.coupling * mu[0], self.coupling * mu[1]
            g_low = g_low - np.maximum(one, other)
            g_high = g_high - np.minimum(one, other)
        decided = np.full(len(self), FREE)
        decided[g_low > 0] = AT_HI
        decided[g_high < 0] = AT_LO
        return decided


def _order_statistic(values: FloatArray, weights: FloatArray, threshold: float) -> float:
    """Smallest value whose cumulative weight reaches the threshold (-inf, +inf past the ends)."""
    if threshold <= 0:
        return -np.inf
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    k = int(np.searchsorted(cumulative, threshold))
    return float(values[order[k]]) if k < len(order) else np.inf


@dataclass(frozen=True)
class CSvc:
    """The C-SVC: a recipe that makes the ``Dual`` of any part of the rows.

    Parameters
    ----------
    C : float
        Penalty of a margin violation, > 0 (Snacks' lambda is ``C = 1 / (2 n lambda)``).
    positive : int
        The label code of class +1; every other code is class -1.
    code_weight : tuple of float
        One weight per label code (class weights); empty: all 1.
    intercept : {"none", "constant", "true"}
        No offset; a constant 1 appended to phi (penalised); or LIBSVM's unpenalised offset, which
        is the coupling ``sum y_i alpha_i = 0``.
    """

    C: float
    positive: int
    code_weight: tuple[float, ...] = ()
    intercept: str = "none"

    def __post_init__(self) -> None:
        if not (np.isfinite(self.C) and self.C > 0):
            raise InputError(f"C must be a positive finite number, got {self.C}")
        if self.intercept not in ("none", "constant", "true"):
            raise InputError(f"intercept must be none, constant or true, got {self.intercept!r}")

    def dual(self, codes: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """The dual of rows with these label codes and sample weights.

        ``scale`` multiplies the box: a subsample of one row in k is solved with scale k.
        """
        n = len(codes)
        sign = np.where(codes == self.positive, 1.0, -1.0)
        hi = self.C * scale * weights
        if self.code_weight:
            hi = hi * np.asarray(self.code_weight)[codes]
        coupling = sign if self.intercept == "true" else None
        return Dual(sign, _constant(1.0, n), _constant(0.0, n), hi, coupling)

    def feasible(self, positive: float, negative: float) -> FloatArray:
        """Factors in [0, 1] for alpha of either sign that make ``sum y alpha = 0`` (true offset).

        ``positive``, ``negative``: the sums of alpha over rows of either sign. Scaling one side
        down stays inside the box, so a dual point read off the scores needs no second pass.
        """
        if self.intercept != "true":
            return np.ones(2)
        if positive <= 0 or negative <= 0:
            return np.zeros(2)
        return np.array([min(1.0, negative / positive), min(1.0, positive / negative)])


def _constant(value: float, n: int) -> FloatArray:
    """A read-only array of one value that takes no memory."""
    return np.broadcast_to(np.float64(value), (n,))


@dataclass(frozen=True)
class Reading:
    """A dual point read off the scores of some w: the smoothed hinge's own alpha.

    ``alpha = lo + (hi - lo) clip((G + h) / (2 h), 0, 1)`` with G the gradient at the scores
    ``columns . coef + intercept`` and ``h = smoothing``; ``weight`` is its part in a mixture.
    """

    coef: FloatArray
    intercept: float
    smoothing: float
    weight: float = 1.0

    def alpha(self, dual: Dual, scores: FloatArray) -> FloatArray:
        """The dual point of rows with these scores (the offset included)."""
        h = self.smoothing
        inside = np.clip((dual.lin - dual.sign * scores + h) / (2 * h), 0.0, 1.0)
        return dual.lo + (dual.hi - dual.lo) * inside


@dataclass(frozen=True)
class Point:
    """Where a solver stands: everything a certificate or a checkpoint needs.

    Parameters
    ----------
    coef : float64 (m,)
        Coefficients of the design's columns: the score of a row is ``columns . coef + intercept``.
    w : float64 (r,)
        The same in the space of features (``coef = T w``).
    intercept : float
        The offset (0 without one).
    primal, dual : float
        P(w) and D(alpha), summed in float64.
    paired : bool
        Whether ``w = w(alpha)`` for the alpha behind ``dual``.
    readings : tuple of Reading
        The mixture of readings that alpha is (Newton).
    alpha : float64 (n,) or None
        The dual point, where it is held in memory (coordinate descent).
    rounding : float
        Bound on what rounding can have put into ``primal - dual``.
    scores : callable or None
        Scores of all rows (n,) without the offset, as the solver has kept them up to date, or
        None once it has moved on.
    """

    coef: FloatArray
    w: FloatArray
    intercept: float
    primal: float
    dual: float
    paired: bool
    readings: tuple[Reading, ...] = ()
    alpha: FloatArray | None = field(default=None, repr=False)
    rounding: float = 0.0
    scores: Callable[[], FloatArray | None] | None = field(default=None, repr=False)

    @property
    def gap(self) -> float:
        """P(w) - D(alpha)."""
        return self.primal - self.dual

    @property
    def relative_gap(self) -> float:
        """``gap / P``; 0 where both are 0."""
        return self.gap / abs(self.primal) if self.primal != 0 else float(self.gap > 0)
