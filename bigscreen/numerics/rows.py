"""Row operations of compiled loops, the fused exponential, and numba's decorators with types.

Compiled loops take the rows of a matrix as one argument ``X``: a dense C-contiguous array of shape
(rows, d), or a CSR triple ``(data, indices, indptr)``. The functions named ``row_`` are chosen by
that type at compile time, so no loop exists twice. They, `exp2_negative` and `tanh` can be called
from compiled code only: what a person reads there is their contract.
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

RowArrays = NDArray[Any] | tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""What compiled loops take for a matrix: a dense array, or (data, indices, indptr)."""

CACHE_LINE = 64

F = TypeVar("F", bound=Callable[..., Any])


def njit(**options: Any) -> Callable[[F], F]:
    """`numba.njit`: compiles a function, whose type stays what its annotations say.

    Without the entry that C code could call: nobody does, and it is a 20th of the time to compile.
    """
    options = {"no_cfunc_wrapper": True, **options}
    return cast("Callable[[F], F]", numba.njit(**options))


def overload(function: Callable[..., Any], **options: Any) -> Callable[[F], F]:
    """`numba.extending.overload`: implements ``function`` in compiled code by its arguments' types.

    Numba compares signatures with their annotations: what is decorated and what it returns have
    both `Any` for each argument (a type in one, a value in the other), or none, as a lambda.
    """
    return cast("Callable[[F], F]", extending.overload(function, **options))


def aligned(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """A new array, not filled, that begins where a cache line does."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + CACHE_LINE, dtype=np.uint8)
    first = -room.ctypes.data % CACHE_LINE
    return room[first : first + size].view(dtype).reshape(shape)


# Sums may be reordered so that they vectorise. Neither 'nnan' nor 'ninf' is ever allowed: a NaN in
# the data must come out as a NaN, not as a plausible number.
SUMS = {"reassoc", "contract", "nsz"}


def as_rows(X: Any) -> RowArrays:
    """What compiled loops take for the matrix X.

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
    return isinstance(X, types.BaseTuple)


def row_count(X: RowArrays) -> int:
    """Number of rows."""
    raise NotImplementedError


@overload(row_count)
def _row_count(X: Any) -> Callable[..., Any]:
    if _is_csr(X):

        def csr(X: Any) -> Any:
            return len(X[2]) - 1

        return csr

    def dense(X: Any) -> Any:
        return len(X)

    return dense


def row_dot(X: RowArrays, i: int, w: FloatArray) -> float:
    """<X_i, w>, summed in the type of w (float64 in every solver)."""
    raise NotImplementedError


@overload(row_dot, jit_options={"fastmath": SUMS})
def _row_dot(X: Any, i: Any, w: Any) -> Callable[..., Any]:
    if _is_csr(X):

        def csr(X: Any, i: Any, w: Any) -> Any:
            data, indices, indptr = X
            total = w[0] * 0
            # Unsigned, here and below: no check for indices from the end, 30 % of a CSR epoch.
            for k in range(np.uintp(indptr[i]), np.uintp(indptr[i + 1])):
                total += data[k] * w[np.uintp(indices[k])]
            return total

        return csr

    def dense(X: Any, i: Any, w: Any) -> Any:
        row = X[i]
        total = w[0] * 0
        for j in range(len(row)):
            total += row[j] * w[j]
        return total

    return dense


def row_axpy(X: RowArrays, i: int, a: float, w: FloatArray) -> None:
    """w += a X_i, in place."""


@overload(row_axpy, jit_options={"fastmath": {"contract"}})
def _row_axpy(X: Any, i: Any, a: Any, w: Any) -> Callable[..., Any]:
    if _is_csr(X):

        def csr(X: Any, i: Any, a: Any, w: Any) -> Any:
            data, indices, indptr = X
            for k in range(np.uintp(indptr[i]), np.uintp(indptr[i + 1])):
                w[np.uintp(indices[k])] += a * data[k]

        return csr

    def dense(X: Any, i: Any, a: Any, w: Any) -> Any:
        row = X[i]
        for j in range(len(row)):
            w[j] += a * row[j]

    return dense


def row_sqnorm(X: RowArrays, i: int) -> float:
    """||X_i||^2, summed in float64."""
    raise NotImplementedError


@overload(row_sqnorm, jit_options={"fastmath": SUMS})
def _row_sqnorm(X: Any, i: Any) -> Callable[..., Any]:
    if _is_csr(X):

        def csr(X: Any, i: Any) -> Any:
            data, _, indptr = X
            total = 0.0
            for k in range(indptr[i], indptr[i + 1]):
                total += np.float64(data[k]) * np.float64(data[k])
            return total

        return csr

    def dense(X: Any, i: Any) -> Any:
        row = X[i]
        total = 0.0
        for j in range(len(row)):
            total += np.float64(row[j]) * np.float64(row[j])
        return total

    return dense


@njit(nogil=True, cache=True)
def sqnorms(X: RowArrays) -> FloatArray:
    """Squared norms of all rows, summed in float64 (called from Python too)."""
    out = np.empty(row_count(X))
    for i in range(len(out)):
        out[i] = row_sqnorm(X, i)
    return out


def row_load(
    X: RowArrays, i: int, position: NDArray[Any], origin: NDArray[Any], out: NDArray[Any]
) -> float:
    """out[position[j]] = X_ij - origin[position[j]] for the columns of position >= 0, else -origin.

    What is taken off is taken off in the wider of the types of X and of out, before it is rounded
    to the type of out. Returns the squared norm of the columns left out. Dense rows are taken as a
    whole: their position[j] must be j.
    """
    raise NotImplementedError


@overload(row_load, jit_options={"fastmath": {"contract"}})
def _row_load(X: Any, i: Any, position: Any, origin: Any, out: Any) -> Callable[..., Any]:
    number = (X[0] if _is_csr(X) else X).dtype
    double = types.float64 in (number, out.dtype)
    real = np.float64 if double else np.float32

    if _is_csr(X):

        def csr(X: Any, i: Any, position: Any, origin: Any, out: Any) -> Any:
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
        row = X[i]
        for j in range(len(row)):
            out[j] = real(row[j]) - origin[j]
        return 0.0

    return dense


# 2^f on [-1/2, 1/2], highest power first. float32: Chebyshev interpolation of degree 6, relative
# error 8e-8 with all roundings. float64: Taylor, degree 13, 4e-16.
_SINGLE = (1.5461445e-4, 1.3400428e-3, 9.618057e-3, 5.550327e-2, 0.2402265, 0.6931472, 1.0)
_DOUBLE = tuple(math.log(2.0) ** k / math.factorial(k) for k in range(13, -1, -1))


def exp2_negative(t: float) -> float:
    """2^min(t, 0), the one exponential of every kernel: they fold log2(e) into their constants.

    Relative error below 2e-7 (float32, t >= -126) or 1e-15 (float64, t >= -1022), exactly 1 at 0,
    0 half a step below. No branch and no call, so it vectorises; a base-2 argument needs no
    two-constant reduction. NaN stays NaN.
    """
    raise NotImplementedError


@overload(exp2_negative, jit_options={"fastmath": {"contract"}})
def _exp2_negative(t: Any) -> Callable[..., Any]:
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
        t = zero if t > zero else t  # a NaN falls through both clips
        t = lowest if t < lowest else t
        z = t + rounder
        f = t - (z - rounder)
        p = leading
        for c in coefficients:
            p = p * f + c
        # A product, not an addition to the exponent bits of p: keeps a NaN, gives a true 0.
        return p * whole((real(z).view(whole) - offset) << mantissa).view(real)

    return implementation


def tanh(x: float) -> float:
    """Hyperbolic tangent through `exp2_negative`; absolute error below 2e-7 or 1e-15."""
    raise NotImplementedError


# error_model: the check for a division by zero would keep the loop from being vectorised.
@overload(tanh, jit_options={"fastmath": {"contract"}, "error_model": "numpy"})
def _tanh(x: Any) -> Callable[..., Any]:
    real = np.float32 if x == types.float32 else np.float64
    one, zero, scale = real(1), real(0), real(-2 * math.log2(math.e))

    def implementation(x: Any) -> Any:
        e = exp2_negative(scale * abs(x))
        y = (one - e) / (one + e)
        return -y if x < zero else y

    return implementation
