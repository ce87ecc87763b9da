"""The closing pass of a point beside a dual point whose w(alpha) is known, as of a fit before.

A row that is at the same side under both, for certain, moves P and D by what it moved w(alpha) by:
a look at its float32 score is enough. All others are summed from float64 columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.explicit import (
    COLUMN_ROWS,
    FARTHER,
    ROUNDING_PART,
    UNIT_ROUNDOFF,
    score_doubt,
)
from bigscreen.certify.ledger import Evidence, in_float32, listed
from bigscreen.certify.sample import stride
from bigscreen.features.design import Design, row_ranges, with_constant
from bigscreen.fleet.protocol import Fleet
from bigscreen.model.ledger import DualPoint
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import Certificate, Point, SumLayout, relative
from bigscreen.problems.recipes import Problem
from bigscreen.screening.dynamic import farthest


@dataclass(frozen=True)
class Known:
    """A dual point of a C-SVC on landmarks, and its w(alpha).

    Parameters
    ----------
    alpha : float64 (n,)
    w_alpha : float64 (r,) or, with a constant, (r + 1,)
    largest : float
        Largest absolute value among ``sum s_i alpha_i c_i``, the sums over columns behind it.
    astray : float
        How far rounding can have moved w_alpha.
    certified_in : str
        Precision of the columns that it was summed from.
    """

    alpha: FloatArray
    w_alpha: FloatArray
    largest: float
    astray: float
    certified_in: str


class _Found(NamedTuple):
    """A shard's part: of rows summed from float64 columns, but for the last three.

    ``sums``: what P and D hold of them beyond what they moved w(alpha) by, their losses, reach and
    number, and the rows whose alpha is not 0; ``moved``: what w(alpha) is moved by, over columns;
    ``far``: how far float32 moved the score of any row of a sample; ``scores`` and (places, alpha)
    of rows that a ledger lists.
    """

    sums: FloatArray
    moved: FloatArray
    far: float
    scores: NDArray[np.float32]
    some: tuple[NDArray[np.int64], FloatArray]


@dataclass(frozen=True)
class _ShardSums:
    """Runs anywhere: one shard's part; an item is (shard, alpha, the known one)."""

    design: Design
    problem: Problem
    coef: FloatArray
    offset: float
    margin: float

    def __call__(self, item: tuple[int, FloatArray, FloatArray]) -> _Found:
        shard, alpha, known = item
        design, data, width = self.design, self.design.data, self.design.width
        start, stop = data.shard(shard)
        dual = self.problem.dual(data.y(start, stop), data.weights(start, stop))
        sums, moved, far = np.zeros(6), np.zeros(width + 1), 0.0
        scores = np.empty(stop - start)
        step, coef = stride(data.n_rows), self.coef[:, None]
        for a, b in row_ranges(stop - start, data.chunk_rows):
            X = data.X(start + a, start + b)
            own = design.dots(X, coef)[:, 0] + self.offset
            longest = int(np.argmax(data.sqnorms(start + a, start + b)))
            drawn = np.append(np.arange(-(start + a) % step, b - a, step), longest)
            true = design.dots(X[drawn], coef, np.float64)[:, 0] + self.offset
            far = max(far, float(np.max(np.abs(true - own[drawn]))))
            part, now, before = dual[a:b], alpha[a:b], known[a:b]
            G = part.gradient(own)
            side = np.where(G > self.margin, part.hi, np.where(G < -self.margin, 0.0, np.nan))
            exact = np.flatnonzero((now != side) | (now != before))
            for c, d in row_ranges(len(exact), COLUMN_ROWS):
                rows = exact[c:d]
                columns = design.columns(X[rows], np.float64)
                own[rows] = columns @ self.coef + self.offset
                few, was = part[rows], before[rows]
                losses, signed = few.losses(own[rows]), few.sign * (now[rows] - was)
                sums[0] += float(np.sum(losses - was * few.gradient(own[rows])))
                sums[1] += float(np.sum(now[rows] - was))
                sums[2] += float(np.sum(losses))
                sums[3] += float(np.sum(few.reach))
                moved[:width] += signed @ columns
                moved[width] += float(np.sum(signed))
            sums[4] += len(exact)
            scores[a:b] = own
        sums[5] = np.count_nonzero(alpha)
        kept = in_float32(scores)
        places = np.flatnonzero(listed(dual, kept, alpha))
        return _Found(sums, moved, far, kept, (places, alpha[places]))


class Beside:
    """Certifies points of a C-SVC beside a known one.

    Parameters
    ----------
    design : Design
        The kernel design, which has landmarks.
    problem : CSvc
    fleet : Fleet
    known : Known
    """

    def __init__(self, design: Design, problem: Problem, fleet: Fleet, known: Known) -> None:
        self.design, self.problem, self.fleet, self.known = design, problem, fleet, known
        self._last: _Looked | None = None

    def scores(self, point: Point) -> FloatArray:
        """The scores of all rows (n,) that a certificate of this point comes from."""
        return np.concatenate([part.scores for part in self._look(point).parts])

    def certificate(self, point: Point) -> Certificate | None:
        """That of a point, which has an alpha; None where rounding leaves too little of its gap.

        With ``w0`` the known w(alpha) and ``alpha0`` its alpha, rows at their side under both have
        the loss ``alpha0 G``, and so

            P = 1/2 ||w||^2 - <w, w0> + sum alpha0 + sum over the others (loss - alpha0 G),
            D = sum alpha - 1/2 ||w0 + sum over the others s (alpha - alpha0) phi||^2.

        What rounding has moved w0 by moves P and D alike: their difference by no more than its
        product with w - w(alpha).
        """
        return _concluded(self.design, self.problem, point, self.known, self._look(point))

    def _look(self, point: Point) -> _Looked:
        """The pass over all rows of a point; the last one is kept."""
        if self._last is None or self._last.w is not point.w:
            design, data, before = self.design, self.design.data, self.known.alpha
            assert point.alpha is not None
            dual = self.problem.dual(data.y(0, len(before)), data.weights(0, len(before)))
            alpha, coef = dual.feasible(point.alpha), design.coef(point.w)
            margin = score_doubt(design, coef)
            program = _ShardSums(design, self.problem, coef, point.intercept, margin)
            shards = enumerate(data.shard(s) for s in range(data.n_shards))
            items = ((s, alpha[a:b], before[a:b]) for s, (a, b) in shards)
            self._last = _Looked(point.w, margin, list(self.fleet.each(program, items)))
        return self._last


class _Looked(NamedTuple):
    """A pass over all rows: of which w, the margin, and the shards' parts."""

    w: FloatArray
    margin: float
    parts: list[_Found]


def _concluded(
    design: Design, problem: Problem, point: Point, known: Known, looked: _Looked
) -> Certificate | None:
    """The certificate of the sums of a pass; see `Beside.certificate`."""
    data, frame, w = design.data, SumLayout.of(problem, design.data), point.w
    coef, parts, n = design.coef(w), looked.parts, data.n_rows
    far = max(part.far for part in parts)
    more, change, lost, reach, exact, support = np.sum([part.sums for part in parts], axis=0)
    moved = np.sum([part.moved for part in parts], axis=0)
    if looked.margin < FARTHER * far:
        return None
    x, w_alpha = w, known.w_alpha + with_constant(design, moved, frame.constant)
    if frame.constant:
        x = np.append(w, point.intercept / frame.constant)
    total, half = float(np.sum(known.alpha)), 0.5 * float(x @ x)
    along, half_alpha = float(x @ known.w_alpha), 0.5 * float(w_alpha @ w_alpha)
    primal = half - along + total + float(more)
    dual = total + float(change) - half_alpha
    gap, apart = primal - dual, float(np.linalg.norm(x - w_alpha))

    # How far rounding can have moved them.
    entry = design.score_error(coef, np.float64)
    size, widest = float(np.sum(np.abs(coef))), frame.largest(design.column_bound)
    deviation = UNIT_ROUNDOFF * (2.0 * float(np.sqrt(design.width)) + 2.0)
    entry += deviation * widest * (size + abs(point.intercept))
    own_w_alpha = w_alpha[: design.rank]
    lengths = 0.5 * design.length_errors(np.stack([w, own_w_alpha], axis=1))
    summed = half + abs(along) + total + float(lost) + half_alpha
    terms, v = design.width + design.rank, known.largest + float(np.max(np.abs(moved)))
    ordered = [UNIT_ROUNDOFF * terms * v * design.coef_size(each) for each in (w, own_w_alpha)]
    # (Sums of many are taken in pairs, and those of rows by tiles.)
    tiles = float(exact) + data.n_shards + 64
    common = UNIT_ROUNDOFF * tiles * (summed + float(reach) * widest)
    astray = known.astray + design.feature_error(np.float64) * float(reach)
    own = float(lengths[0]) + ordered[0] + common + float(reach) * entry
    other = float(lengths[1]) + ordered[1] + common + 0.5 * astray**2
    rounding = own + other + apart * astray
    if rounding > ROUNDING_PART * gap:
        return None
    kept = np.concatenate([part.scores for part in parts])
    slack = float(entry + FARTHER * far)
    shards = (data.shard(s) for s in range(data.n_shards))
    places = np.concatenate([part.some[0] + a for part, (a, _) in zip(parts, shards, strict=True)])
    listed_alpha = np.concatenate([part.some[1] for part in parts])
    offset = frame.constant * float(np.sum(w_alpha[design.rank :]))
    dual_point = DualPoint(design.coef(own_w_alpha), offset, apart, places, listed_alpha)
    radius = farthest(gap + rounding, apart, rounding)
    evidence = Evidence(kept, slack, radius, (0.0, 0.0), dual_point, True)
    return Certificate(
        primal=primal,
        dual=dual,
        gap=gap,
        relative_gap=relative(gap, primal),
        rounding_bound=rounding,
        primal_rounding=own + float(np.linalg.norm(x)) * astray,
        dual_rounding=other + float(np.linalg.norm(w_alpha)) * astray,
        certified_in=known.certified_in,
        rows=n,
        support=int(support),
        intercept=point.intercept,
        evidence=evidence,
    ).checked()
