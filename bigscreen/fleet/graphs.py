"""Run functions on the blocks of a user's Dask collections, as one graph, where the blocks lie."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
from dask.base import compute
from dask.delayed import delayed
from distributed import Client, get_worker

from bigscreen.fleet.connecting import address_of


def active_client() -> Client | None:
    """Return the client that Dask would use now for its collections; None: threads here.

    None, too, within a task of a worker, which would wait for itself, and for asynchronous clients.
    """
    if "distributed" not in sys.modules or dask.config.get("scheduler", None) not in (
        *(None, "dask.distributed", "distributed"),
    ):
        return None
    with contextlib.suppress(ValueError):
        get_worker()
        return None
    with contextlib.suppress(ValueError):
        client: Client = Client.current(allow_global=True)
        return None if client.asynchronous else client
    return None


def run_graph(
    function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], scheduler: Any = None
) -> list[Any]:
    """Call a function on blocks of Dask collections; the calls are tasks of one graph.

    Parameters
    ----------
    function : callable
        Picklable; its results come back to this process, so they should be small.
    calls : iterable of tuple
        The arguments of each call. Delayed objects among them, such as those of
        ``X.to_delayed()``, also in lists, are computed first.
    scheduler : str, distributed.Client, Dask cluster or None
        Where to run, as in `connect`; None: where Dask computes its collections now.

    Returns
    -------
    list
        The result of each call.
    """
    task = delayed(function, pure=False)
    tasks = [task(*call) for call in calls]
    if scheduler is None:
        return list(compute(*tasks))
    with _client_of(scheduler) as client:
        found: list[Any] = client.gather(client.compute(tasks))
    return found


@contextmanager
def _client_of(scheduler: Any) -> Iterator[Client]:
    """Yield a client of a scheduler: the caller's own, which has its persisted blocks, if any."""
    active = active_client()
    address, security = address_of(scheduler)
    if isinstance(scheduler, Client) and not scheduler.asynchronous:
        yield scheduler
    elif active is not None and address_of(active)[0] == address:
        yield active
    else:
        options = {} if security is None else {"security": security}
        with Client(address, set_as_default=False, **options) as own:
            yield own
