"""One shard's part of the smoothed Newton: what a round computes where the rows live.

The hinge is Huber-smoothed with half-width h: with ``z_i = G_i`` (``1 - y u`` for a C-SVC) the
dual point is read off the scores, ``alpha = lo + (hi - lo) clip((z + h) / (2 h), 0, 1)``. A row
with ``|z| > h`` sits at one side of its box; only rows in the zone ``|z| <= h`` curve the loss.

Rows that stay on their side need not be read (lazy rows, exact): row i was last scored at w_ref,
so ``|z_i(w) - z_i(w_ref)| <= ||w - w_ref|| ||phi_i|| + |b - b_ref|``. Their loss is linear and
follows from two sums kept per shard, V = sum bound_i s_i c_i and H = sum bound_i p_i.

A state is a pure fold over the messages, so a lost shard is rebuilt by replaying them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen import exact
from bigscreen.design import Design, tiles
from bigscreen.dual import AT_HI, AT_LO, FREE, Dual, FloatArray
from bigscreen.problems import CSvc
from bigscreen.solvers.newton_state import (
    UNSET,
    State,
    add_by_sign,
    add_moment,
    by_sign,
    intervals,
    moment_of_zeros,
    moved_since,
    quantiles,
    segment_losses,
    side_loss,
    side_value,
)

TILE = 2048
"""Rows whose columns are held at once."""


@dataclass(frozen=True)
class NewtonProgram:
    """What every shard of the Newton runs (see ``fleet.Program``).

    Parameters
    ----------
    design : Design
    problem : CSvc
    stride, scale : int, float
        Take one row in ``stride`` and multiply its box by ``scale``: a subsample's problem.
    resident : bool
        Keep the shard's rows in memory between passes.
    lazy : bool
        Skip rows that provably stay on their side; False visits every row alive in every pass.
    weight_bound : float
        Upper bound of ``sum max(|lo|, |hi|)`` over all rows (sizes the exact sums).
    """

    design: Design
    problem: CSvc
    stride: int = 1
    scale: float = 1.0
    resident: bool = True
    lazy: bool = True
    weight_bound: float = 1.0

    def open(self, shard: int) -> State:
        """The state before the first message: nothing scored, every sum zero."""
        data = self.design.data
        start, stop = data.shard(shard)
        pick = slice(None, None, self.stride)
        X = data.X(start, stop)
        if self.stride > 1:
            # A copy: a view would keep all of the shard's rows in memory.
            X = X[pick].copy()
        dual = self.problem.dual(
            data.y(start, stop)[pick], data.weights(start, stop)[pick], self.scale
        )
        n = len(dual)
        return State(
            start=start,
            ids=np.arange(start, stop, dtype=np.int64)[pick],
            dual=dual,
            norms=self.design.norms(X, data.sqnorms(start, stop)[pick]),
            X=X if self.resident else None,
            scores=np.zeros(n),
            ref=np.full(n, -1, np.int32),
            side=np.full(n, UNSET),
            fixed=np.zeros(n, np.bool_),
            side_sum=np.zeros((2, self.design.width + 1)),
            threshold=0.0 if dual.coupling is None else dual.threshold,
        )

    def moment_bound(self, message: dict[str, Any]) -> float:
        """At least every entry of the zone's second moment, rows near the zone included."""
        curvature = message["stride"] / (2 * message["h"])
        if message["wide"] > message["h"]:
            thinned = max(1, self.design.data.shard_rows // self._most_near)
            curvature += thinned / (2 * message["wide"])
        return self.weight_bound * max(self.design.column_bound, 1.0) ** 2 * curvature

    @property
    def _most_near(self) -> int:
        """Rows near the zone that one shard adds: two a column in all."""
        return 1 + 2 * self.design.width // self.design.data.n_shards

    def step(self, state: State, message: dict[str, Any], totals: exact.Totals) -> FloatArray:
        """Run one message: ``trial`` (score a step), ``accept`` (take it) or ``screen``."""
        return getattr(self, "_" + message["kind"])(state, message, totals)

    # -- the score pass ------------------------------------------------------------------------
    def _trial(self, state: State, message: dict[str, Any], totals: exact.Totals) -> FloatArray:
        """Losses along the segment from one w to another, for a grid of step lengths.

        Returns [rows visited, rows alive, smoothed loss per step..., hinge loss per step...].
        """
        h, coefs, offsets = message["h"], message["coefs"], message["offsets"]
        dual = state.dual
        alive = ~state.fixed
        if self.lazy:
            # At most this much at either end of the segment, and by convexity anywhere between.
            reach = moved_since(state, message)
            z = dual.lin - dual.sign * state.scores
            alive &= (np.abs(z) <= h + reach + message["slack"]) | (state.side == FREE)
        state.need = np.flatnonzero(alive)
        # Rows scored in the last pass need the far end only; w stands still on entry to a program.
        state.trial = np.empty((len(state.need), 2))
        last = len(message["travel"]) - 2
        fresh = last >= 0 and bool(np.all(state.ref[state.need] == last))
        still = len(message["steps"]) == 1
        columns = coefs[:, 1:] if fresh or still else coefs
        for a, b in tiles(len(state.need), 4 * TILE):
            scores = self.design.dots(self._rows(state, state.need[a:b]), columns)
            state.trial[a:b] = scores + offsets[-columns.shape[1] :]
        if fresh:
            state.trial[:, 0] = state.scores[state.need]
        counts = [len(state.need), len(dual) - np.count_nonzero(state.fixed)]
        return np.concatenate([counts, self._search(state, message, totals)])

    def _search(self, state: State, message: dict[str, Any], totals: exact.Totals) -> FloatArray:
        """Losses of the last trial for a grid of step lengths: no row is read again."""
        h, steps = message["h"], message["steps"]
        ends = side_loss(state, message["coefs"], message["offsets"])
        losses = np.zeros((2, len(steps)))
        part = state.dual[state.need]
        segment_losses(
            part.lin - part.sign * state.trial[:, 0],
            part.sign * (state.trial[:, 0] - state.trial[:, 1]),
            part.lo,
            part.hi,
            h,
            steps,
            losses,
        )
        losses += ends[0] + steps * (ends[1] - ends[0])
        return losses.ravel()

    # -- the gradient pass ---------------------------------------------------------------------
    def _accept(self, state: State, message: dict[str, Any], totals: exact.Totals) -> FloatArray:
        """Move to step t of the last trial, then the gradient there."""
        h, need = message["h"], state.need
        old, new = state.trial[:, 0], state.trial[:, 1]
        state.scores[need] = old + message["t"] * (new - old)
        state.ref[need] = message["ref"]
        part = state.dual[need]
        z = part.lin - part.sign * state.scores[need]
        side = np.where(z > h, AT_HI, np.where(z < -h, AT_LO, FREE)).astype(np.int8)
        self._move_sides(state, part, side)
        # The trial is over: nothing of it goes into a checkpoint.
        state.need, state.trial = np.empty(0, np.int64), np.empty((0, 2))
        return self._gradient(state, message, totals)

    def _gradient(self, state: State, message: dict[str, Any], totals: exact.Totals) -> FloatArray:
        """Add V and the zone's second moment at the current scores to the totals.

        V comes twice: with the zone's alpha, and with the zone's boxes at half, from which the
        coordinator has V for the same zone at any other h.

        Returns [p . alpha of sign +, of sign -, zone rows, zone weight].
        """
        h, wide, stride = message["h"], message["wide"], message["stride"]
        zone = np.flatnonzero(state.side == FREE)
        rows = state.dual[zone]
        width = rows.hi - rows.lo
        z = rows.lin - rows.sign * state.scores[zone]
        alpha = rows.lo + width * np.clip((z + h) / (2 * h), 0.0, 1.0)
        moment = moment_of_zeros(self.design.width + 1)
        zone_sum = self._zone(state, zone, rows, alpha, np.sqrt(width / (2 * h)), stride, moment)
        if wide > h:
            self._near(state, wide, moment)
        largest = max(self.design.column_bound, 1.0)
        zone_sum[0] += state.side_sum
        zone_sum[1] += state.side_sum
        exact.add(totals, "v", zone_sum, self.weight_bound * largest)
        exact.add(totals, "moment", moment, self.moment_bound(message))
        lin = state.side_lin + by_sign(rows.sign, alpha * rows.lin)
        return np.array([*lin, len(zone), float(np.sum(width))])

    def _move_sides(self, state: State, part: Dual, side: NDArray[np.int8]) -> None:
        """Update V and H for the visited rows whose contribution from a side has changed."""
        need = state.need
        change = side_value(part, side) - side_value(part, state.side[need])
        state.side[need] = side
        moved = np.flatnonzero(change)
        state.side_lin += by_sign(part.sign[moved], change[moved] * part.lin[moved])
        # Few rows: float64 entries. Many (the first passes): float32 entries, float64 sums.
        dtype = np.float64 if 16 * len(moved) < len(need) else np.float32
        for a, b in tiles(len(moved), TILE):
            ids = moved[a:b]
            columns = self.design.columns(self._rows(state, need[ids]), dtype)
            add_by_sign(state.side_sum, columns, part.sign[ids], change[ids])

    def _zone(
        self,
        state: State,
        ids: NDArray[np.int64],
        rows: Dual,
        alpha: FloatArray,
        curvature: FloatArray,
        stride: int,
        moment: FloatArray,
    ) -> FloatArray:
        """V of the zone's rows by sign, with alpha and with half their boxes (2, 2, m + 1).

        Adds their second moment, from one row in ``stride``, to ``moment``.
        """
        total = np.zeros((2, *state.side_sum.shape))
        half = 0.5 * (rows.lo + rows.hi)
        for a, b in tiles(len(ids), TILE):
            columns = self.design.columns(self._rows(state, ids[a:b]), np.float64)
            add_by_sign(total[0], columns, rows.sign[a:b], alpha[a:b])
            add_by_sign(total[1], columns, rows.sign[a:b], half[a:b])
            # Strided from the zone's own numbering, so tiles do not change the choice.
            first = (-a) % stride
            weight = curvature[a:b][first::stride] * np.sqrt(stride)
            add_moment(moment, columns[first::stride], weight)
        return total

    def _near(self, state: State, wide: float, moment: FloatArray) -> None:
        """Add to ``moment`` the rows near the zone, curved as if the zone were that wide."""
        z = np.abs(state.dual.lin - state.dual.sign * state.scores)
        near = np.flatnonzero((z <= wide) & (state.side != FREE) & ~state.fixed)
        # They only steady the step: a few are enough.
        stride = max(1, len(near) // self._most_near)
        near = near[::stride]
        weight = np.sqrt((state.dual.hi[near] - state.dual.lo[near]) * stride / (2 * wide))
        for a, b in tiles(len(near), TILE):
            columns = self.design.columns(self._rows(state, near[a:b]), np.float64)
            add_moment(moment, columns, weight[a:b])

    # -- screening -----------------------------------------------------------------------------
    def _screen(self, state: State, message: dict[str, Any], totals: exact.Totals) -> FloatArray:
        """Fix the rows that a region proves to stay on the side they are on.

        Returns [rows newly fixed at hi, rows newly fixed at lo].
        """
        lower, upper = intervals(state, message)
        decided = state.dual.decide(lower, upper, message["mu"])
        decided[state.fixed | (decided != state.side)] = FREE
        state.fixed |= decided != FREE
        if state.dual.coupling is not None:
            # A fixed row's breakpoint is on a known side of mu*: all later statistics keep that.
            low = AT_LO * (state.dual.coupling > 0) + AT_HI * (state.dual.coupling < 0)
            _, weights, _ = state.dual.breakpoints(state.scores)
            state.below += float(np.sum(weights[(decided != FREE) & (decided == low)]))
        counts = [np.count_nonzero(decided == AT_HI), np.count_nonzero(decided == AT_LO)]
        if 2 * np.count_nonzero(state.fixed) > len(state.fixed):
            state.compact()
        return np.array(counts, dtype=np.float64)

    def _quantiles(self, state: State, message: dict[str, Any], totals: exact.Totals) -> FloatArray:
        """See ``newton_state.quantiles``."""
        return quantiles(state, message)

    def _rows(self, state: State, local: NDArray[np.int64]) -> Any:
        if state.X is not None:
            return state.X if len(local) == state.X.shape[0] else state.X[local]
        ids = state.ids[local]
        if not len(ids):
            return self.design.data.X(state.start, state.start)
        first = int(ids[0])
        return self.design.data.X(first, int(ids[-1]) + 1)[ids - first]

    # -- checkpoints ---------------------------------------------------------------------------
    def save(self, state: State) -> dict[str, NDArray[Any]]:
        """What the state holds beyond the data itself."""
        return {
            "ids": state.ids,
            "scores": state.scores,
            "ref": state.ref,
            "side": state.side,
            "fixed": state.fixed,
            "side_sum": state.side_sum,
            "side_lin": state.side_lin,
            "below": np.array(state.below),
            # A shard can move to another worker between a trial and its end.
            "need": state.need,
            "trial": state.trial,
        }

    def load(self, shard: int, arrays: dict[str, NDArray[Any]]) -> State:
        """The state that ``save`` wrote."""
        state = self.open(shard)
        keep = (arrays["ids"] - state.start) // self.stride
        if len(keep) < len(state.ids):
            state.fixed = np.ones(len(state.ids), np.bool_)
            state.fixed[keep] = False
            state.compact()
        for name in ("scores", "ref", "side", "fixed", "side_sum", "side_lin", "need", "trial"):
            setattr(state, name, arrays[name].copy())
        state.below = float(arrays["below"])
        return state
