"""What a solver is handed: rounds over shards, and the check at its pass boundaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bigscreen.features.design import Design
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import Problem
from bigscreen.screening.regions import Ball


@dataclass(frozen=True)
class Verdict:
    """What ``check`` answers a solver that has to go on.

    ``region`` holds w* around the point's w, None where nothing can be screened;
    ``restart`` asks to take back every row that was screened; ``doubted`` says that the closing
    pass found a gap much wider than the point's own: rounding has come to tell.
    """

    region: Ball | None = None
    restart: bool = False
    doubted: bool = False


class Check(Protocol):
    """The hinge between a solver and ``fit``: every solver calls it at its pass boundaries.

    ``target`` is the relative gap at which it would look closer; it may fall with every call.
    """

    @property
    def target(self) -> float: ...

    def __call__(
        self, point: Point, stats: dict[str, Any], save: Callable[[Path, dict[str, Any]], None]
    ) -> Verdict | None:
        """None: stop here. ``save(folder, meta)`` writes a checkpoint of the solver."""

    def expired(self) -> bool:
        """Whether there is no time left for anything but the next call."""

    def restored(self, meta: dict[str, Any]) -> None:
        """Receives the ``meta`` of the checkpoint that the solver goes on from."""


class Solver(Protocol):
    """A solver: moves from point to point until ``check`` answers None."""

    def run(
        self,
        design: Design,
        problem: Problem,
        fleet: Any,
        check: Check,
        *,
        weight_bound: float,
        resident: bool,
        resume: Path | None,
        start: FloatArray | None,
    ) -> Point:
        """Solve until ``check`` answers None.

        ``start`` is a feasible alpha (n,) to begin from. Raises InputError for a problem or a
        design that the solver is not made for.
        """
