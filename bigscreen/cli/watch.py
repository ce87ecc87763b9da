"""`bigscreen watch`: follow a fit, path or search from another terminal, or see how it ended."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from bigscreen.cli.common import check_json, json_option
from bigscreen.errors import InputError, reason_of

SECONDS = 0.5
"""Between two looks at the journal."""


@click.command(short_help="Follow a fit that runs elsewhere.")
@click.argument("out", metavar="MODEL|PATH|WORK")
@click.option("--once", is_flag=True, help="Say how far it is now, and end.")
@json_option
def watch(out: str, once: bool, json_file: str | None) -> None:
    """Follow a fit, path or search that runs in another terminal, or on another machine.

    Give the name of what it makes, or its work folder. When the run ends, the command does; of one
    that died it says so, and how to go on.

    \b
    Examples:
      bigscreen watch model.bsm
      bigscreen watch model.bsm --once --json -
    """
    from bigscreen.report import journal
    from bigscreen.report.report import note, write_result

    check_json(json_file, out)
    work = Path(out) if Path(out).is_dir() else Path(f"{out}.work")
    found, reader = Watched(), journal.Reader(work / journal.JOURNAL)
    with closing(reader), ExitStack() as shown:
        if not reader.open():
            # A run that ends well has made its output before it removes its folder.
            _note_finished(out)
            return
        show: Callable[[dict[str, Any]], None] | None = None

        def follow() -> None:
            nonlocal show
            for event in reader.new():
                if event["event"] == "start":
                    shown.close()
                    show = shown.enter_context(_reporter(event["command"]))
                elif event["event"] != "end" and show is not None:
                    show(event)
                found.take(event)

        with _damage_told(reader.path):
            while True:
                follow()
                # The last line is written before the process and the folder go: look first.
                found.look(work)
                follow()
                state, why = found.state, found.end.get("why")
                said = SAID[state]
                if once or state != "running":
                    break
                time.sleep(SECONDS)
    if json_file:
        record = {"start": found.start, "state": state, "why": why, "last": found.last}
        write_result(json_file, "watch", record)
    what = f"{found.start['command']} of {found.start['out']}" if found.start else "run"
    note(f"{what}: {said}{'' if why is None else f': {why}'}")


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """Say in a sentence of a line that no run has written that the journal is damaged."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{path} is damaged: a line in it is not what a run writes ({reason_of(error)})"
        ) from error


def _note_finished(out: str) -> None:
    """Say that a run without a journal has ended.

    Raises
    ------
    InputError
        If there is no output of a run either.
    """
    from bigscreen.report.report import note

    made = next((p for p in (out, out.removesuffix(".work")) if Path(p).is_file()), None)
    if made is None:
        raise InputError(
            f"nothing that can be watched is being made as {out}: give the MODEL or PATH of a fit, "
            "path or tune that runs, or its work folder"
        )
    note(f"{made} is finished: `bigscreen info {made}` says what is in it")


@dataclass
class Watched:
    """How far a run is: its first line, its last, the newest of those between; if it is lost."""

    start: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    lost: bool = False

    def take(self, event: dict[str, Any]) -> None:
        """Take a line of the journal."""
        if event["event"] == "start":
            self.start, self.last, self.end, self.lost = event, {}, {}, False
            _ = event["command"], event["out"]
        elif event["event"] == "end":
            self.end = event
        else:
            self.last = event

    def look(self, work: Path) -> None:
        """Find out whether the run's process, or its folder, is gone."""
        from bigscreen.report.journal import alive

        self.lost = not work.is_dir() or bool(self.start and alive(self.start) is False)

    @property
    def state(self) -> str:
        """A name of `SAID`."""
        if self.end:
            return str(self.end["outcome"])
        return "died" if self.lost else "running"


SAID = {
    "running": "it runs",
    "done": "done",
    "interrupted": "interrupted; the same command with --resume goes on",
    "failed": "it failed",
    "died": "its process is gone without a word; the same command with --resume goes on",
}


def _reporter(command: str) -> Any:
    """What shows the events of a command."""
    from bigscreen.report.path import PathBar
    from bigscreen.report.report import FitReport
    from bigscreen.report.tune import TuneReport

    return {"path": PathBar, "tune": TuneReport}.get(command, FitReport)()
