"""`bigscreen export` and `bigscreen import`: models for other programs, and from LIBSVM."""

import click

from bigscreen.cli.common import Number, check_json, check_output, json_option, overwrite_option
from bigscreen.train.option import POSITIVE


@click.command(short_help="Write a MODEL for another program, and compare.")
@click.argument("model")
@click.argument("store")
@click.argument("out")
@click.option(
    "--to",
    required=True,
    type=click.Choice(["onnx", "libsvm", "sklearn", "skops"]),
    help="onnx: a graph that takes rows as the source had them; sklearn: a pipeline of "
    "scikit-learn's parts, as joblib writes it; skops: the same, which runs no code when it is "
    "read; libsvm: a model file of LIBSVM, for prepared rows.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    metavar="N",
    default=2000,
    show_default=True,
    help="Rows of STORE, by chance, to compare on.",
)
@click.option(
    "--tolerance",
    type=Number(POSITIVE),
    metavar="X",
    default=1e-4,
    show_default=True,
    help="Largest difference of a score, as a part of the largest one, that is let pass.",
)
@overwrite_option
@json_option
def export(
    model: str,
    store: str,
    out: str,
    to: str,
    rows: int,
    tolerance: float,
    overwrite: bool,
    json_file: str | None,
) -> None:
    """Write MODEL to the file OUT for another program, read it again there, and compare.

    Scores and labels of rows of STORE are compared with the model's own; where they differ by more
    than --tolerance nothing is written. Scaling, categories and what stands for missing numbers
    are part of what is written, but for libsvm.

    \b
    Examples:
      bigscreen export model.bsm test.store model.onnx --to onnx
      bigscreen export model.bsm test.store model.skops --to skops
    """
    from bigscreen.data.dataset import Dataset
    from bigscreen.export.verified import export as exported
    from bigscreen.model.model import Model, check_match
    from bigscreen.report import report

    check_output(out, overwrite)
    check_json(json_file, out, model)
    fitted = Model.load(model)
    dataset = Dataset.open(store)
    check_match(fitted, dataset, model)
    found = exported(fitted, dataset, out, to, tolerance, rows)
    if json_file:
        report.write_result(json_file, "export", {"out": out, "to": to, **found.__dict__})
    facts = {
        "rows compared": report.count(found.rows),
        "rows that agree": f"{found.agree:.2%}",
        "largest difference": "not compared: theirs are other scores"
        if found.difference is None
        else f"{found.difference:.1e} of the largest score",
    }
    if found.probability is not None:
        facts["of probabilities"] = f"{found.probability:.1e}"
    report.table(f"{out}, read again", facts)
    for sentence in found.notes:
        report.note(sentence)


@click.command(name="import", short_help="Read a model file of LIBSVM.")
@click.argument("source", metavar="FILE")
@click.argument("model")
@overwrite_option
@json_option
def import_(source: str, model: str, overwrite: bool, json_file: str | None) -> None:
    """Read FILE, a model file of LIBSVM, and write it as MODEL.

    Such a model predicts and is evaluated as others are, on stores of the same columns that were
    ingested without --scale. Nothing is proved of it: the file does not say what it was fitted to.

    \b
    Example:
      bigscreen import heart_scale.model model.bsm
    """
    from bigscreen.export.libsvm import read_libsvm
    from bigscreen.report import report

    check_output(model, overwrite)
    check_json(json_file, source, model)
    read = read_libsvm(source)
    read.save(model)
    record = {
        "out": model,
        "kind": read.kind,
        "kernel": read.kernel.name,
        "support": read.coef.shape[1],
        "columns": read.n_features,
        "labels": list(read.labels),
    }
    facts = {
        "kind": read.kind,
        "kernel": read.kernel.name,
        "support vectors": report.count(record["support"]),
        "columns": report.count(read.n_features),
        "labels": ", ".join(map(str, read.labels)) or "none",
    }
    if json_file:
        report.write_result(json_file, "import", record)
    report.table(f"{source}, read into {model}", facts)
