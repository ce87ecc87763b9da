"""Where the steps of other solvers are too many, or stall: an interior point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen.data.memory import MemoryDataset
from bigscreen.data.views import Recast
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Linear
from bigscreen.numerics.cholesky import cholesky_features
from bigscreen.problems.point import Point
from bigscreen.solvers.interior import InteriorPoint, factor_terms, pair_terms, terms
from bigscreen.solvers.newton.near import counted_on
from bigscreen.solvers.protocol import Check, PassedOn, Run, Save, Verdict

MANY = 20
"""Looks of a Newton at all that it has come to after which it may be endless (fits that end seldom
come to 15)."""

OF_LOOK, OF_FEATURE, CUBES = 5e6, 2.0, 10.0
"""What a look takes whatever there is to look at, and for a feature of a row, in `terms`; its step
takes one for so many of the features' cube."""

WAITED = 0.25
"""Part of what an interior point takes that looks may take before it goes on."""

MOST_ROWS = 10_000
"""Rows whose kernel matrix is factored at most: of more nobody would wait for the end of it."""

OF_ENTRY, OF_ROUND = 5.0, 2e6
"""What blocks of rows take beside their steps for every kernel entry, and for every round, in
`terms`."""


class _ByInterior:
    """An interior point that solves a problem anew over the features that its watch has."""

    name = "interior"
    phase = "solve, by an interior point"

    def go_on(self, run: Run, watch: _Watch, point: Point) -> Point:
        """See ``Successor``."""
        watch.first = False
        return InteriorPoint().solve(replace(run, design=watch.wide(run)), watch)


@dataclass(frozen=True)
class Rescue(_ByInterior):
    """An interior point that solves a problem anew where a Newton's steps do not end.

    For problems that it can solve, of few enough products.

    Parameters
    ----------
    source : Design or None
        The kernel design of the features, which become float64 ones; None: rows are raw features.
    """

    source: Design | None

    def watch(self, check: Check, run: Run) -> _Looks:
        """See ``Successor``."""
        return _Looks(check, run.design, self.source)


@dataclass(frozen=True)
class ExactRescue(_ByInterior):
    """The same for an exact kernel machine whose steps take longer than that would.

    Over features whose products are the kernel's entries, to the last digit of float64: raw ones of
    a linear kernel, or, of few rows, those of the matrix.
    """

    def watch(self, check: Check, run: Run) -> _Steps:
        """See ``Successor``."""
        return _Steps(check, run.design)


def most_looks(n: int, m: int) -> float:
    """Looks of a Newton at n rows of m features after which an interior point goes on."""
    look = OF_LOOK + OF_FEATURE * n * m + m**3 / CUBES
    return max(MANY, WAITED * terms(n, m) / look)


def raw_features(design: Design) -> bool:
    """Whether products of rows are the kernel's entries, and rows have few columns for that."""
    return isinstance(design.kernel, Linear) and design.data.n_features <= design.data.n_rows


def _with_features(design: Design, features: Any) -> Design:
    """The rows of a design with other features.

    (Labels and weights are the run's own: its rows may be a fold's, or another fit's.)
    """
    data, n = design.data, design.data.n_rows
    rows = MemoryDataset(features, np.full(n, -1), data.layout.labels)
    return Design(Recast(rows, data.y(0, n), data.weights(0, n)))


class _Watch(PassedOn):
    """The check of the steps that may not end, and then of the interior point's."""

    def __init__(self, check: Check, design: Design) -> None:
        super().__init__(check)
        self.design = design
        self.first, self.ended = True, False
        self.passes = 0, 0

    def __call__(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        if not self.first:
            return self._after(point, stats, save)
        self.passes = counted_on((0, 0), stats)[0]
        kept = self.count(stats)
        verdict = self.check(
            point,
            {**stats, "stalled": False},
            lambda folder, meta: save(folder, {**meta, **kept}),
        )
        self.ended = verdict is None
        return None if stats["stalled"] or self.endless(stats) else verdict

    def count(self, stats: dict[str, Any]) -> dict[str, Any]:
        """Count a look; returns what a checkpoint of before it is to keep."""
        return {}

    def endless(self, stats: dict[str, Any]) -> bool:
        """Whether the steps have taken longer than the interior point would."""
        raise NotImplementedError

    def wide(self, run: Run) -> Design:
        """The rows with features that the interior point takes."""
        raise NotImplementedError

    def handed(self, point: Point) -> Point:
        """The interior point's point as one of the problem that it stands for."""
        raise NotImplementedError

    def _after(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        told = counted_on(self.passes, stats)[1]

        def saved(folder: Path, meta: dict[str, Any]) -> None:
            save(folder, {**meta, "passes": list(self.passes)})

        return self.check(self.handed(point), {**stats, **told}, saved)

    def restored(self, meta: dict[str, Any]) -> None:
        """See ``Check``."""
        full, partial = meta.get("passes", (0, 0))
        self.passes = full, partial
        self.check.restored(meta)


class _Looks(_Watch):
    """The check of a Newton's steps, until they are too many, and then of the other's."""

    made = before = 0
    """Looks of the Newton, and those before the last; rows nearby are none of its own."""

    def __init__(self, check: Check, design: Design, source: Design | None) -> None:
        super().__init__(check, design)
        self.source = source

    def count(self, stats: dict[str, Any]) -> dict[str, Any]:
        if "decrement" in stats:
            self.before, self.made = self.made, self.made + 1
        return {"looks": self.before}

    def endless(self, stats: dict[str, Any]) -> bool:
        return self.made > most_looks(self.design.data.n_rows, self.design.rank)

    def wide(self, run: Run) -> Design:
        """The rows as raw features; those of landmarks are float64."""
        if self.source is None:
            return run.design
        made = nystrom.stored_features(self.source, run.fleet, None, dtype=np.float64).data
        return _with_features(run.design, made.X(0, made.n_rows))

    def handed(self, point: Point) -> Point:
        return replace(point, coef=self.design.coef(point.w))

    def restored(self, meta: dict[str, Any]) -> None:
        """See ``Check``."""
        self.made = meta.get("looks", 0)
        super().restored(meta)


class _Steps(_Watch):
    """The check of steps on alpha, until they have taken as long as the other would.

    How long that is depends on how many features there are, which is found out once steps have
    taken as long as that does.
    """

    @cached_property
    def features(self) -> Any:
        """Features whose products are the kernel's entries: (n, rank)."""
        data, kernel = self.design.data, self.design.kernel
        assert kernel is not None
        n = data.n_rows
        X: Any = data.X(0, n)
        if raw_features(self.design):
            return X.toarray() if data.is_sparse else X
        return cholesky_features(kernel.block(X, Operand(X, np.arange(n)), dtype=np.float64))

    def endless(self, stats: dict[str, Any]) -> bool:
        n = self.design.data.n_rows
        if "steps" in stats:
            spent = pair_terms(stats["steps"], n)
        else:
            rounds = stats["full_passes"] + stats["partial_passes"]
            spent = stats["kernel_entries"] * OF_ENTRY + rounds * OF_ROUND + stats["terms"]
        if spent < (terms(0, 0) if raw_features(self.design) else factor_terms(n)):
            return False
        m = self.features.shape[1]
        return m > 0 and spent > terms(n, m)  # (all entries are 0 where there is no feature)

    def wide(self, run: Run) -> Design:
        return _with_features(run.design, self.features)

    def handed(self, point: Point) -> Point:
        nothing = np.empty(0)
        return replace(point, coef=nothing, w=nothing)
