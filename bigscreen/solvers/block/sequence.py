"""The block solver for one problem after another on the same rows.

Shards keep the scores of ALL their rows, and kernel columns of all of them, from one problem to the
next. A new problem begins at a multiple of the last alpha, whose scores are the same multiple, and
at what differs from it: a move like any other. Rows that are decided are in no block; as their
scores are kept too, nothing has to be brought up to date when a problem is solved.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.cache import KernelCache
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.multiples import nearest
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import FREE, Dual
from bigscreen.solvers.block.coordinator import BlockRun
from bigscreen.solvers.block.gram import BlockGram
from bigscreen.solvers.block.messages import FixedDual, packed, scaled, unpacked
from bigscreen.solvers.block.records import Mending, NextBlock
from bigscreen.solvers.block.rounds import NOBODY
from bigscreen.solvers.block.shard import BlockProgram, BlockShard, Frozen, padded, solid


class PathProgram(BlockProgram):
    """What every shard runs."""

    def open(self, shard: int) -> BlockShard:
        """The state at alpha = 0, before any problem."""
        state = super().open(shard)
        ids = np.arange(state.start, state.start + len(state.alpha), dtype=np.int64)
        state.columns = self._columns(Operand(state.X, ids))
        return state

    def _retarget(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Take over a problem, at a multiple of the present w; fields left out are the last's."""
        rows = slice(state.start, state.start + len(state.alpha))
        coef = message["factor"] * state.dual.sign * state.alpha
        fields = unpacked(message["dual"], rows)
        state.dual = solid(Dual(**{**vars(state.dual), **fields, "total": message["total"]}))
        state.alpha = scaled(state.dual, coef)
        state.scores = message["factor"] * state.scores
        decided = message["decided"][rows]
        movable = state.dual.hi > state.dual.lo
        state.alive = np.flatnonzero(movable & (decided == FREE))
        fixed = np.flatnonzero(movable & (decided != FREE))
        state.frozen = [Frozen(fixed, decided[fixed], -1)]
        state.decided[:] = 0
        state.near = state.near[:0]
        return np.array([float(len(state.alive))])

    def _recall(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Take a w and its scores over; a problem follows."""
        rows = slice(state.start, state.start + len(state.alpha))
        state.alpha = state.dual.sign * message["coef"][rows]
        state.scores = message["scores"][rows].copy()
        state.near = state.near[:0]
        return np.zeros(1)

    def _read(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        scores, change = np.zeros(len(state.alpha)), message["change"]
        state.columns.accumulate(message["rows"], np.full(len(change), -1), change, scores)
        return padded(scores + message["offset"], self.design.data.shard_rows)

    def _open(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """The numbers of the rows alive (-1: no more)."""
        return padded(state.start + state.alive, self.design.data.shard_rows)

    def _product(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """A multiple of the scores, and other rows' columns added."""
        scores = message["factor"] * state.scores
        columns: KernelCache = state.columns
        columns.accumulate(message["rows"], message["slots"], message["change"], scores)
        return padded(scores, self.design.data.shard_rows)

    def _add(self, state: BlockShard, message: dict[str, Any]) -> None:
        change, slots = message["change"], message["slots"]
        state.columns.accumulate(message["rows"], slots, change, state.scores)

    def _survey(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """The sums are those of all rows, those that are in no block included."""
        answer = super()._survey(state, message)
        rest = np.ones(len(state.alpha), np.bool_)
        rest[state.alive] = False
        sums, _, _ = state.look(np.flatnonzero(rest), message)
        answer[: len(sums)] += sums
        answer[len(sums)] = len(state.alpha)
        return answer

    def _look_at(self, state: BlockShard, keep: NDArray[np.int64]) -> None:
        state.alive = state.alive[keep]


class PathSolve(BlockRun):
    """The coordinator; ``retarget`` begins a problem.

    Parameters
    ----------
    options : Block
    design : Design
        An exact one.
    constant : bool
        Whether a 1 is appended to every phi.
    fleet : Fleet
    """

    def __init__(self, options: Any, design: Design, constant: bool, fleet: Fleet) -> None:
        self.decided: NDArray[np.int8] | None = None
        super().__init__(options, design, FixedDual("constant" if constant else "none"), fleet)
        self.live = len(self.dual)

    def begin(self, fine: bool) -> None:
        super().begin(fine)
        self._first = self.size
        self._known = self.problem.dual(self.alpha, self.alpha)
        if self.decided is not None:
            self._hand_out(0.0)

    def _program(self, fine: bool) -> PathProgram:
        return PathProgram(self.design, self.problem, self.slots.capacity, self.named, fine)

    @property
    def coef(self) -> FloatArray:
        """``s alpha`` (n,): the coefficients of the w whose scores the shards hold."""
        return self.dual.sign * self.alpha

    def retarget(self, dual: Dual, alpha: FloatArray | None, decided: NDArray[np.int8]) -> None:
        """Begin a problem of all rows (see ``path.stage.Stage.solve``) at this feasible alpha.

        None: wherever a problem begins of which nothing is known.
        """
        cold = alpha is None
        alpha = np.zeros(len(dual)) if alpha is None else alpha
        factor, moved = nearest(self.coef, dual.sign * alpha)
        start = scaled(dual, factor * self.coef)
        self.dual, self.decided, self.alpha = dual, decided, start.copy()
        self.mu = np.zeros(self.groups)
        self.offset = float(self.coef.sum()) if self.constant else 0.0
        self._hand_out(factor)
        if cold:
            self.open_cold()
            return
        start[moved] = alpha[moved]
        self.open_at(start)

    def _hand_out(self, factor: float) -> None:
        """Hand the shards the problem, and forget the block."""
        stack, _ = self.fleet.round(
            {
                "kind": "retarget",
                "factor": factor,
                "decided": self.decided,
                "total": self.dual.total,
                "dual": packed(self.dual, self._known),
            }
        )
        self._known, self.open = self.dual, int(stack.sum())
        self.screening.clear()
        # The new problem's alpha is the last one's or a multiple, and so is what is off of scores.
        self.end_at = self.tuning.ending.start
        self.mending = Mending(drift=float(np.abs(self.alpha).sum()))
        self.still, self._whole = False, NOBODY
        kernel = self.design.kernel
        assert kernel is not None
        entries = self.gram.entries
        self.gram = BlockGram(kernel, self.constant, self.gram.threads, self.gram.dtype)
        self.gram.entries = entries
        self.next = NextBlock()
        self.size = self._first

    def look(self) -> None:
        self._refresh()
        super().look()

    def _refresh(self) -> None:
        """Know all rows that are open, as soon as a block holds them."""
        left = self.open - self.screening.fixed
        if left > self.tuning.max_growing_block or len(self._whole) == left:
            return
        stack, _ = self.fleet.round({"kind": "open"})
        self._whole = np.sort(stack[stack >= 0].astype(np.int64))
        self.next.stay = self.next.stay[np.isin(self.gram.ids[self.next.stay], self._whole)]

    def choose(self) -> None:
        """The next block: all rows that are open, where one holds them."""
        left = self.open - self.screening.fixed
        if left > self.tuning.max_growing_block:
            super().choose()
            return
        self._refresh()
        held = self.gram.ids[self.next.stay]
        if len(held) < left:
            self.next.new = np.setdiff1d(self._whole, held)
            self.survey_again(np.concatenate([held, self.next.new]))
        else:
            self.next.new = NOBODY
        self.next.v = self.survey.watched

    def products(self, coef: FloatArray) -> FloatArray:
        """Scores (n,) of ``sum_j coef_j phi_j``, the constant's part included."""
        factor, moved = nearest(self.coef, coef)
        change = coef[moved] - factor * self.coef[moved]
        total = np.zeros(len(coef))
        for a in range(0, max(1, len(moved)), self.tuning.rows_per_round):
            ids = moved[a : a + self.tuning.rows_per_round]
            stack, _ = self.fleet.round(
                {
                    "kind": "product",
                    "factor": 0.0 if a else factor,
                    "rows": Operand(self.data.rows(ids), ids),
                    "slots": self.slots.assign(ids),
                    "change": change[a : a + self.tuning.rows_per_round],
                }
            )
            total += stack.ravel()[: len(coef)]
        return total + (float(coef.sum()) if self.constant else 0.0)

    def scores(self, moves: int) -> FloatArray | None:
        """Scores of all rows without the constant, if they are still those after so many moves."""
        if moves != self.effort.moves:
            return None
        stack, _ = self.fleet.round({"kind": "scores"})
        return stack.ravel()[: len(self.dual)]

    def recall(self, coef: FloatArray, scores: FloatArray) -> None:
        """Go on from a w and its scores, without the constant."""
        self.fleet.round({"kind": "recall", "coef": coef, "scores": scores})
        self.alpha = self.dual.sign * coef
        support = np.flatnonzero(coef)
        for a in range(0, len(support), self.tuning.rows_per_round):
            ids = support[a : a + self.tuning.rows_per_round]
            self.keys[ids] = self.data.rows(ids) @ self.mark
