"""What is tuned of the block solver, each value with what it does and the race that chose it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EndingTuning:
    """When all rows that could still move are solved for at once (see `ending`).

    Parameters
    ----------
    start : float
        Relative gap from which on it is tried: rows that will move are about those that do.
    close_target : float
        Relative gap asked for from which on it is tried.
    retry_fraction : float
        Part of the gap at which it is tried again where it has not halved the gap.
    join_distance : float
        Rows so many times as near to their kink as the furthest violates join the others: of those
        that violate once these have moved most are among them.
    max_open_per_free : float
        Rows that are free or violate, as a part of the free ones, above which there is no face to
        end on yet: of a9a's at a gap of 1e-3 less than half were free, and the try cost a 12th of
        the fit.
    few_rows, max_rows, cost_share : int
        Rows that can always move, at most, and at most for the square of so many there are
        n / cost_share: a factor costs the cube of them, and the blocks that it saves about n times
        as many entries.
    """

    start: float = 1e-3
    close_target: float = 1e-7
    retry_fraction: float = 0.1
    join_distance: float = 0.25
    max_open_per_free: float = 1.25
    few_rows: int = 512
    max_rows: int = 3072
    cost_share: int = 300

    def max_open(self, n: int) -> int:
        """Rows that it is tried with, at most, of n."""
        return int(min(self.max_rows, max(self.few_rows, (self.cost_share * n) ** 0.5)))


@dataclass(frozen=True)
class BlockTuning:
    """Values that change how long a block solve takes, never what it proves.

    Parameters
    ----------
    max_growing_block : int
        Rows up to which a block doubles while more than half of it is free.
    max_whole_block : int
        Rows up to which all free rows and all violators make up one block: they need no turns then.
    min_block : int
        Rows of a block at least, if there are so many.
    rows_per_round : int
        Rows whose features one round sends, at most.
    subsample_steps_per_row, block_steps_per_row : int
        Pair steps on the subsample and in a block, at most, for each of its rows.
    min_block_steps_per_row : float
        Pair steps in a block, for each of its rows, that it is worth its kernel entries from: a
        solve of fewer goes on, until the violation is ``usual_distance`` times the distance from mu
        that a quarter of the rows are beyond. A few rows far out say nothing of the others.
    usual_distance : float
    min_share_at_bound : float
        Part of a subsample's support at its bound from which its solution says something of all
        rows. The fewer rows the wider their boxes, and the fewer of these are filled: of noisy rows
        47 % where all rows are 24 times as many and 27 % at 98 times, of rows whose labels part
        well 2 % at most. (Without a start read off the subsample: a9a 1.4
        to 1.8 times as long, one run each.)
    smoothing_of_margin : float
        Half-width of that reading, in units of the margin.
    gap_bound_fraction : float
        Part of the bound on the gap's rounding that rounding has moved it by: 1/200 to 1/50,000
        were seen. Where it was more the closing pass says so.
    max_mends : int
        Times that scores are mended before all kernel entries are computed in float64 instead.
        (None, to 1e-6, one run each: ijcnn1 1.9, covtype 1.4, mnist 3-vs-5 1.1, a9a .9 times.)
    """

    max_growing_block: int = 4096
    max_whole_block: int = 8192
    min_block: int = 512
    rows_per_round: int = 4096
    subsample_steps_per_row: int = 10
    block_steps_per_row: int = 100
    min_block_steps_per_row: float = 0.5
    usual_distance: float = 4.0
    min_share_at_bound: float = 0.1
    smoothing_of_margin: float = 0.05
    gap_bound_fraction: float = 1e-4
    max_mends: int = 8
    ending: EndingTuning = EndingTuning()
