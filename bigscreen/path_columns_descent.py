"""Epochs of dual coordinate descent over the undecided rows: for rows of many columns."""

from __future__ import annotations

import numpy as np

from bigscreen.path_columns_rows import Columns
from bigscreen.path_columns_task import Goal, Task
from bigscreen.solvers.coordinate_epoch import epoch

EPOCHS = 5000
"""Epochs before the point is handed back whatever it is."""


class Descent:
    """The engine: a fresh random order for every epoch, from one seed for all solves."""

    h = 0.0

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def begin(self, task: Task) -> None:
        """Take up a task."""
        self._rng = np.random.default_rng(0)
        whole = task.whole
        tube = np.zeros(len(whole)) if whole.tube is None else whole.tube
        arrays = (whole.sign, whole.lin, whole.lo, whole.hi, tube)
        self._problem = tuple(map(np.ascontiguousarray, arrays))

    def run(self, task: Task, goal: Goal) -> bool:
        """Move ``task`` until the gap of its rows is as asked; False where no step helps."""
        columns, alpha = self.columns, task.full_alpha
        active = np.zeros(len(alpha), np.bool_)
        threshold, due, done = np.inf, 1, 0
        active[task.rows] = True
        while len(task.rows):
            order = self._rng.permutation(np.flatnonzero(active))
            moving = (*self._problem, alpha, task.w, order, columns.constant, threshold, active)
            visited, threshold = epoch(columns.X, columns.sqnorms, *moving)
            task.moves += visited
            task.counts["steps"] += 1
            done += 1
            if done < due and threshold > 1e-14 and not goal.expired():
                continue
            # Scores of all undecided rows cost about an epoch: look more rarely as time goes by.
            due = done + max(1, done // 4)
            task.alpha[:] = alpha[task.rows]
            task.point = task.w
            task.scores = columns.scores(task.w, task.rows)
            gap = task.dual.frank_wolfe_gap(task.alpha, task.scores)
            if gap <= 0.9 * goal.tol * abs(task.value) or goal.expired():
                return True
            if done > EPOCHS or (threshold <= 1e-14 and active[task.rows].all()):
                return False
            if goal.dynamic and task.screen(gap, 0.0) is not None:
                alpha = task.full_alpha
            active[:] = False
            active[task.rows] = True
            threshold = np.inf
        return True
