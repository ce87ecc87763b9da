"""The fleet on a Dask cluster: rounds through one host per worker, items as plain tasks.

A round is one call to each host and one array back. A host that is gone is noticed by its broken
call; its shards go to the living workers, which load the last checkpoint (or open them anew) and
replay the messages since. Nothing durable lives in the scheduler.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from distributed import Client, Future, WorkerPlugin
from distributed.protocol.pickle import dumps

from bigscreen.checkpoint import Checkpoint, Draft, newest_whole
from bigscreen.fleet import (
    Item,
    Program,
    Result,
    Totals,
    bounded,
    check_shards,
    running,
)
from bigscreen.fleet_host import Function, Message, WorkerSetup, apply, memory_of, packed
from bigscreen.fleet_memory import Sampler
from bigscreen.fleet_seats import GONE, Seat, Seats, listed_workers, outcome
from bigscreen.fleet_shards import added

LOOK_SECONDS = 2.0
"""How often to look for new workers, and how old a report of the workers' memory may be."""


class Cluster:
    """The fleet of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client
        Connected and synchronous. This process must reach the workers' ports, not only the
        scheduler's.
    setup : callable, optional
        Called once on every worker, also on one that comes later (to compile, say). Picklable.
    owned : contextlib.ExitStack, optional
        Closed after the fleet: the client, say, and what it is connected to.
    """

    def __init__(
        self,
        client: Client,
        setup: Callable[[], Any] | None = None,
        owned: contextlib.ExitStack | None = None,
    ) -> None:
        self._client = client
        self._owned = owned or contextlib.ExitStack()
        self._closed = False
        self._program: Program | None = None
        self._torn = False
        self._n_shards = 0
        self._seats = Seats(client, b"")
        self._base: Path | None = None  # what a lost shard starts from ...
        self._log: list[Message] = []  # ... and what has happened since
        self._number = 0  # of the last whole round; never reset: hosts know rounds by it
        self._looked = 0.0
        self._plugin = f"bigscreen-setup-{uuid4().hex}"
        self._register(WorkerSetup(setup), self._plugin)
        self._sampler = Sampler()
        self._workers_memory: dict[tuple[str, int], tuple[int, int]] = {}
        self._memory_seen = -LOOK_SECONDS
        self._peak = 0

    @property
    def address(self) -> str:
        """Of the scheduler, for others to connect to."""
        return self._client.scheduler.address

    @property
    def workers(self) -> int:
        return sum(listed_workers(self._client).values())

    def start(self, program: Program, n_shards: int) -> None:
        check_shards(n_shards)
        self.stop()
        self._n_shards = n_shards
        self._seats = Seats(self._client, dumps(program))
        self._place()
        self._program, self._torn = program, False

    def round(self, message: dict[str, Any]) -> tuple[np.ndarray, Totals]:
        running(self._program, self._torn)
        self._torn = True  # until every shard has stepped
        self._welcome()
        note = packed(message)
        for seat in self._seats.all:
            seat.answers.clear()
        for part in itertools.count():
            # the answers of a host that died are gone with it: its shards step again elsewhere
            self._place()
            late = [seat for seat in self._seats.all if seat.answered < len(seat.shards)]
            if not late:
                break
            answers = self._seats.ask(late, "round", self._number + 1, part, note)
            for seat, answer in answers.items():
                seat.answers.append(answer)
        self._number += 1
        self._log.append(note)
        whole = self._together()
        self._torn = False
        return whole

    def save(self, folder: Path, meta: Mapping[str, Any]) -> None:
        running(self._program, self._torn)
        path = None
        while path is None:
            self._place()
            with Draft(Path(folder).absolute(), meta) as draft:
                seats = [seat for seat in self._seats.all if seat.shards]
                saved = self._seats.ask(seats, "save", str(draft.path))
                checksums = {shard: crc for part in saved.values() for shard, crc in part.items()}
                if len(checksums) == self._n_shards:  # else a worker died: again, from the start
                    path = draft.commit(checksums)
        self._base, self._log = path, []

    def load(self, folder: Path) -> dict[str, Any] | None:
        program = running(self._program)

        def restore(checkpoint: Checkpoint) -> None:
            self._torn = True
            self._seats.ask(list(self._seats.all), "clear")
            for seat in self._seats.all:
                seat.shards.clear()
            self._base, self._log = checkpoint.path, []
            self._place()

        found = newest_whole(Path(folder).absolute(), self._n_shards, restore)
        if found is None and self._torn:
            self.start(program, self._n_shards)
        self._torn = False
        return None if found is None else found.meta

    def each(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        in_flight: int | None = None,
    ) -> Iterator[Result]:
        name = f"bigscreen-each-{uuid4().hex}"
        limit = bounded(in_flight, max(self.workers, 1))
        waiting: deque[Future] = deque()
        self._register(Function(function), name)
        try:
            for number, item in enumerate(items):
                key = f"{name}-{number}"
                waiting.append(self._client.submit(apply, name, item, key=key, retries=2))
                if len(waiting) == limit:
                    yield outcome(self._client, waiting.popleft())
            while waiting:
                yield outcome(self._client, waiting.popleft())
        finally:
            if not self._closed:
                self._client.cancel(list(waiting))
                with contextlib.suppress(OSError):  # a worker that dies just now
                    self._client.unregister_worker_plugin(name)

    def memory(self) -> int:
        if time.monotonic() - self._memory_seen > LOOK_SECONDS:
            self._collect_memory()
        return self._sampler.look() + sum(now for now, _ in self._workers_memory.values())

    @property
    def peak_pss(self) -> int:
        if not self._closed:
            self._collect_memory()
        return max(self._peak, self._sampler.peak)

    def stop(self) -> None:
        self._program = None
        self._seats.release()
        self._base, self._log = None, []

    def close(self) -> None:
        if self._closed:
            return
        with contextlib.suppress(Exception):  # the cluster may be gone, or the client closed
            self.stop()
            self._collect_memory()
            self._client.unregister_worker_plugin(self._plugin)
        self._closed = True
        self._sampler.stop()
        self._owned.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self) -> None:
        """Give every shard that nobody holds to the least loaded host, brought up to date."""
        while orphans := self._orphans():
            self._seats.fill()
            seats = [seat for seat in self._seats.all if seat.alive]
            given: dict[Seat, list[int]] = {seat: [] for seat in seats}
            for shard in orphans:
                seat = min(seats, key=lambda s: (len(s.shards) + len(given[s])) / s.threads)
                given[seat].append(shard)
            base = None if self._base is None else str(self._base)
            calls = [
                (seat, (self._number, shards, base, self._log))
                for seat, shards in given.items()
                if shards
            ]
            for seat in self._seats.ask_each(calls, "adopt"):
                seat.shards += given[seat]

    def _orphans(self) -> list[int]:
        if sum(len(seat.shards) for seat in self._seats.all) == self._n_shards:
            return []
        held = {shard for seat in self._seats.all for shard in seat.shards}
        return [shard for shard in range(self._n_shards) if shard not in held]

    def _welcome(self) -> None:
        """Move shards to workers that came later, such as the replacement of one that died."""
        if time.monotonic() < self._looked + LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        if not self._seats.newcomers():
            return
        self._seats.fill()
        while True:
            seats = sorted(
                (seat for seat in self._seats.all if seat.alive),
                key=lambda seat: len(seat.shards) / seat.threads,
            )
            to, source = seats[0], seats[-1]
            if (len(source.shards) - 1) / source.threads < (len(to.shards) + 1) / to.threads:
                return
            shard = source.shards[-1]
            shown = self._seats.ask([source], "show", shard)
            if not shown or not self._seats.ask([to], "take", self._number, shard, shown[source]):
                return  # one of them is gone: the round will notice
            to.shards.append(shard)
            source.shards.remove(shard)
            self._seats.ask([source], "drop", shard)

    def _together(self) -> tuple[np.ndarray, Totals]:
        answers = [answer for seat in self._seats.all for answer in seat.answers]
        order = np.argsort(np.concatenate([shards for shards, _, _ in answers]))
        widths = {stack.shape[1] for _, stack, _ in answers}
        if len(widths) > 1:
            raise ValueError(f"every step must return the same length, not {sorted(widths)}")
        stack = np.concatenate([stack for _, stack, _ in answers])
        return stack[order], added(totals for _, _, totals in answers)

    def _register(self, plugin: WorkerPlugin, name: str) -> None:
        for last in (False, False, True):
            try:
                self._client.register_plugin(plugin, name=name)
                return
            except OSError:  # a worker that dies just now
                if last:
                    raise
                time.sleep(0.2)

    def _collect_memory(self) -> None:
        try:
            told = self._client.run(memory_of, self._plugin, on_error="ignore").values()
        except GONE:
            return  # what is known must do
        here = platform.node(), os.getpid()  # workers may be threads of this process
        self._workers_memory = {
            process: (now, peak) for process, now, peak in filter(None, told) if process != here
        }
        self._memory_seen = time.monotonic()
        peaks = sum(peak for _, peak in self._workers_memory.values())
        self._peak = max(self._peak, self._sampler.peak + peaks)
