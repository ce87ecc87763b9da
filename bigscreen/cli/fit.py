"""`bigscreen plan` and `bigscreen fit`: estimate what a fit needs, and fit a model."""

import dataclasses
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bigscreen.cli.common import (
    check_fleet,
    check_json,
    check_log,
    check_output,
    check_own,
    check_page,
    check_work,
    deadline_of,
    is_finished,
    json_option,
    lock_output,
    log_option,
    open_fleet,
    overwrite_option,
    report_option,
    resumable,
    verbose_option,
)
from bigscreen.cli.options import GroupedCommand, fit_options, train_options
from bigscreen.cli.report import write_page
from bigscreen.errors import InputError
from bigscreen.options.train import PROBLEMS

if TYPE_CHECKING:
    from bigscreen.data.dataset import Dataset
    from bigscreen.model.model import Model
    from bigscreen.options.train import TrainOptions
    from bigscreen.plan.memory import Plan

KEPT = ("label-*/*", "features-*/manifest.json", "features-*.wip/chunks/*")
"""Patterns of the files that a resumed fit continues with: checkpoints, results and features."""


@click.command(
    cls=GroupedCommand,
    most_used=("kernel", "exact", "landmarks", "memory", "workers"),
    short_help="Say what a fit would need, without doing it.",
)
@click.argument("store")
@fit_options()
@json_option
@click.pass_context
def plan(context: click.Context, /, store: str, json_file: str | None, **values: Any) -> None:
    """Say what a fit on STORE would need, without doing it.

    Shows rows, bytes, solver, whether features are stored or recomputed, peak memory and disk; if
    it cannot fit into --memory, says why, with the arithmetic.

    \b
    Examples:
      bigscreen plan train.store --memory 4GiB --landmarks 2000
      bigscreen plan train.store --memory 4GiB --exact
    """
    from bigscreen.data.dataset import Dataset
    from bigscreen.report import report
    from bigscreen.train.run import check_problem

    check_json(json_file)
    check_fleet(values)
    dataset = Dataset.open(store)
    options = train_options(context, dataset, values, Path(values["work"] or "."), resume=False)
    check_problem(dataset, options)
    outline = _outline(dataset, options, values)
    if json_file:
        record = dataclasses.asdict(dataclasses.replace(outline, on_device=None))
        del record["on_device"]
        kept = outline.on_device.record if outline.on_device else outline.device.record
        report.write_result(json_file, "plan", {**record, "device": kept})
    if outline.refusal:
        raise InputError(outline.refusal)
    facts = _plan_facts(outline, values["strategy"], values["problem"])
    if dataset.target_names:
        facts["targets"] = f"{', '.join(dataset.target_names)}: a machine each"
    if options.indefinite:
        facts["proof"] = "none: the kernel is not positive semidefinite; --tol is the KKT violation"
    report.table(f"Plan for {store}", facts)


def _outline(dataset: "Dataset", options: "TrainOptions", values: dict[str, Any]) -> "Plan":
    """Plan a fit on the threads, worker processes or cluster that the command's ``values`` name."""
    from bigscreen.device.find import find_for_workers, find_on
    from bigscreen.plan.device import choose_device
    from bigscreen.plan.plan import plan, plan_on

    workers, fits = values["workers"], max(1, dataset.n_targets)
    if workers:  # (Worker processes of this machine are not started to find out.)
        device = choose_device(dataset, options, partial(find_for_workers, workers), fits)
        return plan(dataset, options, workers, cluster=True, fits=fits, device=device)
    with open_fleet(values) as fleet:
        device = choose_device(dataset, options, partial(find_on, fleet), fits)
        return plan_on(fleet, dataset, options, fits, device=device)


def _kept(part: float) -> str:
    """Say which part of the rows a fit keeps in memory; ``part``: from 0 to 1."""
    from bigscreen.report.report import percent

    if 0 < part < 1:
        return f"{percent(part, 0)} kept in memory, the others read in every pass"
    return "kept in memory" if part else "read in every pass"


def _device_facts(outline: "Plan") -> dict[str, str]:
    """Say what a fit keeps on its devices, as names and texts; {} if the CPU computes."""
    from bigscreen.report.report import count, size

    found = outline.on_device
    if found is None:
        return {}
    each = f"{count(found.devices)} x " if found.devices > 1 else ""
    features, rows = found.feature_bytes, found.row_bytes
    where = "read from the host in every pass"
    kept = f"rows {size(rows)}" if rows else "rows computed once" if features else f"rows {where}"
    if outline.landmarks:
        kept += f", features {size(features)}" if features else ", features computed in every pass"
    work = "scores, tiles and Hessians"
    if outline.features == "exact":
        kept = f"rows {size(rows)}" if rows else "rows read from the host for each column"
        kept, work = f"{kept}, kernel columns {size(features)}", "tiles"
    total = found.work_bytes + features + rows
    return {
        "computed on": f"{each}{found.device.name}, {found.device.library}",
        "device memory": f"about {size(total)} of {size(found.limit_bytes)}: {kept}, "
        f"{work} {size(found.work_bytes)}",
    }


def _plan_facts(outline: "Plan", strategy: str, problem: str) -> dict[str, str]:
    """Convert a fit's plan to names and texts for `report.table`.

    ``strategy``: "one" (a classifier for each pair of labels) or "rest"; ``problem``: its name.
    """
    from bigscreen.report.report import count, size

    where = "in memory" if outline.features_in_memory else "on disk"
    each = "one for each pair of labels" if strategy == "one" else "labels, each against the rest"
    facts = {
        "rows": f"{count(outline.rows)} of {count(outline.columns)} columns",
        "stored rows": size(outline.data_bytes),
        "problem": problem,
        "classifiers": "1" if outline.classifiers == 1 else f"{outline.classifiers} {each}",
        "solved at once": f"{outline.together}, over one pass a round",
        "landmarks": count(outline.landmarks) if outline.landmarks else "none (linear)",
        "solver": outline.solver,
        "features": f"stored {where}" if outline.features == "stored" else outline.features,
        "rows of a pass": _kept(outline.resident),
        "kernel columns kept": f"{count(outline.cache_bytes // (4 * outline.rows))} of "
        f"{count(outline.rows)}, {size(outline.cache_bytes)}",
        "peak memory": f"about {size(outline.peak_bytes)}"
        + (f", {size(outline.worker_bytes)} in each worker" if outline.worker_bytes else ""),
        "disk for features": size(outline.disk_bytes),
        **_device_facts(outline),
    }
    exact = outline.features == "exact"
    without = ["landmarks", "features", "disk for features"] if exact else []
    if not outline.cache_bytes:
        without.append("kernel columns kept")
    if outline.together == 1:
        without.append("solved at once")
    if not PROBLEMS[problem].classifies:
        without.append("classifiers")
    return {name: fact for name, fact in facts.items() if name not in without}


@click.command(
    cls=GroupedCommand,
    most_used=(
        *("kernel", "gamma", "C", "landmarks", "exact", "problem", "class_weight"),
        *("probability", "tol", "memory"),
    ),
    short_help="Fit a MODEL on a STORE and prove how good it is.",
)
@click.argument("store")
@click.argument("model")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on where an interrupted fit stopped; of a finished one show the MODEL.",
)
@overwrite_option
@fit_options()
@verbose_option
@report_option
@log_option
@json_option
@click.pass_context
def fit(
    context: click.Context,
    /,
    store: str,
    model: str,
    resume: bool,
    overwrite: bool,
    verbose: bool,
    page: str | None,
    log: str | None,
    json_file: str | None,
    **values: Any,
) -> None:
    """Fit a support vector machine on STORE and write it to the file MODEL.

    A support vector machine separates two labels by a score; with more labels, one score for each
    (one against the rest) or for each pair. With --problem it predicts a number, or tells whether
    a row is like the rows of STORE; a STORE of several targets gets a machine for each target, over
    common features. At the end it proves, over every row, how far the model can be from the best
    one: the gap.

    \b
    Examples:
      bigscreen fit train.store model.bsm
      bigscreen fit train.store model.bsm --landmarks 2000 --gamma 0.05 \\
          --C 10 --memory 4GiB
      bigscreen fit words.store model.bsm --kernel linear --workers 4
      bigscreen fit train.store model.bsm --exact --gamma 0.05 --C 10 --cache 2GiB
      bigscreen fit prices.store model.bsm --problem svr --epsilon 0.1 --exact
      bigscreen fit normal.store model.bsm --problem one-class --nu 0.01
    """
    from bigscreen.data.dataset import Dataset
    from bigscreen.model.model import Model
    from bigscreen.report import certificate, report
    from bigscreen.report.journal import Journal
    from bigscreen.train.records import describe_difference
    from bigscreen.train.run import train

    deadline = deadline_of(values["time_budget"])
    before = is_finished(model, resume, overwrite)
    check_output(model, overwrite or before)
    check_json(json_file, model)
    check_page(page, model, *filter(None, [json_file]))
    check_log(log, model, *filter(None, [json_file, page]))
    check_fleet(values)
    work, own_work = values["work"] or f"{model}.work", values["work"] is None
    context.with_resource(lock_output(model))
    if not before:
        check_work(work, own_work, resume, overwrite)
    dataset = Dataset.open(store)
    options = train_options(context, dataset, values, Path(work), resume)
    if before:
        fitted = Model.load(model)
        check_own(model, describe_difference(fitted.provenance, dataset, options))
    else:
        with resumable(context, work, own_work, KEPT):
            with (
                open_fleet(values, deadline) as fleet,
                report.FitReport() as show,
                Journal(show, "fit", model, log) as tell,
            ):
                fitted = train(dataset, options, fleet, tell, deadline)
            fitted.save(model)
    record = certificate.fit_record(fitted) | {"held_out": held_out_record(dataset, fitted)}
    if json_file:
        report.write_result(json_file, "fit", record)
    certificate.show(record, model, verbose)
    warn_of_predictions(dataset, fitted, record["held_out"])
    if scales := _differing_scales(dataset, fitted):
        report.note(f"{scales}; ingest with --scale standard, unless that is meant")
    if page:
        write_page(page, fitted, model, dataset)
    if own_work:
        shutil.rmtree(work, ignore_errors=True)


def held_out_record(dataset: "Dataset", model: "Model") -> dict[str, Any] | None:
    """Evaluate a model on (a sample of) the rows that ingest held out of its store.

    Returns
    -------
    dict or None
        The result of `evaluate`, with "store", the name of the held-out store, and "sampled",
        whether it has more rows than were evaluated. None if there is no such store, or its rows
        have nothing to compare predictions with.
    """
    from bigscreen.evaluate.evaluate import evaluate_sample

    held = dataset.held_out()
    if held is None or (model.kind != "one-class" and held.is_unlabelled):
        return None
    found = evaluate_sample(model, held)
    sampled = found["rows"] + found["unlabelled"] < held.n_rows
    return {"store": held.path.name, "sampled": sampled, **found}


def warn_of_predictions(
    dataset: "Dataset", model: "Model", held_out: Mapping[str, Any] | None
) -> None:
    """Print a warning if a model is no better than a constant, or misses a rare label.

    Judged on (a sample of) its own rows, then on rows that its fit has not seen, if there are any.

    ``held_out``: the result of `held_out_record`.
    """
    from bigscreen.evaluate.evaluate import evaluate_sample
    from bigscreen.report import report

    if model.kind == "one-class":
        return
    found = evaluate_sample(model, dataset)
    if sentence := remark_on(dataset, model, found, dataset.n_rows):
        report.warn(sentence)
    elif held_out and (sentence := remark_on(dataset, model, held_out)):
        report.warn(f"on the held-out rows, {sentence}")


def remark_on(
    dataset: "Dataset", model: "Model", found: Mapping[str, Any], n_rows: int | None = None
) -> str | None:
    """Return the warning of `evaluation.remark` on a model's predictions, or None.

    ``found``: the result of `evaluate`, of at most ``n_rows`` rows, prepared as ``dataset``.
    """
    from bigscreen.report import evaluation

    scaled = dataset.preparation.scaling != "none"
    weighted = (model.provenance.get("parameters") or {}).get("class_weight") is not None
    return evaluation.remark(found, n_rows, scaled, weighted)


def _differing_scales(dataset: "Dataset", model: "Model") -> str | None:
    """Name the columns whose scales differ much, if the model's kernel sees them as they are."""
    from bigscreen.intake.profile import describe_entries, describe_scales
    from bigscreen.intake.tuning import TUNING
    from bigscreen.kernels.standard import Linear

    if isinstance(model.kernel, Linear) or dataset.preparation.scaling != "none":
        return None
    if dataset.profile is not None:
        return describe_scales(dataset.profile)
    # (Entries of words and other kinds, whose columns are many, are alike or meant to differ.)
    narrow = dataset.n_features <= TUNING.max_profile_columns and dataset.n_rows > 0
    name = dataset.preparation.column_name
    return describe_entries(dataset.X(*dataset.chunk(0)), name) if narrow else None
