"""The hosts on the workers of a cluster: which shards each holds, calls, deaths."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import distributed
import numpy as np
from distributed import Future
from distributed.core import clean_exception
from distributed.protocol.serialize import to_serialize

from bigscreen.fleet.retiring import LOG
from bigscreen.fleet.shards import Totals, add_totals
from bigscreen.fleet.worker import Host, Shapes
from bigscreen.fleet.workers import Workers

LOST = object()
"""What a call to a host (the object on a worker that holds shards) returns if the host is gone."""


@dataclass(eq=False)
class Seat:
    """The coordinator's record of the host on one worker: its shards, answers and Dask future.

    A host is a Dask actor that holds shards (parts of the rows) and steps them. ``address`` and
    ``threads`` are the worker's; ``future`` is the actor's; ``shards`` are the numbers of the
    shards; ``answers`` has the host's answer to each call of the present round.
    """

    address: str
    threads: int
    future: Future[Any]
    shards: list[int] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)  # of the present round

    @property
    def answered(self) -> int:
        """The number of this host's shards that have stepped in the present round."""
        return sum(len(shards) for shards, *_ in self.answers)

    @property
    def kept(self) -> Shapes:
        """The shapes of the totals that the host has kept in the present round, by name.

        Totals are integer sums over shards; large ones stay on the host until they are added up.
        """
        return {name: shape for *_, shapes in self.answers for name, shape in shapes.items()}

    @property
    def alive(self) -> bool:
        """Whether the actor of this host runs."""
        return self.future.status == "finished"


class Seats:
    """The hosts that run one program, and how many died in this round with each shard.

    A host is the object on a worker that holds shards (parts of the rows) and steps them.

    Calls go directly to all workers at once, from one coroutine: Dask tasks would take 50 times as
    long. Dask's actor handles are not used: a handle belongs to the default client, and its calls
    never return if the worker was replaced.
    """

    def __init__(self, workers: Workers, program: bytes, name: str = "") -> None:
        """Begin without hosts, for the workers ``workers``.

        ``program`` (what each shard computes) is pickled; ``name`` is shown in messages. ``deaths``
        counts, for each shard, the workers that died with it in the present round.
        """
        self._workers, self._client = workers, workers.client
        self._program, self._name = program, name
        self.all: list[Seat] = []
        self.deaths: Counter[int] = Counter()  # in the present round, by shard

    def fill(self) -> None:
        """Start a host on each living worker that has none; waits for at least one host.

        Raises
        ------
        ConnectionError
            If there is no worker for a minute, or within the time budget.
        """
        deadline = self._workers.until()
        while True:
            living = self._workers.living()
            taken = {seat.address for seat in self.all if seat.alive}
            asked = [
                Seat(address, threads, self._submit(threads, address))
                for address, threads in sorted(living.items())
                if address not in taken
            ]
            self._await(asked)
            hosts = [seat for seat in asked if seat.alive]
            for seat in hosts if self.all else ():
                LOG.info("worker %s joined, with %d threads", seat.address, seat.threads)
            self.all += hosts
            self.ask(hosts, "begin", self._program)
            if any(seat.alive for seat in self.all):
                return
            for seat in asked:
                if seat.future.status == "error" and time.monotonic() > deadline:
                    seat.future.result()  # raises the error that keeps hosts from starting
            time.sleep(0.05)

    @property
    def machines(self) -> int:
        """The number of machines that have a host."""
        return len({seat.address.rpartition(":")[0] for seat in self.all})

    def staying(self) -> list[Seat]:
        """Return the hosts on workers that stay; all hosts if no worker stays."""
        usable = self._workers.listed()
        alive = [seat for seat in self.all if seat.alive]
        return [seat for seat in alive if seat.address in usable] or alive

    def leaving(self) -> list[Seat]:
        """Return the hosts on workers that are to leave, if other workers stay."""
        staying = self.staying()
        return [seat for seat in self.all if seat.alive and seat not in staying]

    def newcomers(self) -> bool:
        """Whether a living worker has no host."""
        return not self._workers.living().keys() <= {seat.address for seat in self.all}

    def ask(self, seats: Iterable[Seat], method: str, *args: Any) -> dict[Seat, Any]:
        """Call a method of several hosts at once, with the same arguments; return their answers.

        Hosts that turned out to be gone have no answer, and are forgotten.
        """
        return self.ask_each([(seat, args) for seat in seats], method)

    def ask_each(
        self, calls: Sequence[tuple[Seat, tuple[Any, ...]]], method: str
    ) -> dict[Seat, Any]:
        """Call a method of several hosts at once, each with its own arguments.

        Returns
        -------
        dict of Seat to answer
            Hosts that turned out to be gone are missing, also from :attr:`all`.

        Raises
        ------
        Exception
            The error that a method raised, with its traceback on the worker.
        """

        async def together() -> list[Any]:
            return await asyncio.gather(*(self._call(seat, method, args) for seat, args in calls))

        answers = {}
        failures = []
        for (seat, _), answer in zip(calls, self._client.sync(together), strict=True):
            if answer is LOST:
                n = len(seat.shards)
                how = f": its {n} shards start again elsewhere" if n else ", before it had shards"
                LOG.warning("worker %s is lost%s", seat.address, how)
                self._remove(seat)
            elif answer[0] == "error":
                failures.append(answer[1])
            else:
                answers[seat] = answer[1]
        for exception, traceback in failures:
            _, error, trace = clean_exception(exception, traceback)
            assert error is not None
            raise error.with_traceback(trace)
        return answers

    def kept(self, number: int) -> Totals | None:
        """Sum the totals that hosts have kept in round ``number``; None if a host is gone.

        Totals are integer arrays by name. Each host adds up a share of the totals of all hosts, so
        that only the sum is sent here.
        """
        seats = [seat for seat in self.all if seat.kept]
        shapes = {name: shape for seat in seats for name, shape in seat.kept.items()}
        of = min(len(seats), self._workers.tuning.max_sharing_hosts)
        where = [(seat.address, seat.future.key) for seat in seats]
        calls = [(seats[k], (number, k, of, where[:k] + where[k + 1 :])) for k in range(of)]
        sums = list(self.ask_each(calls, "add_share").values())
        if len(sums) < of:
            return None
        if None in sums:
            # A host is gone, or hosts do not reach each other: this process collects all totals.
            whole = self.ask(seats, "share", number, 0, 1)
            if len(whole) < len(seats):
                return None
            sums = [add_totals(whole.values())]
        return {
            name: np.concatenate([part[name] for part in sums]).reshape(shape)
            for name, shape in shapes.items()
        }

    def orphans(self, n_shards: int) -> list[int]:
        """Return the numbers of the shards, of all ``n_shards``, that no host holds."""
        if sum(len(seat.shards) for seat in self.all) == n_shards:
            return []
        held = {shard for seat in self.all for shard in seat.shards}
        return [shard for shard in range(n_shards) if shard not in held]

    def count_deaths(
        self, asked: Mapping[Seat, list[int]], answered: Mapping[Seat, Any], what: str
    ) -> None:
        """Count a death for each shard of the hosts that did not answer.

        ``asked``: the shards of each host that was called; ``answered``: the answers by host;
        ``what``: what the hosts were doing, for the message.

        Raises
        ------
        ConnectionError
            If a shard has had too many deaths in this round.
        """
        lost = [shards for seat, shards in asked.items() if seat not in answered]
        self.deaths.update(shard for shards in lost for shard in shards)
        most = self._workers.tuning.max_deaths
        fatal = sorted(shard for shard, n in self.deaths.items() if n >= most)
        if fatal:
            some = ", ".join(map(str, fatal[:5])) + (", ..." if len(fatal) > 5 else "")
            where = f"shard {some}" if len(fatal) == 1 else f"one of the shards {some}"
            raise ConnectionError(
                f"{most} workers one after the other died in {what} of {self._name} on "
                f"{where}; {self._workers.cause_of_deaths}"
            )

    def release(self) -> None:
        """Release all hosts; their workers drop the states of the shards."""
        for seat in list(self.all):
            self._remove(seat)

    def retire(self, seat: Seat, moved: int) -> None:
        """Release a host whose shards, ``moved`` in number, have gone to other hosts."""
        LOG.info("worker %s leaves: its %d shards were handed over", seat.address, moved)
        self._remove(seat)

    def _remove(self, seat: Seat) -> None:
        """Forget a host; its worker drops the states of the host's shards."""
        self.all.remove(seat)
        seat.future.release()

    def _submit(self, threads: int, address: str) -> Future[Any]:
        """Start a host of this many threads on the worker at an address."""
        return self._client.submit(
            Host,
            threads,
            key=f"bigscreen-host-{self._name}-{uuid4().hex}",  # the dashboard shows it
            actor=True,
            workers=[address],
            allow_other_workers=False,
        )

    def _await(self, seats: list[Seat]) -> None:
        """Wait until each host has started, or its worker is gone."""
        while pending := [seat for seat in seats if seat.future.status == "pending"]:
            try:
                with self._client.as_current():  # wait needs a default client
                    distributed.wait([seat.future for seat in pending], timeout=0.5)
            except (TimeoutError, asyncio.CancelledError):
                listed = self._workers.listed()
                for seat in pending:
                    # the task may run on that worker only, and would wait for it forever
                    if seat.address not in listed:
                        seat.future.cancel()

    async def _call(self, seat: Seat, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method of one host; returns its answer, or LOST if the host is gone.

        A broken connection does not mean that the host is gone; only the scheduler knows. So the
        call is repeated until it is answered or the scheduler has removed the host. A check each
        second also notices a machine that vanished without closing its connections.
        """
        deadline: float | None = None
        while True:
            call = asyncio.ensure_future(self._send(seat, method, args))
            try:
                pause = 1.0 if deadline is None else 0.05
                while not (await asyncio.wait({call}, timeout=pause))[0]:
                    if not seat.alive:
                        return LOST
            finally:
                call.cancel()
            with contextlib.suppress(OSError, KeyError):  # KeyError: a new worker there
                answer = call.result()
                if answer["status"] == "OK":
                    return answer["result"]
                # else the worker is closing (errors of the method itself are results)
            await asyncio.sleep(0.02)
            deadline = deadline or time.monotonic() + self._workers.tuning.patience_seconds
            if not seat.alive:
                return LOST
            if time.monotonic() > deadline:
                self._workers.unreachable.add(seat.address)
                return LOST

    async def _send(self, seat: Seat, method: str, args: tuple[Any, ...]) -> Any:
        """Send one call to the host, directly to its worker; return Dask's answer (a dict)."""
        return await self._client.rpc(seat.address).actor_execute(
            function=method,
            actor=seat.future.key,
            args=[to_serialize(arg) for arg in args],
            kwargs={},
        )
