"""`bigscreen resample`: measure how much a held-out error depends on chance."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bigscreen.cli.common import check_fleet, check_json, json_option, open_fleet, shown_warnings
from bigscreen.cli.options import GroupedCommand, fit_options, train_options

OF_EVERY_FIT = (
    *("landmarks", "kernel", "gamma", "degree", "coef0", "sampling", "truncation", "seed", "C"),
    *("class_weight", "tol", "time_budget", "memory", "intercept", "no_intercept"),
    *("device", "device_memory"),
)
"""Options of a fit that `resample` has as well."""


@click.command(
    cls=GroupedCommand,
    most_used=(
        *("way", "fits", "kernel", "gamma", "C", "landmarks", "class_weight", "tol", "memory"),
        "workers",
    ),
    short_help="Say how much an error depends on the rows drawn, or on chance.",
)
@click.argument("store")
@click.argument("holdout")
@click.option(
    "--way",
    type=click.Choice(["bootstrap", "permutation"]),
    default="bootstrap",
    show_default=True,
    help="What is fitted. bootstrap: rows drawn with replacement; the middle 95 % of their errors "
    "are shown as an interval. permutation: labels in random order; how often chance does as "
    "well is shown.",
)
@click.option(
    "--fits",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="K",
    help="Bootstraps, or permutations.",
)
@fit_options(OF_EVERY_FIT)
@json_option
@click.pass_context
def resample(
    context: click.Context,
    /,
    store: str,
    holdout: str,
    way: str,
    fits: int,
    json_file: str | None,
    **values: Any,
) -> None:
    """Fit STORE and many resamples of it at once; count the errors of all on the store HOLDOUT.

    All fits share their landmarks and every pass over the rows, and each is proved like a fit of
    its own: a hundred take some ten times as long as one. No model is written.

    \b
    Examples:
      bigscreen resample train.store train-holdout.store
      bigscreen resample train.store train-holdout.store \\
          --way permutation --fits 999
    """
    from bigscreen.data.dataset import Dataset
    from bigscreen.files.scratch import scratch
    from bigscreen.report import report
    from bigscreen.train.resample import resample

    check_json(json_file)
    check_fleet(values)
    data, held = Dataset.open(store), Dataset.open(holdout)
    of_fit = {**values, "problem": "c-svc", "exact": False, "strategy": "rest"}
    with ExitStack() as owned, open_fleet(values) as fleet, shown_warnings():
        options = replace(train_options(context, data, of_fit, Path(), resume=False), work=None)

        def folder() -> Path:
            """Make a temporary folder that is removed at the end of the command."""
            return owned.enter_context(scratch("resample"))

        record = resample(data, held, options, fleet, fits, way, folder)
    if json_file:
        report.write_result(json_file, "resample", record)
    report.table(f"{way.capitalize()} of {store}", _facts(record, options.tol))


def _facts(record: dict[str, Any], tol: float) -> dict[str, str]:
    """Convert the record of a resampling to names and texts for `report.table`.

    ``tol``: the relative gap that was requested of every fit.
    """
    from bigscreen.problems.point import format_gap
    from bigscreen.report.report import count, percent

    facts = {
        "fits": f"1 and {count(record['fits'])} resamples, seed {record['seed']}",
        "judged by": f"{count(record['rows'])} rows",
        "error": percent(record["error"]),
    }
    if record["way"] == "bootstrap":
        low, high = record["interval"]
        facts["95 % of the bootstraps"] = f"{percent(low)} to {percent(high)}"
    else:
        facts["errors of permuted labels"] = (
            f"{percent(min(record['errors']))} to {percent(max(record['errors']))}"
        )
        facts["p-value"] = f"{record['p_value']:.2g}, that chance does as well"
    missed = "" if record["relative_gap"] <= tol else f"; {tol:g} was asked for"
    gap = format_gap(record["relative_gap"])
    return {**facts, "largest relative gap": f"{gap}, proved{missed}"}
