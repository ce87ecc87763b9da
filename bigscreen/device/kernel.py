"""Kernel entries and their products on a device, with bounds on their rounding, as a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bigscreen.device.features import TILE_ENTRIES, kernel_entries
from bigscreen.device.place import Place, is_out_of_memory
from bigscreen.features.design import Design, row_ranges
from bigscreen.kernels.base import U32, Kernel, check_vectors, count_rows, output_array
from bigscreen.kernels.operand import AnyRows, Operand
from bigscreen.kernels.standard import Compiled
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray

ANY_ORDER = 1.75
"""Multiply the bound of a sum's rounding by this if its order of summation is unknown.

A sum in the given order, of terms of one size, has partial sums that grow evenly: six standard
deviations of its error are ``2 u sqrt(n)`` times the sum of the terms' sizes. In any order no
partial sum is above this sum, and no term passes through more than n roundings: ``3.5 u sqrt(n)``
(maths.md 4.1)."""

FUNCTION_ULPS = 4.0
"""Take the error of a library's exp, tanh and power to be at most this many units in the last place
of the result. Measured: tests/device/test_placed_kernel.py, on every library that is installed;
CUDA's are within 2 of float32 and 2 of float64."""


@dataclass(frozen=True)
class PlacedKernel(Kernel):
    """A kernel whose entries between dense rows, and products with them, are computed on a place.

    Sparse rows, kernels without an array formula, and tiles for which a device has no memory left
    are computed on the host by the kernel itself, whose error bounds are smaller.

    Parameters
    ----------
    kernel : Kernel
    place : Place
    """

    kernel: Kernel
    place: Place
    order_factor: ClassVar[float] = ANY_ORDER

    def __post_init__(self) -> None:
        """Take over the properties of the kernel."""
        for name in ("name", "psd", "nonnegative", "invariant", "storable", "gamma_power"):
            object.__setattr__(self, name, getattr(self.kernel, name))
        object.__setattr__(self, "fast_float64", self.place.has_fast_float64)

    @property
    def on_host(self) -> Kernel:
        """The kernel itself, which computes on the host."""
        return self.kernel

    def diag(self, A: AnyRows) -> FloatArray:
        """Return k(a, a) for every row of A, computed on the host: float64 (len A,)."""
        return self.kernel.diag(A)

    def bound(self, max_sqnorm_a: float, max_sqnorm_b: float) -> float:
        """Return an upper bound of |k(a, b)| over rows of at most these squared norms."""
        return self.kernel.bound(max_sqnorm_a, max_sqnorm_b)

    def entry_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Bound the error of a float32 entry, for any order of summation (`Kernel.entry_error`).

        ``sqnorm_a``: squared norms of the left rows, or the largest; ``max_sqnorm_b``: the largest
        of the right rows; ``d``: the number of features.
        """
        largest = self.kernel.bound(float(np.max(sqnorm_a, initial=0.0)), max_sqnorm_b)
        of_kernel = self.kernel.entry_error(sqnorm_a, max_sqnorm_b, d)
        return ANY_ORDER * of_kernel + 2 * FUNCTION_ULPS * U32 * largest

    def relative_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Bound the relative error of a float32 entry; None if the kernel has no such bound.

        ``sqnorm_a``: squared norms of the left rows, or the largest; ``max_sqnorm_b``: the largest
        of the right rows; ``d``: the number of features.
        """
        found = self.kernel.relative_error(sqnorm_a, max_sqnorm_b, d)
        return None if found is None else ANY_ORDER * found + 2 * FUNCTION_ULPS * U32

    def block(
        self, A: AnyRows, B: Operand, out: NDArray[Any] | None = None, dtype: DTypeLike = np.float32
    ) -> NDArray[Any]:
        """Compute kernel entries on the place, and return them on the host (see `Kernel.block`)."""
        if not self._can_place(A, B, dtype):
            return self.kernel.block(A, B, out, dtype)
        out = output_array(A, B, out, np.dtype(dtype))

        def fill(a: int, b: int, tile: PlacedTile) -> None:
            """Copy the entries of rows a to b to the host."""
            out[a:b] = self.place.take_back(tile.entries)

        def fill_on_host(a: int, b: int, rows: NDArray[Any]) -> None:
            """Compute the entries of rows a to b on the host."""
            out[a:b] = self.kernel.block(rows, B, dtype=dtype)

        self._each_tile(A, B, dtype, fill, fill_on_host)
        return out

    def dots(
        self, A: AnyRows, B: Operand, V: FloatArray, dtype: DTypeLike = np.float32
    ) -> FloatArray:
        """Compute K(A, B) @ V on the place, where the entries stay (see `Kernel.dots`)."""
        if not self._can_place(A, B, dtype):
            return self.kernel.dots(A, B, V, dtype)
        check_vectors(V, B)
        out = np.empty((count_rows(A), V.shape[1]))

        def fill(a: int, b: int, tile: PlacedTile) -> None:
            """Multiply the entries of rows a to b on the place."""
            out[a:b] = tile.dots(V)

        def fill_on_host(a: int, b: int, rows: NDArray[Any]) -> None:
            """Multiply the entries of rows a to b on the host."""
            out[a:b] = self.kernel.dots(rows, B, V, dtype)

        self._each_tile(A, B, dtype, fill, fill_on_host)
        return out

    def prepare(self, side: Operand) -> None:
        """Make nothing now: the right side moves to the place at the first call."""

    def tile(self, A: AnyRows, B: Operand, dtype: DTypeLike) -> PlacedTile | None:
        """Compute entries that stay on the place; None if the host computes them.

        ``A``, ``B``, ``dtype``: as in `Kernel.block`; A has at most ``tile_rows`` rows.
        """
        if not self._can_place(A, B, dtype):
            return None
        rows = np.asarray(A.X if isinstance(A, Operand) else A)
        try:
            return PlacedTile(self.place, self._entries(rows, B, dtype))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None

    def tile_rows(self, width: int) -> int:
        """Choose how many rows to compute at a time against ``width`` right rows."""
        return max(64, TILE_ENTRIES // max(1, width))

    def _can_place(self, A: AnyRows, B: Operand, dtype: DTypeLike) -> bool:
        """Whether the place computes these entries: of dense rows, by the kernel's formula.

        The host refuses rows of another width, and negative values of a chi-squared kernel.
        """
        rows, kernel = A.X if isinstance(A, Operand) else A, self.kernel
        if not (isinstance(kernel, Compiled) and isinstance(rows, np.ndarray)):
            return False
        if not isinstance(B.X, np.ndarray) or rows.ndim != 2 or rows.shape[1] != B.X.shape[1]:
            return False
        if kernel.pairing == "chi2" and min(rows.min(initial=0), B.X.min(initial=0)) < 0:
            return False
        return bool(rows.size) and len(B) > 0

    def _each_tile(
        self,
        A: AnyRows,
        B: Operand,
        dtype: DTypeLike,
        use: Callable[[int, int, PlacedTile], None],
        use_host: Callable[[int, int, NDArray[Any]], None],
    ) -> None:
        """Call ``use(a, b, tile)`` for each tile of rows, or ``use_host`` where memory is full.

        ``A``, ``B``, ``dtype``: as in `Kernel.block`. ``a``, ``b``: the tile's first row, and end.
        """
        rows = np.asarray(A.X if isinstance(A, Operand) else A)
        for a, b in row_ranges(len(rows), self.tile_rows(len(B))):
            tile = self.tile(rows[a:b], B, dtype)
            if tile is None:
                use_host(a, b, rows[a:b])
            else:
                use(a, b, tile)

    def _entries(self, rows: NDArray[Any], B: Operand, dtype: DTypeLike) -> Any:
        """Return the kernel entries of dense rows with the rows of B, as an array of the place."""
        assert isinstance(self.kernel, Compiled)
        kind = np.dtype(dtype).type
        origin = B.shift_for(self.kernel.pairing)

        def shifted(X: NDArray[Any]) -> Any:
            """Move rows less the origin to the place; float64 differences are rounded once."""
            return self.place.put(X - origin.astype(np.float64) if origin.any() else X, kind)

        side = B.once(("placed", (self.place, kind, origin.any())), lambda: shifted(B.X))
        return kernel_entries(self.place.xp, self.kernel, shifted(rows), side)


@dataclass(frozen=True)
class PlacedTile:
    """Kernel entries of a tile of rows, kept on a place; products with them are float64.

    ``entries``: float32 or float64 (rows, m), an array of ``place``.
    """

    place: Place
    entries: Any

    def dots(self, V: FloatArray) -> FloatArray:
        """Return ``entries @ V`` on the host: float64 (rows, k), for V (m, k)."""
        return self.place.take_back(self._wide @ self.place.put(V))

    def sums(self, coefs: FloatArray, block: int) -> FloatArray:
        """Return ``coefs' @ entries`` on the host: float64 (k, m), for coefs (rows, k).

        Blocks of ``block`` rows are summed by themselves, and then added (`KernelTile.sums`).
        """
        xp, wide, factors = self.place.xp, self._wide, self.place.put(coefs.T)
        (rows, m), k = wide.shape, coefs.shape[1]
        whole = rows // block
        split = whole * block
        total = factors[:, split:] @ wide[split:, :]
        if whole:
            left = xp.permute_dims(xp.reshape(factors[:, :split], (k, whole, block)), (1, 0, 2))
            parts = xp.matmul(left, xp.reshape(wide[:split, :], (whole, block, m)))
            total = total + xp.sum(parts, axis=0)
        return self.place.take_back(total)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the entries of some of the rows, on the host: (chosen, m)."""
        places = self.place.put(rows, np.int64)
        return self.place.take_back(self.place.xp.take(self.entries, places, axis=0))

    @property
    def _wide(self) -> Any:
        """The entries as float64."""
        return self.place.cast(self.entries, np.float64)


@cache
def placed(kernel: Kernel, place: Place) -> PlacedKernel:
    """Return a kernel on a place: one object each, so that designs of one kernel share passes."""
    return PlacedKernel(kernel, place)


def place_model(model: Model, place: Place) -> Model:
    """Return a model whose scores of dense rows are computed on a place; itself if it is linear.

    Rows go there and their scores come back, a tile at a time.
    """

    def on_place(kernel: Kernel) -> Kernel:
        """Return the kernel on the place; itself if it has no array formula."""
        return placed(kernel, place) if isinstance(kernel, Compiled) else kernel

    return model.placed(on_place)


def place_design(design: Design, place: Place) -> Design:
    """Return a design whose kernel entries are computed on a place; itself without a kernel.

    Raw rows are not moved: a product with few columns takes less time than their way to a device.
    """
    if not isinstance(design.kernel, Compiled):
        return design
    return replace(design, kernel=placed(design.kernel, place), square=None)
