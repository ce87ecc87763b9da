"""One shard's part of the block solver: scores and alpha live here, with the rows.

A round brings the rows whose alpha has changed and by how much; every shard adds their kernel
columns to its scores, and names the rows of its own that violate optimality most. Kernel columns
never leave the shard. With ``v_i = G_i / t_i`` (t is 1 without a coupling) a row can move up while
``t_i alpha_i`` has room above, down while it has room below; at the optimum every row that can move
up has ``v <= mu`` and every row that can move down ``v >= mu`` (mu is 0 without a coupling).

A state is a pure fold over the messages, so a lost shard is rebuilt by replaying them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.design import Design
from bigscreen.dual import AT_HI, AT_LO, FREE, FloatArray
from bigscreen.exact import Totals
from bigscreen.kernels import Side
from bigscreen.problems import CSvc
from bigscreen.screening.regions import Ball
from bigscreen.solvers.block_columns import Columns, take
from bigscreen.solvers.block_state import Frozen, State, furthest, mine, padded, survey

NOTES = ("w_sq", "gap", "rounding", "highest", "lowest", "alive", "entries")
"""What a shard's answer begins with: its rows' parts of ||w||^2 and of the Frank-Wolfe gap at the
message's mu, a bound on the gap's rounding, the extremes of v over rows that can move up and down,
rows alive, kernel entries so far. Fixed rows are in none of the sums: they have no gap."""


@dataclass(frozen=True)
class BlockProgram:
    """What every shard of the block solver runs (see ``fleet.Program``).

    Parameters
    ----------
    design : Design
        An exact one.
    problem : CSvc
    capacity : int
        Kernel columns that every shard can keep.
    named : int
        Violators that a shard names, in either direction.
    fine : bool
        Compute kernel entries in float64.
    """

    design: Design
    problem: CSvc
    capacity: int
    named: int
    fine: bool = False

    def open(self, shard: int) -> State:
        """The state at alpha = 0; rows whose box is a point are never looked at."""
        data = self.design.data
        kernel = self.design.kernel
        assert kernel is not None
        start, stop = data.shard(shard)
        dual = self.problem.dual(data.y(start, stop), data.weights(start, stop))
        X = data.X(start, stop)
        ids = np.arange(start, stop, dtype=np.int64)
        alive = np.flatnonzero(dual.hi > dual.lo)
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
            alpha=np.array(dual.lo),
            scores=np.zeros(stop - start),
            alive=alive,
            decided=np.zeros(stop - start, np.int32),
            relative=np.zeros(len(ids)) if relative is None else relative + 0.0 * sqnorms,
            errors=errors + 0.0 * sqnorms,
            norms=np.sqrt(np.maximum(squares, 0.0) + constant),
            X=X,
            columns=self._columns(side if len(alive) == len(ids) else take(side, alive)),
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
        alive = state.alive
        if len(message["ids"]):
            scores = state.scores[alive]
            state.columns.accumulate(message["rows"], message["slots"], message["change"], scores)
            state.scores[alive] = scores
            here = message["ids"] - state.start
            mine = (here >= 0) & (here < len(state.alpha))
            state.alpha[here[mine]] = message["alpha"][mine]
        return self._survey(state, message)

    def _survey(self, state: State, message: dict[str, Any]) -> FloatArray:
        mu, offset = message["mu"], message["offset"]
        dual, alive = state.dual, state.alive
        v = np.empty(len(alive))
        moves = np.empty(len(alive), np.int8)
        t = dual.sign if dual.coupling is None else dual.coupling
        w_sq, gap, rounding, highest, lowest = survey(
            alive,
            dual.sign,
            dual.lin,
            dual.lo,
            dual.hi,
            t,
            dual.coupling is not None,
            state.alpha,
            state.scores,
            mu,
            offset,
            state.relative,
            state.errors,
            message["spread"],
            v,
            moves,
        )
        notes = np.array([w_sq, gap, rounding, highest, lowest, len(alive), state.columns.entries])
        up = furthest(np.where((moves & 1) != 0, v - mu, 0.0), self.named)
        down = furthest(np.where((moves & 2) != 0, mu - v, 0.0), self.named)
        named = [padded(x, self.named) for k in (up, down) for x in (state.start + alive[k], v[k])]
        here = mine(state, message["watch"])
        places = np.searchsorted(alive, here)
        return np.concatenate([notes, *named, padded(v[places], message["width"])])

    def _read(self, state: State, message: dict[str, Any]) -> FloatArray:
        """Read alpha of all rows off the scores of a subsample's machine (see ``Reading``)."""
        alive, change = state.alive, message["change"]
        scores = np.zeros(len(alive))
        nowhere = np.full(len(change), -1)
        state.columns.accumulate(message["rows"], nowhere, change, scores)
        scores += message["offset"]
        dual = state.dual[alive]
        h = message["h"]
        inside = np.clip((dual.gradient(scores, message["mu"]) + h) / (2 * h), 0.0, 1.0)
        alpha = state.alpha.copy()
        alpha[alive] = dual.lo + (dual.hi - dual.lo) * inside
        return padded(alpha, self.design.data.shard_rows)

    def _rows(self, state: State, message: dict[str, Any]) -> FloatArray:
        """The features of those of these rows that live here, float32 in the words of float64.

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
        """Intervals (lower, upper) of the scores of all rows; -inf, +inf: see ``_Solve._mu``."""
        n = self.design.data.shard_rows
        lower, upper = np.zeros(n), np.zeros(n)
        lower[state.alive], upper[state.alive] = self._intervals(state, message)
        fixed = np.full(n, FREE, np.float64)
        for event in state.frozen:
            fixed[event.local] = event.side
        return np.concatenate([lower, upper, fixed])

    def _screen(self, state: State, message: dict[str, Any]) -> FloatArray:
        """Drop the rows that a region decides about and whose alpha is where it says.

        Returns [rows newly fixed at hi, at lo].
        """
        alive = state.alive
        dual = state.dual[alive]
        decided = dual.decide(*self._intervals(state, message), message["mu"])
        alpha = state.alpha[alive]
        decided[(decided == AT_HI) & (alpha != dual.hi)] = FREE
        decided[(decided == AT_LO) & (alpha != dual.lo)] = FREE
        state.decided[alive] = np.where(decided == FREE, 0, state.decided[alive] + 1)
        drop = state.decided[alive] >= message["region"].patience
        if np.any(drop):
            state.frozen.append(Frozen(alive[drop], decided[drop], message["since"]))
            self._look_at(state, np.flatnonzero(~drop))
        counts = [np.count_nonzero(drop & (decided == side)) for side in (AT_HI, AT_LO)]
        return np.array(counts, np.float64)

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
            G = state.dual[event.local].gradient(scores + message["offset"], message["mu"])
            wrong += int(np.count_nonzero(np.where(event.side == AT_HI, G < 0, G > 0)))
        if state.frozen:
            state.frozen = []
            state.decided[:] = 0
            state.alive = np.flatnonzero(state.dual.hi > state.dual.lo)
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
