"""A cluster of this machine alone: worker processes that live as long as their fleet."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Any

import dask
from distributed import Client, LocalCluster, Security
from distributed.comm.core import CommClosedError
from distributed.utils import LoopRunner

from bigscreen.errors import InputError, reason_of
from bigscreen.files.scratch import scratch
from bigscreen.fleet.cluster import Cluster
from bigscreen.fleet.worker import WORKER_ENVIRONMENT

STARTS = 3
"""Times to try: a worker may die while it starts."""

START_SECONDS = 120.0
"""How long a worker may take to start: one that is stopped just then would never."""


def local_cluster(
    workers: int,
    memory_limit: int | str | None = None,
    deadline: float | None = None,
    *,
    metrics: bool = False,
) -> Cluster:
    """Start worker processes on this machine, with one thread each.

    What they say to each other is encrypted, with a key that only they have: nobody else, on this
    machine or another, can give them work, or look at it. A script that calls this needs the usual
    ``if __name__ == "__main__":``.

    Parameters
    ----------
    workers : int
        How many processes.
    memory_limit : int or str, optional
        Bytes (or "4 GiB") for EACH worker; Dask restarts one that takes more. Default: no limit.
    deadline : float, optional
        Value of ``time.monotonic()`` that bounds the waiting for workers.
    metrics : bool
        Serve Dask's pages (and its ``/metrics``, if `prometheus_client` is installed) on a free
        port of 127.0.0.1, where every user of this machine can read them.

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
        log, unheard = logging.getLogger("asyncio"), _Unheard()
        log.addFilter(unheard)
        owned.callback(log.removeFilter, unheard)
        # Dask's own place for the files of workers and scheduler outlives them
        folder = str(owned.enter_context(scratch("workers")))
        cluster = _started(workers, memory_limit, folder, _loop(owned), metrics)
        owned.callback(cluster.close)
        client = Client(cluster, direct_to_workers=True, set_as_default=False)
        owned.callback(client.close)
        return Cluster(client, owned, deadline, shielded=True)
    except BaseException:
        owned.close()
        raise


class _Unheard(logging.Filter):
    """Keeps from asyncio's log that the connection to a second worker ended, too.

    Of workers that die at once Dask's scheduler, which runs in this process, raises the first
    one's error, which is handled; the others' asyncio would print with their tracebacks.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], CommClosedError))


def _loop(owned: ExitStack) -> Any:
    """An event loop in a thread from which processes are born that Ctrl-C does not reach.

    A signal that a thread blocks is blocked in the processes that it starts.
    """
    runner = LoopRunner()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Python unblocks signals in the thread that starts this process, which every child needs.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_SETMASK, before | {signal.SIGINT})
        runner.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    owned.callback(runner.stop)
    return runner.loop


def _started(
    workers: int, memory_limit: int | str | None, folder: str, loop: Any, metrics: bool
) -> LocalCluster:
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
    if not metrics:
        settings |= {f"distributed.{name}.http.routes": [] for name in ("scheduler", "worker")}
    before = set(multiprocessing.active_children())
    for left in reversed(range(STARTS)):
        try:
            with dask.config.set(settings), _killed_if_late(before):
                cluster = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    memory_limit=memory_limit,
                    host="127.0.0.1",
                    security=Security.temporary(),
                    death_timeout=2 * START_SECONDS,
                    local_directory=folder,
                    dashboard_address=None,
                    scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # HTTP, any free port
                    silence_logs=logging.CRITICAL,  # a worker's death is handled, not news
                    loop=loop,
                )
            scheduler: Any = cluster.scheduler
            if not metrics:
                scheduler.http_server.stop()
            return cluster
        except BaseException as error:
            for child in set(multiprocessing.active_children()) - before:
                child.kill()
            if not isinstance(error, Exception):  # (an AssertionError of Dask's own is one)
                raise
            if not left:
                why = reason_of(error.__cause__ or error)
                raise InputError(
                    f"{workers} worker processes were started {STARTS} times, and each time one "
                    f"died ({why}): give fewer workers, or more memory"
                ) from error
    raise AssertionError


@contextmanager
def _killed_if_late(before: set[Any]) -> Iterator[None]:
    """Kill the processes that are born inside if they do not start in `START_SECONDS`.

    Dask's own end of a worker that stands still while it starts waits for that worker for ever.
    """

    def kill() -> None:
        for child in set(multiprocessing.active_children()) - before:
            child.kill()

    timer = threading.Timer(START_SECONDS, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _restore_environment(before: dict[str, str | None]) -> None:
    # Dask's nannies live in this process and set the workers' variables in its own environment
    for key, value in before.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
