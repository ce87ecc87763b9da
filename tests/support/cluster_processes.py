"""A Dask scheduler and workers as processes of their own, for tests that kill them."""

import os
import socket
import subprocess
import sys
from contextlib import contextmanager

from bigscreen.errors import InputError
from bigscreen.fleet.connecting import connect
from bigscreen.fleet.secure import certificates
from bigscreen.fleet.tuning import CLUSTER


def patiently_connected(address, security=None, tuning=CLUSTER):
    for left in reversed(range(3)):
        try:
            return connect(address, timeout=20, security=security, tuning=tuning)
        except InputError:
            if not left:
                raise
    return None  # never: the last try raises


def start_scheduler(**how):
    """Start a scheduler at a free port; its process (for `subprocess.Popen`: how) and address."""
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
    place = ["--host", "tcp://127.0.0.1", "--port", "0"]
    process = subprocess.Popen([*command, *place], stderr=subprocess.PIPE, text=True, **how)
    return process, next(line.split()[-1] for line in process.stderr if "Scheduler at" in line)


@contextmanager
def processes(ports=(0, 0), keys=None, tuning=CLUSTER):
    """A scheduler and workers without nannies as processes; gives a fleet and a way to add one.

    ``keys``: paths of PEM files by the names that `certificates` has for them; None: no TLS.
    """
    started = []
    scheme, tls = "tcp", []
    if keys is not None:
        scheme = "tls"
        tls = ["--tls-ca-file", keys["ca"], "--tls-cert", keys["cert"], "--tls-key", keys["key"]]

    def run(*arguments, path=(), within=()):
        command = [sys.executable, "-m", "distributed.cli." + arguments[0], *arguments[1:], *tls]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [*path, *sys.path]))}
        process = subprocess.Popen(
            [*within, *command],
            env=environment,
            cwd=path[0] if path else None,  # which Python puts before the others
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"{scheme}://127.0.0.1:{free.getsockname()[1]}"
    run("dask_scheduler", "--host", address, "--no-dashboard")

    def add(port=0, **how):
        return run(
            "dask_worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard",
            "--host", f"{scheme}://127.0.0.1:{port}", **how,
        )  # fmt: skip

    try:
        for port in ports:
            add(port)
        security = None if keys is None else certificates(**keys)
        with patiently_connected(address, security, tuning) as fleet:
            fleet._client.wait_for_workers(len(ports), timeout=30)
            fleet.processes, fleet.add = started, add
            yield fleet
    finally:
        for process in started:
            process.kill()
            process.wait()
