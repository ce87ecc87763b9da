"""`bigscreen path` and `bigscreen pick`: solve a grid of C or nu, and take one model out of it."""

import math
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bigscreen.cli.common import (
    Number,
    begin_grid,
    check_json,
    check_output,
    check_own,
    json_option,
    log_option,
    open_fleet,
    overwrite_option,
    report_option,
    resumable,
)
from bigscreen.cli.options import GroupedCommand, fit_options, train_options
from bigscreen.errors import InputError
from bigscreen.options.option import POSITIVE, SHARE
from bigscreen.options.train import PROBLEMS

if TYPE_CHECKING:
    from bigscreen.data.dataset import Dataset
    from bigscreen.options.train import TrainOptions

OF_EVERY_POINT = (
    *("problem", "epsilon", "tau", "kernel", "gamma", "degree", "coef0", "exact", "landmarks"),
    *("sampling", "truncation", "seed", "class_weight", "tol", "time_budget", "memory"),
    *("intercept", "work", "device", "device_memory"),
)
"""Options of `bigscreen fit` that `bigscreen path` has as well."""


class Grid(click.ParamType):  # type: ignore[type-arg] # not generic in click 8.2
    """A grid: FROM:TO:COUNT, or numbers with commas between them, such as .1,1 or 2^-8.

    Parameters
    ----------
    log : bool
        Whether the COUNT values are spaced by equal factors rather than by equal steps.
    """

    name = "grid"

    def __init__(self, log: bool) -> None:
        """Space the values of a grid by equal factors if ``log``, else by equal steps."""
        self.log = log

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[float, ...]:
        """Parse a grid to its values: FROM:TO:COUNT, or numbers with commas between them."""
        import numpy as np

        if isinstance(value, tuple):
            return value
        try:
            if ":" not in value:
                return tuple(_number(part) for part in value.split(","))
            start, stop, count = value.split(":")
            first, last, points = _number(start), _number(stop), int(count)
        except ValueError:
            self.fail(f"{value!r} is not FROM:TO:COUNT nor numbers with commas", param, ctx)
        if points < 1 or not (0 < first < math.inf and first <= last < math.inf):
            self.fail(f"{value!r} must go up from a number above 0", param, ctx)
        space = np.geomspace if self.log else np.linspace
        return tuple(space(first, last, points).tolist())


def _number(text: str) -> float:
    """Parse a number, or a power such as 2^-8."""
    base, power, exponent = text.partition("^")
    try:
        return float(float(base) ** float(exponent)) if power else float(text)
    except (OverflowError, ZeroDivisionError, TypeError) as error:
        raise ValueError(text) from error


class Rules(click.ParamType):  # type: ignore[type-arg] # not generic in click 8.2
    """Names of screening rules with commas between them, or "none"."""

    name = "rules"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        """Parse the names of screening rules; "none" gives an empty tuple."""
        from bigscreen.path.options import RULES

        if isinstance(value, tuple):
            return value
        names = () if value == "none" else tuple(value.split(","))
        for name in names:
            if name not in RULES:
                self.fail(f"{name!r} is not one of {', '.join(RULES)}, or none alone", param, ctx)
        return names


@click.command(
    cls=GroupedCommand,
    most_used=(
        *("C", "nu", "folds", "kernel", "gamma", "landmarks", "exact", "problem", "class_weight"),
        "memory",
    ),
    short_help="Fit a whole grid of C or nu on a STORE.",
)
@click.argument("store")
@click.argument("out")
@click.option(
    "--C",
    "C",
    type=Grid(log=True),
    metavar="FROM:TO:COUNT",
    help="Values of C, by equal factors, or given with commas: .1,1,10.  [default: 1e-2:1e1:20]",
)
@click.option(
    "--nu",
    type=Grid(log=False),
    metavar="FROM:TO:COUNT",
    help="Values of nu instead, by equal steps: the machine is a nu-svc then.",
)
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    metavar="N",
    help="Judge every value on rows held out, N times, and name the best.",
)
@click.option(
    "--rules",
    type=Rules(),
    metavar="NAMES",
    help="Rules that leave out rows before a solve, provably decided ones: dvi, ssnsv, essnsv (C), "
    "srbo, srbo-cut (nu), gap, with commas; none.  [default: dvi,gap or srbo-cut,gap]",
)
@click.option(
    "--cold", is_flag=True, help="Begin every solve at 0, to see what the points before save."
)
@click.option(
    "--static",
    is_flag=True,
    help="Leave out no further rows during a solve, to see what they save.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the points that an interrupted path kept; of a finished one show OUT.",
)
@overwrite_option
@fit_options(OF_EVERY_POINT)
@click.option("--plots", metavar="FOLDER", help="Draw the path into this folder, as PNG.")
@report_option
@log_option
@json_option
@click.pass_context
def path(context: click.Context, /, store: str, out: str, **values: Any) -> None:
    """Fit a support vector machine on STORE for every value of a grid, into the one file OUT.

    Each fit begins at the one before, and leaves out the rows that provably are decided already:
    the result is that of separate fits, each with its gap proved over all rows, in a part of the
    time. `bigscreen pick OUT MODEL` takes a model out.

    Points are kept in OUT.work until the path is whole. After an interruption (Ctrl-C, a dead
    process, a full disk) the same command with --resume goes on with them, and comes to the same
    result; without it the folder is in the way, and --overwrite starts again.

    \b
    Examples:
      bigscreen path train.store all.bsp --C 1e-2:1e1:100 --kernel linear \\
          --folds 5
      bigscreen path train.store all.bsp --exact --gamma 0.05 --C .1,1,10
      bigscreen path train.store all.bsp --nu .01:.5:50
    """
    from bigscreen.data.dataset import Dataset
    from bigscreen.model.solved_path import SolvedPath
    from bigscreen.path.options import PathOptions
    from bigscreen.path.run import train_path
    from bigscreen.report import path as report_path
    from bigscreen.report import report
    from bigscreen.report.journal import Journal
    from bigscreen.report.pages import path_page

    before, work, own_work, deadline = begin_grid(context, out, values)
    dataset = Dataset.open(store)
    fit = _fit(context, dataset, values, Path(work), values["resume"])
    options = PathOptions(
        fit,
        values["nu"] or values["C"] or Grid(log=True).convert("1e-2:1e1:20", None, context),
        values["folds"],
        values["rules"],
        dynamic=not values["static"],
        warm=not values["cold"],
    )
    if before:
        solved = SolvedPath.load(out)
        check_own(out, options.unlike(solved.record, dataset))
    else:
        with resumable(context, work, own_work, ("walk-*/*", "features/*/*")):
            with (
                open_fleet(values, deadline) as fleet,
                report_path.PathBar() as show,
                Journal(show, "path", out, values["log"]) as tell,
            ):
                solved = train_path(dataset, options, fleet, tell, deadline)
            solved.save(out)
    if values["json_file"]:
        report.write_result(values["json_file"], "path", solved.record)
    report_path.path_table(solved)
    report.table(f"Path in {out}", report_path.totals(solved))
    if values["plots"]:
        for file in report_path.save_plots(solved, values["plots"]):
            report.note(f"drew {file}")
    if values["page"]:
        path_page(solved, os.path.basename(out)).write(values["page"])
    late = deadline is not None and time.monotonic() > deadline
    if solved.missed and late:
        # What the time has cut short is worth going on with.
        goes_on = f"the same command with --resume --overwrite goes on from {work}"
        report.warn(f"{solved.missed}; the time budget ended: {goes_on}")
    elif solved.missed:
        report.warn(solved.missed)
    if own_work and not before and not (solved.missed and late):
        shutil.rmtree(work, ignore_errors=True)


def _fit(
    context: click.Context, dataset: "Dataset", values: dict[str, Any], work: Path, resume: bool
) -> "TrainOptions":
    """Make the options that all fits of the path share, checked against each other.

    ``values``: the command's options by name, with a grid of C or nu. ``work``: the folder of
    features and checkpoints; ``resume``: whether to continue from the checkpoints.
    """
    by_user = click.core.ParameterSource.COMMANDLINE
    if values["nu"] is not None and context.get_parameter_source("problem") != by_user:
        values["problem"] = "nu-svc"
    problem = values["problem"]
    if values["nu"] is not None and values["C"] is not None:
        raise InputError("a path has a grid of C or of nu; give --C or --nu")
    if "nu" in PROBLEMS[problem].parameters and values["nu"] is None and values["C"] is None:
        raise InputError(f"{problem} needs a grid of nu: --nu .01:.5:50")
    shared = {name: values[name] for name in OF_EVERY_POINT}
    return train_options(context, dataset, shared, work, resume)


@click.command(short_help="Take one MODEL out of a PATH.")
@click.argument("path", metavar="PATH")
@click.argument("model")
@click.option(
    "--C",
    "C",
    type=Number(POSITIVE),
    metavar="C",
    help="The value of C to take.  [default: the best]",
)
@click.option(
    "--nu",
    type=Number(SHARE),
    metavar="NU",
    help="The value of nu to take.  [default: the best]",
)
@overwrite_option
@json_option
def pick(
    path: str,
    model: str,
    C: float | None,
    nu: float | None,
    overwrite: bool,
    json_file: str | None,
) -> None:
    """Write the model of one value of C or nu, out of what `bigscreen path` wrote, to MODEL.

    \b
    Examples:
      bigscreen pick all.bsp best.bsm
      bigscreen pick all.bsp model.bsm --C 1
    """
    from bigscreen.model.solved_path import SolvedPath
    from bigscreen.report import certificate, report

    check_output(model, overwrite)
    check_json(json_file, path, model)
    solved = SolvedPath.load(path)
    asked = {"C": C, "nu": nu}
    wrong = next((n for n, v in asked.items() if v is not None and n != solved.parameter), None)
    if wrong is not None:
        raise InputError(f"{path} has values of {solved.parameter}; give --{solved.parameter}")
    value = asked[solved.parameter]
    if os.path.abspath(path) == os.path.abspath(model):
        raise InputError(f"{model} is the path itself; give the model another name")
    taken = solved.model(None if value is None else solved.nearest(value))
    taken.save(model)
    record = certificate.fit_record(taken)
    if json_file:
        report.write_result(json_file, "pick", record)
    certificate.show(record, model)
