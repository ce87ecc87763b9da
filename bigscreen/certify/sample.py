"""What float32 columns have put into P and D, seen on rows whose columns are computed in float64.

A bound for all rows, ``n C ||beta||_1 eps``, is thousands of times what happens. Of a sample of
rows the very differences are known; their mean and its standard error say what those of all rows
add up to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual, Mu


@dataclass(frozen=True)
class SampleTuning:
    """How float32 columns are compared with float64 ones.

    Parameters
    ----------
    rows : int
        Compare them on this many rows of a data set. (.3 of 18 s of a fit to 4,500,000 rows of
        SUSY's shape: pipelines/bench/README.md, "Full sizes".)
    sigmas : float
        Bound an estimate from the sample by its mean and this many standard errors.
    slack : float
        Widen estimates by this factor for the rounding of the float64 columns themselves.
    order : float
        Bound the error of a float64 sum by this multiple of what two orders of it differ by.
    """

    rows: int = 2048
    sigmas: float = 6.0
    slack: float = 1.25
    order: float = 4.0


SAMPLE = SampleTuning()


@dataclass(frozen=True)
class Sample:
    """Differences between float32 and float64 values of P, D and the features, on sampled rows.

    Parameters
    ----------
    rows : float
        Their number.
    primal : float64 (2,)
        What each moves P by: the sum, and that of the squares.
    order : float64 (2,)
        What float64 itself has put into P and D.
    far : float
        The farthest that any score is moved.
    parts : tuple of (float32 (rows, r), float64 (rows,))
        How far the features of some rows are moved, and ``s alpha``: 0 where nothing is.
    """

    rows: float
    primal: FloatArray
    order: FloatArray
    far: float
    parts: tuple[tuple[NDArray[np.float32], FloatArray], ...] = ()

    @classmethod
    def none(cls) -> Sample:
        return cls(0.0, np.zeros(2), np.zeros(2), 0.0)

    def __add__(self, other: Sample) -> Sample:
        return Sample(
            self.rows + other.rows,
            self.primal + other.primal,
            self.order + other.order,
            max(self.far, other.far),
            self.parts + other.parts,
        )

    def bounds(self, n: int, w_alpha: FloatArray, scaled: float) -> tuple[float, float]:
        """How far P and D of n rows can be from those that were summed.

        With ``Delta`` what w(alpha) is moved by, D is moved by
        ``-<w(alpha), Delta> - 1/2 ||Delta||^2``. ``scaled``: the part by which an alpha can differ
        from the one that was seen.
        """
        if not self.rows:
            return 0.0, 0.0
        own, other = SAMPLE.order * n / self.rows * self.order
        return own + self._total(self.primal, n), other + self._across(n, w_alpha, scaled)

    def of_gap(self, n: int, apart: FloatArray, scaled: float) -> float:
        """How far the gap can be from what was summed where rows off their side are exact.

        A row at its side moves P by ``-alpha s <w, d>``, d what its feature is moved by, and D by
        ``-alpha s <w(alpha), d>``: together by what lies between w and w(alpha), which ``apart``
        (r,) is.
        """
        if not self.rows:
            return 0.0
        own = SAMPLE.order * n / self.rows * float(self.order.sum())
        return self._across(n, apart, scaled) + own

    def _across(self, n: int, way: FloatArray, scaled: float) -> float:
        """At least ``|<way, Delta>| + 1/2 ||Delta||^2``.

        Delta is what the sample makes of it and an error e, of which ``<way, e>`` and
        ``<Delta, e>`` are known by their standard errors. ``||e||`` is about the root of e's mean
        square, and more by a standard error in the one direction that has most of it: no more than
        the Frobenius norm of e's moment (a Gaussian's norm is that close to its mean: Cirelson
        et al. 1976).
        """
        scale, (moved, most) = n / self.rows, self._moved
        seen = scale * moved.sum(axis=0)
        along, across = _sums(moved @ way), _sums(moved @ seen)
        noise = scale * float(np.sqrt(1.0 - self.rows / n))
        error = noise * (float(np.linalg.norm(moved)) + SAMPLE.sigmas * most)
        doubt = SAMPLE.sigmas * n * self._deviation(across, n)
        longest = float(np.sqrt(float(seen @ seen) + 2.0 * doubt + error**2))
        more = scaled * scale * float(np.sum(np.linalg.norm(moved, axis=1)))
        length = SAMPLE.slack * (longest + more)
        return self._total(along, n) + float(np.linalg.norm(way)) * more + 0.5 * length**2

    @cached_property
    def _moved(self) -> tuple[FloatArray, float]:
        """What each row moves w(alpha) by (rows, r), and at least their largest singular value."""
        moved = np.concatenate([signed[:, None] * off for off, signed in self.parts])
        unit = float(np.max(np.abs(moved), initial=0.0)) or 1.0  # for float32 products to have bits
        small = (moved / unit).astype(np.float32)
        gram = small @ small.T if len(small) < small.shape[1] else small.T @ small
        return moved, unit * float(np.sqrt(np.linalg.norm(gram)))

    def _total(self, sums: FloatArray, n: int) -> float:
        mean = abs(sums[0]) / self.rows
        return SAMPLE.slack * n * float(mean + SAMPLE.sigmas * self._deviation(sums, n))

    def _deviation(self, sums: FloatArray, n: int) -> float:
        """The standard error of the mean of n rows, of numbers with this sum and sum of squares."""
        spread = max(sums[1] / self.rows - (sums[0] / self.rows) ** 2, 0.0)
        return float(np.sqrt(spread * (1.0 - self.rows / n) / self.rows))


def stride(n: int) -> int:
    """The distance between two sampled rows of n."""
    return max(1, n // SAMPLE.rows)


class Looked(NamedTuple):
    """Some rows looked at: their float64 columns, features of these, and those summed.

    ``drawn``: whether they are in the sample (others tell only how far a score is moved);
    ``moved``: how far the features of those that are are moved.
    """

    columns: NDArray[Any]
    own: NDArray[Any]
    features: NDArray[Any]
    drawn: NDArray[np.bool_]
    moved: NDArray[np.float32]

    @classmethod
    def at(
        cls, true: Design, used: Design, rows: Any, summed: NDArray[Any], drawn: NDArray[np.bool_]
    ) -> Looked:
        """These rows of ``true``, and the columns of ``used`` that were summed for them.

        ``true``, ``used``: the kernel design, and what was summed: the same, or that of its stored
        features.
        """
        known = summed.astype(np.float64)
        columns = true.columns(rows, np.float64)
        own = true.features_of(columns)
        if used is not true:
            return cls(columns, own, known, drawn, (own - known)[drawn].astype(np.float32))
        # (Of what is so small float32 digits are enough.)
        moved = true.features_of((columns - known).astype(np.float32))
        return cls(columns, own, own - moved, drawn, moved[drawn])


def seen(
    looked: Looked,
    dual: Dual,
    alpha: FloatArray,
    point: tuple[FloatArray, FloatArray, float],
    mu: Mu,
    exact: NDArray[np.bool_],
) -> Sample:
    """The sample's sums of some rows.

    Parameters
    ----------
    looked, dual, alpha
        Of these rows.
    point : (w, its coefficients of the kernel design's columns, constant)
    mu : the multiplier of P
    exact : rows of which float64 columns were summed
    """
    w, coef, constant = point
    columns, own, features, drawn, off = looked
    scores = features @ w + constant
    true_scores = own @ w + constant
    # The machine that is published sums (K T) w as K (T w): where terms cancel that tells.
    order = np.abs(columns @ coef - own @ w)
    far = float(np.max(np.abs(true_scores - scores) + order, initial=0.0))
    summed = np.where(exact, true_scores, scores)
    here = dual.losses(true_scores, mu)
    ends = (dual.losses(true_scores + way * order, mu) for way in (-1.0, 1.0))
    lost = np.maximum(*(np.abs(end - here) for end in ends))
    signed = dual.sign * alpha
    both = np.array([np.sum(lost[drawn]), np.abs(signed[drawn]) @ order[drawn]])
    primal = _sums((here - dual.losses(summed, mu))[drawn])
    part = off, np.where(exact, 0.0, signed)[drawn]
    return Sample(float(np.count_nonzero(drawn)), primal, both, far, (part,))


def _sums(values: FloatArray) -> FloatArray:
    return np.array([values.sum(), values @ values])
