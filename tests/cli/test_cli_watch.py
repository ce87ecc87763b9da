"""`bigscreen watch`: a fit that runs, was killed, goes on, ends."""

import json
import signal

import pytest
from cli_world import bigscreen, process, succeed, write_csv

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
