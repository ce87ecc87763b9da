"""The result of an evaluation as tables: measures, labels, and reliability of probabilities."""

from collections.abc import Mapping, Sequence
from typing import Any

from bigscreen.options.metrics import rare_labels
from bigscreen.report.report import count, percent

OF_PROBABILITIES = ("log_loss", "brier", "calibration_error")
"""Measures of probabilities in the result of `evaluate`, if the model has probabilities."""


def facts(record: Mapping[str, Any]) -> dict[str, str]:
    """Convert the result of `evaluate` to names and texts for `report.table`."""
    said = {"rows": count(record["rows"])}
    if "targets" in record:
        lack = {"rows that lack a target": count(record["unlabelled"])}
        return {"rows with all targets": said["rows"], **(lack if record["unlabelled"] else {})}
    if record["unlabelled"] and "outside" in record:
        said["rows without a label"] = count(record["unlabelled"])
    elif record["unlabelled"]:
        what = "target" if "rmse" in record else "label"
        said[f"rows without a {what}, left out"] = count(record["unlabelled"])
    if record.get("positive") is not None:
        said["positive label"] = str(record["positive"])
    shares = [(name, record.get(name)) for name in ("error", "accuracy", "outside")]
    outside = record.get("outside_by_label", {})
    shares += [(f"outside of {label}", share) for label, share in outside.items()]
    said |= {name: percent(share) for name, share in shares if share is not None}
    balanced = record.get("balanced_accuracy")
    said |= {} if balanced is None else {"balanced accuracy": percent(balanced)}
    plain = {name: record.get(name) for name in ("f1", "auc", "r2")}
    plain["average precision"] = record.get("average_precision")
    said |= {name: f"{value:.4f}" for name, value in plain.items() if value is not None}
    plain = {name.replace("_", " "): record.get(name) for name in OF_PROBABILITIES}
    said |= {name: f"{value:.4f}" for name, value in plain.items() if value is not None}
    if "sets" in record:
        sets = record["sets"]
        each = ", ".join(
            f"{percent(share)} of {label}" for label, share in sets["by_label"].items()
        )
        said[f"sets at {sets['alpha']:g} hold the label of"] = (
            f"{percent(sets['coverage'])} ({each})"
        )
        said["labels in a set"] = f"{sets['size']:.3f}"
    if "intervals" in record:
        held, width = record["intervals"], record["intervals"]["width"]
        said[f"intervals at {held['alpha']:g} hold the target of"] = percent(held["coverage"])
        said["mean width of an interval"] = "infinite" if width is None else f"{width:.6g}"
    errors = {name: record.get(name) for name in ("mae", "rmse", "pinball")}
    return said | {name: f"{value:.6g}" for name, value in errors.items() if value is not None}


def describe_held_out(record: Mapping[str, Any]) -> str:
    """Say how well a model does on rows that its fit has not seen.

    ``record``: the result of `evaluate`, with the entries "store", the rows' name, and "sampled",
    whether more rows were held out than were evaluated.
    """
    if "targets" in record:
        cells = by_target(record["targets"])
        measure = "pinball" if "pinball" in next(iter(cells.values())) else "r2"
        of = ", ".join(f"{own[measure]} of {target}" for target, own in cells.items())
        return f"{measure} {of} on {record['store']}"
    named = {name: record.get(name) for name in ("error", "balanced_accuracy", "outside")}
    said = [f"{name.replace('_', ' ')} {percent(v)}" for name, v in named.items() if v is not None]
    named = {name: record.get(name) for name in ("pinball", "rmse", "r2")}
    said += [f"{name} {value:.4g}" for name, value in named.items() if value is not None]
    rows = f"{count(record['rows'])} {'sampled ' * record['sampled']}rows"
    return f"{', '.join(said)} on the {rows} of {record['store']}"


def remark(
    record: Mapping[str, Any],
    n_rows: int | None = None,
    scaled: bool = False,
    weighted: bool = False,
) -> str | None:
    """Warn of a model that is no better than a constant, or misses a rare label; None of others.

    ``record``: the result of `evaluate`; ``n_rows``: the number of all rows if only a sample of
    them may have been evaluated; ``scaled``: whether columns are scaled already; ``weighted``:
    whether the fit weighted labels. The sentence says what to try. A rare label (`rare_labels`) is
    missed if fewer than half of its rows are predicted rightly. A classifier is no better than a
    constant if it predicts one label for all rows, or if it is right for no more rows than the
    commonest label and tells labels apart hardly better than chance; a regression (not of a
    quantile) if it explains nothing of the targets' variance.
    """
    if "targets" in record:
        each = {name: remark(part, n_rows, scaled) for name, part in record["targets"].items()}
        poor = {name: sentence for name, sentence in each.items() if sentence}
        return f"{', '.join(poor)}: {next(iter(poor.values()))}" if poor else None
    sampled = n_rows is not None and n_rows > record["rows"] + record["unlabelled"]
    seen = f"on {count(record['rows'])} sampled rows, " if sampled else ""
    advice = "try another gamma or C (`bigscreen tune`)"
    advice += "" if scaled else ", or scale the columns (ingest --scale standard)"
    balanced = "fit with --class-weight balanced"
    balance = advice if weighted else f"{balanced} if labels are rare, or {advice}"
    if record.get("r2") is not None:
        # (A quantile other than the median may well be farther from the targets than their mean.)
        if record["r2"] > 0 or record.get("pinball") is not None:
            return None
        return f"{seen}the mean of the targets predicts no worse: {advice}"
    confusion = record.get("confusion")
    if not confusion or sum(1 for row in confusion.values() if sum(row.values())) < 2:
        return None
    predicted = {label: sum(row.get(label, 0) for row in confusion.values()) for label in confusion}
    given = [label for label, rows in predicted.items() if rows]
    if len(given) == 1:
        return f"{seen}every row is predicted to be {given[0]}: {balance}"
    rows = {label: sum(row.values()) for label, row in confusion.items()}
    often = max(rows, key=lambda label: rows[label])
    chance = 1.0 / sum(1 for n in rows.values() if n)
    right = sum(row.get(label, 0) for label, row in confusion.items())
    if right <= rows[often] and record["balanced_accuracy"] <= chance + 0.02:
        return f"{seen}to call every row {often} is right as often as this model: {balance}"
    there = [label for label in rows if rows[label]]
    rare = [there[k] for k in rare_labels([rows[label] for label in there])]
    found = {label: confusion[label].get(label, 0) for label in rare}
    missed = [label for label in rare if 2 * found[label] < rows[label]]
    if not missed:
        return None
    label = max(missed, key=lambda label: rows[label] - found[label])
    more = advice if weighted else f"{balanced} to find more, with more false alarms"
    return (
        f"{seen}{count(found[label])} of the {count(rows[label])} rows of the rare label {label} "
        f"are found: {more}"
    )


def by_target(record: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Convert the rows and measures of every target to texts, those without a value to "-".

    ``record``: the entry "targets" of the result of `evaluate`. The pinball loss is left out if no
    target has one.
    """
    measures = ["r2", "mae", "rmse"]
    measures += ["pinball"] * any(part["pinball"] is not None for part in record.values())
    return {
        target: {
            "rows": count(part["rows"]),
            **{name: "-" if part[name] is None else f"{part[name]:.4g}" for name in measures},
        }
        for target, part in record.items()
    }


def by_label(record: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Convert the rows, precision, recall and f1 of every label to texts (None to "-")."""
    return {
        label: {
            "rows": count(parts["rows"]),
            **{
                name: "-" if parts[name] is None else percent(parts[name])
                for name in ("precision", "recall", "f1")
            },
        }
        for label, parts in record.items()
    }


def reliability(record: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Convert the reliability of probabilities to texts, by tenths of the probability.

    For each tenth: the mean predicted probability, the share of rows for which it came true, and
    the rows.
    """
    return {
        f"{part['from']:.0%} to {part['from'] + 0.1:.0%}": {
            "said": percent(part["probability"], 1),
            "came true": percent(part["share"], 1),
            "rows": count(part["rows"]),
        }
        for part in record
    }
