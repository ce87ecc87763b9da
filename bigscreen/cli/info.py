"""`bigscreen info`: what is in a store or a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bigscreen.cli.common import check_json, json_option
from bigscreen.errors import InputError

if TYPE_CHECKING:
    from bigscreen.store.dataset import Dataset
    from bigscreen.store.model import Model


@click.command(short_help="Say what is in a STORE or a MODEL.")
@click.argument("thing", metavar="STORE|MODEL")
@json_option
def info(thing: str, json_file: str | None) -> None:
    """Say what is in a STORE or a MODEL.

    \b
    Examples:
      bigscreen info train.store
      bigscreen info model.bsm
    """
    from bigscreen import certificate, report
    from bigscreen.store.dataset import Dataset
    from bigscreen.store.model import Model

    check_json(json_file, thing)
    if not Path(thing).exists() and not Path(f"{thing}.wip").exists():
        raise InputError(f"there is no store and no model {thing}; check the path")
    if Path(thing).is_file():
        model = Model.load(thing)
        record = describe_model(model)
        report.table(f"model {thing}", model_facts(record))
        certificate.show(certificate.fit_record(model), thing)
    else:
        record = describe_store(Dataset.open(thing))
        report.table(f"store {thing}", store_facts(record))
    if json_file:
        report.write_json(json_file, record)


def describe_store(dataset: "Dataset") -> dict[str, Any]:
    """What `info --json` says of a store."""
    counts = zip(dataset.labels, dataset.label_counts.tolist(), strict=True)
    files = [file for file in dataset.path.rglob("*") if file.is_file()]
    return {
        "kind": "store",
        "path": dataset.path,
        "rows": dataset.n_rows,
        "features": dataset.n_features,
        "sparse": dataset.is_sparse,
        "nonzeros": dataset.nnz,
        "labels": {str(label): rows for label, rows in counts},
        "unlabelled": dataset.n_rows - int(dataset.label_counts.sum()),
        "weights": dataset.has_weights,
        "scaling": dataset.preparation.scaling,
        "shards": dataset.n_shards,
        "bytes": sum(file.stat().st_size for file in files),
        "fingerprint": dataset.fingerprint,
    }


def store_facts(record: dict[str, Any]) -> dict[str, str]:
    """The same for people, as `report.table` takes it."""
    from bigscreen.report import count, size

    rows = record["rows"]
    features = count(record["features"])
    if record["sparse"]:
        features += f", sparse: {record['nonzeros'] / rows:.1f} values a row"
    labels = {f"label {label}": f"{count(n)} rows" for label, n in record["labels"].items()}
    if record["unlabelled"]:
        labels["without a label"] = f"{count(record['unlabelled'])} rows"
    return {
        "rows": count(rows),
        "features": features,
        **labels,
        "row weights": "yes" if record["weights"] else "no",
        "scaling": record["scaling"],
        "shards": f"{count(record['shards'])} (what worker processes share out)",
        "on disk": size(record["bytes"]),
        "fingerprint": f"{record['fingerprint'][:16]}...",
    }


def describe_model(model: "Model") -> dict[str, Any]:
    """What `info --json` says of a model."""
    return {
        "kind": "model",
        "kernel": model.kernel.to_dict(),
        "landmarks": None if model.landmarks is None else model.landmarks.shape[0],
        "exact": model.support is not None,
        "parts": None if model.gate is None else model.gate.n_parts,
        "features": model.n_features,
        "labels": model.labels,
        "scaling": model.preparation.scaling,
        "provenance": model.provenance,
    }


def model_facts(record: dict[str, Any]) -> dict[str, str]:
    """The same for people."""
    from bigscreen.report import count

    name, *parameters = record["kernel"].items()
    kernel = ", ".join([str(name[1]), *(f"{key} {value:g}" for key, value in parameters)])
    rows = "none (linear)" if record["landmarks"] is None else count(record["landmarks"])
    known = record["provenance"]["fingerprint"]
    return {
        "kernel": kernel,
        "support rows" if record["exact"] else "landmarks": rows,
        **({"parts": count(record["parts"])} if record["parts"] else {}),
        "features": count(record["features"]),
        "labels": ", ".join(map(str, record["labels"])),
        "scaling": record["scaling"],
        "fitted on": f"{known[:16]}..." if known else "rows that were not stored",
    }
