"""Rows that shards keep in memory between rounds, and drop if memory runs short."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from bigscreen.features.design import Design


class KeptRows:
    """Base of programs whose shards keep their rows in memory (see ``fleet.shards.Yielding``).

    A program is a frozen dataclass with these fields. Its states have an ``X``: the shard's rows,
    or None if they are read again in every pass.

    Parameters
    ----------
    design : Design
    resident : float
        Fraction of the rows that is kept in memory between passes: whole shards, spread evenly.
    stride : int
        A state has every ``stride``-th row of its shard.
    """

    design: Design
    resident: float
    stride: int = 1

    def keeps(self, shard: int) -> bool:
        """Whether the rows of the shard with this number stay in memory between rounds."""
        part = min(1.0, self.resident * self.stride)
        return int((shard + 1) * part) > int(shard * part)

    def kept_bytes(self, shard: int) -> int:
        """Return the bytes of rows that the shard's state keeps between rounds."""
        data = self.design.data
        if not self.keeps(shard) or data.path is None:
            return 0
        start, stop = data.shard(shard)
        return int((stop - start) * data.row_bytes / self.stride)

    def lean(self) -> Self:
        """Return the same program with states that keep no rows in memory."""
        program: Any = self
        lean: Self = replace(program, resident=0.0)
        return lean

    def give_up(self, state: Any) -> int:
        """Drop the rows of a state, which are then read again; returns the bytes freed."""
        if state.X is None or self.design.data.path is None:
            return 0
        rows = len(state.X.indptr) - 1 if hasattr(state.X, "indptr") else len(state.X)
        state.X = None
        return int(rows * self.design.data.row_bytes)
