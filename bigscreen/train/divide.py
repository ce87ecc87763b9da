"""Divide and conquer: parts of the rows solved by themselves make a start for the whole.

Hsieh, Si and Dhillon (2014; maths.md 5.6) cluster the rows, solve the dual problem of each cluster
("part"), and concatenate the solutions. With several levels, each level has a quarter of the parts
of the level before, starts from its alpha, and clusters the rows by its support vectors. The
concatenated alpha is multiplied by the best factor, then improved on its support vectors alone
("refine"). The solve on all rows starts from the result. An "early" fit stops after the parts: each
row is scored by the machine of its own part, and the model has no global certificate.

Any problem and design will do, with any solver that holds alpha. A part is one item of
``fleet.each``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.data.memory import MemoryDataset
from bigscreen.data.views import Picked
from bigscreen.errors import InputError
from bigscreen.features.design import Design, weighted_columns
from bigscreen.fit.monitor import Report
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.given import Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual, Mu
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import Problem
from bigscreen.screening.dynamic import Rule
from bigscreen.solvers.protocol import Run, Save, Solver, Verdict
from bigscreen.train.partition import PARTITION, Partition, partition


@dataclass(frozen=True)
class DivideTuning:
    """Tuned values of divide and conquer, which first solves parts (clusters) of the rows."""

    # The rows are divided into fewer, larger parts from level to level: the number of parts is
    # divided by this.
    parts_factor: int = 4
    # Choose the number of parts so that a part has at most this many rows on average, unless the
    # options say how many parts there are.
    part_rows: int = 5000
    # A part has at most this multiple of the average rows of a part; further rows go to other
    # parts.
    max_imbalance: float = 2.0
    # Stop the solve of a part, or of all support vectors together, after this many passes over its
    # rows, even if its gap is not met.
    max_passes: int = 1000


DIVIDE = DivideTuning()


@dataclass(frozen=True)
class Divided:
    """The result of divide and conquer: the start alpha, the partition and the record of both.

    Parameters
    ----------
    alpha : float64 (n,)
        Feasible. The concatenated solutions of the parts; scaled and refined unless ``early``.
    partition : Partition
        The parts of the last level.
    intercepts : float64 (parts,)
        The offset of each part's machine.
    record : dict
        JSON-able. ``levels``: for each level a dict of parts, rows of the largest part, seconds,
        kernel entries, passes, and the sums of the parts' primal and dual objectives. ``scale``
        and ``refine``: factor or rows, seconds, kernel entries, and the dual objective D of alpha.
    """

    alpha: FloatArray
    partition: Partition
    intercepts: FloatArray
    record: dict[str, Any]


@dataclass(frozen=True)
class Division:
    """Options of divide and conquer: how to divide the rows, and how far to solve each part.

    Parameters
    ----------
    parts : int or None
        Number of parts of the first level; None: about 5,000 rows in each part.
    levels : int
        Number of levels. Each has a quarter of the parts of the level before. Levels with fewer
        than two parts, or with parts of more than ``largest`` rows, are left out.
    largest : int or None
        A part has at most this many rows, which a solver has memory for.
    count_at_once : callable or None
        Returns how many parts of a number of rows there is memory for at the same time; at least
        one is solved. None: as many as there are threads.
    refine : int or None
        Refine alpha on its support vectors if there are at most this many; 0: never, None: always.
    early : bool
        Stop after the parts.
    tol : float
        Relative gap at which parts and the refinement stop (KKT violation if the kernel is not
        positive semidefinite).
    rule : Rule or None
        Screening rule within the parts.
    seed : int
    deadline : float or None
        Value of ``time.monotonic()`` at which solves stop with what they have reached.
    report : callable
        Receives phases and progress.
    tuning : DivideTuning
    """

    parts: int | None = None
    levels: int = 1
    largest: int | None = None
    count_at_once: Callable[[int], int] | None = None
    refine: int | None = None
    early: bool = False
    tol: float = 1e-2
    rule: Rule | None = None
    seed: int = 0
    deadline: float | None = None
    report: Report = lambda event: None
    tuning: DivideTuning = DIVIDE


def divide(
    design: Design,
    problem: Problem,
    fleet: Fleet,
    solver: Solver,
    local: Callable[[int], AbstractContextManager[Fleet]],
    division: Division,
) -> Divided:
    """Solve each part of the rows by itself, and combine the solutions into one alpha.

    Parameters
    ----------
    design, problem
        What to solve: any design, including that of an exact kernel machine.
    fleet : Fleet
        Solves the parts, one item each. The result does not depend on its workers.
    solver : Solver
        Solves parts and the refinement; it must hold alpha.
    local : callable
        Makes the fleet, of a number of threads, on which a part is solved: ``Inline``. Picklable.
    division : Division

    Returns
    -------
    Divided

    Raises
    ------
    InputError
        If there are more parts than rows, or too few for parts of at most ``largest`` rows.
    """
    counts = count_parts(design.data.n_rows, division)
    levels = _Levels(design, problem, fleet, solver, division)
    for count in counts:
        levels.solve(count, local)
    if not division.early:
        levels.scale()
        if division.refine != 0:
            levels.refine()
    return Divided(levels.alpha, levels.partition, levels.intercepts, levels.record)


def count_parts(n: int, division: Division) -> list[int]:
    """Return the number of parts of each level of divide and conquer on ``n`` rows.

    Later levels with too few parts are left out.
    """
    parts, levels, largest = division.parts, division.levels, division.largest
    tuning = division.tuning
    fewest = 1 if largest is None else -(-n // max(largest, 1))
    if parts is None:
        # A tenth more parts than necessary, so that sizes can be balanced.
        enough = max(2, -(-n // tuning.part_rows), math.ceil(1.1 * fewest))
        parts = min(n, PARTITION.max_sample_rows, enough)
    if levels < 1:
        raise InputError(f"divide and conquer needs at least 1 level, got {levels}")
    counts = [parts // tuning.parts_factor**k for k in range(levels)]
    return counts[:1] + [count for count in counts[1:] if count >= max(2, fewest)]


def _divide_total(dual: Dual, rows: list[NDArray[np.int64]]) -> list[FloatArray]:
    """Divide the total of the coupling constraint among the parts, in proportion to their boxes.

    ``rows``: the row numbers of each part. Returns for each part its share (groups,), from 0 to 1.
    If the whole problem is feasible, the problem of each part is.
    """
    if dual.coupling is None:
        return [np.ones(1)] * len(rows)
    group = np.zeros(len(dual), np.int8) if dual.group is None else dual.group
    room, groups = dual.hi - dual.lo, np.size(dual.total)
    sums = np.array([np.bincount(group[ids], room[ids], groups) for ids in rows])
    return list(sums / np.where(sums.any(axis=0), sums.sum(axis=0), 1.0))


class _Levels:
    """The state of divide and conquer: alpha, which each level improves, and the record."""

    def __init__(
        self, design: Design, problem: Problem, fleet: Fleet, solver: Solver, division: Division
    ) -> None:
        """Begin with alpha = 0 over all rows, and an empty record."""
        data = design.data
        self.design, self.problem, self.fleet, self.solver = design, problem, fleet, solver
        self.division, self.report = division, division.report
        self.codes, self.weights = data.y(0, data.n_rows), data.weights(0, data.n_rows)
        self.dual = problem.dual(self.codes, self.weights)
        self.alpha = np.zeros(data.n_rows)
        self.record: dict[str, Any] = {"levels": []}
        self.partition: Partition
        self.intercepts: FloatArray

    def solve(self, parts: int, local: Callable[[int], AbstractContextManager[Fleet]]) -> None:
        """Partition the rows into ``parts`` parts, and solve each from its present alpha.

        ``local`` makes the fleet (of a number of threads) on which one part is solved.
        """
        began = time.monotonic()
        self.report({"event": "phase", "phase": "partition"})
        n, largest = len(self.alpha), self.division.largest
        even = math.ceil(self.division.tuning.max_imbalance * n / max(1, parts))
        pool = np.flatnonzero(self.alpha)
        self.partition = partition(
            self.design,
            self.fleet,
            parts,
            largest=even if largest is None else min(even, largest),
            seed=self.division.seed,
            pool=pool if len(pool) else None,
        )
        clustered = time.monotonic()
        self.report({"event": "phase", "phase": "divide"})
        sizes = self.partition.sizes
        # Row numbers by part, ascending within each; a row whose box is a point is no variable.
        order = np.argsort(self.partition.assign, kind="stable")
        rows = [
            ids[self.dual.hi[ids] > self.dual.lo[ids]]
            for ids in np.split(order, np.cumsum(sizes)[:-1])
        ]
        # The largest parts first: the last ones are small, so that all workers end together.
        turn = [p for p in np.argsort(-sizes, kind="stable").tolist() if len(rows[p])]
        division, at_once = self.division, max(1, min(len(turn), self.fleet.workers))
        if division.count_at_once is not None:
            at_once = max(1, min(at_once, division.count_at_once(int(sizes.max()))))
        threads = max(1, self.fleet.workers // at_once)
        how = division.tol, division.tuning.max_passes, division.rule
        task = PartFleet(self.design, self.problem, self.solver, local, *how)
        shares = _divide_total(self.dual, rows)
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
        # (Items are submitted ahead of the threads, unless there is no memory for more parts.)
        ahead = None if at_once == self.fleet.workers else at_once
        found_of = self.fleet.each(task, items, ahead)
        for done, (p, found) in enumerate(zip(turn, found_of, strict=True)):
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
        """Multiply alpha by the factor that maximises the dual objective."""
        began = time.monotonic()
        self.report({"event": "phase", "phase": "scale"})
        # Each part meets the coupling constraint up to rounding; their sum is a little farther off.
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

    def refine(self) -> None:
        """Solve on the support vectors alone, if ``refine`` allows this many."""
        support = np.flatnonzero(self.alpha)
        n, most = len(self.alpha), self.division.refine
        if not 0 < len(support) < (n if most is None else min(n, most + 1)):
            return
        began = time.monotonic()
        self.report({"event": "phase", "phase": "refine"})
        division = self.division
        limits = division.tol, division.tuning.max_passes, division.rule, division.deadline
        check = StartCheck(*limits, self.design.definite)
        found = solve_start(
            pick_rows(self.design, support, self.codes[support], self.weights[support]),
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
        """Return the seconds left: clocks of machines differ, so a deadline cannot be sent."""
        end = self.division.deadline
        return None if end is None else max(0.0, end - time.monotonic())


class Part(NamedTuple):
    """One part (cluster) of the rows, as `PartFleet` solves it, and the resources it may use.

    ``ids``: row numbers; ``codes``: label codes or targets; ``alpha``: where the solve starts;
    ``share``: the part's fraction of the coupling constraint's total, for each group of rows;
    ``threads`` and ``seconds`` limit the solve.
    """

    ids: NDArray[np.int64]
    codes: NDArray[Any]
    weights: FloatArray
    alpha: FloatArray
    share: FloatArray
    threads: int
    seconds: float | None


class PartSolution(NamedTuple):
    """The solution of one part: alpha, offset, both objectives, kernel entries and passes used."""

    alpha: FloatArray
    intercept: float
    primal: float
    dual: float
    entries: int
    passes: int


@dataclass
class StartCheck:
    """Stops a solve that only makes a start: no certificate, no closing pass.

    Screening rules may drop rows wrongly: the main solve, which starts from the result, has all
    rows again. The solve stops once its relative gap (KKT violation if not ``definite``) is at most
    ``target``, after ``most`` passes, or at ``deadline``. ``stats``: the solver's last report.
    """

    target: float
    most: int
    rule: Rule | None
    deadline: float | None
    definite: bool = True
    passes: int = 0
    stats: dict[str, Any] = field(default_factory=dict)

    def __call__(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        """Return None to stop the solve, else a verdict with the rule's screening region.

        ``point``: the solver's iterate; ``stats``: its report, of which "stalled" is read.
        """
        self.passes, self.stats = self.passes + 1, stats
        # Without a positive semidefinite kernel there is no gap, only the KKT violation.
        near = (point.relative_gap if self.definite else point.violation) <= self.target
        if near or stats["stalled"] or self.passes >= self.most or self.expired():
            return None
        return Verdict(None if self.rule is None else self.rule.region(point, point.rounding))

    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def pause(self, save: Save | None = None) -> None:
        """Do nothing: a part is not interrupted."""

    def restored(self, meta: dict[str, Any]) -> None:
        """Never called: a part has no checkpoints."""
        raise AssertionError

    @property
    def entries(self) -> int:
        """The number of kernel entries that the solver has reported; 0 if it reports none."""
        return int(self.stats.get("kernel_entries", 0))


@dataclass(frozen=True)
class PartFleet:
    """Solves the dual problem of one part (cluster) of the rows, wherever ``fleet.each`` calls it.

    ``fleet(threads)`` makes the fleet (threads of this worker) on which the part is solved; ``tol``
    and ``most`` are the relative gap and the number of passes at which the solve stops; ``rule``:
    the screening rule.
    """

    design: Design
    problem: Problem
    solver: Solver
    fleet: Callable[[int], AbstractContextManager[Fleet]]
    tol: float
    most: int
    rule: Rule | None

    def __call__(self, part: Part) -> PartSolution:
        """Solve one part from its alpha on this worker, within its threads and seconds."""
        problem = PartProblem(self.problem, part.share)
        dual = problem.dual(part.codes, part.weights)
        if _is_only_0_feasible(dual):
            zero = np.zeros(len(dual))
            return PartSolution(zero, problem.offset(dual.multiplier(zero)), 0.0, 0.0, 0, 0)
        deadline = None if part.seconds is None else time.monotonic() + part.seconds
        check = StartCheck(self.tol, self.most, self.rule, deadline, self.design.definite)
        design = load_rows(pick_rows(self.design, part.ids, part.codes, part.weights))
        with self.fleet(part.threads) as fleet:
            return solve_start(design, problem, self.solver, fleet, check, part.alpha)


@dataclass(frozen=True)
class PartProblem:
    """The problem ``whole`` for one part of the rows: its coupling has a fraction of the total.

    The coupling is the equality constraint of the dual; ``share``: the fraction, (groups,).
    """

    whole: Problem
    share: FloatArray

    @property
    def intercept(self) -> str:
        """How the whole problem treats the offset, see ``Problem``."""
        return self.whole.intercept

    @property
    def intercept_scaling(self) -> float:
        """The whole problem's scaling of a penalised offset, see ``Problem``."""
        return self.whole.intercept_scaling

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """Return the dual problem of a part's rows, with the part's share of the coupling's total.

        ``y``, ``weights``: label codes or targets, and weights; ``scale`` multiplies the box.
        """
        dual = self.whole.dual(y, weights, scale)
        share = self.share if dual.group is not None else float(self.share[0])
        return replace(dual, total=dual.total * share)

    def offset(self, mu: Mu) -> float:
        """Return the machine's offset, given the multiplier of the coupling constraint."""
        return self.whole.offset(mu)

    def at(self, value: float) -> PartProblem:
        """Return the same part of the problem with another C (or nu), see ``Problem``."""
        return replace(self, whole=self.whole.at(value))

    def factor(self, other: PartProblem) -> float | None:
        """Return the factor between the boxes of two problems; None if there is none."""
        return self.whole.factor(other.whole)


def _is_only_0_feasible(dual: Dual) -> bool:
    """Whether only alpha = 0 meets the coupling constraint, as for C-SVC rows of one class."""
    if dual.coupling is None or np.any(dual.total):
        return False
    ends = np.stack([dual.coupling * dual.lo, dual.coupling * dual.hi])
    return not (np.any(ends > 0) and np.any(ends < 0))


def solve_start(
    design: Design,
    problem: Problem,
    solver: Solver,
    fleet: Fleet,
    check: StartCheck,
    alpha: FloatArray,
) -> PartSolution:
    """Solve a problem until ``check`` stops it: its solution is a start for a larger problem.

    ``alpha``: (n,), where the solve starts; it is within its box, and first made feasible.
    """
    n = design.data.n_rows
    dual = problem.dual(design.data.y(0, n), design.data.weights(0, n))
    begin = dual.feasible(alpha)
    run = Run(design, problem, fleet, start=begin if begin.any() else None)
    point = solver.solve(run, check)
    if point.alpha is None:
        raise InputError("divide and conquer needs a solver that holds alpha; use pairs or cd")
    return PartSolution(
        point.alpha, point.intercept, point.primal, point.dual, check.entries, check.passes
    )


# -- ||w(alpha)||^2 ------------------------------------------------------------------------------
def squared_norm(
    design: Design,
    problem: Problem,
    coef: FloatArray,
    fleet: Fleet,
    max_block_rows: int = 8192,
) -> tuple[float, int]:
    """Return ``||sum_i coef_i phi_i||^2``, and the number of kernel entries computed for it.

    ``coef``: (n,). Without explicit features the sum runs over pairs of blocks of at most
    ``max_block_rows`` rows whose coefficient is not 0, each unordered pair once: a process holds at
    most two blocks.
    """
    constant = float(coef.sum()) ** 2 if problem.intercept == "constant" else 0.0
    if not design.exact:
        w = design.features(weighted_columns(design, coef, fleet)[:-1])
        return float(w @ w) + constant, 0
    support = np.flatnonzero(coef)
    size = min(max_block_rows, max(256, -(-len(support) // 8)))
    blocks = [support[a : a + size] for a in range(0, len(support), size)]
    pairs = (
        (one, other, coef[one], coef[other]) for k, one in enumerate(blocks) for other in blocks[k:]
    )
    total, entries = constant, 0
    for found, count in fleet.each(_BlockProduct(design), pairs):
        total, entries = total + found, entries + count
    return total, entries


@dataclass(frozen=True)
class _BlockProduct:
    """The function that computes ``a' K b`` of two blocks of rows; doubled for different blocks."""

    design: Design

    def __call__(
        self, item: tuple[NDArray[np.int64], NDArray[np.int64], FloatArray, FloatArray]
    ) -> tuple[float, int]:
        """Take (row ids, row ids, a, b); return ``a' K b`` and the number of kernel entries."""
        one, other, a, b = item
        data, kernel = self.design.data, self.design.kernel
        assert kernel is not None
        left = data.rows(one)
        same = one[0] == other[0]
        if isinstance(kernel, Precomputed):  # of the right rows only the numbers matter
            right: Any = sparse.csr_array((len(other), data.n_features), dtype=np.float32)
        else:
            right = left if same else data.rows(other)
        dtype = kernel.precision(data.max_sqnorm, data.n_features)
        dots = kernel.dots(Operand(left, one), Operand(right, other), b[:, None], dtype)[:, 0]
        return (1 if same else 2) * float(a @ dots), len(one) * len(other)


def longest_step(dual: Dual, alpha: FloatArray) -> float:
    """Return the largest t for which ``t * alpha`` is within the box."""
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(alpha > 0, dual.hi / alpha, np.where(alpha < 0, dual.lo / alpha, np.inf))
    return float(room.min(initial=np.inf))


def pick_rows(
    design: Design, ids: NDArray[np.int64], codes: NDArray[Any], weights: FloatArray
) -> Design:
    """Return the design (rows and kernel) of the rows ``ids`` alone, read from the original data.

    ``codes``, ``weights``: the label codes or targets, and weights, of these rows.
    """
    columns = isinstance(design.kernel, Precomputed)
    data = Picked(design.data, ids, codes, weights, columns)
    return replace(design, data=data, square=None)  # ``square``: the kernel matrix of all rows


def load_rows(design: Design) -> Design:
    """Return a design with its rows copied into memory."""
    data = design.data
    n = data.n_rows
    rows = MemoryDataset(data.X(0, n), data.y(0, n), data.layout.labels, data.weights(0, n))
    return replace(design, data=rows, square=None)
