"""Records of a block solve: its cost, screening, the next block, and the last survey."""

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

    Attributes
    ----------
    spent : int
        Kernel entries computed before the shards were last restarted.
    terms : int
        Pair steps times the rows of their blocks.
    moves : int
        Moves sent to the shards.
    full_passes, partial_passes : int
        Moves of rows that updated the scores of all rows, or only of rows not screened.
    """

    spent: int = 0
    terms: int = 0
    moves: int = 0
    full_passes: int = 0
    partial_passes: int = 0


@dataclass
class Screening:
    """What screening has fixed.

    Attributes
    ----------
    screened : bool
        Whether screening was ever used.
    past : list of float64 (n,)
        alpha at each screening round.
    counts : (int, int)
        Rows that the last round fixed at their upper bound, and elsewhere.
    fixed : int
        Rows fixed by all rounds.
    false_removals : int
        Rows that were found to be fixed wrongly.
    """

    screened: bool = False
    past: list[FloatArray] = field(default_factory=list)
    counts: tuple[int, int] = (0, 0)
    fixed: int = 0
    false_removals: int = 0

    def clear(self) -> None:
        """Forget all fixed rows."""
        self.past, self.counts, self.fixed = [], (0, 0), 0


class Proposal(NamedTuple):
    """The result of solving for some rows, to be applied by `BlockRun.apply`.

    Attributes
    ----------
    part : Dual
        The dual of the rows ``ids``, whose features are ``X``.
    alpha : float64
        The new alpha of these rows.
    before, G : float64
        ``p - s u`` before and after.
    watch : int64
        Rows whose scores are needed to choose the next block.
    exact : bool
        See `BlockRounds.move`.
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
    """The errors that float32 columns have added to the scores, and their repair from float64.

    Attributes
    ----------
    drift : float
        Sum of all changes of alpha made with float32 columns since the last repair.
    noise : float
        Change of the gap per unit of drift, as the last repair measured; nan: not known yet.
    times : int
        Number of repairs for this problem.
    """

    drift: float = 0.0
    noise: float = np.nan
    times: int = 0


@dataclass
class NextBlock:
    """The next block: places of rows that stay from the last one, new rows, and v of both."""

    stay: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    new: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    v: FloatArray = field(default_factory=lambda: np.empty(0))


@dataclass
class Survey:
    """The shards' answers to the last move, added up (see ``shard.NOTES``).

    ``ups`` and ``downs`` are the violators that can move up and down, ``watched`` v of the watched
    rows. ``complete``: whether all violators are listed.
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
