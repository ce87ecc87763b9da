"""Sums that do not depend on their order: float64 parts rounded to int64 multiples of a quantum.

A reduction over shards must have the same bits for one worker and for seven. Floating-point sums do
not; integer sums do. Each shard rounds its float64 array once to multiples of a quantum, chosen
from a bound on the whole sum, so workers may add their shards in any grouping. The rounding is
2^-62 of the bound, far below the rounding of the float64 parts themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.numerics.rows import njit

Totals = dict[str, NDArray[np.int64]]
"""Sums by name, each in int64 multiples of its own quantum."""


def quantum(bound: float) -> float:
    """Choose the quantum q (a power of two) of which sums up to ``bound`` are stored as multiples.

    ``bound / q <= 2^61``, so that even twice the bound fits in int64.
    """
    if not np.isfinite(bound):
        raise InputError(
            "the data or C are so large that sums overflow float64; scale the data, or lower C"
        )
    if bound <= 0:
        return 1.0
    return float(np.ldexp(1.0, int(np.ceil(np.log2(bound))) - 61))


def add(totals: Totals, name: str, values: NDArray[Any], bound: float) -> None:
    """Add ``values`` to ``totals[name]`` as multiples of ``quantum(bound)``.

    ``bound`` is at least the absolute value of the finished sum over all shards.
    """
    flat = np.ravel(values)
    if _sum_of_zeros(flat) != 0.0:
        raise InputError(
            "the columns overflow their number format; scale the data, or lower C, gamma or degree"
        )
    if name not in totals:
        totals[name] = np.zeros(np.shape(values), np.int64)
    _add(flat, 1.0 / quantum(bound), totals[name].reshape(-1))


def read(totals: Totals, name: str, bound: float) -> NDArray[np.float64]:
    """Return the finished sum of this name as float64; ``bound`` as in `add`."""
    return totals[name].astype(np.float64) * quantum(bound)


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _sum_of_zeros(values: NDArray[Any]) -> Any:
    """Return the sum of ``values - values``: 0 if all are finite, else NaN."""
    total = values.dtype.type(0)
    for i in range(len(values)):
        total += values[i] - values[i]
    return total


@njit(cache=True, nogil=True)
def _add(values: NDArray[Any], scale: float, total: NDArray[np.int64]) -> None:
    """Add the values, rounded to multiples of 1 / scale, to int64 totals."""
    for i in range(len(values)):
        total[i] += np.int64(np.rint(values[i] * scale))
