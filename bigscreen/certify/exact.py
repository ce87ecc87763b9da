"""The closing pass of the exact kernel machine: P, D and the gap of an alpha over ALL rows.

Alpha is the machine: ``w = sum_j s_j alpha_j phi_j`` is never written down, so the scores of all
rows are computed again from the support rows alone, one tile of the kernel matrix at a time, and
everything else follows from scores: ``||w||^2 = sum_j s_j alpha_j u_j``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.ledger import Evidence
from bigscreen.data.layout import take
from bigscreen.data.rows import Rows
from bigscreen.features.design import Design
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.base import FLOAT64, Kernel, phi_norms
from bigscreen.kernels.moved import Moved
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.square import alike, spread
from bigscreen.kernels.standard import Compiled, Linear
from bigscreen.numerics.multiples import ULPS, nearest
from bigscreen.numerics.rows import FloatArray, njit
from bigscreen.problems.dual import Dual, Mu, moves
from bigscreen.problems.dual_sums import GRADIENT_ERROR
from bigscreen.problems.point import Certificate, Point, relative
from bigscreen.problems.recipes import Problem
from bigscreen.problems.violation import unit, violation

ROUNDING_PART = 0.05
"""Part of the gap that float32 entries may have moved it by; rows are computed again until then."""

MOVED_PART = 1.0
"""The same of what P and D may have been moved by together, by independent errors."""

SUM_ERROR = 64 * 2.0**-53
"""Relative error of numpy's pairwise float64 sums of up to 2^55 numbers, and of their terms."""

SCORE_ERROR = 2.0**-51
"""What the float64 sum of a score is off, as a part of its terms' size times their number's root:
partial sums err at random."""

PART = 1024
"""Support rows that one task computes with all that come after them."""

CROSSED_ROWS = 2 * PART
"""Support rows from which the entries saved tell."""

FEWER = 2
"""A change of w is summed where its rows are so many times fewer than the support's: in float64,
whose entries take twice as long."""


class Proved(NamedTuple):
    """A w whose scores over ALL rows a closing pass has computed, for another near it.

    ``coef``, float64 (n,): ``s alpha``. ``scores``, ``band`` and ``exact`` (n,): see `ExactSums`.
    """

    coef: FloatArray
    scores: FloatArray
    band: FloatArray
    exact: NDArray[np.bool_]


def close_exact(
    design: Design,
    problem: Problem,
    point: Point,
    fleet: Fleet,
    certify: str = "float32",
    keep: bool = False,
) -> Certificate:
    """Certify the alpha of an exact kernel machine over all rows.

    Parameters
    ----------
    design, problem, point
        What was solved, and where the solver stands: ``point.alpha`` (n,) is all that is used of
        it, made feasible where rounding, or an early end, has left it beside (`certified_alpha`).
    fleet : Fleet
        Runs one task a shard; the result does not depend on how many workers it has.
    certify : {"float32", "float64"}
        Precision of the kernel's entries; sums are float64 either way. In float32 the rows whose
        rounding could tell in the gap are computed again in float64; entries that float32 would
        make coarse (``Kernel.precision``) are float64 whatever is asked for.
    keep : bool
        Keep what a ledger of the rows is made of, too, as ``evidence``.

    Returns
    -------
    Certificate
        ``intercept`` is the offset that is certified, ``multiplier`` the best one for this w.
        ``rounding_bound`` is what the rounding of rows and entries can have moved the gap by,
        ``primal_rounding`` and ``dual_rounding`` P and D each (a row that is certainly at its
        bound moves both alike; if that is likely to be more than the gap, the support rows are
        computed again). Errors of entries are taken as random: see `Kernel.entry_error`.
        Of a kernel that is not positive semidefinite nothing is proved: ``violation`` says how far
        the KKT conditions are from holding, and there is no gap.
    """
    sums, precision = summed(design, problem, point, fleet, certify)
    return sums.certificate(precision, keep)


def summed(
    design: Design,
    problem: Problem,
    point: Point,
    fleet: Fleet,
    certify: str = "float32",
    every: bool = False,
    near: Proved | None = None,
) -> tuple[ExactSums, str]:
    """What `close_exact` certifies from, and the precision of the entries behind it.

    ``every``: also the scores of rows whose box holds nothing but 0, which no gap needs. ``near``,
    with ``every``: where this w differs from a multiple of that one in few rows, scores are those
    of the multiple and of the difference.
    """
    data, kernel = design.data, design.kernel
    assert kernel is not None and point.alpha is not None
    dual = design.dual(problem)
    alpha = certified_alpha(design, dual, point.alpha)
    ids = np.flatnonzero(alpha)
    coef = (dual.sign * alpha)[ids]
    box = dual.reach  # where that is 0 no score is needed
    wide = certify == "float64" or design.precision is np.float64
    sums = ExactSums(problem, dual, alpha, box, definite=design.definite)
    if not len(ids):
        return sums, certify
    support = Operand(data.rows(ids), ids)
    norms = phi_norms(kernel, support)
    longest, size = float(np.max(norms)), float(np.abs(coef) @ norms)
    noise = Noise(spread(coef, alike(support.X)), longest, size)
    program = ScoreProgram(data, kernel, support, coef, noise, np.float64 if wide else np.float32)
    factor, moved = (0.0, ids) if near is None else nearest(near.coef, dual.sign * alpha)
    if near is not None and FEWER * len(moved) <= len(ids):
        sums.carry(near, factor, moved if len(moved) else ids[:1], program, fleet)
    else:
        # Every score anew: what a solver keeps is what is to be proved.
        sums.score(program, np.arange(data.n_rows) if every else np.flatnonzero(box), fleet)
    if not wide:
        exact = replace(program, dtype=np.float64)
        # A gap that grows smaller as its scores are mended leaves less to doubt.
        while len(rows := sums.doubtful()):
            sums.score(exact, rows, fleet)
        sums.score(exact, sums.moving(), fleet)
    return sums, "float64" if wide else "float32"


def certified_alpha(design: Design, dual: Dual, alpha: FloatArray) -> FloatArray:
    """The alpha (n,) that is certified and published for a solver's: feasible, and near to it.

    Rows at a bound stay there if the others can make the coupling hold. Where an inner product was
    taken from another origin than 0, the coefficients add up to 0 to the last bit: what they were
    off by would count with all of the origin's length in the machine for rows where they are.
    """
    alpha = np.clip(alpha, dual.lo, dual.hi)
    if dual.coupling is None:
        return alpha
    for fixed in ((alpha == 0) | (alpha == dual.lo) | (alpha == dual.hi), alpha == 0, None):
        try:
            found = dual.feasible(alpha, fixed)
            break
        except ValueError:
            if fixed is None:
                raise
    data = design.data
    far = isinstance(data, Moved) and data.move.origin is not None
    if far and isinstance(design.kernel, Linear):
        return dual.balanced(found)
    return found


def bands(design: Design, coef: FloatArray, scores: FloatArray) -> FloatArray:
    """How far the precision of entries can have moved each score (n,) of ``sum_j coef_j phi_j``.

    The constant's part is left out.
    """
    data, kernel = design.data, design.kernel
    assert kernel is not None
    ids = np.flatnonzero(coef)
    if not len(ids):
        return np.zeros(data.n_rows)
    support, weights = Operand(data.rows(ids), ids), coef[ids]
    longest = float(np.sqrt(kernel.bound(data.max_sqnorm, data.max_sqnorm)))
    norms = phi_norms(kernel, support)
    noise = Noise(
        spread(weights, alike(support.X)), float(np.max(norms)), float(np.abs(weights) @ norms)
    )
    program = ScoreProgram(data, kernel, support, weights, noise, design.precision)
    return program.kept_bands(scores, data.sqnorms(0, data.n_rows), longest)


@dataclass
class ExactSums:
    """P, D and what rounding can have put between them.

    ``alpha`` is feasible. ``scores``, ``band``: without an offset, and how far each may be from
    the exact one.
    """

    problem: Problem
    dual: Dual
    alpha: FloatArray
    box: FloatArray
    definite: bool = True

    def __post_init__(self) -> None:
        self.scores, self.band = np.zeros(len(self.dual)), np.zeros(len(self.dual))
        self.exact = np.zeros(len(self.dual), np.bool_)

    def score(self, program: ScoreProgram, ids: NDArray[np.int64], fleet: Fleet) -> None:
        """Compute the scores of these rows, ascending."""
        data, exact = program.data, program.dtype is np.float64
        constant, rough = 0.0, 0.0
        if self.problem.intercept == "constant":
            constant = program.coef.sum()
            # Of large coefficients that cancel, the sum has fewer digits than they.
            rough = SCORE_ERROR * float(np.sqrt(len(program.coef)) * np.abs(program.coef).sum())
        support = program.support.ids
        assert support is not None
        own = np.flatnonzero(np.isin(support, ids))
        if Crossed.worth(program, len(own)):
            crossed, rows = Crossed(program, own), support[own]
            scores, band = crossed.total(fleet.each(crossed, crossed.tasks))
            self.scores[rows], self.band[rows] = scores + constant, band + rough
            self.exact[rows] = exact
            ids = np.setdiff1d(ids, rows)
        ends = np.searchsorted(ids, [data.shard(s)[1] for s in range(data.n_shards)])
        parts = [part for part in np.split(ids, ends[:-1]) if len(part)]
        for part, (scores, band) in zip(parts, fleet.each(program, parts), strict=True):
            self.scores[part], self.band[part] = scores + constant, band + rough
            self.exact[part] = exact

    def carry(
        self,
        near: Proved,
        factor: float,
        moved: NDArray[np.int64],
        program: ScoreProgram,
        fleet: Fleet,
    ) -> None:
        """Compute the scores of all rows: a multiple of those near by, and these rows' change.

        The change is summed in float64, so that bands do not grow from one w to the next. What the
        other coefficients are off of their multiple counts as if more had changed.
        """
        change = (self.dual.sign * self.alpha - factor * near.coef)[moved]
        rows = Operand(program.data.rows(moved), moved)
        norms = phi_norms(program.kernel, rows)
        off = 2 * ULPS * program.noise.size / (SCORE_ERROR * float(np.sqrt(len(moved))))
        size = float(np.abs(change) @ norms) + off
        noise = Noise(spread(change, alike(rows.X)), float(np.max(norms)), size)
        added = replace(program, support=rows, coef=change, noise=noise, dtype=np.float64)
        self.score(added, np.arange(len(self.dual)), fleet)
        self.scores += factor * near.scores
        self.band += abs(factor) * near.band
        if self.problem.intercept == "constant":
            self.band += 2 * ULPS * float(np.abs(program.coef).sum())
        self.exact = near.exact.copy()

    @property
    def proved(self) -> Proved:
        """What another w near this one can be certified from, if these are all rows' scores."""
        return Proved(self.dual.sign * self.alpha, self.scores, self.band, self.exact)

    def doubtful(self) -> NDArray[np.int64]:
        """The fewest rows without which rounding is a small part of the gap, ascending."""
        if not self.definite:
            worst = violation(self.dual, self.alpha, self.scores)
            rough = (self.box > 0) & (self.band > ROUNDING_PART * worst) & ~self.exact
            return np.flatnonzero(rough)
        found, doubt = self._sums()
        doubt[self.exact] = 0.0
        order = np.argsort(-doubt, kind="stable")
        beyond = np.cumsum(doubt[order][::-1])[::-1]  # what is left without those before
        rows = order[beyond > ROUNDING_PART * max(found.gap, 0.0)]
        return np.sort(rows[doubt[rows] > 0])

    def moving(self) -> NDArray[np.int64]:
        """The support rows whose float32 scores move P and D together by more than the gap.

        ``1/2 ||w||^2`` is in both. Errors of rows are independent, or nearly so: their bounds add
        up as squares do. (Where ||w|| is tiny beside alpha, as in a nu-SVC, this is soon.)
        """
        part = np.where(self.exact, 0.0, self.alpha * self.band)
        if (
            not self.definite
            or 0.5 * float(np.linalg.norm(part)) <= MOVED_PART * self._sums()[0].gap
        ):
            return np.empty(0, np.int64)
        return np.flatnonzero(part)

    def certificate(self, certified_in: str, keep: bool = False) -> Certificate:
        found = replace(self._sums()[0], certified_in=certified_in)
        if not self.definite:
            return self._stationary(found).checked()
        return replace(found, evidence=self._evidence(found) if keep else None).checked()

    def _evidence(self, found: Certificate) -> Evidence:
        radius = float(np.sqrt(max(found.gap, 0.0) + found.rounding_bound))  # w is w(alpha) itself
        return Evidence(self.scores, self.band, radius)

    def _stationary(self, found: Certificate) -> Certificate:
        """What is left of it where the dual is not concave: D, and the KKT violation."""
        band = float(np.max(self.band[self.box > 0], initial=0.0))
        return replace(
            found,
            primal=np.nan,
            gap=np.nan,
            relative_gap=np.nan,
            psd=False,
            violation=violation(self.dual, self.alpha, self.scores),
            rounding_bound=2.0 * unit(self.dual) * band,
        )

    def _sums(self) -> tuple[Certificate, FloatArray]:
        """The certificate, and what each row's rounding can have moved the gap by."""
        dual, alpha, scores = self.dual, self.alpha, self.scores
        mu: Mu = 0.0
        if dual.coupling is not None:
            live = np.flatnonzero(self.box)
            mu = dual[live].multiplier(scores[live]) if len(live) else 0.0 * np.asarray(dual.total)
        signed = dual.sign * alpha
        w_sq = float(signed @ scores)
        primal = dual.primal(scores, w_sq, mu)
        value = dual.value(alpha, w_sq)
        at = np.abs(dual.spread_mu(mu))
        band = self.band + GRADIENT_ERROR * (np.abs(dual.lin) + np.abs(scores) + at)
        moved = moves(dual, alpha, scores, mu, band)
        summed = SUM_ERROR * moved.terms
        gap = primal - value
        constant = self.problem.intercept == "constant"
        certificate = Certificate(
            primal=primal,
            dual=value,
            gap=gap,
            relative_gap=relative(gap, primal),
            rounding_bound=float(np.sum(moved.gap)) + summed,
            primal_rounding=moved.primal + summed,
            dual_rounding=moved.dual + summed,
            certified_in="",
            rows=len(dual),
            support=int(np.count_nonzero(alpha)),
            intercept=float(signed.sum()) if constant else self.problem.offset(mu),
            multiplier=() if dual.coupling is None else tuple(np.atleast_1d(mu).tolist()),
        )
        return certificate, moved.gap


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

    def __call__(self, ids: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        """(score, band) of these rows, ascending, of one shard."""
        scores, band = np.empty(len(ids)), np.empty(len(ids))
        chunk = ids // self.data.chunk_rows
        for k in np.unique(chunk):
            part = slice(*np.searchsorted(chunk, (k, k + 1)))
            start, stop = self.data.chunk(int(k))
            X, own = self.data.X(start, stop), ids[part]
            rows = X if len(own) == stop - start else take(X, own - start)
            scores[part], band[part] = self.of(Operand(rows, own))
        return scores, band

    def of(self, rows: Operand) -> tuple[FloatArray, FloatArray]:
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
        if self.dtype is np.float64:
            band = FLOAT64 * band
        # The float64 sum itself, whose partial sums err at random.
        rough: FloatArray = SCORE_ERROR * np.sqrt(len(self.coef)) * norms * noise.size
        return band + rough

    def kept_bands(self, scores: FloatArray, sqnorms: FloatArray, farthest: float) -> FloatArray:
        """The same of scores that are there already; ``farthest``: no feature is longer."""
        norms = np.full(len(scores), farthest)
        return self.bands(scores, sqnorms, norms, norms * farthest * self.noise.spread.sum())

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

    @staticmethod
    def worth(program: ScoreProgram, count: int) -> bool:
        """Whether to take this way for so many support rows."""
        # A kernel that somebody else computes might not be symmetric.
        return isinstance(program.kernel, Compiled) and count >= CROSSED_ROWS

    @property
    def order(self) -> NDArray[np.int64]:
        others = np.ones(len(self.program.support), np.bool_)
        others[self.places] = False
        return np.concatenate([self.places, np.flatnonzero(others)])

    @property
    def tasks(self) -> range:
        return range(0, len(self.places), PART)

    def __call__(self, start: int) -> FloatArray:
        """Sums (2, places from start on) of coefficients' and of spreads' entries."""
        program, order, n = self.program, self.order, len(self.places)
        X, end = program.support.X, min(start + PART, n)
        own, sums = order[start:end], np.zeros((2, n - start))
        weights = np.stack([program.coef, program.noise.spread])
        room: NDArray[Any] = np.empty(PART * PART, program.dtype)
        edges = [*range(start, n, PART), *range(n, len(order), PART), len(order)]
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
