"""Cholesky's factor as scipy's LAPACK computes it, without Python's lock: threads factor at once.

The bits are those of `scipy.linalg.cho_factor`, which holds the lock, and copies what is in C's
order.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
from numba.extending import get_cython_function_address
from numpy.typing import NDArray


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
