"""Kernels: blocks of entries and products with vectors, dense or CSR rows on either side.

A kernel is a frozen record plus one compiled scalar function (`entries.entry`, chosen by the
type of its constants): adding a kernel opens nothing else. float32 is the fast path (BLAS, a fused
pass, a polynomial exponential; error: `Kernel.entry_error`), float64 the accurate one. Everything
runs without the GIL, one buffer per thread; BLAS threads are limited by the caller.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bigscreen import entries
from bigscreen.errors import InputError
from bigscreen.tiles import Side, tiles

__all__ = [
    "Kernel",
    "Laplacian",
    "Linear",
    "Polynomial",
    "Rbf",
    "Side",
    "Sigmoid",
    "kernel_from_dict",
    "make_kernel",
]

_LOG2E = math.log2(math.e)
_U32 = 2.0**-24  # unit roundoff of float32


class Kernel:
    """k(a, b) of two rows; the subclasses are frozen dataclasses of its parameters.

    Rows on the left are a Side, an ndarray or a CSR array (taken as float32), on the right a Side.
    `pairing` names what `tiles.tiles` computes for a pair, `psd` says if the kernel is positive
    semidefinite for all data.
    """

    name: ClassVar[str]
    pairing: ClassVar[str] = "product"
    psd: ClassVar[bool] = True

    def terms(self, dtype: np.dtype) -> NamedTuple:
        """Constants of the compiled `entries.entry`, in the type of the entries."""
        raise NotImplementedError

    def diag(self, A) -> np.ndarray:
        """k(a, a) for every row of A: float64 (len A,)."""
        return np.ones(_side(A).sqnorms.shape)

    def bound(self, max_sqnorm_a: float, max_sqnorm_b: float) -> float:
        """Upper bound of |k(a, b)| over rows of at most these squared norms."""
        return 1.0

    def entry_error(self, sqnorm_a, max_sqnorm_b: float, d: int):
        """Bound of the absolute error of one float32 entry, calibrated in the tests.

        Roundings in a sum of d terms are taken as random (Higham and Mary 2019: sqrt(d), not d).

        Parameters
        ----------
        sqnorm_a : float or ndarray
            Squared norms of rows of A: one for each row, or the largest.
        max_sqnorm_b : float
            Largest squared norm of the rows of B.
        d : int
            Number of features (sparse rows: most nonzeros in a row).

        Returns
        -------
        float or ndarray, as sqnorm_a
        """
        raise NotImplementedError

    def block(self, A, B: Side, out: np.ndarray | None = None, dtype=np.float32) -> np.ndarray:
        """Kernel entries between the rows of A and of B.

        Parameters
        ----------
        A : Side, ndarray or CSR array, (a, d)
        B : Side of b rows
        out : ndarray (a, b), C-contiguous, of `dtype`, optional
            Overwritten and returned; a reused one saves 1 ns an entry.
        dtype : float32 (fast) or float64 (accurate: float64 products and formulas)

        Returns
        -------
        ndarray (a, b)

        Raises
        ------
        InputError
            The number of features differs.
        """
        dtype = np.dtype(dtype)
        shape = (_count(A), len(B))
        if out is None:
            out = np.empty(shape, dtype=dtype)
        elif out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
            raise ValueError(f"out must be a C-contiguous {dtype} array of shape {shape}")
        terms = self.terms(dtype)
        for tile in tiles(A, B, self.pairing, dtype, out):
            entries.finish(terms, tile.values, tile.first, tile.half_a, tile.half_b)
        return out

    def dots(self, A, B: Side, V: np.ndarray, dtype=np.float32) -> np.ndarray:
        """K(A, B) @ V, holding one tile of K at a time.

        Parameters
        ----------
        A : Side, ndarray or CSR array, (a, d)
        B : Side of b rows
        V : float64 (b, k)
        dtype : type of the entries; products with V and sums are float64 always

        Returns
        -------
        float64 (a, k)

        Raises
        ------
        InputError
            The number of features differs.
        """
        dtype = np.dtype(dtype)
        if V.ndim != 2 or len(V) != len(B):
            raise ValueError(f"V must have shape ({len(B)}, k), not {V.shape}")
        VT = np.ascontiguousarray(V.T, dtype=np.float64)
        out = np.zeros((_count(A), len(VT)))
        terms = self.terms(dtype)
        for values, first, row, column, half_a, half_b in tiles(A, B, self.pairing, dtype):
            part = out[row : row + len(values)]
            entries.finish_dots(terms, values, first, half_a, half_b, VT, column, part)
        return out

    def to_dict(self) -> dict[str, Any]:
        """JSON-able record; `kernel_from_dict` reads it."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]


def _side(A) -> Side:
    return A if isinstance(A, Side) else Side(A)


def _count(A) -> int:
    return len(A) if isinstance(A, Side) else A.shape[0]


def _product_error(sqnorm_a, max_sqnorm_b: float, d: int):
    """Error of a float32 inner product of d terms: random walk of d roundings, six sigma."""
    return _U32 * (2.0 * math.sqrt(d) + 2.0) * np.sqrt(sqnorm_a * max_sqnorm_b)


@dataclass(frozen=True)
class Linear(Kernel):
    """<a, b>"""

    name: ClassVar[str] = "linear"

    def terms(self, dtype) -> NamedTuple:
        return entries.LinearTerms()

    def diag(self, A) -> np.ndarray:
        return _side(A).sqnorms

    def bound(self, max_sqnorm_a: float, max_sqnorm_b: float) -> float:
        return math.sqrt(max_sqnorm_a * max_sqnorm_b)

    def entry_error(self, sqnorm_a, max_sqnorm_b: float, d: int):
        return _product_error(sqnorm_a, max_sqnorm_b, d)


@dataclass(frozen=True)
class Rbf(Kernel):
    """exp(-gamma ||a - b||^2)"""

    gamma: float
    name: ClassVar[str] = "rbf"
    pairing: ClassVar[str] = "distance"

    def terms(self, dtype) -> NamedTuple:
        return entries.RbfTerms(dtype.type(2 * self.gamma * _LOG2E))

    def entry_error(self, sqnorm_a, max_sqnorm_b: float, d: int):
        half = _product_error(sqnorm_a, max_sqnorm_b, d) + _U32 * (sqnorm_a + max_sqnorm_b)
        # A row longer than every row of B is at least this far from all of them.
        apart = np.maximum(np.sqrt(sqnorm_a) - math.sqrt(max_sqnorm_b), 0.0)
        return 2 * self.gamma * half * np.exp(-self.gamma * apart**2) + 4 * _U32


@dataclass(frozen=True)
class Polynomial(Kernel):
    """(gamma <a, b> + coef0)^degree"""

    gamma: float
    degree: int = 3
    coef0: float = 0.0
    name: ClassVar[str] = "polynomial"

    @property
    def psd(self) -> bool:  # type: ignore[override]
        return self.coef0 >= 0

    def terms(self, dtype) -> NamedTuple:
        factors = (0,) * (self.degree - 1)
        return entries.PolynomialTerms(dtype.type(self.gamma), dtype.type(self.coef0), factors)

    def diag(self, A) -> np.ndarray:
        return (self.gamma * _side(A).sqnorms + self.coef0) ** self.degree

    def bound(self, max_sqnorm_a: float, max_sqnorm_b: float) -> float:
        return self._base(max_sqnorm_a, max_sqnorm_b) ** self.degree

    def _base(self, sqnorm_a, max_sqnorm_b: float):
        return self.gamma * np.sqrt(sqnorm_a * max_sqnorm_b) + abs(self.coef0)

    def entry_error(self, sqnorm_a, max_sqnorm_b: float, d: int):
        base = self._base(sqnorm_a, max_sqnorm_b)
        step = self.gamma * _product_error(sqnorm_a, max_sqnorm_b, d) + 3 * _U32 * base
        return self.degree * base ** (self.degree - 1) * step


@dataclass(frozen=True)
class Laplacian(Kernel):
    """exp(-gamma ||a - b||_1)"""

    gamma: float
    name: ClassVar[str] = "laplacian"
    pairing: ClassVar[str] = "manhattan"

    def terms(self, dtype) -> NamedTuple:
        return entries.LaplacianTerms(dtype.type(-self.gamma * _LOG2E))

    def entry_error(self, sqnorm_a, max_sqnorm_b: float, d: int):
        # All terms of the distance are positive, so its error is relative, and x exp(-x) <= 1/e.
        return _U32 * ((2.0 * math.sqrt(d) + 4.0) / math.e + 4.0) + 0.0 * sqnorm_a


@dataclass(frozen=True)
class Sigmoid(Kernel):
    """tanh(gamma <a, b> + coef0), not positive semidefinite"""

    gamma: float
    coef0: float = 0.0
    name: ClassVar[str] = "sigmoid"
    psd: ClassVar[bool] = False

    def terms(self, dtype) -> NamedTuple:
        return entries.SigmoidTerms(dtype.type(self.gamma), dtype.type(self.coef0))

    def diag(self, A) -> np.ndarray:
        return np.tanh(self.gamma * _side(A).sqnorms + self.coef0)

    def entry_error(self, sqnorm_a, max_sqnorm_b: float, d: int):
        # Slope at most 1; a relative error of the argument x costs x (1 - tanh(x)^2) < 1/2.
        return self.gamma * _product_error(sqnorm_a, max_sqnorm_b, d) + 5 * _U32


_ALL: tuple[type[Kernel], ...] = (Linear, Rbf, Polynomial, Laplacian, Sigmoid)
_KINDS = {kind.name: kind for kind in _ALL} | {"poly": Polynomial}  # scikit-learn's name


def make_kernel(name: str, gamma: float = 1.0, degree: int = 3, coef0: float = 0.0) -> Kernel:
    """The kernel of this name; parameters it does not have are ignored.

    Parameters
    ----------
    name : "linear", "rbf", "polynomial" (or "poly"), "laplacian" or "sigmoid"
    gamma : float > 0
    degree : int >= 1
    coef0 : float

    Raises
    ------
    InputError
        Unknown name, or a parameter out of its range.
    """
    if name not in _KINDS:
        raise InputError(f"unknown kernel {name!r}: use one of {', '.join(sorted(_KINDS))}.")
    own = {field.name for field in fields(_KINDS[name])}  # type: ignore[arg-type]
    if "gamma" in own and not 0 < gamma < math.inf:
        raise InputError(f"gamma must be a positive number, not {gamma}.")
    if "degree" in own and not (degree >= 1 and degree == int(degree)):
        raise InputError(f"degree must be a whole number of at least 1, not {degree}.")
    if "coef0" in own and not math.isfinite(coef0):
        raise InputError(f"coef0 must be a finite number, not {coef0}.")
    given = {"gamma": float(gamma), "degree": int(degree), "coef0": float(coef0)}
    return _KINDS[name](**{key: given[key] for key in given if key in own})


def kernel_from_dict(record: dict[str, Any]) -> Kernel:
    """The kernel that `Kernel.to_dict` recorded; errors as in `make_kernel`."""
    return make_kernel(**record)
