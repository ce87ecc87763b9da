"""Compute where a solve begins: at 0, or at the solution of parts of the rows or few landmarks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigscreen.errors import InputError
from bigscreen.features import nystrom
from bigscreen.features.design import Design, compute_scores
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.memory import allowed_memory
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray
from bigscreen.plan.tuning import PLAN
from bigscreen.problems.point import SumLayout
from bigscreen.problems.recipes import Problem
from bigscreen.screening.dynamic import GapBall, make_rule
from bigscreen.solvers.block.solver import Block
from bigscreen.solvers.coordinate import CoordinateDescent
from bigscreen.solvers.newton.sampled import is_wide
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Near, Run, Solver
from bigscreen.solvers.smo.solver import Pairs
from bigscreen.train.divide import Divided, Division, divide
from bigscreen.train.job import Job, Start
from bigscreen.train.problems import Binary

START_FILE = "start.kept"
"""The file of a problem's folder that holds its start."""


@dataclass(frozen=True)
class StartTuning:
    """Tuned values of the starts of solves."""

    # Solve a smaller problem, whose solution is only the start of the fit, to this relative gap.
    tol: float = 1e-2
    # Start a fit on landmarks from the solution on this many times fewer landmarks.
    landmarks_factor: int = 8
    # Start an exact fit (without landmarks) from a fit with one landmark for every this many rows,
    # but at most ``max_landmarks``.
    rows_per_landmark: int = 20
    # Start an exact fit (without landmarks) from a fit with at most this many landmarks.
    max_landmarks: int = 1000
    # The memory limits the rows of a part (cluster) of divide and conquer, but never below this.
    min_part_rows: int = 256


START = StartTuning()


def starting_point(job: Job, design: Design, binary: Binary, tuning: StartTuning = START) -> Start:
    """Compute where a problem's solve starts, as `tuning.start` of the run's options requests.

    "auto" and "cold" start at 0, "divide" at the solutions of parts of the rows, "nystrom" at a
    machine on few landmarks. A resumed run reads the start from its work folder.
    """
    kind = job.options.tuning.start
    if kind in ("auto", "cold"):
        return Start()
    found = job.kept(binary).read(START_FILE)
    if found is not None:
        return Start(found[1]["alpha"], found[0])
    before = job.seconds.get("start", 0.0)
    with job.timed("start"):
        if kind == "divide":
            divided = solve_parts(job, design, binary.problem, tuning)
            alpha, record = divided.alpha, divided.record
        else:
            alpha, record = _start_from_landmarks(job, binary.problem, tuning)
    seconds = job.seconds["start"] - before
    record = {"label": binary.name, "start": kind, "seconds": seconds, **record}
    job.kept(binary).write(START_FILE, record, {"alpha": alpha})
    return Start(alpha, record)


def should_start_from_fewer(job: Job, design: Design, binary: Binary) -> bool:
    """Whether a solve starts from a loosely solved fit with a subset of its landmarks.

    Newton's solves of fits with many landmarks do, unless the options request another start.
    """
    asked = (
        job.options.tuning.start == "auto" and job.plan.solver == "newton" and binary.fold is None
    )
    return asked and is_wide(design) and not SumLayout.of(binary.problem, design.data).curved


def start_from_fewer(
    job: Job, design: Design, binary: Binary, tuning: StartTuning = START
) -> Start:
    """Start a fit with many landmarks from a loosely solved fit with a subset of them.

    The larger machine, with 0 as the coefficients of the other landmarks, has the same scores: the
    start takes no pass over the rows.
    """
    known = job.kept(binary).read(START_FILE)
    if known is not None:
        return Start(near=Near(known[1]["x"], known[0]["dual"]))
    with job.timed("start"):
        near = _fit_fewer(job, design, binary.problem, tuning)
    job.kept(binary).write(START_FILE, {"dual": near.dual}, {"x": near.x})
    return Start(near=near)


def _fit_fewer(job: Job, design: Design, problem: Problem, tuning: StartTuning) -> Near:
    """Fit a machine on a subset of the landmarks; returns it as a machine on all of them."""
    some = np.arange(0, design.width, tuning.landmarks_factor)
    job.report({"event": "phase", "phase": f"start from {len(some)} of the landmarks"})
    assert design.kernel is not None
    side = Operand(design.side.X[some])
    fewer = nystrom.factor_landmarks(design.kernel, side).of(design, side)
    fitted = fit(
        Run(fewer, problem, job.fleet, resident=job.plan.resident, spare=job.plan.nearby_bytes),
        Newton(tol=tuning.tol),
        Limits(tuning.tol, job.options.max_iter, job.problem_deadline),
    )
    coef = np.zeros(design.width)
    coef[some] = fewer.coef(fitted.point.w)
    x = design.features(design.multiply_by_landmark_kernel(coef))
    point, frame = fitted.point, SumLayout.of(problem, design.data)
    multiplier = np.array(point.multiplier or (point.intercept,) * frame.groups)
    if frame.first:
        constant = point.intercept - problem.offset(frame.mu(np.append(0.0, multiplier)))
        x = np.append(x, constant / frame.constant)
    return Near(np.append(x, multiplier), fitted.certificate.dual)


def solve_parts(job: Job, design: Design, problem: Problem, start: StartTuning = START) -> Divided:
    """Solve the problem on each part of the rows, and join the parts' alphas.

    The joined alpha is the start of the solve over all rows or, with the option ``early``, the
    result. ``start`` has the tuned values, and ``job`` the options of the run.

    Raises
    ------
    InputError
        If the rows are features that are recomputed, not stored.
    """
    options, tuning = job.options, job.options.tuning
    if design.landmarks is not None:
        raise InputError(
            "`tuning.start='divide'` needs features that are stored; use `tuning.features='stored'`"
        )
    of_row = PLAN.row_copies * design.data.row_bytes
    of_row += PLAN.exact_shard_row_bytes + PLAN.exact_host_row_bytes
    of_columns = _part_bytes(job, design)
    room = max(job.plan.cache_bytes or PLAN.pair_cache_bytes, job.plan.nearby_bytes)

    def count_at_once(rows: int) -> int:
        """Return how many parts of this many rows there is memory for at the same time."""
        return int(room // (rows * of_row + min(of_columns, 4 * rows**2)))

    division = Division(
        parts=tuning.parts,
        largest=max(start.min_part_rows, int(of_columns // of_row)),
        count_at_once=count_at_once,
        levels=tuning.levels,
        early=options.early,
        tol=options.tol if options.early else max(start.tol, options.tol),
        rule=make_rule(options.rule, tuning.f, tuning.patience),
        seed=options.seed,
        deadline=job.problem_deadline,
        report=job.report,
    )
    return divide(design, problem, job.fleet, _part_solver(job, design), Inline, division)


def _part_solver(job: Job, design: Design) -> Solver:
    """Return the solver for the parts of divide and conquer, one that holds alpha."""
    cache = _part_bytes(job, design)
    if design.exact:
        return Block(cache=cache, seed=job.options.seed)
    if job.options.coupled:
        return Pairs(cache=cache)
    return CoordinateDescent(seed=job.options.seed)


def _part_bytes(job: Job, design: Design) -> int:
    """Return the bytes that the rows of a part (cluster) may take while a worker solves it.

    The part's kernel columns may take as many. The number does not depend on the workers, and so
    neither do the parts.
    """
    most = job.options.cache or PLAN.pair_cache_bytes
    if design.exact and job.options.cache is None:
        most = int(PLAN.cache_share * allowed_memory(job.options.memory))
    return most // 2


def _start_from_landmarks(
    job: Job, problem: Problem, tuning: StartTuning
) -> tuple[FloatArray, dict[str, Any]]:
    """Solve a machine on few landmarks loosely; returns its alpha and the record of the solve."""
    data, fleet, options = job.data, job.fleet, job.options
    m = options.landmarks // tuning.landmarks_factor
    if options.exact:
        m = min(data.n_rows // tuning.rows_per_landmark, tuning.max_landmarks)
    m = max(1, m)
    job.report({"event": "phase", "phase": f"start from {m} landmarks"})
    bare = job.design_of(job.kernel)
    assert bare.kernel is not None
    side, _ = nystrom.choose_landmarks(bare.data, bare.kernel, m, "uniform", options.seed)
    design = replace(bare, landmarks=side, factor=nystrom.factor_matrix(bare.kernel, side))
    fitted = fit(
        Run(design, problem, fleet, resident=job.plan.resident, spare=job.plan.nearby_bytes),
        Newton(tol=tuning.tol),
        Limits(tuning.tol, options.max_iter, job.problem_deadline),
        rule=GapBall(),
    )
    dual = problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
    alpha = np.zeros(data.n_rows)
    for reading in fitted.point.readings:
        decision = compute_scores(design, reading.coef, fleet) + reading.intercept
        alpha += reading.weight * reading.alpha(dual, decision)
    record = {
        "landmarks": m,
        "passes": len(fitted.history),
        "relative_gap": fitted.certificate.relative_gap,
    }
    return dual.feasible(alpha), record
