"""What a block solve keeps beside alpha: its cost, screening, the next block, the last survey."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.solvers.block.working_set import Violators


@dataclass
class Effort:
    """What a run has cost.

    ``spent``: kernel entries before the shards began again; ``terms``: what pair steps have added
    up; passes: moves that all rows heard of, and some.
    """

    spent: int = 0
    terms: int = 0
    moves: int = 0
    full_passes: int = 0
    partial_passes: int = 0


@dataclass
class Screening:
    """What has been fixed: rows by the last screening and by all, and how many of them wrongly.

    ``past`` holds alpha at every screening round; ``screened``: whether there ever was one.
    """

    screened: bool = False
    past: list[FloatArray] = field(default_factory=list)
    counts: tuple[int, int] = (0, 0)
    fixed: int = 0
    false_removals: int = 0

    def clear(self) -> None:
        """No row is fixed any more."""
        self.past, self.counts, self.fixed = [], (0, 0), 0


class Proposal(NamedTuple):
    """Where a solve of some rows has ended: what a run moves.

    ``part``: the dual of the rows ``ids``, whose features are ``X``. ``before``, ``G``: ``p - s u``
    before and after. ``watch``: the rows that the next block is chosen from. ``exact``: see
    ``BlockRounds.move``.
    """

    part: Dual
    ids: NDArray[np.int64]
    X: Any
    alpha: FloatArray
    before: FloatArray
    G: FloatArray
    watch: NDArray[np.int64]
    exact: bool = False


@dataclass
class Mending:
    """What float32 columns have done to the scores.

    ``drift``: the sum of alpha's moves by them since scores were mended. ``noise``: by how much a
    unit of it moves the gap, as the last mending found; nan: nothing is known yet. ``times``:
    scores have been mended, for this problem.
    """

    drift: float = 0.0
    noise: float = np.nan
    times: int = 0


@dataclass
class NextBlock:
    """The next block: places of the last one that stay, new rows, and v of both."""

    stay: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    new: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    v: FloatArray = field(default_factory=lambda: np.empty(0))


@dataclass
class Survey:
    """What the shards have said after the last move (see ``shard.NOTES``), of all of them.

    ``watched``: v of the rows asked about; ``complete``: whether all violators are named.
    """

    w_sq: float = 0.0
    gap: float = 0.0
    rounding: float = 0.0
    alive: int = 0
    entries: int = 0
    highest: FloatArray = field(default_factory=lambda: np.empty(0))
    lowest: FloatArray = field(default_factory=lambda: np.empty(0))
    ups: Violators = field(default_factory=Violators.none)
    downs: Violators = field(default_factory=Violators.none)
    watched: FloatArray = field(default_factory=lambda: np.empty(0))
    complete: bool = False
