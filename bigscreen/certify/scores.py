"""Scores of ``w(alpha) = sum_j s_j alpha_j phi_j`` for exact kernels, with bounds on their errors.

An exact kernel machine is given by alpha; the vector w is never computed. A `ScoreSource` computes
the scores of requested rows and their bands (error bounds); `certify.exact` requests rows in
float32, and again in float64 if their bands are too wide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.layout import take_rows
from bigscreen.data.rows import Rows
from bigscreen.features.design import Design
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.base import FLOAT64_ERROR_FACTOR, Kernel, phi_norms
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.square import Square, number_equal_rows, sum_rows, variance_weights
from bigscreen.numerics.multiples import SCALING_TOL
from bigscreen.numerics.rows import FloatArray

SCORE_ERROR = 2.0**-51
"""Rounding error of a score (a float64 sum), as a fraction of the size of its terms times the root
of their number: errors of partial sums are taken to be random, not all of one sign."""


class BandedScores(NamedTuple):
    """Scores of rows, their bands, and whether they come from float64 kernel entries.

    ``bands``: how far each score may be from the exact one; ``exact``: one value for all rows or
    one for each.
    """

    scores: FloatArray
    bands: FloatArray
    exact: NDArray[np.bool_] | bool


class ScoreSource(Protocol):
    """A source of scores for a closing pass."""

    def __call__(self, rows: NDArray[np.int64]) -> BandedScores:
        """Compute the scores of these rows (ascending), without an unpenalised offset."""


@dataclass(frozen=True)
class KernelTiles:
    """Scores from tiles of the kernel matrix between rows and support rows, computed anew.

    ``program``: computes the scores of a shard's rows. ``constant``: whether a 1 is appended to
    every phi.
    """

    program: ScoreProgram
    fleet: Fleet
    constant: bool

    @property
    def in_float64(self) -> KernelTiles:
        """A source of the same kind with float64 entries."""
        return replace(self, program=replace(self.program, dtype=np.float64))

    def __call__(self, rows: NDArray[np.int64]) -> BandedScores:
        """Compute the scores of these rows (ascending), with bounds on their errors."""
        program, data = self.program, self.program.data
        ends = np.searchsorted(rows, [data.shard(s)[1] for s in range(data.n_shards)])
        parts = [part for part in np.split(rows, ends[:-1]) if len(part)]
        found = [np.empty((2, 0)), *self.fleet.each(program, parts)]
        scores, bands = (np.concatenate(each) for each in zip(*found, strict=True))
        return BandedScores(
            *program.with_constant(scores, bands, self.constant), program.is_float64
        )


@dataclass(frozen=True)
class SharedEntries:
    """Scores from kernel entries in memory that solver and closing pass share (few rows).

    ``program``: has the support rows, their coefficients and error bounds; ``square``: the kernel
    matrix of all rows; ``constant``: whether a 1 is appended to every phi.
    """

    program: ScoreProgram
    square: Square
    constant: bool

    def __call__(self, rows: NDArray[np.int64]) -> BandedScores:
        """Compute the scores of these rows (ascending), with bounds on their errors."""
        program, square = self.program, self.square
        assert program.support.ids is not None
        given = program.support.ids, program.coef, program.noise.spread
        scores, weight = sum_rows(square, *given)
        bands = program.row_bands(square.side, scores, weight)
        scores, bands = program.with_constant(scores, bands, self.constant)
        return BandedScores(scores[rows], bands[rows], program.is_float64)


class ProvedScores(NamedTuple):
    """A w and its scores over ALL rows, from which the scores of a nearby w can be updated.

    ``coef``, float64 (n,): ``s alpha``. ``scores``, ``bands``, ``exact`` (n,): see `BandedScores`.
    """

    coef: FloatArray
    scores: FloatArray
    bands: FloatArray
    exact: NDArray[np.bool_]


@dataclass(frozen=True)
class CarriedScores:
    """Scores of a w near a proved w: a multiple of the proved scores plus the change's scores.

    ``near``: the proved w; ``factor``: the multiple; ``change``: scores of the difference, summed
    from float64 entries, so that bands do not grow from one w to the next.
    """

    near: ProvedScores
    factor: float
    change: KernelTiles
    size: float
    """``sum |coef|`` of the w whose scores these are."""

    @classmethod
    def of(
        cls,
        near: ProvedScores,
        factor: float,
        moved: NDArray[np.int64],
        coef: FloatArray,
        whole: KernelTiles,
        design: Design,
    ) -> CarriedScores:
        """Make the source of the scores of a w that is near a multiple of a proved w.

        ``near``: the proved w; ``factor``: the multiple; ``coef`` (n,): ``s alpha`` of the w;
        ``moved``: the few rows whose coefficients differ from the multiple's; ``whole``: the source
        of the scores of w computed anew. Rounding differences in the other coefficients count as if
        more rows had changed.
        """
        program = ScoreProgram.of(design, coef - factor * near.coef, np.float64, moved)
        off = (
            2 * SCALING_TOL * whole.program.noise.size / (SCORE_ERROR * float(np.sqrt(len(moved))))
        )
        noise = program.noise._replace(size=program.noise.size + off)
        change = replace(whole, program=replace(program, noise=noise))
        return cls(near, factor, change, float(np.abs(whole.program.coef).sum()))

    def __call__(self, rows: NDArray[np.int64]) -> BandedScores:
        """Compute the scores of these rows (ascending), with bounds on their errors."""
        scores, bands, _ = self.change(rows)
        scores += self.factor * self.near.scores[rows]
        bands += abs(self.factor) * self.near.bands[rows]
        if self.change.constant:
            bands += 2 * SCALING_TOL * self.size
        return BandedScores(scores, bands, self.near.exact[rows])


def score_bands(design: Design, coef: FloatArray, scores: FloatArray) -> FloatArray:
    """Bound the errors of the scores (n,) of ``sum_j coef_j phi_j`` from the entries' precision.

    ``coef``: (n,). The part of an appended constant is left out.
    """
    data, kernel = design.data, design.kernel
    assert kernel is not None
    if not np.any(coef):
        return np.zeros(data.n_rows)
    farthest = float(np.sqrt(kernel.bound(data.max_sqnorm, data.max_sqnorm)))
    norms, program = np.full(len(scores), farthest), ScoreProgram.of(design, coef, design.precision)
    weight = norms * farthest * program.noise.spread.sum()
    return program.bands(scores, data.sqnorms(0, data.n_rows), norms, weight)


class Noise(NamedTuple):
    """Properties of the support rows that bound the rounding error of a score.

    ``spread``: one weight a support row; independent errors of entries add up to the root of
    ``sum_j spread_j k_ij^2``. ``longest``: the largest ``||phi_j||`` of a support row. ``size``:
    ``sum_j |coef_j| ||phi_j||``.
    """

    spread: FloatArray
    longest: float
    size: float


@dataclass(frozen=True)
class ScoreProgram:
    """Function that workers call for each shard: scores of its rows, and bounds on their errors.

    ``support``, ``coef``: the rows with a coefficient, and their coefficients ``s alpha``;
    ``dtype``: the type of kernel entries.
    """

    data: Rows
    kernel: Kernel
    support: Operand
    coef: FloatArray
    noise: Noise
    dtype: type

    @classmethod
    def of(
        cls, design: Design, coef: FloatArray, dtype: type, ids: NDArray[np.int64] | None = None
    ) -> ScoreProgram:
        """Make the program that computes ``<w, phi_i>`` of rows, for ``w = sum_j coef_j phi_j``.

        ``coef``: (n,); ``ids``: the rows whose coef is not 0, None: found here; ``dtype``: of
        entries.
        """
        data, kernel = design.data, design.kernel
        assert kernel is not None
        # (The diagonal of a kernel that is not positive semidefinite does not bound its entries.)
        square = design.square if kernel.psd else None
        ids = np.flatnonzero(coef) if ids is None else ids
        weights = coef[ids]
        if square is None:
            support = Operand(data.rows(ids), ids)
            norms, equal = phi_norms(kernel, support), number_equal_rows(support.X)
        else:
            support = Operand(square.side.X[ids], ids)
            norms = np.sqrt(np.maximum(square.diag, 0.0))[ids]
            equal = None if square.alike is None else square.alike[ids]
        size = float(np.abs(weights) @ norms)
        noise = Noise(variance_weights(weights, equal), float(np.max(norms)), size)
        return cls(data, kernel, support, weights, noise, dtype)

    @property
    def is_float64(self) -> bool:
        """Whether entries are float64."""
        return self.dtype is np.float64

    def with_constant(
        self, scores: FloatArray, bands: FloatArray, constant: bool
    ) -> tuple[FloatArray, FloatArray]:
        """If ``constant``, add to scores the part of the 1 that is appended to every phi.

        Its rounding is added to the bands; both are (rows,).
        """
        if not constant:
            return scores, bands
        # If large coefficients cancel, their sum has fewer correct digits.
        rough = SCORE_ERROR * float(np.sqrt(len(self.coef)) * np.abs(self.coef).sum())
        return scores + self.coef.sum(), bands + rough

    def __call__(self, ids: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        """Return scores and their error bounds, (rows,) each, of rows of one shard.

        ``ids``: the rows' numbers, ascending.
        """
        scores, band = np.empty(len(ids)), np.empty(len(ids))
        chunk = ids // self.data.chunk_rows
        for k in np.unique(chunk):
            part = slice(*np.searchsorted(chunk, (k, k + 1)))
            start, stop = self.data.chunk(int(k))
            X, own = self.data.X(start, stop), ids[part]
            rows = X if len(own) == stop - start else take_rows(X, own - start)
            scores[part], band[part] = self.score(Operand(rows, own))
        return scores, band

    def score(self, rows: Operand) -> tuple[FloatArray, FloatArray]:
        """Scores of these rows, and bounds on their rounding errors, (rows,) each."""
        # (If no entry is negative, the sum that bounds the errors is computed with the scores.)
        columns = [self.coef, self.noise.spread] if self._has_summed_weights(rows) else [self.coef]
        values = self.kernel.dots(rows, self.support, np.stack(columns, axis=1), self.dtype)
        return values[:, 0], self.row_bands(rows, values[:, 0], values[:, -1])

    def row_bands(self, rows: Operand, scores: FloatArray, weight: FloatArray) -> FloatArray:
        """Bounds on the rounding errors of these rows' scores.

        ``weight``: the sums ``sum_j spread_j k_ij``, which are used if they bound the errors.
        """
        norms = phi_norms(self.kernel, rows)
        if not self._has_summed_weights(rows):
            weight = norms * self.noise.longest * self.noise.spread.sum()
        return self.bands(scores, rows.sqnorms, norms, weight)

    def _has_summed_weights(self, rows: Operand) -> bool:
        """Whether ``sum_j spread_j k_ij`` is computed with the scores, to bound their errors."""
        return self.kernel.nonnegative and self._relative_error(rows.sqnorms[:1]) is not None

    def bands(
        self, scores: FloatArray, sqnorms: FloatArray, norms: FloatArray, weight: FloatArray
    ) -> FloatArray:
        """Bound the rounding errors of scores (rows,), by the precision of kernel entries and sums.

        ``sqnorms``, ``norms``: the rows' ``||x||^2`` and ``||phi||``; ``weight``: at least ``sum_j
        spread_j k_ij`` of each row.
        """
        noise = self.noise
        relative = self._relative_error(sqnorms)
        if relative is None:
            longest = float(np.max(self.support.sqnorms))
            error = self.kernel.entry_error(sqnorms, longest, self.data.n_features)
            band = error * np.sqrt(noise.spread.sum())
        else:
            # An error that all entries of a row share moves its score as a whole.
            band = relative * (np.abs(scores) + np.sqrt(norms * noise.longest * weight))
        if self.is_float64:
            band = FLOAT64_ERROR_FACTOR * band
        # The rounding of the float64 sum itself, whose partial sums err at random.
        rough: FloatArray = SCORE_ERROR * np.sqrt(len(self.coef)) * norms * noise.size
        return band + rough

    def _relative_error(self, sqnorms: FloatArray) -> FloatArray | None:
        """Bounds (rows,) on the relative errors of entries between rows and support rows.

        ``sqnorms``: the rows' ``||x||^2``. None if the kernel has no relative bound.
        """
        longest = float(np.max(self.support.sqnorms))
        return self.kernel.relative_error(sqnorms, longest, self.data.n_features)
