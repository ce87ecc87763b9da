"""Rounds of messages between the block solver's coordinator and its shards."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.rows import Rows
from bigscreen.features.design import Design
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.cache import Slots
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import AT_HI, AT_ZERO, FREE, Mu
from bigscreen.problems.recipes import Problem
from bigscreen.problems.violation import largest_violation as ends_apart
from bigscreen.screening.regions import Ball
from bigscreen.solvers.block.gram import BlockGram
from bigscreen.solvers.block.messages import gather_numbers, rows_per_shard
from bigscreen.solvers.block.records import Effort, Mending, NextBlock, Screening, Survey
from bigscreen.solvers.block.shard import NOTES, BlockProgram, find_movable
from bigscreen.solvers.block.tuning import BlockTuning
from bigscreen.solvers.block.working_set import Standing, merge_violators

NO_ROWS: NDArray[np.int64] = np.empty(0, np.int64)
"""An empty array of row numbers."""


class BlockRounds:
    """The coordinator's state (alpha of all rows, the block, the last survey) and its messages.

    Parameters
    ----------
    options : Block
    design : Design
        A design of the exact kernel machine.
    problem : Problem
    fleet : Fleet

    Attributes
    ----------
    dual : Dual
        The dual of all n rows.
    alpha : float64 (n,)
    mu : float64 (groups,)
        Multipliers of the coupling; one 0 without a coupling.
    gram : BlockGram
        The current block and its kernel matrix.
    size : int
        Rows of the next block, at most.
    offset, value : float
        The sum of ``s alpha`` if a constant is appended to phi, else 0; the dual value.
    still : bool
        Whether the last solve changed nothing.
    end_at : float
        The relative gap at which to try an exact solve next (see `EndingTuning`).
    keys : float64 (n,)
        Equal for equal rows; 0 until alpha of a row first changes.
    mark : float64 (d,)
        A random vector: a row's key is its product with the row's features.
    live : int
        Rows that can move, or are fixed away from 0.
    slots : Slots
        Where the shards' caches keep the kernel column of each row.
    effort, screening, mending, survey, next
        Costs so far, what screening has fixed, errors of the scores and their repairs, the last
        survey of violating rows, and the next block: see `records`.
    """

    def __init__(self, options: Any, design: Design, problem: Problem, fleet: Fleet) -> None:
        """Make the dual of all rows, and start the shards at alpha = 0.

        ``options``: the `Block` solver with its options.
        """
        data = design.data
        self.options, self.design, self.problem, self.fleet = options, design, problem, fleet
        self.tuning: BlockTuning = options.tuning
        self.dual = problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
        self.live = len(find_movable(self.dual))
        self.effort, self.screening = Effort(), Screening()
        # Equal rows have equal keys; other rows almost surely have different ones.
        self.mark = np.random.default_rng(0).normal(size=data.n_features)
        self.keys = np.zeros(len(self.dual))
        self.begin(design.precision is np.float64)

    def begin(self, fine: bool) -> None:
        """Start the shards at alpha = 0, and forget the last block and survey.

        ``fine``: compute kernel entries in float64, not float32.
        """
        options, data = self.options, self.data
        smallest = max(data.n_rows // 8, self.tuning.min_block)
        self.size = min(options.size, smallest, data.n_rows)
        self.slots = Slots(options.cache // ((8 if fine else 4) * data.n_rows), data.n_rows)
        self.fleet.start(self._program(fine), data.n_shards)
        threads = min(getattr(self.fleet, "workers", 1), os.cpu_count() or 1)
        dtype = np.float64 if fine else np.float32
        self.gram = BlockGram(self.design, self.constant, threads, dtype)
        self.alpha = np.zeros(len(self.dual))
        self.mu = np.zeros(self.groups)
        self.offset = self.value = 0.0
        self.still = False
        self.survey, self.next, self.mending = Survey(), NextBlock(), Mending()
        self.end_at = self.tuning.ending.start
        self.screening.clear()

    def _program(self, fine: bool) -> BlockProgram:
        """Make the program that the shards run; ``fine``: compute kernel entries in float64."""
        return BlockProgram(self.design, self.problem, self.slots.capacity, self.named, fine)

    @property
    def data(self) -> Rows:
        """The rows of the design, of which shards are ranges."""
        return self.design.data

    @property
    def constant(self) -> bool:
        """Whether a 1 is appended to every phi."""
        return self.problem.intercept == "constant"

    @property
    def groups(self) -> int:
        """Number of groups of rows, each with a multiplier; 1 without a coupling."""
        return int(np.size(self.dual.total))

    @property
    def named(self) -> int:
        """Largest number of violating rows that a shard reports in each direction (up, down)."""
        data = self.data
        return min(data.shard_rows, max(64, 4 * self.tuning.max_growing_block // data.n_shards))

    @property
    def fine(self) -> bool:
        """Whether kernel entries are computed in float64."""
        return self.gram.dtype is np.float64

    @property
    def at(self) -> Standing:
        """The dual, alpha of all rows, and the multipliers, for functions that choose rows."""
        return Standing(self.dual, self.alpha, self.mu)

    def spread(self, close: bool = False) -> float:
        """Return the factor by which errors of kernel entries add up in a score.

        The root of ``sum coef^2``, with coefficients of equal rows added first, since entries of
        equal rows have equal errors.

        ``close``: return the tight value even if no screening rule needs it.
        """
        support = np.flatnonzero(self.alpha)
        coef = np.abs(self.alpha[support])
        if not (close or self.screening.screened):
            return float(coef.sum())  # a cheap upper bound will do
        _, group = np.unique(self.keys[support], return_inverse=True)
        return float(np.sqrt(np.sum(np.bincount(group, coef) ** 2)))

    def move(
        self,
        ids: NDArray[np.int64],
        alpha: FloatArray,
        X: Any,
        watch: NDArray[np.int64],
        exact: bool = False,
    ) -> None:
        """Send the shards the new alpha of some rows, and read their survey of violating rows.

        Parameters
        ----------
        ids, alpha, X
            The rows, their new alpha, and their features.
        watch : int64
            Rows whose dual gradients v the survey is to contain.
        exact : bool
            Update the scores that come from float64 entries with float64 columns.
        """
        change = self.dual.sign[ids] * (alpha - self.alpha[ids])
        self.mending.drift += float(np.abs(change).sum())
        self.alpha[ids] = alpha
        self.keys[ids] = X @ self.mark
        if self.constant:
            self.offset += float(change.sum())
        width = int(rows_per_shard(self.data, watch).max()) if len(watch) else 0
        stack, _ = self.fleet.round(
            {
                "kind": "move",
                "ids": ids,
                "alpha": alpha,
                "change": change,
                "rows": Operand(X, ids),
                "slots": self.slots.assign(ids),
                "mu": self.mu,
                "offset": self.offset,
                "spread": self.spread(),
                "watch": watch,
                "width": width,
                "exact": exact,
            }
        )
        self.effort.moves += 1
        if len(ids):
            whole = not self.screening.past
            self.effort.full_passes += whole
            self.effort.partial_passes += not whole
        self.survey = self._read_survey(stack, watch)
        if self.survey.alive == self.live:
            # No row is fixed, so the sums cover all rows.
            self.value = self.dual.value(self.alpha, self.survey.w_sq)

    def _read_survey(self, stack: FloatArray, watch: NDArray[np.int64]) -> Survey:
        """Decode and add up the shards' answers to a move: one row of ``stack`` per shard.

        ``watch``: the rows whose v the answers contain.
        """
        notes = dict(zip(NOTES, stack[:, : len(NOTES)].T, strict=True))
        widths = [self.groups, self.groups, *4 * [self.named]]
        parts = np.split(stack[:, len(NOTES) :], np.cumsum(widths), axis=1)
        full = np.any(parts[2][:, -1] >= 0) or np.any(parts[4][:, -1] >= 0)
        return Survey(
            w_sq=float(notes["w_sq"].sum()),
            gap=float(notes["gap"].sum()),
            rounding=float(notes["rounding"].sum()),
            alive=int(notes["alive"].sum()),
            entries=int(notes["entries"].sum()),
            highest=parts[0].max(axis=0),
            lowest=parts[1].min(axis=0),
            ups=merge_violators(parts[2], parts[3], self.at),
            downs=merge_violators(parts[4], parts[5], self.at),
            watched=gather_numbers(parts[6], self.data, watch),
            complete=self.named == self.data.shard_rows or not full,
        )

    def survey_again(self, watch: NDArray[np.int64]) -> None:
        """Request a new survey of violating rows with alpha unchanged; ``watch``: see `move`."""
        self.move(NO_ROWS, np.empty(0), self.data.X(0, 0), watch)

    # -- scores from float64 entries -------------------------------------------------------------
    @property
    def can_mend(self) -> bool:
        """Whether scores have float32 errors that a repair from float64 entries can remove.

        Not for an indefinite kernel, which has no gap to protect.
        """
        some = self.mending.drift > 0 and self.mending.times < self.tuning.max_mends
        return some and not self.fine and self.design.definite

    def rounding_of_gap(self) -> float:
        """Estimate how much float32 columns have changed the gap since scores were last recomputed.

        From the change per unit of alpha that the last recomputation measured; before the first
        one, a fraction of the shards' bound.
        """
        noise = self.mending.noise * self.mending.drift
        if np.isnan(noise):
            stack, _ = self.fleet.round({**self._standing, "kind": "doubt"})
            noise = self.tuning.gap_bound_fraction * float(stack.sum())
        return float(noise)

    def recompute_near(self, ids: NDArray[np.int64], margin: float = 0.0) -> NDArray[np.int64]:
        """Recompute scores of rows near their hinge point, and of ``ids``, in float64.

        Errors of other rows' scores do not change the gap. Only the scores of the present alpha
        need float64 entries: the steps that follow are small and use float32 columns, whose errors
        are smaller in proportion (iterative refinement, with a box). Rows that have float64 scores
        keep them.

        Parameters
        ----------
        ids : int64
        margin : float
            Include rows within this distance of their hinge point, even if rounding could not move
            them across it.

        Returns
        -------
        int64, ascending : all rows that now have scores from float64 entries
        """
        support, near = np.flatnonzero(self.alpha), ids
        for a in range(0, max(1, len(support)), self.tuning.rows_per_round):
            some = support[a : a + self.tuning.rows_per_round]
            stack, _ = self.fleet.round(
                {
                    **self._standing,
                    "kind": "mend",
                    "first": a == 0,
                    "margin": margin,
                    "rows": Operand(self.data.rows(some), some),
                    "change": self.dual.sign[some] * self.alpha[some],
                    "watch": ids,
                }
            )
            if a == 0:
                near = np.sort(stack[stack >= 0].astype(np.int64))
        self.mending.drift = 0.0
        return near

    @property
    def _standing(self) -> dict[str, Any]:
        """The fields of messages about rounding: multipliers, offset and spread."""
        return {"mu": self.multiplier, "offset": self.offset, "spread": self.spread(close=True)}

    # -- screening -----------------------------------------------------------------------------
    def screen(self, region: Ball) -> bool:
        """Drop rows that the region proves to be at their bound; return whether there are any.

        ``region``: a ball around the present w that contains the optimal one.
        """
        self.screening.screened = True
        message = {
            "kind": "screen",
            "region": region,
            "offset": self.offset,
            "spread": self.spread(),
            "since": len(self.screening.past),
        }
        message["mu"] = self._mu_interval(message)
        stack, _ = self.fleet.round(message)
        high, low = (int(count) for count in stack.sum(axis=0))
        self.screening.counts = (high, low)
        self.screening.fixed += high + low
        if high or low:
            self.screening.past.append(self.alpha.copy())
        return bool(high or low)

    def _mu_interval(self, message: dict[str, Any]) -> tuple[Mu, Mu]:
        """Return the ends of an interval that contains the optimal multiplier (of each group).

        ``message``: the fields of the screening message, with the region.
        """
        if self.dual.coupling is None:
            return 0.0, 0.0
        stack, _ = self.fleet.round({**message, "kind": "bounds"})
        lower, upper, side = (part.ravel()[: len(self.dual)] for part in np.split(stack, 3, axis=1))
        dual = self.dual
        if np.any(side == AT_ZERO):  # they do not contribute to the total
            keep = np.flatnonzero(side != AT_ZERO)
            dual, lower, upper, side = dual[keep], lower[keep], upper[keep], side[keep]
        assert dual.coupling is not None
        # A fixed row's breakpoint (p - s u) / t lies on a known side of mu*, above it if t alpha is
        # at its upper end. It may be moved to infinity.
        fixed = side != FREE
        above = (side == AT_HI) == (dual.coupling > 0)
        far = np.where(above, -np.inf, np.inf) * np.sign(dual.sign * dual.coupling)
        ends = np.where(fixed, far, lower), np.where(fixed, far, upper)
        return dual.multiplier_interval(*ends)

    def revive(self) -> None:
        """Free all fixed rows, update their scores, and count the rows that were fixed wrongly."""
        if self.screening.past:
            past = np.stack(self.screening.past, axis=1)
            moved = np.flatnonzero(np.any(past != self.alpha[:, None], axis=1))
            change = self.dual.sign[moved, None] * (self.alpha[moved, None] - past[moved])
            stack, _ = self.fleet.round(
                {
                    "kind": "revive",
                    "since": list(range(past.shape[1])),
                    "rows": Operand(self.data.rows(moved), moved),
                    "change": change,
                    "mu": self.mu,
                    "offset": self.offset,
                }
            )
            self.screening.false_removals += int(stack.sum())
        self.screening.clear()

    @property
    def violation(self) -> float:
        """The violation of the KKT conditions in the last survey.

        With a coupling LIBSVM's m - M, else the largest projected gradient.
        """
        return ends_apart(self.survey.highest, self.survey.lowest, self.dual.coupling is not None)

    @property
    def multiplier(self) -> Mu:
        """The coupling's multiplier as the dual takes it: an array with groups, else a float."""
        return self.mu if self.dual.group is not None else float(self.mu[0])

    @property
    def noise(self) -> float:
        """The largest violation that may be rounding of the scores' float64 sums."""
        largest = float(np.max(np.diagonal(self.gram.K), initial=0.0))
        return 2.0**-52 * largest * float(np.sum(np.abs(self.alpha)))
