"""Shared parts of the papers' experiments: paths solved in several ways, tables, figures."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from bigscreen.path.stage import Stage
from bigscreen.path.walk import PathSettings, Step, Walk
from bigscreen.problems.recipes import Problem
from bigscreen.report import report
from bigscreen.screening.sequential import PathRule, Screened, screen

BEYOND = "beyond warm starts"
"""Column heading: seconds of the warm-started path without a rule, over its seconds with it."""

SHORT = 0.8
"""A printed ratio counts as not reproduced if ours is below this part of it."""

POINTS = 2.0
"""Two accuracies of random splits agree if they differ by at most this, in percent."""

FEWER = "fewer rows or values"
"""The verdict on a printed number next to one of a trial."""


class Claim(NamedTuple):
    """A printed number next to ours.

    Attributes
    ----------
    what : str
        The quantity, as a column of the table names it.
    ours : float
    printed : float or None
        None if the paper prints no number.
    agrees : callable
        Of ours and the printed number: whether they agree.
    """

    what: str
    ours: float
    printed: float | None
    agrees: Callable[[float, float], bool]


def at_least(ours: float, printed: float) -> bool:
    """Whether a ratio, the larger the better, is reproduced."""
    return ours >= SHORT * printed


def alike(ours: float, printed: float) -> bool:
    """Whether neither number is much larger than the other."""
    return min(ours, printed) >= SHORT * max(ours, printed)


def near(ours: float, printed: float) -> bool:
    """Whether two accuracies in percent agree."""
    return abs(ours - printed) <= POINTS


def judge(claims: Sequence[Claim], instead: str = "") -> str:
    """Return the cell of the verdict column: agrees, or differs and where.

    It is empty if the paper prints no number, and ``instead`` if the numbers are not comparable.
    Seconds are never judged: they are of other machines.
    """
    printed = [(one, one.printed) for one in claims if one.printed is not None]
    if not printed or instead:
        return instead if printed else ""
    missed = [one.what for one, number in printed if not one.agrees(one.ours, number)]
    return f"differs: {', '.join(dict.fromkeys(missed))}" if missed else "agrees"


def question(doc: str | None) -> str:
    """Return the question with which an experiment's docstring begins."""
    return str(doc).splitlines()[0].removesuffix(".")


def arguments(
    description: str, sets: Sequence[str] = (), rows: int | None = None
) -> argparse.ArgumentParser:
    """Make the parser with the options that every experiment of a paper has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, help="folder for the JSON record and the figures")
    most = f" [{rows}]" if rows else ""
    parser.add_argument(
        "--rows", type=int, metavar="N", default=rows, help=f"at most N rows of every set{most}"
    )
    if sets:
        parser.add_argument("--only", nargs="+", choices=sets, default=list(sets), help="[all]")
    return parser


class CloseEnds(Walk):
    """A walk whose first and last points are solved to another gap than the others."""

    def __init__(self, *given: Any, tol: float) -> None:
        super().__init__(*given)
        self.tol = tol

    def _solve(self, k: int) -> Step:
        asked = self.settings
        if k in (0, len(self.values) - 1):
            self.settings = replace(asked, tol=self.tol)
        try:
            return super()._solve(k)
        finally:
            self.settings = asked


def walked(
    stage: Stage,
    problem: Problem,
    y: np.ndarray,
    values: np.ndarray,
    settings: PathSettings,
    ends: float | None = None,
) -> dict[str, Any]:
    """Solve a path; return its points, and where its seconds went.

    ``ends``: relative gap of the first and the last point, if it differs from the others'.

    Returns
    -------
    dict
        points: records of ``path.Step``; total, init, rules: seconds of everything, of the points
        solved from zero, and of the rules; support: support rows of every point; steps: the
        ``Step`` objects.
    """
    weights = np.ones(len(y))
    with threadpool_limits(1, "blas"):
        began = time.perf_counter()
        given = stage, problem, y, weights, values, settings
        walk = Walk(*given) if ends is None else CloseEnds(*given, tol=ends)
        steps = [walk.step(k) for k in range(len(values))]
        total = time.perf_counter() - began
    points = [step.record for step in steps]
    seen = points if walk.end is None or walk.end is steps[-1] else [*points, walk.end.record]
    return {
        "points": points,
        "total": total,
        "init": sum(sum(p["seconds"].values()) for p in seen if p["init"]),
        "rules": sum(p["seconds"]["rules"] for p in points),
        "largest_gap": max(p["relative_gap"] for p in points),
        "steps": steps,
    }


def screened(
    stage: Stage, steps: Sequence[Step], rule: PathRule, k: int, ends: bool = False
) -> Screened:
    """Screen with one rule at point k from the point before; return what it identifies."""
    dual, value = steps[k].dual, steps[k].record["value"]
    past = [steps[max(k - 1, 0)].past, *([steps[-1].past] if ends else [])]
    return screen(dual, value, [rule], past, stage.products, stage.norms)


def rejected(stage: Stage, walk: Mapping[str, Any], rule: Any, ends: bool) -> np.ndarray:
    """Compute the shares of ALL rows that one rule identifies: (points, 2), at lo and at hi.

    The first point (and the last, for a rule that needs both ends) is solved beforehand; there the
    rule receives the solution itself, as in the papers' figures.
    """
    steps = walk["steps"]
    found = np.empty((len(steps), 2))
    for k in range(len(steps)):
        tally = screened(stage, steps, rule, k, ends).counts["all"]
        found[k] = tally["lo"] + tally["zero"], tally["hi"]
    return found / len(steps[0].dual)


def table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[object]], of: Sequence[str] = ()
) -> dict[str, Any]:
    """Print a table; return it in the form that records keep.

    ``of``: the tables of the paper that it repeats, if its last column has verdicts.
    """
    shown = Table(title=title, title_justify="left")
    for head in heads:
        shown.add_column(head, justify="left" if head == heads[0] else "right")
    cells = [[cell if isinstance(cell, str) else f"{cell:.4g}" for cell in row] for row in rows]
    for row in cells:
        shown.add_row(*row)
    Console(highlight=False, width=200).print(shown)
    return {"title": title, "heads": list(heads), "rows": cells, "of": list(of)}


def beside(ours: float, printed: float | None) -> str:
    """Format a number, followed by the paper's number in brackets."""
    return f"{ours:.2f}" + ("" if printed is None else f" ({printed:g})")


def stacked(ax: Any, values: np.ndarray, shares: np.ndarray, title: str) -> None:
    """Draw stacked areas of the shares that a rule identified at the two bounds."""
    labels = ["at the lower end", "at the upper end"]
    ax.stackplot(values, shares.T, labels=labels, alpha=0.8, colors=["tab:blue", "tab:red"])
    ax.set_xscale("log")
    ax.set_ylim(0, 1)
    ax.set_title(title, fontsize=9)
    ax.set_xlabel("C")


def canvas(rows: int, columns: int) -> Any:
    """Make a figure with the given number of axes: (figure, axes as an array (rows, columns))."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * columns, 3.2 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def keep(out: Path | None, name: str, record: dict[str, Any], figures: Mapping[str, Any]) -> None:
    """Write NAME.json and the figures, and print where; the record names the figures' files."""
    if out is None:
        print(
            "Nothing was written; --out FOLDER keeps the record, and the figures if there are any."
        )
        return
    out.mkdir(parents=True, exist_ok=True)
    record["figures"] = []
    for label, figure in figures.items():
        path = out / f"{name}-{label}.png"
        figure.savefig(path, dpi=110)
        record["figures"].append({"file": path.name, "title": label.replace("-", " ")})
    report.write_json(out / f"{name}.json", record)
    print(f"record   {out / f'{name}.json'}")
    for figure in record["figures"]:
        print(f"figure   {out / figure['file']}")
