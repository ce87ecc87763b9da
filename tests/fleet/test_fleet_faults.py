"""Faults of a cluster other than deaths: workers that freeze, differ, or miss files."""

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import distributed
import numpy as np
import psutil
import pytest
from cluster_processes import processes
from distributed import Client
from distributed.comm.core import CommClosedError
from fleet_programs import FEATURES, Gradient, Murderous, descend, kill_self, same, slow_square

import bigscreen
from bigscreen.errors import InputError
from bigscreen.fleet.cluster import Cluster
from bigscreen.fleet.connecting import connect
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.fleet.tuning import CLUSTER
from bigscreen.fleet.workers import first_difference

SHARDS, ROUNDS = 7, 8
IMPATIENT = replace(CLUSTER, frozen_seconds=3.0)


@pytest.fixture(scope="module")
def reference():
    with Inline(1) as fleet:
        fleet.start(Gradient(), SHARDS)
        return descend(fleet, ROUNDS)[1]


# ---------------------------------------------------------------- workers that stand still


@pytest.mark.slow
@pytest.mark.parametrize("nanny", [True, False])
def test_a_frozen_worker_is_given_up(reference, nanny):
    cluster = local_cluster(2, tuning=IMPATIENT) if nanny else processes(tuning=IMPATIENT)
    with cluster as fleet:
        fleet.start(Gradient(), SHARDS)
        pid = fleet._client.run(os.getpid)[fleet._seats.all[0].address]

        def between(number):
            if number == 3:
                os.kill(pid, signal.SIGSTOP)

        try:
            assert same(descend(fleet, ROUNDS, between=between)[1], reference)
            if nanny:  # it has been killed, and another started
                fleet._client.wait_for_workers(2, timeout=30)
            assert pid not in fleet._client.run(os.getpid).values()
        finally:
            if not nanny:
                os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_items_of_a_frozen_worker_run_elsewhere():
    with processes(tuning=IMPATIENT) as fleet:
        results = fleet.each(slow_square, range(40))
        assert next(results) == 0
        pid = next(iter(fleet._client.run(os.getpid).values()))
        os.kill(pid, signal.SIGSTOP)
        try:
            assert list(results) == [number**2 for number in range(1, 40)]
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_worker_that_only_takes_long_is_not_frozen():
    with processes(tuning=IMPATIENT) as fleet:
        fleet.start(Gradient(), 2)
        before = fleet._client.run(os.getpid)
        fleet.round({"w": np.zeros(FEATURES), "sleep": 6.0})
        assert fleet._client.run(os.getpid) == before


@pytest.mark.slow
def test_connections_that_end_are_no_news(caplog):
    """Of two workers that die at once, Dask leaves the second one's error to asyncio's log."""

    def unheard(error):
        future = asyncio.new_event_loop().create_future()
        future.set_exception(error)
        del future
        gc.collect()
        return [record for record in caplog.records if record.name == "asyncio"]

    with local_cluster(1):
        assert not unheard(CommClosedError("Stream is closed"))
        assert len(unheard(ValueError("a mistake"))) == 1
    caplog.clear()
    assert len(unheard(CommClosedError("somebody else's"))) == 1


# ---------------------------------------------------------------- steps that kill


@pytest.mark.slow
def test_a_step_that_kills_every_worker_ends(tmp_path):
    with local_cluster(2) as fleet:
        fleet.start(Murderous(tmp_path, 4), SHARDS)
        fleet.round({"w": np.zeros(FEATURES)})
        with pytest.raises(ConnectionError) as caught:
            fleet.round({"w": np.zeros(FEATURES), "die": True})
        assert "3 workers one after the other died in a step of Murderous on " in str(caught.value)
        assert "4" in str(caught.value) and "memory" in str(caught.value)
        assert len((tmp_path / "deaths").read_text()) == 3

        with pytest.raises(ConnectionError, match="every worker that ran kill_self died; .*memory"):
            list(fleet.each(kill_self, range(3)))
        assert list(fleet.each(slow_square, range(3))) == [0, 1, 4]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_cluster_starts_though_a_worker_is_lost_meanwhile(how):
    tuning = CLUSTER if how == signal.SIGKILL else replace(CLUSTER, start_seconds=20.0)
    killed = []

    def first_child():
        while not killed:
            for child in psutil.Process().children(recursive=True):
                if "spawn_main" in " ".join(child.cmdline()):
                    child.send_signal(how)
                    killed.append(child.pid)
                    return
            time.sleep(0.01)

    killer = threading.Thread(target=first_child)
    killer.start()
    with local_cluster(2, tuning=tuning) as fleet:
        killer.join()
        assert list(fleet.each(slow_square, range(4))) == [0, 1, 4, 9]


# ---------------------------------------------------------------- the log of messages


@pytest.mark.slow
def test_the_log_is_bounded_without_a_folder():
    tuning = replace(CLUSTER, log_bytes=2**20)
    ballast = np.ones(2**15)  # 256 KiB a message
    with Inline(1) as inline:
        inline.start(Gradient(), SHARDS)
        expected = descend(inline, 24)[1]
    with local_cluster(2, tuning=tuning) as fleet:
        fleet.start(Gradient(), SHARDS)
        longest, record, w = 0, [], np.zeros(FEATURES)
        for number in range(24):
            if number in (11, 17):
                pid = fleet._client.run(os.getpid)[fleet._seats.all[0].address]
                os.kill(pid, signal.SIGKILL)
            stack, totals = fleet.round({"w": w, "ballast": ballast})
            record.append((stack, totals))
            w = w - 1e-4 * totals["gradient"] / 2.0**30
            longest = max(longest, len(fleet._recovery.log))
        assert same(record, expected)
        assert longest <= 5
        folder = fleet._recovery.folder
        assert folder is not None and folder.exists()
    assert not folder.exists()


# ---------------------------------------------------------------- other people's workers


def fractions(dask_worker):
    manager = dask_worker.memory_manager
    return [getattr(manager, f"memory_{name}_fraction") for name in ("target", "spill", "pause")]


@pytest.mark.slow
def test_other_peoples_workers_get_their_settings_back(tmp_path):
    with processes(ports=(0,)) as outer:
        address = outer.address
        outer.close()
        with Client(address, set_as_default=False) as client:

            def now():
                return list(client.run(fractions).values())

            before = now()
            assert before == [[0.6, 0.7, 0.8]]
            with Cluster(client), Cluster(client) as second:
                second.start(Gradient(), 2)
                assert now() == [[False] * 3]
            assert now() == before
            with pytest.raises(ZeroDivisionError), connect(address):  # noqa: PT012
                assert now() == [[False] * 3]
                raise ZeroDivisionError
            assert now() == before
            # and if bigscreen is killed
            code = (
                "import sys, time; from bigscreen.fleet.connecting import connect\n"
                "fleet = connect(sys.argv[1]); print('here', flush=True); time.sleep(600)"
            )
            command = [sys.executable, "-c", code, address]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout.readline() == "here\n"
                assert now() == [[False] * 3]
                process.kill()
            deadline = time.monotonic() + 20
            while now() != before:
                assert time.monotonic() < deadline
                time.sleep(0.1)


def test_workers_that_do_not_see_the_files_are_left_out(tmp_path, reference):
    shared = Path(tempfile.mkdtemp(dir="/dev/shm"))
    file = shared / "manifest.json"
    file.write_text("rows")
    # its /dev/shm is another one: a mount that this process alone has
    own = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]
    try:
        if subprocess.run([*own, "true"], capture_output=True).returncode:
            pytest.skip("this system lets nobody mount")
        with processes(ports=(0,)) as fleet:
            blind = fleet.add(within=own)
            fleet._client.wait_for_workers(2, timeout=60)
            with pytest.warns(UserWarning, match="1 of 2 workers do not see .*manifest.json"):
                fleet.rely_on([file])
            fleet.start(Gradient(), SHARDS)
            assert same(descend(fleet, ROUNDS)[1], reference)
            assert set(fleet.each(pid_of_worker, range(20))) == {fleet.processes[1].pid}
            # without those that see it
            fleet.processes[1].kill()
            deadline = time.monotonic() + 30
            while len(fleet._client.nthreads()) > 1:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            with pytest.raises(InputError, match="no worker of tcp://.* sees .*manifest.json"):
                fleet.rely_on([file])
            assert blind.poll() is None
    finally:
        shutil.rmtree(shared)


def pid_of_worker(_):
    time.sleep(0.02)
    return os.getpid()


def late(_):
    raise TimeoutError


def test_a_task_that_ends_just_when_the_waiting_does(monkeypatch):
    wait, times = distributed.wait, []

    def ending(futures, timeout):
        times.append(timeout)
        wait(futures)
        if len(times) == 1:
            raise TimeoutError
        return wait(futures, timeout)

    monkeypatch.setattr(distributed, "wait", ending)
    with local_cluster(1) as fleet:
        assert list(fleet.each(slow_square, [3])) == [9] and len(times) == 2
        with pytest.raises(TimeoutError):  # of the function itself
            list(fleet.each(late, [3]))


# ---------------------------------------------------------------- a scheduler that stands still


@contextmanager
def frozen(process):
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


NO_ANSWER = "the Dask scheduler at tcp://.* has not answered for 2 s"


@pytest.mark.slow
def test_a_frozen_scheduler_is_no_wait_for_ever(reference):
    with processes(ports=(0,)) as outer, ExitStack() as stack:
        (scheduler, *_), address = outer.processes, outer.address
        outer.close()
        fleet = stack.enter_context(connect(address, timeout=2.0))
        fleet.start(Gradient(), SHARDS)
        assert same(descend(fleet, ROUNDS)[1], reference)
        with frozen(scheduler):
            with pytest.raises(ConnectionError, match=NO_ANSWER):
                list(fleet.each(slow_square, range(3)))
            with pytest.raises(ConnectionError, match=NO_ANSWER):
                fleet.start(Gradient(), SHARDS + 1)
            fleet.close()
            with pytest.raises(InputError, match="no Dask scheduler answers at"):
                connect(address, timeout=2.0)
        with connect(address) as later:
            assert list(later.each(slow_square, range(3))) == [0, 1, 4]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["nthreads", "get_versions", "run", "register_plugin"])
def test_a_scheduler_that_freezes_while_a_fleet_connects(monkeypatch, step):
    with processes(ports=(0,)) as outer, ExitStack() as stack:
        (scheduler, *_), address = outer.processes, outer.address
        outer.close()
        ask = getattr(Client, step)

        def freezing(client, *args, **kwargs):
            stack.enter_context(frozen(scheduler))
            return ask(client, *args, **kwargs)

        monkeypatch.setattr(Client, step, freezing)
        with pytest.raises(ConnectionError, match=NO_ANSWER):
            connect(address, timeout=2.0)


# ---------------------------------------------------------------- other versions, no worker


@pytest.mark.slow
def test_a_worker_with_other_code_is_refused(tmp_path):
    package = tmp_path / "bigscreen"
    shutil.copytree(Path(bigscreen.__file__).parent, package)
    with open(package / "errors.py", "a") as file:
        file.write("# another day\n")
    with processes(ports=(0,)) as fleet:
        fleet.add(path=[tmp_path])
        fleet._client.wait_for_workers(2, timeout=60)
        with pytest.raises(InputError, match="other code of bigscreen than this process"):
            connect(fleet.address)
        other = tmp_path / "numba-9.9.9.dist-info"
        other.mkdir()
        (other / "METADATA").write_text("Name: numba\nVersion: 9.9.9")
        fleet.processes[-1].kill()
        fleet.processes[-1].wait()
        fleet.add(path=[tmp_path])
        deadline = time.monotonic() + 30
        while len(fleet._client.nthreads()) != 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with pytest.raises(InputError, match="has numba 9.9.9 where this process has 0"):
            connect(fleet.address)


def test_the_first_version_that_differs_is_named():
    own = {"python": "3.11.7.final.0", "numba": "0.60"}
    assert first_difference(own, {"python": "3.11.2.final.0", "numba": "0.60"}) is None
    assert "python 3.12 where this" in first_difference(own, {"python": "3.12.1", "numba": "0.60"})
    assert "numba (none) where" in first_difference(own, {"python": "3.11.7"})


def test_no_worker_within_the_time():
    with processes(ports=(0,)) as fleet:
        address = fleet.address
        fleet.processes[1].kill()
        deadline = time.monotonic() + 30
        while fleet._client.nthreads():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with pytest.raises(InputError, match="has had no worker for 1 s"):
            connect(address, deadline=time.monotonic() + 1.0)


# ---------------------------------------------------------------- what dead processes leave


def test_a_killed_fleet_leaves_a_folder_that_the_next_one_clears(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from bigscreen.fleet.local import local_cluster\n"
        "if __name__ == '__main__':\n"
        "    fleet = local_cluster(1)\n"
        "    found = os.path.exists(sys.argv[1])\n"
        "    os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == '' else fleet.close()\n"
        "    print('left' if found else 'cleared')\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)

    def run(left):
        environ = {**os.environ, "TMPDIR": str(tmp_path)}
        command = [sys.executable, script, left]
        return subprocess.run(command, env=environ, capture_output=True, text=True)

    assert run("").returncode == -signal.SIGKILL
    (left,) = tmp_path.glob("bigscreen-workers-*")
    assert run(str(left)).stdout == "cleared\n"
    assert not list(tmp_path.glob("bigscreen-workers-*"))
