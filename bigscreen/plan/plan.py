"""What a fit will need, before it runs: memory, disk, its solver, and where its features live."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bigscreen.data.rows import Rows
from bigscreen.fleet.inline import usable_processors
from bigscreen.fleet.memory import allowed_memory
from bigscreen.fleet.protocol import Fleet
from bigscreen.options.train import TrainOptions
from bigscreen.plan.exact import has_pairs, outline_exact
from bigscreen.plan.features import choose_solver, outline
from bigscreen.plan.memory import Plan, Request
from bigscreen.plan.tuning import PLAN


def plan(
    data: Rows,
    options: TrainOptions,
    workers: int = 1,
    cluster: bool = False,
    fits: int = 1,
    limit: int | None = None,
) -> Plan:
    """Outline a fit without running it, or so many of them that share their features.

    Parameters
    ----------
    data : Rows
    options : TrainOptions
    workers, cluster : int, bool
        Threads of this process, or worker processes of a cluster.
    fits : int
    limit : int or None
        Bytes that each worker process may hold; None: nobody has said.

    Returns
    -------
    Plan
        ``refusal`` says why it cannot run within ``options.memory``.
    """
    allowed = allowed_memory(options.memory)
    if limit is not None and options.memory is None:
        allowed += workers * limit  # of workers that run elsewhere
    elif limit is not None:
        limit = min(limit, allowed // (workers + 1))
    request = Request(
        kernel=options.record["kernel"],
        landmarks=min(options.landmarks, data.n_rows),
        solver=options.solver,
        features=options.tuning.features,
        intercept=options.offset,
        memory=allowed,
        workers=workers,
        cluster=cluster,
        strategy=options.strategy,
        cache=None if options.cache is None else int(options.cache),
        problem=options.problem,
        sampling=options.sampling,
        fits=fits,
        tol=options.tol,
        limit=limit,
        tuning=PLAN,
    )
    if cluster and _is_small(data, request, options.exact):
        threads = min(workers, usable_processors())
        request = replace(request, workers=threads, cluster=False, idle=workers)
    return outline_exact(data, request) if options.exact else outline(data, request)


def _is_small(data: Rows, request: Request, exact: bool) -> bool:
    """Whether one process solves it about as quickly as several, so that it is the coordinator."""
    n = data.n_rows
    if exact:
        return n <= request.tuning.few_rows and has_pairs(request, n)
    m = data.n_features if request.is_linear else request.landmarks
    return choose_solver(request, n, m) == "interior"


def plan_on(fleet: Fleet, data: Rows, options: TrainOptions, fits: int = 1) -> Plan:
    """Outline a fit on a fleet, or so many of them that share their features."""
    cluster = hasattr(fleet, "address")
    return plan(data, options, fleet.workers, cluster, fits, fleet.worker_memory)


def plan_of_fits(
    data: Rows, options: TrainOptions, fleet: Any, fits: int
) -> tuple[TrainOptions, Plan]:
    """Outline so many fits over the same features; the options, too, with which they can run.

    Where features would be written to disk and there is no folder, they are computed again.
    """
    found = plan_on(fleet, data, options, fits)
    if options.work is None and found.features == "stored" and not found.features_in_memory:
        options = options.tuned(features="recomputed")
        found = plan_on(fleet, data, options, fits)
    return options, found


def over_stored(data: Rows, options: TrainOptions, fleet: Any, outlined: Plan) -> Plan | None:
    """Outline a fit over stored features that memory could hold, where nobody asked for either.

    None where it has them, has no features, or there is no room for them.
    """
    if options.tuning.features != "auto" or outlined.features != "recomputed":
        return None
    found = plan_on(fleet, data, options.tuned(features="stored"))
    # Workers keep what would fit into memory on disk, too.
    held = found.features_in_memory or (found.resident == 1.0 and options.work is not None)
    return found if held and not found.refusal else None
