"""Run functions on the blocks of a user's Dask collections: at once, or later as lazy arrays."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
import numpy as np
from dask.base import compute
from dask.delayed import delayed
from distributed import Client, get_worker
from numpy.typing import DTypeLike, NDArray

from bigscreen.fleet.blas import blas_threads
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


def row_blocks(array: Any) -> Any:
    """Return an array on disk or in a bucket, such as one of zarr, as a lazy Dask array.

    A block has all columns, and a number of whole chunks of the array's rows that Dask chooses.
    """
    import dask.array as da  # see `map_rows`

    return da.from_array(array, chunks=("auto", *[-1] * (array.ndim - 1)))


def map_rows(
    name: str,
    function: Callable[[Any, Any], Any],
    shared: Any,
    X: Any,
    columns: int | None,
    dtype: DTypeLike,
) -> Any:
    """Call a function for each block of rows of a Dask array, lazily: one task for each block.

    Parameters
    ----------
    name : str
        What Dask calls the tasks, on its dashboard for example.
    function : callable
        Called with ``shared`` and a block's rows, all columns of it; picklable.
    shared : object
        What all tasks need, such as a model: one task of the graph, which the others depend on. If
        it is lazy itself (`later`), its value.
    X : Dask array (n, d)
        Blocks of rows may be of unknown sizes, and may be sparse if the function takes such rows.
    columns : int or None
        Number of columns of the function's result; None: it returns one value for each row.
    dtype : type of numbers
        Type of the function's result.

    Returns
    -------
    Dask array (n, columns) or (n,)
        With the blocks of rows of X.
    """
    import dask.array as da  # takes 0.2 s, which fits of arrays in memory need not wait for

    X = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
    # (With a key by chance: Dask's hash of an estimator knows its parameters, not what was fitted.)
    common = delayed(shared, traverse=False, pure=False)
    shape: dict[str, Any] = {"drop_axis": 1}
    if columns is not None:
        shape = {"chunks": (X.chunks[0], (columns,))}
    nothing = np.empty((0,) if columns is None else (0, columns), dtype)
    return da.map_blocks(
        _answer, X, common, token=name, function=function, nothing=nothing, meta=nothing, **shape
    )


def later(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a lazy call of a function, as one task of a graph, for ``shared`` of `map_rows`.

    The function's argument, ``value``, is a task of its own.
    """
    return delayed(function, pure=False)(delayed(value, traverse=False, pure=False))


def _answer(
    block: Any, shared: Any, function: Callable[[Any, Any], Any], nothing: NDArray[Any]
) -> NDArray[Any]:
    """Return ``function(shared, block)``, or ``nothing``, an array, if the block has no rows."""
    if not block.shape[0]:
        return nothing
    with blas_threads(1):  # Dask gives every core a task, and one thread has the same bits anywhere
        found: NDArray[Any] = function(shared, block)
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
