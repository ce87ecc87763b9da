"""`bigscreen info`: describe a store, a model or a path."""

from typing import TYPE_CHECKING, Any

import click

from bigscreen.cli.common import check_json, json_option
from bigscreen.errors import InputError
from bigscreen.files.remote import as_path

if TYPE_CHECKING:
    from bigscreen.data.dataset import Dataset
    from bigscreen.model.model import Model
    from bigscreen.model.solved_path import SolvedPath


UNBOUND = "go unnoticed: an older bigscreen wrote it without their checksums; ingest it again"
"""What `info` says of exchanged files if a store has no checksums of them."""


@click.command(short_help="Say what is in a STORE, a MODEL or a PATH.")
@click.argument("thing", metavar="STORE|MODEL|PATH")
@click.option("--history", is_flag=True, help="Of a MODEL: every edit since its first fit.")
@json_option
def info(thing: str, history: bool, json_file: str | None) -> None:
    """Say what is in a STORE, a MODEL or a PATH, the many models of `bigscreen path`.

    \b
    Examples:
      bigscreen info train.store
      bigscreen info model.bsm
      bigscreen info all.bsp
      bigscreen info model.bsm --history
    """
    from bigscreen.data.dataset import Dataset
    from bigscreen.model.file import is_path
    from bigscreen.model.model import Model
    from bigscreen.model.solved_path import SolvedPath
    from bigscreen.report import certificate, profile, report
    from bigscreen.report import path as report_path

    check_json(json_file, thing)
    place = as_path(thing)
    if history and place.exists() and (not place.is_file() or is_path(thing)):
        raise InputError(f"--history is of a model, and {thing} is none; leave it out")
    if not place.exists() and not as_path(f"{thing}.wip").exists():
        raise InputError(f"there is no store and no model {thing}; check the path")
    if place.is_file() and is_path(thing):
        solved = SolvedPath.load(thing)
        record = describe_path(solved)
        report_path.path_table(solved)
        report.table(f"path {thing}", path_facts(record) | report_path.totals(solved))
    elif place.is_file():
        model = Model.load(thing)
        record = describe_model(model)
        report.table(f"model {thing}", model_facts(record))
        if history:
            for number, edit in enumerate(model.provenance.get("edits", []), 1):
                report.table(f"Edit {number} of {thing}", edit_facts(edit))
        certificate.show(certificate.fit_record(model), thing)
    else:
        record = describe_store(Dataset.open(thing))
        report.table(f"store {thing}", store_facts(record))
        if record["profile"] is not None:
            profile.show(record["profile"])
    if json_file:
        report.write_result(json_file, "info", record)


def describe_store(dataset: "Dataset") -> dict[str, Any]:
    """Make the record that `info --json` writes of a store."""
    counts = zip(dataset.labels, dataset.label_counts.tolist(), strict=True)
    return {
        "kind": "store",
        "path": str(dataset.path),
        "rows": dataset.n_rows,
        "features": dataset.n_features,
        "sparse": dataset.is_sparse,
        "bytes_planned": dataset.manifest["extra"].get("bytes_planned"),
        "nonzeros": dataset.nnz,
        "regression": dataset.regression,
        "targets": dataset.targets,
        "target_names": dataset.target_names,
        "labels": {str(label): rows for label, rows in counts},
        "unlabelled": dataset.n_unlabelled,
        "weights": dataset.has_weights,
        "precision": "float64" if dataset.layout.wide else "float32",
        "scaling": dataset.preparation.scaling,
        "scaling_asked": dataset.manifest["extra"].get("scale"),
        "missing": dataset.preparation.missing,
        "shards": dataset.n_shards,
        "bytes": dataset.stored_bytes,
        "fingerprint": dataset.fingerprint,
        "bound": dataset.has_checksums,
        "profile": dataset.profile,
    }


def store_facts(record: dict[str, Any]) -> dict[str, str]:
    """Convert the record of a store to names and texts for `report.table`."""
    from bigscreen.data.rows import describe_ranges
    from bigscreen.report import profile
    from bigscreen.report.report import count, size

    rows = record["rows"]
    features = count(record["features"])
    if record["sparse"]:
        features += f", sparse: {record['nonzeros'] / rows:.1f} values a row"
    labels = {f"label {label}": f"{count(n)} rows" for label, n in record["labels"].items()}
    labels |= describe_ranges(record["targets"], record["target_names"])
    if record["unlabelled"]:
        what = "a target" if record["regression"] else "a label"
        what = "one target or more" if record["target_names"] else what
        labels[f"without {what}"] = f"{count(record['unlabelled'])} rows"
    return {
        "rows": count(rows),
        "features": features,
        **_stored_as(record),
        **labels,
        "row weights": "yes" if record["weights"] else "no",
        "scaling": record["scaling"] + " (chosen by auto)" * (record["scaling_asked"] == "auto"),
        **_marks(record),
        "precision": record["precision"],
        "shards": f"{count(record['shards'])} (what worker processes share out)",
        "on disk": size(record["bytes"]),
        "fingerprint": f"{record['fingerprint'][:16]}...",
        **({} if record["profile"] is None else profile.facts(record["profile"], record["labels"])),
        **({} if record["bound"] else {"exchanged files": UNBOUND}),
    }


def _marks(record: dict[str, Any]) -> dict[str, str]:
    """Name the marks of missing values in a record, as a line of its table; {} if there are none.

    The usual marks, such as NA, are not named.
    """
    return {"missing, too": ", ".join(record["missing"])} if record["missing"] else {}


def _stored_as(record: dict[str, Any]) -> dict[str, str]:
    """Say how rows are stored, and the planned sizes of both layouts if they are known."""
    from bigscreen.report.report import size

    planned = record["bytes_planned"]
    if planned is None:
        return {}
    own, other = ("sparse", "dense") if record["sparse"] else ("dense", "sparse")
    return {"stored": f"{own}, {size(planned[own])} planned ({other}: {size(planned[other])})"}


def describe_model(model: "Model") -> dict[str, Any]:
    """Make the record that `info --json` writes of a model."""
    return {
        "kind": "model",
        "type": model.kind,
        "kernel": model.kernel.to_dict(),
        "landmarks": None if model.landmarks is None else model.landmarks.shape[0],
        "exact": model.support is not None,
        "parts": None if model.gate is None else model.gate.n_parts,
        "features": model.n_features,
        "labels": model.labels,
        "n_targets": model.n_targets,
        "target_names": model.target_names,
        "scaling": model.preparation.scaling,
        "metric": model.provenance.get("metric"),
        "missing": model.preparation.missing,
        "products": _products(model.provenance),
        "provenance": model.provenance,
    }


def model_facts(record: dict[str, Any]) -> dict[str, str]:
    """Convert the record of a model to names and texts for `report.table`."""
    from bigscreen.report.certificate import describe_metric
    from bigscreen.report.report import count

    rows = "none (linear)" if record["landmarks"] is None else count(record["landmarks"])
    labels = {"labels": ", ".join(map(str, record["labels"]))} if record["labels"] else {}
    if record["n_targets"] > 1:
        labels = {"targets": ", ".join(record["target_names"])}
    return {
        "type": record["type"],
        "kernel": _kernel(record),
        "support rows" if record["exact"] else "landmarks": rows,
        **({"parts": count(record["parts"])} if record["parts"] else {}),
        "features": count(record["features"]),
        **labels,
        "scaling": record["scaling"],
        **({"metric": describe_metric(record["metric"])} if record["metric"] else {}),
        **_marks(record),
        "fitted on": _fitted_on(record),
        **_imported(record),
    }


def edit_facts(record: dict[str, Any]) -> dict[str, str]:
    """Convert the record of one edit of a model to names and texts."""
    from bigscreen.problems.point import format_gap
    from bigscreen.report.report import count

    rows = {what: count(n) for what, n in record["what"].items() if n}
    facts = {"when": record["when"], **rows, "machine": record["how"]}
    for before, after in zip(record["bound"], record["certificates"], strict=True):
        name = "" if after["label"] is None else f" of {after['label']}"
        bound = "none" if before["gap"] is None else f"{before['relative_gap']:.3g}"
        proved = format_gap(after["relative_gap"], ".3g")
        facts[f"relative gap{name}"] = f"{proved} (bound before: {bound})"
    facts |= {f"note {k}": note for k, note in enumerate(record["notes"], 1)}
    for name, known in (("rows before", record["from"]), ("rows after", record["to"])):
        facts[name] = f"{known[:16]}..." if known else "not stored"
    return facts


def describe_path(solved: "SolvedPath") -> dict[str, Any]:
    """Make the record that `info --json` writes of a path: that of `bigscreen path --json`."""
    return {**solved.record, "kind": "path", "type": solved.record["kind"]}


def path_facts(record: dict[str, Any]) -> dict[str, str]:
    """Convert the record of a path to names and texts, in addition to `report.path.totals`."""
    from bigscreen.report.report import count

    labels = {"labels": ", ".join(map(str, record["labels"]))} if record["labels"] else {}
    products = _products(record["provenance"])
    return {
        "problem": record["problem"],
        "kernel": _kernel(record),
        "features": count(record["n_features"]),
        **labels,
        **({"products of rows by": products} if products else {}),
        "fitted on": _fitted_on(record),
    }


def _products(provenance: dict[str, Any]) -> str | None:
    """Return what computed inner products of rows in a fit; None for models of older versions.

    The text names the library or the compiled loop, for instance a BLAS.
    """
    products: str | None = provenance.get("versions", {}).get("products")
    return products


def _kernel(record: dict[str, Any]) -> str:
    """Describe the kernel in a record: its name and parameters."""
    name, *parameters = record["kernel"].items()
    return ", ".join([str(name[1]), *(f"{key} {value:g}" for key, value in parameters)])


def _imported(record: dict[str, Any]) -> dict[str, str]:
    """Name the file of another program from which the machine was imported, if any."""
    file = record["provenance"].get("imported")
    return {"imported from": f"{file}, of LIBSVM"} if file else {}


def _fitted_on(record: dict[str, Any]) -> str:
    """Return the start of the fingerprint of the rows that a model was fitted on."""
    known = record["provenance"]["fingerprint"]
    return f"{known[:16]}..." if known else "rows that were not stored"
