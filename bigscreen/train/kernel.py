"""Make the kernel that a fit's options name, with gamma as a number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.features.design import row_ranges
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.definite import check_definite
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.standard import make_kernel
from bigscreen.options.train import TrainOptions


def choose_kernel(data: Rows, options: TrainOptions, fleet: Fleet) -> Kernel:
    """Make the kernel that the options request.

    A kernel function or matrix of the user is tested on the rows: is it symmetric, and positive
    semidefinite?

    Raises
    ------
    InputError
        If a precomputed kernel is not a square matrix, or a kernel of the user is not symmetric.
    """
    name, gamma = options.kernel, options.gamma
    if callable(name):
        return check_definite(Custom(name), data)
    if name == "precomputed" and data.n_rows != data.n_features:
        raise InputError(
            f"a precomputed kernel is a square matrix, one entry for every pair of rows, not "
            f"{data.n_rows} by {data.n_features}"
        )
    if name in ("linear", "precomputed"):
        gamma = 1.0
    elif gamma == "scale":
        gamma = gamma_scale(data, fleet, name)
    elif gamma == "auto":
        gamma = 1.0 / data.n_features
    made = make_kernel(name, float(gamma), options.degree, options.coef0)
    return check_definite(made, data) if isinstance(made, Precomputed) else made


def gamma_scale(data: Rows, fleet: Fleet, kernel: str) -> float:
    """Return ``1 / (n_features * X.var())`` over all entries: scikit-learn's gamma="scale".

    With the ``kernel`` of this name, of which gamma multiplies another power of the values, entries
    would depend on the unit of the values. So the root is returned for the Matern kernels, and the
    product with the mean value for the chi-squared kernel.
    """
    shards = range(data.n_shards)
    squares = sum(float(np.sum(data.sqnorms(*data.shard(s)))) for s in shards)
    entries = float(data.n_rows) * data.n_features
    mean = sum(fleet.each(_EntrySum(data), shards)) / entries
    variance = squares / entries - mean**2
    # A difference this much smaller than its terms has lost 10 of their bits: sum squared
    # deviations instead, in a second pass.
    if variance < 2.0**-10 * squares / entries:
        variance = sum(fleet.each(_EntrySum(data, mean), shards)) / entries
    # If all entries are equal, they differ from their mean only by its rounding.
    same = variance <= (2.0**-50 * mean) ** 2
    if same:
        return 1.0
    gamma = 1.0 / (data.n_features * variance)
    if kernel.startswith("matern"):
        return math.sqrt(gamma)
    return gamma * mean if kernel == "chi2" and mean > 0 else gamma


@dataclass(frozen=True)
class _EntrySum:
    """The function that sums a shard's entries, or their squared distances from the mean."""

    data: Rows
    mean: float | None = None

    def __call__(self, shard: int) -> float:
        """Return the sum of the entries (or squared distances) of the shard with this number."""
        total = 0.0
        start, stop = self.data.shard(shard)
        for a, b in row_ranges(stop - start, self.data.chunk_rows):
            X = self.data.X(start + a, start + b)
            if self.mean is None:
                total += float(X.sum(dtype=np.float64))
                continue
            stored = X if isinstance(X, np.ndarray) else X.data
            total += float(np.sum(np.square(stored.astype(np.float64) - self.mean)))
            total += (X.shape[0] * X.shape[1] - stored.size) * self.mean**2
        return total
