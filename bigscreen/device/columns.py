"""Kernel columns of an exact machine on a device: computed there, and cached in its memory.

The block solver's shards ask for sums of kernel columns (`DeviceColumns.accumulate`), and its
coordinator for the kernel matrix of a block (`PlacedKernel.block`). Both are computed on the
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
from bigscreen.device.kernel import placed
from bigscreen.device.place import CPU, Place, is_out_of_memory
from bigscreen.errors import InputError
from bigscreen.features.design import row_ranges
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray
from bigscreen.solvers.block.tuning import BlockTuning

TILE_COLUMNS = 1024
"""Compute entries of at most this many kernel columns at a time, and of as many rows of each as
make `TILE_ENTRIES` entries."""


def column_work_bytes(d: int) -> int:
    """Return the bytes that columns of rows (d,) take next to the rows and the cached columns.

    In float64: a tile of entries and what they are computed from, a tile of rows, the rows of a
    round, and the rows of a block.
    """
    tuning = BlockTuning()
    rows = tuning.rows_per_round + tuning.max_whole_block
    return 8 * (6 * TILE_ENTRIES + d * rows)


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

    def kernel(self, kernel: Kernel) -> Kernel:
        """Return the kernel on the place, whose bounds hold for sums in any order."""
        return placed(kernel, self.place)


class DeviceColumns:
    """Cached kernel columns on a device: ``store[k, i] = k(x_j, x_i)`` if slot k holds row j.

    `KernelCache` does the same in the host's memory. Here a new column takes the slot that was
    filled longest ago, so that the columns of a call adjoin and are copied at once.

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
    slot_of : dict
        The slot of each row j that has one.
    oldest : int
        The slot to fill next.
    entries : int
        Kernel entries computed so far.
    """

    def __init__(
        self, backend: DeviceBackend, kernel: Kernel, side: Operand, capacity: int, dtype: type
    ) -> None:
        """Move the rows to the device if they are to stay there, and allocate the slots."""
        self.kernel, self.dtype = kernel, dtype
        self.place, self.xp = backend.place, backend.place.xp
        self.origin = _origin(kernel, side)
        self.entries = self.oldest = 0
        self.slot_of: dict[int, int] = {}
        self.owner = np.empty(0, np.int64)
        self.store: Any = None
        self.kept: Any = None
        self.keep_rows = backend.keep_rows and capacity > 0  # (without a cache: rows are used once)
        self._place_rows(side)
        self._allocate(capacity)

    def accumulate(
        self, rows: Operand, slots: NDArray[np.int64], coef: FloatArray, scores: FloatArray
    ) -> None:
        """Add ``sum_j coef_j k(x_j, .)`` over these rows to the scores (rows of side,).

        Columns that the cache lacks are computed, and stored.

        Parameters
        ----------
        rows : Operand of k rows, with ids
        slots : int64 (k,)
            -1: do not store the columns. (Other slots are not used, see `KernelCache`.)
        coef : float64 (k,)
        scores : float64 (rows of side,)
            Updated.
        """
        assert rows.ids is not None
        while True:
            try:
                with _ONE_AT_A_TIME:
                    scores += self._sum(rows, coef, not np.any(slots < 0))
                return
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            self._make_room()

    def compact(self, side: Operand, keep: NDArray[np.int64]) -> None:
        """Replace the side by some of its rows, and shorten the cached columns to their entries.

        ``side``: the rows that are kept; ``keep``: their places among the rows so far, ascending.
        If the device has no memory for the shorter columns next to the present ones, all are
        dropped.
        """
        before, count = self.store, len(self.owner)
        with _ONE_AT_A_TIME:
            self._place_rows(side)
            places = self.place.put(keep, np.int64)
            try:
                self.store = self.place.zeros((count, len(side)), self.dtype)
                for a, b in row_ranges(count, TILE_COLUMNS):
                    self.store[a:b, :] = self.xp.take(before[a:b, :], places, axis=1)
                return
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            del self.store, before
            self._allocate(count)

    def _sum(self, rows: Operand, coef: FloatArray, should_store: bool) -> FloatArray:
        """Return ``sum_j coef_j k(x_j, .)`` over these rows (rows of side,), and store new columns.

        Tile by tile: a tile's entries that are cached are added before their slots are filled anew.
        """
        ids: Any = rows.ids
        slot = np.array([self.slot_of.get(row, -1) for row in ids.tolist()], np.int64)
        known, new = np.flatnonzero(slot >= 0), np.flatnonzero(slot < 0)
        filled = self._take_slots(len(new) if should_store else 0)
        Z = self.place.put(_shifted(rows.X[new], self.origin), self.dtype)
        sums, wide = [np.empty(0)], max(1, min(TILE_COLUMNS, len(coef)), self.X.shape[1])
        for a, b in row_ranges(len(self.X), max(1, TILE_ENTRIES // wide)):
            total = self._sum_cached(a, b, slot[known], coef[known])
            total = total + self._sum_new(a, b, Z, coef[new], filled)
            sums.append(self.place.take_back(total))
        self.owner[filled] = ids[new[: len(filled)]]
        self.slot_of.update(zip(self.owner[filled].tolist(), filled.tolist(), strict=True))
        self.entries += len(new) * len(self.X)
        return np.concatenate(sums)

    def _take_slots(self, count: int) -> NDArray[np.int64]:
        """Empty the slots that were filled longest ago, at most ``count``; return them in order."""
        every = len(self.owner)
        slots = (self.oldest + np.arange(min(count, every))) % max(1, every)
        for row in self.owner[slots].tolist():
            self.slot_of.pop(row, None)
        self.owner[slots] = -1
        self.oldest = (self.oldest + len(slots)) % max(1, every)
        return slots

    def _sum_cached(self, a: int, b: int, slots: NDArray[np.int64], coef: FloatArray) -> Any:
        """Return ``sum_j coef_j store[slots_j, a:b]``, float64 (b - a,) on the device."""
        total, place = self.place.zeros((b - a,)), self.place
        for c, e in row_ranges(len(slots), TILE_COLUMNS):
            at = place.put(slots[c:e], np.int64)
            block = self.xp.take(self.store[:, a:b], at, axis=0)
            total = total + place.put(coef[c:e]) @ place.cast(block, np.float64)
        return total

    def _sum_new(self, a: int, b: int, Z: Any, coef: FloatArray, slots: NDArray[np.int64]) -> Any:
        """Compute the entries of rows Z (k, d) with the side's rows [a, b), and sum them.

        The first of them are copied into ``slots``. Returns ``sum_j coef_j k(z_j, x_i)``, float64
        (b - a,) on the device.
        """
        total, place = self.place.zeros((b - a,)), self.place
        X = self._rows_at(a, b) if len(coef) else None
        for c, e in row_ranges(len(coef), TILE_COLUMNS):
            block = kernel_entries(self.xp, self.kernel, Z[c:e, :], X)
            total = total + place.put(coef[c:e]) @ place.cast(block, np.float64)
            into = slots[c:e]
            # (The standard assigns to slices only; slots adjoin, but for the return to the first.)
            turn = int(np.argmin(into)) if len(into) else 0
            for run, first in ((into[:turn], 0), (into[turn:], turn)):
                if len(run):
                    part = block[first : first + len(run), :]
                    self.store[int(run[0]) : int(run[-1]) + 1, a:b] = part
        return total

    def _make_room(self) -> None:
        """Drop all cached columns, or else the rows, from the device, which has no memory left."""
        if not len(self.owner) and self.kept is None:
            raise InputError(
                f"the device has no memory for {TILE_ENTRIES} kernel entries; use the processor "
                "(device cpu)"
            )
        if not len(self.owner):
            self.kept, self.keep_rows = None, False
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
        if self.keep_rows:
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
        self.owner, self.slot_of, self.oldest = np.full(capacity, -1), {}, 0


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
