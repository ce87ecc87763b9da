"""Kernel entries between some rows and all rows of a side; the least recently used make room."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.kernels.base import Kernel
from bigscreen.kernels.entries import PAD, whole
from bigscreen.kernels.operand import Operand, scratch
from bigscreen.kernels.standard import Compiled
from bigscreen.numerics.rows import FloatArray, njit

PIECE = 512
"""Columns computed at once; a multiple of PAD."""


class Slots:
    """Which rows have their entries kept, and where: several caches may share the places.

    Parameters
    ----------
    capacity : int
        Rows whose entries there is room for; the least recently used go first.
    n_rows : int
        Rows of the data.
    """

    def __init__(self, capacity: int, n_rows: int) -> None:
        self.capacity = min(capacity, n_rows)
        self.slot = np.full(n_rows, -1)
        self.owner = np.full(self.capacity, -1)
        self.used = np.full(self.capacity, -1)
        self.clock = 0

    def use(self, row: int) -> tuple[int, bool]:
        """The slot of one row, and whether it was there; else the least recently used slot."""
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
        """Make room for more rows, at most all there are."""
        more = np.full(min(capacity, len(self.slot)) - self.capacity, -1)
        self.owner, self.used = np.append(self.owner, more), np.append(self.used, more)
        self.capacity = len(self.owner)

    def assign(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """A slot for each of these rows; -1 for all of them if there are too many to keep."""
        if len(ids) > self.capacity:
            return np.full(len(ids), -1)
        self.clock += 1
        slots = self.slot[ids]
        self.used[slots[slots >= 0]] = self.clock
        new = np.flatnonzero(slots < 0)
        # A stable order: unused slots come first, one after the other.
        places = np.sort(np.argsort(self.used, kind="stable")[: len(new)])
        before = self.owner[places]
        self.slot[before[before >= 0]] = -1
        self.owner[places], self.used[places], self.slot[ids[new]] = ids[new], self.clock, places
        return self.slot[ids]


class KernelCache:
    """``store[k, i] = k(x_j, x_i)`` for some rows j of the data, a slot k each, and rows i.

    Parameters
    ----------
    kernel : Kernel
    side : Operand
        Rows of the data.
    capacity : int
        Slots that there is room for.
    dtype : float32 or float64
        Of the entries.
    padded : bool
        Compute entries in multiples of PAD rows of either side: their bits then do not depend on
        which rows are computed with them.

    Attributes
    ----------
    entries : int
        Kernel entries computed so far.
    """

    def __init__(
        self, kernel: Kernel, side: Operand, capacity: int, dtype: type, padded: bool = True
    ) -> None:
        self.kernel, self.dtype, self.padded = kernel, dtype, padded
        self.side, self.rows = self._whole(side), len(side)
        # Memory is taken as columns fill it; BLAS writes whole multiples of PAD.
        more = PAD if padded else 0
        self.store: NDArray[Any] = np.empty((capacity + more, len(self.side)), dtype)
        self.owner = np.full(capacity + more, -1)
        self.entries = 0

    def accumulate(
        self, rows: Operand, slots: NDArray[np.int64], coef: FloatArray, scores: FloatArray
    ) -> None:
        """``scores += sum_j coef_j k(x_j, .)`` over these rows, in their order.

        ``slots`` are where columns may be kept; what a slot holds of another row is overwritten.
        """
        assert rows.ids is not None
        for a in range(0, len(coef), PIECE):
            piece = np.arange(a, min(a + PIECE, len(coef)))
            places, ids = slots[piece], rows.ids[piece]
            if places[0] < 0:
                store, places = self._compute(rows, piece), np.arange(len(piece))
                add_columns(store, places, coef[piece], scores)
                continue
            missing = np.flatnonzero(self.owner[places] != ids)
            if len(missing):
                new, count = places[missing], len(missing)
                end = new[0] + -(-count // PAD) * PAD
                # One after the other, but not where a shard has forgotten what is in its slots.
                if np.all(np.diff(new) == 1) and np.all(self.owner[new[-1] + 1 : end] < 0):
                    self._compute(rows, piece[missing], self.store[new[0] :])
                else:
                    self.store[new] = self._compute(rows, piece[missing])[:count]
                self.owner[new] = ids[missing]
            add_columns(self.store, places, coef[piece], scores)

    def compute_row(self, row: Operand, slot: int) -> NDArray[Any]:
        """The entries of one row, computed to this slot."""
        assert row.ids is not None
        self.owner[slot] = row.ids[0]
        self.entries += self.rows
        out: NDArray[Any] = self.store[slot]
        self.kernel.block(row, self.side, out=out[None], dtype=self.dtype)
        return out

    def _compute(
        self, rows: Operand, places: NDArray[np.int64], out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        # (The bits of columns kept and of columns computed again are the same.)
        padded = whole(places)
        if out is None:
            out = scratch("kernel columns", (len(padded), len(self.side)), self.dtype)
        self.entries += len(places) * self.rows
        block = out[: len(padded)]
        return self.kernel.block(rows.X[padded], self.side, out=block, dtype=self.dtype)

    def _whole(self, side: Operand) -> Operand:
        """The rows and the first of them again, up to a multiple of PAD, if BLAS is to see them."""
        if not self.padded or len(side) % PAD == 0 or not isinstance(self.kernel, Compiled):
            return side
        return side.part(whole(np.arange(len(side))))

    def compact(self, side: Operand, keep: NDArray[np.int64], most: int = 0) -> None:
        """Go on with these of the side's rows only; ``most``: slots that the room may serve."""
        old, before = self.store, self.side
        self.side, self.rows = self._whole(side), len(side)
        if isinstance(self.kernel, Compiled):
            # Measured from where all rows were: columns computed again are those that are kept.
            self.side.measured_as(before)
        # In place: fresh memory costs more than the copying.
        flat, width = old.reshape(-1), len(self.side)
        squeeze(flat, old.shape[1], width, np.flatnonzero(self.owner >= 0), keep)
        count = max(len(old), min(most, len(flat) // max(1, width)))
        self.store = flat[: count * width].reshape(count, width)
        self.owner = np.append(self.owner, np.full(count - len(self.owner), -1))


@njit(cache=True, nogil=True)
def squeeze(
    store: NDArray[Any], before: int, after: int, slots: NDArray[np.int64], keep: NDArray[np.int64]
) -> None:
    """The numbers ``keep`` of every slot, ascending, slots of ``before`` to such of ``after``."""
    for slot in slots:
        for j in range(len(keep)):
            store[slot * after + j] = store[slot * before + keep[j]]


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})
def add_columns(
    store: NDArray[Any], slots: NDArray[np.int64], coef: FloatArray, scores: FloatArray
) -> None:
    """``scores += sum_j coef_j store[slots_j]``, float64 sums, four columns a sweep."""
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
