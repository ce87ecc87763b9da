"""Where a solver stands: the point that it hands to ``check``, and readings off scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bigscreen.dual import Dual, FloatArray


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
        G, h = dual.lin - dual.sign * scores, self.smoothing
        if dual.tube is None:
            return dual.lo + (dual.hi - dual.lo) * np.clip((G + h) / (2 * h), 0.0, 1.0)
        more = dual.hi * np.clip((G - dual.tube + h) / (2 * h), 0.0, 1.0)
        return more + dual.lo * np.clip((h - G - dual.tube) / (2 * h), 0.0, 1.0)


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
