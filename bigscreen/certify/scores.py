"""Where scores of ``w(alpha) = sum_j s_j alpha_j phi_j`` come from, and how far each may be off.

Alpha is an exact kernel machine: w is never written down. A source computes the scores of rows that
it is asked for, with their bands; `certify.exact` asks, and asks again in float64 where it must.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.layout import take
from bigscreen.data.rows import Rows
from bigscreen.features.design import Design
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.base import FLOAT64, Kernel, phi_norms
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.square import Square, alike, spread, sums
from bigscreen.numerics.multiples import ULPS
from bigscreen.numerics.rows import FloatArray

SCORE_ERROR = 2.0**-51
"""What the float64 sum of a score is off, as a part of its terms' size times their number's root:
partial sums err at random."""


class Scored(NamedTuple):
    """Scores of rows, how far each may be from the exact one, and which no entry can better.

    ``exact``: whether entries were float64, for all rows or for each.
    """

    scores: FloatArray
    bands: FloatArray
    exact: NDArray[np.bool_] | bool


class ScoreSource(Protocol):
    """Where a closing pass gets scores from."""

    def __call__(self, rows: NDArray[np.int64]) -> Scored:
        """Scores of these rows, ascending, without an offset that is not penalised."""


@dataclass(frozen=True)
class KernelTiles:
    """Scores from tiles of the kernel matrix between rows and support rows, computed anew.

    ``constant``: whether a 1 is appended to every phi.
    """

    program: ScoreProgram
    fleet: Fleet
    constant: bool

    @property
    def wide(self) -> KernelTiles:
        """The source of float64 entries."""
        return replace(self, program=replace(self.program, dtype=np.float64))

    def __call__(self, rows: NDArray[np.int64]) -> Scored:
        """See `ScoreSource`."""
        program, data = self.program, self.program.data
        ends = np.searchsorted(rows, [data.shard(s)[1] for s in range(data.n_shards)])
        parts = [part for part in np.split(rows, ends[:-1]) if len(part)]
        found = [np.empty((2, 0)), *self.fleet.each(program, parts)]
        scores, bands = (np.concatenate(each) for each in zip(*found, strict=True))
        return Scored(*program.with_constant(scores, bands, self.constant), program.wide)


@dataclass(frozen=True)
class EntriesAtHand:
    """Scores from the entries between few rows that solver and closing pass share."""

    program: ScoreProgram
    square: Square
    constant: bool

    def __call__(self, rows: NDArray[np.int64]) -> Scored:
        """See `ScoreSource`."""
        program, square = self.program, self.square
        assert program.support.ids is not None
        given = program.support.ids, program.coef, program.noise.spread
        scores, weight = sums(square, *given)
        bands = program.banded(square.side, scores, weight)
        scores, bands = program.with_constant(scores, bands, self.constant)
        return Scored(scores[rows], bands[rows], program.wide)


class Proved(NamedTuple):
    """A w whose scores over ALL rows a closing pass has computed, for another near it.

    ``coef``, float64 (n,): ``s alpha``. ``scores``, ``bands`` and ``exact`` (n,): see `Scored`.
    """

    coef: FloatArray
    scores: FloatArray
    bands: FloatArray
    exact: NDArray[np.bool_]


@dataclass(frozen=True)
class Carried:
    """Scores of a w near a proved one: those of its multiple, and those of the rows that differ.

    The change is summed from float64 entries, so that bands do not grow from one w to the next.
    """

    near: Proved
    factor: float
    change: KernelTiles
    size: float
    """``sum |coef|`` of the w whose scores these are."""

    @classmethod
    def of(
        cls,
        near: Proved,
        factor: float,
        moved: NDArray[np.int64],
        coef: FloatArray,
        whole: KernelTiles,
        design: Design,
    ) -> Carried:
        """The scores of a w, ``coef`` (n,), that differs from the multiple in these rows.

        What its other coefficients are off of the multiple counts as if more rows had changed.
        """
        program = ScoreProgram.of(design, coef - factor * near.coef, np.float64, moved)
        off = 2 * ULPS * whole.program.noise.size / (SCORE_ERROR * float(np.sqrt(len(moved))))
        noise = program.noise._replace(size=program.noise.size + off)
        change = replace(whole, program=replace(program, noise=noise))
        return cls(near, factor, change, float(np.abs(whole.program.coef).sum()))

    def __call__(self, rows: NDArray[np.int64]) -> Scored:
        """See `ScoreSource`."""
        scores, bands, _ = self.change(rows)
        scores += self.factor * self.near.scores[rows]
        bands += abs(self.factor) * self.near.bands[rows]
        if self.change.constant:
            bands += 2 * ULPS * self.size
        return Scored(scores, bands, self.near.exact[rows])


def kept_bands(design: Design, coef: FloatArray, scores: FloatArray) -> FloatArray:
    """How far the precision of entries can have moved each score (n,) of ``sum_j coef_j phi_j``.

    The constant's part is left out.
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
    """What rounding can do to a score, as far as it is the same for all rows.

    ``spread``: one weight a support row; independent errors of entries add up to the root of
    ``sum_j spread_j k_ij^2``. ``longest``, ``size``: of the support's features the greatest norm,
    and ``sum_j |coef_j| ||phi_j||``.
    """

    spread: FloatArray
    longest: float
    size: float


@dataclass(frozen=True)
class ScoreProgram:
    """Runs anywhere: scores of some rows of a shard, and how far rounding can have moved each."""

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
        """The scores of ``sum_j coef_j phi_j``, coef (n,); ``ids``: rows where it is not 0."""
        data, kernel = design.data, design.kernel
        assert kernel is not None
        # (The diagonal of a kernel that is not positive semidefinite says nothing of its entries.)
        square = design.square if kernel.psd else None
        ids = np.flatnonzero(coef) if ids is None else ids
        weights = coef[ids]
        if square is None:
            support = Operand(data.rows(ids), ids)
            norms, equal = phi_norms(kernel, support), alike(support.X)
        else:
            support = Operand(square.side.X[ids], ids)
            norms = np.sqrt(np.maximum(square.diag, 0.0))[ids]
            equal = None if square.alike is None else square.alike[ids]
        size = float(np.abs(weights) @ norms)
        noise = Noise(spread(weights, equal), float(np.max(norms)), size)
        return cls(data, kernel, support, weights, noise, dtype)

    @property
    def wide(self) -> bool:
        """Whether entries are float64."""
        return self.dtype is np.float64

    def with_constant(
        self, scores: FloatArray, bands: FloatArray, constant: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Scores and bands with the part of the constant, if there is one."""
        if not constant:
            return scores, bands
        # Of large coefficients that cancel, the sum has fewer digits than they.
        rough = SCORE_ERROR * float(np.sqrt(len(self.coef)) * np.abs(self.coef).sum())
        return scores + self.coef.sum(), bands + rough

    def __call__(self, ids: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        """(score, band) of these rows, ascending, of one shard."""
        scores, band = np.empty(len(ids)), np.empty(len(ids))
        chunk = ids // self.data.chunk_rows
        for k in np.unique(chunk):
            part = slice(*np.searchsorted(chunk, (k, k + 1)))
            start, stop = self.data.chunk(int(k))
            X, own = self.data.X(start, stop), ids[part]
            rows = X if len(own) == stop - start else take(X, own - start)
            scores[part], band[part] = self.scored(Operand(rows, own))
        return scores, band

    def scored(self, rows: Operand) -> tuple[FloatArray, FloatArray]:
        """(score, band) of these rows."""
        # Entries of one sign: the sum that the errors follow comes with the scores.
        columns = [self.coef, self.noise.spread] if self._summed(rows) else [self.coef]
        values = self.kernel.dots(rows, self.support, np.stack(columns, axis=1), self.dtype)
        return values[:, 0], self.banded(rows, values[:, 0], values[:, -1])

    def banded(self, rows: Operand, scores: FloatArray, weight: FloatArray) -> FloatArray:
        """How far rounding can have moved the scores of these rows.

        ``weight``: the sums ``sum_j spread_j k_ij``, which are used where they bound the errors.
        """
        norms = phi_norms(self.kernel, rows)
        if not self._summed(rows):
            weight = norms * self.noise.longest * self.noise.spread.sum()
        return self.bands(scores, rows.sqnorms, norms, weight)

    def _summed(self, rows: Operand) -> bool:
        return self.kernel.nonnegative and self._relative(rows.sqnorms[:1]) is not None

    def bands(
        self, scores: FloatArray, sqnorms: FloatArray, norms: FloatArray, weight: FloatArray
    ) -> FloatArray:
        """How far rounding can have moved scores; ``weight >= sum_j spread_j k_ij``."""
        noise = self.noise
        relative = self._relative(sqnorms)
        if relative is None:
            longest = float(np.max(self.support.sqnorms))
            error = self.kernel.entry_error(sqnorms, longest, self.data.n_features)
            band = error * np.sqrt(noise.spread.sum())
        else:
            # What the entries of a row have in common moves its score as a whole.
            band = relative * (np.abs(scores) + np.sqrt(norms * noise.longest * weight))
        if self.wide:
            band = FLOAT64 * band
        # The float64 sum itself, whose partial sums err at random.
        rough: FloatArray = SCORE_ERROR * np.sqrt(len(self.coef)) * norms * noise.size
        return band + rough

    def _relative(self, sqnorms: FloatArray) -> FloatArray | None:
        longest = float(np.max(self.support.sqnorms))
        return self.kernel.relative_error(sqnorms, longest, self.data.n_features)
