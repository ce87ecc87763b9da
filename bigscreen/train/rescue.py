"""Where a Newton's steps are too many, or stall: an interior point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen.data.memory import MemoryDataset
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.problems.point import Point
from bigscreen.solvers.interior import InteriorPoint
from bigscreen.solvers.newton.near import counted_on
from bigscreen.solvers.protocol import Check, PassedOn, Run, Save, Verdict

MANY = 20
"""Looks of a Newton at all that it has come to after which it may be endless (fits that end seldom
come to 15)."""


@dataclass(frozen=True)
class Rescue:
    """An interior point that solves a problem anew where a Newton's steps do not end.

    For problems that it can solve, of few enough products.

    Parameters
    ----------
    source : Design or None
        The kernel design of the features, which become float64 ones; None: rows are raw features.
    """

    source: Design | None
    name = "interior"
    phase = "solve, by an interior point"

    def watch(self, check: Check, run: Run) -> _Counted:
        """See ``Successor``."""
        return _Counted(check, run.design)

    def go_on(self, run: Run, watch: _Counted, point: Point) -> Point:
        """See ``Successor``."""
        watch.first = False
        return InteriorPoint().solve(replace(run, design=self._wide(run)), watch)

    def _wide(self, run: Run) -> Design:
        """The rows as raw features; those of landmarks are float64."""
        if self.source is None:
            return run.design
        made = nystrom.stored_features(self.source, run.fleet, None, dtype=np.float64).data
        # (Labels and weights are the run's own: its rows may be a fold's, or another fit's.)
        data = run.design.data
        y, weights, n = data.y(0, data.n_rows), data.weights(0, data.n_rows), data.n_rows
        return Design(MemoryDataset(made.X(0, n), y, data.layout.labels, weights))


class _Counted(PassedOn):
    """The check of a Newton's steps, until they are too many, and then of the other's."""

    def __init__(self, check: Check, design: Design) -> None:
        super().__init__(check)
        self.design = design
        self.first, self.ended = True, False
        self.made = self.before = 0
        """Looks of the Newton, and those before the last; rows nearby are none of its own."""
        self.passes = 0, 0

    def __call__(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        if not self.first:
            return self._after(point, stats, save)
        if "decrement" in stats:
            self.before, self.made = self.made, self.made + 1
        self.passes, before = counted_on((0, 0), stats)[0], self.before
        verdict = self.check(
            point,
            {**stats, "stalled": False},
            lambda folder, meta: save(folder, {**meta, "looks": before}),
        )
        self.ended = verdict is None
        return None if stats["stalled"] or self.made > MANY else verdict

    def _after(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        told = counted_on(self.passes, stats)[1]

        def saved(folder: Path, meta: dict[str, Any]) -> None:
            save(folder, {**meta, "passes": list(self.passes)})

        point = replace(point, coef=self.design.coef(point.w))
        return self.check(point, {**stats, **told}, saved)

    def restored(self, meta: dict[str, Any]) -> None:
        """See ``Check``."""
        self.made = meta.get("looks", 0)
        full, partial = meta.get("passes", (0, 0))
        self.passes = full, partial
        self.check.restored(meta)
