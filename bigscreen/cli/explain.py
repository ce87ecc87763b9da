"""`bigscreen explain`: why a model answers so."""

import click

from bigscreen.cli.common import check_json, each_block, json_option, threads_option


@click.command(short_help="Say why a MODEL answers so.")
@click.argument("model")
@click.argument("store")
@click.option(
    "--row",
    type=click.IntRange(min=0),
    metavar="N",
    help="Row of STORE, by its number in the source, from 0, whose score is to be taken apart.",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    default=10,
    show_default=True,
    help="Rows or columns to show.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", default=0, help="Of the exchanged values."
)
@threads_option
@json_option
def explain(
    model: str,
    store: str,
    row: int | None,
    top: int,
    seed: int,
    threads: int | None,
    json_file: str | None,
) -> None:
    """Say what each column of STORE is worth to MODEL or, with --row, what carries one answer.

    Without --row the values of a column are exchanged among rows, and the rows judged again: the
    more the error (of a regression the mean squared one) grows, the more the model needs the
    column. Rows that were not fitted tell more.

    With --row the score of a row is taken apart: of an exact machine into what every support row
    adds, named by its number in the source that was fitted, of a linear one into columns. What is
    above 0 speaks for the second of two labels, or for the label that is predicted.

    \b
    Examples:
      bigscreen explain model.bsm test.store
      bigscreen explain exact.bsm test.store --row 17 --top 5
    """
    from bigscreen.data.dataset import Dataset
    from bigscreen.model.explain import carried, importance
    from bigscreen.model.model import Model, check_match
    from bigscreen.report import report

    check_json(json_file, model)
    fitted = Model.load(model)
    dataset = Dataset.open(store)
    check_match(fitted, dataset, model)
    if row is not None:
        found = carried(fitted, dataset, row)
        if json_file:
            report.write_result(json_file, "explain", found)
        answer = found.get("label", found.get("prediction"))
        facts = {"answer": str(answer), "score": f"{found['score']:.6g}"}
        facts |= {
            "offset": f"{found['offset']:+.6g}",
            found["by"]: report.count(len(found["parts"])),
        }
        report.table(f"row {row} of {store}", facts)
        kind = found["by"].removesuffix("s")
        parts = {str(p[kind]): {"adds": f"{p['part']:+.6g}"} for p in found["parts"][:top]}
        if parts:
            report.matrix(f"{found['by']} that add most", kind, parts)
        return
    with each_block(threads) as each:
        found = importance(fitted, dataset, each, seed)
    if json_file:
        report.write_result(json_file, "explain", found)
    measure = found["measure"]
    facts = {"rows": report.count(found["rows"]), measure: f"{found['base']:.6g}"}
    report.table(f"{model} on {store}", facts)
    parts = {
        part["column"]: {f"{measure} more": f"{part['worse']:+.4g} +- {part['deviation']:.1g}"}
        for part in found["columns"][:top]
    }
    report.matrix("columns, exchanged among rows", "column", parts)
