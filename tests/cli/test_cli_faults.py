"""Commands that are stopped, or run out of time or disk, say one sentence, and can be resumed."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cli_world import World, bigscreen, process, succeed, world, write_csv
from cluster_processes import start_scheduler

from bigscreen.model.model import Model

__all__ = ["world"]  # a fixture

OPTIONS = ["--landmarks", "100", "--gamma", "1", "--solver", "newton", "--features", "stored"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store of several feature chunks, whose fit takes some seconds."""
    folder = tmp_path_factory.mktemp("large")
    write_csv(folder / "rows.csv", n=100_000)
    succeed("ingest", folder / "rows.csv", folder / "rows.store", "--label", "inside")
    return folder / "rows.store"


@pytest.fixture(scope="module")
def whole(large: Path) -> Model:
    model = large.parent / "whole.bsm"
    succeed("fit", large, model, *OPTIONS, "--tol", "1e-9", "--max-iter", "12")
    return Model.load(model)


def same(path: Path, other: Model) -> bool:
    found = Model.load(path)
    return (
        found.coef.tobytes() == other.coef.tobytes()
        and found.intercept.tobytes() == other.intercept.tobytes()
    )


@pytest.mark.slow
def test_stopped_in_the_solve_by_three_interrupts(
    large: Path, tmp_path: Path, whole: Model
) -> None:
    model = tmp_path / "m.bsm"
    arguments = [*OPTIONS, "--tol", "1e-9", "--max-iter", "12"]
    with process("fit", large, model, *arguments, "--workers", "1") as fit:
        for line in fit.stderr:
            if line.startswith("pass"):
                break
        for _ in range(3):
            fit.send_signal(signal.SIGINT)
            time.sleep(0.3)
        said = fit.stderr.read()
        fit.wait(timeout=60)
    assert fit.returncode == 128 + signal.SIGINT
    assert "Traceback" not in said and "Exception" not in said
    assert said.splitlines()[-1].startswith("interrupted; what is done so far is in ")
    succeed("fit", large, model, *arguments, "--resume")
    assert same(model, whole)


@pytest.mark.slow
def test_terminated_at_any_moment(large: Path, tmp_path: Path) -> None:
    # by a fit that goes on for longer than anyone waits, on however quick a machine
    endless = [*OPTIONS, "--solver", "cd", "--C", "1000", "--tol", "1e-13", "--max-iter", "100000"]
    for seconds in (0.5, 2.0, 4.0, 8.0):
        with process("fit", large, tmp_path / "m.bsm", *endless, "--workers", "2") as fit:
            time.sleep(seconds)
            for _ in range(3):
                fit.send_signal(signal.SIGTERM)
                time.sleep(0.1)
            said = fit.stderr.read()
            fit.wait(timeout=60)
        # -15: before any of this was imported
        assert fit.returncode in (128 + signal.SIGTERM, -signal.SIGTERM)
        assert "Traceback" not in said
        subprocess.run(["rm", "-rf", tmp_path / "m.bsm.work"], check=True)


@pytest.mark.slow
def test_features_on_a_disk_that_fills(large: Path, tmp_path: Path, whole: Model) -> None:
    fit = [sys.executable, "-c", "from bigscreen.cli import main; main(prog_name='bigscreen')"]
    model, disk = tmp_path / "m.bsm", tmp_path / "disk"
    disk.mkdir()
    arguments = [*fit, "fit", large, "m.bsm", *OPTIONS, "--tol", "1e-9", "--max-iter", "12"]
    command = shlex.join(map(str, [*arguments, "--workers", "2"]))
    script = f"""
        mount -t tmpfs -o size=25m none {disk} && cd {disk} || exit 77
        {command}; echo "code $?" >&2
        ls m.bsm.work/features-*.wip/chunks >&2
        mount -o remount,size=200m {disk}
        {command} --resume || exit 1
        cp m.bsm {model}
    """
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=300
    )
    if done.returncode in (1, 77) and "permitted" in done.stderr:
        pytest.skip("this system lets nobody mount")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert "the disk is full" in said and "with --resume goes on" in said
    assert "code 2" in done.stderr and "000000.json" in done.stderr
    assert same(model, whole)


# ---------------------------------------------------------------- time budgets


@pytest.mark.slow
def test_a_budget_that_ends_while_features_are_written(
    large: Path, tmp_path: Path, whole: Model
) -> None:
    model = tmp_path / "m.bsm"
    arguments = [*OPTIONS, "--tol", "1e-9", "--max-iter", "12", "--workers", "1"]
    late = bigscreen("fit", large, model, *arguments, "--time-budget", "0.001s")
    assert late.exit_code == 2 and not model.exists()
    said = late.stderr.splitlines()[-1]
    assert "the time budget ended with 1 of " in said and "--resume goes on" in said
    assert list(Path(f"{model}.work").glob("features-*.wip/chunks/*"))
    succeed("fit", large, model, *arguments, "--resume")
    assert same(model, whole)


def test_a_budget_that_ends_while_rows_are_read(world: World, tmp_path: Path) -> None:
    store = tmp_path / "s.store"
    arguments = [world.csv, store, "--label", "inside", "--scale", "standard"]
    late = bigscreen("ingest", *arguments, "--time-budget", "0.001s")
    assert late.exit_code == 2 and not store.exists()
    assert "the time budget ended after 600 rows; what was done is kept in" in late.stderr
    assert "goes on" in late.stderr or "go on" in late.stderr
    succeed("ingest", *arguments)
    assert _fingerprint(store) == _fingerprint(world.store)


def _fingerprint(store: Path) -> str:
    from bigscreen.data.dataset import Dataset

    return Dataset.open(store).fingerprint


def test_a_budget_that_ends_while_rows_are_predicted(world: World, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    late = bigscreen("predict", world.model, world.store, out, "--time-budget", "0.001s")
    assert late.exit_code == 2 and not list(tmp_path.iterdir())
    assert "ended with 0 of 600 rows predicted, and nothing is written" in late.stderr
    succeed("predict", world.model, world.store, out, "--time-budget", "10m")


@pytest.mark.parametrize("machine", [["--exact"], ["--landmarks", "40"]])
def test_a_budget_that_ends_before_a_paths_first_point(
    world: World, tmp_path: Path, machine: list[str]
) -> None:
    out, whole = tmp_path / "p.bsp", tmp_path / "whole.bsp"
    arguments = ["--C", ".1:10:3", "--gamma", "1", *machine]
    late = bigscreen("path", world.store, out, *arguments, "--time-budget", "0.001s")
    assert late.exit_code == 2 and not out.exists()
    assert "the time budget ended in the phase" in late.stderr and "--resume" in late.stderr
    succeed("path", world.store, out, *arguments, "--resume")
    succeed("path", world.store, whole, *arguments)
    from bigscreen.model.solved_path import SolvedPath

    found, other = SolvedPath.load(out).model(1), SolvedPath.load(whole).model(1)
    np.testing.assert_array_equal(found.coef, other.coef)


def test_a_budget_bounds_the_waiting_for_workers(world: World, tmp_path: Path) -> None:
    scheduler, address = start_scheduler()
    try:
        arguments = [*OPTIONS[:4], "--scheduler", address, "--time-budget", "2s"]
        late = bigscreen("fit", world.store, tmp_path / "m.bsm", *arguments)
        assert late.exit_code == 2 and len(late.stderr.splitlines()) == 1
        assert "has had no worker for 2 s" in late.stderr
    finally:
        os.kill(scheduler.pid, signal.SIGKILL)
        scheduler.wait()
        scheduler.stderr.close()
    assert not list(tmp_path.iterdir())


def test_a_system_that_starts_no_more_threads(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system has no address space for another thread's stack, as under `ulimit -v`."""

    def refused(*given: object, **more: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("bigscreen.train.run.train", refused)
    result = bigscreen("fit", large, tmp_path / "model.bsm", *OPTIONS)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("error: there is not enough memory")
