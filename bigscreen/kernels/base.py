"""The base class of all kernels, and helpers that its subclasses share.

A kernel is a frozen record of its parameters. `block` returns entries, `dots` returns products of
entries with vectors and holds one tile of entries at a time. Certificates and screening rest on the
error bounds of entries.
"""

import math
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bigscreen.kernels.entries import TILE_ENTRIES
from bigscreen.kernels.operand import AnyRows, Operand
from bigscreen.numerics.rows import FloatArray

U32 = 2.0**-24
"""Unit roundoff of float32."""

ROUNDED_ONCE = 3.5 * U32
"""Six standard deviations of the relative error of one rounding to float32: errors that are uniform
within U32 have the standard deviation ``U32 / sqrt(3)``."""

SMALLEST = 2.0**-126
"""The least normal float32: smaller numbers lose digits, or are taken for 0."""

FLOAT64 = 2.0**-28
"""Error of a float64 entry as a part of that of a float32 one, with space to spare."""

FEW = 512
"""Rows with which entries are computed in float64 because that costs nothing beside the rest: then
dense and sparse rows, a kernel and its matrix, give the same machine to the last digits."""

COARSE = 2.0**-7
"""Error of an entry, as a part of the largest entry, from which float32 no longer carries it."""


LEAST, MOST = 2.0**-60, 2.0**60
"""Squared norms of rows, and entries, between which no part of a float32 product under- or
overflows that its error bound does not know of."""


class Kernel:
    """A kernel function k(a, b) of two rows; subclasses are frozen dataclasses of its parameters.

    Rows on the left are an Operand, an ndarray or a CSR array (float64; any other type is converted
    to float32). Rows on the right are an Operand.

    Attributes
    ----------
    psd : bool
        The kernel is positive semidefinite for all data.
    nonnegative : bool
        No entry is below 0.
    invariant : bool
        Entries depend on the distance of two rows only, so rows may be shifted.
    storable : bool
        A model with this kernel can be written to a file.
    """

    name: ClassVar[str]
    psd: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = False
    invariant: ClassVar[bool] = False
    storable: ClassVar[bool] = True

    def diag(self, A: AnyRows) -> FloatArray:
        """k(a, a) for every row of A: float64 (len A,)."""
        return np.ones(count(A))

    def bound(self, max_sqnorm_a: float, max_sqnorm_b: float) -> float:
        """Upper bound of |k(a, b)| over all rows whose squared norms are at most these."""
        return 1.0

    def entry_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Six standard deviations of the absolute error of one float32 entry.

        Roundings in a sum of d terms are modelled as random, so they grow with sqrt(d), not with d
        (Higham and Mary 2019). Tests calibrate the bound.

        Parameters
        ----------
        sqnorm_a : float or ndarray
            Squared norms of the rows of A (one per row), or the largest of them.
        max_sqnorm_b : float
            Largest squared norm of the rows of B.
        d : int
            Number of features (sparse rows: the largest number of nonzeros in a row).

        Returns
        -------
        float or ndarray, as sqnorm_a
        """
        raise NotImplementedError

    def relative_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """`entry_error` relative to |k(a, b)|; None if the error does not shrink with the entry."""

    def precision(self, max_sqnorm: float, d: int) -> type:
        """Choose the type of entries: float64 if float32 is too coarse or out of range.

        Parameters
        ----------
        max_sqnorm : float
            Largest squared norm of a row.
        d : int
            Number of features.
        """
        error = self.entry_error(max_sqnorm, max_sqnorm, d)
        bound = self.bound(max_sqnorm, max_sqnorm)
        held = max_sqnorm == 0 or (LEAST <= max_sqnorm <= MOST and LEAST <= bound <= MOST)
        return np.float32 if held and error <= COARSE * bound else np.float64

    def block(
        self, A: AnyRows, B: Operand, out: NDArray[Any] | None = None, dtype: DTypeLike = np.float32
    ) -> NDArray[Any]:
        """Kernel entries between the rows of A and of B.

        Parameters
        ----------
        A : Operand, ndarray or CSR array, (a, d)
        B : Operand of b rows
        out : ndarray (a, b), C-contiguous, of `dtype`, optional
            Overwritten and returned; reusing memory saves 1 ns per entry.
        dtype : float32 (fast) or float64 (accurate: products and formulas in float64)

        Returns
        -------
        ndarray (a, b)

        Raises
        ------
        InputError
            The number of features differs.
        """
        raise NotImplementedError

    def dots(
        self, A: AnyRows, B: Operand, V: FloatArray, dtype: DTypeLike = np.float32
    ) -> FloatArray:
        """Products K(A, B) @ V, with one tile of K in memory at a time.

        Parameters
        ----------
        A : Operand, ndarray or CSR array, (a, d)
        B : Operand of b rows
        V : float64 (b, k)
        dtype : type of the entries; products with V and their sums are always float64

        Returns
        -------
        float64 (a, k)

        Raises
        ------
        InputError
            The number of features differs.
        """
        check_vectors(V, B)
        rows = A.X if isinstance(A, Operand) else A
        out = np.zeros((count(A), V.shape[1]))
        step = max(1, TILE_ENTRIES // max(1, len(B)))
        for start in range(0, len(out), step):
            entries = self.block(rows[start : start + step], B, dtype=dtype)
            out[start : start + step] = entries.astype(np.float64, copy=False) @ V
        return out

    def prepare(self, side: Operand) -> None:
        """Prepare a right side for ``block``, so that threads that share it need not each do so."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able record; `kernel_from_dict` reads it."""
        # (The subclasses are dataclasses, the base class is not.)
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]


def as_side(A: AnyRows) -> Operand:
    """Return the rows as an Operand."""
    return A if isinstance(A, Operand) else Operand(A)


def count(A: AnyRows) -> int:
    """The number of rows of an operand or an array."""
    return len(A) if isinstance(A, Operand) else A.shape[0]


def output(A: AnyRows, B: Operand, out: NDArray[Any] | None, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the array to write a block to: `out` if given (it must fit), else a new one."""
    shape = (count(A), len(B))
    if out is None:
        return np.empty(shape, dtype=dtype)
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
        raise ValueError(f"out must be a C-contiguous {dtype} array of shape {shape}")
    return out


def check_vectors(V: FloatArray, B: Operand) -> None:
    """Raise ValueError unless V has the shape (len(B), k)."""
    if V.ndim != 2 or len(V) != len(B):
        raise ValueError(f"V must have shape ({len(B)}, k), not {V.shape}")


def phi_norms(kernel: Kernel, rows: Operand) -> FloatArray:
    """Upper bounds of ||phi(x)||: ``sqrt(k(x, x))``, or the root of the largest possible entry.

    The second if the kernel is not positive semidefinite.
    """
    if kernel.psd:
        # A given kernel may be declared positive semidefinite and have a negative diagonal.
        norms: FloatArray = np.sqrt(np.maximum(kernel.diag(rows), 0.0))
        return norms
    return np.array([np.sqrt(kernel.bound(size, size)) for size in rows.sqnorms])


def product_error(sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
    """Error of a float32 inner product of d terms: six sigma of a random walk of d roundings.

    This is an estimate, not a bound: the worst-case bound (d in place of 2 sqrt(d)) is 13 times as
    wide at 784 columns. The second term covers underflow.
    """
    lost = d * SMALLEST * (1.0 + np.sqrt(sqnorm_a) + np.sqrt(max_sqnorm_b))
    return U32 * (2.0 * math.sqrt(d) + 2.0) * np.sqrt(sqnorm_a * max_sqnorm_b) + lost
