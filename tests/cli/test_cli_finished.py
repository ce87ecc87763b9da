"""`--resume` of a finished command shows the output, if it has the requested options."""

import json
from pathlib import Path

import pytest
from cli_world import World, bigscreen, succeed, world

__all__ = ["world"]  # a fixture

SHARED = ["--threads", 1, "--tol", 1e-2]
COMMANDS = {
    "fit": ["--landmarks", 20, *SHARED],
    "path": ["--kernel", "linear", "--C", ".1,1", "--folds", 2, *SHARED],
    "tune": ["--landmarks", 20, "--C", ".1,1", "--gamma", ".1,1", "--folds", 2, "--tol", 1e-2],
}
OTHERWISE = {
    "fit": (["--C", 3], "C was 1.0, now 3.0"),
    "path": (["--C", ".1,3"], "values was [0.1, 1.0], now [0.1, 3.0]"),
    "tune": (["--gamma", ".1,3"], "gamma was [0.1, 1.0], now [0.1, 3.0]"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_finished_output_is_shown_and_left_as_it_is(
    command: str, world: World, tmp_path: Path
) -> None:
    out, first, again = tmp_path / "out", tmp_path / "first.json", tmp_path / "again.json"
    succeed(command, world.store, out, *COMMANDS[command], "--json", first)
    before = out.read_bytes()
    (tmp_path / "out.work").mkdir()  # of a process that was killed at its very end
    shown = bigscreen(command, world.store, out, *COMMANDS[command], "--resume", "--json", again)
    assert shown.exit_code == 0
    assert f"{out} is finished: there is nothing left to do" in shown.output
    assert out.read_bytes() == before
    assert json.loads(first.read_text()) == json.loads(again.read_text())
    assert (tmp_path / "out.work").exists() == (
        command == "path"
    )  # which may be worth going on with


@pytest.mark.parametrize("command", COMMANDS)
def test_one_that_was_made_otherwise_is_refused(command: str, world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    succeed(command, world.store, out, *COMMANDS[command])
    before = out.read_bytes()
    options, what = OTHERWISE[command]
    refused = bigscreen(command, world.store, out, *COMMANDS[command], *options, "--resume")
    assert refused.exit_code == 2
    assert f"was made otherwise: {what};" in refused.output
    other = tmp_path / "other.store"
    rows = world.csv.read_text().splitlines()
    (tmp_path / "other.csv").write_text("\n".join(rows[:-100]) + "\n")
    succeed("ingest", tmp_path / "other.csv", other, "--label", "inside", "--threads", 1)
    refused = bigscreen(command, other, out, *COMMANDS[command], "--resume")
    assert refused.exit_code == 2 and "data was" in refused.output
    assert out.read_bytes() == before


def test_a_model_of_no_search_is_none_of_a_search(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    succeed("fit", world.store, out, *COMMANDS["fit"])
    refused = bigscreen("tune", world.store, out, *COMMANDS["tune"], "--resume")
    assert refused.exit_code == 2 and "it is of no search" in refused.output
