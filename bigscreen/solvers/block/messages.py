"""Encode rows and duals as messages between the coordinator and the shards."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.data.rows import Rows
from bigscreen.fleet.protocol import Fleet
from bigscreen.numerics.multiples import SCALING_TOL
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual, Mu


def rows_per_shard(data: Rows, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count how many of these rows are in each shard (n_shards,)."""
    return np.bincount(ids // data.shard_rows, minlength=data.n_shards)


def gather_numbers(
    stack: NDArray[np.float64], data: Rows, ids: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Put the numbers that shards have sent for their rows into the order of ``ids``.

    Parameters
    ----------
    stack : float64 (n_shards, width)
        The numbers of each shard's rows among ``ids``, in their order.
    data : Rows
    ids : int64 (q,)

    Returns
    -------
    float64 (q,)
    """
    out = np.empty(len(ids))
    shard = ids // data.shard_rows
    order = np.argsort(shard, kind="stable")
    place = np.arange(len(ids)) - np.repeat(np.cumsum(c := rows_per_shard(data, ids)) - c, c)
    out[order] = stack[shard[order], place]
    return out


def fetch_rows(fleet: Fleet, data: Rows, ids: NDArray[np.int64]) -> Any:
    """Fetch the features of these rows, in this order, from the shards that store them.

    ``ids`` (q,): row numbers in the data. Returns an array or CSR array (q, d).
    """
    if not len(ids):
        return data.X(0, 0)
    counts = rows_per_shard(data, ids)
    message = {"kind": "rows", "ids": ids, "words": 0}
    if data.is_sparse:
        stack, _ = fleet.round(message)
        message["words"] = int(max(1, stack.max()))
    else:
        message["words"] = int(counts.max()) * data.n_features
    stack, _ = fleet.round(message)
    parts = [
        _decode_rows(data, words, count)
        for words, count in zip(stack, counts.tolist(), strict=True)
    ]
    back = np.argsort(np.argsort(ids // data.shard_rows, kind="stable"))
    if data.is_sparse:
        return sparse.csr_array(sparse.vstack(parts, format="csr"))[back]
    return np.concatenate(parts)[back]


def _decode_rows(data: Rows, words: NDArray[np.float64], count: int) -> Any:
    """Decode the features of `count` rows from the numbers that a shard has sent.

    ``words``: the features one after the other; of sparse rows the counts of nonzeros, their
    columns and their values. Padding behind these is not read.
    """
    real = data.X(0, 0).dtype
    if not data.is_sparse:
        return words[: count * data.n_features].astype(real).reshape(count, data.n_features)
    sizes = words[:count].astype(np.int64)
    total = int(sizes.sum())
    columns = words[count : count + total].astype(np.int32)
    values = words[count + total : count + 2 * total].astype(real)
    indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return sparse.csr_array((values, columns, indptr), shape=(count, data.n_features))


FIELDS = tuple(field.name for field in fields(Dual) if field.name != "total")
"""The arrays (or None) of a `Dual` that messages contain."""


@dataclass(frozen=True)
class FixedDual:
    """A problem that is given by its dual only, for solvers of a sequence of problems.

    Parameters
    ----------
    intercept : {"none", "constant"}
        Whether a 1 is appended to every phi.
    whole : Dual or None
        The dual of all rows. None: every variable is fixed at 0.
    """

    intercept: str
    whole: Dual | None = None

    intercept_scaling = 1.0

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """Return the dual of all rows (see ``Problem``)."""
        if self.whole is not None:
            return self.whole
        zero = np.zeros(len(y))
        return Dual(zero + 1.0, zero, zero, zero)

    def offset(self, mu: Mu) -> float:
        """Return 0: the caller, who gave the dual, computes the offset from the multiplier."""
        return 0.0

    def at(self, value: float) -> Self:
        """Return this problem, which has no parameter to change."""
        return self

    def factor(self, other: Self) -> float | None:
        """Return None: no other problem is known to be a multiple of this one."""
        return None


def alpha_of(dual: Dual, coef: FloatArray) -> FloatArray:
    """Return ``alpha = s coef`` (n,), set exactly to a bound that it misses by rounding."""
    alpha = dual.sign * coef
    for end in (dual.lo, dual.hi):
        alpha = np.where(np.abs(alpha - end) <= SCALING_TOL * np.abs(end), end, alpha)
    return alpha + 0.0


def pack_dual(dual: Dual, known: Dual) -> dict[str, Any]:
    """Encode the fields of a dual that differ from the fields of ``known``, which the shards have.

    A field of few distinct values takes one byte per row.
    """
    return {
        name: _encode(getattr(dual, name))
        for name in FIELDS
        if not _is_same(getattr(dual, name), getattr(known, name))
    }


def unpack_dual(sent: dict[str, Any], rows: slice) -> dict[str, Any]:
    """Decode the fields of a dual that `pack_dual` encoded, for the rows of a slice.

    ``sent``: encoded fields by name; ``rows``: the slice, of all rows. Returns arrays by name.
    """
    return {name: _decode(value, rows) for name, value in sent.items()}


def _is_same(one: Any, other: Any) -> bool:
    """Whether two fields of a dual are equal, or both None."""
    return one is other or (
        one is not None and other is not None and np.array_equal(np.asarray(one), np.asarray(other))
    )


def _encode(values: Any) -> Any:
    """Encode a field of a dual (n,): its distinct values and one byte per row, if they are few.

    Returns the pair (distinct values, uint8 (n,)) for at most 256 values; else the field as it is.
    """
    if values is None or values.dtype == np.int8:
        return values
    some, codes = np.unique(values, return_inverse=True)
    return (some, codes.astype(np.uint8)) if len(some) <= 256 else np.ascontiguousarray(values)


def _decode(value: Any, rows: slice) -> Any:
    """Decode the part of a slice of ``rows`` from a field that `_encode` made; None stays None."""
    if isinstance(value, tuple):
        return value[0][value[1][rows]]
    return None if value is None else value[rows]
