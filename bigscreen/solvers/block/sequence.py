"""The block solver for a sequence of problems on the same rows, such as a regularisation path.

Shards keep scores and kernel columns of ALL their rows from one problem to the next. A new problem
starts at a multiple of the last alpha, whose scores are the same multiple; the rows that differ
from it are an ordinary move. Rows whose alpha is decided are in no block. Their scores are kept
too, so nothing has to be updated when a problem is solved.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.multiples import find_multiple
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import FREE, Dual
from bigscreen.solvers.block.coordinator import BlockRun
from bigscreen.solvers.block.messages import FixedDual, alpha_of, pack_dual, unpack_dual
from bigscreen.solvers.block.records import Mending, NextBlock
from bigscreen.solvers.block.rounds import NO_ROWS
from bigscreen.solvers.block.shard import BlockProgram, BlockShard, Frozen, copy_dual, pad


class PathProgram(BlockProgram):
    """The program that each shard runs for a sequence of problems on the same rows.

    Unlike `BlockProgram` it keeps the scores and kernel columns of all rows, screened ones
    included. Decided rows (whose optimal alpha is known) are not solved for.
    """

    def open(self, shard: int) -> BlockShard:
        """Return the state at alpha = 0, before any problem."""
        state = super().open(shard)
        ids = np.arange(state.start, state.start + len(state.alpha), dtype=np.int64)
        state.columns = self._columns(Operand(state.X, ids))
        return state

    def _retarget(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Begin a new problem, started from ``message["factor"]`` times the present w.

        Of the message, ``dual`` has the fields of the dual that differ from the last problem's,
        ``total`` the totals of its coupling constraint, and ``decided`` is FREE for the rows to
        solve for, else the bound at which a row's alpha is known to be. Returns [number of rows to
        solve for].
        """
        rows = slice(state.start, state.start + len(state.alpha))
        coef = message["factor"] * state.dual.sign * state.alpha
        fields = unpack_dual(message["dual"], rows)
        state.dual = copy_dual(Dual(**{**vars(state.dual), **fields, "total": message["total"]}))
        state.alpha = alpha_of(state.dual, coef)
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
        """Replace w and its scores by the coefficients and scores in the message; returns [0].

        Keys of ``message``: ``coef`` (n,), ``s alpha`` of all rows; ``scores`` (n,). A message with
        a new problem follows.
        """
        rows = slice(state.start, state.start + len(state.alpha))
        state.alpha = state.dual.sign * message["coef"][rows]
        state.scores = message["scores"][rows].copy()
        state.near = state.near[:0]
        return np.zeros(1)

    def _read(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Return the scores of this shard's rows under a subsample's solution.

        The message has the subsample's rows, their coefficients (``change``), and the offset.
        Shards differ in size: the result is padded to the largest, and the receiver cuts it off.
        """
        scores, change = np.zeros(len(state.alpha)), message["change"]
        state.columns.accumulate(message["rows"], np.full(len(change), -1), change, scores)
        return pad(scores + message["offset"], self.design.data.shard_rows)

    def _open(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Return the numbers of this shard's rows that are not decided, padded with -1."""
        return pad(state.start + state.alive, self.design.data.shard_rows)

    def _product(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Return ``factor scores + sum_j change_j k(x_j, .)`` for this shard's rows.

        Keys of ``message``: ``factor``; ``rows``, the x_j; ``change``; and ``slots``, where the
        cache keeps their columns. The scores are padded with -1 to the rows of a full shard.
        """
        scores = message["factor"] * state.scores
        state.columns.accumulate(message["rows"], message["slots"], message["change"], scores)
        return pad(scores, self.design.data.shard_rows)

    def _add(self, state: BlockShard, message: dict[str, Any]) -> None:
        """Add ``sum_j change_j k(x_j, .)`` to the scores of all rows, decided rows included.

        Keys of ``message``: ``rows``, the x_j; ``change``; and ``slots`` of their cached columns.
        """
        change, slots = message["change"], message["slots"]
        state.columns.accumulate(message["rows"], slots, change, state.scores)

    def _survey(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Answer a move with a survey, whose violators are rows that are not decided.

        The sums ``||w||^2``, gap and rounding cover all rows, decided ones included. Keys of
        ``message``, and the answer: see `BlockProgram._survey`.
        """
        answer = super()._survey(state, message)
        rest = np.ones(len(state.alpha), np.bool_)
        rest[state.alive] = False
        sums, _, _ = state.survey_rows(np.flatnonzero(rest), message)
        answer[: len(sums)] += sums
        answer[len(sums)] = len(state.alpha)
        return answer

    def _look_at(self, state: BlockShard, keep: NDArray[np.int64]) -> None:
        """From now on solve only for the rows ``keep``, ascending places in ``state.alive``.

        The kernel columns keep their entries for all rows.
        """
        state.alive = state.alive[keep]


class PathSolve(BlockRun):
    """The coordinator of a sequence of problems; ``retarget`` begins the next one.

    Parameters
    ----------
    options : Block
    design : Design
        A design of the exact kernel machine.
    constant : bool
        Whether a 1 is appended to every phi.
    fleet : Fleet

    Attributes
    ----------
    decided : int8 (n,) or None
        FREE for the rows to solve for, else the bound at which alpha is known to be; None before
        the first problem.
    open : int
        Rows to solve for, before screening.
    """

    def __init__(self, options: Any, design: Design, constant: bool, fleet: Fleet) -> None:
        """Start the shards at alpha = 0, without a problem; `retarget` gives the first one."""
        self.decided: NDArray[np.int8] | None = None
        super().__init__(options, design, FixedDual("constant" if constant else "none"), fleet)
        self.live = len(self.dual)

    def begin(self, fine: bool) -> None:
        """Start the shards at alpha = 0; send them the problem, if there is one already.

        ``fine``: compute kernel entries in float64.
        """
        super().begin(fine)
        self._first = self.size
        self._known = self.problem.dual(self.alpha, self.alpha)
        if self.decided is not None:
            self._send_problem(0.0)

    def _program(self, fine: bool) -> PathProgram:
        """Make the program that the shards run; ``fine``: compute kernel entries in float64."""
        return PathProgram(self.design, self.problem, self.slots.capacity, self.named, fine)

    @property
    def coef(self) -> FloatArray:
        """``s alpha`` (n,): the coefficients of w, whose scores the shards store."""
        return self.dual.sign * self.alpha

    def retarget(self, dual: Dual, alpha: FloatArray | None, decided: NDArray[np.int8]) -> None:
        """Begin a problem of all rows (see ``path.stage.Stage.solve``) at this feasible alpha.

        ``alpha`` None: start without a known alpha (see ``open_cold``). ``decided`` int8 (n,): FREE
        for the rows to solve for.
        """
        cold = alpha is None
        alpha = np.zeros(len(dual)) if alpha is None else alpha
        factor, moved = find_multiple(self.coef, dual.sign * alpha)
        start = alpha_of(dual, factor * self.coef)
        self.dual, self.decided, self.alpha = dual, decided, start.copy()
        self.mu = np.zeros(self.groups)
        self.offset = float(self.coef.sum()) if self.constant else 0.0
        self._send_problem(factor)
        if cold:
            self.open_cold()
            return
        start[moved] = alpha[moved]
        self.open_at(start)

    def _send_problem(self, factor: float) -> None:
        """Send the present problem to the shards, which start at ``factor`` times the last w.

        The block is emptied, and all that was known of the last problem is dropped.
        """
        stack, _ = self.fleet.round(
            {
                "kind": "retarget",
                "factor": factor,
                "decided": self.decided,
                "total": self.dual.total,
                "dual": pack_dual(self.dual, self._known),
            }
        )
        self._known, self.open = self.dual, int(stack.sum())
        self.screening.clear()
        # The new alpha is a multiple of the last one, and so are the errors of the scores.
        self.end_at = self.tuning.ending.start
        self.mending = Mending(drift=float(np.abs(self.alpha).sum()))
        self.still, self._whole = False, NO_ROWS
        entries = self.gram.entries
        self.gram = self.gram.empty(self.gram.dtype)
        self.gram.entries = entries
        self.next = NextBlock()
        self.size = self._first

    def survey_and_choose(self) -> None:
        """Fetch the list of undecided rows if they are few, then survey and choose a block."""
        self._fetch_open_rows()
        super().survey_and_choose()

    def _fetch_open_rows(self) -> None:
        """Fetch the numbers of all rows to solve for, as soon as they fit one block."""
        left = self.open - self.screening.fixed
        if left > self.tuning.max_growing_block or len(self._whole) == left:
            return
        stack, _ = self.fleet.round({"kind": "open"})
        self._whole = np.sort(stack[stack >= 0].astype(np.int64))
        self.next.stay = self.next.stay[np.isin(self.gram.ids[self.next.stay], self._whole)]

    def choose(self) -> None:
        """Choose the next block: all rows to solve for if they fit, else the worst violators."""
        left = self.open - self.screening.fixed
        if left > self.tuning.max_growing_block:
            super().choose()
            return
        self._fetch_open_rows()
        held = self.gram.ids[self.next.stay]
        if len(held) < left:
            self.next.new = np.setdiff1d(self._whole, held)
            self.survey_again(np.concatenate([held, self.next.new]))
        else:
            self.next.new = NO_ROWS
        self.next.v = self.survey.watched

    def products(self, coef: FloatArray) -> FloatArray:
        """Compute the scores (n,) of ``sum_j coef_j phi_j``, including the constant feature."""
        factor, moved = find_multiple(self.coef, coef)
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
        """Return the scores of all rows without the constant, or None if they are out of date.

        ``moves``: the value of ``effort.moves`` (moves sent so far) for which they are requested.
        """
        if moves != self.effort.moves:
            return None
        stack, _ = self.fleet.round({"kind": "scores"})
        return stack.ravel()[: len(self.dual)]

    def recall(self, coef: FloatArray, scores: FloatArray) -> None:
        """Continue from w with these coefficients (n,) and its scores (n,) without the constant."""
        self.fleet.round({"kind": "recall", "coef": coef, "scores": scores})
        self.alpha = self.dual.sign * coef
        support = np.flatnonzero(coef)
        for a in range(0, len(support), self.tuning.rows_per_round):
            ids = support[a : a + self.tuning.rows_per_round]
            self.keys[ids] = self.data.rows(ids) @ self.mark
