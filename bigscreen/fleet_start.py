"""Start a Dask cluster on this machine, or connect to one, as a fleet."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import dask
from distributed import Client, LocalCluster

from bigscreen.errors import InputError
from bigscreen.fleet_dask import Cluster
from bigscreen.fleet_host import Shielded

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


def local_cluster(
    workers: int,
    memory_limit: int | str | None = None,
    setup: Callable[[], Any] | None = None,
) -> Cluster:
    """Start worker processes on this machine, with one thread each.

    A script that calls this needs the usual ``if __name__ == "__main__":``.

    Parameters
    ----------
    workers : int
        How many processes.
    memory_limit : int or str, optional
        Bytes (or "4 GiB") for EACH worker; Dask restarts one that takes more. Default: no limit.
    setup : callable, optional
        Called once on every worker, also on a restarted one; picklable.

    Returns
    -------
    Cluster
        A fleet that owns the processes: close it, or use it as a context manager.
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
        scratch = owned.enter_context(
            tempfile.TemporaryDirectory(prefix="bigscreen-workers-", ignore_cleanup_errors=True)
        )
        settings = {
            "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
            "temporary-directory": scratch,
        }
        with dask.config.set(settings):
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                memory_limit=memory_limit,
                host="127.0.0.1",
                local_directory=scratch,
                dashboard_address=None,
                scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # its HTTP port, any free
                silence_logs=logging.CRITICAL,  # a worker's death is handled, not news
            )
        owned.callback(cluster.close)
        client = Client(cluster, direct_to_workers=True, set_as_default=False)
        owned.callback(client.close)
        client.register_plugin(Shielded())
        return Cluster(client, setup, owned)
    except BaseException:
        owned.close()
        raise


def connect(address: str, setup: Callable[[], Any] | None = None, timeout: float = 10.0) -> Cluster:
    """Use a Dask cluster that runs already.

    Parameters
    ----------
    address : str
        Of its scheduler, ``tcp://HOST:8786`` (or ``tls://``, with Dask's own configuration).
    setup : callable, optional
        Called once on every worker, also on one that comes later; picklable.
    timeout : float
        Seconds to wait for the scheduler.

    Returns
    -------
    Cluster
        A fleet that owns its connection; closing it leaves the cluster running.

    Raises
    ------
    InputError
        If no scheduler answers there, or its workers have no bigscreen.
    """
    try:
        client = Client(address, timeout=timeout, direct_to_workers=True, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler answers at {address}: start one with `dask scheduler`, "
            "or check the address"
        ) from error
    owned = ExitStack()
    owned.callback(client.close)
    try:
        return Cluster(client, setup, owned)
    except BaseException as error:
        owned.close()
        if isinstance(error, ModuleNotFoundError):
            raise InputError(
                f"the workers of {address} lack a module ({error}): "
                "install the same version of bigscreen on every machine"
            ) from error
        raise


def _restore_environment(before: dict[str, str | None]) -> None:
    # Dask's nannies live in this process and set the workers' variables in its own environment
    for key, value in before.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
