"""The closing pass over columns: a certificate of a w and of an alpha read off its scores.

A smoothed solver leaves w, and alpha follows from the scores of w, so that w(alpha) is not w. One
pass over all rows computes every score again (`certify.columns`); alpha is made feasible by scaling
parts of its sums; the multiplier moves to the best one nearby (`certify.offset`); and the error of
float32 columns in P and D is estimated from sampled rows in float64 (`certify.sample`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bigscreen.certify.certificate import (
    UNIT_ROUNDOFF,
    Rounding,
    SeparatePair,
    can_explain_gap,
    make_certificate,
)
from bigscreen.certify.columns import TUNING, ColumnPass, ColumnTuning, Sums, tile_rows
from bigscreen.certify.ledger import Evidence
from bigscreen.certify.offset import Breakpoints
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fleet.protocol import Fleet
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import Certificate, Point, Reading, SumLayout
from bigscreen.problems.recipes import Problem


def close_explicit(
    design: Design,
    problem: Problem,
    point: Point,
    fleet: Fleet,
    certify: str = "float32",
    source: Design | None = None,
    keep: bool = False,
    tuning: ColumnTuning = TUNING,
) -> Certificate:
    """Certify a point over all rows by a pass over the design's columns.

    Parameters
    ----------
    design, problem, point
        The rows, the problem, and the solver's iterate. The multiplier of the point moves to the
        middle of the interval of best multipliers for its w, if that interval is nearby.
    fleet : Fleet
        Runs one task a shard; the result does not depend on how many workers it has.
    certify : {"float32", "float64"}
        Precision of the columns' entries; sums are float64 either way. A kernel whose float64
        entries are fast is certified in float64.
    source : Design or None
        The kernel design behind a design of stored features, with the same rows: float64
        certifies its exact columns in place of the features stored in float32.
    keep : bool
        Keep the scores, as ``evidence``, from which a ledger is made: what is proved of each row.
    """
    true = source or design
    if true.kernel is not None and true.kernel.fast_float64:
        certify = "float64"
    program = _program(design, problem, point, certify, source, keep, tuning)
    sums = program.total(fleet)
    alpha = FeasibleAlpha.of(program, sums)
    if alpha is None:
        middle = _with_middle(point)
        return close_explicit(design, problem, middle, fleet, certify, source, keep, tuning)
    offsets = BestOffsets.of(program, sums)
    frame, own = program.frame, float(program.point.w @ program.point.w)
    primal = sums.loss + 0.5 * own
    if frame.constant:
        primal += 0.5 * (program.constant / frame.constant) ** 2
    primal += float(np.dot(frame.total, offsets.before))
    for change in offsets.changes:
        primal += change
    dual = alpha.linear - 0.5 * alpha.square - 0.5 * alpha.constant**2
    gap = float(primal - dual)
    rounding = _rounding(program, sums, alpha, offsets, (primal, dual))
    coarse = can_explain_gap(rounding.gap, gap, tuning.max_rounding_share)
    # (If half of the rounding comes from float64 summation, float64 columns prove no more.)
    coarse &= rounding.gap > rounding.sums / tuning.max_rounding_share
    coarse |= gap < tuning.support_float64_gap * abs(primal) and not program.support_in_float64
    if certify == "float32" and coarse and sums.sample.rows:
        return close_explicit(design, problem, point, fleet, "float64", source, keep, tuning)
    pair = SeparatePair(float(primal), float(dual), rounding, alpha.apart(program))
    best = offsets.best
    return make_certificate(
        *(pair.primal, pair.dual, pair.gap, pair.rounding),
        certified_in="float64" if program.support_in_float64 else certify,
        rows=int(sums.rows),
        support=int(sums.support),
        intercept=program.constant
        + problem.offset(np.array(best) if frame.groups > 1 else sum(best)),
        multiplier=tuple(map(float, best)),
        evidence=_evidence(program, sums, pair, alpha, offsets) if keep else None,
    )


def score_doubt(design: Design, coef: FloatArray) -> float:
    """Bound on a score's error from float32 columns, if errors are independent (maths.md 4).

    ``coef``: the score's coefficients of the design's columns.
    """
    size, root = float(np.sum(np.abs(coef))), float(np.linalg.norm(coef))
    return design.score_error(coef) * root / size if size > 0 else 0.0


def score_sum_error(width: int, largest: float, size: float, order: float = 1.0) -> float:
    """Bound on the rounding of a score's float64 sum over ``width`` columns (maths.md 4).

    ``largest``: the largest absolute entry of a column. ``size``: ``sum |coef|``, offsets included.
    ``order``: of the columns' design, see `order_factor`.
    """
    return order * UNIT_ROUNDOFF * (2.0 * float(np.sqrt(width)) + 2.0) * largest * size


def order_factor(design: Design) -> float:
    """How much larger the rounding of sums over a design's columns can be than in a known order."""
    return 1.0 if design.kernel is None else design.kernel.order_factor


@dataclass(frozen=True)
class FeasibleAlpha:
    """The feasible dual point of a pass's sums: ``D = linear - 1/2 ||w||^2 - 1/2 constant^2``.

    ``w``: w(alpha). ``size``: an upper bound on ``sum |alpha|``. ``largest_sum``: the largest
    absolute entry of ``sum s alpha c``, from which w follows. ``scaled``: the largest relative
    reduction of any alpha by the coupling. ``as_read``: whether alpha is the one that the rows were
    summed with, apart from that scaling: no part of the mixture was dropped, and no row in the
    smoothing band was raised.
    """

    linear: float
    w: FloatArray
    constant: float
    size: float
    largest_sum: float
    scaled: float
    as_read: bool

    @classmethod
    def of(cls, program: ColumnPass, sums: Sums) -> FeasibleAlpha | None:
        """Scale each part of the mixture to the coupling's totals; None if no part can meet them.

        If all parts are feasible, so is their mixture.
        """
        frame, summed = program.frame, program.summed
        scales = [frame.scales(vector) for vector in sums.vectors]
        theta = [w if s is not None else 0.0 for w, s in zip(program.weights, scales, strict=True)]
        known = [scale for scale in scales if scale is not None]
        if not known:
            return None
        linear, v = 0.0, np.zeros(sums.vectors.shape[2])
        for weight, scale, value, vector in zip(
            theta, scales, sums.values, sums.vectors, strict=True
        ):
            if scale is not None:
                linear += weight / sum(theta) * frame.value(scale, value)
                v += weight / sum(theta) * (scale @ vector)
        whole = len(known) == len(scales)
        return cls(
            linear=linear,
            w=summed.features(v[: summed.width]),
            constant=float(v[summed.width]) if frame.constant else 0.0,
            size=float(np.dot(theta, sums.sizes)),
            largest_sum=float(np.max(np.abs(v), initial=0.0)),
            scaled=max(float(np.max(np.abs(s[: frame.buckets] - 1.0))) for s in known),
            as_read=whole and not any(s[frame.buckets :].any() for s in known),
        )

    @property
    def square(self) -> float:
        """``||w(alpha)||^2`` without the constant."""
        return float(self.w @ self.w)

    def apart(self, program: ColumnPass) -> float:
        """``||w - w(alpha)||``, the constant's coefficients included."""
        frame, point = program.frame, program.point
        own = program.constant / frame.constant if frame.constant else 0.0
        return float(np.hypot(np.linalg.norm(point.w - self.w), own - self.constant))


@dataclass(frozen=True)
class BestOffsets:
    """The ``best`` multipliers for a point's w, one a group, near the point's own.

    ``before``: the point's own multipliers. ``changes``: the change of P, by group, from ``before``
    to ``best``. ``passed``: the total weight of breakpoints in between. ``ends`` (2, groups): an
    interval that holds all best multipliers.
    """

    before: Sequence[float]
    best: Sequence[float]
    changes: Sequence[float]
    passed: float
    ends: FloatArray

    @classmethod
    def of(cls, program: ColumnPass, sums: Sums) -> BestOffsets:
        """Find the best multipliers from the breakpoints that the shards have returned."""
        frame, before = program.frame, _multiplier(program.point, program.frame)
        best, changes, passed = list(before), [], 0.0
        ends = np.array([[-np.inf, np.inf]] * frame.groups or [[0.0, 0.0]]).T
        for g, total in enumerate(frame.total.tolist() if frame.has_breakpoints else []):
            breakpoints = Breakpoints.join(each[g] for each in sums.breakpoints)
            best[g], change, weight = breakpoints.best(
                before[g], total, sums.sample.max_score_error
            )
            passed += weight
            changes.append(change)
            ends[:, g] = breakpoints.ends(total)
        return cls(before, best, changes, passed, ends)

    @property
    def shift(self) -> float:
        """The largest change of any group's multiplier."""
        return float(np.max(np.abs(np.subtract(self.best, self.before)), initial=0.0))

    @property
    def largest(self) -> float:
        """The largest absolute multiplier before or after the change."""
        return float(np.max(np.abs([*self.before, *self.best]), initial=0.0))


def _multiplier(point: Point, frame: SumLayout) -> tuple[float, ...]:
    """The point's multipliers, one a group; its intercept stands for all if it has none."""
    return point.multiplier or (point.intercept,) * frame.groups


def _program(
    design: Design,
    problem: Problem,
    point: Point,
    certify: str,
    source: Design | None,
    keep: bool,
    tuning: ColumnTuning,
) -> ColumnPass:
    """Make the pass over the rows, in the precision that the point's gap needs.

    Arguments as for `close_explicit`.
    """
    wide = certify == "float64"
    summed = source if wide and source is not None else design
    behind = None if source is None else _on_host(source)
    solved, true, frame = _on_host(design), source or design, SumLayout.of(problem, summed.data)
    multiplier = _multiplier(point, frame)
    coef, margin = summed.coef(point.w), 0.0
    far = point.gap > tuning.near_gap * abs(point.primal)
    if not (wide or far or frame.curved) and true.kernel is not None:
        margin = score_doubt(true, true.coef(point.w))
    return ColumnPass(
        solved=solved,
        summed=summed,
        source=behind,
        dtype=np.float64 if wide else np.float32,
        problem=problem,
        frame=frame,
        point=point,
        coef=coef,
        exact_coef=coef if true is summed else true.coef(point.w),
        mu=np.array(multiplier) if frame.groups > 1 else float(sum(multiplier)),
        keep=keep,
        margin=margin,
        # Rows that certainly have alpha = 0 and no loss add nothing: float32 is enough for them.
        support_in_float64=margin > 0
        and point.gap < tuning.support_float64_gap * abs(point.primal),
        tuning=tuning,
    )


def _on_host(design: Design) -> Design:
    """Return the design whose kernel entries are computed on the host; itself if they are."""
    if design.kernel is None or design.kernel.on_host is design.kernel:
        return design
    return replace(design, kernel=design.kernel.on_host)


def _with_middle(point: Point) -> Point:
    """Return the point with an alpha in the middle of every box, to be scaled to the coupling.

    It is the alpha that w = 0 implies if every p is 0, as in all problems whose total is not 0.
    With any other w the rows in the smoothing band can have too little room.
    """
    middle = Reading(np.zeros_like(point.coef), 0.0, 1.0)
    if len(point.readings) == 1 and not np.any(point.readings[0].coef):
        raise InputError("no alpha within the box meets the coupling; use a smaller nu")
    return replace(point, readings=(middle,), sides=None)


def _rounding(
    program: ColumnPass,
    sums: Sums,
    alpha: FeasibleAlpha,
    offsets: BestOffsets,
    values: tuple[float, float],
) -> Rounding:
    """Bounds on the rounding errors of the gap, P and D; ``values``: P and D.

    First the errors of summation: P and D are summed from the same computed columns, the published
    machine has the same coefficients, and ``length_errors`` bounds the error of ``||w||^2``. Then
    the errors of float32 columns, estimated from the sample.
    """
    primal, dual = values
    summed, frame, point, data = program.summed, program.frame, program.point, program.summed.data
    half_w_sq, half_alpha_sq = 0.5 * float(point.w @ point.w), 0.5 * alpha.square
    largest = frame.largest(summed.column_bound)
    tile = min(tile_rows(summed), data.chunk_rows)
    # (Rows with float64 columns and the other rows are summed in separate blocks.)
    blocks = tile // program.block + 2
    additions = program.block + blocks + 2 * (data.shard_rows // tile + 1) + data.n_shards
    size = float(np.sum(np.abs(program.coef))) + (abs(program.constant) + offsets.largest)
    error = score_sum_error(summed.width, largest, size, order_factor(summed))
    own = (sums.steep + 0.5 * sums.bend * error) * error
    # (Terms that cancel in P, such as a nu-SVC's rho, count with their own size.)
    terms = abs(sums.loss) + half_w_sq + float(frame.total @ np.abs(offsets.before))
    own += UNIT_ROUNDOFF * additions * (abs(primal) + terms + sums.steep)
    along = float(np.sum(np.abs(summed.coef(alpha.w)))) + abs(alpha.constant)
    other = UNIT_ROUNDOFF * additions * alpha.size * largest * along
    products = (summed.width + summed.rank) * alpha.largest_sum
    other += UNIT_ROUNDOFF * products * summed.coef_size(alpha.w)
    terms = abs(alpha.linear) + half_alpha_sq
    other += UNIT_ROUNDOFF * additions * (abs(dual) + terms + alpha.size)
    true = program.source or program.solved
    lengths = true.length_errors(np.stack([point.w, alpha.w], axis=1))
    own, other = own + 0.5 * float(lengths[0]), other + 0.5 * float(lengths[1])
    together = own + other
    # The summed columns are float32 numbers; the published machine has float64 ones.
    n, sample = data.n_rows, sums.sample
    seen_primal, seen_dual = sample.bounds(n, alpha.w, alpha.scaled)
    # If the multiplier has passed a row's breakpoint, the row's error moves P the other way.
    crossed = 2.0 * offsets.passed * sample.max_score_error
    of_primal, of_dual = own + seen_primal + crossed, other + seen_dual
    of_gap, reach = of_primal + of_dual, program.tuning.sample_factor * sample.max_score_error
    if alpha.as_read and program.margin - offsets.shift >= reach > 0:
        # Every row that is not certainly on its side had float64 columns. The other rows move P
        # and D equally, apart from the scaling of alpha to the coupling's total.
        left = sums.left + alpha.scaled * alpha.size
        rest = sample.gap_error(n, point.w - alpha.w, alpha.scaled) + left * reach
        of_gap = min(of_gap, together + rest)
    return Rounding(float(of_gap), float(of_primal), float(of_dual), together)


def _evidence(
    program: ColumnPass, sums: Sums, pair: SeparatePair, alpha: FeasibleAlpha, offsets: BestOffsets
) -> Evidence:
    """Collect the scores and error bounds from which a ledger (what is proved of rows) is made."""
    summed, frame, coef = program.summed, program.frame, program.coef
    largest = frame.largest(summed.column_bound)
    size = float(np.sum(np.abs(coef))) + (abs(program.constant) + offsets.largest)
    # The scores of the published machine have float64 columns; the sample bounds the difference.
    slack = summed.score_error(coef, np.float64)
    slack += program.tuning.sample_factor * sums.sample.max_score_error
    scores = np.concatenate(sums.scores)
    sums.scores.clear()  # (they are among the largest arrays of a fit)
    found = Evidence(
        scores,
        float(score_sum_error(summed.width, largest, size, order_factor(summed)) + slack),
        pair.radius,
        (offsets.ends[0], offsets.ends[1]),
        in_float32=True,
    )
    if not sums.alpha:
        return found
    own, offset = (program.source or program.solved).coef(alpha.w), frame.constant * alpha.constant
    return replace(found, dual=pair.dual_point(own, offset, sums.alpha))
