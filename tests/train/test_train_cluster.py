"""The whole training on worker processes: the same bits for any number of them, deaths included."""

import os
import signal

import contracts
import numpy as np
import pytest

from bigscreen.data.layout import Layout
from bigscreen.data.writer import DatasetWriter
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.train.run import train


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of several shards that needs a handful of passes."""
    data = contracts.rows(3, n=3000, d=6)
    return stored(tmp_path_factory.mktemp("cluster"), data.X(0, 3000), data.y(0, 3000), data.labels)


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """A store of rows with targets."""
    X = contracts.rows(4, n=1500, d=4).X(0, 1500)
    y = np.sin(X[:, 0]) + 0.2 * np.random.default_rng(0).normal(size=1500)
    return stored(tmp_path_factory.mktemp("cluster"), X, y, None)


def stored(folder, X, y, labels):
    writer = DatasetWriter(
        folder / "rows.store",
        Layout.of(
            n_rows=len(X),
            n_features=X.shape[1],
            sparse=False,
            labels=labels,
            weights=False,
            shard_rows=256,
            chunk_rows=256,
        ),
        None,
    )
    for k in range(writer.n_chunks):
        a, b = writer.chunk(k)
        writer.write(k, X[a:b], y[a:b])
    return writer.finish()


def fitted(store, fleet, work, report=None, **how):
    model = train(store, TrainOptions(gamma=0.2, tol=1e-4, work=work, **how), fleet, report)
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


@pytest.mark.slow
@pytest.mark.parametrize("features", ["recomputed", "stored"])
def test_one_three_and_a_killed_worker_change_no_bit(store, tmp_path, features):
    how = {"landmarks": 60, "C": 5.0, "tuning": Tuning(features=features), "solver": "newton"}
    with Inline(2) as fleet:
        # Stored features live on disk on a cluster: have them there too.
        inline = fitted(store, fleet, tmp_path / "inline", **how)
    assert inline[2] > 3
    for workers in (1, 3):
        with local_cluster(workers) as fleet:
            assert fitted(store, fleet, tmp_path / f"work{workers}", **how) == inline
            if workers == 3:
                killer = Killer(fleet)
                assert fitted(store, fleet, tmp_path / "killed", killer, **how) == inline
                assert killer.killed
    assert np.frombuffer(inline[0]).any()


@pytest.mark.slow
def test_all_problems_have_the_same_bits_after_a_death(targets, store, tmp_path):
    """Targets, tubes and totals travel as labels do: exact and on features, a worker killed."""
    nystrom, exact = {"landmarks": 40}, {"exact": True, "solver": "block"}
    cases = [
        (targets, {"problem": "svr", "intercept": "true", **exact}),
        (targets, {"problem": "svr", **nystrom}),
        (targets, {"problem": "one-class", "nu": 0.1, **nystrom}),
        (store, {"problem": "nu-svc", "nu": 0.3, "intercept": "true", **exact}),
    ]
    with Inline(2) as fleet:
        inline = [
            fitted(data, fleet, tmp_path / f"inline{k}", **how)
            for k, (data, how) in enumerate(cases)
        ]
    assert min(passes for _, _, passes in inline) > 3
    with local_cluster(2) as fleet:
        for k, (data, how) in enumerate(cases):
            # One death is enough to see a coupling's and a tube's state come back.
            killer = Killer(fleet) if k == 0 else None
            assert fitted(data, fleet, tmp_path / f"work{k}", killer, **how) == inline[k], how
            assert killer is None or killer.killed
