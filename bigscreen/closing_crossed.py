"""Scores of support rows from each other: an entry between two of them serves both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.closing_scores import Scores
from bigscreen.dual import FloatArray
from bigscreen.kernels import Compiled, Side
from bigscreen.rows import njit

PART = 1024
"""Support rows that one task computes with all that come after them."""

WORTH = 2 * PART
"""Support rows from which the entries saved tell."""


@dataclass(frozen=True)
class Crossed:
    """Runs anywhere: what one part of some support rows and the rows after it add to the scores.

    The support is taken in another order: ``places``, the rows whose scores are wanted, and the
    others. A task is the place where a part begins there; it computes its rows' entries with the
    part itself and all that follows, and those of rows wanted are used in both directions.
    """

    program: Scores
    places: NDArray[np.int64]

    @staticmethod
    def worth(program: Scores, count: int) -> bool:
        """Whether to take this way for so many support rows."""
        # A kernel that somebody else computes might not be symmetric.
        return isinstance(program.kernel, Compiled) and count >= WORTH

    @property
    def order(self) -> NDArray[np.int64]:
        others = np.ones(len(self.program.support), np.bool_)
        others[self.places] = False
        return np.concatenate([self.places, np.flatnonzero(others)])

    @property
    def tasks(self) -> range:
        return range(0, len(self.places), PART)

    def __call__(self, start: int) -> FloatArray:
        """Sums (2, places from start on) of coefficients' and of spreads' entries."""
        program, order, n = self.program, self.order, len(self.places)
        X, end = program.support.X, min(start + PART, n)
        own, sums = order[start:end], np.zeros((2, n - start))
        weights = np.stack([program.coef, program.noise.spread])
        room: NDArray[Any] = np.empty(PART * PART, program.dtype)
        edges = [*range(start, n, PART), *range(n, len(order), PART), len(order)]
        rows = Side(X[own])
        for a, b in zip(edges, edges[1:], strict=False):
            columns = order[a:b]
            out = room[: len(own) * len(columns)].reshape(len(own), len(columns))
            tile = program.kernel.block(rows, Side(X[columns]), out=out, dtype=program.dtype)
            there = np.ascontiguousarray(weights[:, columns])
            back = sums[:, a - start : b - start] if start < a < n else None
            add(tile, weights[:, own], there, sums[:, : len(own)], back)
        return sums

    def total(self, parts: Iterable[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """(score, band) of the rows wanted, from what all tasks returned, in their order."""
        sums = np.zeros((2, len(self.places)))
        for start, part in zip(self.tasks, parts, strict=True):
            sums[:, start:] += part
        rows = self.program.support.part(self.places)
        return sums[0], self.program.banded(rows, sums[0], sums[1])


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})
def add(tile, own, there, sums, back):  # type: ignore[no-untyped-def]
    """``sums += there tile'``, and ``back += own tile`` if there is a back; two rows each."""
    for i in range(len(tile)):
        row, one, two = tile[i], 0.0, 0.0
        c, s = there[0], there[1]
        for j in range(len(row)):
            one += c[j] * row[j]
            two += s[j] * row[j]
        sums[0, i] += one
        sums[1, i] += two
        if back is not None:
            a, b, first, second = own[0, i], own[1, i], back[0], back[1]
            for j in range(len(row)):
                first[j] += a * row[j]
                second[j] += b * row[j]
