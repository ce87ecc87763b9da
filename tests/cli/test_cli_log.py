"""The log of a fit that runs, is killed, is resumed, and ends."""

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
"""Options of a fit that takes very long."""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    write_csv(folder / "rows.csv", n=3000)
    succeed("ingest", folder / "rows.csv", folder / "rows.store", "--label", "inside")
    return folder / "rows.store"


def events(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.slow
def test_a_log_follows_a_fit_through_its_death_to_its_end(store, tmp_path):
    model, log = tmp_path / "m.bsm", tmp_path / "log.jsonl"
    with process("fit", store, model, *OPTIONS, "--log", log) as fit:
        next(line for line in fit.stderr if line.startswith("pass"))
        start, *others = events(log)
        assert start["event"] == "start" and start["pid"] == fit.pid
        assert others[-1]["event"] in ("pass", "phase")
        fit.kill()
        fit.wait(timeout=60)
    assert events(log)[-1]["event"] != "end"
    with process("fit", store, model, *OPTIONS, "--log", log, "--resume") as fit:
        next(line for line in fit.stderr if line.startswith("pass"))
        fit.send_signal(signal.SIGINT)
        fit.wait(timeout=60)
    found = events(log)
    assert [e["event"] for e in found].count("start") == 2
    assert found[-1]["event"] == "end" and found[-1]["outcome"] == "interrupted"
    assert next(e["pass"] for e in found if e["event"] == "pass") == 1


def test_a_log_replaces_no_output(store, tmp_path):
    taken = bigscreen("fit", store, tmp_path / "b.bsm", "--log", tmp_path / "b.bsm")
    assert taken.exit_code == 2 and "would replace another file" in taken.output
    assert not (tmp_path / "b.bsm").exists()
