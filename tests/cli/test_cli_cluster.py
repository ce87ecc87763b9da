"""Commands on a cluster; if the cluster is lost, one sentence says so, and no work is lost."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cli_world import World, bigscreen, succeed, world
from cluster_processes import processes

from bigscreen.fleet import connecting
from bigscreen.fleet.tuning import CLUSTER
from bigscreen.model.model import Model
from bigscreen.report.report import FitReport

__all__ = ["world"]  # a fixture

OPTIONS = ["--landmarks", "40", "--gamma", "1", "--solver", "newton", "--tol", "1e-6"]


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["scheduler", "frozen scheduler", "worker"])
def test_a_lost_cluster(
    world: World,
    tmp_path: Path,
    checkpoint_every: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
    lost: str,
) -> None:
    short = partial(connecting.connect, tuning=replace(CLUSTER, patience_seconds=0.5))
    monkeypatch.setattr(connecting, "connect", short)
    checkpoint_every(-1.0)
    show = FitReport.__call__
    model = tmp_path / "m.bsm"
    with processes(ports=(0,)) as cluster:
        victim = cluster.processes[1 if lost == "worker" else 0]

        def show_and_kill(self: FitReport, event: dict[str, object]) -> None:
            show(self, event)
            if event.get("pass") == 3 and lost == "frozen scheduler":
                victim.send_signal(signal.SIGSTOP)
            elif event.get("pass") == 3:
                victim.kill()
                victim.wait()

        monkeypatch.setattr(FitReport, "__call__", show_and_kill)
        where = ["--scheduler", cluster.address, "--scheduler-timeout", "3s"]
        fit = bigscreen("fit", world.store, model, *OPTIONS, *where)
        victim.send_signal(signal.SIGCONT)
    assert fit.exit_code == 2 and not model.exists()
    said = fit.stderr.splitlines()[-1]
    assert fit.stderr.count("error:") == 1 and said.startswith("error:")
    assert ("no worker" if lost == "worker" else "scheduler") in said
    assert ("has not answered for 3 s" in said) == (lost == "frozen scheduler")
    assert f"{model}.work" in said and "--resume" in said
    monkeypatch.undo()
    succeed("fit", world.store, model, *OPTIONS, "--resume")
    succeed("fit", world.store, tmp_path / "whole.bsm", *OPTIONS)
    resumed, whole = Model.load(model), Model.load(tmp_path / "whole.bsm")
    np.testing.assert_array_equal(resumed.coef, whole.coef)
    assert len(resumed.provenance["history"]) > 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.bsm", "whole.bsm"]


@pytest.mark.slow
def test_predict_and_evaluate_on_workers_and_a_cluster(world: World, tmp_path: Path) -> None:
    """Workers and clusters write the same file and figures as threads."""

    def answers(name: str, *where: object) -> tuple[bytes, dict[str, object]]:
        out, judged = tmp_path / f"{name}.npy", tmp_path / f"{name}.json"
        succeed("predict", world.model, world.store, out, "--scores", *where)
        succeed("evaluate", world.model, world.store, "--json", judged, *where)
        return out.read_bytes(), json.loads(judged.read_text())

    inline = answers("inline", "--threads", 1)
    assert answers("workers", "--workers", 2) == inline
    with processes(ports=(0,)) as cluster:
        assert answers("cluster", "--scheduler", cluster.address) == inline
    out = tmp_path / "p.csv"
    for command, file in (("predict", [out]), ("evaluate", [])):
        said = bigscreen(command, world.model, world.store, *file, "--workers", 1, "--threads", 1)
        assert said.exit_code == 2 and "different ways to run" in said.stderr
    nobody = ("--scheduler", "tcp://127.0.0.1:1", "--time-budget", "2s")
    lost = bigscreen("predict", world.model, world.store, out, *nobody)
    assert lost.exit_code == 2 and len(lost.stderr.splitlines()) == 1, lost.stderr
    assert not out.exists()
