"""The journal of a run: what a reader sees of lines that grow, break off, begin anew or go."""

import json
import os
import socket
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest

from bigscreen.report.journal import JOURNAL, Journal, Reader, alive

EVENTS = [
    {"event": "phase", "phase": "solve"},
    {"event": "pass", "pass": 1, "primal": np.float64(3.5), "relative_gap": float("nan")},
]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def tell(journal, events, error):
    """What a command does with its journal."""
    with journal:
        for event in events:
            journal(event)
        if error is not None:
            raise error


def run(folder, events=EVENTS, error=None, resume=False, log=None):
    """A run with these events, and what was shown of them."""
    shown = []
    journal = Journal(shown.append, "fit", "m.bsm", folder, resume, log)
    with nullcontext() if error is None else pytest.raises(type(error)):
        tell(journal, events, error)
    return shown


def test_a_journal_has_a_start_the_events_and_an_end(tmp_path):
    assert run(tmp_path, log=tmp_path / "log") == EVENTS
    start, phase, step, end = lines(tmp_path / JOURNAL)
    assert (start["command"], start["out"], start["pid"]) == ("fit", "m.bsm", os.getpid())
    assert phase["phase"] == "solve" and step["primal"] == 3.5
    assert step["relative_gap"] is None, "JSON has no word for NaN"
    assert end["outcome"] == "done" and start["time"] <= phase["time"] <= end["time"]
    assert (tmp_path / "log").read_text() == (tmp_path / JOURNAL).read_text()


def test_a_run_that_resumes_adds_to_it_and_another_begins_anew(tmp_path):
    log = tmp_path / "log"
    run(tmp_path, error=KeyboardInterrupt(), log=log)
    assert lines(tmp_path / JOURNAL)[-1]["outcome"] == "interrupted"
    run(tmp_path, resume=True, log=log)
    outcomes = [line.get("outcome") for line in lines(tmp_path / JOURNAL)]
    assert outcomes == [None, None, None, "interrupted", None, None, None, "done"]
    run(tmp_path, error=ValueError("no room"), log=log)
    assert len(lines(tmp_path / JOURNAL)) == 4 and len(lines(log)) == 12
    assert lines(log)[-1] | {"time": ""} == {
        **{"time": "", "event": "end"},
        **{"outcome": "failed", "why": "no room"},
    }


def test_without_an_event_nothing_is_written(tmp_path):
    # The folder is not the run's own before there is one.
    run(tmp_path, events=[], error=ValueError("refused"))
    assert list(tmp_path.iterdir()) == []


def test_a_run_goes_on_without_a_journal(tmp_path, capsys):
    assert run(tmp_path / "nowhere", log=tmp_path / "log") == EVENTS
    said = capsys.readouterr().err
    assert said.count("warning") == 1 and "No such file" in said
    assert len(lines(tmp_path / "log")) == 4
    if os.path.exists("/dev/full"):
        assert run(tmp_path, log="/dev/full") == EVENTS
        assert capsys.readouterr().err.count("ends here") == 1
        assert len(lines(tmp_path / JOURNAL)) == 4


def test_a_reader_sees_whole_lines_once(tmp_path):
    path = tmp_path / JOURNAL
    reader = Reader(path)
    assert reader.new() == []
    text = b"".join(b'{"event": "pass", "pass": %d}\n' % k for k in range(9))
    seen = []
    for stop in range(0, len(text) + 7, 7):
        path.write_bytes(text[:stop]) if stop == 0 else None
        with open(path, "ab") as file:
            file.write(text[max(0, stop - 7) : stop])
        seen += reader.new()
    assert [event["pass"] for event in seen] == list(range(9))
    with open(path, "ab") as file:
        deep = b'{"event": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        file.write(b"torn by a power cut\n[1]\n" + deep + b'\n{"event": "end"}\n')
    assert reader.new() == [{"event": "end"}]
    path.write_bytes(b'{"event": "start"}\n')  # the next run
    assert reader.new() == [{"event": "start"}]
    reader.close()


def test_a_reader_sees_the_last_lines_of_a_folder_that_goes(tmp_path):
    path = tmp_path / JOURNAL
    path.write_bytes(b'{"event": "start"}\n')
    reader = Reader(path)
    assert len(reader.new()) == 1
    with open(path, "ab") as file:
        file.write(b'{"event": "end"}\n')
    path.unlink()
    assert reader.new() == [{"event": "end"}] and reader.new() == []
    path.write_bytes(b'{"event": "start", "second": 1}\n')
    assert reader.new() == [{"event": "start", "second": 1}]
    reader.close()


def test_whose_process_is_there():
    here = socket.gethostname()
    assert alive({"host": here, "pid": os.getpid()}) is True
    assert alive({"host": f"not-{here}", "pid": os.getpid()}) is None
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert alive({"host": here, "pid": gone.pid}) is False
