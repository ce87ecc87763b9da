"""Code that runs inside a Dask worker: the host of its shards, and plugins."""

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
from bigscreen.files.remote import as_path
from bigscreen.fleet.blas import blas_threads
from bigscreen.fleet.memory import rows_within
from bigscreen.fleet.shards import (
    Arrays,
    FloatArray,
    Program,
    Sampler,
    Shards,
    Totals,
    add_totals,
    stack_vectors,
)

Message = tuple[bytes, ...]
Shapes = dict[str, tuple[int, ...]]
Answer = tuple[list[int], FloatArray, Totals, Shapes]
"""A host's answer to a round: numbers of the shards that stepped, their vectors (shards, k), the
integer sums ("totals") over them, and the shapes of totals that the host keeps because of their
size."""

WORKER_ENVIRONMENT = {
    # With the defaults of glibc and Dask, memory is returned to the system so eagerly that a
    # temporary array of 1 MB takes 27 times as long. Both are read when a process starts.
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
    "MALLOC_MMAP_THRESHOLD_": str(64 * 2**20),
    # one worker process per core
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Environment variables that every worker should have when it starts."""


def pack_message(message: dict[str, Any]) -> Message:
    """Copy the message of a round to bytes, which are sent to workers, and kept for replay.

    Arrays are separate from the pickle, so that a worker makes only one copy of them.
    """
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return (head, *(bytes(buffer.raw()) for buffer in buffers))


def unpack_message(message: Message) -> dict[str, Any]:
    """Restore the message that `pack_message` copied; its arrays are aligned and writeable."""
    buffers = [bytearray(buffer) for buffer in message[1:]]
    found: dict[str, Any] = pickle.loads(message[0], buffers=buffers)
    return found


def _writeable(arrays: Arrays) -> Arrays:
    """Return writeable copies of arrays that were received."""
    return {name: np.array(array, order="K") for name, array in arrays.items()}


def _report_errors(method: Callable[..., Any]) -> Callable[..., tuple[str, Any]]:
    """Decorate a method to return ("ok", result), or ("error", pickled exception and traceback).

    An OSError of a step must not look like a broken connection, and Dask's actors would drop the
    traceback.
    """

    def failed(error: Exception) -> tuple[str, Any]:
        """Return an error as ("error", (exception, traceback))."""
        error.add_note(f"(raised on worker {get_worker().address})")
        found = error_message(error)
        parts = found["exception"], found["traceback"]
        return "error", tuple(part and part.data for part in parts)

    @functools.wraps(method)
    def call(*args: Any) -> tuple[str, Any]:
        """Call the method; return ("ok", its result), or its error."""
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
    """Return the memory limit of this worker in bytes; None without one, or outside a worker."""
    try:
        worker = get_worker()
    except ValueError:
        return None
    limit: int | None = worker.memory_manager.memory_limit
    return limit


class Host:
    """Holds shards on one worker and steps them: a Dask actor, one on each worker.

    A call can come twice, if a connection broke before its answer arrived. A repeated call changes
    nothing and returns the same answer.
    """

    def __init__(self, threads: int) -> None:
        """Make a host without shards, whose steps run on this many threads."""
        limit = _memory_limit()
        self._shards = Shards(threads, rows_within(limit, threads) if limit else None)
        self._round: dict[int, int] = {}  # last round that each shard has seen
        self._answers: dict[tuple[int, int], Answer] = {}
        self._kept: tuple[int, Totals] = 0, {}  # round, and totals to be fetched in shares

    @_report_errors
    def begin(self, program: bytes) -> None:
        """Set the program (what each shard computes), which is pickled.

        (As an argument of the actor it would pass through the scheduler.)
        """
        self._program: Program = loads(program)

    @_report_errors
    def adopt(
        self,
        number: int,
        shards: list[int],
        base: str | dict[int, Arrays] | None,
        log: list[Message],
    ) -> None:
        """Make the states of shards, and replay the messages in ``log``, up to round ``number``.

        ``base`` is the folder of a checkpoint to load the states from, or the states as arrays by
        shard; None: shards are opened anew.
        """
        new = [shard for shard in shards if self._round.get(shard) != number]
        states: Callable[[int], Arrays] | None = None
        if isinstance(base, dict):
            states = lambda shard: _writeable(base[shard])  # noqa: E731
        elif base is not None:
            states = Checkpoint.read(Path(base)).shard
        self._shards.restore(self._program, new, states, [unpack_message(each) for each in log])
        self._round.update(dict.fromkeys(new, number))

    @_report_errors
    def round(self, number: int, part: int, message: Message, keep_bytes: int | None) -> Answer:
        """Step the shards (parts of the rows) of this host that have not seen round ``number``.

        Returns their numbers, their vectors, and their totals: integer sums over the shards.
        ``part`` numbers the calls of one round: later calls are for shards adopted since.
        Totals of at least ``keep_bytes`` stay here, for `share` and `add_share`; None: never.
        """
        if (number, part) not in self._answers:
            self._shards.relieve(self._program)
            shards = sorted(shard for shard, seen in self._round.items() if seen != number)
            each, states = unpack_message(message), self._shards.states
            calls = [(states[shard], each) for shard in shards]
            rows, parts = self._shards.deal(self._program.step, calls)
            self._round.update(dict.fromkeys(shards, number))
            totals, shapes = add_totals(parts), {}
            size = sum(total.nbytes for total in totals.values())
            if keep_bytes is not None and size >= keep_bytes:
                shapes = {name: total.shape for name, total in totals.items()}
                before = self._kept[1] if self._kept[0] == number else {}
                self._kept, totals = (number, add_totals([before, totals])), {}
            self._answers = {(number, part): (shards, stack_vectors(rows), totals, shapes)}
        return self._answers[number, part]

    # `share` and `add_share` run in the event loop: hosts call each other at the same time.

    @_report_errors
    async def share(self, number: int, k: int, of: int) -> Totals:
        """Return share ``k`` of ``of`` of the totals kept in a round, as 1-D arrays."""
        return self._share(number, k, of)

    def _share(self, number: int, k: int, of: int) -> Totals:
        """Return share ``k`` of ``of`` of the totals kept in round ``number``, as 1-D arrays."""
        kept, totals = self._kept
        assert kept == number
        flat = {name: total.reshape(-1) for name, total in totals.items()}
        return {name: t[len(t) * k // of : len(t) * (k + 1) // of] for name, t in flat.items()}

    @_report_errors
    async def add_share(
        self, number: int, k: int, of: int, others: Sequence[tuple[str, str]]
    ) -> Totals | None:
        """Sum share ``k`` of the totals over this host and ``others``, given by address and key.

        None if one of the others does not answer.
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
        return None if None in parts else add_totals([own, *filter(None, parts)])

    @_report_errors
    def save(self, folder: str) -> dict[int, int]:
        """Write every shard into the folder of a checkpoint draft; returns checksums by shard."""
        return self._shards.save(self._program, sorted(self._round), Path(folder))

    @_report_errors
    def show(self, shard: int) -> Arrays:
        """Return the state of one shard as arrays, for another worker to take over."""
        return self._program.save(self._shards.states[shard])

    @_report_errors
    def take(self, number: int, shard: int, arrays: Arrays) -> None:
        """Take over a shard whose state another worker showed after round ``number``."""
        self._shards.take(self._program, shard, _writeable(arrays))
        self._round[shard] = number

    @_report_errors
    def drop(self, shard: int) -> None:
        """Drop the state of a shard, which another host has taken over."""
        self._shards.states.pop(shard, None)
        self._round.pop(shard, None)

    @_report_errors
    def clear(self) -> None:
        """Drop the states of all shards, before a checkpoint is loaded."""
        self._shards.states.clear()
        self._round.clear()


class WorkerSetup(WorkerPlugin):
    """The plugin that prepares every worker, also new ones, and records its peak memory.

    Other fleets may use the same workers: changes of a worker are undone when the plugin leaves.
    """

    def __init__(self, name: str) -> None:
        """Make the plugin of the fleet with this plugin name."""
        self.name = name

    async def setup(self, worker: Worker) -> None:
        """Keep Dask from pausing the worker when its memory is full; begin to sample its memory."""
        _switch_off_pausing(worker)
        self.sampler = Sampler()
        self.sampler.look()
        _plugins[worker.address, self.name] = self

    def teardown(self, worker: Worker) -> None:
        """Stop sampling, and let Dask pause the worker again when its memory is full."""
        _plugins.pop((worker.address, self.name), None)
        self.sampler.stop()
        _restore_pausing(worker)


_plugins: dict[tuple[str, str], WorkerSetup | Function] = {}
"""The plugins of this process, by the address of their worker and their name."""

_FRACTIONS = ("target", "spill", "pause")
_fractions_before: WeakKeyDictionary[Worker, tuple[int, list[Any]]] = WeakKeyDictionary()
"""For each worker of this process: the number of fleets that use it, and its original fractions."""


def _switch_off_pausing(worker: Worker) -> None:
    """Switch off spilling and pausing of a worker.

    Dask pauses workers whose memory is full; as shards stay in memory, a fit would wait forever.
    The memory of a fit is planned before it runs.
    """
    manager, names = worker.memory_manager, [f"memory_{name}_fraction" for name in _FRACTIONS]
    fleets, before = _fractions_before.get(worker, (0, [getattr(manager, name) for name in names]))
    _fractions_before[worker] = fleets + 1, before
    for name in names:
        setattr(manager, name, False)


def _restore_pausing(worker: Worker) -> None:
    """Restore the spilling and pausing of a worker that no fleet uses any more."""
    fleets, before = _fractions_before.pop(worker)
    if fleets > 1:
        _fractions_before[worker] = fleets - 1, before
        return
    for name, fraction in zip(_FRACTIONS, before, strict=True):
        setattr(worker.memory_manager, f"memory_{name}_fraction", fraction)


class Leaving(SchedulerPlugin):
    """The scheduler plugin that removes a fleet's worker plugins when its process has ended.

    An adaptive cluster shrinks only by workers that hold no actor, such as a fleet's host, as if
    the others ran a task.
    """

    def __init__(self, client: str, prefix: str) -> None:
        """Watch a client (its id), whose worker plugins have names with this prefix."""
        self._client, self._prefix = client, prefix

    def valid_workers_downscaling(self, scheduler: Scheduler, workers: list[Any]) -> list[Any]:
        """Return those of the workers (Dask's `WorkerState`) that an adaptive cluster may close."""
        return [worker for worker in workers if not worker.actors]

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Unregister the plugins of the watched client, which has left the scheduler."""
        if client != self._client:
            return
        for name in [name for name in scheduler.worker_plugins if name.startswith(self._prefix)]:
            scheduler.loop.add_callback(scheduler.unregister_worker_plugin, None, name)
        scheduler.loop.add_callback(scheduler.unregister_scheduler_plugin, self._prefix)


class Shielded(WorkerPlugin):
    """The plugin that makes workers ignore Ctrl-C, and closes their HTTP ports.

    Ctrl-C reaches all processes of a group, but is meant for the process that owns the workers. An
    HTTP port would be open to every user of the machine.
    """

    def setup(self, worker: Worker) -> None:
        """Ignore Ctrl-C in the worker's process, and stop its HTTP server."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        worker.http_server.stop()


def file_digests(files: Sequence[str]) -> dict[str, str | None]:
    """Return the SHA-256 of each file's content; None for a missing file."""
    found: dict[str, str | None] = dict.fromkeys(files)
    for name in files:
        with contextlib.suppress(OSError):
            found[name] = hashlib.sha256(as_path(name).read_bytes()).hexdigest()
    return found


def source_digest() -> str:
    """Return the SHA-256 of this package's code, which tells working copies apart."""
    digest = hashlib.sha256()
    folder = Path(__file__).parents[1]
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(file.read_bytes())
    return digest.hexdigest()


async def in_thread(function: Callable[[], Any]) -> Any:
    """Run ``function()`` in a thread, so that the worker can be heard of while it takes long."""
    return await asyncio.to_thread(function)


def memory_of(name: str, dask_worker: Worker) -> tuple[tuple[str, int], int, int] | None:
    """Return the process (machine, number) of a worker, its memory now and its peak, in bytes.

    ``name``: of the plugin that measures it; None if the worker does not have this plugin.
    """
    plugin = _plugins.get((dask_worker.address, name))
    if not isinstance(plugin, WorkerSetup):
        return None
    return (platform.node(), os.getpid()), plugin.sampler.now, plugin.sampler.peak


class Function(WorkerPlugin):
    """The plugin that sends a function once to every worker, also to new ones.

    A function of megabytes in every task would pass through the scheduler each time. Scattered data
    is lost if the workers that hold it die, and Dask prefers these workers for tasks that use it.
    """

    def __init__(self, function: Callable[[Any], Any], name: str) -> None:
        """Make the plugin that gives workers a function under a name."""
        self.function, self.name = function, name

    def setup(self, worker: Worker) -> None:
        """Make the function known to the worker's process, by its name."""
        _plugins[worker.address, self.name] = self

    def teardown(self, worker: Worker) -> None:
        """Forget the function in the worker's process."""
        _plugins.pop((worker.address, self.name), None)


def apply(name: str, item: Any) -> Any:
    """Run the function that :class:`Function` has brought on one item; the task of ``each``."""
    worker = get_worker()
    plugin = _plugins[worker.address, name]
    assert isinstance(plugin, Function)
    try:
        with blas_threads(1):
            return plugin.function(item)
    except InputError as error:
        raise InputError(f"the worker {worker.address}: {error}") from None
