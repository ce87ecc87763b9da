"""`bigscreen predict` and `bigscreen evaluate`: a fitted model on a store."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from bigscreen.cli.common import (
    Number,
    check_fleet,
    check_json,
    check_output,
    check_page,
    deadline_of,
    json_option,
    open_fleet,
    open_rows,
    overwrite_option,
    report_option,
    time_option,
)
from bigscreen.cli.fit import remark_on
from bigscreen.cli.options import GroupedCommand, fit_options
from bigscreen.cli.report import write_page
from bigscreen.errors import InputError
from bigscreen.files.remote import as_path
from bigscreen.options.option import INSIDE

if TYPE_CHECKING:
    from bigscreen.data.dataset import Dataset
    from bigscreen.device.find import Device
    from bigscreen.fleet.protocol import Each
    from bigscreen.model.model import Model

threshold_option = click.option(
    "--threshold",
    metavar="RULE",
    help="Draw the line between two labels elsewhere than at score 0, of a model fitted with "
    "--probability: f1, precision:P or recall:R (of the second label, on rows held out), or "
    "cost:A:M, what a false alarm and a miss cost.",
)


device_option = click.option(
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    default="auto",
    show_default=True,
    help="What computes scores. cuda: a GPU, with CuPy or PyTorch; auto: a GPU if there is one and "
    "the rows are dense and many, else the cpu.",
)


@contextmanager
def scoring(
    where: dict[str, Any], dataset: "Dataset", fitted: "Model", deadline: float | None = None
) -> Iterator[tuple["Each", "Model", "Device"]]:
    """Yield ``each(function, chunks)``, a map over chunks of the store, the model, and its device.

    The map runs on threads, worker processes or a cluster, and keeps the order of chunks; scores
    are computed on a device or not, as the options ``where`` say. ``deadline``, a value of
    ``time.monotonic()``, bounds the waiting for workers.
    """
    from bigscreen.device.find import find_on
    from bigscreen.plan.device import place_scores
    from bigscreen.train.job import rely_on

    with open_fleet({**where, "memory": None}, deadline) as fleet:
        rely_on(fleet, dataset, None)
        placed = place_scores(fitted, dataset, where["device"], partial(find_on, fleet))
        yield fleet.each, *placed


@click.command(
    cls=GroupedCommand,
    groups={
        "Answers": ("scores", "probability", "prior", "alpha", "threshold", "cross"),
        "Running": ("time_budget", "device"),
    },
    short_help="Write predictions for a STORE to a file.",
)
@click.argument("model")
@click.argument("store", metavar="STORE|FILE")
@click.argument("out")
@click.option("--scores", is_flag=True, help="Write the score of every label, not of one.")
@click.option(
    "--probability",
    is_flag=True,
    help="Write probabilities of all labels, too, of a model fitted with --probability.",
)
@click.option(
    "--prior",
    metavar="LABEL=SHARE",
    multiple=True,
    help="The share of these rows that has a label, for their probabilities (repeatable).  "
    "[default: as among the rows fitted]",
)
@click.option(
    "--set",
    "--interval",
    "alpha",
    type=Number(INSIDE),
    metavar="ALPHA",
    help="Write which labels a row may have, too, or the interval of its target: the truth is in "
    "it but for ALPHA of the rows.",
)
@click.option(
    "--cross",
    is_flag=True,
    help="Lay each interval over the machines of all folds (CV+), not one: steadier with few rows.",
)
@threshold_option
@time_option
@device_option
@fit_options(())
@overwrite_option
@json_option
def predict(
    model: str,
    store: str,
    out: str,
    scores: bool,
    probability: bool,
    prior: tuple[str, ...],
    alpha: float | None,
    cross: bool,
    threshold: str | None,
    time_budget: float | None,
    overwrite: bool,
    json_file: str | None,
    **where: Any,
) -> None:
    """Write what MODEL predicts for every row of STORE, or of a raw FILE, to the file OUT.

    OUT ends in .csv, .tsv or .npy, or is -, standard output (csv). Its columns are row (the row's
    number in the source, from 0), label and score (how sure: for two labels, above 0 means the
    second one); of a regression row and prediction (prediction_NAME for each of several targets).
    The labels of a one-class machine are -1
    (outlier) and 1. --probability adds a column probability_LABEL for every label, --set one
    in_LABEL (1 or 0), of a regression low and high; with three labels or more the most probable
    label can differ from the predicted one. Rows come in the source's order. The rows need no
    labels. FILE, such as a CSV with the columns of the training data, is prepared as they were;
    STORE must have been (`bigscreen ingest --like MODEL`).

    Labels are written as they are in the training data. A spreadsheet takes a label that begins
    with =, +, - or @ for a formula, and runs it: import OUT as text if the labels are not your own.

    \b
    Example:
      bigscreen predict model.bsm new.csv predictions.csv
      bigscreen predict model.bsm test.store predictions.csv
      bigscreen predict model.bsm test.store p.csv --probability --set .1
      bigscreen predict regression.bsm test.store p.csv --interval .1
      bigscreen predict model.bsm test.store p.csv --workers 4
    """
    from bigscreen.evaluate.predict import Meaning, check_suffix, write_predictions
    from bigscreen.model.model import Model
    from bigscreen.report import report

    deadline = deadline_of(time_budget)
    check_suffix(out)
    check_output(out, overwrite)
    check_json(json_file, out, model)
    check_fleet(where)
    shares = _shares(prior)
    if shares and not probability:
        raise InputError("--prior is for the probabilities of --probability; give that, too")
    fitted = Model.load(model)
    if threshold is not None:
        fitted = fitted.thresholded(threshold)
    if cross and (alpha is None or fitted.kind != "regressor"):
        raise InputError("--cross is for the intervals of a regression; give --interval, too")
    too_few = None
    if alpha is not None and fitted.kind == "regressor":
        too_few = fitted.held_out.explain_infinite(alpha, cross)
    with ExitStack() as stack:
        dataset, fitted = stack.enter_context(open_rows(store, fitted, model, deadline))
        each, scorer, device = stack.enter_context(scoring(where, dataset, fitted, deadline))
        counts = write_predictions(
            scorer,
            dataset,
            out,
            all_scores=scores,
            meaning=Meaning(probability, shares or None, alpha, cross),
            each=each,
            deadline=deadline,
        )
    if json_file:
        written = {"out": out, "rows": dataset.n_rows, "predicted": counts}
        report.write_result(json_file, "predict", {**written, "device": device.record})
    predicted = {f"predicted {label}": report.count(rows) for label, rows in counts.items()}
    place = "on standard output" if out == "-" else f"in {out}"
    report.table(f"Predictions {place}", {"rows": report.count(dataset.n_rows), **predicted})
    if too_few:
        report.warn(too_few)


def _shares(given: tuple[str, ...]) -> dict[str, float]:
    """Parse the values of --prior, LABEL=SHARE, to shares by label."""
    shares = {}
    for text in given:
        label, equals, share = text.rpartition("=")
        try:
            shares[label] = float(share)
        except ValueError:
            equals = ""
        if not equals:
            raise InputError(f"--prior must be LABEL=SHARE, such as yes=.1, got {text!r}")
    return shares


@click.command(
    cls=GroupedCommand,
    groups={"Comparison": ("positive", "leave_one_out", "threshold"), "Running": ("device",)},
    short_help="Compare predictions with what a STORE says.",
)
@click.argument("model")
@click.argument("store", metavar="STORE|FILE")
@click.option(
    "--positive",
    metavar="LABEL",
    help="Of a one-class machine: the label of rows like those it was fitted on.  [default: the "
    "second of two]",
)
@click.option(
    "--leave-one-out",
    is_flag=True,
    help="Of an exact machine and the STORE that it was fitted on: judge each row by the machine "
    "fitted without it, with a proof.",
)
@threshold_option
@device_option
@fit_options(())
@report_option
@json_option
def evaluate(
    model: str,
    store: str,
    positive: str | None,
    leave_one_out: bool,
    threshold: str | None,
    page: str | None,
    json_file: str | None,
    **where: Any,
) -> None:
    """Compare what MODEL predicts with the labels or targets that STORE, or a raw FILE, has.

    \b
    Of labels:
    error     share of rows that are predicted wrongly
    accuracy  share of rows that are predicted rightly
    balanced  mean over labels of the share of their rows predicted rightly
    f1        between 0 and 1; few false alarms and few misses of the second label
              (with more than two labels: the mean over all)
    auc       chance that a row of the second label scores above one of the first
    precision mean precision at every row of the second label, the surest first
              (average precision: what auc is for rare labels)
    confusion rows by true and by predicted label
    by label  precision (share of the rows predicted to have the label that
              do), recall (share of its rows that are found) and f1 of each

    \b
    Of a model fitted with --probability, too:
    log loss, Brier score, calibration error (how far probabilities are from
    what came true), reliability by tenths, and the sets of labels at alpha .1:
    coverage and mean size

    \b
    Of a regression, over all rows with a target:
    mae       mean absolute error
    rmse      root of the mean squared error
    r2        share of the targets' variance that is explained: 1 is perfect,
              0 a constant
    pinball   mean loss of the quantile that the model predicts (quantile
              regression)
    by target these measures of each, if the model predicts several
    intervals of a model fitted with --probability: the share of targets that
              they hold at alpha .1, and their mean width

    \b
    Of a one-class machine:
    outside   share of rows that it calls outliers, in all and for each label
    auc       chance that a row of the positive label scores above one of another

    \b
    Examples:
      bigscreen evaluate model.bsm test.store
      bigscreen evaluate model.bsm new.csv
      bigscreen evaluate oneclass.bsm test.store --positive normal
      bigscreen evaluate model.bsm test.store --report model.html
      bigscreen evaluate exact.bsm train.store --leave-one-out
    """
    from bigscreen.evaluate.evaluate import evaluate as compare
    from bigscreen.model.model import Model
    from bigscreen.report import evaluation, report

    check_json(json_file, model)
    check_page(page, model, *filter(None, [json_file]))
    check_fleet(where)
    fitted = Model.load(model)
    if leave_one_out:
        others = {"--positive": positive, "--threshold": threshold, "--report": page}
        on_device = {"device": where["device"] == "cuda"}
        _leave_one_out(fitted, store, {**others, **where, **on_device}, json_file)
        return
    if threshold is not None:
        fitted = fitted.thresholded(threshold)
    with ExitStack() as stack:
        dataset, fitted = stack.enter_context(open_rows(store, fitted, model))
        each, scorer, device = stack.enter_context(scoring(where, dataset, fitted))
        record = compare(scorer, dataset, each, positive, curves=page is not None)
        if page:
            write_page(page, fitted, model, dataset, record)
    if json_file:
        report.write_result(json_file, "evaluate", {**record, "device": device.record})
    report.table(f"{model} on {store}", evaluation.facts(record))
    if sentence := remark_on(dataset, fitted, record):
        report.warn(sentence)
    if "targets" in record:
        report.matrix("by target", "target", evaluation.by_target(record["targets"]))
    if "confusion" not in record:
        return
    if "reliability" in record:
        report.matrix("reliability", "probability", evaluation.reliability(record["reliability"]))
    if len(fitted.labels) <= 10:  # a wider table does not fit a terminal
        report.matrix("by label", "label", evaluation.by_label(record["by_label"]))
        confused = record["confusion"].items()
        cells = {true: {k: report.count(n) for k, n in row.items()} for true, row in confused}
        report.matrix("confusion (rows)", "true \\ predicted", cells)
    else:
        report.note(f"--json FILE also tells which of the {len(fitted.labels)} labels are confused")


def _leave_one_out(
    fitted: "Model", store: str, given: dict[str, Any], json_file: str | None
) -> None:
    """Print, and write to ``json_file``, how a model does on rows that it was not fitted on.

    ``given``: the other options of the command, by name; InputError if one does not go with it.
    """
    from bigscreen.amend.leave_one_out import leave_one_out
    from bigscreen.data.dataset import Dataset
    from bigscreen.device.find import HOST
    from bigscreen.fleet.blas import blas_threads
    from bigscreen.fleet.inline import Inline
    from bigscreen.report import report

    threads = given.pop("threads", None)
    for name, value in given.items():
        if value is not None and value is not False:
            flag = name if name.startswith("--") else f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} does not go with --leave-one-out; leave out one of them")
    if as_path(store).is_file():
        raise InputError(
            f"--leave-one-out is of the very rows that the model was fitted on: give the STORE of "
            f"its fit in place of {store}"
        )
    with Inline(threads) as fleet, blas_threads(1):
        record = leave_one_out(fitted, Dataset.open(store), fleet.each).record()
    if json_file:
        report.write_result(
            json_file, "evaluate", {"unlabelled": 0, **record, "device": HOST.record}
        )
    wrong, doubt, rows = record["wrong"], record["undecided"], record["rows"]
    most = report.percent((wrong + doubt) / rows, 2)
    report.table(
        f"Each row of {store} without itself",
        {
            "rows": report.count(rows),
            "fitted anew": report.count(record["refitted"]),
            "predicted wrongly": f"{report.count(wrong)} (proved)",
            "not decided": report.count(doubt),
            "error": most if not doubt else f"{report.percent(wrong / rows, 2)} to {most}",
            "scores known to": f"{record['bound']:.2g}",
        },
    )
