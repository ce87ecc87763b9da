"""The closing pass of an exact kernel machine: P, D and the gap of an alpha over ALL rows.

The solver's own scores are not used: the scores of all rows are computed again from the support
rows (`certify.scores`). Rows whose float32 error could account for the gap are computed again in
float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.certificate import (
    Proof,
    can_explain_gap,
    kkt_violation,
    make_certificate,
    prove,
)
from bigscreen.certify.ledger import Evidence
from bigscreen.certify.scores import (
    CarriedScores,
    KernelTiles,
    ProvedScores,
    ScoreProgram,
    ScoreSource,
    SharedEntries,
)
from bigscreen.data.views import Moved
from bigscreen.features.design import Design
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.standard import Linear
from bigscreen.numerics.multiples import find_multiple
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.problems.dual_sums import Arrays, arrays
from bigscreen.problems.point import Certificate, Point
from bigscreen.problems.recipes import Problem


@dataclass(frozen=True)
class ExactTuning:
    """When to compute scores again in float64, and when to reuse the scores of another w.

    Parameters
    ----------
    recompute_share : float
        Compute more rows' scores again in float64 until rounding can account for at most this
        fraction of the gap.
    recompute_support_share : float
        Compute the support vectors' scores again in float64 if their independent rounding errors
        are likely to move P and D together by more than this fraction of the gap.
    reuse_factor : int
        Update the scores of an earlier w, rather than compute them anew, if the rows whose alpha
        has changed are at least this many times fewer than the support vectors. (Changes take
        float64 entries, at twice the time.)
    """

    recompute_share: float = 0.05
    recompute_support_share: float = 1.0
    reuse_factor: int = 2


TUNING = ExactTuning()


def close_exact(
    design: Design,
    problem: Problem,
    point: Point,
    fleet: Fleet,
    certify: str = "float32",
    keep: bool = False,
    tuning: ExactTuning = TUNING,
) -> Certificate:
    """Certify the alpha of an exact kernel machine over all rows.

    Parameters
    ----------
    design, problem, point
        The rows, the problem, and the solver's iterate. Only ``point.alpha`` (n,) is used of it,
        made feasible if rounding, or an early end, has left it infeasible (`feasible_alpha`).
    fleet : Fleet
        Runs one task a shard; the result does not depend on how many workers it has.
    certify : {"float32", "float64"}
        Precision of the kernel's entries; sums are float64 either way. In float32 the entries of
        few rows are shared with the solver, and rows whose rounding could matter to the gap are
        computed again in float64; entries for which float32 is too coarse (``Kernel.precision``)
        are float64 in any case. In float64 nothing is shared with the solver.
    keep : bool
        Keep the scores, as ``evidence``, from which a ledger is made: what is proved of each row.

    Returns
    -------
    Certificate
        ``intercept`` is the offset that is certified, ``multiplier`` the best one for this w.
        ``rounding_bound`` says how far rounding of rows and entries can have moved the gap,
        ``primal_rounding`` and ``dual_rounding`` how far P and D each (a row that is certainly at
        its bound moves both equally; if that is likely to be more than the gap, the support rows
        are computed again). Errors of entries are taken as random: see `Kernel.entry_error`.
        For a kernel that is not positive semidefinite nothing is proved: there is no gap, and
        ``violation`` is the violation of the KKT conditions.
    """
    return score_rows(design, problem, point, fleet, certify, tuning=tuning).certificate(keep)


def score_rows(
    design: Design,
    problem: Problem,
    point: Point,
    fleet: Fleet,
    certify: str = "float32",
    every: bool = False,
    near: ProvedScores | None = None,
    tuning: ExactTuning = TUNING,
) -> ScoredRows:
    """Compute the scores of all rows from which `close_exact` makes its certificate.

    ``point``: the solver's iterate, of which only alpha is used; ``certify``: "float32" or
    "float64", the precision of kernel entries. ``every``: also score rows whose box holds nothing
    but 0, which the gap does not need. ``near``, with ``every``: a w whose scores are proved; if
    this w differs from a multiple of it in few rows, the scores of that multiple are reused and the
    difference is added.
    """
    data, kernel = design.data, design.kernel
    assert kernel is not None and point.alpha is not None
    dual = design.dual(problem)
    alpha = feasible_alpha(design, dual, point.alpha)
    rows = ScoredRows(problem, dual, alpha, design.definite, certify, tuning)
    if not np.any(alpha):
        return rows
    square = design.square if design.definite and certify != "float64" else None
    wide = certify == "float64" or kernel.fast_float64
    narrow = not wide and design.precision is not np.float64
    dtype: type = np.float32 if narrow else np.float64
    if square is not None:
        dtype = square.dtype
    coef, constant = dual.sign * alpha, problem.intercept == "constant"
    program = ScoreProgram.of(design, coef, dtype)
    tiles = KernelTiles(program, fleet, constant)
    source: ScoreSource = tiles if square is None else SharedEntries(program, square, constant)
    if near is not None:
        factor, moved = find_multiple(near.coef, coef)
        if tuning.reuse_factor * len(moved) <= len(program.coef):
            assert program.support.ids is not None
            moved = moved if len(moved) else program.support.ids[:1]
            source = CarriedScores.of(near, factor, moved, coef, tiles, design)
    rows.set_scores(source, np.arange(data.n_rows) if every else np.flatnonzero(dual.reach))
    if not program.is_float64:
        rows.recompute_doubtful(tiles.in_float64)
    rows.certified_in = "float64" if program.is_float64 else "float32"
    return rows


def feasible_alpha(design: Design, dual: Dual, alpha: FloatArray) -> FloatArray:
    """The feasible alpha (n,) near a solver's alpha that is certified and published.

    Rows at a bound stay there if the others can make the coupling hold. If a linear kernel's inner
    products were taken from an origin other than 0, the coefficients are made to add up to 0
    exactly: the published machine uses the rows as they are, and there an error of their sum would
    be multiplied by the length of the origin.
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
        return dual.with_exact_sums(found)
    return found


@dataclass
class ScoredRows:
    """The scores of all rows at a feasible alpha of an exact kernel machine, with error bounds.

    ``scores``: without an offset; ``bands``: how far each may be from the exact score; ``exact``:
    whether a score comes from float64 entries; all (n,), and 0 or False until scores are set.
    ``definite``: whether the kernel is positive semidefinite. ``certified_in``: "float32" or
    "float64", the precision of the entries that most scores come from.
    """

    problem: Problem
    dual: Dual
    alpha: FloatArray
    definite: bool = True
    certified_in: str = "float32"
    tuning: ExactTuning = TUNING

    def __post_init__(self) -> None:
        """Set all scores, error bounds and ``exact`` to 0 until a source computes them."""
        self.scores, self.bands = np.zeros(len(self.dual)), np.zeros(len(self.dual))
        self.exact = np.zeros(len(self.dual), np.bool_)
        self._proof: Proof | None = None

    def set_scores(self, source: ScoreSource, rows: NDArray[np.int64]) -> None:
        """Set the scores of these rows, in ascending order, from a source."""
        self.scores[rows], self.bands[rows], self.exact[rows] = source(rows)
        self._proof = None

    def recompute_doubtful(self, exact: ScoreSource) -> None:
        """Compute rows again in float64 until rounding is a small part of the gap."""
        # (More exact scores can make the gap smaller, so that more rows matter.)
        while len(rows := self.doubtful_rows()):
            self.set_scores(exact, rows)
        if len(rows := self.rows_moving_both()):
            self.set_scores(exact, rows)

    @property
    def proof(self) -> Proof:
        """P, D and the gap from the present scores; computed again after scores have changed."""
        if self._proof is None:
            given = self.dual, self.alpha, self.scores, self.bands
            self._proof = prove(*given, parts=self._parts)
        return self._proof

    @cached_property
    def _parts(self) -> Arrays:
        """The arrays of the dual for compiled loops, made once."""
        return arrays(self.dual)

    @property
    def proved(self) -> ProvedScores:
        """The scores of w(alpha): the scores of a nearby w can be computed from them.

        All rows must have been scored.
        """
        return ProvedScores(self.dual.sign * self.alpha, self.scores, self.bands, self.exact)

    def doubtful_rows(self) -> NDArray[np.int64]:
        """The fewest rows to recompute so that rounding is a small part of the gap, ascending."""
        share = self.tuning.recompute_share
        if not self.definite:
            worst, _ = kkt_violation(self.dual, self.alpha, self.scores, self.bands)
            rough = (self.dual.reach > 0) & (self.bands > share * worst) & ~self.exact
            return np.flatnonzero(rough)
        gap, doubts = self.proof.gap, np.where(self.exact, 0.0, self.proof.doubts)
        if not can_explain_gap(float(np.sum(doubts)), gap, share):
            return np.empty(0, np.int64)
        order = np.argsort(-doubts, kind="stable")
        beyond = np.cumsum(doubts[order][::-1])[::-1]  # the sum of this doubt and all smaller ones
        rows = order[beyond > share * gap]
        return np.sort(rows[doubts[rows] > 0])

    def rows_moving_both(self) -> NDArray[np.int64]:
        """The support rows, if errors of their scores are likely to move P and D beyond the gap.

        Both contain ``1/2 ||w||^2``. Errors of rows are nearly independent, so that their bounds
        add up in squares. (It happens early if ||w|| is tiny compared with alpha, as in a nu-SVC.)
        """
        part = np.where(self.exact, 0.0, self.alpha * self.bands)
        both = 0.5 * float(np.linalg.norm(part))
        if not self.definite or not can_explain_gap(
            both, self.proof.gap, self.tuning.recompute_support_share
        ):
            return np.empty(0, np.int64)
        return np.flatnonzero(part)

    def certificate(self, keep: bool = False) -> Certificate:
        """Make the certificate of the scores: P, D, their gap and bounds on rounding errors.

        ``keep``: with the evidence from which a ledger (what is proved of each row) is made.
        """
        proof, dual, alpha = self.proof, self.dual, self.alpha
        primal, gap, rounding = proof.primal, proof.gap, proof.rounding
        offset, left, evidence = self.problem.offset(proof.mu), None, None
        if self.problem.intercept == "constant":
            offset = float((dual.sign * alpha).sum())
        if not self.definite:
            left, doubt = kkt_violation(dual, alpha, self.scores, self.bands)
            primal = gap = np.nan
            rounding = rounding._replace(gap=doubt)
        elif keep:
            radius = float(np.sqrt(gap + rounding.gap))  # w is w(alpha) itself
            evidence = Evidence(self.scores, self.bands, radius)
        return make_certificate(
            primal,
            proof.dual,
            gap,
            rounding,
            certified_in=self.certified_in,
            rows=len(dual),
            support=int(np.count_nonzero(alpha)),
            intercept=offset,
            multiplier=() if dual.coupling is None else tuple(np.atleast_1d(proof.mu).tolist()),
            psd=self.definite,
            violation=left,
            evidence=evidence,
        )
