"""Output for paths: a progress bar, a table of points, and plots.

The plots draw into given matplotlib axes, so that a page can hold several.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from bigscreen.errors import InputError
from bigscreen.files.output import replacing
from bigscreen.files.printable import printable
from bigscreen.model.solved_path import SolvedPath
from bigscreen.problems.point import ROUNDING_FIELDS, format_gap, gap_or_violation
from bigscreen.report.report import (
    HEARTBEAT_SECONDS,
    LINE_SECONDS,
    Heartbeat,
    count,
    gap_text,
    percent,
    seconds,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Where the rules prove a dual variable to be, by the key in records, as plots name it.
PLACES = {"hi": "at the upper end", "lo": "at the lower end", "zero": "at zero"}
# How plots name the screening rules.
NAMES = {
    "gap": "gap ball",
    **{name: name.upper() for name in ("dvi", "ssnsv", "essnsv", "srbo")},
    "srbo-cut": "SRBO with a cut",
}


class PathBar:
    """Shows the events of `bigscreen.path.run.train_path`: a bar on a terminal, else lines.

    Parameters
    ----------
    console : rich.console.Console, optional
        Default: standard error.
    beat : float
        If the output is no terminal: print a line after this many seconds without another line.
    """

    def __init__(self, console: Console | None = None, beat: float = HEARTBEAT_SECONDS) -> None:
        """Make the bar, which is hidden if the output is no terminal.

        ``_printed``: when the last line was printed; ``_waiting``: a line that has not been printed
        yet; ``_last``: the newest line.
        """
        self.console = console or Console(stderr=True, highlight=False)
        self._printed = -math.inf
        self._waiting: str | None = None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[line]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task: TaskID | None = None
        self._heart = Heartbeat(self._doing, self._print, beat)
        self._last = "starting"

    def __enter__(self) -> Self:
        """Start the bar; if it is hidden, start the thread that prints lines."""
        self._bar.start()
        if self._bar.disable:
            self._heart.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the bar and the thread, and print the newest line if it is not printed yet."""
        self._heart.stop()
        self._bar.stop()
        if self._waiting is not None:
            self._print(self._waiting)

    def _doing(self) -> str:
        """Return the newest line, for the heartbeat."""
        return self._last

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Show one event."""
        line = ""
        if event["event"] == "point":
            where = "all rows" if event["fold"] is None else f"fold {event['fold'] + 1}"
            value = f"{event['parameter']} {event['value']:.4g}"
            line = f"{value}  {_share(event)} screened  {gap_text(event)}"
        elif event["event"] == "progress":
            where = event["phase"]
        else:
            if event["event"] == "workers":
                self._print(event["change"])
            return
        if self._bar.disable:
            self._last = f"{where}  {event['done']} of {event['total']}  {line}".rstrip()
            if line:
                self._waiting = self._last
                if time.monotonic() - self._printed >= LINE_SECONDS:
                    self._print(self._doing())
            return
        if self._task is None:
            self._task = self._bar.add_task(where, total=event["total"], line=line)
        now = {"total": event["total"], "completed": event["done"]}
        self._bar.update(self._task, description=where, line=line, **now)

    def _print(self, line: str) -> None:
        """Print a line of plain text, and note the time."""
        self.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
        self._heart.beat()
        self._printed, self._waiting = time.monotonic(), None


def _share(record: Mapping[str, Any]) -> str:
    """Return the share of rows that screening has left out of a solve, as a percentage.

    ``record``: has the numbers ``rows`` (of all) and ``left`` (in the solve).
    """
    rows = record["rows"]
    return percent((rows - record["left"]) / rows, 1) if rows else "0%"


def path_table(path: SolvedPath) -> None:
    """Print a table of at most 20 points, and the best point."""
    names, points = point_rows(path)
    few = f"{len(points)} of " if len(points) < len(path) else ""
    title = Text(f"{few}{len(path)} points")
    grid = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    for name in names:
        grid.add_column(Text(printable(name)), justify="right")
    for k, cells in points.items():
        grid.add_row(*cells, style="bold" if k == path.best else None)
    Console(highlight=False).print(grid)


def point_rows(path: SolvedPath, most: int = 20) -> tuple[list[str], dict[int, list[str]]]:
    """Make the column names of a path's table, and the texts of some points by their number.

    The points are ``most`` evenly spaced ones and the best one.
    """
    shown = set(np.linspace(0, len(path) - 1, most).round().astype(int).tolist())
    if path.best is not None:
        shown.add(path.best)
    scores = None if path.scores is None else path.scores.mean(axis=0)
    gaps = all(part["gap"] is not None for part in path.points)
    proof = ("P", "gap / P") if gaps else ("D", "violation")
    names = [path.parameter, *proof, "screened", "left", "support", "seconds"]
    found = {}
    for k in sorted(shown):
        parts = path.record["points"][k]
        rows, left = (sum(part[name] for part in parts) for name in ("rows", "left"))
        spent = sum(sum(part["seconds"].values()) for part in parts)
        found[k] = [
            f"{path.values[k]:.4g}",
            f"{sum(part['primal' if gaps else 'dual'] for part in parts):.6g}",
            format_gap(max(gap_or_violation(part) for part in parts)),
            _share({"rows": rows, "left": left}),
            count(left),
            count(sum(part["support"] for part in parts)),
            f"{spent:.3f}",
            *([] if scores is None else [f"{scores[k]:.4f}"]),
        ]
    return names + ([] if scores is None else [path.record["scoring"]]), found


def totals(path: SolvedPath) -> dict[str, str]:
    """Summarise a path as names and texts for `report.table`."""
    parts, walks = path.points, path.walks
    spent = {key: sum(p["seconds"][key] for p in walks) for key in ("rules", "solver")}
    began = sum(sum(p["seconds"].values()) for p in walks if p["init"])
    screened = float(np.mean([1 - p["left"] / max(1, p["rows"]) for p in parts]))
    facts = {
        "points": f"{len(path)} values of {path.parameter}, {path.values[0]:g} to "
        f"{path.values[-1]:g}",
        **_worst(parts, count(path.record["provenance"]["rows"])),
        "screened": f"{percent(screened, 1)} of the rows on average, "
        f"by {', '.join(path.record['rules']) or 'no rule'}",
        "time": f"features {seconds(path.record['seconds']['features'])}, first solves "
        f"{seconds(began)}, rules {seconds(spent['rules'])}, solver {seconds(spent['solver'])} "
        f"(all), total {seconds(path.record['seconds']['total'])}",
    }
    if path.best is not None and path.scores is not None:
        mean = path.scores.mean(axis=0)[path.best]
        facts["best"] = (
            f"{path.parameter} {path.values[path.best]:.4g}, {path.record['scoring']} {mean:.4f} "
            f"over {len(path.scores)} folds"
        )
    return facts


def _worst(parts: Sequence[Mapping[str, Any]], rows: str) -> dict[str, str]:
    """Convert the largest gap (or KKT violation) of a path's points to names and texts.

    ``parts``: records of all machines of all points; ``rows``: the number of rows, as text.
    """
    most = format_gap(max(gap_or_violation(part) for part in parts))
    if all(part["gap"] is not None for part in parts):
        return {
            "largest relative gap": f"{most}, each proved over all {rows} rows",
            **_rounded(parts),
        }
    return {
        "proved": "nothing: the kernel is not positive semidefinite, and points are stationary",
        "largest KKT violation": f"{most}, each computed over all {rows} rows",
    }


def _rounded(parts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Say how far rounding can have moved any point's gap, P and D; empty if not recorded.

    ``parts``: records of all machines of all points.
    """
    names = ("rounding", *ROUNDING_FIELDS)
    if any(part.get(name) is None for part in parts for name in names):
        return {}
    gap, own, other = (max(part[name] for part in parts) for name in names)
    return {
        "rounding": f"can have moved a gap by {gap:.2g}, P by {own:.2g}, D by {other:.2g} at most"
    }


# -- plots -----------------------------------------------------------------------------------------
def rejection(ax: Axes, path: SolvedPath, rule: str = "all") -> None:
    """Draw the part of all rows that a screening rule identified, against C or nu.

    Parts are stacked by where the rows' optimal dual variables are: at either bound or at zero.
    ``rule``: the rule's name, or "all" for all rules together.
    """
    values, rows = path.values, _sums(path, lambda part: part["rows"])
    parts, labels = [], []
    for place, label in PLACES.items():
        found = _sums(path, lambda part, place=place: _found(part, rule).get(place, 0))
        if found.any():
            parts.append(found / np.maximum(rows, 1))
            labels.append(label)
    if parts:
        ax.stackplot(values, parts, labels=labels, alpha=0.8)
        ax.legend(loc="lower right")
    _dress(ax, path, "part of all rows identified")
    ax.set_ylim(0, 1)


def rules_compared(ax: Axes, paths: Mapping[str, SolvedPath] | SolvedPath) -> None:
    """Draw the part of rows that screening rules identified, a line for each rule or each path.

    ``paths``: a path, or paths by their label.
    """
    if isinstance(paths, SolvedPath):
        used = {name: None for part in paths.points for name in part["screened"]}
        names = [name for name in used if name != "all"]
        names += ["all"] if len(names) != 1 else []
        lines = {NAMES.get(name, name): (paths, name) for name in names}
    else:
        lines = {label: (path, "all") for label, path in paths.items()}
    for label, (path, rule) in lines.items():
        rows = _sums(path, lambda part: part["rows"])
        found = _sums(path, lambda part, rule=rule: sum(_found(part, rule).values()))
        ax.plot(path.values, found / np.maximum(rows, 1), label=label)
    ax.legend()
    _dress(ax, next(iter(lines.values()))[0], "part of all rows identified")
    ax.set_ylim(0, 1)


def remaining(ax: Axes, path: SolvedPath) -> None:
    """Draw the rows left to the solver, and the support rows, against C or nu."""
    ax.plot(path.values, _sums(path, lambda part: part["left"]), label="left to the solver")
    ax.plot(path.values, _sums(path, lambda part: part["support"]), "--", label="support")
    ax.legend()
    _dress(ax, path, "rows")


def validation(ax: Axes, path: SolvedPath) -> None:
    """Draw the mean score of held-out rows, its deviation over folds, and the best point."""
    if path.scores is None:
        raise InputError("a validation curve needs folds; solve the path with some")
    mean, spread = path.scores.mean(axis=0), path.scores.std(axis=0)
    ax.plot(path.values, mean)
    ax.fill_between(path.values, mean - spread, mean + spread, alpha=0.25)
    if path.best is not None:
        ax.plot(path.values[path.best], mean[path.best], "o")
    _dress(ax, path, f"{path.record['scoring']} of held-out rows")


def drawn(path: SolvedPath) -> dict[str, Callable[[Axes, SolvedPath], None]]:
    """Return the plots that a path has data for, by name."""
    wanted: dict[str, Callable[[Axes, SolvedPath], None]] = {"remaining": remaining}
    if path.record["rules"]:
        wanted = {"rejection": rejection, "rules": rules_compared, **wanted}
    if path.scores is not None:
        wanted["validation"] = validation
    return wanted


def save_plots(
    path: SolvedPath, folder: str | Path, endings: Sequence[str] = ("png",)
) -> list[Path]:
    """Write every plot that the path has data for into a folder; return the files.

    Raises
    ------
    InputError
        If matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    Path(folder).mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in drawn(path).items():
        figure = Figure(figsize=(6, 4), layout="constrained")
        draw(figure.add_subplot(), path)
        for ending in endings:
            written.append(Path(folder) / f"{name}.{ending}")
            with replacing(written[-1]) as file:
                figure.savefig(file, format=ending, dpi=150)
    return written


def check_matplotlib() -> None:
    """Raise InputError if matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise InputError("plots need matplotlib: pip install 'bigscreen[plots]'") from error


def _found(part: Mapping[str, Any], rule: str) -> dict[str, int]:
    """Return how many rows a screening rule has identified, by the place of their dual variable.

    ``part``: the record of a point's machine; ``rule``: the rule's name, or "all".
    """
    return {place: part["screened"].get(rule, {}).get(place, 0) for place in PLACES}


def _sums(path: SolvedPath, of: Any) -> np.ndarray:
    """Sum the number ``of(record)`` over the machines of every point: float64 (points,)."""
    return np.array([sum(of(part) for part in parts) for parts in path.record["points"]], float)


def _dress(ax: Axes, path: SolvedPath, what: str) -> None:
    """Label the axes of a plot over a path's values; the values of C are on a log scale."""
    if path.parameter == "C" and len(path) > 1:
        ax.set_xscale("log")
    ax.set_xlabel(path.parameter)
    ax.set_ylabel(what)
