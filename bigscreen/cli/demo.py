"""`bigscreen demo`."""

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
    metavar="N",
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
@json_option
def demo(rows: int, landmarks: int, workers: int, json_file: str | None) -> None:
    """Show the whole way on made-up data: ingest, fit, proof, evaluation.

    Makes rows of the shape of a physics data set (18 numbers each, two labels), keeps a part for
    testing, fits a curved model on worker processes, proves how good the fit is and compares it
    with a straight one. Everything it writes is removed at the end.

    \b
    Examples:
      bigscreen demo
      bigscreen demo --rows 100000
    """
    check_json(json_file)
    from bigscreen import report
    from bigscreen.demo import run

    record = run(rows=rows, landmarks=landmarks, workers=workers)
    if json_file:
        report.write_json(json_file, record)
