"""Where the options of a command let it run: threads, worker processes, a cluster."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bigscreen.errors import InputError

if TYPE_CHECKING:
    from bigscreen.fleet import Fleet


def check_fleet(values: dict[str, Any]) -> None:
    """Refuse contradicting ways to run, before anything is started."""
    chosen = [f"--{name}" for name in ("workers", "scheduler", "threads") if values[name]]
    if len(chosen) > 1:
        raise InputError(
            f"{' and '.join(chosen)} are different ways to run (processes here, a cluster, threads "
            "of one process); give one"
        )


@contextmanager
def open_fleet(values: dict[str, Any]) -> Iterator["Fleet"]:
    """What computes: threads, local worker processes or a Dask scheduler; closed at the end."""
    from bigscreen.fleet import Inline

    if not (values["workers"] or values["scheduler"]):
        with Inline(values["threads"]) as threads:
            yield threads
        return
    # Dask is slow to import, and threads need none of it.
    from bigscreen.fleet_start import connect, local_cluster

    if values["scheduler"]:
        with connect(values["scheduler"]) as cluster:
            yield cluster
        return
    # The coordinating process needs its share of the memory too.
    share = values["memory"] and values["memory"] // (values["workers"] + 1)
    # Ctrl-C reaches every process of the terminal. Processes born while it is ignored ignore it
    # too: the workers go on until the pass has ended and its checkpoint is written.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        started = local_cluster(values["workers"], share)
    finally:
        signal.signal(signal.SIGINT, before)
    with started as cluster:
        yield cluster
