"""Shift and scale rows so that rounding them to float32 loses less.

A shift does not change distances, and scaling by a power of two can be undone exactly in gamma. So
neither changes the kernel's entries, but both change how much of a row survives rounding.
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


def move_kernel(move: Move, kernel: Kernel) -> Kernel:
    """Return the kernel whose entries between moved rows equal ``kernel``'s between the originals.

    A move subtracts an origin and multiplies by a power of two; gamma undoes the factor.
    """
    if not move.exponent:
        return kernel
    scaled: Any = kernel  # (`choose_move` scales only for kernels with a gamma.)
    gamma = float(np.ldexp(scaled.gamma, -kernel.gamma_power * move.exponent))
    moved: Kernel = replace(scaled, gamma=gamma)
    return moved


def choose_move(kernel: Kernel | None, sample: Any, longest: float, balanced: bool) -> Move | None:
    """Choose how to shift and scale rows for this kernel; None if it is not necessary.

    Parameters
    ----------
    kernel : Kernel or None
        None: a linear machine on the features themselves.
    sample : ndarray or csr_array (k, d)
        Sampled rows.
    longest : float
        Largest squared norm of a row.
    balanced : bool
        Coefficients add up to 0, so that a shift does not change the linear machine.
    """
    origin = None
    linear = kernel is None or isinstance(kernel, Linear)
    invariant = (kernel is not None and kernel.invariant) or (balanced and linear)
    # float32 rows are not rounded again, so shifting them would gain nothing.
    if invariant and sample.dtype == np.float64 and not issparse(sample):
        mean = sample.mean(axis=0)
        # Shift if the mean has more than 90 % of the squared norms.
        if float(mean @ mean) > 0.9 * float(np.mean(sqnorms(sample))):
            origin = mean
            longest = float(np.max(sqnorms(sample - mean)))
    exponent = 0
    if hasattr(kernel, "gamma") and 0 < longest < np.inf:
        power = float(np.log2(longest))
        if abs(power) > 40:  # float32 products of unscaled rows are safe in between
            exponent = -int(np.rint(0.5 * power))
    return None if origin is None and not exponent else Move(origin, exponent)


def move_rows(data: Rows, kernel: KernelT, balanced: bool) -> tuple[Rows, KernelT]:
    """Shift and scale the rows if float32 needs it; return them and the kernel for moved rows.

    ``balanced``: whether coefficients add up to 0, so that a linear machine does not change by a
    shift.
    """
    n = min(data.n_rows, 4096)  # the sample from which the mean is estimated
    if data.path is None and data.n_rows > n:
        sample = data.rows(np.linspace(0, data.n_rows - 1, n).astype(np.int64))
    else:
        sample = data.X(0, n)
    move = choose_move(kernel, sample, data.max_sqnorm, balanced)
    if move is None:
        return data, kernel
    return Moved(data, move), kernel if kernel is None else move_kernel(move, kernel)
