"""The Hessian of a wide zone, about: the second moment of a sample of its rows.

A moment over all rows of the zone would take their number times m^2 operations, and an m x m
matrix from every shard. Steps are made by conjugate gradients, from products with the zone's
columns, which are exact; what a few rows a feature say of the Hessian is enough to precondition
them. The coordinator makes it, of rows that it reads itself: shards send their numbers alone, and
the bits are the same wherever they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.features import nystrom
from bigscreen.features.design import Design, row_ranges
from bigscreen.numerics.cholesky import Factor, factored_at_once
from bigscreen.numerics.rows import FloatArray
from bigscreen.solvers.newton.algebra import RIDGES, TOO_LARGE, Algebra

SAMPLE_ROWS, MORE_ROWS = 2.0, 6.0
"""Rows of the sample for each feature, at least: of many landmarks, whose moment is dear, and of
fewer. (Of s rows each conjugate gradients gain the root of s with every product.)"""

TILE_ROWS, TILE_COLUMNS, BLOCK_ROWS = 2048, 1024, 256
"""Rows whose features are held at once; features, and rows, that one thread works at."""


def large(design: Design) -> bool:
    """Whether a machine has so many landmarks that moments of all its zone are out of reach."""
    return design.landmarks is not None and design.width > nystrom.LARGE


@dataclass(frozen=True)
class Sample:
    """Some rows of a zone, ascending, with what they have beside their columns.

    Parameters
    ----------
    rows : int64 (k,)
        Their numbers.
    weight : float64 (k,)
        What each curves P by, for all that it stands for.
    border : float64 (k, extras)
    diagonal : float64 (size,)
        What stands on the Hessian's diagonal beside them.
    """

    rows: NDArray[np.int64]
    weight: FloatArray
    border: FloatArray
    diagonal: FloatArray

    @classmethod
    def unpacked(cls, table: FloatArray, diagonal: FloatArray) -> Sample:
        """The sample of a table as shards send it: row (-1: none), weight, border."""
        table = table[table[:, 0] >= 0]
        return cls(table[:, 0].astype(np.int64), table[:, 1], table[:, 2:], diagonal)

    @property
    def packed(self) -> dict[str, FloatArray]:
        """What ``unpacked`` takes."""
        parts = [self.rows.astype(np.float64), self.weight, self.border]
        return {"table": np.column_stack(parts), "diagonal": self.diagonal}


class SampledHessian:
    """Cholesky's factor of a sample's Hessian, in the only matrix of its size.

    Float32 of landmarks' features, whose lengths the kernel bounds; float64 of raw ones. What is
    below its diagonal is the moment, for another try where rounding has left it indefinite.

    Parameters
    ----------
    algebra : Algebra
    sample : Sample
    """

    def __init__(self, algebra: Algebra, sample: Sample) -> None:
        self.algebra, self.sample = algebra, sample
        dtype = np.float64 if algebra.design.kernel is None else np.float32
        self._matrix = np.zeros((algebra.size, algebra.size), dtype)
        tile = min(TILE_ROWS, max(1, len(sample.rows)))
        columns = np.empty((tile, algebra.design.width), dtype)
        features = np.empty((tile, algebra.size), dtype)
        for a, b in row_ranges(len(sample.rows), TILE_ROWS):
            self._features(a, b, columns[: b - a], features[: b - a])
            self._add(features[: b - a])
        self._factor = self._factored()

    def solve(self, v: FloatArray) -> FloatArray:
        """The solution for a right-hand side (size,), whatever its size."""
        unit = float(np.max(np.abs(v), initial=0.0)) or 1.0
        return np.asarray(unit * self._factor.solve(v / unit).astype(np.float64))

    def _features(self, start: int, stop: int, columns: NDArray[Any], out: NDArray[Any]) -> None:
        """The features of some rows of the sample, each times the root of its weight."""
        design, sample = self.algebra.design, self.sample
        X, root = design.data.rows(sample.rows[start:stop]), np.sqrt(sample.weight[start:stop])
        out[:, design.rank :] = sample.border[start:stop] * root[:, None]
        if design.kernel is None:
            np.multiply(design.columns(X), root[:, None], out=out[:, : design.rank])
            return
        assert design.factor is not None
        kernel, side, factor = design.kernel, design.side, design.factor
        kernel.prepare(side)

        def entries(a: int) -> None:
            rows = slice(a, a + BLOCK_ROWS)
            kernel.block(X[rows], side, out=columns[rows])

        def block(a: int) -> None:
            # An upper triangular T has nothing farther down.
            b = min(a + TILE_COLUMNS, design.rank)
            depth = b if design.ridge else design.width
            made = columns[:, :depth] @ factor[:depth, a:b].astype(np.float32)
            np.multiply(made, root[:, None], out=out[:, a:b], casting="same_kind")

        self.algebra.at_once(entries, range(0, stop - start, BLOCK_ROWS))
        self.algebra.at_once(block, range(0, design.rank, TILE_COLUMNS))

    def _add(self, rows: NDArray[Any]) -> None:
        """Add ``rows' rows`` to the moment, on and below the diagonal."""

        def block(a: int) -> None:
            own = slice(a, min(a + TILE_COLUMNS, rows.shape[1]))
            self._matrix[own, : own.stop] += rows[:, own].T @ rows[:, : own.stop]

        self.algebra.at_once(block, range(0, rows.shape[1], TILE_COLUMNS))

    def _factored(self) -> Factor:
        """The factor, with a ridge where rounding left the Hessian indefinite."""
        matrix = self._matrix
        own = np.diag(matrix).astype(np.float64)
        for ridge in RIDGES:
            self.algebra.at_once(self._mirror, range(0, len(matrix), BLOCK_ROWS))
            matrix[np.diag_indices_from(matrix)] = (
                own + self.sample.diagonal + ridge * float(np.max(own, initial=0.0))
            )
            if factored_at_once(matrix, self.algebra.at_once):
                return Factor(matrix, b"L")
        raise InputError(TOO_LARGE)

    def _mirror(self, start: int) -> None:
        """Write some rows of the moment above the diagonal as they are below it."""
        own = slice(start, start + BLOCK_ROWS)
        corner = self._matrix[own, own]
        corner[...] = np.tril(corner) + np.tril(corner, -1).T
        self._matrix[own, own.stop :] = self._matrix[own.stop :, own].T


class Hessians:
    """The sampled Hessian of a run: made where it is first asked for, one at a time."""

    def __init__(self) -> None:
        self._known: SampledHessian | None = None

    def of(self, algebra: Algebra, sample: Sample) -> SampledHessian:
        """That of a sample."""
        if self._known is None or self._known.sample is not sample:
            self._known = None  # two would not fit
            self._known = SampledHessian(algebra, sample)
        return self._known


def sampled(rows: NDArray[np.int64], weight: FloatArray, border: Any, most: int) -> FloatArray:
    """A shard's part of a sample's table, filled up to ``most`` rows."""
    table = np.full((most, 2 + border.shape[1]), -1.0)
    table[: len(rows)] = np.column_stack([rows.astype(np.float64), weight, border])
    return table.ravel()
