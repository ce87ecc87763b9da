"""Where the kernel entries of an exact machine are computed, and its kernel columns are cached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from bigscreen.kernels.base import Kernel
from bigscreen.kernels.cache import KernelCache
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray


class Columns(Protocol):
    """Cached kernel columns: the entries of rows of the data with all rows of one side.

    Attributes
    ----------
    entries : int
        Kernel entries computed so far.
    """

    entries: int

    def accumulate(
        self, rows: Operand, slots: NDArray[Any], coef: FloatArray, scores: FloatArray
    ) -> None:
        """Add ``sum_j coef_j k(x_j, .)`` to the scores (rows of side,); see `KernelCache`."""

    def compact(self, side: Operand, keep: NDArray[Any]) -> None:
        """Keep only some rows of the side, at the ascending places ``keep`` of the present side."""


class KernelBackend(Protocol):
    """Computes kernel entries between rows and caches kernel columns; picklable."""

    def columns(self, kernel: Kernel, side: Operand, capacity: int, dtype: type) -> Columns:
        """Return an empty cache of ``capacity`` kernel columns, with entries for rows of ``side``.

        ``dtype``: float32 or float64, of the entries.
        """

    def kernel(self, kernel: Kernel) -> Kernel:
        """Return the kernel that computes entries here; its error bounds hold for columns, too."""


@dataclass(frozen=True)
class HostBackend:
    """Kernel entries by compiled code on this machine's processors, in its memory."""

    def columns(self, kernel: Kernel, side: Operand, capacity: int, dtype: type) -> KernelCache:
        """Return an empty `KernelCache`; see `KernelBackend.columns`."""
        return KernelCache(kernel, side, capacity, dtype)

    def kernel(self, kernel: Kernel) -> Kernel:
        """Return the kernel as it is."""
        return kernel


HOST = HostBackend()
"""The backend of fits without a device."""
