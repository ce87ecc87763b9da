"""The block solver on worker processes: any number of them, and deaths, change no bit."""

import os
import signal

import contracts
import numpy as np
import pytest
from block_world import quiet, same_end, solved, steady, world

from bigscreen.data.layout import Layout
from bigscreen.data.writer import DatasetWriter
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.screening.dynamic import make_rule
from bigscreen.solvers.block.solver import Block

N = 1500
# Three rounds in four need columns again that there is no room for.
SOLVER = Block(size=64, cache=4 * N * 200)
CASES = [("none", "none"), ("true", "gap"), ("constant", "f-safe")]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return {kind: written(tmp_path_factory.mktemp("cluster"), kind) for kind in (False, True)}


def written(folder, sparse_rows):
    data = contracts.rows(3, N, 8, 1.0, sparse_rows)
    writer = DatasetWriter(
        folder / "rows.store",
        Layout.of(
            n_rows=N,
            n_features=data.n_features,
            sparse=sparse_rows,
            labels=data.labels,
            weights=True,
            shard_rows=256,
            chunk_rows=128,
        ),
        None,
    )
    for k in range(writer.n_chunks):
        a, b = writer.chunk(k)
        writer.write(k, data.X(a, b), data.y(a, b), data.weights(a, b))
    return writer.finish()


def ended(store, fleet, intercept, rule, **how):
    w = world(store, "rbf", 3.0, intercept)
    return solved(w, fleet, SOLVER, make_rule(rule, 0.03), 1e-5, certify="float32", **how)


@pytest.fixture(scope="module")
def inline(stores):
    found = {}
    for kind, store in stores.items():
        with Inline(2) as fleet, quiet():
            ends = {case: ended(store, fleet, *case) for case in CASES}
        for end in ends.values():
            assert end.certificate.relative_gap <= 1e-5 and len(end.history) > 8
            assert np.count_nonzero(end.point.alpha) > 100
        found[kind] = ends
    return found


class Killer:
    """Kills one worker with SIGKILL at a pass."""

    def __init__(self, fleet, at):
        self.fleet, self.at, self.killed = fleet, at, False

    def __call__(self, event):
        if event["event"] == "pass" and event["pass"] == self.at and not self.killed:
            pids = self.fleet.each(process_id, range(8))
            os.kill(next(iter(set(pids))), signal.SIGKILL)
            self.killed = True


def process_id(_):
    return os.getpid()


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "sparse_rows"), [(2, True), (3, False)])
def test_any_number_of_workers_and_a_death(workers, sparse_rows, stores, inline):
    store, inline = stores[sparse_rows], inline[sparse_rows]
    with local_cluster(workers) as fleet, quiet():
        for case in CASES:
            same_end(ended(store, fleet, *case), inline[case])
        killer = Killer(fleet, 5)
        same_end(ended(store, fleet, *CASES[1], report=killer), inline[CASES[1]])
        assert killer.killed


@pytest.mark.slow
@steady
def test_a_death_after_a_checkpoint(stores, inline, tmp_path, checkpoint_every):
    """The shards of the dead come back from the checkpoint, without their kernel columns."""
    store, inline = stores[True], inline[True]
    checkpoint_every(-1.0)
    with local_cluster(2) as fleet:
        for case in CASES[2:]:
            killer = Killer(fleet, len(inline[case].history) // 2)
            folder = tmp_path / case[1]
            same_end(ended(store, fleet, *case, report=killer, folder=folder), inline[case])
            assert killer.killed and list(folder.iterdir())
