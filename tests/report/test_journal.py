"""The log of a run has one line of JSON for each event."""

import json
import logging
import os
import socket
from contextlib import nullcontext

import numpy as np
import pytest

from bigscreen.report.journal import Journal

EVENTS = [
    {"event": "phase", "phase": "solve"},
    {"event": "pass", "pass": 1, "primal": np.float64(3.5), "relative_gap": float("nan")},
]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def tell(journal, events, error):
    """Send events to a journal, as a command does."""
    with journal:
        for event in events:
            journal(event)
        if error is not None:
            raise error


def run(log, events=EVENTS, error=None):
    """Run a journal with these events; return the events that it passed on."""
    shown = []
    journal = Journal(shown.append, "fit", "m.bsm", None if log is None else str(log))
    with nullcontext() if error is None else pytest.raises(type(error)):
        tell(journal, events, error)
    return shown


def test_a_log_has_a_start_the_events_and_an_end(tmp_path):
    assert run(tmp_path / "log") == EVENTS
    start, phase, step, end = lines(tmp_path / "log")
    assert (start["command"], start["out"], start["pid"]) == ("fit", "m.bsm", os.getpid())
    assert start["host"] == socket.gethostname()
    assert phase["phase"] == "solve" and step["primal"] == 3.5
    assert step["relative_gap"] is None, "JSON has no word for NaN"
    assert end["outcome"] == "done" and start["time"] <= phase["time"] <= end["time"]


def test_what_a_fleet_says_of_its_workers_is_an_event(tmp_path):
    shown = []
    log = logging.getLogger("bigscreen.fleet")
    with Journal(shown.append, "fit", "m.bsm", str(tmp_path / "log")):
        log.info("worker %s joined", "tcp://there:1")
    log.warning("nobody listens any more")
    said = {"event": "workers", "change": "worker tcp://there:1 joined"}
    assert shown == [said] and lines(tmp_path / "log")[1].items() >= said.items()


def test_runs_add_to_a_log(tmp_path):
    log = tmp_path / "log"
    run(log, error=KeyboardInterrupt())
    run(log)
    run(log, error=ValueError("no room"))
    outcomes = [line["outcome"] for line in lines(log) if line["event"] == "end"]
    assert outcomes == ["interrupted", "done", "failed"] and len(lines(log)) == 12
    assert lines(log)[-1]["why"] == "no room"


def test_without_an_event_nothing_is_written(tmp_path):
    run(tmp_path / "log", events=[], error=ValueError("refused"))
    assert list(tmp_path.iterdir()) == []


def test_a_run_goes_on_without_a_log(tmp_path, capsys):
    assert run(None) == EVENTS
    assert capsys.readouterr().err == ""
    assert run(tmp_path / "nowhere" / "log") == EVENTS
    said = capsys.readouterr().err
    assert said.count("warning") == 1 and "No such file" in said
    if os.path.exists("/dev/full"):
        assert run("/dev/full") == EVENTS
        assert capsys.readouterr().err.count("ends here") == 1
