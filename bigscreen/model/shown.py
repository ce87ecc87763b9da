"""Render a model and its certificate as a few lines of HTML for a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bigscreen.files.html import html_card
from bigscreen.problems.point import format_gap, gap_or_violation, meets_tol


def certificate_html(
    title: str, machine: Mapping[str, str], provenance: Mapping[str, Any], scorers: int
) -> str:
    """Render a title, a verdict on the certificates and a table of the machine's properties.

    Parameters
    ----------
    title : str
    machine : mapping
        Names and values of the properties to show.
    provenance : mapping
        The model's provenance: its certificates, parameters and number of rows; perhaps empty.
    scorers : int
        Number of score functions, each with a certificate.
    """
    verdict, proved = _verdict(provenance, scorers)
    return html_card(title, verdict, machine, "#2e7d32" if proved else "#b26a00")


def _verdict(provenance: Mapping[str, Any], scorers: int) -> tuple[str, bool]:
    """Return a sentence on what is proved, and whether the requested tolerance is met.

    ``scorers`` is the number of score functions, each with a certificate.
    """
    found, rows = provenance.get("certificates"), provenance.get("rows")
    if not found:
        return f"Nothing is proved: {provenance.get('no_certificate') or 'it has no fit'}.", False
    over = "" if rows is None else f" over all {rows:,} rows"
    many = "" if scorers == 1 else f", the largest of {scorers} score functions"
    if not all(part.get("proved", True) for part in found):
        return f"Nothing is proved: the kernel is not positive semidefinite{over}.", False
    tol = provenance["parameters"]["tol"]
    gap = format_gap(max(part["relative_gap"] for part in found))
    if all(meets_tol(part, tol) for part in found):
        return f"Proved{over}: the relative gap is {gap} (asked for {tol:g}){many}.", True
    widest = format_gap(max(gap_or_violation(part) for part in found))
    return (
        f"The relative gap missed {tol:g}: {widest}, rounding included{over}{many}; it is the "
        "best machine found.",
        False,
    )
