"""How rows are moved and scaled to where float32 holds what a kernel sees of them.

A distance does not change with the origin, and a power of two folds into gamma without a rounding:
neither changes a kernel's entries, but both change what is left of a row when it is rounded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from scipy.sparse import issparse

from bigscreen.data.layout import sqnorms
from bigscreen.data.rows import Rows
from bigscreen.data.views import Move, Moved
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.standard import Linear

KernelT = TypeVar("KernelT", Kernel, Kernel | None)

SAMPLE = 4096
"""Rows that say where an origin is."""

FAR = 0.9
"""Part of the squared norms that the mean carries from where on an origin is taken off."""

SMALL, LARGE = 2.0**-40, 2.0**40
"""Squared norms of the longest row between which nothing is scaled."""


def kernel_of(move: Move, kernel: Kernel) -> Kernel:
    """The kernel with the same entries between moved rows."""
    if not move.exponent:
        return kernel
    scaled: Any = kernel  # one that has a gamma, see `move_for`
    power = 1 if scaled.pairing == "manhattan" else 2
    gamma = float(np.ldexp(scaled.gamma, -power * move.exponent))
    moved: Kernel = replace(scaled, gamma=gamma)
    return moved


def move_for(kernel: Kernel | None, sample: Any, longest: float, balanced: bool) -> Move | None:
    """How to move rows for this kernel; None where they are fine where they are.

    Parameters
    ----------
    kernel : Kernel or None
        None: the features themselves.
    sample : ndarray or csr_array (k, d)
        Some rows.
    longest : float
        Largest squared norm of a row.
    balanced : bool
        Coefficients add up to 0, so that an inner product may be taken from any origin.
    """
    origin = None
    linear = kernel is None or isinstance(kernel, Linear)
    invariant = (kernel is not None and kernel.invariant) or (balanced and linear)
    # float32 rows hold their numbers: nothing is lost on the way to what sees their distances.
    if invariant and sample.dtype == np.float64 and not issparse(sample):
        mean = sample.mean(axis=0)
        if float(mean @ mean) > FAR * float(np.mean(sqnorms(sample))):
            origin = mean
            longest = float(np.max(sqnorms(sample - mean)))
    exponent = 0
    if hasattr(kernel, "gamma") and 0 < longest < np.inf and not SMALL <= longest <= LARGE:
        exponent = -int(np.rint(0.5 * np.log2(longest)))
    return None if origin is None and not exponent else Move(origin, exponent)


def moved(data: Rows, kernel: KernelT, balanced: bool) -> tuple[Rows, KernelT]:
    """The rows as this kernel is best shown them, ``data`` or `Moved` ones, and its equal there."""
    n = min(data.n_rows, SAMPLE)
    if data.path is None and data.n_rows > n:
        sample = data.rows(np.linspace(0, data.n_rows - 1, n).astype(np.int64))
    else:
        sample = data.X(0, n)
    move = move_for(kernel, sample, data.max_sqnorm, balanced)
    if move is None:
        return data, kernel
    return Moved(data, move), kernel if kernel is None else kernel_of(move, kernel)
