"""The stage of a path: rows prepared once, with a solver for all points of the grid and all folds.

A stage holds the features phi only. Each problem is a ``Dual`` over all rows. In a fold's dual the
held-out rows have the weight 0, so their alpha is 0: they cost nothing in the solve, and their
scores, which every certificate computes, validate the fold.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.certificate import SquaredNorm, kkt_violation, prove
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import FREE, Dual, Mu
from bigscreen.problems.point import relative_gap
from bigscreen.screening.regions import Scores


@dataclass(frozen=True)
class PathPoint:
    """The solution of a point of a path, certified over all rows.

    Parameters
    ----------
    alpha : float64 (n,)
        Feasible dual variables.
    scores : Scores
        Scores of w(alpha) over ALL rows, without an unpenalised offset.
    w_sq, primal, dual : float
        ``||w(alpha)||^2``, P(w(alpha), mu) and D(alpha), summed in float64.
    mu : float or float64 (groups,)
        The best multiplier for these scores (0 without a coupling).
    gap : float
        ``P - D``, the Frank-Wolfe gap over all rows. nan if the kernel is not positive
        semidefinite; then P is nan as well.
    rounding, primal_rounding, dual_rounding : float
        Bounds on the rounding errors of ``gap``, ``primal`` and ``dual``; infinite if unknown.
    counts : dict
        Counts of the solve: steps or epochs, kernel entries, checks.
    violation : float or None
        If the kernel is not positive semidefinite: the violation of the KKT conditions
        (``dual_violation``), whose rounding error ``rounding`` then bounds.
    """

    alpha: FloatArray
    scores: Scores
    w_sq: float
    primal: float
    dual: float
    mu: Mu
    gap: float
    rounding: float
    counts: dict[str, int] = field(default_factory=dict)
    violation: float | None = None
    primal_rounding: float = np.inf
    dual_rounding: float = np.inf

    @property
    def relative_gap(self) -> float:
        """The gap divided by |P|; 0 if both are 0."""
        return relative_gap(self.gap, self.primal)

    @classmethod
    def proved(
        cls,
        dual: Dual,
        alpha: FloatArray,
        scores: Scores,
        definite: bool = True,
        norm: SquaredNorm | None = None,
    ) -> PathPoint:
        """Certify a feasible alpha from the scores of its w(alpha).

        ``definite``: whether the kernel is positive semidefinite; ``norm``: ``||w||^2`` if it is
        known from w itself, None: it follows from the scores.
        """
        proof = prove(dual, alpha, *scores, norm)
        found = cls(
            alpha=alpha,
            scores=scores,
            w_sq=max(proof.w_sq, 0.0) if definite else proof.w_sq,
            primal=proof.primal,
            dual=proof.dual,
            mu=proof.mu,
            gap=proof.gap,
            rounding=proof.rounding.gap,
            primal_rounding=proof.rounding.primal,
            dual_rounding=proof.rounding.dual,
        )
        if definite:
            return found
        bands = np.broadcast_to(scores.slack, len(alpha))
        violation, rounding = kkt_violation(dual, alpha, scores.values, bands)
        nan = float("nan")
        return replace(found, primal=nan, gap=nan, violation=violation, rounding=rounding)


@dataclass(frozen=True)
class PointTask:
    """A point of a path to solve: its dual, a start, the rows decided by rules, and the target.

    Parameters
    ----------
    dual : Dual
        The dual of all rows of the stage.
    alpha : float64 (n,)
        A feasible start.
    decided : int8 (n,)
        ``FREE``, or the bound at which a safe rule has proved the optimum (``dual.AT_LO``, ...).
        Decided rows have this value in ``alpha`` already and are left out of the solve.
    tol : float
        The relative gap to reach.
    deadline : float or None
        Value of ``time.monotonic()`` after which the best point so far is returned.
    dynamic : bool
        Whether to screen with the gap ball (a ball around w, its radius from the gap, that holds
        the optimum) during the solve.
    point : float64 (d,) or None
        A w near the optimum at which a stage of explicit features starts. None: w(alpha).
    """

    dual: Dual
    alpha: FloatArray
    decided: NDArray[np.int8]
    tol: float
    deadline: float | None = None
    dynamic: bool = True
    point: FloatArray | None = None

    @property
    def live(self) -> NDArray[np.int64]:
        """The rows that may move, ascending."""
        return np.flatnonzero((self.decided == FREE) & (self.dual.hi > self.dual.lo))

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline


class Stage(Protocol):
    """A path's solver, with rows prepared once for all points of the grid and all folds."""

    @property
    def norms(self) -> FloatArray:
        """Upper bounds of ``||phi_i||``, float64 (n,), including the 1 of the constant if any."""

    def solve(self, task: PointTask) -> PathPoint:
        """Solve a point to its relative gap, proved over all rows.

        If the task's alpha is a multiple of the last returned alpha, a stage recognises this and
        does not compute its scores again.
        """

    def products(self, coef: FloatArray) -> Scores:
        """Compute the scores ``<w, phi_i>`` of all rows for ``w = sum_j coef_j phi_j``.

        ``coef``: (n,). The result has bounds on the scores' errors, for screening rules.
        """

    def memory(self) -> dict[str, NDArray[Any]]:
        """Return the arrays, by name, that the next solve reuses from earlier solves."""

    def recall(self, memory: dict[str, NDArray[Any]]) -> None:
        """Restore the arrays that `memory` returned, perhaps in another process.

        A resumed path is then the same bit for bit as an uninterrupted one.
        """

    def machine(self, dual: Dual, solved: PathPoint) -> dict[str, Any]:
        """Return a solved point's model by name: ``coef`` and ``constant``, perhaps ``support``.

        Without ``support``, ``coef`` has a coefficient of every column (d,). Otherwise ``support``
        has row numbers, and ``coef`` their coefficients. ``constant`` is the penalised part of the
        offset (0 if there is none).
        """
