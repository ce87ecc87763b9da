"""Write docs/benchmarks.md from the figures in pipelines/bench/results, one JSON file a benchmark.

A file has ``order`` (its place on the page), ``title``, ``about`` and ``tables``. A table has
``caption``, ``columns``, ``rows`` (texts) and, if known, the ``command`` that measures it, the
``machine``, the ``date``, the ``commit`` and ``notes``.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"

HEAD = """\
# Benchmarks

Measured comparisons, and where we lose. The commands that measure them, and how long each takes,
are in [pipelines/bench](../pipelines/bench/README.md); what was decided by them is in the
[decisions](decisions/index.md). The figures were taken on several machines over time, so compare
numbers within a table only. *Goal* is what was set before measuring; **not met** is in bold. Ratios
below 1 mean that bigscreen is faster.

This page is made from `pipelines/bench/results` by `python -m pipelines.bench.page`; edit the files
there, not the page.
"""


def records() -> list[dict[str, Any]]:
    """What the files say, in the order of the page."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")]
    return sorted(found, key=lambda record: record["order"])


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _table(table: dict[str, Any]) -> list[str]:
    columns = table["columns"]
    for row in table["rows"]:
        assert len(row) == len(columns), (table["caption"], row)
    how = [
        *(f"`{one.strip()}`" for one in table.get("command", "").split(";") if one),
        *(table[name] for name in ("machine", "date", "commit") if table.get(name)),
    ]
    lines = [f"**{table['caption']}**", ""]
    if how:
        lines += ["; ".join(how) + ".", ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(row) + " |" for row in table["rows"]]
    notes = [_filled(f"* {note}", "  ") for note in table.get("notes", ())]
    return [*lines, "", *notes, *([""] if notes else [])]


def page() -> str:
    """The whole page as Markdown."""
    parts = [HEAD]
    for record in records():
        parts += [f"## {record['title']}", "", _filled(record["about"]), ""]
        for table in record["tables"]:
            parts += _table(table)
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
