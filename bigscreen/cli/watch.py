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
    work = next((p for p in (Path(out), Path(f"{out}.work")) if p.is_dir()), None)
    if work is None and Path(out).is_file():
        note(f"{out} is finished: `bigscreen info {out}` says what is in it")
        return
    if work is None or not (work / journal.JOURNAL).is_file():
        raise InputError(
            f"nothing that can be watched is being made as {out}: give the MODEL or PATH of a fit, "
            "path or tune that runs, or its work folder"
        )
    found, reader = Watched(), journal.Reader(work / journal.JOURNAL)
    with closing(reader), ExitStack() as shown:
        show: Callable[[dict[str, Any]], None] | None = None
        while True:
            with _damage_told(reader.path):
                for event in reader.new():
                    if event["event"] == "start":
                        shown.close()
                        show = shown.enter_context(_reporter(event["command"]))
                    elif event["event"] != "end" and show is not None:
                        show(event)
                    found.take(event)
                state, why = found.state(work), found.end.get("why")
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


@dataclass
class Watched:
    """How far a run is: its first line, its last, and the newest of those between."""

    start: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)

    def take(self, event: dict[str, Any]) -> None:
        """Take a line of the journal."""
        if event["event"] == "start":
            self.start, self.last, self.end = event, {}, {}
            _ = event["command"], event["out"]
        elif event["event"] == "end":
            self.end = event
        else:
            self.last = event

    def state(self, work: Path) -> str:
        """A name of `SAID`."""
        from bigscreen.report.journal import alive

        if self.end:
            return str(self.end["outcome"])
        # A run that ends as it should writes so before its folder goes.
        gone = not work.is_dir() or (self.start and alive(self.start) is False)
        return "died" if gone else "running"


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
