"""The features of rows on a device, in tiles: kept there, or recomputed in every pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from bigscreen.device.place import Place, is_out_of_memory
from bigscreen.errors import InputError
from bigscreen.features.design import Design, row_ranges
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.standard import (
    ChiSquared,
    Laplacian,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Polynomial,
    Rbf,
    Sigmoid,
)

TILE_ENTRIES = 2**23
"""Compute at most this many kernel entries (rows times landmarks) at a time."""


class Features:
    """The feature vectors ``phi_i = T' k(x_i, Z)`` of a range of rows i (see `Design`), in tiles.

    Features are kept if they fit, and else recomputed from the rows in every pass. Rows are then
    moved to the place once, if they fit, and else tile by tile in every pass, the next tile being
    read while the present one is used. Sums over rows are float64. Products of kept features are of
    their own type; columns that are recomputed are multiplied in float64, since the coefficients
    ``T w`` are much larger than w and cancel out.

    Parameters
    ----------
    design : Design
    rows : tuple of int
        The first row and the end of the range.
    place : Place
    dtype : type
        float32 or float64: of rows, kernel entries and features.
    room : float
        Bytes that features, or else rows, may take on the device.
    """

    def __init__(
        self, design: Design, rows: tuple[int, int], place: Place, dtype: type, room: float
    ) -> None:
        """Move landmarks and factor to the place, and the features or the rows if they fit."""
        self.design, self.place, self.xp, self.dtype = design, place, place.xp, dtype
        self.start, self.n = rows[0], rows[1] - rows[0]
        self.factor = None if design.factor is None else place.put(design.factor)
        self.landmarks = None
        if design.landmarks is not None:
            self.landmarks = place.put(_dense(design.landmarks.X), dtype)
        self.rows: Any = None
        self.kept: Any = None
        width = np.dtype(dtype).itemsize
        try:
            if self.factor is not None and width * self.n * design.rank <= room:
                self._keep()
            elif width * self.n * design.data.n_features <= room:
                self.rows = self._read(0, self.n)
                self.kept = self.rows if self.factor is None else None
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.kept = None  # (another program took the memory: go on with tiles)

    def dot(self, w: Any) -> Any:
        """Return ``phi_i . w_j`` of every row and column of w (r, k): float64 (n, k); one pass."""
        coef = w if self.kept is not None or self.factor is None else self.factor @ w
        found = [
            self._wide(tile @ self.place.cast(coef, self._type(tile)))
            for _, _, tile in self._tiles()
        ]
        return self.xp.concat(found) if found else self.place.zeros((0, w.shape[1]))

    def sums(self, coefs: Any) -> Any:
        """Return ``sum_i coefs_ij phi_i`` for float64 coefs (n, k): float64 (k, r); one pass."""
        found: Any = self.place.zeros((coefs.shape[1], self._width))
        for a, b, tile in self._tiles():
            part = self.place.cast(coefs[a:b, :], self._type(tile))
            found = found + self._wide(part.T @ tile)
        if self.kept is None and self.factor is not None:
            found = found @ self.factor
        return found

    def moment(self, ids: Any, border: Any, weights: Any) -> Any:
        """Return ``sum_k weights_k f f'`` over the rows ``f = [phi_i, border_k]``, ``i = ids_k``.

        ``ids``: int64 (k,), within the range; ``border``: float64 (k, extras), ``weights``: float64
        (k,). Features are formed before the product: in terms of kernel entries, the product would
        lose the small eigenvalues. float64 (size, size) with ``size = r + extras``.
        """
        size = self.design.rank + border.shape[1]
        found: Any = self.place.zeros((size, size))
        for a, b in row_ranges(ids.shape[0], self._tile_rows):
            both = self.xp.concat([self._wide(self._features(ids[a:b])), border[a:b, :]], axis=1)
            both = both * self.xp.sqrt(weights[a:b])[:, None]
            found = found + both.T @ both
        return found

    @property
    def _width(self) -> int:
        """Number of columns of a tile of a pass: of features if kept, else of kernel entries."""
        return self.design.rank if self.kept is not None else self.design.width

    @property
    def _tile_rows(self) -> int:
        """Rows of a tile."""
        return max(64, TILE_ENTRIES // max(self.design.width, 1))

    def _type(self, tile: Any) -> type:
        """Return the NumPy type of the products of a tile."""
        return np.float32 if tile.dtype == self.xp.float32 else np.float64

    def _wide(self, array: Any) -> Any:
        """Return an array as float64."""
        return self.place.cast(array, np.float64)

    def _tiles(self) -> Iterator[tuple[int, int, Any]]:
        """Yield the first row, the end and the columns of each tile of a pass over all rows."""
        ranges = row_ranges(self.n, self._tile_rows)
        if self.kept is not None:
            yield from ((a, b, self.kept[a:b, :]) for a, b in ranges)
        else:
            for (a, b), X in zip(ranges, self._row_tiles(ranges), strict=True):
                yield a, b, self._wide(self._columns(X))

    def _row_tiles(self, ranges: list[tuple[int, int]]) -> Iterator[Any]:
        """Yield the rows of each range, from the device or the host."""
        if self.rows is not None:
            return (self.rows[a:b, :] for a, b in ranges)
        return read_ahead(self._read, ranges)

    def _read(self, a: int, b: int) -> Any:
        """Read the rows from a to b of the range, and move them to the place."""
        X = self.design.data.X(self.start + a, self.start + b)
        return self.place.put(_dense(X), self.dtype)

    def _columns(self, X: Any) -> Any:
        """Return the columns of rows X (rows, d): X itself, or kernel entries with landmarks."""
        if self.landmarks is None:
            return X
        assert self.design.kernel is not None
        return kernel_entries(self.xp, self.design.kernel, X, self.landmarks)

    def _features(self, ids: Any) -> Any:
        """Return the features phi (k, r) of the rows ``ids`` (k,)."""
        if self.kept is not None:
            return self.xp.take(self.kept, ids, axis=0)
        if self.rows is not None:
            X = self.xp.take(self.rows, ids, axis=0)
        else:
            places = self.start + self.place.take_back(ids)
            X = self.place.put(_dense(self.design.data.rows(places)), self.dtype)
        return self._project(self._columns(X))

    def _project(self, columns: Any) -> Any:
        """Return the features ``T' c`` (rows, r) of columns c (rows, m)."""
        if self.factor is None:
            return columns
        return columns @ self.place.cast(self.factor, self.dtype)

    def _keep(self) -> None:
        """Compute the features of all rows, and keep them on the device."""
        kept = self.place.zeros((self.n, self.design.rank), self.dtype)
        ranges = row_ranges(self.n, self._tile_rows)
        for (a, b), X in zip(ranges, self._row_tiles(ranges), strict=True):
            kept[a:b, :] = self._project(self._columns(X))
        self.kept = kept


def read_ahead(read: Callable[[int, int], Any], ranges: Sequence[tuple[int, int]]) -> Iterator[Any]:
    """Yield ``read(a, b)`` for each range; a thread reads the next one in the meantime."""
    with ThreadPoolExecutor(1) as thread:
        coming = [thread.submit(read, *each) for each in ranges[:1]]
        for after in [*ranges[1:], None]:
            if not coming:
                return
            tile = coming.pop().result()
            if after is not None:
                coming.append(thread.submit(read, *after))
            yield tile


def kernel_entries(xp: Any, kernel: Kernel, X: Any, Z: Any) -> Any:
    """Return the entries ``k(x, z)`` of rows X (n, d) and Z (m, d), of one float type: (n, m).

    Raises
    ------
    InputError
        For a kernel that is not one of the named ones.
    """
    if isinstance(kernel, Laplacian):
        return xp.exp(-kernel.gamma * _sum_columns(X, Z, lambda a, b: xp.abs(a - b)))
    if isinstance(kernel, ChiSquared):

        def ratio(a: Any, b: Any) -> Any:
            """Return ``(a - b)^2 / (a + b)``, or 0 if both are 0."""
            total = a + b
            return (a - b) ** 2 / xp.where(total > 0, total, xp.ones_like(total))

        return xp.exp(-kernel.gamma * _sum_columns(X, Z, ratio))
    if isinstance(kernel, (Matern12, Matern32, Matern52)):
        # (From differences: the root of a difference of squares loses half of the digits.)
        apart = kernel.gamma * xp.sqrt(_sum_columns(X, Z, lambda a, b: (a - b) ** 2))
        if isinstance(kernel, Matern12):
            return xp.exp(-apart)
        if isinstance(kernel, Matern32):
            s = math.sqrt(3) * apart
            return (1 + s) * xp.exp(-s)
        s = math.sqrt(5) * apart
        return (1 + s + s**2 / 3) * xp.exp(-s)
    if not isinstance(kernel, (Linear, Rbf, Polynomial, Sigmoid)):
        raise InputError(
            f"the kernel {kernel.name} has no array operations; use the processor (device cpu) and "
            "solver auto"
        )
    products = X @ Z.T
    if isinstance(kernel, Linear):
        return products
    if isinstance(kernel, Rbf):
        sizes_x, sizes_z = _sqnorms(xp, X), _sqnorms(xp, Z)
        if X.dtype == xp.float64 and kernel.coarse(np.array([_largest(xp, sizes_x, sizes_z) / 2])):
            return xp.exp(-kernel.gamma * _sum_columns(X, Z, lambda a, b: (a - b) ** 2))
        sizes = sizes_x[:, None] + sizes_z[None, :]
        return xp.exp(-kernel.gamma * xp.clip(sizes - 2.0 * products, min=0.0))
    inner = kernel.gamma * products + kernel.coef0
    return inner**kernel.degree if isinstance(kernel, Polynomial) else xp.tanh(inner)


def _largest(xp: Any, *arrays: Any) -> float:
    """Return the largest number of some arrays (k,) of numbers that are not negative, 0 if none."""
    return max(float(xp.max(array)) if array.shape[0] else 0.0 for array in arrays)


def _sqnorms(xp: Any, X: Any) -> Any:
    """Return the squared norms of rows X (n, d), summed in float64, as X's type: (n,)."""
    return xp.astype(xp.sum(X**2, axis=1, dtype=xp.float64), X.dtype, copy=False)


def _sum_columns(X: Any, Z: Any, term: Callable[[Any, Any], Any]) -> Any:
    """Sum ``term(x_j, z_j)`` over columns j, for all rows x of X and z of Z: (n, m)."""
    pairs = ((X[:, j][:, None], Z[:, j][None, :]) for j in range(X.shape[1]))
    found = term(*next(pairs))
    for pair in pairs:
        found = found + term(*pair)
    return found


def _dense(X: Any) -> Any:
    """Return rows as a dense array."""
    return X.toarray() if hasattr(X, "toarray") else X
