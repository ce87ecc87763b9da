"""Tuned values of the block solver: what each does, and the benchmark that chose it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FaceTuning:
    """Limits and tolerances of the exact active-set solver `face` of a small dual.

    A face fixes some rows at their bounds, others move. "Held" rows are kept at a bound in a step.

    Parameters
    ----------
    max_steps : int
        Take at most this many steps; each ends on another face, or at the optimum of its face.
    max_hold_rounds : int
        Within a step, hold rows that would cross their bounds at most this many times.
    ridges : floats
        Ridges of the Cholesky factor, relative to the largest ``k(x, x)``; use the next one if a
        step does not raise the dual.
    coupling_tol : float
        Reject a step that misses the couplings by more than this fraction of its length.
    hold_all_rows : int
        A factor of more rows than this is given up once half of them are held.
    max_held_fraction : float
        Make a new factor, without the rows held, once they are more than this fraction of the
        factor's rows.
    """

    max_steps: int = 30
    max_hold_rounds: int = 50
    ridges: tuple[float, ...] = (2.0**-27, 2.0**-20, 2.0**-13)
    coupling_tol: float = 1e-12
    hold_all_rows: int = 512
    max_held_fraction: float = 0.25


FACE = FaceTuning()
"""The tuned values of the exact solver that are used."""


@dataclass(frozen=True)
class EndingTuning:
    """When a block solve ends by solving exactly for all rows that can still move (see `ending`).

    Parameters
    ----------
    start : float
        Try once the relative gap is at most this: then the rows that will still move are mostly
        those that move now.
    close_target : float
        Try only if the requested relative gap is at most this.
    retry_fraction : float
        If an exact solve did not halve the gap, try again once the gap is this fraction of the gap
        before that solve.
    join_distance : float
        Include rows whose distance to their hinge point is at most this fraction of the largest
        violation. They contain most of the rows that violate after the solve.
    max_open_per_free : float
        Do not try if the rows that are free or violate are more than this multiple of the free
        rows: of a9a's at a gap of 1e-3 less than half were free, and the try cost 1/12 of the fit.
    few_rows : int
        Try with at most this many rows, however few rows n there are in all.
    max_rows : int
        Never try with more rows than this.
    cost_share : int
        Between these limits, try with at most ``sqrt(cost_share n)`` rows. Factoring costs the cube
        of the rows; the blocks that it saves cost approximately n times as many kernel entries as
        rows.
    face : FaceTuning
        Limits and tolerances of the exact solve.
    """

    start: float = 1e-3
    close_target: float = 1e-7
    retry_fraction: float = 0.1
    join_distance: float = 0.25
    max_open_per_free: float = 1.25
    few_rows: int = 512
    max_rows: int = 3072
    cost_share: int = 300
    face: FaceTuning = FACE

    def max_open(self, n: int) -> int:
        """Return the largest number of rows to try with, of n rows."""
        return int(min(self.max_rows, max(self.few_rows, (self.cost_share * n) ** 0.5)))


@dataclass(frozen=True)
class BlockTuning:
    """Values that change how long a block solve takes, never what it proves.

    Parameters
    ----------
    max_growing_block : int
        A block doubles while more than half of it is free, up to this many rows.
    max_whole_block : int
        All free rows and all violators form one block if they are at most this many: then no rows
        have to take turns.
    min_block : int
        A block has at least this many rows, if the data have.
    rows_per_round : int
        A round sends the features of at most this many rows.
    subsample_steps_per_row : int
        The solve of a subsample takes at most this many pair steps for each of its rows.
    block_steps_per_row : int
        The solve of a block takes at most this many pair steps for each of its rows.
    min_block_steps_per_row : float
        With fewer pair steps per row a block does not repay its kernel entries. Its solve then goes
        on until the violation is ``usual_distance`` times the upper quartile of the rows' distances
        from mu: a few rows far from mu may have set too loose a tolerance.
    usual_distance : float
        The multiple of the upper quartile that ``min_block_steps_per_row`` uses.
    min_share_at_bound : float
        Start from a subsample's solution if at least this fraction of its support is at the bound.
        Smaller subsamples have wider boxes, of which fewer are filled: with noisy labels 47 % (of a
        24th of the rows) and 27 % (of a 98th), with well separated labels at most 2 %. (Without
        this start a9a takes 1.4 to 1.8 times as long, one run each.)
    smoothing_of_margin : float
        Half-width of the smoothed loss whose dual point the start from a subsample is, in units of
        the margin.
    gap_bound_fraction : float
        Assume that rounding has changed the gap by this fraction of its bound (1/200 to 1/50,000
        were measured). If it was more, the closing pass reports it.
    max_mends : int
        Recompute scores from float64 entries at most this often; then compute all kernel entries in
        float64. (With 0, to 1e-6, one run each, fits take: ijcnn1 1.9, covtype 1.4, mnist 3-vs-5
        1.1, a9a .9 times as long.)
    ending : EndingTuning
        When to solve exactly for all rows that can still move.
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
