"""The preconditioner of a wide band: the Hessian with the second moment of a sample of its rows.

The moment of all band rows would take their number times m^2 operations, and an m x m matrix from
every shard. Conjugate gradients find steps from exact Hessian-vector products; a few rows for each
feature are enough for their preconditioner. The coordinator reads these rows itself: shards send
row numbers alone, and the bits do not depend on where shards run. With many landmarks even that
matrix costs too much: one part of the features is factored together, and every other feature,
which has little in common with the rest, is preconditioned alone.
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


def is_wide(design: Design) -> bool:
    """Whether the features have more landmarks than second moments are affordable for."""
    return design.landmarks is not None and design.width > nystrom.MAX_EIGH_LANDMARKS


@dataclass(frozen=True)
class Sample:
    """Sampled rows of a band, in ascending order.

    Parameters
    ----------
    rows : int64 (k,)
        Row numbers in the data.
    weight : float64 (k,)
        Second derivative of each row's loss, times the rows that it stands for.
    border : float64 (k, extras)
        The rows' entries for the extras.
    diagonal : float64 (size,)
        What the Hessian's diagonal has in addition to the rows' second moment.
    """

    rows: NDArray[np.int64]
    weight: FloatArray
    border: FloatArray
    diagonal: FloatArray

    @classmethod
    def unpacked(cls, table: FloatArray, diagonal: FloatArray) -> Sample:
        """Make the sample from a table: a line has a row number (-1: empty), weight and border."""
        table = table[table[:, 0] >= 0]
        return cls(table[:, 0].astype(np.int64), table[:, 1], table[:, 2:], diagonal)

    @property
    def packed(self) -> dict[str, FloatArray]:
        """The arguments of ``unpacked``, for a checkpoint."""
        parts = [self.rows.astype(np.float64), self.weight, self.border]
        return {"table": np.column_stack(parts), "diagonal": self.diagonal}


class SampledHessian:
    """The Cholesky factor of the Hessian of a sample of rows.

    It is float32 for features of landmarks, whose lengths the kernel bounds, and float64 for raw
    features. One matrix holds the factor above its diagonal, and below it the second moment, for
    another try with a ridge if rounding left the Hessian indefinite.

    With many landmarks only the features that have most in common are factored together; the
    others have their diagonal entries. The first features are factored if T is upper triangular (a
    feature is then what a landmark adds to those before it), else the last, of the largest
    eigenvalues.

    Parameters
    ----------
    algebra : Algebra
    sample : Sample
    block_columns, block_rows : int
        Features, and rows, that one thread works at.
    """

    def __init__(
        self,
        algebra: Algebra,
        sample: Sample,
        block_columns: int = 1024,
        block_rows: int = 256,
    ) -> None:
        """Sum the second moment of the sample's rows, and factor it."""
        self.algebra, self.sample = algebra, sample
        self._block_columns, self._block_rows = block_columns, block_rows
        tuning = algebra.tuning
        design = algebra.design
        self._dtype = np.float64 if design.kernel is None else np.float32
        rank = design.rank
        joint = int(tuning.joint_fraction_wide * rank) if is_wide(design) else rank
        alone = rank - joint
        if design.ridge:
            self._joint, self._separate = slice(0, joint), slice(joint, rank)
        else:
            self._joint, self._separate = slice(alone, rank), slice(0, alone)
        size = algebra.size - alone
        self._matrix = np.zeros((size, size), self._dtype)
        tile = min(tuning.sample_tile_rows, max(1, len(sample.rows)))
        features = np.empty((tile, size), self._dtype)
        for a, b in row_ranges(len(sample.rows), tuning.sample_tile_rows):
            rows, out = slice(a, b), features[: b - a]
            self._compute_features(rows, self._joint, out)
            root = np.sqrt(sample.weight[rows])[:, None]
            np.multiply(sample.border[rows], root, out=out[:, size - algebra.frame.extras :])
            self._add_to_moment(out)
        self._factor = self._factorise()
        self._diagonal = self._sum_diagonal()

    def solve(self, v: FloatArray) -> FloatArray:
        """Solve ``H x = v`` with the Hessian H of the sample, for v (size,)."""
        unit = float(np.max(np.abs(v), initial=0.0)) or 1.0
        found = self._factor.solve(self._joint_part(v) / unit).astype(np.float64)
        out = np.empty(len(v))
        split = self._joint.stop - self._joint.start
        out[self._joint] = unit * found[:split]
        out[self.algebra.design.rank :] = unit * found[split:]
        out[self._separate] = v[self._separate] / self._diagonal
        return out

    def _joint_part(self, v: FloatArray) -> FloatArray:
        """Select the entries of a vector (size,) that are factored together."""
        return np.concatenate([v[self._joint], v[self.algebra.design.rank :]])

    def _compute_features(self, of: slice, which: slice, out: NDArray[Any]) -> None:
        """Compute features of sampled rows, times the root of each row's weight, into ``out``.

        ``of``: the rows of the sample; ``which``: the features.
        """
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

        def fill_entries(a: int) -> None:
            """Compute kernel entries of a block of rows."""
            rows = slice(a, a + self._block_rows)
            kernel.block(X[rows], side, out=columns[rows])

        def fill_features(a: int) -> None:
            """Compute a block of features of all rows, from their entries."""
            # (An upper triangular T is 0 farther down.)
            b = min(a + self._block_columns, which.stop)
            depth = b if design.ridge else design.width
            made = columns[:, :depth] @ factor[:depth, a:b].astype(np.float32)
            part = slice(a - which.start, b - which.start)
            np.multiply(made, root, out=out[:, part], casting="same_kind")

        in_parallel = self.algebra.map_parallel
        in_parallel(fill_entries, range(0, len(root), self._block_rows))
        in_parallel(fill_features, range(which.start, which.stop, self._block_columns))

    def _add_to_moment(self, rows: NDArray[Any]) -> None:
        """Add ``rows' rows`` (rows: (k, size)) to the moment, on and below the diagonal."""

        def add_block(a: int) -> None:
            """Add to a block of the moment's rows, on and below the diagonal."""
            own = slice(a, min(a + self._block_columns, rows.shape[1]))
            self._matrix[own, : own.stop] += rows[:, own].T @ rows[:, : own.stop]

        self.algebra.map_parallel(add_block, range(0, rows.shape[1], self._block_columns))

    def _factorise(self) -> Factor:
        """Factor the Hessian of the joint features, with a ridge if rounding left it indefinite.

        It is the moment in ``_matrix`` plus the sample's diagonal. Raises InputError if no ridge
        makes it positive definite.
        """
        matrix = self._matrix
        own, penalty = np.diag(matrix).astype(np.float64), self._joint_part(self.sample.diagonal)
        for ridge in RIDGES:
            self.algebra.map_parallel(self._mirror, range(0, len(matrix), self._block_rows))
            matrix[np.diag_indices_from(matrix)] = (
                own + penalty + ridge * float(np.max(own, initial=0.0))
            )
            if factorise_in_parallel(matrix, self.algebra.map_parallel):
                return Factor(matrix, b"L")
        raise InputError(TOO_LARGE)

    def _sum_diagonal(self) -> FloatArray:
        """Sum the Hessian's diagonal entries of the features that are not factored."""
        which, count = self._separate, len(self.sample.rows)
        width = which.stop - which.start
        curved: FloatArray = np.array(self.sample.diagonal[which])
        if not width or not count:
            return curved
        step = max(1, count // self.algebra.tuning.separate_rows_wide)
        some = slice(0, None, step)
        rows = np.empty((len(self.sample.rows[some]), width), self._dtype)
        self._compute_features(some, which, rows)
        return curved + count / len(rows) * np.einsum("ij,ij->j", rows, rows, dtype=np.float64)

    def _mirror(self, start: int) -> None:
        """Copy rows of the moment from below the diagonal to above it."""
        own = slice(start, start + self._block_rows)
        corner = self._matrix[own, own]
        corner[...] = np.tril(corner) + np.tril(corner, -1).T
        self._matrix[own, own.stop :] = self._matrix[own.stop :, own].T


def pack_sample(rows: NDArray[np.int64], weight: FloatArray, border: Any, most: int) -> FloatArray:
    """Make a shard's part of the table that ``Sample.unpacked`` reads, as one vector.

    It has ``most`` lines; those beyond the shard's rows are filled with -1.
    """
    table = np.full((most, 2 + border.shape[1]), -1.0)
    table[: len(rows)] = np.column_stack([rows.astype(np.float64), weight, border])
    return table.ravel()
