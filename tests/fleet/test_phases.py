"""What the phases of a fit are on a Dask cluster: tasks with names, and one host on each worker."""

import re
from collections import Counter

import numpy as np
import pytest
from distributed import LocalCluster, SchedulerPlugin

import bigscreen
from bigscreen import Tuning

N = 140_000  # three shards

PHASES = {
    "recomputed": {"EntrySum", "ColumnPass"},
    "stored": {"EntrySum", "Block", "ColumnPass"},
    "divide": {"Clustering", "Nearest", "PartFleet", "BlockProduct", "ScoreProgram"},
}
"""The names of the tasks of each fit; cluster/README.md says what the phases are."""


class Graphs(SchedulerPlugin):
    """Counts the graphs that arrive, their tasks by name, and dependencies between tasks."""

    name = "graphs"

    def __init__(self):
        self.graphs, self.tasks, self.dependencies = 0, Counter(), 0

    def update_graph(self, scheduler, *, tasks, **_):
        self.graphs += 1
        self.tasks.update(re.match(r"bigscreen-(host|[A-Za-z]+)-", task).group(1) for task in tasks)
        self.dependencies += sum(len(scheduler.tasks[task].dependencies) for task in tasks)


def machine(kind):
    if kind == "divide":
        return bigscreen.SVC(gamma=0.2, tol=1e-2, tuning=Tuning(start="divide"))
    how = {"n_components": 10, "tol": 1e-2, "random_state": 0}
    return bigscreen.NystroemSVC(**how, tuning=Tuning(features=kind))


@pytest.mark.slow
def test_phases_are_named_tasks_that_arrive_together(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3))
    y = (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(int)
    kind = {"processes": False, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(n_workers=2, **kind) as cluster:
        for name, phases in PHASES.items():
            n = 6000 if name == "divide" else N
            graphs = Graphs()
            cluster.scheduler.add_plugin(graphs)
            work = tmp_path / name / "made"
            machine(name).set_params(scheduler=cluster, work=str(work)).fit(X[:n], y[:n])
            cluster.scheduler.remove_plugin("graphs")
            assert graphs.tasks.keys() == {*phases, "host"}
            # Several items arrive in one graph, and none waits for another (docs/decisions).
            assert graphs.graphs < graphs.tasks.total()
            assert graphs.dependencies == 0
