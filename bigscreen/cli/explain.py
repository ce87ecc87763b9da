"""`bigscreen explain`: why a model answers so."""

import click

from bigscreen.cli.common import check_json, each_block, json_option, threads_option
from bigscreen.errors import InputError


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
    "--column",
    metavar="COLUMN",
    help="Column of the source, by name or position, from 0: what MODEL answers as it changes and "
    "all others stay.",
)
@click.option(
    "--points",
    type=click.IntRange(min=1),
    metavar="N",
    default=11,
    show_default=True,
    help="Values of a --column of numbers to try: quantiles of those that occur.",
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
    column: str | None,
    points: int,
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

    With --column every row gets the same value in a column, and the answers are averaged, for some
    values of a column of numbers and every category (partial dependence).

    \b
    Examples:
      bigscreen explain model.bsm test.store
      bigscreen explain exact.bsm test.store --row 17 --top 5
      bigscreen explain model.bsm test.store --column age
    """
    from bigscreen.data.dataset import Dataset
    from bigscreen.model.dependence import dependence
    from bigscreen.model.explain import carried, importance
    from bigscreen.model.model import Model, matched
    from bigscreen.report import report

    if row is not None and column is not None:
        raise InputError("--row and --column ask for two things: choose one")
    check_json(json_file, model)
    fitted = Model.load(model)
    dataset = Dataset.open(store)
    fitted = matched(fitted, dataset, model)
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
    if column is not None:
        with each_block(threads) as each:
            found = dependence(fitted, dataset, column, each, points)
        if json_file:
            report.write_result(json_file, "explain", found)
        lines = {}
        for one in found["values"]:
            value = one["value"]
            name = f"{value:.6g}" if isinstance(value, float) else str(value)
            numbers = {key: one[key] for key in ("prediction", "score") if key in one}
            shares = list(one.get("share", {}).items())
            cells = {key: f"{number:.4g}" for key, number in numbers.items()}
            lines[name] = cells | {label: f"{100 * part:.1f} %" for label, part in shares[:top]}
        what = f"answers over {report.count(found['rows'])} rows by the value of {found['column']}"
        report.matrix(what, found["column"], lines)
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
