"""What a fleet offers: rounds over shards, and independent items, wherever they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bigscreen.files.remote import RemotePath
from bigscreen.fleet.shards import FloatArray, Program, Totals

Item = TypeVar("Item")
Result = TypeVar("Result")

Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""How a function is run over items, results in order: like the built-in `map`, or `Fleet.each`."""


class Fleet(Protocol):
    """What a solver sees of threads or a cluster. A context manager; leaving it closes it."""

    @property
    def workers(self) -> int:
        """Steps that run at the same time: threads inline, all workers' threads on a cluster."""

    @property
    def worker_memory(self) -> int | None:
        """Bytes that a worker may hold for each of its threads, the least of all workers.

        None where no worker has a limit, and where there are none.
        """

    @property
    def peak_pss(self) -> int:
        """Most bytes held, all processes together (an upper bound: the sum of their own peaks)."""

    def start(self, program: Program, n_shards: int) -> None:
        """Open every shard of a program, dropping the one before."""

    def round(self, message: dict[str, Any]) -> tuple[FloatArray, Totals]:
        """One step of every shard.

        Parameters
        ----------
        message : dict
            Small and picklable; arrays of up to some 100,000 numbers travel well. A cluster keeps
            messages to replay them, until the next ``save`` or until it has some tens of megabytes
            of them and copies the states instead.

        Returns
        -------
        stack : ndarray of float64, shape (n_shards, k)
            What the steps returned, in shard order.
        totals : dict of str to int64 ndarray
            The sum over all shards of what they added; exact.

        Raises
        ------
        Exception
            What a step raised, as it is. The states are then undefined until ``start`` or ``load``.
        """

    def save(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Write a checkpoint: every state, and ``meta`` (JSON-able values and numpy arrays).

        Written beside, made durable, renamed; the newest two stay. The folder of a cluster that
        spans several machines must be shared between all of them.
        """

    def load(self, folder: Path) -> dict[str, Any] | None:
        """Restore the states of the newest whole checkpoint after ``start``; returns its meta.

        None, with the states as ``start`` left them, if the folder has no whole checkpoint. A
        damaged one is skipped with a warning. It may have been saved by any kind of fleet.
        """

    def each(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        in_flight: int | None = None,
    ) -> Iterator[Result]:
        """``function(item)`` for every item, in order.

        At most ``in_flight`` are handed out at a time (default: two for every thread).
        """

    def rely_on(self, files: Iterable[Path | RemotePath]) -> None:
        """Use only workers that see these files as they are here; InputError if none does."""

    def memory(self) -> int:
        """Bytes (PSS) held now by all processes together."""

    def stop(self) -> None:
        """Drop the program and its states."""

    def close(self) -> None:
        """End what the fleet started; ``peak_pss`` stays readable."""
