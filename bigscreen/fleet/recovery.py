"""Restore lost shards of a cluster from saved states and the messages since."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bigscreen.files.checkpoint import Checkpoint, Draft, write_shard
from bigscreen.files.scratch import scratch
from bigscreen.fleet.hosts import Seats
from bigscreen.fleet.shards import Arrays
from bigscreen.fleet.worker import Message


@dataclass
class Recovery:
    """The states from which lost shards are restored, and the messages to replay on them.

    A shard (part of the rows) is lost if its worker dies. It starts from ``copy``, a copy of the
    states on this machine; else from ``base``, a checkpoint; else it is opened anew. ``log`` has
    the messages of the rounds since. The states are copied once the messages have more bytes than
    ``log_bytes``, and more than the last copy.
    """

    log_bytes: int
    base: Path | None = None
    copy: Checkpoint | None = None
    log: list[Message] = field(default_factory=list)
    folder: Path | None = None  # contains the copies
    _held: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        """Set ``limit``: the states are copied once the messages have more bytes than this."""
        self.limit = self.log_bytes

    def begin(self, base: Path | None) -> None:
        """Restore lost shards from a checkpoint from now on, or open them anew if it is None."""
        self.base, self.copy, self.log, self.limit = base, None, [], self.log_bytes

    def saved(self, shards: list[int]) -> str | dict[int, Arrays] | None:
        """Return the saved states of these shards, in the form that a host takes."""
        if self.copy is not None:
            return {shard: self.copy.shard(shard) for shard in shards}
        return None if self.base is None else str(self.base)

    def shorten(self, hosts: Seats) -> None:
        """Copy the shards' states to this machine, so that messages need not be replayed any more.

        Nothing is done while the messages since the last copy take at most ``limit`` bytes. After
        the copy they are forgotten. ``hosts`` hold the states.
        """
        if sum(len(part) for note in self.log for part in note) <= self.limit:
            return
        seats = [seat for seat in hosts.all if seat.shards]
        checksums: dict[int, int] = {}
        try:
            if self.folder is None:
                self.folder = self._held.enter_context(scratch("states"))
            with Draft(self.folder, {}) as draft:
                for turn in range(max(len(seat.shards) for seat in seats)):
                    calls = [(s, (s.shards[turn],)) for s in seats if turn < len(s.shards)]
                    shown = hosts.ask_each(calls, "show")
                    if len(shown) < len(calls):
                        return  # a host is gone: try again after the next round
                    for seat, arrays in shown.items():
                        shard = seat.shards[turn]
                        checksums[shard] = write_shard(draft.path, shard, arrays)
                copy = Checkpoint.read(draft.commit(checksums))
        except OSError:
            self.limit *= 2  # no room on this machine's disk
            return
        size = sum(file.stat().st_size for file in copy.path.iterdir())
        self.base, self.copy, self.log = None, copy, []
        self.limit = max(self.log_bytes, size)

    def close(self) -> None:
        """Remove the copies of states from this machine."""
        self._held.close()
