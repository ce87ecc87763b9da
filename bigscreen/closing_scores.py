"""Scores of an exact kernel machine from its support rows, and what rounding can do to each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.design import Design
from bigscreen.dual import FloatArray
from bigscreen.kernels import Kernel, Side
from bigscreen.kernels_base import FLOAT64
from bigscreen.store import Rows
from bigscreen.store.layout import take


class Noise(NamedTuple):
    """What rounding can do to a score, as far as it is the same for all rows.

    ``spread``: one weight a support row; independent errors of entries add up to the root of
    ``sum_j spread_j k_ij^2``. ``longest``, ``size``: of the support's features the greatest norm,
    and ``sum_j |coef_j| ||phi_j||``.
    """

    spread: FloatArray
    longest: float
    size: float


@dataclass(frozen=True)
class Scores:
    """Runs anywhere: scores of some rows of a shard, and how far rounding can have moved each."""

    data: Rows
    kernel: Kernel
    support: Side
    coef: FloatArray
    noise: Noise
    dtype: type

    def __call__(self, ids: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        """(score, band) of these rows, ascending, of one shard."""
        scores, band = np.empty(len(ids)), np.empty(len(ids))
        chunk = ids // self.data.chunk_rows
        for k in np.unique(chunk):
            part = slice(*np.searchsorted(chunk, (k, k + 1)))
            start, stop = self.data.chunk(int(k))
            X, own = self.data.X(start, stop), ids[part]
            rows = X if len(own) == stop - start else take(X, own - start)
            scores[part], band[part] = self.of(Side(rows, own))
        return scores, band

    def of(self, rows: Side) -> tuple[FloatArray, FloatArray]:
        """(score, band) of these rows."""
        # Entries of one sign: the sum that the errors follow comes with the scores.
        columns = [self.coef, self.noise.spread] if self._summed(rows) else [self.coef]
        values = self.kernel.dots(rows, self.support, np.stack(columns, axis=1), self.dtype)
        return values[:, 0], self.banded(rows, values[:, 0], values[:, -1])

    def banded(self, rows: Side, scores: FloatArray, weight: FloatArray) -> FloatArray:
        """How far rounding can have moved the scores of these rows; ``weight``: the sums
        ``sum_j spread_j k_ij``, which are used where they bound the errors."""
        norms = phi_norms(self.kernel, rows)
        if not self._summed(rows):
            weight = norms * self.noise.longest * self.noise.spread.sum()
        return self.bands(scores, rows.sqnorms, norms, weight)

    def _summed(self, rows: Side) -> bool:
        return self.kernel.nonnegative and self._relative(rows.sqnorms[:1]) is not None

    def bands(
        self, scores: FloatArray, sqnorms: FloatArray, norms: FloatArray, weight: FloatArray
    ) -> FloatArray:
        """How far rounding can have moved scores; ``weight >= sum_j spread_j k_ij``."""
        noise = self.noise
        relative = self._relative(sqnorms)
        if relative is None:
            longest = float(np.max(self.support.sqnorms))
            error = self.kernel.entry_error(sqnorms, longest, self.data.n_features)
            band = error * np.sqrt(noise.spread.sum())
        else:
            # What the entries of a row have in common moves its score as a whole.
            band = relative * (np.abs(scores) + np.sqrt(norms * noise.longest * weight))
        if self.dtype is np.float64:
            band = FLOAT64 * band
        # The float64 sum itself, whose partial sums err at random.
        return band + 2.0**-51 * np.sqrt(len(self.coef)) * norms * noise.size

    def kept_bands(self, scores: FloatArray, sqnorms: FloatArray, farthest: float) -> FloatArray:
        """The same of scores that are there already; ``farthest``: no feature is longer."""
        norms = np.full(len(scores), farthest)
        return self.bands(scores, sqnorms, norms, norms * farthest * self.noise.spread.sum())

    def _relative(self, sqnorms: FloatArray) -> FloatArray | None:
        longest = float(np.max(self.support.sqnorms))
        return self.kernel.relative_error(sqnorms, longest, self.data.n_features)


def phi_norms(kernel: Kernel, rows: Side) -> FloatArray:
    """At least the root of the largest entry that a row can have with another of its length."""
    if kernel.psd:
        return np.sqrt(np.maximum(kernel.diag(rows), 0.0))  # a given one may break its word
    return np.array([np.sqrt(kernel.bound(size, size)) for size in rows.sqnorms])


def spread(design: Design, support: Side, coef: FloatArray) -> FloatArray:
    """``coef^2``, but of the sum over equal rows where that is more: their entries err alike."""
    mark = np.random.default_rng(0).normal(size=(support.X.shape[1], 1))
    keys = Design(design.data).dots(support.X, mark)[:, 0]
    _, group = np.unique(keys, return_inverse=True)
    together = np.bincount(group, coef) ** 2 / np.bincount(group)
    return np.maximum(coef**2, together[group])
