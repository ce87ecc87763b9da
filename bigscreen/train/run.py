"""Fit a model to a data set: `train`, which Python and the command line share."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bigscreen.data.rows import Rows, check_one_target
from bigscreen.data.views import Mapped
from bigscreen.device.find import explain_failures, find_on
from bigscreen.errors import InputError
from bigscreen.fit.monitor import Report
from bigscreen.fleet.blas import blas_threads
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.plan.device import choose_device
from bigscreen.plan.memory import Plan
from bigscreen.plan.plan import plan_on, plan_stored
from bigscreen.train.cross import add_folds, calibrate, make_folds
from bigscreen.train.exact import EarlyJob, ExactJob
from bigscreen.train.features import FeaturesJob
from bigscreen.train.many import ManyJob, Outcomes
from bigscreen.train.metric import check_columns, learn_metric, options_of_first
from bigscreen.train.problems import check_rows, problems

Made = TypeVar("Made")


def check_problem(data: Rows, options: TrainOptions) -> None:
    """Refuse rows that the problem cannot be fitted to, by their labels and weights alone.

    Raises
    ------
    InputError
        If rows have no label or target, there is only one class, or a nu is infeasible.
    """
    if data.n_targets > 1:
        _check_targets(data, options)
    check_rows(data, options.problem, options.classifies)
    problems(data, options)
    if options.probability:
        make_folds(data, options)


def train(
    data: Rows,
    options: TrainOptions,
    fleet: Any,
    report: Report | None = None,
    deadline: float | None = None,
    scratch: Callable[[], Path] | None = None,
    before: Model | None = None,
) -> Model:
    """Fit a model and certify it.

    With several targets the model has a machine for each, with a certificate and a ledger of its
    own. All share landmarks, features and passes over the rows.

    Parameters
    ----------
    data : Rows
        A data set, stored or in memory. Every row must have a label, or all targets for regression.
    options : TrainOptions
    fleet : Fleet
        Runs the fit: `Inline` or `Cluster`. The result does not depend on it, bit for bit.
    report : callable or None
        Receives events (dicts): the beginning of each phase, and the end of each pass.
    deadline : float or None
        Value of ``time.monotonic()`` at which the time budget ends. Given for runs that can be
        resumed, as it also bounds the writing of features. Default: the options' time budget,
        from now on, for the solve alone.
    scratch : callable or None
        Makes a folder for features that memory cannot hold, if ``options.work`` is None.
    before : Model or None
        The model of an earlier fit, of these rows or of others, whose machines the solves start at
        if that saves time (`train.start`). It changes the time that the fit takes, not what is
        fitted and proved. Not used for several targets.

    Returns
    -------
    Model
        Its certificate is in ``provenance``; a ConvergenceWarning says if it missed the gap.

    Raises
    ------
    InputError
        If parameters are bad, rows have no label or target, there is only one class, a nu is
        infeasible, memory is too small, or the data were replaced meanwhile. With several targets
        also for an exact machine, a learned metric and probabilities.
    DeviceFailed
        If a device fails during the fit.
    TimeOver
        If ``deadline`` passes while features are written.
    """
    if data.n_targets > 1:
        return _train_targets(data, options, fleet, report, deadline, scratch)
    began = time.monotonic()
    rows = data
    if options.metric_learning != "none":
        for given in options.metric_machines:
            own = replace(options, metric_from=given or None)
            rows = _map_rows(data, rows, own, fleet, report, deadline, scratch)
        if deadline is None and options.time_budget is not None:
            deadline = began + options.time_budget
    learned = time.monotonic() - began
    kind = EarlyJob if options.early else ExactJob if options.exact else FeaturesJob
    options, outlined = _plan_fits(rows, options, fleet, scratch)
    check_rows(rows, options.problem, options.classifies)
    fold = make_folds(rows, options) if options.probability else None
    instead = partial(plan_stored, rows, options, fleet, outlined)
    run = kind(rows, options, fleet, report, outlined, deadline, fold, instead)
    run.before = before
    # One BLAS thread: idle threads of BLAS spin after each product, and would take cores from the
    # threads of the shards.
    with blas_threads(1), explain_failures(outlined.device), run as job:
        job.begin()
        for some in job.turns():
            job.solve(some)
        learnt = None
        if options.probability:
            with job.timed("probability"):
                learnt = calibrate(job)
        model = job.model()
        if learnt is not None:
            model = add_folds(job, model, *learnt)
    data.check_unchanged()
    return model if rows is data else _record_metric(model, data, options, learned)


def _map_rows(
    data: Rows,
    mapped: Rows,
    options: TrainOptions,
    fleet: Any,
    report: Report | None,
    deadline: float | None,
    scratch: Callable[[], Path] | None,
) -> Rows:
    """Learn the metric that the options request; return the rows with it. Arguments as of `train`.

    ``mapped``: ``data``, or these rows by the metric that is known so far. The machine that it is
    learned from is fitted to them, and may take a third of the time budget that is left.
    """
    check_columns(data, options.metric_learning)
    first = options_of_first(options, data.n_rows)
    left = options.time_budget if deadline is None else deadline - time.monotonic()
    if left is not None:
        first = replace(first, time_budget=max(1e-3, left / 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the machine that is published warns for itself
        model = train(mapped, first, fleet, report, None, scratch)
    if first.work is not None:
        shutil.rmtree(first.work, ignore_errors=True)
    if report is not None:
        report({"event": "phase", "phase": "metric"})
    with blas_threads(1):
        return Mapped(data, learn_metric(model, mapped, options.metric_learning, fleet))


def _record_metric(model: Model, data: Rows, options: TrainOptions, seconds: float) -> Model:
    """Record in a model's provenance that its rows were mapped; return the model.

    ``data``: the rows before the map; ``seconds``: what learning the map took.
    """
    known = model.provenance
    if known["fingerprint"] is not None:
        known["fingerprint"] = data.fingerprint  # the map is in the preparation
    known["metric"] = {"kind": options.metric_learning, "columns": data.n_features}
    if options.metric_from is not None:
        known["metric"]["from"] = options.metric_machines
    times = known["seconds"]
    known["seconds"] = {"metric": seconds, **times, "total": seconds + times["total"]}
    return model


def train_many(
    data: Rows,
    options: TrainOptions,
    fleet: Any,
    outcomes: Sequence[Outcomes],
    scratch: Callable[[], Path] | None = None,
) -> list[Model]:
    """Fit one machine to many labels, targets or weights of the same rows, and certify each.

    Parameters
    ----------
    data, options, fleet, scratch
        As for ``train``; the machine must be one on features, not exact.
    outcomes : sequence of Outcomes

    Returns
    -------
    list of Model
        One for each of the outcomes. All share their landmarks; each has its own certificate.

    Raises
    ------
    InputError
        As for ``train``; also for an exact machine, which has no features to share, and if
        probabilities are requested.
    """
    check_one_target(data, "a fit to many outcomes")
    _check_shareable(options, "many fits at once")
    return _fit_together(data, options, fleet, scratch, outcomes, ManyJob.models)


def _train_targets(
    data: Rows,
    options: TrainOptions,
    fleet: Any,
    report: Report | None,
    deadline: float | None,
    scratch: Callable[[], Path] | None,
) -> Model:
    """Fit a machine to each target of the rows, and certify each. Arguments as of `train`.

    The model's scores are the predictions, in the order of the targets.
    """
    _check_targets(data, options)
    y = np.concatenate([data.y(*data.chunk(k)) for k in range(data.n_chunks)])
    outcomes = [Outcomes(np.ascontiguousarray(column), None) for column in y.T]
    how = {"report": report, "deadline": deadline, "names": data.target_names}
    return _fit_together(data, options, fleet, scratch, outcomes, ManyJob.model, **how)


def _check_targets(data: Rows, options: TrainOptions) -> None:
    """Raise InputError if these rows of several targets cannot be fitted with these options."""
    if options.problem == "one-class":
        check_one_target(data, "a one-class machine (which uses none)")
    check_rows(data, options.problem, options.classifies)
    _check_shareable(options, "machines of several targets")


def _fit_together(
    data: Rows,
    options: TrainOptions,
    fleet: Any,
    scratch: Callable[[], Path] | None,
    outcomes: Sequence[Outcomes],
    made: Callable[[ManyJob], Made],
    **how: Any,
) -> Made:
    """Fit to many outcomes of the same rows; return what ``made`` makes of the job that did.

    ``how``: further arguments of `ManyJob`.
    """
    options, outlined = _plan_fits(data, options, fleet, scratch, len(outcomes))
    run = ManyJob(data, options, fleet, outlined, outcomes, **how)
    with blas_threads(1), explain_failures(outlined.device), run as job:
        job.begin()
        for some in job.turns():
            job.solve(some)
        found = made(job)
    data.check_unchanged()
    return found


def _check_shareable(options: TrainOptions, what: str) -> None:
    """Raise InputError for options with which several fits cannot share features.

    ``what``: what the sentence calls the fits.
    """
    instead = ", or fit to one at a time"
    if options.exact:
        raise InputError(
            f"{what} share their features, and an exact kernel machine has none; use landmarks, or "
            f"a linear machine{instead}"
        )
    if options.metric_learning != "none":
        raise InputError(
            f"{what} share their rows, and each would learn a metric of its own; leave out "
            f"`metric_learning`{instead}"
        )
    if options.probability:
        raise InputError(
            f"{what} learn no probabilities, whose folds are fits again; leave out `probability`"
            f"{instead}"
        )


def _plan_fits(
    data: Rows,
    options: TrainOptions,
    fleet: Any,
    scratch: Callable[[], Path] | None,
    fits: int = 1,
) -> tuple[TrainOptions, Plan]:
    """Plan ``fits`` fits to the same rows; return the options, and the plan.

    If features need a folder and the options name none, the options get one that ``scratch`` makes.
    """
    device = choose_device(data, options, partial(find_on, fleet), fits)
    outlined = plan_on(fleet, data, options, fits, device=device)
    if outlined.disk_bytes and options.work is None and scratch is not None:
        options = replace(options, work=scratch())
    return options, outlined
