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
        Return the dual variables found so far after this many steps; each step ends at further
        bounds, or at the optimum for the variables that are off their bounds.
    max_hold_rounds : int
        Recompute a step at most this often, each time with the variables fixed at a bound that the
        step would take beyond it; then give the step up.
    ridges : floats
        Multiples of the largest ``k(x, x)`` to add to the diagonal before the Cholesky
        factorisation, tried in this order; the next is used if a step does not raise the dual.
    coupling_tol : float
        Reject a step whose violation of an equality constraint (coupling) is more than this
        fraction of the sum of its absolute entries.
    hold_all_rows : int
        If a Cholesky factor has more rows than this, give it up for a new one once a step needs
        more than half of its rows fixed at a bound.
    max_held_fraction : float
        Before a step, compute a new Cholesky factor, without the variables fixed at a bound, if
        these are more than this fraction of the factor's rows.
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
        Try the exact solve only once the relative gap is at most this: then the rows that will
        still move are mostly the rows that move now.
    close_target : float
        Try the exact solve only if the requested relative gap is at most this.
    retry_fraction : float
        If an exact solve did not halve the gap, try again once the gap is at most this fraction of
        the gap before that solve.
    join_distance : float
        The exact solve also takes in rows whose distance to their hinge point is at most this
        fraction of the largest violation: most rows that would violate after it are among them.
    max_open_per_free : float
        Try the exact solve only if the rows that are free (alpha strictly between its bounds) or
        violate are at most this multiple of the free rows. (Of a9a's at a gap of 1e-3 less than
        half were free, and the try cost 1/12 of the fit.)
    few_rows : int
        An exact solve of at most this many rows is always allowed, whatever ``cost_share`` and
        ``max_open_per_free`` say.
    max_rows : int
        Never solve exactly for more rows than this, whatever ``cost_share`` allows.
    cost_share : int
        Of n rows in all, solve exactly for at most ``sqrt(cost_share n)``, but ``few_rows`` are
        always allowed and ``max_rows`` never exceeded. The solve costs the cube of its rows; the
        blocks that it saves cost approximately n times as many kernel entries as rows.
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
        A block (the rows that are solved for together) doubles while more than half of its rows are
        free (alpha strictly between its bounds), up to this many rows.
    max_whole_block : int
        If all free rows and all violators together are at most this many, they form one block: then
        no rows have to take turns.
    min_block : int
        A block (the rows that are solved for together) has at least this many rows, or all rows of
        smaller data.
    rows_per_round : int
        One round (exchange with the workers) sends the features of at most this many rows; more
        rows take several rounds.
    subsample_steps_per_row : int
        The solve of a subsample, from which the fit starts, takes at most this many pair steps for
        each of its rows.
    block_steps_per_row : int
        The solve of a block takes at most this many pair steps for each of its rows.
    min_block_steps_per_row : float
        If the solve of a block took fewer pair steps per row than this, it does not repay the
        block's kernel entries, and goes on until the violation is ``usual_distance`` times the
        upper quartile of the rows' distances from mu: a few rows far from mu may have set too loose
        a tolerance.
    usual_distance : float
        Multiple of the upper quartile of the rows' distances from mu: if a block took fewer pair
        steps than ``min_block_steps_per_row``, its solve goes on until the violation is at most
        this.
    min_share_at_bound : float
        Start from a subsample's solution only if at least this fraction of its support vectors is
        at the upper bound. Smaller subsamples have wider boxes, of which fewer are filled: with
        noisy labels 47 % (of a 24th of the rows) and 27 % (of a 98th), with well separated labels
        at most 2 %. (Without this start a9a takes 1.4 to 1.8 times as long, one run each.)
    smoothing_of_margin : float
        The start from a subsample's w takes alpha from a smoothed loss, whose half-width is this
        multiple of the margin.
    gap_bound_fraction : float
        Assume that rounding has changed the gap by this fraction of the proved bound of the
        rounding (1/200 to 1/50,000 were measured). If it was more, the final pass over all rows
        shows it.
    max_mends : int
        Recompute the scores from float64 kernel entries at most this often; then compute all kernel
        entries in float64. (With 0, to 1e-6, one run each, fits take: ijcnn1 1.9, covtype 1.4,
        mnist 3-vs-5 1.1, a9a .9 times as long.)
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
