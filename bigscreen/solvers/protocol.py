"""A solver, the run that it is handed, and the check that it calls at its pass boundaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from bigscreen.features.design import Design
from bigscreen.fleet.protocol import Fleet
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import Problem
from bigscreen.screening.regions import Ball


class Reach(NamedTuple):
    """How far alpha can be from 0: the sum of the rows' reach, and the bounds' extremes.

    A variable's bound is the row's reach or, of squared losses, half of it.
    """

    total: float
    least: float
    most: float


class Near(NamedTuple):
    """A machine near the optimum: w and the constant's coefficient (r, or r + 1), and some D."""

    x: FloatArray
    dual: float


@dataclass(frozen=True)
class Run:
    """One solve: a problem on the rows of a design, where its shards run, and what it begins from.

    Parameters
    ----------
    design : Design
    problem : Problem
    fleet : Fleet
    start : float64 (n,) or None
        A feasible alpha to begin from where no checkpoint is gone on with.
    near : Near or None
        A machine to begin from, for solvers that hold w, of a problem without a coupling.
    resident : float
        Part of the rows that may be kept in memory between passes; what is less than all is of use
        to some solvers.
    spare : int
        Bytes, of all processes together, that what is worth it may take while a step lasts.
    folder : Path or None
        Where checkpoints go (about every 30 s, and at Ctrl-C); None: no checkpoints.
    of : str
        Which problem checkpoints are of: those of another one are refused.
    resume : bool
        Go on from the newest checkpoint in ``folder``.
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
        """The folder of a checkpoint to go on from."""
        return self.folder if self.resume else None

    @cached_property
    def reach(self) -> Reach:
        """That of the rows, summed shard by shard."""
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
            most = float(np.maximum(most, np.max(bound, initial=0.0)))  # a nan stays one
            total += float(reach.sum())
        return Reach(total, least, most)


@dataclass(frozen=True)
class Verdict:
    """What ``check`` answers a solver that has to go on.

    ``region`` holds w* around the point's w, None where nothing can be screened;
    ``restart`` asks to take back every row that was screened; ``doubted`` says that the closing
    pass found a gap much wider than the point's own: rounding has come to tell. ``ahead``: once few
    rows are near their kink another solver takes over, which looks at all of them anyway.
    """

    region: Ball | None = None
    restart: bool = False
    doubted: bool = False
    ahead: bool = False


Save = Callable[[Path, dict[str, Any]], None]
"""``save(folder, meta)`` writes a checkpoint of a solver."""


class Check(Protocol):
    """The hinge between a solver and ``fit``: every solver calls it at its pass boundaries.

    ``target`` is the relative gap at which it would look closer; it may fall with every call.
    """

    @property
    def target(self) -> float: ...

    def __call__(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        """None: stop here."""

    def expired(self) -> bool:
        """Whether there is no time left for anything but the next call."""

    def pause(self, save: Save | None = None) -> None:
        """Where Ctrl-C was pressed, stop within a pass; who goes on comes to the same bits.

        ``save`` keeps what the pass has done; without it the pass is begun anew. Raises Paused.
        """

    def restored(self, meta: dict[str, Any]) -> None:
        """Receives the ``meta`` of the checkpoint that the solver goes on from."""


class Solver(Protocol):
    """A solver: moves from point to point until ``check`` answers None."""

    def solve(self, run: Run, check: Check) -> Point:
        """Solve until ``check`` answers None; returns the last point.

        Raises InputError for a problem or a design that the solver is not made for.
        """
