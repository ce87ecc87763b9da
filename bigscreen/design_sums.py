"""Sums over the rows of a design, one task a shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigscreen.design import Design, tiles
from bigscreen.dual import FloatArray
from bigscreen.rows import as_rows, njit, row_axpy

TILE = 1024
"""Rows whose columns are held at once."""


def weighted_columns(design: Design, coef: FloatArray, fleet: Any) -> FloatArray:
    """``sum_i coef_i [c_i, 1]`` over all rows: float64 (m + 1,), columns in float32.

    Parameters
    ----------
    design : Design
        One with columns (not the exact kernel machine).
    coef : float64 (n,)
        Rows whose coefficient is 0 cost nothing.
    fleet : closing.Throughput
    """
    data = design.data
    items = ((s, coef[slice(*data.shard(s))]) for s in range(data.n_shards))
    # Added in shard order: the same bits for any number of workers.
    total = np.zeros(design.width + 1)
    for part in fleet.each(_ColumnSum(design), items):
        total += part
    return total


def scores(design: Design, coef: FloatArray, fleet: Any) -> FloatArray:
    """``c_i . coef`` of every row: float64 (n,), columns in float32."""
    parts = fleet.each(_Scores(design, coef), range(design.data.n_shards))
    return np.concatenate(list(parts))


@dataclass(frozen=True)
class _ColumnSum:
    design: Design

    def __call__(self, item: tuple[int, FloatArray]) -> FloatArray:
        shard, coef = item
        design, data = self.design, self.design.data
        start, stop = data.shard(shard)
        total = np.zeros(design.width + 1)
        for a, b in tiles(stop - start, data.chunk_rows):
            used = np.flatnonzero(coef[a:b])
            if not len(used):
                continue
            X = data.X(start + a, start + b)
            for c, d in tiles(len(used), TILE):
                rows = X[used[c:d]]
                columns = rows if design.kernel is None else design.columns(rows)
                _add(as_rows(columns), coef[a:b][used[c:d]], total)
        return total


@dataclass(frozen=True)
class _Scores:
    design: Design
    coef: FloatArray

    def __call__(self, shard: int) -> FloatArray:
        data = self.design.data
        start, stop = data.shard(shard)
        found = [
            self.design.dots(data.X(start + a, start + b), self.coef[:, None])[:, 0]
            for a, b in tiles(stop - start, data.chunk_rows)
        ]
        return np.concatenate(found)


@njit(cache=True, nogil=True)
def _add(columns, coef, total):  # type: ignore[no-untyped-def]
    for i in range(len(coef)):
        row_axpy(columns, i, coef[i], total)
        total[-1] += coef[i]
