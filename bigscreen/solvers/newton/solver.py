"""The smoothed Newton solver: m-dimensional steps in the primal over shards (maths.md 5.4).

    min over w, b, mu   1/2 ||w||^2 (+ 1/2 b^2 for an appended constant) + mu . total
                        + sum_i huber_h(G_i)

One iteration is two rounds: a score pass along the Newton step (scores are linear along the step,
so its line search needs no other pass) and a gradient pass over the smoothing band ``|G| <= h``. h
starts wide on a subsample and is halved while steps succeed, until smoothing costs half of the
requested gap. Each iteration reads a dual point off the scores, and so has a proved gap.
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
        Requested relative gap; sets the final smoothing.
    lazy : bool
        Skip rows that provably stay on their side (exact).
    tuning : NewtonTuning
    """

    tol: float = 1e-3
    lazy: bool = True
    tuning: NewtonTuning = NEWTON

    def solve(self, run: Run, check: Check) -> Point:
        """Solve until ``check`` returns None; returns the last point.

        Subsamples are solved first, each from the solution of the one before; a run that has a
        start solves the problem of all rows at once.

        Raises
        ------
        InputError
            If no alpha within the box meets the coupling, or C is too large for a Newton step.
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
            tuning=self.tuning,
        )
        if run.checkpoint is not None:
            run.fleet.start(program, design.data.n_shards)
            meta = run.fleet.load(run.checkpoint)
            if meta is not None:
                check.restored(meta)
                return solve.run(solve.restore(program, meta), check)
        iterate, rows_before, strides = solve.at_zero(), 1.0, self._strides(design)
        if run.near is not None:
            iterate.x, iterate.start_dual = run.near.x, run.near.dual
            # (A solution on some of many landmarks is less near, and a pass over all rows slower.)
            strides = strides if solve.wide else [1]
        elif run.start is not None:
            iterate, strides = solve.start_at_alpha(run.start), [1]
        for stride in strides:
            # The picked rows can have nearly all the weight, and boxes are scaled by the stride.
            part = replace(program, stride=stride, scale=float(stride), weight_bound=stride * bound)
            if not solve.open(part):
                if stride > 1:
                    continue
                raise InputError(
                    "no alpha within the box meets the coupling; with weights as they are, nu is "
                    "too large for one of the classes: use a smaller nu"
                )
            rows = design.data.n_rows / stride
            solve.enter(iterate, growth=rows / rows_before)
            rows_before = rows
            if stride > 1:
                error = design.rank * stride / design.data.n_rows
                solve.run(iterate, self._subsample_check(error, solve.wide, check))
        return solve.run(iterate, check)

    def _strides(self, design: Design) -> list[int]:
        """List the strides of the subsamples, coarsest first: one row in 64, 8, ..., all rows."""
        tuning = self.tuning
        wanted = max(tuning.subsample_rows_per_column * design.rank, tuning.min_subsample_rows)
        strides = [1]
        while design.data.n_rows / (strides[-1] * tuning.subsample_growth) >= wanted:
            strides.append(strides[-1] * tuning.subsample_growth)
        return strides[::-1]

    def _subsample_check(self, error: float, wide: bool, check: Check) -> _SubsampleCheck:
        """Make the check of a subsample whose optimum has this relative statistical error."""
        tuning = self.tuning
        min_gain = tuning.subsample_gain_part * error if wide else None
        promise = tuning.subsample_error_part * error
        return _SubsampleCheck(promise, min_gain, check, tuning.max_subsample_passes)


@dataclass
class _SubsampleCheck:
    """The check of a subsample, which ends the solve once its own statistical error is reached.

    The optimum of a subsample is about ``rank / rows`` of P off, so a closer gap is of no use.

    Parameters
    ----------
    max_promise : float
        End once h has settled and a step promises at most this fraction of P.
    min_gain : float or None
        End once the last step has lowered P by at most this fraction; None: never for that.
    check : Check
        The check of the whole solve, for its clock and pauses.
    max_passes : int
        End after this many checks.
    passes, primal : int, float
        Checks so far, and P at the last of them.
    target : float
        See `Check`; 0, as a subsample has no closing pass.
    """

    max_promise: float
    min_gain: float | None
    check: Check
    max_passes: int
    passes: int = 0
    primal: float = np.inf
    target: float = 0.0

    def __call__(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        """Count a pass; returns None once the subsample's solve should stop, else go on.

        Keys of ``stats`` that it reads: ``decrement``, ``settled`` and ``stalled``. The `Verdict`
        of a solve that goes on is empty: no rows are screened.
        """
        self.pause()
        self.passes += 1
        near = stats["decrement"] <= self.max_promise * abs(point.primal)
        gain, self.primal = self.primal - point.primal, point.primal
        slow = self.min_gain is not None and gain <= self.min_gain * abs(point.primal)
        done = (near and stats["settled"]) or slow or stats["stalled"] or self.expired()
        return None if done or self.passes >= self.max_passes else Verdict()

    def expired(self) -> bool:
        """Whether the time budget of the whole solve is used up."""
        return self.check.expired()

    def pause(self, save: Save | None = None) -> None:
        """Stop if Ctrl-C was pressed (see `Check`); nothing of a subsample is saved."""
        self.check.pause()

    def restored(self, meta: dict[str, Any]) -> None:
        """Never called: a subsample has no checkpoints that a solve could resume."""
        raise AssertionError
