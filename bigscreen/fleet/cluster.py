"""The fleet on a Dask cluster: a host object on each worker runs rounds; items are Dask tasks.

In a round each host gets one call and returns one array. If a call breaks because a host is gone,
its shards go to other workers, which load the last checkpoint (or open the shards anew) and replay
the messages sent since. The scheduler holds nothing that must not be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask.config
import numpy as np
from dask.sizeof import sizeof
from distributed import Client, Future, WorkerPlugin
from distributed.protocol.pickle import dumps

from bigscreen.errors import InputError
from bigscreen.files.checkpoint import Checkpoint, Draft, restore_newest
from bigscreen.files.remote import RemotePath
from bigscreen.fleet.hosts import Seat, Seats
from bigscreen.fleet.inline import Item, Result, check_shards, in_flight_limit, require_running
from bigscreen.fleet.recovery import Recovery
from bigscreen.fleet.retiring import GONE
from bigscreen.fleet.shards import FloatArray, Program, Totals, add_totals
from bigscreen.fleet.tuning import CLUSTER, ClusterTuning
from bigscreen.fleet.worker import (
    Function,
    Leaving,
    Shielded,
    WorkerSetup,
    apply,
    in_thread,
    pack_message,
)
from bigscreen.fleet.workers import (
    Memory,
    Workers,
    give_up_frozen,
    wait_for_results,
)


@dataclass(frozen=True)
class _Item:
    """An item of work that was submitted as a Dask task.

    ``only`` are the workers that may run it (None: all); ``again`` submits it anew, as a list of
    one.
    """

    future: Future[Any]
    only: list[str] | None
    again: Callable[[], list[_Item]]


class Cluster:
    """The fleet (the workers of a fit) on the workers of a Dask cluster.

    It steps shards (parts of the rows) in rounds, by the rules of a program, and maps functions
    over independent items.

    Parameters
    ----------
    client : distributed.Client
        A connected, synchronous client. This process must be able to reach the ports of the
        workers as well as that of the scheduler.
    owned : contextlib.ExitStack, optional
        Resources to close after the fleet, such as the client and its local cluster.
    deadline : float, optional
        Value of ``time.monotonic()`` that bounds the waiting for workers.
    shielded : bool
        Make the workers ignore Ctrl-C, which reaches all processes of a process group.
    check : callable, optional
        Called with the client before anything is changed; raises to refuse the cluster.
    tuning : ClusterTuning
    """

    def __init__(
        self,
        client: Client,
        owned: contextlib.ExitStack | None = None,
        deadline: float | None = None,
        shielded: bool = False,
        check: Callable[[Client], None] | None = None,
        tuning: ClusterTuning = CLUSTER,
    ) -> None:
        """Check the cluster, and prepare its workers by plugins.

        ``owned`` are resources to close after the fleet. ``deadline``, a value of
        ``time.monotonic()``, bounds the waiting for workers. ``shielded``: make workers ignore
        Ctrl-C. ``check(client)`` raises to refuse the cluster.
        """
        self._client, self._tuning = client, tuning
        self._workers = Workers(client, deadline, tuning)
        self._owned = owned or contextlib.ExitStack()
        self._closed = False
        self._program: Program | None = None
        self._torn = False  # whether some shards may have stepped and others not
        self._n_shards = 0
        self._seats = Seats(self._workers, b"")
        self._recovery = Recovery(tuning.log_bytes)
        self._number = 0  # of the last whole round; never reset, as hosts identify rounds by it
        self._looked = 0.0
        self._name = f"bigscreen-{uuid4().hex}"
        self._eaches = itertools.count()
        self._memory = Memory(client, self._plugin, tuning.look_seconds)
        loop: Any = client.loop
        watch = give_up_frozen(client, tuning)
        self._watch = asyncio.run_coroutine_threadsafe(watch, loop.asyncio_loop)
        try:
            if check is not None:
                check(client)
            self._workers.check_annotations()
            with contextlib.suppress(Exception):  # a scheduler without bigscreen does not need it
                client.register_plugin(Leaving(client.id, self._name), name=self._name)
            if shielded:
                self._register(Shielded(), f"{self._name}-shield")
            self._register(WorkerSetup(self._plugin), self._plugin)
        except BaseException:
            self._leave()
            raise

    @property
    def address(self) -> str:
        """The address of the scheduler, for other clients."""
        return self._workers.address

    @property
    def security(self) -> Any:
        """The `distributed.Security` that other clients need to connect."""
        return self._client.security

    @property
    def workers(self) -> int:
        """The number of steps that run at once, one on each thread."""
        return sum(self._workers.listed().values())

    @property
    def worker_memory(self) -> int | None:
        """Bytes that a worker may hold for each thread; None without a limit."""
        return self._workers.least_memory()

    @property
    def _plugin(self) -> str:
        """The name of the plugin that prepares this fleet's workers."""
        return f"{self._name}-setup"

    def start(self, program: Program, n_shards: int) -> None:
        """Make the state of every shard (part of the rows), as ``program`` opens it.

        A program that ran before is stopped.
        """
        check_shards(n_shards)
        self.stop()
        self._n_shards = n_shards
        name = type(program).__name__
        self._seats = Seats(self._workers, dumps(program), name)
        self._place()
        self._seats.deaths.clear()
        self._program, self._torn = program, False

    def round(self, message: dict[str, Any]) -> tuple[FloatArray, Totals]:
        """Send a message to all shards, each of which computes one step of the program.

        Returns the shards' vectors, (n_shards, k), and their totals: exact integer sums by name.
        """
        require_running(self._program, self._torn)
        self._torn = True  # until every shard has stepped
        self._rebalance()
        note = pack_message(message)
        for seat in self._seats.all:
            seat.answers.clear()
        whole = None
        for part in itertools.count():
            # the answers of a host that died are lost: its shards step again on other hosts
            self._place()
            late = [seat for seat in self._seats.all if seat.answered < len(seat.shards)]
            if not late:
                if (whole := self._together()) is None:
                    continue
                break
            shares = self._seats.machines >= self._tuning.min_sharing_machines
            shares = shares and len(self._seats.all) > 2
            keep_bytes = self._tuning.min_shared_bytes if shares else None
            answers = self._seats.ask(late, "round", self._number + 1, part, note, keep_bytes)
            for seat, answer in answers.items():
                seat.answers.append(answer)
            self._seats.count_deaths({seat: seat.shards for seat in late}, answers, "a step")
        self._number += 1
        self._recovery.log.append(note)
        self._seats.deaths.clear()
        self._torn = False
        self._recovery.shorten(self._seats)
        assert whole is not None
        return whole

    def save(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Write a checkpoint of the states of all shards, and of the caller's record ``meta``."""
        require_running(self._program, self._torn)
        path = None
        while path is None:
            self._place()
            with Draft(Path(folder).absolute(), meta) as draft:
                seats = [seat for seat in self._seats.all if seat.shards]
                saved = self._seats.ask(seats, "save", str(draft.path))
                checksums = {shard: crc for part in saved.values() for shard, crc in part.items()}
                if len(checksums) == self._n_shards:  # else a worker died: save again
                    path = draft.commit(checksums)
            self._seats.count_deaths({seat: seat.shards for seat in seats}, saved, "a checkpoint")
        self._seats.deaths.clear()
        self._recovery.begin(path)

    def load(self, folder: Path) -> dict[str, Any] | None:
        """Restore the shards' states of the newest complete checkpoint in a folder.

        Returns the caller's record (meta) in it; None, with unchanged states, if there is none.
        """
        program = require_running(self._program)

        def restore(checkpoint: Checkpoint) -> None:
            """Replace the states of all shards by those of a checkpoint."""
            self._torn = True
            self._seats.ask(list(self._seats.all), "clear")
            for seat in self._seats.all:
                seat.shards.clear()
            self._recovery.begin(checkpoint.path)
            self._place()
            self._seats.deaths.clear()

        found = restore_newest(Path(folder).absolute(), self._n_shards, restore)
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
        """Yield ``function(item)`` for every item, in order, with ``in_flight`` at a time."""
        name = f"{self._name}-each-{next(self._eaches)}"
        what = getattr(function, "__qualname__", type(function).__qualname__)
        # Dask's dashboard groups tasks by the letters at the start of their keys.
        shown = re.sub("[^A-Za-z]+", "", what.rpartition(".")[2])
        key = name.replace("bigscreen", f"bigscreen-{shown}")
        limit = in_flight_limit(in_flight, max(self.workers, 1))
        left, waiting = enumerate(items), deque[_Item]()
        largest = self._tuning.max_gather_bytes  # of a result, as far as is known
        self._register(Function(function, name), name)

        def submit(batch: Sequence[tuple[int, Item]], turn: int = 0) -> list[_Item]:
            """Submit numbered items to the cluster; ``turn`` numbers the attempts at an item."""
            only = self._workers.only
            # (Dask warns of graphs of 10 MB, meant for data that would better be read by workers.)
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": sys.maxsize}):
                futures = self._client.map(
                    apply,
                    [name] * len(batch),
                    [item for _, item in batch],
                    key=[f"{key}-{number}-{turn}" for number, _ in batch],
                    retries=2,
                    workers=only,
                    allow_other_workers=False,
                )
            return [
                _Item(future, only, partial(submit, [one], turn + 1))
                for future, one in zip(futures, batch, strict=True)
            ]

        try:
            while True:
                if batch := list(islice(left, limit - len(waiting))):
                    waiting += submit(batch)
                if not waiting:
                    return
                together = max(1, self._tuning.max_gather_bytes // largest)
                results = self._collect(waiting, together, what)
                largest = max(1, *(sizeof(getattr(each, "__dict__", each)) for each in results))
                yield from results
        finally:
            if not self._closed:
                self._client.cancel([each.future for each in waiting])
                with contextlib.suppress(*GONE, ValueError, KeyError):  # a worker dies or begins
                    self._client.unregister_worker_plugin(name)

    def _collect(self, waiting: deque[_Item], together: int, what: str) -> list[Any]:
        """Wait for the first item in ``waiting``; return the results of all items that are ready.

        At most ``together`` items, from the first on, are removed and their results returned. The
        first is submitted anew if its workers have died. ``what``: the function's name in error
        messages.
        """
        while True:
            futures = [each.future for each in islice(waiting, together)]
            results = wait_for_results(self._workers, futures, waiting[0].only, what)
            if results:
                for _ in results:
                    waiting.popleft()
                return results
            (waiting[0],) = waiting[0].again()

    def everywhere(self, function: Callable[[], Result]) -> list[Result]:
        """Return ``function()`` of each worker process; a worker that dies meanwhile has none."""
        until = self._workers.until()
        while True:
            workers, found = list(self._workers.living()), []
            answers = self._client.run(in_thread, function, workers=workers, on_error="return")
            for address, answer in answers.items():
                if isinstance(answer, InputError):
                    raise InputError(f"the worker {address}: {answer}") from answer
                if isinstance(answer, Exception) and not isinstance(answer, OSError):
                    raise answer
                if not isinstance(answer, OSError):  # (of a worker that dies just now)
                    found.append(answer)
            if found or time.monotonic() > until:
                return found
            time.sleep(0.2)

    def rely_on(self, files: Iterable[Path | RemotePath]) -> None:
        """Use only workers that see the same files as this process."""
        self._workers.rely_on(files)

    def memory(self) -> int:
        """Return the bytes that all processes hold now."""
        return self._memory.now()

    @property
    def peak_pss(self) -> int:
        """An upper bound on the peak memory of all processes, in bytes."""
        if not self._closed:
            self._memory.collect()
        return self._memory.peak

    def stop(self) -> None:
        """Drop the program and the states of its shards."""
        self._program = None
        self._seats.release()
        self._recovery.begin(None)

    def close(self) -> None:
        """Leave the cluster, and close what the fleet owns; ``peak_pss`` stays readable."""
        if self._closed:
            return
        try:
            with contextlib.suppress(Exception):  # the cluster may be gone, or the client closed
                self.stop()
                self._memory.collect()
            self._leave()
        finally:
            self._owned.close()

    def _leave(self) -> None:
        """Remove from the cluster all that this fleet has installed there."""
        self._closed = True
        for name, unregister in (
            (self._plugin, self._client.unregister_worker_plugin),
            (self._name, self._client.unregister_scheduler_plugin),
        ):
            with contextlib.suppress(Exception):
                unregister(name)
        self._watch.cancel()
        self._workers.retiring.close()
        self._recovery.close()
        self._memory.own.stop()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self) -> None:
        """Give each shard that no host holds to the least loaded host, and bring it up to date.

        A host is the object on a worker that holds shards. It loads the shard's saved state, or
        opens the shard anew, and replays the messages of the rounds since.
        """
        while orphans := self._seats.orphans(self._n_shards):
            self._seats.fill()
            seats = self._seats.staying()
            given: dict[Seat, list[int]] = {seat: [] for seat in seats}
            for shard in orphans:
                seat = min(seats, key=lambda s: (len(s.shards) + len(given[s])) / s.threads)
                given[seat].append(shard)
            given = {seat: shards for seat, shards in given.items() if shards}
            calls = [
                (seat, (self._number, shards, self._recovery.saved(shards), self._recovery.log))
                for seat, shards in given.items()
            ]
            adopted = self._seats.ask_each(calls, "adopt")
            for seat in adopted:
                seat.shards += given[seat]
            self._seats.count_deaths(given, adopted, "opening or repeating steps")

    def _rebalance(self) -> None:
        """Move shards away from workers that are to leave, and to new ones.

        Does nothing if it was called less than `look_seconds` ago.
        """
        if time.monotonic() < self._looked + self._tuning.look_seconds:
            return
        self._looked = time.monotonic()
        self._workers.retiring.finish({seat.address for seat in self._seats.all})
        if not self._seats.newcomers() and not self._seats.leaving():
            return
        self._seats.fill()
        staying = self._seats.staying()

        def load(seat: Seat) -> float:
            """Return the shards of a host for each of its threads."""
            return len(seat.shards) / seat.threads

        for source in self._seats.leaving():
            moved = len(source.shards)
            if not all(self._move(source, min(staying, key=load)) for _ in range(moved)):
                return
            self._seats.retire(source, moved)
        while True:
            to, source = min(staying, key=load), max(staying, key=load)
            if (len(source.shards) - 1) / source.threads < (len(to.shards) + 1) / to.threads:
                return
            if not self._move(source, to):
                return

    def _move(self, source: Seat, to: Seat) -> bool:
        """Move the last shard of host ``source``, with its state, to host ``to``.

        Returns False if a host does not answer: it is then gone, and its shards are placed anew.
        """
        shard = source.shards[-1]
        shown = self._seats.ask([source], "show", shard)
        if not shown or not self._seats.ask([to], "take", self._number, shard, shown[source]):
            return False
        to.shards.append(shard)
        source.shards.remove(shard)
        self._seats.ask([source], "drop", shard)
        return True

    def _together(self) -> tuple[FloatArray, Totals] | None:
        """Combine the hosts' answers to a round into vectors (n_shards, k) and totals.

        Totals are integer sums over shards; hosts keep large ones, and add them up among
        themselves. None if a host died with totals that it had kept.
        """
        seats = {seat: seat.shards for seat in self._seats.all}
        answers = [answer for seat in seats for answer in seat.answers]
        order = np.argsort(np.concatenate([shards for shards, *_ in answers]))
        widths = {stack.shape[1] for _, stack, *_ in answers}
        if len(widths) > 1:
            raise ValueError(f"every step must return the same length, not {sorted(widths)}")
        stack = np.concatenate([stack for _, stack, *_ in answers])
        totals = [totals for _, _, totals, _ in answers]
        if any(seat.kept for seat in seats):
            kept = self._seats.kept(self._number + 1)
            if kept is None:
                living = dict.fromkeys(self._seats.all)
                self._seats.count_deaths(seats, living, "adding up")
                return None
            totals.append(kept)
        return stack[order], add_totals(totals)

    def _register(self, plugin: WorkerPlugin, name: str) -> None:
        """Register a worker plugin; try again if a worker dies meanwhile, until its deadline."""
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
