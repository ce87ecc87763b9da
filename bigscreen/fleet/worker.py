"""What runs inside a Dask worker: the host of many shards, and plugins."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import inspect
import os
import pickle
import platform
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from distributed import Scheduler, SchedulerPlugin, Worker, WorkerPlugin, get_worker
from distributed.core import error_message
from distributed.protocol.pickle import loads

from bigscreen.errors import InputError
from bigscreen.files.checkpoint import Checkpoint
from bigscreen.files.remote import located
from bigscreen.fleet.blas import blas_threads
from bigscreen.fleet.memory import rows_within
from bigscreen.fleet.shards import (
    Arrays,
    FloatArray,
    Program,
    Sampler,
    Shards,
    Totals,
    added,
    stacked,
)

Message = tuple[bytes, ...]
Shapes = dict[str, tuple[int, ...]]
Answer = tuple[list[int], FloatArray, Totals, Shapes]
"""Of a round: which shards have stepped, their vectors, their totals; the shapes of those kept."""

WORKER_ENVIRONMENT = {
    # glibc's default, and Dask's, hand memory back so eagerly that a temporary of 1 MB costs 27
    # times as much; both are read when a process starts
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
    "MALLOC_MMAP_THRESHOLD_": str(64 * 2**20),
    # one worker process per core
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""What the environment of every worker should hold before it starts."""

LARGE = 1 << 20
"""Bytes of totals from which on hosts add them up among themselves."""


def packed(message: dict[str, Any]) -> Message:
    """A message as bytes: a copy that its sender cannot change any more, sent and kept for replay.

    The arrays lie beside the pickle, so that a worker's copy of them is the only other one.
    """
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return (head, *(bytes(buffer.raw()) for buffer in buffers))


def unpacked(message: Message) -> dict[str, Any]:
    """The message; its arrays are aligned and writeable, as they are inline."""
    buffers = [bytearray(buffer) for buffer in message[1:]]
    found: dict[str, Any] = pickle.loads(message[0], buffers=buffers)
    return found


def _own(arrays: Arrays) -> Arrays:
    """Arrays as they came from the wire, writeable."""
    return {name: np.array(array, order="K") for name, array in arrays.items()}


def _reported(method: Callable[..., Any]) -> Callable[..., tuple[str, Any]]:
    """Give ("ok", result) or ("error", pickled exception and traceback).

    An OSError raised by a step must not look like a connection that broke, and Dask's actors drop
    the traceback.
    """

    def failed(error: Exception) -> tuple[str, Any]:
        error.add_note(f"(raised on worker {get_worker().address})")
        found = error_message(error)
        parts = found["exception"], found["traceback"]
        return "error", tuple(part and part.data for part in parts)

    @functools.wraps(method)
    def call(*args: Any) -> tuple[str, Any]:
        try:
            return "ok", method(*args)
        except Exception as error:
            return failed(error)

    @functools.wraps(method)
    async def called(*args: Any) -> tuple[str, Any]:
        try:
            return "ok", await method(*args)
        except Exception as error:
            return failed(error)

    return called if inspect.iscoroutinefunction(method) else call  # type: ignore[return-value]


def _memory_limit() -> int | None:
    """Bytes that the worker which runs this may take; None: without a limit, or on no worker."""
    try:
        worker = get_worker()
    except ValueError:
        return None
    limit: int | None = worker.memory_manager.memory_limit
    return limit


class Host:
    """Holds shards on one worker and steps them. One per worker, a Dask actor.

    Every call may come twice (a connection broke before its answer came): repeating one changes
    nothing and gives the same answer.
    """

    def __init__(self, threads: int) -> None:
        limit = _memory_limit()
        self._shards = Shards(threads, rows_within(limit, threads) if limit else None)
        self._round: dict[int, int] = {}  # last round that each shard has seen
        self._answers: dict[tuple[int, int], Answer] = {}
        self._kept: tuple[int, Totals] = 0, {}  # of a round, what others ask for part by part

    @_reported
    def begin(self, program: bytes) -> None:
        """Take the program; not an argument of the actor, which would pass the scheduler."""
        self._program: Program = loads(program)

    @_reported
    def adopt(
        self,
        number: int,
        shards: list[int],
        base: str | dict[int, Arrays] | None,
        log: list[Message],
    ) -> None:
        """Open shards and replay a log, up to round ``number``.

        ``base`` is the folder of a checkpoint to load them from, or their states themselves.
        """
        new = [shard for shard in shards if self._round.get(shard) != number]
        states: Callable[[int], Arrays] | None = None
        if isinstance(base, dict):
            states = lambda shard: _own(base[shard])  # noqa: E731
        elif base is not None:
            states = Checkpoint.read(Path(base)).shard
        self._shards.restore(self._program, new, states, [unpacked(each) for each in log])
        self._round.update(dict.fromkeys(new, number))

    @_reported
    def round(self, number: int, part: int, message: Message, apart: bool) -> Answer:
        """Step the shards that have not seen round ``number``.

        ``part`` counts the calls of one round: a second one is for shards adopted in between.
        ``apart``: large totals stay here, for `share` and `add_share`.
        """
        if (number, part) not in self._answers:
            self._shards.relieve(self._program)
            shards = sorted(shard for shard, seen in self._round.items() if seen != number)
            each, states = unpacked(message), self._shards.states
            calls = [(states[shard], each) for shard in shards]
            rows, parts = self._shards.deal(self._program.step, calls)
            self._round.update(dict.fromkeys(shards, number))
            totals, shapes = added(parts), {}
            if apart and sum(total.nbytes for total in totals.values()) >= LARGE:
                shapes = {name: total.shape for name, total in totals.items()}
                before = self._kept[1] if self._kept[0] == number else {}
                self._kept, totals = (number, added([before, totals])), {}
            self._answers = {(number, part): (shards, stacked(rows), totals, shapes)}
        return self._answers[number, part]

    # These two run in the worker's event loop: each host asks others while those ask it.

    @_reported
    async def share(self, number: int, k: int, of: int) -> Totals:
        """The ``k``-th of so many parts of the totals that were kept of a round, flat."""
        return self._share(number, k, of)

    def _share(self, number: int, k: int, of: int) -> Totals:
        kept, totals = self._kept
        assert kept == number
        flat = {name: total.reshape(-1) for name, total in totals.items()}
        return {name: t[len(t) * k // of : len(t) * (k + 1) // of] for name, t in flat.items()}

    @_reported
    async def add_share(
        self, number: int, k: int, of: int, others: Sequence[tuple[str, str]]
    ) -> Totals | None:
        """The sum of that part over this host and others, which are known by address and key.

        None if one of them does not answer.
        """
        worker = get_worker()

        async def theirs(address: str, key: str) -> Totals | None:
            with contextlib.suppress(OSError, KeyError):
                answer = await worker.rpc(address).actor_execute(
                    function="share", actor=key, args=[number, k, of], kwargs={}
                )
                if answer["status"] == "OK" and answer["result"][0] == "ok":
                    found: Totals = answer["result"][1]
                    return found
            return None

        parts = await asyncio.gather(*(theirs(*other) for other in others))
        own = {name: total.copy() for name, total in self._share(number, k, of).items()}
        return None if None in parts else added([own, *filter(None, parts)])

    @_reported
    def save(self, folder: str) -> dict[int, int]:
        """Write every shard into a draft's folder; checksums by shard."""
        return self._shards.save(self._program, sorted(self._round), Path(folder))

    @_reported
    def show(self, shard: int) -> Arrays:
        """The state of one shard as arrays, for another worker to take over."""
        return self._program.save(self._shards.states[shard])

    @_reported
    def take(self, number: int, shard: int, arrays: Arrays) -> None:
        """Go on with a shard that another worker showed after round ``number``."""
        self._shards.take(self._program, shard, _own(arrays))
        self._round[shard] = number

    @_reported
    def drop(self, shard: int) -> None:
        """Forget a shard."""
        self._shards.states.pop(shard, None)
        self._round.pop(shard, None)

    @_reported
    def clear(self) -> None:
        """Forget every shard."""
        self._shards.states.clear()
        self._round.clear()


class WorkerSetup(WorkerPlugin):
    """Prepares every worker, also one that comes later, and watches its memory.

    Workers may be other people's: what it changes of them is changed back when it leaves.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    async def setup(self, worker: Worker) -> None:
        _hold(worker)
        self.sampler = Sampler()
        self.sampler.look()
        _here[worker.address, self.name] = self

    def teardown(self, worker: Worker) -> None:
        _here.pop((worker.address, self.name), None)
        self.sampler.stop()
        _let_go(worker)


_here: dict[tuple[str, str], WorkerSetup | Function] = {}
"""The plugins that tasks look for, by the address of their worker and their name."""

_FRACTIONS = ("target", "spill", "pause")
_held: WeakKeyDictionary[Worker, tuple[int, list[Any]]] = WeakKeyDictionary()
"""Of every worker of this process, how many fleets use it and the fractions that it had before."""


def _hold(worker: Worker) -> None:
    """Switch a worker's spilling and pausing off.

    A paused worker runs no task, and shards that fill its memory do not go away by waiting: the
    fit would stand still for ever. What a fit may take is planned before it runs.
    """
    manager, names = worker.memory_manager, [f"memory_{name}_fraction" for name in _FRACTIONS]
    fleets, before = _held.get(worker, (0, [getattr(manager, name) for name in names]))
    _held[worker] = fleets + 1, before
    for name in names:
        setattr(manager, name, False)


def _let_go(worker: Worker) -> None:
    """Give a worker its fractions back, once no fleet uses it any more."""
    fleets, before = _held.pop(worker)
    if fleets > 1:
        _held[worker] = fleets - 1, before
        return
    for name, fraction in zip(_FRACTIONS, before, strict=True):
        setattr(worker.memory_manager, f"memory_{name}_fraction", fraction)


class Leaving(SchedulerPlugin):
    """Takes plugins of a fleet away when its process is gone, however it ended."""

    def __init__(self, client: str, prefix: str) -> None:
        self._client, self._prefix = client, prefix

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        if client != self._client:
            return
        for name in [name for name in scheduler.worker_plugins if name.startswith(self._prefix)]:
            scheduler.loop.add_callback(scheduler.unregister_worker_plugin, None, name)
        scheduler.loop.add_callback(scheduler.unregister_scheduler_plugin, self._prefix)


class Shielded(WorkerPlugin):
    """Keeps away what is not for the workers of one process.

    Ctrl-C reaches a whole process group, and is for the process that owns the workers. A worker's
    HTTP port is open to every user of the machine.
    """

    def setup(self, worker: Worker) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        worker.http_server.stop()


def digests(files: Sequence[str]) -> dict[str, str | None]:
    """What files hold, as SHA-256; None where there is no such file."""
    found: dict[str, str | None] = dict.fromkeys(files)
    for name in files:
        with contextlib.suppress(OSError):
            found[name] = hashlib.sha256(located(name).read_bytes()).hexdigest()
    return found


def source_digest() -> str:
    """SHA-256 of the code of this package: tells working copies of one version apart."""
    digest = hashlib.sha256()
    folder = Path(__file__).parents[1]
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(file.read_bytes())
    return digest.hexdigest()


def memory_of(name: str, dask_worker: Worker) -> tuple[tuple[str, int], int, int] | None:
    """Which process a worker is (machine, number), its memory now and its peak."""
    plugin = _here.get((dask_worker.address, name))
    if not isinstance(plugin, WorkerSetup):
        return None
    return (platform.node(), os.getpid()), plugin.sampler.now, plugin.sampler.peak


class Function(WorkerPlugin):
    """Brings a function to every worker once, also to one that comes later.

    A few megabytes inside every task would all pass through the scheduler; scattered data is lost
    with its last worker, and tasks that depend on it crowd where it lies.
    """

    def __init__(self, function: Callable[[Any], Any], name: str) -> None:
        self.function, self.name = function, name

    def setup(self, worker: Worker) -> None:
        _here[worker.address, self.name] = self

    def teardown(self, worker: Worker) -> None:
        _here.pop((worker.address, self.name), None)


def apply(name: str, item: Any) -> Any:
    """The task of ``each``: the function that :class:`Function` brought, on one item."""
    worker = get_worker()
    plugin = _here[worker.address, name]
    assert isinstance(plugin, Function)
    try:
        with blas_threads(1):
            return plugin.function(item)
    except InputError as error:
        raise InputError(f"the worker {worker.address}: {error}") from None
