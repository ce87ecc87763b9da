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
    """What a run of the block solver has cost so far.

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
    """What screening (rules that prove rows to stay at a bound) has fixed in a block solve.

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
        The gradients ``p - s u`` of these rows before and after the solve.
    watch : int64
        Rows whose scores are needed to choose the next block.
    exact : bool
        Update scores that come from float64 entries by float64 columns (see `BlockRounds.move`).
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
    """The next block: rows that stay from the last one, new rows, and v of both.

    ``stay``: places of rows in the last block. ``new``: numbers of rows in the data. ``v``: the
    dual gradients ``(p - s u) / t``, first of the rows that stay, then of the new ones (t: the
    coupling's +-1, or s).
    """

    stay: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    new: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    v: FloatArray = field(default_factory=lambda: np.empty(0))


@dataclass
class Survey:
    """The shards' answers to the last change of alpha, added up over all rows not screened.

    Attributes
    ----------
    w_sq, gap, rounding : float
        ``||w||^2``, the Frank-Wolfe gap, and a bound on how far rounding has changed the gap.
    alive, entries : int
        Rows not screened; kernel entries computed so far.
    highest, lowest : float64 (groups,)
        The largest v of rows that can move up, the smallest of rows that can move down, with the
        tube's terms. (``v = (p - s u) / t``: dual gradients; at the optimum highest <= lowest.)
    ups, downs : Violators
        The rows that violate most, and can move up and down.
    watched : float64
        v of the rows that were requested.
    complete : bool
        Whether ``ups`` and ``downs`` contain all violators.
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
