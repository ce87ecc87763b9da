"""The closing pass: P, D and the gap of a point over ALL rows, independent of the solver.

Nothing that a solver, a screening rule or lazy rows left out is left out here: every score is
computed again, alpha is read off (or handed in), and the sums are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.ledger import Evidence, in_float32, listed
from bigscreen.certify.offset import Kinks
from bigscreen.certify.sample import Looked, Sample, seen, stride
from bigscreen.data.layout import joined
from bigscreen.errors import InputError
from bigscreen.features.design import Design, row_ranges
from bigscreen.fleet.protocol import Fleet
from bigscreen.model.ledger import DualPoint
from bigscreen.numerics.rows import FloatArray, as_rows, njit, row_dot
from bigscreen.problems.dual import Dual, Mu, sensitivity
from bigscreen.problems.point import (
    Certificate,
    Point,
    Reading,
    SumLayout,
    Terms,
    add_in_blocks,
    relative,
)
from bigscreen.problems.recipes import CSvc, Problem
from bigscreen.screening.dynamic import farthest

ROUNDING_PART = 0.5
"""Part of the gap that float32 columns may have moved it by; else they become float64, unless sums
in float64 have moved it by as much."""

UNIT_ROUNDOFF = 2.0**-53
"""What a float64 operation rounds its result by at most, as a part of it."""

FARTHER = 4.0
"""So many times as far as the scores of a sample's rows at most can rounding move any score."""

COLUMN_ROWS = 1024
"""Rows whose columns are held, and added up, at once: a tile and its columns stay in cache."""

BLOCK_ROWS = 32
"""Those that are added up before the rest: the sum's bound is so many roundings, not a tile's."""

LOOKED_ROWS = 256
"""Rows of the sample that are looked at together: a large T is read as often."""

CLOSE = 1e-4
"""Relative gap below which rows near their kink are made exact: for wider ones nothing hangs on it.
"""


DIGITS = 1e-7
"""Relative gap below which P and D themselves are wanted to more digits than float32 gives."""

AT_SIDE = 1e-12
"""Part of its box that alpha may be off its side by, as a mixture of equal ones is."""

OTHERS = 6
"""Sums of a closing pass before those by part."""


class _Sums(NamedTuple):
    """A shard's part of a closing pass.

    ``sums``: [loss, what a score's error moves it by, and half its square, rows, support, what an
    error of a score moves the gap by where rows are not exact, sum |alpha| by part...];
    ``values``, ``parts``: for every part of alpha the sums of its `Terms`, and V (terms, m +
    extras); ``kinks``: those of P near the multiplier of every group; ``sample``: what float64
    columns of some rows would have changed; ``scores``: of all rows, in the end those that are
    kept; ``alpha`` likewise, in the end (places, values) of rows that a ledger lists.
    """

    sums: FloatArray
    values: FloatArray
    parts: FloatArray
    kinks: list[Kinks]
    sample: Sample
    scores: NDArray[Any]
    alpha: Any


@dataclass(frozen=True)
class _ShardSums:
    """Runs anywhere: one shard's part of P and, for every part of alpha, of p . alpha and V."""

    design: Design
    exact: Design
    problem: Problem
    frame: SumLayout
    point: Point
    coef: FloatArray
    true_coef: FloatArray
    """Those of the kernel design's columns, where there is one."""
    mu: Mu
    dtype: type
    source: Design | None = None
    keep: bool = False
    margin: float = 0.0
    """Rows that are no farther than this from a kink are made exact; 0: none."""
    digits: bool = False
    """Whether all rows that are part of a sum are made exact, so that P and D are."""

    def __call__(self, item: tuple[int, NDArray[Any] | None]) -> _Sums:
        """Sums of shard ``item[0]``, ``item[1]`` what is known of its dual point: `_given`."""
        return _Several((self,))((item,))[0]

    @property
    def alike(self) -> Any:
        """The same for passes over the same columns, which can be one pass."""
        source = None if self.source is None else self.source.same
        return self.design.same, self.exact.same, source, self.dtype

    @staticmethod
    def together(passes: Iterable[_ShardSums]) -> _Several:
        """Passes over the same columns as one pass, whose items are theirs together."""
        return _Several(tuple(passes))

    def nothing(self, rows: int) -> _Sums:
        """The sums before the first of so many rows."""
        frame, n_parts = self.frame, max(1, len(self.point.readings))
        return _Sums(
            np.zeros(OTHERS + n_parts),
            np.zeros((n_parts, frame.terms * (1 + frame.curved))),
            np.zeros((n_parts, frame.terms, self.exact.width + frame.extras)),
            [],
            Sample.none(),
            np.empty(rows if frame.groups or self.keep else 0),
            np.empty(rows if self.lists else 0),
        )

    def add(
        self,
        found: _Sums,
        dual: Dual,
        tiles: tuple[slice, Any, Any],
        given: NDArray[Any] | None,
        alpha: FloatArray,
        exact: Callable[[NDArray[np.int64]], FloatArray] | None = None,
    ) -> NDArray[np.int64]:
        """Add a tile's rows: their places, their columns, and those that alpha is read off.

        ``alpha`` receives theirs; ``exact`` gives float64 columns of some of them.
        Returns which rows these were.
        """
        rows, columns, read = tiles
        scores = np.empty(len(alpha))
        _scores(columns, self.coef, self._constant, scores)
        known = scores if read is columns else None
        part = dual[rows]
        if given is not None and given.dtype == np.float64:
            alphas = [given[rows]]
        else:
            alphas = list(self._alphas(part, read, known))
            if given is not None:
                alphas = [part.settled(given[rows], each) for each in alphas]
        alpha[:] = 0.0  # where nothing was read off yet
        weight = np.array([reading.weight for reading in self.point.readings] or [1.0])
        for each, share in zip(alphas, weight / weight.sum(), strict=False):
            alpha += share * each
        near, instead = np.empty(0, np.int64), np.empty((0, 0))
        if exact is not None and self.margin:
            gradient = part.gradient(scores, self.mu)
            moves = sensitivity(part, alpha, gradient, self.margin)
            doubtful = moves > AT_SIDE * part.reach
            near = np.flatnonzero(doubtful | (alpha != 0) if self.digits else doubtful)
            instead, moves[near] = exact(near), 0.0
            sums = np.empty(len(near))
            _scores(instead, self.coef, self._constant, sums)
            scores[near] = sums
            found.sums[5] += moves.sum()
        self._tile(part, (columns, near, instead), scores, alphas, found)
        if len(found.scores):
            found.scores[rows] = scores
        if self.lists:
            found.alpha[rows] = alpha
        return near

    @property
    def lists(self) -> bool:
        """Whether a ledger can hold the dual point."""
        return self.keep and type(self.problem) is CSvc and not self.frame.groups

    def seen(
        self,
        looked: Looked,
        dual: Dual,
        alpha: FloatArray,
        exact: NDArray[np.bool_],
    ) -> Sample:
        """What float64 columns of some rows would have changed, but for those that had them."""
        w = self.point.w, self.true_coef, self._constant
        return seen(looked, dual, alpha, w, self.mu, exact)

    def finished(self, found: _Sums, dual: Dual) -> _Sums:
        """The sums with what follows from all scores, which are kept if they are asked for."""
        mu, scores = np.atleast_1d(self.mu), found.scores
        kinks = Kinks.near(dual, scores, mu) if self.frame.kinked else []
        kept = in_float32(scores) if self.keep else np.empty(0, np.float32)
        some = None
        if self.lists:
            places = np.flatnonzero(listed(dual, kept, found.alpha))
            some = places, found.alpha[places]
        return found._replace(kinks=kinks, scores=kept, alpha=some)

    def _tile(
        self,
        dual: Dual,
        tile: tuple[Any, NDArray[np.int64], FloatArray],
        scores: FloatArray,
        alphas: Iterable[FloatArray],
        found: _Sums,
    ) -> None:
        sums, values, parts = found.sums, found.values, found.parts
        columns, near, instead = tile
        losses = dual.losses(scores, self.mu)
        sums[0] += losses.sum()
        if dual.curve is None:
            # (Where rows near their kink are known, no other row's loss of 0 can be another.)
            moving = losses > 0 if self.margin else np.ones(len(dual), np.bool_)
            moving[near] = True
            sums[1] += dual.reach[moving].sum()
        else:
            sums[1] += np.abs(dual.best(dual.gradient(scores, self.mu))).sum()
            sums[2] += dual.reach.sum()
        sums[3] += len(dual)
        used = np.zeros(len(dual), np.bool_)
        border = self.frame.border(dual)
        for k, alpha in enumerate(alphas):
            sums[OTHERS + k] += np.abs(alpha).sum()
            terms = Terms(self.frame, dual, alpha)
            values[k] += terms.sums
            part, some = np.zeros(parts[k].shape), border[near]
            for coef, term in terms.parts:
                add_in_blocks(instead, some, coef[near], term[near], self.block, part)
                coef[near] = 0.0
                add_in_blocks(columns, border, coef, term, self.block, part)
            parts[k] += part
            used |= alpha != 0
        sums[4] += np.count_nonzero(used)

    @property
    def block(self) -> int:
        """Rows of a tile that are summed by themselves."""
        # (Of sparse rows that would cost more than they have entries.)
        sparse = self.exact.kernel is None and self.exact.data.is_sparse
        return COLUMN_ROWS if sparse else BLOCK_ROWS

    @property
    def _constant(self) -> float:
        return self.point.intercept if self.frame.constant else 0.0

    def _alphas(self, dual: Dual, columns: Any, known: FloatArray | None) -> Iterator[FloatArray]:
        """Alpha of every reading; ``known``: the scores at w, if they are of these columns."""
        for reading in self.point.readings:
            scores = known
            here = reading.intercept == self._constant and np.array_equal(reading.coef, self.coef)
            if scores is None or not here:
                scores = np.empty(len(dual))
                _scores(columns, reading.coef, reading.intercept, scores)
            yield reading.alpha(dual, scores)


@dataclass(frozen=True)
class _Several:
    """The passes of several points over the same columns, computed once for all of them."""

    passes: tuple[_ShardSums, ...]

    def __call__(self, items: tuple[tuple[int, NDArray[Any] | None], ...]) -> list[_Sums]:
        """The sums of one shard, of every point in their order."""
        first, shard = self.passes[0], items[0][0]
        design, exact, dtype, data = first.design, first.exact, first.dtype, first.exact.data
        start, stop = data.shard(shard)
        given = {id(own): own for own in (each.exact.data for each in self.passes)}
        read = {key: (own.y(start, stop), own.weights(start, stop)) for key, own in given.items()}
        duals = [each.problem.dual(*read[id(each.exact.data)]) for each in self.passes]
        found = [each.nothing(stop - start) for each in self.passes]
        true = None if dtype is np.float64 else first.source or design
        # Alpha is read off the very columns that the solver read it off: any alpha in the box is as
        # good, but at a small h another reading is another alpha.
        same = exact is design and dtype is np.float32
        alphas = np.empty((len(self.passes), stop - start))
        known = np.zeros((len(self.passes), stop - start), np.bool_)
        waiting: list[_Waiting] = []
        for a, b in row_ranges(stop - start, data.chunk_rows):
            X = data.X(start + a, start + b)
            other = X if exact is design else design.data.X(start + a, start + b)
            own, more, looked = None, None, None
            if true is not None and true.kernel is not None:
                own = X if true is exact else true.data.X(start + a, start + b)
                looked = _Waiting.of(true, exact, own, start + a, start + b, a)
            for c, d in row_ranges(b - a, exact.tile(COLUMN_ROWS)):
                columns = _columns(exact, X[c:d], dtype, "certified")
                read = columns if same else _columns(design, other[c:d], np.float32, "read")
                tile = slice(a + c, a + d), columns, read
                if true is not None and own is not None:
                    more = partial(_float64, true, exact, own[c:d])
                for k, each in enumerate(self.passes):
                    near = each.add(found[k], duals[k], tile, items[k][1], alphas[k, tile[0]], more)
                    known[k, a + c + near] = True
                if looked is not None:
                    here = (looked.places >= a + c) & (looked.places < a + d)
                    looked.columns[here] = columns[looked.places[here] - (a + c)]
            if looked is None:
                continue
            assert true is not None
            waiting.append(looked)
            if sum(len(part.places) for part in waiting) >= LOOKED_ROWS or b == stop - start:
                self._look(true, waiting, duals, (alphas, known), found)
                waiting = []
        ended = zip(self.passes, found, duals, strict=True)
        return [each.finished(sums, dual) for each, sums, dual in ended]

    def _look(
        self,
        true: Design,
        rows: list[_Waiting],
        duals: list[Dual],
        read: tuple[FloatArray, NDArray[np.bool_]],
        found: list[_Sums],
    ) -> None:
        """Add some rows to the samples of all points."""
        exact, (alphas, known) = self.passes[0].exact, read
        own = joined(true.data.is_sparse, [part.own for part in rows])
        columns = np.concatenate([part.columns for part in rows])
        places = np.concatenate([part.places for part in rows])
        drawn = np.concatenate([part.drawn for part in rows])
        looked = Looked.at(true, exact, own, columns, drawn)
        for k, each in enumerate(self.passes):
            sample = each.seen(looked, duals[k][places], alphas[k, places], known[k, places])
            found[k] = found[k]._replace(sample=found[k].sample + sample)


class _Waiting(NamedTuple):
    """Rows of a chunk that are to be looked at: their places in the shard, and `Looked.at`'s."""

    places: NDArray[np.int64]
    drawn: NDArray[np.bool_]
    own: Any
    columns: NDArray[Any]

    @classmethod
    def of(cls, true: Design, exact: Design, own: Any, start: int, stop: int, a: int) -> _Waiting:
        """Those of the chunk [start, stop), the shard's from ``a`` on; their columns are to come.

        A float32 product may round an entry by its place among the rows: what has been summed is
        known of the very columns only.
        """
        drawn = np.arange(-start % (step := stride(true.data.n_rows)), stop - start, step)
        # (Errors grow with rows' lengths: no row is to be out of sight.)
        longest = int(np.argmax(true.data.sqnorms(start, stop)))
        some = np.append(drawn, longest)
        counted = np.arange(len(some)) < len(drawn)
        dtype = exact.data.layout.dtype if exact.kernel is None else np.float32
        return cls(a + some, counted, own[some], np.empty((len(some), exact.width), dtype))


def _given(problem: Problem, data: Any, point: Point) -> NDArray[Any] | None:
    """A point's own alpha, the coupling kept, or its sides; None where it is read off scores."""
    if point.alpha is None:
        return point.sides
    n = data.n_rows
    return problem.dual(data.y(0, n), data.weights(0, n)).feasible(point.alpha)


def _with_middle(point: Point) -> Point:
    """The point with the middle of the box as its alpha, scaled to the coupling's total.

    What w = 0 reads off where every p is 0, as it is in all problems whose total is not 0: of any
    other w the rows in the zone can have too little room.
    """
    middle = Reading(np.zeros_like(point.coef), 0.0, 1.0)
    if len(point.readings) == 1 and not np.any(point.readings[0].coef):
        raise InputError("no alpha within the box meets the coupling; use a smaller nu")
    return replace(point, readings=(middle,), sides=None)


def _scaled(frame: SumLayout, scale: FloatArray) -> float:
    """The part by which a coupling makes any alpha smaller."""
    return float(np.max(np.abs(scale[: frame.buckets] - 1.0)))


def _columns(design: Design, X: Any, dtype: type, passing: str) -> Any:
    """Columns as compiled loops take them, until the next; raw features are their own."""
    return as_rows(X if design.kernel is None else design.columns(X, dtype, passing))


def _float64(true: Design, used: Design, rows: Any, some: NDArray[np.int64]) -> FloatArray:
    """Float64 columns, as ``used`` has them, of some rows of the kernel design ``true``."""
    if not len(some):
        return np.empty((0, used.width))
    columns = true.columns(rows[some], np.float64)
    return columns if used is true else true.features_of(columns)


def _margin(true: Design, point: Point) -> float:
    """How far from their kink rows are made exact; 0, for none, where that is not worth it."""
    if true.kernel is None or point.gap > CLOSE * abs(point.primal):
        return 0.0
    return score_doubt(true, true.coef(point.w))


def score_doubt(design: Design, coef: FloatArray) -> float:
    """How far float32 columns move a score, if errors are independent (maths.md 4)."""
    size, root = float(np.sum(np.abs(coef))), float(np.linalg.norm(coef))
    return design.score_error(coef) * root / size if size > 0 else 0.0


def close(
    design: Design,
    problem: Problem,
    point: Point,
    fleet: Fleet,
    certify: str = "float32",
    source: Design | None = None,
    keep: bool = False,
) -> Certificate:
    """Certify a point over all rows.

    Parameters
    ----------
    design, problem, point
        What was solved, and where the solver stands; its multiplier moves to the best one nearby
        for its w, the middle of all that are.
    fleet : Fleet
        Runs one task a shard; the result does not depend on how many workers it has.
    certify : {"float32", "float64"}
        Precision of the columns' entries; sums are float64 either way.
    source : Design or None
        The kernel design behind a design of stored features, with the same rows: float64
        certifies its exact columns in place of the features stored in float32.
    keep : bool
        Keep what a ledger of the rows is made of, too, as ``evidence``.
    """
    dtype = np.float64 if certify == "float64" else np.float32
    exact = source if certify == "float64" and source is not None else design
    data, frame = exact.data, SumLayout.of(problem, exact.data)
    multiplier = point.multiplier or (point.intercept,) * frame.groups
    mu = np.array(multiplier) if frame.groups > 1 else float(sum(multiplier))
    given = _given(problem, data, point)
    items = (
        (s, None if given is None else given[slice(*data.shard(s))]) for s in range(data.n_shards)
    )
    theta = [reading.weight for reading in point.readings] or [1.0]
    total = np.zeros(OTHERS + len(theta))
    parts = np.zeros((len(theta), frame.terms, exact.width + frame.extras))
    values = np.zeros((len(theta), frame.terms * (1 + frame.curved)))
    near: list[list[Kinks]] = []
    sample = Sample.none()
    margin = 0.0
    if dtype is np.float32 and not frame.curved:
        margin = _margin(source or design, point)
    # Rows that are out for certain add nothing: float32 scores are enough of them.
    digits = margin > 0 and point.gap < DIGITS * abs(point.primal)
    coef, true = exact.coef(point.w), source or design
    true_coef = coef if true is exact else true.coef(point.w)
    program = _ShardSums(
        *(design, exact, problem, frame, point, coef, true_coef, mu, dtype, source, keep),
        margin,
        digits,
    )
    kept: list[NDArray[Any]] = []
    some: list[tuple[NDArray[np.int64], FloatArray]] = []
    for found in fleet.each(program, items):
        if found.alpha is not None:
            some.append((found.alpha[0] + data.shard(len(kept))[0], found.alpha[1]))
        kept.append(found.scores)
        total += found.sums
        values += found.values
        parts += found.parts
        near.append(found.kinks)
        sample += found.sample
    loss, box, bend, rows, support, left = total[:OTHERS]
    # Each part of the mixture is made feasible by itself: so is their mixture.
    scales = [frame.scales(part) for part in parts]
    if all(scale is None for scale in scales):
        return close(design, problem, _with_middle(point), fleet, certify, source, keep)
    theta = [w if scale is not None else 0.0 for w, scale in zip(theta, scales, strict=True)]
    lin, v = 0.0, np.zeros(parts.shape[2])
    for weight, scale, value, part in zip(theta, scales, values, parts, strict=True):
        if scale is not None:
            lin += weight / sum(theta) * frame.value(scale, value)
            v += weight / sum(theta) * (scale @ part)
    w_alpha = exact.features(v[: exact.width])
    b_alpha = float(v[exact.width]) if frame.constant else 0.0
    size = float(np.dot(theta, total[OTHERS:]))
    constant = point.intercept if frame.constant else 0.0
    half_w_sq, half_alpha_sq = 0.5 * float(point.w @ point.w), 0.5 * float(w_alpha @ w_alpha)
    primal = loss + half_w_sq
    if frame.constant:
        primal += 0.5 * (constant / frame.constant) ** 2
    primal += float(np.dot(frame.total, multiplier))
    best, passed = list(multiplier), 0.0
    ends = np.array([[-np.inf, np.inf]] * frame.groups or [[0.0, 0.0]]).T
    for g, total_g in enumerate(frame.total.tolist() if frame.kinked else []):
        joined = Kinks.joined(kinks[g] for kinks in near)
        best[g], change, weight = joined.best(multiplier[g], total_g, sample.far)
        primal, passed = primal + change, passed + weight
        ends[:, g] = joined.ends(total_g)
    dual = lin - half_alpha_sq - 0.5 * b_alpha**2
    # Float64 sums only: the features ARE their computed columns, the same numbers in P and D. The
    # machine that is published has the coefficients themselves, with which scores are summed, and
    # ``lengths`` below says what has become of ||w||^2.
    largest = frame.largest(exact.column_bound)
    tile, block = min(exact.tile(COLUMN_ROWS), data.chunk_rows), program.block
    # (Exact rows and others are summed in blocks of their own.)
    blocks = tile // block + 2
    rows_summed = block + blocks + 2 * (data.shard_rows // tile + 1) + data.n_shards
    offsets = abs(constant) + float(np.max(np.abs([*multiplier, *best]), initial=0.0))
    # Of a sum of so many products (maths.md 4).
    deviation = UNIT_ROUNDOFF * (2.0 * float(np.sqrt(exact.width)) + 2.0)
    error = deviation * largest * (float(np.sum(np.abs(coef))) + offsets)
    summed_own = (box + 0.5 * bend * error) * error
    # What cancels in P (a nu-SVC's rho) was rounded by itself.
    summed = abs(loss) + half_w_sq + float(frame.total @ np.abs(multiplier))
    summed_own += UNIT_ROUNDOFF * rows_summed * (abs(primal) + summed + box)
    along = float(np.sum(np.abs(exact.coef(w_alpha)))) + abs(b_alpha)
    summed_other = UNIT_ROUNDOFF * rows_summed * size * largest * along
    terms = exact.width + exact.rank
    largest_v = float(np.max(np.abs(v), initial=0.0))
    summed_other += UNIT_ROUNDOFF * terms * largest_v * exact.coef_size(w_alpha)
    summed = abs(lin) + half_alpha_sq
    summed_other += UNIT_ROUNDOFF * rows_summed * (abs(dual) + summed + size)
    gap = float(primal - dual)
    lengths = (source or design).length_errors(np.stack([point.w, w_alpha], axis=1))
    summed_own += 0.5 * float(lengths[0])
    summed_other += 0.5 * float(lengths[1])
    # What was summed are float32 numbers; the machine that is published has float64 ones.
    scaled = max(_scaled(frame, scale) for scale in scales if scale is not None)
    seen_primal, seen_dual = sample.bounds(data.n_rows, w_alpha, scaled)
    # A kink that the multiplier has passed turns round what its row's error does to P.
    crossed = 2.0 * passed * sample.far
    own, other = summed_own + seen_primal + crossed, summed_other + seen_dual
    rounding = own + other
    shift = float(np.max(np.abs(np.subtract(best, multiplier)), initial=0.0))
    # (Where a part of the mixture fell away, or the zone's rows were given more, alpha is another.)
    same = all(scale is not None and not scale[frame.buckets :].any() for scale in scales)
    if same and margin - shift >= FARTHER * sample.far > 0:
        # All rows that are not at their side for certain were exact: the rest moves P and D alike,
        # but for what the total makes of alpha.
        left += scaled * size
        rest = sample.of_gap(data.n_rows, point.w - w_alpha, scaled) + left * FARTHER * sample.far
        rounding = min(rounding, summed_own + summed_other + rest)
    # (Sums of float64 columns are rounded likewise: where they are half of it no more is proved.)
    coarse = rounding > max(ROUNDING_PART * gap, 2.0 * (summed_own + summed_other))
    coarse |= gap < DIGITS * abs(primal) and not digits
    if certify == "float32" and coarse and sample.rows:
        return close(design, problem, point, fleet, "float64", source, keep)
    evidence = None
    if keep:
        constants = (constant / frame.constant if frame.constant else 0.0) - b_alpha
        apart = float(np.hypot(np.linalg.norm(point.w - w_alpha), constants))
        radius = farthest(max(gap, 0.0) + rounding, apart, rounding)
        values32 = np.concatenate(kept)
        kept.clear()  # as large as anything that a fit holds
        # Of the published machine: float64 columns, which a sample of the rows has been seen with.
        known = exact.score_error(exact.coef(point.w), np.float64) + FARTHER * sample.far
        slack = float(error + known)
        dual_point = None
        if some:
            places, alpha = (np.concatenate(part) for part in zip(*some, strict=True))
            own_coef = (source or design).coef(w_alpha)
            dual_point = DualPoint(own_coef, frame.constant * b_alpha, apart, places, alpha)
        evidence = Evidence(values32, slack, radius, (ends[0], ends[1]), dual_point, True)
    proof = Certificate(
        primal=float(primal),
        dual=float(dual),
        gap=gap,
        relative_gap=relative(gap, float(primal)),
        rounding_bound=float(rounding),
        primal_rounding=float(own),
        dual_rounding=float(other),
        certified_in="float64" if digits else certify,
        rows=int(rows),
        support=int(support),
        intercept=constant + problem.offset(np.array(best) if frame.groups > 1 else sum(best)),
        multiplier=tuple(map(float, best)),
        evidence=evidence,
    )
    return proof.checked()


@njit(cache=True, nogil=True)
def _scores(columns: Any, coef: FloatArray, intercept: float, out: FloatArray) -> None:
    """Scores of rows by their columns."""
    for i in range(len(out)):
        out[i] = row_dot(columns, i, coef) + intercept
