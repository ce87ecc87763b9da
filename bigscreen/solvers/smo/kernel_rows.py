"""Rows of the kernel matrix, kept while there is room, and bounds on what they are off."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.kernels.base import FEW, FLOAT64, ROUNDED_ONCE, Kernel
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.square import Square, alike
from bigscreen.numerics.rows import FloatArray
from bigscreen.solvers.smo.loop import Matrix

FEWEST = 3  # rows kept however small the cache: a pair of them, and one to come


@dataclass
class _Row:
    """A row as it was computed, against the rows alive in a generation; a copy for those now."""

    generation: int
    wide: NDArray[Any]
    narrow: NDArray[Any] | None = None

    @property
    def nbytes(self) -> int:
        return self.wide.nbytes + (0 if self.narrow is None else self.narrow.nbytes)


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
        Numbers of the rows looked at, ascending. Rows that are kept follow it: entries of rows
        that are gone are kept with them, of rows that have come back only the unknown are computed.
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
        self.computed, self.bytes, self.generation = 0, 0, 0
        self.kept: OrderedDict[int, _Row] = OrderedDict()
        self.past: dict[int, NDArray[np.int64]] = {}
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
        self._ways: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._lack: tuple[int, Operand] | None = None
        self._whole: NDArray[Any] | None = None
        self._matrix: Matrix | None = None

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
        if self._whole is not None:
            place = np.searchsorted(self.alive, alive).clip(0, len(self.alive) - 1)
            known = np.array_equal(self.alive[place], alive)
            self._whole = self._whole[np.ix_(place, place)] if known else None
        self.past[self.generation] = self.alive
        for row in self.kept.values():
            row.narrow = None
        self.bytes = sum(row.nbytes for row in self.kept.values())
        used = {row.generation for row in self.kept.values()}
        self.past = {g: rows for g, rows in self.past.items() if g in used}
        self.generation += 1
        self.alive, self.side, self._ways, self._lack = alive, self._side(alive), {}, None

    def refine(self) -> None:
        """Entries in float64 from here on."""
        if self.dtype is np.float64:
            return
        self._leave()
        self.dtype = np.float64
        self.kept.clear()
        self.bytes, self._whole = 0, None

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
        number = int(self.alive[place])
        row = self.kept.get(number)
        if row is None:
            row = _Row(self.generation, self._computed(number, self.side))
            self._keep(number, row)
        elif row.generation != self.generation and row.narrow is None:
            return self._narrowed(number, row)
        self.kept.move_to_end(number)
        return row.wide if row.narrow is None else row.narrow

    def scores(
        self,
        rows: NDArray[np.int64],
        support: NDArray[np.int64],
        coef: FloatArray,
        dtype: type | None = None,
    ) -> FloatArray:
        """``sum_j coef_j k(x_i, x_j)`` over the support, for these of the rows alive.

        With a ``dtype`` all entries are computed in it; without, those that are kept are used.
        """
        found = np.zeros(len(rows))
        if not len(rows) or not len(support):
            return found
        kept = np.isin(support, self.alive)
        if dtype is not None:
            kept[:] = False
        kept[kept] = [number in self.kept for number in support[kept].tolist()]
        where = np.searchsorted(self.alive, rows)
        # Rows of one generation together: what they lack is prepared once.
        age = [self.kept[number].generation for number in support[kept].tolist()]
        order = np.flatnonzero(kept)[np.argsort(age, kind="stable")]
        for place, c in zip(np.searchsorted(self.alive, support[order]), coef[order], strict=True):
            found += c * self[place][where]
        rest, coef = support[~kept], coef[~kept]
        if len(rest):
            self.computed += len(rows) * len(rest)
            sides = self._side(rows), self._side(rest)
            found += self.kernel.dots(*sides, coef[:, None], dtype or self.dtype)[:, 0]
        scores: FloatArray = found + self.constant * coef.sum()
        return scores

    def _side(self, rows: NDArray[np.int64]) -> Operand:
        return Operand(self.X[rows], rows)

    def _computed(self, number: int, side: Operand) -> NDArray[Any]:
        self.computed += len(side)
        one = self._side(np.array([number]))
        row = self.kernel.block(one, side, dtype=self.dtype)[0]
        return row + self.dtype(1) if self.constant else row

    def _narrowed(self, number: int, row: _Row) -> NDArray[Any]:
        """A row of another generation as one of this."""
        if row.generation not in self._ways:
            past = self.past[row.generation]
            place = np.full(self.X.shape[0], -1)
            place[past] = np.arange(len(past))
            place = place[self.alive]
            self._ways[row.generation] = place, np.flatnonzero(place < 0)
        place, missing = self._ways[row.generation]
        narrow = row.wide[place]
        if len(missing):
            narrow[missing] = self._computed(number, self._lacking(row.generation, missing))
            self._keep(number, _Row(self.generation, narrow))
        elif self.bytes + narrow.nbytes <= self.cache:
            row.narrow = narrow
            self.bytes += narrow.nbytes
            self.kept.move_to_end(number)
        return narrow

    def _lacking(self, generation: int, missing: NDArray[np.int64]) -> Operand:
        """The rows alive that rows of a generation know nothing of; one generation's is kept."""
        if self._lack is None or self._lack[0] != generation:
            self._lack = generation, self._side(self.alive[missing])
        return self._lack[1]

    def _keep(self, number: int, row: _Row) -> None:
        before = self.kept.pop(number, None)
        self.bytes += row.nbytes - (0 if before is None else before.nbytes)
        self.kept[number] = row
        while self.bytes > self.cache and len(self.kept) > FEWEST:
            self.bytes -= self.kept.popitem(last=False)[1].nbytes


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
        if self.alike is None:
            return float(np.sqrt(alpha @ alpha))
        together = np.bincount(self.alike, sign * alpha)
        apart = np.bincount(self.alike, alpha**2)
        return float(np.sqrt(np.sum(np.maximum(together**2, apart))))
