"""From a data set to a fitted model: the main job, the same for Python and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.fit.monitor import Report
from bigscreen.fleet.blas import blas_threads
from bigscreen.fleet.inline import usable_processors
from bigscreen.fleet.memory import allowed_memory
from bigscreen.fleet.protocol import Fleet
from bigscreen.model.model import Model
from bigscreen.train.cross import calibration, folds_of, with_folds
from bigscreen.train.exact import EarlyJob, ExactJob
from bigscreen.train.features import FeaturesJob
from bigscreen.train.many import ManyJob, Outcomes
from bigscreen.train.options import TrainOptions
from bigscreen.train.plan import Plan, Request, is_small, outline, outline_exact
from bigscreen.train.problems import check_rows, problems
from bigscreen.train.speed import USUAL, Speed

__all__ = ["TrainOptions", "check", "plan", "train", "train_many"]


def check(data: Rows, options: TrainOptions) -> None:
    """Refuse rows that the problem cannot be fitted to; labels and weights are looked at alone.

    Raises
    ------
    InputError
        Rows without a label or target, one class only, a nu that is infeasible.
    """
    check_rows(data, options.problem, options.classifies)
    problems(data, options)
    if options.probability:
        folds_of(data, options)


def plan(
    data: Rows,
    options: TrainOptions,
    workers: int = 1,
    cluster: bool = False,
    fits: int = 1,
    speed: Speed = USUAL,
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
    speed : Speed
        Of this machine, where the time is of interest (`train.speed.known`).
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
        options.record["kernel"],
        min(options.landmarks, data.n_rows),
        options.solver,
        options.features,
        options.offset,
        allowed,
        workers,
        cluster,
        options.strategy,
        None if options.cache is None else int(options.cache),
        options.problem,
        options.sampling,
        fits,
        options.tol,
        limit,
    )
    if cluster and is_small(data, request, options.exact):
        threads = min(workers, usable_processors())
        request = replace(request, workers=threads, cluster=False, idle=workers)
    outlined = outline_exact if options.exact else outline
    return outlined(data, request, speed)


def plan_on(fleet: Fleet, data: Rows, options: TrainOptions, fits: int = 1) -> Plan:
    """Outline a fit on a fleet, or so many of them that share their features."""
    cluster = hasattr(fleet, "address")
    return plan(data, options, fleet.workers, cluster, fits, limit=fleet.worker_memory)


def plan_of_fits(
    data: Rows, options: TrainOptions, fleet: Any, fits: int
) -> tuple[TrainOptions, Plan]:
    """Outline so many fits over the same features; the options, too, with which they can run.

    Where features would be written to disk and there is no folder, they are computed again.
    """

    def outlined(options: TrainOptions) -> Plan:
        return plan_on(fleet, data, options, fits)

    found = outlined(options)
    if options.work is None and found.features == "stored" and not found.features_in_memory:
        options = replace(options, features="recomputed")
        found = outlined(options)
    return options, found


def over_stored(data: Rows, options: TrainOptions, fleet: Any, outlined: Plan) -> Plan | None:
    """Outline a fit over stored features that memory could hold, where nobody asked for either.

    None where it has them, has no features, or there is no room for them.
    """
    if options.features != "auto" or outlined.features != "recomputed":
        return None
    stored = replace(options, features="stored")
    found = plan_on(fleet, data, stored)
    # Workers keep what would fit into memory on disk, too.
    held = found.features_in_memory or (found.resident == 1.0 and options.work is not None)
    return found if held and not found.refusal else None


def train(
    data: Rows,
    options: TrainOptions,
    fleet: Any,
    report: Report | None = None,
    deadline: float | None = None,
) -> Model:
    """Fit a model and certify it.

    Parameters
    ----------
    data : Rows
        A stored or in-memory data set; every row must have a label, for a regression a target.
    options : TrainOptions
    fleet : Fleet
        Where it runs, `Inline` or `Cluster`; the result is the same bit for bit on any number of
        workers.
    report : callable or None
        Receives events: phases, and one per pass.
    deadline : float or None
        Value of ``time.monotonic()`` at which the time budget ends, of a run that can be resumed:
        it bounds the writing of features, too. Default: the budget from now on, for the solve.

    Returns
    -------
    Model
        With its certificate in ``provenance``; a ConvergenceWarning says where the gap was missed.

    Raises
    ------
    InputError
        Bad parameters, rows without a label or target, one class only, a nu that is infeasible, or
        a fit that cannot fit in memory, a store that was replaced meanwhile.
    TimeOver
        If ``deadline`` passes while features are written.
    """
    kind = EarlyJob if options.early else ExactJob if options.exact else FeaturesJob
    outlined = plan_on(fleet, data, options)
    instead = over_stored(data, options, fleet, outlined)
    # One BLAS thread: BLAS's own threads spin for a while after every product, and the shards'
    # threads run just then.
    with blas_threads(1), kind(data, options, fleet, report, outlined, deadline) as job:
        job.instead = instead
        job.begin()
        if options.probability:
            job.fold = folds_of(data, options)
        for some in job.turns():
            job.solve(some)
        learnt = calibration(job) if options.probability else None
        model = job.model()
        if learnt is not None:
            model = with_folds(job, model, *learnt)
    data.check_unchanged()
    return model


def train_many(
    data: Rows, options: TrainOptions, fleet: Any, outcomes: Sequence[Outcomes]
) -> list[Model]:
    """Fit one machine to many labels, targets or weights of the same rows, and certify each.

    Parameters
    ----------
    data, options, fleet
        As ``train`` takes them; of a machine on features (not exact).
    outcomes : sequence of Outcomes

    Returns
    -------
    list of Model
        In their order. All share their landmarks; each has its own certificate.

    Raises
    ------
    InputError
        As ``train`` does; and for an exact machine, which has no features to share, and where
        probabilities are asked for.
    """
    if options.exact:
        raise InputError(
            "many fits at once share their features, and an exact kernel machine has none; use "
            "landmarks, or a linear machine"
        )
    if options.probability:
        raise InputError(
            "many fits at once learn no probabilities, whose folds are fits again; leave out "
            "probability"
        )
    outlined = plan_on(fleet, data, options, len(outcomes))
    with blas_threads(1), ManyJob(data, options, fleet, outlined, outcomes) as job:
        job.begin()
        for some in job.turns():
            job.solve(some)
        models = job.models()
    data.check_unchanged()
    return models
