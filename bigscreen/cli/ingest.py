"""`bigscreen ingest`: read files into a store."""

import csv
from contextlib import ExitStack
from typing import Any

import click

from bigscreen.cli.common import (
    Bytes,
    Number,
    as_typed,
    check_fleet,
    check_json,
    check_output,
    deadline_of,
    json_option,
    open_fleet,
    overwrite_option,
    time_option,
)
from bigscreen.cli.info import describe_store, store_facts
from bigscreen.cli.options import WHERE_IT_RUNS, GroupedCommand, fit_options
from bigscreen.cli.signals import INTERRUPTED
from bigscreen.files.printable import printable
from bigscreen.options.option import POSITIVE


def column_names(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    """Split names at commas; a name that contains a comma stands in double quotes."""
    return tuple(name.strip() for row in csv.reader(given, skipinitialspace=True) for name in row)


_GROUPS = {
    "Columns": ("label", "weight", "drop", "columns", "categorical", "date", "hashed", "max_kinds"),
    "Values": (
        *("scale", "impute", "add_indicator", "drop_missing", "missing", "positive"),
        "regression",
    ),
    "Rows": ("holdout", "rows", "unlabelled", "like", "shuffle", "seed"),
    "Files": (
        *("header", "delimiter", "decimal", "zero_based", "labels_file", "h5_x", "h5_y"),
        "layout",
    ),
    "Running": ("memory", "time_budget"),
}
"""Headings of the help, and the names of the options below each."""


@click.command(
    cls=GroupedCommand,
    most_used=(
        *("label", "holdout", "scale", "impute", "missing", "drop", "categorical"),
        *("regression", "like", "overwrite"),
    ),
    groups=_GROUPS,
    short_help="Read files into a STORE.",
)
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.argument("store")
@click.option(
    "--label",
    metavar="COLUMN",
    multiple=True,
    callback=column_names,
    help="Column of the label, by name or position (0 is the first, -1 the last); none: the rows "
    "have no label. Several, as A,B,..., are the targets of a --regression.  [default: a column "
    "named label, class, target or y, else the last; svmlight files have it first]",
)
@click.option(
    "--weight",
    metavar="COLUMN",
    help="Column of row weights, by name or position (0 is the first).",
)
@click.option(
    "--drop",
    metavar="A,B,...",
    multiple=True,
    callback=column_names,
    help="Leave columns out, by name or position (repeatable).",
)
@click.option(
    "--columns",
    metavar="A,B,...",
    multiple=True,
    callback=column_names,
    help="Take these columns as features, and no others, by name or position (repeatable).",
)
@click.option(
    "--categorical",
    metavar="COLUMN",
    multiple=True,
    help="A column whose numbers are categories, not amounts (repeatable). Columns of text are "
    "categorical anyway: each category becomes a column of 0 and 1.",
)
@click.option(
    "--date",
    metavar="COLUMN=FORMAT",
    multiple=True,
    help="A column of dates or times that are written so, such as born=%d/%m/%Y (repeatable). They "
    "become days since 1970, as those like 2024-02-29 12:30 do anyway.",
)
@click.option(
    "--hash",
    "hashed",
    metavar="COLUMN:BITS",
    multiple=True,
    help="A column of text with too many categories: a hash of each picks one of 2**BITS features "
    "(repeatable).",
)
@click.option(
    "--header/--no-header",
    default=None,
    help="Whether the first line of a text table names the columns.  [default: found out]",
)
@click.option("--delimiter", metavar="CHAR", help="What separates columns.  [default: found out]")
@click.option(
    "--decimal",
    type=click.Choice([".", ","]),
    help="What stands before the decimals of numbers in a text table: with , a number may be "
    "1.234,5, with . 1,234.5.  [default: a point, and no mark of thousands]",
)
@click.option(
    "--zero-based/--one-based",
    default=None,
    help="Whether svmlight columns are counted from 0 or 1.  [default: 0 if a 0 occurs]",
)
@click.option(
    "--labels",
    "labels_file",
    metavar="FILE",
    help="Labels of IDX images, an NPY file or an NPZ file of scipy's.  "
    "[default for IDX: the file of the usual name next to the images]",
)
@click.option("--h5-x", metavar="NAME", help="Dataset of an HDF5 file with the columns.")
@click.option("--h5-y", metavar="NAME", help="Dataset of an HDF5 file with the labels.")
@click.option(
    "--holdout",
    type=Number(POSITIVE),
    metavar="FRACTION",
    help="Put this share of the rows (or this number of rows), picked by chance, into a second "
    "store for testing: train-holdout.store next to train.store.",
)
@click.option("--rows", metavar="A:B", help="Take rows A to B - 1 alone, counted from 0.")
@click.option(
    "--scale",
    default="auto",
    show_default=True,
    metavar="auto|standard|minmax|divide:NUMBER|none",
    help="Bring columns of numbers to a common size; kept with the store and the model. standard: "
    "mean 0, deviation 1; minmax: 0 to 1; divide:255: for pixels; auto: standard for dense tables "
    "but their columns of 0 and 1, none for sparse rows and svmlight.",
)
@click.option(
    "--impute",
    type=click.Choice(["mean", "median", "most-frequent", "zero"]),
    help="What stands for a missing number of a column, kept with the store and the model; a "
    "missing text is a category of its own.  [default: a missing value is an error]",
)
@click.option(
    "--add-indicator",
    is_flag=True,
    help="With --impute: a further column of 0 and 1 for each column that lacks numbers, which "
    "says where. It helps where a gap means something, such as a question not answered.",
)
@click.option(
    "--drop-missing",
    is_flag=True,
    help="Leave out rows that lack a number, a text or their label; they are counted and listed.",
)
@click.option(
    "--missing",
    metavar="A,B,...",
    multiple=True,
    callback=column_names,
    help="What else says that a value is missing, as NA, ? and an empty field do anyway: texts "
    "such as -, numbers such as -999 (repeatable). A label that is a number is never missing.",
)
@click.option("--positive", metavar="LABEL", help="This label against all others as one.")
@click.option(
    "--regression",
    is_flag=True,
    help="Labels are numbers to predict (targets), for svr, lad and quantile; --label may name "
    "several.",
)
@click.option(
    "--unlabelled",
    is_flag=True,
    help="Rows for a one-class machine: every column is a feature but one that --label names; "
    "labels that svmlight or another file has next to its rows are left out.",
)
@click.option(
    "--like",
    metavar="MODEL|STORE",
    help="Prepare the rows as the training data was: same scaling, categories and labels.",
)
@click.option(
    "--layout",
    type=click.Choice(["auto", "dense", "sparse"]),
    default="auto",
    show_default=True,
    help="How rows are stored. auto: sparse for wide rows that are mostly zeros.",
)
@click.option(
    "--max-kinds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Most categories that a column of text may have, as each becomes a column, and most "
    "labels.  [default: 1000, and of more than 50 at most one for ten rows; 200 labels]",
)
@click.option(
    "--memory",
    type=Bytes(),
    metavar="SIZE",
    help="Memory that may be taken, such as 4GiB; what needs more is refused.  "
    "[default: 0.8 of what the process may use]",
)
@click.option(
    "--shuffle/--no-shuffle",
    default=True,
    show_default=True,
    help="Put rows into a random order (predictions come out in the source's order anyway).",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    show_default=True,
    help="Seed of the shuffle and the hold-out.",
)
@time_option
@fit_options(())
@overwrite_option
@json_option
@click.pass_context
def ingest(
    context: click.Context,
    /,
    sources: tuple[str, ...],
    store: str,
    overwrite: bool,
    json_file: str | None,
    holdout: float | None,
    time_budget: float | None,
    **values: Any,
) -> None:
    """Read files into STORE, a folder that is quick to read in pieces.

    Reads svmlight, CSV, TSV, ARFF, HDF5, NPY, NPZ, IDX (MNIST), Parquet and Feather; text also
    packed as .gz, .bz2, .xz or .zst. Several SOURCEs become one store; one may be a folder of
    files, or a pattern in quotes. Needs little memory however large the files are. After an
    interruption, or at the end of a time budget, the same command goes on where it stopped. Workers
    (--workers, --scheduler) read and parse plain CSV and svmlight, Parquet and small files, and
    sort.

    \b
    Examples:
      bigscreen ingest data.csv train.store --label target \\
          --holdout 0.2 --impute median
      bigscreen ingest "parts/*.csv" train.store --drop customer,comment
      bigscreen ingest train.svm.xz train.store
      bigscreen ingest test.svm.xz test.store --like train.store
      bigscreen ingest train-images-idx3-ubyte.gz digits.store \\
          --scale divide:255 --positive 7
      bigscreen ingest houses.csv houses.store --label price \\
          --regression
      bigscreen ingest houses.csv houses.store --label price,rent \\
          --regression
      bigscreen ingest normal.csv normal.store --unlabelled
    """
    from bigscreen.intake.ingest import ingest as read_in
    from bigscreen.report import profile, report

    deadline = deadline_of(time_budget)
    check_output(store, overwrite, folder=True)
    check_json(json_file, store, *sources)
    check_fleet(values)
    where = {name: values.pop(name) for name in WHERE_IT_RUNS if name != "threads"}
    if values["zero_based"] is None:
        values["zero_based"] = "auto"
    try:
        with ExitStack() as stack:
            if where["workers"] or where["scheduler"]:
                values["fleet"] = stack.enter_context(open_fleet({**values, **where}, deadline))
            made = read_in(
                list(sources),
                store,
                holdout=holdout or 0,
                overwrite=overwrite,
                progress=stack.enter_context(report.IngestBar()),
                deadline=deadline,
                **values,
            )
    except KeyboardInterrupt as stopped:
        click.echo(printable(str(stopped)) or "interrupted", err=True)
        context.exit(INTERRUPTED)
    notes = [as_typed(sentence, context.command.params) for sentence in made.notes]
    for sentence in notes:
        report.note(sentence)
    stores = {"store": describe_store(made.store)}
    if made.holdout is not None:
        stores["holdout"] = describe_store(made.holdout)
    if json_file:
        dropped = {"rows": made.dropped, "first": list(made.dropped_rows)}
        report.write_result(json_file, "ingest", {**stores, "notes": notes, "dropped": dropped})
    for name, record in stores.items():
        report.table(f"{name} {record['path']}", store_facts(record))
    if stores["store"]["profile"] is not None:
        profile.show(stores["store"]["profile"])
