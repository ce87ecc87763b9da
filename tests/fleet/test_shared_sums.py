"""Hosts add up large totals themselves, even if some of them die or are cut off."""

import os
import signal
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from fleet_programs import FEATURES, Wide

from bigscreen.fleet.connecting import connect
from bigscreen.fleet.hosts import Seats
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.fleet.tuning import CLUSTER

SHARDS, ROUNDS = 7, 6
SHARING = replace(CLUSTER, min_sharing_machines=1)


def rounds(fleet):
    """Run rounds; returns the answer of each."""
    fleet.start(Wide(), SHARDS)
    found = []
    for number in range(ROUNDS):
        stack, totals = fleet.round({"w": np.linspace(-1, 1, FEATURES) * number})
        found.append((stack.copy(), {name: total.copy() for name, total in totals.items()}))
    fleet.stop()
    return found


def same(found, expected):
    assert len(found) == len(expected)
    for (stack, totals), (other, others) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(stack, other)
        assert totals.keys() == others.keys()
        for name, total in totals.items():
            assert total.shape == others[name].shape
            np.testing.assert_array_equal(total, others[name])


@pytest.fixture(scope="module")
def expected():
    with Inline(2) as fleet:
        return rounds(fleet)


@pytest.fixture(scope="module")
def three():
    """Three workers, which are replaced when they die."""
    with local_cluster(3, tuning=SHARING) as fleet:
        yield fleet


@pytest.fixture
def asked(monkeypatch):
    """Counts the calls of hosts by method; ``before`` is called before each."""
    ask_each, counted = Seats.ask_each, Counter()

    def spy(self, calls, method):
        counted[method] += len(calls)
        if spy.before is not None:
            spy.before(method, counted[method], [seat for seat, _ in calls])
        return ask_each(self, calls, method)

    spy.before = None
    monkeypatch.setattr(Seats, "ask_each", spy)
    return spy, counted


@pytest.mark.slow
def test_on_one_machine_each_host_sends_its_own_totals(three, asked, expected):
    three._client.wait_for_workers(3, timeout=60)
    with connect(three.address, security=three.security) as fleet:
        same(rounds(fleet), expected)
    assert asked[1]["round"] == ROUNDS * 3 and asked[1]["add_share"] == 0


def test_three_hosts_add_up_a_part_each(three, asked, expected):
    three._client.wait_for_workers(3, timeout=60)
    same(rounds(three), expected)
    # 4 of the 6 rounds have large totals
    assert asked[1]["add_share"] == 4 * 3 and asked[1]["share"] == 0


@pytest.mark.parametrize("victims", [1, 2])
def test_totals_survive_the_death_of_a_host_that_kept_them(three, asked, expected, victims):
    three._client.wait_for_workers(3, timeout=60)
    spy, counted = asked

    def kill(method, count, seats):
        if method == "add_share" and count == 6:
            for seat in seats[:victims]:
                pid = three._client.run(os.getpid, workers=[seat.address])[seat.address]
                os.kill(pid, signal.SIGKILL)

    spy.before = kill
    same(rounds(three), expected)
    assert counted["adopt"] > 3


def cut_off(dask_worker, others):
    """Make the other workers unreachable for a worker."""
    rpc = dask_worker.rpc

    class Broken:
        def __call__(self, address):
            if address in others:
                raise OSError("no route to host")
            return rpc(address)

        def __getattr__(self, name):
            return getattr(rpc, name)

    dask_worker.rpc = Broken()


@pytest.mark.slow
def test_workers_that_do_not_reach_each_other_send_their_totals(asked, expected):
    with local_cluster(3, tuning=SHARING) as fleet:
        one, *others = sorted(fleet._workers.listed())
        fleet._client.run(cut_off, others=others, workers=[one])
        same(rounds(fleet), expected)
        assert asked[1]["share"] == 4 * 3  # each sent its own totals: no worker was given up
        assert len(fleet._workers.listed()) == 3
