"""The interface of fleets: rounds of a program over shards, and independent items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bigscreen.files.remote import RemotePath
from bigscreen.fleet.shards import FloatArray, Program, Totals

Item = TypeVar("Item")
Result = TypeVar("Result")

Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""A function that maps another over items, in order: the built-in `map`, or `Fleet.each`."""


class Fleet(Protocol):
    """A fleet: the interface that solvers use to threads or a cluster; a context manager."""

    @property
    def workers(self) -> int:
        """The number of steps that run at once: threads of this process, or of all workers."""

    @property
    def worker_memory(self) -> int | None:
        """The bytes that a worker may hold for each of its threads; the smallest of all workers.

        None if no worker has a limit, or there are no workers.
        """

    @property
    def peak_pss(self) -> int:
        """The peak memory of all processes in bytes; an upper bound, the sum of their peaks."""

    def start(self, program: Program, n_shards: int) -> None:
        """Make the state of every shard (part of the rows), as ``program`` opens it.

        A program that ran before is stopped, and its states are dropped.
        """

    def round(self, message: dict[str, Any]) -> tuple[FloatArray, Totals]:
        """Send a message to all shards, each of which computes one step of the program.

        Parameters
        ----------
        message : dict
            Small and picklable, with arrays of at most about 100,000 numbers. A cluster keeps
            messages for replay until the next ``save``, or until they have tens of megabytes and
            it copies the states instead.

        Returns
        -------
        stack : ndarray of float64, shape (n_shards, k)
            The vectors that the steps returned, in shard order.
        totals : dict of str to int64 ndarray
            The exact sums over all shards of what the steps added.

        Raises
        ------
        Exception
            The error of a step. The states are then undefined until ``start`` or ``load``.
        """

    def save(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Write a checkpoint: every state, and ``meta`` (JSON-able values and numpy arrays).

        It is written under another name, flushed to disk and renamed; the newest two are kept. The
        machines of a cluster must share the folder.
        """

    def load(self, folder: Path) -> dict[str, Any] | None:
        """After ``start``, restore the states of the newest complete checkpoint; returns its meta.

        None, with unchanged states, if the folder has no complete checkpoint. A damaged checkpoint
        is skipped with a warning. Any kind of fleet can have saved it.
        """

    def each(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        in_flight: int | None = None,
    ) -> Iterator[Result]:
        """Yield ``function(item)`` for every item, in order.

        At most ``in_flight`` items are submitted at a time (default: two for each thread).
        """

    def everywhere(self, function: Callable[[], Result]) -> list[Result]:
        """Return ``function()`` of each process that computes: this one, or each worker process.

        Raises
        ------
        InputError
            If the function raises one; on a cluster it names the worker.
        """

    def rely_on(self, files: Iterable[Path | RemotePath]) -> None:
        """Use only workers that see the same files as this process; InputError if none does."""

    def memory(self) -> int:
        """Return the bytes (PSS) that all processes hold now."""

    def stop(self) -> None:
        """Drop the program and its states."""

    def close(self) -> None:
        """End the processes and threads that the fleet started; ``peak_pss`` stays readable."""
