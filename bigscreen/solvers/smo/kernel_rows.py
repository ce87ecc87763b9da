"""Rows of the kernel matrix, kept while there is room, and bounds on what they are off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.kernels.base import FEW, FLOAT64, ROUNDED_ONCE, Kernel
from bigscreen.kernels.cache import KernelCache, Slots
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.square import Square, alike, total_spread
from bigscreen.numerics.rows import FloatArray
from bigscreen.solvers.smo.loop import Matrix

FEWEST = 3  # rows kept however small the cache: a pair of them, and one to come


class KernelRows:
    """Kernel rows against the rows alive, least recently used out first.

    Parameters
    ----------
    kernel : Kernel
    X : ndarray or csr_array (n, d), float32
    constant : bool
        Every entry is one larger: a 1 is appended to phi.
    cache : int
        Bytes of rows that are kept.
    most : int
        Bytes of the matrix of the rows alive up to which it is computed as a whole.
    square : Square or None
        Entries between all rows, shared with whoever needs them too: used while all are alive.

    Attributes
    ----------
    alive : int64 (rows,)
        Numbers of the rows looked at, ascending. Kept rows lose the entries of rows that go; when
        rows come back, all are computed again.
    diag : float64 (n,), ``k(x, x)``
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Any,
        constant: bool,
        cache: int,
        most: int = 0,
        square: Square | None = None,
    ) -> None:
        self.kernel, self.X, self.constant, self.cache = kernel, X, constant, cache
        self.most, self.square = most, None if constant else square
        self.computed = 0
        self.alive = np.arange(X.shape[0])
        self.side = Operand(X, self.alive) if self.square is None else self.square.side
        self.sqnorms = self.side.sqnorms
        if self.square is None:
            self.dtype = kernel.precision(float(np.max(self.sqnorms, initial=0.0)), X.shape[1])
            if X.shape[0] <= FEW:
                self.dtype = np.float64
            self.diag = kernel.diag(self.side) + float(constant)
        else:
            self.dtype, self.diag = self.square.dtype, self.square.diag
        self._whole: NDArray[Any] | None = None
        self._matrix: Matrix | None = None
        self._kept: tuple[KernelCache, Slots] | None = None

    @property
    def entries(self) -> int:
        """Kernel entries computed so far."""
        return self.computed + (0 if self.square is None else self.square.entries)

    @property
    def matrix(self) -> Matrix | None:
        """The matrix of the rows alive for compiled steps; None where it is too large."""
        if self._matrix is None:
            if self.square is not None:
                self._matrix = Matrix(self.square)
            elif (whole := self.whole) is not None:
                self._matrix = Matrix(whole)
        return self._matrix

    @property
    def whole(self) -> NDArray[Any] | None:
        """The matrix of the rows alive, computed at first use; None where it is too large."""
        n = len(self.alive)
        if n * n * np.dtype(self.dtype).itemsize > self.most:
            return None
        if self.square is not None:
            return self.square.whole
        if self._whole is None:
            self.computed += n * n
            self._whole = self.kernel.block(self.side, self.side, dtype=self.dtype)
            if self.constant:
                self._whole += self.dtype(1)
        return self._whole

    def look_at(self, alive: NDArray[np.int64]) -> None:
        """Change which rows are alive."""
        self._leave()
        known = bool(np.all(np.isin(alive, self.alive)))
        place = np.searchsorted(self.alive, alive)
        self.alive, self.side = alive, self._side(alive)
        if self._whole is not None:
            self._whole = self._whole[np.ix_(place, place)] if known else None
        if self._kept is not None and known:
            kept, slots = self._kept
            kept.compact(self.side, place, most=self.X.shape[0])
            slots.grow(len(kept.owner))
        else:
            self._kept = None

    def refine(self) -> None:
        """Entries in float64 from here on."""
        if self.dtype is np.float64:
            return
        self._leave()
        self.dtype, self._whole, self._kept = np.float64, None, None

    def count(self) -> None:
        """Count what compiled steps have computed."""
        if self.square is not None:
            self.square.count()

    def _leave(self) -> None:
        """Use no matrix any more that is not of these rows and this precision."""
        self._matrix = None
        if self.square is not None:
            self.computed += self.square.entries
            self.square = None

    def __getitem__(self, place: int) -> NDArray[Any]:
        """Row ``alive[place]`` of the kernel matrix, columns ``alive``; not to be written to."""
        if self._whole is not None:
            return self._whole[place]
        kept, slots = self._kept or self._empty()
        number = self.alive[place]
        slot, found = slots.use(number)
        if found:
            return kept.store[slot]
        self.computed += len(self.side)
        row = kept.compute_row(self._side(self.alive[place : place + 1]), slot)
        if self.constant:
            row += self.dtype(1)
        return row

    def _empty(self) -> tuple[KernelCache, Slots]:
        """Room for rows against the rows alive."""
        row = max(1, len(self.side)) * np.dtype(self.dtype).itemsize
        slots = Slots(max(FEWEST, self.cache // row), self.X.shape[0])
        kept = KernelCache(self.kernel, self.side, slots.capacity, self.dtype, padded=False)
        self._kept = kept, slots
        return self._kept

    def scores(
        self,
        rows: NDArray[np.int64],
        support: NDArray[np.int64],
        coef: FloatArray,
        dtype: type | None = None,
    ) -> FloatArray:
        """``sum_j coef_j k(x_i, x_j)`` over the support, for these rows; entries of ``dtype``."""
        scores = np.zeros(len(rows))
        if len(rows) and len(support):
            self.computed += len(rows) * len(support)
            sides = self._side(rows), self._side(support)
            scores += self.kernel.dots(*sides, coef[:, None], dtype or self.dtype)[:, 0]
        return scores + float(self.constant * coef.sum())

    def _side(self, rows: NDArray[np.int64]) -> Operand:
        return Operand(self.X[rows], rows)


@dataclass(frozen=True)
class EntryErrors:
    """How far float32 entries can be off, what scores made of them can be, and ||phi_i||, all (n,).

    ``relative``, ``absolute``: bounds on the error of entries of a row. ``alike``: the same number
    for equal rows, None where no two are equal.
    """

    norms: FloatArray
    relative: FloatArray
    absolute: FloatArray
    alike: NDArray[np.int64] | None

    @classmethod
    def of(cls, rows: KernelRows, square: Square | None) -> EntryErrors:
        """Those of the rows of a kernel matrix; ``square``: its entries, where they are shared."""
        kernel, d = rows.kernel, rows.X.shape[1]
        if kernel.psd:
            norms = np.sqrt(rows.diag)
        else:
            norms = np.sqrt([kernel.bound(size, size) for size in rows.sqnorms])
        longest = float(np.max(rows.sqnorms))
        relative = kernel.relative_error(rows.sqnorms, longest, d)
        errors = kernel.entry_error(rows.sqnorms, longest, d)
        if relative is not None:
            errors = np.minimum(errors, relative * norms * float(np.max(norms)))
        if rows.constant:
            # Of entries that are given, the constant's 1 is what rounds them.
            errors = np.maximum(errors, ROUNDED_ONCE * (1.0 + norms * float(np.max(norms))))
        nothing = np.zeros(len(norms))
        equal = alike(rows.X) if square is None else square.alike
        return cls(
            norms, nothing if relative is None else nothing + relative, nothing + errors, equal
        )

    def of_entries(self, rows: NDArray[np.int64], dtype: type) -> tuple[FloatArray, FloatArray]:
        """The bounds of these rows' entries in this precision, relative and absolute."""
        fine = FLOAT64 if dtype is np.float64 else 1.0
        return fine * self.relative[rows], fine * self.absolute[rows]

    def of_scores(
        self, rows: NDArray[np.int64], scores: FloatArray, spread: float, dtype: type
    ) -> FloatArray:
        """Bounds on the errors of these scores of these rows; see `spread`."""
        error: FloatArray = self.relative[rows] * np.abs(scores) + self.absolute[rows] * spread
        return error * (FLOAT64 if dtype is np.float64 else 1.0)

    def spread(self, alpha: FloatArray, sign: FloatArray) -> float:
        """Independent errors of entries add up to their bound times this.

        The errors of a row's entries are taken as independent, but for what they have in common,
        which moves the score as a whole, and for equal rows, whose entries err alike.
        """
        return total_spread(sign * alpha, self.alike)
