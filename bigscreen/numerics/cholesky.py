"""Cholesky factorisation by scipy's LAPACK without holding the GIL, so that threads run at once.

The bits are those of `scipy.linalg.cho_factor`, which holds the GIL and copies C-ordered matrices.
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

ParallelMap = Callable[[Callable[[int], Any], Iterable[int]], list[Any]]
"""A parallel map: (function, items) to the list of results in the order of the items."""


def _lapack(name: str, arguments: int) -> Any:
    """Find a LAPACK routine of scipy by name, callable without the GIL.

    ``arguments``: the number of its arguments after the first, a character.
    """
    address = get_cython_function_address("scipy.linalg.cython_lapack", name)
    # (A call through ctypes releases the GIL.)
    return ctypes.CFUNCTYPE(None, ctypes.c_char_p, *[ctypes.c_void_p] * arguments)(address)


_POTRF = {np.dtype(np.float64): _lapack("dpotrf", 4), np.dtype(np.float32): _lapack("spotrf", 4)}
_POTRS = {np.dtype(np.float64): _lapack("dpotrs", 7), np.dtype(np.float32): _lapack("spotrs", 7)}
"""LAPACK's routines to factor (potrf) and to solve with a factor (potrs), by number type."""


class Factor(NamedTuple):
    """A Cholesky factor as LAPACK has written it, in one triangle of a matrix (b"L" or b"U")."""

    matrix: NDArray[Any]
    triangle: bytes

    def solve(self, v: NDArray[Any]) -> NDArray[Any]:
        """Solve for one right-hand side (n,), or several (k, n), in the factor's type."""
        out = np.array(v, self.matrix.dtype, order="C")
        _call_lapack(_POTRS, self.matrix, self.triangle, (out.size // len(self.matrix),), out)
        return out


def factorise(matrix: NDArray[Any], lower: bool = False) -> Factor | None:
    """Factor a symmetric matrix in place; return None if it is not positive definite.

    Parameters
    ----------
    matrix : float32 or float64 (n, n), C-contiguous
        Overwritten.
    lower : bool
        Whether LAPACK, whose columns are C's rows, reads and writes the lower triangle.
    """
    triangle = b"L" if lower else b"U"
    return None if _call_lapack(_POTRF, matrix, triangle) else Factor(matrix, triangle)


def _call_lapack(
    routines: dict[Any, Any],
    matrix: NDArray[Any],
    triangle: bytes,
    columns: tuple[int, ...] = (),
    right: NDArray[Any] | None = None,
) -> int:
    """Call a LAPACK routine on a square matrix; return its info: 0, or the column where it failed.

    ``routines``: the routine for each number type. ``triangle``: b"L" or b"U". ``columns``: further
    counts that the routine takes. ``right``: right-hand sides, overwritten.
    """
    n, info = ctypes.c_int(len(matrix)), ctypes.c_int(0)
    size, told = ctypes.byref(n), ctypes.byref(info)
    counts = [ctypes.byref(ctypes.c_int(count)) for count in columns]
    given: list[Any] = [triangle, size, *counts, matrix.ctypes.data, size]
    if right is not None:
        given += [right.ctypes.data, size]
    routines[matrix.dtype](*given, told)
    return info.value


def factorise_in_parallel(matrix: NDArray[Any], at_once: ParallelMap, block: int = 512) -> bool:
    """Overwrite the upper triangle of a symmetric matrix A by U with ``U' U = A``, on all cores.

    The bits do not depend on the number of cores. Entries below the diagonal are not changed.

    Parameters
    ----------
    matrix : float32 or float64 (n, n), C-contiguous
    at_once : ParallelMap
        Maps a function over items in several threads.
    block : int
        Rows and columns of the blocks that one thread works on.

    Returns
    -------
    bool : whether A is positive definite; if not, the upper triangle is left unfinished
    """
    n = len(matrix)
    for start in range(0, n, block):
        own = slice(start, min(start + block, n))
        corner = np.array(matrix[own, own])
        if factorise(corner, lower=True) is None:
            return False
        corner = np.triu(corner)
        width = len(corner)
        matrix[own, own][np.triu_indices(width)] = corner[np.triu_indices(width)]
        if own.stop == n:
            break
        turned = np.ascontiguousarray(_invert(corner).T)
        later = range(own.stop, n, block)

        def multiply_panel(at: int, own: slice = own, turned: NDArray[Any] = turned) -> None:
            """Turn the block of rows ``own`` at columns from ``at`` on into U's, by U_own'^-1."""
            there = slice(at, at + block)
            matrix[own, there] = turned @ matrix[own, there]

        def update_rest(at: int, own: slice = own) -> None:
            """Subtract the rows ``own`` of U from the block of rows from ``at`` on: A -= U' U."""
            there = slice(at, min(at + block, n))
            panel = np.ascontiguousarray(matrix[own, there].T)
            rest = panel @ matrix[own, at:]
            low = np.tril_indices(there.stop - at, -1)
            rest[low] = 0.0  # leave entries below the diagonal unchanged
            matrix[there, at:] -= rest

        at_once(multiply_panel, later)
        at_once(update_rest, later)
    return True


def invert_in_parallel(matrix: NDArray[Any], at_once: ParallelMap, block: int = 512) -> None:
    """Overwrite an upper triangular matrix by its inverse, on all cores; 0 below the diagonal.

    Parameters
    ----------
    matrix : float32 or float64 (n, n), C-contiguous
        Entries below its diagonal are not read.
    at_once : ParallelMap
        Maps a function over items in several threads.
    block : int
        Rows and columns of the blocks that one thread works on.
    """
    n = len(matrix)
    for start in range(0, n, block):
        own = slice(start, min(start + block, n))
        corner = _invert(np.triu(matrix[own, own]))
        above = np.array(matrix[:start, own])

        def invert_panel(
            at: int,
            start: int = start,
            own: slice = own,
            above: NDArray[Any] = above,
            corner: NDArray[Any] = corner,
        ) -> None:
            """Write the inverse's block of rows from ``at`` on, in the columns ``own``."""
            # (The inverse of the leading part is upper triangular, too.)
            there = slice(at, at + block)
            matrix[there, own] = -(matrix[there, at:start] @ above[at:]) @ corner

        at_once(invert_panel, range(0, start, block))
        matrix[own, own] = corner
        matrix[own, :start] = 0.0


def cholesky_features(K: FloatArray) -> FloatArray:
    """Compute features (n, rank) whose products are the entries of a kernel matrix, up to rounding.

    By pivoted Cholesky with the largest residual diagonal entry first, until it is within rounding
    of the largest entry.

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


def _invert(upper: NDArray[Any]) -> NDArray[Any]:
    """Return the inverse of a small upper triangular matrix (n, n), itself upper triangular."""
    (trtri,) = get_lapack_funcs(("trtri",), (upper,))
    inverse, _ = trtri(upper)
    return np.ascontiguousarray(np.triu(inverse))
