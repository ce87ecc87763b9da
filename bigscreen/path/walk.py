"""A walk along a path: one problem solved at every value of a grid, with a certificate for each.

Points are solved in the order of the grid. Each starts at the previous solution, multiplied by the
factor by which the box of the dual variables has grown, if there is one. Safe rules prove from the
previous solutions at which bound some dual variables are, and their rows are left out of the solve.
The stage goes on screening while it solves, and proves the gap over all rows, including these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.fit.loop import OVERFLOW_MESSAGE, check_box, explain_overflow
from bigscreen.numerics.rows import FloatArray
from bigscreen.path.stage import PathPoint, PointTask, Stage
from bigscreen.problems.dual import FREE, Dual
from bigscreen.problems.point import ROUNDING_FIELDS
from bigscreen.problems.recipes import Problem, refuse_uncommon
from bigscreen.screening.regions import Past
from bigscreen.screening.sequential import PathRule, Screened, screen

Start = Callable[[Dual, float], tuple[FloatArray, FloatArray | None] | None]
"""A function from a dual and its grid value to a start (alpha, w or None), or to None."""

Published = Callable[[Stage, Dual, PathPoint], PathPoint]
"""A function that adds to a point's error bounds the errors of the model that is published for it.
The model's features may differ from the stage's by rounding."""


@dataclass(frozen=True)
class PathSettings:
    """Settings of a walk; they do not change the optima.

    Parameters
    ----------
    tol : float
        Relative gap of every point.
    rules : sequence of PathRule
        Screening rules applied before every point except the first.
    dynamic : bool
        Whether to screen with the gap ball during a solve.
    warm : bool
        Whether to start each point at the previous solution.
    alone : bool
        Whether to record also which rows each rule would decide without the other rules; it costs
        a few passes over the rows for each rule.
    deadline : float or None
        Value of ``time.monotonic()`` after which solves return their best point.
    published : callable or None
        ``published(stage, dual, solved)`` returns the point with the rounding bounds of the
        published model, if its features differ from the stage's (see `path.feature_errors`).
    rounding_fraction : float
        With ``published``, stages solve to a gap that is smaller than ``tol`` by this part, which
        leaves room for the errors that ``published`` adds.
    """

    tol: float = 1e-3
    rules: Sequence[PathRule] = ()
    dynamic: bool = True
    warm: bool = True
    alone: bool = True
    deadline: float | None = None
    published: Published | None = None
    rounding_fraction: float = 0.05

    @property
    def aim(self) -> float:
        """The relative gap to which the stage solves."""
        return self.tol if self.published is None else (1 - self.rounding_fraction) * self.tol

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline


@dataclass(frozen=True)
class Step:
    """A solved point of a path for one machine, with its problem and its record.

    Attributes
    ----------
    problem : Problem
    dual : Dual
        The dual of all rows.
    solved : PathPoint
    record : dict
        JSON-able: value, primal, dual, gap, relative_gap, rounding, primal_rounding, dual_rounding
        (bounds on the rounding errors of gap, primal and dual), rows (how many rows have a box of
        more than one value), left (how many of them the rules left to the solver), screened (for
        each rule, and for all together, rows at lo, hi and zero), support, seconds of rules and
        solver, counts of the stage, and init: whether the solve had no earlier point to start
        from. If the kernel is not positive semidefinite, primal, primal_rounding and the gaps are
        None, and there is a violation.
    """

    problem: Problem
    dual: Dual
    solved: PathPoint
    record: dict[str, Any]

    @property
    def past(self) -> Past:
        """The point as screening rules take it: value, dual, alpha, scores, norm and gap."""
        own = self.solved
        gap = own.gap + own.rounding
        return Past(self.record["value"], self.dual, own.alpha, own.scores, own.w_sq, gap)

    @property
    def offset(self) -> float:
        """The decision function's offset, without the penalised part, which the scores include."""
        return self.problem.offset(self.solved.mu)

    @property
    def multiplier(self) -> tuple[float, ...]:
        """The coupling's multipliers, one for each group (a single 0 without a coupling)."""
        return tuple(np.atleast_1d(self.solved.mu).tolist())

    @property
    def decision(self) -> FloatArray:
        """The decision function of every row, float64 (n,), including rows of weight 0."""
        return self.solved.scores.values + self.offset


class Walk:
    """Solves one problem along a grid of values.

    Parameters
    ----------
    stage : Stage
    problem : Problem
        The problem at any value.
    y : array (n,)
        Label codes or targets of all rows of the stage.
    weights : float64 (n,)
        Row weights, 0 if a row is held out.
    values : float64 (points,), ascending
    settings : PathSettings
    start : callable or None
        ``start(dual, value)`` returns a start for the first point: an alpha (n,), and the w that it
        was computed from (see `PointTask`) or None; or returns None.
    """

    def __init__(
        self,
        stage: Stage,
        problem: Problem,
        y: NDArray[Any],
        weights: FloatArray,
        values: FloatArray,
        settings: PathSettings,
        start: Start | None = None,
    ) -> None:
        """Keep the parameters; nothing is solved yet.

        ``before`` is the last solved step; None at first.
        """
        refuse_uncommon(problem)
        self.start = start
        self.stage, self.problem, self.settings = stage, problem, settings
        self.y, self.weights, self.values = y, weights, values
        self.before: Step | None = None
        self.end: Step | None = None
        """The grid's last point, solved before the others, if a rule needs it."""

    @cached_property
    def _norms(self) -> FloatArray:
        """Upper bounds of ``||phi_i||``, float64 (n,), computed when a rule first needs them."""
        return self.stage.norms

    @property
    def needs_both_sides(self) -> bool:
        """Whether a rule needs the grid's last point to be solved before the others."""
        return any(rule.needs_both_sides for rule in self.settings.rules) and len(self.values) > 1

    def step(self, k: int) -> Step:
        """Solve point k of the grid; points must be requested in the order of the grid.

        If a rule needs the last point first, it is solved with the first request.
        """
        if self.needs_both_sides and self.end is None:
            self.end = self._solve(len(self.values) - 1)
        if self.end is not None and k == len(self.values) - 1:
            return self.end
        self.before = self._solve(k)
        return self.before

    def _solve(self, k: int) -> Step:
        """Solve point k: choose a start, decide rows by the rules, let the stage solve the rest."""
        value, settings, before = float(self.values[k]), self.settings, self.before
        began = time.perf_counter()
        problem = self.problem.at(value)
        dual = problem.dual(self.y, self.weights)
        check_box(np.maximum(dual.hi, -dual.lo), partial(np.arange, len(dual)))
        alpha, point = _start(problem, dual, before if settings.warm else None), None
        if before is None and self.start is not None:
            alpha, point = self.start(dual, value) or (alpha, None)
        decided, screened = np.full(len(dual), FREE), {}
        # (After the deadline there is no solve that screening could speed up.)
        if before is not None and settings.rules and not settings.is_late:
            found = self._screen(dual, value, before)
            decided, screened = found.decided, found.counts
        if screened and any(screened["all"].values()):
            alpha = dual.feasible(dual.with_decisions(decided, alpha), decided != FREE)
        else:
            alpha = dual.feasible(alpha)
        ruled = time.perf_counter()
        of_walk = settings.aim, settings.deadline, settings.dynamic
        task = PointTask(dual, alpha, decided, *of_walk, point)
        with explain_overflow():
            solved = self.stage.solve(task)
            said = solved
            if settings.published is not None:
                said = settings.published(self.stage, dual, solved)
        ended = time.perf_counter()
        rows = int(np.count_nonzero(dual.hi > dual.lo))
        known = sum(screened["all"].values()) if screened else 0
        record = {
            "value": value,
            **_proof(said, value),
            "rows": rows,
            "left": rows - known,
            "screened": screened,
            "support": int(np.count_nonzero(solved.alpha)),
            "seconds": {"rules": ruled - began, "solver": ended - ruled},
            "counts": dict(solved.counts),
            "init": before is None,
        }
        return Step(problem, dual, solved, record)

    def _screen(self, dual: Dual, value: float, before: Step) -> Screened:
        """Apply the rules to the point at ``value``, from the previous solution and the end point.

        Returns the decision for every row, and counts of decided rows for each rule.
        """
        past = [before.past] if self.end is None else [before.past, self.end.past]
        rules, alone = self.settings.rules, self.settings.alone
        return screen(dual, value, rules, past, self.stage.products, self._norms, alone)


def _proof(solved: PathPoint, value: float) -> dict[str, Any]:
    """Collect what is proved of a solved point (P, D, gap, errors), by its record's names.

    If the kernel is not positive semidefinite, P and gaps are None, and there is a KKT violation.
    ``value``: the value of the grid, for the error message.
    """
    names = ("primal", "dual", "gap", "relative_gap", "rounding", *ROUNDING_FIELDS)
    proof: dict[str, Any] = {name: getattr(solved, name) for name in names}
    if solved.violation is not None:
        without = ("primal", "gap", "relative_gap", "primal_rounding")
        proof |= {**dict.fromkeys(without), "violation": solved.violation}
    if not np.isfinite([number for number in proof.values() if number is not None]).all():
        raise InputError(f"at {value:g} of the grid {OVERFLOW_MESSAGE}")
    return proof


def _start(problem: Problem, dual: Dual, before: Step | None) -> FloatArray:
    """Return the alpha to start from, float64 (n,): the previous solution scaled, or zeros.

    It is scaled by the factor between the boxes, if there is one. It need not be feasible.
    """
    if before is None:
        return np.zeros(len(dual))
    factor, alpha = problem.factor(before.problem), before.solved.alpha
    return alpha if factor is None else factor * alpha
