"""Track the usable workers of a cluster: they answer, and see the files of the fit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from itertools import takewhile
from pathlib import Path
from typing import Any
from uuid import uuid4

import distributed
from dask.base import get_annotations
from distributed import Client, Future, KilledWorker
from distributed.comm.core import CommClosedError

from bigscreen.errors import InputError
from bigscreen.files.remote import RemotePath
from bigscreen.fleet.memory import held_within
from bigscreen.fleet.retiring import GONE, Retiring
from bigscreen.fleet.shards import Sampler
from bigscreen.fleet.tuning import CLUSTER, ClusterTuning
from bigscreen.fleet.worker import file_digests, memory_of


class Silent(ConnectionError):
    """Raised if a scheduler has not answered in time."""


class Workers:
    """The usable workers of a cluster.

    Attributes
    ----------
    unreachable : set of str
        Addresses of workers that the scheduler lists, but that do not answer this process.
    retiring : Retiring
        The workers that are to leave.
    deadline : float or None
        Value of ``time.monotonic()`` that bounds the waiting for workers.
    """

    def __init__(
        self,
        client: Client,
        deadline: float | None = None,
        tuning: ClusterTuning = CLUSTER,
    ) -> None:
        """List the workers of a client; ``deadline`` (``time.monotonic()``) bounds waiting.

        ``_files`` has the hash of each file that workers must see; ``_seeing`` and ``_blind`` are
        the addresses of the workers that see all of them, or do not. ``_chosen`` has what
        ``dask.annotate``, around the fit, says of the workers that may be used.
        """
        self.client, self.deadline, self.tuning = client, deadline, tuning
        self._scheduler: Any = client.scheduler  # None of no connected client
        annotations: dict[str, Any] = get_annotations()
        self._chosen = {k: v for k, v in annotations.items() if k in ("workers", "resources")}
        self.unreachable: set[str] = set()
        self.retiring = Retiring(client, tuning)
        self._files: dict[str, str | None] = {}
        self._seeing: set[str] = set()
        self._blind: dict[str, str] = {}  # by worker, the first file that it does not see

    @property
    def address(self) -> str:
        """The address of the scheduler."""
        address: str = self._scheduler.address
        return address

    def listed(self) -> dict[str, int]:
        """Return the threads of usable workers by address; ConnectionError without a scheduler."""
        listed = self._allowed(self._listed())
        new = listed.keys() - self._seeing - self._blind.keys()
        if self._files and new:
            self._look(sorted(new))
        without = self.unreachable | self._blind.keys()
        usable = {address: n for address, n in listed.items() if address not in without}
        leaving = self.retiring.among(usable)
        staying = {address: n for address, n in usable.items() if address not in leaving}
        return staying or usable  # no other can take over from the last one

    def least_memory(self) -> int | None:
        """Return the least memory for each thread, in bytes, of the workers with a limit."""
        usable = self.listed()
        workers = self._described().items()
        limits = {address: one["memory_limit"] for address, one in workers if address in usable}
        return min(
            (held_within(n) // usable[address] for address, n in limits.items() if n), default=None
        )

    def living(self) -> dict[str, int]:
        """Wait for a usable worker; returns the threads of all by address.

        Raises
        ------
        ConnectionError
            If there is no worker for a minute, or within the time budget, or no scheduler.
        """
        began, until = time.monotonic(), self.until()
        while True:
            if living := self.listed():
                return living
            if time.monotonic() > until:
                raise ConnectionError(
                    f"the cluster has had no worker that answers for {until - began:.0f} s: "
                    "start workers and run again"
                )
            time.sleep(0.05)

    def until(self) -> float:
        """Return when (``time.monotonic()``) to stop waiting for a worker, if it begins now."""
        now = time.monotonic()
        most = self.tuning.patience_seconds
        left = most if self.deadline is None else self.deadline - now
        return now + min(most, max(left, self.tuning.min_patience_seconds))

    @property
    def cause_of_deaths(self) -> str:
        """The likely cause if workers die one after the other, and what to do, for messages."""
        return (
            "the likely cause is memory, or a machine so busy that they were not heard of for "
            f"{self.tuning.frozen_seconds:.0f} s: give each worker more memory, or run fewer of "
            "them on a machine"
        )

    @property
    def only(self) -> list[str] | None:
        """The addresses of the workers that may run tasks; None: all."""
        return sorted(self.listed()) if self._blind or self._chosen else None

    def rely_on(self, files: Iterable[Path | RemotePath]) -> None:
        """Use only the workers that see the same files as this process from now on.

        Raises
        ------
        InputError
            If no worker sees them.
        """
        self._files = file_digests([str(file.absolute()) for file in files])
        self._seeing, self._blind = set(), {}
        usable = self.listed()
        if not self._blind:
            return
        path = next(iter(self._blind.values()))
        if not usable:
            raise InputError(
                f"no worker of {self.address} sees {path} as it is here: put it "
                "where every machine has it under the same path"
            )
        blind = ", ".join(sorted(self._blind))
        warnings.warn(
            f"{len(self._blind)} of {len(self._blind) + len(usable)} workers do not see {path} as "
            f"it is here and are left out: {blind}",
            stacklevel=3,
        )

    def check_annotations(self) -> None:
        """Raise InputError if ``dask.annotate``, around the fit, allows none of the workers."""
        listed = self._listed()
        if listed and not self._allowed(listed):
            chosen = ", ".join(f"{name}={of!r}" for name, of in sorted(self._chosen.items()))
            raise InputError(
                f"no worker of {self.address} is allowed by dask.annotate({chosen}); there are "
                f"{', '.join(sorted(listed))}"
            )

    def _allowed(self, listed: dict[str, int]) -> dict[str, int]:
        """Return the workers in ``listed`` (threads by address) that ``dask.annotate`` allows."""
        if not self._chosen:
            return listed
        names, resources = self._chosen.get("workers"), self._chosen.get("resources", {})
        names = [names] if isinstance(names, str) else names
        described, allowed = self._described(), {}
        if not described:
            return listed  # the next call to the cluster will raise
        for address, one in described.items():
            named = names is None or not {address, one["name"], one["host"]}.isdisjoint(names)
            enough = all(one["resources"].get(name, 0) >= n for name, n in resources.items())
            if address in listed and named and enough:
                allowed[address] = listed[address]
        return allowed

    def _described(self) -> dict[str, dict[str, Any]]:
        """Return what the scheduler knows of its workers, by address; empty without a scheduler."""
        try:
            known: Any = self.client.sync(
                self._scheduler.identity, callback_timeout=self.tuning.frozen_seconds
            )
        except GONE:
            return {}  # the next call to the cluster will raise
        workers: dict[str, dict[str, Any]] = known["workers"]
        return workers

    def _listed(self) -> dict[str, int]:
        """Ask the scheduler for its workers: threads by address."""
        try:
            listed: dict[str, int] = self.client.sync(
                self._scheduler.ncores, callback_timeout=self.tuning.frozen_seconds
            )
        except Silent:
            raise
        except GONE as error:
            raise ConnectionError(
                "the Dask scheduler is gone: start it and its workers and run again"
            ) from error
        return listed

    def _look(self, new: list[str]) -> None:
        """Check whether new workers (addresses) see this process's files, and record the answer."""
        names = list(self._files)
        try:
            seen = self.client.run(file_digests, names, workers=new, on_error="ignore")
        except GONE:
            return  # a worker is just dying: check again next time
        for address, found in seen.items():
            unlike = next((name for name in names if found[name] != self._files[name]), None)
            if unlike is None:
                self._seeing.add(address)
            else:
                self._blind[address] = unlike


class Memory:
    """The memory of this process and of a cluster's workers."""

    def __init__(self, client: Client, plugin: str, max_age: float) -> None:
        """Begin to measure this process, and the workers through their plugin named ``plugin``.

        Measurements of workers are fetched again if they are older than ``max_age`` seconds.
        """
        self._client, self._plugin, self._max_age = client, plugin, max_age
        self.own = Sampler()
        self._workers: dict[tuple[str, int], tuple[int, int]] = {}  # now and peak, by process
        self._seen = -max_age
        self._peak = 0

    def now(self) -> int:
        """Return the present bytes; those of workers are at most ``max_age`` seconds old."""
        if time.monotonic() - self._seen > self._max_age:
            self.collect()
        return self.own.look() + sum(now for now, _ in self._workers.values())

    @property
    def peak(self) -> int:
        """The peak memory in bytes; an upper bound, as it is the sum of the processes' peaks."""
        return max(self._peak, self.own.peak)

    def collect(self) -> None:
        """Fetch the memory of all workers, now and at its peak, and update the sum of the peaks."""
        try:
            found = self._client.run(memory_of, self._plugin, on_error="ignore").values()
        except GONE:
            return  # keep the last measurements
        here = platform.node(), os.getpid()  # workers may be threads of this process
        self._workers = {
            process: (now, peak) for process, now, peak in filter(None, found) if process != here
        }
        self._seen = time.monotonic()
        peaks = sum(peak for _, peak in self._workers.values())
        self._peak = max(self._peak, self.own.peak + peaks)


def wait_for_results(
    workers: Workers, futures: Sequence[Future[Any]], only: Sequence[str] | None, what: str
) -> list[Any]:
    """Wait for the result of the first task; Dask alone would wait forever if every worker died.

    Parameters
    ----------
    futures : sequence of Future
        The task to wait for, and tasks whose results are fetched with it if they have ended: one
        message for all of them.
    only : list of str or None
        The workers that may run the first task; None: all.
    what : str
        The name of the tasks for error messages.

    Returns
    -------
    list
        The results of the first task and of those after it up to the first that has not ended.
        Empty if all workers that may run the first task are gone, and there are others.

    Raises
    ------
    ConnectionError
        If the scheduler is gone, there is no worker for a minute, or the task kills its workers.
    """
    first, *others = futures
    seconds = workers.tuning.look_seconds
    while True:
        try:
            if _is_done(workers.client, first, workers.tuning.look_seconds):
                ready = [first, *takewhile(lambda each: each.status == "finished", others)]
                fetch: Any = workers.client.sync
                found: list[Any] = fetch(_fetch, workers.client, ready, seconds)
                if found:
                    return found
                seconds *= 2.0  # large results may take longer
        except KilledWorker as error:
            cause = workers.cause_of_deaths
            raise ConnectionError(f"every worker that ran {what} died; {cause}") from error
        except (CommClosedError, CancelledError, asyncio.CancelledError) as error:
            if first.status in ("cancelled", "lost"):
                raise ConnectionError("the Dask scheduler has lost its tasks") from error
        living = workers.living()  # raises if no worker comes
        if only is not None and living.keys().isdisjoint(only):
            first.cancel()
            return []


def _is_done(client: Client, future: Future[Any], seconds: float) -> bool:
    """Whether a task ends within this time.

    A TimeoutError of the task's own function is not caught here: only waiting is in the try block.
    """
    try:
        with client.as_current():  # wait needs a default client
            distributed.wait([future], timeout=seconds)
    except TimeoutError:
        return False
    return True


async def _fetch(client: Client, futures: Sequence[Future[Any]], seconds: float) -> list[Any]:
    """Fetch the results of tasks that have ended; empty if they do not come within this time.

    The connection to a frozen worker stays open, so that fetching from it would never end. A later
    attempt asks the scheduler anew where the results are.
    """
    gathering: Any = client.gather(futures, asynchronous=True)
    call = asyncio.ensure_future(gathering)
    try:
        done, _ = await asyncio.wait({call}, timeout=seconds)
        return list(await call) if done else []
    finally:
        call.cancel()


async def give_up_frozen(client: Client, tuning: ClusterTuning) -> None:
    """Restart or remove frozen workers; runs until it is cancelled.

    A stopped process keeps its connections open, so only missing heartbeats show it. Dask removes
    such workers, too, but only after five minutes.
    """
    scheduler: Any = client.scheduler
    heard: dict[str, tuple[float, float]] = {}  # last heartbeat, and when it was first seen here
    looked = time.monotonic()
    while True:
        await asyncio.sleep(tuning.look_seconds)
        try:
            known = await asyncio.wait_for(scheduler.identity(), tuning.frozen_seconds)
        except (TimeoutError, *GONE):
            continue
        now = time.monotonic()
        if now - looked > 3 * tuning.look_seconds:
            heard = {}  # this process or the scheduler was frozen, and missed heartbeats
        looked = now
        beats = {address: worker["last_seen"] for address, worker in known["workers"].items()}
        heard = {
            address: heard[address] if heard.get(address, (0,))[0] == beat else (beat, now)
            for address, beat in beats.items()
        }
        # With more workers, Dask makes heartbeats rarer.
        patience = max(tuning.frozen_seconds, len(beats) / 10)
        frozen = [address for address, (_, since) in heard.items() if now - since > patience]
        if frozen:
            with contextlib.suppress(*GONE):
                await scheduler.restart_workers(
                    workers=frozen,
                    wait_for_workers=False,
                    on_error="return",
                    stimulus_id=f"bigscreen-frozen-{uuid4().hex}",
                )
            looked = time.monotonic()


def first_difference(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """Describe the first version that differs; of Python's only major and minor number count."""
    for name, version in own.items():
        other = theirs.get(name)
        if name == "python":
            version, other = (".".join(str(v).split(".")[:2]) for v in (version, other))
        if other != version:
            return f"{name} {other or '(none)'} where this process has {version}"
    return None
