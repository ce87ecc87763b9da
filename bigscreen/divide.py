"""Divide and conquer: parts of the rows solved by themselves make a start for the whole.

Hsieh, Si and Dhillon (2014): cluster the rows, solve every part's dual, concatenate. Several
levels begin with many small parts and go on with a quarter as many, each from the alpha of the
level before, clustered anew by that level's support rows. The concatenated alpha is then scaled
by the best number, and solved on its support rows alone ("refine"), before the solve on all rows
begins there. Or it ends after the parts ("early"), and every row is scored by the machine of its
own part: a model without a global certificate.

Any problem, design and solver that holds alpha will do. A part is one item of ``fleet.each``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.design import Design
from bigscreen.divide_rows import pick
from bigscreen.divide_work import Enough, Local, Part, longest_step, solved, squared_norm
from bigscreen.dual import Dual, FloatArray
from bigscreen.errors import InputError
from bigscreen.fit_monitor import Report
from bigscreen.partition import SAMPLE_MOST, Partition, partition
from bigscreen.problems import Problem
from bigscreen.screening.dynamic import Rule
from bigscreen.solvers.protocol import Solver

FACTOR = 4
"""Parts of one level for each of the next."""
ROWS = 5000
"""Rows of a part where nobody says how many parts there are."""
UNEVEN = 2.0
"""No part has more than so many times the average: the largest takes longest."""
PASSES = 1000
"""Passes of the solver in a part at most."""


@dataclass(frozen=True)
class Divided:
    """What came of the parts.

    Parameters
    ----------
    alpha : float64 (n,)
        Feasible. After ``early`` the concatenation of the parts' own, else scaled and refined.
    partition : Partition
        Of the last level.
    intercepts : float64 (parts,)
        The offset of every part's machine.
    record : dict
        ``levels``: a dict each, of parts, rows of the largest, seconds, kernel entries, passes,
        the sums of the parts' primal and dual objectives. ``scale`` and ``refine``: factor or
        rows, seconds, kernel entries and D of the whole alpha. JSON-able.
    """

    alpha: FloatArray
    partition: Partition
    intercepts: FloatArray
    record: dict[str, Any]


def divide(
    design: Design,
    problem: Problem,
    fleet: Any,
    solver: Solver,
    local: Callable[[int], AbstractContextManager[Any]],
    *,
    parts: int | None = None,
    levels: int = 1,
    largest: int | None = None,
    refine: int | None = None,
    early: bool = False,
    tol: float = 1e-2,
    rule: Rule | None = None,
    seed: int = 0,
    deadline: float | None = None,
    report: Report = lambda event: None,
) -> Divided:
    """Solve parts of the rows by themselves.

    Parameters
    ----------
    design, problem
        What is to be solved: any design, the exact kernel machine too.
    fleet : fleet.Fleet
        Where parts are solved, one item each. The result does not depend on its workers.
    solver : Solver
        Of parts and support rows; one that holds alpha.
    local : callable
        The fleet of a part's solver where the part is, for a number of threads: ``fleet.Inline``.
        Picklable.
    parts : int or None
        Of the first level; None: about 5,000 rows a part.
    levels : int
        Each has a quarter of the parts of the one before; levels with less than two parts, or
        with parts that ``largest`` forbids, are left out.
    largest : int or None
        Rows of a part at most: what one thread's solver has room for.
    refine : int or None
        Support rows at most for them to be solved by themselves; 0: never, None: no bound.
    early : bool
        Stop after the parts.
    tol : float
        Relative gap of parts and of the support rows (KKT violation, if the kernel has no gap).
    rule : Rule or None
        Screens inside the parts.
    seed : int
    deadline : float or None
        Value of ``time.monotonic()`` after which solves end where they are.
    report : callable
        Receives phases and progress.

    Returns
    -------
    Divided

    Raises
    ------
    InputError
        More parts than rows, or parts that cannot be as small as ``largest``.
    """
    counts = _counts(design.data.n_rows, parts, levels, largest)
    job = _Job(design, problem, fleet, solver, tol, rule, deadline, report)
    for count in counts:
        job.level(count, largest, local, seed)
    if not early:
        job.scale()
        if refine != 0:
            job.refine(refine)
    return Divided(job.alpha, job.partition, job.intercepts, job.record)


def _counts(n: int, parts: int | None, levels: int, largest: int | None) -> list[int]:
    """Parts of every level."""
    fewest = 1 if largest is None else -(-n // max(largest, 1))
    if parts is None:
        # Room to balance: a tenth more than must be.
        parts = min(n, SAMPLE_MOST, max(2, -(-n // ROWS), math.ceil(1.1 * fewest)))
    if levels < 1:
        raise InputError(f"divide and conquer needs at least 1 level, got {levels}")
    counts = [parts // FACTOR**k for k in range(levels)]
    return counts[:1] + [count for count in counts[1:] if count >= max(2, fewest)]


def _shares(dual: Dual, rows: list[NDArray[np.int64]]) -> list[FloatArray]:
    """The part of the coupling's total that the rows of every part are to have, for each group.

    In proportion to their boxes: what the whole can meet, every part can.
    """
    if dual.coupling is None:
        return [np.ones(1)] * len(rows)
    group = np.zeros(len(dual), np.int8) if dual.group is None else dual.group
    room, groups = dual.hi - dual.lo, np.size(dual.total)
    sums = np.array([np.bincount(group[ids], room[ids], groups) for ids in rows])
    return list(sums / np.where(sums.any(axis=0), sums.sum(axis=0), 1.0))


class _Job:
    """alpha as it goes through the levels."""

    def __init__(
        self,
        design: Design,
        problem: Problem,
        fleet: Any,
        solver: Solver,
        tol: float,
        rule: Rule | None,
        deadline: float | None,
        report: Report,
    ) -> None:
        data = design.data
        self.design, self.problem, self.fleet, self.solver = design, problem, fleet, solver
        self.tol, self.rule, self.deadline, self.report = tol, rule, deadline, report
        self.codes, self.weights = data.y(0, data.n_rows), data.weights(0, data.n_rows)
        self.dual = problem.dual(self.codes, self.weights)
        self.alpha = np.zeros(data.n_rows)
        self.record: dict[str, Any] = {"levels": []}
        self.partition: Partition
        self.intercepts: FloatArray

    def level(self, parts: int, largest: int | None, local: Any, seed: int) -> None:
        """Partition the rows, solve every part from the alpha that there is."""
        began = time.monotonic()
        self.report({"event": "phase", "phase": "partition"})
        n = len(self.alpha)
        even = math.ceil(UNEVEN * n / max(1, parts))
        pool = np.flatnonzero(self.alpha)
        self.partition = partition(
            self.design,
            self.fleet,
            parts,
            largest=even if largest is None else min(even, largest),
            seed=seed,
            pool=pool if len(pool) else None,
        )
        clustered = time.monotonic()
        self.report({"event": "phase", "phase": "divide"})
        sizes = self.partition.sizes
        # By part, ascending within each; rows whose box is a point are no variables.
        order = np.argsort(self.partition.assign, kind="stable")
        rows = [
            ids[self.dual.hi[ids] > self.dual.lo[ids]]
            for ids in np.split(order, np.cumsum(sizes)[:-1])
        ]
        # The largest first: with the last ones small all workers end together.
        turn = [p for p in np.argsort(-sizes, kind="stable").tolist() if len(rows[p])]
        threads = max(1, self.fleet.workers // max(1, len(turn)))
        task = Local(self.design, self.problem, self.solver, local, self.tol, PASSES, self.rule)
        shares = _shares(self.dual, rows)
        items = (
            Part(
                rows[p],
                self.codes[rows[p]],
                self.weights[rows[p]],
                self.alpha[rows[p]],
                shares[p],
                threads,
                self._seconds(),
            )
            for p in turn
        )
        self.intercepts = np.zeros(len(sizes))
        primal = dual = 0.0
        entries, passes = self.partition.entries, 0
        for done, (p, found) in enumerate(zip(turn, self.fleet.each(task, items), strict=True)):
            self.alpha[rows[p]] = found.alpha
            self.intercepts[p] = found.intercept
            primal, dual = primal + found.primal, dual + found.dual
            entries, passes = entries + found.entries, passes + found.passes
            progress = {"phase": "divide", "done": done + 1, "total": len(turn)}
            self.report({"event": "progress", **progress})
        self.record["levels"].append(
            {
                "parts": len(sizes),
                "largest": int(sizes.max()),
                "support": int(np.count_nonzero(self.alpha)),
                "partition_seconds": clustered - began,
                "seconds": time.monotonic() - clustered,
                "kernel_entries": entries,
                "passes": passes,
                "primal": primal,
                "dual": dual,
            }
        )

    def scale(self) -> None:
        """Multiply alpha by the number that makes D largest."""
        began = time.monotonic()
        self.report({"event": "phase", "phase": "scale"})
        # Parts meet the coupling up to rounding: so does their sum, a little worse.
        self.alpha = self.dual.feasible(self.alpha)
        coef = self.dual.sign * self.alpha
        w_sq, entries = squared_norm(self.design, self.problem, coef, self.fleet)
        lin = self.dual.value(self.alpha, 0.0)
        t = 1.0
        if self.dual.coupling is None or not np.any(self.dual.total):  # t alpha keeps the coupling
            best = lin / w_sq if w_sq > 0 else math.inf
            t = min(max(best, 0.0), longest_step(self.dual, self.alpha))
        if not math.isfinite(t):
            t = 1.0  # alpha is 0
        # Rounding could put a row a last digit outside its box.
        self.alpha = np.clip(t * self.alpha, self.dual.lo, self.dual.hi)
        self.record["scale"] = {
            "factor": t,
            "seconds": time.monotonic() - began,
            "kernel_entries": entries,
            "dual": t * lin - 0.5 * t * t * w_sq,
        }

    def refine(self, most: int | None) -> None:
        """Solve on the support rows alone, if they are not too many."""
        support = np.flatnonzero(self.alpha)
        n = len(self.alpha)
        if not 0 < len(support) < (n if most is None else min(n, most + 1)):
            return
        began = time.monotonic()
        self.report({"event": "phase", "phase": "refine"})
        check = Enough(self.tol, PASSES, self.rule, self.deadline, self.design.definite)
        found = solved(
            pick(self.design, support, self.codes[support], self.weights[support]),
            self.problem,
            self.solver,
            self.fleet,
            check,
            self.alpha[support],
        )
        self.alpha[support] = found.alpha
        self.record["refine"] = {
            "rows": len(support),
            "seconds": time.monotonic() - began,
            "kernel_entries": found.entries,
            "passes": found.passes,
            "dual": found.dual,
        }

    def _seconds(self) -> float | None:
        """What is left of the time: clocks of other machines do not agree with ours."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
