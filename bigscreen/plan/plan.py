"""Plan a fit before it runs: its solver, its features, memory and disk space."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from bigscreen.data.rows import Rows
from bigscreen.device.find import HOST, Device, find_on
from bigscreen.fleet.inline import usable_processors
from bigscreen.fleet.memory import allowed_memory
from bigscreen.fleet.protocol import Fleet
from bigscreen.options.train import TrainOptions
from bigscreen.plan.device import choose_device, plan_device
from bigscreen.plan.exact import is_solved_by_pairs, plan_exact
from bigscreen.plan.features import choose_solver, plan_features
from bigscreen.plan.memory import Plan, Request
from bigscreen.plan.tuning import PLAN


def plan(  # noqa: PLR0913
    data: Rows,
    options: TrainOptions,
    workers: int = 1,
    cluster: bool = False,
    fits: int = 1,
    limit: int | None = None,
    *,
    device: Device = HOST,
    has_folder: bool = True,
    prefers_stored: bool = False,
) -> Plan:
    """Plan a fit without running it, or ``fits`` fits that share their features.

    Parameters
    ----------
    data : Rows
    options : TrainOptions
    workers, cluster : int, bool
        Number of threads of this process, or of worker processes of a cluster.
    fits : int
    limit : int or None
        Bytes that each worker process may hold; None: unknown.
    device : Device
        The device that computes, see `choose_device`.
    has_folder : bool
        Features may be written to disk; else features that do not fit in memory are recomputed.
    prefers_stored : bool
        Store features that fit in memory even if recomputing them is cheaper, unless the options
        name either.

    Returns
    -------
    Plan
        Its ``refusal`` says why the fit cannot run within ``options.memory``.
    """
    allowed = allowed_memory(options.memory)
    if limit is not None and options.memory is None:
        allowed += workers * limit  # workers may run on other machines
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
        on_device=plan_device(device, data, options, workers if cluster else 1),
        tuning=PLAN,
    )
    found = _plan_request(data, request, options.exact)
    if not has_folder and found.features == "stored" and not found.features_in_memory:
        return _plan_request(data, replace(request, features="recomputed"), options.exact)
    if prefers_stored and options.tuning.features == "auto" and found.features == "recomputed":
        stored = _plan_request(data, replace(request, features="stored"), options.exact)
        # On a cluster, features are on disk even if they fit in memory.
        on_disk = stored.resident == 1.0 and options.work is not None
        if (stored.features_in_memory or on_disk) and not stored.refusal:
            return stored
    return found


def _plan_request(data: Rows, request: Request, exact: bool) -> Plan:
    """Plan a fit; the coordinating process alone runs a fit too small for several workers.

    ``exact``: whether the machine has an exact kernel, not landmarks or linear features.
    """
    if request.cluster and _is_small(data, request, exact):
        threads = min(request.workers, usable_processors())
        request = replace(request, workers=threads, cluster=False, idle=request.workers)
    return plan_exact(data, request) if exact else plan_features(data, request)


def _is_small(data: Rows, request: Request, exact: bool) -> bool:
    """Whether one process would solve the problem about as fast as several.

    ``exact``: whether the machine has an exact kernel, not landmarks or linear features.
    """
    n = data.n_rows
    if exact:
        return n <= request.tuning.few_rows and is_solved_by_pairs(request, n)
    m = data.n_features if request.is_linear else request.landmarks
    return choose_solver(request, n, m) == "interior"


def plan_on(
    fleet: Fleet,
    data: Rows,
    options: TrainOptions,
    fits: int = 1,
    *,
    device: Device = HOST,
    has_folder: bool = True,
    prefers_stored: bool = False,
) -> Plan:
    """Plan a fit on a fleet's threads or workers, or ``fits`` fits that share their features.

    ``device``, ``has_folder``, ``prefers_stored``: see `plan`.
    """
    return plan(
        data,
        options,
        fleet.workers,
        hasattr(fleet, "address"),
        fits,
        fleet.worker_memory,
        device=device,
        has_folder=has_folder,
        prefers_stored=prefers_stored,
    )


def choose_shared_device(fleet: Fleet, data: Rows, options: TrainOptions, fits: int) -> Device:
    """Choose the device that solves ``fits`` fits together, which share their features.

    The CPU if the machine is exact, which has no features; or if the device has too little memory
    for a fit that did not ask for it.

    Raises
    ------
    InputError
        As `choose_device`, for a machine that is not exact.
    """
    if options.exact:
        return HOST
    device = choose_device(data, options, partial(find_on, fleet), fits)
    workers = fleet.workers if hasattr(fleet, "address") else 1
    return HOST if plan_device(device, data, options, workers) is None else device


def plan_stored(data: Rows, options: TrainOptions, fleet: Any, outlined: Plan) -> Plan | None:
    """Plan a fit again, with stored features that fit in memory.

    None if the options name stored or recomputed features, if the first plan stores them or has
    none, or if there is no room for them.
    """
    if options.tuning.features != "auto" or outlined.features != "recomputed":
        return None
    found = plan_on(fleet, data, options, device=outlined.device, prefers_stored=True)
    return found if found.features == "stored" else None
