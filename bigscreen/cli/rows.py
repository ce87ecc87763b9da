"""`bigscreen rows`: list what a model proves of every row that it was fitted on."""

import click

from bigscreen.cli.common import check_json, check_output, json_option, overwrite_option
from bigscreen.errors import InputError


@click.command(short_help="Say which rows a MODEL provably does without.")
@click.argument("model")
@click.argument("out", required=False)
@click.option(
    "--status", type=click.Choice(["out", "bound", "open"]), help="Only rows of this status."
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only N rows of each score: those decided most firmly or, of open rows, those nearest "
    "to a hinge point.",
)
@overwrite_option
@json_option
def rows(
    model: str,
    out: str | None,
    status: str | None,
    top: int | None,
    overwrite: bool,
    json_file: str | None,
) -> None:
    """Say what is proved of every row that MODEL was fitted on, and list the rows in OUT.

    \b
    out    the optimum is the same without the row
    bound  the row pulls as hard as its weight lets it: its loss is linear around
           the optimum
    open   neither is proved; a smaller --tol of the fit decides more rows

    OUT ends in .csv, .tsv or .npy, or is -, standard output (csv), where --status and --top list
    without it. Its columns are score (of which labels, where there are several), row (the row's
    number in the source, from 0), status and margin (how many times farther the optimum may be
    than it provably is before the row could change sides: above 1 it is decided).

    \b
    Examples:
      bigscreen rows model.bsm
      bigscreen rows model.bsm --status out --top 10
    """
    from bigscreen.evaluate.predict import check_suffix
    from bigscreen.evaluate.rows import write_rows
    from bigscreen.model.ledger import suggest_tol, summarise_ledgers
    from bigscreen.model.model import Model
    from bigscreen.report import certificate, report

    check_json(json_file, out or model, model)
    if out is None and (status is not None or top is not None):
        out = "-"
    if out is not None:
        check_suffix(out)
        check_output(out, overwrite)
    fitted = Model.load(model)
    if fitted.ledger is None:
        raise InputError(
            f"{model} has no ledger: nothing is proved of it, or it was taken from a path, or an "
            "older bigscreen wrote it; fit with its options to get one"
        )
    record = summarise_ledgers(fitted.ledger, certificate.labels(fitted))
    if json_file:
        report.write_result(json_file, "rows", record)
    if out is not None:
        write_rows(out, fitted.ledger, certificate.labels(fitted), status, top)
    parts = record["scores"] if len(record["scores"]) > 1 else []
    report.table(
        f"Rows of {model}",
        {
            **{str(part["label"]): certificate.describe_statuses(part) for part in parts},
            "all" if parts else "rows": certificate.describe_statuses(record),
        },
    )
    gap = max(part["relative_gap"] for part in fitted.provenance["certificates"])
    tol = suggest_tol(fitted.ledger, gap)
    if tol is not None:
        report.note(
            f"most rows are open, as the gap of {gap:.1e} is loose: a fit with a smaller --tol, "
            f"such as {tol:.0e}, decides more"
        )
