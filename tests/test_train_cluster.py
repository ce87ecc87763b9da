"""The whole training on worker processes: the same bits for any number of them, deaths included."""

import os
import signal

import contracts
import numpy as np
import pytest

from bigscreen.fleet import Inline
from bigscreen.fleet_start import local_cluster
from bigscreen.store import DatasetWriter
from bigscreen.train import TrainOptions, train


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of several shards that needs a handful of passes."""
    data = contracts.rows(3, n=3000, d=6)
    writer = DatasetWriter(
        tmp_path_factory.mktemp("cluster") / "rows.store",
        n_rows=data.n_rows,
        n_features=data.n_features,
        sparse=False,
        labels=data.labels,
        weights=False,
        preparation=None,
        shard_rows=256,
        chunk_rows=256,
    )
    for k in range(writer.n_chunks):
        a, b = writer.chunk(k)
        writer.write(k, data.X(a, b), data.y(a, b))
    return writer.finish()


def fitted(store, fleet, work, features, report=None):
    options = TrainOptions(
        landmarks=60, gamma=0.2, C=5.0, tol=1e-4, features=features, solver="newton", work=work
    )
    model = train(store, options, fleet, report)
    assert model.provenance["certificates"][0]["relative_gap"] <= 1e-4
    return model.coef.tobytes(), model.intercept.tobytes(), len(model.provenance["history"])


class Killer:
    """Kills one worker with SIGKILL when the third pass is reported."""

    def __init__(self, fleet):
        self.fleet, self.killed = fleet, False

    def __call__(self, event):
        if event["event"] == "pass" and event["pass"] == 3 and not self.killed:
            pids = self.fleet.each(process_id, range(8))
            os.kill(next(iter(set(pids))), signal.SIGKILL)
            self.killed = True


def process_id(_):
    return os.getpid()


@pytest.mark.parametrize("features", ["recomputed", "stored"])
def test_one_three_and_a_killed_worker_change_no_bit(store, tmp_path, features):
    with Inline(2) as fleet:
        # Stored features live on disk on a cluster: have them there too.
        inline = fitted(store, fleet, tmp_path / "inline", features)
    assert inline[2] > 3
    for workers in (1, 3):
        with local_cluster(workers) as fleet:
            assert fitted(store, fleet, tmp_path / f"work{workers}", features) == inline
            if workers == 3:
                killer = Killer(fleet)
                assert fitted(store, fleet, tmp_path / "killed", features, killer) == inline
                assert killer.killed
    assert np.frombuffer(inline[0]).any()
