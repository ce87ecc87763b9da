"""`bigscreen tune`: search for landmarks, gamma and C, and fit the best model to all rows."""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from bigscreen.cli.common import (
    begin_grid,
    check_own,
    json_option,
    log_option,
    open_fleet,
    overwrite_option,
    report_option,
    resumable,
    verbose_option,
)
from bigscreen.cli.fit import held_out_record, warn_of_predictions
from bigscreen.cli.options import (
    GroupedCommand,
    fit_command,
    fit_options,
    is_given,
    train_options,
)
from bigscreen.cli.path import Grid
from bigscreen.cli.report import write_page
from bigscreen.errors import InputError
from bigscreen.options.metrics import METRICS
from bigscreen.options.train import KERNELS, OPTIONS

OF_EVERY_FIT = (
    *("degree", "coef0", "exact", "sampling", "truncation", "seed", "class_weight"),
    *("epsilon", "tol", "time_budget", "memory", "intercept", "work", "device", "device_memory"),
)
"""Options of `bigscreen fit` that `bigscreen tune` has as well."""


class Counts(click.ParamType):  # type: ignore[type-arg] # not generic in click 8.2
    """A list of whole numbers with commas between them, or a file."""

    name = "counts"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...] | Path:
        """Parse whole numbers with commas between them; return the path of an existing file."""
        if isinstance(value, tuple):
            return value
        if Path(value).exists():
            return Path(value)
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(
                f"{value!r} is not whole numbers with commas between them, nor a file", param, ctx
            )


class Names(click.ParamType):  # type: ignore[type-arg] # not generic in click 8.2
    """A list of names with commas between them.

    Parameters
    ----------
    known : sequence of str
        The names that are allowed.
    """

    name = "names"

    def __init__(self, known: Sequence[str]) -> None:
        """Take the names that are allowed."""
        self.known = click.Choice(known)

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        """Parse names with commas between them; each counts once."""
        if isinstance(value, tuple):
            return value
        return tuple(dict.fromkeys(self.known.convert(n, param, ctx) for n in value.split(",")))


METRIC_KINDS: Any = OPTIONS["metric_learning"].values


@click.command(
    cls=GroupedCommand,
    most_used=(
        *("gamma", "C", "landmarks", "kernels", "class_weight", "metric", "folds"),
        *("resume", "time_budget", "workers"),
    ),
    short_help="Search gamma, C and landmarks on a STORE, and fit the best.",
)
@click.argument("store")
@click.argument("out")
@click.option(
    "--kernel",
    "kernels",
    type=Names(tuple(KERNELS)),
    default="rbf",
    show_default=True,
    metavar="NAME,NAME,...",
    help="Kernels to try (see fit), such as rbf,laplacian,matern12; each has values of gamma of "
    "its own by default.",
)
@click.option(
    "--gamma",
    type=Grid(log=True),
    metavar="FROM:TO:COUNT",
    help="Values of gamma, by equal factors, such as 2^-8:2^2:11, or given with commas.  "
    "[default: nine from 1/16 of scale to 16 times it]",
)
@click.option(
    "--C",
    "C",
    type=Grid(log=True),
    metavar="FROM:TO:COUNT",
    help="Values of C, by equal factors or given with commas.  [default: 1e-2:1e3:10]",
)
@click.option(
    "--nu",
    type=Grid(log=False),
    metavar="FROM:TO:COUNT",
    help="Values of nu instead, by equal steps: the machine is a nu-svc then.",
)
@click.option(
    "--landmarks",
    type=Counts(),
    metavar="M,M,...|FILE",
    help="Numbers of landmarks to try, or a file of rows to use as landmarks.  [default: 1000, or "
    "all rows if fewer]",
)
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    default=5,
    show_default=True,
    metavar="N",
    help="Judge every candidate on rows held out, N times.",
)
@click.option(
    "--elimination",
    type=click.Choice(["halving", "none"]),
    default="halving",
    show_default=True,
    help="How candidates are dropped. halving: the best third goes on to three times the rows, "
    "and the best one's neighbours to all, a heuristic; none: all are solved on all rows.",
)
@click.option(
    "--metric",
    type=click.Choice(list(METRICS)),
    help="What candidates are judged by on the rows held out. balanced-accuracy: the mean over "
    "labels of the share of their rows predicted rightly; auc, average-precision: two labels; f1: "
    "of the second of two labels, or the mean over labels; r2, mae: targets. (Log loss is of "
    "probabilities, which folds do not have.)  [default: accuracy; balanced-accuracy if a label is "
    "rare, of two labels in fewer than 1 row in 5; r2]",
)
@click.option(
    "--metric-learning",
    "kinds",
    type=Names(METRIC_KINDS.words),
    default="none",
    show_default=True,
    metavar="KIND,KIND,...",
    help="Kinds of learned maps of the columns to judge, such as none,diagonal,full (see fit): "
    "each is learned by the best candidate, and gamma and C are searched again after it. No map "
    "sees the rows that judge it.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with what an interrupted search kept; of a finished one show OUT.",
)
@overwrite_option
@fit_options(OF_EVERY_FIT)
@click.option("--plots", metavar="FOLDER", help="Draw a heat map into this folder, as PNG.")
@verbose_option
@report_option
@log_option
@json_option
@click.pass_context
def tune(context: click.Context, /, store: str, out: str, **values: Any) -> None:
    """Search for parameters on STORE, and write the best machine, fitted to all rows, to OUT.

    All values of C are solved as paths, each from the one before, over one set of features for
    each gamma and all folds. The output says what was dropped when, and by which rule; the model
    has its certificate, and the search's record in its provenance (info --json shows it). Of rows
    with targets (ingest --regression) the machine is an svr.

    What is done is kept in OUT.work until the model is written: after an interruption the same
    command with --resume goes on, and comes to the same result. When a time budget ends, the best
    candidate so far is fitted, and the output says so.

    \b
    Examples:
      bigscreen tune train.store best.bsm
      bigscreen tune train.store best.bsm --gamma 2^-8:2^2:11 \\
          --C 1e-2:1e3:10 --landmarks 200,1000
      bigscreen tune rare.store best.bsm --metric average-precision
      bigscreen tune people.store best.bsm --kernel rbf,laplacian \\
          --metric-learning none,diagonal
      bigscreen tune train.store best.bsm --exact --C .1,1,10 --gamma .1,1
    """
    from bigscreen.data.dataset import Dataset
    from bigscreen.model.model import Model
    from bigscreen.report import certificate, report
    from bigscreen.report import tune as report_tune
    from bigscreen.report.journal import Journal
    from bigscreen.tune.metric import default_metric, find_scoring
    from bigscreen.tune.options import SEARCHED, TuneOptions, default_gammas, unlike_search
    from bigscreen.tune.search import tune as search

    before, work, own_work, deadline = begin_grid(context, out, values)
    dataset = Dataset.open(store)
    if values["nu"] is not None and values["C"] is not None:
        raise InputError("a search has a grid of C or of nu; give --C or --nu")
    if values["exact"] and values["landmarks"] is not None:
        raise InputError("--landmarks has no meaning with --exact; leave it out")
    problem = "c-svc" if values["nu"] is None else "nu-svc"
    if dataset.regression:
        if values["nu"] is not None:
            raise InputError("--nu is of labels, and these rows have targets; give --C")
        problem = "svr"
    grid = values[SEARCHED[problem]] or Grid(log=True).convert("1e-2:1e3:10", None, context)
    usual_counts = (min(1000, dataset.n_rows),)
    counts = None if values["exact"] else values["landmarks"] or usual_counts
    shared = {name: values[name] for name in OF_EVERY_FIT}
    given = partial(is_given, context)
    most = {
        # (Learned metrics of exact machines come from a machine on as many landmarks as in `fit`.)
        "landmarks": counts if isinstance(counts, Path) else max(counts or usual_counts),
        # (An option that one of the kernels uses has a meaning.)
        "kernel": max(values["kernels"], key=lambda kernel: sum(map(given, KERNELS[kernel]))),
    }
    fit = train_options(
        context, dataset, {**shared, "problem": problem, **most}, Path(work), values["resume"]
    )
    counts = (fit.landmarks,) if fit.components is not None else counts
    usual, why = default_metric(dataset)
    scoring, _ = find_scoring(values["metric"] or usual, dataset, problem)
    if before:
        model = Model.load(out)
        gammas = values["gamma"]
        if gammas is not None and len(values["kernels"]) > 1:
            gammas = {kernel: list(gammas) for kernel in values["kernels"]}
        asked = {SEARCHED[problem]: grid, "gamma": gammas, "landmarks": counts}
        how = {**values, "scoring": scoring, "metrics": values["kinds"]}
        check_own(
            out,
            unlike_search(model.provenance, dataset, fit, asked, how),
        )
    else:
        if why and values["metric"] is None:
            report.note(why)
        with (
            resumable(context, work, own_work, ("rung-*/*",)),
            open_fleet(values, deadline) as fleet,
            report_tune.TuneReport() as show,
            Journal(show, "tune", out, values["log"]) as tell,
        ):
            gammas = {
                kernel: values["gamma"] or default_gammas(dataset, fleet, kernel)
                for kernel in values["kernels"]
            }
            judged = values["folds"], values["elimination"], values["metric"] or usual
            options = TuneOptions(fit, gammas, grid, counts, *judged, values["kinds"])
            model = search(dataset, options, fleet, tell, deadline)
            model.save(out)
    record = model.provenance["search"]
    fitted = certificate.fit_record(model) | {"held_out": held_out_record(dataset, model)}
    if values["json_file"]:
        report.write_result(values["json_file"], "tune", {**fitted, "search": record})
    report_tune.show(record)
    report.table(f"Search on {store}", report_tune.facts(record))
    certificate.show(fitted, out, values["verbose"])
    warn_of_predictions(dataset, model, fitted["held_out"])
    searched = "problem", "kernel", "gamma", "landmarks", SEARCHED[problem]
    file = values["landmarks"] if isinstance(values["landmarks"], Path) else None
    line = fit_command(store, model.provenance["parameters"], searched, file)
    report.note(f"to fit these options again, or to other rows: {line}")
    if values["plots"]:
        for file in report_tune.save_heat_map(record, values["plots"]):
            report.note(f"drew {file}")
    if values["page"]:
        write_page(values["page"], model, out, dataset)
    if own_work:
        shutil.rmtree(work, ignore_errors=True)
