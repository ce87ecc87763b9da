"""The fleet of one process: `Inline` runs programs on threads, without a cluster.

A fleet does two kinds of work:

* Rounds (:meth:`Fleet.round`) are many short, dependent steps. Each shard keeps a state in the
  process that holds it. A round sends a small message to all shards; each returns a small vector
  and adds to exact integer totals.
* :meth:`Fleet.each` runs a function on independent items that take about a second each.

The number of shards depends on the data, not on the number of workers. The computation of a shard
depends only on its state and the message, vectors are stacked in shard order, and totals are
integers. So the result is the same, bit for bit, on any number of threads or workers, and after the
death of any worker.

:mod:`bigscreen.fleet.cluster` has the fleet of a Dask cluster. This module does not import Dask.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from bigscreen.files.checkpoint import Checkpoint, Draft, restore_newest
from bigscreen.files.remote import RemotePath
from bigscreen.fleet.blas import blas_threads
from bigscreen.fleet.memory import return_memory
from bigscreen.fleet.protocol import Fleet
from bigscreen.fleet.shards import (
    FloatArray,
    Program,
    Sampler,
    Shards,
    Totals,
    add_totals,
    stack_vectors,
)

__all__ = ["Fleet", "Inline", "Program", "Totals"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class Inline:
    """The fleet (the workers of a fit) of this process alone: shards on threads, no cluster.

    Parameters
    ----------
    threads : int, optional
        Number of threads. Default: the processors that this process may use.
    """

    def __init__(self, threads: int | None = None) -> None:
        """Make a fleet of this many threads; None: one for each usable processor."""
        if threads is not None and threads < 1:
            raise ValueError(f"a fleet needs at least 1 thread, not {threads}")
        self._shards = Shards(threads or usable_processors())
        self._program: Program | None = None
        self._n_shards = 0
        self._torn = False
        self._sampler = Sampler()

    @property
    def workers(self) -> int:
        """The number of steps that run at once, one on each thread."""
        return self._shards.threads

    @property
    def worker_memory(self) -> None:
        """Bytes that a worker may hold for each thread; None without a limit."""
        return None

    @property
    def peak_pss(self) -> int:
        """An upper bound on the peak memory of all processes, in bytes."""
        return self._sampler.peak

    def start(self, program: Program, n_shards: int) -> None:
        """Make the state of every shard (part of the rows), as ``program`` opens it.

        A program that ran before is stopped.
        """
        check_shards(n_shards)
        self.stop()
        self._shards.restore(program, range(n_shards), None)
        self._program, self._n_shards, self._torn = program, n_shards, False

    def round(self, message: dict[str, Any]) -> tuple[FloatArray, Totals]:
        """Send a message to all shards, each of which computes one step of the program.

        Returns the shards' vectors, (n_shards, k), and their totals: exact integer sums by name.
        """
        program = require_running(self._program, self._torn)
        self._torn = True  # until every shard has stepped
        states = self._shards.states
        calls = [(states[shard], message) for shard in range(self._n_shards)]
        rows, parts = self._shards.deal(program.step, calls)
        answer = stack_vectors(rows), add_totals(parts)
        self._torn = False
        return answer

    def save(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Write a checkpoint of the states of all shards, and of the caller's record ``meta``."""
        program = require_running(self._program, self._torn)
        with Draft(Path(folder), meta) as draft:
            draft.commit(self._shards.save(program, range(self._n_shards), draft.path))

    def load(self, folder: Path) -> dict[str, Any] | None:
        """Restore the shards' states of the newest complete checkpoint in a folder.

        Returns the caller's record (meta) in it; None, with unchanged states, if there is none.
        """
        program = require_running(self._program)

        def restore(base: Checkpoint) -> None:
            """Replace the states of all shards by those of a checkpoint."""
            self._torn = True
            self._shards.states.clear()
            self._shards.restore(program, range(self._n_shards), base.shard)

        found = restore_newest(Path(folder), self._n_shards, restore)
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
        limit = in_flight_limit(in_flight, self.workers)
        waiting: deque[Future[Result]] = deque()
        left = iter(items)
        first = list(islice(left, 2))
        items = chain(first, left)
        with blas_threads(1):
            if self.workers == 1 or len(first) < 2:  # one item at a time
                yield from map(function, items)
                return
            try:
                for item in items:
                    waiting.append(self._shards.pool.submit(function, item))
                    if len(waiting) == limit:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
                wait(waiting)

    def everywhere(self, function: Callable[[], Result]) -> list[Result]:
        """Return ``function()`` of this process, which does all work."""
        return [function()]

    def rely_on(self, files: Iterable[Path | RemotePath]) -> None:
        """Do nothing with ``files``: all work runs in this process, which sees them."""

    def memory(self) -> int:
        """Return the bytes that all processes hold now."""
        return self._sampler.look()

    def stop(self) -> None:
        """Drop the program and the states of its shards."""
        if self._program is None:
            # Do not return memory to the system after each of many small fits: the next one would
            # allocate it again at once, which takes longer than the fit.
            return
        self._program = None
        self._shards.states.clear()
        return_memory()

    def close(self) -> None:
        """End the fleet's threads; ``peak_pss`` stays readable."""
        self.stop()
        return_memory()
        self._shards.close()
        self._sampler.stop()

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_shards(n_shards: int) -> None:
    """Raise ValueError for fewer than one shard."""
    if n_shards < 1:
        raise ValueError(f"a program needs at least 1 shard, not {n_shards}")


def require_running(program: Program | None, torn: bool = False) -> Program:
    """Return the running program; raises RuntimeError without one, or after a failed round.

    ``torn``: whether the last round failed half-way, so that some shards have stepped, others not.
    """
    if program is None:
        raise RuntimeError("no program runs on this fleet: call start first")
    if torn:
        raise RuntimeError("the last round failed half-way: call start or load before the next")
    return program


def in_flight_limit(in_flight: int | None, workers: int) -> int:
    """Return how many items of `each` may be submitted at a time; ValueError below one.

    ``in_flight`` is the requested number; None: two for each of ``workers``.
    """
    if in_flight is not None and in_flight < 1:
        raise ValueError(f"in_flight must be at least 1, not {in_flight}")
    return in_flight or 2 * workers


def usable_processors() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
