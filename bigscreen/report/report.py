"""Progress lines, tables and warnings for people, and results as JSON for programs."""

import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from bigscreen.files.output import replacing
from bigscreen.files.printable import printable
from bigscreen.problems.point import format_gap

LINE_SECONDS = 2.0
"""If the output is not a terminal, wait at least this many seconds between two progress lines."""

HEARTBEAT_SECONDS = 10.0
"""If the output is not a terminal, print a line after this many seconds without one, to show that
work goes on."""

SCHEMA = 1
"""Version of the JSON that commands write; it is raised when a field is removed or changes its
meaning."""


def count(number: int | float) -> str:
    """Format a number: 1234567 -> '1,234,567'."""
    return f"{int(number):,}"


def percent(share: float, digits: int = 2) -> str:
    """Format a share, such as 0.25, as percent with some digits after the point.

    A share other than 0 and 1 gets as many digits as keep it from being shown as 0 % or 100 %.
    """
    while 0 < share < 1 and float(f"{100 * share:.{digits}f}") in (0.0, 100.0):
        digits += 1
    return f"{share:.{digits}%}"


def size(n_bytes: int | float | None) -> str:
    """Format bytes: 1610612736 -> '1.5 GiB'."""
    if n_bytes is None:
        return "unknown"
    value = float(n_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def seconds(value: float | None) -> str:
    """Format seconds: 0.42 -> '0.42 s', 754 -> '12 min 34 s'."""
    if value is None:
        return "unknown"
    if value < 60:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def pass_line(event: Mapping[str, Any]) -> str:
    """Describe one pass over the data in a line of plain text (``event``: of a fit)."""
    label = event.get("class")
    about = "about " if "estimated_from" in event else ""
    passes = f"pass {event['pass']}"
    if "full_passes" in event:
        passes += f" ({event['full_passes']} over all rows, {event['partial_passes']} over some)"
    parts = [
        passes,
        *([f"label {label}"] if label is not None else []),
        *([] if event["primal"] is None else [f"P {about}{event['primal']:.6g}"]),
        f"D {event['dual']:.6g}",
        gap_text(event),
        f"{count(event['rows_alive'])} rows open",
        *([f"{count(event['rows_read'])} read"] if "rows_read" in event else []),
        seconds(event["seconds"]),
        size(event.get("memory")),
    ]
    return "  ".join(parts)


def gap_text(event: Mapping[str, Any]) -> str:
    """Say how large the gap of a pass or of a path's point is, or its KKT violation."""
    if event.get("violation") is not None:
        return f"KKT violation {event['violation']:.1e}"
    return f"relative gap {format_gap(event['relative_gap'])}"


class Heartbeat:
    """Prints a line on what is being done if nothing else has been printed for some time.

    Parameters
    ----------
    say : callable
        Returns what is being done, or "".
    write : callable
        Prints a line.
    beat : float
        Print a line after this many seconds without another line.
    """

    def __init__(
        self,
        say: Callable[[], str],
        write: Callable[[str], None],
        beat: float = HEARTBEAT_SECONDS,
    ) -> None:
        """Prepare the thread, which `start` begins.

        ``say`` returns what is being done, and ``write`` prints a line. A line is printed after
        ``beat`` seconds without another line.
        """
        self._say, self._write, self._seconds = say, write, beat
        self._began = self._printed = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread that prints; `stop` ends it."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for a line that is being printed."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def beat(self) -> None:
        """Note that a line has just been printed."""
        self._printed = time.monotonic()

    def _run(self) -> None:
        """Print lines until `stop` is called: the body of the thread."""
        while not self._end.wait(max(self._printed + self._seconds - time.monotonic(), 0.01)):
            if time.monotonic() - self._printed >= self._seconds:
                self.beat()
                if what := self._say():
                    self._write(f"... {what}  after {seconds(self._printed - self._began)}")


class LiveReport:
    """Base of reports that show events as they come: live on a terminal, else as plain lines.

    Parameters
    ----------
    console : rich.console.Console, optional
        Default: standard error, so that progress does not mix with a command's result.
    beat : float
        If the output is no terminal: print a line after this many seconds without another line.
    """

    def __init__(self, console: Console | None = None, beat: float = HEARTBEAT_SECONDS) -> None:
        """Prepare the thread that prints a line after ``beat`` seconds without another line.

        ``console`` of None is standard error. ``_live`` is the live display, None unless the output
        is a terminal.
        """
        self.console = console or Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._heart = Heartbeat(self._doing, self._print, beat)

    def __enter__(self) -> Self:
        """Start the live display on a terminal, else the thread that prints lines."""
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=8, transient=True)
            self._live.start()
        else:
            self._heart.start()
        return self

    def _doing(self) -> str:
        """Say what is being done, for the heartbeat."""
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the live display and the thread that prints lines."""
        self._heart.stop()
        if self._live is not None:
            self._live.stop()

    def _print(self, line: str) -> None:
        """Print a line of plain text, and note that it was printed."""
        self._heart.beat()
        self.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


class FitReport(LiveReport):
    """Shows the events of a fit: a live line on a terminal, else plain lines every 2 s."""

    def __init__(self, console: Console | None = None, beat: float = HEARTBEAT_SECONDS) -> None:
        """Begin without a phase.

        ``_began``: when the phase began; ``_printed``: when the last line was printed;
        ``_waiting``: the newest line, if it has not been printed.
        """
        super().__init__(console, beat)
        self._phase = ""
        self._line = ""
        self._began = time.monotonic()
        self._printed = -math.inf
        self._waiting: str | None = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Print the newest line if it is not printed yet, and stop the display."""
        if self._live is None and self._waiting is not None:
            self._print(self._waiting)
        self._close_phase()
        super().__exit__(kind, error, trace)

    def _doing(self) -> str:
        """Describe the newest pass or progress, or else the phase."""
        return self._line or self._phase or "starting"

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Show one event of `bigscreen.train.run.train`."""
        if event["event"] == "phase":
            self._close_phase()
            self._phase, self._line, self._began = event["phase"], "", time.monotonic()
            self._show()
        elif event["event"] == "progress":
            self._line = f"{event['phase']}  {event['done']} of {event['total']}"
            self._show()
        elif event["event"] == "pass":
            self._line = pass_line(event)
            self._show()
            if self._live is None:
                self._plain(self._doing())
        elif event["event"] == "workers":
            self._print(event["change"])

    def __rich__(self) -> Text:
        """Return the line that the live display shows, cut to the terminal's width."""
        return Text(printable(self._doing()), overflow="ellipsis", no_wrap=True)

    def _show(self) -> None:
        """Refresh the live display, if there is one."""
        if self._live is not None:
            self._live.update(Spinner("dots", self))

    def _close_phase(self) -> None:
        """Leave a line for the finished phase on a terminal."""
        if self._live is not None and self._phase:
            took = seconds(time.monotonic() - self._began)
            line = printable(self._line or f"{self._phase}  {took}")
            self.console.print(Text(line, overflow="ellipsis", no_wrap=True))
            self._phase = ""

    def _plain(self, line: str) -> None:
        """Print a line if the last one is old enough; else keep it for later."""
        now = time.monotonic()
        if now - self._printed >= LINE_SECONDS:
            self._print(line)
            self._printed, self._waiting = now, None
        else:
            self._waiting = line


class IngestBar:
    """Shows the events of `bigscreen.intake.ingest.ingest`: bars on a terminal, else a line."""

    def __init__(self, beat: float = HEARTBEAT_SECONDS) -> None:
        """Make the bars, which are hidden if standard error is no terminal."""
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rows]} rows"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._line = "opening the files"
        self._heart = Heartbeat(
            lambda: self._line,
            lambda line: console.print(line, markup=False),
            beat,
        )

    def __enter__(self) -> Self:
        """Start the bars; if they are hidden, start the thread that prints lines."""
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
        """Stop the bars and the thread that prints lines."""
        self._heart.stop()
        self._bar.stop()

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Show one event."""
        phase, rows = event["phase"], event["rows"]
        self._line = f"{phase}  {count(rows)} rows"
        if phase not in self._tasks:
            self._tasks[phase] = self._bar.add_task(phase, rows="0")
        unit = "bytes" if phase == "read" else "rows"
        self._bar.update(
            self._tasks[phase],
            completed=event[unit],
            # (A bar of unknown size moves to and fro.)
            total=event[f"{unit}_total"] or None,
            rows=count(rows),
        )


def table(title: str, facts: Mapping[str, str]) -> None:
    """Print names and texts (``facts``) in two columns inside a frame."""
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(Text(printable(name), style="dim"), Text(printable(value)))
    framed = Panel(grid, title=Text(printable(title)), expand=False, title_align="left")
    Console(highlight=False).print(framed)


def note(sentence: str) -> None:
    """Print one line of plain text."""
    Console(highlight=False).print(printable(sentence), markup=False, soft_wrap=True)


def matrix(title: str, corner: str, cells: Mapping[str, Mapping[str, str]]) -> None:
    """Print a table with row names and column names; all rows have the first row's columns.

    ``corner``: the heading of the row names; ``cells``: texts by row name and column name.
    """
    names = list(next(iter(cells.values())))
    grid = Table(title=Text(printable(title)), title_justify="left")
    grid.add_column(corner)
    for name in names:
        grid.add_column(Text(printable(name)), justify="right")
    for name, row in cells.items():
        grid.add_row(Text(printable(name)), *(row[each] for each in names))
    Console(highlight=False).print(grid)


def write_json(path: str | os.PathLike[str], record: Mapping[str, Any]) -> None:
    """Write a record as strict JSON (see `plain`); the file appears whole or not at all."""
    text = json.dumps(plain(record), indent=2, allow_nan=False) + "\n"
    with replacing(path) as file:
        file.write(text.encode())


def write_result(path: str | os.PathLike[str], command: str, found: Mapping[str, Any]) -> None:
    """Write a command's result as JSON, with the name and version of its schema.

    Schemas are in `schemas.json`.
    """
    write_json(path, {"schema": f"bigscreen/{command}/{SCHEMA}", **found})


def plain(value: Any) -> Any:
    """Convert a value to what JSON can hold: paths to text, NaN and infinities to null."""
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def warn(sentence: str) -> None:
    """Print a warning line on standard error."""
    console = Console(stderr=True, highlight=False)
    console.print(f"warning: {printable(sentence)}", markup=False, soft_wrap=True)
