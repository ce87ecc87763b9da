"""Smoothed Newton in the primal: m-dimensional, a map-reduce over shards (maths.md 5.4).

    min over w, b, mu   1/2 ||w||^2 (+ 1/2 b^2 for an appended constant) + mu . total
                        + sum_i huber_h(G_i)

One iteration is two rounds: a score pass along the Newton step (its line search costs nothing
more: scores are linear along the step) and a gradient pass over the zone ``|G| <= h``. h starts
wide on a subsample and is halved while steps succeed, down to where smoothing costs half of what
is asked. Each iteration has a dual point, read off the scores, and so a proved gap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.problems.point import Point
from bigscreen.solvers.newton.coordinator import NewtonRun
from bigscreen.solvers.newton.shard import NewtonProgram
from bigscreen.solvers.newton.tuning import NEWTON, NewtonTuning
from bigscreen.solvers.protocol import Check, Run, Save, Verdict


@dataclass(frozen=True)
class Newton:
    """The smoothed Newton solver.

    Parameters
    ----------
    tol : float
        Relative gap asked for; sets the final smoothing.
    lazy : bool
        Skip rows that provably stay on their side (exact).
    sample : float
        The coarsest subsample holds about ``sample * rank`` rows.
    zone_rows : float
        A pass takes the second moment of at most about ``zone_rows * m`` rows of the zone, the
        next pass of others.
    tuning : NewtonTuning
    """

    tol: float = 1e-3
    lazy: bool = True
    sample: float = 16.0
    zone_rows: float = 16.0
    tuning: NewtonTuning = NEWTON

    def solve(self, run: Run, check: Check) -> Point:
        """Solve to whatever ``check`` asks for; returns the last point.

        From a start the first step is over all rows, else over a subsample of them.
        """
        design, bound = run.design, run.reach.total
        solve = NewtonRun(self, design, run.problem, run.fleet)
        program = NewtonProgram(
            design,
            run.problem,
            resident=run.resident,
            lazy=self.lazy,
            weight_bound=bound,
            room=run.spare // design.data.n_shards,
        )
        if run.checkpoint is not None:
            run.fleet.start(program, design.data.n_shards)
            meta = run.fleet.load(run.checkpoint)
            if meta is not None:
                check.restored(meta)
                return solve.run(solve.restore(program, meta), check)
        place, before, strides = solve.origin(), 1.0, self._strides(design)
        if run.near is not None:
            place.x, place.given = run.near.x, run.near.dual
            # (Of many landmarks a machine of some is not that near, and a pass over all rows dear.)
            strides = strides if solve.large else [1]
        elif run.start is not None:
            place, strides = solve.start_at(run.start), [1]
        for stride in strides:
            # The picked rows can hold nearly all the weight, then scaled up by the stride.
            part = replace(program, stride=stride, scale=float(stride), weight_bound=stride * bound)
            if not solve.open(part):
                if stride > 1:
                    continue
                raise InputError(
                    "no alpha within the box meets the coupling; with weights as they are, nu is "
                    "too large for one of the classes: use a smaller nu"
                )
            rows = design.data.n_rows / stride
            solve.enter(place, growth=rows / before)
            before = rows
            if stride > 1:
                error = design.rank * stride / design.data.n_rows
                gained = self.tuning.subsample_gain_part * error if solve.large else None
                solve.run(place, _Coarse(self.tuning.subsample_error_part * error, gained, check))
        return solve.run(place, check)

    def _strides(self, design: Design) -> list[int]:
        """Subsamples of one row in 64, 8, ... down to all rows."""
        wanted = max(self.sample * design.rank, 4000.0)
        strides = [1]
        while design.data.n_rows / (strides[-1] * self.tuning.subsample_growth) >= wanted:
            strides.append(strides[-1] * self.tuning.subsample_growth)
        return strides[::-1]


@dataclass
class _Coarse:
    """The check of a subsample: its own optimum is about ``rank / rows`` off, so no closer.

    ``enough`` is the part of P that the next step may still promise; it looks at no gap. It ends
    where h is not to fall any more, as every new h costs a step, or, with ``gained``, where the
    last step has gained less than that part of P. ``check``: that of all rows.
    """

    enough: float
    gained: float | None
    check: Check
    passes: int = 0
    primal: float = np.inf
    target: float = 0.0

    def __call__(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        self.pause()
        self.passes += 1
        near = stats["decrement"] <= self.enough * abs(point.primal)
        won, self.primal = self.primal - point.primal, point.primal
        over = self.gained is not None and won <= self.gained * abs(point.primal)
        done = (near and stats["settled"]) or over or stats["stalled"] or self.expired()
        return None if done or self.passes >= 15 else Verdict()

    def expired(self) -> bool:
        """See ``Check``."""
        return self.check.expired()

    def pause(self, save: Save | None = None) -> None:
        """See ``Check``: nothing is kept of a subsample."""
        self.check.pause()

    def restored(self, meta: dict[str, Any]) -> None:
        """A subsample is never checkpointed."""
        raise AssertionError
