"""Estimates the error of P and D from float32 columns, by sampled rows in float64.

A worst-case bound for all rows, ``n C ||beta||_1 eps``, is thousands of times the actual error. On
a sample of rows the exact differences are computed; their mean and its standard error estimate the
sum over all rows.
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
        Compute float64 columns of this many sampled rows of a data set, next to the float32 ones.
        (.3 of 18 s of a fit to 4,500,000 rows of SUSY's shape: docs/benchmarks.md, "Full sizes".)
    sigmas : float
        Bound a mean over all rows by the sample's mean plus this many of its standard errors.
    slack : float
        Multiply the bounds of float32 errors by this, to allow for the rounding of the float64
        columns with which float32 ones are compared.
    order : float
        Bound the error of a float64 sum by this multiple of the difference that another order of
        summation makes.
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
        Number of sampled rows.
    primal : float64 (2,)
        The sum, and the sum of squares, of the rows' differences in P.
    order : float64 (2,)
        The sizes of float64's own errors in P and D.
    max_score_error : float
        The largest difference of any score.
    parts : tuple of (float32 (rows, r), float64 (rows,))
        The differences of the rows' features, and ``s alpha`` (0 for rows with float64 columns).
    """

    rows: float
    primal: FloatArray
    order: FloatArray
    max_score_error: float
    parts: tuple[tuple[NDArray[np.float32], FloatArray], ...] = ()

    @classmethod
    def empty(cls) -> Sample:
        """The sample without rows, to which samples are added."""
        return cls(0.0, np.zeros(2), np.zeros(2), 0.0)

    def __add__(self, other: Sample) -> Sample:
        """Return the sample of the rows of both samples."""
        return Sample(
            self.rows + other.rows,
            self.primal + other.primal,
            self.order + other.order,
            max(self.max_score_error, other.max_score_error),
            self.parts + other.parts,
        )

    def bounds(self, n: int, w_alpha: FloatArray, scaled: float) -> tuple[float, float]:
        """Bounds on the errors of P and D over n rows.

        If ``Delta`` is the error of w(alpha), the error of D is
        ``-<w(alpha), Delta> - 1/2 ||Delta||^2``. ``w_alpha``: w(alpha), (r,). ``scaled``: the
        largest relative difference between the certified alpha and the alpha of the sampled rows.
        """
        if not self.rows:
            return 0.0, 0.0
        own, other = SAMPLE.order * n / self.rows * self.order
        return own + self._total(self.primal, n), other + self._dual_error(n, w_alpha, scaled)

    def gap_error(self, n: int, apart: FloatArray, scaled: float) -> float:
        """Bound the error of the gap over n rows, if rows that may be off their side use float64.

        A row is on its side if alpha is the end of its box that its gradient implies. An error d of
        the row's feature then moves its part of P by ``-alpha s <w, d>``, and of D by ``-alpha s
        <w(alpha), d>``. Their difference depends only on ``apart = w - w(alpha)`` (r,). ``scaled``:
        as for ``bounds``.
        """
        if not self.rows:
            return 0.0
        own = SAMPLE.order * n / self.rows * float(self.order.sum())
        return self._dual_error(n, apart, scaled) + own

    def _dual_error(self, n: int, way: FloatArray, scaled: float) -> float:
        """Bound ``|<way, Delta>| + 1/2 ||Delta||^2``, with Delta the error of w(alpha) over n rows.

        ``scaled``: as for ``bounds``. Delta is its estimate from the sample plus a sampling error
        e. ``<way, e>`` and ``<Delta, e>`` are bounded by their standard errors. ``||e||`` is close
        to the root of e's mean square: a Gaussian's norm exceeds its mean by at most a few standard
        deviations in the direction of largest variance (Cirelson et al. 1976), here bounded by a
        Frobenius norm.
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
        """Each row's error in w(alpha) (rows, r), and a bound on their largest singular value."""
        moved = np.concatenate([signed[:, None] * off for off, signed in self.parts])
        unit = float(np.max(np.abs(moved), initial=0.0)) or 1.0  # for float32 products to have bits
        small = (moved / unit).astype(np.float32)
        gram = small @ small.T if len(small) < small.shape[1] else small.T @ small
        return moved, unit * float(np.sqrt(np.linalg.norm(gram)))

    def _total(self, sums: FloatArray, n: int) -> float:
        """Bound on a sum over n rows; ``sums``: the sample's sum and sum of squares."""
        mean = abs(sums[0]) / self.rows
        return SAMPLE.slack * n * float(mean + SAMPLE.sigmas * self._deviation(sums, n))

    def _deviation(self, sums: FloatArray, n: int) -> float:
        """The standard error of a sample mean for n rows; ``sums``: sum and sum of squares."""
        spread = max(sums[1] / self.rows - (sums[0] / self.rows) ** 2, 0.0)
        return float(np.sqrt(spread * (1.0 - self.rows / n) / self.rows))


def stride(n: int, rows: int) -> int:
    """Return the distance between two sampled rows if about ``rows`` of n rows are sampled."""
    return max(1, n // rows)


class ComparedRows(NamedTuple):
    """Rows in both precisions: their float64 columns and features, and the features summed.

    ``columns``, ``own``: the float64 columns and features. ``features``: the features that were
    summed. ``drawn``: whether each row is in the random sample (the other rows only contribute to
    the largest error of a score). ``moved``: the errors of the features of rows in the sample.
    """

    columns: NDArray[Any]
    own: NDArray[Any]
    features: NDArray[Any]
    drawn: NDArray[np.bool_]
    moved: NDArray[np.float32]

    @classmethod
    def at(
        cls, true: Design, used: Design, rows: Any, summed: NDArray[Any], drawn: NDArray[np.bool_]
    ) -> ComparedRows:
        """Compute float64 columns of ``rows``, for comparison with the ``summed`` columns.

        ``true``: the kernel design. ``used``: the design that was summed, which is ``true`` or the
        design of its stored features. ``drawn``: whether each row is in the random sample.
        """
        known = summed.astype(np.float64)
        columns = true.columns(rows, np.float64)
        own = true.features_of(columns)
        if used.kernel is None:
            return cls(columns, own, known, drawn, (own - known)[drawn].astype(np.float32))
        # (The differences are so small that float32 digits are enough for them.)
        moved = true.features_of((columns - known).astype(np.float32))
        return cls(columns, own, own - moved, drawn, moved[drawn])


def compare_rows(
    looked: ComparedRows,
    dual: Dual,
    alpha: FloatArray,
    point: tuple[FloatArray, FloatArray, float],
    mu: Mu,
    exact: NDArray[np.bool_],
) -> Sample:
    """Compare rows in both precisions and sum their differences in P, D and the features.

    Parameters
    ----------
    looked, dual, alpha
        The compared rows, their dual and their alpha.
    point : (w, its coefficients of the kernel design's columns, constant)
    mu : the multiplier of P
    exact : bool (rows,), whether float64 columns of the row were summed
    """
    w, coef, constant = point
    columns, own, features, drawn, off = looked
    scores = features @ w + constant
    true_scores = own @ w + constant
    # The published machine sums (K T) w as K (T w), which differs if terms cancel.
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
    """The sum and the sum of squares of values, float64 (2,)."""
    return np.array([values.sum(), values @ values])
