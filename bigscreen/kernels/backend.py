"""Where the kernel entries of an exact machine are computed, and its kernel columns are cached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from bigscreen.kernels.base import Kernel
from bigscreen.kernels.cache import KernelCache
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray

RowsOfSquare = Callable[[NDArray[Any], NDArray[Any]], None]
"""Write the entries of the rows at some places with all rows of a side: (places, output array)."""


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

    def square(self, kernel: Kernel, side: Operand, dtype: type) -> RowsOfSquare:
        """Return a function that computes rows of the kernel matrix of ``side``.

        It takes places of rows, int64 (k,), and a C-contiguous array (k, rows of side) of
        ``dtype``, which it overwrites; several threads may call it.
        """


@dataclass(frozen=True)
class HostBackend:
    """Kernel entries by compiled code on this machine's processors, in its memory."""

    def columns(self, kernel: Kernel, side: Operand, capacity: int, dtype: type) -> KernelCache:
        """Return an empty `KernelCache`; see `KernelBackend.columns`."""
        return KernelCache(kernel, side, capacity, dtype)

    def square(self, kernel: Kernel, side: Operand, dtype: type) -> RowsOfSquare:
        """Return a function that computes rows of a kernel matrix; see `KernelBackend.square`."""
        kernel.prepare(side)

        def rows(places: NDArray[Any], out: NDArray[Any]) -> None:
            """Write the entries of the rows at ``places`` with all rows to ``out``."""
            kernel.block(side.part(places), side, out=out, dtype=dtype)

        return rows


HOST = HostBackend()
"""The backend of fits without a device."""
