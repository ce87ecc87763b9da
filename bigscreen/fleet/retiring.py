"""Let workers leave during a fit: their shards go to other workers first."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Collection
from typing import Any

from distributed import Client

from bigscreen.fleet.tuning import CLUSTER, ClusterTuning

GONE = (OSError, RuntimeError, AttributeError)
"""The errors of a Dask client without its scheduler; AttributeError after it has closed itself."""

LOG = logging.getLogger("bigscreen.fleet")
"""Says which workers have left or joined, and where their shards went."""


class Retiring:
    """The workers that the scheduler was asked to retire while hosts run on them.

    A host is the object on a worker that holds shards (parts of the rows) and steps them.
    Dask retires no worker that holds an actor, such as a host, and tells all who listen that it
    could not. A fleet that hears this moves the shards away, releases the host, and asks again.
    """

    def __init__(self, client: Client, tuning: ClusterTuning = CLUSTER) -> None:
        """Listen to the scheduler's events through a client, until `close`."""
        self._client, self._max_requests = client, tuning.max_deaths
        self._refused: Counter[str] = Counter()  # by address: how often Dask could not retire it
        client.subscribe_topic("all", self._hear)

    def among(self, listed: Collection[str]) -> set[str]:
        """Return which of the listed workers are to leave, and forget all other requests."""
        for address in self._refused.keys() - set(listed):
            self._refused.pop(address, None)
        return set(self._refused)

    def finish(self, busy: Collection[str]) -> None:
        """Retire the workers that are to leave, except those in ``busy``: hosts run there.

        The scheduler does it in its own time. A worker that it refuses too often stays, unused:
        something else runs there.
        """
        idle = [
            address
            for address, refused in self._refused.items()
            if address not in busy and refused <= self._max_requests
        ]
        if not idle:
            return
        loop: Any = self._client.loop
        asyncio.run_coroutine_threadsafe(self._retire(idle), loop.asyncio_loop)

    def close(self) -> None:
        """Stop listening to the scheduler's events."""
        with contextlib.suppress(Exception):  # the client may be closed
            self._client.unsubscribe_topic("all")

    async def _retire(self, addresses: list[str]) -> None:
        """Ask the scheduler to retire workers, and forget the requests that it has carried out."""
        with contextlib.suppress(*GONE):
            scheduler: Any = self._client.scheduler
            for address in await scheduler.retire_workers(workers=addresses, close_workers=True):
                self._refused.pop(address, None)

    def _hear(self, event: tuple[float, Any]) -> None:
        """Note the workers that Dask could not retire, by an ``event`` (time, dict) of Dask's."""
        said = event[1]
        if isinstance(said, dict) and said.get("action") == "retire-workers":
            self._refused.update(said["could-not-retire"])
