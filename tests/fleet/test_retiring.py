"""Workers can leave and join during a fit: no bit of the result changes, and shards follow."""

import logging
import signal
import time
from dataclasses import replace

import pytest
from cluster_processes import processes
from distributed import Client, LocalCluster
from fleet_programs import Gradient, descend, same

from bigscreen.fleet.connecting import connect
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.tuning import CLUSTER

SHARDS = 9
ROUNDS = 10
LOOKING_OFTEN = replace(CLUSTER, look_seconds=0.1)


@pytest.fixture(scope="module")
def reference():
    with Inline(1) as fleet:
        fleet.start(Gradient(), SHARDS)
        return descend(fleet, ROUNDS)[1]


@pytest.fixture
def cluster():
    """Two workers in one process each, a client of the user's, and a fleet of another client."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
        connect(cluster, tuning=LOOKING_OFTEN) as fleet,
    ):
        client.wait_for_workers(2, timeout=30)
        fleet.start(Gradient(), SHARDS)
        yield cluster, client, fleet


def wait_until(done, what):
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.slow
def test_a_worker_that_is_retired_hands_its_shards_over(cluster, reference, caplog):
    _, client, fleet = cluster
    leaving = sorted(client.nthreads())[0]
    caplog.set_level(logging.INFO, "bigscreen.fleet")
    record, w = [], None
    for n in range(ROUNDS):
        if n == 3:
            assert client.retire_workers([leaving]) == {}  # Dask alone would not
        w, _ = descend(fleet, 1, w, record=record)
        time.sleep(0.2)
    assert same(record, reference)
    wait_until(lambda: leaving not in client.nthreads(), "the worker has not left")
    assert any("leaves: its" in line and "were handed over" in line for line in caplog.messages)
    assert not any("is lost" in line for line in caplog.messages)


@pytest.mark.slow
def test_the_last_worker_stays_until_another_comes(cluster, reference):
    owner, client, fleet = cluster
    record = []
    workers = sorted(client.nthreads())
    w, _ = descend(fleet, 2, record=record)
    client.retire_workers(workers)
    w, _ = descend(fleet, 2, w, record=record)
    time.sleep(0.3)
    w, _ = descend(fleet, 2, w, record=record)
    assert sum(len(seat.shards) for seat in fleet._seats.all) == SHARDS
    owner.scale(3)
    wait_until(lambda: set(client.nthreads()) - set(workers), "no new worker")
    for _ in range(4):
        w, _ = descend(fleet, 1, w, record=record)
        time.sleep(0.3)
    assert same(record, reference)
    wait_until(lambda: set(client.nthreads()).isdisjoint(workers), "the old workers stay")


@pytest.mark.slow
def test_an_adaptive_cluster_keeps_workers_with_shards_and_shrinks_afterwards(reference):
    with (
        LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        cluster.adapt(minimum=1, maximum=3, interval="100ms", wait_count=2)
        with connect(cluster, tuning=LOOKING_OFTEN) as fleet:
            fleet.start(Gradient(), SHARDS)
            futures = client.map(time.sleep, [0.5] * 20, pure=False)
            wait_until(lambda: len(client.nthreads()) > 1, "the cluster does not grow")
            record = []
            w, _ = descend(fleet, 2, record=record)
            wait_until(lambda: all(future.done() for future in futures), "tasks do not end")
            w, _ = descend(fleet, 2, w, record=record)
            shared = {seat.address for seat in fleet._seats.all}
            assert len(shared) > 1
            time.sleep(1.0)  # the cluster would shrink now
            assert shared <= set(client.nthreads())
            descend(fleet, ROUNDS - 4, w, record=record)
            assert same(record, reference)
        wait_until(lambda: len(client.nthreads()) == 1, "the cluster does not shrink")


@pytest.mark.slow
def test_a_worker_that_is_terminated_is_replaced_by_replay(reference, caplog):
    with processes(tuning=LOOKING_OFTEN) as fleet:
        fleet.start(Gradient(), SHARDS)

        def between(number):
            if number == 4:
                fleet.processes[-1].send_signal(signal.SIGTERM)
                fleet.processes[-1].wait(timeout=30)

        assert same(descend(fleet, ROUNDS, between=between)[1], reference)
    assert any("is lost: its" in line for line in caplog.messages)
