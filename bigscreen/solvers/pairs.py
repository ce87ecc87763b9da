"""Sequential minimal optimisation over all rows, in one process, kernel rows through a cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.checkpoint import load_alone
from bigscreen.design import Design
from bigscreen.dual import FloatArray
from bigscreen.errors import InputError
from bigscreen.point import Point
from bigscreen.problems import Problem, refuse_uncommon
from bigscreen.solvers.pairs_checkpoint import PLACE, restore, save
from bigscreen.solvers.pairs_state import State
from bigscreen.solvers.protocol import Check
from bigscreen.solvers.smo import (
    Matrix,
    free_partner,
    free_step,
    free_units,
    free_update,
    note_room,
    note_space,
    pair_partner,
    pair_step,
    pair_update,
    steps,
    tubes,
)

WHOLE = 128 << 20
"""Bytes up to which the matrix of the rows alive is computed at once: steps then are one compiled
loop, and a square of entries is cheaper than a call for each of its rows."""

FIRST, STEPS = 100, 1000
"""Steps between the first checks, at least and at most."""

SCANNED = 1 << 24
"""Variables that the steps of one compiled loop look at: some ten milliseconds."""


@dataclass(frozen=True)
class Pairs:
    """SMO: every step solves for one variable or two exactly.

    For data that one process holds: the inner solver of partitions, and the reference that others
    are compared with. Kernel entries are computed against the rows alive alone.

    Parameters
    ----------
    selection : {"second", "first"}
        By the gain in the dual (with a coupling Fan, Chen, Lin 2005), or the worst violation.
    working_set : {1, 2} or None
        Variables moved at a time; None: 2. With a coupling one alone cannot move.
    cache : int
        Bytes of kernel rows kept, where the matrix is too large for ``whole``.
    whole : int
        Bytes of the matrix of the rows alive up to which all of it is computed at once.
    eps : float
        LIBSVM's stopping rule: nothing is left to do once the violation is no larger.
    every : int or None
        Steps between checks; None: as many as rows are alive up to 1,000, more as time goes by.
    """

    selection: str = "second"
    working_set: int | None = None
    cache: int = 256 << 20
    whole: int = WHOLE
    eps: float = 0.0
    every: int | None = None

    def __post_init__(self) -> None:
        if self.selection not in ("second", "first"):
            raise InputError(f"selection must be second or first, got {self.selection!r}")
        if self.working_set not in (None, 1, 2):
            raise InputError(f"a working set has 1 or 2 variables, not {self.working_set}")

    def run(
        self,
        design: Design,
        problem: Problem,
        fleet: Any,
        check: Check,
        *,
        weight_bound: float,
        resident: bool = True,
        resume: Path | None = None,
        start: FloatArray | None = None,
    ) -> Point:
        """Solve to whatever ``check`` asks for; returns the last point.

        Raises
        ------
        InputError
            For landmarks (their features are no rows to take products of), single variables
            and a coupling, a coupling whose total no alpha within the box has, or squared losses.
        """
        if design.landmarks is not None:
            raise InputError("pair steps need an exact kernel or stored features; use newton")
        refuse_uncommon(problem)
        found = None if resume is None else load_alone(resume / PLACE)
        begin = start if found is None else None
        state = State(design, problem, self.cache, self.whole, self.eps, begin)
        if state.coupled and self.working_set == 1:
            raise InputError(
                "with an unpenalised offset or nu two variables have to move at a time"
            )
        if found is not None:
            restore(state, *found)
            check.restored(found[0])
        while True:
            if not state.restored:
                self._advance(state, check)
            point = state.point(check.target)
            verdict = check(point, state.stats(), partial(save, state))
            state.restored = False
            if verdict is None:
                return point
            if verdict.restart:
                state.take_back()
            elif verdict.region is not None:
                state.screen(verdict.region)

    def _advance(self, state: State, check: Check) -> None:
        """Steps until the next check is due."""
        most = self.every
        if most is None:
            # A check costs about a step, and sorts: check more rarely as time goes by.
            most = min(len(state.alive), STEPS) * min(50, max(1, state.checks // 4))
            if state.rows.matrix is not None:
                # Steps are cheap then, and few where classes are far; of many it is an eighth more.
                longer = min(state.steps // 8, SCANNED // max(1, len(state.alive)))
                most = max(FIRST, most // 4, longer)
        state.checks += 1
        if state.rows.matrix is not None:
            self._within(state.rows.matrix, state, most)
            return
        advance = _pairs if state.coupled else _singles
        advance(self, state, most, check)

    def _within(self, matrix: Matrix, state: State, most: int) -> None:
        """The same steps on a matrix that is there, in one compiled loop."""
        x, F, group, order = state.x, state.F, state.group, None
        taken: Any = [state.low, state.high, x, F, state.tube, state.flip, group]
        if state.coupled and group is not None and np.any(np.diff(group) < 0):
            order = np.argsort(group, kind="stable")  # rows of a group together
            assert state.rows.whole is not None
            matrix = Matrix(state.rows.whole, order)
            taken = [None if each is None else each[order] for each in taken]
        low, high, own, slope, tube, flip, group = taken
        how = state.tolerated, most, self.selection == "second", self.working_set != 1
        done, state.violation = steps(
            matrix, low, high, own, slope, tube, flip, group, state.coupled, *how
        )
        if order is not None:
            x[order], F[order] = own, slope
        state.rows.count()
        state.steps += done
        if done < most:  # nothing is left to do, or nothing that the last digit would show
            state.violation = 0.0


def _pairs(options: Pairs, state: State, most: int, check: Check) -> None:
    """Steps on pairs that keep the sum of every group's coupling."""
    x, F, low, high, flip, rows = state.x, state.F, state.low, state.high, state.flip, state.rows
    diag, least, second = state.diag, state.least, options.selection == "second"
    narrow, floor = diag.astype(np.float32), np.float32(least)
    tube, up, down = tubes(state.tube, x)
    moves = np.empty(len(x), np.int8)
    note_room(np.arange(len(x)), x, low, high, moves)
    # A group's moves are those of all rows, with none for rows of other groups.
    own = [moves] if state.group is None else [moves * (state.group == g) for g in state.groups]
    nothing: NDArray[Any] = np.zeros(len(x), rows.dtype)
    tolerated = state.tolerated
    first = pair_update(F, nothing, nothing, flip, 0.0, 0.0, own[0], up)
    for _ in range(most):
        state.violation, i, moves = 0.0, -1, own[0]
        for g, mine in enumerate(own):
            top = first
            if g:
                top = pair_update(F, nothing, nothing, flip, 0.0, 0.0, mine, up)
            if top < 0:
                continue
            apart = np.inf
            if len(own) > 1:  # which group is worst is seen without its kernel row
                _, apart = pair_partner(
                    F, nothing, flip, top, narrow, floor, mine, up, down, False
                )  # fmt: skip
            if apart > state.violation:
                i, moves, state.violation = top, mine, apart
        if i < 0:
            return
        row = rows[i]
        j, state.violation = pair_partner(
            F, row, flip, i, narrow, floor, moves, up, down, second
        )  # fmt: skip
        if j < 0 or state.violation <= tolerated or check.expired():
            return
        other = rows[j]
        f_i, f_j = (1.0, 1.0) if flip is None else (float(flip[i]), float(flip[j]))
        curvature = diag[i] + diag[j] - 2.0 * f_i * f_j * float(row[j])
        step = pair_step(i, j, curvature, least, low, high, x, F, moves, tube, up, down)
        if step == 0.0:
            state.violation = 0.0
            return
        first = pair_update(F, row, other, flip, step * f_i, -step * f_j, own[0], up)
        state.steps += 1


def _singles(options: Pairs, state: State, most: int, check: Check) -> None:
    """Steps without a coupling, on one variable or on two."""
    x, F, low, high, rows = state.x, state.F, state.low, state.high, state.rows
    diag, least, second = state.diag, state.least, options.selection == "second"
    state.violation = 0.0
    if not len(x):
        return
    tube, up, down = tubes(state.tube, x)
    kinks = tube is not None
    unit, curve, inverse, less, more = free_units(diag, low, high, x, kinks)
    scales = (curve, inverse, less, more, up, down, second)
    nothing: NDArray[Any] = np.zeros(len(x), rows.dtype)
    tolerated = state.tolerated
    i, state.violation = free_update(F, nothing, nothing, 0.0, 0.0, *scales)
    for _ in range(most):
        if i < 0 or state.violation <= tolerated or check.expired():
            return
        row = rows[i]
        j = i
        if options.working_set != 1:
            j = free_partner(F, row, unit, i, *scales)
        other = row if j == i else rows[j]
        a, b = free_step(
            i, j, diag[i], diag[j], float(row[j]), least, low, high, x, F, tube, up, down
        )  # fmt: skip
        if a == 0.0 and b == 0.0:
            state.violation = 0.0
            return
        note_space((i, j), x, low, high, kinks, unit, less, more)
        i, state.violation = free_update(F, row, other, a, b, *scales)
        state.steps += 1
