"""The base class of all kernels, and helpers that its subclasses share.

A kernel is a frozen record of its parameters. `block` returns entries, `dots` returns products of
entries with vectors and holds one tile of entries at a time. Certificates and screening rest on the
error bounds of entries.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bigscreen.errors import InputError
from bigscreen.kernels.entries import TILES
from bigscreen.kernels.operand import AnyRows, Operand
from bigscreen.numerics.rows import FloatArray

U32 = 2.0**-24
"""Unit roundoff of float32."""

ONE_ROUNDING = 3.5 * U32
"""Six standard deviations of the relative error of one rounding to float32: errors that are uniform
within U32 have the standard deviation ``U32 / sqrt(3)``."""

FLOAT32_TINY = float(np.finfo(np.float32).tiny)
"""The smallest normal float32: smaller numbers lose digits, or count as 0."""

FLOAT64_ERROR_FACTOR = 2.0**-28
"""Upper bound of the rounding error of a float64 kernel entry, as a fraction of the error bound of
a float32 entry."""

MAX_ROWS_IN_FLOAT64 = 512
"""Compute kernel entries in float64, not float32, if there are at most this many rows: it costs
little. Then dense and sparse rows, and a kernel and its precomputed matrix, give the same model to
the last digits."""


def is_in_float32_range(size: float) -> bool:
    """Whether float32 products of this size, a squared norm or an entry, keep their error bound.

    Outside, some terms of the product may overflow, or underflow more than the bound allows for.
    """
    return 2.0**-60 <= size <= 2.0**60


class KernelTile(Protocol):
    """Entries (a, b) between a tile of rows and right rows that stay on a device."""

    def dots(self, V: FloatArray) -> FloatArray:
        """Return ``entries @ V``: float64 (a, k), for V (b, k)."""

    def sums(self, coefs: FloatArray, block: int) -> FloatArray:
        """Return ``coefs' @ entries``: float64 (k, b), for coefs (a, k).

        Blocks of ``block`` rows are summed by themselves, then added, both in any order.
        """

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the entries of some of the rows: (chosen, b)."""


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
    order_factor : float
        How much larger the rounding of a sum over entries can be than in the order of this
        library's own loops; above 1 if the order is unknown.
    fast_float64 : bool
        float64 entries take little more time than float32 ones, so that certificates use them.
    gamma_power : int
        Entries do not change if rows are multiplied by c and gamma is divided by c to this power.
    """

    name: ClassVar[str]
    psd: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = False
    invariant: ClassVar[bool] = False
    storable: ClassVar[bool] = True
    gamma_power: ClassVar[int] = 2

    order_factor: ClassVar[float] = 1.0
    fast_float64: ClassVar[bool] = False

    def diag(self, A: AnyRows) -> FloatArray:
        """k(a, a) for every row of A: float64 (len A,).

        All ones here; subclasses with other diagonal entries override it.
        """
        return np.ones(count_rows(A))

    def bound(self, max_sqnorm_a: float, max_sqnorm_b: float) -> float:
        """Return an upper bound of |k(a, b)| over rows a and b of at most these squared norms.

        ``max_sqnorm_a``, ``max_sqnorm_b``: the largest squared norm of left and right rows. 1 here;
        subclasses with larger entries override it.
        """
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
        """Six standard deviations of the error of a float32 entry, divided by |k(a, b)|.

        Arguments as in `entry_error`. None, as here, if an error does not shrink with its entry.
        """

    def precision(self, max_sqnorm: float, d: int) -> type:
        """Choose the type of entries: float64 if float32 is too coarse or out of range.

        Parameters
        ----------
        max_sqnorm : float
            Largest squared norm of a row.
        d : int
            Number of features.

        Returns
        -------
        np.float32 or np.float64
        """
        error = self.entry_error(max_sqnorm, max_sqnorm, d)
        bound = self.bound(max_sqnorm, max_sqnorm)
        held = max_sqnorm == 0 or (is_in_float32_range(max_sqnorm) and is_in_float32_range(bound))
        # float32 is too coarse if an error can exceed 1 % of the largest entry.
        return np.float32 if held and error <= 2.0**-7 * bound else np.float64

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
        out = np.zeros((count_rows(A), V.shape[1]))
        step = max(1, TILES.entries // max(1, len(B)))
        for start in range(0, len(out), step):
            entries = self.block(rows[start : start + step], B, dtype=dtype)
            out[start : start + step] = entries.astype(np.float64, copy=False) @ V
        return out

    def gradients(
        self, A: AnyRows, B: Operand, V: FloatArray, dtype: DTypeLike = np.float32
    ) -> Iterator[FloatArray]:
        """Yield the gradients of ``K(A, B) @ V`` by the rows of A: (a, d) for each column of V.

        Parameters
        ----------
        A : ndarray or CSR array, (a, d)
        B : Operand of b rows
        V : float64 (b, k)
        dtype : type of the kernel entries; products with V and rows are always float64

        Raises
        ------
        InputError
            The kernel has no gradient.
        """
        raise InputError(f"the {self.name} kernel has no gradient by the columns of a row")

    @property
    def on_host(self) -> "Kernel":
        """The kernel that computes the same entries on the host: itself, if this one does."""
        return self

    def tile(self, A: AnyRows, B: Operand, dtype: DTypeLike) -> "KernelTile | None":
        """Compute entries that stay on a device; None, as here, if `block` computes them.

        ``A``, ``B``, ``dtype``: as in `block`. A has at most `tile_rows` rows.
        """
        return None

    def tile_rows(self, width: int) -> int | None:
        """Choose how many rows a `tile` has against ``width`` right rows; None without tiles."""
        return None

    def prepare(self, side: Operand) -> None:
        """Make now the copies of a right side that `block` would make at its first call.

        So threads that share the right side need not each make them. Nothing here: subclasses
        whose `block` needs copies (rounded, transposed or packed rows) override it.
        """

    def to_dict(self) -> dict[str, Any]:
        """JSON-able record; `kernel_from_dict` reads it."""
        # (The subclasses are dataclasses, the base class is not.)
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]


def as_operand(A: AnyRows) -> Operand:
    """Return the rows as an Operand: themselves if they are one, else a new one."""
    return A if isinstance(A, Operand) else Operand(A)


def count_rows(A: AnyRows) -> int:
    """The number of rows of an operand or an array."""
    return len(A) if isinstance(A, Operand) else A.shape[0]


def output_array(
    A: AnyRows, B: Operand, out: NDArray[Any] | None, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return an array (len A, len B) for kernel entries: `out` if given (it must fit) or new."""
    shape = (count_rows(A), len(B))
    if out is None:
        return np.empty(shape, dtype=dtype)
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
        raise ValueError(f"out must be a C-contiguous {dtype} array of shape {shape}")
    return out


def check_vectors(V: FloatArray, B: Operand) -> None:
    """Raise ValueError unless V has the shape (len(B), k).

    V holds k vectors to be multiplied with kernel entries, as in ``K(A, B) @ V``.
    """
    if V.ndim != 2 or len(V) != len(B):
        raise ValueError(f"V must have shape ({len(B)}, k), not {V.shape}")


def phi_norms(kernel: Kernel, rows: Operand) -> FloatArray:
    """Upper bounds of ||phi(x)|| for each row x, phi the kernel's feature map: float64 (rows,).

    ``sqrt(k(x, x))``. If the kernel is not positive semidefinite there is no phi: the root of the
    largest possible |entry| of rows as long as x is returned.
    """
    if kernel.psd:
        # A given kernel may be declared positive semidefinite and have a negative diagonal.
        norms: FloatArray = np.sqrt(np.maximum(kernel.diag(rows), 0.0))
        return norms
    return np.array([np.sqrt(kernel.bound(size, size)) for size in rows.sqnorms])


def product_error(sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
    """Error of a float32 inner product of d terms: six sigma of a random walk of d roundings.

    This is an estimate, not a bound: the worst-case bound (d in place of 2 sqrt(d)) is 13 times as
    wide at 784 columns. The second term covers underflow. ``sqnorm_a``: squared norms of left rows,
    or the largest; ``max_sqnorm_b``: the largest of right rows; ``d``: terms of the product.
    """
    lost = d * FLOAT32_TINY * (1.0 + np.sqrt(sqnorm_a) + np.sqrt(max_sqnorm_b))
    return U32 * (2.0 * math.sqrt(d) + 2.0) * np.sqrt(sqnorm_a * max_sqnorm_b) + lost
