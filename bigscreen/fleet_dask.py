"""The fleet on a Dask cluster: rounds through one host per worker, items as plain tasks.

A round is one call to each host and one array back. A host that is gone is noticed by its broken
call; its shards go to the living workers, which load the last checkpoint (or open them anew) and
replay the messages since. Nothing durable lives in the scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import platform
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from distributed import Client, Future, WorkerPlugin
from distributed.protocol.pickle import dumps

from bigscreen.checkpoint import Checkpoint, Draft, newest_whole, write_shard
from bigscreen.fleet import (
    Item,
    Program,
    Result,
    Totals,
    bounded,
    check_shards,
    running,
)
from bigscreen.fleet_host import (
    Arrays,
    Function,
    Leaving,
    Message,
    Shielded,
    WorkerSetup,
    apply,
    memory_of,
    packed,
)
from bigscreen.fleet_memory import Sampler
from bigscreen.fleet_scratch import scratch
from bigscreen.fleet_seats import Seat, Seats
from bigscreen.fleet_shards import added
from bigscreen.fleet_workers import (
    GONE,
    LIKELY,
    LOOK_SECONDS,
    Workers,
    give_up_frozen,
    outcome,
)

LOG_BYTES = 32 * 2**20
"""Messages kept for replay; beyond, the states are copied to this machine, if they take less."""

MOST_DEATHS = 3
"""Workers that may die in one round with the same shard."""


@dataclass(frozen=True)
class _Item:
    """An item handed out, where alone it may run (None: anywhere), and how to hand it out again."""

    future: Future
    only: list[str] | None
    again: Callable[[], _Item]


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
    deadline : float, optional
        Value of ``time.monotonic()`` that bounds the waiting for workers.
    shielded : bool
        Keep Ctrl-C, which reaches a whole process group, from the workers.
    check : callable, optional
        Refuses a cluster by raising, before anything of it is changed.
    """

    def __init__(
        self,
        client: Client,
        setup: Callable[[], Any] | None = None,
        owned: contextlib.ExitStack | None = None,
        deadline: float | None = None,
        shielded: bool = False,
        check: Callable[[Client], None] | None = None,
    ) -> None:
        self._client = client
        self._workers = Workers(client, deadline)
        self._owned = owned or contextlib.ExitStack()
        self._closed = False
        self._program: Program | None = None
        self._torn = False
        self._n_shards = 0
        self._seats = Seats(self._workers, b"")
        self._base: Path | None = None  # what a lost shard starts from, a checkpoint ...
        self._copy: Checkpoint | None = None  # ... or a copy of the states on this machine ...
        self._log: list[Message] = []  # ... and what has happened since
        self._log_limit = LOG_BYTES
        self._deaths: Counter[int] = Counter()  # in the present round, by shard
        self._number = 0  # of the last whole round; never reset: hosts know rounds by it
        self._looked = 0.0
        self._name = f"bigscreen-{uuid4().hex}"
        self._eaches = itertools.count()
        self._sampler = Sampler()
        self._workers_memory: dict[tuple[str, int], tuple[int, int]] = {}
        self._memory_seen = -LOOK_SECONDS
        self._peak = 0
        self._copies = contextlib.ExitStack()
        self._copies_folder: Path | None = None
        loop: Any = client.loop
        self._watch = asyncio.run_coroutine_threadsafe(give_up_frozen(client), loop.asyncio_loop)
        try:
            if check is not None:
                check(client)
            with contextlib.suppress(Exception):  # a scheduler that lacks bigscreen can do without
                client.register_plugin(Leaving(client.id, self._name), name=self._name)
            if shielded:
                self._register(Shielded(), f"{self._name}-shield")
            self._register(WorkerSetup(setup), self._plugin)
        except BaseException:
            self._leave()
            raise

    @property
    def address(self) -> str:
        """Of the scheduler, for others to connect to."""
        return self._client.scheduler.address

    @property
    def security(self) -> Any:
        """What other clients need to connect to it, a `distributed.Security`."""
        return self._client.security

    @property
    def workers(self) -> int:
        return sum(self._workers.listed().values())

    @property
    def _plugin(self) -> str:
        return f"{self._name}-setup"

    def start(self, program: Program, n_shards: int) -> None:
        check_shards(n_shards)
        self.stop()
        self._n_shards = n_shards
        self._seats = Seats(self._workers, dumps(program))
        self._what = type(program).__name__
        self._place()
        self._deaths.clear()
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
            self._count_deaths({seat: seat.shards for seat in late}, answers, "a step")
        self._number += 1
        self._log.append(note)
        self._deaths.clear()
        whole = self._together()
        self._torn = False
        self._shorten()
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
            self._count_deaths({seat: seat.shards for seat in seats}, saved, "a checkpoint")
        self._deaths.clear()
        self._begin_log(path)

    def load(self, folder: Path) -> dict[str, Any] | None:
        program = running(self._program)

        def restore(checkpoint: Checkpoint) -> None:
            self._torn = True
            self._seats.ask(list(self._seats.all), "clear")
            for seat in self._seats.all:
                seat.shards.clear()
            self._begin_log(checkpoint.path)
            self._place()
            self._deaths.clear()

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
        name = f"{self._name}-each-{next(self._eaches)}"
        limit = bounded(in_flight, max(self.workers, 1))
        what = getattr(function, "__qualname__", type(function).__qualname__)
        waiting: deque[_Item] = deque()
        self._register(Function(function), name)

        def submitted(number: int, item: Item, turn: int = 0) -> _Item:
            only = self._workers.only
            future = self._client.submit(
                apply,
                name,
                item,
                key=f"{name}-{number}-{turn}",
                retries=2,
                workers=only,
                allow_other_workers=False,
            )
            return _Item(future, only, lambda: submitted(number, item, turn + 1))

        try:
            for number, item in enumerate(items):
                waiting.append(submitted(number, item))
                if len(waiting) == limit:
                    yield self._outcome(waiting, what)
            while waiting:
                yield self._outcome(waiting, what)
        finally:
            if not self._closed:
                self._client.cancel([each.future for each in waiting])
                with contextlib.suppress(*GONE, ValueError):  # a worker that dies just now
                    self._client.unregister_worker_plugin(name)

    def _outcome(self, waiting: deque[_Item], what: str) -> Any:
        """The result of the first item, handed out anew when those who might run it are gone."""
        while True:
            first = waiting[0]
            if outcome_known := outcome(self._workers, first.future, first.only, what):
                waiting.popleft()
                return outcome_known[0]
            waiting[0] = first.again()

    def rely_on(self, files: Iterable[Path]) -> None:
        self._workers.rely_on(files)

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
        self._begin_log(None)

    def close(self) -> None:
        if self._closed:
            return
        try:
            with contextlib.suppress(Exception):  # the cluster may be gone, or the client closed
                self.stop()
                self._collect_memory()
            self._leave()
        finally:
            self._owned.close()

    def _leave(self) -> None:
        """Leave the cluster as it was."""
        self._closed = True
        for name, unregister in (
            (self._plugin, self._client.unregister_worker_plugin),
            (self._name, self._client.unregister_scheduler_plugin),
        ):
            with contextlib.suppress(Exception):
                unregister(name)
        self._watch.cancel()
        self._copies.close()
        self._sampler.stop()

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
            given = {seat: shards for seat, shards in given.items() if shards}
            calls = [
                (seat, (self._number, shards, self._saved(shards), self._log))
                for seat, shards in given.items()
            ]
            adopted = self._seats.ask_each(calls, "adopt")
            for seat in adopted:
                seat.shards += given[seat]
            self._count_deaths(given, adopted, "opening or repeating steps")

    def _saved(self, shards: list[int]) -> str | dict[int, Arrays] | None:
        """What lost shards start from, as a host takes it."""
        if self._copy is not None:
            return {shard: self._copy.shard(shard) for shard in shards}
        return None if self._base is None else str(self._base)

    def _begin_log(self, base: Path | None) -> None:
        self._base, self._copy, self._log, self._log_limit = base, None, [], LOG_BYTES

    def _shorten(self) -> None:
        """Copy the states here once the messages since the last copy take more room than those."""
        if sum(len(part) for note in self._log for part in note) <= self._log_limit:
            return
        seats = [seat for seat in self._seats.all if seat.shards]
        checksums: dict[int, int] = {}
        try:
            if self._copies_folder is None:
                self._copies_folder = Path(self._copies.enter_context(scratch("bigscreen-states-")))
            with Draft(self._copies_folder, {}) as draft:
                for turn in range(max(len(seat.shards) for seat in seats)):
                    calls = [(s, (s.shards[turn],)) for s in seats if turn < len(s.shards)]
                    shown = self._seats.ask_each(calls, "show")
                    if len(shown) < len(calls):
                        return  # a host is gone: after the next round
                    for seat, arrays in shown.items():
                        shard = seat.shards[turn]
                        checksums[shard] = write_shard(draft.path, shard, arrays)
                copy = Checkpoint.read(draft.commit(checksums))
        except OSError:
            self._log_limit *= 2  # no room on this machine's disk
            return
        size = sum(file.stat().st_size for file in copy.path.iterdir())
        self._base, self._copy, self._log = None, copy, []
        self._log_limit = max(LOG_BYTES, size)

    def _count_deaths(
        self, asked: Mapping[Seat, list[int]], answered: Mapping[Seat, Any], what: str
    ) -> None:
        """Count hosts that did not answer for each of their shards.

        Raises
        ------
        ConnectionError
            If a shard has had too many in this round.
        """
        lost = [shards for seat, shards in asked.items() if seat not in answered]
        self._deaths.update(shard for shards in lost for shard in shards)
        fatal = sorted(shard for shard, n in self._deaths.items() if n >= MOST_DEATHS)
        if fatal:
            some = ", ".join(map(str, fatal[:5])) + (", ..." if len(fatal) > 5 else "")
            where = f"shard {some}" if len(fatal) == 1 else f"one of the shards {some}"
            raise ConnectionError(
                f"{MOST_DEATHS} workers one after the other died in {what} of {self._what} on "
                f"{where}; {LIKELY}"
            )

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
        until = self._workers.until()
        while True:
            try:
                self._client.register_plugin(plugin, name=name)
                return
            except OSError:  # a worker that dies just now
                self._workers.living()
                if time.monotonic() > until:
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
