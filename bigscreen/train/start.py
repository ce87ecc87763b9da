"""Compute where a solve begins: at 0, parts of the rows, few landmarks, or an earlier machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.rows import Rows
from bigscreen.data.views import Moved
from bigscreen.errors import InputError
from bigscreen.features import nystrom
from bigscreen.features.design import Design, compute_scores
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.memory import allowed_memory
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.given import Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import PROBLEMS, TrainOptions
from bigscreen.plan.tuning import PLAN
from bigscreen.problems.dual import Dual
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
from bigscreen.train.records import kind_and_labels

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
    # Start a fit on landmarks at an earlier machine if no parameter of its kernel differs by more
    # than this fraction. (Measured for gamma: 5 % saves 35 to 69 % of the time on a9a, ijcnn1 and
    # MAGIC; 10 % costs a fifth on MAGIC.)
    max_kernel_change: float = 0.05


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


def start_at_earlier_w(
    job: Job, design: Design, source: Design | None, binary: Binary, tuning: StartTuning = START
) -> Start | None:
    """Start a problem on features at the machine of `job.before`, an earlier fit; None: cold.

    Newton steps start at its w. Coordinate descent starts at the alpha that w implies if losses are
    squared; other solvers, and fits with another kernel or other labels, start cold.

    ``source``: the kernel design behind ``design``; None for a linear machine.
    """
    k, before, n = _earlier_machine(job, binary), job.before, design.data.n_rows
    if k is None or before is None or PROBLEMS[job.options.problem].parameters == ("nu",):
        return None
    if not _has_kernel(before, job.kernel, tuning.max_kernel_change):
        return None
    record = {"label": binary.name, "start": "warm"}
    if job.plan.solver == "newton":
        x = earlier_x(design, source, binary.problem, before, k)
        # alpha, scaled as C is, has this D if the rows are the old ones; for others it is a guess.
        D, q = before.provenance["certificates"][k]["dual"], 0.5 * float(x @ x)
        t = min(1.0, _penalty_ratio(binary.problem, before))
        return Start(record=record, near=Near(x, t * D + t * (1.0 - t) * q))
    if job.plan.solver != "cd" or not PROBLEMS[job.options.problem].squared:
        return None
    x = earlier_x(design, source, binary.problem, before, k)
    offset = binary.problem.intercept_scaling * float(np.sum(x[design.rank :]))
    scores = compute_scores(design, x[: design.rank], job.fleet) + offset
    dual = binary.problem.dual(design.data.y(0, n), design.data.weights(0, n))
    return Start(dual.best(dual.gradient(scores)), record)


def explain_cold(data: Rows, options: TrainOptions) -> str | None:
    """Say what makes all such fits start cold, or None if a start can save time."""
    solvers = ("auto", "block", "pairs") if options.exact else ("auto", "newton", "cd")
    squared = PROBLEMS[options.problem].squared
    for found, what in (
        (data.n_targets > 1, "a fit to several targets"),
        (options.early, "a fit with early"),
        (options.metric_learning != "none", "a fit that learns a metric"),
        (
            not options.exact and PROBLEMS[options.problem].parameters == ("nu",),
            "a machine with nu on landmarks",
        ),
        (options.solver not in solvers, f"the solver {options.solver}"),
        (options.solver == "cd" and not squared, "coordinate descent on a loss without a square"),
    ):
        if found:
            return what
    return None


def earlier_x(
    design: Design, source: Design | None, problem: Problem, model: Model, k: int
) -> FloatArray:
    """Return the k-th machine of a model as a primal point of a problem: x as in `Near`.

    If the landmarks of the model and of ``source`` differ, the machine is projected onto the
    features of the new landmarks.
    """
    w, offset, data = model.coef[k], float(model.intercept[k]), design.data
    if source is not None:
        assert source.kernel is not None
        rows: Any = model.landmarks
        if isinstance(source.data, Moved):
            rows = source.data.move(rows)
        if rows.shape == source.side.X.shape and np.all(_equal_rows(rows, source.side.X)):
            sums = source.multiply_by_landmark_kernel(w)
        else:
            sums = source.kernel.dots(source.side, Operand(rows), w[:, None], np.float64)[:, 0]
        w = source.features(sums)
    elif isinstance(data, Moved):
        offset += data.shift(w)
    layout = SumLayout.of(problem, data)
    constant = [offset / layout.constant] if layout.first else []
    return np.concatenate([w, constant, [offset] * layout.groups])


def start_at_earlier_alpha(
    job: Job, design: Design, binary: Binary, rows: NDArray[np.int64] | None = None
) -> Start | None:
    """Start a problem of an exact machine at the alpha of `job.before`, an earlier fit.

    Each support vector of the earlier machine that still is the row of its number gives its alpha,
    scaled as C (or the coupling's total) is. None: the start is cold, as there is no such row, or
    the kernel or the labels are others.

    ``rows``: the row numbers of the design's rows; None: all rows.
    """
    k, before = _earlier_machine(job, binary), job.before
    if k is None or before is None or not _has_kernel(before, job.kernel, np.inf):
        return None
    places, kept = _places_of_support(before, job.data)
    if not len(places):
        return None
    coef = np.zeros(job.data.n_sources)
    coef[places] = before.coef[k, kept]
    coef = np.tile(coef, job.data.sides)
    dual = design.dual(binary.problem)
    alpha = dual.sign * (coef if rows is None else coef[rows])
    try:
        alpha = _scale_to_total(dual, alpha * _penalty_ratio(binary.problem, before))
    except ValueError:
        return None
    return Start(alpha, {"label": binary.name, "start": "warm"})


def _earlier_machine(job: Job, binary: Binary) -> int | None:
    """Return the number of the machine in `job.before` that solved this problem earlier; or None.

    It has the same labels, columns and pairs of labels. Folds have no earlier machine.
    """
    before = job.before
    if before is None or binary.fold is not None or before.gate is not None:
        return None
    now = {**kind_and_labels(job.data, job.options), "strategy": job.options.strategy}
    alike = all(getattr(before, name) == value for name, value in now.items())
    alike = alike and len(before.coef) == len(job.problems)
    if not alike or before.n_features != job.data.n_features:
        return None
    return [one.folder for one in job.problems].index(binary.folder)


def _has_kernel(model: Model, kernel: Kernel, most: float) -> bool:
    """Whether a model has this kernel, each parameter changed by at most the fraction ``most``."""
    old, new = model.kernel.to_dict(), kernel.to_dict()
    if old.keys() != new.keys() or old["name"] != new["name"]:
        return False
    return all(
        value == new[name]
        or (isinstance(value, float) and abs(new[name] - value) <= most * abs(value))
        for name, value in old.items()
    )


def _penalty_ratio(problem: Problem, model: Model) -> float:
    """Return the problem's C as a multiple of the C that the model was fitted with; 1 without C."""
    C = getattr(problem, "C", None)
    return 1.0 if C is None else float(C / model.provenance["parameters"]["C"])


def _places_of_support(model: Model, data: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the model's support vectors among the rows, by row number; drop changed rows.

    Returns the positions of the rows that are left, and of the support vectors in the model.
    """
    assert model.support is not None
    numbers = data.row_ids(0, data.n_sources)
    order = np.argsort(numbers, kind="stable")
    at = np.minimum(np.searchsorted(numbers, model.support, sorter=order), len(numbers) - 1)
    kept = np.flatnonzero(numbers[order[at]] == model.support)
    places = order[at[kept]]
    if isinstance(model.kernel, Precomputed) or not len(kept):
        return places, kept
    vectors: Any = model.landmarks
    same = _equal_rows(vectors[kept], data.rows(places))
    return places[same], kept[same]


def _equal_rows(A: Any, B: Any) -> NDArray[np.bool_]:
    """Whether each row of A equals the row of B with its number, bool (rows,); dense or CSR."""
    different: Any = A != B
    found: NDArray[np.bool_] = np.ravel(different.sum(axis=1)) == 0
    return found


def _scale_to_total(dual: Dual, alpha: FloatArray) -> FloatArray:
    """Return a feasible alpha near this one, scaled in each group whose total is not 0.

    Raises ValueError if no alpha within the box has the total.
    """
    if dual.coupling is None:
        return dual.feasible(alpha)
    alpha = np.clip(alpha, dual.lo, np.inf)
    for g, total in enumerate(np.atleast_1d(dual.total).tolist()):
        own: Any = slice(None) if dual.group is None else dual.group == g
        found = float(np.sum((dual.coupling * alpha)[own]))
        if total and found * total > 0:
            alpha[own] *= total / found
    return dual.feasible(alpha)


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
