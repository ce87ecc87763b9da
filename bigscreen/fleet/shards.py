"""The shards that one process holds, the threads that step them, and its peak memory."""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import psutil
from numpy.typing import NDArray

from bigscreen.files.checkpoint import write_shard
from bigscreen.fleet.blas import blas_threads
from bigscreen.fleet.memory import return_memory

Result = TypeVar("Result")
FloatArray = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]
Totals = dict[str, NDArray[np.int64]]


class Program(Protocol):
    """The interface of programs: what each shard (part of the rows) computes in a round.

    A program is picklable, and one object serves all shards. A state must depend on the messages
    alone: the same messages give the same state, bit for bit, in any process and at each
    repetition. Programs must not change a message.
    """

    def open(self, shard: int) -> Any:
        """Make the state of shard number ``shard`` before the first round."""

    def step(self, state: Any, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Update a state with a message; returns the shard's vector.

        Parameters
        ----------
        state : object
            The shard's state; changed in place.
        message : dict
            The argument of :meth:`Fleet.round`.
        totals : dict of str to int64 ndarray
            Sums to ADD to, shared with other shards: create a missing key, else
            ``totals[key] += ...``. Integers, as sums of floats would depend on the order of shards.

        Returns
        -------
        ndarray of float64, shape (k,)
            All shards must return the same k.
        """

    def save(self, state: Any) -> Arrays:
        """Return a shard's state as plain arrays by name, from which `load` restores it."""

    def load(self, shard: int, arrays: Arrays) -> Any:
        """Make the state again from the arrays that :meth:`save` returned."""


class Yielding(Program, Protocol):
    """A program whose states keep rows in memory that can be read again from disk.

    Its steps return the same, bit for bit, with rows kept in memory and with rows read again.
    """

    def kept_bytes(self, shard: int) -> int:
        """Return the bytes of rows that the state of a shard keeps between rounds."""

    def lean(self) -> Program:
        """Return the program with states that keep no rows."""

    def give_up(self, state: Any) -> int:
        """Stop keeping the rows of a state; returns the bytes that this frees."""


def can_give_up_rows(program: Any) -> bool:
    """Whether the states of a program can give up rows."""
    return hasattr(program, "give_up")


@functools.lru_cache(maxsize=1)
def _process(number: int) -> psutil.Process:
    """Return this process for psutil, cached: to make the object takes longer than to use it."""
    return psutil.Process(number)


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(_process(os.getpid()).memory_info().rss)


def pss() -> int:
    """Return the memory of this process in bytes, counting its share of shared pages.

    Returns
    -------
    int
        The proportional set size (PSS), or the resident set size if the system has no PSS.
    """
    try:
        return int(_process(os.getpid()).memory_full_info().pss)
    except (AttributeError, psutil.Error):
        return _resident()


class Shards:
    """The shard states that one process holds, and the threads that step them.

    Parameters
    ----------
    threads : int
    most : int or None
        States give up rows, which can be read again, while this process has more resident bytes;
        None: they always keep their rows.
    resident : callable
        Returns the resident bytes of this process.
    """

    def __init__(
        self, threads: int, most: int | None = None, resident: Callable[[], int] = _resident
    ) -> None:
        """Begin without states, with a pool of ``threads`` threads.

        States give up rows, which can be read again, while ``resident()``, the resident bytes of
        this process, is more than ``most``; None: never.
        """
        self.threads, self.most, self._resident = threads, most, resident
        self.states: dict[int, Any] = {}
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="bigscreen")

    def restore(
        self,
        program: Program,
        shards: Sequence[int],
        saved: Callable[[int], Arrays] | None,
        messages: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Make the states of shards, and replay messages on them.

        A state is loaded from the arrays that ``saved`` returns for its shard; ``saved`` of None:
        it is opened anew. ``messages``: of the rounds since the state was saved.
        """

        def bring(shard: int, _: Totals) -> None:
            """Open or load one shard, and replay the messages of later rounds on it."""
            opened = self._with_room(program, shard)
            state = opened.open(shard) if saved is None else opened.load(shard, saved(shard))
            for message in messages:
                program.step(state, message, {})  # its totals were counted when it was new
            self.states[shard] = state

        self.deal(bring, [(shard,) for shard in shards])

    def take(self, program: Program, shard: int, arrays: Arrays) -> None:
        """Take over a shard from another process, which has saved its state as ``arrays``."""
        self.states[shard] = self._with_room(program, shard).load(shard, arrays)

    def _with_room(self, program: Any, shard: int) -> Any:
        """Return the program, or its variant whose states keep no rows of the data in memory.

        The variant is returned if the rows of the shard would take this process beyond its limit.
        """
        if self.most is None or not can_give_up_rows(program):
            return program
        kept = program.kept_bytes(shard)
        if not kept or self._resident() + kept <= self.most:
            return program
        return_memory()
        return program if self._resident() + kept <= self.most else program.lean()

    def relieve(self, program: Any) -> None:
        """Make states give up rows, which can be read again, while memory is above the limit.

        Nothing is done if this process has no limit, or the program's states keep no rows.
        """
        if self.most is None or not can_give_up_rows(program) or self._resident() <= self.most:
            return
        return_memory()
        beyond = self._resident() - self.most
        for state in reversed(list(self.states.values())):
            if beyond <= 0:
                break
            beyond -= program.give_up(state)
        return_memory()

    def save(self, program: Program, shards: Sequence[int], path: Path) -> dict[int, int]:
        """Write the states into the folder of a checkpoint draft; returns checksums by shard."""

        def write(shard: int, _: Totals) -> int:
            """Write one shard into the checkpoint, and return its checksum."""
            return write_shard(path, shard, program.save(self.states[shard]))

        sums, _ = self.deal(write, [(shard,) for shard in shards])
        return dict(zip(shards, sums, strict=True))

    def close(self) -> None:
        """Drop the states and end the threads."""
        self.states.clear()
        self.pool.shutdown()

    def deal(
        self, function: Callable[..., Result], calls: Sequence[tuple[Any, ...]]
    ) -> tuple[list[Result], list[Totals]]:
        """Run ``function(*call, totals)`` for every call on the threads.

        Returns the results in the order of the calls, and the totals of each thread.
        """
        results: dict[int, Result] = {}
        threads = min(self.threads, len(calls))
        parts: list[Totals] = [{} for _ in range(threads)]
        with blas_threads(1):
            if threads == 1:
                for k, call in enumerate(calls):
                    results[k] = function(*call, parts[0])
                return list(results.values()), parts
            waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
            for k in range(len(calls)):
                waiting.put(k)
            failed = threading.Event()

            def work(totals: Totals) -> None:
                """Run queued calls on one thread, until none is left or a call has failed."""
                try:
                    while not failed.is_set():
                        k = waiting.get_nowait()
                        results[k] = function(*calls[k], totals)
                except queue.Empty:
                    return
                except BaseException:
                    failed.set()
                    raise

            jobs = [self.pool.submit(work, totals) for totals in parts]
            try:
                wait(jobs)
            finally:
                failed.set()  # an interrupt must not leave threads stepping behind it
                wait(jobs)
            for job in jobs:
                job.result()
        return [results[k] for k in range(len(calls))], parts


def stack_vectors(rows: Sequence[FloatArray]) -> FloatArray:
    """Stack the vectors of all shards into one float64 array (shards, k).

    Raises
    ------
    ValueError
        If the vectors are not 1-D or not of one length.
    """
    arrays = [np.asarray(row, dtype=np.float64) for row in rows]
    if {array.ndim for array in arrays} != {1} or len({array.size for array in arrays}) != 1:
        shapes = sorted({array.shape for array in arrays})
        raise ValueError(f"every step must return a 1-D array of the same length, not {shapes}")
    return np.stack(arrays)


def add_totals(parts: Iterable[Totals]) -> Totals:
    """Sum totals (int64 arrays by name) of shards or threads; the first ones are overwritten.

    Raises
    ------
    TypeError
        If one is not an array of int64: only integer sums do not depend on the order.
    """
    sums: Totals = {}
    for part in parts:
        for name, array in part.items():
            if not isinstance(array, np.ndarray) or array.dtype != np.int64:
                raise TypeError(f"total {name!r} must be an int64 array, so that its sum is exact")
            if name not in sums:
                sums[name] = array if array.flags.writeable else array.copy()
            elif sums[name].shape != array.shape:
                raise ValueError(f"total {name!r} has shapes {sums[name].shape} and {array.shape}")
            else:
                sums[name] += array
    return sums


class Sampler:
    """Records the peak memory (:func:`pss`) of this process; a thread samples it twice a second.

    A PSS takes the system 10 ms for each GiB, during which threads cannot get new memory. So it is
    measured only if the resident set has grown so much that there may be a new peak. Before the
    first sample the peak is the resident set size, as a sample takes as long as a small fit.

    Parameters
    ----------
    watch : _Watch or None
        The thread that takes the samples; None: the thread that all samplers share.
    """

    def __init__(self, watch: _Watch | None = None) -> None:
        """Begin to sample; ``now`` and ``highest`` are bytes, 0 before the first sample."""
        self.now = self.highest = 0
        self._stopped = False
        self._watch = _watch if watch is None else watch
        self._watch.add(self)

    @property
    def peak(self) -> int:
        """The peak memory in bytes."""
        return self.highest or _resident()

    def look(self) -> int:
        """Measure the memory now; returns the bytes."""
        self.note(pss())
        return self.now

    def note(self, found: int) -> None:
        """Record a measurement in bytes."""
        self.now = found
        self.highest = max(self.highest, found)

    def stop(self) -> None:
        """Take a last sample and stop sampling; the peak stays readable."""
        if not self._stopped:
            self._stopped = True
            self._watch.remove(self)
            if not self.highest:
                self.highest = _resident()
                return
            self.look()


class _Watch:
    """The thread that samples memory for all samplers of this process.

    One thread for each sampler would take as long to start as a small fit. The thread looks every
    ``seconds``, and ends after ``max_idle`` looks without a sampler. ``resident`` and ``measure``
    return bytes of this process: its resident set, and its proportional set, which takes longer.
    """

    def __init__(
        self,
        seconds: float = 0.5,
        max_idle: int = 20,
        resident: Callable[[], int] = _resident,
        measure: Callable[[], int] = pss,
    ) -> None:
        """Begin without samplers and without a thread."""
        self._seconds, self._max_idle = seconds, max_idle
        self._resident, self._measure = resident, measure
        self._lock = threading.Lock()
        self._samplers: set[Sampler] = set()
        self._thread: threading.Thread | None = None

    def add(self, sampler: Sampler) -> None:
        """Sample memory for this sampler from now on; starts the thread if none runs."""
        with self._lock:
            self._samplers.add(sampler)
            # (A forked child process has the object of the thread, but no thread.)
            if self._thread is None or not self._thread.is_alive():
                name = "bigscreen-memory"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def remove(self, sampler: Sampler) -> None:
        """Stop sampling memory for this sampler."""
        with self._lock:
            self._samplers.discard(sampler)

    def _run(self) -> None:
        """Sample memory, until there has been no sampler for ``max_idle`` looks."""
        idle, beyond = 0, 0
        while idle < self._max_idle:
            time.sleep(self._seconds)
            with self._lock:
                wanted = list(self._samplers)
                idle = 0 if wanted else idle + 1
                if idle == self._max_idle:
                    self._thread = None
            if wanted:
                # Shared memory is libraries and files, which hardly change.
                found = self._resident() - beyond
                if found > min(sampler.highest for sampler in wanted):
                    found = self._measure()
                    beyond = self._resident() - found
                for sampler in wanted:
                    sampler.note(found)


_watch = _Watch()
if hasattr(os, "register_at_fork"):
    # A lock that a thread holds while another one forks is never released in the child.
    os.register_at_fork(after_in_child=_watch.__init__)  # type: ignore[misc]  # anew, in place
