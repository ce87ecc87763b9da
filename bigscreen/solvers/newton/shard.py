"""One shard's part of the smoothed Newton: what a round computes where the rows live.

The dual point is read off the scores (`newton_loss`). Only rows in a zone curve the loss; others
stay at a side and need not be read (lazy rows, exact): row i was last scored at w_ref, so
``|G_i(w) - G_i(w_ref)| <= ||w - w_ref|| ||phi_i|| + |b - b_ref|`` (b the extras). Their loss is
linear and follows from two sums kept per shard, ``V = sum side_i s_i c_i`` and
``H = sum side_i p_i``.

A state is a pure fold over the messages, so a lost shard is rebuilt by replaying them. Steps ask
for what they need of the rows (``asks``): several runs can step together (``fleet.lockstep``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design, column_dots, row_ranges
from bigscreen.fleet.lockstep import Work
from bigscreen.numerics import reproducible
from bigscreen.numerics.reproducible import Totals
from bigscreen.numerics.rows import FloatArray, as_rows
from bigscreen.problems.dual import FREE, Dual
from bigscreen.problems.point import SumLayout, Terms, add_rows, by_term, read_off
from bigscreen.problems.recipes import Problem
from bigscreen.solvers.kept_rows import KeptRows
from bigscreen.solvers.newton.algebra import entries
from bigscreen.solvers.newton.asks import Columns, Dots, Moment, Rounding
from bigscreen.solvers.newton.products import ZoneRows
from bigscreen.solvers.newton.sampled import sampled
from bigscreen.solvers.newton.state import (
    SAVED,
    UNSET,
    NewtonShard,
    curvature,
    flat,
    off_kink,
    segment_losses,
    side_value,
    sides,
    span,
    tube_of,
    zone_widths,
)

Handler = Callable[[NewtonShard, dict[str, Any], Totals], Work | FloatArray]
"""What answers messages of one kind."""

HEAD = 5
"""Numbers that stand before a row's feature: G, lo, hi, tube, alpha."""

COLUMN_ROWS = 2048
"""Rows whose columns are held at once."""

SAMPLE, THINNED = 1024, 16
"""Rows, of all shards together, that are scored in float64 too; and of so many at most one."""


class NearbyRows(NamedTuple):
    """Rows in the coordinator's hands: a change of x by d changes G by ``-feature . d``.

    ``feature`` (rows, size) is ``s [phi, border]``; ``G`` float64 (rows,) at the w that the
    shards stand at.
    """

    feature: NDArray[Any]
    G: FloatArray
    lo: FloatArray
    hi: FloatArray
    tube: FloatArray

    @classmethod
    def none(cls, size: int) -> NearbyRows:
        """No rows."""
        return cls(np.empty((0, size), np.float32), *np.empty((4, 0)))

    def and_more(self, rows: NearbyRows, room: NDArray[Any]) -> NearbyRows:
        """These rows, and others after them; the features of both stand in ``room`` already."""
        pairs: Any = zip(self[1:], rows[1:], strict=True)
        heads = (np.concatenate(pair) for pair in pairs)
        return NearbyRows(room[: len(self.G) + len(rows.G)], *heads)

    @property
    def dual(self) -> Dual:
        """The box and the tube of the rows; G takes the place of their scores."""
        one = np.broadcast_to(np.float64(1.0), len(self.G))
        tube = self.tube if self.tube.any() else None
        return Dual(one, 0.0 * one, self.lo, self.hi, tube=tube)

    @classmethod
    def unpacked(
        cls, stack: FloatArray, counts: NDArray[np.int64], room: NDArray[np.float32]
    ) -> tuple[NearbyRows, FloatArray]:
        """The rows that ``NewtonProgram`` gathered, in the order of the shards, and their alpha.

        ``room`` (at least as many rows, size): where their features go.
        """
        size, feature = room.shape[1], room[: int(counts.sum())]
        tables = [shard.reshape(-1, HEAD + -(-size // 2)) for shard in stack]
        parts = [table[:count] for table, count in zip(tables, counts, strict=True)]
        ends = np.cumsum(counts)
        for part, start, stop in zip(parts, ends - counts, ends, strict=True):
            feature[start:stop] = part[:, HEAD:].view(np.float32)[:, :size]
        *head, alpha = np.ascontiguousarray(np.concatenate([part[:, :HEAD] for part in parts]).T)
        return cls(feature, *head), alpha


@dataclass(frozen=True)
class NewtonProgram(KeptRows):
    """What every shard of the Newton runs (see ``fleet.Program``).

    Parameters
    ----------
    design : Design
    problem : Problem
    stride, scale : int, float
        Take one row in ``stride`` and multiply its box by ``scale``: a subsample's problem.
    resident : float
        Part of the rows that is kept in memory between passes: whole shards, spread evenly.
    lazy : bool
        Skip rows that provably stay on their side; False visits every row alive in every pass.
    weight_bound : float
        Upper bound of the rows' reach in all (sizes the exact sums; those of alpha, where losses
        are squared, by the ``box`` of a message).
    room : int
        Bytes that columns may take in each shard that are kept while a step lasts.
    """

    design: Design
    problem: Problem
    stride: int = 1
    scale: float = 1.0
    resident: float = 1.0
    lazy: bool = True
    weight_bound: float = 1.0
    room: int = 0

    @cached_property
    def frame(self) -> SumLayout:
        """What rows have beside their columns."""
        return SumLayout.of(self.problem, self.design.data)

    @property
    def tile(self) -> int:
        """How many rows' columns are held at once."""
        return self.design.rows_per_tile(COLUMN_ROWS)

    def open(self, shard: int, lent: MutableMapping[Any, Any] | None = None) -> NewtonShard:
        """The state before the first message: nothing scored, every sum zero.

        Rows without any weight, such as those of other classes than a pair's, have no part in it.
        ``lent``: rows, and their norms, that the states of other runs hold and this one's.
        """
        data, frame = self.design.data, self.frame
        start, stop = data.shard(shard)
        pick = slice(None, None, self.stride)
        known: Any = {} if lent is None else lent
        X, norms, sample = (known.get((what, self.stride)) for what in ("rows", "norms", "sample"))
        keeps, rounded = self.keeps(shard), self.design.kernel is not None
        if X is None and (keeps or (rounded and (norms is None or sample is None))):
            ids = np.arange(start, stop, dtype=np.int64)[pick]
            X = data.X(start, stop) if self.stride == 1 else data.rows(ids)
            known["rows", self.stride] = X
        if norms is None:
            norms = self.design.norms(X, data.sqnorms(start, stop)[pick])
            known["norms", self.stride] = norms
        if rounded and sample is None:
            sample = known["sample", self.stride] = self._sample(X, data.sqnorms(start, stop)[pick])
        dual = self.problem.dual(
            data.y(start, stop)[pick], data.weights(start, stop)[pick], self.scale
        )
        ids = np.arange(start, stop, dtype=np.int64)[pick]
        counted = np.flatnonzero(dual.reach)
        if len(counted) < len(ids):
            dual, ids, norms = dual[counted], ids[counted], norms[counted]
            X = X if lent is not None or not keeps else X[counted]
        dual, norms, n = replace(dual, hi=flat(dual.hi)), flat(norms), len(dual)
        most = replace(dual, total=0.0 * frame.total).threshold if frame.groups else 0.0
        return NewtonShard(
            frame=frame,
            start=start,
            ids=ids,
            dual=dual,
            norms=norms,
            X=X if keeps else None,
            stride=self.stride,
            lent=lent is not None,
            scores=np.zeros(n),
            ref=np.full(n, -1, np.int32),
            side=np.full(n, UNSET),
            fixed=np.zeros(n, np.bool_),
            side_sum=np.zeros((frame.buckets, self.design.width + frame.extras)),
            side_lin=np.zeros(frame.buckets),
            most=np.atleast_1d(most),
            below=np.zeros(max(1, frame.groups)),
            sample=sample,
        )

    def _sample(self, X: Any, sqnorms: FloatArray) -> Any:
        """Some of a shard's rows, the longest among them."""
        step = max(THINNED, len(sqnorms) * self.design.data.n_shards // SAMPLE)
        longest = np.argsort(sqnorms)[-1:]
        return X[np.unique(np.concatenate([np.arange(0, len(sqnorms), step), longest]))]

    def most_alpha(self, message: dict[str, Any]) -> float:
        """At least ``sum |alpha|``: of squared losses as the coordinator knows it from P."""
        return float(message["box"]) if self.frame.curved else self.weight_bound

    def moment_bound(self, message: dict[str, Any]) -> float:
        """At least every entry of the zone's second moment, rows near the zone included."""
        largest = self.frame.largest(self.design.largest_norm)
        if self.frame.curved:
            return float(message["stride"] * self.weight_bound * largest**2)
        curvature = float(message["stride"] / (2 * message["h"]))
        if message["wide"] > message["h"]:
            thinned = max(1, self.design.data.shard_rows // self.most_near)
            curvature += thinned / (2 * message["wide"])
        # A box is at most twice as wide as its further end is from 0.
        return 2 * self.weight_bound * largest**2 * curvature

    def add_moment(self, totals: Totals, message: dict[str, Any], moment: NDArray[Any]) -> None:
        """Add the second moment of some rows to the totals."""
        reproducible.add(totals, "moment", moment, self.moment_bound(message))

    @property
    def most_near(self) -> int:
        """Rows near the zone that one shard adds: two a column in all."""
        return 1 + 2 * self.design.width // self.design.data.n_shards

    def step(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Run one message: ``trial`` (score a step), ``accept`` (take it), ``screen``, ..."""
        work = self.work(state, message, totals)
        if isinstance(work, np.ndarray):
            return work
        try:
            ask = next(work)
            while True:
                # A step by itself has one tile's columns in its hands at a time.
                alone = isinstance(ask, Columns)
                ask = work.send(ask.made("asked") if alone else ask.answers([ask])[0])
        except StopIteration as end:
            vector: FloatArray = end.value
            return vector

    def work(
        self, state: NewtonShard, message: dict[str, Any], totals: Totals
    ) -> Work | FloatArray:
        """The same as a step that stops where it asks for something of the rows."""
        answer: Handler = getattr(self, "_" + message["kind"])
        return answer(state, message, totals)

    def _sizes(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        return state.sizes()

    def _rounding(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> Work:
        """The farthest that float32 columns move a score of the sample, by machine (k,)."""
        return (yield Rounding(self.design, state.sample, message["coefs"]))

    # -- the score pass ------------------------------------------------------------------------
    def _trial(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> Work:
        """Losses along the segment from one w to another, for a grid of step lengths.

        Where the rows are ``scored`` already, by the same message with other steps, none is read.

        Returns [rows visited, rows alive, smoothed loss per step..., hinge loss per step...].
        """
        if not message.get("scored", False):
            yield from self._score(state, message)
        h, steps = message["h"], message["steps"]
        ends = state.side_loss(message["coefs"], message["extras"])
        losses = np.zeros((2, len(steps)))
        part = state.visited
        segment_losses(
            part.lin - part.sign * state.trial[:, 0],
            part.sign * (state.trial[:, 0] - state.trial[:, 1]),
            part.lo,
            np.ascontiguousarray(part.hi),
            tube_of(part),
            h,
            steps,
            losses,
            part.curve,
        )
        losses += ends[0] + steps * (ends[1] - ends[0])
        counts = [len(state.need), len(state.dual) - np.count_nonzero(state.fixed)]
        return np.concatenate([counts, losses.ravel()])

    def _score(
        self, state: NewtonShard, message: dict[str, Any]
    ) -> Generator[Dots | Columns, Any, None]:
        """Score the rows that may leave their side at either end of the segment."""
        h, coefs, extras = message["h"], message["coefs"], message["extras"]
        dual, state.curved = state.dual, None
        alive = ~state.fixed
        if self.lazy:
            # At most this much at either end of the segment, and by convexity anywhere between.
            reach = state.moved_since(message)
            distance = state.distance(state.scores)
            nearby = h + reach + message["slack"]
            if message.get("near") is not None:
                # Others are held to their side, whether or not they would stay there.
                nearby = message["near"][state.ref]
            near = (distance <= nearby) | (state.side == FREE)
            # (Rows at hand may have come from farther.)
            alive &= near | state.held if len(state.held) else near
        state.need = np.flatnonzero(alive)
        # Rows scored in the last pass need the far end only; w stands still on entry to a program.
        last = len(message["travel"]) - 2
        fresh = last >= 0 and bool(np.all(state.ref[state.need] == last))
        still = len(message["steps"]) == 1
        ends = slice(1 if fresh or still else 0, 2)
        found = np.empty((len(state.need), 2 - ends.start))
        if still and 2 * np.count_nonzero(state.side == UNSET) > len(state.need):
            yield from self._enter(state, message, found)
            state.trial = np.broadcast_to(found, (len(found), 2))
            return
        for a, b in row_ranges(len(state.need), 4 * COLUMN_ROWS):
            ids = state.need[a:b]
            found[a:b] = yield Dots(self.design, state, ids, coefs[:, ends])
            if len(extras):
                found[a:b] += self.frame.border(dual[span(ids)]) @ extras[:, ends]
        if fresh:
            found = np.stack([state.scores[state.need], found[:, 0]], axis=1)
        state.trial = np.broadcast_to(found, (len(found), 2))

    def _enter(
        self, state: NewtonShard, message: dict[str, Any], scores: FloatArray
    ) -> Generator[Columns, Any, None]:
        """Score rows at w, most of them for the first time: V and H get their sides' part at once.

        ``scores`` (rows visited, 1) receives theirs.
        """
        coef, extras = (np.ascontiguousarray(message[name][:, -1]) for name in ("coefs", "extras"))
        for a, b in row_ranges(len(state.need), self.tile):
            ids = state.need[a:b]
            columns, part = as_rows((yield Columns(self.design, state, ids))), state.dual[span(ids)]
            column_dots(columns, coef, scores[a:b, 0])
            scores[a:b, 0] += self.frame.border(part) @ extras
            side = sides(part, part.lin - part.sign * scores[a:b, 0], message["h"])
            before, after = side_value(part, state.side[ids]), side_value(part, side)
            state.side[ids] = side
            self._add_sides(state, part, columns, before, after)

    # -- the gradient pass ---------------------------------------------------------------------
    def _accept(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> Work:
        """Move to step t of the last trial, then the gradient there."""
        h, need = message["h"], state.need
        old, new = state.trial[:, 0], state.trial[:, 1]
        state.scores[need] = old + message["t"] * (new - old)
        state.ref[need] = message["ref"]
        part = state.visited
        z = part.lin - part.sign * state.scores[need]
        yield from self._move_sides(state, part, sides(part, z, h))
        # The trial is over: nothing of it goes into a checkpoint.
        state.need, state.trial = np.empty(0, np.int64), np.empty((0, 2))
        return (yield from self._gradient(state, message, totals))

    def _gradient(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> Work:
        """Add V and the zone's second moment at the current scores to the totals.

        V comes by the frame's terms, and once more, as its last row, with alpha of the zone's rows
        as it is in the middle of the zone: the coordinator has V for the same zone at any other h.

        Returns [the sums of `Terms`..., zone rows, zone weight].
        """
        h, wide, stride = message["h"], message["wide"], message["stride"]
        zone = np.flatnonzero(state.side == FREE)
        rows = state.dual[zone]
        z = rows.lin - rows.sign * state.scores[zone]
        bend, width, middle = curvature(rows, z, h)
        terms = Terms(self.frame, rows, read_off(rows, z, h))
        v = np.zeros((self.frame.terms + 1, state.side_sum.shape[1]))
        dtype = entries(len(zone), len(state.dual))
        for a, b in row_ranges(len(zone), self.tile):
            tile = slice(a, b)
            columns = yield Columns(self.design, state, zone[tile], dtype)
            border = self.frame.border(rows[tile])
            terms.add(tile, columns, border, v)
            last = np.full(b - a, self.frame.terms)
            add_rows(columns, border, rows.sign[tile] * middle[tile], last, v)
            if not stride:
                continue
            # Strided from the zone's own numbering, so tiles do not change the choice; other rows
            # in every pass.
            part = slice((message["turn"] - a) % stride, None, stride)
            weight = np.sqrt(bend[tile][part]) * np.sqrt(stride)
            if len(weight):
                own = zone[tile][part], columns[part], border[part]
                moment = yield Moment(self.design, state, *own, weight)
                self.add_moment(totals, message, moment)
        if stride and wide > h:
            yield from self._add_near(state, message, totals)
        v[: self.frame.buckets] += state.side_sum
        v[-1] += state.side_sum.sum(axis=0)
        largest = self.frame.largest(self.design.column_bound)
        reproducible.add(totals, "v", v, self.most_alpha(message) * largest)
        terms.sums[: self.frame.buckets] += state.side_lin
        return np.array([*terms.sums, len(zone), float(np.sum(width))])

    def _product(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> Work:
        """The zone's second moment times a vector, of which ``coef`` and ``extras`` are made.

        Of one in ``stride`` rows, as often; ``first``: of a step. Returns ``sum bend_i
        [c_i, border_i] (c_i . coef + border_i . extras)`` (m + extras,).
        """
        if message["first"] or state.curved is None:
            zone, bend, border = self._curving(state, message)
            # (Rows in memory are their own columns.)
            room = self.room if self.design.kernel or state.X is None else 0
            state.curved = ZoneRows(zone, bend, border, message["unit"], room)
        v = message["coef"], message["extras"]
        return (yield from state.curved.product(self.design, state, self.tile, *v))

    def _curving(
        self, state: NewtonShard, message: dict[str, Any]
    ) -> tuple[NDArray[np.int64], FloatArray, FloatArray]:
        """One in ``stride`` rows of the zone, what each curves P by, for all, and its border.

        (``stride`` need not be whole.)
        """
        stride, zone = message["stride"], np.flatnonzero(state.side == FREE)
        places = (stride * np.arange(-(-len(zone) // stride))).astype(np.int64)
        zone = zone[places[places < len(zone)]]  # rounded, the last can be one too far
        rows = state.dual[zone]
        bend, _, _ = curvature(rows, rows.lin - rows.sign * state.scores[zone], message["h"])
        return zone, stride * bend, self.frame.border(rows)

    def _sampled(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """One in ``stride`` rows of the zone: what ``Sample.unpacked`` reads."""
        zone, bend, border = self._curving(state, message)
        return sampled(state.ids[zone], bend, border, message["most"])

    def _middle(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> Work:
        """V of all rows with alpha in the middle of the box, by the frame's terms.

        Returns the sums of `Terms`.
        """
        dual = state.dual
        terms = Terms(self.frame, dual, 0.5 * (dual.lo + dual.hi))
        v = np.zeros((self.frame.terms + 1, state.side_sum.shape[1]))
        for a, b in row_ranges(len(dual), self.tile):
            columns = yield Columns(self.design, state, np.arange(a, b))
            terms.add(slice(a, b), columns, self.frame.border(dual[a:b]), v)
        reproducible.add(
            totals, "v", v, self.weight_bound * self.frame.largest(self.design.column_bound)
        )
        return terms.sums

    def _move_sides(
        self, state: NewtonShard, part: Dual, side: NDArray[np.int8]
    ) -> Generator[Columns, Any, None]:
        """Update V and H for the visited rows whose contribution from a side has changed."""
        need = state.need
        before, after = side_value(part, state.side[need]), side_value(part, side)
        state.side[need] = side
        moved = np.flatnonzero(before != after)
        part, before, after = part[moved], before[moved], after[moved]
        dtype = entries(len(moved), len(need))
        for a, b in row_ranges(len(moved), self.tile):
            columns = yield Columns(self.design, state, need[moved[a:b]], dtype)
            self._add_sides(state, part[a:b], columns, before[a:b], after[a:b])

    def _add_sides(
        self, state: NewtonShard, part: Dual, columns: Any, before: FloatArray, after: FloatArray
    ) -> None:
        """Move rows' part in V and H from that of an alpha at a side to that of another."""
        frame, border = self.frame, self.frame.border(part)
        for factor, alpha in ((-1.0, before), (1.0, after)):
            bucket = frame.bucket(part, alpha)
            state.side_lin += factor * by_term(bucket, part.linear(alpha), frame.buckets)
            add_rows(columns, border, factor * part.sign * alpha, bucket, state.side_sum)

    def _add_near(
        self, state: NewtonShard, message: dict[str, Any], totals: Totals
    ) -> Generator[Columns | Moment, Any, None]:
        """Add to the zone's moment the rows near it, curved as if the zone were ``wide``."""
        z, wide = state.dual.lin - state.dual.sign * state.scores, message["wide"]
        inside = off_kink(state.dual, z) <= wide
        near = np.flatnonzero(inside & (state.side != FREE) & ~state.fixed)
        # They only steady the step: a few are enough.
        stride = max(1, len(near) // self.most_near)
        near = near[::stride]
        part = state.dual[near]
        weight = np.sqrt(zone_widths(part, z[near], wide)[0] * stride / (2 * wide))
        for a, b in row_ranges(len(near), self.tile):
            columns = yield Columns(self.design, state, near[a:b])
            own = near[a:b], columns, self.frame.border(part[a:b])
            moment = yield Moment(self.design, state, *own, weight[a:b])
            self.add_moment(totals, message, moment)

    # -- rows near their kink ------------------------------------------------------------------
    def _within(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """How many rows are within each of some distances from their kink, at step t of a trial."""
        scores, t = state.scores, message["t"]
        if t is not None:
            scores = scores.copy()
            scores[state.need] = state.trial @ np.array([1 - t, t])
        distance = state.distance(scores)[~state.fixed]
        return np.array(
            [np.count_nonzero(distance <= reach) for reach in message["reaches"]], float
        )

    def _nearby(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """How many rows are so near to their kink, by the pass that they were last scored in."""
        inside = state.distance(state.scores) <= message["within"][state.ref]
        return np.array([np.count_nonzero(inside & ~state.fixed)], float)

    def _sides(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """The sides of all rows of the shard, eight in a number: what ``Rounds.sides`` reads."""
        rows = np.full(-(-self.design.data.shard_rows // 8) * 8, FREE)
        rows[state.ids - state.start] = np.where(state.side == UNSET, FREE, state.side)
        return rows.view(np.float64)

    def _pick(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Pick all rows within reach, or, after a trial, those that its far end finds elsewhere.

        Returns [rows picked].
        """
        if "reach" in message:
            near = (state.distance(state.scores) <= message["reach"]) | (state.side == FREE)
            state.picked = np.flatnonzero(near & ~state.fixed)
            state.held = np.zeros(len(state.dual), np.bool_)
        else:
            part = state.visited
            z = part.lin - part.sign * state.trial[:, 1]
            moved = sides(part, z, message["h"]) != state.side[state.need]
            state.picked = state.need[moved & ~state.held[state.need]]
        state.held[state.picked] = True
        return np.array([len(state.picked)], float)

    def _gather(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> Work:
        """The picked rows, filled up to ``most`` of them: what ``unpack`` reads."""
        design, frame, picked = self.design, self.frame, state.picked
        coef, extras = message["coef"], message["extras"]
        size = design.rank + frame.extras
        out = np.zeros((message["most"], HEAD + -(-size // 2)))
        for a, b in row_ranges(len(picked), self.tile):
            ids = picked[a:b]
            dual = state.dual[ids]
            columns = yield Columns(design, state, ids)
            border, scores, side = frame.border(dual), np.empty(b - a), state.side[ids]
            column_dots(as_rows(columns), coef, scores)
            head = (
                dual.lin - dual.sign * (scores + border @ extras),
                dual.lo,
                dual.hi,
                tube_of(dual),
                np.where(side == FREE, np.nan, side_value(dual, side)),
            )
            out[a:b, :HEAD] = np.stack(head, axis=1)
            # float32 numbers in float64's bytes: answers are of one type.
            feature = out[a:b, HEAD:].view(np.float32)
            rank = design.rank
            feature[:, :rank] = design.features_of(columns)
            feature[:, rank:size] = border
            feature[:, :size] *= dual.sign[:, None].astype(np.float32)
        return out.ravel()

    # -- screening -----------------------------------------------------------------------------
    def _screen(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        counts = state.fix(message)
        if 2 * np.count_nonzero(state.fixed) > len(state.fixed):
            state.compact()
        return counts

    def _quantiles(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        return state.quantiles(message)

    # -- checkpoints ---------------------------------------------------------------------------
    def save(self, state: NewtonShard) -> dict[str, NDArray[Any]]:
        """What the state holds beyond the data itself."""
        return {name: getattr(state, name) for name in SAVED}

    def load(
        self,
        shard: int,
        arrays: dict[str, NDArray[Any]],
        lent: MutableMapping[Any, Any] | None = None,
    ) -> NewtonShard:
        """The state that ``save`` wrote."""
        state = self.open(shard, lent)
        keep = np.searchsorted(state.ids, arrays["ids"])
        if len(keep) < len(state.ids):
            state.fixed = np.ones(len(state.ids), np.bool_)
            state.fixed[keep] = False
            state.compact()
        for name in SAVED:
            setattr(state, name, arrays[name].copy())
        return state
