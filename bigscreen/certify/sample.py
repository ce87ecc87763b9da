"""What float32 columns have put into P and D, seen on rows whose columns are computed in float64.

A bound for all rows, ``n C ||beta||_1 eps``, is thousands of times what happens. Of a sample of
rows the very differences are known; their mean and its standard error say what those of all rows
add up to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual, Mu

SAMPLE = 2048
"""Rows looked at."""

SIGMAS = 6.0
"""Standard errors that an estimate is given."""

SLACK = 1.25
"""For the rounding of the float64 columns themselves, which large coefficients show."""

ORDER = 4.0
"""For what two orders of float64 sums differ by, of which neither is exact."""


@dataclass(frozen=True)
class Sample:
    """Sums over rows of a sample.

    Their number, what each moves P and D by (with its square), how far their features in w(alpha)
    are moved, squared and as a vector (r,); what float64 itself has put into P and D; the farthest
    that any score is moved.
    """

    rows: float
    primal: FloatArray
    dual: FloatArray
    square: float
    moved: FloatArray
    order: FloatArray
    far: float

    @classmethod
    def none(cls, rank: int) -> Sample:
        return cls(0.0, np.zeros(2), np.zeros(2), 0.0, np.zeros(rank), np.zeros(2), 0.0)

    def __add__(self, other: Sample) -> Sample:
        names = ("rows", "primal", "dual", "square", "moved", "order")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Sample(**sums, far=max(self.far, other.far))

    def bounds(self, n: int, gap: float) -> tuple[float, float]:
        """How far P and D of n rows can be from those that were summed."""
        if not self.rows:
            return 0.0, 0.0
        rest = 1.0 - self.rows / n
        own, other = (self._total(sums, n, rest) for sums in (self.primal, self.dual))
        own, other = np.array([own, other]) + ORDER * n / self.rows * self.order
        # ||w(alpha)||^2: errors of one row after the other add up as squares do.
        scale = n / self.rows
        alone = scale * self.square
        together = max(0.0, float(self.moved @ self.moved) * scale**2 - scale * rest * alone)
        apart = float(np.sqrt(together + (2.0 if rest else 1.0) * alone))
        # D's differences are those along w, which is so far from w(alpha).
        return own, other + (np.sqrt(2.0 * max(gap, 0.0)) + 0.5 * apart) * apart

    def _total(self, sums: FloatArray, n: int, rest: float) -> float:
        mean = sums[0] / self.rows
        spread = max(sums[1] / self.rows - mean**2, 0.0) * rest / self.rows
        return SLACK * n * float(abs(mean) + SIGMAS * np.sqrt(spread))


def stride(n: int) -> int:
    """Every so manieth row is in the sample."""
    return max(1, n // SAMPLE)


class Looked(NamedTuple):
    """Some rows of the sample: their float64 columns, features of these, and those summed."""

    columns: NDArray[Any]
    own: NDArray[Any]
    features: NDArray[Any]

    @classmethod
    def at(cls, true: Design, used: Design, rows: tuple[Any, Any]) -> Looked:
        """These rows (of ``true``, the same of ``used``).

        ``true``, ``used``: the kernel design, and what was summed: the same, or that of its stored
        features.
        """
        known = used.columns(rows[1]).astype(np.float64)
        features = known if used is not true else true.features_of(known)
        columns = true.columns(rows[0], np.float64)
        return cls(columns, true.features_of(columns), features)


def seen(
    true: Design,
    looked: Looked,
    dual: Dual,
    alpha: FloatArray,
    point: tuple[FloatArray, float],
    mu: Mu,
) -> Sample:
    """The sample's sums of some rows.

    Parameters
    ----------
    true : Design
        The kernel design.
    looked, dual, alpha
        Of these rows.
    point : (w, constant)
    mu : the multiplier of P
    """
    w, constant = point
    columns, own, features = looked
    off = own - features
    scores = features @ w + constant
    moved = off @ w
    primal = dual.losses(scores + moved, mu) - dual.losses(scores, mu)
    signed = dual.sign * alpha
    along = signed * moved
    squares = float(signed**2 @ np.einsum("ij,ij->i", off, off))
    # The machine that is published sums (K T) w as K (T w): where terms cancel that tells.
    order = np.abs(columns @ true.coef(w) - own @ w)
    here = dual.losses(scores + moved, mu)
    ends = (dual.losses(scores + moved + way * order, mu) for way in (-1.0, 1.0))
    lost = np.maximum(*(np.abs(end - here) for end in ends))
    both = np.array([np.sum(lost), np.abs(signed) @ order])
    far = float(np.max(np.abs(moved) + order, initial=0.0))
    sums = _sums(primal), _sums(along)
    return Sample(float(len(alpha)), *sums, squares, signed @ off, both, far)


def _sums(values: FloatArray) -> FloatArray:
    return np.array([values.sum(), values @ values])
