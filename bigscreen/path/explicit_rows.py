"""Explicit features of rows in memory, with the sums and scores that path solvers compute."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bigscreen.certify.certificate import UNIT_ROUNDOFF
from bigscreen.numerics.rows import FloatArray, as_rows, njit, row_axpy, row_load, sqnorms
from bigscreen.problems.dual import FREE, Dual
from bigscreen.screening.regions import Ball
from bigscreen.solvers.coordinate import row_scores


class RowSum(NamedTuple):
    """A sum ``w = sum coef_i phi_i``, float64 (d,), and a bound on the norm of its error."""

    w: FloatArray
    error: float


class ExplicitRows:
    """Explicit features of all rows: phi is a row's columns, followed by a 1 if ``constant``.

    Parameters
    ----------
    X : float32 or float64 (n, d), dense or CSR
    constant : bool
        Whether a 1 is appended to every phi.

    Raises
    ------
    InputError
        If X is neither dense nor CSR, or not floating point.
    """

    def __init__(self, X: Any, constant: bool) -> None:
        """Keep the rows, and compute upper bounds of their norms.

        ``sqnorms``: ``||phi_i||^2``; ``norms``: upper bounds of ``||phi_i||``; ``largest``: the
        largest.
        """
        self.X, self.constant = as_rows(X), constant
        self.n_rows = X.shape[0]
        self.width = X.shape[1] + constant
        """The number of entries of phi and of w."""
        self.entries = X.size / max(1, self.n_rows)
        """The mean number of stored entries per row."""
        self.sqnorms = sqnorms(self.X) + constant
        self.norms: FloatArray = np.sqrt(self.sqnorms) * (1 + (self.width + 4) * UNIT_ROUNDOFF)
        self.largest = float(np.max(self.norms, initial=0.0))
        # Rows are summed in tiles, and the tiles' sums are added up: rounding grows with the rows
        # of a tile, not with n. A tile's addition is at most an eighth of its work.
        self._tile = max(32, int(8 * self.width / max(1.0, self.entries)))
        self._every = np.arange(self.n_rows)
        self._position = np.arange(X.shape[1])

    def sum(self, coef: FloatArray) -> RowSum:
        """Compute ``sum coef_i phi_i`` over all rows; rows with the coefficient 0 cost nothing."""
        w = np.zeros(self.width)
        size = _sum(self.X, coef, self.norms, self.constant, self._tile, w)
        return RowSum(w, (self._tile + 4) * UNIT_ROUNDOFF * size)

    def add(self, rows: NDArray[np.int64], coef: FloatArray, w: FloatArray) -> None:
        """Add ``sum coef_k phi_k`` over the row numbers ``rows`` to ``w`` (width,), in place."""
        _add(self.X, rows, coef, self.constant, w)

    def scores(self, w: FloatArray, rows: NDArray[np.int64] | None = None) -> FloatArray:
        """Compute ``<w, phi_i>``, float64 (rows,), of the row numbers ``rows`` or of all rows."""
        rows = self._every if rows is None else rows
        out = np.empty(len(rows))
        row_scores(self.X, w, rows, float(self.constant), out)
        return out

    def dense(
        self, rows: NDArray[np.int64], scale: FloatArray, dtype: DTypeLike = np.float64
    ) -> NDArray[Any]:
        """Compute the dense matrix (rows, width) with a row ``scale_k phi_k`` for each of ``rows``.

        ``rows``: row numbers; ``scale``: a factor for each; phi ends with the 1 of the constant, if
        any.
        """
        out = np.empty((len(rows), self.width), dtype)
        _load(self.X, rows, scale, self._position, self.constant, out)
        return out

    def score_error(self, w: FloatArray) -> float:
        """Bound the rounding error of any row's score for this w."""
        return float((self.width + 2) * UNIT_ROUNDOFF * self.largest * np.linalg.norm(w))


@njit(nogil=True, cache=True)
def _sum(
    X: Any, coef: FloatArray, norms: FloatArray, constant: bool, tile: int, w: FloatArray
) -> float:
    """Add ``sum coef_i phi_i`` to ``w``, in tiles; return ``sum |coef_i| ||phi_i||`` (maths.md 4).

    ``tile``: rows whose terms are added up before their sum is added to ``w``.
    """
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
        # Compensated summation: carry the rounding error of an addition into the next (Kahan 1965).
        for j in range(len(w)):
            term = part[j] - lost[j]
            total = w[j] + term
            lost[j] = (total - w[j]) - term
            w[j] = total
    return size


@njit(nogil=True, cache=True)
def _add(X: Any, rows: NDArray[np.int64], coef: FloatArray, constant: bool, w: FloatArray) -> None:
    """Add ``sum coef_k phi_k`` over the row numbers ``rows`` to ``w``, in place.

    phi_k is row k of X, followed by a 1 if ``constant``.
    """
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
    """Write ``scale_k phi_k`` of the row numbers ``rows`` to the dense ``out``, (rows, width).

    ``position``: 0, 1, ..., the column of ``out`` for each column of X.
    """
    origin = np.zeros(out.shape[1])
    for k in range(len(rows)):
        row_load(X, rows[k], position, origin, out[k])
        if constant:
            out[k, -1] = 1.0
        for j in range(out.shape[1]):
            out[k, j] *= scale[k]


@dataclass
class Goal:
    """The conditions under which a solver of undecided rows (not fixed by a rule) may stop.

    Parameters
    ----------
    tol : float
        Relative gap over all rows at which to stop.
    deadline : float or None
        Value of ``time.monotonic()`` at which to stop.
    dynamic : bool
        Whether to screen with the gap ball during the solve.
    sharpness : float
        A Newton method ends a round once a step would decrease the primal by less than this part
        of the gap.
    """

    tol: float
    deadline: float | None
    dynamic: bool
    sharpness: float = 1e-6

    def sharpen(self) -> None:
        """Aim at a smaller gap, after the gap over all rows proved wider than the solver's own."""
        self.tol *= 0.5
        self.sharpness *= 1e-3

    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline


class UndecidedRows:
    """The rows that a solve still moves, with their alpha, box and scores.

    Arrays of "undecided rows" below have one entry for each of ``ids``.

    Parameters
    ----------
    columns : ExplicitRows
    whole : Dual
        The dual of all rows.
    alpha : float64 (n,)
        Feasible values of all rows.
    ids : int64 (undecided rows,)
        Numbers of the undecided rows, ascending.
    total : RowSum
        ``w(alpha)``, summed over all rows.
    point : float64 (d,)
        A w to start from.
    scores : float64 (undecided rows,)
        Scores of the undecided rows for ``point``.
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
        """Collect the undecided rows' parts of the dual; ``w`` starts as the vector of ``total``.

        ``_alpha``: the alpha of all rows, of which the decided rows' values are final; ``_error``:
        the error bound of ``total``; ``_tried``: the radius of the last gap ball that was tried.
        """
        self.columns, self.whole = columns, whole
        self.w, self.point, self.scores, self.ray = total.w, point, scores, ray
        self.counts = {"steps": 0, "screened": 0}
        self.moves = 0
        """How many updates of a single row ``w`` has had since it was summed over all rows."""
        self._alpha = np.array(alpha)
        self._error = total.error
        self._tried = np.inf
        self._part(ids)

    def _part(self, ids: NDArray[np.int64]) -> None:
        """Make ``ids`` the undecided rows: take their dual, alpha, norms and boxes.

        ``room``: the sum of their boxes' sizes; ``_others``: the linear terms of D of all other
        rows.
        """
        self.ids, self.dual, self.alpha = ids, self.whole[ids], self._alpha[ids]
        self.norms = self.columns.norms[ids]
        box, tube = self.dual.hi - self.dual.lo, self.dual.tube
        self.room, self._widest = float(np.sum(box)), float(np.max(box, initial=0.0))
        self.tube = np.zeros(len(ids)) if tube is None else tube
        # (np.sum rather than a dot product: BLAS would start threads.)
        linear = self.whole.lin * self._alpha
        if self.whole.tube is not None:
            linear -= self.whole.tube * np.abs(self._alpha)
        self._others = float(np.sum(linear)) - float(np.sum(linear[ids]))

    @property
    def full_alpha(self) -> FloatArray:
        """A copy of the alpha of all rows, float64 (n,)."""
        alpha = self._alpha.copy()
        alpha[self.ids] = self.alpha
        return alpha

    @property
    def value(self) -> float:
        """The dual objective D(alpha)."""
        linear = float(np.sum(self.dual.lin * self.alpha))
        if self.dual.tube is not None:
            linear -= float(np.sum(self.dual.tube * np.abs(self.alpha)))
        return self._others + linear - 0.5 * float(self.w @ self.w)

    def renew(self, total: RowSum) -> None:
        """Replace ``w`` by a new sum over all rows, without the rounding errors of many updates."""
        self.w, self._error, self.moves = total.w.copy(), total.error, 0
        self.scores = self.columns.scores(self.point, self.ids)

    def screen(self, gap: float, apart: float) -> NDArray[np.bool_] | None:
        """Remove the undecided rows whose optimal alpha a gap ball proves, and set that alpha.

        Parameters
        ----------
        gap : float
            The sum of the rows' slacks of alpha at ``scores``.
        apart : float
            ``||point - w(alpha)||``, so that P(point) - D(alpha) is ``gap + apart^2 / 2``.

        Returns
        -------
        bool (undecided rows,) or None
            The rows that remain undecided; None if nothing was removed.
        """
        columns = self.columns
        longest = float(np.linalg.norm(self.w)) + self._widest * columns.largest
        # Every update rounds a w that is about as long as it is now.
        drift = self._error + 4 * UNIT_ROUNDOFF * self.moves * longest
        slack = (4 + self.counts["steps"]) * columns.score_error(self.point)
        slack += columns.largest * drift
        apart += drift
        gap += self.room * slack
        # The ball around the point, or around the midpoint of the point and w(alpha).
        radius = min(np.sqrt(2 * gap + apart**2), np.sqrt(gap + apart**2 / 4) + apart / 2)
        if not radius < 0.5 * self._tried:
            return None
        self._tried = radius
        decided = self.dual.decide(*Ball(float(radius)).intervals(self.scores, self.norms, slack))
        stay: NDArray[np.bool_] = decided == FREE
        # (Copying the arrays costs more than it saves if few rows go.)
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
