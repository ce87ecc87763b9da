"""`bigscreen demo`: show ingest, fit, proof and evaluation on made-up data."""

import click

from bigscreen.cli.common import check_json, json_option


@click.command(short_help="Show the whole way on made-up data.")
@click.option(
    "--rows",
    type=click.IntRange(min=1000),
    metavar="N",
    default=1_000_000,
    show_default=True,
    help="Rows of made-up data.",
)
@click.option(
    "--landmarks",
    type=click.IntRange(min=1),
    metavar="M",
    default=500,
    show_default=True,
    help="Rows that all rows are compared with.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    default=2,
    show_default=True,
    help="Worker processes on this machine.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    show_default=True,
    help="Seed of the data and the fit.",
)
@click.option(
    "--keep",
    metavar="FOLDER",
    help="A new folder to keep the stores and models in; otherwise nothing is left behind.",
)
@json_option
def demo(
    rows: int, landmarks: int, workers: int, seed: int, keep: str | None, json_file: str | None
) -> None:
    """Show the whole way on made-up data: ingest, fit, proof, evaluation.

    Makes rows of the shape of a physics data set (18 numbers each, two labels), holds a part out
    for testing, fits a curved model (RBF kernel, landmarks) on worker processes, proves how good
    the fit is and compares it with a straight one (linear).

    \b
    Examples:
      bigscreen demo
      bigscreen demo --rows 100000 --keep my-demo
    """
    from bigscreen.cli.demonstration import run
    from bigscreen.report import report

    check_json(json_file)
    record = run(rows=rows, landmarks=landmarks, workers=workers, keep=keep, seed=seed)
    if json_file:
        report.write_result(json_file, "demo", record)
