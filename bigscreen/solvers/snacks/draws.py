"""Which rows a step draws: some shards at a time, all of their rows once in a pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigscreen.data.layout import MAX_CHUNK_BYTES
from bigscreen.data.rows import Rows

LEAST_LANES = 8
"""Shards that rows are drawn from at the same time, at least."""

HELD_BYTES = 16 * MAX_CHUNK_BYTES
"""Of chunks that are read at the same time, all shards together."""


class Draws:
    """Batches of rows, one after the other.

    A pass goes through all shards in a random order, a group of them at a time; each shard of a
    group gives every batch the same part of its rows. So rows that lie sorted in memory are mixed,
    and of rows on disk no more chunks are read at a time than have room.

    Parameters
    ----------
    data : Rows
    seed : int
    batch : int
        Rows of a batch, about.
    """

    def __init__(self, data: Rows, seed: int, batch: int) -> None:
        self.data, self.seed, self.batch = data, seed, batch
        whole = min(MAX_CHUNK_BYTES, 4 * data.chunk_rows * data.n_features)
        self.lanes = max(LEAST_LANES, HELD_BYTES // max(whole, 1))
        self.place = [0, 0, 0]
        """The pass, the group of it, the part of that group that comes next."""
        self._grouped: tuple[tuple[int, int], Any, int] | None = None

    def next(self) -> dict[str, Any]:
        """The batch that comes next, as messages have it."""
        found = self.ahead(1)
        self.place[2] += 1
        return found

    def ahead(self, rows: int) -> dict[str, Any]:
        """About so many rows that come next, and stay there; the last of a group where it ends."""
        lanes, parts = self._group()
        if self.place[2] >= parts:
            pass_, group, _ = self.place
            done = (group + 1) * self.lanes >= self.data.n_shards
            self.place = [pass_ + 1, 0, 0] if done else [pass_, group + 1, 0]
            lanes, parts = self._group()
        wanted = min(max(1, round(rows / self.batch)), parts)
        first = min(self.place[2], parts - wanted)
        last = first + wanted
        pass_ = self.place[0]
        return {"epoch": pass_, "lanes": lanes, "first": first, "last": last, "parts": parts}

    def _group(self) -> tuple[Any, int]:
        """The shards of the group at hand, and its batches."""
        pass_, group = self.place[:2]
        if self._grouped is None or self._grouped[0] != (pass_, group):
            order = np.random.default_rng([self.seed, pass_]).permutation(self.data.n_shards)
            lanes = order[group * self.lanes : (group + 1) * self.lanes]
            ends = [self.data.shard(s) for s in lanes.tolist()]
            rows = sum(stop - start for start, stop in ends)
            self._grouped = (pass_, group), lanes, -(-rows // self.batch)
        return self._grouped[1:]
