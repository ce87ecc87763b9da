"""`bigscreen export` and `bigscreen import`: write models for other programs, read LIBSVM's."""

from typing import TYPE_CHECKING, Any

import click

from bigscreen.cli.common import (
    Number,
    check_json,
    check_output,
    json_option,
    overwrite_option,
    threads_option,
)
from bigscreen.cli.options import check_used, fit_options, is_given, meaningless
from bigscreen.errors import InputError
from bigscreen.options.option import POSITIVE
from bigscreen.options.train import TrainOptions, flag

if TYPE_CHECKING:
    from bigscreen.model.model import Model


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
        "rows that agree": report.percent(found.agree),
        "largest difference": "not compared: theirs are other scores"
        if found.difference is None
        else f"{found.difference:.1e} of the largest score",
    }
    if found.probability is not None:
        facts["of probabilities"] = f"{found.probability:.1e}"
    report.table(f"{out}, read again", facts)
    for sentence in found.notes:
        report.note(sentence)


@click.command(name="import", short_help="Read a model file of LIBSVM, and prove how good it is.")
@click.argument("source", metavar="FILE")
@click.argument("model")
@click.option(
    "--certify",
    "store",
    metavar="STORE",
    help="The rows that it was fitted to: proves how far it is from the best machine for them, "
    "with the options below as it was fitted, which FILE does not say.",
)
@fit_options(("C", "nu", "epsilon", "class_weight"), ())
@threads_option
@overwrite_option
@json_option
@click.pass_context
def import_(
    context: click.Context,
    /,
    source: str,
    model: str,
    store: str | None,
    threads: int | None,
    overwrite: bool,
    json_file: str | None,
    **values: Any,
) -> None:
    """Read FILE, a model file of LIBSVM, and write it as MODEL.

    MODEL predicts and is evaluated as others are, on stores of the same columns that were ingested
    as its rows were. Without --certify nothing is proved of it. With it MODEL has a certificate as
    a fit has (its offset is the best one for FILE's coefficients).

    \b
    Examples:
      bigscreen import heart_scale.model model.bsm
      bigscreen import heart_scale.model model.bsm --certify train.store --C 1
    """
    from bigscreen.export.libsvm import read_libsvm
    from bigscreen.problems.point import format_gap
    from bigscreen.report import report

    check_output(model, overwrite)
    check_json(json_file, source, model)
    read = read_libsvm(source)
    if store is not None:
        read = _certified(context, read, store, threads, values)
    else:
        alone = [name for name in values if is_given(context, name)]
        if alone:
            raise meaningless(flag(alone[0]), "without --certify")
    read.save(model)
    proof = read.provenance["certificates"]
    gaps = [one["relative_gap"] for one in proof or []]
    gap = None if not gaps or None in gaps else max(gaps)
    record = {
        "out": model,
        "kind": read.kind,
        "kernel": read.kernel.name,
        "support": read.coef.shape[1],
        "columns": read.n_features,
        "labels": list(read.labels),
        "relative_gap": gap,
    }
    facts = {
        "kind": read.kind,
        "kernel": read.kernel.name,
        "support vectors": report.count(record["support"]),
        "columns": report.count(read.n_features),
        "labels": ", ".join(map(str, read.labels)) or "none",
    }
    if gap is not None:
        facts["relative gap"] = (
            f"{format_gap(gap, '.2e')}, proved over {report.count(read.provenance['rows'])} rows"
        )
    elif gaps:
        facts["relative gap"] = "none: the kernel is not positive semidefinite"
    if json_file:
        report.write_result(json_file, "import", record)
    report.table(f"{source}, read into {model}", facts)


def _certified(
    context: click.Context, read: "Model", store: str, threads: int | None, values: dict[str, Any]
) -> "Model":
    """Certify the machine that was read from a file over the rows of a store.

    ``values``: the options that say how the machine was fitted; ``threads``: None for one per core.
    """
    from bigscreen.data.dataset import Dataset
    from bigscreen.fleet.inline import Inline
    from bigscreen.train.adopted import adopt_machine

    asked = read.provenance["parameters"]
    if asked["problem"] in ("nu-svc", "nu-svr"):
        raise InputError(
            f"a {asked['problem']} of LIBSVM's is kept in another scale, which no file says; leave "
            "out --certify, or fit it here"
        )
    kernel = dict(asked["kernel"])
    kernel["kernel"] = kernel.pop("name")
    machine = {"problem": asked["problem"], "kernel": kernel["kernel"], "exact": True}
    check_used(context, {**values, **machine})
    if values["class_weight"] == "none":
        values = {**values, "class_weight": None}
    if asked["problem"] != "one-class":
        values = {**values, "intercept": "true"}
    options = TrainOptions(
        exact=True, problem=asked["problem"], strategy=read.strategy, **kernel, **values
    )
    with Inline(threads) as fleet:
        return adopt_machine(read, Dataset.open(store), options, fleet)
