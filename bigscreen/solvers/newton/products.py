"""Products with the second moment of a zone's rows, whose columns are kept while a step lasts."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design, row_ranges
from bigscreen.kernels.operand import scratch
from bigscreen.numerics.rows import FloatArray, as_rows, njit, row_axpy, row_dot
from bigscreen.solvers.newton.asks import Columns
from bigscreen.solvers.newton.state import NewtonShard

WHOLE = 2**15 - 1
"""Columns in 16 bits are whole multiples, up to this one, of a unit."""

ROUGHLY = 0.5
"""What rounding to 16 bits may curve P by in any direction, beside the penalty's 1."""


def unit_of(design: Design, bend: float) -> float:
    """The unit of columns that are kept in 16 bits; 0 where they are to stay what they are.

    Rounding makes a noise of columns, which T amplifies and the rows' curvature ``bend`` weighs.
    What products are made of need not tell more than a step that is a tenth off.
    """
    if design.kernel is None or design.factor is None:
        return 0.0
    unit = design.column_bound / WHOLE
    return unit if bend * unit**2 / 12 * design.longest**2 <= ROUGHLY else 0.0


@dataclass
class ZoneRows:
    """Rows of a shard that the products of a step are with.

    Parameters
    ----------
    local : int64 (k,)
        Their places in the shard's state, ascending.
    bend : float64 (k,)
        What each curves P by, for all that it stands for.
    border : float64 (k, extras)
    unit : float
        Of columns in 16 bits; 0: they are what they are.
    room : int
        Bytes that columns may take which are kept from one product to the next.
    """

    local: NDArray[np.int64]
    bend: FloatArray
    border: FloatArray
    unit: float
    room: int
    kept: NDArray[Any] | None = None
    filled: int = 0

    def product(
        self, design: Design, state: NewtonShard, tile: int, coef: FloatArray, extras: FloatArray
    ) -> Generator[Columns, Any, FloatArray]:
        """``sum bend_i [c_i, border_i] (c_i . coef + border_i . extras)`` (m + extras,)."""
        width = len(coef)
        v, along = np.zeros(width + len(extras)), self.border @ extras
        if design.kernel is not None:
            coef = (coef * (self.unit or 1.0)).astype(np.float32)
        for a, b in row_ranges(len(self.local), tile):
            if b <= self.filled:
                assert self.kept is not None
                columns = self.kept[a:b]
            else:
                columns = self._keep(a, b, (yield Columns(design, state, self.local[a:b])))
            if design.kernel is None:
                _curve(columns, self.bend[a:b], along[a:b], coef, v[:width])
                continue
            # (Sums over the few rows of a tile are as exact as a step is.)
            part = np.zeros(width, np.float32)
            _curve(columns, self.bend[a:b], along[a:b], coef, part)
            v[:width] += np.float64(self.unit or 1.0) * part
        v[width:] = along @ self.border
        return v

    def _keep(self, a: int, b: int, columns: Any) -> Any:
        """These rows' columns as products take them; kept if there is room and none is missing."""
        if not isinstance(columns, np.ndarray):
            return as_rows(columns)
        kind = np.dtype(np.int16 if self.unit else columns.dtype)
        if self.kept is None:
            most = min(len(self.local), self.room // (columns.shape[1] * kind.itemsize))
            self.kept = np.empty((most, columns.shape[1]), kind)
        if a == self.filled and b <= len(self.kept):
            out, self.filled = self.kept[a:b], b
        elif self.unit:
            out = scratch("rounded", columns.shape, kind)
        else:
            return columns
        if self.unit:
            _round(columns, np.float32(1 / self.unit), out)
        else:
            out[:] = columns
        return out


@njit(cache=True, nogil=True)
def _round(columns: NDArray[Any], scale: np.float32, out: NDArray[np.int16]) -> None:
    for i in range(len(out)):
        row, own = columns[i], out[i]
        for j in range(len(row)):
            own[j] = np.int16(np.rint(row[j] * scale))


@njit(cache=True, nogil=True)
def _curve(columns: Any, bend: FloatArray, along: FloatArray, coef: Any, out: Any) -> None:
    """``along_i = bend_i (c_i . coef + along_i)``, in place, and ``out += along_i c_i``."""
    for i in range(len(bend)):
        along[i] = bend[i] * (row_dot(columns, i, coef) + along[i])
        row_axpy(columns, i, out.dtype.type(along[i]), out)
