"""What the engines of a stage of explicit features are handed: where they stand, and the goal."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigscreen.dual import FREE, Dual, FloatArray
from bigscreen.path_columns_rows import EPS, Columns
from bigscreen.screening.regions import Ball


@dataclass
class Goal:
    """How far to go.

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


class Task:
    """The undecided rows of one solve; arrays of the part have one entry for each of them.

    Parameters
    ----------
    columns : Columns
    whole : Dual
        Of all rows.
    alpha : float64 (n,)
        Feasible.
    rows : int64
        Undecided rows, ascending.
    w : float64 (d,)
        ``w(alpha)`` of all rows.
    error : float
        Bound on the length of the error of ``w``.
    point : float64 (d,)
        A w to start from.
    scores : float64
        Of ``point``, of the undecided rows.
    ray : bool
        Whether a multiple of ``point`` may be a much better start.
    """

    def __init__(
        self,
        columns: Columns,
        whole: Dual,
        alpha: FloatArray,
        rows: NDArray[np.int64],
        w: FloatArray,
        error: float,
        point: FloatArray,
        scores: FloatArray,
        ray: bool,
    ) -> None:
        self.columns, self.whole = columns, whole
        self.w, self.point, self.scores, self.ray = w, point, scores, ray
        self.counts = {"steps": 0, "screened": 0}
        self.moves = 0
        """Rows that were moved, one at a time, since ``w`` was summed."""
        self._alpha = np.array(alpha)
        self._error = error
        self._tried = np.inf
        self._part(rows)

    def _part(self, rows: NDArray[np.int64]) -> None:
        self.rows, self.dual, self.alpha = rows, self.whole[rows], self._alpha[rows]
        self.norms = self.columns.norms[rows]
        box, tube = self.dual.hi - self.dual.lo, self.dual.tube
        self.room, self._widest = float(np.sum(box)), float(np.max(box, initial=0.0))
        self.tube = np.zeros(len(rows)) if tube is None else tube
        # No sum over rows goes through BLAS, which starts threads for it.
        linear = self.whole.lin * self._alpha
        if self.whole.tube is not None:
            linear -= self.whole.tube * np.abs(self._alpha)
        self._others = float(np.sum(linear)) - float(np.sum(linear[rows]))

    @property
    def full_alpha(self) -> FloatArray:
        """alpha of all rows (n,), a copy."""
        alpha = self._alpha.copy()
        alpha[self.rows] = self.alpha
        return alpha

    @property
    def value(self) -> float:
        """D(alpha)."""
        linear = float(np.sum(self.dual.lin * self.alpha))
        if self.dual.tube is not None:
            linear -= float(np.sum(self.dual.tube * np.abs(self.alpha)))
        return self._others + linear - 0.5 * float(self.w @ self.w)

    def renew(self, w: FloatArray, error: float) -> None:
        """Go on with w(alpha) as it was summed afresh: rounding of many moves is what a wider gap
        than the engine had thought may come from."""
        self.w, self._error, self.moves = w.copy(), error, 0
        self.scores = self.columns.scores(self.point, self.rows)

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
            Which rows stay, for arrays beside those of the task; None: nothing has changed.
        """
        columns = self.columns
        longest = float(np.linalg.norm(self.w)) + self._widest * columns.largest
        # Every move rounds a w that is about as long as it is now.
        drift = self._error + 4 * EPS * self.moves * longest
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
        stay = decided == FREE
        # Smaller arrays have to pay for their making.
        if np.count_nonzero(stay) > 0.8 * len(stay):
            return None
        settled = self.dual.settled(decided, self.alpha)
        change = self.dual.sign * (settled - self.alpha)
        moved = np.flatnonzero(change)
        columns.add(self.rows[moved], change[moved], self.w)
        self._alpha[self.rows] = settled
        self.counts["screened"] += int(len(stay) - np.count_nonzero(stay))
        self.scores = self.scores[stay]
        self._part(self.rows[stay])
        return stay
