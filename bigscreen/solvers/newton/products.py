"""Hessian-vector products over the band's rows, whose columns are kept while a step lasts."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design, row_ranges
from bigscreen.kernels.operand import scratch
from bigscreen.numerics.rows import FloatArray, as_rows, njit, row_axpy, row_dot
from bigscreen.solvers.newton.row_requests import Columns
from bigscreen.solvers.newton.state import NewtonShard

INT16_MAX = int(np.iinfo(np.int16).max)
"""Entries of columns in 16 bits are integers up to this one, times a unit."""


def int16_unit(design: Design, curvature: float, max_curvature: float) -> float:
    """Choose the unit of columns that are kept in 16 bits; 0 if they must stay float32.

    An entry is stored as an integer times the unit. Rounding adds noise of variance
    ``unit^2 / 12`` to columns; the map T from columns to features amplifies this noise.
    ``curvature`` is the sum of the second derivatives of the band rows' losses. The noise may
    curve P by at most ``max_curvature`` in any direction, or 16 bits are too few.
    """
    if design.kernel is None or design.factor is None:
        return 0.0
    unit = design.column_bound / INT16_MAX
    return unit if curvature * unit**2 / 12 * design.longest**2 <= max_curvature else 0.0


@dataclass
class BandRows:
    """Band rows of a shard that the Hessian-vector products of one step go over.

    Parameters
    ----------
    local : int64 (k,)
        Indices of the rows in the shard's state, ascending.
    curvature : float64 (k,)
        Second derivative of each row's loss, times the rows that it stands for.
    border : float64 (k, extras)
        The rows' entries for the extras.
    unit : float
        Unit of columns in 16 bits; 0 if they stay as they are.
    room : int
        Bytes of columns that may be kept from one product to the next.
    kept : (rows, m) or None
        Columns of the first rows; those of the first ``filled`` rows are complete.
    """

    local: NDArray[np.int64]
    curvature: FloatArray
    border: FloatArray
    unit: float
    room: int
    kept: NDArray[Any] | None = None
    filled: int = 0

    def product(
        self, design: Design, state: NewtonShard, tile: int, coef: FloatArray, extras: FloatArray
    ) -> Generator[Columns, Any, FloatArray]:
        """Sum ``curvature_i [c_i, border_i] (c_i . coef + border_i . extras)`` (m + extras,).

        c_i are the columns of row i. Columns that are not kept are requested: the generator yields
        a `Columns` and is sent an array. The vector is ``coef`` (m,), ``extras`` (extras,);
        ``tile`` is the number of rows whose columns are computed at once.
        """
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
                _multiply(columns, self.curvature[a:b], along[a:b], coef, v[:width])
                continue
            # (float32 sums over the few rows of a tile are as exact as a step has to be.)
            part = np.zeros(width, np.float32)
            _multiply(columns, self.curvature[a:b], along[a:b], coef, part)
            v[:width] += np.float64(self.unit or 1.0) * part
        v[width:] = along @ self.border
        return v

    def _keep(self, a: int, b: int, columns: Any) -> Any:
        """Convert columns of rows a to b for products; keep them if there is room.

        ``columns`` (b - a, m); returns them, in units of ``unit`` if they are kept in 16 bits.
        """
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
    """Round ``columns * scale`` to the nearest integers, into ``out`` (rows, m)."""
    for i in range(len(out)):
        row, own = columns[i], out[i]
        for j in range(len(row)):
            own[j] = np.int16(np.rint(row[j] * scale))


@njit(cache=True, nogil=True)
def _multiply(columns: Any, curvature: FloatArray, along: FloatArray, coef: Any, out: Any) -> None:
    """Set ``along_i = curvature_i (c_i . coef + along_i)``, and add ``along_i c_i`` to out.

    c_i are the ``columns`` (rows, m) of row i; ``curvature`` and ``along`` are (rows,), ``coef``
    and ``out`` (m,).
    """
    for i in range(len(curvature)):
        along[i] = curvature[i] * (row_dot(columns, i, coef) + along[i])
        row_axpy(columns, i, out.dtype.type(along[i]), out)
