"""Conformal intervals of targets, learnt from the residuals of rows that were held out.

The residual of a row comes from the machine of its fold, which was not fitted on the row. Intervals
of new rows are laid around predictions by the folds' machines. maths.md 5.7 has the formulas and
what they guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bigscreen.model.calibration import Evidence, thin
from bigscreen.numerics.rows import FloatArray

MAX_RESIDUALS = 10_000
"""Keep at most this many residuals of all folds together, at evenly spaced quantiles. With five
folds an interval then holds at most 1 / 2,000 of the rows more than with all residuals."""

BISECTIONS = 45
"""Number of times that the range of an end of a cross-conformal interval is halved: what is left is
3e-14 of the range, and added to the interval."""


@dataclass(eq=False)
class Residuals:
    """Residuals of the rows held out from each fold's machine, from which intervals follow.

    Attributes
    ----------
    tau : float
        The quantile that the machines predict; 0.5 for machines of the centre. A machine of
        another quantile has one-sided intervals: above 0.5 an upper bound, below a lower one.
    rows : int64 (machines,)
        Number of rows that were held out from each fold's machine.
    known : list of float64 (kept,)
        For each machine the residuals of the rows held out from it, ascending and perhaps thinned:
        each stands for the same number of rows, none of which has a larger residual. A residual is
        how far a target lies outside of the prediction: ``abs(y - f)``, or ``y - f`` for an upper
        and ``f - y`` for a lower bound.
    """

    tau: float
    rows: NDArray[np.int64]
    known: list[FloatArray]

    def __post_init__(self) -> None:
        """Convert the arrays; ValueError if shapes disagree or a number is not finite."""
        self.rows = np.asarray(self.rows, np.int64)
        self.known = [np.asarray(known, np.float64) for known in self.known]
        if self.rows.shape != (len(self.known),) or not self.known or not 0 < self.tau < 1:
            raise ValueError("the residuals are not of this model")
        if not all(len(known) and np.isfinite(known).all() for known in self.known):
            raise ValueError("the residuals are missing or not all finite")

    @property
    def machines(self) -> int:
        """Number of machines whose residuals are known: one per fold."""
        return len(self.known)

    @classmethod
    def learn(
        cls,
        predictions: FloatArray,
        targets: FloatArray,
        fold: NDArray[Any],
        weights: FloatArray,
        tau: float,
    ) -> Self:
        """Learn the residuals of each fold's machine.

        Parameters
        ----------
        predictions, targets : float64 (rows,)
            Cross-fitted predictions: a row's is by the machine of the fold that holds it out.
        fold : int (rows,)
            The folds that hold the rows out, from 0.
        weights : float64 (rows,)
            Weights of the rows; rows of weight 0 are ignored. Quantiles of residuals are weighted.
        tau : float
            The quantile that the machines predict; 0.5 for machines of the centre.
        """
        found = targets - predictions
        found = np.abs(found) if tau == 0.5 else found if tau > 0.5 else -found
        folds = int(np.max(fold)) + 1
        places = [np.flatnonzero((fold == f) & (weights > 0)) for f in range(folds)]
        most = max(1, MAX_RESIDUALS // folds)
        known = [thin(found[own], weights[own], most, at=1.0) for own in places]
        return cls(tau, np.array([len(own) for own in places]), known)

    def intervals(self, evidence: Evidence, alpha: float, cross: bool = False) -> FloatArray:
        """Compute conformal intervals of targets, float64 (rows, 2): the lower and upper ends.

        Parameters
        ----------
        evidence : Evidence
        alpha : float
            Fraction of rows whose target may lie outside, in (0, 1).
        cross : bool
            Whether to lay the interval over the machines of all folds (CV+). Otherwise the row's
            draw chooses one fold's machine, whose residuals alone decide (split conformal).

        Returns
        -------
        float64 (rows, 2)
            An end is infinite on the side that a one-sided interval leaves open, and where alpha
            allows less than one row outside (`explain_infinite`).
        """
        held: FloatArray = evidence.held[:, :, 0]
        out: FloatArray = np.empty((len(held), 2))
        out[:, 0], out[:, 1] = -np.inf, np.inf
        if cross:
            outside = int(alpha * (int(self.rows.sum()) + 1))
            if outside and self.tau >= 0.5:
                out[:, 1] = self._upper_end(held, outside)
            if outside and self.tau <= 0.5:
                out[:, 0] = -self._upper_end(-held, outside)
            return out
        chosen = (evidence.draw * self.machines).astype(np.int64)
        radius = np.array([self._radius(f, alpha) for f in range(self.machines)])[chosen]
        centre = held[np.arange(len(held)), chosen]
        if self.tau >= 0.5:
            out[:, 1] = centre + radius
        if self.tau <= 0.5:
            out[:, 0] = centre - radius
        return out

    def _radius(self, f: int, alpha: float) -> float:
        """Return the residual of rank ``ceil((n + 1) (1 - alpha))`` of fold f; inf if above n."""
        n, known = int(self.rows[f]), self.known[f]
        rank = n + 1 - int(alpha * (n + 1))
        if rank > n:
            return np.inf
        return float(known[-(-rank * len(known) // n) - 1])

    def _upper_end(self, held: FloatArray, outside: int) -> FloatArray:
        """Compute the ``outside``-th largest of predictions plus residuals, float64 (rows,).

        A prediction ``held[x, k]`` by machine k is summed with each residual of fold k. The result
        is rounded up.
        """
        low: FloatArray = np.min(held + [known[0] for known in self.known], axis=1)
        high: FloatArray = np.max(held + [known[-1] for known in self.known], axis=1)
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            above = np.zeros(len(held))
            for k, (n, known) in enumerate(zip(self.rows.tolist(), self.known, strict=True)):
                below = np.searchsorted(known, middle - held[:, k], side="right")
                above += (len(known) - below) * (n / len(known))
            few = above < outside
            high, low = np.where(few, middle, high), np.where(few, low, middle)
        return high

    def explain_infinite(self, alpha: float, cross: bool = False) -> str | None:
        """Explain why all or some intervals at this alpha are infinite; None if none is."""
        least = int(self.rows.sum()) if cross else int(self.rows.min())
        if int(alpha * (least + 1)):
            return None
        what = "the folds hold" if cross else "a fold holds"
        advice = "take a larger alpha" + ("" if cross else ", or cross, which joins all folds")
        return (
            f"intervals at alpha {alpha:g} need {math.ceil(1 / alpha) - 1:,} rows held out and "
            f"{what} {least:,}, so that they are infinite; {advice}"
        )

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Convert to a JSON-able record and named arrays, for `from_arrays`."""
        record = {
            "tau": self.tau,
            "rows": self.rows.tolist(),
            "kept": [len(known) for known in self.known],
        }
        return record, {"residuals": np.concatenate(self.known)}

    @classmethod
    def from_arrays(cls, record: Mapping[str, Any], array: Callable[[str], NDArray[Any]]) -> Self:
        """Restore residuals from the record of `to_arrays`; ``array`` reads one by name."""
        ends = np.cumsum(record["kept"])
        values = array("residuals")
        if len(values) != ends[-1]:
            raise ValueError("residuals are missing")
        return cls(float(record["tau"]), record["rows"], np.split(values, ends[:-1]))
