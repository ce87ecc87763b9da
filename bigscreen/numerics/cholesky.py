"""Cholesky's factor as scipy's LAPACK computes it, without Python's lock: threads factor at once.

The bits are those of `scipy.linalg.cho_factor`, which holds the lock, and copies what is in C's
order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import get_cython_function_address
from numpy.typing import NDArray
from scipy.linalg.lapack import dpstrf, get_lapack_funcs

from bigscreen.numerics.rows import FloatArray

BLOCK = 512
"""Rows and columns that one thread works at where a matrix is factored by several."""

AtOnce = Callable[[Callable[[int], Any], Iterable[int]], list[Any]]
"""What makes results of items in their order, some at once."""


def _lapack(name: str, arguments: int) -> Any:
    address = get_cython_function_address("scipy.linalg.cython_lapack", name)
    # (A call through ctypes lets go of the lock.)
    return ctypes.CFUNCTYPE(None, ctypes.c_char_p, *[ctypes.c_void_p] * arguments)(address)


_POTRF = {np.dtype(np.float64): _lapack("dpotrf", 4), np.dtype(np.float32): _lapack("spotrf", 4)}
_POTRS = {np.dtype(np.float64): _lapack("dpotrs", 7), np.dtype(np.float32): _lapack("spotrs", 7)}


class Factor(NamedTuple):
    """A factor where LAPACK has written it, and which of its triangles that is."""

    matrix: NDArray[Any]
    triangle: bytes

    def solve(self, v: NDArray[Any]) -> NDArray[Any]:
        """The solution for a right-hand side (n,), or each of some (k, n), in the factor's type."""
        out = np.array(v, self.matrix.dtype, order="C")
        _called(_POTRS, self.matrix, self.triangle, (out.size // len(self.matrix),), out)
        return out


def factored(matrix: NDArray[Any], lower: bool = False) -> Factor | None:
    """The factor of a symmetric matrix, in its place; None where that is not positive definite.

    Parameters
    ----------
    matrix : float32 or float64 (n, n), C-contiguous
        Overwritten.
    lower : bool
        Whether LAPACK, whose columns are C's rows, reads and writes its lower triangle.
    """
    triangle = b"L" if lower else b"U"
    return None if _called(_POTRF, matrix, triangle) else Factor(matrix, triangle)


def _called(
    routines: dict[Any, Any],
    matrix: NDArray[Any],
    triangle: bytes,
    columns: tuple[int, ...] = (),
    right: NDArray[Any] | None = None,
) -> int:
    """What LAPACK says of a matrix: 0, or where it failed."""
    n, info = ctypes.c_int(len(matrix)), ctypes.c_int(0)
    size, told = ctypes.byref(n), ctypes.byref(info)
    counts = [ctypes.byref(ctypes.c_int(count)) for count in columns]
    given: list[Any] = [triangle, size, *counts, matrix.ctypes.data, size]
    if right is not None:
        given += [right.ctypes.data, size]
    routines[matrix.dtype](*given, told)
    return info.value


def factored_at_once(matrix: NDArray[Any], at_once: AtOnce) -> bool:
    """Overwrite the upper triangle of a symmetric matrix A by U with ``U' U = A``, on all cores.

    The same bits for any number of them; what is below the diagonal stays as it is.

    Parameters
    ----------
    matrix : float32 or float64 (n, n), C-contiguous
    at_once : callable
        Calls a function with every item of some, in several threads.

    Returns
    -------
    Whether it is positive definite; if not, the upper triangle is left half done.
    """
    n = len(matrix)
    for start in range(0, n, BLOCK):
        own = slice(start, min(start + BLOCK, n))
        corner = np.array(matrix[own, own])
        if factored(corner, lower=True) is None:
            return False
        corner = np.triu(corner)
        width = len(corner)
        matrix[own, own][np.triu_indices(width)] = corner[np.triu_indices(width)]
        if own.stop == n:
            break
        turned = np.ascontiguousarray(_inverse(corner).T)
        later = range(own.stop, n, BLOCK)

        def across(at: int, own: slice = own, turned: NDArray[Any] = turned) -> None:
            there = slice(at, at + BLOCK)
            matrix[own, there] = turned @ matrix[own, there]

        def beside(at: int, own: slice = own) -> None:
            there = slice(at, min(at + BLOCK, n))
            panel = np.ascontiguousarray(matrix[own, there].T)
            rest = panel @ matrix[own, at:]
            low = np.tril_indices(there.stop - at, -1)
            rest[low] = 0.0  # what is below the diagonal stays
            matrix[there, at:] -= rest

        at_once(across, later)
        at_once(beside, later)
    return True


def inverted_at_once(matrix: NDArray[Any], at_once: AtOnce) -> None:
    """Overwrite an upper triangular matrix by its inverse, on all cores; 0 below the diagonal.

    Parameters
    ----------
    matrix : float32 or float64 (n, n), C-contiguous
        What is below its diagonal is not read.
    at_once : callable
    """
    n = len(matrix)
    for start in range(0, n, BLOCK):
        own = slice(start, min(start + BLOCK, n))
        corner = _inverse(np.triu(matrix[own, own]))
        above = np.array(matrix[:start, own])

        def up(
            at: int,
            start: int = start,
            own: slice = own,
            above: NDArray[Any] = above,
            corner: NDArray[Any] = corner,
        ) -> None:
            # (The inverse of what is before is upper triangular, too.)
            there = slice(at, at + BLOCK)
            matrix[there, own] = -(matrix[there, at:start] @ above[at:]) @ corner

        at_once(up, range(0, start, BLOCK))
        matrix[own, own] = corner
        matrix[own, :start] = 0.0


def cholesky_features(K: FloatArray) -> FloatArray:
    """Features (n, rank) whose products are the entries of a kernel matrix, up to rounding.

    Rows of its Cholesky factor, the largest of what is left on the diagonal first, until that is
    rounding of the largest entry.

    Parameters
    ----------
    K : float64 (n, n), C-contiguous
        Symmetric, positive semidefinite; overwritten.
    """
    rounding = 2.0**-52 * float(np.max(np.diagonal(K)))
    factor, order, rank, _ = dpstrf(K.T, tol=rounding, lower=1, overwrite_a=1)
    features = np.zeros((len(K), rank))
    for i, row in enumerate(order - 1):
        features[row, : i + 1] = factor[i, : min(i + 1, rank)]
    return features


def _inverse(upper: NDArray[Any]) -> NDArray[Any]:
    """The inverse of a small upper triangular matrix."""
    (trtri,) = get_lapack_funcs(("trtri",), (upper,))
    inverse, _ = trtri(upper)
    return np.ascontiguousarray(np.triu(inverse))
