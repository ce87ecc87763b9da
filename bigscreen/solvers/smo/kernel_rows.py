"""Cached rows of the kernel matrix for SMO."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.kernels.base import MAX_ROWS_IN_FLOAT64, Kernel
from bigscreen.kernels.cache import KernelCache, Slots
from bigscreen.kernels.entry_errors import EntryErrors
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.square import Square
from bigscreen.numerics.rows import FloatArray
from bigscreen.solvers.smo.loop import Matrix


class KernelRows:
    """Rows of the kernel matrix, restricted to the rows not screened, in an LRU cache.

    Parameters
    ----------
    kernel : Kernel
    X : ndarray or csr_array (n, d), float32
    constant : bool
        Add 1 to each entry, for a constant appended to phi.
    cache : int
        Bytes of cached rows.
    most : int
        Compute the whole matrix if it has at most this many bytes.
    square : Square or None
        The shared kernel matrix of all rows, used while no row is screened.

    Attributes
    ----------
    alive : int64 (rows,)
        Numbers of the rows not screened, ascending. Cached rows lose the entries of screened rows;
        when rows come back, the cache is emptied.
    diag : float64 (n,), ``k(x, x)``
    side : Operand
        The rows not screened.
    dtype : type of the entries, float32 or float64
    computed : int
        Kernel entries computed so far, without the shared matrix.
    errors : EntryErrors
        Bounds on the errors of the entries of all rows.
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
        """Choose the type of entries, and compute the diagonal; rows come later, when needed."""
        self.kernel, self.X, self.constant, self.cache = kernel, X, constant, cache
        self.most, self.square = most, None if constant else square
        self.computed = 0
        self.alive = np.arange(X.shape[0])
        self.side = Operand(X, self.alive) if self.square is None else self.square.side
        self.sqnorms = self.side.sqnorms
        if self.square is None:
            self.dtype = kernel.precision(float(np.max(self.sqnorms, initial=0.0)), X.shape[1])
            if X.shape[0] <= MAX_ROWS_IN_FLOAT64:
                self.dtype = np.float64
            self.diag = kernel.diag(self.side) + float(constant)
        else:
            self.dtype, self.diag = self.square.dtype, self.square.diag
        self.errors = self._measure_errors()
        self._whole: NDArray[Any] | None = None
        self._matrix: Matrix | None = None
        self._kept: tuple[KernelCache, Slots] | None = None

    @property
    def entries(self) -> int:
        """Kernel entries computed so far."""
        return self.computed + (0 if self.square is None else self.square.entries)

    @property
    def matrix(self) -> Matrix | None:
        """The kernel matrix of the rows not screened, for compiled steps; None if too large."""
        if self._matrix is None:
            if self.square is not None:
                self._matrix = Matrix(self.square)
            elif (whole := self.whole) is not None:
                self._matrix = Matrix(whole)
        return self._matrix

    @property
    def whole(self) -> NDArray[Any] | None:
        """The kernel matrix of the rows not screened as an array; None if too large."""
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

    def set_alive(self, alive: NDArray[np.int64]) -> None:
        """Set which rows are not screened; ``alive``: their numbers, ascending.

        Matrices and cached rows lose the entries of other rows. If a row comes back, the cache is
        emptied.
        """
        self._drop_matrices()
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
        """Compute entries in float64 from now on."""
        if self.dtype is np.float64:
            return
        self._drop_matrices()
        self.dtype, self._whole, self._kept = np.float64, None, None
        self.errors = self.errors.in_float64()

    def _measure_errors(self) -> EntryErrors:
        """Return bounds of the errors of kernel entries between all rows, in type ``dtype``."""
        errors = EntryErrors.of(self.kernel, self.side, self.constant)
        if self.constant:
            errors = errors.rounded_again()  # the constant's 1 is added in the entries' precision
        return errors.in_float64() if self.dtype is np.float64 else errors

    def count(self) -> None:
        """Update the count `entries` by what compiled steps have computed in the shared matrix."""
        if self.square is not None:
            self.square.count()

    def _drop_matrices(self) -> None:
        """Drop the matrices for compiled steps, since rows or precision change."""
        self._matrix = None
        if self.square is not None:
            self.computed += self.square.entries
            self.square = None

    def __getitem__(self, place: int) -> NDArray[Any]:
        """Return row ``alive[place]`` of the kernel matrix, columns ``alive`` (read-only)."""
        if self._whole is not None:
            return self._whole[place]
        kept, slots = self._kept or self._make_cache()
        number = self.alive[place]
        slot, found = slots.use(number)
        if found:
            return kept.store[slot]
        self.computed += len(self.side)
        row = kept.compute_row(self._side(self.alive[place : place + 1]), slot)
        if self.constant:
            row += self.dtype(1)
        return row

    def _make_cache(self) -> tuple[KernelCache, Slots]:
        """Make an empty cache for kernel rows with entries of the rows not screened now."""
        row = max(1, len(self.side)) * np.dtype(self.dtype).itemsize
        # At least 3 rows: the pair in use, and one to come.
        slots = Slots(max(3, self.cache // row), self.X.shape[0])
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
        """Compute ``sum_j coef_j k(x_i, x_j)`` for rows i: float64 (rows,).

        ``support``: the rows j, with coefficients ``coef``. An appended constant is included.
        ``dtype``: type of the entries; None: the type of the cached rows.
        """
        scores = np.zeros(len(rows))
        if len(rows) and len(support):
            self.computed += len(rows) * len(support)
            sides = self._side(rows), self._side(support)
            scores += self.kernel.dots(*sides, coef[:, None], dtype or self.dtype)[:, 0]
        return scores + float(self.constant * coef.sum())

    def _side(self, rows: NDArray[np.int64]) -> Operand:
        """Prepare the data's rows of these numbers as one side of kernel evaluations."""
        return Operand(self.X[rows], rows)
