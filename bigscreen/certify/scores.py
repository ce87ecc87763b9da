"""Where scores of ``w(alpha) = sum_j s_j alpha_j phi_j`` come from, and how far each may be off.

Alpha is an exact kernel machine: w is never written down. A source computes the scores of rows that
it is asked for, with their bands; `certify.exact` asks, and asks again in float64 where it must.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.layout import take
from bigscreen.data.rows import Rows
from bigscreen.features.design import Design
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.base import FLOAT64, Kernel, phi_norms
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.square import Square, alike, spread, sums
from bigscreen.kernels.standard import Compiled
from bigscreen.numerics.multiples import ULPS
from bigscreen.numerics.rows import FloatArray, njit

SCORE_ERROR = 2.0**-51
"""What the float64 sum of a score is off, as a part of its terms' size times their number's root:
partial sums err at random."""


@dataclass(frozen=True)
class TileTuning:
    """How kernel entries between support rows are used in both directions.

    ``part_rows``: support rows that one task computes with all that come after them.
    ``crossed_rows``: support rows from which the entries saved tell.
    """

    part_rows: int = 1024
    crossed_rows: int = 2048


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
    tuning: TileTuning = TileTuning()

    @property
    def wide(self) -> KernelTiles:
        """The source of float64 entries."""
        return replace(self, program=replace(self.program, dtype=np.float64))

    def __call__(self, rows: NDArray[np.int64]) -> Scored:
        """See `ScoreSource`."""
        program, data, ids = self.program, self.program.data, self.program.support.ids
        assert ids is not None
        scores, bands = np.empty(len(rows)), np.empty(len(rows))
        left = np.ones(len(rows), np.bool_)
        own = np.flatnonzero(np.isin(ids, rows))
        if Crossed.worth(program, len(own), self.tuning):
            crossed, at = (
                Crossed(program, own, self.tuning.part_rows),
                np.searchsorted(rows, ids[own]),
            )
            scores[at], bands[at] = crossed.total(self.fleet.each(crossed, crossed.tasks))
            left[at] = False
        places = np.flatnonzero(left)
        ends = np.searchsorted(rows[places], [data.shard(s)[1] for s in range(data.n_shards)])
        parts = [part for part in np.split(places, ends[:-1]) if len(part)]
        found = self.fleet.each(program, [rows[part] for part in parts])
        for part, (values, errors) in zip(parts, found, strict=True):
            scores[part], bands[part] = values, errors
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
        data, kernel, square = design.data, design.kernel, design.square
        assert kernel is not None
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


@dataclass(frozen=True)
class Crossed:
    """Runs anywhere: what one part of some support rows and the rows after it add to the scores.

    The support is taken in another order: ``places``, the rows whose scores are wanted, and the
    others. A task is the place where a part begins there; it computes its rows' entries with the
    part itself and all that follows, and those of rows wanted are used in both directions.
    """

    program: ScoreProgram
    places: NDArray[np.int64]
    part_rows: int = TileTuning.part_rows

    @staticmethod
    def worth(program: ScoreProgram, count: int, tuning: TileTuning) -> bool:
        """Whether to take this way for so many support rows."""
        # A kernel that somebody else computes might not be symmetric.
        return isinstance(program.kernel, Compiled) and count >= tuning.crossed_rows

    @property
    def order(self) -> NDArray[np.int64]:
        others = np.ones(len(self.program.support), np.bool_)
        others[self.places] = False
        return np.concatenate([self.places, np.flatnonzero(others)])

    @property
    def tasks(self) -> range:
        return range(0, len(self.places), self.part_rows)

    def __call__(self, start: int) -> FloatArray:
        """Sums (2, places from start on) of coefficients' and of spreads' entries."""
        program, order, n = self.program, self.order, len(self.places)
        part = self.part_rows
        X, end = program.support.X, min(start + part, n)
        own, sums = order[start:end], np.zeros((2, n - start))
        weights = np.stack([program.coef, program.noise.spread])
        room: NDArray[Any] = np.empty(part * part, program.dtype)
        edges = [*range(start, n, part), *range(n, len(order), part), len(order)]
        rows = Operand(X[own])
        for a, b in zip(edges, edges[1:], strict=False):
            columns = order[a:b]
            out = room[: len(own) * len(columns)].reshape(len(own), len(columns))
            tile = program.kernel.block(rows, Operand(X[columns]), out=out, dtype=program.dtype)
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
def add(
    tile: NDArray[Any],
    own: FloatArray,
    there: FloatArray,
    sums: FloatArray,
    back: FloatArray | None,
) -> None:
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
