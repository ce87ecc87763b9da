"""Start a Dask cluster on this machine, whose worker processes end with their fleet."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Any

import dask
from distributed import Client, LocalCluster, Nanny, Security
from distributed.comm.core import CommClosedError
from distributed.utils import LoopRunner

from bigscreen.errors import InputError, reason_of
from bigscreen.files.scratch import scratch
from bigscreen.fleet.cluster import Cluster
from bigscreen.fleet.tuning import CLUSTER, ClusterTuning
from bigscreen.fleet.worker import WORKER_ENVIRONMENT


def local_cluster(
    workers: int,
    memory_limit: int | str | None = None,
    deadline: float | None = None,
    *,
    devices: Sequence[str] | None = None,
    metrics: bool = False,
    tuning: ClusterTuning = CLUSTER,
) -> Cluster:
    """Start worker processes on this machine, with one thread each.

    Their connections are encrypted with a key that only these processes have: no other process, on
    this machine or elsewhere, can send them work or read it. A script that calls this function
    needs the usual ``if __name__ == "__main__":``.

    Parameters
    ----------
    workers : int
        Number of worker processes.
    memory_limit : int or str, optional
        Bytes (or "4 GiB") for EACH worker; Dask restarts a worker that uses more. Default: no
        limit.
    deadline : float, optional
        Value of ``time.monotonic()`` that bounds the waiting for workers.
    devices : sequence of str, optional
        The value of the environment variable ``CUDA_VISIBLE_DEVICES`` of each worker, so that each
        computes on a device of its own. Default: that of this process.
    metrics : bool
        Serve Dask's pages (and its ``/metrics``, if `prometheus_client` is installed) on a free
        port of 127.0.0.1, where every user of this machine can read them.
    tuning : ClusterTuning

    Returns
    -------
    Cluster
        A fleet that owns the processes: close it, or use it as a context manager, to end them.

    Raises
    ------
    InputError
        If worker processes die during each attempt to start them.
    """
    if workers < 1:
        raise InputError(f"a cluster needs at least 1 worker, not {workers}")
    owned = ExitStack()
    try:
        before = {key: os.environ.get(key) for key in WORKER_ENVIRONMENT}
        owned.callback(_restore_environment, before)
        # A cluster that ran in this process before may have left Dask's values, which would
        # prevail.
        os.environ.update(WORKER_ENVIRONMENT)
        # Dask removes a nanny whose worker is missing 15 s after a death, even if the new worker
        # has only died again.
        owned.enter_context(dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"}))
        log, unheard = logging.getLogger("asyncio"), _DropDeaths()
        log.addFilter(unheard)
        owned.callback(log.removeFilter, unheard)
        # Dask's default folder for the files of workers and scheduler would remain.
        folder = str(owned.enter_context(scratch("workers")))
        options: dict[str, Any] = {"memory_limit": memory_limit}
        if devices is not None:
            options |= {"worker_class": DeviceNanny, "devices": tuple(devices)}
        cluster = _start_cluster(workers, options, folder, _start_loop(owned), metrics, tuning)
        owned.callback(cluster.close)
        client = Client(cluster, direct_to_workers=True, set_as_default=False)
        owned.callback(client.close)
        return Cluster(client, owned, deadline, shielded=True, tuning=tuning)
    except BaseException:
        owned.close()
        raise


class DeviceNanny(Nanny):
    """Starts a worker process, again after its death, that sees only its own device.

    Parameters
    ----------
    name : int
        The number of the worker.
    devices : tuple of str
        The value of ``CUDA_VISIBLE_DEVICES`` by the worker's number.
    """

    def __init__(
        self, scheduler: str, *, name: int, devices: tuple[str, ...], **options: Any
    ) -> None:
        """Set the environment variable of the worker with this number."""
        own = {"CUDA_VISIBLE_DEVICES": devices[name]}
        super().__init__(scheduler, name=name, env=own, **options)


class _DropDeaths(logging.Filter):
    """Drops log records of asyncio about connections to workers that died.

    If several workers die at once, Dask's scheduler (which runs in this process) raises the error
    of the first, which is handled. Asyncio would log those of the others with tracebacks.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to keep a log record: it is not about a lost connection."""
        return not (record.exc_info and isinstance(record.exc_info[1], CommClosedError))


def _start_loop(owned: ExitStack) -> Any:
    """Start an event loop in a thread whose child processes ignore Ctrl-C.

    A signal that a thread blocks is also blocked in the processes that the thread starts.
    """
    runner = LoopRunner()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Starting this process, which every child needs, unblocks signals in the calling thread.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_SETMASK, before | {signal.SIGINT})
        runner.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    owned.callback(runner.stop)
    return runner.loop


def _start_cluster(
    workers: int,
    options: dict[str, Any],
    folder: str,
    loop: Any,
    metrics: bool,
    tuning: ClusterTuning,
) -> LocalCluster:
    """Start scheduler and workers; start again if a worker dies while it starts.

    ``options``: further arguments of `LocalCluster`, and of what starts each worker.

    Raises
    ------
    InputError
        If a worker dies during each attempt.
    """
    settings = {
        "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
        "temporary-directory": folder,
    }
    if not metrics:
        settings |= {f"distributed.{name}.http.routes": [] for name in ("scheduler", "worker")}
    before = set(multiprocessing.active_children())
    for left in reversed(range(tuning.max_starts)):
        try:
            with dask.config.set(settings), _kill_if_late(before, tuning.start_seconds):
                cluster = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    host="127.0.0.1",
                    security=Security.temporary(),
                    death_timeout=2 * tuning.start_seconds,
                    local_directory=folder,
                    dashboard_address=None,
                    scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # HTTP, any free port
                    silence_logs=logging.CRITICAL,  # the death of a worker is handled
                    loop=loop,
                    **options,
                )
            scheduler: Any = cluster.scheduler
            if not metrics:
                scheduler.http_server.stop()
            return cluster
        except BaseException as error:
            for child in set(multiprocessing.active_children()) - before:
                child.kill()
            if not isinstance(error, Exception):  # (Dask may raise an AssertionError)
                raise
            if not left:
                why = reason_of(error.__cause__ or error)
                raise InputError(
                    f"{workers} worker processes were started {tuning.max_starts} times, and each "
                    f"time one died ({why}): give fewer workers, or more memory"
                ) from error
    raise AssertionError


@contextmanager
def _kill_if_late(before: set[Any], seconds: float) -> Iterator[None]:
    """Kill the processes started within the block if it takes longer than ``seconds``.

    ``before``: the child processes that ran already, which are left alone.
    Dask also ends a worker that freezes while it starts, but waits forever for its end.
    """

    def kill() -> None:
        """Kill the child processes that were started within the block."""
        for child in set(multiprocessing.active_children()) - before:
            child.kill()

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _restore_environment(before: dict[str, str | None]) -> None:
    """Undo changes of the environment: Dask's nannies set the workers' variables here, too."""
    for key, value in before.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
