"""The numba door: njit and overload, one function per row operation, and the fused exponential.

Compiled loops take the rows of a matrix as one argument ``X``: a dense C-contiguous array of shape
(rows, d), or a CSR triple ``(data, indices, indptr)``. The functions named ``row_`` are chosen by
that type at compile time, so no loop exists twice. All functions here but `as_rows`, which makes
their X, can be called from compiled code only.
"""

import math

import numpy as np
from numba import njit
from numba.core import types
from numba.extending import overload
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.errors import InputError

__all__ = [
    "FloatArray",
    "aligned",
    "as_rows",
    "exp2_negative",
    "njit",
    "overload",
    "row_axpy",
    "row_count",
    "row_dot",
    "row_load",
    "row_sqnorm",
    "tanh",
]

FloatArray = NDArray[np.float64]

CACHE_LINE = 64


def aligned(shape, dtype):
    """A new array, not filled, that begins where a cache line does."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + CACHE_LINE, dtype=np.uint8)
    first = -room.ctypes.data % CACHE_LINE
    return room[first : first + size].view(dtype).reshape(shape)


# Sums may be reordered so that they vectorise. Neither 'nnan' nor 'ninf' is ever allowed: a NaN in
# the data must come out as a NaN, not as a plausible number.
SUMS = {"reassoc", "contract", "nsz"}


def as_rows(X):
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


def _is_csr(X) -> bool:
    return isinstance(X, types.BaseTuple)


def row_count(X):
    """Number of rows."""


@overload(row_count)
def _row_count(X):
    if _is_csr(X):
        return lambda X: len(X[2]) - 1
    return lambda X: len(X)


def row_dot(X, i, w):
    """<X_i, w>, summed in the type of w (float64 in every solver)."""


@overload(row_dot, jit_options={"fastmath": SUMS})
def _row_dot(X, i, w):
    if _is_csr(X):

        def csr(X, i, w):
            data, indices, indptr = X
            total = w[0] * 0
            # Unsigned, here and below: no check for indices from the end, 30 % of a CSR epoch.
            for k in range(np.uintp(indptr[i]), np.uintp(indptr[i + 1])):
                total += data[k] * w[np.uintp(indices[k])]
            return total

        return csr

    def dense(X, i, w):
        row = X[i]
        total = w[0] * 0
        for j in range(len(row)):
            total += row[j] * w[j]
        return total

    return dense


def row_axpy(X, i, a, w):
    """w += a X_i, in place."""


@overload(row_axpy, jit_options={"fastmath": {"contract"}})
def _row_axpy(X, i, a, w):
    if _is_csr(X):

        def csr(X, i, a, w):
            data, indices, indptr = X
            for k in range(np.uintp(indptr[i]), np.uintp(indptr[i + 1])):
                w[np.uintp(indices[k])] += a * data[k]

        return csr

    def dense(X, i, a, w):
        row = X[i]
        for j in range(len(row)):
            w[j] += a * row[j]

    return dense


def row_sqnorm(X, i):
    """||X_i||^2, summed in float64."""


@overload(row_sqnorm, jit_options={"fastmath": SUMS})
def _row_sqnorm(X, i):
    if _is_csr(X):

        def csr(X, i):
            data, _, indptr = X
            total = 0.0
            for k in range(indptr[i], indptr[i + 1]):
                total += np.float64(data[k]) * np.float64(data[k])
            return total

        return csr

    def dense(X, i):
        row = X[i]
        total = 0.0
        for j in range(len(row)):
            total += np.float64(row[j]) * np.float64(row[j])
        return total

    return dense


def row_load(X, i, position, origin, out):
    """out[position[j]] = X_ij - origin[position[j]] for the columns of position >= 0, else -origin.

    What is taken off is taken off in the wider of the types of X and of out, before it is rounded
    to the type of out. Returns the squared norm of the columns left out. Dense rows are taken as a
    whole: their position[j] must be j.
    """


@overload(row_load, jit_options={"fastmath": {"contract"}})
def _row_load(X, i, position, origin, out):
    number = (X[0] if _is_csr(X) else X).dtype
    double = types.float64 in (number, out.dtype)
    real = np.float64 if double else np.float32

    if _is_csr(X):

        def csr(X, i, position, origin, out):
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

    def dense(X, i, position, origin, out):
        row = X[i]
        for j in range(len(row)):
            out[j] = real(row[j]) - origin[j]
        return 0.0

    return dense


# 2^f on [-1/2, 1/2], highest power first. float32: Chebyshev interpolation of degree 6, relative
# error 8e-8 with all roundings. float64: Taylor, degree 13, 4e-16.
_SINGLE = (1.5461445e-4, 1.3400428e-3, 9.618057e-3, 5.550327e-2, 0.2402265, 0.6931472, 1.0)
_DOUBLE = tuple(math.log(2.0) ** k / math.factorial(k) for k in range(13, -1, -1))


def exp2_negative(t):
    """2^min(t, 0), the one exponential of every kernel: they fold log2(e) into their constants.

    Relative error below 2e-7 (float32, t >= -126) or 1e-15 (float64, t >= -1022), exactly 1 at 0,
    0 half a step below. No branch and no call, so it vectorises; a base-2 argument needs no
    two-constant reduction. NaN stays NaN.
    """


@overload(exp2_negative, jit_options={"fastmath": {"contract"}})
def _exp2_negative(t):
    single = t == types.float32
    real, whole = (np.float32, np.int32) if single else (np.float64, np.int64)
    mantissa, bias = (23, 127) if single else (52, 1023)
    zero, lowest = real(0), real(-bias)
    leading, *others = (real(c) for c in (_SINGLE if single else _DOUBLE))
    coefficients = tuple(others)
    # Adding 1.5 * 2^mantissa leaves round(t) in the low bits of the sum, ready to be shifted into
    # an exponent; subtracting it again leaves round(t) as a float. 'contract' is the only freedom
    # the compiler has: reassociated, this would vanish.
    rounder = real(1.5 * 2**mantissa)
    offset = int(rounder.view(whole)) - bias

    def implementation(t):
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


def tanh(x):
    """Hyperbolic tangent through `exp2_negative`; absolute error below 2e-7 or 1e-15."""


# error_model: the check for a division by zero would keep the loop from being vectorised.
@overload(tanh, jit_options={"fastmath": {"contract"}, "error_model": "numpy"})
def _tanh(x):
    real = np.float32 if x == types.float32 else np.float64
    one, zero, scale = real(1), real(0), real(-2 * math.log2(math.e))

    def implementation(x):
        e = exp2_negative(scale * abs(x))
        y = (one - e) / (one + e)
        return -y if x < zero else y

    return implementation
