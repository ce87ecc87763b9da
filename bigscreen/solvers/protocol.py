"""Interfaces of solvers: `Solver`, the `Run` that it solves, and the `Check` that it calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from bigscreen.data.rows import Rows
from bigscreen.features.design import Design
from bigscreen.fleet.protocol import Fleet
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import Problem
from bigscreen.screening.regions import Ball


class Reach(NamedTuple):
    """How far alpha can be from 0, over all rows (`Dual.reach`: the largest ``|alpha|`` of a row).

    ``total``: the sum of the rows' reach. ``least``, ``most``: the smallest and the largest bound
    of any variable, which is the row's reach or, for squared losses, half of it.
    """

    total: float
    least: float
    most: float


class Case(NamedTuple):
    """One of many problems that share features, and the rows with its own labels and weights."""

    problem: Problem
    rows: Rows


class Near(NamedTuple):
    """A primal point x near the optimum, and ``dual``, the D of a dual point (a bound on P* below).

    ``x``: w (r,), followed by the coefficient of an appended constant and the multipliers of a
    coupling, if the problem has them. ``dual`` may be a guess: it only chooses
    the first smoothing.
    """

    x: FloatArray
    dual: float


@dataclass(frozen=True)
class Run:
    """One solve: a problem on the rows of a design, the fleet that runs shards, and a start.

    Parameters
    ----------
    design : Design
    problem : Problem
    fleet : Fleet
    start : float64 (n,) or None
        A feasible alpha to start from, unless the run resumes a checkpoint.
    near : Near or None
        A w to start from, for solvers in the primal.
    resident : float
        Fraction of the rows that may be kept in memory between passes. (Some solvers can use only
        1.)
    spare : int
        Bytes of all processes together that a solver may use for caches while a step lasts.
    folder : Path or None
        Where checkpoints go (about every 30 s, and at Ctrl-C); None: no checkpoints.
    of : str
        Identifies the problem: checkpoints of another problem are refused.
    resume : bool
        Continue from the newest checkpoint in ``folder``.
    """

    design: Design
    problem: Problem
    fleet: Fleet
    start: FloatArray | None = None
    resident: float = 1.0
    spare: int = 0
    folder: Path | None = None
    of: str = ""
    resume: bool = False
    near: Near | None = None

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the checkpoint to resume, or None."""
        return self.folder if self.resume else None

    @cached_property
    def reach(self) -> Reach:
        """The reach of all rows, summed shard by shard."""
        data = self.design.data
        total, least, most = 0.0, np.inf, 0.0
        for s in range(data.n_shards):
            start, stop = data.shard(s)
            if data.n_shards == 1:
                dual = self.design.dual(self.problem)
            else:
                dual = self.problem.dual(data.y(start, stop), data.weights(start, stop))
            reach = dual.reach
            bound = reach if dual.curve is None else 0.5 * reach
            least = float(np.minimum(least, np.min(bound, initial=np.inf)))
            most = float(np.maximum(most, np.max(bound, initial=0.0)))  # (keeps NaN)
            total += float(reach.sum())
        return Reach(total, least, most)


@dataclass(frozen=True)
class Verdict:
    """The answer of `Check` to a solver that has to continue.

    Parameters
    ----------
    region : Ball or None
        A ball around the point's w that contains w*; None if nothing can be screened.
    restart : bool
        Take back every row that was screened.
    doubted : bool
        The closing pass found a gap much wider than the point's own: rounding dominates.
    ahead : bool
        Another solver, which scores all rows, takes over once few rows are near their hinge point.
    """

    region: Ball | None = None
    restart: bool = False
    doubted: bool = False
    ahead: bool = False


Save = Callable[[Path, dict[str, Any]], None]
"""``save(folder, meta)`` writes a checkpoint of a solver."""


class Check(Protocol):
    """What every solver calls after each pass: it records progress, and decides when to stop."""

    @property
    def target(self) -> float:
        """Relative gap at which the closing pass runs; it may fall with every call."""

    def __call__(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        """Record a point and its counts; returns None if the solver should stop."""

    def expired(self) -> bool:
        """Whether the time budget is used up: the solver should call ``check`` next."""

    def pause(self, save: Save | None = None) -> None:
        """Stop within a pass if Ctrl-C was pressed; a resumed run has the same bits.

        ``save`` writes what the pass has done; without it a resumed run repeats the pass.

        Raises
        ------
        Paused
            If Ctrl-C was pressed.
        """

    def restored(self, meta: dict[str, Any]) -> None:
        """Receive the ``meta`` of the checkpoint that the solver resumes."""


class Solver(Protocol):
    """A solver of one problem: moves from point to point until ``check`` returns None."""

    def solve(self, run: Run, check: Check) -> Point:
        """Solve until ``check`` returns None; returns the last point.

        Raises
        ------
        InputError
            For a problem or a design that the solver does not support.
        """
