"""Where a solver stands: the point that it hands to ``check``, and readings off scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigscreen.dual import Dual, FloatArray


def relative(gap: float, primal: float) -> float:
    """``gap / |P|``; where P is 0, 1 unless the gap is 0 as well."""
    return gap / abs(primal) if primal != 0 else float(gap > 0)


def read_off(dual: Dual, gradient: FloatArray, h: float) -> FloatArray:
    """The smoothed loss's own alpha (rows,): how steep it is at these gradients."""
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
        The mixture of readings that alpha is (Newton).
    alpha : float64 (n,) or None
        The dual point, where it is held in memory (coordinate descent).
    rounding : float
        Bound on what rounding can have put into ``primal - dual``.
    multiplier : tuple of float
        ``mu``, one a group, where there is a coupling and ``intercept`` does not say it (a nu-SVC).
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

    @property
    def gap(self) -> float:
        """P(w) - D(alpha)."""
        return self.primal - self.dual

    @property
    def relative_gap(self) -> float:
        """``gap / |P|``; 0 where both are 0."""
        return relative(self.gap, self.primal)
