"""Output for searches: progress by rungs, a table of the best candidates, and heat maps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bigscreen.files.output import replacing
from bigscreen.files.printable import printable
from bigscreen.problems.point import format_gap
from bigscreen.report.path import check_matplotlib
from bigscreen.report.report import (
    HEARTBEAT_SECONDS,
    LINE_SECONDS,
    LiveReport,
    count,
    pass_line,
    seconds,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class TuneReport(LiveReport):
    """Shows the events of `bigscreen.tune.search.tune`: a live table on a terminal, else lines."""

    def __init__(self, console: Console | None = None, beat: float = HEARTBEAT_SECONDS) -> None:
        """Begin without rungs (a rung: candidates that are solved on the same number of rows).

        ``console`` of None is standard error. If it is no terminal, a line is printed after
        ``beat`` seconds without another line.
        """
        super().__init__(console, beat)
        self._rungs: list[dict[str, Any]] = []
        self._line, self._printed = "", -math.inf

    def _doing(self) -> str:
        """Return the newest line, for the heartbeat."""
        return self._line or "starting"

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Show one event."""
        what = event["event"]
        if what == "rung":
            self._rungs.append(dict(event))
            self._line = ""
        elif what == "part":
            own = self._rungs[-1]
            own["done"] = event["done"]
            self._line = f"rung {own['rung'] + 1}  {event['done']:.0f} of {own['parts']} parts"
        elif what == "rung done":
            self._rungs[-1] |= event
            self._line = rung_line(self._rungs[-1])
            self._printed = -math.inf
        elif what == "workers":
            self._print(event["change"])
        elif what in ("phase", "pass"):
            self._line = event["phase"] if what == "phase" else pass_line(event)
        if self._live is not None:
            grid = rungs_table(self._rungs)
            grid.caption = Text(printable(self._doing()))
            self._live.update(grid)
        elif self._line and time.monotonic() - self._printed >= LINE_SECONDS:
            self._print(self._doing())
            self._printed = time.monotonic()


def rung_line(rung: Mapping[str, Any]) -> str:
    """Describe one solved rung (candidates solved on some rows) in a line of plain text."""
    return (
        f"rung {rung['rung'] + 1}  {count(rung['candidates'])} candidates on {count(rung['rows'])} "
        f"rows  best {rung['best']:.4f}  {seconds(rung['seconds'])}"
    )


def rungs_table(stages: list[dict[str, Any]]) -> Table:
    """Make the table of a search's rungs: rows, candidates, gap, best score, number dropped.

    In a rung, candidates are solved on the same number of rows. ``stages`` has a record for each.
    """
    grid = Table(box=SIMPLE, pad_edge=False)
    for name in ("rung", "rows", "candidates", "gap asked", "best", "dropped after", "seconds"):
        grid.add_column(name, justify="right")
    for k, stage in enumerate(stages):
        ready = "best" in stage
        parts = f"{stage.get('done', 0):.0f} of {stage.get('parts', 0)} parts"
        grid.add_row(
            str(k + 1),
            count(stage["rows"]),
            count(stage["candidates"]),
            f"{stage['tol']:.0e}",
            f"{stage['best']:.4f}" if ready else parts,
            count(stage["dropped"]) if ready else "",
            seconds(stage["seconds"]) if ready else "",
        )
    return grid


def show(record: Mapping[str, Any]) -> None:
    """Print the rungs of a search for parameters, and its best candidates.

    ``record``: of `bigscreen.tune.search`. Only candidates that were solved on the most rows count.
    """
    console = Console(highlight=False)
    console.print(rungs_table(record["stages"]))
    title = Text(f"the best of {count(len(record['candidates']))} candidates")
    grid = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    names, rows, best = best_rows(record)
    for name in names:
        grid.add_column(printable(name), justify="right")
    for k, cells in enumerate(rows):
        grid.add_row(*cells, style="bold" if k == best else None)
    console.print(grid)


def best_rows(
    record: Mapping[str, Any], most_rows: int = 10
) -> tuple[list[str], list[list[str]], int | None]:
    """Make the table of a search's best candidates, of those that were solved on the most rows.

    ``record``: of the search. Returns column names, rows of texts, and the number of the table's
    row whose candidate was chosen (or None).
    """
    parameter = record["parameter"]
    most = max(point.get("rows", -1) for point in record["candidates"])
    far = [point for point in record["candidates"] if point.get("rows") == most]
    far.sort(key=lambda point: -point["mean"])
    kernels = ["kernel"] if isinstance(record["grid"]["gamma"], Mapping) else []
    searched = [*kernels, "landmarks", "gamma", parameter]
    names = [*searched, record["scoring"], "+-", "gap / P"]
    best = searched_best(record)
    chosen = [best[name] for name in searched]
    rows: list[list[str]] = []
    at = None
    for k, point in enumerate(far[:most_rows]):
        own = [point[name] for name in searched]
        *kernel, landmarks, gamma, value = own
        cells = [*kernel, "exact" if landmarks is None else count(landmarks)]
        cells += [
            f"{gamma:.4g}",
            f"{value:.4g}",
            f"{point['mean']:.4f}",
            f"{point['std']:.4f}",
            "none" if point["gap"] is None else format_gap(point["gap"]),
        ]
        rows.append(cells)
        at = k if own == chosen else at
    return names, rows, at


def searched_best(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the best candidate in the grid, whose rows no learned metric maps.

    ``record``: of the search.
    """
    return {**record["best"], **record.get("metric_learning", {}).get("first", {})}


def facts(record: Mapping[str, Any]) -> dict[str, str]:
    """Summarise a search as names and texts for `report.table`."""
    best, parameter = record["best"], record["parameter"]
    several = isinstance(record["grid"]["gamma"], Mapping)
    tried = sum("mean" in point for point in record["candidates"])
    found = {
        "candidates": f"{count(tried)} of {count(len(record['candidates']))} judged by "
        f"{record['folds']} folds, {count(sum(s['dropped'] for s in record['stages']))} dropped",
        "elimination": f"{record['elimination']}: {record['rule']}",
        "best": f"{best['kernel'] + ', ' if several else ''}"
        f"{'' if best['landmarks'] is None else str(best['landmarks']) + ' landmarks, '}"
        f"gamma {best['gamma']:.4g}, {parameter} {best[parameter]:.4g}, {record['scoring']} "
        f"{best['score']:.4f}",
        "time": f"search {seconds(record['seconds']['search'])}, with the last fit "
        f"{seconds(record['seconds']['total'])}",
    }
    if "metric_learning" in record:
        judged = record["metric_learning"]
        said = ", ".join(
            f"{kind} {np.mean(scores):.4f} with gamma {judged['chosen'][kind]['gamma']:.4g} and "
            f"{parameter} {judged['chosen'][kind][parameter]:.4g}"
            for kind, scores in judged["scores"].items()
        )
        found["learned metric"] = f"{judged['best']} ({said})"
    if record["late"]:
        found["ended"] = "by the time budget: the best so far"
    return found


def heat_maps(record: Mapping[str, Any]) -> dict[str, Callable[[Axes], None]]:
    """Return what draws each heat map of a search, by title: a map for each kernel and landmarks.

    ``record``: of the search.
    """
    grids = record["grid"]["gamma"]
    kernels = grids if isinstance(grids, Mapping) else [record["best"].get("kernel")]
    counts = record["grid"]["landmarks"] or [None]
    named = {
        " ".join(
            ([str(kernel)] if len(kernels) > 1 else [])
            + ["exact" if count is None else f"{count} landmarks"]
        ): (kernel, count)
        for kernel in kernels
        for count in counts
    }
    return {
        title: partial(_heat_map, record=record, title=title, kernel=kernel, landmarks=count)
        for title, (kernel, count) in named.items()
    }


def _heat_map(
    ax: Axes, record: Mapping[str, Any], title: str, kernel: Any, landmarks: int | None
) -> None:
    """Draw the mean scores over gamma and C (or nu) of some candidates; frame the best.

    ``record``: of the search; ``kernel``, ``landmarks`` (None: the exact kernel): the candidates'.
    """
    parameter = record["parameter"]
    gammas, values = record["grid"]["gamma"], record["grid"][parameter]
    if isinstance(gammas, Mapping):
        gammas = gammas[kernel]
    own = kernel, landmarks
    points = [p for p in record["candidates"] if (p.get("kernel"), p["landmarks"]) == own]
    means = np.full((len(gammas), len(values)), np.nan)
    for point in points:
        at = gammas.index(point["gamma"]), values.index(point[parameter])
        means[at] = point.get("mean", np.nan)
        if "rung" in point and len(record["stages"]) > 1:
            ax.text(at[1], at[0], str(point["rung"] + 1), ha="center", va="center", fontsize=7)
    image = ax.imshow(means, origin="lower", aspect="auto", cmap="viridis")
    ax.figure.colorbar(image, ax=ax, label=f"{record['scoring']}, mean over folds")
    best = searched_best(record)
    if (best.get("kernel"), best["landmarks"]) == own:
        at = values.index(best[parameter]), gammas.index(best["gamma"])
        ax.plot(*at, "s", mfc="none", mec="red", ms=14, mew=2)
    ax.set_xticks(range(len(values)), [f"{v:.3g}" for v in values], rotation=45)
    ax.set_yticks(range(len(gammas)), [f"{g:.3g}" for g in gammas])
    ax.set_xlabel(parameter)
    ax.set_ylabel("gamma")
    rungs = ", numbers: the last rung" if len(record["stages"]) > 1 else ""
    ax.set_title(f"{title}{rungs}")


def save_heat_map(record: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Draw the heat maps of a search into a folder; return the files.

    Raises
    ------
    InputError
        If matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    written = []
    Path(folder).mkdir(parents=True, exist_ok=True)
    for title, draw in heat_maps(record).items():
        figure = Figure(figsize=(7, 5), layout="constrained")
        draw(figure.add_subplot())
        name = title.removesuffix(" landmarks").replace(" ", "-")
        written.append(Path(folder) / f"search-{name}.png")
        with replacing(written[-1]) as file:
            figure.savefig(file, format="png", dpi=150)
    return written
