"""Row operations for compiled loops, a fused exponential, and typed wrappers of numba decorators.

Compiled loops take the rows of a matrix as one argument ``X``: a dense C-contiguous array of shape
(rows, d), or a CSR triple ``(data, indices, indptr)``. The functions named ``row_`` are chosen by
that type at compile time, so each loop is written once. They, `exp2_negative` and `tanh` can be
called from compiled code only: the Python functions here document them.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba import extending
from numba.core import types
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from bigscreen.errors import InputError

FloatArray = NDArray[np.float64]
"""An array of float64 numbers, of any shape."""

RowArrays = NDArray[Any] | tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""The rows of a matrix in compiled loops: a dense array, or the CSR triple (data, indices,
indptr)."""

CACHE_LINE = 64
"""Bytes of a cache line of the processor."""

F = TypeVar("F", bound=Callable[..., Any])


def njit(**options: Any) -> Callable[[F], F]:
    """Return the decorator `numba.njit` with these options, typed to keep a function's annotations.

    The wrapper for calls from C is left out: it is not used and takes 5 % of the compile time.
    """
    options = {"no_cfunc_wrapper": True, **options}
    return cast("Callable[[F], F]", numba.njit(**options))


def overload(function: Callable[..., Any], **options: Any) -> Callable[[F], F]:
    """Apply `numba.extending.overload`: implement ``function`` in compiled code, by argument types.

    Numba compares signatures including annotations. So the decorated function and the one it
    returns must both annotate each argument with `Any`, or, as a lambda, not at all.
    """
    return cast("Callable[[F], F]", extending.overload(function, **options))


def aligned(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Make a new array, uninitialised, whose memory begins at a cache line (64 bytes)."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + CACHE_LINE, dtype=np.uint8)
    first = -room.ctypes.data % CACHE_LINE
    return room[first : first + size].view(dtype).reshape(shape)


# Sums may be reordered so that they vectorise. Neither 'nnan' nor 'ninf' is ever allowed: a NaN in
# the data must come out as a NaN, not as a plausible number.
SUMS = {"reassoc", "contract", "nsz"}
"""Numba's ``fastmath`` options for loops that sum."""


def as_rows(X: Any) -> RowArrays:
    """Convert a matrix to the form that compiled loops take.

    Parameters
    ----------
    X : ndarray (rows, d) or scipy CSR array or matrix
        float32 or float64.

    Returns
    -------
    ndarray or tuple
        C-contiguous array, or (data, indices, indptr) as they are: int32 or int64.

    Raises
    ------
    InputError
        X is neither dense 2-D nor CSR, or not floating point.
    """
    if X.dtype not in (np.float32, np.float64):
        raise InputError(f"rows must be float32 or float64, not {X.dtype}: convert them first.")
    if sparse.issparse(X):
        if X.format != "csr":
            raise InputError(f"sparse rows must be CSR, not {X.format}: call tocsr() first.")
        return X.data, X.indices, X.indptr
    if not isinstance(X, np.ndarray) or X.ndim != 2:
        raise InputError("rows must be a dense 2-D array or a scipy CSR array.")
    return np.ascontiguousarray(X)


def _is_csr(X: Any) -> bool:
    """Whether a numba type is the CSR triple, not a dense array."""
    return isinstance(X, types.BaseTuple)


def row_count(X: RowArrays) -> int:
    """Return the number of rows of X."""
    raise NotImplementedError


@overload(row_count)
def _row_count(X: Any) -> Callable[..., Any]:
    """Choose the compiled code of `row_count` by the type of X: CSR triple or dense array."""
    if _is_csr(X):

        def csr(X: Any) -> Any:
            """Return the number of rows, X a CSR triple."""
            return len(X[2]) - 1

        return csr

    def dense(X: Any) -> Any:
        """Return the number of rows, X a dense array."""
        return len(X)

    return dense


def row_dot(X: RowArrays, i: int, w: FloatArray) -> float:
    """Return <X_i, w>, summed in the type of w (float64 in all solvers)."""
    raise NotImplementedError


@overload(row_dot, jit_options={"fastmath": SUMS})
def _row_dot(X: Any, i: Any, w: Any) -> Callable[..., Any]:
    """Choose the compiled code of `row_dot` by the type of X: CSR triple or dense array."""
    if _is_csr(X):

        def csr(X: Any, i: Any, w: Any) -> Any:
            """Return <X_i, w>, X a CSR triple."""
            data, indices, indptr = X
            total = w[0] * 0
            # Unsigned, here and below: without the test for negative indices, which took 30 % of a
            # pass over CSR rows.
            for k in range(np.uintp(indptr[i]), np.uintp(indptr[i + 1])):
                total += data[k] * w[np.uintp(indices[k])]
            return total

        return csr

    def dense(X: Any, i: Any, w: Any) -> Any:
        """Return <X_i, w>, X a dense array."""
        row = X[i]
        total = w[0] * 0
        for j in range(len(row)):
            total += row[j] * w[j]
        return total

    return dense


def row_axpy(X: RowArrays, i: int, a: float, w: FloatArray) -> None:
    """Add a X_i to w, in place."""


@overload(row_axpy, jit_options={"fastmath": {"contract"}})
def _row_axpy(X: Any, i: Any, a: Any, w: Any) -> Callable[..., Any]:
    """Choose the compiled code of `row_axpy` by the type of X: CSR triple or dense array."""
    if _is_csr(X):

        def csr(X: Any, i: Any, a: Any, w: Any) -> Any:
            """Add a X_i to w, X a CSR triple."""
            data, indices, indptr = X
            for k in range(np.uintp(indptr[i]), np.uintp(indptr[i + 1])):
                w[np.uintp(indices[k])] += a * data[k]

        return csr

    def dense(X: Any, i: Any, a: Any, w: Any) -> Any:
        """Add a X_i to w, X a dense array."""
        row = X[i]
        for j in range(len(row)):
            w[j] += a * row[j]

    return dense


def row_sqnorm(X: RowArrays, i: int) -> float:
    """Return ||X_i||^2, summed in float64."""
    raise NotImplementedError


@overload(row_sqnorm, jit_options={"fastmath": SUMS})
def _row_sqnorm(X: Any, i: Any) -> Callable[..., Any]:
    """Choose the compiled code of `row_sqnorm` by the type of X: CSR triple or dense array."""
    if _is_csr(X):

        def csr(X: Any, i: Any) -> Any:
            """Return ||X_i||^2, X a CSR triple."""
            data, _, indptr = X
            total = 0.0
            for k in range(indptr[i], indptr[i + 1]):
                total += np.float64(data[k]) * np.float64(data[k])
            return total

        return csr

    def dense(X: Any, i: Any) -> Any:
        """Return ||X_i||^2, X a dense array."""
        row = X[i]
        total = 0.0
        for j in range(len(row)):
            total += np.float64(row[j]) * np.float64(row[j])
        return total

    return dense


@njit(nogil=True, cache=True)
def sqnorms(X: RowArrays) -> FloatArray:
    """Compute the squared norms of all rows, summed in float64 (can be called from Python)."""
    out = np.empty(row_count(X))
    for i in range(len(out)):
        out[i] = row_sqnorm(X, i)
    return out


def row_load(
    X: RowArrays, i: int, position: NDArray[Any], origin: NDArray[Any], out: NDArray[Any]
) -> float:
    """Write the columns of row i with a position, less the origin, to `out`.

    Sets out[position[j]] = X_ij - origin[position[j]] for all columns j with position[j] >= 0. The
    subtraction is done in the wider of the types of X and out, then rounded to the type of out.
    For dense rows position[j] must be j.

    Returns
    -------
    float : squared norm of the columns without a position
    """
    raise NotImplementedError


@overload(row_load, jit_options={"fastmath": {"contract"}})
def _row_load(X: Any, i: Any, position: Any, origin: Any, out: Any) -> Callable[..., Any]:
    """Choose the compiled code of `row_load` by the type of X: CSR triple or dense array."""
    number = (X[0] if _is_csr(X) else X).dtype
    double = types.float64 in (number, out.dtype)
    real = np.float64 if double else np.float32

    if _is_csr(X):

        def csr(X: Any, i: Any, position: Any, origin: Any, out: Any) -> Any:
            """Write row i's columns with a position, less the origin, to `out`, X a CSR triple."""
            data, indices, indptr = X
            for j in range(len(out)):
                out[j] = real(0) - origin[j]
            rest = 0.0
            for k in range(indptr[i], indptr[i + 1]):
                place = position[indices[k]]
                if place >= 0:
                    out[place] = real(data[k]) - origin[place]
                else:
                    rest += np.float64(data[k]) * np.float64(data[k])
            return rest

        return csr

    def dense(X: Any, i: Any, position: Any, origin: Any, out: Any) -> Any:
        """Write row i less the origin to `out`, X a dense array."""
        row = X[i]
        for j in range(len(row)):
            out[j] = real(row[j]) - origin[j]
        return 0.0

    return dense


# Coefficients, highest power first, of polynomials that approximate 2^f for f in [-1/2, 1/2].
# _SINGLE (float32): Chebyshev interpolation of degree 6, relative error 8e-8 with all roundings.
# _DOUBLE (float64): Taylor, degree 13, relative error 4e-16.
_SINGLE = (1.5461445e-4, 1.3400428e-3, 9.618057e-3, 5.550327e-2, 0.2402265, 0.6931472, 1.0)
_DOUBLE = tuple(math.log(2.0) ** k / math.factorial(k) for k in range(13, -1, -1))


def exp2_negative(t: float) -> float:
    """Return 2^min(t, 0), the exponential of all kernels (log2(e) is part of their constants).

    Relative error below 2e-7 (float32, t >= -126) or 1e-15 (float64, t >= -1022), exactly 1 at
    t = 0, and 0 for t below -126.5 or -1022.5. No branch and no call, so it vectorises; base 2
    needs no two-constant range reduction. NaN stays NaN.
    """
    raise NotImplementedError


@overload(exp2_negative, jit_options={"fastmath": {"contract"}})
def _exp2_negative(t: Any) -> Callable[..., Any]:
    """Choose the compiled code of `exp2_negative`, with constants for the type of t."""
    single = t == types.float32
    real: Any = np.float32 if single else np.float64
    whole: Any = np.int32 if single else np.int64
    mantissa, bias = (23, 127) if single else (52, 1023)
    zero, lowest = real(0), real(-bias)
    leading, *others = (real(c) for c in (_SINGLE if single else _DOUBLE))
    coefficients = tuple(others)
    # Adding 1.5 * 2^mantissa leaves round(t) in the low bits of the sum, ready to be shifted into
    # an exponent; subtracting it again leaves round(t) as a float. 'contract' is the only freedom
    # the compiler has: reassociated, this would vanish.
    rounder = real(1.5 * 2**mantissa)
    offset = int(rounder.view(whole)) - bias

    def implementation(t: Any) -> Any:
        """Return 2^min(t, 0): a polynomial of the fraction of t times 2 to its whole part."""
        t = zero if t > zero else t  # NaN passes both clips
        t = lowest if t < lowest else t
        z = t + rounder
        f = t - (z - rounder)
        p = leading
        for c in coefficients:
            p = p * f + c
        # A product, not an addition to the exponent bits of p: keeps NaN, and gives an exact 0.
        return p * whole((real(z).view(whole) - offset) << mantissa).view(real)

    return implementation


def tanh(x: float) -> float:
    """Return the hyperbolic tangent, through `exp2_negative`; absolute error < 2e-7 or 1e-15."""
    raise NotImplementedError


# error_model: a test for division by zero would prevent vectorisation.
@overload(tanh, jit_options={"fastmath": {"contract"}, "error_model": "numpy"})
def _tanh(x: Any) -> Callable[..., Any]:
    """Choose the compiled code of `tanh`, with constants for the type of x."""
    real = np.float32 if x == types.float32 else np.float64
    one, zero, scale = real(1), real(0), real(-2 * math.log2(math.e))

    def implementation(x: Any) -> Any:
        """Return ``(1 - e) / (1 + e)`` with ``e = exp(-2 |x|)``, and the sign of x."""
        e = exp2_negative(scale * abs(x))
        y = (one - e) / (one + e)
        return -y if x < zero else y

    return implementation
