"""`dask.annotate` around a fit chooses its workers, and the priority of its tasks."""

import dask
import numpy as np
import pytest
from distributed import Scheduler, SchedulerPlugin, SpecCluster, Worker

import bigscreen
from bigscreen.errors import InputError

ROWS = np.random.default_rng(0).normal(size=(600, 4))
LABELS = (ROWS[:, 0] > 0).astype(int)


class Seen(SchedulerPlugin):
    """Notes the priority of each task, and the workers on which tasks ended."""

    name = "seen"

    def __init__(self):
        self.priorities, self.workers = [], set()

    def update_graph(self, scheduler, *, annotations, **_):
        own = annotations.get("priority", {}).items()
        self.priorities += [priority for key, priority in own if str(key).startswith("bigscreen")]

    def transition(self, key, start, finish, *, worker=None, **_):
        if finish == "memory" and str(key).startswith("bigscreen"):
            self.workers.add(worker)


@pytest.fixture
def cluster():
    """Two workers in this process, of which the one named "rich" has a resource."""
    kind = {"nthreads": 1, "dashboard": False}
    workers = {
        "plain": {"cls": Worker, "options": kind},
        "rich": {"cls": Worker, "options": {**kind, "resources": {"CARD": 1}}},
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard": False, "port": 0}}
    with SpecCluster(workers=workers, scheduler=scheduler) as cluster:
        yield cluster


def fit(cluster, folder):
    machine = bigscreen.NystroemSVC(n_components=20, random_state=0)
    return machine.set_params(scheduler=cluster, work=str(folder)).fit(ROWS, LABELS)


def seen_of(cluster):
    seen = Seen()
    cluster.scheduler.add_plugin(seen)
    return seen


@pytest.mark.parametrize(
    "chosen", [{"workers": ["rich"]}, {"workers": "rich"}, {"resources": {"CARD": 1}}]
)
def test_a_fit_uses_the_workers_that_are_allowed(cluster, tmp_path, chosen):
    seen = seen_of(cluster)
    with dask.annotate(priority=7, **chosen):
        found = fit(cluster, tmp_path)
    assert seen.workers == {cluster.workers["rich"].address}
    assert set(seen.priorities) == {7}
    everywhere = fit(cluster, tmp_path)
    assert seen.workers == {worker.address for worker in cluster.workers.values()}
    assert np.array_equal(found.coef_, everywhere.coef_)


def test_annotations_that_allow_no_worker_are_refused(cluster, tmp_path):
    of = r"allowed by dask.annotate\(resources={'CARD': 2}\); there are "
    with pytest.raises(InputError, match=of), dask.annotate(resources={"CARD": 2}):
        fit(cluster, tmp_path)
