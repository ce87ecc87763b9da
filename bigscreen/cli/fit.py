"""`bigscreen plan` and `bigscreen fit`."""

import dataclasses
import os
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bigscreen.cli.common import (
    INTERRUPTED,
    check_json,
    check_output,
    json_option,
    overwrite_option,
)
from bigscreen.cli.given import train_options
from bigscreen.cli.options import check_fleet, fit_options, open_fleet
from bigscreen.errors import InputError

if TYPE_CHECKING:
    from bigscreen.plan import Plan


@click.command(short_help="Say what a fit would need, without doing it.")
@click.argument("store")
@fit_options
@json_option
@click.pass_context
def plan(context: click.Context, store: str, json_file: str | None, **values: Any) -> None:
    """Say what a fit on STORE would need, without doing it.

    Shows rows, bytes, whether features are stored or recomputed, peak memory, disk and a rough
    time; if it cannot fit into --memory, says why, with the arithmetic.

    \b
    Examples:
      bigscreen plan train.store --memory 4GiB --landmarks 2000
      bigscreen plan train.store --memory 4GiB --exact
    """
    from bigscreen import report
    from bigscreen.store.dataset import Dataset
    from bigscreen.train import plan as outline_fit

    check_json(json_file)
    check_fleet(values)
    dataset = Dataset.open(store)
    options = train_options(context, dataset, values, Path(values["work"] or "."), resume=False)
    cluster = bool(values["workers"] or values["scheduler"])
    outline = outline_fit(dataset, options, _workers(values), cluster)
    if json_file:
        report.write_json(json_file, dataclasses.asdict(outline))
    if outline.refusal:
        raise InputError(outline.refusal)
    report.table(f"Plan for {store}", _plan_facts(outline, values["strategy"]))


def _workers(values: dict[str, Any]) -> int:
    """How many steps would run at once; local worker processes are not started to find out."""
    if values["workers"]:
        return values["workers"]
    with open_fleet(values) as fleet:
        return fleet.workers


def _plan_facts(outline: "Plan", strategy: str) -> dict[str, str]:
    from bigscreen.report import count, seconds, size

    where = "in memory" if outline.features_in_memory else "on disk"
    each = "one for each pair of labels" if strategy == "one" else "labels, each against the rest"
    facts = {
        "rows": f"{count(outline.rows)} of {count(outline.columns)} columns",
        "stored rows": size(outline.data_bytes),
        "classifiers": "1" if outline.classifiers == 1 else f"{outline.classifiers} {each}",
        "landmarks": count(outline.landmarks) if outline.landmarks else "none (linear)",
        "solver": outline.solver,
        "features": f"stored {where}" if outline.features == "stored" else outline.features,
        "rows of a pass": "kept in memory" if outline.resident else "read in every pass",
        "kernel columns kept": f"{count(outline.cache_bytes // (4 * outline.rows))} of "
        f"{count(outline.rows)}, {size(outline.cache_bytes)}",
        "peak memory": f"about {size(outline.peak_bytes)}",
        "disk for features": size(outline.disk_bytes),
        "time": f"very roughly {seconds(outline.seconds)}",
    }
    exact = outline.features == "exact"
    without = ("landmarks", "features", "disk for features") if exact else ("kernel columns kept",)
    return {name: fact for name, fact in facts.items() if name not in without}


@click.command(short_help="Fit a MODEL on a STORE and prove how good it is.")
@click.argument("store")
@click.argument("model")
@fit_options
@click.option("--resume", is_flag=True, help="Go on where an interrupted fit stopped.")
@overwrite_option
@json_option
@click.pass_context
def fit(
    context: click.Context,
    store: str,
    model: str,
    resume: bool,
    overwrite: bool,
    json_file: str | None,
    **values: Any,
) -> None:
    """Fit a support vector machine on STORE and write it to the file MODEL.

    A support vector machine separates two labels by a score; with more labels, one score for each
    (one against the rest) or for each pair. At the end it proves, over every row, how far the model
    can be from the best one: the gap.

    \b
    Examples:
      bigscreen fit train.store model.bsm
      bigscreen fit train.store model.bsm --landmarks 2000 --gamma 0.05 --C 10 --memory 4GiB
      bigscreen fit words.store model.bsm --kernel linear --workers 4
      bigscreen fit train.store model.bsm --exact --gamma 0.05 --C 10 --cache 2GiB
    """
    from sklearn.exceptions import ConvergenceWarning

    from bigscreen import certificate, report
    from bigscreen.store.dataset import Dataset
    from bigscreen.train import train

    check_output(model, overwrite)
    check_json(json_file, model)
    check_fleet(values)
    work, own_work = values["work"] or f"{model}.work", values["work"] is None
    _check_work(work, own_work, resume, overwrite)
    dataset = Dataset.open(store)
    options = train_options(context, dataset, values, Path(work), resume)
    try:
        with open_fleet(values) as fleet, report.FitReport() as show:
            with warnings.catch_warnings():
                # The certificate says it, with its numbers.
                warnings.simplefilter("ignore", ConvergenceWarning)
                fitted = train(dataset, options, fleet, show)
        fitted.save(model)
    except KeyboardInterrupt:
        click.echo(f"interrupted; {_how_to_resume(work)}", err=True)
        context.exit(INTERRUPTED)
    except ConnectionError as error:
        # What the workers have done is in the folder, as after an interruption.
        raise ConnectionError(f"{error}; {_how_to_resume(work)}") from error
    except (InputError, OSError):
        # What can be resumed is kept: a full disk must not cost the passes made so far.
        if own_work and not any(Path(work).glob("label-*/*")):
            shutil.rmtree(work, ignore_errors=True)
        raise
    record = certificate.fit_record(fitted)
    if json_file:
        report.write_json(json_file, record)
    certificate.show(record, model)
    if own_work:
        shutil.rmtree(work, ignore_errors=True)


def _check_work(work: str, own: bool, resume: bool, overwrite: bool) -> None:
    """Refuse a work folder that cannot be used, and to forget an interrupted fit by accident."""
    if resume:
        if not Path(work).is_dir():
            raise InputError(
                f"there is nothing to resume: {work} does not exist; leave out --resume to start"
            )
    elif own and os.path.lexists(work):
        if not overwrite:
            raise InputError(
                f"an interrupted fit left {work}; give --resume to go on with it or --overwrite to "
                "start again"
            )
        shutil.rmtree(work)
    elif not own:
        check_output(work, overwrite=True, folder=True)


def _how_to_resume(work: str) -> str:
    if not Path(work).is_dir():
        return "nothing was written"
    return f"what is done so far is in {work}: the same command with --resume goes on"
