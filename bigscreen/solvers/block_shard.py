"""One shard's part of the block solver: scores and alpha live here, with the rows.

A round brings the rows whose alpha has changed and by how much; every shard adds their kernel
columns to its scores, and names the rows of its own that violate optimality most. Kernel columns
never leave the shard. With ``v_i = G_i / t_i`` (t is 1 without a coupling) a row can move up while
``t_i alpha_i`` has room above, down while it has room below; at the optimum every row that can move
up has ``v <= mu`` and every row that can move down ``v >= mu`` (mu is that of the row's group, 0
without a coupling). A tube takes e from v on the way away from 0 and gives it on the way back.

A state is a pure fold over the messages, so a lost shard is rebuilt by replaying them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.design import Design
from bigscreen.dual import AT_HI, AT_LO, AT_ZERO, FREE, FloatArray
from bigscreen.exact import Totals
from bigscreen.kernels import Side
from bigscreen.problems import Problem
from bigscreen.screening.regions import Ball
from bigscreen.solvers.block_columns import Columns
from bigscreen.solvers.block_state import Frozen, State, furthest, look, mine, moving, padded, solid

NOTES = ("w_sq", "gap", "rounding", "alive", "entries")
"""What a shard's answer begins with: its rows' parts of ||w||^2 and of the Frank-Wolfe gap at the
message's mu, a bound on the gap's rounding, rows alive, kernel entries so far. Then, one a group,
the largest v of rows that can move up, and the smallest of those that can move down. Fixed rows are
in none of the sums: they have no gap."""


@dataclass(frozen=True)
class BlockProgram:
    """What every shard of the block solver runs (see ``fleet.Program``).

    Parameters
    ----------
    design : Design
        An exact one.
    problem : Problem
    capacity : int
        Kernel columns that every shard can keep.
    named : int
        Violators that a shard names, in either direction.
    fine : bool
        Compute kernel entries in float64.
    """

    design: Design
    problem: Problem
    capacity: int
    named: int
    fine: bool = False

    def open(self, shard: int) -> State:
        """The state at alpha = 0, within the box or not."""
        data = self.design.data
        kernel = self.design.kernel
        assert kernel is not None
        start, stop = data.shard(shard)
        dual = solid(self.problem.dual(data.y(start, stop), data.weights(start, stop)))
        X = data.X(start, stop)
        ids = np.arange(start, stop, dtype=np.int64)
        alive = moving(dual)
        side = Side(X, ids)
        sqnorms = data.sqnorms(start, stop)
        most = data.max_sqnorm, data.n_features
        relative = kernel.relative_error(sqnorms, *most)
        errors = kernel.entry_error(sqnorms, *most)
        # An indefinite kernel's diagonal bounds nothing and may be below 0.
        squares = kernel.diag(side) if kernel.psd else [kernel.bound(s, s) for s in sqnorms]
        constant = self.problem.intercept == "constant"
        return State(
            start=start,
            dual=dual,
            alpha=np.zeros(stop - start),
            scores=np.zeros(stop - start),
            alive=alive,
            decided=np.zeros(stop - start, np.int32),
            relative=np.zeros(len(ids)) if relative is None else relative + 0.0 * sqnorms,
            errors=errors + 0.0 * sqnorms,
            norms=np.sqrt(np.maximum(squares, 0.0) + constant),
            X=X,
            columns=self._columns(side if len(alive) == len(ids) else side.part(alive)),
        )

    def _columns(self, side: Side, capacity: int | None = None) -> Columns:
        design = self.design
        assert design.kernel is not None
        room = self.capacity if capacity is None else capacity
        return Columns(design.kernel, side, room, np.float64 if self.fine else np.float32)

    def step(self, state: State, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Run one message: see the methods of these names."""
        return getattr(self, "_" + message["kind"])(state, message)

    # -- moves and violators -------------------------------------------------------------------
    def _move(self, state: State, message: dict[str, Any]) -> FloatArray:
        """Add the moved rows' columns to the scores, set their alpha, and survey the rows alive.

        Returns NOTES, then [row number, v] of the rows furthest above mu that can move up, and of
        those furthest below that can move down (row number -1: no more), then v of the rows of
        ``watch`` that live here.
        """
        if len(message["ids"]):
            self._add(state, message)
            here = message["ids"] - state.start
            own = (here >= 0) & (here < len(state.alpha))
            state.alpha[here[own]] = message["alpha"][own]
        return self._survey(state, message)

    def _add(self, state: State, message: dict[str, Any]) -> None:
        alive = state.alive
        scores = state.scores[alive]
        state.columns.accumulate(message["rows"], message["slots"], message["change"], scores)
        state.scores[alive] = scores

    def _survey(self, state: State, message: dict[str, Any]) -> FloatArray:
        alive = state.alive
        at = message["mu"], message["offset"], message["spread"]
        sums, ends, (v, over, under) = look(state, alive, *at)
        named = [
            padded(x, self.named)
            for k in (furthest(over, self.named), furthest(under, self.named))
            for x in (state.start + alive[k], v[k])
        ]
        places = np.searchsorted(alive, mine(state, message["watch"]))
        watched = padded(v[places], message["width"])
        notes = [*sums, len(alive), state.columns.entries]
        return np.concatenate([notes, ends.ravel(), *named, watched])

    def _read(self, state: State, message: dict[str, Any]) -> FloatArray:
        """Scores of all rows for a subsample's machine (of rows not alive: the offset)."""
        scores = np.zeros(len(state.alive))
        change = message["change"]
        state.columns.accumulate(message["rows"], np.full(len(change), -1), change, scores)
        every = np.zeros(len(state.alpha))
        every[state.alive] = scores
        return padded(every + message["offset"], self.design.data.shard_rows)

    def _rows(self, state: State, message: dict[str, Any]) -> FloatArray:
        """The features of those of these rows that live here, in the words of float64.

        Returns [words that are needed] if ``message["words"]`` is 0, else that many words: the
        rows' features one after the other (dense), or counts, columns and values (sparse).
        """
        X = state.X[mine(state, message["ids"])]
        if isinstance(X, np.ndarray):
            parts = [X.ravel()]
        else:
            parts = [np.diff(X.indptr), X.indices, X.data]
        words = np.concatenate(parts, dtype=np.float64)
        return (
            padded(words, message["words"]) if message["words"] else np.array([len(words)], float)
        )

    # -- screening -----------------------------------------------------------------------------
    def _intervals(self, state: State, message: dict[str, Any]) -> tuple[FloatArray, FloatArray]:
        """Intervals of the optimal scores of the rows alive, offset included."""
        alive = state.alive
        ball: Ball = message["region"]
        scores = state.scores[alive]
        slack = state.relative[alive] * np.abs(scores) + state.errors[alive] * message["spread"]
        return ball.intervals(scores + message["offset"], state.norms[alive], slack)

    def _bounds(self, state: State, message: dict[str, Any]) -> FloatArray:
        """Intervals (lower, upper) of the scores of all rows; see ``block_screen``."""
        n = self.design.data.shard_rows
        lower, upper = np.zeros(n), np.zeros(n)
        lower[state.alive], upper[state.alive] = self._intervals(state, message)
        fixed = np.full(n, FREE, np.float64)
        for event in state.frozen:
            fixed[event.local] = event.side
        return np.concatenate([lower, upper, fixed])

    def _screen(self, state: State, message: dict[str, Any]) -> FloatArray:
        """Drop the rows that a region decides about and whose alpha is where it says.

        Returns [rows newly fixed at hi, at lo or, between the two, at 0].
        """
        alive = state.alive
        dual = state.dual[alive]
        decided = dual.decide(*self._intervals(state, message), message["mu"])
        alpha = state.alpha[alive]
        decided[(decided == AT_HI) & (alpha != dual.hi)] = FREE
        decided[(decided == AT_LO) & (alpha != dual.lo)] = FREE
        decided[(decided == AT_ZERO) & (alpha != 0)] = FREE
        state.decided[alive] = np.where(decided == FREE, 0, state.decided[alive] + 1)
        drop = state.decided[alive] >= message["region"].patience
        if np.any(drop):
            state.frozen.append(Frozen(alive[drop], decided[drop], message["since"]))
            self._look_at(state, np.flatnonzero(~drop))
        high = np.count_nonzero(drop & (decided == AT_HI))
        return np.array([high, np.count_nonzero(drop) - high], np.float64)

    def _look_at(self, state: State, keep: NDArray[np.int64]) -> None:
        """Go on with these of the rows alive."""
        state.alive = state.alive[keep]
        ids = state.start + state.alive
        state.columns.compact(Side(state.X[state.alive], ids), keep)

    def _revive(self, state: State, message: dict[str, Any]) -> FloatArray:
        """Bring fixed rows up to date, and all of them back.

        ``change`` has one column for each screening round: how alpha has moved since then.

        Returns [rows found where their gradient does not hold them].
        """
        wrong = 0
        for event in state.frozen:
            change = message["change"][:, message["since"].index(event.since)]
            side = Side(state.X[event.local], state.start + event.local)
            columns = self._columns(side, 0)
            scores = state.scores[event.local]
            columns.accumulate(message["rows"], np.full(len(change), -1), change, scores)
            state.scores[event.local] = scores
            state.columns.entries += columns.entries
            dual = state.dual[event.local]
            G = dual.gradient(scores + message["offset"], message["mu"])
            e = 0.0 if dual.tube is None else dual.tube
            held = [event.side == AT_HI, event.side == AT_LO]
            wrong += int(np.count_nonzero(np.select(held, [G < e, G > -e], np.abs(G) > e)))
        if state.frozen:
            state.frozen = []
            state.decided[:] = 0
            state.alive = moving(state.dual)
            entries = state.columns.entries
            side = Side(state.X[state.alive], state.start + state.alive)
            state.columns = self._columns(side)
            state.columns.entries = entries
        return np.array([float(wrong)])

    def _scores(self, state: State, message: dict[str, Any]) -> FloatArray:
        """Scores of all rows without the offset (the last shard's padded with zeros)."""
        return padded(state.scores, self.design.data.shard_rows)

    # -- checkpoints ---------------------------------------------------------------------------
    def save(self, state: State) -> dict[str, NDArray[Any]]:
        """What the state holds beyond the data; kernel columns are computed again."""
        rounds = [np.full(len(e.local), e.since) for e in state.frozen]
        return {
            "alpha": state.alpha,
            "scores": state.scores,
            "alive": state.alive,
            "decided": state.decided,
            "frozen": np.concatenate([np.empty(0, np.int64), *(e.local for e in state.frozen)]),
            "sides": np.concatenate([np.empty(0, np.int8), *(e.side for e in state.frozen)]),
            "since": np.concatenate([np.empty(0, np.int64), *rounds]),
            "entries": np.array(state.columns.entries),
        }

    def load(self, shard: int, arrays: dict[str, NDArray[Any]]) -> State:
        """The state that ``save`` wrote."""
        state = self.open(shard)
        for name in ("alpha", "scores", "decided"):
            setattr(state, name, arrays[name].copy())
        for since in np.unique(arrays["since"]).tolist():
            pick = arrays["since"] == since
            state.frozen.append(Frozen(arrays["frozen"][pick], arrays["sides"][pick], since))
        if len(arrays["alive"]) < len(state.alive):
            self._look_at(state, np.searchsorted(state.alive, arrays["alive"]))
        state.columns.entries = int(arrays["entries"])
        return state
