"""A cache of kernel columns that drops the least recently used ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.kernels.base import Kernel
from bigscreen.kernels.entries import ROW_MULTIPLE, pad_places
from bigscreen.kernels.operand import Operand, scratch
from bigscreen.kernels.standard import Compiled
from bigscreen.numerics.rows import FloatArray, njit

CHUNK_COLUMNS = 512
"""Compute this many kernel columns at a time, and add them to the scores, which bounds the memory.
It is a multiple of ROW_MULTIPLE, to which columns are padded."""


class Slots:
    """The slots of cached rows, reused in least-recently-used order.

    Several caches (one per shard) can follow one `Slots`.

    Parameters
    ----------
    capacity : int
        Number of slots.
    n_rows : int
        Number of rows of the data.

    Attributes
    ----------
    slot : int64 (n_rows,)
        The slot of each row, -1 if it has none.
    owner : int64 (capacity,)
        The row that each slot belongs to, -1 if it is empty.
    used : int64 (capacity,)
        When each slot was last used (`clock`), -1 if never.
    """

    def __init__(self, capacity: int, n_rows: int) -> None:
        """Make slots that no row has yet, at most one for each row of the data.

        A slot is a place in a cache of kernel rows: ``capacity`` slots for the ``n_rows`` rows of
        the data.
        """
        self.capacity = min(capacity, n_rows)
        self.slot = np.full(n_rows, -1)
        self.owner = np.full(self.capacity, -1)
        self.used = np.full(self.capacity, -1)
        self.clock = 0

    def use(self, row: int) -> tuple[int, bool]:
        """Return the slot of one row, and whether the row had it before this call.

        A row without a slot gets the least recently used one, which its owner loses. A slot is a
        row's place in a cache; ``clock`` counts calls, and ``used`` says when each was used.
        """
        self.clock += 1
        place = int(self.slot[row])
        found = place >= 0
        if not found:
            place = int(np.argmin(self.used))
            if self.owner[place] >= 0:
                self.slot[self.owner[place]] = -1
            self.owner[place], self.slot[row] = row, place
        self.used[place] = self.clock
        return place, found

    def grow(self, capacity: int) -> None:
        """Add slots up to this capacity, at most one per row of the data.

        ``capacity``: the wanted number. New slots are empty.
        """
        more = np.full(min(capacity, len(self.slot)) - self.capacity, -1)
        self.owner, self.used = np.append(self.owner, more), np.append(self.used, more)
        self.capacity = len(self.owner)

    def assign(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give each of the rows ``ids`` (k,) a slot, and return the slots: int64 (k,).

        Rows that have a slot keep it; the others get the least recently used slots. If there are
        more rows than slots, none gets one, and -1 is returned for all.
        """
        if len(ids) > self.capacity:
            return np.full(len(ids), -1)
        self.clock += 1
        slots = self.slot[ids]
        self.used[slots[slots >= 0]] = self.clock
        new = np.flatnonzero(slots < 0)
        # A stable sort: unused slots come first, in ascending order.
        places = np.sort(np.argsort(self.used, kind="stable")[: len(new)])
        before = self.owner[places]
        self.slot[before[before >= 0]] = -1
        self.owner[places], self.used[places], self.slot[ids[new]] = ids[new], self.clock, places
        return self.slot[ids]


class KernelCache:
    """Cached kernel columns: ``store[k, i] = k(x_j, x_i)`` if row j of the data has slot k.

    Parameters
    ----------
    kernel : Kernel
    side : Operand
        The rows i with which each cached row j of the data has an entry.
    capacity : int
        Number of slots.
    dtype : float32 or float64
        Type of the entries.
    padded : bool
        Compute entries in multiples of ROW_MULTIPLE rows of either side, so that the bits of an
        entry do not depend on which rows are computed together.

    Attributes
    ----------
    store : array (slots, rows of side) of ``dtype``
        The entries; if ``padded``, with up to ROW_MULTIPLE more slots and rows, as padding.
    owner : int64 (slots,)
        The row j that each slot holds, -1 if it is empty.
    entries : int
        Kernel entries computed so far.
    """

    def __init__(
        self, kernel: Kernel, side: Operand, capacity: int, dtype: type, padded: bool = True
    ) -> None:
        """Allocate the memory of the cache; no column is computed yet.

        Each of ``capacity`` slots is for the kernel entries of one row of the data with all rows of
        ``side``, of type ``dtype``. ``padded``: with extra rows, so that the bits of an entry do
        not depend on which rows are computed together.
        """
        self.kernel, self.dtype, self.padded = kernel, dtype, padded
        self.side, self.rows = self._whole(side), len(side)
        # The system provides memory as columns fill it. BLAS writes multiples of ROW_MULTIPLE.
        more = ROW_MULTIPLE if padded else 0
        self.store: NDArray[Any] = np.empty((capacity + more, len(self.side)), dtype)
        self.owner = np.full(capacity + more, -1)
        self.entries = 0

    def accumulate(
        self, rows: Operand, slots: NDArray[np.int64], coef: FloatArray, scores: FloatArray
    ) -> None:
        """Add ``sum_j coef_j k(x_j, .)`` over these rows to the scores, in the order of the rows.

        Columns that the cache lacks are computed, and stored in the given slots.

        Parameters
        ----------
        rows : Operand of k rows, with ids
        slots : int64 (k,)
            The rows' slots in the cache (see `Slots.assign`): a column of another row there is
            overwritten. All -1: do not store the columns.
        coef : float64 (k,)
        scores : float64 (rows of side,)
            Updated.
        """
        assert rows.ids is not None
        for a in range(0, len(coef), CHUNK_COLUMNS):
            piece = np.arange(a, min(a + CHUNK_COLUMNS, len(coef)))
            places, ids = slots[piece], rows.ids[piece]
            if places[0] < 0:
                store, places = self._compute(rows, piece), np.arange(len(piece))
                add_columns(store, places, coef[piece], scores)
                continue
            missing = np.flatnonzero(self.owner[places] != ids)
            if len(missing):
                new, count = places[missing], len(missing)
                end = new[0] + -(-count // ROW_MULTIPLE) * ROW_MULTIPLE
                # Compute in place if the new slots are adjacent and the padding overwrites nothing.
                if np.all(np.diff(new) == 1) and np.all(self.owner[new[-1] + 1 : end] < 0):
                    self._compute(rows, piece[missing], self.store[new[0] :])
                else:
                    self.store[new] = self._compute(rows, piece[missing])[:count]
                self.owner[new] = ids[missing]
            add_columns(self.store, places, coef[piece], scores)

    def compute_row(self, row: Operand, slot: int) -> NDArray[Any]:
        """Compute the entries of one row with all rows of the side into this slot, and return them.

        ``row``: an Operand of one row, with its id.
        """
        assert row.ids is not None
        self.owner[slot] = row.ids[0]
        self.entries += self.rows
        out: NDArray[Any] = self.store[slot]
        self.kernel.block(row, self.side, out=out[None], dtype=self.dtype)
        return out

    def _compute(
        self, rows: Operand, places: NDArray[np.int64], out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Compute the kernel entries of the rows at these places with all rows of the cache's side.

        Returns an array (places padded to a ROW_MULTIPLE, rows of the side), within ``out`` or, if
        None, this thread's buffer, which the next call overwrites.
        """
        # Padded, so that a cached column and a recomputed one have the same bits.
        padded = pad_places(places)
        if out is None:
            out = scratch("kernel columns", (len(padded), len(self.side)), self.dtype)
        self.entries += len(places) * self.rows
        block = out[: len(padded)]
        return self.kernel.block(rows.X[padded], self.side, out=block, dtype=self.dtype)

    def _whole(self, side: Operand) -> Operand:
        """Return the rows, padded with copies of the first to a ROW_MULTIPLE if BLAS is used.

        Without padding (``padded`` False, or no compiled kernel) ``side`` is returned as it is.
        """
        if (
            not self.padded
            or len(side) % ROW_MULTIPLE == 0
            or not isinstance(self.kernel, Compiled)
        ):
            return side
        return side.part(pad_places(np.arange(len(side))))

    def compact(self, side: Operand, keep: NDArray[np.int64], most: int = 0) -> None:
        """Replace the side by some of its rows, and use the memory of the others for more slots.

        Parameters
        ----------
        side : Operand
            The rows of the present side that are kept.
        keep : int64
            Their places among the rows so far, ascending.
        most : int
            Have at most this many slots (but never fewer than before).
        """
        old, before = self.store, self.side
        self.side, self.rows = self._whole(side), len(side)
        if isinstance(self.kernel, Compiled):
            # With the origin and grid of all rows, so that recomputed entries have the same bits.
            self.side.copy_measures(before)
        # In place: new memory costs more than copying.
        flat, width = old.reshape(-1), len(self.side)
        squeeze(flat, old.shape[1], width, np.flatnonzero(self.owner >= 0), keep)
        count = max(len(old), min(most, len(flat) // max(1, width)))
        self.store = flat[: count * width].reshape(count, width)
        self.owner = np.append(self.owner, np.full(count - len(self.owner), -1))


@njit(cache=True, nogil=True)
def squeeze(
    store: NDArray[Any], before: int, after: int, slots: NDArray[np.int64], keep: NDArray[np.int64]
) -> None:
    """Keep the entries ``keep`` (ascending) of each of these slots, and move the slots together.

    ``store``: flat memory, in which slots of ``before`` entries become slots of ``after`` entries,
    in place.
    """
    for slot in slots:
        for j in range(len(keep)):
            store[slot * after + j] = store[slot * before + keep[j]]


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})
def add_columns(
    store: NDArray[Any], slots: NDArray[np.int64], coef: FloatArray, scores: FloatArray
) -> None:
    """Add ``sum_j coef_j store[slots_j]`` to the scores (n,), which are float64.

    Four columns are added per sweep over 1,024 scores at a time, so that these stay in the cache.
    Entries of `store` beyond the first n of a slot are padding, and are not read.
    """
    n, tile = len(scores), 1024
    sums = np.empty(tile)
    for a in range(0, n, tile):
        b = min(n, a + tile)
        total = sums[: b - a]
        total[:] = 0.0
        for j in range(0, len(slots) - 3, 4):
            c0, c1, c2, c3 = coef[j], coef[j + 1], coef[j + 2], coef[j + 3]
            k0, k1 = store[slots[j], a:b], store[slots[j + 1], a:b]
            k2, k3 = store[slots[j + 2], a:b], store[slots[j + 3], a:b]
            for i in range(b - a):
                total[i] += (c0 * k0[i] + c1 * k1[i]) + (c2 * k2[i] + c3 * k3[i])
        for j in range(len(slots) - len(slots) % 4, len(slots)):
            c0, k0 = coef[j], store[slots[j], a:b]
            for i in range(b - a):
                total[i] += c0 * k0[i]
        for i in range(b - a):
            scores[a + i] += total[i]
