"""Workers die by SIGKILL in all the wrong moments; not a bit of the result changes."""

import os
import signal
import socket
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from cluster_processes import processes
from fleet_programs import (
    FEATURES,
    Gradient,
    Recorded,
    descend,
    die_once,
    same,
    slow_square,
    square,
)

from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.fleet.tuning import CLUSTER

SHARDS = 9
ROUNDS = 10


@pytest.fixture(scope="module")
def reference():
    with Inline(1) as fleet:
        fleet.start(Gradient(), SHARDS)
        return descend(fleet, ROUNDS)[1]


@pytest.fixture(scope="module")
def nannies():
    """Two workers which are replaced when they die."""
    with local_cluster(2) as fleet:
        yield fleet


@pytest.fixture
def restarting(nannies):
    nannies._client.wait_for_workers(2, timeout=20)
    yield nannies
    nannies.stop()
    await_no_hosts(nannies)


def pid_of(fleet, address):
    return fleet._client.run(os.getpid, workers=[address])[address]


def kill(fleet, which=0):
    """SIGKILL the worker of one of the fleet's hosts."""
    os.kill(pid_of(fleet, fleet._seats.all[which].address), signal.SIGKILL)


def await_no_hosts(fleet):
    """No host is left behind: neither known to the scheduler nor held by a worker."""

    def at_scheduler(dask_scheduler):
        return [key for key in dask_scheduler.tasks if "bigscreen-host" in str(key)]

    def at_worker(dask_worker):
        return list(dask_worker.state.actors)

    deadline = time.monotonic() + 10
    while True:
        left = fleet._client.run_on_scheduler(at_scheduler)
        left += sum(fleet._client.run(at_worker, on_error="ignore").values(), [])
        if not left:
            return
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_death_between_rounds_changes_no_bit(restarting, reference):
    restarting.start(Gradient(), SHARDS)
    record = descend(restarting, ROUNDS, between=lambda n: n == 5 and kill(restarting))[1]
    assert same(record, reference)


@pytest.mark.slow
def test_a_death_within_a_round_changes_no_bit(restarting, reference):
    restarting.start(Gradient(), SHARDS)
    fleet = Slow(restarting, 0.05)
    pid = pid_of(restarting, restarting._seats.all[1].address)
    killer = threading.Timer(0.6, os.kill, (pid, signal.SIGKILL))
    killer.start()
    assert same(descend(fleet, ROUNDS)[1], reference)
    killer.join()


def test_the_death_of_all_workers_changes_no_bit(restarting, reference):
    restarting.start(Gradient(), SHARDS)

    def both(number):
        if number == 5:
            kill(restarting, 0)
            kill(restarting, 1)

    assert same(descend(restarting, ROUNDS, between=both)[1], reference)


def test_a_second_death_while_recovering_changes_no_bit(restarting, reference, tmp_path):
    restarting.start(Recorded(tmp_path), SHARDS)

    def both(number):
        if number == 5:
            (tmp_path / "die").touch()  # the next process that opens a shard dies
            kill(restarting)

    assert same(descend(restarting, ROUNDS, between=both)[1], reference)
    assert not (tmp_path / "die").exists()


def test_the_replacement_gets_its_share(restarting, reference):
    restarting.start(Gradient(), SHARDS)
    before = {seat.address for seat in restarting._seats.all}
    record = []
    w, _ = descend(restarting, 5, between=lambda n: n == 3 and kill(restarting), record=record)
    restarting._client.wait_for_workers(2, timeout=20)
    restarting._looked = 0.0
    descend(restarting, 5, w, record=record)
    assert same(record, reference)
    assert sorted(len(seat.shards) for seat in restarting._seats.all) == [4, 5]
    assert len({seat.address for seat in restarting._seats.all} - before) == 1


def test_a_checkpoint_shortens_the_replay(restarting, reference, tmp_path):
    restarting.start(Recorded(tmp_path), SHARDS)

    def between(number):
        if number == 4:
            restarting.save(tmp_path / "saved", {})
        if number == 7:
            (tmp_path / "log").write_text("")
            kill(restarting)

    assert same(descend(restarting, ROUNDS, between=between)[1], reference)
    log = (tmp_path / "log").read_text().split()
    loaded = {entry.partition(":")[2] for entry in log if entry.startswith("load")}
    assert 4 <= len(loaded) <= 5  # one worker's shards, and no other
    steps = [entry for entry in log if entry.startswith("step")]
    assert len(steps) == len(loaded) * 3 + SHARDS * 3


def test_a_death_while_saving_leaves_a_whole_checkpoint(restarting, reference, tmp_path):
    restarting.start(Recorded(tmp_path), SHARDS)
    record = []
    w, _ = descend(restarting, 5, record=record)
    (tmp_path / "die while saving").touch()
    restarting.save(tmp_path / "saved", {"w": w})
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["1"]
    with Inline(1) as fleet:
        fleet.start(Gradient(), SHARDS)
        meta = fleet.load(tmp_path / "saved")
        other = descend(fleet, 5, meta["w"], record=list(record))[1]
    descend(restarting, 5, w, record=record)
    assert same(record, reference) and same(other, reference)


def test_a_broken_connection_is_not_a_death(restarting, reference):
    restarting.start(Gradient(), SHARDS)
    seats, send, calls = restarting._seats, restarting._seats._send, []

    async def breaking(seat, method, args):
        answer = await send(seat, method, args)
        calls.append(method)
        if len(calls) % 5 == 0:  # the host has done it, the answer is lost
            raise OSError("connection reset")
        return answer

    seats._send = breaking
    hosts = list(seats.all)
    assert same(descend(restarting, ROUNDS)[1], reference)
    assert seats.all == hosts and len(calls) > 2 * ROUNDS


def test_items_survive_a_death(restarting, tmp_path):
    marker = tmp_path / "died"
    items = ((number, str(marker)) for number in range(30))
    assert list(restarting.each(die_once, items)) == [number**2 for number in range(30)]
    assert marker.exists()


@pytest.mark.slow
def test_dead_processes_without_nannies_change_no_bit(reference):
    with processes(tuning=replace(CLUSTER, patience_seconds=3.0)) as fleet:
        fleet.start(Gradient(), SHARDS)

        def between(number):
            if number in (3, 7):
                kill(fleet)
            if number == 5:
                fleet.add()
                fleet._client.wait_for_workers(2, timeout=30)

        assert same(descend(fleet, ROUNDS, between=between)[1], reference)
        assert len(fleet._seats.all) == 1
        fleet.stop()
        await_no_hosts(fleet)

        # the last worker dies while items are handed out, and no other one comes
        fleet.start(Gradient(), SHARDS)
        results = fleet.each(slow_square, range(100))
        assert next(results) == 0
        kill(fleet)
        with pytest.raises(ConnectionError, match="start workers"):
            list(results)
        with pytest.raises(ConnectionError, match="start workers"):
            fleet.round({"w": np.zeros(FEATURES)})

        # one comes after all
        fleet.add()
        fleet._client.wait_for_workers(1, timeout=30)
        fleet.start(Gradient(), SHARDS)
        assert same(descend(fleet, ROUNDS)[1], reference)
        assert list(fleet.each(square, range(4))) == [0, 1, 4, 9]

        # and without its scheduler a fleet says so
        fleet.processes[0].kill()
        with pytest.raises(ConnectionError, match="scheduler is gone"):
            descend(fleet, 100 * ROUNDS)  # some pass before it is noticed
        with pytest.raises(ConnectionError, match="scheduler is gone"):
            list(fleet.each(square, range(4)))
        assert fleet.memory() > 0 and fleet.peak_pss > 0


@pytest.mark.slow
def test_a_scheduler_that_dies_under_items():
    with processes(ports=(0,)) as fleet:
        results = fleet.each(slow_square, range(1000))
        assert next(results) == 0
        fleet.processes[0].kill()
        with pytest.raises(ConnectionError, match="scheduler"):
            list(results)


@pytest.mark.slow
def test_a_new_worker_at_the_old_address(reference):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with processes(ports=(port,)) as fleet:
        fleet.start(Gradient(), SHARDS)

        def between(number):
            if number == 4:
                address = fleet._seats.all[0].address
                fleet.processes[-1].kill()
                fleet.processes[-1].wait()
                fleet.add(port)
                deadline = time.monotonic() + 30
                while fleet._seats.all[0].alive or not fleet._client.nthreads():
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                assert list(fleet._client.nthreads()) == [address]

        assert same(descend(fleet, ROUNDS, between=between)[1], reference)


class Slow:
    """A fleet whose steps take their time."""

    def __init__(self, fleet, seconds):
        self.fleet, self.seconds = fleet, seconds

    def round(self, message):
        return self.fleet.round(message | {"sleep": self.seconds})
