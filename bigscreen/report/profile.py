"""Descriptions of a source table's columns: kinds, missing values, ranges, and remarks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from bigscreen.report import report
from bigscreen.report.page import Grid, Section


def facts(
    profile: Mapping[str, Any], labels: Mapping[str, int], rare: float = 0.1
) -> dict[str, str]:
    """Describe the rows of a table: copies, missing values, and a rare label.

    Parameters
    ----------
    profile : mapping
        Statistics of the table's columns, as ingest found them (`Dataset.profile`).
    labels : mapping
        Rows by label.
    rare : float
        Name the rarest label if its share of the rows is below this.
    """
    said = {}
    if profile["copies"]:
        about = "" if profile["copies_exact"] else "about "
        said["copies of other rows"] = f"{about}{100 * profile['copies']:.3g} % of the rows"
    missing = sum(1 for column in profile["columns"] if column["missing"])
    if missing:
        said["with missing values"] = f"{missing} of {len(profile['columns'])} columns"
    rows = sum(labels.values())
    if len(labels) > 1 and rows:
        rarest = min(labels, key=lambda label: labels[label])
        share = labels[rarest] / rows
        if share < rare:
            said["rarest label"] = (
                f"{rarest}: {100 * share:.2g} % of the rows (fit --class-weight balanced makes "
                "labels count alike)"
            )
    return said


def columns(profile: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Describe every column by texts: kind, missing values, range, and what to look at.

    ``profile``: statistics of the columns, as ingest found them (`Dataset.profile`).
    """
    return {column["name"]: _line(column, profile["rows"]) for column in profile["columns"]}


def show(profile: Mapping[str, Any], most: int = 20) -> None:
    """Print at most ``most`` columns of a table; columns with remarks come first if not all fit.

    ``profile``: statistics of the columns, as ingest found them (`Dataset.profile`).
    """
    lines, of = columns(profile), {c["name"]: c for c in profile["columns"]}
    if not lines:
        return
    odd = [name for name in lines if of[name]["remarks"] or of[name]["missing"]]
    names = list(lines)
    if len(names) > most:
        names = [*odd, *(name for name in names if name not in odd)][:most]
    title = f"columns ({len(names)} of {len(lines)})" if len(names) < len(lines) else "columns"
    shown = {
        name: {key: text for key, text in lines[name].items() if key != "look at"} for name in names
    }
    report.matrix(title, "column", shown)
    for name in odd[:most]:
        if lines[name]["look at"]:
            report.note(f"  {name}: {lines[name]['look at']}")


def section(profile: Mapping[str, Any], labels: Mapping[str, int], store: str) -> Section:
    """Make the section of a page that describes a table's columns.

    ``profile``: statistics of the columns (`Dataset.profile`); ``labels``: number of rows by label;
    ``store``: the name of the store that the table was read into.
    """
    lines = columns(profile)
    head: Sequence[str] = ["column", *next(iter(lines.values()))] if lines else ["column"]
    grid = Grid("Columns", head, [[name, *cells.values()] for name, cells in lines.items()])
    text = "What the table held as it was read, before scaling."
    return Section(f"The table behind {store}", text, facts=facts(profile, labels), tables=[grid])


def _line(column: Mapping[str, Any], rows: int) -> dict[str, str]:
    """Describe a column by texts: kind, missing, range, typical, skew, and what to look at.

    ``column``: its entry in a profile; ``rows``: the number of rows of the table.
    """
    missing = column["missing"]
    part = f"{100 * missing / rows:.2g} %" if missing else ""
    if column["kind"] in ("category", "hashed"):
        kinds = f"{report.count(column['kinds'])} kinds"
        often = column["commonest"]
        share = "" if often is None else f"{often} {100 * column['commonest_rows'] / rows:.2g} %"
        cells = {"range": kinds, "typical": _short(share), "skew": ""}
    elif "low" not in column:
        cells = {"range": "", "typical": "", "skew": ""}
    elif column["kind"] == "date":
        low, high, mean = (_date(column[key]) for key in ("low", "high", "mean"))
        cells = {"range": f"{low} to {high}", "typical": mean, "skew": ""}
    else:
        cells = {
            "range": f"{column['low']:.4g} to {column['high']:.4g}",
            "typical": f"{column['mean']:.4g}",
            "skew": f"{column['skew']:.1f}",
        }
    return {
        "kind": column["kind"],
        "missing": part,
        **cells,
        "look at": "; ".join(column["remarks"]),
    }


def _short(text: str) -> str:
    """Cut the middle out of a text of more than 24 characters."""
    return text if len(text) <= 24 else f"{text[:12]}...{text[-9:]}"


def _date(days: float) -> str:
    """Convert days since 1970 to a date; as a number if it is out of range."""
    if not math.isfinite(days) or abs(days) > 700_000:
        return f"{days:.4g} days"
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days)).strftime("%Y-%m-%d")
