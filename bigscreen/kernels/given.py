"""Kernels that the user gives: a precomputed matrix, or a function.

Every gap and every screening rule needs a positive semidefinite kernel. `kernels.definite` tests
the entries, and writes the result into the fields of these classes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from bigscreen.errors import InputError
from bigscreen.kernels.base import (
    ONE_ROUNDING,
    Kernel,
    as_operand,
    is_in_float32_range,
    output_array,
)
from bigscreen.kernels.operand import AnyRows, Operand, float_rows
from bigscreen.numerics.rows import FloatArray

UNKNOWN = "trusted to be positive semidefinite"
"""What is known of a user's kernel before it is tested (see `kernels.definite`), in words."""


@dataclass(frozen=True)
class Precomputed(Kernel):
    """A precomputed kernel matrix: the features of a row are its entries with all training rows.

    So k(a, b) is column b of row a. An Operand on the right needs `ids` only: its rows may be
    empty. The given numbers are the exact kernel; they are rounded if float32 entries are
    requested.

    Parameters
    ----------
    psd : bool
        False if the entries have shown that the matrix is not positive semidefinite.
    known : str
        In words, whether it is positive semidefinite and how that was tested.
    largest : float
        The largest absolute entry of the tested rows, if ``psd`` is False.
    """

    # (A class attribute of the other kernels.)
    psd: bool = True  # type: ignore[misc]
    known: str = UNKNOWN
    largest: float = math.inf
    name: ClassVar[str] = "precomputed"

    def diag(self, A: AnyRows) -> FloatArray:
        """Return k(a, a), which is feature ``ids`` of each row: float64 (len A,)."""
        side = as_operand(A)
        ids = _ids(side)
        rows = np.arange(len(side))
        if sparse.issparse(side.X):
            # The one entry of each row that a product with a matrix of 0 and 1 leaves.
            chosen = sparse.csr_array((np.ones(len(ids)), (rows, ids)), shape=side.X.shape)
            return np.asarray(side.X.multiply(chosen).sum(axis=1), dtype=np.float64)
        return np.asarray(side.X[rows, ids], dtype=np.float64)

    def bound(self, max_sqnorm_a: float, max_sqnorm_b: float) -> float:
        """Bound |k(a, b)| by the larger of the two rows' norms."""
        # An entry is a feature of a row, so it is at most the row's norm.
        return math.sqrt(max(max_sqnorm_a, max_sqnorm_b))

    def entry_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Bound the rounding of one entry to float32, given rows' squared norms.

        ``sqnorm_a``: squared norms of the left rows, or the largest; ``max_sqnorm_b``: the largest
        of the right rows. ``d`` is not used.
        """
        return ONE_ROUNDING * np.sqrt(np.maximum(sqnorm_a, max_sqnorm_b))

    def relative_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Bound the relative error of rounding an entry to float32, shaped as ``sqnorm_a``.

        ``sqnorm_a``: squared norms of the left rows, or the largest; ``max_sqnorm_b``: the largest
        of the right rows. ``d`` is not used.
        """
        return ONE_ROUNDING + 0.0 * sqnorm_a

    def precision(self, max_sqnorm: float, d: int) -> type:
        """Return float32, or float64 if rows' squared norms of this size are out of its range."""
        held = max_sqnorm == 0 or is_in_float32_range(max_sqnorm)
        return np.float32 if held else np.float64

    def block(
        self, A: AnyRows, B: Operand, out: NDArray[Any] | None = None, dtype: DTypeLike = np.float32
    ) -> NDArray[Any]:
        """Select the entries of the rows of A in the columns ``B.ids`` (see `Kernel.block`)."""
        X = A.X if isinstance(A, Operand) else float_rows(A)
        if X.shape[1] != B.X.shape[1]:
            raise InputError(
                f"rows of a precomputed kernel must have one entry for each of the {B.X.shape[1]} "
                f"training rows, not {X.shape[1]}."
            )
        out = output_array(X, B, out, np.dtype(dtype))
        chosen = X[:, _ids(B)]
        out[:] = chosen.toarray() if sparse.issparse(chosen) else chosen
        return out

    def to_dict(self) -> dict[str, Any]:
        """JSON-able record, without the test results of the training rows."""
        return {"name": self.name}


def _ids(side: Operand) -> NDArray[Any]:
    """Return the rows' ids (numbers among the training rows); ValueError if they are None."""
    if side.ids is None:
        raise ValueError("a precomputed kernel needs the ids of its rows")
    return side.ids


@dataclass(frozen=True)
class Custom(Kernel):
    """A kernel function of the user.

    Parameters
    ----------
    function : callable
        ``function(A, B)`` returns the entries (a, b) of float64 arrays (a, d) and (b, d), or of CSR
        arrays if the rows are sparse. The entry of a pair of rows must not depend on the other
        rows. It is called from several threads at once; on a cluster it must be picklable.
    psd, known, largest
        Results of the test for positive semidefiniteness, as in `Precomputed`.
    """

    function: Callable[[Any, Any], Any]
    # (A class attribute of the other kernels.)
    psd: bool = True  # type: ignore[misc]
    known: str = UNKNOWN
    largest: float = math.inf
    name: ClassVar[str] = "callable"
    storable: ClassVar[bool] = False

    def diag(self, A: AnyRows) -> FloatArray:
        """Return k(a, a) for every row of A, float64 (len A,), from blocks of 32 rows.

        A function is only known for pairs of rows, so small blocks are computed.
        """
        X = A.X if isinstance(A, Operand) else float_rows(A)
        parts, step = [np.empty(0)], 32  # small square blocks, of which only the diagonal is used
        for start in range(0, X.shape[0], step):
            rows = X[start : start + step]
            parts.append(np.diagonal(self.block(rows, Operand(rows), dtype=np.float64)))
        return np.concatenate(parts)

    def bound(self, max_sqnorm_a: float, max_sqnorm_b: float) -> float:
        """Return ``largest``, the largest tested |entry|; norms of rows bound nothing here."""
        # Norms of rows do not bound an unknown function. If it is positive semidefinite use `diag`,
        # which bounds its entries; otherwise the largest tested entry has to do.
        return self.largest

    def entry_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Bound the rounding of one entry to float32, in the shape of ``sqnorm_a``.

        ``sqnorm_a``: squared norms of the left rows, or the largest; ``max_sqnorm_b``: the largest
        of the right rows. ``d`` is not used.
        """
        return ONE_ROUNDING * self.largest + 0.0 * sqnorm_a

    def precision(self, max_sqnorm: float, d: int) -> type:
        """Return float32: rows' norms do not tell the size of entries of an unknown function."""
        return np.float32

    def relative_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        """Bound the relative error of rounding an entry to float32, shaped as ``sqnorm_a``.

        ``sqnorm_a``: squared norms of the left rows, or the largest; ``max_sqnorm_b``: the largest
        of the right rows. ``d`` is not used.
        """
        # The function's float64 entries count as exact; here they are rounded to float32.
        return ONE_ROUNDING + 0.0 * sqnorm_a

    def block(
        self, A: AnyRows, B: Operand, out: NDArray[Any] | None = None, dtype: DTypeLike = np.float32
    ) -> NDArray[Any]:
        """Call the user's function on A and B, and check what it returns (see `Kernel.block`)."""
        X = A.X if isinstance(A, Operand) else float_rows(A)
        if X.shape[1] != B.X.shape[1]:
            raise InputError(
                f"rows have {X.shape[1]} features where {B.X.shape[1]} are expected: "
                "prepare both sides in the same way."
            )
        out = output_array(X, B, out, np.dtype(dtype))
        found = self.function(X.astype(np.float64), B.X.astype(np.float64))
        if sparse.issparse(found):
            found = found.toarray()
        try:
            entries = np.asarray(found, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the kernel function must return an array of numbers, not {type(found).__name__}."
            ) from error
        if entries.shape != out.shape:
            raise InputError(
                f"the kernel function returned an array of shape {entries.shape} for {len(out)} "
                f"and {len(B)} rows: it must be {out.shape}."
            )
        with np.errstate(over="ignore"):
            out[:] = entries
        if not np.isfinite(out).all():
            raise InputError(f"the kernel function returned values that are no finite {out.dtype}.")
        return out

    def to_dict(self) -> dict[str, Any]:
        """A record to read; `kernel_from_dict` cannot restore a function from it."""
        function = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return {"name": self.name, "function": function}
