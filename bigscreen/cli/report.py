"""`bigscreen report`: write an HTML page about a model or a path."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bigscreen.cli.common import (
    check_json,
    check_output,
    check_page,
    each_block,
    json_option,
    overwrite_option,
    threads_option,
)
from bigscreen.errors import InputError

if TYPE_CHECKING:
    from bigscreen.data.dataset import Dataset
    from bigscreen.model.model import Model


@click.command(short_help="Write a page about a MODEL or a PATH.")
@click.argument("thing", metavar="MODEL|PATH")
@click.argument("places", metavar="[STORE] OUT.html", nargs=-1, required=True)
@threads_option
@overwrite_option
@json_option
def report(
    thing: str,
    places: tuple[str, ...],
    threads: int | None,
    overwrite: bool,
    json_file: str | None,
) -> None:
    """Write one HTML page about a MODEL or a PATH, which any browser shows without a network.

    It holds the certificate, the gap and the rows that are left pass by pass, what is proved of the
    rows, a search's heat maps, a path's curves, and what the model comes from; with STORE also what
    the model gets right on it: ROC, precision and recall, confusion, scores. STORE must have been
    ingested like the training data.

    \b
    Examples:
      bigscreen report model.bsm model.html
      bigscreen report model.bsm train-holdout.store model.html
      bigscreen report all.bsp path.html
    """
    from bigscreen.data.dataset import Dataset
    from bigscreen.evaluate.evaluate import evaluate
    from bigscreen.model.file import is_path
    from bigscreen.model.model import Model, match_store
    from bigscreen.model.solved_path import SolvedPath
    from bigscreen.report import pages
    from bigscreen.report.report import note, write_result

    if len(places) > 2:
        raise InputError(
            f"report takes a model, a store or none, and a page, and was given {len(places) + 1} "
            "names"
        )
    store, out = places if len(places) == 2 else (None, places[0])
    check_page(out, thing, *filter(None, [json_file]))
    check_output(out, overwrite)
    check_json(json_file, out, thing)
    found: dict[str, Any] | None = None
    if Path(thing).is_file() and is_path(thing):
        if store is not None:
            raise InputError(
                f"{thing} is a path, and a store is compared with one model; `bigscreen pick "
                f"{thing} MODEL` takes one out"
            )
        pages.path_page(SolvedPath.load(thing), os.path.basename(thing)).write(out)
    else:
        model, dataset = Model.load(thing), None
        if store is not None:
            dataset = Dataset.open(store)
            model = match_store(model, dataset, thing)
            with each_block(threads) as each:
                found = evaluate(model, dataset, each, curves=True)
        write_page(out, model, thing, dataset, found)
    if json_file:
        write_result(
            json_file, "report", {"out": out, "of": thing, "store": store, "evaluation": found}
        )
    note(f"wrote {out}")


def write_page(
    out: str,
    model: "Model",
    name: str,
    dataset: "Dataset | None" = None,
    found: dict[str, Any] | None = None,
) -> None:
    """Write a model's page, with the columns of a store's table and an evaluation on the store.

    ``found``: the result of `evaluate` with curves, or None.
    """
    from bigscreen.report import pages, profile

    store = "" if dataset is None else dataset.path.name
    held, tiles = (None, None) if found is None else pages.evaluation_section(found, store)
    table = None
    if dataset is not None and dataset.profile is not None:
        counts = zip(map(str, dataset.labels), dataset.label_counts.tolist(), strict=True)
        table = profile.section(dataset.profile, dict(counts), store)
    pages.model_page(model, os.path.basename(name), held, tiles, table).write(out)
