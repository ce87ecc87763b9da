"""Certificates that reuse a known dual point and its w(alpha), for example of an earlier fit.

If a row is certainly on the same side at the known dual point and at the new point, its float32
score is enough: its contribution to P and D follows from w(alpha). All other rows are summed from
float64 columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.certificate import (
    UNIT_ROUNDOFF,
    Rounding,
    SeparatePair,
    can_explain_gap,
    make_certificate,
)
from bigscreen.certify.columns import TUNING, FieldwiseSum
from bigscreen.certify.explicit import score_doubt, score_sum_error
from bigscreen.certify.ledger import Evidence, is_off_side, round_to_float32
from bigscreen.certify.sample import stride
from bigscreen.features.design import ROWS_PER_TILE, Design, row_ranges, with_constant
from bigscreen.fleet.protocol import Fleet
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import Certificate, Point, SumLayout
from bigscreen.problems.recipes import Problem


@dataclass(frozen=True)
class KnownDualPoint:
    """A known dual point of a C-SVC on landmarks, and its w(alpha).

    Parameters
    ----------
    alpha : float64 (n,)
        The known dual point.
    w_alpha : float64 (r,) or, with a constant, (r + 1,)
        w(alpha), and the constant's coefficient.
    largest : float
        Largest absolute entry of ``sum s_i alpha_i c_i``, the sum over columns that w_alpha comes
        from.
    error : float
        How far rounding can have moved w_alpha, as a distance.
    certified_in : str
        Precision of the columns that w_alpha was summed from.
    """

    alpha: FloatArray
    w_alpha: FloatArray
    largest: float
    error: float
    certified_in: str


@dataclass
class _Sums(FieldwiseSum):
    """Sums over rows for an incremental certificate; sums of shards are added in shard order.

    Over rows with float64 columns: ``primal`` and ``dual``, their contributions to P and D apart
    from the change of w(alpha); ``losses``, ``reach`` and ``rows``; ``moved``, the change of
    w(alpha) as a sum over columns. Over all rows: ``support``, the number of rows whose alpha is
    not 0; by shard ``score_errors``, the largest error of a sampled row's float32 score;
    ``scores``; and ``alpha``, (places, values) of rows that a ledger lists.
    """

    moved: FloatArray
    primal: float = 0.0
    dual: float = 0.0
    losses: float = 0.0
    reach: float = 0.0
    rows: int = 0
    support: int = 0
    score_errors: list[float] = field(default_factory=list)
    scores: list[NDArray[np.float32]] = field(default_factory=list)
    alpha: list[tuple[NDArray[np.int64], FloatArray]] = field(default_factory=list)


@dataclass(frozen=True)
class _ShardSums:
    """Function that workers call for each shard: its sums; an item is (shard, alpha, known alpha).

    ``coef``, ``offset``: the point's coefficients of columns, and its offset. ``margin``: rows
    whose gradient is at most this far from 0 get float64 columns.
    """

    design: Design
    problem: Problem
    coef: FloatArray
    offset: float
    margin: float

    def __call__(self, item: tuple[int, FloatArray, FloatArray]) -> _Sums:
        """Sum the rows of one shard; ``item``: (shard number, alpha, known alpha) of its rows.

        Rows that are certainly on one side at both alpha keep their float32 scores.
        """
        shard, alpha, known = item
        data = self.design.data
        start, stop = data.shard(shard)
        dual = self.problem.dual(data.y(start, stop), data.weights(start, stop))
        sums, scores = _Sums(np.zeros(self.design.width + 1)), np.empty(stop - start)
        for a, b in row_ranges(stop - start, data.chunk_rows):
            X, part = data.X(start + a, start + b), dual[a:b]
            own = self.design.dots(X, self.coef[:, None])[:, 0] + self.offset
            sums.score_errors.append(self._max_score_error(X, own, start + a))
            G = part.gradient(own)
            side = np.where(G > self.margin, part.hi, np.where(G < -self.margin, 0.0, np.nan))
            exact = np.flatnonzero((alpha[a:b] != side) | (alpha[a:b] != known[a:b]))
            for c, d in row_ranges(len(exact), ROWS_PER_TILE):
                rows = exact[c:d]
                columns = self.design.columns(X[rows], np.float64)
                own[rows] = columns @ self.coef + self.offset
                self._add(sums, part[rows], columns, own[rows], alpha[a + rows], known[a + rows])
            scores[a:b] = own
        sums.support, kept = int(np.count_nonzero(alpha)), round_to_float32(scores)
        places = np.flatnonzero(is_off_side(dual, kept, alpha))
        sums.scores, sums.alpha = [kept], [(start + places, alpha[places])]
        return sums

    def _max_score_error(self, X: NDArray[np.float32], scores: FloatArray, start: int) -> float:
        """The largest error of a float32 score among a chunk's sampled rows and its longest row.

        X: the chunk; ``scores``: its float32 scores; ``start``: the number of its first row.
        """
        design, step = self.design, stride(self.design.data.n_rows, TUNING.sample_rows)
        longest = int(np.argmax(design.data.sqnorms(start, start + len(scores))))
        drawn = np.append(np.arange(-start % step, len(scores), step), longest)
        true = design.dots(X[drawn], self.coef[:, None], np.float64)[:, 0] + self.offset
        return float(np.max(np.abs(true - scores[drawn])))

    @staticmethod
    def _add(
        sums: _Sums,
        dual: Dual,
        columns: FloatArray,
        scores: FloatArray,
        now: FloatArray,
        before: FloatArray,
    ) -> None:
        """Add rows by their float64 columns: rows whose alpha changed or may be off its side.

        ``columns``, ``scores``: of these rows, in float64; ``now``, ``before``: their alpha at the
        new point and at the known dual point.
        """
        losses, signed = dual.losses(scores), dual.sign * (now - before)
        sums.primal += float(np.sum(losses - before * dual.gradient(scores)))
        sums.dual += float(np.sum(now - before))
        sums.losses += float(np.sum(losses))
        sums.reach += float(np.sum(dual.reach))
        sums.rows += len(dual)
        sums.moved[:-1] += signed @ columns
        sums.moved[-1] += float(np.sum(signed))


class IncrementalCertifier:
    """Computes certificates of points of a C-SVC from a known dual point and its w(alpha).

    Parameters
    ----------
    design : Design
        The kernel design, which has landmarks.
    problem : CSvc
    fleet : Fleet
    known : KnownDualPoint
    """

    def __init__(
        self, design: Design, problem: Problem, fleet: Fleet, known: KnownDualPoint
    ) -> None:
        """Keep the arguments; no pass has been run yet."""
        self.design, self.problem, self.fleet, self.known = design, problem, fleet, known
        self._last: _PassResult | None = None

    def scores(self, point: Point) -> FloatArray:
        """The scores of all rows (n,) from which this point's certificate is computed."""
        return np.concatenate(self._run_pass(point).sums.scores)

    def certificate(self, point: Point) -> Certificate | None:
        """The certificate of a point with an alpha; None if rounding is too large for its gap.

        With ``w0`` the known w(alpha) and ``alpha0`` its alpha, a row that is on the same side at
        both points has the loss ``alpha0 G``, and so

            P = 1/2 ||w||^2 - <w, w0> + sum alpha0 + sum over other rows (loss - alpha0 G),
            D = sum alpha - 1/2 ||w0 + sum over other rows s (alpha - alpha0) phi||^2.

        A rounding error of w0 moves P and D equally: their difference changes by at most its
        product with w - w(alpha).
        """
        found = self._run_pass(point)
        if found.margin < TUNING.sample_factor * max(found.sums.score_errors):
            return None
        return self._make_certificate(point, found.sums)

    def _run_pass(self, point: Point) -> _PassResult:
        """Run the pass over all rows for a point, or return the last pass if it was for its w."""
        if self._last is None or self._last.w is not point.w:
            design, data, before = self.design, self.design.data, self.known.alpha
            assert point.alpha is not None
            dual = self.problem.dual(data.y(0, len(before)), data.weights(0, len(before)))
            alpha, coef = dual.feasible(point.alpha), design.coef(point.w)
            margin = score_doubt(design, coef)
            program = _ShardSums(design, self.problem, coef, point.intercept, margin)
            shards = enumerate(data.shard(s) for s in range(data.n_shards))
            items = ((s, alpha[a:b], before[a:b]) for s, (a, b) in shards)
            sums = _Sums(np.zeros(design.width + 1))
            for found in self.fleet.each(program, items):
                sums = sums + found
            self._last = _PassResult(point.w, margin, sums)
        return self._last

    def _make_certificate(self, point: Point, sums: _Sums) -> Certificate | None:
        """The certificate of a point from the sums of its pass."""
        design, known, w = self.design, self.known, point.w
        data, frame = design.data, SumLayout.of(self.problem, design.data)
        x, w_alpha = w, known.w_alpha + with_constant(design, sums.moved, frame.constant)
        if frame.constant:
            x = np.append(w, point.intercept / frame.constant)
        total, half = float(np.sum(known.alpha)), 0.5 * float(x @ x)
        along, half_alpha = float(x @ known.w_alpha), 0.5 * float(w_alpha @ w_alpha)
        primal, dual = half - along + total + sums.primal, total + sums.dual - half_alpha
        apart = float(np.linalg.norm(x - w_alpha))
        # How far rounding can have moved P and D.
        coef, widest = design.coef(w), frame.largest(design.column_bound)
        size = float(np.sum(np.abs(coef))) + abs(point.intercept)
        entry = design.score_error(coef, np.float64) + score_sum_error(design.width, widest, size)
        own_w_alpha = w_alpha[: design.rank]
        lengths = 0.5 * design.length_errors(np.stack([w, own_w_alpha], axis=1))
        products = (design.width + design.rank) * (
            known.largest + float(np.max(np.abs(sums.moved)))
        )
        ordered = [UNIT_ROUNDOFF * products * design.coef_size(each) for each in (w, own_w_alpha)]
        # (The number of additions: rows within tiles, then tiles, then shards.)
        summed = half + abs(along) + total + sums.losses + half_alpha + sums.reach * widest
        common = UNIT_ROUNDOFF * (sums.rows + data.n_shards + 64) * summed
        error = known.error + design.feature_error(np.float64) * sums.reach
        own = float(lengths[0]) + ordered[0] + common + sums.reach * entry
        other = float(lengths[1]) + ordered[1] + common + 0.5 * error**2
        rounding = Rounding(
            gap=own + other + apart * error,
            primal=own + float(np.linalg.norm(x)) * error,
            dual=other + float(np.linalg.norm(w_alpha)) * error,
            sums=2.0 * common,
        )
        pair = SeparatePair(primal, dual, rounding, apart)
        if can_explain_gap(rounding.gap, pair.gap, TUNING.max_rounding_share):
            return None
        offset = frame.constant * float(np.sum(w_alpha[design.rank :]))
        evidence = Evidence(
            np.concatenate(sums.scores),
            float(entry + TUNING.sample_factor * max(sums.score_errors)),
            pair.radius,
            (0.0, 0.0),
            pair.dual_point(design.coef(own_w_alpha), offset, sums.alpha),
            in_float32=True,
        )
        return make_certificate(
            *(pair.primal, pair.dual, pair.gap, pair.rounding),
            certified_in=known.certified_in,
            rows=data.n_rows,
            support=sums.support,
            intercept=point.intercept,
            evidence=evidence,
        )


class _PassResult(NamedTuple):
    """The result of a pass over all rows for a point: its w, the margin used and the sums.

    Rows whose gradient is at most ``margin`` from 0 were summed from float64 columns.
    """

    w: FloatArray
    margin: float
    sums: _Sums
