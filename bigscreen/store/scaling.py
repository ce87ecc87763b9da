"""What a scaling subtracts and multiplies by, from one pass over the training rows."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigscreen.errors import InputError
from bigscreen.store.layout import Features


def divisor(scale: str) -> float | None:
    """Check a scaling's name; returns N of "divide:N", and None for all others.

    Raises
    ------
    InputError
        If there is no such scaling.
    """
    if scale in ("none", "standard", "minmax"):
        return None
    kind, _, text = scale.partition(":")
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if kind != "divide" or not (math.isfinite(value) and value > 0):
        raise InputError(
            f"there is no scaling {scale!r}: use none, standard, minmax or divide:N, N above 0."
        )
    return value


class Moments:
    """Mean, spread and range of every column, rows being added a few thousand at a time.

    Means and sums of squared deviations are merged by Chan's formula, so that a column far from
    zero keeps its digits; the zeros of sparse rows enter as one block of zeros at the end.

    Parameters
    ----------
    n_features : int
    """

    def __init__(self, n_features: int) -> None:
        self.rows = 0
        self.counts = np.zeros(n_features)
        self.mean = np.zeros(n_features)
        self.deviation = np.zeros(n_features)
        self.low = np.full(n_features, np.inf)
        self.high = np.full(n_features, -np.inf)

    def add(self, X: Features) -> None:
        """Take rows in, ndarray or csr_array of shape (rows, n_features)."""
        self.rows += X.shape[0]
        if isinstance(X, csr_array):
            d = len(self.mean)
            counts = np.bincount(X.indices, minlength=d).astype(np.float64)
            sums = np.bincount(X.indices, X.data, minlength=d)
            mean = sums / np.maximum(counts, 1)
            squares = np.square(X.data - mean[X.indices])
            self._merge(counts, mean, np.bincount(X.indices, squares, minlength=d))
            np.minimum.at(self.low, X.indices, X.data)
            np.maximum.at(self.high, X.indices, X.data)
            return
        wide = X.astype(np.float64)
        mean = wide.mean(axis=0)
        np.minimum(self.low, wide.min(axis=0), out=self.low)
        np.maximum(self.high, wide.max(axis=0), out=self.high)
        wide -= mean
        counts = np.full(len(mean), float(len(wide)))
        self._merge(counts, mean, np.einsum("ij,ij->j", wide, wide))

    def _merge(self, counts: NDArray, mean: NDArray, deviation: NDArray) -> None:
        total = self.counts + counts
        share = counts / np.maximum(total, 1)
        delta = mean - self.mean
        self.deviation += deviation + delta * delta * self.counts * share
        self.mean += delta * share
        self.counts = total

    def scaling(self, scale: str, shift: bool) -> tuple[NDArray | None, NDArray]:
        """Return offset and factor of a feature's (x - offset) * factor, float64 (n_features,).

        Parameters
        ----------
        scale : {"standard", "minmax"}
            The spread is the population's standard deviation, or the range; a column without
            any is left unscaled.
        shift : bool
            Whether the mean or the minimum is subtracted: not from sparse rows, whose zeros must
            stay zeros. The offset is None then.
        """
        zeros = self.rows - self.counts
        absent = zeros > 0
        low = np.where(absent, np.minimum(self.low, 0), self.low)
        high = np.where(absent, np.maximum(self.high, 0), self.high)
        mean = self.mean * self.counts / self.rows
        if scale == "standard":
            squares = self.deviation + self.mean**2 * self.counts * zeros / self.rows
            offset, spread = mean, np.sqrt(squares / self.rows)
        else:
            offset, spread = low, high - low
        constant = (high <= low) | (spread <= 0)
        factor = 1.0 / np.where(constant, 1.0, spread)
        return (offset if shift else None), factor
