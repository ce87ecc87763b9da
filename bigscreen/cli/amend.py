"""`bigscreen amend` and `bigscreen compress`: edit a model's rows, or drop unneeded ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bigscreen.cli.common import (
    check_fleet,
    check_json,
    check_output,
    json_option,
    lock_output,
    open_fleet,
    overwrite_option,
)
from bigscreen.cli.options import fit_options
from bigscreen.errors import InputError
from bigscreen.files.scratch import scratch

if TYPE_CHECKING:
    from bigscreen.amend.bound import Bound
    from bigscreen.amend.edits import Changes, Edits
    from bigscreen.data.dataset import Dataset
    from bigscreen.model.model import Model


@click.command(short_help="Edit the rows of a MODEL, and prove what that changes.")
@click.argument("model")
@click.argument("store")
@click.argument("out", required=False)
@click.option(
    "--remove", metavar="FILE", help="Rows that leave: one number a line, or a column row."
)
@click.option("--relabel", metavar="FILE", help="Columns row and label: labels from now on.")
@click.option("--reweight", metavar="FILE", help="Columns row and weight: weights from now on.")
@click.option(
    "--add",
    metavar="FILE|STORE",
    help="Rows that enter: a file as the store's source was, or a store ingested --like it.",
)
@click.option("--label", metavar="COLUMN", help="Of a file of --add: as `bigscreen ingest` has it.")
@click.option("--weight", metavar="COLUMN", help="Of a file of --add: its column of weights.")
@click.option(
    "--bound",
    "only_bound",
    is_flag=True,
    help="Only say what the edits change at most, from the edited rows alone; nothing is written.",
)
@click.option(
    "--watch",
    metavar="STORE",
    help="With --bound: how many predictions of this store's rows provably stay.",
)
@click.option(
    "--store",
    "new_store",
    metavar="FOLDER",
    help="Where the edited rows go.  [default: OUT, ending in .store]",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Fit anew: landmarks and a gamma in words come from the edited rows, too.",
)
@fit_options(("time_budget",))
@overwrite_option
@json_option
@click.pass_context
def amend(
    context: click.Context,
    /,
    model: str,
    store: str,
    out: str | None,
    only_bound: bool,
    watch: str | None,
    new_store: str | None,
    strict: bool,
    overwrite: bool,
    json_file: str | None,
    **values: Any,
) -> None:
    """Edit the rows that MODEL was fitted on, STORE, and write the machine of the edited rows, OUT.

    Rows are named by their numbers in the source, as `bigscreen rows` lists them. STORE stays as it
    is: the edited rows are a store of their own, which a later edit takes as STORE. Rows that
    MODEL's ledger has proved to be out leave without a change, and its certificate holds; after
    any other edit the fit goes on from MODEL, with its landmarks, kernel and scaling, to the same
    --tol, and is certified over all rows that there are then. OUT lists every edit since the first
    fit: `bigscreen info OUT --history`.

    With --bound no other row is looked at: the gap that MODEL has for the edited rows, how far the
    best machine can have moved, and how many predictions that provably leaves alone.

    \b
    Examples:
      bigscreen amend model.bsm train.store --remove ids.txt --bound
      bigscreen amend model.bsm train.store new.bsm \\
          --remove ids.txt --relabel labels.csv
    """
    from bigscreen.amend.amend import amend as edit
    from bigscreen.amend.amend import bounds
    from bigscreen.data.dataset import Dataset
    from bigscreen.model.model import Model, check_match
    from bigscreen.report import certificate, report

    if only_bound == (out is not None):
        raise InputError(
            "--bound writes nothing: leave out OUT"
            if only_bound
            else "give OUT, the file of the model after the edits, or --bound to write nothing"
        )
    if watch is not None and not only_bound:
        raise InputError("--watch has no meaning without --bound; leave it out")
    check_fleet(values)
    check_json(json_file, out or model, model)
    folder = ""
    if out is not None:
        folder = new_store or str(Path(out).with_suffix(".store"))
        check_output(out, overwrite)
        # (`edit` checks the folder itself: it may be the rest of a run that was killed.)
        check_output(folder, overwrite=True, folder=True)
        if Path(folder).resolve() == Path(store).resolve():
            raise InputError(f"{store} stays as it is: choose another --store for the edited rows")
        context.with_resource(lock_output(out))
    fitted, dataset = Model.load(model), Dataset.open(store)
    with _edits(values, dataset) as edits:
        if only_bound:
            found, edited = bounds(fitted, dataset, edits)
            watched = None if watch is None else Dataset.open(watch)
            if watched is not None:
                check_match(fitted, watched, model)
            record = _bound_record(fitted, found, dataset, edited, watched)
            if json_file:
                report.write_result(json_file, "amend", record)
            report.table(f"Edits of {model}: {_said(edits.counts)}", _bound_facts(record))
            return
        assert out is not None
        with (
            scratch("amend", Path(folder).absolute().parent) as work,
            open_fleet({**values, "memory": None}) as fleet,
            report.FitReport() as show,
        ):
            made = edit(
                fitted,
                dataset,
                edits,
                fleet,
                path=folder,
                overwrite=overwrite,
                strict=strict,
                work=work,
                time_budget=values["time_budget"],
                report=show,
            )
    made.model.save(out)
    record = {**certificate.fit_record(made.model), "edit": made.record, "store": folder}
    if json_file:
        report.write_result(json_file, "amend", record)
    for note in made.record["notes"]:
        report.note(note)
    if made.record["how"] == "carried over":
        report.note("every row that left is proved to be out: the certificate holds as it was")
    report.note(f"{_said(made.record['what'])}; the edited rows are in {folder}")
    if fitted.calibration is not None and made.model.calibration is None:
        report.note(
            "the edited machine has no probabilities, which were learnt with the rows as they "
            "were; fit the edited rows with --probability for new ones"
        )
    certificate.show(record, out)


@click.command(short_help="Write the rows of a STORE that a fit needs, by what a MODEL proves.")
@click.argument("model")
@click.argument("store")
@click.argument("out")
@fit_options(())
@overwrite_option
@json_option
@click.pass_context
def compress(
    context: click.Context,
    /,
    model: str,
    store: str,
    out: str,
    overwrite: bool,
    json_file: str | None,
    **values: Any,
) -> None:
    """Write a store of fewer rows that provably has STORE's optimum; MODEL was fitted on STORE.

    Rows that MODEL's ledger has out are left out. Those at their bound become one row for each
    label: their weighted mean, which has the sum of their losses around the optimum. With
    landmarks OUT holds the features that they make of the rows, and is fitted with --kernel linear.
    Of an exact machine the rows at their bound stay, as the mean of its features is no row.

    OUT's own record says which rows it stands for, how to fit it and what proves it; the tighter
    MODEL's gap (--tol 1e-7), the smaller OUT.

    \b
    Example:
      bigscreen compress model.bsm train.store small.store
    """
    from bigscreen.amend.compress import compress as write
    from bigscreen.data.dataset import Dataset
    from bigscreen.model.model import Model
    from bigscreen.report import report

    check_fleet(values)
    check_output(out, overwrite, folder=True)
    if Path(out).resolve() == Path(store).resolve():
        raise InputError(f"{store} stays as it is: choose another name for the smaller store")
    check_json(json_file, out, model)
    context.with_resource(lock_output(out))
    fitted, dataset = Model.load(model), Dataset.open(store)
    with open_fleet({**values, "memory": None}) as fleet:
        made, record = write(fitted, dataset, out, fleet, overwrite)
    if json_file:
        report.write_result(json_file, "compress", record)
    how = record["fit"]
    exact, offset = ("--exact ", "true") if how["exact"] else ("", "penalized")
    kernel = "".join(f"--{name} {value} " for name, value in how["kernel"].items())
    kernel = kernel.replace("--name ", "--kernel ")
    intercept = "" if how["intercept"] == offset else f"--intercept {how['intercept']} "
    report.table(
        f"{out}, in place of {store}",
        {
            "rows": f"{report.count(made.n_rows)} for {report.count(record['rows'])}",
            "size": f"{report.size(made.stored_bytes)} for {report.size(dataset.stored_bytes)}",
            "left out": f"{report.count(record['out'])} proved to be out",
            "merged" if record["features"] != "as they were" or not how["exact"] else "kept": (
                f"{report.count(record['bound'])} proved to be at their bound"
            ),
            "open": report.count(record["open"]),
            "fit it with": f"{exact}{kernel}{intercept}--C {how['C']:g}",
        },
    )


@contextmanager
def _edits(values: dict[str, Any], dataset: "Dataset") -> Iterator["Edits"]:
    """Read the edits (rows to remove, relabel, reweight or add) from the files of the options.

    ``dataset``: the store to edit. Rows to add are ingested like its rows, to a temporary folder.
    """
    from bigscreen.amend.edits import Edits, read_labels, read_rows, read_weights
    from bigscreen.data.dataset import Dataset
    from bigscreen.intake.ingest import ingest

    known: dict[str, Any] = {}
    if values["remove"]:
        known["remove"] = read_rows(values["remove"])
    if values["relabel"]:
        known["relabel"] = read_labels(values["relabel"])
    if values["reweight"]:
        known["reweight"] = read_weights(values["reweight"])
    add = values["add"]
    if add is None or Path(add).is_dir():
        if add is not None:
            known["add"] = Dataset.open(add)
        yield Edits(**known)
        return
    columns = {name: values[name] for name in ("label", "weight") if values[name] is not None}
    with scratch("amend") as folder:
        made = ingest(add, folder / "add.store", like=dataset, shuffle=False, **columns)
        yield Edits(**known, add=made.store)


def _bound_record(
    model: "Model",
    found: "list[Bound]",
    dataset: "Dataset",
    edited: "Changes",
    watched: "Dataset | None",
) -> dict[str, Any]:
    """Make the record that `amend --bound --json` writes.

    Parameters
    ----------
    model : Model
    found : list of Bound
        For each score of the model, what the edits change at most.
    dataset, edited
        The store, and the edits of its rows.
    watched : Dataset or None
        A store: count how many predictions for its rows provably stay the same.
    """
    from bigscreen.amend.bound import count_unaffected
    from bigscreen.amend.predictions import count_unchanged

    record: dict[str, Any] = {
        "edited": len(edited),
        "bounds": [each.to_dict() for each in found],
        "unchanged": all(each.unchanged for each in found),
    }
    if len(found) == 1:
        left = dataset.n_rows - int((edited.places >= 0).sum())
        record["ledger"] = {"rows": left, "stay": count_unaffected(found[0], dataset, edited)}
    if watched is not None:
        record["watched"] = {"rows": watched.n_rows, "stay": count_unchanged(model, found, watched)}
    return record


def _bound_facts(record: dict[str, Any]) -> dict[str, str]:
    """Convert the record of `amend --bound` to names and texts for `report.table`."""
    from bigscreen.report.report import count

    facts = {}
    for each in record["bounds"]:
        name = "" if each["label"] is None else f" of {each['label']}"
        if each["unchanged"]:
            facts[f"gap{name}"] = "as it was: what leaves is proved to be out"
            continue
        if each["gap"] is None:
            facts[f"gap{name}"] = "no bound: what leaves takes too much from the offset's balance"
            continue
        facts[f"relative gap{name}"] = f"at most {each['relative_gap']:.3g}"
        facts[f"w moves{name}"] = f"at most {each['radius']:.4g}"
    for what, where in (("ledger", "rows left alone"), ("watched", "rows watched")):
        if what in record:
            own = record[what]
            facts[where] = f"{count(own['stay'])} of {count(own['rows'])} predictions provably stay"
    return facts


def _said(counts: dict[str, int]) -> str:
    """Say how many rows each kind of edit concerns; "no rows" if there are none.

    ``counts``: rows by what is done with them.
    """
    from bigscreen.report.report import count

    return ", ".join(f"{count(rows)} {what}" for what, rows in counts.items() if rows) or "no rows"
