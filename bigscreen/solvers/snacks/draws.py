"""Batches of rows for stochastic steps: every pass draws every row once, in random order."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigscreen.data.layout import MAX_CHUNK_BYTES
from bigscreen.data.rows import Rows

CHUNK_BUFFER_BYTES = 16 * MAX_CHUNK_BYTES
"""Bytes of the chunks that batches are drawn from at one time, of all shards together."""


class Draws:
    """Sequence of batches of rows, drawn without replacement in every pass.

    A pass goes through all shards in a random order, one group of shards at a time. Each shard of a
    group gives every batch the same fraction of its rows. So sorted rows are mixed, and only as
    many chunks of rows on disk are read at one time as there is room for.

    Parameters
    ----------
    data : Rows
    seed : int
    batch : int
        Rows of a batch, approximately.
    min_lanes : int
        Draw from at least this many shards ("lanes") at a time, if there are as many.
    """

    def __init__(self, data: Rows, seed: int, batch: int, min_lanes: int = 8) -> None:
        """Start before the first batch of the first pass."""
        self.data, self.seed, self.batch = data, seed, batch
        whole = min(MAX_CHUNK_BYTES, 4 * data.chunk_rows * data.n_features)
        self.lanes = max(min_lanes, CHUNK_BUFFER_BYTES // max(whole, 1))
        self.position = [0, 0, 0]
        """Numbers of the pass, of the pass's group of shards, and of the group's next batch."""
        self._grouped: tuple[tuple[int, int], Any, int] | None = None

    def next(self) -> dict[str, Any]:
        """Draw the next batch; returns the fields of a message that name it (see `ahead`)."""
        found = self.ahead(1)
        self.position[2] += 1
        return found

    def ahead(self, rows: int) -> dict[str, Any]:
        """Look ahead at about this many of the next rows, without drawing them.

        At the end of a group these are the group's last rows. Returns message fields: ``epoch``
        (number of the pass), ``lanes`` (shards to draw from), and the batches ``first`` to ``last``
        (excluded) of the group's ``parts`` batches.
        """
        lanes, parts = self._group()
        if self.position[2] >= parts:
            pass_, group, _ = self.position
            done = (group + 1) * self.lanes >= self.data.n_shards
            self.position = [pass_ + 1, 0, 0] if done else [pass_, group + 1, 0]
            lanes, parts = self._group()
        wanted = min(max(1, round(rows / self.batch)), parts)
        first = min(self.position[2], parts - wanted)
        last = first + wanted
        pass_ = self.position[0]
        return {"epoch": pass_, "lanes": lanes, "first": first, "last": last, "parts": parts}

    def _group(self) -> tuple[Any, int]:
        """Return the shards of the current group, and the number of its batches."""
        pass_, group = self.position[:2]
        if self._grouped is None or self._grouped[0] != (pass_, group):
            order = np.random.default_rng([self.seed, pass_]).permutation(self.data.n_shards)
            lanes = order[group * self.lanes : (group + 1) * self.lanes]
            ends = [self.data.shard(s) for s in lanes.tolist()]
            rows = sum(stop - start for start, stop in ends)
            self._grouped = (pass_, group), lanes, -(-rows // self.batch)
        return self._grouped[1:]
