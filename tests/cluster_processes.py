"""A Dask scheduler and workers as processes of their own, for tests that kill them."""

import os
import socket
import subprocess
import sys
from contextlib import contextmanager

from bigscreen.errors import InputError
from bigscreen.fleet_start import connect


def patiently_connected(address):
    for left in reversed(range(20)):
        try:
            return connect(address, timeout=2)
        except InputError:
            if not left:
                raise


@contextmanager
def processes(ports=(0, 0)):
    """A scheduler and workers without nannies as processes; gives a fleet and a way to add one."""
    started = []

    def run(*arguments):
        command = [sys.executable, "-m", "distributed.cli." + arguments[0], *arguments[1:]]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        started.append(process)
        return process

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    run("dask_scheduler", "--host", address, "--no-dashboard")

    def add(port=0):
        return run(
            "dask_worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard",
            "--host", f"tcp://127.0.0.1:{port}",
        )  # fmt: skip

    try:
        for port in ports:
            add(port)
        with patiently_connected(address) as fleet:
            fleet._client.wait_for_workers(len(ports), timeout=30)
            fleet.processes, fleet.add = started, add
            yield fleet
    finally:
        for process in started:
            process.kill()
            process.wait()
