"""`bigscreen ingest`."""

import re
from typing import Any

import click

from bigscreen.cli.common import Number, check_json, check_output, json_option, overwrite_option
from bigscreen.cli.info import describe_store, store_facts
from bigscreen.errors import InputError


@click.command(short_help="Read files into a STORE.")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.argument("store")
@click.option(
    "--label",
    metavar="COLUMN",
    help="Column of the label: its name, or its position from 1 (-1 is the last); none: rows have "
    "no label.  [default: the last column; svmlight files have it first]",
)
@click.option("--weight", metavar="COLUMN", help="Column of row weights, by name or position.")
@click.option(
    "--header/--no-header",
    default=None,
    help="Whether the first line of a text table names the columns.  [default: found out]",
)
@click.option("--delimiter", metavar="CHAR", help="What separates columns.  [default: found out]")
@click.option(
    "--zero-based/--one-based",
    default=None,
    help="Whether svmlight columns are counted from 0 or 1.  [default: 1]",
)
@click.option("--labels", "labels_file", metavar="FILE", help="Labels of IDX images (MNIST).")
@click.option("--h5-x", metavar="NAME", help="Dataset of an HDF5 or NPZ file with the columns.")
@click.option("--h5-y", metavar="NAME", help="Dataset of an HDF5 or NPZ file with the labels.")
@click.option(
    "--holdout",
    type=Number(above=0, below=1),
    metavar="FRACTION",
    help="Put this share of the rows, picked by chance, into a second store for testing.",
)
@click.option("--rows", metavar="A:B", help="Take rows A to B - 1 alone, counted from 0.")
@click.option(
    "--scale",
    default="none",
    show_default=True,
    metavar="standard|minmax|divide:NUMBER|none",
    help="Bring columns to a common size; kept with the store and the model. standard: mean 0, "
    "deviation 1; minmax: 0 to 1; divide:255: for pixels.",
)
@click.option("--positive", metavar="LABEL", help="This label against all others as one.")
@click.option(
    "--like",
    metavar="MODEL|STORE",
    help="Prepare the rows as the training data was: same scaling, categories and labels.",
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
@overwrite_option
@json_option
def ingest(
    sources: tuple[str, ...],
    store: str,
    overwrite: bool,
    json_file: str | None,
    rows: str | None,
    **values: Any,
) -> None:
    """Read files into STORE, a folder that is quick to read in pieces.

    Reads svmlight, CSV, TSV, ARFF, HDF5, NPY, NPZ, IDX (MNIST) and Parquet; text also packed as
    .gz, .bz2 or .xz. Several SOURCEs become one store. Needs little memory however large the
    files are. After an interruption, the same command goes on where it stopped.

    \b
    Examples:
      bigscreen ingest data.csv train.store --label target --holdout 0.2 --scale standard
      bigscreen ingest train.svm.xz train.store
      bigscreen ingest test.svm.xz test.store --like train.store
      bigscreen ingest train-images-idx3-ubyte.gz digits.store --scale divide:255 --positive 7
    """
    from bigscreen import report
    from bigscreen.store.ingest import ingest as read_in

    check_output(store, overwrite, folder=True)
    check_json(json_file, store, *sources)
    with report.ByteBar("reading") as progress:
        made = read_in(
            list(sources),
            store,
            rows=_row_range(rows),
            overwrite=overwrite,
            progress=progress,
            **values,
        )
    for sentence in made.notes:
        report.note(sentence)
    stores = {"store": describe_store(made.store)}
    if made.holdout is not None:
        stores["holdout"] = describe_store(made.holdout)
    if json_file:
        report.write_json(json_file, {**stores, "notes": list(made.notes)})
    for name, record in stores.items():
        report.table(f"{name} {record['path']}", store_facts(record))


def _row_range(text: str | None) -> tuple[int, int | None] | None:
    """'A:B' as two numbers; either may be left out."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d*):(\d*)", text.strip())
    if match is None:
        raise InputError(f"--rows {text} should look like 0:1000, from one row to before another")
    start = int(match[1] or 0)
    stop = int(match[2]) if match[2] else None
    if stop is not None and stop <= start:
        raise InputError(f"--rows {text} takes no row; the second number must be the larger one")
    return start, stop
