"""The fleet: rounds, checkpoints and items give the same on threads and on processes."""

import gc
import json
import os
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster
from fleet_programs import (
    FEATURES,
    Echo,
    Failing,
    Gradient,
    Odd,
    blas_threads,
    descend,
    environment,
    fails_on_five,
    same,
    slow_square,
    square,
)
from threadpoolctl import threadpool_info, threadpool_limits

from bigscreen.errors import InputError
from bigscreen.fleet import blas, shards
from bigscreen.fleet import inline as inline_fleet
from bigscreen.fleet.cluster import Cluster
from bigscreen.fleet.connecting import connect
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.fleet.tuning import CLUSTER
from bigscreen.fleet.worker import WORKER_ENVIRONMENT

SHARDS = 13
ROUNDS = 12


@pytest.fixture(scope="module")
def reference():
    """The result that one thread computes."""
    with Inline(1) as fleet:
        fleet.start(Gradient(), SHARDS)
        return descend(fleet, ROUNDS)


@pytest.fixture(scope="module")
def cluster():
    with local_cluster(2) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def inline():
    with Inline(3) as fleet:
        yield fleet


@pytest.fixture(params=["inline", "cluster"])
def fleet(request):
    fleet = request.getfixturevalue(request.param)
    yield fleet
    fleet.stop()


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_do_not_change_a_bit(threads, reference):
    with Inline(threads) as fleet:
        assert fleet.workers == threads
        fleet.start(Gradient(), SHARDS)
        assert same(descend(fleet, ROUNDS)[1], reference[1])


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_do_not_change_a_bit(workers, reference):
    with local_cluster(workers) as fleet:
        assert fleet.workers == workers
        fleet.start(Gradient(), SHARDS)
        assert same(descend(fleet, ROUNDS)[1], reference[1])


def test_two_workers_and_a_second_program(cluster, reference):
    for _ in range(2):
        cluster.start(Gradient(), SHARDS)
        w, record = descend(cluster, ROUNDS)
        assert same(record, reference[1])
        assert w.tobytes() == reference[0].tobytes()
    cluster.stop()


def test_more_workers_than_shards(cluster):
    cluster.start(Gradient(), 1)
    stack, totals = cluster.round({"w": np.zeros(FEATURES)})
    assert stack.shape == (1, 2)
    assert totals["steps"].tolist() == [1]
    cluster.stop()


def test_a_client_of_the_caller_and_workers_with_threads(reference):
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=3, processes=False, dashboard_address=":0"
        ) as threads,
        Client(threads, set_as_default=False) as client,
    ):
        with Cluster(client) as fleet:
            assert fleet.workers == 3
            fleet.start(Gradient(), SHARDS)
            assert same(descend(fleet, ROUNDS)[1], reference[1])
            assert list(fleet.each(square, range(5))) == [0, 1, 4, 9, 16]
            # the worker is this process: its memory counts once
            assert fleet.memory() < 1.5 * psutil.Process().memory_info().rss
        assert client.status == "running"


def test_a_message_arrives_as_it_was(fleet):
    fleet.start(Echo(), 3)
    plain = np.arange(12.0).reshape(3, 4)
    for array in (plain, np.asfortranarray(plain), plain[:, ::2], plain.astype(">f8")):
        stack, totals = fleet.round({"array": array})
        value = (array * np.arange(array.size).reshape(array.shape)).sum()
        fortran = float(array.flags.f_contiguous)
        assert stack.tolist() == [[value, 1.0, 1.0, fortran]] * 3
        assert totals == {}


def test_a_sender_may_reuse_its_array(cluster, reference):
    # the log must hold what was sent, not what the array became: a restart replays it
    cluster.start(Gradient(), SHARDS)
    w = np.zeros(FEATURES)
    first, totals = cluster.round({"w": w})
    w[:] = np.nan
    address = cluster._seats.all[0].address
    cluster._client.restart_workers([address])
    w -= np.nan_to_num(w)
    w[:] = -1e-4 * totals["gradient"] / 2.0**30
    second = cluster.round({"w": w})
    assert same([(first, totals), second], reference[1][:2])
    cluster.stop()


def test_an_error_in_a_step_comes_back(fleet):
    fleet.start(Failing(), 6)
    fleet.round({"w": np.zeros(FEATURES)})
    with pytest.raises(OSError, match="disk of shard 4") as caught:
        fleet.round({"w": np.zeros(FEATURES), "fail": 4})
    assert caught.traceback[-1].name == "step"
    assert caught.traceback[-1].path.name == "fleet_programs.py"
    with pytest.raises(RuntimeError, match="failed half-way"):
        fleet.round({"w": np.zeros(FEATURES)})
    with pytest.raises(RuntimeError, match="failed half-way"):
        fleet.save(Path("nowhere"), {})
    fleet.start(Failing(), 6)
    assert fleet.round({"w": np.zeros(FEATURES)})[1]["steps"].tolist() == [6]


def test_totals_are_integers_and_vectors_have_one_length(fleet):
    for way, error in (("float", TypeError), ("length", ValueError)):
        fleet.start(Odd(), 3)
        with pytest.raises(error):
            fleet.round({"w": np.zeros(FEATURES), "way": way})


def test_nothing_runs_before_start(fleet, tmp_path):
    for call in (
        lambda: fleet.round({}),
        lambda: fleet.save(tmp_path, {}),
        lambda: fleet.load(tmp_path),
    ):
        with pytest.raises(RuntimeError, match="start"):
            call()
    with pytest.raises(ValueError, match="at least 1 shard"):
        fleet.start(Gradient(), 0)


def test_blas_has_one_thread_in_rounds_and_items(fleet):
    before = [library["num_threads"] for library in threadpool_info()]
    assert set(fleet.each(blas_threads, range(6))) == {1}
    assert [library["num_threads"] for library in threadpool_info()] == before


def test_blas_has_what_all_who_hold_it_ask_for(inline):
    """A generator that is never closed ends at any time: within a fit, or long after it."""
    before = [library["num_threads"] for library in threadpool_info()]
    first, second = inline.each(square, range(9)), inline.each(square, range(9))
    next(first), next(second)
    with blas.blas_threads(1):
        first.close()
        second.close()
        assert blas_threads(0) == 1
        first = inline.each(square, range(9))
        next(first)
        with blas.blas_threads(64):
            assert blas_threads(0) == 1
    assert blas_threads(0) == 1
    first.close()
    assert [library["num_threads"] for library in threadpool_info()] == before
    with blas.blas_threads(64):  # at most
        assert [library["num_threads"] for library in threadpool_info()] == before


def test_blas_is_held_whichever_thread_has_set_it_before():
    """threadpoolctl obeys only the thread that set a limit first, as long as it lives."""
    done, going = threading.Event(), threading.Event()

    def other():
        threadpool_limits(2, "blas")
        going.set()
        done.wait()

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert going.wait(60)
        before = blas_threads(0)
        with blas.blas_threads(1):
            assert blas_threads(0) == 1
        assert blas_threads(0) == before
    finally:
        done.set()
        thread.join()


def test_fits_in_threads_leave_blas_as_it_was():
    before = [library["num_threads"] for library in threadpool_info()]
    barrier, seen = threading.Barrier(4), []

    def hold(turn):
        barrier.wait()
        for _ in range(50):
            with blas.blas_threads(1 + turn % 2):
                seen.append(turn % 2 or blas_threads(0) == 1)

    threads = [threading.Thread(target=hold, args=(turn,)) for turn in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(seen) == 200 and all(seen)
    assert [library["num_threads"] for library in threadpool_info()] == before


# ---------------------------------------------------------------- checkpoints


def test_a_checkpoint_is_read_by_any_fleet(tmp_path, cluster, reference):
    half = ROUNDS // 2
    with Inline(2) as fleet:
        fleet.start(Gradient(), SHARDS)
        w, record = descend(fleet, half)
        fleet.save(tmp_path, {"w": w, "round": half, "name": "a9a"})
    cluster.start(Gradient(), SHARDS)
    meta = cluster.load(tmp_path)
    assert meta["w"].tobytes() == w.tobytes()
    assert (meta["round"], meta["name"]) == (half, "a9a")
    w, record = descend(cluster, 2, meta["w"], record=record)
    cluster.save(tmp_path, {"w": w})
    cluster.stop()
    with Inline(1) as fleet:
        fleet.start(Gradient(), SHARDS)
        descend(fleet, ROUNDS - half - 2, fleet.load(tmp_path)["w"], record=record)
    assert same(record, reference[1])


def test_two_checkpoints_stay(fleet, tmp_path):
    fleet.start(Gradient(), 3)
    assert fleet.load(tmp_path / "absent") is None
    (tmp_path / "9.tmp").mkdir()
    for number in range(4):
        descend(fleet, 1)
        fleet.save(tmp_path, {"number": number})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4"]
    assert fleet.load(tmp_path) == {"number": 3}


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "description", "meta"])
def test_a_damaged_checkpoint_is_passed_by(fleet, tmp_path, damage):
    fleet.start(Gradient(), 3)
    w, _first = descend(fleet, 3)
    fleet.save(tmp_path, {"w": w})
    expected = descend(fleet, 3, w)
    fleet.save(tmp_path, {"w": expected[0]})
    victim = tmp_path / "2" / "shard-000001.npz"
    if damage == "flip":
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    elif damage == "cut":
        victim.write_bytes(victim.read_bytes()[:-7])
    elif damage == "missing":
        victim.unlink()
    elif damage == "description":
        description = tmp_path / "2" / "checkpoint.json"
        record = json.loads(description.read_text())
        record["body"]["shards"].pop()
        description.write_text(json.dumps(record))
    else:
        (tmp_path / "2" / "meta.npz").unlink()
    with pytest.warns(UserWarning, match="using the checkpoint before it"):
        meta = fleet.load(tmp_path)
    assert meta["w"].tobytes() == w.tobytes()
    assert same(descend(fleet, 3, w)[1], expected[1])


def test_only_damaged_checkpoints_are_none(fleet, tmp_path):
    fleet.start(Gradient(), 3)
    expected = descend(fleet, 3)
    fleet.save(tmp_path, {})
    (tmp_path / "1" / "shard-000002.npz").write_bytes(b"")
    with pytest.warns(UserWarning, match="shard-000002"):
        assert fleet.load(tmp_path) is None
    assert same(descend(fleet, 3)[1], expected[1])


def test_a_checkpoint_of_other_data_is_refused(fleet, tmp_path):
    fleet.start(Gradient(), 3)
    fleet.save(tmp_path, {})
    fleet.start(Gradient(), 4)
    with pytest.raises(ValueError, match="has 3 shards and the data 4"):
        fleet.load(tmp_path)
    fleet.round({"w": np.zeros(FEATURES)})


def test_a_save_that_fails_leaves_nothing(fleet, tmp_path):
    fleet.start(Odd(), 3)
    with pytest.raises(TypeError):
        fleet.save(tmp_path / "new", {"object": object()})
    assert not (tmp_path / "new").exists()
    fleet.start(Failing(), 3)
    fleet.save(tmp_path, {})
    fleet.round({"w": np.zeros(FEATURES), "unsavable": True})
    with pytest.raises(TypeError, match="Python objects"):
        fleet.save(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


# ---------------------------------------------------------------- items


def test_items_come_in_order_and_bounded(fleet):
    taken = []

    def items():
        for number in range(12):
            taken.append(number)
            yield number

    results = fleet.each(slow_square, items(), in_flight=3)
    for number, result in enumerate(results):
        assert result == number * number
        assert len(taken) - number <= 3
    assert len(taken) == 12
    assert list(fleet.each(square, [])) == []
    with pytest.raises(ValueError, match="in_flight"):
        next(fleet.each(square, [1], in_flight=0))


def test_an_error_in_an_item_comes_back(fleet):
    results = fleet.each(fails_on_five, range(40))
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ZeroDivisionError, match="five"):
        next(results)
    assert list(fleet.each(square, range(3))) == [0, 1, 4]


def test_items_may_be_left(fleet):
    results = fleet.each(slow_square, range(1000))
    assert next(results) == 0
    results.close()
    assert list(fleet.each(square, range(3))) == [0, 1, 4]


def test_a_large_function_travels_once_to_each_worker(cluster):
    ballast = np.arange(400_000.0)
    sent = []
    submit = cluster._client.map
    cluster._client.map = lambda *a, **k: sent.append((len(a[2]), len(repr(a)))) or submit(*a, **k)
    try:
        results = list(cluster.each(lambda item: ballast[item] + 1, range(20)))
    finally:
        cluster._client.map = submit
    assert results == [item + 1.0 for item in range(20)]
    assert sum(items for items, _ in sent) == 20 and max(size for _, size in sent) < 1000


def test_large_items_are_no_reason_to_warn(cluster):
    items = [np.full(2**20, float(k)) for k in range(3)]  # 24 MB together
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(cluster.each(np.max, items)) == [0.0, 1.0, 2.0]


def test_results_that_are_ready_come_together(cluster):
    """One message brings small results that are ready; large ones come one by one."""
    fetched = []
    gather = cluster._client.gather
    cluster._client.gather = lambda futures, **k: (
        fetched.append(len(futures)) or gather(futures, **k)
    )
    small = [2.0] * 40
    large = [np.zeros(CLUSTER.max_gather_bytes // 16)] * 6
    try:
        for item in cluster.each(float, small, in_flight=20):
            time.sleep(0.02)  # others end meanwhile
            assert item == 2.0
        assert sum(fetched) == 40 and max(fetched) > 1
        fetched.clear()
        for item in cluster.each(np.asarray, large, in_flight=6):
            time.sleep(0.1)
            assert np.array_equal(item, large[0])
        assert sum(fetched) == 6 and max(fetched) <= 2
    finally:
        cluster._client.gather = gather


def test_items_use_every_worker(cluster):
    pids = {pid for _, pid in cluster.each(environment, [[]] * 40)}
    assert len(pids) == cluster.workers


# ---------------------------------------------------------------- processes


def test_workers_are_set_up(cluster):
    names = list(WORKER_ENVIRONMENT)
    for found, pid in cluster.each(environment, [names] * 8):
        assert pid != os.getpid()
        assert found.keys() == WORKER_ENVIRONMENT.keys() and all(found.values())
        assert found["MALLOC_TRIM_THRESHOLD_"] == str(256 * 2**20)


def test_memory_counts_every_process(cluster):
    own = psutil.Process().memory_info().rss
    total = cluster.memory()
    assert total > 0 and cluster.peak_pss >= total
    with Inline(1) as fleet:
        assert 0 < fleet.memory() <= 1.5 * own
        before = fleet.peak_pss
        ballast = np.ones(30_000_000)
        assert fleet.memory() - before > 0.9 * ballast.nbytes
        del ballast
    assert fleet.peak_pss - before > 0.9 * 240e6
    assert total > before


def test_closing_leaves_nothing():
    def children():
        return {
            process.pid
            for process in psutil.Process().children(recursive=True)
            if "resource_tracker" not in " ".join(process.cmdline())
        }

    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "OPENBLAS_NUM_THREADS")
    gc.collect()  # what other tests left is not on trial here
    before, threads = children(), set(threading.enumerate())
    environ = [os.environ.get(name) for name in names]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        fleet = local_cluster(2)
        assert len(children() - before) == 2
        fleet.start(Gradient(), 4)
        fleet.round({"w": np.zeros(FEATURES)})
        unfinished = fleet.each(slow_square, range(100))
        next(unfinished)
        fleet.close()
        fleet.close()
        assert fleet.peak_pss > 0
        unfinished.close()
        with Inline(2) as other:
            other.start(Gradient(), 4)
            other.round({"w": np.zeros(FEATURES)})
        del fleet, other, unfinished
        gc.collect()
    assert not [w.message for w in caught if issubclass(w.category, ResourceWarning)]
    assert children() == before
    assert [os.environ.get(name) for name in names] == environ
    deadline = time.monotonic() + 5
    while left := {t for t in threading.enumerate() if t.name.startswith("bigscreen")} - threads:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_no_scheduler_is_one_sentence():
    with pytest.raises(InputError, match="no Dask scheduler answers at tcp://127.0.0.1:9"):
        connect("tcp://127.0.0.1:9", timeout=0.5)
    with pytest.raises(InputError, match="nonsense://x"):
        connect("nonsense://x", timeout=0.5)
    with pytest.raises(InputError, match="at least 1 worker"):
        local_cluster(0)
    with pytest.raises(ValueError, match="at least 1 thread"):
        Inline(0)


def test_pages_are_counted_again_where_memory_has_grown():
    resident, asked = [300], []

    def measure():
        asked.append(resident[0])
        return resident[0] - 100

    watch = shards._Watch(seconds=0.001, resident=lambda: resident[0], measure=measure)
    sampler = shards.Sampler(watch)
    for size in (300, 250, 280, 500, 400):
        resident[0] = size
        deadline = time.monotonic() + 10
        while sampler.now != size - 100:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert sampler.peak == 400 and set(asked) == {300, 500}


def test_a_fleet_on_which_nothing_ran_gives_memory_back_at_its_end_alone(monkeypatch):
    """Allocating memory again takes longer than a small fit, and many fits share a fleet."""
    times = []
    monkeypatch.setattr(inline_fleet, "return_memory", lambda: times.append(1))
    with Inline(1) as fleet:
        fleet.stop()
        fleet.stop()
        assert not times
        fleet.start(Gradient(), 2)
        fleet.stop()
        assert len(times) == 1
    assert len(times) == 2
