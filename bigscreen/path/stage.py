"""The stage of a path: rows prepared once, for all points of the grid and all folds.

A stage knows phi and nothing else. Problems come as a ``Dual`` over all rows; a fold is one whose
held-out rows have the weight 0, so that their box is the point 0: they cost nothing in the solve,
and their scores, which every certificate has, are the fold's validation.
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
    """Where a point of the path was left, certified over all rows.

    Parameters
    ----------
    alpha : float64 (n,)
        Feasible.
    scores : Scores
        Of w(alpha) over ALL rows, without an unpenalised offset.
    w_sq, primal, dual : float
        ``||w(alpha)||^2``, P(w(alpha), mu) and D(alpha), summed in float64.
    mu : float or float64 (groups,)
        The best multiplier for these scores (0 without a coupling).
    gap : float
        ``P - D``, the Frank-Wolfe gap over all rows; nan, and P too, of a kernel that is not
        positive semidefinite.
    rounding, primal_rounding, dual_rounding : float
        Bounds on what rounding can have moved ``gap``, ``primal`` and ``dual`` by; infinite where
        it is not known.
    counts : dict
        What the solve counted: steps or epochs, kernel entries, checks.
    violation : float or None
        Of such a kernel: how far the KKT conditions are from holding (``dual_violation``), which
        ``rounding`` is of.
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
        """``gap / |P|``; 0 where both are 0."""
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
        """The point at a feasible alpha, certified from the scores of its w(alpha).

        ``definite``: whether the kernel is positive semidefinite; ``norm`` as `prove` takes it.
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
    """A point of the path to solve: its dual, where to start, what rules have decided, and how far.

    Parameters
    ----------
    dual : Dual
        Of all rows of the stage.
    alpha : float64 (n,)
        Feasible; where the solve starts.
    decided : int8 (n,)
        ``FREE``, or where a safe rule has proved the optimum to be (``dual.AT_LO``, ...); decided
        rows stand there in ``alpha`` already and are left out of the solve.
    tol : float
        Relative gap.
    deadline : float or None
        Value of ``time.monotonic()`` after which the best point so far is returned.
    dynamic : bool
        Screen with the gap ball during the solve.
    point : float64 (d,) or None
        A w that is near to the optimum, as one is that alpha was read off: where a stage of
        columns starts. None: at w(alpha).
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
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline


class Stage(Protocol):
    """Prepared rows, and the solver that suits them."""

    @property
    def norms(self) -> FloatArray:
        """Upper bounds of ``||phi_i||`` (n,), the constant's 1 included where there is one."""

    def solve(self, task: PointTask) -> PathPoint:
        """Solve to a relative gap, proved over all rows.

        A stage recognises the multiple of the last alpha that it returned, and does not compute
        its scores again.
        """

    def products(self, coef: FloatArray) -> Scores:
        """Scores of ``sum_j coef_j phi_j`` (see ``screening.regions.Products``)."""

    def memory(self) -> dict[str, NDArray[Any]]:
        """Numbers that the next solve takes from those before it."""

    def recall(self, memory: dict[str, NDArray[Any]]) -> None:
        """Go on from what ``memory`` was.

        A path that is resumed in another process comes out bit for bit as if it had not been
        interrupted.
        """

    def machine(self, dual: Dual, solved: PathPoint) -> dict[str, Any]:
        """What the model needs, by name.

        ``coef`` of the columns (m,), or ``support`` row numbers and their ``coef``; ``constant``,
        the part of the offset that is penalised (0 without one).
        """
