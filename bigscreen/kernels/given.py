"""Kernels whose entries are given: a matrix computed beforehand, or a function of the user's own.

Whether they are positive semidefinite, which every gap and every screening rule needs, only their
entries can tell: `kernels.definite` looks at them, and what it finds stands in the fields.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from bigscreen.errors import InputError
from bigscreen.kernels.base import LEAST, MOST, ROUNDED_ONCE, Kernel, as_side, output
from bigscreen.kernels.operand import AnyRows, Operand, float_rows
from bigscreen.numerics.rows import FloatArray

UNKNOWN = "trusted to be positive semidefinite"

_DIAGONAL_ROWS = 32  # rows whose square block is computed for the sake of its diagonal


@dataclass(frozen=True)
class Precomputed(Kernel):
    """k(a, b) is column b of row a: the features of a row are its entries to all training rows.

    An Operand on the right needs `ids`, and nothing else: its rows may be empty. The given numbers
    are the kernel; float64 ones are rounded where float32 entries are asked for.

    Parameters
    ----------
    psd : bool
        False where the entries have shown that it is not positive semidefinite.
    known : str
        What is known of that, in words.
    largest : float
        The largest entry that was seen, where it is not.
    """

    # (Of the other kernels the class knows it.)
    psd: bool = True  # type: ignore[misc]
    known: str = UNKNOWN
    largest: float = math.inf
    name: ClassVar[str] = "precomputed"

    def diag(self, A: AnyRows) -> FloatArray:
        side = as_side(A)
        ids = _ids(side)
        rows = np.arange(len(side))
        if sparse.issparse(side.X):
            # One entry a row: its product with the row that has a 1 there.
            chosen = sparse.csr_array((np.ones(len(ids)), (rows, ids)), shape=side.X.shape)
            return np.asarray(side.X.multiply(chosen).sum(axis=1), dtype=np.float64)
        return np.asarray(side.X[rows, ids], dtype=np.float64)

    def bound(self, max_sqnorm_a: float, max_sqnorm_b: float) -> float:
        # An entry is one of the features of a row.
        return math.sqrt(max(max_sqnorm_a, max_sqnorm_b))

    def entry_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        return ROUNDED_ONCE * np.sqrt(np.maximum(sqnorm_a, max_sqnorm_b))

    def relative_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        return ROUNDED_ONCE + 0.0 * sqnorm_a

    def precision(self, max_sqnorm: float, d: int) -> type:
        held = max_sqnorm == 0 or LEAST <= max_sqnorm <= MOST
        return np.float32 if held else np.float64

    def block(
        self, A: AnyRows, B: Operand, out: NDArray[Any] | None = None, dtype: DTypeLike = np.float32
    ) -> NDArray[Any]:
        X = A.X if isinstance(A, Operand) else float_rows(A)
        if X.shape[1] != B.X.shape[1]:
            raise InputError(
                f"rows of a precomputed kernel must have one entry for each of the {B.X.shape[1]} "
                f"training rows, not {X.shape[1]}."
            )
        out = output(X, B, out, np.dtype(dtype))
        chosen = X[:, _ids(B)]
        out[:] = chosen.toarray() if sparse.issparse(chosen) else chosen
        return out

    def to_dict(self) -> dict[str, Any]:
        """JSON-able record; what is known of the training rows' entries is no part of it."""
        return {"name": self.name}


def _ids(side: Operand) -> NDArray[Any]:
    if side.ids is None:
        raise ValueError("a precomputed kernel needs the ids of its rows")
    return side.ids


@dataclass(frozen=True)
class Custom(Kernel):
    """k(A, B) is what a function returns for two sets of rows.

    Parameters
    ----------
    function : callable
        ``function(A, B)`` of float64 arrays (a, d) and (b, d), or CSR arrays where the rows are
        sparse, returns the entries (a, b), the same for a pair of rows whatever rows are beside
        them. It is called from several threads at once; on a cluster it must be picklable.
    psd, known, largest
        As in `Precomputed`.
    """

    function: Callable[[Any, Any], Any]
    # (Of the other kernels the class knows it.)
    psd: bool = True  # type: ignore[misc]
    known: str = UNKNOWN
    largest: float = math.inf
    name: ClassVar[str] = "callable"
    storable: ClassVar[bool] = False

    def diag(self, A: AnyRows) -> FloatArray:
        X = A.X if isinstance(A, Operand) else float_rows(A)
        parts = [np.empty(0)]
        for start in range(0, X.shape[0], _DIAGONAL_ROWS):
            rows = X[start : start + _DIAGONAL_ROWS]
            parts.append(np.diagonal(self.block(rows, Operand(rows), dtype=np.float64)))
        return np.concatenate(parts)

    def bound(self, max_sqnorm_a: float, max_sqnorm_b: float) -> float:
        # Norms of rows say nothing about a function that is not known: use diag, which bounds the
        # entries of a positive semidefinite one; of another those that were seen have to do.
        return self.largest

    def entry_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        return ROUNDED_ONCE * self.largest + 0.0 * sqnorm_a

    def precision(self, max_sqnorm: float, d: int) -> type:
        return np.float32

    def relative_error(self, sqnorm_a: float | FloatArray, max_sqnorm_b: float, d: int) -> Any:
        # The function's float64 is trusted: its entries are the kernel, here rounded to float32.
        return ROUNDED_ONCE + 0.0 * sqnorm_a

    def block(
        self, A: AnyRows, B: Operand, out: NDArray[Any] | None = None, dtype: DTypeLike = np.float32
    ) -> NDArray[Any]:
        X = A.X if isinstance(A, Operand) else float_rows(A)
        if X.shape[1] != B.X.shape[1]:
            raise InputError(
                f"rows have {X.shape[1]} features where {B.X.shape[1]} are expected: "
                "prepare both sides in the same way."
            )
        out = output(X, B, out, np.dtype(dtype))
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
        """A record for people to read; no kernel comes back from it."""
        function = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return {"name": self.name, "function": function}
