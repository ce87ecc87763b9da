"""The Hessian of a wide zone, about: the second moment of a sample of its rows.

A moment over all rows of the zone would take their number times m^2 operations, and an m x m
matrix from every shard. Steps are made by conjugate gradients, from products with the zone's
columns, which are exact; what a few rows a feature say of the Hessian is enough to precondition
them. The coordinator makes it, of rows that it reads itself: shards send their numbers alone, and
the bits are the same wherever they are. Of many landmarks even that matrix is dear: the features of
a part of them are solved for together, and each of the others, which have little in common, alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.features import nystrom
from bigscreen.features.design import Design, row_ranges
from bigscreen.numerics.cholesky import Factor, factorise_in_parallel
from bigscreen.numerics.rows import FloatArray
from bigscreen.solvers.newton.algebra import RIDGES, TOO_LARGE, Algebra

SAMPLE_ROWS, MORE_ROWS = 1.2, 5.0
"""Rows of the sample for each feature, at least: of many landmarks, whose moment is dear, and of
fewer. (Of s rows each conjugate gradients gain the root of s with every product.)"""

TOGETHER = 0.3
"""Part of the features of many landmarks that are solved for together. (Of 10,000 with two rows a
feature, all of them save ten products in twenty, some 2 s, and take 29 s for 3.)"""

ALONE_ROWS = 256
"""Rows of the sample, about, that each of the others is seen with."""

TILE_ROWS, TILE_COLUMNS, BLOCK_ROWS = 2048, 1024, 256
"""Rows whose features are held at once; features, and rows, that one thread works at."""


def large(design: Design) -> bool:
    """Whether a machine has so many landmarks that moments of all its zone are out of reach."""
    return design.landmarks is not None and design.width > nystrom.MAX_EIGH_LANDMARKS


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

    Of many landmarks it is that of the features with the most in common, and of all others the
    diagonal: the first where T is upper triangular, a feature being what a landmark adds to those
    before it, or the last, of the largest eigenvalues.

    Parameters
    ----------
    algebra : Algebra
    sample : Sample
    """

    def __init__(self, algebra: Algebra, sample: Sample) -> None:
        self.algebra, self.sample = algebra, sample
        design = algebra.design
        self._dtype = np.float64 if design.kernel is None else np.float32
        rank = design.rank
        alone = rank - int(TOGETHER * rank) if large(design) else 0
        if design.ridge:
            self._together, self._alone = slice(0, rank - alone), slice(rank - alone, rank)
        else:
            self._together, self._alone = slice(alone, rank), slice(0, alone)
        size = algebra.size - alone
        self._matrix = np.zeros((size, size), self._dtype)
        tile = min(TILE_ROWS, max(1, len(sample.rows)))
        features = np.empty((tile, size), self._dtype)
        for a, b in row_ranges(len(sample.rows), TILE_ROWS):
            rows, out = slice(a, b), features[: b - a]
            self._features(rows, self._together, out)
            root = np.sqrt(sample.weight[rows])[:, None]
            np.multiply(sample.border[rows], root, out=out[:, size - algebra.frame.extras :])
            self._add(out)
        self._factor = self._factored()
        self._curved = self._diagonal()

    def solve(self, v: FloatArray) -> FloatArray:
        """The solution for a right-hand side (size,), whatever its size."""
        unit = float(np.max(np.abs(v), initial=0.0)) or 1.0
        found = self._factor.solve(self._those(v) / unit).astype(np.float64)
        out = np.empty(len(v))
        split = self._together.stop - self._together.start
        out[self._together] = unit * found[:split]
        out[self.algebra.design.rank :] = unit * found[split:]
        out[self._alone] = v[self._alone] / self._curved
        return out

    def _those(self, v: FloatArray) -> FloatArray:
        """The part of a vector (size,) that is solved for together."""
        return np.concatenate([v[self._together], v[self.algebra.design.rank :]])

    def _features(self, of: slice, which: slice, out: NDArray[Any]) -> None:
        """These features of some rows of the sample, each times the root of its weight."""
        design, sample = self.algebra.design, self.sample
        X, root = design.data.rows(sample.rows[of]), np.sqrt(sample.weight[of])[:, None]
        width = which.stop - which.start
        if design.kernel is None:
            np.multiply(design.columns(X), root, out=out[:, :width])
            return
        assert design.factor is not None
        kernel, side, factor = design.kernel, design.side, design.factor
        kernel.prepare(side)
        columns = np.empty((len(root), design.width), np.float32)

        def entries(a: int) -> None:
            rows = slice(a, a + BLOCK_ROWS)
            kernel.block(X[rows], side, out=columns[rows])

        def block(a: int) -> None:
            # An upper triangular T has nothing farther down.
            b = min(a + TILE_COLUMNS, which.stop)
            depth = b if design.ridge else design.width
            made = columns[:, :depth] @ factor[:depth, a:b].astype(np.float32)
            there = slice(a - which.start, b - which.start)
            np.multiply(made, root, out=out[:, there], casting="same_kind")

        self.algebra.at_once(entries, range(0, len(root), BLOCK_ROWS))
        self.algebra.at_once(block, range(which.start, which.stop, TILE_COLUMNS))

    def _add(self, rows: NDArray[Any]) -> None:
        """Add ``rows' rows`` to the moment, on and below the diagonal."""

        def block(a: int) -> None:
            own = slice(a, min(a + TILE_COLUMNS, rows.shape[1]))
            self._matrix[own, : own.stop] += rows[:, own].T @ rows[:, : own.stop]

        self.algebra.at_once(block, range(0, rows.shape[1], TILE_COLUMNS))

    def _factored(self) -> Factor:
        """The factor, with a ridge where rounding left the Hessian indefinite."""
        matrix = self._matrix
        own, penalty = np.diag(matrix).astype(np.float64), self._those(self.sample.diagonal)
        for ridge in RIDGES:
            self.algebra.at_once(self._mirror, range(0, len(matrix), BLOCK_ROWS))
            matrix[np.diag_indices_from(matrix)] = (
                own + penalty + ridge * float(np.max(own, initial=0.0))
            )
            if factorise_in_parallel(matrix, self.algebra.at_once):
                return Factor(matrix, b"L")
        raise InputError(TOO_LARGE)

    def _diagonal(self) -> FloatArray:
        """How P curves along each feature that is solved for alone."""
        which, count = self._alone, len(self.sample.rows)
        width = which.stop - which.start
        curved: FloatArray = np.array(self.sample.diagonal[which])
        if not width or not count:
            return curved
        step = max(1, count // ALONE_ROWS)
        some = slice(0, None, step)
        rows = np.empty((len(self.sample.rows[some]), width), self._dtype)
        self._features(some, which, rows)
        return curved + count / len(rows) * np.einsum("ij,ij->j", rows, rows, dtype=np.float64)

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
