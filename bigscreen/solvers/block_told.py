"""A problem on its way to the shards that go on with it, and what of the last one serves it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bigscreen.dual import Dual, FloatArray, Mu

ULPS = 4 * 2.0**-52
"""Relative difference of coefficients that scaling makes: no move."""

FIELDS = tuple(field.name for field in fields(Dual) if field.name != "total")

FEW = 256
"""Different numbers of a field that is sent as one byte a row."""


@dataclass(frozen=True)
class Told:
    """A problem that is known by its dual alone.

    Parameters
    ----------
    intercept : {"none", "constant"}
        Whether a 1 is appended to every phi.
    whole : Dual or None
        That of all rows. None: a variable that cannot move for every row.
    """

    intercept: str
    whole: Dual | None = None

    intercept_scaling = 1.0

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """See ``Problem``; of all rows."""
        if self.whole is not None:
            return self.whole
        zero = np.zeros(len(y))
        return Dual(zero + 1.0, zero, zero, zero)

    def offset(self, mu: Mu) -> float:
        """0: who told the dual reads it off the multiplier."""
        return 0.0

    def at(self, value: float) -> Self:
        """The same."""
        return self

    def factor(self, other: Self) -> float | None:
        """None: not known."""
        return None


def nearest(before: FloatArray, coef: FloatArray) -> tuple[float, NDArray[np.int64]]:
    """The multiple of ``before`` that differs from ``coef`` in the fewest rows, and these rows."""
    there = np.flatnonzero(before)
    factors = [1.0, 0.0]
    if len(there):
        factors.insert(0, float(np.median(coef[there] / before[there])))
    best = None
    for factor in factors:
        off = np.abs(coef - factor * before) > ULPS * np.abs(coef)
        moved = np.flatnonzero(off)
        if best is None or len(moved) < len(best[1]):
            best = factor, moved
    assert best is not None
    return best


def scaled(dual: Dual, coef: FloatArray) -> FloatArray:
    """alpha of these coefficients, at its bound where it is one but for a rounding."""
    alpha = dual.sign * coef
    for end in (dual.lo, dual.hi):
        alpha = np.where(np.abs(alpha - end) <= ULPS * np.abs(end), end, alpha)
    return alpha + 0.0


def packed(dual: Dual, known: Dual) -> dict[str, Any]:
    """The fields that are not those of ``known``; one byte a row where that says it."""
    return {
        name: _bytes(getattr(dual, name))
        for name in FIELDS
        if not _same(getattr(dual, name), getattr(known, name))
    }


def unpacked(told: dict[str, Any], rows: slice) -> dict[str, Any]:
    """These rows' part of what ``packed`` has made."""
    return {name: _part(value, rows) for name, value in told.items()}


def _same(one: Any, other: Any) -> bool:
    return one is other or (
        one is not None and other is not None and np.array_equal(np.asarray(one), np.asarray(other))
    )


def _bytes(values: Any) -> Any:
    """A field on its way: one byte a row where that says it."""
    if values is None or values.dtype == np.int8:
        return values
    some, codes = np.unique(values, return_inverse=True)
    return (some, codes.astype(np.uint8)) if len(some) <= FEW else np.ascontiguousarray(values)


def _part(value: Any, rows: slice) -> Any:
    if isinstance(value, tuple):
        return value[0][value[1][rows]]
    return None if value is None else value[rows]
