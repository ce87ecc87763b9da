"""`bigscreen explain`: break the score of one row down into the parts that it is a sum of."""

import click

from bigscreen.cli.common import check_json, json_option, open_rows


@click.command(short_help="Say what one answer of a MODEL is a sum of.")
@click.argument("model")
@click.argument("store", metavar="STORE|FILE")
@click.option(
    "--row",
    type=click.IntRange(min=0),
    metavar="N",
    required=True,
    help="Row of STORE, by its number in the source, from 0.",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    default=10,
    show_default=True,
    help="Rows or columns to show.",
)
@json_option
def explain(model: str, store: str, row: int, top: int, json_file: str | None) -> None:
    """Say what the score of a row of STORE, or of a raw FILE, is a sum of.

    The parts are what each support row or landmark adds, named by its number in the source that was
    fitted (landmarks of a file, by their place in the model); of a linear machine they are columns.
    A part above 0 speaks for the second of two labels, or for the predicted one of more.

    For what each column is worth (permutation importance, partial dependence) use scikit-learn's
    `inspection` with an estimator, or with a model exported by `bigscreen export --to sklearn`.

    \b
    Examples:
      bigscreen explain exact.bsm test.store --row 17 --top 5
      bigscreen explain linear.bsm new.csv --row 0
    """
    from bigscreen.model.explain import explain_score
    from bigscreen.model.model import Model
    from bigscreen.report import report

    check_json(json_file, model)
    fitted = Model.load(model)
    with open_rows(store, fitted, model) as (dataset, matched):
        found = explain_score(matched, dataset, row)
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
