"""Kernel columns of an exact machine on a device: computed there, and cached in its memory.

The block solver's shards ask for sums of kernel columns (`DeviceColumns.accumulate`), and its
coordinator for the kernel matrix of a block (`DeviceBackend.square`). Both are computed on the
device; what comes back is one float64 number for each row of the shard, or the block's matrix.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.device.features import TILE_ENTRIES, kernel_entries
from bigscreen.device.place import CPU, Place, is_out_of_memory
from bigscreen.errors import InputError
from bigscreen.features.design import row_ranges
from bigscreen.kernels.backend import RowsOfSquare
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray

TILE_COLUMNS = 1024
"""Compute entries of at most this many kernel columns at a time, and of as many rows of each as
make `TILE_ENTRIES` entries."""

_ONE_AT_A_TIME = threading.Lock()
"""Held while a shard uses the device, so that threads do not take memory for several tiles."""


@dataclass(frozen=True)
class DeviceBackend:
    """Kernel entries by array operations of a device (see `KernelBackend`), for dense rows.

    Entries are float32 or float64, as the solver requests; sums of columns are always float64.

    Parameters
    ----------
    place : Place
        Where arrays live.
    keep_rows : bool
        Move the rows to the device once. Else they are sent again, tile by tile, whenever columns
        are computed.
    """

    place: Place = CPU
    keep_rows: bool = True

    def columns(self, kernel: Kernel, side: Operand, capacity: int, dtype: type) -> DeviceColumns:
        """Return an empty cache of columns on the device; see `KernelBackend.columns`."""
        return DeviceColumns(self, kernel, side, capacity, dtype)

    def square(self, kernel: Kernel, side: Operand, dtype: type) -> RowsOfSquare:
        """Return a function that computes rows of a kernel matrix; see `KernelBackend.square`."""
        place, xp = self.place, self.place.xp
        X = place.put(_shifted(side.X, _origin(kernel, side)), dtype)

        def rows(places: NDArray[Any], out: NDArray[Any]) -> None:
            """Write the entries of the rows at ``places`` with all rows to ``out``."""
            with _ONE_AT_A_TIME:
                some = xp.take(X, place.put(places, np.int64), axis=0)
                out[:] = place.take_back(kernel_entries(xp, kernel, some, X))

        return rows


class DeviceColumns:
    """Cached kernel columns on a device: ``store[k, i] = k(x_j, x_i)`` if row j has slot k.

    See `KernelCache`, which does the same in the host's memory.

    Parameters
    ----------
    backend : DeviceBackend
    kernel : Kernel
    side : Operand
        The rows i, dense, with which each cached row j of the data has an entry.
    capacity : int
        Number of slots; fewer if the device has no memory for them.
    dtype : float32 or float64
        Type of the entries.

    Attributes
    ----------
    store : array (slots, rows of side) of ``dtype``, on the device
    owner : int64 (slots,)
        The row j that each slot holds, -1 if it is empty.
    entries : int
        Kernel entries computed so far.
    """

    store: Any
    owner: NDArray[np.int64]
    kept: Any

    def __init__(
        self, backend: DeviceBackend, kernel: Kernel, side: Operand, capacity: int, dtype: type
    ) -> None:
        """Move the rows to the device if they are to stay there, and allocate the slots."""
        self.backend, self.kernel, self.dtype = backend, kernel, dtype
        self.place, self.xp = backend.place, backend.place.xp
        self.origin = _origin(kernel, side)
        self.entries = 0
        self._place_rows(side)
        self._allocate(capacity)

    def accumulate(
        self, rows: Operand, slots: NDArray[np.int64], coef: FloatArray, scores: FloatArray
    ) -> None:
        """Add ``sum_j coef_j k(x_j, .)`` over these rows to the scores (rows of side,).

        Columns that the cache lacks are computed, and stored in the given slots; see
        `KernelCache.accumulate`.

        Parameters
        ----------
        rows : Operand of k rows, with ids
        slots : int64 (k,)
            The rows' slots in the cache, or all -1.
        coef : float64 (k,)
        scores : float64 (rows of side,)
            Updated.
        """
        assert rows.ids is not None
        known = np.zeros(len(coef), np.bool_)
        cached = np.flatnonzero(self._has_slot(slots))
        known[cached] = self.owner[slots[cached]] == rows.ids[cached]
        new = np.flatnonzero(~known)
        try:
            with _ONE_AT_A_TIME:
                Z = self.place.put(_shifted(rows.X[new], self.origin), self.dtype)
                total = [
                    self.place.take_back(
                        self._add_cached(a, b, slots[known], coef[known])
                        + self._add_new(a, b, Z, slots[new], coef[new])
                    )
                    for a, b in row_ranges(len(scores), TILE_ENTRIES // TILE_COLUMNS)
                ]
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._make_room()
            self.accumulate(rows, slots, coef, scores)
            return
        scores += np.concatenate([np.empty(0), *total])
        there = new[self._has_slot(slots[new])]
        self.owner[slots[there]] = rows.ids[there]
        self.entries += len(new) * len(scores)

    def compact(self, side: Operand, keep: NDArray[np.int64]) -> None:
        """Replace the side by some of its rows, and shorten the cached columns to their entries.

        ``side``: the rows that are kept; ``keep``: their places among the rows so far, ascending.
        If the device has no memory for the shorter columns next to the present ones, all are
        dropped.
        """
        before, owner = self.store, self.owner
        with _ONE_AT_A_TIME:
            self._place_rows(side)
            places = self.place.put(keep, np.int64)
            try:
                self.store = self.place.zeros((len(owner), len(side)), self.dtype)
                for a, b in row_ranges(len(owner), TILE_COLUMNS):
                    self.store[a:b, :] = self.xp.take(before[a:b, :], places, axis=1)
                return
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            del self.store, before
            self._allocate(len(owner))

    def _add_cached(self, a: int, b: int, slots: NDArray[np.int64], coef: FloatArray) -> Any:
        """Return ``sum_j coef_j store[slots_j, a:b]``, float64 (b - a,) on the device."""
        total, place = self.place.zeros((b - a,)), self.place
        for c, e in row_ranges(len(slots), TILE_COLUMNS):
            at = place.put(slots[c:e], np.int64)
            block = self.xp.take(self.store[:, a:b], at, axis=0)
            total = total + place.put(coef[c:e]) @ place.cast(block, np.float64)
        return total

    def _add_new(self, a: int, b: int, Z: Any, slots: NDArray[np.int64], coef: FloatArray) -> Any:
        """Compute the entries of rows Z with the side's rows [a, b), cache them, add them up.

        ``Z`` (k, d): on the device; ``slots``, ``coef`` (k,): their slots and coefficients.
        Returns ``sum_j coef_j k(z_j, x_i)``, float64 (b - a,) on the device.
        """
        total, place = self.place.zeros((b - a,)), self.place
        if not len(slots):
            return total
        X = self._rows_at(a, b)
        for c, e in row_ranges(len(slots), TILE_COLUMNS):
            block = kernel_entries(self.xp, self.kernel, Z[c:e, :], X)
            total = total + place.put(coef[c:e]) @ place.cast(block, np.float64)
            self._write(block, slots[c:e], a, b)
        return total

    def _write(self, block: Any, slots: NDArray[np.int64], a: int, b: int) -> None:
        """Copy the entries ``block`` (k, b - a) with the side's rows [a, b) into their slots (k,).

        The standard assigns to slices only: a copy for each run of slots that adjoin, as most do.
        """
        at = np.flatnonzero(self._has_slot(slots))
        ends = np.flatnonzero((np.diff(at) != 1) | (np.diff(slots[at]) != 1)) + 1
        for run in np.split(at, ends) if len(at) else ():
            first, count = int(slots[run[0]]), len(run)
            self.store[first : first + count, a:b] = block[int(run[0]) : int(run[0]) + count, :]

    def _has_slot(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these slots the device has memory for (-1: a row without a slot)."""
        return (slots >= 0) & (slots < len(self.owner))

    def _make_room(self) -> None:
        """Drop all cached columns, or else the rows, from the device, which has no memory left."""
        if not len(self.owner) and self.kept is None:
            raise InputError(
                f"the device has no memory for {TILE_ENTRIES} kernel entries; use the processor "
                "(device cpu)"
            )
        if not len(self.owner):
            self.kept = None
        self._allocate(0)

    def _rows_at(self, a: int, b: int) -> Any:
        """Return the side's rows [a, b) as an array (b - a, d) on the device."""
        if self.kept is not None:
            return self.kept[a:b, :]
        return self.place.put(_shifted(self.X[a:b], self.origin), self.dtype)

    def _place_rows(self, side: Operand) -> None:
        """Take over the rows of a side, and move them to the device if they are to stay there."""
        self.X = _dense(side.X)
        self.kept = None
        if self.backend.keep_rows:
            try:
                self.kept = self.place.put(_shifted(self.X, self.origin), self.dtype)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise  # (else rows are sent tile by tile)

    def _allocate(self, capacity: int) -> None:
        """Make ``capacity`` empty slots, or half as many until the device has memory for them."""
        while True:
            try:
                self.store = self.place.zeros((capacity, len(self.X)), self.dtype)
                break
            except Exception as error:
                if not is_out_of_memory(error) or not capacity:
                    raise
                capacity //= 2
        self.owner = np.full(capacity, -1)


def _origin(kernel: Kernel, side: Operand) -> NDArray[Any]:
    """Return the point (d,) that rows are measured from: less is rounded off near their mean."""
    X = _dense(side.X)
    return side.origin if kernel.invariant else np.zeros(X.shape[1], X.dtype)


def _shifted(X: Any, origin: NDArray[Any]) -> NDArray[Any]:
    """Return dense rows less the origin, computed in float64 unless there is no shift."""
    return X - origin.astype(np.float64) if origin.any() else np.asarray(X)


def _dense(X: Any) -> NDArray[Any]:
    """Return dense rows as they are; InputError for sparse rows."""
    if sparse.issparse(X):
        raise InputError(
            "exact kernel machines of sparse rows are not computed on a device; use the processor "
            "(device cpu), or landmarks"
        )
    return np.asarray(X)
