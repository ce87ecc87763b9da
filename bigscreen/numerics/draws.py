"""Pseudorandom numbers that are hashes of rows: a row has the same number wherever it is scored."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from bigscreen.numerics.rows import FloatArray

_SEED = 0x64726177
"""Seed from which the multipliers of the hash are drawn that stands for random draws."""
_MIX = np.uint64(0xFF51AFD7ED558CCD)
"""An odd multiplier that mixes the bits of a hash (from MurmurHash3)."""


def row_draws(X: Any) -> FloatArray:
    """Draw a number in [0, 1) for each row, a hash of its float32 values: float64 (rows,).

    Equal rows have equal numbers, dense or sparse, alone or among others. The numbers of different
    rows behave as if independent and uniform.

    Parameters
    ----------
    X : array or csr_array (rows, d)
    """
    multipliers = np.random.PCG64(_SEED).random_raw(X.shape[1])  # a stream that NumPy guarantees
    if issparse(X):
        bits = csr_array((_bits(X.data), X.indices, X.indptr), shape=X.shape)
    else:
        bits = _bits(X)
    # Multilinear hashing: sums of products modulo 2^64, to which zeros add nothing.
    sums = np.asarray(bits @ multipliers, np.uint64)
    mixed = (sums ^ (sums >> np.uint64(33))) * _MIX
    mixed ^= mixed >> np.uint64(33)
    draws: FloatArray = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return draws


def _bits(values: Any) -> Any:
    """Return the bits of values as float32, in uint64; -0 counts as 0."""
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(values, np.float32) + np.float32(0)
    return single.view(np.uint32).astype(np.uint64)
