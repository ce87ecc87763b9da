"""`bigscreen watch`: a fit that runs, was killed, goes on, ends."""

import json
import os
import shutil
import signal
import socket
from pathlib import Path

import pytest
from cli_world import bigscreen, process, succeed, write_csv

from bigscreen.report import journal

OPTIONS = [
    "--landmarks",
    "100",
    "--gamma",
    "1",
    "--C",
    "1000",
    "--solver",
    "cd",
    "--tol",
    "1e-13",
    "--max-iter",
    "4000",
]
"""Of a fit that goes on for longer than anyone watches."""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watch")
    write_csv(folder / "rows.csv", n=3000)
    succeed("ingest", folder / "rows.csv", folder / "rows.store", "--label", "inside")
    return folder / "rows.store"


def now(model, folder):
    """What `watch --once` says of a run, for scripts."""
    succeed("watch", model, "--once", "--json", folder / "now.json")
    return json.loads((folder / "now.json").read_text())


def test_a_fit_is_watched_through_its_death_to_its_end(store, tmp_path):
    model, log = tmp_path / "m.bsm", tmp_path / "log.jsonl"
    with process("fit", store, model, *OPTIONS, "--log", log) as fit:
        for line in fit.stderr:
            if line.startswith("pass"):
                break
        found = now(model, tmp_path)
        assert found["state"] == "running" and found["start"]["pid"] == fit.pid
        assert found["last"]["event"] in ("pass", "phase")
        with process("watch", model) as watcher:
            first = next(line for line in watcher.stderr if line.startswith("pass"))
            assert "relative gap" in first
            fit.kill()
            fit.wait(timeout=60)
            said = watcher.stdout.read()
            watcher.wait(timeout=60)
    assert "gone without a word" in said and "--resume goes on" in said
    assert now(model, tmp_path)["state"] == "died"
    with process("fit", store, model, *OPTIONS, "--log", log, "--resume") as fit:
        for line in fit.stderr:
            if line.startswith("pass"):
                break
        with process("watch", f"{model}.work") as watcher:
            next(line for line in watcher.stderr if line.startswith("pass"))
            fit.send_signal(signal.SIGINT)
            fit.wait(timeout=60)
            said = watcher.stdout.read()
            watcher.wait(timeout=60)
    assert "interrupted" in said and watcher.returncode == 0
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [e["event"] for e in events].count("start") == 2 and events[-1]["event"] == "end"
    passes = [e["pass"] for e in events if e["event"] == "pass"]
    assert passes[0] == 1 and len(passes) > 2


def test_a_finished_model_and_nothing_at_all(store, tmp_path):
    model = tmp_path / "m.bsm"
    succeed("fit", store, model, "--landmarks", 20, "--max-iter", 3)
    assert "is finished" in " ".join(succeed("watch", model).split())
    nothing = bigscreen("watch", tmp_path / "n.bsm")
    assert nothing.exit_code == 2 and "nothing that can be watched" in nothing.output
    taken = bigscreen("fit", store, tmp_path / "b.bsm", "--log", tmp_path / "b.bsm")
    assert taken.exit_code == 2 and "would replace another file" in taken.output
    assert not (tmp_path / "b.bsm").exists()


@pytest.mark.parametrize("moment", ["before its journal is opened", "after it is read"])
@pytest.mark.parametrize("named", ["model", "work folder"])
def test_a_fit_that_ends_while_it_is_looked_at_has_ended_well(moment, named, tmp_path, monkeypatch):
    model, work = tmp_path / "m.bsm", tmp_path / "m.bsm.work"
    work.mkdir()
    run = journal.Journal(lambda event: None, "fit", os.fspath(model), work, False, None)
    run({"event": "phase", "phase": "the first pass"})

    def end():
        """What a fit does at its end: the last line, the model, the folder's removal."""
        run.__exit__(None, None, None)
        model.write_bytes(b"a model")
        shutil.rmtree(work)

    if moment == "after it is read":
        read = journal.Reader.new

        def read_then_end(reader):
            found = read(reader)
            if work.is_dir():
                end()
            return found

        monkeypatch.setattr(journal.Reader, "new", read_then_end)
    else:
        opened = journal.Reader.__init__

        def end_then_open(reader, path):
            end()
            opened(reader, path)

        monkeypatch.setattr(journal.Reader, "__init__", end_then_open)
    said = " ".join(succeed("watch", model if named == "model" else work, "--once").split())
    assert ("done" if moment == "after it is read" else "is finished") in said


def test_what_was_left_by_a_death_is_no_end(tmp_path):
    model, work = tmp_path / "m.bsm", tmp_path / "m.bsm.work"
    model.write_bytes(b"a model of an earlier fit")
    work.mkdir()
    start = {"event": "start", "command": "fit", "out": str(model), "pid": 2**22 + 1}
    line = json.dumps(start | {"host": socket.gethostname()}) + "\n"
    (work / journal.JOURNAL).write_text(line)
    assert "gone without a word" in succeed("watch", model, "--once")
    assert Path(model).is_file()
