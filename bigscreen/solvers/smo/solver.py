"""The SMO solver: sequential minimal optimisation over all rows, with a cache of kernel rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.files.checkpoint import load_alone
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import refuse_uncommon
from bigscreen.solvers.protocol import Check, Run
from bigscreen.solvers.smo.loop import (
    Limits,
    Matrix,
    PairScan,
    find_moves,
    free_partner,
    free_scan,
    free_step_and_update,
    free_update,
    least_curvature,
    pair_partner,
    pair_step_and_update,
    pair_update,
    steps,
)
from bigscreen.solvers.smo.state import CHECKPOINT_NAME, SmoState
from bigscreen.solvers.smo.tuning import SmoTuning


@dataclass(frozen=True)
class Pairs:
    """The SMO solver: each step solves exactly for one or two dual variables.

    For data in one process: it is the inner solver of partitions, and the reference for other
    solvers. Screened rows have no entries in kernel rows.

    Parameters
    ----------
    selection : {"second", "first"}
        Choose variables by the gain in the dual (with a coupling Fan et al. 2005), or by the
        largest violation.
    working_set : {1, 2} or None
        Variables per step; None: 2. With a coupling one alone cannot move.
    cache : int
        Bytes of cached kernel rows, if the matrix is larger than ``whole``.
    whole : int
        Compute the whole kernel matrix of the rows not screened if it has at most this many bytes.
        Steps are then one compiled loop, and a matrix costs less than a call per row.
    eps : float
        Stop once the violation is at most this, as LIBSVM does.
    every : int or None
        Steps between checks; None: one per row up to 1,000 at first, then more.
    tuning : SmoTuning

    Attributes
    ----------
    state_type : type
        Class of the object that holds the iterate.
    """

    selection: str = "second"
    working_set: int | None = None
    cache: int = 256 << 20
    whole: int = 128 << 20
    eps: float = 0.0
    every: int | None = None
    tuning: SmoTuning = SmoTuning()
    state_type: ClassVar[type[SmoState]] = SmoState

    def __post_init__(self) -> None:
        if self.selection not in ("second", "first"):
            raise InputError(f"selection must be second or first, got {self.selection!r}")
        if self.working_set not in (None, 1, 2):
            raise InputError(f"a working set has 1 or 2 variables, not {self.working_set}")

    def solve(self, run: Run, check: Check) -> Point:
        """Solve until ``check`` is satisfied; return the last point.

        Raises
        ------
        InputError
            For landmarks (their features are not rows of the data), for a working set of 1 with a
            coupling, for a coupling whose total no alpha within the box has, for squared losses.
        """
        if run.design.landmarks is not None:
            raise InputError("pair steps need an exact kernel or stored features; use newton")
        refuse_uncommon(run.problem)
        found = load_alone(run.checkpoint, CHECKPOINT_NAME)
        begin = run.start if found is None else None
        state = self.state_type(run.design, run.problem, self, begin)
        if state.coupled and self.working_set == 1:
            raise InputError(
                "with an unpenalised offset or nu two variables have to move at a time"
            )
        if found is not None:
            state.restore(*found)
            check.restored(found[0])
        # A checkpoint made between checks says how many steps are left; any other is checked first.
        going = found is None or state.left > 0
        while True:
            if going:
                self._advance(state, check)
            point = state.point(check.target)
            verdict = check(point, state.stats(), state.save)
            going = True
            if verdict is None:
                return point
            if verdict.restart:
                state.free_all()
            elif verdict.region is not None:
                state.screen(verdict.region)

    def _advance(self, state: SmoState, check: Check) -> None:
        """Take steps until the next call of ``check`` is due.

        ``state.left`` steps if a checkpoint left some, else a newly chosen number. Steps are on a
        matrix in memory if there is one, else with cached kernel rows.
        """
        if state.left == 0:
            state.left = self._choose_steps(state)
            state.checks += 1
        if state.rows.matrix is not None:
            self._take_steps_on_matrix(state.rows.matrix, state, state.left)
        elif state.coupled:
            self._take_pair_steps(state, check)
        else:
            self._take_single_steps(state, check)
        state.left = 0

    def _choose_steps(self, state: SmoState) -> int:
        """Choose how many steps to take until the next call of ``check``."""
        if self.every is not None:
            return self.every
        # A check costs approximately a step, and a sort: check less often later.
        tuning = self.tuning
        most = min(len(state.alive), tuning.first_steps) * min(50, max(1, state.checks // 4))
        if state.rows.matrix is not None:
            # Steps are cheap, and easy problems take few: check early. Later, each time after an
            # eighth more steps.
            longer = min(state.steps // 8, tuning.max_scanned // max(1, len(state.alive)))
            most = max(tuning.min_steps, most // 4, longer)
        return most

    def _take_steps_on_matrix(self, matrix: Matrix, state: SmoState, most: int) -> None:
        """Take at most ``most`` steps on a kernel matrix in memory, in one compiled loop."""
        moved, flip = state.variables(), state.part.flip
        group, order = state.part.dual.group, None
        if state.coupled and group is not None and np.any(np.diff(group) < 0):
            order = np.argsort(group, kind="stable")  # rows of a group together
            assert state.rows.whole is not None
            matrix, group = Matrix(state.rows.whole, order), group[order]
            flip = None if flip is None else flip[order]
            moved = moved.at(order)
        limits = Limits(state.tolerated, most, self.selection == "second", self.working_set != 1)
        done, state.violation = steps(matrix, moved, flip, group, state.coupled, limits)
        if order is not None:
            state.x[order], state.F[order] = moved.x, moved.F
        state.rows.count()
        state.count_steps(done)
        if done < most:  # converged, or no step changes the last digits
            state.violation = 0.0

    def _take_pair_steps(self, state: SmoState, check: Check) -> None:
        """Take steps on pairs, which keep the total of each group's coupling, with cached rows.

        At most ``state.left`` steps; x and F of ``state`` are updated. ``check`` may pause or stop
        between steps.
        """
        rows, flip, diag, group = (
            state.rows,
            state.part.flip,
            state.part.diag,
            state.part.dual.group,
        )
        variables, least = state.variables(), least_curvature(diag)
        narrow, floor, second = (
            diag.astype(np.float32),
            np.float32(least),
            self.selection == "second",
        )
        moves = find_moves(variables)
        # A group's scan covers all rows, but rows of other groups cannot move in it.
        own = [moves] if group is None else [moves * (group == g) for g in state.groups]
        F, up, down = variables.F, variables.up, variables.down
        scans = [PairScan(F, up, down, flip, narrow, mine) for mine in own]
        nothing: NDArray[Any] = np.zeros(len(diag), rows.dtype)
        tolerated = state.tolerated
        chosen, first = 0, pair_update(scans[0], nothing, nothing, 0.0, 0.0)
        while state.left:
            check.pause(state.save)
            state.violation, i, last = 0.0, -1, chosen
            for g, scan in enumerate(scans):
                # The update of the last step has found the top of its group.
                top = first if g == last else pair_update(scan, nothing, nothing, 0.0, 0.0)
                if top < 0:
                    continue
                apart = np.inf
                if len(own) > 1:  # the worst group is found without kernel rows
                    _, apart = pair_partner(scan, nothing, top, floor, False)
                if apart > state.violation:
                    i, chosen, state.violation = top, g, apart
            if i < 0:
                return
            scan, row = scans[chosen], rows[i]
            j, state.violation = pair_partner(scan, row, i, floor, second)
            if j < 0 or state.violation <= tolerated or check.expired():
                return
            step, first = pair_step_and_update(variables, scan, diag, i, j, row, rows[j], least)
            if step == 0.0:
                state.violation = 0.0
                return
            state.count_steps(1)

    def _take_single_steps(self, state: SmoState, check: Check) -> None:
        """Take steps on one or two variables, without a coupling, with cached rows.

        At most ``state.left`` steps; x and F of ``state`` are updated. ``check`` may pause or stop
        between steps.
        """
        rows, diag, second = state.rows, state.part.diag, self.selection == "second"
        state.violation = 0.0
        if not len(diag):
            return
        variables = state.variables()
        scan = free_scan(variables, diag)
        nothing: NDArray[Any] = np.zeros(len(diag), rows.dtype)
        tolerated = state.tolerated
        i, state.violation = free_update(scan, nothing, nothing, 0.0, 0.0, second)
        while state.left:
            check.pause(state.save)
            if i < 0 or state.violation <= tolerated or check.expired():
                return
            row = rows[i]
            j = i if self.working_set == 1 else free_partner(scan, row, i, second)
            other = row if j == i else rows[j]
            moved, i, state.violation = free_step_and_update(
                variables, scan, i, j, row, other, second
            )
            if not moved:
                state.violation = 0.0
                return
            state.count_steps(1)
