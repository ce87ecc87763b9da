"""Where a solver stands: the point that it hands to ``check``, and readings off scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigscreen.dual import Dual, FloatArray


def relative(gap: float, primal: float) -> float:
    """``gap / |P|``; where P is 0, 1 unless the gap is 0 as well."""
    return gap / abs(primal) if primal != 0 else float(gap > 0)


def reached(record: Mapping[str, Any]) -> float:
    """What ``tol`` is compared with, of a certificate or a path's point as JSON has it.

    The relative gap, or where no gap means anything the violation of the KKT conditions;
    nan if there is neither; so ask ``reached(record) <= tol``, which no nan meets.
    """
    found = record.get("violation")
    found = record["relative_gap"] if found is None else found
    return np.nan if found is None else float(found)


def met(record: Mapping[str, Any], tol: float) -> bool:
    """Whether a certificate or a path's point, as JSON has it, proves the gap that was asked for
    whatever rounding has done to it; where no gap means anything, whether the violation is met."""
    if record.get("violation") is not None:
        return reached(record) <= tol
    if record["gap"] is None:
        return False
    proved = proves(record["gap"], _rounding(record), record["primal"], tol)
    return bool(reached(record) <= tol and proved)


def settled(record: Mapping[str, Any], tol: float) -> bool:
    """Whether there is nothing left to solve for: see `enough`."""
    if record.get("violation") is not None or record["gap"] is None:
        return met(record, tol)
    return bool(record["gap"] <= enough(_rounding(record), record["primal"], tol))


def _rounding(record: Mapping[str, Any]) -> float:
    return float(record["rounding_bound" if "rounding_bound" in record else "rounding"])


def worst(records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The largest relative gap and KKT violation of points' records, None where one has none."""
    found: dict[str, float | None] = {}
    for name in ("relative_gap", "violation"):
        numbers = [record[name] for record in records if record.get(name) is not None]
        found[name] = max(numbers) if len(numbers) == len(records) else None
    return found


HOPELESS = 0.9
"""Part of a gap that is asked for from which rounding leaves no room to prove it."""


def proves(gap: float, rounding: float, primal: float, tol: float) -> bool:
    """Whether the relative gap is at most tol, whatever rounding has done to it.

    Where P is 0 to the last bit, and so are all its terms, no gap is small beside it: none is left.
    """
    return gap + rounding <= tol * abs(primal) or (primal == 0 and gap <= 0)


def enough(rounding: float, primal: float, tol: float) -> float:
    """The gap that proves tol; where rounding leaves no room for one, tol itself: a smaller gap
    would prove no more."""
    asked = tol * abs(primal)
    return asked - rounding if rounding < HOPELESS * asked else asked


def read_off(dual: Dual, gradient: FloatArray, h: float) -> FloatArray:
    """The smoothed loss's own alpha (rows,): how steep it is at these gradients.

    A squared loss needs no smoothing, and has none.
    """
    if dual.curve is not None:
        return dual.best(gradient)
    if dual.tube is None:
        return dual.lo + (dual.hi - dual.lo) * np.clip((gradient + h) / (2 * h), 0.0, 1.0)
    more = dual.hi * np.clip((gradient - dual.tube + h) / (2 * h), 0.0, 1.0)
    return more + dual.lo * np.clip((h - gradient - dual.tube) / (2 * h), 0.0, 1.0)


@dataclass(frozen=True)
class Reading:
    """A dual point read off the scores of some w: the smoothed loss's own alpha.

    ``alpha = lo + (hi - lo) clip((G + h) / (2 h), 0, 1)`` with G the gradient at the scores
    ``columns . coef + intercept`` and ``multiplier`` (one a group; empty: its part is in the
    scores already, or there is no coupling), ``h = smoothing``; ``weight`` is its part in a
    mixture.
    """

    coef: FloatArray
    intercept: float
    smoothing: float
    weight: float = 1.0
    multiplier: tuple[float, ...] = ()

    def alpha(self, dual: Dual, scores: FloatArray) -> FloatArray:
        """The dual point of rows with these scores (the intercept included)."""
        return read_off(dual, dual.gradient(scores, np.array(self.multiplier)), self.smoothing)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, bit for bit."""
        return {**vars(self), "coef": self.coef.tolist()}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Reading:
        """The reading that ``to_dict`` wrote."""
        made = {"coef": np.array(saved["coef"]), "multiplier": tuple(saved["multiplier"])}
        return cls(**{**saved, **made})


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
        The mixture of readings that alpha is (Newton); of none where alpha is 0.
    alpha : float64 (n,) or None
        The dual point, where it is held in memory (coordinate descent).
    rounding : float
        Bound on what rounding can have put into ``primal - dual``.
    multiplier : tuple of float
        ``mu``, one a group, where there is a coupling and ``intercept`` does not say it (a nu-SVC).
    apart : float or None
        ``||w - w(alpha)||``, the constant's coefficients included, where w is not w(alpha) and it
        is known. It may be off by ``sqrt(rounding)``: what rounding has moved w(alpha) by, whose
        square is in D.
    violation : float
        How far the KKT conditions are from holding (``dual_violation``), from solvers that are
        stopped by it; nan from others.
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
    multiplier: tuple[float, ...] = ()
    violation: float = np.nan
    apart: float | None = None

    @property
    def gap(self) -> float:
        """P(w) - D(alpha)."""
        return self.primal - self.dual

    @property
    def relative_gap(self) -> float:
        """``gap / |P|``; 0 where both are 0."""
        return relative(self.gap, self.primal)
