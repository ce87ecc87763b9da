"""Start a Dask cluster on this machine, or connect to one, as a fleet."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import dask
from distributed import Client, LocalCluster, Security

from bigscreen.errors import InputError
from bigscreen.fleet_dask import Cluster
from bigscreen.fleet_host import source_digest
from bigscreen.fleet_scratch import scratch
from bigscreen.fleet_secure import explained
from bigscreen.fleet_workers import PATIENCE_SECONDS, differing

WORKER_ENVIRONMENT = {
    # glibc's default, and Dask's, hand memory back so eagerly that a temporary of 1 MB costs 27
    # times as much; both are read when a process starts
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
    "MALLOC_MMAP_THRESHOLD_": str(64 * 2**20),
    # one worker process per core
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""What the environment of every worker should hold before it starts."""

STARTS = 3
"""Times to try: a worker may die while it starts."""

START_SECONDS = 120.0
"""How long a worker may take to start: one that is stopped just then would never."""

SAME = ("bigscreen", "numba", "numpy", "distributed")
"""Packages whose versions must be those of this process, on every worker."""


def local_cluster(
    workers: int,
    memory_limit: int | str | None = None,
    setup: Callable[[], Any] | None = None,
    deadline: float | None = None,
) -> Cluster:
    """Start worker processes on this machine, with one thread each.

    What they say to each other is encrypted, with a key that only they have: nobody else, on this
    machine or another, can give them work. A script that calls this needs the usual
    ``if __name__ == "__main__":``.

    Parameters
    ----------
    workers : int
        How many processes.
    memory_limit : int or str, optional
        Bytes (or "4 GiB") for EACH worker; Dask restarts one that takes more. Default: no limit.
    setup : callable, optional
        Called once on every worker, also on a restarted one; picklable.
    deadline : float, optional
        Value of ``time.monotonic()`` that bounds the waiting for workers.

    Returns
    -------
    Cluster
        A fleet that owns the processes: close it, or use it as a context manager.

    Raises
    ------
    InputError
        If the processes die again and again while they start.
    """
    if workers < 1:
        raise InputError(f"a cluster needs at least 1 worker, not {workers}")
    owned = ExitStack()
    try:
        before = {key: os.environ.get(key) for key in WORKER_ENVIRONMENT}
        owned.callback(_restore_environment, before)
        # a cluster that this process ran before may have left Dask's own values, which would win
        os.environ.update(WORKER_ENVIRONMENT)
        # Dask gives a nanny up whose worker is away at one moment, 15 s after a death: it may just
        # have died again
        owned.enter_context(dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"}))
        # Dask's own place for the files of workers and scheduler outlives them
        folder = owned.enter_context(scratch("bigscreen-workers-"))
        cluster = _started(workers, memory_limit, folder)
        owned.callback(cluster.close)
        client = Client(cluster, direct_to_workers=True, set_as_default=False)
        owned.callback(client.close)
        return Cluster(client, setup, owned, deadline, shielded=True)
    except BaseException:
        owned.close()
        raise


def _started(workers: int, memory_limit: int | str | None, folder: str) -> LocalCluster:
    """Scheduler and workers; anew if a worker dies while it starts, which Dask takes for an error.

    Raises
    ------
    InputError
        If that happens again and again.
    """
    settings = {
        "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
        "temporary-directory": folder,
    }
    before = set(multiprocessing.active_children())
    for left in reversed(range(STARTS)):
        try:
            with dask.config.set(settings):
                return LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    memory_limit=memory_limit,
                    host="127.0.0.1",
                    security=Security.temporary(),
                    death_timeout=START_SECONDS,
                    local_directory=folder,
                    dashboard_address=None,
                    scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # HTTP, any free port
                    silence_logs=logging.CRITICAL,  # a worker's death is handled, not news
                )
        except Exception as error:  # of many kinds, an AssertionError of Dask's own among them
            for child in set(multiprocessing.active_children()) - before:
                child.kill()
            if not left:
                raise InputError(
                    f"{workers} worker processes were started {STARTS} times, and each time one "
                    f"died ({error.__cause__ or error}): give fewer workers, or more memory"
                ) from error
    raise AssertionError


def connect(
    address: str,
    setup: Callable[[], Any] | None = None,
    timeout: float = 10.0,
    security: Security | None = None,
    deadline: float | None = None,
) -> Cluster:
    """Use a Dask cluster that runs already.

    Parameters
    ----------
    address : str
        Of its scheduler, ``tcp://HOST:8786`` or ``tls://HOST:8786``.
    setup : callable, optional
        Called once on every worker, also on one that comes later; picklable.
    timeout : float
        Seconds to wait for the scheduler.
    security : distributed.Security, optional
        For ``tls://``; see `fleet_secure.certificates`. Default: Dask's own configuration.
    deadline : float, optional
        Value of ``time.monotonic()`` that bounds the waiting for scheduler and workers.

    Returns
    -------
    Cluster
        A fleet that owns its connection; closing it leaves the cluster running.

    Raises
    ------
    InputError
        If no scheduler answers there, one encrypts and the other does not, it has no worker, or a
        worker has another version of bigscreen, numba, numpy or Python, or none.
    """
    until = time.monotonic() + PATIENCE_SECONDS if deadline is None else deadline
    timeout = min(timeout, max(0.1, until - time.monotonic()))
    try:
        client = Client(
            address,
            timeout=timeout,
            direct_to_workers=True,
            set_as_default=False,
            **({} if security is None else {"security": security}),
        )
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise InputError(explained(address, error)) from error
    owned = ExitStack()
    owned.callback(client.close)
    try:
        _await_worker(client, address, until)
        return Cluster(client, setup, owned, deadline, check=_check_versions)
    except BaseException:
        owned.close()
        raise


def _await_worker(client: Client, address: str, until: float) -> None:
    """An InputError if there is no worker until then."""
    began = time.monotonic()
    while not client.nthreads():
        if time.monotonic() > until:
            raise InputError(
                f"the scheduler at {address} has had no worker for {until - began:.0f} s: start "
                "some with `dask worker`, and run again"
            )
        time.sleep(0.1)


def _check_versions(client: Client) -> None:
    """An InputError if a worker runs other code than this process."""
    address = client.scheduler.address  # type: ignore[union-attr]
    # Dask's own way needs nothing of ours on the workers, and no common version of Python.
    told: Any = client.get_versions(packages=list(SAME))
    own = _versions(told["client"])
    everywhere = "install the same versions on every machine"
    for worker, theirs in told["workers"].items():
        if unlike := differing(own, _versions(theirs)):
            raise InputError(f"the worker {worker} of {address} has {unlike}: {everywhere}")
    code = source_digest()
    for worker, found in client.run(source_digest, on_error="return").items():
        if isinstance(found, ModuleNotFoundError):
            raise InputError(f"the worker {worker} of {address} has no bigscreen: {everywhere}")
        # An OSError is a worker that died just now; another error, one whose code cannot tell.
        if found != code and not isinstance(found, OSError):
            raise InputError(
                f"the worker {worker} of {address} has other code of bigscreen than this process, "
                f"though of the same version: {everywhere}"
            )


def _versions(told: dict[str, Any]) -> dict[str, Any]:
    return {name: told["packages"].get(name) for name in ("python", *SAME)}


def _restore_environment(before: dict[str, str | None]) -> None:
    # Dask's nannies live in this process and set the workers' variables in its own environment
    for key, value in before.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
