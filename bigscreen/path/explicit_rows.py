"""Rows of explicit features in memory, and the loops over them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bigscreen.numerics.rows import FloatArray, as_rows, njit, row_axpy, row_load, sqnorms
from bigscreen.problems.dual import FREE, Dual
from bigscreen.screening.regions import Ball
from bigscreen.solvers.coordinate import row_scores

SUM_UNIT = 2.0**-53
SUMMED_ROWS = 32
"""Rows summed before their sum is added to the others': rounding grows with it, not with n."""


class RowSum(NamedTuple):
    """``sum coef_i phi_i`` (d,), and a bound on the length of its error."""

    w: FloatArray
    error: float


class ExplicitRows:
    """Explicit features of all rows: phi is a row's columns, and perhaps a 1 behind them.

    Parameters
    ----------
    X : float32 or float64 (n, d), dense or CSR
    constant : bool
        Whether a 1 is appended.

    Raises
    ------
    InputError
        If X is neither dense nor CSR, or not floating point.
    """

    def __init__(self, X: Any, constant: bool) -> None:
        self.X, self.constant = as_rows(X), constant
        self.n_rows = X.shape[0]
        self.width = X.shape[1] + constant
        """Length of phi and w."""
        self.entries = X.size / max(1, self.n_rows)
        """Entries of a row that are stored."""
        self.sqnorms = sqnorms(self.X) + constant
        self.norms: FloatArray = np.sqrt(self.sqnorms) * (1 + (self.width + 4) * SUM_UNIT)
        self.largest = float(np.max(self.norms, initial=0.0))
        # A tile costs as much as d entries: as many rows that this is an eighth of it.
        self._tile = max(SUMMED_ROWS, int(8 * self.width / max(1.0, self.entries)))
        self._every = np.arange(self.n_rows)
        self._position = np.arange(X.shape[1])

    def sum(self, coef: FloatArray) -> RowSum:
        """``sum coef_i phi_i`` over all rows; those whose coefficient is 0 cost nothing."""
        w = np.zeros(self.width)
        size = _sum(self.X, coef, self.norms, self.constant, self._tile, w)
        return RowSum(w, (self._tile + 4) * SUM_UNIT * size)

    def add(self, rows: NDArray[np.int64], coef: FloatArray, w: FloatArray) -> None:
        """``w += sum coef_k phi_k`` over some rows."""
        _add(self.X, rows, coef, self.constant, w)

    def scores(self, w: FloatArray, rows: NDArray[np.int64] | None = None) -> FloatArray:
        """``<w, phi_i>`` of some rows, or of all."""
        rows = self._every if rows is None else rows
        out = np.empty(len(rows))
        row_scores(self.X, w, rows, float(self.constant), out)
        return out

    def dense(
        self, rows: NDArray[np.int64], scale: FloatArray, dtype: DTypeLike = np.float64
    ) -> NDArray[Any]:
        """``scale_k phi_k`` of some rows (rows, d)."""
        out = np.empty((len(rows), self.width), dtype)
        _load(self.X, rows, scale, self._position, self.constant, out)
        return out

    def score_error(self, w: FloatArray) -> float:
        """Bound on the rounding error of any score of this w."""
        return float((self.width + 2) * SUM_UNIT * self.largest * np.linalg.norm(w))


@njit(nogil=True, cache=True)
def _sum(
    X: Any, coef: FloatArray, norms: FloatArray, constant: bool, tile: int, w: FloatArray
) -> float:
    part, lost = np.empty_like(w), np.zeros_like(w)
    size = 0.0
    for start in range(0, len(coef), tile):
        part[:] = 0.0
        for i in range(start, min(start + tile, len(coef))):
            if coef[i] != 0.0:
                size += abs(coef[i]) * norms[i]
                row_axpy(X, i, coef[i], part)
                if constant:
                    part[-1] += coef[i]
        # What an addition rounds off goes into the next one (Kahan 1965).
        for j in range(len(w)):
            term = part[j] - lost[j]
            total = w[j] + term
            lost[j] = (total - w[j]) - term
            w[j] = total
    return size


@njit(nogil=True, cache=True)
def _add(X: Any, rows: NDArray[np.int64], coef: FloatArray, constant: bool, w: FloatArray) -> None:
    for k in range(len(rows)):
        row_axpy(X, rows[k], coef[k], w)
        if constant:
            w[-1] += coef[k]


@njit(nogil=True, cache=True)
def _load(
    X: Any,
    rows: NDArray[np.int64],
    scale: FloatArray,
    position: NDArray[np.int64],
    constant: bool,
    out: NDArray[Any],
) -> None:
    origin = np.zeros(out.shape[1])
    for k in range(len(rows)):
        row_load(X, rows[k], position, origin, out[k])
        if constant:
            out[k, -1] = 1.0
        for j in range(out.shape[1]):
            out[k, j] *= scale[k]


@dataclass
class Goal:
    """Where a solver of undecided rows may stop.

    Parameters
    ----------
    tol : float
        Relative gap, over all rows.
    deadline : float or None
        Value of ``time.monotonic()``.
    dynamic : bool
        Screen with the gap ball.
    sharpness : float
        The part of the gap that an engine may leave to what it does not look at.
    """

    tol: float
    deadline: float | None
    dynamic: bool
    sharpness: float = 1e-6

    def sharpen(self) -> None:
        """A certificate over all rows came out wider than the engine had thought."""
        self.tol *= 0.5
        self.sharpness *= 1e-3

    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline


class UndecidedRows:
    """The rows that one solve still moves; arrays of the part have one entry for each of them.

    Parameters
    ----------
    columns : ExplicitRows
    whole : Dual
        Of all rows.
    alpha : float64 (n,)
        Feasible.
    ids : int64
        Their numbers, ascending.
    total : RowSum
        ``w(alpha)`` of all rows.
    point : float64 (d,)
        A w to start from.
    scores : float64
        Of ``point``, of the undecided rows.
    ray : bool
        Whether a multiple of ``point`` may be a much better start.
    """

    def __init__(
        self,
        columns: ExplicitRows,
        whole: Dual,
        alpha: FloatArray,
        ids: NDArray[np.int64],
        total: RowSum,
        point: FloatArray,
        scores: FloatArray,
        ray: bool,
    ) -> None:
        self.columns, self.whole = columns, whole
        self.w, self.point, self.scores, self.ray = total.w, point, scores, ray
        self.counts = {"steps": 0, "screened": 0}
        self.moves = 0
        """Rows that were moved, one at a time, since ``w`` was summed."""
        self._alpha = np.array(alpha)
        self._error = total.error
        self._tried = np.inf
        self._part(ids)

    def _part(self, ids: NDArray[np.int64]) -> None:
        self.ids, self.dual, self.alpha = ids, self.whole[ids], self._alpha[ids]
        self.norms = self.columns.norms[ids]
        box, tube = self.dual.hi - self.dual.lo, self.dual.tube
        self.room, self._widest = float(np.sum(box)), float(np.max(box, initial=0.0))
        self.tube = np.zeros(len(ids)) if tube is None else tube
        # No sum over rows goes through BLAS, which starts threads for it.
        linear = self.whole.lin * self._alpha
        if self.whole.tube is not None:
            linear -= self.whole.tube * np.abs(self._alpha)
        self._others = float(np.sum(linear)) - float(np.sum(linear[ids]))

    @property
    def full_alpha(self) -> FloatArray:
        """alpha of all rows (n,), a copy."""
        alpha = self._alpha.copy()
        alpha[self.ids] = self.alpha
        return alpha

    @property
    def value(self) -> float:
        """D(alpha)."""
        linear = float(np.sum(self.dual.lin * self.alpha))
        if self.dual.tube is not None:
            linear -= float(np.sum(self.dual.tube * np.abs(self.alpha)))
        return self._others + linear - 0.5 * float(self.w @ self.w)

    def renew(self, total: RowSum) -> None:
        """Go on with w(alpha) as it was summed afresh.

        Rounding of many moves is what a wider gap than the engine had thought may come from.
        """
        self.w, self._error, self.moves = total.w.copy(), total.error, 0
        self.scores = self.columns.scores(self.point, self.ids)

    def screen(self, gap: float, apart: float) -> NDArray[np.bool_] | None:
        """Leave out rows that a gap ball decides, alpha where it belongs.

        Parameters
        ----------
        gap : float
            ``sum slacks`` of alpha at the scores.
        apart : float
            ``||point - w(alpha)||``, so that P(point) - D(alpha) is ``gap + apart^2 / 2``.

        Returns
        -------
        bool array or None
            Which rows stay, for arrays beside these; None: nothing has changed.
        """
        columns = self.columns
        longest = float(np.linalg.norm(self.w)) + self._widest * columns.largest
        # Every move rounds a w that is about as long as it is now.
        drift = self._error + 4 * SUM_UNIT * self.moves * longest
        slack = (4 + self.counts["steps"]) * columns.score_error(self.point)
        slack += columns.largest * drift
        apart += drift
        gap += self.room * slack
        # Around the point, and around the middle of it and w(alpha), half of ``apart`` away.
        radius = min(np.sqrt(2 * gap + apart**2), np.sqrt(gap + apart**2 / 4) + apart / 2)
        if not radius < 0.5 * self._tried:
            return None
        self._tried = radius
        decided = self.dual.decide(*Ball(float(radius)).intervals(self.scores, self.norms, slack))
        stay: NDArray[np.bool_] = decided == FREE
        # Smaller arrays have to pay for their making.
        if np.count_nonzero(stay) > 0.8 * len(stay):
            return None
        settled = self.dual.with_decisions(decided, self.alpha)
        change = self.dual.sign * (settled - self.alpha)
        moved = np.flatnonzero(change)
        columns.add(self.ids[moved], change[moved], self.w)
        self._alpha[self.ids] = settled
        self.counts["screened"] += int(len(stay) - np.count_nonzero(stay))
        self.scores = self.scores[stay]
        self._part(self.ids[stay])
        return stay
