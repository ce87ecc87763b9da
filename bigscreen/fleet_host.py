"""What runs inside a Dask worker: the host of many shards, and two plugins."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import platform
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Worker, WorkerPlugin, get_worker
from distributed.core import error_message
from distributed.protocol.pickle import loads

from bigscreen.checkpoint import Checkpoint
from bigscreen.fleet_memory import Sampler
from bigscreen.fleet_shards import Program, Shards, Totals, one_blas_thread

Message = tuple[bytes, ...]


def packed(message: dict[str, Any]) -> Message:
    """A message as bytes: a copy that its sender cannot change any more, sent and kept for replay.

    The arrays lie beside the pickle, so that a worker's copy of them is the only other one.
    """
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return (head, *(bytes(buffer.raw()) for buffer in buffers))


def unpacked(message: Message) -> dict[str, Any]:
    """The message; its arrays are aligned and writeable, as they are inline."""
    return pickle.loads(message[0], buffers=[bytearray(buffer) for buffer in message[1:]])


def _reported(method: Callable[..., Any]) -> Callable[..., tuple[str, Any]]:
    """Give ("ok", result) or ("error", pickled exception and traceback).

    An OSError raised by a step must not look like a connection that broke, and Dask's actors drop
    the traceback.
    """

    @functools.wraps(method)
    def call(*args: Any) -> tuple[str, Any]:
        try:
            return "ok", method(*args)
        except Exception as error:
            error.add_note(f"(raised on worker {get_worker().address})")
            told = error_message(error)
            parts = told["exception"], told["traceback"]
            return "error", tuple(part and part.data for part in parts)

    return call


class Host:
    """Holds shards on one worker and steps them. One per worker, a Dask actor.

    Every call may come twice (a connection broke before its answer came): repeating one changes
    nothing and gives the same answer.
    """

    def __init__(self, threads: int) -> None:
        self._shards = Shards(threads)
        self._round: dict[int, int] = {}  # last round that each shard has seen
        self._answers: dict[tuple[int, int], tuple[list[int], np.ndarray, Totals]] = {}

    @_reported
    def begin(self, program: bytes) -> None:
        """Take the program; not an argument of the actor, which would pass the scheduler."""
        self._program: Program = loads(program)

    @_reported
    def adopt(self, number: int, shards: list[int], base: str | None, log: list[Message]) -> None:
        """Open shards (or load them from a checkpoint) and replay a log, up to round ``number``."""
        new = [shard for shard in shards if self._round.get(shard) != number]
        checkpoint = None if base is None else Checkpoint.read(Path(base))
        self._shards.restore(self._program, new, checkpoint, [unpacked(each) for each in log])
        self._round.update(dict.fromkeys(new, number))

    @_reported
    def round(
        self, number: int, part: int, message: Message
    ) -> tuple[list[int], np.ndarray, Totals]:
        """Step the shards that have not seen round ``number``: which, their vectors, totals.

        ``part`` counts the calls of one round: a second one is for shards adopted in between.
        """
        if (number, part) not in self._answers:
            shards = sorted(shard for shard, seen in self._round.items() if seen != number)
            stack, totals = self._shards.step(self._program, shards, unpacked(message))
            self._round.update(dict.fromkeys(shards, number))
            self._answers = {(number, part): (shards, stack, totals)}
        return self._answers[number, part]

    @_reported
    def save(self, folder: str) -> dict[int, int]:
        """Write every shard into a draft's folder; checksums by shard."""
        return self._shards.save(self._program, sorted(self._round), Path(folder))

    @_reported
    def show(self, shard: int) -> dict[str, np.ndarray]:
        """The state of one shard as arrays, for another worker to take over."""
        return self._program.save(self._shards.states[shard])

    @_reported
    def take(self, number: int, shard: int, arrays: dict[str, np.ndarray]) -> None:
        """Go on with a shard that another worker showed after round ``number``."""
        own = {name: np.array(array, order="K") for name, array in arrays.items()}
        self._shards.states[shard] = self._program.load(shard, own)
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
    """Prepares every worker, also one that comes later, and watches its memory."""

    def __init__(self, prepare: Callable[[], Any] | None) -> None:
        self._prepare = prepare

    async def setup(self, worker: Worker) -> None:
        # A paused worker runs no task, and shards that fill its memory do not go away by waiting:
        # the fit would stand still for ever. What a fit may take is planned before it runs.
        manager = worker.memory_manager
        manager.memory_target_fraction = manager.memory_spill_fraction = False
        manager.memory_pause_fraction = False
        if self._prepare is not None:
            # compiling takes long: the worker must go on answering its scheduler
            await asyncio.get_running_loop().run_in_executor(None, self._prepare)
        self.sampler = Sampler()

    def teardown(self, worker: Worker) -> None:
        self.sampler.stop()


class Shielded(WorkerPlugin):
    """Leaves Ctrl-C, which reaches a whole process group, to the process that owns the workers."""

    def setup(self, worker: Worker) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def memory_of(name: str, dask_worker: Worker) -> tuple[tuple[str, int], int, int] | None:
    """Which process a worker is (machine, number), its memory now and its peak."""
    plugin = dask_worker.plugins.get(name)
    if not isinstance(plugin, WorkerSetup):
        return None
    return (platform.node(), os.getpid()), plugin.sampler.now, plugin.sampler.peak


class Function(WorkerPlugin):
    """Brings a function to every worker once, also to one that comes later.

    A few megabytes inside every task would all pass through the scheduler; scattered data is lost
    with its last worker, and tasks that depend on it crowd where it lies.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function


def apply(name: str, item: Any) -> Any:
    """The task of ``each``: the function that :class:`Function` brought, on one item."""
    plugin = get_worker().plugins[name]
    assert isinstance(plugin, Function)
    with one_blas_thread:
        return plugin.function(item)
